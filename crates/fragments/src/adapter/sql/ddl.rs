//! Tables as the databases have them.
//!
//! ```text
//! SQLite, PostgreSQL   _shard (may be null), _shardKey (generated, never null), _internalId, _version, id, columns
//!                      unique (_shardKey, id), (_shardKey, _internalId), indexes (_shardKey, …),
//!                      references (_shardKey, column) → (_shardKey, id)
//! Isles                a tenant table with _internalId, _version, id, columns; the database leads every key by the tenant
//! ```
//!
//! On PostgreSQL row level security is the second fence: a transaction says its shard in `isles.fragment_shard`, and rows
//! of others are not there for it whatever a statement says. The setting is `=` and the key, or `*` for maintenance: what
//! was never set, or is empty after a transaction, is nobody's.

use super::{Dialect, quoted};
use crate::adapter::{Note, Siblings, Step};
use crate::schema::{Column, Default, Index, Lead, Owner, Table, short};
use crate::values::to_json;
use isles_kernel::value::{DataType, Value};

/// What `_shardKey` is generated from.
const KEY: &str = "coalesce('s' || \"_shard\", '')";
/// What a transaction says its shard by.
pub(crate) const SETTING: &str = "isles.fragment_shard";

pub(crate) fn type_name(dialect: Dialect, column: &Column) -> &'static str {
    match (dialect, column.ty.data()) {
        (Dialect::Sqlite, DataType::Bytes) => "BLOB",
        (Dialect::Sqlite, DataType::Text | DataType::Json | DataType::Numeric) => "TEXT",
        (Dialect::Sqlite, _) => "INTEGER",
        // By bytes, as the other databases compare.
        (Dialect::Postgres, DataType::Text) => "text COLLATE \"C\"",
        (_, ty) => ty.postgres_name(),
    }
}

/// A value as SQL.
fn literal(dialect: Dialect, value: &Value) -> String {
    let text = |text: &str| format!("'{}'", text.replace('\'', "''"));
    match (dialect, value) {
        (_, Value::Null) => "NULL".into(),
        (_, Value::Int(n)) => n.to_string(),
        (Dialect::Sqlite, Value::Bool(b)) => i32::from(*b).to_string(),
        (_, Value::Bool(b)) => b.to_string(),
        (_, Value::Text(value) | Value::Json(value)) => text(value),
        (_, Value::Numeric(number)) => text(&number.to_string()),
        (Dialect::Sqlite, Value::Date(days)) => days.to_string(),
        (Dialect::Sqlite, Value::TimestampTz(micros)) => micros.to_string(),
        (Dialect::Sqlite, Value::Bytes(bytes)) => format!("x'{}'", hex(bytes)),
        (_, Value::Bytes(bytes)) => format!("'\\x{}'", hex(bytes)),
        (_, other) => text(to_json(other).as_str().unwrap_or_default()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn column(dialect: Dialect, column: &Column) -> String {
    let mut sql = format!("{} {}", quoted(&column.name), type_name(dialect, column));
    if let Some(Default::Value(value)) = &column.default {
        sql.push_str(&format!(" DEFAULT {}", literal(dialect, value)));
    }
    if !column.nullable {
        sql.push_str(" NOT NULL");
    }
    sql
}

fn is_sharded(dialect: Dialect, table: &Table) -> bool {
    dialect.names_shards() && table.owner == Owner::Shards
}

/// The columns that a key has in the database.
fn key(dialect: Dialect, table: &Table, lead: Lead, columns: &[String]) -> String {
    let shard = || is_sharded(dialect, table).then(|| "\"_shardKey\"".to_string());
    let part = |name: &String| {
        let nullable = table.column(name).is_ok_and(|column| column.nullable);
        // So that an index gives the order that finds ask for.
        match dialect == Dialect::Postgres && nullable {
            true => format!("{} NULLS FIRST", quoted(name)),
            false => quoted(name),
        }
    };
    let columns = columns.iter().map(part);
    match lead {
        Lead::Shard => shard().into_iter().chain(columns).collect::<Vec<_>>(),
        Lead::Columns => columns.chain(shard()).collect(),
    }
    .join(", ")
}

pub(crate) fn index_name(table: &Table, index: &str) -> String {
    short(&format!("idx_{}_{index}", table.physical))
}

pub(crate) fn reference_name(table: &Table, column: &str) -> String {
    short(&format!("{}_{column}_fk", table.physical))
}

/// An Isles database leads every index by the tenant, and asks its shards.
pub(crate) fn has_index(dialect: Dialect, index: &Index) -> bool {
    index.lead == Lead::Shard || dialect != Dialect::Isles
}

fn index(dialect: Dialect, table: &Table, index: &Index) -> String {
    let unique = if index.unique { "UNIQUE " } else { "" };
    format!(
        "CREATE {unique}INDEX IF NOT EXISTS {} ON {} ({});\n",
        quoted(&index_name(table, &index.name)),
        quoted(&table.physical),
        key(dialect, table, index.lead, &index.columns)
    )
}

/// The keys that every table has, and its own indexes.
pub(crate) fn indexes(dialect: Dialect, table: &Table) -> String {
    let own = |name: &str, column: &str| {
        let index_of = Index { name: name.into(), columns: vec![column.into()], unique: true, lead: Lead::Shard };
        index(dialect, table, &index_of)
    };
    let keys = match is_sharded(dialect, table) {
        true => own("primary", "id") + &own("internal", "_internalId"),
        false => String::new(),
    };
    let own = table.indexes.iter().filter(|one| has_index(dialect, one));
    keys + &own.map(|one| index(dialect, table, one)).collect::<String>()
}

fn reference(dialect: Dialect, table: &Table, of: &Column, siblings: &Siblings) -> Option<String> {
    let target = siblings.get(of.reference.as_ref()?)?;
    let (from, to) = match is_sharded(dialect, table) {
        true => (format!("\"_shardKey\", {}", quoted(&of.name)), "\"_shardKey\", \"id\""),
        false => (quoted(&of.name), "\"id\""),
    };
    // Rows change their shard together with those that they refer to.
    let deferrable = if dialect == Dialect::Isles { "" } else { " DEFERRABLE" };
    let target = quoted(&target.physical);
    let name = quoted(&reference_name(table, &of.name));
    Some(format!("CONSTRAINT {name} FOREIGN KEY ({from}) REFERENCES {target} ({to}){deferrable}"))
}

/// The table itself, under a name.
pub(crate) fn table(dialect: Dialect, table: &Table, name: &str, siblings: &Siblings) -> String {
    let mut parts = Vec::new();
    if is_sharded(dialect, table) {
        parts.push(match dialect {
            Dialect::Sqlite => "\"_shard\" TEXT".to_string(),
            _ => "\"_shard\" text COLLATE \"C\"".to_string(),
        });
        parts.push(shard_key(dialect));
    }
    let number = if dialect == Dialect::Sqlite { "INTEGER" } else { "bigint" };
    parts.push(format!("\"_internalId\" {number} NOT NULL"));
    parts.push(format!("\"_version\" {number} NOT NULL DEFAULT 0"));
    parts.push(match (dialect, is_sharded(dialect, table)) {
        (Dialect::Sqlite, true) => "\"id\" TEXT NOT NULL".into(),
        (Dialect::Sqlite, false) => "\"id\" TEXT NOT NULL PRIMARY KEY".into(),
        (Dialect::Postgres, true) => "\"id\" text COLLATE \"C\" NOT NULL".into(),
        (Dialect::Postgres, false) => "\"id\" text COLLATE \"C\" NOT NULL PRIMARY KEY".into(),
        (Dialect::Isles, _) => "\"id\" text NOT NULL PRIMARY KEY".into(),
    });
    if dialect == Dialect::Isles && table.owner == Owner::Shards {
        parts.push("UNIQUE (\"_internalId\")".into());
    }
    parts.extend(table.columns.iter().map(|of| column(dialect, of)));
    // PostgreSQL gets them behind the unique keys that they need.
    if dialect != Dialect::Postgres {
        parts.extend(table.columns.iter().filter_map(|of| reference(dialect, table, of, siblings)));
    }
    let end = match (dialect, table.owner) {
        (Dialect::Sqlite, _) => " STRICT",
        (Dialect::Postgres, _) => "",
        (Dialect::Isles, Owner::Shards) => " WITH (kind = 'tenant')",
        (Dialect::Isles, Owner::Database) => " WITH (kind = 'global')",
    };
    format!("CREATE TABLE IF NOT EXISTS {} ({}){end};\n", quoted(name), parts.join(", "))
}

fn shard_key(dialect: Dialect) -> String {
    match dialect {
        // SQLite adds no stored ones to a table.
        Dialect::Sqlite => format!("\"_shardKey\" TEXT NOT NULL GENERATED ALWAYS AS ({KEY}) VIRTUAL"),
        _ => format!("\"_shardKey\" text COLLATE \"C\" NOT NULL GENERATED ALWAYS AS ({KEY}) STORED"),
    }
}

fn add_reference(table: &Table, of: &Column, siblings: &Siblings) -> Option<String> {
    let reference = reference(Dialect::Postgres, table, of, siblings)?;
    Some(format!("ALTER TABLE {} ADD {reference};\n", quoted(&table.physical)))
}

/// The second fence around a table.
fn policy(table: &Table) -> String {
    let name = quoted(&table.physical);
    let own = format!("current_setting('{SETTING}', true) IN ('*', '=' || \"_shardKey\")");
    format!(
        "ALTER TABLE {name} ENABLE ROW LEVEL SECURITY;\nALTER TABLE {name} FORCE ROW LEVEL SECURITY;\n\
         DROP POLICY IF EXISTS isles_shard ON {name};\n\
         CREATE POLICY isles_shard ON {name} USING ({own}) WITH CHECK ({own});\n"
    )
}

pub(crate) fn create(dialect: Dialect, of: &Table, siblings: &Siblings) -> Vec<Step> {
    let mut steps = vec![Step::new(table(dialect, of, &of.physical, siblings))];
    let indexes = indexes(dialect, of);
    if !indexes.is_empty() {
        steps.push(Step::new(indexes));
    }
    if dialect == Dialect::Postgres && of.owner == Owner::Shards {
        steps.extend(of.columns.iter().filter_map(|one| add_reference(of, one, siblings)).map(Step::new));
        steps.push(Step::new(policy(of)));
    }
    steps
}

pub(crate) fn alter(dialect: Dialect, before: &Table, after: &Table, siblings: &Siblings) -> Vec<Step> {
    let is_new = |of: &&Column| before.column(&of.name).is_err();
    let new: Vec<&Column> = after.columns.iter().filter(is_new).collect();
    if dialect == Dialect::Sqlite && new.iter().any(|of| of.reference.is_some()) {
        return vec![rebuild_sharded(before, after, siblings)];
    }
    let mut steps = Vec::new();
    for of in new {
        let name = quoted(&after.physical);
        let mut sql = format!("ALTER TABLE {name} ADD COLUMN {};\n", column(dialect, of));
        match dialect {
            Dialect::Postgres => sql.push_str(&add_reference(after, of, siblings).unwrap_or_default()),
            Dialect::Isles => {
                if let Some(reference) = reference(dialect, after, of, siblings) {
                    sql.push_str(&format!("ALTER TABLE {name} ADD {reference};\n"));
                }
            }
            Dialect::Sqlite => {}
        }
        steps.push(Step::new(sql));
    }
    let fresh = after.indexes.iter().filter(|one| before.index(&one.name).is_err() && has_index(dialect, one));
    steps.extend(fresh.map(|one| Step::new(index(dialect, after, one))));
    steps
}

/// SQLite changes keys and references by making the table anew.
pub(crate) fn rebuild(before: &Table, after: &Table, siblings: &Siblings) -> Step {
    let new = short(&format!("{}__new", after.physical));
    let mut names: Vec<String> = ["_internalId", "_version", "id"].iter().map(|name| quoted(name)).collect();
    names.extend(before.columns.iter().map(|of| quoted(&of.name)));
    let (from, names) = (quoted(&before.physical), names.join(", "));
    Step::new(format!(
        "DROP TABLE IF EXISTS {new};\n{}INSERT INTO {new} ({names}) SELECT {names} FROM {from};\n\
         DROP TABLE {from};\nALTER TABLE {new} RENAME TO {from};\n{}",
        table(Dialect::Sqlite, after, &new, siblings),
        indexes(Dialect::Sqlite, after),
        new = quoted(&new),
    ))
}

/// As [`rebuild`], keeping the shard of rows that have one.
pub(crate) fn rebuild_sharded(before: &Table, after: &Table, siblings: &Siblings) -> Step {
    let step = rebuild(before, after, siblings);
    Step::new(
        step.sql.replace("\"_internalId\", \"_version\", \"id\"", "\"_shard\", \"_internalId\", \"_version\", \"id\""),
    )
}

/// What a legacy table of PostgreSQL lacks.
pub(crate) struct Lacking {
    pub(crate) columns: bool,
    /// References that are not led by the shard: `DROP` statements.
    pub(crate) old_references: Vec<String>,
    /// Keys and indexes that are not.
    pub(crate) old_keys: Vec<String>,
    pub(crate) indexes: bool,
    pub(crate) references: Vec<String>,
    pub(crate) policy: bool,
}

/// PostgreSQL's steps to shards. Each goes through all tables: a reference needs the keys of its target.
pub(crate) fn shard_postgres(tables: &Siblings, lacking: &[(String, Lacking)]) -> Vec<Step> {
    let all: Vec<_> = lacking.iter().filter_map(|(name, lack)| Some((tables.get(name)?, lack))).collect();
    let mut steps = Vec::new();
    for (table, _) in all.iter().filter(|(_, lack)| lack.columns) {
        let (name, key) = (quoted(&table.physical), shard_key(Dialect::Postgres));
        steps.push(format!("ALTER TABLE {name} ADD COLUMN \"_shard\" text COLLATE \"C\", ADD COLUMN {key};\n"));
    }
    steps.extend(all.iter().flat_map(|(_, lack)| lack.old_references.clone()));
    steps.extend(all.iter().flat_map(|(_, lack)| lack.old_keys.clone()));
    steps.extend(all.iter().filter(|(_, lack)| lack.indexes).map(|(table, _)| indexes(Dialect::Postgres, table)));
    for (table, lack) in &all {
        let missing = table.columns.iter().filter(|column| lack.references.contains(&column.name));
        steps.extend(missing.filter_map(|column| add_reference(table, column, tables)));
    }
    steps.extend(all.iter().filter(|(_, lack)| lack.policy).map(|(table, _)| policy(table)));
    steps.into_iter().map(Step::new).collect()
}

/// Keeps a note among the settings, if they are as it begins: it changes one row, or none.
pub(crate) fn note(dialect: Dialect, note: &Note) -> String {
    let text = |text: &str| literal(dialect, &Value::text(text));
    let (id, value) = (text(&note.key), text(&note.to));
    let settings = crate::internal::SETTINGS;
    match &note.from {
        None => format!(
            "INSERT INTO \"{settings}\" (\"_internalId\", \"_version\", \"id\", \"value\") VALUES (0, 0, {id}, {value}) \
             ON CONFLICT (\"id\") DO NOTHING"
        ),
        Some(from) => format!(
            "UPDATE \"{settings}\" SET \"value\" = {value}, \"_version\" = \"_version\" + 1 WHERE \"id\" = {id} \
             AND \"value\" = {}",
            text(from)
        ),
    }
}

/// A reference of an Isles database, behind its table.
pub(crate) fn add_isles_reference(table: &Table, of: &Column, siblings: &Siblings) -> Option<Step> {
    let reference = reference(Dialect::Isles, table, of, siblings)?;
    Some(Step::new(format!("ALTER TABLE {} ADD {reference};", quoted(&table.physical))))
}
