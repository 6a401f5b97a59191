//! Commands, from the draft of an application to their outcome.
//!
//! ```text
//! Draft ─► Queued ─► Pending (in the one request that is under way) ─► Confirmed
//!            ▲           │ conflict that may be tried again
//!            └───────────┤
//!                        └─► GivenUp, kept until the application acknowledges it
//! ```

use crate::row::Edit;
use isles_kernel::sync::{
    Command, Conflict, ConflictCode, Cursor, PartitionId, Refusal, RequestId, RowKey, SubmitRequest, SyncNameError,
    Version,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most commands that wait, or were given up and not acknowledged. A device that is offline for weeks makes some thousands.
pub const MAX_QUEUED: usize = 10_000;
/// The most rows that one command shows edits of; they are played again with every change beneath them.
pub const MAX_EDITS: usize = 1_000;
/// The largest command with its edits, as JSON: a request of one fits the wire's limit with room for its head.
pub const MAX_COMMAND_BYTES: usize = isles_kernel::sync::MAX_SUBMIT_BYTES - 4096;
/// How often a command is submitted anew after a conflict that is no fault of its own. Each time it has seen what stood
/// against it, so that more than a few in a row mean that it will not get through.
pub const MAX_ATTEMPTS: u32 = 10;

/// The number of a command in its replica, in the order of submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CommandId(pub u64);

impl fmt::Display for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What to do when something that a command has read was changed by others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// Give it up and tell the application, which may ask its user.
    #[default]
    GiveUp,
    /// Submit it again over what is there now.
    Retry,
}

/// What an application wants done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Draft {
    pub command: Command,
    /// What to show until the outcome is known.
    pub edits: Vec<Edit>,
    pub on_conflict: OnConflict,
}

/// Why a draft is not taken. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum RefusedDraft {
    #[error(transparent)]
    Invalid(#[from] SyncNameError),
    #[error("a command shows at most {MAX_EDITS} edits, this one has {0}")]
    TooManyEdits(usize),
    #[error("a command has at most {MAX_COMMAND_BYTES} bytes as JSON, this one has {0}")]
    TooLarge(usize),
    #[error("the command cannot be written as JSON: {0}")]
    Form(#[from] serde_json::Error),
    #[error("{MAX_QUEUED} commands wait for the server, or were given up and wait to be acknowledged")]
    QueueFull,
}

impl Draft {
    pub(crate) fn check(&self) -> Result<(), RefusedDraft> {
        self.command.check()?;
        if self.edits.len() > MAX_EDITS {
            return Err(RefusedDraft::TooManyEdits(self.edits.len()));
        }
        match serde_json::to_vec(self)?.len() {
            bytes if bytes > MAX_COMMAND_BYTES => Err(RefusedDraft::TooLarge(bytes)),
            _ => Ok(()),
        }
    }
}

/// A command that waits, or is in the pending request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Queued {
    pub(crate) draft: Draft,
    /// How often it was in a request that met a conflict.
    pub(crate) attempts: u32,
    /// The server refused a request that it was in, without a word on which command was wrong. It goes alone now.
    pub(crate) alone: bool,
}

/// The one request that is under way. It is kept before it is sent, so that it is sent again after a crash with the
/// same id and body.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pending {
    pub(crate) request: SubmitRequest,
    pub(crate) commands: Vec<CommandId>,
    pub(crate) answer: Applied,
}

/// How far a pending request is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Applied {
    /// No answer yet: it may have been applied, or not.
    Unknown,
    /// It has been, by this entry. Its edits are shown until the rows have come this far, so that nothing flickers.
    At(Cursor),
}

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "few of them are there at a time, and none for long")]
pub enum Outcome {
    Confirmed {
        id: CommandId,
        /// None if it changed no row.
        entry: Option<Cursor>,
    },
    GivenUp(GivenUp),
}

/// A command that was not applied, or of which it is not known. It is kept until the application acknowledges it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GivenUp {
    pub id: CommandId,
    pub draft: Draft,
    pub reason: Reason,
    /// Where it was meant for.
    pub partition: Option<PartitionId>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The server found a conflict, and the command was not to be tried again, or too often already.
    Conflict(Conflict),
    /// Something that it had read was changed before it was sent.
    Stale { code: ConflictCode, key: RowKey, version: Version },
    /// As before; the change was found when the rows were read anew.
    StaleAfterResync { code: ConflictCode, key: RowKey },
    /// The server refused it for what it is.
    Refused(Refusal),
    /// It was sent, no answer came, and the server's records do not reach back so far: it may have been applied.
    OutcomeUnknown(RequestId),
    /// The replica belongs to another partition now. With a request id it had been sent and may have been applied.
    PartitionChanged(Option<RequestId>),
}

impl Reason {
    /// Whether the command may have been applied nevertheless. Submitting it again could do it twice.
    pub fn may_have_happened(&self) -> bool {
        matches!(self, Reason::OutcomeUnknown(_) | Reason::PartitionChanged(Some(_)))
    }
}

/// Where a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandState {
    Queued,
    Pending,
    GivenUp,
    /// Neither here nor given up: confirmed, or never submitted, or acknowledged.
    Gone,
}
