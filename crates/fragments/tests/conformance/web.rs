//! Routes, over real sockets.

use crate::sync::commands;
use crate::world::{World, add_user, names, shard, user, within};
use axum::Router;
use axum::routing::get;
use isles_fragments::error::Code;
use isles_fragments::shard::Strategy;
use isles_fragments::store::Handle;
use isles_fragments::web::{HeaderForTests, SignedToken, mount};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn serve(router: Router) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await });
    port
}

/// Status and body.
async fn ask(port: u16, line: &str, headers: &[(&str, &str)], body: &str) -> (u16, Json) {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let request = format!(
        "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or(Json::String(body.into())))
}

async fn app(world: &World) -> Handle {
    world.app_with(Some(Strategy::Row), commands()).await.0
}

const HEADER: &str = "x-isles-shard";

/// Outbox, snapshot and sync of two tenants, each by its own token.
pub(crate) async fn internal_routes_are_those_of_the_requests_shard(world: World) {
    let app = app(&world).await;
    let Err(error) = mount(app.store(), None, Router::new()) else { panic!("no resolver") };
    assert_eq!(error.refusal(), Some(Code::ResolverRequired));
    let tokens = SignedToken::new(b"secret");
    let of = |name: &str| format!("Bearer {}", tokens.token(&shard(name), std::time::Duration::from_secs(600)));
    let (a, b) = (of("a"), of("b"));
    let port = serve(mount(app.store(), Some(Arc::new(SignedToken::new(b"secret"))), Router::new()).unwrap()).await;
    for name in ["a", "b"] {
        within(name, add_user(&app, "u", user(&format!("only {name}")))).await.unwrap();
    }
    for (name, token, other) in [("a", &a, "only b"), ("b", &b, "only a")] {
        let auth = [("authorization", token.as_str())];
        for line in ["GET /_internal/outbox", "GET /_internal/snapshot", "GET /_internal"] {
            let (status, body) = ask(port, line, &auth, "").await;
            assert_eq!(status, 200, "{body}");
            let text = body.to_string();
            assert!(!text.contains(other) && !text.contains("_shard"), "{line}: {text}");
            assert_eq!(body["partition"], json!(app.store().partition(&shard(name)).unwrap()));
        }
        let (_, page) = ask(port, "GET /_internal/outbox", &auth, "").await;
        assert_eq!(page["entries"].as_array().unwrap().len(), 1);
        let body = json!({
            "requestId": uuid::Uuid::new_v4().to_string(), "partition": page["partition"], "cursor": page["next"],
            "commands": [{ "schema": "app", "name": "add", "input": { "id": "new", "name": format!("new {name}") } }],
        });
        let (status, answer) = ask(port, "POST /_internal/sync", &auth, &body.to_string()).await;
        assert_eq!((status, &answer["status"]), (200, &json!("applied")), "{answer}");
    }
    assert_eq!(within("a", names(&app)).await, ["new a", "only a"]);
    for forged in ["Bearer x.y", "Basic x", "Bearer ", &format!("{a}x"), &of("a").replace("Bearer ", "Bearer x")] {
        for line in ["GET /_internal/outbox", "GET /_internal/snapshot", "GET /_internal", "POST /_internal/sync"] {
            let (status, body) = ask(port, line, &[("authorization", forged)], "").await;
            assert_eq!((status, &body["error"]["code"]), (401, &json!("unauthenticated")), "{forged} {line}");
        }
    }
    let (status, _) = ask(port, "GET /_internal/outbox", &[], "").await;
    assert_eq!(status, 401);
}

pub(crate) async fn routes_run_in_the_shard_of_the_request(world: World) {
    let app = app(&world).await;
    for name in ["a", "b"] {
        within(name, add_user(&app, "u", user(name))).await.unwrap();
    }
    let own = app.clone();
    let routes = Router::new().route("/names", get(move || async move { names(&own).await.join(",") }));
    let port = serve(mount(app.store(), Some(Arc::new(HeaderForTests(HEADER))), routes).unwrap()).await;
    let mut asked = Vec::new();
    for n in 0..20 {
        let name = if n % 2 == 0 { "a" } else { "b" };
        asked.push(tokio::spawn(async move { (name, ask(port, "GET /names", &[(HEADER, name)], "").await) }));
    }
    for task in asked {
        let (name, answer) = task.await.unwrap();
        assert_eq!(answer, (200, Json::String(name.into())));
    }
}

pub(crate) async fn bad_requests_have_codes_and_change_nothing(world: World) {
    let app = app(&world).await;
    let port = serve(mount(app.store(), Some(Arc::new(HeaderForTests(HEADER))), Router::new()).unwrap()).await;
    within("a", add_user(&app, "u", user("x"))).await.unwrap();
    let (other, own) = (app.store().partition(&shard("b")).unwrap(), app.store().partition(&shard("a")).unwrap());
    let long = "x".repeat(65);
    for (line, shard, code) in [
        ("GET /_internal/outbox?limit=x".to_string(), "a", (400, "invalid_request")),
        ("GET /_internal/outbox?nope=1".into(), "a", (400, "invalid_request")),
        ("GET /_internal/outbox?after=zz".into(), "a", (400, "invalid_cursor")),
        ("GET /_internal/outbox?after=9.00000000000000000000000000000000".into(), "a", (410, "resync_required")),
        (format!("GET /_internal/outbox?partition={other}"), "a", (409, "wrong_partition")),
        ("GET /_internal/snapshot?after=zz".into(), "a", (400, "invalid_cursor")),
        ("GET /_internal/outbox".into(), "", (400, "shard_invalid")),
        ("GET /_internal/outbox".into(), long.as_str(), (400, "shard_invalid")),
    ] {
        let (status, body) = ask(port, &line, &[(HEADER, shard)], "").await;
        assert_eq!((status, body["error"]["code"].as_str().unwrap()), code, "{line} {body}");
    }
    let (status, body) = ask(port, "GET /_internal/outbox", &[], "").await;
    assert_eq!((status, body["error"]["code"].as_str()), (400, Some("shard_unset")));
    let id = uuid::Uuid::new_v4().to_string();
    let add = |id: &str| json!([{ "schema": "app", "name": "add", "input": { "id": id, "name": "x" } }]);
    let submit = |partition: &Json, commands: Json| {
        json!({ "requestId": id, "partition": partition, "cursor": "0", "commands": commands }).to_string()
    };
    let (own, other) = (json!(own), json!(other));
    for (body, code) in [
        ("".to_string(), (400, "invalid_request")),
        ("{}".into(), (400, "invalid_request")),
        (submit(&own, json!([])), (400, "invalid_request")),
        (submit(&other, add("v")), (409, "wrong_partition")),
        (submit(&own, add("v")).replace("\"cursor\"", "\"_shard\":\"b\",\"cursor\""), (400, "invalid_request")),
        (" ".repeat(2 << 20), (413, "")),
    ] {
        let (status, answer) = ask(port, "POST /_internal/sync", &[(HEADER, "a")], &body).await;
        assert_eq!((status, answer["error"]["code"].as_str().unwrap_or("")), code, "{answer}");
    }
    let (status, answer) = ask(port, "POST /_internal/sync", &[(HEADER, "a")], &submit(&own, add("v"))).await;
    assert_eq!((status, &answer["status"]), (200, &json!("applied")), "{answer}");
    let (status, answer) = ask(port, "POST /_internal/sync", &[(HEADER, "a")], &submit(&own, add("w"))).await;
    assert_eq!((status, answer["error"]["code"].as_str().unwrap()), (422, "request_reused"));
    assert_eq!(within("a", names(&app)).await.len(), 2);
}
