//! Stores by SQL: definitions, operations, roles, transactions.

use crate::harness::Client;
use crate::world::World;
use isles_cluster::roles::Role;
use serde_json::Value;

fn owner() -> Role {
    Role { admin: false, ..Role::default() }
}

/// Boxed: a test of many statements would have all of their futures on its stack.
async fn run(client: &mut Client, sql: &str) -> Vec<String> {
    Box::pin(client.run(sql)).await
}

async fn fails(client: &mut Client, sql: &str) -> &'static str {
    Box::pin(client.fails(sql)).await
}

async fn json(client: &mut Client, sql: &str) -> Value {
    serde_json::from_str(&run(client, sql).await[0]).unwrap()
}

fn outcome(answer: &Value) -> &str {
    answer["outcome"].as_str().unwrap()
}

pub(crate) async fn stores_are_defined_and_used_by_sql(world: World) {
    world.stores.register();
    let mut admin = world.db.client();
    let create = "SELECT isles.create_store('ticket', prefix => 'tkt', \"group\" => 'random-medium-rps', key => 'uuid', ttl => '1 hour')";
    assert_eq!(run(&mut admin, create).await, ["ticket"]);
    assert_eq!(fails(&mut admin, create).await, "42710");
    assert_eq!(run(&mut admin, "SELECT isles.create_preset('identity')").await, ["0"]);
    assert_eq!(run(&mut admin, "SELECT * FROM isles.stores()").await.len(), 17);
    // Records belong to a tenant.
    assert_eq!(fails(&mut admin, "SELECT isles.put('ticket', '{}')").await, "22023");
    let mut client = world.db.client_as(owner(), &[("isles.tenant", "acme")]).unwrap();
    assert_eq!(fails(&mut client, "SELECT isles.create_preset('identity')").await, "42501");
    let put = json(&mut client, r#"SELECT isles.put('ticket', '{"n": 1}', owner => 'ann', ttl => '10 minutes')"#).await;
    let id = put["id"].as_str().unwrap().to_owned();
    assert!(outcome(&put) == "ok" && id.contains(":tkt_"));
    let get = json(&mut client, &format!("SELECT isles.get('ticket', '{id}')")).await;
    assert_eq!((outcome(&get), &get["value"]["n"]), ("ok", &Value::from(1)));
    assert_eq!(outcome(&json(&mut client, &format!("SELECT isles.extend('ticket', '{id}')")).await), "ok");
    let swap = format!("SELECT isles.compare_and_swap('ticket', 1, '2', '{id}')");
    assert_eq!(outcome(&json(&mut client, &swap).await), "conflict");
    let listed = json(&mut client, "SELECT isles.list_by_owner('ticket', 'ann')").await;
    assert_eq!(listed["records"].as_array().unwrap().len(), 1);
    assert_eq!(json(&mut client, "SELECT isles.count('ticket')").await["count"], 1);
    // What a transaction takes back has not been used.
    run(&mut client, "BEGIN").await;
    assert_eq!(outcome(&json(&mut client, &format!("SELECT isles.take('ticket', '{id}')")).await), "ok");
    assert_eq!(outcome(&json(&mut client, &format!("SELECT isles.take('ticket', '{id}')")).await), "used");
    run(&mut client, "ROLLBACK").await;
    assert_eq!(outcome(&json(&mut client, &format!("SELECT isles.take('ticket', '{id}')")).await), "ok");
    assert_eq!(outcome(&json(&mut client, &format!("SELECT isles.take('ticket', '{id}')")).await), "used");
    let absent = "SELECT isles.put_if_absent('dpop', 'jkt:jti', ttl => '1 minute')";
    assert_eq!(outcome(&json(&mut client, absent).await), "ok");
    assert_eq!(outcome(&json(&mut client, absent).await), "replayed");
    let code =
        json(&mut client, "SELECT isles.put('authcode', '{}', key => 'ann:app', owner => 'ann', binding => 'app')")
            .await;
    let code = code["id"].as_str().unwrap().to_owned();
    let exchange = format!("SELECT isles.exchange('authcode', '{code}', 'refresh', binding => 'app')");
    let exchanged = json(&mut client, &exchange).await;
    let token = exchanged["made"]["id"].as_str().unwrap().to_owned();
    let rotated = json(&mut client, &format!("SELECT isles.rotate('refresh', '{token}', binding => 'app')")).await;
    assert_eq!(outcome(&rotated), "ok");
    assert_eq!(outcome(&json(&mut client, &exchange).await), "replayed");
    let hit = json(&mut client, "SELECT isles.hit('ratelimit', 'mail', 1, '1 minute')").await;
    assert_eq!(hit["allowed"], true);
    let hit = json(&mut client, "SELECT isles.hit('ratelimit', 'mail', 1, '1 minute')").await;
    assert_eq!(hit["allowed"], false);
    assert_eq!(json(&mut client, "SELECT isles.revoke_owner('ticket', 'ann')").await["outcome"], "ok");
    for (sql, state) in [
        ("SELECT isles.put('nothing', '{}')", "42704"),
        ("SELECT isles.put('ticket', 'no json')", "22P02"),
        ("SELECT isles.get('ticket')", "22023"),
        ("SELECT isles.get('ticket', 'x', key => 'y')", "22023"),
        ("SELECT isles.put('ticket', '{}', ttl => '-1 hour')", "22023"),
        ("SELECT * FROM isles.records_enam", "42501"),
        ("SELECT isles.drop_store('ticket')", "42501"),
    ] {
        assert_eq!(fails(&mut client, sql).await, state, "{sql}");
    }
    assert!(!run(&mut client, "SELECT * FROM isles.distribution()").await.is_empty());
}

/// I-40: a role that is locked to a tenant reaches its records, and no others.
pub(crate) async fn a_tenants_role_reaches_its_own_records(world: World) {
    world.stores.register();
    let locked = |name: &str| {
        let settings = [("isles.tenant".to_owned(), name.to_owned()), ("isles.tenant_locked".into(), "on".into())];
        Role { settings: settings.into(), ..owner() }
    };
    let mut acme = world.db.client_as(locked("acme"), &[]).unwrap();
    let mut other = world.db.client_as(locked("other"), &[]).unwrap();
    let put = json(&mut acme, "SELECT isles.put('session', '{}', owner => 'ann')").await;
    let id = put["id"].as_str().unwrap();
    for operation in ["get", "take", "extend", "revoke", "delete"] {
        let sql = format!("SELECT isles.{operation}('session', '{id}')");
        assert_eq!(outcome(&json(&mut other, &sql).await), "not_found", "{operation}");
    }
    assert_eq!(json(&mut other, "SELECT isles.count('session')").await["count"], 0);
    assert_eq!(json(&mut other, "SELECT isles.revoke_owner('session', 'ann')").await["records"], 0);
    assert_eq!(outcome(&json(&mut acme, &format!("SELECT isles.get('session', '{id}')")).await), "ok");
    assert_eq!(fails(&mut other, "SELECT * FROM isles.stores()").await, "42501");
    assert_eq!(fails(&mut other, "SET isles.tenant = 'acme'").await, "42501");
}
