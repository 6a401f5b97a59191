//! Values in the binary form of PostgreSQL's protocol.

use super::json;
use crate::runtime::numeric;
use crate::types::*;
use isles_kernel::error::SqlError;
use isles_kernel::interval::Interval;
use isles_kernel::value::{DataType, Value};

/// The only version of jsonb's binary form there has been.
const JSONB_VERSION: u8 = 1;

fn damaged(ty: Oid) -> SqlError {
    SqlError::new("22P03", format!("incorrect binary data format for type {}", super::type_name(ty)))
}

fn fixed<const N: usize>(bytes: &[u8], ty: Oid) -> Result<[u8; N], SqlError> {
    bytes.try_into().map_err(|_| damaged(ty))
}

fn utf8(bytes: &[u8]) -> Result<String, SqlError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let wrong: Vec<String> = bytes[error.valid_up_to()..]
            .iter()
            .take(error.error_len().unwrap_or(1))
            .map(|b| format!("0x{b:02x}"))
            .collect();
        SqlError::new("22021", format!("invalid byte sequence for encoding \"UTF8\": {}", wrong.join(" ")))
    })?;
    if text.contains('\0') {
        return Err(SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\": 0x00"));
    }
    Ok(text.to_string())
}

/// Reads a value of type `ty`.
pub fn binary_in(bytes: &[u8], ty: Oid) -> Result<Value, SqlError> {
    let carrier =
        carrier(ty).ok_or_else(|| SqlError::unsupported(format!("type {} is not supported", super::type_name(ty))))?;
    let value = match carrier {
        DataType::Bool => Value::Bool(fixed::<1>(bytes, ty)? != [0]),
        DataType::Int2 => Value::Int(i16::from_be_bytes(fixed(bytes, ty)?).into()),
        DataType::Int4 => Value::Int(i32::from_be_bytes(fixed(bytes, ty)?).into()),
        DataType::Int8 if ty == INT8 => Value::Int(i64::from_be_bytes(fixed(bytes, ty)?)),
        DataType::Int8 => Value::Int(u32::from_be_bytes(fixed(bytes, ty)?).into()),
        DataType::Float4 => Value::Float(f32::from_be_bytes(fixed(bytes, ty)?).into()),
        DataType::Float8 => Value::Float(f64::from_be_bytes(fixed(bytes, ty)?)),
        DataType::Numeric => Value::Numeric(numeric::from_wire(bytes).ok_or_else(|| damaged(ty))?),
        DataType::Text if ty == CHAR && bytes == [0] => Value::text(""),
        DataType::Text => Value::Text(utf8(bytes)?),
        DataType::Bytes => Value::Bytes(bytes.to_vec()),
        DataType::Date => Value::Date(i32::from_be_bytes(fixed(bytes, ty)?)),
        DataType::Time => Value::Time(i64::from_be_bytes(fixed(bytes, ty)?)),
        DataType::Timestamp => Value::Timestamp(i64::from_be_bytes(fixed(bytes, ty)?)),
        DataType::TimestampTz => Value::TimestampTz(i64::from_be_bytes(fixed(bytes, ty)?)),
        DataType::Uuid => Value::Uuid(fixed(bytes, ty)?),
        DataType::Json => Value::Json(json_in(bytes, ty)?),
        DataType::Interval => interval_in(bytes, ty)?,
        DataType::Array(_) => array_in(bytes, ty)?,
    };
    match value.fits(carrier) {
        true => Ok(value),
        false => Err(out_of_range(carrier)),
    }
}

fn out_of_range(carrier: DataType) -> SqlError {
    match carrier {
        DataType::Date => SqlError::new("22008", "date out of range"),
        DataType::Time => SqlError::new("22008", "time out of range"),
        _ => SqlError::new("22008", "timestamp out of range"),
    }
}

fn json_in(bytes: &[u8], ty: Oid) -> Result<String, SqlError> {
    if ty == JSON {
        let text = utf8(bytes)?;
        json::parse(&text, json::Flavour::Json)?;
        return Ok(text);
    }
    match bytes.split_first() {
        Some((&JSONB_VERSION, text)) => json::canonical_text(&utf8(text)?),
        Some((version, _)) => Err(SqlError::new("XX000", format!("unsupported jsonb version number {version}"))),
        None => Err(damaged(ty)),
    }
}

fn interval_in(bytes: &[u8], ty: Oid) -> Result<Value, SqlError> {
    let bytes: [u8; 16] = fixed(bytes, ty)?;
    Ok(Value::Interval(Interval {
        micros: i64::from_be_bytes(fixed(&bytes[..8], ty)?),
        days: i32::from_be_bytes(fixed(&bytes[8..12], ty)?),
        months: i32::from_be_bytes(fixed(&bytes[12..], ty)?),
    }))
}

/// The type of an array's members; the vectors of the catalogs are arrays too.
fn member_type(ty: Oid) -> Oid {
    match ty {
        INT2VECTOR => INT2,
        OIDVECTOR => OID,
        _ => element_of(ty).unwrap_or(TEXT),
    }
}

fn array_in(bytes: &[u8], ty: Oid) -> Result<Value, SqlError> {
    let mut rest = bytes;
    let mut take = |length: usize| {
        let (taken, left) = rest.split_at_checked(length).ok_or_else(|| damaged(ty))?;
        rest = left;
        Ok::<&[u8], SqlError>(taken)
    };
    let mut word = || Ok::<i32, SqlError>(i32::from_be_bytes(fixed(take(4)?, ty)?));
    let (dimensions, _nulls, member) = (word()?, word()?, word()?);
    if member as u32 != member_type(ty).0 {
        return Err(SqlError::new("42804", "wrong element type"));
    }
    let count = match dimensions {
        0 => 0,
        1 => (word()?, word()?).0,
        _ => return Err(SqlError::unsupported("arrays of more than one dimension are not supported")),
    };
    let mut members = Vec::new();
    for _ in 0..count {
        let length = i32::from_be_bytes(fixed(take(4)?, ty)?);
        members.push(match usize::try_from(length) {
            Ok(length) => binary_in(take(length)?, member_type(ty))?,
            Err(_) => Value::Null,
        });
    }
    Ok(Value::Array(members))
}

/// Appends the binary form of a value other than null.
pub fn binary_out(value: &Value, ty: Oid, out: &mut Vec<u8>) {
    match value {
        Value::Null => {}
        Value::Bool(b) => out.push(u8::from(*b)),
        Value::Int(n) => match ty {
            INT2 => out.extend_from_slice(&(*n as i16).to_be_bytes()),
            INT8 => out.extend_from_slice(&n.to_be_bytes()),
            _ => out.extend_from_slice(&(*n as i32).to_be_bytes()),
        },
        Value::Float(x) if ty == FLOAT4 => out.extend_from_slice(&(*x as f32).to_be_bytes()),
        Value::Float(x) => out.extend_from_slice(&x.to_be_bytes()),
        Value::Numeric(n) => numeric::to_wire(n, out),
        Value::Text(text) if ty == CHAR && text.is_empty() => out.push(0),
        Value::Text(text) => out.extend_from_slice(text.as_bytes()),
        Value::Json(text) => {
            if ty == JSONB {
                out.push(JSONB_VERSION);
            }
            out.extend_from_slice(text.as_bytes());
        }
        Value::Bytes(bytes) => out.extend_from_slice(bytes),
        Value::Date(days) => out.extend_from_slice(&days.to_be_bytes()),
        Value::Time(micros) | Value::Timestamp(micros) | Value::TimestampTz(micros) => {
            out.extend_from_slice(&micros.to_be_bytes());
        }
        Value::Uuid(uuid) => out.extend_from_slice(uuid),
        Value::Interval(interval) => {
            out.extend_from_slice(&interval.micros.to_be_bytes());
            out.extend_from_slice(&interval.days.to_be_bytes());
            out.extend_from_slice(&interval.months.to_be_bytes());
        }
        Value::Array(members) => array_out(members, ty, out),
    }
}

fn array_out(members: &[Value], ty: Oid, out: &mut Vec<u8>) {
    let (member, lower) = (member_type(ty), i32::from(!matches!(ty, INT2VECTOR | OIDVECTOR)));
    let word = |out: &mut Vec<u8>, n: i32| out.extend_from_slice(&n.to_be_bytes());
    word(out, i32::from(!members.is_empty()));
    word(out, i32::from(members.iter().any(Value::is_null)));
    word(out, member.0 as i32);
    if !members.is_empty() {
        word(out, members.len() as i32);
        word(out, lower);
    }
    for value in members {
        if value.is_null() {
            word(out, -1);
            continue;
        }
        let at = out.len();
        word(out, 0);
        binary_out(value, member, out);
        let length = (out.len() - at - 4) as i32;
        out[at..at + 4].copy_from_slice(&length.to_be_bytes());
    }
}
