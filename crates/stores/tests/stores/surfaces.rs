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
    let shown = run(&mut client, "SHOW DISTRIBUTION").await;
    assert_eq!(shown, run(&mut client, "SELECT * FROM isles.distribution()").await);
    let of = |group: &str, store: &str| shown.iter().find(|row| row.starts_with(&format!("{group}|{store}|")));
    assert!(of("random-medium-rps", "ticket").is_some() && of("user-client", "refresh").is_some(), "{shown:?}");
    // Codes and tokens share buckets, so they are hot together.
    assert!(of("user-client", "∅").is_some(), "{shown:?}");
}

/// What an identity provider does with devices, keys and versions, without a line of Rust.
pub(crate) async fn devices_keys_and_versions_are_used_by_sql(world: World) {
    world.stores.register();
    let mut client = world.db.client_as(owner(), &[("isles.tenant", "acme")]).unwrap();
    let started = json(&mut client, r#"SELECT isles.start_device('device', 'tv', '{"scope":"tv"}')"#).await;
    let (id, code) = (started["deviceCode"].as_str().unwrap(), started["userCode"].as_str().unwrap());
    assert_eq!((outcome(&started), &started["interval"]), ("ok", &Value::from(5)));
    let poll = format!("SELECT isles.poll_device('device', '{id}', 'tv')");
    assert_eq!(outcome(&json(&mut client, &poll).await), "authorization_pending");
    let slow = json(&mut client, &poll).await;
    assert_eq!((outcome(&slow), &slow["interval"]), ("slow_down", &Value::from(10)));
    let found = json(&mut client, &format!("SELECT isles.find_device('device', '{}')", code.to_lowercase())).await;
    assert_eq!((found["id"].as_str(), &found["value"]["scope"]), (Some(id), &Value::from("tv")));
    let approve = format!(r#"SELECT isles.answer_device('device', '{code}', '{{"sub":"ann"}}')"#);
    assert_eq!(outcome(&json(&mut client, &approve).await), "ok");
    assert_eq!(outcome(&json(&mut client, &approve).await), "conflict");
    world.pass(10);
    let granted = json(&mut client, &poll).await;
    assert_eq!((outcome(&granted), &granted["granted"]["sub"]), ("ok", &Value::from("ann")));
    assert_eq!(outcome(&json(&mut client, &poll).await), "invalid_grant");
    let started = json(&mut client, "SELECT isles.start_device('ciba', 'tv', '1', \"interval\" => 2)").await;
    let deny = format!("SELECT isles.answer_device('ciba', '{}')", started["userCode"].as_str().unwrap());
    assert_eq!(outcome(&json(&mut client, &deny).await), "ok");
    let poll = format!("SELECT isles.poll_device('ciba', '{}', 'tv')", started["deviceCode"].as_str().unwrap());
    assert_eq!(outcome(&json(&mut client, &poll).await), "access_denied");
    for kid in ["k1", "k2"] {
        json(&mut client, &format!(r#"SELECT isles.rotate_key('keymanager', '{kid}', '{{"kty":"EC"}}')"#)).await;
    }
    let leaked = "SELECT isles.rotate_key('keymanager', 'k3', '{}', leaked => 'the key has leaked')";
    assert_eq!(outcome(&json(&mut client, leaked).await), "ok");
    let keys = json(&mut client, "SELECT isles.signing_keys('keymanager')").await;
    let statuses: Vec<&str> = (0..3).map(|at| keys["keys"][at]["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["active", "revoked", "overlap"]);
    for version in 1..=3 {
        let next = json(&mut client, "SELECT isles.next_version('versionmanager', 'worker')").await;
        assert_eq!(next["version"], version);
    }
    for sql in [
        "SELECT isles.start_device('session', 'tv', '1')",
        "SELECT isles.start_device('device', 'tv', '1', \"interval\" => -1)",
        "SELECT isles.next_version('session', 'x')",
        "SELECT isles.rotate_key('versionmanager', 'k', '{}')",
    ] {
        assert_eq!(fails(&mut client, sql).await, "22023", "{sql}");
    }
    assert_eq!(fails(&mut client, "SELECT isles.rotate_key('keymanager', 'k9', 'no json')").await, "22P02");
}

/// A session says where it is, an operation says it better, and neither moves a record whose key says where it is.
pub(crate) async fn new_ids_are_minted_in_the_region_of_the_session(world: World) {
    world.stores.register();
    let mut client = world.db.client_as(owner(), &[("isles.tenant", "acme"), ("isles.region", "apac")]).unwrap();
    let region = async |client: &mut Client, sql: &str| {
        let put = json(client, sql).await;
        put["id"].as_str().unwrap().split(':').nth(1).unwrap().to_owned()
    };
    for _ in 0..8 {
        assert_eq!(region(&mut client, "SELECT isles.put('session', '1')").await, "apac");
        assert_eq!(region(&mut client, "SELECT isles.put('session', '1', \"locationHint\" => 'enam')").await, "enam");
        assert_eq!(region(&mut client, "SELECT isles.put('session', '1', region => 'weur')").await, "weur");
    }
    let mut homes = std::collections::BTreeSet::new();
    for number in 0..20 {
        let put = format!("SELECT isles.put('authcode', '1', key => 'user{number}:app')");
        homes.insert(region(&mut client, &put).await);
    }
    assert_eq!(homes.len(), 3, "keys say where codes are");
    // Where a client is, and a hint, give way to the shares of a tenant that has no such region; what is demanded does not.
    run(&mut client, "SET isles.region = 'oc'").await;
    for put in ["SELECT isles.put('session', '1')", "SELECT isles.put('session', '1', \"locationHint\" => 'mars')"] {
        let home = region(&mut client, put).await;
        assert!(["apac", "enam", "weur"].contains(&home.as_str()), "{home}");
    }
    assert_eq!(fails(&mut client, "SET isles.region = 'mars'").await, "22023");
    run(&mut client, "RESET isles.region").await;
    let error = client.try_run("SELECT isles.put('session', '1', region => 'mars')").await.unwrap_err();
    assert_eq!((error.sqlstate, error.hint.as_deref()), ("22023", Some("it has apac, enam, weur")));
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

/// A region that no store had records in is met for the first time by a client in the middle of its transaction. Its
/// table cannot be made there: a change of the schema waits for open transactions, and this one would wait for it.
pub(crate) async fn a_region_is_first_met_within_a_transaction(world: World) {
    world.stores.register();
    let mut client = world.db.client_as(owner(), &[("isles.tenant", "acme")]).unwrap();
    world.migrate(&serde_json::json!({ "baseRegions": { "oc": 40, "apac": 20, "weur": 40 } })).await;
    run(&mut client, "BEGIN").await;
    json(&mut client, "SELECT isles.put('session', '{}', region => 'apac')").await;
    let put = json(&mut client, "SELECT isles.put('session', '1', region => 'oc')").await;
    let id = put["id"].as_str().unwrap().to_owned();
    assert!(id.starts_with("g2:oc:"), "{id}");
    let get = format!("SELECT isles.get('session', '{id}')");
    assert_eq!(outcome(&json(&mut client, &get).await), "ok");
    run(&mut client, "ROLLBACK").await;
    assert_eq!(outcome(&json(&mut client, &get).await), "not_found");
    run(&mut client, "BEGIN").await;
    json(&mut client, "SELECT isles.put('session', '{}', region => 'apac')").await;
    let code = json(&mut client, "SELECT isles.put('device', '{}', key => 'tv', alias => 'oc-code')").await;
    run(&mut client, "COMMIT").await;
    assert_eq!(outcome(&code), "ok");
}

/// Where the placement was written by one who knows no stores, nobody has made the tables. Within a transaction this is
/// an error that says to retry, and by then they are there.
pub(crate) async fn a_table_that_is_missing_within_a_transaction_is_made_for_the_next(world: World) {
    let config = serde_json::json!({
        "version": 2, "currentGeneration": 1, "baseRegions": { "afr": 100 },
        "groups": { "default": { "totalShards": 8, "members": [] } },
    });
    let elsewhere = world.stores.under(isles_kernel::placement::Placement::from_json(&config.to_string()).unwrap());
    let mut client = world.db.client();
    run(&mut client, "BEGIN").await;
    run(&mut client, "SELECT count(*) FROM isles.records_apac").await;
    let refused = {
        let mut desk = elsewhere.desk_of(&mut client.session);
        Box::pin(desk.put(&crate::world::acme(), "session", isles_stores::Put::of("1"))).await.unwrap_err()
    };
    assert_eq!((refused.sqlstate, refused.hint.as_deref()), ("40001", Some("retry the transaction")));
    run(&mut client, "ROLLBACK").await;
    while client.try_run("SELECT count(*) FROM isles.records_afr").await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let put = elsewhere.desk().put(&crate::world::acme(), "session", isles_stores::Put::of("1")).await;
    assert!(put.unwrap().id().unwrap().starts_with("g1:afr:"));
}
