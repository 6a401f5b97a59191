//! What is asked of `isles_sql::runtime`: this file alone knows its interface.

use super::{Host, Result};
use crate::error::SqlError;
use isles_kernel::value::{Numeric, Value};
use isles_sql::builtins;
use isles_sql::print::call::{Callee, Op};
use isles_sql::tree::CastHow;
use isles_sql::types::{BPCHAR, Oid, Type};
use std::cmp::Ordering;

/// `unnest(anyarray)`.
const UNNEST: Oid = Oid(2331);

/// Whether a function is null where an argument is.
pub(super) fn is_strict(function: Oid) -> bool {
    builtins::function(function).is_some_and(|function| function.strict)
}

/// What a function may know of the session that runs it.
pub(super) struct Session<'a> {
    _host: &'a Host,
    _settings: &'a str,
}

impl<'a> Session<'a> {
    pub(super) fn new(host: &'a Host, settings: &'a str) -> Session<'a> {
        Session { _host: host, _settings: settings }
    }

    pub(super) fn call(&mut self, function: Oid, _args: &[Value], _types: &[Oid], _result: Type) -> Result<Value> {
        Err(missing(function))
    }

    /// A comparison, which is unknown where a side is null.
    pub(super) fn compare(&mut self, function: Oid, left: &Value, right: &Value, types: &[Oid]) -> Result<Value> {
        if left.is_null() || right.is_null() {
            return Ok(Value::Null);
        }
        let args = [left.clone(), right.clone()];
        self.call(function, &args, types, Type::of(isles_sql::types::BOOL))
    }

    pub(super) fn cast(&mut self, _how: CastHow, _value: &Value, from: Oid, to: Type) -> Result<Value> {
        Err(SqlError::unsupported(format!("cast from type {} to {}", from.0, to.oid.0)))
    }
}

fn missing(function: Oid) -> SqlError {
    let name = builtins::function(function).map_or("unknown", |function| function.name);
    SqlError::unsupported(format!("function {name} is not supported on SQLite shards"))
}

/// An aggregate's accumulator.
pub(super) enum Fold {
    /// `ARRAY(SELECT …)`.
    Array(Vec<Value>),
}

impl Fold {
    pub(super) fn new(callee: &Callee) -> Result<Fold> {
        match callee.op {
            Op::ArrayOfRows => Ok(Fold::Array(Vec::new())),
            Op::Aggregate { function, .. } => Err(missing(function)),
            _ => Err(SqlError::new("XX000", "a function is not an aggregate")),
        }
    }

    pub(super) fn add(&mut self, _session: &mut Session<'_>, values: &[Value]) -> Result<()> {
        match self {
            Fold::Array(members) => members.extend(values.first().cloned()),
        }
        Ok(())
    }

    pub(super) fn value(&mut self, _session: &mut Session<'_>) -> Result<Value> {
        match self {
            Fold::Array(members) => Ok(Value::Array(members.clone())),
        }
    }
}

/// Rows of a set-returning function, computed as they are read.
pub(super) type RowSource = Box<dyn Iterator<Item = Result<Vec<Value>>>>;

pub(super) fn rows(
    _host: &Host,
    _settings: &str,
    function: Oid,
    mut args: Vec<Value>,
    _callee: &Callee,
) -> Result<RowSource> {
    match (function, args.pop()) {
        (UNNEST, Some(Value::Array(members))) => Ok(Box::new(members.into_iter().map(|member| Ok(vec![member])))),
        _ => Err(missing(function)),
    }
}

/// The order of two values of a type, neither of them null.
pub(super) fn order(ty: Oid, left: &Value, right: &Value) -> Result<Ordering> {
    Ok(match (left, right) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Int(a), Value::Int(b)) | (Value::Time(a), Value::Time(b)) => a.cmp(b),
        (Value::Timestamp(a), Value::Timestamp(b)) | (Value::TimestampTz(a), Value::TimestampTz(b)) => a.cmp(b),
        (Value::Date(a), Value::Date(b)) => a.cmp(b),
        // NaN is above all numbers and equal to itself.
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan())),
        (Value::Numeric(a), Value::Numeric(b)) => Numeric::compare(a.as_str(), b.as_str()),
        (Value::Text(a), Value::Text(b)) if ty == BPCHAR => a.trim_end_matches(' ').cmp(b.trim_end_matches(' ')),
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
        (Value::Uuid(a), Value::Uuid(b)) => a.cmp(b),
        (Value::Interval(a), Value::Interval(b)) => a.span().cmp(&b.span()),
        (Value::Array(a), Value::Array(b)) => return order_arrays(ty, a, b),
        _ => return Err(SqlError::unsupported(format!("ordering values of type number {}", ty.0))),
    })
}

/// Member by member; a null is above all others.
fn order_arrays(ty: Oid, left: &[Value], right: &[Value]) -> Result<Ordering> {
    let element = builtins::element_of(ty).unwrap_or(ty);
    for (a, b) in left.iter().zip(right) {
        let order = match (a.is_null(), b.is_null()) {
            (false, false) => order(element, a, b)?,
            (a, b) => a.cmp(&b),
        };
        if order != Ordering::Equal {
            return Ok(order);
        }
    }
    Ok(left.len().cmp(&right.len()))
}
