//! What the tables of PostgreSQL's answers do not show: rules of this module.

use super::*;
use isles_kernel::value::{DataType, Numeric};
use proptest::prelude::*;

fn any_of(ty: Oid) -> BoxedStrategy<Value> {
    let interval = (any::<i32>(), any::<i32>(), any::<i64>());
    match carrier(ty) {
        Some(DataType::Bool) => any::<bool>().prop_map(Value::Bool).boxed(),
        Some(DataType::Int4) => any::<i32>().prop_map(|n| Value::Int(n.into())).boxed(),
        Some(DataType::Int8) => any::<i64>().prop_map(Value::Int).boxed(),
        Some(DataType::Float8) => any::<f64>().prop_map(Value::Float).boxed(),
        Some(DataType::Float4) => any::<f32>().prop_map(|x| Value::Float(x.into())).boxed(),
        Some(DataType::Numeric) => "-?[0-9]{1,30}(\\.[0-9]{1,20})?"
            .prop_map(|text| Value::Numeric(Numeric::parse(&text).expect("a numeric")))
            .boxed(),
        Some(DataType::Text) => "[^\0]{0,20}".prop_map(Value::Text).boxed(),
        Some(DataType::Bytes) => any::<Vec<u8>>().prop_map(Value::Bytes).boxed(),
        Some(DataType::Date) => DATES.prop_map(Value::Date).boxed(),
        Some(DataType::Time) => (0i64..=86_400_000_000).prop_map(Value::Time).boxed(),
        Some(DataType::Timestamp) => TIMESTAMPS.prop_map(Value::Timestamp).boxed(),
        Some(DataType::TimestampTz) => TIMESTAMPS.prop_map(Value::TimestampTz).boxed(),
        Some(DataType::Uuid) => any::<[u8; 16]>().prop_map(Value::Uuid).boxed(),
        Some(DataType::Interval) => interval
            .prop_map(|(months, days, micros)| {
                Value::Interval(isles_kernel::interval::Interval::new(months, days, micros))
            })
            .boxed(),
        _ => Just(Value::Array(vec![Value::Int(1), Value::Null])).boxed(),
    }
}

const TYPES: [Oid; 15] = [
    BOOL,
    INT4,
    INT8,
    FLOAT4,
    FLOAT8,
    NUMERIC,
    TEXT,
    BYTEA,
    DATE,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    INTERVAL,
    INT4_ARRAY,
];

fn typed() -> impl Strategy<Value = (Oid, Value)> {
    prop::sample::select(&TYPES[..]).prop_flat_map(|ty| any_of(ty).prop_map(move |value| (ty, value)))
}

proptest! {
    #[test]
    fn what_is_written_is_read((ty, value) in typed()) {
        let settings = Settings::default();
        let shown = text_of(&value, ty, &settings);
        prop_assert_eq!(input(&shown, Type::of(ty), &settings), Ok(value.clone()), "{}", shown);
        let mut bytes = Vec::new();
        binary_out(&value, ty, &mut bytes);
        prop_assert_eq!(binary_in(&bytes, ty), Ok(value));
    }

    #[test]
    fn no_text_makes_a_reader_panic(text in "[^\0]{0,40}", ty in prop::sample::select(&TYPES[..])) {
        let _ = input(&text, Type::of(ty), &Settings::default());
        let _ = binary_in(text.as_bytes(), ty);
    }

    #[test]
    fn no_date_makes_a_reader_panic(text in "[0-9a-zP:+./ -]{0,24}") {
        for ty in [DATE, TIME, TIMESTAMPTZ, INTERVAL] {
            let _ = input(&text, Type::of(ty), &Settings::default());
        }
    }
}

#[test]
fn an_assignment_cuts_only_spaces() {
    let three = Type::with(VARCHAR, 7);
    assert_eq!(apply_modifier(Value::text("abcd"), three, true), Ok(Value::text("abc")));
    assert_eq!(apply_modifier(Value::text("abc  "), three, false), Ok(Value::text("abc")));
    let error = apply_modifier(Value::text("abcd"), three, false).unwrap_err();
    assert_eq!((error.sqlstate, error.message.as_str()), ("22001", "value too long for type character varying(3)"));
    assert_eq!(apply_modifier(Value::text("a"), Type::with(BPCHAR, 7), false), Ok(Value::text("a  ")));
}

#[test]
fn a_setting_is_read_once_and_shown_as_postgresql_shows_it() {
    let mut settings = Settings::default();
    assert_eq!(settings.set("DateStyle", "sql, dmy"), Ok(true));
    assert_eq!(settings.date_style.shown(), "SQL, DMY");
    assert_eq!(settings.set("search_path", "x"), Ok(false));
    assert_eq!(settings.set("TimeZone", "nowhere").unwrap_err().sqlstate, "22023");
}
