//! Rows of a system relation, made from a few of its columns by name.
//!
//! A catalog has thirty columns of which a computed row has five to say; the others have one value in all rows. A
//! [`Shape`] resolves the names once, so that a row costs a copy.

use super::data::{self, Definition};
use crate::types;
use isles_kernel::value::Value;

pub(super) struct Shape<const N: usize> {
    /// What the columns have that are not named.
    rest: Vec<Value>,
    positions: [usize; N],
}

impl<const N: usize> Shape<N> {
    /// `same` are columns that have one value in all rows; `names` are those that each row gives. What neither names
    /// is null, or where it may not be null the type's zero.
    pub(super) fn new(definition: &Definition, same: &[(&str, Value)], names: [&str; N]) -> Shape<N> {
        let columns = &definition.relation.columns;
        let position = |name: &str| {
            let at = columns.iter().position(|column| column.name == name);
            at.unwrap_or_else(|| unreachable!("{} has a column {name}", definition.relation.name))
        };
        let mut rest: Vec<Value> =
            columns.iter().map(|c| if c.not_null { zero(c.ty.oid) } else { Value::Null }).collect();
        for (name, value) in same {
            rest[position(name)] = value.clone();
        }
        Shape { rest, positions: names.map(position) }
    }

    pub(super) fn row(&self, values: [Value; N]) -> Vec<Value> {
        let mut row = self.rest.clone();
        for (at, value) in self.positions.into_iter().zip(values) {
            row[at] = value;
        }
        row
    }
}

fn zero(ty: types::Oid) -> Value {
    match ty {
        types::BOOL => Value::Bool(false),
        types::FLOAT4 | types::FLOAT8 => Value::Float(0.0),
        types::NAME | types::TEXT | types::CHAR | types::VARCHAR | types::PG_NODE_TREE => text(""),
        ty if data::type_row(ty.0).is_some_and(|row| row.category == "A") => Value::Array(Vec::new()),
        _ => Value::Int(0),
    }
}

pub(super) fn text(text: &str) -> Value {
    Value::text(text)
}

pub(super) fn oid(oid: u32) -> Value {
    Value::Int(i64::from(oid))
}

pub(super) fn int(n: usize) -> Value {
    Value::Int(i64::try_from(n).unwrap_or(i64::MAX))
}

pub(super) fn ints(numbers: &[i64]) -> Value {
    Value::Array(numbers.iter().map(|n| Value::Int(*n)).collect())
}

pub(super) fn or_null(value: Option<impl Into<String>>) -> Value {
    value.map_or(Value::Null, Value::text)
}
