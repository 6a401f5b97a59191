//! A database with the identity preset, and a clock that the test sets.

use crate::harness::Db;
use isles_cluster::database::{Config, Database};
use isles_cluster::placements::{Change, Migration};
use isles_engine::env::{Env, TokioEnv};
use isles_kernel::names::{RegionName, TenantId};
use isles_kernel::placement::{Placement, Timestamp};
use isles_stores::{Desk, IdSource, Stores};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SHARDS: usize = 3;
/// Of each shard, where shards have regions.
pub(crate) const REGIONS: [&str; SHARDS] = ["apac", "enam", "weur"];
/// The counts of the first generation.
pub(crate) const FIRST: [u32; 3] = [64, 32, 32];

/// The machine's clocks, and a wall clock that stands still until a test moves it.
pub(crate) struct SetClock {
    inner: TokioEnv,
    micros: AtomicU64,
}

impl SetClock {
    pub(crate) fn pass(&self, time: Duration) {
        self.micros.fetch_add(time.as_micros() as u64, Ordering::SeqCst);
    }

    fn new() -> Arc<SetClock> {
        let inner = TokioEnv::current();
        let micros = AtomicU64::new(inner.now_micros());
        Arc::new(SetClock { inner, micros })
    }
}

impl Env for SetClock {
    fn now_micros(&self) -> u64 {
        self.micros.load(Ordering::SeqCst)
    }

    fn elapsed(&self) -> Duration {
        self.inner.elapsed()
    }

    fn sleep(&self, duration: Duration) -> futures::future::BoxFuture<'static, ()> {
        self.inner.sleep(duration)
    }

    fn spawn(&self, task: futures::future::BoxFuture<'static, ()>) {
        self.inner.spawn(task);
    }

    fn blocking(&self, job: Box<dyn FnOnce() + Send>) {
        self.inner.blocking(job);
    }

    fn random(&self) -> u64 {
        self.inner.random()
    }
}

pub(crate) struct World {
    pub(crate) db: Db,
    pub(crate) stores: Stores,
    pub(crate) clock: Arc<SetClock>,
}

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

pub(crate) fn acme() -> TenantId {
    tenant("acme")
}

impl World {
    pub(crate) async fn sqlite() -> World {
        World::open(|folder| Config::sqlite(folder, SHARDS)).await
    }

    pub(crate) async fn postgres() -> World {
        let urls = || [(); SHARDS].map(|()| isles_sim::pgserver::shared().create_database());
        let urls = tokio::task::spawn_blocking(urls).await.unwrap();
        World::open(|folder| Config::postgres(folder, urls.into())).await
    }

    /// With shards that are each in a region.
    pub(crate) async fn sqlite_in_regions() -> World {
        World::open(|folder| Config { regions: located(), ..Config::sqlite(folder, SHARDS) }).await
    }

    pub(crate) async fn postgres_in_regions() -> World {
        let urls = || [(); SHARDS].map(|()| isles_sim::pgserver::shared().create_database());
        let urls = tokio::task::spawn_blocking(urls).await.unwrap();
        World::open(|folder| Config { regions: located(), ..Config::postgres(folder, urls.into()) }).await
    }

    /// Waits until every move has ended.
    pub(crate) async fn until_moved(&self) {
        const PHASE: usize = 4;
        let mut admin = self.db.client();
        let is_under_way = |plan: &String| plan.split('|').nth(PHASE) != Some("completed");
        while Box::pin(admin.run("SHOW MOVES")).await.iter().any(is_under_way) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn open(config: impl FnOnce(&std::path::Path) -> Config) -> World {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let clock = SetClock::new();
        let database = Database::open(config, clock.clone()).await.unwrap();
        let stores = Stores::open(database.clone(), IdSource::System).await.unwrap();
        let made = stores.create_preset("identity").await.unwrap();
        assert_eq!(made.len(), 16);
        let world = World { db: Db { database, folder }, stores, clock };
        world.place(1, FIRST, &[]).await;
        world
    }

    pub(crate) fn desk(&self) -> Desk<'static> {
        self.stores.desk()
    }

    pub(crate) fn pass(&self, seconds: u64) {
        self.clock.pass(Duration::from_secs(seconds));
    }

    /// Puts a placement of these counts in force: for codes and refresh tokens, for sessions and challenges, and for what
    /// is by client; previous generations with their counts are read for so many seconds.
    pub(crate) async fn place(&self, generation: u32, counts: [u32; 3], previous: &[(u32, [u32; 3], u64)]) {
        let placements = self.db.database.placements();
        let if_match = placements.of("acme").unwrap().etag;
        let change = Change { tenant: "acme", by: "test", if_match, reason: None };
        placements.put(&change, &self.config(generation, counts, previous)).await.unwrap();
    }

    /// Begins a generation that differs from the last in this.
    pub(crate) async fn migrate(&self, change: &serde_json::Value) {
        let placements = self.db.database.placements();
        let if_match = placements.of("acme").unwrap().etag;
        let migration: Migration = serde_json::from_value(change.clone()).unwrap();
        let change = Change { tenant: "acme", by: "test", if_match, reason: None };
        placements.migrate(&change, migration).await.unwrap();
    }

    pub(crate) fn placement(&self, generation: u32, counts: [u32; 3], previous: &[(u32, [u32; 3], u64)]) -> Placement {
        Placement::from_json(&self.config(generation, counts, previous)).unwrap()
    }

    fn config(&self, generation: u32, counts: [u32; 3], previous: &[(u32, [u32; 3], u64)]) -> String {
        let now = self.clock.now_micros() as i64;
        let until = |seconds: u64| Timestamp::from_microsecond(now + seconds as i64 * 1_000_000).unwrap().to_string();
        let previous: Vec<serde_json::Value> = previous
            .iter()
            .map(|(generation, counts, seconds)| {
                serde_json::json!({ "generation": generation, "groups": groups(*counts), "validUntil": until(*seconds) })
            })
            .collect();
        let config = serde_json::json!({
            "version": 2,
            "currentGeneration": generation,
            "baseRegions": { "apac": 20, "enam": 40, "weur": 40 },
            "groups": groups(counts),
            "previousGenerations": previous,
        });
        config.to_string()
    }
}

fn located() -> Vec<Option<RegionName>> {
    REGIONS.map(|name| Some(RegionName::new(name).unwrap())).to_vec()
}

fn groups([user_client, medium, client]: [u32; 3]) -> serde_json::Value {
    serde_json::json!({
        "user-client": { "totalShards": user_client, "members": ["authcode", "refresh"] },
        "random-high-rps": { "totalShards": 64, "members": ["revocation"] },
        "random-medium-rps": { "totalShards": medium, "members": ["session", "challenge"] },
        "client-based": { "totalShards": client, "members": ["par", "device", "ciba", "dpop"] },
        "vc": { "totalShards": 16, "members": ["credoffer", "vprequest"] },
    })
}
