//! Prints the kernel's schema as SQLite's DDL.
//!
//! Tables are STRICT and clustered by their physical key (WITHOUT ROWID): rows of a tenant lie together, and a null
//! in a primary key is an error, where a rowid would be invented. Ranges that a storage form does not keep by itself
//! are checked.

use super::value;
use crate::error::{Result, ShardError};
use isles_kernel::form;
use isles_kernel::schema::{
    BUCKET_COLUMN, Check, Column, ForeignKey, Key, KeyOver, KeyPart, Object, ObjectKind, OnChange, Schema,
    TENANT_COLUMN, TENANT_KEY_COLUMN, Table, TableKind,
};
use isles_kernel::value::{DATES, DataType, TIMES, TIMESTAMPS, Value};

/// The engine's own tables.
pub(super) const OWN_TABLES: &str = "
CREATE TABLE _isles_meta (name TEXT NOT NULL PRIMARY KEY, value ANY) STRICT, WITHOUT ROWID;
CREATE TABLE _isles_fence (scope TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL, mode TEXT NOT NULL)
    STRICT, WITHOUT ROWID;
CREATE TABLE _isles_log (last_seq INTEGER NOT NULL PRIMARY KEY, first_seq INTEGER NOT NULL,
    first_txn INTEGER NOT NULL, txns INTEGER NOT NULL, body BLOB NOT NULL) STRICT;
CREATE TABLE _isles_consumer (stream TEXT NOT NULL PRIMARY KEY, position INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE _isles_stream (stream TEXT NOT NULL PRIMARY KEY, position INTEGER NOT NULL, cursor BLOB,
    driver INTEGER) STRICT, WITHOUT ROWID;
CREATE TABLE _isles_row_version (name TEXT NOT NULL, key BLOB NOT NULL, stream TEXT NOT NULL,
    epoch INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (name, key)) STRICT, WITHOUT ROWID;
";

/// An identifier, quoted.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

pub(super) fn quoted_list<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    names.into_iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ")
}

pub(super) fn drop_object(object: &Object) -> String {
    match object.kind {
        ObjectKind::View => format!("DROP VIEW {}", quoted(&object.name)),
        ObjectKind::Trigger => format!("DROP TRIGGER {}", quoted(&object.name)),
    }
}

/// Makes a table, under another name for a while if it is to take the place of one that exists. Keys come after.
pub(super) fn create_table(schema: &Schema, table: &Table, name: &str) -> Result<String> {
    let mut parts = hidden_definitions(table);
    parts.extend(table.columns.iter().map(column_definition));
    parts.push(format!("PRIMARY KEY ({})", quoted_list(&table.physical_key())));
    parts.extend(table.checks.iter().map(check_definition));
    for foreign in &table.foreign_keys {
        parts.push(foreign_definition(schema, table, foreign)?);
    }
    Ok(format!("CREATE TABLE {} (\n    {}\n) STRICT, WITHOUT ROWID", quoted(name), parts.join(",\n    ")))
}

fn check_definition(check: &Check) -> String {
    format!("CONSTRAINT {} CHECK ({})", quoted(&check.name), check.expression.sqlite)
}

fn hidden_definitions(table: &Table) -> Vec<String> {
    match table.kind {
        TableKind::Hash { buckets, .. } => {
            vec![format!(
                "{BUCKET_COLUMN} INTEGER NOT NULL CHECK ({BUCKET_COLUMN} >= 0 AND {BUCKET_COLUMN} < {buckets})"
            )]
        }
        // SQLite does not take a generated column into a primary key, so the writer fills both and this checks.
        TableKind::Tenant => vec![
            format!("{TENANT_KEY_COLUMN} TEXT NOT NULL"),
            format!("{TENANT_COLUMN} TEXT CHECK ({TENANT_KEY_COLUMN} = coalesce({TENANT_COLUMN}, ''))"),
        ],
        TableKind::Reference | TableKind::Global => vec![],
    }
}

pub(super) fn column_definition(column: &Column) -> String {
    let name = quoted(&column.name);
    let mut out = format!("{name} {}", value::declared(column.ty));
    if !column.nullable {
        out.push_str(" NOT NULL");
    }
    if let Some(default) = &column.default {
        out.push_str(&format!(" DEFAULT {}", literal(default)));
    }
    if let Some((constraint, check)) = type_check(&name, column.ty) {
        out.push_str(&format!(" CONSTRAINT {constraint} CHECK ({check})"));
    }
    out
}

/// Constraints that keep what the declared type does not; their names tell the error.
pub(super) const RANGE: &str = "_isles_range";
pub(super) const JSON: &str = "_isles_json";

fn type_check(name: &str, ty: DataType) -> Option<(&'static str, String)> {
    let range = |check| Some((RANGE, check));
    match ty {
        DataType::Bool => range(format!("{name} IN (0, 1)")),
        DataType::Int2 => range(format!("{name} BETWEEN -32768 AND 32767")),
        DataType::Int4 => range(format!("{name} BETWEEN -2147483648 AND 2147483647")),
        DataType::Date => {
            range(within(name, ((*DATES.start()).into(), (*DATES.end()).into()), (i32::MIN.into(), i32::MAX.into())))
        }
        DataType::Timestamp | DataType::TimestampTz => {
            range(within(name, (*TIMESTAMPS.start(), *TIMESTAMPS.end()), (i64::MIN, i64::MAX)))
        }
        DataType::Float4 | DataType::Float8 => range(format!("typeof({name}) IN ('real', 'null') OR {name} = 'NaN'")),
        DataType::Time => range(format!("{name} BETWEEN {} AND {}", TIMES.start(), TIMES.end())),
        DataType::Uuid => range(format!("length({name}) = 16")),
        DataType::Json => Some((JSON, format!("json_valid({name})"))),
        _ => value::check(name, ty).and_then(range),
    }
}

/// Between two finite bounds, or one of the infinities.
fn within(name: &str, (first, last): (i64, i64), (minus, plus): (i64, i64)) -> String {
    format!("{name} BETWEEN {first} AND {last} OR {name} IN ({minus}, {plus})")
}

/// A value as it stands in DDL, in its storage form.
fn literal(value: &Value) -> String {
    let text = |s: &str| format!("'{}'", s.replace('\'', "''"));
    let blob = |bytes: &[u8]| format!("x'{}'", bytes.iter().map(|b| format!("{b:02x}")).collect::<String>());
    match value {
        Value::Null => "NULL".into(),
        Value::Bool(b) => i64::from(*b).to_string(),
        Value::Int(n) | Value::Time(n) | Value::Timestamp(n) | Value::TimestampTz(n) => format!("({n})"),
        Value::Date(n) => format!("({n})"),
        Value::Float(x) if x.is_nan() => "'NaN'".into(),
        Value::Float(x) if x.is_infinite() => if *x > 0.0 { "(9e999)" } else { "(-9e999)" }.into(),
        Value::Float(x) => format!("({x:?})"),
        Value::Numeric(n) => text(n.as_str()),
        Value::Text(s) | Value::Json(s) => text(s),
        Value::Bytes(b) => blob(b),
        Value::Uuid(u) => blob(u),
        Value::Interval(interval) => text(&interval.to_string()),
        Value::Array(members) => text(&form::array_text(members)),
    }
}

pub(super) fn create_key(table: &Table, key: &Key) -> String {
    let unique = if key.is_unique_on_shard() { "UNIQUE " } else { "" };
    // One over all tenants finds their rows without knowing which they are.
    let is_led = matches!(table.kind, TableKind::Tenant) && key.global.is_none();
    let lead = is_led.then(|| TENANT_KEY_COLUMN.to_string());
    let parts: Vec<String> = match key.parts.as_slice() {
        [] => key.columns.iter().map(|name| quoted(name)).collect(),
        parts => parts.iter().map(key_part).collect(),
    };
    let parts: Vec<String> = lead.into_iter().chain(parts).collect();
    let filter = key.predicate.as_ref().map_or(String::new(), |only| format!(" WHERE {}", only.sqlite));
    format!(
        "CREATE {unique}INDEX {} ON {} ({}){filter}",
        quoted(&table.stored_key(key)),
        quoted(&table.name),
        parts.join(", ")
    )
}

/// SQLite's indexes have nulls first, always. Nobody can tell: an index is found by SQLite itself, where it serves.
fn key_part(part: &KeyPart) -> String {
    let over = match &part.over {
        KeyOver::Column(name) => quoted(name),
        KeyOver::Expression(expression) => format!("({})", expression.sqlite),
    };
    if part.descending { format!("{over} DESC") } else { over }
}

fn foreign_definition(schema: &Schema, table: &Table, foreign: &ForeignKey) -> Result<String> {
    let target = if foreign.table == table.name { table } else { schema.table(&foreign.table)? };
    // A reference table is everyone's: only a reference within the tenant is led by it.
    let tenant = matches!(target.kind, TableKind::Tenant);
    if tenant && [foreign.on_delete, foreign.on_update].contains(&OnChange::SetNull) {
        // SQLite would null the tenant as well.
        return Err(ShardError::statement("0A000", "SET NULL is not supported on tenant tables of SQLite shards"));
    }
    let lead = || tenant.then(|| TENANT_KEY_COLUMN.to_string()).into_iter();
    let columns: Vec<String> = lead().chain(foreign.columns.iter().cloned()).collect();
    let references: Vec<String> = lead().chain(foreign.references.iter().cloned()).collect();
    Ok(format!(
        "CONSTRAINT {} FOREIGN KEY ({}) REFERENCES {} ({}) ON DELETE {} ON UPDATE {}{}",
        quoted(&foreign.name),
        quoted_list(&columns),
        quoted(&foreign.table),
        quoted_list(&references),
        foreign.on_delete.sql(),
        foreign.on_update.sql(),
        foreign.deferral.sql(),
    ))
}
