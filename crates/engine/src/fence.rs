//! Fences: which units a shard serves, and from which routing version on.
//!
//! The fence is in the shard and not in the router: a router may hold an old map for any length of time, so only
//! the owner of the data can refuse a late write. Each request carries a [`Claim`], the version it was routed with
//! and the units it touches; the shard compares it with its fences in the request's own transaction.
//!
//! What no fence speaks of, the shard does not serve. A new shard serves nothing until it has been told to.
//!
//! While buckets move, a shard's tables also hold rows of buckets that it does not own yet, or not any more: strangers.
//! A fence around a whole group ([`FenceScope::Whole`]) says whether there may be any. Where it is closed, statements are
//! served that keep to the buckets that they claim; those that would take whatever is there are refused.
//!
//! Invariants (docs/invariants.md):
//!   * I-7   at most one shard accepts writes for a unit, and the refusal is the shard's
//!   * I-11  where strangers may be, no statement takes whatever is there
//!   * a fence's version never falls

use crate::entries::Still;
use crate::error::{Result, ShardError};
use isles_kernel::names::{BucketId, GroupName, RoutingVersion, TenantId};
use isles_kernel::residents::Residents;
use isles_kernel::schema::Unit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a request is allowed to do with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FenceMode {
    /// Reads and writes, of requests routed with the fence's version or a later one.
    Open,
    /// Reads only: the unit is being cut over.
    ReadOnly,
    /// Nothing: the unit is elsewhere.
    Closed,
}

/// The units one fence speaks of.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FenceScope {
    /// Buckets `first..=last` of a group.
    Buckets { group: GroupName, first: BucketId, last: BucketId },
    /// A tenant that is pinned, whatever its bucket's fence says.
    Tenant(Option<TenantId>),
    /// Reference tables.
    Shared,
    /// Statements that take whatever the shard has of a group. Closed: the shard may have strangers of it, and they are
    /// refused. Open, or without this fence, they are served. It is never read only, since strangers disturb reads as much
    /// as writes; and its version orders its changes alone, and is asked of nobody.
    Whole { group: GroupName },
}

impl FenceScope {
    /// Whether both speak of some unit.
    pub fn overlaps(&self, other: &FenceScope) -> bool {
        match (self, other) {
            (
                FenceScope::Buckets { group: one, first, last },
                FenceScope::Buckets { group: two, first: from, last: to },
            ) => one == two && first <= to && from <= last,
            (one, two) => one == two,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    pub scope: FenceScope,
    pub version: RoutingVersion,
    pub mode: FenceMode,
}

/// One unit a request touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    Bucket(GroupName, BucketId),
    /// Buckets `first..=last`, for a statement that reads or writes whatever the shard has of a group.
    Buckets(GroupName, BucketId, BucketId),
    /// Buckets `first..=last`, for a statement that leaves the group's other buckets alone by itself, strangers or not.
    OwnBuckets(GroupName, BucketId, BucketId),
    /// A tenant, and the bucket it hashes to, which counts unless the tenant is pinned.
    Tenant(Option<TenantId>, GroupName, BucketId),
    /// All tenants that live here, beside the buckets of their group: those that have a fence of their own are held to it.
    Residents(GroupName, Arc<Residents>),
    Shared,
}

impl Claimed {
    pub fn unit(&self) -> Unit {
        match self {
            Claimed::Bucket(group, bucket)
            | Claimed::Buckets(group, bucket, _)
            | Claimed::OwnBuckets(group, bucket, _) => Unit::Bucket(group.clone(), *bucket),
            Claimed::Tenant(tenant, _, _) => Unit::Tenant(tenant.clone()),
            Claimed::Residents(..) => Unit::Tenant(None),
            Claimed::Shared => Unit::Shared,
        }
    }
}

/// What the router believed when it chose this shard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claim {
    pub version: RoutingVersion,
    pub units: Vec<Claimed>,
    /// What it was chosen by, if that can change without the routing.
    pub still: Option<Still>,
}

impl Claim {
    pub fn new(version: RoutingVersion, units: Vec<Claimed>) -> Claim {
        Claim { version, units, still: None }
    }

    /// Whether what it was chosen by still holds. To be asked at a moment that the request's own reads are of, or later.
    pub(crate) fn check_still(&self) -> Result<()> {
        match &self.still {
            Some(still) if !still.holds() => Err(ShardError::Overtaken),
            _ => Ok(()),
        }
    }
}

/// Whether a request only reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// A run of buckets under one fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: u32,
    last: u32,
    version: RoutingVersion,
    mode: FenceMode,
}

/// All fences of a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FenceTable {
    /// Runs of each group, ordered, without overlap; neighbours that agree are one run.
    buckets: BTreeMap<GroupName, Vec<Run>>,
    tenants: BTreeMap<Option<TenantId>, (RoutingVersion, FenceMode)>,
    shared: Option<(RoutingVersion, FenceMode)>,
    whole: BTreeMap<GroupName, (RoutingVersion, FenceMode)>,
}

impl FenceTable {
    pub fn from_fences(fences: impl IntoIterator<Item = Fence>) -> Result<FenceTable> {
        let mut table = FenceTable::default();
        fences.into_iter().try_for_each(|fence| table.set(&fence))?;
        Ok(table)
    }

    /// All fences, in one order whatever the order they were set in.
    pub fn fences(&self) -> Vec<Fence> {
        let runs = self.buckets.iter().flat_map(|(group, runs)| {
            runs.iter().map(|run| Fence {
                scope: FenceScope::Buckets {
                    group: group.clone(),
                    first: BucketId(run.first),
                    last: BucketId(run.last),
                },
                version: run.version,
                mode: run.mode,
            })
        });
        let tenants = self.tenants.iter().map(|(tenant, (version, mode))| Fence {
            scope: FenceScope::Tenant(tenant.clone()),
            version: *version,
            mode: *mode,
        });
        let shared = self.shared.map(|(version, mode)| Fence { scope: FenceScope::Shared, version, mode });
        let whole = self.whole.iter().map(|(group, (version, mode))| Fence {
            scope: FenceScope::Whole { group: group.clone() },
            version: *version,
            mode: *mode,
        });
        runs.chain(tenants).chain(shared).chain(whole).collect()
    }

    /// Sets one fence. A version that falls is refused: it would let a late router in.
    pub fn set(&mut self, fence: &Fence) -> Result<()> {
        let (version, mode) = (fence.version, fence.mode);
        match &fence.scope {
            FenceScope::Buckets { group, first, last } => {
                self.set_buckets(group, Run { first: first.0, last: last.0, version, mode })
            }
            FenceScope::Tenant(tenant) => {
                check_rise(self.tenants.get(tenant).map(|old| old.0), version)?;
                self.tenants.insert(tenant.clone(), (version, mode));
                Ok(())
            }
            FenceScope::Shared => {
                check_rise(self.shared.map(|old| old.0), version)?;
                self.shared = Some((version, mode));
                Ok(())
            }
            FenceScope::Whole { .. } if mode == FenceMode::ReadOnly => {
                Err(ShardError::invalid("a fence around a whole group is open or closed"))
            }
            FenceScope::Whole { group } => {
                check_rise(self.whole.get(group).map(|old| old.0), version)?;
                self.whole.insert(group.clone(), (version, mode));
                Ok(())
            }
        }
    }

    /// Sets a fence unless one speaks of its units already: that one may be a move's.
    pub fn set_missing(&mut self, fence: &Fence) -> Result<()> {
        match self.speaks_of(&fence.scope) {
            true => Ok(()),
            false => self.set(fence),
        }
    }

    /// Whether there is a fence for any of these units.
    pub fn speaks_of(&self, scope: &FenceScope) -> bool {
        match scope {
            FenceScope::Buckets { group, first, last } => {
                let runs = self.buckets.get(group).map_or(&[][..], Vec::as_slice);
                runs.iter().any(|run| run.first <= last.0 && first.0 <= run.last)
            }
            FenceScope::Tenant(tenant) => self.tenants.contains_key(tenant),
            FenceScope::Shared => self.shared.is_some(),
            FenceScope::Whole { group } => self.whole.contains_key(group),
        }
    }

    fn set_buckets(&mut self, group: &GroupName, new: Run) -> Result<()> {
        if new.first > new.last {
            return Err(ShardError::invalid(format!("buckets {}..={} are no range", new.first, new.last)));
        }
        let old = self.buckets.get(group).map_or(&[][..], Vec::as_slice);
        let overlaps = |run: &&Run| run.first <= new.last && new.first <= run.last;
        old.iter().filter(overlaps).try_for_each(|run| check_rise(Some(run.version), new.version))?;
        let mut runs: Vec<Run> = old.iter().flat_map(|run| outside(*run, new)).collect();
        runs.push(new);
        runs.sort_by_key(|run| run.first);
        self.buckets.insert(group.clone(), join_neighbours(runs));
        Ok(())
    }

    /// Whether a request may do what it wants with all the units it claims.
    pub fn check(&self, claim: &Claim, access: Access) -> Result<()> {
        claim.units.iter().try_for_each(|unit| self.check_one(claim.version, unit, access))?;
        self.check_strangers(claim)?;
        claim.check_still()
    }

    fn check_one(&self, claimed: RoutingVersion, unit: &Claimed, access: Access) -> Result<()> {
        let fence = match unit {
            Claimed::Bucket(group, bucket) => self.bucket(group, *bucket),
            Claimed::Buckets(group, first, last) | Claimed::OwnBuckets(group, first, last) => {
                return self.check_range(claimed, group, *first, *last, access);
            }
            Claimed::Tenant(tenant, group, bucket) => {
                self.tenants.get(tenant).copied().or_else(|| self.bucket(group, *bucket))
            }
            Claimed::Residents(_, residents) => return self.check_residents(claimed, residents, access),
            Claimed::Shared => self.shared,
        };
        allow(fence, claimed, access).map_err(|needed| ShardError::Moved { unit: unit.unit(), claimed, needed })
    }

    /// Whether all tenants that a router takes to be here may be asked for, and none has come or gone since the version that
    /// it knows: it would be asked for twice, or not at all.
    fn check_residents(&self, claimed: RoutingVersion, residents: &Residents, access: Access) -> Result<()> {
        let refused = |tenant: &Option<TenantId>, (version, mode): (RoutingVersion, FenceMode)| {
            let is_let_in = !residents.owns(tenant.as_ref()) || allow(Some((version, mode)), claimed, access).is_ok();
            !is_let_in || version > claimed
        };
        match self.tenants.iter().find(|(tenant, fence)| refused(tenant, **fence)) {
            None => Ok(()),
            Some((tenant, (needed, _))) => {
                Err(ShardError::Moved { unit: Unit::Tenant(tenant.clone()), claimed, needed: *needed })
            }
        }
    }

    /// Whether a request may take whatever is there, if it does.
    ///
    /// Who reads from a snapshot also asks this of the fences from before it: strangers that have gone since are in it.
    pub(crate) fn check_strangers(&self, claim: &Claim) -> Result<()> {
        let closed = |group: &GroupName| matches!(self.whole.get(group), Some((_, FenceMode::Closed)));
        claim.units.iter().filter(|_| !self.whole.is_empty()).try_for_each(|unit| match unit {
            Claimed::Buckets(group, ..) if closed(group) => Err(ShardError::Strangers { group: group.clone() }),
            _ => Ok(()),
        })
    }

    /// As checking each bucket, by runs.
    fn check_range(
        &self,
        claimed: RoutingVersion,
        group: &GroupName,
        first: BucketId,
        last: BucketId,
        access: Access,
    ) -> Result<()> {
        let runs = self.buckets.get(group).map_or(&[][..], Vec::as_slice);
        let mut next = first.0;
        for run in &runs[runs.partition_point(|run| run.last < first.0)..] {
            if next > last.0 || run.first > next {
                break;
            }
            let moved = |needed| moved(group, next, claimed, needed);
            allow(Some((run.version, run.mode)), claimed, access).map_err(moved)?;
            next = run.last.saturating_add(1);
        }
        if next > last.0 { Ok(()) } else { Err(moved(group, next, claimed, RoutingVersion::ZERO)) }
    }

    /// Whether anyone may read any of this, whatever version he was routed with.
    pub fn serves(&self, unit: &Claimed) -> bool {
        let lets_in =
            |fence: Option<(RoutingVersion, FenceMode)>| fence.is_some_and(|(_, mode)| mode != FenceMode::Closed);
        match unit {
            Claimed::Bucket(group, bucket) => lets_in(self.bucket(group, *bucket)),
            Claimed::Buckets(group, first, last) | Claimed::OwnBuckets(group, first, last) => {
                let runs = self.buckets.get(group).map_or(&[][..], Vec::as_slice);
                let within = |run: &&Run| run.first <= last.0 && first.0 <= run.last;
                runs.iter().filter(within).any(|run| run.mode != FenceMode::Closed)
            }
            Claimed::Tenant(tenant, group, bucket) => {
                lets_in(self.tenants.get(tenant).copied().or_else(|| self.bucket(group, *bucket)))
            }
            Claimed::Residents(..) => self.tenants.values().any(|fence| lets_in(Some(*fence))),
            Claimed::Shared => lets_in(self.shared),
        }
    }

    fn bucket(&self, group: &GroupName, bucket: BucketId) -> Option<(RoutingVersion, FenceMode)> {
        let runs = self.buckets.get(group)?;
        let at = runs.partition_point(|run| run.last < bucket.0);
        runs.get(at).filter(|run| run.first <= bucket.0).map(|run| (run.version, run.mode))
    }
}

/// Whether a fence lets a request in; if not, the version that it needs.
fn allow(
    fence: Option<(RoutingVersion, FenceMode)>,
    claimed: RoutingVersion,
    access: Access,
) -> std::result::Result<(), RoutingVersion> {
    let (needed, mode) = fence.unwrap_or((RoutingVersion::ZERO, FenceMode::Closed));
    let allowed = match mode {
        FenceMode::Open => claimed >= needed,
        FenceMode::ReadOnly => access == Access::Read && claimed >= needed,
        FenceMode::Closed => false,
    };
    if allowed { Ok(()) } else { Err(needed) }
}

fn moved(group: &GroupName, bucket: u32, claimed: RoutingVersion, needed: RoutingVersion) -> ShardError {
    ShardError::Moved { unit: Unit::Bucket(group.clone(), BucketId(bucket)), claimed, needed }
}

fn check_rise(old: Option<RoutingVersion>, new: RoutingVersion) -> Result<()> {
    match old {
        Some(old) if new < old => {
            Err(ShardError::invalid(format!("a fence's version may not fall from {old} to {new}")))
        }
        _ => Ok(()),
    }
}

/// The parts of `run` that `new` leaves uncovered.
fn outside(run: Run, new: Run) -> impl Iterator<Item = Run> {
    let below = (run.first < new.first).then(|| Run { last: run.last.min(new.first.saturating_sub(1)), ..run });
    let above = (run.last > new.last).then(|| Run { first: run.first.max(new.last.saturating_add(1)), ..run });
    below.into_iter().chain(above)
}

fn join_neighbours(runs: Vec<Run>) -> Vec<Run> {
    let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.last + 1 == run.first && last.version == run.version && last.mode == run.mode => {
                last.last = run.last;
            }
            _ => joined.push(run),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn group() -> GroupName {
        GroupName::new("users").expect("valid")
    }

    fn fence(first: u32, last: u32, version: u64, mode: FenceMode) -> Fence {
        let scope = FenceScope::Buckets { group: group(), first: BucketId(first), last: BucketId(last) };
        Fence { scope, version: RoutingVersion(version), mode }
    }

    fn claim(version: u64, bucket: u32) -> Claim {
        Claim::new(RoutingVersion(version), vec![Claimed::Bucket(group(), BucketId(bucket))])
    }

    #[test]
    fn what_no_fence_speaks_of_is_refused() {
        let table = FenceTable::default();
        assert!(matches!(table.check(&claim(9, 0), Access::Read), Err(ShardError::Moved { .. })));
    }

    #[test]
    fn an_older_version_is_refused_with_the_version_needed() {
        let table = FenceTable::from_fences([fence(0, 7, 3, FenceMode::Open)]).expect("valid");
        assert_eq!(table.check(&claim(3, 5), Access::Write), Ok(()));
        assert_eq!(table.check(&claim(4, 5), Access::Write), Ok(()));
        let unit = Unit::Bucket(group(), BucketId(5));
        let moved = ShardError::Moved { unit, claimed: RoutingVersion(2), needed: RoutingVersion(3) };
        assert_eq!(table.check(&claim(2, 5), Access::Read), Err(moved));
    }

    #[test]
    fn a_read_only_fence_lets_reads_through() {
        let table = FenceTable::from_fences([fence(0, 7, 3, FenceMode::ReadOnly)]).expect("valid");
        assert!(table.check(&claim(3, 0), Access::Read).is_ok());
        assert!(table.check(&claim(3, 0), Access::Write).is_err());
    }

    #[test]
    fn a_pinned_tenant_goes_by_its_own_fence() {
        let tenant = Some(TenantId::new("acme").expect("valid"));
        let pin =
            Fence { scope: FenceScope::Tenant(tenant.clone()), version: RoutingVersion(5), mode: FenceMode::Closed };
        let table = FenceTable::from_fences([fence(0, 7, 1, FenceMode::Open), pin]).expect("valid");
        let claim = |tenant| Claim::new(RoutingVersion(5), vec![Claimed::Tenant(tenant, group(), BucketId(1))]);
        assert!(table.check(&claim(tenant), Access::Write).is_err());
        assert!(table.check(&claim(None), Access::Write).is_ok());
    }

    /// I-9, I-11
    #[test]
    fn who_asks_for_all_tenants_is_held_to_the_fence_of_each_that_it_takes_to_be_here() {
        use isles_kernel::hash::BucketCount;
        use isles_kernel::names::ShardId;
        use isles_kernel::routing::{RoutingChange, RoutingMove, RoutingPolicy};
        let shards = ["a", "b"].map(|name| ShardId::new(name).expect("valid"));
        let acme = TenantId::new("acme").expect("valid");
        let first = RoutingPolicy::new(group(), BucketCount::new(8).expect("some"), &shards).expect("valid");
        let (from, to) = match first.shard_of_tenant(&acme) == &shards[0] {
            true => (&shards[0], &shards[1]),
            false => (&shards[1], &shards[0]),
        };
        let pin = RoutingMove::Pin { tenant: acme.clone(), from: from.clone(), to: to.clone() };
        let second = first.apply(&RoutingChange { moves: vec![pin] }).expect("valid");
        let check = |mode, version: u64, policy: &RoutingPolicy, shard| {
            let scope = FenceScope::Tenant(Some(acme.clone()));
            let table = FenceTable::from_fences([Fence { scope, version: RoutingVersion(version), mode }]);
            let units = vec![Claimed::Residents(group(), Arc::new(Residents::of(policy, shard)))];
            table.expect("valid").check(&Claim::new(policy.version(), units), Access::Read).is_ok()
        };
        assert!(check(FenceMode::ReadOnly, 1, &first, from), "it is being cut over");
        assert!(!check(FenceMode::Closed, 2, &first, from), "it has gone, and the router does not know");
        assert!(check(FenceMode::Closed, 2, &second, from), "it has gone, and is not asked for");
        assert!(check(FenceMode::Closed, 1, &first, to), "it is on its way, and is not asked for");
        assert!(!check(FenceMode::Closed, 1, &second, to), "it has not been opened yet");
        assert!(check(FenceMode::Open, 2, &second, to));
        assert!(!check(FenceMode::Open, 2, &first, to), "it has come, and the router asks the other shard for it, too");
    }

    /// I-11
    #[test]
    fn where_strangers_are_a_claim_must_keep_to_its_buckets() {
        let whole = |version, mode| {
            let scope = FenceScope::Whole { group: group() };
            Fence { scope, version: RoutingVersion(version), mode }
        };
        let mut table = FenceTable::from_fences([fence(0, 7, 3, FenceMode::Open)]).expect("valid");
        let check =
            |table: &FenceTable, unit: Claimed, access| table.check(&Claim::new(RoutingVersion(3), vec![unit]), access);
        let range = |make: fn(GroupName, BucketId, BucketId) -> Claimed| make(group(), BucketId(2), BucketId(5));
        let strangers = || Err(ShardError::Strangers { group: group() });
        for (version, mode, refused) in [(1, FenceMode::Closed, true), (1, FenceMode::Open, false)] {
            table.set(&whole(version, mode)).expect("valid");
            for access in [Access::Read, Access::Write] {
                let expected = if refused { strangers() } else { Ok(()) };
                assert_eq!(check(&table, range(Claimed::Buckets), access), expected);
                assert_eq!(check(&table, range(Claimed::OwnBuckets), access), Ok(()));
                assert_eq!(check(&table, Claimed::Bucket(group(), BucketId(2)), access), Ok(()));
            }
            assert_eq!(FenceTable::from_fences(table.fences()).expect("valid"), table);
        }
        assert!(table.set(&whole(0, FenceMode::Closed)).is_err(), "its version does not fall");
        assert!(table.set(&whole(9, FenceMode::ReadOnly)).is_err());
        table.set(&whole(9, FenceMode::Closed)).expect("valid");
        let beyond = Claimed::Buckets(group(), BucketId(5), BucketId(9));
        assert!(
            matches!(check(&table, beyond, Access::Read), Err(ShardError::Moved { .. })),
            "where it is comes first"
        );
    }

    #[test]
    fn a_version_never_falls() {
        let mut table = FenceTable::from_fences([fence(0, 7, 3, FenceMode::Open)]).expect("valid");
        assert!(table.set(&fence(7, 9, 2, FenceMode::Open)).is_err());
        assert!(table.set(&fence(8, 9, 2, FenceMode::Open)).is_ok());
    }

    proptest! {
        #[test]
        fn ranges_behave_like_single_buckets(
            sets in prop::collection::vec((0u32..20, 0u32..20, any::<bool>()), 1..30),
        ) {
            let mut table = FenceTable::default();
            let mut model: BTreeMap<u32, (u64, FenceMode)> = BTreeMap::new();
            for (version, (a, b, open)) in (1u64..).zip(sets) {
                let mode = if open { FenceMode::Open } else { FenceMode::Closed };
                let (first, last) = (a.min(b), a.max(b));
                table.set(&fence(first, last, version, mode)).expect("versions rise");
                model.extend((first..=last).map(|bucket| (bucket, (version, mode))));
            }
            for bucket in 0..20 {
                let expected = model.get(&bucket).map(|(version, mode)| (RoutingVersion(*version), *mode));
                prop_assert_eq!(table.bucket(&group(), BucketId(bucket)), expected);
            }
            prop_assert_eq!(&FenceTable::from_fences(table.fences()).expect("valid"), &table);
            for (first, last) in (0..20).flat_map(|first| (first..22).map(move |last| (first, last))) {
                let version = RoutingVersion(15);
                let one = |bucket| Claimed::Bucket(group(), BucketId(bucket));
                let any = Claimed::Buckets(group(), BucketId(first), BucketId(last));
                prop_assert_eq!(table.serves(&any), (first..=last).any(|bucket| table.serves(&one(bucket))));
                let open = |bucket| model.get(&bucket).is_some_and(|(_, mode)| *mode == FenceMode::Open);
                prop_assert_eq!(table.serves(&any), (first..=last).any(open));
                let each = (first..=last).map(|bucket| Claimed::Bucket(group(), BucketId(bucket))).collect();
                let range = vec![Claimed::Buckets(group(), BucketId(first), BucketId(last))];
                let own = vec![Claimed::OwnBuckets(group(), BucketId(first), BucketId(last))];
                let [each, range, own] =
                    [each, range, own].map(|units| table.check(&Claim::new(version, units), Access::Write));
                prop_assert_eq!(&each, &range);
                prop_assert_eq!(each, own);
            }
        }
    }
}
