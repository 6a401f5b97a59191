//! Placements by SQL.

use crate::changes::preset;
use crate::harness::Db;
use isles_cluster::roles::Role;
use isles_kernel::value::Value;

fn text(value: &str) -> Value {
    Value::Text(value.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_sees_and_changes_placements_by_sql() {
    let db = Db::sqlite(1).await;
    let mut client = db.client();
    let status = client.run("SELECT * FROM isles.placement_status('acme')").await;
    assert_eq!(status, ["acme|defaults|\"0\"|1|current|∅|1|11|∅|∅|∅"]);
    let config = preset().to_string();
    let set = "SELECT * FROM isles.placement_set($1, $2, 'acme', reason => 'first')";
    let made = client.try_with(set, vec![text(&config), text("\"0\"")]).await.unwrap();
    let etag = made[0].split('|').next().unwrap().to_owned();
    assert!(made[0].ends_with("|1|1|∅"), "{made:?}");
    let stale = client.try_with(set, vec![text(&config), text("\"0\"")]).await.unwrap_err();
    assert_eq!(stale.sqlstate, "40001");
    let wrong = client.try_with(set, vec![text("{}"), text(&etag)]).await.unwrap_err();
    assert_eq!(wrong.sqlstate, "22023");
    assert!(wrong.detail.unwrap().lines().count() >= 3, "each field");
    let got = client.run("SELECT * FROM isles.placement_get(tenant => 'acme')").await;
    assert!(got[0].starts_with(&format!("{etag}|configured|{{")), "{got:?}");
    let wrong = client.run("SELECT * FROM isles.placement_validate('{\"version\": 3}', 'acme')").await;
    assert!(wrong.iter().any(|row| row.starts_with("version|out_of_range|")), "{wrong:?}");
    let fine = "SELECT * FROM isles.placement_validate($1, 'acme')";
    assert!(client.try_with(fine, vec![text(&config)]).await.unwrap().is_empty());
    let dry = client.run("SELECT isles.placement_dry_run(tenant => 'acme', migration => '{}')").await;
    assert!(dry[0].contains("\"currentGeneration\":2"), "{dry:?}");
    let migrate = "SELECT * FROM isles.placement_migrate('{}', $1, 'acme')";
    let moved = client.try_with(migrate, vec![text(&etag)]).await.unwrap();
    assert!(moved[0].contains("|2|2|"), "{moved:?}");
    let etag = moved[0].split('|').next().unwrap().to_owned();
    let history = client.run("SELECT * FROM isles.placement_history('acme')").await;
    assert_eq!(history.len(), 2);
    assert!(history[0].starts_with("2|") && history[0].contains("|migrate|alice|2|"), "{history:?}");
    assert!(history[1].contains("|put|alice|1|first|"), "{history:?}");
    let diff = client.run("SELECT * FROM isles.placement_diff(1, tenant => 'acme')").await;
    assert!(diff.contains(&"currentGeneration|1|2".to_string()), "{diff:?}");
    let remove = "SELECT * FROM isles.placement_remove_generation(1, $1, 'acme')";
    assert_eq!(client.try_with(remove, vec![text(&etag)]).await.unwrap_err().sqlstate, "55000");
    let status = client.run("SELECT * FROM isles.placement_status('acme')").await;
    assert!(status[1].contains("|1|in_force|2"), "{status:?}");
}

/// Hole B40: only administrators, and no change is half of a transaction.
#[tokio::test(flavor = "multi_thread")]
async fn placements_are_for_administrators_and_outside_of_transactions() {
    let db = Db::sqlite(1).await;
    let mut owner = db.client_as(Role { admin: false, ..Role::default() }, &[]).unwrap();
    for sql in [
        "SELECT * FROM isles.placement_status()",
        "SELECT * FROM isles.placement_get()",
        "SELECT * FROM isles.placement_set('{}', '0')",
        "SELECT * FROM isles.placement_migrate('{}', '0')",
        "SELECT * FROM isles.placement_remove_generation(1, '0')",
        "SELECT * FROM isles.placement_validate('{}')",
        "SELECT isles.placement_dry_run('{}')",
        "SELECT * FROM isles.placement_history()",
        "SELECT * FROM isles.placement_diff(1)",
    ] {
        assert_eq!(owner.fails(sql).await, "42501", "{sql}");
    }
    let mut client = db.client();
    client.run("BEGIN").await;
    client.run("SELECT * FROM isles.placement_status()").await;
    assert_eq!(client.fails("SELECT * FROM isles.placement_migrate('{}', '0')").await, "25001");
    client.run("ROLLBACK").await;
    for (sql, state) in [
        ("SELECT * FROM isles.placement_set('{}', 'x')", "22023"),
        ("SELECT * FROM isles.placement_set('{}', NULL)", "22004"),
        ("SELECT * FROM isles.placement_migrate('{\"colour\": 1}', '0')", "22023"),
        ("SELECT * FROM isles.placement_history('acme', -1)", "22023"),
        ("SELECT * FROM isles.placement_diff(7, tenant => 'acme')", "42704"),
        ("SELECT isles.placement_dry_run()", "22023"),
    ] {
        assert_eq!(client.fails(sql).await, state, "{sql}");
    }
}
