//! Which units have changed, and when: a transaction that has read and now writes conflicts with changes of what it has
//! read, and not with those of its neighbours.
//!
//! A unit is one of a fixed number of slots, by its hash. Two units that share a slot conflict for nothing; none is missed.
//!
//! Invariants (docs/invariants.md):
//!   * I-19  what a serializable transaction has read holds when it commits
//!   * I-46  a tenant that writes all the time does not make the transactions of others fail

use crate::fence::Claimed;
use isles_kernel::names::{BucketId, GroupName};
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// Enough that a few hundred busy tenants rarely meet, few enough to be looked through in a moment.
const SLOTS: usize = 4_096;

/// A unit, as far as it can be told from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(u16);

/// Reference tables.
pub(super) const SHARED: Slot = Slot(0);

/// A group, ready to be combined with buckets.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupHash(u64);

impl GroupHash {
    pub(super) fn of(group: &GroupName) -> GroupHash {
        GroupHash(xxh3_64(group.as_str().as_bytes()))
    }

    /// Neighbouring buckets of a group have neighbouring slots.
    pub(super) fn bucket(self, bucket: u64) -> Slot {
        slot(self.0.wrapping_add(bucket))
    }
}

/// By the key as `_tenant` stores it.
pub(super) fn tenant(key: &[u8]) -> Slot {
    slot(xxh3_64(key))
}

fn slot(hash: u64) -> Slot {
    Slot((hash % SLOTS as u64) as u16)
}

/// What a transaction has changed. What it took back counts, too.
pub(super) struct Touched {
    /// A bit for each slot: a statement may change a million rows of a thousand units.
    slots: [u64; SLOTS / 64],
    everything: bool,
}

impl Default for Touched {
    fn default() -> Touched {
        Touched { slots: [0; SLOTS / 64], everything: false }
    }
}

impl Touched {
    /// For changes of which nobody knows what they touched.
    pub(super) fn add_everything(&mut self) {
        self.everything = true;
    }

    pub(super) fn add(&mut self, slot: Slot) {
        let at = usize::from(slot.0);
        self.slots[at / 64] |= 1 << (at % 64);
    }

    /// The slots that were changed, by number.
    fn numbers(&self) -> impl Iterator<Item = usize> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, bits)| **bits != 0)
            .flat_map(|(word, bits)| (0..64).filter(move |bit| bits & (1 << bit) != 0).map(move |bit| word * 64 + bit))
    }

    pub(super) fn clear(&mut self) {
        *self = Touched::default();
    }
}

/// The state of the shard in which each unit changed last.
pub(super) struct Changes {
    slots: Box<[AtomicU64]>,
    /// The last state in which anything at all may have changed: the first one, to begin with.
    everything: AtomicU64,
}

impl Changes {
    /// Of a shard that is just being opened, in the state `first`.
    pub(super) fn new(first: u64) -> Changes {
        Changes { slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(), everything: AtomicU64::new(first) }
    }

    /// Notes a commit, which led to `state`.
    pub(super) fn note(&self, touched: &Touched, state: u64) {
        if touched.everything {
            self.everything.store(state, Ordering::SeqCst);
        }
        touched.numbers().for_each(|slot| self.slots[slot].store(state, Ordering::SeqCst));
    }

    /// Whether any of these units may have changed after `state`, up to `now`. A state from before the shard was opened is
    /// none of its own: it is earlier than the first one, or later than the present.
    pub(super) fn any_between(&self, state: u64, now: u64, units: &[Claimed]) -> bool {
        let is_after = |slot: &AtomicU64| slot.load(Ordering::SeqCst) > state;
        let changed = |slot: Slot| is_after(&self.slots[usize::from(slot.0)]);
        state > now
            || is_after(&self.everything)
            || units.iter().any(|unit| match unit {
                Claimed::Shared => changed(SHARED),
                Claimed::Tenant(name, _, _) => {
                    changed(tenant(name.as_ref().map_or("", |name| name.as_str()).as_bytes()))
                }
                // Only for reading.
                Claimed::Residents(..) => true,
                Claimed::Bucket(group, bucket) => changed(GroupHash::of(group).bucket(bucket.0.into())),
                Claimed::Buckets(group, first, last) | Claimed::OwnBuckets(group, first, last) => {
                    let group = GroupHash::of(group);
                    let BucketId(first) = *first;
                    let count = (last.0 - first).saturating_add(1).min(SLOTS as u32);
                    (0..count).any(|n| changed(group.bucket(u64::from(first) + u64::from(n))))
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isles_kernel::names::TenantId;

    fn group() -> GroupName {
        GroupName::new("users").expect("valid")
    }

    fn claimed(name: &str) -> Claimed {
        Claimed::Tenant(Some(TenantId::new(name).expect("valid")), group(), BucketId(0))
    }

    #[test]
    fn a_unit_has_changed_when_it_was_touched_or_everything_was() {
        let changes = Changes::new(3);
        let mut touched = Touched::default();
        touched.add(tenant(b"acme"));
        touched.add(GroupHash::of(&group()).bucket(7));
        changes.note(&touched, 5);
        let changed = |state, unit: &Claimed| changes.any_between(state, 6, std::slice::from_ref(unit));
        let bucket = |n| Claimed::Bucket(group(), BucketId(n));
        let run = |first, last| Claimed::Buckets(group(), BucketId(first), BucketId(last));
        let own = |first, last| Claimed::OwnBuckets(group(), BucketId(first), BucketId(last));
        for unit in [claimed("acme"), bucket(7), run(0, 7), run(7, 1_000_000), own(7, 7)] {
            assert!(changed(4, &unit) && !changed(5, &unit), "{unit:?}");
        }
        for unit in [claimed("beta"), bucket(8), run(8, 20), own(8, 20), Claimed::Shared] {
            assert!(!changed(3, &unit), "{unit:?}");
        }
        assert!(!changes.any_between(3, 6, &[]));
        touched.clear();
        touched.add_everything();
        changes.note(&touched, 6);
        assert!(changed(5, &claimed("beta")) && changes.any_between(5, 6, &[]));
    }

    /// I-19
    #[test]
    fn a_state_of_an_earlier_opening_is_never_the_present() {
        let changes = Changes::new(1_000);
        for earlier in [0, 999, 1_002, u64::MAX] {
            assert!(changes.any_between(earlier, 1_001, &[claimed("acme")]), "{earlier}");
        }
        assert!(!changes.any_between(1_000, 1_001, &[claimed("acme")]));
    }
}
