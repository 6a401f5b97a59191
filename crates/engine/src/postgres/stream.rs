//! Streams: how far the rows of another shard have come, and who brings them.
//!
//!     open_stream ─► the driver's token is stored ◄─ compared by each batch, and by forgetting
//!
//! Whoever moves rows may be doubled, or frozen and come back late. So a stream has a driver, and each write says whose
//! it is. Every one of them locks the stream's row first and compares the token as it is then. Raising the token takes
//! the same lock, so once it has been raised, no batch of an earlier driver is running, and none will be let in.
//!
//! A stream may have left millions of versions, which go in chunks. Its own record goes last: a stream of which anything
//! is left is there to be forgotten again.
//!
//! Invariants (docs/invariants.md):
//!   * I-13  a stream's token never falls, and what carries another one changes nothing

use super::fault;
use super::pool::Conn;
use crate::error::{Result, ShardError};
use crate::shard::{Batch, DriverToken, FORGET_ROWS, StreamState};
use isles_kernel::names::{Seq, StreamId};
use std::collections::BTreeSet;
use tokio_postgres::Row;
use xxhash_rust::xxh3::xxh3_64;

/// The class of advisory locks on tables that rows are applied to.
const TABLE_CLASS: i32 = super::fence::LOCK_CLASS + 1;

/// Of a row that begins with position and cursor.
fn state_of(row: &Row) -> StreamState {
    StreamState { position: Seq(row.get::<_, i64>(0) as u64), cursor: row.get(1) }
}

pub(super) async fn state(conn: &Conn, stream: &StreamId) -> Result<StreamState> {
    let text = "SELECT position, cursor FROM _isles.stream WHERE stream = $1";
    let rows = conn.rows(text, &[&stream.as_str()]).await?;
    Ok(rows.first().map(state_of).unwrap_or_default())
}

/// In a transaction that the caller ends.
pub(super) async fn open(conn: &Conn, stream: &StreamId, driver: DriverToken) -> Result<StreamState> {
    conn.batch_execute("BEGIN READ WRITE").await.map_err(fault::before_commit)?;
    let text = "INSERT INTO _isles.stream AS s (stream, driver) VALUES ($1, $2) \
                ON CONFLICT (stream) DO UPDATE SET driver = excluded.driver \
                WHERE s.driver IS NULL OR s.driver <= excluded.driver RETURNING position, cursor";
    let rows = conn.rows(text, &[&stream.as_str(), &driver.stored()?]).await?;
    rows.first().map(state_of).ok_or(ShardError::Superseded)
}

const CHECK: &str = "SELECT FROM _isles.stream WHERE stream = $1 AND driver = $2 FOR UPDATE";
const LOCK_TABLES: &str = "SELECT pg_advisory_xact_lock($1, slot) FROM unnest($2::int[]) AS slot";
const MOVE_POSITION: &str = "INSERT INTO _isles.stream AS s (stream, position, cursor) \
     VALUES ($1, coalesce($2::bigint, 0), $3) \
     ON CONFLICT (stream) DO UPDATE SET position = greatest(s.position, excluded.position), \
     cursor = coalesce(excluded.cursor, s.cursor)";

/// Whether whoever says it drives a stream does. It stays so to the end of the transaction.
pub(super) async fn check(conn: &Conn, stream: &StreamId, driver: Option<DriverToken>) -> Result<()> {
    let Some(driver) = driver else { return Ok(()) };
    match conn.rows(CHECK, &[&stream.as_str(), &driver.stored()?]).await?.is_empty() {
        true => Err(ShardError::Superseded),
        false => Ok(()),
    }
}

/// Batches that write to one table take turns: what they look up of a key must hold until they have written it. All take
/// their locks in one order.
async fn lock_tables(conn: &Conn, batch: &Batch) -> Result<()> {
    let tables: BTreeSet<&str> = batch.rows.iter().map(|row| row.table.as_str()).collect();
    let locks: BTreeSet<i32> = tables.into_iter().map(|table| xxh3_64(table.as_bytes()) as i32).collect();
    let locks: Vec<i32> = locks.into_iter().collect();
    conn.rows(LOCK_TABLES, &[&TABLE_CLASS, &locks]).await.map(drop)
}

async fn move_position(conn: &Conn, batch: &Batch) -> Result<()> {
    let position = match batch.position {
        Some(seq) => Some(i64::try_from(seq.0).map_err(|_| ShardError::invalid("a position is below 2^63"))?),
        None => None,
    };
    conn.rows(MOVE_POSITION, &[&batch.stream.as_str(), &position, &batch.cursor]).await.map(drop)
}

/// Prepares what [`take_turn`] sends, which is then sent in order and at once.
pub(super) async fn prepare_turn(conn: &Conn) -> Result<()> {
    for text in [CHECK, LOCK_TABLES, MOVE_POSITION] {
        conn.prepare(text).await?;
    }
    Ok(())
}

/// Batches of one stream take turns, and move its position, which never falls.
pub(super) async fn take_turn(conn: &Conn, batch: &Batch) -> Result<()> {
    let checked = check(conn, &batch.stream, batch.driver);
    let (checked, locked, moved) = futures::join!(checked, lock_tables(conn, batch), move_position(conn, batch));
    checked.and(locked).and(moved)
}

/// Forgets a chunk, in a transaction that the caller ends; whether it was the last one.
pub(super) async fn forget_chunk(conn: &Conn, stream: &StreamId, driver: Option<DriverToken>) -> Result<bool> {
    conn.batch_execute("BEGIN READ WRITE").await.map_err(fault::before_commit)?;
    let name = stream.as_str();
    let there = conn.rows("SELECT FROM _isles.stream WHERE stream = $1 FOR UPDATE", &[&name]).await?;
    if !there.is_empty() {
        check(conn, stream, driver).await?;
    }
    let text = format!(
        "DELETE FROM _isles.row_version WHERE ctid = ANY \
         (ARRAY(SELECT ctid FROM _isles.row_version WHERE stream = $1 LIMIT {FORGET_ROWS}))"
    );
    let gone = conn.execute(text.as_str(), &[&name]).await.map_err(fault::before_commit)?;
    let ends = gone < FORGET_ROWS as u64;
    if ends {
        conn.rows("DELETE FROM _isles.stream WHERE stream = $1", &[&name]).await?;
    }
    Ok(ends)
}
