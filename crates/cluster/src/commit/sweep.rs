//! A database is killed at every operation of its disk while transactions over several shards commit.
//!
//! The catalog and all shards are on one simulated disk, so one count goes over all of them. A clean run counts the
//! operations; then the run is repeated for each of them and each way to lose power, the process dies there, a new one
//! opens the database, and every transaction must be on all its shards or on none; those that were acknowledged must
//! be there, those that were refused must not (I-20).

use super::Planted;
use crate::database::{Config, Database};
use crate::execute::bounds::Bounds;
use crate::execute::transaction::{Modes, Txn, Visit};
use isles_engine::fence::{Access, Claim, Claimed};
use isles_engine::shard::{CancelToken, Isolation, Request, Statement};
use isles_kernel::error::SqlError;
use isles_kernel::names::{SchemaVersion, ShardId};
use isles_kernel::schema::{SchemaChange, Table};
use isles_kernel::value::{DataType, Value};
use isles_sim::disk::{Crash, Disk, Times};
use isles_sim::exec::Sim;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const SHARDS: usize = 3;
/// Transactions of a run: two, so that a marker is forgotten and another one kept.
const TRANSACTIONS: i64 = 3;
const TIME: Duration = Duration::from_secs(10);

fn counters() -> Table {
    serde_json::from_value(serde_json::json!({
        "name": "counters", "kind": "reference", "primary_key": ["id"],
        "columns": [{"name": "id", "ty": "int8"}, {"name": "n", "ty": "int8", "nullable": true}],
    }))
    .expect("a valid table")
}

fn config(disk: &Disk, planted: Option<Planted>) -> Config {
    let folder = std::env::temp_dir().join(format!("isles-sweep-{}", std::process::id()));
    let mut config = Config { planted, ..Config::sqlite(folder, SHARDS) };
    config.sqlite.base_vfs = Some(disk.vfs_name().into());
    config.sqlite.gather = Duration::ZERO;
    config.catalog.vfs = Some(disk.vfs_name().into());
    config
}

async fn open(sim: &Sim, disk: &Disk, planted: Option<Planted>) -> Result<Arc<Database>, SqlError> {
    Database::open(config(disk, planted), sim.node("isles")).await
}

fn bounds(database: &Database) -> Bounds {
    Bounds::new(&*database.env, TIME, CancelToken::default())
}

/// What a client has been told.
#[derive(Default, Debug)]
struct Told {
    committed: Vec<i64>,
    /// May have happened.
    in_doubt: Vec<i64>,
}

async fn transfer(database: &Arc<Database>, n: i64) -> Result<(), SqlError> {
    let modes = Modes { isolation: Isolation::Serializable, read_only: false };
    let bounds = bounds(database);
    let mut txn = Txn::begin(database, modes, Arc::new(database.hold_schema().await?))?;
    let version = database.routing.current().version();
    let visit =
        |shard: &ShardId| Visit { shard: shard.clone(), access: Access::Write, version, units: vec![Claimed::Shared] };
    let visits: Vec<Visit> = database.names.iter().map(visit).collect();
    txn.enter(&visits, &bounds).await?;
    let insert = Statement::new("INSERT INTO counters (id, n) VALUES ($1, $1)", vec![Value::Int(n)]);
    let update = Statement::new("UPDATE counters SET n = n + 1 WHERE id = 0", vec![]);
    let work = database.names.iter().map(|name| (name.clone(), vec![insert.clone(), update.clone()])).collect();
    txn.run(work, &bounds).await?;
    txn.commit(&bounds).await
}

/// A first row that every transaction changes, then the transactions.
async fn work(sim: &Sim, disk: &Disk, told: &mut Told, planted: Option<Planted>) -> Result<(), SqlError> {
    let database = open(sim, disk, planted).await?;
    if database.schema().version == SchemaVersion::ZERO {
        database.change_schema(SchemaVersion::ZERO, vec![SchemaChange::CreateTable(counters())]).await?;
    }
    for n in 0..=TRANSACTIONS {
        match transfer(&database, n).await {
            Ok(()) => told.committed.push(n),
            Err(error) => {
                if error.sqlstate == "08007" {
                    told.in_doubt.push(n);
                }
                return Err(error);
            }
        }
    }
    // The last decision is removed after its answer.
    while database.coordinator.is_busy() {
        database.env.sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// What each shard has.
async fn read(database: &Arc<Database>) -> Vec<BTreeMap<i64, i64>> {
    let mut all = Vec::new();
    for name in &database.names {
        let shard = database.shards.get(name).await.expect("it is open");
        let claim = Claim { version: database.routing.current().version(), units: vec![Claimed::Shared] };
        let select = Statement::new("SELECT id, n FROM counters", vec![]).returning([DataType::Int8; 2]);
        let rows = shard.execute(Request::read(claim, select)).await.expect("it is read").remove(0).rows;
        let pair = |row: &Vec<Value>| match row.as_slice() {
            [Value::Int(id), Value::Int(n)] => (*id, *n),
            other => panic!("{other:?}"),
        };
        all.push(rows.iter().map(pair).collect());
    }
    all
}

/// What must hold after any crash.
async fn check(sim: &Sim, disk: &Disk, told: &Told) -> Result<(), String> {
    let database = open(sim, disk, None).await.map_err(|error| format!("it does not open: {error}"))?;
    if database.schema().version == SchemaVersion::ZERO {
        return if told.committed.is_empty() { Ok(()) } else { Err("the schema is gone".into()) };
    }
    let found = read(&database).await;
    if found.iter().any(|rows| rows != &found[0]) {
        return Err(format!("the shards differ: {found:?}"));
    }
    for n in &told.committed {
        if !found[0].contains_key(n) {
            return Err(format!("transaction {n} was acknowledged and is gone: {found:?}"));
        }
    }
    let counted = found[0].get(&0).copied().unwrap_or(0);
    let done = found[0].len() as i64;
    if counted != done {
        return Err(format!("{done} transactions counted {counted}"));
    }
    let next = 100 + done;
    transfer(&database, next).await.map_err(|error| format!("it does not work: {error}"))?;
    let left = database.catalog().list("commit/", None, 10).await.map_err(|error| error.to_string())?;
    match left.records.len() {
        0..=2 => Ok(()),
        _ => Err(format!("records of commits are left: {:?}", left.records)),
    }
}

/// One life of the process, which ends at `operation`, and what the next one finds. Whether it came that far.
fn life(
    disk: &Disk,
    operation: u64,
    crash: Crash,
    planted: Option<Planted>,
    again: Option<u64>,
) -> Result<bool, String> {
    disk.reset(operation);
    disk.crash_at(operation);
    let mut told = Told::default();
    let sim = Sim::new(operation);
    sim.run(async {
        let _ = work(&sim, disk, &mut told, planted).await;
    })
    .map_err(|stuck| format!("the first life does not end: {stuck}"))?;
    if !disk.is_dead() {
        return Ok(false);
    }
    drop(sim);
    disk.restart(crash);
    if let Some(again) = again {
        disk.crash_at(disk.counts().operations + again);
        let sim = Sim::new(operation + 1);
        let opened = sim.run(open(&sim, disk, None)).map_err(|stuck| format!("recovery does not end: {stuck}"))?;
        disk.crash();
        drop(opened);
        drop(sim);
        disk.restart(crash);
    }
    let sim = Sim::new(operation + 2);
    sim.run(check(&sim, disk, &told)).map_err(|stuck| format!("the next life does not end: {stuck}"))??;
    Ok(true)
}

fn count_operations(disk: &Disk) -> u64 {
    disk.reset(0);
    let sim = Sim::new(0);
    let mut told = Told::default();
    sim.run(async { work(&sim, disk, &mut told, None).await.expect("a clean run") }).expect("it ends");
    assert_eq!(told.committed.len() as i64, TRANSACTIONS + 1);
    disk.counts().operations
}

/// I-20, I-1, I-6 under F1 and F2.
#[test]
fn whatever_operation_a_crash_strikes_a_transaction_is_on_all_shards_or_on_none() {
    let disk = Disk::new(0).expect("a disk");
    let operations = count_operations(&disk);
    assert!(operations > 100, "{operations}");
    for operation in 1..=operations {
        let crash = Crash::ALL[operation as usize % Crash::ALL.len()];
        let result = life(&disk, operation, crash, None, None);
        assert_eq!(result, Ok(true), "crash {crash:?} at operation {operation} of {operations}");
    }
}

/// I-20, I-5 under F3: a sync fails once, whichever it is; the shard or the catalog stops, and the next life finds a
/// transaction on all shards or on none.
#[test]
fn whatever_sync_fails_a_transaction_is_on_all_shards_or_on_none() {
    let disk = Disk::new(3).expect("a disk");
    count_operations(&disk);
    let syncs = disk.counts().syncs;
    assert!(syncs > 10, "{syncs}");
    let mut stopped = 0;
    for sync in 1..=syncs {
        disk.reset(sync);
        disk.fail_sync_at(sync, Times::Once);
        let mut told = Told::default();
        let sim = Sim::new(sync);
        let ended = sim.run(async { work(&sim, &disk, &mut told, None).await });
        stopped += u64::from(ended.unwrap_or_else(|stuck| panic!("sync {sync}: {stuck}")).is_err());
        disk.crash();
        drop(sim);
        disk.restart(Crash::ALL[sync as usize % Crash::ALL.len()]);
        disk.heal();
        let sim = Sim::new(sync + 1);
        let checked = sim.run(check(&sim, &disk, &told)).unwrap_or_else(|stuck| panic!("sync {sync}: {stuck}"));
        assert_eq!(checked, Ok(()), "sync {sync} of {syncs} failed");
    }
    assert!(stopped > 0, "no failure was told");
}

/// I-6: the process also dies while it recovers.
#[test]
fn a_crash_during_recovery_changes_nothing() {
    let disk = Disk::new(1).expect("a disk");
    let operations = count_operations(&disk);
    for operation in (operations / 3..=operations).step_by(5) {
        for again in [3, 9, 17, 28] {
            let crash = Crash::ALL[(operation + again) as usize % Crash::ALL.len()];
            let result = life(&disk, operation, crash, None, Some(again));
            assert_eq!(result, Ok(true), "crash {crash:?} at operation {operation}, then {again} into the recovery");
        }
    }
}

/// I-69: the sweep finds both bugs.
#[test]
fn the_sweep_finds_planted_bugs() {
    let disk = Disk::new(2).expect("a disk");
    let operations = count_operations(&disk);
    for bug in [Planted::CommitBeforeDecision, Planted::ForgetBeforeCommit] {
        let torn = |operation: &u64| {
            let result = life(&disk, *operation, Crash::Killed, Some(bug), None);
            matches!(result, Err(why) if why.contains("the shards differ"))
        };
        let found = (operations / 4..=operations).filter(torn).count();
        assert!(found > 0, "{bug:?} was not found");
    }
}
