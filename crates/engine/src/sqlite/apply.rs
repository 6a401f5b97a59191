//! Rows that come from other shards.
//!
//! Each applied row leaves its version: the routing version its owner wrote it under and its position in that
//! owner's log. A row is written only if it is newer than what its version says, so copies and changes may come in
//! any order and any number of times. A deleted row leaves its version, too, which keeps an older copy from bringing
//! it back. The stream's driver is asked for, and its position stored, in the same transaction.
//!
//! Triggers and foreign keys do not fire on this connection: what they did on the source is in the source's log. Of two
//! rows that claim one unique value the one with the older version gives way, and one without a version, which was
//! copied, to any; why that is right is said in [`crate::rows`].

use super::raw::Db;
use super::writer::Writer;
use super::{copy, ddl, stream};
use crate::error::{Result, ShardError};
use crate::rows::{IncomingCheck, check_row, other_unit, taken};
use crate::shard::{
    ActsFor, Applied, Batch, BatchKind, ImportMode, Incoming, Limits, RowVersion, Statement, StoredRow,
};
use isles_kernel::names::{RoutingVersion, Seq, StreamId, TenantId};
use isles_kernel::schema::{BUCKET_COLUMN, Key, Schema, Table, TableKind, Unit};
use isles_kernel::value::{DataType, Value, key_bytes};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The statements that write one table.
pub(super) struct TableWrites {
    pub(super) table: Table,
    put: Arc<str>,
    delete: Arc<str>,
    /// Reads the bucket of a key.
    bucket: Arc<str>,
    /// For each unique key: finds other rows with the same values, and where these are in a row.
    rivals: Vec<(Arc<str>, Vec<usize>)>,
    /// What is found of a rival: its key and, where it has one, its bucket.
    rival_types: Arc<[DataType]>,
}

impl TableWrites {
    pub(super) fn new(table: &Table) -> TableWrites {
        let key = table.physical_key();
        let matched: Vec<String> = (1..).zip(&key).map(|(n, name)| format!("{} = ${n}", ddl::quoted(name))).collect();
        let matched = matched.join(" AND ");
        let name = ddl::quoted(&table.name);
        TableWrites {
            put: put_sql(table).into(),
            delete: format!("DELETE FROM {name} WHERE {matched}").into(),
            bucket: format!("SELECT {BUCKET_COLUMN} FROM {name} WHERE {matched}").into(),
            rivals: plain_unique(table).map(|unique| rivals(table, &key, unique)).collect(),
            rival_types: rival_types(table, &key),
            table: table.clone(),
        }
    }
}

/// The unique keys that are over columns alone.
fn plain_unique(table: &Table) -> impl Iterator<Item = &Key> {
    table.keys.iter().filter(|key| key.unique_columns().is_some())
}

/// Writes a row. Rivals in a key over expressions or some of the rows are not looked for, so such a key must refuse,
/// where `OR REPLACE` would silently remove a row that may be the newer one.
fn put_sql(table: &Table) -> String {
    let name = ddl::quoted(&table.name);
    if table.keys.iter().filter(|key| key.is_unique_on_shard()).count() == plain_unique(table).count() {
        return format!("INSERT OR REPLACE INTO {name} {}", columns_and_values(table));
    }
    let hidden = table.hidden_columns().iter().map(|name| (*name).to_string());
    let all = hidden.chain(table.columns.iter().map(|column| column.name.clone()));
    let set: Vec<String> = all.map(|name| format!("{0} = excluded.{0}", ddl::quoted(&name))).collect();
    let key = ddl::quoted_list(&table.physical_key());
    format!("INSERT INTO {name} {} ON CONFLICT ({key}) DO UPDATE SET {}", columns_and_values(table), set.join(", "))
}

/// Parameters: the row's key, then the values of the unique key.
fn rivals(table: &Table, key: &[String], unique: &Key) -> (Arc<str>, Vec<usize>) {
    let equal = |(n, name): (usize, &String)| format!("{} = ${n}", ddl::quoted(name));
    let own: Vec<String> = (1..).zip(key).map(equal).collect();
    let mut same: Vec<String> = (key.len() + 1..).zip(&unique.columns).map(equal).collect();
    if matches!(table.kind, TableKind::Tenant) {
        same.push(own[0].clone());
    }
    let bucket = if is_hash(table) { format!(", {BUCKET_COLUMN}") } else { String::new() };
    let sql = format!(
        "SELECT {}{bucket} FROM {} WHERE {} AND NOT ({})",
        ddl::quoted_list(key),
        ddl::quoted(&table.name),
        same.join(" AND "),
        own.join(" AND ")
    );
    (sql.into(), unique.columns.iter().filter_map(|name| table.position(name)).collect())
}

fn is_hash(table: &Table) -> bool {
    matches!(table.kind, TableKind::Hash { .. })
}

fn rival_types(table: &Table, key: &[String]) -> Arc<[DataType]> {
    let ty = |name: &String| table.position(name).map_or(DataType::Text, |at| table.columns[at].ty);
    key.iter().map(ty).chain(is_hash(table).then_some(DataType::Int4)).collect()
}

/// `(a, b) VALUES ($1, $2)` over all physical columns.
pub(super) fn columns_and_values(table: &Table) -> String {
    let hidden: Vec<String> = table.hidden_columns().iter().map(|name| (*name).to_string()).collect();
    let names: Vec<&String> = hidden.iter().chain(table.columns.iter().map(|column| &column.name)).collect();
    let params: Vec<String> = (1..=names.len()).map(|n| format!("${n}")).collect();
    format!("({}) VALUES ({})", ddl::quoted_list(names), params.join(", "))
}

/// Values of the hidden columns.
pub(super) fn hidden(unit: &Unit) -> Vec<Value> {
    match unit {
        Unit::Tenant(tenant) => {
            let name = tenant.as_ref().map(TenantId::as_str);
            vec![Value::text(name.unwrap_or("")), name.map_or(Value::Null, Value::text)]
        }
        Unit::Bucket(..) | Unit::Shared => {
            unit.stored_bucket().map(|bucket| Value::Int(i64::from(bucket.0))).into_iter().collect()
        }
    }
}

/// Values of all physical columns.
fn physical(unit: &Unit, values: &[Value]) -> Vec<Value> {
    hidden(unit).into_iter().chain(values.iter().cloned()).collect()
}

pub(super) fn apply(writer: &mut Writer, batch: &Batch) -> Result<Applied> {
    let schema = writer.state.schema.clone();
    let db = writer.applier()?;
    stream::check(db, &batch.stream, batch.driver)?;
    let applied = match batch.kind {
        BatchKind::Changes | BatchKind::Repair => apply_changes(db, &schema, batch)?,
        BatchKind::Copy => copy::copy(db, &schema, batch)?,
    };
    stream::store(db, batch)?;
    Ok(applied)
}

fn apply_changes(db: &mut Db, schema: &Schema, batch: &Batch) -> Result<Applied> {
    let mut tables = BTreeMap::new();
    let mut applied = Applied::default();
    for incoming in &batch.rows {
        apply_row(db, batch, table_writes(&mut tables, schema, &incoming.table)?, incoming, &mut applied)?;
    }
    Ok(applied)
}

pub(super) fn table_writes<'a>(
    tables: &'a mut BTreeMap<String, TableWrites>,
    schema: &Schema,
    name: &str,
) -> Result<&'a TableWrites> {
    if !tables.contains_key(name) {
        tables.insert(name.to_string(), TableWrites::new(schema.table(name)?));
    }
    tables.get(name).ok_or_else(|| ShardError::invalid("no such table"))
}

fn apply_row(
    db: &mut Db,
    batch: &Batch,
    writes: &TableWrites,
    incoming: &Incoming,
    applied: &mut Applied,
) -> Result<()> {
    IncomingCheck::new(&writes.table).check(incoming)?;
    let key = key_bytes(&incoming.key);
    let known = row_version(db, &incoming.table, &key)?;
    let is_repair = batch.kind == BatchKind::Repair;
    if !is_repair && known.is_some_and(|known| known >= incoming.version) {
        applied.stale += 1;
        return Ok(());
    }
    if known.is_none() {
        check_unit(db, writes, incoming)?;
    }
    let claim = if is_repair { RowVersion::NEWEST } else { incoming.version };
    match &incoming.row {
        Some(row) if make_room(db, writes, incoming, row, Some(claim))? => {
            put(db, writes, &incoming.unit, row)?;
            applied.written += 1;
        }
        _ => {
            delete(db, writes, &incoming.key)?;
            applied.deleted += 1;
        }
    }
    store_version(db, &batch.stream, incoming, key)
}

pub(super) fn delete(db: &mut Db, writes: &TableWrites, key: &[Value]) -> Result<()> {
    db.run_own(&Statement::new(writes.delete.clone(), key.to_vec()), &Limits::default()).map(drop)
}

/// Writes a row, whatever was there under its key.
pub(super) fn put(db: &mut Db, writes: &TableWrites, unit: &Unit, row: &[Value]) -> Result<()> {
    let put = Statement::new(writes.put.clone(), physical(unit, row));
    db.run_own(&put, &Limits::default()).map(drop)
}

/// Removes rows whose claim to a unique value is older; whether the incoming row has the newest. A copied row has no
/// version, and any is newer.
pub(super) fn make_room(
    db: &mut Db,
    writes: &TableWrites,
    incoming: &Incoming,
    row: &[Value],
    version: Option<RowVersion>,
) -> Result<bool> {
    for (sql, columns) in &writes.rivals {
        let params = incoming.key.iter().cloned().chain(columns.iter().map(|at| row[*at].clone())).collect();
        let find = Statement::new(sql.clone(), params).returning(writes.rival_types.clone());
        for rival in db.run_own(&find, &Limits::default())?.rows {
            let (key, bucket) = rival.split_at(incoming.key.len());
            match row_version(db, &incoming.table, &key_bytes(key))? {
                Some(known) if Some(known) > version => return Ok(false),
                None if !is_of(&incoming.unit, bucket) => return Err(taken(&writes.table)),
                _ => delete(db, writes, key)?,
            }
        }
    }
    Ok(true)
}

/// Whether a row with this bucket, if it has one, is of a unit. Keys of tenant tables have the tenant in them.
fn is_of(unit: &Unit, bucket: &[Value]) -> bool {
    match (unit, bucket) {
        (Unit::Bucket(_, wanted), [Value::Int(found)]) => *found == i64::from(wanted.0),
        _ => true,
    }
}

/// A row that was here before the stream, with the same key but of another unit, belongs to someone else.
pub(super) fn check_unit(db: &mut Db, writes: &TableWrites, incoming: &Incoming) -> Result<()> {
    let Some(bucket) = incoming.unit.stored_bucket() else { return Ok(()) };
    let read = Statement::new(writes.bucket.clone(), incoming.key.clone()).returning([DataType::Int4]);
    let there = db.run_own(&read, &Limits::default())?;
    match there.rows.first().map(Vec::as_slice) {
        Some([Value::Int(found)]) if *found != i64::from(bucket.0) => Err(other_unit(&writes.table)),
        _ => Ok(()),
    }
}

pub(super) fn row_version(db: &mut Db, table: &str, key: &[u8]) -> Result<Option<RowVersion>> {
    let sql = "SELECT epoch, seq FROM _isles_row_version WHERE name = $1 AND key = $2";
    let rows = db.own(sql, &[Value::text(table), Value::Bytes(key.to_vec())], &[DataType::Int8; 2])?;
    Ok(match rows.first().map(Vec::as_slice) {
        Some([Value::Int(epoch), Value::Int(seq)]) => {
            Some(RowVersion { epoch: RoutingVersion(*epoch as u64), seq: Seq(*seq as u64) })
        }
        _ => None,
    })
}

fn store_version(db: &mut Db, stream: &StreamId, incoming: &Incoming, key: Vec<u8>) -> Result<()> {
    let sql = "INSERT OR REPLACE INTO _isles_row_version (name, key, stream, epoch, seq) VALUES ($1, $2, $3, $4, $5)";
    let params = [
        Value::text(incoming.table.as_str()),
        Value::Bytes(key),
        Value::text(stream.as_str()),
        Value::Int(incoming.version.epoch.0 as i64),
        Value::Int(incoming.version.seq.0 as i64),
    ];
    db.own(sql, &params, &[]).map(drop)
}

/// Writes a page of rows as any client would: captured, with triggers and foreign keys.
pub(super) fn import(writer: &mut Writer, table: &str, rows: &[StoredRow], mode: ImportMode) -> Result<u64> {
    let schema = writer.state.schema.clone();
    let table = schema.table(table)?;
    let sql: Arc<str> = import_sql(table, mode).into();
    let mut imported = 0;
    for row in rows {
        check_row(table, &row.unit, &row.values)?;
        let statement = Statement::new(sql.clone(), physical(&row.unit, &row.values));
        let acts_for = match &row.unit {
            Unit::Tenant(tenant) => ActsFor::Tenant(tenant.clone()),
            Unit::Bucket(..) | Unit::Shared => ActsFor::Nobody,
        };
        let outcome = writer.db.run(&statement.writing(), &Limits::default(), &acts_for)?;
        if outcome.affected == 0 {
            return Err(other_unit(table));
        }
        imported += outcome.affected;
    }
    Ok(imported)
}

fn import_sql(table: &Table, mode: ImportMode) -> String {
    let name = ddl::quoted(&table.name);
    let insert = format!("INSERT INTO {name} {}", columns_and_values(table));
    if mode == ImportMode::Insert {
        return insert;
    }
    let key = table.physical_key();
    let rest: Vec<String> = table.columns.iter().map(|c| c.name.clone()).filter(|name| !key.contains(name)).collect();
    let first = key.last().cloned().into_iter().collect::<Vec<_>>();
    // A table that is all key has nothing to set, but must still tell whether the row is its own.
    let set = if rest.is_empty() { &first } else { &rest };
    let set: Vec<String> = set.iter().map(|n| format!("{0} = excluded.{0}", ddl::quoted(n))).collect();
    let same = match table.kind {
        TableKind::Hash { .. } => format!(" WHERE {name}.{BUCKET_COLUMN} = excluded.{BUCKET_COLUMN}"),
        _ => String::new(),
    };
    format!("{insert} ON CONFLICT ({}) DO UPDATE SET {}{same}", ddl::quoted_list(&key), set.join(", "))
}
