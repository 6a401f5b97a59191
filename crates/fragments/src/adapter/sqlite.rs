//! One SQLite file.
//!
//! Each connection has a thread of its own, since SQLite blocks. One connection writes; SQLite has one writer at a time
//! anyway, and other processes are waited for. Some read. A transaction borrows its connection, and gives it back when it
//! is committed, undone or dropped.

use super::sql::transaction::{Link, SqlTransaction};
use super::sql::{Dialect, Planted, Print, Statement, ddl};
use super::{Access, Adapter, Assign, Mode, Note, Siblings, Step, Tables, Transaction};
use crate::condition::Condition;
use crate::error::{Error, Result, Rule};
use crate::schema::{Owner, Table};
use crate::shard::Shard;
use async_trait::async_trait;
use isles_kernel::error::SqlError;
use isles_kernel::value::{DataType, Numeric, Value};
use rusqlite::types::{Value as Stored, ValueRef};
use rusqlite::{Connection, TransactionBehavior};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Connections that read at the same time: what a small machine's disk and cores serve.
const READERS: usize = 4;
/// How long another process that writes is waited for.
const BUSY_MS: u32 = 5_000;

type Job = Box<dyn FnOnce(rusqlite::Result<&mut Connection>) -> After + Send>;

/// What becomes of a connection after a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    Keep,
    /// What it believes of its file may not be so: another one looks anew.
    Replace,
}

/// A connection and its thread.
#[derive(Clone)]
struct Worker(std::sync::mpsc::Sender<Job>);

impl Worker {
    fn start(path: PathBuf, foreign_keys: bool) -> Result<Worker> {
        let (jobs, inbox) = std::sync::mpsc::channel::<Job>();
        let mut connection = open(&path, foreign_keys).map_err(|error| failed(&error))?;
        let run = move || {
            let mut after = After::Keep;
            while let Ok(job) = inbox.recv() {
                let ready = match after {
                    After::Keep => Ok(&mut connection),
                    After::Replace => open(&path, foreign_keys).map(|new| {
                        connection = new;
                        &mut connection
                    }),
                };
                let is_ready = ready.is_ok();
                let said = job(ready);
                after = if is_ready { said } else { After::Replace };
            }
        };
        std::thread::Builder::new()
            .name("fragment-sqlite".into())
            .spawn(run)
            .map_err(|error| Error::Database(SqlError::new("58030", format!("cannot start a thread: {error}"))))?;
        Ok(Worker(jobs))
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_to(work, failed, |_| After::Keep).await
    }

    /// The same, for those who tell errors apart by themselves.
    async fn run_to<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
        told: fn(&rusqlite::Error) -> Error,
        after: fn(&rusqlite::Error) -> After,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            let done = connection.and_then(work);
            let next = done.as_ref().err().map_or(After::Keep, after);
            // Nobody waits any more if this fails.
            let _ = reply.send(done.map_err(|error| told(&error)));
            next
        });
        let gone = || Error::Database(SqlError::new("58030", "the connection's thread is gone"));
        self.0.send(job).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn open(path: &Path, foreign_keys: bool) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_millis(BUSY_MS.into()))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // An answer is given after its commit is on the disk.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", foreign_keys)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(connection)
}

/// What an error of SQLite means.
fn failed(error: &rusqlite::Error) -> Error {
    use rusqlite::ffi;
    let rusqlite::Error::SqliteFailure(failure, message) = error else {
        return Error::Database(SqlError::new("XX000", error.to_string()));
    };
    match (failure.code, failure.extended_code) {
        (rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked, _) => {
            Error::Conflict("another process writes".into())
        }
        (_, ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY) => Error::broken(Rule::Unique),
        (_, ffi::SQLITE_CONSTRAINT_FOREIGNKEY) => Error::broken(Rule::Reference),
        (_, ffi::SQLITE_CONSTRAINT_NOTNULL) => Error::broken(Rule::NotNull),
        (rusqlite::ErrorCode::ConstraintViolation, _) => Error::broken(Rule::Check),
        (rusqlite::ErrorCode::DiskFull, _) => Error::Database(SqlError::new("53100", error.to_string())),
        _ => Error::Database(SqlError::new("XX000", message.clone().unwrap_or_else(|| error.to_string()))),
    }
}

/// Whether the file could not be read or written, so that nobody knows how much of a commit is in it.
fn is_torn(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase, SystemIoFailure};
    matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase | SystemIoFailure))
}

/// What an error of a commit means (I-3): its pages may have come to the disk, and be found there by the next one.
fn commit_failed(error: &rusqlite::Error) -> Error {
    if is_torn(error) { Error::MayHaveHappened(error.to_string()) } else { failed(error) }
}

/// After such an error the connection goes on with nothing (I-5).
fn after_commit(error: &rusqlite::Error) -> After {
    if is_torn(error) { After::Replace } else { After::Keep }
}

/// A SQLite file as a database for fragments.
pub struct Sqlite {
    path: PathBuf,
    writer: Worker,
    /// One permit.
    writing: Arc<Semaphore>,
    readers: Arc<std::sync::Mutex<Vec<Worker>>>,
    reading: Arc<Semaphore>,
    planted: Option<Planted>,
}

impl Sqlite {
    /// Opens a file, making it if there is none.
    pub fn open(path: impl Into<PathBuf>) -> Result<Sqlite> {
        Sqlite::open_planted(path, None)
    }

    /// The same, with a bug.
    pub fn open_planted(path: impl Into<PathBuf>, planted: Option<Planted>) -> Result<Sqlite> {
        let path = path.into();
        let writer = Worker::start(path.clone(), true)?;
        let readers = (0..READERS).map(|_| Worker::start(path.clone(), true)).collect::<Result<Vec<_>>>()?;
        Ok(Sqlite {
            path,
            writer,
            writing: Arc::new(Semaphore::new(1)),
            readers: Arc::new(std::sync::Mutex::new(readers)),
            reading: Arc::new(Semaphore::new(READERS)),
            planted,
        })
    }

    /// Runs work as the writer.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let _turn = self.writing.acquire().await.map_err(|_| closed())?;
        self.writer.run(work).await
    }

    /// A connection with a transaction.
    async fn link(&self, mode: Mode) -> Result<Box<SqliteLink>> {
        let (worker, lent, begin) = match mode {
            Mode::Write => {
                let permit = self.writing.clone().acquire_owned().await.map_err(|_| closed())?;
                (self.writer.clone(), Lent { worker: None, _permit: permit }, "BEGIN IMMEDIATE")
            }
            Mode::Read => {
                let permit = self.reading.clone().acquire_owned().await.map_err(|_| closed())?;
                let free = self.readers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
                let worker = free.ok_or_else(closed)?;
                let lent = Lent { worker: Some((worker.clone(), self.readers.clone())), _permit: permit };
                (worker, lent, "BEGIN")
            }
        };
        // Dropped while it begins, it is undone behind the begin.
        let mut link = SqliteLink { worker, lent: Some(lent), open: true };
        link.command(begin).await?;
        Ok(Box::new(link))
    }
}

fn closed() -> Error {
    Error::Database(SqlError::new("57P01", "the database is closed"))
}

fn stored(value: &Value) -> Stored {
    match value {
        Value::Bool(b) => Stored::Integer(i64::from(*b)),
        Value::Int(n) | Value::TimestampTz(n) => Stored::Integer(*n),
        Value::Date(days) => Stored::Integer(i64::from(*days)),
        Value::Text(text) | Value::Json(text) => Stored::Text(text.clone()),
        Value::Numeric(number) => Stored::Text(number.to_string()),
        Value::Bytes(bytes) => Stored::Blob(bytes.clone()),
        _ => Stored::Null,
    }
}

fn read(value: ValueRef<'_>, ty: DataType) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match (value, ty) {
        (ValueRef::Integer(n), DataType::Bool) => Value::Bool(n != 0),
        (ValueRef::Integer(n), DataType::TimestampTz) => Value::TimestampTz(n),
        (ValueRef::Integer(n), DataType::Date) => Value::Date(i32::try_from(n).unwrap_or_default()),
        (ValueRef::Integer(n), _) => Value::Int(n),
        (ValueRef::Text(bytes), DataType::Json) => Value::Json(text(bytes)),
        (ValueRef::Text(bytes), DataType::Numeric) => Numeric::parse(&text(bytes)).map_or(Value::Null, Value::Numeric),
        (ValueRef::Text(bytes), _) => Value::Text(text(bytes)),
        (ValueRef::Blob(bytes), _) => Value::Bytes(bytes.to_vec()),
        _ => Value::Null,
    }
}

fn query(connection: &Connection, statement: &Statement) -> rusqlite::Result<Vec<Vec<Value>>> {
    let mut prepared = connection.prepare(&statement.sql)?;
    let params = rusqlite::params_from_iter(statement.params.iter().map(stored));
    let mut rows = prepared.query(params)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let values = statement.columns.iter().enumerate().map(|(n, ty)| Ok(read(row.get_ref(n)?, *ty)));
        found.push(values.collect::<rusqlite::Result<Vec<Value>>>()?);
    }
    Ok(found)
}

/// A connection that has a transaction open.
struct SqliteLink {
    worker: Worker,
    /// Given back when the transaction has ended.
    lent: Option<Lent>,
    open: bool,
}

struct Lent {
    worker: Option<(Worker, Arc<std::sync::Mutex<Vec<Worker>>>)>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some((worker, readers)) = self.worker.take() {
            readers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(worker);
        }
    }
}

impl Drop for SqliteLink {
    fn drop(&mut self) {
        if self.open {
            // The permit goes with the job: nobody begins before the transaction has ended.
            let lent = self.lent.take();
            let job: Job = Box::new(move |connection| {
                // One that was replaced has none.
                if let Ok(connection) = connection
                    && !connection.is_autocommit()
                    && let Err(error) = connection.execute_batch("ROLLBACK")
                {
                    tracing::error!(%error, "a transaction was not undone");
                }
                drop(lent);
                After::Keep
            });
            // A thread that is gone has undone it.
            let _ = self.worker.0.send(job);
        }
    }
}

#[async_trait]
impl Link for SqliteLink {
    async fn query(&mut self, statement: &Statement) -> Result<Vec<Vec<Value>>> {
        let statement = statement.clone();
        self.worker.run(move |connection| query(connection, &statement)).await
    }

    async fn execute(&mut self, statement: &Statement) -> Result<u64> {
        let statement = statement.clone();
        let execute = move |connection: &mut Connection| {
            let mut prepared = connection.prepare(&statement.sql)?;
            prepared.execute(rusqlite::params_from_iter(statement.params.iter().map(stored)))
        };
        Ok(self.worker.run(execute).await? as u64)
    }

    async fn command(&mut self, sql: &str) -> Result<()> {
        let sql = sql.to_string();
        self.worker.run(move |connection| connection.execute_batch(&sql)).await
    }

    async fn commit(mut self: Box<Self>) -> Result<()> {
        self.worker.run_to(|connection| connection.execute_batch("COMMIT"), commit_failed, after_commit).await?;
        self.open = false;
        Ok(())
    }

    async fn roll_back(mut self: Box<Self>) {
        if self.worker.run(|connection| connection.execute_batch("ROLLBACK")).await.is_ok() {
            self.open = false;
        }
    }
}

#[async_trait]
impl Adapter for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    async fn begin(&self, access: &Access, mode: Mode) -> Result<Box<dyn Transaction>> {
        let link = self.link(mode).await?;
        Ok(Box::new(SqlTransaction { link, dialect: Dialect::Sqlite, access: access.clone(), planted: self.planted }))
    }

    async fn shards_with(
        &self,
        table: &Arc<Table>,
        condition: &Condition,
        after: Option<&Shard>,
        limit: usize,
    ) -> Result<Vec<Shard>> {
        let print = Print { dialect: Dialect::Sqlite, access: &Access::Global, planted: None };
        let statement = print.shards_with(table, condition, after, limit)?;
        let mut link = self.link(Mode::Read).await?;
        let rows = link.query(&statement).await?;
        link.commit().await?;
        rows.into_iter().map(|row| shard_of_key(row.into_iter().next())).collect()
    }

    fn tables(&self) -> &dyn Tables {
        self
    }
}

pub(crate) fn shard_of_key(value: Option<Value>) -> Result<Shard> {
    match value {
        Some(Value::Text(key)) => Shard::of_key(&key),
        _ => Ok(Shard::None),
    }
}

pub(crate) fn shard_of(value: Option<Value>) -> Result<Shard> {
    match value {
        Some(Value::Text(name)) => Shard::of_column(Some(name)),
        _ => Ok(Shard::None),
    }
}

/// Gives rows of the shard without a name their shard, by SQL.
pub(crate) fn assign_sql(table: &Table, by: &Assign) -> Result<String> {
    let name = super::sql::quoted(&table.physical);
    Ok(match by {
        Assign::To(shard) => {
            let shard = shard.name().map_or_else(|| "NULL".into(), |name| format!("'{}'", name.replace('\'', "''")));
            format!("UPDATE {name} SET \"_shard\" = {shard} WHERE \"_shard\" IS NULL")
        }
        Assign::Column(column) => {
            let column = super::sql::quoted(&table.column(column)?.name);
            format!(
                "UPDATE {name} SET \"_shard\" = {column} WHERE \"_shard\" IS NULL AND length({column}) BETWEEN 1 AND 64"
            )
        }
    })
}

#[async_trait]
impl Tables for Sqlite {
    fn create(&self, table: &Table, siblings: &Siblings) -> Vec<Step> {
        ddl::create(Dialect::Sqlite, table, siblings)
    }

    fn alter(&self, before: &Table, after: &Table, siblings: &Siblings) -> Vec<Step> {
        ddl::alter(Dialect::Sqlite, before, after, siblings)
    }

    async fn shard(&self, tables: &Siblings) -> Result<Vec<Step>> {
        let mut steps = Vec::new();
        for table in tables.values().filter(|table| table.owner == Owner::Shards) {
            let name = table.physical.clone();
            let columns = self.write(move |connection| {
                let mut statement = connection.prepare("SELECT name FROM pragma_table_xinfo(?1)")?;
                let names = statement.query_map([&name], |row| row.get::<_, String>(0))?;
                names.collect::<rusqlite::Result<Vec<String>>>()
            });
            let columns = columns.await?;
            if !columns.is_empty() && !columns.iter().any(|name| name == "_shard") {
                steps.push(ddl::rebuild(table, table, tables));
            }
        }
        Ok(steps)
    }

    async fn run(&self, step: &Step, note: Option<&Note>) -> Result<bool> {
        let _turn = self.writing.acquire().await.map_err(|_| closed())?;
        let (sql, note) = (step.sql.clone(), note.map(|note| ddl::note(Dialect::Sqlite, note)));
        // A table that is made anew is missing for a moment, and references to it are.
        let worker = Worker::start(self.path.clone(), false)?;
        worker
            .run(move |connection| {
                // Dropping it undoes it.
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                if let Some(note) = note
                    && transaction.execute(&note, [])? == 0
                {
                    return Ok(false);
                }
                transaction.execute_batch(&sql)?;
                transaction.commit().map(|()| true)
            })
            .await
    }

    async fn exists(&self, table: &Table) -> Result<bool> {
        let name = table.physical.clone();
        let there = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?1";
        Ok(self.write(move |c| c.query_row(there, [name], |row| row.get::<_, i64>(0))).await? > 0)
    }

    async fn assign(&self, tables: &[Arc<Table>], by: &Assign) -> Result<u64> {
        let texts = tables.iter().map(|table| assign_sql(table, by)).collect::<Result<Vec<_>>>()?;
        self.write(move |connection| {
            let transaction = connection.transaction()?;
            // A row and those that refer to it go one after the other.
            transaction.execute_batch("PRAGMA defer_foreign_keys = ON")?;
            let mut count = 0;
            for text in &texts {
                count += transaction.execute(text, [])? as u64;
            }
            transaction.commit()?;
            Ok(count)
        })
        .await
    }
}
