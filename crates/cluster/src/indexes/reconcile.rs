//! All indexes compared with the rows, now and then, and put right.
//!
//! Nothing is expected to be wrong: the entries follow the logs exactly. What is found is damage, a hand in the shards'
//! tables, or a bug, and is reported as such. One index after the other, and none while its table's rows are moved; that
//! one is tried again a little later.

use super::store::{self, State};
use super::watch::Watched;
use crate::database::Database;
use isles_kernel::error::SqlError;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Between two looks at what is due: often enough that an index that could not be compared is not left for long.
const LOOKS: u32 = 24;
const LEAST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(600);

pub(super) fn start(database: &Arc<Database>, every: Duration) {
    if every.is_zero() {
        return;
    }
    let (weak, env): (Weak<Database>, _) = (Arc::downgrade(database), database.env.clone());
    database.env.spawn(Box::pin(async move {
        loop {
            env.sleep((every / LOOKS).clamp(LEAST, MOST)).await;
            let Some(database) = weak.upgrade() else { return };
            if database.shards.is_closed() || database.is_closing() {
                return;
            }
            for index in database.indexes.watch.all() {
                if let Err(error) = reconcile(&database, &index, every).await {
                    tracing::debug!(index = %index.definition.name, %error, "index cannot be compared with the rows now");
                }
            }
        }
    }));
}

/// Whether so much time has passed since an index was last compared, or built.
async fn is_due(database: &Database, index: &Watched, every: Duration) -> Result<bool, SqlError> {
    let catalog = database.catalog();
    let Some(record) = store::load(catalog.as_ref(), &index.definition.entries).await? else { return Ok(false) };
    let verified = store::load_verified(catalog.as_ref(), &index.definition.entries).await?;
    let last = verified.map(|verified| verified.at).max(record.ready_at);
    let now = database.env.now_micros() / 1_000;
    let has_passed = |last: u64| u128::from(now.saturating_sub(last)) >= every.as_millis();
    Ok(record.state == State::Ready && last.is_some_and(has_passed) && !database.is_closing())
}

/// Compares an index, if that is due.
async fn reconcile(database: &Database, index: &Watched, every: Duration) -> Result<(), SqlError> {
    if !is_due(database, index, every).await? {
        return Ok(());
    }
    let found = database.verify_index(&index.definition.entries, true).await?;
    let (name, entries, repaired) = (&index.definition.name, found.entries, found.repaired);
    match found.differences() {
        0 => tracing::info!(index = %name, entries, "index agrees with the rows"),
        _ => tracing::warn!(index = %name, entries, missing = found.missing, superfluous = found.superfluous, repaired,
            some = ?found.told, "index did not agree with the rows"),
    }
    Ok(())
}
