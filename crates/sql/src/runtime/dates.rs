//! Dates, times and intervals: arithmetic, fields, truncation, zones.

use super::numeric::{Decimal, Number};
use super::{Env, Result, at, float, int, interval, numeric_value, text, unexpected};
use crate::text::datetime::{JULIAN_DAY, MICROS_PER_DAY, MICROS_PER_SECOND};
use crate::text::tokens::{Unit, UnitWord, special, unit};
use crate::text::{Zone, type_name};
use crate::types::*;
use isles_kernel::error::SqlError;
use isles_kernel::form::{civil, days_of};
use isles_kernel::interval::Interval;
use isles_kernel::value::{DATES, TIMESTAMPS, Value};

type Args<'a> = &'a [Value];
type Types<'a> = &'a [Oid];

const MICROS_PER_HOUR: i64 = 3_600 * MICROS_PER_SECOND;
const MICROS_PER_MINUTE: i64 = 60 * MICROS_PER_SECOND;
const UNIX_EPOCH_SECONDS: i64 = 946_684_800;
/// Floats that are microseconds of 64 bits; NaN is none of them.
const FITTING: std::ops::Range<f64> = (i64::MIN as f64)..(i64::MAX as f64);
const UNIX_EPOCH_DAYS: i64 = 10_957;

/// A date or timestamp as local time and as an instant; the extremes are infinite in both.
pub(super) struct Moment {
    pub(super) local: i64,
    pub(super) instant: i64,
}

fn timestamp_range() -> SqlError {
    SqlError::new("22008", "timestamp out of range")
}

fn date_range() -> SqlError {
    SqlError::new("22008", "date out of range")
}

fn interval_range() -> SqlError {
    SqlError::new("22008", "interval out of range")
}

fn is_infinite(micros: i64) -> bool {
    [i64::MIN, i64::MAX].contains(&micros)
}

fn midnight(days: i32) -> i64 {
    match days {
        i32::MAX => i64::MAX,
        i32::MIN => i64::MIN,
        // Beyond every timestamp, and not infinite.
        _ => i64::from(days).saturating_mul(MICROS_PER_DAY).clamp(i64::MIN + 1, i64::MAX - 1),
    }
}

/// The start of a day that a timestamp can hold.
fn day_start(days: i32) -> Result<i64> {
    let start = midnight(days);
    let valid = TIMESTAMPS.contains(&start) || [i32::MIN, i32::MAX].contains(&days);
    if valid { Ok(start) } else { Err(SqlError::new("22008", "date out of range for timestamp")) }
}

fn to_instant(local: i64, zone: &Zone) -> i64 {
    moved(local, -i64::from(if is_infinite(local) { 0 } else { zone.offset_of_local(local) }))
}

/// So many seconds later; what is finite stays so.
fn moved(micros: i64, seconds: i64) -> i64 {
    if is_infinite(micros) {
        return micros;
    }
    micros.saturating_add(seconds * MICROS_PER_SECOND).clamp(i64::MIN + 1, i64::MAX - 1)
}

fn to_local(instant: i64, zone: &Zone) -> i64 {
    moved(instant, i64::from(if is_infinite(instant) { 0 } else { zone.offset_at(instant) }))
}

pub(super) fn moment(value: &Value, env: &Env) -> Option<Moment> {
    let zone = &env.settings.zone;
    let of_local = |local: i64| Moment { local, instant: to_instant(local, zone) };
    match value {
        Value::Date(days) => Some(of_local(midnight(*days))),
        Value::Timestamp(local) => Some(of_local(*local)),
        Value::TimestampTz(instant) => Some(Moment { local: to_local(*instant, zone), instant: *instant }),
        _ => None,
    }
}

fn local(env: &Env, args: Args, index: usize) -> Result<i64> {
    moment(at(args, index), env).map(|moment| moment.local).ok_or_else(|| unexpected(at(args, index)))
}

fn days(args: Args, index: usize) -> Result<i32> {
    match at(args, index) {
        Value::Date(days) => Ok(*days),
        other => Err(unexpected(other)),
    }
}

fn time(args: Args, index: usize) -> Result<i64> {
    match at(args, index) {
        Value::Time(micros) => Ok(*micros),
        other => Err(unexpected(other)),
    }
}

fn timestamp(micros: Option<i64>) -> Result<i64> {
    micros.filter(|micros| TIMESTAMPS.contains(micros) || is_infinite(*micros)).ok_or_else(timestamp_range)
}

/// A timestamp of the same kind as the first argument.
fn like(value: &Value, micros: i64) -> Value {
    if matches!(value, Value::TimestampTz(_)) { Value::TimestampTz(micros) } else { Value::Timestamp(micros) }
}

fn last_day(year: i64, month: u32) -> i64 {
    let next = if month == 12 { days_of(year + 1, 1, 1) } else { days_of(year, month + 1, 1) };
    next - days_of(year, month, 1)
}

/// Months first, with the day no later than the last of its month; then days.
fn shift_local(local: i64, interval: &Interval) -> Option<i64> {
    let (mut day, clock) = (local.div_euclid(MICROS_PER_DAY), local.rem_euclid(MICROS_PER_DAY));
    if interval.months != 0 {
        let (year, month, of_month) = civil(day);
        let months = year * 12 + i64::from(month) - 1 + i64::from(interval.months);
        let (year, month) = (months.div_euclid(12), months.rem_euclid(12) as u32 + 1);
        day = days_of(year, month, i64::from(of_month).min(last_day(year, month)));
    }
    day.checked_add(i64::from(interval.days))?.checked_mul(MICROS_PER_DAY)?.checked_add(clock)
}

pub(super) fn shifted(value: &Value, interval: &Interval, env: &Env) -> Result<Value> {
    let zone = &env.settings.zone;
    match value {
        Value::Date(days) => shifted(&Value::Timestamp(day_start(*days)?), interval, env),
        Value::Timestamp(t) | Value::TimestampTz(t) if is_infinite(*t) => Ok(value.clone()),
        Value::Timestamp(t) => {
            let moved = shift_local(*t, interval).and_then(|t| t.checked_add(interval.micros));
            timestamp(moved).map(Value::Timestamp)
        }
        Value::TimestampTz(t) => {
            let day_moved = match (interval.months, interval.days) {
                (0, 0) => Some(*t),
                _ => shift_local(to_local(*t, zone), interval).map(|local| to_instant(local, zone)),
            };
            timestamp(day_moved.and_then(|t| t.checked_add(interval.micros))).map(Value::TimestampTz)
        }
        other => Err(unexpected(other)),
    }
}

fn opposite(interval: &Interval) -> Result<Interval> {
    let flipped = (interval.months.checked_neg(), interval.days.checked_neg(), interval.micros.checked_neg());
    match flipped {
        (Some(months), Some(days), Some(micros)) => Ok(Interval::new(months, days, micros)),
        _ => Err(interval_range()),
    }
}

pub(super) fn add_interval(env: &mut Env, args: Args, _: Types) -> Result<Value> {
    match (at(args, 0), at(args, 1)) {
        (moment, Value::Interval(interval)) => shifted(moment, interval, env),
        (Value::Interval(interval), moment) => shifted(moment, interval, env),
        (other, _) => Err(unexpected(other)),
    }
}

pub(super) fn subtract_interval(env: &mut Env, args: Args, _: Types) -> Result<Value> {
    shifted(at(args, 0), &opposite(&interval(args, 1)?)?, env)
}

pub(super) fn subtract_timestamps(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    match (at(args, 0), at(args, 1)) {
        (Value::Timestamp(a), Value::Timestamp(b)) | (Value::TimestampTz(a), Value::TimestampTz(b)) => {
            if is_infinite(*a) || is_infinite(*b) {
                return Err(SqlError::new("22008", "cannot subtract infinite timestamps"));
            }
            let micros = a.checked_sub(*b).ok_or_else(interval_range)?;
            Ok(Value::Interval(justified_hours(Interval::new(0, 0, micros))?))
        }
        (other, _) => Err(unexpected(other)),
    }
}

pub(super) fn add_days(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (date, more) = match (at(args, 0), at(args, 1)) {
        (Value::Date(date), Value::Int(n)) | (Value::Int(n), Value::Date(date)) => (*date, *n),
        (other, _) => return Err(unexpected(other)),
    };
    moved_date(date, more)
}

fn moved_date(date: i32, more: i64) -> Result<Value> {
    if [i32::MIN, i32::MAX].contains(&date) {
        return Ok(Value::Date(date));
    }
    let moved = i32::try_from(i64::from(date) + more).ok().filter(|days| DATES.contains(days));
    moved.map(Value::Date).ok_or_else(date_range)
}

pub(super) fn subtract_days(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    moved_date(days(args, 0)?, -int(args, 1)?)
}

pub(super) fn subtract_dates(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (a, b) = (days(args, 0)?, days(args, 1)?);
    if [a, b].iter().any(|days| [i32::MIN, i32::MAX].contains(days)) {
        return Err(SqlError::new("22008", "cannot subtract infinite dates"));
    }
    Ok(Value::Int(i64::from(a) - i64::from(b)))
}

pub(super) fn date_and_time(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (date, clock) = match (at(args, 0), at(args, 1)) {
        (Value::Date(date), Value::Time(clock)) | (Value::Time(clock), Value::Date(date)) => (*date, *clock),
        (other, _) => return Err(unexpected(other)),
    };
    let start = day_start(date)?;
    if is_infinite(start) {
        return Ok(Value::Timestamp(start));
    }
    timestamp(start.checked_add(clock)).map(Value::Timestamp)
}

pub(super) fn add_to_time(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (clock, interval) = match (at(args, 0), at(args, 1)) {
        (Value::Time(clock), Value::Interval(interval)) | (Value::Interval(interval), Value::Time(clock)) => {
            (clock, interval)
        }
        (other, _) => return Err(unexpected(other)),
    };
    Ok(Value::Time((clock + interval.micros % MICROS_PER_DAY).rem_euclid(MICROS_PER_DAY)))
}

pub(super) fn subtract_from_time(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let micros = interval(args, 1)?.micros % MICROS_PER_DAY;
    Ok(Value::Time((time(args, 0)? - micros).rem_euclid(MICROS_PER_DAY)))
}

pub(super) fn subtract_times(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Interval(Interval::new(0, 0, time(args, 0)? - time(args, 1)?)))
}

fn summed(a: &Interval, b: &Interval) -> Option<Interval> {
    Some(Interval::new(a.months.checked_add(b.months)?, a.days.checked_add(b.days)?, a.micros.checked_add(b.micros)?))
}

pub(super) fn sum_intervals(a: &Interval, b: &Interval) -> Result<Interval> {
    summed(a, b).ok_or_else(interval_range)
}

pub(super) fn difference_of_intervals(a: &Interval, b: &Interval) -> Result<Interval> {
    let (months, days, micros) =
        (a.months.checked_sub(b.months), a.days.checked_sub(b.days), a.micros.checked_sub(b.micros));
    match (months, days, micros) {
        (Some(months), Some(days), Some(micros)) => Ok(Interval::new(months, days, micros)),
        _ => Err(interval_range()),
    }
}

pub(super) fn add_intervals(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    sum_intervals(&interval(args, 0)?, &interval(args, 1)?).map(Value::Interval)
}

pub(super) fn subtract_intervals(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    difference_of_intervals(&interval(args, 0)?, &interval(args, 1)?).map(Value::Interval)
}

pub(super) fn negate_interval(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    opposite(&interval(args, 0)?).map(Value::Interval)
}

/// Rounds a fraction of a day to whole microseconds before its whole seconds are taken, as PostgreSQL does.
fn rounded_fraction(x: f64) -> f64 {
    (x * 1e6).round_ties_even() / 1e6
}

/// Multiplied by a factor, fractions of months running over into days and those of days into time.
pub(super) fn scaled(interval: &Interval, factor: f64) -> Result<Interval> {
    let wide = |x: f64| {
        if x.is_nan() || x > f64::from(i32::MAX) || x < f64::from(i32::MIN) {
            Err(interval_range())
        } else {
            Ok(x as i32)
        }
    };
    let months = f64::from(interval.months) * factor;
    let days = f64::from(interval.days) * factor;
    let (whole_months, mut whole_days) = (wide(months)?, wide(days)?);
    let month_rest = rounded_fraction((months - f64::from(whole_months)) * 30.0);
    let day_rest = rounded_fraction((days - f64::from(whole_days)) * 86_400.0);
    let month_days = month_rest as i32;
    let mut seconds = rounded_fraction(day_rest + (month_rest - f64::from(month_days)) * 86_400.0);
    if seconds.abs() >= 86_400.0 {
        let more = (seconds / 86_400.0) as i32;
        whole_days = whole_days.checked_add(more).ok_or_else(interval_range)?;
        seconds -= f64::from(more) * 86_400.0;
    }
    whole_days = whole_days.checked_add(month_days).ok_or_else(interval_range)?;
    let micros = (interval.micros as f64 * factor + seconds * 1e6).round_ties_even();
    if !FITTING.contains(&micros) {
        return Err(interval_range());
    }
    Ok(Interval::new(whole_months, whole_days, micros as i64))
}

pub(super) fn multiply_interval(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (interval, factor) = match at(args, 0) {
        Value::Interval(_) => (interval(args, 0)?, float(args, 1)?),
        _ => (interval(args, 1)?, float(args, 0)?),
    };
    scaled(&interval, factor).map(Value::Interval)
}

/// As multiplication by the inverse, but dividing exactly.
pub(super) fn quotient(interval: &Interval, divisor: f64) -> Result<Interval> {
    if divisor == 0.0 {
        return Err(super::numeric::division_by_zero());
    }
    let months = f64::from(interval.months) / divisor;
    let days = f64::from(interval.days) / divisor;
    let beyond = |x: f64| x.is_nan() || x > f64::from(i32::MAX) || x < f64::from(i32::MIN);
    if beyond(months) || beyond(days) {
        return Err(interval_range());
    }
    let (whole_months, mut whole_days) = (months as i32, days as i32);
    let month_rest = rounded_fraction((months - f64::from(whole_months)) * 30.0);
    let day_rest = rounded_fraction((days - f64::from(whole_days)) * 86_400.0);
    let month_days = month_rest as i32;
    let mut seconds = rounded_fraction(day_rest + (month_rest - f64::from(month_days)) * 86_400.0);
    if seconds.abs() >= 86_400.0 {
        let more = (seconds / 86_400.0) as i32;
        whole_days += more;
        seconds -= f64::from(more) * 86_400.0;
    }
    let micros = (interval.micros as f64 / divisor + seconds * 1e6).round_ties_even();
    if !FITTING.contains(&micros) {
        return Err(interval_range());
    }
    Ok(Interval::new(whole_months, whole_days + month_days, micros as i64))
}

pub(super) fn divide_interval(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    quotient(&interval(args, 0)?, float(args, 1)?).map(Value::Interval)
}

fn justified_hours(interval: Interval) -> Result<Interval> {
    let mut days = i64::from(interval.days) + interval.micros / MICROS_PER_DAY;
    let mut micros = interval.micros % MICROS_PER_DAY;
    if days > 0 && micros < 0 {
        (days, micros) = (days - 1, micros + MICROS_PER_DAY);
    } else if days < 0 && micros > 0 {
        (days, micros) = (days + 1, micros - MICROS_PER_DAY);
    }
    Ok(Interval::new(interval.months, i32::try_from(days).map_err(|_| interval_range())?, micros))
}

fn justified_days(interval: Interval) -> Result<Interval> {
    let mut months = i64::from(interval.months) + i64::from(interval.days / 30);
    let mut days = interval.days % 30;
    if months > 0 && days < 0 {
        (months, days) = (months - 1, days + 30);
    } else if months < 0 && days > 0 {
        (months, days) = (months + 1, days - 30);
    }
    Ok(Interval::new(i32::try_from(months).map_err(|_| interval_range())?, days, interval.micros))
}

pub(super) fn justify_hours(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    justified_hours(interval(args, 0)?).map(Value::Interval)
}

pub(super) fn justify_days(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    justified_days(interval(args, 0)?).map(Value::Interval)
}

pub(super) fn justify_interval(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let Interval { months, days, micros } = interval(args, 0)?;
    let mut days = i64::from(days) + micros / MICROS_PER_DAY;
    let mut micros = micros % MICROS_PER_DAY;
    let mut months = i64::from(months) + days / 30;
    days %= 30;
    if months > 0 && (days < 0 || (days == 0 && micros < 0)) {
        (months, days) = (months - 1, days + 30);
    } else if months < 0 && (days > 0 || (days == 0 && micros > 0)) {
        (months, days) = (months + 1, days - 30);
    }
    if days > 0 && micros < 0 {
        (days, micros) = (days - 1, micros + MICROS_PER_DAY);
    } else if days < 0 && micros > 0 {
        (days, micros) = (days + 1, micros - MICROS_PER_DAY);
    }
    let months = i32::try_from(months).map_err(|_| interval_range())?;
    Ok(Value::Interval(Interval::new(months, days as i32, micros)))
}

/// Years, months, days and time between two local times, as people count them.
fn age_between(a: i64, b: i64) -> Interval {
    let parts = |local: i64| {
        let (year, month, day) = civil(local.div_euclid(MICROS_PER_DAY));
        (year, i64::from(month), i64::from(day), local.rem_euclid(MICROS_PER_DAY))
    };
    let (later, earlier, sign) = if a >= b { (parts(a), parts(b), 1) } else { (parts(b), parts(a), -1) };
    let mut months = (later.0 - earlier.0) * 12 + later.1 - earlier.1;
    let (mut days, mut micros) = (later.2 - earlier.2, later.3 - earlier.3);
    if micros < 0 {
        micros += MICROS_PER_DAY;
        days -= 1;
    }
    if days < 0 {
        // The length of the month that the younger of the two, as given, is in.
        let (year, month) = (earlier.0, earlier.1 as u32);
        days += last_day(year, month);
        months -= 1;
    }
    Interval::new((months * sign) as i32, (days * sign) as i32, micros * sign)
}

pub(super) fn age(env: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (a, b) = match args.len() {
        1 => {
            let today = to_local(env.settings.now, &env.settings.zone).div_euclid(MICROS_PER_DAY) * MICROS_PER_DAY;
            (today, local(env, args, 0)?)
        }
        _ => (local(env, args, 0)?, local(env, args, 1)?),
    };
    if is_infinite(a) || is_infinite(b) {
        return Err(timestamp_range());
    }
    Ok(Value::Interval(age_between(a, b)))
}

pub(super) fn is_finite(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Bool(match at(args, 0) {
        Value::Date(days) => ![i32::MIN, i32::MAX].contains(days),
        Value::Timestamp(t) | Value::TimestampTz(t) => !is_infinite(*t),
        _ => true,
    }))
}

/// The unit that a word names, with the words of dates beside those of intervals.
fn field(word: &str) -> Option<Unit> {
    match unit(word) {
        Some(UnitWord::Unit(unit)) => Some(unit),
        _ => match special(word)? {
            crate::text::tokens::Special::Unit(unit) => Some(unit),
            crate::text::tokens::Special::Epoch => Some(Unit::Epoch),
            _ => None,
        },
    }
}

fn not_recognized(word: &str, ty: Oid) -> SqlError {
    SqlError::new("22023", format!("unit \"{word}\" not recognized for type {}", type_name(ty)))
}

fn not_supported(word: &str, ty: Oid) -> SqlError {
    SqlError::unsupported(format!("unit \"{word}\" not supported for type {}", type_name(ty)))
}

/// Days from 2000-01-01 to the Monday of the first week of an ISO year.
fn iso_year_start(year: i64) -> i64 {
    let fourth = days_of(year, 1, 4);
    fourth - weekday(fourth)
}

/// 0 for Monday.
fn weekday(days: i64) -> i64 {
    (days + 5).rem_euclid(7)
}

pub(super) fn iso_week(days: i64) -> (i64, i64) {
    let (mut year, _, _) = civil(days);
    if days >= iso_year_start(year + 1) {
        year += 1;
    } else if days < iso_year_start(year) {
        year -= 1;
    }
    (year, (days - iso_year_start(year)) / 7 + 1)
}

/// A year as people count it, without a year zero.
fn shown_year(year: i64) -> i64 {
    if year > 0 { year } else { year - 1 }
}

fn group(year: i64, size: i64) -> i64 {
    match size {
        10 => {
            if year >= 0 {
                year / 10
            } else {
                -((8 - (year - 1)) / 10)
            }
        }
        _ if year > 0 => (year + size - 1) / size,
        _ => -((size - 1 - (year - 1)) / size),
    }
}

fn exact(digits: i128, scale: u32) -> Number {
    Number::Finite(Decimal::new(digits, scale))
}

fn clock_field(unit: Unit, micros: i64) -> Option<Number> {
    let second = micros % MICROS_PER_MINUTE;
    Some(match unit {
        Unit::Microsecond => exact(second.into(), 0),
        Unit::Millisecond => exact(second.into(), 3),
        Unit::Second => exact(second.into(), 6),
        Unit::Minute => exact((micros / MICROS_PER_MINUTE % 60).into(), 0),
        Unit::Hour => exact((micros / MICROS_PER_HOUR).into(), 0),
        _ => return None,
    })
}

fn date_field(unit: Unit, days: i64) -> Option<Number> {
    let (year, month, day) = civil(days);
    let n = match unit {
        Unit::Day => i64::from(day),
        Unit::Month => i64::from(month),
        Unit::Quarter => i64::from(month - 1) / 3 + 1,
        Unit::Week => iso_week(days).1,
        Unit::IsoYear => shown_year(iso_week(days).0),
        Unit::Year => shown_year(year),
        Unit::Decade => group(year, 10),
        Unit::Century => group(year, 100),
        Unit::Millennium => group(year, 1_000),
        Unit::Julian => days + JULIAN_DAY,
        Unit::Dow => (weekday(days) + 1) % 7,
        Unit::IsoDow => weekday(days) + 1,
        Unit::Doy => days - days_of(year, 1, 1) + 1,
        _ => return None,
    };
    Some(exact(n.into(), 0))
}

fn infinite_field(unit: Unit, positive: bool) -> Value {
    match unit {
        Unit::Epoch | Unit::Julian | Unit::Year | Unit::IsoYear | Unit::Decade | Unit::Century | Unit::Millennium => {
            numeric_value(if positive { Number::Infinity } else { Number::MinusInfinity })
        }
        _ => Value::Null,
    }
}

pub(super) fn extract(env: &mut Env, args: Args, _: Types) -> Result<Value> {
    let word = text(args, 0)?.to_ascii_lowercase();
    let ty = match at(args, 1) {
        Value::Date(_) => DATE,
        Value::Time(_) => TIME,
        Value::Timestamp(_) => TIMESTAMP,
        Value::TimestampTz(_) => TIMESTAMPTZ,
        _ => INTERVAL,
    };
    let unit = field(&word).ok_or_else(|| not_recognized(&word, ty))?;
    let unsupported = || not_supported(&word, ty);
    let number = match at(args, 1) {
        Value::Date(_) if unit != Unit::Epoch && date_field(unit, 0).is_none() => return Err(unsupported()),
        Value::Date(days @ (i32::MAX | i32::MIN)) => return Ok(infinite_field(unit, *days > 0)),
        Value::Timestamp(t) | Value::TimestampTz(t) if is_infinite(*t) => return Ok(infinite_field(unit, *t > 0)),
        Value::Date(days) => match unit {
            Unit::Epoch => exact((i128::from(*days) + i128::from(UNIX_EPOCH_DAYS)) * 86_400, 0),
            _ => date_field(unit, i64::from(*days)).ok_or_else(unsupported)?,
        },
        Value::Time(micros) => match unit {
            Unit::Epoch => exact((*micros).into(), 6),
            _ => clock_field(unit, *micros).ok_or_else(unsupported)?,
        },
        value @ (Value::Timestamp(t) | Value::TimestampTz(t)) => {
            let local = local(env, args, 1)?;
            timestamp_field(unit, *t, local, matches!(value, Value::TimestampTz(_))).ok_or_else(unsupported)?
        }
        Value::Interval(interval) => interval_field(unit, interval).ok_or_else(unsupported)?,
        other => return Err(unexpected(other)),
    };
    Ok(numeric_value(number))
}

fn timestamp_field(unit: Unit, t: i64, local: i64, zoned: bool) -> Option<Number> {
    let (days, clock) = (local.div_euclid(MICROS_PER_DAY), local.rem_euclid(MICROS_PER_DAY));
    let offset = (local - t) / MICROS_PER_SECOND;
    match unit {
        Unit::Epoch => Some(exact(i128::from(t) + i128::from(UNIX_EPOCH_SECONDS) * 1_000_000, 6)),
        Unit::Julian => {
            let day = exact((days + JULIAN_DAY).into(), 0);
            let part = exact(clock.into(), 0).divided(&exact(MICROS_PER_DAY.into(), 0)).ok()?;
            day.added(&part).ok()
        }
        Unit::Zone if zoned => Some(exact(offset.into(), 0)),
        Unit::ZoneHour if zoned => Some(exact((offset / 3600).into(), 0)),
        Unit::ZoneMinute if zoned => Some(exact((offset / 60 % 60).into(), 0)),
        _ => clock_field(unit, clock).or_else(|| date_field(unit, days)),
    }
}

fn interval_field(unit: Unit, interval: &Interval) -> Option<Number> {
    let (years, months) = (interval.months / 12, interval.months % 12);
    let n = match unit {
        Unit::Day => interval.days,
        Unit::Month => months,
        Unit::Quarter => months / 3 + 1,
        Unit::Year => years,
        Unit::Decade => years / 10,
        Unit::Century => years / 100,
        Unit::Millennium => years / 1_000,
        Unit::Epoch => {
            // A year has 365.25 days.
            let quarter_days = i128::from(years) * 1_461 + (i128::from(months) * 30 + i128::from(interval.days)) * 4;
            return Some(exact(quarter_days * i128::from(MICROS_PER_DAY) / 4 + i128::from(interval.micros), 6));
        }
        _ => return clock_field(unit, interval.micros),
    };
    Some(exact(n.into(), 0))
}

/// `date_part`: the same as a float.
pub(super) fn date_part(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    let plain = match at(args, 1) {
        Value::Date(days) => Value::Timestamp(day_start(*days)?),
        other => other.clone(),
    };
    Ok(match extract(env, &[at(args, 0).clone(), plain], types)? {
        Value::Numeric(n) => Value::Float(Number::of(&n).to_f64()),
        other => other,
    })
}

/// The start of the unit that a local time is in.
fn truncated(unit: Unit, local: i64) -> Option<i64> {
    let (days, clock) = (local.div_euclid(MICROS_PER_DAY), local.rem_euclid(MICROS_PER_DAY));
    let down = |size: i64| Some(days * MICROS_PER_DAY + clock / size * size);
    let (year, month, _) = civil(days);
    let first = |year: i64, month: u32| Some(days_of(year, month, 1) * MICROS_PER_DAY);
    match unit {
        Unit::Microsecond => Some(local),
        Unit::Millisecond => down(1_000),
        Unit::Second => down(MICROS_PER_SECOND),
        Unit::Minute => down(MICROS_PER_MINUTE),
        Unit::Hour => down(MICROS_PER_HOUR),
        Unit::Day => Some(days * MICROS_PER_DAY),
        Unit::Week => Some((days - weekday(days)) * MICROS_PER_DAY),
        Unit::Month => first(year, month),
        Unit::Quarter => first(year, (month - 1) / 3 * 3 + 1),
        Unit::Year => first(year, 1),
        Unit::Decade => first(if year > 0 { year / 10 * 10 } else { -((8 - (year - 1)) / 10) * 10 }, 1),
        Unit::Century => {
            first(if year > 0 { (year + 99) / 100 * 100 - 99 } else { -((99 - (year - 1)) / 100) * 100 + 1 }, 1)
        }
        Unit::Millennium => first(
            if year > 0 { (year + 999) / 1_000 * 1_000 - 999 } else { -((999 - (year - 1)) / 1_000) * 1_000 + 1 },
            1,
        ),
        _ => None,
    }
}

pub(super) fn truncate(env: &mut Env, args: Args, _: Types) -> Result<Value> {
    let word = text(args, 0)?.to_ascii_lowercase();
    let value = at(args, 1);
    if matches!(value, Value::Timestamp(t) | Value::TimestampTz(t) if is_infinite(*t)) {
        return Ok(value.clone());
    }
    let zone = zone_argument(env, args, 2)?;
    let ty = match value {
        Value::Interval(_) => INTERVAL,
        Value::Timestamp(_) => TIMESTAMP,
        _ => TIMESTAMPTZ,
    };
    let Some(UnitWord::Unit(unit)) = unit(&word) else { return Err(not_recognized(&word, ty)) };
    let unsupported = || not_supported(&word, ty);
    match value {
        Value::Interval(interval) => truncated_interval(unit, interval).map(Value::Interval).ok_or_else(|| {
            let detail = (unit == Unit::Week).then_some("Months usually have fractional weeks.");
            detail.map_or_else(unsupported, |detail| unsupported().with_detail(detail))
        }),
        Value::Timestamp(t) => timestamp(Some(truncated(unit, *t).ok_or_else(unsupported)?)).map(Value::Timestamp),
        Value::TimestampTz(t) => {
            let local = to_local(*t, &zone);
            let start = truncated(unit, local).ok_or_else(unsupported)?;
            // Below a day the offset stays what it was; a day begins with the offset of its own midnight.
            let fine = matches!(unit, Unit::Microsecond | Unit::Millisecond | Unit::Second | Unit::Minute | Unit::Hour);
            let instant = if fine { t - (local - start) } else { to_instant(start, &zone) };
            timestamp(Some(instant)).map(Value::TimestampTz)
        }
        other => Err(unexpected(other)),
    }
}

fn truncated_interval(unit: Unit, interval: &Interval) -> Option<Interval> {
    let Interval { months, days, micros } = *interval;
    let down = |size: i64| Some(Interval::new(months, days, micros / size * size));
    let months_down = |size: i32| Some(Interval::new(months / size * size, 0, 0));
    match unit {
        Unit::Microsecond => Some(*interval),
        Unit::Millisecond => down(1_000),
        Unit::Second => down(MICROS_PER_SECOND),
        Unit::Minute => down(MICROS_PER_MINUTE),
        Unit::Hour => down(MICROS_PER_HOUR),
        Unit::Day => Some(Interval::new(months, days, 0)),
        Unit::Month => months_down(1),
        Unit::Quarter => months_down(3),
        Unit::Year => months_down(12),
        Unit::Decade => months_down(120),
        Unit::Century => months_down(1_200),
        Unit::Millennium => months_down(12_000),
        _ => None,
    }
}

/// A zone given by name, abbreviation or displacement.
pub(super) fn zone_named(name: &str) -> Result<Zone> {
    let unknown = || SqlError::new("22023", format!("time zone \"{name}\" not recognized"));
    Zone::abbreviation(name).map(Zone::fixed).or_else(|| Zone::named(name)).ok_or_else(unknown)
}

fn zone_argument(env: &Env, args: Args, index: usize) -> Result<Zone> {
    match at(args, index) {
        Value::Null => Ok(env.settings.zone.clone()),
        Value::Text(name) => zone_named(name),
        Value::Interval(Interval { months: 0, days: 0, micros }) => {
            Ok(Zone::fixed((micros / MICROS_PER_SECOND) as i32))
        }
        Value::Interval(interval) => {
            let message = format!("interval time zone \"{interval}\" must not include months or days");
            Err(SqlError::new("22023", message))
        }
        other => Err(unexpected(other)),
    }
}

/// `x AT TIME ZONE z`.
pub(super) fn at_zone(env: &mut Env, args: Args, _: Types) -> Result<Value> {
    match at(args, 1) {
        Value::Timestamp(t) if is_infinite(*t) => return Ok(Value::TimestampTz(*t)),
        Value::TimestampTz(t) if is_infinite(*t) => return Ok(Value::Timestamp(*t)),
        _ => {}
    }
    let zone = zone_argument(env, args, 0)?;
    match at(args, 1) {
        Value::Timestamp(t) => timestamp(Some(to_instant(*t, &zone))).map(Value::TimestampTz),
        Value::TimestampTz(t) => timestamp(Some(to_local(*t, &zone))).map(Value::Timestamp),
        other => Err(unexpected(other)),
    }
}

fn civil_days(year: i64, month: i64, day: i64) -> Option<i64> {
    // A negative year is before Christ, and there is no year zero.
    let year = if year < 0 { year + 1 } else { year };
    let valid = (1..=12).contains(&month) && day >= 1 && day <= last_day(year, month as u32);
    valid.then(|| days_of(year, month as u32, day))
}

pub(super) fn make_date(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (year, month, day) = (int(args, 0)?, int(args, 1)?, int(args, 2)?);
    let shown = if year < 0 { year + 1 } else { year };
    let refused = || SqlError::new("22008", format!("date field value out of range: {shown}-{month:02}-{day:02}"));
    if year == 0 {
        return Err(refused());
    }
    let days = civil_days(year, month, day).ok_or_else(refused)?;
    let date = i32::try_from(days).ok().filter(|days| DATES.contains(days));
    date.map(Value::Date)
        .ok_or_else(|| SqlError::new("22008", format!("date out of range: {year}-{month:02}-{day:02}")))
}

fn make_clock(args: Args, from: usize) -> Result<i64> {
    let (hour, minute, second) = (int(args, from)?, int(args, from + 1)?, float(args, from + 2)?);
    let micros = (second * 1e6).round_ties_even();
    let total = (hour * 60 + minute) * 60 * MICROS_PER_SECOND + micros as i64;
    let valid = (0..=24).contains(&hour)
        && (0..60).contains(&minute)
        && (0.0..=60e6).contains(&micros)
        && (0..=MICROS_PER_DAY).contains(&total);
    let shown = || format!("time field value out of range: {hour}:{minute:02}:{second:02}");
    if valid { Ok(total) } else { Err(SqlError::new("22008", shown())) }
}

pub(super) fn make_time(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    make_clock(args, 0).map(Value::Time)
}

fn made_timestamp(args: Args) -> Result<i64> {
    let (year, month, day) = (int(args, 0)?, int(args, 1)?, int(args, 2)?);
    let refused = || SqlError::new("22008", format!("date field value out of range: {year}-{month:02}-{day:02}"));
    if year == 0 {
        return Err(refused());
    }
    let days = civil_days(year, month, day).ok_or_else(refused)?;
    let clock = make_clock(args, 3)?;
    timestamp(days.checked_mul(MICROS_PER_DAY).and_then(|start| start.checked_add(clock)))
}

pub(super) fn make_timestamp(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    made_timestamp(args).map(Value::Timestamp)
}

pub(super) fn make_timestamptz(env: &mut Env, args: Args, _: Types) -> Result<Value> {
    let zone = match at(args, 6) {
        Value::Text(name) if name.starts_with(['+', '-']) => {
            let offset = crate::text::datetime::displacement(name);
            Zone::fixed(offset.map_err(|why| crate::text::fault(why, "timestamp with time zone", name))?)
        }
        _ => zone_argument(env, args, 6)?,
    };
    Ok(Value::TimestampTz(to_instant(made_timestamp(args)?, &zone)))
}

pub(super) fn make_interval(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let n = |index: usize| if args.len() > index { int(args, index) } else { Ok(0) };
    let (years, months, weeks, days, hours, minutes) = (n(0)?, n(1)?, n(2)?, n(3)?, n(4)?, n(5)?);
    let seconds = if args.len() > 6 { float(args, 6)? } else { 0.0 };
    let micros = (seconds * 1e6).round_ties_even();
    if !micros.is_finite() {
        return Err(interval_range());
    }
    let total = i128::from(hours) * i128::from(MICROS_PER_HOUR)
        + i128::from(minutes) * i128::from(MICROS_PER_MINUTE)
        + micros as i128;
    let parts = (i32::try_from(years * 12 + months), i32::try_from(weeks * 7 + days), i64::try_from(total));
    match parts {
        (Ok(months), Ok(days), Ok(micros)) => Ok(Value::Interval(Interval::new(months, days, micros))),
        _ => Err(interval_range()),
    }
}

pub(super) fn to_timestamp(env: &mut Env, args: Args, _: Types) -> Result<Value> {
    let _ = env;
    let x = float(args, 0)?;
    if x.is_nan() {
        return Err(SqlError::new("22008", "timestamp cannot be NaN"));
    }
    if x.is_infinite() {
        return Ok(Value::TimestampTz(if x > 0.0 { i64::MAX } else { i64::MIN }));
    }
    let micros = ((x - UNIX_EPOCH_SECONDS as f64) * 1e6).round_ties_even();
    let valid = micros.abs() < 9.3e18 && TIMESTAMPS.contains(&(micros as i64));
    valid.then_some(Value::TimestampTz(micros as i64)).ok_or_else(|| {
        let mut shown = String::new();
        isles_kernel::form::write_double(&mut shown, x);
        SqlError::new("22008", format!("timestamp out of range: \"{shown}\""))
    })
}

pub(super) fn bin(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let stride = interval(args, 0)?;
    let (value, origin) = match (at(args, 1), at(args, 2)) {
        (Value::Timestamp(a), Value::Timestamp(b)) | (Value::TimestampTz(a), Value::TimestampTz(b)) => (*a, *b),
        (other, _) => return Err(unexpected(other)),
    };
    if is_infinite(value) {
        return Ok(at(args, 1).clone());
    }
    if is_infinite(origin) {
        return Err(SqlError::new("22008", "origin out of range"));
    }
    if stride.months != 0 {
        return Err(SqlError::unsupported("timestamps cannot be binned into intervals containing months or years"));
    }
    let size = i64::from(stride.days).checked_mul(MICROS_PER_DAY).and_then(|days| days.checked_add(stride.micros));
    let size = size.ok_or_else(interval_range)?;
    if size <= 0 {
        return Err(SqlError::new("22008", "stride must be greater than zero"));
    }
    let distance = value.checked_sub(origin).ok_or_else(interval_range)?;
    Ok(like(at(args, 1), origin + distance.div_euclid(size) * size))
}

pub(super) fn overlaps(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    let end = |start: &Value, end: &Value| match end {
        Value::Interval(interval) if !start.is_null() && !matches!(start, Value::Time(_)) => {
            shifted(start, interval, env)
        }
        Value::Interval(interval) if matches!(start, Value::Time(_)) => match start {
            Value::Time(t) => Ok(Value::Time((t + interval.micros).rem_euclid(MICROS_PER_DAY))),
            other => Err(unexpected(other)),
        },
        other => Ok(other.clone()),
    };
    let ends =
        [at(args, 0).clone(), end(at(args, 0), at(args, 1))?, at(args, 2).clone(), end(at(args, 2), at(args, 3))?];
    let ty = types.first().copied().unwrap_or(TIMESTAMP);
    let greater = |a: &Value, b: &Value| super::compare(a, b, ty).map(|order| order.is_gt());
    let [mut s1, mut e1, mut s2, mut e2] = ends;
    // As the standard says: an end that is null, or before its start, changes places with it.
    for (start, end) in [(&mut s1, &mut e1), (&mut s2, &mut e2)] {
        if start.is_null() {
            if end.is_null() {
                return Ok(Value::Null);
            }
            std::mem::swap(start, end);
        } else if !end.is_null() && greater(start, end)? {
            std::mem::swap(start, end);
        }
    }
    let (first_end, later_start, other_end) = match super::compare(&s1, &s2, ty)? {
        std::cmp::Ordering::Greater => (e2, s1, e1),
        std::cmp::Ordering::Less => (e1, s2, e2),
        std::cmp::Ordering::Equal => {
            return Ok(if e1.is_null() || e2.is_null() { Value::Null } else { Value::Bool(true) });
        }
    };
    if first_end.is_null() {
        return Ok(Value::Null);
    }
    if greater(&first_end, &later_start)? {
        return Ok(Value::Bool(true));
    }
    Ok(if other_end.is_null() { Value::Null } else { Value::Bool(false) })
}

pub(super) fn clock_timestamp(env: &mut Env, _: Args, _: Types) -> Result<Value> {
    Ok(Value::TimestampTz((env.clock)()))
}

pub(super) fn to_date(env: &mut Env, args: Args, _: Types) -> Result<Value> {
    let local = local(env, args, 0)?;
    if is_infinite(local) {
        return Ok(Value::Date(if local > 0 { i32::MAX } else { i32::MIN }));
    }
    Ok(Value::Date(local.div_euclid(MICROS_PER_DAY) as i32))
}

pub(super) fn to_plain_timestamp(env: &mut Env, args: Args, _: Types) -> Result<Value> {
    if let Value::Date(days) = at(args, 0) {
        return day_start(*days).map(Value::Timestamp);
    }
    timestamp(Some(local(env, args, 0)?)).map(Value::Timestamp)
}

pub(super) fn to_zoned_timestamp(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    let plain = to_plain_timestamp(env, args, types)?;
    let instant = moment(&plain, env).map(|moment| moment.instant);
    timestamp(instant).map(Value::TimestampTz)
}

pub(super) fn to_time(env: &mut Env, args: Args, _: Types) -> Result<Value> {
    match at(args, 0) {
        Value::Interval(interval) => Ok(Value::Time(interval.micros.rem_euclid(MICROS_PER_DAY))),
        _ => match local(env, args, 0)? {
            local if is_infinite(local) => Ok(Value::Null),
            local => Ok(Value::Time(local.rem_euclid(MICROS_PER_DAY))),
        },
    }
}

pub(super) fn time_to_interval(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Interval(Interval::new(0, 0, time(args, 0)?)))
}
