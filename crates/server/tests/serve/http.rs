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

/// I-42: the tenant of a request is the one that its header names; without one, statements on tenant tables are refused.
#[test]
fn a_request_has_the_tenant_of_its_header() {
    let server = Server::start(&[]);
    let good = format!("isles:{}", server.password);
    let ask = |who: &str, headers: &str, sql: &str| {
        let (status, answer) = post(&server, Some(who), headers, &serde_json::json!({ "sql": sql }).to_string());
        let code = answer["error"]["code"].as_str().unwrap_or_default().to_owned();
        (status, code, answer)
    };
    for sql in [
        "CREATE TABLE notes (id int PRIMARY KEY, body text) WITH (kind = tenant)",
        "CREATE USER ann PASSWORD 'one'",
        "ALTER ROLE ann SET isles.tenant = 'acme'",
        "ALTER ROLE ann SET isles.tenant_locked = on",
    ] {
        assert_eq!(ask(&good, "", sql).0, 200, "{sql}");
    }
    let longest = "x".repeat(64);
    let tenants = [
        "x-isles-tenant: acme\r\n".to_owned(),
        "x-isles-tenant: Müller & Co\r\n".to_owned(),
        format!("x-isles-tenant: {longest}\r\n"),
        "x-isles-null-tenant: on\r\n".to_owned(),
    ];
    for (n, header) in tenants.iter().enumerate() {
        let insert = format!("INSERT INTO notes VALUES (1, 'note {n}')");
        assert_eq!(ask(&good, header, &insert).0, 200, "{header}");
    }
    for (n, header) in tenants.iter().enumerate() {
        let (_, _, answer) = ask(&good, header, "SELECT body FROM notes");
        assert_eq!(answer["results"][0]["rows"], serde_json::json!([[format!("note {n}")]]), "{header}");
    }
    let select = "SELECT body FROM notes";
    let too_long = format!("x-isles-tenant: {}\r\n", "x".repeat(65));
    for (headers, code) in [
        ("", "55000"),
        ("x-isles-null-tenant: off\r\n", "55000"),
        ("x-isles-null-tenant: perhaps\r\n", "22023"),
        ("x-isles-tenant: \r\n", "22023"),
        (too_long.as_str(), "22023"),
        ("x-isles-tenant: acme\r\nx-isles-null-tenant: on\r\n", "22023"),
        ("x-isles-tenant: acme\r\nx-isles-tenant: borealis\r\n", "22023"),
    ] {
        let (_, found, answer) = ask(&good, headers, select);
        assert_eq!(found, code, "{headers}: {answer}");
        if code == "55000" {
            let hint = answer["error"]["hint"].as_str().unwrap_or_default();
            assert!(hint.contains("SET isles.tenant"), "{answer}");
        }
    }
    let ann = "ann:one";
    assert_eq!(ask(ann, "", select).2["results"][0]["rows"], serde_json::json!([["note 0"]]));
    assert_eq!(ask(ann, "x-isles-tenant: acme\r\n", select).0, 200);
    for header in ["x-isles-tenant: borealis\r\n", "x-isles-null-tenant: on\r\n", "x-isles-tenant: \r\n"] {
        assert_eq!(ask(ann, header, select).1, "42501", "{header}");
    }
    assert!(not_utf8(&server, &good).contains("22021"));
}

/// What is answered to a header with bytes that are no text.
fn not_utf8(server: &Server, credentials: &str) -> String {
    use std::io::{Read, Write};
    let body = r#"{"sql":"SELECT 1"}"#;
    let mut request = format!(
        "POST /sql HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {credentials}\r\n\
         Content-Length: {}\r\nx-isles-tenant: ",
        body.len()
    )
    .into_bytes();
    request.extend([b'a', 0xff, 0xfe]);
    request.extend(format!("\r\n\r\n{body}").into_bytes());
    let mut stream = std::net::TcpStream::connect(server.http).unwrap();
    stream.set_read_timeout(Some(crate::harness::PATIENCE)).unwrap();
    stream.write_all(&request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
