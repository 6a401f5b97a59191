//! What the server's errors mean to a caller.
//!
//! An error that the server sent means that nothing happened. A connection that is lost means the same, unless the
//! COMMIT was on its way: then nobody here can know. [`during_commit`] is for that case, and for it alone.
//!
//! Invariants (docs/invariants.md):
//!   * I-61  no message contains a password: addresses are printed from their parts, never the URL

use crate::error::{ShardError, SqlError};
use fallible_iterator::FallibleIterator;
use isles_kernel::schema::{PUBLIC, relation_name};
use postgres_protocol::message::backend::ErrorResponseBody;
use std::sync::Mutex;
use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_postgres::error::{DbError, Error};

/// What went wrong between the server and us.
#[derive(Debug)]
pub(super) enum Fault {
    /// The server says so.
    Server(Box<Said>),
    /// The connection is lost, and why.
    Lost(String),
    /// The server says what makes no sense.
    Nonsense(String),
}

/// An error, as the server says it.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) detail: Option<String>,
    hint: Option<String>,
    schema: Option<String>,
    table: Option<String>,
    column: Option<String>,
    constraint: Option<String>,
    routine: Option<String>,
}

impl Fault {
    /// Reads an error message. One without a code is an internal error: nobody may be led astray by what is missing.
    pub(super) fn of_fields(body: &ErrorResponseBody) -> Fault {
        let mut said = Said { code: "XX000".into(), ..Said::default() };
        let mut fields = body.fields();
        loop {
            match fields.next() {
                Ok(Some(field)) => said.set(field.type_(), String::from_utf8_lossy(field.value_bytes()).into_owned()),
                Ok(None) => return Fault::Server(Box::new(said)),
                Err(error) => return Fault::Nonsense(error.to_string()),
            }
        }
    }

    pub(super) fn said(&self) -> Option<&Said> {
        match self {
            Fault::Server(said) => Some(said),
            Fault::Lost(_) | Fault::Nonsense(_) => None,
        }
    }

    fn text(&self) -> &str {
        match self {
            Fault::Server(said) => &said.message,
            Fault::Lost(text) | Fault::Nonsense(text) => text,
        }
    }
}

impl Said {
    fn set(&mut self, field: u8, value: String) {
        match field {
            b'C' => self.code = value,
            b'M' => self.message = value,
            b'D' => self.detail = Some(value),
            b'H' => self.hint = Some(value),
            b's' => self.schema = Some(value),
            b't' => self.table = Some(value),
            b'c' => self.column = Some(value),
            b'n' => self.constraint = Some(value),
            b'R' => self.routine = Some(value),
            _ => {}
        }
    }
}

impl From<&DbError> for Said {
    fn from(error: &DbError) -> Said {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Said {
            code: error.code().code().into(),
            message: error.message().into(),
            detail: owned(error.detail()),
            hint: owned(error.hint()),
            schema: owned(error.schema()),
            table: owned(error.table()),
            column: owned(error.column()),
            constraint: owned(error.constraint()),
            routine: owned(error.routine()),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        match error.as_db_error() {
            Some(said) => Fault::Server(Box::new(said.into())),
            None if error.is_closed() || is_io(&error) => Fault::Lost(cause(&error)),
            None => Fault::Nonsense(cause(&error)),
        }
    }
}

/// Raised by `_isles.look`: the detail says which unit of the claim, and the version it needs.
pub(super) const MOVED: &str = "IS001";

/// Raised by `_isles.look`, too: the detail is the group that may have strangers.
pub(super) const STRANGERS: &str = "IS003";

/// Raised by `_isles.verify`.
pub(super) const OTHER_TENANT: &str = "IS002";

/// Where the server checks a row that is written against its table's policies. It says so in its own language, and with
/// the policy's name; the code is that of any missing right.
const ROW_CHECK: &str = "ExecWithCheckOptions";
/// SQLSTATEs of user functions can be anything; beyond so many different ones we call the rest an internal error.
const MAX_FOREIGN_STATES: usize = 1_000;

/// What an error before COMMIT means.
pub(super) fn before_commit(fault: impl Into<Fault>) -> ShardError {
    match fault.into() {
        Fault::Server(said) => from_server(*said),
        Fault::Lost(why) => ShardError::Unavailable(format!("connection lost: {why}")),
        Fault::Nonsense(why) => ShardError::Corrupt(format!("the server's answer makes no sense: {why}")),
    }
}

/// What an error in answer to COMMIT means.
pub(super) fn during_commit(fault: impl Into<Fault>) -> ShardError {
    match fault.into() {
        // A server that ends the session may have finished the commit before; see ProcessInterrupts.
        Fault::Server(said) if !said.code.starts_with("57P") => from_server(*said),
        fault => ShardError::MayHaveHappened(format!("connection lost during commit: {}", fault.text())),
    }
}

fn from_server(said: Said) -> ShardError {
    match said.code.as_str() {
        OTHER_TENANT => ShardError::OtherTenant,
        "40001" | "40P01" => ShardError::Conflict(said.message),
        "53100" => ShardError::DiskFull(said.message),
        // Our own cancel requests are told apart by whoever sent them.
        "57014" | "55P03" => ShardError::TimedOut,
        "57P01" | "57P02" | "57P03" | "53300" => ShardError::Unavailable(said.message),
        "XX001" | "XX002" => ShardError::Corrupt(said.message),
        "42501" if said.routine.as_deref() == Some(ROW_CHECK) => ShardError::beyond_tenant(),
        code => {
            let sqlstate = intern(code);
            let schema = said.schema.as_deref().unwrap_or(PUBLIC);
            ShardError::Statement(SqlError {
                detail: said.detail.as_deref().and_then(visible_detail),
                table: said.table.as_deref().map(|table| relation_name(schema, table)),
                hint: said.hint,
                column: said.column,
                constraint: said.constraint,
                ..SqlError::new(sqlstate, said.message)
            })
        }
    }
}

/// A detail without what clients do not see: the tenant that leads a key, and a whole row with its hidden columns.
fn visible_detail(detail: &str) -> Option<String> {
    if detail.starts_with("Failing row contains") {
        return None;
    }
    let Some(rest) = detail.strip_prefix("Key (_tenant, ") else { return Some(detail.into()) };
    let (columns, rest) = rest.split_once(")=(")?;
    let (values, end) = rest.rsplit_once(')')?;
    // A tenant's name may have commas; then nobody can say where it ends.
    let parts = values.split(", ").count();
    let (_, values) = values.split_once(", ").filter(|_| parts == columns.split(", ").count() + 1)?;
    Some(format!("Key ({columns})=({values}){end}"))
}

/// Whether trying again on another connection helps: the server forgot a prepared statement, or the schema has
/// changed under it.
pub(super) fn is_stale_statement(error: &ShardError) -> bool {
    match error {
        ShardError::Statement(error) => {
            error.sqlstate == "26000" || (error.sqlstate == "0A000" && error.message.contains("cached plan"))
        }
        _ => false,
    }
}

/// What a failure to connect means.
pub(super) fn connecting(fault: Fault, config: &Config) -> ShardError {
    let place = address(config);
    match fault {
        Fault::Server(said) if said.code.starts_with("28") || said.code == "3D000" => {
            ShardError::Invalid(format!("{place} refuses us: {}", said.message))
        }
        Fault::Server(said) => ShardError::Unavailable(format!("{place}: {}", said.message)),
        Fault::Lost(why) | Fault::Nonsense(why) => {
            ShardError::Unavailable(format!("could not connect to {place}: {why}"))
        }
    }
}

/// Where a shard is, for people: user, host, port and database, and nothing else of its URL.
pub(super) fn address(config: &Config) -> String {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(path)) => path.display().to_string(),
        None => "?".into(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let user = config.get_user().unwrap_or("?");
    format!("{user}@{host}:{port}/{}", config.get_dbname().unwrap_or(user))
}

fn is_io(error: &Error) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if error.is::<std::io::Error>() {
            return true;
        }
        source = error.source();
    }
    false
}

fn cause(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// The code as a static text. User functions may raise codes of their own; each is kept once, up to a limit.
fn intern(code: &str) -> &'static str {
    static SEEN: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut seen = SEEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = seen.iter().find(|known| **known == code) {
        return known;
    }
    if seen.len() >= MAX_FOREIGN_STATES {
        return "XX000";
    }
    let kept: &'static str = Box::leak(code.to_string().into_boxed_str());
    seen.push(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::visible_detail;

    #[test]
    fn a_detail_shows_no_hidden_column() {
        let shown = visible_detail("Key (_tenant, id)=(acme, 1) already exists.");
        assert_eq!(shown.as_deref(), Some("Key (id)=(1) already exists."));
        assert_eq!(visible_detail("Key (_tenant, id)=(a, b, 1) already exists."), None);
        assert_eq!(visible_detail("Failing row contains (3, null)."), None);
        assert_eq!(visible_detail("Key (id)=(1) already exists.").as_deref(), Some("Key (id)=(1) already exists."));
    }
}
