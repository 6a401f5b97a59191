//! Modifiers of types: lengths, scales, precisions.

use super::interval::{precision_of, range, range_of};
use crate::runtime::numeric::Number;
use crate::types::*;
use isles_kernel::error::SqlError;
use isles_kernel::interval::Interval;
use isles_kernel::value::{TIMESTAMPS, Value};

/// Digits of a second that are kept at all.
const MAX_PRECISION: u32 = 6;

/// Fits a value to the modifier of its type. A cast that was written cuts a text silently; an assignment cuts only
/// spaces.
pub fn apply_modifier(value: Value, ty: Type, explicit: bool) -> Result<Value, SqlError> {
    if ty.modifier < 0 || value.is_null() {
        return Ok(value);
    }
    match (ty.oid, value) {
        (VARCHAR, Value::Text(text)) => limited(text, ty.modifier - 4, "character varying", explicit).map(Value::Text),
        (BPCHAR, Value::Text(text)) => {
            let mut text = limited(text, ty.modifier - 4, "character", explicit)?;
            let missing = (ty.modifier - 4) as usize - text.chars().count();
            text.extend(std::iter::repeat_n(' ', missing));
            Ok(Value::Text(text))
        }
        (NUMERIC, Value::Numeric(number)) => {
            let (precision, scale) = numeric_modifier(ty.modifier);
            Number::of(&number).fitted(precision, scale).map(|number| Value::Numeric(number.into()))
        }
        (TIMESTAMP, Value::Timestamp(t)) => rounded_moment(t, ty.modifier).map(Value::Timestamp),
        (TIMESTAMPTZ, Value::TimestampTz(t)) => rounded_moment(t, ty.modifier).map(Value::TimestampTz),
        (TIME, Value::Time(t)) => Ok(Value::Time(rounded(t, ty.modifier as u32))),
        (INTERVAL, Value::Interval(interval)) => fitted_interval(interval, ty.modifier).map(Value::Interval),
        (oid, Value::Array(members)) => {
            let element = Type::with(element_of(oid).unwrap_or(oid), ty.modifier);
            let fit = |member: Value| apply_modifier(member, element, explicit);
            members.into_iter().map(fit).collect::<Result<_, _>>().map(Value::Array)
        }
        (_, value) => Ok(value),
    }
}

/// Precision and scale of `numeric(p, s)`.
pub(crate) fn numeric_modifier(modifier: i32) -> (i32, i32) {
    let packed = modifier - 4;
    // Eleven bits, signed: scales may be negative.
    ((packed >> 16) & 0xFFFF, (((packed & 0x7FF) ^ 1024) - 1024))
}

fn limited(text: String, limit: i32, name: &str, explicit: bool) -> Result<String, SqlError> {
    let limit = limit.max(0) as usize;
    let Some((end, _)) = text.char_indices().nth(limit) else { return Ok(text) };
    if explicit || text[end..].bytes().all(|b| b == b' ') {
        return Ok(text[..end].to_string());
    }
    Err(SqlError::new("22001", format!("value too long for type {name}({limit})")))
}

/// Rounds microseconds to so many digits, halves away from zero.
pub(crate) fn rounded(micros: i64, digits: u32) -> i64 {
    if digits >= MAX_PRECISION {
        return micros;
    }
    let scale = 10i64.pow(MAX_PRECISION - digits);
    let half = scale / 2;
    match micros >= 0 {
        true => micros.saturating_add(half) / scale * scale,
        false => -((-micros).saturating_add(half) / scale * scale),
    }
}

fn rounded_moment(micros: i64, modifier: i32) -> Result<i64, SqlError> {
    if [i64::MIN, i64::MAX].contains(&micros) {
        return Ok(micros);
    }
    let rounded = rounded(micros, modifier as u32);
    let valid = TIMESTAMPS.contains(&rounded).then_some(rounded);
    valid.ok_or_else(|| SqlError::new("22008", "timestamp out of range"))
}

/// Keeps the fields that the type has, down to its last one, and rounds its seconds.
fn fitted_interval(interval: Interval, modifier: i32) -> Result<Interval, SqlError> {
    const MINUTE: i64 = 60_000_000;
    const HOUR: i64 = 60 * MINUTE;
    let Interval { months, days, micros } = interval;
    let down_to = |unit: i64| micros / unit * unit;
    let fields = range_of(modifier);
    let fitted = match fields {
        range::FULL => interval,
        range::YEAR => Interval::new(months / 12 * 12, 0, 0),
        _ if fields & !(range::YEAR | range::MONTH) == 0 => Interval::new(months, 0, 0),
        range::DAY => Interval::new(months, days, 0),
        _ if fields & (range::MINUTE | range::SECOND) == 0 => Interval::new(months, days, down_to(HOUR)),
        _ if fields & range::SECOND == 0 => Interval::new(months, days, down_to(MINUTE)),
        _ => interval,
    };
    Ok(match precision_of(modifier) {
        Some(precision) => Interval { micros: rounded(fitted.micros, precision), ..fitted },
        None => fitted,
    })
}
