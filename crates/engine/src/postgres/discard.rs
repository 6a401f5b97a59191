//! Rows that a move has left.
//!
//! They are found first, in a transaction of its own: a whole table may have to be searched for the rows of a bucket, and
//! who changes a fence should not wait for that. Then they are deleted, in the transaction that asks for the stream's
//! driver and the fences; what has become another row meanwhile does not fit the range any more, and stays.
//!
//! They are deleted as rows are applied: nothing is captured, no trigger fires and no foreign key is checked.

use super::apply::begin_foreign;
use super::ddl::table_name;
use super::pool::Conn;
use super::snapshot::{Query, filter};
use super::tenancy::OWN;
use super::{fault, fence, stream};
use crate::error::Result;
use crate::fence::Claimed;
use crate::shard::{DriverToken, KeyRange};
use isles_kernel::names::StreamId;
use isles_kernel::schema::Table;
use tokio_postgres::types::{ToSql, Type};

/// The rows of a range.
pub(super) struct Leftovers {
    name: String,
    filter: String,
    query: Query,
}

impl Leftovers {
    pub(super) fn new(table: &Table, range: &KeyRange) -> Result<Leftovers> {
        let mut query = Query::default();
        let filter = filter(table, range, &mut query)?;
        Ok(Leftovers { name: table_name(&table.name), filter, query })
    }

    /// Where some of them are.
    pub(super) async fn find(&self, conn: &Conn, rows: usize) -> Result<Vec<String>> {
        conn.batch_execute(&format!("BEGIN READ ONLY; {OWN}")).await.map_err(fault::before_commit)?;
        let text = format!("SELECT ctid::text FROM {}{} LIMIT {rows}", self.name, self.filter);
        let statement = conn.prepare_typed(&text, &self.query.types).await.map_err(fault::before_commit)?;
        let found = conn.query(&statement, &self.params()).await.map_err(fault::before_commit)?;
        conn.batch_execute("COMMIT").await.map_err(fault::before_commit)?;
        Ok(found.iter().map(|row| row.get(0)).collect())
    }

    /// Deletes those that are there, in a transaction up to its COMMIT.
    pub(super) async fn delete(
        &self,
        conn: &Conn,
        (stream, driver): (&StreamId, DriverToken),
        unserved: &[Claimed],
        found: &[String],
    ) -> Result<u64> {
        begin_foreign(conn).await?;
        stream::check(conn, stream, Some(driver)).await?;
        fence::refuse_served(conn, unserved).await?;
        let (mut params, mut types) = (self.params(), self.query.types.clone());
        params.push(&found);
        types.push(Type::TEXT_ARRAY);
        let text = format!("DELETE FROM {}{} AND ctid = ANY (${}::tid[])", self.name, self.filter, params.len());
        let statement = conn.prepare_typed(&text, &types).await.map_err(fault::before_commit)?;
        conn.execute(&statement, &params).await.map_err(fault::before_commit)
    }

    fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.query.params.iter().map(|param| param as &(dyn ToSql + Sync)).collect()
    }
}
