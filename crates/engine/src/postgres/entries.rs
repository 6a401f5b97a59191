//! Entries of global indexes ([`crate::entries`]), and what a transaction is about to add to them.
//!
//! Two who change one entry bucket take turns: its position is locked first, or made.

use super::ddl::table_name;
use super::fault;
use super::fence::Entry;
use super::log;
use super::pool::Conn;
use super::tenancy::OWN;
use crate::entries::{
    EntriesFound, EntriesOf, EntryLook, EntryPart, EntryProbe, EntryProgress, Observed, stands_elsewhere,
};
use crate::error::{Result, ShardError};
use isles_kernel::names::{BucketId, Seq, ShardId};
use isles_kernel::schema::{POSITIONS, Schema, entry_place};
use std::collections::{BTreeMap, BTreeSet};

/// Changes entries, in a transaction that the caller ends.
pub(super) async fn maintain(conn: &Conn, entry: &Entry, schema: &Schema, parts: &[EntryPart]) -> Result<()> {
    begin(conn, entry).await?;
    let mut by_table: BTreeMap<&str, Vec<&EntryPart>> = BTreeMap::new();
    for part in parts {
        check_table(schema, &part.table)?;
        by_table.entry(&part.table).or_default().push(part);
    }
    for (table, parts) in by_table {
        maintain_table(conn, &table_name(table), parts).await?;
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

/// Changes entries of one index. A statement for each of the parts would be a round trip for each.
async fn maintain_table(conn: &Conn, name: &str, mut parts: Vec<&EntryPart>) -> Result<()> {
    come_further(conn, name, &mut parts).await?;
    let deltas = || parts.iter().flat_map(|part| part.deltas.iter().map(|delta| (part.bucket.0, delta)));
    if deltas().next().is_none() {
        return Ok(());
    }
    let own: Vec<i64> = deltas().map(|(own, _)| i64::from(own)).collect();
    let places: Vec<i64> = deltas().map(|(own, _)| entry_place(own)).collect();
    let keys: Vec<&[u8]> = deltas().map(|(_, delta)| delta.key.as_slice()).collect();
    let buckets: Vec<i64> = deltas().map(|(_, delta)| i64::from(delta.bucket.0)).collect();
    let rows: Vec<i64> = deltas().map(|(_, delta)| delta.rows).collect();
    // Several parts may name one entry.
    let add = format!(
        "INSERT INTO {name} AS e (_bucket, place, key, bucket, rows) \
         SELECT min(o)::int, p, k, b, sum(r)::bigint \
         FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[]) AS u (o, p, k, b, r) \
         GROUP BY p, k, b \
         ON CONFLICT (place, key, bucket) DO UPDATE SET rows = e.rows + excluded.rows"
    );
    conn.rows(&add, &[&own, &places, &keys, &buckets, &rows]).await?;
    // Zero may be reached from below, too.
    let clear = format!(
        "DELETE FROM {name} AS e USING unnest($1::bigint[], $2::bytea[], $3::bigint[]) AS u (p, k, b) \
         WHERE e.place = u.p AND e.key = u.k AND e.bucket = u.b AND e.rows = 0"
    );
    conn.rows(&clear, &[&places, &keys, &buckets]).await.map(drop)
}

/// Brings the positions of entry buckets forward, and leaves out the parts of those that are there already.
async fn come_further(conn: &Conn, name: &str, parts: &mut Vec<&EntryPart>) -> Result<()> {
    let wanted: BTreeMap<(&[u8], i64), &EntryProgress> = parts
        .iter()
        .filter_map(|part| part.progress.as_ref().map(|progress| (part.bucket.0, progress)))
        .map(|(own, progress)| ((progress.source.key(), i64::from(own)), progress))
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let sources: Vec<&[u8]> = wanted.keys().map(|(source, _)| *source).collect();
    let owns: Vec<i64> = wanted.keys().map(|(_, own)| *own).collect();
    // They are there from here on, and locked, in an order that all keep.
    let lock = format!(
        "INSERT INTO {name} AS e (_bucket, place, key, bucket, rows) \
         SELECT o::int, {POSITIONS}, k, o, 0 FROM unnest($1::bytea[], $2::bigint[]) AS u (k, o) ORDER BY u.k, u.o \
         ON CONFLICT (place, key, bucket) DO UPDATE SET rows = e.rows RETURNING key, bucket, rows"
    );
    let mut done = BTreeSet::new();
    for row in conn.rows(&lock, &[&sources, &owns]).await? {
        let (source, own, rows): (&[u8], i64, i64) = (row.get(0), row.get(1), row.get(2));
        let Some(((source, own), progress)) = wanted.iter().find(|(key, _)| **key == (source, own)) else { continue };
        let stands = Seq(rows as u64);
        if stands >= progress.through {
            done.insert((*source, *own));
        } else if stands != progress.from {
            return Err(stands_elsewhere(BucketId(*own as u32), stands, progress));
        }
    }
    parts.retain(|part| {
        let key = part.progress.as_ref().map(|progress| (progress.source.key(), i64::from(part.bucket.0)));
        key.is_none_or(|key| !done.contains(&key))
    });
    let through = wanted.values().map(|progress| number(progress.through)).collect::<Result<Vec<i64>>>()?;
    let put = format!(
        "UPDATE {name} AS e SET rows = greatest(e.rows, u.r) \
         FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) AS u (k, o, r) \
         WHERE e.place = {POSITIONS} AND e.key = u.k AND e.bucket = u.o"
    );
    conn.rows(&put, &[&sources, &owns, &through]).await.map(drop)
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
            let which = &format!("(place = {POSITIONS} AND key = $1) OR (place <> {POSITIONS} AND bucket = ANY ($2))");
            conn.row(&gone(which), &[&source.key(), &list]).await?
        }
    };
    Ok(row.get::<_, i64>(0) as u64)
}

/// Buckets that have rows with the keys that are asked for.
pub(super) async fn buckets(conn: &Conn, entry: &Entry, what: &EntryLook) -> Result<EntriesFound> {
    // Each index, and whether its ranges have an end: two forms of one statement.
    let mut alike: BTreeMap<(&str, bool), Vec<&EntryProbe>> = BTreeMap::new();
    for probe in &what.probes {
        alike.entry((&*probe.table, probe.range.high.is_some())).or_default().push(probe);
    }
    let mut found = EntriesFound::default();
    for ((table, _), probes) in alike {
        look(conn, table, &probes, what.most, &mut found).await?;
        if found.read > what.most {
            found.is_cut = true;
            break;
        }
    }
    // If the shard is the owner now, it was when it was read.
    if !entry.is_empty() {
        entry.look(conn).await?;
    }
    Ok(found)
}

/// Asks one index for all of its keys: a statement for each would be a round trip for each.
async fn look(conn: &Conn, table: &str, probes: &[&EntryProbe], most: usize, found: &mut EntriesFound) -> Result<()> {
    let name = table_name(table);
    let places: Vec<i64> = probes.iter().map(|probe| entry_place(probe.bucket.0)).collect();
    let lows: Vec<&[u8]> = probes.iter().map(|probe| probe.range.low.as_slice()).collect();
    let highs: Vec<&[u8]> = probes.iter().filter_map(|probe| probe.range.high.as_deref()).collect();
    let limit = found.left(most) as i64;
    let (keys, below) = match highs.is_empty() {
        true => ("unnest($2::bigint[], $3::bytea[]) AS u (place, low)", ""),
        false => ("unnest($2::bigint[], $3::bytea[], $4::bytea[]) AS u (place, low, high)", " AND key < u.high"),
    };
    // In order, so that they are found by their primary key: the table would be read to its end for the last few.
    let select = format!(
        "SELECT bucket, max(rows), count(*) FROM (SELECT e.bucket, e.rows FROM {keys}, \
         LATERAL (SELECT bucket, rows FROM {name} WHERE place = u.place AND key >= u.low{below} ORDER BY key LIMIT $1) AS e \
         LIMIT $1) AS found GROUP BY bucket"
    );
    let rows = match highs.is_empty() {
        true => conn.rows(&select, &[&limit, &places, &lows]).await?,
        false => conn.rows(&select, &[&limit, &places, &lows, &highs]).await?,
    };
    rows.iter().for_each(|row| found.note(row.get(0), row.get(1), row.get(2)));
    Ok(())
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
