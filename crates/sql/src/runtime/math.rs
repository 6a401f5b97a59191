//! Mathematics: roots, logarithms, angles, rounding, chance.

use super::arithmetic::{overflowed, sized, underflowed};
use super::numeric::{Decimal, Number, overflow};
use super::{Env, Result, boolean, float, int, number, numeric_value};
use crate::types::*;
use isles_kernel::error::SqlError;
use isles_kernel::value::{Numeric, Value};
use num_bigint::BigInt;

type Args<'a> = &'a [Value];
type Types<'a> = &'a [Oid];

fn finite(x: f64, arguments: &[f64]) -> Result<Value> {
    match x.is_infinite() && arguments.iter().all(|argument| argument.is_finite()) {
        true => Err(overflowed()),
        false => Ok(Value::Float(x)),
    }
}

macro_rules! of_float {
    ($($name:ident => $f:expr;)*) => {
        $(pub(super) fn $name(_: &mut Env, args: Args, _: Types) -> Result<Value> {
            let x = float(args, 0)?;
            let f: fn(f64) -> f64 = $f;
            finite(f(x), &[x])
        })*
    };
}

of_float! {
    ceil => f64::ceil;
    floor => f64::floor;
    round => f64::round_ties_even;
    trunc => f64::trunc;
    cbrt => f64::cbrt;
    tanh => f64::tanh;
    asinh => |x| if x.abs() > 1e150 { x.signum() * (x.abs().ln() + std::f64::consts::LN_2) } else { x.asinh() };
    atan => f64::atan;
    sign => |x| if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { 0.0 };
    degrees => |x| x / 0.017_453_292_519_943_295;
}

fn domain() -> SqlError {
    SqlError::new("22003", "input is out of range")
}

macro_rules! of_angle {
    ($($name:ident => $f:expr, $domain:expr;)*) => {
        $(pub(super) fn $name(_: &mut Env, args: Args, _: Types) -> Result<Value> {
            let x = float(args, 0)?;
            let (f, valid): (fn(f64) -> f64, fn(f64) -> bool) = ($f, $domain);
            if x.is_nan() {
                return Ok(Value::Float(x));
            }
            if valid(x) { Ok(Value::Float(f(x))) } else { Err(domain()) }
        })*
    };
}

of_angle! {
    sin => f64::sin, f64::is_finite;
    cos => f64::cos, f64::is_finite;
    tan => f64::tan, f64::is_finite;
    cot => |x| 1.0 / x.tan(), f64::is_finite;
    asin => f64::asin, |x| x.abs() <= 1.0;
    acos => f64::acos, |x| x.abs() <= 1.0;
    acosh => |x| if x > 1e150 { x.ln() + std::f64::consts::LN_2 } else { x.acosh() }, |x| x >= 1.0;
    sinh => f64::sinh, |_| true;
    cosh => f64::cosh, |_| true;
    atanh => f64::atanh, |x| x.abs() <= 1.0;
}

pub(super) fn radians(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let x = float(args, 0)?;
    match x * 0.017_453_292_519_943_295 {
        y if y == 0.0 && x != 0.0 => Err(underflowed()),
        y => Ok(Value::Float(y)),
    }
}

pub(super) fn atan2(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Float(float(args, 0)?.atan2(float(args, 1)?)))
}

pub(super) fn sqrt(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    match float(args, 0)? {
        x if x < 0.0 => Err(SqlError::new("2201F", "cannot take square root of a negative number")),
        x => Ok(Value::Float(x.sqrt())),
    }
}

pub(super) fn exp(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let x = float(args, 0)?;
    match x.exp() {
        y if y == 0.0 && x.is_finite() => Err(underflowed()),
        y => finite(y, &[x]),
    }
}

fn log_of(x: f64, log: fn(f64) -> f64) -> Result<Value> {
    match x {
        0.0 => Err(SqlError::new("2201E", "cannot take logarithm of zero")),
        _ if x < 0.0 => Err(SqlError::new("2201E", "cannot take logarithm of a negative number")),
        _ => Ok(Value::Float(log(x))),
    }
}

pub(super) fn ln(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    log_of(float(args, 0)?, f64::ln)
}

pub(super) fn log10(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    log_of(float(args, 0)?, f64::log10)
}

pub(super) fn power(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (base, exponent) = (float(args, 0)?, float(args, 1)?);
    if base == 0.0 && exponent < 0.0 {
        return Err(SqlError::new("2201F", "zero raised to a negative power is undefined"));
    }
    if base < 0.0 && exponent.is_finite() && exponent.fract() != 0.0 {
        let message = "a negative number raised to a non-integer power yields a complex result";
        return Err(SqlError::new("2201F", message));
    }
    let x = base.powf(exponent);
    match x == 0.0 && base != 0.0 && base.is_finite() && exponent.is_finite() {
        true => Err(underflowed()),
        false => finite(x, &[base, exponent]),
    }
}

pub(super) fn pi(_: &mut Env, _: Args, _: Types) -> Result<Value> {
    Ok(Value::Float(std::f64::consts::PI))
}

pub(super) fn random(env: &mut Env, _: Args, _: Types) -> Result<Value> {
    // 53 bits: as many as a float has.
    Ok(Value::Float(((env.random)() >> 11) as f64 / (1u64 << 53) as f64))
}

pub(super) fn new_uuid(env: &mut Env, _: Args, _: Types) -> Result<Value> {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&(env.random)().to_be_bytes());
    uuid[8..].copy_from_slice(&(env.random)().to_be_bytes());
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(Value::Uuid(uuid))
}

pub(super) fn numeric_ceil(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(numeric_value(number(args, 0)?.ceiling()))
}

pub(super) fn numeric_floor(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(numeric_value(number(args, 0)?.floor()))
}

fn places(args: Args) -> Result<i64> {
    if args.len() < 2 { Ok(0) } else { Ok(int(args, 1)?.clamp(-131_072, 16_383)) }
}

pub(super) fn numeric_round(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(numeric_value(number(args, 0)?.rounded(places(args)?)))
}

pub(super) fn numeric_trunc(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(numeric_value(number(args, 0)?.truncated(places(args)?)))
}

pub(super) fn numeric_sign(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let number = number(args, 0)?;
    Ok(numeric_value(if number.is_nan() { number } else { Number::int(number.sign().into()) }))
}

pub(super) fn numeric_sqrt(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    number(args, 0)?.square_root().map(numeric_value)
}

pub(super) fn numeric_exp(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    number(args, 0)?.exponential().map(numeric_value)
}

pub(super) fn numeric_ln(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    number(args, 0)?.logarithm().map(numeric_value)
}

pub(super) fn numeric_log(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Number::logarithm_of_base(&number(args, 0)?, &number(args, 1)?).map(numeric_value)
}

pub(super) fn numeric_log10(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Number::logarithm_of_base(&Number::int(10), &number(args, 0)?).map(numeric_value)
}

pub(super) fn numeric_power(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    number(args, 0)?.power(&number(args, 1)?).map(numeric_value)
}

pub(super) fn numeric_gcd(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(numeric_value(number(args, 0)?.gcd(&number(args, 1)?)))
}

pub(super) fn numeric_lcm(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (a, b) = (number(args, 0)?, number(args, 1)?);
    let divisor = a.gcd(&b);
    if divisor.sign() == 0 {
        return Ok(numeric_value(divisor));
    }
    let scale = i64::from(a.scale().unwrap_or(0).max(b.scale().unwrap_or(0)));
    a.multiplied(&b.divided_whole(&divisor)?).map(|n| numeric_value(n.absolute().rounded(scale)))
}

pub(super) fn numeric_scale(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(number(args, 0)?.scale().map_or(Value::Null, |scale| Value::Int(scale.into())))
}

pub(super) fn numeric_min_scale(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(match number(args, 0)? {
        Number::Finite(n) => Value::Int(n.least_scale().into()),
        _ => Value::Null,
    })
}

pub(super) fn numeric_trim_scale(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(numeric_value(number(args, 0)?.trimmed()))
}

/// Larger factorials have more digits than a numeric.
const MAX_FACTORIAL: i64 = 32_177;

pub(super) fn factorial(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let n = int(args, 0)?;
    if n < 0 {
        return Err(SqlError::new("22003", "factorial of a negative number is undefined"));
    }
    if n > MAX_FACTORIAL {
        return Err(overflow());
    }
    let product = (2..=n).fold(BigInt::from(1), |product, factor| product * factor);
    Ok(numeric_value(Number::Finite(Decimal::new(product, 0))))
}

fn bucket_fault(message: &str) -> SqlError {
    SqlError::new("2201G", message)
}

pub(super) fn width_bucket_float(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (x, low, high, count) = (float(args, 0)?, float(args, 1)?, float(args, 2)?, int(args, 3)?);
    if count <= 0 {
        return Err(bucket_fault("count must be greater than zero"));
    }
    if x.is_nan() || low.is_nan() || high.is_nan() {
        return Err(bucket_fault("operand, lower bound, and upper bound cannot be NaN"));
    }
    if low.is_infinite() || high.is_infinite() {
        return Err(bucket_fault("lower and upper bounds must be finite"));
    }
    let bucket = match () {
        () if low < high && x < low || low > high && x > low => 0,
        () if low < high && x >= high || low > high && x <= high => count + 1,
        () if low < high => ((x - low) / (high - low) * count as f64) as i64 + 1,
        () if low > high => ((low - x) / (low - high) * count as f64) as i64 + 1,
        () => return Err(bucket_fault("lower bound cannot equal upper bound")),
    };
    sized::<4>(Some(i128::from(bucket)))
}

pub(super) fn width_bucket_numeric(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (x, low, high, count) = (number(args, 0)?, number(args, 1)?, number(args, 2)?, int(args, 3)?);
    if count <= 0 {
        return Err(bucket_fault("count must be greater than zero"));
    }
    if [&x, &low, &high].iter().any(|n| n.is_nan()) {
        return Err(bucket_fault("operand, lower bound, and upper bound cannot be NaN"));
    }
    if ![&low, &high].iter().all(|n| matches!(n, Number::Finite(_))) {
        return Err(bucket_fault("lower and upper bounds must be finite"));
    }
    let order = low.compare(&high);
    if order.is_eq() {
        return Err(bucket_fault("lower bound cannot equal upper bound"));
    }
    let (position, whole) = match order.is_lt() {
        true => (x.subtracted(&low)?, high.subtracted(&low)?),
        false => (low.subtracted(&x)?, low.subtracted(&high)?),
    };
    if position.sign() < 0 {
        return Ok(Value::Int(0));
    }
    if position.compare(&whole).is_ge() {
        return sized::<4>(Some(i128::from(count) + 1));
    }
    let bucket = position.multiplied(&Number::int(count))?.divided(&whole)?.floor();
    sized::<4>(bucket.to_i64().map(|n| i128::from(n) + 1))
}

pub(super) fn int_to_float(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Float(int(args, 0)? as f64))
}

pub(super) fn int_to_real(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Float(f64::from(int(args, 0)? as f32)))
}

pub(super) fn float_to_real(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let x = float(args, 0)?;
    let y = f64::from(x as f32);
    match y {
        _ if y.is_infinite() && !x.is_infinite() => Err(overflowed()),
        _ if y == 0.0 && x != 0.0 => Err(underflowed()),
        _ => Ok(Value::Float(y)),
    }
}

pub(super) fn float_to_int<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let x = float(args, 0)?.round_ties_even();
    let within = x.is_finite() && x.abs() < 1e30;
    sized::<BYTES>(within.then_some(x as i128))
}

pub(super) fn int_to_numeric(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(numeric_value(Number::int(int(args, 0)?)))
}

pub(super) fn numeric_to_int<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let n = number(args, 0)?;
    let name = match BYTES {
        2 => "smallint",
        4 => "integer",
        _ => "bigint",
    };
    match n {
        Number::NaN => Err(SqlError::unsupported(format!("cannot convert NaN to {name}"))),
        Number::Infinity | Number::MinusInfinity => {
            Err(SqlError::unsupported(format!("cannot convert infinity to {name}")))
        }
        n => sized::<BYTES>(n.to_i64().map(i128::from)),
    }
}

pub(super) fn numeric_to_float(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let n = number(args, 0)?;
    let x = n.to_f64();
    match matches!(n, Number::Finite(_)) && x.is_infinite() {
        true => {
            let text = Numeric::from(n);
            Err(SqlError::new("22003", format!("\"{text}\" is out of range for type double precision")))
        }
        false => Ok(Value::Float(x)),
    }
}

pub(super) fn numeric_to_real(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let n = number(args, 0)?;
    let x = Numeric::from(n.clone()).as_str().parse::<f32>().unwrap_or(n.to_f64() as f32);
    match matches!(n, Number::Finite(_)) && x.is_infinite() {
        true => Err(SqlError::new("22003", format!("\"{}\" is out of range for type real", Numeric::from(n)))),
        false => Ok(Value::Float(f64::from(x))),
    }
}

/// A float as a numeric has so many digits as are surely right.
pub(super) fn float_to_numeric<const DIGITS: usize>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let mut text = String::new();
    crate::text::write_rounded(&mut text, float(args, 0)?, DIGITS);
    Numeric::parse(&text).map(Value::Numeric).map_err(|_| overflow())
}

pub(super) fn int_to_bool(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Bool(int(args, 0)? != 0))
}

pub(super) fn bool_to_int(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Int(boolean(args, 0)?.into()))
}

pub(super) fn bool_and(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Bool(boolean(args, 0)? && boolean(args, 1)?))
}

pub(super) fn bool_or(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Bool(boolean(args, 0)? || boolean(args, 1)?))
}

pub(super) fn bool_to_text(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::text(if boolean(args, 0)? { "true" } else { "false" }))
}

pub(super) fn type_of(_: &mut Env, _: Args, types: Types) -> Result<Value> {
    Ok(Value::Int(types.first().copied().unwrap_or(UNKNOWN).0.into()))
}

pub(super) fn count_nulls<const NULLS: bool>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let values: &[Value] = match args {
        [Value::Array(members)] => members,
        _ => args,
    };
    Ok(Value::Int(values.iter().filter(|value| value.is_null() == NULLS).count() as i64))
}

pub(super) fn int_to_hex<const BYTES: u8>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let n = int(args, 0)?;
    Ok(Value::Text(if BYTES == 4 { format!("{:x}", n as i32) } else { format!("{n:x}") }))
}

/// `int8(oid)` and back.
pub(super) fn to_oid(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    match u32::try_from(int(args, 0)?) {
        Ok(n) => Ok(Value::Int(n.into())),
        Err(_) => Err(SqlError::new("22003", "OID out of range")),
    }
}

pub(super) fn increment(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    sized::<8>(Some(i128::from(int(args, 0)?) + 1))
}
