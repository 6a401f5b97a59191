//! Functions that return rows.

use super::numeric::Number;
use super::{Env, Result, at, dates, documents, int, interval, members, number, numeric_value, patterns, strings};
use crate::types::Oid;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;

/// More rows than this are refused: they are made in memory, and a series is easily written too long.
pub const MAX_ROWS: usize = 5_000_000;

/// Arguments and their types, as for a scalar; each row has the function's columns.
pub type Make = fn(&mut Env<'_>, &[Value], &[Oid]) -> std::result::Result<Vec<Vec<Value>>, SqlError>;

pub struct Rows {
    pub oid: Oid,
    pub call: Make,
}

impl Rows {
    pub(super) const fn new(oid: u32, call: Make) -> Rows {
        Rows { oid: Oid(oid), call }
    }
}

/// The set-returning function of this number, if it is computed here.
pub fn rows(function: Oid) -> Option<&'static Rows> {
    let table = super::table::ROWS;
    table.binary_search_by_key(&function.0, |rows| rows.oid.0).ok().map(|at| &table[at])
}

type Args<'a> = &'a [Value];
type Types<'a> = &'a [Oid];

fn check(count: usize) -> Result<()> {
    match count >= MAX_ROWS {
        true => Err(SqlError::new("54000", format!("a function returns at most {MAX_ROWS} rows"))),
        false => Ok(()),
    }
}

fn single(values: Vec<Value>) -> Result<Vec<Vec<Value>>> {
    check(values.len())?;
    Ok(values.into_iter().map(|value| vec![value]).collect())
}

fn zero_step() -> SqlError {
    SqlError::new("22023", "step size cannot equal zero")
}

pub(super) fn series_of_ints<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Vec<Vec<Value>>> {
    let (mut n, last) = (i128::from(int(args, 0)?), i128::from(int(args, 1)?));
    let step = if args.len() > 2 { i128::from(int(args, 2)?) } else { 1 };
    if step == 0 {
        return Err(zero_step());
    }
    let mut rows = Vec::new();
    while if step > 0 { n <= last } else { n >= last } {
        check(rows.len())?;
        rows.push(vec![super::arithmetic::sized::<BYTES>(Some(n))?]);
        n += step;
    }
    Ok(rows)
}

pub(super) fn series_of_numerics(_: &mut Env, args: Args, _: Types) -> Result<Vec<Vec<Value>>> {
    let (mut n, last) = (number(args, 0)?, number(args, 1)?);
    let step = if args.len() > 2 { number(args, 2)? } else { Number::int(1) };
    for (given, name) in [(&n, "start"), (&last, "stop"), (&step, "step size")] {
        if !matches!(given, Number::Finite(_)) {
            let what = if given.is_nan() { "NaN" } else { "infinity" };
            return Err(SqlError::new("22023", format!("{name} value cannot be {what}").replace("size value", "size")));
        }
    }
    if step.sign() == 0 {
        return Err(zero_step());
    }
    let mut rows = Vec::new();
    while if step.sign() > 0 { n.compare(&last).is_le() } else { n.compare(&last).is_ge() } {
        check(rows.len())?;
        rows.push(vec![numeric_value(n.clone())]);
        n = n.added(&step)?;
    }
    Ok(rows)
}

pub(super) fn series_of_times(env: &mut Env, args: Args, types: Types) -> Result<Vec<Vec<Value>>> {
    let step = interval(args, 2)?;
    let direction = step.span();
    if direction == 0 {
        return Err(zero_step());
    }
    let ty = types.first().copied().unwrap_or(crate::types::TIMESTAMP);
    let (mut now, last) = (at(args, 0).clone(), at(args, 1));
    let mut rows = Vec::new();
    loop {
        let order = super::compare(&now, last, ty)?;
        if if direction > 0 { order.is_gt() } else { order.is_lt() } {
            return Ok(rows);
        }
        check(rows.len())?;
        let next = dates::shifted(&now, &step, env)?;
        rows.push(vec![std::mem::replace(&mut now, next)]);
    }
}

pub(super) fn unnest(_: &mut Env, args: Args, _: Types) -> Result<Vec<Vec<Value>>> {
    single(members(args, 0)?.to_vec())
}

pub(super) fn subscripts(_: &mut Env, args: Args, _: Types) -> Result<Vec<Vec<Value>>> {
    let count = if int(args, 1)? == 1 { members(args, 0)?.len() as i64 } else { 0 };
    let backwards = args.len() > 2 && super::boolean(args, 2)?;
    let numbers = (1..=count).map(Value::Int);
    single(if backwards { numbers.rev().collect() } else { numbers.collect() })
}

pub(super) fn split_text(_: &mut Env, args: Args, _: Types) -> Result<Vec<Vec<Value>>> {
    if at(args, 0).is_null() { Ok(vec![]) } else { single(strings::split(args)?) }
}

pub(super) fn split_pattern(_: &mut Env, args: Args, _: Types) -> Result<Vec<Vec<Value>>> {
    single(patterns::parts(args)?)
}

pub(super) fn matches(_: &mut Env, args: Args, _: Types) -> Result<Vec<Vec<Value>>> {
    single(patterns::all_matches(args)?)
}

pub(super) fn elements<const TEXT: bool>(_: &mut Env, args: Args, _: Types) -> Result<Vec<Vec<Value>>> {
    single(documents::elements(args, TEXT)?)
}

pub(super) fn each<const TEXT: bool>(_: &mut Env, args: Args, _: Types) -> Result<Vec<Vec<Value>>> {
    let pairs = documents::pairs(args, TEXT)?;
    Ok(pairs.into_iter().map(|(key, value)| vec![Value::Text(key), value]).collect())
}

pub(super) fn keys(_: &mut Env, args: Args, _: Types) -> Result<Vec<Vec<Value>>> {
    match documents::pairs(args, false) {
        Ok(pairs) => single(pairs.into_iter().map(|(key, _)| Value::Text(key)).collect()),
        Err(error) if error.message.contains("array") => {
            Err(SqlError::new("22023", "cannot call json_object_keys on an array"))
        }
        Err(error) if error.sqlstate == "22023" => {
            Err(SqlError::new("22023", "cannot call json_object_keys on a scalar"))
        }
        Err(error) => Err(error),
    }
}
