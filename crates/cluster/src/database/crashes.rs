//! A database is killed at every operation of its disk while a shard comes and another one goes.
//!
//! As in `commit::sweep`: the catalog and all shards are on one simulated disk; a clean run counts its operations, and
//! then the process dies at one of them after the other. Whoever opens the database then finds all the shards or those
//! before, each with the rows of the reference table, nothing that holds a log back, and can add and remove shards.

use super::{Config, Database, NewShard, ShardPlace};
use crate::session::{Answer, Login};
use isles_engine::shard::{Digest, KeyRange};
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use isles_sim::disk::{Crash, Disk};
use isles_sim::exec::Sim;
use std::sync::Arc;
use std::time::Duration;

fn shard(n: usize) -> ShardId {
    ShardId::new(format!("s{n}")).expect("valid")
}

async fn open(sim: &Sim, disk: &Disk) -> Result<Arc<Database>, SqlError> {
    let folder = std::env::temp_dir().join(format!("isles-joins-{}", std::process::id()));
    let mut config = Config::sqlite(folder, 2);
    config.sqlite.base_vfs = Some(disk.vfs_name().into());
    config.sqlite.gather = Duration::ZERO;
    config.catalog.vfs = Some(disk.vfs_name().into());
    Database::open(config, sim.node("isles")).await
}

async fn run(database: &Arc<Database>, sql: &str) -> Result<(), SqlError> {
    let login = Login { user: "a".into(), database: "isles".into(), settings: vec![], role: Default::default() };
    let mut session = database.session(login)?;
    let prepared = session.prepare(sql, &[]).await?;
    match session.execute(&prepared, vec![]).await? {
        Answer::Rows(mut rows) => rows.next(1).await.map(drop),
        _ => Ok(()),
    }
}

/// What a client has been told.
#[derive(Default, Debug)]
struct Told {
    rows: usize,
    added: bool,
    removed: bool,
}

async fn work(sim: &Sim, disk: &Disk, told: &mut Told) -> Result<(), SqlError> {
    let database = open(sim, disk).await?;
    run(&database, "CREATE TABLE plans (id int PRIMARY KEY, name text) WITH (kind = 'reference')").await?;
    run(&database, "INSERT INTO plans VALUES (1, 'one'), (2, 'two')").await?;
    told.rows = 2;
    database.add_shard(NewShard { name: None, place: ShardPlace::Sqlite, region: None }).await?;
    told.added = true;
    run(&database, "INSERT INTO plans VALUES (3, 'three')").await?;
    told.rows = 3;
    database.remove_shard(&shard(2)).await?;
    told.removed = true;
    run(&database, "UPDATE plans SET name = 'last' WHERE id = 1").await
}

/// The reference table of each shard.
async fn digests(database: &Arc<Database>) -> Result<Vec<Digest>, String> {
    let mut found = Vec::new();
    for name in database.shard_names() {
        let open = database.shards.get(&name).await.map_err(|error| error.to_string())?;
        if !open.consumers().await.map_err(|error| error.to_string())?.is_empty() {
            return Err(format!("{name} keeps its log for a join that is over"));
        }
        let mut snapshot = open.snapshot().await.map_err(|error| error.to_string())?;
        found.push(snapshot.digest(&KeyRange::table("plans")).await.map_err(|error| error.to_string())?);
    }
    Ok(found)
}

/// What must hold after any crash.
async fn check(sim: &Sim, disk: &Disk, told: &Told) -> Result<(), String> {
    let text = |error: SqlError| error.to_string();
    let database = open(sim, disk).await.map_err(|error| format!("it does not open: {error}"))?;
    let names = database.shard_names();
    match (told.added, told.removed, names.len()) {
        (false, _, 2 | 3) | (true, false, 2 | 3) | (true, true, 2) => {}
        (_, _, count) => return Err(format!("{told:?}, and there are {count} shards")),
    }
    if database.schema().tables.is_empty() {
        return if told.rows == 0 { Ok(()) } else { Err("the schema is gone".into()) };
    }
    let before = digests(&database).await?;
    if before.iter().any(|digest| *digest != before[0]) || before[0].rows < told.rows as u64 {
        return Err(format!("{told:?}, and the shards have {before:?}"));
    }
    let added =
        database.add_shard(NewShard { name: None, place: ShardPlace::Sqlite, region: None }).await.map_err(text)?;
    if names.contains(&added) || (told.added && added == shard(2)) {
        return Err(format!("{added} is given twice"));
    }
    run(&database, "INSERT INTO plans VALUES (100, 'after')").await.map_err(text)?;
    let after = digests(&database).await?;
    if after.len() != names.len() + 1 || after.iter().any(|digest| *digest != after[0]) {
        return Err(format!("after another shard has come the shards have {after:?}"));
    }
    database.remove_shard(&added).await.map_err(text)
}

/// One life of the process, which ends at `operation`, and what the next one finds. Whether it came that far.
fn life(disk: &Disk, operation: u64, crash: Crash) -> Result<bool, String> {
    disk.reset(operation);
    disk.crash_at(operation);
    let (mut told, sim) = (Told::default(), Sim::new(operation));
    sim.run(async {
        let _ = work(&sim, disk, &mut told).await;
    })
    .map_err(|stuck| format!("the first life does not end: {stuck}"))?;
    if !disk.is_dead() {
        return Ok(false);
    }
    drop(sim);
    disk.restart(crash);
    let sim = Sim::new(operation + 1);
    sim.run(check(&sim, disk, &told)).map_err(|stuck| format!("the next life does not end: {stuck}"))??;
    Ok(true)
}

/// I-6, I-7 under F1 and F2.
#[test]
fn whatever_operation_a_crash_strikes_a_shard_has_come_wholly_or_not_at_all() {
    let disk = Disk::new(0).expect("a disk");
    disk.reset(0);
    let (mut told, sim) = (Told::default(), Sim::new(0));
    sim.run(async { work(&sim, &disk, &mut told).await.expect("a clean run") }).expect("it ends");
    drop(sim);
    let operations = disk.counts().operations;
    assert!(told.removed && operations > 200, "{told:?} {operations}");
    for operation in 1..=operations {
        let crash = Crash::ALL[operation as usize % Crash::ALL.len()];
        match life(&disk, operation, crash) {
            Ok(true) => {}
            // Each life has its own seed, and some end a little earlier.
            Ok(false) if operation > operations / 10 * 9 => {}
            other => panic!("crash {crash:?} at operation {operation} of {operations}: {other:?}"),
        }
    }
}
