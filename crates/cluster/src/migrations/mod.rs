//! Tables that become tenant tables while they are used.
//!
//!     notes (id, owner, body), kind hash or global
//!       │ ALTER TABLE notes SET (kind = 'tenant', tenant_by = 'owner')
//!       ▼
//!     notes (id, owner, body), kind tenant: each row in the partition of its owner
//!
//! First everything is looked at that could stand in the way, and nothing is changed. Then a tenant table is made beside
//! the table, with the same columns, keys, checks and defaults, and filled: from snapshots of all shards, and from their
//! change logs, while clients read and write the table as ever. In the end both change their names in one change of the
//! schema, for which everyone waits a moment; what was replaced is removed afterwards.
//!
//! A migration is a record in the catalog, driven by one task at a time; it goes on when the database is opened again.
//! Until the swap it can be cancelled, and what fails by itself ends the same way: the table has never been touched.
//!
//! In reading order:
//!   * [`store`]   migrations in the catalog
//!   * [`check`]   what stands in the way
//!   * [`work`]    rows, on their way to the copy
//!   * [`swap`]    how the copy takes the table's place
//!   * [`driver`]  one migration, from where it is to its end
//!
//! Invariants (docs/invariants.md):
//!   * I-71  a migration changes nothing but where rows are: none is lost, doubled, or given to another tenant
//!   * I-72  whatever crashes, a migration goes on, and until the swap it can be undone without a trace
//!   * I-17  rows of the table, and tenants, stay on their shards meanwhile

mod check;
mod driver;
mod store;
mod swap;
mod work;

use crate::catalog::{Condition, Transaction};
use crate::commit::decision::catalog_error;
use crate::database::Database;
use crate::database::schema::Change;
use crate::execute::bounds::Bounds;
use crate::execute::transaction::{Modes, Txn};
use crate::moves;
use check::no_table;
pub use check::{Conflict, Report};
use isles_engine::shard::{ActsFor, CancelToken, Isolation};
use isles_kernel::error::SqlError;
use isles_kernel::moves::Units;
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::{SchemaChange, Table, TableKind, plain_name};
use isles_sql::row_tenant::RowTenant;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
pub use store::{Failure, Migration, ShardCopy, State};
use tokio::sync::{Notify, oneshot};

/// How long an operator's look at all rows may take.
const OPERATOR_TIME: Duration = Duration::from_secs(3_600);
/// How often a command is tried that a driver overtakes.
const ATTEMPTS: usize = 100;

/// Where a test lets a driver die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    BeforeCopy,
    InCopy,
    BeforeSwap,
    AfterSwap,
    InUndo,
    BeforeDrop,
}

/// What a database can be told to do wrong. A harness that does not find bugs proves nothing (I-69).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// Drivers die when they come here.
    StopAt(Stop),
    /// The copy follows the table, and does not take its place.
    NeverSwap,
    /// The rest of the logs is not brought before the swap, and nobody compares (planted bug 4).
    NoDrain,
}

/// What a driver is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Copying,
    Following,
    Swapping,
    Undoing,
    Cleaning,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Copying => "copying",
            Phase::Following => "following",
            Phase::Swapping => "swapping",
            Phase::Undoing => "undoing",
            Phase::Cleaning => "cleaning",
        }
    }
}

/// What is known of a migration that is driven here, besides its record.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    pub phase: Option<Phase>,
    pub rows: u64,
    /// What it waits for.
    pub waits: Option<String>,
}

/// The migrations that this process drives.
#[derive(Default)]
pub(crate) struct Migrations {
    planted: Mutex<Option<Planted>>,
    driven: Mutex<BTreeMap<u64, Arc<Notify>>>,
    progress: Mutex<BTreeMap<u64, Progress>>,
    running: Arc<AtomicUsize>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Migrations {
    pub(crate) fn new(planted: Option<Planted>) -> Migrations {
        Migrations { planted: Mutex::new(planted), ..Migrations::default() }
    }

    fn plants(&self, bug: Planted) -> bool {
        *lock(&self.planted) == Some(bug)
    }

    fn stops_at(&self, at: Stop) -> bool {
        self.plants(Planted::StopAt(at))
    }

    fn note(&self, number: u64, change: impl FnOnce(&mut Progress)) {
        change(lock(&self.progress).entry(number).or_default());
    }

    /// Tells all drivers to look up; whether any is left.
    pub(crate) fn end(&self) -> bool {
        lock(&self.driven).values().for_each(|driver| driver.notify_one());
        self.running.load(Ordering::SeqCst) > 0
    }
}

/// A migration, and what is known of it.
#[derive(Debug, Clone)]
pub struct MigrationInfo {
    pub migration: Migration,
    pub progress: Option<Progress>,
}

impl Database {
    /// What stands in the way of a migration. Nothing is changed.
    pub(crate) async fn check_migration(
        &self,
        table: &str,
        tenant_by: &str,
        bounds: &Bounds,
    ) -> Result<Report, SqlError> {
        check::look(self, table, tenant_by, bounds).await
    }

    /// Makes a table a tenant table: begins to, and returns the migration's number. Refused if anything stands in the way.
    pub(crate) async fn begin_migration(
        self: &Arc<Self>,
        table: &str,
        tenant_by: &str,
        bounds: &Bounds,
    ) -> Result<u64, SqlError> {
        let report = self.check_migration(table, tenant_by, bounds).await?;
        report.refuse()?;
        let (database, bounds) = (self.clone(), bounds.clone());
        let (table, tenant_by) = (table.to_string(), tenant_by.to_string());
        // Whoever has begun it drives it, whatever becomes of the client.
        let (reply, answer) = oneshot::channel();
        self.env.spawn(Box::pin(async move {
            let made = make(&database, &table, tenant_by, report.rows, &bounds).await;
            if let Ok(number) = &made {
                database.drive_migration(*number);
            }
            // A client that has gone needs no answer.
            let _ = reply.send(made);
        }));
        let lost = |_| SqlError::new("08007", "the migration may have begun: whoever began it has ended");
        answer.await.map_err(lost)?
    }

    /// What stands in the way of a migration, for an operator.
    pub async fn try_migration(&self, table: &str, tenant_by: &str) -> Result<Report, SqlError> {
        self.check_migration(table, tenant_by, &self.operator_bounds()).await
    }

    /// Begins a migration, for an operator who does not wait for its end.
    pub async fn start_migration(self: &Arc<Self>, table: &str, tenant_by: &str) -> Result<MigrationInfo, SqlError> {
        let number = self.begin_migration(table, tenant_by, &self.operator_bounds()).await?;
        let found = self.migrations().await?.into_iter().find(|info| info.migration.number == number);
        found.ok_or_else(|| SqlError::new("55000", "the migration is not known any more"))
    }

    fn operator_bounds(&self) -> Bounds {
        Bounds::new(&*self.env, OPERATOR_TIME, CancelToken::default())
    }

    /// All migrations, the oldest first.
    pub async fn migrations(&self) -> Result<Vec<MigrationInfo>, SqlError> {
        let all = store::list(self.catalog().as_ref()).await?;
        let progress = lock(&self.migrations.progress).clone();
        let info = |stored: store::Stored| MigrationInfo {
            progress: progress.get(&stored.migration.number).filter(|_| !stored.migration.state.is_over()).cloned(),
            migration: stored.migration,
        };
        Ok(all.into_iter().map(info).collect())
    }

    pub(crate) async fn migration(&self, number: u64) -> Result<Option<Migration>, SqlError> {
        Ok(store::load(self.catalog().as_ref(), number).await?.map(|stored| stored.migration))
    }

    /// What is known of a migration that is driven here.
    pub(crate) fn migration_progress(&self, number: u64) -> Progress {
        lock(&self.migrations.progress).get(&number).cloned().unwrap_or_default()
    }

    /// Gives up the migration of a table. The table stays what it is; the copy is removed afterwards.
    pub async fn cancel_migration(self: &Arc<Self>, table: &str) -> Result<(), SqlError> {
        let none = || SqlError::new("42704", format!("table \"{}\" is not being migrated", plain_name(table)));
        for _ in 0..ATTEMPTS {
            let all = store::list(self.catalog().as_ref()).await?;
            let active = |stored: &store::Stored| !stored.migration.state.is_over() && stored.migration.table == table;
            let stored = all.into_iter().find(active).ok_or_else(none)?;
            match stored.migration.state {
                State::Copying => {}
                State::Undoing => return Ok(()),
                _ => {
                    let message = format!("table \"{}\" is a tenant table already", plain_name(table));
                    return Err(SqlError::new("55000", message).with_detail("what it was before is being removed"));
                }
            }
            let mut migration = stored.migration.clone();
            (migration.state, migration.cancelled) = (State::Undoing, true);
            let cancelled = SqlError::new("57014", "the migration was cancelled").with_hint("the table is as it was");
            migration.failure = Some(Failure::of(&cancelled));
            let number = migration.number;
            match store::save(self.catalog().as_ref(), &stored, migration).await {
                Ok(_) => {
                    self.drive_migration(number);
                    return Ok(());
                }
                Err(store::Unsaved::Changed) => {}
                Err(store::Unsaved::Error(error)) => return Err(error),
            }
        }
        Err(SqlError::new("40001", "the migration keeps changing").with_hint("try again"))
    }

    /// Goes on with migrations that are not over: the database has just been opened. The schema tells which: a migration's
    /// namespaces come with its record, and go when it is over.
    pub(crate) fn resume_migrations(self: &Arc<Self>) {
        self.schema().copies().into_iter().for_each(|number| self.drive_migration(number));
    }

    /// Sees to it that a migration is driven here, and that its driver looks at it now.
    fn drive_migration(self: &Arc<Self>, number: u64) {
        let news = {
            let mut driven = lock(&self.migrations.driven);
            if let Some(driver) = driven.get(&number) {
                driver.notify_one();
                return;
            }
            let news = Arc::new(Notify::new());
            driven.insert(number, news.clone());
            news
        };
        let (weak, running) = (Arc::downgrade(self), self.migrations.running.clone());
        running.fetch_add(1, Ordering::SeqCst);
        self.env.spawn(Box::pin(async move {
            driver::run(weak.clone(), number, news).await;
            running.fetch_sub(1, Ordering::SeqCst);
            if let Some(database) = weak.upgrade() {
                lock(&database.migrations.driven).remove(&number);
                lock(&database.migrations.progress).remove(&number);
            }
        }));
    }

    /// Plants something else, or nothing, for tests that have waited for a migration to come somewhere.
    pub fn plant_migration(&self, planted: Option<Planted>) {
        *lock(&self.migrations.planted) = planted;
    }

    /// How many drivers of migrations run here.
    pub fn migration_drivers(&self) -> usize {
        self.migrations.running.load(Ordering::SeqCst)
    }

    /// Whether tables may change: not one that a copy is being made of.
    pub(crate) async fn check_migrations(&self, changes: &[SchemaChange]) -> Result<(), SqlError> {
        let ours = |change: &SchemaChange| matches!(change, SchemaChange::ReplaceTable { .. });
        let changes: Vec<&SchemaChange> = changes.iter().filter(|change| !ours(change)).collect();
        if changes.is_empty() || self.schema().copies().is_empty() {
            return Ok(());
        }
        let active = store::active(self.catalog().as_ref()).await?;
        let copied = active.iter().filter(|migration| migration.state == State::Copying);
        for migration in copied {
            if changes.iter().any(|change| change.redefines(&migration.table)) {
                return Err(being_migrated(&migration.table));
            }
        }
        Ok(())
    }

    /// Rows stay where they are while a copy of their table is made; so do tenants, whom the copy's rows go to.
    pub(crate) async fn check_no_migration(&self, units: &Units, policy: &RoutingPolicy) -> Result<(), SqlError> {
        if self.schema().copies().is_empty() {
            return Ok(());
        }
        let schema = self.schema();
        for migration in store::active(self.catalog().as_ref()).await? {
            let names = match migration.state {
                State::Cleaning => vec![&migration.aside],
                _ => vec![&migration.table, &migration.copy],
            };
            let concerned =
                |name: &&String| schema.tables.get(*name).is_some_and(|table| units.concerns(table, policy));
            if names.iter().any(concerned) {
                return Err(being_migrated(&migration.table));
            }
        }
        Ok(())
    }
}

fn being_migrated(table: &str) -> SqlError {
    let message = format!("table \"{}\" is being made a tenant table", plain_name(table));
    SqlError::new("55006", message)
        .with_hint(format!("wait until SHOW MIGRATIONS says that it is done, or CANCEL MIGRATION {table}"))
}

/// Makes the copy and the record, in one commit.
async fn make(
    database: &Arc<Database>,
    table: &str,
    tenant_by: String,
    total: u64,
    bounds: &Bounds,
) -> Result<u64, SqlError> {
    // Neither a move nor a build of an index begins meanwhile.
    let _gate = database.indexes.gate.lock().await;
    let guard = database.hold_schema_alone(bounds).await?;
    let schema = guard.schema.clone();
    let source = schema.tables.get(table).ok_or_else(|| no_table(table))?;
    RowTenant::of(source, &tenant_by)?;
    let conflicts = check::of_table(database, &schema, source);
    Report { table: table.into(), conflicts, ..Report::default() }.refuse()?;
    let active = store::active(database.catalog().as_ref()).await?;
    if active.iter().any(|migration| migration.table == table) {
        return Err(being_migrated(table));
    }
    let new = schema.new_copy(source, TableKind::Tenant);
    for kind in [&source.kind, &TableKind::Tenant] {
        let like = Table { kind: kind.clone(), ..source.clone() };
        if let Some(plan) = moves::moving(database, &like).await? {
            let message =
                format!("rows of table \"{}\" or their tenants are being moved by plan {plan}", plain_name(table));
            return Err(SqlError::new("55006", message).with_hint("wait until SHOW MOVES says that it is done"));
        }
    }
    let now = database.env.now_micros() / 1_000;
    let migration = Migration {
        number: new.number,
        table: table.into(),
        tenant_by,
        copy: new.copy,
        aside: new.aside,
        state: State::Copying,
        cancelled: false,
        driver: 0,
        shards: BTreeMap::new(),
        total,
        failure: None,
        pause_micros: None,
        created_at: now,
        updated_at: now,
    };
    let key = store::key_of(migration.number);
    let with = Transaction::new().when(Condition::Absent(key.clone())).put_json(key, &migration);
    let change = Change { changes: new.changes, restarts: Vec::new(), with: with.map_err(catalog_error)? };
    let modes = Modes { isolation: Isolation::ReadCommitted, read_only: false };
    let mut txn = Txn::begin(database, modes, Arc::new(guard), ActsFor::Nobody)?;
    if let Err(error) = txn.change_schema(&change, bounds).await {
        txn.rollback().await;
        return Err(error);
    }
    txn.commit(bounds).await?;
    tracing::info!(table, migration = migration.number, "a table becomes a tenant table");
    Ok(migration.number)
}
