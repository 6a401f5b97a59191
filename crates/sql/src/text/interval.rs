//! Intervals from text and to text.
//!
//! Numbers stand before their units, so the fields are read from the last to the first. A unit that is missing
//! follows from the field to its right, or for the last one from the type (`interval '1' day`), else it is seconds.

use super::datetime::{MICROS_PER_DAY, MICROS_PER_SECOND, clock};
use super::settings::IntervalStyle;
use super::tokens::{Fault, FieldKind, Unit, UnitWord, fields, unit};
use isles_kernel::interval::Interval;
use std::fmt::Write;

const MICROS_PER_HOUR: i64 = 3_600 * MICROS_PER_SECOND;
const MICROS_PER_MINUTE: i64 = 60 * MICROS_PER_SECOND;
const MONTHS_PER_YEAR: i64 = 12;
const DAYS_PER_MONTH: f64 = 30.0;

/// Bits of an interval type's modifier that say which fields it has.
pub(crate) mod range {
    pub(crate) const MONTH: i32 = 1 << 1;
    pub(crate) const YEAR: i32 = 1 << 2;
    pub(crate) const DAY: i32 = 1 << 3;
    pub(crate) const HOUR: i32 = 1 << 10;
    pub(crate) const MINUTE: i32 = 1 << 11;
    pub(crate) const SECOND: i32 = 1 << 12;
    pub(crate) const FULL: i32 = 0x7FFF;
}

/// The fields that a modifier says; all of them without one.
pub(crate) fn range_of(modifier: i32) -> i32 {
    if modifier < 0 { range::FULL } else { (modifier >> 16) & 0x7FFF }
}

/// The digits after the second that a modifier says, if it does.
pub(crate) fn precision_of(modifier: i32) -> Option<u32> {
    let precision = modifier & 0xFFFF;
    (modifier >= 0 && precision != 0xFFFF).then_some(precision as u32)
}

fn last_unit(range: i32) -> Unit {
    match range {
        range::YEAR => Unit::Year,
        range::MONTH => Unit::Month,
        range::DAY => Unit::Day,
        range::HOUR => Unit::Hour,
        range::MINUTE => Unit::Minute,
        _ if range == range::YEAR | range::MONTH => Unit::Month,
        _ if range == range::DAY | range::HOUR => Unit::Hour,
        _ if range == range::DAY | range::HOUR | range::MINUTE || range == range::HOUR | range::MINUTE => Unit::Minute,
        _ => Unit::Second,
    }
}

#[derive(Debug, Default)]
struct Sum {
    months: i64,
    days: i64,
    micros: i64,
}

impl Sum {
    fn add_micros(&mut self, count: i64, part: f64, scale: i64) -> Result<(), Fault> {
        let whole = count.checked_mul(scale).and_then(|micros| self.micros.checked_add(micros));
        self.micros = whole.ok_or(Fault::Field)?;
        self.add_part_micros(part, scale)
    }

    fn add_part_micros(&mut self, part: f64, scale: i64) -> Result<(), Fault> {
        if part == 0.0 {
            return Ok(());
        }
        let exact = part * scale as f64;
        let whole = exact as i64;
        let left = exact - whole as f64;
        let rounded = whole + i64::from(left > 0.5) - i64::from(left < -0.5);
        self.micros = self.micros.checked_add(rounded).ok_or(Fault::Field)?;
        Ok(())
    }

    fn add_days(&mut self, count: i64, scale: i64) -> Result<(), Fault> {
        let days = count.checked_mul(scale).and_then(|days| self.days.checked_add(days)).ok_or(Fault::Field)?;
        i32::try_from(days).map_err(|_| Fault::Field)?;
        self.days = days;
        Ok(())
    }

    fn add_part_days(&mut self, part: f64, scale: f64) -> Result<(), Fault> {
        if part == 0.0 {
            return Ok(());
        }
        let exact = part * scale;
        let whole = exact as i64;
        self.add_days(whole, 1)?;
        self.add_part_micros(exact - whole as f64, MICROS_PER_DAY)
    }

    fn add_months(&mut self, count: i64, part: f64, scale: i64) -> Result<(), Fault> {
        let parts = (part * (scale * MONTHS_PER_YEAR) as f64).round_ties_even() as i64;
        let scaled = count.checked_mul(scale).and_then(|n| n.checked_mul(MONTHS_PER_YEAR));
        let months = scaled.and_then(|n| self.months.checked_add(n)).and_then(|n| n.checked_add(parts));
        self.months = months.ok_or(Fault::Field)?;
        Ok(())
    }

    fn add(&mut self, unit: Unit, count: i64, part: f64) -> Result<(), Fault> {
        match unit {
            Unit::Microsecond => self.add_micros(count, part, 1),
            Unit::Millisecond => self.add_micros(count, part, 1_000),
            Unit::Second => self.add_micros(count, part, MICROS_PER_SECOND),
            Unit::Minute => self.add_micros(count, part, MICROS_PER_MINUTE),
            Unit::Hour => self.add_micros(count, part, MICROS_PER_HOUR),
            Unit::Day => {
                self.add_days(count, 1)?;
                self.add_part_micros(part, MICROS_PER_DAY)
            }
            Unit::Week => {
                self.add_days(count, 7)?;
                self.add_part_days(part, 7.0)
            }
            Unit::Month => {
                self.months = self.months.checked_add(count).ok_or(Fault::Field)?;
                self.add_part_days(part, DAYS_PER_MONTH)
            }
            Unit::Year => self.add_months(count, part, 1),
            Unit::Decade => self.add_months(count, part, 10),
            Unit::Century => self.add_months(count, part, 100),
            Unit::Millennium => self.add_months(count, part, 1_000),
            _ => Err(Fault::Format),
        }
    }

    fn finish(&self) -> Result<Interval, Fault> {
        let months = i32::try_from(self.months).map_err(|_| Fault::Field)?;
        let days = i32::try_from(self.days).map_err(|_| Fault::Field)?;
        Ok(Interval::new(months, days, self.micros))
    }
}

/// The parts that a unit gives, each at most once.
fn mask(unit: Unit, part: f64) -> u32 {
    const SECONDS: u32 = 0b111;
    match unit {
        Unit::Microsecond => 1,
        Unit::Millisecond => 1 << 1,
        Unit::Second if part != 0.0 => SECONDS,
        Unit::Second => 1 << 2,
        other => 1 << (3 + other as u32),
    }
}

const CLOCK_MASK: u32 = 0b111 | 1 << (3 + Unit::Minute as u32) | 1 << (3 + Unit::Hour as u32);

/// The time that a clock shows, before or after midnight.
fn clock_micros(text: &str, range: i32, negative: bool) -> Result<i64, Fault> {
    let (hour, minute, second, fraction) = clock(text)?;
    let (hour, minute, second) = match text.matches(':').count() {
        1 if range == range::MINUTE | range::SECOND && !text.contains('.') => (0, hour, minute),
        _ => (hour, minute, second),
    };
    let rest = minute * MICROS_PER_MINUTE + second * MICROS_PER_SECOND + fraction;
    let micros = i128::from(hour) * i128::from(MICROS_PER_HOUR) + i128::from(rest);
    i64::try_from(if negative { -micros } else { micros }).map_err(|_| Fault::Field)
}

/// A number with an optional sign and fraction: its whole part and the rest.
fn number(text: &str) -> Result<(i64, f64), Fault> {
    let end = text.find('.').unwrap_or(text.len());
    let (whole, rest) = text.split_at(end);
    let count = match whole.trim_start_matches('+') {
        "" | "-" if !rest.is_empty() => 0,
        digits => digits.parse().map_err(|error: std::num::ParseIntError| match error.kind() {
            std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => Fault::Field,
            _ => Fault::Format,
        })?,
    };
    let part = match rest {
        "" | "." => 0.0,
        rest => format!("0{rest}").parse::<f64>().map_err(|_| Fault::Format)?,
    };
    Ok((count, if text.starts_with('-') { -part } else { part }))
}

/// Reads an interval whose type has these fields.
pub(crate) fn parse(text: &str, range: i32, style: IntervalStyle) -> Result<Interval, Fault> {
    let trimmed = text.trim();
    match read(trimmed, range, style) {
        Err(Fault::Format) if trimmed.starts_with('P') => iso(trimmed),
        other => other,
    }
}

fn read(text: &str, range: i32, style: IntervalStyle) -> Result<Interval, Fault> {
    let fields = fields(text)?;
    let mut sum = Sum::default();
    let (mut seen, mut unit_now, mut pending, mut negate) = (0u32, None, false, false);
    // The standard's way: one sign in front is of all fields.
    let all_negative = style == IntervalStyle::SqlStandard
        && fields.first().is_some_and(|field| field.text.starts_with('-'))
        && !fields[1..].iter().any(|field| field.text.starts_with(['-', '+']));
    for field in fields.iter().rev() {
        let signed_clock = field.kind == FieldKind::Signed && field.text.contains(':');
        let given = match field.kind {
            FieldKind::Text | FieldKind::Special => {
                if pending {
                    return Err(Fault::Format);
                }
                match unit(&field.text) {
                    Some(UnitWord::Unit(unit)) => (unit_now, pending) = (Some(unit), true),
                    Some(UnitWord::Ago) => negate = true,
                    None => return Err(Fault::Format),
                }
                0
            }
            _ if field.kind == FieldKind::Time || signed_clock => {
                let digits = field.text.trim_start_matches(['+', '-']);
                let negative = field.text.starts_with('-') || all_negative;
                let micros = clock_micros(digits, range, negative)?;
                sum.micros = sum.micros.checked_add(micros).ok_or(Fault::Field)?;
                (unit_now, pending) = (Some(Unit::Day), false);
                CLOCK_MASK
            }
            _ => {
                let mut unit = unit_now.unwrap_or_else(|| last_unit(range));
                let (mut count, mut part) = match field.text[1..].find('-') {
                    Some(at) => {
                        unit = Unit::Month;
                        (years_months(&field.text, at + 1)?, 0.0)
                    }
                    None => number(&field.text)?,
                };
                if all_negative && !field.text.starts_with('-') {
                    (count, part) = (-count, -part);
                }
                sum.add(unit, count, part)?;
                unit_now = Some(if unit == Unit::Hour { Unit::Day } else { unit });
                pending = false;
                mask(unit, part)
            }
        };
        if given & seen != 0 {
            return Err(Fault::Format);
        }
        seen |= given;
    }
    if seen == 0 || pending {
        return Err(Fault::Format);
    }
    if negate {
        let flip = |n: i64| n.checked_neg().ok_or(Fault::Field);
        sum = Sum { months: flip(sum.months)?, days: flip(sum.days)?, micros: flip(sum.micros)? };
    }
    sum.finish()
}

/// `1-2`: a year and two months.
fn years_months(text: &str, dash: usize) -> Result<i64, Fault> {
    let (years, _) = number(&text[..dash])?;
    let months: i64 = text[dash + 1..].parse().map_err(|_| Fault::Format)?;
    if !(0..MONTHS_PER_YEAR).contains(&months) {
        return Err(Fault::Field);
    }
    let signed = if text.starts_with('-') { -months } else { months };
    years.checked_mul(MONTHS_PER_YEAR).and_then(|years| years.checked_add(signed)).ok_or(Fault::Field)
}

/// ISO 8601: `P1Y2M3DT4H5M6.7S`, or `P0001-02-03T04:05:06`.
fn iso(text: &str) -> Result<Interval, Fault> {
    let body = text.strip_prefix('P').ok_or(Fault::Format)?;
    let (date, time) = match body.split_once('T') {
        Some((date, time)) => (date, time),
        None if body.is_empty() => return Err(Fault::Format),
        None => (body, ""),
    };
    let mut sum = Sum::default();
    iso_date(date, &mut sum)?;
    iso_time(time, &mut sum)?;
    sum.finish()
}

/// Pairs of a number and the letter after it.
fn pairs(text: &str) -> Result<Vec<(&str, char)>, Fault> {
    let mut pairs = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let at = rest.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+'))).ok_or(Fault::Format)?;
        let letter = rest[at..].chars().next().ok_or(Fault::Format)?;
        pairs.push((&rest[..at], letter));
        rest = &rest[at + letter.len_utf8()..];
    }
    Ok(pairs)
}

fn iso_date(text: &str, sum: &mut Sum) -> Result<(), Fault> {
    let alternative = !text.is_empty() && !text.ends_with(|c: char| c.is_ascii_alphabetic());
    if alternative {
        let units = [Unit::Year, Unit::Month, Unit::Day];
        for (part, unit) in text.splitn(3, '-').zip(units) {
            let (count, fraction) = number(part)?;
            sum.add(unit, count, fraction)?;
        }
        return Ok(());
    }
    for (text, letter) in pairs(text)? {
        let unit = match letter {
            'Y' => Unit::Year,
            'M' => Unit::Month,
            'W' => Unit::Week,
            'D' => Unit::Day,
            _ => return Err(Fault::Format),
        };
        let (count, part) = number(text)?;
        sum.add(unit, count, part)?;
    }
    Ok(())
}

fn iso_time(text: &str, sum: &mut Sum) -> Result<(), Fault> {
    if text.contains(':') {
        let micros = clock_micros(text.trim_start_matches('-'), range::FULL, text.starts_with('-'))?;
        sum.micros = sum.micros.checked_add(micros).ok_or(Fault::Field)?;
        return Ok(());
    }
    for (text, letter) in pairs(text)? {
        let unit = match letter {
            'H' => Unit::Hour,
            'M' => Unit::Minute,
            'S' => Unit::Second,
            _ => return Err(Fault::Format),
        };
        let (count, part) = number(text)?;
        sum.add(unit, count, part)?;
    }
    Ok(())
}

struct Shown {
    years: i64,
    months: i64,
    days: i64,
    hours: i64,
    minutes: i64,
    seconds: i64,
    fraction: i64,
}

fn shown(interval: &Interval) -> Shown {
    let (months, micros) = (i64::from(interval.months), interval.micros);
    Shown {
        years: months / MONTHS_PER_YEAR,
        months: months % MONTHS_PER_YEAR,
        days: i64::from(interval.days),
        hours: micros / MICROS_PER_HOUR,
        minutes: micros % MICROS_PER_HOUR / MICROS_PER_MINUTE,
        seconds: micros % MICROS_PER_MINUTE / MICROS_PER_SECOND,
        fraction: micros % MICROS_PER_SECOND,
    }
}

fn seconds_text(seconds: i64, fraction: i64, width: usize) -> String {
    let mut text = format!("{:0width$}", seconds.abs());
    if fraction != 0 {
        let digits = format!("{:06}", fraction.abs());
        let _ = write!(text, ".{}", digits.trim_end_matches('0'));
    }
    text
}

/// Writes an interval in the session's style.
pub(crate) fn write(out: &mut String, interval: &Interval, style: IntervalStyle) {
    match style {
        IntervalStyle::Postgres => {
            let _ = write!(out, "{interval}");
        }
        IntervalStyle::Iso8601 => write_iso(out, &shown(interval)),
        IntervalStyle::PostgresVerbose => write_verbose(out, &shown(interval)),
        IntervalStyle::SqlStandard => write_standard(out, &shown(interval)),
    }
}

fn write_iso(out: &mut String, parts: &Shown) {
    let start = out.len();
    out.push('P');
    for (count, letter) in [(parts.years, 'Y'), (parts.months, 'M'), (parts.days, 'D')] {
        if count != 0 {
            let _ = write!(out, "{count}{letter}");
        }
    }
    let has_seconds = parts.seconds != 0 || parts.fraction != 0;
    if parts.hours != 0 || parts.minutes != 0 || has_seconds {
        out.push('T');
    }
    for (count, letter) in [(parts.hours, 'H'), (parts.minutes, 'M')] {
        if count != 0 {
            let _ = write!(out, "{count}{letter}");
        }
    }
    if has_seconds {
        let sign = if parts.seconds < 0 || parts.fraction < 0 { "-" } else { "" };
        let _ = write!(out, "{sign}{}S", seconds_text(parts.seconds, parts.fraction, 1));
    }
    if out.len() == start + 1 {
        out.push_str("T0S");
    }
}

fn write_verbose(out: &mut String, parts: &Shown) {
    out.push('@');
    let fields = [
        (parts.years, "year"),
        (parts.months, "mon"),
        (parts.days, "day"),
        (parts.hours, "hour"),
        (parts.minutes, "min"),
    ];
    let (mut first, mut before) = (true, false);
    for (count, unit) in fields.into_iter().filter(|(count, _)| *count != 0) {
        if first {
            before = count < 0;
            first = false;
        }
        let count = if before { -count } else { count };
        let _ = write!(out, " {count} {unit}{}", if count == 1 { "" } else { "s" });
    }
    if parts.seconds != 0 || parts.fraction != 0 {
        let negative = parts.seconds < 0 || parts.fraction < 0;
        if first {
            before = negative;
            first = false;
        }
        let sign = if negative != before { "-" } else { "" };
        let plural = if parts.seconds.abs() != 1 || parts.fraction != 0 { "s" } else { "" };
        let _ = write!(out, " {sign}{} sec{plural}", seconds_text(parts.seconds, parts.fraction, 1));
    }
    if first {
        out.push_str(" 0");
    }
    if before {
        out.push_str(" ago");
    }
}

fn write_standard(out: &mut String, parts: &Shown) {
    let counts = [parts.years, parts.months, parts.days, parts.hours, parts.minutes, parts.seconds, parts.fraction];
    let negative = counts.iter().any(|n| *n < 0);
    let positive = counts.iter().any(|n| *n > 0);
    let year_month = parts.years != 0 || parts.months != 0;
    let day_time = counts[2..].iter().any(|n| *n != 0);
    let clock =
        format!("{}:{:02}:{}", parts.hours.abs(), parts.minutes.abs(), seconds_text(parts.seconds, parts.fraction, 2));
    let months = format!("{}-{}", parts.years.abs(), parts.months.abs());
    let sign = |negative: bool| if negative { '-' } else { '+' };
    if !negative && !positive {
        out.push('0');
    } else if (negative && positive) || (year_month && day_time) {
        let time_negative = counts[3..].iter().any(|n| *n < 0);
        let _ = write!(
            out,
            "{}{months} {}{} {}{clock}",
            sign(parts.years < 0 || parts.months < 0),
            sign(parts.days < 0),
            parts.days.abs(),
            sign(time_negative)
        );
    } else {
        let lead = if negative { "-" } else { "" };
        let _ = match (year_month, parts.days != 0) {
            (true, _) => write!(out, "{lead}{months}"),
            (false, true) => write!(out, "{lead}{} {clock}", parts.days.abs()),
            (false, false) => write!(out, "{lead}{clock}"),
        };
    }
}
