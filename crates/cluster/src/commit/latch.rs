//! A reader of several shards sees all of a commit over several shards, or nothing of it.
//!
//! A commit holds the latches of its shards while they commit, one after the other; a reader holds those of the shards
//! it reads while it takes its snapshots, and lets go before it reads. So no reader's snapshots lie on both sides of a
//! commit.
//!
//! A statement that comes to one shard takes no latch, and may see a commit there before the other shards have it. It is
//! answered once they do: whoever has the answer, and asks another shard, finds the other half ([`Latches::settle`]).
//!
//! A transaction that keeps its snapshots takes them one after the other, as it comes to its shards. So each commit over
//! several shards leaves its number on them: a shard with a higher number than the transaction's first snapshot has
//! seen a commit whose other half that snapshot may be without.
//!
//! Everyone takes latches in the order of names, so nobody waits in a ring.

use crate::per_shard::PerShard;
use isles_kernel::names::ShardId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

pub(crate) struct Latches {
    shards: PerShard<Latch>,
    /// Counts commits over several shards.
    commits: AtomicU64,
}

#[derive(Default)]
struct Latch {
    lock: Arc<RwLock<()>>,
    /// The number of the last commit that it took part in.
    commit: AtomicU64,
}

/// Held for as long as snapshots are being taken.
pub(crate) struct Shared {
    _guards: Vec<OwnedRwLockReadGuard<()>>,
}

/// Held for as long as shards commit.
pub(crate) struct Exclusive {
    _guards: Vec<OwnedRwLockWriteGuard<()>>,
}

impl Latches {
    pub(crate) fn new(shards: impl IntoIterator<Item = ShardId>) -> Latches {
        let shards = shards.into_iter().map(|shard| (shard, Latch::default())).collect();
        Latches { shards, commits: AtomicU64::new(0) }
    }

    /// Takes in a shard that has no part in any commit yet.
    pub(crate) fn admit(&self, shard: &ShardId) {
        self.shards.insert(shard.clone(), Latch::default());
    }

    pub(crate) fn dismiss(&self, shard: &ShardId) {
        self.shards.remove(shard);
    }

    /// The number of the last commit over several shards.
    pub(crate) fn now(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    /// The number of the last one that a shard took part in.
    pub(crate) fn commit_of(&self, shard: &ShardId) -> u64 {
        self.shards.get(shard).map_or(0, |latch| latch.commit.load(Ordering::SeqCst))
    }

    /// Counts a commit of these shards, whose latches the caller holds.
    pub(crate) fn count(&self, shards: &[ShardId]) {
        let number = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
        for latch in shards.iter().filter_map(|shard| self.shards.get(shard)) {
            latch.commit.store(number, Ordering::SeqCst);
        }
    }

    /// Waits for the end of the commits over several shards that a shard takes part in now.
    pub(crate) async fn settle(&self, shard: &ShardId) {
        let Some(latch) = self.shards.get(shard) else { return };
        if latch.lock.try_read().is_err() {
            drop(latch.lock.read().await);
        }
    }

    pub(crate) async fn shared(&self, shards: impl IntoIterator<Item = &ShardId>) -> Shared {
        let mut guards = Vec::new();
        for latch in self.ordered(shards) {
            guards.push(latch.read_owned().await);
        }
        Shared { _guards: guards }
    }

    pub(crate) async fn exclusive(&self, shards: impl IntoIterator<Item = &ShardId>) -> Exclusive {
        let mut guards = Vec::new();
        for latch in self.ordered(shards) {
            guards.push(latch.write_owned().await);
        }
        Exclusive { _guards: guards }
    }

    fn ordered<'a>(&self, shards: impl IntoIterator<Item = &'a ShardId>) -> Vec<Arc<RwLock<()>>> {
        let names: BTreeSet<&ShardId> = shards.into_iter().collect();
        names.into_iter().filter_map(|name| self.shards.get(name)).map(|latch| latch.lock.clone()).collect()
    }
}
