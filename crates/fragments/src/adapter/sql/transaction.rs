//! A transaction over a link to a database.

use super::{Dialect, Planted, Print, Statement, read_row};
use crate::adapter::{Access, Clock, Row, Select, Tick, Transaction};
use crate::error::{Code, Result, refused};
use crate::schema::Table;
use crate::values::Values;
use async_trait::async_trait;
use isles_kernel::value::Value;
use std::sync::Arc;

/// A connection with an open transaction. Dropping it undoes the transaction.
#[async_trait]
pub(crate) trait Link: Send {
    async fn query(&mut self, statement: &Statement) -> Result<Vec<Vec<Value>>>;
    async fn execute(&mut self, statement: &Statement) -> Result<u64>;
    /// A text without parameters.
    async fn command(&mut self, sql: &str) -> Result<()>;
    async fn commit(self: Box<Self>) -> Result<()>;
    /// A last statement, and the end of the transaction.
    async fn execute_and_commit(mut self: Box<Self>, statement: &Statement) -> Result<()> {
        self.execute(statement).await?;
        self.commit().await
    }
    async fn roll_back(self: Box<Self>);
    /// A clock's value that is taken at once, for tests; see [`Planted::LooseClock`].
    async fn loose_tick(&mut self, _statement: &Statement) -> Result<Option<Vec<Vec<Value>>>> {
        Ok(None)
    }
}

pub(crate) struct SqlTransaction {
    pub(crate) link: Box<dyn Link>,
    pub(crate) dialect: Dialect,
    pub(crate) access: Access,
    pub(crate) planted: Option<Planted>,
}

impl SqlTransaction {
    fn print(&self) -> Print<'_> {
        Print { dialect: self.dialect, access: &self.access, planted: self.planted }
    }

    fn may_write(&self) -> Result<()> {
        match self.access {
            Access::Global => Err(refused(Code::GlobalScope, "nothing is written here")),
            _ => Ok(()),
        }
    }
}

fn clock(rows: &[Vec<Value>]) -> Clock {
    let text = |value: &Value| match value {
        Value::Text(text) => Some(text.clone()),
        _ => None,
    };
    match rows.first().map(Vec::as_slice) {
        Some([Value::Int(version), Value::Int(floor), last, prev]) => {
            Clock { version: *version, floor: *floor, last: text(last), prev: text(prev) }
        }
        _ => Clock::default(),
    }
}

#[async_trait]
impl Transaction for SqlTransaction {
    async fn select(&mut self, select: &Select) -> Result<Vec<Row>> {
        let statement = self.print().select(select)?;
        let rows = self.link.query(&statement).await?;
        rows.into_iter().map(|row| read_row(select, &self.access, row, self.dialect)).collect()
    }

    async fn count(&mut self, select: &Select) -> Result<u64> {
        let statement = self.print().count(select)?;
        let rows = self.link.query(&statement).await?;
        match rows.first().and_then(|row| row.first()) {
            Some(Value::Int(count)) => Ok(*count as u64),
            _ => Ok(0),
        }
    }

    async fn insert(&mut self, table: &Arc<Table>, row: &Row) -> Result<()> {
        self.may_write()?;
        let statement = self.print().insert(table, row)?;
        self.link.execute(&statement).await.map(|_| ())
    }

    async fn update(&mut self, table: &Arc<Table>, id: &str, version: i64, set: &Values) -> Result<bool> {
        self.may_write()?;
        let statement = self.print().update(table, id, version, set)?;
        Ok(self.link.execute(&statement).await? > 0)
    }

    async fn delete(&mut self, table: &Arc<Table>, id: &str, version: i64) -> Result<bool> {
        self.may_write()?;
        let statement = self.print().delete(table, id, version);
        Ok(self.link.execute(&statement).await? > 0)
    }

    async fn tick(&mut self, tick: Tick<'_>) -> Result<Clock> {
        self.may_write()?;
        let statement = self.print().tick(tick);
        if self.planted == Some(Planted::LooseClock)
            && let Some(rows) = self.link.loose_tick(&statement).await?
        {
            return Ok(clock(&rows));
        }
        Ok(clock(&self.link.query(&statement).await?))
    }

    async fn clock(&mut self) -> Result<Clock> {
        let statement = self.print().clock();
        Ok(clock(&self.link.query(&statement).await?))
    }

    async fn set_floor(&mut self, floor: i64) -> Result<()> {
        self.may_write()?;
        let statement = self.print().set_floor(floor);
        self.link.execute(&statement).await.map(|_| ())
    }

    async fn mark(&mut self) -> Result<()> {
        self.link.command("SAVEPOINT mark").await
    }

    async fn roll_back_to_mark(&mut self) -> Result<()> {
        self.link.command("ROLLBACK TO SAVEPOINT mark").await
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.link.commit().await
    }

    async fn insert_and_commit(self: Box<Self>, table: &Arc<Table>, row: &Row) -> Result<()> {
        self.may_write()?;
        let statement = self.print().insert(table, row)?;
        self.link.execute_and_commit(&statement).await
    }

    async fn roll_back(self: Box<Self>) {
        self.link.roll_back().await;
    }
}
