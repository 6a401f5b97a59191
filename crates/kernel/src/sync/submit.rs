//! Commands that a client submits, and what the server says to them.

use super::log::OutboxPage;
use super::names::{
    Cursor, PartitionId, RequestId, RowKey, SyncNameError, Values, Version, check_table, check_text, within,
};
use super::predicate::Predicate;
use crate::names::MAX_NAME_BYTES;
use serde::{Deserialize, Serialize};

/// The most commands of one request: they are one transaction.
pub const MAX_COMMANDS: usize = 100;
/// The most rows that a command says it has read.
pub const MAX_READS: usize = 1_000;
/// The most conditions that a command says it has read by.
pub const MAX_SCOPES: usize = 32;
/// The largest request, as JSON.
pub const MAX_SUBMIT_BYTES: usize = 1 << 20;
/// The most conflicts of one answer; more would not change what the client does.
pub const MAX_CONFLICTS: usize = 100;

/// Rows of a table that a command has read by a condition: nothing may have entered, left or changed among them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    pub schema: String,
    pub table: String,
    #[serde(rename = "where")]
    pub predicate: Predicate,
}

impl Scope {
    fn check(&self) -> Result<(), SyncNameError> {
        check_table(&self.schema, &self.table)?;
        self.predicate.check()
    }
}

/// Something to do, by its name. The server runs the fragment's own code for it; what the client showed meanwhile
/// stays with the client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The schema of the fragment that knows the command; empty for one without a namespace.
    pub schema: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub input: serde_json::Value,
    /// Rows that the client has looked at to decide on this. If one has changed since the cursor, that is a conflict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<RowKey>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<Scope>,
}

impl Command {
    pub fn check(&self) -> Result<(), SyncNameError> {
        check_table(&self.schema, &self.name)?;
        check_text("command name", &self.name)?;
        within("command name", MAX_NAME_BYTES, "bytes", self.name.len())?;
        within("command", MAX_READS, "read rows", self.reads.len())?;
        within("command", MAX_SCOPES, "scopes", self.scopes.len())?;
        self.scopes.iter().try_for_each(Scope::check)
    }

    /// Whether a row's change stands against what this command has read, given the row before and after it. A row that
    /// was deleted has no `after`, a new one no `before`: what left a scope counts as much as what entered it.
    pub fn against(&self, key: &RowKey, before: Option<&Values>, after: Option<&Values>) -> Option<ConflictCode> {
        if self.reads.contains(key) {
            return Some(ConflictCode::ReadConflict);
        }
        let within = |scope: &Scope| [before, after].into_iter().flatten().any(|row| scope.predicate.matches(row));
        let in_scope = |scope: &&Scope| scope.schema == key.schema && scope.table == key.table;
        self.scopes.iter().filter(in_scope).any(within).then_some(ConflictCode::ScopeConflict)
    }
}

/// Why a request is not one. Answered with 400, and 413 for its size.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSubmit {
    #[error("a request has at most {MAX_SUBMIT_BYTES} bytes, this one has {0}")]
    TooLarge(usize),
    #[error("the request is not of the form it should have: {0}")]
    Form(#[from] serde_json::Error),
    #[error("a request has 1 to {MAX_COMMANDS} commands, this one has {0}")]
    Commands(usize),
    #[error("command {at}: {error}")]
    Command { at: usize, error: SyncNameError },
}

/// Commands that are applied together, or not at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubmitRequest {
    /// Sent again with every retry, and with the same body.
    pub request_id: RequestId,
    pub partition: PartitionId,
    /// What the client had seen: entries after it may be in conflict.
    pub cursor: Cursor,
    pub commands: Vec<Command>,
}

impl SubmitRequest {
    /// Reads a request that somebody sent, within its limits.
    pub fn read(json: &[u8]) -> Result<SubmitRequest, InvalidSubmit> {
        if json.len() > MAX_SUBMIT_BYTES {
            return Err(InvalidSubmit::TooLarge(json.len()));
        }
        let request: SubmitRequest = serde_json::from_slice(json)?;
        request.check()?;
        Ok(request)
    }

    pub fn check(&self) -> Result<(), InvalidSubmit> {
        if self.commands.is_empty() || self.commands.len() > MAX_COMMANDS {
            return Err(InvalidSubmit::Commands(self.commands.len()));
        }
        for (at, command) in self.commands.iter().enumerate() {
            command.check().map_err(|error| InvalidSubmit::Command { at, error })?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// All commands are applied.
    Applied,
    /// None is, and none will be: the answer is on record.
    Conflict,
}

/// Why a command was not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConflictCode {
    /// A row that it would write has changed since the cursor.
    WriteConflict,
    /// A row that it has read has changed or is gone.
    ReadConflict,
    /// A row has entered, left or changed within one of its scopes.
    ScopeConflict,
    /// A check of its own unit of work did not hold.
    CheckFailed,
    /// A key that must be unique is taken, or a reference leads nowhere.
    Constraint,
    /// The fragment's code said no; the message is its own.
    Rejected,
    InvalidInput,
    UnknownCommand,
    /// A newer server's reason; it is final, as the others are.
    #[serde(other)]
    Other,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Conflict {
    /// Which command of the request, from 0.
    pub command: usize,
    pub code: ConflictCode,
    /// The row it is about, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<RowKey>,
    /// The entry that stands against it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// For people, and without anything of another tenant's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What became of a request, and what has happened since its cursor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubmitResponse {
    pub request_id: RequestId,
    pub status: Status,
    /// The request was on record already, and this is its recorded outcome.
    #[serde(default)]
    pub duplicate: bool,
    /// The entry that it made; none if it changed no row, or was not applied.
    #[serde(default)]
    pub entry: Option<Cursor>,
    /// Empty if it was applied. A command that is not among these was not applied either, and may be sent again
    /// under another request id.
    #[serde(default)]
    pub conflicts: Vec<Conflict>,
    /// Entries after the request's cursor, as many as fit. None of them if the cursor is below the floor by now.
    #[serde(flatten)]
    pub page: OutboxPage,
}
