//! Changes of tables that have rows: names, types, keys, checks and foreign keys. SQLite rebuilds a table where it
//! cannot alter it; nobody may notice, neither the log nor those who refer to the table.

use crate::fixtures::{Options, World};
use crate::given::*;
use isles_engine::error::ShardError;
use isles_engine::shard::{ActsFor, Batch, Engine, Incoming, KeyRange, Request, RowVersion, Scope, Statement};
use isles_kernel::change::Op;
use isles_kernel::names::{RoutingVersion, SchemaVersion, Seq, TenantId};
use isles_kernel::schema::{
    Check, Column, CommentOn, Expression, ForeignKey, Key, KeyOver, KeyPart, OnChange, Schema, SchemaChange, Sequence,
    SqlType, TableKind, Unit, View,
};
use isles_kernel::value::{DataType, Value};

fn plain(text: &str, columns: &[&str]) -> Expression {
    let columns = columns.iter().map(|column| (*column).into()).collect();
    Expression { sql: text.into(), sqlite: text.into(), postgres: text.into(), columns }
}

fn check(name: &str, text: &str, columns: &[&str]) -> Check {
    Check { name: name.into(), expression: plain(text, columns) }
}

fn alter_column(table: &str, column: Column) -> SchemaChange {
    SchemaChange::AlterColumn { table: table.into(), column: Box::new(column), convert: None }
}

async fn refused(db: &Db, changes: Vec<SchemaChange>) -> ShardError {
    let before = db.schema().await.unwrap();
    let error = db.apply_schema(before.version, changes.clone()).await.expect_err(&format!("{changes:?}"));
    assert_eq!(db.schema().await.unwrap(), before, "{changes:?}");
    error
}

async fn family_with_rows(world: &World, on_delete: OnChange) -> Db {
    let db = world.shard_with(family(on_delete)).await;
    db.must("INSERT INTO parents (id) VALUES (1), (2)", vec![]).await;
    db.must("INSERT INTO children (id, parent) VALUES (10, 1), (20, 2)", vec![]).await;
    db
}

pub(crate) async fn a_renamed_table_keeps_its_rows_and_who_refers_to_it(world: World) {
    let db = family_with_rows(&world, OnChange::Cascade).await;
    let start = db.listen().await;
    db.alter(vec![SchemaChange::RenameTable { table: "parents".into(), to: "elders".into() }]).await;
    assert_eq!(db.schema().await.unwrap().tables["children"].foreign_keys[0].table, "elders");
    assert_eq!(db.count("elders").await, 2);
    db.must("DELETE FROM elders WHERE id = 1", vec![]).await;
    assert_eq!(db.count("children").await, 1);
    let error = db.run("INSERT INTO children (id, parent) VALUES (30, 3)", vec![]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23503");
    let tables: Vec<String> = db.log_after(start).await.into_iter().map(|change| change.table).collect();
    assert!(tables.contains(&"elders".to_string()) && tables.contains(&"children".to_string()), "{tables:?}");
    assert_eq!(tables.len(), 2);
}

/// A copy takes the place of its table with its rows and keys, and nothing of it is in the log: no row has changed. What was
/// replaced can be emptied without a trace, and goes; what is no copy cannot be emptied.
pub(crate) async fn a_copy_takes_the_place_of_its_table(world: World) {
    let mut users = users();
    users.keys = vec![Key::unique("users_email", &["id", "email"]), Key::index("users_n", &["n"])];
    let db = world.shard_with(vec![users.clone()]).await;
    db.must("INSERT INTO users (_bucket, id, email, n) VALUES (1, 1, 'a', 1), (2, 2, 'b', 2)", vec![]).await;
    let before = db.schema().await.unwrap();
    let copy = before.new_copy(&users, TableKind::Tenant);
    db.alter(copy.changes.clone()).await;
    let start = db.listen().await;
    let unit = Unit::Tenant(Some(TenantId::new("acme").unwrap()));
    let row = vec![Value::Int(1), Value::text("a"), Value::Int(1)];
    let version = RowVersion { epoch: RoutingVersion(1), seq: Seq(1) };
    let key = vec![Value::text("acme"), Value::Int(1)];
    let incoming = Incoming { table: copy.copy.clone(), unit, key, version, row: Some(row) };
    db.apply(Batch::new(&stream("copy"), vec![incoming])).await.unwrap();
    let (table, by, aside) = ("users".into(), copy.copy.clone(), copy.aside.clone());
    db.alter(vec![SchemaChange::ReplaceTable { table, by, aside }]).await;
    let mut snapshot = db.snapshot().await.unwrap();
    assert_eq!(snapshot.count(&KeyRange::table("users")).await.unwrap(), 1);
    assert_eq!(snapshot.count(&KeyRange::table(&copy.aside)).await.unwrap(), 2);
    let some = Scope::Buckets(users_group(), vec![2..=3]);
    assert_eq!(snapshot.count(&KeyRange::table(&copy.aside).within(some)).await.unwrap(), 1);
    drop(snapshot);
    let refused = db.empty_copy("users", 10).await.expect_err("it is no copy");
    assert!(matches!(refused, ShardError::Invalid(_)), "{refused:?}");
    let emptied = db.empty_copy(&copy.aside, 10).await.unwrap();
    assert_eq!(emptied, if db.engine() == Engine::Sqlite { 2 } else { 0 });
    assert_eq!(db.empty_copy(&copy.aside, 10).await.unwrap(), 0);
    db.alter(Schema::without_copy(copy.number, &copy.aside)).await;
    assert!(db.log_after(start).await.is_empty(), "no row has changed");
    // Its keys are there under their names, also when they are changed.
    let twice = "INSERT INTO users (_shard, id, email, n) VALUES ('acme', 1, 'z', 3)";
    let twice = if db.engine() == Engine::Sqlite {
        twice.replace("_shard,", "_tenant, _shard,").replace("('acme',", "('acme', 'acme',")
    } else {
        twice.into()
    };
    let error =
        db.execute(Request::write(claim(), vec![Statement::new(twice, vec![]).writing()]).acting_for(acme())).await;
    assert_eq!(sqlstate(&error.expect_err("the key is taken")), "23505");
    let key = |key: &str| ("users".to_string(), key.to_string());
    let ((table, key), (table2, key2)) = (key("users_n"), key("users_email"));
    db.alter(vec![
        SchemaChange::RenameKey { table, key, to: "by_n".into() },
        SchemaChange::DropKey { table: table2, key: key2 },
    ])
    .await;
    let after = db.schema().await.unwrap();
    assert_eq!(after.tables["users"].keys, [Key::index("by_n", &["n"])]);
    assert!(after.namespaces.is_empty());
}

fn acme() -> ActsFor {
    ActsFor::Tenant(Some(TenantId::new("acme").unwrap()))
}

pub(crate) async fn tables_of_one_name_in_two_namespaces_are_apart(world: World) {
    let db = family_with_rows(&world, OnChange::Cascade).await;
    let start = db.listen().await;
    let schema = db.schema().await.unwrap();
    let mut parents = schema.tables["parents"].clone();
    parents.name = "billing.parents".into();
    parents.keys = vec![Key::index("parents_index", &["id"])];
    let key = Key::index("parents_index", &["id"]);
    db.alter(vec![
        SchemaChange::CreateNamespace { namespace: "billing".into() },
        SchemaChange::CreateTable(parents),
        SchemaChange::CreateKey { table: "parents".into(), key },
    ])
    .await;
    let name = match db.engine() {
        Engine::Sqlite => "\"billing.parents\"",
        Engine::Postgres => "billing.parents",
    };
    db.must(&format!("INSERT INTO {name} (id) VALUES (1), (7)"), vec![]).await;
    db.must(&format!("DELETE FROM {name} WHERE id = 1"), vec![]).await;
    assert_eq!((db.count("parents").await, db.count(name).await), (2, 1));
    let tables: Vec<String> = db.log_after(start).await.into_iter().map(|change| change.table).collect();
    assert_eq!(tables, vec!["billing.parents"; 3]);
    let error = db.run(&format!("INSERT INTO {name} (id) VALUES (7)"), vec![]).await.unwrap_err();
    let ShardError::Statement(told) = &error else { panic!("{error}") };
    assert_eq!((told.sqlstate, told.table.as_deref()), ("23505", Some("billing.parents")));
    assert!(told.message.ends_with("\"parents_pkey\""), "{}", told.message);
    let drop = |namespace: &str| SchemaChange::DropNamespace { namespace: namespace.into() };
    assert_eq!(sqlstate(&refused(&db, vec![drop("billing")]).await), "42P16");
    db.alter(vec![
        SchemaChange::RenameKey { table: "billing.parents".into(), key: "parents_index".into(), to: "other".into() },
        SchemaChange::RenameTable { table: "billing.parents".into(), to: "billing.elders".into() },
        SchemaChange::DropTable { table: "billing.elders".into() },
        drop("billing"),
    ])
    .await;
    assert_eq!(db.count("parents").await, 2);
}

pub(crate) async fn a_renamed_key_column_is_captured_under_its_new_name(world: World) {
    let db = family_with_rows(&world, OnChange::Cascade).await;
    let start = db.listen().await;
    let rename = SchemaChange::RenameColumn { table: "parents".into(), column: "id".into(), to: "number".into() };
    db.alter(vec![rename]).await;
    db.must("INSERT INTO parents (number) VALUES (3)", vec![]).await;
    db.must("UPDATE parents SET number = 4 WHERE number = 3", vec![]).await;
    db.must("DELETE FROM parents WHERE number = 1", vec![]).await;
    assert_eq!(db.count("children").await, 1);
    let ops: Vec<(String, Op)> = db.log_after(start).await.into_iter().map(|c| (c.table, c.op)).collect();
    assert_eq!(ops.iter().filter(|(table, _)| table == "parents").count(), 4, "{ops:?}");
}

pub(crate) async fn an_altered_column_has_its_new_shape_and_old_values(world: World) {
    let db = world.shard().await;
    for id in 1..=3 {
        db.put_user(id, "a", id).await;
    }
    let start = db.listen().await;
    let narrow = Column { sql_type: None, ..Column::new("n", DataType::Int4) }.not_null();
    db.alter(vec![alter_column("users", narrow.clone())]).await;
    assert!(db.log_after(start).await.is_empty(), "no row has changed");
    assert_eq!(db.n_of(2).await, Some(2));
    let error = db.run("UPDATE users SET n = NULL", vec![]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23502");
    let error = db.run("UPDATE users SET n = 3000000000", vec![]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "22003");
    db.alter(vec![alter_column("users", Column::new("n", INT8))]).await;
    db.must("UPDATE users SET n = NULL WHERE id = 1", vec![]).await;
    db.must("UPDATE users SET n = 3000000000 WHERE id = 2", vec![]).await;
    let error = refused(&db, vec![alter_column("users", Column::new("n", INT8).not_null())]).await;
    assert_eq!(sqlstate(&error), "23502");
    assert_eq!(error.for_people().message, "column \"n\" of relation \"users\" contains null values");
    assert_eq!(db.log_after(start).await.len(), 2);
}

pub(crate) async fn a_column_is_converted_to_another_type(world: World) {
    let db = world.shard().await;
    db.must("INSERT INTO plans (id, name) VALUES (1, '17'), (2, '4')", vec![]).await;
    let convert = Expression {
        sql: "name::bigint".into(),
        sqlite: "CAST(\"name\" AS INTEGER)".into(),
        postgres: "\"name\"::bigint".into(),
        columns: vec!["name".into()],
    };
    let column = Box::new(Column::new("name", INT8).not_null());
    db.alter(vec![SchemaChange::AlterColumn { table: "plans".into(), column, convert: Some(convert) }]).await;
    let values: Vec<_> = db.rows("plans").await.into_iter().map(|row| row.values).collect();
    assert_eq!(values, [values![1, 17], values![2, 4]]);
}

/// A rebuild must not delete the rows of those who refer to the table.
pub(crate) async fn altering_a_parent_leaves_its_children(world: World) {
    let db = family_with_rows(&world, OnChange::Cascade).await;
    let start = db.listen().await;
    let positive = check("positive", "id > 0", &["id"]);
    db.alter(vec![SchemaChange::AddCheck { table: "parents".into(), check: positive }]).await;
    assert_eq!((db.count("parents").await, db.count("children").await), (2, 2));
    assert!(db.log_after(start).await.is_empty(), "no row has changed");
    db.must("DELETE FROM parents WHERE id = 1", vec![]).await;
    assert_eq!(db.count("children").await, 1);
    assert_eq!(db.log_after(start).await.len(), 2);
    let error = db.run("INSERT INTO children (id, parent) VALUES (30, 3)", vec![]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23503");
}

pub(crate) async fn checks_come_and_go(world: World) {
    let db = world.shard().await;
    db.put_user(1, "a", 1).await;
    db.put_note(Some("acme"), 1, "x").await;
    let add = |check| SchemaChange::AddCheck { table: "users".into(), check };
    let error = refused(&db, vec![add(check("large", "n > 5", &["n"]))]).await;
    assert_eq!(sqlstate(&error), "23514");
    assert_eq!(error.for_people().message, "check constraint \"large\" of relation \"users\" is violated by some row");
    db.alter(vec![add(check("small", "n < 5", &["n"]))]).await;
    let error = db.run("UPDATE users SET n = 9", vec![]).await.unwrap_err().for_people();
    assert_eq!((error.sqlstate, error.constraint.as_deref()), ("23514", Some("small")));
    assert_eq!(error.message, "new row for relation \"users\" violates check constraint \"small\"");
    let rename =
        SchemaChange::RenameConstraint { table: "users".into(), constraint: "small".into(), to: "tiny".into() };
    db.alter(vec![rename]).await;
    let error = db.run("UPDATE users SET n = 9", vec![]).await.unwrap_err().for_people();
    assert_eq!(error.constraint.as_deref(), Some("tiny"));
    db.must("UPDATE users SET n = NULL", vec![]).await;
    db.alter(vec![SchemaChange::DropCheck { table: "users".into(), check: "tiny".into() }]).await;
    db.must("UPDATE users SET n = 9", vec![]).await;
}

pub(crate) async fn foreign_keys_come_and_go(world: World) {
    let mut tables = family(OnChange::Cascade);
    let foreign_key = tables[1].foreign_keys.remove(0);
    let db = world.shard_with(tables).await;
    db.must("INSERT INTO children (id, parent) VALUES (10, 1)", vec![]).await;
    let add = |foreign_key: ForeignKey| SchemaChange::AddForeignKey { table: "children".into(), foreign_key };
    let error = refused(&db, vec![add(foreign_key.clone())]).await.for_people();
    assert_eq!((error.sqlstate, error.constraint.as_deref()), ("23503", Some("children_parent")));
    db.must("INSERT INTO parents (id) VALUES (1)", vec![]).await;
    db.alter(vec![add(foreign_key)]).await;
    let error = db.run("INSERT INTO children (id, parent) VALUES (20, 2)", vec![]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23503");
    let (table, foreign_key) = ("children".into(), "children_parent".into());
    db.alter(vec![SchemaChange::DropForeignKey { table, foreign_key }]).await;
    db.must("INSERT INTO children (id, parent) VALUES (20, 2)", vec![]).await;
}

pub(crate) async fn keys_over_expressions_and_some_rows_hold(world: World) {
    let db = world.shard().await;
    let by_length =
        KeyPart { over: KeyOver::Expression(plain("length(name)", &["name"])), descending: true, nulls_first: true };
    let id = KeyPart { over: KeyOver::Column("id".into()), descending: false, nulls_first: false };
    let ordered = Key { parts: vec![by_length, id], ..Key::index("plans_length", &["id"]) };
    let partial = Key { predicate: Some(plain("id > 10", &["id"])), ..Key::unique("plans_late", &["name"]) };
    db.alter(vec![
        SchemaChange::CreateKey { table: "plans".into(), key: ordered },
        SchemaChange::CreateKey { table: "plans".into(), key: partial },
    ])
    .await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'a'), (2, 'a'), (11, 'a')", vec![]).await;
    let error = db.run("INSERT INTO plans (id, name) VALUES (12, 'a')", vec![]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23505");
    db.alter(vec![SchemaChange::RenameKey { table: "plans".into(), key: "plans_late".into(), to: "late".into() }])
        .await;
    let error = db.run("INSERT INTO plans (id, name) VALUES (12, 'a')", vec![]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23505");
    db.alter(vec![SchemaChange::DropKey { table: "plans".into(), key: "late".into() }]).await;
    db.must("INSERT INTO plans (id, name) VALUES (12, 'a')", vec![]).await;
}

/// The hidden key is the last column, whatever is added, in rows and in the log.
pub(crate) async fn a_hidden_key_stays_last(world: World) {
    let mut bare = table("bare", by_hash("_isles_row"), &[("a", INT8)], &[]);
    bare.columns.push(Column::hidden_key());
    bare.primary_key = vec!["_isles_row".into()];
    bare.hidden_key = true;
    let db = world.shard_with(vec![bare]).await;
    let insert = "INSERT INTO bare (_bucket, a, _isles_row) VALUES (3, 7, 100)";
    db.must(insert, vec![]).await;
    let start = db.listen().await;
    db.alter(vec![SchemaChange::AddColumn { table: "bare".into(), column: Column::new("b", TEXT) }]).await;
    assert!(db.log_after(start).await.is_empty(), "no row has changed");
    db.must("UPDATE bare SET b = 'x'", vec![]).await;
    assert_eq!(db.rows("bare").await[0].values, values![7, "x", 100]);
    assert_eq!(db.log_after(start).await[0].after, Some(values![7, "x", 100]));
    let kind = by_hash("a");
    let rekey = SchemaChange::Rekey { table: "bare".into(), kind, primary_key: vec!["a".into()], name: None };
    let not_null = alter_column("bare", Column::new("a", INT8).not_null());
    let error = refused(&db, vec![not_null.clone(), rekey.clone()]).await;
    assert_eq!(sqlstate(&error), "0A000");
    db.must("DELETE FROM bare", vec![]).await;
    db.alter(vec![not_null, rekey]).await;
    db.must("INSERT INTO bare (_bucket, a, b) VALUES (1, 9, 'y')", vec![]).await;
    assert_eq!(db.rows("bare").await[0].values, values![9, "y"]);
    assert_eq!(db.log_after(start).await.last().unwrap().after, Some(values![9, "y"]));
}

pub(crate) async fn a_reference_table_gets_another_key_with_its_rows(world: World) {
    let db = world.shard().await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'a'), (2, 'b')", vec![]).await;
    let start = db.listen().await;
    let rekey = SchemaChange::Rekey {
        table: "plans".into(),
        kind: TableKind::Reference,
        primary_key: vec!["name".into()],
        name: Some("plans_by_name".into()),
    };
    db.alter(vec![rekey]).await;
    assert!(db.log_after(start).await.is_empty(), "no row has changed");
    let error = db.run("INSERT INTO plans (id, name) VALUES (3, 'a')", vec![]).await.unwrap_err().for_people();
    assert_eq!((error.sqlstate, error.constraint.as_deref()), ("23505", Some("plans_by_name")));
    db.must("UPDATE plans SET id = 5 WHERE name = 'b'", vec![]).await;
    assert_eq!(db.log_after(start).await[0].key, values!["b"]);
}

/// The declared type is the server's; the values are those of its carrier.
pub(crate) async fn declared_types_hold_their_values(world: World) {
    let mut typed =
        table("typed", TableKind::Reference, &[("id", INT8), ("a", TEXT), ("b", DataType::Numeric)], &["id"]);
    typed.columns[1].sql_type = Some(SqlType { oid: 1043, modifier: 24 });
    typed.columns[2].sql_type = Some(SqlType { oid: 1700, modifier: ((10 << 16) | 2) + 4 });
    let fixture = world.fixture().await;
    let db = Db::new(fixture.open(&Options::default()).await).set_up(vec![typed]).await;
    db.must("INSERT INTO typed (id, a, b) VALUES (1, 'x', $1)", vec![numeric("1.50")]).await;
    assert_eq!(db.rows("typed").await[0].values, vec![Value::Int(1), Value::text("x"), numeric("1.50")]);
    let db = Db::new(fixture.reopen(db.into_shard()).await);
    let wider = Column { sql_type: Some(SqlType { oid: 1043, modifier: 44 }), ..Column::new("a", TEXT) };
    db.alter(vec![alter_column("typed", wider)]).await;
    assert_eq!(db.count("typed").await, 1);
}

/// What the router alone needs is remembered with the schema, and changes its hash.
pub(crate) async fn views_sequences_and_comments_are_remembered(world: World) {
    let fixture = world.fixture().await;
    let db = Db::new(fixture.open(&Options::default()).await).set_up(vec![plans()]).await;
    let before = db.schema().await.unwrap().hash();
    let view = View {
        name: "v".into(),
        sql: "SELECT 1".into(),
        columns: vec![("a".into(), SqlType { oid: 23, modifier: -1 })],
        path: None,
    };
    let sequence = Sequence {
        name: "s".into(),
        start: 1,
        increment: 1,
        min: 1,
        max: i64::MAX,
        cycle: false,
        ty: INT8,
        owner: Some(("plans".into(), "id".into())),
    };
    let on = CommentOn::Table("plans".into());
    db.alter(vec![
        SchemaChange::CreateView(view),
        SchemaChange::CreateSequence(sequence.clone()),
        SchemaChange::AlterSequence(Sequence { increment: 2, ..sequence }),
        SchemaChange::RenameSequence { sequence: "s".into(), to: "t".into() },
        SchemaChange::RenameView { view: "v".into(), to: "w".into() },
        SchemaChange::SetComment { on: on.clone(), text: Some("what one pays".into()) },
    ])
    .await;
    let schema = db.schema().await.unwrap();
    assert_ne!(schema.hash(), before);
    let db = Db::new(fixture.reopen(db.into_shard()).await);
    assert_eq!(db.schema().await.unwrap(), schema);
    assert_eq!(schema.sequences["t"].increment, 2);
    assert_eq!(schema.comment(&on), Some("what one pays"));
    db.alter(vec![SchemaChange::DropView { view: "w".into() }, SchemaChange::DropTable { table: "plans".into() }])
        .await;
    let schema = db.schema().await.unwrap();
    assert!(schema.views.is_empty() && schema.sequences.is_empty() && schema.comments.is_empty());
}

/// The last change fails on the rows; all that went before it goes with it, rebuilt tables too.
pub(crate) async fn a_failing_alteration_leaves_all_as_it_was(world: World) {
    let db = family_with_rows(&world, OnChange::Cascade).await;
    let error = refused(
        &db,
        vec![
            SchemaChange::AddCheck { table: "parents".into(), check: check("positive", "id > 0", &["id"]) },
            SchemaChange::RenameTable { table: "parents".into(), to: "elders".into() },
            SchemaChange::AddCheck { table: "children".into(), check: check("none", "id < 0", &["id"]) },
        ],
    )
    .await;
    assert_eq!(sqlstate(&error), "23514");
    db.must("INSERT INTO parents (id) VALUES (-5)", vec![]).await;
    db.must("DELETE FROM parents WHERE id = 1", vec![]).await;
    assert_eq!(db.count("children").await, 1);
    assert_eq!(db.schema().await.unwrap().version, SchemaVersion(1));
}

pub(crate) async fn broken_constraints_are_named(world: World) {
    let mut tables = family(OnChange::Restrict);
    tables.push(plans());
    tables[2].keys = vec![Key { constraint: true, ..Key::unique("plans_name_key", &["name"]) }];
    let db = world.shard_with(tables).await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'a')", vec![]).await;
    db.must("INSERT INTO parents (id) VALUES (1)", vec![]).await;
    db.must("INSERT INTO children (id, parent) VALUES (1, 1)", vec![]).await;
    let cases = [
        (
            "INSERT INTO plans (id, name) VALUES (1, 'b')",
            "23505",
            "plans_pkey",
            "duplicate key value violates unique constraint \"plans_pkey\"",
        ),
        (
            "INSERT INTO plans (id, name) VALUES (2, 'a')",
            "23505",
            "plans_name_key",
            "duplicate key value violates unique constraint \"plans_name_key\"",
        ),
        (
            "INSERT INTO plans (id, name) VALUES (2, NULL)",
            "23502",
            "",
            "null value in column \"name\" of relation \"plans\" violates not-null constraint",
        ),
        (
            "INSERT INTO children (id, parent) VALUES (2, 9)",
            "23503",
            "children_parent",
            "insert or update on table \"children\" violates foreign key constraint \"children_parent\"",
        ),
        (
            "DELETE FROM parents WHERE id = 1",
            "23503",
            "children_parent",
            "update or delete on table \"parents\" violates foreign key constraint \"children_parent\" on table \"children\"",
        ),
    ];
    for (sql, code, constraint, message) in cases {
        let error = db.run(sql, vec![]).await.unwrap_err().for_people();
        assert_eq!((error.sqlstate, error.message.as_str()), (code, message), "{sql}");
        assert_eq!(error.constraint.as_deref().unwrap_or_default(), constraint, "{sql}");
    }
}
