//! Tables as the shards store them.
//!
//! A [`Schema`] is the logical description of everything in a shard; each engine prints it in its own dialect. It
//! changes only by [`SchemaChange`]s, each of which raises the version by one, and its hash is the same on every
//! engine, so that two shards can be compared before rows move between them.
//!
//! A table has hidden columns in front of the user's, by its kind:
//!   * `hash`    `_bucket`, the bucket of the shard key. It is stored and not computed by the engine, because the
//!     change log and the copy of a move filter by it and neither engine has our hash function.
//!   * `tenant`  `_tenant`, never null, which leads every key, and `_shard`, the tenant or null. `_tenant` is the
//!     tenant's name, or empty for the null tenant: no tenant has an empty name.

use crate::names::{BucketId, GroupName, SchemaVersion, TenantId};
use crate::value::{DataType, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// As PostgreSQL: identifiers have at most 63 bytes.
pub const MAX_IDENTIFIER_BYTES: usize = 63;
/// PostgreSQL allows 1,600 columns; SQLite, as we build it, 2,000. The hidden columns come out of this.
pub const MAX_COLUMNS: usize = 1_500;
/// As PostgreSQL's limit on the columns of an index.
pub const MAX_KEY_COLUMNS: usize = 32;
/// A database beyond this is a generator gone wild; the schema is kept in memory on every shard.
pub const MAX_TABLES: usize = 10_000;

/// The hidden columns.
pub const BUCKET_COLUMN: &str = "_bucket";
pub const TENANT_KEY_COLUMN: &str = "_tenant";
pub const TENANT_COLUMN: &str = "_shard";
/// Names of our own tables, functions and collations begin with this.
pub const RESERVED_PREFIX: &str = "_isles";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    pub name: String,
    pub ty: DataType,
    #[serde(default)]
    pub nullable: bool,
    /// What rows get that were there before the column was; and what a row gets that does not name it, where nobody
    /// computes `default_sql`.
    #[serde(default)]
    pub default: Option<Value>,
    /// The declared type, when it is more than the carrier `ty` says: `varchar(20)`, `jsonb`, `numeric(10,2)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sql_type: Option<SqlType>,
    /// The default as an expression of PostgreSQL's dialect. The router computes it for each row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_sql: Option<String>,
    /// `GENERATED … AS IDENTITY`; the numbers come from the sequence of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
}

/// PostgreSQL's number of a type, and its modifier (-1 for none).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SqlType {
    pub oid: u32,
    pub modifier: i32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub sequence: String,
    /// `GENERATED ALWAYS`: a value may not be given.
    pub always: bool,
}

impl Column {
    pub fn new(name: &str, ty: DataType) -> Column {
        Column {
            name: name.into(),
            ty,
            nullable: true,
            default: None,
            sql_type: None,
            default_sql: None,
            identity: None,
        }
    }

    pub fn not_null(mut self) -> Column {
        self.nullable = false;
        self
    }
}

/// How a table's rows are placed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableKind {
    /// By hash of the shard key, into the buckets of a group.
    Hash { group: GroupName, shard_by: Vec<String>, buckets: u32 },
    /// By the session's tenant.
    Tenant,
    /// A copy on every shard.
    Reference,
    /// On one shard only, never sharded.
    Global,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    pub name: String,
    pub columns: Vec<String>,
    #[serde(default)]
    pub unique: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnChange {
    NoAction,
    Restrict,
    Cascade,
    SetNull,
}

impl OnChange {
    /// As both dialects write it.
    pub fn sql(self) -> &'static str {
        match self {
            OnChange::NoAction => "NO ACTION",
            OnChange::Restrict => "RESTRICT",
            OnChange::Cascade => "CASCADE",
            OnChange::SetNull => "SET NULL",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignKey {
    pub name: String,
    pub columns: Vec<String>,
    pub table: String,
    pub references: Vec<String>,
    pub on_delete: OnChange,
    pub on_update: OnChange,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    pub name: String,
    pub kind: TableKind,
    pub columns: Vec<Column>,
    /// Names of the columns that identify a row; never empty, since a change must say which row it is about.
    pub primary_key: Vec<String>,
    /// Secondary indexes and unique keys.
    #[serde(default)]
    pub keys: Vec<Key>,
    #[serde(default)]
    pub foreign_keys: Vec<ForeignKey>,
}

impl Table {
    pub fn position(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == column)
    }

    /// Positions of the primary key in `columns`.
    pub fn key_positions(&self) -> Vec<usize> {
        self.primary_key.iter().filter_map(|name| self.position(name)).collect()
    }

    /// The hidden columns that stand before the user's.
    pub fn hidden_columns(&self) -> &'static [&'static str] {
        match self.kind {
            TableKind::Hash { .. } => &[BUCKET_COLUMN],
            TableKind::Tenant => &[TENANT_KEY_COLUMN, TENANT_COLUMN],
            TableKind::Reference | TableKind::Global => &[],
        }
    }

    /// The columns that identify a row in the shard, in order: the tenant leads.
    pub fn physical_key(&self) -> Vec<String> {
        let lead = matches!(self.kind, TableKind::Tenant).then(|| TENANT_KEY_COLUMN.to_string());
        lead.into_iter().chain(self.primary_key.iter().cloned()).collect()
    }

    /// The physical key of a row of this table.
    pub fn key_of(&self, unit: &Unit, row: &[Value]) -> Vec<Value> {
        let lead = match unit {
            Unit::Tenant(tenant) => Some(Value::text(tenant.as_ref().map_or("", TenantId::as_str))),
            _ => None,
        };
        lead.into_iter().chain(self.key_positions().into_iter().map(|at| row[at].clone())).collect()
    }

    pub fn group(&self) -> Option<&GroupName> {
        match &self.kind {
            TableKind::Hash { group, .. } => Some(group),
            _ => None,
        }
    }
}

/// The part of the database a row belongs to, and moves with.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Unit {
    Bucket(GroupName, BucketId),
    /// The null tenant is a tenant.
    Tenant(Option<TenantId>),
    /// Rows of reference and global tables, which belong to no one.
    Shared,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unit::Bucket(group, bucket) => write!(f, "bucket {bucket} of group {group}"),
            Unit::Tenant(Some(tenant)) => write!(f, "tenant {tenant}"),
            Unit::Tenant(None) => f.write_str("the null tenant"),
            Unit::Shared => f.write_str("shared tables"),
        }
    }
}

/// A view or trigger: the same thing said in both dialects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    pub name: String,
    pub kind: ObjectKind,
    pub sqlite: String,
    pub postgres: String,
    /// How PostgreSQL drops it, since a trigger is dropped with its table's name and a function.
    pub postgres_drop: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObjectKind {
    View,
    Trigger,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SchemaChange {
    CreateTable(Table),
    DropTable { table: String },
    AddColumn { table: String, column: Column },
    DropColumn { table: String, column: String },
    CreateKey { table: String, key: Key },
    DropKey { table: String, key: String },
    CreateObject(Object),
    DropObject { name: String },
}

/// A view. It is no object of a shard: the binder puts its query in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub name: String,
    /// The query, in PostgreSQL's dialect, as it was given.
    pub sql: String,
    /// The columns' names, which may differ from the query's, and their types when the view was made.
    pub columns: Vec<(String, SqlType)>,
}

/// A source of numbers, unique over all shards. Its position is in the catalog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sequence {
    pub name: String,
    pub start: i64,
    pub increment: i64,
    pub min: i64,
    pub max: i64,
    pub cycle: bool,
    /// `smallint`, `integer` or `bigint`.
    pub ty: DataType,
    /// The table and column it is dropped with.
    #[serde(default)]
    pub owner: Option<(String, String)>,
}

/// Everything a shard holds, at one version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    pub version: SchemaVersion,
    pub tables: BTreeMap<String, Table>,
    pub objects: BTreeMap<String, Object>,
    #[serde(default)]
    pub views: BTreeMap<String, View>,
    #[serde(default)]
    pub sequences: BTreeMap<String, Sequence>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    #[error("table \"{0}\" does not exist")]
    NoTable(String),
    #[error("relation \"{0}\" already exists")]
    Exists(String),
    #[error("column \"{column}\" of table \"{table}\" does not exist")]
    NoColumn { table: String, column: String },
    #[error("key \"{key}\" of table \"{table}\" does not exist")]
    NoKey { table: String, key: String },
    #[error("{0}")]
    Invalid(String),
}

impl Schema {
    pub fn table(&self, name: &str) -> Result<&Table, SchemaError> {
        self.tables.get(name).ok_or_else(|| SchemaError::NoTable(name.into()))
    }

    /// A hash over the whole content but the version: equal if and only if the shards hold the same tables.
    pub fn hash(&self) -> u128 {
        // A `BTreeMap` and structs serialize in one order, so the text is canonical.
        let text = serde_json::to_vec(&(&self.tables, &self.objects)).expect("a schema has only string keys");
        xxhash_rust::xxh3::xxh3_128(&text)
    }

    /// The schema after `changes`, one version later.
    pub fn apply(&self, changes: &[SchemaChange]) -> Result<Schema, SchemaError> {
        let mut next = self.clone();
        changes.iter().try_for_each(|change| next.apply_one(change))?;
        next.version = self.version.next();
        Ok(next)
    }

    fn apply_one(&mut self, change: &SchemaChange) -> Result<(), SchemaError> {
        match change {
            SchemaChange::CreateTable(table) => self.create_table(table),
            SchemaChange::DropTable { table } => self.drop_table(table),
            SchemaChange::AddColumn { table, column } => self.add_column(table, column),
            SchemaChange::DropColumn { table, column } => self.drop_column(table, column),
            SchemaChange::CreateKey { table, key } => self.create_key(table, key),
            SchemaChange::DropKey { table, key } => self.drop_key(table, key),
            SchemaChange::CreateObject(object) => self.create_object(object),
            SchemaChange::DropObject { name } => {
                self.objects.remove(name).map(drop).ok_or_else(|| SchemaError::NoTable(name.clone()))
            }
        }
    }

    fn create_table(&mut self, table: &Table) -> Result<(), SchemaError> {
        check_name(&table.name)?;
        self.check_free(&table.name)?;
        if self.tables.len() >= MAX_TABLES {
            return invalid(format!("a database has at most {MAX_TABLES} tables"));
        }
        check_table(table)?;
        for foreign in &table.foreign_keys {
            self.check_foreign(table, foreign)?;
        }
        for key in &table.keys {
            self.check_free(&key.name)?;
        }
        self.tables.insert(table.name.clone(), table.clone());
        Ok(())
    }

    fn check_foreign(&self, table: &Table, foreign: &ForeignKey) -> Result<(), SchemaError> {
        let target = if foreign.table == table.name { table } else { self.table(&foreign.table)? };
        if foreign.columns.len() != foreign.references.len() || foreign.columns.is_empty() {
            return invalid(format!("foreign key \"{}\" needs as many columns as it references", foreign.name));
        }
        check_columns(table, &foreign.columns)?;
        check_columns(target, &foreign.references)?;
        let unique = |columns: &[String]| columns == foreign.references.as_slice();
        if !unique(&target.primary_key) && !target.keys.iter().any(|key| key.unique && unique(&key.columns)) {
            let message = format!("there is no unique key of \"{}\" that matches the foreign key", target.name);
            return invalid(message);
        }
        if target.kind != table.kind && !matches!(target.kind, TableKind::Reference) {
            return invalid(format!("foreign key \"{}\" leaves its shard", foreign.name));
        }
        Ok(())
    }

    fn drop_table(&mut self, name: &str) -> Result<(), SchemaError> {
        self.table(name)?;
        let refers = |t: &&Table| t.name != name && t.foreign_keys.iter().any(|f| f.table == name);
        if let Some(other) = self.tables.values().find(refers) {
            return invalid(format!("cannot drop table \"{name}\" because table \"{}\" refers to it", other.name));
        }
        self.tables.remove(name);
        Ok(())
    }

    fn add_column(&mut self, table: &str, column: &Column) -> Result<(), SchemaError> {
        let table = self.tables.get_mut(table).ok_or_else(|| SchemaError::NoTable(table.into()))?;
        if !column.nullable && column.default.as_ref().is_none_or(Value::is_null) {
            return invalid(format!("column \"{}\" is not null and has no default for existing rows", column.name));
        }
        table.columns.push(column.clone());
        check_table(table)
    }

    fn drop_column(&mut self, name: &str, column: &str) -> Result<(), SchemaError> {
        let table = self.tables.get_mut(name).ok_or_else(|| SchemaError::NoTable(name.into()))?;
        let at = table.position(column).ok_or(SchemaError::NoColumn { table: name.into(), column: column.into() })?;
        let used = |columns: &[String]| columns.iter().any(|c| c == column);
        if used(&table.primary_key) || table.keys.iter().any(|k| used(&k.columns)) {
            return invalid(format!("cannot drop column \"{column}\" because a key of \"{name}\" uses it"));
        }
        if table.foreign_keys.iter().any(|f| used(&f.columns)) {
            return invalid(format!("cannot drop column \"{column}\" because a foreign key of \"{name}\" uses it"));
        }
        table.columns.remove(at);
        Ok(())
    }

    fn create_key(&mut self, name: &str, key: &Key) -> Result<(), SchemaError> {
        self.check_free(&key.name)?;
        let table = self.tables.get_mut(name).ok_or_else(|| SchemaError::NoTable(name.into()))?;
        table.keys.push(key.clone());
        check_table(table)
    }

    fn drop_key(&mut self, name: &str, key: &str) -> Result<(), SchemaError> {
        let table = self.tables.get_mut(name).ok_or_else(|| SchemaError::NoTable(name.into()))?;
        let at = table.keys.iter().position(|k| k.name == key);
        let at = at.ok_or(SchemaError::NoKey { table: name.into(), key: key.into() })?;
        table.keys.remove(at);
        Ok(())
    }

    fn create_object(&mut self, object: &Object) -> Result<(), SchemaError> {
        check_name(&object.name)?;
        self.check_free(&object.name)?;
        self.objects.insert(object.name.clone(), object.clone());
        Ok(())
    }

    fn check_free(&self, name: &str) -> Result<(), SchemaError> {
        let taken = self.tables.contains_key(name)
            || self.objects.contains_key(name)
            || self.tables.values().any(|t| t.keys.iter().any(|k| k.name == name));
        if taken { Err(SchemaError::Exists(name.into())) } else { Ok(()) }
    }
}

fn invalid<T>(message: String) -> Result<T, SchemaError> {
    Err(SchemaError::Invalid(message))
}

fn check_name(name: &str) -> Result<(), SchemaError> {
    if name.is_empty() || name.len() > MAX_IDENTIFIER_BYTES {
        return invalid(format!("a name has 1 to {MAX_IDENTIFIER_BYTES} bytes, this one has {}", name.len()));
    }
    if name.contains('\0') {
        return invalid("a name may not contain a zero byte".into());
    }
    if name.to_ascii_lowercase().starts_with(RESERVED_PREFIX) || name.to_ascii_lowercase().starts_with("sqlite_") {
        return invalid(format!("the name \"{name}\" is reserved"));
    }
    Ok(())
}

fn check_columns(table: &Table, columns: &[String]) -> Result<(), SchemaError> {
    match columns.iter().find(|name| table.position(name).is_none()) {
        Some(missing) => Err(SchemaError::NoColumn { table: table.name.clone(), column: missing.clone() }),
        None => Ok(()),
    }
}

fn check_table(table: &Table) -> Result<(), SchemaError> {
    if table.columns.is_empty() || table.columns.len() > MAX_COLUMNS {
        return invalid(format!("a table has 1 to {MAX_COLUMNS} columns"));
    }
    for (at, column) in table.columns.iter().enumerate() {
        check_column(table, at, column)?;
    }
    check_key(table, &table.primary_key, "a primary key")?;
    for key in &table.keys {
        check_name(&key.name)?;
        check_key(table, &key.columns, "a key")?;
    }
    if let Some(name) = table.primary_key.iter().find(|name| nullable(table, name)) {
        return invalid(format!("column \"{name}\" of the primary key may not be nullable"));
    }
    match &table.kind {
        TableKind::Hash { shard_by, buckets, .. } => check_hash(table, shard_by, *buckets),
        _ => Ok(()),
    }
}

fn check_column(table: &Table, at: usize, column: &Column) -> Result<(), SchemaError> {
    check_name(&column.name)?;
    let hidden = [BUCKET_COLUMN, TENANT_COLUMN, TENANT_KEY_COLUMN];
    if hidden.iter().any(|name| column.name.eq_ignore_ascii_case(name)) {
        return invalid(format!("the name \"{}\" is reserved", column.name));
    }
    // SQLite compares names without case; PostgreSQL does not. What one would take for two is refused on both.
    if table.columns[..at].iter().any(|c| c.name.eq_ignore_ascii_case(&column.name)) {
        return invalid(format!("column \"{}\" is specified more than once", column.name));
    }
    match &column.default {
        Some(value) if !value.fits(column.ty) => {
            invalid(format!("the default of \"{}\" is of another type", column.name))
        }
        _ => Ok(()),
    }
}

fn check_key(table: &Table, columns: &[String], what: &str) -> Result<(), SchemaError> {
    if columns.is_empty() || columns.len() > MAX_KEY_COLUMNS {
        return invalid(format!("{what} has 1 to {MAX_KEY_COLUMNS} columns"));
    }
    check_columns(table, columns)?;
    // As PostgreSQL, whose json has no equality; and arrays, which one engine would compare as texts.
    let unordered = columns.iter().find_map(|name| {
        let ty = table.columns[table.position(name)?].ty;
        matches!(ty, DataType::Json | DataType::Array(_)).then_some((name, ty))
    });
    match unordered {
        Some((name, ty)) => {
            invalid(format!("column \"{name}\" of type {} cannot be part of a key", ty.postgres_name()))
        }
        None => Ok(()),
    }
}

fn nullable(table: &Table, name: &str) -> bool {
    table.position(name).is_none_or(|at| table.columns[at].nullable)
}

fn check_hash(table: &Table, shard_by: &[String], buckets: u32) -> Result<(), SchemaError> {
    check_key(table, shard_by, "a shard key")?;
    if buckets == 0 {
        return invalid("a group has at least one bucket".into());
    }
    // Otherwise two rows with one key could stand on two shards, and no shard would see the conflict.
    let covered = |columns: &[String]| shard_by.iter().all(|name| columns.contains(name));
    if !covered(&table.primary_key) {
        return invalid("the primary key must contain the shard key".into());
    }
    match table.keys.iter().find(|key| key.unique && !covered(&key.columns)) {
        Some(key) => invalid(format!("unique key \"{}\" must contain the shard key", key.name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Table {
        Table {
            name: "users".into(),
            kind: TableKind::Hash {
                group: GroupName::new("users").expect("valid"),
                shard_by: vec!["id".into()],
                buckets: 8,
            },
            columns: vec![Column::new("id", DataType::Int8).not_null(), Column::new("email", DataType::Text)],
            primary_key: vec!["id".into()],
            keys: vec![],
            foreign_keys: vec![],
        }
    }

    fn error(changes: &[SchemaChange]) -> String {
        Schema::default().apply(changes).expect_err("refused").to_string()
    }

    #[test]
    fn each_change_raises_the_version_by_one_and_a_failed_one_changes_nothing() {
        let empty = Schema::default();
        let one = empty.apply(&[SchemaChange::CreateTable(users())]).expect("valid");
        assert_eq!(one.version, SchemaVersion(1));
        assert!(one.apply(&[SchemaChange::CreateTable(users())]).is_err());
        assert_eq!(one.tables.len(), 1);
    }

    #[test]
    fn the_hash_follows_content_and_not_history() {
        let one = Schema::default().apply(&[SchemaChange::CreateTable(users())]).expect("valid");
        let column = Column::new("age", DataType::Int4);
        let add = SchemaChange::AddColumn { table: "users".into(), column };
        let two = one.apply(&[add]).expect("valid");
        assert_ne!(one.hash(), two.hash());
        let drop = SchemaChange::DropColumn { table: "users".into(), column: "age".into() };
        let three = two.apply(&[drop]).expect("valid");
        assert_eq!(one.hash(), three.hash());
        assert_ne!(one.version, three.version);
    }

    #[test]
    fn what_no_shard_could_keep_is_refused() {
        let create = |edit: &dyn Fn(&mut Table)| {
            let mut table = users();
            edit(&mut table);
            error(&[SchemaChange::CreateTable(table)])
        };
        assert_eq!(create(&|t| t.primary_key.clear()), "a primary key has 1 to 32 columns");
        assert_eq!(create(&|t| t.columns[0].nullable = true), "column \"id\" of the primary key may not be nullable");
        assert_eq!(create(&|t| t.columns[1].name = "_bucket".into()), "the name \"_bucket\" is reserved");
        assert_eq!(create(&|t| t.columns[1].name = "ID".into()), "column \"ID\" is specified more than once");
        assert_eq!(create(&|t| t.name = "_isles_log".into()), "the name \"_isles_log\" is reserved");
        let unique = Key { name: "u".into(), columns: vec!["email".into()], unique: true };
        assert_eq!(create(&|t| t.keys = vec![unique.clone()]), "unique key \"u\" must contain the shard key");
        assert_eq!(
            create(&|t| t.columns[1].default = Some(Value::Int(1))),
            "the default of \"email\" is of another type"
        );
    }

    #[test]
    fn a_foreign_key_stays_on_its_shard() {
        let mut posts = users();
        posts.name = "posts".into();
        posts.kind = TableKind::Global;
        posts.foreign_keys = vec![ForeignKey {
            name: "author".into(),
            columns: vec!["id".into()],
            table: "users".into(),
            references: vec!["id".into()],
            on_delete: OnChange::Cascade,
            on_update: OnChange::NoAction,
        }];
        let message = error(&[SchemaChange::CreateTable(users()), SchemaChange::CreateTable(posts)]);
        assert_eq!(message, "foreign key \"author\" leaves its shard");
    }
}
