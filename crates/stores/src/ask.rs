//! Desks: where operations on records are asked for, and the sessions that run their statements.
//!
//! A desk has a session of its own, or works in that of a client that calls a procedure: then what it does is part of
//! the client's transaction. Sessions of desks are kept for the next one, since making one costs more than a point read.
//! One that was left in the middle of a statement is not kept.

use super::{Result, Stores};
use futures::future::BoxFuture;
use isles_cluster::session::Session;
use isles_engine::shard::Outcome;
use isles_kernel::error::SqlError;
use isles_kernel::names::RegionName;
use isles_kernel::value::Value;
use std::sync::PoisonError;

/// Sessions that are kept. As many operations as a machine carries out at once, and some.
const MAX_IDLE: usize = 64;

pub(super) type Rows = Vec<Vec<Value>>;

/// A statement with its parameters.
pub(super) type Asked = (String, Vec<Value>);

enum Lent<'a> {
    /// None while a statement runs: one that is given up half way is not used again.
    Own(Option<Box<Session>>),
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
    /// A desk with a session of its own.
    pub fn desk(&self) -> Result<Desk<'static>> {
        let idle = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let session = match idle {
            Some(session) => session,
            None => self.database().system_session()?,
        };
        Ok(Desk { stores: self.clone(), near: None, lent: Lent::Own(Some(Box::new(session))) })
    }

    /// A desk within the transaction of a client that calls a procedure.
    pub fn desk_of<'a>(&self, session: &'a mut Session) -> Desk<'a> {
        Desk { stores: self.clone(), near: None, lent: Lent::Callers(session) }
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
        self.desk()?.ask(sql, params).await
    }
}

impl Drop for Desk<'_> {
    fn drop(&mut self) {
        if let Lent::Own(Some(session)) = std::mem::replace(&mut self.lent, Lent::Own(None)) {
            let mut idle = self.stores.shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < MAX_IDLE {
                idle.push(*session);
            }
        }
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
            Lent::Own(_) => false,
        }
    }

    /// Runs one statement. Any error is the storage's, and the caller must not take it for an absent record.
    pub(super) fn ask<'b>(&'b mut self, sql: &'b str, params: Vec<Value>) -> BoxFuture<'b, Result<Rows>> {
        Box::pin(async move {
            match &mut self.lent {
                Lent::Callers(session) => Ok(session.run_text(sql, params).await?.rows),
                Lent::Own(own) => {
                    let mut session = own.take().ok_or_else(given_up)?;
                    let outcome = session.run_text(sql, params).await;
                    *own = Some(session);
                    Ok(outcome?.rows)
                }
            }
        })
    }

    /// Runs statements that stand or fall together: one request, if all are for one shard.
    pub(super) fn ask_together(&mut self, statements: Vec<Asked>) -> BoxFuture<'_, Result<Vec<Rows>>> {
        Box::pin(async move {
            let outcomes = match &mut self.lent {
                Lent::Callers(session) => together(session, statements).await?,
                Lent::Own(own) => {
                    let mut session = own.take().ok_or_else(given_up)?;
                    let outcomes = together(&mut session, statements).await;
                    *own = Some(session);
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

fn given_up() -> SqlError {
    SqlError::new("XX000", "the desk was given up in the middle of a statement")
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
