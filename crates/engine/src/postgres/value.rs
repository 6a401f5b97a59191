//! Values in PostgreSQL's binary form, both ways and without loss.
//!
//! A parameter is encoded for the type that the server expects, a result is decoded by the type that the server
//! says it has and then compared with what the caller asked for. Nothing is converted silently: a value out of a
//! type's range is 22003, a value of another type is 42804.
//!
//! Images of the change log are rows as `record_send` writes them, so they go through the same decoder.

use crate::error::{Result, ShardError};
use bytes::{BufMut, BytesMut};
use isles_kernel::interval::Interval;
use isles_kernel::schema::Column;
use isles_kernel::value::{DataType, Element, Numeric, Value};
use std::error::Error;
use tokio_postgres::types::{FromSql, IsNull, Kind, ToSql, Type, to_sql_checked};

type BoxError = Box<dyn Error + Sync + Send>;

/// A parameter, encoded already: an error in a value is found before anything is sent.
#[derive(Debug)]
pub(super) struct Param(Option<BytesMut>);

impl ToSql for Param {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, BoxError> {
        match &self.0 {
            None => Ok(IsNull::Yes),
            Some(bytes) => {
                out.extend_from_slice(bytes);
                Ok(IsNull::No)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// A result's bytes, whatever their type.
pub(super) struct Raw<'a>(pub(super) &'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> std::result::Result<Raw<'a>, BoxError> {
        Ok(Raw(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

impl Param {
    /// One value, for a parameter of type `ty`.
    pub(super) fn new(value: &Value, ty: &Type) -> Result<Param> {
        if value.is_null() {
            return Ok(Param(None));
        }
        let mut out = BytesMut::new();
        encode(value, ty, &mut out)?;
        Ok(Param(Some(out)))
    }

    /// Many values, for a parameter that is an array.
    pub(super) fn array<'a>(values: impl ExactSizeIterator<Item = &'a Value>, ty: &Type) -> Result<Param> {
        let Kind::Array(member) = ty.kind() else { return Err(mismatch("a list", ty)) };
        let mut out = BytesMut::new();
        encode_array(values, member, &mut out)?;
        Ok(Param(Some(out)))
    }
}

fn encode_array<'a>(values: impl ExactSizeIterator<Item = &'a Value>, member: &Type, out: &mut BytesMut) -> Result<()> {
    let count = values.len() as i32;
    // An array without members has no dimension.
    let dimensions = i32::from(count > 0);
    // Dimensions, whether there are nulls, type of the members.
    for head in [dimensions, 1, member.oid() as i32] {
        out.extend_from_slice(&head.to_be_bytes());
    }
    if count > 0 {
        // Length, lower bound.
        [count, 1].iter().for_each(|bound| out.extend_from_slice(&bound.to_be_bytes()));
    }
    for value in values {
        encode_field(value, member, out)?;
    }
    Ok(())
}

/// Writes a value behind its length, as members of arrays and fields of copied rows are.
pub(super) fn encode_field(value: &Value, ty: &Type, out: &mut BytesMut) -> Result<()> {
    if value.is_null() {
        out.extend_from_slice(&(-1i32).to_be_bytes());
        return Ok(());
    }
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    encode(value, ty, out)?;
    let length = (out.len() - at - 4) as i32;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

/// Writes a value that is not null.
pub(super) fn encode(value: &Value, ty: &Type, out: &mut BytesMut) -> Result<()> {
    match value {
        Value::Null => Ok(()),
        Value::Bool(b) if *ty == Type::BOOL => put(out, &[u8::from(*b)]),
        Value::Int(n) => encode_int(*n, ty, out),
        Value::Float(x) => encode_float(*x, ty, out),
        Value::Numeric(n) if *ty == Type::NUMERIC => encode_numeric(n.as_str(), out),
        Value::Text(s) if is_text(ty) => encode_text(s, out),
        Value::Json(s) if *ty == Type::JSON || is_text(ty) => encode_text(s, out),
        Value::Json(s) if *ty == Type::JSONB => {
            // The only version of jsonb's binary form there has been.
            out.put_u8(1);
            encode_text(s, out)
        }
        Value::Bytes(b) if *ty == Type::BYTEA => put(out, b),
        Value::Date(d) if *ty == Type::DATE => put(out, &d.to_be_bytes()),
        Value::Time(t) if *ty == Type::TIME && !value.fits(DataType::Time) => Err(out_of_range(&t.to_string(), ty)),
        Value::Time(t) if *ty == Type::TIME => put(out, &t.to_be_bytes()),
        Value::Timestamp(t) if *ty == Type::TIMESTAMP => put(out, &t.to_be_bytes()),
        Value::TimestampTz(t) if *ty == Type::TIMESTAMPTZ => put(out, &t.to_be_bytes()),
        Value::Uuid(u) if *ty == Type::UUID => put(out, u),
        Value::Interval(interval) if *ty == Type::INTERVAL => encode_interval(interval, out),
        Value::Array(members) => match ty.kind() {
            Kind::Array(member) => encode_array(members.iter(), member, out),
            _ => Err(mismatch("array", ty)),
        },
        other => Err(mismatch(kind_name(other), ty)),
    }
}

fn put(out: &mut BytesMut, bytes: &[u8]) -> Result<()> {
    out.extend_from_slice(bytes);
    Ok(())
}

fn encode_interval(interval: &Interval, out: &mut BytesMut) -> Result<()> {
    put(out, &interval.micros.to_be_bytes())?;
    put(out, &interval.days.to_be_bytes())?;
    put(out, &interval.months.to_be_bytes())
}

fn decode_interval(raw: &[u8]) -> Result<Value> {
    let raw: [u8; 16] = fixed(raw)?;
    let (micros, rest) = raw.split_at(8);
    let (days, months) = rest.split_at(4);
    Ok(Value::Interval(Interval {
        months: i32::from_be_bytes(fixed(months)?),
        days: i32::from_be_bytes(fixed(days)?),
        micros: i64::from_be_bytes(fixed(micros)?),
    }))
}

/// Reads an array of one dimension, counted from 1, which is all that a [`Value`] can hold.
fn decode_array(raw: &[u8], member: &Type, element: Element) -> Result<Value> {
    let mut rest = raw;
    let mut take = |length: usize| -> Result<&[u8]> {
        let (taken, left) = rest.split_at_checked(length).ok_or_else(damaged)?;
        rest = left;
        Ok(taken)
    };
    let mut word = || -> Result<i32> { Ok(i32::from_be_bytes(fixed(take(4)?)?)) };
    let (dimensions, _nulls, _member) = (word()?, word()?, word()?);
    let count = match dimensions {
        0 => 0,
        1 => match (word()?, word()?) {
            (count, 1) => count,
            _ => return Err(ShardError::statement("0A000", "arrays that are not counted from 1 are not supported")),
        },
        _ => return Err(ShardError::statement("0A000", "arrays of more than one dimension are not supported")),
    };
    let mut members = Vec::new();
    for _ in 0..count {
        let length = i32::from_be_bytes(fixed(take(4)?)?);
        let bytes = usize::try_from(length).ok().map(&mut take).transpose()?;
        members.push(decode(bytes, member, element.into())?);
    }
    Ok(Value::Array(members))
}

/// Types of four unsigned bytes: numbers of the server's own things.
fn is_oid(ty: &Type) -> bool {
    matches!(
        *ty,
        Type::OID
            | Type::XID
            | Type::CID
            | Type::REGPROC
            | Type::REGPROCEDURE
            | Type::REGOPER
            | Type::REGOPERATOR
            | Type::REGCLASS
            | Type::REGTYPE
            | Type::REGROLE
            | Type::REGNAMESPACE
    )
}

fn encode_int(n: i64, ty: &Type, out: &mut BytesMut) -> Result<()> {
    let range = |_| out_of_range(&n.to_string(), ty);
    match *ty {
        Type::INT2 => put(out, &i16::try_from(n).map_err(range)?.to_be_bytes()),
        Type::INT4 => put(out, &i32::try_from(n).map_err(range)?.to_be_bytes()),
        _ if is_oid(ty) => put(out, &u32::try_from(n).map_err(range)?.to_be_bytes()),
        Type::INT8 => put(out, &n.to_be_bytes()),
        Type::NUMERIC => encode_numeric(&n.to_string(), out),
        // An integer that a float holds exactly is that float; PostgreSQL, too, converts it by itself.
        Type::FLOAT4 | Type::FLOAT8 if (n as f64) as i64 == n && n != i64::MAX => encode_float(n as f64, ty, out),
        Type::FLOAT4 | Type::FLOAT8 => Err(out_of_range(&n.to_string(), ty)),
        _ => Err(mismatch("integer", ty)),
    }
}

fn encode_float(x: f64, ty: &Type, out: &mut BytesMut) -> Result<()> {
    match *ty {
        Type::FLOAT8 => put(out, &x.to_be_bytes()),
        Type::FLOAT4 if Value::Float(x).fits(DataType::Float4) => put(out, &(x as f32).to_be_bytes()),
        Type::FLOAT4 => Err(out_of_range(&x.to_string(), ty)),
        _ => Err(mismatch("double precision", ty)),
    }
}

fn encode_text(text: &str, out: &mut BytesMut) -> Result<()> {
    if text.contains('\0') {
        return Err(ShardError::statement("22021", "invalid byte sequence for encoding \"UTF8\": 0x00"));
    }
    put(out, text.as_bytes())
}

fn is_text(ty: &Type) -> bool {
    matches!(*ty, Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN | Type::CHAR)
}

const NUMERIC_NEGATIVE: u16 = 0x4000;
const NUMERIC_NAN: u16 = 0xC000;
const NUMERIC_INFINITY: u16 = 0xD000;
const NUMERIC_MINUS_INFINITY: u16 = 0xF000;

/// Writes a numeric: groups of four decimal digits, where the first one stands (`weight`), sign and scale.
fn encode_numeric(text: &str, out: &mut BytesMut) -> Result<()> {
    let special = match text {
        "NaN" => Some(NUMERIC_NAN),
        "Infinity" => Some(NUMERIC_INFINITY),
        "-Infinity" => Some(NUMERIC_MINUS_INFINITY),
        _ => None,
    };
    if let Some(sign) = special {
        return numeric_head(out, &[], 0, sign, 0);
    }
    let (sign, digits) = text.strip_prefix('-').map_or((0, text), |rest| (NUMERIC_NEGATIVE, rest));
    let (integer, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let lead = "0".repeat((4 - integer.len() % 4) % 4);
    let tail = "0".repeat((4 - fraction.len() % 4) % 4);
    let all = format!("{lead}{integer}{fraction}{tail}");
    let mut weight = ((lead.len() + integer.len()) / 4) as i32 - 1;
    let mut groups: Vec<u16> =
        all.as_bytes().chunks(4).map(|four| four.iter().fold(0, |n, d| n * 10 + u16::from(d - b'0'))).collect();
    let zeros = groups.iter().take_while(|group| **group == 0).count();
    groups.drain(..zeros);
    weight -= zeros as i32;
    while groups.last() == Some(&0) {
        groups.pop();
    }
    if groups.is_empty() {
        weight = 0;
    }
    numeric_head(out, &groups, weight, sign, fraction.len())
}

fn numeric_head(out: &mut BytesMut, groups: &[u16], weight: i32, sign: u16, scale: usize) -> Result<()> {
    out.extend_from_slice(&(groups.len() as u16).to_be_bytes());
    out.extend_from_slice(&(weight as i16).to_be_bytes());
    out.extend_from_slice(&sign.to_be_bytes());
    out.extend_from_slice(&(scale as u16).to_be_bytes());
    groups.iter().for_each(|group| out.extend_from_slice(&group.to_be_bytes()));
    Ok(())
}

fn decode_numeric(raw: &[u8]) -> Result<Value> {
    let word = |at: usize| raw.get(at * 2..at * 2 + 2).map(|b| u16::from_be_bytes([b[0], b[1]])).ok_or_else(damaged);
    let (count, weight, sign, scale) = (word(0)?, i32::from(word(1)? as i16), word(2)?, usize::from(word(3)?));
    let text = match sign {
        NUMERIC_NAN => "NaN".to_string(),
        NUMERIC_INFINITY => "Infinity".to_string(),
        NUMERIC_MINUS_INFINITY => "-Infinity".to_string(),
        _ => {
            let group = |place: i32| match usize::try_from(weight - place) {
                Ok(at) if at < usize::from(count) => word(4 + at),
                _ => Ok(0),
            };
            let mut text = String::from(if sign == NUMERIC_NEGATIVE { "-" } else { "" });
            for place in (0..=weight.max(0)).rev() {
                text.push_str(&format!("{:04}", group(place)?));
            }
            let mut fraction = String::new();
            for place in 1..=scale.div_ceil(4) as i32 {
                fraction.push_str(&format!("{:04}", group(-place)?));
            }
            if scale > 0 {
                text.push('.');
                text.push_str(fraction.get(..scale).ok_or_else(damaged)?);
            }
            text
        }
    };
    Numeric::parse(&text).map(Value::Numeric).map_err(|_| damaged())
}

/// Reads a value of the server's type `ty` as one of type `expected`.
pub(super) fn decode(raw: Option<&[u8]>, ty: &Type, expected: DataType) -> Result<Value> {
    let Some(raw) = raw else { return Ok(Value::Null) };
    let value = match (ty, expected) {
        (&Type::BOOL, DataType::Bool) => Value::Bool(fixed::<1>(raw)? != [0]),
        (&Type::INT2, DataType::Int2 | DataType::Int4 | DataType::Int8) => {
            Value::Int(i16::from_be_bytes(fixed(raw)?).into())
        }
        (&Type::INT4, DataType::Int2 | DataType::Int4 | DataType::Int8) => {
            Value::Int(i32::from_be_bytes(fixed(raw)?).into())
        }
        (&Type::INT8, DataType::Int2 | DataType::Int4 | DataType::Int8) => Value::Int(i64::from_be_bytes(fixed(raw)?)),
        (ty, DataType::Int8) if is_oid(ty) => Value::Int(u32::from_be_bytes(fixed(raw)?).into()),
        (&Type::FLOAT4, DataType::Float4 | DataType::Float8) => Value::Float(f32::from_be_bytes(fixed(raw)?).into()),
        (&Type::FLOAT8, DataType::Float8) => Value::Float(f64::from_be_bytes(fixed(raw)?)),
        (&Type::NUMERIC, DataType::Numeric) => decode_numeric(raw)?,
        (&Type::JSON, DataType::Json) => Value::Json(text(raw)?),
        (&Type::JSONB, DataType::Json) => Value::Json(text(raw.get(1..).ok_or_else(damaged)?)?),
        (&Type::BYTEA, DataType::Bytes) => Value::Bytes(raw.to_vec()),
        (&Type::DATE, DataType::Date) => Value::Date(i32::from_be_bytes(fixed(raw)?)),
        (&Type::TIME, DataType::Time) => Value::Time(i64::from_be_bytes(fixed(raw)?)),
        (&Type::TIMESTAMP, DataType::Timestamp) => Value::Timestamp(i64::from_be_bytes(fixed(raw)?)),
        (&Type::TIMESTAMPTZ, DataType::TimestampTz) => Value::TimestampTz(i64::from_be_bytes(fixed(raw)?)),
        (&Type::UUID, DataType::Uuid) => Value::Uuid(fixed(raw)?),
        (&Type::INTERVAL, DataType::Interval) => decode_interval(raw)?,
        (ty, DataType::Array(element)) => match ty.kind() {
            Kind::Array(member) => decode_array(raw, member, element)?,
            _ => return Err(mismatch(expected.postgres_name(), ty)),
        },
        // A "char" is one byte, and none is the zero byte.
        (&Type::CHAR, DataType::Text) if raw == [0] => Value::text(""),
        (ty, DataType::Text) if is_text(ty) => Value::Text(text(raw)?),
        (ty, expected) => return Err(mismatch(expected.postgres_name(), ty)),
    };
    if value.fits(expected) { Ok(value) } else { Err(out_of_range("value", &type_of(expected))) }
}

fn fixed<const N: usize>(raw: &[u8]) -> Result<[u8; N]> {
    raw.try_into().map_err(|_| damaged())
}

fn text(raw: &[u8]) -> Result<String> {
    String::from_utf8(raw.to_vec()).map_err(|_| damaged())
}

/// One column of a row that `record_send` wrote: its type's number and its bytes.
pub(super) type Field<'a> = (u32, Option<&'a [u8]>);

/// The columns of a row that `record_send` wrote.
pub(super) fn decode_record(raw: &[u8]) -> Result<Vec<Field<'_>>> {
    let mut rest = raw;
    let mut take = |length: usize| -> Result<&[u8]> {
        let (taken, left) = rest.split_at_checked(length).ok_or_else(damaged)?;
        rest = left;
        Ok(taken)
    };
    let columns = u32::from_be_bytes(fixed(take(4)?)?);
    let mut fields = Vec::new();
    for _ in 0..columns {
        let ty = u32::from_be_bytes(fixed(take(4)?)?);
        let length = i32::from_be_bytes(fixed(take(4)?)?);
        let bytes = usize::try_from(length).ok().map(&mut take).transpose()?;
        fields.push((ty, bytes));
    }
    Ok(fields)
}

/// The server's type for a column of type `ty`.
pub fn type_of(ty: DataType) -> Type {
    match ty {
        DataType::Bool => Type::BOOL,
        DataType::Int2 => Type::INT2,
        DataType::Int4 => Type::INT4,
        DataType::Int8 => Type::INT8,
        DataType::Float4 => Type::FLOAT4,
        DataType::Float8 => Type::FLOAT8,
        DataType::Numeric => Type::NUMERIC,
        DataType::Text => Type::TEXT,
        DataType::Bytes => Type::BYTEA,
        DataType::Date => Type::DATE,
        DataType::Time => Type::TIME,
        DataType::Timestamp => Type::TIMESTAMP,
        DataType::TimestampTz => Type::TIMESTAMPTZ,
        DataType::Uuid => Type::UUID,
        DataType::Json => Type::JSON,
        DataType::Interval => Type::INTERVAL,
        DataType::Array(element) => array_of(element),
    }
}

/// The server's type for arrays of a carrier's own type.
pub(super) fn array_of(element: Element) -> Type {
    match element {
        Element::Bool => Type::BOOL_ARRAY,
        Element::Int2 => Type::INT2_ARRAY,
        Element::Int4 => Type::INT4_ARRAY,
        Element::Int8 => Type::INT8_ARRAY,
        Element::Float4 => Type::FLOAT4_ARRAY,
        Element::Float8 => Type::FLOAT8_ARRAY,
        Element::Numeric => Type::NUMERIC_ARRAY,
        Element::Text => Type::TEXT_ARRAY,
        Element::Bytes => Type::BYTEA_ARRAY,
        Element::Date => Type::DATE_ARRAY,
        Element::Time => Type::TIME_ARRAY,
        Element::Timestamp => Type::TIMESTAMP_ARRAY,
        Element::TimestampTz => Type::TIMESTAMPTZ_ARRAY,
        Element::Uuid => Type::UUID_ARRAY,
        Element::Json => Type::JSON_ARRAY,
        Element::Interval => Type::INTERVAL_ARRAY,
    }
}

/// The server's type of a column: what it was declared as, or what its carrier is by itself.
pub(super) fn declared(column: &Column) -> Type {
    let declared = column.sql_type.and_then(|sql_type| Type::from_oid(sql_type.oid));
    declared.unwrap_or_else(|| type_of(column.ty))
}

fn kind_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Int(_) => "integer",
        Value::Float(_) => "double precision",
        Value::Numeric(_) => "numeric",
        Value::Text(_) => "text",
        Value::Bytes(_) => "bytea",
        Value::Date(_) => "date",
        Value::Time(_) => "time without time zone",
        Value::Timestamp(_) => "timestamp without time zone",
        Value::TimestampTz(_) => "timestamp with time zone",
        Value::Uuid(_) => "uuid",
        Value::Json(_) => "json",
        Value::Interval(_) => "interval",
        Value::Array(_) => "array",
    }
}

fn mismatch(given: &str, ty: &Type) -> ShardError {
    ShardError::statement("42804", format!("a value of type {} is needed, not of type {given}", ty.name()))
}

fn out_of_range(value: &str, ty: &Type) -> ShardError {
    ShardError::statement("22003", format!("{value} is out of range for type {}", ty.name()))
}

fn damaged() -> ShardError {
    ShardError::Corrupt("the server sent a value that is not in its type's binary form".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(text: &str) {
        let numeric = Numeric::parse(text).expect("valid");
        let mut out = BytesMut::new();
        encode_numeric(numeric.as_str(), &mut out).expect("valid");
        assert_eq!(decode_numeric(&out), Ok(Value::Numeric(numeric)), "{text}");
    }

    #[test]
    fn numerics_keep_their_scale_sign_and_size() {
        for text in
            ["0", "0.000", "-0.00001", "1", "10000", "9999.9999", "1e100", "1e-100", "NaN", "Infinity", "-Infinity"]
        {
            round_trip(text);
        }
    }

    proptest! {
        #[test]
        fn any_numeric_round_trips(integer in "[0-9]{1,30}", fraction in "[0-9]{0,30}", negative in any::<bool>()) {
            round_trip(&format!("{}{integer}.{fraction}", if negative { "-" } else { "" }));
        }

        #[test]
        fn decoding_any_bytes_never_panics(bytes in any::<Vec<u8>>()) {
            let _ = decode_numeric(&bytes);
            let _ = decode_record(&bytes);
            for ty in DataType::ALL {
                let _ = decode(Some(&bytes), &type_of(ty), ty);
            }
        }
    }
}
