//! Runs for other languages: a worker polls for runs that are due, executes their code by itself, and notes what it did.
//!
//!     poll ─► tasks, each with its journal, its events and a token ─► step …, heartbeat … ─► suspend, complete or fail
//!
//! A worker does what an executor in Rust does, and is held to the same: each of its requests carries the token, and is
//! refused when another one has claimed the run.

use crate::engine::Workflows;
use crate::error::{Code, Result, WorkflowError, bad_name, mismatch};
use crate::execute::given_up;
use crate::lease::{Claimed, Halt, Lease, Seen, With, claim};
use crate::lines::{int, params, text};
use crate::lock;
use crate::runs::{MAX_RESULT_BYTES, Run, RunEvent, Step, Update};
use crate::worker::due;
use isles_kernel::runs::journal::{Asked, MAX_ENTRIES, Mismatch, Place};
use isles_kernel::runs::names::{RunKey, check_name};
use isles_kernel::runs::retry::Retry;
use isles_kernel::runs::status::{Control, Status};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::time::Duration;

/// Tasks of one poll.
const MAX_TASKS: usize = 100;
/// Types of one poll.
const MAX_TYPES: usize = 100;
/// The longest wait of one poll.
const MAX_POLL: Duration = Duration::from_secs(30);
/// Leases of workers: long enough for a step between two heartbeats, short enough to get a dead worker's runs back.
const LEASES_MS: std::ops::RangeInclusive<u64> = 1_000..=3_600_000;
const DEFAULT_LEASE_MS: u64 = 30_000;
/// Entries that are noted when a run rests.
const MAX_PENDING: usize = 1_000;
/// How often a poll that waits looks by itself.
const LOOK: Duration = Duration::from_millis(500);

/// Asks for runs that are due.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Poll {
    pub types: Vec<String>,
    /// Who asks; it is shown beside the run.
    pub worker: String,
    pub max: Option<usize>,
    pub wait_ms: Option<u64>,
    pub lease_ms: Option<u64>,
}

/// Which run, and by which claim.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    #[serde(rename = "type")]
    pub kind: String,
    pub id: String,
    pub token: i64,
    pub attempt: i64,
    pub lease_ms: Option<u64>,
}

/// An entry of the journal, as a worker notes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Noted {
    #[serde(default)]
    pub branch: String,
    pub ordinal: u32,
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    #[serde(default)]
    pub attempts: i64,
    pub result: Option<Json>,
    pub error: Option<RemoteError>,
    pub wake_at: Option<i64>,
    pub started_at: i64,
    pub ended_at: Option<i64>,
    #[serde(default)]
    pub retry_history: Vec<Json>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct RemoteError {
    pub code: Option<Code>,
    pub message: String,
    pub details: Option<Json>,
}

impl RemoteError {
    fn error(self) -> WorkflowError {
        let error = WorkflowError::new(self.code.unwrap_or(Code::StepFailed), self.message);
        WorkflowError { details: self.details, retriable: false, ..error }
    }
}

/// What goes with an entry.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NoteStep {
    #[serde(flatten)]
    pub task: Task,
    pub step: Noted,
    /// The number of the event that it takes from the queue.
    pub event: Option<i64>,
    /// What is told with it.
    pub update: Option<RemoteUpdate>,
    /// How many updates the run has told, without this one.
    #[serde(default)]
    pub update_seq: i64,
}

#[derive(Debug, Clone, Deserialize)]
pub struct RemoteUpdate {
    pub name: String,
    pub data: Json,
}

/// The run rests.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Suspend {
    #[serde(flatten)]
    pub task: Task,
    pub status: String,
    pub due_at: Option<i64>,
    /// Up to which event the worker has seen the queue.
    pub event_seq: i64,
    #[serde(default)]
    pub pending: Vec<Noted>,
}

/// The run has ended.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finish {
    #[serde(flatten)]
    pub task: Task,
    pub result: Option<Json>,
    pub error: Option<RemoteError>,
}

fn stored(json: &Json) -> Result<String> {
    let text = json.to_string();
    match text.len() <= MAX_RESULT_BYTES {
        true => Ok(text),
        false => {
            Err(WorkflowError::new(Code::ResultTooLarge, format!("a result has at most {MAX_RESULT_BYTES} bytes")))
        }
    }
}

impl Noted {
    fn step(self) -> Result<Step> {
        check_name("name", &self.name).map_err(bad_name)?;
        if !self.branch.is_empty() {
            check_name("branch", &self.branch).map_err(bad_name)?;
        }
        if self.ordinal as usize >= MAX_ENTRIES {
            return Err(WorkflowError::invalid(format!("a run has at most {MAX_ENTRIES} steps")));
        }
        let unknown = |what: &str, text: &str| WorkflowError::invalid(format!("there is no {what} \"{text}\""));
        Ok(Step {
            place: Place { branch: self.branch, ordinal: self.ordinal },
            kind: self.kind.parse().map_err(|()| unknown("type of step", &self.kind))?,
            state: self.status.parse().map_err(|()| unknown("status of a step", &self.status))?,
            name: self.name,
            attempts: self.attempts,
            result: self.result.as_ref().map(stored).transpose()?,
            error: self.error.map(RemoteError::error),
            wake_at: self.wake_at,
            started_at: self.started_at,
            ended_at: self.ended_at,
            history: self.retry_history.into_iter().take(20).collect(),
        })
    }
}

/// What a worker is told when its request was not carried out, or what it has to do.
fn told(halt: Halt) -> Result<Json> {
    match halt {
        Halt::Lost => Err(WorkflowError::new(Code::LeaseLost, "another executor has the run, or it has ended")),
        Halt::Trouble(error) => Err(error),
        Halt::Again => Ok(json!({ "again": true })),
        Halt::Asked(control) => Ok(json!({ "asked": control.as_str() })),
    }
}

fn seen(seen: Seen) -> Json {
    json!({ "control": seen.control.map(Control::as_str), "eventSeq": seen.event_seq })
}

fn lease_of(lease_ms: Option<u64>) -> Result<Duration> {
    let ms = lease_ms.unwrap_or(DEFAULT_LEASE_MS);
    match LEASES_MS.contains(&ms) {
        true => Ok(Duration::from_millis(ms)),
        false => Err(WorkflowError::invalid(format!("a lease has 1000 to 3600000 milliseconds, not {ms}"))),
    }
}

/// Whether a worker may note an entry: what the journal has at its place is the same, and its name is used nowhere else.
async fn check_fits(lease: &Lease, step: &Step) -> Result<()> {
    const LIKE_IT: &str = "SELECT ordinal, kind, name FROM isles.run_steps WHERE run = $1 AND attempt = $2 \
        AND branch = $3 AND (ordinal = $4 OR name = $5)";
    let (branch, ordinal) = (step.place.branch.as_str(), i64::from(step.place.ordinal));
    let params = params![lease.key.as_str(), lease.attempt, branch, ordinal, step.name.as_str()];
    for row in lease.lines.one(LIKE_IT, params).await?.rows {
        let (place, asked) = (step.place.clone(), Asked { kind: step.kind, name: step.name.clone() });
        if row.first().and_then(int) != Some(ordinal) {
            return Err(mismatch(&Mismatch::Duplicate { name: asked.name }));
        }
        let kind = row.get(1).and_then(text).and_then(|kind| kind.parse().ok()).unwrap_or(step.kind);
        let noted = Asked { kind, name: row.get(2).and_then(text).unwrap_or_default().into() };
        if noted != asked {
            return Err(mismatch(&Mismatch::NonDeterminism { place, noted, asked }));
        }
    }
    Ok(())
}

/// All that a worker needs to execute a run.
async fn task_of(lease: &Lease, run: &Run, retry: &Retry) -> Result<(Json, u64)> {
    let steps = lease.lines.steps(&lease.key, lease.attempt).await?;
    let bytes = steps.iter().filter_map(|step| step.result.as_ref()).map(|result| result.len() as u64).sum();
    let events = lease.events().await?;
    let event = |event: &RunEvent| {
        let payload: Json = serde_json::from_str(&event.payload).unwrap_or(Json::Null);
        json!({ "seq": event.seq, "name": event.name, "payload": payload })
    };
    let seen = run.event_seq;
    let task = json!({
        "type": run.kind, "id": run.id, "token": lease.token, "attempt": run.attempt,
        "leaseMs": lease.length.as_millis() as u64, "payload": run.input, "control": run.control, "eventSeq": seen,
        "updateSeq": run.update_seq, "now": lease.lines.now(),
        "journal": steps.iter().map(Step::to_json).collect::<Vec<_>>(),
        "events": events.iter().filter(|one| one.seq <= seen).map(event).collect::<Vec<_>>(),
        "retry": {
            "limit": retry.limit, "delayMs": retry.delay.as_millis() as u64, "backoff": retry.backoff,
            "capMs": retry.cap.as_millis() as u64, "jitter": retry.jitter,
        },
    });
    Ok((task, bytes))
}

impl Workflows {
    fn lease(&self, task: &Task) -> Result<Lease> {
        let definition = self.engine.definition(&task.kind)?;
        if !definition.is_remote() {
            return Err(WorkflowError::invalid(format!("\"{}\" is executed by the server", task.kind)));
        }
        Ok(Lease {
            lines: self.engine.lines.clone(),
            key: RunKey::new(&task.kind, &task.id).map_err(bad_name)?,
            token: task.token,
            attempt: task.attempt,
            length: lease_of(task.lease_ms)?,
            planted: self.engine.options.planted,
        })
    }

    /// Claims runs that are due for a worker; waits for some if there are none.
    pub async fn poll(&self, poll: &Poll) -> Result<Json> {
        check_name("worker", &poll.worker).map_err(bad_name)?;
        if poll.types.is_empty() || poll.types.len() > MAX_TYPES {
            return Err(WorkflowError::invalid(format!("a poll names 1 to {MAX_TYPES} types")));
        }
        for kind in &poll.types {
            if !self.engine.definition(kind)?.is_remote() {
                return Err(WorkflowError::invalid(format!("\"{kind}\" is executed by the server")));
            }
        }
        let lease = lease_of(poll.lease_ms)?;
        let max = poll.max.unwrap_or(1).clamp(1, MAX_TASKS);
        let env = self.engine.lines.env().clone();
        let deadline = env.elapsed() + Duration::from_millis(poll.wait_ms.unwrap_or(0)).min(MAX_POLL);
        loop {
            let came = self.engine.remote_came();
            let tasks = self.claim_for(poll, max, lease).await?;
            let left = deadline.saturating_sub(env.elapsed());
            if !tasks.is_empty() || left.is_zero() || self.engine.is_closed() {
                return Ok(json!({ "tasks": tasks }));
            }
            futures::future::select(Box::pin(came), env.sleep(left.min(LOOK))).await;
        }
    }

    async fn claim_for(&self, poll: &Poll, max: usize, lease: Duration) -> Result<Vec<Json>> {
        let lines = &self.engine.lines;
        let mut tasks = Vec::new();
        for (_, run) in due(lines, &poll.types, lines.now() + 1, max as i64).await? {
            let executor = format!("worker:{}", poll.worker);
            // What cannot be claimed now is claimed by a later poll; those that were claimed are not kept from the worker.
            match claim(lines, &run, &executor, lease, self.engine.options.planted).await {
                Ok(Some(claimed)) => tasks.extend(self.taken(&claimed).await),
                Ok(None) => {}
                Err(error) => tracing::debug!(run, %error, "a run cannot be claimed for a worker now"),
            }
        }
        Ok(tasks)
    }

    /// The task of a run that was claimed; none if nothing is to be executed. A run that has killed its worker again and
    /// again is ended here.
    async fn taken(&self, claimed: &Claimed) -> Option<Json> {
        let (lease, run) = (&claimed.lease, &claimed.run);
        let taken = match given_up(run) {
            Some(error) => match lease.finish(&Err(error), &[]).await {
                Ok(()) => {
                    self.engine.has_ended(&lease.key, Status::Errored, run.parent.as_deref()).await;
                    return None;
                }
                Err(halt) => told(halt).map(drop).err()?,
            },
            None => match self.task(lease, run).await {
                Ok(task) => return Some(task),
                Err(error) => error,
            },
        };
        tracing::debug!(run = %lease.key, error = %taken, "a run that was claimed waits for the end of its lease");
        None
    }

    async fn task(&self, lease: &Lease, run: &Run) -> Result<Json> {
        let definition = self.engine.definition(&run.kind)?;
        let (task, bytes) = task_of(lease, run, &definition.options.retry).await?;
        lock(&self.engine.sizes).insert(lease.key.as_str().into(), (lease.token, bytes));
        Ok(task)
    }

    /// Whether a result has room beside those that the run has.
    async fn check_room(&self, lease: &Lease, step: &Step) -> Result<u64> {
        let limit = self.engine.definition(lease.key.kind())?.options.result_size_limit;
        let known = lock(&self.engine.sizes).get(lease.key.as_str()).copied();
        let known = match known.filter(|(token, _)| *token == lease.token) {
            Some((_, bytes)) => bytes,
            // It was claimed by another process, or before this one began.
            None => {
                let steps = lease.lines.steps(&lease.key, lease.attempt).await?;
                steps.iter().filter_map(|step| step.result.as_ref()).map(|result| result.len() as u64).sum()
            }
        };
        let bytes = known + step.result.as_ref().map_or(0, |result| result.len() as u64);
        if bytes > limit {
            let message = format!("the result size limit is {limit} bytes; with this result there are {bytes}");
            return Err(
                WorkflowError::new(Code::ResultTooLarge, message).with_hint("keep less, or raise resultSizeLimit")
            );
        }
        Ok(bytes)
    }

    fn forget_size(&self, lease: &Lease) {
        lock(&self.engine.sizes).remove(lease.key.as_str());
    }

    /// A worker lives.
    pub async fn heartbeat(&self, task: &Task) -> Result<Json> {
        let lease = self.lease(task)?;
        if !lease.renew().await? {
            return told(Halt::Lost);
        }
        let run = lease.lines.get(&lease.key).await?;
        Ok(json!({ "control": run.control, "eventSeq": run.event_seq }))
    }

    /// A worker has done a step.
    pub async fn note_step(&self, note: NoteStep) -> Result<Json> {
        let lease = self.lease(&note.task)?;
        let step = note.step.step()?;
        check_fits(&lease, &step).await?;
        let bytes = self.check_room(&lease, &step).await?;
        let (with, update_seq) = match (note.event, &note.update) {
            (Some(_), Some(_)) => return Err(WorkflowError::invalid("a step takes an event or tells an update")),
            (Some(seq), None) => (With::Event(seq), note.update_seq),
            (None, Some(update)) => {
                check_name("update", &update.name).map_err(bad_name)?;
                let seq = note.update_seq + 1;
                (With::Update(seq, update.name.clone(), stored(&update.data)?), seq)
            }
            (None, None) => (With::Nothing, note.update_seq),
        };
        match lease.note(&step, with, update_seq, &[]).await {
            Ok(told) => {
                lock(&self.engine.sizes).insert(lease.key.as_str().into(), (lease.token, bytes));
                if let Some(update) = note.update {
                    let (data, at) = (update.data.to_string(), lease.lines.now());
                    self.engine.tell(&lease.key, Update { seq: Some(update_seq), name: update.name, data, at });
                }
                self.engine.saw_write();
                Ok(seen(told))
            }
            Err(halt) => told(halt),
        }
    }

    /// A worker has nothing to do for a run until something comes.
    pub async fn suspend(&self, rest: Suspend) -> Result<Json> {
        let lease = self.lease(&rest.task)?;
        let status: Status =
            rest.status.parse().map_err(|_| WorkflowError::invalid("a run rests sleeping or waiting"))?;
        if !matches!(status, Status::Sleeping | Status::Waiting)
            || (status == Status::Sleeping && rest.due_at.is_none())
        {
            return Err(WorkflowError::invalid("a run rests waiting, or sleeping until a time"));
        }
        if rest.pending.len() > MAX_PENDING {
            return Err(WorkflowError::invalid(format!("at most {MAX_PENDING} steps wait at once")));
        }
        let pending: Vec<Step> = rest.pending.into_iter().map(Noted::step).collect::<Result<_>>()?;
        for step in &pending {
            check_fits(&lease, step).await?;
        }
        match lease.suspend(status, rest.due_at, rest.event_seq, &pending).await {
            Ok(()) => {
                self.forget_size(&lease);
                self.engine.saw_write();
                Ok(json!({ "suspended": true }))
            }
            // Something has come: the worker goes on with it, by the claim that it has.
            Err(Halt::Again) => {
                let run = lease.lines.get(&lease.key).await?;
                Ok(json!({ "again": self.task(&lease, &run).await? }))
            }
            Err(halt) => told(halt),
        }
    }

    /// A worker has come to the end of a run.
    pub async fn finish(&self, finish: Finish) -> Result<Json> {
        let lease = self.lease(&finish.task)?;
        let outcome = match (finish.error, finish.result) {
            (Some(error), _) => Err(error.error()),
            (None, result) => Ok(stored(&result.unwrap_or(Json::Null))?),
        };
        match lease.finish(&outcome, &[]).await {
            Ok(()) => {
                self.forget_size(&lease);
                let status = if outcome.is_ok() { Status::Completed } else { Status::Errored };
                let parent = lease.lines.find(&lease.key).await?.and_then(|run| run.parent);
                self.engine.has_ended(&lease.key, status, parent.as_deref()).await;
                Ok(json!({ "status": status.as_str() }))
            }
            Err(halt) => told(halt),
        }
    }

    /// A worker does what somebody wants of a run: pauses or terminates it.
    pub async fn obey(&self, task: &Task) -> Result<Json> {
        let lease = self.lease(task)?;
        let run = lease.lines.get(&lease.key).await?;
        let Some(control) = crate::lease::control_of(run.control.as_deref()) else {
            return Err(WorkflowError::invalid("nobody has asked for anything"));
        };
        match lease.obey(control, &[]).await {
            Ok(status) => {
                self.forget_size(&lease);
                self.engine.has_ended(&lease.key, status, run.parent.as_deref()).await;
                Ok(json!({ "status": status.as_str() }))
            }
            Err(halt) => told(halt),
        }
    }
}
