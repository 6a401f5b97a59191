"""What asyncpg does with a server. It is run against PostgreSQL, too: what it claims is what PostgreSQL does.

    python suite.py URL
"""

import asyncio
import datetime as dt
import decimal
import io
import sys
import traceback
import uuid

import asyncpg

URL = sys.argv[1]
TESTS = []
UTC = dt.timezone.utc


def test(function):
    TESTS.append(function)
    return function


async def connect(**more):
    return await asyncpg.connect(URL, **more)


async def fresh(name, columns="id int PRIMARY KEY, name text"):
    """An empty table of this name."""
    conn = await connect()
    await conn.execute(f"DROP TABLE IF EXISTS {name}; ")
    await conn.execute(f"CREATE TABLE {name} ({columns})")
    await conn.close()


async def raises(kind, work):
    try:
        await work
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


@test
async def the_server_says_what_it_is():
    conn = await connect()
    assert conn.get_server_version().major >= 14
    settings = conn.get_settings()
    assert settings.client_encoding == "UTF8" and settings.standard_conforming_strings == "on"
    assert conn.get_server_pid() > 0 and not conn.is_in_transaction()
    await conn.close()


# A value of each type, as Python has it, and the name of the type.
VALUES = [
    ("boolean", [True, False]),
    ("smallint", [0, -32768, 32767]),
    ("integer", [0, -(2**31), 2**31 - 1]),
    ("bigint", [0, -(2**63), 2**63 - 1]),
    ("real", [0.0, 1.5, -2.25, float("inf")]),
    ("double precision", [0.0, 1.1, -1e300, float("-inf")]),
    ("numeric", [decimal.Decimal(s) for s in ("0", "1.50", "-12345678901234567890.000123", "0.0001")]),
    ("text", ["", "plain", "quo'te \\ \n \t", "ü€𝄞"]),
    ("varchar(10)", ["", "ten chars."]),
    ("bytea", [b"", bytes(range(256))]),
    ("date", [dt.date(1, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]),
    ("time", [dt.time(0, 0), dt.time(23, 59, 59, 999999)]),
    ("timestamp", [dt.datetime(1, 1, 2), dt.datetime(2024, 2, 29, 12, 30, 1, 5)]),
    ("timestamptz", [dt.datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC)]),
    ("interval", [dt.timedelta(0), dt.timedelta(days=40, seconds=3, microseconds=7)]),
    ("uuid", [uuid.UUID(int=0), uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")]),
    ("json", ['{"a": [1, null]}']),
    ("jsonb", ['{"a": [1, null]}']),
    ("boolean[]", [[True, None, False], []]),
    ("integer[]", [[1, None, 3], []]),
    ("bigint[]", [[2**40]]),
    ("double precision[]", [[1.5, None]]),
    ("numeric[]", [[decimal.Decimal("1.50"), None]]),
    ("text[]", [["a", "", 'with "quotes", commas', None, "NULL", "\\"], []]),
    ("date[]", [[dt.date(2024, 1, 1)]]),
    ("timestamptz[]", [[dt.datetime(2024, 2, 29, tzinfo=UTC)]]),
    ("uuid[]", [[uuid.UUID(int=7), None]]),
]


@test
async def values_of_every_type_come_back():
    conn = await connect()
    for name, values in VALUES:
        statement = await conn.prepare(f"SELECT $1::{name}")
        assert [kind.name for kind in statement.get_parameters()], name
        for value in values + [None]:
            got = await statement.fetchval(value)
            assert got == value and (value is None or isinstance(got, type(value))), (name, value, got)
    await conn.close()


@test
async def values_of_every_type_are_stored():
    columns = [f"c{n} {name}" for n, (name, _) in enumerate(VALUES)]
    await fresh("stored", "id int PRIMARY KEY, " + ", ".join(columns))
    conn = await connect()
    rows = [(n, *(values[min(n, len(values) - 1)] for _, values in VALUES)) for n in range(5)]
    rows.append((9, *[None] * len(VALUES)))
    holders = ", ".join(f"${n + 1}" for n in range(len(VALUES) + 1))
    await conn.executemany(f"INSERT INTO stored VALUES ({holders})", rows)
    assert [tuple(row) for row in await conn.fetch("SELECT * FROM stored ORDER BY id")] == rows
    await conn.close()


@test
async def codecs_are_set_and_types_are_looked_up():
    import json

    conn = await connect()
    for name in ("json", "jsonb"):
        await conn.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    document = {"a": [1, 2.5, None, True, "ü"], "b": {}}
    assert await conn.fetchval("SELECT $1::jsonb", document) == document
    assert await conn.fetchval("SELECT $1::json", document) == document
    # What asyncpg does not know by heart, it asks the catalogs for.
    assert await conn.fetchval("SELECT 'pg_class'::regclass") == "pg_class"
    oids = await conn.fetch("SELECT oid, typname FROM pg_type WHERE typname = ANY ($1::text[]) ORDER BY 2", ["text", "int4"])
    assert [tuple(row) for row in oids] == [(23, "int4"), (25, "text")]
    await conn.close()


@test
async def statements_are_prepared_and_kept():
    await fresh("prepared")
    conn = await connect()
    statement = await conn.prepare("SELECT id, name FROM prepared WHERE id = $1")
    assert [(a.name, a.type.name) for a in statement.get_attributes()] == [("id", "int4"), ("name", "text")]
    assert await statement.fetchrow(1) is None
    await conn.execute("INSERT INTO prepared VALUES ($1, $2)", 1, "one")
    assert dict(await statement.fetchrow(1)) == {"id": 1, "name": "one"}
    for _ in range(20):
        assert await conn.fetchval("SELECT name FROM prepared WHERE id = $1", 1) == "one"
    # A table that changes under a statement is found out, and the statement made anew.
    assert len(await conn.fetchrow("SELECT * FROM prepared")) == 2
    await conn.execute("ALTER TABLE prepared ADD COLUMN more int")
    await conn.reload_schema_state()
    assert len(await conn.fetchrow("SELECT * FROM prepared")) == 3
    assert await conn.execute("UPDATE prepared SET more = 5 WHERE id = $1", 1) == "UPDATE 1"
    await conn.close()
    without = await connect(statement_cache_size=0)
    assert await without.fetchval("SELECT name FROM prepared WHERE id = $1", 1) == "one"
    await without.close()


@test
async def transactions_and_savepoints():
    await fresh("moved")
    conn = await connect()
    async with conn.transaction():
        await conn.execute("INSERT INTO moved VALUES (1, 'kept')")
        try:
            async with conn.transaction():
                await conn.execute("INSERT INTO moved VALUES (2, 'undone')")
                raise ValueError
        except ValueError:
            pass
        error = None
        try:
            async with conn.transaction():
                await conn.execute("INSERT INTO moved VALUES (1, 'twice')")
        except asyncpg.UniqueViolationError as raised:
            error = raised
        assert error.sqlstate == "23505" and error.constraint_name == "moved_pkey" and error.table_name == "moved"
    assert [row["id"] for row in await conn.fetch("SELECT id FROM moved ORDER BY id")] == [1]
    for level in ("serializable", "repeatable_read", "read_committed"):
        async with conn.transaction(isolation=level):
            assert await conn.fetchval("SHOW transaction_isolation") == level.replace("_", " ")
    async with conn.transaction(readonly=True):
        await raises(asyncpg.ReadOnlySQLTransactionError, conn.execute("INSERT INTO moved VALUES (7, 'x')"))
    await conn.close()


@test
async def cursors_fetch_piecemeal():
    await fresh("numbers")
    conn = await connect()
    await conn.executemany("INSERT INTO numbers VALUES ($1, $2)", [(n, str(n)) for n in range(300)])
    async with conn.transaction():
        seen = [row["id"] async for row in conn.cursor("SELECT id FROM numbers ORDER BY id", prefetch=40)]
        assert seen == list(range(300))
        cursor = await conn.cursor("SELECT id FROM numbers WHERE id >= $1 ORDER BY id", 100)
        assert (await cursor.fetchrow())["id"] == 100
        assert [row["id"] for row in await cursor.fetch(3)] == [101, 102, 103]
    await conn.close()


@test
async def records_are_copied_in_and_out():
    await fresh("copied", "id int PRIMARY KEY, name text, price numeric, at timestamptz, raw bytea, tags text[]")
    at = dt.datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=UTC)
    rows = [(n, f"n\t{n}\\", decimal.Decimal(n) / 4, at, bytes([n % 256]), ["a", str(n)]) for n in range(300)]
    rows[5] = (5, None, None, None, None, None)
    conn = await connect()
    assert await conn.copy_records_to_table("copied", records=rows) == "COPY 300"
    assert [tuple(row) for row in await conn.fetch("SELECT * FROM copied ORDER BY id")] == rows
    text = b"1000,by text\n1001,\n"
    tag = await conn.copy_to_table("copied", source=io.BytesIO(text), columns=["id", "name"], format="csv")
    assert tag == "COPY 2"
    out = io.BytesIO()
    await conn.copy_from_query("SELECT id, name FROM copied WHERE id >= $1 ORDER BY id", 1000, output=out, format="csv")
    assert out.getvalue() == text, out.getvalue()
    out = io.BytesIO()
    assert await conn.copy_from_table("copied", columns=["id"], output=out) == "COPY 302"
    assert sorted(map(int, out.getvalue().split())) == list(range(300)) + [1000, 1001]
    await raises(asyncpg.UniqueViolationError, conn.copy_records_to_table("copied", records=rows[:1]))
    assert await conn.fetchval("SELECT count(*) FROM copied") == 302
    await conn.close()


@test
async def a_pool_resets_what_its_clients_leave():
    await fresh("pooled")
    async with asyncpg.create_pool(URL, min_size=1, max_size=1) as pool:
        async with pool.acquire() as conn:
            pid = conn.get_server_pid()
            await conn.execute("SET application_name = 'left'")
            await conn.fetchval("SELECT pg_advisory_lock(77)")
            await conn.execute("DECLARE held CURSOR WITH HOLD FOR SELECT 1")
        other = await connect()
        async with pool.acquire() as conn:
            assert conn.get_server_pid() == pid, "it is the same connection"
            assert await conn.fetchval("SHOW application_name") != "left"
            await raises(asyncpg.InvalidCursorNameError, conn.execute("FETCH held"))
            assert await other.fetchval("SELECT pg_try_advisory_lock(77)")
        try:
            async with pool.acquire() as conn:
                await conn.execute("BEGIN")
                await conn.execute("INSERT INTO pooled VALUES (1, 'left open')")
                raise ValueError
        except ValueError:
            pass
        assert await pool.fetchval("SELECT count(*) FROM pooled") == 0
        await other.close()


@test
async def a_pool_serves_many_tasks():
    await fresh("busy")
    async with asyncpg.create_pool(URL, min_size=2, max_size=5) as pool:

        async def work(n):
            async with pool.acquire() as conn, conn.transaction():
                await conn.execute("INSERT INTO busy VALUES ($1, $2)", n, str(n))
                return await conn.fetchval("SELECT name FROM busy WHERE id = $1", n)

        assert await asyncio.gather(*(work(n) for n in range(40))) == [str(n) for n in range(40)]
        assert await pool.fetchval("SELECT count(*) FROM busy") == 40


@test
async def who_migrates_waits_for_who_does_already():
    first, second = await connect(), await connect()
    assert await first.fetchval("SELECT pg_try_advisory_lock($1)", 4711)
    assert not await second.fetchval("SELECT pg_try_advisory_lock($1)", 4711)
    waiting = asyncio.ensure_future(second.execute("SELECT pg_advisory_lock(4711)"))
    await first.execute("DROP TABLE IF EXISTS migrated")
    await first.execute("CREATE TABLE migrated (id int PRIMARY KEY)")
    assert not waiting.done()
    assert await first.fetchval("SELECT pg_advisory_unlock(4711)")
    await waiting
    assert await second.fetchval("SELECT count(*) FROM migrated") == 0
    await first.close()
    await second.close()


@test
async def notices_reach_their_listener():
    conn = await connect()
    heard = []
    conn.add_log_listener(lambda _, message: heard.append((message.severity, message.sqlstate)))
    await conn.execute("DROP TABLE IF EXISTS never_there")
    await conn.execute("SET client_min_messages = warning")
    await conn.execute("DROP TABLE IF EXISTS never_there")
    await conn.fetchval("SELECT pg_advisory_unlock(1)")
    await conn.execute("SET client_min_messages = error")
    await conn.fetchval("SELECT pg_advisory_unlock(1)")
    await asyncio.sleep(0)
    assert heard == [("NOTICE", "00000"), ("WARNING", "01000")], heard
    await conn.close()


@test
async def a_statement_is_cancelled_when_its_time_is_up():
    conn = await connect()
    long = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b"
    await raises(asyncio.TimeoutError, conn.fetchval(long, timeout=0.2))
    assert await conn.fetchval("SELECT 1") == 1
    await conn.execute("SET statement_timeout = 100")
    await raises(asyncpg.QueryCanceledError, conn.fetchval(long))
    await conn.close()


@test
async def what_is_introspected_of_types():
    conn = await connect()
    # A type that asyncpg has no codec for makes it ask for the types that it is made of.
    assert await conn.fetchval("SELECT ARRAY['pg_class'::regclass::oid]") == [1259]
    assert await conn.fetchval("SELECT ARRAY['a'::name, 'b']") == ["a", "b"]
    await conn.close()


async def main():
    chosen = sys.argv[2:]
    failed = []
    for function in TESTS:
        if chosen and function.__name__ not in chosen:
            continue
        try:
            await asyncio.wait_for(function(), 120)
            print(f"ok      {function.__name__}", flush=True)
        except Exception:
            failed.append(function.__name__)
            print(f"FAILED  {function.__name__}", flush=True)
            traceback.print_exc(file=sys.stdout)
    print(f"{len(TESTS) - len(failed)} of {len(TESTS)} passed")
    sys.exit(1 if failed else 0)


asyncio.run(main())
