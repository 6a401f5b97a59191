//! Every interleaving of a switch: two shards, two routers that may hold an old map for any length of time, and two
//! drivers that both believe to drive, each of which may stop at any point for ever or for a while.
//!
//! What the drivers do is [`Plan::script`], and what the plan becomes is [`Plan::step`]: those of the product. Shards
//! are modelled by what they promise: a fence whose version never falls, a stream that obeys its last driver, a log.
//!
//! The state space is finite, since writes and switches are counted, and is searched whole.

#![allow(clippy::unwrap_used)]

use isles_kernel::hash::BucketCount;
use isles_kernel::moves::{
    Direction, Effect, Event, Options, Plan, Request, Stage, Units, Verification, VerificationStatus,
};
use isles_kernel::names::{GroupName, PlanId, RoutingVersion, ShardId, TenantId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::Schema;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Enough for one on each side of a switch.
const WRITES: u8 = 2;
/// Commands to cut over or to roll back.
const SWITCHES: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Mode {
    Closed,
    ReadOnly,
    Open,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Fence {
    version: u64,
    mode: Mode,
}

/// A shard: what it has, and which of its own writes the other one has not got. Writes are bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shard {
    fence: Fence,
    rows: u8,
    unmirrored: u8,
    /// Whether its writes are captured.
    captured: bool,
}

/// A driver's knowledge of the world, read when it began or when the plan last changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Driver {
    stage: Stage,
    direction: Direction,
    /// Of the routing, when it was read.
    version: u64,
    /// Of the switch, in the plan.
    switched: u64,
    /// Whether the plan is still as it was read.
    current: bool,
    /// Shards whose streams it has taken; it reads the plan after the last.
    taken: usize,
    /// How far it is with the script.
    at: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    stage: Stage,
    direction: Direction,
    switched: u64,
    owner: usize,
    version: u64,
    shards: [Shard; 2],
    /// What each router believes: version and owner.
    routers: [(u64, usize); 2],
    drivers: [Option<Driver>; 2],
    /// Who took the lease last.
    lease: Option<usize>,
    /// Whose word the stream on each shard takes.
    streams: [Option<usize>; 2],
    written: u8,
    acknowledged: u8,
    switches: u8,
}

/// A bug to have, which the search must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// The shard looks at no fence.
    SkipFence,
    /// The tail is drained neither before the routing changes nor after; either alone would do.
    NoDrain,
    /// The version rises by two.
    VersionByTwo,
    /// Who gives a switch up leaves the fence.
    ForgetFence,
    /// A stream takes anyone's word.
    NoStreamDriver,
}

fn template() -> Plan {
    let shard = |name: &str| ShardId::new(name).unwrap();
    let policy =
        RoutingPolicy::new(GroupName::new("tenants").unwrap(), BucketCount::new(4).unwrap(), &[shard("s"), shard("t")])
            .unwrap();
    let on_s = (0..).map(|n| TenantId::new(format!("tenant{n}")).unwrap());
    let tenant = on_s.filter(|tenant| policy.shard_of_tenant(tenant) == &shard("s")).take(1);
    let units = Units::tenants(tenant);
    let request =
        Request { source: shard("s"), target: shard("t"), units, description: None, options: Options::default() };
    let mut plan = Plan::new(PlanId::new("p").unwrap(), request, &policy, &Schema::default(), 0).unwrap();
    for event in [
        Event::StartDualWrite,
        Event::Prepared { tables: Default::default() },
        Event::RunBackfill,
        Event::Copied,
        Event::CaughtUp,
        Event::Verify { repair: false },
    ] {
        plan.step(event, 0).unwrap();
    }
    let passed = Verification { status: VerificationStatus::Passed, ..Verification::default() };
    plan.step(Event::Verified(passed), 0).unwrap();
    plan
}

struct Model {
    plan: Plan,
    planted: Planted,
}

impl Model {
    fn plan(&self, stage: Stage, direction: Direction) -> Plan {
        let mut plan = self.plan.clone();
        (plan.stage, plan.direction) = (stage, direction);
        plan
    }

    fn first(&self) -> World {
        let shard = |mode, captured| Shard { fence: Fence { version: 1, mode }, rows: 0, unmirrored: 0, captured };
        World {
            stage: Stage::Ready,
            direction: Direction::Forward,
            switched: 0,
            owner: 0,
            version: 1,
            shards: [shard(Mode::Open, true), shard(Mode::Closed, false)],
            routers: [(1, 0); 2],
            drivers: [None; 2],
            lease: None,
            streams: [None; 2],
            written: 0,
            acknowledged: 0,
            switches: 0,
        }
    }

    /// Changes the plan by an event, as a commit of the catalog does: for everyone at once.
    fn change(&self, world: &mut World, event: Event) -> bool {
        let mut plan = self.plan(world.stage, world.direction);
        if plan.step(event, 0).is_err() {
            return false;
        }
        if (plan.stage, plan.direction) != (world.stage, world.direction) {
            (world.stage, world.direction) = (plan.stage, plan.direction);
            world.drivers.iter_mut().flatten().for_each(|driver| driver.current = false);
        }
        true
    }

    fn nexts(&self, world: &World) -> Vec<World> {
        let mut nexts = Vec::new();
        for router in 0..2 {
            nexts.push(World { routers: with(world.routers, router, (world.version, world.owner)), ..*world });
            nexts.extend(self.write(world, router));
        }
        nexts.extend(self.commands(world));
        for driver in 0..2 {
            nexts.extend(self.load(world, driver));
            if let Some(known) = world.drivers[driver] {
                nexts.push(World { drivers: with(world.drivers, driver, None), ..*world });
                nexts.extend(self.give_up(world, known));
                nexts.extend(self.act(world, driver, known));
            }
        }
        nexts
    }

    /// A client's write, acknowledged by the shard that its router believes in.
    fn write(&self, world: &World, router: usize) -> Option<World> {
        let (version, shard) = world.routers[router];
        let fence = world.shards[shard].fence;
        let accepts = (fence.mode == Mode::Open && version >= fence.version) || self.planted == Planted::SkipFence;
        if world.written == WRITES || !accepts {
            return None;
        }
        let (mut next, bit) = (*world, 1 << world.written);
        next.written += 1;
        next.acknowledged |= bit;
        next.shards[shard].rows |= bit;
        if next.shards[shard].captured {
            next.shards[shard].unmirrored |= bit;
        }
        Some(next)
    }

    fn commands(&self, world: &World) -> Vec<World> {
        let mut nexts = Vec::new();
        for event in [Event::Cutover, Event::Rollback, Event::Complete] {
            let mut next = World { switches: world.switches + 1, ..*world };
            if world.switches < SWITCHES && self.change(&mut next, event) && next.stage != world.stage {
                nexts.push(next);
            }
        }
        nexts
    }

    /// A driver takes the lease, or reads again what it drives.
    fn load(&self, world: &World, driver: usize) -> Option<World> {
        match world.drivers[driver] {
            None => {
                let known = Driver { taken: 0, ..self.read(world) };
                Some(World { lease: Some(driver), drivers: with(world.drivers, driver, Some(known)), ..*world })
            }
            Some(known) if known.taken < 2 => self.take(world, driver, known),
            Some(known) if known.current => None,
            Some(_) => Some(World { drivers: with(world.drivers, driver, Some(self.read(world))), ..*world }),
        }
    }

    fn read(&self, world: &World) -> Driver {
        Driver {
            stage: world.stage,
            direction: world.direction,
            version: world.version,
            switched: world.switched,
            current: true,
            taken: 2,
            at: 0,
        }
    }

    /// It takes one stream after the other; whoever has a later lease keeps those that it has.
    fn take(&self, world: &World, driver: usize, known: Driver) -> Option<World> {
        let mut next = *world;
        if world.streams[known.taken] == Some(1 - driver) && world.lease != Some(driver) {
            next.drivers[driver] = None;
            return Some(next);
        }
        next.streams[known.taken] = Some(driver);
        next.drivers[driver] = Some(Driver { taken: known.taken + 1, ..known });
        if known.taken == 1 {
            if !self.change(&mut next, Event::TakenOver) {
                return None;
            }
            next.drivers[driver] = Some(self.read(&next));
        }
        Some(next)
    }

    /// A switch that takes too long is given up at any point.
    fn give_up(&self, world: &World, known: Driver) -> Option<World> {
        let mut next = *world;
        let may = known.stage == Stage::Switching && known.current && known.taken == 2;
        (may && self.change(&mut next, Event::Aborted("late".into()))).then_some(next)
    }

    /// The next effect of a driver's script, or the end of the script.
    fn act(&self, world: &World, driver: usize, known: Driver) -> Option<World> {
        if known.taken < 2 {
            return None;
        }
        let plan = self.plan(known.stage, known.direction);
        let mut next = *world;
        let Some(effect) = plan.script().get(known.at) else {
            let event = match known.stage {
                Stage::Settling => Some(Event::Settled { pause_micros: 0 }),
                _ => plan.done(),
            };
            let ended = known.current && event.is_some_and(|event| self.change(&mut next, event));
            return ended.then_some(next);
        };
        let giver = usize::from(!plan.flows_forward());
        let done = self.perform(&mut next, *effect, driver, known, giver);
        next.drivers[driver] = match done {
            true => Some(Driver { at: known.at + 1, ..known }),
            // What is refused ends the driver; it reads the plan again.
            false => None,
        };
        (next != *world).then_some(next)
    }

    fn perform(&self, world: &mut World, effect: Effect, driver: usize, known: Driver, giver: usize) -> bool {
        let taker = 1 - giver;
        let owns = |shard: usize| world.streams[shard] == Some(driver) || self.planted == Planted::NoStreamDriver;
        let (owns_giver, owns_taker) = (owns(giver), owns(taker));
        // A shard takes nobody's word but the stream's driver's, who looks at the taker and changes the giver, or both.
        let is_refused = match effect {
            Effect::FenceGiver | Effect::ReopenGiver | Effect::CloseGiver => !owns_giver,
            Effect::OpenTaker | Effect::Drain | Effect::Mirror | Effect::CatchUp => !owns_taker,
            _ => false,
        };
        if is_refused {
            return false;
        }
        match effect {
            Effect::WatchTaker => world.shards[taker].captured = true,
            Effect::FenceGiver => return set(world, giver, known.version, Mode::ReadOnly),
            Effect::ReopenGiver if self.planted == Planted::ForgetFence => {}
            Effect::ReopenGiver => return set(world, giver, known.version, Mode::Open),
            Effect::Drain | Effect::Mirror | Effect::CatchUp => {
                if self.planted != Planted::NoDrain || effect != Effect::Drain {
                    world.shards[taker].rows |= world.shards[giver].unmirrored;
                    world.shards[giver].unmirrored = 0;
                }
            }
            Effect::Switch => return self.switch(world, driver, known, taker),
            Effect::CloseGiver => return set(world, giver, known.switched, Mode::Closed),
            Effect::OpenTaker => return set(world, taker, known.switched, Mode::Open),
            Effect::Clean => {
                let loser = world.owner ^ 1;
                let owns_loser = if loser == giver { owns_giver } else { owns_taker };
                if !owns_loser || world.shards[loser].fence.mode != Mode::Closed {
                    return false;
                }
                world.shards[loser].rows = 0;
                world.shards[loser].captured = false;
            }
            Effect::Compare | Effect::Prepare | Effect::Copy | Effect::Verify => {}
        }
        true
    }

    fn switch(&self, world: &mut World, driver: usize, known: Driver, taker: usize) -> bool {
        if !known.current || known.version != world.version {
            return false;
        }
        world.version += if self.planted == Planted::VersionByTwo { 2 } else { 1 };
        world.owner = taker;
        world.switched = world.version;
        let version = RoutingVersion(world.version);
        let changed = self.change(world, Event::Switched { version });
        // It goes on with the next script, which it knows.
        if let Some(driver) = &mut world.drivers[driver] {
            driver.current = true;
        }
        changed
    }
}

fn with<T: Copy>(mut pair: [T; 2], at: usize, value: T) -> [T; 2] {
    pair[at] = value;
    pair
}

/// A fence's version never falls.
fn set(world: &mut World, shard: usize, version: u64, mode: Mode) -> bool {
    let fence = &mut world.shards[shard].fence;
    if version < fence.version {
        return false;
    }
    *fence = Fence { version, mode };
    true
}

/// What must hold in every state.
fn check(before: &World, world: &World) -> Result<(), String> {
    let open = world.shards.iter().filter(|shard| shard.fence.mode == Mode::Open).count();
    if open > 1 {
        return Err("I-7: two shards accept writes".into());
    }
    for (at, shard) in world.shards.iter().enumerate() {
        let serves = shard.fence.mode != Mode::Closed;
        let lost = world.acknowledged & !shard.rows;
        if serves && lost != 0 {
            return Err(format!("I-1: shard {at} serves without an acknowledged write"));
        }
    }
    match world.version - before.version {
        0 if world.owner == before.owner => Ok(()),
        1 if world.owner != before.owner => Ok(()),
        _ => Err(format!("I-8: the version went from {} to {}", before.version, world.version)),
    }
}

/// Whether the plan rests and its owner serves.
fn is_settled(world: &World) -> bool {
    let rests = matches!(world.stage, Stage::Ready | Stage::Guarding | Stage::Done);
    rests && world.shards[world.owner].fence.mode == Mode::Open
}

struct Searched {
    states: usize,
    stages: BTreeMap<Stage, usize>,
}

/// Searches all states; then, from each of them, a settled one must be in reach.
fn search(planted: Planted) -> Result<Searched, String> {
    let model = Model { plan: template(), planted };
    let first = model.first();
    let mut known: HashMap<World, usize> = HashMap::from([(first, 0)]);
    let mut worlds = vec![first];
    let mut before: Vec<Vec<usize>> = vec![Vec::new()];
    let mut open = VecDeque::from([0]);
    while let Some(at) = open.pop_front() {
        let world = worlds[at];
        for next in model.nexts(&world) {
            check(&world, &next).map_err(|why| format!("{why}\nfrom {world:?}\nto   {next:?}"))?;
            let number = *known.entry(next).or_insert_with(|| {
                worlds.push(next);
                before.push(Vec::new());
                open.push_back(worlds.len() - 1);
                worlds.len() - 1
            });
            before[number].push(at);
        }
    }
    let mut reached: Vec<bool> = worlds.iter().map(is_settled).collect();
    let mut open: VecDeque<usize> = (0..worlds.len()).filter(|at| reached[*at]).collect();
    while let Some(at) = open.pop_front() {
        for earlier in &before[at] {
            if !std::mem::replace(&mut reached[*earlier], true) {
                open.push_back(*earlier);
            }
        }
    }
    if let Some(stuck) = reached.iter().position(|reached| !reached) {
        return Err(format!("I-13: nothing leads out of {:?}", worlds[stuck]));
    }
    let mut stages = BTreeMap::new();
    worlds.iter().for_each(|world| *stages.entry(world.stage).or_default() += 1);
    Ok(Searched { states: worlds.len(), stages })
}

/// I-7, I-8, I-12, I-13: no interleaving of two drivers and two routers loses a write, opens two shards or gets stuck.
#[test]
fn no_interleaving_of_a_switch_loses_a_write() {
    let searched = search(Planted::Nothing).unwrap_or_else(|why| panic!("{why}"));
    println!("{} states, {:?}", searched.states, searched.stages);
    assert!(searched.states > 10_000, "{} states are too few to be all", searched.states);
    for stage in [Stage::Switching, Stage::Unfencing, Stage::Settling, Stage::Guarding, Stage::Cleaning, Stage::Done] {
        assert!(searched.stages.contains_key(&stage), "{stage:?} was not seen");
    }
}

/// I-69, planted bug 1, planted bug 4, planted bug 6, planted bug 20, planted bug 23: the search finds what is planted.
#[test]
fn the_search_finds_planted_bugs() {
    for (planted, found_as) in [
        (Planted::SkipFence, "I-1"),
        (Planted::NoDrain, "I-1"),
        (Planted::VersionByTwo, "I-8"),
        (Planted::ForgetFence, "I-13"),
        (Planted::NoStreamDriver, "I-"),
    ] {
        match search(planted) {
            Err(why) => {
                println!("{planted:?}: {}", why.lines().next().unwrap_or_default());
                assert!(why.starts_with(found_as), "{planted:?} was found as {why}");
            }
            Ok(searched) => panic!("{planted:?} passed {} states", searched.states),
        }
    }
}
