//! Bounds of a statement: time, rows, bytes, and the client's cancel.
//!
//! Invariants (docs/invariants.md):
//!   * I-45  passing a bound ends that statement only, with 57014 or 54000
//!   * I-66  every wait has a deadline

use super::work::Trace;
use futures::future::{Either, select};
use isles_engine::env::Env;
use isles_engine::shard::{CancelToken, Limits};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// Rows that a statement may gather in memory: what it sorts out, stages or returns at once. Streamed rows do not count.
pub(crate) const MAX_ROWS: usize = 1_000_000;
/// Bytes of the same.
pub(crate) const MAX_BYTES: usize = 256 << 20;
/// The longest that a statement may take when the client has set no limit: longer work is a mistake or a batch job, which
/// can say so.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(300);

/// Rows of a result that is gathered although it could be streamed: a few batches to the client.
pub(crate) const GATHERED_ROWS: usize = 10_000;
/// Bytes of the same.
pub(crate) const GATHERED_BYTES: usize = 8 << 20;

/// Of one statement.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    /// On the env's clock.
    pub(crate) deadline: Duration,
    /// From its beginning to the deadline; a result that is streamed has it for each page.
    pub(crate) time: Duration,
    pub(crate) cancel: CancelToken,
    /// What it may gather.
    pub(crate) rows: usize,
    pub(crate) bytes: usize,
    /// How long it waits for a shard's writer, if not for all its time.
    pub(crate) lock: Option<Duration>,
    /// Where it is noted what each shard does, for EXPLAIN ANALYZE.
    pub(crate) trace: Option<Arc<Trace>>,
}

pub(crate) fn cancelled() -> SqlError {
    SqlError::new("57014", "canceling statement due to user request")
}

pub(crate) fn timed_out() -> SqlError {
    SqlError::new("57014", "canceling statement due to statement timeout")
}

impl Bounds {
    pub(crate) fn new(env: &dyn Env, time: Duration, cancel: CancelToken) -> Bounds {
        Bounds {
            deadline: env.elapsed() + time,
            time,
            cancel,
            rows: MAX_ROWS,
            bytes: MAX_BYTES,
            lock: None,
            trace: None,
        }
    }

    /// What is left, as a shard takes it.
    pub(crate) fn limits(&self, env: &dyn Env) -> Limits {
        let time = self.deadline.saturating_sub(env.elapsed());
        Limits { time, rows: self.rows, bytes: self.bytes, cancel: self.cancel.clone() }
    }

    /// For the wait for a writer; and whether that is shorter.
    pub(crate) fn of_lock(&self, env: &dyn Env) -> (Bounds, bool) {
        let deadline = self.lock.map_or(self.deadline, |lock| self.deadline.min(env.elapsed() + lock));
        (Bounds { deadline, ..self.clone() }, deadline < self.deadline)
    }

    /// For a statement that is streamed if it gives more.
    pub(crate) fn of_first_try(&self) -> Bounds {
        Bounds { rows: GATHERED_ROWS, bytes: GATHERED_BYTES, ..self.clone() }
    }

    pub(crate) fn check(&self, env: &dyn Env) -> Result<(), SqlError> {
        if self.cancel.is_cancelled() {
            return Err(cancelled());
        }
        if env.elapsed() >= self.deadline { Err(timed_out()) } else { Ok(()) }
    }

    /// Waits for `work` until the statement's time is up or it is cancelled.
    pub(crate) async fn wait<T>(&self, env: &dyn Env, work: impl Future<Output = T>) -> Result<T, SqlError> {
        let left = self.deadline.saturating_sub(env.elapsed());
        let (work, cancel) = (pin!(work), pin!(self.cancel.cancelled()));
        match select(work, select(cancel, env.sleep(left))).await {
            Either::Left((value, _)) => Ok(value),
            Either::Right((Either::Left(_), _)) => Err(cancelled()),
            Either::Right((Either::Right(_), _)) => Err(timed_out()),
        }
    }
}

/// Counts what a statement gathers.
#[derive(Debug)]
pub(crate) struct Tally {
    rows: usize,
    bytes: usize,
}

impl Tally {
    /// What may still be gathered.
    pub(crate) fn new(bounds: &Bounds) -> Tally {
        Tally { rows: bounds.rows, bytes: bounds.bytes }
    }

    pub(crate) fn add(&mut self, row: &[Value]) -> Result<(), SqlError> {
        let bytes = row.iter().map(Value::weight).sum::<usize>();
        match (self.rows.checked_sub(1), self.bytes.checked_sub(bytes)) {
            (Some(rows), Some(bytes)) => {
                (self.rows, self.bytes) = (rows, bytes);
                Ok(())
            }
            _ => Err(SqlError::new(
                "54000",
                format!("a statement gathers at most {MAX_ROWS} rows and {MAX_BYTES} bytes"),
            )
            .with_hint("filter more on the shards, or add a LIMIT")),
        }
    }
}
