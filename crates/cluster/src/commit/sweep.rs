//! A database is killed at every operation of its disk while transactions over several shards commit.
//!
//! The catalog and all shards are on one simulated disk, so one count goes over all of them. A clean run counts the
//! operations; then the run is repeated for each of them and each way to lose power, the process dies there, a new one
//! opens the database, and every transaction must be on all its shards or on none; those that were acknowledged must
//! be there, those that were refused must not (I-20). The same once more for transactions that change the schema among
//! their rows: then tables, groups and fences must be there if and only if their rows are.

use super::Planted;
use crate::database::routing;
use crate::database::schema::Change;
use crate::database::{Config, Database};
use crate::execute::bounds::Bounds;
use crate::execute::transaction::{Modes, Txn, Visit};
use isles_engine::fence::{Access, Claim, Claimed};
use isles_engine::shard::{ActsFor, CancelToken, Isolation, Request, Statement};
use isles_kernel::error::SqlError;
use isles_kernel::names::{GroupName, SchemaVersion, ShardId};
use isles_kernel::schema::{Column, SchemaChange, Table, TableKind};
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

/// What a transaction does besides its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rows,
    /// It makes two tables, one of a new group, and gives a column to the table that all change.
    Schema,
}

fn reference(name: &str) -> Table {
    Table { name: name.into(), ..counters() }
}

fn hashed(name: &str) -> Table {
    let group = GroupName::new(name).expect("valid");
    let kind = TableKind::Hash { group, shard_by: vec!["id".into()], buckets: 8, regions: vec![] };
    Table { kind, ..reference(name) }
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

async fn change_schema(database: &Arc<Database>, changes: Vec<SchemaChange>) -> Result<(), SqlError> {
    let bounds = bounds(database);
    let guard = Arc::new(database.hold_schema_alone(&bounds).await?);
    let modes = Modes { isolation: Isolation::Serializable, read_only: false };
    let mut txn = Txn::begin(database, modes, guard, ActsFor::Nobody)?;
    txn.change_schema(&Change::of(changes, Vec::new()), &bounds).await?;
    txn.commit(&bounds).await
}

async fn transfer(database: &Arc<Database>, n: i64, kind: Kind) -> Result<(), SqlError> {
    let modes = Modes { isolation: Isolation::Serializable, read_only: false };
    let bounds = bounds(database);
    let mut txn = Txn::begin(database, modes, Arc::new(database.hold_schema().await?), ActsFor::Nobody)?;
    let version = database.routing.current().version();
    let visit = |shard: &ShardId| Visit {
        shard: shard.clone(),
        access: Access::Write,
        version,
        units: vec![Claimed::Shared],
        still: None,
    };
    let mut visits: Vec<Visit> = database.shard_names().iter().map(visit).collect();
    txn.enter(&mut visits, &bounds).await?;
    let insert = Statement::new("INSERT INTO counters (id, n) VALUES ($1, $1)", vec![Value::Int(n)]);
    everywhere(&mut txn, &insert, &bounds).await?;
    if kind == Kind::Schema {
        txn.be_alone(&bounds).await?;
        let column = Column::new(&format!("c{n}"), DataType::Int8);
        let tables = vec![
            SchemaChange::CreateTable(reference(&format!("r{n}"))),
            SchemaChange::CreateTable(hashed(&format!("h{n}"))),
        ];
        txn.change_schema(&Change::of(tables, Vec::new()), &bounds).await?;
        let fill = Statement::new(format!("INSERT INTO r{n} (id, n) SELECT id, n FROM counters"), vec![]);
        everywhere(&mut txn, &fill, &bounds).await?;
        let column = SchemaChange::AddColumn { table: "counters".into(), column };
        txn.change_schema(&Change::of(vec![column], Vec::new()), &bounds).await?;
        let mark = Statement::new(format!("UPDATE counters SET c{n} = {n} WHERE id = {n}"), vec![]);
        everywhere(&mut txn, &mark, &bounds).await?;
    }
    let update = Statement::new("UPDATE counters SET n = n + 1 WHERE id = 0", vec![]);
    everywhere(&mut txn, &update, &bounds).await?;
    txn.commit(&bounds).await
}

async fn everywhere(txn: &mut Txn, statement: &Statement, bounds: &Bounds) -> Result<(), SqlError> {
    let names: Vec<ShardId> = (0..SHARDS).map(|n| ShardId::new(format!("s{n}")).expect("valid")).collect();
    let work = names.into_iter().map(|name| (name, vec![statement.clone()])).collect();
    txn.run(work, bounds).await.map(drop)
}

/// A first row that every transaction changes, then the transactions.
async fn work(sim: &Sim, disk: &Disk, told: &mut Told, planted: Option<Planted>, kind: Kind) -> Result<(), SqlError> {
    let database = open(sim, disk, planted).await?;
    if database.schema().version == SchemaVersion::ZERO {
        change_schema(&database, vec![SchemaChange::CreateTable(counters())]).await?;
    }
    for n in 0..=TRANSACTIONS {
        match transfer(&database, n, kind).await {
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
    for name in &database.shard_names() {
        let shard = database.shards.get(name).await.expect("it is open");
        let claim = Claim::new(database.routing.current().version(), vec![Claimed::Shared]);
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

/// Whether the tables, groups and fences of a transaction are there if and only if its row is.
async fn check_schema(database: &Database, rows: &BTreeMap<i64, i64>) -> Result<(), String> {
    let (schema, routing) = (database.schema(), database.routing.current());
    for n in 0..=TRANSACTIONS {
        let group = GroupName::new(format!("h{n}")).expect("valid");
        let there = [
            rows.contains_key(&n),
            schema.tables.contains_key(&format!("r{n}")),
            schema.tables.contains_key(group.as_str()),
            schema.tables["counters"].position(&format!("c{n}")).is_some(),
            routing.buckets(&group).is_some(),
        ];
        if there.iter().any(|one| *one != there[0]) {
            return Err(format!("of transaction {n} there are {there:?}"));
        }
        for name in database.shard_names().iter().filter(|_| there[0]) {
            let shard = database.shards.get(name).await.map_err(|error| error.to_string())?;
            let units = routing::claimed_of(&routing, &group, name);
            let claim = Claim::new(routing.version(), units);
            let sql = format!("SELECT (SELECT count(*) FROM h{n}) + (SELECT count(*) FROM r{n})");
            let select = Statement::new(sql, vec![]).returning([DataType::Int8]);
            let found = shard.execute(Request::read(claim, select)).await.map_err(|error| error.to_string())?;
            if found[0].rows[0] != [Value::Int(n + 1)] {
                return Err(format!("r{n} has {:?} on {name}", found[0].rows));
            }
        }
    }
    Ok(())
}

/// What must hold after any crash.
async fn check(sim: &Sim, disk: &Disk, told: &Told, kind: Kind) -> Result<(), String> {
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
    if kind == Kind::Schema {
        check_schema(&database, &found[0]).await?;
    }
    let next = 100 + done;
    transfer(&database, next, kind).await.map_err(|error| format!("it does not work: {error}"))?;
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
    kind: Kind,
) -> Result<bool, String> {
    disk.reset(operation);
    disk.crash_at(operation);
    let mut told = Told::default();
    let sim = Sim::new(operation);
    sim.run(async {
        let _ = work(&sim, disk, &mut told, planted, kind).await;
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
    sim.run(check(&sim, disk, &told, kind)).map_err(|stuck| format!("the next life does not end: {stuck}"))??;
    Ok(true)
}

fn count_operations(disk: &Disk, kind: Kind) -> u64 {
    disk.reset(0);
    let sim = Sim::new(0);
    let mut told = Told::default();
    sim.run(async { work(&sim, disk, &mut told, None, kind).await.expect("a clean run") }).expect("it ends");
    assert_eq!(told.committed.len() as i64, TRANSACTIONS + 1);
    disk.counts().operations
}

fn sweep(seed: u64, kind: Kind) {
    let disk = Disk::new(seed).expect("a disk");
    let operations = count_operations(&disk, kind);
    assert!(operations > 100, "{operations}");
    let mut shorter = 0;
    for operation in 1..=operations {
        let crash = Crash::ALL[operation as usize % Crash::ALL.len()];
        match life(&disk, operation, crash, None, None, kind) {
            // Whoever follows the catalog reads once for several commits, or for each: a life may have some operations less.
            Ok(false) => shorter += 1,
            result => assert_eq!(result, Ok(true), "crash {crash:?} at operation {operation} of {operations}"),
        }
    }
    assert!(shorter * 20 < operations, "{shorter} of {operations} were not struck");
}

/// I-20, I-1, I-6 under F1 and F2.
#[test]
fn whatever_operation_a_crash_strikes_a_transaction_is_on_all_shards_or_on_none() {
    sweep(0, Kind::Rows);
}

#[test]
fn whatever_operation_a_crash_strikes_a_schema_and_its_rows_are_everywhere_or_nowhere() {
    sweep(3, Kind::Schema);
}

/// I-20, I-5 under F3: a sync fails once, whichever it is; the shard or the catalog stops, and the next life finds a
/// transaction on all shards or on none.
#[test]
fn whatever_sync_fails_a_transaction_is_on_all_shards_or_on_none() {
    for kind in [Kind::Rows, Kind::Schema] {
        fail_each_sync(kind);
    }
}

fn fail_each_sync(kind: Kind) {
    let disk = Disk::new(3).expect("a disk");
    count_operations(&disk, kind);
    let syncs = disk.counts().syncs;
    assert!(syncs > 10, "{syncs}");
    let mut stopped = 0;
    for sync in 1..=syncs {
        disk.reset(sync);
        disk.fail_sync_at(sync, Times::Once);
        let mut told = Told::default();
        let sim = Sim::new(sync);
        let ended = sim.run(async { work(&sim, &disk, &mut told, None, kind).await });
        stopped += u64::from(ended.unwrap_or_else(|stuck| panic!("sync {sync}: {stuck}")).is_err());
        disk.crash();
        drop(sim);
        disk.restart(Crash::ALL[sync as usize % Crash::ALL.len()]);
        disk.heal();
        let sim = Sim::new(sync + 1);
        let checked = sim.run(check(&sim, &disk, &told, kind)).unwrap_or_else(|stuck| panic!("sync {sync}: {stuck}"));
        assert_eq!(checked, Ok(()), "sync {sync} of {syncs} failed");
    }
    assert!(stopped > 0, "no failure was told");
}

/// I-6: the process also dies while it recovers.
#[test]
fn a_crash_during_recovery_changes_nothing() {
    for (seed, kind, step) in [(1, Kind::Rows, 5), (4, Kind::Schema, 7)] {
        let disk = Disk::new(seed).expect("a disk");
        let operations = count_operations(&disk, kind);
        let (mut struck, mut shorter) = (0, 0);
        for operation in (operations / 3..=operations).step_by(step) {
            for again in [3, 9, 17, 28] {
                let crash = Crash::ALL[(operation + again) as usize % Crash::ALL.len()];
                let result = life(&disk, operation, crash, None, Some(again), kind);
                let when = format!("crash {crash:?} at operation {operation}, then {again} into the recovery");
                match result {
                    // As above.
                    Ok(false) => shorter += 1,
                    result => assert_eq!(result, Ok(true), "{when}"),
                }
                struck += 1;
            }
        }
        assert!(shorter * 20 < struck, "{shorter} of {struck} were not struck");
    }
}

/// I-69: the sweep finds both bugs, among rows and among schemas.
#[test]
fn the_sweep_finds_planted_bugs() {
    let disk = Disk::new(2).expect("a disk");
    for kind in [Kind::Rows, Kind::Schema] {
        let operations = count_operations(&disk, kind);
        for bug in [Planted::CommitBeforeDecision, Planted::ForgetBeforeCommit] {
            let torn = |operation: &u64| {
                let result = life(&disk, *operation, Crash::Killed, Some(bug), None, kind);
                // Shards that differ in their schema are found when they are opened.
                matches!(result, Err(why) if why.contains("the shards differ") || why.contains("has schema version"))
            };
            let found = (operations / 4..=operations).any(|operation| torn(&operation));
            assert!(found, "{bug:?} was not found among {kind:?}");
        }
    }
}
