//! What SQLite's result codes mean to a caller.
//!
//! SQLite names columns in its messages and PostgreSQL names constraints; the message is given in PostgreSQL's
//! words where the code tells enough, and SQLite's own text follows as the detail. Where the schema is known, it tells
//! which constraint the columns are of. Of a foreign key SQLite says nothing, so it is the one that the statement's
//! tables leave, if there is one alone.

use super::ddl;
use super::raw::Write;
use crate::error::{ShardError, SqlError};
use isles_kernel::schema::{Schema, TENANT_KEY_COLUMN, Table, TableKind, plain_name};
use rusqlite::ffi;
use std::ffi::c_int;

const FOREIGN_KEY: &str = "FOREIGN KEY constraint failed";

/// The error for an extended result code and SQLite's message.
pub(super) fn error(code: c_int, message: &str) -> ShardError {
    match code & 0xff {
        ffi::SQLITE_CONSTRAINT => ShardError::Statement(constraint(code, message)),
        ffi::SQLITE_FULL => ShardError::DiskFull("the disk is full".into()),
        ffi::SQLITE_IOERR if code == ffi::SQLITE_IOERR_DATA || code == ffi::SQLITE_IOERR_CORRUPTFS => {
            ShardError::Corrupt("a page's checksum does not match its content".into())
        }
        ffi::SQLITE_IOERR => ShardError::Stopped(format!("disk I/O error {code}: {message}")),
        ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB => ShardError::Corrupt(message.into()),
        ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED => {
            ShardError::Unavailable("another process holds the shard's file".into())
        }
        ffi::SQLITE_INTERRUPT => ShardError::TimedOut,
        ffi::SQLITE_NOMEM => ShardError::statement("53200", "out of memory"),
        ffi::SQLITE_CANTOPEN | ffi::SQLITE_PERM => ShardError::Unavailable(message.into()),
        ffi::SQLITE_READONLY => ShardError::statement("25006", "cannot write in a read-only transaction"),
        ffi::SQLITE_TOOBIG => ShardError::statement("54000", "a value or statement is too long"),
        ffi::SQLITE_MISMATCH => ShardError::statement("42804", message),
        ffi::SQLITE_AUTH => ShardError::statement("42501", format!("not permitted on a shard: {message}")),
        ffi::SQLITE_RANGE => ShardError::statement("08P01", message),
        _ => ShardError::Statement(general(message)),
    }
}

fn constraint(code: c_int, message: &str) -> SqlError {
    let named = |sqlstate, text: &str| SqlError::new(sqlstate, text).with_detail(message);
    match code {
        ffi::SQLITE_CONSTRAINT_PRIMARYKEY | ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_ROWID => {
            named("23505", "duplicate key value violates unique constraint")
        }
        ffi::SQLITE_CONSTRAINT_NOTNULL => named("23502", "null value violates not-null constraint"),
        ffi::SQLITE_CONSTRAINT_FOREIGNKEY => named("23503", "row violates foreign key constraint"),
        ffi::SQLITE_CONSTRAINT_CHECK if message.contains(ddl::RANGE) => named("22003", "value out of range"),
        ffi::SQLITE_CONSTRAINT_CHECK if message.contains(ddl::JSON) => {
            named("22P02", "invalid input syntax for type json")
        }
        ffi::SQLITE_CONSTRAINT_CHECK => named("23514", "row violates check constraint"),
        ffi::SQLITE_CONSTRAINT_DATATYPE => named("42804", "value is of another type than the column"),
        // How SQLite refuses what `RESTRICT` forbids.
        ffi::SQLITE_CONSTRAINT_TRIGGER if message == FOREIGN_KEY => {
            named("23503", "row violates foreign key constraint")
        }
        ffi::SQLITE_CONSTRAINT_TRIGGER => SqlError::new("P0001", message),
        _ => SqlError::new("23000", message),
    }
}

/// Errors of compilation, which SQLite tells apart by their text alone.
fn general(message: &str) -> SqlError {
    let sqlstate = if message.starts_with("no such table") {
        "42P01"
    } else if message.starts_with("no such column") || message.contains("has no column named") {
        "42703"
    } else if message.starts_with("no such function") {
        "42883"
    } else if message.contains("syntax error") || message.starts_with("incomplete input") {
        "42601"
    } else if message.starts_with("ambiguous column") {
        "42702"
    } else if message.contains("integer overflow") {
        "22003"
    } else if message.contains("prohibited") || message.contains("not authorized") {
        "42501"
    } else {
        "42000"
    };
    SqlError::new(sqlstate, message)
}

/// A broken constraint in PostgreSQL's words, with its name. `writes` tells what the statement writes to.
pub(super) fn named(error: SqlError, schema: &Schema, writes: impl FnOnce() -> Vec<Write>) -> SqlError {
    let text = error.detail.clone().unwrap_or_default();
    let found = match error.sqlstate {
        "23505" => duplicate(&text, schema),
        "23502" => null(&text, schema),
        "23514" => check(&text, schema),
        "23503" => foreign(&writes(), schema),
        _ => None,
    };
    found.unwrap_or(error)
}

/// `UNIQUE constraint failed: t.a, t.b`, or `… index 'name'` for one over expressions.
fn duplicate(text: &str, schema: &Schema) -> Option<SqlError> {
    let what = text.strip_prefix("UNIQUE constraint failed: ")?;
    let index = what.strip_prefix("index '").and_then(|rest| rest.strip_suffix('\''));
    schema.tables.values().find_map(|table| {
        let lead = matches!(table.kind, TableKind::Tenant).then_some(TENANT_KEY_COLUMN);
        let listed = |columns: &[String]| {
            let names = lead.into_iter().chain(columns.iter().map(String::as_str));
            names.map(|column| format!("{}.{column}", table.name)).collect::<Vec<_>>().join(", ")
        };
        let mut keys = table.keys.iter().filter(|key| key.is_unique_on_shard());
        let name = match index {
            Some(index) => keys.find(|key| table.stored_key(key) == index)?.name.clone(),
            None if listed(&table.primary_key) == what => table.primary_key_name(),
            None => keys.find(|key| listed(&key.columns) == what)?.name.clone(),
        };
        let message = format!("duplicate key value violates unique constraint \"{name}\"");
        Some(SqlError::new("23505", message).of_table(&table.name).of_constraint(name))
    })
}

/// `NOT NULL constraint failed: t.a`.
fn null(text: &str, schema: &Schema) -> Option<SqlError> {
    let what = text.strip_prefix("NOT NULL constraint failed: ")?;
    schema.tables.values().find_map(|table| {
        let column = what.strip_prefix(&table.name)?.strip_prefix('.')?;
        table.position(column)?;
        let shown = table.plain_name();
        let message = format!("null value in column \"{column}\" of relation \"{shown}\" violates not-null constraint");
        Some(SqlError::new("23502", message).of_table(&table.name).of_column(column))
    })
}

/// `CHECK constraint failed: name`. Of two tables with a check of one name nothing tells which it was.
fn check(text: &str, schema: &Schema) -> Option<SqlError> {
    let name = text.strip_prefix("CHECK constraint failed: ")?;
    let has = |table: &&Table| table.checks.iter().any(|check| check.name == name);
    let mut tables = schema.tables.values().filter(has);
    let error = match (tables.next(), tables.next()) {
        (Some(table), None) => {
            let message =
                format!("new row for relation \"{}\" violates check constraint \"{name}\"", table.plain_name());
            SqlError::new("23514", message).of_table(&table.name)
        }
        (Some(_), Some(_)) => SqlError::new("23514", format!("new row violates check constraint \"{name}\"")),
        (None, _) => return None,
    };
    Some(error.of_constraint(name))
}

/// The foreign key that a statement has broken, if it could be one alone.
fn foreign(writes: &[Write], schema: &Schema) -> Option<SqlError> {
    let mut candidates = Vec::new();
    for table in schema.tables.values() {
        for foreign in &table.foreign_keys {
            let wrote = |write: &Write| match write {
                Write::Insert(name) | Write::Update(name) => *name == table.name,
                Write::Delete(_) => false,
            };
            let took = |write: &Write| match write {
                Write::Delete(name) | Write::Update(name) => *name == foreign.table,
                Write::Insert(_) => false,
            };
            if writes.iter().any(wrote) {
                let message = format!(
                    "insert or update on table \"{}\" violates foreign key constraint \"{}\"",
                    table.plain_name(),
                    foreign.name
                );
                candidates.push((message, &table.name, &foreign.name));
            }
            if writes.iter().any(took) {
                let message = format!(
                    "update or delete on table \"{}\" violates foreign key constraint \"{}\" on table \"{}\"",
                    plain_name(&foreign.table),
                    foreign.name,
                    table.plain_name()
                );
                candidates.push((message, &foreign.table, &foreign.name));
            }
        }
    }
    match candidates.as_slice() {
        [(message, table, name)] => Some(SqlError::new("23503", message.clone()).of_table(*table).of_constraint(*name)),
        _ => None,
    }
}
