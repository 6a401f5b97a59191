//! How PostgreSQL writes a declared type, as its `format_type` does.

use super::{Column, SqlType};

/// What a type's modifier says.
enum Modifier {
    None,
    /// The modifier is the length and four more.
    Length,
    PrecisionAndScale,
    /// The digits of a second stand in the middle of the name: `timestamp(3) without time zone`.
    Seconds(&'static str),
    Interval,
    /// The modifier is the length itself.
    Bits,
}

impl SqlType {
    /// The type's name with its modifier; None for a type that no column can have.
    pub fn name(self) -> Option<String> {
        if let Some(element) = element_of(self.oid) {
            return Some(format!("{}[]", SqlType { oid: element, modifier: self.modifier }.name()?));
        }
        let (name, modifier) = named(self.oid)?;
        Some(match modifier {
            _ if self.modifier < 0 => match modifier {
                Modifier::Seconds(zone) => format!("{name}{zone}"),
                _ => name.to_string(),
            },
            Modifier::None => name.to_string(),
            Modifier::Length => format!("{name}({})", self.modifier - 4),
            Modifier::Bits => format!("{name}({})", self.modifier),
            Modifier::PrecisionAndScale => {
                let packed = self.modifier - 4;
                // The scale is signed, in eleven bits.
                let scale = ((packed & 0x7ff) ^ 1024) - 1024;
                format!("{name}({},{scale})", (packed >> 16) & 0xffff)
            }
            Modifier::Seconds(zone) => format!("{name}({}){zone}", self.modifier),
            Modifier::Interval => format!("{name}{}", interval_modifier(self.modifier)),
        })
    }
}

impl Column {
    /// The declared type, as PostgreSQL writes it.
    pub fn type_name(&self) -> String {
        self.sql_type.and_then(SqlType::name).unwrap_or_else(|| self.ty.postgres_name().into())
    }
}

fn named(oid: u32) -> Option<(&'static str, Modifier)> {
    Some(match oid {
        16 => ("boolean", Modifier::None),
        17 => ("bytea", Modifier::None),
        18 => ("\"char\"", Modifier::None),
        19 => ("name", Modifier::None),
        20 => ("bigint", Modifier::None),
        21 => ("smallint", Modifier::None),
        23 => ("integer", Modifier::None),
        25 => ("text", Modifier::None),
        26 => ("oid", Modifier::None),
        28 => ("xid", Modifier::None),
        114 => ("json", Modifier::None),
        700 => ("real", Modifier::None),
        701 => ("double precision", Modifier::None),
        1042 => ("character", Modifier::Length),
        1043 => ("character varying", Modifier::Length),
        1082 => ("date", Modifier::None),
        1083 => ("time", Modifier::Seconds(" without time zone")),
        1114 => ("timestamp", Modifier::Seconds(" without time zone")),
        1184 => ("timestamp", Modifier::Seconds(" with time zone")),
        1186 => ("interval", Modifier::Interval),
        1560 => ("bit", Modifier::Bits),
        1562 => ("bit varying", Modifier::Bits),
        1700 => ("numeric", Modifier::PrecisionAndScale),
        2205 => ("regclass", Modifier::None),
        2206 => ("regtype", Modifier::None),
        2950 => ("uuid", Modifier::None),
        3802 => ("jsonb", Modifier::None),
        _ => return None,
    })
}

/// The element type of an array type.
fn element_of(oid: u32) -> Option<u32> {
    Some(match oid {
        1000 => 16,
        1001 => 17,
        1002 => 18,
        1003 => 19,
        1016 => 20,
        1005 => 21,
        1007 => 23,
        1009 => 25,
        1028 => 26,
        199 => 114,
        1021 => 700,
        1022 => 701,
        1014 => 1042,
        1015 => 1043,
        1182 => 1082,
        1183 => 1083,
        1115 => 1114,
        1185 => 1184,
        1187 => 1186,
        1231 => 1700,
        2951 => 2950,
        3807 => 3802,
        _ => return None,
    })
}

/// An interval's modifier has its fields in the upper half and the digits of a second in the lower.
fn interval_modifier(modifier: i32) -> String {
    const FULL_RANGE: i32 = 0x7fff;
    const FULL_PRECISION: i32 = 0xffff;
    const YEAR: i32 = 1 << 2;
    const MONTH: i32 = 1 << 1;
    const DAY: i32 = 1 << 3;
    const HOUR: i32 = 1 << 10;
    const MINUTE: i32 = 1 << 11;
    const SECOND: i32 = 1 << 12;
    let (range, precision) = ((modifier >> 16) & 0x7fff, modifier & 0xffff);
    let fields = match range {
        FULL_RANGE => "",
        YEAR => " year",
        MONTH => " month",
        DAY => " day",
        HOUR => " hour",
        MINUTE => " minute",
        SECOND => " second",
        r if r == YEAR | MONTH => " year to month",
        r if r == DAY | HOUR => " day to hour",
        r if r == DAY | HOUR | MINUTE => " day to minute",
        r if r == DAY | HOUR | MINUTE | SECOND => " day to second",
        r if r == HOUR | MINUTE => " hour to minute",
        r if r == HOUR | MINUTE | SECOND => " hour to second",
        r if r == MINUTE | SECOND => " minute to second",
        _ => "",
    };
    match precision {
        FULL_PRECISION => fields.to_string(),
        digits => format!("{fields}({digits})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(oid: u32, modifier: i32) -> String {
        SqlType { oid, modifier }.name().expect("a type")
    }

    #[test]
    fn a_type_is_written_as_postgresql_writes_it() {
        assert_eq!(name(1043, 24), "character varying(20)");
        assert_eq!(name(1043, -1), "character varying");
        assert_eq!(name(1042, 5), "character(1)");
        assert_eq!(name(1700, ((10 << 16) | 2) + 4), "numeric(10,2)");
        assert_eq!(name(1700, ((3 << 16) | (0x7ff & -2)) + 4), "numeric(3,-2)");
        assert_eq!(name(1114, 3), "timestamp(3) without time zone");
        assert_eq!(name(1184, -1), "timestamp with time zone");
        assert_eq!(name(1186, (0x7fff << 16) | 3), "interval(3)");
        assert_eq!(name(1186, (4 << 16) | 0xffff), "interval year");
        assert_eq!(name(1015, 24), "character varying(20)[]");
        assert_eq!(SqlType { oid: 2249, modifier: -1 }.name(), None);
    }
}
