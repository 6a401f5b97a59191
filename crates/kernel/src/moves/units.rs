//! What moves: some tenants, or some buckets of a group.
//!
//! A tenant without a pin belongs to a bucket of the tenant group, and goes where the bucket goes. So a move of
//! tenants and a move of buckets can be about the same rows; [`Units::overlaps`] knows.

use crate::names::{BucketId, GroupName, ShardId, TenantId};
use crate::routing::{RoutingChange, RoutingMove, RoutingPolicy};
use crate::schema::{GLOBAL_GROUP, Table, TableKind, Unit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Tenants of one plan. They are held with the plan, in one record of the catalog.
pub const MAX_TENANTS: usize = 1_000;

/// Ranges of buckets of one plan.
pub const MAX_SPANS: usize = 1_000;

/// Buckets `first..=last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Span {
    pub first: BucketId,
    pub last: BucketId,
}

impl Span {
    pub fn one(bucket: BucketId) -> Span {
        Span { first: bucket, last: bucket }
    }

    pub fn contains(&self, bucket: BucketId) -> bool {
        self.first <= bucket && bucket <= self.last
    }

    pub fn buckets(&self) -> u32 {
        self.last.0 - self.first.0 + 1
    }
}

/// Buckets of one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buckets {
    pub group: GroupName,
    /// In order, apart from each other.
    pub ranges: Vec<Span>,
}

/// Which tenants have pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pins {
    /// Those that are not on the shard of their bucket.
    WhereNeeded,
    /// All: a pin says that the shard is the tenant's own.
    Always,
}

/// What one plan moves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Units {
    Tenants {
        /// In order, each once.
        #[serde(rename = "tenantIds")]
        tenants: Vec<TenantId>,
    },
    Buckets {
        buckets: Buckets,
    },
}

impl Units {
    /// Some tenants, whatever their order and however often each is named.
    pub fn tenants(tenants: impl IntoIterator<Item = TenantId>) -> Units {
        let tenants: BTreeSet<TenantId> = tenants.into_iter().collect();
        Units::Tenants { tenants: tenants.into_iter().collect() }
    }

    /// Some buckets, joined where they touch.
    pub fn buckets(group: GroupName, spans: impl IntoIterator<Item = Span>) -> Units {
        let mut sorted: Vec<Span> = spans.into_iter().filter(|span| span.first <= span.last).collect();
        sorted.sort();
        let mut ranges: Vec<Span> = Vec::with_capacity(sorted.len());
        for span in sorted {
            match ranges.last_mut() {
                Some(before) if u64::from(span.first.0) <= u64::from(before.last.0) + 1 => {
                    before.last = before.last.max(span.last);
                }
                _ => ranges.push(span),
            }
        }
        Units::Buckets { buckets: Buckets { group, ranges } }
    }

    pub fn is_empty(&self) -> bool {
        match self {
            Units::Tenants { tenants } => tenants.is_empty(),
            Units::Buckets { buckets } => buckets.ranges.is_empty(),
        }
    }

    /// The group, if buckets move.
    pub fn group(&self) -> Option<&GroupName> {
        match self {
            Units::Tenants { .. } => None,
            Units::Buckets { buckets } => Some(&buckets.group),
        }
    }

    /// The group of which a shard has rows that are not its own while this moves: whoever takes all of it must leave them
    /// out.
    pub fn crowded<'a>(&'a self, policy: &'a RoutingPolicy) -> &'a GroupName {
        self.group().unwrap_or_else(|| policy.tenant_group())
    }

    /// The shards that have any of it.
    pub fn homes<'a>(&self, policy: &'a RoutingPolicy) -> BTreeSet<&'a ShardId> {
        match self {
            Units::Tenants { tenants } => tenants.iter().map(|tenant| policy.shard_of_tenant(tenant)).collect(),
            Units::Buckets { buckets } => {
                let ranges = policy.ranges(&buckets.group).unwrap_or_default().iter();
                let touched = |span: &Span, first, last| span.first <= last && first <= span.last;
                let moving = ranges.filter(|r| buckets.ranges.iter().any(|span| touched(span, r.first, r.last)));
                moving.map(|range| &range.shard).collect()
            }
        }
    }

    /// Whether rows of a unit move.
    pub fn contains(&self, unit: &Unit, policy: &RoutingPolicy) -> bool {
        match (self, unit) {
            (Units::Tenants { tenants }, Unit::Tenant(Some(tenant))) => tenants.binary_search(tenant).is_ok(),
            (Units::Buckets { buckets }, Unit::Bucket(group, bucket)) => buckets.contains(group, *bucket),
            (Units::Buckets { buckets }, Unit::Tenant(tenant)) => buckets.has_tenant(tenant.as_ref(), policy),
            _ => false,
        }
    }

    /// Whether a table can have rows that move.
    pub fn concerns(&self, table: &Table, policy: &RoutingPolicy) -> bool {
        match (self, &table.kind) {
            (Units::Tenants { .. }, TableKind::Tenant) => true,
            (Units::Buckets { buckets }, TableKind::Tenant) => buckets.group == *policy.tenant_group(),
            (Units::Buckets { buckets }, TableKind::Hash { group, .. }) => buckets.group == *group,
            (Units::Buckets { buckets }, TableKind::Global) => buckets.group.as_str() == GLOBAL_GROUP,
            _ => false,
        }
    }

    /// Whether there is something that both move.
    pub fn overlaps(&self, other: &Units, policy: &RoutingPolicy) -> bool {
        match (self, other) {
            (Units::Tenants { tenants }, Units::Tenants { .. }) => {
                tenants.iter().any(|tenant| other.contains(&Unit::Tenant(Some(tenant.clone())), policy))
            }
            (Units::Buckets { buckets: one }, Units::Buckets { buckets: two }) => {
                let touch = |a: &Span| two.ranges.iter().any(|b| a.first <= b.last && b.first <= a.last);
                one.group == two.group && one.ranges.iter().any(touch)
            }
            // A tenant that is pinned now may go by its bucket when the other move has ended.
            (Units::Tenants { tenants }, Units::Buckets { buckets })
            | (Units::Buckets { buckets }, Units::Tenants { tenants }) => {
                let of = |tenant: &TenantId| buckets.contains(policy.tenant_group(), policy.bucket_of_tenant(tenant));
                tenants.iter().any(of)
            }
        }
    }

    /// What of it is not on `source`, as people name it.
    pub fn elsewhere(&self, source: &ShardId, policy: &RoutingPolicy) -> Vec<String> {
        match self {
            Units::Tenants { tenants } => {
                let away = tenants.iter().filter(|tenant| policy.shard_of_tenant(tenant) != source);
                away.map(ToString::to_string).collect()
            }
            Units::Buckets { buckets } => {
                let each = buckets.ranges.iter().flat_map(|span| span.first.0..=span.last.0).map(BucketId);
                let away = each.filter(|bucket| policy.shard_of_bucket(&buckets.group, *bucket) != Some(source));
                away.map(|bucket| format!("{}/{bucket}", buckets.group)).collect()
            }
        }
    }

    /// What becomes of the routing when all of it goes from one shard to another.
    pub fn rerouted(&self, from: &ShardId, to: &ShardId, policy: &RoutingPolicy, pins: Pins) -> RoutingChange {
        let moves = match self {
            Units::Tenants { tenants } => {
                tenants.iter().map(|tenant| rerouted_tenant(tenant.clone(), from, to, policy, pins)).collect()
            }
            Units::Buckets { buckets } => {
                let one = |span: &Span| RoutingMove::Buckets {
                    group: buckets.group.clone(),
                    first: span.first,
                    last: span.last,
                    from: from.clone(),
                    to: to.clone(),
                };
                buckets.ranges.iter().map(one).collect()
            }
        };
        RoutingChange { moves }
    }
}

fn rerouted_tenant(tenant: TenantId, from: &ShardId, to: &ShardId, policy: &RoutingPolicy, pins: Pins) -> RoutingMove {
    let (from, to) = (from.clone(), to.clone());
    let home = policy.shard_of_bucket(policy.tenant_group(), policy.bucket_of_tenant(&tenant));
    match pins == Pins::WhereNeeded && policy.is_pinned(&tenant) && home == Some(&to) {
        true => RoutingMove::Unpin { tenant, from, to },
        false => RoutingMove::Pin { tenant, from, to },
    }
}

impl Buckets {
    pub fn contains(&self, group: &GroupName, bucket: BucketId) -> bool {
        self.group == *group && self.ranges.iter().any(|span| span.contains(bucket))
    }

    pub fn count(&self) -> u64 {
        self.ranges.iter().map(|span| u64::from(span.buckets())).sum()
    }

    /// Whether a tenant goes with these buckets; the null tenant is never pinned.
    fn has_tenant(&self, tenant: Option<&TenantId>, policy: &RoutingPolicy) -> bool {
        let bucket = tenant.map_or_else(|| policy.bucket_of_null_tenant(), |tenant| policy.bucket_of_tenant(tenant));
        !tenant.is_some_and(|tenant| policy.is_pinned(tenant)) && self.contains(policy.tenant_group(), bucket)
    }
}

impl std::fmt::Display for Units {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Units::Tenants { tenants } => {
                f.write_str(&tenants.iter().map(TenantId::as_str).collect::<Vec<_>>().join(", "))
            }
            Units::Buckets { buckets } => {
                let span = |span: &Span| match span.first == span.last {
                    true => span.first.to_string(),
                    false => format!("{}-{}", span.first, span.last),
                };
                let ranges: Vec<String> = buckets.ranges.iter().map(span).collect();
                write!(f, "{}/{}", buckets.group, ranges.join(","))
            }
        }
    }
}
