//! What can go wrong with a shard.
//!
//! Two uses of errors. For branching: [`ShardError`], where each variant is one thing a caller does differently.
//! For people: [`SqlError`], with PostgreSQL's codes, which every `ShardError` can be shown as.
//!
//! *May have happened* is a variant of its own: whoever retries it as if nothing had happened doubles a write.

pub use isles_kernel::error::SqlError;
use isles_kernel::names::{GroupName, RoutingVersion};
use isles_kernel::schema::{SchemaError, Unit};

pub type Result<T> = std::result::Result<T, ShardError>;

/// What a caller must do next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// The shard does not serve this unit at the version the caller routed with. Nothing happened. Refresh the
    /// routing to at least `needed` and go where it says; a unit that is closed for a moment stays here.
    #[error("{unit} is not served here at routing version {claimed}, version {needed} is needed")]
    Moved { unit: Unit, claimed: RoutingVersion, needed: RoutingVersion },

    /// The shard may have rows of the group that it does not own, and the request would take them for its own. Nothing
    /// happened. Keep the statements to the buckets that are claimed, and send them again.
    #[error("rows of group {group} are being moved here or away")]
    Strangers { group: GroupName },

    /// The statement is wrong or breaks a constraint. Its transaction is over; nothing of it happened.
    #[error("{0}")]
    Statement(SqlError),

    /// The shard is not the tenant's that the request acts for. Nothing happened, and trying again does not help: whoever
    /// sent it here is wrong. Whose the shard is, is not said.
    #[error("the shard belongs to another tenant")]
    OtherTenant,

    /// Another transaction was in the way. Nothing happened; the same transaction may be tried again.
    #[error("the transaction conflicts with another one: {0}")]
    Conflict(String),

    /// The shard was chosen by an index whose key has been added elsewhere since. Nothing happened; look again.
    #[error("the key has been added to another shard meanwhile")]
    Overtaken,

    /// The caller cancelled. Nothing happened.
    #[error("canceling statement due to user request")]
    Cancelled,

    /// The time limit passed. Nothing happened.
    #[error("canceling statement due to statement timeout")]
    TimedOut,

    /// A limit on rows, bytes or queues was reached. Nothing happened.
    #[error("{what} exceeds the limit of {limit}")]
    Limit { what: &'static str, limit: u64 },

    /// The shard cannot be reached, or cannot be opened, at present. Nothing happened.
    #[error("shard is unavailable: {0}")]
    Unavailable(String),

    /// The disk is full. Nothing happened, and reads go on.
    #[error("could not write: {0}")]
    DiskFull(String),

    /// The commit was on its way when the connection or the disk failed.
    #[error("the transaction may have happened: {0}")]
    MayHaveHappened(String),

    /// The shard has stopped itself, since going on could lose or invent data. It serves again once it has been
    /// reopened. Nothing happened.
    #[error("the shard has stopped: {0}")]
    Stopped(String),

    /// Stored data is damaged.
    #[error("data corrupted: {0}")]
    Corrupt(String),

    /// A reader of the change log asks for what has been trimmed.
    #[error("the change log begins after position {trimmed}; this reader must start over")]
    Trimmed { trimmed: u64 },

    /// Somebody else drives the stream now, or it is not there any more. Nothing happened, and trying again does not help:
    /// whoever sent it has lost its lease, and should stop.
    #[error("another driver has taken the stream over")]
    Superseded,

    /// The caller misuses the shard: an argument out of bounds, a step out of order.
    #[error("{0}")]
    Invalid(String),
}

impl ShardError {
    pub fn statement(sqlstate: &'static str, message: impl Into<String>) -> ShardError {
        ShardError::Statement(SqlError::new(sqlstate, message))
    }

    /// Said when planning has let a statement through that should have carried a tenant, and the shard has not.
    pub(crate) fn beyond_tenant() -> ShardError {
        ShardError::statement("XX000", "a statement reached beyond its tenant")
    }

    pub fn invalid(message: impl Into<String>) -> ShardError {
        ShardError::Invalid(message.into())
    }

    /// Whether the same request would fail again, however often it is sent.
    pub fn is_final(&self) -> bool {
        use ShardError::{Corrupt, Invalid, OtherTenant, Statement};
        matches!(self, Statement(_) | Corrupt(_) | Invalid(_) | OtherTenant)
    }

    /// Whether the same request may be sent again without doubling a write.
    pub fn nothing_happened(&self) -> bool {
        !matches!(self, ShardError::MayHaveHappened(_))
    }

    /// The error as a client sees it.
    pub fn for_people(&self) -> SqlError {
        let message = self.to_string();
        match self {
            ShardError::Statement(error) => error.clone(),
            ShardError::OtherTenant => SqlError::new("XX000", message),
            ShardError::Moved { .. } => SqlError::new("40001", message).with_hint("retry the transaction").of_move(),
            ShardError::Strangers { .. } | ShardError::Conflict(_) | ShardError::Overtaken => {
                SqlError::new("40001", message).with_hint("retry the transaction")
            }
            ShardError::Cancelled | ShardError::TimedOut => SqlError::new("57014", message),
            ShardError::Limit { .. } => SqlError::new("54000", message),
            ShardError::Unavailable(_) => SqlError::new("08006", message),
            ShardError::DiskFull(_) => SqlError::new("53100", message).with_hint("free some disk space and retry"),
            ShardError::MayHaveHappened(_) => {
                SqlError::new("08007", message).with_hint("look whether the change is there before you retry")
            }
            ShardError::Stopped(_) => {
                SqlError::new("57P03", message).with_hint("check the disk, then reopen the shard")
            }
            ShardError::Corrupt(_) => SqlError::new("XX001", message).with_hint("restore the shard from a backup"),
            ShardError::Trimmed { .. } | ShardError::Superseded => SqlError::new("55000", message),
            ShardError::Invalid(_) => SqlError::new("22023", message),
        }
    }
}

impl From<SchemaError> for ShardError {
    fn from(error: SchemaError) -> ShardError {
        let sqlstate = match error {
            SchemaError::NoNamespace(_) => "3F000",
            SchemaError::NamespaceExists(_) => "42P06",
            SchemaError::NoTable(_) => "42P01",
            SchemaError::Exists(_) => "42P07",
            SchemaError::NoColumn { .. } => "42703",
            SchemaError::NoKey { .. } | SchemaError::NoConstraint { .. } => "42704",
            SchemaError::ConstraintExists { .. } => "42710",
            SchemaError::ColumnExists { .. } => "42701",
            SchemaError::Invalid(_) => "42P16",
        };
        ShardError::statement(sqlstate, error.to_string())
    }
}
