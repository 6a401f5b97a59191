//! I-1, I-2: a PostgreSQL shard whose server is killed, again and again, loses nothing that was acknowledged.

use isles_engine::env::TokioEnv;
use isles_engine::fence::{Claim, Claimed, Fence, FenceMode, FenceScope};
use isles_engine::postgres::{PostgresOptions, PostgresShard};
use isles_engine::shard::{Request, Shard, Statement};
use isles_kernel::names::{BucketId, GroupName, RoutingVersion, SchemaVersion, Seq, ShardId, StreamId};
use isles_kernel::schema::{Column, SchemaChange, Table, TableKind};
use isles_kernel::value::{DataType, Value};
use isles_sim::pgserver::{PgOptions, PgServer};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

const CYCLES: usize = 25;
const WRITERS: usize = 6;

fn group() -> GroupName {
    GroupName::new("g").expect("valid")
}

fn table() -> Table {
    Table {
        name: "items".into(),
        kind: TableKind::Hash { group: group(), shard_by: vec!["id".into()], buckets: 1, regions: vec![] },
        columns: vec![Column::new("id", DataType::Int8).not_null()],
        primary_key: vec!["id".into()],
        keys: vec![],
        foreign_keys: vec![],
        checks: vec![],
        primary_key_name: None,
        hidden_key: false,
    }
}

fn claim() -> Claim {
    Claim::new(RoutingVersion(1), vec![Claimed::Bucket(group(), BucketId(0))])
}

/// Each transaction writes a pair, so that a torn one would show.
fn pair(id: i64) -> Request {
    let insert = |id| Statement::new("INSERT INTO items (_bucket, id) VALUES (0, $1)", vec![Value::Int(id)]);
    Request::write(claim(), vec![insert(id), insert(id + 1)])
}

#[derive(Default)]
struct Written {
    acknowledged: BTreeSet<i64>,
    /// Neither acknowledged nor refused.
    unclear: BTreeSet<i64>,
}

async fn write_until(shard: Arc<PostgresShard>, next: Arc<AtomicI64>, stop: Arc<AtomicBool>) -> Written {
    let mut written = Written::default();
    while !stop.load(Ordering::SeqCst) {
        let id = next.fetch_add(2, Ordering::SeqCst);
        match shard.execute(pair(id)).await {
            Ok(_) => written.acknowledged.extend([id, id + 1]),
            Err(error) if error.nothing_happened() => tokio::time::sleep(Duration::from_millis(2)).await,
            Err(_) => written.unclear.extend([id, id + 1]),
        }
    }
    written
}

async fn rows(shard: &PostgresShard) -> BTreeSet<i64> {
    let read = Statement::new("SELECT id FROM items", vec![]).returning(vec![DataType::Int8]);
    let outcomes = shard.execute(Request::read(claim(), read)).await.expect("the server is back");
    outcomes[0].rows.iter().map(|row| int(&row[0])).collect()
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(n) => *n,
        other => panic!("not an integer: {other:?}"),
    }
}

/// What the log says of the ids, from the beginning, until it is complete.
async fn logged(shard: &PostgresShard, at: &mut Seq, into: &mut BTreeSet<i64>, expected: usize) {
    let began = Instant::now();
    while into.len() < expected {
        let page = shard.changes(*at, 1_000).await.expect("the log can be read");
        for change in page.changes {
            assert!(into.insert(int(&change.key[0])), "a change is in the log once");
        }
        *at = page.through;
        assert!(began.elapsed() < Duration::from_secs(20), "{} of {expected} in the log", into.len());
    }
    assert_eq!(shard.changes(*at, 10).await.expect("the log can be read").changes, vec![]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_the_server_is_killed() {
    // Recovery syncs every file of a new cluster by default; one call for the whole file system is as safe.
    let settings = vec!["recovery_init_sync_method=syncfs".into()];
    let server = PgServer::start(PgOptions { settings, ..PgOptions::default() });
    let url = server.create_database();
    let id = ShardId::new("s1").expect("valid");
    let env = Arc::new(TokioEnv::current());
    let shard = Arc::new(PostgresShard::open(id, &url, env, PostgresOptions::default()).await.expect("it opens"));
    shard.apply_schema(SchemaVersion(0), vec![SchemaChange::CreateTable(table())]).await.expect("a table");
    let scope = FenceScope::Buckets { group: group(), first: BucketId(0), last: BucketId(0) };
    let fence = Fence { scope, version: RoutingVersion(1), mode: FenceMode::Open };
    shard.set_fences(vec![fence], Duration::from_secs(5)).await.expect("fences");
    let mut at = shard.add_consumer(&StreamId::new("reader").expect("valid")).await.expect("capture is on");
    let next = Arc::new(AtomicI64::new(0));
    let (mut acknowledged, mut unclear, mut in_log) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for cycle in 0..CYCLES {
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> =
            (0..WRITERS).map(|_| tokio::spawn(write_until(shard.clone(), next.clone(), stop.clone()))).collect();
        // Kills fall at other moments of the work each time.
        tokio::time::sleep(Duration::from_millis(120 + (cycle as u64 * 37) % 150)).await;
        server.kill9();
        stop.store(true, Ordering::SeqCst);
        let before = acknowledged.len();
        for writer in writers {
            let written = writer.await.expect("no panic");
            acknowledged.extend(written.acknowledged);
            unclear.extend(written.unclear);
        }
        assert!(acknowledged.len() > before, "cycle {cycle} has written nothing");
        server.restart();
        let there = rows(&shard).await;
        assert!(acknowledged.is_subset(&there), "lost: {:?}", acknowledged.difference(&there).collect::<Vec<_>>());
        let extra: BTreeSet<i64> = there.difference(&acknowledged).copied().collect();
        assert!(extra.is_subset(&unclear), "nobody wrote {:?}", extra.difference(&unclear).collect::<Vec<_>>());
        assert!(there.iter().all(|id| there.contains(&(id ^ 1))), "half a transaction");
        logged(&shard, &mut at, &mut in_log, there.len()).await;
        assert_eq!(in_log, there, "rows and log agree");
    }
    assert!(!unclear.is_empty(), "no kill has hit a commit");
}
