//! Shards that come and go while the database is used.

use crate::harness::{Client, env};
use crate::world::{Pair, World, buckets, by_itself, shard, tenants};
use isles_cluster::catalog::{Catalog, Key, SqliteCatalog, Transaction};
use isles_cluster::database::{NewShard, ShardPlace};
use isles_cluster::moves::moves::{Event, Options, Phase, Stage, Units};
use isles_kernel::names::ShardId;
use isles_kernel::routing::{RoutingChange, RoutingMove, RoutingPolicy};
use isles_kernel::schema::{GLOBAL_GROUP, global_bucket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// A place for another shard: of the engine that the pair goes to.
async fn place(world: &World) -> ShardPlace {
    match world.pair {
        Pair::Sqlite => ShardPlace::Sqlite,
        Pair::Postgres | Pair::SqliteToPostgres => {
            let url = tokio::task::spawn_blocking(|| isles_sim::pgserver::shared().create_database());
            ShardPlace::Postgres { url: url.await.unwrap() }
        }
    }
}

pub(crate) async fn add(world: &World) -> ShardId {
    let place = place(world).await;
    world.database().add_shard(NewShard { name: None, place, region: None }).await.unwrap()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} does not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn serves(world: &World, name: &ShardId) -> bool {
    let policy = world.database().current_routing();
    let has_buckets = policy.groups().any(|(_, ranges)| ranges.iter().any(|range| range.shard == *name));
    has_buckets || policy.pins().any(|(_, owner)| owner == name)
}

pub(crate) async fn until_drained(world: &World, name: &ShardId) {
    until("the end of the drain", || !serves(world, name)).await;
    let deadline = Instant::now() + LIMIT;
    while world.database().moves().await.unwrap().iter().any(|plan| plan.is_active()) {
        assert!(Instant::now() < deadline, "plans do not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A new shard has every table and the rows of reference tables, new tables are spread over it, tenants move to it, and
/// all of it is there after a restart with the configuration that the database was made with.
pub(crate) async fn a_shard_comes_and_takes_part(world: World) {
    let mut client = world.db.client();
    client
        .run("CREATE TABLE codes (id int PRIMARY KEY, next int REFERENCES codes (id)) WITH (kind = 'reference')")
        .await;
    client.run("CREATE VIEW named AS SELECT name FROM plans").await;
    client
        .run("CREATE TABLE mine (id serial PRIMARY KEY, plan int REFERENCES plans (id)) WITH (kind = 'tenant')")
        .await;
    for n in 0..50 {
        client.run(&format!("INSERT INTO plans VALUES ({n}, 'plan {n}')")).await;
        client.run(&format!("INSERT INTO codes VALUES ({n}, {n})")).await;
    }
    let name = world.tenant_with_rows("acme", 30).await;
    let before = world.rows_of(&name).await;
    assert_eq!(add(&world).await, shard(2));
    assert_eq!((world.stored_on(2, "plans").await, world.stored_on(2, "codes").await), (50, 50));
    assert_eq!((world.stored_on(2, "notes").await, world.consumers_on(0).await), (0, 0));
    client.run("INSERT INTO plans VALUES (100, 'late')").await;
    assert_eq!(world.stored_on(2, "plans").await, 51);
    client.run("CREATE TABLE later (id bigint PRIMARY KEY)").await;
    client.run("INSERT INTO later SELECT generate_series(1, 300)").await;
    assert!(world.stored_on(2, "later").await > 50);
    world.move_wholly(2, tenants(&[&name])).await;
    assert_eq!((world.shard_of(&name).await.as_str(), world.rows_of(&name).await), ("s2", before.clone()));
    let mut tenant = world.client_of(&name).await;
    tenant.run("INSERT INTO mine (plan) VALUES (100)").await;
    assert_eq!(tenant.fails("INSERT INTO mine (plan) VALUES (101)").await, "23503");
    drop((client, tenant));
    let world = world.restart().await;
    assert_eq!((world.shard_of(&name).await.as_str(), world.rows_of(&name).await), ("s2", before));
    let mut client = world.db.client();
    assert_eq!(client.run("SELECT count(*) FROM later").await, ["300"]);
    assert_eq!(client.run("SELECT count(*) FROM named").await, ["51"]);
    drop(client);
    let world = world.reopen_with(|config| config.only_if_new = true).await;
    assert_eq!(world.database().shard_names().len(), 3);
}

/// Rows of reference tables that are written, changed and deleted while a shard comes are the same on all afterwards.
pub(crate) async fn a_shard_comes_while_reference_tables_change(world: World) {
    let mut client = world.db.client();
    client.run("INSERT INTO plans SELECT n, 'plan' FROM generate_series(1, 3000) n").await;
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
    let writer = {
        let (stop, done) = (stop.clone(), done.clone());
        tokio::spawn(async move {
            for n in 0.. {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let id = n % 3_000 + 1;
                client.run(&format!("UPDATE plans SET name = 'round {n}' WHERE id = {id}")).await;
                client.run(&format!("DELETE FROM plans WHERE id = {}", (n * 7) % 3_000 + 1)).await;
                client.run(&format!("INSERT INTO plans VALUES ({}, 'new')", 10_000 + n)).await;
                done.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    until("a writer's first row", || done.load(Ordering::SeqCst) > 3).await;
    let seen = done.load(Ordering::SeqCst);
    add(&world).await;
    add(&world).await;
    assert!(done.load(Ordering::SeqCst) > seen, "the writer came to work meanwhile");
    until("more of the writer's", || done.load(Ordering::SeqCst) > seen + 10).await;
    stop.store(true, Ordering::SeqCst);
    writer.await.unwrap();
    let digest = async |n: usize| {
        let range = isles_engine::shard::KeyRange::table("plans");
        let shard = world.database().shard(&shard(n)).await.unwrap();
        shard.snapshot().await.unwrap().digest(&range).await.unwrap()
    };
    let home = digest(0).await;
    for n in 1..4 {
        assert_eq!(digest(n).await, home, "s{n}");
    }
    assert_eq!(world.consumers_on(0).await, 0);
}

/// Everything that a shard serves goes to the others while clients write, and then the shard goes; its name does not
/// come back.
pub(crate) async fn a_shard_is_drained_and_goes(world: World) {
    let third = add(&world).await;
    let mut client = world.db.client();
    client.run("INSERT INTO users SELECT n, 'u' FROM generate_series(1, 400) n").await;
    let pinned = world.tenant_with_rows("acme", 20).await;
    world.move_wholly(2, tenants(&[&pinned])).await;
    let (there, before) = (world.tenant_on(1, "other").await, world.rows_of(&pinned).await);
    let mut tenant = world.client_of(&there).await;
    tenant.run("INSERT INTO notes (id, n) VALUES (1, 0)").await;
    world.database().drain_shard(&shard(1), vec![]).await.unwrap();
    let mut counted = 0;
    while serves(&world, &shard(1)) {
        assert_eq!(tenant.run("UPDATE notes SET n = n + 1 WHERE id = 1").await, ["UPDATE 1"]);
        client.run("UPDATE users SET n = n + 1 WHERE id = 7").await;
        counted += 1;
    }
    until_drained(&world, &shard(1)).await;
    assert_eq!(world.stored_on(1, "users").await + world.stored_on(1, "notes").await, 0);
    client.run("CREATE TABLE later (id bigint PRIMARY KEY)").await;
    assert!(!serves(&world, &shard(1)), "nothing new comes to a shard that is being drained");
    world.database().remove_shard(&shard(1)).await.unwrap();
    assert_eq!(world.database().shard_names(), [shard(0), third]);
    assert_eq!(tenant.run("SELECT n FROM notes").await, [counted.to_string()]);
    assert_eq!(client.run("SELECT count(*), sum(n) FROM users").await, [format!("400|{counted}")]);
    assert_eq!(world.rows_of(&pinned).await, before);
    let place = place(&world).await;
    let again = NewShard { name: Some(shard(1)), place, region: None };
    assert_eq!(world.database().add_shard(again).await.unwrap_err().sqlstate, "42710");
    drop((client, tenant));
    let world = world.restart().await;
    assert_eq!(world.database().shard_names().len(), 2);
    assert_eq!(world.rows_of(&pinned).await, before);
    let mut client = world.db.client();
    client.run("INSERT INTO plans VALUES (1, 'after')").await;
    assert_eq!(client.run("SELECT count(*), sum(n) FROM users").await, [format!("400|{counted}")]);
    assert_eq!(world.stored_on(2, "plans").await, 1);
}

fn global() -> Units {
    buckets(GLOBAL_GROUP, 0, 0)
}

fn home(world: &World) -> Option<ShardId> {
    let (group, bucket) = global_bucket();
    world.database().current_routing().shard_of_bucket(&group, bucket).cloned()
}

/// Global tables that refer to each other and to a reference table, with some rows.
async fn with_global_tables(world: &World) -> Client {
    let mut client = world.db.client();
    client.run("INSERT INTO plans SELECT n, 'plan' FROM generate_series(1, 20) n").await;
    client
        .run("CREATE TABLE issuers (id serial PRIMARY KEY, plan int REFERENCES plans (id)) WITH (kind = 'global')")
        .await;
    client
        .run(
            "CREATE TABLE secrets (id bigint PRIMARY KEY, issuer int NOT NULL REFERENCES issuers (id) ON DELETE CASCADE, \
             n bigint NOT NULL DEFAULT 0, slug text UNIQUE) WITH (kind = 'global')",
        )
        .await;
    client.run("INSERT INTO issuers (plan) SELECT n FROM generate_series(1, 20) n").await;
    client.run("INSERT INTO secrets SELECT n, n % 20 + 1, 0, 'k' || n FROM generate_series(1, 500) n").await;
    client
}

/// Nothing is bound to the first shard: whatever it has goes while clients write, and then it goes, and the database is
/// whole without it, also after a restart.
pub(crate) async fn the_first_shard_is_drained_and_goes(world: World) {
    let mut client = with_global_tables(&world).await;
    client.run("CREATE INDEX by_name ON users (name) WITH (global)").await;
    client.run("INSERT INTO users SELECT n, 'u' || n FROM generate_series(1, 200) n").await;
    let name = world.tenant_with_rows("acme", 20).await;
    let before = world.rows_of(&name).await;
    assert_eq!(home(&world), Some(shard(0)));
    until_ready(&mut client).await;
    world.database().drain_shard(&shard(0), vec![]).await.unwrap();
    let mut counted = 0;
    while serves(&world, &shard(0)) {
        assert_eq!(client.run("UPDATE secrets SET n = n + 1 WHERE id = 7").await, ["UPDATE 1"]);
        client.run(&format!("INSERT INTO secrets VALUES ({}, 1)", 1_000 + counted)).await;
        client.run(&format!("DELETE FROM secrets WHERE id = {}", 500 - counted % 400)).await;
        counted += 1;
    }
    until_drained(&world, &shard(0)).await;
    assert_eq!(home(&world), Some(shard(1)));
    let all = client.run("SELECT id, issuer, n, slug FROM secrets ORDER BY id").await;
    assert_eq!((world.stored_on(0, "secrets").await, world.stored_on(1, "secrets").await), (0, all.len()));
    assert_eq!((world.stored_on(0, "issuers").await, world.stored_on(1, "issuers").await), (0, 20));
    world.database().remove_shard(&shard(0)).await.unwrap();
    assert_eq!(world.database().shard_names(), [shard(1)]);
    assert_eq!(client.run("SELECT n FROM secrets WHERE id = 7").await, [counted.to_string()]);
    drop(client);
    if world.pair != Pair::Postgres {
        std::fs::remove_dir_all(world.db.folder.path().join("s0")).unwrap();
    }
    let world = world.restart().await;
    let mut client = world.db.client();
    assert_eq!(client.run("SELECT id, issuer, n, slug FROM secrets ORDER BY id").await, all);
    assert_eq!(world.rows_of(&name).await, before);
    assert_eq!(client.run("SELECT id FROM users WHERE name = 'u7'").await, ["7"]);
    // Sequences, keys and references of global tables.
    assert_eq!(client.run("INSERT INTO issuers (plan) VALUES (20) RETURNING id").await, ["21"]);
    assert_eq!(client.fails("INSERT INTO issuers (plan) VALUES (99)").await, "23503");
    assert_eq!(client.fails("INSERT INTO secrets VALUES (5000, 1, 0, 'k7')").await, "23505");
    assert_eq!(client.fails("INSERT INTO secrets VALUES (5000, 99)").await, "23503");
    client.run("DELETE FROM issuers WHERE id = 8").await;
    assert_eq!(client.run("SELECT count(*) FROM secrets WHERE issuer = 8").await, ["0"]);
    // Reference tables are locked, written, and given to shards that come.
    client.run("BEGIN").await;
    assert_eq!(client.run("SELECT name FROM plans WHERE id = 1 FOR UPDATE").await, ["plan"]);
    client.run("UPDATE plans SET name = 'locked' WHERE id = 1").await;
    client.run("INSERT INTO issuers (plan) VALUES (1)").await;
    client.run("COMMIT").await;
    let added = add(&world).await;
    assert_eq!(added, shard(2));
    assert_eq!((world.stored_on(2, "plans").await, world.stored_on(2, "secrets").await), (20, 0));
    client.run("CREATE TABLE later (id int PRIMARY KEY) WITH (kind = 'global')").await;
    client.run("INSERT INTO later SELECT generate_series(1, 5)").await;
    assert_eq!((world.stored_on(1, "later").await, world.stored_on(2, "later").await), (5, 0));
    let shown = client.run("SHOW TABLES").await;
    assert!(shown.iter().any(|row| row.starts_with("later|global|_isles_global|")), "{shown:?}");
    assert!(client.run("SHOW ROUTES").await.contains(&"_isles_global|0|0|s1".to_string()));
}

async fn until_ready(client: &mut Client) {
    let deadline = Instant::now() + LIMIT;
    while !client.run("SHOW INDEXES").await.iter().all(|row| row.contains("ready")) {
        assert!(Instant::now() < deadline, "the index is not built");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// As any bucket: a transaction that has written commits first, a rollback loses nothing, and tables that are made
/// meanwhile go along.
pub(crate) async fn global_tables_go_and_come_back(world: World) {
    let mut client = with_global_tables(&world).await;
    let plan = world.copied(global(), Options { auto: false, ..by_itself() }).await;
    assert_eq!(client.fails("ALTER TABLE secrets ADD COLUMN x int").await, "55006");
    client.run("UPDATE secrets SET n = n + 1 WHERE id = 2").await;
    let mut open = world.db.client();
    open.run("BEGIN").await;
    open.run("UPDATE secrets SET n = 100 WHERE id = 1").await;
    world.database().run_move(plan.id.as_str(), false).await.unwrap();
    world.until(&plan, "the cutover", |plan| plan.stage == Stage::Switching).await;
    assert_eq!(home(&world), Some(shard(0)), "somebody is still writing");
    open.run("UPDATE secrets SET n = n + 1 WHERE id = 1").await;
    open.run("COMMIT").await;
    let plan = world.until_stage(&plan, Stage::Guarding).await;
    assert_eq!((plan.backfill.total_rows_copied, home(&world)), (520, Some(shard(1))));
    client.run("INSERT INTO secrets VALUES (2000, 1)").await;
    client.run("CREATE TABLE later (id int PRIMARY KEY) WITH (kind = 'global')").await;
    client.run("INSERT INTO later VALUES (1)").await;
    assert_eq!((world.stored_on(0, "later").await, world.stored_on(1, "later").await), (0, 1));
    world.command(&plan, Event::Rollback).await.unwrap();
    let done = world.until_stage(&plan, Stage::Done).await;
    assert_eq!((done.phase, home(&world)), (Phase::RolledBack, Some(shard(0))));
    assert_eq!(client.run("SELECT n FROM secrets WHERE id < 3 ORDER BY id").await, ["101", "1"]);
    assert_eq!(client.run("SELECT (SELECT count(*) FROM secrets), (SELECT count(*) FROM later)").await, ["501|1"]);
    assert_eq!((world.stored_on(0, "later").await, world.stored_on(1, "secrets").await), (1, 0));
    assert_eq!(client.run("SELECT count(*) FROM plans").await, ["20"], "reference tables are on both as before");
    assert_eq!((world.stored_on(0, "plans").await, world.stored_on(1, "plans").await), (20, 20));
}

/// A database whose routing knows nothing of its global tables has them on its first shard, where they are found, and
/// from where they can be moved.
pub(crate) async fn global_tables_of_an_old_database_stay_where_they_are(world: World) {
    let client = with_global_tables(&world).await;
    drop(client);
    let path = world.db.folder.path().join("catalog.db");
    let world = world
        .reopen_after(async |config| {
            let catalog = SqliteCatalog::open(path, env(), Default::default()).await.unwrap();
            let key = Key::new("routing/current").unwrap();
            let record = catalog.get(&key).await.unwrap().value.unwrap();
            let policy: RoutingPolicy = record.json().unwrap();
            let (group, _) = global_bucket();
            let ranges = policy.ranges(&group).unwrap().to_vec();
            let old = policy.apply(&RoutingChange { moves: vec![RoutingMove::DropGroup { group, ranges }] }).unwrap();
            let change = Transaction::new().when(record.unchanged()).put_json(key, &old).unwrap();
            catalog.commit(change).await.unwrap();
            catalog.close().await;
            if let ShardPlace::Postgres { url } = &config.shards[0] {
                let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                let gone = client.execute("DELETE FROM _isles.fence WHERE name = '_isles_global'", &[]).await;
                assert_eq!(gone.unwrap(), 1);
            }
        })
        .await;
    let version = world.version();
    assert_eq!(home(&world), Some(shard(0)));
    let mut client = world.db.client();
    assert_eq!(client.run("SELECT count(*) FROM secrets").await, ["500"]);
    client.run("INSERT INTO issuers (plan) VALUES (1)").await;
    world.move_wholly(1, global()).await;
    assert_eq!(world.version(), version + 1);
    assert_eq!((world.stored_on(0, "issuers").await, world.stored_on(1, "issuers").await), (0, 21));
    assert_eq!(client.run("SELECT count(*) FROM secrets JOIN issuers ON issuers.id = issuer").await, ["500"]);
}

/// A drain is a wish that is in the catalog: it goes on after a restart, and ends when it is taken back.
pub(crate) async fn a_drain_goes_on_after_a_restart(world: World) {
    let mut client = world.db.client();
    for n in 0..6 {
        client.run(&format!("CREATE TABLE t{n} (id bigint PRIMARY KEY) WITH (buckets = 16)")).await;
        client.run(&format!("INSERT INTO t{n} SELECT generate_series(1, 100)")).await;
    }
    add(&world).await;
    world.database().drain_shard(&shard(1), vec![shard(2)]).await.unwrap();
    drop(client);
    let world = world.restart().await;
    until_drained(&world, &shard(1)).await;
    let policy = world.database().current_routing();
    assert!(policy.groups().all(|(_, ranges)| ranges.iter().all(|range| range.shard != shard(1))));
    let mut client = world.db.client();
    for n in 0..6 {
        assert_eq!(client.run(&format!("SELECT count(*) FROM t{n}")).await, ["100"]);
    }
    world.database().resume_shard(&shard(1)).await.unwrap();
    client.run("CREATE TABLE later (id bigint PRIMARY KEY)").await;
    assert!(serves(&world, &shard(1)), "it takes part again");
}

/// What is refused changes nothing.
pub(crate) async fn shards_that_cannot_come_or_go(world: World) {
    let database = world.database();
    let code = async |result: Result<(), isles_kernel::error::SqlError>| result.unwrap_err().sqlstate;
    let unknown = ShardId::new("nowhere").unwrap();
    assert_eq!(code(database.remove_shard(&unknown).await).await, "42704");
    assert_eq!(code(database.drain_shard(&unknown, vec![]).await).await, "42704");
    assert_eq!(code(database.drain_shard(&shard(1), vec![unknown]).await).await, "42704");
    assert_eq!(code(database.drain_shard(&shard(1), vec![shard(1)]).await).await, "22023");
    for n in 0..2 {
        assert_eq!(code(database.remove_shard(&shard(n)).await).await, "55000", "s{n} serves");
    }
    let served = database.remove_shard(&shard(1)).await.unwrap_err();
    assert!(served.message.contains("serves") && served.hint.is_some(), "{served:?}");
    let taken = NewShard { name: Some(shard(1)), place: ShardPlace::Sqlite, region: None };
    assert_eq!(database.add_shard(taken).await.unwrap_err().sqlstate, "42710");
    if let ShardPlace::Postgres { url } = &world.config.shards[1] {
        let twice = NewShard { name: None, place: ShardPlace::Postgres { url: url.clone() }, region: None };
        let refused = database.add_shard(twice).await.unwrap_err();
        assert!(refused.message.contains("not empty"), "{refused:?}");
    }
    let gone = ShardPlace::Postgres { url: "postgres://nobody:secret@127.0.0.1:1/none".into() };
    let refused = database.add_shard(NewShard { name: None, place: gone, region: None }).await.unwrap_err();
    assert!(refused.sqlstate == "08006" && !refused.message.contains("secret"), "{refused:?}");
    assert_eq!(database.shard_names().len(), 2);
    let mut client = world.db.client();
    client.run("CREATE TABLE later (id bigint PRIMARY KEY)").await;
    add(&world).await;
    let name = world.tenant_on(0, "acme").await;
    world.client_of(&name).await.run("INSERT INTO notes (id) VALUES (1)").await;
    let plan = world.move_to(2, tenants(&[&name])).await;
    let busy = database.remove_shard(&shard(2)).await.unwrap_err();
    assert!(busy.sqlstate == "55006" && busy.message.contains(plan.id.as_str()), "{busy:?}");
}

/// The same by SQL, for administrators.
pub(crate) async fn shards_by_statements(world: World) {
    let mut client = world.db.client();
    let create = match place(&world).await {
        ShardPlace::Sqlite => "CREATE SHARD east".to_string(),
        ShardPlace::Postgres { url } => format!("CREATE SHARD east WITH (url = '{url}')"),
    };
    assert_eq!(client.run(&create).await, ["east"]);
    let shown = async |client: &mut crate::harness::Client| -> Vec<Vec<String>> {
        let rows = client.run("SHOW SHARDS").await;
        rows.iter().map(|row| row.split('|').map(str::to_string).collect()).collect()
    };
    let rows = shown(&mut client).await;
    assert_eq!((rows.len(), rows[2][0].as_str(), rows[2][2].as_str(), rows[2][7].as_str()), (3, "east", "open", "0"));
    client.run("CREATE TABLE later (id bigint PRIMARY KEY) WITH (buckets = 12)").await;
    assert_eq!(shown(&mut client).await[2][7], "4");
    client.run("ALTER SHARD east DRAIN TO (s1)").await;
    until_drained(&world, &ShardId::new("east").unwrap()).await;
    assert_eq!(shown(&mut client).await[2][2], "drained");
    client.run("ALTER SHARD east RESUME").await;
    assert_eq!(shown(&mut client).await[2][2], "open");
    client.run("DROP SHARD east").await;
    assert_eq!(shown(&mut client).await.len(), 2);
    assert_eq!(client.fails("DROP SHARD east").await, "42704");
    client.run("BEGIN").await;
    assert_eq!(client.fails("CREATE SHARD").await, "25001");
    client.run("ROLLBACK").await;
}

/// What is proposed can be carried out as it is said, and makes the shards even.
pub(crate) async fn proposals_even_shards_out(world: World) {
    let mut client = world.db.client();
    client.run("INSERT INTO users SELECT n, 'u' FROM generate_series(1, 600) n").await;
    for n in 0..20 {
        let mut tenant = world.client_of(&format!("t{n}")).await;
        tenant.run("INSERT INTO notes (id) SELECT generate_series(1, 10)").await;
    }
    add(&world).await;
    for by in ["buckets", "rows", "load"] {
        let proposals = client.run(&format!("SHOW REBALANCE BY {by}")).await;
        assert!(!proposals.is_empty(), "{by}: a new shard has nothing");
        assert!(proposals.iter().all(|row| row.contains("|s2|")), "{by}: {proposals:?}");
    }
    for row in client.run("SHOW REBALANCE").await {
        let parts: Vec<&str> = row.split('|').collect();
        let [kind, what, source, target, ..] = parts[..] else { panic!("{row}") };
        let units = match kind {
            "tenants" => format!("TENANTS ('{}')", what.replace(", ", "', '")),
            _ => format!("BUCKETS '{what}'"),
        };
        let order =
            format!("CREATE MOVE OF {units} FROM {source} TO {target} WITH (auto, complete, pause_limit = '10s')");
        client.run(&order).await;
    }
    let deadline = Instant::now() + LIMIT;
    while world.database().moves().await.unwrap().iter().any(|plan| plan.is_active()) {
        assert!(Instant::now() < deadline, "plans do not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut users = Vec::new();
    for n in 0..3 {
        users.push(world.stored_on(n, "users").await);
    }
    assert!(users.iter().sum::<usize>() == 600 && users.iter().all(|rows| (120..280).contains(rows)), "{users:?}");
    assert_eq!(client.run("SHOW REBALANCE").await.iter().filter(|row| row.contains("users/")).count(), 0);
}
