//! One shard's part of a commit over several: `PREPARE TRANSACTION`, and the word.
//!
//! The server keeps a prepared transaction through crashes, with its locks and so with its fences, until somebody says
//! `COMMIT PREPARED` or `ROLLBACK PREPARED`. One that is not there any more has been ended by whoever came first, which
//! was right if it was one of us: all who say the word know the same decision. An operator may have said another one, so
//! a pledge carries the number of its transaction, as its redo, and the server is asked what became of that.
//!
//! The server knows prepared transactions by names that are its own and not a database's. Several shards may be on one
//! server, so each adds its own name to the pledge's.
//!
//! Invariants (docs/invariants.md):
//!   * I-20  a pledge that was decided on is kept, whatever crashes

use super::fault;
use super::pool::{Conn, Connections};
use super::tenancy::OWN;
use super::transaction::bounded;
use crate::env::Env;
use crate::error::{Result, ShardError, SqlError};
use crate::shard::{Limits, Pledge};
use async_trait::async_trait;
use isles_kernel::names::{PledgeId, ShardId};
use std::sync::Arc;
use std::time::Duration;

/// Saying the word is one round trip and a flush; a server that needs longer is asked again later.
const WORD_LIMIT: Duration = Duration::from_secs(10);

/// The server knows of no such prepared transaction.
const UNKNOWN: &str = "42704";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    Commit,
    Rollback,
}

/// The server's name for a shard's part of a pledge.
fn name(id: &PledgeId, shard: &ShardId) -> String {
    format!("{id}.{shard}")
}

/// As a commit: a client may have made it asynchronous. The server lets nobody but the role that prepares say the word, and
/// that must be ours, while triggers that were put off are the client's.
pub(super) fn prepare_text(id: &PledgeId, shard: &ShardId) -> String {
    let name = name(id, shard);
    format!("SET LOCAL synchronous_commit = on; SET CONSTRAINTS ALL IMMEDIATE; {OWN}; PREPARE TRANSACTION '{name}'")
}

/// A server that is not set up for it says so in its own words; ours say what to do.
pub(super) fn refusal(error: ShardError) -> ShardError {
    match &error {
        ShardError::Statement(sql) if sql.sqlstate == "55000" && sql.message.contains("prepared transactions") => {
            let message = "transactions over several shards are not possible on this shard";
            let hint = "set max_prepared_transactions of its PostgreSQL server to at least its max_connections";
            ShardError::Statement(SqlError::unsupported(message).with_detail(sql.message.clone()).with_hint(hint))
        }
        _ => error,
    }
}

/// Ends a prepared transaction, if it is there. `xid` is its number, if it is known.
pub(super) async fn end(
    control: &Connections,
    shard: &ShardId,
    id: &PledgeId,
    word: Word,
    xid: Option<&str>,
) -> Result<()> {
    let text = match word {
        Word::Commit => format!("COMMIT PREPARED '{}'", name(id, shard)),
        Word::Rollback => format!("ROLLBACK PREPARED '{}'", name(id, shard)),
    };
    let conn = control.lend().await?;
    match conn.batch_execute(&text).await {
        Ok(()) => {}
        Err(error) if error.code().is_some_and(|code| code.code() == UNKNOWN) => {
            if let (Word::Commit, Some(xid)) = (word, xid) {
                check_committed(&conn, id, xid).await?;
            }
        }
        Err(error) => return Err(fault::before_commit(error)),
    }
    conn.keep();
    Ok(())
}

/// A transaction that was to be committed and is not there must have been committed. Of one from long ago the server does
/// not know any more.
async fn check_committed(conn: &Conn, id: &PledgeId, xid: &str) -> Result<()> {
    let row = conn.row("SELECT pg_xact_status($1::text::xid8)", &[&xid]).await?;
    match row.get::<_, Option<&str>>(0) {
        None | Some("committed") => Ok(()),
        Some(status) => Err(ShardError::Corrupt(format!(
            "prepared transaction {id} was decided to be committed, and somebody else has ended it: it is {status}"
        ))),
    }
}

pub(super) async fn list(control: &Connections, shard: &ShardId, prefix: &str) -> Result<Vec<PledgeId>> {
    let conn = control.lend().await?;
    let text = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, $1)";
    let rows = conn.rows(text, &[&prefix]).await?;
    conn.keep();
    // A name that is not one of ours is somebody else's.
    let pledge = |row: &tokio_postgres::Row| {
        let (id, of) = row.get::<_, &str>(0).rsplit_once('.')?;
        if of == shard.as_str() { PledgeId::new(id).ok() } else { None }
    };
    Ok(rows.iter().filter_map(pledge).collect())
}

pub(super) struct PgPledge {
    pub(super) control: Arc<Connections>,
    /// Of a transaction that has changed the schema: the clients' connections, whose prepared statements it makes old.
    pub(super) changed: Option<Arc<Connections>>,
    pub(super) env: Arc<dyn Env>,
    pub(super) shard: ShardId,
    pub(super) id: PledgeId,
    /// The number of its transaction.
    pub(super) xid: String,
}

impl PgPledge {
    async fn say(&self, word: Word) -> Result<()> {
        let work = Box::pin(end(&self.control, &self.shard, &self.id, word, Some(&self.xid)));
        bounded(self.env.as_ref(), &Limits::default(), WORD_LIMIT, work).await?
    }
}

#[async_trait]
impl Pledge for PgPledge {
    fn redo(&self) -> Option<&[u8]> {
        Some(self.xid.as_bytes())
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.say(Word::Commit).await?;
        if let Some(clients) = &self.changed {
            clients.forget_statements();
            self.control.forget_statements();
        }
        Ok(())
    }

    async fn rollback(self: Box<Self>) -> Result<()> {
        self.say(Word::Rollback).await
    }
}
