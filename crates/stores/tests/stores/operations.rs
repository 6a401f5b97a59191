//! Each operation and each of its outcomes.

use crate::world::{World, acme, tenant};
use isles_kernel::names::RegionName;
use isles_stores::{Address, Alteration, MAX_VALUE_BYTES, Outcome, Put, StoreConfig};
use std::time::Duration;

pub(crate) async fn a_record_is_put_and_read_by_its_id(world: World) {
    let mut desk = world.desk();
    let put = desk.put(&acme(), "session", Put::of(r#"{"n":1}"#).owned("ann")).await.unwrap();
    let id = put.id().unwrap().to_owned();
    assert!(id.starts_with("g1:") && id.contains(":ses_"), "{id}");
    let read = desk.get(&acme(), "session", &Address::id(&id)).await.unwrap();
    let record = read.record.unwrap();
    assert_eq!((read.outcome, record.value.as_str(), record.version), (Outcome::Ok, r#"{"n":1}"#, 1));
    assert_eq!(record.owner.as_deref(), Some("ann"));
    // A region for a session is chosen, and its id says so.
    let weur = RegionName::new("weur").unwrap();
    for _ in 0..20 {
        let mut put = Put::of("1");
        put.region = Some(weur.clone());
        let id = desk.put(&acme(), "session", put).await.unwrap().id().unwrap().to_owned();
        assert!(id.starts_with("g1:weur:"), "{id}");
        assert!(desk.get(&acme(), "session", &Address::id(id)).await.unwrap().is_ok());
    }
    for missing in [id.replace("ses_", "ses_x"), "g1:apac:99:ses_x".into(), "nonsense".into()] {
        assert_eq!(desk.get(&acme(), "session", &Address::id(missing)).await.unwrap().outcome, Outcome::NotFound);
    }
    assert_eq!(desk.revoke(&acme(), "session", &Address::id(&id)).await.unwrap().outcome, Outcome::Ok);
    assert_eq!(desk.get(&acme(), "session", &Address::id(&id)).await.unwrap().outcome, Outcome::Revoked);
    assert_eq!(desk.delete(&acme(), "session", &Address::id(&id)).await.unwrap().outcome, Outcome::Ok);
    assert_eq!(desk.delete(&acme(), "session", &Address::id(&id)).await.unwrap().outcome, Outcome::NotFound);
    // By a key of the client's, a record is replaced.
    let key = Address::key("ann/mfa");
    assert_eq!(desk.put_at(&acme(), "challenge", &key, Put::of("1")).await.unwrap().record.unwrap().version, 1);
    assert_eq!(desk.put_at(&acme(), "challenge", &key, Put::of("2")).await.unwrap().record.unwrap().version, 2);
    assert_eq!(desk.get(&acme(), "challenge", &key).await.unwrap().record.unwrap().value, "2");
}

pub(crate) async fn a_record_expires_at_its_time_and_is_extended_up_to_its_cap(world: World) {
    let mut desk = world.desk();
    let id = desk.put(&acme(), "session", Put::of("{}")).await.unwrap().id().unwrap().to_owned();
    let id = Address::id(id);
    world.pass(3_599);
    assert_eq!(desk.get(&acme(), "session", &id).await.unwrap().outcome, Outcome::Ok);
    let extended = desk.extend(&acme(), "session", &id, None).await.unwrap().record.unwrap();
    assert_eq!(extended.expires_at - extended.created_at, (3_599 + 3_600) * 1_000_000);
    // It is not shortened.
    let same = desk.extend(&acme(), "session", &id, Some(Duration::from_secs(1))).await.unwrap().record.unwrap();
    assert_eq!(same.expires_at, extended.expires_at);
    // However often it is extended, a session ends after a day.
    for time in 1..=23 {
        world.pass(3_500);
        assert_eq!(desk.extend(&acme(), "session", &id, None).await.unwrap().outcome, Outcome::Ok, "the {time}. time");
    }
    let last = desk.extend(&acme(), "session", &id, None).await.unwrap().record.unwrap();
    assert_eq!(last.expires_at, last.cap_at);
    world.pass(3_601);
    assert_eq!(desk.get(&acme(), "session", &id).await.unwrap().outcome, Outcome::Expired);
    assert_eq!(desk.extend(&acme(), "session", &id, None).await.unwrap().outcome, Outcome::Expired);
    assert_eq!(desk.take(&acme(), "session", &id, None).await.unwrap().outcome, Outcome::Expired);
    // Exactly at its time it is over.
    let code =
        desk.put(&acme(), "challenge", Put::of("{}").routed("ann/1").lasting(Duration::from_secs(10))).await.unwrap();
    world.pass(10);
    assert_eq!(
        desk.take(&acme(), "challenge", &Address::id(code.id().unwrap()), None).await.unwrap().outcome,
        Outcome::Expired
    );
}

pub(crate) async fn a_record_is_taken_once_by_whom_it_is_bound_to(world: World) {
    let mut desk = world.desk();
    let put = Put::of(r#"{"scope":"all"}"#).routed("client").bound("client");
    let id = Address::id(desk.put(&acme(), "par", put).await.unwrap().id().unwrap());
    for other in [None, Some("another")] {
        assert_eq!(desk.take(&acme(), "par", &id, other).await.unwrap().outcome, Outcome::NotFound);
    }
    let taken = desk.take(&acme(), "par", &id, Some("client")).await.unwrap();
    assert_eq!((taken.outcome, taken.record.unwrap().value.as_str()), (Outcome::Ok, r#"{"scope":"all"}"#));
    assert_eq!(desk.take(&acme(), "par", &id, Some("client")).await.unwrap().outcome, Outcome::Used);
    // Who it is not bound to is not told that it was used.
    assert_eq!(desk.take(&acme(), "par", &id, None).await.unwrap().outcome, Outcome::NotFound);
    let gone = Address::id("g1:apac:31:par_x");
    assert_eq!(desk.take(&acme(), "par", &gone, None).await.unwrap().outcome, Outcome::NotFound);
    let revoked = Address::id(desk.put(&acme(), "par", Put::of("1").routed("c")).await.unwrap().id().unwrap());
    desk.revoke(&acme(), "par", &revoked).await.unwrap();
    assert_eq!(desk.take(&acme(), "par", &revoked, None).await.unwrap().outcome, Outcome::Revoked);
}

pub(crate) async fn what_is_absent_is_put_once(world: World) {
    let mut desk = world.desk();
    let key = Address::key("jkt:jti");
    let put = || Put::of("{}").lasting(Duration::from_secs(60));
    assert_eq!(desk.put_if_absent(&acme(), "dpop", &key, put()).await.unwrap().outcome, Outcome::Ok);
    assert_eq!(desk.put_if_absent(&acme(), "dpop", &key, put()).await.unwrap().outcome, Outcome::Replayed);
    // Another tenant's proof is another proof.
    assert_eq!(desk.put_if_absent(&tenant("other"), "dpop", &key, put()).await.unwrap().outcome, Outcome::Ok);
    world.pass(59);
    assert_eq!(desk.put_if_absent(&acme(), "dpop", &key, put()).await.unwrap().outcome, Outcome::Replayed);
    // After its time it may come again, swept or not.
    world.pass(1);
    assert_eq!(desk.put_if_absent(&acme(), "dpop", &key, put()).await.unwrap().outcome, Outcome::Ok);
    assert_eq!(desk.put_if_absent(&acme(), "dpop", &key, put()).await.unwrap().outcome, Outcome::Replayed);
    // No proof is remembered for longer than the cap.
    let long = Put::of("{}").lasting(Duration::from_secs(7_200));
    let record = desk.put_if_absent(&acme(), "dpop", &Address::key("k"), long).await.unwrap().record.unwrap();
    assert_eq!(record.expires_at - record.created_at, 3_600_000_000);
}

pub(crate) async fn a_value_is_swapped_if_it_is_as_it_was_read(world: World) {
    let mut desk = world.desk();
    let id = Address::id(desk.put(&acme(), "session", Put::of("1")).await.unwrap().id().unwrap());
    let swapped = desk.compare_and_swap(&acme(), "session", &id, (1, "2")).await.unwrap().record.unwrap();
    assert_eq!((swapped.version, swapped.value.as_str()), (2, "2"));
    let late = desk.compare_and_swap(&acme(), "session", &id, (1, "3")).await.unwrap();
    assert_eq!((late.outcome, late.record.unwrap().value.as_str()), (Outcome::Conflict, "2"));
    desk.extend(&acme(), "session", &id, None).await.unwrap();
    assert_eq!(desk.compare_and_swap(&acme(), "session", &id, (2, "3")).await.unwrap().outcome, Outcome::Conflict);
    world.pass(4_000);
    assert_eq!(desk.compare_and_swap(&acme(), "session", &id, (3, "3")).await.unwrap().outcome, Outcome::Expired);
    let gone = Address::id("g1:apac:0:ses_x");
    assert_eq!(desk.compare_and_swap(&acme(), "session", &gone, (1, "3")).await.unwrap().outcome, Outcome::NotFound);
}

pub(crate) async fn tokens_rotate_and_their_reuse_revokes_the_family(world: World) {
    let mut desk = world.desk();
    let put = || Put::of("{}").routed("ann:app").owned("ann").bound("app");
    let mut tokens = vec![desk.put(&acme(), "refresh", put()).await.unwrap().id().unwrap().to_owned()];
    for _ in 0..4 {
        world.pass(60);
        let reply = desk.rotate(&acme(), "refresh", tokens.last().unwrap(), Some("app")).await.unwrap();
        tokens.push(reply.id().unwrap().to_owned());
    }
    let last = tokens[4].clone();
    assert_eq!(desk.get(&acme(), "refresh", &Address::id(&last)).await.unwrap().outcome, Outcome::Ok);
    assert_eq!(desk.get(&acme(), "refresh", &Address::id(&tokens[3])).await.unwrap().outcome, Outcome::Replayed);
    // Another client, and a token that was never issued, change nothing.
    assert_eq!(desk.rotate(&acme(), "refresh", &tokens[0], Some("evil")).await.unwrap().outcome, Outcome::NotFound);
    let forged = format!("{}x", last);
    assert_eq!(desk.rotate(&acme(), "refresh", &forged, Some("app")).await.unwrap().outcome, Outcome::NotFound);
    // B33: the answer was lost, and the client asks again.
    world.pass(9);
    let again = desk.rotate(&acme(), "refresh", &tokens[3], Some("app")).await.unwrap();
    assert_eq!((again.outcome, again.id()), (Outcome::Ok, Some(last.as_str())));
    world.pass(1);
    assert_eq!(desk.rotate(&acme(), "refresh", &tokens[3], Some("app")).await.unwrap().outcome, Outcome::Replayed);
    assert_eq!(desk.rotate(&acme(), "refresh", &last, Some("app")).await.unwrap().outcome, Outcome::Revoked);
    // B32: a family is revoked by any of its tokens, the first one too.
    let first = desk.put(&acme(), "refresh", put()).await.unwrap().id().unwrap().to_owned();
    let second = desk.rotate(&acme(), "refresh", &first, Some("app")).await.unwrap().id().unwrap().to_owned();
    assert_eq!(desk.revoke(&acme(), "refresh", &Address::id(first)).await.unwrap().outcome, Outcome::Ok);
    assert_eq!(desk.rotate(&acme(), "refresh", &second, Some("app")).await.unwrap().outcome, Outcome::Revoked);
    // An unused family ends after 30 days; a used one after 90.
    let idle = desk.put(&acme(), "refresh", put()).await.unwrap().id().unwrap().to_owned();
    let mut used = desk.put(&acme(), "refresh", put()).await.unwrap().id().unwrap().to_owned();
    for _ in 0..4 {
        world.pass(20 * 86_400);
        used = desk.rotate(&acme(), "refresh", &used, Some("app")).await.unwrap().id().unwrap().to_owned();
    }
    assert_eq!(desk.rotate(&acme(), "refresh", &idle, Some("app")).await.unwrap().outcome, Outcome::Expired);
    world.pass(10 * 86_400);
    assert_eq!(desk.rotate(&acme(), "refresh", &used, Some("app")).await.unwrap().outcome, Outcome::Expired);
}

/// B37: all of an owner's sessions, wherever they are, and none of another's.
pub(crate) async fn an_owners_records_are_listed_and_revoked(world: World) {
    let mut desk = world.desk();
    let mut ids = std::collections::BTreeSet::new();
    for _ in 0..25 {
        ids.insert(desk.put(&acme(), "session", Put::of("{}").owned("ann")).await.unwrap().id().unwrap().to_owned());
        desk.put(&acme(), "session", Put::of("{}").owned("bob")).await.unwrap();
        desk.put(&tenant("other"), "session", Put::of("{}").owned("ann")).await.unwrap();
    }
    let (mut listed, mut after) = (std::collections::BTreeSet::new(), None);
    for _ in 0..10 {
        let page = desk.list_by_owner((&acme(), "session", "ann"), after.as_deref(), 7).await.unwrap();
        assert!(page.records.len() <= 7);
        listed.extend(page.records.into_iter().map(|record| record.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((listed, after), (ids.clone(), None));
    assert_eq!(desk.count(&acme(), "session").await.unwrap(), 50);
    assert_eq!(desk.revoke_owner(&acme(), "session", "ann").await.unwrap().records, 25);
    assert_eq!(desk.revoke_owner(&acme(), "session", "ann").await.unwrap().records, 0);
    for id in ids {
        assert_eq!(desk.get(&acme(), "session", &Address::id(id)).await.unwrap().outcome, Outcome::Revoked);
    }
    assert_eq!(desk.count(&acme(), "session").await.unwrap(), 25);
    assert_eq!(desk.count(&tenant("other"), "session").await.unwrap(), 25);
}

pub(crate) async fn stores_are_defined_once(world: World) {
    let own = || StoreConfig {
        name: "invoice".into(),
        prefix: "inv".into(),
        group: "random-medium-rps".into(),
        key: "uuid".into(),
        ttl_ms: 60_000,
        ..StoreConfig::default()
    };
    world.stores.create(own()).await.unwrap();
    let fails = async |config: StoreConfig| world.stores.create(config).await.unwrap_err().sqlstate;
    assert_eq!(fails(own()).await, "42710");
    assert_eq!(fails(StoreConfig { name: "receipt".into(), ..own() }).await, "42710");
    assert_eq!(fails(StoreConfig { name: "receipt".into(), prefix: "rt".into(), ..own() }).await, "42710");
    assert_eq!(fails(StoreConfig { name: "receipt".into(), prefix: "rcp".into(), ttl_ms: 0, ..own() }).await, "22023");
    let apart = StoreConfig { name: "receipt".into(), prefix: "rcp".into(), key: "userId:clientId".into(), ..own() };
    assert_eq!(fails(apart).await, "42710");
    let id = world.desk().put(&acme(), "invoice", Put::of("1")).await.unwrap().id().unwrap().to_owned();
    assert!(id.contains(":inv_"));
    assert_eq!(world.stores.drop_store("invoice").await.unwrap_err().sqlstate, "2BP01");
    world.stores.alter("invoice", Alteration { ttl_ms: Some(1_000), ..Alteration::default() }).await.unwrap();
    world.desk().delete(&acme(), "invoice", &Address::id(id)).await.unwrap();
    world.stores.drop_store("invoice").await.unwrap();
    assert_eq!(world.desk().put(&acme(), "invoice", Put::of("1")).await.unwrap_err().sqlstate, "42704");
    assert!(world.stores.create_preset("identity").await.unwrap().is_empty(), "all are there");
    assert_eq!(world.stores.list().len(), 16);
}

pub(crate) async fn limits_are_kept(world: World) {
    let mut desk = world.desk();
    let mut fails = async |put: Put| desk.put(&acme(), "session", put).await.unwrap_err().sqlstate;
    assert_eq!(fails(Put::of("not json")).await, "22P02");
    assert_eq!(fails(Put::of(format!("\"{}\"", "x".repeat(MAX_VALUE_BYTES)))).await, "54000");
    assert_eq!(fails(Put::of("1").owned("x".repeat(257))).await, "22023");
    assert_eq!(fails(Put::of("1").owned("")).await, "22023");
    assert_eq!(fails(Put::of("1").lasting(Duration::ZERO)).await, "22023");
    assert_eq!(fails(Put::of("1").lasting(Duration::from_secs(500 * 86_400))).await, "22023");
    let (mut named, mut nowhere) = (Put::of("1"), Put::of("1"));
    (named.alias, nowhere.region) = (Some("x".into()), Some(RegionName::new("mars").unwrap()));
    assert_eq!(fails(named).await, "22023");
    assert_eq!(fails(nowhere).await, "22023");
    assert_eq!(desk.put(&acme(), "authcode", Put::of("1")).await.unwrap_err().sqlstate, "22023");
    let long = Address::key("x".repeat(513));
    assert_eq!(desk.put_if_absent(&acme(), "dpop", &long, Put::of("1")).await.unwrap_err().sqlstate, "22023");
    assert_eq!(desk.list_by_owner((&acme(), "session", "ann"), None, 0).await.unwrap_err().sqlstate, "22023");
    assert_eq!(desk.get(&acme(), "nothing", &Address::key("x")).await.unwrap_err().sqlstate, "42704");
    assert_eq!(desk.count(&acme(), "session").await.unwrap(), 0, "nothing of it has happened");
}

pub(crate) async fn what_has_expired_is_swept(world: World) {
    let mut desk = world.desk();
    for n in 0..200 {
        let ttl = Duration::from_secs(if n % 2 == 0 { 10 } else { 1_000 });
        desk.put(&acme(), "session", Put::of("{}").lasting(ttl)).await.unwrap();
    }
    let swept = world.stores.sweep_before(Duration::ZERO).await.unwrap();
    assert_eq!((swept.removed, swept.more), (0, false));
    world.pass(10);
    assert_eq!(
        world.stores.sweep_before(Duration::from_secs(1)).await.unwrap().removed,
        0,
        "they are kept for a while"
    );
    assert_eq!(world.stores.sweep_before(Duration::ZERO).await.unwrap().removed, 100);
    assert_eq!(desk.count(&acme(), "session").await.unwrap(), 100);
    let mut admin = world.db.client();
    let left = admin.run("SELECT count(*) FROM isles.records_apac").await[0].parse::<u64>().unwrap()
        + admin.run("SELECT count(*) FROM isles.records_enam").await[0].parse::<u64>().unwrap()
        + admin.run("SELECT count(*) FROM isles.records_weur").await[0].parse::<u64>().unwrap();
    assert_eq!(left, 100);
}

/// Whoever has an earlier token of a family, or has made one up, changes nothing by it.
pub(crate) async fn a_token_that_is_not_the_current_one_changes_nothing(world: World) {
    let mut desk = world.desk();
    let put = Put::of("1").routed("ann:app").bound("app");
    let first = desk.put(&acme(), "refresh", put).await.unwrap().id().unwrap().to_owned();
    let second = desk.rotate(&acme(), "refresh", &first, Some("app")).await.unwrap().id().unwrap().to_owned();
    let forged = format!("{}.2.x", first.split('.').next().unwrap());
    let version = desk.get(&acme(), "refresh", &Address::id(&second)).await.unwrap().record.unwrap().version;
    for (token, outcome) in [(&first, Outcome::Replayed), (&forged, Outcome::NotFound)] {
        let id = Address::id(token);
        let hour = Some(Duration::from_secs(80 * 86_400));
        assert_eq!(desk.extend(&acme(), "refresh", &id, hour).await.unwrap().outcome, outcome, "{token}");
        assert_eq!(desk.compare_and_swap(&acme(), "refresh", &id, (version, "2")).await.unwrap().outcome, outcome);
    }
    let record = desk.get(&acme(), "refresh", &Address::id(&second)).await.unwrap().record.unwrap();
    assert_eq!((record.version, record.value.as_str()), (version, "1"));
    // The current one does.
    let id = Address::id(&second);
    assert!(desk.compare_and_swap(&acme(), "refresh", &id, (version, "2")).await.unwrap().is_ok());
    assert!(desk.extend(&acme(), "refresh", &id, None).await.unwrap().is_ok());
    assert!(desk.rotate(&acme(), "refresh", &second, Some("app")).await.unwrap().is_ok());
    // Tokens are not exchanged, whichever they are; and nothing is for what is elsewhere, or is never sharded.
    let code = desk.put(&acme(), "authcode", Put::of("1").routed("ann:app")).await.unwrap().id().unwrap().to_owned();
    for (from, id, into) in [
        ("refresh", &second, "authcode"),
        ("refresh", &forged, "authcode"),
        ("authcode", &code, "session"),
        ("authcode", &code, "par"),
        ("authcode", &code, "keymanager"),
    ] {
        let exchanged = desk.exchange(&acme(), (from, id, None), (into, |_| Put::of("1"))).await;
        assert_eq!(exchanged.unwrap_err().sqlstate, "22023", "{from} into {into}");
    }
    assert!(desk.get(&acme(), "authcode", &Address::id(&code)).await.unwrap().is_ok(), "it is unused");
}

/// I-40: who asks for an id that was made up is answered after a lookup, as for one of another tenant.
pub(crate) async fn a_forged_id_costs_a_lookup(world: World) {
    let mut desk = world.desk();
    let id = desk.put(&acme(), "session", Put::of("1")).await.unwrap().id().unwrap().to_owned();
    let asked =
        || world.stores.durations().iter().filter(|one| one.store == "session").map(|one| one.count).sum::<u64>();
    let mut costs = std::collections::BTreeSet::new();
    let others = [id.replace("ses_", "ses_x"), id.replace("g1:", "g7:"), "g1:apac:99:ses_x".into(), "nonsense".into()];
    for id in others {
        let (id, before) = (Address::id(id), asked());
        assert_eq!(desk.get(&acme(), "session", &id).await.unwrap().outcome, Outcome::NotFound);
        assert_eq!(desk.take(&acme(), "session", &id, None).await.unwrap().outcome, Outcome::NotFound);
        assert_eq!(desk.revoke(&acme(), "session", &id).await.unwrap().outcome, Outcome::NotFound);
        assert_eq!(desk.delete(&acme(), "session", &id).await.unwrap().outcome, Outcome::NotFound);
        costs.insert(asked() - before);
    }
    assert_eq!(costs.len(), 1, "{costs:?}");
}

/// B5: who is where the tenant has nothing is served all the same, and it is counted.
pub(crate) async fn a_region_that_the_tenant_does_not_have_is_no_error_as_a_hint(world: World) {
    let oceania = RegionName::new("oc").unwrap();
    let mut desk = world.desk().near(Some(oceania.clone()));
    for _ in 0..10 {
        assert!(desk.put(&acme(), "session", Put::of("1")).await.unwrap().is_ok());
        assert!(desk.put(&acme(), "par", Put::of("1").routed("app")).await.unwrap().is_ok());
    }
    let unserved = world.stores.unserved();
    assert_eq!(unserved.len(), 1, "{unserved:?}");
    assert_eq!((unserved[0].store.as_str(), unserved[0].region, unserved[0].count), ("session", "oc", 10));
    let mut demanded = Put::of("1");
    demanded.region = Some(oceania);
    assert_eq!(desk.put(&acme(), "session", demanded).await.unwrap_err().sqlstate, "22023");
}
