//! A placement changes while records of the last one are there.

use crate::world::{FIRST, World, acme, tenant};
use isles_cluster::placements::{Change, ChangeError, Changed, Migration, Removable};
use isles_kernel::id::Generation;
use isles_kernel::placement::{ErrorCode, Timestamp};
use isles_stores::identity::Grant;
use isles_stores::{Address, Alteration, Outcome, Put, StoreConfig};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const DAY: u64 = 86_400;

const SECOND: [u32; 3] = [48, 20, 24];
const THIRD: [u32; 3] = [64, 64, 64];

fn grant(user: &str) -> Grant {
    Grant { user: user.into(), client: "app".into(), challenge: None, value: "{}".into() }
}

/// I-37: B16, B17: every id and every key that was stored is found in each later generation, and new ones are of it.
pub(crate) async fn a_new_generation_reads_what_the_last_has_written(world: World) {
    let mut desk = world.desk();
    let mut ids = Vec::new();
    for at in 0..3 {
        match at {
            1 => world.place(2, SECOND, &[(1, FIRST, 10_000)]).await,
            2 => world.place(3, THIRD, &[(2, SECOND, 10_000), (1, FIRST, 10_000)]).await,
            _ => {}
        }
        for number in 0..10 {
            let id = desk.put(&acme(), "session", Put::of("{}")).await.unwrap().id().unwrap().to_owned();
            assert!(id.starts_with(&format!("g{}:", at + 1)), "{id}");
            ids.push(Address::id(id));
            let key = Address::key(format!("ann/{at} {number}"));
            desk.put_at(&acme(), "challenge", &key, Put::of("{}")).await.unwrap();
        }
        for id in &ids {
            assert_eq!(desk.get(&acme(), "session", id).await.unwrap().outcome, Outcome::Ok, "{id:?} in {}", at + 1);
        }
        for key in (0..=at).flat_map(|at| (0..10).map(move |number| format!("ann/{at} {number}"))) {
            assert_eq!(desk.get(&acme(), "challenge", &Address::key(key)).await.unwrap().outcome, Outcome::Ok);
        }
    }
    // A record is changed where it is.
    assert_eq!(desk.extend(&acme(), "session", &ids[0], None).await.unwrap().outcome, Outcome::Ok);
    let fallbacks = world.stores.fallbacks();
    let of = |store: &str, from: u16, to: u16| {
        let of = |f: &&isles_stores::Fallback| f.store == store && f.from.get() == from && f.to.get() == to;
        fallbacks.iter().find(of).map_or(0, |fallback| fallback.count)
    };
    assert_eq!((of("challenge", 2, 1), of("challenge", 3, 2), of("challenge", 3, 1)), (10, 10, 10));
    assert!(of("session", 3, 1) >= 10 && of("session", 1, 1) == 0);
}

/// B20: a proof that passed under the old placement does not pass under the new one, and the other way round.
pub(crate) async fn a_proof_passes_once_over_a_change_of_generation(world: World) {
    let mut desk = world.desk();
    let hour = Duration::from_secs(3_600);
    for number in 0..40 {
        assert!(desk.pass_proof(&acme(), ("k", &format!("old {number}")), hour).await.unwrap().is_ok());
    }
    world.place(2, SECOND, &[(1, FIRST, 1_800)]).await;
    for number in 0..40 {
        let again = desk.pass_proof(&acme(), ("k", &format!("old {number}")), hour).await.unwrap();
        assert_eq!(again.outcome, Outcome::Replayed);
        assert!(desk.pass_proof(&acme(), ("k", &format!("new {number}")), hour).await.unwrap().is_ok());
    }
    // When the first generation has ended, what passed under the second is still known.
    world.pass(1_900);
    for number in 0..40 {
        let again = desk.pass_proof(&acme(), ("k", &format!("new {number}")), hour).await.unwrap();
        assert_eq!(again.outcome, Outcome::Replayed);
    }
}

/// One that has not heard of the change, and one that has, want the same proof to pass. Whoever is first, the
/// other is second; and when both go at once, at most one passes.
pub(crate) async fn one_with_an_old_placement_and_one_with_a_new_one_meet(world: World) {
    let hour = Duration::from_secs(3_600);
    let old = world.stores.under(world.placement(1, FIRST, &[]));
    let new = world.stores.under(world.placement(2, SECOND, &[(1, FIRST, 3_600)]));
    for number in 0..20 {
        let proof = format!("one after the other {number}");
        let (first, second) = if number % 2 == 0 { (&old, &new) } else { (&new, &old) };
        assert!(first.desk().pass_proof(&acme(), ("k", &proof), hour).await.unwrap().is_ok());
        let again = second.desk().pass_proof(&acme(), ("k", &proof), hour).await.unwrap();
        assert_eq!(again.outcome, Outcome::Replayed, "{proof}");
    }
    for number in 0..30 {
        let proof = format!("at once {number}");
        let (mut one, mut other) = (old.desk(), new.desk());
        let (acme, proof_of_both) = (acme(), ("k", proof.as_str()));
        let (first, second) =
            tokio::join!(one.pass_proof(&acme, proof_of_both, hour), other.pass_proof(&acme, proof_of_both, hour));
        let passed = [first, second].into_iter().filter(|reply| reply.as_ref().unwrap().is_ok()).count();
        assert_eq!(passed, 1, "{proof}");
    }
}

/// B37: what was replaced does not come back when its successor is gone.
pub(crate) async fn what_replaces_a_record_by_key_removes_it_from_the_last_generation(world: World) {
    let mut desk = world.desk();
    let keys: Vec<Address> = (0..20).map(|number| Address::key(format!("ann/{number}"))).collect();
    for key in &keys {
        desk.put_at(&acme(), "challenge", key, Put::of("\"old\"")).await.unwrap();
    }
    world.place(2, SECOND, &[(1, FIRST, 3_600)]).await;
    for key in &keys {
        desk.put_at(&acme(), "challenge", key, Put::of("\"new\"").lasting(Duration::from_secs(1))).await.unwrap();
        assert_eq!(desk.take(&acme(), "challenge", key, None).await.unwrap().record.unwrap().value, "\"new\"");
        assert_eq!(desk.take(&acme(), "challenge", key, None).await.unwrap().outcome, Outcome::Used);
    }
    world.pass(2);
    world.stores.sweep_before(Duration::ZERO).await.unwrap();
    for key in &keys {
        assert_eq!(desk.take(&acme(), "challenge", key, None).await.unwrap().outcome, Outcome::NotFound);
    }
}

/// The family is made in the new generation, perhaps on another shard, and still both or neither.
pub(crate) async fn a_code_of_the_last_generation_is_exchanged_once(world: World) {
    let mut desk = world.desk();
    let mut codes = Vec::new();
    for number in 0..12 {
        codes.push(desk.issue_code(&acme(), &grant(&format!("user{number}"))).await.unwrap().id().unwrap().to_owned());
    }
    world.place(2, SECOND, &[(1, FIRST, 3_600)]).await;
    for code in &codes {
        let tokens = desk.exchange_code(&acme(), code, ("app", None)).await.unwrap().unwrap();
        assert!(tokens.refresh.id.starts_with("g2:"), "{}", tokens.refresh.id);
        let next = desk.refresh(&acme(), &tokens.refresh.id, "app").await.unwrap();
        assert_eq!(next.outcome, Outcome::Ok);
        assert_eq!(desk.exchange_code(&acme(), code, ("app", None)).await.unwrap(), Err(Outcome::Replayed));
        assert_eq!(desk.refresh(&acme(), next.id().unwrap(), "app").await.unwrap().outcome, Outcome::Revoked);
    }
}

/// B34: a token's successor is where its family is, in whatever generation that was made, and whoever has the first token
/// is told of its reuse there.
pub(crate) async fn a_family_of_the_last_generation_rotates_where_it_is(world: World) {
    let mut desk = world.desk();
    let mut tokens = Vec::new();
    for number in 0..8 {
        let put = Put::of("{}").routed(format!("user{number}:app")).bound("app");
        tokens.push(desk.put(&acme(), "refresh", put).await.unwrap().id().unwrap().to_owned());
    }
    let place = |token: &str| token.split('.').next().unwrap().to_owned();
    let mut last = tokens.clone();
    for (generation, counts) in [(2, SECOND), (3, THIRD)] {
        let previous: &[_] =
            if generation == 2 { &[(1, FIRST, 3_600)] } else { &[(2, SECOND, 3_600), (1, FIRST, 3_600)] };
        world.place(generation, counts, previous).await;
        for token in &mut last {
            let next = desk.refresh(&acme(), token, "app").await.unwrap();
            let next = next.id().unwrap_or_else(|| panic!("{token} is {:?}", next.outcome));
            assert_eq!(place(next), place(token));
            *token = next.to_owned();
        }
    }
    for (first, last) in tokens.iter().zip(&last) {
        assert_eq!(desk.refresh(&acme(), first, "app").await.unwrap().outcome, Outcome::Replayed);
        assert_eq!(desk.refresh(&acme(), last, "app").await.unwrap().outcome, Outcome::Revoked);
    }
}

pub(crate) async fn a_generation_ends_at_its_time(world: World) {
    let mut desk = world.desk();
    let id = Address::id(desk.put(&acme(), "session", Put::of("{}")).await.unwrap().id().unwrap());
    let first = isles_kernel::id::Generation::FIRST;
    assert!(!desk.is_drained(Some(&acme()), first).await.unwrap());
    assert!(desk.is_drained(Some(&crate::world::tenant("other")), first).await.unwrap());
    world.place(2, SECOND, &[(1, FIRST, 60)]).await;
    world.pass(59);
    assert_eq!(desk.get(&acme(), "session", &id).await.unwrap().outcome, Outcome::Ok);
    world.pass(1);
    assert_eq!(desk.get(&acme(), "session", &id).await.unwrap().outcome, Outcome::NotFound);
    world.pass(3_600);
    assert!(desk.is_drained(None, first).await.unwrap());
}

/// Ids with two characters before the change, with three after it; both are read while the old generation is.
pub(crate) async fn old_prefixes_are_read_in_old_generations(world: World) {
    let mut desk = world.desk();
    let alter = async |prefix: &str| {
        let change = Alteration { prefix: Some(prefix.into()), ..Alteration::default() };
        world.stores.alter("authcode", change).await.unwrap();
    };
    alter("ac").await;
    let old = desk.issue_code(&acme(), &grant("ann")).await.unwrap().id().unwrap().to_owned();
    assert!(old.contains(":ac_"), "{old}");
    alter("acd").await;
    world.place(2, SECOND, &[(1, FIRST, 3_600)]).await;
    let new = desk.issue_code(&acme(), &grant("ann")).await.unwrap().id().unwrap().to_owned();
    assert!(new.starts_with("g2:") && new.contains(":acd_"), "{new}");
    // One record has one id: another prefix does not lead to it, and no new id has the old one.
    for wrong in [old.replace(":ac_", ":acd_"), new.replace(":acd_", ":ac_")] {
        assert_eq!(desk.exchange_code(&acme(), &wrong, ("app", None)).await.unwrap(), Err(Outcome::NotFound));
    }
    for code in [old, new] {
        assert!(desk.exchange_code(&acme(), &code, ("app", None)).await.unwrap().is_ok());
    }
}

async fn migrate(world: &World, change: Value) -> Result<Changed, ChangeError> {
    let placements = world.db.database.placements();
    let if_match = placements.of("acme").unwrap().etag;
    let migration: Migration = serde_json::from_value(change).unwrap();
    placements.migrate(&Change { tenant: "acme", by: "test", if_match, reason: None }, migration).await
}

fn refused(outcome: Result<Changed, ChangeError>) -> Vec<(String, ErrorCode)> {
    match outcome {
        Err(ChangeError::Invalid(errors)) => errors.errors().iter().map(|one| (one.field.clone(), one.code)).collect(),
        other => panic!("{other:?}"),
    }
}

fn store(name: &str, prefix: &str, group: &str, key: &str) -> StoreConfig {
    let (name, prefix, group, key) = (name.into(), prefix.into(), group.into(), key.into());
    StoreConfig { name, prefix, group, key, ttl_ms: 3_600_000, ..StoreConfig::default() }
}

/// Stores that no configuration lists keep their group, and equal keys of all of them their count.
pub(crate) async fn a_placement_that_stores_do_not_fit_is_refused(world: World) {
    let mut desk = world.desk();
    let minute = Duration::from_secs(60);
    desk.hit(&acme(), "ratelimit", &Address::key("mail:ann"), (5, minute)).await.unwrap();
    let groups = |edit: fn(&mut Value)| {
        let placement = world.placement(1, FIRST, &[]);
        let mut groups = serde_json::to_value(placement.config()).unwrap()["groups"].clone();
        edit(&mut groups);
        json!({ "groups": groups })
    };
    let gone = groups(|groups| {
        groups.as_object_mut().unwrap().remove("random-high-rps");
        groups["random-medium-rps"]["members"] = json!(["session", "challenge", "revocation"]);
    });
    let found = refused(migrate(&world, gone).await);
    assert_eq!(found, [("groups.random-high-rps".to_owned(), ErrorCode::GroupInUse)]);
    let keyed = groups(|groups| groups["vc"]["key"] = json!("tenantId:userId"));
    let found = refused(migrate(&world, keyed).await);
    assert!(found.contains(&("groups.vc.key".to_owned(), ErrorCode::KeyMismatch)), "{found:?}");
    // The same key has the same count wherever it is used.
    let apart = world.stores.create(store("x", "xxx", "vc", "client_id")).await.unwrap_err();
    assert_eq!(apart.sqlstate, "42710", "{apart}");
    assert_eq!(world.stores.create(store("x", "xxx", "nowhere", "x")).await.unwrap_err().sqlstate, "42704");
    world.stores.create(store("x", "xxx", "vc", "x")).await.unwrap();
    // What does change tells of them.
    let doubled = groups(|groups| groups["client-based"]["totalShards"] = json!(64));
    let migration: Migration = serde_json::from_value(doubled).unwrap();
    let dry = world.db.database.placements().dry_run_migration("acme", migration).await.unwrap();
    let moved = |name: &str| {
        let of = dry.impact.iter().find(|way| way.types.iter().any(|kind| kind.as_str() == name));
        of.unwrap_or_else(|| panic!("{name} is missing")).moved
    };
    assert!(moved("samlrequest") > 1_000 && moved("ratelimit") == 0 && moved("x") == 0);
    let counted = desk.hit(&acme(), "ratelimit", &Address::key("mail:ann"), (5, minute)).await.unwrap();
    assert_eq!(counted.current, 2, "it counts on");
}

/// Of whatever store the longest record is, and with whatever cap it was made.
pub(crate) async fn a_generation_is_read_for_as_long_as_its_records_may_last(world: World) {
    let ends = async || {
        let changed = migrate(&world, json!({})).await.unwrap();
        assert!(changed.warnings.is_empty(), "{:?}", changed.warnings);
        let placement = world.db.database.placements().of("acme").unwrap().placement.clone();
        let now = isles_engine::env::Env::now_micros(&*world.clock) as i64 / 1_000_000;
        u64::try_from(placement.previous()[0].valid_until().unwrap().as_second() - now).unwrap() / DAY
    };
    // Of the preset, changes of permissions last longest.
    assert_eq!(ends().await, 400);
    for (name, days) in [("permission", 1), ("refresh", 30), ("revocation", 30)] {
        let cap = Alteration { cap_ms: Some(days * DAY * 1_000), ..Alteration::default() };
        world.stores.alter(name, cap).await.unwrap();
    }
    assert_eq!(ends().await, 400, "those from before the cap was lowered last as long as they did");
    world.pass(320 * DAY);
    assert_eq!(ends().await, 80);
    world.pass(100 * DAY);
    assert_eq!(ends().await, 30);
    let year = StoreConfig { ttl_ms: 365 * DAY * 1_000, ..store("archive", "arc", "vc", "uuid") };
    world.stores.create(year).await.unwrap();
    assert_eq!(ends().await, 365);
    let soon = Timestamp::from_microsecond(isles_engine::env::Env::now_micros(&*world.clock) as i64).unwrap();
    let short = migrate(&world, json!({ "validUntil": (soon + Duration::from_secs(60 * DAY)).to_string() })).await;
    assert_eq!(short.unwrap().warnings.len(), 1, "60 days are too few for a year");
}

/// Numbers go on, whatever generation the record was made in, also after that has ended; and nothing holds it for ever.
pub(crate) async fn permission_changes_are_numbered_over_generations(world: World) {
    let (mut desk, other) = (world.desk(), tenant("default"));
    for number in 1..=3 {
        assert_eq!(desk.publish_change(&acme(), json!({ "n": number })).await.unwrap(), number);
        assert_eq!(desk.publish_change(&other, json!({ "n": number })).await.unwrap(), number);
    }
    world.place(2, SECOND, &[(1, FIRST, 3_600)]).await;
    assert!(!desk.is_drained(Some(&acme()), Generation::FIRST).await.unwrap());
    assert_eq!(desk.publish_change(&acme(), json!({ "n": 4 })).await.unwrap(), 4);
    assert!(desk.is_drained(Some(&acme()), Generation::FIRST).await.unwrap(), "it has gone to the current one");
    assert_eq!(desk.changes_after(&acme(), 2).await.unwrap().unwrap().len(), 2);
    // Nobody publishes anything, and the next generation comes.
    world.place(3, THIRD, &[(2, SECOND, 3_600), (1, FIRST, 3_600)]).await;
    assert_eq!(world.stores.carry_lasting().await.unwrap(), 1);
    assert_eq!(world.stores.carry_lasting().await.unwrap(), 0);
    world.pass(3_601);
    // Of many who publish at once in a new generation each has a number of its own.
    world.place(4, FIRST, &[(3, THIRD, 3_600)]).await;
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let mut desk = world.desk();
            tokio::spawn(async move { desk.publish_change(&acme(), json!({ "n": number })).await.unwrap() })
        })
        .collect();
    let mut numbers = Vec::new();
    for task in tasks {
        numbers.push(task.await.unwrap());
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (5..=12).collect::<Vec<_>>());
    assert_eq!(desk.changes_after(&acme(), 0).await.unwrap().unwrap().len(), 12);
    assert_eq!(desk.publish_change(&other, json!({ "n": 4 })).await.unwrap(), 4);
}

/// A note in a previous generation keeps nobody from removing it, and is no record: not counted, not listed, not used.
pub(crate) async fn notes_that_only_guard_hold_no_generation(world: World) {
    let mut desk = world.desk();
    let hour = Duration::from_secs(3_600);
    let saml = ("https://idp.example", "_r");
    assert!(desk.pass_proof(&acme(), ("k", "held"), Duration::from_secs(60)).await.unwrap().is_ok());
    world.place(2, SECOND, &[(1, FIRST, 90 * DAY)]).await;
    let left = desk.left(Some(&acme()), Generation::FIRST).await.unwrap();
    let now = isles_engine::env::Env::now_micros(&*world.clock) as i64;
    assert_eq!((left.records, left.last_end), (1, Some(now + 360_000_000)), "five minutes are added");
    world.pass(400);
    for number in 0..20 {
        let put = Put::of("{}").owned("ann").lasting(hour);
        let key = Address::key(format!("k:{number}"));
        assert!(desk.put_if_absent(&acme(), "dpop", &key, put).await.unwrap().is_ok());
    }
    assert_eq!(desk.count(&acme(), "dpop").await.unwrap(), 20);
    assert_eq!(desk.list_by_owner((&acme(), "dpop", "ann"), None, 100).await.unwrap().records.len(), 20);
    assert!(desk.is_drained(Some(&acme()), Generation::FIRST).await.unwrap());
    assert_eq!(desk.left(Some(&acme()), Generation::FIRST).await.unwrap().records, 0);
    let status = world.db.database.placements().status("acme").await.unwrap();
    assert_eq!((status.generations[1].state, status.generations[1].records), (Removable::Drained, Some(0)));
    assert_eq!(status.generations[0].records, Some(20));
    // What was used is used for those, too, who only know the generation that the note is in.
    assert!(desk.note_saml(&acme(), saml, "{}").await.unwrap().is_ok());
    assert!(desk.take_saml(&acme(), saml).await.unwrap().is_ok());
    let mut late = world.stores.under(world.placement(1, FIRST, &[])).desk();
    assert_eq!(late.take_saml(&acme(), saml).await.unwrap().outcome, Outcome::NotFound);
    assert_eq!(late.note_saml(&acme(), saml, "{}").await.unwrap().outcome, Outcome::Replayed);
    assert_eq!(desk.revoke_owner(&acme(), "dpop", "ann").await.unwrap().records, 20);
}

/// However many proofs pass meanwhile, each generation is drained when its own records have ended.
pub(crate) async fn generations_change_for_ever_while_proofs_pass(world: World) {
    let placements = world.db.database.placements();
    let mut desk = world.desk();
    for generation in 2..=8_u32 {
        for number in 0..5 {
            let proof = format!("{generation} {number}");
            assert!(desk.pass_proof(&acme(), ("k", &proof), Duration::from_secs(3_000)).await.unwrap().is_ok());
        }
        migrate(&world, json!({})).await.unwrap();
        world.pass(3_600);
        for number in 0..5 {
            let proof = format!("{generation} {number} in the next");
            assert!(desk.pass_proof(&acme(), ("k", &proof), Duration::from_secs(3_000)).await.unwrap().is_ok());
        }
        let if_match = placements.of("acme").unwrap().etag;
        let change = Change { tenant: "acme", by: "test", if_match, reason: None };
        placements.remove_generation(&change, generation - 1).await.unwrap();
    }
    assert!(placements.of("acme").unwrap().placement.previous().is_empty());
}

/// A record that goes from a previous generation to the current one is at one of the two at every moment, and is found
/// there by whoever looks.
pub(crate) async fn a_record_on_its_way_to_the_next_generation_is_found(world: World) {
    let mut desk = world.desk();
    let keys: Vec<Address> = (0..40).map(|number| Address::key(format!("ann/{number}"))).collect();
    for key in &keys {
        desk.put_at(&acme(), "challenge", key, Put::of("1")).await.unwrap();
    }
    world.place(2, SECOND, &[(1, FIRST, 3_600)]).await;
    let keys = Arc::new(keys);
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let (mut desk, keys) = (world.desk(), keys.clone());
            tokio::spawn(async move {
                for key in keys.iter() {
                    for _ in 0..4 {
                        let found = desk.get(&acme(), "challenge", key).await.unwrap();
                        assert_eq!(found.outcome, Outcome::Ok, "{key:?}");
                        let extended = desk.extend(&acme(), "challenge", key, None).await.unwrap();
                        assert_ne!(extended.outcome, Outcome::NotFound, "{key:?}");
                    }
                }
            })
        })
        .collect();
    for key in keys.iter() {
        desk.put_at(&acme(), "challenge", key, Put::of("2")).await.unwrap();
    }
    for reader in readers {
        reader.await.unwrap();
    }
}
