//! Targets that are full, or not what they should be: the plan waits or says why, and the source serves all the time.
//!
//! A target that is away is met by the simulated histories. Here SQLite shards are on a simulated disk, of which a part
//! can be filled.

use crate::harness::{Db, env};
use crate::world::{Pair, SCHEMA, World, by_itself, shard, tenants};
use isles_cluster::database::{Config, Database};
use isles_cluster::moves::moves::{Event, Options, Phase, Plan, Stage};
use isles_kernel::schema::SchemaChange;
use isles_sim::disk::{Disk, Trouble};
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
    world.command(&plan, Event::Cutover).await.unwrap();
    let aborted = world.until(&plan, "an abort", |plan| plan.cutover.aborted.is_some()).await;
    assert!(aborted.cutover.aborted.is_some_and(|why| why.contains("schema version")));
    assert_eq!((world.version(), world.shard_of(&name).await.as_str()), (version, "s0"));
    serves(&world, &name).await;
}
