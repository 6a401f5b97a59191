//! What SQLite does as PostgreSQL does, given our storage forms.
//!
//! Comparing stored values of a type is comparing their storage forms, for most types plainly and for some under a
//! collation. Arithmetic is never native: SQLite turns an integer that overflows into a float, and a division by
//! zero into null.

use crate::builtins;
use crate::tree::CastHow;
use crate::types::{
    BOOL, BPCHAR, BYTEA, CHAR, CID, DATE, FLOAT4, FLOAT8, INT2, INT4, INT8, INTERVAL, NAME, NUMERIC, OID, Oid,
    REGCLASS, REGNAMESPACE, REGOPER, REGOPERATOR, REGPROC, REGPROCEDURE, REGROLE, REGTYPE, TEXT, TIME, TIMESTAMP,
    TIMESTAMPTZ, UUID, VARCHAR, XID,
};

/// How two values of a type are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// As SQLite compares the storage forms by itself.
    Plain,
    /// Under a collation.
    Collated(&'static str),
    /// Equal values have equal storage forms, but their order is another one.
    Equality,
    /// Not by SQLite.
    Foreign,
}

pub(super) fn class(ty: Oid) -> Class {
    match ty {
        BOOL | INT2 | INT4 | INT8 | OID | XID | CID | REGPROC | REGPROCEDURE | REGOPER | REGOPERATOR | REGCLASS
        | REGTYPE | REGNAMESPACE | REGROLE | TEXT | VARCHAR | NAME | CHAR | BYTEA | DATE | TIME | TIMESTAMP
        | TIMESTAMPTZ | UUID => Class::Plain,
        // NaN is a text, which sorts above all numbers, and 0.0 equals -0.0.
        FLOAT4 | FLOAT8 => Class::Plain,
        NUMERIC => Class::Collated("_isles_numeric"),
        INTERVAL => Class::Collated("_isles_interval"),
        // Trailing spaces do not count, which is what this collation of SQLite's own is for.
        BPCHAR => Class::Collated("RTRIM"),
        _ => match builtins::element_of(ty) {
            // The text of an array is made of its elements' texts: 0 and -0 have different ones.
            Some(FLOAT4 | FLOAT8) | None => Class::Foreign,
            Some(element) if class(element) == Class::Plain => Class::Equality,
            Some(_) => Class::Foreign,
        },
    }
}

const EQUAL: &[u32] = &[
    60, 61, 62, 63, 65, 67, 68, 69, 158, 159, 184, 240, 247, 287, 293, 299, 305, 467, 474, 744, 852, 1048, 1086, 1145,
    1152, 1162, 1718, 1850, 1856, 1948, 2052, 2956,
];
const UNEQUAL: &[u32] = &[
    70, 84, 144, 145, 157, 164, 165, 185, 245, 252, 288, 294, 300, 306, 390, 468, 475, 659, 853, 1053, 1091, 1106,
    1153, 1163, 1719, 1851, 1857, 1953, 2053, 2959, 3308,
];
const LESS: &[u32] = &[
    56, 64, 66, 160, 161, 241, 248, 289, 295, 301, 307, 469, 476, 655, 716, 740, 854, 1049, 1087, 1102, 1154, 1164,
    1246, 1722, 1852, 1858, 1949, 2054, 2954,
];
const LESS_OR_EQUAL: &[u32] = &[
    72, 148, 149, 166, 167, 242, 249, 290, 296, 302, 308, 471, 478, 656, 717, 741, 856, 1050, 1088, 1103, 1155, 1165,
    1691, 1723, 1854, 1860, 1950, 2055, 2955,
];
const GREATER: &[u32] = &[
    57, 73, 146, 147, 162, 163, 244, 251, 291, 297, 303, 309, 470, 477, 657, 742, 855, 1051, 1089, 1104, 1157, 1167,
    1638, 1720, 1853, 1859, 1951, 2057, 2958,
];
const GREATER_OR_EQUAL: &[u32] = &[
    74, 150, 151, 168, 169, 243, 250, 292, 298, 304, 310, 472, 479, 658, 743, 857, 1052, 1090, 1105, 1156, 1166, 1639,
    1692, 1721, 1855, 1861, 1952, 2056, 2957,
];

/// The symbol of a comparison function that SQLite has, for arguments of this type. Functions that compare two
/// different types are listed where their storage forms are of one kind: two integers, two floats, two texts.
pub(super) fn comparison(function: Oid, ty: Oid) -> Option<(&'static str, Class)> {
    let lists =
        [("=", EQUAL), ("<>", UNEQUAL), ("<", LESS), ("<=", LESS_OR_EQUAL), (">", GREATER), (">=", GREATER_OR_EQUAL)];
    let symbol = lists.into_iter().find(|(_, oids)| oids.contains(&function.0))?.0;
    match class(ty) {
        Class::Foreign => None,
        Class::Equality if !matches!(symbol, "=" | "<>") => None,
        class => Some((symbol, class)),
    }
}

/// Whether a function tells two values of this type equal exactly when SQLite does.
pub(super) fn equality(function: Oid, ty: Oid) -> Option<Class> {
    comparison(function, ty).filter(|(symbol, _)| *symbol == "=").map(|(_, class)| class)
}

/// How SQLite converts.
pub(super) enum Conversion {
    /// The storage form is the same.
    Nothing,
    /// `CAST(x AS REAL)`.
    Real,
}

pub(super) fn conversion(how: CastHow, from: Oid, to: Oid) -> Option<Conversion> {
    match how {
        CastHow::Relabel if storage(from) == storage(to) => Some(Conversion::Nothing),
        // int2 to int4, int4 to int8, int2 to int8, oid to int8, bool to int4, name to text, text to name is not: it
        // cuts.
        CastHow::Function(Oid(313 | 481 | 754 | 1288 | 2558 | 406)) => Some(Conversion::Nothing),
        // int4, int2 and int8 to float8. The nearest float is taken by both. To float4 it is rounded once more.
        CastHow::Function(Oid(316 | 235 | 482)) => Some(Conversion::Real),
        // float4 to float8: it travels as one.
        CastHow::Function(Oid(311)) => Some(Conversion::Nothing),
        _ => None,
    }
}

/// Types that are stored alike.
fn storage(ty: Oid) -> u8 {
    match ty {
        BOOL | INT2 | INT4 | INT8 | OID | XID | CID | REGPROC | REGPROCEDURE | REGOPER | REGOPERATOR | REGCLASS
        | REGTYPE | REGNAMESPACE | REGROLE => 0,
        BYTEA | UUID => 1,
        DATE | TIME | TIMESTAMP | TIMESTAMPTZ => 2,
        FLOAT4 | FLOAT8 => 3,
        _ => 4,
    }
}

/// How SQLite computes an aggregate, if it can.
pub(super) fn aggregate(function: Oid, name: &str, arg: Option<Oid>) -> Option<&'static str> {
    let ordered = arg.is_some_and(|ty| matches!(class(ty), Class::Plain | Class::Collated(_)));
    match (function.0, name) {
        (2803 | 2147, _) => Some("count"),
        // Of int2 and int4, as int8; SQLite finds the overflow.
        (2108 | 2109, _) => Some("sum"),
        // bool_and, every; bool_or.
        (2517 | 2519, _) => Some("min"),
        (2518, _) => Some("max"),
        (_, "min") if ordered => Some("min"),
        (_, "max") if ordered => Some("max"),
        _ => None,
    }
}

/// Functions of sequences: the router alone may call them.
pub(super) fn is_sequence_function(function: Oid) -> bool {
    matches!(function.0, 1574 | 1575 | 1576 | 1765 | 2559)
}

/// The window functions that both have, by name.
pub(super) fn window(function: Oid) -> Option<&'static str> {
    Some(match function.0 {
        3100 => "row_number",
        3101 => "rank",
        3102 => "dense_rank",
        3103 => "percent_rank",
        3104 => "cume_dist",
        3105 => "ntile",
        3106..=3108 => "lag",
        3109..=3111 => "lead",
        3112 => "first_value",
        3113 => "last_value",
        3114 => "nth_value",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lists are numbers; this says that they are the right ones.
    #[test]
    fn comparisons_are_listed_under_their_symbols() {
        let lists = [
            ("=", EQUAL),
            ("<>", UNEQUAL),
            ("<", LESS),
            ("<=", LESS_OR_EQUAL),
            (">", GREATER),
            (">=", GREATER_OR_EQUAL),
        ];
        for (symbol, oids) in lists {
            for oid in oids {
                let operator = builtins::operators().iter().find(|operator| operator.function == Oid(*oid));
                assert_eq!(operator.map(|operator| operator.name), Some(symbol), "{oid}");
            }
        }
    }

    #[test]
    fn conversions_and_aggregates_are_the_functions_they_are_said_to_be() {
        let name = |oid| builtins::function(Oid(oid)).map(|function| function.name);
        for (oid, expected) in [
            (313, "int4"),
            (481, "int8"),
            (754, "int8"),
            (1288, "int8"),
            (2558, "int4"),
            (406, "text"),
            (316, "float8"),
            (235, "float8"),
            (482, "float8"),
            (311, "float8"),
            (2803, "count"),
            (2147, "count"),
            (2108, "sum"),
            (2109, "sum"),
            (2517, "bool_and"),
            (2518, "bool_or"),
            (2519, "every"),
            (1574, "nextval"),
            (1575, "currval"),
            (1576, "setval"),
            (1765, "setval"),
            (2559, "lastval"),
            (3100, "row_number"),
            (3105, "ntile"),
            (3108, "lag"),
            (3111, "lead"),
            (3114, "nth_value"),
        ] {
            assert_eq!(name(oid), Some(expected), "{oid}");
        }
    }
}
