//! The order of values, as PostgreSQL has it: texts by bytes, NaN above all numbers, nulls (in arrays) above all values.

use super::{Env, Result, at, unexpected};
use crate::text::json::{self, Json};
use crate::types::*;
use isles_kernel::error::SqlError;
use isles_kernel::value::{Numeric, Value};
use std::cmp::Ordering;

/// Compares two values of one type, neither of them null. Types without an order (json) are refused.
pub fn compare(a: &Value, b: &Value, ty: Oid) -> std::result::Result<Ordering, SqlError> {
    Ok(match (a, b) {
        (Value::Text(a), Value::Text(b)) if ty == BPCHAR => a.trim_end_matches(' ').cmp(b.trim_end_matches(' ')),
        (Value::Text(a), Value::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Float(_) | Value::Int(_), Value::Float(_) | Value::Int(_)) => floats(a, b),
        (Value::Numeric(a), Value::Numeric(b)) => Numeric::compare(a.as_str(), b.as_str()),
        (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
        (Value::Date(a), Value::Date(b)) => a.cmp(b),
        (Value::Time(a), Value::Time(b)) => a.cmp(b),
        (Value::Timestamp(a), Value::Timestamp(b)) | (Value::TimestampTz(a), Value::TimestampTz(b)) => a.cmp(b),
        (Value::Uuid(a), Value::Uuid(b)) => a.cmp(b),
        (Value::Interval(a), Value::Interval(b)) => a.compare(b),
        (Value::Json(a), Value::Json(b)) => {
            documents(&json::parse(a, json::Flavour::Jsonb)?, &json::parse(b, json::Flavour::Jsonb)?)
        }
        (Value::Array(a), Value::Array(b)) => arrays(a, b, element_of(ty).unwrap_or(ty))?,
        (other, _) => return Err(unexpected(other)),
    })
}

fn floats(a: &Value, b: &Value) -> Ordering {
    let of = |value: &Value| match value {
        Value::Int(n) => *n as f64,
        Value::Float(x) => *x,
        _ => f64::NAN,
    };
    let (a, b) = (of(a), of(b));
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn arrays(a: &[Value], b: &[Value], element: Oid) -> Result<Ordering> {
    for (x, y) in a.iter().zip(b) {
        let order = match (x.is_null(), y.is_null()) {
            (false, false) => compare(x, y, element)?,
            (x, y) => x.cmp(&y),
        };
        if order.is_ne() {
            return Ok(order);
        }
    }
    Ok(a.len().cmp(&b.len()))
}

/// The order of `jsonb` documents: object above array above boolean above number above text above null.
pub(super) fn documents(a: &Json, b: &Json) -> Ordering {
    let rank = |json: &Json| match json {
        Json::Null => 0,
        Json::Text(_) => 1,
        Json::Number(_) => 2,
        Json::Bool(_) => 3,
        // An empty array comes before everything, for no reason but history.
        Json::Array(members) if members.is_empty() => -1,
        Json::Array(_) => 4,
        Json::Object(_) => 5,
    };
    match (a, b) {
        (Json::Text(a), Json::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Json::Number(a), Json::Number(b)) => Numeric::compare(a.as_str(), b.as_str()),
        (Json::Bool(a), Json::Bool(b)) => a.cmp(b),
        (Json::Array(x), Json::Array(y)) => x.len().cmp(&y.len()).then_with(|| {
            x.iter().zip(y).map(|(a, b)| documents(a, b)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        }),
        (Json::Object(x), Json::Object(y)) => x.len().cmp(&y.len()).then_with(|| {
            let pair = |((k, v), (l, w)): (&(String, Json), &(String, Json))| {
                k.as_bytes().cmp(l.as_bytes()).then_with(|| documents(v, w))
            };
            x.iter().zip(y).map(pair).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        }),
        _ => rank(a).cmp(&rank(b)),
    }
}

type Args<'a> = &'a [Value];
type Types<'a> = &'a [Oid];

fn order(env: &Env, args: Args, types: Types) -> Result<Ordering> {
    let (a, b) = (at(args, 0), at(args, 1));
    let ty = types.first().copied().unwrap_or(TEXT);
    match (super::dates::moment(a, env), super::dates::moment(b, env)) {
        // A date and a timestamp, or timestamps of both kinds: compared as instants in the session's zone.
        (Some(x), Some(y)) if std::mem::discriminant(a) != std::mem::discriminant(b) => {
            let zoned = matches!(a, Value::TimestampTz(_)) || matches!(b, Value::TimestampTz(_));
            Ok(if zoned { x.instant.cmp(&y.instant) } else { x.local.cmp(&y.local) })
        }
        _ => compare(a, b, ty),
    }
}

pub(super) fn equal(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    Ok(Value::Bool(order(env, args, types)?.is_eq()))
}

pub(super) fn not_equal(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    Ok(Value::Bool(order(env, args, types)?.is_ne()))
}

pub(super) fn less(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    Ok(Value::Bool(order(env, args, types)?.is_lt()))
}

pub(super) fn less_or_equal(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    Ok(Value::Bool(order(env, args, types)?.is_le()))
}

pub(super) fn greater(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    Ok(Value::Bool(order(env, args, types)?.is_gt()))
}

pub(super) fn greater_or_equal(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    Ok(Value::Bool(order(env, args, types)?.is_ge()))
}

pub(super) fn three_way(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    Ok(Value::Int(order(env, args, types)? as i64))
}

pub(super) fn larger(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    let order = order(env, args, types)?;
    let second = if types.first() == Some(&BPCHAR) { order.is_lt() } else { order.is_le() };
    Ok(at(args, usize::from(second)).clone())
}

pub(super) fn smaller(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    let order = order(env, args, types)?;
    let second = if types.first() == Some(&BPCHAR) { order.is_gt() } else { order.is_ge() };
    Ok(at(args, usize::from(second)).clone())
}
