//! What an index is over.
//!
//! Most are over columns, whose values are taken from the row as they are. Others are over expressions, or have only
//! some rows; their keys are computed ([`RowKey`]).

use crate::execute::run::column_type;
use isles_kernel::hash::{BucketCount, bucket_of};
use isles_kernel::index::IndexKey;
use isles_kernel::index::key::{NoOrder, Part};
use isles_kernel::names::{BucketId, GroupName, SchemaVersion, TenantId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::{Key, KeyOver, Table, TableKind, Unit, every_tenant_group};
use isles_kernel::value::Value;
use isles_sql::row_key::RowKey;
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
    /// The group that its rows are in; of a tenant table, that of all tenants.
    pub(crate) group: GroupName,
    /// Of a tenant table: how many buckets there are for tenants.
    tenants: Option<BucketCount>,
    pub(crate) unique: bool,
    /// Rows of an earlier schema have other columns at these places.
    pub(crate) since: SchemaVersion,
    /// What its parts are called.
    names: Vec<String>,
    over: Over,
}

#[derive(Debug, Clone)]
enum Over {
    Columns(Vec<Column>),
    Computed(Box<RowKey>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Column {
    at: usize,
    ty: Type,
}

impl Column {
    fn part<'a>(&self, value: &'a Value) -> Part<'a> {
        Part { value, padded: self.ty.oid == types::BPCHAR }
    }
}

impl Definition {
    /// None if the key is no global one, or its table has no buckets, or nobody here can compute it.
    pub(crate) fn of(table: &Table, key: &Key, since: SchemaVersion, tenants: BucketCount) -> Option<Definition> {
        let entries = key.global.as_ref()?;
        let is_of_tenants = table.kind == TableKind::Tenant;
        Some(Definition {
            entries: Arc::from(entries.as_str()),
            table: table.name.clone(),
            name: table.key_relation(&key.name),
            group: if is_of_tenants { every_tenant_group() } else { table.group()?.clone() },
            tenants: is_of_tenants.then_some(tenants),
            unique: key.unique,
            since,
            names: names(key),
            over: over(table, key)?,
        })
    }

    /// Whether it is over the rows of all tenants.
    pub(crate) fn is_of_tenants(&self) -> bool {
        self.tenants.is_some()
    }

    /// The bucket that entries name for a row of a unit. A tenant's is the one that its name hashes to, pinned or not, so
    /// that a move changes none of its entries (I-28).
    pub(crate) fn bucket_of(&self, unit: &Unit) -> Option<BucketId> {
        match (unit, self.tenants) {
            (Unit::Bucket(_, bucket), None) => Some(*bucket),
            (Unit::Tenant(tenant), Some(buckets)) => {
                Some(bucket_of(tenant.as_ref().map_or("", TenantId::as_str), None, buckets))
            }
            _ => None,
        }
    }

    /// The group of the routing that these buckets are of.
    pub(crate) fn routed<'a>(&'a self, policy: &'a RoutingPolicy) -> &'a GroupName {
        if self.is_of_tenants() { policy.tenant_group() } else { &self.group }
    }

    /// Whether rows make the same keys by both.
    pub(crate) fn reads_alike(&self, other: &Definition) -> bool {
        self.table == other.table && self.places() == other.places()
    }

    /// Where its columns are, for whoever compares them with an earlier schema's.
    pub(crate) fn places(&self) -> Vec<usize> {
        match &self.over {
            Over::Columns(columns) => columns.iter().map(|column| column.at).collect(),
            Over::Computed(row_key) => row_key.columns().to_vec(),
        }
    }

    /// The key of a row; None if the index leaves it out.
    pub(crate) fn key_of(&self, row: &[Value]) -> Result<Option<IndexKey>, NoOrder> {
        match &self.over {
            Over::Columns(columns) => {
                let part = |column: &Column| column.part(row.get(column.at).unwrap_or(&Value::Null));
                IndexKey::of(columns.iter().map(part)).map(Some)
            }
            Over::Computed(row_key) => row_key.values(row).map(|values| self.key_from(&values)).transpose(),
        }
    }

    /// What the key of a row is made of; None if the index leaves it out.
    pub(crate) fn values_of(&self, row: &[Value]) -> Option<Vec<Value>> {
        match &self.over {
            Over::Columns(columns) => {
                Some(columns.iter().map(|column| row.get(column.at).cloned().unwrap_or(Value::Null)).collect())
            }
            Over::Computed(row_key) => row_key.values(row),
        }
    }

    /// The key that is made of these.
    pub(crate) fn key_from(&self, values: &[Value]) -> Result<IndexKey, NoOrder> {
        IndexKey::of(values.iter().enumerate().map(|(at, value)| Part { value, padded: self.is_padded(at) }))
    }

    pub(crate) fn is_padded(&self, part: usize) -> bool {
        match &self.over {
            Over::Columns(columns) => columns.get(part).is_some_and(|column| column.ty.oid == types::BPCHAR),
            Over::Computed(row_key) => row_key.is_padded(part),
        }
    }

    /// These values, as an error names them: `Key (email)=(a@b)`.
    pub(crate) fn shown(&self, values: &[Value]) -> String {
        let text = |(at, value): (usize, &Value)| {
            let ty = match &self.over {
                Over::Columns(columns) => columns.get(at).map(|column| column.ty),
                Over::Computed(row_key) => row_key.type_of(at),
            };
            let mut out = Vec::new();
            text::output(value, ty.unwrap_or(Type::of(types::TEXT)), &text::Settings::default(), &mut out);
            String::from_utf8_lossy(&out).into_owned()
        };
        let values: Vec<String> = values.iter().enumerate().map(text).collect();
        format!("Key ({})=({})", self.names.join(", "), values.join(", "))
    }
}

fn names(key: &Key) -> Vec<String> {
    let name = |over: &KeyOver| match over {
        KeyOver::Column(name) => name.clone(),
        KeyOver::Expression(expression) => expression.sql.clone(),
    };
    match key.parts.is_empty() {
        true => key.columns.clone(),
        false => key.parts.iter().map(|part| name(&part.over)).collect(),
    }
}

fn over(table: &Table, key: &Key) -> Option<Over> {
    let plain = key.predicate.is_none() && key.parts.iter().all(|part| matches!(part.over, KeyOver::Column(_)));
    if !plain {
        return RowKey::of(table, key).ok().map(|row_key| Over::Computed(Box::new(row_key)));
    }
    let column = |name: &String| {
        let at = table.position(name)?;
        Some(Column { at, ty: column_type(table, at) })
    };
    names(key).iter().map(column).collect::<Option<_>>().map(Over::Columns)
}
