//! What a move asks of a PostgreSQL shard besides its rows: streams, as far as they can be seen in the database alone, and
//! connections for those who will come.

use isles_engine::env::{Env, TokioEnv};
use isles_engine::error::ShardError;
use isles_engine::postgres::{PostgresOptions, PostgresShard};
use isles_engine::shard::{Batch, Clients, DriverToken, Incoming, RowVersion, Shard};
use isles_kernel::names::{RoutingVersion, SchemaVersion, Seq, ShardId, StreamId, TenantId};
use isles_kernel::schema::{Column, SchemaChange, Table, TableKind, Unit};
use isles_kernel::value::{DataType, Value};
use isles_sim::pgserver;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls};

fn stream(name: &str) -> StreamId {
    StreamId::new(name).expect("valid")
}

async fn open(url: &str) -> PostgresShard {
    let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
    let id = ShardId::new("s1").expect("valid");
    PostgresShard::open(id, url, env, PostgresOptions::default()).await.expect("the shard opens")
}

fn notes() -> Table {
    Table {
        name: "notes".into(),
        kind: TableKind::Tenant,
        columns: vec![Column::new("id", DataType::Int8).not_null(), Column::new("body", DataType::Text)],
        primary_key: vec!["id".into()],
        keys: vec![],
        foreign_keys: vec![],
        checks: vec![],
        primary_key_name: None,
        hidden_key: false,
    }
}

async fn new_shard() -> (PostgresShard, String) {
    let url = pgserver::shared().create_database();
    let shard = open(&url).await;
    shard.apply_schema(SchemaVersion(0), vec![SchemaChange::CreateTable(notes())]).await.expect("the schema applies");
    (shard, url)
}

/// A connection beside the shard's own.
async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it connects");
    tokio::spawn(connection);
    client
}

/// The news that a note is gone.
fn gone(id: i64) -> Incoming {
    let tenant = TenantId::new("a").expect("valid");
    Incoming {
        table: "notes".into(),
        key: vec![Value::text("a"), Value::Int(id)],
        unit: Unit::Tenant(Some(tenant)),
        version: RowVersion { epoch: RoutingVersion(1), seq: Seq(5) },
        row: None,
    }
}

/// I-13: streams of a shard of format 4 are there, nobody drives them, and they can be opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_an_older_shard_can_be_driven() {
    let (shard, url) = new_shard().await;
    shard.apply(Batch { position: Some(Seq(7)), ..Batch::new(&stream("move"), vec![]) }).await.expect("it applies");
    let old = "ALTER TABLE _isles.stream DROP COLUMN driver; UPDATE _isles.meta SET format = 4";
    client(&url).await.batch_execute(old).await.expect("as format 4 was");
    for token in [1, 2] {
        let shard = open(&url).await;
        let driven = |token| Batch { driver: Some(DriverToken(token)), ..Batch::new(&stream("move"), vec![]) };
        assert_eq!(shard.apply(driven(token)).await, Err(ShardError::Superseded));
        let state = shard.open_stream(&stream("move"), DriverToken(token)).await.expect("it opens");
        assert_eq!(state.position, Seq(7));
        shard.apply(driven(token)).await.expect("it applies");
    }
}

/// I-13: versions go in several transactions and the stream's own record last, so a process that dies in the midst
/// leaves a stream that can be forgotten again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_stream_is_forgotten_in_chunks() {
    let (shard, url) = new_shard().await;
    shard.apply(Batch::new(&stream("move"), (0..9_000).map(gone).collect())).await.expect("it applies");
    let mut other = client(&url).await;
    let held = other.transaction().await.expect("it begins");
    let last = "SELECT 1 FROM _isles.row_version WHERE ctid = (SELECT max(ctid) FROM _isles.row_version) FOR UPDATE";
    held.execute(last, &[]).await.expect("one version is held");
    let shard = Arc::new(shard);
    let forgetting = tokio::spawn({
        let shard = shard.clone();
        async move { shard.forget_stream(&stream("move"), None).await }
    });
    let observer = client(&url).await;
    let left = "SELECT (SELECT count(*) FROM _isles.row_version), (SELECT count(*) FROM _isles.stream)";
    let began = Instant::now();
    loop {
        let row = observer.query_one(left, &[]).await.expect("counts");
        let (versions, streams) = (row.get::<_, i64>(0), row.get::<_, i64>(1));
        assert_eq!(streams, 1, "the record goes last");
        if versions <= 2_000 {
            assert!(versions > 0);
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{versions} versions are left");
    }
    held.rollback().await.expect("it is let go");
    forgetting.await.expect("it ends").expect("forgotten");
    let row = observer.query_one(left, &[]).await.expect("counts");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (0, 0));
}

/// Whoever comes finds a connection with the statements prepared, and there are never more than there may be.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_are_expected_find_connections() {
    let (shard, _) = new_shard().await;
    let most = PostgresOptions::default().connections;
    let text: Arc<str> = "SELECT 41 + 1".into();
    let wrong: Arc<str> = "SELECT FROM a_table_that_is_not_here".into();
    let own = shard.clients().count;
    for (count, there) in [(3, own.max(3)), (2, own.max(3)), (1_000, most)] {
        shard.expect_clients(&Clients { count, texts: [text.clone(), wrong.clone()].into() }).await;
        assert_eq!(shard.clients().count, there, "with {count} expected");
    }
    let texts = shard.clients().texts;
    assert!(texts.contains(&text) && !texts.contains(&wrong), "{texts:?}");
}
