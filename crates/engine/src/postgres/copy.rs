//! Rows of a snapshot of another shard.
//!
//! Nearly all of them are new here and nothing is known of their keys, so a batch is one INSERT. Whether anything is known
//! of a table is asked once for a batch; only then are its keys looked up, in one query.
//!
//! Rows of which one finds its key or a unique value taken are looked at: a row that was copied before gives way, and one
//! that the mirror has brought does not. Why that ends in the right rows is said in [`crate::rows`].

use super::apply::{begin_foreign, delete_keys, explained, insert_rows, plain, taken_key};
use super::pool::Conn;
use super::{stream, unique};
use crate::error::Result;
use crate::rows::IncomingCheck;
use crate::shard::{Applied, Batch, BatchKind, Incoming};
use isles_kernel::schema::{Schema, Table, Unit};
use isles_kernel::value::{Value, key_bytes};
use std::collections::{BTreeMap, BTreeSet};

/// Applies copied rows in an open transaction, up to its COMMIT.
pub(super) async fn copy(conn: &Conn, schema: &Schema, batch: &Batch) -> Result<Applied> {
    for rows in of_one_table(batch) {
        let check = IncomingCheck::new(schema.table(&rows[0].table)?);
        rows.iter().try_for_each(|row| check.check_copied(row).map(drop))?;
    }
    begin_foreign(conn).await?;
    stream::take_turn(conn, batch).await?;
    let mut applied = Applied::default();
    for rows in of_one_table(batch) {
        applied.written += copy_table(conn, schema.table(&rows[0].table)?, rows).await?;
    }
    applied.stale = batch.rows.len() as u64 - applied.written;
    Ok(applied)
}

fn of_one_table(batch: &Batch) -> impl Iterator<Item = &[Incoming]> {
    batch.rows.chunk_by(|one, next| one.table == next.table)
}

/// How many rows were written.
async fn copy_table(conn: &Conn, table: &Table, rows: &[Incoming]) -> Result<u64> {
    let rows = unknown(conn, table, rows).await?;
    plain(conn, "SAVEPOINT rows").await?;
    match insert_rows(conn, table, &rows).await {
        Err(error) if taken_key(&error).is_some() => {
            plain(conn, "ROLLBACK TO rows").await?;
            replace(conn, table, rows).await
        }
        result => result.map(|()| rows.len() as u64).map_err(|error| explained(error, table)),
    }
}

/// The rows of whose keys no version is known.
async fn unknown<'a>(conn: &Conn, table: &Table, rows: &'a [Incoming]) -> Result<Vec<&'a Incoming>> {
    let any = conn.row("SELECT EXISTS (SELECT FROM _isles.row_version WHERE tab = $1)", &[&table.name]).await?;
    if !any.get::<_, bool>(0) {
        return Ok(rows.iter().collect());
    }
    let keys: Vec<Vec<u8>> = rows.iter().map(|row| key_bytes(&row.key)).collect();
    let text = "SELECT key FROM _isles.row_version WHERE tab = $1 AND key = ANY ($2)";
    let found = conn.rows(text, &[&table.name, &keys]).await?;
    let known: BTreeSet<&[u8]> = found.iter().map(|row| row.get(0)).collect();
    Ok(rows.iter().zip(&keys).filter(|(_, key)| !known.contains(key.as_slice())).map(|(row, _)| row).collect())
}

/// Writes rows of which some are there, in an earlier copy, or have values that are taken.
async fn replace(conn: &Conn, table: &Table, rows: Vec<&Incoming>) -> Result<u64> {
    let last: BTreeMap<Vec<u8>, &Incoming> = rows.into_iter().map(|row| (key_bytes(&row.key), row)).collect();
    let rows: Vec<&Incoming> = last.into_values().collect();
    let keys: Vec<(&Unit, &[Value])> = rows.iter().map(|row| (&row.unit, row.key.as_slice())).collect();
    delete_keys(conn, table, &keys).await?;
    let kept = unique::give_way(conn, table, BatchKind::Copy, &rows).await?;
    insert_rows(conn, table, &kept).await.map_err(|error| explained(error, table))?;
    Ok(kept.len() as u64)
}
