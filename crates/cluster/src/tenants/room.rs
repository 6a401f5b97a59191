//! How much tenants store.
//!
//! Measuring reads all rows of a tenant, so it is not done for each write. What was measured last, and what was written
//! since, says whether a tenant is near its quota; only then, and if anything has changed, it is measured again before a
//! write is refused. Beside that a task renews the figures of tenants that have a quota and have written.

use super::entry::{Entry, Measured, Stored};
use crate::database::Database;
use crate::execute::transaction::{noted, open_shard};
use crate::session::settings::Tenant;
use isles_engine::usage::{TenantRange, TenantUsage};
use isles_kernel::error::SqlError;
use isles_kernel::names::{ShardId, TenantId};
use isles_kernel::quota::Quota;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often figures are renewed.
const RENEW_INTERVAL: Duration = Duration::from_secs(30);

/// A tenant at its quota that deletes and writes by turns makes Isles measure it again and again. Its writes wait for
/// that, so that it takes about a tenth of the time, and no longer than this.
const MEASURE_SHARE: u32 = 10;
const MEASURE_WAIT_MAX: Duration = Duration::from_secs(1);

impl Database {
    /// Where a tenant's rows are.
    pub(crate) fn shard_of(&self, tenant: Option<&TenantId>) -> Result<ShardId, SqlError> {
        let tenant = tenant.map_or(Tenant::None, |name| Tenant::Name(name.clone()));
        Ok(crate::execute::inputs::tenant_place(&tenant, &self.routing.current())?.0)
    }

    /// What a tenant has stored, read from its shard.
    pub(crate) async fn usage_of(self: &Arc<Self>, tenant: Option<&TenantId>) -> Result<TenantUsage, SqlError> {
        let name = self.shard_of(tenant)?;
        let shard = open_shard(self, &name).await?;
        let page = shard.usage(&TenantRange::Only(tenant.cloned()), 1).await;
        let page = page.map_err(|error| noted(self, &name, error))?;
        let nothing = || TenantUsage { tenant: tenant.cloned(), rows: 0, bytes: 0 };
        Ok(page.tenants.into_iter().next().unwrap_or_else(nothing))
    }

    /// Refuses a write of a tenant that stores as much as it may.
    pub(crate) async fn check_room(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), SqlError> {
        let Some(max) = entry.quotas().max_bytes else { return Ok(()) };
        let full = |stored: Stored| stored.bytes().is_none_or(|bytes| bytes >= max);
        if !full(*entry.stored()) {
            return Ok(());
        }
        let _alone = entry.measuring.lock().await;
        let stored = *entry.stored();
        // Somebody else may have measured meanwhile.
        if full(stored) && stored.is_stale() {
            self.env.sleep(self.pause_before(stored)).await;
            self.measure(entry).await?;
        }
        if full(*entry.stored()) { Err(entry.beyond(Quota::Bytes)) } else { Ok(()) }
    }

    fn pause_before(&self, stored: Stored) -> Duration {
        let next = stored.measured.map_or(Duration::ZERO, |measured| measured.at + measured.took * MEASURE_SHARE);
        next.saturating_sub(self.env.elapsed()).min(MEASURE_WAIT_MAX)
    }

    async fn measure(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<(), SqlError> {
        let began = self.env.elapsed();
        let before = *entry.stored();
        let usage = self.usage_of(entry.name.as_ref()).await?;
        let at = self.env.elapsed();
        let mut stored = entry.stored();
        stored.measured = Some(Measured { rows: usage.rows, bytes: usage.bytes, at, took: at - began });
        // What was written meanwhile may be in the figure or not; it counts.
        stored.written = stored.written.saturating_sub(before.written);
        stored.seen = before.changes;
        Ok(())
    }

    /// Starts the one who renews figures, once there is a tenant with a quota of bytes.
    pub(crate) fn renew_figures(self: &Arc<Self>) {
        if !self.tenants.any_bounded() || !self.tenants.begins_renewing() {
            return;
        }
        let (database, env): (Weak<Database>, _) = (Arc::downgrade(self), self.env.clone());
        self.env.spawn(Box::pin(async move {
            loop {
                env.sleep(RENEW_INTERVAL).await;
                let Some(database) = database.upgrade() else { return };
                if database.shards.is_closed() {
                    return;
                }
                for entry in database.tenants.all() {
                    if entry.quotas().max_bytes.is_some() && entry.stored().is_stale() {
                        let _alone = entry.measuring.lock().await;
                        // What cannot be measured now is measured later, or when a write needs it.
                        let _ = database.measure(&entry).await;
                    }
                }
            }
        }));
    }
}
