//! What the tests on the crash disk share: how a shard is opened there, how all that it says is read, and how its
//! log is compared with its tables.

#![allow(dead_code, reason = "each test program uses its own part of this")]

use isles_engine::env::Env;
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::{Claim, Claimed, Fence, FenceMode, FenceScope};
use isles_engine::shard::{Consumer, KeyRange, Shard, Snapshot, StoredRow, StreamState};
use isles_engine::sqlite::{SqliteOptions, SqliteShard};
use isles_kernel::change::{Change, Op};
use isles_kernel::names::{BucketId, GroupName, RoutingVersion, Seq, ShardId, StreamId, TxnId};
use isles_kernel::schema::{Schema, Table, TableKind};
use isles_kernel::value::Value;
use isles_sim::disk::Disk;
use rusqlite::OpenFlags;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const PATH: &str = "/shard.db";
pub(crate) const LOG: &str = "/shard.db-wal";
pub(crate) const BUCKETS: u32 = 16;
/// The node that the shard and its clients live on: one process.
pub(crate) const NODE: &str = "shard";
/// Rows that come from another shard are here, and are not captured.
pub(crate) const APPLIED_TABLE: &str = "incoming";

/// How long a caller of the harness waits for fences.
pub(crate) const FENCE_TIME: Duration = Duration::from_secs(5);

/// A checkpoint comes every few commits.
pub(crate) fn options(disk: &Disk) -> SqliteOptions {
    SqliteOptions {
        base_vfs: Some(disk.vfs_name().into()),
        cache_kib: 64,
        gather: Duration::ZERO,
        checkpoint_pages: 24,
        ..SqliteOptions::default()
    }
}

pub(crate) async fn open(env: Arc<dyn Env>, options: SqliteOptions) -> Result<SqliteShard> {
    SqliteShard::open(ShardId::new("shard").expect("valid"), Path::new(PATH), env, options).await
}

pub(crate) fn group() -> GroupName {
    GroupName::new("things").expect("valid")
}

pub(crate) fn hash_kind(shard_by: &str) -> TableKind {
    TableKind::Hash { group: group(), shard_by: vec![shard_by.into()], buckets: BUCKETS, regions: vec![] }
}

pub(crate) fn stream(name: &str) -> StreamId {
    StreamId::new(name).expect("valid")
}

pub(crate) fn claim(version: u64, bucket: u32) -> Claim {
    Claim::new(RoutingVersion(version), vec![Claimed::Bucket(group(), BucketId(bucket))])
}

pub(crate) fn fence(buckets: std::ops::RangeInclusive<u32>, version: u64, mode: FenceMode) -> Fence {
    let (first, last) = (BucketId(*buckets.start()), BucketId(*buckets.end()));
    Fence { scope: FenceScope::Buckets { group: group(), first, last }, version: RoutingVersion(version), mode }
}

/// Everything that a shard says about itself and its rows, at a quiet moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) schema: Arc<Schema>,
    pub(crate) fences: Vec<Fence>,
    pub(crate) seq: Seq,
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) stream: StreamState,
    pub(crate) tables: BTreeMap<String, Vec<StoredRow>>,
    /// The log from where it begins.
    pub(crate) changes: Vec<Change>,
}

/// Reads everything, the stream being the one that rows are applied from.
pub(crate) async fn observe(shard: &SqliteShard, applied_from: &StreamId) -> Result<Observed> {
    let mut snapshot = shard.snapshot().await?;
    let schema = shard.schema().await?;
    let mut tables = BTreeMap::new();
    for name in schema.tables.keys() {
        tables.insert(name.clone(), read_table(&mut *snapshot, name).await?);
    }
    drop(snapshot);
    Ok(Observed {
        schema,
        fences: shard.fences().await?,
        seq: shard.seq().await?,
        consumers: shard.consumers().await?,
        stream: shard.stream_state(applied_from).await?,
        tables,
        changes: read_log(shard).await?,
    })
}

async fn read_table(snapshot: &mut dyn Snapshot, name: &str) -> Result<Vec<StoredRow>> {
    /// Small, so that a table is read in several pages.
    const ROWS_PER_PAGE: usize = 20;
    let (mut range, mut rows) = (KeyRange::table(name), Vec::new());
    loop {
        let page = snapshot.page(&range, ROWS_PER_PAGE).await?;
        rows.extend(page.rows);
        match page.next {
            Some(next) => range.after = Some(next),
            None => return Ok(rows),
        }
    }
}

/// The log from its beginning, which is behind what was trimmed.
async fn read_log(shard: &SqliteShard) -> Result<Vec<Change>> {
    match read_changes(shard, Seq::ZERO).await {
        Err(ShardError::Trimmed { trimmed }) => read_changes(shard, Seq(trimmed)).await,
        other => other,
    }
}

pub(crate) async fn read_changes(shard: &SqliteShard, mut after: Seq) -> Result<Vec<Change>> {
    /// Odd, so that pages end in the middle of records.
    const CHANGES_PER_PAGE: usize = 37;
    let mut changes = Vec::new();
    loop {
        let page = shard.changes(after, CHANGES_PER_PAGE).await?;
        if page.changes.is_empty() {
            return Ok(changes);
        }
        after = page.through;
        changes.extend(page.changes);
    }
}

/// I-29: the log, as far as a consumer had read it and from there on, is dense, in order, and replays to the tables.
pub(crate) fn check_log(copy: &[Change], observed: &Observed) -> std::result::Result<(), String> {
    let read = copy.last().map_or(0, |change| change.seq.0);
    let overlap = observed.changes.iter().filter(|change| change.seq.0 <= read);
    for change in overlap {
        let known = copy.get(change.seq.0 as usize - 1);
        if known != Some(change) {
            return Err(format!("change {} was {known:?} and is {change:?}", change.seq));
        }
    }
    let rest = observed.changes.iter().filter(|change| change.seq.0 > read);
    let whole: Vec<&Change> = copy.iter().chain(rest).collect();
    check_order(&whole, observed.seq)?;
    let replayed = replay(&whole, &observed.schema)?;
    for (name, rows) in observed.tables.iter().filter(|(name, _)| *name != APPLIED_TABLE) {
        let found: BTreeMap<Vec<u8>, &StoredRow> =
            rows.iter().map(|row| (row_key(&observed.schema.tables[name], row), row)).collect();
        let expected = replayed.get(name.as_str()).cloned().unwrap_or_default();
        let expected: BTreeMap<Vec<u8>, &StoredRow> = expected.iter().map(|(key, row)| (key.clone(), row)).collect();
        if found != expected {
            return Err(format!("the log replays table {name} to {expected:?}, and it has {found:?}"));
        }
    }
    Ok(())
}

fn row_key(table: &Table, row: &StoredRow) -> Vec<u8> {
    isles_kernel::value::key_bytes(&table.key_of(&row.unit, &row.values))
}

fn check_order(whole: &[&Change], seq: Seq) -> std::result::Result<(), String> {
    let mut txn = TxnId::ZERO;
    for (expected, change) in (1..).zip(whole) {
        if change.seq.0 != expected {
            return Err(format!("the log has {} where {expected} is due", change.seq));
        }
        if change.txn < txn || change.txn.0 > txn.0 + 1 {
            return Err(format!("transaction {} follows {txn} in the log", change.txn));
        }
        txn = change.txn;
    }
    let end = whole.len() as u64;
    if seq.0 != end { Err(format!("the log ends at {end}, and the shard says {seq}")) } else { Ok(()) }
}

type Replayed<'a> = BTreeMap<&'a str, BTreeMap<Vec<u8>, StoredRow>>;

fn replay<'a>(whole: &[&'a Change], schema: &Schema) -> std::result::Result<Replayed<'a>, String> {
    let mut tables = Replayed::new();
    for change in whole {
        let table = schema.table(&change.table).map_err(|error| error.to_string())?;
        let rows = tables.entry(change.table.as_str()).or_default();
        let key = isles_kernel::value::key_bytes(&change.key);
        let image = |row: &Vec<Value>| StoredRow { unit: change.unit.clone(), values: widened(table, row) };
        let old = match &change.after {
            Some(after) => rows.insert(key, image(after)),
            None => rows.remove(&key),
        };
        let before = change.before.as_ref().map(image);
        if old != before || (change.op == Op::Insert) != before.is_none() {
            return Err(format!("change {} finds {old:?} where it says {before:?}", change.seq));
        }
    }
    Ok(tables)
}

/// A row of an older schema as the present one shows it: new columns come last, with their defaults.
fn widened(table: &Table, row: &[Value]) -> Vec<Value> {
    let missing = table.columns.iter().skip(row.len());
    row.iter().cloned().chain(missing.map(|column| column.default.clone().unwrap_or(Value::Null))).collect()
}

/// SQLite's own verdict on a shard's file.
pub(crate) fn integrity_check(disk: &Disk) -> std::result::Result<(), String> {
    let check = || -> rusqlite::Result<String> {
        let vfs = isles_engine::sqlite::vfs::checksum::register(Some(disk.vfs_name())).expect("registered");
        let connection = rusqlite::Connection::open_with_flags_and_vfs(PATH, OpenFlags::SQLITE_OPEN_READ_WRITE, &*vfs)?;
        connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))
    };
    match check() {
        Ok(verdict) if verdict == "ok" => Ok(()),
        Ok(verdict) => Err(format!("integrity_check: {verdict}")),
        Err(error) => Err(format!("integrity_check: {error}")),
    }
}

/// What an error is called in counters.
pub(crate) fn error_name(error: &ShardError) -> &'static str {
    match error {
        ShardError::Moved { .. } => "moved",
        ShardError::Strangers { .. } => "strangers",
        ShardError::OtherTenant => "other tenant",
        ShardError::Statement(_) => "statement",
        ShardError::Conflict(_) => "conflict",
        ShardError::Overtaken => "overtaken",
        ShardError::Cancelled => "cancelled",
        ShardError::TimedOut => "timed out",
        ShardError::Limit { .. } => "limit",
        ShardError::Unavailable(_) => "unavailable",
        ShardError::DiskFull(_) => "disk full",
        ShardError::MayHaveHappened(_) => "may have happened",
        ShardError::Stopped(_) => "stopped",
        ShardError::Corrupt(_) => "corrupt",
        ShardError::Trimmed { .. } => "trimmed",
        ShardError::Superseded => "superseded",
        ShardError::Invalid(_) => "invalid",
    }
}

/// A claim of several buckets.
pub(crate) fn claim_all(version: u64, buckets: impl Iterator<Item = u32>) -> Claim {
    let units = buckets.map(|bucket| Claimed::Bucket(group(), BucketId(bucket))).collect();
    Claim::new(RoutingVersion(version), units)
}
