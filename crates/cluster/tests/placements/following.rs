//! What is in force: how the catalog is followed, what an invalid record does, and who is inside together.

use crate::changes::{change, preset, put};
use crate::harness::Db;
use isles_cluster::catalog::{Key, Transaction};
use isles_cluster::database::Config;
use isles_cluster::placements::{Environment, Kept, Migration, Placements, Source, Why};
use isles_kernel::error::SqlError;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} does not come");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Writes a record as somebody would who does not ask the placements.
async fn by_foreign_hand(db: &Db, tenant: &str, value: &str) {
    let key = Key::new(format!("region_shard_config:{tenant}")).unwrap();
    db.database.catalog().commit(Transaction::new().put(key, value)).await.unwrap();
}

const BROKEN: &str = r#"{"version": 2, "currentGeneration": 1, "baseRegions": {"enam": 100},
    "groups": {"user-client": {"totalShards": 64, "members": ["authcode", "refresh"], "overrides": {"refresh": 32}},
    "default": {"totalShards": 20, "members": []}}}"#;

async fn in_development() -> Db {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { environment: Environment::Development, ..Config::sqlite(folder.path(), 1) };
    Db::open(folder, &config).await
}

/// A record that another process has written is in force here, too; one that it has deleted is not.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_write_is_followed() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    by_foreign_hand(&db, "acme", &preset().to_string()).await;
    until("the record", || placements.of("acme").unwrap().source == Source::Configured).await;
    by_foreign_hand(&db, "default", &preset().to_string()).await;
    until("the record of default", || placements.of("other").unwrap().source == Source::Inherited).await;
    let key = Key::new("region_shard_config:acme").unwrap();
    db.database.catalog().commit(Transaction::new().delete(key)).await.unwrap();
    until("the deletion", || placements.of("acme").unwrap().source == Source::Inherited).await;
    assert!(placements.health().is_following);
}

/// Production fails closed: whoever needs an invalid record is refused with everything that is wrong, it is counted by
/// tenant and group, others go on, and a valid record ends it. So it is after a restart as well.
#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_record_stops_its_tenant_in_production() {
    let mut db = Db::sqlite(1).await;
    put(db.database.placements(), "acme", &preset()).await.unwrap();
    by_foreign_hand(&db, "acme", BROKEN).await;
    until("the refusal", || db.database.placements().of("acme").is_err()).await;
    for restarted in [false, true] {
        if restarted {
            db = db.restart(1).await;
        }
        let placements = db.database.placements();
        let refused = placements.of("acme").unwrap_err();
        assert!(refused.to_string().contains("groups.user-client.overrides.refresh"), "{refused}");
        assert_eq!(refused.for_people().sqlstate, "F0000");
        assert!(refused.for_people().hint.is_some());
        let counts = placements.invalid_counts();
        let of_group =
            counts.iter().find(|(tenant, group, _)| (tenant.as_str(), group.as_str()) == ("acme", "user-client"));
        assert!(of_group.is_some_and(|(_, _, times)| *times >= 2), "{counts:?}");
        assert_eq!(placements.health().invalid, ["acme"]);
        assert!(placements.of("other").is_ok());
        assert!(placements.enter("acme").await.is_err());
        let status = placements.status("acme").await.unwrap();
        assert!(status.errors.is_some_and(|errors| !errors.is_empty()));
        // What it was before is what a correction is compared with: nothing of it may be lost.
        let mut other = preset();
        other["groups"]["vc"]["totalShards"] = json!(8);
        assert!(put(placements, "acme", &other).await.is_err());
    }
    put(db.database.placements(), "acme", &preset()).await.unwrap();
    assert_eq!(db.database.placements().of("acme").unwrap().source, Source::Configured);
    assert!(db.database.placements().health().invalid.is_empty());
}

/// Development warns and goes on: with the last valid one, or with what is built in.
#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_record_is_warned_about_in_development() {
    let db = in_development().await;
    let placements = db.database.placements();
    put(placements, "acme", &preset()).await.unwrap();
    by_foreign_hand(&db, "acme", BROKEN).await;
    by_foreign_hand(&db, "fresh", "no JSON at all").await;
    until("the warning", || placements.health().invalid.len() == 2).await;
    let acme = placements.of("acme").unwrap();
    assert_eq!(acme.source, Source::LastValid);
    assert_eq!(acme.placement.current().groups().len(), 5);
    assert_eq!(placements.of("fresh").unwrap().source, Source::Defaults(Why::Invalid));
    assert_eq!(placements.invalid_counts().len(), 2);
}

/// Whatever bytes somebody writes, nobody panics and other tenants go on.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_records_stop_nobody_else() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    let deep = "[".repeat(10_000);
    let values =
        ["", "null", "[]", "\u{0}", "{\"version\": 1e999}", r#"{"groups": {"a": {"members": [null, {}]}}}"#, &deep];
    for (n, value) in values.into_iter().enumerate() {
        by_foreign_hand(&db, &format!("t{n}"), value).await;
    }
    put(placements, "last", &preset()).await.unwrap();
    until("all of them", || placements.health().invalid.len() == values.len()).await;
    assert!(placements.of("last").is_ok() && placements.of("none").is_ok());
}

/// Nobody is inside a new placement together with one who entered the old one; who only looks does not wait, and other
/// tenants do not either.
#[tokio::test(flavor = "multi_thread")]
async fn who_enters_waits_for_those_inside_the_last_placement() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    put(placements, "acme", &preset()).await.unwrap();
    let inside = placements.enter("acme").await.unwrap();
    let etag = placements.get("acme").await.unwrap().0;
    placements.migrate(&change("acme", etag), Migration::default()).await.unwrap();
    let looked = placements.of("acme").unwrap();
    assert_eq!(looked.placement.current().generation().get(), 2);
    let entering = {
        let placements = placements.clone();
        tokio::spawn(async move { placements.enter("acme").await.unwrap().placement.current().generation().get() })
    };
    let other = placements.enter("other").await.unwrap();
    drop(other);
    assert!(!entering.is_finished());
    assert_eq!(inside.placement.current().generation().get(), 1);
    drop(inside);
    assert_eq!(entering.await.unwrap(), 2);
}

/// The same for a tenant that gets its first record while others go by what they share with it: they do not keep it out.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_record_waits_for_its_tenant_and_not_for_all() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements().clone();
    let before = placements.enter("acme").await.unwrap();
    // Something else changes meanwhile: those who share go on under a copy, and still count.
    put(&placements, "third", &preset()).await.unwrap();
    let first = {
        let placements = placements.clone();
        tokio::spawn(async move { put(&placements, "acme", &preset()).await.unwrap() })
    };
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!first.is_finished(), "somebody of it is inside");
    drop(before);
    first.await.unwrap();
    let other = placements.enter("other").await.unwrap();
    let entered = placements.enter("acme").await.unwrap();
    assert_eq!(entered.source, Source::Configured, "although others are inside what it had before");
    drop((entered, other));
}

/// Under load: at no moment are two inside who go by different generations of one tenant.
#[tokio::test(flavor = "multi_thread")]
async fn generations_do_not_meet_under_load() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    let mut etag = put(placements, "acme", &preset()).await.unwrap().etag;
    let (inside, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let met = Arc::new(AtomicBool::new(false));
    let work = |placements: Arc<Placements>| {
        let (inside, done, met) = (inside.clone(), done.clone(), met.clone());
        tokio::spawn(async move {
            let (mut rounds, mut seen) = (0u64, std::collections::BTreeSet::new());
            while !done.load(Ordering::SeqCst) {
                let entered = placements.enter("acme").await.unwrap();
                let generation = usize::from(entered.placement.current().generation().get());
                // Those inside add a thousand for each generation that is there, and one for each of them.
                let before = inside.fetch_add(generation * 1_000 + 1, Ordering::SeqCst);
                let (sum, count) = (before / 1_000, before % 1_000);
                met.fetch_or(sum != generation * count, Ordering::SeqCst);
                tokio::task::yield_now().await;
                inside.fetch_sub(generation * 1_000 + 1, Ordering::SeqCst);
                drop(entered);
                seen.insert(generation);
                rounds += 1;
            }
            (rounds, seen)
        })
    };
    let workers: Vec<_> = (0..8).map(|_| work(placements.clone())).collect();
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        etag = placements.migrate(&change("acme", etag), Migration::default()).await.unwrap().etag;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    done.store(true, Ordering::SeqCst);
    let mut generations = std::collections::BTreeSet::new();
    for worker in workers {
        let (rounds, seen) = worker.await.unwrap();
        assert!(rounds > 10);
        generations.extend(seen);
    }
    assert!(!met.load(Ordering::SeqCst), "two generations were inside at once");
    assert!(generations.len() >= 4, "{generations:?}");
}

/// Looks when it is told to, whether anything is there.
struct Looking {
    asked: AtomicBool,
    may_answer: AtomicBool,
}

#[async_trait::async_trait]
impl isles_cluster::placements::Keeper for Looking {
    async fn is_drained(&self, _: Option<&str>, _: isles_kernel::id::Generation) -> Result<bool, SqlError> {
        self.asked.store(true, Ordering::SeqCst);
        until("the answer", || self.may_answer.load(Ordering::SeqCst)).await;
        Ok(true)
    }

    async fn kept(&self) -> Result<Vec<Kept>, SqlError> {
        Ok(Vec::new())
    }
}

/// While it is found out whether anything was written by what a tenant inherits, nobody of the tenant writes by that; who
/// comes meanwhile goes by what the tenant has afterwards. Others who inherit the same go on.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_writes_by_what_a_first_record_is_about_to_replace() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements().clone();
    let keeper = Arc::new(Looking { asked: AtomicBool::new(false), may_answer: AtomicBool::new(false) });
    placements.register(keeper.clone());
    let inside = placements.enter("acme").await.unwrap();
    let first = {
        let placements = placements.clone();
        tokio::spawn(async move { put(&placements, "acme", &preset()).await.unwrap() })
    };
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!keeper.asked.load(Ordering::SeqCst), "it waits for those who are inside");
    drop(inside);
    until("the look", || keeper.asked.load(Ordering::SeqCst)).await;
    assert!(placements.enter("other").await.is_ok());
    let late = {
        let placements = placements.clone();
        tokio::spawn(async move { placements.enter("acme").await.unwrap().source })
    };
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!late.is_finished() && !first.is_finished());
    keeper.may_answer.store(true, Ordering::SeqCst);
    first.await.unwrap();
    assert_eq!(late.await.unwrap(), Source::Configured);
}

/// A configuration that was to take effect and is refused is a failed validation, and is counted as one; a trial is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_configuration_is_counted() {
    let db = Db::sqlite(1).await;
    let placements = db.database.placements();
    assert!(placements.validate("acme", BROKEN).await.unwrap().is_err());
    assert!(placements.invalid_counts().is_empty());
    let broken: serde_json::Value = serde_json::from_str(BROKEN).unwrap();
    assert!(put(placements, "acme", &broken).await.is_err());
    assert_eq!(placements.invalid_counts(), [("acme".to_owned(), "user-client".to_owned(), 1)]);
}
