//! Typed values, the same on every engine and without loss on any.
//!
//! A [`Value`] is what a client sent or will see; each engine has its own storage form for it, and storing and
//! reading gives back the same value, bit for bit. The binary form here is used by the change log and by digests,
//! so two shards of different engines that hold equal rows have equal bytes.
//!
//! Invariants:
//!   * decode(encode(v)) = v; decoding any bytes returns a value or an error, and never allocates more than the
//!     input is long
//!   * a [`Numeric`] is in PostgreSQL's output form, so equal texts are equal values of equal scale
//!
//! Dates and times keep PostgreSQL's own representation (days or microseconds from 2000-01-01, the extremes of the
//! integer for ±infinity), since every engine and the wire protocol can hold it exactly.

use crate::form;
use crate::interval::Interval;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::ops::RangeInclusive;

/// PostgreSQL's finite dates: 4713 BC to 5874897 AD.
pub const DATES: RangeInclusive<i32> = -2_451_545..=2_145_031_948;
/// PostgreSQL's finite timestamps: 4713 BC to 294276 AD.
pub const TIMESTAMPS: RangeInclusive<i64> = -211_813_488_000_000_000..=9_223_371_331_199_999_999;
/// Midnight to midnight; 24:00:00 is a time.
pub const TIMES: RangeInclusive<i64> = 0..=86_400_000_000;

/// PostgreSQL's limit on the members of an array.
pub const MAX_ARRAY_MEMBERS: usize = 134_217_727;

/// The types a column can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataType {
    Bool,
    Int2,
    Int4,
    Int8,
    Float4,
    Float8,
    Numeric,
    Text,
    Bytes,
    Date,
    Time,
    Timestamp,
    TimestampTz,
    Uuid,
    Json,
    Interval,
    /// One dimension, counted from 1. Arrays of arrays are not carried.
    Array(Element),
}

/// What an array can hold: any of the other types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    Bool,
    Int2,
    Int4,
    Int8,
    Float4,
    Float8,
    Numeric,
    Text,
    Bytes,
    Date,
    Time,
    Timestamp,
    TimestampTz,
    Uuid,
    Json,
    Interval,
}

impl From<Element> for DataType {
    fn from(element: Element) -> DataType {
        match element {
            Element::Bool => DataType::Bool,
            Element::Int2 => DataType::Int2,
            Element::Int4 => DataType::Int4,
            Element::Int8 => DataType::Int8,
            Element::Float4 => DataType::Float4,
            Element::Float8 => DataType::Float8,
            Element::Numeric => DataType::Numeric,
            Element::Text => DataType::Text,
            Element::Bytes => DataType::Bytes,
            Element::Date => DataType::Date,
            Element::Time => DataType::Time,
            Element::Timestamp => DataType::Timestamp,
            Element::TimestampTz => DataType::TimestampTz,
            Element::Uuid => DataType::Uuid,
            Element::Json => DataType::Json,
            Element::Interval => DataType::Interval,
        }
    }
}

impl DataType {
    pub const ALL: [DataType; 32] = [
        DataType::Bool,
        DataType::Int2,
        DataType::Int4,
        DataType::Int8,
        DataType::Float4,
        DataType::Float8,
        DataType::Numeric,
        DataType::Text,
        DataType::Bytes,
        DataType::Date,
        DataType::Time,
        DataType::Timestamp,
        DataType::TimestampTz,
        DataType::Uuid,
        DataType::Json,
        DataType::Interval,
        DataType::Array(Element::Bool),
        DataType::Array(Element::Int2),
        DataType::Array(Element::Int4),
        DataType::Array(Element::Int8),
        DataType::Array(Element::Float4),
        DataType::Array(Element::Float8),
        DataType::Array(Element::Numeric),
        DataType::Array(Element::Text),
        DataType::Array(Element::Bytes),
        DataType::Array(Element::Date),
        DataType::Array(Element::Time),
        DataType::Array(Element::Timestamp),
        DataType::Array(Element::TimestampTz),
        DataType::Array(Element::Uuid),
        DataType::Array(Element::Json),
        DataType::Array(Element::Interval),
    ];

    /// The type as a member of an array; none for an array.
    pub fn element(self) -> Option<Element> {
        Some(match self {
            DataType::Bool => Element::Bool,
            DataType::Int2 => Element::Int2,
            DataType::Int4 => Element::Int4,
            DataType::Int8 => Element::Int8,
            DataType::Float4 => Element::Float4,
            DataType::Float8 => Element::Float8,
            DataType::Numeric => Element::Numeric,
            DataType::Text => Element::Text,
            DataType::Bytes => Element::Bytes,
            DataType::Date => Element::Date,
            DataType::Time => Element::Time,
            DataType::Timestamp => Element::Timestamp,
            DataType::TimestampTz => Element::TimestampTz,
            DataType::Uuid => Element::Uuid,
            DataType::Json => Element::Json,
            DataType::Interval => Element::Interval,
            DataType::Array(_) => return None,
        })
    }

    /// The name PostgreSQL gives this type.
    pub fn postgres_name(self) -> &'static str {
        match self {
            DataType::Bool => "boolean",
            DataType::Int2 => "smallint",
            DataType::Int4 => "integer",
            DataType::Int8 => "bigint",
            DataType::Float4 => "real",
            DataType::Float8 => "double precision",
            DataType::Numeric => "numeric",
            DataType::Text => "text",
            DataType::Bytes => "bytea",
            DataType::Date => "date",
            DataType::Time => "time without time zone",
            DataType::Timestamp => "timestamp without time zone",
            DataType::TimestampTz => "timestamp with time zone",
            DataType::Uuid => "uuid",
            DataType::Json => "json",
            DataType::Interval => "interval",
            DataType::Array(Element::Bool) => "boolean[]",
            DataType::Array(Element::Int2) => "smallint[]",
            DataType::Array(Element::Int4) => "integer[]",
            DataType::Array(Element::Int8) => "bigint[]",
            DataType::Array(Element::Float4) => "real[]",
            DataType::Array(Element::Float8) => "double precision[]",
            DataType::Array(Element::Numeric) => "numeric[]",
            DataType::Array(Element::Text) => "text[]",
            DataType::Array(Element::Bytes) => "bytea[]",
            DataType::Array(Element::Date) => "date[]",
            DataType::Array(Element::Time) => "time without time zone[]",
            DataType::Array(Element::Timestamp) => "timestamp without time zone[]",
            DataType::Array(Element::TimestampTz) => "timestamp with time zone[]",
            DataType::Array(Element::Uuid) => "uuid[]",
            DataType::Array(Element::Json) => "json[]",
            DataType::Array(Element::Interval) => "interval[]",
        }
    }
}

/// One value of a column or parameter.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Value {
    Null,
    Bool(bool),
    /// Any of the three integer types.
    Int(i64),
    /// Either of the two float types; every `f32` is exact in an `f64`.
    #[serde(with = "exact_float")]
    Float(f64),
    Numeric(Numeric),
    Text(String),
    Bytes(Vec<u8>),
    /// Days from 2000-01-01; `i32::MAX` and `i32::MIN` are ±infinity.
    Date(i32),
    /// Microseconds from midnight, 0 to 86,400,000,000 (24:00:00 is a valid time).
    Time(i64),
    /// Microseconds from 2000-01-01 00:00; `i64::MAX` and `i64::MIN` are ±infinity.
    Timestamp(i64),
    /// As `Timestamp`, in UTC.
    TimestampTz(i64),
    Uuid([u8; 16]),
    /// The text as it was given, or for a `jsonb` as PostgreSQL shows it.
    Json(String),
    Interval(Interval),
    /// Members of one type, or null; none of them an array.
    Array(Vec<Value>),
}

/// JSON has no NaN and no infinity, and not every reader of it is exact: floats travel as text.
mod exact_float {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(x: &f64, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&format!("{x:?}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
        String::deserialize(input)?.parse().map_err(D::Error::custom)
    }
}

impl PartialEq for Value {
    /// Identity of stored values: a NaN equals any NaN, since no engine keeps its payload, and 0.0 differs from -0.0.
    fn eq(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Float(a), Value::Float(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (Value::Numeric(a), Value::Numeric(b)) => a == b,
            (Value::Text(a), Value::Text(b)) | (Value::Json(a), Value::Json(b)) => a == b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::Date(a), Value::Date(b)) => a == b,
            (Value::Time(a), Value::Time(b)) => a == b,
            (Value::Timestamp(a), Value::Timestamp(b)) | (Value::TimestampTz(a), Value::TimestampTz(b)) => a == b,
            (Value::Uuid(a), Value::Uuid(b)) => a == b,
            (Value::Interval(a), Value::Interval(b)) => a == b,
            (Value::Array(a), Value::Array(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Value {}

impl Value {
    pub fn text(text: impl Into<String>) -> Value {
        Value::Text(text.into())
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// Whether this value can be stored in a column of type `ty`; null fits everywhere.
    pub fn fits(&self, ty: DataType) -> bool {
        match (self, ty) {
            (Value::Null, _) => true,
            (Value::Int(n), DataType::Int2) => i16::try_from(*n).is_ok(),
            (Value::Int(n), DataType::Int4) => i32::try_from(*n).is_ok(),
            (Value::Float(x), DataType::Float4) => x.is_nan() || f64::from(*x as f32).to_bits() == x.to_bits(),
            (Value::Text(s) | Value::Json(s), DataType::Text | DataType::Json) if s.contains('\0') => false,
            (Value::Time(t), DataType::Time) => TIMES.contains(t),
            (Value::Date(d), DataType::Date) => DATES.contains(d) || [i32::MIN, i32::MAX].contains(d),
            (Value::Timestamp(t), DataType::Timestamp) | (Value::TimestampTz(t), DataType::TimestampTz) => {
                TIMESTAMPS.contains(t) || [i64::MIN, i64::MAX].contains(t)
            }
            (Value::Array(members), DataType::Array(element)) => {
                members.len() <= MAX_ARRAY_MEMBERS && members.iter().all(|member| member.fits(element.into()))
            }
            (Value::Bool(_), DataType::Bool)
            | (Value::Interval(_), DataType::Interval)
            | (Value::Int(_), DataType::Int8)
            | (Value::Float(_), DataType::Float8)
            | (Value::Numeric(_), DataType::Numeric)
            | (Value::Text(_), DataType::Text)
            | (Value::Bytes(_), DataType::Bytes)
            | (Value::Uuid(_), DataType::Uuid)
            | (Value::Json(_), DataType::Json) => true,
            _ => false,
        }
    }

    /// Memory this value holds, near enough for limits.
    pub fn weight(&self) -> usize {
        let heap = match self {
            Value::Text(s) | Value::Json(s) => s.len(),
            Value::Bytes(b) => b.len(),
            Value::Numeric(n) => n.as_str().len(),
            Value::Array(members) => members.iter().map(Value::weight).sum(),
            _ => 0,
        };
        size_of::<Value>() + heap
    }
}

/// An exact decimal of any size that PostgreSQL accepts, in PostgreSQL's output form.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Numeric(String);

/// PostgreSQL's own limits on a numeric.
const MAX_INTEGER_DIGITS: usize = 131_072;
const MAX_FRACTION_DIGITS: usize = 16_383;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NumericError {
    #[error("invalid input syntax for type numeric")]
    Syntax,
    #[error("value overflows numeric format")]
    Overflow,
}

impl Numeric {
    /// Reads what PostgreSQL reads: optional sign, digits with a point, an exponent, NaN, Infinity.
    pub fn parse(text: &str) -> Result<Numeric, NumericError> {
        let text = text.trim();
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if unsigned.eq_ignore_ascii_case("nan") && unsigned.len() == text.len() {
            return Ok(Numeric("NaN".into()));
        }
        if unsigned.eq_ignore_ascii_case("infinity") || unsigned.eq_ignore_ascii_case("inf") {
            return Ok(Numeric(if negative { "-Infinity" } else { "Infinity" }.into()));
        }
        let (mantissa, exponent) = split_exponent(unsigned)?;
        let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if (integer.is_empty() && fraction.is_empty()) || !all_digits(integer) || !all_digits(fraction) {
            return Err(NumericError::Syntax);
        }
        let (integer, fraction) = shift_point(integer, fraction, exponent)?;
        Numeric::from_parts(negative, &integer, &fraction)
    }

    fn from_parts(negative: bool, integer: &str, fraction: &str) -> Result<Numeric, NumericError> {
        let integer = integer.trim_start_matches('0');
        if integer.len() > MAX_INTEGER_DIGITS || fraction.len() > MAX_FRACTION_DIGITS {
            return Err(NumericError::Overflow);
        }
        let zero = integer.is_empty() && fraction.bytes().all(|b| b == b'0');
        let mut out = String::with_capacity(integer.len() + fraction.len() + 3);
        if negative && !zero {
            out.push('-');
        }
        out.push_str(if integer.is_empty() { "0" } else { integer });
        if !fraction.is_empty() {
            out.push('.');
            out.push_str(fraction);
        }
        Ok(Numeric(out))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// PostgreSQL's order of numerics given as texts: -Infinity, the numbers, Infinity, NaN. Scale does not
    /// matter: 1.0 and 1.00 are equal. A text that is not a numeric sorts last, so that the order stays total.
    pub fn compare(a: &str, b: &str) -> Ordering {
        rank(a).cmp(&rank(b)).then_with(|| match rank(a) {
            Rank::Negative => compare_magnitude(&b[1..], &a[1..]),
            Rank::Positive => compare_magnitude(a, b),
            Rank::Invalid => a.cmp(b),
            _ => Ordering::Equal,
        })
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    MinusInfinity,
    Negative,
    Positive,
    Infinity,
    NaN,
    Invalid,
}

fn rank(text: &str) -> Rank {
    match text.as_bytes().first() {
        Some(b'-') if text == "-Infinity" => Rank::MinusInfinity,
        Some(b'-') => Rank::Negative,
        Some(b'0'..=b'9') => Rank::Positive,
        Some(b'I') => Rank::Infinity,
        Some(b'N') => Rank::NaN,
        _ => Rank::Invalid,
    }
}

/// Compares two canonical unsigned decimals.
fn compare_magnitude(a: &str, b: &str) -> Ordering {
    let (a_integer, a_fraction) = a.split_once('.').unwrap_or((a, ""));
    let (b_integer, b_fraction) = b.split_once('.').unwrap_or((b, ""));
    let fractions = || a_fraction.trim_end_matches('0').cmp(b_fraction.trim_end_matches('0'));
    a_integer.len().cmp(&b_integer.len()).then_with(|| a_integer.cmp(b_integer)).then_with(fractions)
}

fn split_exponent(text: &str) -> Result<(&str, i64), NumericError> {
    match text.find(['e', 'E']) {
        None => Ok((text, 0)),
        Some(at) => {
            let exponent = &text[at + 1..];
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err(NumericError::Syntax);
            }
            Ok((&text[..at], exponent.parse().map_err(|_| NumericError::Overflow)?))
        }
    }
}

/// Moves the decimal point `exponent` places to the right.
fn shift_point(integer: &str, fraction: &str, exponent: i64) -> Result<(String, String), NumericError> {
    if exponent.unsigned_abs() as usize > MAX_INTEGER_DIGITS + MAX_FRACTION_DIGITS {
        return Err(NumericError::Overflow);
    }
    let places = exponent.unsigned_abs() as usize;
    if exponent >= 0 {
        let taken = places.min(fraction.len());
        let zeros = "0".repeat(places - taken);
        Ok((format!("{integer}{}{zeros}", &fraction[..taken]), fraction[taken..].to_string()))
    } else {
        let taken = places.min(integer.len());
        let zeros = "0".repeat(places - taken);
        let (kept, moved) = integer.split_at(integer.len() - taken);
        Ok((kept.to_string(), format!("{zeros}{moved}{fraction}")))
    }
}

impl TryFrom<String> for Numeric {
    type Error = NumericError;
    fn try_from(text: String) -> Result<Numeric, NumericError> {
        Numeric::parse(&text)
    }
}

impl From<Numeric> for String {
    fn from(numeric: Numeric) -> String {
        numeric.0
    }
}

impl fmt::Display for Numeric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Writes values in their binary form. The engines write straight from their storage forms, without a [`Value`]
/// in between, so each kind has a method of its own.
#[derive(Debug, Default, Clone)]
pub struct Encoder {
    pub bytes: Vec<u8>,
}

const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INT: u8 = 3;
const FLOAT: u8 = 4;
const NUMERIC: u8 = 5;
const TEXT: u8 = 6;
const BYTES: u8 = 7;
const DATE: u8 = 8;
const TIME: u8 = 9;
const TIMESTAMP: u8 = 10;
const TIMESTAMPTZ: u8 = 11;
const UUID: u8 = 12;
const JSON: u8 = 13;
const INTERVAL: u8 = 14;
const ARRAY: u8 = 15;

impl Encoder {
    pub fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.bytes.push(n as u8);
    }

    fn zigzag(&mut self, n: i64) {
        self.varint(((n << 1) ^ (n >> 63)) as u64);
    }

    pub fn blob(&mut self, bytes: &[u8]) {
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    fn tagged(&mut self, tag: u8, bytes: &[u8]) {
        self.bytes.push(tag);
        self.blob(bytes);
    }

    fn tagged_int(&mut self, tag: u8, n: i64) {
        self.bytes.push(tag);
        self.zigzag(n);
    }

    pub fn null(&mut self) {
        self.bytes.push(NULL);
    }

    pub fn bool(&mut self, b: bool) {
        self.bytes.push(if b { TRUE } else { FALSE });
    }

    /// An integer of a column of type `ty`, whose storage form is an integer on every engine.
    pub fn int_of(&mut self, ty: DataType, n: i64) {
        match ty {
            DataType::Bool => self.bool(n != 0),
            DataType::Date => self.tagged_int(DATE, n),
            DataType::Time => self.tagged_int(TIME, n),
            DataType::Timestamp => self.tagged_int(TIMESTAMP, n),
            DataType::TimestampTz => self.tagged_int(TIMESTAMPTZ, n),
            DataType::Float4 | DataType::Float8 => self.float(n as f64),
            _ => self.tagged_int(INT, n),
        }
    }

    pub fn float(&mut self, x: f64) {
        let canonical = if x.is_nan() { f64::NAN } else { x };
        self.bytes.push(FLOAT);
        self.bytes.extend_from_slice(&canonical.to_bits().to_le_bytes());
    }

    /// A text of a column of type `ty`, whose storage form is a text on every engine.
    pub fn text_of(&mut self, ty: DataType, text: &[u8]) {
        match ty {
            DataType::Numeric => self.tagged(NUMERIC, text),
            DataType::Json => self.tagged(JSON, text),
            DataType::Interval | DataType::Array(_) => self.parsed(ty, text),
            _ => self.tagged(TEXT, text),
        }
    }

    /// A value that some engine stores as text and this form does not. A text that is none stays a text, so that a
    /// reader sees what is there.
    fn parsed(&mut self, ty: DataType, bytes: &[u8]) {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let value = match ty {
            DataType::Array(element) => form::parse_array(text, element).map(Value::Array),
            _ => Interval::parse(text).map(Value::Interval),
        };
        match value {
            Some(value) => self.value(&value),
            None => self.tagged(TEXT, bytes),
        }
    }

    fn interval(&mut self, interval: &Interval) {
        self.tagged_int(INTERVAL, i64::from(interval.months));
        self.zigzag(i64::from(interval.days));
        self.zigzag(interval.micros);
    }

    fn array(&mut self, members: &[Value]) {
        self.bytes.push(ARRAY);
        self.row(members);
    }

    pub fn bytes_of(&mut self, ty: DataType, bytes: &[u8]) {
        match ty {
            DataType::Uuid => {
                self.bytes.push(UUID);
                self.bytes.extend_from_slice(bytes);
            }
            _ => self.tagged(BYTES, bytes),
        }
    }

    pub fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.null(),
            Value::Bool(b) => self.bool(*b),
            Value::Int(n) => self.tagged_int(INT, *n),
            Value::Float(x) => self.float(*x),
            Value::Numeric(n) => self.tagged(NUMERIC, n.as_str().as_bytes()),
            Value::Text(s) => self.tagged(TEXT, s.as_bytes()),
            Value::Json(s) => self.tagged(JSON, s.as_bytes()),
            Value::Bytes(b) => self.tagged(BYTES, b),
            Value::Date(d) => self.tagged_int(DATE, i64::from(*d)),
            Value::Time(t) => self.tagged_int(TIME, *t),
            Value::Timestamp(t) => self.tagged_int(TIMESTAMP, *t),
            Value::TimestampTz(t) => self.tagged_int(TIMESTAMPTZ, *t),
            Value::Uuid(u) => self.bytes_of(DataType::Uuid, u),
            Value::Interval(interval) => self.interval(interval),
            Value::Array(members) => self.array(members),
        }
    }

    /// A row: how many values, then each.
    pub fn row(&mut self, row: &[Value]) {
        self.varint(row.len() as u64);
        row.iter().for_each(|value| self.value(value));
    }
}

/// The bytes under which a key is remembered: equal for keys that SQL calls equal, so numerics lose their scale,
/// zeros their sign, and a month is 30 days.
pub fn key_bytes(key: &[Value]) -> Vec<u8> {
    let mut out = Encoder::default();
    push_key(&mut out, key);
    out.bytes
}

fn push_key(out: &mut Encoder, key: &[Value]) {
    out.varint(key.len() as u64);
    for value in key {
        match value {
            Value::Numeric(n) if n.as_str().contains('.') => {
                let trimmed = n.as_str().trim_end_matches('0').trim_end_matches('.');
                out.text_of(DataType::Numeric, trimmed.as_bytes());
            }
            Value::Float(x) if *x == 0.0 => out.float(0.0),
            Value::Interval(interval) => out.tagged(INTERVAL, &interval.span().to_le_bytes()),
            Value::Array(members) => {
                out.bytes.push(ARRAY);
                push_key(out, members);
            }
            other => out.value(other),
        }
    }
}

/// Bytes that are not what an [`Encoder`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("damaged value encoding")]
pub struct Damaged;

/// Reads what an [`Encoder`] wrote.
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub fn new(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn byte(&mut self) -> Result<u8, Damaged> {
        let (first, rest) = self.rest.split_first().ok_or(Damaged)?;
        self.rest = rest;
        Ok(*first)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Damaged)?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn varint(&mut self) -> Result<u64, Damaged> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Damaged);
            }
            n |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(n);
            }
        }
        Err(Damaged)
    }

    fn zigzag(&mut self) -> Result<i64, Damaged> {
        let n = self.varint()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    pub fn blob(&mut self) -> Result<&'a [u8], Damaged> {
        let len = usize::try_from(self.varint()?).map_err(|_| Damaged)?;
        self.take(len)
    }

    pub fn str(&mut self) -> Result<&'a str, Damaged> {
        std::str::from_utf8(self.blob()?).map_err(|_| Damaged)
    }

    pub fn value(&mut self) -> Result<Value, Damaged> {
        match self.byte()? {
            ARRAY => Ok(Value::Array(self.members()?)),
            tag => self.scalar(tag),
        }
    }

    /// Members are no arrays themselves, so no input can make this recurse.
    fn members(&mut self) -> Result<Vec<Value>, Damaged> {
        let len = self.length()?;
        let mut member = || self.byte().and_then(|tag| self.scalar(tag));
        (0..len).map(|_| member()).collect()
    }

    fn scalar(&mut self, tag: u8) -> Result<Value, Damaged> {
        Ok(match tag {
            NULL => Value::Null,
            FALSE => Value::Bool(false),
            TRUE => Value::Bool(true),
            INT => Value::Int(self.zigzag()?),
            FLOAT => Value::Float(f64::from_bits(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| Damaged)?))),
            NUMERIC => Value::Numeric(Numeric::parse(self.str()?).map_err(|_| Damaged)?),
            TEXT => Value::Text(self.str()?.to_string()),
            BYTES => Value::Bytes(self.blob()?.to_vec()),
            DATE => Value::Date(i32::try_from(self.zigzag()?).map_err(|_| Damaged)?),
            TIME => Value::Time(self.zigzag()?),
            TIMESTAMP => Value::Timestamp(self.zigzag()?),
            TIMESTAMPTZ => Value::TimestampTz(self.zigzag()?),
            UUID => Value::Uuid(self.take(16)?.try_into().map_err(|_| Damaged)?),
            JSON => Value::Json(self.str()?.to_string()),
            INTERVAL => Value::Interval(self.interval()?),
            _ => return Err(Damaged),
        })
    }

    fn interval(&mut self) -> Result<Interval, Damaged> {
        let small = |n: i64| i32::try_from(n).map_err(|_| Damaged);
        Ok(Interval::new(small(self.zigzag()?)?, small(self.zigzag()?)?, self.zigzag()?))
    }

    /// How many values follow.
    fn length(&mut self) -> Result<usize, Damaged> {
        let len = usize::try_from(self.varint()?).map_err(|_| Damaged)?;
        // Each value takes at least one byte, so a length beyond the input is a lie and must not be allocated.
        if len > self.rest.len() { Err(Damaged) } else { Ok(len) }
    }

    pub fn row(&mut self) -> Result<Vec<Value>, Damaged> {
        let len = self.length()?;
        (0..len).map(|_| self.value()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numeric(text: &str) -> Numeric {
        Numeric::parse(text).expect("a valid numeric")
    }

    #[test]
    fn numerics_take_postgresql_output_form() {
        for (given, shown) in [
            ("1", "1"),
            ("+1.50", "1.50"),
            ("-0.0", "0.0"),
            ("007", "7"),
            (".5", "0.5"),
            ("5.", "5"),
            ("1e3", "1000"),
            ("1.25e1", "12.5"),
            ("12.5e-3", "0.0125"),
            ("nan", "NaN"),
            ("-inf", "-Infinity"),
            ("Infinity", "Infinity"),
        ] {
            assert_eq!(numeric(given).as_str(), shown, "{given}");
        }
        for bad in ["", ".", "-", "1e", "1.2.3", "0x10", "1_000", "-nan", "e5", "--1"] {
            assert_eq!(Numeric::parse(bad), Err(NumericError::Syntax), "{bad}");
        }
        assert_eq!(Numeric::parse("1e200000"), Err(NumericError::Overflow));
    }

    #[test]
    fn numerics_order_by_value_not_by_text() {
        let ordered = ["-Infinity", "-10", "-9.5", "-9.49", "0", "0.001", "1", "2", "10", "10.5", "Infinity", "NaN"];
        for pair in ordered.windows(2) {
            assert_eq!(Numeric::compare(pair[0], pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(Numeric::compare(pair[1], pair[0]), Ordering::Greater, "{pair:?}");
        }
        assert_eq!(Numeric::compare("1.0", "1.000"), Ordering::Equal);
        assert_ne!(numeric("1.0"), numeric("1.000"));
    }

    #[test]
    fn a_nan_equals_itself_and_zero_keeps_its_sign() {
        assert_eq!(Value::Float(f64::NAN), Value::Float(f64::NAN));
        assert_ne!(Value::Float(0.0), Value::Float(-0.0));
    }

    #[test]
    fn equal_keys_have_equal_bytes() {
        let bytes = |text: &str| key_bytes(&[Value::Numeric(numeric(text))]);
        assert_eq!(bytes("1.0"), bytes("1.00"));
        assert_eq!(bytes("0.0"), bytes("0"));
        assert_ne!(bytes("10"), bytes("1"));
        assert_eq!(key_bytes(&[Value::Float(-0.0)]), key_bytes(&[Value::Float(0.0)]));
        let interval = |months, days| Value::Interval(Interval::new(months, days, 0));
        assert_eq!(key_bytes(&[interval(1, 0)]), key_bytes(&[interval(0, 30)]));
        let array = |text: &str| key_bytes(&[Value::Array(vec![Value::Numeric(numeric(text))])]);
        assert_eq!(array("1.0"), array("1"));
    }

    /// A shard that stores texts and one that does not write the same bytes.
    #[test]
    fn stored_texts_encode_as_their_values() {
        let members = vec![Value::Int(1), Value::Null];
        for (ty, text, value) in [
            (DataType::Interval, "1 mon -00:00:01", Value::Interval(Interval::new(1, 0, -1_000_000))),
            (DataType::Array(Element::Int4), "{1,NULL}", Value::Array(members)),
        ] {
            let (mut stored, mut direct) = (Encoder::default(), Encoder::default());
            stored.text_of(ty, text.as_bytes());
            direct.value(&value);
            assert_eq!(stored.bytes, direct.bytes);
        }
    }

    pub(crate) fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            4 => any_scalar(),
            1 => prop::collection::vec(any_scalar(), 0..4).prop_map(Value::Array),
        ]
    }

    fn any_scalar() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Int),
            any::<u64>().prop_map(|bits| Value::Float(f64::from_bits(bits))),
            "-?[0-9]{1,30}(\\.[0-9]{1,20})?".prop_map(|text| Value::Numeric(numeric(&text))),
            any::<String>().prop_map(Value::Text),
            any::<Vec<u8>>().prop_map(Value::Bytes),
            any::<i32>().prop_map(Value::Date),
            (0i64..=86_400_000_000).prop_map(Value::Time),
            any::<i64>().prop_map(Value::Timestamp),
            any::<i64>().prop_map(Value::TimestampTz),
            any::<[u8; 16]>().prop_map(Value::Uuid),
            any::<String>().prop_map(Value::Json),
            (any::<i32>(), any::<i32>(), any::<i64>()).prop_map(|(m, d, t)| Value::Interval(Interval::new(m, d, t))),
        ]
    }

    proptest! {
        #[test]
        fn rows_survive_encoding(row in prop::collection::vec(any_value(), 0..12)) {
            let mut encoder = Encoder::default();
            encoder.row(&row);
            let mut decoder = Decoder::new(&encoder.bytes);
            prop_assert_eq!(decoder.row(), Ok(row));
            prop_assert!(decoder.is_empty());
        }

        #[test]
        fn values_survive_json(value in any_value()) {
            let text = serde_json::to_string(&value).expect("a value");
            prop_assert_eq!(serde_json::from_str::<Value>(&text).expect("a value"), value);
        }

        #[test]
        fn decoding_any_bytes_never_panics(bytes in any::<Vec<u8>>()) {
            let _ = Decoder::new(&bytes).row();
        }

        #[test]
        fn a_truncated_row_is_refused(row in prop::collection::vec(any_value(), 1..6), cut in any::<prop::sample::Index>()) {
            let mut encoder = Encoder::default();
            encoder.row(&row);
            let cut = cut.index(encoder.bytes.len());
            prop_assert_eq!(Decoder::new(&encoder.bytes[..cut]).row(), Err(Damaged));
        }

        #[test]
        fn numeric_order_agrees_with_integers(a in any::<i64>(), b in any::<i64>()) {
            prop_assert_eq!(Numeric::compare(&a.to_string(), &b.to_string()), a.cmp(&b));
        }
    }
}
