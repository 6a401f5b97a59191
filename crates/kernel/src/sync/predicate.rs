//! Conditions on the columns of one row, as clients state them: `{"all":[{"eq":["status","open"]},{"lt":["rank",5]}]}`.
//!
//! Both sides evaluate them with [`Predicate::matches`], so a client's query and a server's check of a scope agree.
//! Logic has three values as SQL's has: a comparison with null, with a column that is not there, or between different
//! kinds is unknown, and what is unknown does not match. Texts compare by their characters' numbers.

use super::names::{SyncNameError, Values, check_text, within};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// The deepest nesting. People write two or three levels.
pub const MAX_PREDICATE_DEPTH: usize = 16;
/// The most conditions and values in one predicate. A server evaluates it for each change since the client's cursor.
pub const MAX_PREDICATE_NODES: usize = 256;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Predicate {
    /// Every one of these; of none, every row.
    All(Vec<Predicate>),
    /// At least one of these; of none, no row.
    Any(Vec<Predicate>),
    Not(Box<Predicate>),
    Eq(String, serde_json::Value),
    Ne(String, serde_json::Value),
    Lt(String, serde_json::Value),
    Lte(String, serde_json::Value),
    Gt(String, serde_json::Value),
    Gte(String, serde_json::Value),
    In(String, Vec<serde_json::Value>),
    /// The column is null or not there.
    Null(String),
}

impl Predicate {
    /// Every row.
    pub const fn everything() -> Predicate {
        Predicate::All(Vec::new())
    }

    pub fn matches(&self, row: &Values) -> bool {
        self.truth(row) == Some(true)
    }

    fn truth(&self, row: &Values) -> Option<bool> {
        match self {
            Predicate::All(parts) => unless(parts, row, false),
            Predicate::Any(parts) => unless(parts, row, true),
            Predicate::Not(part) => part.truth(row).map(|truth| !truth),
            Predicate::Eq(column, value) => equal(row, column, value),
            Predicate::Ne(column, value) => equal(row, column, value).map(|truth| !truth),
            Predicate::Lt(column, value) => order(row, column, value).map(Ordering::is_lt),
            Predicate::Lte(column, value) => order(row, column, value).map(Ordering::is_le),
            Predicate::Gt(column, value) => order(row, column, value).map(Ordering::is_gt),
            Predicate::Gte(column, value) => order(row, column, value).map(Ordering::is_ge),
            Predicate::In(column, values) => {
                let any = values.iter().map(|value| Predicate::Eq(column.clone(), value.clone())).collect();
                Predicate::Any(any).truth(row)
            }
            Predicate::Null(column) => Some(row.get(column).is_none_or(serde_json::Value::is_null)),
        }
    }

    /// Checks depth, size and names.
    pub fn check(&self) -> Result<(), SyncNameError> {
        let nodes = self.nodes(1)?;
        within("predicate", MAX_PREDICATE_NODES, "conditions and values", nodes)
    }

    fn nodes(&self, depth: usize) -> Result<usize, SyncNameError> {
        within("predicate", MAX_PREDICATE_DEPTH, "levels", depth)?;
        match self {
            Predicate::All(parts) | Predicate::Any(parts) => {
                parts.iter().try_fold(1, |sum, part| Ok(sum + part.nodes(depth + 1)?))
            }
            Predicate::Not(part) => Ok(1 + part.nodes(depth + 1)?),
            Predicate::In(column, values) => check_text("column name", column).map(|()| 1 + values.len()),
            Predicate::Eq(column, _)
            | Predicate::Ne(column, _)
            | Predicate::Lt(column, _)
            | Predicate::Lte(column, _)
            | Predicate::Gt(column, _)
            | Predicate::Gte(column, _)
            | Predicate::Null(column) => check_text("column name", column).map(|()| 1),
        }
    }
}

/// What one part decides by itself, if one does; otherwise the contrary, unless a part is unknown.
fn unless(parts: &[Predicate], row: &Values, decides: bool) -> Option<bool> {
    let truths: Vec<Option<bool>> = parts.iter().map(|part| part.truth(row)).collect();
    match truths.contains(&Some(decides)) {
        true => Some(decides),
        false => (!truths.contains(&None)).then_some(!decides),
    }
}

fn equal(row: &Values, column: &str, value: &serde_json::Value) -> Option<bool> {
    let actual = row.get(column)?;
    match compare(actual, value) {
        Some(order) => Some(order.is_eq()),
        None if actual.is_null() || value.is_null() => None,
        // Objects and arrays have no order, but they are equal or not.
        None if std::mem::discriminant(actual) == std::mem::discriminant(value) => Some(actual == value),
        None => None,
    }
}

fn order(row: &Values, column: &str, value: &serde_json::Value) -> Option<Ordering> {
    compare(row.get(column)?, value)
}

/// The order of two values of one kind: booleans, numbers, texts. None for everything else.
pub fn compare(left: &serde_json::Value, right: &serde_json::Value) -> Option<Ordering> {
    use serde_json::Value::{Bool, Number, String};
    match (left, right) {
        (Bool(left), Bool(right)) => Some(left.cmp(right)),
        (String(left), String(right)) => Some(left.cmp(right)),
        (Number(left), Number(right)) => match (whole(left), whole(right)) {
            (Some(left), Some(right)) => Some(left.cmp(&right)),
            _ => left.as_f64()?.partial_cmp(&right.as_f64()?),
        },
        _ => None,
    }
}

/// As an integer, so that those beyond 2^53 compare exactly.
fn whole(number: &serde_json::Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}
