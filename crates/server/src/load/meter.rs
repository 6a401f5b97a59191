//! How long statements took, and when.

use super::moving::Moved;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A statement counts as one around the cutover if it was under way so shortly before or after the routing changed; the
/// time of that is known to a millisecond.
const AROUND: Duration = Duration::from_millis(20);

/// Whose statement it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Of the tenant that moves.
    Mover,
    /// Of another tenant on one of the two shards.
    Other,
}

/// One statement. Times count from the start of the load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) client: usize,
    pub(crate) whose: Whose,
    pub(crate) sent: Duration,
    pub(crate) took: Duration,
}

impl Sample {
    fn ended(&self) -> Duration {
        self.sent + self.took
    }

    /// Whether any of it was within a span of time.
    pub(crate) fn is_within(&self, (from, to): (Duration, Duration)) -> bool {
        self.ended() >= from && self.sent <= to
    }
}

/// All statements of a load, as they are answered.
#[derive(Default)]
pub(crate) struct Meter(Mutex<Vec<Sample>>);

impl Meter {
    fn lock(&self) -> MutexGuard<'_, Vec<Sample>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, sample: Sample) {
        self.lock().push(sample);
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// What was answered after the first `count`.
    pub(crate) fn after(&self, count: usize) -> Vec<Sample> {
        self.lock().get(count..).unwrap_or_default().to_vec()
    }
}

/// A spread of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Spread {
    pub(crate) count: usize,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) max: Duration,
}

impl Spread {
    pub(crate) fn of(times: impl IntoIterator<Item = Duration>) -> Spread {
        let mut times: Vec<Duration> = times.into_iter().collect();
        times.sort_unstable();
        // The smallest value that so many percent are not above.
        let at = |percent: usize| times[(times.len() * percent).div_ceil(100).max(1) - 1];
        match times.last() {
            None => Spread::default(),
            Some(max) => Spread { count: times.len(), p50: at(50), p99: at(99), max: *max },
        }
    }
}

/// The longest statement of each client of the tenant around each cutover: what a client noticed of it.
pub(crate) fn pauses(samples: &[Sample], moves: &[Moved]) -> Vec<Duration> {
    let mut longest = std::collections::BTreeMap::<(usize, usize), Duration>::new();
    let ours = samples.iter().filter(|sample| sample.whose == Whose::Mover);
    for sample in ours {
        for (number, moved) in moves.iter().enumerate() {
            let around = (moved.switched.saturating_sub(moved.pause + AROUND), moved.switched + moved.pause + AROUND);
            if sample.is_within(around) {
                let known = longest.entry((number, sample.client)).or_default();
                *known = sample.took.max(*known);
            }
        }
    }
    longest.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_spread_of_hundred() {
        let spread = Spread::of((1..=100).map(|n| MS * n));
        assert_eq!(spread, Spread { count: 100, p50: MS * 50, p99: MS * 99, max: MS * 100 });
        assert_eq!(Spread::of([MS]), Spread { count: 1, p50: MS, p99: MS, max: MS });
        assert_eq!(Spread::of([]), Spread::default());
    }

    /// Each client of the tenant has one pause for each move, and others have none.
    #[test]
    fn a_pause_is_the_longest_statement_around_the_cutover() {
        let sample = |client, whose, sent, took| Sample { client, whose, sent: MS * sent, took: MS * took };
        let samples = [
            sample(0, Whose::Mover, 100, 500),
            sample(0, Whose::Mover, 990, 30),
            sample(0, Whose::Mover, 1_020, 2),
            sample(1, Whose::Mover, 1_001, 7),
            sample(2, Whose::Other, 1_000, 90),
        ];
        let moved = Moved { switched: MS * 1_000, pause: MS * 3, ..Moved::default() };
        assert_eq!(pauses(&samples, &[moved]), [MS * 30, MS * 7]);
    }
}
