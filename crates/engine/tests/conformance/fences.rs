//! Fences: a shard refuses what it does not serve, in the request's own transaction, whatever the router believes.

use crate::fixtures::{Options, World};
use crate::given::*;
use crate::tenants::readable;
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::{Access, Claim, FenceMode};
use isles_engine::shard::{Begin, Request, Statement};
use isles_kernel::names::{BucketId, RoutingVersion};
use isles_kernel::schema::Unit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

/// How long a test looks whether something that must wait does.
const A_MOMENT: Duration = Duration::from_millis(80);

/// The three ways into a shard, each with a write to `users` 3 of bucket 3.
async fn write_each_way(db: &Db, claim: &Claim) -> Vec<Result<()>> {
    let bump = Statement::new("UPDATE users SET n = n + 1 WHERE id = 3", vec![]);
    let executed = db.execute(Request::write(claim.clone(), vec![bump.clone()])).await.map(drop);
    let begun = match db.begin(Begin::new(claim.clone(), Access::Write)).await {
        Ok(mut open) => {
            open.execute(&bump).await.unwrap();
            open.commit().await
        }
        Err(error) => Err(error),
    };
    let later = Claim::new(claim.version, vec![]);
    let mut open = db.begin(Begin::new(later, Access::Write)).await.unwrap();
    let claimed = match open.claim(claim.clone()).await {
        Ok(()) => {
            open.execute(&bump).await.unwrap();
            open.commit().await
        }
        Err(error) => Err(error),
    };
    vec![executed, begun, claimed]
}

async fn read_each_way(db: &Db, claim: &Claim) -> Vec<Result<()>> {
    let count = count_of("SELECT count(*) AS n FROM users");
    let executed = db.execute(Request::read(claim.clone(), count.clone())).await.map(drop);
    let composed = db.execute(Request::read(claim.clone(), count.composed())).await.map(drop);
    // One that finds nothing looks at the fences, too.
    let nothing = count_of("SELECT n FROM users WHERE id = -1").composed();
    let nothing = db.execute(Request::read(claim.clone(), nothing)).await.map(drop);
    let begun = db.begin(Begin::new(claim.clone(), Access::Read)).await.map(drop);
    let later = Claim::new(claim.version, vec![]);
    let mut open = db.begin(Begin::new(later, Access::Read)).await.unwrap();
    vec![executed, composed, nothing, begun, open.claim(claim.clone()).await]
}

fn moved(claimed: u64, needed: u64) -> Result<()> {
    let unit = Unit::Bucket(users_group(), BucketId(3));
    Err(ShardError::Moved { unit, claimed: RoutingVersion(claimed), needed: RoutingVersion(needed) })
}

/// A shard with user 3, whose bucket 3 has the fence given.
async fn fenced(world: &World, version: u64, mode: FenceMode) -> Db {
    let db = world.shard().await;
    db.put_user(3, "a", 0).await;
    db.set_fences(vec![fence_buckets(3, 3, version, mode)], FENCE_TIME).await.unwrap();
    db
}

/// I-7
pub(crate) async fn what_no_fence_speaks_of_is_refused(world: World) {
    let db = world.shard().await;
    let stranger = claim_bucket(9, 77);
    let results = [write_each_way(&db, &stranger).await, read_each_way(&db, &stranger).await].concat();
    assert!(results.iter().all(|result| matches!(result, Err(ShardError::Moved { .. }))), "{results:?}");
}

/// I-7
pub(crate) async fn an_older_version_is_refused_with_the_version_needed(world: World) {
    let db = fenced(&world, 5, FenceMode::Open).await;
    let start = db.listen().await;
    for result in write_each_way(&db, &claim_bucket(4, 3)).await {
        assert_eq!(result, moved(4, 5));
    }
    for result in read_each_way(&db, &claim_bucket(4, 3)).await {
        assert_eq!(result, moved(4, 5));
    }
    assert_eq!(db.rows("users").await, vec![user_row(3, "a", 0)], "nothing happened");
    assert_eq!(db.log_after(start).await, vec![]);
    for version in [5, 6] {
        assert!(write_each_way(&db, &claim_bucket(version, 3)).await.iter().all(Result::is_ok));
    }
    assert_eq!(db.rows("users").await, vec![user_row(3, "a", 6)]);
}

/// I-7: one unit that is not served refuses the request, whatever the others are.
pub(crate) async fn all_units_of_a_claim_are_checked(world: World) {
    let db = fenced(&world, 2, FenceMode::Closed).await;
    let error = db.write(vec![insert_user(4, "b", 0)]).await.unwrap_err();
    assert!(matches!(error, ShardError::Moved { .. }), "{error:?}");
    let narrow = Request::write(claim_bucket(1, 4), vec![insert_user(4, "b", 0)]);
    db.execute(narrow).await.unwrap();
}

/// I-9: a transaction that finds one of its units elsewhere has no effect.
pub(crate) async fn a_refused_claim_ends_the_transaction(world: World) {
    let db = fenced(&world, 2, FenceMode::Closed).await;
    let mut open = db.begin(Begin::new(claim_bucket(1, 4), Access::Write)).await.unwrap();
    open.execute(&insert_user(4, "b", 0)).await.unwrap();
    let error = open.claim(claim_bucket(1, 3)).await.unwrap_err();
    assert_eq!(sqlstate(&error), "40001");
    assert!(open.commit().await.is_err());
    assert_eq!(db.rows("users").await, vec![user_row(3, "a", 0)]);
}

/// I-14: reads go on while a unit is cut over.
pub(crate) async fn a_read_only_fence_lets_reads_through(world: World) {
    let db = fenced(&world, 2, FenceMode::ReadOnly).await;
    assert!(read_each_way(&db, &claim_bucket(2, 3)).await.iter().all(Result::is_ok));
    for result in write_each_way(&db, &claim_bucket(2, 3)).await {
        assert_eq!(result, moved(2, 2));
    }
    assert_eq!(db.rows("users").await, vec![user_row(3, "a", 0)]);
}

/// I-7
pub(crate) async fn a_closed_fence_refuses_reads_and_writes_of_any_version(world: World) {
    let db = fenced(&world, 2, FenceMode::Closed).await;
    for version in [1, 2, 99] {
        let results =
            [write_each_way(&db, &claim_bucket(version, 3)).await, read_each_way(&db, &claim_bucket(version, 3)).await];
        for result in results.concat() {
            assert_eq!(result, moved(version, 2));
        }
    }
}

/// I-12: an aborted cutover opens the fence again at the version it has.
pub(crate) async fn a_fence_can_be_opened_again(world: World) {
    let db = fenced(&world, 2, FenceMode::ReadOnly).await;
    db.set_fences(vec![fence_buckets(3, 3, 2, FenceMode::Open)], FENCE_TIME).await.unwrap();
    assert!(write_each_way(&db, &claim_bucket(2, 3)).await.iter().all(Result::is_ok));
}

/// I-7
pub(crate) async fn a_pinned_tenant_goes_by_its_own_fence(world: World) {
    let db = world.shard().await;
    db.set_fences(vec![fence_tenant(tenant("acme"), 3, FenceMode::Closed)], FENCE_TIME).await.unwrap();
    let write = |name: Option<&'static str>| {
        let unit = name.and_then(tenant);
        let statement = insert_note(db.engine(), name, 1, "x");
        db.execute(Request::write(claim_tenant(1, unit), vec![statement]).acting_for(acts_for(name)))
    };
    let error = write(Some("acme")).await.unwrap_err();
    let unit = Unit::Tenant(tenant("acme"));
    assert_eq!(error, ShardError::Moved { unit, claimed: RoutingVersion(1), needed: RoutingVersion(3) });
    write(Some("beta")).await.unwrap();
    write(None).await.unwrap();
    let read = |units: Claim| db.execute(Request::read(units, count_of("SELECT count(*) AS n FROM plans").composed()));
    assert_eq!(read(claim_tenant(1, tenant("acme"))).await.unwrap_err(), error);
    read(claim_tenant(1, tenant("beta"))).await.unwrap();
    let as_tenant = |name: &'static str| {
        let text = format!("SELECT count(*) AS n FROM {} WHERE _tenant = $1", readable(db.engine(), "notes"));
        let read = select(&[INT8], &text, values![name]).composed();
        db.execute(Request::read(claim_tenant(1, tenant(name)), read).acting_for(acts_for(Some(name))))
    };
    assert_eq!(as_tenant("acme").await.unwrap_err(), error, "a read in a transaction of its own is refused alike");
    assert_eq!(as_tenant("beta").await.unwrap()[0].rows, [values![1]]);
    let both = |first: Claim, second: Claim| Claim { units: [first.units, second.units].concat(), ..first };
    read(both(claim_tenant(1, tenant("beta")), claim_tenant(1, None))).await.unwrap();
    let refused = read(both(claim_tenant(1, tenant("beta")), claim_tenant(1, tenant("acme")))).await;
    assert_eq!(refused.unwrap_err(), error);
    db.set_fences(vec![fence_tenant(None, 3, FenceMode::Closed)], FENCE_TIME).await.unwrap();
    assert!(matches!(write(None).await, Err(ShardError::Moved { .. })));
    assert_eq!(db.rows("notes").await.len(), 2);
}

/// I-8
pub(crate) async fn a_fences_version_never_falls(world: World) {
    let db = fenced(&world, 5, FenceMode::Closed).await;
    let before = db.fences().await.unwrap();
    let lower = vec![fence_buckets(6, 6, 9, FenceMode::Closed), fence_buckets(2, 4, 4, FenceMode::Open)];
    assert!(db.set_fences(lower, FENCE_TIME).await.is_err());
    assert_eq!(db.fences().await.unwrap(), before, "fences are set together or not at all");
    assert!(write_each_way(&db, &claim_bucket(9, 3)).await.iter().all(Result::is_err));
}

/// I-15
pub(crate) async fn a_transaction_open_at_the_fence_commits_before_it_or_fails(world: World) {
    let db = world.shard().await;
    let mut open = db.begin(Begin::new(claim_bucket(1, 3), Access::Write)).await.unwrap();
    open.execute(&insert_user(3, "a", 0)).await.unwrap();
    open.execute(&insert_user(11, "b", 0)).await.unwrap();
    let fence = db.clone();
    let mut fence =
        tokio::spawn(
            async move { fence.set_fences(vec![fence_buckets(3, 3, 2, FenceMode::Closed)], FENCE_TIME).await },
        );
    let early = tokio::time::timeout(A_MOMENT, &mut fence).await.is_ok();
    let committed = open.commit().await.is_ok();
    assert!(!(early && committed), "the fence was set while a transaction that it refuses ran on");
    if !early {
        fence.await.unwrap().unwrap();
    }
    assert_eq!(db.rows("users").await.len(), if committed { 2 } else { 0 });
}

/// I-15
pub(crate) async fn a_fence_that_cannot_be_set_in_time_changes_nothing(world: World) {
    let db = world.shard().await;
    let mut open = db.begin(Begin::new(claim_bucket(1, 3), Access::Write)).await.unwrap();
    open.execute(&insert_user(3, "a", 0)).await.unwrap();
    let before = db.fences().await.unwrap();
    let closed = vec![fence_buckets(3, 3, 2, FenceMode::Closed)];
    let result = db.set_fences(closed, A_MOMENT).await;
    assert_eq!(result, Err(ShardError::TimedOut));
    assert_eq!(db.fences().await.unwrap(), before);
    open.execute(&insert_user(11, "b", 0)).await.unwrap();
    open.commit().await.unwrap();
    db.put_user(19, "c", 0).await;
    assert_eq!(db.rows("users").await.len(), 3);
}

/// I-7: after a cutover a stale read could follow a write at the new owner.
pub(crate) async fn no_reader_outlives_a_closed_fence(world: World) {
    let db = world.shard().await;
    let count = count_of("SELECT count(*) FROM users");
    let mut open = db.begin(Begin::new(claim_bucket(1, 3), Access::Read)).await.unwrap();
    open.execute(&count).await.unwrap();
    let fence = db.clone();
    let mut fence =
        tokio::spawn(
            async move { fence.set_fences(vec![fence_buckets(3, 3, 2, FenceMode::Closed)], FENCE_TIME).await },
        );
    match tokio::time::timeout(A_MOMENT, &mut fence).await {
        Ok(set) => {
            set.unwrap().unwrap();
            assert!(open.execute(&count).await.is_err(), "a reader goes on behind a closed fence");
        }
        Err(_) => {
            open.rollback().await.unwrap();
            fence.await.unwrap().unwrap();
        }
    }
}

/// I-14: a long read does not hold up a cutover.
pub(crate) async fn a_read_only_fence_does_not_wait_for_readers(world: World) {
    let db = world.shard().await;
    let count = count_of("SELECT count(*) FROM users");
    let mut open = db.begin(Begin::new(claim_bucket(1, 3), Access::Read)).await.unwrap();
    open.execute(&count).await.unwrap();
    let fence = vec![fence_buckets(3, 3, 1, FenceMode::ReadOnly)];
    db.set_fences(fence, Duration::from_secs(5)).await.unwrap();
    open.execute(&count).await.unwrap();
}

/// I-7: what was acknowledged is there when the fence returns, and nothing comes after it.
pub(crate) async fn writers_that_race_with_a_fence_are_acknowledged_or_refused(world: World) {
    let db = world.shard().await;
    for round in 0..crate::random::rounds(3) as u64 {
        race(&db, 1 + 2 * round).await;
    }
}

async fn race(db: &Db, version: u64) {
    let before = db.rows("users").await.len();
    let ids = Arc::new(AtomicI64::new(version as i64 * 100_000));
    let closed = Arc::new(AtomicBool::new(false));
    let writer = |db: Db, ids: Arc<AtomicI64>, closed: Arc<AtomicBool>| async move {
        let mut acknowledged = 0;
        loop {
            let after = closed.load(Ordering::SeqCst);
            let id = ids.fetch_add(1, Ordering::Relaxed) * i64::from(BUCKETS) + 3;
            let request = Request::write(claim_bucket(version, 3), vec![insert_user(id, "x", 0)]);
            match db.execute(request).await {
                Ok(_) => {
                    assert!(!after, "a write was accepted behind the fence");
                    acknowledged += 1;
                }
                Err(ShardError::Moved { .. }) if after => return acknowledged,
                Err(ShardError::Moved { .. }) => tokio::task::yield_now().await,
                Err(other) => panic!("{other:?}"),
            }
        }
    };
    let writers: Vec<_> = (0..6).map(|_| tokio::spawn(writer(db.clone(), ids.clone(), closed.clone()))).collect();
    while ids.load(Ordering::Relaxed) < version as i64 * 100_000 + 60 {
        tokio::task::yield_now().await;
    }
    db.set_fences(vec![fence_buckets(3, 3, version + 1, FenceMode::Closed)], FENCE_TIME).await.unwrap();
    closed.store(true, Ordering::SeqCst);
    let at_the_fence = db.rows("users").await.len();
    let mut acknowledged = 0;
    for writer in writers {
        acknowledged += writer.await.unwrap();
    }
    assert!(acknowledged > 0, "no write came before the fence");
    assert_eq!(at_the_fence, before + acknowledged);
    assert_eq!(db.rows("users").await.len(), before + acknowledged);
    db.set_fences(vec![fence_buckets(3, 3, version + 2, FenceMode::Open)], FENCE_TIME).await.unwrap();
}

/// I-10: a cutover drains the log up to this position, so whatever is beyond it would be lost.
pub(crate) async fn the_position_behind_a_closed_fence_covers_every_acknowledged_write(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    for id in 0..5 {
        let mut gone = db.transaction(Access::Write).await;
        gone.execute(&insert_user(100 + id, "gone", 0)).await.unwrap();
        gone.rollback().await.unwrap();
        db.put_user(id, "kept", 0).await;
    }
    db.set_fences(vec![fence_buckets(0, BUCKETS - 1, 2, FenceMode::Closed)], FENCE_TIME).await.unwrap();
    let end = db.seq().await.unwrap();
    let changes = db.log_after(start).await;
    let covered: Vec<i64> =
        changes.iter().filter(|change| change.seq <= end).map(|change| int(&change.key[0])).collect();
    assert_eq!(covered, [0, 1, 2, 3, 4]);
}

/// I-7
pub(crate) async fn fences_survive_reopening(world: World) {
    let fixture = world.fixture().await;
    let db = Db::new(fixture.open(&Options::default()).await).set_up(vec![users()]).await;
    db.put_user(3, "a", 0).await;
    let fences = vec![fence_buckets(3, 3, 7, FenceMode::Closed), fence_tenant(None, 2, FenceMode::ReadOnly)];
    db.set_fences(fences, FENCE_TIME).await.unwrap();
    let before = db.fences().await.unwrap();
    assert_eq!(before.len(), 6, "{before:?}");
    let db = Db::new(fixture.reopen(db.into_shard()).await);
    assert_eq!(db.fences().await.unwrap(), before);
    for result in write_each_way(&db, &claim_bucket(9, 3)).await {
        assert_eq!(result, moved(9, 7));
    }
}
