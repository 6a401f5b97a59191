//! Claims runs that are due, and executes them.
//!
//! One look at all shards finds what is due, in order of time, and when the next is. Between two looks the worker sleeps
//! until then, or until somebody in this process says that something has come; now and then it looks by itself.

use crate::engine::Engine;
use crate::error::Result;
use crate::execute::{Journal, execute};
use crate::lease::claim;
use crate::lines::{int, params, text};
use crate::lock;
use isles_kernel::value::Value;
use std::sync::Arc;
use std::time::Duration;

/// Runs that one look finds.
const BATCH: i64 = 256;
/// A worker that nobody wakes looks by itself: another process may have created runs.
const IDLE: Duration = Duration::from_millis(500);
/// After an error.
const RETRY: Duration = Duration::from_millis(200);

const DUE: &str = "SELECT run, due_at FROM isles.runs WHERE due_at IS NOT NULL AND due_at < $1 AND type = ANY($2) \
    ORDER BY due_at LIMIT $3";

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
    let kinds: Vec<Value> = engine.local_kinds().into_iter().map(Value::Text).collect();
    if kinds.is_empty() {
        return Ok(IDLE);
    }
    let (now, horizon) = (engine.lines.now(), IDLE.as_millis() as i64);
    let mut params = params![now + horizon];
    params.extend([Value::Array(kinds), Value::Int(BATCH)]);
    let reply = engine.lines.one(DUE, params).await?;
    let mut next = now + horizon;
    for row in &reply.rows {
        let (Some(run), Some(due)) = (row.first().and_then(text), row.get(1).and_then(int)) else { continue };
        if due > now {
            next = next.min(due);
            break;
        }
        start(engine, run.to_owned()).await;
    }
    let is_full = reply.rows.len() as i64 == BATCH && next == now + horizon;
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
