//! The same over PostgreSQL shards, and commits over several of them whose coordinator or server dies.

use crate::harness::{Db, env};
use isles_cluster::commit::Planted;
use isles_cluster::database::{Config, Database};
use isles_sim::pgserver::{PgOptions, PgServer};

pub(crate) fn server() -> PgServer {
    PgServer::start(PgOptions { fsync: false, settings: vec!["max_prepared_transactions=20".into()] })
}

pub(crate) fn urls(server: &PgServer, count: usize) -> Vec<String> {
    (0..count).map(|_| server.create_database()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_and_transactions_over_postgresql_shards() {
    let server = server();
    let db = Db::postgres(urls(&server, 2)).await;
    let mut client = db.client();
    assert_eq!(client.run("SHOW default_transaction_isolation").await, vec!["read committed"]);
    client.run("CREATE TABLE t (id int PRIMARY KEY, v text)").await;
    assert_eq!(client.run("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')").await, vec!["INSERT 0 4"]);
    assert_eq!(client.run("SELECT id, v FROM t ORDER BY id").await, vec!["1|a", "2|b", "3|c", "4|d"]);
    assert_eq!(client.run("SELECT v FROM t WHERE id = 3").await, vec!["c"]);
    client.run("BEGIN").await;
    assert_eq!(client.run("UPDATE t SET v = upper(v)").await, vec!["UPDATE 4"]);
    client.run("ROLLBACK").await;
    assert_eq!(client.run("SELECT count(*) FROM t WHERE v = 'a'").await, vec!["1"]);
    client.run("BEGIN").await;
    client.run("UPDATE t SET v = upper(v)").await;
    client.run("COMMIT").await;
    assert_eq!(client.run("SELECT v FROM t ORDER BY id").await, vec!["A", "B", "C", "D"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_prepared_transactions_nothing_is_written_to_several_shards() {
    let server = PgServer::start(PgOptions { fsync: false, settings: vec!["max_prepared_transactions=0".into()] });
    let db = Db::postgres(urls(&server, 2)).await;
    let mut client = db.client();
    let refused = client.try_run("CREATE TABLE t (id int PRIMARY KEY)").await.unwrap_err();
    assert_eq!(refused.sqlstate, "0A000");
    assert!(refused.hint.is_some_and(|hint| hint.contains("max_prepared_transactions")));
    assert_eq!(client.fails("SELECT count(*) FROM t").await, "42P01");
}

/// Makes a table, and then dies at a point of a commit of rows over all shards.
async fn die_during_a_commit(config: &Config, planted: Planted) {
    let open = async |config: Config| {
        let database = Database::open(config, env()).await.unwrap();
        Db { database, folder: tempfile::tempdir().unwrap() }
    };
    let db = open(config.clone()).await;
    db.client().run("CREATE TABLE t (id int PRIMARY KEY)").await;
    db.database.close().await.unwrap();
    drop(db);
    let db = open(Config { planted: Some(planted), ..config.clone() }).await;
    assert_eq!(db.client().fails("INSERT INTO t VALUES (1), (2), (3), (4), (5), (6)").await, "08007");
}

/// I-20: what was not decided is rolled back, and what was decided is committed, after the coordinator has died and the
/// server was killed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn prepared_transactions_follow_the_decision_after_a_death() {
    for (planted, expected) in [(Planted::DieAfterPledge, "0"), (Planted::DieAfterDecision, "6")] {
        let server = server();
        let folder = tempfile::tempdir().unwrap();
        let config = Config::postgres(folder.path(), urls(&server, 3));
        die_during_a_commit(&config, planted).await;
        server.kill9();
        server.restart();
        let database = Database::open(config, env()).await.unwrap();
        let db = Db { database, folder };
        assert_eq!(db.client().run("SELECT count(*) FROM t").await, vec![expected], "{planted:?}");
    }
}

/// I-20: a prepared transaction that was decided on and that somebody has rolled back on its server is told, and nobody
/// is served as if nothing had happened.
#[tokio::test(flavor = "multi_thread")]
async fn a_vanished_part_of_a_decided_transaction_is_told() {
    let server = server();
    let folder = tempfile::tempdir().unwrap();
    let urls = urls(&server, 2);
    let config = Config::postgres(folder.path(), urls.clone());
    die_during_a_commit(&config, Planted::DieAfterDecision).await;
    let name = urls[1].rsplit('/').next().unwrap();
    let (client, connection) = tokio_postgres::connect(&urls[1], tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let rows = client.query("SELECT gid FROM pg_prepared_xacts WHERE database = $1", &[&name]).await.unwrap();
    let gid: String = rows.first().expect("it is prepared").get(0);
    client.batch_execute(&format!("ROLLBACK PREPARED '{gid}'")).await.unwrap();
    let Err(error) = Database::open(config, env()).await else { panic!("half a transaction is served") };
    assert!(error.message.contains("decided"), "{error}");
}
