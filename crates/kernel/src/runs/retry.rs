//! How often a step is tried, and how long it waits between.
//!
//! Everything is bounded: a wait never passes its cap, whatever the number of the attempt, so nothing overflows.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Attempts of one step that can be asked for: with the default cap it is more than ten days.
pub const MAX_ATTEMPTS: u32 = 1_000_000;
/// The longest wait between two attempts, if no cap is given.
pub const DEFAULT_CAP: Duration = Duration::from_secs(60 * 60);

/// How the wait grows from attempt to attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backoff {
    /// Always the same.
    Fixed,
    /// The delay, twice, three times, …
    Linear,
    /// The delay, twice, four times, …
    Exponential,
}

/// How a step is tried again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// Attempts in all, the first one too.
    pub limit: u32,
    /// The wait after the first attempt.
    pub delay: Duration,
    pub backoff: Backoff,
    /// The longest wait.
    pub cap: Duration,
    /// Which part of a wait is random: 0 is none, 1 is all of it. Many that failed together do not come back together.
    pub jitter: f64,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry { limit: 3, delay: Duration::from_secs(1), backoff: Backoff::Exponential, cap: DEFAULT_CAP, jitter: 0.0 }
    }
}

/// What is wrong with a [`Retry`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BadRetry {
    #[error("a step has 1 to {MAX_ATTEMPTS} attempts, not {0}")]
    Limit(u32),
    #[error("jitter is between 0 and 1, not {0}")]
    Jitter(f64),
}

impl Retry {
    /// One attempt, and no other.
    pub fn never() -> Retry {
        Retry { limit: 1, ..Retry::default() }
    }

    pub fn check(&self) -> Result<(), BadRetry> {
        if !(1..=MAX_ATTEMPTS).contains(&self.limit) {
            return Err(BadRetry::Limit(self.limit));
        }
        if !(0.0..=1.0).contains(&self.jitter) {
            return Err(BadRetry::Jitter(self.jitter));
        }
        Ok(())
    }

    /// How long to wait after an attempt that failed, the first one being 1; None if it was the last. `random` is any
    /// number; all of its bits count.
    pub fn after(&self, attempt: u32, random: u64) -> Option<Duration> {
        if attempt >= self.limit {
            return None;
        }
        let ms = u64::try_from(self.delay.as_millis()).unwrap_or(u64::MAX);
        let grown = match self.backoff {
            Backoff::Fixed => ms,
            Backoff::Linear => ms.saturating_mul(u64::from(attempt)),
            Backoff::Exponential => match attempt.saturating_sub(1) {
                doublings if doublings < u64::BITS => ms.saturating_mul(1 << doublings),
                _ if ms == 0 => 0,
                _ => u64::MAX,
            },
        };
        let cap = u64::try_from(self.cap.as_millis()).unwrap_or(u64::MAX);
        let most = grown.min(cap);
        let part = (most as f64 * self.jitter) as u64;
        let back = if part == 0 { 0 } else { random % (part + 1) };
        Some(Duration::from_millis(most.saturating_sub(back)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn waits(backoff: Backoff) -> Vec<u64> {
        let retry = Retry { limit: 5, backoff, ..Retry::default() };
        (1..5).map(|attempt| retry.after(attempt, 7).unwrap().as_millis() as u64).collect()
    }

    #[test]
    fn waits_grow_as_asked() {
        assert_eq!(waits(Backoff::Fixed), [1_000, 1_000, 1_000, 1_000]);
        assert_eq!(waits(Backoff::Linear), [1_000, 2_000, 3_000, 4_000]);
        assert_eq!(waits(Backoff::Exponential), [1_000, 2_000, 4_000, 8_000]);
        assert_eq!(Retry::default().after(3, 0), None);
        assert_eq!(Retry::never().after(1, 0), None);
    }

    /// A37: no wait passes its cap, and none overflows.
    #[test]
    fn a37_waits_are_capped_and_do_not_overflow() {
        for backoff in [Backoff::Fixed, Backoff::Linear, Backoff::Exponential] {
            for attempt in [1, 2, 63, 64, 65, 1_000, MAX_ATTEMPTS - 1] {
                for delay in [Duration::ZERO, Duration::from_secs(1), Duration::MAX] {
                    let retry = Retry { limit: MAX_ATTEMPTS, delay, backoff, ..Retry::default() };
                    assert!(retry.after(attempt, u64::MAX).unwrap() <= retry.cap);
                }
            }
        }
    }

    #[test]
    fn jitter_stays_within_its_part() {
        let retry = Retry { jitter: 0.5, backoff: Backoff::Fixed, ..Retry::default() };
        let waits: Vec<u128> = (0..1_000).map(|n| retry.after(1, n * 7_919).unwrap().as_millis()).collect();
        assert!(waits.iter().all(|ms| (500..=1_000).contains(ms)));
        assert!(waits.iter().min() < Some(&550) && waits.iter().max() > Some(&950));
    }

    #[test]
    fn bad_retries_are_refused() {
        assert!(Retry { limit: 0, ..Retry::default() }.check().is_err());
        assert!(Retry { limit: MAX_ATTEMPTS + 1, ..Retry::default() }.check().is_err());
        assert!(Retry { jitter: f64::NAN, ..Retry::default() }.check().is_err());
        assert!(Retry { jitter: 1.1, ..Retry::default() }.check().is_err());
        assert!(Retry::default().check().is_ok());
    }
}
