//! Rows by the names of their columns, and their JSON.

use crate::error::{Code, Result, refused};
use crate::schema::ColumnType;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use isles_kernel::value::{Numeric, Value};
use std::collections::BTreeMap;

/// Microseconds from 1970 to 2000, where PostgreSQL's time begins.
const EPOCH_2000_MICROS: i64 = 946_684_800_000_000;
/// Integers up to this are exact for every reader of JSON.
const EXACT: u64 = 1 << 53;
const MICROS_PER_DAY: i64 = 86_400_000_000;

/// Values by the names of their columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values(pub BTreeMap<String, Value>);

impl Values {
    pub fn new() -> Values {
        Values::default()
    }

    /// With one more value.
    pub fn set(mut self, column: &str, value: impl IntoValue) -> Values {
        self.0.insert(column.into(), value.into_value());
        self
    }

    /// Null if there is none.
    pub fn get(&self, column: &str) -> &Value {
        self.0.get(column).unwrap_or(&Value::Null)
    }

    pub fn text(&self, column: &str) -> Option<&str> {
        match self.get(column) {
            Value::Text(text) | Value::Json(text) => Some(text),
            _ => None,
        }
    }

    pub fn int(&self, column: &str) -> Option<i64> {
        match self.get(column) {
            Value::Int(n) => Some(*n),
            _ => None,
        }
    }
}

/// What can be given for a value.
pub trait IntoValue {
    fn into_value(self) -> Value;
}

impl IntoValue for Value {
    fn into_value(self) -> Value {
        self
    }
}

impl IntoValue for &str {
    fn into_value(self) -> Value {
        Value::Text(self.into())
    }
}

impl IntoValue for String {
    fn into_value(self) -> Value {
        Value::Text(self)
    }
}

impl IntoValue for i64 {
    fn into_value(self) -> Value {
        Value::Int(self)
    }
}

impl IntoValue for i32 {
    fn into_value(self) -> Value {
        Value::Int(self.into())
    }
}

impl IntoValue for bool {
    fn into_value(self) -> Value {
        Value::Bool(self)
    }
}

impl IntoValue for serde_json::Value {
    fn into_value(self) -> Value {
        Value::Json(self.to_string())
    }
}

impl<T: IntoValue> IntoValue for Option<T> {
    fn into_value(self) -> Value {
        self.map_or(Value::Null, IntoValue::into_value)
    }
}

/// A point in time, from milliseconds since 1970.
pub fn timestamp_ms(ms: i64) -> Value {
    Value::TimestampTz(ms.saturating_mul(1_000).saturating_sub(EPOCH_2000_MICROS))
}

/// Milliseconds since 1970 of a point in time.
pub fn ms_of(value: &Value) -> Option<i64> {
    match value {
        Value::TimestampTz(micros) => Some((micros + EPOCH_2000_MICROS).div_euclid(1_000)),
        _ => None,
    }
}

/// A value as JSON. Integers beyond what JavaScript counts exactly, decimals and bytes are texts.
pub fn to_json(value: &Value) -> serde_json::Value {
    use serde_json::Value as Json;
    match value {
        Value::Bool(b) => Json::Bool(*b),
        Value::Int(n) if n.unsigned_abs() > EXACT => Json::String(n.to_string()),
        Value::Int(n) => Json::from(*n),
        Value::Text(text) => Json::String(text.clone()),
        Value::Numeric(number) => Json::String(number.to_string()),
        Value::Json(text) => serde_json::from_str(text).unwrap_or(Json::Null),
        Value::Bytes(bytes) => Json::String(BASE64.encode(bytes)),
        Value::Date(days) => Json::String(date_text(*days)),
        Value::TimestampTz(micros) => {
            let at = jiff::Timestamp::from_microsecond(micros.saturating_add(EPOCH_2000_MICROS));
            at.map_or(Json::Null, |at| Json::String(at.to_string()))
        }
        _ => Json::Null,
    }
}

fn date_text(days: i32) -> String {
    let micros = i64::from(days) * MICROS_PER_DAY + EPOCH_2000_MICROS;
    let at = jiff::Timestamp::from_microsecond(micros);
    at.map_or_else(|_| String::new(), |at| at.to_zoned(jiff::tz::TimeZone::UTC).date().to_string())
}

/// Reads JSON as a value of a column's type.
pub fn from_json(json: &serde_json::Value, ty: ColumnType) -> Result<Value> {
    use serde_json::Value as Json;
    let wrong = || refused(Code::InvalidValue, format!("{json} is not a value of type {}", ty.name()));
    Ok(match (json, ty) {
        (Json::Null, _) => Value::Null,
        (json, ColumnType::Json) => Value::Json(json.to_string()),
        (Json::Bool(b), ColumnType::Bool) => Value::Bool(*b),
        (Json::Number(n), ColumnType::Integer | ColumnType::Bigint) => Value::Int(n.as_i64().ok_or_else(wrong)?),
        (Json::String(text), ColumnType::Bigint) => Value::Int(text.parse().map_err(|_| wrong())?),
        (Json::Number(n), ColumnType::Decimal) => Value::Numeric(Numeric::parse(&n.to_string()).map_err(|_| wrong())?),
        (Json::String(text), ColumnType::Decimal) => Value::Numeric(Numeric::parse(text).map_err(|_| wrong())?),
        (
            Json::String(text),
            ColumnType::String | ColumnType::Text | ColumnType::Varchar(_) | ColumnType::Reference,
        ) => Value::Text(text.clone()),
        (Json::String(text), ColumnType::Binary) => Value::Bytes(BASE64.decode(text).map_err(|_| wrong())?),
        (Json::String(text), ColumnType::Date) => {
            let date: jiff::civil::Date = text.parse().map_err(|_| wrong())?;
            let day = date - jiff::civil::date(2000, 1, 1);
            Value::Date(day.get_days())
        }
        (Json::String(text), ColumnType::Timestamp) => {
            let at: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
            Value::TimestampTz(at.as_microsecond() - EPOCH_2000_MICROS)
        }
        _ => return Err(wrong()),
    })
}

/// Orders two values of one type; none if either is null.
pub(crate) fn compare(a: &Value, b: &Value) -> Option<std::cmp::Ordering> {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Text(a), Value::Text(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
        (Value::Date(a), Value::Date(b)) => Some(a.cmp(b)),
        (Value::TimestampTz(a), Value::TimestampTz(b)) => Some(a.cmp(b)),
        _ => None,
    }
}
