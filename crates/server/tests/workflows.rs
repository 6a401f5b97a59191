//! Workflows over HTTP, SQL and the command line, executed by a worker in Python.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

mod harness;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use harness::{Server, Setup, connect};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest wait for something that must come.
const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    server: Server,
    password: String,
}

impl World {
    async fn start() -> World {
        let server = Server::start_with_http(Setup::Sqlite { shards: 2 }).await;
        let password = server.url().split(['/', ':', '@']).nth(4).unwrap().to_owned();
        World { server, password }
    }

    fn send(&self, method: &str, path: &str, who: Option<&str>, headers: &str, body: &str) -> (u16, String) {
        let login = who.map_or(String::new(), |who| format!("Authorization: Basic {}\r\n", STANDARD.encode(who)));
        let mut stream = TcpStream::connect(self.server.http()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!("{method} {path} HTTP/1.0\r\nHost: x\r\nConnection: close\r\n{login}{headers}");
        let length = body.len();
        let _ = stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes());
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let who = format!("isles:{}", self.password);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, answer) = self.send(method, path, Some(&who), "", &body);
        (status, serde_json::from_str(&answer).unwrap_or_else(|fault| panic!("{method} {path}: {fault}: {answer}")))
    }

    fn get(&self, path: &str) -> (u16, Value) {
        self.ask("GET", path, &Value::Null)
    }

    fn runs(&self, arguments: &[&str]) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isles"));
        let output = command.arg("runs").args(arguments).args(["--json", "--url", self.server.url()]).output().unwrap();
        let text = if output.status.success() { &output.stdout } else { &output.stderr };
        serde_json::from_slice(text).unwrap_or_else(|fault| panic!("{arguments:?}: {fault}: {output:?}"))
    }

    fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let (_, answer) = self.get(path);
            if is_so(&answer) {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "{path} stays {answer}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A worker process; it ends with the test.
struct Worker(Child);

impl Worker {
    fn start(world: &World) -> Worker {
        Worker::with_lease(world, Duration::from_secs(5))
    }

    fn with_lease(world: &World, lease: Duration) -> Worker {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python_worker/worker.py");
        let mut command = Command::new("python3");
        command.arg(script).env("ISLES_HTTP", format!("http://{}", world.server.http()));
        command.env("ISLES_PASSWORD", &world.password).env("ISLES_WORKER_LEASE_MS", lease.as_millis().to_string());
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Worker(process)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A run of a worker in another language goes through steps, a sleep and an event, also if the worker dies.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_in_python_executes_runs_and_another_goes_on() {
    let world = World::start().await;
    let worker = Worker::start(&world);
    let input = json!({ "name": "Ann", "seconds": 0.05 });
    for id in ["one", "two"] {
        let (status, run) = world.ask("POST", "/workflows/greeting", &json!({ "id": id, "payload": input }));
        assert_eq!((status, &run["created"]), (201, &json!(true)), "{run}");
        let (status, run) = world.ask("POST", "/workflows/greeting", &json!({ "id": id, "payload": input }));
        assert_eq!((status, &run["created"]), (200, &json!(false)), "{run}");
    }
    let (status, error) =
        world.ask("POST", "/workflows/greeting", &json!({ "id": "one", "payload": { "name": "Bob" } }));
    assert_eq!((status, &error["error"]["code"]), (409, &json!("WORKFLOW_ALREADY_EXISTS")));
    for id in ["one", "two"] {
        world.until(&format!("/workflows/greeting/{id}"), |run| run["status"] == "waiting");
    }
    drop(worker);
    let (_, sent) = world.ask(
        "POST",
        "/workflows/greeting/one/events",
        &json!({ "name": "approved", "payload": true, "key": "k" }),
    );
    let (_, again) = world.ask(
        "POST",
        "/workflows/greeting/one/events",
        &json!({ "name": "approved", "payload": true, "key": "k" }),
    );
    assert_eq!(sent, again);
    let sent = world.runs(&["send", "greeting", "two", "--event", "approved", "--payload", "false"]);
    assert_eq!(sent["seq"], json!(1));
    let _another = Worker::start(&world);
    let (status, run) = world.get("/workflows/greeting/one/wait?timeout=30s");
    assert_eq!((status, &run["result"]), (200, &json!("Hello, Ann!")), "{run}");
    assert_eq!(world.runs(&["wait", "greeting", "two"])["result"], json!("rejected"));
    // Each step was done once, in order.
    let (_, shown) = world.get("/workflows/greeting/one/timeline");
    let names: Vec<&str> =
        shown["timeline"].as_array().unwrap().iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["greet", "progress#1", "a moment", "approval", "answer"]);
    // Updates as server-sent events, from the beginning and from where one was.
    let who = format!("isles:{}", world.password);
    let (status, stream) = world.send("GET", "/workflows/greeting/one/updates", Some(&who), "", "");
    assert!(status == 200 && stream.contains("id: 1\n") && stream.contains("data: 50\n"), "{stream}");
    assert!(stream.trim_end().ends_with("event: close\ndata: {}"), "{stream}");
    let (_, rest) = world.send("GET", "/workflows/greeting/one/updates", Some(&who), "Last-Event-ID: 1\r\n", "");
    assert!(!rest.contains("data: 50") && rest.contains("event: close"), "{rest}");
    // The list, by every door.
    let list = world.until("/workflows?type=greeting&status=completed", |list| {
        list["workflows"].as_array().is_some_and(|all| all.len() == 2)
    });
    assert_eq!(list["incomplete"], json!(false));
    assert_eq!(world.runs(&["list", "greeting", "--limit", "1"])["workflows"].as_array().unwrap().len(), 1);
    assert_eq!(world.get("/workflows/_counts?type=greeting").1["counts"][0]["runs"], json!(2));
    let client = connect(world.server.url()).await;
    let rows = client.query("SELECT id, status FROM isles.runs ORDER BY id", &[]).await.unwrap();
    let shown: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(shown, [("one".into(), "completed".into()), ("two".into(), "completed".into())]);
    assert_eq!(world.ask("DELETE", "/workflows/greeting/one", &Value::Null).0, 200);
    assert_eq!(world.get("/workflows/greeting/one").0, 404);
    assert_eq!(world.runs(&["resize", "greeting"])["mayRemovePreviousShards"], json!(true));
}

/// A38, A21, and every refusal with its code and status: nobody comes in without a login, nothing waits without bound.
#[tokio::test(flavor = "multi_thread")]
async fn a38_everything_asks_for_a_login_and_bad_requests_have_codes() {
    let world = World::start().await;
    let client = connect(world.server.url()).await;
    client.batch_execute("CREATE USER eve PASSWORD 'three'").await.unwrap();
    client.batch_execute("ALTER ROLE eve SET isles.tenant = 'acme'").await.unwrap();
    client.batch_execute("ALTER ROLE eve SET isles.tenant_locked = on").await.unwrap();
    assert_eq!(world.send("GET", "/workflows", None, "", "").0, 401);
    assert_eq!(world.send("GET", "/workflows", Some("isles:wrong"), "", "").0, 401);
    assert_eq!(world.send("GET", "/workflows", Some("eve:three"), "", "").0, 403);
    let (status, types) = world.ask("PUT", "/workflows/_types/job", &json!({ "shards": 2, "events": ["go"] }));
    assert_eq!((status, &types["settled"]), (200, &json!(true)));
    world.ask("POST", "/workflows/job", &json!({ "id": "x" }));
    for (method, path, body, status, code) in [
        ("POST", "/workflows/unknown", json!({}), 400, "WORKFLOW_TYPE_UNKNOWN"),
        ("GET", "/workflows/unknown", json!(null), 400, "WORKFLOW_TYPE_UNKNOWN"),
        ("GET", "/workflows?type=unknown", json!(null), 400, "WORKFLOW_TYPE_UNKNOWN"),
        ("GET", "/workflows/job/missing", json!(null), 404, "WORKFLOW_NOT_FOUND"),
        ("GET", "/workflows?limit=0", json!(null), 400, "VALIDATION_ERROR"),
        ("GET", "/workflows?limit=1000000", json!(null), 400, "VALIDATION_ERROR"),
        ("GET", "/workflows?limit=many", json!(null), 400, "VALIDATION_ERROR"),
        ("GET", "/workflows?status=done", json!(null), 400, "VALIDATION_ERROR"),
        ("GET", "/workflows?color=red", json!(null), 400, "VALIDATION_ERROR"),
        ("GET", "/workflows?cursor=xyz", json!(null), 400, "VALIDATION_ERROR"),
        ("POST", "/workflows/job/x/events", json!({ "name": "other" }), 400, "EVENT_INVALID"),
        ("POST", "/workflows/job/x/restart", json!(null), 409, "WORKFLOW_NOT_RUNNING"),
        ("POST", "/workflows/job/x/explode", json!(null), 404, "RESOURCE_NOT_FOUND"),
        ("DELETE", "/workflows/job/x", json!(null), 409, "WORKFLOW_NOT_RUNNING"),
        ("PUT", "/workflows/_types/job", json!({ "shards": 4 }), 400, "INVALID_SCHEMA"),
        ("PUT", "/workflows/_types/job", json!({ "shards": 0 }), 400, "VALIDATION_ERROR"),
        (
            "POST",
            "/workflows/_tasks/poll",
            json!({ "types": ["unknown"], "worker": "w" }),
            400,
            "WORKFLOW_TYPE_UNKNOWN",
        ),
        (
            "POST",
            "/workflows/_tasks/finish",
            json!({ "type": "job", "id": "x", "token": 99, "attempt": 1 }),
            409,
            "LEASE_LOST",
        ),
    ] {
        let (seen, answer) = world.ask(method, path, &body);
        assert_eq!((seen, answer["error"]["code"].as_str()), (status, Some(code)), "{method} {path}: {answer}");
    }
    // Bodies that cannot be read, or are too large, have codes as well.
    let who = format!("isles:{}", world.password);
    let large = format!("{{\"payload\": \"{}\"}}", "x".repeat(2 << 20));
    for (path, body, status, code) in [
        ("/workflows/job", "no json", 400, "VALIDATION_ERROR"),
        ("/workflows/job", "{\"color\": 1}", 400, "VALIDATION_ERROR"),
        ("/workflows/job", "{\"id\": 7}", 400, "VALIDATION_ERROR"),
        ("/workflows/job", "{\"id\": \"__index:job:0\"}", 400, "VALIDATION_ERROR"),
        ("/workflows/job", "{\"attributes\": 7}", 400, "VALIDATION_ERROR"),
        ("/workflows/job", &large, 413, "RESULT_TOO_LARGE"),
        ("/workflows/job/x/events", "{}", 400, "VALIDATION_ERROR"),
        ("/workflows/_tasks/step", "{}", 400, "VALIDATION_ERROR"),
        ("/workflows/_tasks/poll", "[", 400, "VALIDATION_ERROR"),
    ] {
        let (seen, answer) = world.send("POST", path, Some(&who), "", body);
        let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|fault| panic!("{path}: {fault}: {answer}"));
        assert_eq!((seen, answer["error"]["code"].as_str()), (status, Some(code)), "{path}: {answer}");
    }
    assert_eq!(world.get("/workflows/job/x/wait?timeout=10ms").0, 202);
    assert_eq!(world.ask("POST", "/workflows/job/x/pause", &Value::Null).1["status"], json!("paused"));
    assert_eq!(world.runs(&["resume", "job", "x"])["status"], json!("running"));
    // Nobody executes it, so nobody has to be waited for.
    let ended = world.runs(&["terminate", "job", "x"]);
    assert_eq!((&ended["status"], &ended["control"]), (&json!("terminated"), &json!(null)));
    assert_eq!(world.runs(&["get", "job", "missing"])["error"]["code"], json!("42704"));
}

/// A worker that does what cannot be is told so, with a code and a status, and the run goes on as if nothing had been.
#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_of_workers_are_told_and_harm_no_run() {
    let world = World::start().await;
    world.ask("PUT", "/workflows/_types/job", &json!({ "events": ["go"] }));
    world.ask("POST", "/workflows/job", &json!({ "id": "x" }));
    let (_, polled) = world.ask("POST", "/workflows/_tasks/poll", &json!({ "types": ["job"], "worker": "w" }));
    let task = |more: &[(&str, Value)]| {
        let mut task = json!({ "type": "job", "id": "x", "attempt": 1 });
        task["token"] = polled["tasks"][0]["token"].clone();
        more.iter().for_each(|(name, value)| task[*name] = value.clone());
        task
    };
    let step = |ordinal: u64, name: &str, kind: &str, result: Value| {
        let status = "completed";
        json!({ "ordinal": ordinal, "name": name, "type": kind, "status": status, "result": result, "startedAt": 1 })
    };
    let (status, told) =
        world.ask("POST", "/workflows/_tasks/step", &task(&[("step", step(0, "one", "do", json!(1)))]));
    assert_eq!((status, &told["control"]), (200, &json!(null)), "{told}");
    let large = json!("x".repeat((8 << 20) + 1));
    for (action, more, status, code) in [
        ("step", ("step", step(1, "one", "do", json!(2))), 400, "VALIDATION_ERROR"),
        ("step", ("step", step(0, "other", "do", json!(2))), 500, "NON_DETERMINISM"),
        ("step", ("step", step(0, "one", "sleep", json!(2))), 500, "NON_DETERMINISM"),
        ("step", ("step", step(1, "two", "dance", json!(2))), 400, "VALIDATION_ERROR"),
        ("step", ("step", step(1, "", "do", json!(2))), 400, "VALIDATION_ERROR"),
        ("step", ("step", step(100_000, "two", "do", json!(2))), 400, "VALIDATION_ERROR"),
        ("step", ("step", step(1, "two", "do", large.clone())), 413, "RESULT_TOO_LARGE"),
        ("finish", ("result", large), 413, "RESULT_TOO_LARGE"),
        ("suspend", ("status", json!("completed")), 400, "VALIDATION_ERROR"),
        ("obey", ("leaseMs", json!(5_000)), 400, "VALIDATION_ERROR"),
        ("heartbeat", ("leaseMs", json!(1)), 400, "VALIDATION_ERROR"),
        ("heartbeat", ("token", json!(0)), 409, "LEASE_LOST"),
        ("dance", ("leaseMs", json!(5_000)), 404, "RESOURCE_NOT_FOUND"),
    ] {
        let (seen, answer) =
            world.ask("POST", &format!("/workflows/_tasks/{action}"), &task(&[more, ("eventSeq", json!(0))]));
        assert_eq!((seen, answer["error"]["code"].as_str()), (status, Some(code)), "{action}: {answer}");
    }
    // The same again is no mistake: an answer may have been lost.
    let again = world.ask("POST", "/workflows/_tasks/step", &task(&[("step", step(0, "one", "do", json!(1)))]));
    assert_eq!(again.0, 200, "{}", again.1);
    let (status, ended) = world.ask("POST", "/workflows/_tasks/finish", &task(&[("result", json!("fine"))]));
    assert_eq!((status, &ended["status"]), (200, &json!("completed")), "{ended}");
    let (_, run) = world.get("/workflows/job/x");
    assert_eq!((&run["result"], run["steps"].as_array().unwrap().len()), (&json!("fine"), 1), "{run}");
}

/// Over HTTP everybody may do what SQL lets the same role do: administrators everything, other roles create runs, and
/// those of one tenant nothing.
#[tokio::test(flavor = "multi_thread")]
async fn rights_are_the_same_over_http_and_sql() {
    let world = World::start().await;
    let admin = connect(world.server.url()).await;
    for sql in [
        "CREATE USER olga PASSWORD 'two'",
        "CREATE USER eve PASSWORD 'three'",
        "ALTER ROLE eve SET isles.tenant = 'acme'",
        "ALTER ROLE eve SET isles.tenant_locked = on",
    ] {
        admin.batch_execute(sql).await.unwrap();
    }
    world.ask("PUT", "/workflows/_types/job", &json!({ "events": ["go"] }));
    world.ask("POST", "/workflows/job", &json!({ "id": "x", "payload": "secret" }));
    let who = format!("isles:{}", world.password);
    let task = r#"{"type": "job", "id": "x", "token": 1, "attempt": 1}"#;
    // What is asked for over HTTP, and by SQL, where that has it; and whether any role may.
    for (method, path, body, sql, anybody) in [
        ("POST", "/workflows/job", r#"{"id": "x", "payload": "secret"}"#, "start_run('job', 'x', '\"secret\"')", true),
        ("GET", "/workflows", "", "list_runs()", false),
        ("GET", "/workflows/job", "", "list_runs('job')", false),
        ("GET", "/workflows/_counts", "", "count_runs()", false),
        ("GET", "/workflows/_types", "", "", false),
        ("GET", "/workflows/job/x", "", "get_run('job', 'x')", false),
        ("GET", "/workflows/job/x/timeline", "", "run_timeline('job', 'x')", false),
        ("GET", "/workflows/job/x/wait?timeout=1ms", "", "", false),
        ("GET", "/workflows/job/missing/updates", "", "", false),
        ("POST", "/workflows/job/x/events", r#"{"name": "go"}"#, "send_event('job', 'x', 'go')", false),
        ("POST", "/workflows/job/x/pause", "", "pause_run('job', 'x')", false),
        ("POST", "/workflows/job/x/resume", "", "resume_run('job', 'x')", false),
        ("POST", "/workflows/job/x/terminate", "", "terminate_run('job', 'x')", false),
        ("POST", "/workflows/job/x/restart", "", "restart_run('job', 'x')", false),
        ("DELETE", "/workflows/job/x", "", "delete_run('job', 'x')", false),
        ("PUT", "/workflows/_types/job", "{}", "", false),
        ("POST", "/workflows/_types/job/resize", "", "resize_runs('job')", false),
        ("POST", "/workflows/_reindex", "", "reindex_runs()", false),
        ("POST", "/workflows/_tasks/poll", r#"{"types": ["job"], "worker": "w"}"#, "", false),
        ("POST", "/workflows/_tasks/heartbeat", task, "", false),
        ("POST", "/workflows/_tasks/obey", task, "", false),
    ] {
        let (other, locked) = (Some("olga:two"), Some("eve:three"));
        let seen = [Some(who.as_str()), other, locked].map(|who| world.send(method, path, who, "", body));
        assert!(!matches!(seen[0].0, 401 | 403), "{method} {path}: {:?}", seen[0]);
        assert_eq!((seen[1].0 == 403, seen[2].0), (!anybody, 403), "{method} {path}: {seen:?}");
        assert!(!seen[1].1.contains("secret"), "{method} {path}: {seen:?}");
        for (role, may) in [("olga:two", anybody), ("eve:three", false)] {
            let url = world.server.url().replacen(&format!("isles:{}", world.password), role, 1);
            let client = connect(&url).await;
            if !sql.is_empty() {
                let denied = client.simple_query(&format!("SELECT isles.{sql}")).await.err();
                let denied = denied.and_then(|error| error.code().map(|code| code.code() == "42501"));
                assert_eq!(denied, if may { None } else { Some(true) }, "{role}: {sql}");
            }
        }
    }
    // It is told as soon as it is known of every shard.
    let asked = std::time::Instant::now();
    while !world.send("GET", "/metrics", None, "", "").1.contains("isles_run_index_lag_ms ") {
        assert!(asked.elapsed() < std::time::Duration::from_secs(30), "the lag of the index is not told");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// A worker that takes several tasks keeps the leases of those that wait for their turn, so another one does not take
/// them; and it does what is asked for between two steps.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_keeps_its_leases_and_obeys() {
    let world = World::start().await;
    let _first = Worker::with_lease(&world, Duration::from_secs(3));
    let input = json!({ "name": "Ann", "seconds": 0.01, "takes": 4 });
    for id in ["one", "two"] {
        world.ask("POST", "/workflows/greeting", &json!({ "id": id, "payload": input }));
    }
    let _second = Worker::with_lease(&world, Duration::from_secs(3));
    world.ask("POST", "/workflows/greeting", &json!({ "id": "paused", "payload": input }));
    world.until("/workflows/greeting/paused", |run| run["status"] == "running");
    world.ask("POST", "/workflows/greeting/paused/pause", &Value::Null);
    let paused = world.until("/workflows/greeting/paused", |run| run["status"] == "paused");
    assert_eq!(paused["steps"][0]["name"], json!("greet"), "the step that ran came to its end: {paused}");
    world.ask("POST", "/workflows/greeting/paused/resume", &Value::Null);
    for id in ["one", "two", "paused"] {
        world.until(&format!("/workflows/greeting/{id}"), |run| run["status"] == "waiting");
    }
    let client = connect(world.server.url()).await;
    let sql = "SELECT id, executor_token FROM isles.runs WHERE id <> 'paused' ORDER BY id";
    let rows = client.query(sql, &[]).await.unwrap();
    let tokens: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    // Created, claimed for the first step, and once more after the sleep.
    assert_eq!(tokens, [("one".into(), 3), ("two".into(), 3)]);
}
