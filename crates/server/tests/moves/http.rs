//! Plans and routing over HTTP.

use crate::harness::Setup;
use crate::world::{POSTGRES, SQLITE, World, id_of};
use serde_json::{Value, json};

/// The runbook by its paths, with the names and phases that it gives them.
async fn the_runbook(setup: Setup) {
    let world = World::start(setup).await;
    let name = world.tenant_on("s0", "acme", 30).await;
    let rows = world.rows_of(&name).await;
    let version = world.get("/admin/routing").1["data"]["version"].as_u64().unwrap();
    let order = json!({"sourceShard": "s0", "targetShard": "s1", "tenantIds": [name, name], "description": "room"});
    let plan = world.act("", &order, 201);
    assert_eq!(
        (&plan["phase"], &plan["tenantIds"], &plan["description"]),
        (&json!("planning"), &json!([name]), &json!("room"))
    );
    let id = &id_of(&plan);
    assert_eq!(world.act(&format!("/{id}/dual-write"), &json!({}), 200)["phase"], "dual_write");
    // At once: whoever polls for nothing is not refused.
    assert_eq!(world.act(&format!("/{id}/backfill"), &json!({}), 200)["phase"], "backfill");
    let ready = world.until_stage(id, "ready").await;
    assert_eq!((&ready["phase"], &ready["tail"]["status"]), (&json!("cutover_pending"), &json!("caught_up")));
    assert_eq!(world.act(&format!("/{id}/tail"), &json!({}), 200)["tail"]["lag"], 0);
    let early = world.refused(&format!("/admin/shards/split/{id}/cutover"), &json!({}));
    assert_eq!(early, (409, "INVALID_PHASE".into()), "it is not verified");
    world.act(&format!("/{id}/verify"), &json!({"repair": true}), 200);
    let verified = world.until_stage(id, "ready").await;
    assert_eq!(verified["verification"]["status"], "passed");
    assert_eq!(world.act(&format!("/{id}/cutover"), &json!({"dryRun": true}), 200)["stage"], "switching");
    world.act(&format!("/{id}/cutover"), &json!({}), 200);
    let served = world.until_stage(id, "guarding").await;
    assert_eq!((&served["phase"], served["routingVersionCutover"].as_u64()), (&json!("completed"), Some(version + 1)));
    assert_eq!((world.shard_of(&name).await.as_str(), world.rows_of(&name).await), ("s1", rows));
    let figures = &world.get("/admin/shards/metrics").1["data"][0];
    for (figure, wanted) in [
        ("splitId", json!(id)),
        ("sourceShard", json!("s0")),
        ("targetShard", json!("s1")),
        ("phase", json!("completed")),
        ("totalRowsCopied", json!(30)),
        ("backfillStatus", json!("completed")),
        ("tailStatus", json!("caught_up")),
        ("verification", json!("passed")),
        ("tenants", json!([name])),
        ("etaSeconds", Value::Null),
    ] {
        assert_eq!(figures[figure], wanted, "{figure}: {figures}");
    }
    assert!(
        figures["pauseMicros"].as_u64().unwrap() > 0 && figures["startedAt"].as_u64() <= figures["updatedAt"].as_u64()
    );
    world.act(&format!("/{id}/complete"), &json!({}), 200);
    world.until_stage(id, "done").await;
    assert_eq!(world.refused(&format!("/admin/shards/split/{id}/rollback"), &json!({})), (409, "INVALID_PHASE".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runbook_on_sqlite() {
    the_runbook(SQLITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runbook_on_postgresql() {
    the_runbook(POSTGRES).await;
}

/// Plan and run in one request; the routing's versions, and what differs between them.
#[tokio::test(flavor = "multi_thread")]
async fn one_request_does_it_all_and_the_routing_tells() {
    let world = World::start(SQLITE).await;
    let name = world.tenant_on("s0", "acme", 10).await;
    let version = world.get("/admin/routing").1["data"]["version"].as_u64().unwrap();
    let order = json!({"targetShard": "s1", "tenantIds": [name], "options": {"complete": true}});
    assert_eq!(
        world.act("/run", &json!({"targetShard": "s1", "tenantIds": [name], "dryRun": true}), 200)["phase"],
        "planning"
    );
    let plan = world.act("/run", &order, 202);
    let id = &id_of(&plan);
    assert_eq!(world.until_stage(id, "done").await["phase"], "completed");
    let buckets = json!({"group": "users", "ranges": [{"first": 0, "last": 1}], "numbers": [3]});
    let plan = world.act("", &json!({"targetShard": "s2", "buckets": buckets}), 201);
    assert_eq!(plan["buckets"]["ranges"], json!([{"first": 0, "last": 1}, {"first": 3, "last": 3}]));
    world.act(&format!("/{}/run", id_of(&plan)), &json!({"complete": true}), 202);
    world.until_stage(&id_of(&plan), "done").await;
    let plans = world.get("/admin/shards/split").1["data"].clone();
    assert_eq!([&plans[0]["id"], &plans[1]["id"]], [&plan["id"], &json!(id)], "the newest first");
    assert_eq!(world.get(&format!("/admin/shards/split/{id}")).1["data"]["id"], json!(id));

    let routing = world.get("/admin/routing").1["data"].clone();
    assert_eq!((routing["version"].as_u64(), &routing["pins"][&name]), (Some(version + 2), &json!("s1")));
    let history = world.get("/admin/routing/history?limit=2").1["data"].clone();
    assert_eq!(history.as_array().unwrap().len(), 2);
    assert_eq!(
        (history[0]["version"].as_u64(), history[1]["version"].as_u64()),
        (Some(version + 2), Some(version + 1))
    );
    assert!(history[1]["description"].as_str().unwrap().contains(id));
    let diff = |from: u64, to: u64| world.get(&format!("/admin/routing/diff?from={from}&to={to}")).1["data"].clone();
    let tenant = diff(version, version + 1);
    assert_eq!(tenant["addedTenants"], json!([{"tenantId": name, "shard": "s1"}]));
    assert_eq!((&tenant["addedRanges"], &tenant["removedTenants"]), (&json!([]), &json!([])));
    assert_eq!(diff(version + 1, version)["removedTenants"], json!([{"tenantId": name, "shard": "s1"}]));
    let ranges = diff(version + 1, version + 2);
    assert_eq!(ranges["addedTenants"], json!([]));
    assert!(
        ranges["addedRanges"]
            .as_array()
            .unwrap()
            .contains(&json!({"group": "users", "first": 0, "last": 1, "shard": "s2"})),
        "{ranges}"
    );
    assert_eq!(diff(1, version + 2)["addedRanges"], world.get("/admin/routing/diff?from=1").1["data"]["addedRanges"]);
    for (path, status) in [
        ("/admin/routing/diff", 400),
        ("/admin/routing/diff?from=x", 400),
        ("/admin/routing/diff?from=0", 404),
        ("/admin/routing/diff?from=1&to=999", 404),
        ("/admin/routing/diff?from=1&more=2", 400),
        ("/admin/routing/history?limit=0", 400),
        ("/admin/routing/history?limit=1001", 400),
        ("/admin/routing/history?limit=-1", 400),
    ] {
        assert_eq!(world.get(path).0, status, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_has_its_status_and_its_code() {
    let world = World::start(SQLITE).await;
    let name = world.tenant_on("s0", "acme", 3).await;
    let split = "/admin/shards/split";
    for order in [
        json!({}),
        json!([]),
        json!({"targetShard": "s1"}),
        json!({"targetShard": "s1", "tenantIds": []}),
        json!({"targetShard": "s1", "tenantIds": [""]}),
        json!({"targetShard": "s1", "tenantIds": "acme"}),
        json!({"targetShard": "s0", "tenantIds": [name]}),
        json!({"targetShard": "s9", "tenantIds": [name]}),
        json!({"targetShard": "S 1", "tenantIds": [name]}),
        json!({"targetShard": "s2", "sourceShard": "s1", "tenantIds": [name]}),
        json!({"targetShard": "s1", "tenantIds": [name], "buckets": {"group": "users", "numbers": [1]}}),
        json!({"targetShard": "s1", "buckets": {"group": "users"}}),
        json!({"targetShard": "s1", "buckets": {"group": "users", "numbers": [99]}}),
        json!({"targetShard": "s1", "buckets": {"group": "users", "ranges": [{"first": 3, "last": 2}]}}),
        json!({"targetShard": "s1", "buckets": {"group": "users", "ranges": [{"first": 0, "last": u32::MAX}]}}),
        json!({"targetShard": "s1", "tenantIds": [name], "options": {"pauseLimitMs": 0}}),
        json!({"targetShard": "s1", "tenantIds": [name], "options": {"waiveVerifcation": true}}),
        json!({"targetShard": "s1", "tenantIds": [name], "tenantId": "x"}),
        json!({"targetShard": "s1", "tenantIds": [name], "description": "x".repeat(1_001)}),
        json!({"targetShard": "s1", "tenantIds": (0..1_001).map(|n| format!("t{n}")).collect::<Vec<_>>()}),
    ] {
        for path in [split.to_owned(), format!("{split}/run")] {
            assert_eq!(world.refused(&path, &order), (400, "INVALID_SPLIT".into()), "{order}");
        }
    }
    assert_eq!(world.get(split).1["data"], json!([]), "nothing was planned");
    let large = json!({"targetShard": "s1", "description": "x".repeat(2 << 20)});
    assert_eq!(world.refused(split, &large).0, 413);
    let id = id_of(&world.act("", &json!({"targetShard": "s1", "tenantIds": [name]}), 201));
    assert_eq!(world.refused(split, &json!({"targetShard": "s2", "tenantIds": [name]})), (400, "INVALID_SPLIT".into()));
    for action in ["backfill", "tail", "verify", "cutover", "complete"] {
        assert_eq!(
            world.refused(&format!("{split}/{id}/{action}"), &json!({})),
            (409, "INVALID_PHASE".into()),
            "{action}"
        );
    }
    for action in ["dual-write", "backfill", "tail", "verify", "cutover", "rollback", "complete", "run"] {
        let unknown = world.refused(&format!("{split}/m0/{action}"), &json!({}));
        assert_eq!(unknown, (404, "SPLIT_NOT_FOUND".into()), "{action}");
        let stray = json!({"repair": true, "complete": true});
        assert_eq!(world.refused(&format!("{split}/{id}/{action}"), &stray), (400, "INVALID_SPLIT".into()), "{action}");
        assert_eq!(world.verb("DELETE", &format!("{split}/{id}/{action}")), 405, "{action}");
    }
    assert_eq!(world.refused(&format!("{split}/{id}/dance"), &json!({})), (404, "NOT_FOUND".into()));
    assert_eq!(world.get(&format!("{split}/m0")).0, 404);
    for (verb, path) in [
        ("DELETE", split),
        ("PUT", "/admin/routing"),
        ("POST", "/admin/shards/metrics"),
        ("GET", "/admin/shards/split/run"),
    ] {
        assert_eq!(world.verb(verb, path), 405, "{verb} {path}");
    }
    assert_eq!(world.get("/admin").0, 404);
    assert_eq!(world.get("/admin/nothing/here").0, 404);
    assert_eq!(world.get(&format!("{split}/{id}")).1["data"]["phase"], "planning", "nothing has happened to it");
}

/// A table becomes a tenant table by HTTP: tried, begun, watched; and what makes no sense is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_becomes_a_tenant_table() {
    let world = World::start(SQLITE).await;
    let made = "CREATE TABLE letters (id int PRIMARY KEY, owner text); \
                INSERT INTO letters SELECT n, 'tenant ' || (n % 3)::text FROM generate_series(1, 30) AS s(n)";
    world.admin.batch_execute(made).await.unwrap();
    let order = json!({"table": "letters", "tenantBy": "owner"});
    let (status, tried) =
        world.post("/admin/migrations", &json!({"table": "letters", "tenantBy": "owner", "dryRun": true}));
    assert_eq!((status, &tried["data"]["rows"], &tried["data"]["tenants"]), (200, &json!(30), &json!(3)));
    assert_eq!(world.get("/admin/migrations").1["data"], json!([]));
    for (body, status) in [
        (json!({"table": "letters"}), 400),
        (json!({"table": "nothing", "tenantBy": "owner"}), 404),
        (json!({"table": "letters", "tenantBy": "owner", "more": 1}), 400),
    ] {
        assert_eq!(world.post("/admin/migrations", &body).0, status, "{body}");
    }
    assert_eq!(world.verb("DELETE", "/admin/migrations/letters"), 404);
    let (status, begun) = world.post("/admin/migrations", &order);
    assert_eq!(
        (status, &begun["data"]["table"], &begun["data"]["tenantBy"]),
        (202, &json!("letters"), &json!("owner"))
    );
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let seen = world.get("/admin/migrations").1["data"][0].clone();
        if seen["state"] == "done" {
            assert_eq!((&seen["rowsCopied"], &seen["error"]), (&json!(30), &Value::Null));
            break;
        }
        assert!(std::time::Instant::now() < until, "{seen}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    world.admin.batch_execute("SET isles.tenant = 'tenant 1'").await.unwrap();
    let rows = world.admin.query("SELECT id FROM letters", &[]).await.unwrap();
    assert_eq!(rows.len(), 10);
}

/// I-59: who is nobody is 401, and who is not an administrator 403, on every path that is described; and every path and
/// verb that is described is there.
#[tokio::test(flavor = "multi_thread")]
async fn every_path_is_described_and_asks_who_it_is() {
    let world = World::start(SQLITE).await;
    for statement in [
        "CREATE USER bob PASSWORD 'two'",
        "CREATE USER eve PASSWORD 'three'",
        "ALTER ROLE eve SET isles.tenant = 'acme'",
        "ALTER ROLE eve SET isles.tenant_locked = on",
    ] {
        world.admin.batch_execute(statement).await.unwrap();
    }
    assert_eq!(world.request("GET", "/admin/routing", Some("isles:wrong"), "").0, 401);
    let described: Value = serde_json::from_str(&world.request("GET", "/openapi.json", None, "").1).unwrap();
    let mut asked = 0;
    for (path, verbs) in described["paths"].as_object().unwrap() {
        for (verb, operation) in verbs.as_object().unwrap() {
            for action in actions(operation) {
                let path = path.replace("{id}", "m0").replace("{shard}", "s0").replace("{table}", "notes");
                let path = path.replace("{name}", "users_name").replace("{action}", action);
                let status = |who| world.request(&verb.to_uppercase(), &path, who, "{}").0;
                if !path.starts_with("/admin") {
                    assert!(![404, 405].contains(&status(None)), "{verb} {path}");
                    continue;
                }
                let seen = [None, Some("bob:two"), Some("eve:three")].map(status);
                assert_eq!(seen, [401, 403, 403], "{verb} {path}");
                asked += 1;
            }
        }
    }
    assert!(asked >= 18, "{asked} operations");
    assert_eq!(world.get("/admin/shards/split").1["data"], json!([]));
}

/// What the last part of a path can be, if it is one of some words.
fn actions(operation: &Value) -> Vec<&str> {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    match parameters.into_iter().find(|parameter| parameter["name"] == "action") {
        Some(action) => {
            action["schema"]["enum"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
        }
        None => vec![""],
    }
}

/// What Prometheus sees of a move.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_of_moves() {
    let world = World::start(SQLITE).await;
    let name = world.tenant_on("s0", "acme", 25).await;
    let text = || world.request("GET", "/metrics", None, "").1;
    let before = text();
    for line in ["isles_moves{phase=\"completed\"} 0", "isles_move_rows_copied_total 0", "isles_held_statements 0"] {
        assert!(before.contains(line), "{line} is not in\n{before}");
    }
    let id = id_of(&world.must(&["run", "--tenant", &name, "--to", "s1"]));
    let version = world.get("/admin/routing").1["data"]["version"].clone();
    let begun = std::time::Instant::now();
    // Plans are looked at once a second.
    while !text().contains("isles_moves{phase=\"completed\"} 1") {
        assert!(begun.elapsed().as_secs() < 30, "{}", text());
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let after = text();
    for line in [
        "isles_move_rows_copied_total 25".to_owned(),
        format!("isles_move_lag{{plan=\"{id}\"}} 0"),
        "isles_move_pause_seconds_count 1".into(),
        "isles_move_pause_seconds_bucket{le=\"+Inf\"} 1".into(),
        format!("isles_routing_version {version}"),
    ] {
        assert!(after.contains(&line), "{line} is not in\n{after}");
    }
}
