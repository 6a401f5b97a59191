//! Values to text.

use super::datetime::{MICROS_PER_DAY, MICROS_PER_SECOND};
use super::interval;
use super::settings::{ByteaOutput, DateOrder, DateOutput, Settings};
use crate::types::*;
use isles_kernel::form;
use isles_kernel::value::Value;
use std::fmt::Write;

/// Appends the text of a value other than null.
pub fn output(value: &Value, ty: Type, settings: &Settings, out: &mut Vec<u8>) {
    match value {
        // Most of what is sent is text already.
        Value::Text(text) | Value::Json(text) => out.extend_from_slice(text.as_bytes()),
        _ => out.extend_from_slice(text_of(value, ty.oid, settings).as_bytes()),
    }
}

pub(crate) fn text_of(value: &Value, ty: Oid, settings: &Settings) -> String {
    let mut out = String::new();
    write_text(&mut out, value, ty, settings);
    out
}

fn write_text(out: &mut String, value: &Value, ty: Oid, settings: &Settings) {
    match value {
        Value::Int(n) => {
            let _ = write!(out, "{n}");
        }
        Value::Float(x) => write_float(out, *x, ty, settings.extra_float_digits),
        Value::Bytes(bytes) if settings.bytea_output == ByteaOutput::Escape => write_escaped(out, bytes),
        Value::Date(i32::MAX | i32::MIN)
        | Value::Timestamp(i64::MAX | i64::MIN)
        | Value::TimestampTz(i64::MAX | i64::MIN) => form::write(out, value),
        Value::Date(days) => {
            let era = write_date(out, i64::from(*days), settings);
            out.push_str(era);
        }
        Value::Timestamp(micros) => write_moment(out, *micros, None, settings),
        Value::TimestampTz(micros) => {
            let offset = settings.zone.offset_at(*micros);
            let local = micros + i64::from(offset) * MICROS_PER_SECOND;
            write_moment(out, local, Some((*micros, offset)), settings);
        }
        Value::Interval(interval) => interval::write(out, interval, settings.interval_style),
        Value::Array(members) if matches!(ty, INT2VECTOR | OIDVECTOR) => {
            for (at, member) in members.iter().enumerate() {
                out.push_str(if at > 0 { " " } else { "" });
                form::write(out, member);
            }
        }
        Value::Array(members) => {
            let element = element_of(ty).unwrap_or(TEXT);
            form::write_members(out, members, |out, member| write_text(out, member, element, settings));
        }
        _ => form::write(out, value),
    }
}

fn write_float(out: &mut String, x: f64, ty: Oid, extra: i32) {
    match (extra > 0, ty == FLOAT4) {
        (true, true) => form::write_real(out, x as f32),
        (true, false) => form::write_double(out, x),
        (false, single) => {
            let digits = (if single { 6 } else { 15 } + extra).max(1) as usize;
            write_rounded(out, x, digits);
        }
    }
}

/// C's `%.*g`.
pub(crate) fn write_rounded(out: &mut String, x: f64, digits: usize) {
    if !x.is_finite() || x == 0.0 {
        return form::write_double(out, x);
    }
    let text = format!("{x:.width$e}", width = digits - 1);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= digits as i32 {
        let mantissa =
            if mantissa.contains('.') { mantissa.trim_end_matches('0').trim_end_matches('.') } else { mantissa };
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{mantissa}e{sign}{:02}", exponent.abs());
    } else {
        let fixed = format!("{x:.width$}", width = (digits as i32 - 1 - exponent).max(0) as usize);
        out.push_str(if fixed.contains('.') { fixed.trim_end_matches('0').trim_end_matches('.') } else { &fixed });
    }
}

fn write_escaped(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'\\' => out.push_str("\\\\"),
            0x20..=0x7e => out.push(char::from(*byte)),
            _ => {
                let _ = write!(out, "\\{byte:03o}");
            }
        }
    }
}

/// Writes a date, and returns what comes after it for the years before Christ.
fn write_date(out: &mut String, days: i64, settings: &Settings) -> &'static str {
    let style = settings.date_style;
    if style.output == DateOutput::Iso {
        return form::write_date(out, days);
    }
    let (year, month, day) = form::civil(days);
    let shown = if year > 0 { year } else { 1 - year };
    let _ = match (style.output, style.order) {
        (DateOutput::German, _) => write!(out, "{day:02}.{month:02}.{shown:04}"),
        (DateOutput::Sql, DateOrder::Dmy) => write!(out, "{day:02}/{month:02}/{shown:04}"),
        (DateOutput::Sql, _) => write!(out, "{month:02}/{day:02}/{shown:04}"),
        (_, DateOrder::Ymd) => write!(out, "{shown:04}-{month:02}-{day:02}"),
        (_, DateOrder::Dmy) => write!(out, "{day:02}-{month:02}-{shown:04}"),
        (_, DateOrder::Mdy) => write!(out, "{month:02}-{day:02}-{shown:04}"),
    };
    if year > 0 { "" } else { " BC" }
}

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const WEEK_DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

/// Writes local time; `zone` is the instant and the seconds east of UTC, for a type that has a zone.
fn write_moment(out: &mut String, local: i64, zone: Option<(i64, i32)>, settings: &Settings) {
    let (days, clock) = (local.div_euclid(MICROS_PER_DAY), local.rem_euclid(MICROS_PER_DAY));
    let style = settings.date_style;
    let era = if style.output == DateOutput::Postgres {
        let (year, month, day) = form::civil(days);
        let weekday = WEEK_DAYS[(days + 6).rem_euclid(7) as usize];
        let month = MONTHS[month as usize - 1];
        let _ = match style.order {
            DateOrder::Dmy => write!(out, "{weekday} {day:02} {month} "),
            _ => write!(out, "{weekday} {month} {day:02} "),
        };
        form::write_clock(out, clock);
        let _ = write!(out, " {:04}", if year > 0 { year } else { 1 - year });
        if year > 0 { "" } else { " BC" }
    } else {
        let era = write_date(out, days, settings);
        out.push(' ');
        form::write_clock(out, clock);
        era
    };
    if let Some((instant, offset)) = zone {
        match settings.zone.letters_at(instant).filter(|_| style.output != DateOutput::Iso) {
            Some(letters) => {
                let _ = write!(out, " {letters}");
            }
            None => write_offset(out, offset),
        }
    }
    out.push_str(era);
}

/// `+05:30`.
pub(crate) fn write_offset(out: &mut String, offset: i32) {
    let away = offset.unsigned_abs();
    let _ = write!(out, "{}{:02}", if offset < 0 { '-' } else { '+' }, away / 3600);
    if !away.is_multiple_of(3600) {
        let _ = write!(out, ":{:02}", away / 60 % 60);
    }
    if !away.is_multiple_of(60) {
        let _ = write!(out, ":{:02}", away % 60);
    }
}
