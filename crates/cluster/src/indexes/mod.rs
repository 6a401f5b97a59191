//! Global indexes, kept up.
//!
//! ```text
//! a commit ─► its additions are noted (watch) ─► rows and change log, one commit
//!                                                      │ later, many at once
//!                             applier of the shard ◄───┘
//!                                      │ counts, with the position, one commit for each shard of entries
//!                                      ▼
//! a statement ─► noted additions, then entries (find) ─► buckets ─► shards
//! ```
//!
//! No statement is changed, nothing is fetched before a write, and no write waits for an index: on a SQLite shard the
//! additions of a commit are in the hands of its writer anyway, and on a PostgreSQL shard the transaction is asked for
//! them just before its COMMIT is sent.
//!
//! A statement is led to the shards that had its keys at the moment of the look. It runs a little later, so what it was
//! led by is compared once more when it holds its snapshot, or the writer: if anything was added to those keys meanwhile,
//! it looks again ([`isles_engine::entries::Still`]).
//!
//! In reading order:
//!   * [`define`]  what an index is over
//!   * [`watch`]   additions that are not applied yet
//!   * [`find`]    where rows with certain keys are
//!   * [`apply`]   changes of a shard's log, summed up for the entries
//!   * [`write`]   the sums, written to the shards that have the entries
//!   * [`build`]   entries for rows that were there before the index
//!   * [`duplicates`] rows that keep an index from being unique
//!   * [`store`]   what the catalog keeps of an index
//!   * [`keep`]    who builds, follows and gives up
//!   * [`verify`]  entries, compared with rows
//!   * [`json`]    what operators send, taken apart field by field
//!   * [`mend`]    entries by hand: pages of them, and changes that the rows confirm
//!   * [`jobs`]    requests to compare some shards, done one pass after the other
//!   * [`reconcile`]  all indexes compared, now and then
//!   * [`show`]    what operators see
//!
//! Invariants (docs/invariants.md):
//!   * I-23  of every row there is an entry, or its addition is noted
//!   * I-24  a statement by an index gives what a statement over all shards gives
//!   * I-25  every shard that is named is asked with the statement's own condition
//!   * I-27  an index is read when I-23 holds for all rows, and not before
//!   * I-28  entries name buckets: a move changes none

pub(crate) mod apply;
mod build;
pub(crate) mod define;
mod duplicates;
pub(crate) mod find;
mod jobs;
mod json;
mod keep;
mod mend;
mod reconcile;
mod show;
mod store;
mod verify;
pub(crate) mod watch;
mod write;

use crate::database::Database;
use crate::execute::bounds::Bounds;
use apply::Applier;
use isles_engine::entries::Observed;
use isles_engine::error::ShardError;
use isles_engine::shard::Shard;
use isles_kernel::error::SqlError;
use isles_kernel::index::index_stream;
use isles_kernel::names::{GroupName, ShardId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::Schema;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use watch::{Watch, Watched};

pub use jobs::{Job, JobInfo, JobState, Operation};
pub use mend::{EntryChange, EntryOutcome, EntryPage, EntryRow, PAGE_LIMIT};
pub use show::{IndexInfo, IndexWork, PAGE_BOUNDS};
pub use store::State;
pub use verify::Verified;

/// Bugs that global indexes can be told to have. A harness that does not find them proves nothing (I-69).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// Additions are not noted before they can be seen: the entries alone are believed (planted bug 9).
    NoTail,
    /// What a statement was led by is not compared again when it holds its snapshot (planted bug 10).
    NoLookAgain,
    /// An index is read as soon as it is there, and not when all rows are in it.
    ReadUnbuilt,
    /// A key of a unique index is held for ever (planted bug 18).
    KeysKept,
}

/// Bounds of what global indexes take. Tests lower them.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Additions of one index that are noted and not applied. At 200 bytes each, and their keys, they are some tens of
    /// megabytes for most keys; with keys of 512 bytes throughout they are 200.
    pub additions: usize,
    /// Entries that a look reads on one shard. So many different buckets are nearly always on all shards.
    pub entries: usize,
    /// Changes of one log that are not in the entries. Beyond this writes to indexed tables wait, each a little; a log of
    /// SQLite is cut off at some five times as many, and one of PostgreSQL at ten times.
    pub lag: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { additions: 262_144, entries: 4_096, lag: 1_000_000 }
    }
}

/// How long one write waits at most for indexes that are behind: where they are twice as far behind as they may be.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// One who waits looks so often whether it still has to.
const DELAY_LOOK: Duration = Duration::from_millis(20);

/// What a database has of global indexes.
#[derive(Default)]
pub(crate) struct Indexes {
    planted: Option<Planted>,
    pub(crate) watch: Arc<Watch>,
    appliers: Mutex<BTreeMap<ShardId, Arc<Applier>>>,
    /// What appliers have for each shard.
    piles: Mutex<BTreeMap<ShardId, Arc<write::Pile>>>,
    /// Tells the keeper to look.
    news: Notify,
    /// Indexes that are being built, by the name of their entries, and what is known of it.
    builds: Mutex<BTreeMap<Arc<str>, build::Progress>>,
    /// Indexes that must be built anew, by the name of their entries, and why.
    anew: Mutex<BTreeMap<Arc<str>, String>>,
    /// Indexes that the keeper could not look after when it last tried, and why.
    troubles: Mutex<BTreeMap<Arc<str>, String>>,
    /// Held by whoever begins a build, or plans a move: neither begins while the other is under way.
    pub(crate) gate: tokio::sync::Mutex<()>,
    /// Held by whoever compares entries with rows: what two found wrong would be mended twice.
    comparing: tokio::sync::Mutex<()>,
    /// How many want logs to be kept although all is in the entries.
    kept: AtomicUsize,
    jobs: jobs::Jobs,
    counted: Counted,
}

/// Figures for metrics.
#[derive(Default)]
pub(crate) struct Counted {
    /// Statements that were led by an index.
    pub(crate) lookups: AtomicU64,
    /// Statements that an index could have led, and that asked all shards.
    pub(crate) fallbacks: AtomicU64,
    /// Entries that looks have read.
    pub(crate) read: AtomicU64,
    /// Writes that waited for the entries, and for how many milliseconds.
    pub(crate) delays: AtomicU64,
    pub(crate) delayed_ms: AtomicU64,
    /// Comparisons by which a statement learned that keys had been added since its look.
    pub(crate) overtaken: AtomicU64,
    /// Pages of change logs that were applied, and the changes in them.
    pub(crate) pages: AtomicU64,
    pub(crate) changes: AtomicU64,
    /// Entries that were changed.
    pub(crate) entries: AtomicU64,
    /// Pages by how many changes they had, as [`PAGE_BOUNDS`] says.
    pub(crate) page_sizes: [AtomicU64; PAGE_BOUNDS.len() + 1],
}

impl Counted {
    /// A page of so many changes was applied. One without any says only that a log has come further.
    fn page(&self, changes: usize) {
        if changes == 0 {
            return;
        }
        count(&self.pages, 1);
        count(&self.changes, changes as u64);
        let at = PAGE_BOUNDS.iter().position(|bound| changes as u64 <= *bound).unwrap_or(PAGE_BOUNDS.len());
        count(&self.page_sizes[at], 1);
    }
}

fn count(of: &AtomicU64, n: u64) {
    of.fetch_add(n, Ordering::Relaxed);
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a write waits where entries are so many changes behind: the longer, the further they are beyond their limit.
fn delay(late: u64, limit: u64) -> Duration {
    let beyond = late.saturating_sub(limit) as f64 / limit.max(1) as f64;
    MAX_DELAY.mul_f64(beyond.min(1.0))
}

impl Indexes {
    pub(crate) fn new(planted: Option<Planted>, limits: Limits) -> Indexes {
        let watch = Arc::new(Watch::new(planted, limits));
        Indexes { planted, watch, ..Indexes::default() }
    }

    /// A statement is led by these.
    pub(crate) fn note_lookup(&self, by: &[find::Wanted]) {
        count(&self.counted.lookups, 1);
        by.iter().for_each(|one| one.index.used());
    }

    /// A statement that an index could have led asks all shards.
    pub(crate) fn note_fallback(&self) {
        count(&self.counted.fallbacks, 1);
    }

    pub(crate) fn plants(&self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }

    /// Who is told of the changes of all shards.
    pub(crate) fn observed(&self) -> Observed {
        Observed(Some(self.watch.clone()))
    }

    /// The schema that holds from here on. Whoever calls this is alone in it.
    pub(crate) fn follow(&self, schema: &Schema, policy: &RoutingPolicy) {
        self.watch.follow(schema, policy.tenant_buckets());
        self.news.notify_one();
    }

    /// The groups whose rows must not be moved, since an index over them is being built.
    pub(crate) fn building(&self) -> BTreeSet<GroupName> {
        lock(&self.builds).values().map(|build| build.group.clone()).collect()
    }

    /// A shard is about to come: what it will write is in its log until the indexes have it.
    pub(crate) async fn expect(&self, shard: &dyn Shard) -> Result<(), ShardError> {
        match self.watch.all().is_empty() {
            true => Ok(()),
            false => shard.add_consumer(&index_stream()).await.map(drop),
        }
    }

    /// A shard has come: its log is followed from here on.
    pub(crate) fn admit(&self, shard: &ShardId) {
        if !self.watch.all().is_empty() {
            self.watch.add_log(shard);
            self.news.notify_one();
        }
    }

    /// A shard has gone.
    pub(crate) fn dismiss(&self, shard: &ShardId) {
        lock(&self.appliers).remove(shard);
        lock(&self.piles).remove(shard);
        self.watch.remove_log(shard);
    }

    fn applier(&self, shard: &ShardId) -> Option<Arc<Applier>> {
        lock(&self.appliers).get(shard).cloned()
    }
}

impl Database {
    /// Waits before a write to an indexed table if the entries are too far behind: so long that appliers catch up, and no
    /// longer. Whoever calls this holds no writer, for the appliers need them. While changes cannot be applied at all,
    /// waiting would not help.
    pub(crate) async fn hold_back(&self, bounds: &Bounds) -> Result<(), SqlError> {
        let late = self.indexes.watch.lateness();
        if late == 0 || lock(&self.indexes.appliers).values().any(|applier| applier.is_in_trouble()) {
            return Ok(());
        }
        let (began, wait) = (self.env.elapsed(), delay(late, self.indexes.watch.limits().lag));
        lock(&self.indexes.appliers).values().for_each(|applier| applier.hurry());
        while self.env.elapsed() < began + wait && self.indexes.watch.lateness() > 0 {
            let left = (began + wait).saturating_sub(self.env.elapsed());
            bounds.wait(&*self.env, self.env.sleep(left.min(DELAY_LOOK))).await?;
        }
        count(&self.indexes.counted.delays, 1);
        let waited = self.env.elapsed().saturating_sub(began);
        count(&self.indexes.counted.delayed_ms, u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
        Ok(())
    }

    /// Indexes are kept up from here on, and compared with the rows so often; never, if that is zero.
    pub(crate) fn start_indexes(self: &Arc<Self>, verify_every: Duration) {
        keep::start(self);
        jobs::start(self);
        reconcile::start(self, verify_every);
    }

    /// The index that operators call by this name.
    fn index_named(&self, name: &str) -> Result<Arc<Watched>, SqlError> {
        let found = self.indexes.watch.all().into_iter().find(|index| index.definition.name == name);
        let error = || SqlError::new("42704", format!("there is no global index \"{name}\""));
        found.ok_or_else(|| error().with_hint("SHOW INDEXES lists them"))
    }

    /// What an index is known by below its name.
    pub fn entries_of_index(&self, name: &str) -> Result<String, SqlError> {
        Ok(self.index_named(name)?.definition.entries.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_wait_the_longer_the_further_entries_are_behind() {
        let wait = |late| delay(late, 1_000);
        assert_eq!((wait(0), wait(1_000)), (Duration::ZERO, Duration::ZERO));
        assert_eq!((wait(1_100), wait(1_500)), (MAX_DELAY / 10, MAX_DELAY / 2));
        assert_eq!((wait(2_000), wait(u64::MAX)), (MAX_DELAY, MAX_DELAY));
    }
}
