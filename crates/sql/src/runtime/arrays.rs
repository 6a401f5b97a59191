//! Arrays of one dimension.

use super::{Env, Result, at, compare, int, members, unexpected};
use crate::types::*;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;

type Args<'a> = &'a [Value];
type Types<'a> = &'a [Oid];

fn member_type(types: Types) -> Oid {
    types.iter().find_map(|ty| element_of(*ty)).unwrap_or(TEXT)
}

/// Equal, where null equals null.
fn same(a: &Value, b: &Value, ty: Oid) -> Result<bool> {
    match (a.is_null(), b.is_null()) {
        (false, false) => compare(a, b, ty).map(|order| order.is_eq()),
        (a, b) => Ok(a && b),
    }
}

fn list(value: &Value) -> Result<Vec<Value>> {
    match value {
        Value::Null => Ok(vec![]),
        Value::Array(members) => Ok(members.clone()),
        other => Err(unexpected(other)),
    }
}

pub(super) fn append(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let mut members = list(at(args, 0))?;
    members.push(at(args, 1).clone());
    Ok(Value::Array(members))
}

pub(super) fn prepend(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let mut members = list(at(args, 1))?;
    members.insert(0, at(args, 0).clone());
    Ok(Value::Array(members))
}

pub(super) fn concat(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    match (at(args, 0), at(args, 1)) {
        (Value::Null, Value::Null) => Ok(Value::Null),
        (a, b) => Ok(Value::Array([list(a)?, list(b)?].concat())),
    }
}

pub(super) fn length(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let members = members(args, 0)?;
    Ok(if int(args, 1)? == 1 && !members.is_empty() { Value::Int(members.len() as i64) } else { Value::Null })
}

pub(super) fn lower(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(if int(args, 1)? == 1 && !members(args, 0)?.is_empty() { Value::Int(1) } else { Value::Null })
}

pub(super) fn dimensions(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(if members(args, 0)?.is_empty() { Value::Null } else { Value::Int(1) })
}

pub(super) fn dimension_text(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let members = members(args, 0)?;
    Ok(if members.is_empty() { Value::Null } else { Value::Text(format!("[1:{}]", members.len())) })
}

pub(super) fn cardinality(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Int(members(args, 0)?.len() as i64))
}

fn positions_of(args: Args, types: Types) -> Result<Vec<i64>> {
    let (sought, ty) = (at(args, 1), member_type(types));
    let mut found = Vec::new();
    for (place, member) in (1i64..).zip(members(args, 0)?) {
        if same(member, sought, ty)? {
            found.push(place);
        }
    }
    Ok(found)
}

pub(super) fn position(_: &mut Env, args: Args, types: Types) -> Result<Value> {
    if at(args, 0).is_null() {
        return Ok(Value::Null);
    }
    let start = match args.len() {
        3 if at(args, 2).is_null() => return Err(SqlError::new("22004", "initial position must not be null")),
        3 => int(args, 2)?,
        _ => 1,
    };
    let found = positions_of(args, types)?.into_iter().find(|place| *place >= start);
    Ok(found.map_or(Value::Null, Value::Int))
}

pub(super) fn positions(_: &mut Env, args: Args, types: Types) -> Result<Value> {
    if at(args, 0).is_null() {
        return Ok(Value::Null);
    }
    Ok(Value::Array(positions_of(args, types)?.into_iter().map(Value::Int).collect()))
}

pub(super) fn remove(_: &mut Env, args: Args, types: Types) -> Result<Value> {
    replaced(args, types, None)
}

pub(super) fn replace(_: &mut Env, args: Args, types: Types) -> Result<Value> {
    replaced(args, types, Some(at(args, 2)))
}

fn replaced(args: Args, types: Types, by: Option<&Value>) -> Result<Value> {
    if at(args, 0).is_null() {
        return Ok(Value::Null);
    }
    let (sought, ty) = (at(args, 1), member_type(types));
    let mut kept = Vec::new();
    for member in members(args, 0)? {
        match (same(member, sought, ty)?, by) {
            (false, _) => kept.push(member.clone()),
            (true, Some(by)) => kept.push(by.clone()),
            (true, None) => {}
        }
    }
    Ok(Value::Array(kept))
}

/// Whether all of `part` are in `whole`; a null is in no array.
fn holds(whole: &[Value], part: &[Value], ty: Oid) -> Result<bool> {
    for sought in part {
        if sought.is_null() || !any(whole, sought, ty)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn any(whole: &[Value], sought: &Value, ty: Oid) -> Result<bool> {
    for member in whole.iter().filter(|member| !member.is_null()) {
        if compare(member, sought, ty)?.is_eq() {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn contains(_: &mut Env, args: Args, types: Types) -> Result<Value> {
    holds(members(args, 0)?, members(args, 1)?, member_type(types)).map(Value::Bool)
}

pub(super) fn contained(_: &mut Env, args: Args, types: Types) -> Result<Value> {
    holds(members(args, 1)?, members(args, 0)?, member_type(types)).map(Value::Bool)
}

pub(super) fn overlap(_: &mut Env, args: Args, types: Types) -> Result<Value> {
    let (a, b, ty) = (members(args, 0)?, members(args, 1)?, member_type(types));
    for sought in a.iter().filter(|member| !member.is_null()) {
        if any(b, sought, ty)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

pub(super) fn trim(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (members, n) = (members(args, 0)?, int(args, 1)?);
    let kept = usize::try_from(n).ok().and_then(|n| members.len().checked_sub(n));
    let kept = kept.ok_or_else(|| {
        SqlError::new("2202E", format!("number of elements to trim must be between 0 and {}", members.len()))
    })?;
    Ok(Value::Array(members[..kept].to_vec()))
}

pub(super) fn fill(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let sizes = members(args, 1)?;
    match sizes {
        [] => Ok(Value::Array(vec![])),
        [Value::Int(n)] => {
            let n =
                usize::try_from(*n).map_err(|_| SqlError::new("22023", "array size exceeds the maximum allowed"))?;
            super::check_length(n.saturating_mul(16))?;
            Ok(Value::Array(vec![at(args, 0).clone(); n]))
        }
        _ => Err(SqlError::unsupported("arrays of more than one dimension are not supported")),
    }
}
