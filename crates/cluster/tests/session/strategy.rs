//! Strategies for a whole database: tenants that share shards, and tenants that have one each.

use crate::harness::{Client, Db};
use crate::postgres::{server, urls};
use crate::worlds::{Pair, World, close, open, shard, try_open};
use isles_cluster::database::{Config, Strategy};
use isles_engine::shard::{ActsFor, Engine, Request, Statement};
use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use isles_kernel::schema::tenant_view;
use isles_kernel::value::{DataType, Value};
use isles_sim::sqlgen::{Generator, Kind, TABLES};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn with(config: &Config, strategy: impl Into<Option<Strategy>>) -> Config {
    Config { strategy: strategy.into(), ..config.clone() }
}

async fn refused(config: Config) -> SqlError {
    match try_open(&config).await {
        Ok(_) => panic!("it opens"),
        Err(error) => error,
    }
}

async fn of_tenant(db: &Db, name: &str) -> Client {
    let mut client = db.client();
    client.run(&format!("SET isles.tenant = '{name}'")).await;
    client
}

/// Shards and their tenants.
async fn owners(db: &Db) -> Vec<String> {
    let lines = db.client().run("SHOW SHARDS").await;
    let pair = |line: &String| {
        let parts: Vec<&str> = line.split('|').collect();
        format!("{} {}", parts[0], parts[3])
    };
    lines.iter().map(pair).collect()
}

const NOTES: &str = "CREATE TABLE notes (id int PRIMARY KEY, body text) WITH (kind = 'tenant')";

/// I-44: a database keeps its strategy over restarts, and who says otherwise does not start, both ways.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_configured_otherwise_does_not_start() {
    for world in World::both() {
        for (made, is, other) in [
            (None, Strategy::Row, Strategy::Adapter),
            (Some(Strategy::Row), Strategy::Row, Strategy::Adapter),
            (Some(Strategy::Adapter), Strategy::Adapter, Strategy::Row),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let config = world.config(folder.path(), 2);
            for start in [made, None, Some(is)] {
                let db = open(&with(&config, start)).await;
                assert_eq!(db.client().run("SHOW isles.strategy").await, vec![is.name()]);
                assert_eq!(db.client().fails("SET isles.strategy = 'row'").await, "55P02");
                close(db).await;
                let error = refused(with(&config, other)).await;
                assert_eq!(error.sqlstate, "55000");
                assert!(error.message.contains(is.name()) && error.message.contains(other.name()), "{error}");
                assert!(error.hint.is_some_and(|hint| hint.contains(is.name())));
            }
        }
    }
}

/// I-44: tenants get the first shards that nobody has, each its own, and keep them; then there are none left.
#[tokio::test(flavor = "multi_thread")]
async fn each_tenant_has_a_shard_of_its_own() {
    for world in World::both() {
        let folder = tempfile::tempdir().unwrap();
        let config = with(&world.config(folder.path(), 3), Strategy::Adapter);
        let db = open(&config).await;
        db.client().run(NOTES).await;
        assert_eq!(owners(&db).await, ["s0 ∅", "s1 ∅", "s2 ∅"]);
        let mut names = vec![];
        for name in ["zoe", "acme", "Ünïcode, 'quoted'"] {
            let quoted = name.replace('\'', "''");
            let mut client = of_tenant(&db, &quoted).await;
            client.run(&format!("INSERT INTO notes VALUES (1, '{quoted}')")).await;
            names.push(name);
        }
        let expected = ["s0 zoe", "s1 acme", "s2 Ünïcode, 'quoted'"];
        assert_eq!(owners(&db).await, expected);
        let mut late = of_tenant(&db, "late").await;
        for sql in ["INSERT INTO notes VALUES (1, 'x')", "SELECT count(*) FROM notes"] {
            let error = late.try_run(sql).await.unwrap_err();
            assert_eq!(error.sqlstate, "53000", "{error}");
            assert!(error.hint.is_some_and(|hint| hint.contains("more shards")));
        }
        let mut nobody = db.client();
        nobody.run("SET isles.null_tenant = on").await;
        let error = nobody.try_run("SELECT count(*) FROM notes").await.unwrap_err();
        assert_eq!((error.sqlstate, error.hint.is_some()), ("55000", true), "{error}");
        assert_eq!(db.client().fails("SELECT count(*) FROM notes").await, "55000");
        drop((late, nobody));
        close(db).await;
        let db = open(&with(&config, None)).await;
        assert_eq!(owners(&db).await, expected);
        for name in &names {
            let mut client = of_tenant(&db, &name.replace('\'', "''")).await;
            assert_eq!(client.run("SELECT id, body FROM notes").await, vec![format!("1|{name}")]);
            // What can match nothing is asked somewhere, too.
            assert_eq!(client.run("SELECT count(*) FROM notes WHERE false").await, ["0"]);
        }
        close(db).await;
        check_traces(&config, &names).await;
    }
}

/// Each shard has its tenant's row and no other, under its name.
async fn check_traces(config: &Config, names: &[&str]) {
    for (at, name) in names.iter().enumerate() {
        let shard = shard(config, at).await;
        let table = match shard.engine() {
            Engine::Sqlite => format!("\"{}\"", tenant_view("notes")),
            Engine::Postgres => "notes".into(),
        };
        let sql = format!("SELECT _tenant, _shard FROM {table}");
        let statement = Statement::new(sql, vec![]).returning(vec![DataType::Text, DataType::Text]);
        let request = Request::read(Default::default(), statement);
        let own = request.clone().acting_for(ActsFor::Tenant(Some(TenantId::new(*name).unwrap())));
        let rows = shard.execute(own).await.unwrap().remove(0).rows;
        assert_eq!(rows, [[Value::text(*name), Value::text(*name)]]);
        for other in names.iter().filter(|other| *other != name) {
            let theirs = request.clone().acting_for(ActsFor::Tenant(Some(TenantId::new(*other).unwrap())));
            let error = shard.execute(theirs).await.unwrap_err().for_people();
            assert_eq!((error.sqlstate, error.message.as_str()), ("XX000", "the shard belongs to another tenant"));
        }
        shard.close().await.unwrap();
    }
}

/// I-44: many sessions use one tenant at once for the first time, and many tenants: one shard each, and no two one.
#[tokio::test(flavor = "multi_thread")]
async fn first_uses_at_once_bind_one_shard_for_each_tenant() {
    for world in World::both() {
        let folder = tempfile::tempdir().unwrap();
        let db = open(&with(&world.config(folder.path(), 5), Strategy::Adapter)).await;
        db.client().run(NOTES).await;
        let uses = async |names: &[&str]| {
            let mut jobs = Vec::new();
            for n in 0..12 {
                let mut client = of_tenant(&db, names[n % names.len()]).await;
                jobs.push(tokio::spawn(async move {
                    client.run(&format!("INSERT INTO notes VALUES ({n}, 'x')")).await;
                }));
            }
            for job in jobs {
                job.await.expect("every one is served");
            }
        };
        uses(&["one"]).await;
        assert_eq!(owners(&db).await, ["s0 one", "s1 ∅", "s2 ∅", "s3 ∅", "s4 ∅"]);
        uses(&["a", "b", "c", "d"]).await;
        let bound: BTreeSet<String> = owners(&db).await.iter().map(|pair| pair[3..].to_string()).collect();
        assert_eq!(bound, ["a", "b", "c", "d", "one"].map(String::from).into());
        for (name, count) in [("one", "12"), ("a", "3"), ("b", "3"), ("c", "3"), ("d", "3")] {
            assert_eq!(of_tenant(&db, name).await.run("SELECT count(*) FROM notes").await, [count]);
        }
        close(db).await;
    }
}

/// Tables that are no tenant's are spread over all shards, and a tenant's session uses them with its own.
#[tokio::test(flavor = "multi_thread")]
async fn hash_and_reference_tables_are_everywhere() {
    for world in World::both() {
        let folder = tempfile::tempdir().unwrap();
        let db = open(&with(&world.config(folder.path(), 3), Strategy::Adapter)).await;
        let mut owner = db.client();
        owner.run(NOTES).await;
        owner.run("CREATE TABLE users (id int PRIMARY KEY, name text)").await;
        owner.run("CREATE TABLE plans (id int PRIMARY KEY, name text) WITH (kind = 'reference')").await;
        let (mut acme, mut beta) = (of_tenant(&db, "acme").await, of_tenant(&db, "beta").await);
        for client in [&mut acme, &mut beta] {
            client.run("INSERT INTO notes VALUES (1, 'own'), (2, 'more')").await;
        }
        let values: Vec<String> = (0..30).map(|n| format!("({n}, 'u{n}')")).collect();
        acme.run(&format!("INSERT INTO users VALUES {}", values.join(", "))).await;
        acme.run("INSERT INTO plans VALUES (1, 'free'), (2, 'paid')").await;
        for client in [&mut acme, &mut beta, &mut owner] {
            assert_eq!(client.run("SELECT count(*) FROM users").await, ["30"]);
            assert_eq!(client.run("SELECT name FROM plans ORDER BY id").await, ["free", "paid"]);
        }
        let joined =
            "SELECT n.id, p.name, u.name FROM notes n JOIN plans p USING (id) JOIN users u USING (id) ORDER BY 1";
        assert_eq!(beta.run(joined).await, ["1|free|u1", "2|paid|u2"]);
        beta.run("BEGIN").await;
        beta.run("UPDATE users SET name = 'x' WHERE id < 20").await;
        beta.run("UPDATE notes SET body = 'x'").await;
        beta.run("UPDATE plans SET name = 'x' WHERE id = 1").await;
        beta.run("COMMIT").await;
        assert_eq!(acme.run("SELECT count(*) FROM users WHERE name = 'x'").await, ["20"]);
        assert_eq!(acme.run("SELECT body FROM notes ORDER BY id").await, ["own", "more"]);
        assert_eq!(beta.run("SELECT body FROM notes").await, ["x", "x"]);
        beta.run("ALTER TABLE notes ADD COLUMN extra int DEFAULT 7").await;
        assert_eq!(acme.run("SELECT extra FROM notes").await, ["7", "7"]);
        close(db).await;
    }
}

/// A transaction that holds a shard when that becomes its tenant's begins again, and then it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_use_late_in_a_transaction_is_tried_again() {
    for world in World::both() {
        let folder = tempfile::tempdir().unwrap();
        let db = open(&with(&world.config(folder.path(), 2), Strategy::Adapter)).await;
        let mut client = of_tenant(&db, "acme").await;
        client.run(NOTES).await;
        client.run("CREATE TABLE plans (id int PRIMARY KEY) WITH (kind = 'reference')").await;
        let (mut refusals, begun) = (0, Instant::now());
        let done = loop {
            client.run("BEGIN").await;
            // On every shard.
            client.run("INSERT INTO plans VALUES (1)").await;
            match client.try_run("INSERT INTO notes VALUES (1, 'late')").await {
                Ok(done) => break done,
                Err(error) => assert_eq!(error.sqlstate, "40001", "{error}"),
            }
            client.run("ROLLBACK").await;
            refusals += 1;
            assert!(begun.elapsed() < PATIENCE, "it is never done");
            // The shard is told meanwhile.
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert_eq!((done, refusals > 0), (vec!["INSERT 0 1".to_string()], true));
        client.run("COMMIT").await;
        assert_eq!(owners(&db).await, ["s0 acme", "s1 ∅"]);
        assert_eq!(client.run("SELECT body FROM notes").await, ["late"]);
        close(db).await;
    }
}

/// I-44: shards in each other's place are not opened, and the operator is told whose they are.
#[tokio::test(flavor = "multi_thread")]
async fn shards_that_have_changed_places_are_not_opened() {
    for world in World::both() {
        let folder = tempfile::tempdir().unwrap();
        let config = with(&world.config(folder.path(), 3), Strategy::Adapter);
        let db = open(&config).await;
        db.client().run(NOTES).await;
        for name in ["acme", "beta"] {
            of_tenant(&db, name).await.run("INSERT INTO notes VALUES (1, 'own')").await;
        }
        close(db).await;
        // With another tenant's, and with one that nobody has: that one is not made its tenant's.
        for (a, b, told) in [(0, 1, ["acme", "beta"]), (1, 2, ["beta", "nobody"])] {
            let error = refused(swap(&config, a, b)).await;
            assert_eq!(error.sqlstate, "55000", "{error}");
            assert!(told.iter().all(|name| error.message.contains(name)), "{error}");
            assert!(error.hint.is_some());
            swap(&config, a, b);
        }
        let db = open(&config).await;
        assert_eq!(of_tenant(&db, "beta").await.run("SELECT body FROM notes").await, ["own"]);
        close(db).await;
    }
}

/// Puts two shards in each other's place. SQLite's files are changed, PostgreSQL's addresses are.
fn swap(config: &Config, a: usize, b: usize) -> Config {
    let mut swapped = config.clone();
    swapped.shards.swap(a, b);
    if matches!(config.shards[a], isles_cluster::database::ShardPlace::Sqlite) {
        let place = |n: usize| config.folder.join(format!("s{n}"));
        let aside = config.folder.join("aside");
        std::fs::rename(place(a), &aside).unwrap();
        std::fs::rename(place(b), place(a)).unwrap();
        std::fs::rename(&aside, place(b)).unwrap();
    }
    swapped
}

/// I-44: a shard of one strategy is not opened by a database of the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_of_the_other_strategy_is_not_opened() {
    let (row, adapter) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let row_config = Config::sqlite(row.path(), 1);
    let adapter_config = with(&Config::sqlite(adapter.path(), 1), Strategy::Adapter);
    for config in [&row_config, &adapter_config] {
        let db = open(config).await;
        db.client().run(NOTES).await;
        of_tenant(&db, "acme").await.run("INSERT INTO notes VALUES (1, 'own')").await;
        close(db).await;
    }
    let aside = row.path().join("aside");
    std::fs::rename(row.path().join("s0"), &aside).unwrap();
    std::fs::rename(adapter.path().join("s0"), row.path().join("s0")).unwrap();
    let error = refused(row_config).await;
    assert!(error.sqlstate == "55000" && error.message.contains("strategy"), "{error}");
    std::fs::rename(&aside, adapter.path().join("s0")).unwrap();
    let error = refused(adapter_config.clone()).await;
    assert!(error.sqlstate == "55000" && error.message.contains("acme"), "{error}");
    // An empty file is not its shard either.
    std::fs::remove_dir_all(adapter.path().join("s0")).unwrap();
    let error = refused(adapter_config).await;
    assert!(error.sqlstate == "55000" && error.message.contains("acme"), "{error}");
}

/// I-41, I-44: a server that is suddenly another's, behind the same address, is noticed in the transaction; and whose it
/// is, is not said.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_become_another_tenants_is_noticed_at_once() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let urls = urls(&server, 1);
    let db = open(&with(&Config::postgres(folder.path(), urls.clone()), Strategy::Adapter)).await;
    let mut client = of_tenant(&db, "acme").await;
    client.run(NOTES).await;
    client.run("INSERT INTO notes VALUES (1, 'own')").await;
    let (admin, connection) = tokio_postgres::connect(&urls[0], tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    admin.batch_execute("UPDATE _isles.meta SET bound = 'secretive'").await.unwrap();
    for sql in ["SELECT body FROM notes", "INSERT INTO notes VALUES (2, 'x')", "DELETE FROM notes"] {
        for block in [false, true] {
            if block {
                client.run("BEGIN").await;
            }
            let error = client.try_run(sql).await.unwrap_err();
            assert_eq!((error.sqlstate, error.message.as_str()), ("XX000", "the shard belongs to another tenant"));
            assert!(!format!("{error:?}").contains("secretive"));
            if block {
                client.run("ROLLBACK").await;
            }
        }
    }
    admin.batch_execute("UPDATE _isles.meta SET bound = 'acme'").await.unwrap();
    assert_eq!(client.run("SELECT body FROM notes").await, ["own"]);
    close(db).await;
}

/// I-41, I-44: whether tenants share shards or not, each sees the same.
#[tokio::test(flavor = "multi_thread")]
async fn both_strategies_answer_alike() {
    for (world, steps) in World::both().into_iter().zip([500, 150]) {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let row = open(&with(&world.config(folders[0].path(), 3), Strategy::Row)).await;
        let adapter = open(&with(&world.config(folders[1].path(), 3), Strategy::Adapter)).await;
        let tables = Generator::over([Kind::Tenant; TABLES], 41);
        for db in [&row, &adapter] {
            for table in tables.tables() {
                db.client().run(&table.create().0).await;
            }
        }
        let mut pairs = Vec::new();
        for (n, name) in (0..).zip(["acme", "Acme", "beta"]) {
            let (row, adapter) = (of_tenant(&row, name).await, of_tenant(&adapter, name).await);
            let mut pair = Pair { one: row, other: adapter, generator: tables.beside(410 + n) };
            for sql in tables.beside(41).fill() {
                pair.one.run(&sql).await;
                pair.other.run(&sql).await;
            }
            pairs.push(pair);
        }
        let mut rows = 0;
        for step in 0..steps {
            rows += pairs[step % 3].step().await;
        }
        assert!(rows * 5 > steps, "{rows} answers with rows say little");
        assert_eq!(owners(&adapter).await, ["s0 acme", "s1 Acme", "s2 beta"]);
        close(row).await;
        close(adapter).await;
    }
}
