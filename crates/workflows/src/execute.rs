//! One execution of a run: its code is led through the journal, goes on from there, and rests or ends.

use crate::context::{Context, Shared, State, panic_text};
use crate::engine::Engine;
use crate::error::{Code, Result, WorkflowError};
use crate::lease::{Claimed, Halt, Lease, Seen, control_of, is_final};
use crate::lock;
use crate::registry::Definition;
use crate::runs::{Run, Step};
use futures::future::{BoxFuture, FutureExt};
use isles_kernel::runs::status::Status;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

/// How often a run's executor may die without a single step between: after that the run is taken for what kills it.
pub(crate) const MAX_RECOVERIES: i64 = 25;

/// How long what goes on in other branches may take when a run is to stop: only code whose branches wait for each other
/// takes so long, and it is cut short.
const DRAIN_MAX: Duration = Duration::from_secs(3_600);

/// How a run was left.
#[derive(Debug)]
enum Left {
    /// It rests until this time, or until something comes.
    Resting(Option<i64>),
    Ended(Status),
}

/// Whether a run's journal may have something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Journal {
    Empty,
    ToBeRead,
}

/// Executes a run that is claimed, until it rests or ends or is lost.
pub(crate) async fn execute(engine: &Arc<Engine>, claimed: Claimed, journal: Journal) {
    let key = claimed.lease.key.clone();
    let parent = claimed.run.parent.clone();
    match lead(engine, claimed, journal).await {
        Ok(Left::Resting(due)) => engine.rests(&key, due),
        Ok(Left::Ended(status)) => engine.has_ended(&key, status, parent.as_deref()).await,
        Err(Halt::Trouble(error)) => tracing::debug!(run = %key, %error, "a run is left to whoever claims it next"),
        Err(_) => {}
    }
}

async fn lead(engine: &Arc<Engine>, claimed: Claimed, mut journal: Journal) -> std::result::Result<Left, Halt> {
    let Claimed { mut lease, mut run } = claimed;
    let definition = engine.definition(&run.kind)?;
    let mut waits = Vec::new();
    loop {
        if let Some(error) = given_up(&run) {
            lease.finish(&Err(error), &[]).await?;
            return Ok(Left::Ended(Status::Errored));
        }
        let left;
        (left, lease, waits) = once(engine, &definition, lease, &run, (journal, waits)).await;
        match left {
            Err(Halt::Again) => {
                journal = Journal::ToBeRead;
                run = lease.lines.get(&lease.key).await?;
                if run.executor_token != lease.token {
                    return Err(Halt::Lost);
                }
            }
            Err(Halt::Asked(control)) => return lease.obey(control, &waits).await.map(Left::Ended),
            left => return left,
        }
    }
}

/// Why a run is not executed any more: whoever did has died each time.
pub(crate) fn given_up(run: &Run) -> Option<WorkflowError> {
    (run.recoveries > MAX_RECOVERIES).then(|| {
        let message = format!("the executor was lost {} times without a step between", run.recoveries);
        WorkflowError::new(Code::InternalError, message)
    })
}

/// One execution. `waits` are entries that the one before has left pending and unsaved; returned are those of this one.
async fn once(
    engine: &Arc<Engine>,
    definition: &Arc<Definition>,
    lease: Lease,
    run: &Run,
    (journal, waits): (Journal, Vec<Step>),
) -> (std::result::Result<Left, Halt>, Lease, Vec<Step>) {
    let mut state = match load(&lease, run, journal).await {
        Ok(state) => state,
        Err(error) => return (Err(Halt::Trouble(error)), lease, waits),
    };
    state.goes_on_with(waits);
    let (lease, definition) = (lease, definition.clone());
    let (telling, state) = (Default::default(), Mutex::new(state));
    let shared = Arc::new(Shared { telling, lease, definition, engine: engine.clone(), state });
    let left = drive_and_settle(engine, &shared, run).await;
    // The code is gone, and with it everything that it held of the context.
    let waits = lock(&shared.state).all_unsaved();
    match Arc::try_unwrap(shared) {
        Ok(shared) => (left, shared.lease, waits),
        // A task that the code has started keeps it: there is nothing more to do with this lease.
        Err(shared) => (left, shared.lease.clone(), waits),
    }
}

async fn load(lease: &Lease, run: &Run, journal: Journal) -> Result<State> {
    let steps = match journal {
        Journal::Empty => Vec::new(),
        Journal::ToBeRead => lease.lines.steps(&lease.key, lease.attempt).await?,
    };
    let events = if run.event_seq == 0 { Vec::new() } else { lease.events().await? };
    // Those that came after the row was read are read again before the run rests.
    let events = events.into_iter().filter(|event| event.seq <= run.event_seq).collect();
    let seen = Seen { control: control_of(run.control.as_deref()), event_seq: run.event_seq };
    Ok(State::new(steps, events, seen, run.update_seq))
}

async fn drive_and_settle(engine: &Arc<Engine>, shared: &Arc<Shared>, run: &Run) -> std::result::Result<Left, Halt> {
    let Some(code) = shared.definition.code.clone() else { return Err(Halt::Lost) };
    if let Some(control) = lock(&shared.state).seen.control {
        return Err(Halt::Asked(control));
    }
    let code = code(Context::new(shared.clone()), run.input.clone());
    let driven = {
        let beat = Box::pin(beat(engine, &shared.lease));
        match futures::future::select(Box::pin(drive(shared, code)), beat).await {
            futures::future::Either::Left((driven, _)) => driven,
            futures::future::Either::Right((halt, _)) => return Err(halt),
        }
    };
    match driven {
        Driven::Halted(halt) => Err(halt),
        Driven::Resting(status, due) => rest(shared, status, due).await,
        Driven::Ended(outcome) => {
            let outcome = outcome.and_then(|out| lock(&shared.state).end().map(|()| out));
            let outcome = outcome.and_then(bounded);
            let passed = lock(&shared.state).all_unsaved();
            let passed: Vec<Step> = passed.into_iter().filter(is_final).collect();
            shared.lease.finish(&outcome, &passed).await?;
            Ok(Left::Ended(if outcome.is_ok() { Status::Completed } else { Status::Errored }))
        }
    }
}

fn bounded(result: String) -> Result<String> {
    match result.len() <= crate::runs::MAX_RESULT_BYTES {
        true => Ok(result),
        false => Err(WorkflowError::new(Code::ResultTooLarge, format!("the result has {} bytes", result.len()))),
    }
}

async fn rest(shared: &Arc<Shared>, status: Status, due: Option<i64>) -> std::result::Result<Left, Halt> {
    let (seen, pending) = {
        let state = lock(&shared.state);
        (state.seen.event_seq, state.all_unsaved())
    };
    shared.lease.suspend(status, due, seen, &pending).await?;
    Ok(Left::Resting(due))
}

enum Driven {
    Ended(Result<String>),
    /// What the run is, and when it is due. It is asked while the code is there: what waits is forgotten with the code.
    Resting(Status, Option<i64>),
    Halted(Halt),
}

/// Runs code until it ends, or waits for something that does not come in this execution.
async fn drive(shared: &Arc<Shared>, code: BoxFuture<'static, Result<String>>) -> Driven {
    let mut code = AssertUnwindSafe(code).catch_unwind();
    let mut drained: Option<BoxFuture<'static, ()>> = None;
    std::future::poll_fn(move |cx| {
        let polled = code.poll_unpin(cx);
        let mut state = lock(&shared.state);
        if state.must_drain() && polled.is_pending() {
            // What goes on in other branches is not torn; nothing new begins there.
            let limit = drained.get_or_insert_with(|| shared.lease.lines.env().sleep(DRAIN_MAX));
            if limit.poll_unpin(cx).is_pending() {
                return Poll::Pending;
            }
        }
        if let Some(halt) = state.halt.take() {
            return Poll::Ready(Driven::Halted(halt));
        }
        if let Some(error) = state.fatal.take() {
            return Poll::Ready(Driven::Ended(Err(error)));
        }
        match polled {
            Poll::Ready(Ok(outcome)) => Poll::Ready(Driven::Ended(outcome)),
            Poll::Ready(Err(panic)) => {
                let message = format!("the workflow panicked: {}", panic_text(&*panic));
                Poll::Ready(Driven::Ended(Err(WorkflowError::new(Code::InternalError, message))))
            }
            Poll::Pending if state.is_at_rest() => {
                let (status, due) = state.rest();
                Poll::Ready(Driven::Resting(status, due))
            }
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Keeps the lease for as long as the code runs. Returns when it is lost, or the engine stops.
async fn beat(engine: &Arc<Engine>, lease: &Lease) -> Halt {
    loop {
        let closed = futures::future::select(Box::pin(engine.closed()), lease.lines.env().sleep(lease.length / 3));
        if matches!(closed.await, futures::future::Either::Left(_)) {
            return Halt::Lost;
        }
        // What cannot be renewed now can be at the next beat; until the lease ends nobody else takes the run.
        if let Ok(false) = lease.renew().await {
            return Halt::Lost;
        }
    }
}
