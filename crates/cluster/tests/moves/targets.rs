//! Targets that are full, or not what they should be: the plan waits or says why, and the source serves all the time.
//!
//! SQLite shards are on a simulated disk here, of which a part can be filled; PostgreSQL shards on a server that is stopped
//! and started again.

use crate::harness::{Db, env};
use crate::world::{Pair, SCHEMA, World, by_itself, shard, tenants};
use isles_cluster::database::{Config, Database, ShardPlace};
use isles_cluster::moves::Intent;
use isles_cluster::moves::moves::{Command, Event, Options, Phase, Plan, Stage};
use isles_kernel::schema::SchemaChange;
use isles_sim::disk::{Disk, Trouble};
use isles_sim::pgserver::{PgOptions, PgServer};
use std::sync::Arc;
use std::time::Duration;

async fn on_a_disk() -> (World, Arc<Disk>) {
    let disk = Arc::new(Disk::new(7).expect("a disk"));
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::sqlite(folder.path(), 2);
    config.sqlite.base_vfs = Some(disk.vfs_name().into());
    config.catalog.vfs = Some(disk.vfs_name().into());
    (open(config, folder).await, disk)
}

async fn open(config: Config, folder: tempfile::TempDir) -> World {
    let database = Database::open(config.clone(), env()).await.unwrap();
    let world = World { pair: Pair::Sqlite, db: Db { database, folder }, config };
    let mut client = world.db.client();
    for sql in SCHEMA {
        client.run(sql).await;
    }
    world
}

/// The source serves: a write is answered, and soon.
async fn serves(world: &World, name: &str) {
    let mut client = world.client_of(name).await;
    let served = tokio::time::timeout(Duration::from_secs(5), client.run("UPDATE notes SET n = n + 1 WHERE id = 0"));
    assert_eq!(served.await.expect("the target is not waited for"), ["UPDATE 1"]);
}

async fn complaint(world: &World, plan: &Plan) -> Plan {
    world.until(plan, "a reason", |plan| plan.error_message.is_some() || plan.cutover.aborted.is_some()).await
}

async fn on_a_server() -> (World, Arc<PgServer>) {
    let start = || {
        let server = PgServer::start(PgOptions { fsync: false, ..PgOptions::default() });
        let url = server.create_database();
        (Arc::new(server), url)
    };
    let (server, url) = tokio::task::spawn_blocking(start).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let shards = vec![ShardPlace::Sqlite, ShardPlace::Postgres { url }];
    let config = Config { shards, ..Config::sqlite(folder.path(), 2) };
    (open(config, folder).await, server)
}

async fn leave(server: &Arc<PgServer>) {
    let server = server.clone();
    tokio::task::spawn_blocking(move || server.stop_immediate()).await.unwrap();
}

async fn come_back(server: &Arc<PgServer>) {
    let server = server.clone();
    tokio::task::spawn_blocking(move || server.restart()).await.unwrap();
}

/// A target that was away a moment ago may need another one to be found.
async fn planned(world: &World, name: &str) -> Plan {
    for _ in 0..100 {
        match world.plan(tenants(&[name]), Options { pause_limit_ms: 2_000, ..Options::default() }).await {
            Ok(plan) => return plan,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    panic!("the target does not come back")
}

/// Pgdog #894, #914, #1028: a target that is away when the plan is made, when its changes begin to be mirrored, during the
/// copy, and at the cutover. The plan says why it waits, the source serves all the time, and the move ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_away_is_waited_for() {
    let (world, server) = on_a_server().await;
    let name = world.tenant_with_rows("acme", 20).await;
    let version = world.version();
    leave(&server).await;
    let refused = world.plan(tenants(&[&name]), by_itself()).await.unwrap_err();
    assert!(matches!(refused.sqlstate, "08006" | "57P03" | "58030"), "{refused:?}");
    assert!(world.database().moves().await.unwrap().is_empty());
    serves(&world, &name).await;
    come_back(&server).await;
    let plan = planned(&world, &name).await;
    leave(&server).await;
    world.command(&plan, Event::StartDualWrite).await.unwrap();
    assert_eq!(complaint(&world, &plan).await.stage, Stage::Preparing);
    serves(&world, &name).await;
    come_back(&server).await;
    world.until(&plan, "silence", |plan| plan.stage == Stage::Capturing && plan.error_message.is_none()).await;
    leave(&server).await;
    world.command(&plan, Event::RunBackfill).await.unwrap();
    assert_eq!(complaint(&world, &plan).await.stage, Stage::Copying);
    serves(&world, &name).await;
    come_back(&server).await;
    world.until(&plan, "silence", |plan| plan.stage == Stage::Ready && plan.error_message.is_none()).await;
    world.command(&plan, Event::WaiveVerification).await.unwrap();
    leave(&server).await;
    world.command(&plan, Event::Cutover).await.unwrap();
    complaint(&world, &plan).await;
    assert_eq!(world.version(), version);
    serves(&world, &name).await;
    come_back(&server).await;
    let before = world.rows_of(&name).await;
    let done = world.end(&plan).await;
    assert_eq!((done.phase, world.version()), (Phase::Completed, version + 1));
    assert_eq!(world.rows_of(&name).await, before);
    assert_eq!((world.stored_on(0, "notes").await, world.stored_on(1, "notes").await), (0, 20));
    // Four writes were acknowledged while it was away.
    assert_eq!(world.client_of(&name).await.run("SELECT n FROM notes WHERE id = 0").await, ["4"]);
}

/// A target without room: the copy waits and says so, the source serves, and it goes on when there is room.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_without_room_is_waited_for() {
    let (world, disk) = on_a_disk().await;
    let name = world.tenant_with_rows("acme", 30).await;
    let large = "x".repeat(200_000);
    world.client_of(&name).await.run(&format!("INSERT INTO notes (id, body) VALUES (100, '{large}')")).await;
    let plan = world.captured(tenants(&[&name]), Options::default()).await;
    disk.trouble("/s1/", Trouble::Full);
    world.command(&plan, Event::RunBackfill).await.unwrap();
    let waiting = complaint(&world, &plan).await;
    assert_eq!((waiting.stage, waiting.phase), (Stage::Copying, Phase::Backfill));
    assert!(waiting.error_message.as_deref().is_some_and(|why| why.contains("full")), "{:?}", waiting.error_message);
    serves(&world, &name).await;
    disk.end_trouble();
    world.until_stage(&plan, Stage::Ready).await;
    let before = world.rows_of(&name).await;
    world.end(&plan).await;
    assert_eq!(world.rows_of(&name).await, before);
}

/// Undone while the target is full: what is left there goes when there is room, and the source never noticed.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_to_a_target_without_room_is_undone() {
    let (world, disk) = on_a_disk().await;
    let name = world.tenant_with_rows("acme", 30).await;
    let plan = world.copied(tenants(&[&name]), Options::default()).await;
    disk.trouble("/s1/", Trouble::Full);
    world.command(&plan, Event::Rollback).await.unwrap();
    serves(&world, &name).await;
    disk.end_trouble();
    let undone = world.until_stage(&plan, Stage::Done).await;
    assert_eq!((undone.phase, world.stored_on(1, "notes").await), (Phase::RolledBack, 0));
}

/// Pgdog #1347: a target that has other tables than the source takes nothing: not by a new plan, not by one under way.
pub(crate) async fn a_target_with_other_tables_takes_nothing(world: World) {
    let name = world.tenant_with_rows("acme", 5).await;
    let plan = world.copied(tenants(&[&name]), Options::default()).await;
    world.command(&plan, Event::WaiveVerification).await.unwrap();
    // Somebody changes one shard by hand.
    let target = world.database().shard(&shard(1)).await.unwrap();
    let found = target.schema().await.unwrap();
    let gone = SchemaChange::DropTable { table: "plans".into() };
    target.apply_schema(found.version, vec![gone]).await.unwrap();
    let other = world.tenant_with_rows("other", 1).await;
    let order = world.order(tenants(&[&other]), by_itself());
    let refused = world.database().plan_move(order).await.unwrap_err();
    assert_eq!(refused.sqlstate, "55000", "{refused}");
    assert!(refused.message.contains("s1") && refused.message.contains("schema version"), "{refused}");
    let version = world.version();
    let cutover = Command::Cutover { waive: false };
    let tried = world.database().tell_move(plan.id.as_str(), cutover, Intent::Try).await.unwrap_err();
    assert!(tried.sqlstate == "55000" && tried.message.contains("schema version"), "{tried}");
    world.command(&plan, Event::Cutover).await.unwrap();
    let aborted = world.until(&plan, "an abort", |plan| plan.cutover.aborted.is_some()).await;
    assert!(aborted.cutover.aborted.is_some_and(|why| why.contains("schema version")));
    assert_eq!((world.version(), world.shard_of(&name).await.as_str()), (version, "s0"));
    serves(&world, &name).await;
}
