//! Entries of global indexes ([`crate::entries`]).
//!
//! They are changed in the group of whoever writes at the time, and share its flush.

use super::raw::Db;
use super::reader::{check_fences, read_error, with_reader};
use super::writer::Writer;
use super::{OWN_WRITE_TIME, Shared, ddl};
use crate::entries::{EntriesOf, EntryPart, EntryProbe, EntryProgress, stands_elsewhere};
use crate::error::{Result, ShardError};
use crate::fence::Claim;
use isles_kernel::names::{BucketId, Seq};
use isles_kernel::schema::{POSITIONS, entry_place};
use isles_kernel::value::{DataType, Value};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Looks of the progress handler that a lookup may take on the caller's thread.
const INLINE_LOOKS: u32 = 10;

/// Changes entries, each part wholly or, where it has been done already, not at all.
pub(super) fn maintain(writer: &mut Writer, parts: &[EntryPart]) -> Result<()> {
    for part in parts {
        if !writer.state.schema.tables.get(&part.table).is_some_and(isles_kernel::schema::Table::has_entries) {
            return Err(ShardError::invalid(format!("table {} has no entries", part.table)));
        }
        maintain_part(&mut writer.db, part)?;
    }
    Ok(())
}

fn maintain_part(db: &mut Db, part: &EntryPart) -> Result<()> {
    let name = ddl::quoted(&part.table);
    if let Some(progress) = &part.progress
        && !comes_further(db, &name, part.bucket, progress)?
    {
        return Ok(());
    }
    let add = format!(
        "INSERT INTO {name} (_bucket, place, key, bucket, rows) VALUES ($5, $1, $2, $3, $4) \
         ON CONFLICT (place, key, bucket) DO UPDATE SET rows = rows + excluded.rows WHERE rows <> -excluded.rows"
    );
    let clear = format!("DELETE FROM {name} WHERE place = $1 AND key = $2 AND bucket = $3 AND rows = -$4");
    let own = i64::from(part.bucket.0);
    for delta in &part.deltas {
        let entry = [
            Value::Int(entry_place(part.bucket.0)),
            Value::Bytes(delta.key.clone()),
            Value::Int(i64::from(delta.bucket.0)),
            Value::Int(delta.rows),
            Value::Int(own),
        ];
        // Most rows that come are the first with their key, and most that go are the last. Zero may be reached from below, too.
        let (add, clear) = ((&add, entry.as_slice()), (&clear, &entry[..4]));
        let [first, second] = if delta.rows > 0 { [add, clear] } else { [clear, add] };
        db.own_kept(first.0, first.1, &[])?;
        if db.changes() == 0 {
            db.own_kept(second.0, second.1, &[])?;
        }
    }
    Ok(())
}

/// Brings an entry bucket's position forward; false if it is there already.
fn comes_further(db: &mut Db, name: &str, bucket: BucketId, progress: &EntryProgress) -> Result<bool> {
    let [source, own] = [Value::Bytes(progress.source.key().to_vec()), Value::Int(i64::from(bucket.0))];
    let select = format!("SELECT rows FROM {name} WHERE place = {POSITIONS} AND key = $1 AND bucket = $2");
    let rows = db.own_kept(&select, &[source.clone(), own.clone()], &[DataType::Int8])?;
    let stands = match rows.first().map(Vec::as_slice) {
        Some([Value::Int(position)]) => Seq(*position as u64),
        _ => Seq(0),
    };
    if stands >= progress.through {
        return Ok(false);
    }
    if stands != progress.from {
        return Err(stands_elsewhere(bucket, stands, progress));
    }
    let put = format!(
        "INSERT INTO {name} (_bucket, place, key, bucket, rows) VALUES ($2, {POSITIONS}, $1, $2, $3) \
         ON CONFLICT (place, key, bucket) DO UPDATE SET rows = excluded.rows"
    );
    db.own_kept(&put, &[source, own, Value::Int(progress.through.0 as i64)], &[])?;
    Ok(true)
}

/// Deletes entries, at most so many. Returns how many went.
pub(super) fn clear(writer: &mut Writer, table: &str, of: &EntriesOf, limit: usize) -> Result<u64> {
    let name = ddl::quoted(table);
    let (which, params) = match of {
        EntriesOf::Index => ("true".into(), vec![]),
        EntriesOf::Source(source, buckets) => {
            let list: Vec<String> = buckets.iter().map(|bucket| bucket.0.to_string()).collect();
            let list = list.join(", ");
            let which = format!("(place = {POSITIONS} AND key = $1) OR (place <> {POSITIONS} AND bucket IN ({list}))");
            (which, vec![Value::Bytes(source.key().to_vec())])
        }
    };
    let delete = format!(
        "DELETE FROM {name} WHERE (place, key, bucket) IN \
         (SELECT place, key, bucket FROM {name} WHERE {which} LIMIT {limit})"
    );
    writer.db.own_text(&delete, &params, &[])?;
    Ok(writer.db.changes())
}

/// Buckets that have rows with the keys that are asked for.
pub(super) async fn buckets(shared: &Arc<Shared>, claim: Claim, probes: Vec<EntryProbe>) -> Result<Vec<BucketId>> {
    shared.check_running()?;
    if let Some(found) = inline(shared, &claim, &probes) {
        return found;
    }
    let (owner, look) = (shared.clone(), move |db: &mut Db| look(db, &probes));
    let found = with_reader(shared, OWN_WRITE_TIME, look).await?;
    check_fences(&owner, &claim).map(|()| found)
}

/// Tries it on the caller's thread. None: it takes too long, or no reader is idle.
fn inline(shared: &Arc<Shared>, claim: &Claim, probes: &[EntryProbe]) -> Option<Result<Vec<BucketId>>> {
    let number = shared.state_number.load(Ordering::SeqCst);
    let mut db = shared.readers.pop()?;
    db.set_budget(Some(INLINE_LOOKS));
    let found = db.keep_snapshot(number).and_then(|()| look(&mut db, probes));
    let too_long = db.out_of_budget();
    db.set_budget(None);
    if found.is_ok() || db.end_snapshot().is_ok() {
        shared.readers.push(db);
    }
    if too_long {
        return None;
    }
    Some(found.and_then(|found| check_fences(shared, claim).map(|()| found)).map_err(read_error))
}

fn look(db: &mut Db, probes: &[EntryProbe]) -> Result<Vec<BucketId>> {
    let mut found = Vec::new();
    for EntryProbe { table, bucket, range } in probes {
        let below = if range.high.is_some() { " AND key < $3" } else { "" };
        let select = format!(
            "SELECT DISTINCT bucket FROM {} WHERE place = $1 AND key >= $2{below} AND rows > 0",
            ddl::quoted(table)
        );
        let bounds = [Some(range.low.clone()), range.high.clone()];
        let params: Vec<Value> = [Value::Int(entry_place(bucket.0))]
            .into_iter()
            .chain(bounds.into_iter().flatten().map(Value::Bytes))
            .collect();
        for row in db.own_kept(&select, &params, &[DataType::Int8])? {
            match row.as_slice() {
                [Value::Int(bucket)] => found.push(BucketId(*bucket as u32)),
                _ => return Err(ShardError::Corrupt("an entry of an index has no bucket".into())),
            }
        }
    }
    Ok(found)
}
