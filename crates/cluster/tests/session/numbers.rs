//! Numbers of tenant tables' sequences: each tenant's are as if it were alone; on both engines.

use crate::harness::{Client, Db};
use crate::postgres::{server, urls};
use isles_cluster::database::Config;
use isles_cluster::roles::{Role, TENANT_LOCKED};

const TABLES: [&str; 3] = [
    "CREATE TABLE notes (id serial PRIMARY KEY, body text) WITH (kind = 'tenant')",
    "CREATE TABLE labels (id bigint GENERATED ALWAYS AS IDENTITY (START 10 INCREMENT 5) PRIMARY KEY, name text) \
     WITH (kind = 'tenant')",
    "CREATE TABLE items (id serial PRIMARY KEY, name text)",
];
const ACME: &str = "SET isles.tenant = 'acme'";
const BOREALIS: &str = "SET isles.tenant = 'borealis'";
const NULL: &str = "SET isles.null_tenant = on";
const NOTE: &str = "INSERT INTO notes (body) VALUES ('x') RETURNING id";
const LABEL: &str = "INSERT INTO labels (name) VALUES ('x') RETURNING id";

async fn with_tables(db: &Db) -> Client {
    let mut client = db.client();
    for sql in TABLES {
        client.run(sql).await;
    }
    client
}

async fn on_both_engines(check: impl AsyncFn(&Db)) {
    check(&Db::sqlite(2).await).await;
    let server = server();
    check(&Db::postgres(urls(&server, 2)).await).await;
}

fn locked(db: &Db, tenant: &str) -> Client {
    let settings = [(TENANT_LOCKED.into(), "on".into()), ("isles.tenant".into(), tenant.into())];
    db.client_as(Role { settings: settings.into(), ..Role::default() }, &[]).expect("a session")
}

/// I-41: a tenant's ids are dense whatever its neighbours write, and tell nothing of them.
#[tokio::test(flavor = "multi_thread")]
async fn each_tenant_counts_from_the_beginning_and_without_gaps() {
    on_both_engines(async |db| {
        let mut client = with_tables(db).await;
        client.run(ACME).await;
        client.run("INSERT INTO notes (body) SELECT 'x' FROM generate_series(1, 300)").await;
        for other in [BOREALIS, NULL] {
            client.run(other).await;
            for id in ["1", "2", "3"] {
                assert_eq!(client.run(NOTE).await, [id], "{other}");
            }
            assert_eq!(client.run(LABEL).await, ["10"]);
            assert_eq!(client.run(LABEL).await, ["15"]);
        }
        client.run(ACME).await;
        assert_eq!(client.run(NOTE).await, ["301"]);
        assert_eq!(client.copy("COPY labels (name) FROM STDIN", "a\nb\n").await.expect("it is read"), "COPY 2");
        assert_eq!(client.run("SELECT id FROM labels ORDER BY id").await, ["10", "15"]);
    })
    .await;
}

/// Numbers go on where each tenant stood.
#[tokio::test(flavor = "multi_thread")]
async fn each_tenant_goes_on_after_a_restart() {
    let server = server();
    let urls = urls(&server, 2);
    for (db, urls) in [(Db::sqlite(2).await, None), (Db::postgres(urls.clone()).await, Some(urls))] {
        let mut client = with_tables(&db).await;
        for (tenant, ids) in [(ACME, 3), (BOREALIS, 1)] {
            client.run(tenant).await;
            for _ in 0..ids {
                client.run(NOTE).await;
            }
        }
        client.session.close().await;
        let config = match urls {
            None => Config::sqlite(db.folder.path(), 2),
            Some(urls) => Config::postgres(db.folder.path(), urls),
        };
        let db = db.reopen(&config).await;
        let mut client = db.client();
        for (tenant, id) in [(ACME, "4"), (BOREALIS, "2"), (NULL, "1")] {
            client.run(tenant).await;
            assert_eq!(client.run(NOTE).await, [id], "{tenant}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tenant_sets_is_its_own() {
    on_both_engines(async |db| {
        let mut client = with_tables(db).await;
        client.run(ACME).await;
        assert_eq!(client.run("SELECT setval('notes_id_seq', 100)").await, ["100"]);
        assert_eq!(client.run(NOTE).await, ["101"]);
        assert_eq!(client.run("SELECT lastval()").await, ["101"]);
        client.run(BOREALIS).await;
        // What the session drew for another tenant is not this one's.
        assert_eq!(client.fails("SELECT lastval()").await, "55000");
        assert_eq!(client.fails("SELECT currval('notes_id_seq')").await, "55000");
        assert_eq!(client.run(NOTE).await, ["1"]);
        assert_eq!(client.run("SELECT currval('notes_id_seq')").await, ["1"]);
        client.run(ACME).await;
        assert_eq!(client.run("SELECT currval('notes_id_seq')").await, ["101"]);
        client.run("RESET isles.tenant").await;
        let error = client.try_run("SELECT nextval('notes_id_seq')").await.expect_err("no tenant");
        assert!(error.sqlstate == "55000" && error.hint.is_some(), "{error:?}");
        // One that no tenant table owns is everyone's.
        client.run("INSERT INTO items (name) VALUES ('x')").await;
        client.run(ACME).await;
        assert_eq!(client.run("INSERT INTO items (name) VALUES ('x') RETURNING id").await, ["2"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_is_changed_for_all_tenants_or_for_one() {
    on_both_engines(async |db| {
        let mut client = with_tables(db).await;
        for tenant in [ACME, BOREALIS] {
            client.run(tenant).await;
            client.run("INSERT INTO notes (body) VALUES ('a'), ('b')").await;
        }
        // One tenant's rows, and its numbers.
        client.run("BEGIN").await;
        client.run("TRUNCATE notes RESTART IDENTITY").await;
        assert_eq!(client.run(NOTE).await, ["1"]);
        client.run("ROLLBACK").await;
        assert_eq!(client.run(NOTE).await, ["3"]);
        client.run("TRUNCATE notes RESTART IDENTITY").await;
        assert_eq!(client.run(NOTE).await, ["1"]);
        client.run(ACME).await;
        assert_eq!(client.run(NOTE).await, ["3"]);
        // Under another name each goes on.
        client.run("ALTER SEQUENCE notes_id_seq RENAME TO note_ids").await;
        client.run("ALTER SEQUENCE note_ids INCREMENT 10").await;
        let third: i64 = client.run(NOTE).await[0].parse().expect("a number");
        assert!(third > 3, "{third}");
        client.run(BOREALIS).await;
        let second: i64 = client.run(NOTE).await[0].parse().expect("a number");
        assert!(second > 1, "{second}");
        // Within a transaction that changes it, a tenant draws its own.
        client.run("BEGIN").await;
        client.run("ALTER SEQUENCE note_ids INCREMENT 1 RESTART 1000").await;
        assert_eq!(client.run(NOTE).await, ["1000"]);
        client.run("COMMIT").await;
        assert_eq!(client.run(NOTE).await, ["1001"]);
        for tenant in [ACME, NULL] {
            client.run(tenant).await;
            assert_eq!(client.run(NOTE).await, ["1000"], "{tenant}");
        }
        client.run(ACME).await;
        client.run("SELECT setval('note_ids', 5000)").await;
        // Whoever shares it from now on gets nobody's number again.
        client.run("ALTER SEQUENCE note_ids OWNED BY NONE").await;
        for tenant in [BOREALIS, ACME] {
            client.run(tenant).await;
            let id: i64 = client.run(NOTE).await[0].parse().expect("a number");
            assert!(id > 5000, "{id}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_is_made_again_begins_again() {
    on_both_engines(async |db| {
        let mut client = with_tables(db).await;
        for tenant in [ACME, BOREALIS] {
            client.run(tenant).await;
            client.run("INSERT INTO notes (body) VALUES ('a'), ('b')").await;
        }
        client.run("DROP TENANT acme").await;
        assert_eq!(client.run(NOTE).await, ["3"]);
        client.run(ACME).await;
        assert_eq!(client.run(NOTE).await, ["1"]);
        // So does a table.
        client.run("DROP TABLE notes").await;
        client.run(TABLES[0]).await;
        for tenant in [ACME, BOREALIS] {
            client.run(tenant).await;
            assert_eq!(client.run(NOTE).await, ["1"], "{tenant}");
        }
    })
    .await;
}

/// A table with rows becomes a tenant table: no tenant is given a number that one of its rows has.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_becomes_a_tenant_table_repeats_no_number() {
    on_both_engines(async |db| {
        let mut client = db.client();
        client.run("CREATE TABLE old (id serial PRIMARY KEY, owner text)").await;
        client.run("INSERT INTO old (owner) VALUES ('acme'), ('acme'), ('borealis'), (NULL)").await;
        client.run("ALTER TABLE old SET (kind = 'tenant', tenant_by = 'owner')").await;
        let insert = "INSERT INTO old (owner) VALUES ('x') RETURNING id";
        let mut first = Vec::new();
        for tenant in [ACME, BOREALIS, NULL] {
            client.run(tenant).await;
            first.extend(client.run(insert).await);
        }
        assert!(first[0].parse::<i64>().is_ok_and(|id| id > 4), "{first:?}");
        assert!(first.iter().all(|id| *id == first[0]), "each by itself: {first:?}");
    })
    .await;
}

/// I-41: a role that is locked to a tenant touches no sequence of others, nor the position of its own.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_locked_to_a_tenant_sets_no_sequence() {
    on_both_engines(async |db| {
        let mut owner = with_tables(db).await;
        owner.run("CREATE SEQUENCE tickets").await;
        owner
            .run("CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT nextval('tickets')) WITH (kind = 'tenant')")
            .await;
        let mut acme = locked(db, "acme");
        for sql in [
            "SELECT setval('notes_id_seq', 1)",
            "SELECT setval('notes_id_seq', 1, false)",
            "SELECT setval('items_id_seq', 1)",
            "SELECT setval('tickets', 1)",
            "SELECT nextval('items_id_seq')",
            "SELECT nextval('items_id' || '_seq')",
            "TRUNCATE notes RESTART IDENTITY",
            "ALTER SEQUENCE notes_id_seq RESTART",
            "ALTER TABLE notes ALTER COLUMN id RESTART",
            "SELECT 1 + (SELECT setval('notes_id_seq', 1))",
            "INSERT INTO notes (id) VALUES (setval('notes_id_seq', 1))",
        ] {
            let error = acme.try_run(sql).await.expect_err(sql);
            assert!(["42501", "42P01", "0A000"].contains(&error.sqlstate), "{sql}: {error}");
        }
        assert_eq!(acme.run(NOTE).await, ["1"]);
        assert_eq!(acme.run("SELECT nextval('notes_id_seq')").await, ["2"]);
        assert_eq!(acme.run("SELECT nextval('tickets')").await, ["1"]);
        assert_eq!(acme.run("INSERT INTO orders DEFAULT VALUES RETURNING id").await, ["2"]);
        owner.run(BOREALIS).await;
        assert_eq!(owner.run(NOTE).await, ["1"]);
        assert_eq!(owner.run("INSERT INTO items (name) VALUES ('x') RETURNING id").await, ["1"]);
    })
    .await;
}

/// A tenant that empties its tables keeps nobody waiting, also if it goes to sleep over it.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_truncates_holds_up_no_other() {
    let server = server();
    let db = Db::postgres(urls(&server, 2)).await;
    let mut owner = with_tables(&db).await;
    let mut acme = locked(&db, "acme");
    acme.run(NOTE).await;
    acme.run("BEGIN").await;
    acme.run("TRUNCATE notes").await;
    owner.run(BOREALIS).await;
    owner.run("SET lock_timeout = '2s'").await;
    assert_eq!(owner.run(NOTE).await, ["1"]);
    acme.run("COMMIT").await;
    assert_eq!(acme.run("SELECT count(*) FROM notes").await, ["0"]);
}

/// Whoever reads the rows of all tenants does nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn in_the_scope_of_all_tenants_no_number_is_drawn() {
    on_both_engines(async |db| {
        let mut client = with_tables(db).await;
        client.run("SET isles.tenant_scope = 'all'").await;
        for sql in [
            "SELECT nextval('notes_id_seq')",
            "SELECT setval('notes_id_seq', 9)",
            "SELECT nextval('items_id_seq')",
            "SELECT setval('items_id_seq', 9)",
        ] {
            assert_eq!(client.fails(sql).await, "25006", "{sql}");
        }
        client.run("RESET isles.tenant_scope").await;
        assert_eq!(client.run("SELECT nextval('items_id_seq')").await, ["1"]);
    })
    .await;
}
