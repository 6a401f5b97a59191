//! A reader of several shards sees all of a commit over several shards, or nothing of it.
//!
//! A commit holds the latches of its shards while they commit, one after the other; a reader holds those of the shards
//! it reads while it takes its snapshots, and lets go before it reads. So no reader's snapshots lie on both sides of a
//! commit. Who reads one shard needs none of this.
//!
//! Everyone takes latches in the order of names, so nobody waits in a ring.

use isles_kernel::names::ShardId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

pub(crate) struct Latches {
    shards: BTreeMap<ShardId, Arc<RwLock<()>>>,
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
        Latches { shards: shards.into_iter().map(|shard| (shard, Arc::default())).collect() }
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
        names.into_iter().filter_map(|name| self.shards.get(name).cloned()).collect()
    }
}
