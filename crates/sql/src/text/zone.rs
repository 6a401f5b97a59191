//! Time zones: how far local time is from UTC, at an instant or at a local time.
//!
//! Offsets are seconds east of Greenwich. A local time that a change of the clocks skips is read with the offset
//! before the change, and one that happens twice with the offset after it, as PostgreSQL does.

use super::abbreviations::ABBREVIATIONS;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use std::sync::{Arc, OnceLock};

/// Microseconds from 1970-01-01 to 2000-01-01.
const EPOCH_MICROS: i64 = 946_684_800_000_000;
/// The calendar repeats after 400 years, and so do the rules of the last years that are known.
const CYCLE_MICROS: i64 = 146_097 * 86_400_000_000;
/// Within ten of these cycles of 2000, the library knows every instant.
const KNOWN_MICROS: i64 = 10 * CYCLE_MICROS;
/// As PostgreSQL: a displacement has less than 16 hours.
const MAX_HOURS: f64 = 167.0;

#[derive(Debug, Clone, PartialEq)]
pub struct Zone {
    name: Arc<str>,
    rules: Rules,
}

#[derive(Debug, Clone, PartialEq)]
enum Rules {
    Fixed(i32),
    Named(TimeZone),
}

/// The zones that are compiled in; loading one is remembered by the library.
fn database() -> &'static TimeZoneDatabase {
    static DATABASE: OnceLock<TimeZoneDatabase> = OnceLock::new();
    DATABASE.get_or_init(TimeZoneDatabase::bundled)
}

/// An instant that the library knows, at the same place in the calendar.
fn known(micros: i64) -> i64 {
    match micros {
        _ if micros > KNOWN_MICROS => CYCLE_MICROS + micros % CYCLE_MICROS,
        _ => micros.max(-KNOWN_MICROS),
    }
}

impl Zone {
    pub fn utc() -> Zone {
        Zone { name: "UTC".into(), rules: Rules::Fixed(0) }
    }

    pub fn fixed(seconds_east: i32) -> Zone {
        let sign = if seconds_east < 0 { '-' } else { '+' };
        let away = seconds_east.unsigned_abs();
        let mut name = format!("<{sign}{:02}", away / 3600);
        if !away.is_multiple_of(3600) {
            name.push_str(&format!(":{:02}", away / 60 % 60));
        }
        let reversed = if seconds_east < 0 { '+' } else { '-' };
        Zone { name: format!("{name}>{reversed}{:02}", away / 3600).into(), rules: Rules::Fixed(seconds_east) }
    }

    /// A zone by its full name, in any case, or by a POSIX rule such as `EST5EDT`.
    pub fn named(name: &str) -> Option<Zone> {
        if name.eq_ignore_ascii_case("utc") || name.eq_ignore_ascii_case("gmt") {
            return Some(Zone { name: name.to_ascii_uppercase().into(), rules: Rules::Fixed(0) });
        }
        if let Ok(zone) = database().get(name) {
            let shown = zone.iana_name().unwrap_or(name);
            return Some(Zone { name: shown.into(), rules: Rules::Named(zone) });
        }
        let posix = TimeZone::posix(name).ok()?;
        Some(Zone { name: name.into(), rules: Rules::Named(posix) })
    }

    /// The offset that an abbreviation such as `PST` stands for.
    pub fn abbreviation(name: &str) -> Option<i32> {
        let lower = name.to_ascii_lowercase();
        ABBREVIATIONS.binary_search_by(|(known, _)| (*known).cmp(&lower)).ok().map(|at| ABBREVIATIONS[at].1)
    }

    /// What `SET TIME ZONE` takes: a name, an abbreviation, or hours east of Greenwich.
    pub fn of_setting(text: &str) -> Option<Zone> {
        let text = text.trim();
        if let Ok(hours) = text.parse::<f64>() {
            return (hours.abs() <= MAX_HOURS).then(|| Zone::fixed((hours * 3600.0) as i32));
        }
        if text.eq_ignore_ascii_case("default") || text.eq_ignore_ascii_case("local") {
            return Some(Zone::utc());
        }
        Zone::named(text).or_else(|| {
            let offset = Zone::abbreviation(text)?;
            Some(Zone { name: text.to_ascii_uppercase().into(), rules: Rules::Fixed(offset) })
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Seconds east at an instant, given in microseconds from 2000-01-01 UTC.
    pub fn offset_at(&self, micros: i64) -> i32 {
        match &self.rules {
            Rules::Fixed(offset) => *offset,
            Rules::Named(zone) => {
                let instant =
                    Timestamp::from_microsecond(known(micros) + EPOCH_MICROS).unwrap_or(Timestamp::UNIX_EPOCH);
                zone.to_offset(instant).seconds()
            }
        }
    }

    /// Seconds east at a local time, given in microseconds from 2000-01-01 00:00 of that zone.
    pub fn offset_of_local(&self, micros: i64) -> i32 {
        match &self.rules {
            Rules::Fixed(offset) => *offset,
            Rules::Named(zone) => {
                let local = Timestamp::from_microsecond(known(micros) + EPOCH_MICROS).unwrap_or(Timestamp::UNIX_EPOCH);
                let local: DateTime = TimeZone::UTC.to_datetime(local);
                match zone.to_ambiguous_timestamp(local).offset() {
                    AmbiguousOffset::Unambiguous { offset } => offset.seconds(),
                    AmbiguousOffset::Gap { before, .. } => before.seconds(),
                    AmbiguousOffset::Fold { after, .. } => after.seconds(),
                }
            }
        }
    }

    /// The letters that name the offset at an instant, if it has any.
    pub fn letters_at(&self, micros: i64) -> Option<String> {
        match &self.rules {
            Rules::Fixed(0) => Some("UTC".into()),
            Rules::Fixed(_) => None,
            Rules::Named(zone) => {
                let instant = Timestamp::from_microsecond(known(micros) + EPOCH_MICROS).ok()?;
                let letters = zone.to_offset_info(instant).abbreviation().to_string();
                letters.starts_with(|c: char| c.is_ascii_alphabetic()).then_some(letters)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(month: u32, day: i64, hour: i64, minute: i64) -> i64 {
        let days = isles_kernel::form::days_of(2021, month, day);
        ((days * 24 + hour) * 60 + minute) * 60_000_000
    }

    #[test]
    fn a_skipped_hour_has_the_old_offset_and_a_repeated_one_the_new() {
        let zone = Zone::named("america/new_york").expect("a zone");
        assert_eq!(zone.name(), "America/New_York");
        assert_eq!(zone.offset_of_local(local(3, 14, 2, 30)), -5 * 3600);
        assert_eq!(zone.offset_of_local(local(11, 7, 1, 30)), -5 * 3600);
        assert_eq!(zone.offset_of_local(local(7, 1, 0, 0)), -4 * 3600);
    }

    #[test]
    fn far_years_have_rules_too() {
        let zone = Zone::named("America/New_York").expect("a zone");
        let july = (isles_kernel::form::days_of(200_021, 7, 1)) * 86_400_000_000;
        assert_eq!(zone.offset_at(july), -4 * 3600);
        assert_eq!(Zone::abbreviation("PDT"), Some(-7 * 3600));
        assert_eq!(Zone::named("Nowhere/None"), None);
    }
}
