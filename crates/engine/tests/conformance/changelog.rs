//! The change log: exactly the committed changes, each with its row before and after.

use crate::fixtures::{LogSize, Options, World};
use crate::given::*;
use crate::random;
use crate::seen::{self, Model, check_log, check_log_unordered};
use crate::workload;
use isles_engine::error::ShardError;
use isles_engine::fence::Access;
use isles_engine::shard::Statement;
use isles_kernel::change::Op;
use isles_kernel::names::SchemaVersion;
use isles_kernel::schema::{Column, Object, ObjectKind, OnChange, SchemaChange, TableKind};
use isles_kernel::value::{DataType, Value};
use isles_sim::rng::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// I-29
pub(crate) async fn each_change_has_its_row_before_and_after(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    db.put_user(11, "a", 0).await;
    db.must("UPDATE users SET email = 'b', n = n + 1 WHERE id = 11", vec![]).await;
    db.must("DELETE FROM users WHERE id = 11", vec![]).await;
    db.put_note(Some("acme"), 1, "x").await;
    db.put_note(None, 1, "y").await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'free')", vec![]).await;
    let expected = [
        "users 3 + (11 'a' 0)",
        "users 3 ~ (11 'a' 0) > (11 'b' 1)",
        "users 3 - (11 'b' 1)",
        "notes @acme + (1 'x')",
        "notes @ + (1 'y')",
        "plans * + (1 'free')",
    ];
    check_log(&db, start, &expected).await;
}

/// I-29
pub(crate) async fn a_statement_of_many_rows_logs_each(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'a'), (2, 'b'), (3, 'c')", vec![]).await;
    let middle = db.seq().await.unwrap();
    check_log(&db, start, &["plans * + (1 'a')", "plans * + (2 'b')", "plans * + (3 'c')"]).await;
    db.must("UPDATE plans SET name = 'z' WHERE id > 1", vec![]).await;
    db.must("DELETE FROM plans WHERE id < 3", vec![]).await;
    let expected =
        ["plans * ~ (2 'b') > (2 'z')", "plans * ~ (3 'c') > (3 'z')", "plans * - (1 'a')", "plans * - (2 'z')"];
    check_log_unordered(&db, middle, &expected).await;
}

/// I-29
pub(crate) async fn an_upsert_is_an_insert_or_an_update(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    let upsert = "INSERT INTO plans (id, name) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET name = excluded.name";
    db.must(upsert, values![1, "a"]).await;
    db.must(upsert, values![1, "b"]).await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'c') ON CONFLICT (id) DO NOTHING", vec![]).await;
    check_log(&db, start, &["plans * + (1 'a')", "plans * ~ (1 'a') > (1 'b')"]).await;
}

/// I-29
pub(crate) async fn a_cascade_is_logged(world: World) {
    let db = world.shard_with(family(OnChange::Cascade)).await;
    db.must("INSERT INTO parents (id) VALUES (1), (2)", vec![]).await;
    db.must("INSERT INTO children (id, parent) VALUES (10, 1), (11, 1), (12, 2)", vec![]).await;
    let start = db.listen().await;
    assert_eq!(db.must("DELETE FROM parents WHERE id = 1", vec![]).await, 1);
    check_log_unordered(&db, start, &["parents * - (1)", "children * - (10 1)", "children * - (11 1)"]).await;
}

/// I-29
pub(crate) async fn a_foreign_key_set_null_is_logged(world: World) {
    let db = world.shard_with(family(OnChange::SetNull)).await;
    db.must("INSERT INTO parents (id) VALUES (1)", vec![]).await;
    db.must("INSERT INTO children (id, parent) VALUES (10, 1)", vec![]).await;
    let start = db.listen().await;
    db.must("DELETE FROM parents", vec![]).await;
    check_log_unordered(&db, start, &["parents * - (1)", "children * ~ (10 1) > (10 null)"]).await;
}

/// A trigger that writes each update of users to `audit`.
pub(crate) fn audit_trigger() -> Vec<SchemaChange> {
    let audit =
        table("audit", by_hash("id"), &[("id", INT8), ("was", INT8), ("became", INT8)], &["id", "was", "became"]);
    let insert = |old: &str, new: &str| {
        format!(
            "INSERT INTO audit (_bucket, id, was, became) VALUES ({old}._bucket, {old}.id, {old}.n, {new}.n) \
             ON CONFLICT DO NOTHING"
        )
    };
    let trigger = Object {
        name: "audit_users".into(),
        kind: ObjectKind::Trigger,
        sqlite: format!("CREATE TRIGGER audit_users AFTER UPDATE ON users BEGIN {}; END", insert("old", "new")),
        postgres: format!(
            "CREATE FUNCTION audit_users_row() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN {}; RETURN NULL; END $$; \
             CREATE TRIGGER audit_users AFTER UPDATE ON users FOR EACH ROW EXECUTE FUNCTION audit_users_row()",
            insert("OLD", "NEW")
        ),
        postgres_drop: "DROP TRIGGER audit_users ON users; DROP FUNCTION audit_users_row()".into(),
    };
    vec![SchemaChange::CreateTable(audit), SchemaChange::CreateObject(trigger)]
}

/// I-29
pub(crate) async fn what_a_trigger_writes_is_logged(world: World) {
    let db = world.shard().await;
    db.alter(audit_trigger()).await;
    db.put_user(3, "a", 0).await;
    let start = db.listen().await;
    assert_eq!(db.must("UPDATE users SET n = 5 WHERE id = 3", vec![]).await, 1, "a trigger's rows are not counted");
    check_log_unordered(&db, start, &["users 3 ~ (3 'a' 0) > (3 'a' 5)", "audit 3 + (3 0 5)"]).await;
}

/// I-29: SQLite's REPLACE deletes rows that the statement does not name.
pub(crate) async fn a_replace_logs_the_rows_it_replaces(world: World) {
    let mut plans = plans();
    plans.keys = vec![isles_kernel::schema::Key::unique("plans_name", &["name"])];
    let db = world.shard_with(vec![plans.clone()]).await;
    let start = db.listen().await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'a'), (2, 'b'), (3, 'c')", vec![]).await;
    db.must("INSERT OR REPLACE INTO plans (id, name) VALUES (1, 'z')", vec![]).await;
    db.must("INSERT OR REPLACE INTO plans (id, name) VALUES (2, 'c')", vec![]).await;
    let mut model = Model::default();
    db.log_after(start).await.iter().for_each(|change| model.replay(change));
    let rows = db.rows("plans").await;
    assert_eq!(rows.len(), 2);
    model.check(&plans, rows);
}

/// I-29
pub(crate) async fn a_changed_key_is_a_delete_and_an_insert(world: World) {
    let db = world.shard().await;
    db.put_user(1, "a", 0).await;
    let start = db.listen().await;
    db.must("UPDATE users SET id = 10, _bucket = 2 WHERE id = 1", vec![]).await;
    check_log(&db, start, &["users 1 - (1 'a' 0)", "users 2 + (10 'a' 0)"]).await;
}

/// I-29, I-31: a reader of one bucket must see the row go.
pub(crate) async fn a_row_that_changes_its_bucket_leaves_the_old_one(world: World) {
    let db = world.shard().await;
    db.put_user(1, "a", 0).await;
    let start = db.listen().await;
    db.must("UPDATE users SET _bucket = 5 WHERE id = 1", vec![]).await;
    check_log(&db, start, &["users 1 - (1 'a' 0)", "users 5 + (1 'a' 0)"]).await;
}

/// I-29
pub(crate) async fn what_is_rolled_back_is_not_logged(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    let mut gone = db.transaction(Access::Write).await;
    gone.execute(&insert_user(1, "gone", 0)).await.unwrap();
    gone.rollback().await.unwrap();
    let mut open = db.transaction(Access::Write).await;
    open.execute(&insert_user(2, "kept", 0)).await.unwrap();
    open.savepoint("s").await.unwrap();
    open.execute(&insert_user(3, "gone", 0)).await.unwrap();
    open.execute(&Statement::new("UPDATE users SET n = 9", vec![])).await.unwrap();
    open.rollback_to("s").await.unwrap();
    open.execute(&insert_user(4, "kept", 0)).await.unwrap();
    open.commit().await.unwrap();
    check_log(&db, start, &["users 2 + (2 'kept' 0)", "users 4 + (4 'kept' 0)"]).await;
}

/// I-29: two rows of the failed statement were written before its third failed.
pub(crate) async fn a_statement_that_fails_in_its_middle_leaves_nothing(world: World) {
    let db = world.shard().await;
    db.must("INSERT INTO plans (id, name) VALUES (5, 'five')", vec![]).await;
    let start = db.listen().await;
    let mut open = db.transaction(Access::Write).await;
    open.execute(&Statement::new("INSERT INTO plans (id, name) VALUES (1, 'a')", vec![])).await.unwrap();
    open.savepoint("s").await.unwrap();
    let failing = "INSERT INTO plans (id, name) VALUES (3, 'c'), (4, 'd'), (5, 'e'), (6, 'f')";
    open.execute(&Statement::new(failing, vec![])).await.unwrap_err();
    open.rollback_to("s").await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(sqlstate(&db.run(failing, vec![]).await.unwrap_err()), "23505");
    check_log(&db, start, &["plans * + (1 'a')"]).await;
}

/// I-29: a transaction can be told from its neighbours, and is told whole.
pub(crate) async fn changes_of_one_transaction_share_their_number(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    let tasks: Vec<_> = (0..12i64)
        .map(|at| {
            let db = db.clone();
            let statements = (0..3).map(|n| insert_user(10 * at + n, "x", at)).collect();
            tokio::spawn(async move { db.write(statements).await.unwrap() })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let mut open = db.transaction(Access::Write).await;
    open.execute(&insert_user(500, "x", 50)).await.unwrap();
    open.execute(&insert_user(501, "x", 50)).await.unwrap();
    open.commit().await.unwrap();
    let changes = db.log_after(start).await;
    assert_eq!(changes.len(), 12 * 3 + 2);
    let writer = |at: usize| int(&changes[at].after.as_ref().expect("an insert")[2]);
    for one in 0..changes.len() {
        for other in 0..changes.len() {
            assert_eq!(changes[one].txn == changes[other].txn, writer(one) == writer(other), "{:?}", changes[one]);
        }
    }
}

/// I-29: positions rise in pages of any size, and the pages together are the log.
pub(crate) async fn the_log_is_the_same_in_pages_of_any_size(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')", vec![]).await;
    for id in 5..15 {
        db.must("INSERT INTO plans (id, name) VALUES ($1, 'x')", values![id]).await;
    }
    let whole = seen::all_changes(&db, start, 1_000).await;
    assert_eq!(whole.len(), 14);
    for limit in [1, 2, 3, 5, 14] {
        assert_eq!(seen::all_changes(&db, start, limit).await, whole, "pages of {limit}");
    }
    assert_eq!(db.seq().await.unwrap(), whole[13].seq.max(db.seq().await.unwrap()));
}

/// I-29: a delete once took its parameters from the leading columns, which were not the key.
pub(crate) async fn a_composite_key_behind_other_columns_is_found(world: World) {
    let columns = [("body", TEXT), ("b", TEXT), ("n", INT8), ("a", INT8)];
    let odd = table("odd", TableKind::Reference, &columns, &["a", "b"]);
    let db = world.shard_with(vec![odd]).await;
    let start = db.listen().await;
    db.must("INSERT INTO odd (body, b, n, a) VALUES ('x', 'k', 1, 2)", vec![]).await;
    db.must("UPDATE odd SET n = 5 WHERE a = 2 AND b = 'k'", vec![]).await;
    db.must("UPDATE odd SET b = 'l' WHERE a = 2", vec![]).await;
    db.must("DELETE FROM odd WHERE a = 2", vec![]).await;
    let expected = [
        "odd * + ('x' 'k' 1 2)",
        "odd * ~ ('x' 'k' 1 2) > ('x' 'k' 5 2)",
        "odd * - ('x' 'k' 5 2)",
        "odd * + ('x' 'l' 5 2)",
        "odd * - ('x' 'l' 5 2)",
    ];
    check_log(&db, start, &expected).await;
    let keys: Vec<_> = db.log_after(start).await.into_iter().map(|change| change.key).collect();
    assert_eq!(keys[0], values![2, "k"]);
    assert_eq!(keys[4], values![2, "l"]);
}

/// I-29
pub(crate) async fn a_key_of_any_type_is_logged(world: World) {
    let mut rng = Rng::new(3);
    let types: Vec<DataType> = random::ordered().collect();
    let name = |ty: DataType| format!("by_{}", ty.postgres_name().replace(' ', "_"));
    let keyed = |ty: &DataType| table(&name(*ty), TableKind::Reference, &[("n", INT8), ("k", *ty)], &["k"]);
    let db = world.shard_with(types.iter().map(keyed).collect()).await;
    for ty in types {
        let start = db.listen().await;
        let keys = random::keys(&mut rng, ty, 3);
        for key in &keys {
            db.must(&format!("INSERT INTO {} (n, k) VALUES (0, $1)", name(ty)), vec![key.clone()]).await;
            let update = format!("UPDATE {} SET n = n + 1 WHERE k = $1", name(ty));
            assert_eq!(db.must(&update, vec![key.clone()]).await, 1, "{key:?}");
        }
        let changes = db.log_after(start).await;
        let changes: Vec<_> = changes.iter().filter(|change| change.table == name(ty)).collect();
        assert_eq!(changes.len(), 2 * keys.len());
        for (pair, key) in changes.chunks(2).zip(&keys) {
            assert_eq!((pair[0].op, pair[1].op), (Op::Insert, Op::Update));
            assert_eq!(pair[0].key, std::slice::from_ref(key), "{ty:?}");
            assert_eq!(pair[1].key, std::slice::from_ref(key), "{ty:?}");
        }
    }
}

/// The log costs nothing as long as nobody reads it.
pub(crate) async fn nothing_is_captured_without_a_reader(world: World) {
    let db = world.shard().await;
    db.put_user(1, "a", 0).await;
    assert_eq!(db.stats().await.unwrap().log_records, 0);
    let start = db.listen().await;
    check_log(&db, start, &[]).await;
    db.put_user(2, "b", 0).await;
    check_log(&db, start, &["users 2 + (2 'b' 0)"]).await;
    assert!(db.stats().await.unwrap().log_records > 0);
    db.remove_consumer(&stream("test")).await.unwrap();
    db.put_user(3, "c", 0).await;
    assert_eq!(db.consumers().await.unwrap(), vec![]);
    let again = db.listen().await;
    assert!(again >= start, "positions never fall");
    check_log(&db, again, &[]).await;
}

/// I-30: what began after the reader was added is in the log, with writers running all the while.
pub(crate) async fn the_log_is_complete_from_where_a_reader_was_added(world: World) {
    let db = world.shard().await;
    let added = Arc::new(AtomicBool::new(false));
    let stop = Arc::new(AtomicBool::new(false));
    let writer = |first: i64, db: Db, added: Arc<AtomicBool>, stop: Arc<AtomicBool>| async move {
        let (mut late, mut id) = (Vec::new(), first);
        while !stop.load(Ordering::SeqCst) {
            let after = added.load(Ordering::SeqCst);
            db.put_user(id, "x", 0).await;
            late.extend(after.then_some(id));
            id += 1;
        }
        late
    };
    let writers: Vec<_> =
        (0..4).map(|at| tokio::spawn(writer(at * 1_000_000, db.clone(), added.clone(), stop.clone()))).collect();
    while db.count("users").await < 20 {}
    let start = db.listen().await;
    added.store(true, Ordering::SeqCst);
    let snapshot_rows = db.rows("users").await.len() as i64;
    while db.count("users").await < snapshot_rows + 40 {}
    stop.store(true, Ordering::SeqCst);
    let mut late = Vec::new();
    for writer in writers {
        late.extend(writer.await.unwrap());
    }
    let logged: Vec<i64> = db.log_after(start).await.iter().map(|change| int(&change.key[0])).collect();
    assert!(late.len() >= 10, "{} writes began after the reader was added", late.len());
    let missing: Vec<_> = late.iter().filter(|id| !logged.contains(id)).collect();
    assert!(missing.is_empty(), "{missing:?} are not in the log");
}

/// I-29: half a transaction in the log is a torn row in every copy.
pub(crate) async fn a_transaction_open_when_a_reader_is_added_is_captured_whole_or_before(world: World) {
    let db = world.shard().await;
    let mut open = db.transaction(Access::Write).await;
    open.execute(&insert_user(1, "a", 0)).await.unwrap();
    let mut adding = tokio::spawn({
        let db = db.clone();
        async move { db.listen().await }
    });
    let early = tokio::time::timeout(Duration::from_millis(80), &mut adding).await;
    open.execute(&insert_user(2, "b", 0)).await.unwrap();
    open.commit().await.unwrap();
    let (start, early) = match early {
        Ok(start) => (start.unwrap(), true),
        Err(_) => (adding.await.unwrap(), false),
    };
    let logged = db.log_after(start).await.len();
    assert!(logged == 2 || logged == 0 && !early, "{logged} of 2 changes are logged (added early: {early})");
}

/// I-30: a position is given out before the commit, so a reader must not pass one that is still open.
pub(crate) async fn a_reader_does_not_pass_a_transaction_that_is_still_open(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    let mut slow = db.transaction(Access::Write).await;
    slow.execute(&insert_user(1, "slow", 0)).await.unwrap();
    let mut quick = tokio::spawn({
        let db = db.clone();
        async move { db.put_user(2, "quick", 0).await }
    });
    // One engine runs both at once and the other does not; the log is right either way.
    let early = tokio::time::timeout(Duration::from_millis(80), &mut quick).await.is_ok();
    let page = db.changes(start, 100).await.unwrap();
    assert!(db.seq().await.unwrap() >= page.through);
    slow.commit().await.unwrap();
    if !early {
        quick.await.unwrap();
    }
    let rest = db.log_after(page.through).await;
    let mut ids: Vec<i64> = page.changes.iter().chain(&rest).map(|change| int(&change.key[0])).collect();
    ids.sort();
    assert_eq!(ids, [1, 2]);
}

/// I-46: shards share a server, and one's long transaction is no other's business.
pub(crate) async fn a_transaction_of_another_shard_does_not_hold_up_the_log(world: World) {
    let (db, other) = (world.shard().await, world.shard().await);
    let start = db.listen().await;
    let mut long = other.transaction(Access::Write).await;
    long.execute(&insert_user(1, "long", 0)).await.unwrap();
    let mut gone = db.transaction(Access::Write).await;
    gone.execute(&insert_user(1, "gone", 0)).await.unwrap();
    gone.rollback().await.unwrap();
    db.put_user(2, "kept", 0).await;
    check_log(&db, start, &["users 2 + (2 'kept' 0)"]).await;
    long.rollback().await.unwrap();
}

/// A reader knows by which schema to read a change.
pub(crate) async fn a_change_names_the_schema_it_was_made_under(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'a')", vec![]).await;
    let column = Column { default: Some(Value::Int(7)), ..Column::new("seats", INT8) };
    db.alter(vec![SchemaChange::AddColumn { table: "plans".into(), column }]).await;
    db.must("UPDATE plans SET name = 'b'", vec![]).await;
    let changes = db.log_after(start).await;
    assert_eq!(changes.len(), 2, "adding a column changes no row");
    assert_eq!((changes[0].schema, changes[1].schema), (SchemaVersion(1), SchemaVersion(2)));
    assert_eq!(changes[0].after, Some(values![1, "a"]));
    assert_eq!(changes[1].before, Some(values![1, "a", 7]));
    assert_eq!(changes[1].after, Some(values![1, "b", 7]));
}

/// I-32
pub(crate) async fn each_reader_has_its_own_position(world: World) {
    let db = world.shard().await;
    let (slow, fast) = (stream("slow"), stream("fast"));
    let start = db.add_consumer(&slow).await.unwrap();
    db.put_user(1, "a", 0).await;
    db.add_consumer(&fast).await.unwrap();
    db.put_user(2, "b", 0).await;
    let end = db.seq().await.unwrap();
    db.advance(&fast, end).await.unwrap();
    assert_eq!(db.add_consumer(&slow).await.unwrap(), start, "a reader stands where it stood");
    assert_eq!(db.add_consumer(&fast).await.unwrap(), end);
    let mut positions: Vec<_> = db.consumers().await.unwrap().into_iter().map(|c| (c.stream, c.position)).collect();
    positions.sort();
    assert_eq!(positions, [(fast.clone(), end), (slow, start)]);
    let _ = db.advance(&fast, start).await;
    assert_eq!(db.add_consumer(&fast).await.unwrap(), end, "a position never falls");
}

/// I-32
pub(crate) async fn the_log_is_trimmed_behind_the_slowest_reader(world: World) {
    let db = world.shard().await;
    let (slow, fast) = (stream("slow"), stream("fast"));
    let start = db.add_consumer(&slow).await.unwrap();
    db.add_consumer(&fast).await.unwrap();
    for id in 1..=10 {
        db.put_user(id, "x", 0).await;
    }
    let all = db.log_after(start).await;
    db.advance(&fast, all[9].seq).await.unwrap();
    assert_eq!(db.log_after(start).await, all, "the slow reader has read nothing yet");
    let middle = all[4].seq;
    db.advance(&slow, middle).await.unwrap();
    assert_eq!(db.log_after(middle).await, all[5..]);
    let error = db.changes(start, 100).await.unwrap_err();
    assert!(matches!(error, ShardError::Trimmed { trimmed } if trimmed >= middle.0), "{error:?}");
    db.remove_consumer(&slow).await.unwrap();
    db.advance(&fast, all[9].seq).await.unwrap();
    assert_eq!(db.stats().await.unwrap().log_records, 0);
}

/// Writes within which a log that is too long must have been noticed.
const NOTICED_WITHIN: i64 = 3_000;

/// A reader that is gone must not fill the disk, and must be told what it lost.
pub(crate) async fn a_log_at_its_cap_drops_the_slowest_reader(world: World) {
    let fixture = world.fixture().await;
    let options = Options { log: LogSize::Small };
    let db = Db::new(fixture.open(&options).await).set_up(vec![users()]).await;
    let (slow, fast) = (stream("slow"), stream("fast"));
    let start = db.add_consumer(&slow).await.unwrap();
    let mut at = db.add_consumer(&fast).await.unwrap();
    let (mut written, mut read) = (0, 0);
    let error = loop {
        for id in written..written + 10 {
            db.put_user(id, &"x".repeat(10_000), 0).await;
        }
        written += 10;
        let changes = db.log_after(at).await;
        read += changes.len() as i64;
        at = changes.last().map_or(at, |change| change.seq);
        db.advance(&fast, at).await.unwrap();
        match db.changes(start, 1).await {
            Ok(_) => assert!(written < NOTICED_WITHIN, "the slow reader keeps {written} changes"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ShardError::Trimmed { .. }), "{error:?}");
    assert_eq!(read, written, "the fast reader misses nothing");
    let left: Vec<_> = db.consumers().await.unwrap().into_iter().map(|consumer| consumer.stream).collect();
    assert_eq!(left, [fast]);
}

pub(crate) async fn pages_of_the_log_are_bounded(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    assert!(is_refusal(&db.changes(start, 0).await.unwrap_err()));
    assert!(is_refusal(&db.changes(start, isles_engine::shard::MAX_PAGE_ROWS + 1).await.unwrap_err()));
}

/// I-29: random statements of several tasks, replayed from the log over an empty table.
pub(crate) async fn replaying_the_log_gives_the_table(world: World) {
    let db = world.shard().await;
    db.alter(audit_trigger()).await;
    for seed in 0..random::rounds(2) as u64 {
        db.write(vec![Statement::new("DELETE FROM users", vec![]), Statement::new("DELETE FROM audit", vec![])])
            .await
            .unwrap();
        let start = db.listen().await;
        workload::run(&db, Rng::new(seed), 4, 40).await;
        let changes = db.log_after(start).await;
        assert!(changes.len() > 50, "only {} changes", changes.len());
        let mut model = Model::default();
        changes.iter().for_each(|change| model.replay(change));
        let schema = db.schema().await.unwrap();
        for name in ["users", "audit"] {
            model.check(&schema.tables[name], db.rows(name).await);
        }
        db.remove_consumer(&stream("test")).await.unwrap();
    }
}
