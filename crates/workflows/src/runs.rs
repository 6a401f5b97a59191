//! Runs as those who manage them see them.

use crate::error::{Result, WorkflowError};
use crate::lines::{int, missing, text};
use isles_kernel::runs::journal::{Kind, Place, State};
use isles_kernel::runs::names::RunKey;
use isles_kernel::runs::status::Status;
use isles_kernel::value::Value;
use serde_json::{Value as Json, json};

/// Bytes of a run's input: it is read with each execution.
pub const MAX_INPUT_BYTES: usize = 1 << 20;
/// Bytes of an event's payload.
pub const MAX_EVENT_BYTES: usize = 256 << 10;
/// Bytes of one result or update: a row that a shard can write in a moment.
pub const MAX_RESULT_BYTES: usize = 8 << 20;
/// Bytes of a run's attributes: they are in its index entry.
pub const MAX_ATTRIBUTES_BYTES: usize = 8 << 10;
/// Events that wait in a run's queue: whoever sends more is told to wait.
pub const MAX_QUEUED_EVENTS: usize = 10_000;

/// What a run that was deleted is until nothing of it can come late.
pub(crate) const DELETED: &str = "deleted";

/// How a run is created, besides its type, its id and its input.
#[derive(Debug, Clone, Default)]
pub struct Create {
    /// A JSON object of values to list runs by.
    pub attributes: Option<Json>,
    /// The key of the run that waits for it.
    #[doc(hidden)]
    pub parent: Option<String>,
}

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub kind: String,
    pub id: String,
    pub status: Status,
    /// Rises with each change of the status.
    pub version: i64,
    pub created_at: i64,
    pub updated_at: i64,
    pub attributes: Json,
    pub input: Json,
    pub result: Option<Json>,
    pub error: Option<WorkflowError>,
    /// What its executor has been asked for and has not done yet.
    pub control: Option<String>,
    /// How often it was started, from 1.
    pub attempt: i64,
    /// When it is due, if a time is waited for.
    pub due_at: Option<i64>,
    pub parent: Option<String>,
    pub(crate) executor_token: i64,
    pub(crate) event_seq: i64,
    pub(crate) update_seq: i64,
    pub(crate) recoveries: i64,
    pub(crate) input_hash: String,
    pub(crate) is_deleted: bool,
}

/// The columns of [`Run::read`], in order.
macro_rules! run_columns {
    () => {
        "type, id, status, version, created_at, updated_at, attributes, executor_token, due_at, control, event_seq, \
         update_seq, recoveries, attempt, input, input_hash, result, error, parent"
    };
}
pub(crate) use run_columns;

impl Run {
    pub(crate) fn read(row: &[Value]) -> Result<Run> {
        let number = |at: usize| row.get(at).and_then(int);
        let words = |at: usize| row.get(at).and_then(text);
        let status = words(2).ok_or_else(|| missing("status"))?;
        let is_deleted = status == DELETED;
        let status = if is_deleted { Status::Terminated } else { status.parse().map_err(|_| missing("status"))? };
        let json = |at: usize| words(at).and_then(|text| serde_json::from_str(text).ok());
        Ok(Run {
            kind: words(0).ok_or_else(|| missing("type"))?.into(),
            id: words(1).ok_or_else(|| missing("id"))?.into(),
            status,
            version: number(3).ok_or_else(|| missing("version"))?,
            created_at: number(4).unwrap_or_default(),
            updated_at: number(5).unwrap_or_default(),
            attributes: json(6).unwrap_or_else(|| json!({})),
            executor_token: number(7).ok_or_else(|| missing("token"))?,
            due_at: number(8),
            control: words(9).map(str::to_owned),
            event_seq: number(10).unwrap_or_default(),
            update_seq: number(11).unwrap_or_default(),
            recoveries: number(12).unwrap_or_default(),
            attempt: number(13).unwrap_or(1),
            input: json(14).unwrap_or(Json::Null),
            input_hash: words(15).unwrap_or_default().into(),
            result: json(16),
            error: words(17).map(WorkflowError::from_stored),
            parent: words(18).map(str::to_owned),
            is_deleted,
        })
    }

    pub(crate) fn key(&self) -> Result<RunKey> {
        RunKey::new(&self.kind, &self.id).map_err(crate::error::bad_name)
    }

    pub fn to_json(&self) -> Json {
        json!({
            "type": self.kind, "id": self.id, "status": self.status.as_str(), "version": self.version,
            "createdAt": self.created_at, "updatedAt": self.updated_at, "attributes": self.attributes,
            "payload": self.input, "result": self.result, "error": self.error.as_ref().map(WorkflowError::to_json),
            "control": self.control, "attempt": self.attempt, "dueAt": self.due_at,
            "parent": self.parent,
        })
    }
}

/// An entry of a run's journal.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub place: Place,
    pub name: String,
    pub kind: Kind,
    pub state: State,
    pub attempts: i64,
    /// JSON, as it was kept.
    pub result: Option<String>,
    pub error: Option<WorkflowError>,
    pub wake_at: Option<i64>,
    pub started_at: i64,
    pub ended_at: Option<i64>,
    /// What became of earlier attempts.
    pub history: Vec<Json>,
}

/// The columns of [`Step::read`], in order.
macro_rules! step_columns {
    () => {
        "branch, ordinal, name, kind, state, attempts, result, error, wake_at, started_at, ended_at, history"
    };
}
pub(crate) use step_columns;

impl Step {
    pub(crate) fn read(row: &[Value]) -> Result<Step> {
        let number = |at: usize| row.get(at).and_then(int);
        let words = |at: usize| row.get(at).and_then(text);
        let ordinal = number(1).and_then(|ordinal| u32::try_from(ordinal).ok());
        Ok(Step {
            place: Place {
                branch: words(0).unwrap_or_default().into(),
                ordinal: ordinal.ok_or_else(|| missing("ordinal"))?,
            },
            name: words(2).unwrap_or_default().into(),
            kind: words(3).and_then(|kind| kind.parse().ok()).ok_or_else(|| missing("kind"))?,
            state: words(4).and_then(|state| state.parse().ok()).ok_or_else(|| missing("state"))?,
            attempts: number(5).unwrap_or_default(),
            result: words(6).map(str::to_owned),
            error: words(7).map(WorkflowError::from_stored),
            wake_at: number(8),
            started_at: number(9).unwrap_or_default(),
            ended_at: number(10),
            history: words(11).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default(),
        })
    }

    pub fn to_json(&self) -> Json {
        let duration = self.ended_at.map(|ended| ended - self.started_at);
        json!({
            "name": self.name, "branch": self.place.branch, "ordinal": self.place.ordinal,
            "type": self.kind.as_str(), "status": self.state.as_str(), "attempts": self.attempts,
            "startedAt": self.started_at, "endedAt": self.ended_at, "duration": duration, "wakeAt": self.wake_at,
            "result": self.result.as_ref().and_then(|text| serde_json::from_str::<Json>(text).ok()),
            "error": self.error.as_ref().map(WorkflowError::to_json), "retryHistory": self.history,
        })
    }
}

/// Something that was sent to a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunEvent {
    pub seq: i64,
    pub name: String,
    /// JSON.
    pub payload: String,
    pub received_at: i64,
}

/// Something that a run has told, and that is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Update {
    /// None if it is not kept.
    pub seq: Option<i64>,
    pub name: String,
    /// JSON.
    pub data: String,
    pub at: i64,
}

impl Update {
    pub fn to_json(&self) -> Json {
        let data: Json = serde_json::from_str(&self.data).unwrap_or(Json::Null);
        json!({ "id": self.seq, "event": self.name, "data": data, "at": self.at })
    }
}
