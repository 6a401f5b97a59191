//! I-39: what is kept in a region is nowhere else.

use crate::changes::{preset, put};
use crate::harness::{Client, Db};
use isles_cluster::database::{Config, Database, NewShard, ShardPlace};
use isles_cluster::moves::moves::{Options, Span, Units, Weigh};
use isles_cluster::moves::{Order, moves};
use isles_engine::shard::Engine;
use isles_kernel::names::{BucketId, GroupName, RegionName, ShardId};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// What is looked for wherever it should not be.
const CANARY: &str = "canary-of-apac";

/// s0 and s1 are in apac, s2 is in weur, s3 is nowhere in particular.
pub(crate) struct Regional {
    engine: Engine,
    db: Db,
    config: Config,
}

fn shard(n: usize) -> ShardId {
    ShardId::new(format!("s{n}")).unwrap()
}

fn region(name: &str) -> RegionName {
    RegionName::new(name).unwrap()
}

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

async fn new_place(engine: Engine) -> ShardPlace {
    match engine {
        Engine::Sqlite => ShardPlace::Sqlite,
        Engine::Postgres => {
            let url = tokio::task::spawn_blocking(|| isles_sim::pgserver::shared().create_database());
            ShardPlace::Postgres { url: url.await.unwrap() }
        }
    }
}

impl Regional {
    pub(crate) async fn open(engine: Engine) -> Regional {
        let folder = tempfile::tempdir().unwrap();
        let mut shards = Vec::new();
        for _ in 0..4 {
            shards.push(new_place(engine).await);
        }
        let regions = [Some("apac"), Some("apac"), Some("weur"), None].map(|name| name.map(region)).to_vec();
        let config = Config { shards, regions, ..Config::sqlite(folder.path(), 4) };
        let db = Db::open(folder, &config).await;
        Regional { engine, db, config }
    }

    fn database(&self) -> &std::sync::Arc<Database> {
        &self.db.database
    }

    /// The shards that buckets of a group are on.
    fn owners(&self, name: &str, first: u32, last: u32) -> Vec<ShardId> {
        let policy = self.database().current_routing();
        let mut owners: Vec<ShardId> =
            (first..=last).map(|n| policy.shard_of_bucket(&group(name), BucketId(n)).unwrap().clone()).collect();
        owners.sort();
        owners.dedup();
        owners
    }

    async fn move_buckets(&self, name: &str, first: u32, last: u32, to: usize) -> Result<(), String> {
        let span = Span { first: BucketId(first), last: BucketId(last) };
        let order = Order {
            source: None,
            target: shard(to),
            units: Units::buckets(group(name), [span]),
            description: None,
            options: Options { auto: true, complete: true, ..Options::default() },
        };
        let plan = self.database().plan_move(order).await.map_err(|error| error.to_string())?;
        let deadline = Instant::now() + LIMIT;
        loop {
            let now = self.database().move_plan(plan.id.as_str()).await.unwrap();
            if !now.is_active() {
                assert_eq!(now.phase, moves::Phase::Completed, "{:?}", now.error_message);
                return Ok(());
            }
            assert!(Instant::now() < deadline, "{:?}", now.phase);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Where the canary is found: shards, and the catalog.
    async fn found(&self) -> Vec<String> {
        let mut found = Vec::new();
        if is_in_files(self.db.folder.path(), &|path| is_catalog(path)) {
            found.push("catalog".into());
        }
        for (n, place) in self.config.shards.iter().enumerate() {
            let is_there = match place {
                ShardPlace::Sqlite => is_in_files(&self.db.folder.path().join(format!("s{n}")), &|_| true),
                ShardPlace::Postgres { url } => is_in_database(url).await,
            };
            if is_there {
                found.push(format!("s{n}"));
            }
        }
        found
    }
}

fn is_catalog(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("catalog"))
}

fn is_in_files(folder: &Path, wanted: &dyn Fn(&Path) -> bool) -> bool {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.is_file() && wanted(path));
    assert!(!files.is_empty(), "there is something to look at in {}", folder.display());
    let has = |bytes: Vec<u8>| bytes.windows(CANARY.len()).any(|part| part == CANARY.as_bytes());
    files.iter().any(|path| has(std::fs::read(path).unwrap()))
}

/// Every row of every table that is there, whosever it is, as text; bytes are written in hexadecimal.
async fn is_in_database(url: &str) -> bool {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let tables = "SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace \
                  WHERE relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')";
    let tables = client.query(tables, &[]).await.unwrap();
    assert!(!tables.is_empty());
    let hex: String = CANARY.bytes().map(|byte| format!("{byte:02x}")).collect();
    for table in tables {
        let table: String = table.get(0);
        let sql = format!("SELECT count(*) FROM {table} t WHERE t::text LIKE '%{CANARY}%' OR t::text LIKE '%{hex}%'");
        if client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            return true;
        }
    }
    false
}

const PEOPLE: &str = "CREATE TABLE people (id bigint PRIMARY KEY, email text, n bigint NOT NULL DEFAULT 0) \
                      WITH (\"group\" = 'people', buckets = 16, region = 'apac')";

async fn with_people(regional: &Regional) -> Client {
    let mut client = regional.db.client();
    client.run(PEOPLE).await;
    client.run("CREATE UNIQUE INDEX by_email ON people (email) WITH (global)").await;
    for n in 0..60 {
        client.run(&format!("INSERT INTO people VALUES ({n}, '{CANARY}-{n}')")).await;
    }
    client
}

/// Rows, their change log, entries of global indexes: in files and databases of no other region, nor in the catalog. Moves
/// within the region, updates and deletes change nothing of that.
pub(crate) async fn rows_of_a_region_are_nowhere_else(regional: Regional) {
    let mut client = with_people(&regional).await;
    assert_eq!(regional.owners("people", 0, 15), [shard(0), shard(1)], "spread over the region");
    assert_eq!(regional.owners("_isles_index-apac", 0, 63), [shard(0), shard(1)]);
    let by_email = format!("SELECT id FROM people WHERE email = '{CANARY}-7'");
    assert_eq!(client.run(&by_email).await, ["7"]);
    assert_eq!(client.fails(&format!("INSERT INTO people VALUES (700, '{CANARY}-7')")).await, "23505");
    let ours = regional.owners("people", 0, 0)[0].clone();
    let to = if ours == shard(0) { 1 } else { 0 };
    regional.move_buckets("people", 0, 3, to).await.unwrap();
    regional.move_buckets("_isles_index-apac", 0, 9, to).await.unwrap();
    for n in 0..60 {
        client.run(&format!("UPDATE people SET n = n + 1, email = '{CANARY}-u{n}' WHERE id = {n}")).await;
    }
    client.run("DELETE FROM people WHERE id = 59").await;
    assert_eq!(client.run(&format!("SELECT id FROM people WHERE email = '{CANARY}-u7'")).await, ["7"]);
    assert_eq!(client.run("SELECT count(*), sum(n) FROM people").await, ["59|59"]);
    let report = client.run("VERIFY INDEX by_email").await;
    assert!(!report.is_empty());
    regional.database().close().await.unwrap();
    assert_eq!(regional.found().await, ["s0", "s1"]);
}

/// A move out of the region is refused, whoever orders it, and so is one commit over shards whose redo would be kept
/// elsewhere.
pub(crate) async fn buckets_do_not_leave_their_region(regional: Regional) {
    let mut client = with_people(&regional).await;
    for (to, place) in [(2, "in region weur"), (3, "in no region")] {
        for name in ["people", "_isles_index-apac"] {
            let refused = regional.move_buckets(name, 0, 0, to).await.unwrap_err();
            assert!(refused.contains("kept in region apac") && refused.contains(place), "{refused}");
        }
    }
    let refused = client.try_run("CREATE MOVE OF BUCKETS people (0) TO s2").await;
    assert!(refused.is_err());
    client.run("CREATE TABLE notes (id bigint PRIMARY KEY, body text) WITH (\"group\" = 'notes', buckets = 16)").await;
    client.run("INSERT INTO notes SELECT generate_series(1, 40), 'x'").await;
    let several = format!("INSERT INTO people SELECT 1000 + g, '{CANARY}-more-' || g FROM generate_series(1, 40) g");
    match regional.engine {
        Engine::Sqlite => {
            assert_eq!(client.fails(&several).await, "0A000");
            client.run("BEGIN").await;
            client.run("UPDATE people SET n = 5 WHERE id = 1").await;
            client.run("UPDATE notes SET body = 'y'").await;
            assert_eq!(client.fails("COMMIT").await, "0A000");
            assert_eq!(client.run("SELECT n FROM people WHERE id = 1").await, ["0"]);
            assert_eq!(client.run("SELECT count(*) FROM notes WHERE body = 'y'").await, ["0"]);
        }
        // Each PostgreSQL database keeps its part by itself.
        Engine::Postgres => {
            client.run(&several).await;
        }
    }
    client.run("UPDATE people SET n = 9 WHERE id = 1").await;
    regional.database().close().await.unwrap();
    assert_eq!(regional.found().await, ["s0", "s1"]);
}

/// What a shard gives away goes to shards of the region, and if there is none, the drain is refused.
pub(crate) async fn a_drain_and_a_rebalance_stay_in_the_region(regional: Regional) {
    let mut client = with_people(&regional).await;
    client.run("CREATE TABLE notes (id bigint PRIMARY KEY) WITH (\"group\" = 'notes', buckets = 16)").await;
    client.run("ALTER SHARD s0 DRAIN").await;
    let deadline = Instant::now() + LIMIT;
    loop {
        let infos = regional.database().shard_infos();
        if infos[0].owned.is_nothing() {
            break;
        }
        assert!(Instant::now() < deadline, "{infos:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(regional.owners("people", 0, 15), [shard(1)]);
    assert_eq!(regional.owners("_isles_index-apac", 0, 63), [shard(1)]);
    let last = client.try_run("ALTER SHARD s1 DRAIN").await.unwrap_err();
    assert_eq!(last.sqlstate, "55000");
    assert!(last.message.contains("no shard is in region apac"), "{last}");
    assert!(last.hint.is_some());
    client.run("ALTER SHARD s0 RESUME").await;
    let proposals = regional.database().propose_moves(Weigh::Buckets).await.unwrap();
    let of_people: Vec<_> = proposals.iter().filter(|one| one.units.to_string().contains("people")).collect();
    assert!(!of_people.is_empty());
    assert!(of_people.iter().all(|one| one.source == shard(1) && one.target == shard(0)), "{of_people:?}");
    let of_notes = proposals.iter().filter(|one| one.units.to_string().contains("notes"));
    assert!(of_notes.count() > 0, "what is kept anywhere is evened out over all");
    assert_eq!(client.run("SELECT count(*) FROM people").await, ["60"]);
    // The plans of the drain are at their end before all is looked through.
    let deadline = Instant::now() + LIMIT;
    while regional.database().moves().await.unwrap().iter().any(|plan| plan.is_active()) {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    regional.database().close().await.unwrap();
    let found = regional.found().await;
    assert!(found.contains(&"s1".into()) && found.iter().all(|one| ["s0", "s1"].contains(&one.as_str())), "{found:?}");
}

pub(crate) async fn a_region_needs_a_shard(regional: Regional) {
    let mut client = regional.db.client();
    let nowhere = client.try_run("CREATE TABLE t (id int PRIMARY KEY) WITH (region = 'oc')").await.unwrap_err();
    assert_eq!((nowhere.sqlstate, nowhere.hint.is_some()), ("55000", true));
    assert!(nowhere.message.contains("no shard is in region oc"), "{nowhere}");
    client.run("CREATE TABLE anywhere (id int PRIMARY KEY) WITH (\"group\" = 'g', buckets = 8)").await;
    for (sql, state) in [
        ("CREATE TABLE t (id int PRIMARY KEY) WITH (\"group\" = 'g', region = 'apac')", "22023"),
        ("CREATE TABLE t (id int PRIMARY KEY) WITH (kind = 'tenant', region = 'apac')", "22023"),
        ("CREATE TABLE t (id int PRIMARY KEY) WITH (kind = 'reference', region = 'apac')", "22023"),
        ("CREATE TABLE t (id int PRIMARY KEY) WITH (region = 'APAC')", "22023"),
        ("CREATE TABLE t (id int PRIMARY KEY) WITH (region = 'apac 0-3', buckets = 8)", "22023"),
    ] {
        assert_eq!(client.fails(sql).await, state, "{sql}");
    }
    client.run(PEOPLE).await;
    client.run("CREATE TABLE more (id bigint PRIMARY KEY) WITH (\"group\" = 'people')").await;
    let other = "CREATE TABLE t (id bigint PRIMARY KEY) WITH (\"group\" = 'people', region = 'weur')";
    assert_eq!(client.fails(other).await, "22023");
    client.run("CREATE TABLE owned (id bigint PRIMARY KEY, owner text) WITH (\"group\" = 'people')").await;
    let adopted = client.try_run("ALTER TABLE owned SET (kind = 'tenant', tenant_by = 'owner')").await.unwrap_err();
    assert!(adopted.detail.as_deref().is_some_and(|detail| detail.contains("kept in a region")), "{adopted:?}");
    // Its buckets are everywhere, also when no table is left in the group.
    client.run("DROP TABLE anywhere").await;
    let late =
        client.try_run("CREATE TABLE t (id int PRIMARY KEY) WITH (\"group\" = 'g', buckets = 8, region = 'weur')");
    assert_eq!(late.await.unwrap_err().sqlstate, "55000");
}

/// The buckets of a placement's group: each region has its own, on its shards.
pub(crate) async fn buckets_of_one_group_are_in_several_regions(regional: Regional) {
    let mut client = regional.db.client();
    let made = "CREATE TABLE sessions (id text PRIMARY KEY, body text) \
                WITH (\"group\" = 'sessions', buckets = 20, region = 'weur 0-7, apac 8-19')";
    client.run(made).await;
    assert_eq!(regional.owners("sessions", 0, 7), [shard(2)]);
    assert_eq!(regional.owners("sessions", 8, 19), [shard(0), shard(1)]);
    let refused = client.try_run("CREATE INDEX ON sessions (body) WITH (global)").await.unwrap_err();
    assert_eq!((refused.sqlstate, refused.hint.is_some()), ("0A000", true));
    client.run("CREATE INDEX ON sessions (body)").await;
    let refused = regional.move_buckets("sessions", 8, 8, 2).await.unwrap_err();
    assert!(refused.contains("region apac"), "{refused}");
    let to = if regional.owners("sessions", 8, 8) == [shard(0)] { 1 } else { 0 };
    regional.move_buckets("sessions", 8, 8, to).await.unwrap();
    let shown = client.run("SELECT unnest(reloptions) FROM pg_class WHERE relname = 'sessions'").await;
    assert!(shown.contains(&"region=weur 0-7, apac 8-19".to_string()), "{shown:?}");
}

pub(crate) async fn a_shard_keeps_its_region(regional: Regional) {
    let mut client = regional.db.client();
    let shown = client.run("SHOW SHARDS").await;
    let regions: Vec<&str> = shown.iter().map(|row| row.rsplit('|').next().unwrap()).collect();
    assert_eq!(regions, ["apac", "apac", "weur", "∅"]);
    assert_eq!(client.fails("ALTER SHARD s0 REGION weur").await, "55000");
    client.run("ALTER SHARD s0 REGION apac").await;
    client.run("ALTER SHARD s3 REGION 'oc'").await;
    assert_eq!(client.fails("ALTER SHARD s3 REGION 'me'").await, "55000");
    assert_eq!(client.fails("ALTER SHARD s9 REGION 'me'").await, "42704");
    let Regional { db, config, .. } = regional;
    let (folder, database) = (db.folder, db.database);
    database.close().await.unwrap();
    drop((client, database));
    let elsewhere = Config { regions: vec![Some(region("me"))], ..config.clone() };
    let mut refused = None;
    for wanted in [elsewhere, Config { regions: Vec::new(), ..config }] {
        let deadline = Instant::now() + LIMIT;
        let opened = loop {
            match Database::open(wanted.clone(), crate::harness::env()).await {
                // Tasks of the last one hold the catalog until they have seen that it is closed.
                Err(error) if error.sqlstate == "58030" && Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                opened => break opened,
            }
        };
        match (refused.is_none(), opened) {
            (true, Err(error)) => refused = Some(error),
            (false, Ok(database)) => {
                let regions: Vec<_> = database.shard_infos().into_iter().map(|info| info.region).collect();
                let known = [Some("apac"), Some("apac"), Some("weur"), Some("oc")].map(|name| name.map(region));
                assert_eq!(regions, known, "they are recorded");
            }
            (_, other) => panic!("{:?}", other.err()),
        }
    }
    assert_eq!(refused.unwrap().sqlstate, "55000");
    drop(folder);
}

/// A region that comes with a new shard takes tables from then on.
pub(crate) async fn a_new_shard_serves_its_region(regional: Regional) {
    let mut client = regional.db.client();
    let (place, named) = (new_place(regional.engine).await, Some(region("oc")));
    let added = regional.database().add_shard(NewShard { name: None, place, region: named }).await.unwrap();
    client.run("CREATE TABLE t (id int PRIMARY KEY) WITH (\"group\" = 't', buckets = 4, region = 'oc')").await;
    client.run("INSERT INTO t VALUES (1), (2), (3)").await;
    assert_eq!(regional.owners("t", 0, 3), [added]);
    if regional.engine == Engine::Sqlite {
        assert_eq!(client.run("CREATE SHARD west WITH (region = 'wnam')").await, ["west"]);
        client.run("CREATE TABLE w (id int PRIMARY KEY) WITH (\"group\" = 'w', buckets = 4, region = 'wnam')").await;
        assert_eq!(regional.owners("w", 0, 3), [ShardId::new("west").unwrap()]);
    }
}

/// Where shards have regions, no placement takes effect whose buckets have no place.
pub(crate) async fn a_placement_needs_shards_in_its_regions(regional: Regional) {
    let placements = regional.database().placements();
    let refused = put(placements, "acme", &preset()).await.unwrap_err().for_people();
    assert!(refused.detail.unwrap().contains("baseRegions.enam"), "20, 40 and 40 percent of apac, enam and weur");
    let mut config = preset();
    config["baseRegions"] = json!({ "apac": 60, "weur": 40 });
    put(placements, "acme", &config).await.unwrap();
}
