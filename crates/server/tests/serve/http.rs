//! The HTTP door.

use crate::harness::Server;
use serde_json::Value;

fn post(server: &Server, credentials: Option<&str>, more: &str, body: &str) -> (u16, Value) {
    let authorization = credentials.map_or(String::new(), |text| format!("Authorization: Bearer {text}\r\n"));
    let length = body.len();
    let answer = server.http(&format!(
        "POST /sql HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{authorization}{more}Content-Length: {length}\r\n\r\n{body}"
    ));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned())))
}

#[test]
fn health_and_metrics_and_the_interface() {
    let server = Server::start(&[]);
    for path in ["/healthz", "/readyz"] {
        assert!(server.get(path).starts_with("HTTP/1.1 200"), "{path}");
    }
    // Missing configuration is said, and keeps nothing from being healthy.
    for path in ["/healthz", "/readyz"] {
        assert!(server.get(path).contains("placements: built-in defaults"), "{path}");
    }
    let metrics = server.get("/metrics");
    assert!(metrics.contains("isles_connections") && metrics.contains("# EOF"), "{metrics}");
    let interface = server.get("/openapi.json");
    let interface: Value = serde_json::from_str(interface.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert!(interface["paths"]["/sql"]["post"].is_object());
    assert!(server.get("/nothing").starts_with("HTTP/1.1 404"));
}

#[test]
fn statements_need_a_role_and_a_body() {
    let server = Server::start(&[]);
    let good = format!("isles:{}", server.password);
    let code = |answer: (u16, Value)| (answer.0, answer.1["error"]["code"].as_str().unwrap_or_default().to_owned());
    let body = r#"{"sql":"selec 1"}"#;
    assert_eq!(code(post(&server, None, "", body)), (401, "28000".into()));
    assert_eq!(code(post(&server, Some("isles:wrong"), "", body)), (401, "28P01".into()));
    assert_eq!(code(post(&server, Some("nobody:wrong"), "", body)), (401, "28P01".into()));
    for wrong in ["", "{", "[]", r#"{"sql":1}"#, r#"{"sql":"","more":1}"#] {
        assert_eq!(code(post(&server, Some(&good), "", wrong)), (400, "22023".into()), "{wrong}");
    }
    let (status, answer) = post(&server, Some(&good), "", body);
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"]["message"].is_string());
    let large = format!(r#"{{"sql":"{}"}}"#, "x".repeat(9 << 20));
    assert_eq!(code(post(&server, Some(&good), "", &large)), (413, "54000".into()));
}

/// Each shard's work is in the metrics, and there are as many labels as shards.
#[test]
fn metrics_tell_what_each_shard_did() {
    let server = Server::start(&["--shards", "3"]);
    let good = format!("isles:{}", server.password);
    let run = |sql: &str| {
        let (status, answer) = post(&server, Some(&good), "", &format!(r#"{{"sql":"{sql}"}}"#));
        assert_eq!(status, 200, "{answer}");
    };
    run("create table t (id int primary key)");
    run("insert into t select n from generate_series(1, 30) n");
    run("select * from t");
    let metrics = server.get("/metrics");
    let values = |name: &str| -> Vec<f64> {
        let of = metrics.lines().filter_map(|line| line.strip_prefix(&format!("isles_shard_{name}_total{{shard=\"s")));
        of.map(|rest| rest.split_once("\"} ").unwrap().1.parse().unwrap()).collect()
    };
    assert_eq!(values("rows").len(), 3, "{metrics}");
    assert_eq!(values("rows").iter().sum::<f64>(), 60.0, "each row was inserted and read: {metrics}");
    assert_eq!(values("statements").iter().sum::<f64>(), 33.0, "{metrics}");
    assert_eq!(values("errors"), [0.0; 3]);
    assert!(values("seconds").iter().all(|seconds| *seconds > 0.0), "{metrics}");
}
