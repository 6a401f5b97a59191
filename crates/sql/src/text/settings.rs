//! The settings that decide how values are written and read.

use super::zone::Zone;
use isles_kernel::error::SqlError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DateOutput {
    Iso,
    Sql,
    Postgres,
    German,
}

/// What the first number of an ambiguous date is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DateOrder {
    Mdy,
    Dmy,
    Ymd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DateStyle {
    pub output: DateOutput,
    pub order: DateOrder,
}

impl DateStyle {
    /// Reads `ISO, MDY`: words in any order, each of which changes one of the two.
    pub fn parse(self, text: &str) -> Option<DateStyle> {
        let mut style = self;
        for word in text.split(',').map(|word| word.trim().to_ascii_lowercase()) {
            match word.as_str() {
                "iso" => style.output = DateOutput::Iso,
                "sql" => style.output = DateOutput::Sql,
                "german" => style = DateStyle { output: DateOutput::German, order: DateOrder::Dmy },
                _ if word.starts_with("postgres") => style.output = DateOutput::Postgres,
                "ymd" => style.order = DateOrder::Ymd,
                "mdy" | "us" | "noneuro" | "noneuropean" => style.order = DateOrder::Mdy,
                "dmy" | "euro" | "european" => style.order = DateOrder::Dmy,
                "default" => style = Settings::default().date_style,
                _ => return None,
            }
        }
        Some(style)
    }

    /// As `SHOW datestyle` says it.
    pub fn shown(self) -> String {
        let output = match self.output {
            DateOutput::Iso => "ISO",
            DateOutput::Sql => "SQL",
            DateOutput::Postgres => "Postgres",
            DateOutput::German => "German",
        };
        let order = match self.order {
            DateOrder::Mdy => "MDY",
            DateOrder::Dmy => "DMY",
            DateOrder::Ymd => "YMD",
        };
        format!("{output}, {order}")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntervalStyle {
    Postgres,
    PostgresVerbose,
    SqlStandard,
    Iso8601,
}

impl IntervalStyle {
    pub fn parse(text: &str) -> Option<IntervalStyle> {
        Some(match text.to_ascii_lowercase().as_str() {
            "postgres" => IntervalStyle::Postgres,
            "postgres_verbose" => IntervalStyle::PostgresVerbose,
            "sql_standard" => IntervalStyle::SqlStandard,
            "iso_8601" => IntervalStyle::Iso8601,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteaOutput {
    Hex,
    Escape,
}

/// What a session has set, as far as values are concerned.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub date_style: DateStyle,
    pub interval_style: IntervalStyle,
    pub zone: Zone,
    pub bytea_output: ByteaOutput,
    /// From 1 on, the shortest digits that tell a float; otherwise so many digits more or less than are always right.
    pub extra_float_digits: i32,
    /// The transaction's start, for the input `now` and its kin: microseconds from 2000-01-01 UTC.
    pub now: i64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            date_style: DateStyle { output: DateOutput::Iso, order: DateOrder::Mdy },
            interval_style: IntervalStyle::Postgres,
            zone: Zone::utc(),
            bytea_output: ByteaOutput::Hex,
            extra_float_digits: 1,
            now: 0,
        }
    }
}

impl Settings {
    /// Applies `SET name TO value`, if the setting is one of these; says whether it is.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, SqlError> {
        let refused = || SqlError::new("22023", format!("invalid value for parameter \"{name}\": \"{value}\""));
        match name.to_ascii_lowercase().as_str() {
            "datestyle" => self.date_style = self.date_style.parse(value).ok_or_else(refused)?,
            "intervalstyle" => self.interval_style = IntervalStyle::parse(value).ok_or_else(refused)?,
            "timezone" => self.zone = Zone::of_setting(value).ok_or_else(refused)?,
            "bytea_output" => {
                self.bytea_output = match value.to_ascii_lowercase().as_str() {
                    "hex" => ByteaOutput::Hex,
                    "escape" => ByteaOutput::Escape,
                    _ => return Err(refused()),
                }
            }
            "extra_float_digits" => {
                let digits = value.trim().parse().map_err(|_| refused())?;
                self.extra_float_digits = Some(digits).filter(|n| (-15..=3).contains(n)).ok_or_else(refused)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}
