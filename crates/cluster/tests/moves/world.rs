//! A database of two shards with some tables, and what a test asks of it.

use crate::harness::{Client, Db, env};
use isles_cluster::database::{Config, Database, ShardPlace, Strategy};
use isles_cluster::moves::Order;
use isles_cluster::moves::moves::{Event, Options, Phase, Plan, Span, Stage, Units};
use isles_engine::shard::{Batch, Incoming, KeyRange, RowVersion};
use isles_kernel::error::SqlError;
use isles_kernel::names::{BucketId, GroupName, RoutingVersion, Seq, ShardId, StreamId, TenantId};
use isles_kernel::schema::Unit;
use isles_kernel::value::Value;
use std::sync::Arc;
use std::time::Duration;

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

/// Which engines a move is between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pair {
    Sqlite,
    Postgres,
    SqliteToPostgres,
}

pub(crate) struct World {
    pub(crate) pair: Pair,
    pub(crate) db: Db,
    pub(crate) config: Config,
}

pub(crate) const SCHEMA: [&str; 4] = [
    "CREATE TABLE notes (id bigint PRIMARY KEY, body text, n bigint NOT NULL DEFAULT 0, slug text UNIQUE) \
     WITH (kind = 'tenant')",
    "CREATE TABLE tags (note bigint REFERENCES notes (id) ON DELETE CASCADE, tag text, PRIMARY KEY (note, tag)) \
     WITH (kind = 'tenant')",
    "CREATE TABLE users (id bigint PRIMARY KEY, name text, n bigint NOT NULL DEFAULT 0) \
     WITH (kind = 'hash', \"group\" = 'users', buckets = 16)",
    "CREATE TABLE plans (id int PRIMARY KEY, name text) WITH (kind = 'reference')",
];

pub(crate) fn shard(n: usize) -> ShardId {
    ShardId::new(format!("s{n}")).unwrap()
}

pub(crate) fn tenant(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

pub(crate) fn tenants(names: &[&str]) -> Units {
    Units::tenants(names.iter().map(|name| tenant(name)))
}

pub(crate) fn buckets(group: &str, first: u32, last: u32) -> Units {
    let span = Span { first: BucketId(first), last: BucketId(last) };
    Units::buckets(GroupName::new(group).unwrap(), [span])
}

/// A plan that goes by itself.
pub(crate) fn by_itself() -> Options {
    Options { auto: true, pause_limit_ms: 10_000, ..Options::default() }
}

impl World {
    pub(crate) async fn open(pair: Pair) -> World {
        World::open_as(pair, Strategy::Row).await
    }

    pub(crate) async fn open_as(pair: Pair, strategy: Strategy) -> World {
        let urls = || [(); 2].map(|()| isles_sim::pgserver::shared().create_database());
        let urls = tokio::task::spawn_blocking(urls).await.unwrap();
        let [one, two] = urls.map(|url| ShardPlace::Postgres { url });
        let places = match pair {
            Pair::Sqlite => vec![ShardPlace::Sqlite, ShardPlace::Sqlite],
            Pair::Postgres => vec![one, two],
            Pair::SqliteToPostgres => vec![ShardPlace::Sqlite, two],
        };
        let folder = tempfile::tempdir().unwrap();
        let config = Config { shards: places, strategy: Some(strategy), ..Config::sqlite(folder.path(), 2) };
        let database = Database::open(config.clone(), env()).await.unwrap();
        let world = World { pair, db: Db { database, folder }, config };
        let mut client = world.db.client();
        for sql in SCHEMA {
            client.run(sql).await;
        }
        world
    }

    pub(crate) fn database(&self) -> &Arc<Database> {
        &self.db.database
    }

    /// A name that is routed to a shard.
    pub(crate) async fn tenant_on(&self, shard: usize, prefix: &str) -> String {
        for n in 0..1_000 {
            let name = format!("{prefix}{n}");
            if self.shard_of(&name).await == format!("s{shard}") {
                return name;
            }
        }
        panic!("no name is routed to s{shard}");
    }

    /// Where a tenant's statements go.
    pub(crate) async fn shard_of(&self, name: &str) -> String {
        self.database().current_routing().shard_of_tenant(&tenant(name)).to_string()
    }

    pub(crate) fn version(&self) -> u64 {
        self.database().current_routing().version().0
    }

    pub(crate) fn bucket_of(&self, name: &str) -> BucketId {
        self.database().current_routing().bucket_of_tenant(&tenant(name))
    }

    pub(crate) async fn client_of(&self, name: &str) -> Client {
        let mut client = self.db.client();
        client.run(&format!("SET isles.tenant = '{name}'")).await;
        client
    }

    /// A tenant on the first shard with some rows.
    pub(crate) async fn tenant_with_rows(&self, prefix: &str, rows: usize) -> String {
        let name = self.tenant_on(0, prefix).await;
        let mut client = self.client_of(&name).await;
        for n in 0..rows {
            client.run(&format!("INSERT INTO notes (id, body, slug) VALUES ({n}, 'of {name}', 'slug {n}')")).await;
            client.run(&format!("INSERT INTO tags VALUES ({n}, 'a'), ({n}, 'b')")).await;
        }
        name
    }

    pub(crate) fn order(&self, units: Units, options: Options) -> Order {
        Order { source: None, target: shard(1), units, description: None, options }
    }

    pub(crate) async fn plan(&self, units: Units, options: Options) -> Result<Plan, SqlError> {
        self.database().plan_move(self.order(units, options)).await
    }

    pub(crate) async fn command(&self, plan: &Plan, event: Event) -> Result<Plan, SqlError> {
        self.database().command_move(plan.id.as_str(), event).await
    }

    /// Waits until a plan is as it should be.
    pub(crate) async fn until(&self, plan: &Plan, what: &str, holds: impl Fn(&Plan) -> bool) -> Plan {
        let deadline = std::time::Instant::now() + LIMIT;
        loop {
            let now = self.database().move_plan(plan.id.as_str()).await.unwrap();
            if holds(&now) {
                return now;
            }
            assert!(std::time::Instant::now() < deadline, "{what} does not come: {now:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn until_stage(&self, plan: &Plan, stage: Stage) -> Plan {
        self.until(plan, &format!("{stage:?}"), |plan| plan.stage == stage).await
    }

    /// A plan whose changes are mirrored, and nothing copied yet.
    pub(crate) async fn captured(&self, units: Units, options: Options) -> Plan {
        let plan = self.plan(units, options).await.unwrap();
        self.command(&plan, Event::StartDualWrite).await.unwrap();
        self.until_stage(&plan, Stage::Capturing).await
    }

    /// A plan that has been copied and is mirrored.
    pub(crate) async fn copied(&self, units: Units, options: Options) -> Plan {
        let plan = self.captured(units, options).await;
        self.command(&plan, Event::RunBackfill).await.unwrap();
        self.until_stage(&plan, Stage::Ready).await
    }

    /// Lets a plan go on by itself to its end, which is a good one.
    pub(crate) async fn end(&self, plan: &Plan) -> Plan {
        self.database().run_move(plan.id.as_str(), true).await.unwrap();
        let done = self.until_stage(plan, Stage::Done).await;
        assert_eq!(done.phase, Phase::Completed, "{done:?}");
        done
    }

    /// Moves, up to where the target serves and a rollback is possible.
    pub(crate) async fn move_to(&self, target: usize, units: Units) -> Plan {
        let order = Order { target: shard(target), ..self.order(units, by_itself()) };
        let plan = self.database().plan_move(order).await.unwrap();
        self.until(&plan, "the cutover", |plan| plan.stage == Stage::Guarding || !plan.is_active()).await
    }

    /// Moves, and removes the source's rows.
    pub(crate) async fn move_wholly(&self, target: usize, units: Units) -> Plan {
        let order = Order { target: shard(target), ..self.order(units, Options { complete: true, ..by_itself() }) };
        let plan = self.database().plan_move(order).await.unwrap();
        let done = self.until_stage(&plan, Stage::Done).await;
        assert_eq!(done.phase, Phase::Completed, "{done:?}");
        done
    }

    /// What a tenant has.
    pub(crate) async fn rows_of(&self, name: &str) -> Vec<String> {
        let mut client = self.client_of(name).await;
        let mut rows = client.run("SELECT id, body, n, slug FROM notes ORDER BY id").await;
        rows.extend(client.run("SELECT note, tag FROM tags ORDER BY note, tag").await);
        rows
    }

    /// Rows that a shard has of a table, whoever they belong to.
    pub(crate) async fn stored_on(&self, n: usize, table: &str) -> usize {
        let mut snapshot = self.database().shard(&shard(n)).await.unwrap().snapshot().await.unwrap();
        let (mut range, mut rows) = (KeyRange::table(table), 0);
        loop {
            let page = snapshot.page(&range, 1_000).await.unwrap();
            rows += page.rows.len();
            match page.next {
                Some(next) => range.after = Some(next),
                None => return rows,
            }
        }
    }

    pub(crate) async fn consumers_on(&self, n: usize) -> usize {
        self.database().shard(&shard(n)).await.unwrap().consumers().await.unwrap().len()
    }

    /// Takes a note of a tenant away behind everyone's back.
    pub(crate) async fn damage(&self, n: usize, name: &str, id: i64) {
        self.damage_as(n, name, id, RowVersion { epoch: RoutingVersion(1), seq: Seq(1) }).await;
        let stream = StreamId::new("damage").unwrap();
        self.database().shard(&shard(n)).await.unwrap().forget_stream(&stream, None).await.unwrap();
    }

    /// The same; it is known to be as new as this.
    pub(crate) async fn damage_as(&self, n: usize, name: &str, id: i64, version: RowVersion) {
        let unit = Unit::Tenant(Some(tenant(name)));
        let key = vec![Value::text(name), Value::Int(id)];
        let gone = Incoming { table: "notes".into(), unit, key, version, row: None };
        let stream = StreamId::new("damage").unwrap();
        let shard = self.database().shard(&shard(n)).await.unwrap();
        let applied = shard.apply(Batch::new(&stream, vec![gone])).await.unwrap();
        assert_eq!(applied.deleted, 1, "nothing was damaged");
    }

    /// Closes the database and opens it again, as a restart does.
    pub(crate) async fn restart(self) -> World {
        self.reopen_with(|_| {}).await
    }

    pub(crate) async fn reopen_with(self, change: impl FnOnce(&mut Config)) -> World {
        self.reopen_after(async |config| change(config)).await
    }

    /// Closes the database, does something to it, and opens it again.
    pub(crate) async fn reopen_after(self, change: impl AsyncFnOnce(&mut Config)) -> World {
        let World { pair, db, mut config } = self;
        db.database.close().await.unwrap();
        let Db { database, folder } = db;
        drop(database);
        change(&mut config).await;
        let database = Database::open(config.clone(), env()).await.unwrap();
        World { pair, db: Db { database, folder }, config }
    }
}
