//! One shard's part of a commit over several.
//!
//!     pledge   marker and changes in the open transaction, redo handed out; the writer stays held
//!     commit   COMMIT, marker and changes together            ─┐ either way the marker says that it is done
//!     redeem   marker missing: redo and marker, one transaction ─┘
//!
//! SQLite cannot promise to commit what is in an open transaction: a crash rolls it back. So the transaction tells what
//! it did (the records that the change log would get, and its changes of the schema, in order), whoever coordinates keeps that with the decision, and after a
//! crash it is done again. The marker makes that happen once.
//!
//! Between the pledge and the commit nobody else writes: the writer is held. Should the commit fail, nobody may write
//! before the redo has been applied, since it says what rows become and not how. So the shard stops; who reopens it
//! redeems its pledges before anyone else comes in.
//!
//! Redo is applied as rows of other shards are: without triggers and foreign keys, whose effects are in it. But it is
//! this shard's own change, so the same record goes into the log.
//!
//! Invariants (docs/invariants.md):
//!   * I-20  a pledge that was decided on is kept, once, whatever crashes
//!   * I-29  the log has its changes if and only if the tables have them

use super::apply::{delete, put, table_writes};
use super::queue::{self, WriterGuard};
use super::raw::Db;
use super::redo::{self, Piece};
use super::transaction::commit_writer;
use super::writer::{Writer, one_int};
use super::{log, schema};
use crate::error::{Result, ShardError};
use crate::shard::{MAX_REDO_BYTES, Pledge};
use async_trait::async_trait;
use isles_kernel::change::{Change, decode_record};
use isles_kernel::names::{PledgeId, Seq, TxnId};
use isles_kernel::schema::Schema;
use isles_kernel::value::Value;
use std::collections::BTreeMap;

/// Puts the marker into the open transaction. Returns its redo.
pub(super) fn make(writer: &mut Writer, id: &PledgeId, forget: &[PledgeId]) -> Result<Vec<u8>> {
    writer.db.close_cursors();
    writer.check_member()?;
    let now = writer.schema_version();
    let capture = writer.capture();
    if capture.overflown || capture.bytes() > MAX_REDO_BYTES {
        return Err(ShardError::Limit {
            what: "the size of what a transaction over several shards changes on one of them",
            limit: MAX_REDO_BYTES as u64,
        });
    }
    let redo = redo::encode(capture, now)?;
    for old in forget {
        writer.db.own("DELETE FROM _isles_pledge WHERE id = $1", &[Value::text(old.as_str())], &[])?;
    }
    writer.db.own("INSERT INTO _isles_pledge (id) VALUES ($1)", &[Value::text(id.as_str())], &[])?;
    Ok(redo)
}

pub(super) fn forget_all(writer: &mut Writer) -> Result<()> {
    writer.db.own("DELETE FROM _isles_pledge", &[], &[]).map(drop)
}

/// Does again what a pledge did, unless it is done; on the applier's connection.
pub(super) fn redeem(writer: &mut Writer, id: &PledgeId, redo: &[u8]) -> Result<()> {
    let damaged = |_| ShardError::Corrupt(format!("the redo of {id} cannot be read"));
    let pieces = redo::decode(redo).map_err(damaged)?;
    let logs = writer.logs();
    let mut state = writer.state.clone();
    let (shard, observed) = (writer.id.clone(), writer.observed().clone());
    let db = writer.applier()?;
    let known = "SELECT count(*) FROM _isles_pledge WHERE id = $1";
    if one_int(db, known, &[Value::text(id.as_str())])? != Some(0) {
        return Ok(());
    }
    let mut records = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Schema(step) => schema::redo(db, &mut state, &step)?,
            Piece::Rows(body) => {
                let changes = decode_record(&body, Seq(1), TxnId(1)).map_err(damaged)?;
                redo_rows(db, &state.schema, &changes)?;
                records.push((body, changes.len() as u64));
            }
        }
    }
    db.own("INSERT INTO _isles_pledge (id) VALUES ($1)", &[Value::text(id.as_str())], &[])?;
    if logs {
        log::observe(&shard, &observed, &state, &records)?;
        log::insert_all(db, &mut state, records, 1)?;
    }
    writer.state = state;
    Ok(())
}

fn redo_rows(db: &mut Db, schema: &Schema, changes: &[Change]) -> Result<()> {
    let mut tables = BTreeMap::new();
    for Change { table, unit, key, after, .. } in changes {
        let writes = table_writes(&mut tables, schema, table)?;
        match after {
            Some(row) => put(db, writes, unit, row)?,
            None => delete(db, writes, key)?,
        }
    }
    Ok(())
}

/// The writer of a transaction that has pledged. Unless it is settled, its end stops the shard.
struct Bound {
    guard: WriterGuard,
    settled: bool,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if !self.settled {
            let shared = self.guard.shared();
            shared.stop(ShardError::Stopped("a pledged transaction was not carried out".into()));
            // Before the writer goes back: those who wait must not come in first.
            queue::refuse_if_stopped(shared);
        }
    }
}

pub(super) struct SqlitePledge {
    /// None once it has been used.
    bound: Option<Bound>,
    redo: Vec<u8>,
}

impl SqlitePledge {
    pub(super) fn new(guard: WriterGuard, redo: Vec<u8>) -> SqlitePledge {
        SqlitePledge { bound: Some(Bound { guard, settled: false }), redo }
    }

    async fn end(mut self: Box<Self>, end: fn(&mut WriterGuard) -> Result<()>) -> Result<()> {
        let mut bound = self.bound.take().ok_or_else(|| ShardError::invalid("a pledge ends once"))?;
        let shared = bound.guard.shared().clone();
        let job = move || {
            let result = end(&mut bound.guard);
            bound.settled = result.is_ok();
            result
        };
        let lost = |error: ShardError| ShardError::MayHaveHappened(error.to_string());
        shared.on_pool(job).await.map_err(lost)?
    }
}

#[async_trait]
impl Pledge for SqlitePledge {
    fn redo(&self) -> Option<&[u8]> {
        Some(&self.redo)
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.end(commit_writer).await
    }

    async fn rollback(self: Box<Self>) -> Result<()> {
        self.end(|guard| {
            guard.writer().abandon();
            Ok(())
        })
        .await
    }
}
