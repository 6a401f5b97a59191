//! The database behind the doors, as the doors need it: roles to check, sessions to speak with.

use crate::config::Config;
use isles_cluster::catalog::Catalog;
use isles_cluster::database::{self, Database, ShardPlace, ShardWork, TenantWorks};
use isles_cluster::session::{Login, Session};
use isles_engine::env::TokioEnv;
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use std::sync::Arc;

pub(crate) struct Backend {
    database: Arc<Database>,
}

impl Backend {
    /// Opens the database of a configuration, or makes it.
    pub(crate) async fn open(config: &Config) -> Result<Backend, SqlError> {
        let mut place = database::Config::sqlite(&config.data, config.shards.sqlite);
        place.shards.extend(config.shards.postgres.iter().map(|url| ShardPlace::Postgres { url: url.clone() }));
        place.only_if_new = !config.shards.said;
        place.strategy = config.strategy;
        place.verify_indexes_every = config.verify_indexes_every.unwrap_or(place.verify_indexes_every);
        let database = Database::open(place, Arc::new(TokioEnv::current())).await?;
        Ok(Backend { database })
    }

    pub(crate) fn database(&self) -> &Arc<Database> {
        &self.database
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
        self.database.close().await
    }
}
