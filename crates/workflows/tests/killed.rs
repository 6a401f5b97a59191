//! Kills a process with `kill -9` in the middle of many runs, again and again: all of them end, and none does anything
//! twice that is committed with its step.
//!
//! `ISLES_TEST_RUNS` is how many runs there are.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

use futures::FutureExt;
use futures::stream::StreamExt;
use isles_cluster::database::{Config, Database};
use isles_engine::env::{Env, TokioEnv};
use isles_kernel::value::Value;
use isles_workflows::index::list::Filter;
use isles_workflows::{Context, EngineOptions, Options, Registry, Workflows};
use serde_json::{Value as Json, json};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SHARDS: usize = 2;
/// Runs if nobody says how many.
const RUNS: u64 = 300;
/// Lives that are cut short.
const KILLS: u64 = 3;
/// For each life; the last one ends by itself.
const LIMIT: Duration = Duration::from_secs(600);
/// Set for the process that is killed: where its database is.
const FOLDER: &str = "ISLES_TEST_FOLDER";

fn runs() -> u64 {
    isles_sim::rng::number_from_env("ISLES_TEST_RUNS").unwrap_or(RUNS)
}

fn main() {
    match std::env::var_os(FOLDER) {
        Some(folder) => tokio::runtime::Runtime::new().unwrap().block_on(live(Path::new(&folder))),
        None => {
            let begun = Instant::now();
            let ended = killed_runs_all_end_and_none_twice();
            println!("test killed_runs_all_end_and_none_twice ... ok ({ended} in {:?})", begun.elapsed());
        }
    }
}

fn registry() -> Registry {
    let code = |ctx: Context, n: u64| async move {
        let one = ctx.step("one", move || async move { Ok(n + 1) }).await?;
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
        ctx.sleep("nap", Duration::from_millis(n % 50)).await;
        ctx.step("three", move || async move { Ok(one * 2) }).await
    };
    let mut registry = Registry::new();
    registry.register("three", code, Options { shards: 4, ..Options::default() }).unwrap();
    registry
}

async fn open(folder: &Path) -> (Arc<Database>, Workflows) {
    let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
    let database = Database::open(Config::sqlite(folder, SHARDS), env.clone()).await.unwrap();
    let sql = "CREATE TABLE IF NOT EXISTS counters (id text PRIMARY KEY, n bigint NOT NULL)";
    database.system_session().unwrap().run_text(sql, Vec::new()).await.unwrap();
    let Ok(workflows) = Workflows::open(database.clone(), env, registry(), EngineOptions::default()).await else {
        panic!("workflows open")
    };
    (database, workflows)
}

/// A life of the process that is killed: creates what is not there, and waits until all has ended.
async fn live(folder: &Path) {
    let (database, workflows) = open(folder).await;
    let all = futures::stream::iter(0..runs()).map(|n| {
        let workflows = workflows.clone();
        async move {
            let id = format!("run {n}");
            assert!(workflows.create("three", &id, &n).await.is_ok(), "{id} is created");
            let result = workflows.wait("three", &id, None).await;
            assert!(result.is_ok_and(|result| result == json!((n + 1) * 2)), "{id} has its result");
            println!("ended");
        }
    });
    all.buffer_unordered(200).collect::<()>().await;
    check(&database, &workflows).await;
    workflows.close();
    database.close().await.unwrap();
}

async fn check(database: &Arc<Database>, workflows: &Workflows) {
    let mut session = database.system_session().unwrap();
    let counted = session.run_text("SELECT count(*), min(n), max(n) FROM counters", Vec::new()).await.unwrap();
    assert_eq!(counted.rows, [[Value::Int(runs() as i64), Value::Int(1), Value::Int(1)]]);
    let begun = Instant::now();
    loop {
        let Ok((counts, _)) = workflows.counts(Some("three")).await else { panic!("counts") };
        let filter = Filter { kind: Some("three".into()), ..Filter::default() };
        let Ok(page) = workflows.list(&filter).await else { panic!("a list") };
        let is_right = counts.len() == 1 && counts[0].runs == runs() as i64 && !page.entries.is_empty();
        if is_right {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "the index has {counts:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn start(folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(FOLDER, folder).stdout(Stdio::piped()).spawn().unwrap()
}

/// Waits until so many runs have been seen to end in this life, or it has ended.
fn read_ends(child: &mut Child, ends: u64) -> u64 {
    use std::io::BufRead;
    let lines = std::io::BufReader::new(child.stdout.as_mut().unwrap()).lines();
    lines.take(usize::try_from(ends).unwrap()).filter(|line| line.as_ref().is_ok_and(|line| line == "ended")).count()
        as u64
}

fn killed_runs_all_end_and_none_twice() -> Json {
    let folder = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    for life in 0..KILLS {
        let mut child = start(folder.path());
        // Ever later, and never at the end.
        seen.push(read_ends(&mut child, 1 + runs() * (life + 1) / (KILLS + 2)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let begun = Instant::now();
    let mut last = start(folder.path());
    seen.push(read_ends(&mut last, u64::from(u32::MAX)));
    let status = last.wait().unwrap();
    assert!(status.success(), "{status}");
    assert!(begun.elapsed() < LIMIT);
    assert_eq!(seen.last(), Some(&runs()), "each run has been seen to end in the last life");
    json!({ "runs": runs(), "kills": KILLS, "seen": seen })
}
