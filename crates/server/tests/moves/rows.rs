//! Rows and changes of single shards over HTTP.

use crate::harness::Setup;
use crate::world::{POSTGRES, SQLITE, World, id_of};
use serde_json::{Value, json};

fn export(world: &World, shard: &str, wanted: &Value) -> Value {
    let (status, answer) = world.post(&format!("/admin/shards/{shard}/export"), wanted);
    assert_eq!((status, &answer["success"]), (200, &json!(true)), "{wanted}: {answer}");
    answer
}

/// All pages of a table, and how many there were.
fn export_all(world: &World, shard: &str, wanted: &Value) -> (Vec<Value>, usize) {
    let (mut rows, mut pages, mut wanted) = (Vec::new(), 0, wanted.clone());
    loop {
        let page = export(world, shard, &wanted);
        rows.extend(page["rows"].as_array().unwrap().iter().cloned());
        pages += 1;
        match page["nextCursor"].as_str() {
            Some(cursor) => wanted["cursor"] = json!(cursor),
            None => return (rows, pages),
        }
    }
}

/// What was exported is imported again, exactly; what the shard does not own is not.
async fn rows_go_out_and_in(setup: Setup) {
    let world = World::start(setup).await;
    let name = world.tenant_on("s0", "acme", 450).await;
    let client = world.client_of(&name).await;
    client
        .batch_execute("UPDATE notes SET body = E'a\\n\"b\" \u{e9}', n = 'NaN', f = 0.1::float8 + 0.2 WHERE id = 7")
        .await
        .unwrap();
    let before = world.rows_of(&name).await;
    let (rows, pages) = export_all(&world, "s0", &json!({"table": "notes", "tenantId": name}));
    assert_eq!((rows.len(), pages), (450, 3), "a page has 200 rows when not said");
    assert_eq!(rows[0], json!({"tenantId": name, "data": {"id": 1, "body": "note 1", "n": "1.5", "f": "1"}}));
    let (again, pages) = export_all(&world, "s0", &json!({"table": "notes", "tenantId": name, "limit": 500}));
    assert_eq!((&again, pages), (&rows, 1));
    client.batch_execute("DELETE FROM notes WHERE id > 100; UPDATE notes SET body = 'changed'").await.unwrap();
    let import = |shard: &str, body: &Value| world.post(&format!("/admin/shards/{shard}/import"), body);
    let inserted = import("s0", &json!({"table": "notes", "rows": rows[..1], "mode": "insert"}));
    assert_eq!((inserted.0, &inserted.1["error"]["code"]), (409, &json!("23505")), "{inserted:?}");
    assert_eq!(import("s0", &json!({"table": "notes", "rows": rows})).1, json!({"success": true, "rowsImported": 450}));
    assert_eq!(world.rows_of(&name).await, before);
    let stray = import("s1", &json!({"table": "notes", "rows": rows}));
    assert_eq!((stray.0, &stray.1["error"]["sqlstate"]), (409, &json!("55000")), "{stray:?}");
    assert!(stray.1["error"]["message"].as_str().unwrap().contains("is on shard s0, not on s1"), "{stray:?}");
    // After a move the source has the rows for a while, and takes no more of them.
    let id = id_of(&world.must(&["run", "--tenant", &name, "--to", "s1"]));
    let late = import("s0", &json!({"table": "notes", "rows": rows}));
    assert_eq!((late.0, &late.1["error"]["sqlstate"]), (409, &json!("55000")), "{late:?}");
    assert_eq!(import("s1", &json!({"table": "notes", "rows": rows})).0, 200);
    world.must(&["rollback", &id]);
    assert_eq!(world.rows_of(&name).await, before, "an import is a write like any other, and mirrored back");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_go_out_and_in_on_sqlite() {
    rows_go_out_and_in(SQLITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_go_out_and_in_on_postgresql() {
    rows_go_out_and_in(POSTGRES).await;
}

/// Rows by hash belong where their keys say, whatever the request says.
#[tokio::test(flavor = "multi_thread")]
async fn rows_by_hash_go_where_their_keys_say() {
    let world = World::start(SQLITE).await;
    world.admin.batch_execute("INSERT INTO users SELECT n, 'user ' || n FROM generate_series(1, 60) n").await.unwrap();
    let (rows, _) = export_all(&world, "s0", &json!({"table": "users", "buckets": {"first": 0, "last": 15}}));
    assert!(!rows.is_empty() && rows.len() < 60, "{}", rows.len());
    let bucket = rows[0]["bucket"].as_u64().unwrap();
    let (one, _) = export_all(&world, "s0", &json!({"table": "users", "bucket": bucket}));
    assert_eq!(one, rows.iter().filter(|row| row["bucket"] == bucket).cloned().collect::<Vec<_>>());
    world.admin.batch_execute("UPDATE users SET name = 'changed'").await.unwrap();
    let import = |shard: &str, rows: &[Value]| {
        world.post(&format!("/admin/shards/{shard}/import"), &json!({"table": "users", "rows": rows}))
    };
    assert_eq!(import("s0", &rows).1["rowsImported"], rows.len());
    let lied: Vec<Value> = rows.iter().map(|row| json!({"bucket": 15, "data": row["data"]})).collect();
    let stray = import("s2", &lied);
    assert_eq!((stray.0, &stray.1["error"]["sqlstate"]), (409, &json!("55000")), "{stray:?}");
    let restored: i64 =
        world.admin.query_one("SELECT count(*) FROM users WHERE name <> 'changed'", &[]).await.unwrap().get(0);
    assert_eq!(restored, rows.len() as i64);
}

/// While a move reads the log, so can an operator.
#[tokio::test(flavor = "multi_thread")]
async fn events_are_the_changes_of_a_shard() {
    let world = World::start(SQLITE).await;
    let name = world.tenant_on("s0", "acme", 3).await;
    let other = world.tenant_on("s0", "beta", 1).await;
    let id = id_of(&world.must(&["plan", "--tenant", &name, "--to", "s1"]));
    world.must(&["start", &id]);
    let start = world.get(&format!("/admin/shards/split/{id}")).1["data"]["tail"]["lastEventId"].clone();
    let client = world.client_of(&name).await;
    client.batch_execute("INSERT INTO notes (id, body) VALUES (9, 'x')").await.unwrap();
    client.batch_execute("UPDATE notes SET body = 'y' WHERE id = 9").await.unwrap();
    world.client_of(&other).await.batch_execute("DELETE FROM notes WHERE id = 1").await.unwrap();
    let events = |body: Value| world.post("/admin/shards/s0/events", &body);
    let (status, answer) = events(json!({"afterId": start}));
    assert_eq!(status, 200, "{answer}");
    let seen: Vec<(&str, &Value)> = answer["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| (event["op"].as_str().unwrap(), &event["tenantId"]))
        .collect();
    assert_eq!(seen, [("insert", &json!(name)), ("update", &json!(name)), ("delete", &json!(other))], "{answer}");
    let update = &answer["events"][1];
    assert_eq!(
        (&update["type"], &update["table"], &update["key"]),
        (&json!("mutation"), &json!("notes"), &json!([name, 9]))
    );
    assert_eq!((&update["before"]["body"], &update["after"]["body"]), (&json!("x"), &json!("y")));
    assert_eq!(answer["events"][0]["before"], Value::Null);
    let mine = events(json!({"afterId": start, "tenantId": name})).1;
    assert_eq!(mine["events"].as_array().unwrap().len(), 2);
    let one = events(json!({"afterId": start, "limit": 1})).1;
    assert_eq!(one["events"], json!([answer["events"][0]]));
    let rest = events(json!({"afterId": one["nextAfterId"]})).1;
    assert_eq!(rest["events"].as_array().unwrap().len(), 2);
    world.must(&["rollback", &id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_for_rows_are_refused() {
    let world = World::start(SQLITE).await;
    let name = world.tenant_on("s0", "acme", 2).await;
    let row = json!({"tenantId": name, "data": {"id": 1, "body": "x", "n": null, "f": null}});
    let with = |change: fn(&mut Value)| {
        let mut row = row.clone();
        change(&mut row);
        json!({"table": "notes", "rows": [row]})
    };
    for (path, body, expected) in [
        ("s9/export", json!({"table": "notes", "tenantId": name}), (404, "42704")),
        ("No/export", json!({"table": "notes", "tenantId": name}), (404, "42704")),
        ("s0/export", json!({"table": "nothing", "tenantId": name}), (404, "42P01")),
        ("s0/export", json!({"tenantId": name}), (400, "22023")),
        ("s0/export", json!({"table": "notes"}), (400, "22023")),
        ("s0/export", json!({"table": "notes", "bucket": 1}), (400, "22023")),
        ("s0/export", json!({"table": "users", "tenantId": name}), (400, "22023")),
        ("s0/export", json!({"table": "users", "buckets": {"first": 3, "last": 1}}), (400, "22023")),
        ("s0/export", json!({"table": "notes", "tenantId": name, "limit": 0}), (400, "22023")),
        ("s0/export", json!({"table": "notes", "tenantId": name, "limit": 501}), (400, "22023")),
        ("s0/export", json!({"table": "notes", "tenantId": name, "cursor": "AAAA"}), (400, "22023")),
        ("s0/export", json!({"table": "notes", "tenantId": name, "tenantColumn": "x"}), (400, "22023")),
        ("s0/import", json!({"table": "notes", "rows": []}), (400, "22023")),
        ("s0/import", json!({"table": "notes", "rows": vec![row.clone(); 501]}), (400, "22023")),
        ("s0/import", json!({"table": "nothing", "rows": [row]}), (404, "42P01")),
        ("s0/import", json!({"table": "notes", "rows": [row], "mode": "replace"}), (400, "22023")),
        ("s0/import", json!({"table": "plans", "rows": [{"data": {"id": 1}}]}), (400, "22023")),
        ("s0/import", json!({"table": "users", "rows": [{"data": {"id": null, "name": "x"}}]}), (409, "23502")),
        ("s0/import", with(|row| drop(row.as_object_mut().unwrap().remove("tenantId"))), (400, "22023")),
        ("s0/import", with(|row| drop(row["data"].as_object_mut().unwrap().remove("f"))), (400, "22023")),
        ("s0/import", with(|row| row["data"]["more"] = json!(1)), (400, "42703")),
        ("s0/import", with(|row| row["data"]["id"] = json!("x")), (400, "22P02")),
        ("s0/events", json!({"limit": 2_001}), (400, "22023")),
        ("s0/events", json!({"afterId": -1}), (400, "22023")),
        ("s9/events", json!({}), (404, "42704")),
    ] {
        let refused = world.refused(&format!("/admin/shards/{path}"), &body);
        assert_eq!(refused, (expected.0, expected.1.to_owned()), "{path} {body}");
    }
}
