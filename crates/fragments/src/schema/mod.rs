//! A fragment's schema: tables, references, indexes, and the operations that made them.
//!
//! An author writes the operations in order, and never changes one that was published: each of them is a version, and
//! databases are brought from the version they have to the version of the code. Every table has an external id, `id`, and
//! the hidden columns `_internalId`, `_version` and `_shard`, which are not part of the logical schema: they cannot be
//! declared, named in a condition, or written.
//!
//! Invariants:
//!   * names are plain, at most 40 characters, and those that begin with `_` are ours
//!   * a column of an index has a type that all databases order alike
//!   * a reference is to a table of the same schema, and holds the external id of its row

mod build;

pub(crate) use build::short;
pub use build::{Columns, SchemaBuilder, column};

use crate::error::{Code, Result, refused};
use crate::values::Values;
use isles_kernel::value::{DataType, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Characters of a name. With a namespace, a prefix and a hash it stays below PostgreSQL's 63 bytes.
pub const MAX_NAME: usize = 40;
/// Characters of a `string`: what every database can index.
pub const MAX_STRING: usize = 191;
/// Characters of an external id.
pub const MAX_ID: usize = 128;
/// Bytes of one value; a row is read into memory wholly, and travels in the outbox.
pub const MAX_VALUE_BYTES: usize = 1 << 20;
/// Columns of a table: an insert names all of them, and SQLite's parameters are bounded.
pub const MAX_COLUMNS: usize = 100;

/// Types that all databases store without loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnType {
    /// At most 191 characters; can be indexed.
    String,
    Text,
    /// At most so many characters; can be indexed.
    Varchar(u16),
    Bigint,
    Integer,
    Decimal,
    Bool,
    Json,
    Binary,
    Date,
    Timestamp,
    /// The external id of a row of another table.
    Reference,
}

impl ColumnType {
    pub fn name(self) -> &'static str {
        match self {
            ColumnType::String => "string",
            ColumnType::Text => "text",
            ColumnType::Varchar(_) => "varchar",
            ColumnType::Bigint => "bigint",
            ColumnType::Integer => "integer",
            ColumnType::Decimal => "decimal",
            ColumnType::Bool => "bool",
            ColumnType::Json => "json",
            ColumnType::Binary => "binary",
            ColumnType::Date => "date",
            ColumnType::Timestamp => "timestamp",
            ColumnType::Reference => "reference",
        }
    }

    /// As the kernel stores it.
    pub fn data(self) -> DataType {
        match self {
            ColumnType::String | ColumnType::Text | ColumnType::Varchar(_) | ColumnType::Reference => DataType::Text,
            ColumnType::Bigint => DataType::Int8,
            ColumnType::Integer => DataType::Int4,
            ColumnType::Decimal => DataType::Numeric,
            ColumnType::Bool => DataType::Bool,
            ColumnType::Json => DataType::Json,
            ColumnType::Binary => DataType::Bytes,
            ColumnType::Date => DataType::Date,
            ColumnType::Timestamp => DataType::TimestampTz,
        }
    }

    fn is_indexable(self) -> bool {
        !matches!(self, ColumnType::Text | ColumnType::Json | ColumnType::Binary | ColumnType::Decimal)
    }

    fn max_chars(self) -> Option<usize> {
        match self {
            ColumnType::String => Some(MAX_STRING),
            ColumnType::Varchar(most) => Some(most.into()),
            ColumnType::Reference => Some(MAX_ID),
            _ => None,
        }
    }
}

/// What a column has if nothing was given.
#[derive(Debug, Clone, PartialEq)]
pub enum Default {
    Value(Value),
    /// The time of the unit of work.
    Now,
}

/// A column that an author declared.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub name: String,
    pub ty: ColumnType,
    pub nullable: bool,
    pub default: Option<Default>,
    /// The table that it refers to.
    pub reference: Option<String>,
}

impl Column {
    /// Refuses what cannot be stored.
    pub fn check(&self, value: &Value) -> Result<()> {
        let wrong = |why: String| Err(refused(Code::InvalidValue, format!("column \"{}\" {why}", self.name)));
        if value.is_null() {
            return if self.nullable { Ok(()) } else { wrong("needs a value".into()) };
        }
        if !value.fits(self.ty.data()) {
            return wrong(format!("has type {}", self.ty.name()));
        }
        if let (Some(most), Value::Text(text)) = (self.ty.max_chars(), value)
            && text.chars().count() > most
        {
            return wrong(format!("has at most {most} characters"));
        }
        if matches!(value, Value::Text(text) if text.contains('\0')) {
            return wrong("has a character of code 0, which not all databases store".into());
        }
        if value.weight() > MAX_VALUE_BYTES {
            return wrong(format!("has at most {MAX_VALUE_BYTES} bytes"));
        }
        match value {
            Value::Json(text) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_err() => {
                wrong("has type json".into())
            }
            _ => Ok(()),
        }
    }
}

/// An index. The database leads it by the shard; the logical schema does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    pub name: String,
    pub columns: Vec<String>,
    pub unique: bool,
    pub lead: Lead,
}

/// What stands first in an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lead {
    /// The shard.
    Shard,
    /// The columns, and the shard last: for maintenance, which looks at all shards.
    Columns,
}

/// Whose the rows of a table are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Shards,
    /// The database itself: its `_shard` is null, and nothing is filtered.
    Database,
}

/// A table as it is in one version of its schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub schema: String,
    pub name: String,
    /// Its name in the database.
    pub physical: String,
    pub columns: Vec<Column>,
    pub indexes: Vec<Index>,
    pub owner: Owner,
}

/// The name of the index over the external id.
pub const PRIMARY: &str = "primary";
pub(crate) const ID: &str = "id";

impl Table {
    pub fn column(&self, name: &str) -> Result<&Column> {
        self.columns.iter().find(|column| column.name == name).ok_or_else(|| self.no_column(name))
    }

    /// The type of a column that a condition may name.
    pub fn type_of(&self, name: &str) -> Result<ColumnType> {
        match name {
            ID => Ok(ColumnType::Varchar(MAX_ID as u16)),
            _ => self.column(name).map(|column| column.ty),
        }
    }

    fn no_column(&self, name: &str) -> crate::error::Error {
        match name.starts_with('_') {
            true => refused(Code::HiddenColumn, format!("column \"{name}\" is kept by the database"))
                .with_hint("hidden columns are neither read nor written; the shard is that of the unit of work"),
            false => refused(Code::UnknownColumn, format!("table \"{}\" has no column \"{name}\"", self.name)),
        }
    }

    /// The columns of an index, the external id last if it is not unique by itself.
    pub fn index_columns(&self, index: &str) -> Result<Vec<String>> {
        if index == PRIMARY {
            return Ok(vec![ID.into()]);
        }
        Ok(self.index(index)?.columns.clone())
    }

    pub fn index(&self, index: &str) -> Result<&Index> {
        let found = self.indexes.iter().find(|known| known.name == index);
        found.ok_or_else(|| refused(Code::UnknownIndex, format!("table \"{}\" has no index \"{index}\"", self.name)))
    }

    /// The values of a new row: what was given, checked, and defaults.
    pub fn complete(&self, mut given: Values, now: &Value) -> Result<Values> {
        let mut row = Values::new();
        for column in &self.columns {
            let value = given.0.remove(&column.name).or_else(|| match &column.default {
                Some(Default::Value(value)) => Some(value.clone()),
                Some(Default::Now) => Some(now.clone()),
                None => None,
            });
            let value = value.unwrap_or(Value::Null);
            column.check(&value)?;
            row.0.insert(column.name.clone(), value);
        }
        match given.0.keys().next() {
            Some(name) => Err(self.no_column(name)),
            None => Ok(row),
        }
    }

    /// Refuses what an update cannot set.
    pub fn check_set(&self, set: &Values) -> Result<()> {
        for (name, value) in &set.0 {
            if name == ID {
                return Err(refused(Code::InvalidValue, "the id of a row does not change"));
            }
            self.column(name)?.check(value)?;
        }
        Ok(())
    }
}

/// What made a version.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    AddTable(Table),
    AlterTable {
        table: String,
        columns: Vec<Column>,
        indexes: Vec<Index>,
    },
    /// A version that changes nothing in the database.
    NoOp {
        reason: String,
    },
}

/// A schema with its history.
#[derive(Debug, Clone)]
pub struct Schema {
    pub name: String,
    /// What follows the names of tables in the database, so that two fragments may use the same ones.
    pub namespace: Option<String>,
    pub operations: Vec<Operation>,
    tables: BTreeMap<String, Arc<Table>>,
}

impl Schema {
    /// The version of the code: so many operations.
    pub fn version(&self) -> usize {
        self.operations.len()
    }

    pub fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.tables.values()
    }

    pub fn table(&self, name: &str) -> Result<&Arc<Table>> {
        self.tables
            .get(name)
            .ok_or_else(|| refused(Code::UnknownTable, format!("schema \"{}\" has no table \"{name}\"", self.name)))
    }

    /// The tables as they were in a version.
    pub fn tables_at(&self, version: usize) -> Result<BTreeMap<String, Arc<Table>>> {
        build::fold(&self.operations[..version.min(self.operations.len())])
    }

    /// What names the schema in the database and in the outbox.
    pub fn key(&self) -> &str {
        self.namespace.as_deref().unwrap_or(&self.name)
    }
}
