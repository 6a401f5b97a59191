//! What tenants store, told in pages; and a tenant's rows, which go in pages.

use crate::fixtures::World;
use crate::given::*;
use crate::seen::check_log;
use isles_engine::shard::{ImportMode, StoredRow};
use isles_engine::usage::{MAX_USAGE_TENANTS, TenantRange};
use isles_kernel::names::TenantId;
use isles_kernel::schema::{Deferral, ForeignKey, OnChange, Table, TableKind, Unit};

fn note(name: Option<&str>, id: i64, body: &str) -> StoredRow {
    StoredRow { unit: Unit::Tenant(name.and_then(tenant)), values: values![id, body] }
}

/// Names and rows, page by page.
async fn pages(db: &Db, tenants: usize) -> Vec<Vec<(String, u64)>> {
    let (mut range, mut pages) = (TenantRange::All, Vec::new());
    loop {
        let page = db.usage(&range, tenants).await.unwrap();
        let name = |tenant: &Option<TenantId>| tenant.as_ref().map_or("∅".into(), ToString::to_string);
        pages.push(page.tenants.iter().map(|usage| (name(&usage.tenant), usage.rows)).collect());
        match page.next {
            Some(next) => range = next,
            None => return pages,
        }
    }
}

fn counted(of: &[(&str, u64)]) -> Vec<(String, u64)> {
    of.iter().map(|(name, rows)| ((*name).to_string(), *rows)).collect()
}

fn tasks() -> Table {
    table("tasks", TableKind::Tenant, &[("id", INT8), ("note", INT8)], &["id"])
}

pub(crate) async fn usage_is_told_a_page_of_tenants_at_a_time(world: World) {
    let db = world.shard_with(vec![notes(), tasks()]).await;
    assert_eq!(pages(&db, 3).await, [vec![]]);
    let rows: Vec<StoredRow> = ["a", "b", "d", "é"].iter().map(|name| note(Some(name), 1, "x")).collect();
    db.import("notes", rows, ImportMode::Insert).await.unwrap();
    db.import("notes", vec![note(None, 1, "x"), note(None, 2, "x")], ImportMode::Insert).await.unwrap();
    let task = |name: &str, id: i64| StoredRow { unit: Unit::Tenant(tenant(name)), values: values![id, 1] };
    db.import("tasks", vec![task("b", 1), task("c", 1), task("c", 2)], ImportMode::Insert).await.unwrap();
    let all = [("∅", 2), ("a", 1), ("b", 2), ("c", 2), ("d", 1), ("é", 1)];
    for size in 1..=7 {
        let told = pages(&db, size).await;
        assert!(told.iter().all(|page| page.len() <= size), "{size}: {told:?}");
        assert_eq!(told.concat(), counted(&all), "{size}");
    }
    for (asked, refused) in [(0, true), (1, false), (MAX_USAGE_TENANTS, false), (MAX_USAGE_TENANTS + 1, true)] {
        assert_eq!(db.usage(&TenantRange::All, asked).await.is_err(), refused, "{asked}");
    }
}

pub(crate) async fn rows_are_counted_by_bucket(world: World) {
    let db = world.shard().await;
    let mut expected = std::collections::BTreeMap::new();
    for id in 0..40 {
        db.put_user(id, &format!("{id}@x"), 0).await;
        *expected.entry(bucket_of(id)).or_insert(0) += 1;
    }
    let mut snapshot = db.snapshot().await.unwrap();
    db.put_user(41, "late@x", 0).await;
    assert_eq!(snapshot.bucket_rows("users").await.unwrap(), expected);
    for other in ["notes", "plans", "nothing"] {
        assert!(snapshot.bucket_rows(other).await.is_err(), "{other}");
    }
}

pub(crate) async fn usage_of_one_tenant_is_its_own(world: World) {
    let db = world.shard().await;
    db.put_note(Some("acme"), 1, "one").await;
    db.put_note(Some("beta"), 1, "one").await;
    db.put_note(Some("beta"), 2, "two").await;
    for (name, rows) in [(Some("acme"), 1), (Some("beta"), 2), (None, 0)] {
        let page = db.usage(&TenantRange::Only(name.and_then(tenant)), 10).await.unwrap();
        assert_eq!(page.tenants.iter().map(|usage| usage.rows).sum::<u64>(), rows, "{name:?}");
        assert_eq!(page.next, None);
    }
}

pub(crate) async fn bytes_grow_and_shrink_with_the_values(world: World) {
    let db = world.shard().await;
    let bytes = async || {
        let page = db.usage(&TenantRange::Only(tenant("acme")), 1).await.unwrap();
        page.tenants.first().map_or(0, |usage| usage.bytes)
    };
    assert_eq!(bytes().await, 0);
    db.put_note(Some("acme"), 1, &"x".repeat(1_000)).await;
    let one = bytes().await;
    assert!((1_000..1_100).contains(&one), "{one}");
    db.put_note(Some("acme"), 2, &"y".repeat(500)).await;
    let two = bytes().await;
    assert!((one + 500..one + 600).contains(&two), "{two}");
    db.purge("notes", &tenant("acme"), None).await.unwrap();
    assert_eq!(bytes().await, 0);
}

/// Names of the tenants of a table, page by page.
async fn names(db: &Db, table: &str, limit: usize) -> Vec<Vec<String>> {
    let mut snapshot = db.snapshot().await.unwrap();
    let (mut after, mut pages) = (None, Vec::new());
    loop {
        let page = snapshot.tenants(table, after.as_ref(), limit).await.unwrap();
        assert!(page.len() <= limit);
        pages.push(page.iter().map(|tenant| tenant.as_ref().map_or("∅".into(), ToString::to_string)).collect());
        match page.last() {
            Some(last) if page.len() == limit => after = Some(last.clone()),
            _ => return pages,
        }
    }
}

pub(crate) async fn tenants_are_named_a_page_at_a_time(world: World) {
    let db = world.shard_with(vec![notes(), tasks(), users()]).await;
    assert_eq!(names(&db, "notes", 2).await, [Vec::<String>::new()]);
    let rows = [None, Some("a"), Some("b"), Some("é"), Some("~")].into_iter();
    let rows: Vec<StoredRow> = rows.flat_map(|name| (0..3).map(move |id| note(name, id, "x"))).collect();
    db.import("notes", rows, ImportMode::Insert).await.unwrap();
    let task = StoredRow { unit: Unit::Tenant(tenant("c")), values: values![1, 1] };
    db.import("tasks", vec![task], ImportMode::Insert).await.unwrap();
    for limit in 1..=7 {
        assert_eq!(names(&db, "notes", limit).await.concat(), ["∅", "a", "b", "~", "é"], "{limit}");
        assert_eq!(names(&db, "tasks", limit).await.concat(), ["c"], "{limit}");
    }
    let mut snapshot = db.snapshot().await.unwrap();
    let after = |name: &str| Some(tenant(name));
    assert_eq!(snapshot.tenants("notes", after("aa").as_ref(), 2).await.unwrap(), [tenant("b"), tenant("~")]);
    assert_eq!(snapshot.tenants("notes", Some(&None), 1).await.unwrap(), [tenant("a")]);
    assert_eq!(snapshot.tenants("notes", after("é").as_ref(), 9).await.unwrap(), []);
    db.put_note(Some("acme"), 1, "later").await;
    assert_eq!(snapshot.tenants("notes", None, 9).await.unwrap().len(), 5, "it is of the snapshot's moment");
    let other = snapshot.tenants("users", None, 9).await.unwrap_err();
    assert!(matches!(other, isles_engine::error::ShardError::Invalid(_)), "{other:?}");
    assert_eq!(sqlstate(&snapshot.tenants("nowhere", None, 9).await.unwrap_err()), "42P01");
    for limit in [0, MAX_USAGE_TENANTS + 1] {
        assert!(is_refusal(&snapshot.tenants("notes", None, limit).await.unwrap_err()), "{limit}");
    }
}

pub(crate) async fn a_tenants_rows_go_in_pages_and_are_captured(world: World) {
    let db = world.shard().await;
    for id in 1..=3 {
        db.put_note(Some("acme"), id, "a").await;
    }
    db.put_note(Some("beta"), 1, "b").await;
    db.put_user(1, "x", 0).await;
    let start = db.listen().await;
    let mut gone = Vec::new();
    for _ in 0..3 {
        gone.push(db.purge("notes", &tenant("acme"), Some(2)).await.unwrap());
    }
    assert_eq!(gone, [2, 1, 0]);
    check_log(&db, start, &["notes @acme - (1 'a')", "notes @acme - (2 'a')", "notes @acme - (3 'a')"]).await;
    assert_eq!(db.rows("notes").await, [note(Some("beta"), 1, "b")]);
    // Tables of another kind have no rows of a tenant.
    assert_eq!(db.purge("users", &tenant("acme"), None).await.unwrap(), 0);
    assert_eq!(db.count("users").await, 1);
    for asked in [0, 10_001] {
        assert!(is_refusal(&db.purge("notes", &tenant("beta"), Some(asked)).await.unwrap_err()), "{asked}");
    }
}

pub(crate) async fn a_purge_of_parents_is_refused_while_children_are_there(world: World) {
    let mut tasks = tasks();
    tasks.foreign_keys = vec![ForeignKey {
        name: "tasks_note".into(),
        columns: vec!["note".into()],
        table: "notes".into(),
        references: vec!["id".into()],
        on_delete: OnChange::NoAction,
        on_update: OnChange::NoAction,
        deferral: Deferral::None,
    }];
    let db = world.shard_with(vec![notes(), tasks]).await;
    db.put_note(Some("acme"), 1, "a").await;
    let task = StoredRow { unit: Unit::Tenant(tenant("acme")), values: values![7, 1] };
    db.import("tasks", vec![task], ImportMode::Insert).await.unwrap();
    let refused = db.purge("notes", &tenant("acme"), Some(10)).await.unwrap_err();
    assert_eq!(sqlstate(&refused), "23503");
    assert_eq!(db.purge("tasks", &tenant("acme"), Some(10)).await.unwrap(), 1);
    assert_eq!(db.purge("notes", &tenant("acme"), Some(10)).await.unwrap(), 1);
}
