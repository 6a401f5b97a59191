//! Results too large to gather: read from the shards as the client reads them.
//!
//!     cursor on each shard, in snapshots of one moment ─► pages ─► concatenated or merged ─► offset, limit
//!
//! A statement on its own is first tried as one that fits into memory. Only if it does not, it is begun again this way.
//! Each shard's page is bounded, so the memory of a stream is too, whatever the size of its result.

use super::bounds::Bounds;
use super::merge;
use super::transaction::{Txn, noted};
use super::work::Sent;
use crate::database::Database;
use crate::tenants::entry::Pass;
use isles_engine::shard::{CursorId, Statement};
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use isles_kernel::value::Value;
use isles_sql::plan::MergeKey;
use isles_sql::planted::{self, Bug};
use std::collections::VecDeque;
use std::sync::Arc;

/// Rows that are read from a shard at once.
const PAGE_ROWS: usize = 1_000;

/// One shard's part of a result.
struct Source {
    shard: ShardId,
    sql: Arc<str>,
    cursor: CursorId,
    rows: VecDeque<Vec<Value>>,
    done: bool,
}

pub(crate) struct Stream {
    sources: Vec<Source>,
    /// None: in any order.
    keys: Option<Vec<MergeKey>>,
    skip: usize,
    left: usize,
    visible: usize,
    database: Arc<Database>,
    bounds: Bounds,
    /// The cursors' transaction. It has only read, so dropping it ends it.
    txn: Txn,
}

/// What a stream makes of its rows.
pub(crate) struct Shape {
    pub(crate) keys: Option<Vec<MergeKey>>,
    pub(crate) offset: Option<usize>,
    pub(crate) limit: Option<usize>,
    pub(crate) visible: usize,
}

impl Stream {
    /// Opens a cursor on each shard; all of them have been entered.
    pub(crate) async fn open(
        database: Arc<Database>,
        mut txn: Txn,
        work: Vec<(ShardId, Statement)>,
        shape: Shape,
        bounds: Bounds,
    ) -> Result<Stream, SqlError> {
        if let Some(keys) = &shape.keys {
            merge::check_keys(keys)?;
        }
        let mut sources = Vec::with_capacity(work.len());
        for (shard, statement) in work {
            let sent = Sent::new(std::slice::from_ref(&statement), &*database.env);
            let opened = txn.on(&shard, &bounds)?.open(&statement).await;
            sent.came(&shard, opened.as_ref().ok().map(|_| 0), &database.noted(&bounds));
            let cursor = opened.map_err(|error| noted(&database, &shard, error))?;
            let sql = statement.sql;
            sources.push(Source { shard, sql, cursor, rows: VecDeque::new(), done: false });
        }
        Ok(Stream {
            sources,
            keys: shape.keys.filter(|keys| !keys.is_empty()),
            skip: shape.offset.unwrap_or(0),
            left: shape.limit.unwrap_or(usize::MAX),
            visible: shape.visible,
            database,
            bounds,
            txn,
        })
    }

    /// For as long as it is read, it is inside of its tenant.
    pub(crate) fn admit(&mut self, pass: Option<Pass>) {
        self.txn.admit(pass);
    }

    /// At most `limit` more rows; none at the end.
    pub(crate) async fn next(&mut self, limit: usize) -> Result<Vec<Vec<Value>>, SqlError> {
        // The time of each page is the statement's own; a client may take as long as it likes in between.
        self.bounds.deadline = self.database.env.elapsed() + self.bounds.time;
        let mut rows = Vec::new();
        while rows.len() < limit && self.left > 0 {
            let Some(mut row) = self.pull().await? else { break };
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.left -= 1;
            row.truncate(self.visible);
            rows.push(row);
        }
        Ok(rows)
    }

    async fn pull(&mut self) -> Result<Option<Vec<Value>>, SqlError> {
        match &self.keys {
            None => {
                while let Some(at) = self.sources.iter().position(|source| !(source.done && source.rows.is_empty())) {
                    self.fill(at).await?;
                    if let Some(row) = self.sources[at].rows.pop_front() {
                        return Ok(Some(row));
                    }
                }
                Ok(None)
            }
            Some(_) => {
                for at in 0..self.sources.len() {
                    self.fill(at).await?;
                }
                let least = self.least();
                let row = least.and_then(|at| self.sources[at].rows.pop_front());
                if planted::has(Bug::DroppedTies) {
                    self.drop_ties(row.as_deref());
                }
                Ok(row)
            }
        }
    }

    /// The source whose next row comes first; of equal ones, the first.
    fn least(&self) -> Option<usize> {
        let keys = self.keys.as_ref()?;
        let heads = self.sources.iter().enumerate().filter_map(|(at, source)| Some((at, source.rows.front()?)));
        heads.min_by(|(_, a), (_, b)| merge::compare(a, b, keys)).map(|(at, _)| at)
    }

    /// The bug: every source forgets a next row that is equal to the one that was taken.
    fn drop_ties(&mut self, taken: Option<&[Value]>) {
        let Some((keys, taken)) = self.keys.as_ref().zip(taken) else { return };
        for source in &mut self.sources {
            source.rows.pop_front_if(|row| merge::compare(row, taken, keys).is_eq());
        }
    }

    /// Reads the next page of a source that has no row left.
    async fn fill(&mut self, at: usize) -> Result<(), SqlError> {
        let source = &mut self.sources[at];
        while source.rows.is_empty() && !source.done {
            let sent = Sent::more(source.sql.clone(), &*self.database.env);
            let page = self.txn.on(&source.shard, &self.bounds)?.fetch(source.cursor, PAGE_ROWS).await;
            let rows = page.as_ref().ok().map(|page| page.rows.len() as u64);
            sent.came(&source.shard, rows, &self.database.noted(&self.bounds));
            let page = page.map_err(|error| noted(&self.database, &source.shard, error))?;
            source.rows.extend(page.rows);
            source.done = page.done;
        }
        Ok(())
    }
}
