//! What operators see of global indexes.

use super::apply::Applier;
use super::keep::progress;
use super::lock;
use super::store::{self, State};
use crate::database::Database;
use isles_kernel::error::SqlError;
use isles_kernel::names::{Seq, ShardId};
use isles_kernel::schema::{Schema, SchemaChange};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long one who needs the entries up to date waits for that.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
const DRAIN_POLL: Duration = Duration::from_millis(2);

/// One index.
#[derive(Debug, Clone)]
pub struct IndexInfo {
    /// The table of its entries, which no other index ever has.
    pub entries: String,
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

/// What statements and appliers have done since the database was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexWork {
    /// Looks that led a statement.
    pub lookups: u64,
    /// Looks at an index that could not be read, whereupon all shards were asked.
    pub fallbacks: u64,
    /// Comparisons by which a statement learned that keys had been added since its look.
    pub overtaken: u64,
    /// Pages of change logs that were applied, the changes in them, and the entries that they changed.
    pub pages: u64,
    pub changes: u64,
    pub entries: u64,
}

impl Database {
    pub fn index_work(&self) -> IndexWork {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counted = &self.indexes.counted;
        IndexWork {
            lookups: of(&counted.lookups),
            fallbacks: of(&counted.fallbacks),
            overtaken: of(&counted.overtaken),
            pages: of(&counted.pages),
            changes: of(&counted.changes),
            entries: of(&counted.entries),
        }
    }

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
                entries: definition.entries.to_string(),
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

    /// Waits until all that is committed now is in the entries: of all shards' logs, or of one.
    pub(crate) async fn drain_indexes(&self, of: Option<&ShardId>) -> Result<(), SqlError> {
        let deadline = self.env.elapsed() + DRAIN_LIMIT;
        let appliers: Vec<Arc<Applier>> = lock(&self.indexes.appliers).values().cloned().collect();
        for applier in appliers.iter().filter(|applier| of.is_none_or(|shard| applier.shard == *shard)) {
            let shard = self.shards.get(&applier.shard).await.map_err(|error| error.for_people())?;
            let end = shard.seq().await.map_err(|error| error.for_people())?;
            while applier.applied() < end {
                if self.env.elapsed() >= deadline {
                    let behind = end.0 - applier.applied().0;
                    let message = format!("global indexes are {behind} changes of shard {} behind", applier.shard);
                    return Err(SqlError::new("55P03", message).with_hint("try again when they have caught up"));
                }
                applier.wake();
                self.env.sleep(DRAIN_POLL).await;
            }
        }
        Ok(())
    }

    /// Waits until all that is committed now is in the entries of all indexes.
    pub async fn settle_indexes(&self) -> Result<(), SqlError> {
        self.drain_indexes(None).await
    }

    /// Changes that are in the logs of a table's shards say where its columns were: they are applied before the columns
    /// change.
    pub(crate) async fn drain_before(&self, schema: &Schema, changes: &[SchemaChange]) -> Result<(), SqlError> {
        let table = |change: &SchemaChange| change.reshapes().and_then(|name| schema.tables.get(name));
        match changes.iter().filter_map(table).any(|table| table.global_keys().next().is_some()) {
            true => self.drain_indexes(None).await,
            false => Ok(()),
        }
    }
}
