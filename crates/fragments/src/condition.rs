//! Which rows: conditions over the columns of an index.
//!
//! A condition is printed for databases and evaluated here, for the memory adapter and for the scopes of sync, with SQL's
//! three values: a comparison with null is neither true nor false.

use crate::error::{Code, Result, refused};
use crate::schema::{ColumnType, Table};
use crate::values::{IntoValue, Values, compare};
use isles_kernel::value::Value;
use std::cmp::Ordering;

/// Members of a list, and parts of a condition: databases bound the parameters of a statement.
pub const MAX_PARTS: usize = 500;
/// Depth of a condition: it is printed and evaluated by recursion.
pub const MAX_DEPTH: usize = 20;

/// Which rows.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    All,
    Compare {
        column: String,
        op: Op,
        value: Value,
    },
    In {
        column: String,
        values: Vec<Value>,
    },
    IsNull {
        column: String,
    },
    /// A part of a text, as it is: no character of it stands for others.
    Matches {
        column: String,
        how: Match,
        text: String,
    },
    And(Vec<Condition>),
    Or(Vec<Condition>),
    Not(Box<Condition>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Match {
    Contains,
    StartsWith,
    EndsWith,
}

impl Op {
    pub(crate) fn sql(self) -> &'static str {
        match self {
            Op::Eq => "=",
            Op::Ne => "<>",
            Op::Lt => "<",
            Op::Le => "<=",
            Op::Gt => ">",
            Op::Ge => ">=",
        }
    }

    fn holds(self, order: Ordering) -> bool {
        match self {
            Op::Eq => order == Ordering::Equal,
            Op::Ne => order != Ordering::Equal,
            Op::Lt => order == Ordering::Less,
            Op::Le => order != Ordering::Greater,
            Op::Gt => order == Ordering::Greater,
            Op::Ge => order != Ordering::Less,
        }
    }
}

pub fn compares(column: &str, op: Op, value: impl IntoValue) -> Condition {
    Condition::Compare { column: column.into(), op, value: value.into_value() }
}

pub fn eq(column: &str, value: impl IntoValue) -> Condition {
    compares(column, Op::Eq, value)
}

pub fn is_in<V: IntoValue>(column: &str, values: impl IntoIterator<Item = V>) -> Condition {
    Condition::In { column: column.into(), values: values.into_iter().map(IntoValue::into_value).collect() }
}

pub fn matches(column: &str, how: Match, text: &str) -> Condition {
    Condition::Matches { column: column.into(), how, text: text.into() }
}

pub fn is_null(column: &str) -> Condition {
    Condition::IsNull { column: column.into() }
}

impl Condition {
    pub fn and(self, other: Condition) -> Condition {
        match (self, other) {
            (Condition::All, other) | (other, Condition::All) => other,
            (Condition::And(mut parts), other) => {
                parts.push(other);
                Condition::And(parts)
            }
            (one, other) => Condition::And(vec![one, other]),
        }
    }

    pub fn or(self, other: Condition) -> Condition {
        Condition::Or(vec![self, other])
    }

    pub fn negate(self) -> Condition {
        Condition::Not(Box::new(self))
    }

    /// Refuses columns that are not among these, values of other types, and what is too large.
    pub fn check(&self, table: &Table, columns: &[String]) -> Result<()> {
        let mut parts = 0;
        self.check_part(table, columns, 0, &mut parts)
    }

    fn check_part(&self, table: &Table, columns: &[String], depth: usize, parts: &mut usize) -> Result<()> {
        *parts += match self {
            Condition::In { values, .. } => values.len(),
            _ => 1,
        };
        if depth > MAX_DEPTH || *parts > MAX_PARTS {
            return Err(refused(Code::InvalidQuery, "the condition is too large"));
        }
        match self {
            Condition::All => Ok(()),
            Condition::And(items) | Condition::Or(items) => {
                items.iter().try_for_each(|item| item.check_part(table, columns, depth + 1, parts))
            }
            Condition::Not(item) => item.check_part(table, columns, depth + 1, parts),
            Condition::Compare { column, value, .. } => {
                check_value(table, check_column(table, columns, column)?, column, value)
            }
            Condition::In { column, values } => {
                let ty = check_column(table, columns, column)?;
                values.iter().try_for_each(|value| check_value(table, ty, column, value))
            }
            Condition::IsNull { column } => check_column(table, columns, column).map(|_| ()),
            Condition::Matches { column, text, .. } => {
                let ty = check_column(table, columns, column)?;
                check_value(table, ty, column, &Value::Text(text.clone()))
            }
        }
    }

    /// Whether a row meets it; none where SQL says null.
    pub fn evaluate(&self, id: &str, row: &Values) -> Option<bool> {
        match self {
            Condition::All => Some(true),
            Condition::And(items) => every(items.iter().map(|item| item.evaluate(id, row))),
            Condition::Or(items) => every(items.iter().map(|item| item.evaluate(id, row).map(|b| !b))).map(|b| !b),
            Condition::Not(item) => item.evaluate(id, row).map(|b| !b),
            Condition::Compare { column, op, value } => {
                compare(&value_of(column, id, row), value).map(|order| op.holds(order))
            }
            Condition::In { column, values } => {
                let found = value_of(column, id, row);
                every(values.iter().map(|value| compare(&found, value).map(|order| order != Ordering::Equal)))
                    .map(|none| !none)
            }
            Condition::IsNull { column } => Some(value_of(column, id, row).is_null()),
            Condition::Matches { column, how, text } => match value_of(column, id, row) {
                Value::Text(found) => Some(match how {
                    Match::Contains => found.contains(text.as_str()),
                    Match::StartsWith => found.starts_with(text.as_str()),
                    Match::EndsWith => found.ends_with(text.as_str()),
                }),
                _ => None,
            },
        }
    }
}

/// SQL's AND: false if any is, else null if any is.
fn every(parts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut all = Some(true);
    for part in parts {
        match part {
            Some(false) => return Some(false),
            None => all = None,
            Some(true) => {}
        }
    }
    all
}

pub(crate) fn value_of(column: &str, id: &str, row: &Values) -> Value {
    match column {
        crate::schema::ID => Value::Text(id.into()),
        _ => row.get(column).clone(),
    }
}

fn check_column(table: &Table, columns: &[String], column: &str) -> Result<ColumnType> {
    let ty = table.type_of(column)?;
    match columns.iter().any(|known| known == column) || column == crate::schema::ID {
        true => Ok(ty),
        false => Err(refused(Code::InvalidQuery, format!("column \"{column}\" is not in the index"))
            .with_hint("name an index that has it")),
    }
}

fn check_value(table: &Table, ty: ColumnType, column: &str, value: &Value) -> Result<()> {
    if matches!(value, Value::Text(text) if text.contains('\0')) {
        return Err(refused(Code::InvalidValue, format!("column \"{column}\" has no characters of code 0")));
    }
    match value.fits(ty.data()) {
        true => Ok(()),
        false => {
            let name = &table.name;
            Err(refused(Code::InvalidValue, format!("column \"{column}\" of \"{name}\" has type {}", ty.name())))
        }
    }
}
