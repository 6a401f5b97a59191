//! Placements where operators are: HTTP, the command line, metrics.

use crate::world::{SQLITE, World};
use serde_json::{Value, json};
use std::io::Write;

/// The example of a configuration, with its five groups.
fn config() -> Value {
    json!({
        "version": 2,
        "currentGeneration": 1,
        "baseRegions": { "apac": 20, "enam": 40, "weur": 40 },
        "groups": {
            "user-client": { "totalShards": 64, "members": ["authcode", "refresh"], "description": "Colocated by userId:clientId" },
            "random-high-rps": { "totalShards": 64, "members": ["revocation"], "description": "High RPS endpoints with random UUID keys" },
            "random-medium-rps": { "totalShards": 32, "members": ["session", "challenge"], "description": "Medium RPS endpoints" },
            "client-based": { "totalShards": 32, "members": ["par", "device", "ciba", "dpop"], "description": "client_id based sharding" },
            "vc": { "totalShards": 16, "members": ["credoffer", "vprequest"], "description": "Verifiable Credentials" }
        },
        "previousGenerations": [{ "generation": 0, "totalShards": 20, "validUntil": "2025-02-01T00:00:00Z" }]
    })
}

struct Reply {
    status: u16,
    etag: Option<String>,
    body: Value,
}

/// A request of the first administrator below `/admin/sharding`.
fn ask(world: &World, method: &str, path: &str, if_match: Option<&str>, body: &Value) -> Reply {
    let who = format!("isles:{}", world.password());
    let headers = if_match.map_or(String::new(), |etag| format!("If-Match: {etag}\r\n"));
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let path = format!("/admin/sharding{path}");
    let (status, head, body) = world.request_with(method, &path, Some(&who), &headers, &text);
    let etag = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("etag: ").map(str::to_owned));
    let body = serde_json::from_str(&body).unwrap_or_else(|fault| panic!("{method} {path}: {fault}: {body}"));
    Reply { status, etag, body }
}

/// The admin API of the configuration: read, put under If-Match, migrate, compare, look back.
#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_over_http() {
    let world = World::start(SQLITE).await;
    let none = Value::Null;
    let shown = ask(&world, "GET", "/config?tenant=acme", None, &none);
    assert_eq!((shown.status, shown.etag.as_deref()), (200, Some("\"0\"")));
    assert_eq!(shown.body["data"]["source"], "defaults");
    let missing = ask(&world, "PUT", "/config?tenant=acme", None, &config());
    assert_eq!((missing.status, &missing.body["error"]["code"]), (428, &json!("PRECONDITION_REQUIRED")));
    let put = ask(&world, "PUT", "/config?tenant=acme&reason=first", Some("\"0\""), &config());
    assert_eq!(put.status, 200, "{}", put.body);
    assert_eq!(put.body["data"]["config"], config());
    let etag = put.etag.unwrap();
    let shown = ask(&world, "GET", "/config?tenant=acme", None, &none);
    assert_eq!((shown.etag.as_deref(), &shown.body["data"]["config"]), (Some(etag.as_str()), &config()));
    assert_eq!(shown.body["data"]["generations"][1]["state"], "expired");
    let stale = ask(&world, "PUT", "/config?tenant=acme", Some("\"0\""), &config());
    assert_eq!((stale.status, &stale.body["error"]["code"]), (412, &json!("PRECONDITION_FAILED")));
    let mut wrong = config();
    wrong["groups"]["user-client"]["overrides"] = json!({ "refresh": 32 });
    wrong["groups"]["vc"]["totalShards"] = json!("many");
    let wrong = ask(&world, "PUT", "/config?tenant=acme", Some(&etag), &wrong);
    assert_eq!((wrong.status, &wrong.body["error"]["code"]), (422, &json!("INVALID_CONFIG")));
    let mut fields: Vec<&str> =
        wrong.body["error"]["fields"].as_array().unwrap().iter().map(|one| one["field"].as_str().unwrap()).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["groups.user-client.overrides.refresh", "groups.vc.totalShards"]);
    let change = json!({ "migration": { "baseRegions": { "apac": 40, "enam": 30, "weur": 30 } } });
    let dry = ask(&world, "POST", "/dry-run?tenant=acme", None, &change);
    assert_eq!((dry.status, &dry.body["data"]["currentGeneration"]), (200, &json!(2)), "{}", dry.body);
    assert!(dry.body["data"]["impact"][0]["regions"].as_array().unwrap().len() == 3);
    let valid = ask(&world, "POST", "/validate?tenant=acme", None, &config());
    assert_eq!(valid.body["data"], json!({ "valid": true, "errors": [] }));
    let body = json!({ "baseRegions": { "apac": 40, "enam": 30, "weur": 30 }, "reason": "more of apac" });
    let moved = ask(&world, "POST", "/migrate?tenant=acme", Some(&etag), &body);
    assert_eq!((moved.status, &moved.body["data"]["currentGeneration"]), (200, &json!(2)), "{}", moved.body);
    let etag = moved.etag.unwrap();
    let history = ask(&world, "GET", "/history?tenant=acme", None, &none);
    let told: Vec<(&Value, &Value, &Value)> = history.body["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (&one["action"], &one["by"], &one["reason"]))
        .collect();
    let isles = json!("isles");
    assert_eq!(told, [(&json!("migrate"), &isles, &json!("more of apac")), (&json!("put"), &isles, &json!("first"))]);
    let diff = ask(&world, "GET", "/diff?tenant=acme&from=1&to=2", None, &none);
    let fields: Vec<&Value> = diff.body["data"].as_array().unwrap().iter().map(|one| &one["field"]).collect();
    assert!(
        fields.contains(&&json!("baseRegions.apac")) && fields.contains(&&json!("currentGeneration")),
        "{fields:?}"
    );
    assert_eq!(ask(&world, "DELETE", "/generations/1?tenant=acme", None, &none).status, 428);
    assert_eq!(ask(&world, "DELETE", "/generations/9?tenant=acme", Some(&etag), &none).status, 404);
    let current = ask(&world, "DELETE", "/generations/2?tenant=acme", Some(&etag), &none);
    assert_eq!((current.status, &current.body["error"]["sqlstate"]), (409, &json!("55000")));
    // Nothing has been stored in it, so it need not be read until its time.
    assert_eq!(ask(&world, "DELETE", "/generations/1?tenant=acme", Some(&etag), &none).status, 200);
}

/// I-59, hole B40: nobody but administrators, and nothing that is not understood.
#[tokio::test(flavor = "multi_thread")]
async fn placements_over_http_are_for_administrators() {
    let world = World::start(SQLITE).await;
    world.admin.batch_execute("CREATE ROLE bob LOGIN PASSWORD 'secret-of-bob'").await.unwrap();
    let paths = [
        ("GET", "/config"),
        ("PUT", "/config"),
        ("POST", "/migrate"),
        ("POST", "/validate"),
        ("POST", "/dry-run"),
        ("GET", "/history"),
        ("GET", "/diff?from=1"),
        ("DELETE", "/generations/1"),
    ];
    for (method, path) in paths {
        let path = format!("/admin/sharding{path}");
        assert_eq!(world.request(method, &path, None, "{}").0, 401, "{method} {path}");
        assert_eq!(world.request(method, &path, Some("bob:secret-of-bob"), "{}").0, 403, "{method} {path}");
    }
    for (method, path, body) in [
        ("GET", "/config?colour=red", Value::Null),
        ("GET", "/history?limit=0", Value::Null),
        ("GET", "/diff", Value::Null),
        ("POST", "/dry-run", json!({ "migration": { "colour": 1 } })),
        ("PUT", "/config?tenant=%ff", config()),
    ] {
        let reply = ask(&world, method, path, Some("\"0\""), &body);
        assert!((400..500).contains(&reply.status), "{method} {path}: {}", reply.body);
        assert_eq!(reply.body["success"], json!(false));
    }
    assert_eq!(ask(&world, "PUT", "/config", Some("soon"), &config()).status, 400);
}

fn file(folder: &tempfile::TempDir, name: &str, value: &Value) -> String {
    let path = folder.path().join(name);
    std::fs::File::create(&path).unwrap().write_all(value.to_string().as_bytes()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The runbook of a generation, command by command.
#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_by_the_command_line() {
    let world = World::start(SQLITE).await;
    let folder = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str]| {
        let all = [&["placement"], arguments, &["--tenant", "acme", "--json"]].concat();
        world.isles(world.server.url(), &all)
    };
    let must = |arguments: &[&str]| {
        let said = said(arguments);
        assert_eq!(said.code, 0, "{arguments:?}: {}{}", said.out, said.err);
        said.json()
    };
    let status = must(&["status"]);
    assert_eq!(status["generations"][0]["source"], "defaults");
    let good = file(&folder, "good.json", &config());
    let mut wrong = config();
    wrong["groups"]["vc"]["members"] = json!(["credoffer", "KeyManager"]);
    let wrong = file(&folder, "wrong.json", &wrong);
    for verb in ["set", "validate", "dry-run"] {
        let refused = said(&[verb, &wrong]);
        assert_eq!(refused.code, 1, "{verb}: {}{}", refused.out, refused.err);
        let errors = refused.json()["errors"].clone();
        assert!(errors.as_array().unwrap().iter().any(|one| one["code"] == "singleton"), "{errors}");
    }
    assert_eq!(must(&["validate", &good])["valid"], true);
    let made = must(&["set", &good, "--reason", "first"]);
    assert_eq!((&made["generation"], &made["entry"]), (&json!(1), &json!(1)));
    assert_eq!(must(&["get"])["config"], config());
    let stale = said(&["set", &good, "--if-match", "\"0\""]);
    assert_eq!(stale.refused(), (1, "40001".into()));
    let plan = file(&folder, "plan.json", &json!({ "baseRegions": { "apac": 20, "enam": 80 } }));
    let dry = must(&["migrate", &plan, "--dry-run"]);
    assert_eq!(dry["currentGeneration"], 2);
    assert_eq!(must(&["migrate", &plan, "--if-match", made["etag"].as_str().unwrap()])["generation"], 2);
    let history = must(&["history"]);
    assert_eq!(history["history"].as_array().unwrap().len(), 2);
    assert_eq!(history["history"][0]["config"]["currentGeneration"], 2);
    let diff = must(&["diff", "1"]);
    assert!(diff["changes"].as_array().unwrap().iter().any(|one| one["field"] == "baseRegions.enam"), "{diff}");
    let states: Vec<Value> =
        must(&["status"])["generations"].as_array().unwrap().iter().map(|one| one["state"].clone()).collect();
    assert_eq!(states, ["current", "drained"], "what had expired is not kept by a migration");
    let dry = world.isles(world.server.url(), &["placement", "dry-run", &good, "--tenant", "other"]);
    assert!(dry.out.contains("% of keys move"), "{}{}", dry.out, dry.err);
    assert_eq!(said(&["remove-generation", "2"]).refused(), (1, "55000".into()), "it is the current one");
    // Nothing has been stored in it, so it need not be read until its time.
    assert_eq!(must(&["remove-generation", "1"])["generation"], 2);
}

/// Shards are in regions, and metrics tell of placements by the names that rules know.
#[tokio::test(flavor = "multi_thread")]
async fn regions_and_metrics_are_shown() {
    let world = World::start(SQLITE).await;
    let metrics = || world.request("GET", "/metrics", None, "").1;
    let shown = metrics();
    assert!(shown.contains("# TYPE do_shard_config_invalid gauge"), "{shown}");
    assert!(shown.contains("isles_placement_defaults 1"), "{shown}");
    assert!(shown.trim_end().ends_with("# EOF") && shown.matches("# EOF").count() == 1);
    let put = ask(&world, "PUT", "/config?tenant=default", Some("\"0\""), &config());
    assert_eq!(put.status, 200, "{}", put.body);
    assert!(metrics().contains("isles_placement_defaults 0"));
    let url = world.server.url();
    let added = world.isles(url, &["shards", "add", "--region", "apac", "--json"]);
    assert_eq!(added.code, 0, "{}{}", added.out, added.err);
    world.admin.batch_execute("ALTER SHARD s0 REGION weur").await.unwrap();
    let listed = world.isles(url, &["shards", "list", "--json"]).json();
    let regions: Vec<&Value> = listed["shards"].as_array().unwrap().iter().map(|one| &one["region"]).collect();
    assert_eq!(regions, [&json!("weur"), &Value::Null, &Value::Null, &json!("apac")]);
    let infos = world.get("/admin/shards").1;
    assert_eq!(infos["data"][3]["region"], "apac");
}
