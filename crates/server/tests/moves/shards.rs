//! `isles shards`, and shards over HTTP.

use crate::harness::{Server, Setup};
use crate::world::{POSTGRES, SQLITE, Said, World, id_of};
use isles_sim::pgserver::{PgOptions, PgServer};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

impl World {
    /// `isles shards …`
    fn shards(&self, arguments: &[&str]) -> Said {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isles"));
        let output =
            command.arg("shards").args(arguments).args(["--json", "--url", self.server.url()]).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    fn must_shards(&self, arguments: &[&str]) -> Value {
        let said = tokio::task::block_in_place(|| self.shards(arguments));
        assert_eq!(said.code, 0, "{arguments:?}: {}{}", said.out, said.err);
        said.json()
    }

    fn names(&self) -> Vec<String> {
        let list = self.must_shards(&["list"]);
        let name = |shard: &Value| shard["shard"].as_str().unwrap().to_owned();
        list["shards"].as_array().unwrap().iter().map(name).collect()
    }
}

async fn new_database() -> String {
    tokio::task::spawn_blocking(|| isles_sim::pgserver::shared().create_database()).await.unwrap()
}

/// A server over SQLite files, or over PostgreSQL databases, gets PostgreSQL databases as shards, moves a tenant there,
/// gives away what a shard has, and loses that shard.
async fn grows(setup: Setup) {
    let world = World::start(setup).await;
    let before = world.names();
    world.admin.batch_execute("INSERT INTO users SELECT n, 'u' FROM generate_series(1, 500) n").await.unwrap();
    world.admin.batch_execute("INSERT INTO plans VALUES (1), (2)").await.unwrap();
    let tenant = world.tenant_on("s1", "acme", 100).await;
    let rows = world.rows_of(&tenant).await;
    let added = world.must_shards(&["add", "east", "--postgres", &new_database().await]);
    assert_eq!(added, json!({"shard": "east"}));
    assert_eq!(world.names(), [&before[..], &["east".to_owned()]].concat());
    let proposals = world.must_shards(&["rebalance", "--by", "buckets"]);
    assert!(proposals["proposals"].as_array().unwrap().iter().all(|one| one["target"] == "east"), "{proposals}");
    let drained = world.must_shards(&["drain", "s1", "--to", "east", "--remove"]);
    assert_eq!(drained, json!({"shard": "s1", "drained": true, "removed": true}));
    assert_eq!((world.shard_of(&tenant).await.as_str(), world.rows_of(&tenant).await), ("east", rows));
    assert!(!world.names().contains(&"s1".to_owned()));
    let count: i64 = world.admin.query_one("SELECT count(*) FROM users", &[]).await.unwrap().get(0);
    assert_eq!(count, 500);
    for (arguments, code) in [
        (vec!["remove", "s0"], "55000"),
        (vec!["remove", "nothing"], "42704"),
        (vec!["add", "s1"], "42710"),
        (vec!["drain", "east", "--to", "east"], "22023"),
        (vec!["add", "--postgres", "postgres://nobody@127.0.0.1:1/none"], "08006"),
    ] {
        let said = tokio::task::block_in_place(|| world.shards(&arguments));
        assert_eq!(said.refused().1, code, "{arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_over_files_grows_to_postgresql() {
    grows(SQLITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_over_postgresql_grows() {
    grows(POSTGRES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_over_http() {
    let world = World::start(SQLITE).await;
    tokio::task::block_in_place(|| {
        let (status, added) = world.post("/admin/shards", &json!({}));
        assert_eq!((status, &added["data"]["shard"]), (201, &json!("s3")), "{added}");
        assert_eq!(world.refused("/admin/shards", &json!({"name": "s3"})), (409, "42710".into()));
        assert_eq!(world.refused("/admin/shards", &json!({"path": "x"})), (400, "22023".into()));
        let (_, proposals) = world.get("/admin/shards/rebalance?by=buckets");
        assert_eq!(proposals["data"][0]["target"], json!("s3"), "{proposals}");
        assert_eq!(world.get("/admin/shards/rebalance?by=hope").0, 400);
        let (status, _) = world.post("/admin/shards/s3/drain", &json!({"to": ["s1"]}));
        assert_eq!(status, 202);
        let (_, list) = world.get("/admin/shards");
        assert_eq!(
            list["data"][3],
            json!({"shard": "s3", "engine": "sqlite", "draining": true, "buckets": 0, "pinnedTenants": 0})
        );
        assert_eq!(world.post("/admin/shards/s3/resume", &json!({})).0, 200);
        assert_eq!(world.verb("DELETE", "/admin/shards/s3"), 200);
        assert_eq!(world.verb("DELETE", "/admin/shards/s3"), 404);
        assert_eq!(world.verb("DELETE", "/admin/shards/s1"), 409, "it serves buckets");
        let (status, _) = world.request("POST", "/admin/shards", None, "{}");
        assert_eq!(status, 401);
    });
}

/// A server that is started again without a word about shards opens those that there are.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_needs_no_word_about_shards() {
    let world = World::start(SQLITE).await;
    world.must_shards(&["add"]);
    let World { server, admin } = world;
    drop(admin);
    let folder = server.stop().await;
    let said = Command::new(env!("CARGO_BIN_EXE_isles"))
        .args(["serve", "--check-config", "--data"])
        .arg(folder.path())
        .output();
    assert!(said.unwrap().status.success());
    let server = Server::again(folder).await;
    let world = World { admin: crate::harness::connect(server.url()).await, server };
    assert_eq!(world.names(), ["s0", "s1", "s2", "s3"]);
}

/// A drain that waits for a plan at rest says so and ends; it goes on when that plan is done.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_tells_which_plan_it_waits_for() {
    let world = World::start(SQLITE).await;
    let tenant = world.tenant_on("s1", "acme", 5).await;
    let plan = tokio::task::block_in_place(|| world.must(&["plan", "--tenant", &tenant, "--to", "s0"]));
    let id = id_of(&plan);
    let said = tokio::task::block_in_place(|| world.shards(&["drain", "s1"]));
    assert_eq!(said.refused(), (1, "at_rest".into()), "{}", said.err);
    assert!(said.err.contains(&id), "{}", said.err);
    tokio::task::block_in_place(|| world.must(&["rollback", &id]));
    assert_eq!(world.must_shards(&["drain", "s1"])["drained"], json!(true));
    assert_ne!(world.shard_of(&tenant).await, "s1");
    assert_eq!(world.rows_of(&tenant).await.len(), 5);
}

/// Shards are uneven, and the command evens them out: buckets, and tenants whose names look like several.
#[tokio::test(flavor = "multi_thread")]
async fn rebalance_runs_as_a_command() {
    let world = World::start(SQLITE).await;
    world.must_shards(&["drain", "s1", "--to", "s0"]);
    world.must_shards(&["resume", "s1"]);
    let said = tokio::task::block_in_place(|| world.shards(&["rebalance", "--by", "buckets", "--run"]));
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert_eq!(world.must_shards(&["rebalance", "--by", "buckets"]), json!({"proposals": []}));
    for name in ["a, b", "it's, c"] {
        let quoted = name.replace('\'', "''");
        world.admin.batch_execute(&format!("CREATE TENANT \"{name}\"")).await.unwrap();
        let client = world.client_of(&quoted).await;
        client.batch_execute("INSERT INTO notes SELECT n FROM generate_series(1, 300) n").await.unwrap();
        if world.shard_of(&format!("\"{name}\"")).await != "s2" {
            tokio::task::block_in_place(|| world.must(&["run", "--tenant", name, "--to", "s2", "--complete"]));
        }
    }
    let said = tokio::task::block_in_place(|| world.shards(&["rebalance", "--run"]));
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert!(
        said.out.contains("\"a, b\"") || said.out.contains("\"it's, c\""),
        "no such tenant was moved: {}",
        said.out
    );
}

/// Whoever waits for a plan is told why it does not go on, and that it does again.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_waits_for_its_target_says_so() {
    let world = World::start(SQLITE).await;
    let away = tokio::task::spawn_blocking(|| PgServer::start(PgOptions { fsync: false, ..PgOptions::default() }));
    let away = away.await.unwrap();
    let url = tokio::task::block_in_place(|| away.create_database());
    world.must_shards(&["add", "east", "--postgres", &url]);
    let tenant = world.tenant_on("s0", "acme", 5).await;
    let plan = tokio::task::block_in_place(|| world.must(&["plan", "--tenant", &tenant, "--to", "east"]));
    let id = id_of(&plan);
    tokio::task::block_in_place(|| {
        away.stop_immediate();
        let mut following = Command::new(env!("CARGO_BIN_EXE_isles"))
            .args(["move", "start", &id, "--json", "--url", world.server.url()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = BufReader::new(following.stderr.take().unwrap()).lines();
        let waits: Value = serde_json::from_str(&told.next().unwrap().unwrap()).unwrap();
        assert_eq!(waits["plan"], json!(id));
        assert!(waits["waits"].as_str().is_some_and(|why| why.contains("could not connect")), "{waits}");
        away.restart();
        let rest: Vec<String> = told.map(Result::unwrap).collect();
        let done = following.wait_with_output().unwrap();
        assert!(done.status.success(), "{rest:?}");
        let done: Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!(done["stage"], "capturing", "{done}");
    });
}
