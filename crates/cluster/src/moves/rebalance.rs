//! What each shard weighs, and which moves would even that out.
//!
//! Weighing by rows reads every hash table once, and tells tenants' rows by their index. Nothing is held meanwhile: the
//! figures are those of about one moment, which is enough to choose by.

use crate::database::{Database, Strategy};
use isles_engine::error::ShardError;
use isles_engine::usage::TenantRange;
use isles_kernel::error::SqlError;
use isles_kernel::moves::{Piece, Proposal, Weigh, Weighed, balance};
use isles_kernel::names::{BucketId, GroupName, ShardId, TenantId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::TableKind;
use std::collections::BTreeMap;

/// Tenants that are asked for at once.
const TENANTS: usize = 1_000;

/// What pieces weigh; those that are not here weigh nothing.
#[derive(Default)]
struct Weights {
    buckets: BTreeMap<(GroupName, BucketId), u64>,
    /// Only those that are pinned.
    tenants: BTreeMap<TenantId, u64>,
}

impl Weights {
    fn add_tenant(&mut self, tenant: Option<&TenantId>, weight: u64, policy: &RoutingPolicy) {
        match tenant {
            Some(tenant) if policy.is_pinned(tenant) => *self.tenants.entry(tenant.clone()).or_default() += weight,
            _ => {
                let bucket = tenant.map_or_else(|| policy.bucket_of_null_tenant(), |t| policy.bucket_of_tenant(t));
                self.add_bucket(policy.tenant_group(), bucket, weight);
            }
        }
    }

    fn add_bucket(&mut self, group: &GroupName, bucket: BucketId, weight: u64) {
        *self.buckets.entry((group.clone(), bucket)).or_default() += weight;
    }
}

impl Database {
    /// Moves that would even the shards out. Those that are being drained take no part.
    pub async fn propose_moves(&self, by: Weigh) -> Result<Vec<Proposal>, SqlError> {
        if self.strategy() == Strategy::Adapter {
            let message = "with strategy \"adapter\" shards are not evened out: each tenant has one of its own";
            return Err(SqlError::unsupported(message));
        }
        let policy = self.routing.refresh().await?;
        let weights = match by {
            Weigh::Buckets => None,
            Weigh::Rows => Some(self.weigh_rows(&policy).await.map_err(|error| error.for_people())?),
            Weigh::Load => Some(self.weigh_load(&policy)),
        };
        let (members, schema) = (self.members(), self.schema());
        let shards = members.receiving();
        let mut proposals = Vec::new();
        for (group, _) in policy.groups() {
            let pieces = pieces(group, &policy, weights.as_ref());
            let regions = schema.regions_of(group);
            if regions.is_empty() {
                proposals.extend(balance(group, &pieces, &shards));
            }
            // What is kept in a region is evened out among the shards that are there.
            for part in regions {
                let is_there = |one: &&Weighed| matches!(one.piece, Piece::Bucket(bucket) if part.contains(bucket));
                let pieces: Vec<Weighed> = pieces.iter().filter(is_there).cloned().collect();
                proposals.extend(balance(group, &pieces, &members.receiving_in(&part.region)));
            }
        }
        Ok(proposals)
    }

    async fn weigh_rows(&self, policy: &RoutingPolicy) -> Result<Weights, ShardError> {
        let (mut weights, schema) = (Weights::default(), self.schema());
        for name in self.shard_names() {
            let shard = self.shards.get(&name).await?;
            let mut snapshot = shard.snapshot().await?;
            for table in schema.tables.values() {
                let TableKind::Hash { group, .. } = &table.kind else { continue };
                for (bucket, rows) in snapshot.bucket_rows(&table.name).await? {
                    // Rows that are being moved here or away are counted where they are served.
                    if policy.shard_of_bucket(group, bucket) == Some(&name) {
                        weights.add_bucket(group, bucket, rows);
                    }
                }
            }
            let mut range = Some(TenantRange::All);
            while let Some(next) = range {
                let page = snapshot.usage(&next, TENANTS).await?;
                for usage in &page.tenants {
                    if is_served(usage.tenant.as_ref(), &name, policy) {
                        weights.add_tenant(usage.tenant.as_ref(), usage.rows, policy);
                    }
                }
                range = page.next;
            }
        }
        Ok(weights)
    }

    fn weigh_load(&self, policy: &RoutingPolicy) -> Weights {
        let mut weights = Weights::default();
        for (tenant, work) in self.tenant_work(usize::MAX).shown {
            weights.add_tenant(tenant.as_ref(), work.statements, policy);
        }
        weights
    }
}

fn is_served(tenant: Option<&TenantId>, shard: &ShardId, policy: &RoutingPolicy) -> bool {
    match tenant {
        Some(tenant) => policy.shard_of_tenant(tenant) == shard,
        None => policy.shard_of_bucket(policy.tenant_group(), policy.bucket_of_null_tenant()) == Some(shard),
    }
}

/// The buckets of a group, and the pinned tenants that hash to them. Without weights each bucket counts one.
fn pieces(group: &GroupName, policy: &RoutingPolicy, weights: Option<&Weights>) -> Vec<Weighed> {
    let weight_of = |bucket: BucketId| match weights {
        None => 1,
        Some(weights) => weights.buckets.get(&(group.clone(), bucket)).copied().unwrap_or(0),
    };
    let ranges = policy.ranges(group).unwrap_or_default().iter();
    let buckets = ranges.flat_map(|range| (range.first.0..=range.last.0).map(|n| (BucketId(n), &range.shard)));
    let bucket = |(bucket, shard): (BucketId, &ShardId)| Weighed {
        piece: Piece::Bucket(bucket),
        shard: shard.clone(),
        weight: weight_of(bucket),
    };
    let mut pieces: Vec<Weighed> = buckets.map(bucket).collect();
    if let (Some(weights), true) = (weights, group == policy.tenant_group()) {
        let tenant = |(tenant, shard): (&TenantId, &ShardId)| Weighed {
            piece: Piece::Tenant(tenant.clone()),
            shard: shard.clone(),
            weight: weights.tenants.get(tenant).copied().unwrap_or(0),
        };
        pieces.extend(policy.pins().map(tenant));
    }
    pieces
}
