//! What tenants store, and how a tenant's rows go.
//!
//! Primary keys of tenant tables are led by the tenant, so a page of tenants and the next rows of one are ranges of the
//! table itself, and nothing before them is read.

use super::ddl;
use super::raw::Db;
use super::writer::Writer;
use crate::error::Result;
use crate::shard::{Limits, Statement};
use crate::usage::{Gathered, TenantRange, UsagePage, loose_names, tenant_key, tenant_of};
use isles_kernel::names::{BucketId, TenantId};
use isles_kernel::schema::{BUCKET_COLUMN, Schema, TENANT_KEY_COLUMN, Table, TableKind};
use isles_kernel::value::{DataType, Value};
use std::collections::BTreeMap;

pub(super) fn usage(db: &mut Db, schema: &Schema, range: &TenantRange, limit: usize) -> Result<UsagePage> {
    // Rows of a copy that is being made are not yet anybody's.
    let counts = |table: &&Table| table.kind == TableKind::Tenant && !table.is_internal();
    let tables: Vec<&Table> = schema.tables.values().filter(counts).collect();
    let condition = range.condition();
    let mut params: Vec<Value> = condition.iter().map(|(_, key)| Value::text(*key)).collect();
    let mut filter = condition.map_or("1".into(), |(operator, _)| format!("{TENANT_KEY_COLUMN} {operator} $1"));
    let mut gathered = Gathered::new(limit);
    for table in &tables {
        let sql = format!(
            "SELECT DISTINCT {TENANT_KEY_COLUMN} FROM {} WHERE {filter} ORDER BY {TENANT_KEY_COLUMN} LIMIT {limit}",
            ddl::quoted(&table.name)
        );
        let rows = db.own_text(&sql, &params, &[DataType::Text])?;
        gathered.names(rows.into_iter().filter_map(|row| name_of(row.into_iter().next()?)).collect());
    }
    let Some(last) = gathered.last() else { return Ok(gathered.page(range)) };
    params.push(Value::text(last));
    filter.push_str(&format!(" AND {TENANT_KEY_COLUMN} <= ${}", params.len()));
    for table in &tables {
        let sql = format!(
            "SELECT {TENANT_KEY_COLUMN}, count(*), sum({}) FROM {} WHERE {filter} GROUP BY {TENANT_KEY_COLUMN}",
            bytes_of(table),
            ddl::quoted(&table.name)
        );
        db.own_each(&sql, &params, &[DataType::Text, DataType::Int8, DataType::Int8], |row| {
            if let [Value::Text(name), Value::Int(rows), Value::Int(bytes)] = &row[..] {
                gathered.add(name.clone(), *rows, *bytes);
            }
            Ok(())
        })?;
    }
    Ok(gathered.page(range))
}

/// The tenants of a table, after one of them.
pub(super) fn tenants(
    db: &mut Db,
    table: &Table,
    after: Option<&Option<TenantId>>,
    limit: usize,
) -> Result<Vec<Option<TenantId>>> {
    let sql = loose_names(&ddl::quoted(&table.name), after, limit);
    let rows = db.own_text(&sql, &[Value::text(after.map_or("", tenant_key))], &[DataType::Text])?;
    rows.into_iter().flatten().filter_map(name_of).map(tenant_of).collect()
}

pub(super) fn bucket_rows(db: &mut Db, table: &Table) -> Result<BTreeMap<BucketId, u64>> {
    let name = ddl::quoted(&table.name);
    let sql = format!("SELECT {BUCKET_COLUMN}, count(*) FROM {name} GROUP BY {BUCKET_COLUMN}");
    let rows = db.own_text(&sql, &[], &[DataType::Int4, DataType::Int8])?;
    let count = |row: Vec<Value>| match row[..] {
        [Value::Int(bucket), Value::Int(rows)] => Some((BucketId(bucket as u32), rows as u64)),
        _ => None,
    };
    Ok(rows.into_iter().filter_map(count).collect())
}

fn name_of(value: Value) -> Option<String> {
    if let Value::Text(name) = value { Some(name) } else { None }
}

/// The bytes of a row's values: those of texts and blobs, and for numbers about as many as they take.
fn bytes_of(table: &Table) -> String {
    let sizes = table.columns.iter().map(|column| format!("coalesce(octet_length({}), 0)", ddl::quoted(&column.name)));
    let sizes: Vec<String> = sizes.collect();
    if sizes.is_empty() { "0".into() } else { sizes.join(" + ") }
}

/// Deletes some rows of a tenant from a table, or all of them; captured like any write.
pub(super) fn purge(writer: &mut Writer, table: &str, tenant: &Option<TenantId>, rows: Option<usize>) -> Result<u64> {
    let schema = writer.state.schema.clone();
    let table = schema.table(table)?;
    if table.kind != TableKind::Tenant {
        return Ok(0);
    }
    let (name, key) = (ddl::quoted(&table.name), ddl::quoted_list(&table.physical_key()));
    let sql = match rows {
        Some(rows) => format!(
            "DELETE FROM {name} WHERE ({key}) IN (SELECT {key} FROM {name} WHERE {TENANT_KEY_COLUMN} = $1 LIMIT {rows})"
        ),
        None => format!("DELETE FROM {name} WHERE {TENANT_KEY_COLUMN} = $1"),
    };
    let statement = Statement::new(sql, vec![Value::text(tenant_key(tenant))]);
    Ok(writer.db.run_own(&statement, &Limits::default())?.affected)
}

/// Deletes some rows of a table, by key, and captures nothing.
pub(super) fn empty(writer: &mut Writer, table: &str, rows: usize) -> Result<u64> {
    let schema = writer.state.schema.clone();
    let table = schema.table(table)?;
    let (name, key) = (ddl::quoted(&table.name), ddl::quoted_list(&table.physical_key()));
    let sql = format!("DELETE FROM {name} WHERE ({key}) IN (SELECT {key} FROM {name} LIMIT {rows})");
    Ok(writer.applier()?.run_own(&Statement::new(sql, Vec::new()), &Limits::default())?.affected)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Each step is a search in the key, so rows between two names are not read.
    #[test]
    fn names_are_searched_for_and_not_scanned() {
        let db = rusqlite::Connection::open_in_memory().unwrap();
        let table = "CREATE TABLE notes (_tenant TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (_tenant, id))";
        db.execute_batch(&format!("{table} STRICT, WITHOUT ROWID")).unwrap();
        for after in [None, Some(&None)] {
            let sql = format!("EXPLAIN QUERY PLAN {}", loose_names("notes", after, 10));
            let mut plan = db.prepare(&sql).unwrap();
            let steps: Vec<String> =
                plan.query_map(["a"], |row| row.get(3)).unwrap().map(|step| step.unwrap()).collect();
            let touching: Vec<&String> = steps.iter().filter(|step| step.contains(" notes")).collect();
            assert_eq!(touching, ["SEARCH notes USING PRIMARY KEY (_tenant>?)"; 2], "{steps:?}");
            assert!(!steps.iter().any(|step| step.contains("TEMP B-TREE")), "{steps:?}");
        }
    }
}
