//! Properties of places, over random placements that follow each other: counts, salts, overrides, regions and expiries.
//!
//! The kernel's own properties are of configurations; these are of what stores make of them.

use super::super::identity::preset;
use super::*;
use isles_kernel::placement::KNOWN_REGIONS;
use isles_sim::rng::{Rng, number_from_env};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const HISTORIES: u64 = 120;
/// Generations of a history: the current one, and as many before it as there may be.
const GENERATIONS: u64 = 6;
const ROUTES: u64 = 6;
/// In microseconds.
const NOW: i64 = 1_800_000_000_000_000;
const GROUPS: [(&str, &[&str]); 5] = [
    ("user-client", &["authcode", "refresh"]),
    ("random-high-rps", &["revocation"]),
    ("random-medium-rps", &["session", "challenge"]),
    ("client-based", &["par", "device", "ciba", "dpop"]),
    ("vc", &["credoffer", "vprequest"]),
];

/// What one generation has of its own.
struct Shape {
    groups: Value,
    regions: Value,
    /// It has expired once it is a previous one.
    is_short: bool,
}

fn shape(rng: &mut Rng) -> Shape {
    let mut regions = KNOWN_REGIONS;
    rng.shuffle(&mut regions);
    let active = 1 + rng.below(regions.len() as u64) as usize;
    let (mut shares, mut left) = (serde_json::Map::new(), 100);
    for (at, region) in regions[..active].iter().enumerate() {
        let others = (active - at - 1) as u64;
        let share = if others == 0 { left } else { 1 + rng.below(left - others) };
        left -= share;
        shares.insert((*region).into(), share.into());
    }
    let mut groups = serde_json::Map::new();
    // Some generations have a default group, and not all of the others: what they would have is in it, listed or not.
    let has_default = rng.chance(1, 3);
    if has_default {
        groups.insert("default".into(), json!({ "totalShards": rng.range(7..300), "members": [] }));
    }
    for (name, members) in GROUPS {
        if has_default && rng.chance(1, 3) {
            continue;
        }
        let mut group = json!({ "totalShards": rng.range(7..300), "members": members });
        if rng.chance(1, 3) {
            group["salt"] = format!("s{}", rng.below(9)).into();
        }
        if name == "client-based" && rng.chance(1, 2) {
            group["overrides"] = json!({ "dpop": rng.range(7..300) });
        }
        groups.insert(name.into(), group);
    }
    Shape { groups: groups.into(), regions: shares.into(), is_short: rng.chance(1, 4) }
}

fn placement(shapes: &[Shape]) -> Placement {
    let until = |is_short: bool| timestamp(NOW + if is_short { -1_000_000 } else { 1_000_000 }).to_string();
    let (current, before) = shapes.split_last().unwrap();
    let previous: Vec<Value> = before
        .iter()
        .enumerate()
        .rev()
        .map(|(at, shape)| {
            json!({ "generation": at + 1, "groups": shape.groups, "regions": shape.regions,
                    "validUntil": until(shape.is_short) })
        })
        .collect();
    let config = json!({
        "version": 2, "currentGeneration": shapes.len(), "baseRegions": current.regions, "groups": current.groups,
        "previousGenerations": previous,
    });
    Placement::from_json(&config.to_string()).unwrap_or_else(|errors| panic!("{errors}\n{config}"))
}

/// An id, where its record was stored, and in which generation.
struct Minted {
    store: usize,
    id: String,
    spot: Spot,
}

/// A key, and where a record under it was stored.
struct Keyed {
    store: usize,
    route: String,
    spot: Spot,
}

struct History {
    rng: Rng,
    specs: Vec<StoreSpec>,
    shapes: Vec<Shape>,
    minted: Vec<Minted>,
    keyed: Vec<Keyed>,
}

fn acme() -> TenantId {
    TenantId::new("acme").unwrap()
}

impl History {
    fn new(seed: u64) -> History {
        let specs = preset().into_iter().map(|config| StoreSpec::check(config).unwrap());
        let specs = specs.filter(|spec| !spec.is_singleton()).collect();
        History { rng: Rng::new(seed), specs, shapes: Vec::new(), minted: Vec::new(), keyed: Vec::new() }
    }

    fn unique(&mut self) -> String {
        let bits = u128::from(self.rng.bits()) << 64 | u128::from(self.rng.bits());
        uuid(bits.to_be_bytes())
    }

    fn live(&mut self) {
        for _ in 0..=self.rng.below(GENERATIONS) {
            let next = shape(&mut self.rng);
            self.shapes.push(next);
            let placement = placement(&self.shapes);
            self.write(&placement);
            self.read(&placement);
            self.forge(&placement);
        }
    }

    /// Records of every store, by id and by key. Those that are colocated are in one instance.
    fn write(&mut self, placement: &Placement) {
        for number in 0..ROUTES {
            let route = format!("user{}:client{number}", self.rng.below(1_000));
            let mut instances: BTreeMap<String, String> = BTreeMap::new();
            for store in 0..self.specs.len() {
                let unique = self.unique();
                let spec = &self.specs[store];
                let given = (!spec.is_random()).then_some(&*route);
                let (spot, id) = mint(spec, placement, &acme(), (given, Wanted::default()), &unique).unwrap();
                assert_eq!(
                    spot.generation,
                    placement.current().generation(),
                    "new records are of the current generation"
                );
                assert!(spot.bucket < spot.buckets && id.starts_with(&format!("{}:{}:", spot.generation, spot.region)));
                if let Some(route) = given {
                    let by_key = of_key(spec, placement, &acme(), &Address::key(route), NOW).unwrap().remove(0);
                    assert_eq!(by_key.instance, spot.instance, "an id and a key of one route are in one instance");
                    instances.insert(spec.name.to_string(), spot.instance.clone());
                    self.keyed.push(Keyed { store, route: route.to_owned(), spot: by_key });
                }
                self.minted.push(Minted { store, id, spot });
            }
            assert_eq!(instances["authcode"], instances["refresh"]);
            assert_eq!((&instances["par"], &instances["device"]), (&instances["device"], &instances["ciba"]));
        }
    }

    /// What was written in a generation in force is found where it was written, by id and by key; what was written in
    /// one that has expired is not looked for.
    fn read(&self, placement: &Placement) {
        let in_force = |generation: Generation| {
            placement.generations().any(|map| map.generation() == generation && map.in_force(timestamp(NOW)))
        };
        for Minted { store, id, spot } in &self.minted {
            let followed = follow(&self.specs[*store], placement, &acme(), id, NOW);
            match in_force(spot.generation) {
                true => assert_eq!(followed.unwrap().spot, *spot, "{id}"),
                false => assert!(followed.is_none(), "{id}"),
            }
        }
        for Keyed { store, route, spot } in &self.keyed {
            let spots = of_key(&self.specs[*store], placement, &acme(), &Address::key(route), NOW).unwrap();
            assert_eq!(spots.contains(spot), in_force(spot.generation), "{route}");
            assert!(spots.windows(2).all(|pair| pair[0].generation > pair[1].generation), "the most recent first");
            let mut instances: Vec<&str> = spots.iter().map(|spot| &*spot.instance).collect();
            instances.dedup();
            assert_eq!(instances.len(), spots.len(), "each generation has a place of its own");
        }
    }

    /// Ids of others, and those that nobody has minted, lead nowhere, or to where there is no such record.
    fn forge(&mut self, placement: &Placement) {
        let at = self.rng.below(self.minted.len() as u64) as usize;
        let Minted { store, id, spot } = &self.minted[at];
        let (spec, prefix) = (&self.specs[*store], &self.specs[*store].prefix);
        let follows = |id: &str| follow(spec, placement, &acme(), id, NOW);
        let unique = id.rsplit_once('_').unwrap().1;
        let of =
            |generation: u64, region: &str, bucket: u32| format!("g{generation}:{region}:{bucket}:{prefix}_{unique}");
        let own = u64::from(spot.generation.get());
        assert!(
            follows(&of(self.shapes.len() as u64 + 1, &spot.region, spot.bucket)).is_none(),
            "a generation to come"
        );
        assert!(follows(&of(own, &spot.region, spot.buckets)).is_none(), "a bucket too many");
        for region in KNOWN_REGIONS.iter().filter(|region| **region != spot.region) {
            assert!(follows(&of(own, region, spot.bucket)).is_none(), "another region");
        }
        let others = self.specs.iter().filter(|other| other.name != spec.name);
        for other in others {
            assert!(follow(other, placement, &acme(), id, NOW).is_none(), "an id of {} for {}", spec.name, other.name);
        }
        let evil = TenantId::new("evil").unwrap();
        if let Some(followed) = follow(spec, placement, &evil, id, NOW) {
            assert!(self.minted.iter().all(|minted| minted.spot.instance != followed.spot.instance), "another tenant");
        }
    }
}

/// I-37, I-40.
#[test]
fn what_is_minted_is_found_in_every_later_generation_in_force() {
    let seeds = match number_from_env("ISLES_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..HISTORIES,
    };
    let (mut minted, mut generations) = (0, 0);
    for seed in seeds.clone() {
        println!("ISLES_SIM_SEED={seed}");
        let mut history = History::new(seed);
        history.live();
        minted += history.minted.len();
        generations += history.shapes.len();
    }
    assert!(minted > generations * 20 && generations as u64 >= seeds.end - seeds.start, "hardly anything was seen");
}
