//! Additions that are not applied yet, for every index, and whether all of them are known.
//!
//! Additions are noted by entry bucket, so that a look at a key takes one lock, however many shards there are. Each
//! entry bucket has a stamp, which changes whenever something is noted there or forgotten: whoever remembers it knows
//! later whether it may have missed anything, and then asks whether that was of its keys.
//!
//! What is known of a log is complete from some position on: from where the index was first watched, or from where
//! additions had to be forgotten. An index can be read when every log has been applied past that.
//!
//! The order of things, on which I-23 stands:
//!   * who commits:   note, then stamp, then commit
//!   * who forgets:   say what is unknown, then forget, then stamp
//!   * who applies:   entries, then say how far
//!   * who looks:     stamp, is it complete, noted additions, entries; and the stamp again when it holds its snapshot

use super::define::Definition;
use super::{Limits, Planted, lock};
use arc_swap::ArcSwap;
use isles_engine::entries::Observer;
use isles_kernel::change::Change;
use isles_kernel::hash::BucketCount;
use isles_kernel::index::{KeyRange, LogNumber, Noted, Pending, Room};
use isles_kernel::names::{BucketId, SchemaVersion, Seq, ShardId};
use isles_kernel::schema::{ENTRY_BUCKETS, Schema};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// Between the numbers of a log that is lost again while its position is looked for.
const LOST_AGAIN: u64 = 1 << 40;

/// One index that is watched.
pub(crate) struct Watched {
    pub(crate) definition: Definition,
    buckets: Vec<EntryBucket>,
    /// Additions that wait in all entry buckets, and how many may.
    waiting: AtomicUsize,
    limit: usize,
    /// Logs of which not all additions are known.
    unknown: Mutex<BTreeMap<LogNumber, Unknown>>,
    /// How many those are.
    incomplete: AtomicUsize,
    /// Rows of an earlier schema have other columns at its places.
    since: AtomicU64,
    /// It has been built, and nobody has found it to be wrong.
    pub(crate) is_ready: AtomicBool,
    /// How often it was built anew.
    builds: AtomicU64,
    /// Statements that it led, and how many those were when somebody last ranked indexes by it.
    lookups: AtomicU64,
    ranked: AtomicU64,
    /// The last change of its table that was applied, of each shard's log; none since the database was opened, if absent.
    changed: Mutex<BTreeMap<ShardId, Seq>>,
    /// How far the entries have come with each log that an applier brings to them.
    come: Mutex<BTreeMap<LogNumber, Seq>>,
}

#[derive(Default)]
struct EntryBucket {
    /// The last addition that was noted here.
    stamp: AtomicU64,
    pending: Mutex<Pending>,
}

/// How much of a log is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unknown {
    /// What lies at or below this.
    Through(Seq),
    /// All up to a position that is yet to be found, by whoever has this number.
    Unbounded(u64),
}

impl Watched {
    fn new(definition: Definition, limit: usize) -> Watched {
        Watched {
            buckets: (0..ENTRY_BUCKETS).map(|_| EntryBucket::default()).collect(),
            waiting: AtomicUsize::new(0),
            limit: limit.max(1),
            unknown: Mutex::default(),
            incomplete: AtomicUsize::new(0),
            since: AtomicU64::new(definition.since.0),
            is_ready: AtomicBool::new(false),
            builds: AtomicU64::new(0),
            lookups: AtomicU64::new(0),
            ranked: AtomicU64::new(0),
            changed: Mutex::default(),
            come: Mutex::default(),
            definition,
        }
    }

    /// How often its entries have been thrown away.
    pub(crate) fn builds(&self) -> u64 {
        self.builds.load(Ordering::SeqCst)
    }

    /// Changes of its table are in the entries, the last of them at this position.
    pub(crate) fn has_changed(&self, shard: &ShardId, seq: Seq) {
        let mut changed = lock(&self.changed);
        let last = changed.entry(shard.clone()).or_default();
        *last = seq.max(*last);
    }

    /// How far its entries have come with a log; none while no applier brings them its changes.
    pub(crate) fn come(&self, log: LogNumber) -> Option<Seq> {
        lock(&self.come).get(&log).copied()
    }

    /// No applier brings it the changes of a log any more.
    pub(super) fn left(&self, log: LogNumber) {
        lock(&self.come).remove(&log);
    }

    pub(crate) fn last_change(&self, shard: &ShardId) -> Seq {
        lock(&self.changed).get(shard).copied().unwrap_or_default()
    }

    /// It leads a statement.
    pub(crate) fn used(&self) {
        self.lookups.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn lookups(&self) -> u64 {
        self.lookups.load(Ordering::Relaxed)
    }

    /// How many statements it has led since the last [`Watched::rank`].
    pub(crate) fn lookups_lately(&self) -> u64 {
        self.lookups().saturating_sub(self.ranked.load(Ordering::Relaxed))
    }

    pub(crate) fn rank(&self) {
        self.ranked.store(self.lookups(), Ordering::Relaxed);
    }

    pub(crate) fn since(&self) -> SchemaVersion {
        SchemaVersion(self.since.load(Ordering::SeqCst))
    }

    /// Its columns have been where they are since an earlier version.
    pub(crate) fn has_been_since(&self, version: SchemaVersion) {
        self.since.fetch_min(version.0, Ordering::SeqCst);
    }

    /// Whether a look at noted additions and entries finds all rows.
    pub(crate) fn can_be_read(&self) -> bool {
        self.is_ready.load(Ordering::SeqCst) && self.incomplete.load(Ordering::SeqCst) == 0
    }

    pub(crate) fn stamp(&self, entry_bucket: u32) -> Noted {
        Noted(self.buckets[entry_bucket as usize].stamp.load(Ordering::SeqCst))
    }

    /// Whether a key of a range may have been added since an entry bucket had this stamp.
    pub(crate) fn has_added(&self, entry_bucket: u32, range: &KeyRange, since: Noted) -> bool {
        self.stamp(entry_bucket) != since && lock(&self.buckets[entry_bucket as usize].pending).has_added(range, since)
    }

    /// Buckets to which keys of a range have been added.
    pub(crate) fn pending(&self, entry_bucket: u32, range: &KeyRange, found: &mut impl Extend<BucketId>) {
        found.extend(lock(&self.buckets[entry_bucket as usize].pending).buckets(range));
    }

    /// How many additions wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    fn add(&self, log: LogNumber, change: &Change) {
        let Some(bucket) = self.definition.bucket_of(&change.unit) else { return };
        let key = |row: &Option<Vec<_>>| row.as_ref().and_then(|row| self.definition.key_of(row).ok().flatten());
        let Some(after) = key(&change.after) else { return };
        if key(&change.before).as_ref() == Some(&after) {
            return;
        }
        if self.waiting() >= self.limit {
            self.make_room();
        }
        let at = &self.buckets[after.entry_bucket(ENTRY_BUCKETS) as usize];
        let mut pending = lock(&at.pending);
        if pending.add(log, change.seq, &after.0, bucket) == Room::Taken {
            self.waiting.fetch_add(1, Ordering::SeqCst);
        }
        at.stamp.store(pending.last().0, Ordering::SeqCst);
    }

    /// Forgets what waits in the entry bucket that has most. It has its share of all at least, so this is seldom done.
    fn make_room(&self) {
        let most = self.buckets.iter().max_by_key(|bucket| lock(&bucket.pending).len());
        most.into_iter().for_each(|bucket| self.forget(bucket));
    }

    fn forget(&self, at: &EntryBucket) {
        let mut unknown = lock(&self.unknown);
        let mut pending = lock(&at.pending);
        self.waiting.fetch_sub(pending.len(), Ordering::SeqCst);
        for (log, through) in pending.forget_all() {
            let what = match unknown.get(&log) {
                // Whoever is looking for its position may have found one below this.
                Some(Unknown::Unbounded(number)) => Unknown::Unbounded(number.wrapping_add(LOST_AGAIN)),
                Some(Unknown::Through(known)) => Unknown::Through(through.max(*known)),
                None => Unknown::Through(through),
            };
            unknown.insert(log, what);
        }
        // Whoever finds nothing here now finds that the index cannot be read, or is told when it compares.
        self.incomplete.store(unknown.len(), Ordering::SeqCst);
        at.stamp.store(pending.last().0, Ordering::SeqCst);
    }

    /// Nothing of a log is known up to a position that is yet to be found.
    fn lose(&self, log: LogNumber, number: u64) {
        let mut unknown = lock(&self.unknown);
        unknown.insert(log, Unknown::Unbounded(number));
        self.incomplete.store(unknown.len(), Ordering::SeqCst);
        drop(unknown);
        self.stamp_all();
    }

    /// Its entries are about to go. Whoever is looking at them learns of it when it compares, and whoever compares them with
    /// rows must not mend them any more.
    pub(super) fn close(&self) {
        self.is_ready.store(false, Ordering::SeqCst);
        self.builds.fetch_add(1, Ordering::SeqCst);
        self.stamp_all();
    }

    fn stamp_all(&self) {
        for bucket in &self.buckets {
            let mut pending = lock(&bucket.pending);
            pending.overtake();
            bucket.stamp.store(pending.last().0, Ordering::SeqCst);
        }
    }

    /// The entries have all of a log up to `position`.
    pub(crate) fn applied(&self, log: LogNumber, position: Seq) {
        for bucket in &self.buckets {
            let went = lock(&bucket.pending).applied(log, position);
            self.waiting.fetch_sub(went, Ordering::SeqCst);
        }
        lock(&self.come).insert(log, position);
        let mut unknown = lock(&self.unknown);
        if matches!(unknown.get(&log), Some(Unknown::Through(through)) if *through <= position) {
            unknown.remove(&log);
        }
        self.incomplete.store(unknown.len(), Ordering::SeqCst);
    }
}

/// All indexes of a database, and all its logs.
#[derive(Default)]
pub(crate) struct Watch {
    watching: ArcSwap<Watching>,
    logs: ArcSwap<BTreeMap<ShardId, Log>>,
    /// Numbers logs, and times at which one was lost.
    numbers: AtomicU64,
    /// A log was lost, or is new: somebody must find out from where on it is known.
    pub(crate) lost: Notify,
    planted: Option<Planted>,
    limits: Limits,
    /// Some applier may be so far behind that writes wait for it.
    is_late: AtomicBool,
}

/// A log that appliers follow.
#[derive(Clone)]
pub(crate) struct Log {
    pub(crate) number: LogNumber,
    /// It has something new for an applier.
    pub(crate) grown: Arc<Notify>,
    /// The last position that was noted, or read.
    pub(crate) end: Arc<AtomicU64>,
    /// How far the entries of all indexes have come, if anything follows it.
    pub(crate) come: Arc<AtomicU64>,
}

impl Log {
    fn new(number: LogNumber) -> Log {
        Log { number, grown: Arc::default(), end: Arc::default(), come: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    /// How many changes the entries are behind.
    pub(crate) fn lag(&self) -> u64 {
        self.end.load(Ordering::SeqCst).saturating_sub(self.come.load(Ordering::SeqCst))
    }
}

#[derive(Default)]
struct Watching {
    version: SchemaVersion,
    by_table: HashMap<String, Vec<Arc<Watched>>>,
    all: BTreeMap<Arc<str>, Arc<Watched>>,
}

impl Watch {
    pub(super) fn new(planted: Option<Planted>, limits: Limits) -> Watch {
        Watch { planted, limits, ..Watch::default() }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How many changes the entries are behind the log that they are most behind; zero unless writes must wait for that.
    pub(super) fn lateness(&self) -> u64 {
        if !self.is_late.load(Ordering::Relaxed) {
            return 0;
        }
        let most = self.logs.load().values().map(Log::lag).max().unwrap_or(0);
        if most <= self.limits.lag {
            self.is_late.store(false, Ordering::Relaxed);
            return 0;
        }
        most
    }

    /// Watches the indexes of a schema. One that was watched goes on as it is, unless its columns are elsewhere now.
    pub(crate) fn follow(&self, schema: &Schema, tenants: BucketCount) {
        let before = self.watching.load();
        let mut next = Watching { version: schema.version, ..Watching::default() };
        for (table, key) in schema.global_keys() {
            let Some(mut definition) = Definition::of(table, key, schema.version, tenants) else { continue };
            let known = before.all.get(&definition.entries);
            let watched = match known {
                Some(known)
                    if known.definition.reads_alike(&definition) && known.definition.name == definition.name =>
                {
                    known.clone()
                }
                known => {
                    if let Some(known) = known.filter(|known| known.definition.reads_alike(&definition)) {
                        definition.since = known.definition.since;
                    }
                    let watched = Watched::new(definition, self.limits.additions);
                    for log in self.logs.load().values() {
                        watched.lose(log.number, self.next_number());
                    }
                    let ready = known.is_some_and(|known| known.is_ready.load(Ordering::SeqCst));
                    watched.is_ready.store(ready, Ordering::SeqCst);
                    Arc::new(watched)
                }
            };
            next.by_table.entry(table.name.clone()).or_default().push(watched.clone());
            next.all.insert(watched.definition.entries.clone(), watched);
        }
        self.watching.store(Arc::new(next));
        self.lost.notify_one();
    }

    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Watched>> {
        self.watching.load().all.values().cloned().collect()
    }

    pub(crate) fn get(&self, entries: &str) -> Option<Arc<Watched>> {
        self.watching.load().all.get(entries).cloned()
    }

    /// Numbers a shard's log, which is new or has been followed before.
    pub(crate) fn add_log(&self, shard: &ShardId) -> Log {
        if let Some(log) = self.logs.load().get(shard) {
            return log.clone();
        }
        let log = Log::new(LogNumber(self.next_number() as u32));
        for watched in self.all() {
            watched.lose(log.number, self.next_number());
        }
        self.logs.rcu(|logs| {
            let mut logs = BTreeMap::clone(logs);
            logs.insert(shard.clone(), log.clone());
            logs
        });
        self.lost.notify_one();
        log
    }

    pub(crate) fn has_log(&self, shard: &ShardId) -> bool {
        self.logs.load().contains_key(shard)
    }

    /// A shard has gone, with its log.
    pub(crate) fn remove_log(&self, shard: &ShardId) {
        let Some(log) = self.logs.load().get(shard).cloned() else { return };
        self.logs.rcu(|logs| {
            let mut logs = BTreeMap::clone(logs);
            logs.remove(shard);
            logs
        });
        self.all().iter().for_each(|watched| {
            let mut unknown = lock(&watched.unknown);
            unknown.remove(&log.number);
            lock(&watched.come).remove(&log.number);
            watched.incomplete.store(unknown.len(), Ordering::SeqCst);
        });
    }

    /// Indexes of which a log's additions are not known up to a position that must be found, with a number to say then.
    pub(crate) fn lost_of(&self, shard: &ShardId) -> Vec<(Arc<Watched>, u64)> {
        let Some(log) = self.logs.load().get(shard).map(|log| log.number) else { return Vec::new() };
        let lost = |watched: Arc<Watched>| {
            let unknown = lock(&watched.unknown).get(&log).copied();
            match unknown {
                Some(Unknown::Unbounded(number)) => Some((watched, number)),
                _ => None,
            }
        };
        self.all().into_iter().filter_map(lost).collect()
    }

    /// All additions of a log after `position` are known, unless it was lost again since. The entries have come to
    /// `applied`.
    pub(crate) fn found(&self, watched: &Watched, shard: &ShardId, number: u64, position: Seq, applied: Seq) {
        let Some(log) = self.logs.load().get(shard).map(|log| log.number) else { return };
        let mut unknown = lock(&watched.unknown);
        if unknown.get(&log) == Some(&Unknown::Unbounded(number)) {
            unknown.insert(log, Unknown::Through(position));
        }
        drop(unknown);
        watched.applied(log, applied);
    }
}

impl Observer for Watch {
    fn is_interested(&self) -> bool {
        !self.watching.load().all.is_empty()
    }

    fn committing(&self, shard: &ShardId, changes: &[Change]) {
        let watching = self.watching.load();
        let logs = self.logs.load();
        // A log that nobody follows yet is lost for every index, until it is found.
        let Some(log) = logs.get(shard) else { return };
        if let Some(last) = changes.last() {
            log.end.fetch_max(last.seq.0, Ordering::SeqCst);
            if log.lag() > self.limits.lag {
                self.is_late.store(true, Ordering::Relaxed);
            }
        }
        for change in changes {
            let Some(indexes) = watching.by_table.get(&change.table) else { continue };
            if change.schema != watching.version {
                indexes.iter().for_each(|watched| watched.lose(log.number, self.next_number()));
                self.lost.notify_one();
                continue;
            }
            if self.planted != Some(Planted::NoTail) {
                indexes.iter().for_each(|watched| watched.add(log.number, change));
            }
        }
        log.grown.notify_one();
    }

    fn committing_unseen(&self, shard: &ShardId) {
        let logs = self.logs.load();
        let Some(log) = logs.get(shard) else { return };
        self.all().iter().for_each(|watched| watched.lose(log.number, self.next_number()));
        self.lost.notify_one();
        log.grown.notify_one();
    }
}
