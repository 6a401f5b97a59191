//! Numbers and truth values from text.

use super::syntax;
use isles_kernel::error::SqlError;
use isles_kernel::value::{Numeric, NumericError, Value};

fn trimmed(text: &str) -> &str {
    text.trim_matches(|c: char| matches!(c, ' ' | '\t'..='\r'))
}

/// An integer of a type of this name, within these bounds.
pub(crate) fn integer(text: &str, name: &str, low: i64, high: i64) -> Result<Value, SqlError> {
    let digits = trimmed(text);
    let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    if unsigned.is_empty() || !unsigned.bytes().all(|b| b.is_ascii_digit()) {
        return Err(syntax(name, text));
    }
    match digits.parse::<i64>() {
        Ok(n) if (low..=high).contains(&n) => Ok(Value::Int(n)),
        _ => Err(SqlError::new("22003", format!("value \"{text}\" is out of range for type {name}"))),
    }
}

/// An oid: unsigned, and a negative number is taken modulo 2^32.
pub(crate) fn oid(text: &str, name: &str) -> Result<Value, SqlError> {
    let digits = trimmed(text);
    let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    if unsigned.is_empty() || !unsigned.bytes().all(|b| b.is_ascii_digit()) {
        return Err(syntax(name, text));
    }
    match digits.parse::<i64>() {
        Ok(n) if (i64::from(i32::MIN)..=i64::from(u32::MAX)).contains(&n) => Ok(Value::Int(i64::from(n as u32))),
        _ => Err(SqlError::new("22003", format!("value \"{text}\" is out of range for type {name}"))),
    }
}

/// What C's `strtod` reads, as far as PostgreSQL promises it.
fn float_syntax(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let word = unsigned.to_ascii_lowercase();
    match word.as_str() {
        "nan" => return Some(f64::NAN),
        "inf" | "infinity" => {
            return Some(if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY });
        }
        _ => {}
    }
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    text.parse().ok()
}

fn beyond(text: &str, name: &str) -> SqlError {
    SqlError::new("22003", format!("\"{text}\" is out of range for type {name}"))
}

fn is_zero(text: &str) -> bool {
    let mantissa = text.split(['e', 'E']).next().unwrap_or(text);
    !mantissa.bytes().any(|b| (b'1'..=b'9').contains(&b))
}

fn is_word(text: &str) -> bool {
    text.bytes().any(|b| b.is_ascii_alphabetic() && !matches!(b, b'e' | b'E')) || text.is_empty()
}

pub(crate) fn double(text: &str) -> Result<Value, SqlError> {
    let digits = trimmed(text);
    let x = float_syntax(digits).ok_or_else(|| syntax("double precision", text))?;
    let lost = (x.is_infinite() && !is_word(digits)) || (x == 0.0 && !is_zero(digits));
    if lost { Err(beyond(digits, "double precision")) } else { Ok(Value::Float(x)) }
}

pub(crate) fn real(text: &str) -> Result<Value, SqlError> {
    let digits = trimmed(text);
    let wide = float_syntax(digits).ok_or_else(|| syntax("real", text))?;
    // Read directly, since two roundings could differ from one.
    let x: f32 = if wide.is_nan() || wide.is_infinite() { wide as f32 } else { digits.parse().unwrap_or(wide as f32) };
    let lost = (x.is_infinite() && !is_word(digits)) || (x == 0.0 && !is_zero(digits));
    if lost { Err(beyond(digits, "real")) } else { Ok(Value::Float(f64::from(x))) }
}

pub(crate) fn numeric(text: &str) -> Result<Value, SqlError> {
    match Numeric::parse(trimmed(text)) {
        Ok(number) => Ok(Value::Numeric(number)),
        Err(NumericError::Syntax) => Err(syntax("numeric", text)),
        Err(NumericError::Overflow) => Err(SqlError::new("22003", "value overflows numeric format")),
    }
}

/// A truth value: any beginning of a word that tells it from the other.
pub(crate) fn boolean(text: &str) -> Result<Value, SqlError> {
    let word = trimmed(text).to_ascii_lowercase();
    let begins = |whole: &str, least: usize| word.len() >= least && whole.starts_with(&word);
    if begins("true", 1) || begins("yes", 1) || begins("on", 2) || word == "1" {
        Ok(Value::Bool(true))
    } else if begins("false", 1) || begins("no", 1) || begins("off", 2) || word == "0" {
        Ok(Value::Bool(false))
    } else {
        Err(syntax("boolean", text))
    }
}
