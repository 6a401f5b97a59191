//! What has expired is removed, some at a time.
//!
//! ```text
//! every table ─► some keys of what expired first ─► a request for each instance, of some dozen rows
//! ```
//!
//! A request is short, so nobody who writes to the same shard waits long. Expiry itself needs no sweep: whoever reads a
//! record looks at its time. Two who sweep at once remove the same rows, and are harmless.

use super::ask::{Rows, text, texts};
use super::{Result, Stores};
use futures::future::BoxFuture;
use isles_kernel::names::TenantId;
use isles_kernel::value::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
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

/// What a sweep has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    pub removed: u64,
    pub requests: u64,
    /// There may be more.
    pub more: bool,
}

impl Stores {
    /// Sweeps now and then, for as long as anybody has the stores.
    pub(super) fn start_sweeping(&self) {
        let (shared, env) = (Arc::downgrade(&self.shared), self.database().env().clone());
        self.env().spawn(Box::pin(async move {
            loop {
                env.sleep(INTERVAL).await;
                let Some(shared) = shared.upgrade() else { return };
                let stores = Stores { shared, under: None };
                // What cannot be removed now is removed by a later sweep.
                while let Ok(Swept { more: true, .. }) = stores.sweep_before(KEPT).await {}
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
            let swept = self.sweep_table(&table, before).await?;
            all.removed += swept.removed;
            all.requests += swept.requests;
            all.more |= swept.more;
        }
        Ok(all)
    }

    async fn sweep_table(&self, table: &str, before: i64) -> Result<Swept> {
        let sql =
            format!("SELECT instance, kind, key FROM {table} WHERE expires_at <= $1 ORDER BY expires_at LIMIT {BATCH}");
        let found = self.ask(&sql, vec![Value::Int(before)]).await?;
        self.remove_found(table, before, found).await
    }

    /// Removes those of some records that have expired before.
    async fn remove_found(&self, table: &str, before: i64, found: Rows) -> Result<Swept> {
        let more = found.len() == BATCH;
        let requests = by_instance(found);
        let count = requests.len() as u64;
        let mut removed = 0;
        for some in requests.chunks(REQUESTS) {
            let removing: Vec<BoxFuture<'_, Result<u64>>> = some
                .iter()
                .map(|request| -> BoxFuture<'_, _> { Box::pin(self.remove(table, before, request)) })
                .collect();
            for rows in futures::future::join_all(removing).await {
                removed += rows?;
            }
        }
        Ok(Swept { removed, requests: count, more })
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
        self.remove_found(&table, i64::MAX, found).await?;
        Ok(count)
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
