//! Questions over all tenants: what an administrator can ask, what nobody else can, and that nothing is written; on both
//! engines.

use crate::harness::{Client, Db};
use crate::postgres::{server, urls};
use isles_cluster::database::{Config, Strategy};
use isles_cluster::roles::Role;
use isles_cluster::session::Answer;
use isles_kernel::value::Value;
use std::collections::BTreeSet;

const TENANTS: [&str; 5] = ["acme", "borealis", "cirrus", "d'or", "émile 𝄞"];
const ALL: &str = "SET isles.tenant_scope = 'all'";

async fn on_both_engines(check: impl AsyncFn(&Db)) {
    check(&Db::sqlite(3).await).await;
    let server = server();
    check(&Db::postgres(urls(&server, 3)).await).await;
}

/// Three notes for each tenant and for the null tenant, under the same ids.
async fn peopled(db: &Db) -> Client {
    let mut client = db.client();
    for sql in [
        "CREATE TABLE notes (id bigint PRIMARY KEY, body text, n int, slug text UNIQUE) WITH (kind = 'tenant')",
        "CREATE TABLE tags (note bigint REFERENCES notes (id), tag text, PRIMARY KEY (note, tag)) WITH (kind = 'tenant')",
        "CREATE TABLE loose (x int) WITH (kind = 'tenant')",
        "CREATE TABLE users (id int PRIMARY KEY, tenant text)",
        "CREATE TABLE plans (id int PRIMARY KEY, name text) WITH (kind = 'reference')",
        "CREATE VIEW titles AS SELECT id, upper(body) AS title FROM notes",
        "INSERT INTO plans VALUES (0, 'free'), (1, 'paid')",
        "SET isles.null_tenant = on",
    ] {
        client.run(sql).await;
    }
    fill(&mut client, "nobody").await;
    for (at, tenant) in TENANTS.iter().enumerate() {
        client.run(&format!("SET isles.tenant = '{}'", tenant.replace('\'', "''"))).await;
        fill(&mut client, &tenant.replace('\'', "''")).await;
        client.run(&format!("INSERT INTO users VALUES ({at}, '{}')", tenant.replace('\'', "''"))).await;
    }
    client.run("RESET isles.tenant").await;
    client.run("RESET isles.null_tenant").await;
    client
}

async fn fill(client: &mut Client, name: &str) {
    for sql in [
        format!(
            "INSERT INTO notes SELECT g, 'note ' || g || ' of {name}', g % 2, 's' || g FROM generate_series(1, 3) g"
        ),
        "INSERT INTO tags VALUES (1, 'a'), (1, 'b'), (2, 'a')".into(),
        "INSERT INTO loose VALUES (7), (7)".into(),
    ] {
        client.run(&sql).await;
    }
}

async fn copied(client: &mut Client, sql: &str) -> String {
    let prepared = client.session.prepare(sql, &[]).await.unwrap();
    let Answer::CopyOut(mut copy) = client.session.execute(&prepared, Vec::new()).await.unwrap() else {
        panic!("no copy");
    };
    let mut bytes = Vec::new();
    while let Some(messages) = copy.next().await.unwrap() {
        bytes.extend(messages.concat());
    }
    String::from_utf8(bytes).unwrap()
}

/// All rows, each once, with their tenants; whatever shape the question has.
#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_reads_the_rows_of_all_tenants() {
    on_both_engines(async |db| {
        let mut client = peopled(db).await;
        assert_eq!(client.fails("SELECT * FROM notes").await, "55000", "without the scope a tenant is missing");
        client.run(ALL).await;
        assert_eq!(client.run("SHOW isles.tenant_scope").await, ["all"]);
        let names = [""].into_iter().chain(TENANTS);
        let expected: Vec<String> = names.flat_map(|name| (1..=3).map(move |n| format!("{name}|{n}"))).collect();
        assert_eq!(client.run("SELECT _tenant, id FROM notes ORDER BY _tenant COLLATE \"C\", id").await, expected);
        let one = "SELECT * FROM notes WHERE _tenant = 'acme' AND id = 2";
        assert_eq!(client.run(one).await, ["acme|2|note 2 of acme|0|s2"], "the tenant is the first column");
        for (sql, answer) in [
            ("SELECT count(*), count(DISTINCT _tenant), sum(n) FROM notes", "18|6|12"),
            ("SELECT count(*) FROM notes WHERE slug = 's2'", "6"),
            ("SELECT count(*) FROM notes WHERE _tenant IN ('acme', 'd''or', 'nosuch', '')", "9"),
            ("SELECT count(*) FROM notes WHERE _tenant = ''", "3"),
            ("SELECT count(*) FROM notes WHERE _tenant = 'nosuch'", "0"),
            ("SELECT count(*) FROM notes WHERE _tenant IS NULL", "0"),
            // Within each tenant, and over all of them.
            ("SELECT count(*) FROM notes n JOIN tags t ON t._tenant = n._tenant AND t.note = n.id", "18"),
            ("SELECT count(*) FROM notes n JOIN tags t ON t.note = n.id", "108"),
            ("SELECT count(*) FROM notes a JOIN notes b ON a.slug = b.slug", "108"),
            ("SELECT count(*) FROM notes n LEFT JOIN tags t ON t._tenant = n._tenant AND t.note = n.id", "24"),
            ("SELECT count(*) FROM notes n FULL JOIN tags t ON t._tenant = n._tenant AND t.note = n.id + 1", "30"),
            ("SELECT count(*) FROM notes n WHERE EXISTS (SELECT 1 FROM tags t WHERE t._tenant = n._tenant AND t.note = n.id)", "12"),
            ("SELECT count(*) FROM notes n JOIN plans p ON p.id = n.n WHERE p.name = 'paid'", "12"),
            ("SELECT count(*) FROM users u JOIN notes n ON n._tenant = u.tenant", "15"),
            ("SELECT count(*) FROM loose", "12"),
            ("SELECT count(DISTINCT title) FROM titles", "18"),
            ("SELECT max(c) FROM (SELECT id, count(*) AS c FROM notes GROUP BY id) s", "6"),
            ("WITH a AS (SELECT _tenant, count(*) AS c FROM notes GROUP BY _tenant) SELECT sum(c) FROM a", "18"),
            ("SELECT count(*) FROM (SELECT id FROM notes UNION ALL SELECT note FROM tags) u", "36"),
        ] {
            assert_eq!(client.run(sql).await, [answer], "{sql}");
        }
        // A key is one only within its tenant.
        assert_eq!(client.run("SELECT _tenant, id, body FROM notes GROUP BY _tenant, id").await.len(), 18);
        assert_eq!(client.fails("SELECT id, body FROM notes GROUP BY id").await, "42803");
        let first = "SELECT _tenant, id FROM notes WHERE _tenant <> '' ORDER BY _tenant COLLATE \"C\" DESC, id LIMIT 2 OFFSET 1";
        assert_eq!(client.run(first).await, ["émile 𝄞|2", "émile 𝄞|3"]);
        for (sql, params, answer) in [
            ("SELECT count(*) FROM notes WHERE _tenant = $1", vec![Value::text("borealis")], "3"),
            ("SELECT count(*) FROM notes WHERE slug = $1", vec![Value::text("s1")], "6"),
        ] {
            assert_eq!(client.try_with(sql, params).await.expect(sql), [answer]);
        }
        for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
            client.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
            assert_eq!(client.run("SELECT count(*) FROM notes").await, ["18"]);
            client.run("DECLARE c CURSOR FOR SELECT _tenant, id FROM notes").await;
            assert_eq!(client.run("FETCH ALL FROM c").await.len(), 18);
            assert_eq!(client.fails("SET isles.tenant_scope = 'own'").await, "25001");
            client.run("ROLLBACK").await;
        }
        for (sql, rows) in [
            ("COPY (SELECT _tenant, id FROM notes WHERE id = 1) TO STDOUT", 6),
            ("COPY notes TO STDOUT", 18),
        ] {
            assert_eq!(copied(&mut client, sql).await.lines().count(), rows, "{sql}");
        }
        for sql in ["SELECT _shard FROM notes", "SELECT count(*) FROM notes WHERE notes._shard IS NULL"] {
            assert_eq!(client.fails(sql).await, "42703", "{sql}");
        }
        let plan = client.run("EXPLAIN SELECT * FROM notes WHERE _tenant = 'acme'").await.join("\n");
        assert!(plan.contains("key 'acme'"), "{plan}");
    })
    .await;
}

/// I-41, I-44: it reads, and it does nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_while_all_tenants_are_read() {
    on_both_engines(async |db| {
        let mut client = peopled(db).await;
        client.run("PREPARE w AS UPDATE notes SET body = 'x'").await;
        client.run("PREPARE r AS SELECT count(*) FROM users").await;
        client.run(ALL).await;
        for sql in [
            "INSERT INTO notes (id, body) VALUES (9, 'x')",
            "INSERT INTO notes (_tenant, id) VALUES ('acme', 9)",
            "UPDATE notes SET body = 'x'",
            "UPDATE notes SET _tenant = 'acme' WHERE _tenant = 'borealis'",
            "DELETE FROM notes WHERE _tenant = 'acme'",
            "SELECT * FROM notes FOR UPDATE",
            "SELECT * FROM users FOR UPDATE",
            "INSERT INTO users VALUES (9, 'x')",
            "INSERT INTO users SELECT id, body FROM notes",
            "WITH d AS (DELETE FROM notes RETURNING *) SELECT * FROM d",
            "COPY notes FROM STDIN",
            "TRUNCATE notes",
            "CREATE TABLE t (id int PRIMARY KEY)",
            "CREATE TABLE t AS SELECT id FROM notes",
            "DROP TABLE notes CASCADE",
            "CREATE INDEX i ON notes (body)",
            "EXPLAIN ANALYZE DELETE FROM notes",
            "DROP TENANT acme",
            "CREATE ROLE x",
            "EXECUTE w",
        ] {
            let error = client.try_run(sql).await.expect_err(sql);
            assert!(["25006", "0A000"].contains(&error.sqlstate), "{sql}: {error}");
        }
        assert_eq!(client.run("EXECUTE r").await, ["5"], "what was prepared before is planned anew");
        assert_eq!(client.run("SELECT count(*), max(length(body)) < 40 FROM notes").await, ["18|t"]);
        client.run("RESET isles.tenant_scope").await;
        client.run("SET isles.tenant = 'acme'").await;
        assert_eq!(client.run("SELECT count(*) FROM notes").await, ["3"]);
        assert_eq!(client.run("UPDATE notes SET n = 5 WHERE id = 1 RETURNING n").await, ["5"]);
        assert_eq!(client.fails("SELECT _tenant FROM notes").await, "42703", "the column has gone with the scope");
    })
    .await;
}

/// I-41: the scope is an administrator's, however it is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_but_an_administrator_reads_all_tenants() {
    on_both_engines(async |db| {
        let mut admin = peopled(db).await;
        // Whatever an administrator has had planned and compiled is nobody else's.
        admin.run(ALL).await;
        assert_eq!(admin.run("SELECT count(*) FROM notes").await, ["18"]);
        let own = |settings: &[(&str, &str)]| Role {
            settings: settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            ..Role::default()
        };
        let locked = [("isles.tenant", "acme"), ("isles.tenant_locked", "on")];
        for role in [own(&[]), own(&locked)] {
            let mut client = db.client_as(role.clone(), &[]).expect("a session");
            if !role.is_locked() {
                client.run("SET isles.tenant = 'acme'").await;
            }
            for sql in [
                ALL,
                "SET LOCAL isles.tenant_scope = 'all'",
                "SET SESSION isles.tenant_scope TO ALL",
                "SET \"isles\".\"tenant_scope\" = 'ALL'",
                "SELECT set_config('isles.tenant_scope', 'all', false)",
                "SELECT set_config('ISLES.Tenant_Scope', 'all', true)",
                "BEGIN; SET LOCAL isles.tenant_scope = 'all'",
            ] {
                for sql in sql.split("; ") {
                    if let Err(error) = client.try_run(sql).await {
                        assert!(["42501", "42601"].contains(&error.sqlstate), "{sql}: {error}");
                    }
                }
                client.run("ROLLBACK").await;
                assert_eq!(client.run("SHOW isles.tenant_scope").await, ["own"], "{sql}");
                assert_eq!(client.run("SELECT count(*) FROM notes").await, ["3"], "{sql}");
                assert_eq!(client.fails("SELECT count(_tenant) FROM notes").await, "42703", "{sql}");
            }
            let refused =
                db.client_as(role, &[("isles.tenant_scope", "all")]).err().expect("an option of a connection");
            assert_eq!(refused.sqlstate, "42501");
        }
        // A setting that came with the role is as good as any other.
        let refused = db.client_as(own(&[("isles.tenant_scope", "all")]), &[]).err().expect("a setting of the role");
        assert_eq!(refused.sqlstate, "42501");
        let role = Role { admin: true, ..Role::default() };
        let mut client = db.client_as(role, &[("isles.tenant_scope", "all")]).expect("an administrator may");
        assert_eq!(client.run("SELECT count(*) FROM notes").await, ["18"]);
        assert_eq!(client.fails("SET isles.tenant_scope = 'some'").await, "22023");
        let shown: BTreeSet<String> = admin.run("SHOW isles.tenant_scope").await.into_iter().collect();
        assert_eq!(shown, BTreeSet::from(["all".to_string()]));
    })
    .await;
}

/// Where each tenant has a shard of its own, nothing reads all of them.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_shard_for_each_tenant_there_is_no_such_scope() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { strategy: Some(Strategy::Adapter), ..Config::sqlite(folder.path(), 2) };
    let db = Db::open(folder, &config).await;
    let mut client = db.client();
    let error = client.try_run(ALL).await.expect_err("it is refused");
    assert_eq!((error.sqlstate, error.hint.is_some()), ("0A000", true));
}
