//! Random values of each type, and the values at the edges of each.
//!
//! Everything comes from a seed that is the same in each run; `ISLES_TEST_ROUNDS` multiplies the rounds.

use crate::given::numeric;
use isles_kernel::interval::Interval;
use isles_kernel::value::{DataType, Numeric, Value};
use isles_sim::rng::Rng;

/// PostgreSQL's range of dates: 4713-11-24 BC to 5874897-12-31, in days from 2000-01-01.
pub(crate) const DATES: (i32, i32) = (-2_451_545, 2_145_031_948);
/// PostgreSQL's range of timestamps: 4713-11-24 BC to 294276-12-31, in microseconds from 2000-01-01.
pub(crate) const TIMESTAMPS: (i64, i64) = (-211_813_488_000_000_000, 9_223_371_331_199_999_999);

/// How often a randomized test goes round.
pub(crate) fn rounds(usual: usize) -> usize {
    let factor = std::env::var("ISLES_TEST_ROUNDS").ok().and_then(|text| text.parse().ok());
    usual * factor.unwrap_or(1)
}

pub(crate) fn int(rng: &mut Rng, low: i64, high: i64) -> i64 {
    low.wrapping_add(rng.below(high.wrapping_sub(low) as u64) as i64)
}

/// The edges of a type. Each must come back as it went in.
pub(crate) fn edges(ty: DataType) -> Vec<Value> {
    let ints = |values: &[i64]| values.iter().map(|n| Value::Int(*n)).collect::<Vec<_>>();
    let texts = |values: &[&str]| values.iter().map(|text| Value::text(*text)).collect::<Vec<_>>();
    let mut edges = match ty {
        DataType::Bool => vec![Value::Bool(false), Value::Bool(true)],
        DataType::Int2 => ints(&[0, 1, -1, i64::from(i16::MIN), i64::from(i16::MAX)]),
        DataType::Int4 => ints(&[0, 1, -1, i64::from(i32::MIN), i64::from(i32::MAX)]),
        DataType::Int8 => ints(&[0, 1, -1, i64::MIN, i64::MAX, (1 << 53) + 1]),
        DataType::Float4 => {
            let floats = [0.0, -0.0, 1.5, f32::MIN_POSITIVE, f32::MAX, f32::MIN, 1e-45, f32::NAN, f32::INFINITY];
            floats.iter().chain(&[f32::NEG_INFINITY]).map(|x| Value::Float(f64::from(*x))).collect()
        }
        DataType::Float8 => {
            let floats = [0.0, -0.0, 0.1, 5e-324, f64::MAX, f64::MIN, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e15];
            floats.iter().map(|x| Value::Float(*x)).collect()
        }
        DataType::Numeric => {
            let long = format!("-{}.{}", "9876543210".repeat(10), "0123456789".repeat(10));
            let small = ["0", "0.00", "1", "1.0", "1.00", "-1.50", "NaN", "Infinity", "-Infinity", "1e-200", "1e200"];
            small.iter().copied().chain([long.as_str()]).map(numeric).collect()
        }
        DataType::Text => {
            let mut edges = texts(&[
                "",
                " ",
                "'",
                "\"",
                "\\",
                "a'b\"c",
                "null",
                "👩‍👩‍👧",
                "e\u{301}",
                "\u{10FFFF}",
                "007",
                "1e3",
                "$1 ?",
            ]);
            edges.push(Value::text("é".repeat(1 << 19)));
            edges
        }
        DataType::Bytes => {
            let whole: Vec<u8> = (0..=255).collect();
            vec![Value::Bytes(vec![]), Value::Bytes(vec![0]), Value::Bytes(whole), Value::Bytes(vec![0xff; 1 << 20])]
        }
        DataType::Date => [0, 1, -1, DATES.0, DATES.1, i32::MIN, i32::MAX].map(Value::Date).to_vec(),
        DataType::Time => [0, 1, 43_200_000_000, 86_399_999_999, 86_400_000_000].map(Value::Time).to_vec(),
        DataType::Timestamp => {
            [0, 1, -1, TIMESTAMPS.0, TIMESTAMPS.1, i64::MIN, i64::MAX].map(Value::Timestamp).to_vec()
        }
        DataType::TimestampTz => {
            [0, 1, -1, TIMESTAMPS.0, TIMESTAMPS.1, i64::MIN, i64::MAX].map(Value::TimestampTz).to_vec()
        }
        DataType::Uuid => vec![Value::Uuid([0; 16]), Value::Uuid([0xff; 16]), Value::Uuid(*b"0123456789abcdef")],
        DataType::Json => {
            let texts =
                ["null", "0", "\"\"", " {\"b\" : 1,  \"a\":null, \"b\": 2.50}\n", "[1e400, \"\\u00e9\", {}]", "\"é\""];
            texts.iter().map(|text| Value::Json(text.to_string())).collect()
        }
        DataType::Interval => {
            let (most, least) =
                (Interval::new(i32::MAX, i32::MAX, i64::MAX), Interval::new(i32::MIN, i32::MIN, i64::MIN));
            let small = [(0, 0, 0), (1, 0, 0), (0, 30, 0), (0, 0, 1), (0, 0, -1), (-13, 2, -500_000), (1, -1, 1)];
            let small = small.into_iter().map(|(months, days, micros)| Interval::new(months, days, micros));
            small.chain([most, least]).map(Value::Interval).collect()
        }
        DataType::Array(element) => {
            // A megabyte once is enough, and its quoting is that of the small ones.
            let members = edges(element.into()).into_iter().filter(|edge| edge.weight() < 1_000).collect();
            vec![Value::Array(vec![]), Value::Array(vec![Value::Null]), Value::Array(members)]
        }
    };
    edges.push(Value::Null);
    edges
}

/// A random value of a type, never null.
pub(crate) fn value(rng: &mut Rng, ty: DataType) -> Value {
    match ty {
        DataType::Bool => Value::Bool(rng.chance(1, 2)),
        DataType::Int2 => Value::Int(i64::from(rng.bits() as i16)),
        DataType::Int4 => Value::Int(i64::from(rng.bits() as i32)),
        DataType::Int8 => Value::Int(rng.bits() as i64),
        DataType::Float4 => Value::Float(f64::from(finite(rng, |bits| f32::from_bits(bits as u32), f32::is_nan))),
        DataType::Float8 => Value::Float(finite(rng, f64::from_bits, f64::is_nan)),
        DataType::Numeric => random_numeric(rng),
        DataType::Text => Value::Text(text(rng, 20)),
        DataType::Bytes => Value::Bytes((0..rng.below(30)).map(|_| rng.bits() as u8).collect()),
        DataType::Date => Value::Date(int(rng, i64::from(DATES.0), i64::from(DATES.1)) as i32),
        DataType::Time => Value::Time(int(rng, 0, 86_400_000_001)),
        DataType::Timestamp => Value::Timestamp(int(rng, TIMESTAMPS.0, TIMESTAMPS.1)),
        DataType::TimestampTz => Value::TimestampTz(int(rng, TIMESTAMPS.0, TIMESTAMPS.1)),
        DataType::Uuid => Value::Uuid((u128::from(rng.bits()) << 64 | u128::from(rng.bits())).to_be_bytes()),
        DataType::Json => Value::Json(serde_json::to_string(&text(rng, 10)).expect("a text is json")),
        DataType::Interval => {
            let small = |rng: &mut Rng| rng.bits() as i32 >> rng.below(32);
            Value::Interval(Interval::new(small(rng), small(rng), rng.bits() as i64 >> rng.below(64)))
        }
        DataType::Array(element) => {
            let member = |rng: &mut Rng| if rng.chance(1, 8) { Value::Null } else { value(rng, element.into()) };
            Value::Array((0..rng.below(5)).map(|_| member(rng)).collect())
        }
    }
}

/// Bits that are a number. The bits of a NaN beyond its being one are nobody's to keep.
fn finite<T: Copy>(rng: &mut Rng, from_bits: impl Fn(u64) -> T, is_nan: impl Fn(T) -> bool) -> T {
    loop {
        let number = from_bits(rng.bits());
        if !is_nan(number) {
            return number;
        }
    }
}

fn random_numeric(rng: &mut Rng) -> Value {
    let digits =
        |rng: &mut Rng, count: u64| (0..count).map(|_| char::from(b'0' + rng.below(10) as u8)).collect::<String>();
    let sign = if rng.chance(1, 2) { "-" } else { "" };
    let (whole, part) = (rng.range(1..40), rng.range(0..40));
    let (whole, part) = (digits(rng, whole), digits(rng, part));
    numeric(&format!("{sign}{whole}.{part}"))
}

/// Letters of one to four bytes, and characters that SQL gives a meaning.
pub(crate) fn text(rng: &mut Rng, longest: u64) -> String {
    const LETTERS: [char; 16] =
        ['a', 'A', 'z', 'Z', '0', '\'', '"', '\\', ' ', '\n', '%', 'é', '\u{301}', '日', '😀', '\u{7f}'];
    (0..rng.below(longest + 1)).map(|_| *rng.pick(&LETTERS)).collect()
}

/// The types that can be in a key.
pub(crate) fn ordered() -> impl Iterator<Item = DataType> {
    DataType::ALL.into_iter().filter(|ty| !matches!(ty, DataType::Json | DataType::Array(_)))
}

/// Keys of a type, no two of them equal to a database, in the order that both engines have.
pub(crate) fn keys(rng: &mut Rng, ty: DataType, count: usize) -> Vec<Value> {
    let random = (0..count).map(|_| value(rng, ty)).collect::<Vec<_>>();
    let short = |value: &Value| !value.is_null() && value.weight() < 1_000;
    let mut keys: Vec<Value> = edges(ty).into_iter().chain(random).filter(short).collect();
    keys.sort_by(compare);
    keys.dedup_by(|a, b| compare(a, b).is_eq());
    keys
}

/// PostgreSQL's order of values of one type, text by bytes.
pub(crate) fn compare(a: &Value, b: &Value) -> std::cmp::Ordering {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan())),
        (Value::Numeric(a), Value::Numeric(b)) => Numeric::compare(a.as_str(), b.as_str()),
        (Value::Text(a), Value::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
        (Value::Date(a), Value::Date(b)) => a.cmp(b),
        (Value::Time(a), Value::Time(b)) => a.cmp(b),
        (Value::Timestamp(a), Value::Timestamp(b)) | (Value::TimestampTz(a), Value::TimestampTz(b)) => a.cmp(b),
        (Value::Uuid(a), Value::Uuid(b)) => a.cmp(b),
        (Value::Interval(a), Value::Interval(b)) => a.compare(b),
        _ => panic!("{a:?} and {b:?} have no order"),
    }
}
