//! Tenants over the wire: what a client hears of a long drop, quotas of connections, and metrics.

use crate::harness::{Raw, Server, field, hello, message};
use tokio_postgres::{Client, NoTls};

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn query(raw: &mut Raw, sql: &str) -> Vec<(u8, Vec<u8>)> {
    raw.send(&message(b'Q', format!("{sql}\0").as_bytes()));
    raw.until(b'Z')
}

#[test]
fn a_drop_says_how_far_it_is_before_it_is_done() {
    let server = Server::start(&[]);
    let mut raw = server.raw();
    raw.send(&hello("isles"));
    raw.prove(&server.password).unwrap();
    raw.until(b'Z');
    query(&mut raw, "CREATE TABLE notes (id int PRIMARY KEY, body text) WITH (kind = tenant)");
    query(&mut raw, "SET isles.tenant = 'acme'");
    query(&mut raw, "INSERT INTO notes SELECT n, 'x' FROM generate_series(1, 1500) n");
    let heard = query(&mut raw, "DROP TENANT acme");
    let kinds: String = heard.iter().map(|(kind, _)| char::from(*kind)).collect();
    assert_eq!(kinds, "NCZ");
    assert_eq!(field(&heard[0].1, b'M'), "tenant \"acme\": 1500 of 1500 rows deleted");
    assert_eq!((field(&heard[0].1, b'S'), field(&heard[0].1, b'D')), ("NOTICE".into(), "1500/1500".into()));
    assert!(heard[1].1.starts_with(b"DROP TENANT"));
    // In one text with others, and by the extended protocol.
    let heard = query(&mut raw, "CREATE TENANT 'a;b' WITH (max_rows = 3); SHOW TENANTS; SELECT 1");
    let kinds: String = heard.iter().map(|(kind, _)| char::from(*kind)).collect();
    assert_eq!(kinds, "CTDCTDCZ");
}

#[tokio::test]
async fn statements_about_tenants_by_the_extended_protocol() {
    let server = Server::start(&[]);
    let admin = connect(&server.url).await.unwrap();
    assert_eq!(admin.execute("CREATE TENANT acme WITH (max_bytes = '1 MB')", &[]).await.unwrap(), 0);
    let row = admin.query_one("SHOW TENANT acme", &[]).await.unwrap();
    let names: Vec<&str> = row.columns().iter().map(|column| column.name()).collect();
    let expected = [
        "tenant",
        "shard",
        "rows",
        "bytes",
        "statements",
        "state",
        "connections",
        "max_connections",
        "statement_timeout",
        "max_rows",
        "max_bytes",
    ];
    assert_eq!(names, expected);
    assert_eq!((row.get::<_, &str>(0), row.get::<_, i64>(2), row.get::<_, i64>(10)), ("acme", 0, 1 << 20));
    let listed = admin.query("SHOW TENANTS", &[]).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].columns().iter().map(|column| column.name()).collect::<Vec<_>>(), expected[..6]);
}

/// I-45: a connection beyond a tenant's quota is told so when it begins.
#[tokio::test]
async fn a_connection_beyond_the_quota_is_refused() {
    let server = Server::start(&[]);
    let admin = connect(&server.url).await.unwrap();
    admin.batch_execute("CREATE TENANT acme WITH (max_connections = 1)").await.unwrap();
    let url = format!("{}?options=-c%20isles.tenant%3Dacme", server.url);
    let first = connect(&url).await.unwrap();
    let refused = connect(&url).await.err().unwrap();
    assert_eq!(refused.code().unwrap().code(), "53300");
    assert!(refused.as_db_error().unwrap().hint().unwrap().contains("max_connections"));
    drop(first);
    let begun = std::time::Instant::now();
    while connect(&url).await.is_err() {
        assert!(begun.elapsed() < crate::harness::PATIENCE, "the place was not given back");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

/// The metrics name the busiest tenants, and no more than so many.
#[tokio::test]
async fn metrics_name_a_bounded_number_of_tenants() {
    let server = Server::start(&[]);
    let admin = connect(&server.url).await.unwrap();
    admin.batch_execute("CREATE TABLE notes (id int PRIMARY KEY) WITH (kind = tenant)").await.unwrap();
    let odd = r#"q"uo\te"#;
    let busy = [odd, "other", "busy"];
    let names = (0..150).map(|n| format!("t{n}")).chain(busy.iter().map(|name| (*name).to_string()));
    for name in names {
        admin.batch_execute(&format!("SET isles.tenant = '{name}'")).await.unwrap();
        for _ in 0..if busy.contains(&name.as_str()) { 3 } else { 1 } {
            admin.batch_execute("SELECT count(*) FROM notes").await.unwrap();
        }
    }
    assert!(admin.batch_execute("SELECT 1 / 0 FROM notes").await.is_ok(), "there are no rows");
    let text = server.get_as("isles", &server.password, "/metrics");
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("isles_tenant_statements_total{")).collect();
    assert_eq!(lines.len(), 101);
    for line in [
        r#"isles_tenant_statements_total{tenant="q\"uo\\te"} 3"#,
        r#"isles_tenant_statements_total{tenant="busy"} 4"#,
        // 150 have done one each, of which 98 have a name; and the one that is called so.
        r#"isles_tenant_statements_total{tenant="other"} 55"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let whole: f64 = lines.iter().map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
    assert_eq!(whole, 160.0);
    for name in ["isles_tenant_errors_total", "isles_tenant_rows_total", "isles_tenant_seconds_total"] {
        assert!(text.contains(&format!("{name}{{tenant=\"busy\"}}")), "{name}");
    }
}

/// I-41: whoever may not see other tenants does not read of them in the metrics either.
#[tokio::test]
async fn metrics_name_tenants_to_those_who_see_them() {
    let server = Server::start(&[]);
    let admin = connect(&server.url).await.unwrap();
    for sql in [
        "CREATE TABLE notes (id int PRIMARY KEY) WITH (kind = tenant)",
        "CREATE USER ann PASSWORD 'one'",
        "ALTER ROLE ann SET isles.tenant = 'acme'",
        "ALTER ROLE ann SET isles.tenant_locked = on",
        "CREATE USER owner PASSWORD 'two'",
        "SET isles.tenant = 'borealis'",
        "INSERT INTO notes VALUES (1)",
    ] {
        admin.batch_execute(sql).await.unwrap();
    }
    let named = r#"isles_tenant_statements_total{tenant="borealis"}"#;
    let common = "isles_statements_total{";
    for text in [server.get("/metrics"), server.get_as("ann", "one", "/metrics")] {
        assert!(text.starts_with("HTTP/1.1 200") && text.contains(common), "{text}");
        assert!(!text.contains("borealis") && !text.contains("isles_tenant_"), "{text}");
        assert!(text.contains("do_shard_config_invalid"), "{text}");
    }
    for (role, password) in [("isles", server.password.as_str()), ("owner", "two")] {
        let text = server.get_as(role, password, "/metrics");
        assert!(text.contains(common) && text.contains(named), "{role}: {text}");
        assert_eq!(text.matches("# TYPE do_shard_config_invalid").count(), 1, "{text}");
    }
    let refused = server.get_as("owner", "wrong", "/metrics");
    assert!(refused.starts_with("HTTP/1.1 401") && !refused.contains(common), "{refused}");
}
