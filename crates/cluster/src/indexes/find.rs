//! Where rows with certain keys are.
//!
//! The noted additions are read before the entries: an addition leaves the first only when it is in the second. What was
//! found holds for as long as none of the keys is added, which [`Found::still`] tells.
//!
//! A look ends as soon as all shards are named, and reads so many entries of a shard at most: what a long range would tell
//! further is not worth reading.

use super::watch::Watched;
use super::{Indexes, Planted, count};
use crate::database::Database;
use crate::execute::bounds::Bounds;
use crate::execute::transaction::open_shard;
use isles_engine::entries::{EntriesFound, EntryLook, EntryProbe, Still};
use isles_engine::fence::{Claim, Claimed};
use isles_kernel::error::SqlError;
use isles_kernel::index::{KeyRange, Noted};
use isles_kernel::names::{BucketId, GroupName, ShardId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::ENTRY_BUCKETS;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Looks that find nothing, because keys come and go all the time. Beyond this all shards are asked.
const MAX_LOOKS: usize = 3;
/// Entries that are read on a shard at first: enough for most looks, and for a long range to tell that all shards have some.
const FIRST_ENTRIES: usize = 64;

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

/// What a look says.
pub(crate) enum Said {
    Found(Found),
    /// More would change nothing: whoever asks has enough with the buckets that were found.
    Enough,
    /// More entries have the keys than a look reads.
    TooMany,
    /// An index cannot be read now, or its keys come and go all the time.
    Nothing,
}

/// A look at indexes, for one who may have enough before all is found.
pub(crate) struct Look<'a> {
    pub(crate) database: &'a Database,
    pub(crate) policy: &'a RoutingPolicy,
    pub(crate) bounds: &'a Bounds,
    /// Whether the buckets that were found so far are enough.
    pub(crate) is_enough: &'a (dyn Fn(&BTreeSet<BucketId>) -> bool + Sync),
}

/// What the entries name.
enum Entries {
    All(BTreeSet<BucketId>),
    Enough,
    TooMany,
}

/// Probes for one shard, and what the shard said to them.
type Asked = (ShardId, Vec<EntryProbe>);

/// The entry buckets of a range: one, or all.
fn entry_buckets(range: &KeyRange) -> Vec<u32> {
    match range.entry_bucket(ENTRY_BUCKETS) {
        Some(bucket) => vec![bucket],
        None => (0..ENTRY_BUCKETS).collect(),
    }
}

impl Look<'_> {
    /// Looks for all of `wanted`.
    ///
    /// Whoever is led nowhere takes no snapshot, and so compares nothing later. A row may have gone from the entries after
    /// another one with its key was noted: nothing is found, although there always was one. So it is compared here (I-24).
    pub(crate) async fn find(&self, wanted: &[Wanted]) -> Result<Said, SqlError> {
        for _ in 0..MAX_LOOKS {
            match self.look(wanted).await? {
                Said::Found(found) if found.buckets.is_empty() && !found.still.holds() => {}
                said => return Ok(said),
            }
        }
        Ok(Said::Nothing)
    }

    async fn look(&self, wanted: &[Wanted]) -> Result<Said, SqlError> {
        let indexes = &self.database.indexes;
        let mut seen = Vec::new();
        for one in wanted {
            for range in &one.ranges {
                let stamped =
                    entry_buckets(range).into_iter().map(|bucket| (bucket, one.index.stamp(bucket))).collect();
                seen.push(Seen { index: one.index.clone(), range: range.clone(), stamped });
            }
        }
        if !wanted.iter().all(|one| one.index.can_be_read()) && !indexes.plants(Planted::ReadUnbuilt) {
            return Ok(Said::Nothing);
        }
        let mut buckets = BTreeSet::new();
        for one in wanted {
            for range in &one.ranges {
                entry_buckets(range).into_iter().for_each(|bucket| one.index.pending(bucket, range, &mut buckets));
            }
        }
        if (self.is_enough)(&buckets) {
            return Ok(Said::Enough);
        }
        let applied = match self.read_entries(wanted, &buckets).await? {
            Entries::All(applied) => applied,
            Entries::Enough => return Ok(Said::Enough),
            Entries::TooMany => return Ok(Said::TooMany),
        };
        let unapplied = buckets.difference(&applied).count();
        buckets.extend(applied);
        Ok(Said::Found(Found { buckets, unapplied, still: still(indexes.clone(), seen) }))
    }

    /// Reads a few entries of each shard, and more where that was not all and not enough.
    async fn read_entries(&self, wanted: &[Wanted], pending: &BTreeSet<BucketId>) -> Result<Entries, SqlError> {
        let most = self.database.indexes.watch.limits().entries;
        let mut asked = self.asked(wanted)?;
        let mut found = BTreeSet::new();
        for most in [FIRST_ENTRIES.min(most), most] {
            let mut cut = Vec::new();
            for (shard, probes, said) in self.ask_all(asked, most).await? {
                count(&self.database.indexes.counted.read, said.read as u64);
                found.extend(said.buckets);
                if said.is_cut {
                    cut.push((shard, probes));
                }
            }
            if cut.is_empty() {
                return Ok(Entries::All(found));
            }
            if (self.is_enough)(&found.union(pending).copied().collect()) {
                return Ok(Entries::Enough);
            }
            asked = cut;
        }
        Ok(Entries::TooMany)
    }

    /// Which shards have the entries.
    fn asked(&self, wanted: &[Wanted]) -> Result<Vec<Asked>, SqlError> {
        let schema = self.database.schema();
        let mut asked: BTreeMap<ShardId, Vec<EntryProbe>> = BTreeMap::new();
        for one in wanted {
            let group = schema.group_of_entries(&one.index.definition.entries);
            for range in &one.ranges {
                for bucket in entry_buckets(range) {
                    let bucket = BucketId(bucket);
                    let unknown = || SqlError::new("XX000", "entries of indexes are not routed");
                    let shard = self.policy.shard_of_bucket(&group, bucket).ok_or_else(unknown)?;
                    let table = one.index.definition.entries.clone();
                    asked.entry(shard.clone()).or_default().push(EntryProbe { table, bucket, range: range.clone() });
                }
            }
        }
        Ok(asked.into_iter().collect())
    }

    async fn ask_all(
        &self,
        asked: Vec<Asked>,
        most: usize,
    ) -> Result<Vec<(ShardId, Vec<EntryProbe>, EntriesFound)>, SqlError> {
        let mut asked = asked.into_iter();
        // Most looks are at one shard.
        let Some(first) = asked.next() else { return Ok(Vec::new()) };
        let mut said = vec![self.ask(first, most).await?];
        for one in futures::future::join_all(asked.map(|one| self.ask(one, most))).await {
            said.push(one?);
        }
        Ok(said)
    }

    async fn ask(
        &self,
        (shard, probes): Asked,
        most: usize,
    ) -> Result<(ShardId, Vec<EntryProbe>, EntriesFound), SqlError> {
        let schema = self.database.schema();
        let group_of = |probe: &EntryProbe| schema.group_of_entries(&probe.table);
        let units: BTreeSet<(GroupName, BucketId)> =
            probes.iter().map(|probe| (group_of(probe), probe.bucket)).collect();
        let units = units.into_iter().map(|(group, bucket)| Claimed::Bucket(group, bucket)).collect();
        let claim = Claim::new(self.policy.version(), units);
        // A key has an entry at least, so a look for many keys reads as many as those.
        let most = most.max(probes.len().saturating_mul(2));
        let limits = self.bounds.limits(&*self.database.env);
        let look = EntryLook { probes: probes.clone(), most, limits };
        let open = open_shard(self.database, &shard).await?;
        let said = open.entry_buckets(claim, look).await.map_err(|error| error.for_people())?;
        Ok((shard, probes, said))
    }
}

/// Keys that were looked for, and the stamps of their entry buckets then.
struct Seen {
    index: Arc<Watched>,
    range: KeyRange,
    stamped: Vec<(u32, Noted)>,
}

/// Whether no key has been added since the look.
fn still(indexes: Arc<Indexes>, seen: Vec<Seen>) -> Still {
    Still(Arc::new(move || {
        let has_added =
            |one: &Seen| one.stamped.iter().any(|(bucket, stamp)| one.index.has_added(*bucket, &one.range, *stamp));
        let holds = !seen.iter().any(has_added);
        if !holds {
            count(&indexes.counted.overtaken, 1);
        }
        holds || indexes.plants(Planted::NoLookAgain)
    }))
}
