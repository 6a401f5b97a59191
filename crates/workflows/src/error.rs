//! What goes wrong, with codes and HTTP statuses.
//!
//! A [`WorkflowError`] is what a workflow's code returns, what is kept of a run that has failed, and what the interfaces
//! answer. Any error of the standard library's kind becomes one, so that code can use `?`.

use isles_kernel::error::SqlError;
use isles_kernel::runs::journal::Mismatch;
use isles_kernel::runs::names::BadName;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use std::fmt;

/// Bytes of a message that are kept: an error must not be larger than what it is about.
const MAX_MESSAGE_BYTES: usize = 16 << 10;

/// What kind of error it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    WorkflowNotFound,
    /// There is such a run, with another input.
    WorkflowAlreadyExists,
    WorkflowTypeUnknown,
    ValidationError,
    /// A step has failed, and is not tried again.
    StepFailed,
    /// A step has failed as often as it may.
    StepRetryExhausted,
    EventTimeout,
    UpdateTimeout,
    EventInvalid,
    /// The run has ended, or is not in a state in which this can be done.
    WorkflowNotRunning,
    ResourceNotFound,
    /// The code does something else than the journal says.
    NonDeterminism,
    /// What a run keeps has grown beyond its limit.
    ResultTooLarge,
    /// Another executor has the run.
    LeaseLost,
    /// The configuration of a type cannot be used.
    InvalidSchema,
    /// The database does not answer; the same may be asked again.
    Unavailable,
    InternalError,
}

impl Code {
    pub const ALL: [Code; 17] = [
        Code::WorkflowNotFound,
        Code::WorkflowAlreadyExists,
        Code::WorkflowTypeUnknown,
        Code::ValidationError,
        Code::StepFailed,
        Code::StepRetryExhausted,
        Code::EventTimeout,
        Code::UpdateTimeout,
        Code::EventInvalid,
        Code::WorkflowNotRunning,
        Code::ResourceNotFound,
        Code::NonDeterminism,
        Code::ResultTooLarge,
        Code::LeaseLost,
        Code::InvalidSchema,
        Code::Unavailable,
        Code::InternalError,
    ];

    pub fn status(self) -> u16 {
        match self {
            Code::WorkflowNotFound | Code::ResourceNotFound => 404,
            Code::WorkflowAlreadyExists | Code::WorkflowNotRunning | Code::LeaseLost => 409,
            Code::WorkflowTypeUnknown | Code::ValidationError | Code::EventInvalid | Code::InvalidSchema => 400,
            Code::EventTimeout | Code::UpdateTimeout => 408,
            Code::ResultTooLarge => 413,
            Code::Unavailable => 503,
            Code::StepFailed | Code::StepRetryExhausted | Code::NonDeterminism | Code::InternalError => 500,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Code::WorkflowNotFound => "WORKFLOW_NOT_FOUND",
            Code::WorkflowAlreadyExists => "WORKFLOW_ALREADY_EXISTS",
            Code::WorkflowTypeUnknown => "WORKFLOW_TYPE_UNKNOWN",
            Code::ValidationError => "VALIDATION_ERROR",
            Code::StepFailed => "STEP_FAILED",
            Code::StepRetryExhausted => "STEP_RETRY_EXHAUSTED",
            Code::EventTimeout => "EVENT_TIMEOUT",
            Code::UpdateTimeout => "UPDATE_TIMEOUT",
            Code::EventInvalid => "EVENT_INVALID",
            Code::WorkflowNotRunning => "WORKFLOW_NOT_RUNNING",
            Code::ResourceNotFound => "RESOURCE_NOT_FOUND",
            Code::NonDeterminism => "NON_DETERMINISM",
            Code::ResultTooLarge => "RESULT_TOO_LARGE",
            Code::LeaseLost => "LEASE_LOST",
            Code::InvalidSchema => "INVALID_SCHEMA",
            Code::Unavailable => "UNAVAILABLE",
            Code::InternalError => "INTERNAL_ERROR",
        }
    }
}

/// An error of a workflow. It is no [`std::error::Error`] itself, so that every such error can become one.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowError {
    pub code: Code,
    pub message: String,
    pub hint: Option<String>,
    pub details: Option<Json>,
    /// Whether the step that returned it is tried again.
    pub retriable: bool,
}

pub type Result<T> = std::result::Result<T, WorkflowError>;

impl WorkflowError {
    pub fn new(code: Code, message: impl Into<String>) -> WorkflowError {
        let mut message: String = message.into();
        if message.len() > MAX_MESSAGE_BYTES {
            let end = (0..=MAX_MESSAGE_BYTES).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
            message.truncate(end);
        }
        WorkflowError { code, message, hint: None, details: None, retriable: true }
    }

    /// A step failed, and may be tried again.
    pub fn failed(message: impl Into<String>) -> WorkflowError {
        WorkflowError::new(Code::StepFailed, message)
    }

    /// A step failed, and would fail again.
    pub fn non_retriable(message: impl Into<String>) -> WorkflowError {
        WorkflowError { retriable: false, ..WorkflowError::failed(message) }
    }

    pub fn invalid(message: impl Into<String>) -> WorkflowError {
        WorkflowError { retriable: false, ..WorkflowError::new(Code::ValidationError, message) }
    }

    pub fn not_found(kind: &str, id: &str) -> WorkflowError {
        WorkflowError::new(Code::WorkflowNotFound, format!("there is no run \"{id}\" of \"{kind}\""))
    }

    pub fn unknown_type(kind: &str) -> WorkflowError {
        WorkflowError::new(Code::WorkflowTypeUnknown, format!("Unknown workflow type: \"{kind}\""))
            .with_hint("register it, in code or by a worker")
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> WorkflowError {
        self.hint = Some(hint.into());
        self
    }

    pub fn with_details(mut self, details: Json) -> WorkflowError {
        self.details = Some(details);
        self
    }

    /// What a function of the schema `isles` said, which names its code.
    pub(crate) fn of_procedure(error: SqlError) -> WorkflowError {
        let named =
            error.detail.as_deref().and_then(|detail| Code::ALL.into_iter().find(|code| code.as_str() == detail));
        match named {
            Some(code) => WorkflowError { hint: error.hint, ..WorkflowError::new(code, error.message) },
            None => WorkflowError::of_sql(error),
        }
    }

    /// What the database said.
    pub(crate) fn of_sql(error: SqlError) -> WorkflowError {
        let code = match &error.sqlstate[..2] {
            "08" | "40" | "53" | "55" | "57" | "58" => Code::Unavailable,
            "22" | "42" => Code::ValidationError,
            _ => Code::InternalError,
        };
        let mut said = WorkflowError::new(code, format!("{} ({})", error.message, error.sqlstate));
        said.hint = error.hint;
        said
    }

    /// As interfaces show it.
    pub fn to_json(&self) -> Json {
        let mut json = json!({
            "__workflowError": true,
            "code": self.code.as_str(),
            "message": self.message,
            "status": self.code.status(),
        });
        if let Some(hint) = &self.hint {
            json["hint"] = json!(hint);
        }
        if let Some(details) = &self.details {
            json["details"] = details.clone();
        }
        json
    }

    /// As it is kept.
    pub(crate) fn stored(&self) -> String {
        let mut json = self.to_json();
        json["retriable"] = json!(self.retriable);
        json.to_string()
    }

    /// As it was kept.
    pub(crate) fn from_stored(text: &str) -> WorkflowError {
        let json: Json = serde_json::from_str(text).unwrap_or_else(|_| json!({ "message": text }));
        let named = json["code"].as_str();
        let code = Code::ALL.into_iter().find(|code| Some(code.as_str()) == named).unwrap_or(Code::InternalError);
        WorkflowError {
            code,
            message: json["message"].as_str().unwrap_or_default().into(),
            hint: json["hint"].as_str().map(str::to_owned),
            details: json.get("details").cloned(),
            retriable: json["retriable"].as_bool().unwrap_or(false),
        }
    }
}

impl fmt::Display for WorkflowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

impl<E: std::error::Error> From<E> for WorkflowError {
    fn from(error: E) -> WorkflowError {
        WorkflowError::failed(error.to_string())
    }
}

pub(crate) fn bad_name(error: BadName) -> WorkflowError {
    WorkflowError::invalid(error.to_string())
}

pub(crate) fn mismatch(error: &Mismatch) -> WorkflowError {
    let code = match error {
        Mismatch::Duplicate { .. } | Mismatch::TooMany => Code::ValidationError,
        Mismatch::NonDeterminism { .. } | Mismatch::EndedEarly { .. } => Code::NonDeterminism,
    };
    WorkflowError { retriable: false, ..WorkflowError::new(code, error.to_string()) }
}
