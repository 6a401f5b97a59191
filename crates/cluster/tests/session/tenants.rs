//! Tenants as objects, over shards of both engines.

use crate::harness::{Client, Db};
use isles_cluster::roles::Role;
use isles_kernel::error::SqlError;
use std::collections::BTreeMap;
use std::time::Duration;

const TABLES: [&str; 2] = [
    "CREATE TABLE notes (id int PRIMARY KEY, body text) WITH (kind = tenant)",
    "CREATE TABLE tasks (id int PRIMARY KEY, note int REFERENCES notes (id)) WITH (kind = tenant)",
];

async fn with_tables(db: &Db) -> Client {
    let mut client = db.client();
    for table in TABLES {
        client.run(table).await;
    }
    client
}

/// A client of no rank, with this tenant.
fn owner(db: &Db, tenant: &str) -> Result<Client, SqlError> {
    db.client_as(Role::default(), &[("isles.tenant", tenant)])
}

fn locked(db: &Db, tenant: &str) -> Client {
    let settings = [("isles.tenant", tenant), ("isles.tenant_locked", "on")];
    let settings: BTreeMap<String, String> = settings.map(|(name, value)| (name.into(), value.into())).into();
    db.client_as(Role { settings, ..Role::default() }, &[]).unwrap()
}

/// Names, rows and states, as SHOW TENANTS lists them.
async fn listed(client: &mut Client, sql: &str) -> Vec<String> {
    let lines = client.run(sql).await;
    let short = |line: &String| {
        let cells: Vec<&str> = line.split('|').collect();
        format!("{} {} {}", cells[0], cells[2], cells[5])
    };
    lines.iter().map(short).collect()
}

pub(crate) async fn tenants_are_those_created_and_those_with_rows(db: Db) {
    let mut client = with_tables(&db).await;
    assert!(client.run("SHOW TENANTS").await.is_empty());
    assert_eq!(client.run("CREATE TENANT zeta").await, ["CREATE TENANT"]);
    assert_eq!(client.fails("CREATE TENANT zeta").await, "42710");
    client.run("CREATE TENANT IF NOT EXISTS zeta").await;
    assert!(client.session.take_notices()[0].1.message.contains("already exists, skipping"));
    client.run("SET isles.null_tenant = on").await;
    client.run("INSERT INTO notes VALUES (1, 'nobody''s')").await;
    for (tenant, rows) in [("acme", 2), ("Acme & \"Söhne\"", 1), ("beta", 3)] {
        client.run(&format!("SET isles.tenant = '{tenant}'")).await;
        client.run(&format!("INSERT INTO notes SELECT n, 'x' FROM generate_series(1, {rows}) n")).await;
    }
    let expected = ["∅ 1 active", "Acme & \"Söhne\" 1 active", "acme 2 active", "beta 3 active", "zeta 0 active"];
    assert_eq!(listed(&mut client, "SHOW TENANTS").await, expected);
    assert_eq!(listed(&mut client, "SHOW TENANTS LIKE '%e_a'").await, ["beta 3 active", "zeta 0 active"]);
    let shown = client.run("SHOW TENANT 'Acme & \"Söhne\"'").await;
    let cells: Vec<&str> = shown[0].split('|').collect();
    assert!(["s0", "s1"].contains(&cells[1]), "{shown:?}");
    assert_eq!((cells[2], cells[4], cells[6]), ("1", "1", "0"), "rows, statements, connections");
    assert!(cells[3].parse::<u64>().unwrap() > 0);
    assert_eq!(client.fails("SHOW TENANT nobody").await, "42704");
    assert_eq!(client.fails("ALTER TENANT nobody SET (max_rows = 1)").await, "42704");
    assert_eq!(client.fails("DROP TENANT nobody").await, "42704");
    assert_eq!(client.run("DROP TENANT IF EXISTS nobody").await, ["DROP TENANT"]);
    client.run("BEGIN").await;
    assert_eq!(client.fails("CREATE TENANT other").await, "25001");
    client.run("ROLLBACK").await;
    // What is in the middle of a transaction is nothing that a change of tenants could stand in.
    client.session.begin_implicit();
    client.run("SELECT count(*) FROM notes").await;
    assert_eq!(client.fails("DROP TENANT beta").await, "25001");
    client.session.end_implicit().await.unwrap();
}

pub(crate) async fn quotas_are_set_and_reset(db: Db) {
    let mut client = with_tables(&db).await;
    client.run("CREATE TENANT acme WITH (max_connections = 5, statement_timeout = '2 s', max_bytes = '10 GB')").await;
    let quotas = async |client: &mut Client| {
        let shown = client.run("SHOW TENANT acme").await;
        shown[0].split('|').skip(7).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(quotas(&mut client).await, "5 2000ms ∅ 10737418240");
    client.run("ALTER TENANT acme SET (max_rows = 7, max_connections = 9)").await;
    client.run("ALTER TENANT acme RESET (statement_timeout, max_bytes)").await;
    assert_eq!(quotas(&mut client).await, "9 ∅ 7 ∅");
    // A tenant that has rows and was not created exists, and gets quotas.
    client.run("SET isles.tenant = 'beta'").await;
    client.run("INSERT INTO notes VALUES (1, 'x')").await;
    client.run("ALTER TENANT beta SET (max_rows = 1)").await;
    assert_eq!(client.run("SHOW TENANT beta").await[0].split('|').nth(9), Some("1"));
}

/// What is recorded is there after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn tenants_survive_a_restart() {
    let db = Db::sqlite(2).await;
    let mut client = with_tables(&db).await;
    client.run("CREATE TENANT acme WITH (max_rows = 1)").await;
    drop(client);
    let db = db.restart(2).await;
    let mut acme = owner(&db, "acme").unwrap();
    acme.run("INSERT INTO notes VALUES (1, 'a'), (2, 'b')").await;
    assert_eq!(acme.fails("SELECT * FROM notes").await, "54000");
    assert_eq!(listed(&mut acme, "SHOW TENANTS").await, ["acme 2 active"]);
}

pub(crate) async fn a_tenant_is_dropped_with_its_rows_and_no_others(db: Db) {
    let mut client = with_tables(&db).await;
    // More than two pages of each table.
    for tenant in ["acme", "beta"] {
        client.run(&format!("SET isles.tenant = '{tenant}'")).await;
        client.run("INSERT INTO notes SELECT n, 'x' FROM generate_series(1, 2300) n").await;
        client.run("INSERT INTO tasks SELECT n, n FROM generate_series(1, 2300) n").await;
    }
    client.run("CREATE TENANT acme WITH (max_rows = 5)").await;
    client.session.take_notices();
    assert_eq!(client.run("DROP TENANT acme").await, ["DROP TENANT"]);
    let notices = client.session.take_notices();
    assert_eq!(notices.last().unwrap().1.message, "tenant \"acme\": 4600 of 4600 rows deleted");
    assert_eq!(listed(&mut client, "SHOW TENANTS").await, ["beta 4600 active"]);
    assert_eq!(client.run("SELECT count(*) FROM notes").await, ["2300"], "beta's");
    // The name is free again, and has no quotas.
    client.run("SET isles.tenant = 'acme'").await;
    assert_eq!(client.run("SELECT count(*) FROM notes").await, ["0"]);
    client.run("INSERT INTO notes SELECT n, 'x' FROM generate_series(1, 6) n").await;
    assert_eq!(client.run("SELECT id FROM notes").await.len(), 6);
}

pub(crate) async fn rows_that_refer_to_their_own_table_are_dropped(db: Db) {
    let mut client = db.client();
    client.run("CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree (id)) WITH (kind = tenant)").await;
    client.run("SET isles.tenant = 'acme'").await;
    client.run("INSERT INTO tree VALUES (1500, NULL)").await;
    // Whatever a page has of them, others refer to one of it.
    client.run("INSERT INTO tree SELECT n, 1500 FROM generate_series(1, 1499) n").await;
    client.run("UPDATE tree SET up = 1 WHERE id > 1").await;
    client.run("UPDATE tree SET up = 1499 WHERE id = 1").await;
    assert_eq!(client.run("DROP TENANT acme").await, ["DROP TENANT"]);
    assert!(client.run("SHOW TENANTS").await.is_empty());
}

/// I-45: at the limit − 1, at the limit, and one beyond.
pub(crate) async fn a_tenant_has_as_many_sessions_as_may(db: Db) {
    let mut admin = with_tables(&db).await;
    admin.run("CREATE TENANT acme WITH (max_connections = 2)").await;
    let first = owner(&db, "acme").unwrap();
    let mut second = owner(&db, "acme").unwrap();
    let refused = owner(&db, "acme").err().unwrap();
    assert_eq!(refused.sqlstate, "53300");
    assert!(refused.hint.unwrap().contains("max_connections = 2"));
    let mut third = owner(&db, "beta").unwrap();
    assert_eq!(third.fails("SET isles.tenant = 'acme'").await, "53300");
    assert_eq!(third.run("SHOW isles.tenant").await, ["beta"], "it keeps the one it had");
    assert_eq!(third.fails("SELECT set_config('isles.tenant', 'acme', false)").await, "53300");
    third.run("BEGIN").await;
    assert_eq!(third.fails("SET LOCAL isles.tenant = 'acme'").await, "53300");
    third.run("ROLLBACK").await;
    // A place is free when its session ends, and when it has chosen another tenant.
    drop(first);
    third.run("BEGIN").await;
    third.run("SET LOCAL isles.tenant = 'acme'").await;
    assert_eq!(owner(&db, "acme").err().unwrap().sqlstate, "53300");
    third.run("COMMIT").await;
    let fourth = owner(&db, "acme").unwrap();
    second.run("RESET ALL").await;
    assert_eq!(owner(&db, "acme").err().unwrap().sqlstate, "53300", "its connection named it");
    second.run("SET isles.tenant = 'beta'").await;
    assert!(owner(&db, "acme").is_ok());
    drop(fourth);
    admin.run("ALTER TENANT acme SET (max_connections = 0)").await;
    assert_eq!(owner(&db, "acme").err().unwrap().sqlstate, "53300");
}

/// I-45: at the limit − 1, at the limit, and one beyond; gathered, streamed, by a cursor and by COPY.
pub(crate) async fn a_statement_returns_as_many_rows_as_may(db: Db) {
    let mut admin = with_tables(&db).await;
    let mut acme = owner(&db, "acme").unwrap();
    acme.run("INSERT INTO notes SELECT n, 'x' FROM generate_series(1, 12000) n").await;
    for limit in [3, 11_000] {
        admin.run(&format!("ALTER TENANT acme SET (max_rows = {limit})")).await;
        for (rows, fails) in [(limit - 1, false), (limit, false), (limit + 1, true)] {
            let got = acme.try_run(&format!("SELECT * FROM notes LIMIT {rows}")).await;
            match got {
                Ok(lines) => assert!(!fails && lines.len() == rows, "{rows} of {limit}"),
                Err(error) => {
                    assert!(fails, "{rows} of {limit}: {error}");
                    assert_eq!(error.sqlstate, "54000");
                    assert!(error.hint.unwrap().contains("max_rows"));
                }
            }
        }
        acme.run("BEGIN").await;
        let cursor = |rows: usize| format!("DECLARE c{rows} CURSOR FOR SELECT * FROM notes LIMIT {rows}");
        acme.run(&cursor(limit)).await;
        assert_eq!(acme.fails(&cursor(limit + 1)).await, "54000");
        acme.run("ROLLBACK").await;
        assert_eq!(acme.fails(&format!("COPY (SELECT * FROM notes LIMIT {}) TO STDOUT", limit + 1)).await, "54000");
    }
    // What a statement looks at is not what it returns.
    assert_eq!(acme.run("SELECT count(*) FROM notes").await, ["12000"]);
    let mut beta = owner(&db, "beta").unwrap();
    assert_eq!(beta.run("SELECT n FROM generate_series(1, 12000) n").await.len(), 12_000);
}

pub(crate) async fn a_write_of_too_many_rows_returned_is_undone(db: Db) {
    let mut admin = with_tables(&db).await;
    admin.run("CREATE TENANT acme WITH (max_rows = 2)").await;
    let mut acme = owner(&db, "acme").unwrap();
    assert_eq!(acme.fails("INSERT INTO notes VALUES (1, 'a'), (2, 'b'), (3, 'c') RETURNING id").await, "54000");
    assert_eq!(acme.run("SELECT count(*) FROM notes").await, ["0"]);
    assert_eq!(acme.run("INSERT INTO notes VALUES (1, 'a'), (2, 'b') RETURNING id").await.len(), 2);
    acme.run("INSERT INTO notes VALUES (3, 'c')").await;
    assert_eq!(acme.fails("UPDATE notes SET body = 'z' RETURNING id").await, "54000");
    assert_eq!(acme.run("SELECT count(*) FROM notes WHERE body = 'z'").await, ["0"]);
    assert_eq!(acme.run("UPDATE notes SET body = 'z'").await, ["UPDATE 3"]);
}

/// I-45
pub(crate) async fn a_statement_takes_as_long_as_may(db: Db) {
    let mut admin = with_tables(&db).await;
    let mut acme = owner(&db, "acme").unwrap();
    acme.run("INSERT INTO notes SELECT n, 'x' FROM generate_series(1, 3000) n").await;
    let slow = "SELECT count(*) FROM notes a, notes b, notes c WHERE a.id + b.id + c.id = -1";
    admin.run("ALTER TENANT acme SET (statement_timeout = '150ms')").await;
    let ended = acme.try_run(slow).await.unwrap_err();
    assert_eq!(ended.sqlstate, "57014");
    assert!(ended.hint.unwrap().contains("statement_timeout = 150"));
    assert_eq!(acme.run("SELECT count(*) FROM notes").await, ["3000"], "others are as before");
    // A shorter time of the session's own is its own.
    acme.run("SET statement_timeout = 50").await;
    let ended = acme.try_run(slow).await.unwrap_err();
    assert_eq!((ended.sqlstate, ended.hint), ("57014", None));
}

async fn stored(client: &mut Client) -> u64 {
    client.run("SHOW TENANT acme").await[0].split('|').nth(3).unwrap().parse().unwrap()
}

/// I-45: at the limit − 1, at the limit, and one beyond.
pub(crate) async fn a_tenant_stores_as_much_as_may(db: Db) {
    let mut admin = with_tables(&db).await;
    let mut acme = owner(&db, "acme").unwrap();
    acme.run(&format!("INSERT INTO notes VALUES (1, '{}')", "x".repeat(1_000))).await;
    let bytes = stored(&mut admin).await;
    for (max, full) in [(bytes - 1, true), (bytes, true), (bytes + 1, false)] {
        admin.run(&format!("ALTER TENANT acme SET (max_bytes = {max})")).await;
        for write in ["INSERT INTO notes VALUES (2, 'y')", "UPDATE notes SET body = body WHERE id = 7"] {
            acme.run("BEGIN").await;
            let written = acme.try_run(write).await;
            assert_eq!(written.as_ref().err().map(|error| error.sqlstate), full.then_some("53100"), "{max}: {write}");
            if let Err(error) = written {
                assert!(error.hint.unwrap().contains(&format!("max_bytes = {max}")));
            }
            acme.run("ROLLBACK").await;
        }
    }
    admin.run(&format!("ALTER TENANT acme SET (max_bytes = {})", bytes + 500)).await;
    // A write may pass the limit, and then no other is let in; what only reads or deletes goes on.
    let long = "y".repeat(1_000);
    acme.run(&format!("INSERT INTO notes VALUES (2, '{long}')")).await;
    assert_eq!(acme.fails("INSERT INTO notes VALUES (3, 'z')").await, "53100");
    assert_eq!(acme.fails("INSERT INTO notes SELECT id + 10, body FROM notes").await, "53100");
    assert_eq!(acme.fails("COPY notes FROM STDIN").await, "53100");
    assert_eq!(acme.run("SELECT count(*) FROM notes").await, ["2"]);
    acme.run("BEGIN").await;
    acme.run("SELECT * FROM notes FOR UPDATE").await;
    acme.run("COMMIT").await;
    assert_eq!(acme.run("DELETE FROM notes WHERE id = 2").await, ["DELETE 1"]);
    acme.run("INSERT INTO notes VALUES (3, 'z')").await;
    // COPY is stopped between its batches.
    acme.run("DELETE FROM notes").await;
    let copied = acme.copy("COPY notes FROM STDIN", &line(4_000)).await;
    assert_eq!(copied.unwrap_err().sqlstate, "53100");
    assert_eq!(acme.run("SELECT count(*) FROM notes").await, ["0"]);
}

fn line(count: usize) -> String {
    (0..count).map(|n| format!("{n}\tbody of {n}\n")).collect()
}

pub(crate) async fn a_drop_waits_for_transactions_and_can_be_given_up(db: Db) {
    let mut admin = with_tables(&db).await;
    let mut acme = owner(&db, "acme").unwrap();
    acme.run("INSERT INTO notes VALUES (1, 'a'), (2, 'b')").await;
    acme.run("BEGIN").await;
    acme.run("INSERT INTO notes VALUES (3, 'c')").await;
    let cancel = admin.session.cancel_token();
    let dropping = tokio::spawn(async move {
        let ended = admin.try_run("DROP TENANT acme").await;
        (admin, ended)
    });
    let mut other = owner(&db, "acme").unwrap();
    // Soon nobody enters any more.
    let refused = loop {
        match other.try_run("SELECT count(*) FROM notes").await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.sqlstate, "55000");
    assert!(refused.message.contains("is being dropped"));
    assert_eq!(other.copy("COPY notes FROM STDIN", "9\tx\n").await.unwrap_err().sqlstate, "55000");
    assert_eq!(other.run("SELECT 1").await, ["1"], "what is not about its rows goes on");
    // The one that was inside holds it up, until the drop is given up; it stays marked.
    cancel.cancel();
    let (mut admin, ended) = dropping.await.unwrap();
    assert_eq!(ended.unwrap_err().sqlstate, "57014");
    assert_eq!(listed(&mut admin, "SHOW TENANTS").await, ["acme 2 dropping"]);
    assert_eq!(admin.fails("CREATE TENANT IF NOT EXISTS acme").await, "55000");
    assert_eq!(admin.fails("ALTER TENANT acme SET (max_rows = 1)").await, "55000");
    // Inside of it nothing can be done any more, and so it ends.
    assert_eq!(acme.fails("INSERT INTO notes VALUES (4, 'd')").await, "55000");
    assert_eq!(admin.run("DROP TENANT acme").await, ["DROP TENANT"]);
    assert!(admin.run("SHOW TENANTS").await.is_empty());
    acme.run("ROLLBACK").await;
    assert_eq!(acme.run("SELECT count(*) FROM notes").await, ["0"]);
}

/// I-6: a drop that a crash ended is seen, keeps everyone out, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_drop_goes_on_after_a_restart() {
    let db = Db::sqlite(2).await;
    let mut admin = with_tables(&db).await;
    let mut acme = owner(&db, "acme").unwrap();
    acme.run("INSERT INTO notes VALUES (1, 'a')").await;
    acme.run("BEGIN").await;
    acme.run("SELECT count(*) FROM notes").await;
    // The transaction is waited for until the statement's time is up, as if the process had died there.
    admin.run("SET statement_timeout = 50").await;
    assert_eq!(admin.fails("DROP TENANT acme").await, "57014");
    drop((admin, acme));
    let db = db.restart(2).await;
    let mut acme = owner(&db, "acme").unwrap();
    assert_eq!(acme.fails("SELECT count(*) FROM notes").await, "55000");
    let mut admin = db.client();
    assert_eq!(listed(&mut admin, "SHOW TENANTS").await, ["acme 1 dropping"]);
    admin.run("DROP TENANT acme").await;
    assert_eq!(acme.run("SELECT count(*) FROM notes").await, ["0"]);
}

/// I-59: each verb for each rank, on its own tenant and on another.
pub(crate) async fn roles_manage_and_see_what_is_theirs(db: Db) {
    let mut admin = with_tables(&db).await;
    for tenant in ["acme", "beta"] {
        admin.run(&format!("CREATE TENANT {tenant}")).await;
    }
    let mut owner = owner(&db, "acme").unwrap();
    let mut tenant = locked(&db, "acme");
    let verbs = |name: &str| {
        [
            format!("CREATE TENANT IF NOT EXISTS {name}"),
            format!("ALTER TENANT {name} SET (max_rows = 5)"),
            format!("DROP TENANT {name}"),
        ]
    };
    for sql in ["acme", "beta", "nobody"].iter().flat_map(|name| verbs(name)) {
        assert_eq!(owner.fails(&sql).await, "42501", "{sql}");
        assert_eq!(tenant.fails(&sql).await, "42501", "{sql}");
    }
    for sql in ["SHOW TENANTS", "SHOW TENANTS LIKE 'acme'", "SHOW TENANT beta", "SHOW TENANT nobody"] {
        assert_eq!(tenant.fails(sql).await, "42501", "{sql}");
    }
    for sql in ["SHOW TENANTS", "SHOW TENANT acme", "SHOW TENANT beta"] {
        owner.run(sql).await;
    }
    assert!(owner.run("SHOW TENANT acme").await[0].starts_with("acme|s"));
    assert!(tenant.run("SHOW TENANT acme").await[0].starts_with("acme|∅|"), "it does not see shards");
    assert_eq!(listed(&mut admin, "SHOW TENANTS").await, ["acme 0 active", "beta 0 active"]);
}

/// A page of the list is bounded: more tenants than a page of a shard has come in order, each once.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_tenants_are_listed_in_order() {
    let db = Db::sqlite(3).await;
    let mut client = with_tables(&db).await;
    let mut expected = Vec::new();
    for n in 0..1_700 {
        let name = format!("t{n:04}");
        match n % 5 {
            0 => drop(client.run(&format!("CREATE TENANT {name}")).await),
            _ => {
                client.run(&format!("SET isles.tenant = '{name}'")).await;
                client.run("INSERT INTO notes VALUES (1, 'x')").await;
            }
        }
        expected.push(name);
    }
    let lines = client.run("SHOW TENANTS").await;
    let names: Vec<&str> = lines.iter().map(|line| line.split('|').next().unwrap()).collect();
    assert_eq!(names, expected);
}

/// What tenants do is counted, under at most so many names.
#[tokio::test(flavor = "multi_thread")]
async fn what_tenants_do_is_counted() {
    let db = Db::sqlite(1).await;
    with_tables(&db).await;
    for (tenant, statements) in [("a", 5), ("b", 3), ("c", 2), ("d", 1)] {
        let mut client = owner(&db, tenant).unwrap();
        client.run("INSERT INTO notes VALUES (1, 'x'), (2, 'y')").await;
        for _ in 1..statements {
            client.run("SELECT * FROM notes").await;
        }
        client.fails("SELECT 1 / 0 FROM notes").await;
    }
    let works = db.database.tenant_work(2);
    let shown: Vec<String> = works
        .shown
        .iter()
        .map(|(name, work)| {
            let name = name.as_ref().map_or("", |name| name.as_str());
            format!("{name}: {} {} {}", work.statements, work.errors, work.rows)
        })
        .collect();
    assert_eq!(shown, ["a: 6 1 10", "b: 4 1 6"]);
    let other = works.other;
    assert_eq!((other.statements, other.errors, other.rows), (5, 2, 6));
    assert!(other.micros > 0);
}
