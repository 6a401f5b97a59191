//! Global indexes where operators are: the command line, HTTP and metrics.

use crate::harness::Setup;
use crate::world::{POSTGRES, SQLITE, Said, World};
use serde_json::{Value, json};
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// `isles index …`
fn index(world: &World, arguments: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isles"));
    let output = command.arg("index").args(arguments).args(["--url", world.server.url()]).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// One that must do what it is asked, and answers in JSON.
fn must(world: &World, arguments: &[&str]) -> Value {
    let said = index(world, &[arguments, &["--json"]].concat());
    assert_eq!(said.code, 0, "{arguments:?}: {}{}", said.out, said.err);
    said.json()
}

/// A server with so many users, each with a name of its own.
async fn filled(setup: Setup, rows: usize) -> World {
    let world = World::start(setup).await;
    let insert = format!("INSERT INTO users SELECT i, 'name' || i FROM generate_series(1, {rows}) AS s (i)");
    world.admin.batch_execute(&insert).await.unwrap();
    world
}

/// The life of an index, command by command.
async fn the_life_of_an_index(setup: Setup) {
    let world = filled(setup, 3_000).await;
    let made = index(&world, &["create", "users_name", "--on", "users", "--columns", "name"]);
    assert_eq!(made.code, 0, "{}{}", made.out, made.err);
    assert!(made.out.contains("index     users_name\ntable     users\nstate     ready: "), "{}", made.out);
    assert!(made.err.lines().count() > 0, "progress is told in lines where there is no terminal");
    let found = world.admin.query("SELECT id FROM users WHERE name = 'name77'", &[]).await.unwrap();
    assert_eq!(found.len(), 1);
    let status = must(&world, &["status", "users_name"]);
    assert_eq!((&status["state"], &status["used"], &status["unique"]), (&json!("ready"), &json!(true), &json!(false)));
    assert_eq!((&status["verified_at"], status["lookups"].as_u64()), (&Value::Null, Some(1)), "{status}");
    let found = must(&world, &["verify", "users_name", "--repair"]);
    assert_eq!(found, json!({"entries": 3_000, "missing": 0, "superfluous": 0, "repaired": 0}));
    let text = index(&world, &["verify", "users_name"]);
    assert_eq!((text.code, text.out.as_str()), (0, "3000 entries compared: 0 missing, 0 superfluous, 0 repaired\n"));
    assert_eq!(must(&world, &["status", "users_name"])["differences"], 0);
    assert_eq!(must(&world, &["rebuild", "users_name"])["state"], "ready");
    let listed = must(&world, &["list"]);
    assert_eq!(listed["indexes"][0]["index"], "users_name");
    assert!(index(&world, &["list"]).out.contains("users_name"));
    let not_sure = index(&world, &["drop", "users_name", "--json"]);
    assert_eq!(not_sure.refused(), (2, "not_confirmed".into()));
    assert_eq!(must(&world, &["drop", "users_name", "--yes"]), json!({"index": "users_name"}));
    assert_eq!(must(&world, &["list"])["indexes"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_life_of_an_index_on_sqlite() {
    the_life_of_an_index(SQLITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_life_of_an_index_on_postgresql() {
    the_life_of_an_index(POSTGRES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_made_says_why() {
    let world = filled(SQLITE, 10).await;
    world.admin.batch_execute("INSERT INTO users VALUES (100, 'name1')").await.unwrap();
    for (arguments, refused) in [
        (["create", "i", "--on", "nothing", "--columns", "name"].as_slice(), (1, "42P01")),
        (&["create", "i", "--on", "users", "--columns", "nothing"], (1, "42703")),
        (&["create", "i", "--on", "users", "--columns", "name,"], (2, "usage")),
        (&["create", "i", "--on", "users", "--columns", "name", "--where", "age >"], (1, "42601")),
        (&["create", "i", "--on", "users"], (2, "usage")),
        (&["create", "i", "--on", "users", "--columns", "name", "--unique"], (1, "23505")),
        (&["status", "i"], (1, "42704")),
        (&["verify", "i"], (1, "42704")),
        (&["rebuild", "i"], (1, "42704")),
        (&["drop", "i", "--yes"], (1, "42704")),
    ] {
        let said = index(&world, &[arguments, &["--json"]].concat());
        assert_eq!(said.refused(), (refused.0, refused.1.to_owned()), "{arguments:?}: {}", said.err);
    }
    assert_eq!(must(&world, &["list"])["indexes"], json!([]), "nothing is left of what was refused");
    let said = index(&world, &["create", "i", "--on", "users", "--columns", "name", "--unique"]);
    assert!(said.err.contains("could not create unique index \"i\": ") && said.err.contains("name1"), "{}", said.err);
    must(
        &world,
        &["create", "users_id", "--on", "public.users", "--columns", "name,id", "--unique", "--where", "id < 50"],
    );
    assert_eq!(must(&world, &["status", "users_id"])["unique"], true);
}

fn job(shards: Value) -> Value {
    json!({
        "type": "maintain_index", "database_id": "isles", "table_name": "users", "operation": "UPDATE",
        "shard_ids": shards, "affected_indexes": ["users_name"], "updated_columns": ["name"],
        "created_at": "2026-01-02T03:04:05.678Z",
    })
}

/// Every path about indexes, with what it answers.
async fn over_http(setup: Setup) {
    let world = filled(setup, 400).await;
    must(&world, &["create", "users_name", "--on", "users", "--columns", "name"]);
    let (status, all) = world.get("/admin/indexes");
    assert_eq!((status, all["data"].as_array().unwrap().len()), (200, 1));
    let one = world.get("/admin/indexes/users_name").1["data"].clone();
    assert_eq!((&one["state"], &one["table"], &one["used"]), (&json!("ready"), &json!("users"), &json!(true)));
    let (status, found) = world.post("/admin/indexes/users_name/verify", &json!({"repair": true}));
    assert_eq!((status, &found["data"]["entries"], &found["data"]["some"]), (200, &json!(400), &json!([])));
    let part = world.post("/admin/indexes/users_name/verify", &json!({"shards": ["s0"]})).1["data"]["entries"].as_u64();
    assert!(part.is_some_and(|part| part > 0 && part < 400), "{part:?}");

    let (mut entries, mut cursor, mut seq) = (Vec::new(), String::new(), 0);
    loop {
        let path = format!("/admin/indexes/users_name/entries?shard=s0&limit=50&cursor={cursor}");
        let page = world.get(&path).1["data"].clone();
        entries.extend(page["entries"].as_array().unwrap().clone());
        seq = page["seq"].as_u64().unwrap().max(seq);
        match page["next_cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(Some(entries.len() as u64), part);
    let change = |operation: &str, key: &Value, seq: u64| json!({"operation": operation, "index_name": "users_name", "key_value": key, "shard_id": 0, "seq": seq});
    let key = &entries[0]["key_value"];
    let batch = json!({"changes": [change("add", key, seq), change("remove", key, seq),
        change("remove", &json!("nobody"), seq), change("add", key, u64::from(u32::MAX))]});
    let (status, outcomes) = world.post("/admin/indexes/entries", &batch);
    let expected = json!(["already", "refused", "already", "unknown"]);
    assert_eq!((status, &outcomes["data"]["outcomes"]), (200, &expected), "{outcomes}");

    let (status, taken) = world.post("/admin/indexes/jobs", &job(json!([0, "s1"])));
    assert_eq!((status, &taken["data"]["state"]), (202, &json!("queued")), "{taken}");
    let begun = Instant::now();
    let over = loop {
        let jobs = world.get("/admin/indexes/jobs").1["data"].clone();
        if ["done", "failed"].contains(&jobs[0]["state"].as_str().unwrap()) {
            break jobs[0].clone();
        }
        assert!(begun.elapsed() < PATIENCE, "{jobs}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((&over["state"], &over["missing"], &over["repaired"]), (&json!("done"), &json!(0), &json!(0)), "{over}");
    assert_eq!(over["job"]["shard_ids"], json!(["s0", "s1"]));

    assert_eq!(world.post("/admin/indexes/users_name/rebuild", &json!({})).0, 202);
    let begun = Instant::now();
    while world.get("/admin/indexes/users_name").1["data"]["used"] != true {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(world.verb("DELETE", "/admin/indexes/users_name"), 200);
    assert_eq!(world.get("/admin/indexes").1["data"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_on_sqlite() {
    over_http(SQLITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_on_postgresql() {
    over_http(POSTGRES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_refused_by_name() {
    let world = filled(SQLITE, 5).await;
    must(&world, &["create", "users_name", "--on", "users", "--columns", "name"]);
    let with = |field: &str, value: Value| {
        let mut job = job(json!([0]));
        job[field] = value;
        job
    };
    for (body, status, field) in [
        (with("type", json!("build_index")), 400, "type"),
        (with("operation", json!("INSERT")), 400, "operation"),
        (with("shard_ids", json!([])), 400, "shard_ids"),
        (with("shard_ids", json!([9])), 404, "shard_ids"),
        (with("created_at", json!("some day")), 400, "created_at"),
        (with("more", json!(1)), 400, "more"),
        (with("table_name", json!("nothing")), 404, "table_name"),
        (with("database_id", json!("other")), 404, "database_id"),
        (with("affected_indexes", json!(["nothing"])), 404, "affected_indexes"),
    ] {
        let (seen, answer) = world.post("/admin/indexes/jobs", &body);
        assert_eq!(seen, status, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(&format!("\"{field}\"")), "{answer}");
    }
    assert_eq!(world.get("/admin/indexes/jobs").1["data"], json!([]));
    for (path, status) in [
        ("/admin/indexes/nothing", 404),
        ("/admin/indexes/nothing/entries?shard=s0", 404),
        ("/admin/indexes/users_name/entries", 400),
        ("/admin/indexes/users_name/entries?shard=s9", 404),
        ("/admin/indexes/users_name/entries?shard=s0&limit=0", 400),
        ("/admin/indexes/users_name/entries?shard=s0&limit=x", 400),
        ("/admin/indexes/users_name/entries?shard=s0&cursor=x", 400),
        ("/admin/indexes/users_name/entries?shard=s0&more=1", 400),
    ] {
        assert_eq!(world.get(path).0, status, "{path}");
    }
    for (path, body, status) in [
        ("/admin/indexes/nothing/verify", json!({}), 404),
        ("/admin/indexes/users_name/verify", json!({"fix": true}), 400),
        ("/admin/indexes/users_name/verify", json!({"shards": ["s9"]}), 404),
        ("/admin/indexes/nothing/rebuild", json!({}), 404),
        ("/admin/indexes/users_name/rebuild", json!({"now": true}), 400),
        ("/admin/indexes/entries", json!({}), 400),
        ("/admin/indexes/entries", json!({"changes": []}), 400),
        ("/admin/indexes/entries", json!({"changes": [{"operation": "add"}]}), 400),
    ] {
        assert_eq!(world.refused(path, &body).0, status, "{path} {body}");
    }
    assert_eq!(world.verb("DELETE", "/admin/indexes/nothing"), 404);
    // An index that is not global is none of these.
    world.admin.batch_execute("CREATE INDEX users_plain ON users (name)").await.unwrap();
    assert_eq!(world.verb("DELETE", "/admin/indexes/users_plain"), 404);
    assert_eq!(index(&world, &["drop", "users_plain", "--yes", "--json"]).refused(), (1, "42704".into()));
    assert_eq!(world.verb("DELETE", "/admin/indexes/jobs"), 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_of_indexes() {
    let world = filled(SQLITE, 50).await;
    must(&world, &["create", "users_name", "--on", "users", "--columns", "name"]);
    world.admin.batch_execute("UPDATE users SET name = 'new' WHERE name = 'name7'").await.unwrap();
    must(&world, &["verify", "users_name"]);
    let begun = Instant::now();
    let text = loop {
        let text = world.request("GET", "/metrics", None, "").1;
        if text.contains("isles_index_differences{index=\"users_name\"} 0") {
            break text;
        }
        assert!(begun.elapsed() < PATIENCE, "{text}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    for line in [
        "isles_indexes{state=\"ready\"} 1",
        "isles_index_state{index=\"users_name\",state=\"ready\"} 1",
        "isles_index_state{index=\"users_name\",state=\"failed\"} 0",
        "isles_index_lag 0",
        "isles_index_lag_ms 0",
        "isles_index_pending 0",
        "isles_index_lookups_total 1",
        "isles_index_fallbacks_total 0",
        "isles_index_entries{index=\"users_name\"} ",
        "isles_index_applied{index=\"users_name\",shard=\"s0\"} ",
        "isles_index_entries_read_total",
        "isles_index_delays_total 0",
        "isles_index_delay_ms_total 0",
        "isles_index_jobs_total{outcome=\"done\"} 0",
        "isles_index_jobs_open 0",
        "isles_index_page_changes_bucket{le=\"+Inf\"}",
        "isles_index_entries_changed_total",
        "isles_index_changes_total",
        "isles_index_pages_total",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}
