//! A connection for those who are no shard: their own statements, their own tables.
//!
//! Statements that are known beforehand are run together ([`Line::run`]), in one exchange. Unless one of them begins a
//! transaction, or one is open, they are a transaction, which the end of the exchange commits.

use super::exchange::{Answer, Exchange, read_row};
use super::fault::{Fault, before_commit, connecting, during_commit};
use super::session::Session;
use crate::error::{Result, ShardError};
use crate::shard::Row;
use isles_kernel::value::{DataType, Value};
use std::sync::Arc;
use tokio_postgres::Config;

/// A statement to run. Its text is parsed once for each connection.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    pub sql: &'a str,
    pub params: &'a [Value],
    /// Those of the parameters.
    pub types: &'a [DataType],
    /// What its columns are to be read as. None are read of a statement whose rows nobody wants.
    pub columns: &'a [DataType],
}

impl<'a> Part<'a> {
    /// A text without parameters and rows.
    pub fn text(sql: &'a str) -> Part<'a> {
        Part { sql, params: &[], types: &[], columns: &[] }
    }
}

/// What the server has said to a statement.
#[derive(Debug, Default)]
pub struct Told {
    pub rows: Vec<Row>,
    /// Rows that it has touched.
    pub touched: u64,
}

/// What an exchange ends, and so what it means when its answer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// A transaction stays open, or there is nothing that an answer would tell: what is lost has not happened.
    Nothing,
    /// A transaction is committed.
    Transaction,
}

/// A connection to a server. Dropping it closes it, which undoes what is open.
pub struct Line {
    /// Boxed, since a session is large and moves with every loan.
    session: Box<Session>,
}

impl Line {
    pub async fn connect(config: Arc<Config>) -> Result<Line> {
        let session = Session::connect(config.clone(), Arc::default()).await;
        let session = session.map_err(|fault| connecting(fault, &config))?;
        Ok(Line { session: Box::new(session) })
    }

    /// Takes in what the server has said while nobody waited, and says whether it is still there.
    pub fn is_alive(&self) -> bool {
        self.session.is_alive()
    }

    /// Whether nothing more can be sent or read.
    pub fn is_closed(&self) -> bool {
        self.session.is_closed()
    }

    /// Runs texts without parameters, one after the other. What they begin and do not end stays open.
    pub async fn batch(&self, sql: &str) -> Result<()> {
        self.session.batch_execute(sql).await.map_err(before_commit)
    }

    /// Runs statements together, none after one that fails.
    pub async fn run(&self, parts: &[Part<'_>], ends: Ends) -> Result<Vec<Told>> {
        self.learn(parts).await?;
        let mut exchange = Exchange::default();
        let mut shapes = Vec::with_capacity(parts.len());
        for part in parts {
            let known = self.session.known(part.sql);
            let known = known.ok_or_else(|| ShardError::Conflict("a statement was forgotten".into()))?;
            exchange.run(&known, part.params, &[])?;
            shapes.push(known);
        }
        let mut told: Vec<Told> = parts.iter().map(|_| Told::default()).collect();
        let take = |at: usize, answer: Answer| {
            let (Some(part), Some(told)) = (parts.get(at), told.get_mut(at)) else { return Ok(()) };
            match answer {
                Answer::Row(row) if !part.columns.is_empty() => {
                    told.rows.push(read_row(&row, &shapes[at].columns, part.columns)?);
                }
                Answer::Ended(touched) => told.touched = touched,
                Answer::Row(_) | Answer::Params(_) | Answer::Columns(_) => {}
            }
            Ok(())
        };
        let explain = |at: usize, fault: Fault| match (ends, &fault) {
            (Ends::Nothing, _) => before_commit(fault),
            // The server answers in order: whatever ends an exchange before its last statement ends it before the commit.
            (Ends::Transaction, Fault::Server(_)) if at + 1 < parts.len() => before_commit(fault),
            (Ends::Transaction, _) => during_commit(fault),
        };
        self.session.exchange(exchange, explain, take).await?;
        Ok(told)
    }

    /// Has the server parse what it does not know yet.
    async fn learn(&self, parts: &[Part<'_>]) -> Result<()> {
        if parts.iter().all(|part| self.session.known(part.sql).is_some()) {
            return Ok(());
        }
        let texts: Vec<(&str, &[DataType])> = parts.iter().map(|part| (part.sql, part.types)).collect();
        self.session.learn_typed(&texts).await
    }
}
