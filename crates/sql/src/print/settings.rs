//! The settings of a session as one text, to be bound where functions inside of SQLite need them.
//!
//!     datestyle=ISO, MDY\nintervalstyle=postgres\ntimezone=Europe/Paris\n…\nnow=826545600000000
//!
//! A prepared statement is shared by sessions; what differs between these is a parameter, never part of the statement.

use crate::text::{ByteaOutput, IntervalStyle, Settings, Zone};
use isles_kernel::error::SqlError;

impl Settings {
    /// As [`Settings::decode`] reads it.
    pub fn encode(&self) -> String {
        let interval = match self.interval_style {
            IntervalStyle::Postgres => "postgres",
            IntervalStyle::PostgresVerbose => "postgres_verbose",
            IntervalStyle::SqlStandard => "sql_standard",
            IntervalStyle::Iso8601 => "iso_8601",
        };
        let bytea = match self.bytea_output {
            ByteaOutput::Hex => "hex",
            ByteaOutput::Escape => "escape",
        };
        format!(
            "datestyle={}\nintervalstyle={interval}\ntimezone={}\nbytea_output={bytea}\nextra_float_digits={}\nnow={}",
            self.date_style.shown(),
            zone_text(&self.zone),
            self.extra_float_digits,
            self.now,
        )
    }

    /// Reads what [`Settings::encode`] has written; of an empty text, the defaults.
    pub fn decode(text: &str) -> Result<Settings, SqlError> {
        let mut settings = Settings::default();
        for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
            match name {
                "now" => settings.now = value.parse().map_err(|_| SqlError::new("XX000", "settings cannot be read"))?,
                _ => drop(settings.set(name, value)?),
            }
        }
        Ok(settings)
    }
}

/// A zone's name, or, for one that was given by its offset, so many hours.
fn zone_text(zone: &Zone) -> String {
    match Zone::of_setting(zone.name()) {
        Some(named) if named == *zone => zone.name().to_string(),
        _ => (f64::from(zone.offset_at(0)) / 3600.0).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_were_written() {
        let mut settings = Settings { now: 826_545_600_000_000, ..Settings::default() };
        for (name, value) in [
            ("datestyle", "German"),
            ("intervalstyle", "iso_8601"),
            ("timezone", "Europe/Paris"),
            ("bytea_output", "escape"),
            ("extra_float_digits", "-3"),
        ] {
            assert_eq!(settings.set(name, value), Ok(true), "{name}");
        }
        assert_eq!(Settings::decode(&settings.encode()), Ok(settings.clone()));
        for zone in ["UTC", "5.5", "-03"] {
            assert_eq!(settings.set("timezone", zone), Ok(true), "{zone}");
            assert_eq!(
                Settings::decode(&settings.encode()).map(|read| read.zone.offset_at(0)),
                Ok(settings.zone.offset_at(0))
            );
        }
        assert_eq!(Settings::decode(""), Ok(Settings::default()));
    }
}
