//! I-39: records of a region are on its shards, wherever they are asked for, and a placement leads nowhere else.

use crate::world::{REGIONS, World, acme};
use isles_cluster::database::{Config, Database};
use isles_cluster::placements::{Change, ChangeError, Migration};
use isles_engine::env::TokioEnv;
use isles_kernel::names::{BucketId, GroupName, RegionName};
use isles_stores::{Address, IdSource, Outcome, Put, Stores};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

fn region(name: &str) -> RegionName {
    RegionName::new(name).unwrap()
}

/// The shards that have buckets of a region's records.
fn owners(world: &World, name: &str) -> BTreeSet<String> {
    let routing = world.db.database.current_routing();
    let group = GroupName::new(format!("records-{name}")).unwrap();
    (0..256).map(|bucket| routing.shard_of_bucket(&group, BucketId(bucket)).unwrap().to_string()).collect()
}

async fn migrate(world: &World, change: &Value) -> Result<(), ChangeError> {
    let placements = world.db.database.placements();
    let if_match = placements.of("acme").unwrap().etag;
    let migration: Migration = serde_json::from_value(change.clone()).unwrap();
    let change = Change { tenant: "acme", by: "test", if_match, reason: None };
    placements.migrate(&change, migration).await.map(drop)
}

/// I-39.
pub(crate) async fn records_of_a_region_are_on_its_shards(world: World) {
    let mut ids = Vec::new();
    for (number, name) in REGIONS.into_iter().enumerate() {
        let mut desk = world.desk().near(Some(region(name)));
        for _ in 0..20 {
            let put = desk.put(&acme(), "session", Put::of("{}").owned("ann")).await.unwrap();
            ids.push((name, put.id().unwrap().to_owned()));
        }
        assert_eq!(owners(&world, name), BTreeSet::from([format!("s{number}")]), "{name}");
    }
    assert!(ids.iter().all(|(name, id)| id.split(':').nth(1) == Some(name)), "{ids:?}");
    // Who is elsewhere reads them where they are.
    let mut desk = world.desk().near(Some(region("apac")));
    for (_, id) in &ids {
        assert_eq!(desk.get(&acme(), "session", &Address::id(id)).await.unwrap().outcome, Outcome::Ok);
    }
    assert_eq!(desk.revoke_owner(&acme(), "session", "ann").await.unwrap().records, 60);
}

/// A region without a shard gets no buckets; when it has one, its tables are there before anybody is led to it.
pub(crate) async fn a_region_is_led_to_when_it_has_a_shard(world: World) {
    let to_oceania = json!({ "baseRegions": { "apac": 20, "enam": 40, "oc": 40 } });
    match migrate(&world, &to_oceania).await {
        Err(ChangeError::Invalid(errors)) => {
            assert_eq!(errors.errors()[0].field, "baseRegions.oc", "{errors}");
        }
        other => panic!("{other:?}"),
    }
    let mut admin = world.db.client();
    assert_eq!(admin.fails("SELECT count(*) FROM isles.records_oc").await, "42P01", "nothing was made for it");
    admin.run("CREATE SHARD WITH (region = 'oc')").await;
    migrate(&world, &to_oceania).await.unwrap();
    assert_eq!(admin.run("SELECT count(*) FROM isles.records_oc").await, ["0"]);
    assert_eq!(owners(&world, "oc"), BTreeSet::from(["s3".to_owned()]));
    let put = world.desk().near(Some(region("oc"))).put(&acme(), "session", Put::of("1")).await.unwrap();
    assert!(put.id().unwrap().starts_with("g2:oc:"), "{put:?}");
    // Nothing new is made where the tenant has left: who is there is served elsewhere.
    let away = world.desk().near(Some(region("weur"))).put(&acme(), "session", Put::of("1")).await.unwrap();
    assert!(!away.id().unwrap().contains(":weur:"), "{away:?}");
    let mut left = Put::of("1");
    left.region = Some(region("weur"));
    let left = world.desk().put(&acme(), "session", left).await.unwrap_err();
    assert_eq!((left.sqlstate, left.hint.as_deref()), ("22023", Some("it has apac, enam, oc")));
}

async fn opened(config: Config) -> (Arc<Database>, Stores) {
    let database = Database::open(config, Arc::new(TokioEnv::current())).await.unwrap();
    let stores = Stores::open(database.clone(), IdSource::System).await.unwrap();
    (database, stores)
}

/// The first start where shards are in regions that the built-in defaults do not lead to: the stores are made, and tenants
/// without a record have a place.
#[tokio::test(flavor = "multi_thread")]
async fn stores_are_made_where_only_some_regions_have_shards() {
    for name in ["weur", "oc"] {
        let folder = tempfile::tempdir().unwrap();
        let (database, stores) =
            opened(Config { region: Some(region(name)), ..Config::sqlite(folder.path(), 2) }).await;
        assert_eq!(stores.create_preset("identity").await.unwrap().len(), 16, "{name}");
        let mut desk = stores.desk();
        for number in 0..10 {
            let session = desk.put(&acme(), "session", Put::of("1")).await.unwrap();
            assert!(session.id().unwrap().starts_with(&format!("g1:{name}:")), "{session:?}");
            let put = Put::of("1").routed(format!("user{number}:app"));
            assert!(desk.put(&acme(), "authcode", put).await.unwrap().is_ok());
        }
        let entry = &database.placements().history("default", None).await.unwrap()[0];
        assert!(entry.by == "isles" && entry.reason.is_some(), "it is told who has done it");
        assert!(stores.unbound().is_empty());
        database.close().await.unwrap();
    }
}

/// Tables that are older than the regions of shards are told of; what is made later fits them, and everything is served.
#[tokio::test(flavor = "multi_thread")]
async fn tables_that_are_older_than_regions_are_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let (database, stores) = opened(Config::sqlite(folder.path(), 3)).await;
    let session = isles_stores::identity::preset().into_iter().find(|store| store.name == "session").unwrap();
    stores.create(session).await.unwrap();
    let db = crate::harness::Db { database, folder };
    let mut admin = db.client();
    for (number, name) in REGIONS.into_iter().enumerate() {
        Box::pin(admin.run(&format!("ALTER SHARD s{number} REGION {name}"))).await;
    }
    // Devices have aliases, and so tables of their own.
    assert_eq!(stores.create_preset("identity").await.unwrap().len(), 15);
    assert_eq!(BTreeSet::from_iter(stores.unbound()), REGIONS.map(str::to_owned).into());
    let mut desk = stores.desk();
    let started = desk.start_device(&acme(), isles_stores::identity::Device::Code, ("tv", "{}"), (5, None)).await;
    assert!(started.is_ok(), "{started:?}");
}
