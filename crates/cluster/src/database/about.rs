//! What the catalog knows of the database itself: decided at its first start, and never again. Shards that came later, or
//! have gone, are not told here but in [`super::members`].
//!
//! The record is made by compare-and-set. Of two who start at once one decides, and the other finds it decided and is
//! refused if it was told otherwise.
//!
//! Invariants (docs/invariants.md):
//!   * I-44  a database keeps the strategy it was made with; who is configured otherwise does not start

use super::{Config, ShardPlace};
use crate::catalog::{Catalog, CatalogError, Key, Transaction};
use crate::commit::decision::catalog_error;
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use serde::{Deserialize, Serialize};

/// How tenants are kept apart in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Tenants share shards; their rows are told apart by whom a statement acts for.
    #[default]
    Row,
    /// Each tenant has a shard of its own.
    Adapter,
}

impl Strategy {
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Row => "row",
            Strategy::Adapter => "adapter",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct About {
    /// A random number that tells it from every other database.
    pub(super) id: u64,
    /// Those that it was made with.
    pub(super) shards: Vec<AboutShard>,
    /// Databases from before there were two have none in their record.
    #[serde(default)]
    pub(super) strategy: Strategy,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AboutShard {
    pub(super) name: ShardId,
    engine: String,
}

impl AboutShard {
    /// Whether a place is of its engine.
    pub(super) fn is_at(&self, place: &ShardPlace) -> bool {
        self.engine == place.engine_name()
    }
}

fn key() -> Key {
    Key::new("database/about").expect("a constant without control characters")
}

fn configured(config: &Config) -> Vec<AboutShard> {
    let name = |n: usize| ShardId::new(format!("s{n}")).expect("a letter and a number are a valid name");
    let shard = |(n, place): (usize, &ShardPlace)| AboutShard { name: name(n), engine: place.engine_name().into() };
    config.shards.iter().enumerate().map(shard).collect()
}

/// Reads what the database is; on the first start, decides it.
pub(super) async fn about(catalog: &dyn Catalog, config: &Config, env: &dyn Env) -> Result<About, SqlError> {
    if let Some(about) = recorded(catalog, config).await? {
        return Ok(about);
    }
    let about = About { id: env.random(), shards: configured(config), strategy: config.strategy.unwrap_or_default() };
    let first = Transaction::new().when_as_read(&key(), None).put_json(key(), &about).map_err(catalog_error)?;
    match catalog.commit(first).await {
        Ok(_) => Ok(about),
        // Somebody else was first.
        Err(error @ CatalogError::Conflict { .. }) => {
            recorded(catalog, config).await?.ok_or_else(|| catalog_error(error))
        }
        Err(error) => Err(catalog_error(error)),
    }
}

/// What is recorded, if it is what the configuration says.
async fn recorded(catalog: &dyn Catalog, config: &Config) -> Result<Option<About>, SqlError> {
    let Some(record) = catalog.get(&key()).await.map_err(catalog_error)?.value else { return Ok(None) };
    let about: About = record.json().map_err(catalog_error)?;
    if !config.only_if_new && about.shards != configured(config) {
        let known: Vec<String> = about.shards.iter().map(|shard| shard.engine.clone()).collect();
        let (count, known) = (known.len(), known.join(", "));
        let message = format!("the database was made with {count} shards ({known}), the configuration has another set");
        return Err(SqlError::new("55000", message).with_hint("open it with the shards it was made with"));
    }
    match config.strategy.filter(|wanted| *wanted != about.strategy) {
        None => Ok(Some(about)),
        Some(wanted) => {
            let (has, wanted) = (about.strategy.name(), wanted.name());
            let message = format!("the database has strategy \"{has}\", the configuration says \"{wanted}\"");
            let hint = format!("a database keeps the strategy it was made with: start with \"{has}\", or without one");
            Err(SqlError::new("55000", message).with_hint(hint))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::catalog::{Options, SqliteCatalog};
    use isles_engine::env::TokioEnv;
    use std::sync::Arc;

    /// I-44: of servers that start at once with different strategies, those of one strategy start.
    #[tokio::test(flavor = "multi_thread")]
    async fn servers_that_start_at_once_agree_on_a_strategy() {
        for round in 0..8 {
            let folder = tempfile::tempdir().unwrap();
            let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
            let catalog =
                SqliteCatalog::open(folder.path().join("c.db"), env.clone(), Options::default()).await.unwrap();
            let config = |strategy| Config { strategy, ..Config::sqlite(folder.path(), 2) };
            let wanted = [Some(Strategy::Row), Some(Strategy::Adapter), None, Some(Strategy::Adapter)];
            let configs: Vec<Config> = wanted.iter().cycle().skip(round % 4).take(8).copied().map(config).collect();
            let starts = configs.iter().map(|config| about(&catalog, config, &*env));
            let started = futures::future::join_all(starts).await;
            let found: Vec<&About> = started.iter().flatten().collect();
            assert!(!found.is_empty() && found.iter().all(|about| *about == found[0]), "{started:?}");
            for (config, start) in configs.iter().zip(&started) {
                let agrees = config.strategy.is_none_or(|wanted| wanted == found[0].strategy);
                assert_eq!(start.is_ok(), agrees, "{config:?} {start:?}");
            }
            let refused = started.iter().find_map(|start| start.as_ref().err()).expect("one was told otherwise");
            assert_eq!(refused.sqlstate, "55000");
            assert!(refused.message.contains("\"row\"") && refused.message.contains("\"adapter\""), "{refused}");
            assert!(refused.hint.is_some());
        }
    }

    /// A database from before there were strategies is of the first.
    #[tokio::test]
    async fn a_record_without_a_strategy_counts_as_row() {
        let folder = tempfile::tempdir().unwrap();
        let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
        let catalog = SqliteCatalog::open(folder.path().join("c.db"), env.clone(), Options::default()).await.unwrap();
        let old = r#"{"id":7,"shards":[{"name":"s0","engine":"sqlite"}]}"#;
        catalog.commit(Transaction::new().put(key(), old)).await.unwrap();
        let config = |strategy| Config { strategy, ..Config::sqlite(folder.path(), 1) };
        for strategy in [None, Some(Strategy::Row)] {
            assert_eq!(about(&catalog, &config(strategy), &*env).await.unwrap().strategy, Strategy::Row);
        }
        assert_eq!(about(&catalog, &config(Some(Strategy::Adapter)), &*env).await.unwrap_err().sqlstate, "55000");
    }
}
