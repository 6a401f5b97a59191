//! The bucket of a shard key.
//!
//! ```text
//! values ──canonical text of each, by type──► joined ──► hash::bucket_of ──► bucket
//! ```
//!
//! Where a row lies is decided here and nowhere else, and for ever: a change of this text would lose every row that is
//! stored. So it is fixed by type, and equal values have equal texts, also where their types differ in width or scale:
//!
//!   * integers of any width: decimal digits
//!   * numeric: without zeros after the last digit of the fraction (1.50 is 1.5), `NaN`, `Infinity`
//!   * float: the shortest decimal that reads back to it; -0 is 0
//!   * text, varchar, name: itself; character(n): without the blanks at its end, which do not count
//!   * boolean: `t`, `f`; uuid: PostgreSQL's output; bytea: PostgreSQL's output in hex
//!   * date, time, timestamp: the number of days or microseconds that PostgreSQL stores
//!   * interval: its length in microseconds, with months of 30 days
//!
//! A key of one column is its text, so that an id hashes the same wherever it is hashed. Keys of several columns are
//! joined with the length of each in front, so that no two keys have one text.

use isles_kernel::error::SqlError;
use isles_kernel::hash::{BucketCount, bucket_of};
use isles_kernel::names::BucketId;
use isles_kernel::value::{Numeric, Value};
use isles_sql::types::{BPCHAR, Type};
use std::borrow::Cow;

/// The bucket of a key; None if a part of it is null, for such a row is nowhere.
pub(crate) fn bucket(values: &[(Value, Type)], buckets: BucketCount) -> Result<Option<BucketId>, SqlError> {
    let mut texts = Vec::with_capacity(values.len());
    for (value, ty) in values {
        match canonical(value, *ty)? {
            Some(text) => texts.push(text),
            None => return Ok(None),
        }
    }
    let joined: Cow<'_, str> = match texts.as_slice() {
        [one] => Cow::Borrowed(one),
        several => Cow::Owned(several.iter().map(|text| format!("{}:{text}", text.len())).collect()),
    };
    Ok(Some(bucket_of(&joined, None, buckets)))
}

fn canonical(value: &Value, ty: Type) -> Result<Option<String>, SqlError> {
    Ok(Some(match value {
        Value::Null => return Ok(None),
        Value::Bool(true) => "t".into(),
        Value::Bool(false) => "f".into(),
        Value::Int(n) => n.to_string(),
        Value::Float(x) if x.is_nan() => "NaN".into(),
        // Adding zero turns -0 into 0.
        Value::Float(x) => format!("{}", x + 0.0),
        Value::Numeric(n) => numeric(n),
        Value::Text(text) if ty.oid == BPCHAR => text.trim_end_matches(' ').into(),
        Value::Text(text) => text.clone(),
        Value::Bytes(bytes) => format!("\\x{}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
        Value::Date(days) => days.to_string(),
        Value::Time(micros) | Value::Timestamp(micros) | Value::TimestampTz(micros) => micros.to_string(),
        Value::Uuid(bytes) => uuid(bytes),
        Value::Interval(interval) => interval.span().to_string(),
        Value::Json(_) | Value::Array(_) => {
            return Err(SqlError::unsupported("a shard key cannot have a column of this type"));
        }
    }))
}

fn numeric(n: &Numeric) -> String {
    let text = n.as_str();
    match text.split_once('.') {
        Some((integer, fraction)) => match fraction.trim_end_matches('0') {
            "" => integer.into(),
            rest => format!("{integer}.{rest}"),
        },
        None => text.into(),
    }
}

fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use isles_sql::types::{BOOL, BYTEA, DATE, FLOAT8, INT4, INT8, NUMERIC, Oid, TEXT, TIMESTAMPTZ, UUID, VARCHAR};

    fn of(values: &[(Value, Oid)]) -> Option<u32> {
        let values: Vec<(Value, Type)> = values.iter().map(|(value, oid)| (value.clone(), Type::of(*oid))).collect();
        let buckets = BucketCount::new(65_536).expect("within bounds");
        bucket(&values, buckets).expect("hashable").map(|bucket| bucket.0)
    }

    fn number(text: &str) -> Value {
        Value::Numeric(Numeric::parse(text).expect("valid"))
    }

    /// Rows lie where these say.
    #[test]
    fn buckets_never_change() {
        let one = |value: Value, oid: Oid| of(&[(value, oid)]);
        let uuid = Value::Uuid(*b"0123456789abcdef");
        let found = [
            one(Value::Int(1), INT4),
            one(Value::Int(-7), INT8),
            one(Value::text("user-42"), TEXT),
            one(Value::text("日本"), TEXT),
            one(uuid, UUID),
            one(number("1.50"), NUMERIC),
            one(Value::Float(0.1), FLOAT8),
            one(Value::Bool(true), BOOL),
            one(Value::Bytes(vec![0, 255]), BYTEA),
            one(Value::Date(8_000), DATE),
            one(Value::TimestampTz(1), TIMESTAMPTZ),
            of(&[(Value::Int(1), INT4), (Value::text("a"), TEXT)]),
        ];
        let expected = [
            "1",
            "-7",
            "user-42",
            "日本",
            "30313233-3435-3637-3839-616263646566",
            "1.5",
            "0.1",
            "t",
            "\\x00ff",
            "8000",
            "1",
            "1:11:a",
        ];
        let expected = expected.map(|text| Some(isles_kernel::hash::fnv1a32(text) % 65_536));
        assert_eq!(found, expected);
        assert_eq!(found[0], Some(42_780), "the hash itself does not change either");
    }

    #[test]
    fn equal_values_are_in_one_bucket() {
        assert_eq!(of(&[(Value::Int(5), INT4)]), of(&[(Value::Int(5), INT8)]));
        assert_eq!(of(&[(number("5.00"), NUMERIC)]), of(&[(Value::Int(5), INT8)]));
        assert_eq!(of(&[(Value::Float(-0.0), FLOAT8)]), of(&[(Value::Float(0.0), FLOAT8)]));
        assert_eq!(of(&[(Value::text("a"), VARCHAR)]), of(&[(Value::text("a"), TEXT)]));
        assert_eq!(of(&[(Value::text("a  "), BPCHAR)]), of(&[(Value::text("a"), TEXT)]));
    }

    #[test]
    fn parts_of_a_key_do_not_run_together() {
        let pair = |a: &str, b: &str| of(&[(Value::text(a), TEXT), (Value::text(b), TEXT)]);
        assert_ne!(pair("ab", "c"), pair("a", "bc"));
        assert_ne!(pair("1:a", ""), pair("", "1:a"));
        assert_eq!(of(&[(Value::Null, TEXT)]), None);
        assert_eq!(of(&[(Value::Int(1), INT4), (Value::Null, TEXT)]), None);
    }
}
