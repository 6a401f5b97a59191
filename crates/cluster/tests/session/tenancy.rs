//! What an application can rely on when it sets a tenant and writes SQL as if it were alone; on both engines.

use crate::harness::{Client, Db};
use crate::postgres::{server, urls};
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use std::collections::BTreeMap;

const TABLES: [&str; 4] = [
    "CREATE TABLE authors (id bigint PRIMARY KEY, email text UNIQUE) WITH (kind = 'tenant')",
    "CREATE TABLE notes (id bigint PRIMARY KEY, author bigint REFERENCES authors (id) ON DELETE CASCADE, body text) \
     WITH (kind = 'tenant')",
    "CREATE TABLE tags (note bigint REFERENCES notes (id) ON DELETE CASCADE, name text, PRIMARY KEY (note, name)) \
     WITH (kind = 'tenant')",
    "CREATE VIEW overview AS SELECT n.id, a.email, n.body FROM notes n JOIN authors a ON a.id = n.author",
];

const TENANTS: [&str; 3] = ["SET isles.tenant = 'acme'", "SET isles.tenant = 'borealis'", "SET isles.null_tenant = on"];

/// Two shards of an engine, with tables and no rows.
async fn tables(db: &Db) -> Client {
    let mut client = db.client();
    for sql in TABLES {
        client.run(sql).await;
    }
    client
}

/// An author, a note and a tag with the same keys for each tenant, whose values tell whose they are.
async fn peopled(db: &Db) -> Client {
    let mut client = tables(db).await;
    for (n, tenant) in TENANTS.iter().enumerate() {
        client.run(tenant).await;
        client.run("INSERT INTO authors VALUES (1, 'a@example.org'), (2, 'b@example.org')").await;
        client.run(&format!("INSERT INTO notes VALUES (1, 1, 'note of {n}'), (2, 2, 'other of {n}')")).await;
        client.run(&format!("INSERT INTO tags VALUES (1, 'tag of {n}'), (2, 'tag of {n}')")).await;
    }
    client
}

async fn on_both_engines(check: impl AsyncFn(&Db)) {
    check(&Db::sqlite(2).await).await;
    let server = server();
    check(&Db::postgres(urls(&server, 2)).await).await;
}

/// Statements of every kind over tenant tables.
const STATEMENTS: [&str; 24] = [
    "SELECT * FROM notes",
    "SELECT count(*) FROM notes",
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM notes)",
    "SELECT * FROM overview",
    "WITH n AS (SELECT * FROM notes) SELECT 1",
    "SELECT 1 UNION ALL SELECT id FROM notes",
    "SELECT * FROM (VALUES (1)) v (id) LEFT JOIN notes n ON n.id = v.id",
    "SELECT * FROM generate_series(1, 2) g, LATERAL (SELECT * FROM notes n WHERE n.id = g) x",
    "SELECT * FROM notes FOR UPDATE",
    "INSERT INTO notes VALUES (9, NULL, 'x')",
    "INSERT INTO notes SELECT id + 100, author, body FROM notes",
    "INSERT INTO notes VALUES (1, NULL, 'x') ON CONFLICT DO NOTHING",
    "INSERT INTO notes VALUES (1, NULL, 'x') ON CONFLICT (id) DO UPDATE SET body = 'y' RETURNING body",
    "UPDATE notes SET body = 'x'",
    "UPDATE notes SET body = a.email FROM authors a WHERE a.id = notes.author",
    "DELETE FROM notes",
    "DELETE FROM notes USING authors a WHERE a.id = notes.author RETURNING *",
    "COPY notes TO STDOUT",
    "COPY (SELECT * FROM notes) TO STDOUT",
    "COPY notes FROM STDIN",
    "EXPLAIN ANALYZE SELECT * FROM notes",
    "TRUNCATE notes",
    "DECLARE c CURSOR WITH HOLD FOR SELECT * FROM notes",
    "CREATE TABLE copies AS SELECT * FROM notes",
];

/// I-42: a forgotten tenant is an error, never a shared partition.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_tenant_every_statement_on_tenant_tables_is_refused() {
    on_both_engines(async |db| {
        let mut client = peopled(db).await;
        client.run("RESET isles.null_tenant").await;
        client.run("RESET isles.tenant").await;
        for sql in STATEMENTS {
            let error = client.try_run(sql).await.expect_err(sql);
            // What Isles does not do at all is refused as such.
            assert!(["55000", "0A000"].contains(&error.sqlstate), "{sql}: {error}");
            if error.sqlstate == "55000" {
                assert!(error.hint.as_deref().is_some_and(|hint| hint.contains("SET isles.tenant")), "{sql}");
            }
        }
        for tenant in TENANTS {
            client.run(tenant).await;
            assert_eq!(client.run("SELECT count(*) FROM notes").await, ["2"], "nothing was written");
        }
    })
    .await;
}

/// I-41: `_shard` is nobody's business, in any place where a column can be named.
#[tokio::test(flavor = "multi_thread")]
async fn hidden_columns_are_not_there() {
    on_both_engines(async |db| {
        let mut client = peopled(db).await;
        for column in ["_shard", "_tenant", "notes._shard", "n._tenant"] {
            for sql in [
                format!("SELECT {column} FROM notes n"),
                format!("SELECT id FROM notes n WHERE {column} = 'acme'"),
                format!("SELECT id FROM notes n ORDER BY {column}"),
                format!("SELECT count(*) FROM notes n GROUP BY {column}"),
                format!("DELETE FROM notes n WHERE {column} IS NULL"),
            ] {
                let error = client.try_run(&sql).await.expect_err(&sql);
                assert!(["42703", "42P01"].contains(&error.sqlstate), "{sql}: {error}");
            }
        }
        for sql in [
            "INSERT INTO notes (id, _shard) VALUES (7, 'borealis')",
            "INSERT INTO notes (id, _tenant) VALUES (7, 'borealis')",
            "UPDATE notes SET _shard = 'borealis'",
            "UPDATE notes SET _tenant = 'borealis'",
            "COPY notes (id, _shard) FROM STDIN",
            "COPY notes (id, _tenant) TO STDOUT",
            "INSERT INTO notes (id) VALUES (7) RETURNING _shard",
            "INSERT INTO notes (id) VALUES (1) ON CONFLICT (_tenant, id) DO NOTHING",
            "CREATE INDEX i ON notes (_shard)",
            "ALTER TABLE notes DROP COLUMN _shard",
            "ALTER TABLE notes RENAME COLUMN _tenant TO t",
        ] {
            assert_eq!(client.fails(sql).await, "42703", "{sql}");
        }
        assert_eq!(client.run("SELECT * FROM notes WHERE id = 1").await, ["1|1|note of 2"]);
        let columns = "SELECT column_name FROM information_schema.columns WHERE table_name = 'notes' ORDER BY 1";
        assert_eq!(client.run(columns).await, ["author", "body", "id"]);
        let columns = "SELECT attname FROM pg_attribute WHERE attrelid = 'notes'::regclass AND attnum > 0 ORDER BY 1";
        assert_eq!(client.run(columns).await, ["author", "body", "id"]);
        for sql in ["SELECT * FROM notes WHERE id = 1", "INSERT INTO notes VALUES (8, NULL, 'x')", "DELETE FROM tags"] {
            let plan = client.run(&format!("EXPLAIN (VERBOSE) {sql}")).await.concat();
            assert!(!plan.contains("_shard") && !plan.contains("_tenant"), "{plan}");
        }
        for sql in ["CREATE TABLE t (_tenant int)", "CREATE TABLE t (id int, _shard text)"] {
            assert!(client.try_run(sql).await.is_err(), "{sql}");
        }
    })
    .await;
}

/// What each shard was asked for a statement, and what came of it.
async fn work_of(db: &Db, client: &mut Client, sql: &str) -> Vec<(ShardId, [u64; 3])> {
    let figures = || {
        let work = db.database.shard_work().into_iter();
        work.map(|(shard, work)| (shard, [work.statements, work.rows, work.errors])).collect::<BTreeMap<_, _>>()
    };
    let before = figures();
    // What it answers is compared elsewhere.
    let _ = client.try_run(sql).await;
    let since = |(shard, now): (ShardId, [u64; 3])| {
        let then = before.get(&shard).copied().unwrap_or_default();
        (shard, [0, 1, 2].map(|at| now[at] - then[at]))
    };
    figures().into_iter().map(since).collect()
}

fn shown(error: &SqlError) -> String {
    format!("{} {} {:?} {:?}", error.sqlstate, error.message, error.detail, error.hint)
}

/// I-40, I-41: keys of others are free, and a reference to another's row fails like one to no row, in the same words and
/// after the same work.
#[tokio::test(flavor = "multi_thread")]
async fn errors_do_not_tell_what_others_have() {
    on_both_engines(async |db| {
        let mut client = peopled(db).await;
        client.run(TENANTS[0]).await;
        client.run("INSERT INTO authors VALUES (7050, 'only@acme')").await;
        client.run("INSERT INTO notes VALUES (7050, 7050, 'acme only')").await;
        for other in [TENANTS[1], TENANTS[2]] {
            client.run(other).await;
            let (theirs, nobodys) = (
                client.try_run("INSERT INTO notes VALUES (60, 7050, 'x')").await.expect_err("acme's author"),
                client.try_run("INSERT INTO notes VALUES (60, 7051, 'x')").await.expect_err("no author"),
            );
            assert_eq!(theirs.sqlstate, "23503");
            assert_eq!(shown(&theirs).replace("7050", "7051"), shown(&nobodys));
            for sql in [
                "SELECT * FROM notes WHERE id = 7050",
                "SELECT * FROM authors WHERE email = 'only@acme'",
                "UPDATE notes SET body = 'x' WHERE id = 7050 RETURNING id",
                "DELETE FROM authors WHERE id = 7050 RETURNING id",
            ] {
                assert_eq!(client.run(sql).await, Vec::<String>::new(), "{sql}");
                let work = work_of(db, &mut client, sql).await;
                assert!(work.iter().any(|(_, [statements, ..])| *statements > 0), "{sql}: {work:?}");
                let nobodys = sql.replace("7050", "7051").replace("only@acme", "only@nobody");
                assert_eq!(work, work_of(db, &mut client, &nobodys).await, "{sql}");
            }
            let insert = |author| format!("INSERT INTO notes VALUES (60, {author}, 'x')");
            let theirs = work_of(db, &mut client, &insert(7050)).await;
            assert_eq!(theirs, work_of(db, &mut client, &insert(7051)).await);
            // The same key, unique value and reference, in every tenant.
            client.run("INSERT INTO authors VALUES (7050, 'only@acme')").await;
            client.run("INSERT INTO notes VALUES (7050, 7050, 'mine')").await;
            let select = |id| format!("SELECT * FROM notes WHERE id = {id}");
            let mine = work_of(db, &mut client, &select(7050)).await;
            assert_ne!(mine, work_of(db, &mut client, &select(7051)).await, "a row that is there shows in the work");
            assert_eq!(client.fails("INSERT INTO authors VALUES (7050, 'other')").await, "23505");
            assert_eq!(client.fails("INSERT INTO authors VALUES (52, 'only@acme')").await, "23505");
            client.run("DELETE FROM authors WHERE id = 7050").await;
            assert_eq!(client.run("SELECT id FROM notes WHERE id = 7050").await, Vec::<String>::new());
        }
        client.run(TENANTS[0]).await;
        assert_eq!(client.run("SELECT body FROM notes WHERE id = 7050").await, ["acme only"]);
    })
    .await;
}

/// I-41: joins of four tables of each kind, with limits, return rows of one tenant.
#[tokio::test(flavor = "multi_thread")]
async fn deep_joins_stay_within_the_tenant() {
    on_both_engines(async |db| {
        let mut client = peopled(db).await;
        for (n, tenant) in TENANTS.iter().enumerate() {
            client.run(tenant).await;
            for (left, right) in [("JOIN", "JOIN"), ("LEFT JOIN", "LEFT JOIN"), ("RIGHT JOIN", "FULL JOIN")] {
                let sql = format!(
                    "SELECT a.id, n.body, t.name, o.body FROM authors a {left} notes n ON n.author = a.id \
                     {right} tags t ON t.note = n.id LEFT JOIN overview o ON o.id = t.note ORDER BY a.id LIMIT 2"
                );
                let expected = [
                    format!("1|note of {n}|tag of {n}|note of {n}"),
                    format!("2|other of {n}|tag of {n}|other of {n}"),
                ];
                assert_eq!(client.run(&sql).await, expected, "{sql}");
            }
            let nested = "SELECT (SELECT max(t.name) FROM tags t WHERE t.note IN \
                          (SELECT n.id FROM notes n WHERE n.author = a.id)) FROM authors a ORDER BY a.id";
            assert_eq!(client.run(nested).await, [format!("tag of {n}"), format!("tag of {n}")]);
        }
    })
    .await;
}

/// I-41, I-43: many sessions of many tenants over few connections never mix, in transactions and out of them.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_side_by_side_do_not_mix() {
    on_both_engines(async |db| {
        tables(db).await;
        let sessions = (0..24).map(|n| {
            let (mut client, tenant) = (db.client(), format!("tenant {}", n % 8));
            tokio::spawn(async move {
                client.run(&format!("SET isles.tenant = '{tenant}'")).await;
                for round in 0..20 {
                    let id = n * 100 + round;
                    if round % 2 == 0 {
                        client.run("BEGIN ISOLATION LEVEL READ COMMITTED").await;
                    }
                    client.run(&format!("INSERT INTO authors VALUES ({id}, '{tenant} {id}')")).await;
                    let strangers =
                        format!("SELECT email FROM authors WHERE email NOT LIKE '{tenant} %' OR email IS NULL");
                    assert_eq!(client.run(&strangers).await, Vec::<String>::new());
                    if round % 2 == 0 {
                        client.run(if round % 4 == 0 { "COMMIT" } else { "ROLLBACK" }).await;
                    }
                }
            })
        });
        for session in sessions.collect::<Vec<_>>() {
            session.await.expect("a session ends well");
        }
    })
    .await;
}

/// A transaction is one tenant's, whatever happens to the setting.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_keeps_its_tenant() {
    on_both_engines(async |db| {
        let mut client = peopled(db).await;
        client.run(TENANTS[0]).await;
        client.run("BEGIN").await;
        client.run("SET LOCAL isles.tenant = 'borealis'").await;
        assert_eq!(client.run("SELECT body FROM notes WHERE id = 1").await, ["note of 1"]);
        assert_eq!(client.fails("SET isles.tenant = 'acme'").await, "25001");
        client.run("ROLLBACK").await;
        assert_eq!(client.run("SELECT body FROM notes WHERE id = 1").await, ["note of 0"]);
        client.run("BEGIN").await;
        client.run("SAVEPOINT a").await;
        client.run("SET LOCAL isles.tenant = 'borealis'").await;
        client.run("SELECT body FROM notes WHERE id = 1").await;
        client.run("ROLLBACK TO a").await;
        let error = client.try_run("SELECT body FROM notes WHERE id = 1").await.expect_err("of two tenants");
        assert_eq!(error.sqlstate, "25001", "{error}");
        client.run("ROLLBACK").await;
        client.run("BEGIN").await;
        client.run("SELECT 1").await;
        for sql in ["RESET isles.tenant", "RESET ALL", "SET isles.null_tenant = on"] {
            client.run("SAVEPOINT b").await;
            assert_eq!(client.fails(sql).await, "25001", "{sql}");
            client.run("ROLLBACK TO b").await;
        }
        assert_eq!(client.run("SELECT body FROM notes WHERE id = 1").await, ["note of 0"]);
        client.run("ROLLBACK").await;
    })
    .await;
}

/// A transaction that reads and then writes is not disturbed by what other tenants commit meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_of_other_tenants_do_not_conflict() {
    on_both_engines(async |db| {
        let mut acme = peopled(db).await;
        let mut others: Vec<Client> = Vec::new();
        for n in 0..6 {
            let mut client = db.client();
            client.run(&format!("SET isles.tenant = 'other {n}'")).await;
            others.push(client);
        }
        acme.run(TENANTS[0]).await;
        for round in 0..5 {
            acme.run("BEGIN ISOLATION LEVEL SERIALIZABLE").await;
            acme.run("SELECT count(*) FROM notes").await;
            for other in &mut others {
                other.run(&format!("INSERT INTO authors VALUES ({round}, 'x{round}')")).await;
            }
            acme.run(&format!("UPDATE notes SET body = 'round {round}' WHERE id = 1")).await;
            acme.run("COMMIT").await;
        }
        // What the same tenant commits does.
        let mut same = db.client();
        same.run(TENANTS[0]).await;
        acme.run("BEGIN ISOLATION LEVEL SERIALIZABLE").await;
        assert_eq!(acme.run("SELECT body FROM notes WHERE id = 1").await, ["round 4"]);
        same.run("UPDATE notes SET body = 'by another' WHERE id = 1").await;
        assert_eq!(acme.fails("UPDATE notes SET body = body || '!' WHERE id = 1").await, "40001");
        acme.run("ROLLBACK").await;
    })
    .await;
}

/// What an engine cannot do is refused in words that name nothing hidden.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_foreign_key_names_no_hidden_column() {
    on_both_engines(async |db| {
        let mut client = tables(db).await;
        let null = "CREATE TABLE t (id int PRIMARY KEY, a bigint REFERENCES authors ON DELETE SET NULL) WITH (kind = 'tenant')";
        let follow = "CREATE TABLE u (id int PRIMARY KEY, a bigint REFERENCES authors ON UPDATE CASCADE) WITH (kind = 'tenant')";
        let error = client.try_run(null).await.expect_err("the tenant would be nulled as well");
        assert_eq!(error.sqlstate, "0A000", "{error}");
        match client.try_run(follow).await {
            Ok(tags) => assert_eq!(tags, ["CREATE TABLE"]),
            Err(error) => {
                assert_eq!(error.sqlstate, "0A000", "{error}");
                assert!(!shown(&error).contains('_'), "{error}");
            }
        }
    })
    .await;
}
