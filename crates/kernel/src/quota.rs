//! Quotas of a tenant: how much of what everyone shares it may take.
//!
//! A quota that is not set does not bound. Numbers are plain, or texts with a unit where there is one:
//! `statement_timeout = '2 s'`, `max_bytes = '10 GB'`.

use serde::{Deserialize, Serialize};

/// The largest count and size: what SQL's bigint shows.
const NUMBER_MAX: u64 = i64::MAX as u64;
/// The longest statement time, as that of PostgreSQL's setting: about 24 days.
const TIME_MS_MAX: u64 = i32::MAX as u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    Connections,
    StatementTime,
    Rows,
    Bytes,
}

impl Quota {
    pub const ALL: [Quota; 4] = [Quota::Connections, Quota::StatementTime, Quota::Rows, Quota::Bytes];

    /// As statements and messages name it.
    pub fn name(self) -> &'static str {
        match self {
            Quota::Connections => "max_connections",
            Quota::StatementTime => "statement_timeout",
            Quota::Rows => "max_rows",
            Quota::Bytes => "max_bytes",
        }
    }

    pub fn of_name(name: &str) -> Option<Quota> {
        Quota::ALL.into_iter().find(|quota| quota.name() == name)
    }

    /// The unit of a number without one, and those that a text may have.
    fn units(self) -> &'static [(&'static str, u64)] {
        match self {
            Quota::Connections | Quota::Rows => &[("", 1)],
            Quota::StatementTime => &[("", 1), ("ms", 1), ("s", 1_000), ("min", 60_000), ("h", 3_600_000)],
            Quota::Bytes => &[("", 1), ("b", 1), ("kb", 1 << 10), ("mb", 1 << 20), ("gb", 1 << 30), ("tb", 1 << 40)],
        }
    }

    /// Reads a value; what is wrong with it otherwise.
    pub fn read(self, text: &str) -> Result<u64, String> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = (&text[..digits], text[digits..].trim().to_ascii_lowercase());
        let units = self.units();
        let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
            let known: Vec<&str> = units.iter().map(|(name, _)| *name).filter(|name| !name.is_empty()).collect();
            return Err(match known.is_empty() {
                true => format!("{} is a whole number, not \"{text}\"", self.name()),
                false => format!("{} is a whole number, with {} or nothing after it", self.name(), known.join(", ")),
            });
        };
        let number: u64 = number.parse().map_err(|_| format!("{} is a whole number, not \"{text}\"", self.name()))?;
        let (low, high) = match self {
            Quota::StatementTime => (1, TIME_MS_MAX),
            _ => (0, NUMBER_MAX),
        };
        let value = number.checked_mul(*factor).filter(|value| (low..=high).contains(value));
        value.ok_or_else(|| format!("{} is between {low} and {high}", self.name()))
    }
}

/// The quotas of a tenant, as they are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quotas {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statement_timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

impl Quotas {
    pub fn get(&self, quota: Quota) -> Option<u64> {
        match quota {
            Quota::Connections => self.max_connections,
            Quota::StatementTime => self.statement_timeout_ms,
            Quota::Rows => self.max_rows,
            Quota::Bytes => self.max_bytes,
        }
    }

    pub fn set(&mut self, quota: Quota, value: Option<u64>) {
        *match quota {
            Quota::Connections => &mut self.max_connections,
            Quota::StatementTime => &mut self.statement_timeout_ms,
            Quota::Rows => &mut self.max_rows,
            Quota::Bytes => &mut self.max_bytes,
        } = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_units() {
        for (quota, text, value) in [
            (Quota::Connections, "0", Some(0)),
            (Quota::Connections, "20", Some(20)),
            (Quota::Connections, "20 kB", None),
            (Quota::Connections, "-1", None),
            (Quota::Rows, "", None),
            (Quota::Rows, "9223372036854775807", Some(i64::MAX as u64)),
            (Quota::Rows, "9223372036854775808", None),
            (Quota::StatementTime, "0", None),
            (Quota::StatementTime, "1", Some(1)),
            (Quota::StatementTime, "2 s", Some(2_000)),
            (Quota::StatementTime, "1min", Some(60_000)),
            (Quota::StatementTime, "2147483647", Some(2_147_483_647)),
            (Quota::StatementTime, "2147483648", None),
            (Quota::Bytes, "10 GB", Some(10 << 30)),
            (Quota::Bytes, "1.5 GB", None),
            (Quota::Bytes, "9999999 TB", None),
            (Quota::Bytes, "5 s", None),
        ] {
            assert_eq!(quota.read(text).ok(), value, "{quota:?} {text}");
        }
    }

    #[test]
    fn what_is_not_set_is_not_written() {
        let mut quotas = Quotas::default();
        assert_eq!(serde_json::to_string(&quotas).ok().as_deref(), Some("{}"));
        quotas.set(Quota::Rows, Some(5));
        assert_eq!(serde_json::to_string(&quotas).ok().as_deref(), Some("{\"max_rows\":5}"));
        assert_eq!(Quota::ALL.map(|quota| quotas.get(quota)), [None, None, Some(5), None]);
        assert_eq!(Quota::ALL.map(|quota| Quota::of_name(quota.name())), Quota::ALL.map(Some));
    }
}
