//! How long is kept what only clients and operators look back at.
//!
//! Entries of the outbox, records of requests, and hooks that are completed would only grow. A [`Retention`] says how much
//! of them stays; a clearing goes through the shards, page by page, and removes what is beyond, some rows at a time:
//!
//! ```text
//! floor of the shard rises ─► entries and records below it go ─► hooks that have ended for long go
//! ```
//!
//! The floor rises first, in a transaction of its own: a clearing that ends anywhere leaves rows that nobody reads, and the
//! next one removes them. A record of a request stays while a copy of it could still be applied, which is as long as its
//! cursor is not below the floor.
//!
//! Invariants (docs/invariants.md):
//!   * I-3   a request whose record is gone is below the floor
//!   * I-34  whoever is below the floor is told to begin anew before anything goes

use crate::adapter::{Access, Mode, Select, Tick};
use crate::condition::{Condition, Op, compares, eq};
use crate::context::GlobalScope;
use crate::error::Result;
use crate::hooks::{COMPLETED, FAILED};
use crate::internal::{CLOCKS, HOOKS, OUTBOX, REQUESTS};
use crate::outbox::{Batch, Reading};
use crate::query::Direction;
use crate::shard::Shard;
use crate::store::Store;
use crate::values::timestamp_ms;
use isles_kernel::sync::Version;
use std::future::Future;
use std::time::Duration;

const DAY_MS: u64 = 24 * 3_600 * 1_000;
/// Shards that are asked for at a time.
const SHARDS_AT_ONCE: usize = 1_000;

/// How much is kept of each shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The newest entries of the outbox, at most so many.
    pub entries: u64,
    /// Entries older than this go, though they are few.
    pub entries_ms: u64,
    /// Records of requests since the newest entry. When there are more, which takes a client whose every request is in
    /// conflict, the clients of the shard begin anew.
    pub records: u64,
    /// Hooks that are completed go after this time.
    pub completed_ms: u64,
    /// Hooks that were given up; none keeps them until somebody revives them.
    pub dead_ms: Option<u64>,
    /// The pause between two clearings.
    pub every_ms: u64,
}

impl Default for Retention {
    /// A device that was away for a month goes on where it was.
    fn default() -> Retention {
        Retention {
            entries: 100_000,
            entries_ms: 30 * DAY_MS,
            records: 10_000,
            completed_ms: DAY_MS,
            dead_ms: None,
            every_ms: 3_600 * 1_000,
        }
    }
}

/// What a clearing has removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cleared {
    pub entries: u64,
    pub records: u64,
    pub hooks: u64,
}

impl Store {
    /// Clears again and again, until `stop` resolves.
    pub async fn retain(&self, right: &GlobalScope, retention: Retention, stop: impl Future<Output = ()>) {
        let stop = std::pin::pin!(stop);
        let clearings = async {
            loop {
                if let Err(error) = self.clear(right, &retention).await {
                    tracing::warn!(%error, "what is kept too long was not removed everywhere");
                }
                self.surroundings().sleep(Duration::from_millis(retention.every_ms)).await;
            }
        };
        futures::future::select(stop, std::pin::pin!(clearings)).await;
    }

    /// Goes through all shards, once. One that cannot be asked now keeps no other from it; its error is told at the end.
    pub async fn clear(&self, _right: &GlobalScope, retention: &Retention) -> Result<Cleared> {
        let clocks = self.internal(CLOCKS)?;
        let (mut cleared, mut failed) = (Cleared::default(), None);
        let mut after: Option<Shard> = None;
        loop {
            let page = self.adapter().shards_with(&clocks, &Condition::All, after.as_ref(), SHARDS_AT_ONCE).await?;
            for shard in &page {
                if let Err(error) = self.clear_shard(shard, retention, &mut cleared).await {
                    failed = Some(error);
                }
            }
            after = page.last().filter(|_| page.len() >= SHARDS_AT_ONCE).cloned();
            if after.is_none() {
                return failed.map_or(Ok(cleared), Err);
            }
        }
    }

    async fn clear_shard(&self, shard: &Shard, retention: &Retention, cleared: &mut Cleared) -> Result<()> {
        let access = self.access_to(shard).await?;
        if self.records_since(&access).await? > retention.records {
            self.begin_anew(shard).await?;
        }
        let floor = self.floor_by(&access, retention).await?;
        self.raise_floor(&access, floor).await?;
        let below = compares("version", Op::Lt, floor);
        cleared.entries += self.remove(&access, OUTBOX, &below).await?;
        cleared.records += self.remove(&access, REQUESTS, &below).await?;
        for namespace in self.fragments().keys() {
            let ended = |status: &str, kept_ms: u64| {
                let before = self.now_ms().saturating_sub(i64::try_from(kept_ms).unwrap_or(i64::MAX));
                eq("namespace", namespace.as_str()).and(eq("status", status)).and(compares(
                    "nextAt",
                    Op::Lt,
                    timestamp_ms(before),
                ))
            };
            cleared.hooks += self.remove(&access, HOOKS, &ended(COMPLETED, retention.completed_ms)).await?;
            if let Some(dead_ms) = retention.dead_ms {
                cleared.hooks += self.remove(&access, HOOKS, &ended(FAILED, dead_ms)).await?;
            }
        }
        Ok(())
    }

    /// How many records were made since the newest entry.
    async fn records_since(&self, access: &Access) -> Result<u64> {
        let table = self.internal(REQUESTS)?;
        let mut tx = self.adapter().begin(access, Mode::Read).await?;
        let condition = compares("version", Op::Ge, tx.clock().await?.version);
        let select = Select { table, condition, order: Vec::new(), after: None, limit: usize::MAX };
        let count = tx.count(&select).await?;
        tx.commit().await?;
        Ok(count)
    }

    /// The floor that a retention wants. The entry at the floor stays: a cursor may be there.
    async fn floor_by(&self, access: &Access, retention: &Retention) -> Result<i64> {
        let kept = i64::try_from(retention.entries).unwrap_or(i64::MAX);
        let oldest = u64::try_from(self.now_ms()).unwrap_or_default().saturating_sub(retention.entries_ms);
        let mut tx = self.adapter().begin(access, Mode::Read).await?;
        let clock = tx.clock().await?;
        let mut floor = clock.version.saturating_sub(kept).max(clock.floor);
        let from = Version::new(floor.unsigned_abs()).unwrap_or(Version::ZERO);
        let mut reading = Reading::new(&self.internal(OUTBOX)?, from, usize::MAX)?;
        'entries: loop {
            let some = reading.some(&mut *tx).await?;
            if some.is_empty() {
                break;
            }
            for read in some {
                if read.entry.at_ms >= oldest {
                    break 'entries;
                }
                floor = i64::try_from(read.entry.version.get()).unwrap_or(floor);
            }
        }
        tx.commit().await?;
        Ok(floor)
    }

    /// Tells readers before anything goes.
    pub(crate) async fn raise_floor(&self, access: &Access, floor: i64) -> Result<()> {
        let mut tx = self.adapter().begin(access, Mode::Write).await?;
        if tx.tick(Tick::Hold).await?.floor < floor {
            tx.set_floor(floor).await?;
        }
        tx.commit().await
    }

    /// Removes rows of ours, some in each transaction; how many.
    pub(crate) async fn remove(&self, access: &Access, table: &str, condition: &Condition) -> Result<u64> {
        let table = self.internal(table)?;
        let (mut removed, mut batch) = (0, Batch::default());
        loop {
            let limit = batch.rows();
            let mut tx = self.adapter().begin(access, Mode::Write).await?;
            let order = vec![("id".into(), Direction::Asc)];
            let select = Select { table: table.clone(), condition: condition.clone(), order, after: None, limit };
            let rows = tx.select(&select).await?;
            batch.learn(&rows);
            for row in &rows {
                if let Err(error) = tx.delete(&table, &row.id, row.version).await {
                    tx.roll_back().await;
                    return Err(error);
                }
            }
            tx.commit().await?;
            removed += rows.len() as u64;
            if rows.len() < limit {
                return Ok(removed);
            }
        }
    }
}
