//! Schema: changes are applied as one, once, or not at all.

use crate::changelog::audit_trigger;
use crate::fixtures::World;
use crate::given::*;
use crate::seen::check_log;
use isles_engine::error::ShardError;
use isles_engine::fence::{Access, Claim, Claimed, Fence, FenceMode, FenceScope};
use isles_engine::shard::{SchemaStep, Statement};
use isles_kernel::change::Op;
use isles_kernel::names::{BucketId, GroupName, RoutingVersion, SchemaVersion};
use isles_kernel::schema::{
    Column, Deferral, ForeignKey, Key, Object, ObjectKind, OnChange, Schema, SchemaChange, Table, TableKind,
};
use isles_kernel::value::{DataType, Value};
use std::sync::Arc;
use std::time::Duration;

/// Time for a task to take its place in line.
const A_MOMENT: Duration = Duration::from_millis(50);

fn create(table: isles_kernel::schema::Table) -> SchemaChange {
    SchemaChange::CreateTable(table)
}

fn seats() -> SchemaChange {
    let column = Column { default: Some(Value::Int(7)), ..Column::new("seats", INT8) }.not_null();
    SchemaChange::AddColumn { table: "plans".into(), column }
}

fn unique_name() -> SchemaChange {
    let key = Key::unique("plans_name", &["name"]);
    SchemaChange::CreateKey { table: "plans".into(), key }
}

/// The changes fail and leave the schema, and what `sql` shows, as they were.
async fn check_refused(db: &Db, from: SchemaVersion, changes: Vec<SchemaChange>) -> ShardError {
    let before = db.schema().await.unwrap();
    let error = db.apply_schema(from, changes.clone()).await.expect_err(&format!("{changes:?}"));
    assert_eq!(db.schema().await.unwrap(), before, "{changes:?}");
    error
}

pub(crate) async fn a_new_shard_is_empty(world: World) {
    let db = world.empty().await;
    assert_eq!(*db.schema().await.unwrap(), Schema::default());
    assert_eq!(db.fences().await.unwrap(), vec![]);
    assert_eq!(db.consumers().await.unwrap(), vec![]);
}

pub(crate) async fn the_schema_is_what_its_changes_say(world: World) {
    let db = world.empty().await;
    let changes = vec![create(users()), create(notes()), create(plans())];
    let expected = Schema::default().apply(&changes).unwrap();
    let holds = db.apply_schema(SchemaVersion(0), changes).await.unwrap();
    assert_eq!(*holds, expected);
    assert_eq!(*db.schema().await.unwrap(), expected);
    assert_eq!(holds.hash(), expected.hash());
}

/// A shard that comes later has the schema of the others, at their version, and goes on from there.
pub(crate) async fn a_schema_is_adopted_whole_and_at_its_version(world: World) {
    let db = world.empty().await;
    let made = Schema::default().apply(&[create(users()), create(notes()), create(plans())]).unwrap();
    let made = made.apply(&[seats()]).unwrap().apply(&[unique_name()]).unwrap();
    for _ in 0..2 {
        db.adopt_schema(Arc::new(made.clone())).await.unwrap();
        assert_eq!(*db.schema().await.unwrap(), made);
    }
    let next = made.apply(&[SchemaChange::DropKey { table: "plans".into(), key: "plans_name".into() }]).unwrap();
    let refused = db.adopt_schema(Arc::new(next.clone())).await.unwrap_err();
    assert!(refused.to_string().contains("has schema version 3"), "{refused}");
    let changes = vec![SchemaChange::DropKey { table: "plans".into(), key: "plans_name".into() }];
    assert_eq!(*db.apply_schema(made.version, changes).await.unwrap(), next);
    db.set_fences(all_open(), Duration::from_secs(5)).await.unwrap();
    db.write(vec![insert_user(1, "a@x", 1)]).await.unwrap();
}

/// Whoever repeats a step after a crash finds it done.
pub(crate) async fn applying_a_change_twice_applies_it_once(world: World) {
    let db = world.shard().await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'a')", vec![]).await;
    let once = db.apply_schema(SchemaVersion(1), vec![seats()]).await.unwrap();
    let twice = db.apply_schema(SchemaVersion(1), vec![seats()]).await.unwrap();
    assert_eq!(once, twice);
    assert_eq!(twice.version, SchemaVersion(2));
    assert_eq!(db.rows("plans").await[0].values, values![1, "a", 7]);
}

pub(crate) async fn a_change_from_another_version_is_refused(world: World) {
    let db = world.shard().await;
    db.alter(vec![seats()]).await;
    let other = vec![create(family(OnChange::NoAction).remove(0))];
    for from in [0, 1, 3, 99] {
        check_refused(&db, SchemaVersion(from), other.clone()).await;
    }
    db.apply_schema(SchemaVersion(2), other).await.unwrap();
    assert_eq!(db.count("parents").await, 0);
}

/// The second change fails on the rows; the first, a new table, goes with it.
pub(crate) async fn a_failing_change_leaves_all_as_it_was(world: World) {
    let db = world.shard().await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'same'), (2, 'same')", vec![]).await;
    let parents = family(OnChange::NoAction).remove(0);
    let changes = vec![create(parents.clone()), seats(), unique_name()];
    let error = check_refused(&db, SchemaVersion(1), changes).await;
    assert_eq!(sqlstate(&error), "23505");
    let columns = db.rows("plans").await[0].values.len();
    assert_eq!(columns, 2);
    let error = db.run("INSERT INTO parents (id) VALUES (1)", vec![]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "42P01");
    db.must("UPDATE plans SET name = 'other' WHERE id = 2", vec![]).await;
    db.apply_schema(SchemaVersion(1), vec![create(parents), seats(), unique_name()]).await.unwrap();
}

pub(crate) async fn reserved_and_doubled_names_are_refused(world: World) {
    let db = world.shard().await;
    let named = |name: &str| table(name, TableKind::Global, &[("id", INT8)], &["id"]);
    for (change, code) in [
        (create(named("_isles_log")), "42P16"),
        (create(named("sqlite_x")), "42P16"),
        (create(named("")), "42P16"),
        (create(users()), "42P07"),
        (create(table("t", TableKind::Global, &[("_bucket", INT8)], &["_bucket"])), "42P16"),
        (create(table("t", TableKind::Tenant, &[("id", INT8), ("_shard", TEXT)], &["id"])), "42P16"),
        (create(table("t", TableKind::Global, &[("id", INT8), ("ID", TEXT)], &["id"])), "42P16"),
        (SchemaChange::DropTable { table: "nowhere".into() }, "42P01"),
        (SchemaChange::DropColumn { table: "users".into(), column: "nothing".into() }, "42703"),
    ] {
        let error = check_refused(&db, SchemaVersion(1), vec![change.clone()]).await;
        assert_eq!(sqlstate(&error), code, "{change:?}: {error}");
    }
}

pub(crate) async fn names_may_hold_anything_that_is_quoted(world: World) {
    let odd = table("odd \"Name\"; --", TableKind::Global, &[("I d", INT8), ("select", TEXT)], &["I d"]);
    let db = world.shard_with(vec![odd]).await;
    db.must("INSERT INTO \"odd \"\"Name\"\"; --\" (\"I d\", \"select\") VALUES (1, 'x')", vec![]).await;
    assert_eq!(db.rows("odd \"Name\"; --").await[0].values, values![1, "x"]);
}

pub(crate) async fn columns_come_and_go(world: World) {
    let db = world.shard().await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'a')", vec![]).await;
    let nullable = SchemaChange::AddColumn { table: "plans".into(), column: Column::new("price", DataType::Numeric) };
    db.alter(vec![seats(), nullable]).await;
    db.must("INSERT INTO plans (id, name, price) VALUES (2, 'b', $1)", vec![numeric("1.50")]).await;
    let values: Vec<_> = db.rows("plans").await.into_iter().map(|row| row.values).collect();
    assert_eq!(values, [values![1, "a", 7, Value::Null], values![2, "b", 7, numeric("1.50")]]);
    let error = db.run("UPDATE plans SET seats = NULL", vec![]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23502");
    db.alter(vec![SchemaChange::DropColumn { table: "plans".into(), column: "seats".into() }]).await;
    let values: Vec<_> = db.rows("plans").await.into_iter().map(|row| row.values).collect();
    assert_eq!(values, [values![1, "a", Value::Null], values![2, "b", numeric("1.50")]]);
    let error = db.run("UPDATE plans SET seats = 1", vec![]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "42703");
}

/// The default of a new column is a value of its type, whatever the type.
pub(crate) async fn a_column_of_any_type_has_its_default(world: World) {
    let db = world.shard().await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'a')", vec![]).await;
    let mut rng = isles_sim::rng::Rng::new(9);
    let columns: Vec<Column> = DataType::ALL
        .into_iter()
        .map(|ty| Column {
            default: Some(crate::random::value(&mut rng, ty)),
            ..Column::new(&crate::values::column(ty), ty)
        })
        .collect();
    let defaults: Vec<Value> = columns.iter().filter_map(|column| column.default.clone()).collect();
    db.alter(columns.into_iter().map(|column| SchemaChange::AddColumn { table: "plans".into(), column }).collect())
        .await;
    db.must("INSERT INTO plans (id, name) VALUES (2, 'b')", vec![]).await;
    for (row, name) in db.rows("plans").await.into_iter().zip(["a", "b"]) {
        assert_eq!(row.values[1], Value::text(name));
        assert_eq!(row.values[2..], defaults);
    }
}

pub(crate) async fn unique_keys_come_and_go(world: World) {
    let db = world.shard().await;
    db.alter(vec![unique_name()]).await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'a')", vec![]).await;
    let error = db.run("INSERT INTO plans (id, name) VALUES (2, 'a')", vec![]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23505");
    db.alter(vec![SchemaChange::DropKey { table: "plans".into(), key: "plans_name".into() }]).await;
    db.must("INSERT INTO plans (id, name) VALUES (2, 'a')", vec![]).await;
}

/// I-41: one tenant's keys say nothing about another's.
pub(crate) async fn a_tenants_unique_key_is_its_own(world: World) {
    let mut notes = notes();
    notes.keys = vec![Key::unique("notes_body", &["body"])];
    let db = world.shard_with(vec![notes]).await;
    db.put_note(Some("acme"), 1, "x").await;
    db.put_note(Some("beta"), 1, "x").await;
    db.put_note(None, 1, "x").await;
    for name in [Some("acme"), None] {
        let error = db.write_note(name, 2, "x").await.unwrap_err();
        assert_eq!(sqlstate(&error), "23505", "{name:?}");
    }
    assert_eq!(db.rows("notes").await.len(), 3);
}

/// A reference table is everyone's; within the tenant a reference is led by it, and to such a table it is not.
pub(crate) async fn a_tenants_row_may_refer_to_a_reference_table(world: World) {
    let titles = table("titles", TableKind::Reference, &[("name", TEXT)], &["name"]);
    let mut notes = notes();
    notes.foreign_keys = vec![ForeignKey {
        name: "notes_title".into(),
        columns: vec!["body".into()],
        table: "titles".into(),
        references: vec!["name".into()],
        on_delete: OnChange::Restrict,
        on_update: OnChange::NoAction,
        deferral: Deferral::None,
    }];
    let db = world.shard_with(vec![titles, notes]).await;
    db.must("INSERT INTO titles (name) VALUES ('known')", vec![]).await;
    db.put_note(Some("acme"), 1, "known").await;
    db.put_note(None, 1, "known").await;
    let error = db.write_note(Some("acme"), 2, "unknown").await.unwrap_err();
    assert_eq!(sqlstate(&error), "23503");
}

pub(crate) async fn a_dropped_table_is_gone_and_may_come_back_otherwise(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'a')", vec![]).await;
    db.alter(vec![SchemaChange::DropTable { table: "plans".into() }]).await;
    let error = db.run("INSERT INTO plans (id, name) VALUES (2, 'b')", vec![]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "42P01");
    let plans = table("plans", TableKind::Global, &[("code", TEXT)], &["code"]);
    db.alter(vec![create(plans)]).await;
    db.must("INSERT INTO plans (code) VALUES ('x')", vec![]).await;
    assert_eq!(db.rows("plans").await[0].values, values!["x"]);
    let last = db.log_after(start).await.pop().expect("a change");
    assert_eq!(last.after, Some(values!["x"]));
}

pub(crate) async fn views_and_triggers_come_and_go(world: World) {
    let db = world.shard().await;
    db.alter(audit_trigger()).await;
    let sql = "CREATE VIEW rich AS SELECT id, n FROM users WHERE n > 10";
    let view = Object {
        name: "rich".into(),
        kind: ObjectKind::View,
        sqlite: sql.into(),
        postgres: sql.into(),
        postgres_drop: "DROP VIEW rich".into(),
    };
    db.alter(vec![SchemaChange::CreateObject(view)]).await;
    db.put_user(1, "a", 0).await;
    db.must("UPDATE users SET n = 11", vec![]).await;
    assert_eq!(db.query(&[INT8, INT8], "SELECT id, n FROM rich", vec![]).await, [values![1, 11]]);
    assert_eq!(db.count("audit").await, 1);
    db.alter(vec![
        SchemaChange::DropObject { name: "rich".into() },
        SchemaChange::DropObject { name: "audit_users".into() },
    ])
    .await;
    db.must("UPDATE users SET n = 12", vec![]).await;
    assert_eq!(db.count("audit").await, 1);
    assert_eq!(sqlstate(&db.run("SELECT id FROM rich", vec![]).await.unwrap_err()), "42P01");
}

/// I-17: statements prepared under the old schema do not answer with it.
pub(crate) async fn a_statement_run_before_a_change_is_right_after_it(world: World) {
    let db = world.shard().await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'a')", vec![]).await;
    let all = "SELECT * FROM plans";
    assert_eq!(db.query(&[INT8, TEXT], all, vec![]).await, [values![1, "a"]]);
    db.alter(vec![seats()]).await;
    assert_eq!(db.query(&[INT8, TEXT, INT8], all, vec![]).await, [values![1, "a", 7]]);
    db.alter(vec![SchemaChange::DropColumn { table: "plans".into(), column: "name".into() }]).await;
    assert_eq!(db.query(&[INT8, INT8], all, vec![]).await, [values![1, 7]]);
}

/// I-17: writers wait in line before and behind a schema change, and no change is of two schemas.
pub(crate) async fn a_schema_change_among_writers_loses_nothing(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    // Whoever holds the shard makes the others wait, so that they are all let in at once.
    let mut holder = db.transaction(Access::Write).await;
    holder.execute(&Statement::new("INSERT INTO plans (id, name) VALUES (1, 'a')", vec![])).await.unwrap();
    let writer = |at: i64, db: Db| async move {
        for n in 0..5 {
            db.put_user(at * 1_000 + n, "x", n).await;
        }
    };
    let mut tasks: Vec<_> = (0..3).map(|at| tokio::spawn(writer(at, db.clone()))).collect();
    tokio::time::sleep(A_MOMENT).await;
    let column = Column { default: Some(Value::Int(7)), ..Column::new("extra", INT8) };
    let altering = db.clone();
    let add = vec![SchemaChange::AddColumn { table: "users".into(), column }];
    tasks.push(tokio::spawn(async move { altering.alter(add).await }));
    tokio::time::sleep(A_MOMENT).await;
    tasks.extend((3..6).map(|at| tokio::spawn(writer(at, db.clone()))));
    holder.commit().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let rows = db.rows("users").await;
    assert_eq!(rows.len(), 6 * 5);
    assert!(rows.iter().all(|row| row.values.len() == 4 && row.values[3] == Value::Int(7)));
    let changes = db.log_after(start).await;
    assert_eq!(changes.len(), 6 * 5 + 1);
    for change in changes.into_iter().filter(|change| change.table == "users") {
        let width = if change.schema == SchemaVersion(1) { 3 } else { 4 };
        assert_eq!(change.after.as_ref().map(Vec::len), Some(width), "{change:?}");
    }
}

fn step(from: u64, changes: Vec<SchemaChange>, fences: Vec<Fence>) -> SchemaStep {
    SchemaStep { from: SchemaVersion(from), changes, fences }
}

fn added(name: &str) -> SchemaChange {
    SchemaChange::AddColumn { table: "users".into(), column: Column::new(name, DataType::Int8) }
}

/// I-2, I-29: each change of a row has the schema that it was made under, and all are one transaction's.
pub(crate) async fn rows_and_schema_of_a_transaction_change_together(world: World) {
    let db = world.shard().await;
    let version = db.schema().await.unwrap().version.0;
    let after = db.listen().await;
    let group = GroupName::new("orders").unwrap();
    let orders = Table {
        kind: TableKind::Hash { group: group.clone(), shard_by: vec!["id".into()], buckets: 4, regions: vec![] },
        ..plans()
    };
    let orders = Table { name: "orders".into(), ..orders };
    let scope = FenceScope::Buckets { group: group.clone(), first: BucketId(0), last: BucketId(3) };
    let fence = Fence { scope, version: RoutingVersion(7), mode: FenceMode::Open };
    let mut open = db.transaction(Access::Write).await;
    open.execute(&insert_user(1, "before", 0)).await.unwrap();
    open.change_schema(step(version, vec![SchemaChange::CreateTable(orders)], vec![fence.clone()])).await.unwrap();
    open.change_schema(step(version + 1, vec![added("more")], vec![])).await.unwrap();
    let claim = Claim::new(RoutingVersion(7), vec![Claimed::Bucket(group.clone(), BucketId(2))]);
    open.claim(claim).await.unwrap();
    open.execute(&Statement::new("UPDATE users SET more = 5 WHERE id = 1", vec![])).await.unwrap();
    assert_eq!(db.schema().await.unwrap().version.0, version, "nobody else sees it");
    open.commit().await.unwrap();
    let schema = db.schema().await.unwrap();
    assert_eq!(schema.version.0, version + 2);
    assert!(schema.tables.contains_key("orders") && db.fences().await.unwrap().contains(&fence));
    let changes = db.log_after(after).await;
    let seen: Vec<(Op, usize)> = changes.iter().map(|c| (c.op, c.after.as_ref().map_or(0, Vec::len))).collect();
    assert_eq!(seen, vec![(Op::Insert, 3), (Op::Update, 4)]);
    assert_eq!(changes[0].txn, changes[1].txn);
    db.must("UPDATE users SET more = 6 WHERE id = 1", vec![]).await;
}

/// I-2
pub(crate) async fn a_savepoint_takes_a_schema_back(world: World) {
    let db = world.shard().await;
    let version = db.schema().await.unwrap().version.0;
    let after = db.listen().await;
    let mut open = db.transaction(Access::Write).await;
    open.execute(&insert_user(1, "kept", 0)).await.unwrap();
    open.savepoint("s").await.unwrap();
    open.execute(&insert_user(2, "gone", 0)).await.unwrap();
    open.change_schema(step(version, vec![added("more")], vec![])).await.unwrap();
    open.execute(&Statement::new("UPDATE users SET more = 5", vec![])).await.unwrap();
    open.rollback_to("s").await.unwrap();
    open.change_schema(step(version, vec![added("other")], vec![])).await.unwrap();
    open.execute(&Statement::new("UPDATE users SET other = 8", vec![])).await.unwrap();
    let error = open.change_schema(step(version, vec![added("late")], vec![])).await.unwrap_err();
    assert!(matches!(error, ShardError::Conflict(_)), "{error}");
    open.rollback().await.unwrap();
    assert_eq!((db.count("users").await, db.schema().await.unwrap().version.0), (0, version));
    let mut open = db.transaction(Access::Write).await;
    open.execute(&insert_user(1, "kept", 0)).await.unwrap();
    open.savepoint("s").await.unwrap();
    open.change_schema(step(version, vec![added("more")], vec![])).await.unwrap();
    open.execute(&insert_user(2, "gone", 0)).await.unwrap();
    open.rollback_to("s").await.unwrap();
    open.execute(&insert_user(3, "kept too", 0)).await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(db.rows("users").await, vec![user_row(1, "kept", 0), user_row(3, "kept too", 0)]);
    check_log(&db, after, &["users 1 + (1 'kept' 0)", "users 3 + (3 'kept too' 0)"]).await;
}
