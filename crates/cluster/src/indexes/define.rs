//! What an index is over.

use crate::execute::run::column_type;
use isles_kernel::index::IndexKey;
use isles_kernel::index::key::{NoOrder, Part};
use isles_kernel::names::{GroupName, SchemaVersion};
use isles_kernel::schema::{Key, KeyOver, Table};
use isles_kernel::value::Value;
use isles_sql::text;
use isles_sql::types::{self, Type};
use std::sync::Arc;

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

#[derive(Debug, Clone, PartialEq, Eq)]
struct Column {
    name: String,
    at: usize,
    ty: Type,
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
            let ty = column_type(table, at);
            Some(Column { name: (*name).clone(), at, ty, padded: ty.oid == types::BPCHAR })
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

    /// What the key of a row is made of; None if the index leaves it out.
    pub(crate) fn values_of(&self, row: &[Value]) -> Option<Vec<Value>> {
        Some(self.columns.iter().map(|column| row.get(column.at).cloned().unwrap_or(Value::Null)).collect())
    }

    /// The key that is made of these.
    pub(crate) fn key_from(&self, values: &[Value]) -> Result<IndexKey, NoOrder> {
        IndexKey::of(values.iter().enumerate().map(|(at, value)| Part { value, padded: self.is_padded(at) }))
    }

    /// These values, as an error names them: `Key (email)=(a@b)`.
    pub(crate) fn shown(&self, values: &[Value]) -> String {
        let names: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
        let text = |(column, value): (&Column, &Value)| {
            let mut out = Vec::new();
            text::output(value, column.ty, &text::Settings::default(), &mut out);
            String::from_utf8_lossy(&out).into_owned()
        };
        let values: Vec<String> = self.columns.iter().zip(values).map(text).collect();
        format!("Key ({})=({})", names.join(", "), values.join(", "))
    }

    pub(crate) fn is_padded(&self, column: usize) -> bool {
        self.columns.get(column).is_some_and(|column| column.padded)
    }
}
