//! Literals to values.
//!
//! A literal is converted when its type is known, which is at binding for nearly all. What this file cannot convert
//! stays a conversion from text, to be computed when the statement is executed.

use super::Result;
use crate::builtins;
use crate::tree::{CastHow, Expr, ExprKind};
use crate::types::{self, Oid, Type};
use isles_kernel::error::SqlError;
use isles_kernel::value::{Numeric, NumericError, Value};

/// The constant that a literal of unknown type becomes when it is asked to be of type `oid`.
pub(super) fn literal(value: &Value, oid: Oid) -> Result<Expr> {
    let Value::Text(text) = value else {
        return Ok(Expr::new(ExprKind::Const(Value::Null), oid));
    };
    match convert(text, oid)? {
        Some(value) => Ok(Expr::new(ExprKind::Const(value), oid)),
        None => {
            let arg = Box::new(Expr::new(ExprKind::Const(Value::Text(text.clone())), types::TEXT));
            Ok(Expr::new(ExprKind::Cast { arg, how: CastHow::InOut }, Type::of(oid)))
        }
    }
}

fn convert(text: &str, oid: Oid) -> Result<Option<Value>> {
    let value = match oid {
        types::TEXT | types::VARCHAR | types::BPCHAR | types::UNKNOWN => Value::Text(text.into()),
        types::INT2 => Value::Int(integer(text, oid, i64::from(i16::MIN), i64::from(i16::MAX))?),
        types::INT4 => Value::Int(integer(text, oid, i64::from(i32::MIN), i64::from(i32::MAX))?),
        types::INT8 => Value::Int(integer(text, oid, i64::MIN, i64::MAX)?),
        types::BOOL => Value::Bool(boolean(text)?),
        types::NUMERIC => Value::Numeric(Numeric::parse(text.trim()).map_err(|error| numeric_error(text, error))?),
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn invalid(text: &str, oid: Oid) -> SqlError {
    let message = format!("invalid input syntax for type {}: \"{text}\"", builtins::type_name(oid));
    SqlError::new("22P02", message)
}

fn integer(text: &str, oid: Oid, min: i64, max: i64) -> Result<i64> {
    let trimmed = text.trim();
    let digits = trimmed.strip_prefix(['+', '-']).unwrap_or(trimmed);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid(text, oid));
    }
    trimmed.parse().ok().filter(|n| (min..=max).contains(n)).ok_or_else(|| {
        let message = format!("value \"{text}\" is out of range for type {}", builtins::type_name(oid));
        SqlError::new("22003", message)
    })
}

/// Any unambiguous beginning of the words.
fn boolean(text: &str) -> Result<bool> {
    let word = text.trim().to_ascii_lowercase();
    let begins = |full: &str, least: usize| word.len() >= least && full.starts_with(&word);
    match () {
        () if begins("true", 1) || begins("yes", 1) || word == "on" || word == "1" => Ok(true),
        () if begins("false", 1) || begins("no", 1) || begins("off", 2) || word == "0" => Ok(false),
        () => Err(invalid(text, types::BOOL)),
    }
}

fn numeric_error(text: &str, error: NumericError) -> SqlError {
    match error {
        NumericError::Syntax => invalid(text, types::NUMERIC),
        NumericError::Overflow => SqlError::new("22003", "value overflows numeric format"),
    }
}
