//! What stands in a shard's file besides the user's tables.
//!
//! The file is marked with an application id and a format number. A file without the mark is not touched, and one of
//! a newer format is refused: an older program would not keep its promises.

use super::raw::Db;
use super::writer::{State, one_int};
use super::{ddl, tenancy};
use crate::binding::Binding;
use crate::error::{Result, ShardError};
use crate::fence::{Fence, FenceMode, FenceScope, FenceTable};
use isles_kernel::names::{RoutingVersion, Seq, StreamId, TxnId};
use isles_kernel::schema::Schema;
use isles_kernel::value::{DataType, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// "ISLE" in the file's header.
const APPLICATION_ID: i64 = 0x4953_4c45;
const FORMAT: i64 = 5;

/// Which pledges were kept. It came with format 2.
const PLEDGES: &str = "CREATE TABLE _isles_pledge (id TEXT NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID;";

/// Who drives a stream. It came with format 5: an older program would not ask.
const DRIVERS: &str = "ALTER TABLE _isles_stream ADD COLUMN driver INTEGER;";

/// Names in the meta table.
pub(super) const SCHEMA: &str = "schema";
/// The schema one version earlier: it tells whether a change has been made already.
pub(super) const SCHEMA_BEFORE: &str = "schema_before";
/// Whose the shard is; nothing if tenants share it. It came with format 4: an older program would not ask.
const BINDING: &str = "binding";
/// Position and transaction of the last record that was trimmed, so that neither ever falls.
pub(super) const TRIMMED_SEQ: &str = "trimmed_seq";
pub(super) const TRIMMED_TXN: &str = "trimmed_txn";

/// Makes a new file ours, or checks that an old one is.
pub(super) fn prepare(db: &mut Db, path: &Path) -> Result<()> {
    let id = one_int(db, "PRAGMA application_id", &[])?.unwrap_or(0);
    let format = one_int(db, "PRAGMA user_version", &[])?.unwrap_or(0);
    let tables = one_int(db, "SELECT count(*) FROM sqlite_schema", &[])?.unwrap_or(0);
    match (id, format, tables) {
        (APPLICATION_ID, FORMAT, _) => Ok(()),
        (APPLICATION_ID, 1, _) => {
            let views = tenant_views(db)?;
            change(db, &format!("{PLEDGES} {views} {DRIVERS}"))
        }
        (APPLICATION_ID, 2, _) => {
            let views = tenant_views(db)?;
            change(db, &format!("{views} {DRIVERS}"))
        }
        (APPLICATION_ID, 3 | 4, _) => change(db, DRIVERS),
        (APPLICATION_ID, newer, _) => {
            Err(ShardError::Invalid(format!("{} has format {newer}, this program knows {FORMAT}", path.display())))
        }
        (0, 0, 0) => change(db, &format!("{} {PLEDGES}", ddl::OWN_TABLES)),
        _ => Err(ShardError::Invalid(format!("{} is not an Isles shard", path.display()))),
    }
}

/// The views that tenant tables are read through. They came with format 3.
fn tenant_views(db: &mut Db) -> Result<String> {
    let schema = load_schema(db, SCHEMA)?;
    Ok(schema.tables.values().filter_map(tenancy::create_view).map(|view| format!("{view};")).collect())
}

/// Makes what is missing and marks the file with the present format, in one transaction.
fn change(db: &mut Db, tables: &str) -> Result<()> {
    let text = format!(
        "BEGIN IMMEDIATE; {tables} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT}; COMMIT;"
    );
    let made = db.connection().execute_batch(&text);
    if let Err(error) = made {
        let _ = db.connection().execute_batch("ROLLBACK");
        return Err(match error {
            rusqlite::Error::SqliteFailure(failure, message) => {
                super::explain::error(failure.extended_code, &message.unwrap_or_default())
            }
            other => ShardError::Unavailable(other.to_string()),
        });
    }
    Ok(())
}

pub(super) fn load(db: &mut Db) -> Result<State> {
    let trimmed = Seq(meta_int(db, TRIMMED_SEQ)?);
    let (seq, txn) = last_record(db)?.unwrap_or((trimmed, TxnId(meta_int(db, TRIMMED_TXN)?)));
    Ok(State {
        schema: Arc::new(load_schema(db, SCHEMA)?),
        fences: Arc::new(load_fences(db)?),
        binding: Arc::new(load_binding(db)?),
        seq,
        txn,
        consumers: Arc::new(load_consumers(db)?),
        trimmed,
        log_records: one_int(db, "SELECT count(*) FROM _isles_log", &[])?.unwrap_or(0) as u64,
        log_bytes: one_int(db, "SELECT coalesce(sum(length(body)), 0) FROM _isles_log", &[])?.unwrap_or(0) as u64,
    })
}

pub(super) fn load_schema(db: &mut Db, name: &str) -> Result<Schema> {
    match get_meta(db, name, DataType::Text)? {
        Some(Value::Text(body)) => serde_json::from_str(&body).map_err(|_| damaged("schema")),
        _ => Ok(Schema::default()),
    }
}

fn load_binding(db: &mut Db) -> Result<Binding> {
    match get_meta(db, BINDING, DataType::Text)? {
        Some(Value::Text(stored)) => Binding::read(Some(&stored)),
        _ => Ok(Binding::Shared),
    }
}

pub(super) fn store_binding(db: &mut Db, binding: &Binding) -> Result<()> {
    put_meta(db, BINDING, binding.stored().map_or(Value::Null, Value::text))
}

fn damaged(what: &str) -> ShardError {
    ShardError::Corrupt(format!("the shard's {what} cannot be read"))
}

/// Position and transaction of the newest record.
pub(super) fn last_record(db: &mut Db) -> Result<Option<(Seq, TxnId)>> {
    let sql = "SELECT last_seq, first_txn + txns - 1 FROM _isles_log ORDER BY last_seq DESC LIMIT 1";
    let rows = db.own_text(sql, &[], &[DataType::Int8, DataType::Int8])?;
    Ok(match rows.first().map(Vec::as_slice) {
        Some([Value::Int(seq), Value::Int(txn)]) => Some((Seq(*seq as u64), TxnId(*txn as u64))),
        _ => None,
    })
}

/// The position of the newest change, trimmed or not.
pub(super) fn current_seq(db: &mut Db) -> Result<Seq> {
    match last_record(db)? {
        Some((seq, _)) => Ok(seq),
        None => Ok(Seq(meta_int(db, TRIMMED_SEQ)?)),
    }
}

pub(super) fn get_meta(db: &mut Db, name: &str, ty: DataType) -> Result<Option<Value>> {
    let rows = db.own_text("SELECT value FROM _isles_meta WHERE name = $1", &[Value::text(name)], &[ty])?;
    Ok(rows.into_iter().next().and_then(|row| row.into_iter().next()))
}

pub(super) fn meta_int(db: &mut Db, name: &str) -> Result<u64> {
    match get_meta(db, name, DataType::Int8)? {
        Some(Value::Int(n)) => Ok(n as u64),
        _ => Ok(0),
    }
}

/// Stores the schema that holds from here on, and the one before it, which says whether a change was made already.
pub(super) fn store_schema(db: &mut Db, before: &Schema, now: &Schema) -> Result<()> {
    for (name, schema) in [(SCHEMA_BEFORE, before), (SCHEMA, now)] {
        let body = serde_json::to_string(schema).map_err(|error| ShardError::invalid(error.to_string()))?;
        put_meta(db, name, Value::Text(body))?;
    }
    Ok(())
}

pub(super) fn put_meta(db: &mut Db, name: &str, value: Value) -> Result<()> {
    let sql = "INSERT INTO _isles_meta (name, value) VALUES ($1, $2) ON CONFLICT DO UPDATE SET value = excluded.value";
    db.own_text(sql, &[Value::text(name), value], &[]).map(drop)
}

fn load_consumers(db: &mut Db) -> Result<BTreeMap<StreamId, Seq>> {
    let rows = db.own_text("SELECT stream, position FROM _isles_consumer", &[], &[DataType::Text, DataType::Int8])?;
    rows.into_iter()
        .map(|row| match row.as_slice() {
            [Value::Text(stream), Value::Int(position)] => {
                Ok((StreamId::new(stream.clone()).map_err(|_| damaged("consumers"))?, Seq(*position as u64)))
            }
            _ => Err(damaged("consumers")),
        })
        .collect()
}

fn load_fences(db: &mut Db) -> Result<FenceTable> {
    let columns = [DataType::Text, DataType::Int8, DataType::Text];
    let rows = db.own_text("SELECT scope, version, mode FROM _isles_fence", &[], &columns)?;
    let fences = rows.iter().map(|row| load_fence(row)).collect::<Result<Vec<_>>>()?;
    FenceTable::from_fences(fences)
}

fn load_fence(row: &[Value]) -> Result<Fence> {
    let [Value::Text(scope), Value::Int(version), Value::Text(mode)] = row else {
        return Err(damaged("fences"));
    };
    let scope: FenceScope = serde_json::from_str(scope).map_err(|_| damaged("fences"))?;
    let mode: FenceMode = serde_json::from_str(mode).map_err(|_| damaged("fences"))?;
    Ok(Fence { scope, version: RoutingVersion(*version as u64), mode })
}

/// Writes the difference between two fence tables.
pub(super) fn store_fences(db: &mut Db, old: &FenceTable, new: &FenceTable) -> Result<()> {
    let old: BTreeSet<_> = old.fences().iter().map(fence_row).collect::<Result<_>>()?;
    let new: BTreeSet<_> = new.fences().iter().map(fence_row).collect::<Result<_>>()?;
    for (scope, _, _) in old.difference(&new) {
        db.own_text("DELETE FROM _isles_fence WHERE scope = $1", &[Value::text(scope.clone())], &[])?;
    }
    for (scope, version, mode) in new.difference(&old) {
        let params = [Value::text(scope.clone()), Value::Int(*version), Value::text(mode.clone())];
        db.own_text("INSERT INTO _isles_fence (scope, version, mode) VALUES ($1, $2, $3)", &params, &[])?;
    }
    Ok(())
}

fn fence_row(fence: &Fence) -> Result<(String, i64, String)> {
    let text = |error: serde_json::Error| ShardError::invalid(error.to_string());
    let scope = serde_json::to_string(&fence.scope).map_err(text)?;
    let mode = serde_json::to_string(&fence.mode).map_err(text)?;
    Ok((scope, fence.version.0 as i64, mode))
}
