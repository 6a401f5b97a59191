//! Words of dates, times and intervals, and how a text falls apart into them.
//!
//! A text is first cut into fields by the look of its characters alone; what a field means is decided after that, by
//! what has been seen before it. This is how PostgreSQL reads dates, and the only way to read all that it reads.

/// Why a text is not a date, time or interval; the message is made where the type is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    Format,
    Field,
    /// A month or a day that cannot be, perhaps because the order of the fields is another.
    MonthOrDay,
    Interval,
    Displacement,
    Zone(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldKind {
    Number,
    Text,
    Date,
    Time,
    /// A sign and digits: a displacement from UTC, or a number of an interval.
    Signed,
    /// A sign and letters.
    Special,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) kind: FieldKind,
    pub(crate) text: String,
}

/// More fields than any date has: longer texts are refused rather than read.
const MAX_FIELDS: usize = 25;

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    fn take(&mut self, out: &mut String) {
        out.push(char::from(self.peek().to_ascii_lowercase()));
        self.at += 1;
    }

    fn take_while(&mut self, out: &mut String, wanted: impl Fn(u8) -> bool) {
        while wanted(self.peek()) {
            self.take(out);
        }
    }

    fn skip_spaces(&mut self) {
        while is_space(self.peek()) {
            self.at += 1;
        }
    }

    fn number(&mut self) -> Field {
        let mut text = String::new();
        self.take_while(&mut text, |c| c.is_ascii_digit());
        let kind = match self.peek() {
            b':' => {
                self.take_while(&mut text, |c| c.is_ascii_digit() || c == b':' || c == b'.');
                FieldKind::Time
            }
            delimiter @ (b'-' | b'/' | b'.') => self.date_from_number(delimiter, &mut text),
            _ => FieldKind::Number,
        };
        Field { kind, text }
    }

    fn date_from_number(&mut self, delimiter: u8, text: &mut String) -> FieldKind {
        self.take(text);
        if !self.peek().is_ascii_digit() {
            self.take_while(text, |c| c.is_ascii_alphanumeric() || c == delimiter);
            return FieldKind::Date;
        }
        self.take_while(text, |c| c.is_ascii_digit());
        if self.peek() == delimiter {
            self.take_while(text, |c| c.is_ascii_digit() || c == delimiter);
            return FieldKind::Date;
        }
        if delimiter == b'.' { FieldKind::Number } else { FieldKind::Date }
    }

    fn word(&mut self) -> Field {
        let mut text = String::new();
        self.take_while(&mut text, |c| c.is_ascii_alphabetic());
        let next = self.peek();
        // A date with a month's name, or the name of a zone.
        let longer =
            matches!(next, b'-' | b'/' | b'.') || ((next == b'+' || next.is_ascii_digit()) && special(&text).is_none());
        if !longer {
            return Field { kind: FieldKind::Text, text };
        }
        self.take_while(&mut text, |c| c.is_ascii_alphanumeric() || b"+-/_.:".contains(&c));
        Field { kind: FieldKind::Date, text }
    }

    fn signed(&mut self) -> Result<Field, Fault> {
        let mut text = String::new();
        self.take(&mut text);
        self.skip_spaces();
        let first = self.peek();
        if first.is_ascii_digit() {
            self.take_while(&mut text, |c| c.is_ascii_digit() || b":.-".contains(&c));
            return Ok(Field { kind: FieldKind::Signed, text });
        }
        if first.is_ascii_alphabetic() {
            self.take_while(&mut text, |c| c.is_ascii_alphabetic());
            return Ok(Field { kind: FieldKind::Special, text });
        }
        Err(Fault::Format)
    }
}

pub(crate) fn is_space(c: u8) -> bool {
    matches!(c, b' ' | b'\t'..=b'\r')
}

/// Cuts a text into its fields.
pub(crate) fn fields(text: &str) -> Result<Vec<Field>, Fault> {
    let mut scanner = Scanner { bytes: text.as_bytes(), at: 0 };
    let mut fields = Vec::new();
    loop {
        scanner.skip_spaces();
        if scanner.at >= scanner.bytes.len() {
            return Ok(fields);
        }
        let field = match scanner.peek() {
            c if c.is_ascii_digit() => scanner.number(),
            b'.' => {
                let mut text = String::new();
                scanner.take(&mut text);
                scanner.take_while(&mut text, |c| c.is_ascii_digit());
                Field { kind: FieldKind::Number, text }
            }
            c if c.is_ascii_alphabetic() => scanner.word(),
            b'+' | b'-' => scanner.signed()?,
            c if c.is_ascii_punctuation() => {
                scanner.at += 1;
                continue;
            }
            _ => return Err(Fault::Format),
        };
        if fields.len() == MAX_FIELDS {
            return Err(Fault::Format);
        }
        fields.push(field);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Microsecond,
    Millisecond,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Quarter,
    Year,
    Decade,
    Century,
    Millennium,
    Julian,
    Dow,
    Doy,
    IsoDow,
    IsoYear,
    Epoch,
    Zone,
    ZoneHour,
    ZoneMinute,
    /// The `t` before a time.
    Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    Now,
    Yesterday,
    Today,
    Tomorrow,
    Zulu,
    Epoch,
    Infinity,
    MinusInfinity,
    Month(u32),
    WeekDay,
    Am,
    Pm,
    Ad,
    Bc,
    Ignored,
    SummerTime,
    Unit(Unit),
}

/// PostgreSQL compares no more than this of a word.
const WORD_LENGTH: usize = 10;

fn cut(word: &str) -> &str {
    word.get(..WORD_LENGTH).unwrap_or(word)
}

/// Words of dates and times.
pub(crate) fn special(word: &str) -> Option<Special> {
    Some(match cut(word) {
        "-infinity" => Special::MinusInfinity,
        "infinity" => Special::Infinity,
        "now" => Special::Now,
        "today" => Special::Today,
        "tomorrow" => Special::Tomorrow,
        "yesterday" => Special::Yesterday,
        "allballs" => Special::Zulu,
        "epoch" => Special::Epoch,
        "ad" => Special::Ad,
        "bc" => Special::Bc,
        "am" => Special::Am,
        "pm" => Special::Pm,
        "at" | "on" => Special::Ignored,
        "dst" => Special::SummerTime,
        "jan" | "january" => Special::Month(1),
        "feb" | "february" => Special::Month(2),
        "mar" | "march" => Special::Month(3),
        "apr" | "april" => Special::Month(4),
        "may" => Special::Month(5),
        "jun" | "june" => Special::Month(6),
        "jul" | "july" => Special::Month(7),
        "aug" | "august" => Special::Month(8),
        "sep" | "sept" | "september" => Special::Month(9),
        "oct" | "october" => Special::Month(10),
        "nov" | "november" => Special::Month(11),
        "dec" | "december" => Special::Month(12),
        "mon" | "monday" | "tue" | "tues" | "tuesday" | "wed" | "weds" | "wednesday" | "thu" | "thur" | "thurs"
        | "thursday" | "fri" | "friday" | "sat" | "saturday" | "sun" | "sunday" => Special::WeekDay,
        "d" => Special::Unit(Unit::Day),
        "dow" => Special::Unit(Unit::Dow),
        "doy" => Special::Unit(Unit::Doy),
        "isodow" => Special::Unit(Unit::IsoDow),
        "isoyear" => Special::Unit(Unit::IsoYear),
        "h" => Special::Unit(Unit::Hour),
        "j" | "jd" | "julian" => Special::Unit(Unit::Julian),
        "m" => Special::Unit(Unit::Month),
        "mm" => Special::Unit(Unit::Minute),
        "s" => Special::Unit(Unit::Second),
        "t" => Special::Unit(Unit::Time),
        "y" => Special::Unit(Unit::Year),
        _ => return None,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnitWord {
    Unit(Unit),
    Ago,
}

/// Words of intervals, and of `extract` and `date_trunc`.
pub(crate) fn unit(word: &str) -> Option<UnitWord> {
    Some(UnitWord::Unit(match cut(word) {
        "ago" => return Some(UnitWord::Ago),
        "us" | "usec" | "usecond" | "useconds" | "usecs" | "microsecon" => Unit::Microsecond,
        "ms" | "msec" | "msecond" | "mseconds" | "msecs" | "millisecon" => Unit::Millisecond,
        "s" | "sec" | "second" | "seconds" | "secs" => Unit::Second,
        "m" | "min" | "mins" | "minute" | "minutes" => Unit::Minute,
        "h" | "hour" | "hours" | "hr" | "hrs" => Unit::Hour,
        "d" | "day" | "days" => Unit::Day,
        "w" | "week" | "weeks" => Unit::Week,
        "mon" | "mons" | "month" | "months" => Unit::Month,
        "qtr" | "quarter" => Unit::Quarter,
        "y" | "year" | "years" | "yr" | "yrs" => Unit::Year,
        "dec" | "decade" | "decades" | "decs" => Unit::Decade,
        "c" | "cent" | "centuries" | "century" => Unit::Century,
        "mil" | "millennia" | "millennium" | "mils" => Unit::Millennium,
        "timezone" => Unit::Zone,
        "timezone_h" => Unit::ZoneHour,
        "timezone_m" => Unit::ZoneMinute,
        _ => return None,
    }))
}
