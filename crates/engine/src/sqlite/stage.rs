//! A stage: a database in memory where rows of several shards meet, and what a query needs beyond one shard is done.
//!
//!     new → create and insert, for each input → run → dropped
//!
//! It has the functions and collations of a shard, so what runs here means what it means there. All of this blocks, and
//! belongs on the pool.
//!
//! A stage is bounded by the limits it is given: time and cancellation by the same watch as a shard's statements, rows
//! and bytes of its inputs together and of its result.

use super::raw::Db;
use super::{ddl, value};
use crate::env::Env;
use crate::error::{Result, ShardError};
use crate::shard::{ActsFor, Limits, Outcome, Row, Statement};
use isles_kernel::value::{DataType, Value};
use isles_sql::print::staged_column;
use isles_sql::system::SystemFunctions;
use std::sync::Arc;

pub struct Stage {
    db: Db,
    limits: Limits,
    /// Rows and bytes of the inputs so far.
    rows: usize,
    bytes: usize,
}

impl Stage {
    /// An empty stage. Its time begins now.
    pub fn new(env: Arc<dyn Env>, limits: Limits) -> Result<Stage> {
        super::init();
        let deadline = env.elapsed().saturating_add(limits.time);
        let mut db = Db::open_in_memory(env)?;
        db.set_watch(deadline, Some(limits.cancel.clone()));
        db.own("BEGIN", &[], &[])?;
        Ok(Stage { db, limits, rows: 0, bytes: 0 })
    }

    /// Gives it the functions that need the schema (`pg_get_indexdef`, `'t'::regclass`, …).
    pub fn know(&mut self, system: Arc<dyn SystemFunctions>) {
        self.db.know(system);
    }

    /// Makes a table. Its columns are named by their positions (see [`staged_column`]): those of a join may have one
    /// name twice.
    pub fn create(&mut self, name: &str, columns: &[(String, DataType)]) -> Result<()> {
        let column =
            |(at, (_, ty)): (usize, &(String, DataType))| format!("{} {}", staged_column(at), value::declared(*ty));
        let mut columns: Vec<String> = columns.iter().enumerate().map(column).collect();
        if columns.is_empty() {
            // SQLite has no table without columns; a relation of none still has rows.
            columns.push("nothing ANY".into());
        }
        let sql = format!("CREATE TABLE {} ({}) STRICT", ddl::quoted(name), columns.join(", "));
        self.db.own_text(&sql, &[], &[]).map(drop)
    }

    /// Adds rows to a table.
    pub fn insert(&mut self, name: &str, rows: Vec<Row>) -> Result<()> {
        let Some(first) = rows.first() else { return Ok(()) };
        let places: Vec<String> = (1..=first.len()).map(|at| format!("${at}")).collect();
        let places = if places.is_empty() { "NULL".to_string() } else { places.join(", ") };
        let sql: Arc<str> = format!("INSERT INTO {} VALUES ({places})", ddl::quoted(name)).into();
        for row in rows {
            self.count(&row)?;
            self.db.run(&Statement::new(sql.clone(), row), &self.limits, &ActsFor::Nobody)?;
        }
        Ok(())
    }

    fn count(&mut self, row: &Row) -> Result<()> {
        self.rows += 1;
        self.bytes += row.iter().map(Value::weight).sum::<usize>();
        if self.rows > self.limits.rows {
            return Err(ShardError::Limit { what: "the number of rows", limit: self.limits.rows as u64 });
        }
        if self.bytes > self.limits.bytes {
            return Err(ShardError::Limit { what: "the size of the rows", limit: self.limits.bytes as u64 });
        }
        Ok(())
    }

    /// Runs a printed query over the tables.
    pub fn run(&mut self, statement: &Statement) -> Result<Outcome> {
        self.db.run(statement, &self.limits, &ActsFor::Nobody)
    }
}
