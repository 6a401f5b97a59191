//! Which tenants' rows a shard owns, in one version of the routing.
//!
//! A statement over all tenants asks each shard for those that live there. While tenants move, their rows are on two
//! shards, and only one of them may show them. Tenants have no number of their own in a row, so this is told by the name:
//!
//! ```text
//! pinned here ─► yes    pinned elsewhere ─► no    otherwise ─► does the shard own the bucket that the name hashes to?
//! ```
//!
//! Shards of both engines read it as a text ([`Residents::text`]), of four lines: the number of buckets, those owned as
//! the hexadecimal digits of a bit map, the tenants that are here although their bucket is not, and those that are not
//! although it is. No name has a control character in it, so [`MARK`] tells names apart.
//!
//! Invariants (docs/invariants.md):
//!   * I-11  of all shards exactly one owns a tenant

use crate::hash::{BucketCount, bucket_of};
use crate::names::{BucketId, ShardId, TenantId};
use crate::routing::RoutingPolicy;
use std::collections::BTreeSet;

/// Stands before, between and after names.
const MARK: char = '\u{1}';

/// The tenants of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residents {
    buckets: BucketCount,
    /// Bit b of all, from the lowest of the first byte on, is bucket b.
    bits: Vec<u8>,
    here: BTreeSet<TenantId>,
    away: BTreeSet<TenantId>,
}

impl Residents {
    pub fn of(policy: &RoutingPolicy, shard: &ShardId) -> Residents {
        let group = policy.tenant_group();
        let buckets = policy.tenant_buckets();
        let mut bits = vec![0u8; buckets.get().div_ceil(8) as usize];
        for bucket in policy.owned(group, shard).flat_map(|range| range.first.0..=range.last.0) {
            bits[bucket as usize / 8] |= 1 << (bucket % 8);
        }
        let mut residents = Residents { buckets, bits, here: BTreeSet::new(), away: BTreeSet::new() };
        for (tenant, pin) in policy.pins() {
            match (pin == shard, residents.has_bucket_of(tenant.as_str())) {
                (true, false) => drop(residents.here.insert(tenant.clone())),
                (false, true) => drop(residents.away.insert(tenant.clone())),
                _ => {}
            }
        }
        residents
    }

    /// Whether the shard owns a tenant's rows; None is the null tenant.
    pub fn owns(&self, tenant: Option<&TenantId>) -> bool {
        match tenant {
            Some(name) if self.here.contains(name) => true,
            Some(name) if self.away.contains(name) => false,
            name => self.has_bucket_of(name.map_or("", TenantId::as_str)),
        }
    }

    fn has_bucket_of(&self, name: &str) -> bool {
        let BucketId(bucket) = bucket_of(name, None, self.buckets);
        self.bits[bucket as usize / 8] >> (bucket % 8) & 1 == 1
    }

    /// As shards read it.
    pub fn text(&self) -> String {
        let bits: String = self.bits.iter().map(|byte| format!("{byte:02x}")).collect();
        let names = |names: &BTreeSet<TenantId>| {
            let each = names.iter().flat_map(|name| [name.as_str().to_string(), MARK.to_string()]);
            [MARK.to_string()].into_iter().chain(each).collect::<String>()
        };
        format!("{}\n{bits}\n{}\n{}", self.buckets, names(&self.here), names(&self.away))
    }
}

/// Whether a text of [`Residents::text`] says that a tenant is there; `name` is empty for the null tenant. None if it is no
/// such text.
pub fn text_owns(text: &str, name: &str) -> Option<bool> {
    let mut lines = text.splitn(4, '\n');
    let (buckets, bits) = (lines.next()?, lines.next()?);
    let marked = format!("{MARK}{name}{MARK}");
    let [here, away] = [lines.next()?, lines.next()?].map(|names| !name.is_empty() && names.contains(&marked));
    if here || away {
        return Some(here);
    }
    let BucketId(bucket) = bucket_of(name, None, BucketCount::new(buckets.parse().ok()?)?);
    let at = bucket as usize / 8 * 2;
    let byte = u8::from_str_radix(bits.get(at..at + 2)?, 16).ok()?;
    Some(byte >> (bucket % 8) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::GroupName;
    use crate::routing::{RoutingChange, RoutingMove};

    /// I-11
    #[test]
    fn exactly_one_shard_owns_a_tenant_and_it_is_where_statements_of_the_tenant_go() {
        let shards = ["a", "b", "c"].map(|name| ShardId::new(name).expect("a name"));
        let buckets = BucketCount::new(20).expect("some");
        let mut policy = RoutingPolicy::new(GroupName::new("t").expect("a name"), buckets, &shards).expect("valid");
        let tenant = |n: usize| TenantId::new(format!("tenant {n} é𝄞")).expect("a name");
        for n in 0..40 {
            let from = policy.shard_of_tenant(&tenant(n)).clone();
            let to = shards[n % 3].clone();
            policy = policy
                .apply(&RoutingChange { moves: vec![RoutingMove::Pin { tenant: tenant(n), from, to }] })
                .unwrap_or(policy);
        }
        let residents = shards.each_ref().map(|shard| Residents::of(&policy, shard));
        let mut seen = BTreeSet::new();
        for n in 0..120 {
            let (tenant, name) = (tenant(n), tenant(n).to_string());
            let owners: Vec<usize> = (0..3).filter(|at| residents[*at].owns(Some(&tenant))).collect();
            assert_eq!(owners.len(), 1, "{tenant}");
            assert_eq!(shards[owners[0]], *policy.shard_of_tenant(&tenant));
            for residents in &residents {
                assert_eq!(text_owns(&residents.text(), &name), Some(residents.owns(Some(&tenant))), "{tenant}");
            }
            seen.insert((owners[0], policy.is_pinned(&tenant)));
        }
        assert_eq!(seen.len(), 6, "each shard has tenants with a pin and without: {seen:?}");
        let null: Vec<bool> = residents.iter().map(|residents| residents.owns(None)).collect();
        assert_eq!(null.iter().filter(|owns| **owns).count(), 1);
        let by_text: Vec<Option<bool>> = residents.iter().map(|residents| text_owns(&residents.text(), "")).collect();
        assert_eq!(by_text, null.into_iter().map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_no_such_text_owns_nobody() {
        for text in
            ["", "4", "4\nff", "4\nff\n\u{1}", "0\nff\n\u{1}\n\u{1}", "x\nff\n\u{1}\n\u{1}", "64\nff\n\u{1}\n\u{1}"]
        {
            assert!(["a", "b", "c", "d"].iter().any(|name| text_owns(text, name).is_none()), "{text:?}");
        }
    }
}
