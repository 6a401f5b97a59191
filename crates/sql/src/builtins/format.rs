//! Types as PostgreSQL shows them: `character varying(20)`, `timestamp(3) with time zone`, `numeric(10,2)[]`.

use super::{element_of, type_by_oid};
use crate::types::{self, Oid, Type};

/// `format_type(oid, modifier)`.
pub fn format_type(ty: Type) -> String {
    if let Some(element) = element_of(ty.oid).filter(|_| !is_vector(ty.oid)) {
        return format!("{}[]", format_type(Type::with(element, ty.modifier)));
    }
    if ty.modifier < 0 {
        return match ty.oid {
            types::BPCHAR => "bpchar".into(),
            types::BIT => "\"bit\"".into(),
            oid => type_name(oid),
        };
    }
    with_modifier(ty).unwrap_or_else(|| type_name(ty.oid))
}

/// `format_type(oid, null)`, as messages name types.
pub fn type_name(oid: Oid) -> String {
    match type_by_oid(oid) {
        Some(info) => info.display.into(),
        None if oid.0 == 0 => "-".into(),
        None => "???".into(),
    }
}

/// `int2vector` and `oidvector` are arrays that are shown by their own names.
fn is_vector(oid: Oid) -> bool {
    matches!(oid, types::INT2VECTOR | types::OIDVECTOR)
}

fn with_modifier(ty: Type) -> Option<String> {
    let m = ty.modifier;
    Some(match ty.oid {
        types::BPCHAR => format!("character({})", m - 4),
        types::VARCHAR => format!("character varying({})", m - 4),
        types::BIT => format!("bit({m})"),
        types::VARBIT => format!("bit varying({m})"),
        types::NUMERIC => format!("numeric({},{})", ((m - 4) >> 16) & 0xffff, numeric_scale(m)),
        types::TIME => format!("time({m}) without time zone"),
        types::TIMETZ => format!("time({m}) with time zone"),
        types::TIMESTAMP => format!("timestamp({m}) without time zone"),
        types::TIMESTAMPTZ => format!("timestamp({m}) with time zone"),
        types::INTERVAL => interval(m),
        _ => return None,
    })
}

/// The scale is eleven bits with a sign.
fn numeric_scale(modifier: i32) -> i32 {
    (((modifier - 4) & 0x7ff) ^ 1024) - 1024
}

pub(crate) const MONTH: i32 = 1 << 1;
pub(crate) const YEAR: i32 = 1 << 2;
pub(crate) const DAY: i32 = 1 << 3;
pub(crate) const HOUR: i32 = 1 << 10;
pub(crate) const MINUTE: i32 = 1 << 11;
pub(crate) const SECOND: i32 = 1 << 12;
const FULL_RANGE: i32 = 0x7fff;
const FULL_PRECISION: i32 = 0xffff;

fn interval(modifier: i32) -> String {
    let (fields, precision) = ((modifier >> 16) & 0x7fff, modifier & 0xffff);
    let fields = interval_fields(fields);
    match precision {
        FULL_PRECISION => format!("interval{fields}"),
        _ => format!("interval{fields}({precision})"),
    }
}

fn interval_fields(fields: i32) -> &'static str {
    const YEAR_TO_MONTH: i32 = YEAR | MONTH;
    const DAY_TO_HOUR: i32 = DAY | HOUR;
    const DAY_TO_MINUTE: i32 = DAY | HOUR | MINUTE;
    const DAY_TO_SECOND: i32 = DAY | HOUR | MINUTE | SECOND;
    const HOUR_TO_MINUTE: i32 = HOUR | MINUTE;
    const HOUR_TO_SECOND: i32 = HOUR | MINUTE | SECOND;
    const MINUTE_TO_SECOND: i32 = MINUTE | SECOND;
    match fields {
        YEAR => " year",
        MONTH => " month",
        DAY => " day",
        HOUR => " hour",
        MINUTE => " minute",
        SECOND => " second",
        YEAR_TO_MONTH => " year to month",
        DAY_TO_HOUR => " day to hour",
        DAY_TO_MINUTE => " day to minute",
        DAY_TO_SECOND => " day to second",
        HOUR_TO_MINUTE => " hour to minute",
        HOUR_TO_SECOND => " hour to second",
        MINUTE_TO_SECOND => " minute to second",
        FULL_RANGE => "",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::*;

    #[test]
    fn types_are_shown_as_postgresql_shows_them() {
        let numeric = |precision: i32, scale: i32| ((precision << 16) | (scale & 0x7ff)) + 4;
        for (oid, modifier, shown) in [
            (INT4, -1, "integer"),
            (VARCHAR, 24, "character varying(20)"),
            (VARCHAR, -1, "character varying"),
            (BPCHAR, 9, "character(5)"),
            (BPCHAR, -1, "bpchar"),
            (BPCHAR_ARRAY, 9, "character(5)[]"),
            (CHAR, -1, "\"char\""),
            (BIT, 3, "bit(3)"),
            (BIT, -1, "\"bit\""),
            (NUMERIC, numeric(10, 2), "numeric(10,2)"),
            (NUMERIC, numeric(5, -2), "numeric(5,-2)"),
            (NUMERIC_ARRAY, numeric(10, 2), "numeric(10,2)[]"),
            (TIME, 3, "time(3) without time zone"),
            (TIMESTAMPTZ, 2, "timestamp(2) with time zone"),
            (TIMESTAMPTZ, -1, "timestamp with time zone"),
            (INTERVAL, (YEAR << 16) | 0xffff, "interval year"),
            (INTERVAL, (0x7fff << 16) | 3, "interval(3)"),
            (INTERVAL, ((DAY | HOUR | MINUTE | SECOND) << 16) | 2, "interval day to second(2)"),
            (OIDVECTOR, -1, "oidvector"),
            (Oid(0), -1, "-"),
            (Oid(999_999), -1, "???"),
        ] {
            assert_eq!(format_type(Type::with(oid, modifier)), shown);
        }
        assert_eq!(type_name(BPCHAR), "character");
        assert_eq!(type_name(BIT), "bit");
    }
}
