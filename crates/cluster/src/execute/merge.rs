//! The order of rows, as both engines have it, and the merge of ordered streams.
//!
//! Shards sort their own rows; the router merges. So it must compare as they do: texts by bytes, numbers by value,
//! NaN above all numbers, nulls where the query says.

use isles_kernel::error::SqlError;
use isles_kernel::value::{Numeric, Value};
use isles_sql::plan::MergeKey;
use isles_sql::planted::{self, Bug};
use isles_sql::types::{BPCHAR, JSON, JSONB, Type};
use std::cmp::Ordering;

/// The order of two values of a type. Nulls are the caller's.
fn compare_values(a: &Value, b: &Value, ty: Type) -> Ordering {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Float(a), Value::Float(b)) => compare_floats(*a, *b),
        (Value::Numeric(a), Value::Numeric(b)) => Numeric::compare(a.as_str(), b.as_str()),
        (Value::Text(a), Value::Text(b)) if ty.oid == BPCHAR => a.trim_end_matches(' ').cmp(b.trim_end_matches(' ')),
        (Value::Text(a), Value::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
        (Value::Date(a), Value::Date(b)) => a.cmp(b),
        (Value::Time(a), Value::Time(b)) => a.cmp(b),
        (Value::Timestamp(a), Value::Timestamp(b)) | (Value::TimestampTz(a), Value::TimestampTz(b)) => a.cmp(b),
        (Value::Uuid(a), Value::Uuid(b)) => a.cmp(b),
        (Value::Interval(a), Value::Interval(b)) => a.span().cmp(&b.span()),
        (Value::Array(a), Value::Array(b)) => compare_arrays(a, b, ty),
        _ => Ordering::Equal,
    }
}

/// As PostgreSQL: NaN equals NaN and is above all, -0 equals 0.
fn compare_floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Member by member, nulls last; then the shorter one first.
fn compare_arrays(a: &[Value], b: &[Value], ty: Type) -> Ordering {
    let member = |(a, b): (&Value, &Value)| match (a.is_null(), b.is_null()) {
        (false, false) => compare_values(a, b, ty),
        (a_null, b_null) => a_null.cmp(&b_null),
    };
    a.iter().zip(b).map(member).find(|order| order.is_ne()).unwrap_or_else(|| a.len().cmp(&b.len()))
}

/// Refuses keys whose order is not known here.
pub(crate) fn check_keys(keys: &[MergeKey]) -> Result<(), SqlError> {
    match keys.iter().any(|key| key.ty.oid == JSON || key.ty.oid == JSONB) {
        true => Err(SqlError::unsupported("rows of several shards cannot be ordered by json")),
        false => Ok(()),
    }
}

/// The order of two rows by the keys of a merge.
pub(crate) fn compare(a: &[Value], b: &[Value], keys: &[MergeKey]) -> Ordering {
    keys.iter()
        .map(|key| compare_by(&a[key.column], &b[key.column], key))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

fn compare_by(a: &Value, b: &Value, key: &MergeKey) -> Ordering {
    match (a.is_null(), b.is_null()) {
        (true, true) => Ordering::Equal,
        (true, false) => {
            if key.nulls_first {
                Ordering::Less
            } else {
                Ordering::Greater
            }
        }
        (false, true) => {
            if key.nulls_first {
                Ordering::Greater
            } else {
                Ordering::Less
            }
        }
        (false, false) => {
            let order = compare_values(a, b, key.ty);
            if key.descending { order.reverse() } else { order }
        }
    }
}

/// Whole results, each in order, as one in order.
pub(crate) fn merge_sorted(results: Vec<Vec<Vec<Value>>>, keys: &[MergeKey]) -> Vec<Vec<Value>> {
    let mut rows: Vec<Vec<Value>> = results.into_iter().flatten().collect();
    // Stable, so rows that are equal stay in the order of their shards; runs that are in order cost one pass.
    rows.sort_by(|a, b| compare(a, b, keys));
    if planted::has(Bug::DroppedTies) {
        rows.dedup_by(|a, b| compare(a, b, keys).is_eq());
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use isles_kernel::interval::Interval;
    use isles_sql::types::{FLOAT8, INT8, INTERVAL, NUMERIC, Oid, TEXT};

    fn key(oid: Oid, descending: bool, nulls_first: bool) -> MergeKey {
        MergeKey { column: 0, ty: Type::of(oid), descending, nulls_first }
    }

    fn sorted(values: Vec<Value>, key: MergeKey) -> Vec<Value> {
        let shards = values.into_iter().map(|value| vec![vec![value]]).collect();
        merge_sorted(shards, &[key]).into_iter().flatten().collect()
    }

    #[test]
    fn values_are_ordered_as_postgresql_orders_them() {
        let floats = [f64::NAN, 1.0, f64::NEG_INFINITY, -0.0, f64::INFINITY].map(Value::Float).to_vec();
        let expected = [f64::NEG_INFINITY, -0.0, 1.0, f64::INFINITY, f64::NAN].map(Value::Float).to_vec();
        assert_eq!(sorted(floats, key(FLOAT8, false, false)), expected);
        let numeric = |text: &str| Value::Numeric(Numeric::parse(text).expect("valid"));
        let found = sorted(["NaN", "10", "9.5", "-1"].map(numeric).to_vec(), key(NUMERIC, false, false));
        assert_eq!(found, ["-1", "9.5", "10", "NaN"].map(numeric).to_vec());
        let found = sorted(["b", "a", "B", "é"].map(Value::text).to_vec(), key(TEXT, false, false));
        assert_eq!(found, ["B", "a", "b", "é"].map(Value::text).to_vec());
        let interval = |text: &str| Value::Interval(Interval::parse(text).expect("valid"));
        let found = sorted(["1 mon", "29 days", "31 days"].map(interval).to_vec(), key(INTERVAL, false, false));
        assert_eq!(found, ["29 days", "1 mon", "31 days"].map(interval).to_vec());
    }

    #[test]
    fn nulls_are_where_the_query_says_whatever_the_direction() {
        let values = || vec![Value::Int(1), Value::Null, Value::Int(2)];
        let (one, two) = (Value::Int(1), Value::Int(2));
        assert_eq!(sorted(values(), key(INT8, false, false)), vec![one.clone(), two.clone(), Value::Null]);
        assert_eq!(sorted(values(), key(INT8, false, true)), vec![Value::Null, one.clone(), two.clone()]);
        assert_eq!(sorted(values(), key(INT8, true, true)), vec![Value::Null, two.clone(), one.clone()]);
        assert_eq!(sorted(values(), key(INT8, true, false)), vec![two, one, Value::Null]);
    }
}
