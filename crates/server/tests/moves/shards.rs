//! `isles shards`, and shards over HTTP.

use crate::harness::{Server, Setup};
use crate::world::{POSTGRES, SQLITE, Said, World};
use serde_json::{Value, json};
use std::process::Command;

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
