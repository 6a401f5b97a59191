//! What can go wrong.
//!
//! An [`Error`] has one variant for each thing that a caller does differently. For people each has a code, a SQLSTATE, an
//! HTTP status, a message and, where there is something to do, a hint. Texts say nothing of other shards: what belongs to
//! another is told in the words of what is not there.

use isles_kernel::error::SqlError;
use std::fmt;

pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The database ended the transaction in favour of another. Nothing has happened; the unit of work may be tried again.
    #[error("{0}")]
    Conflict(String),
    /// A check did not hold: a row is not as it was read. Nothing has happened; the unit of work may be tried again.
    #[error("{0}")]
    CheckFailed(String),
    /// What was asked is wrong, or not allowed. Nothing has happened.
    #[error("{0}")]
    Refused(Refusal),
    /// The data would break a rule of the schema. Nothing has happened.
    #[error("{message}")]
    Constraint { rule: Rule, message: String },
    /// The commit was sent, and no answer came.
    #[error("the commit may have happened: {0}")]
    MayHaveHappened(String),
    /// The database failed. Nothing has happened.
    #[error("{0}")]
    Database(SqlError),
}

/// A rule of the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Unique,
    Reference,
    NotNull,
    Check,
}

/// Why something was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: Code,
    pub message: String,
    pub hint: Option<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Names of refusals, as clients see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    ShardUnset,
    ShardInvalid,
    ShardMixed,
    ShardNotBound,
    Unauthenticated,
    StrategyMismatch,
    ResolverRequired,
    DirectAccess,
    GlobalScope,
    HiddenColumn,
    SchemaInvalid,
    SchemaCollision,
    SchemaIsOlder,
    UnknownTable,
    UnknownColumn,
    UnknownIndex,
    InvalidValue,
    InvalidQuery,
    InvalidCursor,
    InvalidRequest,
    UnknownCommand,
    RequestIdReused,
    WrongPartition,
    ResyncRequired,
    ClientFarBehind,
    RetryPolicy,
    UnknownHook,
    AddressRefused,
    TooLarge,
    NotFound,
}

impl Code {
    pub fn as_str(self) -> &'static str {
        self.parts().0
    }

    /// Name, SQLSTATE, HTTP status.
    fn parts(self) -> (&'static str, &'static str, u16) {
        match self {
            Code::ShardUnset => ("shard_unset", "55000", 400),
            Code::ShardInvalid => ("shard_invalid", "22023", 400),
            Code::ShardMixed => ("shard_mixed", "55000", 400),
            Code::ShardNotBound => ("shard_not_bound", "42501", 403),
            Code::Unauthenticated => ("unauthenticated", "28000", 401),
            Code::StrategyMismatch => ("strategy_mismatch", "55000", 500),
            Code::ResolverRequired => ("resolver_required", "55000", 500),
            Code::DirectAccess => ("direct_access_disabled", "42501", 500),
            Code::GlobalScope => ("global_scope", "42501", 403),
            Code::HiddenColumn => ("hidden_column", "42703", 400),
            Code::SchemaInvalid => ("schema_invalid", "42P16", 500),
            Code::SchemaCollision => ("schema_collision", "42P07", 500),
            Code::SchemaIsOlder => ("schema_is_older", "55000", 500),
            Code::UnknownTable => ("unknown_table", "42P01", 400),
            Code::UnknownColumn => ("unknown_column", "42703", 400),
            Code::UnknownIndex => ("unknown_index", "42704", 400),
            Code::InvalidValue => ("invalid_value", "22023", 400),
            Code::InvalidQuery => ("invalid_query", "42601", 400),
            Code::InvalidCursor => ("invalid_cursor", "22023", 400),
            Code::InvalidRequest => ("invalid_request", "22023", 400),
            Code::UnknownCommand => ("unknown_command", "42883", 400),
            Code::RequestIdReused => ("request_reused", "23505", 422),
            Code::WrongPartition => ("wrong_partition", "55000", 409),
            Code::ResyncRequired => ("resync_required", "55000", 410),
            Code::ClientFarBehind => ("client_far_behind", "55000", 409),
            Code::RetryPolicy => ("retry_policy", "22023", 500),
            Code::UnknownHook => ("unknown_hook", "42883", 500),
            Code::AddressRefused => ("address_refused", "42501", 403),
            Code::TooLarge => ("too_large", "54000", 413),
            Code::NotFound => ("not_found", "02000", 404),
        }
    }
}

/// A refusal as an error.
pub fn refused(code: Code, message: impl Into<String>) -> Error {
    Error::Refused(Refusal { code, message: message.into(), hint: None })
}

impl Error {
    /// Says what to do about a refusal.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Error {
        if let Error::Refused(refusal) = &mut self {
            refusal.hint = Some(hint.into());
        }
        self
    }

    pub fn refusal(&self) -> Option<Code> {
        match self {
            Error::Refused(refusal) => Some(refusal.code),
            _ => None,
        }
    }

    pub fn is_conflict(&self) -> bool {
        matches!(self, Error::Conflict(_) | Error::CheckFailed(_))
    }

    pub fn sqlstate(&self) -> &'static str {
        match self {
            Error::Conflict(_) | Error::CheckFailed(_) => "40001",
            Error::Refused(refusal) => refusal.code.parts().1,
            Error::Constraint { rule: Rule::Unique, .. } => "23505",
            Error::Constraint { rule: Rule::Reference, .. } => "23503",
            Error::Constraint { rule: Rule::NotNull, .. } => "23502",
            Error::Constraint { rule: Rule::Check, .. } => "23514",
            Error::MayHaveHappened(_) => "08007",
            Error::Database(error) => error.sqlstate,
        }
    }

    /// Status and code of an HTTP answer.
    pub fn http(&self) -> (u16, &'static str) {
        match self {
            Error::Conflict(_) | Error::CheckFailed(_) => (409, "conflict"),
            Error::Refused(refusal) => (refusal.code.parts().2, refusal.code.as_str()),
            Error::Constraint { .. } => (422, "constraint"),
            Error::MayHaveHappened(_) => (503, "may_have_happened"),
            Error::Database(_) => (500, "database_error"),
        }
    }

    /// What an HTTP client is told. A database's own words may name what is not the client's.
    pub fn public_message(&self) -> String {
        match self {
            Error::Database(_) => "the database failed".into(),
            Error::MayHaveHappened(_) => "it is not known whether the change was made".into(),
            other => other.to_string(),
        }
    }
}

impl From<SqlError> for Error {
    fn from(error: SqlError) -> Error {
        let rule = match error.sqlstate {
            "23505" => Rule::Unique,
            "23503" => Rule::Reference,
            "23502" => Rule::NotNull,
            "23514" => Rule::Check,
            "40001" | "40P01" | "55P03" => return Error::Conflict(error.message),
            "08007" => return Error::MayHaveHappened(error.message),
            _ => return Error::Database(error),
        };
        Error::broken(rule)
    }
}

impl Error {
    /// A constraint that does not hold, in the same words on every database and for every shard.
    pub fn broken(rule: Rule) -> Error {
        let message = match rule {
            Rule::Unique => "a row with this key is there already",
            Rule::Reference => "a referenced row is not there, or a row that others refer to would go",
            Rule::NotNull => "a column that needs a value has none",
            Rule::Check => "a value is not allowed by the schema",
        };
        Error::Constraint { rule, message: message.into() }
    }
}
