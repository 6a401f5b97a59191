//! Rows of a stream that collide on a unique key while they arrive out of order.
//!
//! At the source no two rows ever had the same value at the same time. Here they may, for a while: the copy has brought
//! a row as it is now, and the mirror, which is behind it, brings an older row that had the value before. Refusing the
//! older row would stop the mirror for ever, since what resolves the collision comes after it.
//!
//! The row with the older version gives way. It has lost the value at the source before the newer row got it, so a
//! later change of it exists and has not been applied yet; that one brings it back as it should be. Its version stays
//! stored, as if it were there. A row without a version was copied, and gives way to any; why that is right is said in
//! [`crate::rows`].

use super::apply::{Columns, Sending, column_type, delete_keys};
use super::ddl::{quote, table_name};
use super::pool::Conn;
use super::snapshot::key_types;
use super::transaction::read_value;
use crate::error::Result;
use crate::shard::{BatchKind, Incoming, RowVersion};
use isles_kernel::names::{RoutingVersion, Seq, TenantId};
use isles_kernel::schema::{Key, TENANT_KEY_COLUMN, Table, Unit};
use isles_kernel::value::{Value, key_bytes};
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::types::Type;

/// Makes room for `rows`, which collide on a unique key; returns those that are to be written.
pub(super) async fn give_way<'a>(
    conn: &Conn,
    table: &Table,
    kind: BatchKind,
    rows: &[&'a Incoming],
) -> Result<Vec<&'a Incoming>> {
    let mut kept = rows.to_vec();
    // A key over expressions or some of the rows refuses the batch instead: which rows collide is not known here.
    for key in table.keys.iter().filter(|key| key.unique_columns().is_some()) {
        kept = one_of_each_value(table, kind, key, &kept);
        kept = against_stored(conn, table, kind, key, kept).await?;
    }
    Ok(kept)
}

/// The values of a row in a unique key, with the tenant before them; none if one is null, for nulls do not collide.
fn values(table: &Table, key: &Key, incoming: &Incoming) -> Option<Vec<Value>> {
    let row = incoming.row.as_ref()?;
    let lead = match &incoming.unit {
        Unit::Tenant(tenant) => Some(Value::text(tenant.as_ref().map_or("", TenantId::as_str))),
        _ => None,
    };
    let own = key.columns.iter().filter_map(|name| table.position(name)).map(|at| row[at].clone());
    let values: Vec<Value> = lead.into_iter().chain(own).collect();
    (!values.iter().any(Value::is_null)).then_some(values)
}

/// Of the rows with one value, the newest; of copied ones, any.
fn one_of_each_value<'a>(table: &Table, kind: BatchKind, key: &Key, rows: &[&'a Incoming]) -> Vec<&'a Incoming> {
    let rank = |at: usize, row: &Incoming| ((kind != BatchKind::Copy).then_some(row.version), at);
    let mut first = BTreeMap::new();
    for (at, row) in rows.iter().enumerate() {
        if let Some(values) = values(table, key, row) {
            let highest = first.entry(key_bytes(&values)).or_insert(rank(at, row));
            *highest = rank(at, row).max(*highest);
        }
    }
    let wins = |at: usize, row: &Incoming| match values(table, key, row) {
        Some(values) => first.get(&key_bytes(&values)) == Some(&rank(at, row)),
        None => true,
    };
    rows.iter().enumerate().filter(|(at, row)| wins(*at, row)).map(|(_, row)| *row).collect()
}

/// A stored row that has a value of one of our rows.
struct Collision {
    /// Which of our rows.
    at: usize,
    key: Vec<Value>,
}

async fn against_stored<'a>(
    conn: &Conn,
    table: &Table,
    kind: BatchKind,
    key: &Key,
    rows: Vec<&'a Incoming>,
) -> Result<Vec<&'a Incoming>> {
    let collisions = find(conn, table, key, &rows).await?;
    let versions = versions(conn, table, &collisions).await?;
    let (mut evicted, mut losers) = (Vec::new(), BTreeSet::new());
    let yields = |row: &Incoming, stored: &RowVersion| match kind {
        BatchKind::Changes => *stored > row.version,
        BatchKind::Copy => true,
        BatchKind::Repair => false,
    };
    for collision in &collisions {
        let row = rows[collision.at];
        match versions.get(&key_bytes(&collision.key)) {
            Some(stored) if yields(row, stored) => drop(losers.insert(collision.at)),
            // A unique key contains the shard key, so both rows are of one unit; should they not be, it is not deleted,
            // and stays in the way.
            _ => evicted.push((&row.unit, collision.key.as_slice())),
        }
    }
    delete_keys(conn, table, &evicted).await?;
    Ok(rows.into_iter().enumerate().filter(|(at, _)| !losers.contains(at)).map(|(_, row)| row).collect())
}

async fn find(conn: &Conn, table: &Table, key: &Key, rows: &[&Incoming]) -> Result<Vec<Collision>> {
    let found: Vec<(usize, Vec<Value>)> =
        rows.iter().enumerate().filter_map(|(at, row)| Some((at, values(table, key, row)?))).collect();
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let lead = table.physical_key().first().is_some_and(|name| name == TENANT_KEY_COLUMN);
    let names = lead.then(|| TENANT_KEY_COLUMN.to_string()).into_iter().chain(key.columns.iter().cloned());
    let places: Vec<Value> = found.iter().map(|(at, _)| Value::Int(*at as i64)).collect();
    let mut arrays = Columns::new();
    arrays.push(&places.iter().collect::<Vec<_>>(), &Type::INT8)?;
    let (mut columns, mut conditions) = (vec!["c0".to_string()], Vec::new());
    for (at, name) in names.enumerate() {
        arrays.push(&found.iter().map(|(_, values)| &values[at]).collect::<Vec<_>>(), &column_type(table, &name))?;
        columns.push(format!("c{}", at + 1));
        conditions.push(format!("t.{} = u.c{}", quote(&name), at + 1));
    }
    let primary: Vec<String> = table.physical_key().iter().map(|name| format!("t.{}", quote(name))).collect();
    let text = format!(
        "SELECT u.c0, {} FROM {} AS t JOIN {} AS u ({}) ON {}",
        primary.join(", "),
        table_name(&table.name),
        arrays.unnest(),
        columns.join(", "),
        conditions.join(" AND ")
    );
    let types = key_types(table);
    let rows = Sending::new(text, arrays).query(conn).await?;
    let collision = |row: &tokio_postgres::Row| {
        let key = types.iter().enumerate().map(|(at, ty)| read_value(row, at + 1, *ty)).collect::<Result<_>>()?;
        Ok(Collision { at: row.get::<_, i64>(0) as usize, key })
    };
    rows.iter().map(collision).collect()
}

async fn versions(conn: &Conn, table: &Table, collisions: &[Collision]) -> Result<BTreeMap<Vec<u8>, RowVersion>> {
    let keys: Vec<Vec<u8>> = collisions.iter().map(|collision| key_bytes(&collision.key)).collect();
    let text = "SELECT key, epoch, seq FROM _isles.row_version WHERE tab = $1 AND key = ANY ($2)";
    let rows = conn.rows(text, &[&table.name, &keys]).await?;
    let version = |row: &tokio_postgres::Row| RowVersion {
        epoch: RoutingVersion(row.get::<_, i64>(1) as u64),
        seq: Seq(row.get::<_, i64>(2) as u64),
    };
    Ok(rows.iter().map(|row| (row.get(0), version(row))).collect())
}
