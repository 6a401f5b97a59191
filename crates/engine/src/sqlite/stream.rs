//! Streams: how far the rows of another shard have come, and who brings them.
//!
//!     open_stream ─► the driver's token is stored ◄─ compared by each batch, and by forgetting
//!
//! Whoever moves rows may be doubled, or frozen and come back late. So a stream has a driver, and each write says whose
//! it is. All of them run under the shard's one writer: once a token has been raised, no batch of an earlier driver is
//! running, and none will be let in.
//!
//! A stream may have left millions of versions. A reader finds them, so that the writer is held only for as long as it
//! takes to delete a chunk by key. The stream's own record goes last: a stream of which anything is left is there to be
//! forgotten again.
//!
//! Invariants (docs/invariants.md):
//!   * I-13  a stream's token never falls, and what carries another one changes nothing

use super::raw::Db;
use super::writer::Writer;
use super::{OWN_WRITE_TIME, SqliteShard, reader};
use crate::error::{Result, ShardError};
use crate::shard::{Batch, DriverToken, FORGET_ROWS, StreamState};
use isles_kernel::names::{Seq, StreamId};
use isles_kernel::value::{DataType, Value};

/// What is stored of a stream.
struct Record {
    state: StreamState,
    driver: Option<i64>,
}

fn record(db: &mut Db, stream: &StreamId) -> Result<Option<Record>> {
    let sql = "SELECT position, cursor, driver FROM _isles_stream WHERE stream = $1";
    let types = [DataType::Int8, DataType::Bytes, DataType::Int8];
    let rows = db.own(sql, &[Value::text(stream.as_str())], &types)?;
    Ok(match rows.into_iter().next().map(<[Value; 3]>::try_from) {
        Some(Ok([Value::Int(position), cursor, driver])) => {
            let cursor = if let Value::Bytes(bytes) = cursor { Some(bytes) } else { None };
            let driver = if let Value::Int(token) = driver { Some(token) } else { None };
            Some(Record { state: StreamState { position: Seq(position as u64), cursor }, driver })
        }
        _ => None,
    })
}

pub(super) fn state(db: &mut Db, stream: &StreamId) -> Result<StreamState> {
    Ok(record(db, stream)?.map(|record| record.state).unwrap_or_default())
}

pub(super) fn open(db: &mut Db, stream: &StreamId, driver: DriverToken) -> Result<StreamState> {
    let token = driver.stored()?;
    let known = record(db, stream)?;
    if known.as_ref().is_some_and(|known| known.driver > Some(token)) {
        return Err(ShardError::Superseded);
    }
    let sql = "INSERT INTO _isles_stream (stream, position, driver) VALUES ($1, 0, $2)
               ON CONFLICT DO UPDATE SET driver = excluded.driver";
    db.own(sql, &[Value::text(stream.as_str()), Value::Int(token)], &[])?;
    Ok(known.map(|known| known.state).unwrap_or_default())
}

/// Whether whoever says it drives a stream does.
pub(super) fn check(db: &mut Db, stream: &StreamId, driver: Option<DriverToken>) -> Result<()> {
    let Some(driver) = driver else { return Ok(()) };
    let token = driver.stored()?;
    match record(db, stream)? {
        Some(Record { driver: Some(known), .. }) if known == token => Ok(()),
        _ => Err(ShardError::Superseded),
    }
}

/// Stores where a batch brings its stream.
pub(super) fn store(db: &mut Db, batch: &Batch) -> Result<()> {
    let sql = "INSERT INTO _isles_stream (stream, position, cursor) VALUES ($1, $2, $3)
               ON CONFLICT DO UPDATE SET position = max(position, excluded.position),
                                         cursor = coalesce(excluded.cursor, cursor)";
    let position = batch.position.unwrap_or(Seq::ZERO).0 as i64;
    let cursor = batch.cursor.clone().map_or(Value::Null, Value::Bytes);
    db.own(sql, &[Value::text(batch.stream.as_str()), Value::Int(position), cursor], &[]).map(drop)
}

/// The table and key of a row whose version is stored.
type Version = Vec<Value>;

pub(super) async fn forget(shard: &SqliteShard, stream: &StreamId, driver: Option<DriverToken>) -> Result<()> {
    let mut after: Version = vec![Value::text(""), Value::Bytes(vec![])];
    loop {
        let (wanted, from) = (stream.clone(), after);
        let found = reader::with_reader(&shard.shared, OWN_WRITE_TIME, move |db| versions(db, &wanted, &from)).await?;
        let next = found.last().filter(|_| found.len() == FORGET_ROWS).cloned();
        let (stream, ends) = (stream.clone(), next.is_none());
        let forgot = move |writer: &mut Writer| {
            if ends {
                // The move is over; the next rows of another shard may be long in coming.
                writer.release_applier();
            }
            forget_chunk(&mut writer.db, &stream, driver, &found, ends)
        };
        shard.write(OWN_WRITE_TIME, forgot).await?;
        match next {
            Some(last) => after = last,
            None => return Ok(()),
        }
    }
}

/// The next versions of a stream, in the order of the table.
fn versions(db: &mut Db, stream: &StreamId, after: &[Value]) -> Result<Vec<Version>> {
    let sql = "SELECT name, key FROM _isles_row_version WHERE (name, key) > ($1, $2) AND stream = $3
               ORDER BY name, key LIMIT $4";
    let params: Vec<Value> =
        after.iter().cloned().chain([Value::text(stream.as_str()), Value::Int(FORGET_ROWS as i64)]).collect();
    db.own(sql, &params, &[DataType::Text, DataType::Bytes])
}

fn forget_chunk(
    db: &mut Db,
    stream: &StreamId,
    driver: Option<DriverToken>,
    versions: &[Version],
    ends: bool,
) -> Result<()> {
    if record(db, stream)?.is_some() {
        check(db, stream, driver)?;
    }
    let name = Value::text(stream.as_str());
    for version in versions {
        let sql = "DELETE FROM _isles_row_version WHERE name = $1 AND key = $2 AND stream = $3";
        let params: Vec<Value> = version.iter().chain([&name]).cloned().collect();
        db.own(sql, &params, &[])?;
    }
    if ends {
        db.own("DELETE FROM _isles_stream WHERE stream = $1", &[name], &[])?;
    }
    Ok(())
}
