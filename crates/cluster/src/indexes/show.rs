//! What operators see of global indexes.

use super::keep::progress;
use super::lock;
use super::store::{self, State};
use crate::database::Database;
use isles_kernel::error::SqlError;
use isles_kernel::names::Seq;
use std::sync::Arc;

/// One index.
#[derive(Debug, Clone)]
pub struct IndexInfo {
    pub table: String,
    pub name: String,
    pub unique: bool,
    pub state: State,
    /// Shards whose rows are in it, of so many.
    pub shards: (usize, usize),
    /// Rows that the build under way has counted.
    pub rows_built: Option<u64>,
    /// What the build waits for.
    pub waits: Option<String>,
    /// Changes that are in the logs and not in the entries, at most.
    pub lag: u64,
    /// Since when the entries have not been up to date, in milliseconds.
    pub lag_ms: u64,
    /// Additions that are noted meanwhile.
    pub pending: usize,
    /// Whether statements are led by it at this moment.
    pub is_used: bool,
    pub error: Option<String>,
}

impl Database {
    /// All global indexes, by table and name.
    pub async fn global_indexes(&self) -> Result<Vec<IndexInfo>, SqlError> {
        let (mut lag, mut lag_ms, mut trouble) = (0, 0, None);
        let appliers: Vec<_> = lock(&self.indexes.appliers).values().cloned().collect();
        for applier in appliers {
            let Ok(shard) = self.shards.get(&applier.shard).await else { continue };
            let end = shard.seq().await.unwrap_or(Seq(0));
            let behind = end.0.saturating_sub(applier.applied().0);
            lag += behind;
            if behind > 0 {
                lag_ms = lag_ms.max(applier.behind(self));
            }
            trouble = trouble.or_else(|| lock(&applier.trouble).clone());
        }
        let builds = progress(&self.indexes);
        let shards = self.shard_names();
        let mut infos = Vec::new();
        for index in self.indexes.watch.all() {
            let definition = &index.definition;
            let record = store::load(self.catalog().as_ref(), &definition.entries).await?;
            let build = builds.get(&definition.entries);
            infos.push(IndexInfo {
                table: definition.table.clone(),
                name: definition.name.clone(),
                unique: definition.unique,
                state: record.as_ref().map_or(State::Building, |record| record.state),
                shards: (record.as_ref().map_or(0, |record| record.built.len()), shards.len()),
                rows_built: build.map(|build| build.rows),
                waits: build.and_then(|build| build.waits.clone()),
                lag,
                lag_ms,
                pending: index.waiting(),
                is_used: index.can_be_read(),
                error: record.and_then(|record| record.error).or_else(|| trouble.clone()),
            });
        }
        infos.sort_by(|a, b| (&a.table, &a.name).cmp(&(&b.table, &b.name)));
        Ok(infos)
    }

    /// Waits until every change that is committed now is in the entries of all indexes.
    pub(crate) async fn settle_indexes(&self) -> Result<(), SqlError> {
        let appliers: Vec<Arc<super::Applier>> = lock(&self.indexes.appliers).values().cloned().collect();
        for applier in appliers {
            let shard = self.shards.get(&applier.shard).await.map_err(|error| error.for_people())?;
            let end = shard.settled().await.map_err(|error| error.for_people())?;
            while applier.applied() < end {
                applier.wake();
                self.env.sleep(std::time::Duration::from_millis(2)).await;
            }
        }
        Ok(())
    }
}
