//! PostgreSQL's functions, computed by us.
//!
//!     scalar(oid)     one value from values
//!     cast(…)         a value of one type as a value of another
//!     aggregate(oid)  one value from many rows
//!     rows(oid)       many rows from values
//!
//! On a shard of PostgreSQL the server computes them. Everywhere else (on a shard of SQLite, in the router) these do,
//! and must give the same answers: same digits, same errors. Each is known by its number in `pg_proc`.
//!
//! Nothing here reads a clock or makes chance: both are in [`Env`], and come from the caller. A function is called
//! with nulls only if PostgreSQL calls it so (it is not *strict*); for strict ones the caller answers null itself.

mod aggregate;
mod arithmetic;
mod arrays;
mod cast;
pub(crate) mod compare;
mod dates;
mod documents;
mod formats;
mod math;
pub(crate) mod numeric;
mod patterns;
mod rows;
mod strings;
mod table;

pub use aggregate::{Accumulator, Aggregate, aggregate};
pub use cast::{can_cast, cast};
pub use compare::compare;
pub use patterns::is_like_text as is_like;
pub use rows::{MAX_ROWS, Make, Rows, rows};
pub(crate) use strings::is_reserved;

use crate::text::Settings;
use crate::types::Oid;
use isles_kernel::error::SqlError;
use isles_kernel::interval::Interval;
use isles_kernel::value::Value;
use numeric::Number;

pub(crate) type Result<T> = std::result::Result<T, SqlError>;

/// What a function may know beside its arguments.
pub struct Env<'a> {
    /// The transaction's time is among them.
    pub settings: &'a Settings,
    /// Microseconds from 2000-01-01 UTC, of now: what `clock_timestamp()` tells.
    pub clock: &'a mut dyn FnMut() -> i64,
    /// 64 bits of chance.
    pub random: &'a mut dyn FnMut() -> u64,
}

/// Arguments and their types; the types matter for the functions that take any.
pub type Call = fn(&mut Env<'_>, &[Value], &[Oid]) -> std::result::Result<Value, SqlError>;

pub struct Scalar {
    pub oid: Oid,
    pub call: Call,
}

/// The function of this number, if it is computed here.
pub fn scalar(function: Oid) -> Option<&'static Scalar> {
    let table = table::SCALARS;
    table.binary_search_by_key(&function.0, |scalar| scalar.oid.0).ok().map(|at| &table[at])
}

/// Calls with a value of another type are a mistake of the caller, and none of the client.
pub(crate) fn unexpected(value: &Value) -> SqlError {
    SqlError::new("XX000", format!("a function was called with {value:?}"))
}

pub(crate) fn at(args: &[Value], index: usize) -> &Value {
    args.get(index).unwrap_or(&Value::Null)
}

pub(crate) fn int(args: &[Value], index: usize) -> Result<i64> {
    match at(args, index) {
        Value::Int(n) => Ok(*n),
        other => Err(unexpected(other)),
    }
}

pub(crate) fn float(args: &[Value], index: usize) -> Result<f64> {
    match at(args, index) {
        Value::Float(x) => Ok(*x),
        Value::Int(n) => Ok(*n as f64),
        other => Err(unexpected(other)),
    }
}

pub(crate) fn boolean(args: &[Value], index: usize) -> Result<bool> {
    match at(args, index) {
        Value::Bool(b) => Ok(*b),
        other => Err(unexpected(other)),
    }
}

pub(crate) fn number(args: &[Value], index: usize) -> Result<Number> {
    match at(args, index) {
        Value::Numeric(n) => Ok(Number::of(n)),
        Value::Int(n) => Ok(Number::int(*n)),
        other => Err(unexpected(other)),
    }
}

pub(crate) fn text(args: &[Value], index: usize) -> Result<&str> {
    match at(args, index) {
        Value::Text(s) | Value::Json(s) => Ok(s),
        other => Err(unexpected(other)),
    }
}

pub(crate) fn bytes(args: &[Value], index: usize) -> Result<&[u8]> {
    match at(args, index) {
        Value::Bytes(b) => Ok(b),
        other => Err(unexpected(other)),
    }
}

pub(crate) fn interval(args: &[Value], index: usize) -> Result<Interval> {
    match at(args, index) {
        Value::Interval(interval) => Ok(*interval),
        other => Err(unexpected(other)),
    }
}

pub(crate) fn members(args: &[Value], index: usize) -> Result<&[Value]> {
    match at(args, index) {
        Value::Array(members) => Ok(members),
        other => Err(unexpected(other)),
    }
}

pub(crate) fn numeric_value(number: Number) -> Value {
    Value::Numeric(number.into())
}

/// A text as long as PostgreSQL allows: one gigabyte. Ours is smaller, so that one call cannot take the memory of all.
pub(crate) const MAX_TEXT: usize = 256 << 20;

pub(crate) fn check_length(length: usize) -> Result<()> {
    match length > MAX_TEXT {
        true => Err(SqlError::new("54000", "requested length too large")),
        false => Ok(()),
    }
}
