//! Apply: rows of another shard, in any order and any number of times.

use crate::changelog::audit_trigger;
use crate::copying::{EPOCH, batch, check_equal, scrambled, tailed, version};
use crate::fixtures::World;
use crate::given::*;
use crate::random;
use isles_engine::error::ShardError;
use isles_engine::shard::{Applied, Batch, Incoming, MAX_APPLY_ROWS, RowVersion, StoredRow, StreamState};
use isles_kernel::names::{RoutingVersion, Seq};
use isles_kernel::schema::{Key, OnChange, TableKind, Unit};
use isles_kernel::value::{DataType, Value};
use isles_sim::rng::Rng;
use std::collections::BTreeMap;

fn put(id: i64, email: &str, seq: u64) -> Incoming {
    let row = Some(values![id, email, seq as i64]);
    Incoming { table: "users".into(), unit: bucket(id), key: values![id], version: version(seq), row }
}

fn gone(id: i64, seq: u64) -> Incoming {
    Incoming { row: None, ..put(id, "", seq) }
}

fn shared(table: &str, id: i64, row: Option<Vec<Value>>) -> Incoming {
    Incoming { table: table.into(), unit: Unit::Shared, key: values![id], version: version(5), row }
}

async fn apply(db: &Db, rows: Vec<Incoming>) -> Applied {
    db.apply(batch(&stream("move"), rows)).await.expect("the batch applies")
}

fn applied(written: u64, deleted: u64, stale: u64) -> Applied {
    Applied { written, deleted, stale }
}

pub(crate) async fn a_row_that_is_not_newer_changes_nothing(world: World) {
    let db = world.shard().await;
    assert_eq!(apply(&db, vec![put(1, "five", 5)]).await, applied(1, 0, 0));
    assert_eq!(apply(&db, vec![put(1, "four", 4), put(1, "again", 5), gone(1, 3)]).await, applied(0, 0, 3));
    assert_eq!(db.rows("users").await, vec![user_row(1, "five", 5)]);
    assert_eq!(apply(&db, vec![put(1, "six", 6)]).await, applied(1, 0, 0));
    assert_eq!(db.rows("users").await, vec![user_row(1, "six", 6)]);
}

/// I-11: without a tombstone the late copy would bring the row back.
pub(crate) async fn a_deleted_row_does_not_come_back(world: World) {
    let db = world.shard().await;
    apply(&db, vec![put(1, "a", 5)]).await;
    assert_eq!(apply(&db, vec![gone(1, 7)]).await, applied(0, 1, 0));
    apply(&db, vec![put(1, "late", 6), put(1, "copy", 5)]).await;
    assert_eq!(db.rows("users").await, vec![]);
    apply(&db, vec![gone(2, 7)]).await;
    apply(&db, vec![put(2, "late", 6)]).await;
    assert_eq!(db.rows("users").await, vec![], "a tombstone stands for a row that was never here, too");
    apply(&db, vec![put(1, "new", 8)]).await;
    assert_eq!(db.rows("users").await, vec![user_row(1, "new", 8)]);
}

/// I-34: positions of two shards are not comparable; routing versions are.
pub(crate) async fn a_later_epoch_wins_over_a_higher_position(world: World) {
    let db = world.shard().await;
    apply(&db, vec![put(1, "old", 1_000)]).await;
    let later = RowVersion { epoch: RoutingVersion(EPOCH.0 + 1), seq: Seq(3) };
    apply(&db, vec![Incoming { version: later, ..put(1, "new", 3) }]).await;
    apply(&db, vec![put(1, "late", 2_000)]).await;
    assert_eq!(db.rows("users").await, vec![user_row(1, "new", 3)]);
}

/// I-34: random histories, shuffled, doubled and cut into batches, end in the last version of each row.
pub(crate) async fn any_order_with_repetitions_ends_in_the_same_rows(world: World) {
    let db = world.shard().await;
    for round in 0..random::rounds(12) as u64 {
        check_any_order(&db, Rng::new(round), round as i64 * 100).await;
    }
}

/// A history of keys `first` to `first + 5`, applied in some order under a stream of its own.
async fn check_any_order(db: &Db, mut rng: Rng, first: i64) {
    let name = stream(&format!("move-{first}"));
    let mut last: BTreeMap<i64, Option<StoredRow>> = BTreeMap::new();
    let mut history = Vec::new();
    for seq in 1..=rng.range(5..40) {
        let id = first + rng.below(6) as i64;
        let change = if rng.chance(1, 3) { gone(id, seq) } else { put(id, &random::text(&mut rng, 5), seq) };
        let row = change.row.clone().map(|values| StoredRow { unit: bucket(id), values });
        last.insert(id, row);
        history.push(change);
    }
    for rows in scrambled(&mut rng, history.clone()).into_iter().chain(scrambled(&mut rng, history)) {
        db.apply(batch(&name, rows)).await.unwrap();
    }
    let expected: Vec<StoredRow> = last.into_values().flatten().collect();
    let rows = db.rows("users").await;
    let mine: Vec<StoredRow> = rows.into_iter().filter(|row| int(&row.values[0]) >= first).collect();
    assert_eq!(mine, expected, "history from {first}");
}

/// I-34: rows that pass a unique value around may meet on the way; the older claim gives way, and comes back.
pub(crate) async fn a_unique_value_that_changes_hands_ends_where_it_belongs(world: World) {
    let mut seats = table("seats", TableKind::Reference, &[("id", DataType::Int8), ("guest", DataType::Text)], &["id"]);
    seats.keys = vec![Key::unique("one_seat_each", &["guest"])];
    let db = world.shard_with(vec![seats]).await;
    for round in 0..random::rounds(12) as u64 {
        check_seats(&db, Rng::new(round), round as i64 * 100).await;
    }
}

/// A history of four seats and three guests, none of whom ever sits on two, applied in some order.
async fn check_seats(db: &Db, mut rng: Rng, first: i64) {
    let mut seats: BTreeMap<i64, Option<Value>> = BTreeMap::new();
    let mut history = Vec::new();
    for seq in 1..=rng.range(10..60) {
        let id = first + rng.below(4) as i64;
        let guest = Value::text(format!("guest {} of {first}", rng.below(3)));
        let taken = seats.iter().any(|(seat, sitting)| *seat != id && sitting.as_ref() == Some(&guest));
        let sitting = if taken || rng.chance(1, 4) { None } else { Some(guest) };
        let row = sitting.clone().map(|guest| vec![Value::Int(id), guest]);
        history.push(Incoming { version: version(seq), ..shared("seats", id, row) });
        seats.insert(id, sitting);
    }
    let name = stream(&format!("seats-{first}"));
    for rows in scrambled(&mut rng, history.clone()).into_iter().chain(scrambled(&mut rng, history)) {
        db.apply(batch(&name, rows)).await.unwrap();
    }
    let expected: Vec<Vec<Value>> =
        seats.into_iter().filter_map(|(id, guest)| Some(vec![Value::Int(id), guest?])).collect();
    let rows = db.rows("seats").await.into_iter().map(|row| row.values);
    let mine: Vec<Vec<Value>> = rows.filter(|row| int(&row[0]) >= first).collect();
    assert_eq!(mine, expected, "history from {first}");
}

/// I-2: progress is where the rows are.
pub(crate) async fn position_and_cursor_are_stored_with_the_rows(world: World) {
    let db = world.shard().await;
    let name = stream("move");
    assert_eq!(db.stream_state(&name).await.unwrap(), StreamState::default());
    let full =
        Batch { position: Some(Seq(7)), cursor: Some(b"users 1".to_vec()), ..batch(&name, vec![put(1, "a", 5)]) };
    db.apply(full).await.unwrap();
    let state = |position, cursor: &[u8]| StreamState { position: Seq(position), cursor: Some(cursor.to_vec()) };
    assert_eq!(db.stream_state(&name).await.unwrap(), state(7, b"users 1"));
    db.apply(batch(&name, vec![put(2, "b", 6)])).await.unwrap();
    assert_eq!(db.stream_state(&name).await.unwrap(), state(7, b"users 1"), "a batch that says nothing leaves both");
    db.apply(Batch { position: Some(Seq(6)), ..batch(&name, vec![]) }).await.unwrap();
    assert_eq!(db.stream_state(&name).await.unwrap().position, Seq(7), "a position never falls");
    db.apply(Batch { cursor: Some(b"users 2".to_vec()), ..batch(&name, vec![]) }).await.unwrap();
    db.apply(Batch { position: Some(Seq(9)), ..batch(&name, vec![]) }).await.unwrap();
    assert_eq!(db.stream_state(&name).await.unwrap(), state(9, b"users 2"));
    assert_eq!(db.stream_state(&stream("other")).await.unwrap(), StreamState::default());
}

/// I-2: a poisoned batch leaves neither rows nor a position.
pub(crate) async fn a_batch_that_fails_leaves_nothing(world: World) {
    let db = world.shard().await;
    let name = stream("move");
    let short = Incoming { row: Some(values![2, "b"]), ..put(2, "b", 5) };
    let crooked = Incoming { row: Some(values![2, 7, "c"]), ..put(2, "b", 5) };
    let nowhere = Incoming { table: "nowhere".into(), ..put(2, "b", 5) };
    let misplaced = Incoming { row: Some(values![3, "b", 0]), ..put(2, "b", 5) };
    for bad in [short, crooked, nowhere, misplaced] {
        let rows = vec![put(1, "a", 5), bad.clone()];
        let result = db.apply(Batch { position: Some(Seq(7)), cursor: Some(vec![1]), ..batch(&name, rows) }).await;
        let error = result.expect_err(&format!("{bad:?}"));
        assert!(is_refusal(&error), "{bad:?}: {error:?}");
        assert_eq!(db.rows("users").await, vec![], "{bad:?}");
        assert_eq!(db.stream_state(&name).await.unwrap(), StreamState::default(), "{bad:?}");
    }
    assert_eq!(apply(&db, vec![put(1, "a", 5)]).await, applied(1, 0, 0), "no version was left behind");
}

/// I-11: `INSERT OR REPLACE` on a target once took the rows of other tenants.
pub(crate) async fn a_row_of_another_unit_is_not_clobbered(world: World) {
    let db = world.shard().await;
    db.put_user(1, "mine", 0).await;
    let foreign = Incoming { unit: bucket(2), ..put(1, "yours", 50) };
    let removal = Incoming { row: None, ..foreign.clone() };
    for rows in [vec![foreign], vec![removal]] {
        let result = db.apply(batch(&stream("move"), rows)).await;
        assert!(result.as_ref().is_ok_and(|done| done.written + done.deleted == 0) || result.is_err(), "{result:?}");
        assert_eq!(db.rows("users").await, vec![user_row(1, "mine", 0)]);
    }
}

/// I-11: tenants may use the same ids.
pub(crate) async fn a_tenant_moves_in_beside_one_with_the_same_ids(world: World) {
    let db = world.shard().await;
    db.put_note(Some("beta"), 1, "beta's").await;
    db.put_note(None, 1, "nobody's").await;
    let note = Incoming {
        table: "notes".into(),
        unit: Unit::Tenant(tenant("acme")),
        key: values!["acme", 1],
        version: version(5),
        row: Some(values![1, "acme's"]),
    };
    apply(&db, vec![note.clone()]).await;
    let bodies = |rows: Vec<StoredRow>| rows.into_iter().map(|row| row.values[1].clone()).collect::<Vec<_>>();
    assert_eq!(bodies(db.rows("notes").await), values!["nobody's", "acme's", "beta's"]);
    apply(&db, vec![Incoming { row: None, version: version(6), ..note }]).await;
    assert_eq!(bodies(db.rows("notes").await), values!["nobody's", "beta's"]);
}

/// I-29: what comes from another shard is not this one's own change, and would echo.
pub(crate) async fn applied_rows_are_not_captured(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    apply(&db, vec![put(1, "a", 5), put(2, "b", 5)]).await;
    apply(&db, vec![put(1, "c", 6), gone(2, 6)]).await;
    assert_eq!(db.log_after(start).await, vec![]);
    db.must("UPDATE users SET n = 0 WHERE id = 1", vec![]).await;
    assert_eq!(db.log_after(start).await.len(), 1, "a client's write to an applied row is captured");
}

/// A copy goes table by table, so a child may come first.
pub(crate) async fn a_child_may_come_before_its_parent(world: World) {
    let db = world.shard_with(family(OnChange::NoAction)).await;
    apply(&db, vec![shared("children", 10, Some(values![10, 1]))]).await;
    apply(&db, vec![shared("parents", 1, Some(values![1]))]).await;
    assert_eq!((db.count("parents").await, db.count("children").await), (1, 1));
    let error = db.run("INSERT INTO children (id, parent) VALUES (11, 77)", vec![]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23503", "clients are still checked");
}

/// What a cascade or trigger did at the source is in its log already; doing it again here would do it twice.
pub(crate) async fn applied_rows_set_off_no_cascade_and_no_trigger(world: World) {
    let mut tables = family(OnChange::Cascade);
    tables.push(users());
    let db = world.shard_with(tables).await;
    db.alter(audit_trigger()).await;
    db.must("INSERT INTO parents (id) VALUES (1)", vec![]).await;
    db.must("INSERT INTO children (id, parent) VALUES (10, 1)", vec![]).await;
    apply(&db, vec![shared("parents", 1, None)]).await;
    assert_eq!((db.count("parents").await, db.count("children").await), (0, 1));
    apply(&db, vec![put(1, "a", 5), put(1, "b", 6)]).await;
    apply(&db, vec![put(1, "c", 7)]).await;
    assert_eq!(db.count("audit").await, 0);
    db.must("UPDATE users SET n = 0 WHERE id = 1", vec![]).await;
    assert_eq!(db.count("audit").await, 1, "clients' writes still set it off");
}

/// I-45
pub(crate) async fn a_batch_is_bounded(world: World) {
    let db = world.shard().await;
    let rows: Vec<Incoming> = (0..=MAX_APPLY_ROWS as i64).map(|id| put(id, "x", 5)).collect();
    let error = db.apply(batch(&stream("move"), rows.clone())).await.unwrap_err();
    assert!(matches!(error, ShardError::Limit { .. } | ShardError::Invalid(_)), "{error:?}");
    assert_eq!(db.rows("users").await, vec![]);
    assert_eq!(apply(&db, rows[1..].to_vec()).await, applied(MAX_APPLY_ROWS as u64, 0, 0));
}

/// After a move is done its versions are forgotten, so that the next one starts clean.
pub(crate) async fn a_forgotten_stream_leaves_its_rows_and_nothing_else(world: World) {
    let db = world.shard().await;
    let (old, other) = (stream("old"), stream("other"));
    let at = |name, seq| Batch { position: Some(Seq(seq)), ..batch(name, vec![]) };
    db.apply(Batch { rows: vec![put(1, "a", 50), gone(2, 50)], ..at(&old, 50) }).await.unwrap();
    db.apply(Batch { rows: vec![put(3, "c", 50), gone(4, 50)], ..at(&other, 60) }).await.unwrap();
    db.forget_stream(&old, None).await.unwrap();
    assert_eq!(db.stream_state(&old).await.unwrap(), StreamState::default());
    assert_eq!(db.stream_state(&other).await.unwrap().position, Seq(60));
    assert_eq!(db.rows("users").await, vec![user_row(1, "a", 50), user_row(3, "c", 50)]);
    let rows = vec![put(1, "b", 3), put(2, "b", 3)];
    assert_eq!(db.apply(batch(&stream("new"), rows)).await.unwrap(), applied(2, 0, 0));
    let rows = vec![put(3, "b", 3), put(4, "b", 3)];
    assert_eq!(db.apply(batch(&other, rows)).await.unwrap(), applied(0, 0, 2), "the other stream's versions remain");
}

/// I-34: two keys that a database takes for one are one row, with one version.
pub(crate) async fn keys_equal_by_value_are_one_row(world: World) {
    let keyed = |name: &str, ty| table(name, TableKind::Reference, &[("k", ty), ("n", INT8)], &["k"]);
    let tables = vec![keyed("prices", DataType::Numeric), keyed("zeros", DataType::Float8)];
    let (source, target) = (world.shard_with(tables.clone()).await, world.shard_with(tables).await);
    let start = source.listen().await;
    for (table, one, other) in
        [("prices", numeric("1.0"), numeric("1.00")), ("zeros", Value::Float(0.0), Value::Float(-0.0))]
    {
        source.must(&format!("INSERT INTO {table} (k, n) VALUES ($1, 1)"), vec![one]).await;
        assert_eq!(source.must(&format!("UPDATE {table} SET k = $1, n = 2"), vec![other]).await, 1);
    }
    for change in source.log_after(start).await.iter().rev() {
        target.apply(batch(&stream("move"), vec![tailed(change)])).await.unwrap();
    }
    check_equal(&source, &target, "prices").await;
    check_equal(&source, &target, "zeros").await;
}

/// I-34: two appliers of one stream, as after a takeover, do no harm.
pub(crate) async fn two_appliers_of_one_stream_do_no_harm(world: World) {
    let db = world.shard().await;
    let history: Vec<Incoming> = (1..=60u64).map(|seq| put((seq % 7) as i64, "x", seq)).collect();
    let applier = |db: Db, mut rng: Rng, history: Vec<Incoming>| async move {
        for rows in scrambled(&mut rng, history) {
            loop {
                match db.apply(batch(&stream("move"), rows.clone())).await {
                    Ok(_) => break,
                    Err(ShardError::Conflict(_)) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
    };
    let one = tokio::spawn(applier(db.clone(), Rng::new(1), history.clone()));
    let two = tokio::spawn(applier(db.clone(), Rng::new(2), history));
    one.await.unwrap();
    two.await.unwrap();
    let ns: Vec<i64> = db.rows("users").await.iter().map(|row| int(&row.values[2])).collect();
    assert_eq!(ns, [56, 57, 58, 59, 60, 54, 55]);
}
