//! Databases that fragments run in.
//!
//! An adapter gives transactions, and a transaction is made for one [`Access`]: everything it selects, inserts, updates
//! and deletes is of that shard. Above this trait nobody writes a predicate for shards, and below it nobody can be asked
//! without one. An access is made from the context of a request, or by who was given the right to all shards: nobody else
//! can,
//!
//! ```compile_fail,E0603
//! use isles_fragments::adapter::Access;
//! let any = Access::Shard(isles_fragments::shard::Shard::None);
//! ```
//! ```compile_fail,E0603
//! use isles_fragments::adapter::Access;
//! let all = Access::Global;
//! ```
//!
//! and neither can statements be made up for the steps of a migration:
//!
//! ```compile_fail,E0451
//! let step = isles_fragments::adapter::Step { sql: "DROP TABLE notes".into() };
//! ```
//!
//! In reading order:
//!   * [`memory`]    for tests and tools
//!   * `sql`         what the others share: statements, and tables as DDL
//!   * [`sqlite`]    one file
//!   * [`postgres`]  one database
//!   * [`isles`]     a whole Isles database, where the shard is the tenant
//!
//! Invariants:
//!   * a row that a transaction returns belongs to its access; a database that returns another one is not believed
//!   * writers of one shard take turns, those of different shards do not wait for each other (but for SQLite's file)

pub mod isles;
pub mod memory;
pub mod postgres;
pub(crate) mod sql;
pub mod sqlite;

pub use sql::Planted;

use crate::condition::Condition;
use crate::context::GlobalScope;
use crate::error::Result;
use crate::internal;
use crate::query::Direction;
use crate::schema::{Owner, Table};
use crate::shard::Shard;
use crate::values::Values;
use async_trait::async_trait;
use isles_kernel::value::Value;
use std::sync::Arc;

/// Whose rows a transaction sees, and whose it writes. Only this crate makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Those of a shard.
    #[non_exhaustive]
    Shard(Shard),
    /// Sees all, and writes those of a shard: a database that is one shard. Of our own tables it sees the shard's.
    #[non_exhaustive]
    Whole(Shard),
    /// Sees all and writes none; for maintenance.
    #[non_exhaustive]
    Global,
}

impl Access {
    /// The access of a shard, for who may look at all of them.
    pub fn of_shard(_right: &GlobalScope, shard: Shard) -> Access {
        Access::Shard(shard)
    }

    /// What is written belongs to it.
    pub fn owner(&self) -> &Shard {
        match self {
            Access::Shard(shard) | Access::Whole(shard) => shard,
            Access::Global => &Shard::None,
        }
    }

    /// The shard that the rows of a table are filtered by. Each shard has a clock, a log and hooks of its own, those that
    /// it had before the whole database was one shard, too: two logs would be no log.
    pub(crate) fn filter(&self, table: &Table) -> Option<&Shard> {
        match self {
            _ if table.owner == Owner::Database => None,
            Access::Shard(shard) => Some(shard),
            Access::Whole(shard) => internal::is_own(table).then_some(shard),
            Access::Global => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// One snapshot for all of its selects.
    Read,
    Write,
}

/// A row with its hidden columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub id: String,
    pub(crate) internal: i64,
    pub(crate) version: i64,
    pub values: Values,
}

/// Some rows of a table.
#[derive(Debug, Clone)]
pub struct Select {
    pub table: Arc<Table>,
    pub condition: Condition,
    pub order: Vec<(String, Direction)>,
    /// Values of the columns of `order`: only what comes behind them.
    pub after: Option<Vec<Value>>,
    pub limit: usize,
}

/// A shard's clock: the newest entry of its outbox, and the lowest version from which the outbox can be read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Clock {
    pub version: i64,
    pub floor: i64,
    /// The id of the newest entry, and of the one before it.
    pub last: Option<String>,
    pub prev: Option<String>,
}

/// What becomes of a clock when the turn is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tick<'a> {
    /// It stays as it is.
    Hold,
    /// The next version is that of a new entry.
    Next(&'a str),
    /// There is no new entry after all.
    Back,
}

/// One transaction. Dropping it undoes it.
#[async_trait]
pub trait Transaction: Send {
    async fn select(&mut self, select: &Select) -> Result<Vec<Row>>;
    async fn count(&mut self, select: &Select) -> Result<u64>;
    async fn insert(&mut self, table: &Arc<Table>, row: &Row) -> Result<()>;
    /// Sets columns of the row that has this version, and raises the version by one. False if there is none.
    async fn update(&mut self, table: &Arc<Table>, id: &str, version: i64, set: &Values) -> Result<bool>;
    async fn delete(&mut self, table: &Arc<Table>, id: &str, version: i64) -> Result<bool>;
    /// Takes the shard's turn to write, until the transaction ends, and sets its clock.
    async fn tick(&mut self, tick: Tick<'_>) -> Result<Clock>;
    /// The clock as it stands, without taking the turn.
    async fn clock(&mut self) -> Result<Clock>;
    /// Sets the clock's floor.
    async fn set_floor(&mut self, floor: i64) -> Result<()>;
    /// Marks a point that [`Transaction::roll_back_to_mark`] returns to.
    async fn mark(&mut self) -> Result<()>;
    async fn roll_back_to_mark(&mut self) -> Result<()>;
    async fn commit(self: Box<Self>) -> Result<()>;
    /// A last row, and the end of the transaction: for those who can say both at once.
    async fn insert_and_commit(mut self: Box<Self>, table: &Arc<Table>, row: &Row) -> Result<()> {
        self.insert(table, row).await?;
        self.commit().await
    }
    async fn roll_back(self: Box<Self>);
}

/// All that a transaction writes, known before it begins.
#[derive(Debug)]
pub struct Writes {
    /// New rows, in order.
    pub(crate) rows: Vec<(Arc<Table>, Row)>,
    /// The entry that tells of them, without its version and the id of the one before it: the clock has both.
    pub(crate) entry: Option<(Arc<Table>, Row)>,
}

/// A database.
#[async_trait]
pub trait Adapter: Send + Sync + 'static {
    /// For people: `memory`, `sqlite`, `postgresql`, `isles`.
    fn name(&self) -> &'static str;
    async fn begin(&self, access: &Access, mode: Mode) -> Result<Box<dyn Transaction>>;
    /// A whole transaction that has nothing to read: takes the shard's turn, writes, and commits. For those who can say
    /// it at once.
    async fn write(&self, access: &Access, writes: Writes) -> Result<()> {
        write_by_steps(self, access, writes).await
    }
    /// The shards that have rows of a table under a condition, in order of their keys, behind one of them. One that cannot
    /// be asked now is taken for one that has some.
    async fn shards_with(
        &self,
        table: &Arc<Table>,
        condition: &Condition,
        after: Option<&Shard>,
        limit: usize,
    ) -> Result<Vec<Shard>>;
    /// How tables are made here.
    fn tables(&self) -> &dyn Tables;
}

async fn write_by_steps<A: Adapter + ?Sized>(adapter: &A, access: &Access, writes: Writes) -> Result<()> {
    let mut tx = adapter.begin(access, Mode::Write).await?;
    let tick = writes.entry.as_ref().map_or(Tick::Hold, |(_, entry)| Tick::Next(&entry.id));
    let clock = tx.tick(tick).await?;
    for (table, row) in &writes.rows {
        if let Err(error) = tx.insert(table, row).await {
            tx.roll_back().await;
            return Err(error);
        }
    }
    match writes.entry {
        Some((table, mut entry)) => {
            entry.values = entry.values.set("version", clock.version).set("prev", clock.prev);
            tx.insert_and_commit(&table, &entry).await
        }
        None => tx.commit().await,
    }
}

/// Statements that make or change a table, all of them or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub(crate) sql: String,
}

impl Step {
    pub(crate) fn new(sql: impl Into<String>) -> Step {
        Step { sql: sql.into() }
    }

    /// Statements, each with a semicolon behind it.
    pub fn sql(&self) -> &str {
        &self.sql
    }
}

/// What is noted with a step: a setting goes from one value to the next. Whoever comes with an old value has been
/// overtaken, and does nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    pub(crate) key: String,
    pub(crate) from: Option<String>,
    pub(crate) to: String,
}

/// Makes tables.
#[async_trait]
pub trait Tables: Send + Sync {
    fn create(&self, table: &Table, siblings: &Siblings) -> Vec<Step>;
    /// Adds columns and indexes to a table that had `before`.
    fn alter(&self, before: &Table, after: &Table, siblings: &Siblings) -> Vec<Step>;
    /// What remains to be done so that tables that were made before there were shards have their hidden columns and keys.
    /// It is found by looking, so that it can be asked for again after any step.
    async fn shard(&self, tables: &Siblings) -> Result<Vec<Step>>;
    /// Runs a step and keeps a note of it among the settings, in one transaction; false, and nothing was done, if the
    /// setting is not what the note begins with. Two who come at once follow each other.
    async fn run(&self, step: &Step, note: Option<&Note>) -> Result<bool>;
    /// Tells what a table is from now on; those that read statements know it by itself.
    async fn define(&self, _table: &Arc<Table>) -> Result<()> {
        Ok(())
    }
    /// Whether a table is there.
    async fn exists(&self, table: &Table) -> Result<bool>;
    /// Gives rows that have no shard their shard, in all these tables together; how many there were. Tables that others
    /// refer to come first.
    async fn assign(&self, tables: &[Arc<Table>], by: &Assign) -> Result<u64>;
}

/// The tables of a schema, by their names.
pub type Siblings = std::collections::BTreeMap<String, Arc<Table>>;

/// Which shard rows of the shard without a name get.
#[derive(Debug, Clone)]
pub enum Assign {
    /// All of them this one.
    To(Shard),
    /// Each the one that a text column of its table names; null and empty stay where they are.
    Column(String),
}
