//! Runs over SQLite shards on a simulated disk, in virtual time: crashes at any point, executors that wake late, moves of
//! the buckets in which the runs are, and the entries of their index.
//!
//! `ISLES_SIM_SEEDS` is how many histories are run, `ISLES_SIM_SEED` runs one.
//!
//! Invariants (docs/invariants.md):
//!   * I-47  at most one executor's writes are accepted: what a run has returned is what its journal has
//!   * I-48  a step that is noted is not done again
//!   * I-49  what is committed with its step is there once
//!   * I-50  no timer is early, and none is lost
//!   * I-51  the index is what the runs are
//!   * I-52  events arrive in order, each once
//!   * I-69  planted bugs are found

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

use futures::FutureExt;
use futures::future::BoxFuture;
use isles_cluster::database::{Config, Database};
use isles_cluster::moves::Order;
use isles_engine::env::Env;
use isles_kernel::moves::{Options as MoveOptions, Span, Units};
use isles_kernel::names::{BucketId, GroupName};
use isles_kernel::runs::status::Status;
use isles_kernel::value::Value;
use isles_sim::disk::{Crash, Disk, Times};
use isles_sim::exec::Sim;
use isles_sim::rng::{Rng, number_from_env as number};
use isles_workflows::index::list::Filter;
use isles_workflows::{Context, EngineOptions, Events, Options, Planted, Registry, Step, StepOptions, Workflows};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NODE: &str = "isles";
const SHARDS: usize = 2;
/// Runs of one history that do everything.
const RUNS: u64 = 6;
/// Runs that have steps and nothing else: only the fence keeps a late executor from ending one of them.
const PLAIN: u64 = 3;
/// Events that each run takes.
const EVENTS: i64 = 3;
/// Lives under faults; one more without follows.
const LIVES: u64 = 3;
const SEEDS: u64 = 60;
const SEEDS_FOR_BUGS: u64 = 200;
/// In virtual time: longer than any wait.
const LIFE_MAX: Duration = Duration::from_secs(2_000);
/// When faults have stopped, everything is done by then.
const END_MAX: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(2);
const LEASE: Duration = Duration::from_millis(400);
/// How long a step takes.
const STEP: Duration = Duration::from_millis(5);
/// How much longer everything takes for an executor that wakes late: a step outlasts its lease, and no beat comes in time.
const LATE: u32 = 100;
/// By then every executor has woken and has come to an end: a run has two steps of that length, and may be claimed late.
const ALL_AWAKE: Duration = Duration::from_secs(5);

/// Whatever runs have done outside of the database, and how often, by the ids of their steps.
type Sink = Arc<Mutex<BTreeMap<String, u64>>>;
type Seen = BTreeMap<&'static str, u64>;

/// An environment in which everything takes longer: its executors wake late.
struct Slow(Arc<dyn Env>);

impl Env for Slow {
    fn now_micros(&self) -> u64 {
        self.0.now_micros()
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration * LATE)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.0.spawn(task);
    }

    fn blocking(&self, job: Box<dyn FnOnce() + Send>) {
        self.0.blocking(job);
    }

    fn random(&self) -> u64 {
        self.0.random()
    }
}

/// A step that is done outside of the database, and counted there.
fn outside(
    ctx: &Context,
    sink: &Sink,
    env: &Arc<dyn Env>,
    name: &'static str,
) -> impl Future<Output = isles_workflows::error::Result<u64>> + Send + use<> {
    let (sink, env) = (sink.clone(), env.clone());
    ctx.step_with(name, StepOptions::default(), move |info| async move {
        let done = {
            let mut sink = sink.lock().unwrap();
            let count = sink.entry(info.id).or_default();
            *count += 1;
            *count
        };
        env.sleep(STEP).await;
        // Each attempt has another result: it can be told whose is kept.
        Ok(done)
    })
}

/// A workflow that does everything once, and one that has only steps.
fn registry(sink: &Sink, env: &Arc<dyn Env>) -> Registry {
    let mut registry = Registry::new();
    let (counted, slept) = (sink.clone(), env.clone());
    let code = move |ctx: Context, input: Json| {
        let (sink, env) = (counted.clone(), slept.clone());
        async move {
            let one = outside(&ctx, &sink, &env, "one").await?;
            let id = ctx.id().to_owned();
            ctx.transact("count", move |session| {
                async move {
                    let sql = "INSERT INTO counters VALUES ($1, 1) ON CONFLICT (id) DO UPDATE SET n = counters.n + 1";
                    session.run_text(sql, vec![Value::Text(id)]).await?;
                    Ok(())
                }
                .boxed()
            })
            .await?;
            ctx.sleep("nap", Duration::from_millis(input["nap"].as_u64().unwrap_or(1))).await;
            let mut got = Vec::new();
            for n in 0..EVENTS {
                got.push(ctx.wait_for_event::<i64>(&format!("event {n}"), "number", None).await?);
                ctx.emit("progress", &n).await?;
            }
            let two = outside(&ctx, &sink, &env, "two").await?;
            Ok(json!({ "one": one, "two": two, "got": got }))
        }
    };
    let options = Options { shards: 3, events: Events::new().with::<i64>("number"), ..Options::default() };
    registry.register("work", code, options).unwrap();
    let (counted, slept) = (sink.clone(), env.clone());
    let plain = move |ctx: Context, _: Json| {
        let (sink, env) = (counted.clone(), slept.clone());
        async move {
            let one = outside(&ctx, &sink, &env, "one").await?;
            let two = outside(&ctx, &sink, &env, "two").await?;
            Ok(json!({ "one": one, "two": two }))
        }
    };
    registry.register("plain", plain, Options { shards: 2, ..Options::default() }).unwrap();
    registry
}

struct Driver {
    sim: Sim,
    disk: Arc<Disk>,
    rng: Rng,
    sink: Sink,
    planted: Option<Planted>,
    seen: Seen,
}

fn run(disk: &Arc<Disk>, seed: u64, planted: Option<Planted>) -> Result<Seen, String> {
    disk.reset(seed);
    let sim = Sim::new(seed);
    let rng = sim.rng("driver");
    drop(sim.node(NODE));
    let mut driver = Driver { sim, disk: disk.clone(), rng, sink: Sink::default(), planted, seen: Seen::new() };
    for _ in 0..driver.rng.below(LIVES + 1) {
        driver.faulty_life()?;
    }
    driver.disk.heal();
    driver.sim.set_blocking_delay(NODE, Duration::ZERO);
    driver.last_life()?;
    Ok(driver.seen)
}

fn said(error: &isles_workflows::WorkflowError) -> String {
    error.to_string()
}

impl Driver {
    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn config(&self) -> Config {
        let folder = std::env::temp_dir().join(format!("isles-runs-{}", std::process::id()));
        let mut config = Config::sqlite(folder, SHARDS);
        config.sqlite.base_vfs = Some(self.disk.vfs_name().into());
        config.sqlite.gather = Duration::ZERO;
        config.catalog.vfs = Some(self.disk.vfs_name().into());
        config
    }

    async fn open(&self, is_slow: bool) -> Result<(Arc<Database>, Workflows, Option<Workflows>), String> {
        let env: Arc<dyn Env> = self.sim.node(NODE);
        let database = Database::open(self.config(), env.clone()).await.map_err(|error| error.to_string())?;
        let sql = "CREATE TABLE IF NOT EXISTS counters (id text PRIMARY KEY, n bigint NOT NULL)";
        let mut session = database.system_session().map_err(|error| error.to_string())?;
        session.run_text(sql, Vec::new()).await.map_err(|error| error.to_string())?;
        let options = EngineOptions { lease: LEASE, planted: self.planted, ..EngineOptions::default() };
        let open = |env: Arc<dyn Env>, options| {
            Workflows::open(database.clone(), env.clone(), registry(&self.sink, &env), options)
        };
        let workflows = open(env.clone(), options.clone()).await.map_err(|error| said(&error))?;
        let slow = match is_slow {
            true => {
                let options = EngineOptions { takes_over: false, ..options };
                Some(open(Arc::new(Slow(env)), options).await.map_err(|error| said(&error))?)
            }
            false => None,
        };
        Ok((database, workflows, slow))
    }

    /// Asks for everything that the history has; what was there is there once.
    async fn ask(workflows: &[&Workflows], env: &Arc<dyn Env>, mut rng: Rng) {
        let mut all: Vec<(u64, i64)> = (0..RUNS).flat_map(|run| (-1..EVENTS).map(move |n| (run, n))).collect();
        // Runs in any order, and their events in order.
        let mut order: Vec<u64> = (0..RUNS).collect();
        rng.shuffle(&mut order);
        all.sort_by_key(|(run, n)| (*n + i64::from(order[*run as usize].is_multiple_of(2)), order[*run as usize], *n));
        for run in 0..PLAIN {
            let workflows = workflows[rng.below(workflows.len() as u64) as usize];
            while workflows.create("plain", &format!("plain {run}"), &json!(null)).await.is_err() {
                env.sleep(LOOK).await;
            }
        }
        let mut sent: BTreeMap<u64, i64> = BTreeMap::new();
        while sent.len() < RUNS as usize || sent.values().any(|n| *n < EVENTS) {
            for (run, _) in &all {
                let workflows = workflows[rng.below(workflows.len() as u64) as usize];
                let (id, next) = (format!("run {run}"), sent.get(run).copied());
                let asked = match next {
                    None => workflows.create("work", &id, &json!({ "nap": 10 * run })).await.map(drop),
                    Some(n) if n < EVENTS => {
                        workflows.send("work", &id, "number", &n, Some(&format!("event {n}"))).await.map(drop)
                    }
                    Some(_) => continue,
                };
                // A run that has ended has all of its events.
                let is_done = asked.as_ref().err().is_some_and(|error| error.code.as_str() == "WORKFLOW_NOT_RUNNING");
                if asked.is_ok() || is_done {
                    sent.insert(*run, next.map_or(0, |n| n + 1));
                }
                env.sleep(Duration::from_micros(rng.below(4_000))).await;
            }
        }
    }

    async fn move_something(database: Arc<Database>, mut rng: Rng) -> bool {
        // Runs, or entries of their index.
        let group = GroupName::new(*rng.pick(&["runs", "run_index"])).unwrap();
        let policy = database.current_routing();
        let Some(ranges) = policy.ranges(&group) else { return false };
        let range = rng.pick(ranges).clone();
        let Some(target) = database.shard_names().into_iter().find(|name| *name != range.shard) else { return false };
        let span = Span { first: range.first, last: BucketId(range.first.0 + (range.last.0 - range.first.0) / 2) };
        let units = Units::buckets(group, [span]);
        let options = MoveOptions { auto: true, complete: true, ..MoveOptions::default() };
        let order = Order { source: Some(range.shard), target, units, description: None, options };
        database.plan_move(order).await.is_ok()
    }

    fn faulty_life(&mut self) -> Result<(), String> {
        self.disk.heal();
        let counts = self.disk.counts();
        if self.rng.chance(3, 4) {
            self.disk.crash_at(counts.operations + 1 + self.rng.below(4_000));
        }
        if self.rng.chance(1, 6) {
            self.saw("failing sync");
            self.disk.fail_sync_at(counts.syncs + 1 + self.rng.below(100), Times::Once);
        }
        let killed_at = 20 + self.rng.below(200);
        let (is_slow, moves) = (self.rng.chance(1, 2), self.rng.chance(1, 2));
        let (asks, moving) = (self.rng.fork("asks"), self.rng.fork("moves"));
        let crash = *self.rng.pick(&Crash::ALL);
        let life = async {
            let Ok((database, workflows, slow)) = self.open(is_slow).await else { return (None, false) };
            let env: Arc<dyn Env> = self.sim.node(NODE);
            let asking = (workflows.clone(), slow.clone(), env.clone());
            env.spawn(Box::pin(async move {
                let (workflows, slow, env) = asking;
                let all: Vec<&Workflows> = std::iter::once(&workflows).chain(&slow).collect();
                Driver::ask(&all, &env, asks).await;
            }));
            let moved = moves && Driver::move_something(database.clone(), moving).await;
            for _ in 0..killed_at {
                self.sim.env().sleep(LOOK).await;
                if self.disk.is_dead() {
                    break;
                }
            }
            (Some((database, workflows, slow)), moved)
        };
        let (opened, moved) = self.sim.run_within(LIFE_MAX, life).map_err(|stuck| format!("I-66: {stuck}"))?;
        self.saw(if opened.is_some() { "life" } else { "life: not opened" });
        if moved {
            self.saw("move");
        }
        self.disk.crash();
        self.sim.kill(NODE);
        drop(opened);
        drop(self.sim.node(NODE));
        self.disk.restart(crash);
        Ok(())
    }

    fn last_life(&mut self) -> Result<(), String> {
        let (asks, moving, is_slow) = (self.rng.fork("asks"), self.rng.fork("moves"), self.rng.chance(1, 2));
        let before = self.sink.lock().unwrap().clone();
        let life = async {
            let (database, workflows, slow) = self.open(is_slow).await?;
            let env: Arc<dyn Env> = self.sim.node(NODE);
            let moved = Driver::move_something(database.clone(), moving).await;
            let all: Vec<&Workflows> = std::iter::once(&workflows).chain(&slow).collect();
            Driver::ask(&all, &env, asks).await;
            for run in 0..RUNS {
                self.check_run(&workflows, &format!("run {run}")).await?;
            }
            for run in 0..PLAIN {
                check_plain(&workflows, &format!("plain {run}")).await?;
            }
            if is_slow {
                // Whoever wakes only now changes nothing any more.
                env.sleep(ALL_AWAKE).await;
                for run in 0..PLAIN {
                    check_plain(&workflows, &format!("plain {run}")).await?;
                }
            }
            let counted = ask(&database, "SELECT id, n FROM counters ORDER BY id").await?;
            let expected: Vec<Vec<Value>> =
                (0..RUNS).map(|run| vec![Value::Text(format!("run {run}")), Value::Int(1)]).collect();
            if counted != expected {
                return Err(format!("I-49: each run counts once, and there is {counted:?}"));
            }
            check_index(&database, &workflows, &env).await?;
            workflows.close();
            if let Some(slow) = &slow {
                slow.close();
            }
            Ok(moved)
        };
        let ended = self.sim.run_within(LIFE_MAX, life).map_err(|stuck| format!("I-66: {stuck}"))?;
        self.sim.kill(NODE);
        if ended? {
            self.saw("move");
        }
        if before.values().any(|count| *count > 1) {
            self.saw("step repeated after a crash");
        }
        let after = self.sink.lock().unwrap().clone();
        let in_this_life = |(step, count): (&String, &u64)| count - before.get(step).unwrap_or(&0);
        if after.iter().map(in_this_life).any(|count| count > 1) {
            // Nothing has died in it: another executor has begun the step.
            self.saw("executor woke late");
        }
        Ok(())
    }

    async fn check_run(&self, workflows: &Workflows, id: &str) -> Result<(), String> {
        let waited = workflows.wait("work", id, Some(END_MAX)).await;
        let result = waited.map_err(|error| format!("I-50: {id} does not end: {error}"))?;
        let (run, steps) = workflows.timeline("work", id).await.map_err(|error| said(&error))?;
        let step = |name| find(id, &steps, name);
        check_results(id, &result, &steps)?;
        if result["got"] != json!((0..EVENTS).collect::<Vec<i64>>()) {
            return Err(format!("I-52: {id} took the events {}", result["got"]));
        }
        let (wake, after) = (step("nap")?.wake_at.unwrap_or(i64::MAX), step("two")?.started_at);
        if after < wake {
            return Err(format!("I-50: {id} slept until {wake}, and went on at {after}"));
        }
        let told = workflows.updates("work", id, 0).await.map_err(|error| said(&error))?;
        let told: Vec<(Option<i64>, String)> = told.into_iter().map(|update| (update.seq, update.data)).collect();
        let expected: Vec<(Option<i64>, String)> = (0..EVENTS).map(|n| (Some(n + 1), n.to_string())).collect();
        match told == expected && run.status == Status::Completed {
            true => Ok(()),
            false => Err(format!("I-49: {id} is {}, and has told {told:?}", run.status)),
        }
    }
}

fn find<'a>(id: &str, steps: &'a [Step], name: &str) -> Result<&'a Step, String> {
    steps.iter().find(|step| step.name == name).ok_or_else(|| format!("I-48: {id} has no entry of {name}"))
}

/// What a run has returned is what its journal has: one executor has done both.
fn check_results(id: &str, result: &Json, steps: &[Step]) -> Result<(), String> {
    for name in ["one", "two"] {
        let noted: Json = serde_json::from_str(find(id, steps, name)?.result.as_deref().unwrap_or("null")).unwrap();
        if noted != result[name] {
            return Err(format!("I-47: {id} returned {result}, and the journal has {noted} for {name}"));
        }
    }
    Ok(())
}

async fn check_plain(workflows: &Workflows, id: &str) -> Result<(), String> {
    let waited = workflows.wait("plain", id, Some(END_MAX)).await;
    let result = waited.map_err(|error| format!("I-50: {id} does not end: {error}"))?;
    let (run, steps) = workflows.timeline("plain", id).await.map_err(|error| said(&error))?;
    if run.status != Status::Completed {
        return Err(format!("I-47: {id} has ended, and is {}", run.status));
    }
    check_results(id, &result, &steps)
}

async fn ask(database: &Arc<Database>, sql: &str) -> Result<Vec<Vec<Value>>, String> {
    let mut session = database.system_session().map_err(|error| error.to_string())?;
    Ok(session.run_text(sql, Vec::new()).await.map_err(|error| error.to_string())?.rows)
}

/// When the logs have been read, the index is what the runs are.
async fn check_index(database: &Arc<Database>, workflows: &Workflows, env: &Arc<dyn Env>) -> Result<(), String> {
    let runs = ask(database, "SELECT id, status, version FROM isles.runs ORDER BY id").await?;
    let mut last = Vec::new();
    for _ in 0..200 {
        let filter = Filter { limit: Some(1_000), ..Filter::default() };
        let page = workflows.list(&filter).await.map_err(|error| said(&error))?;
        let entry = |entry: isles_kernel::runs::list::Entry| {
            vec![Value::Text(entry.id), Value::Text(entry.status.as_str().into()), Value::Int(entry.version)]
        };
        last = page.entries.into_iter().map(entry).collect();
        last.sort_by_key(|row| format!("{row:?}"));
        if last == runs {
            return Ok(());
        }
        env.sleep(Duration::from_millis(100)).await;
    }
    Err(format!("I-51: the index has {last:?}, and the runs are {runs:?}"))
}

fn new_disk() -> Arc<Disk> {
    Arc::new(Disk::new(0).expect("a disk"))
}

/// I-47, I-48, I-49, I-50, I-51, I-52: crashes at any point, executors that wake late, moves of the runs' buckets.
#[test]
fn runs_do_everything_once_under_faults() {
    let disk = new_disk();
    let seeds = match number("ISLES_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ISLES_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let mut total = Seen::new();
    for seed in seeds.clone() {
        let seen = run(&disk, seed, None)
            .unwrap_or_else(|why| panic!("FAILED seed={seed:#x}\n{why}\nreplay: ISLES_SIM_SEED={seed}"));
        seen.into_iter().for_each(|(what, count)| *total.entry(what).or_default() += count);
    }
    println!("{} histories, {total:?}", seeds.end - seeds.start);
    if seeds.end - seeds.start >= SEEDS {
        for what in ["life", "move", "executor woke late", "step repeated after a crash"] {
            assert!(total.get(what).is_some_and(|count| *count >= 10), "{what} was not seen: {total:?}");
        }
    }
}

/// I-69, planted bugs 14 and 15: a timer that is gone before its effect breaks a history, and so does an executor that
/// wakes late and is not fenced.
#[test]
fn planted_bugs_of_runs_are_found() {
    let disk = new_disk();
    for (planted, broken) in [(Planted::TimerDeletedBeforeEffect, "I-50"), (Planted::LateExecutorNotFenced, "I-47")] {
        let found = (0..SEEDS_FOR_BUGS).find_map(|seed| Some((seed, run(&disk, seed, Some(planted)).err()?)));
        let (seed, why) = found.unwrap_or_else(|| panic!("{planted:?} passed {SEEDS_FOR_BUGS} histories"));
        println!("{planted:?} found after {} histories: {}", seed + 1, why.lines().next().unwrap_or_default());
        assert!(why.contains(broken), "{planted:?} was found as something else: {why}");
    }
}

/// I-67: the same seed gives the same history.
#[test]
fn the_same_seed_gives_the_same_history_of_runs() {
    let disk = new_disk();
    for seed in 900..905 {
        assert_eq!(run(&disk, seed, None), run(&disk, seed, None), "seed {seed:#x}");
    }
}
