//! Export and import: pages of rows, read as they are and written as clients would write them.

use crate::fixtures::World;
use crate::given::*;
use crate::seen::check_log;
use isles_engine::error::ShardError;
use isles_engine::fence::FenceMode;
use isles_engine::shard::{ImportMode, KeyRange, StoredRow};
use isles_kernel::schema::Unit;

pub(crate) async fn an_export_is_read_page_by_page_and_imported_elsewhere(world: World) {
    let (from, to) = (world.shard().await, world.shard().await);
    let rows: Vec<StoredRow> = (0..450).map(|id| user_row(id, "x", id)).collect();
    from.import("users", rows.clone(), ImportMode::Insert).await.unwrap();
    let mut range = KeyRange::table("users");
    let mut sizes = Vec::new();
    loop {
        let page = from.export(&range, None).await.unwrap();
        sizes.push(page.rows.len());
        to.import("users", page.rows, ImportMode::Upsert).await.unwrap();
        let Some(next) = page.next else { break };
        range.after = Some(next);
    }
    assert_eq!(sizes, [200, 200, 50], "a page has 200 rows when not said");
    assert_eq!(to.rows("users").await, rows);
    for (asked, refused) in [(0, true), (1, false), (500, false), (501, true)] {
        assert_eq!(from.export(&KeyRange::table("users"), Some(asked)).await.is_err(), refused, "{asked}");
    }
}

pub(crate) async fn an_imported_page_is_written_and_captured(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    let page = vec![user_row(1, "a", 0), user_row(2, "b", 0)];
    assert_eq!(db.import("users", page.clone(), ImportMode::Insert).await.unwrap(), 2);
    assert_eq!(db.rows("users").await, page);
    check_log(&db, start, &["users 1 + (1 'a' 0)", "users 2 + (2 'b' 0)"]).await;
}

pub(crate) async fn an_upsert_replaces_rows_of_its_unit(world: World) {
    let db = world.shard().await;
    db.put_user(1, "old", 0).await;
    let start = db.listen().await;
    let page = vec![user_row(1, "new", 7), user_row(2, "b", 0)];
    assert_eq!(db.import("users", page.clone(), ImportMode::Upsert).await.unwrap(), 2);
    assert_eq!(db.rows("users").await, page);
    check_log(&db, start, &["users 1 ~ (1 'old' 0) > (1 'new' 7)", "users 2 + (2 'b' 0)"]).await;
}

pub(crate) async fn an_insert_refuses_the_page_when_a_key_is_there(world: World) {
    let db = world.shard().await;
    db.put_user(2, "old", 0).await;
    let start = db.listen().await;
    let page = vec![user_row(1, "a", 0), user_row(2, "b", 0), user_row(3, "c", 0)];
    let error = db.import("users", page, ImportMode::Insert).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23505");
    assert_eq!(db.rows("users").await, vec![user_row(2, "old", 0)]);
    check_log(&db, start, &[]).await;
}

pub(crate) async fn an_import_never_replaces_a_row_of_another_unit(world: World) {
    let db = world.shard().await;
    db.put_user(1, "mine", 0).await;
    let foreign = StoredRow { unit: bucket(2), ..user_row(1, "yours", 9) };
    let page = vec![user_row(3, "c", 0), foreign];
    for mode in [ImportMode::Upsert, ImportMode::Insert] {
        let error = db.import("users", page.clone(), mode).await.unwrap_err();
        assert!(is_refusal(&error), "{error:?}");
        assert_eq!(db.rows("users").await, vec![user_row(1, "mine", 0)]);
    }
}

pub(crate) async fn tenants_import_beside_each_other(world: World) {
    let db = world.shard().await;
    let note = |name: Option<&str>, body: &str| StoredRow {
        unit: Unit::Tenant(name.and_then(tenant)),
        values: values![1, body],
    };
    let page = vec![note(None, "nobody's"), note(Some("acme"), "acme's"), note(Some("beta"), "beta's")];
    db.import("notes", page.clone(), ImportMode::Insert).await.unwrap();
    assert_eq!(db.rows("notes").await, page);
    crate::tenants::check_names(&db, &[None, Some("acme"), Some("beta")]).await;
}

/// Tenants are ordered by their bytes, on both engines.
pub(crate) async fn tenants_of_any_name_keep_their_order(world: World) {
    let db = world.shard().await;
    let names = ["A", "Z", "a", "a b", "a'b\"c", "z", "é", "日本", "😀"];
    let row = |name: &&str| StoredRow { unit: Unit::Tenant(tenant(name)), values: values![1, *name] };
    let page: Vec<StoredRow> = names.iter().map(row).collect();
    db.import("notes", page.iter().rev().cloned().collect(), ImportMode::Insert).await.unwrap();
    assert_eq!(db.rows("notes").await, page);
}

pub(crate) async fn a_row_that_does_not_fit_its_table_is_refused(world: World) {
    let db = world.shard().await;
    let short = StoredRow { unit: bucket(1), values: values![1, "a"] };
    let unitless = StoredRow { unit: Unit::Shared, ..user_row(1, "a", 0) };
    let crooked = StoredRow { unit: bucket(1), values: values!["x", "a", 0] };
    for row in [short, unitless, crooked] {
        let page = vec![user_row(2, "b", 0), row.clone()];
        let error = db.import("users", page, ImportMode::Upsert).await.expect_err(&format!("{row:?}"));
        assert!(is_refusal(&error), "{row:?}: {error:?}");
    }
    assert!(db.import("nowhere", vec![user_row(1, "a", 0)], ImportMode::Upsert).await.is_err());
    assert_eq!(db.rows("users").await, vec![]);
}

/// What is claimed is compared with the fences in the import's own transaction.
pub(crate) async fn an_import_that_claims_is_refused_by_fences(world: World) {
    let db = world.shard().await;
    let page = || vec![user_row(3, "a", 1)];
    for (mode, claimed, refused) in [
        (FenceMode::Open, 5, false),
        (FenceMode::Open, 4, true),
        (FenceMode::ReadOnly, 5, true),
        (FenceMode::Closed, 9, true),
    ] {
        db.set_fences(vec![fence_buckets(3, 3, 5, mode)], FENCE_TIME).await.unwrap();
        let imported = db.import_claiming(claim_bucket(claimed, 3), "users", page(), ImportMode::Upsert).await;
        match refused {
            true => assert!(matches!(imported, Err(ShardError::Moved { .. })), "{mode:?} {claimed}: {imported:?}"),
            false => assert_eq!(imported, Ok(1), "{mode:?} {claimed}"),
        }
    }
    assert_eq!(db.rows("users").await, page());
}
