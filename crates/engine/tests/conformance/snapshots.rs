//! Snapshots: the state at a known position, every row once, and a copy that the log completes.

use crate::copying::{self, batch, check_equal, copied, copy, scrambled, tailed};
use crate::fixtures::World;
use crate::given::*;
use crate::random;
use crate::seen::{self, Model};
use crate::workload;
use isles_engine::shard::{KeyRange, MAX_PAGE_ROWS, Scope, Statement, StoredRow};
use isles_kernel::names::BucketId;
use isles_kernel::schema::{Key, Table, TableKind, Unit};
use isles_kernel::value::{DataType, Value};
use isles_sim::rng::Rng;

/// Pages through `rows` of a table in pages of random sizes; they must come once each, in this order.
async fn check_paging(db: &Db, rng: &mut Rng, table: &Table, rows: &[Vec<Value>]) {
    let mut shuffled = rows.to_vec();
    rng.shuffle(&mut shuffled);
    let stored = shuffled.into_iter().map(|values| StoredRow { unit: Unit::Shared, values }).collect();
    db.import(&table.name, stored, isles_engine::shard::ImportMode::Insert).await.unwrap();
    let mut snapshot = db.snapshot().await.unwrap();
    for most in [2, 4, rows.len() as u64 + 2] {
        let mut size = || rng.range(1..most) as usize;
        let seen = seen::all_rows(&mut *snapshot, &KeyRange::table(&table.name), &mut size).await;
        let seen: Vec<Vec<Value>> = seen.into_iter().map(|row| row.values).collect();
        assert_eq!(seen, rows, "{}", table.name);
    }
}

/// I-10: each key is compared by the engine that sorted it.
pub(crate) async fn pages_by_a_key_of_any_type_have_each_row_once(world: World) {
    let mut rng = Rng::new(4);
    let types: Vec<DataType> = random::ordered().collect();
    let name = |ty: DataType| format!("by_{}", ty.postgres_name().replace(' ', "_"));
    let keyed = |ty: &DataType| table(&name(*ty), TableKind::Reference, &[("n", INT8), ("k", *ty)], &["k"]);
    let tables: Vec<Table> = types.iter().map(keyed).collect();
    let db = world.shard_with(tables.clone()).await;
    for (ty, table) in types.into_iter().zip(tables) {
        let keys = random::keys(&mut rng, ty, 30);
        let rows: Vec<Vec<Value>> = (0i64..).zip(keys).map(|(n, key)| values![n, key]).collect();
        check_paging(&db, &mut rng, &table, &rows).await;
    }
}

/// I-10
pub(crate) async fn pages_by_a_composite_key_have_each_row_once(world: World) {
    let columns = [("n", INT8), ("b", DataType::Numeric), ("a", TEXT), ("c", DataType::Bytes)];
    let odd = table("odd", TableKind::Reference, &columns, &["a", "b", "c"]);
    let db = world.shard_with(vec![odd.clone()]).await;
    let mut rng = Rng::new(5);
    let mut rows = Vec::new();
    for a in ["", "A", "a", "é", "👩"] {
        for b in ["-10", "-9.5", "2", "10.50"] {
            for c in [vec![], vec![0], vec![0, 0], vec![0xff]] {
                rows.push(values![rows.len() as i64, numeric(b), a, Value::Bytes(c)]);
            }
        }
    }
    check_paging(&db, &mut rng, &odd, &rows).await;
}

/// A shard with notes of the null tenant and two named ones, some with equal ids.
async fn with_notes(world: &World) -> Db {
    let db = world.shard().await;
    for id in 1..=4 {
        db.put_note(None, id, "nobody's").await;
        db.put_note(Some("acme"), id, "acme's").await;
        db.put_note(Some("beta"), id + 2, "beta's").await;
    }
    db
}

async fn in_scope(db: &Db, table: &str, scope: Scope) -> Vec<StoredRow> {
    let mut snapshot = db.snapshot().await.unwrap();
    let range = KeyRange::table(table).within(scope);
    let rows = seen::all_rows(&mut *snapshot, &range, &mut || 3).await;
    assert_eq!(snapshot.digest(&range).await.unwrap().rows, rows.len() as u64);
    rows
}

/// I-10: the null tenant is a tenant, and leads.
pub(crate) async fn pages_of_tenants_have_their_rows_and_no_others(world: World) {
    let db = with_notes(&world).await;
    let ids = |rows: Vec<StoredRow>| rows.into_iter().map(|row| (row.unit, int(&row.values[0]))).collect::<Vec<_>>();
    let of = |name: Option<&str>, ids: std::ops::RangeInclusive<i64>| {
        let unit = Unit::Tenant(name.and_then(tenant));
        ids.map(move |id| (unit.clone(), id))
    };
    let nobody = || of(None, 1..=4);
    let acme = || of(Some("acme"), 1..=4);
    let beta = || of(Some("beta"), 3..=6);
    let all = in_scope(&db, "notes", Scope::All).await;
    assert_eq!(ids(all), nobody().chain(acme()).chain(beta()).collect::<Vec<_>>());
    let one = in_scope(&db, "notes", Scope::Tenants(vec![tenant("acme")])).await;
    assert_eq!(ids(one), acme().collect::<Vec<_>>());
    let null = in_scope(&db, "notes", Scope::Tenants(vec![None])).await;
    assert_eq!(ids(null), nobody().collect::<Vec<_>>());
    let two = in_scope(&db, "notes", Scope::Tenants(vec![tenant("beta"), None])).await;
    assert_eq!(ids(two), nobody().chain(beta()).collect::<Vec<_>>());
    assert_eq!(in_scope(&db, "notes", Scope::Tenants(vec![tenant("nobody")])).await, vec![]);
    assert_eq!(in_scope(&db, "notes", Scope::Tenants(vec![])).await, vec![]);
}

/// I-10
pub(crate) async fn pages_of_buckets_have_their_rows_and_no_others(world: World) {
    let db = world.shard().await;
    for id in 0..40 {
        db.put_user(id, "x", id).await;
    }
    let buckets = |ranges| Scope::Buckets(users_group(), ranges);
    let rows = in_scope(&db, "users", buckets(vec![0..=1, 5..=5])).await;
    let expected = (0..40).filter(|id| [0, 1, 5].contains(&(id % 8))).map(|id| user_row(id, "x", id));
    assert_eq!(rows, expected.collect::<Vec<_>>());
    assert_eq!(in_scope(&db, "users", Scope::bucket(users_group(), BucketId(7))).await.len(), 5);
    assert_eq!(in_scope(&db, "users", buckets(vec![])).await, vec![]);
    assert_eq!(in_scope(&db, "users", Scope::All).await.len(), 40);
}

/// Parallel copies of one table divide it by key.
pub(crate) async fn a_range_ends_with_its_bound(world: World) {
    let db = world.shard().await;
    for id in 0..20 {
        db.put_user(id, "x", 0).await;
    }
    let mut snapshot = db.snapshot().await.unwrap();
    let range = |after: Option<i64>, through: Option<i64>| KeyRange {
        after: after.map(|id| values![id]),
        through: through.map(|id| values![id]),
        ..KeyRange::table("users")
    };
    for (after, through, ids) in [
        (None, Some(4), 0..5),
        (Some(4), Some(15), 5..16),
        (Some(15), None, 16..20),
        (Some(4), Some(4), 0..0),
        (Some(100), None, 0..0),
    ] {
        let rows = seen::all_rows(&mut *snapshot, &range(after, through), &mut || 3).await;
        let seen: Vec<i64> = rows.iter().map(|row| int(&row.values[0])).collect();
        assert_eq!(seen, ids.collect::<Vec<_>>(), "after {after:?} through {through:?}");
    }
}

pub(crate) async fn a_page_out_of_bounds_is_refused(world: World) {
    let db = world.shard().await;
    let mut snapshot = db.snapshot().await.unwrap();
    for rows in [0, MAX_PAGE_ROWS + 1] {
        let error = snapshot.page(&KeyRange::table("users"), rows).await.unwrap_err();
        assert!(is_refusal(&error), "{rows}: {error:?}");
    }
    let error = snapshot.page(&KeyRange::table("nowhere"), 1).await.unwrap_err();
    assert!(is_refusal(&error), "{error:?}");
    let crooked = KeyRange { after: Some(values![1, 2, 3]), ..KeyRange::table("users") };
    let error = snapshot.page(&crooked, 1).await.unwrap_err();
    assert!(is_refusal(&error), "{error:?}");
    snapshot.page(&KeyRange::table("users"), MAX_PAGE_ROWS).await.unwrap();
}

/// I-10: pages read at different times are of one state.
pub(crate) async fn a_snapshot_is_stable_while_writers_go_on(world: World) {
    let db = world.shard().await;
    for id in 0..24 {
        db.put_user(id, "old", 0).await;
    }
    let mut snapshot = db.snapshot().await.unwrap();
    let digest = snapshot.digest(&KeyRange::table("users")).await.unwrap();
    workload::run(&db, Rng::new(6), 3, 20).await;
    let rows = seen::all_rows(&mut *snapshot, &KeyRange::table("users"), &mut || 5).await;
    assert_eq!(rows, (0..24).map(|id| user_row(id, "old", 0)).collect::<Vec<_>>());
    assert_eq!(snapshot.digest(&KeyRange::table("users")).await.unwrap(), digest);
    drop(snapshot);
    assert_ne!(db.rows("users").await, rows);
}

pub(crate) async fn a_snapshot_knows_its_schema(world: World) {
    let db = world.shard().await;
    let snapshot = db.snapshot().await.unwrap();
    assert_eq!(*snapshot.schema(), *db.schema().await.unwrap());
}

/// I-10: rows at the snapshot and changes after its position are the present, with writers at the boundary.
pub(crate) async fn a_snapshot_and_the_changes_after_it_are_the_present(world: World) {
    let db = world.shard().await;
    db.listen().await;
    for seed in 0..random::rounds(3) as u64 {
        let writers = tokio::spawn({
            let db = db.clone();
            async move { workload::run(&db, Rng::new(100 + seed), 3, 25).await }
        });
        let before = db.seq().await.unwrap();
        while db.seq().await.unwrap() == before {}
        let mut snapshot = db.snapshot().await.unwrap();
        let rows = seen::all_rows(&mut *snapshot, &KeyRange::table("users"), &mut || 7).await;
        let mut model = Model::of(&users(), rows);
        writers.await.unwrap();
        for change in db.log_after(snapshot.seq()).await {
            model.overwrite(&change);
        }
        model.check(&users(), db.rows("users").await);
    }
}

/// I-10, I-11: copied while writers go on, then tailed in any order with repetitions.
pub(crate) async fn a_copy_and_its_tail_in_any_order_end_equal(world: World) {
    for seed in 0..random::rounds(2) as u64 {
        let (source, target) = (world.shard().await, world.shard().await);
        copy_and_tail(&source, &target, seed).await;
    }
}

pub(crate) async fn copy_and_tail(source: &Db, target: &Db, seed: u64) {
    let mut rng = Rng::new(seed);
    workload::run(source, rng.fork("before"), 2, 20).await;
    source.listen().await;
    let mut snapshot = source.snapshot().await.unwrap();
    let start = snapshot.seq();
    let writers = tokio::spawn({
        let (db, rng) = (source.clone(), rng.fork("during"));
        async move { workload::run(&db, rng, 3, 30).await }
    });
    let moving = stream("move");
    // The tail runs ahead of the copy for some keys and behind it for others.
    for round in 0..3 {
        for rows in scrambled(&mut rng, source.log_after(start).await.iter().map(tailed).collect()) {
            target.apply(batch(&moving, rows)).await.unwrap();
        }
        if round == 1 {
            copy(&mut *snapshot, &users(), target, &moving, &mut rng).await;
        }
    }
    writers.await.unwrap();
    let tail = source.log_after(start).await;
    assert!(tail.len() > 30, "only {} changes were tailed", tail.len());
    for rows in scrambled(&mut rng, tail.iter().map(tailed).collect()) {
        target.apply(batch(&moving, rows)).await.unwrap();
    }
    check_equal(source, target, "users").await;
}

/// A source with users 1 to 3 and a target; the snapshot is taken, then `writes` happen.
struct Moving {
    source: Db,
    target: Db,
    copied: Vec<isles_engine::shard::Incoming>,
    tail: Vec<isles_engine::shard::Incoming>,
}

async fn moving(world: &World, writes: Vec<Statement>) -> Moving {
    let (source, target) = (world.shard().await, world.shard().await);
    for id in 1..=3 {
        source.put_user(id, "old", 0).await;
    }
    source.listen().await;
    let mut snapshot = source.snapshot().await.unwrap();
    let rows = seen::all_rows(&mut *snapshot, &KeyRange::table("users"), &mut || 10).await;
    assert_eq!(rows.len(), 3);
    let seq = snapshot.seq();
    for statement in writes {
        source.write(vec![statement]).await.unwrap();
    }
    let tail: Vec<_> = source.log_after(seq).await.iter().map(tailed).collect();
    assert!(!tail.is_empty());
    let copied = rows.into_iter().map(|row| copied(&users(), row, seq)).collect();
    Moving { source, target, copied, tail }
}

/// The copy and the tail, in both orders and twice, end in the source's rows.
async fn check_moving(world: &World, writes: Vec<Statement>) {
    let moving = moving(world, writes).await;
    let name = stream("move");
    let (copied, tail) = (&moving.copied, &moving.tail);
    for rows in [tail, copied, tail, copied] {
        moving.target.apply(batch(&name, rows.clone())).await.unwrap();
        if std::ptr::eq(rows, copied) {
            check_equal(&moving.source, &moving.target, "users").await;
        }
    }
    let fresh = world.shard().await;
    for rows in [copied, tail] {
        fresh.apply(batch(&name, rows.clone())).await.unwrap();
    }
    check_equal(&moving.source, &fresh, "users").await;
}

fn statement(sql: &str) -> Statement {
    Statement::new(sql, vec![])
}

/// I-11: the copy has it, the tail has it, and it is there once.
pub(crate) async fn an_insert_during_the_copy_is_applied_once(world: World) {
    check_moving(&world, vec![insert_user(4, "new", 0)]).await;
}

/// I-10: an increment that is replayed is not added again.
pub(crate) async fn an_increment_during_the_copy_is_applied_once(world: World) {
    let bump = statement("UPDATE users SET n = n + 1 WHERE id = 1");
    check_moving(&world, vec![bump.clone(), bump]).await;
}

/// I-11: a row deleted after it was read must not come back with its page.
pub(crate) async fn a_row_deleted_during_the_copy_stays_deleted(world: World) {
    check_moving(&world, vec![statement("DELETE FROM users WHERE id = 2")]).await;
}

pub(crate) async fn a_row_deleted_and_inserted_again_during_the_copy_is_the_new_one(world: World) {
    check_moving(&world, vec![statement("DELETE FROM users WHERE id = 2"), insert_user(2, "reborn", 9)]).await;
}

/// I-11: a row whose key changed must not leave a ghost under its old one.
pub(crate) async fn a_row_that_changes_its_key_during_the_copy_leaves_no_ghost(world: World) {
    let rename =
        |from: i64, to: i64| statement(&format!("UPDATE users SET id = {to}, _bucket = {} WHERE id = {from}", to % 8));
    check_moving(&world, vec![rename(1, 0), rename(3, 30), rename(30, 1)]).await;
}

/// I-10: insert, delete and insert of one key in one batch.
pub(crate) async fn mixed_changes_of_one_key_in_one_batch_keep_their_order(world: World) {
    let delete = statement("DELETE FROM users WHERE id = 7");
    let writes = vec![insert_user(7, "a", 1), delete.clone(), insert_user(7, "b", 2), delete, insert_user(7, "c", 3)];
    check_moving(&world, writes).await;
}

/// I-10: a copy that is run again under another stream begins anew and ends equal.
pub(crate) async fn a_copy_that_is_run_again_copies_what_changed_since(world: World) {
    let (source, target) = (world.shard().await, world.shard().await);
    source.put_user(1, "old", 0).await;
    source.listen().await;
    let mut rng = Rng::new(7);
    copy(&mut *source.snapshot().await.unwrap(), &users(), &target, &stream("run-1"), &mut rng).await;
    target.forget_stream(&stream("run-1"), None).await.unwrap();
    source.must("UPDATE users SET n = 999 WHERE id = 1", vec![]).await;
    copy(&mut *source.snapshot().await.unwrap(), &users(), &target, &stream("run-2"), &mut rng).await;
    check_equal(&source, &target, "users").await;
}

/// Values handed from row to row under a unique key: the log's order is the only one without a conflict.
pub(crate) async fn a_unique_value_handed_over_is_tailed_in_order(world: World) {
    let mut plans = plans();
    plans.keys = vec![Key::unique("plans_name", &["name"])];
    let (source, target) = (world.shard_with(vec![plans.clone()]).await, world.shard_with(vec![plans.clone()]).await);
    source.must("INSERT INTO plans (id, name) VALUES (1, 'a'), (2, 'b')", vec![]).await;
    let start = source.listen().await;
    let name = stream("move");
    copy(&mut *source.snapshot().await.unwrap(), &plans, &target, &name, &mut Rng::new(8)).await;
    for sql in [
        "UPDATE plans SET name = 'c' WHERE id = 1",
        "UPDATE plans SET name = 'a' WHERE id = 2",
        "UPDATE plans SET name = 'b' WHERE id = 1",
        "DELETE FROM plans WHERE id = 1",
        "INSERT INTO plans (id, name) VALUES (3, 'b')",
    ] {
        source.must(sql, vec![]).await;
    }
    let tail = source.log_after(start).await.iter().map(tailed).collect();
    target.apply(batch(&name, tail)).await.unwrap();
    check_equal(&source, &target, "plans").await;
    assert_eq!(copying::digest(&target, "plans").await.rows, 2);
}
