//! Random histories of clients and a server: offline, crashes at any effect, answers lost, doubled and in any order,
//! floors that rise, tenants that move, clients that change tenants, logs that begin anew.
//!
//! After every event each replica equals the server's state at the cursor it reports; at the end all have converged,
//! and each command was applied once, or is known not to have been, or is told to be uncertain.
//! `ISLES_LOFI_SEED` replays one history, `ISLES_LOFI_HISTORIES` sets how many there are.

#![allow(clippy::unwrap_used)]

mod server;

use isles_kernel::sync::*;
use isles_lofi::*;
use isles_sim::rng::{Rng, number_from_env};
use serde_json::json;
use server::{Moved, Rows, Tenant};
use std::collections::BTreeMap;

const HISTORIES: u64 = 600;
const EVENTS: u64 = 250;
/// Enough for every history to come to rest; one that does not is stuck.
const MAX_QUIET_ROUNDS: usize = 5_000;
const TENANTS: [&str; 2] = ["a", "b"];

/// What may happen in a history; a random part of it in each.
#[derive(Debug, Clone, Copy)]
struct Faults {
    crashes: bool,
    losses: bool,
    copies: bool,
    floors: bool,
    logins: bool,
    moved: Option<Moved>,
    outages: bool,
}

/// How often things were seen over all histories: a test that has not seen them shows nothing.
#[derive(Debug, Default)]
struct Seen(BTreeMap<&'static str, u64>);

impl Seen {
    fn note(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

struct Packet {
    client: usize,
    life: u64,
    call: CallId,
    tenant: usize,
    request: Request,
}

struct Letter {
    client: usize,
    life: u64,
    call: CallId,
    result: Result<Reply, Failure>,
}

struct Device {
    replica: Replica,
    /// What its store has.
    kept: Kept,
    life: u64,
    tenant: usize,
    now_ms: u64,
    /// Every command: its mark, its tenant, its draft.
    commands: BTreeMap<CommandId, (String, Draft)>,
}

struct World {
    rng: Rng,
    faults: Faults,
    tenants: Vec<Tenant>,
    devices: Vec<Device>,
    packets: Vec<Packet>,
    letters: Vec<Letter>,
    seen: Seen,
    marks: u64,
}

fn options() -> Options {
    let index = Index { schema: "s".into(), table: "t".into(), columns: vec!["list".into(), "n".into()] };
    Options { indexes: vec![index], ..Options::default() }
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let moved = [None, None, Some(Moved::GoesOn), Some(Moved::RestartsAndRefuses), Some(Moved::RestartsBlindly)];
        let faults = Faults {
            crashes: rng.chance(2, 3),
            losses: rng.chance(2, 3),
            copies: rng.chance(2, 3),
            floors: rng.chance(1, 2),
            logins: rng.chance(1, 3),
            moved: *rng.pick(&moved),
            outages: rng.chance(1, 2),
        };
        let device = |tenant| Device {
            replica: Replica::open(Kept::default(), options()).unwrap(),
            kept: Kept::default(),
            life: 0,
            tenant,
            now_ms: 0,
            commands: BTreeMap::new(),
        };
        World {
            rng,
            faults,
            tenants: TENANTS.map(Tenant::new).into(),
            devices: [0, 0, 1].map(device).into(),
            packets: Vec::new(),
            letters: Vec::new(),
            seen: Seen::default(),
            marks: 0,
        }
    }

    fn moment(&mut self, client: usize) -> Moment {
        let random = (u128::from(self.rng.bits()) << 64) | u128::from(self.rng.bits());
        Moment { now_ms: self.devices[client].now_ms, random }
    }

    fn step(&mut self, client: usize, event: Event) {
        let at = self.moment(client);
        let effects = self.devices[client].replica.step(at, event);
        self.perform(client, effects);
    }

    /// Performs effects in order; the process may die before any of them.
    fn perform(&mut self, client: usize, effects: Vec<Effect>) {
        for effect in effects {
            if self.faults.crashes && self.rng.chance(1, 60) {
                return self.crash(client);
            }
            let device = &mut self.devices[client];
            match effect {
                Effect::Persist(writes) => device.kept.apply(&writes),
                Effect::Call(call) => {
                    let (life, tenant) = (device.life, device.tenant);
                    self.packets.push(Packet { client, life, call: call.id, tenant, request: call.request });
                }
                Effect::Wiped => self.seen.note("wiped"),
                Effect::Outcome(Outcome::Confirmed { .. }) => self.seen.note("confirmed"),
                Effect::Outcome(Outcome::GivenUp(given_up)) => self.seen.note(match given_up.reason {
                    Reason::Conflict(_) => "given up: conflict",
                    Reason::Stale { .. } => "given up: stale",
                    Reason::StaleAfterResync { .. } => "given up: stale after resync",
                    Reason::OutcomeUnknown(_) => "given up: unknown",
                    Reason::PartitionChanged(_) => "given up: partition",
                    Reason::Refused(_) => "given up: refused",
                }),
                Effect::Health(Health { phase: Phase::Resyncing, .. }) => self.seen.note("resync"),
                Effect::Health(_) | Effect::Changed(_) | Effect::Wake { .. } => {}
            }
        }
    }

    fn crash(&mut self, client: usize) {
        self.seen.note("crash");
        let device = &mut self.devices[client];
        device.life += 1;
        device.replica = Replica::open(device.kept.clone(), options()).unwrap();
        // A command that was not kept was never told to the application.
        let known = device.commands.keys().copied().collect::<Vec<_>>();
        let next = device.kept.records.get("head").map_or(1, |head| head["next_command"].as_u64().unwrap());
        for id in known.into_iter().filter(|id| id.0 >= next) {
            device.commands.remove(&id);
        }
        self.step(client, Event::Tick);
    }

    fn submit(&mut self, client: usize) {
        self.marks += 1;
        let mark = format!("m{}", self.marks);
        let id = format!("r{}", self.rng.below(8));
        let key = RowKey::new("s", "t", id.clone()).unwrap();
        let name = *self.rng.pick(&["add", "add", "add", "del", "refuse", "nothing"]);
        let reads = if self.rng.chance(1, 4) { vec![key.clone()] } else { vec![] };
        let predicate = Predicate::Eq("list".into(), json!("l1"));
        let scope = Scope { schema: "s".into(), table: "t".into(), predicate };
        let scopes = if self.rng.chance(1, 6) { vec![scope] } else { vec![] };
        let edits = match name {
            "del" => vec![Edit { op: Op::Delete, key, values: Values::default() }],
            "nothing" => vec![],
            _ => {
                let seen = self.devices[client].replica.get(&key);
                let n = seen.and_then(|row| row.values.get("n")?.as_u64()).unwrap_or(0);
                let op = if seen.is_some() { Op::Update } else { Op::Create };
                vec![Edit { op, key, values: serde_json::from_value(json!({"n": n + 1, "list": "l0"})).unwrap() }]
            }
        };
        let input = json!({"mark": mark, "id": id});
        let command = Command { schema: "s".into(), name: name.into(), input, reads, scopes };
        let on_conflict = *self.rng.pick(&[OnConflict::GiveUp, OnConflict::Retry]);
        let draft = Draft { command, edits, on_conflict };
        let at = self.moment(client);
        let device = &mut self.devices[client];
        let (id, effects) = device.replica.submit(at, draft.clone()).unwrap();
        device.commands.insert(id, (mark, draft));
        self.perform(client, effects);
    }

    /// A packet reaches the server, or is lost; a copy of it may come later.
    fn carry(&mut self) {
        if self.packets.is_empty() {
            return;
        }
        let at = self.rng.below(self.packets.len() as u64) as usize;
        let packet = &self.packets[at];
        let (client, life, call, tenant) = (packet.client, packet.life, packet.call, packet.tenant);
        let outage = self.faults.outages && self.rng.chance(1, 10);
        let lost = self.faults.losses && self.rng.chance(1, 6);
        let result = match (lost, outage) {
            (true, _) => {
                self.seen.note("request lost");
                Err(Failure::Unreachable("lost".into()))
            }
            (_, true) => Err(Failure::Refused(Refusal::new(Code::Unavailable, "moving").with_retry_after_ms(100))),
            _ => {
                let answer = self.tenants[tenant].answer(&packet.request, &mut self.rng);
                if let Ok(Reply::Submit(response)) = &answer
                    && response.duplicate
                {
                    self.seen.note("duplicate");
                }
                if let Err(refusal) = &answer {
                    self.seen.note(match refusal.code {
                        Code::ResyncRequired => "410",
                        Code::WrongPartition => "409",
                        _ => "refused",
                    });
                }
                let answer = answer.map_err(Failure::Refused);
                match self.faults.losses && self.rng.chance(1, 6) {
                    true => {
                        self.seen.note("answer lost");
                        Err(Failure::Unreachable("answer lost".into()))
                    }
                    false => answer,
                }
            }
        };
        if !(self.faults.copies && self.rng.chance(1, 6)) {
            self.packets.swap_remove(at);
        }
        self.letters.push(Letter { client, life, call, result });
    }

    fn deliver(&mut self) {
        if self.letters.is_empty() {
            return;
        }
        let at = self.rng.below(self.letters.len() as u64) as usize;
        let copy = self.faults.copies && self.rng.chance(1, 6);
        let letter = match copy {
            true => {
                let Letter { client, life, call, result } = &self.letters[at];
                Letter { client: *client, life: *life, call: *call, result: result.clone() }
            }
            false => self.letters.swap_remove(at),
        };
        if self.devices[letter.client].life == letter.life {
            self.step(letter.client, Event::Answered(letter.call, letter.result));
        }
    }

    fn happen(&mut self) {
        let client = self.rng.below(self.devices.len() as u64) as usize;
        let tenant = self.rng.below(self.tenants.len() as u64) as usize;
        match self.rng.below(100) {
            0..12 => self.submit(client),
            12..18 => self.tenants[tenant].write(&mut self.rng),
            18..50 => self.carry(),
            50..82 => self.deliver(),
            82..92 => {
                self.devices[client].now_ms += self.rng.below(2_000);
                self.step(client, Event::Tick);
            }
            92 => self.step(client, Event::Offline),
            93 | 94 => self.step(client, Event::Online),
            95 if self.faults.crashes => self.crash(client),
            96 if self.faults.floors => self.tenants[tenant].raise_floor(&mut self.rng),
            97 if self.faults.logins && self.rng.chance(1, 4) => {
                self.seen.note("login as another");
                self.devices[client].tenant = 1 - self.devices[client].tenant;
            }
            98 if self.rng.chance(1, 4) => {
                if let Some(how) = self.faults.moved {
                    self.seen.note(match how {
                        Moved::GoesOn => "moved",
                        Moved::RestartsAndRefuses => "log restarted, refuses",
                        Moved::RestartsBlindly => "log restarted, blind",
                    });
                    self.tenants[tenant].move_to_another_shard(how);
                }
            }
            _ => {}
        }
    }

    /// I-34: what each replica has is what the server had at the cursor it reports, and what is seen of it is that
    /// with the edits of its unconfirmed commands over it.
    fn check(&self) {
        for device in &self.devices {
            let replica = &device.replica;
            if let (Some(cursor), Some(partition)) = (replica.cursor(), replica.partition()) {
                let tenant = self.tenants.iter().find(|tenant| tenant.partition == *partition).unwrap();
                // A log that has begun anew has begun with other rows.
                let state = tenant.states.get(&cursor).expect("the cursor is one of the server's");
                if cursor != Cursor::START {
                    assert_eq!(replica.confirmed(), state, "the replica differs at {cursor}");
                }
            }
            self.check_view(device);
        }
    }

    fn check_view(&self, device: &Device) {
        let replica = &device.replica;
        let mut seen: Rows = replica.confirmed().clone();
        for (id, (_, draft)) in &device.commands {
            if !matches!(replica.state_of(*id), CommandState::Queued | CommandState::Pending) {
                continue;
            }
            for edit in &draft.edits {
                match (edit.op, seen.get_mut(&edit.key)) {
                    (Op::Delete, _) => drop(seen.remove(&edit.key)),
                    (Op::Update, None) => {}
                    (Op::Update, Some(row)) => row.values.merge(&edit.values),
                    (Op::Create, row) => {
                        let version = row.map_or(RowVersion(0), |row| row.version);
                        seen.insert(edit.key.clone(), Row { version, values: edit.values.clone() });
                    }
                }
            }
        }
        let all = replica.list(&Query::table("s", "t"));
        let all: Rows = all.into_iter().map(|(key, row)| (key.clone(), row.clone())).collect();
        assert_eq!(all, seen, "what is seen");
        for list in ["l0", "l1"] {
            let predicate = Predicate::Eq("list".into(), json!(list));
            let by_index = replica.list(&Query::table("s", "t").matching(predicate.clone()));
            let by_scan: Vec<_> = seen.iter().filter(|(_, row)| predicate.matches(&row.values)).collect();
            assert_eq!(by_index, by_scan, "an index finds what a scan finds");
        }
    }

    /// No more faults: everything comes to rest.
    fn come_to_rest(&mut self) {
        self.faults = Faults {
            crashes: false,
            losses: false,
            copies: false,
            floors: false,
            logins: false,
            moved: None,
            outages: false,
        };
        for client in 0..self.devices.len() {
            self.step(client, Event::Online);
        }
        for round in 0..MAX_QUIET_ROUNDS {
            self.carry();
            self.deliver();
            self.check();
            if self.at_rest() {
                return;
            }
            // Long polls return at once here, so that there is always a next one; time passes beside them.
            if round % 10 == 0 {
                for client in 0..self.devices.len() {
                    self.devices[client].now_ms += 10_000;
                    self.step(client, Event::Tick);
                }
            }
        }
        for device in &self.devices {
            let replica = &device.replica;
            println!(
                "at {:?} of {:?}, {} unconfirmed, {:?}, wants {:?} of {:?}",
                replica.cursor(),
                replica.partition(),
                replica.unconfirmed(),
                replica.health(),
                self.tenants[device.tenant].head(),
                self.tenants[device.tenant].partition,
            );
        }
        panic!("the history does not come to rest");
    }

    fn at_rest(&self) -> bool {
        self.devices.iter().all(|device| {
            let tenant = &self.tenants[device.tenant];
            let replica = &device.replica;
            replica.partition() == Some(&tenant.partition)
                && replica.cursor() == Some(tenant.head())
                && replica.unconfirmed() == 0
                && replica.confirmed() == &tenant.rows
        })
    }

    /// I-3: each command once, or known not to have been applied, or told to be uncertain.
    fn account(&self) {
        for device in &self.devices {
            for (id, (mark, _)) in &device.commands {
                let executed: u32 = self.tenants.iter().filter_map(|tenant| tenant.executed.get(mark)).copied().sum();
                let given_up = device.replica.given_up().find(|given_up| given_up.id == *id);
                match given_up.map(|given_up| &given_up.reason) {
                    None => assert_eq!(executed, 1, "{mark} was confirmed"),
                    Some(reason) if reason.may_have_happened() => assert!(executed <= 1, "{mark}"),
                    Some(reason) => assert_eq!(executed, 0, "{mark} was given up: {reason:?}"),
                }
            }
        }
    }
}

fn history(seed: u64) -> Seen {
    let mut world = World::new(seed);
    for tenant in &mut world.tenants {
        for _ in 0..world.rng.below(4) {
            tenant.write(&mut world.rng);
        }
    }
    for client in 0..world.devices.len() {
        world.step(client, Event::Tick);
    }
    for _ in 0..EVENTS {
        world.happen();
        world.check();
    }
    world.come_to_rest();
    world.account();
    world.seen
}

/// I-3, I-32, I-34: replicas equal the server at the cursor they report, converge, and apply each command once.
#[test]
fn replicas_converge_in_every_history() {
    let seeds = match number_from_env("ISLES_LOFI_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number_from_env("ISLES_LOFI_HISTORIES").unwrap_or(HISTORIES),
    };
    let many = seeds.end - seeds.start >= HISTORIES;
    let mut total = Seen::default();
    for seed in seeds {
        let seen = std::panic::catch_unwind(|| history(seed)).unwrap_or_else(|_| {
            panic!("replay: ISLES_LOFI_SEED={seed} cargo test -p isles-lofi --test model");
        });
        for (what, times) in seen.0 {
            *total.0.entry(what).or_default() += times;
        }
    }
    println!("{total:?}");
    let expected = [
        "wiped",
        "confirmed",
        "given up: conflict",
        "given up: stale",
        "given up: stale after resync",
        "given up: unknown",
        "given up: partition",
        "resync",
        "crash",
        "duplicate",
        "410",
        "409",
        "request lost",
        "answer lost",
        "login as another",
        "moved",
        "log restarted, refuses",
        "log restarted, blind",
    ];
    for what in expected.into_iter().filter(|_| many) {
        assert!(total.0.get(what).is_some_and(|times| *times >= 10), "{what} was not seen: {total:?}");
    }
}
