//! One PostgreSQL database.
//!
//! A transaction borrows a connection; one that was not ended is closed rather than given back. Every transaction says
//! its shard to row level security (`SET LOCAL`, so that nothing stays on the connection). Reads are repeatable and read
//! only. Writes are read committed: whoever writes to a shard holds its clock, so that writers of a shard follow each
//! other, each with a fresh look at what the one before has done.

use super::sql::ddl::{self, Lacking, SETTING};
use super::sql::transaction::{Link, SqlTransaction};
use super::sql::{Dialect, Planted, Print, Statement, quoted};
use super::sqlite::{assign_sql, shard_of};
use super::{Access, Adapter, Assign, Mode, Siblings, Step, Tables, Transaction};
use crate::condition::Condition;
use crate::error::{Error, Result};
use crate::schema::{Owner, Table};
use crate::shard::Shard;
use async_trait::async_trait;
use isles_engine::postgres::wire::{Param, Raw, before_commit, decode, during_commit, type_of};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls};

/// Connections of one adapter: PostgreSQL has 100 by default, and others want some.
const CONNECTIONS: usize = 40;
/// Prepared statements that a connection keeps; beyond it all are prepared anew.
const STATEMENTS: usize = 200;
/// Names the lock that keeps two processes from migrating at once.
const MIGRATION_LOCK: i64 = 0x6973_6c65_7366;

struct Connection {
    client: Client,
    prepared: HashMap<String, tokio_postgres::Statement>,
}

/// A PostgreSQL database as a database for fragments.
pub struct Postgres {
    config: Config,
    idle: Arc<Mutex<Vec<Connection>>>,
    room: Arc<Semaphore>,
    planted: Option<Planted>,
}

fn failed(error: tokio_postgres::Error) -> Error {
    before_commit(error).for_people().into()
}

impl Postgres {
    /// A database by its URL. Connections are made when they are needed.
    pub fn new(url: &str) -> Result<Postgres> {
        Postgres::planted(url, None)
    }

    /// The same, with a bug.
    pub fn planted(url: &str, planted: Option<Planted>) -> Result<Postgres> {
        let config: Config = url.parse().map_err(failed)?;
        Ok(Postgres { config, idle: Arc::default(), room: Arc::new(Semaphore::new(CONNECTIONS)), planted })
    }

    async fn connect(&self) -> Result<Connection> {
        let (client, connection) = self.config.connect(NoTls).await.map_err(failed)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended");
            }
        });
        Ok(Connection { client, prepared: HashMap::new() })
    }

    async fn link(&self) -> Result<PostgresLink> {
        let permit = self.room.clone().acquire_owned().await;
        let permit = permit.map_err(|_| Error::Database(SqlError::new("57P01", "the database is closed")))?;
        let free = || self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = loop {
            match free() {
                Some(connection) if connection.client.is_closed() => continue,
                Some(connection) => break connection,
                None => break self.connect().await?,
            }
        };
        Ok(PostgresLink { connection, begin: None, idle: self.idle.clone(), loose: None, _permit: permit })
    }

    /// Runs texts in one transaction that sees all shards.
    async fn maintain(&self, texts: &[String]) -> Result<u64> {
        let mut link = self.link().await?;
        link.command(&format!("BEGIN; SET LOCAL {SETTING} = '*'; SET CONSTRAINTS ALL DEFERRED")).await?;
        let mut count = 0;
        for text in texts {
            count += link.connection.client.execute(text.as_str(), &[]).await.map_err(failed)?;
        }
        Box::new(link).commit().await?;
        Ok(count)
    }

    async fn names(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<String>> {
        let link = self.link().await?;
        let rows = link.connection.client.query(sql, params).await.map_err(failed)?;
        let names = rows.iter().map(|row| row.get(0)).collect();
        link.give_back();
        Ok(names)
    }
}

struct PostgresLink {
    connection: Connection,
    /// What begins the transaction, until it is sent, with the first statement.
    begin: Option<String>,
    idle: Arc<Mutex<Vec<Connection>>>,
    /// Another connection, for a planted bug.
    loose: Option<Connection>,
    _permit: OwnedSemaphorePermit,
}

impl PostgresLink {
    fn give_back(self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.connection);
    }
}

/// Begins a transaction, in front of its first statement, and is not waited for by itself. Where it fails, the setting
/// that the policies of all tables ask for is missing, and the statement finds nothing.
async fn begun(client: &Client, begin: Option<String>) -> Result<()> {
    match begin {
        Some(begin) => client.batch_execute(&begin).await.map_err(failed),
        None => Ok(()),
    }
}

async fn asked(
    client: &Client,
    prepared: &tokio_postgres::Statement,
    params: &[Param],
) -> Result<Vec<tokio_postgres::Row>> {
    let refs: Vec<&(dyn ToSql + Sync)> = params.iter().map(|param| param as _).collect();
    client.query(prepared, &refs).await.map_err(failed)
}

async fn executed(client: &Client, prepared: &tokio_postgres::Statement, params: &[Param]) -> Result<u64> {
    let refs: Vec<&(dyn ToSql + Sync)> = params.iter().map(|param| param as _).collect();
    client.execute(prepared, &refs).await.map_err(failed)
}

async fn bind(connection: &mut Connection, statement: &Statement) -> Result<(tokio_postgres::Statement, Vec<Param>)> {
    let types: Vec<Type> = statement.params.iter().map(|(_, ty)| type_of(*ty)).collect();
    if connection.prepared.len() >= STATEMENTS {
        connection.prepared.clear();
    }
    let prepared = match connection.prepared.get(&statement.sql) {
        Some(prepared) => prepared.clone(),
        None => {
            let prepared = connection.client.prepare_typed(&statement.sql, &types).await.map_err(failed)?;
            connection.prepared.insert(statement.sql.clone(), prepared.clone());
            prepared
        }
    };
    let bound = statement.params.iter().zip(&types).map(|((value, _), ty)| Param::new(value, ty));
    let params = bound.collect::<std::result::Result<Vec<_>, _>>().map_err(|error| Error::from(error.for_people()))?;
    Ok((prepared, params))
}

fn read(rows: &[tokio_postgres::Row], statement: &Statement) -> Result<Vec<Vec<Value>>> {
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        let mut values = Vec::with_capacity(statement.columns.len());
        for (n, ty) in statement.columns.iter().enumerate() {
            let raw: Option<Raw<'_>> = row.try_get(n).map_err(failed)?;
            let column = row.columns()[n].type_();
            let value = decode(raw.map(|raw| raw.0), column, *ty);
            values.push(value.map_err(|error| Error::from(error.for_people()))?);
        }
        found.push(values);
    }
    Ok(found)
}

#[async_trait]
impl Link for PostgresLink {
    async fn query(&mut self, statement: &Statement) -> Result<Vec<Vec<Value>>> {
        let (prepared, params) = bind(&mut self.connection, statement).await?;
        let (begin, client) = (self.begin.take(), &self.connection.client);
        let (begun, rows) = futures::future::join(begun(client, begin), asked(client, &prepared, &params)).await;
        read(&begun.and(rows)?, statement)
    }

    async fn execute(&mut self, statement: &Statement) -> Result<u64> {
        let (prepared, params) = bind(&mut self.connection, statement).await?;
        let (begin, client) = (self.begin.take(), &self.connection.client);
        let (begun, count) = futures::future::join(begun(client, begin), executed(client, &prepared, &params)).await;
        begun.and(count)
    }

    async fn command(&mut self, sql: &str) -> Result<()> {
        let client = &self.connection.client;
        let (begun, done) = futures::future::join(begun(client, self.begin.take()), client.batch_execute(sql)).await;
        begun.and(done.map_err(failed))
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        // One that was never begun has nothing to commit.
        if self.begin.is_none() {
            let committed = self.connection.client.batch_execute("COMMIT").await;
            committed.map_err(|error| Error::from(during_commit(error).for_people()))?;
        }
        self.give_back();
        Ok(())
    }

    async fn execute_and_commit(mut self: Box<Self>, statement: &Statement) -> Result<()> {
        if self.begin.is_some() {
            self.execute(statement).await?;
            return self.commit().await;
        }
        let (prepared, params) = bind(&mut self.connection, statement).await?;
        let refs: Vec<&(dyn ToSql + Sync)> = params.iter().map(|param| param as _).collect();
        let client = &self.connection.client;
        let (done, committed) =
            futures::future::join(client.execute(&prepared, &refs), client.batch_execute("COMMIT")).await;
        let unknown = |error| Error::from(during_commit(error).for_people());
        // A transaction in which the server has refused a statement is undone by its COMMIT, which says nothing of it.
        // Where no server says why the statement failed, it may have been done, and the COMMIT too.
        done.map_err(unknown)?;
        committed.map_err(unknown)?;
        self.give_back();
        Ok(())
    }

    async fn roll_back(self: Box<Self>) {
        // One that cannot be undone is closed, which undoes it.
        if self.begin.is_some() || self.connection.client.batch_execute("ROLLBACK").await.is_ok() {
            self.give_back();
        }
    }

    async fn loose_tick(&mut self, statement: &Statement) -> Result<Option<Vec<Vec<Value>>>> {
        let Some(loose) = &mut self.loose else { return Ok(None) };
        let (prepared, params) = bind(loose, statement).await?;
        let rows = asked(&loose.client, &prepared, &params).await?;
        read(&rows, statement).map(Some)
    }
}

/// What row level security is told; see [`ddl`].
fn said(access: &Access) -> String {
    match access.filter() {
        Some(shard) => format!("'={}'", shard.key().replace('\'', "''")),
        None => "'*'".into(),
    }
}

#[async_trait]
impl Adapter for Postgres {
    fn name(&self) -> &'static str {
        "postgresql"
    }

    async fn begin(&self, access: &Access, mode: Mode) -> Result<Box<dyn Transaction>> {
        let mut link = self.link().await?;
        let begin = match mode {
            Mode::Read => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            Mode::Write => "BEGIN ISOLATION LEVEL READ COMMITTED",
        };
        link.begin = Some(format!("{begin}; SET LOCAL {SETTING} = {}", said(access)));
        if self.planted == Some(Planted::LooseClock) && mode == Mode::Write {
            let loose = self.connect().await?;
            loose.client.batch_execute(&format!("SET {SETTING} = '*'")).await.map_err(failed)?;
            link.loose = Some(loose);
        }
        let (link, dialect) = (Box::new(link), Dialect::Postgres);
        Ok(Box::new(SqlTransaction { link, dialect, access: access.clone(), planted: self.planted }))
    }

    async fn shards_with(&self, table: &Arc<Table>, condition: &Condition, limit: usize) -> Result<Vec<Shard>> {
        let print = Print { dialect: Dialect::Postgres, access: &Access::Global, planted: None };
        let statement = print.shards_with(table, condition, limit)?;
        let mut link = self.link().await?;
        link.command(&format!("BEGIN READ ONLY; SET LOCAL {SETTING} = '*'")).await?;
        let rows = link.query(&statement).await?;
        Box::new(link).commit().await?;
        rows.into_iter().map(|row| shard_of(row.into_iter().next())).collect()
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
        let columns = self.names(columns, &[name]).await?;
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
        let old_references = self.names(references, &[name]).await?;
        let mut old_keys = self.names(constraints, &[name]).await?;
        old_keys.extend(self.names(indexes, &[name]).await?);
        let there = "SELECT conname::text FROM pg_constraint WHERE conrelid = to_regclass($1) AND contype = 'f'";
        let there = self.names(there, &[name]).await?;
        let kept = |column: &str| {
            let own = ddl::reference_name(table, column);
            there.contains(&own) && !old_references.iter().any(|sql| sql.contains(&own))
        };
        let wanted = table.columns.iter().filter(|column| column.reference.is_some() && !kept(&column.name));
        let references: Vec<String> = wanted.map(|column| column.name.clone()).collect();
        let fenced = "SELECT relname::text FROM pg_class WHERE oid = to_regclass($1) AND relforcerowsecurity";
        let policy = self.names(fenced, &[name]).await?.is_empty();
        let columns = !columns.iter().any(|column| column == "_shardKey");
        let there =
            "SELECT relname::text FROM pg_index JOIN pg_class ON oid = indexrelid WHERE indrelid = to_regclass($1)";
        let there = self.names(there, &[name]).await?;
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

    async fn run(&self, step: &Step, note: Option<(&str, &str)>) -> Result<()> {
        let mut link = self.link().await?;
        link.command(&format!("BEGIN; SET LOCAL {SETTING} = '*'; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            .await?;
        link.command(&step.sql).await?;
        if let Some(note) = note {
            link.command(&ddl::note(Dialect::Postgres, note)).await?;
        }
        Box::new(link).commit().await
    }

    async fn exists(&self, table: &Table) -> Result<bool> {
        let sql = "SELECT relname::text FROM pg_class WHERE oid = to_regclass($1)";
        Ok(!self.names(sql, &[&quoted(&table.physical)]).await?.is_empty())
    }

    async fn assign(&self, tables: &[Arc<Table>], by: &Assign) -> Result<u64> {
        let texts = tables.iter().map(|table| assign_sql(table, by)).collect::<Result<Vec<_>>>()?;
        self.maintain(&texts).await
    }
}
