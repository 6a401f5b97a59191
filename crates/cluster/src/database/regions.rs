//! What is kept in a region: its buckets are on shards of that region, from their first day on.
//!
//! A group is bound by its tables (`WITH (region = 'apac')`), and the schema has it; a shard is in a region by its record.
//! Neither changes afterwards, so it is enough to look whenever a bucket gets an owner: when its group is made, and when
//! it is moved. What a shard keeps besides rows (change log, backups) is where the shard is.
//!
//! Invariants (docs/invariants.md):
//!   * I-39  a bucket that is bound is on no shard of another region, nor are entries of its global indexes

use super::Database;
use super::members::Members;
use isles_engine::fence::Claimed;
use isles_engine::shard::Engine;
use isles_kernel::error::SqlError;
use isles_kernel::hash::BucketCount;
use isles_kernel::moves::Units;
use isles_kernel::names::{BucketId, GroupName, RegionName, ShardId};
use isles_kernel::placement::RegionRange;
use isles_kernel::routing::{BucketRange, RoutingPolicy, spread_evenly};
use isles_kernel::schema::{Schema, written_regions};

/// The first shards of a group that is bound.
pub(super) fn spread(
    group: &GroupName,
    regions: &[RegionRange],
    members: &Members,
) -> Result<Vec<BucketRange>, SqlError> {
    let mut ranges = Vec::new();
    for part in regions {
        let shards = members.receiving_in(&part.region);
        let count = BucketCount::new(part.bucket_count()).ok_or_else(|| nowhere(group, &part.region))?;
        let spread = spread_evenly(count, &shards).map_err(|_| nowhere(group, &part.region))?;
        let shifted = |range: BucketRange| BucketRange {
            first: BucketId(range.first.0 + part.first.0),
            last: BucketId(range.last.0 + part.first.0),
            shard: range.shard,
        };
        ranges.extend(spread.into_iter().map(shifted));
    }
    Ok(ranges)
}

fn nowhere(group: &GroupName, region: &RegionName) -> SqlError {
    SqlError::new("55000", format!("no shard is in region {region}, where buckets of group \"{group}\" are kept"))
        .with_hint("isles shards add --region, or ALTER SHARD … REGION for one that is there")
}

/// Refuses to bind a group that is elsewhere already.
pub(super) fn check_kept(
    group: &GroupName,
    regions: &[RegionRange],
    policy: &RoutingPolicy,
    members: &Members,
) -> Result<(), SqlError> {
    for owned in policy.ranges(group).unwrap_or_default() {
        let there = members.region_of(&owned.shard);
        let meets = |part: &&RegionRange| part.first <= owned.last && owned.first <= part.last;
        if let Some(part) = regions.iter().filter(meets).find(|part| there != Some(&part.region)) {
            let message =
                format!("buckets of group \"{group}\" are on shard {}, not in region {}", owned.shard, part.region);
            return Err(SqlError::new("55000", message).with_hint("give the table a group of its own"));
        }
    }
    Ok(())
}

/// Those of some shards that may have a bucket.
pub(crate) fn allowed(
    group: &GroupName,
    bucket: BucketId,
    shards: &[ShardId],
    schema: &Schema,
    members: &Members,
) -> Vec<ShardId> {
    match schema.region_of(group, bucket) {
        None => shards.to_vec(),
        Some(region) => shards.iter().filter(|shard| members.region_of(shard) == Some(region)).cloned().collect(),
    }
}

impl Database {
    /// What tables say of their region that are made for a group of a placement; None where shards are in no regions,
    /// and there is nothing to keep apart.
    pub fn region_of_tables(&self, ranges: &[RegionRange]) -> Option<String> {
        (!self.members().regions().is_empty()).then(|| written_regions(ranges))
    }

    /// Whether tables of a group say a region; none if the group has no tables.
    pub fn is_bound(&self, group: &GroupName) -> Option<bool> {
        let schema = self.schema();
        let has_tables = schema.tables.values().any(|table| table.group() == Some(group));
        has_tables.then(|| !schema.regions_of(group).is_empty())
    }

    /// Refuses to move buckets out of their region.
    pub(crate) fn check_region(&self, units: &Units, target: &ShardId) -> Result<(), SqlError> {
        let Units::Buckets { buckets } = units else { return Ok(()) };
        let (schema, members) = (self.schema(), self.members());
        let there = members.region_of(target);
        for part in schema.regions_of(&buckets.group) {
            let meets = buckets.ranges.iter().any(|span| part.first <= span.last && span.first <= part.last);
            if meets && there != Some(&part.region) {
                let place = there.map_or_else(|| "in no region".to_owned(), |region| format!("in region {region}"));
                let message = format!(
                    "buckets of group \"{}\" are kept in region {}, and shard {target} is {place}",
                    buckets.group, part.region
                );
                return Err(SqlError::new("55000", message).with_hint("SHOW SHARDS tells the region of each shard"));
            }
        }
        Ok(())
    }

    /// Refuses a commit over several shards that would keep rows of a region in the catalog, which has the redo of SQLite
    /// files until each has its part. A PostgreSQL database keeps its part by itself.
    pub(crate) fn check_redo(&self, shard: &ShardId, claimed: &[Claimed]) -> Result<(), SqlError> {
        if self.shards.engine(shard) != Some(Engine::Sqlite) {
            return Ok(());
        }
        let schema = self.schema();
        let group_of = |claimed: &'_ Claimed| match claimed {
            Claimed::Bucket(group, _) | Claimed::Buckets(group, ..) | Claimed::OwnBuckets(group, ..) => {
                Some(group.clone())
            }
            _ => None,
        };
        for group in claimed.iter().filter_map(group_of) {
            let Some(part) = schema.regions_of(&group).iter().find(|part| self.region.as_ref() != Some(&part.region))
            else {
                continue;
            };
            let message =
                format!("a transaction over several shards with rows that are kept in region {}", part.region);
            return Err(SqlError::unsupported(format!("{message} is not supported"))
                .with_detail("the catalog would keep them until each shard has its part, and it is not in that region")
                .with_hint("write the rows of each bucket by themselves, or serve with --region where the region is"));
        }
        Ok(())
    }

    /// Refuses to drain a shard that has buckets which no other shard may have.
    pub(crate) fn check_successors(&self, name: &ShardId, targets: &[ShardId]) -> Result<(), SqlError> {
        let (schema, members, policy) = (self.schema(), self.members(), self.routing.current());
        for (group, ranges) in policy.groups() {
            for range in ranges.iter().filter(|range| range.shard == *name) {
                let parts = schema.regions_of(group).iter();
                let mut parts = parts.filter(|part| part.first <= range.last && range.first <= part.last);
                if let Some(part) = parts.find(|part| allowed(group, part.first, targets, &schema, &members).is_empty())
                {
                    return Err(nowhere(group, &part.region));
                }
            }
        }
        Ok(())
    }
}
