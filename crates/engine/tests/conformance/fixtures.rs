//! Where a test's shards live: a temporary directory for SQLite, fresh databases of one test server for PostgreSQL.
//!
//! This is the only file that knows how a shard of either engine is made.

use crate::given::Db;
use async_trait::async_trait;
use isles_engine::env::TokioEnv;
use isles_engine::postgres::{PostgresOptions, PostgresShard};
use isles_engine::shard::{Engine, Shard};
use isles_engine::sqlite::{SqliteOptions, SqliteShard};
use isles_kernel::names::ShardId;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// A test that takes longer is stuck. It is far above the slowest test on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a test may set; all else is the engine's default.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) log: LogSize,
}

/// How much the change log may hold before its slowest reader is dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LogSize {
    #[default]
    Usual,
    /// Some twenty changes of 10 kB: one engine counts bytes, the other changes.
    Small,
}

fn shard_id() -> ShardId {
    ShardId::new("tested").expect("valid")
}

/// One database, which can be opened again after it was closed.
#[async_trait]
pub(crate) trait Fixture: Send + Sync {
    async fn open(&self, options: &Options) -> Arc<dyn Shard>;

    async fn reopen(&self, shard: Arc<dyn Shard>) -> Arc<dyn Shard> {
        shard.close().await.expect("a shard closes");
        drop(shard);
        self.open(&Options::default()).await
    }
}

struct SqliteFixture {
    path: PathBuf,
}

#[async_trait]
impl Fixture for SqliteFixture {
    async fn open(&self, options: &Options) -> Arc<dyn Shard> {
        let mut chosen = SqliteOptions::default();
        if options.log == LogSize::Small {
            chosen.max_log_bytes = 200_000;
        }
        let env = Arc::new(TokioEnv::current());
        Arc::new(SqliteShard::open(shard_id(), &self.path, env, chosen).await.expect("a SQLite shard"))
    }
}

struct PostgresFixture {
    url: String,
}

#[async_trait]
impl Fixture for PostgresFixture {
    async fn open(&self, options: &Options) -> Arc<dyn Shard> {
        let mut chosen = PostgresOptions::default();
        if options.log == LogSize::Small {
            chosen.max_log_records = 25;
        }
        let env = Arc::new(TokioEnv::current());
        Arc::new(PostgresShard::open(shard_id(), &self.url, env, chosen).await.expect("a PostgreSQL shard"))
    }
}

/// A fresh database of the server that all tests of this process share.
async fn create_database() -> String {
    let made = tokio::task::spawn_blocking(|| isles_sim::pgserver::shared().create_database());
    made.await.expect("a database")
}

/// The databases of one engine that one test makes. They go with it.
pub(crate) struct World {
    engine: Engine,
    dir: TempDir,
    made: AtomicU32,
}

impl World {
    fn new(engine: Engine) -> World {
        World { engine, dir: TempDir::new().expect("a temporary directory"), made: AtomicU32::new(0) }
    }

    /// A fresh, empty database.
    pub(crate) async fn fixture(&self) -> Box<dyn Fixture> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        match self.engine {
            Engine::Sqlite => Box::new(SqliteFixture { path: self.dir.path().join(format!("shard-{number}.db")) }),
            Engine::Postgres => Box::new(PostgresFixture { url: create_database().await }),
        }
    }

    /// A fresh shard without tables, that serves nothing.
    pub(crate) async fn empty(&self) -> Db {
        Db::new(self.fixture().await.open(&Options::default()).await)
    }
}

/// Runs a test in a runtime of its own.
pub(crate) fn run<T: Future<Output = ()>>(engine: Engine, test: impl FnOnce(World) -> T) {
    block_on(async { test(World::new(engine)).await });
}

/// Runs a test that moves rows from shards of one engine to shards of another.
pub(crate) fn run_across<T: Future<Output = ()>>(from: Engine, to: Engine, test: impl FnOnce(World, World) -> T) {
    block_on(async { test(World::new(from), World::new(to)).await });
}

fn block_on(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("the test is stuck") });
}
