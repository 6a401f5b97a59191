//! Dates and times from text, read as PostgreSQL reads them.
//!
//!     text → fields (see `tokens`) → year, month, day, time of day, displacement → a value of the wanted type
//!
//! Each field says which parts it gives; a part that is given twice makes the text invalid. Numbers without a name
//! are years, months or days by what is still missing and by the session's order of dates.

use super::settings::{DateOrder, Settings};
use super::tokens::{Fault, Field, FieldKind, Special, Unit, fields, special};
use super::zone::Zone;
use isles_kernel::form::{civil, days_of};

pub(crate) const MICROS_PER_SECOND: i64 = 1_000_000;
pub(crate) const MICROS_PER_DAY: i64 = 86_400 * MICROS_PER_SECOND;
/// Days from 2000-01-01 to the beginning of Julian day 0, and back.
pub(crate) const JULIAN_DAY: i64 = 2_451_545;
/// PostgreSQL's limit on the hours of a displacement from UTC.
const MAX_DISPLACEMENT_HOURS: i64 = 15;

const YEAR: u32 = 1;
const MONTH: u32 = 1 << 1;
const DAY: u32 = 1 << 2;
const HOUR: u32 = 1 << 3;
const MINUTE: u32 = 1 << 4;
const SECOND: u32 = 1 << 5;
const ZONE: u32 = 1 << 6;
const DAY_OF_YEAR: u32 = 1 << 7;
const WEEK_DAY: u32 = 1 << 8;
const MERIDIEM: u32 = 1 << 9;
const ERA: u32 = 1 << 10;
const SUMMER: u32 = 1 << 11;
const DATE: u32 = YEAR | MONTH | DAY;
const TIME: u32 = HOUR | MINUTE | SECOND;

/// What a text says, before it is a value of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Local time, and seconds east of UTC that go with it.
    At {
        local: i64,
        offset: i32,
    },
    Infinity,
    MinusInfinity,
    /// 1970-01-01 00:00 UTC.
    Epoch,
}

#[derive(Debug, Default)]
struct Parts {
    year: i64,
    month: i64,
    day: i64,
    day_of_year: i64,
    hour: i64,
    minute: i64,
    second: i64,
    /// Microseconds.
    fraction: i64,
    two_digit_year: bool,
    text_month: bool,
    julian: bool,
    before_christ: bool,
    pm: Option<bool>,
    offset: i32,
    zone: Option<Zone>,
    special: Option<Moment>,
}

struct Reader<'a> {
    settings: &'a Settings,
    parts: Parts,
    seen: u32,
    /// What the next number is, when a word has said it.
    expected: Option<Unit>,
    time_only: bool,
}

/// The number at the beginning of a text, and the rest.
fn leading(text: &str) -> Result<(i64, &str), Fault> {
    let (number, rest) = leading_wide(text)?;
    i32::try_from(number).map_err(|_| Fault::Field)?;
    Ok((number, rest))
}

/// The same of any size: the hours of an interval may be many.
fn leading_wide(text: &str) -> Result<(i64, &str), Fault> {
    let signed = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = signed.bytes().take_while(u8::is_ascii_digit).count();
    let end = text.len() - signed.len() + digits;
    if digits == 0 {
        return Ok((0, text));
    }
    let number: i64 = text[..end].parse().map_err(|_| Fault::Field)?;
    Ok((number, &text[end..]))
}

/// `.789` in microseconds, rounded.
pub(crate) fn fraction(text: &str) -> Result<i64, Fault> {
    let digits = text.strip_prefix('.').ok_or(Fault::Format)?;
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Fault::Format);
    }
    if digits.is_empty() {
        return Ok(0);
    }
    let value: f64 = format!("0.{digits}").parse().map_err(|_| Fault::Format)?;
    Ok((value * 1e6).round_ties_even() as i64)
}

/// `+05`, `-0330`, `+05:30:15` in seconds east.
pub(crate) fn displacement(text: &str) -> Result<i32, Fault> {
    let negative = text.starts_with('-');
    let rest = text.strip_prefix(['+', '-']).ok_or(Fault::Format)?;
    let overflow = |_| Fault::Displacement;
    let (mut hours, mut rest) = leading(rest).map_err(overflow)?;
    let (mut minutes, mut seconds) = (0, 0);
    if let Some(after) = rest.strip_prefix(':') {
        (minutes, rest) = leading(after).map_err(overflow)?;
        if let Some(after) = rest.strip_prefix(':') {
            (seconds, rest) = leading(after).map_err(overflow)?;
        }
    } else if rest.is_empty() && text.len() > 3 {
        (hours, minutes) = (hours / 100, hours % 100);
    }
    if !(0..=MAX_DISPLACEMENT_HOURS).contains(&hours) || !(0..60).contains(&minutes) || !(0..60).contains(&seconds) {
        return Err(Fault::Displacement);
    }
    if !rest.is_empty() {
        return Err(Fault::Format);
    }
    let total = ((hours * 60 + minutes) * 60 + seconds) as i32;
    Ok(if negative { -total } else { total })
}

/// `04:05`, `04:05:06.789`: hours, minutes, seconds and microseconds. `05:06.7` has no hours.
pub(crate) fn clock(text: &str) -> Result<(i64, i64, i64, i64), Fault> {
    let (hour, rest) = leading_wide(text)?;
    let rest = rest.strip_prefix(':').ok_or(Fault::Format)?;
    let (minute, rest) = leading(rest)?;
    let (hour, minute, second, micros) = match rest.as_bytes().first() {
        None => (hour, minute, 0, 0),
        Some(b'.') => (0, hour, minute, fraction(rest)?),
        Some(b':') => {
            let (second, rest) = leading(&rest[1..])?;
            (hour, minute, second, if rest.is_empty() { 0 } else { fraction(rest)? })
        }
        _ => return Err(Fault::Format),
    };
    let valid = hour >= 0 && (0..60).contains(&minute) && (0..=60).contains(&second) && micros <= MICROS_PER_SECOND;
    if valid { Ok((hour, minute, second, micros)) } else { Err(Fault::Field) }
}

fn last_day(year: i64, month: i64) -> i64 {
    let next = if month == 12 { days_of(year + 1, 1, 1) } else { days_of(year, month as u32 + 1, 1) };
    next - days_of(year, month as u32, 1)
}

impl Reader<'_> {
    fn read(&mut self, fields: &[Field]) -> Result<(), Fault> {
        for (at, field) in fields.iter().enumerate() {
            let given = match field.kind {
                FieldKind::Date => self.date_field(&field.text)?,
                FieldKind::Time => self.time_field(&field.text)?,
                FieldKind::Signed => {
                    self.parts.offset = displacement(&field.text)?;
                    ZONE
                }
                FieldKind::Number => self.number_field(&field.text)?,
                FieldKind::Text | FieldKind::Special => self.word(&field.text, fields.get(at + 1))?,
            };
            if given & self.seen != 0 {
                return Err(Fault::Format);
            }
            self.seen |= given;
        }
        Ok(())
    }

    fn date_field(&mut self, text: &str) -> Result<u32, Fault> {
        if self.expected == Some(Unit::Julian) {
            self.expected = None;
            let (days, rest) = leading(text)?;
            self.set_julian(days)?;
            self.parts.offset = displacement(rest)?;
            return Ok(DATE | TIME | ZONE);
        }
        let has_date = self.seen & (MONTH | DAY) == (MONTH | DAY) || (self.time_only && self.seen & TIME != 0);
        if self.expected.is_none() && !has_date {
            return self.date(text);
        }
        if text.starts_with(|c: char| c.is_ascii_digit()) || self.expected.is_some() {
            if self.expected.take().is_some_and(|unit| unit != Unit::Time) || self.seen & TIME == TIME {
                return Err(Fault::Format);
            }
            let at = text.find('-').ok_or(Fault::Format)?;
            self.parts.offset = displacement(&text[at..])?;
            return Ok(self.joined(&text[..at], self.seen)? | ZONE);
        }
        self.parts.zone = Some(Zone::named(text).ok_or_else(|| Fault::Zone(text.into()))?);
        Ok(ZONE)
    }

    fn time_field(&mut self, text: &str) -> Result<u32, Fault> {
        if self.expected.take().is_some_and(|unit| unit != Unit::Time) {
            return Err(Fault::Format);
        }
        let (hour, minute, second, micros) = clock(text)?;
        let whole = |hour: i64| ((hour * 60 + minute) * 60 + second) * MICROS_PER_SECOND + micros;
        if hour > 24 || whole(hour) > MICROS_PER_DAY {
            return Err(Fault::Field);
        }
        self.set_time(hour, minute, second, micros);
        Ok(TIME)
    }

    fn set_time(&mut self, hour: i64, minute: i64, second: i64, fraction: i64) {
        (self.parts.hour, self.parts.minute, self.parts.second, self.parts.fraction) = (hour, minute, second, fraction);
    }

    fn set_julian(&mut self, day: i64) -> Result<(), Fault> {
        if day < 0 {
            return Err(Fault::Field);
        }
        self.set_days(day - JULIAN_DAY);
        self.parts.julian = true;
        Ok(())
    }

    fn set_days(&mut self, days: i64) {
        let (year, month, day) = civil(days);
        (self.parts.year, self.parts.month, self.parts.day) = (year, i64::from(month), i64::from(day));
    }

    /// A date in one piece: `1999-01-08`, `8-jan-1999`.
    fn date(&mut self, text: &str) -> Result<u32, Fault> {
        let mut pieces: Vec<&str> = Vec::new();
        let mut rest = text.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        while !rest.is_empty() {
            let digits = rest.as_bytes()[0].is_ascii_digit();
            let same = |b: &u8| if digits { b.is_ascii_digit() } else { b.is_ascii_alphabetic() };
            let length = rest.bytes().take_while(|b| same(b)).count();
            pieces.push(&rest[..length]);
            let after = &rest[length..];
            rest = after.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
            if rest.is_empty() && after.len() > 1 {
                return Err(Fault::Format);
            }
        }
        let (outer, mut given) = (self.seen, 0);
        for piece in pieces.iter().filter(|piece| piece.starts_with(|c: char| c.is_ascii_alphabetic())) {
            match special(piece) {
                Some(Special::Ignored) => continue,
                Some(Special::Month(month)) if (outer | given) & MONTH == 0 => {
                    self.parts.month = i64::from(month);
                    self.parts.text_month = true;
                    given |= MONTH;
                }
                _ => return Err(Fault::Format),
            }
        }
        for piece in pieces.iter().filter(|piece| piece.starts_with(|c: char| c.is_ascii_digit())) {
            let part = self.number(piece, outer | given)?;
            if part & (outer | given) != 0 {
                return Err(Fault::Format);
            }
            given |= part;
        }
        if (outer | given) & !(DAY_OF_YEAR | ZONE) != DATE {
            return Err(Fault::Format);
        }
        Ok(given)
    }

    fn number_field(&mut self, text: &str) -> Result<u32, Fault> {
        if let Some(unit) = self.expected.take() {
            return self.labelled(unit, text);
        }
        let point = text.find('.');
        if self.time_only {
            return self.joined(text, self.seen | DATE);
        }
        match point {
            Some(_) if self.seen & DATE == 0 => self.date(text),
            Some(at) if at > 2 => self.joined(text, self.seen),
            None if text.len() >= 6 && (self.seen & DATE == 0 || self.seen & TIME == 0) => self.joined(text, self.seen),
            _ => self.number(text, self.seen),
        }
    }

    /// A number after a word that says what it is.
    fn labelled(&mut self, unit: Unit, text: &str) -> Result<u32, Fault> {
        let (value, rest) = leading(text)?;
        let fractional = matches!(unit, Unit::Julian | Unit::Time | Unit::Second);
        let ends = rest.is_empty() || (rest.starts_with('.') && fractional);
        if !ends {
            return Err(Fault::Format);
        }
        match unit {
            Unit::Year => {
                self.parts.year = value;
                Ok(YEAR)
            }
            Unit::Month if self.seen & MONTH != 0 && self.seen & HOUR != 0 => {
                self.parts.minute = value;
                Ok(MINUTE)
            }
            Unit::Month => {
                self.parts.month = value;
                Ok(MONTH)
            }
            Unit::Day => {
                self.parts.day = value;
                Ok(DAY)
            }
            Unit::Hour => {
                self.parts.hour = value;
                Ok(HOUR)
            }
            Unit::Minute => {
                self.parts.minute = value;
                Ok(MINUTE)
            }
            Unit::Second => {
                self.parts.second = value;
                self.parts.fraction = if rest.is_empty() { 0 } else { fraction(rest)? };
                Ok(SECOND)
            }
            Unit::Julian => self.julian(value, rest),
            Unit::Time => {
                let given = self.joined(text, self.seen | DATE)?;
                if given == TIME { Ok(TIME) } else { Err(Fault::Format) }
            }
            _ => Err(Fault::Format),
        }
    }

    fn julian(&mut self, day: i64, rest: &str) -> Result<u32, Fault> {
        self.set_julian(day)?;
        if rest.is_empty() {
            return Ok(DATE);
        }
        let part: f64 = format!("0{rest}").parse().map_err(|_| Fault::Format)?;
        let micros = (part * MICROS_PER_DAY as f64) as i64;
        let seconds = micros / MICROS_PER_SECOND;
        self.set_time(seconds / 3600, seconds / 60 % 60, seconds % 60, micros % MICROS_PER_SECOND);
        Ok(DATE | TIME)
    }

    /// A number whose place in the date follows from what is known already.
    fn number(&mut self, text: &str, seen: u32) -> Result<u32, Fault> {
        let (value, rest) = leading(text)?;
        if rest.len() == text.len() {
            return Err(Fault::Format);
        }
        if rest.starts_with('.') {
            if text.len() - rest.len() > 2 {
                return self.joined(text, seen | DATE);
            }
            self.parts.fraction = fraction(rest)?;
        } else if !rest.is_empty() {
            return Err(Fault::Format);
        }
        if text.len() == 3 && seen & DATE == YEAR && (1..=366).contains(&value) {
            self.parts.day_of_year = value;
            return Ok(DAY_OF_YEAR | MONTH | DAY);
        }
        let order = self.settings.date_style.order;
        let long = text.len() >= 3;
        let part = match seen & DATE {
            0 if long || order == DateOrder::Ymd => YEAR,
            0 if order == DateOrder::Dmy => DAY,
            0 => MONTH,
            YEAR => MONTH,
            MONTH if self.parts.text_month && (long || order == DateOrder::Ymd) => YEAR,
            MONTH => DAY,
            known if known == YEAR | MONTH => {
                if self.parts.text_month && long && self.parts.two_digit_year {
                    // The first number was taken for the year, and is the day.
                    self.parts.day = self.parts.year;
                    self.parts.year = value;
                    self.parts.two_digit_year = false;
                    return Ok(DAY);
                }
                DAY
            }
            DAY => MONTH,
            known if known == MONTH | DAY => YEAR,
            DATE => return self.joined(text, seen),
            _ => return Err(Fault::Format),
        };
        match part {
            YEAR => {
                self.parts.year = value;
                self.parts.two_digit_year = text.len() <= 2;
            }
            MONTH => self.parts.month = value,
            _ => self.parts.day = value,
        }
        Ok(part)
    }

    /// Digits that are a whole date or a whole time: `19990108`, `040506.7`.
    fn joined(&mut self, text: &str, seen: u32) -> Result<u32, Fault> {
        let (digits, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(Fault::Format);
        }
        let number = |text: &str| text.parse::<i64>().map_err(|_| Fault::Field);
        let length = digits.len();
        if !rest.is_empty() {
            self.parts.fraction = fraction(rest)?;
        } else if seen & DATE != DATE && length >= 6 {
            self.parts.day = number(&digits[length - 2..])?;
            self.parts.month = number(&digits[length - 4..length - 2])?;
            self.parts.year = number(&digits[..length - 4])?;
            self.parts.two_digit_year = length == 6;
            return Ok(DATE);
        }
        if seen & TIME == TIME || !(length == 6 || length == 4) {
            return Err(Fault::Format);
        }
        self.parts.hour = number(&digits[..2])?;
        self.parts.minute = number(&digits[2..4])?;
        self.parts.second = if length == 6 { number(&digits[4..])? } else { 0 };
        Ok(TIME)
    }

    fn word(&mut self, text: &str, next: Option<&Field>) -> Result<u32, Fault> {
        let is_word = special(text).is_some();
        if let Some(offset) = Zone::abbreviation(text).filter(|_| !is_word) {
            self.parts.offset = offset;
            return Ok(ZONE);
        }
        let Some(word) = special(text) else {
            self.parts.zone = Some(Zone::named(text).ok_or(Fault::Format)?);
            return Ok(ZONE);
        };
        match word {
            Special::Now => {
                self.now();
                Ok(DATE | TIME | ZONE)
            }
            Special::Today => Ok(self.today(0)),
            Special::Tomorrow => Ok(self.today(1)),
            Special::Yesterday => Ok(self.today(-1)),
            Special::Zulu => {
                self.set_time(0, 0, 0, 0);
                Ok(TIME | ZONE)
            }
            Special::Epoch => self.special(Moment::Epoch),
            Special::Infinity => self.special(Moment::Infinity),
            Special::MinusInfinity => self.special(Moment::MinusInfinity),
            Special::Month(month) => Ok(self.month(month)),
            Special::WeekDay => Ok(WEEK_DAY),
            Special::Am | Special::Pm => {
                self.parts.pm = Some(word == Special::Pm);
                Ok(MERIDIEM)
            }
            Special::Ad | Special::Bc => {
                self.parts.before_christ = word == Special::Bc;
                Ok(ERA)
            }
            Special::Ignored => Ok(0),
            Special::SummerTime => {
                self.parts.offset += 3600;
                Ok(SUMMER)
            }
            Special::Unit(Unit::Time) => {
                let follows = next
                    .is_some_and(|field| matches!(field.kind, FieldKind::Number | FieldKind::Time | FieldKind::Date));
                if (self.seen & DATE != DATE && !self.time_only) || !follows {
                    return Err(Fault::Format);
                }
                self.expected = Some(Unit::Time);
                Ok(0)
            }
            Special::Unit(unit) => {
                self.expected = Some(unit);
                Ok(0)
            }
        }
    }

    fn special(&mut self, moment: Moment) -> Result<u32, Fault> {
        self.parts.special = Some(moment);
        Ok(DATE | TIME | ZONE)
    }

    fn local_now(&self) -> (i64, i32) {
        let offset = self.settings.zone.offset_at(self.settings.now);
        (self.settings.now + i64::from(offset) * MICROS_PER_SECOND, offset)
    }

    fn now(&mut self) {
        let (local, offset) = self.local_now();
        self.set_days(local.div_euclid(MICROS_PER_DAY));
        let micros = local.rem_euclid(MICROS_PER_DAY);
        let seconds = micros / MICROS_PER_SECOND;
        self.set_time(seconds / 3600, seconds / 60 % 60, seconds % 60, micros % MICROS_PER_SECOND);
        self.parts.offset = offset;
    }

    fn today(&mut self, ahead: i64) -> u32 {
        let (local, _) = self.local_now();
        self.set_days(local.div_euclid(MICROS_PER_DAY) + ahead);
        DATE
    }

    fn month(&mut self, month: u32) -> u32 {
        let numeric = self.seen & MONTH != 0 && !self.parts.text_month && self.seen & DAY == 0;
        let given = if numeric && (1..=31).contains(&self.parts.month) {
            self.parts.day = self.parts.month;
            DAY
        } else {
            MONTH
        };
        self.parts.text_month = true;
        self.parts.month = i64::from(month);
        given
    }

    /// The year as the calendar counts it, and a check of month and day.
    fn check_date(&mut self) -> Result<(), Fault> {
        let parts = &mut self.parts;
        if self.seen & YEAR != 0 && !parts.julian {
            match (parts.before_christ, parts.two_digit_year) {
                (true, _) if parts.year <= 0 => return Err(Fault::Field),
                (true, _) => parts.year = 1 - parts.year,
                (false, true) if parts.year < 70 => parts.year += 2000,
                (false, true) if parts.year < 100 => parts.year += 1900,
                (false, false) if parts.year <= 0 => return Err(Fault::Field),
                _ => {}
            }
        }
        if self.seen & DAY_OF_YEAR != 0 {
            let days = days_of(self.parts.year, 1, 1) + self.parts.day_of_year - 1;
            self.set_days(days);
        }
        let (month, day) = (self.parts.month, self.parts.day);
        if (self.seen & MONTH != 0 && !(1..=12).contains(&month)) || (self.seen & DAY != 0 && !(1..=31).contains(&day))
        {
            return Err(Fault::MonthOrDay);
        }
        if self.seen & DATE == DATE && day > last_day(self.parts.year, month) {
            return Err(Fault::Field);
        }
        Ok(())
    }

    fn check_meridiem(&mut self) -> Result<(), Fault> {
        if let Some(pm) = self.parts.pm {
            match self.parts.hour {
                13.. => return Err(Fault::Field),
                12 if !pm => self.parts.hour = 0,
                12 => {}
                _ if pm => self.parts.hour += 12,
                _ => {}
            }
        }
        Ok(())
    }

    fn micros(&self) -> i64 {
        let parts = &self.parts;
        ((parts.hour * 60 + parts.minute) * 60 + parts.second) * MICROS_PER_SECOND + parts.fraction
    }

    fn finish(&mut self) -> Result<Moment, Fault> {
        if let Some(special) = self.parts.special {
            return Ok(special);
        }
        self.check_date()?;
        self.check_meridiem()?;
        if self.seen & DATE != DATE {
            return Err(Fault::Format);
        }
        let time = self.micros();
        if !(0..=MICROS_PER_DAY).contains(&time) || self.parts.minute > 59 || self.parts.second > 60 {
            return Err(Fault::Field);
        }
        let days = days_of(self.parts.year, self.parts.month as u32, self.parts.day);
        let local = days.checked_mul(MICROS_PER_DAY).and_then(|day| day.checked_add(time));
        let local = match local {
            Some(local) => local,
            // Beyond what microseconds can count, but perhaps still a date.
            None => return Ok(Moment::At { local: if days > 0 { i64::MAX } else { i64::MIN }, offset: 0 }),
        };
        Ok(Moment::At { local, offset: self.offset(local)? })
    }

    fn offset(&self, local: i64) -> Result<i32, Fault> {
        if let Some(zone) = &self.parts.zone {
            return if self.seen & SUMMER == 0 { Ok(zone.offset_of_local(local)) } else { Err(Fault::Format) };
        }
        match (self.seen & ZONE != 0, self.seen & SUMMER != 0) {
            (true, _) => Ok(self.parts.offset),
            (false, true) => Err(Fault::Format),
            (false, false) => Ok(self.settings.zone.offset_of_local(local)),
        }
    }
}

fn reader(settings: &Settings) -> Reader<'_> {
    Reader { settings, parts: Parts::default(), seen: 0, expected: None, time_only: false }
}

/// Reads a date, with or without a time.
pub(crate) fn moment(text: &str, settings: &Settings) -> Result<Moment, Fault> {
    let mut reader = reader(settings);
    reader.read(&fields(text)?)?;
    reader.finish()
}

/// Reads only the date of a date: years beyond what a timestamp can hold are dates.
pub(crate) fn date(text: &str, settings: &Settings) -> Result<Result<i64, Moment>, Fault> {
    let mut reader = reader(settings);
    reader.read(&fields(text)?)?;
    match reader.finish()? {
        Moment::At { .. } => Ok(Ok(days_of(reader.parts.year, reader.parts.month as u32, reader.parts.day))),
        other => Ok(Err(other)),
    }
}

/// Reads a time of day, in microseconds. A date beside it is allowed, and a zone, and neither matters.
pub(crate) fn time(text: &str, settings: &Settings) -> Result<i64, Fault> {
    let fields = fields(text)?;
    let mut reader = reader(settings);
    reader.time_only = !fields.iter().any(|field| field.kind == FieldKind::Date && !field.text.contains('_'))
        || fields.first().is_some_and(|field| field.kind == FieldKind::Time);
    reader.read(&fields)?;
    reader.check_date()?;
    reader.check_meridiem()?;
    if reader.seen & TIME != TIME || reader.parts.special.is_some() {
        return Err(Fault::Format);
    }
    let micros = reader.micros();
    let valid = reader.parts.minute <= 59 && reader.parts.second <= 60 && (0..=MICROS_PER_DAY).contains(&micros);
    if valid { Ok(micros) } else { Err(Fault::Field) }
}
