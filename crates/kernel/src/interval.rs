//! Intervals: months, days and microseconds, which no arithmetic can turn into each other.
//!
//! The text form is PostgreSQL's output under `IntervalStyle = postgres`, and so is what a shard that has no interval
//! type stores. Intervals are ordered as PostgreSQL orders them, with 30 days to a month and 24 hours to a day; so
//! two that differ (`1 mon` and `30 days`) can be equal to a database, and [`Interval::eq`] still tells them apart.

use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;

const MICROS_PER_SECOND: i64 = 1_000_000;
const MICROS_PER_DAY: i128 = 86_400_000_000;
const MONTHS_PER_YEAR: i32 = 12;
const DAYS_PER_MONTH: i128 = 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Interval {
    pub months: i32,
    pub days: i32,
    pub micros: i64,
}

impl Interval {
    pub const fn new(months: i32, days: i32, micros: i64) -> Interval {
        Interval { months, days, micros }
    }

    /// The length that PostgreSQL compares, in microseconds.
    pub fn span(&self) -> i128 {
        let days = i128::from(self.months) * DAYS_PER_MONTH + i128::from(self.days);
        days * MICROS_PER_DAY + i128::from(self.micros)
    }

    /// PostgreSQL's order, in which `1 mon` and `30 days` are equal.
    pub fn compare(&self, other: &Interval) -> Ordering {
        self.span().cmp(&other.span())
    }

    /// The order of intervals given as texts; a text that is none sorts last, so that the order stays total.
    pub fn compare_texts(a: &str, b: &str) -> Ordering {
        match (Interval::parse(a), Interval::parse(b)) {
            (Some(x), Some(y)) => x.compare(&y),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => a.cmp(b),
        }
    }

    /// Reads what [`Interval`] displays, and nothing else.
    pub fn parse(text: &str) -> Option<Interval> {
        let mut interval = Interval::default();
        let mut words = text.split(' ');
        while let Some(word) = words.next() {
            if word.contains(':') {
                interval.micros = parse_clock(word)?;
                return words.next().is_none().then_some(interval);
            }
            let count: i32 = word.parse().ok()?;
            match words.next()?.trim_end_matches('s') {
                "year" => interval.months = interval.months.checked_add(count.checked_mul(MONTHS_PER_YEAR)?)?,
                "mon" => interval.months = interval.months.checked_add(count)?,
                "day" => interval.days = interval.days.checked_add(count)?,
                _ => return None,
            }
        }
        Some(interval)
    }
}

/// `[+-]HH:MM:SS[.ffffff]` in microseconds.
fn parse_clock(text: &str) -> Option<i64> {
    let (negative, clock) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut parts = clock.splitn(3, ':');
    let hours: i128 = parts.next()?.parse().ok()?;
    let minutes: i128 = parts.next()?.parse().ok()?;
    let (seconds, fraction) = parts.next().map(|text| text.split_once('.').unwrap_or((text, "")))?;
    let seconds: i128 = seconds.parse().ok()?;
    if fraction.len() > 6 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let fraction: i128 = format!("{fraction:0<6}").parse().ok()?;
    let total = ((hours * 60 + minutes) * 60 + seconds) * i128::from(MICROS_PER_SECOND) + fraction;
    i64::try_from(if negative { -total } else { total }).ok()
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts =
            [(self.months / MONTHS_PER_YEAR, "year"), (self.months % MONTHS_PER_YEAR, "mon"), (self.days, "day")];
        let (mut space, mut after_negative) = ("", false);
        for (count, unit) in parts.into_iter().filter(|(count, _)| *count != 0) {
            let plus = if after_negative && count > 0 { "+" } else { "" };
            let plural = if count == 1 { "" } else { "s" };
            write!(f, "{space}{plus}{count} {unit}{plural}")?;
            (space, after_negative) = (" ", count < 0);
        }
        if self.micros == 0 && !space.is_empty() {
            return Ok(());
        }
        let sign = match (self.micros < 0, after_negative) {
            (true, _) => "-",
            (false, true) => "+",
            (false, false) => "",
        };
        let micros = self.micros.unsigned_abs();
        let (seconds, fraction) = (micros / MICROS_PER_SECOND as u64, micros % MICROS_PER_SECOND as u64);
        write!(f, "{space}{sign}{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)?;
        if fraction != 0 {
            write!(f, ".{}", format!("{fraction:06}").trim_end_matches('0'))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn intervals_are_shown_as_postgresql_shows_them() {
        for (interval, shown) in [
            (Interval::new(0, 0, 0), "00:00:00"),
            (Interval::new(14, 3, 4_000_500_000), "1 year 2 mons 3 days 01:06:40.5"),
            (Interval::new(1, -2, 1_000_000), "1 mon -2 days +00:00:01"),
            (Interval::new(-1, 2, -1_000_000), "-1 mons +2 days -00:00:01"),
            (Interval::new(-13, 0, 0), "-1 years -1 mons"),
            (Interval::new(0, 1, 0), "1 day"),
            (Interval::new(0, 0, i64::MIN), "-2562047788:00:54.775808"),
        ] {
            assert_eq!(interval.to_string(), shown);
            assert_eq!(Interval::parse(shown), Some(interval), "{shown}");
        }
        for bad in ["", "1", "1 week", "day 1", "1 day 2", "01:00", "1:2:3.1234567"] {
            assert_eq!(Interval::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_month_is_equal_to_thirty_days_and_is_not_the_same() {
        let (month, days) = (Interval::new(1, 0, 0), Interval::new(0, 30, 0));
        assert_eq!(month.compare(&days), Ordering::Equal);
        assert_ne!(month, days);
        assert_eq!(Interval::compare_texts("1 day", "23:59:59"), Ordering::Greater);
        assert_eq!(Interval::compare_texts("x", "1 day"), Ordering::Greater);
    }

    proptest! {
        #[test]
        fn texts_of_intervals_read_back(months in any::<i32>(), days in any::<i32>(), micros in any::<i64>()) {
            let interval = Interval::new(months, days, micros);
            prop_assert_eq!(Interval::parse(&interval.to_string()), Some(interval));
        }
    }
}
