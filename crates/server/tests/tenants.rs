//! `isles tenants` as people run it, against servers over shards of both engines.

#![allow(clippy::unwrap_used)]

#[path = "harness/mod.rs"]
mod harness;

use harness::{Server, Setup, connect};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use tokio_postgres::{Client, SimpleQueryMessage};

const SQLITE: Setup = Setup::Sqlite { shards: 3 };
const POSTGRES: Setup = Setup::Postgres { shards: 2 };

struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|fault| panic!("{fault}: {} {}", self.out, self.err))
    }

    /// The code of what it refused.
    fn refused(&self) -> (i32, String) {
        let said: Value = serde_json::from_str(&self.err).unwrap_or_else(|fault| panic!("{fault}: {}", self.err));
        (self.code, said["error"]["code"].as_str().unwrap().to_owned())
    }
}

fn tenants_with(server: &Server, arguments: &[&str], input: &[u8]) -> Said {
    let mut process = Command::new(env!("CARGO_BIN_EXE_isles"))
        .arg("tenants")
        .args(arguments)
        .args(["--url", server.url()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may refuse before it has read all.
    let _ = process.stdin.take().unwrap().write_all(input);
    let output = process.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

fn tenants(server: &Server, arguments: &[&str]) -> Said {
    tenants_with(server, arguments, b"")
}

/// Runs one that must do what it is asked.
fn must(server: &Server, arguments: &[&str]) -> Said {
    let said = tenants(server, arguments);
    assert_eq!(said.code, 0, "{arguments:?}: {}{}", said.out, said.err);
    said
}

/// Tables of which one has a column of every type that is awkward, and others refer to each other.
const TABLES: &str =
    "CREATE TABLE things (a bigint, b text, n numeric, m numeric(12, 4), f float8, r real, o boolean, \
        d date, ts timestamp, tz timestamptz, iv interval, u uuid, y bytea, j json, jb jsonb, ia int[], ta text[], \
        PRIMARY KEY (a, b)) WITH (kind = tenant);
    CREATE TABLE authors (id int PRIMARY KEY, name varchar(20) NOT NULL) WITH (kind = tenant);
    CREATE TABLE books (id int PRIMARY KEY, author int NOT NULL REFERENCES authors (id)) WITH (kind = tenant);
    CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree (id)) WITH (kind = tenant);
    CREATE TABLE log (line text, at int) WITH (kind = tenant);
    CREATE SCHEMA extra;
    CREATE TABLE extra.things (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text) WITH (kind = tenant);
    CREATE TABLE plans (id int PRIMARY KEY) WITH (kind = reference)";

const ROWS: &[&str] = &[
    "INSERT INTO things (a, b) VALUES (0, '')",
    "INSERT INTO things VALUES (1, E'tab\\t nl\\n cr\\r quote'' dquote\" back\\\\slash \\u0001 é 日本 😀 {\"end\"', 1e100, \
        -0.0001, 'NaN', 0.1, true, '0044-03-15 BC', '9999-12-31 23:59:59.999999', '1970-01-01 00:00:00.000001+00', \
        '1 year 2 mons -3 days 04:05:06.789', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\\x00ff0a5c27', \
        '{\"b\": 1,   \"a\": [null, \"\\\\u00e9\"]}', '{\"z\": 1.50, \"a\": {}}', '{1,NULL,-3}', \
        ARRAY['a,b', NULL, '\"', E'\\\\', '', 'NULL'])",
    "INSERT INTO things (a, b, n, f, r, d, ts, tz, y, ta) VALUES (9223372036854775807, 'x', \
        '123456789012345678901234567890.1234567890', 1e-300, '-Infinity', 'infinity', '-infinity', 'infinity', '', '{}')",
    "INSERT INTO things (a, b, n, m, f) VALUES (-9223372036854775808, 'y', 'NaN', 99999999.9999, 0.1::float8 + 0.2)",
    "INSERT INTO authors SELECT n, 'author ' || n FROM generate_series(1, 1500) n",
    "INSERT INTO books SELECT n, n % 1500 + 1 FROM generate_series(1, 2200) n",
    // Each refers to the next, but for the last.
    "INSERT INTO tree SELECT n, NULL FROM generate_series(1, 450) n",
    "UPDATE tree SET up = id + 1 WHERE id < 450",
    "INSERT INTO log SELECT 'same', 1 FROM generate_series(1, 1200) n",
    "INSERT INTO log VALUES (NULL, 2)",
    "INSERT INTO extra.things (v) VALUES ('first'), (NULL)",
];

async fn set_up(setup: Setup) -> (Server, Client) {
    let server = Server::start(setup).await;
    let client = connect(server.url()).await;
    for table in TABLES.split(';') {
        client.batch_execute(table).await.unwrap_or_else(|error| panic!("{table}: {error:?}"));
    }
    (server, client)
}

async fn fill(client: &Client, tenant: &str) {
    client.batch_execute(&format!("SET isles.tenant = '{tenant}'")).await.unwrap();
    for rows in ROWS {
        client.batch_execute(rows).await.unwrap_or_else(|error| panic!("{rows}: {error:?}"));
    }
}

/// Every row of a tenant, as text.
async fn all_rows(client: &Client, tenant: &str) -> Vec<String> {
    client.batch_execute(&format!("SET isles.tenant = '{tenant}'; SET TimeZone = 'UTC'")).await.unwrap();
    let mut all = Vec::new();
    for table in ["things", "authors", "books", "tree", "log", "extra.things"] {
        let messages = client.simple_query(&format!("SELECT * FROM {table}")).await.unwrap();
        let mut rows: Vec<String> = Vec::new();
        for message in messages {
            if let SimpleQueryMessage::Row(row) = message {
                let cells: Vec<String> = (0..row.len()).map(|at| format!("{:?}", row.get(at))).collect();
                rows.push(format!("{table}: {}", cells.join(" ")));
            }
        }
        rows.sort();
        all.extend(rows);
    }
    all
}

/// A table becomes a tenant table by the command line; a dry run says what stands in the way, fails, and changes nothing.
async fn a_table_is_adopted(setup: Setup) {
    let (server, client) = set_up(setup).await;
    let made = "CREATE TABLE extra.\"Odd notes\" (id int PRIMARY KEY, \"by\" text); \
                INSERT INTO extra.\"Odd notes\" VALUES (1, 'acme'), (2, NULL), (3, '')";
    client.batch_execute(made).await.unwrap();
    let table = "extra.Odd notes";
    let tried = tenants(&server, &["adopt", table, "--by", "\"by\"", "--dry-run", "--json"]);
    assert_eq!(tried.code, 1, "{}{}", tried.out, tried.err);
    let report = tried.json();
    assert_eq!((&report["rows"], &report["tenants"]), (&3.into(), &2.into()));
    assert_eq!(report["conflicts"][0]["message"], "the tenant's name is empty");
    assert_eq!(report["conflicts"][0]["examples"], "Key (id)=(3)");
    assert_eq!(tenants(&server, &["adopt", table, "--by", "\"by\"", "--json"]).refused(), (1, "23514".into()));
    assert_eq!(tenants(&server, &["adopt", table, "--cancel", "--json"]).refused(), (1, "42704".into()));
    assert_eq!(tenants(&server, &["adopt", table]).code, 2, "an expression is needed");
    assert_eq!(must(&server, &["migrations", "--json"]).json()["migrations"], serde_json::json!([]));
    let by = "nullif(\"by\", '')";
    must(&server, &["adopt", table, "--by", by, "--dry-run"]);
    let said = must(&server, &["adopt", table, "--by", by, "--json"]).json();
    assert_eq!((&said["table"], &said["done"]), (&table.into(), &"a tenant table".into()));
    let listed = must(&server, &["migrations", "--json"]).json();
    let first = &listed["migrations"][0];
    assert_eq!((&first["table"], &first["rows_copied"], &first["error"]), (&table.into(), &3.into(), &Value::Null));
    client.batch_execute("SET isles.tenant = 'acme'").await.unwrap();
    let rows = client.query("SELECT id FROM extra.\"Odd notes\"", &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get::<_, i32>(0)).collect::<Vec<_>>(), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_adopted_on_sqlite() {
    a_table_is_adopted(SQLITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_adopted_on_postgres() {
    a_table_is_adopted(POSTGRES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_are_made_shown_altered_and_dropped() {
    let (server, client) = set_up(SQLITE).await;
    let odd = "Müller & \"Co\" 'x'";
    must(&server, &["create", odd, "--max-rows", "5000", "--max-bytes", "10 GB", "--statement-timeout", "2s"]);
    assert_eq!(tenants(&server, &["create", odd, "--json"]).refused(), (1, "42710".into()));
    must(&server, &["create", odd, "--if-not-exists"]);
    client.batch_execute("SET isles.tenant = 'acme'; INSERT INTO authors VALUES (1, 'a'), (2, 'b')").await.unwrap();
    let shown = must(&server, &["show", odd, "--json"]).json();
    assert_eq!((&shown["tenant"], &shown["rows"]), (&odd.into(), &0.into()));
    assert_eq!((&shown["max_rows"], &shown["max_bytes"]), (&5_000.into(), &10_737_418_240_i64.into()));
    assert_eq!((&shown["statement_timeout"], &shown["max_connections"]), (&"2000ms".into(), &Value::Null));
    must(&server, &["alter", odd, "--max-connections", "3", "--reset", "max-rows", "--reset", "max_bytes"]);
    let shown = must(&server, &["show", odd, "--json"]).json();
    assert_eq!((&shown["max_rows"], &shown["max_connections"]), (&Value::Null, &3.into()));
    assert_eq!(tenants(&server, &["alter", odd, "--json"]).refused().0, 2);
    assert_eq!(tenants(&server, &["alter", odd, "--max-rows", "many", "--json"]).refused(), (1, "22023".into()));
    let listed = must(&server, &["list", "--json"]).json();
    let names: Vec<&str> =
        listed["tenants"].as_array().unwrap().iter().map(|t| t["tenant"].as_str().unwrap()).collect();
    assert_eq!(names, [odd, "acme"]);
    assert_eq!(listed["tenants"][1]["rows"], 2);
    let listed = must(&server, &["list", "--like", "ac%"]).out;
    assert!(listed.contains("| rows | bytes | statements |"), "{listed}");
    assert!(listed.contains("acme") && listed.contains("(1 row)"), "{listed}");
    assert!(must(&server, &["show", "acme"]).out.contains("tenant             acme"));
    // Nothing is dropped that was not confirmed.
    assert_eq!(tenants(&server, &["drop", "acme", "--json"]).refused(), (2, "not_confirmed".into()));
    must(&server, &["drop", "acme", "--yes"]);
    assert_eq!(tenants(&server, &["drop", "acme", "--yes", "--json"]).refused(), (1, "42704".into()));
    must(&server, &["drop", "acme", "--yes", "--if-exists"]);
    assert_eq!(tenants(&server, &["show", "acme", "--json"]).refused(), (1, "42704".into()));
}

async fn a_tenant_goes_there_and_back(from: Setup, to: Setup) {
    let (source, client) = set_up(from).await;
    let (target, there) = set_up(to).await;
    fill(&client, "acme").await;
    client.batch_execute("SET isles.tenant = 'other'; INSERT INTO authors VALUES (7, 'not acme''s')").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let exported = must(&source, &["export", "acme", "--to", &file("one"), "--json"]).json();
    let expected = all_rows(&client, "acme").await;
    assert_eq!(exported["rows"], expected.len());
    assert!(!Path::new(&file("one.part")).exists());
    let imported = must(&target, &["import", "acme", "--from", &file("one"), "--json"]).json();
    assert_eq!(imported["rows"], expected.len());
    assert_eq!(all_rows(&there, "acme").await, expected);
    // By standard output and input, under another name, and back.
    let streamed = must(&target, &["export", "acme"]).out;
    let read = tenants_with(&source, &["import", "copy of acme"], streamed.as_bytes());
    assert_eq!(read.code, 0, "{}", read.err);
    assert_eq!(all_rows(&client, "copy of acme").await, expected);
    assert_eq!(all_rows(&client, "other").await.len(), 1);
    // What is there is refused, and replaced if that is asked for.
    client
        .batch_execute(
            "SET isles.tenant = 'acme'; UPDATE authors SET name = 'changed' WHERE id < 10; \
        DELETE FROM books WHERE id > 100; INSERT INTO authors VALUES (9999, 'stays')",
        )
        .await
        .unwrap();
    let before = all_rows(&client, "acme").await;
    assert_eq!(tenants(&source, &["import", "acme", "--from", &file("one"), "--json"]).refused(), (1, "23505".into()));
    assert_eq!(all_rows(&client, "acme").await, before);
    must(&source, &["import", "acme", "--from", &file("one"), "--replace"]);
    let mut after = all_rows(&client, "acme").await;
    let stays = after.iter().position(|row| row.contains("stays")).unwrap();
    after.remove(stays);
    assert_eq!(after, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_goes_from_sqlite_to_postgresql_and_back() {
    a_tenant_goes_there_and_back(SQLITE, POSTGRES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_goes_from_postgresql_to_sqlite_and_back() {
    a_tenant_goes_there_and_back(POSTGRES, SQLITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_cut_or_altered_changes_nothing() {
    let (server, client) = set_up(SQLITE).await;
    fill(&client, "acme").await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let path = path.to_str().unwrap();
    must(&server, &["export", "acme", "--to", path]);
    let whole = std::fs::read(path).unwrap();
    let middle = whole.len() / 2;
    let mut altered = whole.clone();
    let digit = (middle..).find(|at| altered[*at].is_ascii_digit()).unwrap();
    altered[digit] = if altered[digit] == b'1' { b'2' } else { b'1' };
    let last_line = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for (what, bytes) in [
        ("cut", &whole[..middle]),
        ("without its end", &whole[..last_line]),
        ("cut in its end", &whole[..whole.len() - 2]),
        ("altered", &altered[..]),
        ("empty", b""),
    ] {
        std::fs::write(path, bytes).unwrap();
        for refused in [
            tenants(&server, &["import", "new", "--from", path, "--json"]),
            tenants_with(&server, &["import", "new", "--json"], bytes),
        ] {
            assert_eq!(refused.code, 1, "{what}: {}", refused.err);
            assert!(all_rows(&client, "new").await.is_empty(), "{what}");
        }
    }
    assert_eq!(
        tenants(&server, &["import", "new", "--from", "/nowhere", "--json"]).refused(),
        (2, "unreadable_file".into())
    );
    assert_eq!(tenants(&server, &["export", "nobody", "--json"]).refused(), (1, "42704".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_differ_are_refused() {
    let (source, client) = set_up(SQLITE).await;
    client.batch_execute("SET isles.tenant = 'acme'; INSERT INTO authors VALUES (1, 'a')").await.unwrap();
    let file = must(&source, &["export", "acme"]).out;
    for (change, said) in [
        ("ALTER TABLE authors ADD COLUMN born int", "table authors has a column born here"),
        ("ALTER TABLE authors DROP COLUMN born", ""),
        ("ALTER TABLE log RENAME COLUMN at TO moment", "table log has no column at here"),
        ("ALTER TABLE log DROP COLUMN moment", "table log has no column at here"),
        ("ALTER TABLE log ADD COLUMN at bigint", "column at of table log is integer in the file, and bigint here"),
        ("DROP TABLE log", "there is no such tenant table here"),
    ] {
        client.batch_execute(change).await.unwrap();
        let read = tenants_with(&source, &["import", "new"], file.as_bytes());
        match said.is_empty() {
            true => assert_eq!(read.code, 0, "{change}: {}", read.err),
            false => assert!(read.code == 1 && read.err.contains(said), "{change}: {}", read.err),
        }
        client.batch_execute("SET isles.tenant = 'new'; DELETE FROM authors").await.unwrap();
    }
}

/// A page is bounded by its bytes, and by the tenant's own quota of rows.
#[tokio::test(flavor = "multi_thread")]
async fn large_rows_are_exported_in_pages() {
    for setup in [SQLITE, POSTGRES] {
        let (server, client) = set_up(setup).await;
        client.batch_execute("SET isles.tenant = 'acme'").await.unwrap();
        client.batch_execute("CREATE TENANT acme WITH (max_rows = 7)").await.unwrap();
        // 40 rows of 1 MB, after 20 small ones: pages of rows alone would be of any size.
        client.batch_execute("INSERT INTO authors SELECT n, 'x' FROM generate_series(1, 20) n").await.unwrap();
        client
            .batch_execute("INSERT INTO log SELECT repeat('y', 1000000), n FROM generate_series(1, 40) n")
            .await
            .unwrap();
        let exported = must(&server, &["export", "acme"]).out;
        assert_eq!(exported.lines().count(), 62);
        assert!(exported.lines().last().unwrap().starts_with("{\"end\":{\"rows\":["));
        let read = tenants_with(&server, &["import", "beta"], exported.as_bytes());
        assert_eq!(read.code, 0, "{}", read.err);
        client.batch_execute("SET isles.tenant = 'beta'").await.unwrap();
        let rows = client.query_one("SELECT count(*), sum(length(line)) FROM log", &[]).await.unwrap();
        assert_eq!((rows.get::<_, i64>(0), rows.get::<_, i64>(1)), (40, 40_000_000));
    }
}
