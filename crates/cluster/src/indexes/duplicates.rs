//! Rows that keep an index from being unique.
//!
//! From the moment at which the schema has the index, whoever adds a key holds it and looks at all shards
//! (`execute::unique`). So only rows from before can have a key in common, and what the build has counted shows it: a key
//! of which there is more than one row. That may also be a row which has gone on one shard and come on another, of which
//! one half is counted. So such keys are held, and the rows themselves are asked.

use super::build::owned;
use super::watch::Watched;
use crate::commit::writers::{TxnNumber, Wanted, WriterTurn};
use crate::database::Database;
use isles_engine::shard::{KeyRange, MAX_PAGE_ROWS, Scope, StoredRow};
use isles_kernel::error::SqlError;
use isles_kernel::index::{IndexKey, StoredEntry};
use isles_kernel::names::{BucketId, ShardId};
use isles_kernel::schema::{ENTRY_BUCKETS, Unit};
use isles_kernel::value::{Value, key_bytes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Keys that are held and looked for at once.
const AT_ONCE: usize = 1_000;
/// Keys that are named to the operator.
const MAX_NAMED: usize = 5;

/// Keys that more than one row has, in words; None if there are none.
pub(super) async fn duplicates(database: &Database, index: &Arc<Watched>) -> Result<Option<String>, SqlError> {
    let suspects: Vec<Vec<u8>> = suspects(database, index).await?.into_iter().collect();
    for some in suspects.chunks(AT_ONCE) {
        let _held = hold(database, index, some).await?;
        let found = look(database, index, &some.iter().collect()).await?;
        if !found.is_empty() {
            return Ok(Some(found.join(", ")));
        }
    }
    Ok(None)
}

/// Keys of which the entries count more than one row.
async fn suspects(database: &Database, index: &Watched) -> Result<BTreeSet<Vec<u8>>, SqlError> {
    let group = database.schema().group_of_entries(&index.definition.entries);
    let policy = database.routing.current();
    let owner = |bucket: u32| policy.shard_of_bucket(&group, BucketId(bucket));
    let shards: BTreeSet<&ShardId> = (0..ENTRY_BUCKETS).filter_map(owner).collect();
    let mut found = BTreeSet::new();
    for shard in shards {
        let mut last: (Vec<u8>, i64) = Default::default();
        each_row(database, shard, KeyRange::table(&index.definition.entries), |row| {
            let Unit::Bucket(_, bucket) = row.unit else { return };
            let Some(StoredEntry::Count { key, rows, .. }) = StoredEntry::read(&row.values) else { return };
            if owner(bucket.0) != Some(shard) {
                return;
            }
            if last.0 != key {
                last = (key.to_vec(), 0);
            }
            last.1 += rows;
            if last.1 > 1 && !IndexKey(key.to_vec()).has_null() {
                found.insert(key.to_vec());
            }
        })
        .await?;
    }
    Ok(found)
}

async fn hold(database: &Database, index: &Watched, keys: &[Vec<u8>]) -> Result<Vec<WriterTurn>, SqlError> {
    let number: TxnNumber = database.next_txn();
    let mut held = Vec::new();
    for key in keys {
        let wanted = Wanted::Key(index.definition.entries.clone(), key.clone());
        held.push(database.writers.turn(wanted, number).await?);
    }
    Ok(held)
}

/// Which of these keys more than one row has.
async fn look(database: &Database, index: &Watched, keys: &BTreeSet<&Vec<u8>>) -> Result<Vec<String>, SqlError> {
    let definition = &index.definition;
    let mut rows: BTreeMap<Vec<u8>, (u64, Vec<Value>)> = BTreeMap::new();
    for shard in database.shard_names() {
        let scope = Scope::Buckets(definition.group.clone(), owned(database, index, &shard));
        each_row(database, &shard, KeyRange::table(&definition.table).within(scope), |row| {
            let Some(values) = definition.values_of(&row.values) else { return };
            let Ok(key) = definition.key_from(&values) else { return };
            if keys.contains(&key.0) {
                // Long values may share a key and be different.
                let exact = if key.is_cut() { key_bytes(&values) } else { key.0 };
                rows.entry(exact).or_insert((0, values)).0 += 1;
            }
        })
        .await?;
    }
    let several = rows.into_values().filter(|(count, _)| *count > 1).take(MAX_NAMED);
    Ok(several.map(|(count, values)| format!("{} is in {count} rows", definition.shown(&values))).collect())
}

async fn each_row(
    database: &Database,
    shard: &ShardId,
    mut range: KeyRange,
    mut see: impl FnMut(&StoredRow),
) -> Result<(), SqlError> {
    let open = database.shards.get(shard).await.map_err(|error| error.for_people())?;
    let mut snapshot = open.snapshot().await.map_err(|error| error.for_people())?;
    loop {
        let page = snapshot.page(&range, MAX_PAGE_ROWS).await.map_err(|error| error.for_people())?;
        page.rows.iter().for_each(&mut see);
        match page.next {
            Some(next) => range.after = Some(next),
            None => return Ok(()),
        }
    }
}
