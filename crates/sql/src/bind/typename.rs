//! Names of types in statements, with their modifiers: `varchar(20)`, `numeric(10,2)[]`, `interval day to second`.

use super::Result;
use crate::builtins;
use crate::types::{self, Oid, Type};
use isles_kernel::error::SqlError;
use pg_raw_parse::{ConstValue, Node, nodes};

/// PostgreSQL's limits.
const MAX_NUMERIC_PRECISION: i32 = 1000;
const MAX_NUMERIC_SCALE: i32 = 1000;
const MAX_CHARACTERS: i32 = 10_485_760;
const MAX_TIME_PRECISION: i32 = 6;

pub(super) fn resolve(name: &nodes::TypeName) -> Result<Type> {
    if name.setof || name.pct_type {
        return Err(SqlError::unsupported("SETOF and %TYPE are not supported here"));
    }
    let oid = resolve_names(name)?;
    let modifier = modifier(oid, name)?;
    if name.array_bounds().is_empty() {
        return Ok(Type::with(oid, modifier));
    }
    match builtins::array_of(oid) {
        Some(array) => Ok(Type::with(array, modifier)),
        None => {
            let message = format!("could not find array type for data type {}", builtins::type_name(oid));
            Err(SqlError::new("42704", message))
        }
    }
}

fn resolve_names(name: &nodes::TypeName) -> Result<Oid> {
    let parts: Vec<&str> = name.names().iter().filter_map(|part| part.sval()).collect();
    let unqualified = match parts.as_slice() {
        [name] | ["pg_catalog", name] => name,
        _ => return Err(missing(&parts)),
    };
    // The grammar has turned SQL's words into names of pg_type; an alias that is left was quoted, and means itself.
    builtins::type_by_name(unqualified)
        .filter(|info| info.name == *unqualified)
        .map(|info| info.oid)
        .ok_or_else(|| missing(&parts))
}

fn missing(parts: &[&str]) -> SqlError {
    SqlError::new("42704", format!("type \"{}\" does not exist", parts.join(".")))
}

fn modifier(oid: Oid, name: &nodes::TypeName) -> Result<i32> {
    let mut given = Vec::new();
    for node in name.typmods() {
        match node {
            Node::A_Const(constant) => match constant.val() {
                Some(ConstValue::Integer(n)) => given.push(n),
                _ => return Err(SqlError::new("42601", "type modifiers must be simple constants or identifiers")),
            },
            _ => return Err(SqlError::new("42601", "type modifiers must be simple constants or identifiers")),
        }
    }
    if given.is_empty() {
        return Ok(name.typemod);
    }
    encode(oid, &given)
}

/// `typmodin` of the type.
fn encode(oid: Oid, given: &[i32]) -> Result<i32> {
    match (oid, given) {
        (types::NUMERIC, [precision]) => numeric(*precision, 0),
        (types::NUMERIC, [precision, scale]) => numeric(*precision, *scale),
        (types::NUMERIC, _) => Err(SqlError::new("22023", "invalid NUMERIC type modifier")),
        (types::VARCHAR, [n]) => characters("varchar", *n).map(|n| n + 4),
        (types::BPCHAR, [n]) => characters("char", *n).map(|n| n + 4),
        (types::BIT, [n]) => characters("bit", *n),
        (types::VARBIT, [n]) => characters("bit varying", *n),
        (types::TIME, [n]) => time_precision("TIME", "", *n),
        (types::TIMETZ, [n]) => time_precision("TIME", " WITH TIME ZONE", *n),
        (types::TIMESTAMP, [n]) => time_precision("TIMESTAMP", "", *n),
        (types::TIMESTAMPTZ, [n]) => time_precision("TIMESTAMP", " WITH TIME ZONE", *n),
        (types::INTERVAL, [fields]) => Ok((fields << 16) | 0xffff),
        (types::INTERVAL, [fields, precision]) => {
            time_precision("INTERVAL", "", *precision).map(|precision| (fields << 16) | precision)
        }
        (types::VARCHAR | types::BPCHAR | types::BIT | types::VARBIT | types::TIME | types::TIMESTAMP, _) => {
            Err(SqlError::new("22023", "invalid type modifier"))
        }
        _ => {
            let message = format!("type modifier is not allowed for type \"{}\"", builtins::type_name(oid));
            Err(SqlError::new("42601", message))
        }
    }
}

fn numeric(precision: i32, scale: i32) -> Result<i32> {
    if !(1..=MAX_NUMERIC_PRECISION).contains(&precision) {
        let message = format!("NUMERIC precision {precision} must be between 1 and {MAX_NUMERIC_PRECISION}");
        return Err(SqlError::new("22023", message));
    }
    if !(-MAX_NUMERIC_SCALE..=MAX_NUMERIC_SCALE).contains(&scale) {
        let limit = MAX_NUMERIC_SCALE;
        let message = format!("NUMERIC scale {scale} must be between -{limit} and {limit}");
        return Err(SqlError::new("22023", message));
    }
    Ok(((precision << 16) | (scale & 0x7ff)) + 4)
}

fn characters(ty: &str, n: i32) -> Result<i32> {
    if n < 1 {
        return Err(SqlError::new("22023", format!("length for type {ty} must be at least 1")));
    }
    if n > MAX_CHARACTERS {
        return Err(SqlError::new("22023", format!("length for type {ty} cannot exceed {MAX_CHARACTERS}")));
    }
    Ok(n)
}

/// PostgreSQL reduces a higher precision, with a warning.
fn time_precision(ty: &str, zone: &str, n: i32) -> Result<i32> {
    if n < 0 {
        return Err(SqlError::new("22023", format!("{ty}({n}){zone} precision must not be negative")));
    }
    Ok(n.min(MAX_TIME_PRECISION))
}
