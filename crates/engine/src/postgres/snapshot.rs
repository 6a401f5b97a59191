//! The state of a shard at one moment: a REPEATABLE READ transaction that pages through tables by key.
//!
//! Its position is found in the snapshot itself, with the rule of the log's readers, so every change up to it is in
//! the snapshot. Later ones may be, too: whoever applies the changes after it applies those again, to no effect.
//!
//! A page begins after a key: `(k1, k2) > ($1, $2) ORDER BY k1, k2 LIMIT n`, which the primary key's index answers
//! without looking at what came before.

use super::apply::column_type;
use super::ddl::{columns, quote, table_name};
use super::fault;
use super::log::{self, Marks, unit_of};
use super::pool::{Conn, Connections, Ended};
use super::schema;
use super::tenancy::OWN;
use super::transaction::read_value;
use super::usage;
use super::value::Param;
use crate::env::Env;
use crate::error::{Result, ShardError};
use crate::shard::{Digest, KeyRange, MAX_PAGE_ROWS, Page, Scope, Snapshot, StoredRow, check_tenants};
use crate::usage::{TenantRange, UsagePage, check_has_buckets, check_has_tenants};
use async_trait::async_trait;
use isles_kernel::names::{BucketId, Seq, TenantId};
use isles_kernel::schema::{BUCKET_COLUMN, Schema, TENANT_COLUMN, TENANT_KEY_COLUMN, Table, TableKind};
use isles_kernel::value::{DataType, Encoder, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use tokio_postgres::types::Type;

/// Ranges of buckets in one scope; a group has far fewer runs.
const MAX_RANGES: usize = 10_000;

pub(super) struct PgSnapshot {
    /// None only once dropped.
    conn: Option<Conn>,
    seq: Seq,
    schema: Schema,
}

pub(super) async fn take(
    clients: &Connections,
    control: &Connections,
    env: &dyn Env,
    marks: &Mutex<Marks>,
) -> Result<PgSnapshot> {
    let conn = clients.lend().await?;
    let look = control.lend().await?;
    log::prepare_snapshot(&look, env, marks).await?;
    look.keep();
    let known = log::locked(marks).clone();
    let begin = format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {OWN}");
    conn.batch_execute(&begin).await.map_err(fault::before_commit)?;
    let seq = Seq(log::complete_in_snapshot(&conn, &known).await? as u64);
    let schema = schema::load(&conn).await?;
    Ok(PgSnapshot { conn: Some(conn), seq, schema })
}

/// A query over a range, with its parameters and their types.
#[derive(Default)]
pub(super) struct Query {
    pub(super) text: String,
    pub(super) params: Vec<Param>,
    pub(super) types: Vec<Type>,
}

impl Query {
    fn push(&mut self, value: &Value, ty: Type) -> Result<String> {
        self.params.push(Param::new(value, &ty)?);
        self.types.push(ty);
        Ok(format!("${}", self.params.len()))
    }

    /// Adds the values of a key; returns the row of their places.
    fn push_key(&mut self, table: &Table, key: &[Value]) -> Result<String> {
        let types: Vec<Type> = table.physical_key().iter().map(|name| column_type(table, name)).collect();
        if key.len() != types.len() {
            return Err(ShardError::invalid(format!("a key of \"{}\" has {} values", table.name, types.len())));
        }
        let places: Result<Vec<String>> = key.iter().zip(types).map(|(value, ty)| self.push(value, ty)).collect();
        Ok(places?.join(", "))
    }
}

pub(super) fn key_types(table: &Table) -> Vec<DataType> {
    let lead = matches!(table.kind, TableKind::Tenant).then_some(DataType::Text);
    lead.into_iter().chain(table.key_positions().into_iter().map(|at| table.columns[at].ty)).collect()
}

/// The hidden column that says a row's unit, where there is one.
fn unit_column(table: &Table) -> Option<(&'static str, DataType)> {
    match table.kind {
        TableKind::Hash { .. } => Some((BUCKET_COLUMN, DataType::Int4)),
        TableKind::Tenant => Some((TENANT_COLUMN, DataType::Text)),
        TableKind::Reference | TableKind::Global => None,
    }
}

fn select(table: &Table, range: &KeyRange) -> Result<Query> {
    let mut query = Query::default();
    let hidden = unit_column(table).map_or("NULL".into(), |(name, _)| quote(name));
    let names: Vec<String> = table.columns.iter().map(|column| column.name.clone()).collect();
    let key = columns(&table.physical_key());
    let filter = filter(table, range, &mut query)?;
    query.text =
        format!("SELECT {hidden}, {} FROM {}{filter} ORDER BY {key}", columns(&names), table_name(&table.name));
    Ok(query)
}

/// The conditions of a range, behind a table's name.
pub(super) fn filter(table: &Table, range: &KeyRange, query: &mut Query) -> Result<String> {
    let key = columns(&table.physical_key());
    let mut conditions = scope(table, &range.scope, query)?;
    if let Some(after) = &range.after {
        conditions.push(format!("({key}) > ({})", query.push_key(table, after)?));
    }
    if let Some(through) = &range.through {
        conditions.push(format!("({key}) <= ({})", query.push_key(table, through)?));
    }
    Ok(if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) })
}

/// The conditions of a scope. One that a table's kind does not know selects nothing of it.
fn scope(table: &Table, scope: &Scope, query: &mut Query) -> Result<Vec<String>> {
    match (scope, &table.kind) {
        (Scope::All, _) => Ok(vec![]),
        (Scope::Buckets(group, ranges), TableKind::Hash { group: own, .. }) if group == own && !ranges.is_empty() => {
            if ranges.len() > MAX_RANGES {
                return Err(ShardError::Limit { what: "the number of bucket ranges", limit: MAX_RANGES as u64 });
            }
            let bucket = quote(BUCKET_COLUMN);
            let parts = ranges.iter().map(|range| format!("{bucket} BETWEEN {} AND {}", range.start(), range.end()));
            Ok(vec![format!("({})", parts.collect::<Vec<_>>().join(" OR "))])
        }
        (Scope::Buckets(..), TableKind::Global) if scope.has_global() => Ok(vec!["true".into()]),
        (Scope::Tenants(tenants), TableKind::Tenant) if !tenants.is_empty() => {
            let mut places = Vec::new();
            for tenant in tenants {
                let name = Value::text(tenant.as_ref().map_or("", |tenant| tenant.as_str()));
                places.push(query.push(&name, Type::TEXT)?);
            }
            Ok(vec![format!("{} IN ({})", quote(TENANT_KEY_COLUMN), places.join(", "))])
        }
        _ => Ok(vec!["false".into()]),
    }
}

fn read(table: &Table, row: &tokio_postgres::Row) -> Result<StoredRow> {
    let hidden = match unit_column(table) {
        Some((_, ty)) => read_value(row, 0, ty)?,
        None => Value::Null,
    };
    let values = table
        .columns
        .iter()
        .enumerate()
        .map(|(at, column)| read_value(row, at + 1, column.ty))
        .collect::<Result<_>>()?;
    Ok(StoredRow { unit: unit_of(table, hidden)?, values })
}

impl PgSnapshot {
    async fn each_row(&self, query: &Query, take: impl FnMut(tokio_postgres::Row) -> Result<()>) -> Result<()> {
        let conn = self.conn.as_ref().ok_or_else(|| ShardError::Unavailable("the snapshot is gone".into()))?;
        let typed = conn.prepare_typed(&query.text, &query.types).await.map_err(fault::before_commit)?;
        let params = query.params.iter().map(|param| param as &(dyn tokio_postgres::types::ToSql + Sync));
        conn.each_row(&typed, params, fault::before_commit, take).await.map(drop)
    }
}

impl Drop for PgSnapshot {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            conn.finish(Ended::Open);
        }
    }
}

#[async_trait]
impl Snapshot for PgSnapshot {
    fn seq(&self) -> Seq {
        self.seq
    }

    async fn later_changes(&mut self) -> Result<BTreeSet<Seq>> {
        let after = i64::try_from(self.seq.0).map_err(|_| ShardError::invalid("a position is below 2^63"))?;
        let conn = self.conn.as_ref().ok_or_else(|| ShardError::invalid("the snapshot is closed"))?;
        let rows = conn.rows("SELECT seq FROM _isles.log WHERE seq > $1", &[&after]).await?;
        Ok(rows.iter().map(|row| Seq(row.get::<_, i64>(0) as u64)).collect())
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    async fn page(&mut self, range: &KeyRange, rows: usize) -> Result<Page> {
        if rows == 0 || rows > MAX_PAGE_ROWS {
            return Err(ShardError::invalid(format!("a page has 1 to {MAX_PAGE_ROWS} rows")));
        }
        let table = self.schema.table(&range.table)?;
        let mut query = select(table, range)?;
        // One more than asked for tells whether there is a next page.
        query.text.push_str(&format!(" LIMIT {}", rows + 1));
        let mut found = Vec::new();
        let take = |row: tokio_postgres::Row| {
            found.push(read(table, &row)?);
            Ok(())
        };
        self.each_row(&query, take).await?;
        let more = found.len() > rows;
        found.truncate(rows);
        let next = found.last().filter(|_| more).map(|row| table.key_of(&row.unit, &row.values));
        Ok(Page { rows: found, next })
    }

    async fn digest(&mut self, range: &KeyRange) -> Result<Digest> {
        let table = self.schema.table(&range.table)?;
        let query = select(table, range)?;
        let (mut digest, mut scratch) = (Digest::default(), Encoder::default());
        let take = |row: tokio_postgres::Row| {
            digest.add_row(&read(table, &row)?, &mut scratch);
            Ok(())
        };
        self.each_row(&query, take).await?;
        Ok(digest)
    }

    async fn count(&mut self, range: &KeyRange) -> Result<u64> {
        let table = self.schema.table(&range.table)?;
        let mut query = Query::default();
        let filter = filter(table, range, &mut query)?;
        query.text = format!("SELECT count(*) FROM {}{filter}", table_name(&table.name));
        let mut rows = 0;
        let take = |row: tokio_postgres::Row| {
            rows = row.get::<_, i64>(0) as u64;
            Ok(())
        };
        self.each_row(&query, take).await?;
        Ok(rows)
    }

    async fn tenants(
        &mut self,
        table: &str,
        after: Option<&Option<TenantId>>,
        limit: usize,
    ) -> Result<Vec<Option<TenantId>>> {
        check_tenants(limit)?;
        let table = self.schema.table(table)?;
        check_has_tenants(table)?;
        let conn = self.conn.as_ref().ok_or_else(|| ShardError::Unavailable("the snapshot is gone".into()))?;
        usage::tenants(conn, table, after, limit).await
    }

    async fn bucket_rows(&mut self, table: &str) -> Result<BTreeMap<BucketId, u64>> {
        let table = self.schema.table(table)?;
        check_has_buckets(table)?;
        let conn = self.conn.as_ref().ok_or_else(|| ShardError::Unavailable("the snapshot is gone".into()))?;
        usage::bucket_rows(conn, table).await
    }

    async fn usage(&mut self, range: &TenantRange, tenants: usize) -> Result<UsagePage> {
        check_tenants(tenants)?;
        let conn = self.conn.as_ref().ok_or_else(|| ShardError::Unavailable("the snapshot is gone".into()))?;
        usage::usage(conn, &self.schema, range, tenants).await
    }
}
