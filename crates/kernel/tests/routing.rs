//! Routing through random histories of moves, compared with a model that keeps every bucket by itself.

#![allow(clippy::unwrap_used)]

use isles_kernel::hash::BucketCount;
use isles_kernel::id::{ResourceId, UniquePart};
use isles_kernel::names::{BucketId, GroupName, RoutingVersion, ShardId, TenantId};
use isles_kernel::placement::{Placement, TypeName};
use isles_kernel::routing::{RoutingChange, RoutingMove, RoutingPolicy, spread_evenly};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A plan of moves, in terms that always fit: what does not is made to, by the model.
#[derive(Debug, Clone)]
enum Step {
    Split { group: prop::sample::Index, first: prop::sample::Index, length: u32, to: u32 },
    Merge { from: prop::sample::Index, to: u32 },
    Pin { tenant: u32, to: u32 },
    Unpin { tenant: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (index(), index(), 1..20u32, 0..8u32).prop_map(|(group, first, length, to)| Step::Split { group, first, length, to }),
        1 => (index(), 0..8u32).prop_map(|(from, to)| Step::Merge { from, to }),
        2 => (0..20u32, 0..8u32).prop_map(|(tenant, to)| Step::Pin { tenant, to }),
        1 => (0..20u32).prop_map(|tenant| Step::Unpin { tenant }),
    ]
}

fn shard(number: u32) -> ShardId {
    ShardId::new(format!("s{number}")).unwrap()
}

fn tenant(number: u32) -> TenantId {
    TenantId::new(format!("tenant {number}")).unwrap()
}

fn tenants() -> GroupName {
    GroupName::new("tenants").unwrap()
}

/// The owner of every single bucket, and the pins.
#[derive(Clone)]
struct Model {
    owners: BTreeMap<(GroupName, BucketId), ShardId>,
    pins: BTreeMap<TenantId, ShardId>,
}

impl Model {
    fn of(policy: &RoutingPolicy) -> Model {
        let mut owners = BTreeMap::new();
        for (group, ranges) in policy.groups() {
            for range in ranges {
                for bucket in (range.first.0..=range.last.0).map(BucketId) {
                    assert_eq!(owners.insert((group.clone(), bucket), range.shard.clone()), None, "one owner each");
                }
            }
        }
        Model { owners, pins: policy.pins().map(|(tenant, shard)| (tenant.clone(), shard.clone())).collect() }
    }

    fn home(&self, policy: &RoutingPolicy, tenant: &TenantId) -> ShardId {
        let bucket = policy.bucket_of_tenant(tenant);
        self.pins.get(tenant).unwrap_or(&self.owners[&(tenants(), bucket)]).clone()
    }

    /// The moves of a step, made here as they are written down.
    fn plan(&mut self, policy: &RoutingPolicy, step: &Step) -> Vec<RoutingMove> {
        match step {
            Step::Split { group, first, length, to } => {
                let groups: Vec<GroupName> = policy.groups().map(|(group, _)| group.clone()).collect();
                let group = group.get(&groups);
                let count = policy.buckets(group).unwrap().get();
                let first = first.index(count as usize) as u32;
                let buckets = (first..count.min(first + length)).map(|bucket| (group.clone(), BucketId(bucket)));
                self.give(buckets.collect(), &shard(*to))
            }
            Step::Merge { from, to } => {
                let shards: Vec<ShardId> = policy.shards().into_iter().cloned().collect();
                let from = from.get(&shards);
                let owned = self.owners.iter().filter(|(_, owner)| *owner == from).map(|(bucket, _)| bucket.clone());
                self.give(owned.collect(), &shard(*to))
            }
            Step::Pin { tenant: number, to } => {
                let (tenant, from, to) = (tenant(*number), self.home(policy, &tenant(*number)), shard(*to));
                self.pins.insert(tenant.clone(), to.clone());
                vec![RoutingMove::Pin { tenant, from, to }]
            }
            Step::Unpin { tenant: number } => {
                let tenant = tenant(*number);
                let Some(from) = self.pins.remove(&tenant) else { return Vec::new() };
                vec![RoutingMove::Unpin { to: self.home(policy, &tenant), tenant, from }]
            }
        }
    }

    fn give(&mut self, buckets: Vec<(GroupName, BucketId)>, to: &ShardId) -> Vec<RoutingMove> {
        let mut moves = Vec::new();
        for (group, bucket) in buckets {
            let from = self.owners.insert((group.clone(), bucket), to.clone()).unwrap();
            moves.push(RoutingMove::Buckets { group, first: bucket, last: bucket, from, to: to.clone() });
        }
        moves
    }

    fn agrees_with(&self, policy: &RoutingPolicy) {
        for ((group, bucket), owner) in &self.owners {
            assert_eq!(policy.shard_of_bucket(group, *bucket), Some(owner), "{group} {bucket}");
        }
        for number in 0..20 {
            assert_eq!(policy.shard_of_tenant(&tenant(number)), &self.home(policy, &tenant(number)));
        }
        assert_eq!(Model::of(policy).owners, self.owners, "every bucket has exactly one owner");
        for (_, ranges) in policy.groups() {
            assert!(ranges.windows(2).all(|pair| pair[0].shard != pair[1].shard), "ranges are merged");
        }
    }
}

/// Tenants and every bucket space of the preset placement.
fn begin(placement: &Placement) -> RoutingPolicy {
    let shards: Vec<ShardId> = (0..4).map(shard).collect();
    let policy = RoutingPolicy::new(tenants(), BucketCount::new(37).unwrap(), &shards).unwrap();
    let add = |group: &isles_kernel::placement::GroupMap| RoutingMove::AddGroup {
        group: group.space().clone(),
        ranges: spread_evenly(group.buckets(), &shards).unwrap(),
    };
    policy.apply(&RoutingChange { moves: placement.current().groups().iter().map(add).collect() }).unwrap()
}

fn ids(placement: &Placement) -> Vec<ResourceId> {
    let mint = |i: usize, name: &TypeName| {
        let located = placement.locate(name, &format!("key {i}")).unwrap();
        placement.mint(name, &located, UniquePart::new(&format!("{i}")).unwrap()).unwrap()
    };
    placement.registry().types().enumerate().map(|(i, spec)| mint(i, &spec.name)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_route_is_right_at_every_version_of_any_plan(steps in proptest::collection::vec(step(), 1..40)) {
        let placement = Placement::preset();
        let ids = ids(&placement);
        let mut policy = begin(&placement);
        let mut model = Model::of(&policy);
        let mut changes = 0;
        let start = policy.version();
        let mut seen: BTreeMap<u64, RoutingPolicy> = BTreeMap::from([(policy.checksum(), policy.clone())]);
        for step in steps {
            let before = model.clone();
            let moves = model.plan(&policy, &step);
            let effective = before.owners != model.owners || before.pins != model.pins;
            match policy.apply(&RoutingChange { moves }) {
                Ok(next) => {
                    prop_assert!(effective);
                    prop_assert_eq!(next.version(), RoutingVersion(policy.version().0 + 1));
                    prop_assert_eq!(&policy.apply(&policy.diff(&next)).unwrap(), &next);
                    prop_assert!(next.apply(&next.diff(&next)).is_err(), "a difference to itself is no change");
                    policy = next;
                    changes += 1;
                    prop_assert_eq!(seen.insert(policy.checksum(), policy.clone()), None);
                }
                Err(refused) => prop_assert!(!effective, "{refused}"),
            }
            model.agrees_with(&policy);
            for id in &ids {
                let located = placement.check_id(id).unwrap().located;
                prop_assert_eq!(policy.shard_of_bucket(&located.space, id.bucket()), Some(&model.owners[&(located.space, id.bucket())]));
            }
        }
        prop_assert_eq!(policy.version().0 - start.0, changes);
        let stored = serde_json::to_string(&policy).unwrap();
        prop_assert_eq!(serde_json::from_str::<RoutingPolicy>(&stored).unwrap(), policy);
    }

    #[test]
    fn a_checksum_does_not_depend_on_how_the_map_was_built(order in Just((0..12u32).collect::<Vec<_>>()).prop_shuffle()) {
        let shards: Vec<ShardId> = (0..2).map(shard).collect();
        let start = RoutingPolicy::new(tenants(), BucketCount::new(12).unwrap(), &shards).unwrap();
        let moves = order.into_iter().map(|bucket| RoutingMove::Buckets {
            group: tenants(),
            first: BucketId(bucket),
            last: BucketId(bucket),
            from: start.shard_of_bucket(&tenants(), BucketId(bucket)).unwrap().clone(),
            to: shard(9),
        });
        let one_by_one = start.apply(&RoutingChange { moves: moves.collect() }).unwrap();
        let halves = [(0, 5, 0), (6, 11, 1)].map(|(first, last, from)| RoutingMove::Buckets {
            group: tenants(),
            first: BucketId(first),
            last: BucketId(last),
            from: shard(from),
            to: shard(9),
        });
        let at_once = start.apply(&RoutingChange { moves: halves.to_vec() }).unwrap();
        prop_assert_eq!(one_by_one.checksum(), at_once.checksum());
        prop_assert_eq!(one_by_one, at_once);
    }
}

#[test]
fn two_plans_from_one_map_cannot_both_move_a_bucket() {
    let start = begin(&Placement::preset());
    let plan = |to| {
        let (group, first, last) = (tenants(), BucketId(0), BucketId(3));
        RoutingChange { moves: vec![RoutingMove::Buckets { group, first, last, from: shard(0), to: shard(to) }] }
    };
    let next = start.apply(&plan(5)).unwrap();
    assert!(next.apply(&plan(6)).is_err());
    assert!(next.apply(&plan(5)).is_err(), "nor is a change applied twice");
}

#[test]
fn an_id_never_names_a_shard() {
    let placement = Placement::preset();
    let shards: BTreeSet<String> = begin(&placement).shards().into_iter().map(ShardId::to_string).collect();
    assert_eq!(shards.len(), 4);
    for id in ids(&placement) {
        assert!(id.to_string().split([':', '_']).all(|part| !shards.contains(part)), "{id}");
    }
}
