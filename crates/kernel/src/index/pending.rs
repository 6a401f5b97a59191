//! Additions that are committed, or about to be, and not in the entries yet.
//!
//! Whoever commits puts its additions here first; whoever applies them to the entries takes them out afterwards. So a
//! reader that looks here first and at the entries second misses none. An addition whose commit fails stays until the
//! log has passed its place: it leads a reader to a bucket too many, and does no harm.
//!
//! Memory is bounded. When too many additions wait, they are forgotten for new ones to be noted, and the index cannot be
//! read until the logs have been applied past all that was forgotten.

use super::key::KeyRange;
use crate::names::{BucketId, Seq};
use std::collections::BTreeMap;

/// A log, as whoever keeps additions numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogNumber(pub u32);

/// Additions to one entry bucket of an index.
#[derive(Debug, Default)]
pub struct Pending {
    /// By key, so that a range can be asked for.
    keys: BTreeMap<Vec<u8>, Vec<Addition>>,
    /// By position, so that those go that have been applied.
    positions: BTreeMap<(LogNumber, Seq), Vec<Vec<u8>>>,
    additions: usize,
}

#[derive(Debug, Clone, Copy)]
struct Addition {
    log: LogNumber,
    position: Seq,
    bucket: BucketId,
}

impl Pending {
    /// Notes an addition.
    pub fn add(&mut self, log: LogNumber, position: Seq, key: Vec<u8>, bucket: BucketId) {
        self.positions.entry((log, position)).or_default().push(key.clone());
        self.keys.entry(key).or_default().push(Addition { log, position, bucket });
        self.additions += 1;
    }

    /// Forgets all. Returns the last position of each log that is not known here any more.
    pub fn forget_all(&mut self) -> BTreeMap<LogNumber, Seq> {
        std::mem::take(self).positions.into_keys().collect()
    }

    /// The entries have all of a log up to `position`.
    pub fn applied(&mut self, log: LogNumber, position: Seq) {
        if self.additions == 0 {
            return;
        }
        let passed: Vec<Seq> = self.positions.range((log, Seq(0))..=(log, position)).map(|((_, at), _)| *at).collect();
        for at in passed {
            for key in self.positions.remove(&(log, at)).into_iter().flatten() {
                self.remove(&key, log, at);
            }
        }
    }

    fn remove(&mut self, key: &[u8], log: LogNumber, position: Seq) {
        let Some(additions) = self.keys.get_mut(key) else { return };
        let Some(at) = additions.iter().position(|one| (one.log, one.position) == (log, position)) else { return };
        additions.swap_remove(at);
        self.additions -= 1;
        if additions.is_empty() {
            self.keys.remove(key);
        }
    }

    /// Buckets to which keys of a range have been added.
    pub fn buckets<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = BucketId> + 'a {
        let keys = self.keys.range::<Vec<u8>, _>(&range.low..).take_while(|(key, _)| range.contains(key));
        keys.flat_map(|(_, additions)| additions.iter().map(|addition| addition.bucket))
    }

    /// How many additions wait.
    pub fn len(&self) -> usize {
        self.additions
    }

    pub fn is_empty(&self) -> bool {
        self.additions == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::IndexKey;
    use super::*;

    const ONE: LogNumber = LogNumber(1);
    const TWO: LogNumber = LogNumber(2);

    fn buckets(pending: &Pending, key: u8) -> Vec<u32> {
        let mut found: Vec<u32> = pending.buckets(&IndexKey(vec![key]).within()).map(|bucket| bucket.0).collect();
        found.sort_unstable();
        found
    }

    /// I-23: what is not applied is known.
    #[test]
    fn an_addition_is_there_until_its_log_has_passed_it() {
        let mut pending = Pending::default();
        pending.add(ONE, Seq(5), vec![1, 1], BucketId(3));
        pending.add(ONE, Seq(6), vec![1, 2], BucketId(4));
        pending.add(TWO, Seq(2), vec![1, 2], BucketId(7));
        pending.add(ONE, Seq(6), vec![2], BucketId(5));
        assert_eq!(buckets(&pending, 1), [3, 4, 7]);
        pending.applied(ONE, Seq(5));
        assert_eq!((buckets(&pending, 1), buckets(&pending, 2)), (vec![4, 7], vec![5]));
        pending.applied(ONE, Seq(9));
        assert_eq!(buckets(&pending, 1), [7], "another log has its own positions");
        pending.applied(TWO, Seq(2));
        assert!(pending.is_empty());
    }

    /// A commit that failed, and another that took its positions.
    #[test]
    fn additions_with_one_position_stay_apart() {
        let mut pending = Pending::default();
        for position in [5, 5, 7] {
            pending.add(ONE, Seq(position), vec![1], BucketId(3));
        }
        pending.applied(ONE, Seq(5));
        assert_eq!((buckets(&pending, 1), pending.len()), (vec![3], 1));
    }

    #[test]
    fn what_is_forgotten_is_told_by_log() {
        let mut pending = Pending::default();
        pending.add(ONE, Seq(5), vec![1], BucketId(3));
        pending.add(ONE, Seq(9), vec![2], BucketId(3));
        pending.add(TWO, Seq(4), vec![2], BucketId(3));
        assert_eq!(pending.forget_all(), BTreeMap::from([(ONE, Seq(9)), (TWO, Seq(4))]));
        assert!(pending.is_empty());
        assert_eq!(buckets(&pending, 1), Vec::<u32>::new());
    }
}
