//! Histories during which buckets move between the shards, by plans that are made, hurried, doubled, undone and cut short.
//!
//! Whoever still believes in an old map is there, too: a client that goes to the shards themselves with the routing of
//! the first moment of its life, and never reads it again.

use crate::client::{Client, KEYS, Looks, Record, SCHEMA, Shared, ask, lists, session};
use isles_cluster::database::{Config, Database};
use isles_cluster::moves::Order;
use isles_cluster::moves::moves::{Event, Options, Phase, Plan, Span, Stage, Units};
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
use isles_sim::disk::{Crash, Disk, Times};
use isles_sim::exec::Sim;
use isles_sim::rng::Rng;
use isles_sim::rng::number_from_env as number;
use std::collections::{BTreeMap, BTreeSet};
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
const SEEDS: u64 = 150;
/// Histories within which a planted bug must be found.
const SEEDS_FOR_BUGS: u64 = 100;
/// In virtual time: longer than any wait of the database.
const LIFE_MAX: Duration = Duration::from_secs(2_000);
/// In virtual time: within it every plan ends once the faults have.
const PLANS_END: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(2);
const GROUP: &str = "lists";

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

#[derive(Debug, Default)]
struct Report {
    checked: Checked,
    seen: BTreeMap<String, u64>,
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
    Ok(Report { checked, seen })
}

fn group() -> GroupName {
    GroupName::new(GROUP).unwrap()
}

impl Driver {
    fn config(&self) -> Config {
        let folder = std::env::temp_dir().join(format!("isles-moving-{}", std::process::id()));
        let mut config = Config::sqlite(folder, SHARDS);
        match self.bug {
            Some(Bug::Move(planted)) => config.planted_move = Some(planted),
            Some(Bug::Shard(planted)) => config.sqlite.planted = Some(planted),
            None => {}
        }
        config.sqlite.base_vfs = Some(self.disk.vfs_name().into());
        config.sqlite.gather = Duration::ZERO;
        config.catalog.vfs = Some(self.disk.vfs_name().into());
        config
    }

    fn live(&mut self) -> Result<(), String> {
        for _ in 0..self.rng.below(LIVES + 1) {
            self.faulty_life()?;
        }
        self.disk.heal();
        self.sim.set_blocking_delay(NODE, Duration::ZERO);
        self.last_life()
    }

    fn plant_faults(&mut self) {
        self.disk.heal();
        let counts = self.disk.counts();
        if self.rng.chance(3, 4) {
            self.disk.crash_at(counts.operations + 1 + self.rng.below(3_000));
        }
        if self.rng.chance(1, 4) {
            saw(&self.seen, "failing sync");
            self.disk.fail_sync_at(counts.syncs + 1 + self.rng.below(200), Times::Once);
        }
        let slow = self.rng.chance(1, 2);
        let delay = if slow { Duration::from_micros(self.rng.below(3_000)) } else { Duration::ZERO };
        self.sim.set_blocking_delay(NODE, delay);
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
            let client = Client { number, session, record, rng, looks: Looks::Any, thinks };
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
    async fn watch(&self, killed_at: Option<u64>) -> bool {
        for look in 0.. {
            self.sim.env().sleep(LOOK).await;
            if self.disk.is_dead() || killed_at == Some(look) {
                return false;
            }
            if self.record.lock().unwrap().ended == CLIENTS + 1 {
                break;
            }
        }
        true
    }

    fn faulty_life(&mut self) -> Result<(), String> {
        self.plant_faults();
        let killed_at = self.rng.chance(1, 3).then(|| self.rng.below(400));
        let crash = *self.rng.pick(&Crash::ALL);
        let life = async {
            let Ok(database) = self.open().await else { return (None, false) };
            let started = self.start(&database).is_ok();
            (Some(database), started && self.watch(killed_at).await)
        };
        let (database, whole) = self.sim.run_within(LIFE_MAX, life).map_err(|stuck| format!("I-66: {stuck}"))?;
        saw(&self.seen, if whole { "life: whole" } else { "life: cut short" });
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
            if !self.watch(None).await {
                return Err("something ended it early".into());
            }
            self.end_plans(&database).await?;
            let rows = session(&database).map_err(|error| error.to_string())?;
            let mut rows_of = rows;
            let rows = ask(&mut rows_of, "SELECT k, v FROM lists").await.map_err(|error| error.to_string())?;
            self.record.lock().unwrap().history.final_state = Some(lists(&rows));
            check_stored(&database).await?;
            database.close().await.map_err(|error| error.to_string())
        };
        let ended = self.sim.run_within(LIFE_MAX, life).map_err(|stuck| format!("I-66: {stuck}"))?;
        self.sim.kill(NODE);
        ended
    }

    /// I-13, I-64: each plan comes to its end, one way or the other.
    async fn end_plans(&self, database: &Arc<Database>) -> Result<(), String> {
        let until = self.sim.elapsed() + PLANS_END;
        let mut hurried = BTreeSet::new();
        loop {
            let plans = database.moves().await.map_err(|error| error.to_string())?;
            let active: Vec<&Plan> = plans.iter().filter(|plan| plan.is_active()).collect();
            if active.is_empty() {
                for plan in &plans {
                    saw(&self.seen, format!("plan: {}", plan.phase.name()));
                    saw(&self.seen, format!("attempts: {}", plan.cutover.attempts.min(3)));
                }
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

/// I-8: as many versions as switches, and nothing else.
async fn check_history(database: &Arc<Database>, plans: &[Plan]) -> Result<(), String> {
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
async fn check_stored(database: &Arc<Database>) -> Result<(), String> {
    let policy = database.current_routing();
    let mut keys = BTreeSet::new();
    for n in 0..SHARDS {
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
        for _ in 0..self.rng.below(6) {
            self.env.sleep(Duration::from_micros(self.rng.below(10_000))).await;
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
        let claim = Claim { version: self.policy.version(), units: vec![Claimed::Bucket(group(), bucket)] };
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
        self.record.lock().unwrap().end(at, outcome);
    }
}

fn new_disk() -> Arc<Disk> {
    Arc::new(Disk::new(0).expect("a disk"))
}

/// I-1, I-7, I-8, I-10, I-11, I-12, I-13, I-15, I-17, I-19, I-21, I-64, I-66: clients, an operator, two drivers, old maps,
/// crashes.
#[test]
fn moves_lose_nothing_under_faults() {
    let disk = new_disk();
    let seeds = match number("ISLES_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ISLES_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let mut total = Report::default();
    for seed in seeds.clone() {
        let report = run(&disk, seed, None)
            .unwrap_or_else(|why| panic!("FAILED seed={seed:#x}\n{why}\nreplay: cargo xtask sim {seed:#x}"));
        total.checked.txns += report.checked.txns;
        total.checked.reads += report.checked.reads;
        report.seen.into_iter().for_each(|(what, count)| *total.seen.entry(what).or_default() += count);
    }
    let histories = seeds.end - seeds.start;
    println!("{histories} histories, {:?}, {:#?}", total.checked, total.seen);
    assert!(total.checked.txns as u64 >= histories * 15, "hardly anything committed: {total:?}");
    if histories >= SEEDS {
        let phases = [Phase::Completed, Phase::RolledBack].map(|phase| format!("plan: {}", phase.name()));
        let all = ["life: whole", "life: cut short", "failing sync", "two drivers", "stale: refused", "refused: 22023"];
        for what in all.map(String::from).into_iter().chain(phases) {
            assert!(total.seen.get(&what).is_some_and(|count| *count >= 10), "{what} was not seen: {total:?}");
        }
    }
}

/// I-69, planted bug 1, planted bug 3, planted bug 4, planted bug 6, planted bug 8, planted bug 24: each breaks a history.
#[test]
fn planted_bugs_of_moves_are_found() {
    use isles_cluster::moves::Planted as Move;
    use isles_engine::sqlite::Planted as Shard;
    let disk = new_disk();
    let bugs = [
        Bug::Shard(Shard::SkipFence),
        Bug::Shard(Shard::NoSync),
        Bug::Move(Move::NoDrain),
        Bug::Move(Move::VersionByTwo),
        Bug::Move(Move::OldMap),
        Bug::Move(Move::ReplayLast),
    ];
    let mut missed = Vec::new();
    for bug in bugs {
        match (0..SEEDS_FOR_BUGS).find_map(|seed| Some((seed, run(&disk, seed, Some(bug)).err()?))) {
            Some((seed, why)) => {
                println!("{bug:?} found after {} histories: {}", seed + 1, why.lines().next().unwrap_or_default());
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "{missed:?} passed {SEEDS_FOR_BUGS} histories");
}
