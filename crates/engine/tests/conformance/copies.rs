//! Copies: rows of snapshots, among the changes that the mirror brings, in any order.

use crate::copying::{batch, copied, copies, version};
use crate::fixtures::World;
use crate::given::*;
use crate::interleaved;
use crate::random;
use crate::values::{fill, matrix, matrix_rows, stored};
use isles_engine::shard::{Applied, Batch, Incoming, StoredRow, StreamState};
use isles_kernel::names::Seq;
use isles_kernel::schema::{Key, OnChange, SqlType, Table, TableKind, Unit};
use isles_kernel::value::{DataType, Value};

/// Seats of rooms, which are the shard key; nobody has two in a room.
fn seats() -> Table {
    let mut seats = table("seats", by_hash("room"), &[("room", INT8), ("id", INT8), ("guest", TEXT)], &["room", "id"]);
    seats.keys = vec![Key::unique("one_seat_each", &["room", "guest"])];
    seats
}

fn seat(id: i64, guest: Option<&str>, seq: u64) -> Incoming {
    let row = guest.map(|guest| values![1, id, guest]);
    Incoming { table: "seats".into(), unit: bucket(1), key: values![1, id], version: version(seq), row }
}

async fn copy(db: &Db, rows: Vec<Incoming>) -> Applied {
    db.apply(copies(&stream("move"), rows)).await.expect("the copy applies")
}

async fn mirror(db: &Db, rows: Vec<Incoming>) -> Applied {
    db.apply(batch(&stream("move"), rows)).await.expect("the changes apply")
}

/// Who sits where.
async fn guests(db: &Db) -> Vec<(i64, Value)> {
    let rows = db.rows("seats").await;
    rows.into_iter().map(|row| (int(&row.values[1]), row.values[2].clone())).collect()
}

fn written(written: u64, stale: u64) -> Applied {
    Applied { written, deleted: 0, stale }
}

/// I-11: whatever is known of a key is newer than a copy of it, whatever the copy says of its age.
pub(crate) async fn a_copied_row_loses_against_whatever_is_known(world: World) {
    let db = world.shard_with(vec![seats()]).await;
    mirror(&db, vec![seat(1, Some("ann"), 5), seat(2, None, 5)]).await;
    let rows = || vec![seat(1, Some("old"), 900), seat(2, Some("older"), 900), seat(3, Some("cid"), 900)];
    assert_eq!(copy(&db, rows()).await, written(1, 2));
    assert_eq!(guests(&db).await, [(1, Value::text("ann")), (3, Value::text("cid"))]);
    assert_eq!(copy(&db, rows()).await, written(1, 2), "it may come again");
    assert_eq!(mirror(&db, vec![seat(3, Some("dan"), 1)]).await.written, 1, "a copy leaves no version");
    assert_eq!(copy(&db, rows()).await, written(0, 3));
    assert_eq!(guests(&db).await, [(1, Value::text("ann")), (3, Value::text("dan"))]);
}

/// I-11: at the source the guest moved from one seat to another, and which of them was copied is chance.
pub(crate) async fn a_copied_rival_gives_way_to_a_change(world: World) {
    let db = world.shard_with(vec![seats()]).await;
    copy(&db, vec![seat(1, Some("ann"), 3)]).await;
    assert_eq!(mirror(&db, vec![seat(2, Some("ann"), 5)]).await, written(1, 0));
    assert_eq!(guests(&db).await, [(2, Value::text("ann"))]);
    assert_eq!(copy(&db, vec![seat(1, Some("ann"), 9)]).await, written(0, 1), "nor does it come back");
    assert_eq!(guests(&db).await, [(2, Value::text("ann"))]);
    mirror(&db, vec![seat(1, Some("bob"), 4)]).await;
    assert_eq!(guests(&db).await, [(1, Value::text("bob")), (2, Value::text("ann"))], "its own change brings it back");
}

/// I-11: of two snapshots, in one batch or in two.
pub(crate) async fn copied_rivals_give_way_to_each_other(world: World) {
    let db = world.shard_with(vec![seats()]).await;
    copy(&db, vec![seat(1, Some("ann"), 3), seat(3, Some("cid"), 3)]).await;
    assert_eq!(copy(&db, vec![seat(2, Some("ann"), 3)]).await, written(1, 0));
    assert_eq!(guests(&db).await, [(2, Value::text("ann")), (3, Value::text("cid"))]);
    copy(&db, vec![seat(4, Some("dan"), 3), seat(3, Some("dan"), 3), seat(4, Some("dan"), 3)]).await;
    assert_eq!(guests(&db).await.iter().filter(|(_, guest)| *guest == Value::text("dan")).count(), 1);
}

/// I-11: a row of somebody else is in nobody's way, and is not removed.
pub(crate) async fn a_rival_of_another_unit_is_not_removed(world: World) {
    let db = world.shard_with(vec![seats()]).await;
    db.must("INSERT INTO seats (_bucket, room, id, guest) VALUES (2, 1, 9, 'ann')", vec![]).await;
    for rows in [vec![seat(1, Some("ann"), 5)], vec![seat(9, Some("eve"), 5)]] {
        for batch in [batch(&stream("move"), rows.clone()), copies(&stream("move"), rows.clone())] {
            let error = db.apply(batch).await.expect_err("it is refused");
            assert_eq!(sqlstate(&error), "23505", "{error:?}");
            assert_eq!(guests(&db).await, [(9, Value::text("ann"))]);
        }
    }
}

/// I-2: rows of a copy and its cursor come together or not at all.
pub(crate) async fn a_copy_that_fails_leaves_nothing(world: World) {
    let db = world.shard_with(vec![seats()]).await;
    let full = |rows| Batch { position: Some(Seq(3)), cursor: Some(vec![3]), ..copies(&stream("move"), rows) };
    let short = Incoming { row: Some(values![1, 2]), ..seat(2, Some("bob"), 5) };
    let misplaced = Incoming { row: Some(values![1, 3, "bob"]), ..seat(2, Some("bob"), 5) };
    let nowhere = Incoming { table: "nowhere".into(), ..seat(2, Some("bob"), 5) };
    let elsewhere = Incoming { unit: Unit::Shared, ..seat(2, Some("bob"), 5) };
    for bad in [short, misplaced, nowhere, elsewhere, seat(2, None, 5)] {
        let error = db.apply(full(vec![seat(1, Some("ann"), 5), bad.clone()])).await.expect_err("it is refused");
        assert!(is_refusal(&error), "{bad:?}: {error:?}");
        assert_eq!(guests(&db).await, [], "{bad:?}");
        assert_eq!(db.stream_state(&stream("move")).await.unwrap(), StreamState::default(), "{bad:?}");
    }
    db.apply(full(vec![seat(1, Some("ann"), 5)])).await.unwrap();
    assert_eq!(db.stream_state(&stream("move")).await.unwrap().cursor, Some(vec![3]));
}

/// I-29: a copy is not this shard's own change; what cascades and triggers did comes with the rows.
pub(crate) async fn copied_rows_are_not_captured_and_set_nothing_off(world: World) {
    let mut tables = family(OnChange::Cascade);
    tables.push(users());
    let db = world.shard_with(tables).await;
    db.alter(crate::changelog::audit_trigger()).await;
    let start = db.listen().await;
    let of = |table: &Table, unit: Unit, row: Vec<Value>| copied(table, StoredRow { unit, values: row }, Seq(1));
    let [parents, children] = <[Table; 2]>::try_from(family(OnChange::Cascade)).expect("two tables");
    copy(&db, vec![of(&children, Unit::Shared, values![10, 1])]).await;
    for _ in 0..2 {
        // The second time they replace what the first one has copied.
        let rows = vec![of(&parents, Unit::Shared, values![1]), of(&users(), bucket(1), values![1, "a", 0])];
        copy(&db, rows).await;
    }
    assert_eq!((db.count("children").await, db.count("parents").await, db.count("audit").await), (1, 1, 0));
    assert_eq!(db.log_after(start).await, vec![]);
}

/// I-10
pub(crate) async fn every_value_survives_a_copy(world: World) {
    let rows = matrix_rows();
    let (source, target) = (world.shard_with(vec![matrix()]).await, world.shard_with(vec![matrix()]).await);
    fill(&source, &rows).await;
    let copied = source.rows("matrix").await.into_iter().map(|row| copied(&matrix(), row, Seq(1)));
    assert_eq!(copy(&target, copied.collect()).await.written, rows.len() as u64);
    let same = target.rows("matrix").await == stored(&rows);
    assert!(same, "a value changed on its way");
}

/// I-10: of types that a column was declared as, some of which the server is given as texts.
pub(crate) async fn values_of_declared_types_survive_a_copy(world: World) {
    for oids in [[1043, 3802, 1042], [1043, 114, 18]] {
        let columns = [("id", INT8), ("a", TEXT), ("b", DataType::Json), ("c", TEXT)];
        let mut typed = table("typed", TableKind::Reference, &columns, &["id"]);
        for (column, oid) in typed.columns[1..].iter_mut().zip(oids) {
            column.sql_type = Some(SqlType { oid, modifier: -1 });
        }
        let db = world.shard_with(vec![typed.clone()]).await;
        let rows = [
            vec![Value::Int(1), Value::text("é"), Value::Json("{}".into()), Value::text("x")],
            vec![Value::Int(2), Value::Null, Value::Null, Value::Null],
        ];
        let of = |values: &Vec<Value>| StoredRow { unit: Unit::Shared, values: values.clone() };
        copy(&db, rows.iter().map(|values| copied(&typed, of(values), Seq(1))).collect()).await;
        assert_eq!(db.rows("typed").await, rows.iter().map(of).collect::<Vec<_>>(), "{oids:?}");
    }
}

/// I-10, I-11, I-34: see `interleaved.rs`.
pub(crate) async fn copies_and_changes_in_any_order_end_equal(world: World) {
    for seed in 0..random::rounds(6) as u64 {
        interleaved::check(&world, &world, seed).await;
    }
}
