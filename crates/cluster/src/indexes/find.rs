//! Where rows with certain keys are.
//!
//! The noted additions are read before the entries: an addition leaves the first only when it is in the second. What was
//! found holds for as long as nothing is added to the keys' entry buckets, which [`Found::still`] tells.

use super::watch::Watched;
use super::{Indexes, Planted, count};
use crate::database::Database;
use crate::execute::transaction::open_shard;
use isles_engine::entries::{EntryProbe, Still};
use isles_engine::fence::{Claim, Claimed};
use isles_kernel::error::SqlError;
use isles_kernel::index::KeyRange;
use isles_kernel::names::{BucketId, GroupName, ShardId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::ENTRY_BUCKETS;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Looks that find nothing, because keys come and go all the time. Beyond this all shards are asked.
const MAX_LOOKS: usize = 3;

/// Keys that are looked for in one index.
pub(crate) struct Wanted {
    pub(crate) index: Arc<Watched>,
    pub(crate) ranges: Vec<KeyRange>,
}

/// The buckets that may have rows with the keys.
pub(crate) struct Found {
    pub(crate) buckets: BTreeSet<BucketId>,
    /// Those of them that only noted additions name.
    pub(crate) unapplied: usize,
    pub(crate) still: Still,
}

/// The entry buckets of a range: one, or all.
fn entry_buckets(range: &KeyRange) -> Vec<u32> {
    match range.entry_bucket(ENTRY_BUCKETS) {
        Some(bucket) => vec![bucket],
        None => (0..ENTRY_BUCKETS).collect(),
    }
}

/// Looks for all of `wanted`; None if an index among them cannot be read now.
///
/// Whoever is led nowhere takes no snapshot, and so compares nothing later. A row may have gone from the entries after
/// another one with its key was noted: nothing is found, although there always was one. So it is compared here (I-24).
pub(crate) async fn find(
    database: &Database,
    policy: &RoutingPolicy,
    wanted: &[Wanted],
) -> Result<Option<Found>, SqlError> {
    for _ in 0..MAX_LOOKS {
        match look(database, policy, wanted).await? {
            Some(found) if found.buckets.is_empty() && !found.still.holds() => {}
            found => return Ok(found),
        }
    }
    database.indexes.note_fallback();
    Ok(None)
}

async fn look(database: &Database, policy: &RoutingPolicy, wanted: &[Wanted]) -> Result<Option<Found>, SqlError> {
    let indexes = &database.indexes;
    let mut stamps: BTreeMap<(usize, u32), u64> = BTreeMap::new();
    for (at, one) in wanted.iter().enumerate() {
        for bucket in one.ranges.iter().flat_map(entry_buckets) {
            stamps.entry((at, bucket)).or_insert_with(|| one.index.stamp(bucket));
        }
    }
    if !wanted.iter().all(|one| one.index.can_be_read()) && !indexes.plants(Planted::ReadUnbuilt) {
        indexes.note_fallback();
        return Ok(None);
    }
    let mut buckets = BTreeSet::new();
    for one in wanted {
        for range in &one.ranges {
            entry_buckets(range).into_iter().for_each(|bucket| one.index.pending(bucket, range, &mut buckets));
        }
    }
    let pending = buckets.clone();
    let applied = read_entries(database, policy, wanted).await?;
    let unapplied = pending.difference(&applied).count();
    buckets.extend(applied);
    let seen: Vec<(Arc<Watched>, u32, u64)> =
        stamps.into_iter().map(|((at, bucket), stamp)| (wanted[at].index.clone(), bucket, stamp)).collect();
    count(&indexes.counted.lookups, 1);
    wanted.iter().for_each(|one| one.index.used());
    Ok(Some(Found { buckets, unapplied, still: still(indexes.clone(), seen) }))
}

/// Whether entry buckets have the stamps that they had at the look.
fn still(indexes: Arc<Indexes>, seen: Vec<(Arc<Watched>, u32, u64)>) -> Still {
    Still(Arc::new(move || {
        let holds = seen.iter().all(|(index, bucket, stamp)| index.stamp(*bucket) == *stamp);
        if !holds {
            count(&indexes.counted.overtaken, 1);
        }
        holds || indexes.plants(Planted::NoLookAgain)
    }))
}

async fn read_entries(
    database: &Database,
    policy: &RoutingPolicy,
    wanted: &[Wanted],
) -> Result<BTreeSet<BucketId>, SqlError> {
    let schema = database.schema();
    let mut asked: BTreeMap<ShardId, Vec<EntryProbe>> = BTreeMap::new();
    for one in wanted {
        let group = schema.group_of_entries(&one.index.definition.entries);
        for range in &one.ranges {
            for bucket in entry_buckets(range) {
                let bucket = BucketId(bucket);
                let unknown = || SqlError::new("XX000", "entries of indexes are not routed");
                let shard = policy.shard_of_bucket(&group, bucket).ok_or_else(unknown)?;
                let table = one.index.definition.entries.clone();
                asked.entry(shard.clone()).or_default().push(EntryProbe { table, bucket, range: range.clone() });
            }
        }
    }
    let ask = |(shard, probes): (ShardId, Vec<EntryProbe>)| {
        let group_of = |probe: &EntryProbe| schema.group_of_entries(&probe.table);
        let units: BTreeSet<(GroupName, BucketId)> =
            probes.iter().map(|probe| (group_of(probe), probe.bucket)).collect();
        let units = units.into_iter().map(|(group, bucket)| Claimed::Bucket(group, bucket)).collect();
        let claim = Claim::new(policy.version(), units);
        async move {
            let open = open_shard(database, &shard).await?;
            open.entry_buckets(claim, probes).await.map_err(|error| error.for_people())
        }
    };
    let mut asked = asked.into_iter();
    // Most looks are at one shard.
    let (first, rest) = (asked.next(), asked);
    let mut found: BTreeSet<BucketId> = match first {
        Some(first) => ask(first).await?.into_iter().collect(),
        None => BTreeSet::new(),
    };
    for part in futures::future::join_all(rest.map(ask)).await {
        found.extend(part?);
    }
    Ok(found)
}
