//! How fast a copy may go.
//!
//! A copy shares its two shards with everyone else. While nobody else works there it goes as fast as it can. As soon as
//! somebody does, its batches become short, since each holds the taker's writer while it is applied, and after each it
//! rests for longer than the batch took, so that most of the time is others'.
//!
//! A batch has a price of its own, whatever is in it: a page read, a commit, a flush. On a busy machine all of that
//! takes long, and smaller batches would not be shorter but only more. So there is a smallest size, at which the rows
//! cost about as much as the batch.
//!
//! On a PostgreSQL server nobody waits for a batch to end, but all share its processors, and the price of a batch is many
//! statements. There batches are longer, and rests with them: that costs others less than many short ones.

use isles_engine::shard::Engine;
use std::time::Duration;

/// Rows of the first batch; of the smallest and of the largest.
const FIRST_ROWS: usize = 500;
const MIN_ROWS: usize = 100;
const MAX_ROWS: usize = 10_000;
/// How long a batch should take while others work, where they wait for it: less than what a write takes that has to wait
/// for others anyway.
const SHORT: Duration = Duration::from_micros(1_500);
/// The same, where they do not.
const SHARED: Duration = Duration::from_millis(20);
/// How long a batch should take while nobody else works.
const LONG: Duration = Duration::from_millis(100);
/// While others work, the copy rests so many times as long as it works. Where they wait for a batch, so few of them meet
/// one that their 99th percentile is of statements that did not: a batch is a twenty-fifth of the time, and half of what
/// others do is on the other shard, or reads.
const REST: u32 = 24;
/// The same, where they do not wait: there a copy that rests as long would hardly go on.
const SHARED_REST: u32 = 12;
/// A rest is no longer than this, whatever a batch took.
const MAX_REST: Duration = Duration::from_millis(400);

/// Decides the size of the next batch from how the last one went.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    rows: usize,
    /// How long a batch should take while others work, and how many times as long the copy rests then.
    in_company: Duration,
    rest: u32,
}

/// Whether somebody else worked on one of the shards meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Others {
    Idle,
    Working,
}

impl Pace {
    /// For a taker of this engine.
    pub(crate) fn new(taker: Engine) -> Pace {
        let (in_company, rest) = match taker {
            Engine::Sqlite => (SHORT, REST),
            Engine::Postgres => (SHARED, SHARED_REST),
        };
        Pace { rows: FIRST_ROWS, in_company, rest }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Learns from a batch of `rows`, and says how long to rest.
    pub(crate) fn learn(&mut self, rows: usize, took: Duration, others: Others) -> Duration {
        let wanted = if others == Others::Working { self.in_company } else { LONG };
        let took = took.max(Duration::from_micros(1));
        let fitting = rows as f64 * wanted.as_secs_f64() / took.as_secs_f64();
        // A batch that was cut short by the end of a table says little; never more than twice as many at once.
        let bound = (self.rows * 2).min(MAX_ROWS);
        if rows >= self.rows || fitting < self.rows as f64 {
            self.rows = (fitting as usize).clamp(MIN_ROWS, bound);
        }
        if others == Others::Working { (took * self.rest).min(MAX_REST) } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches grow to what the time allows while nobody works, and shrink at once when somebody does.
    #[test]
    fn batches_grow_alone_and_shrink_in_company() {
        let per_row = Duration::from_micros(10);
        let took = |rows: usize| per_row * u32::try_from(rows).expect("few");
        let mut pace = Pace::new(Engine::Sqlite);
        for _ in 0..10 {
            let rows = pace.rows();
            assert_eq!(pace.learn(rows, took(rows), Others::Idle), Duration::ZERO);
        }
        assert_eq!(pace.rows(), MAX_ROWS);
        let rest = pace.learn(MAX_ROWS, took(MAX_ROWS), Others::Working);
        assert_eq!((pace.rows(), rest), (150, MAX_REST));
        pace.learn(150, Duration::from_secs(10), Others::Working);
        assert_eq!(pace.rows(), MIN_ROWS);
    }

    /// The short batch at a table's end does not make the next ones larger.
    #[test]
    fn the_end_of_a_table_says_little() {
        let mut pace = Pace::new(Engine::Postgres);
        pace.learn(1, Duration::from_micros(1), Others::Idle);
        assert_eq!(pace.rows(), FIRST_ROWS);
    }
}
