//! The key of a row in a global index: bytes that sort as the values do.
//!
//! ```text
//! key   = part …                       as many as the index has columns
//! part  = 01                           null
//!       | tag payload                  every payload ends by itself, so no key runs into the next part
//! ```
//!
//! Equal values have equal keys, whatever their width or scale: 5 of an `int4` and of an `int8`, 1.5 and 1.50, 0 and
//! -0, `1 mon` and `30 days`. They are made from the *stored* value; whoever looks for a value converts it to the
//! column's type first, as the statement itself does.
//!
//! Texts, bytes and digits are cut after [`MAX_PART_BYTES`]: two values that agree so far share a key. Then an index finds a
//! bucket too many, which the statement itself notices; it never misses one.
//!
//! Invariants:
//!   * a < b as PostgreSQL compares them  ⇒  key(a) ≤ key(b), and equal only if a and b agree in their first bytes
//!   * no part is a prefix of another

use crate::value::Value;
use std::ops::Bound;
use xxhash_rust::xxh3::xxh3_64;

/// How much of a text or of bytes is in a key.
pub const MAX_PART_BYTES: usize = 512;

/// Below every part: entries that are no keys begin with this.
pub const NO_KEY: u8 = 0x00;
const NULL: u8 = 0x01;
const BOOL: u8 = 0x10;
const INT: u8 = 0x11;
const FLOAT: u8 = 0x12;
const NUMERIC: u8 = 0x13;
const TEXT: u8 = 0x14;
const BYTES: u8 = 0x15;
const DATE: u8 = 0x16;
const TIME: u8 = 0x17;
const TIMESTAMP: u8 = 0x18;
const TIMESTAMP_TZ: u8 = 0x19;
const UUID: u8 = 0x1a;
const INTERVAL: u8 = 0x1b;

/// A whole key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IndexKey(pub Vec<u8>);

/// Keys from `low` up to, and without, `high`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyRange {
    pub low: Vec<u8>,
    /// None: to the end.
    pub high: Option<Vec<u8>>,
}

/// The value of one column, and what must be known of its type.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub value: &'a Value,
    /// A `character(n)`: blanks at its end do not count.
    pub padded: bool,
}

/// A value of a type that has no order of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("values of this type cannot be in a global index")]
pub struct NoOrder;

impl IndexKey {
    pub fn of<'a>(parts: impl IntoIterator<Item = Part<'a>>) -> Result<IndexKey, NoOrder> {
        let mut out = Vec::with_capacity(32);
        parts.into_iter().try_for_each(|part| push(&mut out, part))?;
        Ok(IndexKey(out))
    }

    /// Whether any part is null.
    pub fn has_null(&self) -> bool {
        let mut rest = self.0.as_slice();
        while let Some(part) = first_part(rest) {
            if part[0] == NULL {
                return true;
            }
            rest = &rest[part.len()..];
        }
        false
    }

    /// Whether values that differ may have this key: it has only the beginnings of some.
    pub fn is_cut(&self) -> bool {
        self.0.len() > MAX_PART_BYTES
    }

    /// The bucket of the entries with this key, or of all whose first part is that of this one.
    pub fn entry_bucket(&self, buckets: u32) -> u32 {
        bucket_of(&self.0, buckets)
    }

    /// All keys that begin with the parts of this one.
    pub fn within(self) -> KeyRange {
        let high = successor(&self.0);
        KeyRange { low: self.0, high }
    }

    /// Keys that begin with the parts of this one, with a next part between the bounds. Nulls are not between any. The
    /// range may hold more than it must: a cut value does not say on which side of a bound it is.
    pub fn between(&self, low: Bound<Part<'_>>, high: Bound<Part<'_>>) -> Result<KeyRange, NoOrder> {
        let bound = |part: Part<'_>| -> Result<Vec<u8>, NoOrder> {
            let mut out = self.0.clone();
            push_open(&mut out, part)?;
            Ok(out)
        };
        let after_null = || {
            let mut out = self.0.clone();
            out.push(NULL + 1);
            out
        };
        let low = match low {
            Bound::Included(part) | Bound::Excluded(part) => bound(part)?,
            Bound::Unbounded => after_null(),
        };
        let high = match high {
            Bound::Included(part) | Bound::Excluded(part) => successor(&bound(part)?),
            Bound::Unbounded => successor(&self.0),
        };
        Ok(KeyRange { low, high })
    }

    /// Keys that begin with the parts of this one, with a next part that is a text beginning with `prefix`.
    pub fn starting(&self, prefix: &str) -> KeyRange {
        let mut low = self.0.clone();
        low.push(TEXT);
        push_bytes(&mut low, cut(prefix.as_bytes()));
        let high = successor(&low);
        KeyRange { low, high }
    }
}

impl KeyRange {
    pub fn contains(&self, key: &[u8]) -> bool {
        self.low.as_slice() <= key && self.high.as_ref().is_none_or(|high| key < high.as_slice())
    }

    /// The bucket of all its keys; None if their first parts differ.
    pub fn entry_bucket(&self, buckets: u32) -> Option<u32> {
        let first = first_part(&self.low)?;
        let within = first.len() < self.low.len() || self.high == successor(&self.low);
        let same =
            self.high.as_ref().is_some_and(|high| high.starts_with(first) || Some(high) == successor(first).as_ref());
        (within && same).then(|| bucket_of(first, buckets))
    }
}

/// By the first part alone, so that all keys that share it are in one place. Fixed for ever: entries lie where it says.
fn bucket_of(key: &[u8], buckets: u32) -> u32 {
    let first = first_part(key).unwrap_or(key);
    (xxh3_64(first) % u64::from(buckets)) as u32
}

/// The first part of a key; None if it is not whole.
fn first_part(key: &[u8]) -> Option<&[u8]> {
    let fixed = |len: usize| key.get(..=len);
    match *key.first()? {
        NULL => fixed(0),
        BOOL => fixed(1),
        DATE => fixed(4),
        INT | FLOAT | TIME | TIMESTAMP | TIMESTAMP_TZ => fixed(8),
        UUID | INTERVAL => fixed(16),
        TEXT | BYTES => {
            let mut at = 1;
            loop {
                match key.get(at..at + 2)? {
                    [0, 0] => return key.get(..at + 2),
                    [0, _] => at += 2,
                    _ => at += 1,
                }
            }
        }
        NUMERIC => match *key.get(1)? {
            POSITIVE | NEGATIVE => {
                let end = if key[1] == POSITIVE { 0x00 } else { 0xff };
                let digits = key.get(6..)?.iter().position(|byte| *byte == end)?;
                key.get(..6 + digits + 1)
            }
            _ => fixed(1),
        },
        _ => None,
    }
}

/// The first bytes after all that begin with these; None if there are none.
fn successor(bytes: &[u8]) -> Option<Vec<u8>> {
    let keep = bytes.iter().rposition(|byte| *byte != 0xff)?;
    let mut next = bytes[..=keep].to_vec();
    next[keep] += 1;
    Some(next)
}

fn push(out: &mut Vec<u8>, part: Part<'_>) -> Result<(), NoOrder> {
    push_open(out, part)?;
    if matches!(part.value, Value::Text(_) | Value::Bytes(_)) {
        out.extend([0, 0]);
    }
    Ok(())
}

/// A part without the end of a text or of bytes: what it is a beginning of.
fn push_open(out: &mut Vec<u8>, part: Part<'_>) -> Result<(), NoOrder> {
    match part.value {
        Value::Null => out.push(NULL),
        Value::Bool(value) => out.extend([BOOL, u8::from(*value)]),
        Value::Int(n) => push_i64(out, INT, *n),
        Value::Float(x) => {
            out.push(FLOAT);
            out.extend(float_bits(*x).to_be_bytes());
        }
        Value::Numeric(n) => {
            out.push(NUMERIC);
            push_numeric(out, n.as_str());
        }
        Value::Text(text) => {
            let text = if part.padded { text.trim_end_matches(' ') } else { text };
            out.push(TEXT);
            push_bytes(out, cut(text.as_bytes()));
        }
        Value::Bytes(bytes) => {
            out.push(BYTES);
            push_bytes(out, cut(bytes));
        }
        Value::Date(days) => {
            out.push(DATE);
            out.extend(((*days as u32) ^ (1 << 31)).to_be_bytes());
        }
        Value::Time(micros) => push_i64(out, TIME, *micros),
        Value::Timestamp(micros) => push_i64(out, TIMESTAMP, *micros),
        Value::TimestampTz(micros) => push_i64(out, TIMESTAMP_TZ, *micros),
        Value::Uuid(bytes) => {
            out.push(UUID);
            out.extend(bytes);
        }
        Value::Interval(interval) => {
            out.push(INTERVAL);
            out.extend(((interval.span() as u128) ^ (1 << 127)).to_be_bytes());
        }
        Value::Json(_) | Value::Array(_) => return Err(NoOrder),
    }
    Ok(())
}

fn push_i64(out: &mut Vec<u8>, tag: u8, n: i64) {
    out.push(tag);
    out.extend(((n as u64) ^ (1 << 63)).to_be_bytes());
}

/// Zero bytes are followed by one that is not: the end is two of them.
fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        out.push(*byte);
        if *byte == 0 {
            out.push(0xff);
        }
    }
}

fn cut(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(MAX_PART_BYTES)]
}

/// Bits that sort as the numbers do; -0 is 0, and every NaN is one, above all others.
fn float_bits(x: f64) -> u64 {
    if x.is_nan() {
        return u64::MAX;
    }
    let bits = (x + 0.0).to_bits();
    if bits >> 63 == 1 { !bits } else { bits | (1 << 63) }
}

const MINUS_INFINITY: u8 = 0x10;
const NEGATIVE: u8 = 0x20;
const ZERO: u8 = 0x30;
const POSITIVE: u8 = 0x40;
const INFINITY: u8 = 0x50;
const NAN: u8 = 0x60;

/// `sign exponent digits end`: the exponent is where the point is, counted from before the first digit that is not
/// zero, and digits are one more than they are. All of a negative number is turned over.
fn push_numeric(out: &mut Vec<u8>, text: &str) {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    match unsigned {
        "NaN" => return out.push(NAN),
        "Infinity" => return out.push(if negative { MINUS_INFINITY } else { INFINITY }),
        _ => {}
    }
    let (integer, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let digits: Vec<u8> = integer.bytes().chain(fraction.bytes()).collect();
    let Some(first) = digits.iter().position(|digit| *digit != b'0') else { return out.push(ZERO) };
    let last = digits.iter().rposition(|digit| *digit != b'0').unwrap_or(first).min(first + MAX_PART_BYTES - 1);
    let exponent = integer.len() as i64 - first as i64;
    // Numerics have at most some ten thousand digits on either side of the point.
    let exponent = (exponent as i32 as u32) ^ (1 << 31);
    let turn = |byte: u8| if negative { !byte } else { byte };
    out.push(if negative { NEGATIVE } else { POSITIVE });
    out.extend(exponent.to_be_bytes().map(turn));
    out.extend(digits[first..=last].iter().map(|digit| turn(digit - b'0' + 1)));
    out.push(turn(0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interval::Interval;
    use crate::value::Numeric;
    use proptest::prelude::*;

    fn key(values: &[Value]) -> IndexKey {
        IndexKey::of(values.iter().map(|value| Part { value, padded: false })).expect("all have an order")
    }

    fn number(text: &str) -> Value {
        Value::Numeric(Numeric::parse(text).expect("valid"))
    }

    fn sorted(values: Vec<Value>) {
        for pair in values.windows(2) {
            assert!(key(&pair[..1]) < key(&pair[1..]), "{pair:?}");
        }
    }

    #[test]
    fn a_null_is_found_in_any_part() {
        assert!(!key(&[Value::text("a\0b"), number("-1.5"), Value::Bool(false)]).has_null());
        for at in 0..3 {
            let mut values = [Value::text("a"), number("1.5"), Value::Int(7)];
            values[at] = Value::Null;
            assert!(key(&values).has_null(), "{values:?}");
        }
    }

    /// The executed failures E and RUN 4: the empty string, null, '007', true, 2^53+1 and blobs are keys of their own.
    #[test]
    fn values_that_differ_have_keys_that_differ() {
        let all = [
            Value::Null,
            Value::text(""),
            Value::text("007"),
            Value::text("7"),
            Value::Int(7),
            number("7"),
            Value::Float(7.0),
            Value::Bool(true),
            Value::Int(1),
            Value::Int((1 << 53) + 1),
            Value::Int(1 << 53),
            Value::Bytes(vec![]),
            Value::Bytes(vec![0]),
            Value::Bytes(vec![0, 0]),
            Value::text("a"),
            Value::text("A"),
            Value::text("a "),
        ];
        for (at, a) in all.iter().enumerate() {
            for b in &all[at + 1..] {
                assert_ne!(key(std::slice::from_ref(a)), key(std::slice::from_ref(b)), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn equal_values_have_equal_keys() {
        assert_eq!(key(&[number("1.50")]), key(&[number("1.5")]));
        assert_eq!(key(&[number("-0.0")]), key(&[number("0")]));
        assert_eq!(key(&[Value::Float(-0.0)]), key(&[Value::Float(0.0)]));
        assert_eq!(key(&[Value::Float(f64::NAN)]), key(&[Value::Float(-f64::NAN)]));
        let (month, days) = (Interval { months: 1, days: 0, micros: 0 }, Interval { months: 0, days: 30, micros: 0 });
        assert_eq!(key(&[Value::Interval(month)]), key(&[Value::Interval(days)]));
        let padded = |text: &str| {
            let value = Value::text(text);
            IndexKey::of([Part { value: &value, padded: true }]).expect("a text")
        };
        assert_eq!(padded("a  "), padded("a"));
    }

    #[test]
    fn keys_sort_as_values_do() {
        sorted(
            ["-Infinity", "-100", "-99.5", "-1", "-0.01", "0", "0.001", "0.01", "1", "1.01", "2", "10", "11", "1e20"]
                .map(number)
                .to_vec(),
        );
        sorted(vec![number("Infinity"), number("NaN")]);
        sorted(
            [f64::NEG_INFINITY, -1e9, -1.0, -1e-9, 0.0, 1e-9, 1.0, f64::INFINITY, f64::NAN].map(Value::Float).to_vec(),
        );
        sorted([i64::MIN, -1, 0, 1, i64::MAX].map(Value::Int).to_vec());
        sorted(["", "\u{1}", "a", "a\u{1}", "aa", "b", "ü"].map(Value::text).to_vec());
        sorted([i32::MIN, -1, 0, 8_000, i32::MAX].map(Value::Date).to_vec());
    }

    #[test]
    fn what_has_no_order_is_refused() {
        for value in [Value::Json("{}".into()), Value::Array(vec![])] {
            assert_eq!(IndexKey::of([Part { value: &value, padded: false }]), Err(NoOrder));
        }
    }

    #[test]
    fn keys_that_share_their_first_part_share_a_bucket() {
        let first = Value::text("us\0x");
        let one = key(&[first.clone(), Value::Int(1)]);
        assert_eq!(one.entry_bucket(64), key(&[first.clone(), Value::Null]).entry_bucket(64));
        assert_eq!(key(std::slice::from_ref(&first)).within().entry_bucket(64), Some(one.entry_bucket(64)));
        let five = Value::Int(5);
        let five = Part { value: &five, padded: false };
        let range = key(&[first]).between(Bound::Excluded(five), Bound::Unbounded).expect("an order");
        assert_eq!(range.entry_bucket(64), Some(one.entry_bucket(64)));
        let anywhere = IndexKey(vec![]).between(Bound::Excluded(five), Bound::Unbounded).expect("an order");
        assert_eq!(anywhere.entry_bucket(64), None);
        assert_eq!(IndexKey(vec![]).starting("us").entry_bucket(64), None);
    }

    #[test]
    fn long_values_share_a_key() {
        let long = |end: &str| Value::text(&("x".repeat(MAX_PART_BYTES) + end));
        assert_eq!(key(&[long("a")]), key(&[long("b")]));
        assert!(key(&[long("a")]).0.len() < MAX_PART_BYTES + 8);
        let (low, high) = (long("b"), long("c"));
        let range = IndexKey(vec![])
            .between(
                Bound::Included(Part { value: &low, padded: false }),
                Bound::Excluded(Part { value: &high, padded: false }),
            )
            .expect("an order");
        assert!(range.contains(&key(&[long("bb")]).0), "a cut value may be on either side of a bound");
    }

    fn ordered() -> impl Strategy<Value = (Value, Value)> {
        prop_oneof![
            any::<(i64, i64)>().prop_map(|(a, b)| (Value::Int(a), Value::Int(b))),
            any::<(String, String)>().prop_map(|(a, b)| (Value::Text(a), Value::Text(b))),
            ("[ab\0]{0,4}", "[ab\0]{0,4}").prop_map(|(a, b)| (Value::Text(a), Value::Text(b))),
            any::<(Vec<u8>, Vec<u8>)>().prop_map(|(a, b)| (Value::Bytes(a), Value::Bytes(b))),
            any::<(f64, f64)>().prop_map(|(a, b)| (Value::Float(a), Value::Float(b))),
            (-99_999i64..99_999, 0u32..6, -99_999i64..99_999, 0u32..6)
                .prop_map(|(a, x, b, y)| { (number(&format!("{a}e-{x}")), number(&format!("{b}e-{y}"))) }),
        ]
    }

    fn compare(a: &Value, b: &Value) -> std::cmp::Ordering {
        match (a, b) {
            (Value::Int(a), Value::Int(b)) => a.cmp(b),
            (Value::Text(a), Value::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
            (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
            (Value::Float(a), Value::Float(b)) => match (a.is_nan(), b.is_nan()) {
                (false, false) => a.partial_cmp(b).expect("neither is NaN"),
                (a, b) => a.cmp(&b),
            },
            (Value::Numeric(a), Value::Numeric(b)) => {
                let exact = |n: &Numeric| (n.as_str().parse::<f64>().expect("a number") * 1e5).round() as i64;
                exact(a).cmp(&exact(b))
            }
            _ => unreachable!("pairs are of one type"),
        }
    }

    proptest! {
        #[test]
        fn the_order_of_keys_is_that_of_values((a, b) in ordered(), rest in any::<i64>()) {
            let (first, second) = (key(std::slice::from_ref(&a)), key(std::slice::from_ref(&b)));
            prop_assert_eq!(first.cmp(&second), compare(&a, &b));
            // What follows in a key of several columns does not change that.
            let (longer, other) = (key(&[a.clone(), Value::Int(rest)]), key(&[b.clone(), Value::Null]));
            if compare(&a, &b).is_ne() {
                prop_assert_eq!(longer.cmp(&other), compare(&a, &b));
            }
            prop_assert!(key(std::slice::from_ref(&a)).within().contains(&longer.0));
            prop_assert_eq!(key(&[b]).within().contains(&longer.0), first == second);
            prop_assert_eq!(first_part(&longer.0), Some(first.0.as_slice()));
        }

        #[test]
        fn a_range_has_all_between_its_bounds((a, b) in ordered(), lead in any::<i64>()) {
            let (low, high) = if compare(&a, &b).is_le() { (a, b) } else { (b, a) };
            let prefix = key(&[Value::Int(lead)]);
            let part = |value| Part { value, padded: false };
            let range = prefix.between(Bound::Included(part(&low)), Bound::Included(part(&high))).expect("an order");
            for value in [&low, &high] {
                let whole = key(&[Value::Int(lead), value.clone()]);
                prop_assert!(range.contains(&whole.0));
            }
            prop_assert!(!range.contains(&key(&[Value::Int(lead), Value::Null]).0));
            let above = prefix.between(Bound::Excluded(part(&low)), Bound::Unbounded).expect("an order");
            let below = prefix.between(Bound::Unbounded, Bound::Included(part(&high))).expect("an order");
            prop_assert!(above.contains(&key(&[Value::Int(lead), high.clone()]).0));
            prop_assert!(below.contains(&key(&[Value::Int(lead), low.clone()]).0));
            prop_assert!(!below.contains(&key(&[Value::Int(lead), Value::Null]).0));
        }
    }
}
