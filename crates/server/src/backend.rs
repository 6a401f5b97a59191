//! The database behind the doors, as the doors need it: roles to check, sessions to speak with.

use crate::config::Config;
use async_trait::async_trait;
use isles_cluster::catalog::Catalog;
use isles_cluster::database::{self, Database, ServerFacts, ShardPlace, ShardWork, TenantWorks};
use isles_cluster::session::{Login, Session};
use isles_engine::env::TokioEnv;
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use isles_stores::{IdSource, Stores};
use isles_workflows::procedures::{self, Source};
use isles_workflows::{Code, EngineOptions, Registry, WorkflowError, Workflows};
use std::sync::{Arc, Weak};
use tokio::sync::OnceCell;

pub(crate) struct Backend {
    database: Arc<Database>,
    stores: Stores,
    runs: Arc<Runs>,
}

/// The workflows of the database, opened when somebody wants them: a database that has none pays nothing for them.
struct Runs {
    /// The database has this, among what SQL can call.
    database: Weak<Database>,
    /// Workflows in Rust, which this process executes.
    registry: Registry,
    opened: OnceCell<Workflows>,
}

#[async_trait]
impl Source for Runs {
    async fn workflows(&self) -> Result<Workflows, WorkflowError> {
        let closed = || WorkflowError::new(Code::Unavailable, "the database is being closed");
        let open = async {
            let database = self.database.upgrade().ok_or_else(closed)?;
            let env = Arc::new(TokioEnv::current());
            Workflows::open(database, env, self.registry.clone(), EngineOptions::default()).await
        };
        self.opened.get_or_try_init(|| open).await.cloned()
    }
}

impl Backend {
    /// Opens the database of a configuration, or makes it.
    pub(crate) async fn open(config: &Config, registry: Registry) -> Result<Backend, SqlError> {
        let mut place = database::Config::sqlite(&config.data, config.shards.sqlite);
        place.shards.extend(config.shards.postgres.iter().map(|url| ShardPlace::Postgres { url: url.clone() }));
        place.only_if_new = !config.shards.said;
        place.strategy = config.strategy;
        place.environment = config.environment;
        place.server = ServerFacts { max_connections: config.limits.connections, tls: config.tls.is_some() };
        place.region = config.region.clone();
        place.regions = config.regions.clone();
        place.verify_indexes_every = config.verify_indexes_every.unwrap_or(place.verify_indexes_every);
        let database = Database::open(place, Arc::new(TokioEnv::current())).await?;
        let must_open = !registry.is_empty();
        let runs = Arc::new(Runs { database: Arc::downgrade(&database), registry, opened: OnceCell::new() });
        procedures::register(&database, runs.clone());
        let stores = Stores::open(database.clone(), IdSource::System).await?;
        stores.register();
        let made = stores.declare(&config.stores).await?;
        if !made.is_empty() {
            tracing::info!(stores = made.join(", "), "stores of the configuration are made");
        }
        let backend = Backend { database, stores, runs };
        if must_open || backend.has_runs().await? {
            backend.resume_runs().await?;
        }
        Ok(backend)
    }

    /// Whether there may be runs.
    async fn has_runs(&self) -> Result<bool, SqlError> {
        let mut session = self.database.system_session()?;
        Ok(session.run_text("SELECT version FROM isles.run_format", Vec::new()).await.is_ok())
    }

    /// Runs that are there go on.
    async fn resume_runs(&self) -> Result<(), SqlError> {
        let opened = self.runs.workflows().await;
        opened.map(drop).map_err(|error| SqlError::new("58000", format!("workflows cannot be opened: {error}")))
    }

    /// The workflows of the database, if somebody has wanted them.
    pub(crate) fn opened_workflows(&self) -> Option<&Workflows> {
        self.runs.opened.get()
    }

    /// The workflows of the database.
    pub(crate) async fn workflows(&self) -> Result<Workflows, WorkflowError> {
        self.runs.workflows().await
    }

    pub(crate) fn database(&self) -> &Arc<Database> {
        &self.database
    }

    /// Records that expire.
    pub(crate) fn stores(&self) -> &Stores {
        &self.stores
    }

    pub(crate) fn catalog(&self) -> Arc<dyn Catalog> {
        Arc::clone(self.database.catalog())
    }

    /// A session for one who has logged in.
    pub(crate) fn session(&self, login: Login) -> Result<Session, SqlError> {
        self.database.session(login)
    }

    /// How many shards there are of each engine, for people.
    pub(crate) fn shards(&self) -> String {
        let (sqlite, postgres) = self.database.shard_counts();
        let of = |count: usize, engine: &str| match count {
            0 => None,
            1 => Some(format!("1 {engine} shard")),
            _ => Some(format!("{count} {engine} shards")),
        };
        let each = [of(sqlite, "SQLite"), of(postgres, "PostgreSQL")];
        each.into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }

    /// What each shard has done.
    pub(crate) fn shard_work(&self) -> Vec<(ShardId, ShardWork)> {
        self.database.shard_work()
    }

    /// What the busiest tenants have done, and the others together.
    pub(crate) fn tenant_work(&self, most: usize) -> TenantWorks {
        self.database.tenant_work(most)
    }

    /// Lets what runs end, and closes everything.
    pub(crate) async fn close(&self) -> Result<(), SqlError> {
        if let Some(workflows) = self.runs.opened.get() {
            workflows.close();
        }
        self.database.close().await
    }
}
