//! What operators see of global indexes.

use super::apply::Applier;
use super::keep::progress;
use super::lock;
use super::store::{self, State};
use super::watch::Watched;
use crate::database::Database;
use isles_kernel::error::SqlError;
use isles_kernel::index::LogNumber;
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
    /// How many it has to count, as it was when it began.
    pub rows_total: Option<u64>,
    /// What the build waits for.
    pub waits: Option<String>,
    /// Changes that are in the logs and not in the entries, at most. While it is built, of the shards that are in it.
    pub lag: u64,
    /// Since when the entries have not been up to date, in milliseconds.
    pub lag_ms: u64,
    /// How far its entries have come with the log of each shard that is followed for it.
    pub applied: Vec<(ShardId, Seq)>,
    /// Additions that are noted meanwhile.
    pub pending: usize,
    /// Whether statements are led by it at this moment.
    pub is_used: bool,
    /// Statements that it has led since the database was opened.
    pub lookups: u64,
    pub error: Option<String>,
    /// When all of it was last compared with the rows, in milliseconds since 1970, and how many entries were wrong.
    pub verified_at: Option<u64>,
    pub differences: Option<u64>,
    /// How many entries it had then.
    pub entries_then: Option<u64>,
}

/// Pages of a log are told apart by how many changes they have: up to each of these, or more.
pub const PAGE_BOUNDS: [u64; 6] = [1, 10, 50, 200, 500, 1_000];

/// What was done for indexes since the database was opened.
#[derive(Debug, Clone, Default)]
pub struct IndexWork {
    /// Statements that were led by an index, and those that an index could not lead at that moment.
    pub lookups: u64,
    pub fallbacks: u64,
    /// Comparisons by which a statement learned that keys had been added since its look.
    pub overtaken: u64,
    /// Entries that looks have read.
    pub read: u64,
    /// Writes that waited since the entries were too far behind, and how many milliseconds in all.
    pub delays: u64,
    pub delayed_ms: u64,
    /// Pages of change logs that were applied, the changes in them, and how many had so many.
    pub pages: u64,
    pub changes: u64,
    pub page_sizes: [u64; PAGE_BOUNDS.len() + 1],
    /// Entries that were changed.
    pub entries: u64,
    /// Additions that are noted and not applied yet, of all indexes.
    pub pending: usize,
    /// Jobs that wait or run, and those that are done or have failed.
    pub jobs_queued: usize,
    pub jobs_done: u64,
    pub jobs_failed: u64,
}

/// A log that an applier follows.
struct FollowedLog {
    shard: ShardId,
    number: LogNumber,
    end: Seq,
    /// Whether the shard has said so.
    is_known: bool,
    /// Since when its end was not reached.
    behind_ms: u64,
}

/// How many changes an index is behind, since when, and how far it has come with each log.
fn behind(index: &Watched, logs: &[FollowedLog]) -> (u64, u64, Vec<(ShardId, Seq)>) {
    let (mut lag, mut lag_ms, mut applied) = (0, 0, Vec::new());
    for log in logs {
        let Some(come) = index.come(log.number) else { continue };
        let behind = log.end.0.saturating_sub(come.0);
        lag += behind;
        if behind > 0 || !log.is_known {
            lag_ms = lag_ms.max(log.behind_ms);
        }
        applied.push((log.shard.clone(), come));
    }
    (lag, lag_ms, applied)
}

impl Database {
    /// All global indexes, by table and name.
    pub async fn global_indexes(&self) -> Result<Vec<IndexInfo>, SqlError> {
        let (logs, trouble) = self.followed_logs().await;
        let builds = progress(&self.indexes);
        let (troubles, anew) = (lock(&self.indexes.troubles).clone(), lock(&self.indexes.anew).clone());
        let shards = self.shard_names();
        let mut infos = Vec::new();
        for index in self.indexes.watch.all() {
            let definition = &index.definition;
            let record = store::load(self.catalog().as_ref(), &definition.entries).await?;
            let verified = store::load_verified(self.catalog().as_ref(), &definition.entries).await?;
            let build = builds.get(&definition.entries);
            let (lag, lag_ms, applied) = behind(&index, &logs);
            // One that has left stays in the record.
            let is_built = |shard: &&ShardId| record.as_ref().is_some_and(|record| record.built.contains(*shard));
            let built = shards.iter().filter(is_built).count();
            infos.push(IndexInfo {
                entries: definition.entries.to_string(),
                table: definition.table.clone(),
                name: definition.name.clone(),
                unique: definition.unique,
                state: match &record {
                    Some(_) if anew.contains_key(&definition.entries) => State::Rebuilding,
                    Some(record) => record.state,
                    None => State::Building,
                },
                shards: (built, shards.len()),
                rows_built: build.map(|build| build.rows),
                rows_total: build.and_then(|build| build.total),
                waits: build.and_then(|build| build.waits.clone()),
                lag,
                lag_ms,
                applied,
                pending: index.waiting(),
                is_used: index.can_be_read(),
                lookups: index.lookups(),
                error: (troubles.get(&definition.entries).cloned())
                    .or_else(|| record.and_then(|record| record.error))
                    .or_else(|| trouble.clone()),
                verified_at: verified.map(|verified| verified.at),
                differences: verified.map(|verified| verified.differences),
                entries_then: verified.and_then(|verified| verified.entries),
            });
        }
        infos.sort_by(|a, b| (&a.table, &a.name).cmp(&(&b.table, &b.name)));
        Ok(infos)
    }

    /// The logs that are followed, as far as they can be seen now, and what is wrong with one of them.
    async fn followed_logs(&self) -> (Vec<FollowedLog>, Option<String>) {
        let appliers: Vec<Arc<Applier>> = lock(&self.indexes.appliers).values().cloned().collect();
        let (mut logs, mut trouble) = (Vec::new(), None);
        for applier in appliers {
            let end = async { self.shards.get(&applier.shard).await?.seq().await };
            let end = end.await;
            trouble = trouble.or_else(|| lock(&applier.trouble).clone());
            if let Err(error) = &end {
                let away = || format!("the log of shard {} cannot be read now: {error}", applier.shard);
                trouble = trouble.or_else(|| Some(away()));
            }
            logs.push(FollowedLog {
                shard: applier.shard.clone(),
                number: applier.log.number,
                // Of one that cannot be asked the last that was seen is known, and that it may have more.
                end: end.as_ref().copied().unwrap_or(Seq(applier.log.end.load(Ordering::SeqCst))),
                is_known: end.is_ok(),
                behind_ms: applier.behind(self),
            });
        }
        (logs, trouble)
    }

    /// Figures for metrics.
    pub fn index_work(&self) -> IndexWork {
        let counted = &self.indexes.counted;
        let read = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let (jobs_queued, jobs_done, jobs_failed) = self.indexes.jobs.counts();
        IndexWork {
            lookups: read(&counted.lookups),
            fallbacks: read(&counted.fallbacks),
            overtaken: read(&counted.overtaken),
            read: read(&counted.read),
            delays: read(&counted.delays),
            delayed_ms: read(&counted.delayed_ms),
            pages: read(&counted.pages),
            changes: read(&counted.changes),
            page_sizes: std::array::from_fn(|at| read(&counted.page_sizes[at])),
            entries: read(&counted.entries),
            pending: self.indexes.watch.all().iter().map(|index| index.waiting()).sum(),
            jobs_queued,
            jobs_done,
            jobs_failed,
        }
    }

    /// Waits until all that is committed now is in the entries: of all shards' logs, or of one.
    pub(crate) async fn drain_indexes(&self, of: Option<&ShardId>) -> Result<(), SqlError> {
        let deadline = self.env.elapsed() + DRAIN_LIMIT;
        let appliers: Vec<Arc<Applier>> = lock(&self.indexes.appliers).values().cloned().collect();
        let is_followed = |shard: &ShardId| appliers.iter().any(|applier| applier.shard == *shard);
        if let Some(shard) = of.filter(|shard| self.indexes.watch.has_log(shard) && !is_followed(shard)) {
            let message = format!("global indexes do not follow the log of shard {shard} yet");
            return Err(SqlError::new("55P03", message).with_hint("try again in a moment"));
        }
        for applier in appliers.iter().filter(|applier| of.is_none_or(|shard| applier.shard == *shard)) {
            let shard = self.shards.get(&applier.shard).await.map_err(|error| error.for_people())?;
            let end = shard.seq().await.map_err(|error| error.for_people())?;
            while applier.applied() < end {
                if self.env.elapsed() >= deadline {
                    let behind = end.0 - applier.applied().0;
                    let message = format!("global indexes are {behind} changes of shard {} behind", applier.shard);
                    return Err(SqlError::new("55P03", message).with_hint("try again when they have caught up"));
                }
                applier.hurry();
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
