//! The text of a value, where it must be one: members of an array that is stored as text.
//!
//! It is PostgreSQL's output form with ISO dates, UTC, and the shortest digits that tell a float from its neighbours.
//! Reading takes exactly what writing gives; what clients may write is a matter of the SQL layer.
//!
//! A `real` is written as the `double precision` it travels as, since a [`Value`] does not say which it is.

use crate::interval::Interval;
use crate::value::{Element, Numeric, Value};
use std::fmt::{Display, Write};

const MICROS_PER_DAY: i64 = 86_400_000_000;
/// Days from 1970-01-01, where the calendar's algorithm counts from, to 2000-01-01.
const EPOCH_DAYS: i64 = 10_957;

/// Year (astronomical: 0 is 1 BC), month and day of a count of days from 2000-01-01.
pub fn civil(days: i64) -> (i64, u32, u32) {
    let z = days + EPOCH_DAYS + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = (of_year - (153 * shifted + 2) / 5 + 1) as u32;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 } as u32;
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Days from 2000-01-01 of a date; the month is 1 to 12, and the day may be any number.
pub fn days_of(year: i64, month: u32, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let shifted = i64::from(if month > 2 { month - 3 } else { month + 9 });
    let of_year = (153 * shifted + 2) / 5;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year + day - 1 - 719_468 - EPOCH_DAYS
}

/// The shortest digits of a finite float that no other float has, as PostgreSQL finds them: a decimal exactly between
/// two floats stands for neither. Returns the digits without point and the exponent of the first.
fn shortest<T>(x: T, is_same: impl Fn(&str) -> bool) -> (String, i32)
where
    T: std::fmt::LowerExp,
{
    let mut text = format!("{x:e}");
    for precision in 0..17 {
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
        if is_strictly_inside(&digits, exponent, &is_same) || precision == 16 {
            return nearest(&x, digits.len(), exponent.parse().unwrap_or(0));
        }
        text = format!("{x:.width$e}", width = digits.len().max(precision));
    }
    (String::from("0"), 0)
}

/// So many digits of a float: of two decimals that are equally near, the even one.
fn nearest<T: std::fmt::LowerExp>(x: &T, count: usize, exponent: i32) -> (String, i32) {
    let text = format!("{x:.width$e}", width = count - 1);
    let (mantissa, rounded) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = mantissa.chars().filter(char::is_ascii_digit).collect();
    (digits, rounded.parse().unwrap_or(exponent))
}

/// Whether the decimal's neighbours, a little above and a little below, are the same float too.
fn is_strictly_inside(digits: &str, exponent: &str, is_same: &impl Fn(&str) -> bool) -> bool {
    if digits == "0" {
        return true;
    }
    // Thirty digits: a difference in the last of them is far below the distance of two floats.
    let exponent = exponent.parse::<i32>().unwrap_or(0) - 29;
    let Ok(number) = format!("{digits:0<30}").parse::<u128>() else { return true };
    is_same(&format!("{}e{exponent}", number + 1)) && is_same(&format!("{}e{exponent}", number - 1))
}

/// A finite or other float, with an exponent where PostgreSQL writes one: below 1e-4 and from `10^limit` on.
fn write_float(out: &mut String, negative: bool, (digits, exponent): (String, i32), limit: i32) {
    if negative {
        out.push('-');
    }
    let fixed = exponent >= -4 && exponent < limit;
    match (fixed, usize::try_from(exponent)) {
        (true, Ok(whole)) if digits.len() <= whole + 1 => {
            out.push_str(&digits);
            out.extend(std::iter::repeat_n('0', whole + 1 - digits.len()));
        }
        (true, Ok(whole)) => {
            out.push_str(&digits[..=whole]);
            out.push('.');
            out.push_str(&digits[whole + 1..]);
        }
        (true, Err(_)) => {
            out.push_str("0.");
            out.extend(std::iter::repeat_n('0', (-exponent - 1) as usize));
            out.push_str(&digits);
        }
        (false, _) => {
            out.push_str(&digits[..1]);
            if digits.len() > 1 {
                out.push('.');
                out.push_str(&digits[1..]);
            }
            let sign = if exponent < 0 { '-' } else { '+' };
            let _ = write!(out, "e{sign}{:02}", exponent.abs());
        }
    }
}

fn special_float(out: &mut String, x: f64) -> bool {
    let text = match x {
        _ if x.is_nan() => "NaN",
        f64::INFINITY => "Infinity",
        f64::NEG_INFINITY => "-Infinity",
        _ => return false,
    };
    out.push_str(text);
    true
}

/// A `double precision` as PostgreSQL writes it.
pub fn write_double(out: &mut String, x: f64) {
    if !special_float(out, x) {
        let magnitude = x.abs();
        let digits = shortest(magnitude, |text| text.parse() == Ok(magnitude));
        write_float(out, x.is_sign_negative(), digits, 15);
    }
}

/// A `real` as PostgreSQL writes it.
pub fn write_real(out: &mut String, x: f32) {
    if !special_float(out, f64::from(x)) {
        let magnitude = x.abs();
        let digits = shortest(magnitude, |text| text.parse() == Ok(magnitude));
        write_float(out, x.is_sign_negative(), digits, 6);
    }
}

/// `2000-01-01`, and for the years before Christ the text that says so.
pub fn write_date(out: &mut String, days: i64) -> &'static str {
    let (year, month, day) = civil(days);
    let shown = if year > 0 { year } else { 1 - year };
    let _ = write!(out, "{shown:04}-{month:02}-{day:02}");
    if year > 0 { "" } else { " BC" }
}

/// `04:05:06.789`.
pub fn write_clock(out: &mut String, micros: i64) {
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let _ = write!(out, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction != 0 {
        let _ = write!(out, ".{}", format!("{fraction:06}").trim_end_matches('0'));
    }
}

fn write_moment(out: &mut String, micros: i64, zone: &str) {
    let era = write_date(out, micros.div_euclid(MICROS_PER_DAY));
    out.push(' ');
    write_clock(out, micros.rem_euclid(MICROS_PER_DAY));
    out.push_str(zone);
    out.push_str(era);
}

fn write_hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
}

/// A uuid with its dashes.
pub fn write_uuid(out: &mut String, uuid: &[u8; 16]) {
    let mut from = 0;
    for (at, part) in [4usize, 2, 2, 2, 6].into_iter().enumerate() {
        if at > 0 {
            out.push('-');
        }
        write_hex(out, &uuid[from..from + part]);
        from += part;
    }
}

fn put(out: &mut String, shown: &dyn Display) {
    let _ = write!(out, "{shown}");
}

/// Writes a value other than null.
pub fn write(out: &mut String, value: &Value) {
    match value {
        Value::Null => {}
        Value::Bool(b) => out.push(if *b { 't' } else { 'f' }),
        Value::Int(n) => put(out, n),
        Value::Float(x) => write_double(out, *x),
        Value::Numeric(n) => out.push_str(n.as_str()),
        Value::Text(s) | Value::Json(s) => out.push_str(s),
        Value::Bytes(b) => {
            out.push_str("\\x");
            write_hex(out, b);
        }
        Value::Date(i32::MAX) | Value::Timestamp(i64::MAX) | Value::TimestampTz(i64::MAX) => out.push_str("infinity"),
        Value::Date(i32::MIN) | Value::Timestamp(i64::MIN) | Value::TimestampTz(i64::MIN) => out.push_str("-infinity"),
        Value::Date(days) => {
            let era = write_date(out, i64::from(*days));
            out.push_str(era);
        }
        Value::Time(micros) => write_clock(out, *micros),
        Value::Timestamp(micros) => write_moment(out, *micros, ""),
        Value::TimestampTz(micros) => write_moment(out, *micros, "+00"),
        Value::Uuid(uuid) => write_uuid(out, uuid),
        Value::Interval(interval) => put(out, interval),
        Value::Array(members) => write_array(out, members),
    }
}

pub fn array_text(members: &[Value]) -> String {
    let mut out = String::new();
    write_array(&mut out, members);
    out
}

fn write_array(out: &mut String, members: &[Value]) {
    write_members(out, members, write);
}

/// An array of members, each written by `write` and quoted where PostgreSQL quotes it.
pub fn write_members(out: &mut String, members: &[Value], mut write: impl FnMut(&mut String, &Value)) {
    out.push('{');
    let mut text = String::new();
    for (at, member) in members.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        if member.is_null() {
            out.push_str("NULL");
            continue;
        }
        text.clear();
        write(&mut text, member);
        write_member(out, &text);
    }
    out.push('}');
}

fn write_member(out: &mut String, text: &str) {
    let special = |c: char| matches!(c, '"' | '\\' | '{' | '}' | ',' | ' ' | '\t'..='\r');
    if !text.is_empty() && !text.eq_ignore_ascii_case("null") && !text.contains(special) {
        out.push_str(text);
        return;
    }
    out.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

/// Reads an array of members of type `element`, as [`array_text`] writes it.
pub fn parse_array(text: &str, element: Element) -> Option<Vec<Value>> {
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    if inner.is_empty() {
        return Some(Vec::new());
    }
    let mut members = Vec::new();
    let mut chars = inner.chars().peekable();
    loop {
        let (mut member, quoted) = (String::new(), chars.next_if_eq(&'"').is_some());
        if quoted {
            loop {
                match chars.next()? {
                    '"' => break,
                    '\\' => member.push(chars.next()?),
                    c => member.push(c),
                }
            }
        } else {
            while let Some(c) = chars.next_if(|c| *c != ',') {
                member.push(c);
            }
        }
        members.push(match member.as_str() {
            "NULL" if !quoted => Value::Null,
            _ => parse(&member, element)?,
        });
        match chars.next() {
            None => return Some(members),
            Some(',') => {}
            Some(_) => return None,
        }
    }
}

/// Reads a value of type `ty` as [`write`] writes it.
fn parse(text: &str, ty: Element) -> Option<Value> {
    Some(match ty {
        Element::Bool => Value::Bool(match text {
            "t" => true,
            "f" => false,
            _ => return None,
        }),
        Element::Int2 | Element::Int4 | Element::Int8 => Value::Int(text.parse().ok()?),
        Element::Float4 => Value::Float(f64::from(text.parse::<f64>().ok()? as f32)),
        Element::Float8 => Value::Float(text.parse().ok()?),
        Element::Numeric => Value::Numeric(Numeric::parse(text).ok()?),
        Element::Text => Value::Text(text.into()),
        Element::Json => Value::Json(text.into()),
        Element::Bytes => Value::Bytes(parse_hex(text.strip_prefix("\\x")?)?),
        Element::Date => Value::Date(match text {
            "infinity" => i32::MAX,
            "-infinity" => i32::MIN,
            _ => i32::try_from(parse_date(text)?).ok()?,
        }),
        Element::Time => Value::Time(parse_clock(text)?),
        Element::Timestamp => Value::Timestamp(parse_moment(text, "")?),
        Element::TimestampTz => Value::TimestampTz(parse_moment(text, "+00")?),
        Element::Uuid => Value::Uuid(parse_hex(&text.replace('-', ""))?.try_into().ok()?),
        Element::Interval => Value::Interval(Interval::parse(text)?),
    })
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pair = |pair: &[u8]| Some((digit(*pair.first()?)? * 16 + digit(*pair.get(1)?)?) as u8);
    text.as_bytes().chunks(2).map(pair).collect()
}

fn parse_date(text: &str) -> Option<i64> {
    let (text, before_christ) = text.strip_suffix(" BC").map_or((text, false), |text| (text, true));
    let mut parts = text.splitn(3, '-');
    let year: i64 = parts.next()?.parse().ok()?;
    let month: u32 = parts.next()?.parse().ok().filter(|month| (1..=12).contains(month))?;
    let day: u32 = parts.next()?.parse().ok().filter(|day| (1..=31).contains(day))?;
    Some(days_of(if before_christ { 1 - year } else { year }, month, i64::from(day)))
}

fn parse_clock(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let parts: Vec<i64> = whole.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [hours, minutes, seconds] = parts[..] else { return None };
    if fraction.len() > 6 || [hours, minutes, seconds].iter().any(|part| !(0..=60).contains(part)) {
        return None;
    }
    let fraction: i64 = format!("{fraction:0<6}").parse().ok()?;
    Some(((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + fraction)
}

fn parse_moment(text: &str, zone: &str) -> Option<i64> {
    match text {
        "infinity" => return Some(i64::MAX),
        "-infinity" => return Some(i64::MIN),
        _ => {}
    }
    let (text, era) = text.strip_suffix(" BC").map_or((text, ""), |text| (text, " BC"));
    let (date, clock) = text.strip_suffix(zone)?.split_once(' ')?;
    parse_date(&format!("{date}{era}"))?.checked_mul(MICROS_PER_DAY)?.checked_add(parse_clock(clock)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_postgresql_writes_them() {
        for (x, shown) in [
            (1e23, "9.999999999999999e+22"),
            (1e15, "1e+15"),
            (123_456_789_012_345.0, "123456789012345"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (5e-324, "5e-324"),
            (9_007_199_254_740_993.0, "9.007199254740992e+15"),
            (-0.0, "-0"),
            (2e22, "2e+22"),
            (1e15 + 2.25, "1.0000000000000022e+15"),
            (0.1, "0.1"),
            (1234.5, "1234.5"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            let mut out = String::new();
            write_double(&mut out, x);
            assert_eq!(out, shown);
        }
        for (x, shown) in [(1_234_567.0, "1.234567e+06"), (123_456.0, "123456"), (0.1, "0.1"), (3.4e38, "3.4e+38")] {
            let mut out = String::new();
            write_real(&mut out, x);
            assert_eq!(out, shown);
        }
    }

    #[test]
    fn days_and_dates_are_each_others_inverse() {
        for days in (-2_451_545..3_000_000).step_by(997).chain([-2_451_545, 0, 2_145_031_948]) {
            let (year, month, day) = civil(days);
            assert_eq!(days_of(year, month, i64::from(day)), days);
        }
        assert_eq!(civil(0), (2000, 1, 1));
        assert_eq!(civil(-2_451_545), (-4713, 11, 24));
    }

    #[test]
    fn members_are_quoted_where_postgresql_quotes_them() {
        let members = ["a b", "", "nULL", "a", "x\\y", "q\"", "{}", "a,b"].map(Value::text);
        let text = r#"{"a b","","nULL",a,"x\\y","q\"","{}","a,b",NULL}"#;
        let members: Vec<Value> = members.into_iter().chain([Value::Null]).collect();
        assert_eq!(array_text(&members), text);
        assert_eq!(parse_array(text, Element::Text), Some(members));
        assert_eq!(parse_array("{}", Element::Int4), Some(vec![]));
        for bad in ["", "{", "{1", "{1}}", "{\"1}", "{\"1\"2}", "{x}"] {
            assert_eq!(parse_array(bad, Element::Int4), None, "{bad}");
        }
    }
}
