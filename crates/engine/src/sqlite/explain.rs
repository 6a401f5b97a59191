//! What SQLite's result codes mean to a caller.
//!
//! SQLite names columns in its messages and PostgreSQL names constraints; the message is given in PostgreSQL's
//! words where the code tells enough, and SQLite's own text follows as the detail.

use super::ddl;
use crate::error::{ShardError, SqlError};
use rusqlite::ffi;
use std::ffi::c_int;

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
        ffi::SQLITE_NOMEM => ShardError::Limit { what: "memory", limit: 0 },
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
