//! Entries, compared with rows.
//!
//! ```text
//! entries that name the buckets of a shard, at p ─► rows of the shard, at s ≥ p
//!                                                        │ less what its log says of (p, s]
//!                                                        ▼
//!                                             what the entries should say
//! ```
//!
//! Nobody stands still meanwhile: an entry bucket has its position beside its entries, so one snapshot shows both, and the
//! log is not let go of before it has been read ([`Kept`]). What is wrong is mended by adding the difference: sums do
//! not depend on order, so appliers may have gone on.
//!
//! It goes shard by shard. A shard of which more would have to be held in memory than there is room for is compared in
//! pieces: some of its buckets, then some of the entry buckets. Between two pieces moves may begin; the next piece is
//! refused then, since rows that are moving are on two shards.

use super::Indexes;
use super::store::{self, State, VerifiedRecord};
use super::watch::Watched;
use super::write::{Company, write};
use crate::database::Database;
use crate::moves;
use isles_engine::entries::EntryPart;
use isles_engine::shard::{EVENT_ROWS, KeyRange, MAX_PAGE_ROWS, Scope, Shard};
use isles_kernel::change::Change;
use isles_kernel::error::SqlError;
use isles_kernel::index::{EntryDelta, Source, StoredEntry};
use isles_kernel::names::{BucketId, Seq, ShardId};
use isles_kernel::schema::{ENTRY_BUCKETS, Unit};
use isles_kernel::value::Value;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::MutexGuard;

/// Entries that are compared at once: a few hundred megabytes.
const MAX_COMPARED: usize = 1_000_000;
/// Rows that are read in one piece, where it can be smaller: some seconds, for which a move waits to be planned.
const MAX_READ: usize = 2_000_000;
/// Differences that are told; all are counted.
const MAX_TOLD: usize = 100;
/// Entries of one bucket that are mended at once: half of what a shard takes.
const MENDED: usize = isles_engine::entries::MAX_ENTRIES / 2;

/// What a comparison has found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// Entries that were compared.
    pub entries: u64,
    /// Entries that count too little, or are not there: rows that the index would not find.
    pub missing: u64,
    /// Entries that count too much: shards that are asked in vain.
    pub superfluous: u64,
    pub repaired: u64,
    /// Some of the differences: the key's bytes in hex, the bucket, what is counted and what there is.
    #[serde(skip)]
    pub told: Vec<(String, BucketId, i64, i64)>,
}

impl Verified {
    pub fn differences(&self) -> u64 {
        self.missing + self.superfluous
    }

    pub(super) fn add(&mut self, other: Verified) {
        self.entries += other.entries;
        self.missing += other.missing;
        self.superfluous += other.superfluous;
        self.repaired += other.repaired;
        self.told.extend(other.told);
        self.told.truncate(MAX_TOLD);
    }
}

/// Counts by entry bucket, key and bucket.
pub(super) type Counts = BTreeMap<(u32, Vec<u8>, BucketId), i64>;

/// What is looked at.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) shard: ShardId,
    /// Of the indexed table, in order.
    pub(super) buckets: Vec<u32>,
    pub(super) entry_buckets: Range<u32>,
    /// None: all.
    pub(super) keys: Option<BTreeSet<Vec<u8>>>,
}

impl Piece {
    /// Two smaller ones, if there can be.
    fn split(self) -> Option<[Piece; 2]> {
        if self.buckets.len() > 1 {
            let (low, high) = self.buckets.split_at(self.buckets.len() / 2);
            let (low, high) = (low.to_vec(), high.to_vec());
            return Some([Piece { buckets: low, ..self.clone() }, Piece { buckets: high, ..self }]);
        }
        let Range { start, end } = self.entry_buckets;
        let middle = start + (end - start) / 2;
        let part = |entry_buckets| Piece { entry_buckets, ..self.clone() };
        (middle > start).then(|| [part(start..middle), part(middle..end)])
    }

    fn has_key(&self, entry_bucket: u32, key: &[u8]) -> bool {
        self.entry_buckets.contains(&entry_bucket) && self.keys.as_ref().is_none_or(|keys| keys.contains(key))
    }

    fn has_bucket(&self, bucket: BucketId) -> bool {
        self.buckets.binary_search(&bucket.0).is_ok()
    }

    /// Its buckets as ranges.
    fn ranges(&self) -> Vec<RangeInclusive<u32>> {
        let mut ranges: Vec<RangeInclusive<u32>> = Vec::new();
        for bucket in &self.buckets {
            match ranges.last_mut() {
                Some(last) if *last.end() + 1 == *bucket => *last = *last.start()..=*bucket,
                _ => ranges.push(*bucket..=*bucket),
            }
        }
        ranges
    }
}

/// What the entries of a piece say, and what they should say.
pub(super) struct Compared {
    pub(super) is: Counts,
    pub(super) should: Counts,
}

/// An entry that is wrong.
pub(super) struct Difference {
    pub(super) entry_bucket: u32,
    pub(super) key: Vec<u8>,
    pub(super) bucket: BucketId,
    is: i64,
    should: i64,
}

impl Compared {
    pub(super) fn differences(&self) -> Vec<Difference> {
        let places: BTreeSet<_> = self.is.keys().chain(self.should.keys()).collect();
        let difference = |at: &(u32, Vec<u8>, BucketId)| {
            let [is, should] = [&self.is, &self.should].map(|counts| counts.get(at).copied().unwrap_or(0));
            let (entry_bucket, key, bucket) = at.clone();
            (is != should).then_some(Difference { entry_bucket, key, bucket, is, should })
        };
        places.into_iter().filter_map(difference).collect()
    }
}

/// Why a piece was not compared.
pub(super) enum Cut {
    /// It must be smaller.
    TooMany,
    Error(SqlError),
}

impl From<SqlError> for Cut {
    fn from(error: SqlError) -> Cut {
        Cut::Error(error)
    }
}

/// Logs are not let go of while one of these lives.
pub(super) struct Kept(Arc<Indexes>);

impl Kept {
    fn new(indexes: &Arc<Indexes>) -> Kept {
        indexes.kept.fetch_add(1, Ordering::SeqCst);
        Kept(indexes.clone())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.kept.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What a comparison holds: it is the only one, no row of the table is being moved, and logs are kept.
pub(super) struct Standing<'a> {
    index: Arc<Watched>,
    /// How often the index had been built anew.
    builds: u64,
    _one: MutexGuard<'a, ()>,
    _gate: MutexGuard<'a, ()>,
    _kept: Kept,
}

fn people(error: isles_engine::error::ShardError) -> SqlError {
    error.for_people()
}

fn meanwhile(index: &Watched, what: &str) -> SqlError {
    let message = format!("{what} while index \"{}\" was compared", index.definition.name);
    SqlError::new("40001", message).with_hint("try again")
}

impl Database {
    /// Compares the entries of an index with the rows, and puts them right if that is wanted.
    pub async fn verify_index(&self, entries: &str, repair: bool) -> Result<Verified, SqlError> {
        let verified = self.verify_index_on(entries, &self.shard_names(), repair).await?;
        let record = VerifiedRecord {
            at: self.env.now_micros() / 1_000,
            differences: verified.differences(),
            repaired: verified.repaired,
            entries: Some(verified.entries),
        };
        store::save_verified(self.catalog().as_ref(), entries, &record).await?;
        Ok(verified)
    }

    /// The same for the rows of some shards, and the entries that name their buckets.
    pub async fn verify_index_on(&self, entries: &str, on: &[ShardId], repair: bool) -> Result<Verified, SqlError> {
        let missing = || SqlError::new("42704", "there is no such global index");
        let index = self.indexes.watch.get(entries).ok_or_else(missing)?;
        let mut verified = Verified::default();
        for shard in on {
            verified.add(self.verify_shard(&index, shard, repair).await?);
        }
        Ok(verified)
    }

    pub(super) async fn verify_shard(
        &self,
        index: &Arc<Watched>,
        shard: &ShardId,
        repair: bool,
    ) -> Result<Verified, SqlError> {
        let mut verified = Verified::default();
        let mut pieces = vec![self.piece_of(index, shard)];
        pieces.retain(|piece| !piece.buckets.is_empty());
        while let Some(piece) = pieces.pop() {
            match self.verify_piece(index, &piece, repair).await {
                Ok(found) => verified.add(found),
                Err(Cut::Error(error)) => return Err(error),
                Err(Cut::TooMany) => {
                    let room = || SqlError::new("53200", "one bucket has too many entries to be compared");
                    pieces.extend(piece.split().ok_or_else(room)?);
                }
            }
        }
        Ok(verified)
    }

    /// All of a shard.
    pub(super) fn piece_of(&self, index: &Watched, shard: &ShardId) -> Piece {
        let buckets = super::build::owned(self, index, shard).into_iter().flatten().collect();
        Piece { shard: shard.clone(), buckets, entry_buckets: 0..ENTRY_BUCKETS, keys: None }
    }

    /// The shards that have rows of a piece's buckets. Tenants of one bucket may be on several.
    fn shards_with(&self, index: &Watched, piece: &Piece) -> BTreeSet<ShardId> {
        let own = BTreeSet::from([piece.shard.clone()]);
        if !index.definition.is_of_tenants() {
            return own;
        }
        let buckets: BTreeSet<BucketId> = piece.buckets.iter().copied().map(BucketId).collect();
        let policy = self.routing.current();
        policy.shards_of_tenants(&buckets).into_iter().cloned().chain(own).collect()
    }

    async fn verify_piece(&self, index: &Arc<Watched>, piece: &Piece, repair: bool) -> Result<Verified, Cut> {
        let standing = self.stand(index).await?;
        let compared = self.compare(&standing, piece).await?;
        let differences = compared.differences();
        let missing = differences.iter().filter(|found| found.is < found.should).count() as u64;
        let tell = |found: &Difference| (hex(&found.key), found.bucket, found.is, found.should);
        let mut verified = Verified {
            entries: compared.is.len() as u64,
            missing,
            superfluous: differences.len() as u64 - missing,
            repaired: 0,
            told: differences.iter().take(MAX_TOLD).map(tell).collect(),
        };
        if repair {
            verified.repaired = self.mend(&standing, &piece.shard, differences).await?;
        }
        Ok(verified)
    }

    /// Waits until an index can be compared; refuses if it cannot be.
    pub(super) async fn stand(&self, index: &Arc<Watched>) -> Result<Standing<'_>, SqlError> {
        let definition = &index.definition;
        let one = self.indexes.comparing.lock().await;
        let record = store::load(self.catalog().as_ref(), &definition.entries).await?;
        if !record.is_some_and(|record| record.state == State::Ready) {
            return Err(not_ready(index));
        }
        let gate = self.indexes.gate.lock().await;
        let schema = self.schema();
        if let Some(table) = schema.tables.get(&definition.table)
            && let Some(plan) = moves::moving(self, table).await?
        {
            let message = format!("rows of table \"{}\" are being moved by plan {plan}", table.name);
            return Err(SqlError::new("55006", message).with_hint("wait until the move is completed"));
        }
        let (kept, builds) = (Kept::new(&self.indexes), index.builds());
        // What shards that had some of the buckets before have logged is in the entries: of those that have them now alone
        // must be asked what came between.
        self.drain_indexes(None).await?;
        Ok(Standing { index: index.clone(), builds, _one: one, _gate: gate, _kept: kept })
    }

    /// Compares a piece.
    pub(super) async fn compare(&self, standing: &Standing<'_>, piece: &Piece) -> Result<Compared, Cut> {
        let index = &standing.index;
        let owned = self.piece_of(index, &piece.shard).buckets;
        if !piece.buckets.iter().all(|bucket| owned.binary_search(bucket).is_ok()) {
            return Err(meanwhile(index, "rows were moved").into());
        }
        let shards = self.shards_with(index, piece);
        let mut from = BTreeMap::new();
        for shard in &shards {
            from.insert(shard.clone(), self.kept_from(index, shard).await?);
        }
        let (is, come) = self.read_entries(index, piece, &shards).await?;
        let mut should = Counts::new();
        for (shard, from) in &from {
            let come =
                |entry_bucket: u32| come.get(&(shard.clone(), entry_bucket)).map_or(*from, |come| (*from).max(*come));
            self.count_rows(index, piece, (shard, *from), come, &mut should).await?;
        }
        should.retain(|_, rows| *rows != 0);
        match self.is_as_it_was(standing) {
            true => Ok(Compared { is, should }),
            false => Err(meanwhile(index, "it was changed").into()),
        }
    }

    /// A position up to which all is in the entries, and after which all is in the log for as long as it is kept.
    async fn kept_from(&self, index: &Watched, shard: &ShardId) -> Result<Seq, SqlError> {
        let applier = self.indexes.applier(shard).ok_or_else(|| not_ready(index))?;
        let turn = applier.turn.lock().await;
        match turn.following.contains_key(&index.definition.entries) {
            true => Ok(turn.position),
            // Its rows have yet to be counted, and would be counted twice.
            false => Err(not_ready(index)),
        }
    }

    fn is_as_it_was(&self, standing: &Standing<'_>) -> bool {
        let now = self.indexes.watch.get(&standing.index.definition.entries);
        standing.index.builds() == standing.builds && now.is_some_and(|now| Arc::ptr_eq(&now, &standing.index))
    }

    /// Puts entries right. Returns how many.
    pub(super) async fn mend(
        &self,
        standing: &Standing<'_>,
        shard: &ShardId,
        differences: Vec<Difference>,
    ) -> Result<u64, SqlError> {
        if differences.is_empty() {
            return Ok(0);
        }
        let index = &standing.index;
        let mended = differences.len() as u64;
        let mut deltas: BTreeMap<u32, Vec<EntryDelta>> = BTreeMap::new();
        for Difference { entry_bucket, key, bucket, is, should } in differences {
            deltas.entry(entry_bucket).or_default().push(EntryDelta { key, bucket, rows: should - is });
        }
        let parts = parts_of(index, deltas);
        // Whoever throws the entries away takes every turn first: while this one is held, they are those that were compared.
        let applier = self.indexes.applier(shard).ok_or_else(|| not_ready(index))?;
        let turn = applier.turn.lock().await;
        if !turn.following.contains_key(&index.definition.entries) || !self.is_as_it_was(standing) {
            return Err(meanwhile(index, "it was changed"));
        }
        write(self, parts, Company::Nobody).await?;
        drop(turn);
        Ok(mended)
    }

    /// Counts what the rows of a shard said when its log was where each entry bucket has `come` to. Nothing of it up to
    /// `from` is asked for.
    async fn count_rows(
        &self,
        index: &Watched,
        piece: &Piece,
        (shard, from): (&ShardId, Seq),
        come: impl Fn(u32) -> Seq,
        counts: &mut Counts,
    ) -> Result<(), Cut> {
        let definition = &index.definition;
        let open = self.shards.get(shard).await.map_err(people)?;
        let mut snapshot = open.snapshot().await.map_err(people)?;
        let later = snapshot.later_changes().await.map_err(people)?;
        let scope = match definition.is_of_tenants() {
            true => Scope::All,
            false => Scope::Buckets(definition.group.clone(), piece.ranges()),
        };
        let mut range = KeyRange::table(&definition.table).within(scope);
        let mut read = 0;
        loop {
            let page = snapshot.page(&range, MAX_PAGE_ROWS).await.map_err(people)?;
            for row in &page.rows {
                if let Some(bucket) = definition.bucket_of(&row.unit).filter(|bucket| piece.has_bucket(*bucket)) {
                    count_row(index, piece, (&row.values, bucket, 1), |_| true, counts)?;
                }
            }
            read += page.rows.len();
            // Fewer buckets of tenants are not fewer rows to read.
            let can_be_less = piece.buckets.len() > 1 && piece.keys.is_none() && !definition.is_of_tenants();
            if read > MAX_READ && can_be_less {
                return Err(Cut::TooMany);
            }
            match page.next {
                Some(next) => range.after = Some(next),
                None => break,
            }
        }
        let through = snapshot.seq().max(later.last().copied().unwrap_or_default());
        for change in log_between(&*open, from, through).await? {
            let is_in_snapshot = change.seq <= snapshot.seq() || later.contains(&change.seq);
            let Some(bucket) = definition.bucket_of(&change.unit) else { continue };
            if change.table != index.definition.table || !is_in_snapshot || !piece.has_bucket(bucket) {
                continue;
            }
            for (row, rows) in [(&change.before, 1), (&change.after, -1)] {
                if let Some(row) = row {
                    let is_later = |entry_bucket| change.seq > come(entry_bucket);
                    count_row(index, piece, (row, bucket, rows), is_later, counts)?;
                }
            }
        }
        Ok(())
    }

    /// The entries that name buckets of a piece, and how far each entry bucket has come in the logs of its shards.
    async fn read_entries(
        &self,
        index: &Watched,
        piece: &Piece,
        of: &BTreeSet<ShardId>,
    ) -> Result<(Counts, BTreeMap<(ShardId, u32), Seq>), Cut> {
        let group = self.schema().group_of_entries(&index.definition.entries);
        let policy = self.routing.current();
        let owner = |bucket: u32| policy.shard_of_bucket(&group, BucketId(bucket));
        let last =
            policy.ranges(index.definition.routed(&policy)).and_then(|ranges| ranges.last()).map(|range| range.last);
        // An entry of a bucket that there is not is wrong, too, and somebody must see it.
        let is_named = |bucket: BucketId| piece.has_bucket(last.map_or(bucket, |last| bucket.min(last)));
        let shards: BTreeSet<&ShardId> = piece.entry_buckets.clone().filter_map(owner).collect();
        let (mut counts, mut come) = (Counts::new(), BTreeMap::new());
        for shard in shards {
            let open = self.shards.get(shard).await.map_err(people)?;
            let mut snapshot = open.snapshot().await.map_err(people)?;
            let now = self.routing.current();
            let is_owner = |bucket: u32| now.shard_of_bucket(&group, BucketId(bucket)) == owner(bucket);
            if !piece.entry_buckets.clone().all(is_owner) {
                return Err(meanwhile(index, "entries were moved").into());
            }
            for mut range in ranges(index, piece, of) {
                loop {
                    let page = snapshot.page(&range, MAX_PAGE_ROWS).await.map_err(people)?;
                    for row in page.rows {
                        let Unit::Bucket(_, entry_bucket) = row.unit else { continue };
                        if !piece.entry_buckets.contains(&entry_bucket.0) || owner(entry_bucket.0) != Some(shard) {
                            continue;
                        }
                        match StoredEntry::read(&row.values) {
                            Some(StoredEntry::Position { shard, through }) if of.contains(&shard) => {
                                come.insert((shard, entry_bucket.0), through);
                            }
                            Some(StoredEntry::Count { key, bucket, rows }) => {
                                let bucket = BucketId(u32::try_from(bucket).unwrap_or(u32::MAX));
                                if is_named(bucket) {
                                    counts.insert((entry_bucket.0, key.to_vec(), bucket), rows);
                                }
                            }
                            _ => {}
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
        }
        Ok((counts, come))
    }
}

/// No part is larger than what a shard takes at once.
fn parts_of(index: &Watched, deltas: BTreeMap<u32, Vec<EntryDelta>>) -> Vec<EntryPart> {
    let table = index.definition.entries.to_string();
    let mut parts = Vec::new();
    for (bucket, deltas) in deltas {
        for some in deltas.chunks(MENDED) {
            let (table, bucket) = (table.clone(), BucketId(bucket));
            parts.push(EntryPart { table, bucket, progress: None, deltas: some.to_vec() });
        }
    }
    parts
}

fn not_ready(index: &Watched) -> SqlError {
    let error = SqlError::new("55000", format!("index \"{}\" is not ready", index.definition.name));
    error.with_hint("SHOW INDEXES says what it is")
}

/// Where the entries of a piece are, and the positions of these shards.
fn ranges(index: &Watched, piece: &Piece, of: &BTreeSet<ShardId>) -> Vec<KeyRange> {
    let all = KeyRange::table(&index.definition.entries);
    let Some(keys) = &piece.keys else { return vec![all] };
    let counts = |key: &Vec<u8>| {
        let [after, through] = [-1, i64::MAX].map(|bucket| Some(StoredEntry::key_of(key, bucket, ENTRY_BUCKETS)));
        KeyRange { after, through, ..all.clone() }
    };
    let positions = |shard: &ShardId| {
        let [after, through] = Source::log(shard).positions().map(Some);
        KeyRange { after, through, ..all.clone() }
    };
    of.iter().map(positions).chain(keys.iter().map(counts)).collect()
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

/// Counts a row of a bucket so many times, if the piece has its key and its entry bucket is one that counts it.
fn count_row(
    index: &Watched,
    piece: &Piece,
    (row, bucket, rows): (&[Value], BucketId, i64),
    counts_it: impl Fn(u32) -> bool,
    counts: &mut Counts,
) -> Result<(), Cut> {
    let key = index.definition.key_of(row).map_err(|error| SqlError::new("0A000", error.to_string()))?;
    let Some(key) = key else { return Ok(()) };
    let entry_bucket = key.entry_bucket(ENTRY_BUCKETS);
    if piece.has_key(entry_bucket, &key.0) && counts_it(entry_bucket) {
        *counts.entry((entry_bucket, key.0, bucket)).or_default() += rows;
    }
    if counts.len() > MAX_COMPARED { Err(Cut::TooMany) } else { Ok(()) }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(buckets: &[u32], entry_buckets: Range<u32>) -> Piece {
        let shard = ShardId::new("s0").expect("a name");
        Piece { shard, buckets: buckets.to_vec(), entry_buckets, keys: None }
    }

    #[test]
    fn a_piece_is_cut_by_buckets_first() {
        let whole = piece(&[0, 1, 5], 0..4);
        assert_eq!(whole.ranges(), [0..=1, 5..=5]);
        let [low, high] = whole.split().expect("it has three");
        assert_eq!((low.buckets, high.buckets.clone()), (vec![0], vec![1, 5]));
        assert_eq!(high.entry_buckets, 0..4);
        let [low, high] = piece(&[7], 0..3).split().expect("three entry buckets");
        assert_eq!((low.entry_buckets, high.entry_buckets), (0..1, 1..3));
        assert!(piece(&[7], 2..3).split().is_none());
    }
}
