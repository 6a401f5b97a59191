//! The store in a SQLite file.
//!
//! A commit is one transaction, synced before it returns, so that a crash or a power cut leaves the state before it or
//! after it. One replica has the file: it is locked while it is open, because two would overwrite each other's queue.

use crate::row::Row;
use crate::store::{Generation, Kept, Store, StoreError, Write};
use isles_kernel::sync::{RowKey, RowVersion};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, params};
use std::path::Path;

/// The layout of the tables; raised when it changes.
const LAYOUT: i64 = 1;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS rows (
        generation INTEGER NOT NULL,
        schema_name TEXT NOT NULL,
        table_name TEXT NOT NULL,
        external_id TEXT NOT NULL,
        version INTEGER NOT NULL,
        columns TEXT NOT NULL,
        PRIMARY KEY (generation, schema_name, table_name, external_id)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS records (
        name TEXT NOT NULL PRIMARY KEY,
        body TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
";

pub struct SqliteStore {
    connection: Connection,
}

impl SqliteStore {
    /// Opens the file, or makes it.
    pub fn open(path: &Path) -> Result<SqliteStore, StoreError> {
        SqliteStore::of(Connection::open(path).map_err(StoreError::new)?)
    }

    /// Opens it on a file system that SQLite knows by `vfs`.
    pub fn open_with_vfs(path: &Path, vfs: &str) -> Result<SqliteStore, StoreError> {
        let flags = OpenFlags::default();
        SqliteStore::of(Connection::open_with_flags_and_vfs(path, flags, vfs).map_err(StoreError::new)?)
    }

    fn of(connection: Connection) -> Result<SqliteStore, StoreError> {
        let mut store = SqliteStore { connection };
        store.prepare().map_err(StoreError::new)?;
        store.check_layout()?;
        Ok(store)
    }

    /// With the lock kept for good there is no shared memory beside the log, and no second user of the file.
    fn prepare(&mut self) -> rusqlite::Result<()> {
        self.connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
        self.connection.pragma_update(None, "journal_mode", "WAL")?;
        self.connection.pragma_update(None, "synchronous", "FULL")?;
        self.connection.pragma_update(None, "trusted_schema", "OFF")?;
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(SCHEMA)?;
        let layout: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if layout == 0 {
            transaction.pragma_update(None, "user_version", LAYOUT)?;
        }
        transaction.commit()
    }

    fn check_layout(&self) -> Result<(), StoreError> {
        let layout = self.connection.query_row("PRAGMA user_version", [], |row| row.get(0));
        match layout.map_err(StoreError::new)? {
            LAYOUT => Ok(()),
            other => Err(StoreError::new(format!("the file has layout {other}, this program knows {LAYOUT}"))),
        }
    }

    fn rows(&self, kept: &mut Kept) -> Result<(), StoreError> {
        let sql = "SELECT generation, schema_name, table_name, external_id, version, columns FROM rows";
        let mut statement = self.connection.prepare(sql).map_err(StoreError::new)?;
        let mut rows = statement.query([]).map_err(StoreError::new)?;
        while let Some(row) = rows.next().map_err(StoreError::new)? {
            let (generation, key, row) = read_row(row)?;
            kept.rows.entry(generation).or_default().insert(key, row);
        }
        Ok(())
    }

    fn records(&self, kept: &mut Kept) -> Result<(), StoreError> {
        let mut statement = self.connection.prepare("SELECT name, body FROM records").map_err(StoreError::new)?;
        let mut rows = statement.query([]).map_err(StoreError::new)?;
        while let Some(row) = rows.next().map_err(StoreError::new)? {
            let name: String = row.get(0).map_err(StoreError::new)?;
            let body: String = row.get(1).map_err(StoreError::new)?;
            kept.records.insert(name, serde_json::from_str(&body).map_err(StoreError::new)?);
        }
        Ok(())
    }
}

fn read_row(row: &rusqlite::Row<'_>) -> Result<(Generation, RowKey, Row), StoreError> {
    let text = |at: usize| row.get::<_, String>(at).map_err(StoreError::new);
    let number = |at: usize| row.get::<_, i64>(at).map(i64::cast_unsigned).map_err(StoreError::new);
    let key = RowKey::new(text(1)?, text(2)?, text(3)?).map_err(StoreError::new)?;
    let values = serde_json::from_str(&text(5)?).map_err(StoreError::new)?;
    Ok((Generation(number(0)?), key, Row { version: RowVersion(number(4)?), values }))
}

impl Store for SqliteStore {
    fn load(&mut self) -> Result<Kept, StoreError> {
        let mut kept = Kept::default();
        self.rows(&mut kept)?;
        self.records(&mut kept)?;
        Ok(kept)
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(StoreError::new)?;
        for write in writes {
            make(&transaction, write)?;
        }
        transaction.commit().map_err(StoreError::new)
    }
}

fn make(transaction: &Transaction<'_>, write: &Write) -> Result<(), StoreError> {
    match write {
        Write::PutRow(generation, key, row) => {
            let columns = serde_json::to_string(&row.values).map_err(StoreError::new)?;
            let sql = "INSERT OR REPLACE INTO rows VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
            let version = row.version.0.cast_signed();
            run(
                transaction,
                sql,
                params![generation.0.cast_signed(), key.schema, key.table, key.external_id, version, columns],
            )
        }
        Write::DeleteRow(generation, key) => {
            let sql = "DELETE FROM rows
                WHERE generation = ?1 AND schema_name = ?2 AND table_name = ?3 AND external_id = ?4";
            run(transaction, sql, params![generation.0.cast_signed(), key.schema, key.table, key.external_id])
        }
        Write::DropGeneration(generation) => {
            run(transaction, "DELETE FROM rows WHERE generation = ?1", params![generation.0.cast_signed()])
        }
        Write::Put(name, value) => {
            run(transaction, "INSERT OR REPLACE INTO records VALUES (?1, ?2)", params![name, value.to_string()])
        }
        Write::Delete(name) => run(transaction, "DELETE FROM records WHERE name = ?1", params![name]),
    }
}

fn run(transaction: &Transaction<'_>, sql: &str, params: impl rusqlite::Params) -> Result<(), StoreError> {
    transaction.execute(sql, params).map(|_| ()).map_err(StoreError::new)
}
