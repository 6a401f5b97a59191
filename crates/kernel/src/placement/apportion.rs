//! Divides the buckets of a group among regions.
//!
//! Shares are whole percentages. Each region gets the whole part of its quota; what is left goes to the largest
//! remainders, one each; and a region with a share but no bucket takes one from the region that has most.
//!
//! Invariants:
//!   * The ranges cover the buckets exactly: no gap, no overlap, none empty.
//!   * A region with a share has a bucket, whenever there are as many buckets as such regions.
//!   * A region with a larger share has no fewer buckets than one with a smaller.
//!   * The ranges depend on the shares alone. The order is by share, largest first, then by name.
//!
//! The order is the one that existing data is laid out by, with the tie made definite: it must not depend on the
//! order of keys in a file, or writing the same configuration twice would move records.

use crate::hash::BucketCount;
use crate::names::{BucketId, RegionName};
use serde::{Deserialize, Serialize};

/// A region's percentage of the buckets, 0 to 100.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionShare {
    pub region: RegionName,
    pub percent: u32,
}

/// The buckets of one region: `first..=last`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionRange {
    pub region: RegionName,
    pub first: BucketId,
    pub last: BucketId,
}

impl RegionRange {
    pub fn contains(&self, bucket: BucketId) -> bool {
        (self.first..=self.last).contains(&bucket)
    }

    pub fn bucket_count(&self) -> u32 {
        self.last.0 - self.first.0 + 1
    }
}

/// Why buckets cannot be divided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApportionError {
    #[error("Region distribution must sum to 100, got {sum}")]
    Sum { sum: u64 },
    #[error("Total shards ({buckets}) must be >= active region count ({regions})")]
    TooFewBuckets { buckets: BucketCount, regions: usize },
}

/// The range of each region with a share, in canonical order.
pub fn apportion(buckets: BucketCount, shares: &[RegionShare]) -> Result<Vec<RegionRange>, ApportionError> {
    let sum: u64 = shares.iter().map(|share| u64::from(share.percent)).sum();
    if sum != 100 {
        return Err(ApportionError::Sum { sum });
    }
    let mut active: Vec<&RegionShare> = shares.iter().filter(|share| share.percent > 0).collect();
    active.sort_by(|a, b| b.percent.cmp(&a.percent).then_with(|| a.region.cmp(&b.region)));
    if active.len() > buckets.get() as usize {
        return Err(ApportionError::TooFewBuckets { buckets, regions: active.len() });
    }
    let mut counts = largest_remainder(buckets, &active);
    raise_to_one(&mut counts);
    Ok(ranges(&active, &counts))
}

fn largest_remainder(buckets: BucketCount, active: &[&RegionShare]) -> Vec<u32> {
    let quota = |share: &RegionShare| buckets.get() * share.percent;
    let mut counts: Vec<u32> = active.iter().map(|share| quota(share) / 100).collect();
    let left = buckets.get() - counts.iter().sum::<u32>();
    let mut order: Vec<usize> = (0..active.len()).collect();
    // A stable sort: equal remainders stay in canonical order.
    order.sort_by_key(|&i| std::cmp::Reverse(quota(active[i]) % 100));
    // Remainders are below 100 each and sum to 100 × left, so there are more regions than buckets left.
    order.into_iter().take(left as usize).for_each(|i| counts[i] += 1);
    counts
}

/// Counts are in falling order. Taking from the last of the largest keeps them so.
fn raise_to_one(counts: &mut [u32]) {
    for i in 0..counts.len() {
        if counts[i] > 0 {
            continue;
        }
        let most = counts.iter().copied().max().unwrap_or(0);
        if let Some(giver) = counts.iter().rposition(|&count| count == most) {
            counts[giver] -= 1;
            counts[i] = 1;
        }
    }
}

fn ranges(active: &[&RegionShare], counts: &[u32]) -> Vec<RegionRange> {
    let mut first = 0;
    let mut ranges = Vec::with_capacity(active.len());
    for (share, count) in active.iter().zip(counts) {
        let last = BucketId(first + count - 1);
        ranges.push(RegionRange { region: share.region.clone(), first: BucketId(first), last });
        first += count;
    }
    ranges
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shares(text: &str) -> Vec<RegionShare> {
        let share = |part: &str| {
            let (region, percent) = part.split_once('=').unwrap();
            RegionShare { region: RegionName::new(region).unwrap(), percent: percent.parse().unwrap() }
        };
        text.split_whitespace().map(share).collect()
    }

    fn laid_out(total: u32, text: &str) -> String {
        match apportion(BucketCount::new(total).unwrap(), &shares(text)) {
            Err(fault) => fault.to_string(),
            Ok(ranges) => {
                let one = |range: &RegionRange| format!("{} {}-{}", range.region, range.first, range.last);
                ranges.iter().map(one).collect::<Vec<_>>().join(", ")
            }
        }
    }

    #[test]
    fn known_layouts() {
        for (total, text, wanted) in [
            (20, "apac=20 enam=40 weur=40", "enam 0-7, weur 8-15, apac 16-19"),
            (32, "apac=20 enam=40 weur=40", "enam 0-12, weur 13-25, apac 26-31"),
            (64, "apac=20 enam=40 weur=40", "enam 0-25, weur 26-50, apac 51-63"),
            (16, "apac=20 enam=40 weur=40", "enam 0-6, weur 7-12, apac 13-15"),
            (30, "apac=30 enam=35 weur=35", "enam 0-10, weur 11-20, apac 21-29"),
            (10, "apac=33 enam=33 weur=34", "weur 0-3, apac 4-6, enam 7-9"),
            (11, "apac=10 enam=10 weur=80", "weur 0-8, apac 9-9, enam 10-10"),
            (100, "apac=19 enam=19 weur=19 wnam=19 oc=24", "oc 0-23, apac 24-42, enam 43-61, weur 62-80, wnam 81-99"),
            (10, "apac=50 enam=50", "apac 0-4, enam 5-9"),
            (3, "apac=33 enam=33 weur=34", "weur 0-0, apac 1-1, enam 2-2"),
            (100, "apac=99 enam=1", "apac 0-98, enam 99-99"),
            (1000, "apac=20 enam=40 weur=40", "enam 0-399, weur 400-799, apac 800-999"),
            (10, "apac=0 enam=100", "enam 0-9"),
            (1, "enam=100", "enam 0-0"),
        ] {
            assert_eq!(laid_out(total, text), wanted, "{total} {text}");
        }
    }

    #[test]
    fn region_ranges_never_go_negative() {
        assert_eq!(laid_out(5, "apac=30 enam=30 weur=30 oc=10"), "apac 0-1, enam 2-2, weur 3-3, oc 4-4");
        assert_eq!(laid_out(2, "apac=75 enam=25"), "apac 0-0, enam 1-1");
        assert_eq!(laid_out(10, "enam=90 apac=5 weur=5"), "enam 0-7, apac 8-8, weur 9-9");
        assert_eq!(laid_out(3, "apac=17 enam=17 weur=66"), "weur 0-0, apac 1-1, enam 2-2");
    }

    #[test]
    fn key_order_does_not_change_ranges() {
        let wanted = laid_out(20, "apac=20 enam=40 weur=40");
        for text in ["weur=40 enam=40 apac=20", "enam=40 apac=20 weur=40", "weur=40 apac=20 enam=40"] {
            assert_eq!(laid_out(20, text), wanted);
        }
    }

    #[test]
    fn what_cannot_be_divided_is_an_error() {
        assert_eq!(laid_out(20, "apac=20 enam=70"), "Region distribution must sum to 100, got 90");
        assert_eq!(laid_out(20, ""), "Region distribution must sum to 100, got 0");
        assert_eq!(laid_out(1, "apac=50 enam=50"), "Total shards (1) must be >= active region count (2)");
        assert_eq!(laid_out(2, "apac=20 enam=40 weur=40"), "Total shards (2) must be >= active region count (3)");
    }
}
