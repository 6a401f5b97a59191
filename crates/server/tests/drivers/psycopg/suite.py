"""What psycopg 3 does with a server. It is run against PostgreSQL, too: what it claims is what PostgreSQL does.

    python suite.py URL
"""

import asyncio
import datetime as dt
import decimal
import sys
import threading
import traceback
import uuid

import psycopg
from psycopg import errors, sql
from psycopg.rows import dict_row, namedtuple_row
from psycopg.types.json import Json, Jsonb

URL = sys.argv[1]
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def connect(**more):
    return psycopg.connect(URL, **more)


def fresh(name, columns="id int PRIMARY KEY, name text"):
    """An empty table of this name."""
    with connect(autocommit=True) as conn:
        conn.execute(f"DROP TABLE IF EXISTS {name}")
        conn.execute(f"CREATE TABLE {name} ({columns})")


LONG = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b"


def settle(conn):
    """Rolls back; a request to cancel may be on its way still."""
    while True:
        try:
            conn.rollback()
            conn.execute("SELECT 1")
            return
        except errors.QueryCanceled:
            pass


def raises(kind, work):
    try:
        work()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


@test
def the_server_says_what_it_is():
    with connect() as conn:
        assert conn.info.server_version >= 140000
        assert conn.info.encoding == "utf-8"
        assert conn.info.parameter_status("integer_datetimes") == "on"
        assert conn.info.parameter_status("standard_conforming_strings") == "on"
        assert conn.info.dbname and conn.info.user and conn.info.backend_pid
        conn.execute("SET TimeZone = 'Europe/Rome'")
        assert conn.info.timezone.key == "Europe/Rome"
        conn.execute("SET application_name = 'suite'")
        assert conn.info.parameter_status("application_name") == "suite"


# A value of each type, as Python has it, and the name of the type.
VALUES = [
    ("boolean", [True, False]),
    ("smallint", [0, -32768, 32767]),
    ("integer", [0, -(2**31), 2**31 - 1]),
    ("bigint", [0, -(2**63), 2**63 - 1]),
    ("real", [0.0, 1.5, -2.25, float("inf")]),
    ("double precision", [0.0, 1.1, -1e300, float("-inf")]),
    ("numeric", [decimal.Decimal(s) for s in ("0", "1.50", "-12345678901234567890.000123", "1E+20", "0.0001")]),
    ("text", ["", "plain", "quo'te \\ \n \t", "ü€𝄞"]),
    ("varchar(10)", ["", "ten chars."]),
    ("bytea", [b"", bytes(range(256))]),
    ("date", [dt.date(1, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]),
    ("time", [dt.time(0, 0), dt.time(23, 59, 59, 999999)]),
    ("timestamp", [dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29, 12, 30, 1, 5)]),
    ("timestamptz", [dt.datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=dt.timezone.utc)]),
    ("interval", [dt.timedelta(0), dt.timedelta(days=40, seconds=3, microseconds=7), dt.timedelta(days=-1, hours=5)]),
    ("uuid", [uuid.UUID(int=0), uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")]),
]
ARRAYS = [
    ("boolean[]", [[True, None, False], []]),
    ("integer[]", [[1, None, 3], []]),
    ("bigint[]", [[2**40]]),
    ("double precision[]", [[1.5, None]]),
    ("numeric[]", [[decimal.Decimal("1.50"), None]]),
    ("text[]", [["a", "", 'with "quotes", commas', None, "NULL", "\\"], []]),
    ("date[]", [[dt.date(2024, 1, 1)]]),
    ("timestamptz[]", [[dt.datetime(2024, 2, 29, tzinfo=dt.timezone.utc)]]),
    ("uuid[]", [[uuid.UUID(int=7), None]]),
]


def same(got, sent):
    if isinstance(sent, dt.datetime) and sent.tzinfo:
        return got == sent and got.tzinfo is not None
    return got == sent and type(got) is type(sent)


@test
def values_of_every_type_come_back_in_text_and_binary():
    with connect() as conn:
        conn.execute("SET TimeZone = 'UTC'")
        for binary in (False, True):
            cur = conn.cursor(binary=binary)
            for name, values in VALUES + ARRAYS:
                for value in values + [None]:
                    for param in ("%s", "%b", "%t"):
                        got = cur.execute(f"SELECT {param}::{name}", [value]).fetchone()[0]
                        assert same(got, value), (name, value, got, param, binary)


@test
def values_of_every_type_are_stored():
    fresh("stored", "id int PRIMARY KEY, " + ", ".join(f"c{n} {name}" for n, (name, _) in enumerate(VALUES + ARRAYS)))
    every = VALUES + ARRAYS
    rows = [[values[min(n, len(values) - 1)] for _, values in every] for n in range(5)]
    with connect() as conn:
        conn.execute("SET TimeZone = 'UTC'")
        holders = ", ".join(["%s"] * (len(every) + 1))
        for n, row in enumerate(rows):
            conn.execute(f"INSERT INTO stored VALUES ({holders})", [n, *row])
        conn.execute(f"INSERT INTO stored VALUES ({holders})", [9] + [None] * len(every))
        for binary in (False, True):
            got = conn.cursor(binary=binary).execute("SELECT * FROM stored ORDER BY id").fetchall()
            assert [list(row[1:]) for row in got[:-1]] == rows
            assert set(got[-1][1:]) == {None}


@test
def json_is_adapted():
    document = {"a": [1, 2.5, None, True, "ü"], "b": {}}
    fresh("documents", "id int PRIMARY KEY, j json, b jsonb")
    with connect() as conn:
        conn.execute("INSERT INTO documents VALUES (1, %s, %s)", [Json(document), Jsonb(document)])
        for binary in (False, True):
            cur = conn.cursor(binary=binary)
            assert cur.execute("SELECT j, b, b -> 'a' -> 0, b ->> 'b' FROM documents").fetchone() == (
                document, document, 1, "{}")


@test
def what_the_description_says():
    fresh("described", "id int PRIMARY KEY, name varchar(12), price numeric(8,2), at timestamptz, tags text[]")
    with connect() as conn:
        cur = conn.execute("SELECT id, name, price, at, tags, 1 AS one FROM described")
        assert [(c.name, c.type_code) for c in cur.description] == [
            ("id", 23), ("name", 1043), ("price", 1700), ("at", 1184), ("tags", 1009), ("one", 23)]
        assert cur.description[1].display_size == 12
        assert (cur.description[2].precision, cur.description[2].scale) == (8, 2)
        result = cur.pgresult
        tables = [result.ftable(n) for n in range(6)]
        assert tables[0] > 0 and len(set(tables[:5])) == 1 and tables[5] == 0, tables
        assert [result.ftablecol(n) for n in range(6)] == [1, 2, 3, 4, 5, 0]
        oid = conn.execute("SELECT 'described'::regclass::oid").fetchone()[0]
        assert tables[0] == oid


@test
def rows_as_dicts_and_tuples():
    with connect() as conn:
        assert conn.cursor(row_factory=dict_row).execute("SELECT 1 AS a, 'x' AS b").fetchone() == {"a": 1, "b": "x"}
        assert conn.cursor(row_factory=namedtuple_row).execute("SELECT 1 AS a").fetchone().a == 1


@test
def transactions_and_savepoints():
    fresh("moved")
    with connect() as conn:
        with conn.transaction():
            conn.execute("INSERT INTO moved VALUES (1, 'kept')")
            try:
                with conn.transaction():
                    conn.execute("INSERT INTO moved VALUES (2, 'undone')")
                    raise ValueError
            except ValueError:
                pass
            with conn.transaction():
                conn.execute("INSERT INTO moved VALUES (3, 'kept')")
            error = None
            try:
                with conn.transaction("inner"):
                    conn.execute("INSERT INTO moved VALUES (1, 'twice')")
            except errors.UniqueViolation as raised:
                error = raised
            assert error.sqlstate == "23505" and error.diag.table_name == "moved"
            assert error.diag.constraint_name == "moved_pkey"
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        assert conn.execute("SELECT id FROM moved ORDER BY id").fetchall() == [(1,), (3,)]
        conn.rollback()
        with conn.transaction(force_rollback=True):
            conn.execute("DELETE FROM moved")
        assert conn.execute("SELECT count(*) FROM moved").fetchone() == (2,)
        raises(errors.DivisionByZero, lambda: conn.execute("SELECT 1/0"))
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
        raises(errors.InFailedSqlTransaction, lambda: conn.execute("SELECT 1"))
        conn.rollback()
    with connect() as conn:
        conn.execute("INSERT INTO moved VALUES (4, 'by the block')")
    with connect() as conn:
        assert conn.execute("SELECT name FROM moved WHERE id = 4").fetchone() == ("by the block",)


@test
def isolation_levels_and_read_only():
    fresh("levels")
    for level in psycopg.IsolationLevel:
        if level == psycopg.IsolationLevel.READ_UNCOMMITTED:
            continue
        with connect() as conn:
            conn.isolation_level = level
            shown = conn.execute("SHOW transaction_isolation").fetchone()[0]
            assert shown.replace(" ", "_").upper() == level.name
    with connect() as conn:
        conn.read_only = True
        raises(errors.ReadOnlySqlTransaction, lambda: conn.execute("INSERT INTO levels VALUES (1, 'x')"))


@test
def named_cursors_are_on_the_server():
    fresh("numbers")
    with connect() as conn:
        with conn.cursor() as cur:
            cur.executemany("INSERT INTO numbers VALUES (%s, %s)", [(n, str(n)) for n in range(500)])
        with conn.cursor("walk") as cur:
            cur.itersize = 60
            cur.execute("SELECT id FROM numbers WHERE id >= %s ORDER BY id", [100])
            assert cur.fetchone() == (100,)
            assert cur.fetchmany(3) == [(101,), (102,), (103,)]
            assert [row[0] for row in cur] == list(range(104, 500))
        with conn.cursor("binary", binary=True) as cur:
            cur.execute("SELECT id, name FROM numbers ORDER BY id")
            assert cur.fetchmany(2) == [(0, "0"), (1, "1")]
            assert [c.name for c in cur.description] == ["id", "name"]
        with conn.cursor("scrolled", scrollable=True) as cur:
            cur.execute("SELECT id FROM numbers ORDER BY id")
            cur.scroll(10)
            assert cur.fetchone() == (10,)
            cur.scroll(-5)
            assert cur.fetchone() == (6,)
            cur.scroll(0, mode="absolute")
            assert cur.fetchone() == (0,)
    with connect() as conn:
        cur = conn.cursor("holding", withhold=True)
        cur.execute("SELECT id FROM numbers ORDER BY id")
        conn.commit()
        assert cur.fetchmany(2) == [(0,), (1,)]
        cur.close()
        conn.commit()


@test
def rows_can_be_streamed():
    with connect() as conn:
        seen = [row[0] for row in conn.cursor().stream("SELECT n FROM generate_series(1, %s) n", [300])]
        assert seen == list(range(1, 301))


@test
def many_statements_in_a_pipeline():
    fresh("piped")
    with connect() as conn:
        with conn.cursor() as cur:
            cur.executemany(
                "INSERT INTO piped VALUES (%s, %s) RETURNING id", [(n, f"n{n}") for n in range(100)], returning=True)
            ids = []
            while True:
                ids.append(cur.fetchone()[0])
                if not cur.nextset():
                    break
            assert ids == list(range(100))
            cur.executemany("UPDATE piped SET name = %s WHERE id = %s", [("x", n) for n in range(7)])
            assert cur.rowcount == 7
        with conn.pipeline() as pipe:
            one = conn.execute("SELECT count(*) FROM piped WHERE name = 'x'")
            two = conn.execute("SELECT name FROM piped WHERE id = %s", [50])
            pipe.sync()
            assert (one.fetchone(), two.fetchone()) == ((7,), ("n50",))
    with connect(autocommit=True) as conn:
        with_error = None
        try:
            with conn.pipeline() as pipe:
                conn.execute("INSERT INTO piped VALUES (1000, 'undone')")
                conn.execute("INSERT INTO piped VALUES (1, 'twice')")
                conn.execute("INSERT INTO piped VALUES (1001, 'aborted')")
        except errors.UniqueViolation as error:
            with_error = error
        assert with_error is not None
        assert conn.execute("SELECT count(*) FROM piped WHERE id >= 1000").fetchone() == (0,)


@test
def copies_in_text_and_binary():
    fresh("copied", "id int PRIMARY KEY, name text, price numeric, at timestamptz, raw bytea, tags text[]")
    at = dt.datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=dt.timezone.utc)
    rows = [(n, f"n\t{n}\\", decimal.Decimal(n) / 4, at, bytes([n % 256]), ["a", str(n)]) for n in range(300)]
    rows[5] = (5, None, None, None, None, None)
    types = ["int4", "text", "numeric", "timestamptz", "bytea", "text[]"]
    with connect() as conn:
        conn.execute("SET TimeZone = 'UTC'")
        for form in ("text", "binary"):
            conn.execute("DELETE FROM copied")
            with conn.cursor().copy(f"COPY copied FROM STDIN (FORMAT {form})") as copy:
                copy.set_types(types)
                for row in rows:
                    copy.write_row(row)
            assert conn.execute("SELECT * FROM copied ORDER BY id").fetchall() == rows
            with conn.cursor().copy(f"COPY (SELECT * FROM copied ORDER BY id) TO STDOUT (FORMAT {form})") as copy:
                copy.set_types(types)
                assert list(copy.rows()) == rows
        conn.commit()
        cur = conn.cursor()

        def broken():
            with cur.copy("COPY copied FROM STDIN") as copy:
                copy.write_row([1000, "x", None, None, None, None])
                raise ValueError("stop")

        raises(ValueError, broken)
        conn.rollback()

        def twice():
            with cur.copy("COPY copied (id) FROM STDIN") as copy:
                copy.write("1\n")

        raises(errors.UniqueViolation, twice)
        conn.rollback()
        raises(errors.BadCopyFileFormat, lambda: copy_text(cur, "COPY copied (id, name) FROM STDIN", "1\n"))
        conn.rollback()
        assert conn.execute("SELECT count(*) FROM copied").fetchone() == (300,)


def copy_text(cur, statement, text):
    with cur.copy(statement) as copy:
        copy.write(text)


@test
def notices_reach_their_handler():
    with connect(autocommit=True) as conn:
        heard = []
        conn.add_notice_handler(lambda diag: heard.append((diag.severity, diag.sqlstate, diag.message_primary)))
        conn.execute("DROP TABLE IF EXISTS never_there")
        assert heard == [("NOTICE", "00000", 'table "never_there" does not exist, skipping')], heard
        conn.execute("COMMIT")
        assert heard[-1] == ("WARNING", "25P01", "there is no transaction in progress"), heard


@test
def statements_are_prepared_after_a_threshold():
    fresh("prepared")
    with connect() as conn:
        conn.prepare_threshold = 3
        for n in range(6):
            assert conn.execute("SELECT %s + 1", [n]).fetchone() == (n + 1,)
        names = conn.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()[0]
        assert names == 1, names
        conn.prepare_threshold = 0
        conn.prepared_max = 2
        for n in range(10):
            conn.execute(f"SELECT {n}, %s::int", [n], prepare=True)
        assert conn.execute("SELECT 1", prepare=False).fetchone() == (1,)
    # A table that changes under a prepared statement is found out.
    with connect(autocommit=True) as conn:
        statement = "SELECT * FROM prepared"
        for _ in range(2):
            assert len(conn.execute(statement, prepare=True).description) == 2
        conn.execute("ALTER TABLE prepared ADD COLUMN more int")
        raises(errors.FeatureNotSupported, lambda: conn.execute(statement, prepare=True))
        conn.execute("DEALLOCATE ALL")


@test
def a_running_statement_is_cancelled():
    for cancel in ("cancel", "cancel_safe"):
        with connect() as conn:
            done = threading.Event()

            # A request that comes before the statement hits nothing, so it is sent until one does.
            def send():
                while not done.wait(0.1):
                    getattr(conn, cancel)()

            sender = threading.Thread(target=send)
            sender.start()
            error = raises(errors.QueryCanceled, lambda: conn.execute(LONG))
            assert error.sqlstate == "57014"
            done.set()
            sender.join()
            settle(conn)
            assert conn.execute("SELECT 1").fetchone() == (1,)


@test
def statements_time_out():
    with connect() as conn:
        conn.execute("SET statement_timeout = '200ms'")
        conn.commit()
        raises(errors.QueryCanceled, lambda: conn.execute(LONG))


@test
def errors_have_their_classes_and_fields():
    fresh("strict", "id int PRIMARY KEY, n int NOT NULL CONSTRAINT positive CHECK (n > 0)")
    with connect(autocommit=True) as conn:
        for statement, kind in [
            ("SELEC 1", errors.SyntaxError),
            ("SELECT * FROM missing", errors.UndefinedTable),
            ("SELECT missing FROM strict", errors.UndefinedColumn),
            ("SELECT missing(1)", errors.UndefinedFunction),
            ("SELECT 'x'::int", errors.InvalidTextRepresentation),
            ("SELECT 2147483647 + 1", errors.NumericValueOutOfRange),
            ("SELECT '2024-13-01'::date", errors.DatetimeFieldOverflow),
            ("INSERT INTO strict VALUES (1, NULL)", errors.NotNullViolation),
            ("INSERT INTO strict VALUES (1, -1)", errors.CheckViolation),
            ("CREATE TABLE strict (id int)", errors.DuplicateTable),
            ("SELECT 1 UNION SELECT 'x'", errors.InvalidTextRepresentation),
        ]:
            raises(kind, lambda: conn.execute(statement))
        error = raises(errors.NotNullViolation, lambda: conn.execute("INSERT INTO strict VALUES (1, NULL)"))
        assert (error.diag.table_name, error.diag.column_name) == ("strict", "n")
        error = raises(errors.CheckViolation, lambda: conn.execute("INSERT INTO strict VALUES (1, -1)"))
        assert error.diag.constraint_name == "positive"
        error = raises(errors.UndefinedColumn, lambda: conn.execute("SELECT missing FROM strict"))
        assert error.diag.statement_position == "8"
        raises(errors.SyntaxError, lambda: conn.execute("SELECT 1; SELECT 2", [1] * 0, prepare=True))


@test
def several_statements_in_one_text():
    with connect(autocommit=True) as conn:
        cur = conn.execute("SELECT 1; SELECT 2; SELECT 3")
        got = [cur.fetchone()]
        while cur.nextset():
            got.append(cur.fetchone())
        assert got == [(1,), (2,), (3,)]


@test
def statements_are_composed():
    fresh("composed", 'id int PRIMARY KEY, "a ""strange"" name" text')
    with connect() as conn:
        insert = sql.SQL("INSERT INTO {} VALUES ({}, {})").format(
            sql.Identifier("composed"), sql.Placeholder(), sql.Literal("it's \\ 'quoted'"))
        conn.execute(insert, [1])
        select = sql.SQL("SELECT {} FROM composed").format(sql.Identifier('a "strange" name'))
        assert conn.execute(select).fetchone() == ("it's \\ 'quoted'",)
        assert conn.execute("SELECT %s = ANY(%s)", [2, [1, 2]]).fetchone() == (True,)
        cur = psycopg.ClientCursor(conn)
        assert cur.execute("SELECT %s, %s, %s", [1, "x'y", dt.date(2024, 1, 1)]).fetchone() == (
            1, "x'y", dt.date(2024, 1, 1))
        raw = psycopg.RawCursor(conn)
        assert raw.execute("SELECT $1::int + $2::int", [1, 2]).fetchone() == (3,)


@test
def counts_of_rows_and_messages():
    fresh("tagged")
    with connect() as conn:
        for statement, count, tag in [
            ("INSERT INTO tagged VALUES (1, 'a'), (2, 'b')", 2, "INSERT 0 2"),
            ("UPDATE tagged SET name = 'c'", 2, "UPDATE 2"),
            ("SELECT * FROM tagged", 2, "SELECT 2"),
            ("DELETE FROM tagged WHERE id = 1", 1, "DELETE 1"),
            ("TRUNCATE tagged", -1, "TRUNCATE TABLE"),
        ]:
            cur = conn.execute(statement)
            assert (cur.rowcount, cur.statusmessage) == (count, tag), (statement, cur.rowcount, cur.statusmessage)


@test
def everything_asynchronously():
    fresh("awaited")

    async def main():
        async with await psycopg.AsyncConnection.connect(URL) as conn:
            async with conn.cursor() as cur:
                await cur.executemany("INSERT INTO awaited VALUES (%s, %s)", [(n, str(n)) for n in range(50)])
                async with cur.copy("COPY awaited FROM STDIN") as copy:
                    for n in range(50, 80):
                        await copy.write_row((n, str(n)))
            async with conn.cursor("walk") as cur:
                await cur.execute("SELECT id FROM awaited ORDER BY id")
                assert [row[0] async for row in cur] == list(range(80))
            async with conn.transaction():
                await conn.execute("DELETE FROM awaited WHERE id > 3")
            async with conn.pipeline():
                cursors = [await conn.execute("SELECT name FROM awaited WHERE id = %s", [n]) for n in range(4)]
                assert [await cur.fetchone() for cur in cursors] == [(str(n),) for n in range(4)]
            task = asyncio.create_task(conn.execute(LONG))
            while not task.done():
                await asyncio.sleep(0.1)
                await conn.cancel_safe()
            try:
                await task
            except errors.QueryCanceled:
                pass
            else:
                raise AssertionError("not cancelled")

        async def count(n):
            async with await psycopg.AsyncConnection.connect(URL) as conn:
                return (await (await conn.execute("SELECT %s::int", [n])).fetchone())[0]

        assert await asyncio.gather(*(count(n) for n in range(10))) == list(range(10))

    asyncio.run(main())


@test
def types_that_are_asked_for_by_name():
    with connect() as conn:
        info = psycopg.types.TypeInfo.fetch(conn, "uuid")
        assert (info.oid, info.array_oid) == (2950, 2951)
        assert psycopg.types.TypeInfo.fetch(conn, "no_such_type") is None


def main():
    chosen = sys.argv[2:]
    failed = []
    for function in TESTS:
        if chosen and function.__name__ not in chosen:
            continue
        try:
            function()
            print(f"ok      {function.__name__}", flush=True)
        except Exception:
            failed.append(function.__name__)
            print(f"FAILED  {function.__name__}", flush=True)
            traceback.print_exc(file=sys.stdout)
    print(f"{len(TESTS) - len(failed)} of {len(TESTS)} passed")
    sys.exit(1 if failed else 0)


main()
