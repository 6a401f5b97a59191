//! Which shard a bucket or a pinned tenant lives on.
//!
//! ```text
//! tenant ──pinned?──yes──────────────────────────────► shard
//!    └──no──► bucket of the tenant group ──┐
//! key ──placement──► (group, bucket) ──────┴─ranges──► shard
//! ```
//!
//! A [`RoutingPolicy`] is one version of the whole mapping. It never changes: [`RoutingPolicy::apply`] makes the
//! next one, so a router swaps one pointer and a statement sees one version from start to end.
//!
//! Invariants:
//!   * Every bucket of every group has exactly one owner.
//!   * I-8   The version rises by exactly one for each change, and by nothing else.
//!   * I-37  Ids name buckets and only this map names shards, so a route is right at every version.
//!   * Equal content has an equal checksum, however it came about; any difference changes it.
//!
//! Each move says which owner it expects. Two plans made from the same map cannot both be applied where they
//! touch: the later one finds another owner and is refused, and is not carried out on top of the first.
//!
//! Buckets are kept as ranges, merged where neighbours have one owner: a map of 65,536 buckets over 8 shards is
//! 8 entries, and the merged form is the canonical one that the checksum reads.

use crate::hash::{BucketCount, bucket_of};
use crate::names::{BucketId, GroupName, RoutingVersion, ShardId, TenantId};
use crate::schema::global_bucket;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The most bucket spaces: groups, overrides and generations together.
pub const MAX_ROUTED_GROUPS: usize = 4096;

/// The most pinned tenants. Every router holds them all; beyond this, tenants belong into buckets.
pub const MAX_PINS: usize = 1_000_000;

/// The most moves of one change. A change is one transaction of the catalog and must stay small enough for it.
pub const MAX_MOVES: usize = 65_536;

/// Buckets `first..=last` of a group and their owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketRange {
    pub first: BucketId,
    pub last: BucketId,
    pub shard: ShardId,
}

/// One thing that gets another owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RoutingMove {
    /// Buckets `first..=last`, all of them owned by `from`.
    Buckets { group: GroupName, first: BucketId, last: BucketId, from: ShardId, to: ShardId },
    /// Pins a tenant to `to`; it lives on `from` now, by a pin or by its bucket.
    Pin { tenant: TenantId, from: ShardId, to: ShardId },
    /// Removes a tenant's pin to `from`; it follows its bucket again, which `to` owns.
    Unpin { tenant: TenantId, from: ShardId, to: ShardId },
    /// A group that was not there, with the owners of its buckets in order.
    AddGroup { group: GroupName, ranges: Vec<BucketRange> },
    /// A group whose buckets are empty. `ranges` are its owners now.
    DropGroup { group: GroupName, ranges: Vec<BucketRange> },
}

/// What becomes the next version, all of it or nothing. Moves apply in order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutingChange {
    pub moves: Vec<RoutingMove>,
}

/// Why a map or a change to it is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoutingError {
    #[error("there is no group {group}")]
    UnknownGroup { group: GroupName },
    #[error("group {group} is there already")]
    GroupExists { group: GroupName },
    #[error("group {group} has no buckets {first} to {last}")]
    NoSuchBuckets { group: GroupName, first: BucketId, last: BucketId },
    /// Somebody else moved it since the plan was made. Plan again.
    #[error("{what} is on {owner}, not on {expected}")]
    OwnerChanged { what: String, owner: String, expected: ShardId },
    #[error("tenant {tenant} is not pinned")]
    NotPinned { tenant: TenantId },
    #[error("the change changes nothing")]
    NoChange,
    #[error("group {group} places the tenants and cannot be dropped")]
    TenantGroup { group: GroupName },
    #[error("the ranges of group {group} do not cover each bucket once")]
    NotACover { group: GroupName },
    #[error("there are no shards to place buckets on, or one is named twice")]
    BadShards,
    #[error("there are more than {limit} {what}")]
    TooMany { what: &'static str, limit: usize },
    #[error("the routing version is exhausted")]
    VersionExhausted,
    #[error("the checksum is {stored}, the content has {actual}")]
    Checksum { stored: String, actual: String },
}

/// One version of the mapping from buckets and tenants to shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredPolicy", into = "StoredPolicy")]
pub struct RoutingPolicy {
    version: RoutingVersion,
    /// The group whose buckets tenants without a pin hash to.
    tenant_group: GroupName,
    /// Each list covers its group from bucket 0 on; neighbours have different owners.
    groups: BTreeMap<GroupName, Vec<BucketRange>>,
    pins: BTreeMap<TenantId, ShardId>,
}

impl RoutingPolicy {
    /// Version 1: one group, for the tenants, spread evenly over the shards.
    pub fn new(
        tenant_group: GroupName,
        buckets: BucketCount,
        shards: &[ShardId],
    ) -> Result<RoutingPolicy, RoutingError> {
        let ranges = spread_evenly(buckets, shards)?;
        let groups = BTreeMap::from([(tenant_group.clone(), ranges)]);
        Ok(RoutingPolicy { version: RoutingVersion(1), tenant_group, groups, pins: BTreeMap::new() })
    }

    pub fn version(&self) -> RoutingVersion {
        self.version
    }

    pub fn tenant_group(&self) -> &GroupName {
        &self.tenant_group
    }

    /// The groups and their ranges, in order of name.
    pub fn groups(&self) -> impl Iterator<Item = (&GroupName, &[BucketRange])> {
        self.groups.iter().map(|(group, ranges)| (group, ranges.as_slice()))
    }

    pub fn ranges(&self, group: &GroupName) -> Option<&[BucketRange]> {
        self.groups.get(group).map(Vec::as_slice)
    }

    /// The buckets of a group that a shard has.
    pub fn owned<'a>(&'a self, group: &GroupName, shard: &'a ShardId) -> impl Iterator<Item = &'a BucketRange> {
        self.ranges(group).unwrap_or_default().iter().filter(move |range| range.shard == *shard)
    }

    pub fn buckets(&self, group: &GroupName) -> Option<BucketCount> {
        self.groups.get(group).and_then(|ranges| count_of(ranges))
    }

    /// How many buckets there are for tenants. It never changes.
    pub fn tenant_buckets(&self) -> BucketCount {
        self.buckets(&self.tenant_group).expect("the tenant group is always there and never empty")
    }

    pub fn pins(&self) -> impl Iterator<Item = (&TenantId, &ShardId)> {
        self.pins.iter()
    }

    /// Every shard that owns something, in order of name.
    pub fn shards(&self) -> BTreeSet<&ShardId> {
        self.groups.values().flatten().map(|range| &range.shard).chain(self.pins.values()).collect()
    }

    /// None if there is no such group or bucket.
    pub fn shard_of_bucket(&self, group: &GroupName, bucket: BucketId) -> Option<&ShardId> {
        owner(self.groups.get(group)?, bucket)
    }

    /// Where the global tables are. None if there is no such group yet.
    pub fn home(&self) -> Option<&ShardId> {
        let (group, bucket) = global_bucket();
        self.shard_of_bucket(&group, bucket)
    }

    /// Where a tenant lives: its pin, or the owner of its bucket.
    pub fn shard_of_tenant(&self, tenant: &TenantId) -> &ShardId {
        self.pins.get(tenant).unwrap_or_else(|| self.shard_of_tenant_bucket(tenant))
    }

    pub fn is_pinned(&self, tenant: &TenantId) -> bool {
        self.pins.contains_key(tenant)
    }

    /// The bucket of the tenant group that a tenant hashes to, pinned or not.
    pub fn bucket_of_tenant(&self, tenant: &TenantId) -> BucketId {
        bucket_of(tenant.as_str(), None, self.tenant_buckets())
    }

    /// The bucket that rows of the null tenant hash to: an empty name is nobody else's.
    pub fn bucket_of_null_tenant(&self) -> BucketId {
        bucket_of("", None, self.tenant_buckets())
    }

    /// The shards that have tenants of these buckets: their owners, and those that such tenants are pinned to.
    pub fn shards_of_tenants(&self, buckets: &BTreeSet<BucketId>) -> BTreeSet<&ShardId> {
        let owners = buckets.iter().filter_map(|bucket| self.shard_of_bucket(&self.tenant_group, *bucket));
        let pinned = self.pins.iter().filter(|(tenant, _)| buckets.contains(&self.bucket_of_tenant(tenant)));
        owners.chain(pinned.map(|(_, shard)| shard)).collect()
    }

    fn shard_of_tenant_bucket(&self, tenant: &TenantId) -> &ShardId {
        let bucket = self.bucket_of_tenant(tenant);
        self.shard_of_bucket(&self.tenant_group, bucket).expect("a group's ranges cover each of its buckets")
    }

    /// The next version, with every move made; or an error, and nothing has happened.
    pub fn apply(&self, change: &RoutingChange) -> Result<RoutingPolicy, RoutingError> {
        limit("moves", change.moves.len(), MAX_MOVES)?;
        let mut next = self.clone();
        for step in &change.moves {
            next.make(step)?;
        }
        if next == *self {
            return Err(RoutingError::NoChange);
        }
        limit("groups", next.groups.len(), MAX_ROUTED_GROUPS)?;
        limit("pinned tenants", next.pins.len(), MAX_PINS)?;
        if self.version.0 == u64::MAX {
            return Err(RoutingError::VersionExhausted);
        }
        next.version = self.version.next();
        Ok(next)
    }

    fn make(&mut self, step: &RoutingMove) -> Result<(), RoutingError> {
        match step {
            RoutingMove::Buckets { group, first, last, from, to } => self.move_buckets(group, *first, *last, from, to),
            RoutingMove::Pin { tenant, from, to } => self.pin(tenant, from, to),
            RoutingMove::Unpin { tenant, from, to } => self.unpin(tenant, from, to),
            RoutingMove::AddGroup { group, ranges } => self.add_group(group, ranges),
            RoutingMove::DropGroup { group, ranges } => self.drop_group(group, ranges),
        }
    }

    fn move_buckets(
        &mut self,
        group: &GroupName,
        first: BucketId,
        last: BucketId,
        from: &ShardId,
        to: &ShardId,
    ) -> Result<(), RoutingError> {
        let ranges = self.groups.get_mut(group).ok_or_else(|| RoutingError::UnknownGroup { group: group.clone() })?;
        let inside = count_of(ranges).is_some_and(|buckets| first <= last && buckets.contains(last));
        if !inside {
            return Err(RoutingError::NoSuchBuckets { group: group.clone(), first, last });
        }
        let touched = |range: &&BucketRange| range.first <= last && first <= range.last;
        if let Some(other) = ranges.iter().filter(touched).find(|range| range.shard != *from) {
            let what = format!("bucket {} of group {group}", other.first.max(first));
            return Err(RoutingError::OwnerChanged { what, owner: other.shard.to_string(), expected: from.clone() });
        }
        *ranges = merged(reassigned(ranges, first, last, to));
        Ok(())
    }

    fn pin(&mut self, tenant: &TenantId, from: &ShardId, to: &ShardId) -> Result<(), RoutingError> {
        expect_owner(tenant, self.shard_of_tenant(tenant), from)?;
        self.pins.insert(tenant.clone(), to.clone());
        Ok(())
    }

    fn unpin(&mut self, tenant: &TenantId, from: &ShardId, to: &ShardId) -> Result<(), RoutingError> {
        let pinned = self.pins.get(tenant).ok_or_else(|| RoutingError::NotPinned { tenant: tenant.clone() })?;
        expect_owner(tenant, pinned, from)?;
        expect_owner(tenant, self.shard_of_tenant_bucket(tenant), to)?;
        self.pins.remove(tenant);
        Ok(())
    }

    fn add_group(&mut self, group: &GroupName, ranges: &[BucketRange]) -> Result<(), RoutingError> {
        if self.groups.contains_key(group) {
            return Err(RoutingError::GroupExists { group: group.clone() });
        }
        let ranges = checked_cover(group, ranges.to_vec())?;
        self.groups.insert(group.clone(), ranges);
        Ok(())
    }

    fn drop_group(&mut self, group: &GroupName, ranges: &[BucketRange]) -> Result<(), RoutingError> {
        if *group == self.tenant_group {
            return Err(RoutingError::TenantGroup { group: group.clone() });
        }
        let owned = self.groups.get(group).ok_or_else(|| RoutingError::UnknownGroup { group: group.clone() })?;
        if let Some((now, expected)) = first_difference(owned, &checked_cover(group, ranges.to_vec())?) {
            let what = format!("bucket {} of group {group}", now.first);
            return Err(RoutingError::OwnerChanged { what, owner: now.shard.to_string(), expected });
        }
        self.groups.remove(group);
        Ok(())
    }

    /// The change that leads from `self` to the content of `newer`.
    pub fn diff(&self, newer: &RoutingPolicy) -> RoutingChange {
        let mut moves = Vec::new();
        for (group, ranges) in &self.groups {
            match newer.groups.get(group) {
                None => moves.push(RoutingMove::DropGroup { group: group.clone(), ranges: ranges.clone() }),
                Some(now) if count_of(now) != count_of(ranges) => {
                    moves.push(RoutingMove::DropGroup { group: group.clone(), ranges: ranges.clone() });
                    moves.push(RoutingMove::AddGroup { group: group.clone(), ranges: now.clone() });
                }
                Some(now) => moves.extend(moved_buckets(group, ranges, now)),
            }
        }
        for (group, ranges) in newer.groups.iter().filter(|(group, _)| !self.groups.contains_key(group)) {
            moves.push(RoutingMove::AddGroup { group: group.clone(), ranges: ranges.clone() });
        }
        moves.extend(self.moved_tenants(newer));
        RoutingChange { moves }
    }

    /// Pins come after buckets in a diff, so an owner by bucket is the newer one.
    fn moved_tenants(&self, newer: &RoutingPolicy) -> Vec<RoutingMove> {
        let tenants: BTreeSet<&TenantId> = self.pins.keys().chain(newer.pins.keys()).collect();
        let one = |tenant: &TenantId| {
            let home = newer.shard_of_tenant_bucket(tenant).clone();
            match (self.pins.get(tenant).cloned(), newer.pins.get(tenant).cloned()) {
                (Some(from), None) => Some(RoutingMove::Unpin { tenant: tenant.clone(), from, to: home }),
                (from, Some(to)) if from.as_ref() != Some(&to) => {
                    Some(RoutingMove::Pin { tenant: tenant.clone(), from: from.unwrap_or(home), to })
                }
                _ => None,
            }
        };
        tenants.into_iter().filter_map(one).collect()
    }

    /// XXH3-64 of the canonical encoding: every number in fixed width, every text behind its length, every list
    /// behind its count. So no two contents have one encoding.
    pub fn checksum(&self) -> u64 {
        let mut bytes = Vec::new();
        number(&mut bytes, self.version.0);
        text(&mut bytes, self.tenant_group.as_str());
        number(&mut bytes, self.groups.len() as u64);
        for (group, ranges) in &self.groups {
            text(&mut bytes, group.as_str());
            number(&mut bytes, ranges.len() as u64);
            for range in ranges {
                number(&mut bytes, u64::from(range.first.0));
                number(&mut bytes, u64::from(range.last.0));
                text(&mut bytes, range.shard.as_str());
            }
        }
        number(&mut bytes, self.pins.len() as u64);
        for (tenant, shard) in &self.pins {
            text(&mut bytes, tenant.as_str());
            text(&mut bytes, shard.as_str());
        }
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

/// Divides the buckets into one range per shard, in the order given, the first ones longer by one where it does
/// not come out even. Shards beyond the number of buckets get none.
pub fn spread_evenly(buckets: BucketCount, shards: &[ShardId]) -> Result<Vec<BucketRange>, RoutingError> {
    let distinct: BTreeSet<&ShardId> = shards.iter().collect();
    if shards.is_empty() || distinct.len() != shards.len() {
        return Err(RoutingError::BadShards);
    }
    let mut ranges = Vec::new();
    let mut first = 0;
    for (i, shard) in shards.iter().take(buckets.get() as usize).enumerate() {
        let shards_left = shards.len().min(buckets.get() as usize) - i;
        let count = (buckets.get() - first).div_ceil(shards_left as u32);
        ranges.push(BucketRange { first: BucketId(first), last: BucketId(first + count - 1), shard: shard.clone() });
        first += count;
    }
    Ok(ranges)
}

fn number(bytes: &mut Vec<u8>, value: u64) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

fn text(bytes: &mut Vec<u8>, value: &str) {
    number(bytes, value.len() as u64);
    bytes.extend_from_slice(value.as_bytes());
}

fn limit(what: &'static str, actual: usize, limit: usize) -> Result<(), RoutingError> {
    match actual <= limit {
        true => Ok(()),
        false => Err(RoutingError::TooMany { what, limit }),
    }
}

fn expect_owner(tenant: &TenantId, owner: &ShardId, expected: &ShardId) -> Result<(), RoutingError> {
    if owner == expected {
        return Ok(());
    }
    let what = format!("tenant {tenant}");
    Err(RoutingError::OwnerChanged { what, owner: owner.to_string(), expected: expected.clone() })
}

fn count_of(ranges: &[BucketRange]) -> Option<BucketCount> {
    ranges.last().and_then(|range| range.last.0.checked_add(1)).and_then(BucketCount::new)
}

fn owner(ranges: &[BucketRange], bucket: BucketId) -> Option<&ShardId> {
    let i = ranges.partition_point(|range| range.last < bucket);
    ranges.get(i).map(|range| &range.shard)
}

/// The ranges with `first..=last` given to `to`, cut where needed.
fn reassigned(ranges: &[BucketRange], first: BucketId, last: BucketId, to: &ShardId) -> Vec<BucketRange> {
    let before = ranges.iter().filter(|range| range.first < first);
    let before = before.map(|range| BucketRange { last: BucketId(range.last.0.min(first.0 - 1)), ..range.clone() });
    let moved = BucketRange { first, last, shard: to.clone() };
    let after = ranges.iter().filter(|range| range.last > last);
    let after = after.map(|range| BucketRange { first: BucketId(range.first.0.max(last.0 + 1)), ..range.clone() });
    before.chain([moved]).chain(after).collect()
}

/// Joins neighbours with one owner.
fn merged(ranges: Vec<BucketRange>) -> Vec<BucketRange> {
    let mut out: Vec<BucketRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match out.last_mut() {
            Some(before) if before.shard == range.shard => before.last = range.last,
            _ => out.push(range),
        }
    }
    out
}

/// The canonical form of ranges that cover buckets from 0 on, each once.
fn checked_cover(group: &GroupName, ranges: Vec<BucketRange>) -> Result<Vec<BucketRange>, RoutingError> {
    let mut next = Some(0);
    for range in &ranges {
        let follows = next == Some(range.first.0) && range.first <= range.last;
        next = range.last.0.checked_add(1).filter(|_| follows);
    }
    match next.and_then(BucketCount::new) {
        Some(_) => Ok(merged(ranges)),
        None => Err(RoutingError::NotACover { group: group.clone() }),
    }
}

fn first_difference(owned: &[BucketRange], expected: &[BucketRange]) -> Option<(BucketRange, ShardId)> {
    let differs = |range: &&BucketRange| owner(expected, range.first) != Some(&range.shard);
    let fault = match owned.iter().find(differs) {
        Some(range) => range,
        // Each owned range begins as expected, so if they differ at all it is in where one ends.
        None if owned != expected => owned.last()?,
        None => return None,
    };
    Some((fault.clone(), owner(expected, fault.first).unwrap_or(&fault.shard).clone()))
}

/// Runs of buckets whose owner differs, in order.
fn moved_buckets(group: &GroupName, old: &[BucketRange], new: &[BucketRange]) -> Vec<RoutingMove> {
    let mut moves = Vec::new();
    for before in old {
        for after in new.iter().filter(|after| after.first <= before.last && before.first <= after.last) {
            if before.shard != after.shard {
                moves.push(RoutingMove::Buckets {
                    group: group.clone(),
                    first: before.first.max(after.first),
                    last: before.last.min(after.last),
                    from: before.shard.clone(),
                    to: after.shard.clone(),
                });
            }
        }
    }
    moves
}

/// The policy as it is stored. The checksum is text, because JSON numbers lose the low bits of a u64 in many
/// readers.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StoredPolicy {
    version: RoutingVersion,
    tenant_group: GroupName,
    groups: BTreeMap<GroupName, Vec<BucketRange>>,
    pins: BTreeMap<TenantId, ShardId>,
    checksum: String,
}

impl From<RoutingPolicy> for StoredPolicy {
    fn from(policy: RoutingPolicy) -> StoredPolicy {
        let checksum = format!("{:016x}", policy.checksum());
        let RoutingPolicy { version, tenant_group, groups, pins } = policy;
        StoredPolicy { version, tenant_group, groups, pins, checksum }
    }
}

impl TryFrom<StoredPolicy> for RoutingPolicy {
    type Error = RoutingError;

    fn try_from(stored: StoredPolicy) -> Result<RoutingPolicy, RoutingError> {
        let StoredPolicy { version, tenant_group, groups, pins, checksum } = stored;
        limit("groups", groups.len(), MAX_ROUTED_GROUPS)?;
        limit("pinned tenants", pins.len(), MAX_PINS)?;
        if !groups.contains_key(&tenant_group) {
            return Err(RoutingError::UnknownGroup { group: tenant_group });
        }
        for (group, ranges) in &groups {
            // Stored ranges are canonical already; any other form was not written by us.
            if checked_cover(group, ranges.clone())? != *ranges {
                return Err(RoutingError::NotACover { group: group.clone() });
            }
        }
        let policy = RoutingPolicy { version, tenant_group, groups, pins };
        let actual = format!("{:016x}", policy.checksum());
        match actual == checksum {
            true => Ok(policy),
            false => Err(RoutingError::Checksum { stored: checksum, actual }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shard(name: &str) -> ShardId {
        ShardId::new(name).unwrap()
    }

    fn group(name: &str) -> GroupName {
        GroupName::new(name).unwrap()
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn policy() -> RoutingPolicy {
        let shards = [shard("a"), shard("b"), shard("c")];
        RoutingPolicy::new(group("tenants"), BucketCount::new(8).unwrap(), &shards).unwrap()
    }

    fn buckets(first: u32, last: u32, from: &str, to: &str) -> RoutingMove {
        let (first, last) = (BucketId(first), BucketId(last));
        RoutingMove::Buckets { group: group("tenants"), first, last, from: shard(from), to: shard(to) }
    }

    fn apply(policy: &RoutingPolicy, moves: Vec<RoutingMove>) -> Result<RoutingPolicy, RoutingError> {
        policy.apply(&RoutingChange { moves })
    }

    fn shown(policy: &RoutingPolicy, name: &str) -> String {
        let one = |range: &BucketRange| format!("{}-{} {}", range.first, range.last, range.shard);
        policy.ranges(&group(name)).unwrap().iter().map(one).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn buckets_begin_evenly_spread() {
        assert_eq!(shown(&policy(), "tenants"), "0-2 a, 3-5 b, 6-7 c");
        assert_eq!(policy().version(), RoutingVersion(1));
        let few = spread_evenly(BucketCount::ONE, &[shard("a"), shard("b")]).unwrap();
        assert_eq!(few, [BucketRange { first: BucketId(0), last: BucketId(0), shard: shard("a") }]);
        assert_eq!(spread_evenly(BucketCount::ONE, &[]), Err(RoutingError::BadShards));
        assert_eq!(spread_evenly(BucketCount::ONE, &[shard("a"), shard("a")]), Err(RoutingError::BadShards));
    }

    #[test]
    fn a_change_raises_the_version_by_exactly_one_however_many_moves_it_has() {
        let next = apply(&policy(), vec![buckets(0, 0, "a", "d"), buckets(6, 7, "c", "d"), buckets(1, 1, "a", "b")]);
        let next = next.unwrap();
        assert_eq!(next.version(), RoutingVersion(2));
        assert_eq!(shown(&next, "tenants"), "0-0 d, 1-1 b, 2-2 a, 3-5 b, 6-7 d");
        assert_eq!(apply(&next, vec![buckets(2, 2, "a", "b")]).unwrap().version(), RoutingVersion(3));
    }

    #[test]
    fn neighbours_with_one_owner_are_one_range() {
        let next = apply(&policy(), vec![buckets(3, 5, "b", "a")]).unwrap();
        assert_eq!(shown(&next, "tenants"), "0-5 a, 6-7 c");
    }

    #[test]
    fn a_move_planned_from_an_older_map_is_refused() {
        let next = apply(&policy(), vec![buckets(1, 1, "a", "b")]).unwrap();
        let late = apply(&next, vec![buckets(0, 2, "a", "c")]);
        assert_eq!(late.unwrap_err().to_string(), "bucket 1 of group tenants is on b, not on a");
    }

    #[test]
    fn what_changes_nothing_is_no_change() {
        assert_eq!(apply(&policy(), vec![]), Err(RoutingError::NoChange));
        assert_eq!(apply(&policy(), vec![buckets(0, 1, "a", "a")]), Err(RoutingError::NoChange));
        let there_and_back = vec![buckets(0, 0, "a", "b"), buckets(0, 0, "b", "a")];
        assert_eq!(apply(&policy(), there_and_back), Err(RoutingError::NoChange));
    }

    #[test]
    fn a_refused_move_undoes_those_before_it() {
        let before = policy();
        assert!(apply(&before, vec![buckets(0, 0, "a", "b"), buckets(7, 8, "c", "b")]).is_err());
        assert_eq!(before, policy());
    }

    #[test]
    fn a_pinned_tenant_stays_when_its_bucket_moves() {
        let acme = tenant("acme");
        let home = policy().shard_of_tenant(&acme).clone();
        let at = policy().bucket_of_tenant(&acme).0;
        let pin = RoutingMove::Pin { tenant: acme.clone(), from: home.clone(), to: shard("vip") };
        let pinned = apply(&policy(), vec![pin]).unwrap();
        assert_eq!(pinned.shard_of_tenant(&acme), &shard("vip"));

        let moved = apply(&pinned, vec![buckets(at, at, home.as_str(), "d")]).unwrap();
        assert_eq!(moved.shard_of_tenant(&acme), &shard("vip"));
        let stale = RoutingMove::Unpin { tenant: acme.clone(), from: shard("vip"), to: home };
        assert!(matches!(apply(&moved, vec![stale]), Err(RoutingError::OwnerChanged { .. })));
        let unpin = RoutingMove::Unpin { tenant: acme.clone(), from: shard("vip"), to: shard("d") };
        let free = apply(&moved, vec![unpin.clone()]).unwrap();
        assert_eq!(free.shard_of_tenant(&acme), &shard("d"));
        assert!(!free.is_pinned(&acme));
        assert_eq!(apply(&free, vec![unpin]), Err(RoutingError::NotPinned { tenant: acme }));
    }

    #[test]
    fn groups_come_and_go_by_changes() {
        let ranges = spread_evenly(BucketCount::new(4).unwrap(), &[shard("a"), shard("b")]).unwrap();
        let add = RoutingMove::AddGroup { group: group("users"), ranges: ranges.clone() };
        let next = apply(&policy(), vec![add.clone()]).unwrap();
        assert_eq!(next.shard_of_bucket(&group("users"), BucketId(3)), Some(&shard("b")));
        assert_eq!(next.shard_of_bucket(&group("users"), BucketId(4)), None);
        assert!(matches!(apply(&next, vec![add]), Err(RoutingError::GroupExists { .. })));

        let stale = spread_evenly(BucketCount::new(4).unwrap(), &[shard("a")]).unwrap();
        let drop = |ranges| RoutingMove::DropGroup { group: group("users"), ranges };
        assert!(matches!(apply(&next, vec![drop(stale)]), Err(RoutingError::OwnerChanged { .. })));
        assert_eq!(apply(&next, vec![drop(ranges)]).unwrap().ranges(&group("users")), None);
        let tenants = policy().ranges(&group("tenants")).unwrap().to_vec();
        let drop = RoutingMove::DropGroup { group: group("tenants"), ranges: tenants };
        assert!(matches!(apply(&policy(), vec![drop]), Err(RoutingError::TenantGroup { .. })));
    }

    #[test]
    fn ranges_with_a_gap_or_an_overlap_are_no_group() {
        let range = |first, last| BucketRange { first: BucketId(first), last: BucketId(last), shard: shard("a") };
        for bad in [
            vec![],
            vec![range(1, 2)],
            vec![range(0, 1), range(3, 4)],
            vec![range(0, 1), range(1, 4)],
            vec![range(1, 0)],
            vec![range(0, 65_536)],
            vec![range(0, u32::MAX)],
        ] {
            let add = RoutingMove::AddGroup { group: group("users"), ranges: bad };
            assert!(matches!(apply(&policy(), vec![add]), Err(RoutingError::NotACover { .. })));
        }
    }

    #[test]
    fn any_difference_at_all_changes_the_checksum() {
        let pin = |name: &str, to: &str| {
            let from = policy().shard_of_tenant(&tenant(name)).clone();
            RoutingMove::Pin { tenant: tenant(name), from, to: shard(to) }
        };
        let add = |name: &str, count, owner: &str| {
            let ranges = spread_evenly(BucketCount::new(count).unwrap(), &[shard(owner)]).unwrap();
            RoutingMove::AddGroup { group: group(name), ranges }
        };
        let changes = [
            vec![pin("acme", "x")],
            vec![pin("acma", "x")],
            vec![pin("acme", "y")],
            vec![pin("acme", "x"), pin("acma", "x")],
            vec![pin("acmex", "x")],
            vec![pin("acme", "xx")],
            vec![add("users", 4, "a")],
            vec![add("users", 5, "a")],
            vec![add("users", 4, "b")],
            vec![add("usera", 4, "a")],
            vec![buckets(0, 0, "a", "b")],
            vec![buckets(0, 1, "a", "b")],
            vec![buckets(0, 0, "a", "c")],
        ];
        let mut policies: Vec<RoutingPolicy> = changes.map(|moves| apply(&policy(), moves).unwrap()).into();
        assert!(policies.iter().all(|policy| policy.version() == RoutingVersion(2)), "the version tells none apart");
        policies.push(RoutingPolicy { tenant_group: group("users"), ..policies[6].clone() });
        policies.push(RoutingPolicy { version: RoutingVersion(3), ..policies[0].clone() });
        let checksums: BTreeSet<u64> = policies.iter().map(RoutingPolicy::checksum).collect();
        assert_eq!(checksums.len(), policies.len());
    }

    #[test]
    fn a_stored_map_that_was_tampered_with_does_not_load() {
        let json = serde_json::to_string(&policy()).unwrap();
        assert_eq!(serde_json::from_str::<RoutingPolicy>(&json).unwrap(), policy());
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("\"last\":2,\"shard\":\"a\"", "\"last\":2,\"shard\":\"z\""),
            ("\"last\":7", "\"last\":9"),
            ("\"pins\":{}", "\"pins\":{\"acme\":\"a\"}"),
            ("\"tenantGroup\":\"tenants\"", "\"tenantGroup\":\"users\""),
            ("\"pins\":{}", "\"pins\":{},\"more\":1"),
            ("\"first\":3", "\"first\":2"),
        ] {
            let bad = json.replace(from, to);
            assert_ne!(bad, json, "{from} is in {json}");
            assert!(serde_json::from_str::<RoutingPolicy>(&bad).is_err(), "{bad}");
        }
    }
}
