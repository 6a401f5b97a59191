//! Entries, compared with rows.
//!
//! The appliers stand still meanwhile, so the entries show what the logs said up to where each stands. What the rows say
//! at that place is counted from a snapshot of each shard, less what its log says came between.
//!
//! An index may have more entries than fit into memory: then it is compared in pieces, by entry bucket.

use super::apply::{Applier, Turn, write};
use super::watch::Watched;
use super::{lock, store};
use crate::database::Database;
use crate::moves;
use isles_engine::entries::EntryPart;
use isles_engine::shard::{EVENT_ROWS, KeyRange, MAX_PAGE_ROWS, Scope, Shard};
use isles_kernel::change::Change;
use isles_kernel::error::SqlError;
use isles_kernel::index::{EntryDelta, Source};
use isles_kernel::names::{BucketId, Seq, ShardId};
use isles_kernel::schema::{ENTRY_BUCKETS, Unit, entry_group};
use isles_kernel::value::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::MutexGuard;

/// Entries that are compared at once: a few hundred megabytes.
const MAX_COMPARED: usize = 1_000_000;
/// Differences that are told; all are counted.
const MAX_TOLD: usize = 100;

/// What a comparison has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Entries that were compared.
    pub entries: u64,
    /// Entries that count too little, or are not there: rows that the index would not find.
    pub missing: u64,
    /// Entries that count too much: shards that are asked in vain.
    pub superfluous: u64,
    pub repaired: u64,
    /// Some of the differences: the key's bytes in hex, the bucket, what is counted and what there is.
    pub told: Vec<(String, BucketId, i64, i64)>,
}

/// Counts by entry bucket, key and bucket.
type Counts = BTreeMap<(u32, Vec<u8>, BucketId), i64>;

/// Why a piece was not compared.
enum Cut {
    /// It must be smaller.
    TooMany,
    Error(SqlError),
}

impl From<SqlError> for Cut {
    fn from(error: SqlError) -> Cut {
        Cut::Error(error)
    }
}

fn people(error: isles_engine::error::ShardError) -> SqlError {
    error.for_people()
}

impl Database {
    /// Compares the entries of an index with the rows, and puts them right if that is wanted.
    pub async fn verify_index(&self, entries: &str, repair: bool) -> Result<Verified, SqlError> {
        let missing = || SqlError::new("42704", "there is no such global index");
        let index = self.indexes.watch.get(entries).ok_or_else(missing)?;
        let record = store::load(self.catalog().as_ref(), entries).await?;
        if !record.is_some_and(|record| record.state == store::State::Ready) {
            let error = SqlError::new("55000", format!("index \"{}\" is not ready", index.definition.name));
            return Err(error.with_hint("SHOW INDEXES says what it is"));
        }
        let _gate = self.indexes.gate.lock().await;
        let schema = self.schema();
        if let Some(table) = schema.tables.get(&index.definition.table)
            && let Some(plan) = moves::moving(self, table).await?
        {
            let message = format!("rows of table \"{}\" are being moved by plan {plan}", table.name);
            return Err(SqlError::new("55006", message).with_hint("wait until the move is completed"));
        }
        self.drain_indexes(None).await?;
        let appliers: Vec<Arc<Applier>> = lock(&self.indexes.appliers).values().cloned().collect();
        let mut turns = Vec::new();
        for applier in &appliers {
            turns.push((applier.shard.clone(), applier.turn.lock().await));
        }
        let mut verified = Verified::default();
        let mut pieces = vec![0..ENTRY_BUCKETS];
        while let Some(piece) = pieces.pop() {
            match self.verify_piece(&index, &turns, piece.clone(), repair, &mut verified).await {
                Ok(()) => {}
                Err(Cut::TooMany) if piece.len() > 1 => {
                    let middle = piece.start + piece.len() as u32 / 2;
                    pieces.extend([piece.start..middle, middle..piece.end]);
                }
                Err(Cut::TooMany) => {
                    return Err(SqlError::new("53200", "one entry bucket has too many entries to be compared"));
                }
                Err(Cut::Error(error)) => return Err(error),
            }
        }
        Ok(verified)
    }

    async fn verify_piece(
        &self,
        index: &Watched,
        turns: &[(ShardId, MutexGuard<'_, Turn>)],
        piece: Range<u32>,
        repair: bool,
        verified: &mut Verified,
    ) -> Result<(), Cut> {
        let mut wanted = Counts::new();
        for (shard, turn) in turns {
            self.count_rows_at(index, shard, turn.position, &piece, &mut wanted).await?;
        }
        wanted.retain(|_, rows| *rows != 0);
        let found = self.read_entries(index, &piece).await?;
        verified.entries += found.len() as u64;
        let keys: BTreeSet<_> = wanted.keys().chain(found.keys()).cloned().collect();
        let mut repairs: BTreeMap<u32, Vec<EntryDelta>> = BTreeMap::new();
        for at in keys {
            let (is, should) = (found.get(&at).copied().unwrap_or(0), wanted.get(&at).copied().unwrap_or(0));
            if is == should {
                continue;
            }
            match is < should {
                true => verified.missing += 1,
                false => verified.superfluous += 1,
            }
            let (entry_bucket, key, bucket) = at;
            if verified.told.len() < MAX_TOLD {
                let hex = key.iter().map(|byte| format!("{byte:02x}")).collect();
                verified.told.push((hex, bucket, is, should));
            }
            repairs.entry(entry_bucket).or_default().push(EntryDelta { key, bucket, rows: should - is });
        }
        if repair && !repairs.is_empty() {
            verified.repaired += repairs.values().map(|part| part.len() as u64).sum::<u64>();
            let table = index.definition.entries.to_string();
            let part =
                |(bucket, deltas)| EntryPart { table: table.clone(), bucket: BucketId(bucket), progress: None, deltas };
            write(self, repairs.into_iter().map(part).collect()).await.map_err(SqlError::from)?;
        }
        Ok(())
    }

    /// Counts what the rows of a shard said when its log was at `position`.
    async fn count_rows_at(
        &self,
        index: &Watched,
        shard: &ShardId,
        position: Seq,
        piece: &Range<u32>,
        counts: &mut Counts,
    ) -> Result<(), Cut> {
        let open = self.shards.get(shard).await.map_err(people)?;
        let mut snapshot = open.snapshot().await.map_err(people)?;
        let later = snapshot.later_changes().await.map_err(people)?;
        let scope = Scope::Buckets(index.definition.group.clone(), super::build::owned(self, index, shard));
        let mut range = KeyRange::table(&index.definition.table).within(scope);
        loop {
            let page = snapshot.page(&range, MAX_PAGE_ROWS).await.map_err(people)?;
            for row in &page.rows {
                if let Unit::Bucket(_, bucket) = row.unit {
                    count_row(index, &row.values, bucket, 1, piece, counts)?;
                }
            }
            match page.next {
                Some(next) => range.after = Some(next),
                None => break,
            }
        }
        let through = snapshot.seq().max(later.last().copied().unwrap_or_default());
        for change in log_between(&*open, position, through).await? {
            let is_in_snapshot = change.seq <= snapshot.seq() || later.contains(&change.seq);
            let Unit::Bucket(_, bucket) = change.unit else { continue };
            if change.table != index.definition.table || !is_in_snapshot {
                continue;
            }
            for (row, rows) in [(&change.before, 1), (&change.after, -1)] {
                if let Some(row) = row {
                    count_row(index, row, bucket, rows, piece, counts)?;
                }
            }
        }
        Ok(())
    }

    async fn read_entries(&self, index: &Watched, piece: &Range<u32>) -> Result<Counts, Cut> {
        let (group, policy) = (entry_group(), self.routing.current());
        let owner = |bucket: u32| policy.shard_of_bucket(&group, BucketId(bucket));
        let shards: BTreeSet<&ShardId> = piece.clone().filter_map(owner).collect();
        let mut counts = Counts::new();
        for shard in shards {
            let open = self.shards.get(shard).await.map_err(people)?;
            let mut snapshot = open.snapshot().await.map_err(people)?;
            let mut range = KeyRange::table(&index.definition.entries);
            loop {
                let page = snapshot.page(&range, MAX_PAGE_ROWS).await.map_err(people)?;
                for row in page.rows {
                    let Unit::Bucket(_, entry_bucket) = row.unit else { continue };
                    if !piece.contains(&entry_bucket.0) || owner(entry_bucket.0) != Some(shard) {
                        continue;
                    }
                    let [Value::Bytes(key), Value::Int(bucket), Value::Int(rows)] = row.values.as_slice() else {
                        continue;
                    };
                    if Source::shard(key).is_none() {
                        counts.insert((entry_bucket.0, key.clone(), BucketId(*bucket as u32)), *rows);
                    }
                    if counts.len() > MAX_COMPARED {
                        return Err(Cut::TooMany);
                    }
                }
                match page.next {
                    Some(next) => range.after = Some(next),
                    None => break,
                }
            }
        }
        Ok(counts)
    }
}

/// Changes after a position, up to another and perhaps a little further.
async fn log_between(shard: &dyn Shard, mut after: Seq, through: Seq) -> Result<Vec<Change>, SqlError> {
    let mut changes = Vec::new();
    while after < through {
        let page = shard.committed_changes(after, *EVENT_ROWS.end()).await.map_err(people)?;
        if page.through <= after {
            break;
        }
        after = page.through;
        changes.extend(page.changes);
    }
    Ok(changes)
}

fn count_row(
    index: &Watched,
    row: &[Value],
    bucket: BucketId,
    rows: i64,
    piece: &Range<u32>,
    counts: &mut Counts,
) -> Result<(), Cut> {
    let key = index.definition.key_of(row).map_err(|error| SqlError::new("0A000", error.to_string()))?;
    let Some(key) = key else { return Ok(()) };
    let entry_bucket = key.entry_bucket(ENTRY_BUCKETS);
    if piece.contains(&entry_bucket) {
        *counts.entry((entry_bucket, key.0, bucket)).or_default() += rows;
    }
    if counts.len() > MAX_COMPARED { Err(Cut::TooMany) } else { Ok(()) }
}
