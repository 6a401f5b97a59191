//! Entries of global indexes ([`crate::entries`]), and what a transaction is about to add to them.
//!
//! Two who change one entry bucket take turns: its position is locked first, or made.

use super::ddl::table_name;
use super::fault;
use super::fence::Entry;
use super::log;
use super::pool::Conn;
use super::tenancy::OWN;
use crate::entries::{EntriesOf, EntryPart, EntryProbe, EntryProgress, Observed, stands_elsewhere};
use crate::error::{Result, ShardError};
use isles_kernel::names::{BucketId, Seq, ShardId};
use isles_kernel::schema::Schema;

/// Changes entries, in a transaction that the caller ends.
pub(super) async fn maintain(conn: &Conn, entry: &Entry, schema: &Schema, parts: &[EntryPart]) -> Result<()> {
    begin(conn, entry).await?;
    for part in parts {
        check_table(schema, &part.table)?;
        maintain_part(conn, part).await?;
    }
    Ok(())
}

async fn begin(conn: &Conn, entry: &Entry) -> Result<()> {
    conn.batch_execute(&format!("BEGIN READ WRITE; {OWN}")).await.map_err(fault::before_commit)?;
    if !entry.is_empty() {
        let enter = conn.prepare(super::fence::ENTER).await?;
        entry.enter(conn, &enter).await?;
    }
    Ok(())
}

fn check_table(schema: &Schema, table: &str) -> Result<()> {
    match schema.tables.get(table).is_some_and(isles_kernel::schema::Table::has_entries) {
        true => Ok(()),
        false => Err(ShardError::invalid(format!("table {table} has no entries"))),
    }
}

fn number(seq: Seq) -> Result<i64> {
    i64::try_from(seq.0).map_err(|_| ShardError::invalid("a position is below 2^63"))
}

async fn maintain_part(conn: &Conn, part: &EntryPart) -> Result<()> {
    let name = table_name(&part.table);
    if let Some(progress) = &part.progress
        && !comes_further(conn, &name, part.bucket, progress).await?
    {
        return Ok(());
    }
    if part.deltas.is_empty() {
        return Ok(());
    }
    let bucket = i64::from(part.bucket.0);
    let keys: Vec<&[u8]> = part.deltas.iter().map(|delta| delta.key.as_slice()).collect();
    let buckets: Vec<i64> = part.deltas.iter().map(|delta| i64::from(delta.bucket.0)).collect();
    let rows: Vec<i64> = part.deltas.iter().map(|delta| delta.rows).collect();
    let add = format!(
        "INSERT INTO {name} AS e (_bucket, key, bucket, rows) \
         SELECT $1::bigint::int, k, b, r FROM unnest($2::bytea[], $3::bigint[], $4::bigint[]) AS u (k, b, r) \
         ON CONFLICT (key, bucket) DO UPDATE SET rows = e.rows + excluded.rows"
    );
    conn.rows(&add, &[&bucket, &keys, &buckets, &rows]).await?;
    // Zero may be reached from below, too.
    let clear = format!(
        "DELETE FROM {name} AS e USING unnest($1::bytea[], $2::bigint[]) AS u (k, b) \
         WHERE e.key = u.k AND e.bucket = u.b AND e.rows = 0"
    );
    conn.rows(&clear, &[&keys, &buckets]).await.map(drop)
}

/// Brings an entry bucket's position forward; false if it is there already.
async fn comes_further(conn: &Conn, name: &str, bucket: BucketId, progress: &EntryProgress) -> Result<bool> {
    let (source, own) = (progress.source.key(), i64::from(bucket.0));
    // It is there from here on, and locked.
    let lock = format!(
        "INSERT INTO {name} AS e (_bucket, key, bucket, rows) VALUES ($2::bigint::int, $1, $2, 0) \
         ON CONFLICT (key, bucket) DO UPDATE SET rows = e.rows RETURNING rows"
    );
    let stands = Seq(conn.row(&lock, &[&source, &own]).await?.get::<_, i64>(0) as u64);
    if stands >= progress.through {
        return Ok(false);
    }
    if stands != progress.from {
        return Err(stands_elsewhere(bucket, stands, progress));
    }
    let put = format!("UPDATE {name} SET rows = $3 WHERE key = $1 AND bucket = $2");
    conn.rows(&put, &[&source, &own, &number(progress.through)?]).await?;
    Ok(true)
}

/// Deletes entries, in a transaction that the caller ends.
pub(super) async fn clear(
    conn: &Conn,
    entry: &Entry,
    schema: &Schema,
    table: &str,
    of: &EntriesOf,
    limit: usize,
) -> Result<u64> {
    check_table(schema, table)?;
    begin(conn, entry).await?;
    let name = table_name(table);
    let gone = |which: &str| {
        format!(
            "WITH gone AS (DELETE FROM {name} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {name} WHERE {which} \
             LIMIT {limit})) RETURNING 1) SELECT count(*) FROM gone"
        )
    };
    let row = match of {
        EntriesOf::Index => conn.row(&gone("true"), &[]).await?,
        EntriesOf::Source(source, buckets) => {
            let list: Vec<i64> = buckets.iter().map(|bucket| i64::from(bucket.0)).collect();
            let which = "key = $1 OR (key >= '\\x01'::bytea AND bucket = ANY ($2))";
            conn.row(&gone(which), &[&source.key(), &list]).await?
        }
    };
    Ok(row.get::<_, i64>(0) as u64)
}

/// Buckets that have rows with the keys that are asked for.
pub(super) async fn buckets(conn: &Conn, entry: &Entry, probes: &[EntryProbe]) -> Result<Vec<BucketId>> {
    let mut found = Vec::new();
    for EntryProbe { table, bucket, range } in probes {
        let name = table_name(table);
        let bucket = i64::from(bucket.0);
        let select = format!("SELECT DISTINCT bucket FROM {name} WHERE _bucket = $1::bigint AND key >= $2");
        let rows = match &range.high {
            Some(high) => {
                conn.rows(&format!("{select} AND key < $3 AND rows > 0"), &[&bucket, &range.low, high]).await?
            }
            None => conn.rows(&format!("{select} AND rows > 0"), &[&bucket, &range.low]).await?,
        };
        found.extend(rows.iter().map(|row| BucketId(row.get::<_, i64>(0) as u32)));
    }
    // If the shard is the owner now, it was when it was read.
    if !entry.is_empty() {
        entry.look(conn).await?;
    }
    Ok(found)
}

/// Tells the observer what the transaction of `conn` is about to commit. `schema` is the shard's, as last seen.
pub(super) async fn observe(conn: &Conn, shard: &ShardId, observed: &Observed, schema: &Schema) -> Result<()> {
    let Some(observer) = observed.interested() else { return Ok(()) };
    let rows = conn.rows("SELECT seq, txn::text, tab, before, after, version FROM _isles.own_changes()", &[]).await?;
    if rows.iter().any(|row| row.get::<_, i64>(5) as u64 != schema.version.0) {
        observer.committing_unseen(shard);
        return Ok(());
    }
    let changes = rows.iter().map(|row| log::change_of(row, schema)).collect::<Result<Vec<_>>>()?;
    observer.committing(shard, &changes);
    Ok(())
}
