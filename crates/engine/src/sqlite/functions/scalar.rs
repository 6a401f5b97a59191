//! `_pg` and `_pgv`: one value from some.

use super::{Call, Host, Result, answer, arguments, bridge, callee_text};
use crate::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::builtins;
use isles_sql::print::call::Op;
use isles_sql::tree::Quantifier;
use isles_sql::types::{self, Oid};
use rusqlite::ffi;
use rusqlite::types::ValueRef;
use std::cmp::Ordering;
use std::ffi::{c_int, c_void};

/// The dispatcher. The parsed callee is kept beside the first argument for as long as the statement runs.
pub(super) unsafe extern "C" fn call(
    context: *mut ffi::sqlite3_context,
    count: c_int,
    args: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: SQLite gives a live context and `count` live values; what is kept is freed by `forget` alone.
    unsafe {
        let args = std::slice::from_raw_parts(args, count as usize);
        let known = ffi::sqlite3_get_auxdata(context, 0).cast::<Call>();
        if !known.is_null() {
            return answer(context, |host| evaluate(host, &*known, arguments(args).skip(1)));
        }
        let mut fresh = None;
        answer(context, |host| {
            let mut args = arguments(args);
            let call = fresh.insert(Box::new(Call::parse(callee_text(&mut args)?)?));
            evaluate(host, call, args)
        });
        if let Some(call) = fresh {
            ffi::sqlite3_set_auxdata(context, 0, Box::into_raw(call).cast(), Some(forget));
        }
    }
}

unsafe extern "C" fn forget(call: *mut c_void) {
    // SAFETY: made by `Box::into_raw` in `call`, and SQLite lets go of it once.
    drop(unsafe { Box::from_raw(call.cast::<Call>()) });
}

fn evaluate<'a>(host: &Host, call: &Call, args: impl Iterator<Item = ValueRef<'a>>) -> Result<Value> {
    let Some((mut values, settings)) = call.arguments(args)? else { return Ok(Value::Null) };
    let mut session = bridge::Session::new(host, settings)?;
    let callee = &call.callee;
    match callee.op {
        Op::Function(function) => match host.system_call(function, &values) {
            Some(answer) => answer,
            None => session.call(function, &values, &callee.args),
        },
        Op::Cast(how) => match host.system_cast(how, &values[0], callee.args[0], callee.result.oid) {
            Some(answer) => answer,
            None => session.cast(how, values.remove(0), callee.args[0], callee.result),
        },
        Op::IsDistinct(equal) => {
            let (left, right) = two(&values)?;
            match (left.is_null(), right.is_null()) {
                (true, true) => Ok(Value::Bool(false)),
                (false, false) => Ok(Value::Bool(!is_true(&session.compare(equal, left, right, &callee.args)?))),
                _ => Ok(Value::Bool(true)),
            }
        }
        Op::NullIf(equal) => {
            let (left, right) = two(&values)?;
            let same =
                !left.is_null() && !right.is_null() && is_true(&session.compare(equal, left, right, &callee.args)?);
            Ok(if same { Value::Null } else { left.clone() })
        }
        Op::InList(equal) => over(&mut session, Quantifier::Any, equal, &values[0], &values[1..], &callee.args[..1]),
        Op::OverArray(quantifier, function) => {
            let (left, array) = two(&values)?;
            let Value::Array(members) = array else { return Ok(Value::Null) };
            let element = builtins::element_of(callee.args[1]).unwrap_or(callee.args[0]);
            over(&mut session, quantifier, function, left, members, &[callee.args[0], element])
        }
        Op::Greatest => extreme(values, callee.result.oid, Ordering::Greater),
        Op::Least => extreme(values, callee.result.oid, Ordering::Less),
        Op::Array => Ok(Value::Array(values)),
        Op::Subscript => Ok(subscript(&values, callee.args[0])),
        Op::Slice { from, to } => Ok(slice(&values, from, to)),
        Op::Limit => row_count(&values[0], ("2201W", "LIMIT must not be negative"), -1),
        Op::Offset => row_count(&values[0], ("2201X", "OFFSET must not be negative"), 0),
        Op::Aggregate { .. } | Op::ArrayOfRows => Err(SqlError::new("XX000", "an aggregate is not a function")),
    }
}

fn two(values: &[Value]) -> Result<(&Value, &Value)> {
    match values {
        [left, right] => Ok((left, right)),
        _ => Err(SqlError::new("XX000", "a function of two arguments was called with others")),
    }
}

fn is_true(value: &Value) -> bool {
    matches!(value, Value::Bool(true))
}

/// `left op ANY (members)`: true if one is, else unknown if one is unknown, else false. ALL is its mirror.
fn over(
    session: &mut bridge::Session<'_>,
    quantifier: Quantifier,
    function: Oid,
    left: &Value,
    members: &[Value],
    types: &[Oid],
) -> Result<Value> {
    let decisive = quantifier == Quantifier::Any;
    let types = [types[0], *types.last().unwrap_or(&types[0])];
    let mut unknown = false;
    for member in members {
        match session.compare(function, left, member, &types)? {
            Value::Bool(found) if found == decisive => return Ok(Value::Bool(decisive)),
            Value::Bool(_) => {}
            _ => unknown = true,
        }
    }
    Ok(if unknown { Value::Null } else { Value::Bool(!decisive) })
}

fn extreme(values: Vec<Value>, ty: Oid, wanted: Ordering) -> Result<Value> {
    let mut best = Value::Null;
    for value in values.into_iter().filter(|value| !value.is_null()) {
        if best.is_null() || bridge::order(ty, &value, &best)? == wanted {
            best = value;
        }
    }
    Ok(best)
}

/// Arrays count from one, but for two types of the catalogs.
fn first_index(ty: Oid) -> i64 {
    if matches!(ty, types::INT2VECTOR | types::OIDVECTOR) { 0 } else { 1 }
}

fn subscript(values: &[Value], ty: Oid) -> Value {
    match values {
        [Value::Array(members), Value::Int(at)] => {
            usize::try_from(at - first_index(ty)).ok().and_then(|at| members.get(at)).cloned().unwrap_or(Value::Null)
        }
        // An array of one dimension has nothing at two subscripts.
        _ => Value::Null,
    }
}

fn slice(values: &[Value], has_from: bool, has_to: bool) -> Value {
    let Some(Value::Array(members)) = values.first() else { return Value::Null };
    let bound = |at: usize| match values.get(at) {
        Some(Value::Int(n)) => Some(*n),
        _ => None,
    };
    let from = if has_from { bound(1) } else { Some(1) };
    let to = if has_to { bound(1 + usize::from(has_from)) } else { Some(members.len() as i64) };
    let (Some(from), Some(to)) = (from, to) else { return Value::Null };
    let from = usize::try_from(from.max(1) - 1).unwrap_or(usize::MAX).min(members.len());
    let to = usize::try_from(to.max(0)).unwrap_or(usize::MAX).min(members.len());
    Value::Array(members.get(from..to.max(from)).unwrap_or_default().to_vec())
}

fn row_count(value: &Value, (sqlstate, message): (&'static str, &str), all: i64) -> Result<Value> {
    match value {
        Value::Null => Ok(Value::Int(all)),
        Value::Int(n) if *n < 0 => Err(SqlError::new(sqlstate, message)),
        other => Ok(other.clone()),
    }
}
