//! A driver's hands: what it knows of its migration, and how rows come from the table to the copy.
//!
//! ```text
//! source shard ─ snapshot, page after the cursor ─┐                    ┌─► shard of tenant a
//!              └ change log, page after position ─┴─ tenant of the row ┴─► shard of tenant b
//! ```
//!
//! Rows come as those of a move do: the log is kept from before the first snapshot, copies lose against changes, and a
//! change is applied if it is newer than what is known of its key. So pages may come from any snapshots, in any order and
//! any number of times. A row of the copy has a key of its own, led by the tenant; all that happens to it comes from one
//! shard, since a primary key has its shard key in it, and rows do not change shards meanwhile (I-17).
//!
//! A row whose tenant changes leaves one key and enters another, perhaps on another shard: the change says both.

use super::check::{reason, shown_key};
use super::store::{self, Migration, ShardCopy, Stored, Unsaved};
use super::{Phase, Stop};
use crate::database::Database;
use crate::execute::inputs::tenant_place;
use crate::moves::pace::{Others, Pace};
use crate::session::settings::Tenant;
use isles_engine::error::ShardError;
use isles_engine::shard::{
    Batch, BatchKind, DriverToken, EVENT_ROWS, Engine, Incoming, KeyRange, RowVersion, Scope, Shard, Snapshot,
};
use isles_kernel::change::Change;
use isles_kernel::error::SqlError;
use isles_kernel::names::{RoutingVersion, Seq, ShardId, StreamId, TenantId};
use isles_kernel::schema::{Table, TableKind, Unit};
use isles_kernel::value::Value;
use isles_sql::row_tenant::RowTenant;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A snapshot is held for so long: an older one keeps a shard from tidying up.
const SNAPSHOT_TIME: Duration = Duration::from_secs(2);
/// How often a driver says how far it is, and learns what an operator has said.
const TICK: Duration = Duration::from_millis(500);
/// Pages of the log that are brought after one snapshot, so that the log does not grow for as long as the copy takes.
const PAGES_BETWEEN: usize = 20;

/// Why a driver stops what it is doing.
#[derive(Debug)]
pub(super) enum Halt {
    /// The record has changed: read it again.
    Changed,
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
            ShardError::Superseded => Halt::Changed,
            ShardError::Trimmed { .. } => {
                let hint = "the change log reached its limit before the migration had read it; begin it again";
                Halt::Never(people.with_hint(hint))
            }
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

/// Shards that have rows of a table.
pub(super) fn sources(database: &Database, table: &Table) -> Vec<ShardId> {
    match table.kind {
        TableKind::Global => database.routing.current().home().cloned().into_iter().collect(),
        _ => database.shard_names(),
    }
}

/// The rows of a table that a shard owns.
pub(super) fn owned_scope(database: &Database, table: &Table, shard: &ShardId) -> Scope {
    let Some(group) = table.group() else { return Scope::All };
    let policy = database.routing.current();
    Scope::Buckets(group.clone(), policy.owned(group, shard).map(|range| range.first.0..=range.last.0).collect())
}

/// The stream of all rows that come to a copy, and the consumer of the logs that they come from.
pub(super) fn stream_of(number: u64) -> StreamId {
    StreamId::new(format!("migration-{number}")).expect("a word and digits")
}

/// What one driver has of its migration.
pub(super) struct Work {
    pub(super) database: Arc<Database>,
    pub(super) stored: Stored,
    pub(super) driver: DriverToken,
    pub(super) stream: StreamId,
    saved: Duration,
}

/// The table, the copy, and which rows of the one are which of the other.
pub(super) struct Pair {
    pub(super) source: Table,
    pub(super) copy: Table,
    pub(super) by: RowTenant,
}

/// One source shard's log.
pub(super) struct Tail {
    pub(super) shard: ShardId,
    pub(super) position: Seq,
}

impl Work {
    /// Takes a migration over: from here on no earlier driver changes anything.
    pub(super) async fn take(database: Arc<Database>, stored: Stored) -> Result<Work, Halt> {
        let driver = stored.migration.driver + 1;
        let stream = stream_of(stored.migration.number);
        let saved = database.env.elapsed();
        let mut work = Work { database, stored, driver: DriverToken(driver), stream, saved };
        work.save(|migration| migration.driver = driver).await?;
        for shard in work.database.shard_names() {
            // One that has stopped is opened anew, also where no client asks for it.
            let open = work.database.shards.reopen(&shard).await?;
            open.open_stream(&work.stream, work.driver).await?;
        }
        Ok(work)
    }

    pub(super) fn migration(&self) -> &Migration {
        &self.stored.migration
    }

    pub(super) async fn save(&mut self, change: impl FnOnce(&mut Migration)) -> Result<(), Halt> {
        let mut migration = self.stored.migration.clone();
        change(&mut migration);
        migration.updated_at = self.database.env.now_micros() / 1_000;
        self.stored = match store::save(self.database.catalog().as_ref(), &self.stored, migration).await {
            Ok(stored) => stored,
            Err(Unsaved::Changed) => return Err(Halt::Changed),
            Err(Unsaved::Error(error)) => return Err(Halt::Later(error)),
        };
        self.saved = self.database.env.elapsed();
        Ok(())
    }

    /// Says how far it is, now and then.
    pub(super) async fn tick(&mut self) -> Result<(), Halt> {
        self.check_open()?;
        match self.database.env.elapsed() >= self.saved + TICK {
            true => self.save(|_| {}).await,
            false => Ok(()),
        }
    }

    pub(super) fn check_open(&self) -> Result<(), Halt> {
        if self.database.is_closing() { Err(Halt::Closing) } else { Ok(()) }
    }

    /// Where a test wants the driver to die.
    pub(super) fn may_stop(&self, at: Stop) -> Result<(), Halt> {
        if self.database.migrations.stops_at(at) { Err(Halt::Closing) } else { Ok(()) }
    }

    pub(super) fn note(&self, phase: Phase) {
        let rows = self.migration().rows_copied();
        self.database.migrations.note(self.migration().number, |progress| {
            (progress.phase, progress.rows, progress.waits) = (Some(phase), rows, None);
        });
    }

    pub(super) async fn shard(&self, shard: &ShardId) -> Result<Arc<dyn Shard>, Halt> {
        Ok(self.database.shards.get(shard).await?)
    }

    pub(super) fn pair(&self) -> Result<Pair, Halt> {
        let (schema, migration) = (self.database.schema(), self.migration());
        let table = |name: &str| {
            let gone = || Halt::Never(SqlError::new("55000", format!("table \"{name}\" is gone")));
            schema.tables.get(name).cloned().ok_or_else(gone)
        };
        let (source, copy) = (table(&migration.table)?, table(&migration.copy)?);
        let by = RowTenant::of(&source, &migration.tenant_by).map_err(Halt::Never)?;
        Ok(Pair { source, copy, by })
    }

    /// Where the logs of all sources stand. What happens from now on, if this is the first time, is kept.
    pub(super) async fn tails(&self, pair: &Pair) -> Result<Vec<Tail>, Halt> {
        let mut tails = Vec::new();
        for shard in sources(&self.database, &pair.source) {
            let position = self.shard(&shard).await?.add_consumer(&self.stream).await?;
            tails.push(Tail { shard, position });
        }
        Ok(tails)
    }

    /// Copies the rows of all shards, one after the other, and follows their logs meanwhile.
    pub(super) async fn copy_all(&mut self, pair: &Pair, tails: &mut [Tail]) -> Result<(), Halt> {
        for tail in tails {
            while !self.copied(&tail.shard).done {
                self.copy_some(pair, &tail.shard).await?;
                for _ in 0..PAGES_BETWEEN {
                    if self.follow(pair, tail).await? < *EVENT_ROWS.end() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn copied(&self, shard: &ShardId) -> ShardCopy {
        self.migration().shards.get(shard).cloned().unwrap_or_default()
    }

    /// Copies pages of one snapshot, for a while.
    async fn copy_some(&mut self, pair: &Pair, shard: &ShardId) -> Result<(), Halt> {
        let engine = self.database.shards.engine(shard).unwrap_or(Engine::Sqlite);
        let (env, mut pace) = (self.database.env.clone(), Pace::new(engine));
        let mut snapshot = self.shard(shard).await?.snapshot().await?;
        let until = env.elapsed() + SNAPSHOT_TIME;
        let mut copied = self.copied(shard);
        while !copied.done && env.elapsed() < until {
            let (before, began) = (self.database.statements_on([shard]), env.elapsed());
            let (rows, next) = self.next_page(pair, &mut *snapshot, shard, &copied, pace.rows()).await?;
            let count = rows.len();
            self.apply(BatchKind::Copy, rows).await?;
            copied = next;
            self.stored.migration.shards.insert(shard.clone(), copied.clone());
            self.note(Phase::Copying);
            self.tick().await?;
            if copied.rows > 0 {
                self.may_stop_saved(Stop::InCopy).await?;
            }
            let others = if self.database.statements_on([shard]) == before { Others::Idle } else { Others::Working };
            let rest = pace.learn(count, env.elapsed().saturating_sub(began), others);
            if rest > Duration::ZERO {
                env.sleep(rest).await;
            }
        }
        self.save(|_| {}).await
    }

    async fn may_stop_saved(&mut self, at: Stop) -> Result<(), Halt> {
        if self.database.migrations.stops_at(at) {
            self.save(|_| {}).await?;
        }
        self.may_stop(at)
    }

    async fn next_page(
        &self,
        pair: &Pair,
        snapshot: &mut dyn Snapshot,
        shard: &ShardId,
        copied: &ShardCopy,
        rows: usize,
    ) -> Result<(Vec<Incoming>, ShardCopy), Halt> {
        let scope = owned_scope(&self.database, &pair.source, shard);
        let range = KeyRange { after: copied.after(), ..KeyRange::table(&pair.source.name).within(scope) };
        let page = snapshot.page(&range, rows).await?;
        let mut next = copied.clone();
        next.rows += page.rows.len() as u64;
        next.done = page.next.is_none();
        next.set_after(page.next.as_deref());
        let seq = snapshot.seq();
        let incoming = page.rows.into_iter().map(|row| {
            let tenant = tenant_of(pair, &row.values)?;
            Ok(pair.incoming(tenant, &row.values.clone(), Some(row.values), seq))
        });
        Ok((incoming.collect::<Result<_, Halt>>()?, next))
    }

    /// Brings a page of a shard's log to the copy. Returns how many changes it had.
    pub(super) async fn follow(&mut self, pair: &Pair, tail: &mut Tail) -> Result<usize, Halt> {
        let shard = self.shard(&tail.shard).await?;
        let page = shard.changes(tail.position, *EVENT_ROWS.end()).await?;
        let mut rows = Vec::new();
        for change in page.changes.iter().filter(|change| change.table == pair.source.name) {
            pair.changed(change, &mut rows)?;
        }
        self.apply(BatchKind::Changes, rows).await?;
        if page.through > tail.position {
            shard.advance(&self.stream, page.through).await?;
            tail.position = page.through;
        }
        self.tick().await?;
        Ok(page.changes.len())
    }

    /// Brings rows to the shards of their tenants.
    async fn apply(&self, kind: BatchKind, rows: Vec<Incoming>) -> Result<(), Halt> {
        let policy = self.database.routing.current();
        let mut parts: BTreeMap<ShardId, Vec<Incoming>> = BTreeMap::new();
        for row in rows {
            let tenant = match &row.unit {
                Unit::Tenant(Some(name)) => Tenant::Name(name.clone()),
                _ => Tenant::None,
            };
            parts.entry(tenant_place(&tenant, &policy)?.0).or_default().push(row);
        }
        for (shard, rows) in parts {
            let batch = Batch { driver: Some(self.driver), kind, ..Batch::new(&self.stream, rows) };
            self.shard(&shard).await?.apply(batch).await?;
        }
        Ok(())
    }
}

/// The tenant of a row, or why the migration cannot go on.
pub(super) fn tenant_of(pair: &Pair, row: &[Value]) -> Result<Option<TenantId>, Halt> {
    pair.by.tenant(row).map_err(|no| {
        let message = format!("a row of table \"{}\" cannot be given to a tenant", pair.source.plain_name());
        let error = SqlError::new("23514", message).of_table(&pair.source.name);
        Halt::Never(
            error
                .with_detail(format!("{}: {}", reason(&no), shown_key(&pair.source, row)))
                .with_hint("the table is as it was: put the row right, and begin again"),
        )
    })
}

impl Pair {
    fn incoming(&self, tenant: Option<TenantId>, key_of: &[Value], row: Option<Vec<Value>>, seq: Seq) -> Incoming {
        let unit = Unit::Tenant(tenant);
        Incoming {
            table: self.copy.name.clone(),
            key: self.copy.key_of(&unit, key_of),
            unit,
            // Positions of one log are compared, and nothing else.
            version: RowVersion { epoch: RoutingVersion(1), seq },
            row,
        }
    }

    /// What a change of the table is to the copy.
    fn changed(&self, change: &Change, rows: &mut Vec<Incoming>) -> Result<(), Halt> {
        let now = change.after.as_ref().map(|row| tenant_of(self, row)).transpose()?;
        if let Some(before) = &change.before {
            // What had no tenant was never in the copy.
            if let Ok(tenant) = self.by.tenant(before)
                && now.as_ref() != Some(&tenant)
            {
                rows.push(self.incoming(tenant, before, None, change.seq));
            }
        }
        if let (Some(after), Some(tenant)) = (&change.after, now) {
            rows.push(self.incoming(tenant, after, Some(after.clone()), change.seq));
        }
        Ok(())
    }
}
