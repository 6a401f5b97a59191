//! Rows of a snapshot of another shard.
//!
//! Nearly all of them are new here and nothing is known of their keys, so a batch is one COPY in the server's binary form,
//! or one INSERT where COPY cannot be: the server refuses it where row level security binds us, and a few types have no
//! binary form here. Whether anything is known of a table is asked once for a batch; only then are its keys looked up, in
//! one query.
//!
//! Rows of which one finds its key or a unique value taken are looked at: a row that was copied before gives way, and one
//! that the mirror has brought does not. Why that ends in the right rows is said in [`crate::rows`].

use super::apply::{
    Refusal, begin_turn, delete_keys, explained, hidden_column, hidden_value, insert_rows, is_plain, plain, taken_key,
};
use super::ddl::{columns, table_name};
use super::pool::Conn;
use super::value::{declared, encode_field};
use super::{stream, unique};
use crate::error::Result;
use crate::rows::IncomingCheck;
use crate::shard::{Applied, Batch, BatchKind, Incoming};
use bytes::{Bytes, BytesMut};
use isles_kernel::schema::{Schema, Table, Unit};
use isles_kernel::value::{Value, key_bytes};
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::types::Type;

/// What is handed to the socket at once.
const PIECE_BYTES: usize = 256 << 10;

/// Applies copied rows in an open transaction, up to its COMMIT.
pub(super) async fn copy(conn: &Conn, schema: &Schema, batch: &Batch) -> Result<Applied> {
    for rows in of_one_table(batch) {
        let check = IncomingCheck::new(schema.table(&rows[0].table)?);
        rows.iter().try_for_each(|row| check.check_copied(row).map(drop))?;
    }
    stream::prepare_turn(conn).await?;
    begin_turn(conn, batch).await?;
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
    let text = "SELECT EXISTS (SELECT FROM _isles.row_version WHERE tab = $1), row_security_active($2)";
    let asked = conn.row(text, &[&table.name, &table_name(&table.name)]).await?;
    let (known, bound) = (asked.get::<_, bool>(0), asked.get::<_, bool>(1));
    let rows = if known { unknown(conn, table, rows).await? } else { rows.iter().collect() };
    let types = types(table);
    plain(conn, "SAVEPOINT rows").await?;
    let done = match !bound && types.iter().all(is_plain) {
        true => copy_in(conn, table, &types, &rows).await,
        false => insert_rows(conn, table, &rows).await,
    };
    match done {
        Err(error) if taken_key(&error).is_some() => {
            plain(conn, "ROLLBACK TO rows").await?;
            replace(conn, table, rows).await
        }
        result => result.map(|()| rows.len() as u64).map_err(|error| explained(error, table)),
    }
}

/// The types of the columns that a row is written with.
fn types(table: &Table) -> Vec<Type> {
    let hidden = hidden_column(table).map(|(_, ty)| ty);
    hidden.into_iter().chain(table.columns.iter().map(declared)).collect()
}

async fn copy_in(conn: &Conn, table: &Table, types: &[Type], rows: &[&Incoming]) -> std::result::Result<(), Refusal> {
    let pieces = encode(types, rows).map_err(Refusal::Ours)?;
    let hidden = hidden_column(table).map(|(name, _)| name.to_string());
    let names: Vec<String> = hidden.into_iter().chain(table.columns.iter().map(|column| column.name.clone())).collect();
    let text = format!("COPY {} ({}) FROM STDIN (FORMAT binary)", table_name(&table.name), columns(&names));
    let statement = conn.prepare(&text).await.map_err(Refusal::Ours)?;
    conn.copy_in(&statement, pieces).await.map(drop).map_err(Refusal::Server)
}

/// Rows in the binary form of COPY, in pieces that the socket can take.
fn encode(types: &[Type], rows: &[&Incoming]) -> Result<Vec<Bytes>> {
    const HEAD: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
    const TAIL: i16 = -1;
    let (mut pieces, mut out) = (Vec::new(), BytesMut::from(HEAD));
    for incoming in rows {
        let hidden = hidden_value(&incoming.unit);
        out.extend_from_slice(&(types.len() as i16).to_be_bytes());
        for (value, ty) in hidden.iter().chain(incoming.row.iter().flatten()).zip(types) {
            encode_field(value, ty, &mut out)?;
        }
        if out.len() >= PIECE_BYTES {
            pieces.push(out.split().freeze());
        }
    }
    out.extend_from_slice(&TAIL.to_be_bytes());
    pieces.push(out.freeze());
    Ok(pieces)
}

/// The rows of whose keys no version is known.
async fn unknown<'a>(conn: &Conn, table: &Table, rows: &'a [Incoming]) -> Result<Vec<&'a Incoming>> {
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
