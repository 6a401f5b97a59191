//! Histories during which buckets move between the shards, by plans that are made, hurried, doubled, undone and cut short.
//!
//! Each history draws from its seed what happens to it:
//!
//! ```text
//! clients    append to lists and read them, in transactions over several shards
//! stale      a router that is frozen at the map of its first moment
//! operator   plans that overlap, commands that do not fit, a second driver, drivers that die
//! faults     the process dies at an operation of its disk or at any moment; syncs and writes fail; a shard is away, or
//!            the disk full, for a while; the disk is slow; the clock jumps
//! ```
//!
//! How many histories met each of these is counted, and too few are a failure: a test that has gone quiet says so.
//!
//! Whoever still believes in an old map is there, too: a client that goes to the shards themselves with the routing of
//! the first moment of its life, and never reads it again.

use crate::client::{Client, KEYS, Looks, Record, SCHEMA, Shared, ask, config, lists, session};
use crate::seeds::{check_kinds, find_bugs, run_all, seeds};
use isles_cluster::database::{Config, Database};
use isles_cluster::moves::Order;
use isles_cluster::moves::moves::{Event, Options, Plan, Span, Stage, Units};
use isles_engine::env::Env;
use isles_engine::error::ShardError;
use isles_engine::fence::{Claim, Claimed};
use isles_engine::shard::{KeyRange, Request, Statement};
use isles_kernel::error::SqlError;
use isles_kernel::hash::bucket_of;
use isles_kernel::names::{BucketId, GroupName, ShardId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::Unit;
use isles_kernel::value::{Value, key_bytes};
use isles_sim::check::{Checked, Key, Level, Outcome, check};
use isles_sim::disk::{Crash, Disk, Times, Trouble};
use isles_sim::exec::Sim;
use isles_sim::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NODE: &str = "isles";
const SHARDS: usize = 3;
const CLIENTS: u64 = 4;
/// Transactions of a client in one life.
const TXNS: u64 = 8;
/// How long a client thinks at most: so long that a move and all its clients are there together.
const THINKS: Duration = Duration::from_millis(8);
/// Lives under faults; one more without follows.
const LIVES: u64 = 3;
/// Histories of a run that nobody asked more of.
const SEEDS: u64 = 2_000;
/// From so many histories on, each kind must have been met.
const SEEDS_FOR_KINDS: u64 = 500;
/// Histories within which a planted bug must be found.
const SEEDS_FOR_BUGS: u64 = 300;
/// What histories must meet, and in how many of a hundred.
const KINDS: [(&str, u64); 18] = [
    ("planned", 90),
    ("switched", 80),
    ("plan: completed", 70),
    ("plan: rolled_back", 20),
    ("rolled back after the cutover", 3),
    ("cutover given up", 1),
    ("stale: refused", 60),
    ("two drivers", 50),
    ("drivers died", 15),
    ("process died", 40),
    ("process died during a move", 30),
    ("sync failed", 5),
    ("write failed", 3),
    ("shard away", 5),
    ("disk full", 3),
    ("clock jumped", 5),
    ("refused: 22023", 50),
    ("no fault", 10),
];
/// In virtual time: longer than any wait of the database.
const LIFE_MAX: Duration = Duration::from_secs(2_000);
/// What a target takes to open, once the switch is decided, with disks that are slow.
const OPENING: Duration = Duration::from_secs(1);
/// In virtual time: within it every plan ends once the faults have.
const PLANS_END: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(2);
pub(crate) const GROUP: &str = "lists";

type Seen = Arc<Mutex<BTreeMap<String, u64>>>;

fn saw(seen: &Seen, what: impl Into<String>) {
    *seen.lock().unwrap().entry(what.into()).or_default() += 1;
}

struct Driver {
    sim: Sim,
    disk: Arc<Disk>,
    record: Shared,
    rng: Rng,
    seen: Seen,
    bug: Option<Bug>,
}

/// What is wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    Move(isles_cluster::moves::Planted),
    Shard(isles_engine::sqlite::Planted),
}

/// What goes wrong in a life besides its end. Looks count the time.
#[derive(Debug, Default)]
struct Faults {
    /// The sync and the write that fail.
    sync: Option<u64>,
    write: Option<u64>,
    /// Looks between which the disk of one shard is away, or that of all is full.
    away: Option<(u64, Range<u64>)>,
    full: Option<Range<u64>>,
    /// The look at which the clock jumps, and how far.
    jump: Option<(u64, i64)>,
}

#[derive(Debug, Default)]
struct Report {
    checked: Checked,
    seen: BTreeMap<String, u64>,
    /// In how many histories each was seen.
    histories: BTreeMap<String, u64>,
}

impl Report {
    fn add(&mut self, one: Report) {
        self.checked.txns += one.checked.txns;
        self.checked.reads += one.checked.reads;
        for (what, count) in one.seen {
            *self.histories.entry(what.clone()).or_default() += 1;
            *self.seen.entry(what).or_default() += count;
        }
    }
}

fn run(disk: &Arc<Disk>, seed: u64, bug: Option<Bug>) -> Result<Report, String> {
    disk.reset(seed);
    let sim = Sim::new(seed);
    let rng = sim.rng("driver");
    drop(sim.node(NODE));
    let mut driver = Driver { sim, disk: disk.clone(), record: Shared::default(), rng, seen: Seen::default(), bug };
    driver.live()?;
    let Record { history, errors, .. } = std::mem::take(&mut *driver.record.lock().unwrap());
    let checked = check(&history, Level::StrictSerializable).map_err(|failure| format!("I-19: {failure}"))?;
    let mut seen = std::mem::take(&mut *driver.seen.lock().unwrap());
    errors.into_iter().for_each(|(code, count)| *seen.entry(code.into()).or_default() += count);
    Ok(Report { checked, seen, ..Report::default() })
}

fn group() -> GroupName {
    GroupName::new(GROUP).unwrap()
}

impl Driver {
    fn config(&self) -> Config {
        let mut config = config(&self.disk, "moving", SHARDS);
        match self.bug {
            Some(Bug::Move(planted)) => config.planted_move = Some(planted),
            Some(Bug::Shard(planted)) => config.sqlite.planted = Some(planted),
            None => {}
        }
        config
    }

    fn live(&mut self) -> Result<(), String> {
        let lives = self.rng.below(LIVES + 1);
        for _ in 0..lives {
            self.faulty_life()?;
        }
        if lives == 0 {
            saw(&self.seen, "no fault");
        }
        self.disk.heal();
        self.sim.set_blocking_delay(NODE, Duration::ZERO);
        self.last_life()
    }

    fn plant_faults(&mut self) -> Faults {
        self.disk.heal();
        let counts = self.disk.counts();
        if self.rng.chance(3, 4) {
            self.disk.crash_at(counts.operations + 1 + self.rng.below(3_000));
        }
        let mut faults = Faults::default();
        if self.rng.chance(1, 2) {
            let at = counts.syncs + 1 + self.rng.below(120);
            self.disk.fail_sync_at(at, Times::Once);
            faults.sync = Some(at);
        }
        if self.rng.chance(1, 6) {
            let at = counts.writes + 1 + self.rng.below(1_000);
            self.disk.fail_write_at(at, Times::Once);
            faults.write = Some(at);
        }
        if self.rng.chance(1, 6) {
            let at = self.rng.below(100);
            faults.away = Some((self.rng.below(SHARDS as u64), at..at + 1 + self.rng.below(20)));
        }
        if self.rng.chance(1, 6) {
            let at = self.rng.below(100);
            faults.full = Some(at..at + 1 + self.rng.below(20));
        }
        if self.rng.chance(1, 6) {
            let micros = self.rng.below(40_000_000) as i64 - 20_000_000;
            faults.jump = Some((self.rng.below(60), micros));
        }
        let slow = self.rng.chance(1, 2);
        let delay = if slow { Duration::from_micros(self.rng.below(3_000)) } else { Duration::ZERO };
        self.sim.set_blocking_delay(NODE, delay);
        faults
    }

    async fn open(&self) -> Result<Arc<Database>, SqlError> {
        let database = Database::open(self.config(), self.sim.node(NODE)).await?;
        ask(&mut session(&database)?, &format!("{SCHEMA} WITH (\"group\" = '{GROUP}', buckets = 8)")).await?;
        Ok(database)
    }

    fn start(&self, database: &Arc<Database>) -> Result<(), SqlError> {
        self.record.lock().unwrap().ended = 0;
        let rng = |what: &str| self.sim.rng(&format!("{what} {}", self.sim.elapsed().as_micros()));
        for number in 0..CLIENTS {
            let (session, record) = (session(database)?, self.record.clone());
            let thinks = Some((self.sim.node(NODE) as Arc<dyn Env>, THINKS));
            let rng = rng(&format!("client {number}"));
            let client = Client { number, session, record, rng, looks: Looks::Any, is_brief: true, thinks };
            self.sim.node(NODE).spawn_named("client", Box::pin(client.run(TXNS)));
        }
        let stale = Stale {
            database: database.clone(),
            policy: database.current_routing(),
            record: self.record.clone(),
            rng: rng("stale"),
            seen: self.seen.clone(),
            env: self.sim.node(NODE),
        };
        self.sim.node(NODE).spawn_named("stale", Box::pin(stale.run(TXNS)));
        let operator = Operator {
            database: database.clone(),
            rng: rng("operator"),
            seen: self.seen.clone(),
            env: self.sim.node(NODE),
        };
        self.sim.node(NODE).spawn_named("operator", Box::pin(operator.run()));
        Ok(())
    }

    /// Until all clients have ended, or the process has died, or it is killed after so many looks.
    async fn watch(&self, killed_at: Option<u64>, faults: &Faults) -> bool {
        for look in 0.. {
            self.sim.env().sleep(LOOK).await;
            self.strike(look, faults);
            if self.disk.is_dead() || killed_at == Some(look) {
                return false;
            }
            if self.record.lock().unwrap().ended == CLIENTS + 1 {
                break;
            }
        }
        true
    }

    fn strike(&self, look: u64, faults: &Faults) {
        match &faults.away {
            Some((shard, away)) if away.start == look => {
                saw(&self.seen, "shard away");
                self.disk.trouble(&format!("/s{shard}/"), Trouble::Away);
            }
            Some((_, away)) if away.end == look => self.disk.end_trouble(),
            _ => {}
        }
        match &faults.full {
            Some(full) if full.start == look => {
                saw(&self.seen, "disk full");
                self.disk.full_at(0);
            }
            Some(full) if full.end == look => self.disk.full_at(u64::MAX),
            _ => {}
        }
        if let Some((_, micros)) = faults.jump.filter(|(at, _)| *at == look) {
            saw(&self.seen, "clock jumped");
            self.sim.set_skew(NODE, micros);
        }
    }

    /// Notes what has struck by the end of a life.
    fn note_life(&self, database: Option<&Arc<Database>>, whole: bool, faults: &Faults) {
        let counts = self.disk.counts();
        if faults.sync.is_some_and(|at| counts.syncs >= at) {
            saw(&self.seen, "sync failed");
        }
        if faults.write.is_some_and(|at| counts.writes >= at) {
            saw(&self.seen, "write failed");
        }
        saw(&self.seen, if whole { "life: whole" } else { "life: cut short" });
        saw(&self.seen, "process died");
        if database.is_some_and(|database| database.drivers() > 0) {
            saw(&self.seen, "process died during a move");
        }
    }

    fn faulty_life(&mut self) -> Result<(), String> {
        let faults = self.plant_faults();
        let killed_at = self.rng.chance(1, 3).then(|| self.rng.below(400));
        let crash = *self.rng.pick(&Crash::ALL);
        let life = async {
            let Ok(database) = self.open().await else { return (None, false) };
            let started = self.start(&database).is_ok();
            (Some(database), started && self.watch(killed_at, &faults).await)
        };
        let (database, whole) = self.sim.run_within(LIFE_MAX, life).map_err(|stuck| format!("I-66: {stuck}"))?;
        self.note_life(database.as_ref(), whole, &faults);
        self.disk.crash();
        self.sim.kill(NODE);
        drop(database);
        drop(self.sim.node(NODE));
        self.disk.restart(crash);
        Ok(())
    }

    /// Without faults: every plan ends, and what is stored is what is owned.
    fn last_life(&mut self) -> Result<(), String> {
        let life = async {
            let database = self.open().await.map_err(|error| format!("it does not open: {error}"))?;
            self.start(&database).map_err(|error| error.to_string())?;
            if !self.watch(None, &Faults::default()).await {
                return Err("something ended it early".into());
            }
            self.end_plans(&database).await?;
            let mut session = session(&database).map_err(|error| error.to_string())?;
            let rows = ask(&mut session, "SELECT k, v FROM lists").await.map_err(|error| error.to_string())?;
            self.record.lock().unwrap().history.final_state = Some(lists(&rows));
            check_stored(&database, SHARDS).await?;
            database.close().await.map_err(|error| error.to_string())
        };
        let ended = self.sim.run_within(LIFE_MAX, life).map_err(|stuck| format!("I-66: {stuck}"))?;
        self.sim.kill(NODE);
        ended
    }

    fn count(&self, plan: &Plan) {
        saw(&self.seen, format!("plan: {}", plan.phase.name()));
        saw(&self.seen, format!("attempts: {}", plan.cutover.attempts.min(3)));
        let is_switched = plan.routing_version_cutover.is_some();
        let kinds = [
            (is_switched, "switched"),
            (plan.rollback_version.is_some(), "rolled back after the cutover"),
            (plan.cutover.aborted.is_some(), "cutover given up"),
        ];
        kinds.iter().filter(|(is_so, _)| *is_so).for_each(|(_, what)| saw(&self.seen, *what));
    }

    /// I-13, I-64: each plan comes to its end, one way or the other.
    async fn end_plans(&self, database: &Arc<Database>) -> Result<(), String> {
        let until = self.sim.elapsed() + PLANS_END;
        let mut hurried = BTreeSet::new();
        loop {
            let plans = database.moves().await.map_err(|error| error.to_string())?;
            let active: Vec<&Plan> = plans.iter().filter(|plan| plan.is_active()).collect();
            if active.is_empty() {
                plans.iter().for_each(|plan| self.count(plan));
                plans.iter().try_for_each(check_pause)?;
                return check_history(database, &plans).await;
            }
            if self.sim.elapsed() > until {
                return Err(format!("I-64: plans do not end: {active:?}"));
            }
            for plan in active.iter().filter(|plan| plan.is_at_rest()) {
                // One that rests is helped on: to its end or back.
                let id = plan.id.as_str();
                let _ = match (plan.stage, hurried.insert(plan.id.clone())) {
                    (Stage::Guarding, _) => database.command_move(id, Event::Complete).await,
                    (_, true) => database.run_move(id, true).await,
                    _ => database.command_move(id, Event::Rollback).await,
                };
            }
            self.sim.env().sleep(LOOK * 10).await;
        }
    }
}

/// I-14: writers waited no longer than the plan allows before the switch was decided, and then for the target to open.
fn check_pause(plan: &Plan) -> Result<(), String> {
    let limit = Duration::from_millis(plan.options.pause_limit_ms) + OPENING;
    match plan.cutover.pause_micros.map(Duration::from_micros) {
        Some(pause) if pause > limit => Err(format!("I-14: writers waited for {pause:?}, and {limit:?} is the limit")),
        _ => Ok(()),
    }
}

/// I-8: as many versions as switches, and nothing else.
pub(crate) async fn check_history(database: &Arc<Database>, plans: &[Plan]) -> Result<(), String> {
    let version = database.current_routing().version().0;
    let switches = plans.iter().flat_map(|plan| [plan.routing_version_cutover, plan.rollback_version]).flatten();
    let switches: BTreeSet<u64> = switches.map(|version| version.0).collect();
    // The first version, and the one that the table's group made.
    let expected: BTreeSet<u64> = (3..=version).collect();
    match switches == expected {
        true => Ok(()),
        false => Err(format!("I-8: versions {expected:?}, switches {switches:?}")),
    }
}

/// I-10, I-11: each shard has the rows of its own buckets and no others, and nothing is left of any plan.
pub(crate) async fn check_stored(database: &Arc<Database>, shards: usize) -> Result<(), String> {
    let policy = database.current_routing();
    let mut keys = BTreeSet::new();
    for n in 0..shards {
        let name = ShardId::new(format!("s{n}")).unwrap();
        let shard = database.shard(&name).await.map_err(|error| error.to_string())?;
        let consumers = shard.consumers().await.map_err(|error| error.to_string())?;
        if !consumers.is_empty() {
            return Err(format!("I-12: {name} still has consumers {consumers:?}"));
        }
        let mut snapshot = shard.snapshot().await.map_err(|error| error.to_string())?;
        let page = snapshot.page(&KeyRange::table("lists"), 1_000).await.map_err(|error| error.to_string())?;
        for row in page.rows {
            let Unit::Bucket(group, bucket) = &row.unit else { return Err(format!("{row:?} has no bucket")) };
            if policy.shard_of_bucket(group, *bucket) != Some(&name) {
                return Err(format!("I-10: {name} has a row of bucket {bucket}, which is another's"));
            }
            if !keys.insert(key_bytes(&row.values[..1])) {
                return Err(format!("I-11: {row:?} is there twice"));
            }
        }
    }
    Ok(())
}

/// Makes plans, and meddles with them.
struct Operator {
    database: Arc<Database>,
    rng: Rng,
    seen: Seen,
    env: Arc<dyn Env>,
}

impl Operator {
    async fn run(mut self) {
        for _ in 0..1 + self.rng.below(4) {
            self.env.sleep(Duration::from_micros(self.rng.below(3_000))).await;
            if let Some(plan) = self.plan().await {
                self.meddle(&plan).await;
            }
        }
    }

    /// Some buckets of a shard, to another one.
    async fn plan(&mut self) -> Option<Plan> {
        let policy = self.database.current_routing();
        let range = self.rng.pick(policy.ranges(&group())?).clone();
        let first = range.first.0 + self.rng.below(u64::from(range.last.0 - range.first.0 + 1)) as u32;
        let last = first + self.rng.below(u64::from(range.last.0 - first + 1)) as u32;
        let target = ShardId::new(format!("s{}", self.rng.below(SHARDS as u64))).unwrap();
        let span = Span { first: BucketId(first), last: BucketId(last) };
        let options = Options {
            auto: self.rng.chance(4, 5),
            complete: self.rng.chance(1, 2),
            waive_verification: self.rng.chance(1, 3),
            pause_limit_ms: 1 + self.rng.below(1_000),
            ..Options::default()
        };
        let units = Units::buckets(group(), [span]);
        let order = Order { source: Some(range.shard), target, units, description: None, options };
        match self.database.plan_move(order).await {
            Ok(plan) => {
                saw(&self.seen, "planned");
                Some(plan)
            }
            Err(error) => {
                saw(&self.seen, format!("refused: {}", error.sqlstate));
                None
            }
        }
    }

    async fn meddle(&mut self, plan: &Plan) {
        if self.rng.chance(1, 2) {
            saw(&self.seen, "two drivers");
            self.database.drive_also(&plan.id);
        }
        let dies_at = self.rng.chance(1, 4).then(|| self.rng.below(6));
        for n in 0..self.rng.below(6) {
            self.env.sleep(Duration::from_micros(self.rng.below(10_000))).await;
            if dies_at == Some(n) {
                saw(&self.seen, "drivers died");
                // If the catalog does not answer, the next life goes on with them.
                let _ = self.database.replace_drivers().await;
            }
            let event = match self.rng.below(8) {
                0 => Event::StartDualWrite,
                1 => Event::RunBackfill,
                2 => Event::Verify { repair: self.rng.chance(1, 2) },
                3 => Event::WaiveVerification,
                4 | 5 => Event::Cutover,
                6 => Event::Rollback,
                _ => Event::Complete,
            };
            let told = self.database.command_move(plan.id.as_str(), event).await;
            saw(&self.seen, if told.is_ok() { "command: done" } else { "command: refused" });
        }
    }
}

/// Goes to the shards with the map of its first moment.
struct Stale {
    database: Arc<Database>,
    policy: Arc<RoutingPolicy>,
    record: Shared,
    rng: Rng,
    seen: Seen,
    env: Arc<dyn Env>,
}

impl Stale {
    async fn run(mut self, txns: u64) {
        for _ in 0..txns * 3 {
            self.append().await;
            self.env.sleep(Duration::from_micros(self.rng.below(THINKS.as_micros() as u64 / 2))).await;
        }
        self.record.lock().unwrap().ended += 1;
    }

    async fn append(&mut self) {
        let key = self.rng.below(KEYS);
        let bucket = bucket_of(&key.to_string(), None, self.policy.buckets(&group()).unwrap());
        let owner = self.policy.shard_of_bucket(&group(), bucket).unwrap().clone();
        let (at, element) = self.record.lock().unwrap().begin_append(99, Key(key));
        let sql = "INSERT INTO lists (_bucket, k, v) VALUES ($1, $2, $3) \
                   ON CONFLICT (k) DO UPDATE SET v = lists.v || excluded.v";
        let params =
            vec![Value::Int(i64::from(bucket.0)), Value::Int(key as i64), Value::text(format!("{},", element.0))];
        let claim = Claim::new(self.policy.version(), vec![Claimed::Bucket(group(), bucket)]);
        let request = Request::write(claim, vec![Statement::new(sql, params).writing()]);
        let answer = match self.database.shard(&owner).await {
            Ok(shard) => shard.execute(request).await,
            Err(_) => Err(ShardError::Unavailable("it does not open".into())),
        };
        let outcome = match &answer {
            Ok(_) => Outcome::Committed,
            Err(error) if error.nothing_happened() => Outcome::Aborted,
            Err(_) => Outcome::Indeterminate,
        };
        if matches!(answer, Err(ShardError::Moved { .. })) {
            saw(&self.seen, "stale: refused");
        }
        // It comes past the router, which answers when the other halves of commits that it has seen are there.
        self.record.lock().unwrap().end_sometime(at, outcome);
    }
}

/// I-1, I-7, I-8, I-10, I-11, I-12, I-13, I-14, I-15, I-17, I-19, I-21, I-22, I-64, I-66: clients, an operator, two
/// drivers, old maps, crashes. What is strictly serializable goes back in time for nobody.
#[test]
fn moves_lose_nothing_under_faults() {
    let seeds = seeds(SEEDS);
    let mut total = Report::default();
    run_all(&seeds, |disk, seed| run(disk, seed, None)).into_iter().for_each(|report| total.add(report));
    let histories = seeds.end - seeds.start;
    println!("{histories} histories, {:?}, {:#?}", total.checked, total.seen);
    println!("of {histories} histories: {:#?}", total.histories);
    assert!(total.checked.txns as u64 >= histories * 15, "hardly anything committed: {total:?}");
    if histories >= SEEDS_FOR_KINDS {
        check_kinds(&KINDS, &total.histories, histories);
    }
}

/// I-69, planted bugs 1 and 2 and 3 and 4 and 6 and 7 and 8 and 13 and 24: each breaks a history.
#[test]
fn planted_bugs_of_moves_are_found() {
    use isles_cluster::moves::Planted as Move;
    use isles_engine::sqlite::Planted as Shard;
    let bugs = [
        Bug::Shard(Shard::SkipFence),
        Bug::Shard(Shard::FenceOutsideTransaction),
        Bug::Shard(Shard::NoSync),
        Bug::Shard(Shard::RestartLog),
        Bug::Move(Move::NoDrain),
        Bug::Move(Move::VersionByTwo),
        Bug::Move(Move::RetryUnknown),
        Bug::Move(Move::OldMap),
        Bug::Move(Move::ReplayLast),
    ];
    find_bugs(&bugs, SEEDS_FOR_BUGS, run);
}
