//! The change log: one row for each commit that changed something.
//!
//! Positions are dense: the changes of a commit get the next numbers, in the order in which they were made. The log
//! keeps what the slowest consumer has not passed, up to a cap; beyond it the slowest consumer is dropped and must
//! start over, since a log that fills the disk would stop everyone.
//!
//! Invariants (docs/invariants.md):
//!   * I-29  exactly the committed changes, in commit order, without gap or repeat
//!   * I-32  a change's position never changes, and never falls: not by a restart, not by trimming everything

use super::format;
use super::raw::Db;
use super::writer::{State, Writer, one_int};
use crate::entries::Observed;
use crate::error::{Result, ShardError};
use crate::shard::{ChangePage, Consumer};
use isles_kernel::change::decode_record;
use isles_kernel::names::{Seq, ShardId, StreamId, TxnId};
use isles_kernel::value::{DataType, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Records read at once; a page of changes is cut out of them.
const RECORDS_PER_READ: i64 = 64;
/// Readers of one log; each is checked at every trim.
const MAX_CONSUMERS: usize = 1_000;

/// Inserts the record of the current transaction, if it changed anything.
pub(super) fn append(writer: &mut Writer) -> Result<()> {
    let schema = writer.schema_version();
    let capture = writer.capture();
    if capture.redo_only {
        return Ok(());
    }
    let chapters = capture.chapters.iter().map(|chapter| (&chapter.record, chapter.schema));
    let records = chapters.chain([(&capture.record, schema)]).filter(|(record, _)| !record.is_empty());
    let records: Vec<_> = records.map(|(record, schema)| (record.finish(schema), record.changes())).collect();
    let txns = capture.txn.max(1);
    observe(&writer.id, &writer.observed().clone(), &writer.state, &records)?;
    insert_all(&mut writer.db, &mut writer.state, records, txns)
}

/// Tells the observer of records that are about to be inserted.
pub(super) fn observe(shard: &ShardId, observed: &Observed, state: &State, records: &[(Vec<u8>, u64)]) -> Result<()> {
    let Some(observer) = observed.interested() else { return Ok(()) };
    let mut first = state.seq.next();
    for (body, changes) in records {
        let decoded = decode_record(body, first, state.txn.next());
        observer.committing(shard, &decoded.map_err(|_| ShardError::invalid("a record cannot be read"))?);
        first = Seq(first.0 + changes);
    }
    Ok(())
}

/// Inserts the records of one commit. Several are one transaction's, which changed the schema in between.
pub(super) fn insert_all(db: &mut Db, state: &mut State, records: Vec<(Vec<u8>, u64)>, txns: u64) -> Result<()> {
    let last = records.len().saturating_sub(1);
    for (at, (body, changes)) in records.into_iter().enumerate() {
        insert(db, state, body, changes, if at == last { txns } else { 0 })?;
    }
    Ok(())
}

/// Inserts a record of so many changes and transactions on the connection that made them.
fn insert(db: &mut Db, state: &mut State, body: Vec<u8>, changes: u64, txns: u64) -> Result<()> {
    let (first, txn) = (state.seq.next(), state.txn.next());
    let bytes = body.len() as u64;
    let last = Seq(state.seq.0 + changes);
    let params = [
        Value::Int(last.0 as i64),
        Value::Int(first.0 as i64),
        Value::Int(txn.0 as i64),
        Value::Int(txns as i64),
        Value::Bytes(body),
    ];
    let sql = "INSERT INTO _isles_log (last_seq, first_seq, first_txn, txns, body) VALUES ($1, $2, $3, $4, $5)";
    db.own(sql, &params, &[])?;
    state.seq = last;
    state.txn = TxnId(state.txn.0 + txns);
    state.log_records += 1;
    state.log_bytes += bytes;
    Ok(())
}

/// Changes after `after`, read in one snapshot.
pub(super) fn changes(db: &mut Db, after: Seq, limit: usize) -> Result<ChangePage> {
    db.own("BEGIN", &[], &[])?;
    let page = read_changes(db, after, limit);
    let ended = db.end_read();
    page.and_then(|page| ended.map(|()| page))
}

fn read_changes(db: &mut Db, after: Seq, limit: usize) -> Result<ChangePage> {
    let trimmed = format::meta_int(db, format::TRIMMED_SEQ)?;
    if after.0 < trimmed {
        return Err(ShardError::Trimmed { trimmed });
    }
    let mut page = ChangePage { changes: Vec::new(), through: after };
    while page.changes.len() < limit {
        let records = read_records(db, page.through)?;
        if records.is_empty() {
            break;
        }
        for (first, txn, body) in records {
            let changes = decode_record(&body, first, txn)
                .map_err(|_| ShardError::Corrupt("a record of the change log cannot be read".into()))?;
            let wanted = changes.into_iter().filter(|change| change.seq > page.through);
            page.changes.extend(wanted.take(limit - page.changes.len()));
            page.through = page.changes.last().map_or(page.through, |change| change.seq);
            if page.changes.len() == limit {
                break;
            }
        }
    }
    Ok(page)
}

fn read_records(db: &mut Db, after: Seq) -> Result<Vec<(Seq, TxnId, Vec<u8>)>> {
    let sql = "SELECT first_seq, first_txn, body FROM _isles_log WHERE last_seq > $1 ORDER BY last_seq LIMIT $2";
    let columns = [DataType::Int8, DataType::Int8, DataType::Bytes];
    let rows = db.own(sql, &[Value::Int(after.0 as i64), Value::Int(RECORDS_PER_READ)], &columns)?;
    rows.into_iter()
        .map(|row| match <[Value; 3]>::try_from(row) {
            Ok([Value::Int(first), Value::Int(txn), Value::Bytes(body)]) => {
                Ok((Seq(first as u64), TxnId(txn as u64), body))
            }
            _ => Err(ShardError::Corrupt("a record of the change log cannot be read".into())),
        })
        .collect()
}

pub(super) fn consumers(consumers: &BTreeMap<StreamId, Seq>) -> Vec<Consumer> {
    let each = consumers.iter();
    each.map(|(stream, position)| Consumer { stream: stream.clone(), position: *position }).collect()
}

pub(super) fn add_consumer(writer: &mut Writer, stream: &StreamId) -> Result<Seq> {
    if let Some(position) = writer.state.consumers.get(stream) {
        return Ok(*position);
    }
    if writer.state.consumers.len() >= MAX_CONSUMERS {
        return Err(ShardError::Limit { what: "the number of consumers", limit: MAX_CONSUMERS as u64 });
    }
    // Members before this one in the same group have been captured or not; either way they lie at or below here.
    let position = Seq(writer.state.seq.0 + writer.capture().record.changes());
    writer.enable_capture(stream);
    store_position(writer, stream, position)?;
    Ok(position)
}

pub(super) fn advance(writer: &mut Writer, stream: &StreamId, position: Seq) -> Result<()> {
    let trimmed = writer.state.trimmed.0;
    let stored = *writer.state.consumers.get(stream).ok_or(ShardError::Trimmed { trimmed })?;
    let end = writer.state.seq.0 + writer.capture().record.changes();
    if position.0 > end {
        return Err(ShardError::invalid(format!("position {position} is beyond the end of the log, {end}")));
    }
    if position > stored {
        store_position(writer, stream, position)?;
        trim(writer)?;
    }
    Ok(())
}

pub(super) fn remove_consumer(writer: &mut Writer, stream: &StreamId) -> Result<()> {
    writer.db.own("DELETE FROM _isles_consumer WHERE stream = $1", &[Value::text(stream.as_str())], &[])?;
    Arc::make_mut(&mut writer.state.consumers).remove(stream);
    trim(writer)
}

fn store_position(writer: &mut Writer, stream: &StreamId, position: Seq) -> Result<()> {
    let sql = "INSERT INTO _isles_consumer (stream, position) VALUES ($1, $2)
               ON CONFLICT DO UPDATE SET position = excluded.position";
    writer.db.own(sql, &[Value::text(stream.as_str()), Value::Int(position.0 as i64)], &[])?;
    Arc::make_mut(&mut writer.state.consumers).insert(stream.clone(), position);
    Ok(())
}

/// Removes what every consumer has passed.
fn trim(writer: &mut Writer) -> Result<()> {
    let slowest = writer.state.consumers.values().min().copied().unwrap_or(writer.state.seq);
    trim_through(writer, slowest)
}

/// Removes whole records up to `through`; a record that is half passed stays.
fn trim_through(writer: &mut Writer, through: Seq) -> Result<()> {
    let bound = [Value::Int(through.0 as i64)];
    let sql = "SELECT max(last_seq), max(first_txn + txns - 1), count(*), sum(length(body))
               FROM _isles_log WHERE last_seq <= $1";
    let rows = writer.db.own(sql, &bound, &[DataType::Int8; 4])?;
    let Some([Value::Int(seq), Value::Int(txn), Value::Int(records), Value::Int(bytes)]) =
        rows.first().map(Vec::as_slice)
    else {
        return Ok(());
    };
    writer.db.own("DELETE FROM _isles_log WHERE last_seq <= $1", &bound, &[])?;
    format::put_meta(&mut writer.db, format::TRIMMED_SEQ, Value::Int(*seq))?;
    format::put_meta(&mut writer.db, format::TRIMMED_TXN, Value::Int(*txn))?;
    writer.state.trimmed = Seq(*seq as u64);
    writer.state.log_records -= *records as u64;
    writer.state.log_bytes -= *bytes as u64;
    Ok(())
}

/// Forgets what was counted, and counts from 0: a bug, for tests that show that the harness finds it.
pub(super) fn restart(writer: &mut Writer) -> Result<()> {
    writer.db.own("DELETE FROM _isles_log", &[], &[])?;
    format::put_meta(&mut writer.db, format::TRIMMED_SEQ, Value::Int(0))?;
    (writer.state.seq, writer.state.trimmed) = (Seq(0), Seq(0));
    (writer.state.log_records, writer.state.log_bytes) = (0, 0);
    Ok(())
}

/// Whether the log has outgrown its cap, so that [`enforce_cap`] has work.
pub(super) fn is_over_cap(log_bytes: u64, cap: u64) -> bool {
    log_bytes > cap
}

/// Trims the log to three quarters of its cap, and drops the consumers that had not passed what went.
pub(super) fn enforce_cap(writer: &mut Writer, cap: u64) -> Result<()> {
    let keep = cap / 4 * 3;
    if !is_over_cap(writer.state.log_bytes, cap) {
        return Ok(());
    }
    let sql = "SELECT last_seq FROM (SELECT last_seq, sum(length(body)) OVER (ORDER BY last_seq DESC) AS size FROM _isles_log)
               WHERE size > $1 ORDER BY last_seq DESC LIMIT 1";
    let Some(through) = one_int(&mut writer.db, sql, &[Value::Int(keep as i64)])? else {
        return Ok(());
    };
    let through = Seq(through as u64);
    let late: Vec<StreamId> =
        writer.state.consumers.iter().filter(|(_, position)| **position < through).map(|(s, _)| s.clone()).collect();
    for stream in late {
        writer.db.own("DELETE FROM _isles_consumer WHERE stream = $1", &[Value::text(stream.as_str())], &[])?;
        Arc::make_mut(&mut writer.state.consumers).remove(&stream);
    }
    trim_through(writer, through)
}
