//! What has expired is removed, some at a time.
//!
//! ```text
//! every table ─► some keys of what expired first ─► a request for each instance, of some dozen rows
//! ```
//!
//! A request is short, so nobody who writes to the same shard waits long. Expiry itself needs no sweep: whoever reads a
//! record looks at its time. Two who sweep at once remove the same rows, and are harmless. What fails is told and counted,
//! and ends nothing else.

use super::ask::{Rows, text, texts};
use super::{Address, MAX_TTL, Result, Stores};
use futures::future::BoxFuture;
use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use isles_kernel::value::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Between two sweeps that found nothing more.
const INTERVAL: Duration = Duration::from_secs(5);
/// Keys that are read at once, over all shards.
const BATCH: usize = 4_096;
/// Rows of a request. A row is some tens of microseconds, so a request is a few milliseconds.
const ROWS: usize = 32;
/// Requests at once, over all shards.
const REQUESTS: usize = 4;
/// A record is kept this long after its end, so that who comes a little late is told that it has expired.
const KEPT: Duration = Duration::from_secs(60);
/// After how many sweeps what never expires is carried into the current generation: every ten minutes.
const CARRIED_EVERY: u64 = 120;

/// What a sweep has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    pub removed: u64,
    pub requests: u64,
    /// Tables and requests that failed; what they are about is removed by a later sweep.
    pub failed: u64,
    /// What was found expired and is still there.
    pub left: u64,
    /// There may be more.
    pub more: bool,
}

impl Swept {
    fn add(&mut self, other: Swept) {
        self.removed += other.removed;
        self.requests += other.requests;
        self.failed += other.failed;
        self.left += other.left;
        self.more |= other.more;
    }
}

impl Stores {
    /// Sweeps now and then, for as long as anybody has the stores.
    pub(super) fn start_sweeping(&self) {
        let (shared, env) = (Arc::downgrade(&self.shared), self.database().env().clone());
        self.env().spawn(Box::pin(async move {
            let mut rounds = 0_u64;
            loop {
                env.sleep(INTERVAL).await;
                let Some(shared) = shared.upgrade() else { return };
                let stores = Stores { shared, under: None };
                // What cannot be removed now is removed by a later sweep.
                while let Ok(Swept { more: true, failed: 0, .. }) = stores.sweep_before(KEPT).await {}
                rounds += 1;
                if rounds.is_multiple_of(CARRIED_EVERY) {
                    drop(stores.carry_lasting().await);
                }
                if stores.database().is_closing() {
                    return;
                }
            }
        }));
    }
}

impl Stores {
    /// Removes some of what has expired this long ago.
    pub async fn sweep_before(&self, kept: Duration) -> Result<Swept> {
        let before = self.now() - i64::try_from(kept.as_micros()).unwrap_or(i64::MAX / 4);
        let mut all = Swept::default();
        for table in self.tables() {
            match self.sweep_table(&table, before).await {
                Ok(swept) => all.add(swept),
                // A shard that cannot be reached keeps what it has, and no other.
                Err(error) => {
                    tracing::warn!(table, %error, "records that have expired cannot be removed");
                    all.failed += 1;
                }
            }
        }
        let counts = &self.shared.meter.sweeps;
        counts.removed.fetch_add(all.removed, Ordering::Relaxed);
        counts.failed.fetch_add(all.failed, Ordering::Relaxed);
        counts.backlog.store(all.left, Ordering::Relaxed);
        Ok(all)
    }

    /// Brings records that never expire into the current generation of their tenant: where nobody changes them, they
    /// would hold a previous one for ever, and be lost with it. Returns how many it has brought.
    pub async fn carry_lasting(&self) -> Result<u64> {
        let lasting = self.now() + i64::try_from(2 * MAX_TTL.as_micros()).unwrap_or(i64::MAX / 4);
        let placements = self.database().placements().in_force();
        let previous = placements.iter().flat_map(|(_, placement)| placement.previous());
        let generations: BTreeSet<u16> = previous.map(|map| map.generation().get()).collect();
        let mut carried = 0;
        for table in self.tables() {
            for generation in &generations {
                let sql = format!(
                    "SELECT tenant, kind, key FROM {table} WHERE expires_at > $1 AND generation = $2 LIMIT {BATCH}"
                );
                for row in texts(self.ask(&sql, vec![Value::Int(lasting), Value::Int((*generation).into())]).await?) {
                    carried += u64::from(self.carry_one(&row).await?);
                }
            }
        }
        Ok(carried)
    }

    async fn carry_one(&self, row: &[String]) -> Result<bool> {
        let [tenant, kind, key] = row else { return Ok(false) };
        let (Ok(tenant), Some(key)) = (TenantId::new(tenant.clone()), key.strip_prefix('=')) else { return Ok(false) };
        let carried = Box::pin(self.desk().bring_forward(&tenant, kind, &Address::key(key))).await;
        match carried {
            // It stays where it is, and is right there.
            Err(error) if error.sqlstate == "0A000" => Ok(false),
            carried => carried,
        }
    }

    async fn sweep_table(&self, table: &str, before: i64) -> Result<Swept> {
        let sql =
            format!("SELECT instance, kind, key FROM {table} WHERE expires_at <= $1 ORDER BY expires_at LIMIT {BATCH}");
        let found = self.ask(&sql, vec![Value::Int(before)]).await?;
        self.remove_found(table, before, found).await
    }

    /// Removes those of some records that have expired before.
    async fn remove_found(&self, table: &str, before: i64, found: Rows) -> Result<Swept> {
        let (more, total) = (found.len() == BATCH, found.len() as u64);
        let requests = by_instance(found);
        let count = requests.len() as u64;
        let (mut removed, mut failed) = (0, 0);
        for some in requests.chunks(REQUESTS) {
            let removing: Vec<BoxFuture<'_, Result<u64>>> = some
                .iter()
                .map(|request| -> BoxFuture<'_, _> { Box::pin(self.remove(table, before, request)) })
                .collect();
            for rows in futures::future::join_all(removing).await {
                match rows {
                    Ok(rows) => removed += rows,
                    Err(error) => {
                        tracing::warn!(table, %error, "some records that have expired cannot be removed");
                        failed += 1;
                    }
                }
            }
        }
        // Another who sweeps may have removed some.
        let left = if failed > 0 || more { total.saturating_sub(removed).max(u64::from(more)) } else { 0 };
        Ok(Swept { removed, requests: count, failed, left, more })
    }

    /// Some records of a tenant, expired or not, and their table. Counters of quotas are among them.
    pub(super) async fn some_of(&self, tenant: &TenantId, limit: usize) -> Result<Option<(String, Rows)>> {
        self.learn_tables().await?;
        for table in self.tables() {
            let sql = format!("SELECT instance, kind, key FROM {table} WHERE tenant = $1 LIMIT {limit}");
            let found = self.ask(&sql, vec![text(tenant.as_str())]).await?;
            if !found.is_empty() {
                return Ok(Some((table, found)));
            }
        }
        Ok(None)
    }

    /// Removes some records of a tenant that is being dropped. Returns how many there were; 0 if none is left.
    pub(super) async fn forget_some(&self, tenant: &TenantId) -> Result<u64> {
        let Some((table, found)) = self.some_of(tenant, BATCH).await? else { return Ok(0) };
        let count = found.len() as u64;
        match self.remove_found(&table, i64::MAX, found).await?.failed {
            0 => Ok(count),
            _ => Err(SqlError::new("58000", "some records of the tenant cannot be removed").with_hint("retry")),
        }
    }

    async fn remove(&self, table: &str, before: i64, ((instance, kind), keys): &Request) -> Result<u64> {
        // One text for any number of keys: the last is repeated.
        let places: Vec<String> = (4..4 + ROWS).map(|number| format!("${number}")).collect();
        let sql = format!(
            "DELETE FROM {table} WHERE instance = $1 AND kind = $2 AND expires_at <= $3 AND key IN ({}) RETURNING key",
            places.join(", ")
        );
        let mut params = vec![text(instance), text(kind), Value::Int(before)];
        let last = keys.last().cloned().unwrap_or_default();
        params.extend((0..ROWS).map(|at| text(keys.get(at).unwrap_or(&last))));
        Ok(self.ask(&sql, params).await?.len() as u64)
    }
}

type Request = ((String, String), Vec<String>);

fn by_instance(found: Rows) -> Vec<Request> {
    let mut all: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for mut row in texts(found) {
        let (Some(key), Some(kind), Some(instance)) = (row.pop(), row.pop(), row.pop()) else { continue };
        all.entry((instance, kind)).or_default().push(key);
    }
    let split = |(place, keys): ((String, String), Vec<String>)| {
        keys.chunks(ROWS).map(|keys| (place.clone(), keys.to_vec())).collect::<Vec<Request>>()
    };
    all.into_iter().flat_map(split).collect()
}
