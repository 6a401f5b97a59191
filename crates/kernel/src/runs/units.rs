//! Durations and sizes as people write them: a whole number and a unit, `30s`, `64mb`.

use std::time::Duration;

/// A text that is no duration or size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is no {what}: write a whole number and one of {units}")]
pub struct BadUnit {
    pub text: String,
    pub what: &'static str,
    pub units: &'static str,
}

/// The number and the unit of a text; one space may be between them.
fn parts(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit.strip_prefix(' ').unwrap_or(unit)))
}

/// `500ms`, `30s`, `5m`, `1h`, `7d`.
pub fn parse_duration(text: &str) -> Result<Duration, BadUnit> {
    let bad = || BadUnit { text: text.into(), what: "duration", units: "ms, s, m, h, d" };
    let (number, unit) = parts(text).ok_or_else(bad)?;
    let ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(bad()),
    };
    number.checked_mul(ms).map(Duration::from_millis).ok_or_else(bad)
}

/// Bytes: `100b`, `512kb`, `64mb`, `1gb`; each 1,024 of the one before.
pub fn parse_size(text: &str) -> Result<u64, BadUnit> {
    let bad = || BadUnit { text: text.into(), what: "size", units: "b, kb, mb, gb" };
    let (number, unit) = parts(text).ok_or_else(bad)?;
    let shift = match unit {
        "b" => 0,
        "kb" => 10,
        "mb" => 20,
        "gb" => 30,
        _ => return Err(bad()),
    };
    number.checked_mul(1 << shift).ok_or_else(bad)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_written() {
        let good = [("500ms", 500), ("1s", 1_000), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000), ("0s", 0)];
        for (text, ms) in
            good.into_iter().chain([("7d", 604_800_000), ("0ms", 0), ("5 s", 5_000), ("999d", 86_313_600_000)])
        {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(ms), "{text}");
        }
        for text in [
            "5x",
            "",
            "abc",
            "-1s",
            "1.5h",
            "ms",
            "s5",
            "5S",
            "1H",
            "5  s",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_read_as_written() {
        for (text, bytes) in
            [("100b", 100), ("512kb", 524_288), ("64mb", 67_108_864), ("1gb", 1 << 30), ("0b", 0), ("0mb", 0)]
        {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for text in ["5x", "", "abc", "-1mb", "1.5gb", "mb", "b5", "5MB", "1GB", "64 MB", "18446744073709551615gb"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
