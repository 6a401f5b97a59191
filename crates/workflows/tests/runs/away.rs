//! A shard that cannot be reached, or does not answer: what is on the others goes on, lists say what they lack, and
//! nothing is lost.

use crate::harness::{Db, env};
use crate::world::{LIMIT, open, status, until};
use isles_cluster::database::{Config, Database, ShardPlace};
use isles_kernel::names::{GroupName, ShardId};
use isles_kernel::runs::names::RunKey;
use isles_kernel::runs::places::{shard_name, shard_of};
use isles_sim::disk::{Disk, Trouble};
use isles_sim::pgserver::{PgOptions, PgServer};
use isles_workflows::index::list::Filter;
use isles_workflows::{Context, Options, Registry, Workflows};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const INDEX_SHARDS: u32 = 16;
const RUNS: usize = 24;

fn registry() -> Registry {
    let code = |ctx: Context, ms: u64| async move {
        ctx.sleep("nap", Duration::from_millis(ms)).await;
        ctx.step("after", move || async move { Ok(ms) }).await
    };
    let mut registry = Registry::new();
    registry.register("nap", code, Options { shards: INDEX_SHARDS, ..Options::default() }).unwrap();
    registry
}

/// The shard that has something which is routed by a text.
fn shard(db: &Db, group: &str, key: &str) -> ShardId {
    db.database.shard_of_key(&GroupName::new(group).unwrap(), key).unwrap()
}

fn shard_of_run(db: &Db, id: &str) -> ShardId {
    shard(db, "runs", RunKey::new("nap", id).unwrap().as_str())
}

/// Index shards that are on a shard.
fn index_shards_on(db: &Db, name: &ShardId) -> BTreeSet<String> {
    let all = (0..INDEX_SHARDS).map(|number| shard_name("nap", number));
    all.filter(|index_shard| shard(db, "run_index", index_shard) == *name).collect()
}

async fn list(workflows: &Workflows) -> (BTreeSet<String>, BTreeSet<String>) {
    let filter = Filter { kind: Some("nap".into()), limit: Some(1_000), ..Filter::default() };
    let page = workflows.list(&filter).await.unwrap();
    let ended = page.entries.into_iter().filter(|entry| entry.status.as_str() == "completed").map(|entry| entry.id);
    (ended.collect(), page.failed_shards.into_iter().collect())
}

/// The shard that is taken away: the one that does not have what there is only once.
fn other(db: &Db) -> ShardId {
    let policy = db.database.current_routing();
    db.database.shard_names().into_iter().rfind(|name| Some(name) != policy.home()).unwrap()
}

/// Runs sleep; a shard goes away; those of the other wake, end and are listed, new ones too; the shard comes back, and
/// everything ends and is listed.
async fn runs_go_on_without(db: &Db, leave: impl AsyncFn(), come_back: impl AsyncFn()) {
    let workflows = open(db, registry()).await;
    let away = other(db);
    let ids: Vec<String> = (0..RUNS).map(|n| format!("run {n}")).collect();
    for id in &ids {
        workflows.create("nap", id, &1_000).await.unwrap();
    }
    for id in &ids {
        status(&workflows, "nap", id, "sleeping").await;
    }
    leave().await;
    let there = |id: &&String| shard_of_run(db, id) != away;
    let late: Vec<String> = (0..RUNS).map(|n| format!("late {n}")).collect();
    for id in late.iter().filter(there) {
        workflows.create("nap", id, &1).await.unwrap();
    }
    let expected: Vec<&String> = ids.iter().chain(&late).filter(there).collect();
    assert!(expected.len() > 5 && expected.len() < ids.len() + late.len() - 5);
    for id in &expected {
        let ended = workflows.wait("nap", id, Some(LIMIT)).await;
        ended.unwrap_or_else(|error| panic!("{id} is on a shard that is there: {error}"));
    }
    let missing = index_shards_on(db, &away);
    assert!(!missing.is_empty() && missing.len() < INDEX_SHARDS as usize);
    let is_listed = |id: &&String| !missing.contains(&shard_name("nap", shard_of(id, INDEX_SHARDS)));
    let listed: BTreeSet<String> = expected.iter().copied().filter(is_listed).cloned().collect();
    until("the index, without the shard that is away", || async {
        let (ended, failed) = list(&workflows).await;
        failed == missing && ended == listed
    })
    .await;
    come_back().await;
    let mut all: BTreeSet<String> = expected.into_iter().cloned().collect();
    all.extend(ids);
    for id in &all {
        until(id, || async { workflows.wait("nap", id, Some(LIMIT)).await.is_ok() }).await;
    }
    until("the whole index", || async { list(&workflows).await == (all.clone(), BTreeSet::new()) }).await;
    workflows.close();
}

/// I-50, I-51: no timer of a shard that is there waits, and no entry of an index shard that is there is late for good.
#[tokio::test(flavor = "multi_thread")]
async fn runs_go_on_while_a_sqlite_shard_is_away() {
    let disk = Arc::new(Disk::new(7).expect("a disk"));
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::sqlite(folder.path(), 2);
    config.sqlite.base_vfs = Some(disk.vfs_name().into());
    config.catalog.vfs = Some(disk.vfs_name().into());
    let db = Db { database: Database::open(config, env()).await.unwrap(), folder };
    let path = format!("/{}/", other(&db));
    runs_go_on_without(&db, async || disk.trouble(&path, Trouble::Away), async || disk.end_trouble()).await;
}

fn server() -> (Arc<PgServer>, String) {
    let server = PgServer::start(PgOptions { fsync: false, ..PgOptions::default() });
    let url = server.create_database();
    (Arc::new(server), url)
}

async fn with_postgres(url: String) -> Db {
    let folder = tempfile::tempdir().unwrap();
    let shards = vec![ShardPlace::Sqlite, ShardPlace::Postgres { url }];
    let config = Config { shards, ..Config::sqlite(folder.path(), 2) };
    Db { database: Database::open(config, env()).await.unwrap(), folder }
}

/// I-50, I-51: no timer of a shard that is there waits, and no entry of an index shard that is there is late for good.
#[tokio::test(flavor = "multi_thread")]
async fn runs_go_on_while_a_postgresql_shard_is_away() {
    let (server, url) = tokio::task::spawn_blocking(server).await.unwrap();
    let db = with_postgres(url).await;
    let leave = async || {
        let server = server.clone();
        tokio::task::spawn_blocking(move || server.stop_immediate()).await.unwrap();
    };
    let come_back = async || {
        let server = server.clone();
        tokio::task::spawn_blocking(move || server.restart()).await.unwrap();
    };
    runs_go_on_without(&db, leave, come_back).await;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passage {
    Open,
    Hangs,
}

async fn becomes(watched: &mut watch::Receiver<Passage>, wanted: Passage) {
    let _ = watched.wait_for(|is| *is == wanted).await;
}

/// Passes connections on to a server, and lets all of them hang for as long as it is told to.
async fn passage(to: String, mut hangs: watch::Receiver<Passage>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let (to, mut hangs) = (to.clone(), hangs.clone());
            tokio::spawn(async move {
                let Ok(mut far) = TcpStream::connect(&to).await else { return };
                tokio::select! {
                    _ = copy_bidirectional(&mut near, &mut far) => return,
                    () = becomes(&mut hangs, Passage::Hangs) => {}
                }
                // Nothing is said any more on either side, and nobody hangs up.
                becomes(&mut hangs, Passage::Open).await;
            });
        }
        let _ = hangs.changed().await;
    });
    port
}

/// A shard that takes connections and says nothing: a list answers in time, and names what it lacks; runs of the other
/// shard wake soon.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_hangs_is_named_by_a_list_and_delays_no_timer() {
    let (_server, url) = tokio::task::spawn_blocking(server).await.unwrap();
    let address = url.rsplit_once('@').map_or(url.as_str(), |(_, rest)| rest);
    let address = address.trim_start_matches("postgres://").trim_start_matches("postgresql://");
    let address = address.split('/').next().unwrap().to_owned();
    let (hangs, watched) = watch::channel(Passage::Open);
    let port = passage(address.clone(), watched).await;
    let db = with_postgres(url.replace(&address, &format!("127.0.0.1:{port}"))).await;
    let workflows = open(&db, registry()).await;
    let (away, ids) = (other(&db), (0..RUNS).map(|n| format!("run {n}")));
    let ids: Vec<String> = ids.filter(|id| shard_of_run(&db, id) != away).collect();
    for id in &ids {
        workflows.create("nap", id, &2_000).await.unwrap();
    }
    until("the index", || async { list(&workflows).await.1.is_empty() }).await;
    hangs.send_replace(Passage::Hangs);
    for id in &ids {
        workflows.wait("nap", id, Some(LIMIT)).await.unwrap();
    }
    let begun = Instant::now();
    let (_, failed) = list(&workflows).await;
    assert!(begun.elapsed() < Duration::from_secs(30), "a list waits for a shard that hangs: {:?}", begun.elapsed());
    assert_eq!(failed, index_shards_on(&db, &away));
    let (_, unasked) = workflows.counts(Some("nap")).await.unwrap();
    assert_eq!(unasked.into_iter().collect::<BTreeSet<_>>(), failed);
    hangs.send_replace(Passage::Open);
    until("the whole index", || async { list(&workflows).await == (ids.iter().cloned().collect(), BTreeSet::new()) })
        .await;
    let kept: Json = workflows.get("nap", &ids[0]).await.unwrap().result.unwrap();
    assert_eq!(kept, json!(2_000));
    workflows.close();
}
