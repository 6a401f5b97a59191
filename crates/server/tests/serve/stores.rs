//! Stores by HTTP: outcomes and their status, tenants, metrics.

use crate::harness::{Server, isles};
use serde_json::{Value, json};

fn post(server: &Server, path: &str, tenant: Option<&str>, body: &Value) -> (u16, Value) {
    let tenant = tenant.map_or(String::new(), |name| format!("x-isles-tenant: {name}\r\n"));
    post_with(server, path, &tenant, body)
}

/// With lines of headers.
fn post_with(server: &Server, path: &str, headers: &str, body: &Value) -> (u16, Value) {
    let (body, password) = (body.to_string(), &server.password);
    let length = body.len();
    let answer = server.http(&format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer isles:{password}\r\n{headers}\
         Content-Length: {length}\r\n\r\n{body}"
    ));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned())))
}

/// Each series has buckets that rise to the count, which is that of `+Inf`, and a sum.
fn is_a_histogram(metrics: &str, name: &str) {
    assert!(metrics.contains(&format!("# TYPE {name} histogram")), "{metrics}");
    let of = |part: &str| -> Vec<(String, f64)> {
        let start = format!("{name}_{part}{{");
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(&start));
        lines
            .map(|line| line.rsplit_once("} ").map(|(to, count)| (to.to_owned(), count.parse().unwrap())).unwrap())
            .collect()
    };
    let (counts, sums, buckets) = (of("count"), of("sum"), of("bucket"));
    assert!(!counts.is_empty() && counts.len() == sums.len());
    for (labels, count) in counts {
        assert!(labels.contains("do_type=") && labels.contains("region=") && labels.contains("shard="), "{labels}");
        let own: Vec<&(String, f64)> = buckets
            .iter()
            .filter(|(to, _)| to.starts_with("le=") && to.ends_with(&labels) || to.starts_with(&labels))
            .collect();
        assert!(own.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{own:?}");
        let last = own.last().unwrap_or_else(|| panic!("{labels} has no buckets in {metrics}"));
        assert!(last.0.contains("le=\"+Inf\"") && last.1 == count, "{last:?} {count}");
    }
}

#[test]
fn records_are_stored_taken_and_kept_apart() {
    let server = Server::start(&["--shards", "2"]);
    let (status, answer) = post(&server, "/sql", None, &json!({ "sql": "SELECT isles.create_preset('identity')" }));
    assert_eq!(status, 200, "{answer}");
    let ask = |operation: &str, tenant: Option<&str>, body: Value| {
        let path = format!("/stores/session/{operation}");
        post(&server, &path, tenant, &body)
    };
    let (status, put) = ask("put", Some("acme"), json!({ "value": { "user": "ann" }, "owner": "ann", "ttl": 60_000 }));
    assert_eq!((status, put["outcome"].as_str()), (200, Some("ok")), "{put}");
    let id = put["id"].as_str().unwrap();
    let (status, got) = ask("get", Some("acme"), json!({ "id": id }));
    assert_eq!((status, got["value"]["user"].as_str()), (200, Some("ann")));
    assert_eq!(ask("get", Some("other"), json!({ "id": id })).0, 404);
    assert_eq!(ask("take", Some("acme"), json!({ "id": id })).0, 200);
    assert_eq!(ask("take", Some("acme"), json!({ "id": id })), (409, json!({ "outcome": "used" })));
    assert_eq!(ask("get", None, json!({ "id": id })).0, 400, "no tenant is said");
    assert_eq!(ask("fly", Some("acme"), json!({})).0, 400);
    assert_eq!(ask("get", Some("acme"), json!({ "id": id, "more": 1 })).0, 400);
    let metrics = server.get("/metrics");
    let spread = "do_shard_distribution{do_type=\"session\",group=\"default\",quantile=\"0.99\"}";
    assert!(metrics.contains(spread), "{metrics}");
    is_a_histogram(&metrics, "do_request_duration");
    assert!(server.get("/stores").starts_with("HTTP/1.1 401"));
}

#[test]
fn a_request_says_where_it_comes_from() {
    let server = Server::start(&["--shards", "2"]);
    let (status, answer) = post(&server, "/sql", None, &json!({ "sql": "SELECT isles.create_preset('identity')" }));
    assert_eq!(status, 200, "{answer}");
    let put = |region: &str, body: Value| {
        let headers = format!("x-isles-tenant: acme\r\nx-isles-region: {region}\r\n");
        let (status, put) = post_with(&server, "/stores/session/put", &headers, &body);
        (status, put["id"].as_str().map(|id| id.split(':').nth(1).unwrap_or_default().to_owned()))
    };
    let minted = |region: &str| (200, Some(region.to_owned()));
    for region in ["apac", "enam", "weur"] {
        assert_eq!(put(region, json!({ "value": 1 })), minted(region));
        assert_eq!(put(region, json!({ "value": 1, "locationHint": "apac" })), minted("apac"));
    }
    let (status, answer) = post_with(
        &server,
        "/sql",
        "x-isles-tenant: acme\r\nx-isles-region: weur\r\n",
        &json!({ "sql": "SELECT isles.put('session', '1')" }),
    );
    assert!(status == 200 && answer["results"][0]["rows"][0][0]["id"].as_str().unwrap().contains(":weur:"), "{answer}");
    // Who is where this tenant has nothing is served all the same, unless the record must be there.
    let (status, minted) = put("oc", json!({ "value": 1 }));
    assert!(status == 200 && ["apac", "enam", "weur"].contains(&minted.unwrap().as_str()));
    assert_eq!(put("oc", json!({ "value": 1, "region": "oc" })), (400, None));
    let metrics = server.get("/metrics");
    let line = "isles_store_region_unserved_total{do_type=\"session\",region=\"oc\"} 1";
    assert!(metrics.contains(line), "{line} is missing in {metrics}");
}

/// Whoever comes to a full store shall come later, and is told when.
#[test]
fn a_quota_is_refused_with_429_over_http() {
    let server = Server::start(&["--shards", "2"]);
    let create = "SELECT isles.create_store('push', prefix => 'psh', \"group\" => 'client-based', key => 'client_id', \
                  ttl => '30 seconds', max_records => 2)";
    let (status, answer) = post(&server, "/sql", None, &json!({ "sql": create }));
    assert_eq!(status, 200, "{answer}");
    let put = json!({ "value": 1, "key": "app" });
    for _ in 0..2 {
        assert_eq!(post(&server, "/stores/push/put", Some("acme"), &put).0, 200);
    }
    let (status, refused) = post(&server, "/stores/push/put", Some("acme"), &put);
    assert_eq!((status, refused["error"]["code"].as_str()), (429, Some("53400")), "{refused}");
    assert!(refused["error"]["hint"].as_str().unwrap().contains("max_records = 2"), "{refused}");
    // By SQL over HTTP as well.
    let sql = json!({ "sql": "SELECT isles.put('push', '1', key => 'app')" }).to_string();
    let (password, length) = (&server.password, sql.len());
    let answer = server.http(&format!(
        "POST /sql HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer isles:{password}\r\n\
         x-isles-tenant: acme\r\nContent-Length: {length}\r\n\r\n{sql}"
    ));
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    let wait = answer.lines().find_map(|line| line.to_lowercase().strip_prefix("retry-after: ").map(str::to_owned));
    assert!((1..=30).contains(&wait.unwrap().parse::<u32>().unwrap()), "{answer}");
    assert_eq!(post(&server, "/stores/push/count", Some("acme"), &json!({})).1["count"], 2);
    let metrics = server.get("/metrics");
    assert!(metrics.contains("do_quota_refused_total{do_type=\"push\",quota=\"max_records\"} 2"), "{metrics}");
    let stores = post(&server, "/sql", None, &json!({ "sql": "SELECT * FROM isles.stores()" })).1;
    assert_eq!(stores["results"][0]["rows"][0][8], 2, "{stores}");
}

/// A poll that is no grant is no success, also for one who looks at the status alone.
#[test]
fn a_device_is_polled_over_http() {
    let server = Server::start(&["--shards", "2"]);
    let (status, answer) = post(&server, "/sql", None, &json!({ "sql": "SELECT isles.create_preset('identity')" }));
    assert_eq!(status, 200, "{answer}");
    let ask = |operation: &str, body: Value| post(&server, &format!("/stores/device/{operation}"), Some("acme"), &body);
    let (status, started) = ask("start_device", json!({ "client": "tv", "value": { "scope": "tv" } }));
    assert_eq!(status, 200, "{started}");
    let poll = json!({ "id": started["deviceCode"], "client": "tv" });
    assert_eq!(ask("poll_device", poll.clone()), (400, json!({ "outcome": "authorization_pending" })));
    assert_eq!(ask("poll_device", poll.clone()), (400, json!({ "outcome": "slow_down", "interval": 10 })));
    let approve = json!({ "user_code": started["userCode"], "granted": { "sub": "ann" } });
    assert_eq!(ask("answer_device", approve), (200, json!({ "outcome": "ok" })));
    let granted = (200, json!({ "outcome": "ok", "granted": { "sub": "ann" } }));
    assert_eq!(ask("poll_device", poll.clone()), granted);
    assert_eq!(ask("poll_device", poll), (400, json!({ "outcome": "invalid_grant" })));
    assert_eq!(ask("find_device", json!({ "user_code": "2222-2222" })).0, 404);
}

const FILE: &str = "presets = ['identity']

[[stores]]
name = 'ticket'
prefix = 'tkt'
group = 'random-medium-rps'
key = 'uuid'
ttl = '1 hour'
max_records = 100

# In place of the preset's.
[[stores]]
name = 'session'
prefix = 'ses'
group = 'random-medium-rps'
key = 'uuid'
ttl = '2 hours'
cap = '1 day'
";

/// Stores of the file are there at the first start and at each later one; one that is there otherwise stops the server.
#[cfg(unix)]
#[test]
fn stores_are_declared_in_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("isles.toml");
    std::fs::write(&file, FILE).unwrap();
    let arguments = ["--shards", "2", "--config", file.to_str().unwrap()];
    let mut data = tempfile::tempdir().unwrap();
    for start in 0..2 {
        let mut server = Server::start_in(data, &arguments);
        let listed = post(&server, "/sql", None, &json!({ "sql": "SELECT * FROM isles.stores()" })).1;
        let rows = listed["results"][0]["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 17, "at start {start}: {listed}");
        let session = rows.iter().find(|row| row[0] == "session").unwrap();
        assert_eq!((&session[4], &session[5]), (&json!(7_200_000), &json!(86_400_000)));
        let ticket = rows.iter().find(|row| row[0] == "ticket").unwrap();
        assert_eq!((&ticket[8], &session[8]), (&json!(100), &Value::Null));
        let put = post(&server, "/stores/ticket/put", Some("acme"), &json!({ "value": 1 })).1;
        assert_eq!(put["outcome"], "ok", "{put}");
        data = std::mem::replace(&mut server.data, tempfile::tempdir().unwrap());
        assert_eq!(server.terminate(), 0);
    }
    std::fs::write(&file, FILE.replace("'2 hours'", "'3 hours'").replace("'tkt'", "'tic'").replace("100", "50"))
        .unwrap();
    let serve = || {
        let place = ["serve", "--json", "--listen", "127.0.0.1:0", "--http", "off", "--data"];
        let output = isles().args(place).arg(data.path().join("d")).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), said)
    };
    let (started, said) = serve();
    assert!(!started, "{said}");
    for wanted in [
        "ttl is 7200000 ms, and 10800000 ms is declared",
        "prefix is tkt, and tic is declared",
        "max_records is 100, and 50 is declared",
        "alter_store",
    ] {
        assert!(said.contains(wanted), "{wanted} is missing in {said}");
    }
}

/// Reads of a previous generation are counted, by the generations that are asked and found.
#[test]
fn reads_of_a_previous_generation_are_counted() {
    let server = Server::start(&["--shards", "2"]);
    let create = "SELECT isles.create_preset('identity')";
    assert_eq!(post(&server, "/sql", None, &json!({ "sql": create })).0, 200);
    let put = post(&server, "/stores/session/put", Some("acme"), &json!({ "value": 1 })).1;
    let (status, moved) = post_with(&server, "/admin/sharding/migrate?tenant=acme", "If-Match: \"0\"\r\n", &json!({}));
    assert_eq!(status, 200, "{moved}");
    for _ in 0..2 {
        assert_eq!(post(&server, "/stores/session/get", Some("acme"), &json!({ "id": put["id"] })).0, 200);
    }
    let metrics = server.get("/metrics");
    let line = "do_generation_fallback_total{do_type=\"session\",from_gen=\"2\",to_gen=\"1\"} 2";
    assert!(metrics.contains(line), "{metrics}");
    let (status, gone) = post(&server, "/stores/nothing/get", Some("acme"), &json!({ "id": "x" }));
    assert_eq!((status, gone["error"]["code"].as_str()), (404, Some("42704")), "{gone}");
}

/// B21: a proof that came by HTTP does not pass by SQL, and the other way round.
#[test]
fn b21_a_proof_is_one_proof_over_http() {
    let server = Server::start(&["--shards", "2"]);
    let create = "SELECT isles.create_preset('identity')";
    assert_eq!(post(&server, "/sql", None, &json!({ "sql": create })).0, 200);
    let by_http = |jti: &str| {
        let body = json!({ "jkt": "thumb", "jti": jti, "lifetime": 60_000 });
        post(&server, "/stores/dpop/pass_proof", Some("acme"), &body)
    };
    let by_sql = |jti: &str| {
        let sql = format!("SELECT isles.pass_proof('dpop', 'thumb', '{jti}', '1 minute')");
        let answer = post(&server, "/sql", Some("acme"), &json!({ "sql": sql })).1;
        answer["results"][0]["rows"][0][0]["outcome"].as_str().map(str::to_owned)
    };
    assert_eq!(by_http("http first").0, 200);
    assert_eq!(by_sql("http first").as_deref(), Some("replayed"));
    assert_eq!(by_sql("sql first").as_deref(), Some("ok"));
    assert_eq!(by_http("sql first"), (409, json!({ "outcome": "replayed" })));
}

/// Changes of permissions are published and followed without a line of Rust, and an extension says what became of it.
#[test]
fn changes_are_published_and_followed_over_http() {
    let server = Server::start(&["--shards", "2"]);
    let create = "SELECT isles.create_preset('identity')";
    assert_eq!(post(&server, "/sql", None, &json!({ "sql": create })).0, 200);
    let ask = |operation: &str, body: Value| post(&server, &format!("/stores/{operation}"), Some("acme"), &body);
    for number in 1..=2 {
        let (status, said) = ask("permission/publish_change", json!({ "change": { "user": "ann", "n": number } }));
        assert_eq!((status, said["number"].as_u64()), (200, Some(number)), "{said}");
    }
    let (status, after) = ask("permission/changes_after", json!({ "number": 1 }));
    let wanted = json!([{ "number": 2, "change": { "user": "ann", "n": 2 } }]);
    assert_eq!((status, &after["changes"]), (200, &wanted), "{after}");
    assert_eq!(ask("permission/changes_after", json!({ "number": 9 })).0, 410);
    let code = ask("challenge/put", json!({ "value": 1, "key": "ann/1" })).1;
    let extended = ask("challenge/extend", json!({ "id": code["id"], "ttl": 3_600_000 })).1;
    assert_eq!((&extended["capped"], &extended["capAt"]), (&json!(true), &extended["expiresAt"]), "{extended}");
    let session = ask("session/put", json!({ "value": 1 })).1;
    assert_eq!(ask("session/extend", json!({ "id": session["id"] })).1["capped"], false);
}

/// docs/alerts.yml is as Prometheus reads it: rules have no other fields than these, and ask for metrics that there are.
#[test]
fn the_alert_rules_are_as_prometheus_reads_them() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/alerts.yml");
    let text = std::fs::read_to_string(file).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    assert_eq!(lines.next(), Some("groups:"));
    let (mut rules, mut within): (Vec<Vec<String>>, String) = (Vec::new(), String::new());
    for line in lines {
        let depth = line.len() - line.trim_start().len();
        let (field, value) = line.trim_start().split_once(':').unwrap_or_else(|| panic!("{line}"));
        match (depth, field) {
            (2, "- name") | (4, "rules") => {}
            (6, "- alert") => rules.push(vec!["alert".into()]),
            (8, "expr" | "for" | "labels" | "annotations") => {
                within = field.into();
                assert_eq!(value.trim().is_empty(), matches!(field, "labels" | "annotations"), "{line}");
                rules.last_mut().unwrap().push(format!("{field}:{value}"));
            }
            (10, _) if within == "labels" || within == "annotations" => assert!(!value.trim().is_empty(), "{line}"),
            _ => panic!("Prometheus has no such field: {line}"),
        }
    }
    let server = Server::start(&[]);
    let metrics = server.get("/metrics");
    for rule in &rules {
        let expr = rule.iter().find_map(|field| field.strip_prefix("expr:")).unwrap_or_else(|| panic!("{rule:?}"));
        let names = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: Vec<&str> = names.filter(|name| name.starts_with("do_") || name.starts_with("isles_")).collect();
        assert!(!names.is_empty(), "{expr}");
        for name in names {
            assert!(metrics.contains(name), "{expr} asks for {name}, which is not there");
        }
    }
    assert!(rules.len() >= 2 && text.contains("ShardConfigInvalid") && text.contains("ShardHotspot"));
}
