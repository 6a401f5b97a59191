// What node-postgres does with a server. It is run against PostgreSQL, too: what it claims is what PostgreSQL does.
//
//     node suite.js URL

import assert from "node:assert/strict";
import { Readable, Writable } from "node:stream";
import { pipeline } from "node:stream/promises";
import pg from "pg";
import Cursor from "pg-cursor";
import { from as copyFrom, to as copyTo } from "pg-copy-streams";

const [url, ...chosen] = process.argv.slice(2);
const tests = [];
const test = (name, work) => tests.push([name, work]);
const LONG = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b";

// Opens a client, gives it to some work, and closes it.
async function client(work, options = {}) {
  const opened = new pg.Client({ connectionString: url, ...options });
  await opened.connect();
  try {
    return await work(opened);
  } finally {
    await opened.end();
  }
}

async function fresh(name, columns = "id int PRIMARY KEY, name text") {
  await client(async (c) => {
    await c.query(`DROP TABLE IF EXISTS ${name}`);
    await c.query(`CREATE TABLE ${name} (${columns})`);
  });
}

async function code(work) {
  try {
    await work();
  } catch (error) {
    return error.code;
  }
  assert.fail("there was no error");
}

test("types come back as JavaScript has them", () =>
  client(async (c) => {
    await c.query("SET TimeZone = 'UTC'");
    const at = new Date("2024-02-29T12:30:01.005Z");
    const cases = [
      ["boolean", true, true],
      ["smallint", -5, -5],
      ["integer", 2147483647, 2147483647],
      ["bigint", "9223372036854775807", "9223372036854775807"],
      ["real", 1.5, 1.5],
      ["double precision", -1e300, -1e300],
      ["numeric", "12345678901234567890.50", "12345678901234567890.50"],
      ["text", "ü€𝄞 'quoted' \\", "ü€𝄞 'quoted' \\"],
      ["varchar(5)", "abc", "abc"],
      ["bytea", Buffer.from([0, 1, 254, 255]), Buffer.from([0, 1, 254, 255])],
      ["timestamptz", at, at],
      ["uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
      ["json", { a: [1, null] }, { a: [1, null] }],
      ["jsonb", { a: { b: "c" } }, { a: { b: "c" } }],
      ["integer[]", [1, null, 3], [1, null, 3]],
      ["text[]", ["a", 'b "c", d', null], ["a", 'b "c", d', null]],
    ];
    for (const [type, sent, expected] of cases) {
      const { rows } = await c.query(`SELECT $1::${type} AS v, NULL::${type} AS n`, [sent]);
      assert.deepEqual(rows, [{ v: expected, n: null }], type);
    }
    const { rows } = await c.query("SELECT '1 day 02:03:04.5'::interval AS i, '2024-02-29'::date::text AS d");
    assert.equal(rows[0].i.toPostgres(), "4.5 seconds 3 minutes 2 hours 1 days");
    assert.equal(rows[0].d, "2024-02-29");
  }));

test("fields name their table, column and type", async () => {
  await fresh("fielded", "id int PRIMARY KEY, price numeric(8,2)");
  await client(async (c) => {
    const { fields } = await c.query("SELECT price, id, id + 1 AS next FROM fielded");
    const { rows } = await c.query("SELECT 'fielded'::regclass::oid AS oid");
    assert.deepEqual(
      fields.map((f) => [f.name, f.tableID, f.columnID, f.dataTypeID, f.dataTypeModifier]),
      [
        ["price", rows[0].oid, 2, 1700, 524294],
        ["id", rows[0].oid, 1, 23, -1],
        ["next", 0, 0, 23, -1],
      ],
    );
  });
});

test("parameters, rows as arrays, counts and binary results", async () => {
  await fresh("counted");
  await client(async (c) => {
    const inserted = await c.query("INSERT INTO counted VALUES ($1, $2), ($3, $4) RETURNING id", [1, "a", 2, null]);
    assert.deepEqual([inserted.command, inserted.rowCount, inserted.rows], ["INSERT", 2, [{ id: 1 }, { id: 2 }]]);
    const arrays = await c.query({ text: "SELECT id, name FROM counted ORDER BY id", rowMode: "array" });
    assert.deepEqual(arrays.rows, [[1, "a"], [2, null]]);
    const binary = await c.query({ text: "SELECT id, $1::bool AS b FROM counted ORDER BY id", values: [true], binary: true });
    assert.deepEqual(binary.rows, [{ id: 1, b: true }, { id: 2, b: true }]);
    assert.equal((await c.query("UPDATE counted SET name = 'z'")).rowCount, 2);
    assert.equal((await c.query("DELETE FROM counted WHERE id = ANY($1)", [[1, 2, 3]])).rowCount, 2);
    const several = await c.query("SELECT 1 AS a; SELECT 2 AS b");
    assert.deepEqual(several.map((r) => r.rows), [[{ a: 1 }], [{ b: 2 }]]);
  });
});

test("a named statement is prepared once", () =>
  client(async (c) => {
    for (let n = 0; n < 5; n++) {
      const { rows } = await c.query({ name: "plus", text: "SELECT $1::int + 1 AS n", values: [n] });
      assert.equal(rows[0].n, n + 1);
    }
    const { rows } = await c.query("SELECT name FROM pg_prepared_statements");
    assert.deepEqual(rows, [{ name: "plus" }]);
  }));

test("errors have PostgreSQL's fields", async () => {
  await fresh("strict", "id int PRIMARY KEY, n int CONSTRAINT positive CHECK (n > 0)");
  await client(async (c) => {
    await c.query("INSERT INTO strict VALUES (1, 1)");
    const failed = await c.query("INSERT INTO strict VALUES (1, 1)").catch((error) => error);
    assert.deepEqual(
      [failed.severity, failed.code, failed.table, failed.constraint, failed.schema],
      ["ERROR", "23505", "strict", "strict_pkey", "public"],
    );
    assert.equal(await code(() => c.query("INSERT INTO strict VALUES (2, -1)")), "23514");
    const place = await c.query("SELECT id, nothing FROM strict").catch((error) => error);
    assert.deepEqual([place.code, place.position], ["42703", "12"]);
    assert.equal(await code(() => c.query("SELECT $1::int", ["x"])), "22P02");
    assert.equal(await code(() => c.query("SELECT $1::int", [1, 2])), "08P01");
    assert.equal(await code(() => c.query("SELEC")), "42601");
    assert.deepEqual((await c.query("SELECT 1 AS n")).rows, [{ n: 1 }]);
  });
  const wrong = new URL(url);
  if (wrong.password) {
    wrong.password = "wrong";
    assert.equal(await code(() => client(() => {}, { connectionString: wrong.href })), "28P01");
  }
});

test("a pool serves many at once", async () => {
  await fresh("pooled");
  const pool = new pg.Pool({ connectionString: url, max: 5 });
  try {
    await Promise.all([...Array(40).keys()].map((n) => pool.query("INSERT INTO pooled VALUES ($1, $2)", [n, `n${n}`])));
    const { rows } = await pool.query("SELECT count(*)::int AS n, sum(id)::int AS s FROM pooled");
    assert.deepEqual(rows, [{ n: 40, s: 780 }]);
    const c = await pool.connect();
    try {
      await c.query("BEGIN");
      await c.query("DELETE FROM pooled");
      assert.deepEqual((await pool.query("SELECT count(*)::int AS n FROM pooled")).rows, [{ n: 40 }]);
      await c.query("SAVEPOINT s");
      assert.equal(await code(() => c.query("SELECT 1/0")), "22012");
      assert.equal(await code(() => c.query("SELECT 1")), "25P02");
      await c.query("ROLLBACK TO s");
      assert.deepEqual((await c.query("SELECT count(*)::int AS n FROM pooled")).rows, [{ n: 0 }]);
      await c.query("ROLLBACK");
    } finally {
      c.release();
    }
    assert.equal((await pool.query("SELECT 1 FROM pooled")).rowCount, 40);
    assert.ok(pool.totalCount <= 5);
  } finally {
    await pool.end();
  }
});

test("a cursor reads in steps and is closed early", async () => {
  await client(async (c) => {
    const cursor = c.query(new Cursor("SELECT n FROM generate_series(1, $1::int) n", [1000]));
    assert.deepEqual((await cursor.read(3)).map((r) => r.n), [1, 2, 3]);
    assert.equal((await cursor.read(500)).length, 500);
    await cursor.close();
    assert.deepEqual((await c.query("SELECT 1 AS n")).rows, [{ n: 1 }]);
    const whole = c.query(new Cursor("SELECT n FROM generate_series(1, 10) n"));
    assert.equal((await whole.read(100)).length, 10);
    assert.equal((await whole.read(100)).length, 0);
    await whole.close();
    const broken = c.query(new Cursor("SELECT 1/(n-5) AS n FROM generate_series(1, 10) n"));
    assert.equal(await code(async () => { await broken.read(100); }), "22012");
    assert.deepEqual((await c.query("SELECT 2 AS n")).rows, [{ n: 2 }]);
  });
});

test("copies stream in and out", async () => {
  await fresh("streamed", "id int PRIMARY KEY, name text, n numeric");
  await client(async (c) => {
    const lines = [...Array(5000).keys()].map((n) => `${n}\tname ${n}\t${n}.50\n`);
    const copying = c.query(copyFrom("COPY streamed FROM STDIN"));
    await pipeline(Readable.from(lines), copying);
    assert.equal(copying.rowCount, 5000);
    let out = "";
    const sink = new Writable({ write(chunk, _, done) { out += chunk; done(); } });
    const leaving = c.query(copyTo("COPY (SELECT * FROM streamed ORDER BY id) TO STDOUT"));
    await pipeline(leaving, sink);
    assert.equal(out, lines.join(""));
    assert.equal(await code(() => pipeline(Readable.from(["1\tx\t1\n"]), c.query(copyFrom("COPY streamed FROM STDIN")))), "23505");
    assert.equal(await code(() => pipeline(Readable.from(["1\n"]), c.query(copyFrom("COPY streamed FROM STDIN")))), "22P04");
    assert.deepEqual((await c.query("SELECT count(*)::int AS n FROM streamed")).rows, [{ n: 5000 }]);
  });
});

test("a running statement is cancelled", () =>
  client(async (c) => {
    const query = new pg.Query(LONG);
    const ended = new Promise((resolve) => { query.on("error", resolve); query.on("end", resolve); });
    c.query(query);
    // A request that comes before the statement hits nothing, so it is sent until one does.
    const sending = setInterval(() => new pg.Client({ connectionString: url }).cancel(c, query), 100);
    assert.equal((await ended)?.code, "57014");
    clearInterval(sending);
    // The last request may be on its way still.
    await new Promise((resolve) => setTimeout(resolve, 200));
    assert.deepEqual((await c.query("SELECT 1 AS n")).rows, [{ n: 1 }]);
  }));

test("a statement times out on the server", () =>
  client(async (c) => assert.equal(await code(() => c.query(LONG)), "57014"), { statement_timeout: 300 }));

test("notices are events", () =>
  client(async (c) => {
    const heard = [];
    c.on("notice", (notice) => heard.push([notice.severity, notice.message]));
    await c.query("DROP TABLE IF EXISTS never_there");
    assert.deepEqual(heard, [["NOTICE", 'table "never_there" does not exist, skipping']]);
  }));

test("options of the connection are settings", () =>
  client(
    async (c) => {
      const { rows } = await c.query("SELECT current_setting('application_name') AS a, current_setting('TimeZone') AS z");
      assert.deepEqual(rows, [{ a: "suite", z: "Europe/Berlin" }]);
    },
    { application_name: "suite", options: "-c TimeZone=Europe/Berlin" },
  ));

let failed = 0;
for (const [name, work] of tests) {
  if (chosen.length && !chosen.includes(name)) continue;
  try {
    await work();
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${error.stack}`);
  }
}
console.log(`${tests.length - failed} of ${tests.length} passed`);
process.exit(failed ? 1 : 0);
