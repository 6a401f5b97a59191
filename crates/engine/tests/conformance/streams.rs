//! Streams: each has one driver, and whoever had it before changes nothing any more.

use crate::copying::version;
use crate::fixtures::{Options, World};
use crate::given::*;
use isles_engine::error::{Result, ShardError};
use isles_engine::shard::{Applied, Batch, DriverToken, Incoming, MAX_APPLY_ROWS, StreamState};
use isles_kernel::names::Seq;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn put(id: i64, seq: u64) -> Incoming {
    let row = Some(values![id, "applied", seq as i64]);
    Incoming { table: "users".into(), unit: bucket(id), key: values![id], version: version(seq), row }
}

fn driven(token: u64, rows: Vec<Incoming>) -> Batch {
    Batch { driver: Some(DriverToken(token)), ..Batch::new(&stream("move"), rows) }
}

/// Brings user 1 to `seq`, and the stream with it.
async fn drive(db: &Db, token: u64, seq: u64) -> Result<Applied> {
    let rows = vec![put(1, seq)];
    db.apply(Batch { position: Some(Seq(seq)), cursor: Some(vec![seq as u8]), ..driven(token, rows) }).await
}

async fn open(db: &Db, token: u64) -> Result<StreamState> {
    db.open_stream(&stream("move"), DriverToken(token)).await
}

fn at(seq: u64) -> StreamState {
    StreamState { position: Seq(seq), cursor: Some(vec![seq as u8]) }
}

/// I-13: a driver that comes back late changes neither rows nor the stream, and cannot take it back.
pub(crate) async fn an_earlier_driver_changes_nothing(world: World) {
    let db = world.shard().await;
    assert_eq!(open(&db, 5).await, Ok(StreamState::default()));
    assert_eq!(open(&db, 5).await, Ok(StreamState::default()), "opening may be repeated");
    drive(&db, 5, 7).await.unwrap();
    assert_eq!(open(&db, 9).await, Ok(at(7)), "the next one goes on from there");
    for token in [1, 5, 8] {
        assert_eq!(open(&db, token).await, Err(ShardError::Superseded), "{token}");
        assert_eq!(drive(&db, token, 8).await, Err(ShardError::Superseded), "{token}");
        assert_eq!(
            db.forget_stream(&stream("move"), Some(DriverToken(token))).await,
            Err(ShardError::Superseded),
            "{token}"
        );
    }
    assert_eq!(sqlstate(&ShardError::Superseded), "55000");
    assert_eq!(drive(&db, 10, 8).await, Err(ShardError::Superseded), "a token that has not opened it, either");
    assert_eq!(db.n_of(1).await, Some(7));
    assert_eq!(db.stream_state(&stream("move")).await, Ok(at(7)));
    assert_eq!(drive(&db, 9, 8).await.map(|applied| applied.written), Ok(1));
    assert_eq!((db.n_of(1).await, db.stream_state(&stream("move")).await), (Some(8), Ok(at(8))));
}

/// I-13: a stream that nobody has opened, or that was forgotten, is nobody's.
pub(crate) async fn a_stream_is_driven_once_it_is_open(world: World) {
    let db = world.shard().await;
    assert_eq!(drive(&db, 1, 5).await, Err(ShardError::Superseded));
    assert_eq!(db.stream_state(&stream("move")).await, Ok(StreamState::default()));
    db.apply(Batch::new(&stream("move"), vec![put(1, 5)])).await.unwrap();
    assert_eq!(drive(&db, 1, 6).await, Err(ShardError::Superseded), "one that was made without a driver");
    open(&db, 1).await.unwrap();
    drive(&db, 1, 6).await.unwrap();
    db.apply(Batch::new(&stream("move"), vec![put(1, 7)])).await.unwrap();
    assert_eq!(db.n_of(1).await, Some(7), "who does not say whose it is, is not asked");
    db.forget_stream(&stream("move"), Some(DriverToken(1))).await.unwrap();
    assert_eq!(drive(&db, 1, 9).await, Err(ShardError::Superseded));
    db.forget_stream(&stream("move"), Some(DriverToken(1))).await.unwrap();
    assert_eq!(db.n_of(1).await, Some(7));
    let absurd = open(&db, u64::MAX).await.unwrap_err();
    assert!(is_refusal(&absurd), "{absurd:?}");
}

/// I-13: one stream's driver has no say in another.
pub(crate) async fn drivers_of_two_streams_do_not_meet(world: World) {
    let db = world.shard().await;
    open(&db, 9).await.unwrap();
    db.open_stream(&stream("other"), DriverToken(2)).await.unwrap();
    let other = |rows| Batch { stream: stream("other"), ..driven(2, rows) };
    db.apply(other(vec![put(2, 5)])).await.unwrap();
    drive(&db, 9, 5).await.unwrap();
    db.forget_stream(&stream("move"), Some(DriverToken(9))).await.unwrap();
    assert_eq!(db.apply(other(vec![put(2, 4)])).await.unwrap().stale, 1, "its versions remain");
}

/// I-13: when a stream has been opened, no batch of an earlier driver is still on its way in.
pub(crate) async fn no_batch_of_an_earlier_driver_outlives_the_opening(world: World) {
    let db = world.shard().await;
    for round in 0..5u64 {
        let token = 1 + round * 2;
        open(&db, token).await.unwrap();
        let next = Arc::new(AtomicU64::new(1 + round * 1_000_000));
        let appliers: Vec<_> = (0..3)
            .map(|_| {
                let (db, next) = (db.clone(), next.clone());
                tokio::spawn(async move {
                    loop {
                        match drive(&db, token, next.fetch_add(1, Ordering::SeqCst)).await {
                            Ok(_) | Err(ShardError::Conflict(_)) => {}
                            Err(other) => return other,
                        }
                    }
                })
            })
            .collect();
        while db.n_of(1).await.is_none_or(|n| n < (20 + round * 1_000_000) as i64) {
            tokio::task::yield_now().await;
        }
        let state = open(&db, token + 1).await.unwrap();
        let row = db.n_of(1).await;
        assert_eq!(row, Some(state.position.0 as i64), "position and row are of one moment");
        for applier in appliers {
            assert_eq!(applier.await.unwrap(), ShardError::Superseded);
        }
        assert_eq!((db.n_of(1).await, db.stream_state(&stream("move")).await), (row, Ok(state)));
    }
}

/// I-13
pub(crate) async fn a_streams_driver_survives_reopening(world: World) {
    let fixture = world.fixture().await;
    let db = Db::new(fixture.open(&Options::default()).await).set_up(vec![users()]).await;
    open(&db, 5).await.unwrap();
    drive(&db, 5, 7).await.unwrap();
    let db = Db::new(fixture.reopen(db.into_shard()).await);
    assert_eq!(open(&db, 4).await, Err(ShardError::Superseded));
    assert_eq!(drive(&db, 4, 8).await, Err(ShardError::Superseded));
    drive(&db, 5, 8).await.unwrap();
    assert_eq!(db.stream_state(&stream("move")).await, Ok(at(8)));
}

/// More versions than are forgotten at once, of two streams that lie among each other.
pub(crate) async fn a_long_stream_is_forgotten_whole(world: World) {
    let db = world.shard().await;
    let count = MAX_APPLY_ROWS as i64;
    let ids = |odd: i64| (0..count / 2).map(move |n| put(n * 2 + odd, 50)).collect::<Vec<_>>();
    open(&db, 1).await.unwrap();
    db.apply(driven(1, ids(0))).await.unwrap();
    db.apply(Batch::new(&stream("other"), ids(1))).await.unwrap();
    db.forget_stream(&stream("move"), Some(DriverToken(1))).await.unwrap();
    let older: Vec<Incoming> = (0..count).map(|id| put(id, 40)).collect();
    let again = db.apply(Batch::new(&stream("again"), older)).await.unwrap();
    let half = count as u64 / 2;
    assert_eq!((again.written, again.stale), (half, half), "the one's versions are gone, the other's are there");
}
