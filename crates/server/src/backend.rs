//! The database behind the doors, as the doors need it: roles to check, sessions to speak with.

use crate::config::Config;
use isles_cluster::catalog::{self, Catalog, SqliteCatalog};
use isles_cluster::session::{Login, Session};
use isles_engine::env::{Env, TokioEnv};
use isles_kernel::error::SqlError;
use std::sync::Arc;

pub(crate) struct Backend {
    catalog: Arc<dyn Catalog>,
}

impl Backend {
    /// Opens the database of a configuration, or makes it.
    pub(crate) async fn open(config: &Config) -> Result<Backend, SqlError> {
        let cannot = |fault: &dyn std::fmt::Display| {
            SqlError::new("58030", format!("cannot open the database in {}: {fault}", config.data.display()))
        };
        std::fs::create_dir_all(&config.data).map_err(|fault| cannot(&fault))?;
        let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
        let options = catalog::Options::default();
        let catalog = SqliteCatalog::open(config.data.join("catalog.db"), env, options).await;
        Ok(Backend { catalog: Arc::new(catalog.map_err(|fault| cannot(&fault))?) })
    }

    pub(crate) fn catalog(&self) -> Arc<dyn Catalog> {
        Arc::clone(&self.catalog)
    }

    /// `tenant` is the one that the role is fixed to.
    pub(crate) async fn session(&self, _login: Login, _tenant: Option<String>) -> Result<Session, SqlError> {
        Ok(Session {})
    }

    /// Lets what runs end, and closes everything.
    pub(crate) async fn close(&self) -> Result<(), SqlError> {
        Ok(())
    }
}
