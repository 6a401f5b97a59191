//! Properties of configurations that follow each other: random counts, salts, overrides and regions, generation after
//! generation.
#![allow(clippy::unwrap_used)]

use isles_kernel::id::{Generation, ResourceId, TypePrefix, UniquePart};
use isles_kernel::names::{BucketId, GroupName, RegionName};
use isles_kernel::placement::{
    Colocation, KeptType, KeySchema, Located, Placement, Timestamp, TypeName, check_kept, validate_change,
};
use proptest::prelude::*;
use serde_json::{Value, json};

const REGIONS: [&str; 7] = ["apac", "weur", "enam", "wnam", "oc", "afr", "me"];
/// Of the seed: group, members.
const GROUPS: [(&str, &[&str]); 5] = [
    ("user-client", &["authcode", "refresh"]),
    ("random-high-rps", &["revocation"]),
    ("random-medium-rps", &["session", "challenge"]),
    ("client-based", &["par", "device", "ciba", "dpop"]),
    ("vc", &["credoffer", "vprequest"]),
];

/// What one generation has of its own.
#[derive(Debug, Clone)]
struct Shape {
    counts: [u32; 5],
    salts: [Option<u8>; 5],
    /// Of dpop.
    own: Option<u32>,
    /// Percentages of the first regions.
    shares: Vec<u32>,
}

fn shares() -> impl Strategy<Value = Vec<u32>> {
    // Cuts of a hundred: as many parts as cuts and one.
    proptest::collection::btree_set(1u32..100, 0..6).prop_map(|cuts| {
        let ends: Vec<u32> = cuts.into_iter().chain([100]).collect();
        let starts = std::iter::once(0).chain(ends.iter().copied());
        starts.zip(&ends).map(|(from, to)| to - from).collect()
    })
}

fn shape() -> impl Strategy<Value = Shape> {
    let counts = proptest::array::uniform5(7u32..200);
    let salts = proptest::array::uniform5(proptest::option::weighted(0.3, any::<u8>()));
    let own = proptest::option::of(7u32..200);
    (counts, salts, own, shares()).prop_map(|(counts, salts, own, shares)| Shape { counts, salts, own, shares })
}

impl Shape {
    fn groups(&self) -> Value {
        let mut groups = serde_json::Map::new();
        for (i, (name, members)) in GROUPS.iter().enumerate() {
            let mut group = json!({ "totalShards": self.counts[i], "members": members });
            if let Some(salt) = self.salts[i] {
                group["salt"] = json!(format!("s{salt}"));
            }
            if let Some(own) = self.own.filter(|_| *name == "client-based") {
                group["overrides"] = json!({ "dpop": own });
            }
            groups.insert((*name).into(), group);
        }
        Value::Object(groups)
    }

    fn regions(&self) -> Value {
        REGIONS.iter().zip(&self.shares).map(|(name, share)| ((*name).to_owned(), json!(share))).collect()
    }
}

/// The configuration of the last shape, with all others as previous generations, the most recent first.
fn chain(shapes: &[Shape]) -> Placement {
    let (last, before) = shapes.split_last().unwrap();
    let previous: Vec<Value> = before
        .iter()
        .enumerate()
        .rev()
        .map(|(i, shape)| {
            let generation = i + 1;
            json!({ "generation": generation, "groups": shape.groups(), "regions": shape.regions(), "validUntil": UNTIL })
        })
        .collect();
    let config = json!({
        "version": 2,
        "currentGeneration": shapes.len(),
        "baseRegions": last.regions(),
        "groups": last.groups(),
        "previousGenerations": previous,
    });
    Placement::from_json(&config.to_string()).unwrap_or_else(|errors| panic!("{config}: {errors}"))
}

/// Types that go to a group together: those that must, and those that are keyed by the same values.
const UNITS: [&[&str]; 7] = [
    &["authcode", "refresh"],
    &["par", "device", "ciba", "dpop"],
    &["revocation"],
    &["session"],
    &["challenge"],
    &["credoffer"],
    &["vprequest"],
];

/// Any partition of the types into groups.
#[derive(Debug, Clone)]
struct Partition {
    /// The group of each unit.
    groups: [usize; 7],
    counts: [u32; 6],
    salts: [Option<u8>; 6],
    /// Whether the members of a group have counts of their own, so that none has the group's.
    own: [bool; 5],
    /// Whether there is a group for what no other names.
    has_default: bool,
}

fn partition() -> impl Strategy<Value = Partition> {
    let groups = proptest::array::uniform7(0usize..5);
    let salts = proptest::array::uniform6(proptest::option::weighted(0.3, any::<u8>()));
    let own = proptest::array::uniform5(any::<bool>());
    (groups, proptest::array::uniform6(7u32..60), salts, own, any::<bool>())
        .prop_map(|(groups, counts, salts, own, has_default)| Partition { groups, counts, salts, own, has_default })
}

/// One of the ways in which people change a configuration in place.
#[derive(Debug, Clone)]
enum Edit {
    Nothing,
    Count(usize, u32),
    Salt(usize, Option<u8>),
    Unit(usize, usize),
    Default,
    Own(usize),
    All(Partition),
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        Just(Edit::Nothing),
        (0usize..6, 7u32..60).prop_map(|(group, count)| Edit::Count(group, count)),
        (0usize..6, proptest::option::of(any::<u8>())).prop_map(|(group, salt)| Edit::Salt(group, salt)),
        (0usize..7, 0usize..5).prop_map(|(unit, group)| Edit::Unit(unit, group)),
        Just(Edit::Default),
        (0usize..5).prop_map(Edit::Own),
        partition().prop_map(Edit::All),
    ]
}

impl Partition {
    fn edited(mut self, edit: &Edit) -> Partition {
        match edit.clone() {
            Edit::Nothing => {}
            Edit::Count(group, count) => self.counts[group] = count,
            Edit::Salt(group, salt) => self.salts[group] = salt,
            Edit::Unit(unit, group) => self.groups[unit] = group,
            Edit::Default => self.has_default = !self.has_default,
            Edit::Own(group) => self.own[group] = !self.own[group],
            Edit::All(other) => return other,
        }
        self
    }

    fn groups(&self) -> Value {
        let mut groups = serde_json::Map::new();
        for number in 0..5 {
            let units = || UNITS.iter().zip(self.groups).filter(|(_, group)| *group == number).map(|(unit, _)| *unit);
            let members: Vec<&str> = units().flatten().copied().collect();
            if members.is_empty() {
                continue;
            }
            let mut group = json!({ "totalShards": self.counts[number], "members": members });
            let may_differ = members.iter().filter(|name| !UNITS[0].contains(name));
            if self.own[number] {
                group["overrides"] = may_differ.map(|name| ((*name).to_owned(), json!(61))).collect();
            }
            if let Some(salt) = self.salts[number] {
                group["salt"] = json!(format!("s{salt}"));
            }
            groups.insert(format!("group{number}"), group);
        }
        if self.has_default {
            groups.insert("default".into(), json!({ "totalShards": self.counts[5], "members": [] }));
        }
        groups.into()
    }

    fn placement(&self) -> Placement {
        let config = json!({
            "version": 2, "currentGeneration": 1, "baseRegions": { "apac": 20, "enam": 40, "weur": 40 },
            "groups": self.groups(),
        });
        Placement::from_json(&config.to_string()).unwrap_or_else(|errors| panic!("{config}: {errors}"))
    }
}

/// Types that no configuration lists: one in each group that there may be, and in one that there never is.
fn kept() -> Vec<KeptType> {
    let names = (0..5).map(|number| format!("group{number}")).chain(["default".into(), "nowhere".into()]);
    let of = |(number, group): (usize, String)| KeptType {
        name: TypeName::new(&format!("kept{number}")).unwrap(),
        group: GroupName::new(group).unwrap(),
        key: KeySchema::new(&format!("key{number}")).unwrap(),
    };
    names.enumerate().map(of).collect()
}

const UNTIL: &str = "2030-01-01T00:00:00Z";

fn now() -> Timestamp {
    "2029-12-31T23:59:59Z".parse().unwrap()
}

fn expired() -> Timestamp {
    UNTIL.parse().unwrap()
}

proptest! {
    /// Types that are keyed by the same values agree on bucket and region in every generation, whatever its counts.
    #[test]
    fn colocated_types_are_always_in_one_bucket(shapes in proptest::collection::vec(shape(), 1..6), key in "[a-z0-9:-]{1,40}") {
        let placement = chain(&shapes);
        for map in placement.generations() {
            for (one, _) in map.types() {
                for (other, _) in map.types() {
                    let key_of = |name| &placement.registry().get(name).unwrap().key;
                    if key_of(one) != key_of(other) || key_of(one).colocation() != Colocation::Required {
                        continue;
                    }
                    let at = |name| {
                        let group = map.group_of(name).unwrap();
                        (group.space().clone(), group.bucket_of(&key), group.region_of(group.bucket_of(&key)).cloned())
                    };
                    prop_assert_eq!(at(one), at(other), "{} and {}", one, other);
                }
            }
        }
    }

    /// Whatever generations come after, an id leads to where its record was stored for as long as its generation is in
    /// force, and so does the key; each step to the next configuration is one that may be taken.
    #[test]
    fn an_id_leads_to_its_record_in_every_later_generation(shapes in proptest::collection::vec(shape(), 2..6), key in "[a-z0-9:-]{1,40}") {
        let mut stored: Vec<(TypeName, ResourceId, Located)> = Vec::new();
        let mut before: Option<Placement> = None;
        for n in 1..=shapes.len() {
            let placement = chain(&shapes[..n]);
            if let Some(before) = &before {
                let step = validate_change(before, &placement, &[], now());
                prop_assert!(step.is_ok(), "{:?}", step);
            }
            for (name, id, at) in &stored {
                let found = placement.check_id(id).unwrap();
                prop_assert_eq!(&found.located, at);
                prop_assert_eq!(&found.spec.name, name);
                prop_assert!(placement.read_path(name, &key, now()).unwrap().contains(at));
            }
            for spec in placement.registry().types() {
                let at = placement.locate(&spec.name, &key).unwrap();
                let id = placement.mint(&spec.name, &at, UniquePart::new("u").unwrap()).unwrap();
                prop_assert_eq!(ResourceId::parse(&id.to_string()).unwrap(), id.clone());
                stored.push((spec.name.clone(), id, at));
            }
            before = Some(placement);
        }
        let last = chain(&shapes);
        // Current first, then by recency; and only the current one when the time of the others is over.
        let path = last.read_path(&TypeName::new("refresh").unwrap(), &key, now()).unwrap();
        let generations: Vec<u16> = path.iter().map(|at| at.generation.get()).collect();
        prop_assert_eq!(generations, (1..=shapes.len() as u16).rev().collect::<Vec<_>>());
        prop_assert_eq!(last.read_path(&TypeName::new("refresh").unwrap(), &key, expired()).unwrap().len(), 1);
        // No two generations share an instance: what one has stored is not taken for the other's.
        let spaces: std::collections::BTreeSet<_> = last.generations().flat_map(|map| map.groups().iter().map(|group| group.space())).collect();
        prop_assert_eq!(spaces.len(), last.generations().map(|map| map.groups().len()).sum::<usize>());
    }

    /// An id with a part that does not exist leads nowhere: it is one that could not have been minted.
    #[test]
    fn forged_ids_lead_nowhere(shapes in proptest::collection::vec(shape(), 1..4), generation in 1u32..8, region in 0usize..7, bucket in 0u32..400, prefix in "(ses|acd|rft|dpp|vpr|xyz)") {
        let placement = chain(&shapes);
        let region = RegionName::new(REGIONS[region]).unwrap();
        let id = ResourceId::mint(
            Generation::new(generation).unwrap(),
            region.clone(),
            BucketId(bucket),
            TypePrefix::new(&prefix).unwrap(),
            UniquePart::new("forged").unwrap(),
        ).unwrap();
        let map = placement.generations().find(|map| u32::from(map.generation().get()) == generation);
        let spec = placement.registry().by_prefix(&TypePrefix::new(&prefix).unwrap());
        let group = map.zip(spec).and_then(|(map, spec)| map.group_of(&spec.name));
        let exists = group.is_some_and(|group| group.region_of(BucketId(bucket)) == Some(&region));
        prop_assert_eq!(placement.check_id(&id).is_ok(), exists, "{}", id);
    }

    /// A mapping that changes without a new generation is always refused.
    #[test]
    fn a_changed_shape_needs_a_new_generation(one in shape(), other in shape()) {
        let (old, new) = (chain(std::slice::from_ref(&one)), chain(std::slice::from_ref(&other)));
        let same = old.current().groups() == new.current().groups();
        prop_assert_eq!(validate_change(&old, &new, &[], now()).is_ok(), same);
    }

    /// Whatever the groups are: a configuration that may take the place of another leads no key elsewhere, of no type
    /// that is listed and of none that is kept; and one that leads no key elsewhere may, if all that is kept has a place.
    #[test]
    fn what_may_change_in_place_leads_no_key_elsewhere(before in partition(), edit in edit(), keys in proptest::collection::vec("[a-z0-9:]{1,12}", 40)) {
        let (old, new) = (before.placement(), before.clone().edited(&edit).placement());
        let at = |placement: &Placement, kept: &KeptType, key: &str| {
            let group = placement.current().group_for(&kept.name, &kept.group)?;
            let bucket = group.bucket_of(key);
            Some((group.space().clone(), bucket, group.region_of(bucket).cloned()))
        };
        let listed = old.registry().types().map(|spec| KeptType {
            name: spec.name.clone(),
            group: GroupName::new("nowhere").unwrap(),
            key: spec.key.clone(),
        });
        let all: Vec<KeptType> = listed.chain(kept()).collect();
        let stays = |one: &KeptType| {
            let there = at(&old, one, "x").is_some();
            !there || keys.iter().all(|key| at(&old, one, key) == at(&new, one, key))
        };
        let placed: Vec<KeptType> = kept().into_iter().filter(|one| at(&old, one, "x").is_some()).collect();
        match validate_change(&old, &new, &placed, now()) {
            Ok(()) => {
                prop_assert!(all.iter().all(stays), "{:?}", edit);
                prop_assert!(check_kept(&new, &placed).is_ok() || check_kept(&old, &placed).is_err());
            }
            Err(errors) => prop_assert!(!matches!(edit, Edit::Nothing), "{}", errors),
        }
    }
}
