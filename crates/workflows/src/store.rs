//! Create, get, events, pause, resume, terminate, restart, delete.
//!
//! Every change says what it was decided on (a version, a token, a number of events), and the shard refuses it if that is
//! not so any more; then it is decided anew. So terminal is terminal, whoever comes at the same time.
//!
//! Invariants (docs/invariants.md):
//!   * I-52  events have numbers, in the order in which the run's shard took them; one that is sent twice with one key is
//!     there once

use crate::error::{Code, Result, WorkflowError, bad_name};
use crate::lines::{GUARD, Lines, Said, UNIQUE, int, params, text};
use crate::runs::{
    Create, MAX_ATTRIBUTES_BYTES, MAX_EVENT_BYTES, MAX_INPUT_BYTES, MAX_QUEUED_EVENTS, Run, RunEvent, Step, Update,
    run_columns, step_columns,
};
use isles_kernel::runs::names::{RunKey, check_name};
use isles_kernel::runs::status::{Control, Decision, Executor, Status, decide};
use isles_kernel::value::Value;
use serde_json::{Value as Json, json};

/// How often a change is decided anew, because the run has changed meanwhile.
const TRIES: usize = 100;
/// Steps of a timeline, updates of a page.
pub const MAX_PAGE: usize = 1_000;

const INSERT: &str = concat!(
    "INSERT INTO isles.runs (run, type, id, status, version, created_at, updated_at, attributes, executor_token, ",
    "executor, due_at, control, event_seq, update_seq, recoveries, attempt, input, input_hash, parent) ",
    "VALUES ($1, $2, $3, $4, 1, $5, $5, $6, 1, $7, $8, NULL, 0, 0, 0, 1, $9, $10, $11) ",
    "ON CONFLICT (run) DO NOTHING RETURNING ",
    run_columns!()
);
/// A run that was deleted makes room for another one, which goes on counting where it stopped.
const REVIVE: &str = concat!(
    "UPDATE isles.runs SET status = $2, version = version + 1, created_at = $3, updated_at = $3, attributes = $4, ",
    "executor_token = executor_token + 1, executor = $5, due_at = $6, control = NULL, recoveries = 0, ",
    "attempt = attempt + 1, input = $7, input_hash = $8, parent = $9, result = NULL, error = NULL ",
    "WHERE run = $1 AND status = 'deleted' RETURNING ",
    run_columns!()
);
const GET: &str = concat!("SELECT ", run_columns!(), " FROM isles.runs WHERE run = $1");
const STEPS: &str = concat!(
    "SELECT ",
    step_columns!(),
    " FROM isles.run_steps WHERE run = $1 AND attempt = $2 ORDER BY started_at, branch, ordinal"
);
const EVENTS: &str = "SELECT seq, name, payload, received_at FROM isles.run_events \
    WHERE run = $1 AND consumed_by IS NULL ORDER BY seq";
const COUNT_EVENTS: &str = "SELECT count(*) FROM isles.run_events WHERE run = $1 AND consumed_by IS NULL";
const TAKE_EVENT: &str = "UPDATE isles.runs SET \
    event_seq = CASE WHEN event_seq = $2 AND version = $3 THEN event_seq + 1 END, \
    due_at = CASE WHEN status IN ('waiting', 'sleeping') THEN $4 ELSE due_at END WHERE run = $1";
const ADD_EVENT: &str = "INSERT INTO isles.run_events (run, seq, name, dedupe, payload, received_at) \
    VALUES ($1, $2, $3, $4, $5, $6)";
const FIND_EVENT: &str = "SELECT seq FROM isles.run_events WHERE run = $1 AND dedupe = $2";
const UPDATES: &str = "SELECT seq, name, data, emitted_at FROM isles.run_updates WHERE run = $1 AND seq > $2 \
    ORDER BY seq LIMIT 1000";
const BECOME: &str = "UPDATE isles.runs SET status = $2, version = version + 1, updated_at = $3, due_at = $4, \
    control = NULL, executor_token = executor_token + 1 WHERE run = $1 AND version = $5 AND executor_token = $6";
const ASK: &str = "UPDATE isles.runs SET control = $2 WHERE run = $1 AND status = 'running' AND executor_token = $3";
const RESTART: &str = "UPDATE isles.runs SET status = 'created', version = version + 1, updated_at = $2, due_at = $2, \
    control = NULL, recoveries = 0, attempt = attempt + 1, result = NULL, error = NULL, \
    executor_token = CASE WHEN version = $3 THEN executor_token + 1 END WHERE run = $1";
const DELETE: &str = "UPDATE isles.runs SET status = 'deleted', version = version + 1, updated_at = $2, due_at = NULL, \
    control = NULL, result = NULL, error = NULL, input = 'null', attributes = '{}', \
    executor_token = CASE WHEN version = $3 THEN executor_token + 1 END WHERE run = $1";
const DELETE_STEPS: &str = "DELETE FROM isles.run_steps WHERE run = $1";
const DELETE_EVENTS: &str = "DELETE FROM isles.run_events WHERE run = $1";
const DELETE_UPDATES: &str = "DELETE FROM isles.run_updates WHERE run = $1";
/// What is left of runs that were deleted, some of each shard. The index that finds it has nothing else in it.
pub const DELETED_RUNS: &str =
    "SELECT run FROM isles.runs WHERE status = 'deleted' AND updated_at < $1 ORDER BY updated_at LIMIT 200";
/// A parent that waits for a run looks again.
const NUDGE: &str = "UPDATE isles.runs SET due_at = $2 WHERE run = $1 AND status = 'waiting'";

/// Who executes a run that is being created.
#[derive(Debug, Clone)]
pub(crate) struct FirstExecutor {
    pub(crate) name: String,
    pub(crate) lease_until: i64,
}

/// What came of creating a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// There is a new run.
    New,
    /// There was one with this id and this input.
    Existing,
}

/// A run that is about to be created, checked.
#[derive(Debug, Clone)]
pub(crate) struct NewRun {
    pub(crate) key: RunKey,
    input: String,
    input_hash: String,
    attributes: String,
    parent: Option<String>,
}

impl NewRun {
    pub(crate) fn new(kind: &str, id: &str, input: &Json, create: &Create) -> Result<NewRun> {
        let key = RunKey::new(kind, id).map_err(bad_name)?;
        let input = bounded("input", input.to_string(), MAX_INPUT_BYTES)?;
        let attributes = match &create.attributes {
            None => "{}".into(),
            Some(attributes) if attributes.is_object() => {
                bounded("attributes", attributes.to_string(), MAX_ATTRIBUTES_BYTES)?
            }
            Some(_) => return Err(WorkflowError::invalid("attributes are a JSON object")),
        };
        let input_hash = hash(&input);
        Ok(NewRun { key, input, input_hash, attributes, parent: create.parent.clone() })
    }

    /// What inserts it.
    pub(crate) fn statement(&self, now: i64, first: Option<&FirstExecutor>) -> (&'static str, Vec<Value>) {
        let (status, executor, due) = started(now, first);
        let key = self.key.as_str();
        let params = params![
            key,
            self.key.kind(),
            self.key.id(),
            status,
            now,
            self.attributes.as_str(),
            executor,
            due,
            self.input.as_str(),
            self.input_hash.as_str(),
            self.parent.clone()
        ];
        (INSERT, params)
    }

    /// What brings it where another one was deleted.
    pub(crate) fn revive(&self, now: i64, first: Option<&FirstExecutor>) -> (&'static str, Vec<Value>) {
        let (status, executor, due) = started(now, first);
        let params = params![
            self.key.as_str(),
            status,
            now,
            self.attributes.as_str(),
            executor,
            due,
            self.input.as_str(),
            self.input_hash.as_str(),
            self.parent.clone()
        ];
        (REVIVE, params)
    }

    /// Whether a run that is there is the one that was meant.
    pub(crate) fn compare(&self, there: &Run) -> Result<Created> {
        if there.input_hash == self.input_hash {
            return Ok(Created::Existing);
        }
        let message = format!("run \"{}\" of \"{}\" was created with another input", there.id, there.kind);
        Err(WorkflowError::new(Code::WorkflowAlreadyExists, message).with_hint("use another id, or the same input"))
    }
}

fn started(now: i64, first: Option<&FirstExecutor>) -> (&'static str, String, i64) {
    match first {
        Some(first) => (Status::Running.as_str(), first.name.clone(), first.lease_until),
        None => (Status::Created.as_str(), String::new(), now),
    }
}

fn bounded(what: &str, text: String, max: usize) -> Result<String> {
    if text.contains("\\u0000") {
        return Err(WorkflowError::invalid(format!("the {what} has the character NUL, which no text can hold")));
    }
    match text.len() <= max {
        true => Ok(text),
        false => Err(WorkflowError::new(
            Code::ResultTooLarge,
            format!("the {what} has {} bytes; {max} are allowed", text.len()),
        )),
    }
}

/// SHA-256 of a text, in hexadecimal.
fn hash(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Lines {
    /// Creates a run. With `first` it is executed from the start, and nobody needs to claim it.
    ///
    /// A new run is returned as it was written: whoever reads it later may find it claimed by somebody else (I-47).
    pub(crate) async fn create(&self, new: &NewRun, first: Option<&FirstExecutor>) -> Result<(Created, Option<Run>)> {
        for _ in 0..TRIES {
            let now = self.now();
            if let Some(run) = self.written(new.statement(now, first)).await? {
                return Ok((Created::New, Some(run)));
            }
            let Some(there) = self.find(&new.key).await? else { continue };
            if !there.is_deleted {
                return Ok((new.compare(&there)?, None));
            }
            if let Some(run) = self.written(new.revive(now, first)).await? {
                return Ok((Created::New, Some(run)));
            }
        }
        Err(busy(&new.key))
    }

    async fn written(&self, (sql, params): (&'static str, Vec<Value>)) -> Result<Option<Run>> {
        self.one(sql, params).await?.rows.first().map(|row| Run::read(row)).transpose()
    }

    /// A run, also one that was deleted.
    pub(crate) async fn find(&self, key: &RunKey) -> Result<Option<Run>> {
        let reply = self.one(GET, params![key.as_str()]).await?;
        reply.rows.first().map(|row| Run::read(row)).transpose()
    }

    pub(crate) async fn get(&self, key: &RunKey) -> Result<Run> {
        let found = self.find(key).await?;
        found.filter(|run| !run.is_deleted).ok_or_else(|| WorkflowError::not_found(key.kind(), key.id()))
    }

    /// The journal of a run's present attempt, in the order in which its entries began.
    pub(crate) async fn steps(&self, key: &RunKey, attempt: i64) -> Result<Vec<Step>> {
        let reply = self.one(STEPS, params![key.as_str(), attempt]).await?;
        reply.rows.iter().map(|row| Step::read(row)).collect()
    }

    /// Events that nobody has taken yet, in order.
    pub(crate) async fn events(&self, key: &RunKey) -> Result<Vec<RunEvent>> {
        let reply = self.one(EVENTS, params![key.as_str()]).await?;
        let event = |row: &Vec<Value>| {
            Some(RunEvent {
                seq: int(row.first()?)?,
                name: text(row.get(1)?)?.into(),
                payload: text(row.get(2)?)?.into(),
                received_at: int(row.get(3)?)?,
            })
        };
        Ok(reply.rows.iter().filter_map(event).collect())
    }

    /// What a run has told after a number, in order, at most [`MAX_PAGE`].
    pub(crate) async fn updates(&self, key: &RunKey, after: i64) -> Result<Vec<Update>> {
        let reply = self.one(UPDATES, params![key.as_str(), after]).await?;
        let update = |row: &Vec<Value>| {
            Some(Update {
                seq: Some(int(row.first()?)?),
                name: text(row.get(1)?)?.into(),
                data: text(row.get(2)?)?.into(),
                at: int(row.get(3)?)?,
            })
        };
        Ok(reply.rows.iter().filter_map(update).collect())
    }

    /// Puts an event into a run's queue. Returns its number; one that was sent before with the same key has its own.
    pub(crate) async fn send(&self, key: &RunKey, name: &str, payload: &Json, dedupe: Option<&str>) -> Result<i64> {
        check_name("event", name).map_err(bad_name)?;
        if let Some(dedupe) = dedupe {
            check_name("key", dedupe).map_err(bad_name)?;
        }
        let payload = bounded("payload", payload.to_string(), MAX_EVENT_BYTES)?;
        // Without a key it has one that nobody else has, so that it can be sent again when an answer was lost.
        let dedupe = match dedupe {
            Some(given) => format!("k:{given}"),
            None => format!("r:{:016x}{:016x}", self.env().random(), self.env().random()),
        };
        for _ in 0..TRIES {
            let run = self.get(key).await?;
            if let Some(seq) = self.find_event(key, &dedupe).await? {
                return Ok(seq);
            }
            if run.status.is_terminal() {
                return Err(not_running(&run));
            }
            let queued = self.one(COUNT_EVENTS, params![key.as_str()]).await?;
            if queued.int(0, 0).unwrap_or_default() >= MAX_QUEUED_EVENTS as i64 {
                let message = format!("{MAX_QUEUED_EVENTS} events wait in the queue of run \"{}\"", run.id);
                return Err(WorkflowError::new(Code::Unavailable, message).with_hint("send it later"));
            }
            let (seq, now) = (run.event_seq + 1, self.now());
            let take = (TAKE_EVENT, params![key.as_str(), run.event_seq, run.version, now]);
            let add = params![key.as_str(), seq, name, dedupe.as_str(), payload.as_str(), now];
            match self.try_together(vec![take, (ADD_EVENT, add)]).await {
                Ok(_) => return Ok(seq),
                Err(error) if matches!(error.sqlstate, GUARD | UNIQUE) => {}
                Err(error) => return Err(WorkflowError::of_sql(error)),
            }
        }
        Err(busy(key))
    }

    async fn find_event(&self, key: &RunKey, dedupe: &str) -> Result<Option<i64>> {
        Ok(self.one(FIND_EVENT, params![key.as_str(), dedupe]).await?.int(0, 0))
    }

    /// Pauses, resumes or terminates. Returns what the run is now.
    pub(crate) async fn control(&self, key: &RunKey, control: Control) -> Result<Run> {
        for _ in 0..TRIES {
            let run = self.get(key).await?;
            let asked = match run.control.as_deref() {
                Some("pause") => Some(Control::Pause),
                Some("terminate") => Some(Control::Terminate),
                _ => None,
            };
            // Where the lease has ended there may never be anybody to ask: a type is retired, its worker is dead.
            let executor = match run.due_at.is_some_and(|due| due > self.now()) {
                true => Executor::Alive,
                false => Executor::Gone,
            };
            let (sql, params) = match decide(control, run.status, asked, executor) {
                Decision::Nothing => return Ok(run),
                Decision::Refuse => return Err(not_running(&run)),
                Decision::Become(next) => {
                    let now = self.now();
                    let due = (next == Status::Running).then_some(now);
                    (BECOME, params![key.as_str(), next.as_str(), now, due, run.version, run.executor_token])
                }
                Decision::AskExecutor => (ASK, params![key.as_str(), control.as_str(), run.executor_token]),
                Decision::TakeBack => (ASK, params![key.as_str(), None::<&str>, run.executor_token]),
            };
            if self.one(sql, params).await?.affected == 1 {
                return self.get(key).await;
            }
        }
        Err(busy(key))
    }

    /// Begins a run that has ended again, from its beginning and with its input.
    pub(crate) async fn restart(&self, key: &RunKey) -> Result<Run> {
        self.end_with(key, "restarted", |now, version| {
            vec![(RESTART, params![key.as_str(), now, version]), (DELETE_EVENTS, params![key.as_str()])]
        })
        .await?;
        self.get(key).await
    }

    /// Deletes a run that has ended. What is left of it makes late writers lose, in the index too.
    pub(crate) async fn delete(&self, key: &RunKey) -> Result<()> {
        self.end_with(key, "deleted", |now, version| {
            vec![
                (DELETE, params![key.as_str(), now, version]),
                (DELETE_STEPS, params![key.as_str()]),
                (DELETE_EVENTS, params![key.as_str()]),
                (DELETE_UPDATES, params![key.as_str()]),
            ]
        })
        .await
    }

    async fn end_with(&self, key: &RunKey, what: &str, change: impl Fn(i64, i64) -> Vec<Said>) -> Result<()> {
        for _ in 0..TRIES {
            let run = self.get(key).await?;
            if !run.status.is_terminal() {
                let message = format!("run \"{}\" is {}, and only a run that has ended is {what}", run.id, run.status);
                return Err(not_running(&run).saying(message).with_hint("terminate it first"));
            }
            let changed = self.try_together(change(self.now(), run.version)).await;
            if crate::lines::unless_guarded(changed)?.is_some() {
                return Ok(());
            }
        }
        Err(busy(key))
    }

    /// Lets a run that waits for another one look again. If that is lost, it looks by itself, later.
    pub(crate) async fn nudge(&self, run: &str) -> Result<bool> {
        Ok(self.one(NUDGE, params![run, self.now()]).await?.affected == 1)
    }

    /// Takes away what is left of some runs that were deleted before a time. Returns how many went; none are left where
    /// shards can be reached if it is zero.
    pub(crate) async fn forget_deleted(&self, before: i64) -> Result<u64> {
        const FORGET: &str = "DELETE FROM isles.runs WHERE run = $1 AND status = 'deleted' AND updated_at < $2";
        let mut gone = 0;
        let found = self.by_shard((DELETED_RUNS, params![before])).await.map_err(WorkflowError::of_sql)?;
        // Those of one shard are one request there, and one flush.
        for rows in found.into_iter().filter_map(|(_, rows)| rows.ok()) {
            let runs = rows.iter().filter_map(|row| text(row.first()?));
            let forget: Vec<Said> = runs.map(|run| (FORGET, params![run, before])).collect();
            if !forget.is_empty() {
                gone += self.together(forget).await?.iter().map(|reply| reply.affected).sum::<u64>();
            }
        }
        Ok(gone)
    }
}

impl WorkflowError {
    fn saying(mut self, message: String) -> WorkflowError {
        self.message = message;
        self
    }
}

fn not_running(run: &Run) -> WorkflowError {
    let message = format!("run \"{}\" of \"{}\" has ended: it is {}", run.id, run.kind, run.status);
    let details = json!({ "workflowId": run.id, "currentStatus": run.status.as_str() });
    WorkflowError::new(Code::WorkflowNotRunning, message).with_details(details)
}

fn busy(key: &RunKey) -> WorkflowError {
    WorkflowError::new(Code::Unavailable, format!("too many change run \"{}\" at the same time", key.id()))
}
