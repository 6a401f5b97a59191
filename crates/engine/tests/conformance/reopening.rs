//! Closing and opening again: nothing that was acknowledged is gone, and a closed shard does nothing.

use crate::changelog::audit_trigger;
use crate::copying::{batch, digest, version};
use crate::fixtures::{Options, World};
use crate::given::*;
use crate::random;
use isles_engine::error::ShardError;
use isles_engine::fence::Access;
use isles_engine::shard::{Batch, Begin, Incoming, Request};
use isles_kernel::names::Seq;
use isles_kernel::schema::{Column, SchemaChange};
use isles_kernel::value::{DataType, Value};
use isles_sim::rng::Rng;

fn put(id: i64, seq: u64) -> Incoming {
    let row = Some(values![id, "applied", 0]);
    Incoming { table: "users".into(), unit: bucket(id), key: values![id], version: version(seq), row }
}

/// I-1, I-2
pub(crate) async fn everything_survives_closing_and_opening(world: World) {
    let fixture = world.fixture().await;
    let db = Db::new(fixture.open(&Options::default()).await).set_up(vec![users(), notes(), plans()]).await;
    db.alter(audit_trigger()).await;
    let start = db.listen().await;
    for id in 0..20 {
        db.put_user(id, "x", id).await;
    }
    db.must("UPDATE users SET n = n + 1 WHERE id < 5", vec![]).await;
    db.put_note(None, 1, "nobody's").await;
    let name = stream("move");
    let rows = vec![put(100, 7), Incoming { row: None, ..put(101, 7) }];
    let moved = Batch { position: Some(Seq(7)), cursor: Some(b"users 101".to_vec()), ..batch(&name, rows) };
    db.apply(moved).await.unwrap();
    let middle = db.log_after(start).await[9].seq;
    db.advance(&stream("test"), middle).await.unwrap();

    let fences = db.fences().await.unwrap();
    let (schema, seq) = (db.schema().await.unwrap(), db.seq().await.unwrap());
    let (log, consumers) = (db.log_after(middle).await, db.consumers().await.unwrap());
    let (digest_before, notes) = (digest(&db, "users").await, db.rows("notes").await);
    let state = db.stream_state(&name).await.unwrap();
    assert_eq!(log.len(), 20 - 10 + 5 + 5 + 1);

    let db = Db::new(fixture.reopen(db.into_shard()).await);
    assert_eq!(db.fences().await.unwrap(), fences);
    assert_eq!(db.schema().await.unwrap(), schema);
    assert_eq!(db.seq().await.unwrap(), seq);
    assert_eq!(db.log_after(middle).await, log);
    assert_eq!(db.consumers().await.unwrap(), consumers);
    assert!(matches!(db.changes(start, 10).await, Err(ShardError::Trimmed { .. })));
    assert_eq!(digest(&db, "users").await, digest_before);
    assert_eq!(db.rows("notes").await, notes);
    assert_eq!(db.stream_state(&name).await.unwrap(), state);

    db.apply(batch(&name, vec![put(100, 6), put(101, 6)])).await.unwrap();
    assert_eq!(digest(&db, "users").await, digest_before, "versions and tombstones are there");
    let last = log.last().expect("a log").clone();
    db.put_user(50, "new", 0).await;
    let new = db.log_after(last.seq).await;
    assert_eq!(new.len(), 1, "capture goes on");
    assert!(new[0].txn > last.txn, "a transaction's number is not given out again");
}

/// A schema whose defaults were not the same after opening would have another hash, or not open at all.
pub(crate) async fn defaults_survive_opening_or_are_refused(world: World) {
    let fixture = world.fixture().await;
    let db = Db::new(fixture.open(&Options::default()).await).set_up(vec![plans()]).await;
    let mut rng = Rng::new(10);
    let random = (0..100).map(|_| random::value(&mut rng, DataType::Float8));
    let defaults: Vec<Value> = random::edges(DataType::Float8).into_iter().chain(random).collect();
    let mut kept = 0;
    for (at, default) in defaults.into_iter().enumerate() {
        let column = Column { default: Some(default), ..Column::new(&format!("c{at}"), DataType::Float8) };
        let from = db.schema().await.unwrap().version;
        let add = SchemaChange::AddColumn { table: "plans".into(), column };
        kept += usize::from(db.apply_schema(from, vec![add]).await.is_ok());
    }
    assert!(kept >= 100, "only {kept} defaults were kept");
    let before = db.schema().await.unwrap();
    let db = Db::new(fixture.reopen(db.into_shard()).await);
    assert_eq!(db.schema().await.unwrap(), before);
}

/// I-2
pub(crate) async fn what_was_not_committed_is_gone_after_opening(world: World) {
    let fixture = world.fixture().await;
    let db = Db::new(fixture.open(&Options::default()).await).set_up(vec![users()]).await;
    let start = db.listen().await;
    db.put_user(1, "kept", 0).await;
    let mut open = db.transaction(Access::Write).await;
    open.execute(&insert_user(2, "gone", 0)).await.unwrap();
    drop(open);
    let db = Db::new(fixture.reopen(db.into_shard()).await);
    assert_eq!(db.rows("users").await, vec![user_row(1, "kept", 0)]);
    assert_eq!(db.log_after(start).await.len(), 1);
}

pub(crate) async fn a_closed_shard_refuses(world: World) {
    let db = world.shard().await;
    db.put_user(1, "a", 0).await;
    db.close().await.unwrap();
    let count = count_of("SELECT count(*) FROM users");
    let errors = [
        db.execute(Request::read(claim(), count)).await.err(),
        db.write(vec![insert_user(2, "b", 0)]).await.err(),
        db.begin(Begin::new(claim(), Access::Write)).await.err(),
        db.snapshot().await.err(),
        db.apply(batch(&stream("move"), vec![put(1, 1)])).await.err(),
        db.set_fences(all_open(), FENCE_TIME).await.err(),
    ];
    for (at, error) in errors.into_iter().enumerate() {
        let refused = matches!(error, Some(ShardError::Unavailable(_) | ShardError::Stopped(_)));
        assert!(refused, "call {at} of a closed shard gave {error:?}");
    }
}

pub(crate) async fn closing_twice_is_closing_once(world: World) {
    let db = world.shard().await;
    db.close().await.unwrap();
    db.close().await.unwrap();
}

/// I-1: what was acknowledged while the shard closed is there.
pub(crate) async fn closing_lets_running_work_end(world: World) {
    let fixture = world.fixture().await;
    let db = Db::new(fixture.open(&Options::default()).await).set_up(vec![users()]).await;
    let writers: Vec<_> = (0..4i64)
        .map(|at| {
            let db = db.clone();
            tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                for n in 0.. {
                    let id = at * 100_000 + n;
                    match db.write(vec![insert_user(id, "x", 0)]).await {
                        Ok(_) => acknowledged.push(id),
                        Err(ShardError::Unavailable(_) | ShardError::Stopped(_)) => break,
                        Err(other) => panic!("{other:?}"),
                    }
                }
                acknowledged
            })
        })
        .collect();
    while db.count("users").await < 20 {}
    db.close().await.unwrap();
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    acknowledged.sort();
    drop(db);
    let db = Db::new(fixture.open(&Options::default()).await);
    let ids: Vec<i64> = db.rows("users").await.iter().map(|row| int(&row.values[0])).collect();
    assert_eq!(ids, acknowledged);
}

pub(crate) async fn figures_follow_the_work(world: World) {
    let db = world.shard().await;
    db.listen().await;
    let before = db.stats().await.unwrap();
    for id in 0..5 {
        db.put_user(id, "x", 0).await;
    }
    let after = db.stats().await.unwrap();
    assert!(after.bytes > 0);
    assert!(after.seq > before.seq && after.seq == db.seq().await.unwrap());
    assert!(after.log_records > before.log_records && after.log_bytes > before.log_bytes);
    assert_eq!(after.transactions - before.transactions, 5);
    let commits = after.commits - before.commits;
    assert!((1..=5).contains(&commits), "{commits} commits");
}
