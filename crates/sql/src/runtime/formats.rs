//! `to_char`, `to_date`, `to_timestamp` and `to_number`: texts by a template.

use super::dates::{iso_week, moment};
use super::numeric::Number;
use super::{Env, Result, at, number, text};
use crate::text::datetime::{JULIAN_DAY, MICROS_PER_DAY, MICROS_PER_SECOND};
use crate::types::Oid;
use isles_kernel::error::SqlError;
use isles_kernel::form::{civil, days_of};
use isles_kernel::value::{Numeric, TIMESTAMPS, Value};

type Args<'a> = &'a [Value];
type Types<'a> = &'a [Oid];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const ROMAN: [&str; 12] = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"];

/// Words of a template, longest first where one begins another. Case matters for the names, so all spellings are here.
#[rustfmt::skip]
const WORDS: &[&str] = &[
    "HH24", "HH12", "HH", "MI", "SSSSS", "SSSS", "SS", "MS", "US", "FF1", "FF2", "FF3", "FF4", "FF5", "FF6",
    "A.M.", "P.M.", "AM", "PM", "a.m.", "p.m.", "am", "pm", "Y,YYY", "YYYY", "YYY", "YY", "Y", "IYYY", "IYY", "IY",
    "IDDD", "ID", "IW", "I", "B.C.", "A.D.", "BC", "AD", "b.c.", "a.d.", "bc", "ad", "MONTH", "Month", "month", "MON",
    "Mon", "mon", "MM", "DAY", "Day", "day", "DDD", "DD", "DY", "Dy", "dy", "D", "WW", "W", "CC", "J", "Q", "RM", "rm",
    "TZH", "TZM", "TZ", "tz", "OF",
];

#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Word { word: &'static str, fill: bool, ordinal: Option<bool> },
    Text(String),
}

/// Cuts a template into words and what stands between them.
fn pieces(template: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = template;
    'outer: while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('"') {
            let mut literal = String::new();
            let mut chars = after.char_indices();
            let mut end = after.len();
            while let Some((at, c)) = chars.next() {
                match c {
                    '"' => {
                        end = at + 1;
                        break;
                    }
                    '\\' => literal.extend(chars.next().map(|(_, c)| c)),
                    c => literal.push(c),
                }
            }
            pieces.push(Piece::Text(literal));
            rest = &after[end..];
            continue;
        }
        let mut body = rest;
        let mut fill = false;
        while let Some(after) = ["FM", "fm", "TM", "tm", "FX", "fx"].iter().find_map(|prefix| body.strip_prefix(prefix))
        {
            fill |=
                body.starts_with("FM") || body.starts_with("fm") || body.starts_with("TM") || body.starts_with("tm");
            body = after;
        }
        for word in WORDS {
            let same = body.get(..word.len()).is_some_and(|start| {
                let exact = matches!(
                    *word,
                    "MONTH"
                        | "Month"
                        | "month"
                        | "MON"
                        | "Mon"
                        | "mon"
                        | "DAY"
                        | "Day"
                        | "day"
                        | "DY"
                        | "Dy"
                        | "dy"
                        | "AM"
                        | "PM"
                        | "am"
                        | "pm"
                        | "A.M."
                        | "P.M."
                        | "a.m."
                        | "p.m."
                        | "BC"
                        | "AD"
                        | "bc"
                        | "ad"
                        | "B.C."
                        | "A.D."
                        | "b.c."
                        | "a.d."
                        | "RM"
                        | "rm"
                        | "TZ"
                        | "tz"
                );
                if exact { start == *word } else { start.eq_ignore_ascii_case(word) }
            });
            if same {
                body = &body[word.len()..];
                let ordinal = match body {
                    _ if body.starts_with("TH") => Some(true),
                    _ if body.starts_with("th") => Some(false),
                    _ => None,
                };
                if ordinal.is_some() {
                    body = &body[2..];
                }
                pieces.push(Piece::Word { word, fill, ordinal });
                rest = body;
                continue 'outer;
            }
        }
        if body.len() < rest.len() && !body.is_empty() {
            rest = body;
        }
        let mut chars = rest.chars();
        match chars.next() {
            Some('\\') if rest.len() > 1 => {
                let c = chars.next().unwrap_or('\\');
                pieces.push(Piece::Text(if c == '"' { "\"".into() } else { format!("\\{c}") }));
            }
            Some(c) => pieces.push(Piece::Text(c.to_string())),
            None => break,
        }
        rest = chars.as_str();
    }
    pieces
}

struct Shown {
    year: i64,
    month: u32,
    day: u32,
    days: i64,
    clock: i64,
    /// Hours, which for an interval may be many.
    hours: i64,
    offset: i64,
    zone: Option<String>,
    interval: bool,
}

fn ordinal(n: i64, upper: bool) -> &'static str {
    let (tens, ones) = (n.abs() / 10 % 10, n.abs() % 10);
    match (tens == 1, ones, upper) {
        (false, 1, true) => "ST",
        (false, 2, true) => "ND",
        (false, 3, true) => "RD",
        (_, _, true) => "TH",
        (false, 1, false) => "st",
        (false, 2, false) => "nd",
        (false, 3, false) => "rd",
        (_, _, false) => "th",
    }
}

fn cased(name: &str, word: &str) -> String {
    match word {
        _ if word.chars().all(|c| c.is_ascii_uppercase()) => name.to_ascii_uppercase(),
        _ if word.starts_with(|c: char| c.is_ascii_uppercase()) => name.to_string(),
        _ => name.to_ascii_lowercase(),
    }
}

fn padded(name: String, width: usize, fill: bool) -> String {
    if fill { name } else { format!("{name:<width$}") }
}

fn show_word(shown: &Shown, word: &str, fill: bool) -> Result<(String, Option<i64>)> {
    let number = |n: i64, width: usize| {
        let text = if fill {
            n.to_string()
        } else if n < 0 {
            format!("-{:0width$}", -n)
        } else {
            format!("{n:0width$}")
        };
        Ok((text, Some(n)))
    };
    let words = |text: String| Ok((text, None));
    let year = if shown.year > 0 || shown.interval { shown.year } else { 1 - shown.year };
    let seconds = shown.clock / MICROS_PER_SECOND;
    let micros = shown.clock % MICROS_PER_SECOND;
    let hour12 = if shown.hours % 12 == 0 { 12 } else { shown.hours % 12 };
    let am = shown.hours.rem_euclid(24) < 12;
    let weekday = (shown.days + 6).rem_euclid(7);
    let (iso_year, week) = iso_week(shown.days);
    let not_of_interval = || {
        SqlError::new("22007", "invalid format specification for an interval value")
            .with_hint("Intervals are not tied to specific calendar dates.")
    };
    if shown.interval
        && matches!(
            word,
            "MONTH"
                | "Month"
                | "month"
                | "MON"
                | "Mon"
                | "mon"
                | "DAY"
                | "Day"
                | "day"
                | "DY"
                | "Dy"
                | "dy"
                | "D"
                | "ID"
                | "OF"
                | "TZ"
                | "tz"
                | "TZH"
                | "TZM"
        )
    {
        return Err(not_of_interval());
    }
    let of_interval = matches!(
        word,
        "HH24"
            | "HH12"
            | "HH"
            | "MI"
            | "SS"
            | "SSSS"
            | "SSSSS"
            | "MS"
            | "US"
            | "YYYY"
            | "YYY"
            | "YY"
            | "Y"
            | "MM"
            | "DD"
            | "DDD"
            | "AM"
            | "PM"
            | "am"
            | "pm"
            | "A.M."
            | "P.M."
            | "a.m."
            | "p.m."
    ) || word.starts_with("FF");
    if shown.interval && !of_interval {
        return Err(SqlError::unsupported(format!("the template {word} of to_char is not supported for intervals")));
    }
    match word {
        "HH24" => number(shown.hours, 2),
        "HH12" | "HH" => number(hour12, 2),
        "MI" => number(seconds / 60 % 60, 2),
        "SS" => number(seconds % 60, 2),
        "SSSS" | "SSSSS" => number(seconds % 86_400, 1),
        "MS" | "FF3" => number(micros / 1_000, 3),
        "US" | "FF6" => number(micros, 6),
        "FF1" => number(micros / 100_000, 1),
        "FF2" => number(micros / 10_000, 2),
        "FF4" => number(micros / 100, 4),
        "FF5" => number(micros / 10, 5),
        "AM" | "PM" => words(if am { "AM" } else { "PM" }.into()),
        "am" | "pm" => words(if am { "am" } else { "pm" }.into()),
        "A.M." | "P.M." => words(if am { "A.M." } else { "P.M." }.into()),
        "a.m." | "p.m." => words(if am { "a.m." } else { "p.m." }.into()),
        "Y,YYY" => words(format!("{},{:03}", year / 1_000, year % 1_000)),
        "YYYY" => number(year, if year < 0 { 3 } else { 4 }),
        "YYY" => number(year % 1_000, 3),
        "YY" => number(year % 100, 2),
        "Y" => number(year % 10, 1),
        "IYYY" => number(iso_year, 4),
        "IYY" => number(iso_year % 1_000, 3),
        "IY" => number(iso_year % 100, 2),
        "I" => number(iso_year % 10, 1),
        "IDDD" => number((week - 1) * 7 + if weekday == 0 { 7 } else { weekday }, 3),
        "BC" | "AD" => words(if shown.year > 0 { "AD" } else { "BC" }.into()),
        "bc" | "ad" => words(if shown.year > 0 { "ad" } else { "bc" }.into()),
        "B.C." | "A.D." => words(if shown.year > 0 { "A.D." } else { "B.C." }.into()),
        "b.c." | "a.d." => words(if shown.year > 0 { "a.d." } else { "b.c." }.into()),
        "MONTH" | "Month" | "month" => words(padded(cased(MONTHS[shown.month as usize - 1], word), 9, fill)),
        "MON" | "Mon" | "mon" => words(cased(&MONTHS[shown.month as usize - 1][..3], word)),
        "MM" => number(shown.month.into(), 2),
        "DAY" | "Day" | "day" => words(padded(cased(DAYS[weekday as usize], word), 9, fill)),
        "DY" | "Dy" | "dy" => words(cased(&DAYS[weekday as usize][..3], word)),
        "DDD" if shown.interval => number(shown.days, 3),
        "DDD" => number(shown.days - days_of(shown.year, 1, 1) + 1, 3),
        "DD" => number(shown.day.into(), 2),
        "D" => number(weekday + 1, 1),
        "ID" => number(if weekday == 0 { 7 } else { weekday }, 1),
        "WW" => number((shown.days - days_of(shown.year, 1, 1)) / 7 + 1, 2),
        "IW" => number(week, 2),
        "W" => number((i64::from(shown.day) - 1) / 7 + 1, 1),
        "CC" => number(if shown.year > 0 { (shown.year + 99) / 100 } else { (shown.year - 100) / 100 }, 2),
        "J" => number(shown.days + JULIAN_DAY, 1),
        "Q" => number((i64::from(shown.month) - 1) / 3 + 1, 1),
        "RM" => words(padded(ROMAN[shown.month as usize - 1].into(), 4, fill)),
        "rm" => words(padded(ROMAN[shown.month as usize - 1].to_ascii_lowercase(), 4, fill)),
        "TZ" => words(shown.zone.clone().unwrap_or_default()),
        "tz" => words(shown.zone.clone().unwrap_or_default().to_ascii_lowercase()),
        "TZH" => words(format!("{}{:02}", if shown.offset < 0 { '-' } else { '+' }, shown.offset.abs() / 3600)),
        "TZM" => words(format!("{:02}", shown.offset.abs() / 60 % 60)),
        "OF" => {
            let minutes = shown.offset.abs() / 60 % 60;
            let rest = if minutes == 0 { String::new() } else { format!(":{minutes:02}") };
            words(format!("{}{:02}{rest}", if shown.offset < 0 { '-' } else { '+' }, shown.offset.abs() / 3600))
        }
        _ => words(word.to_string()),
    }
}

fn shown_by(shown: &Shown, template: &str) -> Result<Value> {
    let mut out = String::new();
    for piece in pieces(template) {
        match piece {
            Piece::Text(text) => out.push_str(&text),
            Piece::Word { word, fill, ordinal: suffix } => {
                let (text, number) = show_word(shown, word, fill)?;
                out.push_str(&text);
                if let (Some(upper), Some(n)) = (suffix, number) {
                    out.push_str(ordinal(n, upper));
                }
            }
        }
    }
    Ok(Value::Text(out))
}

pub(super) fn timestamp_to_char(env: &mut Env, args: Args, _: Types) -> Result<Value> {
    let template = text(args, 1)?;
    if template.is_empty() {
        return Ok(Value::Null);
    }
    let Some(when) = moment(at(args, 0), env) else { return Err(super::unexpected(at(args, 0))) };
    if [i64::MIN, i64::MAX].contains(&when.local) {
        return Ok(Value::Null);
    }
    let zoned = matches!(at(args, 0), Value::TimestampTz(_));
    let (days, clock) = (when.local.div_euclid(MICROS_PER_DAY), when.local.rem_euclid(MICROS_PER_DAY));
    let (year, month, day) = civil(days);
    let offset = if zoned { (when.local - when.instant) / MICROS_PER_SECOND } else { 0 };
    let zone = if zoned { env.settings.zone.letters_at(when.instant) } else { None };
    let hours = clock / (3_600 * MICROS_PER_SECOND);
    shown_by(&Shown { year, month, day, days, clock, hours, offset, zone, interval: false }, template)
}

pub(super) fn interval_to_char(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (interval, template) = (super::interval(args, 0)?, text(args, 1)?);
    if interval.micros < 0 || interval.months < 0 || interval.days < 0 {
        return Err(SqlError::unsupported("to_char of a negative interval is not supported"));
    }
    if template.is_empty() {
        return Ok(Value::Null);
    }
    let hours = interval.micros / (3_600 * MICROS_PER_SECOND);
    let (year, month) = (i64::from(interval.months / 12), (interval.months % 12) as u32);
    let shown = Shown {
        year,
        month,
        day: interval.days as u32,
        days: i64::from(interval.months) * 30 + i64::from(interval.days),
        clock: interval.micros,
        hours,
        offset: 0,
        zone: None,
        interval: true,
    };
    shown_by(&shown, template)
}

/// What `to_date` and `to_timestamp` have read.
#[derive(Default)]
struct Found {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    day_of_year: Option<i64>,
    julian: Option<i64>,
    hour: i64,
    hour12: bool,
    pm: Option<bool>,
    minute: i64,
    second: i64,
    micros: i64,
    second_of_day: Option<i64>,
    before_christ: bool,
    offset: Option<(i64, i64)>,
}

fn bad_value(value: &str, word: &str) -> SqlError {
    SqlError::new("22007", format!("invalid value \"{value}\" for \"{word}\"")).with_detail("Value must be an integer.")
}

struct Input<'a> {
    rest: &'a str,
}

impl<'a> Input<'a> {
    fn spaces(&mut self) {
        self.rest = self.rest.trim_start_matches(|c: char| c.is_ascii_whitespace());
    }

    /// Digits, no more than `most` unless nothing else bounds them.
    fn number(&mut self, word: &str, most: usize, greedy: bool) -> Result<(i64, usize)> {
        self.spaces();
        let sign = usize::from(self.rest.starts_with(['-', '+']));
        let digits = self.rest[sign..].bytes().take_while(u8::is_ascii_digit).count();
        let taken = if greedy { digits } else { digits.min(most) };
        let text = &self.rest[..sign + taken];
        let value = text.parse().map_err(|_| {
            let shown: String = self.rest.chars().take(most.max(1)).collect();
            bad_value(&shown, word)
        })?;
        self.rest = &self.rest[sign + taken..];
        Ok((value, taken))
    }

    fn name(&mut self, names: &[&str], short: bool, word: &str) -> Result<i64> {
        self.spaces();
        for (at, name) in (0i64..).zip(names) {
            let name = if short { &name[..3] } else { name };
            if self.rest.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name)) {
                self.rest = &self.rest[name.len()..];
                return Ok(at);
            }
        }
        let shown: String = self.rest.chars().take_while(|c| !c.is_ascii_whitespace()).collect();
        Err(SqlError::new("22007", format!("invalid value \"{shown}\" for \"{word}\""))
            .with_detail("The given value did not match any of the allowed values for this field."))
    }
}

fn width_of(word: &str) -> usize {
    match word {
        "YYYY" | "IYYY" | "FF4" => 4,
        "YYY" | "IYY" | "DDD" | "IDDD" | "MS" | "FF3" => 3,
        "Y" | "I" | "D" | "ID" | "W" | "Q" | "FF1" => 1,
        "US" | "FF6" => 6,
        "FF5" | "SSSS" | "SSSSS" => 5,
        "J" => 7,
        _ => 2,
    }
}

fn read_word(input: &mut Input, found: &mut Found, word: &'static str, fill: bool, last: bool) -> Result<()> {
    let width = width_of(word);
    let greedy = fill || last;
    let scaled = |n: i64, digits: usize| n * 10i64.pow(6u32.saturating_sub(digits as u32));
    match word {
        "YYYY" => found.year = Some(input.number(word, width, greedy)?.0),
        "YYY" | "YY" | "Y" => {
            let (n, digits) = input.number(word, width, greedy)?;
            let near = match digits {
                _ if n >= 1_000 => n,
                3.. if n >= 520 => n + 1_000,
                3.. => n + 2_000,
                _ if n >= 70 => n + 1_900,
                _ => n + 2_000,
            };
            found.year = Some(near);
        }
        "Y,YYY" => {
            let (thousands, _) = input.number(word, 4, false)?;
            input.rest = input.rest.trim_start_matches(',');
            found.year = Some(thousands * 1_000 + input.number(word, 3, false)?.0);
        }
        "MM" => found.month = Some(input.number(word, width, greedy)?.0),
        "DD" => found.day = Some(input.number(word, width, greedy)?.0),
        "DDD" => found.day_of_year = Some(input.number(word, width, greedy)?.0),
        "J" => found.julian = Some(input.number(word, width, true)?.0),
        "MONTH" | "Month" | "month" => found.month = Some(input.name(&MONTHS, false, word)? + 1),
        "MON" | "Mon" | "mon" => found.month = Some(input.name(&MONTHS, true, word)? + 1),
        "DAY" | "Day" | "day" => drop(input.name(&DAYS, false, word)?),
        "DY" | "Dy" | "dy" => drop(input.name(&DAYS, true, word)?),
        "HH24" => found.hour = input.number(word, width, greedy)?.0,
        "HH12" | "HH" => {
            found.hour = input.number(word, width, greedy)?.0;
            found.hour12 = true;
        }
        "MI" => found.minute = input.number(word, width, greedy)?.0,
        "SS" => found.second = input.number(word, width, greedy)?.0,
        "SSSS" | "SSSSS" => found.second_of_day = Some(input.number(word, width, greedy)?.0),
        "MS" => {
            let (n, digits) = input.number(word, width, greedy)?;
            found.micros += scaled(n, digits);
        }
        "US" | "FF1" | "FF2" | "FF3" | "FF4" | "FF5" | "FF6" => {
            let (n, digits) = input.number(word, width, greedy)?;
            found.micros += scaled(n, digits);
        }
        "AM" | "PM" | "am" | "pm" => {
            found.pm = Some(input.name(&["am ", "pm "].map(|name| &name[..2]), false, word)? == 1)
        }
        "A.M." | "P.M." | "a.m." | "p.m." => found.pm = Some(input.name(&["a.m.", "p.m."], false, word)? == 1),
        "BC" | "AD" | "bc" | "ad" => found.before_christ = input.name(&["ad", "bc"], false, word)? == 1,
        "B.C." | "A.D." | "b.c." | "a.d." => found.before_christ = input.name(&["a.d.", "b.c."], false, word)? == 1,
        "TZH" => found.offset = Some((input.number(word, 2, false)?.0, 0)),
        "TZM" => {
            let minutes = input.number(word, 2, false)?.0;
            found.offset = found.offset.map(|(hours, _)| (hours, minutes));
        }
        "D" | "ID" | "Q" | "W" => drop(input.number(word, width, greedy)?),
        _ => return Err(SqlError::unsupported(format!("formatting field \"{word}\" is not supported here"))),
    }
    Ok(())
}

fn read_by(given: &str, template: &str) -> Result<Found> {
    let pieces = pieces(template);
    let mut input = Input { rest: given };
    let mut found = Found::default();
    for (at, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Word { word, fill, ordinal } => {
                if input.rest.trim().is_empty() {
                    break;
                }
                // A number before something that is none may have any length.
                let last = !matches!(pieces.get(at + 1), Some(Piece::Word { .. }));
                read_word(&mut input, &mut found, word, *fill, last)?;
                if ordinal.is_some() {
                    input.rest = input.rest.get(2..).unwrap_or("");
                }
            }
            Piece::Text(text) => {
                for c in text.chars() {
                    if c.is_ascii_whitespace() {
                        input.spaces();
                    } else if c.is_ascii_alphanumeric()
                        || input.rest.starts_with(|c: char| c.is_ascii_punctuation() || c.is_ascii_whitespace())
                    {
                        let mut rest = input.rest.chars();
                        rest.next();
                        input.rest = rest.as_str();
                    }
                }
            }
        }
    }
    Ok(found)
}

fn beyond(given: &str) -> SqlError {
    SqlError::new("22008", format!("date/time field value out of range: \"{given}\""))
}

fn days_found(found: &Found, given: &str) -> Result<i64> {
    if let Some(day) = found.julian {
        return Ok(day - JULIAN_DAY);
    }
    let mut year = found.year.unwrap_or(0);
    if found.before_christ && year > 0 {
        year = 1 - year;
    } else if found.year.is_none() {
        year = 0;
    }
    if let Some(day) = found.day_of_year {
        return Ok(days_of(year, 1, 1) + day - 1);
    }
    let (month, day) = (found.month.unwrap_or(1), found.day.unwrap_or(1));
    let valid = (1..=12).contains(&month) && day >= 1 && {
        let next = if month == 12 { days_of(year + 1, 1, 1) } else { days_of(year, month as u32 + 1, 1) };
        day <= next - days_of(year, month as u32, 1)
    };
    if valid { Ok(days_of(year, month as u32, day)) } else { Err(beyond(given)) }
}

pub(super) fn to_date(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let given = text(args, 0)?;
    let days = days_found(&read_by(given, text(args, 1)?)?, given)?;
    i32::try_from(days).map(Value::Date).map_err(|_| SqlError::new("22008", format!("date out of range: \"{given}\"")))
}

pub(super) fn to_timestamp(env: &mut Env, args: Args, _: Types) -> Result<Value> {
    let given = text(args, 0)?;
    let found = read_by(given, text(args, 1)?)?;
    let days = days_found(&found, given)?;
    let mut hour = found.hour;
    if found.hour12 {
        if !(1..=12).contains(&hour) {
            return Err(SqlError::new("22007", format!("hour \"{hour}\" is invalid for the 12-hour clock"))
                .with_hint("Use the 24-hour clock, or give an hour between 1 and 12."));
        }
        hour = match (found.pm, hour) {
            (Some(true), 12) => 12,
            (Some(true), hour) => hour + 12,
            (Some(false), 12) => 0,
            (_, hour) => hour,
        };
    }
    let (minute, second) = (found.minute, found.second);
    if !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0..60).contains(&second) {
        return Err(beyond(given));
    }
    let seconds = found.second_of_day.unwrap_or((hour * 60 + minute) * 60 + second);
    let local = days * MICROS_PER_DAY + seconds * MICROS_PER_SECOND + found.micros;
    let offset = match found.offset {
        Some((hours, minutes)) => hours * 3600 + if hours < 0 { -minutes } else { minutes } * 60,
        None => i64::from(env.settings.zone.offset_of_local(local)),
    };
    let instant = local - offset * MICROS_PER_SECOND;
    match TIMESTAMPS.contains(&instant) {
        true => Ok(Value::TimestampTz(instant)),
        false => Err(SqlError::new("22008", "timestamp out of range")),
    }
}

/// A template of a number, understood.
#[derive(Default)]
struct Mask {
    /// Places before and after the point, each a digit that is always shown (`0`) or not (`9`).
    before: Vec<bool>,
    after: Vec<bool>,
    /// Where group separators stand: the count of places before them.
    groups: Vec<usize>,
    point: bool,
    fill: bool,
    sign: Option<&'static str>,
    ordinal: Option<bool>,
    /// Literals: the count of all places before them, and the text.
    literals: Vec<(usize, String)>,
    shift: u32,
}

fn mask(template: &str) -> Result<Mask> {
    let mut mask = Mask::default();
    let mut rest = template;
    while let Some(c) = rest.chars().next() {
        let places = mask.before.len() + mask.after.len();
        let starts = |word: &str| rest.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
        let mut width = c.len_utf8();
        match c {
            '9' | '0' if mask.shift > 0 => mask.shift += 1,
            '9' | '0' if mask.point => mask.after.push(c == '0'),
            '9' | '0' => mask.before.push(c == '0'),
            '.' | 'D' | 'd' => mask.point = true,
            ',' | 'G' | 'g' => mask.groups.push(mask.before.len()),
            'V' | 'v' => return Err(SqlError::unsupported("the template V of to_char is not supported")),
            _ if starts("FM") => (mask.fill, width) = (true, 2),
            _ if starts("MI") => (mask.sign, width) = (Some("MI"), 2),
            _ if starts("PR") => (mask.sign, width) = (Some("PR"), 2),
            _ if starts("PL") => (mask.sign, width) = (Some("PL"), 2),
            _ if starts("SG") => (mask.sign, width) = (Some("SG"), 2),
            _ if starts("TH") => (mask.ordinal, width) = (Some(c == 'T'), 2),
            _ if starts("RN") => return Err(SqlError::unsupported("the template RN of to_char is not supported")),
            _ if starts("EEEE") => return Err(SqlError::unsupported("the template EEEE of to_char is not supported")),
            'S' | 's' if mask.before.is_empty() && !mask.point => mask.sign = Some("S first"),
            'S' | 's' => mask.sign = Some("S last"),
            'L' | 'l' => mask.literals.push((places, " ".into())),
            '"' => {
                let end = rest[1..].find('"').map_or(rest.len(), |at| at + 2);
                mask.literals.push((places, rest[1..end].trim_end_matches('"').to_string()));
                width = end;
            }
            c => mask.literals.push((places, c.to_string())),
        }
        rest = &rest[width..];
    }
    Ok(mask)
}

fn number_by(number: &Number, template: &str) -> Result<Value> {
    let mask = mask(template)?;
    let Number::Finite(_) = number else {
        return Err(SqlError::unsupported("to_char of a number that is not finite is not supported"));
    };
    let rounded = Numeric::from(number.rounded(mask.after.len() as i64).absolute());
    let negative = number.rounded(mask.after.len() as i64).sign() < 0;
    let (whole, part) = rounded.as_str().split_once('.').unwrap_or((rounded.as_str(), ""));
    let whole = if whole == "0" && !mask.before.is_empty() && !mask.after.is_empty() { "" } else { whole };
    let overflow = whole.len() > mask.before.len();
    let digits: Vec<Option<char>> = match overflow {
        true => mask.before.iter().map(|_| Some('#')).collect(),
        false => {
            let first_zero = mask.before.iter().position(|zero| *zero).unwrap_or(mask.before.len());
            let missing = mask.before.len() - whole.len();
            let pad = (0..missing).map(|at| (at >= first_zero).then_some('0'));
            pad.chain(whole.chars().map(Some)).collect()
        }
    };
    // Of the digits behind the point, FM leaves out the zeros at the end that are not asked for.
    let mut part: Vec<char> = if overflow { vec!['#'; mask.after.len()] } else { part.chars().collect() };
    if mask.fill && !overflow {
        let least = mask.after.iter().rposition(|zero| *zero).map_or(0, |at| at + 1);
        while part.len() > least && part.last() == Some(&'0') {
            part.pop();
        }
    }
    let mut out = String::new();
    let mut literals = mask.literals.iter().peekable();
    let mut started = false;
    let sign_text = match (mask.sign, negative) {
        (None, true) => "-",
        (None, false) if !mask.fill => " ",
        (Some("S first"), true) => "-",
        (Some("S first"), false) => "+",
        _ => "",
    };
    let first_digit = digits.iter().position(Option::is_some).unwrap_or(digits.len());
    for (at, digit) in digits.iter().enumerate() {
        while let Some((_, text)) = literals.next_if(|(place, _)| *place <= at) {
            out.push_str(text);
        }
        for _ in mask.groups.iter().filter(|group| **group == at && at > 0) {
            match (started, mask.fill) {
                (true, _) => out.push(','),
                (false, false) => out.push(' '),
                _ => {}
            }
        }
        if at == first_digit {
            out.push_str(sign_text);
        }
        match digit {
            Some(c) => {
                started = true;
                out.push(*c);
            }
            None if !mask.fill => out.push(' '),
            None => {}
        }
    }
    if first_digit == digits.len() {
        out.push_str(sign_text);
    }
    if mask.point {
        out.push('.');
    }
    out.extend(part.iter());
    for (_, text) in literals {
        out.push_str(text);
    }
    match (mask.sign, negative) {
        (Some("MI"), true) => out.push('-'),
        (Some("MI"), false) if !mask.fill => out.push(' '),
        (Some("S last" | "SG"), true) => out.push('-'),
        (Some("S last" | "SG"), false) => out.push('+'),
        (Some("PL"), false) => out.push('+'),
        (Some("PL"), true) => out = format!("-{}", out.trim_start()),
        (Some("PR"), true) => {
            let trimmed = out.trim_start();
            let lead = " ".repeat(out.len() - trimmed.len());
            out = format!("{lead}<{trimmed}>");
        }
        (Some("PR"), false) if !mask.fill => out = format!(" {out} "),
        _ => {}
    }
    if let (Some(upper), Some(n), false, false) = (mask.ordinal, number.to_i64(), negative, mask.point) {
        out.push_str(ordinal(n, upper));
    }
    Ok(Value::Text(out))
}

pub(super) fn number_to_char(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    let given = match at(args, 0) {
        Value::Float(_) => {
            let digits = super::math::float_to_numeric::<15>(env, args, types)?;
            number(&[digits], 0)?
        }
        _ => number(args, 0)?,
    };
    number_by(&given, text(args, 1)?)
}

pub(super) fn to_number(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (given, template) = (text(args, 0)?, text(args, 1)?);
    let mask = mask(template)?;
    let mut digits = String::new();
    let (mut negative, mut point, mut after) = (false, false, 0);
    for c in given.chars() {
        match c {
            '0'..='9' if !point || after < mask.after.len() => {
                digits.push(c);
                after += usize::from(point);
            }
            '.' if !point && mask.point => {
                point = true;
                digits.push('.');
            }
            '.' if !mask.point => break,
            '-' | '<' => negative = true,
            _ => {}
        }
    }
    let whole = digits.split('.').next().unwrap_or("").len();
    if whole > mask.before.len() {
        return Err(SqlError::unsupported("to_number of a text with more digits than its template is not supported"));
    }
    if !digits.bytes().any(|b| b.is_ascii_digit()) {
        return Err(SqlError::new("22P02", format!("invalid input syntax for type numeric: \"{}\"", given.trim())));
    }
    let signed = format!("{}{digits}", if negative { "-" } else { "" });
    let number = Numeric::parse(signed.trim_end_matches('.')).map_err(|_| super::numeric::overflow())?;
    let scale = i64::from(Number::of(&number).scale().unwrap_or(0)).max(0);
    Ok(super::numeric_value(Number::of(&number).rounded(scale)))
}
