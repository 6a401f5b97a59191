//! Leftovers: rows that a move has left are discarded, and rows that anyone can read are not.

use crate::copying::{batch, copies, version};
use crate::fixtures::World;
use crate::given::*;
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::{Claim, Claimed, Fence, FenceMode, FenceScope};
use isles_engine::shard::{
    Batch, DriverToken, ImportMode, Incoming, KeyRange, MAX_APPLY_ROWS, Request, Scope, Statement, StoredRow,
};
use isles_kernel::names::{BucketId, GroupName, RoutingVersion, SchemaVersion};
use isles_kernel::schema::{OnChange, SchemaChange, Table, TableKind, Unit, global_bucket};
use std::ops::RangeInclusive;

const DRIVER: DriverToken = DriverToken(3);

fn buckets(range: RangeInclusive<u32>) -> Vec<Claimed> {
    range.map(|bucket| Claimed::Bucket(users_group(), BucketId(bucket))).collect()
}

fn of_tenant(name: Option<&str>) -> Claimed {
    Claimed::Tenant(name.and_then(tenant), GroupName::new("tenants").expect("valid"), BucketId(0))
}

fn users_in(range: RangeInclusive<u32>) -> KeyRange {
    KeyRange::table("users").within(Scope::Buckets(users_group(), vec![range]))
}

fn notes_of(names: &[Option<&str>]) -> KeyRange {
    KeyRange::table("notes").within(Scope::Tenants(names.iter().map(|name| name.and_then(tenant)).collect()))
}

async fn discard(db: &Db, unserved: Vec<Claimed>, range: &KeyRange, rows: usize) -> Result<u64> {
    db.discard(&stream("move"), DRIVER, unserved, range, rows).await
}

/// A shard with 40 users, five in each bucket, of which buckets from 4 on have moved away.
async fn left_behind(world: &World) -> Db {
    let db = world.shard().await;
    for id in 0..40 {
        db.put_user(id, "x", id).await;
    }
    db.set_fences(vec![fence_buckets(4, 7, 2, FenceMode::Closed)], FENCE_TIME).await.unwrap();
    db.open_stream(&stream("move"), DRIVER).await.unwrap();
    db
}

async fn ids(db: &Db, table: &str) -> Vec<i64> {
    db.rows(table).await.iter().map(|row| int(&row.values[0])).collect()
}

/// I-12: some at a time, those of the buckets and no others, and nobody hears of it.
pub(crate) async fn rows_of_buckets_are_discarded_in_pages(world: World) {
    let db = left_behind(&world).await;
    let start = db.listen().await;
    let mut gone = Vec::new();
    for _ in 0..4 {
        gone.push(discard(&db, buckets(5..=6), &users_in(5..=6), 4).await.unwrap());
    }
    assert_eq!(gone, [4, 4, 2, 0]);
    assert_eq!(ids(&db, "users").await, (0..40).filter(|id| ![5, 6].contains(&(id % 8))).collect::<Vec<_>>());
    assert_eq!(db.log_after(start).await, vec![], "it is not captured");
    // A range within them, as parallel work would have it.
    let part = KeyRange { after: Some(values![4]), through: Some(values![20]), ..users_in(4..=4) };
    let whole = vec![Claimed::Buckets(users_group(), BucketId(4), BucketId(7))];
    assert_eq!(discard(&db, whole, &part, 10).await, Ok(2));
    assert_eq!(ids(&db, "users").await.iter().filter(|id| *id % 8 == 4).collect::<Vec<_>>(), [&4, &28, &36]);
}

/// I-12: a tenant that is pinned elsewhere, and the null tenant.
pub(crate) async fn rows_of_tenants_are_discarded(world: World) {
    let db = world.shard().await;
    for id in 0..3 {
        for name in [None, Some("acme"), Some("beta")] {
            db.put_note(name, id, "x").await;
        }
    }
    db.open_stream(&stream("move"), DRIVER).await.unwrap();
    let range = notes_of(&[None, Some("acme")]);
    let unserved = || vec![of_tenant(None), of_tenant(Some("acme"))];
    let served = discard(&db, unserved(), &range, 10).await.unwrap_err();
    assert!(matches!(&served, ShardError::Invalid(why) if why.contains("is served here")), "{served:?}");
    let closed = ["acme"].map(|name| fence_tenant(tenant(name), 2, FenceMode::Closed)).to_vec();
    db.set_fences(closed, FENCE_TIME).await.unwrap();
    assert!(discard(&db, unserved(), &range, 10).await.is_err(), "the null tenant goes by its bucket");
    db.set_fences(vec![fence_tenant(None, 2, FenceMode::Closed)], FENCE_TIME).await.unwrap();
    assert_eq!(discard(&db, unserved(), &range, 4).await, Ok(4));
    assert_eq!(discard(&db, unserved(), &range, 4).await, Ok(2));
    assert_eq!(discard(&db, unserved(), &range, 4).await, Ok(0));
    let left: Vec<Unit> = db.rows("notes").await.into_iter().map(|row| row.unit).collect();
    assert_eq!(left, vec![Unit::Tenant(tenant("beta")); 3]);
}

/// I-7, I-12: rows of global tables are under the fence of their one bucket, wherever they are read, logged or applied,
/// and rows of reference tables are not.
pub(crate) async fn rows_of_global_tables_are_of_one_bucket(world: World) {
    let keys = Table { name: "keys".into(), kind: TableKind::Global, ..plans() };
    let db = world.shard_with(vec![keys, plans()]).await;
    let (group, bucket) = global_bucket();
    let fence = |version, mode| {
        let scope = FenceScope::Buckets { group: global_bucket().0, first: BucketId(0), last: BucketId(0) };
        vec![Fence { scope, version: RoutingVersion(version), mode }]
    };
    let claim = || Claim::new(RoutingVersion(1), vec![Claimed::Bucket(global_bucket().0, BucketId(0))]);
    let write = async |claim: Claim, table: &str, id: i64| {
        let insert = Statement::new(format!("INSERT INTO {table} VALUES ($1, $2)"), values![id, "x"]).writing();
        db.execute(Request::write(claim, vec![insert])).await.map(drop)
    };
    let refused = write(claim(), "keys", 1).await.unwrap_err();
    assert!(matches!(&refused, ShardError::Moved { unit, .. } if *unit == Unit::global()), "{refused:?}");
    db.set_fences(fence(1, FenceMode::Open), FENCE_TIME).await.unwrap();
    let start = db.listen().await;
    write(claim(), "keys", 1).await.unwrap();
    write(claim_at(1), "plans", 1).await.unwrap();
    let logged: Vec<(String, Unit)> = db.log_after(start).await.into_iter().map(|c| (c.table, c.unit)).collect();
    assert_eq!(logged, [("keys".to_string(), Unit::global()), ("plans".to_string(), Unit::Shared)]);
    db.open_stream(&stream("move"), DRIVER).await.unwrap();
    let incoming =
        |id: i64, unit: Unit, row| Incoming { table: "keys".into(), unit, key: values![id], version: version(1), row };
    let row = |id: i64| Some(values![id, "y"]);
    let changed = vec![incoming(2, Unit::global(), row(2)), incoming(1, Unit::global(), None)];
    db.apply(Batch { driver: Some(DRIVER), ..batch(&stream("move"), changed) }).await.unwrap();
    db.apply(copies(&stream("copy"), vec![incoming(3, Unit::global(), row(3))])).await.unwrap();
    let other = db.apply(batch(&stream("copy"), vec![incoming(4, Unit::Shared, row(4))])).await.unwrap_err();
    assert!(is_refusal(&other), "{other:?}");
    assert_eq!(ids(&db, "keys").await, [2, 3]);
    let within = |table: &str, group: &GroupName| KeyRange::table(table).within(Scope::bucket(group.clone(), bucket));
    let mut snapshot = db.snapshot().await.unwrap();
    for (range, found) in
        [(within("keys", &group), 2), (within("keys", &users_group()), 0), (within("plans", &group), 0)]
    {
        assert_eq!(snapshot.page(&range, 10).await.unwrap().rows.len(), found, "{range:?}");
    }
    drop(snapshot);
    let unserved = || vec![Claimed::Bucket(group.clone(), bucket)];
    assert!(discard(&db, unserved(), &within("keys", &group), 10).await.is_err(), "they are served");
    db.set_fences(fence(2, FenceMode::Closed), FENCE_TIME).await.unwrap();
    assert!(matches!(write(claim(), "keys", 9).await, Err(ShardError::Moved { .. })));
    write(claim_at(1), "plans", 2).await.expect("reference tables are served as before");
    assert_eq!(discard(&db, unserved(), &within("keys", &group), 10).await, Ok(2));
    assert_eq!((ids(&db, "keys").await.len(), ids(&db, "plans").await.len()), (0, 2));
}

/// I-12: what anyone can read, at whatever version, stays.
pub(crate) async fn what_is_served_is_not_discarded(world: World) {
    let db = left_behind(&world).await;
    let all = db.rows("users").await;
    let refused = async |unserved: Vec<Claimed>, range: &KeyRange, why: &str| {
        let error = discard(&db, unserved, range, 10).await.unwrap_err();
        assert!(matches!(&error, ShardError::Invalid(said) if said.contains(why)), "{error:?}");
        assert_eq!(db.rows("users").await, all);
    };
    refused(buckets(3..=3), &users_in(3..=3), "is served here").await;
    refused(buckets(3..=5), &users_in(4..=5), "is served here").await;
    let run = vec![Claimed::Buckets(users_group(), BucketId(3), BucketId(6))];
    refused(run, &users_in(4..=6), "is served here").await;
    refused(buckets(4..=5), &users_in(4..=6), "not said to be unserved").await;
    refused(vec![of_tenant(Some("acme"))], &users_in(4..=4), "not said to be unserved").await;
    refused(buckets(4..=7), &KeyRange::table("users"), "by bucket or by tenant").await;
    db.set_fences(vec![fence_buckets(4, 4, 9, FenceMode::ReadOnly)], FENCE_TIME).await.unwrap();
    refused(buckets(4..=4), &users_in(4..=4), "is served here").await;
    for rows in [0, MAX_APPLY_ROWS + 1] {
        assert!(is_refusal(&discard(&db, buckets(5..=5), &users_in(5..=5), rows).await.unwrap_err()), "{rows}");
    }
    let nowhere = KeyRange { table: "nowhere".into(), ..users_in(5..=5) };
    assert!(is_refusal(&discard(&db, buckets(5..=5), &nowhere, 10).await.unwrap_err()));
    // A table of another kind has no rows of a bucket.
    let plans = KeyRange { table: "plans".into(), ..users_in(5..=5) };
    let plan = StoredRow { unit: Unit::Shared, values: values![1, "x"] };
    db.import("plans", vec![plan], ImportMode::Insert).await.unwrap();
    assert_eq!(discard(&db, buckets(5..=5), &plans, 10).await, Ok(0));
    assert_eq!(db.rows("plans").await.len(), 1);
    // And what was never served can be discarded: nobody reads what no fence speaks of.
    let new = world.empty().await;
    new.apply_schema(SchemaVersion(0), vec![SchemaChange::CreateTable(users())]).await.unwrap();
    new.open_stream(&stream("move"), DRIVER).await.unwrap();
    new.apply(copies(&stream("move"), vec![put(4)])).await.unwrap();
    assert_eq!(discard(&new, buckets(4..=4), &users_in(4..=4), 10).await, Ok(1));
}

fn put(id: i64) -> Incoming {
    let row = Some(values![id, "applied", 0]);
    Incoming { table: "users".into(), unit: bucket(id), key: values![id], version: version(5), row }
}

/// I-13: only the stream's driver.
pub(crate) async fn an_earlier_driver_discards_nothing(world: World) {
    let db = left_behind(&world).await;
    let all = db.rows("users").await;
    let by = async |name: &str, token| {
        db.discard(&stream(name), DriverToken(token), buckets(5..=5), &users_in(5..=5), 10).await
    };
    assert_eq!(by("unknown", 3).await, Err(ShardError::Superseded));
    assert_eq!(by("move", 2).await, Err(ShardError::Superseded));
    assert_eq!(by("move", 4).await, Err(ShardError::Superseded));
    assert_eq!(db.rows("users").await, all);
    // Also if there is nothing left to discard.
    assert_eq!(by("move", 3).await, Ok(5));
    assert_eq!(by("move", 2).await, Err(ShardError::Superseded));
    assert_eq!(by("move", 3).await, Ok(0));
}

/// What a move has left refers to nothing, and nothing that is left refers to it.
pub(crate) async fn discarding_sets_off_no_cascade_and_no_trigger(world: World) {
    let [mut parents, mut children] = <[Table; 2]>::try_from(family(OnChange::Cascade)).expect("two tables");
    for table in [&mut parents, &mut children] {
        table.kind = TableKind::Tenant;
    }
    let db = world.shard_with(vec![parents, children, users()]).await;
    db.alter(crate::changelog::audit_trigger()).await;
    let row = |values| StoredRow { unit: Unit::Tenant(tenant("acme")), values };
    let mode = ImportMode::Insert;
    db.import("parents", vec![row(values![1])], mode).await.unwrap();
    db.import("children", vec![row(values![10, 1])], mode).await.unwrap();
    db.put_user(4, "x", 0).await;
    let closed = vec![fence_tenant(tenant("acme"), 2, FenceMode::Closed), fence_buckets(4, 4, 2, FenceMode::Closed)];
    db.set_fences(closed, FENCE_TIME).await.unwrap();
    db.open_stream(&stream("move"), DRIVER).await.unwrap();
    let audited = db.rows("audit").await;
    let acme = KeyRange { table: "parents".into(), ..notes_of(&[Some("acme")]) };
    assert_eq!(discard(&db, vec![of_tenant(Some("acme"))], &acme, 10).await, Ok(1));
    assert_eq!((db.rows("parents").await.len(), db.rows("children").await.len()), (0, 1));
    assert_eq!(discard(&db, buckets(4..=4), &users_in(4..=4), 10).await, Ok(1));
    assert_eq!(db.rows("audit").await, audited);
}

/// I-12: a unit that is opened again while it is discarded loses nothing after that.
pub(crate) async fn a_fence_that_opens_ends_the_discarding(world: World) {
    let db = world.shard().await;
    db.open_stream(&stream("move"), DRIVER).await.unwrap();
    for round in 0..10u64 {
        let close = fence_buckets(4, 4, 2 + round * 2, FenceMode::Closed);
        db.set_fences(vec![close], FENCE_TIME).await.unwrap();
        let rows = (0..200).map(|n| put(n * 8 + 4)).collect();
        db.apply(copies(&stream("move"), rows)).await.unwrap();
        let discarding = tokio::spawn({
            let db = db.clone();
            async move {
                loop {
                    match discard(&db, buckets(4..=4), &users_in(4..=4), 7).await {
                        Ok(0) => return None,
                        Ok(_) | Err(ShardError::Conflict(_)) => {}
                        Err(other) => return Some(other),
                    }
                }
            }
        });
        while db.rows("users").await.len() > 190 {}
        let open = fence_buckets(4, 4, 3 + round * 2, FenceMode::Open);
        db.set_fences(vec![open], FENCE_TIME).await.unwrap();
        let served = db.rows("users").await;
        let ended = discarding.await.unwrap();
        assert!(ended.is_none() || matches!(&ended, Some(ShardError::Invalid(_))), "{ended:?}");
        assert_eq!(db.rows("users").await, served);
        let delete = Statement::new("DELETE FROM users", vec![]);
        db.execute(Request::write(claim_at(1_000), vec![delete])).await.unwrap();
    }
}

/// I-11: what is known of a row outlives it, until the stream is forgotten.
pub(crate) async fn what_is_discarded_is_not_copied_again(world: World) {
    let db = left_behind(&world).await;
    db.apply(batch(&stream("move"), vec![put(44)])).await.unwrap();
    while discard(&db, buckets(4..=4), &users_in(4..=4), 10).await.unwrap() > 0 {}
    assert_eq!(db.apply(copies(&stream("move"), vec![put(44)])).await.unwrap().stale, 1);
    db.forget_stream(&stream("move"), Some(DRIVER)).await.unwrap();
    assert_eq!(db.apply(copies(&stream("again"), vec![put(44)])).await.unwrap().written, 1);
}
