//! Digests: equal for equal rows, different for any difference, and they add up.

use crate::copying::digest;
use crate::fixtures::World;
use crate::given::*;
use crate::values::{column, matrix, matrix_rows, stored};
use isles_engine::shard::{Digest, ImportMode, KeyRange, Scope, StoredRow};
use isles_kernel::schema::Unit;
use isles_kernel::value::{Encoder, Value};

pub(crate) async fn an_empty_table_has_the_empty_digest(world: World) {
    let db = world.shard().await;
    assert_eq!(digest(&db, "users").await, Digest::default());
}

/// I-10: the digest is the one of the kernel's own encoding, which is the same on each engine.
pub(crate) async fn a_digest_is_the_sum_of_its_rows(world: World) {
    let db = world.shard_with(vec![matrix()]).await;
    let rows = stored(&matrix_rows());
    db.import("matrix", rows.clone(), ImportMode::Insert).await.unwrap();
    let mut expected = Digest::default();
    let mut scratch = Encoder::default();
    rows.iter().for_each(|row| expected.add_row(row, &mut scratch));
    assert_eq!(digest(&db, "matrix").await, expected);
}

/// I-10: the differ itself, against planted differences.
pub(crate) async fn any_single_change_changes_the_digest(world: World) {
    let db = world.shard_with(vec![matrix(), users(), notes()]).await;
    let rows = matrix_rows();
    let first = vec![rows[0].clone()];
    db.import("matrix", stored(&first), ImportMode::Insert).await.unwrap();
    let mut seen = vec![digest(&db, "matrix").await];
    for (at, ty) in isles_kernel::value::DataType::ALL.into_iter().enumerate() {
        for other in [rows[1][at + 1].clone(), Value::Null] {
            let sql = format!("UPDATE matrix SET {} = $1 WHERE id = 1", column(ty));
            db.must(&sql, vec![other.clone()]).await;
            let now = digest(&db, "matrix").await;
            assert!(!seen.contains(&now), "{ty:?} became {other:?} unseen");
            seen.push(now);
        }
    }
}

pub(crate) async fn null_and_empty_and_scale_and_sign_differ(world: World) {
    let db = world.shard_with(vec![matrix()]).await;
    db.must("INSERT INTO matrix (id) VALUES (1)", vec![]).await;
    for (name, values) in [
        ("c_text", values!["", " ", "a", "A", Value::Null]),
        ("c_numeric", vec![numeric("1"), numeric("1.0"), numeric("1.00"), numeric("-1"), Value::Null]),
        ("c_double_precision", vec![Value::Float(0.0), Value::Float(-0.0), Value::Float(f64::NAN), Value::Null]),
        ("c_bytea", vec![Value::Bytes(vec![]), Value::Bytes(vec![0]), Value::Bytes(vec![0, 0]), Value::Null]),
    ] {
        let mut seen = Vec::new();
        for value in values {
            db.must(&format!("UPDATE matrix SET {name} = $1"), vec![value.clone()]).await;
            let now = digest(&db, "matrix").await;
            assert!(!seen.contains(&now), "{name} became {value:?} unseen");
            seen.push(now);
        }
    }
}

/// Equal rows in another unit are other rows.
pub(crate) async fn the_unit_is_part_of_the_digest(world: World) {
    let mut seen = Vec::new();
    for name in [None, Some("acme"), Some("beta")] {
        let db = world.shard().await;
        let row = StoredRow { unit: Unit::Tenant(name.and_then(tenant)), values: values![1, "x"] };
        db.import("notes", vec![row], ImportMode::Insert).await.unwrap();
        let now = digest(&db, "notes").await;
        assert!(!seen.contains(&now), "{name:?}");
        seen.push(now);
    }
}

/// Order of writing and history do not matter.
pub(crate) async fn equal_rows_have_equal_digests(world: World) {
    let (one, two) = (world.shard().await, world.shard().await);
    for id in 0..20 {
        one.put_user(id, "x", id).await;
        two.put_user(19 - id, "y", 0).await;
    }
    assert_ne!(digest(&one, "users").await, digest(&two, "users").await);
    two.must("UPDATE users SET email = 'x', n = id", vec![]).await;
    assert_eq!(digest(&one, "users").await, digest(&two, "users").await);
}

pub(crate) async fn digests_of_adjacent_ranges_add_up(world: World) {
    let db = world.shard().await;
    for id in 0..30 {
        db.put_user(id, "x", id).await;
    }
    let mut snapshot = db.snapshot().await.unwrap();
    let whole = snapshot.digest(&KeyRange::table("users")).await.unwrap();
    assert_eq!(whole.rows, 30);
    let mut by_key = Digest::default();
    let bounds = [None, Some(values![3]), Some(values![17]), Some(values![18]), None];
    for pair in bounds.windows(2) {
        let range = KeyRange { after: pair[0].clone(), through: pair[1].clone(), ..KeyRange::table("users") };
        by_key = by_key + snapshot.digest(&range).await.unwrap();
    }
    assert_eq!(by_key, whole);
    let mut by_bucket = Digest::default();
    for bucket in 0..BUCKETS {
        let scope = Scope::Buckets(users_group(), vec![bucket..=bucket]);
        by_bucket = by_bucket + snapshot.digest(&KeyRange::table("users").within(scope)).await.unwrap();
    }
    assert_eq!(by_bucket, whole);
}
