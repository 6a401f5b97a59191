//! Entries of global indexes in a shard, and who is told of the rows that they will have to follow.
//!
//! A shard keeps some entry buckets of each index: rows of a table like any other (`isles_kernel::schema::entries`), which
//! nobody but these functions writes. They count rows of *other* shards; whose, and what a key means, the shard does not
//! know.
//!
//! Invariants (docs/invariants.md):
//!   * I-23  an entry bucket's position is changed in the transaction that changes its entries
//!   * I-23  an observer is told of a change before anyone can see it

use crate::error::{Result, ShardError};
use crate::shard::Limits;
use isles_kernel::change::Change;
use isles_kernel::index::{EntryDelta, KeyRange, Source};
use isles_kernel::names::{BucketId, Seq, ShardId};
use std::fmt;
use std::sync::Arc;

/// Entries that change at once; it is one transaction and holds the writer.
pub const MAX_ENTRIES: usize = 10_000;

/// What a page of a log makes of one entry bucket of one index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryPart {
    /// The index's table of entries.
    pub table: String,
    pub bucket: BucketId,
    /// None: nobody asks whether it has been done already, as while an index is built.
    pub progress: Option<EntryProgress>,
    pub deltas: Vec<EntryDelta>,
}

/// How far a part brings an entry bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryProgress {
    pub source: Source,
    /// Where the bucket stood when the part was computed. If it stands at `through` or later it has all of it, and is
    /// left; anywhere else, nothing of the batch happens.
    pub from: Seq,
    pub through: Seq,
}

/// Which entries are deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntriesOf {
    /// All, with all positions.
    Index,
    /// Those that name one of these buckets, and the positions of a source.
    Source(Source, Vec<BucketId>),
}

/// The bucket stands neither where a part begins nor where it leads.
pub(crate) fn stands_elsewhere(bucket: BucketId, stands: Seq, progress: &EntryProgress) -> ShardError {
    ShardError::Conflict(format!("entry bucket {bucket} stands at {stands}, not at {}", progress.from))
}

pub(crate) fn check_size(parts: &[EntryPart]) -> Result<()> {
    match parts.iter().map(|part| part.deltas.len()).sum::<usize>() {
        0..=MAX_ENTRIES => Ok(()),
        _ => Err(ShardError::Limit { what: "the number of entries", limit: MAX_ENTRIES as u64 }),
    }
}

/// Keys that are looked for in one entry bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryProbe {
    pub table: Arc<str>,
    pub bucket: BucketId,
    pub range: KeyRange,
}

/// A look at entries.
#[derive(Debug, Clone)]
pub struct EntryLook {
    pub probes: Vec<EntryProbe>,
    /// Entries that are read at most; nobody waits for the rest of a long range.
    pub most: usize,
    /// Time, and cancelling.
    pub limits: Limits,
}

/// What a look has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntriesFound {
    /// Buckets that have rows with the keys; one may be named twice.
    pub buckets: Vec<BucketId>,
    /// Entries that were read.
    pub read: usize,
    /// Whether there may be more: so many were read as may be.
    pub is_cut: bool,
}

impl EntriesFound {
    /// How many entries may be read yet, and one more, which tells whether there are more.
    pub(crate) fn left(&self, most: usize) -> usize {
        most.saturating_sub(self.read) + 1
    }

    /// A bucket has so many of the entries that were read; the largest of them counts so many rows.
    pub(crate) fn note(&mut self, bucket: i64, rows: i64, entries: i64) {
        self.read += entries as usize;
        if rows > 0 {
            self.buckets.push(BucketId(bucket as u32));
        }
    }
}

/// Is told of a shard's changes before they can be seen.
pub trait Observer: Send + Sync {
    /// Whether there is anything to tell.
    fn is_interested(&self) -> bool;
    /// These are about to be committed. It may come to nothing; then their positions are given to others.
    fn committing(&self, shard: &ShardId, changes: &[Change]);
    /// Something is about to be committed that cannot be shown: it was written under a schema that is not known yet.
    fn committing_unseen(&self, shard: &ShardId);
}

/// The observer of a shard, if it has one.
#[derive(Clone, Default)]
pub struct Observed(pub Option<Arc<dyn Observer>>);

impl Observed {
    /// The observer, if it is interested.
    pub(crate) fn interested(&self) -> Option<&Arc<dyn Observer>> {
        self.0.as_ref().filter(|observer| observer.is_interested())
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Observed" } else { "Unobserved" })
    }
}

/// Something that must still hold when a request is carried out, besides the fences; once it does not, it never does.
#[derive(Clone)]
pub struct Still(pub Arc<dyn Fn() -> bool + Send + Sync>);

impl Still {
    pub fn holds(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for Still {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Still")
    }
}

impl PartialEq for Still {
    fn eq(&self, other: &Still) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Still {}
