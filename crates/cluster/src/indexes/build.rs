//! Entries for rows that were there before the index.
//!
//! Shard by shard: from one snapshot all rows are counted, and from there on the shard's log is followed, first by a
//! reader of the build's own and then, when that has caught up, by the shard's applier. So each row is counted once,
//! by the snapshot or by the log, however long the build takes and whatever is written meanwhile.
//!
//! A build that dies begins again with the first shard that is not done. Of that shard some rows may have been counted:
//! they are taken out first. Rows do not change shards while an index over them is built (I-17).
//!
//! Of a shard that comes when an index is ready nothing is counted: its rows were moved there, and are in the entries by
//! the shard that they come from, or were written there, and are in its log, which is kept from before it serves anyone.

use super::apply::{Following, Trouble, apply_page, build_stream};
use super::store::{self, IndexRecord};
use super::watch::Watched;
use super::write::{Company, write};
use super::{keep, lock};
use crate::database::Database;
use isles_engine::entries::{EntriesOf, EntryPart, EntryProgress};
use isles_engine::error::ShardError;
use isles_engine::fence::{Claim, Claimed};
use isles_engine::shard::{EVENT_ROWS, KeyRange, Scope, Shard, Snapshot, StoredRow};
use isles_kernel::error::SqlError;
use isles_kernel::index::{Deltas, Source};
use isles_kernel::names::{BucketId, GroupName, Seq, ShardId};
use isles_kernel::schema::ENTRY_BUCKETS;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Rows of one page: what they make of the entries is one transaction on each shard that has some.
const PAGE_ROWS: usize = 2_000;
/// Entries that are deleted at once.
const CLEAR_ROWS: usize = 5_000;

/// How far a build has come.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    pub(crate) group: GroupName,
    /// Rows that have been counted.
    pub(crate) rows: u64,
    /// How many there are to be counted, as it was at the beginning.
    pub(crate) total: Option<u64>,
    pub(crate) shard: Option<ShardId>,
    /// What it waits for.
    pub(crate) waits: Option<String>,
}

impl From<Trouble> for SqlError {
    fn from(trouble: Trouble) -> SqlError {
        match trouble {
            Trouble::Later(error) => error.for_people(),
            Trouble::Positions => SqlError::new("40001", "the entries of an index have moved"),
            Trouble::Lost(_, why) => SqlError::new("55000", why),
        }
    }
}

/// Counts the rows of all shards that are not in the index yet.
pub(super) async fn build(
    database: &Arc<Database>,
    index: &Arc<Watched>,
    record: &mut IndexRecord,
) -> Result<(), SqlError> {
    // Who watches wants to know; the build does not need it.
    let total = rows_to_count(database, index, record).await.ok();
    note(database, index, |progress| progress.total = total);
    while let Some(shard) = next_shard(database, record) {
        if database.indexes.applier(&shard).is_none() {
            // It has come since the build began.
            keep::follow(database).await?;
        }
        note(database, index, |progress| progress.shard = Some(shard.clone()));
        build_shard(database, index, &shard, record).await?;
        record.built.insert(shard.clone());
        record.begun.remove(&shard);
        store::save(database.catalog().as_ref(), &index.definition.entries, record).await?;
    }
    Ok(())
}

/// The first shard that is not in the index yet. One that comes while an index is built is counted, too: what it is given
/// afterwards is in its log.
fn next_shard(database: &Database, record: &IndexRecord) -> Option<ShardId> {
    database.shard_names().into_iter().find(|shard| !record.built.contains(shard))
}

/// Rows of the shards that are not in the index yet.
async fn rows_to_count(database: &Database, index: &Watched, record: &IndexRecord) -> Result<u64, ShardError> {
    let mut total = 0;
    for shard in database.shard_names().iter().filter(|shard| !record.built.contains(shard)) {
        let owned = owned(database, index, shard);
        let mut snapshot = database.shards.get(shard).await?.snapshot().await?;
        if index.definition.is_of_tenants() {
            return Err(ShardError::invalid("rows of tenants are not counted beforehand"));
        }
        let rows = snapshot.bucket_rows(&index.definition.table).await?;
        let is_owned = |bucket: &BucketId| owned.iter().any(|range| range.contains(&bucket.0));
        total += rows.iter().filter(|(bucket, _)| is_owned(bucket)).map(|(_, rows)| rows).sum::<u64>();
    }
    Ok(total)
}

/// Changes what is known of a build.
pub(super) fn note(database: &Database, index: &Watched, change: impl FnOnce(&mut Progress)) {
    if let Some(progress) = lock(&database.indexes.builds).get_mut(&index.definition.entries) {
        change(progress);
    }
}

async fn build_shard(
    database: &Arc<Database>,
    index: &Arc<Watched>,
    shard: &ShardId,
    record: &mut IndexRecord,
) -> Result<(), SqlError> {
    let entries = &index.definition.entries;
    // A build that failed at its very end has let the applier follow already.
    if let Some(applier) = database.indexes.applier(shard) {
        applier.leave(entries).await;
    }
    if record.begun.contains(shard) {
        let owned = owned(database, index, shard).into_iter().flatten().map(BucketId).collect();
        clear(database, index, &EntriesOf::Source(Source::log(shard), owned)).await?;
    } else {
        record.begun.insert(shard.clone());
        store::save(database.catalog().as_ref(), entries, record).await?;
    }
    let open = database.shards.get(shard).await.map_err(|error| error.for_people())?;
    let stream = build_stream(index);
    // From here on every change is in the log until the build has passed it.
    open.add_consumer(&stream).await.map_err(|error| error.for_people())?;
    let mut snapshot = open.snapshot().await.map_err(|error| error.for_people())?;
    let counted = snapshot.later_changes().await.map_err(|error| error.for_people())?;
    let from = snapshot.seq();
    count_rows(database, index, shard, &mut *snapshot).await?;
    drop(snapshot);
    let mut following = Following { index: index.clone(), come: vec![from; ENTRY_BUCKETS as usize], counted };
    begin_at(database, index, shard, from).await?;
    catch_up(database, shard, &*open, from, &mut following).await?;
    open.remove_consumer(&stream).await.map_err(|error| error.for_people())
}

/// Buckets of the indexed table that a shard has.
pub(super) fn owned(database: &Database, index: &Watched, shard: &ShardId) -> Vec<RangeInclusive<u32>> {
    let policy = database.routing.current();
    policy.owned(index.definition.routed(&policy), shard).map(|range| range.first.0..=range.last.0).collect()
}

async fn count_rows(
    database: &Database,
    index: &Watched,
    shard: &ShardId,
    snapshot: &mut dyn Snapshot,
) -> Result<(), SqlError> {
    let scope = match index.definition.is_of_tenants() {
        // No row is being moved, so all that are there are the shard's own.
        true => Scope::All,
        false => Scope::Buckets(index.definition.group.clone(), owned(database, index, shard)),
    };
    let mut range = KeyRange::table(&index.definition.table).within(scope);
    loop {
        let page = snapshot.page(&range, PAGE_ROWS).await.map_err(|error| error.for_people())?;
        write(database, sums(index, &page.rows)?, Company::Nobody).await?;
        note(database, index, |progress| progress.rows += page.rows.len() as u64);
        match page.next {
            Some(next) => range.after = Some(next),
            None => return Ok(()),
        }
    }
}

fn sums(index: &Watched, rows: &[StoredRow]) -> Result<Vec<EntryPart>, SqlError> {
    let mut deltas = Deltas::default();
    for row in rows {
        let Some(bucket) = index.definition.bucket_of(&row.unit) else { continue };
        let key = index.definition.key_of(&row.values);
        let key = key.map_err(|error| SqlError::new("0A000", error.to_string()))?;
        if let Some(key) = key {
            deltas.count(key.entry_bucket(ENTRY_BUCKETS), key, bucket, 1);
        }
    }
    let table = index.definition.entries.to_string();
    let part = |(bucket, deltas)| EntryPart { table: table.clone(), bucket: BucketId(bucket), progress: None, deltas };
    Ok(deltas.into_parts().map(part).collect())
}

/// All entry buckets have what the snapshot had.
async fn begin_at(database: &Database, index: &Watched, shard: &ShardId, through: Seq) -> Result<(), Trouble> {
    let progress = EntryProgress { source: Source::log(shard), from: Seq(0), through };
    let table = index.definition.entries.to_string();
    let part = |bucket| EntryPart {
        table: table.clone(),
        bucket: BucketId(bucket),
        progress: Some(progress.clone()),
        deltas: Vec::new(),
    };
    write(database, (0..ENTRY_BUCKETS).map(part).collect(), Company::Nobody).await
}

/// Follows the log until the shard's applier can go on.
async fn catch_up(
    database: &Database,
    shard: &ShardId,
    open: &dyn Shard,
    from: Seq,
    following: &mut Following,
) -> Result<(), SqlError> {
    let applier = database.indexes.applier(shard);
    let applier = applier.ok_or_else(|| SqlError::new("55000", format!("the log of shard {shard} is not followed")))?;
    let mut position = from;
    loop {
        let page = open.changes(position, *EVENT_ROWS.end()).await.map_err(|error| error.for_people())?;
        apply_page(database, shard, &page.changes, page.through, vec![&mut *following], Company::Nobody).await?;
        let read = page.changes.len();
        position = page.through;
        database.indexes.counted.page(read);
        if read == *EVENT_ROWS.end() {
            continue;
        }
        // Near the end. While the applier waits, it and we come to the same place.
        let mut turn = applier.turn.lock().await;
        if position >= turn.position && following.counted.is_empty() {
            turn.following.insert(following.index.definition.entries.clone(), following.clone());
            applier.settle(&turn);
            return Ok(());
        }
    }
}

/// Lets go of logs that a build has kept.
pub(super) async fn leave_logs(database: &Database, index: &Watched) -> Result<(), SqlError> {
    let stream = build_stream(index);
    for shard in database.shard_names() {
        let open = database.shards.get(&shard).await.map_err(|error| error.for_people())?;
        let consumers = open.consumers().await.map_err(|error| error.for_people())?;
        if consumers.iter().any(|one| one.stream == stream) {
            open.remove_consumer(&stream).await.map_err(|error| error.for_people())?;
        }
    }
    Ok(())
}

/// Deletes entries everywhere.
pub(super) async fn clear(database: &Database, index: &Watched, of: &EntriesOf) -> Result<(), SqlError> {
    let group = database.schema().group_of_entries(&index.definition.entries);
    let policy = database.routing.current();
    let owner = |bucket| policy.shard_of_bucket(&group, BucketId(bucket)).map(|shard| (shard.clone(), bucket));
    let shards: BTreeSet<ShardId> = (0..ENTRY_BUCKETS).filter_map(owner).map(|(shard, _)| shard).collect();
    for shard in shards {
        let own = |bucket: &u32| policy.shard_of_bucket(&group, BucketId(*bucket)) == Some(&shard);
        let claimed = |bucket| Claimed::Bucket(group.clone(), BucketId(bucket));
        let units: Vec<Claimed> = (0..ENTRY_BUCKETS).filter(own).map(claimed).collect();
        let open = database.shards.get(&shard).await.map_err(|error| error.for_people())?;
        loop {
            let claim = Claim::new(policy.version(), units.clone());
            let gone = open.clear_entries(claim, &index.definition.entries, of.clone(), CLEAR_ROWS).await;
            if gone.map_err(|error: ShardError| error.for_people())? == 0 {
                break;
            }
        }
    }
    Ok(())
}
