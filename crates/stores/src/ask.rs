//! Desks: where operations on records are asked for, and the sessions that run their statements.
//!
//! A desk has sessions of its own, or works in that of a client that calls a procedure: then what it does is part of
//! the client's transaction. Sessions of desks are kept for the next one, since making one costs more than a point read.
//! One that was left in the middle of a statement is not kept.

use super::place::Spot;
use super::{Result, Stores, tables};
use futures::future::BoxFuture;
use isles_cluster::session::Session;
use isles_engine::shard::Outcome;
use isles_kernel::error::SqlError;
use isles_kernel::names::{RegionName, ShardId};
use isles_kernel::value::Value;
use std::sync::PoisonError;

/// Sessions that are kept: as many as operations wait for one flush, and some.
const MAX_IDLE: usize = 1_024;

pub(super) type Rows = Vec<Vec<Value>>;

/// A statement with its parameters.
pub(super) type Asked = (String, Vec<Value>);

enum Lent<'a> {
    /// One of those that are kept, for each statement.
    Own,
    Callers(&'a mut Session),
}

/// Where operations are asked for, one after the other.
pub struct Desk<'a> {
    pub(super) stores: Stores,
    /// Where whoever asks is.
    pub(super) near: Option<RegionName>,
    lent: Lent<'a>,
}

impl Stores {
    /// A desk with sessions of its own.
    pub fn desk(&self) -> Desk<'static> {
        Desk { stores: self.clone(), near: None, lent: Lent::Own }
    }

    /// A session that was kept, or a new one.
    pub(super) fn session(&self) -> Result<Session> {
        let idle = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| self.database().system_session(), Ok)
    }

    /// Keeps a session that has ended its statement.
    pub(super) fn give_back(&self, session: Session) {
        let mut idle = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(session);
        }
    }

    /// A desk within the transaction of a client that calls a procedure.
    pub fn desk_of<'a>(&self, session: &'a mut Session) -> Desk<'a> {
        Desk { stores: self.clone(), near: None, lent: Lent::Callers(session) }
    }

    /// The SQLite shard that an instance is on. None for singletons, and for records with a second name, whose global
    /// index has keys to hold for each statement.
    fn sqlite_shard_of(&self, spot: &Spot) -> Option<ShardId> {
        let group = tables::gathered_group(&spot.table, &spot.region)?;
        self.database().sqlite_shard_of(&group, &spot.instance)
    }

    /// Runs something in a task of its own: it has sessions of its own, and a statement within a statement within a task
    /// would need twice the stack.
    pub(super) async fn apart<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (tell, told) = futures::channel::oneshot::channel();
        self.env().spawn(Box::pin(async move {
            // Who does not wait any more need not be told.
            let _ = tell.send(work.await);
        }));
        told.await.map_err(|_| SqlError::new("57P01", "the database is being closed"))?
    }

    pub(super) async fn ask(&self, sql: &str, params: Vec<Value>) -> Result<Rows> {
        self.desk().ask(sql, params).await
    }
}

impl Desk<'_> {
    /// Says where whoever asks is: new records are stored there, if their key does not say another place.
    pub fn near(mut self, region: Option<RegionName>) -> Self {
        self.near = region;
        self
    }

    /// Whether a change of the schema would wait for the client's transaction, and so for this desk.
    pub(super) async fn is_within(&self) -> bool {
        match &self.lent {
            Lent::Callers(session) => session.has_begun().await,
            Lent::Own => false,
        }
    }

    /// Whether what it asks belongs to a transaction of the client's.
    pub(super) fn in_transaction(&self) -> bool {
        match &self.lent {
            Lent::Callers(session) => session.in_transaction(),
            Lent::Own => false,
        }
    }

    /// The session of the client that calls a procedure.
    pub(super) fn lent_session(&mut self) -> Option<&mut Session> {
        match &mut self.lent {
            Lent::Callers(session) => Some(session),
            Lent::Own => None,
        }
    }

    /// Runs one statement. Any error is the storage's, and the caller must not take it for an absent record.
    pub(super) fn ask<'b>(&'b mut self, sql: &'b str, params: Vec<Value>) -> BoxFuture<'b, Result<Rows>> {
        Box::pin(async move {
            match &mut self.lent {
                Lent::Callers(session) => Ok(session.run_text(sql, params).await?.rows),
                Lent::Own => {
                    let mut session = self.stores.session()?;
                    let outcome = session.run_text(sql, params).await;
                    self.stores.give_back(session);
                    Ok(outcome?.rows)
                }
            }
        })
    }

    /// Runs a statement that writes rows of an instance, together with others that write there, if that is cheaper.
    pub(super) async fn ask_to_write(&mut self, spot: &Spot, sql: String, params: Vec<Value>) -> Result<Rows> {
        match (&self.lent, self.stores.sqlite_shard_of(spot)) {
            (Lent::Own, Some(shard)) => self.stores.write_gathered(shard, sql, params).await,
            _ => self.ask(&sql, params).await,
        }
    }

    /// Runs statements that stand or fall together: one request, if all are for one shard.
    pub(super) fn ask_together(&mut self, statements: Vec<Asked>) -> BoxFuture<'_, Result<Vec<Rows>>> {
        Box::pin(async move {
            let outcomes = match &mut self.lent {
                Lent::Callers(session) => together(session, statements).await?,
                Lent::Own => {
                    let mut session = self.stores.session()?;
                    let outcomes = together(&mut session, statements).await;
                    self.stores.give_back(session);
                    outcomes?
                }
            };
            Ok(outcomes.into_iter().map(|outcome| outcome.rows).collect())
        })
    }
}

async fn together(session: &mut Session, statements: Vec<Asked>) -> Result<Vec<Outcome>> {
    let mut given = Vec::with_capacity(statements.len());
    for (sql, params) in statements {
        given.push((session.prepare(&sql, &[]).await?, params));
    }
    session.execute_together(&given).await
}

pub(super) fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

pub(super) fn text_or_null(text: Option<&str>) -> Value {
    text.map_or(Value::Null, |text| Value::Text(text.to_owned()))
}

/// Rows of texts.
pub(super) fn texts(rows: Rows) -> Vec<Vec<String>> {
    let text = |value| match value {
        Value::Text(text) => text,
        _ => String::new(),
    };
    rows.into_iter().map(|row| row.into_iter().map(text).collect()).collect()
}
