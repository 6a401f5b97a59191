//! Workflows beside DBOS, and what their index costs. Figures are of one machine and one run; compare within it.
//!
//! `cargo xtask bench workflows [part…]`, of the parts
//!   * `runs`    runs of three steps, many at the same time: runs a second, and the latency of a step (`ISLES_BENCH_RUNS`)
//!   * `dbos`    the same with DBOS on SQLite and on PostgreSQL (`ISLES_BENCH_PEER_RUNS`); it is installed beside the
//!     benchmark with pip, unless `ISLES_BENCH_PYTHON` names a Python that has it
//!   * `list`    the newest 50 among many entries, over 1, 4 and 16 index shards (`ISLES_BENCH_ENTRIES`)
//!   * `create`  creating runs, with the index followed and not (`ISLES_BENCH_CREATES`)
//!   * `resize`  4 to 8 index shards with as many entries: rate, and the latency of lists meanwhile
//!   * `timers`  how late timers fire, on both engines (`ISLES_BENCH_TIMERS`)
//!
//! With the sizes that it has by itself all of it takes some minutes; `ISLES_BENCH_ENTRIES=1000000` is a million entries.

use isles_cluster::database::{Config, Database};
use isles_cluster::session::Session;
use isles_engine::env::{Env, TokioEnv};
use isles_kernel::runs::places::{shard_name, shard_of};
use isles_kernel::value::Value;
use isles_sim::pgserver::{PgOptions, PgServer};
use isles_sim::rng::number_from_env as number;
use isles_workflows::index::list::Filter;
use isles_workflows::{Context, EngineOptions, Options, Registry, Workflows};
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// As the server has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const THREADS: usize = 2;
const SHARDS: usize = 2;
const RUNS: u64 = 2_000;
/// Runs that are under way at the same time, here and in DBOS.
const AT_ONCE: usize = 64;
/// DBOS does fewer in the same time.
const PEER_RUNS: u64 = 500;
const ENTRIES: u64 = 200_000;
const CREATES: u64 = 1_000;
const TIMERS: u64 = 5_000;
/// Timers that are due in one second.
const TIMERS_A_SECOND: u64 = 500;
/// What the peer is, exactly.
const PEER: &str = "dbos==3.3.0";
/// Entries of one statement that fills the index.
const CHUNK: usize = 1_000;

fn main() {
    let root = tempfile::Builder::new().prefix("isles-bench").tempdir_in(target_dir()).expect("a folder");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build().expect("tokio");
    runtime.block_on(async {
        let ours = if wanted("runs") { runs(root.path()).await } else { Vec::new() };
        let theirs = if wanted("dbos") { dbos(root.path()) } else { Vec::new() };
        for (name, rate) in &ours {
            if let Some((_, peer)) = theirs.iter().find(|(peer, _)| peer == name) {
                println!("{name}: {:.1} times the runs of dbos", rate / peer);
            }
        }
        if wanted("list") {
            list(root.path()).await;
        }
        if wanted("create") {
            create(root.path()).await;
        }
        if wanted("resize") {
            resize(root.path()).await;
        }
        if wanted("timers") {
            timers(root.path()).await;
        }
    });
}

/// All figures, or those that the arguments name. Cargo passes flags of its own harness, which mean nothing here.
fn wanted(name: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
    named.peek().is_none() || named.any(|argument| argument == name)
}

/// The bench must be on the disk that the program would use, and not in a folder of memory.
fn target_dir() -> PathBuf {
    std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf)).unwrap_or_else(|| ".".into())
}

struct World {
    database: Arc<Database>,
    workflows: Workflows,
}

async fn open(config: Config, registry: Registry) -> World {
    let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
    let database = Database::open(config, env.clone()).await.expect("a database");
    let opened = Workflows::open(database.clone(), env, registry, EngineOptions::default()).await;
    World { database, workflows: opened.unwrap_or_else(|error| panic!("{error}")) }
}

impl World {
    async fn close(self) {
        self.workflows.close();
        self.database.close().await.expect("it closes");
    }
}

fn percentile(sorted: &[Duration], part: f64) -> Duration {
    sorted.get(((sorted.len() as f64 - 1.0) * part) as usize).copied().unwrap_or_default()
}

fn show(what: &str, mut all: Vec<Duration>) {
    all.sort();
    let (median, late, most) = (percentile(&all, 0.5), percentile(&all, 0.99), percentile(&all, 1.0));
    println!("{what}: p50 {median:.2?}, p99 {late:.2?}, max {most:.2?}, {} samples", all.len());
}

/// Runs of three steps; each step notes how long it took to be noted. Returns runs a second, by engine.
async fn runs(root: &Path) -> Vec<(&'static str, f64)> {
    let (count, mut rates) = (number("ISLES_BENCH_RUNS").unwrap_or(RUNS), Vec::new());
    let server = PgServer::start(PgOptions::default());
    let urls: Vec<String> = (0..SHARDS).map(|_| server.create_database()).collect();
    let sides = [
        ("sqlite", Config::sqlite(root.join("runs"), SHARDS)),
        ("postgres", Config::postgres(root.join("runs-pg"), urls)),
    ];
    for (name, config) in sides {
        let latencies: Arc<Mutex<Vec<Duration>>> = Arc::default();
        let noted = latencies.clone();
        let code = move |ctx: Context, n: u64| {
            let noted = noted.clone();
            async move {
                let mut sum = n;
                for step in ["one", "two", "three"] {
                    let begun = Instant::now();
                    sum += ctx.step(step, move || async move { Ok(1_u64) }).await?;
                    noted.lock().expect("nobody panics").push(begun.elapsed());
                }
                Ok(sum)
            }
        };
        let mut registry = Registry::new();
        assert!(registry.register("three", code, Options { shards: 4, ..Options::default() }).is_ok());
        let world = open(config, registry).await;
        let begun = Instant::now();
        drive(&world.workflows, count).await;
        let rate = count as f64 / begun.elapsed().as_secs_f64();
        rates.push((name, rate));
        println!("isles {name}: {rate:.0} runs/s of three steps, {AT_ONCE} at once");
        show(&format!("isles {name}: step"), std::mem::take(&mut *latencies.lock().expect("nobody panics")));
        world.close().await;
    }
    rates
}

async fn drive(workflows: &Workflows, count: u64) {
    use futures::stream::StreamExt;
    let one = |n: u64| async move {
        let id = format!("run {n}");
        assert!(workflows.create("three", &id, &n).await.is_ok());
        assert!(workflows.wait("three", &id, None).await.is_ok());
    };
    futures::stream::iter((0..count).map(one)).buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// Runs a second, by engine.
fn dbos(root: &Path) -> Vec<(&'static str, f64)> {
    let Some(python) = peer_python() else {
        println!("dbos: not measured; pip install {PEER}, and name the Python with ISLES_BENCH_PYTHON");
        return Vec::new();
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/dbos_peer.py");
    let count = number("ISLES_BENCH_PEER_RUNS").unwrap_or(PEER_RUNS);
    let server = PgServer::start(PgOptions::default());
    let sides = [
        ("sqlite", format!("sqlite:///{}", root.join("dbos.sqlite").display())),
        ("postgres", server.create_database()),
    ];
    let mut rates = Vec::new();
    for (name, url) in sides {
        let mut command = Command::new(&python);
        let output = command.arg(script).args([name, &url, &count.to_string(), &AT_ONCE.to_string()]).output();
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", python.display()));
        let said = String::from_utf8_lossy(&output.stdout);
        print!("{said}");
        // "dbos sqlite: 25 runs/s of three steps, …"
        match said.split_whitespace().nth(2).and_then(|rate| rate.parse().ok()) {
            Some(rate) if output.status.success() => rates.push((name, rate)),
            _ => println!("dbos {name}: not measured: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }
    rates
}

/// A Python that has DBOS: the one that was named, or one in a folder beside the benchmark.
fn peer_python() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("ISLES_BENCH_PYTHON") {
        return Some(named.into());
    }
    let folder = target_dir().join("dbos-venv");
    let python = folder.join("bin/python");
    let run = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    let is_there = run(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        && run(Command::new(&python).args(["-m", "pip", "install", "--quiet", PEER]));
    is_there.then_some(python)
}

fn quiet(shards: u32, previous_shards: Option<u32>) -> Registry {
    let mut registry = Registry::new();
    let code = |_: Context, input: Json| async move { Ok(input) };
    let options = Options { shards, previous_shards, ..Options::default() };
    assert!(registry.register("three", code, options).is_ok());
    registry
}

/// Entries of runs that have long ended.
async fn fill(world: &World, shards: u32, entries: u64) {
    let mut session = world.database.system_session().expect("a session");
    let mut rows: Vec<Vec<String>> = vec![Vec::new(); shards as usize];
    for n in 0..entries {
        let id = format!("run-{n:07}");
        let shard = shard_of(&id, shards);
        let name = shard_name("three", shard);
        let waiting = &mut rows[shard as usize];
        waiting.push(format!("('{name}', '{id}', 'three', 'completed', {n}, {n}, 3, '{{}}')"));
        if waiting.len() == CHUNK {
            insert(&mut session, std::mem::take(waiting)).await;
        }
    }
    for rest in rows.into_iter().filter(|rest| !rest.is_empty()) {
        insert(&mut session, rest).await;
    }
}

async fn insert(session: &mut Session, rows: Vec<String>) {
    let sql = format!("INSERT INTO isles.run_index VALUES {}", rows.join(", "));
    session.run_text(&sql, Vec::new()).await.expect("entries");
}

async fn newest(workflows: &Workflows) -> Duration {
    let filter = Filter { kind: Some("three".into()), limit: Some(50), ..Filter::default() };
    let begun = Instant::now();
    match workflows.list(&filter).await {
        Ok(page) => assert_eq!(page.entries.len(), 50),
        Err(error) => panic!("{error}"),
    }
    begun.elapsed()
}

async fn list(root: &Path) {
    let entries = number("ISLES_BENCH_ENTRIES").unwrap_or(ENTRIES);
    for shards in [1, 4, 16] {
        let world = open(Config::sqlite(root.join(format!("list-{shards}")), SHARDS), quiet(shards, None)).await;
        fill(&world, shards, entries).await;
        let mut all = Vec::new();
        for _ in 0..200 {
            all.push(newest(&world.workflows).await);
        }
        show(&format!("list: newest 50 of {entries}, {shards} index shards"), all);
        world.close().await;
    }
}

/// With the index and without: the same engine, its followers at work or closed.
async fn create(root: &Path) {
    let count = number("ISLES_BENCH_CREATES").unwrap_or(CREATES);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..2 {
        for followed in [true, false] {
            let folder = root.join(format!("create-{round}-{followed}"));
            let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
            let database = Database::open(Config::sqlite(folder, SHARDS), env.clone()).await.expect("a database");
            let options = EngineOptions { executes: false, ..EngineOptions::default() };
            let opened = Workflows::open(database.clone(), env, quiet(4, None), options).await;
            let workflows = opened.unwrap_or_else(|error| panic!("{error}"));
            if !followed {
                workflows.close();
            }
            let all = if followed { &mut with } else { &mut without };
            for n in 0..count {
                let begun = Instant::now();
                assert!(workflows.create("three", &format!("run {n}"), &json!(n)).await.is_ok());
                all.push(begun.elapsed());
            }
            workflows.close();
            database.close().await.expect("it closes");
        }
    }
    let [with_median, without_median] = [&mut with, &mut without].map(|all| {
        all.sort();
        percentile(all, 0.5).as_secs_f64()
    });
    show("create: index followed", with);
    show("create: index not followed", without);
    println!("create: with the index the median changes by {:+.1} %", (with_median / without_median - 1.0) * 100.0);
}

async fn resize(root: &Path) {
    let entries = number("ISLES_BENCH_ENTRIES").unwrap_or(ENTRIES);
    let folder = root.join("resize");
    let world = open(Config::sqlite(&folder, SHARDS), quiet(4, None)).await;
    fill(&world, 4, entries).await;
    let mut before = Vec::new();
    for _ in 0..100 {
        before.push(newest(&world.workflows).await);
    }
    show("resize: list before", before);
    world.workflows.close();
    let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
    let opened = Workflows::open(world.database.clone(), env, quiet(8, Some(4)), EngineOptions::default()).await;
    let workflows = opened.unwrap_or_else(|error| panic!("{error}"));
    let begun = Instant::now();
    let (resizing, mut lists) = (workflows.clone(), Vec::new());
    let job = tokio::spawn(async move { resizing.resize("three").await });
    while !job.is_finished() {
        lists.push(newest(&workflows).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    match job.await.expect("it ends") {
        Ok(resized) => {
            let rate = resized.moved as f64 / begun.elapsed().as_secs_f64();
            println!("resize: 4 to 8, {} of {} entries moved, {rate:.0}/s", resized.moved, resized.seen);
        }
        Err(error) => panic!("{error}"),
    }
    show("resize: list meanwhile", lists);
    workflows.close();
    world.database.close().await.expect("it closes");
}

async fn timers(root: &Path) {
    let server = PgServer::start(PgOptions::default());
    let urls: Vec<String> = (0..SHARDS).map(|_| server.create_database()).collect();
    let sides = [
        ("sqlite", Config::sqlite(root.join("timers"), SHARDS)),
        ("postgres", Config::postgres(root.join("timers-pg"), urls)),
    ];
    for (name, config) in sides {
        timers_of(name, config).await;
    }
}

fn now_ms() -> i64 {
    (TokioEnv::current().now_micros() / 1_000) as i64
}

/// Timers that are due one after the other, when all of them have been made.
async fn timers_of(name: &str, config: Config) {
    use futures::stream::StreamExt;
    let count = number("ISLES_BENCH_TIMERS").unwrap_or(TIMERS);
    let late: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let noted = late.clone();
    let code = move |ctx: Context, due: i64| {
        let noted = noted.clone();
        async move {
            ctx.sleep_until("until", due).await;
            let late = u64::try_from(now_ms() - due).unwrap_or_else(|_| panic!("a timer was early"));
            noted.lock().expect("nobody panics").push(Duration::from_millis(late));
            Ok(())
        }
    };
    let mut registry = Registry::new();
    assert!(registry.register("three", code, Options::default()).is_ok());
    let world = open(config, registry).await;
    // More than it takes to make them.
    let (workflows, first) = (&world.workflows, now_ms() + (5 * count as i64).max(10_000));
    let one = |n: u64| async move {
        let due = first + (n * 1_000 / TIMERS_A_SECOND) as i64;
        assert!(workflows.create("three", &format!("run {n}"), &due).await.is_ok());
    };
    futures::stream::iter((0..count).map(one)).buffer_unordered(AT_ONCE).collect::<()>().await;
    assert!(now_ms() < first, "the first is due before the last was made");
    while (late.lock().expect("nobody panics").len() as u64) < count {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let all = std::mem::take(&mut *late.lock().expect("nobody panics"));
    show(&format!("timers {name}: {TIMERS_A_SECOND} a second, late by"), all);
    let mut session = world.database.system_session().expect("a session");
    let rows = session.run_text("SELECT count(*) FROM isles.runs", Vec::new());
    assert_eq!(rows.await.expect("a count").rows, [[Value::Int(count as i64)]]);
    world.close().await;
}
