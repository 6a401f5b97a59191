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
//!
//! A table that was made without a primary key has a hidden one: [`HIDDEN_KEY_COLUMN`], a bigint that the router
//! draws at random for each row ([`HIDDEN_KEY_DEFAULT`]). It is the last of the table's `columns`, whatever is added
//! or dropped, so the positions of all others are those that a client sees. To clients it does not exist: it is not in
//! `*`, not in the catalogs, and an error when named. Whoever shows columns asks [`Column::is_hidden`].
//!
//! Expressions (checks, predicates and keys of indexes) are kept in three texts: as PostgreSQL's dialect says it, and
//! as each engine's printer says it. A view's query, a default and a comment are kept for the router; they change
//! nothing in a shard but the schema it remembers.
//!
//! In reading order: [`relation`] has how relations are named, this file what a schema is, [`entries`] where global
//! indexes are kept, [`every`] how it looks to whoever reads all tenants, [`apply`] how a schema changes and what must hold, [`replace`] how a copy takes a table's place,
//! [`script`] how it is made from nothing, [`sql_type`] how PostgreSQL writes a declared type.

mod apply;
mod entries;
mod every;
mod locked;
mod regions;
mod relation;
mod replace;
mod script;
mod sql_type;

pub use entries::{
    ENTRY_BUCKET, ENTRY_BUCKETS, ENTRY_KEY, ENTRY_PLACE, ENTRY_ROWS, INDEX_NAMESPACE, POSITIONS, entries_table,
    entry_group, entry_place,
};
pub use regions::{MAX_REGIONS, read_regions, written_regions};
pub use relation::{PUBLIC, plain_name, relation_name, relation_parts};
pub use replace::{NewCopy, is_copy_namespace};

use crate::names::{BucketId, GroupName, SchemaVersion, TenantId};
use crate::placement::RegionRange;
use crate::value::{DataType, Value};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::LazyLock;

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
/// The key of a table that was made without one.
pub const HIDDEN_KEY_COLUMN: &str = "_isles_row";
/// How the router computes it, in PostgreSQL's dialect: 63 random bits. Two rows with one key are less likely than a
/// lost disk, and one of them would be refused.
pub const HIDDEN_KEY_DEFAULT: &str =
    "((floor(random() * 4294967296)::bigint << 31) | floor(random() * 2147483648)::bigint)";
/// Names of our own tables, functions and collations begin with this.
pub const RESERVED_PREFIX: &str = "_isles";
/// The group of all global tables. It has one bucket, so that they are on one shard, and move together.
pub const GLOBAL_GROUP: &str = "_isles_global";
static GLOBAL: LazyLock<GroupName> = LazyLock::new(|| GroupName::new(GLOBAL_GROUP).expect("a constant that is a name"));
/// The group that tenant tables are in for whoever reads the rows of all tenants ([`Schema::of_every_tenant`]). No routing
/// has it: where a tenant is, its pin says, or its bucket in the routing's group of tenants.
pub const EVERY_TENANT_GROUP: &str = "_isles_tenants";
static EVERY_TENANT: LazyLock<GroupName> =
    LazyLock::new(|| GroupName::new(EVERY_TENANT_GROUP).expect("a constant that is a name"));
/// Before the name of a tenant table, the name of the view that a SQLite shard reads it through.
pub const TENANT_VIEW_PREFIX: &str = "_isles_tenant.";

/// The view that a SQLite shard reads a tenant table through: it has one tenant's rows.
pub fn tenant_view(table: &str) -> String {
    format!("{TENANT_VIEW_PREFIX}{table}")
}

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

    /// The key of a table that was made without one.
    pub fn hidden_key() -> Column {
        let column = Column::new(HIDDEN_KEY_COLUMN, DataType::Int8).not_null();
        Column { default_sql: Some(HIDDEN_KEY_DEFAULT.into()), ..column }
    }

    /// Whether clients do not see it.
    pub fn is_hidden(&self) -> bool {
        self.name == HIDDEN_KEY_COLUMN
    }
}

/// How a table's rows are placed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableKind {
    /// By hash of the shard key, into the buckets of a group.
    Hash {
        group: GroupName,
        shard_by: Vec<String>,
        buckets: u32,
        /// Where the buckets of the group are kept; empty: anywhere. They cover all of them, and all tables of the
        /// group say the same.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        regions: Vec<RegionRange>,
    },
    /// By the session's tenant.
    Tenant,
    /// A copy on every shard.
    Reference,
    /// On one shard only, never sharded.
    Global,
}

/// An index, a unique index or a unique constraint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    pub name: String,
    /// The columns it is over, in order; where there are `parts`, those of them that are plain columns.
    pub columns: Vec<String>,
    #[serde(default)]
    pub unique: bool,
    /// `UNIQUE` in a table's definition or `ADD CONSTRAINT`, rather than `CREATE UNIQUE INDEX`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub constraint: bool,
    /// What it is over, when that is more than columns in ascending order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<KeyPart>,
    /// A partial index has only rows for which this is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicate: Option<Expression>,
    /// A global index: its entries are in this table, and each shard has a plain index besides, which is never unique
    /// by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global: Option<String>,
    /// What a SQLite file calls it, when that is not its name as a relation: the table has taken another's place, and an
    /// index cannot be renamed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<String>,
    /// The primary key, where that lacks the shard key: a global unique index. Shards have no index besides, since
    /// their own primary key has its name and begins with its columns.
    #[serde(default, skip_serializing_if = "is_false")]
    pub primary: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Key {
    pub fn index(name: &str, columns: &[&str]) -> Key {
        let columns = columns.iter().map(|column| (*column).into()).collect();
        Key { name: name.into(), columns, ..Key::default() }
    }

    pub fn unique(name: &str, columns: &[&str]) -> Key {
        Key { unique: true, ..Key::index(name, columns) }
    }

    /// Whether each shard keeps it unique by itself.
    pub fn is_unique_on_shard(&self) -> bool {
        self.unique && self.global.is_none()
    }

    /// The columns that are unique by this key over all rows of a shard: what a foreign key can refer to and `ON CONFLICT`
    /// name.
    pub fn unique_columns(&self) -> Option<&[String]> {
        let plain = self.parts.iter().all(|part| matches!(part.over, KeyOver::Column(_)));
        (self.is_unique_on_shard() && plain && self.predicate.is_none()).then_some(&self.columns)
    }

    /// Columns that it uses, in expressions too.
    pub fn uses(&self, column: &str) -> bool {
        let in_part = |part: &KeyPart| match &part.over {
            KeyOver::Column(name) => name == column,
            KeyOver::Expression(expression) => expression.uses(column),
        };
        self.columns.iter().any(|name| name == column)
            || self.parts.iter().any(in_part)
            || self.predicate.as_ref().is_some_and(|predicate| predicate.uses(column))
    }
}

/// One entry of an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyPart {
    pub over: KeyOver,
    #[serde(default)]
    pub descending: bool,
    #[serde(default)]
    pub nulls_first: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyOver {
    Column(String),
    Expression(Expression),
}

/// An expression over the columns of one table, in the dialects of all who need it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expression {
    /// PostgreSQL's, as it was given.
    pub sql: String,
    /// As the engines run it.
    pub sqlite: String,
    pub postgres: String,
    /// The columns it uses.
    pub columns: Vec<String>,
}

impl Expression {
    pub fn uses(&self, column: &str) -> bool {
        self.columns.iter().any(|name| name == column)
    }
}

/// What every row must satisfy, or leave unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    pub expression: Expression,
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

/// When a foreign key is checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Deferral {
    /// After each statement.
    #[default]
    None,
    /// The same, unless a transaction says otherwise.
    Immediate,
    /// When the transaction commits.
    Deferred,
}

impl Deferral {
    fn is_none(&self) -> bool {
        *self == Deferral::None
    }

    /// As PostgreSQL writes it behind a constraint.
    pub fn sql(self) -> &'static str {
        match self {
            Deferral::None => "",
            Deferral::Immediate => " DEFERRABLE",
            Deferral::Deferred => " DEFERRABLE INITIALLY DEFERRED",
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
    #[serde(default, skip_serializing_if = "Deferral::is_none")]
    pub deferral: Deferral,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    pub name: String,
    pub kind: TableKind,
    pub columns: Vec<Column>,
    /// Names of the columns that identify a row on its shard; never empty, since a change must say which row it is about.
    /// What clients call the primary key is [`Table::declared_key`].
    pub primary_key: Vec<String>,
    /// Secondary indexes and unique keys.
    #[serde(default)]
    pub keys: Vec<Key>,
    #[serde(default)]
    pub foreign_keys: Vec<ForeignKey>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// The primary key's name, when it is not `<table>_pkey` and no key has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary_key_name: Option<String>,
    /// The table was made without a primary key: its key is [`HIDDEN_KEY_COLUMN`].
    #[serde(default, skip_serializing_if = "is_false")]
    pub hidden_key: bool,
}

impl Table {
    pub fn new(name: &str, kind: TableKind, columns: Vec<Column>, primary_key: &[&str]) -> Table {
        Table {
            name: name.into(),
            kind,
            columns,
            primary_key: primary_key.iter().map(|column| (*column).into()).collect(),
            keys: vec![],
            foreign_keys: vec![],
            checks: vec![],
            primary_key_name: None,
            hidden_key: false,
        }
    }

    /// The columns that clients see; their positions are those in `columns`.
    pub fn visible_columns(&self) -> &[Column] {
        let hidden = self.columns.last().is_some_and(Column::is_hidden);
        &self.columns[..self.columns.len() - usize::from(hidden)]
    }

    /// The name of the primary key, as a constraint and as an index.
    pub fn primary_key_name(&self) -> String {
        match (self.primary_index(), &self.primary_key_name) {
            (Some(key), _) => key.name.clone(),
            (None, Some(name)) => name.clone(),
            (None, None) => fitting_name(self.plain_name(), "", "pkey"),
        }
    }

    /// The global index that keeps the primary key unique, where that lacks the shard key.
    pub fn primary_index(&self) -> Option<&Key> {
        self.keys.iter().find(|key| key.primary)
    }

    /// The columns of the primary key as it was declared. Of a table that was made without one it is the hidden one.
    pub fn declared_key(&self) -> &[String] {
        self.primary_index().map_or(&self.primary_key, |key| &key.columns)
    }

    /// Indexes and keys that a shard has besides its primary key.
    pub fn shard_keys(&self) -> impl Iterator<Item = &Key> {
        self.keys.iter().filter(|key| !key.primary)
    }

    /// What PostgreSQL calls its schema.
    pub fn namespace(&self) -> &str {
        relation_parts(&self.name).0
    }

    /// Its name without the namespace.
    pub fn plain_name(&self) -> &str {
        plain_name(&self.name)
    }

    /// The one text for a key of the table, as a relation.
    pub fn key_relation(&self, key: &str) -> String {
        relation_name(self.namespace(), key)
    }

    /// What a SQLite file calls a key of the table.
    pub fn stored_key(&self, key: &Key) -> String {
        key.stored.clone().unwrap_or_else(|| self.key_relation(&key.name))
    }

    /// Whether it is in a namespace of ours, and so no client's: entries of an index, a copy that is being made, what a
    /// copy has replaced.
    pub fn is_internal(&self) -> bool {
        self.namespace().starts_with(RESERVED_PREFIX)
    }

    /// Whether a constraint of the table has this name; they share one space of names.
    pub fn has_constraint(&self, name: &str) -> bool {
        self.checks.iter().any(|check| check.name == name)
            || self.foreign_keys.iter().any(|foreign| foreign.name == name)
            || self.keys.iter().any(|key| key.constraint && key.name == name)
            || (!self.hidden_key && self.primary_key_name() == name)
    }

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

    /// The group that its rows hash to, if they do.
    pub fn group(&self) -> Option<&GroupName> {
        match &self.kind {
            TableKind::Hash { group, .. } => Some(group),
            _ => None,
        }
    }

    /// The unit of all rows of a table that is not divided.
    pub fn only_unit(&self) -> Option<Unit> {
        match self.kind {
            TableKind::Reference => Some(Unit::Shared),
            TableKind::Global => Some(Unit::global()),
            TableKind::Hash { .. } | TableKind::Tenant => None,
        }
    }
}

/// The part of the database a row belongs to, and moves with.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Unit {
    Bucket(GroupName, BucketId),
    /// The null tenant is a tenant.
    Tenant(Option<TenantId>),
    /// Rows of reference tables, which belong to no one.
    Shared,
}

/// The group of tenant tables, to whoever reads the rows of all tenants.
pub fn every_tenant_group() -> GroupName {
    EVERY_TENANT.clone()
}

/// The one bucket of the global tables.
pub fn global_bucket() -> (GroupName, BucketId) {
    (GLOBAL.clone(), BucketId(0))
}

impl Unit {
    /// Rows of global tables.
    pub fn global() -> Unit {
        let (group, bucket) = global_bucket();
        Unit::Bucket(group, bucket)
    }

    /// The bucket that is stored with each row of this unit; rows of global tables need none.
    pub fn stored_bucket(&self) -> Option<BucketId> {
        match self {
            Unit::Bucket(group, bucket) if *group != *GLOBAL => Some(*bucket),
            _ => None,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unit::Bucket(group, _) if *group == *GLOBAL => f.write_str("global tables"),
            Unit::Bucket(group, bucket) => write!(f, "bucket {bucket} of group {group}"),
            Unit::Tenant(Some(tenant)) => write!(f, "tenant {tenant}"),
            Unit::Tenant(None) => f.write_str("the null tenant"),
            Unit::Shared => f.write_str("reference tables"),
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
    CreateNamespace {
        namespace: String,
    },
    /// It must be empty.
    DropNamespace {
        namespace: String,
    },
    CreateTable(Table),
    DropTable {
        table: String,
    },
    /// Foreign keys to it follow, and so do its sequences' owners and its comments. Names of keys and constraints stay.
    RenameTable {
        table: String,
        to: String,
    },
    /// A column that is not null and has no default is refused where there are rows.
    AddColumn {
        table: String,
        column: Column,
    },
    DropColumn {
        table: String,
        column: String,
    },
    /// Refused while an expression uses it: whoever renames drops such checks and keys before, and adds them after.
    RenameColumn {
        table: String,
        column: String,
        to: String,
    },
    /// The column of this name becomes this one. `convert` computes its values from the old row when the type changes
    /// in more than name and modifier.
    AlterColumn {
        table: String,
        column: Box<Column>,
        convert: Option<Expression>,
    },
    /// Another primary key, and with it another kind. Where that moves rows, the table must be empty.
    Rekey {
        table: String,
        kind: TableKind,
        primary_key: Vec<String>,
        name: Option<String>,
    },
    /// A copy takes the place of the table that it is of, and the table is set aside under another name. Comments,
    /// sequences and views are the new one's.
    ReplaceTable {
        table: String,
        by: String,
        aside: String,
    },
    CreateKey {
        table: String,
        key: Key,
    },
    DropKey {
        table: String,
        key: String,
    },
    /// An index, or the constraint that it is.
    RenameKey {
        table: String,
        key: String,
        to: String,
    },
    AddCheck {
        table: String,
        check: Check,
    },
    DropCheck {
        table: String,
        check: String,
    },
    AddForeignKey {
        table: String,
        foreign_key: ForeignKey,
    },
    DropForeignKey {
        table: String,
        foreign_key: String,
    },
    /// A constraint of any kind.
    RenameConstraint {
        table: String,
        constraint: String,
        to: String,
    },
    CreateObject(Object),
    DropObject {
        name: String,
    },
    CreateView(View),
    DropView {
        view: String,
    },
    RenameView {
        view: String,
        to: String,
    },
    CreateSequence(Sequence),
    /// The sequence of this name becomes this one.
    AlterSequence(Sequence),
    DropSequence {
        sequence: String,
    },
    /// Defaults and identities that draw from it follow.
    RenameSequence {
        sequence: String,
        to: String,
    },
    /// None removes it.
    SetComment {
        on: CommentOn,
        text: Option<String>,
    },
}

impl SchemaChange {
    /// The table whose rows get another form or must meet something new, or that goes: what must not happen while rows
    /// of it are on their way from one shard to another.
    pub fn reshapes(&self) -> Option<&str> {
        match self {
            SchemaChange::DropTable { table }
            | SchemaChange::RenameTable { table, .. }
            | SchemaChange::AddColumn { table, .. }
            | SchemaChange::DropColumn { table, .. }
            | SchemaChange::RenameColumn { table, .. }
            | SchemaChange::AlterColumn { table, .. }
            | SchemaChange::Rekey { table, .. }
            | SchemaChange::ReplaceTable { table, .. }
            | SchemaChange::AddCheck { table, .. }
            | SchemaChange::AddForeignKey { table, .. } => Some(table),
            SchemaChange::CreateKey { table, key } if key.unique => Some(table),
            _ => None,
        }
    }

    /// Whether a table gets another definition, goes, or comes to be referred to: what must not happen while a copy of it
    /// is made that is to take its place.
    pub fn redefines(&self, name: &str) -> bool {
        match self {
            SchemaChange::DropKey { table, .. }
            | SchemaChange::RenameKey { table, .. }
            | SchemaChange::CreateKey { table, .. }
            | SchemaChange::DropCheck { table, .. }
            | SchemaChange::DropForeignKey { table, .. }
            | SchemaChange::RenameConstraint { table, .. } => table == name,
            SchemaChange::AddForeignKey { table, foreign_key } => table == name || foreign_key.table == name,
            SchemaChange::CreateTable(table) => table.foreign_keys.iter().any(|foreign| foreign.table == name),
            other => other.reshapes() == Some(name),
        }
    }
}

impl SchemaChange {
    /// Whether it makes, changes, drops or refers to anything of a namespace.
    pub fn concerns(&self, namespace: &str) -> bool {
        let is_in = |relation: &str| relation_parts(relation).0 == namespace;
        match self {
            SchemaChange::CreateNamespace { namespace: named } | SchemaChange::DropNamespace { namespace: named } => {
                named == namespace
            }
            SchemaChange::CreateTable(table) => {
                is_in(&table.name) || table.foreign_keys.iter().any(|foreign| is_in(&foreign.table))
            }
            SchemaChange::AddForeignKey { table, foreign_key } => is_in(table) || is_in(&foreign_key.table),
            SchemaChange::RenameTable { table, to } => is_in(table) || is_in(to),
            SchemaChange::RenameView { view, to } => is_in(view) || is_in(to),
            SchemaChange::RenameSequence { sequence, to } => is_in(sequence) || is_in(to),
            SchemaChange::DropTable { table }
            | SchemaChange::AddColumn { table, .. }
            | SchemaChange::DropColumn { table, .. }
            | SchemaChange::RenameColumn { table, .. }
            | SchemaChange::AlterColumn { table, .. }
            | SchemaChange::Rekey { table, .. }
            | SchemaChange::ReplaceTable { table, .. }
            | SchemaChange::CreateKey { table, .. }
            | SchemaChange::DropKey { table, .. }
            | SchemaChange::RenameKey { table, .. }
            | SchemaChange::AddCheck { table, .. }
            | SchemaChange::DropCheck { table, .. }
            | SchemaChange::DropForeignKey { table, .. }
            | SchemaChange::RenameConstraint { table, .. } => is_in(table),
            SchemaChange::CreateObject(object) => is_in(&object.name),
            SchemaChange::DropObject { name } => is_in(name),
            SchemaChange::CreateView(view) => is_in(&view.name),
            SchemaChange::DropView { view } => is_in(view),
            SchemaChange::CreateSequence(sequence) | SchemaChange::AlterSequence(sequence) => is_in(&sequence.name),
            SchemaChange::DropSequence { sequence } => is_in(sequence),
            SchemaChange::SetComment { on, .. } => match on {
                CommentOn::Database | CommentOn::Role(_) => false,
                CommentOn::Schema(named) => named == namespace,
                CommentOn::Table(relation)
                | CommentOn::Column(relation, _)
                | CommentOn::Constraint(relation, _)
                | CommentOn::Index(relation)
                | CommentOn::View(relation)
                | CommentOn::Sequence(relation) => is_in(relation),
            },
        }
    }
}

/// What a comment is on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CommentOn {
    Database,
    Table(String),
    /// Of a table or view.
    Column(String, String),
    /// Of a table, then its name.
    Constraint(String, String),
    Index(String),
    View(String),
    Sequence(String),
    Role(String),
    Schema(String),
}

/// A view. It is no object of a shard: the binder puts its query in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub name: String,
    /// The query, in PostgreSQL's dialect, as it was given.
    pub sql: String,
    /// The columns' names, which may differ from the query's, and their types when the view was made.
    pub columns: Vec<(String, SqlType)>,
    /// Where its query's names are looked up, when that is not `public` alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<Vec<String>>,
}

impl View {
    /// Where its query's names are looked up.
    pub fn search_path(&self) -> Vec<String> {
        self.path.clone().unwrap_or_else(|| vec![PUBLIC.into()])
    }
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

/// The default of a serial column: the next number of a sequence, in the text that PostgreSQL shows.
pub fn nextval_default(sequence: &str) -> String {
    let quoted = |name: &str| {
        let mut letters = name.chars();
        let starts = letters.next().is_some_and(|c| c.is_ascii_lowercase() || c == '_');
        let plain = starts && letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if plain { name.to_string() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
    };
    let name = match relation_parts(sequence) {
        (PUBLIC, name) => quoted(name),
        (namespace, name) => format!("{}.{}", quoted(namespace), quoted(name)),
    };
    format!("nextval('{}'::regclass)", name.replace('\'', "''"))
}

/// Everything a shard holds, at one version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    pub version: SchemaVersion,
    /// Those besides [`PUBLIC`].
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub namespaces: BTreeSet<String>,
    pub tables: BTreeMap<String, Table>,
    pub objects: BTreeMap<String, Object>,
    #[serde(default)]
    pub views: BTreeMap<String, View>,
    #[serde(default)]
    pub sequences: BTreeMap<String, Sequence>,
    /// In order of what they are on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comments: Vec<(CommentOn, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    #[error("schema \"{0}\" does not exist")]
    NoNamespace(String),
    #[error("schema \"{0}\" already exists")]
    NamespaceExists(String),
    #[error("table \"{0}\" does not exist")]
    NoTable(String),
    #[error("relation \"{}\" already exists", plain_name(.0))]
    Exists(String),
    #[error("column \"{column}\" of table \"{}\" does not exist", plain_name(table))]
    NoColumn { table: String, column: String },
    #[error("key \"{key}\" of table \"{}\" does not exist", plain_name(table))]
    NoKey { table: String, key: String },
    #[error("constraint \"{constraint}\" of relation \"{}\" does not exist", plain_name(table))]
    NoConstraint { table: String, constraint: String },
    #[error("constraint \"{constraint}\" for relation \"{}\" already exists", plain_name(table))]
    ConstraintExists { table: String, constraint: String },
    #[error("column \"{column}\" of relation \"{}\" already exists", plain_name(table))]
    ColumnExists { table: String, column: String },
    #[error("{0}")]
    Invalid(String),
}

impl Schema {
    pub fn table(&self, name: &str) -> Result<&Table, SchemaError> {
        self.tables.get(name).ok_or_else(|| SchemaError::NoTable(name.into()))
    }

    /// Whether PostgreSQL's schema of this name is there, for clients: those of our own are not.
    pub fn has_namespace(&self, name: &str) -> bool {
        name == PUBLIC || (!name.starts_with(RESERVED_PREFIX) && self.namespaces.contains(name))
    }

    /// A hash over the whole content but the version: equal if and only if the shards hold the same tables.
    pub fn hash(&self) -> u128 {
        // A `BTreeMap` and structs serialize in one order, so the text is canonical.
        let content = Schema { version: SchemaVersion(0), ..self.clone() };
        let text = serde_json::to_vec(&content).expect("a schema has only string keys");
        xxhash_rust::xxh3::xxh3_128(&text)
    }

    pub fn comment(&self, on: &CommentOn) -> Option<&str> {
        let at = self.comments.binary_search_by(|(other, _)| other.cmp(on)).ok()?;
        Some(&self.comments[at].1)
    }
}

/// A name made as PostgreSQL makes them, `<table>_<column>_<suffix>`: the longer of the first two is cut until it fits.
pub fn fitting_name(first: &str, second: &str, suffix: &str) -> String {
    let (mut first, mut second) = (first, second);
    let joints = usize::from(!second.is_empty()) + 1 + suffix.len();
    while first.len() + second.len() + joints > MAX_IDENTIFIER_BYTES {
        let longer = if first.len() > second.len() { &mut first } else { &mut second };
        let end = longer.char_indices().next_back().map_or(0, |(at, _)| at);
        *longer = &longer[..end];
    }
    match second.is_empty() {
        true => format!("{first}_{suffix}"),
        false => format!("{first}_{second}_{suffix}"),
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
                regions: vec![],
            },
            columns: vec![Column::new("id", DataType::Int8).not_null(), Column::new("email", DataType::Text)],
            primary_key: vec!["id".into()],
            keys: vec![],
            foreign_keys: vec![],
            checks: vec![],
            primary_key_name: None,
            hidden_key: false,
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
        let unique = Key::unique("u", &["email"]);
        assert_eq!(create(&|t| t.keys = vec![unique.clone()]), "unique key \"u\" must contain the shard key");
        assert_eq!(
            create(&|t| t.columns[1].default = Some(Value::Int(1))),
            "the default of \"email\" is of another type"
        );
    }

    #[test]
    fn a_primary_key_without_the_shard_key_leads_that_of_the_shards() {
        let entries = format!("{INDEX_NAMESPACE}.1");
        let key = Key { constraint: true, primary: true, global: Some(entries.clone()), ..Key::unique("p", &["id"]) };
        let group = GroupName::new("users").expect("valid");
        let kind = TableKind::Hash { group, shard_by: vec!["email".into()], buckets: 8, regions: vec![] };
        let mut table = Table { kind, keys: vec![key], ..users() };
        table.columns[1].nullable = false;
        table.primary_key.push("email".into());
        let made = [
            SchemaChange::CreateNamespace { namespace: INDEX_NAMESPACE.into() },
            SchemaChange::CreateTable(entries_table(&entries)),
        ];
        let with = |table: &Table| [&made[..], &[SchemaChange::CreateTable(table.clone())]].concat();
        let schema = Schema::default().apply(&with(&table)).expect("valid");
        let drop = SchemaChange::DropKey { table: "users".into(), key: "p".into() };
        let dropped = schema.apply(&[drop]).expect_err("refused").to_string();
        assert_eq!(dropped, "the primary key of \"users\" cannot be dropped");
        let wrong: [&dyn Fn(&mut Table); 4] = [
            &|table| table.primary_key.reverse(),
            &|table| table.keys[0].unique = false,
            &|table| table.keys[0].columns.push("email".into()),
            &|table| table.kind = TableKind::Tenant,
        ];
        for edit in wrong {
            let mut table = table.clone();
            edit(&mut table);
            assert_eq!(error(&with(&table)), "the primary key of \"users\" is not in its place");
        }
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
            deferral: Deferral::None,
        }];
        let message = error(&[SchemaChange::CreateTable(users()), SchemaChange::CreateTable(posts)]);
        assert_eq!(message, "foreign key \"author\" leaves its shard");
    }
}
