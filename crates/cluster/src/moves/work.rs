//! What the moves that this process drives have done, for metrics.

use crate::database::Database;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pauses are counted by these upper bounds, in microseconds; the last kind is longer than all of them.
pub const PAUSE_BOUNDS_MICROS: [u64; 12] =
    [1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 5_000_000, 60_000_000];
const KINDS: usize = PAUSE_BOUNDS_MICROS.len() + 1;

/// Since the database was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveWork {
    pub rows_copied: u64,
    /// How often writers were held, by [`PAUSE_BOUNDS_MICROS`].
    pub pauses: [u64; KINDS],
    /// For how long together.
    pub pause_micros: u64,
}

#[derive(Default)]
pub(super) struct Counted {
    rows_copied: AtomicU64,
    pauses: [AtomicU64; KINDS],
    pause_micros: AtomicU64,
}

impl Counted {
    pub(super) fn copied(&self, rows: usize) {
        self.rows_copied.fetch_add(rows as u64, Ordering::Relaxed);
    }

    pub(super) fn paused(&self, micros: u64) {
        let kind = PAUSE_BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        self.pauses[kind].fetch_add(1, Ordering::Relaxed);
        self.pause_micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn read(&self) -> MoveWork {
        let mut pauses = [0; KINDS];
        pauses.iter_mut().zip(&self.pauses).for_each(|(read, counted)| *read = counted.load(Ordering::Relaxed));
        MoveWork {
            rows_copied: self.rows_copied.load(Ordering::Relaxed),
            pauses,
            pause_micros: self.pause_micros.load(Ordering::Relaxed),
        }
    }
}

impl Database {
    /// What its moves have done.
    pub fn move_work(&self) -> MoveWork {
        self.moves.counted.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_counted_under_its_bound() {
        let counted = Counted::default();
        for micros in [1, 1_000, 1_001, 60_000_000, 60_000_001] {
            counted.paused(micros);
        }
        let read = counted.read();
        assert_eq!((read.pauses[0], read.pauses[1], read.pauses[11], read.pauses[12]), (2, 1, 1, 1));
        assert_eq!(read.pause_micros, 120_002_003);
    }
}
