//! What an index is over.

use isles_kernel::index::IndexKey;
use isles_kernel::index::key::{NoOrder, Part};
use isles_kernel::names::{GroupName, SchemaVersion};
use isles_kernel::schema::{Key, KeyOver, Table};
use isles_kernel::value::Value;
use std::sync::Arc;

/// PostgreSQL's number of `character(n)`.
const BPCHAR: u32 = 1042;

/// A global index, as far as keys are made from rows.
#[derive(Debug, Clone)]
pub(crate) struct Definition {
    /// The table of its entries, which no other index ever has: what an index is known by.
    pub(crate) entries: Arc<str>,
    pub(crate) table: String,
    /// Its name as a relation.
    pub(crate) name: String,
    pub(crate) group: GroupName,
    pub(crate) unique: bool,
    /// Rows of an earlier schema have other columns at these places.
    pub(crate) since: SchemaVersion,
    columns: Vec<Column>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Column {
    at: usize,
    padded: bool,
}

impl Definition {
    /// None if the key is no global one, or its table has no buckets.
    pub(crate) fn of(table: &Table, key: &Key, since: SchemaVersion) -> Option<Definition> {
        let entries = key.global.as_ref()?;
        let group = table.group()?.clone();
        let names: Vec<&String> = match key.parts.is_empty() {
            true => key.columns.iter().collect(),
            false => key
                .parts
                .iter()
                .map(|part| match &part.over {
                    KeyOver::Column(name) => Some(name),
                    KeyOver::Expression(_) => None,
                })
                .collect::<Option<_>>()?,
        };
        let column = |name: &&String| {
            let at = table.position(name)?;
            Some(Column { at, padded: table.columns[at].sql_type.is_some_and(|ty| ty.oid == BPCHAR) })
        };
        Some(Definition {
            entries: Arc::from(entries.as_str()),
            table: table.name.clone(),
            name: table.key_relation(&key.name),
            group,
            unique: key.unique,
            since,
            columns: names.iter().map(column).collect::<Option<_>>()?,
        })
    }

    /// Whether rows make the same keys by both.
    pub(crate) fn reads_alike(&self, other: &Definition) -> bool {
        self.columns == other.columns && self.table == other.table
    }

    /// Where its columns are, for whoever compares them with an earlier schema's.
    pub(crate) fn places(&self) -> Vec<usize> {
        self.columns.iter().map(|column| column.at).collect()
    }

    /// The key of a row; None if the index leaves it out.
    pub(crate) fn key_of(&self, row: &[Value]) -> Result<Option<IndexKey>, NoOrder> {
        let part = |column: &Column| Part { value: row.get(column.at).unwrap_or(&Value::Null), padded: column.padded };
        IndexKey::of(self.columns.iter().map(part)).map(Some)
    }

    pub(crate) fn is_padded(&self, column: usize) -> bool {
        self.columns.get(column).is_some_and(|column| column.padded)
    }
}
