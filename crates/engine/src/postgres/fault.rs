//! What the server's errors mean to a caller.
//!
//! An error that the server sent means that nothing happened. A connection that is lost means the same, unless the
//! COMMIT was on its way: then nobody here can know. [`during_commit`] is for that case, and for it alone.
//!
//! Invariants (docs/invariants.md):
//!   * I-61  no message contains a password: addresses are printed from their parts, never the URL

use crate::error::{ShardError, SqlError};
use isles_kernel::schema::{PUBLIC, relation_name};
use std::sync::Mutex;
use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_postgres::error::{DbError, Error};

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
pub fn before_commit(error: Error) -> ShardError {
    match error.as_db_error() {
        Some(error) => from_server(error),
        None if error.is_closed() || is_io(&error) => {
            ShardError::Unavailable(format!("connection lost: {}", cause(&error)))
        }
        None => ShardError::Corrupt(format!("the server's answer makes no sense: {}", cause(&error))),
    }
}

/// What an error in answer to COMMIT means.
pub fn during_commit(error: Error) -> ShardError {
    match error.as_db_error() {
        // A server that ends the session may have finished the commit before; see ProcessInterrupts.
        Some(error) if !error.code().code().starts_with("57P") => from_server(error),
        _ => ShardError::MayHaveHappened(format!("connection lost during commit: {}", cause(&error))),
    }
}

fn from_server(error: &DbError) -> ShardError {
    let code = error.code().code();
    match code {
        OTHER_TENANT => ShardError::OtherTenant,
        "40001" | "40P01" => ShardError::Conflict(error.message().into()),
        "53100" => ShardError::DiskFull(error.message().into()),
        // Our own cancel requests are told apart by whoever sent them.
        "57014" | "55P03" => ShardError::TimedOut,
        "57P01" | "57P02" | "57P03" | "53300" => ShardError::Unavailable(error.message().into()),
        "XX001" | "XX002" => ShardError::Corrupt(error.message().into()),
        "42501" if error.routine() == Some(ROW_CHECK) => ShardError::beyond_tenant(),
        _ => ShardError::Statement(SqlError {
            detail: error.detail().and_then(visible_detail),
            hint: error.hint().map(Into::into),
            table: error.table().map(|table| relation_name(error.schema().unwrap_or(PUBLIC), table)),
            column: error.column().map(Into::into),
            constraint: error.constraint().map(Into::into),
            ..SqlError::new(intern(code), error.message())
        }),
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
pub(super) fn connecting(error: Error, config: &Config) -> ShardError {
    let place = address(config);
    match error.as_db_error() {
        Some(error) if error.code().code().starts_with("28") || error.code().code() == "3D000" => {
            ShardError::Invalid(format!("{place} refuses us: {}", error.message()))
        }
        Some(error) => ShardError::Unavailable(format!("{place}: {}", error.message())),
        None => ShardError::Unavailable(format!("could not connect to {place}: {}", cause(&error))),
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
