//! Types as PostgreSQL numbers them.
//!
//! An [`Oid`] is PostgreSQL's own number of a built-in type, function or operator, so a client that knows PostgreSQL
//! knows ours. A [`Type`] is the oid of a type with its modifier: the 20 of `varchar(20)`.
//!
//! Every type has a *carrier*: the [`DataType`] in which its values travel between the router and the shards. Many
//! types share one: `varchar`, `name` and `text` are all carried as text. What differs between them (length,
//! padding, the number on the wire) is known to the binder, which makes it explicit, and to the protocol.

use isles_kernel::value::{DataType, Element};
use serde::{Deserialize, Serialize};

/// A number of PostgreSQL's catalogs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Oid(pub u32);

/// A type and its modifier; -1 when there is none, encoded as PostgreSQL encodes it (`varchar(20)` is 24,
/// `numeric(10,2)` is ((10 << 16) | 2) + 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Type {
    pub oid: Oid,
    pub modifier: i32,
}

impl Type {
    pub const fn of(oid: Oid) -> Type {
        Type { oid, modifier: -1 }
    }

    pub const fn with(oid: Oid, modifier: i32) -> Type {
        Type { oid, modifier }
    }
}

impl From<Oid> for Type {
    fn from(oid: Oid) -> Type {
        Type::of(oid)
    }
}

macro_rules! oids {
    ($($name:ident = $oid:literal),* $(,)?) => {
        $(pub const $name: Oid = Oid($oid);)*
    };
}

oids! {
    BOOL = 16, BYTEA = 17, CHAR = 18, NAME = 19, INT8 = 20, INT2 = 21, INT2VECTOR = 22, INT4 = 23, REGPROC = 24,
    TEXT = 25, OID = 26, TID = 27, XID = 28, CID = 29, OIDVECTOR = 30, JSON = 114, XML = 142, PG_NODE_TREE = 194,
    FLOAT4 = 700, FLOAT8 = 701, UNKNOWN = 705, MONEY = 790, INET = 869, ACLITEM = 1033, BPCHAR = 1042,
    VARCHAR = 1043, DATE = 1082, TIME = 1083, TIMESTAMP = 1114, TIMESTAMPTZ = 1184, INTERVAL = 1186, TIMETZ = 1266,
    BIT = 1560, VARBIT = 1562, NUMERIC = 1700, REFCURSOR = 1790, REGPROCEDURE = 2202, REGOPER = 2203,
    REGOPERATOR = 2204, REGCLASS = 2205, REGTYPE = 2206, RECORD = 2249, CSTRING = 2275, ANY = 2276, ANYARRAY = 2277,
    VOID = 2278, ANYELEMENT = 2283, ANYNONARRAY = 2776, UUID = 2950, PG_LSN = 3220, ANYENUM = 3500, JSONB = 3802,
    ANYRANGE = 3831, REGNAMESPACE = 4089, REGROLE = 4096, ANYCOMPATIBLE = 5077, ANYCOMPATIBLEARRAY = 5078,
    ANYCOMPATIBLENONARRAY = 5079, ANYCOMPATIBLERANGE = 5080,
    BOOL_ARRAY = 1000, BYTEA_ARRAY = 1001, CHAR_ARRAY = 1002, NAME_ARRAY = 1003, INT2_ARRAY = 1005,
    INT4_ARRAY = 1007, TEXT_ARRAY = 1009, OID_ARRAY = 1028, BPCHAR_ARRAY = 1014, VARCHAR_ARRAY = 1015,
    INT8_ARRAY = 1016, FLOAT4_ARRAY = 1021, FLOAT8_ARRAY = 1022, ACLITEM_ARRAY = 1034, TIMESTAMP_ARRAY = 1115,
    DATE_ARRAY = 1182, TIME_ARRAY = 1183, TIMESTAMPTZ_ARRAY = 1185, INTERVAL_ARRAY = 1187, NUMERIC_ARRAY = 1231,
    UUID_ARRAY = 2951, JSON_ARRAY = 199, JSONB_ARRAY = 3807, XID_ARRAY = 1011, CID_ARRAY = 1012,
    REGPROC_ARRAY = 1008, REGPROCEDURE_ARRAY = 2207, REGOPER_ARRAY = 2208, REGOPERATOR_ARRAY = 2209,
    REGCLASS_ARRAY = 2210, REGTYPE_ARRAY = 2211, REGNAMESPACE_ARRAY = 4090, REGROLE_ARRAY = 4097,
    REFCURSOR_ARRAY = 2201, CSTRING_ARRAY = 1263, TID_ARRAY = 1010,
}

/// The type that a carrier has by itself: what a column is that was not declared otherwise.
pub fn natural(carrier: DataType) -> Oid {
    match carrier {
        DataType::Bool => BOOL,
        DataType::Int2 => INT2,
        DataType::Int4 => INT4,
        DataType::Int8 => INT8,
        DataType::Float4 => FLOAT4,
        DataType::Float8 => FLOAT8,
        DataType::Numeric => NUMERIC,
        DataType::Text => TEXT,
        DataType::Bytes => BYTEA,
        DataType::Date => DATE,
        DataType::Time => TIME,
        DataType::Timestamp => TIMESTAMP,
        DataType::TimestampTz => TIMESTAMPTZ,
        DataType::Uuid => UUID,
        DataType::Json => JSON,
        DataType::Interval => INTERVAL,
        DataType::Array(element) => array_of(natural(element.into())).unwrap_or(TEXT_ARRAY),
    }
}

/// The carrier of a type; none for a type whose values do not travel.
pub fn carrier(ty: Oid) -> Option<DataType> {
    match element_of(ty) {
        Some(element) => scalar_carrier(element)?.element().map(DataType::Array),
        None => scalar_carrier(ty),
    }
}

fn scalar_carrier(ty: Oid) -> Option<DataType> {
    Some(match ty {
        BOOL => DataType::Bool,
        INT2 => DataType::Int2,
        INT4 => DataType::Int4,
        INT8 | OID | XID | CID | REGPROC | REGPROCEDURE | REGOPER | REGOPERATOR | REGCLASS | REGTYPE | REGNAMESPACE
        | REGROLE => DataType::Int8,
        FLOAT4 => DataType::Float4,
        FLOAT8 => DataType::Float8,
        NUMERIC => DataType::Numeric,
        TEXT | VARCHAR | BPCHAR | NAME | CHAR | UNKNOWN | CSTRING | REFCURSOR | ACLITEM | PG_NODE_TREE | VOID => {
            DataType::Text
        }
        BYTEA => DataType::Bytes,
        DATE => DataType::Date,
        TIME => DataType::Time,
        TIMESTAMP => DataType::Timestamp,
        TIMESTAMPTZ => DataType::TimestampTz,
        UUID => DataType::Uuid,
        JSON | JSONB => DataType::Json,
        INTERVAL => DataType::Interval,
        // Values of these are arrays that look different.
        INT2VECTOR => DataType::Array(Element::Int2),
        OIDVECTOR => DataType::Array(Element::Int8),
        _ => return None,
    })
}

/// Whether values of this type are numbers that stand for the names of objects: `regclass` and its kin.
pub fn names_object(ty: Oid) -> bool {
    let kin = [REGPROC, REGPROCEDURE, REGOPER, REGOPERATOR, REGCLASS, REGTYPE, REGNAMESPACE, REGROLE];
    kin.contains(&ty) || element_of(ty).is_some_and(|element| kin.contains(&element))
}

/// Every array type that is carried, beside the type of its members.
const ARRAYS: [(Oid, Oid); 36] = [
    (BOOL_ARRAY, BOOL),
    (BYTEA_ARRAY, BYTEA),
    (CHAR_ARRAY, CHAR),
    (NAME_ARRAY, NAME),
    (INT2_ARRAY, INT2),
    (INT4_ARRAY, INT4),
    (INT8_ARRAY, INT8),
    (TEXT_ARRAY, TEXT),
    (OID_ARRAY, OID),
    (BPCHAR_ARRAY, BPCHAR),
    (VARCHAR_ARRAY, VARCHAR),
    (FLOAT4_ARRAY, FLOAT4),
    (FLOAT8_ARRAY, FLOAT8),
    (ACLITEM_ARRAY, ACLITEM),
    (TIMESTAMP_ARRAY, TIMESTAMP),
    (DATE_ARRAY, DATE),
    (TIME_ARRAY, TIME),
    (TIMESTAMPTZ_ARRAY, TIMESTAMPTZ),
    (INTERVAL_ARRAY, INTERVAL),
    (NUMERIC_ARRAY, NUMERIC),
    (UUID_ARRAY, UUID),
    (JSON_ARRAY, JSON),
    (JSONB_ARRAY, JSONB),
    (XID_ARRAY, XID),
    (CID_ARRAY, CID),
    (REGPROC_ARRAY, REGPROC),
    (REGPROCEDURE_ARRAY, REGPROCEDURE),
    (REGOPER_ARRAY, REGOPER),
    (REGOPERATOR_ARRAY, REGOPERATOR),
    (REGCLASS_ARRAY, REGCLASS),
    (REGTYPE_ARRAY, REGTYPE),
    (REGNAMESPACE_ARRAY, REGNAMESPACE),
    (REGROLE_ARRAY, REGROLE),
    (REFCURSOR_ARRAY, REFCURSOR),
    (CSTRING_ARRAY, CSTRING),
    (TID_ARRAY, TID),
];

/// The type of an array type's members.
pub fn element_of(array: Oid) -> Option<Oid> {
    ARRAYS.iter().find(|(known, _)| *known == array).map(|(_, element)| *element)
}

/// The array type whose members have this type.
pub fn array_of(element: Oid) -> Option<Oid> {
    ARRAYS.iter().find(|(_, known)| *known == element).map(|(array, _)| *array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_carrier_carries_its_own_type() {
        for ty in DataType::ALL {
            assert_eq!(carrier(natural(ty)), Some(ty));
        }
        assert_eq!(carrier(VARCHAR_ARRAY), Some(DataType::Array(Element::Text)));
        assert_eq!(carrier(MONEY), None);
    }
}
