//! The kernel's schema, printed in PostgreSQL's dialect.
//!
//! Texts sort by bytes (`COLLATE "C"`), as on SQLite. Names are always quoted. The tenant leads every key of a tenant
//! table, so no key and no foreign key can reach from one tenant into another.
//!
//! Each table has our triggers. Their names begin with a control character because triggers fire in the order of
//! their names: a client's trigger that changes the same row again must find the first change logged before its
//! own. They fire `ALWAYS`, so that `session_replication_role` cannot switch them off.

use super::value::type_of;
use isles_kernel::form;
use isles_kernel::schema::{
    BUCKET_COLUMN, Column, ForeignKey, Key, Schema, SchemaChange, TENANT_COLUMN, TENANT_KEY_COLUMN, Table, TableKind,
};
use isles_kernel::value::{DataType, Value};

/// The triggers that write the log, by name.
pub(super) const CAPTURES: [&str; 3] = ["\u{1}_isles_capture", "\u{1}_isles_update", "\u{1}_isles_rekey"];
const NO_TRUNCATE: &str = "\u{1}_isles_truncate";

/// Whether new tables are captured from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Capture {
    On,
    Off,
}

pub(super) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A table in `public`, whatever the session's search path.
pub(super) fn table_name(name: &str) -> String {
    format!("public.{}", quote(name))
}

pub(super) fn columns(names: &[String]) -> String {
    names.iter().map(|name| quote(name)).collect::<Vec<_>>().join(", ")
}

/// A column's type, as it stands in a table.
pub(super) fn type_name(ty: DataType) -> String {
    match ty {
        DataType::Text => "text COLLATE \"C\"".into(),
        other => other.postgres_name().into(),
    }
}

/// The statements of one change. `schema` is the schema the change begins from.
pub(super) fn print(change: &SchemaChange, schema: &Schema, capture: Capture) -> Vec<String> {
    match change {
        SchemaChange::CreateTable(table) => create_table(table, schema, capture),
        SchemaChange::DropTable { table } => vec![format!("DROP TABLE {}", table_name(table))],
        SchemaChange::AddColumn { table, column } => {
            vec![format!("ALTER TABLE {} ADD COLUMN {}", table_name(table), column_text(column))]
        }
        SchemaChange::DropColumn { table, column } => {
            vec![format!("ALTER TABLE {} DROP COLUMN {}", table_name(table), quote(column))]
        }
        SchemaChange::CreateKey { table, key } => {
            schema.tables.get(table).map(|table| create_key(table, key)).into_iter().collect()
        }
        SchemaChange::DropKey { key, .. } => vec![format!("DROP INDEX {}", table_name(key))],
        SchemaChange::CreateObject(object) => vec![object.postgres.clone()],
        SchemaChange::DropObject { name } => {
            schema.objects.get(name).map(|object| object.postgres_drop.clone()).into_iter().collect()
        }
    }
}

fn create_table(table: &Table, schema: &Schema, capture: Capture) -> Vec<String> {
    let mut parts: Vec<String> = hidden_columns(table).iter().map(ToString::to_string).collect();
    parts.extend(table.columns.iter().map(column_text));
    parts.push(format!("PRIMARY KEY ({})", columns(&table.physical_key())));
    parts.extend(table.foreign_keys.iter().map(|foreign| foreign_key(table, foreign, schema)));
    let create = format!("CREATE TABLE {} ({})", table_name(&table.name), parts.join(", "));
    let keys = table.keys.iter().map(|key| create_key(table, key));
    [create].into_iter().chain(keys).chain(triggers(table)).chain(switch(&table.name, capture)).collect()
}

fn hidden_columns(table: &Table) -> &'static [&'static str] {
    match table.kind {
        TableKind::Hash { .. } => &["\"_bucket\" integer NOT NULL"],
        TableKind::Tenant => &[
            "\"_tenant\" text COLLATE \"C\" GENERATED ALWAYS AS (coalesce(\"_shard\", '')) STORED",
            "\"_shard\" text COLLATE \"C\"",
        ],
        TableKind::Reference | TableKind::Global => &[],
    }
}

fn column_text(column: &Column) -> String {
    let mut text = format!("{} {}", quote(&column.name), type_name(column.ty));
    if let Some(default) = &column.default {
        text.push_str(&format!(" DEFAULT {}", literal(default, column.ty)));
    }
    if !column.nullable {
        text.push_str(" NOT NULL");
    }
    text
}

/// A value as a constant of its column's type.
fn literal(value: &Value, ty: DataType) -> String {
    let text = match value {
        Value::Null => return "NULL".into(),
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Float(x) if x.is_nan() => "NaN".into(),
        Value::Float(x) if x.is_infinite() => if *x > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        // `{:?}` is the shortest text that reads back as the same float, minus zero included.
        Value::Float(x) => format!("{x:?}"),
        Value::Numeric(n) => n.to_string(),
        Value::Text(s) | Value::Json(s) => s.clone(),
        Value::Bytes(b) => format!("\\x{}", hex(b)),
        Value::Uuid(u) => hex(u),
        Value::Interval(interval) => interval.to_string(),
        Value::Array(members) => form::array_text(members),
        Value::Date(i32::MAX) | Value::Timestamp(i64::MAX) | Value::TimestampTz(i64::MAX) => "infinity".into(),
        Value::Date(i32::MIN) | Value::Timestamp(i64::MIN) | Value::TimestampTz(i64::MIN) => "-infinity".into(),
        Value::Date(days) => return format!("('2000-01-01'::date + {days})"),
        Value::Time(86_400_000_000) => "24:00:00".into(),
        Value::Time(micros) => return time_of(*micros),
        Value::Timestamp(micros) => return moment(*micros),
        Value::TimestampTz(micros) => return format!("({} AT TIME ZONE 'UTC')", moment(*micros)),
    };
    format!("'{}'::{}", text.replace('\'', "''"), type_of(ty).name())
}

/// A time of day. An interval is multiplied as a float, which is exact for so few microseconds.
fn time_of(micros: i64) -> String {
    format!("('00:00'::time + interval '1 microsecond' * {micros})")
}

/// A timestamp as a date and a time of day, both of which are exact.
fn moment(micros: i64) -> String {
    const DAY: i64 = 86_400_000_000;
    format!("(('2000-01-01'::date + {}) + {})", micros.div_euclid(DAY), time_of(micros.rem_euclid(DAY)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn create_key(table: &Table, key: &Key) -> String {
    let unique = if key.unique { "UNIQUE " } else { "" };
    let names = lead(table, &key.columns);
    format!("CREATE {unique}INDEX {} ON {} ({})", quote(&key.name), table_name(&table.name), columns(&names))
}

/// The columns of a key of `table`, with the tenant before them where there is one.
fn lead(table: &Table, names: &[String]) -> Vec<String> {
    let tenant = matches!(table.kind, TableKind::Tenant).then(|| TENANT_KEY_COLUMN.to_string());
    tenant.into_iter().chain(names.iter().cloned()).collect()
}

fn foreign_key(table: &Table, foreign: &ForeignKey, schema: &Schema) -> String {
    let target = if foreign.table == table.name { Some(table) } else { schema.tables.get(&foreign.table) };
    let same_tenant = target.is_some_and(|target| matches!(target.kind, TableKind::Tenant));
    let (from, to) = match same_tenant {
        true => (lead(table, &foreign.columns), lead(table, &foreign.references)),
        false => (foreign.columns.clone(), foreign.references.clone()),
    };
    format!(
        "CONSTRAINT {} FOREIGN KEY ({}) REFERENCES {} ({}) ON DELETE {} ON UPDATE {} DEFERRABLE INITIALLY IMMEDIATE",
        quote(&foreign.name),
        columns(&from),
        table_name(&foreign.table),
        columns(&to),
        foreign.on_delete.sql(),
        foreign.on_update.sql(),
    )
}

fn triggers(table: &Table) -> Vec<String> {
    let name = table_name(&table.name);
    let [capture, update, rekey] = CAPTURES.map(quote);
    // The bucket counts as well: a row that changes its unit leaves one and enters another.
    let bucket = matches!(table.kind, TableKind::Hash { .. }).then(|| BUCKET_COLUMN.to_string());
    let key: Vec<String> = table.physical_key().into_iter().chain(bucket).collect();
    let differ: Vec<String> = key.iter().map(|c| format!("OLD.{0} IS DISTINCT FROM NEW.{0}", quote(c))).collect();
    let differ = differ.join(" OR ");
    let row = key_condition(table);
    vec![
        format!(
            "CREATE TRIGGER {capture} AFTER INSERT OR DELETE ON {name} FOR EACH ROW \
             EXECUTE FUNCTION _isles.capture('row', {row})"
        ),
        format!(
            "CREATE TRIGGER {update} AFTER UPDATE ON {name} FOR EACH ROW WHEN (NOT ({differ})) \
             EXECUTE FUNCTION _isles.capture('update', {row})"
        ),
        format!(
            "CREATE TRIGGER {rekey} AFTER UPDATE ON {name} FOR EACH ROW WHEN ({differ}) \
             EXECUTE FUNCTION _isles.capture('rekey', {row})"
        ),
        format!(
            "CREATE TRIGGER {0} BEFORE TRUNCATE ON {name} FOR EACH STATEMENT EXECUTE FUNCTION _isles.refuse_truncate(); \
             ALTER TABLE {name} ENABLE ALWAYS TRIGGER {0}",
            quote(NO_TRUNCATE)
        ),
    ]
}

/// How `_isles.row_now` finds the row `t` that has the key of the row `$1`; a constant, for a trigger's argument.
fn key_condition(table: &Table) -> String {
    let part = |name: String| {
        let ty = table.position(&name).map_or(DataType::Text, |at| table.columns[at].ty);
        let text = name.replace('\'', "''");
        format!("t.{} = ($1->>'{text}')::{}", quote(&name), ty.postgres_name())
    };
    let condition = table.physical_key().into_iter().map(part).collect::<Vec<_>>().join(" AND ");
    format!("'{}'", condition.replace('\'', "''"))
}

/// Switches the capture of one table. This waits for every transaction that has written to it, and whoever writes
/// after it, at any isolation level, finds it switched: triggers are not read through a snapshot.
pub(super) fn switch(table: &str, capture: Capture) -> Vec<String> {
    let how = match capture {
        Capture::On => "ENABLE ALWAYS",
        Capture::Off => "DISABLE",
    };
    let parts = CAPTURES.map(|trigger| format!("{how} TRIGGER {}", quote(trigger)));
    vec![format!("ALTER TABLE {} {}", table_name(table), parts.join(", "))]
}

/// Names, types and nullability of the columns that a table must have, in order, as the server names them.
pub(super) fn expected_columns(table: &Table) -> Vec<(String, &'static str, bool)> {
    let hidden: Vec<(String, &'static str, bool)> = match table.kind {
        TableKind::Hash { .. } => vec![(BUCKET_COLUMN.into(), "integer", true)],
        TableKind::Tenant => vec![(TENANT_KEY_COLUMN.into(), "text", true), (TENANT_COLUMN.into(), "text", false)],
        TableKind::Reference | TableKind::Global => vec![],
    };
    let own = table.columns.iter().map(|column| (column.name.clone(), column.ty.postgres_name(), !column.nullable));
    hidden.into_iter().chain(own).collect()
}
