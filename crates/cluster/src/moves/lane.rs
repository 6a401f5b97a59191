//! The two shards of a plan, what moves between them, and in which name.

use crate::database::Database;
use crate::database::shards::OpenShard;
use isles_engine::error::ShardError;
use isles_engine::fence::{Claimed, Fence, FenceMode, FenceScope};
use isles_engine::shard::{Batch, BatchKind, DriverToken, Incoming, RowVersion, Scope};
use isles_kernel::error::SqlError;
use isles_kernel::moves::{Plan, Units};
use isles_kernel::names::{BucketId, GroupName, RoutingVersion, Seq, ShardId, StreamId, TenantId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::Unit;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Why a driver stops what it is doing.
#[derive(Debug)]
pub(super) enum Halt {
    /// The plan has changed: read it again.
    Changed,
    /// Somebody else drives it.
    Superseded,
    /// It cannot be done now; later perhaps.
    Later(SqlError),
    /// It can never be done.
    Never(SqlError),
    /// The database is being closed.
    Closing,
}

impl From<ShardError> for Halt {
    fn from(error: ShardError) -> Halt {
        let people = error.for_people();
        match error {
            ShardError::Superseded => Halt::Superseded,
            ShardError::Trimmed { .. } => Halt::Never(
                people.with_hint("the change log reached its limit before the move had read it; plan the move again"),
            ),
            _ if error.is_final() => Halt::Never(people),
            _ => Halt::Later(people),
        }
    }
}

impl From<SqlError> for Halt {
    fn from(error: SqlError) -> Halt {
        Halt::Later(error)
    }
}

/// A way for rows from one shard to another.
#[derive(Clone)]
pub(super) struct Lane {
    pub(super) database: Arc<Database>,
    pub(super) giver: ShardId,
    pub(super) taker: ShardId,
    pub(super) units: Units,
    pub(super) stream: StreamId,
    pub(super) driver: DriverToken,
    /// The routing version under which the giver owns what moves, or an earlier one.
    pub(super) epoch: RoutingVersion,
}

/// The name of a plan's streams and consumers.
pub(super) fn stream_of(plan: &Plan) -> StreamId {
    StreamId::new(format!("move-{}", plan.id)).expect("a plan's name is short and plain")
}

impl Lane {
    pub(super) fn new(database: &Arc<Database>, plan: &Plan, driver: DriverToken) -> Lane {
        let epoch = match plan.flows_forward() {
            true => plan.routing_version_at_start,
            false => plan.routing_version_cutover.unwrap_or(plan.routing_version_at_start),
        };
        Lane {
            database: database.clone(),
            giver: plan.giver().clone(),
            taker: plan.taker().clone(),
            units: plan.units.clone(),
            stream: stream_of(plan),
            driver,
            epoch,
        }
    }

    pub(super) async fn giver(&self) -> Result<OpenShard, Halt> {
        Ok(self.database.shards.get(&self.giver).await?)
    }

    pub(super) async fn taker(&self) -> Result<OpenShard, Halt> {
        Ok(self.database.shards.get(&self.taker).await?)
    }

    pub(super) fn policy(&self) -> Arc<RoutingPolicy> {
        self.database.routing.current()
    }

    pub(super) fn version(&self, seq: Seq) -> RowVersion {
        RowVersion { epoch: self.epoch, seq }
    }

    /// Rows of the giver's log, or none, with the position they bring the taker to.
    pub(super) fn changes(&self, rows: Vec<Incoming>, position: Option<Seq>) -> Batch {
        Batch { driver: Some(self.driver), position, ..Batch::new(&self.stream, rows) }
    }

    /// Rows that the taker must have as they are here, whatever is known of them.
    pub(super) fn repair(&self, rows: Vec<Incoming>) -> Batch {
        Batch { kind: BatchKind::Repair, ..self.changes(rows, None) }
    }

    /// The name of the stream that copies the table of this number.
    pub(super) fn copy_stream(&self, table: usize) -> StreamId {
        StreamId::new(format!("{}-{table}", self.stream)).expect("a plan's name is short and plain")
    }

    /// What moves, as fences of one of its shards. Tenants that have a fence of their own there, and go by their bucket,
    /// go with it.
    pub(super) async fn fences(
        &self,
        shard: &OpenShard,
        version: RoutingVersion,
        mode: FenceMode,
    ) -> Result<Vec<Fence>, Halt> {
        let fence = |scope| Fence { scope, version, mode };
        match &self.units {
            Units::Tenants { tenants } => {
                Ok(tenants.iter().map(|tenant| fence(FenceScope::Tenant(Some(tenant.clone())))).collect())
            }
            Units::Buckets { buckets } => {
                let range = |span: &isles_kernel::moves::Span| FenceScope::Buckets {
                    group: buckets.group.clone(),
                    first: span.first,
                    last: span.last,
                };
                let mut fences: Vec<Fence> = buckets.ranges.iter().map(|span| fence(range(span))).collect();
                let policy = self.policy();
                for known in shard.fences().await? {
                    let FenceScope::Tenant(tenant) = known.scope else { continue };
                    if self.units.contains(&Unit::Tenant(tenant.clone()), &policy) {
                        fences.push(fence(FenceScope::Tenant(tenant)));
                    }
                }
                Ok(fences)
            }
        }
    }

    /// The units of a scope, as claims.
    pub(super) fn claims(&self, scope: &Scope) -> Vec<Claimed> {
        let policy = self.policy();
        let tenant = |tenant: &Option<TenantId>| {
            let bucket = tenant.as_ref().map_or_else(|| policy.bucket_of_null_tenant(), |t| policy.bucket_of_tenant(t));
            Claimed::Tenant(tenant.clone(), policy.tenant_group().clone(), bucket)
        };
        match scope {
            Scope::All => Vec::new(),
            Scope::Tenants(tenants) => tenants.iter().map(tenant).collect(),
            Scope::Buckets(group, ranges) => {
                let claim = |range: &RangeInclusive<u32>| {
                    Claimed::OwnBuckets(group.clone(), BucketId(*range.start()), BucketId(*range.end()))
                };
                ranges.iter().map(claim).collect()
            }
        }
    }

    /// The group of which both shards have rows that are not their own, while this goes on.
    pub(super) fn crowded(&self) -> GroupName {
        self.units.crowded(&self.policy()).clone()
    }

    /// The fence that says whether the shard's tables hold rows that are not its own.
    pub(super) fn strangers(&self, version: RoutingVersion, mode: FenceMode) -> Fence {
        let group = self.crowded();
        Fence { scope: FenceScope::Whole { group }, version, mode }
    }
}
