//! Holes of the deployment that stores learn from, each by its number. Those about single use, families, devices and
//! generations are tested with the feature that closes them; here are the rest. All are listed in docs/placement.md.

use crate::world::{FIRST, World, acme, tenant};
use isles_stores::identity::{Device, dpop_key};
use isles_stores::{Address, Outcome, Put};
use std::time::Duration;

async fn world() -> World {
    World::sqlite().await
}

/// B1: bucket 3 of two generations is two places; one can be counted and drained without the other.
#[tokio::test(flavor = "multi_thread")]
async fn b1_the_generation_is_part_of_the_place() {
    let (world, first) = (world().await, isles_kernel::id::Generation::FIRST);
    let mut desk = world.desk();
    world.place(2, FIRST, &[(1, FIRST, 3_600)]).await;
    desk.put(&acme(), "session", Put::of("{}")).await.unwrap();
    assert!(desk.is_drained(Some(&acme()), first).await.unwrap());
    assert!(!desk.is_drained(Some(&acme()), first.next().unwrap()).await.unwrap());
}

/// B2: many requests of one bucket are many records, and each is found by its whole id.
#[tokio::test(flavor = "multi_thread")]
async fn b2_records_of_one_bucket_do_not_overwrite_each_other() {
    let world = world().await;
    let mut desk = world.desk();
    let mut ids = Vec::new();
    for number in 0..10 {
        let put = Put::of(number.to_string()).routed("acme:client");
        ids.push(desk.put(&acme(), "vprequest", put).await.unwrap().id().unwrap().to_owned());
    }
    for (number, id) in ids.into_iter().enumerate() {
        let record = desk.get(&acme(), "vprequest", &Address::id(id)).await.unwrap().record.unwrap();
        assert_eq!(record.value, number.to_string());
    }
}

/// B19: the same proof passes once, whichever client says it.
#[tokio::test(flavor = "multi_thread")]
async fn b19_a_proof_is_not_keyed_by_the_client() {
    let world = world().await;
    let mut desk = world.desk();
    let minute = Duration::from_secs(60);
    assert!(desk.pass_proof(&acme(), ("thumb", "jti"), minute).await.unwrap().is_ok());
    assert_eq!(desk.pass_proof(&acme(), ("thumb", "jti"), minute).await.unwrap().outcome, Outcome::Replayed);
    assert!(desk.pass_proof(&acme(), ("other", "jti"), minute).await.unwrap().is_ok());
    // Unicode and very long ids are ids.
    for jti in ["日本".to_owned(), "x".repeat(4_000)] {
        assert!(desk.pass_proof(&acme(), ("thumb", &jti), minute).await.unwrap().is_ok());
        assert_eq!(desk.pass_proof(&acme(), ("thumb", &jti), minute).await.unwrap().outcome, Outcome::Replayed);
    }
    assert!(dpop_key("thumb", &"x".repeat(5_000)).is_err());
}

/// B21: there is one place for proofs. One that came over SQL, whichever endpoint of a service it was for, does not pass
/// in Rust, and the other way round.
#[tokio::test(flavor = "multi_thread")]
async fn b21_a_proof_is_one_proof_on_every_surface() {
    let world = world().await;
    world.stores.register();
    let mut desk = world.desk();
    let mut client = world.db.client_as(isles_cluster::roles::Role::default(), &[("isles.tenant", "acme")]).unwrap();
    let minute = Duration::from_secs(60);
    let by_sql = |jti: &str| format!("SELECT isles.pass_proof('dpop', 'thumb', '{jti}', '1 minute')");
    assert!(desk.pass_proof(&acme(), ("thumb", "rust first"), minute).await.unwrap().is_ok());
    assert!(Box::pin(client.run(&by_sql("rust first"))).await[0].contains("replayed"));
    assert!(Box::pin(client.run(&by_sql("sql first"))).await[0].contains("\"ok\""));
    assert_eq!(desk.pass_proof(&acme(), ("thumb", "sql first"), minute).await.unwrap().outcome, Outcome::Replayed);
}

/// B22: what is refused because it is wrong is an error and no replay, and leaves nothing behind: the proof passes when it
/// comes as it should.
#[tokio::test(flavor = "multi_thread")]
async fn b22_a_wrong_request_is_no_replay() {
    let world = world().await;
    let mut desk = world.desk();
    let key = Address::key("thumb:jti");
    for wrong in [Put::of("no json"), Put::of("1").lasting(Duration::ZERO), Put::of("1").bound("")] {
        let error = desk.put_if_absent(&acme(), "dpop", &key, wrong).await.unwrap_err();
        assert!(error.sqlstate.starts_with("22"), "{error}");
    }
    assert_eq!(desk.put_if_absent(&acme(), "dpop", &key, Put::of("1")).await.unwrap().outcome, Outcome::Ok);
    assert_eq!(desk.put_if_absent(&acme(), "dpop", &key, Put::of("1")).await.unwrap().outcome, Outcome::Replayed);
}

/// B23, B24: proofs are rows; however many there are, none that has not expired is forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn b23_many_proofs_are_all_remembered() {
    let world = world().await;
    let mut desk = world.desk();
    for number in 0..500 {
        assert!(desk.pass_proof(&acme(), ("k", &number.to_string()), Duration::from_secs(60)).await.unwrap().is_ok());
    }
    world.stores.sweep_before(Duration::ZERO).await.unwrap();
    for number in 0..500 {
        let again = desk.pass_proof(&acme(), ("k", &number.to_string()), Duration::from_secs(60)).await.unwrap();
        assert_eq!(again.outcome, Outcome::Replayed);
    }
}

/// B23, B12: where storage fails, so does the operation; a proof is not let through.
#[tokio::test(flavor = "multi_thread")]
async fn b23_storage_that_fails_is_an_error_and_not_an_absence() {
    let world = world().await;
    let mut desk = world.desk();
    let id = desk.put(&acme(), "session", Put::of("1")).await.unwrap().id().unwrap().to_owned();
    world.db.database.close().await.unwrap();
    assert!(desk.pass_proof(&acme(), ("k", "j"), Duration::from_secs(60)).await.is_err());
    assert!(desk.get(&acme(), "session", &Address::id(id)).await.is_err());
}

/// B28: a user code that is taken is not given to another, and removing one device leaves the other's code alone.
#[tokio::test(flavor = "multi_thread")]
async fn b28_a_user_code_is_unique() {
    let world = world().await;
    let mut desk = world.desk();
    let started = desk.start_device(&acme(), Device::Code, ("tv", "{}"), (5, None)).await.unwrap();
    let mut taken = Put::of("{}").routed("tv");
    taken.alias = Some(started.user_code.clone());
    assert_eq!(desk.put(&acme(), "device", taken.clone()).await.unwrap().outcome, Outcome::Conflict);
    // Of another kind, and of another tenant, it is another code.
    let others = desk.put(&tenant("other"), "device", taken.clone()).await.unwrap();
    let request = desk.put(&acme(), "ciba", taken).await.unwrap();
    assert!(desk.find_device(&acme(), Device::Code, &started.user_code).await.unwrap().is_ok());
    assert!(desk.delete(&acme(), "device", &Address::id(&started.device_code)).await.unwrap().is_ok());
    let gone = desk.find_device(&acme(), Device::Code, &started.user_code).await.unwrap();
    assert_eq!(gone.outcome, Outcome::NotFound);
    for (tenant, store, kept) in [(tenant("other"), "device", others), (acme(), "ciba", request)] {
        assert!(desk.get(&tenant, store, &Address::id(kept.id().unwrap())).await.unwrap().is_ok(), "{store}");
    }
}

/// B36: codes that expire leave nothing behind that would lock their user out.
#[tokio::test(flavor = "multi_thread")]
async fn b36_expired_codes_do_not_lock_a_user_out() {
    let world = world().await;
    let mut desk = world.desk();
    let grant =
        isles_stores::identity::Grant { user: "ann".into(), client: "app".into(), challenge: None, value: "{}".into() };
    for _ in 0..120 {
        let code = desk.issue_code(&acme(), &grant).await.unwrap().id().unwrap().to_owned();
        world.pass(600);
        assert_eq!(desk.exchange_code(&acme(), &code, ("app", None)).await.unwrap(), Err(Outcome::Expired));
    }
    let code = desk.issue_code(&acme(), &grant).await.unwrap().id().unwrap().to_owned();
    assert!(desk.exchange_code(&acme(), &code, ("app", None)).await.unwrap().is_ok());
}

/// B38: what is swept is what has expired, whosever it is, and nothing else of anybody.
#[tokio::test(flavor = "multi_thread")]
async fn b38_a_sweep_removes_nobody_elses_live_records() {
    let world = world().await;
    let mut desk = world.desk();
    for (name, ttl) in [("acme", 10), ("other", 1_000)] {
        for _ in 0..20 {
            let put = Put::of("{}").lasting(Duration::from_secs(ttl));
            desk.put(&tenant(name), "session", put).await.unwrap();
        }
    }
    world.pass(10);
    assert_eq!(world.stores.sweep_before(Duration::ZERO).await.unwrap().removed, 20);
    assert_eq!(desk.count(&tenant("other"), "session").await.unwrap(), 20);
}

/// Requests are counted by bucket, idle ones too, so that a hot one is seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_hot_bucket_is_seen_in_the_distribution() {
    let world = world().await;
    let mut desk = world.desk();
    for _ in 0..200 {
        desk.put(&acme(), "session", Put::of("{}")).await.unwrap();
        desk.put(&acme(), "par", Put::of("{}").routed("one client")).await.unwrap();
    }
    let of = |store: &str| world.stores.distribution().into_iter().find(|d| d.store.as_deref() == Some(store)).unwrap();
    let (even, hot) = (of("session"), of("par"));
    assert_eq!((even.buckets, even.requests, hot.requests), (32, 200, 200));
    assert!(even.ratio() < 10.0 && hot.ratio() > 10.0, "{even:?} {hot:?}");
    let durations = world.stores.durations();
    assert_eq!(durations.iter().filter(|d| d.store == "par").map(|d| d.count).sum::<u64>(), 200);
}

/// The sources of all crates, and of their tests.
fn sources(folder: &std::path::Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

/// docs/placement.md names a test for each hole, or says why there is none, and a test for each part of the original; and
/// these tests exist.
#[test]
fn every_hole_has_its_tests() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let document = std::fs::read_to_string(root.join("docs/placement.md")).unwrap();
    let tables = document.split_once("## What the original says").unwrap().1;
    let mut code = String::new();
    sources(&root.join("crates"), &mut code);
    let names: Vec<&str> = tables.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() > 1).collect();
    assert!(names.len() > 100, "only {} tests are named", names.len());
    for name in names {
        assert!(code.contains(&format!("fn {name}(")), "docs/placement.md names {name}, and there is no such test");
    }
    for number in 1..=42 {
        let row = tables.lines().find(|line| line.starts_with(&format!("| B{number} |")));
        let row = row.unwrap_or_else(|| panic!("B{number} is missing in docs/placement.md"));
        assert!(row.contains('`') && row.matches('|').count() == 4, "{row}");
    }
}
