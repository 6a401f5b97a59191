//! A database of two shards, and what a test asks of it.

use crate::harness::{Client, Db, env};
use isles_cluster::database::{Config, Database, ShardPlace};
use isles_cluster::migrations::{MigrationInfo, Planted, State};
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Longer than anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Which engines the shards have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shards {
    Sqlite,
    Postgres,
    Both,
}

pub(crate) struct World {
    pub(crate) db: Db,
    pub(crate) config: Config,
}

pub(crate) const BY_OWNER: &str = "ALTER TABLE notes SET (kind = 'tenant', tenant_by = 'owner')";

pub(crate) fn shard(n: usize) -> ShardId {
    ShardId::new(format!("s{n}")).unwrap()
}

impl World {
    pub(crate) async fn open(shards: Shards) -> World {
        let urls = || [(); 2].map(|()| isles_sim::pgserver::shared().create_database());
        let places = match shards {
            Shards::Sqlite => vec![ShardPlace::Sqlite, ShardPlace::Sqlite],
            Shards::Postgres | Shards::Both => {
                let urls = tokio::task::spawn_blocking(urls).await.unwrap();
                let [one, two] = urls.map(|url| ShardPlace::Postgres { url });
                if shards == Shards::Both { vec![ShardPlace::Sqlite, two] } else { vec![one, two] }
            }
        };
        let folder = tempfile::tempdir().unwrap();
        let config = Config { shards: places, ..Config::sqlite(folder.path(), 2) };
        let database = Database::open(config.clone(), env()).await.unwrap();
        World { db: Db { database, folder }, config }
    }

    pub(crate) fn database(&self) -> &Arc<Database> {
        &self.db.database
    }

    pub(crate) fn client(&self) -> Client {
        self.db.client()
    }

    pub(crate) async fn client_of(&self, tenant: &str) -> Client {
        let mut client = self.db.client();
        client.run(&format!("SET isles.tenant = '{tenant}'")).await;
        client
    }

    /// Closes the database and opens it again, with drivers that die somewhere or not.
    pub(crate) async fn reopen(self, planted: Option<Planted>) -> World {
        let World { db, config } = self;
        let config = Config { planted_migration: planted, ..config };
        World { db: db.reopen(&config).await, config }
    }

    /// Notes of some owners on both shards, in a hash table.
    pub(crate) async fn with_notes(&self, rows: usize) -> Client {
        let mut client = self.client();
        client.run("CREATE TABLE notes (id bigint PRIMARY KEY, owner text, body text)").await;
        for from in (0..rows).step_by(500) {
            let to = (from + 500).min(rows) - 1;
            let owner = "CASE n % 4 WHEN 3 THEN NULL ELSE 'tenant ' || (n % 4)::text END";
            client
                .run(&format!(
                    "INSERT INTO notes SELECT n, {owner}, 'note ' || n::text FROM generate_series({from}, {to}) AS s(n)"
                ))
                .await;
        }
        client
    }

    /// A statement of a client of its own.
    pub(crate) fn begin(&self, sql: &str) -> JoinHandle<Result<Vec<String>, SqlError>> {
        let (mut client, sql) = (self.client(), sql.to_string());
        tokio::spawn(async move { client.try_run(&sql).await })
    }

    pub(crate) async fn migration(&self) -> Option<MigrationInfo> {
        self.database().migrations().await.unwrap().pop()
    }

    /// Waits until the last migration is as it should be.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&MigrationInfo) -> bool) -> MigrationInfo {
        let deadline = std::time::Instant::now() + LIMIT;
        loop {
            let now = self.migration().await;
            match now {
                Some(info) if holds(&info) => return info,
                now => assert!(std::time::Instant::now() < deadline, "{what} does not come: {now:?}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn until_over(&self) -> State {
        let state = self.until("the end", |info| info.migration.state.is_over()).await.migration.state;
        // What is decided is in the catalog first, and then on the shards.
        self.until_nobody_drives().await;
        state
    }

    /// Waits until no driver is left: it is done, or has died.
    pub(crate) async fn until_nobody_drives(&self) {
        let deadline = std::time::Instant::now() + LIMIT;
        while self.database().migration_drivers() > 0 {
            assert!(std::time::Instant::now() < deadline, "somebody drives: {:?}", self.migration().await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What is left of a migration besides its record: tables and namespaces of ours, consumers of logs.
    pub(crate) async fn traces(&self) -> Vec<String> {
        let mut found = Vec::new();
        for n in 0..2 {
            let open = self.database().shard(&shard(n)).await.unwrap();
            let schema = open.schema().await.unwrap();
            found.extend(schema.tables.keys().filter(|name| name.starts_with("_isles")).cloned());
            found.extend(schema.namespaces.iter().filter(|name| name.starts_with("_isles")).cloned());
            let consumers = open.consumers().await.unwrap();
            found.extend(consumers.iter().map(|consumer| format!("consumer {}", consumer.stream)));
        }
        found
    }

    pub(crate) async fn schema_version(&self) -> u64 {
        self.database().shard(&shard(0)).await.unwrap().schema().await.unwrap().version.0
    }

    /// All rows of a tenant table, by tenant: each as `tenant: row`.
    pub(crate) async fn rows_by_tenant(&self, tenants: &[&str], select: &str) -> Vec<String> {
        let mut found = Vec::new();
        for tenant in tenants {
            let mut client = self.client_of(tenant).await;
            found.extend(client.run(select).await.into_iter().map(|row| format!("{tenant}: {row}")));
        }
        let mut client = self.client();
        client.run("SET isles.null_tenant = on").await;
        found.extend(client.run(select).await.into_iter().map(|row| format!("∅: {row}")));
        found
    }
}
