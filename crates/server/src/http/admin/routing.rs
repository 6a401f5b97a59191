//! The routing, its versions, and what differs between two of them.
//!
//! The catalog keeps the routing of now and what each version changed. An earlier version is found by undoing changes,
//! the last one first. Whether a tenant that was pinned to a shard had been pinned to the owner of its bucket before,
//! or had gone by its bucket, the changes do not tell; it was served by the same shard, and counts as not pinned.

use super::gate::{Admin, Answer, done};
use axum::extract::RawQuery;
use axum::http::StatusCode;
use isles_cluster::database::RoutingRecord;
use isles_kernel::error::SqlError;
use isles_kernel::names::{BucketId, GroupName, ShardId, TenantId};
use isles_kernel::routing::{RoutingChange, RoutingError, RoutingMove, RoutingPolicy};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Versions that are shown, if not said, and at most.
const SHOWN: usize = 100;
const SHOWN_MAX: usize = 1_000;

/// The numbers that a query gives under these names; another name, or what is no number, is refused.
fn numbers<const N: usize>(query: Option<&str>, names: [&str; N]) -> Result<[Option<u64>; N], SqlError> {
    let mut found = [None; N];
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(at) = names.iter().position(|known| *known == name) else {
            let message = format!("there is no parameter \"{name}\"");
            return Err(SqlError::new("22023", message).with_hint(format!("parameters are {}", names.join(", "))));
        };
        let number = value.parse().map_err(|_| SqlError::new("22023", format!("{name} is a whole number")))?;
        found[at] = Some(number);
    }
    Ok(found)
}

pub(super) async fn current(admin: Admin) -> Answer {
    done(StatusCode::OK, &*admin.database().current_routing())
}

pub(super) async fn history(admin: Admin, RawQuery(query): RawQuery) -> Answer {
    let [limit] = numbers(query.as_deref(), ["limit"])?;
    let limit = limit.map_or(Some(SHOWN), |limit| usize::try_from(limit).ok());
    match limit.filter(|limit| (1..=SHOWN_MAX).contains(limit)) {
        Some(limit) => done(StatusCode::OK, &admin.database().routing_history(limit).await?),
        None => Err(SqlError::new("22023", format!("limit is between 1 and {SHOWN_MAX}")).into()),
    }
}

pub(super) async fn diff(admin: Admin, RawQuery(query): RawQuery) -> Answer {
    let [from, to] = numbers(query.as_deref(), ["from", "to"])?;
    let from = from.ok_or_else(|| SqlError::new("22023", "parameter \"from\" is missing"))?;
    let now = admin.database().current_routing();
    let to = to.unwrap_or(now.version().0);
    let newest = now.version().0;
    for version in [from, to] {
        if version == 0 || version > newest {
            let message = format!("there is no routing version {version}: the newest is {newest}");
            return Err(SqlError::new("42704", message).into());
        }
    }
    let versions = usize::try_from(newest - from.min(to)).unwrap_or(usize::MAX);
    let mut records = admin.database().routing_history(versions).await?;
    // The routing may have changed meanwhile.
    records.retain(|record| record.version.0 <= newest);
    let (before, after) = (at(&now, &records, from)?, at(&now, &records, to)?);
    done(StatusCode::OK, &difference(&before, &after))
}

/// The routing as it was at a version, from what it is now and the versions since, the newest first.
fn at(now: &RoutingPolicy, records: &[RoutingRecord], version: u64) -> Result<RoutingPolicy, SqlError> {
    let mut policy = now.clone();
    for wanted in (version + 1..=now.version().0).rev() {
        let record = records
            .iter()
            .find(|record| record.version.0 == wanted)
            .ok_or_else(|| SqlError::new("42704", format!("routing version {version} is not kept any more")))?;
        let broken = |error: RoutingError| SqlError::new("XX000", format!("routing version {wanted}: {error}"));
        policy = undone(&policy, &record.change).map_err(broken)?;
    }
    Ok(policy)
}

fn undone(policy: &RoutingPolicy, change: &RoutingChange) -> Result<RoutingPolicy, RoutingError> {
    let mut policy = policy.clone();
    // One by one: where a tenant's bucket is depends on the moves before.
    for step in change.moves.iter().rev() {
        policy = policy.apply(&RoutingChange { moves: vec![opposite(&policy, step)] })?;
    }
    Ok(policy)
}

fn opposite(policy: &RoutingPolicy, step: &RoutingMove) -> RoutingMove {
    match step.clone() {
        RoutingMove::Buckets { group, first, last, from, to } => {
            RoutingMove::Buckets { group, first, last, from: to, to: from }
        }
        RoutingMove::Pin { tenant, from, to } => {
            let home = policy.shard_of_bucket(policy.tenant_group(), policy.bucket_of_tenant(&tenant));
            match home == Some(&from) {
                true => RoutingMove::Unpin { tenant, from: to, to: from },
                false => RoutingMove::Pin { tenant, from: to, to: from },
            }
        }
        RoutingMove::Unpin { tenant, from, to } => RoutingMove::Pin { tenant, from: to, to: from },
        RoutingMove::AddGroup { group, ranges } => RoutingMove::DropGroup { group, ranges },
        RoutingMove::DropGroup { group, ranges } => RoutingMove::AddGroup { group, ranges },
    }
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Difference {
    /// Tenants that are pinned after, and were not before.
    added_tenants: Vec<Placed>,
    removed_tenants: Vec<Placed>,
    changed_tenants: Vec<Changed>,
    added_ranges: Vec<Range>,
    removed_ranges: Vec<Range>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Placed {
    tenant_id: TenantId,
    shard: ShardId,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Changed {
    tenant_id: TenantId,
    old_shard: ShardId,
    new_shard: ShardId,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Range {
    group: GroupName,
    first: BucketId,
    last: BucketId,
    shard: ShardId,
}

fn difference(before: &RoutingPolicy, after: &RoutingPolicy) -> Difference {
    let pins = |policy: &RoutingPolicy| -> BTreeMap<TenantId, ShardId> {
        policy.pins().map(|(tenant, shard)| (tenant.clone(), shard.clone())).collect()
    };
    let (old, new) = (pins(before), pins(after));
    let only = |these: &BTreeMap<TenantId, ShardId>, those: &BTreeMap<TenantId, ShardId>| -> Vec<Placed> {
        let only = these.iter().filter(|(tenant, _)| !those.contains_key(tenant));
        only.map(|(tenant, shard)| Placed { tenant_id: tenant.clone(), shard: shard.clone() }).collect()
    };
    let changed = old.iter().filter_map(|(tenant, old_shard)| {
        let new_shard = new.get(tenant).filter(|shard| *shard != old_shard)?.clone();
        Some(Changed { tenant_id: tenant.clone(), old_shard: old_shard.clone(), new_shard })
    });
    let (ranges, later) = (ranges(before), ranges(after));
    Difference {
        added_tenants: only(&new, &old),
        removed_tenants: only(&old, &new),
        changed_tenants: changed.collect(),
        added_ranges: later.iter().filter(|range| !ranges.contains(range)).map(Range::copied).collect(),
        removed_ranges: ranges.iter().filter(|range| !later.contains(range)).map(Range::copied).collect(),
    }
}

impl Range {
    fn copied(&self) -> Range {
        Range { group: self.group.clone(), first: self.first, last: self.last, shard: self.shard.clone() }
    }
}

fn ranges(policy: &RoutingPolicy) -> BTreeSet<Range> {
    let of_group = |(group, ranges): (&GroupName, &[isles_kernel::routing::BucketRange])| -> Vec<Range> {
        let range = |range: &isles_kernel::routing::BucketRange| Range {
            group: group.clone(),
            first: range.first,
            last: range.last,
            shard: range.shard.clone(),
        };
        ranges.iter().map(range).collect()
    };
    policy.groups().flat_map(of_group).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use isles_kernel::hash::BucketCount;
    use isles_kernel::routing::spread_evenly;

    fn shard(name: &str) -> ShardId {
        ShardId::new(name).unwrap()
    }

    fn group(name: &str) -> GroupName {
        GroupName::new(name).unwrap()
    }

    fn record(before: &RoutingPolicy, after: &RoutingPolicy) -> RoutingRecord {
        RoutingRecord {
            version: after.version(),
            timestamp: 0,
            checksum: String::new(),
            description: String::new(),
            change: before.diff(after),
        }
    }

    /// Versions that were made by every kind of change are found again by undoing.
    #[test]
    fn earlier_versions_are_found_by_undoing() {
        let shards = ["a", "b"].map(shard);
        let first = RoutingPolicy::new(group("tenants"), BucketCount::new(8).unwrap(), &shards).unwrap();
        let tenant = TenantId::new("acme").unwrap();
        let home = first.shard_of_tenant(&tenant).clone();
        let away = shards.iter().find(|shard| **shard != home).unwrap().clone();
        let (first_bucket, last_bucket) = (BucketId(0), BucketId(1));
        let ranges = spread_evenly(BucketCount::new(4).unwrap(), &shards).unwrap();
        let moves = [
            RoutingMove::Pin { tenant: tenant.clone(), from: home.clone(), to: away.clone() },
            RoutingMove::Pin { tenant: tenant.clone(), from: away.clone(), to: shard("c") },
            RoutingMove::AddGroup { group: group("users"), ranges: ranges.clone() },
            RoutingMove::Buckets {
                group: group("users"),
                first: first_bucket,
                last: last_bucket,
                from: shard("a"),
                to: shard("c"),
            },
            RoutingMove::Unpin { tenant: tenant.clone(), from: shard("c"), to: home.clone() },
        ];
        let mut versions = vec![first];
        let mut records = Vec::new();
        for step in moves {
            let before = versions.last().unwrap();
            let after = before.apply(&RoutingChange { moves: vec![step] }).unwrap();
            records.insert(0, record(before, &after));
            versions.push(after);
        }
        let now = versions.last().unwrap();
        for version in &versions {
            let found = at(now, &records, version.version().0).unwrap();
            let differs = difference(&found, version);
            assert_eq!(differs, difference(version, version), "version {}", version.version());
        }
        let whole = difference(&versions[0], &versions[4]);
        assert_eq!(whole.added_tenants, [Placed { tenant_id: tenant.clone(), shard: shard("c") }]);
        assert_eq!(whole.added_ranges.len(), 2);
        assert!(
            whole.removed_tenants.is_empty() && whole.changed_tenants.is_empty() && whole.removed_ranges.is_empty()
        );
        let last = difference(&versions[1], &versions[2]);
        let changed = Changed { tenant_id: tenant, old_shard: away, new_shard: shard("c") };
        assert_eq!(last.changed_tenants, [changed]);
        records.remove(2);
        assert_eq!(at(now, &records, 1).unwrap_err().sqlstate, "42704");
    }
}
