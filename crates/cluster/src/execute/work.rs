//! What each shard did: all of it, in counters for as long as the database is open, and that of one statement, for
//! EXPLAIN ANALYZE.
//!
//! Both are noted where a statement goes to a shard: [`super::run`]'s requests, and the parts and cursors of
//! transactions. A fragment is known by its printed text, which is printed once and shared by all who run it.

use crate::per_shard::PerShard;
use isles_engine::env::Env;
use isles_engine::shard::{Outcome, Statement};
use isles_kernel::names::ShardId;
use isles_sql::explain::{Place, Run};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a shard has done since the database was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardWork {
    pub statements: u64,
    /// Rows that it returned, inserted, updated or deleted.
    pub rows: u64,
    /// Requests that failed.
    pub errors: u64,
    /// The time of its requests together.
    pub micros: u64,
}

#[derive(Default)]
struct Counts {
    statements: AtomicU64,
    rows: AtomicU64,
    errors: AtomicU64,
    micros: AtomicU64,
}

/// The counters of all shards. Their number is that of the shards, which is bounded.
pub(crate) struct Works(PerShard<Counts>);

impl Works {
    pub(crate) fn new(shards: impl IntoIterator<Item = ShardId>) -> Works {
        Works(shards.into_iter().map(|shard| (shard, Counts::default())).collect())
    }

    pub(crate) fn admit(&self, shard: &ShardId) {
        self.0.insert(shard.clone(), Counts::default());
    }

    pub(crate) fn dismiss(&self, shard: &ShardId) {
        self.0.remove(shard);
    }

    pub(crate) fn all(&self) -> Vec<(ShardId, ShardWork)> {
        let read = |(shard, counts): (&ShardId, &Arc<Counts>)| {
            let [statements, rows, errors, micros] = [&counts.statements, &counts.rows, &counts.errors, &counts.micros]
                .map(|count| count.load(Ordering::Relaxed));
            (shard.clone(), ShardWork { statements, rows, errors, micros })
        };
        self.0.all().iter().map(read).collect()
    }

    pub(crate) fn statements(&self, shard: &ShardId) -> u64 {
        self.0.get(shard).map_or(0, |counts| counts.statements.load(Ordering::Relaxed))
    }

    fn add(&self, shard: &ShardId, work: ShardWork) {
        let Some(counts) = self.0.get(shard) else { return };
        counts.statements.fetch_add(work.statements, Ordering::Relaxed);
        counts.rows.fetch_add(work.rows, Ordering::Relaxed);
        // Most have none, and all threads share the counters.
        if work.errors > 0 {
            counts.errors.fetch_add(work.errors, Ordering::Relaxed);
        }
        counts.micros.fetch_add(work.micros, Ordering::Relaxed);
    }
}

/// A request that is on its way to a shard.
pub(crate) struct Sent {
    /// The first statement's; those of one request are of one fragment.
    sql: Option<Arc<str>>,
    statements: u64,
    began: Duration,
}

impl Sent {
    pub(crate) fn new(statements: &[Statement], env: &dyn Env) -> Sent {
        let sql = statements.first().map(|statement| statement.sql.clone());
        Sent { sql, statements: statements.len() as u64, began: env.elapsed() }
    }

    /// More of a request that was sent before: its statement is not counted again.
    pub(crate) fn more(sql: Arc<str>, env: &dyn Env) -> Sent {
        Sent { sql: Some(sql), statements: 0, began: env.elapsed() }
    }

    /// Notes what became of it: how many rows, or none if it failed.
    pub(crate) fn came(self, shard: &ShardId, rows: Option<u64>, to: &Noted<'_>) {
        let took = to.env.elapsed().saturating_sub(self.began);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let errors = u64::from(rows.is_none());
        to.works.add(shard, ShardWork { statements: self.statements, rows: rows.unwrap_or(0), errors, micros });
        if let (Some(trace), Some(sql), Some(rows)) = (to.trace, self.sql, rows) {
            trace.note(sql, Place::Shard(shard.to_string()), rows, took);
        }
    }
}

/// Where it is noted.
pub(crate) struct Noted<'a> {
    pub(crate) works: &'a Works,
    pub(crate) trace: Option<&'a Trace>,
    pub(crate) env: &'a dyn Env,
}

/// The rows of some answers: those that were changed, or else those that were returned.
pub(crate) fn rows_of(outcomes: &[Outcome]) -> u64 {
    let rows = |outcome: &Outcome| if outcome.affected > 0 { outcome.affected } else { outcome.rows.len() as u64 };
    outcomes.iter().map(rows).sum()
}

/// What one statement did, for EXPLAIN ANALYZE.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    runs: Mutex<Vec<(Arc<str>, Run)>>,
}

impl Trace {
    fn runs(&self) -> MutexGuard<'_, Vec<(Arc<str>, Run)>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a run of a fragment on a shard, or in the router. Runs of one fragment in one place are added up.
    pub(crate) fn note(&self, sql: Arc<str>, place: Place, rows: u64, took: Duration) {
        let ms = took.as_secs_f64() * 1_000.0;
        let mut runs = self.runs();
        let known = runs.iter_mut().find(|(text, run)| Arc::ptr_eq(text, &sql) && run.place == place);
        match known {
            Some((_, run)) => (run.rows, run.ms) = (run.rows + rows, run.ms + ms),
            None => runs.push((sql, Run { place, rows, ms })),
        }
    }

    /// A statement that is tried again has done nothing before.
    pub(crate) fn begin_again(&self) {
        self.runs().clear();
    }

    /// The runs of the fragment with these texts, shard by shard, and then the router's.
    pub(crate) fn of(&self, texts: &[&Arc<str>]) -> Vec<Run> {
        let runs = self.runs();
        let is_one = |sql: &Arc<str>| texts.iter().any(|text| Arc::ptr_eq(text, sql));
        let mut found: Vec<Run> = runs.iter().filter(|(sql, _)| is_one(sql)).map(|(_, run)| run.clone()).collect();
        found.sort_by(|a, b| a.place.cmp(&b.place));
        found
    }
}
