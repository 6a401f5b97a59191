//! Which index shard an entry belongs to, and where else it may be found.
//!
//! ```text
//! __index:{type}:{fnv1a32(id) % shards}
//! ```
//!
//! The hash is FNV-1a over UTF-16 ([`crate::hash`]). Entries of earlier systems may lie elsewhere: under the name without
//! a number, from before there were several, or where the old float hash led to.
//!
//! Growing and shrinking: entries are written where the present count says, and read from the union of the present and
//! the previous count. A job takes every entry home; then the previous count can be forgotten.

use crate::hash::{BucketCount, bucket_of, legacy};
use std::collections::BTreeSet;

/// Index shards of one type. A list asks all of them.
pub const MAX_INDEX_SHARDS: u32 = 1_024;

/// A count that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a type has 1 to {MAX_INDEX_SHARDS} index shards, not {0}")]
pub struct BadCount(pub u32);

/// How a type's entries are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    shards: u32,
    previous: Option<u32>,
    /// Whether there may be entries that an earlier system has written.
    legacy: bool,
}

impl Spread {
    pub fn new(shards: u32, previous: Option<u32>, legacy: bool) -> Result<Spread, BadCount> {
        for count in [Some(shards), previous].into_iter().flatten() {
            if !(1..=MAX_INDEX_SHARDS).contains(&count) {
                return Err(BadCount(count));
            }
        }
        Ok(Spread { shards, previous: previous.filter(|previous| *previous != shards), legacy })
    }

    pub fn shards(&self) -> u32 {
        self.shards
    }

    pub fn previous(&self) -> Option<u32> {
        self.previous
    }

    pub fn is_legacy(&self) -> bool {
        self.legacy
    }

    /// Whether an entry has one place only.
    pub fn is_settled(&self) -> bool {
        self.previous.is_none() && !self.legacy
    }

    /// Where an entry is written.
    pub fn home(&self, kind: &str, id: &str) -> String {
        shard_name(kind, shard_of(id, self.shards))
    }

    /// How many index shards are read: those of the present and of the previous count, each once, and the one without a
    /// number.
    pub fn count(&self) -> u32 {
        self.numbered() + u32::from(self.legacy)
    }

    fn numbered(&self) -> u32 {
        self.shards.max(self.previous.unwrap_or(0))
    }

    /// The name of one of them; the one without a number comes last.
    pub fn name(&self, kind: &str, at: u32) -> String {
        if at < self.numbered() { shard_name(kind, at) } else { format!("__index:{kind}") }
    }

    /// Every index shard that is read.
    pub fn all(&self, kind: &str) -> Vec<String> {
        (0..self.count()).map(|at| self.name(kind, at)).collect()
    }

    /// The largest part of all entries that some of the index shards are likely to have: by the one count or the other, and
    /// what earlier systems have written may lie anywhere.
    pub fn part_in(&self, some: &[u32]) -> f64 {
        let part = |count: u32| some.iter().filter(|at| **at < count).count() as f64 / f64::from(count);
        match self.legacy {
            true => 1.0,
            false => part(self.shards).max(self.previous.map_or(0.0, part)),
        }
    }

    /// Everywhere an entry may be, its home first.
    pub fn places(&self, kind: &str, id: &str) -> Vec<String> {
        let mut numbers = BTreeSet::new();
        for count in [Some(self.shards), self.previous].into_iter().flatten() {
            numbers.insert(shard_of(id, count));
            if self.legacy {
                numbers.insert(legacy::fnv1a32_f64(id) % count);
            }
        }
        let home = shard_of(id, self.shards);
        numbers.remove(&home);
        let others = numbers.into_iter().map(|number| shard_name(kind, number));
        std::iter::once(shard_name(kind, home))
            .chain(others)
            .chain(self.legacy.then(|| format!("__index:{kind}")))
            .collect()
    }
}

/// The name of an index shard.
pub fn shard_name(kind: &str, number: u32) -> String {
    format!("__index:{kind}:{number}")
}

/// FNV-1a of the id, modulo the count. A count of zero is not let in by [`Spread::new`]; one shard is the answer to it.
pub fn shard_of(id: &str, shards: u32) -> u32 {
    bucket_of(id, None, BucketCount::new(shards).unwrap_or(BucketCount::ONE)).0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Seed 000: the names of the index shards.
    #[test]
    fn index_shards_have_the_names_of_the_design() {
        let names = Spread::new(4, None, false).unwrap().all("payment");
        assert_eq!(names, ["__index:payment:0", "__index:payment:1", "__index:payment:2", "__index:payment:3"]);
        assert_eq!(Spread::new(1, None, false).unwrap().home("payment", "any"), "__index:payment:0");
    }

    /// A1, A2: real FNV-1a over UTF-16, by known vectors, and spread evenly.
    #[test]
    fn a01_a02_ids_are_spread_evenly_by_the_real_hash() {
        for (id, in_4, in_8) in
            [("wf-1", 2, 2), ("order-123", 2, 2), ("payment-42", 2, 6), ("wf-日本", 2, 6), ("", 1, 5)]
        {
            assert_eq!((shard_of(id, 4), shard_of(id, 8)), (in_4, in_8), "{id}");
        }
        let mut counts = [0_u32; 4];
        (0..100_000).for_each(|n| counts[shard_of(&format!("order-{n}"), 4) as usize] += 1);
        assert!(counts.iter().all(|count| (24_000..26_000).contains(count)), "{counts:?}");
    }

    /// A4: counts are checked.
    #[test]
    fn a04_counts_are_checked() {
        for (shards, previous) in [(0, None), (1_025, None), (4, Some(0)), (4, Some(1_025))] {
            assert!(Spread::new(shards, previous, false).is_err(), "{shards} {previous:?}");
        }
        assert!(Spread::new(MAX_INDEX_SHARDS, Some(1), false).is_ok());
    }

    /// Seed 000: reads fan out to the union, each name once, growing and shrinking.
    #[test]
    fn reads_fan_out_to_the_union_of_both_counts() {
        for (shards, previous, names) in [(8, Some(4), 8), (4, Some(8), 8), (4, Some(4), 4), (4, None, 4)] {
            assert_eq!(Spread::new(shards, previous, false).unwrap().all("p").len(), names);
        }
    }

    /// Half way from one count to another entries may lie by either, so the larger part is reckoned with.
    #[test]
    fn the_part_of_some_index_shards_is_that_of_the_count_that_gives_them_more() {
        let part =
            |shards, previous, legacy, some: &[u32]| Spread::new(shards, previous, legacy).unwrap().part_in(some);
        assert_eq!(part(4, None, false, &[0, 1, 2]), 0.75);
        assert_eq!(part(8, Some(4), false, &[0, 1, 2, 4]), 0.75);
        assert_eq!(part(8, Some(4), false, &[3, 5, 6, 7]), 0.5);
        assert_eq!(part(4, Some(8), false, &[6, 7]), 0.25);
        assert_eq!(part(4, None, true, &[0]), 1.0);
    }

    /// A6: entries under the old name, and under the old hash, are looked for.
    #[test]
    fn a06_entries_of_earlier_systems_are_found() {
        let spread = Spread::new(4, None, true).unwrap();
        assert!(spread.all("payment").contains(&"__index:payment".to_string()));
        let places = spread.places("payment", "wf-1");
        assert_eq!(places, ["__index:payment:2", "__index:payment:0", "__index:payment"]);
        assert_eq!(Spread::new(8, Some(4), false).unwrap().places("p", "wf-2"), ["__index:p:7", "__index:p:3"]);
    }

    #[test]
    fn every_place_of_an_entry_is_read() {
        for shards in 1..12 {
            for previous in [None, Some(1), Some(5), Some(16)] {
                for legacy in [false, true] {
                    let spread = Spread::new(shards, previous, legacy).unwrap();
                    let all: BTreeSet<String> = spread.all("p").into_iter().collect();
                    for id in ["a", "wf-1", "日本", ""] {
                        let places = spread.places("p", id);
                        assert_eq!(places[0], spread.home("p", id));
                        assert!(places.iter().all(|place| all.contains(place)));
                    }
                }
            }
        }
    }
}
