//! The routing of a database: which shard serves which bucket, and the fences that say so on the shards.
//!
//! The map is one record of the catalog, changed by compare-and-set, and followed in memory. A statement takes the map
//! of the moment and sees one version from start to end; a shard that has newer fences refuses it, and then the map is
//! read again.
//!
//! Invariants (docs/invariants.md):
//!   * I-7  a shard serves a bucket only after its fence says so; a new group's are set in the transaction that makes its first table
//!   * I-8  the version rises by one with each change
//!   * I-44 no two tenants are pinned to one shard by [`Routing::pin`]

use super::members::Members;
use super::shards::ShardSet;
use super::{members, regions, schema};
use crate::catalog::{Catalog, CatalogError, Key, Record, Transaction};
use crate::commit::decision::catalog_error;
use arc_swap::ArcSwap;
use isles_engine::fence::{Claimed, Fence, FenceMode, FenceScope, FenceTable};
use isles_kernel::error::SqlError;
use isles_kernel::hash::BucketCount;
use isles_kernel::names::{GroupName, RoutingVersion, ShardId, TenantId};
use isles_kernel::placement::RegionRange;
use isles_kernel::routing::{RoutingChange, RoutingError, RoutingMove, RoutingPolicy, spread_evenly};
use isles_kernel::schema::Schema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const KEY: &str = "routing/current";
/// Tenants without a pin hash to the buckets of this group.
const TENANT_GROUP: &str = "tenants";
const TENANT_BUCKETS: u32 = 64;
/// How long a change of fences waits for the transactions that are inside.
pub(super) const FENCE_TIME: Duration = Duration::from_secs(10);

/// How often a pin is tried that others overtake, each with a pin or a group of theirs.
const PIN_ATTEMPTS: usize = 1_000;

pub(crate) struct Routing {
    current: ArcSwap<RoutingPolicy>,
    catalog: Arc<dyn Catalog>,
    /// Counts what those want to know who wait for something that is being cut over.
    news: watch::Sender<u64>,
    /// It is not read again: a bug, for tests that show that the harness finds it.
    is_frozen: bool,
}

/// A group of tables: its buckets, and where they are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewGroup {
    pub(crate) group: GroupName,
    pub(crate) buckets: u32,
    /// Empty: anywhere.
    pub(crate) regions: Vec<RegionRange>,
}

/// One version of the routing, for whoever wants to know how it came about.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoutingRecord {
    pub version: RoutingVersion,
    /// Milliseconds since 1970.
    pub timestamp: u64,
    /// Of the whole map.
    pub checksum: String,
    pub description: String,
    /// What it changed of the version before.
    pub change: RoutingChange,
}

/// Versions that are kept.
const HISTORY: u64 = 10_000;
const HISTORY_PREFIX: &str = "routing/history/";

pub(crate) fn key() -> Key {
    Key::new(KEY).expect("a constant without control characters")
}

fn routing_error(error: RoutingError) -> SqlError {
    SqlError::new("55000", error.to_string())
}

impl Routing {
    /// Reads the map; makes version 1 over `shards` if there is none.
    pub(crate) async fn open(catalog: Arc<dyn Catalog>, shards: &[ShardId]) -> Result<Routing, SqlError> {
        let stored = read(&*catalog).await?;
        let policy = match stored {
            Some(record) => record.json().map_err(catalog_error)?,
            None => {
                let group = GroupName::new(TENANT_GROUP).expect("a constant that is a valid name");
                let buckets = BucketCount::new(TENANT_BUCKETS).expect("a constant within bounds");
                let policy = RoutingPolicy::new(group, buckets, shards).map_err(routing_error)?;
                let first = Transaction::new().when_as_read(&key(), None).put_json(key(), &policy);
                catalog.commit(first.map_err(catalog_error)?).await.map_err(catalog_error)?;
                policy
            }
        };
        Ok(Routing { current: ArcSwap::from_pointee(policy), catalog, news: watch::Sender::new(0), is_frozen: false })
    }

    pub(crate) fn freeze_if(&mut self, planted: bool) {
        self.is_frozen = planted;
    }

    pub(crate) fn current(&self) -> Arc<RoutingPolicy> {
        self.current.load_full()
    }

    /// Reads the map again: a shard has refused the one that is known.
    pub(crate) async fn refresh(&self) -> Result<Arc<RoutingPolicy>, SqlError> {
        if self.is_frozen {
            return Ok(self.current());
        }
        if let Some(record) = read(&*self.catalog).await? {
            let policy: RoutingPolicy = record.json().map_err(catalog_error)?;
            self.store(Arc::new(policy));
        }
        Ok(self.current())
    }

    /// The map with these groups, each with its number of buckets, and the record that it was made from; None if they
    /// are all there.
    pub(crate) async fn with_groups(
        &self,
        groups: &[NewGroup],
        names: &[ShardId],
        members: &Members,
    ) -> Result<Option<(Arc<RoutingPolicy>, Record)>, SqlError> {
        if new_groups(&self.current(), groups, names, members)?.is_empty() {
            return Ok(None);
        }
        let stored = read(&*self.catalog).await?.ok_or_else(gone)?;
        let policy: RoutingPolicy = stored.json().map_err(catalog_error)?;
        let moves = new_groups(&policy, groups, names, members)?;
        if moves.is_empty() {
            self.store(Arc::new(policy));
            return Ok(None);
        }
        let next = policy.apply(&RoutingChange { moves }).map_err(routing_error)?;
        Ok(Some((Arc::new(next), stored)))
    }

    /// Routes the global tables of a database from before they were routed: they are on its first shard.
    pub(super) async fn place_global(&self, schema: &Schema, members: &Members, now: u64) -> Result<(), SqlError> {
        let groups = schema::groups(schema);
        let first: Vec<ShardId> = members.names().take(1).cloned().collect();
        let Some((next, stored)) = self.with_groups(&groups, &first, members).await? else { return Ok(()) };
        let before: RoutingPolicy = stored.json().map_err(catalog_error)?;
        let change = Transaction::new().when(stored.unchanged());
        let change = recorded(change, &before, &next, "global tables are routed", now)?;
        self.catalog.commit(change).await.map_err(catalog_error)?;
        self.store(next);
        Ok(())
    }

    /// Pins a tenant to the first shard that no tenant has, unless it is pinned. None if there is no such shard.
    pub(crate) async fn pin(&self, tenant: &TenantId, now: u64) -> Result<Option<ShardId>, SqlError> {
        let current = self.current();
        if current.is_pinned(tenant) {
            return Ok(Some(current.shard_of_tenant(tenant).clone()));
        }
        for _ in 0..PIN_ATTEMPTS {
            let stored = read(&*self.catalog).await?.ok_or_else(gone)?;
            let policy: RoutingPolicy = stored.json().map_err(catalog_error)?;
            if policy.is_pinned(tenant) {
                let shard = policy.shard_of_tenant(tenant).clone();
                self.store(Arc::new(policy));
                return Ok(Some(shard));
            }
            let (members, shards) = members::read(&*self.catalog).await?.ok_or_else(members::lost)?;
            let (names, taken) = (members.untouched(), policy.pins().map(|(_, shard)| shard).collect::<BTreeSet<_>>());
            let Some(to) = names.iter().find(|name| !taken.contains(name)).cloned() else { return Ok(None) };
            let from = policy.shard_of_tenant(tenant).clone();
            let pin = RoutingMove::Pin { tenant: tenant.clone(), from, to: to.clone() };
            let next = policy.apply(&RoutingChange { moves: vec![pin] }).map_err(routing_error)?;
            let why = format!("tenant {tenant} was given shard {to}");
            let unchanged = Transaction::new().when(stored.unchanged()).when(shards.unchanged());
            let change = recorded(unchanged, &policy, &next, &why, now)?;
            match self.catalog.commit(change).await {
                Ok(_) => {
                    self.store(Arc::new(next));
                    return Ok(Some(to));
                }
                Err(CatalogError::Conflict { .. }) => {}
                Err(error) => return Err(catalog_error(error)),
            }
        }
        Err(SqlError::new("40001", "the routing keeps changing").with_hint("retry the transaction"))
    }

    /// The map as it is in the catalog, and its record.
    pub(crate) async fn read(&self) -> Result<(Record, RoutingPolicy), SqlError> {
        let record = read(&*self.catalog).await?.ok_or_else(gone)?;
        let policy = record.json().map_err(catalog_error)?;
        Ok((record, policy))
    }

    /// How often something was opened, or the map changed.
    pub(crate) fn news(&self) -> u64 {
        *self.news.borrow()
    }

    /// Resolves when there is news since.
    pub(crate) async fn news_since(&self, seen: u64) {
        // It is only closed with the database.
        let _ = self.news.subscribe().wait_for(|news| *news != seen).await;
    }

    /// Tells those who wait that what was closed may be open.
    pub(crate) fn wake(&self) {
        self.news.send_modify(|news| *news += 1);
    }

    /// The last versions, the newest first.
    pub(crate) async fn history(&self, limit: usize) -> Result<Vec<RoutingRecord>, SqlError> {
        let newest = self.refresh().await?.version().0;
        let mut records = Vec::new();
        for version in (0..=newest).rev().take(limit) {
            if let Some(record) = self.catalog.get(&history_key(version)).await.map_err(catalog_error)?.value {
                records.push(record.json().map_err(catalog_error)?);
            }
        }
        Ok(records)
    }

    /// Follows a map that has been recorded.
    pub(crate) fn store(&self, policy: Arc<RoutingPolicy>) {
        if self.store_quietly(policy) {
            self.wake();
        }
    }

    /// The same without waking those who wait, for who knows that what they wait for is not open yet, and wakes them
    /// then: all of them would ask, be refused, and be in the way of the opening. Whether it is a newer map.
    pub(crate) fn store_quietly(&self, policy: Arc<RoutingPolicy>) -> bool {
        let is_newer = policy.version() > self.current.load().version();
        if is_newer {
            self.current.store(policy);
        }
        is_newer
    }

    /// Opens the fences of what each shard owns and has no fence for. One that is closed or read-only is a move's, and
    /// not ours to open.
    pub(crate) async fn set_fences(&self, shards: &ShardSet) -> Result<(), SqlError> {
        let policy = self.current();
        for name in &shards.names() {
            let shard = shards.get(name).await.map_err(|error| error.for_people())?;
            let known = FenceTable::from_fences(shard.fences().await.map_err(|error| error.for_people())?)
                .map_err(|error| error.for_people())?;
            let missing: Vec<Fence> =
                owned(&policy, name).into_iter().filter(|fence| !known.speaks_of(&fence.scope)).collect();
            if !missing.is_empty() {
                shard.set_fences(missing, FENCE_TIME).await.map_err(|error| error.for_people())?;
            }
        }
        Ok(())
    }
}

fn history_key(version: u64) -> Key {
    Key::new(format!("{HISTORY_PREFIX}{version:020}")).expect("digits")
}

/// Writes the next map, and how it came about.
pub(crate) fn recorded(
    with: Transaction,
    before: &RoutingPolicy,
    next: &RoutingPolicy,
    description: &str,
    now: u64,
) -> Result<Transaction, SqlError> {
    let record = RoutingRecord {
        version: next.version(),
        timestamp: now,
        checksum: format!("{:016x}", next.checksum()),
        description: description.into(),
        change: before.diff(next),
    };
    let with = with.put_json(key(), next).and_then(|with| with.put_json(history_key(next.version().0), &record));
    let with = with.map_err(catalog_error)?;
    Ok(match next.version().0.checked_sub(HISTORY) {
        Some(old) => with.delete(history_key(old)),
        None => with,
    })
}

fn gone() -> SqlError {
    SqlError::new("XX000", "the routing is gone from the catalog")
}

async fn read(catalog: &dyn Catalog) -> Result<Option<Record>, SqlError> {
    Ok(catalog.get(&key()).await.map_err(catalog_error)?.value)
}

fn new_groups(
    policy: &RoutingPolicy,
    groups: &[NewGroup],
    names: &[ShardId],
    members: &Members,
) -> Result<Vec<RoutingMove>, SqlError> {
    let mut moves = Vec::new();
    for NewGroup { group, buckets, regions } in groups {
        match policy.buckets(group) {
            Some(known) if known.get() == *buckets => regions::check_kept(group, regions, policy, members)?,
            Some(known) => {
                let message = format!("group \"{group}\" has {known} buckets, not {buckets}");
                return Err(
                    SqlError::new("42P16", message).with_hint("use another group, or the same number of buckets")
                );
            }
            None => {
                let invalid = || SqlError::new("22023", format!("a group cannot have {buckets} buckets"));
                let count = BucketCount::new(*buckets).ok_or_else(invalid)?;
                let ranges = match regions.is_empty() {
                    true => spread_evenly(count, names).map_err(routing_error)?,
                    false => regions::spread(group, regions, members)?,
                };
                moves.push(RoutingMove::AddGroup { group: group.clone(), ranges });
            }
        }
    }
    Ok(moves)
}

/// The fences of what a shard owns.
pub(crate) fn owned(policy: &RoutingPolicy, shard: &ShardId) -> Vec<Fence> {
    let version = policy.version();
    let open = |scope| Fence { scope, version, mode: FenceMode::Open };
    let mut fences = vec![open(FenceScope::Shared)];
    for (group, ranges) in policy.groups() {
        for range in ranges.iter().filter(|range| range.shard == *shard) {
            let scope = FenceScope::Buckets { group: group.clone(), first: range.first, last: range.last };
            fences.push(open(scope));
        }
    }
    let pinned = policy.pins().filter(|(_, owner)| *owner == shard);
    fences.extend(pinned.map(|(tenant, _)| open(FenceScope::Tenant(Some(tenant.clone())))));
    fences
}

/// All buckets of a group that a shard has, as claims.
pub(crate) fn claimed_of(policy: &RoutingPolicy, group: &GroupName, shard: &ShardId) -> Vec<Claimed> {
    let ranges = policy.owned(group, shard);
    ranges.map(|range| Claimed::Buckets(group.clone(), range.first, range.last)).collect()
}

/// The buckets of a group that a shard has, as bits: bit b of all, from the lowest of the first byte on, is bucket b.
pub(crate) fn bits_of(policy: &RoutingPolicy, group: &GroupName, shard: &ShardId) -> Vec<u8> {
    let count = policy.buckets(group).map_or(0, BucketCount::get);
    let mut bits = vec![0u8; count.div_ceil(8) as usize];
    for bucket in policy.owned(group, shard).flat_map(|range| range.first.0..=range.last.0) {
        bits[bucket as usize / 8] |= 1 << (bucket % 8);
    }
    bits
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use isles_kernel::names::BucketId;

    #[test]
    fn bits_are_the_buckets_that_a_shard_has() {
        let names = ["a", "b", "c"].map(|name| ShardId::new(name).unwrap());
        let group = GroupName::new("g").unwrap();
        let policy = RoutingPolicy::new(group.clone(), BucketCount::new(20).unwrap(), &names).unwrap();
        let all: Vec<Vec<u8>> = names.iter().map(|name| bits_of(&policy, &group, name)).collect();
        for bucket in 0..24 {
            let owner = policy.shard_of_bucket(&group, BucketId(bucket));
            for (name, bits) in names.iter().zip(&all) {
                assert_eq!(bits.len(), 3, "a bit for each bucket");
                let has = bits[bucket as usize / 8] >> (bucket % 8) & 1 == 1;
                assert_eq!(has, owner == Some(name), "{bucket} {name}");
            }
        }
        assert!(bits_of(&policy, &GroupName::new("other").unwrap(), &names[0]).is_empty());
    }
}
