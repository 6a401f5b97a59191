//! Which shards have strangers: rows of buckets that they do not own, because these are being moved here or away.
//!
//! A shard refuses statements that would take strangers for its own. What it has said once is remembered here, so that
//! later statements keep to the shard's buckets from the start. A mover in the same process says it beforehand, and says
//! when they have gone. To remember too much costs a condition in some statements; to remember too little, a refusal.
//!
//! Invariants (docs/invariants.md):
//!   * I-11  what is remembered here decides how a statement is written; what it may see, the shard's fence decides

use super::Database;
use arc_swap::ArcSwap;
use isles_engine::fence::Claimed;
use isles_kernel::names::{GroupName, ShardId};
use std::collections::BTreeSet;

/// At most each group on each shard.
#[derive(Default)]
pub(crate) struct Strangers(ArcSwap<BTreeSet<(ShardId, GroupName)>>);

impl Database {
    /// Remembers that a shard may have strangers of a group.
    pub(crate) fn note_strangers(&self, shard: &ShardId, group: &GroupName) {
        if !self.has_strangers(shard, group) {
            self.strangers.change(|known| known.insert((shard.clone(), group.clone())));
        }
    }

    /// They have gone, and the shard's fence says so: statements over all that it has may be written as ever.
    #[allow(dead_code, reason = "only who moves buckets knows")]
    pub(crate) fn forget_strangers(&self, shard: &ShardId, group: &GroupName) {
        self.strangers.change(|known| known.remove(&(shard.clone(), group.clone())));
    }

    pub(crate) fn has_strangers(&self, shard: &ShardId, group: &GroupName) -> bool {
        let known = self.strangers.0.load();
        // Nearly always there are none, and then nothing is copied to look them up.
        !known.is_empty() && known.contains(&(shard.clone(), group.clone()))
    }

    /// How many shards have strangers, of how many groups.
    pub(crate) fn known_strangers(&self) -> usize {
        self.strangers.0.load().len()
    }
}

impl Strangers {
    fn change(&self, edit: impl Fn(&mut BTreeSet<(ShardId, GroupName)>) -> bool) {
        self.0.rcu(|known| {
            let mut known = BTreeSet::clone(known);
            edit(&mut known);
            known
        });
    }
}

/// Makes claims to whatever a shard has of a group claims to its own buckets, to which the statement must keep then.
/// Whether there were any.
pub(crate) fn keep_to_own(units: &mut [Claimed], group: &GroupName) -> bool {
    let mut kept = false;
    for unit in units {
        if let Claimed::Buckets(of, first, last) = unit
            && of == group
        {
            *unit = Claimed::OwnBuckets(of.clone(), *first, *last);
            kept = true;
        }
    }
    kept
}
