//! What an executor may do for as long as the run is its own.
//!
//! Claiming a run raises its token. Each write of an executor is one request that begins with a guard: where the token is
//! another one, the shard refuses all of it. An executor that was stopped for a while and comes back finds out so, and
//! lets go; nothing that it did late is there.
//!
//! The token is the fence, and the only one. An entry that is final stays as it is, and an update's number is given once,
//! but neither keeps a late executor from resting or ending the run, with results of its own that the journal does not
//! have.
//!
//! Invariants (docs/invariants.md):
//!   * I-47  the guard is in the request of each write
//!   * I-48  an entry that is final is not written again
//!   * I-50  a claim moves the timer to the end of the lease, and does not take it away

use crate::engine::Planted;
use crate::error::{Result, WorkflowError};
use crate::lines::{GUARD, Lines, Said, UNIQUE, int, may_repeat, params, say, text};
use crate::runs::{Run, RunEvent, Step, run_columns};
use isles_cluster::session::Session;
use isles_kernel::error::SqlError;
use isles_kernel::runs::journal::State;
use isles_kernel::runs::names::RunKey;
use isles_kernel::runs::status::{Control, Status};
use std::sync::Arc;
use std::time::Duration;

const CLAIM: &str = concat!(
    "UPDATE isles.runs SET executor_token = executor_token + 1, executor = $2, due_at = $3, ",
    "recoveries = CASE WHEN status = 'running' THEN recoveries + 1 ELSE recoveries END, ",
    "version = CASE WHEN status = 'running' THEN version ELSE version + 1 END, ",
    "updated_at = CASE WHEN status = 'running' THEN updated_at ELSE $4 END, status = 'running' ",
    "WHERE run = $1 AND due_at <= $4 AND status IN ('created', 'running', 'sleeping', 'waiting') RETURNING ",
    run_columns!()
);
/// As [`CLAIM`], and the timer is gone before what it stands for is done.
const CLAIM_AND_FORGET: &str = concat!(
    "UPDATE isles.runs SET executor_token = executor_token + 1, executor = $2, due_at = CASE WHEN $3 < 0 THEN $3 END, ",
    "version = version + 1, updated_at = $4, status = 'running' ",
    "WHERE run = $1 AND due_at <= $4 AND status IN ('created', 'running', 'sleeping', 'waiting') RETURNING ",
    run_columns!()
);
/// Writes of branches come in any order: the number of updates only rises.
const HOLD: &str = "UPDATE isles.runs SET executor_token = CASE WHEN executor_token = $2 THEN executor_token END, \
    due_at = $3, recoveries = 0, update_seq = CASE WHEN update_seq < $4 THEN $4 ELSE update_seq END \
    WHERE run = $1 RETURNING control, event_seq";
/// An entry that is final stays; a late one finds the key taken, or changes nothing.
const NOTE: &str = "INSERT INTO isles.run_steps (run, attempt, branch, ordinal, name, kind, state, attempts, result, \
    error, wake_at, started_at, ended_at, history) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
    ON CONFLICT (run, attempt, branch, ordinal) DO UPDATE SET state = excluded.state, attempts = excluded.attempts, \
    result = excluded.result, error = excluded.error, wake_at = excluded.wake_at, ended_at = excluded.ended_at, \
    history = excluded.history WHERE isles.run_steps.state = 'pending'";
const CONSUME: &str = "UPDATE isles.run_events SET consumed_by = $3 WHERE run = $1 AND seq = $2";
const TELL: &str = "INSERT INTO isles.run_updates (run, seq, name, data, emitted_at) VALUES ($1, $2, $3, $4, $5)";
const SUSPEND: &str = "UPDATE isles.runs SET status = $3, version = version + 1, updated_at = $4, due_at = $5, \
    recoveries = 0, executor_token = CASE WHEN executor_token = $2 AND event_seq = $6 AND control IS NULL \
    THEN executor_token END WHERE run = $1";
const FINISH: &str = "UPDATE isles.runs SET status = $3, version = version + 1, updated_at = $4, due_at = NULL, \
    control = NULL, result = $5, error = $6, executor_token = CASE WHEN executor_token = $2 AND \
    (control IS NULL OR control = 'pause') THEN executor_token + 1 END WHERE run = $1";
const OBEY: &str = "UPDATE isles.runs SET status = $3, version = version + 1, updated_at = $4, due_at = NULL, \
    control = NULL, executor_token = CASE WHEN executor_token = $2 THEN executor_token + 1 END WHERE run = $1";
const RENEW: &str = "UPDATE isles.runs SET due_at = $3 WHERE run = $1 AND executor_token = $2 AND status = 'running'";
const LOOK: &str = "SELECT executor_token, control, event_seq, status FROM isles.runs WHERE run = $1";

/// Why an executor stops.
#[derive(Debug, Clone, PartialEq)]
pub enum Halt {
    /// Another executor has the run, or it was deleted.
    Lost,
    /// Somebody wants it paused or terminated.
    Asked(Control),
    /// Something came while it was about to rest, or a transaction met another one, and nothing has happened: it begins
    /// again, with what there is.
    Again,
    /// The database does not answer. Whoever claims the run next goes on.
    Trouble(WorkflowError),
}

impl Halt {
    /// Whether what goes on is let come to its end: the run is still the executor's own.
    pub(crate) fn lets_steps_end(&self) -> bool {
        matches!(self, Halt::Asked(_) | Halt::Again)
    }

    /// What an error of a transaction leads to.
    pub(crate) fn unless_repeated(error: SqlError) -> Halt {
        if may_repeat(&error) { Halt::Again } else { Halt::Trouble(WorkflowError::of_sql(error)) }
    }
}

impl From<WorkflowError> for Halt {
    fn from(error: WorkflowError) -> Halt {
        Halt::Trouble(error)
    }
}

/// What an executor learns with each write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    pub control: Option<Control>,
    pub event_seq: i64,
}

/// What goes with an entry.
#[derive(Debug, Clone)]
pub(crate) enum With {
    Nothing,
    /// An event is taken from the queue.
    Event(i64),
    /// An update is told, with its number.
    Update(i64, String, String),
}

/// A run that is claimed.
#[derive(Clone)]
pub struct Lease {
    pub(crate) lines: Arc<Lines>,
    pub(crate) key: RunKey,
    pub(crate) token: i64,
    pub(crate) attempt: i64,
    /// For how long it is the executor's own from each write on.
    pub(crate) length: Duration,
    pub(crate) planted: Option<Planted>,
}

/// A run that was claimed, and its row.
pub(crate) struct Claimed {
    pub(crate) lease: Lease,
    pub(crate) run: Run,
}

pub(crate) fn control_of(text: Option<&str>) -> Option<Control> {
    match text {
        Some("pause") => Some(Control::Pause),
        Some("terminate") => Some(Control::Terminate),
        _ => None,
    }
}

/// Claims a run, if it is due.
pub(crate) async fn claim(
    lines: &Arc<Lines>,
    key: &str,
    executor: &str,
    length: Duration,
    planted: Option<Planted>,
) -> Result<Option<Claimed>> {
    let now = lines.now();
    let sql = if planted == Some(Planted::TimerDeletedBeforeEffect) { CLAIM_AND_FORGET } else { CLAIM };
    let reply = lines.one(sql, params![key, executor, now + length.as_millis() as i64, now]).await?;
    let Some(row) = reply.rows.first() else { return Ok(None) };
    let run = Run::read(row)?;
    let (key, token, attempt) = (run.key()?, run.executor_token, run.attempt);
    let lease = Lease { lines: lines.clone(), key, token, attempt, length, planted };
    Ok(Some(Claimed { lease, run }))
}

impl Lease {
    pub(crate) fn until(&self) -> i64 {
        self.lines.now() + self.length.as_millis() as i64
    }

    /// The token that a write carries: that of the claim, whoever has claimed the run since.
    async fn token(&self) -> Result<i64> {
        if self.planted != Some(Planted::LateExecutorNotFenced) {
            return Ok(self.token);
        }
        let present = self.lines.one(LOOK, params![self.key.as_str()]).await?;
        Ok(present.int(0, 0).unwrap_or(self.token))
    }

    async fn hold(&self, update_seq: i64) -> Result<Said> {
        Ok((HOLD, params![self.key.as_str(), self.token().await?, self.until(), update_seq]))
    }

    fn note_of(&self, step: &Step) -> Said {
        let history = (!step.history.is_empty()).then(|| serde_json::Value::from(step.history.clone()).to_string());
        let params = params![
            self.key.as_str(),
            self.attempt,
            step.place.branch.as_str(),
            i64::from(step.place.ordinal),
            step.name.as_str(),
            step.kind.as_str(),
            step.state.as_str(),
            step.attempts,
            step.result.clone(),
            step.error.as_ref().map(WorkflowError::stored),
            step.wake_at,
            step.started_at,
            step.ended_at,
            history
        ];
        (NOTE, params)
    }

    /// Notes an entry. `update_seq`: how many updates the run has told, with this.
    ///
    /// `passed`: entries that have become final by themselves, and cost no write of their own.
    pub(crate) async fn note(
        &self,
        step: &Step,
        with: With,
        update_seq: i64,
        passed: &[Step],
    ) -> std::result::Result<Seen, Halt> {
        let mut all = vec![self.hold(update_seq).await?, self.note_of(step)];
        all.extend(passed.iter().map(|step| self.note_of(step)));
        match with {
            With::Nothing => {}
            With::Event(seq) => all.push((CONSUME, params![self.key.as_str(), seq, step.name.as_str()])),
            With::Update(seq, name, data) => {
                all.push((TELL, params![self.key.as_str(), seq, name, data, self.lines.now()]));
            }
        }
        self.held(all).await
    }

    /// Notes an entry in the transaction of what a step has done in a session.
    pub(crate) async fn note_in(
        &self,
        session: &mut Session,
        step: &Step,
        update_seq: i64,
    ) -> std::result::Result<Seen, Halt> {
        let mut seen = Seen::default();
        for (at, (sql, params)) in [self.hold(update_seq).await?, self.note_of(step)].into_iter().enumerate() {
            let reply = say(session, sql, params).await.map_err(|error| match error.sqlstate {
                GUARD => Halt::Lost,
                _ => Halt::unless_repeated(error),
            })?;
            match at {
                0 => seen = read_seen(&reply.rows).ok_or(Halt::Lost)?,
                // The entry is final already: somebody else was here.
                _ if reply.affected == 0 => return Err(Halt::Lost),
                _ => {}
            }
        }
        Ok(seen)
    }

    async fn held(&self, all: Vec<Said>) -> std::result::Result<Seen, Halt> {
        match self.lines.try_together(all).await {
            Ok(replies) => replies.first().and_then(|reply| read_seen(&reply.rows)).ok_or(Halt::Lost),
            Err(error) if matches!(error.sqlstate, GUARD | UNIQUE) => Err(Halt::Lost),
            Err(error) => Err(Halt::Trouble(WorkflowError::of_sql(error))),
        }
    }

    /// The run rests. Entries that are pending are noted with it.
    pub(crate) async fn suspend(
        &self,
        status: Status,
        due_at: Option<i64>,
        seen: i64,
        pending: &[Step],
    ) -> std::result::Result<(), Halt> {
        let now = self.lines.now();
        let rest = params![self.key.as_str(), self.token().await?, status.as_str(), now, due_at, seen];
        let mut all = vec![(SUSPEND, rest)];
        all.extend(pending.iter().map(|step| self.note_of(step)));
        self.ended(all).await
    }

    /// The run has come to its end. Entries that have become final by themselves are noted with it.
    pub(crate) async fn finish(&self, outcome: &Result<String>, passed: &[Step]) -> std::result::Result<(), Halt> {
        let (status, result, error) = match outcome {
            Ok(result) => (Status::Completed, Some(result.clone()), None),
            Err(error) => (Status::Errored, None, Some(error.stored())),
        };
        let token = self.token().await?;
        let end = params![self.key.as_str(), token, status.as_str(), self.lines.now(), result, error];
        let mut all = vec![(FINISH, end)];
        all.extend(passed.iter().map(|step| self.note_of(step)));
        self.ended(all).await
    }

    /// Does what somebody wants. Entries that are pending are noted with it: what waits does not begin to wait anew.
    pub(crate) async fn obey(&self, control: Control, pending: &[Step]) -> std::result::Result<Status, Halt> {
        let status = if control == Control::Terminate { Status::Terminated } else { Status::Paused };
        let params = params![self.key.as_str(), self.token().await?, status.as_str(), self.lines.now()];
        let mut all = vec![(OBEY, params)];
        all.extend(pending.iter().map(|step| self.note_of(step)));
        self.ended(all).await?;
        Ok(status)
    }

    /// A request that ends the lease. Where its guard does not hold, it is found out why.
    async fn ended(&self, all: Vec<Said>) -> std::result::Result<(), Halt> {
        match self.lines.try_together(all).await {
            Ok(replies) if replies.first().is_some_and(|reply| reply.affected == 1) => Ok(()),
            Ok(_) => Err(Halt::Lost),
            Err(error) if error.sqlstate == GUARD => Err(self.why().await?),
            Err(error) => Err(Halt::Trouble(WorkflowError::of_sql(error))),
        }
    }

    async fn why(&self) -> Result<Halt> {
        let reply = self.lines.one(LOOK, params![self.key.as_str()]).await?;
        let is_mine = reply.int(0, 0) == Some(self.token)
            && reply.rows.first().and_then(|row| text(row.get(3)?)) == Some(Status::Running.as_str());
        let control = control_of(reply.rows.first().and_then(|row| text(row.get(1)?)));
        Ok(match (is_mine, control) {
            (false, _) => Halt::Lost,
            (true, Some(control)) => Halt::Asked(control),
            (true, None) => Halt::Again,
        })
    }

    /// Says that the executor lives. False: the run is not its own any more.
    pub(crate) async fn renew(&self) -> Result<bool> {
        if self.planted == Some(Planted::LeaseNotRenewed) {
            return Ok(true);
        }
        let params = params![self.key.as_str(), self.token().await?, self.until()];
        Ok(self.lines.one(RENEW, params).await?.affected == 1)
    }

    pub(crate) async fn events(&self) -> Result<Vec<RunEvent>> {
        self.lines.events(&self.key).await
    }
}

fn read_seen(rows: &[Vec<isles_kernel::value::Value>]) -> Option<Seen> {
    let row = rows.first()?;
    Some(Seen { control: control_of(text(row.first()?)), event_seq: int(row.get(1)?)? })
}

/// An entry that is final.
pub(crate) fn is_final(step: &Step) -> bool {
    step.state != State::Pending
}
