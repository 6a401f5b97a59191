//! Entries of global indexes ([`crate::entries`]).
//!
//! They are changed in the group of whoever writes at the time, and share its flush.

use super::raw::{Db, Prepared, Ran};
use super::reader::{check_fences, checkout, read_error};
use super::writer::Writer;
use super::{OWN_WRITE_TIME, Shared, ddl};
use crate::entries::{EntriesFound, EntriesOf, EntryLook, EntryPart, EntryProbe, EntryProgress, stands_elsewhere};
use crate::error::{Result, ShardError};
use crate::fence::Claim;
use isles_kernel::index::EntryDelta;
use isles_kernel::names::{BucketId, Seq};
use isles_kernel::schema::{POSITIONS, entry_place};
use isles_kernel::value::{DataType, Value};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Looks of the progress handler that a lookup may take on the caller's thread.
const INLINE_LOOKS: u32 = 10;

/// Changes entries, each part wholly or, where it has been done already, not at all.
pub(super) fn maintain(writer: &mut Writer, parts: &[EntryPart]) -> Result<()> {
    for parts in parts.chunk_by(|one, next| one.table == next.table) {
        let table = &parts[0].table;
        if !writer.state.schema.tables.get(table).is_some_and(isles_kernel::schema::Table::has_entries) {
            return Err(ShardError::invalid(format!("table {table} has no entries")));
        }
        maintain_table(&mut writer.db, table, parts)?;
    }
    Ok(())
}

/// Parts of one index. Its statements are looked for once, and not for each entry.
fn maintain_table(db: &mut Db, table: &str, parts: &[EntryPart]) -> Result<()> {
    let name = ddl::quoted(table);
    let add = format!(
        "INSERT INTO {name} (place, key, bucket, rows, _bucket) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (place, key, bucket) DO UPDATE SET rows = rows + excluded.rows WHERE rows <> -excluded.rows"
    );
    let clear = format!("DELETE FROM {name} WHERE place = $1 AND key = $2 AND bucket = $3 AND rows = -$4");
    let changes = Changes { add: db.take_kept(&add)?, clear: db.take_kept(&clear)? };
    for part in parts {
        if let Some(progress) = &part.progress
            && !comes_further(db, &name, part.bucket, progress)?
        {
            continue;
        }
        part.deltas.iter().try_for_each(|delta| changes.apply(db, part.bucket, delta))?;
    }
    db.give_back(add, changes.add);
    db.give_back(clear, changes.clear);
    Ok(())
}

/// The statements that change entries of an index.
struct Changes {
    add: Prepared,
    clear: Prepared,
}

impl Changes {
    fn apply(&self, db: &mut Db, bucket: BucketId, delta: &EntryDelta) -> Result<()> {
        let own = i64::from(bucket.0);
        let entry = [
            Value::Int(entry_place(bucket.0)),
            Value::Bytes(delta.key.clone()),
            Value::Int(i64::from(delta.bucket.0)),
            Value::Int(delta.rows),
            Value::Int(own),
        ];
        // Most rows that come are the first with their key, and most that go are the last. Zero may be reached from below, too.
        let (add, clear) = ((&self.add, entry.as_slice()), (&self.clear, &entry[..4]));
        let [first, second] = if delta.rows > 0 { [add, clear] } else { [clear, add] };
        if run(db, first)? == 0 {
            run(db, second)?;
        }
        Ok(())
    }
}

/// How many entries a statement has changed.
fn run(db: &mut Db, (statement, params): (&Prepared, &[Value])) -> Result<u64> {
    match db.run_bound(statement, params.iter())? {
        Ran::Done => Ok(db.changes()),
        Ran::Taken => Err(ShardError::Corrupt("an entry of an index is there twice".into())),
    }
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
pub(super) async fn buckets(shared: &Arc<Shared>, claim: Claim, what: EntryLook) -> Result<EntriesFound> {
    shared.check_running()?;
    if what.limits.cancel.is_cancelled() {
        return Err(ShardError::Cancelled);
    }
    if what.limits.time.is_zero() {
        return Err(ShardError::TimedOut);
    }
    if let Some(found) = inline(shared, &claim, &what) {
        return found;
    }
    let deadline = shared.env.elapsed() + what.limits.time.min(OWN_WRITE_TIME);
    let mut guard = checkout(shared, deadline).await?;
    let job = move || {
        guard.db().set_watch(deadline, Some(what.limits.cancel.clone()));
        look(guard.db(), &what)
    };
    let found = shared.on_pool(job).await?.map_err(read_error)?;
    check_fences(shared, &claim).map(|()| found)
}

/// Tries it on the caller's thread. None: it takes too long, or no reader is idle.
fn inline(shared: &Arc<Shared>, claim: &Claim, what: &EntryLook) -> Option<Result<EntriesFound>> {
    let number = shared.state_number.load(Ordering::SeqCst);
    let mut db = shared.readers.pop()?;
    db.set_budget(Some(INLINE_LOOKS));
    let found = db.keep_snapshot(number).and_then(|()| look(&mut db, what));
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

fn look(db: &mut Db, what: &EntryLook) -> Result<EntriesFound> {
    let mut found = EntriesFound::default();
    for EntryProbe { table, bucket, range } in &what.probes {
        let below = if range.high.is_some() { " AND key < $4" } else { "" };
        let select = format!(
            "SELECT bucket, max(rows), count(*) FROM \
             (SELECT bucket, rows FROM {} WHERE place = $1 AND key >= $2{below} LIMIT $3) GROUP BY bucket",
            ddl::quoted(table)
        );
        let most = Value::Int(found.left(what.most) as i64);
        let low = [Value::Int(entry_place(bucket.0)), Value::Bytes(range.low.clone()), most];
        let params: Vec<Value> = low.into_iter().chain(range.high.clone().map(Value::Bytes)).collect();
        for row in db.own_kept(&select, &params, &[DataType::Int8; 3])? {
            match row.as_slice() {
                [Value::Int(bucket), Value::Int(rows), Value::Int(entries)] => found.note(*bucket, *rows, *entries),
                _ => return Err(ShardError::Corrupt("an entry of an index has no bucket".into())),
            }
        }
        if found.read > what.most {
            found.is_cut = true;
            break;
        }
    }
    Ok(found)
}
