//! Export, import and events of a shard: rows and changes of one physical database, by hand.

use super::gate::{Admin, Answer, Body, Refusal, answer};
use super::rows::{cursor, list, object, read, read_cursor};
use axum::extract::Path;
use isles_cluster::database::GivenRow;
use isles_engine::shard::{ImportMode, KeyRange, Scope, Shard, StoredRow};
use isles_kernel::change::{Change, Op};
use isles_kernel::error::SqlError;
use isles_kernel::names::{Seq, ShardId, TenantId};
use isles_kernel::schema::{Schema, Table, TableKind, Unit};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value as Json, json};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Rows of an export, if not said, and at most.
const ROWS: usize = 200;
const ROWS_RANGE: RangeInclusive<usize> = 1..=500;
/// Events, likewise.
const EVENTS: usize = 500;
const EVENTS_RANGE: RangeInclusive<usize> = 1..=2_000;

/// Tells null, the null tenant, from nothing.
fn said<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Option<String>>, D::Error> {
    Option::<String>::deserialize(input).map(Some)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Wanted {
    table: String,
    #[serde(default, deserialize_with = "said")]
    tenant_id: Option<Option<String>>,
    bucket: Option<u32>,
    buckets: Option<Between>,
    cursor: Option<String>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Between {
    first: u32,
    last: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Given {
    table: String,
    rows: Vec<GivenJson>,
    #[serde(default)]
    mode: Mode,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GivenJson {
    #[serde(default, deserialize_with = "said")]
    tenant_id: Option<Option<String>>,
    /// What an export says of a row; where it belongs is computed from its key.
    #[serde(rename = "bucket")]
    _bucket: Option<u32>,
    data: Map<String, Json>,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Upsert,
    Insert,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Since {
    #[serde(default)]
    after_id: u64,
    limit: Option<usize>,
    #[serde(default, deserialize_with = "said")]
    tenant_id: Option<Option<String>>,
}

fn tenant(name: Option<String>) -> Result<Option<TenantId>, SqlError> {
    name.map(TenantId::new).transpose().map_err(|error| SqlError::new("22023", error.to_string()))
}

fn within(limit: Option<usize>, otherwise: usize, range: RangeInclusive<usize>) -> Result<usize, SqlError> {
    let limit = limit.unwrap_or(otherwise);
    let (low, high) = (range.start(), range.end());
    if range.contains(&limit) {
        Ok(limit)
    } else {
        Err(SqlError::new("22023", format!("limit is between {low} and {high}")))
    }
}

/// A shard that there is.
async fn open(admin: &Admin, name: &str) -> Result<(ShardId, Arc<dyn Shard>), SqlError> {
    let missing =
        || SqlError::new("42704", format!("there is no shard {name}")).with_hint("SHOW SHARDS lists the shards");
    let id = ShardId::new(name).map_err(|_| missing())?;
    let known = admin.database().shard_work().into_iter().any(|(known, _)| known == id);
    if !known {
        return Err(missing());
    }
    let shard = admin.database().shard(&id).await?;
    Ok((id, shard))
}

async fn schema(shard: &Arc<dyn Shard>) -> Result<Arc<Schema>, SqlError> {
    shard.schema().await.map_err(|error| error.for_people())
}

fn table<'a>(schema: &'a Schema, name: &str) -> Result<&'a Table, SqlError> {
    schema.table(name).map_err(|_| SqlError::new("42P01", format!("relation \"{name}\" does not exist")))
}

pub(super) async fn export(admin: Admin, Path(name): Path<String>, body: Result<Body<Wanted>, Refusal>) -> Answer {
    let Body(wanted) = body?;
    let (_, shard) = open(&admin, &name).await?;
    let schema = schema(&shard).await?;
    let table = table(&schema, &wanted.table)?;
    let limit = within(wanted.limit, ROWS, ROWS_RANGE)?;
    let after = wanted.cursor.as_deref().map(|text| read_cursor(table, text)).transpose()?;
    let range = KeyRange { table: table.name.clone(), scope: scope(table, wanted)?, after, through: None };
    let page = shard.export(&range, Some(limit)).await.map_err(|error| error.for_people())?;
    let rows: Vec<Json> = page.rows.iter().map(|row| exported(table, row)).collect();
    let next = page.next.as_deref().map(cursor);
    Ok(answer(json!({"success": true, "rows": rows, "nextCursor": next})))
}

/// Which rows: of a tenant in a tenant table, of buckets in a table by hash.
fn scope(table: &Table, wanted: Wanted) -> Result<Scope, SqlError> {
    let Wanted { tenant_id, bucket, buckets, .. } = wanted;
    match (&table.kind, tenant_id, bucket, buckets) {
        (TableKind::Tenant, Some(name), None, None) => Ok(Scope::Tenants(vec![tenant(name)?])),
        (TableKind::Hash { group, .. }, None, Some(bucket), None) => {
            Ok(Scope::Buckets(group.clone(), vec![bucket..=bucket]))
        }
        (TableKind::Hash { group, .. }, None, None, Some(Between { first, last })) if first <= last => {
            Ok(Scope::Buckets(group.clone(), vec![first..=last]))
        }
        (TableKind::Reference | TableKind::Global, None, None, None) => Ok(Scope::All),
        (kind, ..) => Err(SqlError::new(
            "22023",
            match kind {
                TableKind::Tenant => "an export of a tenant table needs tenantId, and nothing else",
                TableKind::Hash { .. } => "an export of this table needs either bucket or buckets {first, last}",
                TableKind::Reference | TableKind::Global => "this table has neither tenants nor buckets",
            },
        )),
    }
}

/// What is said of a row's unit.
fn with_unit(mut row: Json, unit: &Unit) -> Json {
    match unit {
        Unit::Tenant(tenant) => row["tenantId"] = json!(tenant),
        Unit::Bucket(..) | Unit::Shared => {
            if let Some(bucket) = unit.stored_bucket() {
                row["bucket"] = json!(bucket);
            }
        }
    }
    row
}

fn exported(table: &Table, row: &StoredRow) -> Json {
    with_unit(json!({"data": object(Some(table), &row.values)}), &row.unit)
}

pub(super) async fn import(admin: Admin, Path(name): Path<String>, body: Result<Body<Given>, Refusal>) -> Answer {
    let Body(given) = body?;
    let (id, shard) = open(&admin, &name).await?;
    if given.rows.is_empty() || given.rows.len() > *ROWS_RANGE.end() {
        let message = format!("an import has 1 to {} rows, not {}", ROWS_RANGE.end(), given.rows.len());
        return Err(SqlError::new("22023", message).into());
    }
    let schema = schema(&shard).await?;
    let table = table(&schema, &given.table)?;
    let rows = given.rows.into_iter().map(|row| given_row(table, row)).collect::<Result<Vec<_>, _>>()?;
    let mode = match given.mode {
        Mode::Upsert => ImportMode::Upsert,
        Mode::Insert => ImportMode::Insert,
    };
    admin.note("import rows", &format!("{id}.{}", table.name));
    let imported = admin.database().import_rows(&id, &table.name, rows, mode).await?;
    Ok(answer(json!({"success": true, "rowsImported": imported})))
}

fn given_row(table: &Table, row: GivenJson) -> Result<GivenRow, SqlError> {
    let values = read(table, &row.data)?;
    let tenant = match (&table.kind, row.tenant_id) {
        (TableKind::Tenant, Some(name)) => tenant(name)?,
        (TableKind::Tenant, None) => {
            return Err(
                SqlError::new("22023", "a row of a tenant table needs tenantId").with_hint("null is the null tenant")
            );
        }
        (_, Some(_)) => return Err(SqlError::new("22023", format!("table \"{}\" has no tenants", table.name))),
        (_, None) => None,
    };
    Ok(GivenRow { tenant, values })
}

/// Changes of the shard's log: there are some while somebody reads it, as a move does.
pub(super) async fn events(admin: Admin, Path(name): Path<String>, body: Result<Body<Since>, Refusal>) -> Answer {
    let Body(since) = body?;
    let limit = within(since.limit, EVENTS, EVENTS_RANGE)?;
    let only = since.tenant_id.map(tenant).transpose()?;
    let (_, shard) = open(&admin, &name).await?;
    let schema = schema(&shard).await?;
    let page = shard.changes(Seq(since.after_id), limit).await.map_err(|error| error.for_people())?;
    let is_wanted = |change: &&Change| only.as_ref().is_none_or(|only| change.unit == Unit::Tenant(only.clone()));
    let events: Vec<Json> = page.changes.iter().filter(is_wanted).map(|change| event(&schema, change)).collect();
    Ok(answer(json!({"success": true, "events": events, "nextAfterId": page.through})))
}

fn event(schema: &Schema, change: &Change) -> Json {
    // Its columns may have had other names when it was made.
    let table = schema.tables.get(&change.table).filter(|_| change.schema == schema.version);
    let side = |values: &Option<Vec<isles_kernel::value::Value>>| values.as_deref().map(|values| object(table, values));
    let op = match change.op {
        Op::Insert => "insert",
        Op::Update => "update",
        Op::Delete => "delete",
    };
    let event = json!({
        "id": change.seq,
        "type": "mutation",
        "table": change.table,
        "op": op,
        "key": list(&change.key),
        "before": side(&change.before),
        "after": side(&change.after),
        "transaction": change.txn,
        "schemaVersion": change.schema,
    });
    with_unit(event, &change.unit)
}
