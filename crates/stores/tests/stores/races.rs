//! Many who want the same at once.

use crate::world::{World, acme};
use isles_kernel::error::SqlError;
use isles_stores::identity::{Device, Grant};
use isles_stores::{Address, Desk, Outcome, Polled, Put};
use std::time::Duration;

const MANY: usize = 24;

/// Runs many of the same at once, each at its own desk.
async fn many<T, F>(world: &World, what: impl Fn(Desk<'static>, usize) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T, SqlError>> + Send + 'static,
{
    let tasks: Vec<_> = (0..MANY).map(|number| tokio::spawn(what(world.desk(), number))).collect();
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await.unwrap().unwrap());
    }
    all
}

fn count(outcomes: &[Outcome], wanted: Outcome) -> usize {
    outcomes.iter().filter(|outcome| **outcome == wanted).count()
}

/// B26: one has it.
pub(crate) async fn of_many_who_take_a_code_one_has_it(world: World) {
    for _ in 0..5 {
        let put = Put::of("{}").routed("client");
        let id = world.desk().put(&acme(), "par", put).await.unwrap().id().unwrap().to_owned();
        let outcomes = many(&world, |mut desk, _| {
            let id = Address::id(&id);
            async move { Ok(desk.take(&acme(), "par", &id, None).await?.outcome) }
        })
        .await;
        assert_eq!((count(&outcomes, Outcome::Ok), count(&outcomes, Outcome::Used)), (1, MANY - 1));
    }
}

/// B29, B30: an offer is claimed once, and the nonce of a presentation is used once, by whoever is first; a later look
/// does not bring them back.
pub(crate) async fn of_many_who_claim_an_offer_one_has_it(world: World) {
    for (store, route) in [("credoffer", "acme:ann"), ("vprequest", "acme:verifier")] {
        let put = Put::of(r#"{"nonce":"n"}"#).routed(route).bound("wallet");
        let id = world.desk().put(&acme(), store, put).await.unwrap().id().unwrap().to_owned();
        let outcomes = many(&world, |mut desk, number| {
            let (id, binding) = (Address::id(&id), if number % 6 == 0 { "thief" } else { "wallet" });
            async move { Ok(desk.take(&acme(), store, &id, Some(binding)).await?.outcome) }
        })
        .await;
        let thieves = MANY.div_ceil(6);
        assert_eq!((count(&outcomes, Outcome::Ok), count(&outcomes, Outcome::NotFound)), (1, thieves), "{store}");
        assert_eq!(count(&outcomes, Outcome::Used), MANY - 1 - thieves, "{store}");
        assert_eq!(world.desk().get(&acme(), store, &Address::id(&id)).await.unwrap().outcome, Outcome::Used);
    }
}

/// Writes of many clients go to a SQLite shard as one request, and each of them stands for itself.
pub(crate) async fn a_write_that_is_refused_refuses_no_other(world: World) {
    for _ in 0..5 {
        let refused = many(&world, |mut desk, number| async move {
            // No engine takes a text with a zero in it.
            let owner = if number % 8 == 3 { "a\0b".to_owned() } else { format!("owner {number}") };
            let put = desk.put(&acme(), "session", Put::of("{}").owned(owner)).await;
            let Ok(put) = put else { return Ok(number % 8 == 3) };
            let found = desk.get(&acme(), "session", &Address::id(put.id().unwrap())).await?;
            assert_eq!((number % 8 == 3, found.outcome), (false, Outcome::Ok));
            Ok(false)
        })
        .await;
        assert_eq!(refused.iter().filter(|is_refused| **is_refused).count(), MANY / 8);
    }
}

pub(crate) async fn of_many_who_put_a_proof_one_passes(world: World) {
    for round in 0..5 {
        let outcomes = many(&world, |mut desk, _| async move {
            Ok(desk.pass_proof(&acme(), ("jkt", &format!("jti {round}")), Duration::from_secs(60)).await?.outcome)
        })
        .await;
        assert_eq!((count(&outcomes, Outcome::Ok), count(&outcomes, Outcome::Replayed)), (1, MANY - 1));
    }
}

pub(crate) async fn of_many_who_swap_a_value_each_sees_the_last(world: World) {
    let id = world.desk().put(&acme(), "session", Put::of("0")).await.unwrap().id().unwrap().to_owned();
    let swaps = many(&world, |mut desk, _| {
        let id = Address::id(&id);
        async move {
            let mut swaps = 0;
            while swaps < 3 {
                let record = desk.get(&acme(), "session", &id).await?.record.unwrap();
                let next = (record.value.parse::<u64>().unwrap() + 1).to_string();
                let swap = desk.compare_and_swap(&acme(), "session", &id, (record.version, &next)).await?;
                swaps += u64::from(swap.is_ok());
            }
            Ok(swaps)
        }
    })
    .await;
    let last = world.desk().get(&acme(), "session", &Address::id(id)).await.unwrap().record.unwrap();
    assert_eq!(last.value.parse::<u64>().unwrap(), swaps.iter().sum::<u64>());
}

fn family() -> Put {
    Put::of("{}").routed("ann:app").bound("app")
}

/// Within the grace window all who come with one token leave with one successor.
pub(crate) async fn of_many_who_rotate_a_token_all_get_one_successor(world: World) {
    let token = world.desk().put(&acme(), "refresh", family()).await.unwrap().id().unwrap().to_owned();
    let tokens = many(&world, |mut desk, _| {
        let token = token.clone();
        async move { Ok(desk.refresh(&acme(), &token, "app").await?.id().map(str::to_owned)) }
    })
    .await;
    assert!(tokens[0].is_some() && tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
}

/// Without one, the second is a thief as far as anybody knows.
pub(crate) async fn of_many_who_rotate_without_grace_the_family_is_revoked(world: World) {
    let none = isles_stores::Alteration { grace_ms: Some(0), ..Default::default() };
    world.stores.alter("refresh", none).await.unwrap();
    let token = world.desk().put(&acme(), "refresh", family()).await.unwrap().id().unwrap().to_owned();
    let outcomes = many(&world, |mut desk, _| {
        let token = token.clone();
        async move { Ok(desk.refresh(&acme(), &token, "app").await?.outcome) }
    })
    .await;
    assert_eq!((count(&outcomes, Outcome::Ok), count(&outcomes, Outcome::Replayed)), (1, 1), "{outcomes:?}");
    assert_eq!(count(&outcomes, Outcome::Revoked), MANY - 2, "{outcomes:?}");
}

/// One has it, and since others came with it as well, what it was given is revoked.
pub(crate) async fn of_many_who_exchange_a_code_one_has_it(world: World) {
    let grant = Grant { user: "ann".into(), client: "app".into(), challenge: Some("c".into()), value: "{}".into() };
    let code = world.desk().issue_code(&acme(), &grant).await.unwrap().id().unwrap().to_owned();
    let outcomes = many(&world, |mut desk, _| {
        let code = code.clone();
        async move { desk.exchange_code(&acme(), &code, ("app", Some("c"))).await }
    })
    .await;
    let mut tokens = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok());
    let token = tokens.next().unwrap().refresh.id.clone();
    assert!(tokens.next().is_none(), "one has it");
    let refused: Vec<Outcome> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err().copied()).collect();
    assert_eq!(count(&refused, Outcome::Replayed), MANY - 1, "{refused:?}");
    assert_eq!(world.desk().refresh(&acme(), &token, "app").await.unwrap().outcome, Outcome::Revoked);
    assert_eq!(world.desk().count(&acme(), "refresh").await.unwrap(), 0, "nobody else has made a family");
}

pub(crate) async fn a_counter_allows_as_many_as_its_limit(world: World) {
    let hit = |mut desk: Desk<'static>, _| async move {
        let key = Address::key("email-code:ann");
        Ok(desk.hit(&acme(), "ratelimit", &key, (10, Duration::from_secs(60))).await?.allowed)
    };
    let allowed = many(&world, hit).await;
    assert_eq!(allowed.iter().filter(|allowed| **allowed).count(), 10);
    world.pass(60);
    assert_eq!(many(&world, hit).await.iter().filter(|allowed| **allowed).count(), 10, "in the next window again");
}

/// B26.
pub(crate) async fn of_many_who_poll_an_approved_device_one_is_granted(world: World) {
    let mut desk = world.desk();
    let started = desk.start_device(&acme(), Device::Code, ("tv", "{}"), (5, None)).await.unwrap();
    desk.answer_device(&acme(), Device::Code, &started.user_code, Some(r#"{"sub":"ann"}"#)).await.unwrap();
    let polled = many(&world, |mut desk, _| {
        let code = started.device_code.clone();
        async move { desk.poll_device(&acme(), Device::Code, &code, "tv").await }
    })
    .await;
    let granted = polled.iter().filter(|polled| matches!(polled, Polled::Granted(_))).count();
    let late = polled.iter().filter(|polled| **polled == Polled::InvalidGrant).count();
    assert_eq!((granted, late), (1, MANY - 1), "{polled:?}");
}

/// However hot it is, nobody is told to try again.
pub(crate) async fn versions_rise_without_gaps(world: World) {
    let mut versions = many(&world, |mut desk, _| async move {
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(desk.next_version(&acme(), "worker").await?);
        }
        assert!(all.is_sorted());
        Ok(all)
    })
    .await
    .concat();
    versions.sort_unstable();
    assert_eq!(versions, (1..=3 * MANY as u64).collect::<Vec<_>>());
}

/// A counter is one statement: whoever counts is counted at once.
pub(crate) async fn a_hot_counter_counts_everyone(world: World) {
    let counted = many(&world, |mut desk, _| async move {
        let mut all = Vec::new();
        for _ in 0..5 {
            let key = Address::key("ip:192.0.2.1");
            all.push(desk.hit(&acme(), "ratelimit", &key, (1_000, Duration::from_secs(60))).await?.current);
        }
        Ok(all)
    })
    .await
    .concat();
    let distinct: std::collections::BTreeSet<u64> = counted.into_iter().collect();
    assert_eq!(distinct, (1..=5 * MANY as u64).collect());
}
