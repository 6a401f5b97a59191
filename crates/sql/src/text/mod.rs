//! Values as PostgreSQL writes and reads them: in text, and in the wire's binary form.
//!
//!     text  ──input──►  Value  ──output──►  text
//!     bytes ─binary_in─► Value ─binary_out─► bytes
//!
//! The type decides, by its number: the same [`Value::Text`] is padded as a `bpchar` and not as a `varchar`. Modifiers
//! (the 20 of `varchar(20)`) are applied apart from reading, by [`apply_modifier`], since a cast applies them to values
//! that were never text.
//!
//! Invariant: for every value of a type, `input(output(v)) = v` under the same settings, where PostgreSQL promises it:
//! floats need `extra_float_digits` of 1 or more.

mod abbreviations;
mod array;
mod binary;
pub(crate) mod datetime;
pub(crate) mod interval;
pub(crate) mod json;
mod modifier;
pub(crate) mod number;
mod output;
mod settings;
pub(crate) mod tokens;
mod zone;

pub use binary::{binary_in, binary_out};
pub use modifier::apply_modifier;
pub use output::output;
pub use settings::{ByteaOutput, DateOrder, DateOutput, DateStyle, IntervalStyle, Settings};
pub use zone::Zone;

use crate::types::*;
use datetime::{MICROS_PER_SECOND, Moment};
use isles_kernel::error::SqlError;
use isles_kernel::value::{DATES, TIMESTAMPS, Value};
use tokens::Fault;

pub(crate) use output::{text_of, write_rounded};

/// Longer names are cut, as PostgreSQL cuts them.
const MAX_NAME_BYTES: usize = 63;

pub(crate) fn syntax(name: &str, text: &str) -> SqlError {
    SqlError::new("22P02", format!("invalid input syntax for type {name}: \"{text}\""))
}

/// Why a date, time or interval could not be read, as PostgreSQL says it.
pub(crate) fn fault(fault: Fault, name: &str, text: &str) -> SqlError {
    match fault {
        Fault::Format => SqlError::new("22007", format!("invalid input syntax for type {name}: \"{text}\"")),
        Fault::Field => SqlError::new("22008", format!("date/time field value out of range: \"{text}\"")),
        Fault::MonthOrDay => SqlError::new("22008", format!("date/time field value out of range: \"{text}\""))
            .with_hint("Perhaps you need a different \"datestyle\" setting."),
        Fault::Interval => SqlError::new("22015", format!("interval field value out of range: \"{text}\"")),
        Fault::Displacement => SqlError::new("22009", format!("time zone displacement out of range: \"{text}\"")),
        Fault::Zone(zone) => SqlError::new("22023", format!("time zone \"{zone}\" not recognized")),
    }
}

/// The name that PostgreSQL gives a type in messages.
pub fn type_name(ty: Oid) -> String {
    if let Some(element) = element_of(ty) {
        return format!("{}[]", type_name(element));
    }
    match ty {
        BPCHAR => "character",
        VARCHAR => "character varying",
        NAME => "name",
        CHAR => "\"char\"",
        OID => "oid",
        XID => "xid",
        CID => "cid",
        REGPROC => "regproc",
        REGPROCEDURE => "regprocedure",
        REGOPER => "regoper",
        REGOPERATOR => "regoperator",
        REGCLASS => "regclass",
        REGTYPE => "regtype",
        REGNAMESPACE => "regnamespace",
        REGROLE => "regrole",
        JSONB => "jsonb",
        UNKNOWN => "unknown",
        VOID => "void",
        INT2VECTOR => "int2vector",
        OIDVECTOR => "oidvector",
        CSTRING => "cstring",
        REFCURSOR => "refcursor",
        ACLITEM => "aclitem",
        PG_NODE_TREE => "pg_node_tree",
        MONEY => "money",
        INET => "inet",
        XML => "xml",
        TIMETZ => "time with time zone",
        BIT => "bit",
        VARBIT => "bit varying",
        RECORD => "record",
        TID => "tid",
        PG_LSN => "pg_lsn",
        _ => return carrier(ty).map_or_else(|| ty.0.to_string(), |carrier| carrier.postgres_name().to_string()),
    }
    .into()
}

/// Reads a value of type `ty`. Of its modifier only what decides how an interval is read matters here.
pub fn input(text: &str, ty: Type, settings: &Settings) -> Result<Value, SqlError> {
    if text.contains('\0') {
        return Err(SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\": 0x00"));
    }
    match ty.oid {
        BOOL => number::boolean(text),
        INT2 => number::integer(text, "smallint", i16::MIN.into(), i16::MAX.into()),
        INT4 => number::integer(text, "integer", i32::MIN.into(), i32::MAX.into()),
        INT8 => number::integer(text, "bigint", i64::MIN, i64::MAX),
        FLOAT4 => number::real(text),
        FLOAT8 => number::double(text),
        NUMERIC => number::numeric(text),
        TEXT | VARCHAR | BPCHAR | UNKNOWN | CSTRING | REFCURSOR | VOID => Ok(Value::text(text)),
        NAME => Ok(Value::text(cut(text, MAX_NAME_BYTES))),
        CHAR => Ok(Value::text(cut(text, 1))),
        BYTEA => bytea(text),
        DATE => date(text, settings),
        TIME => datetime::time(text, settings).map(Value::Time).map_err(|why| fault(why, "time", text)),
        TIMESTAMP => timestamp(text, settings),
        TIMESTAMPTZ => timestamptz(text, settings),
        UUID => uuid(text),
        JSON => json::parse(text, json::Flavour::Json).map(|_| Value::Json(text.into())),
        JSONB => json::canonical_text(text).map(Value::Json),
        INTERVAL => interval::parse(text, interval::range_of(ty.modifier), settings.interval_style)
            .map(Value::Interval)
            .map_err(|why| fault(if why == Fault::Field { Fault::Interval } else { why }, "interval", text)),
        INT2VECTOR | OIDVECTOR => array::vector_in(text, ty.oid),
        oid if carrier(oid) == Some(isles_kernel::value::DataType::Int8) => number::oid(text, &type_name(oid)),
        oid => match element_of(oid) {
            Some(element) => array::input(text, Type::with(element, ty.modifier), settings),
            None => Err(SqlError::unsupported(format!("type {} is not supported", type_name(oid)))),
        },
    }
}

/// The longest beginning of a text that has at most so many bytes.
pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn bytea(text: &str) -> Result<Value, SqlError> {
    match text.strip_prefix("\\x") {
        Some(digits) => hex_bytes(digits).map(Value::Bytes),
        None => escaped_bytes(text)
            .map(Value::Bytes)
            .ok_or_else(|| SqlError::new("22P02", "invalid input syntax for type bytea")),
    }
}

/// Bytes from hexadecimal digits, with spaces between pairs if need be.
pub(crate) fn hex_bytes(text: &str) -> Result<Vec<u8>, SqlError> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut chars = text.chars();
    let digit =
        |c: char| c.to_digit(16).ok_or_else(|| SqlError::new("22023", format!("invalid hexadecimal digit: \"{c}\"")));
    while let Some(first) = chars.next() {
        if matches!(first, ' ' | '\n' | '\t' | '\r') {
            continue;
        }
        let high = digit(first)?;
        let second = chars.next();
        let second = second.ok_or_else(|| SqlError::new("22023", "invalid hexadecimal data: odd number of digits"))?;
        bytes.push((high * 16 + digit(second)?) as u8);
    }
    Ok(bytes)
}

/// Bytes as text, with `\\` and `\ooo` for what is no text.
pub(crate) fn escaped_bytes(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at..] {
            [b'\\', b'\\', ..] => {
                out.push(b'\\');
                at += 2;
            }
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                at += 4;
            }
            [b'\\', ..] => return None,
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    Some(out)
}

fn date(text: &str, settings: &Settings) -> Result<Value, SqlError> {
    let beyond = || SqlError::new("22008", format!("date out of range: \"{text}\""));
    match datetime::date(text, settings).map_err(|why| fault(why, "date", text))? {
        Ok(days) => i32::try_from(days).ok().filter(|days| DATES.contains(days)).map(Value::Date).ok_or_else(beyond),
        Err(Moment::Infinity) => Ok(Value::Date(i32::MAX)),
        Err(Moment::MinusInfinity) => Ok(Value::Date(i32::MIN)),
        Err(_) => Ok(Value::Date(-10_957)),
    }
}

/// 1970-01-01 00:00 in microseconds from 2000-01-01.
pub(crate) const UNIX_EPOCH: i64 = -946_684_800_000_000;

fn timestamp(text: &str, settings: &Settings) -> Result<Value, SqlError> {
    let moment = datetime::moment(text, settings).map_err(|why| fault(why, "timestamp", text))?;
    let micros = match moment {
        Moment::Infinity => return Ok(Value::Timestamp(i64::MAX)),
        Moment::MinusInfinity => return Ok(Value::Timestamp(i64::MIN)),
        Moment::Epoch => UNIX_EPOCH,
        Moment::At { local, .. } => local,
    };
    let valid = TIMESTAMPS.contains(&micros).then_some(Value::Timestamp(micros));
    valid.ok_or_else(|| SqlError::new("22008", format!("timestamp out of range: \"{text}\"")))
}

fn timestamptz(text: &str, settings: &Settings) -> Result<Value, SqlError> {
    let moment = datetime::moment(text, settings).map_err(|why| fault(why, "timestamp with time zone", text))?;
    let micros = match moment {
        Moment::Infinity => return Ok(Value::TimestampTz(i64::MAX)),
        Moment::MinusInfinity => return Ok(Value::TimestampTz(i64::MIN)),
        Moment::Epoch => Some(UNIX_EPOCH),
        Moment::At { local, offset } => local.checked_sub(i64::from(offset) * MICROS_PER_SECOND),
    };
    let valid = micros.filter(|micros| TIMESTAMPS.contains(micros)).map(Value::TimestampTz);
    valid.ok_or_else(|| SqlError::new("22008", format!("timestamp out of range: \"{text}\"")))
}

/// Hexadecimal digits, with a dash after any group of four, in braces or without.
fn uuid(text: &str) -> Result<Value, SqlError> {
    let refused = || syntax("uuid", text);
    let inner = match text.strip_prefix('{') {
        Some(rest) => rest.strip_suffix('}').ok_or_else(refused)?,
        None => text,
    };
    let mut digits = Vec::with_capacity(32);
    for c in inner.chars() {
        match c.to_digit(16) {
            Some(digit) => digits.push(digit as u8),
            None if c == '-' && !digits.is_empty() && digits.len() % 4 == 0 && digits.len() < 32 => {}
            None => return Err(refused()),
        }
    }
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] * 16 + pair[1]).collect();
    let whole = if digits.len() == 32 && !inner.contains("--") { bytes.try_into().ok() } else { None };
    whole.map(Value::Uuid).ok_or_else(refused)
}

#[cfg(test)]
mod tests;
