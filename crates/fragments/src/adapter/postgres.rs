//! One PostgreSQL database.
//!
//! A transaction borrows a connection; one that was not ended is closed rather than given back. Every transaction says
//! its shard to row level security (until its end, so that nothing stays on the connection). Reads are repeatable and
//! read only. Writes are read committed: whoever writes to a shard holds its clock, so that writers of a shard follow
//! each other, each with a fresh look at what the one before has done.
//!
//! What is known together is sent together, and answered together. What begins a transaction goes with its first
//! statement, the last row with the COMMIT, and a unit of work that has nothing to read is one exchange altogether, whose
//! end commits it:
//!
//! ```text
//! clock and entry · row · row · …  ──►  committed, or refused
//! ```

use super::sql::ddl::{self, Lacking, SETTING};
use super::sql::transaction::{Link, SqlTransaction};
use super::sql::{Dialect, Planted, Print, Statement, quoted};
use super::sqlite::{assign_sql, shard_of_key};
use super::{Access, Adapter, Assign, Mode, Note, Siblings, Step, Tables, Transaction, Writes};
use crate::condition::Condition;
use crate::error::{Error, Result};
use crate::schema::{Owner, Table};
use crate::shard::Shard;
use async_trait::async_trait;
use isles_engine::error::ShardError;
use isles_engine::postgres::wire::{Ends, Line, Part, Told};
use isles_kernel::error::SqlError;
use isles_kernel::value::{DataType, Value};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::Config;
use tokio_postgres::config::TargetSessionAttrs;

/// Connections of one adapter: PostgreSQL has 100 by default, and others want some.
const CONNECTIONS: usize = 40;
/// Names the lock that keeps two processes from migrating at once.
const MIGRATION_LOCK: i64 = 0x6973_6c65_7366;
/// What a unit of work in one exchange goes by; the others say it themselves. A server whose default is stricter refuses
/// whoever has waited for a clock.
const SESSION: &str = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED";
/// Says a transaction's shard, until it ends; the first parameter names the setting.
const SAY: &str = "SELECT set_config($1, $2, true)";
const COMMIT: &str = "COMMIT";

/// A PostgreSQL database as a database for fragments.
pub struct Postgres {
    config: Arc<Config>,
    idle: Arc<Mutex<Vec<Line>>>,
    room: Arc<Semaphore>,
    planted: Option<Planted>,
}

fn failed(error: ShardError) -> Error {
    error.for_people().into()
}

impl Postgres {
    /// A database by its URL. Connections are made when they are needed.
    pub fn new(url: &str) -> Result<Postgres> {
        Postgres::planted(url, None)
    }

    /// The same, with a bug.
    pub fn planted(url: &str, planted: Option<Planted>) -> Result<Postgres> {
        // It may hold a password, so nothing of it goes into the error.
        let wrong = |why: &str| Error::Database(SqlError::new("22023", why));
        let config: Config = url.parse().map_err(|_| wrong("the URL is not that of a PostgreSQL database"))?;
        if config.get_target_session_attrs() != TargetSessionAttrs::Any {
            return Err(wrong("target_session_attrs is not supported: name the server that takes writes"));
        }
        let config = Arc::new(config);
        Ok(Postgres { config, idle: Arc::default(), room: Arc::new(Semaphore::new(CONNECTIONS)), planted })
    }

    async fn connect(&self) -> Result<Line> {
        let line = Line::connect(self.config.clone()).await.map_err(failed)?;
        line.batch(SESSION).await.map_err(failed)?;
        Ok(line)
    }

    async fn link(&self) -> Result<PostgresLink> {
        let permit = self.room.clone().acquire_owned().await;
        let permit = permit.map_err(|_| Error::Database(SqlError::new("57P01", "the database is closed")))?;
        let free = || self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let line = loop {
            match free() {
                Some(line) if !line.is_alive() => continue,
                Some(line) => break line,
                None => break self.connect().await?,
            }
        };
        Ok(PostgresLink { line, state: State::Open, idle: self.idle.clone(), loose: None, _permit: permit })
    }

    /// Runs texts in one transaction that sees all shards.
    async fn maintain(&self, texts: &[String]) -> Result<u64> {
        let mut link = self.link().await?;
        link.line
            .batch(&format!("BEGIN; SET LOCAL {SETTING} = '*'; SET CONSTRAINTS ALL DEFERRED"))
            .await
            .map_err(failed)?;
        let mut count = 0;
        for text in texts {
            count += link.tell(Part::text(text)).await?.touched;
        }
        Box::new(link).commit().await?;
        Ok(count)
    }

    /// Names that a query has for the table of another name.
    async fn names(&self, sql: &str, table: &str) -> Result<Vec<String>> {
        let mut link = self.link().await?;
        let params = [Value::text(table)];
        let part = Part { sql, params: &params, types: &[DataType::Text], columns: &[DataType::Text] };
        let rows = link.tell(part).await?.rows;
        link.give_back();
        let text = |row: Vec<Value>| match row.into_iter().next() {
            Some(Value::Text(name)) => Some(name),
            _ => None,
        };
        Ok(rows.into_iter().filter_map(text).collect())
    }
}

/// What begins a transaction: its kind, and what it says to row level security.
struct Begin {
    kind: &'static str,
    said: [Value; 2],
}

impl Begin {
    fn new(access: &Access, mode: Mode) -> Begin {
        let kind = match mode {
            Mode::Read => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            Mode::Write => "BEGIN ISOLATION LEVEL READ COMMITTED",
        };
        Begin { kind, said: [Value::text(SETTING), Value::Text(said(access))] }
    }

    fn parts(&self) -> [Part<'_>; 2] {
        let types = &[DataType::Text, DataType::Text];
        [Part::text(self.kind), Part { sql: SAY, params: &self.said, types, columns: &[] }]
    }
}

/// How far a transaction is.
enum State {
    /// It begins with its first statement.
    Ready(Begin),
    /// It is open, or there is none: each text stands for itself.
    Open,
    /// It could not be begun. Nothing may be run as if it had been.
    Failed,
}

struct PostgresLink {
    line: Line,
    state: State,
    idle: Arc<Mutex<Vec<Line>>>,
    /// Another connection, for a planted bug.
    loose: Option<Line>,
    _permit: OwnedSemaphorePermit,
}

fn part(statement: &Statement) -> Part<'_> {
    Part { sql: &statement.sql, params: &statement.params, types: &statement.types, columns: &statement.columns }
}

impl PostgresLink {
    fn give_back(self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.line);
    }

    /// What goes in front of the first statement.
    fn begin(&mut self) -> Result<Option<Begin>> {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Ready(begin) => Ok(Some(begin)),
            State::Open => {
                self.state = State::Open;
                Ok(None)
            }
            State::Failed => Err(Error::Database(SqlError::new("25P02", "the transaction was not begun"))),
        }
    }

    /// Runs a statement, behind what begins the transaction.
    async fn tell(&mut self, part: Part<'_>) -> Result<Told> {
        let told = match self.begin()? {
            Some(begin) => {
                let [kind, say] = begin.parts();
                self.line.run(&[kind, say, part], Ends::Nothing).await
            }
            None => self.line.run(&[part], Ends::Nothing).await,
        };
        let last = told.map_err(failed)?.pop().unwrap_or_default();
        self.state = State::Open;
        Ok(last)
    }

    /// Runs statements, and commits.
    async fn end(mut self, parts: &[Part<'_>]) -> Result<()> {
        let begin = self.begin()?;
        let begin = begin.as_ref().map(Begin::parts);
        let parts = [begin.as_ref().map_or(&[][..], |begin| begin), parts, &[Part::text(COMMIT)]].concat();
        self.line.run(&parts, Ends::Transaction).await.map_err(failed)?;
        self.give_back();
        Ok(())
    }
}

#[async_trait]
impl Link for PostgresLink {
    async fn query(&mut self, statement: &Statement) -> Result<Vec<Vec<Value>>> {
        Ok(self.tell(part(statement)).await?.rows)
    }

    async fn execute(&mut self, statement: &Statement) -> Result<u64> {
        Ok(self.tell(part(statement)).await?.touched)
    }

    async fn command(&mut self, sql: &str) -> Result<()> {
        self.tell(Part::text(sql)).await.map(|_| ())
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        // One that was never begun has nothing to commit.
        match self.state {
            State::Ready(_) => {
                self.give_back();
                Ok(())
            }
            State::Open | State::Failed => self.end(&[]).await,
        }
    }

    async fn execute_and_commit(self: Box<Self>, statement: &Statement) -> Result<()> {
        self.end(&[part(statement)]).await
    }

    async fn roll_back(mut self: Box<Self>) {
        let begun = !matches!(self.state, State::Ready(_));
        self.state = State::Open;
        // One that cannot be undone is closed, which undoes it.
        if !begun || self.command("ROLLBACK").await.is_ok() {
            self.give_back();
        }
    }

    async fn loose_tick(&mut self, statement: &Statement) -> Result<Option<Vec<Vec<Value>>>> {
        let Some(loose) = &self.loose else { return Ok(None) };
        let told = loose.run(&[part(statement)], Ends::Transaction).await.map_err(failed)?;
        Ok(told.into_iter().next().map(|told| told.rows))
    }
}

/// What row level security is told; see [`ddl`].
fn said(access: &Access) -> String {
    match access {
        Access::Shard(shard) => format!("={}", shard.key()),
        Access::Whole(_) | Access::Global => "*".into(),
    }
}

#[async_trait]
impl Adapter for Postgres {
    fn name(&self) -> &'static str {
        "postgresql"
    }

    async fn begin(&self, access: &Access, mode: Mode) -> Result<Box<dyn Transaction>> {
        let mut link = self.link().await?;
        link.state = State::Ready(Begin::new(access, mode));
        if self.planted == Some(Planted::LooseClock) && mode == Mode::Write {
            let loose = self.connect().await?;
            loose.batch(&format!("SET {SETTING} = '*'")).await.map_err(failed)?;
            link.loose = Some(loose);
        }
        let (link, dialect) = (Box::new(link), Dialect::Postgres);
        Ok(Box::new(SqlTransaction { link, dialect, access: access.clone(), planted: self.planted }))
    }

    async fn write(&self, access: &Access, writes: Writes) -> Result<()> {
        if self.planted.is_some() {
            return super::write_by_steps(self, access, writes).await;
        }
        let print = Print { dialect: Dialect::Postgres, access, planted: None };
        let entry = writes.entry.as_ref().map(|(table, row)| (&**table, row));
        let mut statements = Vec::with_capacity(writes.rows.len() + 1);
        statements.push(print.open_turn(&said(access), entry));
        for (table, row) in &writes.rows {
            statements.push(print.insert(table, row)?);
        }
        let parts: Vec<Part<'_>> = statements.iter().map(part).collect();
        let link = self.link().await?;
        let written = link.line.run(&parts, Ends::Transaction).await;
        // Whatever has come of it, the exchange has ended it.
        if !link.line.is_closed() {
            link.give_back();
        }
        written.map(|_| ()).map_err(failed)
    }

    async fn shards_with(
        &self,
        table: &Arc<Table>,
        condition: &Condition,
        after: Option<&Shard>,
        limit: usize,
    ) -> Result<Vec<Shard>> {
        let print = Print { dialect: Dialect::Postgres, access: &Access::Global, planted: None };
        let statement = print.shards_with(table, condition, after, limit)?;
        let mut link = self.link().await?;
        link.state = State::Ready(Begin::new(&Access::Global, Mode::Read));
        let rows = link.query(&statement).await?;
        Box::new(link).commit().await?;
        rows.into_iter().map(|row| shard_of_key(row.into_iter().next())).collect()
    }

    fn tables(&self) -> &dyn Tables {
        self
    }
}

impl Postgres {
    /// What a table that was made before there were shards lacks; none if there is no such table.
    async fn lacking(&self, table: &Table) -> Result<Option<Lacking>> {
        let name = &quoted(&table.physical);
        let columns = "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 \
                       AND NOT attisdropped";
        let columns = self.names(columns, name).await?;
        if columns.is_empty() {
            return Ok(None);
        }
        // Keys, references and indexes whose first column is not the shard's.
        let references = "SELECT format('ALTER TABLE %s DROP CONSTRAINT %I;', conrelid::regclass, conname) \
            FROM pg_constraint WHERE conrelid = to_regclass($1) AND contype = 'f' AND NOT EXISTS (SELECT 1 FROM \
            pg_attribute a WHERE a.attrelid = conrelid AND a.attnum = conkey[1] AND a.attname = '_shardKey')";
        let constraints = "SELECT format('ALTER TABLE %s DROP CONSTRAINT %I;', conrelid::regclass, conname) \
            FROM pg_constraint WHERE conrelid = to_regclass($1) AND contype IN ('p', 'u') AND NOT EXISTS (SELECT 1 FROM \
            pg_attribute a WHERE a.attrelid = conrelid AND a.attnum = conkey[1] AND a.attname = '_shardKey')";
        let indexes = "SELECT format('DROP INDEX %s;', indexrelid::regclass) FROM pg_index i \
            WHERE indrelid = to_regclass($1) AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = indexrelid \
            AND contype IN ('p', 'u')) AND NOT EXISTS (SELECT 1 FROM pg_attribute a \
            WHERE a.attrelid = i.indrelid AND a.attnum = i.indkey[0] AND a.attname = '_shardKey')";
        let old_references = self.names(references, name).await?;
        let mut old_keys = self.names(constraints, name).await?;
        old_keys.extend(self.names(indexes, name).await?);
        let there = "SELECT conname::text FROM pg_constraint WHERE conrelid = to_regclass($1) AND contype = 'f'";
        let there = self.names(there, name).await?;
        let kept = |column: &str| {
            let own = ddl::reference_name(table, column);
            there.contains(&own) && !old_references.iter().any(|sql| sql.contains(&own))
        };
        let wanted = table.columns.iter().filter(|column| column.reference.is_some() && !kept(&column.name));
        let references: Vec<String> = wanted.map(|column| column.name.clone()).collect();
        let fenced = "SELECT relname::text FROM pg_class WHERE oid = to_regclass($1) AND relforcerowsecurity";
        let policy = self.names(fenced, name).await?.is_empty();
        let columns = !columns.iter().any(|column| column == "_shardKey");
        let there =
            "SELECT relname::text FROM pg_index JOIN pg_class ON oid = indexrelid WHERE indrelid = to_regclass($1)";
        let there = self.names(there, name).await?;
        let own = ["primary", "internal"].into_iter().chain(table.indexes.iter().map(|index| index.name.as_str()));
        let indexes = own.map(|index| ddl::index_name(table, index)).any(|index| !there.contains(&index));
        let old = !old_references.is_empty() || !old_keys.is_empty();
        let lacks = columns || old || indexes || policy || !references.is_empty();
        Ok(lacks.then_some(Lacking { columns, old_references, old_keys, indexes, references, policy }))
    }
}

#[async_trait]
impl Tables for Postgres {
    fn create(&self, table: &Table, siblings: &Siblings) -> Vec<Step> {
        ddl::create(Dialect::Postgres, table, siblings)
    }

    fn alter(&self, before: &Table, after: &Table, siblings: &Siblings) -> Vec<Step> {
        ddl::alter(Dialect::Postgres, before, after, siblings)
    }

    async fn shard(&self, tables: &Siblings) -> Result<Vec<Step>> {
        let mut lacking = Vec::new();
        for (name, table) in tables.iter().filter(|(_, table)| table.owner == Owner::Shards) {
            if let Some(lack) = self.lacking(table).await? {
                lacking.push((name.clone(), lack));
            }
        }
        Ok(ddl::shard_postgres(tables, &lacking))
    }

    async fn run(&self, step: &Step, note: Option<&Note>) -> Result<bool> {
        let mut link = self.link().await?;
        let begin = format!("BEGIN; SET LOCAL {SETTING} = '*'; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})");
        link.line.batch(&begin).await.map_err(failed)?;
        if let Some(note) = note
            && link.tell(Part::text(&ddl::note(Dialect::Postgres, note))).await?.touched == 0
        {
            Box::new(link).roll_back().await;
            return Ok(false);
        }
        link.line.batch(&step.sql).await.map_err(failed)?;
        Box::new(link).commit().await.map(|()| true)
    }

    async fn exists(&self, table: &Table) -> Result<bool> {
        let sql = "SELECT relname::text FROM pg_class WHERE oid = to_regclass($1)";
        Ok(!self.names(sql, &quoted(&table.physical)).await?.is_empty())
    }

    async fn assign(&self, tables: &[Arc<Table>], by: &Assign) -> Result<u64> {
        let texts = tables.iter().map(|table| assign_sql(table, by)).collect::<Result<Vec<_>>>()?;
        self.maintain(&texts).await
    }
}
