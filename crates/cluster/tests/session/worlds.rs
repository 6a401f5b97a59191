//! Databases of either engine that are closed and opened again, their shards by themselves, and two databases that must
//! answer alike.

use crate::harness::{Client, Db, env};
use crate::postgres::{server, urls};
use isles_cluster::database::{Config, Database, ShardPlace};
use isles_cluster::session::Status;
use isles_engine::postgres::{PostgresOptions, PostgresShard};
use isles_engine::shard::Shard;
use isles_engine::sqlite::{SqliteOptions, SqliteShard};
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use isles_sim::pgserver::PgServer;
use isles_sim::sqlgen::{Compare, Generator};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(20);

/// Where databases of one engine are made.
pub(crate) enum World {
    Sqlite,
    Postgres(PgServer),
}

impl World {
    pub(crate) fn both() -> [World; 2] {
        [World::Sqlite, World::Postgres(server())]
    }

    pub(crate) fn config(&self, folder: &Path, shards: usize) -> Config {
        match self {
            World::Sqlite => Config::sqlite(folder, shards),
            World::Postgres(server) => Config::postgres(folder, urls(server, shards)),
        }
    }
}

/// Opens a database. One that was closed just now lets its catalog go with the last of its tasks.
pub(crate) async fn try_open(config: &Config) -> Result<Arc<Database>, SqlError> {
    for _ in 0..500 {
        match Database::open(config.clone(), env()).await {
            Err(error) if error.message.contains("open already") => tokio::time::sleep(PAUSE).await,
            opened => return opened,
        }
    }
    panic!("the catalog is never let go");
}

pub(crate) async fn open(config: &Config) -> Db {
    match try_open(config).await {
        Ok(database) => Db { database, folder: tempfile::tempdir().unwrap() },
        Err(error) => panic!("{error}"),
    }
}

pub(crate) async fn close(db: Db) {
    db.database.close().await.unwrap();
}

/// A shard by itself, while no database has it open.
pub(crate) async fn shard(config: &Config, at: usize) -> Arc<dyn Shard> {
    let id = ShardId::new(format!("s{at}")).unwrap();
    match &config.shards[at] {
        ShardPlace::Sqlite => {
            let path = config.folder.join(id.as_str()).join("shard.db");
            Arc::new(SqliteShard::open(id, &path, env(), SqliteOptions::default()).await.unwrap())
        }
        ShardPlace::Postgres { url } => {
            Arc::new(PostgresShard::open(id, url, env(), PostgresOptions::default()).await.unwrap())
        }
    }
}

/// What a statement came to, in a form that two databases agree on.
async fn answer(client: &mut Client, sql: &str, compare: Compare) -> Result<Vec<String>, String> {
    match client.try_run(sql).await {
        Ok(mut lines) => {
            if compare == Compare::Rows {
                lines.sort();
            }
            Ok(lines)
        }
        Err(error) if compare == Compare::Rows => Err(error.sqlstate[..2].into()),
        Err(error) => Err(error.sqlstate.into()),
    }
}

/// A session on each of two databases that must answer alike.
pub(crate) struct Pair {
    pub(crate) one: Client,
    pub(crate) other: Client,
    pub(crate) generator: Generator,
}

impl Pair {
    /// Runs a statement, and goes on to the end of its transaction. Returns how many statements gave rows.
    pub(crate) async fn step(&mut self) -> usize {
        let mut rows = 0;
        loop {
            let statement = self.generator.statement();
            let one = answer(&mut self.one, &statement.sql, statement.compare).await;
            let other = answer(&mut self.other, &statement.sql, statement.compare).await;
            assert_eq!(one, other, "{}", statement.sql);
            assert_eq!(self.one.status(), self.other.status(), "{}", statement.sql);
            rows += usize::from(one.is_ok_and(|lines| lines.len() > 1));
            match self.one.status() {
                Status::Idle => return rows,
                Status::InTransaction => {}
                Status::Failed => {
                    self.generator.abandon_transaction();
                    self.one.run("ROLLBACK").await;
                    self.other.run("ROLLBACK").await;
                    return rows;
                }
            }
        }
    }
}
