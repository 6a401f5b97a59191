//! The flows of an identity provider.

use crate::world::{World, acme, tenant};
use isles_kernel::id::PAR_URN_PREFIX;
use isles_stores::identity::{Device, Grant, KeyStatus};
use isles_stores::{Address, Outcome, Polled, Put};
use serde_json::json;
use std::time::Duration;

fn grant() -> Grant {
    Grant { user: "ann".into(), client: "app".into(), challenge: Some("S256".into()), value: r#"{"scope":"a"}"#.into() }
}

/// Code, exchange, refresh, logout.
pub(crate) async fn a_login_goes_through(world: World) {
    let mut desk = world.desk();
    let code = desk.issue_code(&acme(), &grant()).await.unwrap().id().unwrap().to_owned();
    assert!(code.contains(":acd_"));
    // B36: who is not the client, or has not the verifier, changes nothing and is told nothing.
    for wrong in [("evil", Some("S256")), ("app", Some("other")), ("app", None)] {
        assert_eq!(desk.exchange_code(&acme(), &code, wrong).await.unwrap(), Err(Outcome::NotFound));
    }
    let tokens = desk.exchange_code(&acme(), &code, ("app", Some("S256"))).await.unwrap().unwrap();
    assert_eq!(tokens.code.value, r#"{"scope":"a"}"#);
    // The code and the family are in one bucket.
    let place = |id: &str| id.rsplit_once(':').unwrap().0.to_owned();
    assert_eq!(place(&code), place(&tokens.refresh.id));
    let second = desk.refresh(&acme(), &tokens.refresh.id, "app").await.unwrap();
    assert_eq!(second.outcome, Outcome::Ok);
    // B31: a second login of the same user and client is a family of its own.
    let other = desk.issue_code(&acme(), &grant()).await.unwrap().id().unwrap().to_owned();
    let other = desk.exchange_code(&acme(), &other, ("app", Some("S256"))).await.unwrap().unwrap();
    assert!(desk.refresh(&acme(), second.id().unwrap(), "app").await.unwrap().is_ok());
    assert!(desk.refresh(&acme(), &other.refresh.id, "app").await.unwrap().is_ok());
    // Used again by anyone but the client, the code does no harm; by the client, it ends what was made of it.
    assert_eq!(desk.exchange_code(&acme(), &code, ("evil", Some("S256"))).await.unwrap(), Err(Outcome::NotFound));
    assert!(desk.get(&acme(), "refresh", &Address::id(&tokens.refresh.id)).await.unwrap().outcome == Outcome::Replayed);
    assert_eq!(desk.exchange_code(&acme(), &code, ("app", Some("S256"))).await.unwrap(), Err(Outcome::Replayed));
    assert_eq!(desk.refresh(&acme(), second.id().unwrap(), "app").await.unwrap().outcome, Outcome::Revoked);
    // An expired code is expired.
    let late = desk.issue_code(&acme(), &grant()).await.unwrap().id().unwrap().to_owned();
    world.pass(600);
    assert_eq!(desk.exchange_code(&acme(), &late, ("app", Some("S256"))).await.unwrap(), Err(Outcome::Expired));
    desk.put(&acme(), "session", Put::of("{}").owned("ann")).await.unwrap();
    assert!(desk.log_out_everywhere(&acme(), "ann").await.unwrap() >= 2);
    assert_eq!(desk.count(&acme(), "session").await.unwrap() + desk.count(&acme(), "refresh").await.unwrap(), 0);
    // Access tokens that were revoked are, for as long as they last.
    assert!(!desk.is_revoked(&acme(), "jti-1").await.unwrap());
    desk.revoke_token(&acme(), "jti-1", Duration::from_secs(60)).await.unwrap();
    assert!(
        desk.is_revoked(&acme(), "jti-1").await.unwrap() && !desk.is_revoked(&tenant("other"), "jti-1").await.unwrap()
    );
    world.pass(60);
    assert!(!desk.is_revoked(&acme(), "jti-1").await.unwrap());
}

/// RFC 8628, over the user code's global unique index.
pub(crate) async fn device_codes_are_polled_as_the_standard_says(world: World) {
    let mut desk = world.desk();
    for device in [Device::Code, Device::Ciba] {
        let start = async |desk: &mut isles_stores::Desk<'static>| {
            desk.start_device(&acme(), device, ("tv", r#"{"scope":"tv"}"#), (5, None)).await.unwrap()
        };
        let started = start(&mut desk).await;
        let poll =
            async |code: &str, client: &str| world.desk().poll_device(&acme(), device, code, client).await.unwrap();
        let code = started.device_code.clone();
        assert_eq!(poll(&code, "tv").await, Polled::AuthorizationPending);
        assert_eq!(poll(&code, "tv").await, Polled::SlowDown(10));
        assert_eq!(poll(&code, "evil").await, Polled::InvalidGrant);
        world.pass(10);
        assert_eq!(poll(&code, "tv").await, Polled::AuthorizationPending);
        // The person finds it by the code as it was typed; another tenant does not, nor does who mistypes.
        let typed = started.user_code.to_lowercase().replace('-', " ");
        let found = desk.find_device(&acme(), device, &typed).await.unwrap();
        assert_eq!(found.record.unwrap().id, code);
        assert_eq!(desk.find_device(&tenant("other"), device, &typed).await.unwrap().outcome, Outcome::NotFound);
        assert_eq!(desk.find_device(&acme(), device, "2222-2222").await.unwrap().outcome, Outcome::NotFound);
        assert_eq!(desk.find_device(&acme(), device, "?").await.unwrap().outcome, Outcome::NotFound);
        let granted = desk.answer_device(&acme(), device, &typed, Some(r#"{"sub":"ann"}"#)).await.unwrap();
        assert_eq!(granted, Outcome::Ok);
        assert_eq!(desk.answer_device(&acme(), device, &typed, None).await.unwrap(), Outcome::Conflict);
        assert_eq!(poll(&code, "tv").await, Polled::Granted(r#"{"sub":"ann"}"#.into()));
        assert_eq!(poll(&code, "tv").await, Polled::InvalidGrant);
        let denied = start(&mut desk).await;
        desk.answer_device(&acme(), device, &denied.user_code, None).await.unwrap();
        assert_eq!(poll(&denied.device_code, "tv").await, Polled::AccessDenied);
        let late = start(&mut desk).await;
        world.pass(600);
        assert_eq!(poll(&late.device_code, "tv").await, Polled::ExpiredToken);
        assert_eq!(poll("g1:apac:0:dev_x", "tv").await, Polled::InvalidGrant);
    }
    // Codes of all regions are different, and each leads to its own.
    let mut codes = std::collections::BTreeMap::new();
    for number in 0..30 {
        let client = format!("client{number}");
        let started = desk.start_device(&acme(), Device::Code, (&client, "{}"), (5, None)).await.unwrap();
        assert!(codes.insert(started.user_code, started.device_code).is_none());
    }
    for (user_code, device_code) in codes {
        let found = desk.find_device(&acme(), Device::Code, &user_code).await.unwrap();
        assert_eq!(found.record.unwrap().id, device_code);
    }
}

pub(crate) async fn signing_keys_rotate(world: World) {
    let mut desk = world.desk();
    assert_eq!(desk.keys(&acme()).await.unwrap().active(), None);
    desk.rotate_key(&acme(), "k1", json!({ "kty": "EC" })).await.unwrap();
    let two = desk.rotate_key(&acme(), "k2", json!({ "kty": "EC" })).await.unwrap();
    let statuses = |set: &isles_stores::identity::KeySet| {
        set.keys.iter().map(|key| (key.kid.clone(), key.status)).collect::<Vec<_>>()
    };
    assert_eq!(statuses(&two), [("k2".into(), KeyStatus::Active), ("k1".into(), KeyStatus::Overlap)]);
    assert_eq!(desk.rotate_key(&acme(), "k1", json!({})).await.unwrap_err().sqlstate, "23505");
    assert_eq!(desk.rotate_key_now(&acme(), ("k3", json!({})), "leaked").await.unwrap_err().sqlstate, "22023");
    let three = desk.rotate_key_now(&acme(), ("k3", json!({})), "the key has leaked").await.unwrap();
    assert_eq!(three.keys[1].status, KeyStatus::Revoked);
    // A key that does not sign any more is revoked, or forgotten when nothing is left that it has signed.
    assert_eq!(desk.retire_key(&acme(), "k3", None).await.unwrap_err().sqlstate, "55000");
    assert_eq!(desk.retire_key(&acme(), "k9", None).await.unwrap_err().sqlstate, "42704");
    let leaked = desk.retire_key(&acme(), "k1", Some("the key has leaked")).await.unwrap();
    assert_eq!((leaked.keys.len(), leaked.keys[2].status), (3, KeyStatus::Revoked));
    let gone = desk.retire_key(&acme(), "k1", None).await.unwrap();
    assert_eq!(gone.keys.iter().map(|key| key.kid.as_str()).collect::<Vec<_>>(), ["k3", "k2"]);
    // Of many who rotate at once each key is there, and one is active.
    let tasks: Vec<_> = (0..6)
        .map(|number| {
            let mut desk = world.desk();
            tokio::spawn(async move { desk.rotate_key(&acme(), &format!("r{number}"), json!({})).await.unwrap() })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let set = desk.keys(&acme()).await.unwrap();
    assert_eq!(set.keys.len(), 8);
    assert_eq!(set.keys.iter().filter(|key| key.status == KeyStatus::Active).count(), 1);
    assert_eq!(desk.keys(&tenant("other")).await.unwrap().keys.len(), 0);
}

pub(crate) async fn single_use_requests_are_used_once(world: World) {
    let mut desk = world.desk();
    let value = r#"{"dpop_jkt":"x","prompt":"none","max_age":5,"response_mode":"q","authorization_details":[]}"#;
    let (uri, _) = desk.push_request(&acme(), "app", value).await.unwrap();
    assert!(uri.starts_with(PAR_URN_PREFIX));
    assert_eq!(desk.take_request(&acme(), &uri, "evil").await.unwrap().outcome, Outcome::NotFound);
    assert_eq!(
        desk.take_request(&acme(), uri.trim_start_matches(PAR_URN_PREFIX), "app").await.unwrap().outcome,
        Outcome::NotFound
    );
    // B41: what was pushed is what is taken.
    assert_eq!(desk.take_request(&acme(), &uri, "app").await.unwrap().record.unwrap().value, value);
    assert_eq!(desk.take_request(&acme(), &uri, "app").await.unwrap().outcome, Outcome::Used);
    // It is taken by the form in which it travels, by whatever means.
    let (uri, _) = desk.push_request(&acme(), "app", value).await.unwrap();
    assert!(desk.take(&acme(), "par", &Address::id(&uri), Some("app")).await.unwrap().is_ok());
    let saml = ("https://idp.example/entity", "_req1");
    assert_eq!(desk.note_saml(&acme(), saml, "{}").await.unwrap().outcome, Outcome::Ok);
    assert_eq!(desk.note_saml(&acme(), saml, "{}").await.unwrap().outcome, Outcome::Replayed);
    assert_eq!(desk.take_saml(&acme(), ("https://other.example", "_req1")).await.unwrap().outcome, Outcome::NotFound);
    assert_eq!(desk.take_saml(&acme(), saml).await.unwrap().outcome, Outcome::Ok);
    assert_eq!(desk.take_saml(&acme(), saml).await.unwrap().outcome, Outcome::Used);
}

pub(crate) async fn permission_changes_are_numbered(world: World) {
    let mut desk = world.desk();
    assert_eq!(desk.changes_after(&acme(), 0).await.unwrap(), Some(vec![]));
    for number in 1..=120 {
        assert_eq!(desk.publish_change(&acme(), json!({ "n": number })).await.unwrap(), number);
    }
    let changes = desk.changes_after(&acme(), 110).await.unwrap().unwrap();
    assert_eq!(changes.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (111..=120).collect::<Vec<_>>());
    assert_eq!(desk.changes_after(&acme(), 3).await.unwrap(), None, "too long ago: all must be read again");
    assert_eq!(desk.changes_after(&acme(), 121).await.unwrap(), None);
    assert_eq!(desk.changes_after(&tenant("other"), 0).await.unwrap(), Some(vec![]));
}

/// I-40: B13, B14.
pub(crate) async fn ids_of_another_tenant_are_like_missing_ones(world: World) {
    let (mut desk, other) = (world.desk(), tenant("other"));
    let session = desk.put(&acme(), "session", Put::of("1").owned("ann")).await.unwrap().id().unwrap().to_owned();
    let id = Address::id(&session);
    assert_eq!(desk.get(&other, "session", &id).await.unwrap().outcome, Outcome::NotFound);
    assert_eq!(desk.take(&other, "session", &id, None).await.unwrap().outcome, Outcome::NotFound);
    assert_eq!(desk.extend(&other, "session", &id, None).await.unwrap().outcome, Outcome::NotFound);
    assert_eq!(desk.revoke(&other, "session", &id).await.unwrap().outcome, Outcome::NotFound);
    assert_eq!(desk.delete(&other, "session", &id).await.unwrap().outcome, Outcome::NotFound);
    assert_eq!(desk.compare_and_swap(&other, "session", &id, (1, "2")).await.unwrap().outcome, Outcome::NotFound);
    assert_eq!(desk.revoke_owner(&other, "session", "ann").await.unwrap().records, 0);
    assert!(desk.list_by_owner((&other, "session", "ann"), None, 10).await.unwrap().records.is_empty());
    // An id of another store is none of this one.
    assert_eq!(desk.get(&acme(), "par", &id).await.unwrap().outcome, Outcome::NotFound);
    let token = desk.put(&acme(), "refresh", Put::of("1").routed("ann:app")).await.unwrap().id().unwrap().to_owned();
    assert_eq!(desk.rotate(&other, "refresh", &token, None).await.unwrap().outcome, Outcome::NotFound);
    assert_eq!(desk.get(&acme(), "session", &id).await.unwrap().outcome, Outcome::Ok);
    // Tenants whose names look like parts of an instance do not meet.
    for name in ["acme:apac", "acme:apac:random-medium-rps:3", "a:g2"] {
        assert_eq!(desk.get(&tenant(name), "session", &id).await.unwrap().outcome, Outcome::NotFound);
    }
}
