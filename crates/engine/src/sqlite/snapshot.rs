//! Pages and digests of one moment.
//!
//! A snapshot is a reader whose transaction stays open: WAL keeps its view while the writer goes on. Its position is
//! read in that same transaction, so it is exact.

use super::raw::{Db, Prepared, read_columns};
use super::reader::{self, ReaderGuard};
use super::{OWN_WRITE_TIME, Shared, ddl, format, usage, value};
use crate::error::{Result, ShardError};
use crate::shard::{Digest, KeyRange, MAX_PAGE_ROWS, Page, Scope, Snapshot, StoredRow, check_tenants};
use crate::usage::{TenantRange, UsagePage, check_has_buckets, check_has_tenants};
use async_trait::async_trait;
use isles_kernel::names::{BucketId, Seq, TenantId};
use isles_kernel::schema::{BUCKET_COLUMN, Schema, TENANT_COLUMN, TENANT_KEY_COLUMN, Table, TableKind, Unit};
use isles_kernel::value::{DataType, Encoder, Value};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// A digest reads a whole range; it is the mover's work and bounded by the mover's own limits.
pub(super) const DIGEST_TIME: Duration = Duration::from_secs(3_600);

struct SqliteSnapshot {
    /// Away while a job has it.
    reader: Option<ReaderGuard>,
    shared: Arc<Shared>,
    seq: Seq,
    schema: Arc<Schema>,
}

pub(super) async fn take(shared: &Arc<Shared>) -> Result<Box<dyn Snapshot>> {
    let mut guard = reader::checkout(shared, shared.env.elapsed() + OWN_WRITE_TIME).await?;
    let job = move || {
        let db = guard.db();
        db.own("BEGIN", &[], &[])?;
        let seq = format::current_seq(db)?;
        let schema = Arc::new(format::load_schema(db, format::SCHEMA)?);
        Ok((guard, seq, schema))
    };
    let (reader, seq, schema) = shared.on_pool(job).await?.map_err(reader::read_error)?;
    Ok(Box::new(SqliteSnapshot { reader: Some(reader), shared: shared.clone(), seq, schema }))
}

impl SqliteSnapshot {
    async fn job<T: Send + 'static>(
        &mut self,
        time: Duration,
        work: impl FnOnce(&mut Db) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.shared.check_running()?;
        let mut guard = self.reader.take().ok_or_else(|| ShardError::invalid("the snapshot is gone"))?;
        let deadline = self.shared.env.elapsed() + time;
        let run = move || {
            guard.db().set_watch(deadline, None);
            let result = work(guard.db());
            (guard, result)
        };
        let (guard, result) = self.shared.on_pool(run).await?;
        self.reader = Some(guard);
        result.map_err(reader::read_error)
    }
}

#[async_trait]
impl Snapshot for SqliteSnapshot {
    fn seq(&self) -> Seq {
        self.seq
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    async fn page(&mut self, range: &KeyRange, rows: usize) -> Result<Page> {
        if rows == 0 || rows > MAX_PAGE_ROWS {
            return Err(ShardError::invalid(format!("a page has 1 to {MAX_PAGE_ROWS} rows, not {rows}")));
        }
        let table = self.schema.table(&range.table)?.clone();
        let query = RangeQuery::new(&table, range, Some(rows))?;
        self.job(OWN_WRITE_TIME, move |db| read_page(db, &table, &query, rows)).await
    }

    async fn digest(&mut self, range: &KeyRange) -> Result<Digest> {
        let table = self.schema.table(&range.table)?.clone();
        let query = RangeQuery::new(&table, range, None)?;
        let work = move |db: &mut Db| {
            let mut digest = Digest::default();
            let mut scratch = Encoder::default();
            query.each(db, &table, |row| {
                digest.add_row(&row, &mut scratch);
                Ok(())
            })?;
            Ok(digest)
        };
        self.job(DIGEST_TIME, work).await
    }

    async fn count(&mut self, range: &KeyRange) -> Result<u64> {
        let table = self.schema.table(&range.table)?.clone();
        let RangeQuery { sql, params, .. } = RangeQuery::new(&table, range, None)?;
        let sql = format!("SELECT count(*) FROM ({sql})");
        let count = move |db: &mut Db| match db.own_text(&sql, &params, &[DataType::Int8])?.pop().as_deref() {
            Some([Value::Int(rows)]) => Ok(*rows as u64),
            _ => Err(ShardError::invalid("a count has one row")),
        };
        self.job(DIGEST_TIME, count).await
    }

    async fn tenants(
        &mut self,
        table: &str,
        after: Option<&Option<TenantId>>,
        limit: usize,
    ) -> Result<Vec<Option<TenantId>>> {
        check_tenants(limit)?;
        let table = self.schema.table(table)?.clone();
        check_has_tenants(&table)?;
        let after = after.cloned();
        self.job(OWN_WRITE_TIME, move |db| usage::tenants(db, &table, after.as_ref(), limit)).await
    }

    async fn bucket_rows(&mut self, table: &str) -> Result<BTreeMap<BucketId, u64>> {
        let table = self.schema.table(table)?.clone();
        check_has_buckets(&table)?;
        self.job(DIGEST_TIME, move |db| usage::bucket_rows(db, &table)).await
    }

    async fn usage(&mut self, range: &TenantRange, tenants: usize) -> Result<UsagePage> {
        check_tenants(tenants)?;
        let (schema, range) = (self.schema.clone(), range.clone());
        self.job(DIGEST_TIME, move |db| usage::usage(db, &schema, &range, tenants)).await
    }
}

fn read_page(db: &mut Db, table: &Table, query: &RangeQuery, limit: usize) -> Result<Page> {
    let mut rows = Vec::new();
    query.each(db, table, |row| {
        rows.push(row);
        Ok(())
    })?;
    let full = rows.len() == limit;
    let next = rows.last().filter(|_| full).map(|row: &StoredRow| table.key_of(&row.unit, &row.values));
    Ok(Page { rows, next })
}

/// A key range as SQL.
pub(super) struct RangeQuery {
    pub(super) sql: String,
    pub(super) params: Vec<Value>,
    pub(super) columns: Vec<DataType>,
}

impl RangeQuery {
    /// All physical columns.
    fn new(table: &Table, range: &KeyRange, limit: Option<usize>) -> Result<RangeQuery> {
        let names = table.hidden_columns().iter().map(|name| (*name).to_string());
        let names: Vec<String> = names.chain(table.columns.iter().map(|column| column.name.clone())).collect();
        RangeQuery::of(table, &names, columns(table), range, limit)
    }

    /// The columns of the physical key.
    pub(super) fn keys(table: &Table, range: &KeyRange, limit: usize) -> Result<RangeQuery> {
        let key = table.physical_key();
        let ty = |name: &String| table.position(name).map_or(DataType::Text, |at| table.columns[at].ty);
        let types = key.iter().map(ty).collect();
        RangeQuery::of(table, &key, types, range, Some(limit))
    }

    fn of(
        table: &Table,
        names: &[String],
        columns: Vec<DataType>,
        range: &KeyRange,
        limit: Option<usize>,
    ) -> Result<RangeQuery> {
        let mut query = RangeQuery { sql: String::new(), params: Vec::new(), columns };
        let key = table.physical_key();
        let mut conditions = query.scope(table, &range.scope)?;
        for (bound, operator) in [(&range.after, ">"), (&range.through, "<=")] {
            if let Some(values) = bound {
                conditions.push(query.bound(&key, values, operator)?);
            }
        }
        query.sql = format!("SELECT {} FROM {}", ddl::quoted_list(names), ddl::quoted(&table.name));
        if !conditions.is_empty() {
            query.sql.push_str(&format!(" WHERE {}", conditions.join(" AND ")));
        }
        query.sql.push_str(&format!(" ORDER BY {}", ddl::quoted_list(&key)));
        if let Some(limit) = limit {
            query.sql.push_str(&format!(" LIMIT {limit}"));
        }
        Ok(query)
    }

    fn param(&mut self, value: Value) -> String {
        self.params.push(value);
        format!("${}", self.params.len())
    }

    fn bound(&mut self, key: &[String], values: &[Value], operator: &str) -> Result<String> {
        if values.len() != key.len() {
            return Err(ShardError::invalid(format!("the key has {} columns, not {}", key.len(), values.len())));
        }
        let params: Vec<String> = values.iter().map(|value| self.param(value.clone())).collect();
        Ok(format!("({}) {operator} ({})", ddl::quoted_list(key), params.join(", ")))
    }

    fn scope(&mut self, table: &Table, scope: &Scope) -> Result<Vec<String>> {
        match (scope, &table.kind) {
            (Scope::All, _) => Ok(vec![]),
            (Scope::Buckets(wanted, ranges), TableKind::Hash { group, .. }) if wanted == group => {
                Ok(vec![in_buckets(ranges)])
            }
            (Scope::Buckets(..), TableKind::Global) if scope.has_global() => Ok(vec![]),
            (Scope::Tenants(tenants), TableKind::Tenant) => {
                let name = |tenant: &Option<TenantId>| Value::text(tenant.as_ref().map_or("", TenantId::as_str));
                let each: Vec<String> = tenants.iter().map(|tenant| self.param(name(tenant))).collect();
                Ok(vec![format!("{TENANT_KEY_COLUMN} IN ({})", each.join(", "))])
            }
            // A table of another kind or group has no rows of these units.
            _ => Ok(vec!["0".into()]),
        }
    }

    fn each(&self, db: &mut Db, table: &Table, mut each: impl FnMut(StoredRow) -> Result<()>) -> Result<()> {
        let hidden = table.hidden_columns().len();
        let (first, own) = (hidden as c_int, &self.columns[hidden..]);
        let mut last = None;
        db.own_steps(&self.sql, &self.params, |at| {
            let unit = unit(table, at, &mut last)?;
            each(StoredRow { unit, values: read_columns(at, first, own)? })
        })
    }
}

/// The condition that a row is in one of these ranges of buckets.
pub(super) fn in_buckets(ranges: &[RangeInclusive<u32>]) -> String {
    let each = ranges.iter().map(|range| format!("{BUCKET_COLUMN} BETWEEN {} AND {}", range.start(), range.end()));
    let each: Vec<String> = each.collect();
    if each.is_empty() { "0".into() } else { format!("({})", each.join(" OR ")) }
}

/// Types of a table's physical columns.
pub(super) fn columns(table: &Table) -> Vec<DataType> {
    let hidden: &[DataType] = match table.kind {
        TableKind::Hash { .. } => &[DataType::Int4],
        TableKind::Tenant => &[DataType::Text, DataType::Text],
        TableKind::Reference | TableKind::Global => &[],
    };
    hidden.iter().copied().chain(table.columns.iter().map(|column| column.ty)).collect()
}

/// The unit of the row that a statement stands on. `last` is the tenant of the row before, whose name the next one shares.
fn unit(table: &Table, at: &Prepared, last: &mut Option<TenantId>) -> Result<Unit> {
    let damaged = || ShardError::Corrupt(format!("a row of \"{}\" has no valid {TENANT_COLUMN}", table.name));
    match &table.kind {
        TableKind::Hash { group, .. } => match value::column(at, 0, DataType::Int4)? {
            Value::Int(bucket) => Ok(Unit::Bucket(group.clone(), BucketId(bucket as u32))),
            _ => Err(damaged()),
        },
        // Behind the tenant's key.
        TableKind::Tenant => match value::column(at, 1, DataType::Text)? {
            Value::Null => Ok(Unit::Tenant(None)),
            Value::Text(name) => {
                if last.as_ref().is_none_or(|last| last.as_str() != name) {
                    *last = Some(TenantId::new(name).map_err(|_| damaged())?);
                }
                Ok(Unit::Tenant(last.clone()))
            }
            _ => Err(damaged()),
        },
        TableKind::Reference | TableKind::Global => table.only_unit().ok_or_else(damaged),
    }
}
