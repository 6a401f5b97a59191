//! Claims runs that are due, and executes them.
//!
//! One look at each shard finds what is due, in order of time, and when the next is; a shard that cannot be reached keeps
//! nothing of the others waiting. Between two looks the worker sleeps
//! until then, or until somebody in this process says that something has come; now and then it looks by itself.
//!
//! Each type is asked for by itself: then an index gives its runs in order, whatever the engine knows of the table, and
//! the backlog of a type that nobody executes is not read by those who look for others.

use crate::engine::Engine;
use crate::error::{Result, WorkflowError};
use crate::execute::{Journal, execute};
use crate::lease::claim;
use crate::lines::{Lines, int, params, text};
use crate::lock;
use std::sync::Arc;
use std::time::Duration;

/// Runs that one look finds.
const BATCH: i64 = 256;
/// A worker that nobody wakes looks by itself: another process may have created runs.
const IDLE: Duration = Duration::from_millis(500);
/// After an error.
const RETRY: Duration = Duration::from_millis(200);

/// Types that are asked for at the same time.
const TYPES_AT_ONCE: usize = 32;

/// Runs of a type that are due before a moment, the earliest first.
pub const DUE: &str = "SELECT run, due_at FROM isles.runs WHERE type = $1 AND due_at < $2 ORDER BY due_at LIMIT $3";

/// Runs of some types that are due before a moment, and when: the earliest first. Those of a shard that cannot be reached
/// wait until it can be, and hold up no others.
pub(crate) async fn due(lines: &Lines, kinds: &[String], before: i64, limit: i64) -> Result<Vec<(i64, String)>> {
    use futures::stream::{StreamExt, TryStreamExt};
    let asks = kinds.iter().map(|kind| lines.by_shard((DUE, params![kind.as_str(), before, limit])));
    let asked: Vec<_> = futures::stream::iter(asks.collect::<Vec<_>>())
        .buffer_unordered(TYPES_AT_ONCE)
        .try_collect()
        .await
        .map_err(WorkflowError::of_sql)?;
    let rows = asked.into_iter().flatten().filter_map(|(_, rows)| rows.ok()).flatten();
    let mut due: Vec<(i64, String)> =
        rows.filter_map(|row| Some((int(row.get(1)?)?, text(row.first()?)?.to_owned()))).collect();
    due.sort();
    due.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(due)
}

/// Claims runs for as long as the engine is open.
pub(crate) async fn work(engine: Arc<Engine>) {
    loop {
        if engine.is_closed() {
            return;
        }
        let came = engine.came();
        claim_ready(&engine).await;
        let wait = match look(&engine).await {
            Ok(wait) => wait,
            Err(error) => {
                tracing::debug!(%error, "runs that are due cannot be looked for now");
                RETRY
            }
        };
        if wait > Duration::ZERO {
            let sleep = engine.lines.env().sleep(wait);
            futures::future::select(Box::pin(came), sleep).await;
        }
    }
}

/// Executes runs of which this process knows that they are due.
async fn claim_ready(engine: &Arc<Engine>) {
    while let Some(run) = engine.next_ready() {
        start(engine, run).await;
    }
}

/// Executes what is due. Returns how long there is nothing more to do.
async fn look(engine: &Arc<Engine>) -> Result<Duration> {
    let (now, horizon) = (engine.lines.now(), IDLE.as_millis() as i64);
    let found = due(&engine.lines, &engine.local_kinds(), now + horizon, BATCH).await?;
    let is_batch = found.len() as i64 == BATCH;
    let mut next = now + horizon;
    for (due, run) in found {
        if due > now {
            next = next.min(due);
            break;
        }
        start(engine, run).await;
    }
    let is_full = is_batch && next == now + horizon;
    Ok(if is_full { Duration::ZERO } else { Duration::from_millis((next - now).max(1) as u64) })
}

/// Claims a run and executes it, beside others. Waits for as long as too many are executed.
async fn start(engine: &Arc<Engine>, run: String) {
    if !lock(&engine.taken).insert(run.clone()) {
        return;
    }
    let Some(permit) = engine.permit().await else {
        lock(&engine.taken).remove(&run);
        return;
    };
    let started = engine.clone();
    engine.lines.env().spawn(Box::pin(async move {
        let claimed =
            claim(&started.lines, &run, &started.executor, started.options.lease, started.options.planted).await;
        match claimed {
            Ok(Some(claimed)) => execute(&started, claimed, Journal::ToBeRead).await,
            Ok(None) => {}
            Err(error) => tracing::debug!(run, %error, "a run cannot be claimed now"),
        }
        lock(&started.taken).remove(&run);
        drop(permit);
        started.saw_write();
        started.wake_if_due(&run);
    }));
}
