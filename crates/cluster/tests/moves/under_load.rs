//! Clients that write while their rows move.

use crate::harness::Client;
use crate::world::{World, shard, tenant, tenants};
use isles_cluster::moves::moves::{Event, Options, Phase, Stage};
use isles_engine::error::ShardError;
use isles_engine::fence::{Claim, Claimed};
use isles_engine::shard::{ActsFor, Request, Statement};
use isles_kernel::value::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// What a writer was told has happened.
#[derive(Debug, Default)]
struct Told {
    /// Rows by id, with how often each was counted up.
    rows: BTreeMap<i64, i64>,
    longest: Duration,
    statements: u64,
}

/// Inserts, counts up, deletes and brings back, one statement after the other, and notes what was acknowledged.
async fn write(mut client: Client, writer: i64, stop: Arc<AtomicBool>, done: Arc<AtomicI64>) -> Told {
    let mut told = Told::default();
    for n in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let id = 1_000 * (writer + 1) + n % 40;
        let began = Instant::now();
        if told.rows.contains_key(&id) && n % 7 == 3 {
            assert_eq!(client.run(&format!("DELETE FROM notes WHERE id = {id}")).await, ["DELETE 1"]);
            told.rows.remove(&id);
        } else if let Some(count) = told.rows.get_mut(&id) {
            assert_eq!(client.run(&format!("UPDATE notes SET n = n + 1 WHERE id = {id}")).await, ["UPDATE 1"]);
            *count += 1;
        } else {
            client.run(&format!("INSERT INTO notes (id, body, slug) VALUES ({id}, 'w', 'w {id}')")).await;
            told.rows.insert(id, 0);
        }
        told.longest = told.longest.max(began.elapsed());
        told.statements += 1;
        done.fetch_add(1, Ordering::SeqCst);
    }
    told
}

/// W1, W2: rows with keys of their own, counters, deletes and re-inserts under a move there and back: each of what was
/// acknowledged is there once, and no client sees an error.
pub(crate) async fn writes_during_a_move_are_all_there_once(world: World) {
    let name = world.tenant_with_rows("acme", 200).await;
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
    let mut writers = Vec::new();
    for writer in 0..4 {
        let client = world.client_of(&name).await;
        writers.push(tokio::spawn(write(client, writer, stop.clone(), done.clone())));
    }
    let mut client = world.client_of(&name).await;
    for n in 500..550 {
        client.run(&format!("INSERT INTO notes (id) VALUES ({n})")).await;
    }
    let key_changes = async {
        for n in 500..550 {
            client.run(&format!("UPDATE notes SET id = id + 10000 WHERE id = {n}")).await;
        }
    };
    let moves = async {
        for round in 0..2 {
            let seen = done.load(Ordering::SeqCst);
            let plan = world.move_wholly(1 - round, tenants(&[&name])).await;
            assert_eq!(plan.phase, Phase::Completed);
            assert!(done.load(Ordering::SeqCst) > seen, "writers came to work meanwhile");
        }
    };
    tokio::join!(moves, key_changes);
    stop.store(true, Ordering::SeqCst);
    let mut expected: BTreeMap<i64, i64> =
        (0..200).map(|id| (id, 0)).chain((10_500..10_550).map(|id| (id, 0))).collect();
    for writer in writers {
        let told = writer.await.unwrap();
        assert!(told.statements > 10);
        expected.extend(told.rows);
    }
    let rows = world.client_of(&name).await.run("SELECT id, n FROM notes ORDER BY id").await;
    let expected: Vec<String> = expected.iter().map(|(id, n)| format!("{id}|{n}")).collect();
    assert_eq!(rows, expected);
}

/// I-9, I-15: a transaction that is open at the fence commits whole before it or fails whole; the first statement of one
/// waits, and goes on at the target.
pub(crate) async fn transactions_over_a_cutover_commit_or_fail_whole(world: World) {
    let name = world.tenant_with_rows("acme", 1).await;
    let plan = world.plan(tenants(&[&name]), Options { pause_limit_ms: 2_000, ..Options::default() }).await.unwrap();
    world.command(&plan, Event::StartDualWrite).await.unwrap();
    world.until_stage(&plan, Stage::Capturing).await;
    world.command(&plan, Event::RunBackfill).await.unwrap();
    world.until_stage(&plan, Stage::Ready).await;
    world.command(&plan, Event::WaiveVerification).await.unwrap();
    // Open at the fence, and longer than the cutover waits: it is given up, and nothing has changed.
    let mut open = world.client_of(&name).await;
    open.run("BEGIN").await;
    open.run("UPDATE notes SET n = n + 1").await;
    let version = world.version();
    world.command(&plan, Event::Cutover).await.unwrap();
    let late = world.until(&plan, "an abort", |plan| plan.cutover.aborted.is_some()).await;
    assert_eq!((late.cutover.attempts, world.version()), (1, version));
    open.run("COMMIT").await;
    world.until_stage(&plan, Stage::Ready).await;
    assert_eq!(world.client_of(&name).await.run("SELECT n FROM notes").await, ["1"]);
    // One that ends in time is before the cutover; one that comes meanwhile is after it, at the target.
    open.run("BEGIN").await;
    open.run("UPDATE notes SET n = n + 1").await;
    world.command(&plan, Event::Cutover).await.unwrap();
    let mut waiting = world.client_of(&name).await;
    let waits = tokio::spawn(async move {
        waiting.run("BEGIN").await;
        waiting.run("UPDATE notes SET n = n * 10").await;
        waiting.run("COMMIT").await;
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    open.run("COMMIT").await;
    waits.await.unwrap();
    world.until_stage(&plan, Stage::Guarding).await;
    assert_eq!(world.shard_of(&name).await, "s1");
    assert_eq!(world.client_of(&name).await.run("SELECT n FROM notes").await, ["20"]);
}

/// I-7, I-9: (W4) whoever still believes in the old map is refused by the old owner itself, reading and writing.
pub(crate) async fn stale_gateway_write_is_fenced(world: World) {
    let name = world.tenant_with_rows("acme", 1).await;
    let old = world.database().current_routing();
    world.move_to(1, tenants(&[&name])).await;
    let claim = Claim::new(
        old.version(),
        vec![Claimed::Tenant(Some(tenant(&name)), old.tenant_group().clone(), old.bucket_of_tenant(&tenant(&name)))],
    );
    let source = world.database().shard(&shard(0)).await.unwrap();
    let write = Statement::new("UPDATE notes SET n = 99", Vec::<Value>::new()).writing();
    let request = Request::write(claim, vec![write]).acting_for(ActsFor::Tenant(Some(tenant(&name))));
    assert!(matches!(source.execute(request).await, Err(ShardError::Moved { .. })));
    assert_eq!(world.client_of(&name).await.run("SELECT n FROM notes").await, ["0"]);
}

/// A move whose changes do not fit into the source's log fails, is cleaned up, and can be made again.
pub(crate) async fn slow_consumer_log_cap(world: World) {
    let name = world.tenant_with_rows("acme", 5).await;
    let plan = world.plan(tenants(&[&name]), Options::default()).await.unwrap();
    world.command(&plan, Event::StartDualWrite).await.unwrap();
    world.until_stage(&plan, Stage::Capturing).await;
    // As the log does to the slowest of its readers when it is full.
    let source = world.database().shard(&shard(0)).await.unwrap();
    let consumers = source.consumers().await.unwrap();
    source.remove_consumer(&consumers[0].stream).await.unwrap();
    let world = world.restart().await;
    let plan = world.until_stage(&plan, Stage::Done).await;
    assert_eq!(plan.phase, Phase::Failed);
    assert!(plan.error_message.is_some_and(|why| why.contains("start over")));
    assert_eq!((world.stored_on(1, "notes").await, world.consumers_on(0).await), (0, 0));
    world.move_wholly(1, tenants(&[&name])).await;
    assert_eq!(world.rows_of(&name).await.len(), 15);
}
