//! Strangers: rows of buckets that a shard does not own. Where they may be, it serves only statements that keep to the
//! buckets that they claim.
//!
//! Here the shard owns buckets 0 to 3, and user 5 of bucket 5 is the stranger.

use crate::fixtures::{Options, World};
use crate::given::*;
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::{Access, Claim, Claimed, Fence, FenceMode, FenceScope};
use isles_engine::shard::{Begin, Isolation, Request, Statement};
use isles_kernel::names::{BucketId, GroupName, RoutingVersion};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const A_MOMENT: Duration = Duration::from_millis(80);
const COUNT: &str = "SELECT count(*) AS n FROM users";

fn whole(version: u64, mode: FenceMode) -> Fence {
    Fence { scope: FenceScope::Whole { group: users_group() }, version: RoutingVersion(version), mode }
}

fn claimed(unit: fn(GroupName, BucketId, BucketId) -> Claimed) -> Claim {
    Claim::new(RoutingVersion(1), vec![unit(users_group(), BucketId(0), BucketId(3))])
}

/// Of a statement that takes whatever is there.
fn all() -> Claim {
    claimed(Claimed::Buckets)
}

/// Of one that keeps to what is claimed.
fn own() -> Claim {
    claimed(Claimed::OwnBuckets)
}

fn strangers<T>() -> Result<T> {
    Err(ShardError::Strangers { group: users_group() })
}

/// A shard with a user of its own and the fence given.
async fn fenced(world: &World, version: u64, mode: FenceMode) -> Db {
    let db = world.shard().await;
    db.put_user(3, "own", 0).await;
    db.set_fences(vec![whole(version, mode)], FENCE_TIME).await.unwrap();
    db
}

/// Every way into a shard.
async fn each_way(db: &Db, claim: &Claim) -> Vec<Result<()>> {
    let (count, bump) = (count_of(COUNT), Statement::new("UPDATE users SET n = n + 1 WHERE _bucket <= 3", vec![]));
    let mut results = vec![
        db.execute(Request::read(claim.clone(), count.clone())).await.map(drop),
        db.execute(Request::read(claim.clone(), count.clone().composed())).await.map(drop),
        db.execute(Request { statements: vec![count.clone(), count.clone()], ..Request::read(claim.clone(), count) })
            .await
            .map(drop),
        db.execute(Request::write(claim.clone(), vec![bump.clone()])).await.map(drop),
    ];
    for access in [Access::Read, Access::Write] {
        for isolation in [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable] {
            let begin = |claim: Claim| Begin { isolation, ..Begin::new(claim, access) };
            results.push(db.begin(begin(claim.clone())).await.map(drop));
            let mut later = db.begin(begin(Claim::new(claim.version, vec![]))).await.unwrap();
            results.push(later.claim(claim.clone()).await);
        }
    }
    results
}

/// I-11
pub(crate) async fn whoever_takes_whatever_is_there_is_refused(world: World) {
    let db = fenced(&world, 5, FenceMode::Closed).await;
    let before = db.rows("users").await;
    for result in each_way(&db, &all()).await {
        assert_eq!(result, strangers());
        assert_eq!(result.map_err(|error| sqlstate(&error)), Err("40001"));
    }
    assert_eq!(db.rows("users").await, before, "nothing happened");
    let own_bucket = claim_bucket(1, 3);
    for claim in [own(), own_bucket] {
        let results = each_way(&db, &claim).await;
        assert!(results.iter().all(Result::is_ok), "{claim:?}: {results:?}");
    }
    let other = Claim { units: vec![Claimed::Shared], ..own() };
    assert!(each_way(&db, &other).await.iter().all(Result::is_ok), "other units are served as ever");
}

/// Where no bucket was ever moved there is no such fence, and one that is open is as none.
pub(crate) async fn without_strangers_whatever_is_there_is_served(world: World) {
    let db = world.shard().await;
    db.put_user(3, "own", 0).await;
    assert!(each_way(&db, &all()).await.iter().all(Result::is_ok));
    for (version, mode) in [(2, FenceMode::Closed), (3, FenceMode::Open)] {
        db.set_fences(vec![whole(version, mode)], FENCE_TIME).await.unwrap();
    }
    assert!(each_way(&db, &all()).await.iter().all(Result::is_ok), "its version is asked of nobody");
}

/// I-7: where a bucket is comes first: whoever keeps to its buckets is refused for them as ever.
pub(crate) async fn buckets_are_fenced_beside_the_whole(world: World) {
    let db = fenced(&world, 2, FenceMode::Closed).await;
    db.set_fences(vec![fence_buckets(2, 2, 4, FenceMode::Closed)], FENCE_TIME).await.unwrap();
    let results = each_way(&db, &own()).await;
    assert!(results.iter().all(|result| matches!(result, Err(ShardError::Moved { .. }))), "{results:?}");
}

/// I-8
pub(crate) async fn the_fence_around_a_whole_group_is_one_like_others(world: World) {
    let fixture = world.fixture().await;
    let db = Db::new(fixture.open(&Options::default()).await).set_up(vec![users()]).await;
    db.set_fences(vec![whole(5, FenceMode::Closed)], FENCE_TIME).await.unwrap();
    let before = db.fences().await.unwrap();
    assert_eq!(before.len(), all_open().len() + 1);
    assert!(db.set_fences(vec![whole(4, FenceMode::Open)], FENCE_TIME).await.is_err(), "its version never falls");
    assert!(db.set_fences(vec![whole(6, FenceMode::ReadOnly)], FENCE_TIME).await.is_err());
    let both = vec![fence_buckets(0, 0, 9, FenceMode::Closed), whole(1, FenceMode::Open)];
    assert!(db.set_fences(both, FENCE_TIME).await.is_err(), "all of them or none");
    assert_eq!(db.fences().await.unwrap(), before);
    let db = Db::new(fixture.reopen(db.into_shard()).await);
    assert_eq!(db.fences().await.unwrap(), before);
    assert!(each_way(&db, &all()).await.iter().all(|result| *result == strangers()));
    db.set_fences(vec![whole(5, FenceMode::Open)], FENCE_TIME).await.unwrap();
    assert!(each_way(&db, &all()).await.iter().all(Result::is_ok));
}

/// I-11: when the fence is set, rows may come that nobody inside would tell from its own.
pub(crate) async fn nobody_who_takes_everything_is_inside_when_the_fence_is_set(world: World) {
    for access in [Access::Read, Access::Write] {
        let db = world.shard().await;
        let mut open = db.begin(Begin::new(all(), access)).await.unwrap();
        open.execute(&count_of(COUNT)).await.unwrap();
        let fence = db.clone();
        let mut fence =
            tokio::spawn(async move { fence.set_fences(vec![whole(2, FenceMode::Closed)], FENCE_TIME).await });
        match tokio::time::timeout(A_MOMENT, &mut fence).await {
            Ok(set) => {
                set.unwrap().unwrap();
                assert_eq!(open.execute(&count_of(COUNT)).await.map(drop), strangers());
            }
            Err(_) => {
                open.execute(&count_of(COUNT)).await.unwrap();
                open.commit().await.unwrap();
                fence.await.unwrap().unwrap();
            }
        }
    }
}

/// I-14: who keeps to its buckets holds nobody up, and is not held up.
pub(crate) async fn readers_of_their_own_buckets_do_not_notice_the_fence(world: World) {
    let db = world.shard().await;
    let mut open = db.begin(Begin::new(own(), Access::Read)).await.unwrap();
    open.execute(&count_of(COUNT)).await.unwrap();
    db.set_fences(vec![whole(2, FenceMode::Closed)], Duration::from_secs(5)).await.unwrap();
    open.execute(&count_of(COUNT)).await.unwrap();
    open.commit().await.unwrap();
}

/// I-21: a snapshot from when there were strangers has them, whatever the fence says by now.
pub(crate) async fn a_snapshot_with_strangers_is_never_read_whole(world: World) {
    let db = fenced(&world, 2, FenceMode::Closed).await;
    db.execute(Request::write(claim_bucket(1, 5), vec![insert_user(5, "stranger", 0)])).await.unwrap();
    let begin = Begin { isolation: Isolation::RepeatableRead, ..Begin::new(own(), Access::Read) };
    let mut open = db.begin(begin).await.unwrap();
    assert_eq!(open.execute(&count_of(COUNT)).await.unwrap().rows, [values![2]]);
    let gone = Statement::new("DELETE FROM users WHERE id = 5", vec![]);
    db.execute(Request::write(claim_bucket(1, 5), vec![gone])).await.unwrap();
    db.set_fences(vec![whole(2, FenceMode::Open)], FENCE_TIME).await.unwrap();
    assert_eq!(open.claim(all()).await, strangers());
    let read = db.execute(Request::read(all(), count_of(COUNT).composed())).await.unwrap();
    assert_eq!(read[0].rows, [values![1]]);
}

/// I-21: strangers come and go, and whoever takes everything sees none of them or is refused.
pub(crate) async fn readers_that_race_with_strangers_see_none(world: World) {
    let db = world.shard().await;
    db.put_user(3, "own", 0).await;
    let done = Arc::new(AtomicBool::new(false));
    let reader = |db: Db, done: Arc<AtomicBool>| async move {
        let mut seen = 0;
        while !done.load(Ordering::SeqCst) {
            let composed = Request::read(all(), count_of(COUNT).composed());
            let twice = Request { statements: vec![count_of(COUNT), count_of(COUNT)], ..composed.clone() };
            for request in [composed, twice] {
                match db.execute(request).await {
                    Ok(outcomes) => {
                        assert!(outcomes.iter().all(|outcome| outcome.rows == [values![1]]), "{outcomes:?}");
                        seen += 1;
                    }
                    Err(ShardError::Strangers { .. }) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
            tokio::task::yield_now().await;
        }
        seen
    };
    let readers: Vec<_> = (0..3).map(|_| tokio::spawn(reader(db.clone(), done.clone()))).collect();
    for round in 0..crate::random::rounds(20) as u64 {
        db.set_fences(vec![whole(round, FenceMode::Closed)], FENCE_TIME).await.unwrap();
        db.execute(Request::write(claim_bucket(1, 5), vec![insert_user(5, "stranger", 0)])).await.unwrap();
        let gone = Statement::new("DELETE FROM users WHERE id = 5", vec![]);
        db.execute(Request::write(claim_bucket(1, 5), vec![gone])).await.unwrap();
        db.set_fences(vec![whole(round, FenceMode::Open)], FENCE_TIME).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    done.store(true, Ordering::SeqCst);
    let mut seen = 0;
    for reader in readers {
        seen += reader.await.unwrap();
    }
    assert!(seen > 0, "nobody was served");
}
