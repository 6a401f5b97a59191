//! Arithmetic of integers, floats and numerics.

use super::numeric::{Number, division_by_zero};
use super::{Env, Result, float, int, number, numeric_value};
use crate::types::Oid;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;

/// An integer of a type of so many bytes.
pub(super) fn sized<const BYTES: u8>(n: Option<i128>) -> Result<Value> {
    let (low, high, name) = match BYTES {
        2 => (i128::from(i16::MIN), i128::from(i16::MAX), "smallint"),
        4 => (i128::from(i32::MIN), i128::from(i32::MAX), "integer"),
        _ => (i128::from(i64::MIN), i128::from(i64::MAX), "bigint"),
    };
    match n {
        Some(n) if (low..=high).contains(&n) => Ok(Value::Int(n as i64)),
        _ => Err(SqlError::new("22003", format!("{name} out of range"))),
    }
}

type Args<'a> = &'a [Value];
type Types<'a> = &'a [Oid];

fn wide(args: Args, at: usize) -> Result<i128> {
    int(args, at).map(i128::from)
}

pub(super) fn add<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    sized::<BYTES>(wide(args, 0)?.checked_add(wide(args, 1)?))
}

pub(super) fn subtract<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    sized::<BYTES>(wide(args, 0)?.checked_sub(wide(args, 1)?))
}

pub(super) fn multiply<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    sized::<BYTES>(wide(args, 0)?.checked_mul(wide(args, 1)?))
}

pub(super) fn divide<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    match wide(args, 1)? {
        0 => Err(division_by_zero()),
        divisor => sized::<BYTES>(wide(args, 0)?.checked_div(divisor)),
    }
}

pub(super) fn remainder<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    match wide(args, 1)? {
        0 => Err(division_by_zero()),
        divisor => sized::<BYTES>(wide(args, 0)?.checked_rem(divisor)),
    }
}

pub(super) fn negate<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    sized::<BYTES>(Some(-wide(args, 0)?))
}

pub(super) fn absolute<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    sized::<BYTES>(Some(wide(args, 0)?.abs()))
}

pub(super) fn same(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(super::at(args, 0).clone())
}

pub(super) fn resize<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    sized::<BYTES>(Some(wide(args, 0)?))
}

pub(super) fn bit_and(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Int(int(args, 0)? & int(args, 1)?))
}

pub(super) fn bit_or(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Int(int(args, 0)? | int(args, 1)?))
}

pub(super) fn bit_xor(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Int(int(args, 0)? ^ int(args, 1)?))
}

pub(super) fn bit_not(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Int(!int(args, 0)?))
}

/// Shifts wrap around at the size of the type, as the machine does it.
pub(super) fn shift_left<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (n, by) = (int(args, 0)?, int(args, 1)? as u32);
    Ok(Value::Int(match BYTES {
        2 => i64::from((n as i32).wrapping_shl(by) as i16),
        4 => i64::from((n as i32).wrapping_shl(by)),
        _ => n.wrapping_shl(by),
    }))
}

pub(super) fn shift_right<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (n, by) = (int(args, 0)?, int(args, 1)? as u32);
    Ok(Value::Int(if BYTES == 8 { n.wrapping_shr(by) } else { i64::from((n as i32).wrapping_shr(by)) }))
}

fn greatest_divisor(mut a: i128, mut b: i128) -> i128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.abs()
}

pub(super) fn gcd<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    sized::<BYTES>(Some(greatest_divisor(wide(args, 0)?, wide(args, 1)?)))
}

pub(super) fn lcm<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (a, b) = (wide(args, 0)?, wide(args, 1)?);
    if a == 0 || b == 0 {
        return Ok(Value::Int(0));
    }
    sized::<BYTES>((a / greatest_divisor(a, b)).checked_mul(b).map(i128::abs))
}

pub(super) fn overflowed() -> SqlError {
    SqlError::new("22003", "value out of range: overflow")
}

pub(super) fn underflowed() -> SqlError {
    SqlError::new("22003", "value out of range: underflow")
}

/// A result whose operands were finite must be finite, and one that should not be zero must not be.
fn checked_float<const BYTES: u8>(x: f64, finite: bool, nonzero: bool) -> Result<Value> {
    let x = if BYTES == 4 { f64::from(x as f32) } else { x };
    match x {
        _ if x.is_infinite() && finite => Err(overflowed()),
        _ if x == 0.0 && nonzero => Err(underflowed()),
        _ => Ok(Value::Float(x)),
    }
}

fn pair(args: Args) -> Result<(f64, f64)> {
    Ok((float(args, 0)?, float(args, 1)?))
}

pub(super) fn add_floats<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (a, b) = pair(args)?;
    checked_float::<BYTES>(a + b, a.is_finite() && b.is_finite(), false)
}

pub(super) fn subtract_floats<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (a, b) = pair(args)?;
    checked_float::<BYTES>(a - b, a.is_finite() && b.is_finite(), false)
}

pub(super) fn multiply_floats<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (a, b) = pair(args)?;
    checked_float::<BYTES>(a * b, a.is_finite() && b.is_finite(), a != 0.0 && b != 0.0)
}

pub(super) fn divide_floats<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (a, b) = pair(args)?;
    if b == 0.0 && !a.is_nan() {
        return Err(division_by_zero());
    }
    checked_float::<BYTES>(a / b, a.is_finite() && b.is_finite(), a != 0.0 && b.is_finite())
}

pub(super) fn negate_float(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Float(-float(args, 0)?))
}

pub(super) fn absolute_float(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Float(float(args, 0)?.abs()))
}

pub(super) fn add_numerics(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    number(args, 0)?.added(&number(args, 1)?).map(numeric_value)
}

pub(super) fn subtract_numerics(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    number(args, 0)?.subtracted(&number(args, 1)?).map(numeric_value)
}

pub(super) fn multiply_numerics(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    number(args, 0)?.multiplied(&number(args, 1)?).map(numeric_value)
}

pub(super) fn divide_numerics(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    number(args, 0)?.divided(&number(args, 1)?).map(numeric_value)
}

pub(super) fn divide_whole(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    number(args, 0)?.divided_whole(&number(args, 1)?).map(numeric_value)
}

pub(super) fn remainder_numerics(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    number(args, 0)?.remainder(&number(args, 1)?).map(numeric_value)
}

pub(super) fn negate_numeric(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(numeric_value(number(args, 0)?.negated()))
}

pub(super) fn absolute_numeric(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(numeric_value(number(args, 0)?.absolute()))
}

pub(super) fn increment_numeric(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    number(args, 0)?.added(&Number::int(1)).map(numeric_value)
}
