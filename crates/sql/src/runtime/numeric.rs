//! Numbers of any precision, with PostgreSQL's rules for how many digits a result has.
//!
//! A finite number is an integer and the count of its decimal digits behind the point. Sums, products and remainders
//! are exact. Quotients, roots and logarithms are rounded to a scale that PostgreSQL chooses from the size of the
//! result, so that there are at least 16 significant digits; these rules follow its groups of four decimal digits.

use isles_kernel::error::SqlError;
use isles_kernel::value::Numeric;
use num_bigint::{BigInt, Sign};
use std::cmp::Ordering;
use std::f64::consts::LOG10_E;

/// PostgreSQL's limits.
const MIN_SIGNIFICANT: i64 = 16;
const MAX_DISPLAY_SCALE: i64 = 1_000;
const MAX_RESULT_SCALE: f64 = 2_000.0;
const MAX_INTEGER_DIGITS: i64 = 131_072;
const MAX_SCALE: u32 = 16_383;
const GROUP: i64 = 4;
/// Digits of a calculation beyond those of its result.
const GUARD: i64 = 25;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Number {
    NaN,
    Infinity,
    MinusInfinity,
    Finite(Decimal),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decimal {
    pub(crate) digits: BigInt,
    pub(crate) scale: u32,
}

pub(crate) fn overflow() -> SqlError {
    SqlError::new("22003", "value overflows numeric format")
}

pub(crate) fn division_by_zero() -> SqlError {
    SqlError::new("22012", "division by zero")
}

pub(crate) fn power_of_ten(n: i64) -> BigInt {
    BigInt::from(10).pow(u32::try_from(n.max(0)).unwrap_or(0))
}

/// Divides by a positive number and rounds, halves away from zero.
fn divided(dividend: &BigInt, divisor: &BigInt) -> BigInt {
    let doubled: BigInt = dividend.magnitude().clone().into();
    let divisor_magnitude: BigInt = divisor.magnitude().clone().into();
    let quotient: BigInt = (doubled * 2 + &divisor_magnitude) / (divisor_magnitude * 2);
    if (dividend.sign() == Sign::Minus) != (divisor.sign() == Sign::Minus) { -quotient } else { quotient }
}

impl Decimal {
    pub(crate) fn new(digits: impl Into<BigInt>, scale: u32) -> Decimal {
        Decimal { digits: digits.into(), scale }
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.digits.sign() == Sign::NoSign
    }

    pub(crate) fn is_negative(&self) -> bool {
        self.digits.sign() == Sign::Minus
    }

    /// The decimal exponent of the first digit.
    fn exponent(&self) -> i64 {
        self.digits.magnitude().to_string().len() as i64 - 1 - i64::from(self.scale)
    }

    /// PostgreSQL's view: groups of four digits from the first that is not zero, and the weight of that.
    fn groups(&self, most: usize) -> (i64, Vec<i64>) {
        if self.is_zero() {
            return (0, vec![]);
        }
        let text = self.digits.magnitude().to_string();
        let exponent = text.len() as i64 - 1 - i64::from(self.scale);
        let weight = exponent.div_euclid(GROUP);
        let lead = (exponent - weight * GROUP + 1) as usize;
        let mut groups = Vec::new();
        let (mut from, mut length) = (0, lead);
        while from < text.len() && groups.len() < most {
            let piece = &text[from..text.len().min(from + length)];
            groups.push(format!("{piece:0<length$}").parse().unwrap_or(0));
            from += length;
            length = GROUP as usize;
        }
        while groups.last() == Some(&0) {
            groups.pop();
        }
        (weight, groups)
    }

    /// The same value with another scale; digits that are lost round it.
    pub(crate) fn rescaled(&self, scale: i64) -> Decimal {
        let shift = scale - i64::from(self.scale);
        let digits = match shift >= 0 {
            true => &self.digits * power_of_ten(shift),
            false => divided(&self.digits, &power_of_ten(-shift)),
        };
        match u32::try_from(scale) {
            Ok(scale) => Decimal { digits, scale },
            Err(_) => Decimal { digits: digits * power_of_ten(-scale), scale: 0 },
        }
    }

    pub(crate) fn truncated(&self, scale: i64) -> Decimal {
        let shift = scale - i64::from(self.scale);
        if shift >= 0 {
            return self.rescaled(scale);
        }
        let digits = &self.digits / power_of_ten(-shift);
        match u32::try_from(scale) {
            Ok(scale) => Decimal { digits, scale },
            Err(_) => Decimal { digits: digits * power_of_ten(-scale), scale: 0 },
        }
    }

    fn aligned(&self, other: &Decimal) -> (BigInt, BigInt, u32) {
        let scale = self.scale.max(other.scale);
        let lift = |n: &Decimal| &n.digits * power_of_ten(i64::from(scale - n.scale));
        (lift(self), lift(other), scale)
    }

    fn ceiling(&self) -> Decimal {
        let whole = self.truncated(0);
        let more = whole.rescaled(i64::from(self.scale)).digits < self.digits;
        Decimal::new(whole.digits + i32::from(more), 0)
    }

    fn negated(&self) -> Decimal {
        Decimal::new(-self.digits.clone(), self.scale)
    }

    fn text(&self) -> String {
        let digits = self.digits.magnitude().to_string();
        let scale = self.scale as usize;
        let padded = format!("{digits:0>width$}", width = scale + 1);
        let (whole, part) = padded.split_at(padded.len() - scale);
        let sign = if self.is_negative() { "-" } else { "" };
        if scale == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part}") }
    }

    fn to_f64(&self) -> f64 {
        self.text().parse().unwrap_or(f64::NAN)
    }

    fn whole(&self) -> bool {
        self.truncated(0).rescaled(i64::from(self.scale)).digits == self.digits
    }
}

/// The scale that PostgreSQL gives a quotient.
fn quotient_scale(a: &Decimal, b: &Decimal) -> i64 {
    let ((weight_a, first_a), (weight_b, first_b)) = (a.groups(1), b.groups(1));
    let first = |groups: Vec<i64>| groups.first().copied().unwrap_or(0);
    let smaller = first(first_a) <= first(first_b);
    let weight = weight_a - weight_b - i64::from(smaller);
    display_scale(MIN_SIGNIFICANT - weight * GROUP, &[a, b])
}

/// A scale not below that of the inputs and not above what is shown.
fn display_scale(scale: i64, inputs: &[&Decimal]) -> i64 {
    inputs.iter().map(|n| i64::from(n.scale)).fold(scale, i64::max).clamp(0, MAX_DISPLAY_SCALE)
}

fn quotient(a: &Decimal, b: &Decimal, scale: i64) -> Decimal {
    let shift = scale + i64::from(b.scale) - i64::from(a.scale);
    let (dividend, divisor) = match shift >= 0 {
        true => (&a.digits * power_of_ten(shift), b.digits.clone()),
        false => (a.digits.clone(), &b.digits * power_of_ten(-shift)),
    };
    Decimal::new(divided(&dividend, &divisor), scale as u32)
}

impl Number {
    pub(crate) fn of(numeric: &Numeric) -> Number {
        match numeric.as_str() {
            "NaN" => Number::NaN,
            "Infinity" => Number::Infinity,
            "-Infinity" => Number::MinusInfinity,
            text => {
                let scale = text.len() - text.find('.').map_or(text.len(), |at| at + 1);
                let digits = text.replace('.', "").parse().unwrap_or_default();
                Number::Finite(Decimal { digits, scale: scale as u32 })
            }
        }
    }

    pub(crate) fn int(n: i64) -> Number {
        Number::Finite(Decimal::new(n, 0))
    }

    pub(crate) fn is_nan(&self) -> bool {
        matches!(self, Number::NaN)
    }

    /// The sign of a number that is not NaN.
    pub(crate) fn sign(&self) -> i32 {
        match self {
            Number::NaN => 0,
            Number::Infinity => 1,
            Number::MinusInfinity => -1,
            Number::Finite(n) => match n.digits.sign() {
                Sign::Plus => 1,
                Sign::NoSign => 0,
                Sign::Minus => -1,
            },
        }
    }

    fn checked(decimal: Decimal) -> Result<Number, SqlError> {
        if !decimal.is_zero() && decimal.digits.bits() > 400_000 && decimal.exponent() >= MAX_INTEGER_DIGITS {
            return Err(overflow());
        }
        let scale = i64::from(decimal.scale.min(MAX_SCALE));
        Ok(Number::Finite(if decimal.scale > MAX_SCALE { decimal.rescaled(scale) } else { decimal }))
    }

    pub(crate) fn negated(&self) -> Number {
        match self {
            Number::NaN => Number::NaN,
            Number::Infinity => Number::MinusInfinity,
            Number::MinusInfinity => Number::Infinity,
            Number::Finite(n) => Number::Finite(n.negated()),
        }
    }

    pub(crate) fn absolute(&self) -> Number {
        if self.sign() < 0 { self.negated() } else { self.clone() }
    }

    pub(crate) fn added(&self, other: &Number) -> Result<Number, SqlError> {
        match (self, other) {
            (Number::Finite(a), Number::Finite(b)) => {
                let (x, y, scale) = a.aligned(b);
                Number::checked(Decimal::new(x + y, scale))
            }
            (Number::NaN, _) | (_, Number::NaN) => Ok(Number::NaN),
            (Number::Infinity, Number::MinusInfinity) | (Number::MinusInfinity, Number::Infinity) => Ok(Number::NaN),
            (Number::Finite(_), infinite) | (infinite, _) => Ok(infinite.clone()),
        }
    }

    pub(crate) fn subtracted(&self, other: &Number) -> Result<Number, SqlError> {
        self.added(&other.negated())
    }

    pub(crate) fn multiplied(&self, other: &Number) -> Result<Number, SqlError> {
        match (self, other) {
            (Number::Finite(a), Number::Finite(b)) => {
                Number::checked(Decimal::new(&a.digits * &b.digits, a.scale + b.scale))
            }
            (Number::NaN, _) | (_, Number::NaN) => Ok(Number::NaN),
            _ => Ok(match self.sign() * other.sign() {
                0 => Number::NaN,
                1 => Number::Infinity,
                _ => Number::MinusInfinity,
            }),
        }
    }

    pub(crate) fn divided(&self, other: &Number) -> Result<Number, SqlError> {
        match (self, other) {
            (Number::NaN, _) | (_, Number::NaN) => Ok(Number::NaN),
            (Number::Finite(a), Number::Finite(b)) => {
                if b.is_zero() {
                    return Err(division_by_zero());
                }
                Number::checked(quotient(a, b, quotient_scale(a, b)))
            }
            (Number::Finite(_), _) => Ok(Number::int(0)),
            (_, Number::Finite(b)) if b.is_zero() => Err(division_by_zero()),
            (_, Number::Finite(_)) => {
                Ok(if self.sign() * other.sign() > 0 { Number::Infinity } else { Number::MinusInfinity })
            }
            _ => Ok(Number::NaN),
        }
    }

    /// The whole quotient, towards zero.
    pub(crate) fn divided_whole(&self, other: &Number) -> Result<Number, SqlError> {
        match (self, other) {
            (Number::Finite(a), Number::Finite(b)) => {
                if b.is_zero() {
                    return Err(division_by_zero());
                }
                let (x, y, _) = a.aligned(b);
                Ok(Number::Finite(Decimal::new(x / y, 0)))
            }
            _ => self.divided(other),
        }
    }

    pub(crate) fn remainder(&self, other: &Number) -> Result<Number, SqlError> {
        match (self, other) {
            (Number::NaN, _) | (_, Number::NaN) => Ok(Number::NaN),
            (_, Number::Finite(b)) if b.is_zero() => Err(division_by_zero()),
            (Number::Finite(a), Number::Finite(b)) => {
                let (x, y, scale) = a.aligned(b);
                Ok(Number::Finite(Decimal::new(x % y, scale)))
            }
            (Number::Finite(_), _) => Ok(self.clone()),
            _ => Ok(Number::NaN),
        }
    }

    fn map(&self, change: impl FnOnce(&Decimal) -> Decimal) -> Number {
        match self {
            Number::Finite(n) => Number::Finite(change(n)),
            other => other.clone(),
        }
    }

    pub(crate) fn rounded(&self, scale: i64) -> Number {
        self.map(|n| n.rescaled(scale))
    }

    pub(crate) fn truncated(&self, scale: i64) -> Number {
        self.map(|n| n.truncated(scale))
    }

    pub(crate) fn ceiling(&self) -> Number {
        self.map(Decimal::ceiling)
    }

    pub(crate) fn floor(&self) -> Number {
        self.map(|n| n.negated().ceiling().negated())
    }

    pub(crate) fn compare(&self, other: &Number) -> Ordering {
        let rank = |n: &Number| match n {
            Number::MinusInfinity => 0,
            Number::Finite(_) => 1,
            Number::Infinity => 2,
            Number::NaN => 3,
        };
        match (self, other) {
            (Number::Finite(a), Number::Finite(b)) => {
                let (x, y, _) = a.aligned(b);
                x.cmp(&y)
            }
            _ => rank(self).cmp(&rank(other)),
        }
    }

    pub(crate) fn scale(&self) -> Option<u32> {
        match self {
            Number::Finite(n) => Some(n.scale),
            _ => None,
        }
    }

    /// Without zeros at its end.
    pub(crate) fn trimmed(&self) -> Number {
        self.map(|n| n.rescaled(i64::from(n.least_scale())))
    }

    pub(crate) fn square_root(&self) -> Result<Number, SqlError> {
        let negative = || SqlError::new("2201F", "cannot take square root of a negative number");
        match self {
            Number::Finite(n) if n.is_negative() => Err(negative()),
            Number::MinusInfinity => Err(negative()),
            Number::Finite(n) => {
                let (weight, _) = n.groups(1);
                let whole_digits = weight * GROUP / 2 + 1;
                Ok(Number::Finite(root(n, display_scale(MIN_SIGNIFICANT - whole_digits, &[n]))))
            }
            other => Ok(other.clone()),
        }
    }

    pub(crate) fn exponential(&self) -> Result<Number, SqlError> {
        match self {
            Number::NaN => Ok(Number::NaN),
            Number::Infinity => Ok(Number::Infinity),
            Number::MinusInfinity => Ok(Number::int(0)),
            Number::Finite(n) => {
                let size = (n.to_f64() * LOG10_E).clamp(-MAX_RESULT_SCALE, MAX_RESULT_SCALE);
                let scale = display_scale(MIN_SIGNIFICANT - size as i64, &[n]);
                if n.to_f64().abs() >= MAX_RESULT_SCALE * 3.0 {
                    return match n.is_negative() {
                        true => Ok(Number::Finite(Decimal::new(0, scale as u32))),
                        false => Err(overflow()),
                    };
                }
                let work = scale + (size as i64).max(0) + GUARD;
                Number::checked(exp_fixed(&fixed(n, work), work).into_decimal(work).rescaled(scale))
            }
        }
    }

    pub(crate) fn logarithm(&self) -> Result<Number, SqlError> {
        match self {
            Number::NaN => Ok(Number::NaN),
            Number::Infinity => Ok(Number::Infinity),
            _ if self.sign() < 0 => Err(SqlError::new("2201E", "cannot take logarithm of a negative number")),
            _ if self.sign() == 0 => Err(SqlError::new("2201E", "cannot take logarithm of zero")),
            Number::MinusInfinity => Ok(Number::NaN),
            Number::Finite(n) => {
                let scale = display_scale(MIN_SIGNIFICANT - log_size(n), &[n]);
                Number::checked(ln(n, scale + GUARD).rescaled(scale))
            }
        }
    }

    pub(crate) fn logarithm_of_base(base: &Number, number: &Number) -> Result<Number, SqlError> {
        if base.is_nan() || number.is_nan() {
            return Ok(Number::NaN);
        }
        for given in [base, number].into_iter().filter(|n| n.sign() < 0).chain([base, number]) {
            if given.sign() <= 0 {
                given.logarithm()?;
            }
        }
        match (base, number) {
            (Number::NaN, _) | (_, Number::NaN) => Ok(Number::NaN),
            (Number::Finite(base), Number::Finite(number)) => {
                let scale = display_scale(MIN_SIGNIFICANT - (log_size(number) - log_size(base)), &[base, number]);
                let work = scale + GUARD + 10;
                let bottom = ln(base, work);
                if bottom.is_zero() {
                    return Err(division_by_zero());
                }
                Number::checked(quotient(&ln(number, work), &bottom, scale))
            }
            (Number::Finite(_), _) => Ok(Number::Infinity),
            (_, Number::Finite(_)) => Ok(Number::int(0)),
            _ => Ok(Number::NaN),
        }
    }

    pub(crate) fn power(&self, exponent: &Number) -> Result<Number, SqlError> {
        match (self, exponent) {
            (Number::NaN, n) if n.sign() == 0 && !n.is_nan() => Ok(Number::int(1)),
            (Number::Finite(one), Number::NaN) if *one == one.one() => Ok(Number::int(1)),
            (Number::NaN, _) | (_, Number::NaN) => Ok(Number::NaN),
            (Number::Finite(base), Number::Finite(exponent)) => base.power(exponent),
            _ => self.infinite_power(exponent),
        }
    }

    fn infinite_power(&self, exponent: &Number) -> Result<Number, SqlError> {
        let one = Number::int(1);
        if exponent.sign() == 0 || self.compare(&one).is_eq() {
            return Ok(one);
        }
        if self.sign() < 0 && matches!(exponent, Number::Finite(n) if !n.whole()) {
            return Err(complex_power());
        }
        if self.sign() == 0 {
            return if exponent.sign() > 0 { Ok(Number::int(0)) } else { Err(zero_power()) };
        }
        let larger = self.absolute().compare(&one);
        match (larger, exponent.sign() > 0) {
            (Ordering::Equal, _) => Ok(one),
            (Ordering::Greater, true) | (Ordering::Less, false) => {
                let odd = matches!(exponent, Number::Finite(n) if (n.truncated(0).digits % 2u32) != BigInt::from(0));
                Ok(if self.sign() < 0 && odd { Number::MinusInfinity } else { Number::Infinity })
            }
            _ => Ok(Number::int(0)),
        }
    }

    /// As a column of `numeric(precision, scale)` keeps it.
    pub(crate) fn fitted(&self, precision: i32, scale: i32) -> Result<Number, SqlError> {
        let refused = |end: String| {
            let detail = format!("A field with precision {precision}, scale {scale} {end}");
            SqlError::new("22003", "numeric field overflow").with_detail(detail)
        };
        match self {
            Number::NaN => Ok(Number::NaN),
            Number::Finite(n) => {
                let fitted = n.rescaled(i64::from(scale));
                let digits = precision - scale;
                if !fitted.is_zero() && fitted.exponent() + 1 > i64::from(digits) {
                    let limit = if digits == 0 { "1".to_string() } else { format!("10^{digits}") };
                    return Err(refused(format!("must round to an absolute value less than {limit}.")));
                }
                Ok(Number::Finite(fitted))
            }
            _ => Err(refused("cannot hold an infinite value.".into())),
        }
    }

    pub(crate) fn to_f64(&self) -> f64 {
        match self {
            Number::NaN => f64::NAN,
            Number::Infinity => f64::INFINITY,
            Number::MinusInfinity => f64::NEG_INFINITY,
            Number::Finite(n) => n.to_f64(),
        }
    }

    /// Rounded to a whole number, if it is one of 64 bits.
    pub(crate) fn to_i64(&self) -> Option<i64> {
        match self {
            Number::Finite(n) => i64::try_from(n.rescaled(0).digits).ok(),
            _ => None,
        }
    }

    pub(crate) fn gcd(&self, other: &Number) -> Number {
        match (self, other) {
            (Number::Finite(a), Number::Finite(b)) => {
                let (mut x, mut y, scale) = a.aligned(b);
                while y.sign() != Sign::NoSign {
                    (x, y) = (y.clone(), x % y);
                }
                Number::Finite(Decimal::new(BigInt::from(x.magnitude().clone()), scale))
            }
            _ => Number::NaN,
        }
    }
}

fn zero_power() -> SqlError {
    SqlError::new("2201F", "zero raised to a negative power is undefined")
}

fn complex_power() -> SqlError {
    SqlError::new("2201F", "a negative number raised to a non-integer power yields a complex result")
}

impl Decimal {
    fn one(&self) -> Decimal {
        Decimal::new(power_of_ten(i64::from(self.scale)), self.scale)
    }

    pub(crate) fn least_scale(&self) -> u32 {
        let text = self.text();
        let part = text.split_once('.').map_or("", |(_, part)| part);
        part.trim_end_matches('0').len() as u32
    }

    fn power(&self, exponent: &Decimal) -> Result<Number, SqlError> {
        if self.is_zero() && exponent.is_negative() {
            return Err(zero_power());
        }
        if exponent.whole()
            && let Ok(whole) = i32::try_from(exponent.truncated(0).digits)
        {
            return self.whole_power(whole);
        }
        if self.is_zero() {
            return Ok(Number::Finite(Decimal::new(0, MIN_SIGNIFICANT as u32)));
        }
        let base = match self.is_negative() {
            true if !exponent.whole() => return Err(complex_power()),
            true => self.negated(),
            false => self.clone(),
        };
        let rough = exponent.to_f64() * approximate_ln(&base);
        if rough.abs() > MAX_RESULT_SCALE * 3.01 {
            return if rough > 0.0 { Err(overflow()) } else { Ok(Number::Finite(Decimal::new(0, 1_000))) };
        }
        let size = (rough * LOG10_E) as i64;
        let scale = display_scale(MIN_SIGNIFICANT - size, &[&base, exponent]);
        let work = scale + size.max(0) + exponent.exponent().max(0) + GUARD + 5;
        let product = fixed(&ln(&base, work), work) * fixed(exponent, work) / power_of_ten(work);
        let result = exp_fixed(&product, work).into_decimal(work).rescaled(scale);
        let odd = self.is_negative() && (exponent.truncated(0).digits % 2u32) != BigInt::from(0);
        Number::checked(if odd { result.negated() } else { result })
    }

    fn whole_power(&self, exponent: i32) -> Result<Number, SqlError> {
        let (weight, groups) = self.groups(4);
        let size = match groups.split_first() {
            None => 0.0,
            Some((first, rest)) => {
                let (mut f, mut p) = (*first as f64, weight * GROUP);
                for group in rest {
                    f = f * 10_000.0 + *group as f64;
                    p -= GROUP;
                }
                f64::from(exponent) * (f.log10() + p as f64)
            }
        };
        if size > MAX_INTEGER_DIGITS as f64 {
            return Err(overflow());
        }
        if size + 1.0 < -(MAX_DISPLAY_SCALE as f64) {
            return Ok(Number::Finite(Decimal::new(0, MAX_DISPLAY_SCALE as u32)));
        }
        let scale = display_scale(MIN_SIGNIFICANT, &[self]);
        let result = match exponent {
            0 => Decimal::new(1, 0).rescaled(scale),
            _ if self.is_zero() => Decimal::new(0, scale as u32),
            _ => self.repeated_product(exponent, scale, size),
        };
        Number::checked(result)
    }

    /// A power by squaring, with digits to spare.
    fn repeated_product(&self, exponent: i32, scale: i64, size: f64) -> Decimal {
        let significant = scale + size.abs() as i64 + GUARD + 10;
        let trim = |n: Decimal| {
            let excess = n.digits.magnitude().to_string().len() as i64 - significant * 2;
            if excess > 0 && i64::from(n.scale) > excess { n.rescaled(i64::from(n.scale) - excess) } else { n }
        };
        let (mut result, mut square, mut left) = (Decimal::new(1, 0), self.clone(), exponent.unsigned_abs());
        while left > 0 {
            if left & 1 == 1 {
                result = trim(Decimal::new(&result.digits * &square.digits, result.scale + square.scale));
            }
            left >>= 1;
            if left > 0 {
                square = trim(Decimal::new(&square.digits * &square.digits, square.scale * 2));
            }
        }
        if exponent < 0 { quotient(&Decimal::new(1, 0), &result, scale) } else { result.rescaled(scale) }
    }
}

fn root(n: &Decimal, scale: i64) -> Decimal {
    // floor(sqrt(4 n)) tells the root and whether it rounds up.
    let shift = 2 * scale - i64::from(n.scale);
    let lifted: BigInt = match shift >= 0 {
        true => &n.digits * power_of_ten(shift) * 4,
        false => &n.digits * 4 / power_of_ten(-shift),
    };
    let doubled = lifted.sqrt();
    Decimal::new((doubled + 1) / 2, scale as u32)
}

/// A number times 10^places, as an integer.
fn fixed(n: &Decimal, places: i64) -> BigInt {
    n.rescaled(places).digits
}

struct Fixed(BigInt);

impl Fixed {
    fn into_decimal(self, places: i64) -> Decimal {
        Decimal::new(self.0, places as u32)
    }
}

/// e^x of numbers times 10^places.
fn exp_fixed(x: &BigInt, places: i64) -> Fixed {
    // Halved until it is small, then squared as often.
    let halvings = (x.bits() as i64 - (places as f64 * std::f64::consts::LOG2_10) as i64 + 8).max(0) as usize;
    let extra = halvings as i64 / 2 + 10;
    let one = power_of_ten(places + extra);
    let small: BigInt = (x * power_of_ten(extra)) >> halvings;
    let (mut term, mut sum, mut n) = (one.clone(), one.clone(), 1u32);
    while term.sign() != Sign::NoSign && n < 100_000 {
        term = term * &small / &one / n;
        sum += &term;
        n += 1;
        if term == BigInt::from(-1) {
            break;
        }
    }
    for _ in 0..halvings {
        sum = &sum * &sum / &one;
    }
    Fixed(sum / power_of_ten(extra))
}

/// The natural logarithm, near enough to begin with.
fn approximate_ln(n: &Decimal) -> f64 {
    let text = n.digits.magnitude().to_string();
    let lead = &text[..text.len().min(17)];
    let mantissa: f64 = lead.parse().unwrap_or(1.0);
    mantissa.ln() + (text.len() as f64 - lead.len() as f64 - f64::from(n.scale)) * std::f64::consts::LN_10
}

/// The natural logarithm of a positive number to so many places.
fn ln(n: &Decimal, places: i64) -> Decimal {
    let exponent = n.exponent();
    let work = places + 15;
    // n = m * 10^exponent, with m between 1 and 10.
    let shifted = i64::from(n.scale) + exponent;
    let mantissa = match u32::try_from(shifted) {
        Ok(scale) => Decimal::new(n.digits.clone(), scale),
        Err(_) => Decimal::new(&n.digits * power_of_ten(-shifted), 0),
    };
    let mut result = ln_fixed(&fixed(&mantissa, work), work);
    if exponent != 0 {
        result += ln_fixed(&fixed(&Decimal::new(10, 0), work), work) * exponent;
    }
    Decimal::new(result, work as u32).rescaled(places)
}

/// ln(x) for x between 1 and 10, times 10^places, by Halley's iteration over the exponential.
fn ln_fixed(x: &BigInt, places: i64) -> BigInt {
    let one = power_of_ten(places);
    let value = Decimal::new(x.clone(), places as u32);
    let start = format!("{:.17}", approximate_ln(&value));
    let mut y = fixed(&Decimal::new(start.replace('.', "").parse::<BigInt>().unwrap_or_default(), 17), places);
    // Each round triples the digits, from 15 on.
    let mut known = 15;
    while known < places * 2 {
        let e = exp_fixed(&y, places).0;
        y += (x - &e) * 2 * &one / (x + &e);
        known *= 3;
    }
    y
}

/// The decimal exponent of a logarithm, as PostgreSQL estimates it.
fn log_size(n: &Decimal) -> i64 {
    let one = n.one();
    let near = Number::Finite(Decimal::new(&n.digits * 10, n.scale));
    let low = Number::Finite(Decimal::new(&one.digits * 9, n.scale));
    let high = Number::Finite(Decimal::new(&one.digits * 11, n.scale));
    if near.compare(&low).is_ge() && near.compare(&high).is_le() {
        let distance = Decimal::new(&n.digits - &one.digits, n.scale);
        let (weight, groups) = distance.groups(1);
        return groups.first().map_or(0, |first| weight * GROUP + (*first as f64).log10() as i64);
    }
    let (weight, groups) = n.groups(2);
    let estimate = match groups[..] {
        [first, second] => {
            ((first * 10_000 + second) as f64).ln() + ((weight - 1) * GROUP) as f64 * std::f64::consts::LN_10
        }
        [first] => (first as f64).ln() + (weight * GROUP) as f64 * std::f64::consts::LN_10,
        _ => 1.0,
    };
    estimate.abs().log10() as i64
}

impl From<Number> for Numeric {
    fn from(number: Number) -> Numeric {
        let text = match &number {
            Number::NaN => "NaN".to_string(),
            Number::Infinity => "Infinity".to_string(),
            Number::MinusInfinity => "-Infinity".to_string(),
            Number::Finite(n) => n.text(),
        };
        Numeric::parse(&text).unwrap_or_else(|_| Number::NaN.into())
    }
}

const WIRE_NEGATIVE: u16 = 0x4000;
const WIRE_NAN: u16 = 0xC000;
const WIRE_INFINITY: u16 = 0xD000;
const WIRE_MINUS_INFINITY: u16 = 0xF000;

/// Appends the binary form: groups of four digits, where the first stands, sign and scale.
pub(crate) fn to_wire(numeric: &Numeric, out: &mut Vec<u8>) {
    let (groups, weight, sign, scale) = match Number::of(numeric) {
        Number::NaN => (vec![], 0, WIRE_NAN, 0),
        Number::Infinity => (vec![], 0, WIRE_INFINITY, 0),
        Number::MinusInfinity => (vec![], 0, WIRE_MINUS_INFINITY, 0),
        Number::Finite(n) => {
            let (weight, groups) = n.groups(usize::MAX);
            (groups, weight, if n.is_negative() { WIRE_NEGATIVE } else { 0 }, n.scale)
        }
    };
    for word in [groups.len() as u16, weight as i16 as u16, sign, scale as u16] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    groups.iter().for_each(|group| out.extend_from_slice(&(*group as u16).to_be_bytes()));
}

/// Reads the binary form; nothing if it is none.
pub(crate) fn from_wire(bytes: &[u8]) -> Option<Numeric> {
    let words: Vec<u16> = bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
    let [count, weight, sign, scale, groups @ ..] = &words[..] else { return None };
    if groups.len() != usize::from(*count)
        || !bytes.len().is_multiple_of(2)
        || groups.iter().any(|group| *group > 9_999)
    {
        return None;
    }
    let number = match *sign {
        WIRE_NAN => Number::NaN,
        WIRE_INFINITY => Number::Infinity,
        WIRE_MINUS_INFINITY => Number::MinusInfinity,
        0 | WIRE_NEGATIVE => {
            let mut digits = BigInt::default();
            groups.iter().for_each(|group| digits = std::mem::take(&mut digits) * 10_000 + *group);
            // The last group stands so many places behind the point.
            let places = (i64::from(*count) - 1 - i64::from(*weight as i16)) * GROUP;
            let digits = if *sign == WIRE_NEGATIVE { -digits } else { digits };
            let exact = match u32::try_from(places) {
                Ok(scale) => Decimal::new(digits, scale),
                Err(_) => Decimal::new(digits * power_of_ten(-places), 0),
            };
            Number::Finite(exact.truncated(i64::from(*scale & 0x3FFF)))
        }
        _ => return None,
    };
    Some(number.into())
}
