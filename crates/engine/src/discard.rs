//! What may be discarded: rows of units that nobody can read here.
//!
//! A move leaves rows behind: those of a copy that was given up, and those of the owner before. They are deleted for good
//! and nobody is told, so the shard makes sure of what it can know: that whoever asks drives the stream, that its own
//! fences let nobody read these units, and that no row of other units is in the range. Fences are looked at in the
//! transaction that deletes, and cannot open before it has ended.
//!
//! Invariants (docs/invariants.md):
//!   * I-12  what a move has left can be removed, and a row that anyone can read is not

use crate::error::{Result, ShardError};
use crate::fence::{Claimed, FenceTable};
use crate::shard::{KeyRange, Scope, check_purge};
use isles_kernel::names::GroupName;
use std::ops::RangeInclusive;

/// Whether a range has rows of these units alone.
pub(crate) fn check_range(range: &KeyRange, unserved: &[Claimed], rows: usize) -> Result<()> {
    check_purge(Some(rows))?;
    let covered = match &range.scope {
        Scope::All => return Err(ShardError::invalid("rows are discarded by bucket or by tenant")),
        Scope::Buckets(group, ranges) => ranges.iter().all(|range| covers(unserved, group, range)),
        Scope::Tenants(tenants) => {
            let named =
                |wanted| unserved.iter().any(|unit| matches!(unit, Claimed::Tenant(tenant, ..) if tenant == wanted));
            tenants.iter().all(named)
        }
    };
    match covered {
        true => Ok(()),
        false => Err(ShardError::invalid("the range has units that are not said to be unserved")),
    }
}

fn covers(unserved: &[Claimed], group: &GroupName, range: &RangeInclusive<u32>) -> bool {
    let runs: Vec<(u32, u32)> = unserved
        .iter()
        .filter_map(|unit| match unit {
            Claimed::Bucket(of, bucket) if of == group => Some((bucket.0, bucket.0)),
            Claimed::Buckets(of, first, last) | Claimed::OwnBuckets(of, first, last) if of == group => {
                Some((first.0, last.0))
            }
            _ => None,
        })
        .collect();
    let mut next = *range.start();
    while next <= *range.end() {
        match runs.iter().find(|(first, last)| *first <= next && next <= *last) {
            Some((_, u32::MAX)) => return true,
            Some((_, last)) => next = last + 1,
            None => return false,
        }
    }
    true
}

/// Refuses if anyone may read one of these units.
pub(crate) fn refuse_served(fences: &FenceTable, unserved: &[Claimed]) -> Result<()> {
    match unserved.iter().find(|unit| fences.serves(unit)) {
        Some(unit) => Err(ShardError::invalid(format!("{} is served here", unit.unit()))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use isles_kernel::names::{BucketId, TenantId};

    fn group(name: &str) -> GroupName {
        GroupName::new(name).unwrap()
    }

    fn buckets(first: u32, last: u32) -> Claimed {
        Claimed::Buckets(group("users"), BucketId(first), BucketId(last))
    }

    fn check(scope: Scope, unserved: &[Claimed]) -> bool {
        check_range(&KeyRange::table("t").within(scope), unserved, 10).is_ok()
    }

    /// I-12
    #[test]
    fn a_range_has_units_that_are_unserved_and_no_others() {
        let scope = |name: &str, ranges: &[RangeInclusive<u32>]| Scope::Buckets(group(name), ranges.to_vec());
        let unserved = [buckets(6, u32::MAX), Claimed::Bucket(group("users"), BucketId(5)), buckets(1, 3)];
        for (ranges, covered) in [
            (vec![1..=3], true),
            (vec![1..=3, 5..=9, 2..=2], true),
            (vec![5..=u32::MAX], true),
            (vec![], true),
            (vec![0..=0], false),
            (vec![1..=5], false),
            (vec![2..=3, 4..=4], false),
        ] {
            assert_eq!(check(scope("users", &ranges), &unserved), covered, "{ranges:?}");
        }
        assert!(!check(scope("others", &[1..=3]), &unserved));
        let tenant = |name: &str| Some(TenantId::new(name).unwrap());
        let named = |tenant| Claimed::Tenant(tenant, group("tenants"), BucketId(0));
        let unserved = [named(tenant("a")), named(None)];
        assert!(check(Scope::Tenants(vec![None, tenant("a")]), &unserved));
        assert!(!check(Scope::Tenants(vec![tenant("a"), tenant("b")]), &unserved));
        assert!(!check(Scope::All, &unserved));
    }
}
