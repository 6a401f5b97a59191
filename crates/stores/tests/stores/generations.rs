//! A placement changes while records of the last one are there.

use crate::world::{FIRST, World, acme};
use isles_stores::identity::Grant;
use isles_stores::{Address, Alteration, Outcome, Put};
use std::time::Duration;

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
