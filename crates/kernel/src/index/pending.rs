//! Additions that are committed, or about to be, and not in the entries yet.
//!
//! Whoever commits puts its additions here first; whoever applies them to the entries takes them out afterwards. So a
//! reader that looks here first and at the entries second misses none. An addition whose commit fails stays until the
//! log has passed its place: it leads a reader to a bucket too many, and does no harm.
//!
//! A key that comes to a bucket again and again is one addition, with the last of its positions. Each that is noted has a
//! number, so a reader that remembers the last number knows later whether its keys have come again. Of what has gone
//! meanwhile only the highest number is known, so it may be told that they have although they have not.
//!
//! Memory is bounded by whoever keeps this: when too many additions wait, they are forgotten for new ones to be noted, and
//! the index cannot be read until the logs have been applied past all that was forgotten.

use super::key::KeyRange;
use crate::names::{BucketId, Seq};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

/// A log, as whoever keeps additions numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogNumber(pub u32);

/// The place of an addition among those that are noted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Noted(pub u64);

/// Additions of one key.
type OfKey = BTreeMap<(LogNumber, BucketId), Addition>;
/// An addition by its last position.
type Position = (LogNumber, Seq, Arc<[u8]>, BucketId);

/// Additions to one entry bucket of an index.
#[derive(Debug, Default)]
pub struct Pending {
    /// By key, so that a range can be asked for.
    keys: BTreeMap<Arc<[u8]>, OfKey>,
    /// By position, so that those go that have been applied.
    positions: BTreeSet<Position>,
    /// The last one that was noted, and the last of those that are not here any more.
    last: Noted,
    gone: Noted,
}

#[derive(Debug, Clone, Copy)]
struct Addition {
    /// Its last position.
    position: Seq,
    noted: Noted,
}

/// Whether a note needed room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    Taken,
    /// The addition was there already.
    Shared,
}

impl Pending {
    /// Notes an addition.
    pub fn add(&mut self, log: LogNumber, position: Seq, key: &[u8], bucket: BucketId) -> Room {
        self.last.0 += 1;
        let noted = self.last;
        let key = match self.keys.get_key_value(key) {
            Some((known, _)) => known.clone(),
            None => Arc::from(key),
        };
        let of_key = self.keys.entry(key.clone()).or_default();
        let before = of_key.get(&(log, bucket)).copied();
        // A commit that failed has given its positions to others.
        let position = before.map_or(position, |before| before.position.max(position));
        of_key.insert((log, bucket), Addition { position, noted });
        if let Some(before) = before {
            self.positions.remove(&(log, before.position, key.clone(), bucket));
        }
        self.positions.insert((log, position, key, bucket));
        if before.is_some() { Room::Shared } else { Room::Taken }
    }

    /// The last one that was noted.
    pub fn last(&self) -> Noted {
        self.last
    }

    /// Whoever has looked here must look again.
    pub fn overtake(&mut self) {
        self.last.0 += 1;
        self.gone = self.last;
    }

    /// Forgets all. Returns the last position of each log that is not known here any more.
    pub fn forget_all(&mut self) -> BTreeMap<LogNumber, Seq> {
        self.keys.clear();
        let forgotten = std::mem::take(&mut self.positions);
        self.overtake();
        forgotten.into_iter().map(|(log, position, ..)| (log, position)).collect()
    }

    /// The entries have all of a log up to `position`. Returns how many additions went.
    pub fn applied(&mut self, log: LogNumber, position: Seq) -> usize {
        if self.is_empty() {
            return 0;
        }
        let from = (log, Seq(0), Arc::from([].as_slice()), BucketId(0));
        let is_passed = |place: &&Position| place.0 == log && place.1 <= position;
        let passed: Vec<_> = self.positions.range(from..).take_while(is_passed).cloned().collect();
        let went = passed.len();
        passed.into_iter().for_each(|place| self.remove(place));
        went
    }

    fn remove(&mut self, place: Position) {
        self.positions.remove(&place);
        let (log, _, key, bucket) = place;
        let Some(of_key) = self.keys.get_mut(&key) else { return };
        if let Some(addition) = of_key.remove(&(log, bucket)) {
            self.gone = self.gone.max(addition.noted);
        }
        if of_key.is_empty() {
            self.keys.remove(&key);
        }
    }

    fn within<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = (BucketId, &'a Addition)> + 'a {
        let from = (Bound::Included(range.low.as_slice()), Bound::Unbounded);
        let keys = self.keys.range::<[u8], _>(from).take_while(|(key, _)| range.contains(key));
        keys.flat_map(|(_, of_key)| of_key.iter().map(|((_, bucket), addition)| (*bucket, addition)))
    }

    /// Buckets to which keys of a range have been added.
    pub fn buckets<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = BucketId> + 'a {
        self.within(range).map(|(bucket, _)| bucket)
    }

    /// Whether a key of a range may have been added after another was noted.
    pub fn has_added(&self, range: &KeyRange, since: Noted) -> bool {
        self.gone > since || (self.last > since && self.within(range).any(|(_, addition)| addition.noted > since))
    }

    /// How many additions wait.
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
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
        pending.add(ONE, Seq(5), &[1, 1], BucketId(3));
        pending.add(ONE, Seq(6), &[1, 2], BucketId(4));
        pending.add(TWO, Seq(2), &[1, 2], BucketId(7));
        pending.add(ONE, Seq(6), &[2], BucketId(5));
        assert_eq!(buckets(&pending, 1), [3, 4, 7]);
        assert_eq!(pending.applied(ONE, Seq(5)), 1);
        assert_eq!((buckets(&pending, 1), buckets(&pending, 2)), (vec![4, 7], vec![5]));
        assert_eq!(pending.applied(ONE, Seq(9)), 2);
        assert_eq!(buckets(&pending, 1), [7], "another log has its own positions");
        assert_eq!(pending.applied(TWO, Seq(2)), 1);
        assert!(pending.is_empty());
    }

    /// I-23: a key that comes to a bucket again takes no more room, and stays until its last position has been applied.
    #[test]
    fn one_key_of_one_bucket_is_one_addition() {
        let mut pending = Pending::default();
        assert_eq!(pending.add(ONE, Seq(5), &[1], BucketId(3)), Room::Taken);
        for position in [6, 9, 7, 7] {
            assert_eq!(pending.add(ONE, Seq(position), &[1], BucketId(3)), Room::Shared);
        }
        assert_eq!(pending.add(ONE, Seq(8), &[1], BucketId(4)), Room::Taken);
        assert_eq!(pending.add(TWO, Seq(1), &[1], BucketId(3)), Room::Taken, "another log has positions of its own");
        assert_eq!(pending.len(), 3);
        assert_eq!(pending.applied(ONE, Seq(8)), 1);
        assert_eq!(buckets(&pending, 1), [3, 3]);
        assert_eq!(pending.applied(ONE, Seq(9)), 1);
        assert_eq!((buckets(&pending, 1), pending.len()), (vec![3], 1));
    }

    /// I-24: a look is overtaken by what was added to its keys after it, also if that has gone, and by nothing else.
    #[test]
    fn a_look_is_overtaken_by_its_own_keys() {
        let mut pending = Pending::default();
        let range = IndexKey(vec![1]).within();
        pending.add(ONE, Seq(5), &[1], BucketId(3));
        pending.add(ONE, Seq(6), &[2], BucketId(3));
        let seen = pending.last();
        pending.add(ONE, Seq(7), &[2], BucketId(4));
        assert!(!pending.has_added(&range, seen), "another key was added");
        pending.applied(ONE, Seq(6));
        assert!(!pending.has_added(&range, seen), "what was seen has gone");
        pending.add(ONE, Seq(8), &[1, 7], BucketId(3));
        assert!(pending.has_added(&range, seen));
        pending.applied(ONE, Seq(8));
        assert!(pending.is_empty());
        assert!(pending.has_added(&range, seen), "nobody knows what it was");
        let seen = pending.last();
        assert!(!pending.has_added(&range, seen));
        pending.forget_all();
        assert!(pending.has_added(&range, seen));
    }

    #[test]
    fn what_is_forgotten_is_told_by_log() {
        let mut pending = Pending::default();
        pending.add(ONE, Seq(5), &[1], BucketId(3));
        pending.add(ONE, Seq(9), &[2], BucketId(3));
        pending.add(TWO, Seq(4), &[2], BucketId(3));
        assert_eq!(pending.forget_all(), BTreeMap::from([(ONE, Seq(9)), (TWO, Seq(4))]));
        assert!(pending.is_empty());
        assert_eq!(buckets(&pending, 1), Vec::<u32>::new());
    }
}
