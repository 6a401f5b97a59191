//! Sessions: what a connection, an HTTP request or an embedding program runs statements with.
//!
//!     statements(text) → one [`Prepared`] each → execute(parameters) → [`Answer`]
//!
//! The protocol above decides what a transaction's borders are when the client has not said: it calls
//! [`Session::begin_implicit`] before the first statement of a group that must stand or fall together (a simple query
//! of several statements, a pipeline up to its Sync), and [`Session::end_implicit`] after the last one. A statement
//! that is alone needs neither, and is cheaper for it.

use isles_engine::shard::CancelToken;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::tree::Field;
use isles_sql::types::Oid;
use std::sync::Arc;

pub type Result<T> = std::result::Result<T, SqlError>;

/// Who logged in.
#[derive(Debug, Clone)]
pub struct Login {
    pub user: String,
    pub database: String,
    /// Settings of the startup message (`application_name`, `options=-c …`), applied as `SET` would.
    pub settings: Vec<(String, String)>,
}

/// As ReadyForQuery tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Idle,
    InTransaction,
    Failed,
}

/// A statement that has been parsed, bound and planned. Executing it again costs none of that.
pub struct Prepared {
    pub sql: Arc<str>,
    /// The types of its parameters, in order.
    pub params: Vec<Oid>,
    /// The columns of its rows; None for a statement that returns none.
    pub fields: Option<Vec<Field>>,
}

/// What a statement answered.
pub enum Answer {
    /// Rows, then a tag such as `SELECT 3`.
    Rows(Rows),
    /// No rows, and a tag such as `INSERT 0 1`.
    Done { tag: String },
    /// Send CopyInResponse, then feed what the client sends.
    CopyIn(CopyIn),
    /// Send CopyOutResponse, then what it gives.
    CopyOut(CopyOut),
    /// The statement was empty.
    Empty,
}

/// Rows that arrive piecemeal. Dropping it ends the statement.
pub struct Rows {
    pub fields: Vec<Field>,
}

impl Rows {
    /// At most `limit` more rows; fewer only at the end or when a batch is smaller. None when there are no more.
    pub async fn next(&mut self, _limit: usize) -> Result<Option<Vec<Vec<Value>>>> {
        Ok(None)
    }

    /// The tag, once the rows have been read: `SELECT n`, or `INSERT 0 n` and its kin for RETURNING.
    pub fn tag(&self) -> String {
        String::new()
    }
}

/// Which format COPY speaks; the options of the others are in the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFormat {
    Text,
    Csv,
    Binary,
}

pub struct CopyIn {
    pub format: CopyFormat,
    pub columns: usize,
}

impl CopyIn {
    /// Takes some bytes, cut anywhere.
    pub async fn write(&mut self, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    /// The client has sent everything. Returns the tag.
    pub async fn finish(self) -> Result<String> {
        Ok("COPY 0".into())
    }

    /// The client gave up; nothing is kept.
    pub async fn fail(self, reason: &str) -> SqlError {
        SqlError::new("57014", format!("COPY from stdin failed: {reason}"))
    }
}

pub struct CopyOut {
    pub format: CopyFormat,
    pub columns: usize,
}

impl CopyOut {
    /// The next bytes, whole lines of them. None at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    pub fn tag(&self) -> String {
        "COPY 0".into()
    }
}

/// One client's session.
pub struct Session {}

impl Session {
    /// Splits a text into its statements; each is prepared and executed in turn. An empty text has none.
    pub fn statements(&self, _sql: &str) -> Result<Vec<Arc<str>>> {
        Err(SqlError::unsupported("not built"))
    }

    /// Parses, binds and plans one statement. `params` are the types that the client gave; 0 where it gave none.
    pub async fn prepare(&mut self, _sql: &str, _params: &[Oid]) -> Result<Arc<Prepared>> {
        Err(SqlError::unsupported("not built"))
    }

    /// Runs a statement. The parameters have the types that `prepared` says. An error inside of a transaction leaves
    /// it failed.
    pub async fn execute(&mut self, _prepared: &Arc<Prepared>, _params: Vec<Value>) -> Result<Answer> {
        Err(SqlError::unsupported("not built"))
    }

    /// From here statements belong together until [`Session::end_implicit`]. A `BEGIN` among them makes the
    /// transaction explicit.
    pub fn begin_implicit(&mut self) {}

    /// Commits what belongs together, or rolls it back if a statement has failed. In an explicit transaction it does
    /// nothing.
    pub async fn end_implicit(&mut self) -> Result<()> {
        Ok(())
    }

    /// The protocol has refused a statement before it reached the session (a text that does not parse, a parameter that
    /// does not read): an open transaction has failed, as it has after an error of [`Session::execute`].
    pub fn fail(&mut self) {}

    pub fn status(&self) -> Status {
        Status::Idle
    }

    /// Cancels the statement that [`Session::execute`] runs next, its rows and its copy too, from another task. It is
    /// taken before each statement: a token that was cancelled does not reach the statement after.
    pub fn cancel_token(&self) -> CancelToken {
        CancelToken::default()
    }

    /// Notices and warnings since the last call, with their severity (`NOTICE`, `WARNING`, …).
    pub fn take_notices(&mut self) -> Vec<(&'static str, SqlError)> {
        Vec::new()
    }

    /// Settings that clients are told of and that have changed since the last call; at first, all of them.
    pub fn take_parameter_changes(&mut self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// A setting's value (`TimeZone`, `DateStyle`, `bytea_output`, `extra_float_digits`), for the text format.
    pub fn setting(&self, _name: &str) -> Option<String> {
        None
    }

    /// Ends the session: an open transaction is rolled back.
    pub async fn close(self) {}
}
