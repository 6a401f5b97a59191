//! Kills a process with `kill -9` while it writes, reads and runs hooks for three tenants, again and again: what was
//! acknowledged is in the outbox once, in order, and so are the effects of its hooks.
//!
//! `ISLES_TEST_KILLS` is how often.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

use isles_cluster::database::{Config, Database};
use isles_engine::env::TokioEnv;
use isles_fragments::Error;
use isles_fragments::adapter::isles::Isles;
use isles_fragments::context::ShardContext;
use isles_fragments::error::Rule;
use isles_fragments::hooks::{Hook, HookContext, Processor, ProcessorOptions, Trigger};
use isles_fragments::schema::{ColumnType, Schema, column};
use isles_fragments::shard::{Shard, Strategy};
use isles_fragments::store::{Fragment, Handle, Store};
use isles_fragments::values::Values;
use isles_kernel::sync::{Cursor, Entry, Op, OutboxQuery, SnapshotQuery};
use isles_sim::rng::{Rng, number_from_env};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TENANTS: [&str; 3] = ["acme", "globex", "initech"];
/// Lives that are cut short, if nobody says how many.
const KILLS: u64 = 5;
/// A life is cut short after at most so many acknowledgements.
const ACKS_MAX: u64 = 60;
/// For the hooks that are left in the end.
const LIMIT: Duration = Duration::from_secs(120);
/// Set for the process that is killed: where its database is, and the number of its life.
const FOLDER: &str = "ISLES_TEST_FOLDER";
const LIFE: &str = "ISLES_TEST_LIFE";
/// What a killed process had claimed is claimed again soon.
const HOOKS: ProcessorOptions = ProcessorOptions {
    per_shard: 8,
    at_once: 100,
    time_limit_ms: 1_000,
    lease_ms: 2_000,
    poll_ms: 20,
    shards_per_round: 1_000,
};

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match std::env::var_os(FOLDER) {
        Some(folder) => runtime.block_on(live(Path::new(&folder), &std::env::var(LIFE).unwrap())),
        None => {
            let begun = Instant::now();
            let seen = runtime.block_on(killed_writers_lose_and_double_nothing());
            println!("test killed_writers_lose_and_double_nothing ... ok ({seen} in {:?})", begun.elapsed());
        }
    }
}

fn fragment() -> Fragment {
    let by = |t: isles_fragments::schema::Columns| t.column(column("by", ColumnType::String));
    let schema = Schema::build("app").table("marks", by).table("effects", by).finish().unwrap();
    let body = |context: HookContext, payload: Json| async move {
        let id = payload["token"].as_str().unwrap_or_default().to_owned();
        let tx = context.handle.handler_tx().mutate(move |m, _| m.create_with_id("effects", &id, values(&id)));
        match tx.execute().await {
            Ok(()) | Err(Error::Constraint { rule: Rule::Unique, .. }) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    };
    Fragment::new(schema).outbox().hook("echo", Hook::new(body).attempts(50, 5))
}

fn values(token: &str) -> Values {
    Values::new().set("by", token)
}

fn shard(tenant: &str) -> Shard {
    Shard::named(tenant).unwrap()
}

async fn open(folder: &Path) -> (Handle, Processor) {
    let database = Database::open(Config::sqlite(folder, 2), Arc::new(TokioEnv::current())).await.unwrap();
    let (store, global) = Store::open(Arc::new(Isles::new(database, "isles")), Some(Strategy::Row)).await.unwrap();
    let app = store.register(fragment(), None).await.unwrap();
    let processor = Processor::global(&app, &global).with_options(HOOKS);
    (app, processor)
}

/// A life of the process that is killed: writes for ever, and prints what was acknowledged.
async fn live(folder: &Path, life: &str) {
    let (app, processor) = open(folder).await;
    tokio::spawn(processor.run(std::future::pending()));
    let mut writers = Vec::new();
    for tenant in TENANTS {
        for writer in 0..2 {
            let (app, life) = (app.clone(), life.to_owned());
            writers.push(tokio::spawn(ShardContext.with(shard(tenant), move || async move {
                for at in 0.. {
                    let token = format!("{tenant}-{life}-{writer}-{at}");
                    let id = token.clone();
                    let tx = app.handler_tx().mutate(move |m, _| {
                        m.create_with_id("marks", &id, values(&id))?;
                        m.trigger_with(Trigger::new("echo", &json!({ "token": id })).id(&id))
                    });
                    tx.execute().await.unwrap();
                    println!("{token}");
                }
            })));
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
}

/// Starts a life, and kills it after so many acknowledgements; those that had come by then.
fn cut_short(folder: &Path, life: u64, acks: u64) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let command = command.env(FOLDER, folder).env(LIFE, life.to_string()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acknowledged: Vec<String> = lines.by_ref().take(acks as usize).map(|line| line.unwrap()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    // What was printed until then was acknowledged, too; a line may be cut short.
    acknowledged.extend(lines.map_while(Result::ok).filter(|line| line.matches('-').count() == 3));
    acknowledged
}

async fn log(app: &Handle) -> Vec<Entry> {
    let (mut entries, mut after) = (Vec::new(), Cursor::START);
    loop {
        let query = OutboxQuery { after: Some(after), ..OutboxQuery::default() };
        let page = app.store().outbox(&query).await.unwrap();
        page.check(after).unwrap();
        after = page.next;
        let has_more = page.has_more();
        entries.extend(page.entries);
        if !has_more {
            return entries;
        }
    }
}

fn made<'a>(log: &'a [Entry], table: &str) -> Vec<&'a str> {
    let mutations = log.iter().flat_map(|entry| &entry.mutations).filter(|mutation| mutation.key.table == table);
    mutations
        .map(|mutation| {
            assert_eq!(mutation.op, Op::Create);
            mutation.key.external_id.as_str()
        })
        .collect()
}

/// I-29, I-32, I-33: acknowledged tokens are in their tenant's log, each once and densely, and each hook has had its
/// effect once.
async fn killed_writers_lose_and_double_nothing() -> Json {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(1);
    let mut acknowledged = Vec::new();
    let kills = number_from_env("ISLES_TEST_KILLS").unwrap_or(KILLS);
    for life in 0..kills {
        acknowledged.extend(cut_short(folder.path(), life, 1 + rng.below(ACKS_MAX)));
    }
    let (app, processor) = open(folder.path()).await;
    let stop = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(processor.clone().run(async { drop(stop.1.await) }));
    let begun = Instant::now();
    for tenant in TENANTS {
        while processor.next_wake_ms(&shard(tenant)).await.unwrap().is_some() {
            assert!(begun.elapsed() < LIMIT, "hooks of {tenant} do not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(processor.dead(&shard(tenant), 10).await.unwrap().is_empty(), "a hook of {tenant} was given up");
    }
    drop(stop.0);
    running.await.unwrap();
    let mut entries = 0;
    for tenant in TENANTS {
        let (log, rows) = ShardContext
            .with(shard(tenant), async || (log(&app).await, app.store().snapshot(&SnapshotQuery::default()).await))
            .await;
        let (marks, effects) = (made(&log, "marks"), made(&log, "effects"));
        let (once, with_effect): (BTreeSet<&str>, BTreeSet<&str>) =
            (marks.iter().copied().collect(), effects.iter().copied().collect());
        assert_eq!((once.len(), with_effect.len()), (marks.len(), effects.len()), "each once");
        assert_eq!(once, with_effect, "what is committed has had its effect, and nothing else has");
        assert_eq!(rows.unwrap().rows.len(), marks.len() + effects.len(), "and that is all there is");
        let own = acknowledged.iter().filter(|token| token.starts_with(&format!("{tenant}-")));
        let lost: Vec<_> = own.filter(|token| !once.contains(token.as_str())).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
        entries += log.len();
    }
    assert!(!acknowledged.is_empty());
    json!({ "kills": kills, "acknowledged": acknowledged.len(), "entries": entries })
}
