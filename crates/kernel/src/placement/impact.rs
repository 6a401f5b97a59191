//! What a change of configuration would do to keys, measured before it is made.
//!
//! Keys are sampled, always the same ones, and located under both configurations. Types that come from the same bucket
//! space and go to the same one are counted together: their keys go the same ways.

use super::{GenerationMap, GroupMap, KeptType, Placement, TypeName};
use crate::names::{GroupName, RegionName};
use serde::Serialize;
use std::collections::BTreeMap;

/// Keys that are located under each configuration: enough for a share to be right within a percent, and some
/// milliseconds of work.
pub const SAMPLED_KEYS: u32 = 10_000;

/// What happens to the keys of some types.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupImpact {
    /// Where their keys are now; none if the types are new.
    pub from: Option<GroupName>,
    pub to: GroupName,
    pub types: Vec<TypeName>,
    pub buckets_before: Option<u32>,
    pub buckets: u32,
    pub keys: u32,
    /// Keys that get another bucket or another region.
    pub moved: u32,
    /// In order of name.
    pub regions: Vec<RegionImpact>,
}

/// The keys of one region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RegionImpact {
    pub region: RegionName,
    pub keys_before: u32,
    pub keys: u32,
    /// Keys of this region whose bucket changes, wherever they go.
    pub moved: u32,
    /// Keys that go to another region.
    pub leaving: u32,
    pub arriving: u32,
}

impl GroupImpact {
    /// From 0 to 1.
    pub fn share(&self) -> f64 {
        f64::from(self.moved) / f64::from(self.keys.max(1))
    }
}

impl RegionImpact {
    /// Of the keys that the region has now, from 0 to 1.
    pub fn share(&self) -> f64 {
        f64::from(self.moved) / f64::from(self.keys_before.max(1))
    }
}

/// From where and to where keys go, and of which types.
type Ways<'a> = BTreeMap<(Option<&'a GroupName>, &'a GroupName), Way<'a>>;

struct Way<'a> {
    from: Option<&'a GroupMap>,
    to: &'a GroupMap,
    types: Vec<TypeName>,
}

/// How `keys` sampled keys of each type are placed by `new`, compared with `old`: of the types that are listed, and of
/// those that are kept.
pub fn impact(old: &Placement, new: &Placement, kept: &[KeptType], keys: u32) -> Vec<GroupImpact> {
    let (from, to): (&GenerationMap, &GenerationMap) = (old.current(), new.current());
    let listed = to.types().map(|(name, group)| (name, from.group_of(name), group));
    let others = kept.iter().filter(|one| to.group_of(&one.name).is_none());
    let others = others.filter_map(|KeptType { name, group, .. }| {
        Some((name, from.group_for(name, group), to.group_for(name, group)?))
    });
    let mut ways = Ways::new();
    for (name, from, to) in listed.chain(others) {
        let way = ways.entry((from.map(GroupMap::space), to.space()));
        way.or_insert(Way { from, to, types: Vec::new() }).types.push(name.clone());
    }
    ways.into_values().map(|way| measure(way.from, way.to, way.types, keys)).collect()
}

fn measure(from: Option<&GroupMap>, to: &GroupMap, types: Vec<TypeName>, keys: u32) -> GroupImpact {
    let mut regions: BTreeMap<RegionName, RegionImpact> = BTreeMap::new();
    for range in from.into_iter().chain([to]).flat_map(GroupMap::ranges) {
        regions.entry(range.region.clone()).or_insert_with(|| RegionImpact {
            region: range.region.clone(),
            keys_before: 0,
            keys: 0,
            moved: 0,
            leaving: 0,
            arriving: 0,
        });
    }
    let mut moved = 0;
    for n in 0..keys {
        let key = format!("key-{n}");
        let new = to.bucket_of(&key);
        let Some(new_region) = to.region_of(new) else { continue };
        if let Some(region) = regions.get_mut(new_region) {
            region.keys += 1;
        }
        let Some(from) = from else { continue };
        let old = from.bucket_of(&key);
        let Some(old_region) = from.region_of(old) else { continue };
        let is_elsewhere = old_region != new_region;
        let is_moved = is_elsewhere || old != new || from.group() != to.group();
        moved += u32::from(is_moved);
        if let Some(region) = regions.get_mut(old_region) {
            region.keys_before += 1;
            region.moved += u32::from(is_moved);
            region.leaving += u32::from(is_elsewhere);
        }
        if let Some(region) = regions.get_mut(new_region).filter(|_| is_elsewhere) {
            region.arriving += 1;
        }
    }
    GroupImpact {
        from: from.map(|group| group.space().clone()),
        to: to.space().clone(),
        types,
        buckets_before: from.map(|group| group.buckets().get()),
        buckets: to.buckets().get(),
        keys,
        moved,
        regions: regions.into_values().collect(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{Field, PlacementConfig};
    use super::*;

    fn with_count(buckets: i64) -> Placement {
        let mut config = PlacementConfig::fallback();
        if let Some(Field::Good(groups)) = &mut config.groups
            && let Field::Good(group) = &mut groups.0[0].1
        {
            group.total_shards = Some(buckets.into());
        }
        Placement::from_config(config).unwrap()
    }

    #[test]
    fn the_same_configuration_moves_nothing() {
        let impact = impact(&Placement::preset(), &Placement::preset(), &[], 1_000);
        assert_eq!(impact.len(), 5);
        assert!(impact.iter().all(|group| group.moved == 0 && group.keys == 1_000));
        let regions = &impact[0].regions;
        assert_eq!(regions.iter().map(|region| region.keys).sum::<u32>(), 1_000);
        assert!(regions.iter().all(|region| region.keys == region.keys_before && region.leaving == 0));
    }

    /// Twice the buckets: half of the keys keep the number of theirs, and of these the first two of five their region.
    #[test]
    fn twice_the_buckets_move_about_four_of_five_keys() {
        let impact = impact(&with_count(20), &with_count(40), &[], SAMPLED_KEYS);
        assert_eq!(impact.len(), 1);
        assert!((0.77..0.83).contains(&impact[0].share()), "{}", impact[0].share());
        let (leaving, arriving): (u32, u32) =
            impact[0].regions.iter().fold((0, 0), |sum, region| (sum.0 + region.leaving, sum.1 + region.arriving));
        assert_eq!(leaving, arriving);
        assert!(leaving > 0);
        assert_eq!(impact[0].regions.iter().map(|region| region.moved).sum::<u32>(), impact[0].moved);
    }

    #[test]
    fn types_that_leave_a_group_are_counted_by_themselves() {
        let impact = impact(&Placement::defaults(), &Placement::preset(), &[], 100);
        let way = |to: &str| impact.iter().find(|group| group.to.as_str() == to).unwrap();
        assert_eq!(impact.len(), 5);
        assert_eq!(way("vc").types.len(), 2);
        assert_eq!(way("vc").moved, 100, "another group has other buckets");
        assert_eq!((way("vc").buckets_before, way("vc").buckets), (Some(20), 16));
    }
}
