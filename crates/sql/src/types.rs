//! Types as PostgreSQL numbers them.
//!
//! An [`Oid`] is PostgreSQL's own number of a built-in type, function or operator, so a client that knows PostgreSQL
//! knows ours. A [`Type`] is the oid of a type with its modifier: the 20 of `varchar(20)`.
//!
//! Every type has a *carrier*: the [`DataType`] in which its values travel between the router and the shards. Many
//! types share one: `varchar`, `name` and `text` are all carried as text. What differs between them (length,
//! padding, the number on the wire) is known to the binder, which makes it explicit, and to the protocol.

use isles_kernel::value::DataType;
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
    UUID_ARRAY = 2951, JSON_ARRAY = 199, JSONB_ARRAY = 3807,
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
    }
}
