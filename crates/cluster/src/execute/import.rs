//! Rows that an operator puts into one shard.
//!
//!     rows ─► unit of each: its tenant, or the bucket of its key ─► all owned by the shard? ─► import, with a claim
//!
//! The shard that the operator names must own what he writes, or a copy that nobody serves would be written, and be
//! lost or come back. The routing is asked first, for a clear answer, and the shard's fences once more, in the import's
//! own transaction (I-7).

use super::key;
use super::run::column_type;
use super::transaction::{noted, open_shard};
use crate::database::Database;
use isles_engine::fence::{Claim, Claimed};
use isles_engine::shard::{Engine, ImportMode, Row, StoredRow};
use isles_kernel::error::SqlError;
use isles_kernel::names::{ShardId, TenantId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::{Table, TableKind, Unit};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A row as an operator gives it.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenRow {
    /// Whose it is, in a tenant table; elsewhere its key says where it belongs.
    pub tenant: Option<TenantId>,
    pub values: Row,
}

impl Database {
    /// Writes rows into a table of one shard, all or none.
    pub async fn import_rows(
        self: &Arc<Self>,
        shard: &ShardId,
        table: &str,
        rows: Vec<GivenRow>,
        mode: ImportMode,
    ) -> Result<u64, SqlError> {
        let guard = self.hold_schema().await?;
        let table = guard.schema.table(table).map_err(|error| SqlError::new("42P01", error.to_string()))?;
        let policy = self.routing.refresh().await?;
        let rows = rows.into_iter().map(|row| placed(table, row, &policy)).collect::<Result<Vec<_>, _>>()?;
        let mut units: BTreeMap<Unit, Claimed> = BTreeMap::new();
        for (row, owner, claimed) in &rows {
            if owner != shard {
                let message = format!("{} is on shard {owner}, not on {shard}", row.unit);
                return Err(SqlError::new("55000", message).with_hint("SHOW ROUTES tells where it is"));
            }
            units.entry(row.unit.clone()).or_insert_with(|| claimed.clone());
        }
        let tenants = units.keys().filter_map(|unit| match unit {
            Unit::Tenant(tenant) => Some(self.tenants.entry(tenant.as_ref())),
            _ => None,
        });
        let _passes = tenants.map(|entry| entry.enter()).collect::<Result<Vec<_>, _>>()?;
        let _active = self.enter()?;
        let _at_writer = match self.shards.engine(shard) {
            Some(Engine::Sqlite) => Some(self.writers.at_shard(shard)?),
            _ => None,
        };
        let claim = Claim::new(policy.version(), units.into_values().collect());
        let stored = rows.into_iter().map(|(row, _, _)| row).collect();
        let imported = open_shard(self, shard).await?.import_claiming(claim, &table.name, stored, mode).await;
        imported.map_err(|error| noted(self, shard, error))
    }
}

/// A row with its unit, who owns that, and what is claimed for it.
fn placed(table: &Table, row: GivenRow, policy: &RoutingPolicy) -> Result<(StoredRow, ShardId, Claimed), SqlError> {
    if row.values.len() != table.columns.len() {
        let (given, needed) = (row.values.len(), table.columns.len());
        return Err(SqlError::new("22023", format!("a row has {given} values, and the table has {needed} columns")));
    }
    let (unit, owner, claimed) = match &table.kind {
        TableKind::Tenant => of_tenant(row.tenant, policy),
        TableKind::Hash { group, shard_by, .. } => {
            let position = |name: &String| table.columns.iter().position(|column| column.name == *name);
            let key = shard_by.iter().filter_map(position).map(|at| (row.values[at].clone(), column_type(table, at)));
            let buckets = policy.buckets(group).ok_or_else(|| SqlError::new("XX000", "the table's group is gone"))?;
            let bucket = key::bucket(&key.collect::<Vec<_>>(), buckets)?;
            let bucket = bucket.ok_or_else(|| SqlError::new("23502", "a shard key may not be null"))?;
            let owner = policy.shard_of_bucket(group, bucket).cloned();
            let owner = owner.ok_or_else(|| SqlError::new("XX000", "the table's group is gone"))?;
            (Unit::Bucket(group.clone(), bucket), owner, Claimed::Bucket(group.clone(), bucket))
        }
        TableKind::Reference | TableKind::Global => {
            let message = format!("table \"{}\" is not divided among shards", table.name);
            return Err(SqlError::new("22023", message).with_hint("write to it by SQL"));
        }
    };
    Ok((StoredRow { unit, values: row.values }, owner, claimed))
}

fn of_tenant(tenant: Option<TenantId>, policy: &RoutingPolicy) -> (Unit, ShardId, Claimed) {
    let group = policy.tenant_group();
    let bucket = tenant.as_ref().map_or_else(|| policy.bucket_of_null_tenant(), |name| policy.bucket_of_tenant(name));
    let owner = match &tenant {
        Some(name) => policy.shard_of_tenant(name),
        None => policy.shard_of_bucket(group, bucket).expect("a group's ranges cover each of its buckets"),
    };
    let claimed = Claimed::Tenant(tenant.clone(), group.clone(), bucket);
    (Unit::Tenant(tenant), owner.clone(), claimed)
}
