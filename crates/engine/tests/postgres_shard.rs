//! What is special to a shard that is a PostgreSQL database, against a real server.

#[path = "harness/proxy.rs"]
mod proxy;

use isles_engine::env::{Env, TokioEnv};
use isles_engine::error::ShardError;
use isles_engine::fence::{Access, Claim, Claimed, Fence, FenceMode, FenceScope, FenceTable};
use isles_engine::postgres::{PostgresOptions, PostgresShard};
use isles_engine::shard::{
    ActsFor, Batch, BatchKind, Begin, ImportMode, Incoming, Isolation, KeyRange, Limits, Request, RowVersion, Scope,
    Shard, Statement, StoredRow,
};
use isles_kernel::change::{Change, Op};
use isles_kernel::names::{BucketId, GroupName, RoutingVersion, SchemaVersion, Seq, ShardId, StreamId, TenantId};
use isles_kernel::schema::{
    Column, Deferral, ForeignKey, Key, Object, ObjectKind, OnChange, SchemaChange, Table, TableKind, Unit,
};
use isles_kernel::value::{DataType, Numeric, Value};
use isles_sim::pgserver::{self, PgOptions, PgServer};
use proxy::Proxy;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn env() -> Arc<dyn Env> {
    Arc::new(TokioEnv::current())
}

fn group() -> GroupName {
    GroupName::new("g").expect("valid")
}

fn stream(name: &str) -> StreamId {
    StreamId::new(name).expect("valid")
}

async fn open_at(url: &str, options: PostgresOptions) -> PostgresShard {
    try_open(url, options).await.expect("the shard opens")
}

async fn try_open(url: &str, options: PostgresOptions) -> Result<PostgresShard, ShardError> {
    PostgresShard::open(ShardId::new("s1").expect("valid"), url, env(), options).await
}

/// A shard of its own, with tables `items` (by hash) and `notes` (by tenant), open to version 1.
async fn new_shard() -> (PostgresShard, String) {
    let url = pgserver::shared().create_database();
    let shard = open_at(&url, PostgresOptions::default()).await;
    prepare(&shard).await;
    (shard, url)
}

async fn prepare(shard: &PostgresShard) {
    let changes = vec![SchemaChange::CreateTable(items()), SchemaChange::CreateTable(notes())];
    shard.apply_schema(SchemaVersion(0), changes).await.expect("the schema applies");
    shard
        .set_fences(vec![buckets(1, FenceMode::Open), shared(1)], Duration::from_secs(5))
        .await
        .expect("fences are set");
}

fn items() -> Table {
    Table {
        name: "items".into(),
        kind: TableKind::Hash { group: group(), shard_by: vec!["id".into()], buckets: 8, regions: vec![] },
        columns: vec![Column::new("id", DataType::Int8).not_null(), Column::new("body", DataType::Text)],
        primary_key: vec!["id".into()],
        keys: vec![],
        foreign_keys: vec![],
        checks: vec![],
        primary_key_name: None,
        hidden_key: false,
    }
}

fn notes() -> Table {
    Table {
        name: "notes".into(),
        kind: TableKind::Tenant,
        columns: vec![
            Column::new("id", DataType::Int8).not_null(),
            Column::new("parent", DataType::Int8),
            Column::new("body", DataType::Text),
        ],
        primary_key: vec!["id".into()],
        keys: vec![Key::unique("notes_body", &["body"])],
        foreign_keys: vec![ForeignKey {
            name: "notes_parent".into(),
            columns: vec!["parent".into()],
            table: "notes".into(),
            references: vec!["id".into()],
            on_delete: OnChange::Cascade,
            on_update: OnChange::NoAction,
            deferral: Deferral::None,
        }],
        checks: vec![],
        primary_key_name: None,
        hidden_key: false,
    }
}

fn buckets(version: u64, mode: FenceMode) -> Fence {
    let scope = FenceScope::Buckets { group: group(), first: BucketId(0), last: BucketId(7) };
    Fence { scope, version: RoutingVersion(version), mode }
}

fn shared(version: u64) -> Fence {
    Fence { scope: FenceScope::Shared, version: RoutingVersion(version), mode: FenceMode::Open }
}

fn claim(version: u64, bucket: u32) -> Claim {
    Claim::new(RoutingVersion(version), vec![Claimed::Bucket(group(), BucketId(bucket))])
}

fn sql(text: &str, params: Vec<Value>) -> Statement {
    Statement::new(text, params)
}

fn insert_item(id: i64) -> Statement {
    sql(
        "INSERT INTO items (_bucket, id, body) VALUES ($1, $2, 'x')",
        vec![Value::Int(id.rem_euclid(8)), Value::Int(id)],
    )
}

fn item_write(id: i64) -> Request {
    Request::write(claim(1, id.rem_euclid(8) as u32), vec![insert_item(id)])
}

fn select(text: &str, columns: &[DataType]) -> Statement {
    sql(text, vec![]).returning(columns.to_vec())
}

async fn one_int(shard: &PostgresShard, text: &str) -> i64 {
    let request = Request::read(claim(9, 0), select(text, &[DataType::Int8]));
    let outcomes = shard.execute(request).await.expect("the query runs");
    match outcomes[0].rows[0][0] {
        Value::Int(n) => n,
        ref other => panic!("not an integer: {other:?}"),
    }
}

async fn run(shard: &PostgresShard, text: &str) -> u64 {
    let request = Request::write(claim(9, 0), vec![sql(text, vec![])]);
    shard.execute(request).await.unwrap_or_else(|error| panic!("{text}: {error}"))[0].affected
}

/// As [`run`], on behalf of a tenant.
async fn run_as(shard: &PostgresShard, tenant: Option<&str>, text: &str) -> u64 {
    let tenant = tenant.map(|name| TenantId::new(name).expect("valid"));
    let request = Request::write(claim(9, 0), vec![sql(text, vec![])]).acting_for(ActsFor::Tenant(tenant));
    shard.execute(request).await.unwrap_or_else(|error| panic!("{text}: {error}"))[0].affected
}

/// All changes after `after`, read in pages until there are `until` of them.
async fn read_log(shard: &PostgresShard, after: Seq, limit: usize, until: usize) -> Vec<Change> {
    let (mut at, mut all) = (after, Vec::new());
    let began = Instant::now();
    while all.len() < until {
        let page = shard.changes(at, limit).await.expect("the log can be read");
        assert!(page.through >= at, "positions never fall");
        at = page.through;
        if page.changes.is_empty() {
            assert!(began.elapsed() < Duration::from_secs(30), "the log stays incomplete: {} of {until}", all.len());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        all.extend(page.changes);
    }
    all
}

async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("it connects");
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_writes_and_reads() {
    let (shard, _) = new_shard().await;
    let outcome = shard.execute(item_write(1)).await.expect("the write runs");
    assert_eq!(outcome[0].affected, 1);
    let read = Request::read(claim(1, 1), select("SELECT id, body FROM items", &[DataType::Int8, DataType::Text]));
    let outcome = shard.execute(read).await.expect("the read runs");
    assert_eq!(outcome[0].rows, vec![vec![Value::Int(1), Value::text("x")]]);
    assert_eq!(outcome[0].affected, 0);
    let both = Request::write(claim(1, 2), (10..60).map(insert_item).chain([insert_item(1)]).collect());
    assert!(matches!(shard.execute(both).await, Err(ShardError::Statement(error)) if error.sqlstate == "23505"));
    assert_eq!(one_int(&shard, "SELECT count(*) FROM items").await, 1, "nothing of a failed request stays");
    let many = Request::write(claim(1, 2), (10..110).map(insert_item).collect());
    assert_eq!(shard.execute(many).await.expect("100 statements run").len(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interactive_transaction_has_savepoints_and_cursors() {
    let (shard, _) = new_shard().await;
    for isolation in [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable] {
        let begin = Begin { isolation, ..Begin::new(claim(1, 0), Access::Write) };
        let mut tx = shard.begin(begin).await.expect("it begins");
        for id in 1..=25 {
            tx.execute(&insert_item(id)).await.expect("it inserts");
        }
        tx.savepoint("a \"b\"").await.expect("savepoint");
        assert!(tx.execute(&insert_item(1)).await.is_err());
        assert!(
            matches!(tx.execute(&insert_item(99)).await, Err(ShardError::Statement(error)) if error.sqlstate == "25P02")
        );
        tx.rollback_to("a \"b\"").await.expect("rollback to savepoint");
        tx.claim(claim(1, 5)).await.expect("another unit");
        let wanted =
            sql("SELECT id FROM items WHERE id > $1 ORDER BY id", vec![Value::Int(5)]).returning(vec![DataType::Int8]);
        let cursor = tx.open(&wanted).await.expect("a cursor opens");
        let text = "WITH d AS (DELETE FROM items WHERE id > $1 RETURNING id) SELECT id FROM d";
        let other = sql(text, vec![Value::Int(20)]).returning(vec![DataType::Int8]);
        let held = tx.open(&other).await.expect("a cursor over a write opens");
        let mut seen = 0;
        loop {
            let page = tx.fetch(cursor, 6).await.expect("it fetches");
            seen += page.rows.len();
            if page.done {
                break;
            }
        }
        assert_eq!(seen, 20, "the cursor reads what was there when it was opened");
        assert_eq!(tx.fetch(held, 100).await.expect("it fetches").rows.len(), 5);
        tx.close(cursor).await.expect("it closes");
        tx.rollback().await.expect("it rolls back");
    }
    assert_eq!(one_int(&shard, "SELECT count(*) FROM items").await, 0);
    let mut failed = shard.begin(Begin::new(claim(1, 0), Access::Write)).await.expect("it begins");
    failed.execute(&insert_item(1)).await.expect("it inserts");
    assert!(failed.execute(&sql("SELECT 1/0", vec![])).await.is_err());
    assert!(failed.commit().await.is_err(), "a failed transaction cannot be committed");
    let mut read_only = shard.begin(Begin::new(claim(1, 0), Access::Read)).await.expect("it begins");
    assert!(read_only.execute(&insert_item(1)).await.is_err());
    drop(read_only);
    assert_eq!(one_int(&shard, "SELECT count(*) FROM items").await, 0);
}

/// Values at the edges of each type.
fn edges() -> Vec<(DataType, Vec<Value>)> {
    let numeric = |text: &str| Value::Numeric(Numeric::parse(text).expect("valid"));
    let floats = |tiny: f64, huge: f64| {
        let all = [0.0, -0.0, 1.5, tiny, huge, -huge, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        all.map(Value::Float).to_vec()
    };
    vec![
        (DataType::Bool, vec![Value::Bool(true), Value::Bool(false)]),
        (DataType::Int2, vec![Value::Int(i16::MIN.into()), Value::Int(i16::MAX.into())]),
        (DataType::Int4, vec![Value::Int(i32::MIN.into()), Value::Int(i32::MAX.into())]),
        (DataType::Int8, vec![Value::Int(i64::MIN), Value::Int(i64::MAX), Value::Int(0)]),
        (DataType::Float4, floats(f32::MIN_POSITIVE.into(), f32::MAX.into())),
        (DataType::Float8, floats(f64::from_bits(1), f64::MAX)),
        (
            DataType::Numeric,
            [
                "0",
                "0.000",
                "-1.50",
                "NaN",
                "Infinity",
                "-Infinity",
                "1e1000",
                "1e-1000",
                "12345678901234567890.123456789",
                "10000",
                "0.0001",
            ]
            .map(numeric)
            .to_vec(),
        ),
        (DataType::Text, vec![Value::text(""), Value::text("ä日\u{1F600}\n\\'\""), Value::text("x".repeat(100_000))]),
        (DataType::Bytes, vec![Value::Bytes(vec![]), Value::Bytes((0..=255).collect())]),
        (DataType::Date, [i32::MIN, i32::MAX, 0, -2_451_507, 2_145_031_948].map(Value::Date).to_vec()),
        (DataType::Time, [0, 1, 86_400_000_000].map(Value::Time).to_vec()),
        (
            DataType::Timestamp,
            [i64::MIN, i64::MAX, 0, -211_813_488_000_000_000, 9_223_371_331_199_999_999].map(Value::Timestamp).to_vec(),
        ),
        (DataType::TimestampTz, [i64::MIN, i64::MAX, -1, 1].map(Value::TimestampTz).to_vec()),
        (DataType::Uuid, vec![Value::Uuid([0; 16]), Value::Uuid([255; 16])]),
        (DataType::Json, vec![Value::Json("{\"b\": 1,  \"a\":1.00}".into()), Value::Json("null".into())]),
    ]
}

fn all_types() -> Table {
    let name = |ty: DataType| format!("{ty:?}").to_lowercase();
    let mut columns = vec![Column::new("id", DataType::Int8).not_null()];
    for (ty, values) in edges() {
        columns.push(Column::new(&name(ty), ty));
        // Each edge is a default as well, so it goes through the printer of constants, too.
        // The stored schema is JSON, which does not keep every float.
        let stored = |value: &Value| !matches!(value, Value::Float(x) if ![0.0, 1.5].contains(x));
        for (at, value) in values.into_iter().filter(stored).enumerate() {
            columns.push(Column { default: Some(value), ..Column::new(&format!("{}_{at}", name(ty)), ty) });
        }
    }
    Table {
        name: "edges".into(),
        kind: TableKind::Reference,
        columns,
        primary_key: vec!["id".into()],
        keys: vec![],
        foreign_keys: vec![],
        checks: vec![],
        primary_key_name: None,
        hidden_key: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_at_the_edges_of_every_type_come_back_the_same() {
    let (shard, url) = new_shard().await;
    shard
        .apply_schema(SchemaVersion(1), vec![SchemaChange::CreateTable(all_types())])
        .await
        .expect("the table is made");
    let reader = stream("reader");
    let from = shard.add_consumer(&reader).await.expect("capture is on");
    let claim = || Claim::new(RoutingVersion(1), vec![Claimed::Shared]);
    let mut expected = Vec::new();
    for (at, (ty, value)) in
        edges().into_iter().flat_map(|(ty, values)| values.into_iter().map(move |v| (ty, v))).enumerate()
    {
        let column = format!("{ty:?}").to_lowercase();
        let text = format!("INSERT INTO edges (id, {column}) VALUES ($1, $2) RETURNING {column}");
        let insert = sql(&text, vec![Value::Int(at as i64), value.clone()]).returning(vec![ty]);
        let outcome = shard
            .execute(Request::write(claim(), vec![insert]))
            .await
            .unwrap_or_else(|e| panic!("{ty:?} {value:?}: {e}"));
        assert_eq!(outcome[0].rows, vec![vec![value.clone()]], "{ty:?}");
        expected.push((column, value));
    }
    let table = all_types();
    let log = read_log(&shard, from, 7, expected.len()).await;
    for (change, (column, value)) in log.iter().zip(&expected) {
        let image = change.after.as_ref().expect("an insert");
        assert_eq!(&image[table.position(column).expect("there")], value, "in the log: {column}");
        for (at, column) in table.columns.iter().enumerate() {
            if let Some(default) = &column.default {
                assert_eq!(&image[at], default, "default of {}", column.name);
            }
        }
    }
    let mut snapshot = shard.snapshot().await.expect("a snapshot");
    let page = snapshot.page(&KeyRange::table("edges"), 1_000).await.expect("a page");
    let logged: Vec<_> = log.iter().map(|change| change.after.clone().expect("an insert")).collect();
    assert_eq!(page.rows.iter().map(|row| row.values.clone()).collect::<Vec<_>>(), logged);
    // The same rows applied to another shard have the same digest.
    let other = open_at(&pgserver::shared().create_database(), PostgresOptions::default()).await;
    prepare(&other).await;
    other
        .apply_schema(SchemaVersion(1), vec![SchemaChange::CreateTable(all_types())])
        .await
        .expect("the table is made");
    let incoming =
        page.rows.iter().map(|row| incoming("edges", Unit::Shared, row.values[0].clone(), 1, Some(row.values.clone())));
    let batch = Batch::new(&reader, incoming.collect());
    assert_eq!(other.apply(batch).await.expect("it applies").written, expected.len() as u64);
    let mut copy = other.snapshot().await.expect("a snapshot");
    let range = KeyRange::table("edges");
    assert_eq!(copy.digest(&range).await.expect("a digest"), snapshot.digest(&range).await.expect("a digest"));
    drop((snapshot, copy, url));
}

fn incoming(table: &str, unit: Unit, key: Value, seq: u64, row: Option<Vec<Value>>) -> Incoming {
    let lead = match &unit {
        Unit::Tenant(tenant) => Some(Value::text(tenant.as_ref().map_or("", |t| t.as_str()))),
        _ => None,
    };
    let key = lead.into_iter().chain([key]).collect();
    Incoming { table: table.into(), unit, key, version: RowVersion { epoch: RoutingVersion(1), seq: Seq(seq) }, row }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_does_not_fit_is_refused_before_it_is_sent() {
    let (shard, _) = new_shard().await;
    let cases = [
        ("SELECT $1::int2", Value::Int(40_000), "22003"),
        ("SELECT $1::int4", Value::Int(i64::MAX), "22003"),
        ("SELECT $1::float4", Value::Float(0.1), "22003"),
        ("SELECT $1::int8", Value::text("1"), "42804"),
        ("SELECT $1::text", Value::Int(1), "42804"),
        ("SELECT $1::date", Value::Timestamp(1), "42804"),
        ("SELECT $1::text", Value::text("a\0b"), "22021"),
    ];
    for (text, value, state) in cases {
        let request = Request::read(claim(1, 0), sql(text, vec![value]));
        let error = shard.execute(request).await.expect_err(text);
        assert_eq!(error.for_people().sqlstate, state, "{text}");
    }
    let wrong = Request::read(claim(1, 0), select("SELECT 'x'::text", &[DataType::Int8]));
    assert_eq!(shard.execute(wrong).await.expect_err("another type").for_people().sqlstate, "42804");
    let small = Request::read(claim(1, 0), select("SELECT 70000", &[DataType::Int2]));
    assert_eq!(shard.execute(small).await.expect_err("out of range").for_people().sqlstate, "22003");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_end_a_statement_and_nothing_else() {
    let (shard, _) = new_shard().await;
    let read =
        |text: &str, limits: Limits| Request { limits, ..Request::read(claim(1, 0), select(text, &[DataType::Int8])) };
    let rows = Limits { rows: 10, ..Limits::default() };
    let many = shard.execute(read("SELECT generate_series(1, 10000000)::int8", rows.clone())).await;
    assert!(matches!(many, Err(ShardError::Limit { limit: 10, .. })), "{many:?}");
    assert!(shard.execute(read("SELECT generate_series(1, 10)::int8", rows)).await.is_ok());
    let short = Limits { time: Duration::from_millis(100), ..Limits::default() };
    let began = Instant::now();
    assert_eq!(shard.execute(read("SELECT 1::int8 FROM pg_sleep(20)", short)).await, Err(ShardError::TimedOut));
    let limits = Limits::default();
    let cancel = limits.cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        cancel.cancel();
    });
    assert_eq!(
        shard.execute(read("SELECT 1::int8 FROM pg_sleep(20)", limits.clone())).await,
        Err(ShardError::Cancelled)
    );
    assert!(began.elapsed() < Duration::from_secs(5));
    // In a transaction, a savepoint survives both.
    for cancel in [true, false] {
        let limits = Limits { time: Duration::from_millis(200), ..Limits::default() };
        let token = limits.cancel.clone();
        let mut tx = shard.begin(Begin { limits, ..Begin::new(claim(1, 0), Access::Write) }).await.expect("it begins");
        tx.savepoint("a").await.expect("savepoint");
        if cancel {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                token.cancel();
            });
        }
        let result = tx.execute(&sql("SELECT pg_sleep(20)", vec![])).await;
        assert_eq!(result, Err(if cancel { ShardError::Cancelled } else { ShardError::TimedOut }));
        if !cancel {
            tx.rollback_to("a").await.expect("it goes on from the savepoint");
            tx.execute(&insert_item(5)).await.expect("it goes on");
        }
        tx.rollback().await.expect("it rolls back");
    }
    let began = Instant::now();
    while one_int(&shard, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(20)%' AND state = 'active' AND pid <> pg_backend_pid()").await > 0 {
        assert!(began.elapsed() < Duration::from_secs(5), "what was given up still runs in the server");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// I-7, planted bugs 1 and 2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_waits_for_those_inside_and_refuses_those_who_come_late() {
    let (shard, _) = new_shard().await;
    let shard = Arc::new(shard);
    for isolation in [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable] {
        let version = 1 + shard.fences().await.expect("fences").iter().map(|fence| fence.version.0).max().unwrap_or(0);
        let old = version - 1;
        let begin = |v| Begin { isolation, ..Begin::new(claim(v, 3), Access::Write) };
        let mut inside = shard.begin(begin(old)).await.expect("the fence is open");
        inside.execute(&insert_item(3)).await.expect("it writes");
        let short = shard.set_fences(vec![buckets(version, FenceMode::Open)], Duration::from_millis(100)).await;
        assert_eq!(short, Err(ShardError::TimedOut), "someone is inside");
        assert!(shard.begin(begin(old)).await.is_ok(), "nothing has changed");
        let setter = {
            let shard = shard.clone();
            tokio::spawn(async move {
                shard.set_fences(vec![buckets(version, FenceMode::Open)], Duration::from_secs(10)).await
            })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        let late = {
            let shard = shard.clone();
            let begin = begin(old);
            tokio::spawn(async move { shard.begin(begin).await.map(drop) })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!setter.is_finished() && !late.is_finished(), "both wait for the one inside");
        inside.rollback().await.expect("it ends");
        setter.await.expect("no panic").expect("the fence is set");
        let refusal = late.await.expect("no panic").expect_err("it came late");
        let unit = Unit::Bucket(group(), BucketId(3));
        let moved = ShardError::Moved { unit, claimed: RoutingVersion(old), needed: RoutingVersion(version) };
        // At the stricter levels the one who waited has a snapshot from before the change.
        assert!(
            refusal == moved || (isolation != Isolation::ReadCommitted && matches!(refusal, ShardError::Conflict(_))),
            "{refusal}"
        );
        assert_eq!(shard.execute(item_write(3)).await.map(drop).is_ok(), version <= 1);
    }
}

/// A transaction with one snapshot must not pass a fence that was closed after the snapshot was taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_claim_sees_the_fences_of_now() {
    let (shard, _) = new_shard().await;
    let tenant = |name: &str| Some(TenantId::new(name).expect("valid"));
    let of = |name: &str| Claim::new(RoutingVersion(1), vec![Claimed::Tenant(tenant(name), group(), BucketId(1))]);
    for isolation in [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable] {
        let name = format!("{isolation:?}");
        let mut tx =
            shard.begin(Begin { isolation, ..Begin::new(claim(1, 5), Access::Write) }).await.expect("it begins");
        tx.execute(&sql("SELECT 1", vec![])).await.expect("the snapshot is taken");
        let pin =
            Fence { scope: FenceScope::Tenant(tenant(&name)), version: RoutingVersion(2), mode: FenceMode::Closed };
        shard.set_fences(vec![pin], Duration::from_secs(5)).await.expect("the tenant is closed");
        let refusal = tx.claim(of(&name)).await.expect_err("the tenant has moved");
        assert!(matches!(refusal, ShardError::Moved { .. } | ShardError::Conflict(_)), "{refusal}");
        assert!(shard.begin(Begin::new(of("other"), Access::Write)).await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn making_a_unit_read_only_does_not_wait_for_its_readers() {
    let (shard, _) = new_shard().await;
    let reader = shard.begin(Begin::new(claim(1, 3), Access::Read)).await.expect("it begins");
    shard
        .set_fences(vec![buckets(1, FenceMode::ReadOnly)], Duration::from_millis(500))
        .await
        .expect("no writer is inside");
    assert!(shard.begin(Begin::new(claim(1, 3), Access::Read)).await.is_ok());
    assert!(matches!(shard.execute(item_write(3)).await, Err(ShardError::Moved { .. })));
    let closed = shard.set_fences(vec![buckets(1, FenceMode::Closed)], Duration::from_millis(100)).await;
    assert_eq!(closed, Err(ShardError::TimedOut), "a reader is inside");
    drop(reader);
    shard.set_fences(vec![buckets(1, FenceMode::Closed)], Duration::from_secs(5)).await.expect("nobody is inside");
    assert!(matches!(shard.begin(Begin::new(claim(1, 3), Access::Read)).await, Err(ShardError::Moved { .. })));
}

/// I-7: whoever knows the fences of before is not let in by them, whoever has changed them, and however.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_who_knows_the_fences_of_before_is_refused() {
    let (reader, url) = new_shard().await;
    let other = open_at(&url, PostgresOptions::default()).await;
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("a connection");
    tokio::spawn(connection);
    let read = async |version| {
        let alone = Request::read(claim(version, 3), select("SELECT 1", &[DataType::Int4]).composed());
        reader.execute(alone).await.map(|outcomes| outcomes[0].rows.len())
    };
    let refused = |answer| assert!(matches!(answer, Err(ShardError::Moved { .. })), "{answer:?}");
    for version in [1, 3, 5] {
        for fence in [buckets(version, FenceMode::Open), buckets(version, FenceMode::ReadOnly)] {
            other.set_fences(vec![fence], Duration::from_secs(5)).await.expect("the fence is set");
            assert_eq!((read(version).await, read(version).await), (Ok(1), Ok(1)));
        }
        let close = buckets(version + 1, FenceMode::Closed);
        other.set_fences(vec![close], Duration::from_secs(5)).await.expect("nobody is inside");
        refused(read(version).await);
    }
    other.set_fences(vec![buckets(7, FenceMode::Open)], Duration::from_secs(5)).await.expect("the fence is set");
    for by_hand in
        ["UPDATE _isles.fence SET mode = 'closed'", "TRUNCATE _isles.fence", "DELETE FROM _isles.fence_token"]
    {
        let token = "SELECT token FROM _isles.fence_token";
        let before: i64 = client.query_one(token, &[]).await.expect("a token").get(0);
        other.set_fences(vec![buckets(7, FenceMode::Open)], Duration::from_secs(5)).await.expect("the fence is set");
        assert_eq!((read(7).await, read(7).await), (Ok(1), Ok(1)));
        client.batch_execute(by_hand).await.expect("it runs");
        match by_hand {
            // Without a token nobody can tell.
            "DELETE FROM _isles.fence_token" => {
                let answer = read(7).await;
                assert!(matches!(answer, Err(ShardError::Corrupt(_))), "{answer:?}");
            }
            _ => {
                refused(read(7).await);
                let after: i64 = client.query_one(token, &[]).await.expect("a token").get(0);
                assert_ne!(before, after, "{by_hand}");
            }
        }
    }
}

/// A read that looks at the fences itself fails in a way that a client's own text can imitate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_pretends_to_be_refused_gets_its_own_error() {
    let (shard, _) = new_shard().await;
    let pretends = select("SELECT 'isles: refused by a fence'::text::boolean", &[DataType::Bool]).composed();
    let error = shard.execute(Request::read(claim(1, 3), pretends.clone())).await.expect_err("not a boolean");
    assert_eq!(error.for_people().sqlstate, "22P02");
    shard.set_fences(vec![buckets(2, FenceMode::Closed)], Duration::from_secs(5)).await.expect("nobody is inside");
    assert!(matches!(shard.execute(Request::read(claim(1, 3), pretends)).await, Err(ShardError::Moved { .. })));
}

/// I-30, planted bug 12. Writers with long and short transactions and rollbacks; readers with pages of any size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_the_log_never_skip_a_commit() {
    const WRITERS: i64 = 8;
    const CHANGES: i64 = 20_000;
    let (shard, url) = new_shard().await;
    let shard = Arc::new(shard);
    let from = shard.add_consumer(&stream("reader")).await.expect("capture is on");
    let (done, total) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut readers = Vec::new();
    for limit in [1_000, 137, 2_000] {
        let (shard, done, total) = (shard.clone(), done.clone(), total.clone());
        readers.push(tokio::spawn(async move {
            let (mut at, mut seen, mut last) = (from, Vec::new(), Seq(0));
            let began = Instant::now();
            loop {
                let ended = done.load(Ordering::SeqCst);
                let page = shard.changes(at, limit).await.expect("the log can be read");
                at = page.through;
                let empty = page.changes.is_empty();
                for change in page.changes {
                    assert!(change.seq > last, "positions rise");
                    last = change.seq;
                    seen.push(change);
                }
                if ended && seen.len() >= total.load(Ordering::SeqCst) {
                    assert_eq!(shard.changes(at, limit).await.expect("the log can be read").changes, vec![]);
                    return seen;
                }
                assert!(began.elapsed() < Duration::from_secs(60), "the log stays incomplete");
                tokio::time::sleep(Duration::from_millis(if empty { 5 } else { 0 })).await;
            }
        }));
    }
    // What a reader with `seq > last` would see, at the same time.
    let naive = {
        let (client, done) = (client(&url).await, done.clone());
        tokio::spawn(async move {
            let (mut last, mut seen) = (from.0 as i64, 0);
            loop {
                let ended = done.load(Ordering::SeqCst);
                let rows = client
                    .query("SELECT seq FROM _isles.log WHERE seq > $1 ORDER BY seq", &[&last])
                    .await
                    .expect("rows");
                seen += rows.len();
                last = rows.last().map_or(last, |row| row.get(0));
                if rows.is_empty() && ended {
                    return seen;
                }
            }
        })
    };
    let writers: Vec<_> =
        (0..WRITERS).map(|writer| tokio::spawn(write_many(shard.clone(), writer, CHANGES / WRITERS))).collect();
    let mut committed: BTreeMap<i64, u64> = BTreeMap::new();
    for writer in writers {
        for id in writer.await.expect("no panic") {
            *committed.entry(id).or_default() += 1;
        }
    }
    total.store(committed.len(), Ordering::SeqCst);
    done.store(true, Ordering::SeqCst);
    assert!(committed.len() as i64 >= CHANGES, "{}", committed.len());
    for reader in readers {
        let seen = reader.await.expect("no panic");
        let ids: BTreeSet<i64> = seen.iter().map(|change| int(&change.key[0])).collect();
        assert_eq!(seen.len(), committed.len(), "each commit once");
        assert!(ids.iter().eq(committed.keys()), "exactly what was committed");
    }
    let naive = naive.await.expect("no panic");
    assert!(naive < committed.len(), "the test is too tame: even a naive reader has seen all {naive}");
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(n) => *n,
        other => panic!("not an integer: {other:?}"),
    }
}

/// Inserts ids of its own in transactions of many sizes, some of which it rolls back; returns those committed.
async fn write_many(shard: Arc<PostgresShard>, writer: i64, count: i64) -> Vec<i64> {
    let (mut next, mut kept) = (writer * 1_000_000, Vec::new());
    let many =
        "INSERT INTO items (_bucket, id, body) SELECT i % 8, i, 'x' FROM generate_series($1::int8, $2::int8) AS i";
    for turn in 0.. {
        if kept.len() as i64 >= count {
            break;
        }
        let mut tx = shard.begin(Begin::new(claim(1, (writer % 8) as u32), Access::Write)).await.expect("it begins");
        let mut ids = Vec::new();
        for part in 0..(1 + turn % 4) {
            let size = 1 + (turn * 7 + part) % 40;
            tx.execute(&sql(many, vec![Value::Int(next), Value::Int(next + size - 1)])).await.expect("it inserts");
            ids.extend(next..next + size);
            next += size;
            // Let others draw positions and commit in between.
            tokio::time::sleep(Duration::from_micros(if turn % 5 == 0 { 4_000 } else { 0 })).await;
        }
        if turn % 6 == 5 {
            tx.rollback().await.expect("it rolls back");
        } else {
            tx.commit().await.expect("it commits");
            kept.extend(ids);
        }
    }
    kept
}

/// A gap must wait for a transaction that is younger than the one that committed above it: neither order of ids nor
/// the snapshot's own upper end tells who may still fill it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_waits_for_a_younger_transaction() {
    let (shard, _) = new_shard().await;
    let from = shard.add_consumer(&stream("reader")).await.expect("capture is on");
    let mut elder = shard.begin(Begin::new(claim(1, 0), Access::Write)).await.expect("it begins");
    elder.execute(&insert_item(1)).await.expect("the elder has an id");
    let mut younger = shard.begin(Begin::new(claim(1, 0), Access::Write)).await.expect("it begins");
    younger.execute(&insert_item(2)).await.expect("the younger draws a position");
    elder.execute(&insert_item(3)).await.expect("the elder draws a later one");
    elder.commit().await.expect("the elder commits");
    for _ in 0..5 {
        let page = shard.changes(from, 100).await.expect("a page");
        assert_eq!(page.changes.len(), 1, "the log is complete up to the elder's first change only");
        let mut snapshot = shard.snapshot().await.expect("a snapshot");
        assert_eq!(snapshot.seq(), page.through);
        assert_eq!(snapshot.page(&KeyRange::table("items"), 10).await.expect("a page").rows.len(), 2);
    }
    younger.commit().await.expect("the younger commits");
    let all = read_log(&shard, from, 100, 3).await;
    let keys: Vec<i64> = all.iter().map(|change| int(&change.key[0])).collect();
    assert_eq!(keys, vec![1, 2, 3]);
    assert_eq!(shard.seq().await.expect("a position"), all[2].seq);
}

/// Capture begins in the midst of transactions; every commit after the position returned is in the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capture_switched_on_under_load_misses_nothing() {
    let (shard, url) = new_shard().await;
    let shard = Arc::new(shard);
    let old_snapshot = client(&url).await;
    old_snapshot
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await
        .expect("a snapshot from before");
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4i64)
        .map(|writer| {
            let (shard, stop) = (shard.clone(), stop.clone());
            tokio::spawn(async move {
                let mut id = writer * 1_000_000;
                while !stop.load(Ordering::SeqCst) {
                    let mut tx = shard.begin(Begin::new(claim(1, 0), Access::Write)).await.expect("it begins");
                    tx.execute(&insert_item(id)).await.expect("it inserts");
                    tokio::time::sleep(Duration::from_millis(3)).await;
                    tx.execute(&insert_item(id + 1)).await.expect("it inserts");
                    tx.commit().await.expect("it commits");
                    id += 2;
                }
            })
        })
        .collect();
    for round in 0..5 {
        let reader = stream(&format!("reader{round}"));
        tokio::time::sleep(Duration::from_millis(30)).await;
        let from = shard.add_consumer(&reader).await.expect("capture is on");
        let before: BTreeSet<i64> = ids(&shard).await;
        if round == 0 {
            let insert = "INSERT INTO items (_bucket, id) VALUES (0, -1); COMMIT";
            old_snapshot.batch_execute(insert).await.expect("it writes with the old snapshot");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let after: BTreeSet<i64> = ids(&shard).await;
        let new: BTreeSet<i64> = after.difference(&before).copied().collect();
        assert!(new.len() > 4 && (round > 0 || new.contains(&-1)));
        let mut logged = BTreeSet::new();
        let began = Instant::now();
        let mut at = from;
        while !new.is_subset(&logged) {
            let page = shard.changes(at, 1_000).await.expect("a page");
            at = page.through;
            logged.extend(page.changes.iter().map(|change| int(&change.key[0])));
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "missing: {:?}",
                new.difference(&logged).collect::<Vec<_>>()
            );
        }
        shard.remove_consumer(&reader).await.expect("capture is off");
        let records = shard.stats().await.expect("stats").log_records;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!((records, shard.stats().await.expect("stats").log_records), (0, 0), "no reader, no log");
    }
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.await.expect("no panic");
    }
}

async fn ids(shard: &PostgresShard) -> BTreeSet<i64> {
    let request = Request::read(claim(1, 0), select("SELECT id FROM items", &[DataType::Int8]));
    shard.execute(request).await.expect("rows")[0].rows.iter().map(|row| int(&row[0])).collect()
}

/// What a change was, short enough to compare.
fn short(change: &Change) -> (String, Op, Vec<Value>) {
    (change.table.clone(), change.op, change.key.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_has_cascades_triggers_upserts_and_changes_of_keys() {
    let (shard, url) = new_shard().await;
    let object = Object {
        name: "follow".into(),
        kind: ObjectKind::Trigger,
        sqlite: String::new(),
        postgres:
            "CREATE FUNCTION follow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN UPDATE items SET body = ''followed'' \
                   WHERE id = NEW.id AND body <> ''followed''; RETURN NULL; END'; \
                   CREATE TRIGGER a_follow AFTER INSERT ON items FOR EACH ROW EXECUTE FUNCTION follow()"
                .into(),
        postgres_drop: "DROP FUNCTION follow() CASCADE".into(),
    };
    shard.apply_schema(SchemaVersion(1), vec![SchemaChange::CreateObject(object)]).await.expect("the trigger is made");
    let from = shard.add_consumer(&stream("reader")).await.expect("capture is on");
    run(&shard, "INSERT INTO items (_bucket, id, body) VALUES (1, 1, 'x')").await;
    run(
        &shard,
        "INSERT INTO items (_bucket, id, body) VALUES (1, 1, 'y') ON CONFLICT (id) DO UPDATE SET body = excluded.body",
    )
    .await;
    run(&shard, "INSERT INTO items (_bucket, id, body) VALUES (1, 1, 'y') ON CONFLICT (id) DO NOTHING").await;
    run(&shard, "UPDATE items SET body = body").await;
    run(&shard, "UPDATE items SET id = 2, _bucket = 2").await;
    run_as(&shard, Some("acme"), "INSERT INTO notes (_shard, id, parent) VALUES ('acme', 1, NULL), ('acme', 2, 1)")
        .await;
    run_as(&shard, None, "INSERT INTO notes (_shard, id) VALUES (NULL, 1)").await;
    run_as(&shard, Some("acme"), "DELETE FROM notes WHERE id = 1").await;
    let refused = Request::write(claim(1, 0), vec![sql("TRUNCATE items", vec![])]);
    assert_eq!(shard.execute(refused).await.expect_err("it is refused").for_people().sqlstate, "42501");
    let copy = client(&url).await;
    copy.batch_execute("UPDATE notes SET _shard = 'other'").await.expect("no client could");
    let refused = copy.batch_execute("TRUNCATE items").await.expect_err("it is refused");
    assert_eq!(refused.code().map(|code| code.code()), Some("0A000"));
    copy.batch_execute("SET session_replication_role = replica").await.expect("a superuser may");
    copy.batch_execute("INSERT INTO items (_bucket, id) VALUES (0, 8)").await.expect("it writes");
    let log = read_log(&shard, from, 3, 14).await;
    let item = |op, id: i64| ("items".to_string(), op, vec![Value::Int(id)]);
    let note = |op, tenant: &str, id: i64| ("notes".to_string(), op, vec![Value::text(tenant), Value::Int(id)]);
    let expected = vec![
        item(Op::Insert, 1),
        item(Op::Update, 1),
        item(Op::Update, 1),
        item(Op::Update, 1),
        item(Op::Delete, 1),
        item(Op::Insert, 2),
        note(Op::Insert, "acme", 1),
        note(Op::Insert, "acme", 2),
        note(Op::Insert, "", 1),
        note(Op::Delete, "acme", 1),
        note(Op::Delete, "acme", 2),
        note(Op::Delete, "", 1),
        note(Op::Insert, "other", 1),
        item(Op::Insert, 8),
    ];
    assert_eq!(log.iter().map(short).collect::<Vec<_>>(), expected);
    assert_eq!(log[0].after.as_ref().map(|row| row[1].clone()), Some(Value::text("x")), "before the trigger");
    assert_eq!(log[1].after.as_ref().map(|row| row[1].clone()), Some(Value::text("followed")), "after the trigger");
    assert_eq!(log[8].unit, Unit::Tenant(None));
    assert_eq!(log[12].unit, Unit::Tenant(Some(TenantId::new("other").expect("valid"))));
    assert!(log.iter().all(|change| change.schema == SchemaVersion(2)));
}

/// The images are PostgreSQL's binary form: what a session sets cannot change them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_the_same_whatever_a_session_sets() {
    let (shard, url) = new_shard().await;
    shard
        .apply_schema(SchemaVersion(1), vec![SchemaChange::CreateTable(all_types())])
        .await
        .expect("the table is made");
    let from = shard.add_consumer(&stream("reader")).await.expect("capture is on");
    let settings = [
        "SET extra_float_digits = 1",
        "SET timezone = 'America/Caracas'; SET datestyle = 'German'; SET intervalstyle = 'sql_standard'",
        "SET extra_float_digits = -15; SET bytea_output = 'escape'; SET client_encoding = 'LATIN1'",
        "SET search_path = pg_temp; SET isles.applying = 'guess'; SET quote_all_identifiers = on",
    ];
    for (at, setting) in settings.iter().enumerate() {
        let client = client(&url).await;
        client.batch_execute(setting).await.expect("it is set");
        let insert = format!("INSERT INTO public.edges (id, text) VALUES ({at}, E'\\u00e4')");
        client.batch_execute(&insert).await.expect("it writes");
    }
    let log = read_log(&shard, from, 10, settings.len()).await;
    let images: Vec<_> = log.iter().map(|change| change.after.clone().expect("an insert")[1..].to_vec()).collect();
    assert!(images.iter().all(|image| image == &images[0]));
    assert!(images[0].contains(&Value::text("ä")));
}

/// I-43, planted bug 16. Everything a client can leave behind, left behind at several points.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lent_connection_carries_nothing_from_its_last_user() {
    const STATE: &str = "SELECT coalesce(string_agg(line, E'\\n' ORDER BY line), '') FROM (
        SELECT name || '=' || setting || '/' || coalesce(reset_val, '') AS line FROM pg_settings
            WHERE name NOT IN ('transaction_read_only', 'statement_timeout', 'transaction_isolation')
        UNION ALL SELECT 'custom ' || coalesce(current_setting('isles.tenant', true), '')
        UNION ALL SELECT 'role ' || current_user || session_user
        UNION ALL SELECT 'temp ' || relname FROM pg_class WHERE relnamespace = pg_my_temp_schema()
        UNION ALL SELECT 'prepared ' || name FROM pg_prepared_statements WHERE from_sql
        UNION ALL SELECT 'lock ' || objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND classid <> 1769172069
        UNION ALL SELECT 'listen ' || c FROM pg_listening_channels() AS c
        UNION ALL SELECT 'cursor ' || name FROM pg_cursors WHERE is_holdable) AS state";
    let url = pgserver::shared().create_database();
    let shard = Arc::new(open_at(&url, PostgresOptions { connections: 1, ..PostgresOptions::default() }).await);
    prepare(&shard).await;
    let admin = client(&url).await;
    admin
        .batch_execute("DO $$ BEGIN CREATE ROLE weak; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        .await
        .expect("a role");
    let state = async || {
        let read = Request::read(claim(1, 0), select(STATE, &[DataType::Text]));
        shard.execute(read).await.expect("the state")[0].rows[0][0].clone()
    };
    let clean = state().await;
    assert!(!format!("{clean:?}").contains("temp "));
    let mess = [
        "SELECT set_config('work_mem', '77MB', false)",
        "SET isles.tenant = 'acme'",
        "SET default_transaction_read_only = off",
        "SET search_path = pg_temp",
        "SET TIME ZONE 'America/Caracas'",
        "CREATE TEMP TABLE left_behind (a int)",
        "PREPARE left_behind AS SELECT 1",
        "SELECT pg_advisory_lock(42)",
        "LISTEN left_behind",
        "DECLARE left_behind CURSOR WITH HOLD FOR SELECT 1",
        "SET ROLE NONE",
        "SET ROLE weak",
    ];
    for point in 0..=4 {
        let mut tx = shard.begin(Begin::new(claim(1, 0), Access::Write)).await.expect("it begins");
        for text in mess {
            tx.execute(&sql(text, vec![])).await.unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        match point {
            0 => tx.commit().await.expect("it commits"),
            1 => tx.rollback().await.expect("it rolls back"),
            2 => drop(tx),
            3 => {
                assert!(tx.execute(&sql("SELECT 1/0", vec![])).await.is_err());
                assert!(tx.commit().await.is_err());
            }
            _ => {
                // The client goes while a statement runs.
                let statement = sql("SELECT pg_sleep(20)", vec![]);
                let gone = tokio::time::timeout(Duration::from_millis(50), tx.execute(&statement)).await;
                assert!(gone.is_err());
                drop(tx);
            }
        }
        assert_eq!(state().await, clean, "after the client left at point {point}");
    }
    // The same through requests, which are the usual way, and dropped at any moment.
    for micros in [0, 100, 300, 1_000, 3_000, 10_000] {
        let request = Request::write(claim(1, 0), mess[..11].iter().map(|text| sql(text, vec![])).collect());
        let _ = tokio::time::timeout(Duration::from_micros(micros), shard.execute(request)).await;
        assert_eq!(state().await, clean, "after a request dropped at {micros} µs");
    }
    let left = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid <> 1769172069";
    // A session that was given up ends a moment after it was told to.
    let patience = Instant::now() + Duration::from_secs(20);
    while admin.query_one(left, &[]).await.expect("locks").get::<_, i64>(0) > 0 {
        assert!(Instant::now() < patience, "a lock is left behind");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// I-3: a connection cut during COMMIT may have happened; one cut before has not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_commit_that_was_sent_may_have_happened() {
    let (_, url) = new_shard().await;
    let proxy = Proxy::start(pgserver::shared().port()).await;
    let through = url.replace(&format!(":{}/", pgserver::shared().port()), &format!(":{}/", proxy.port));
    let shard = open_at(&through, PostgresOptions::default()).await;
    shard.execute(item_write(1)).await.expect("the line is good");
    proxy.cut_after("COMMIT");
    let cut = shard.execute(item_write(2)).await;
    assert!(matches!(cut, Err(ShardError::MayHaveHappened(_))), "{cut:?}");
    let mut tx = shard.begin(Begin::new(claim(1, 0), Access::Write)).await.expect("a new connection");
    tx.execute(&insert_item(3)).await.expect("it writes");
    let cut = tx.commit().await;
    assert!(matches!(cut, Err(ShardError::MayHaveHappened(_))), "{cut:?}");
    proxy.cut_after("BEGIN");
    let cut = shard.execute(item_write(4)).await;
    assert!(matches!(cut, Err(ShardError::Unavailable(_))), "{cut:?}");
    proxy.cut_after("");
    let mut tx = shard.begin(Begin::new(claim(1, 0), Access::Write)).await.expect("a new connection");
    tx.execute(&insert_item(5)).await.expect("it writes");
    proxy.cut_after("SELECT 77");
    let cut = tx.execute(&sql("SELECT 77", vec![])).await;
    assert!(matches!(cut, Err(ShardError::Unavailable(_))), "{cut:?}");
    assert!(matches!(tx.commit().await, Err(error) if error.nothing_happened()));
    proxy.cut_after("");
    let began = Instant::now();
    // The server finds the lines cut, and ends what was open.
    while ids(&shard).await.len() < 3 && began.elapsed() < Duration::from_secs(2) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let there = ids(&shard).await;
    assert!(there.contains(&1) && !there.contains(&4) && !there.contains(&5), "{there:?}");
}

/// I-61: errors about connections are clear, and do not show the password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_cannot_be_opened_says_why_without_the_password() {
    let server =
        PgServer::start(PgOptions { fsync: false, settings: vec!["password_encryption=scram-sha-256".into()] });
    server.run_sql("postgres", "CREATE ROLE someone LOGIN PASSWORD 'right'");
    let port = server.port();
    let hba = "host all someone 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\nlocal all all trust\n";
    server.run_sql(
        "postgres",
        &format!("COPY (SELECT unnest(string_to_array('{hba}', E'\\n'))) TO PROGRAM 'cat > pg_hba.conf'"),
    );
    server.run_sql("postgres", "SELECT pg_reload_conf()");
    let began = Instant::now();
    let guarded = format!("postgres://someone:hunter2@127.0.0.1:{port}/postgres");
    while !matches!(try_open(&guarded, PostgresOptions::default()).await, Err(ShardError::Invalid(_))) {
        assert!(began.elapsed() < Duration::from_secs(5), "the server does not read its configuration");
    }
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let cases = [
        (guarded, "password authentication failed", true),
        (format!("postgres://postgres:hunter2@127.0.0.1:{port}/nowhere"), "\"nowhere\" does not exist", true),
        (format!("postgres://postgres:hunter2@127.0.0.1:{closed}/postgres"), "refused", false),
        ("postgres://postgres:hunter2@127.0.0.1:99999999/x".into(), "not a PostgreSQL URL", true),
        ("mysql://postgres:hunter2@127.0.0.1/x?hunter2=1".into(), "not a PostgreSQL URL", true),
        (format!("postgres://postgres:hunter2@127.0.0.1:{port}/postgres?sslmode=require"), "TLS", true),
    ];
    for (url, part, ours) in cases {
        let error = try_open(&url, PostgresOptions::default()).await.map(drop).expect_err(&url);
        let text = format!("{error} {error:?} {:?}", error.for_people());
        assert!(text.contains(part), "{url}: {text}");
        assert!(!text.contains("hunter2"), "{text}");
        assert_eq!(matches!(error, ShardError::Invalid(_)), ours, "{text}");
        assert_eq!(matches!(error, ShardError::Unavailable(_)), !ours, "{text}");
    }
}

/// F15: the server goes and comes back; nothing here has to be restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_is_used_again() {
    let server = PgServer::start(PgOptions { fsync: false, ..PgOptions::default() });
    let shard = open_at(&server.create_database(), PostgresOptions::default()).await;
    prepare(&shard).await;
    shard.execute(item_write(1)).await.expect("the server is there");
    server.kill9();
    for _ in 0..3 {
        assert!(matches!(shard.execute(item_write(2)).await, Err(ShardError::Unavailable(_))));
        assert!(matches!(shard.seq().await, Err(ShardError::Unavailable(_))));
    }
    server.restart();
    shard.execute(item_write(3)).await.expect("the server is back");
    assert_eq!(ids(&shard).await, BTreeSet::from([1, 3]));
    shard.close().await.expect("it closes");
    assert!(matches!(shard.execute(item_write(4)).await, Err(ShardError::Unavailable(_))));
}

fn note(tenant: Option<&str>, id: i64, seq: u64, parent: Option<i64>, body: Option<&str>) -> Incoming {
    let unit = Unit::Tenant(tenant.map(|name| TenantId::new(name).expect("valid")));
    let row = body.map(|body| vec![Value::Int(id), parent.map_or(Value::Null, Value::Int), Value::text(body)]);
    incoming("notes", unit, Value::Int(id), seq, row)
}

fn batch(rows: Vec<Incoming>) -> Batch {
    Batch::new(&stream("move"), rows)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applying_in_any_order_ends_in_the_same_rows_and_is_not_captured() {
    let (shard, _) = new_shard().await;
    let from = shard.add_consumer(&stream("reader")).await.expect("capture is on");
    // A child before its parent, and in another batch.
    shard.apply(batch(vec![note(Some("a"), 2, 5, Some(1), Some("child"))])).await.expect("a child applies first");
    let rows = vec![
        note(Some("a"), 1, 3, None, Some("old")),
        note(Some("a"), 1, 7, None, Some("new")),
        note(Some("a"), 3, 9, None, None),
        note(None, 1, 4, None, Some("null tenant")),
    ];
    let applied = shard.apply(batch(rows.clone())).await.expect("it applies");
    assert_eq!((applied.written, applied.deleted, applied.stale), (2, 1, 1));
    let again = shard.apply(batch(rows)).await.expect("it applies again");
    assert_eq!((again.written, again.deleted, again.stale), (0, 0, 4));
    let late = shard.apply(batch(vec![note(Some("a"), 3, 8, None, Some("late"))])).await.expect("it applies");
    assert_eq!(late.stale, 1, "the tombstone holds");
    // Two rows swap the values of a unique key.
    let swap = vec![note(Some("a"), 1, 20, None, Some("child")), note(Some("a"), 2, 20, Some(1), Some("new"))];
    assert_eq!(shard.apply(batch(swap)).await.expect("they swap").written, 2);
    let positioned =
        |position| Batch { position: Some(Seq(position)), cursor: Some(vec![position as u8]), ..batch(vec![]) };
    shard.apply(positioned(9)).await.expect("it applies");
    shard.apply(positioned(4)).await.expect("it applies");
    let state = shard.stream_state(&stream("move")).await.expect("a state");
    assert_eq!((state.position, state.cursor), (Seq(9), Some(vec![4])));
    let mut snapshot = shard.snapshot().await.expect("a snapshot");
    let a = KeyRange::table("notes").within(Scope::Tenants(vec![Some(TenantId::new("a").expect("valid"))]));
    assert_eq!(snapshot.page(&a, 10).await.expect("a page").rows.len(), 2);
    let null = KeyRange::table("notes").within(Scope::Tenants(vec![None]));
    assert_eq!(snapshot.page(&null, 10).await.expect("a page").rows.len(), 1);
    assert_eq!(shard.changes(from, 10).await.expect("a page").changes, vec![], "nothing of it is captured");
    shard.forget_stream(&stream("move"), None).await.expect("forgotten");
    let after = shard.apply(batch(vec![note(Some("a"), 3, 8, None, Some("late"))])).await.expect("it applies");
    assert_eq!(after.written, 1, "the tombstone went with its stream");
    // Bug H8: a row of another unit is not replaced.
    let item = |bucket, seq| {
        let unit = Unit::Bucket(group(), BucketId(bucket));
        incoming("items", unit, Value::Int(1), seq, Some(vec![Value::Int(1), Value::text("theirs")]))
    };
    run(&shard, "INSERT INTO items (_bucket, id, body) VALUES (1, 1, 'ours')").await;
    assert!(shard.apply(batch(vec![item(2, 50)])).await.is_err());
    assert_eq!(one_int(&shard, "SELECT count(*) FROM items WHERE body = 'ours' AND _bucket = 1").await, 1);
    assert_eq!(shard.apply(batch(vec![item(1, 50)])).await.expect("the same unit").written, 1);
    let stored = |id: i64, bucket: u32| StoredRow {
        unit: Unit::Bucket(group(), BucketId(bucket)),
        values: vec![Value::Int(id), Value::text("imported")],
    };
    let seq = shard.seq().await.expect("a position");
    assert!(shard.import("items", vec![stored(2, 2), stored(1, 1)], ImportMode::Insert).await.is_err());
    assert!(shard.import("items", vec![stored(2, 2), stored(1, 3)], ImportMode::Upsert).await.is_err());
    assert_eq!(shard.import("items", vec![stored(2, 2), stored(1, 1), stored(2, 2)], ImportMode::Upsert).await, Ok(3));
    assert_eq!(read_log(&shard, seq, 10, 2).await.len(), 2, "an import is captured");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_kept_for_the_slowest_reader_up_to_its_limit() {
    let url = pgserver::shared().create_database();
    let shard = open_at(&url, PostgresOptions { max_log_records: 300, ..PostgresOptions::default() }).await;
    prepare(&shard).await;
    let (slow, fast) = (stream("slow"), stream("fast"));
    let from = shard.add_consumer(&slow).await.expect("capture is on");
    for id in 0..20 {
        shard.execute(item_write(id)).await.expect("a write");
    }
    assert_eq!(shard.add_consumer(&fast).await.expect("at the present"), shard.seq().await.expect("a position"));
    assert_eq!(shard.add_consumer(&slow).await, Ok(from), "where it stood");
    assert_eq!(shard.stats().await.expect("stats").log_records, 20);
    let page = shard.changes(from, 5).await.expect("a page");
    shard.advance(&slow, page.through).await.expect("it moves");
    assert_eq!(shard.stats().await.expect("stats").log_records, 15);
    assert_eq!(shard.changes(from, 5).await, Err(ShardError::Trimmed { trimmed: page.through.0 }));
    assert!(shard.advance(&slow, Seq(1_000_000)).await.is_err());
    for id in 100..700 {
        shard.execute(item_write(id)).await.expect("a write");
        if id % 50 == 0 {
            let _ = shard.advance(&fast, shard.seq().await.expect("a position")).await;
        }
    }
    let began = Instant::now();
    while shard.consumers().await.expect("consumers").len() > 1 {
        assert!(began.elapsed() < Duration::from_secs(5), "the slow reader is not dropped");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let consumers = shard.consumers().await.expect("consumers");
    assert_eq!(consumers[0].stream, fast);
    shard.advance(&fast, shard.seq().await.expect("a position")).await.expect("it moves");
    assert!(matches!(shard.changes(page.through, 5).await, Err(ShardError::Trimmed { .. })));
    assert!(matches!(shard.advance(&slow, page.through).await, Err(ShardError::Trimmed { .. })));
    // All trimmed, reopened: the positions go on from where they were.
    let seq = shard.seq().await.expect("a position");
    let again = open_at(&url, PostgresOptions::default()).await;
    assert_eq!(again.seq().await, Ok(seq));
    again.execute(item_write(9_999)).await.expect("a write");
    assert_eq!(read_log(&again, seq, 10, 1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_records_are_read_with_the_schema_of_their_time() {
    let (shard, url) = new_shard().await;
    let from = shard.add_consumer(&stream("reader")).await.expect("capture is on");
    shard.execute(item_write(1)).await.expect("a write");
    let column = Column { default: Some(Value::Int(7)), ..Column::new("more", DataType::Int4) }.not_null();
    let add = vec![SchemaChange::AddColumn { table: "items".into(), column }];
    shard.apply_schema(SchemaVersion(1), add.clone()).await.expect("a column more");
    assert_eq!(
        shard.apply_schema(SchemaVersion(1), add.clone()).await.expect("already made").version,
        SchemaVersion(2)
    );
    let other = vec![SchemaChange::DropColumn { table: "items".into(), column: "body".into() }];
    assert!(shard.apply_schema(SchemaVersion(1), other.clone()).await.is_err(), "another change from an old version");
    shard.execute(item_write(2)).await.expect("a write");
    shard.apply_schema(SchemaVersion(2), other).await.expect("a column less");
    run(&shard, "INSERT INTO items (_bucket, id) VALUES (3, 3)").await;
    shard
        .apply_schema(SchemaVersion(3), vec![SchemaChange::CreateTable(Table { name: "more".into(), ..items() })])
        .await
        .expect("a table");
    run(&shard, "INSERT INTO more (_bucket, id) VALUES (4, 4)").await;
    let log = read_log(&shard, from, 10, 4).await;
    let images: Vec<_> = log.iter().map(|change| (change.schema.0, change.after.clone().expect("an insert"))).collect();
    let int = Value::Int;
    let expected = vec![
        (1, vec![int(1), Value::text("x")]),
        (2, vec![int(2), Value::text("x"), int(7)]),
        (3, vec![int(3), int(7)]),
        (4, vec![int(4), Value::Null]),
    ];
    assert_eq!(images, expected, "and a table that was made under capture is captured");
    // A statement that was prepared before the change is prepared again.
    let star =
        || Request::read(claim(1, 0), select("SELECT * FROM more", &[DataType::Int4, DataType::Int8, DataType::Text]));
    assert!(shard.execute(star()).await.is_ok());
    let other = open_at(&url, PostgresOptions::default()).await;
    let drop = vec![SchemaChange::AddColumn { table: "more".into(), column: Column::new("extra", DataType::Text) }];
    other.apply_schema(SchemaVersion(4), drop).await.expect("changed from elsewhere");
    let wide = select("SELECT * FROM more", &[DataType::Int4, DataType::Int8, DataType::Text, DataType::Text]);
    shard.execute(Request::read(claim(1, 0), wide)).await.expect("the new shape is seen");
    assert_eq!(shard.schema().await.expect("a schema").version, SchemaVersion(5));
    client(&url).await.batch_execute("ALTER TABLE items ADD COLUMN by_hand int").await.expect("someone can");
    assert!(matches!(try_open(&url, PostgresOptions::default()).await.map(drop_shard), Err(ShardError::Corrupt(_))));
}

fn drop_shard(_: PostgresShard) {}

/// What a consumer has that applies the changes of the global table `tree` in order.
fn replay(log: &[Change]) -> BTreeMap<i64, Vec<Value>> {
    let mut rows = BTreeMap::new();
    for change in log {
        match &change.after {
            Some(row) => rows.insert(int(&change.key[0]), row.clone()),
            None => rows.remove(&int(&change.key[0])),
        };
    }
    rows
}

/// I-29: a trigger or cascade changes rows whose own change, in the same statement, has not been logged yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_ends_in_the_same_rows_when_triggers_change_rows_of_their_own_statement() {
    let (shard, _) = new_shard().await;
    let tree = Table {
        name: "tree".into(),
        kind: TableKind::Reference,
        columns: vec![
            Column::new("i'd", DataType::Int8).not_null(),
            Column::new("parent", DataType::Int8),
            Column::new("times", DataType::Int4),
        ],
        primary_key: vec!["i'd".into()],
        keys: vec![],
        foreign_keys: vec![ForeignKey {
            name: "up".into(),
            columns: vec!["parent".into()],
            table: "tree".into(),
            references: vec!["i'd".into()],
            on_delete: OnChange::Cascade,
            on_update: OnChange::Cascade,
            deferral: Deferral::None,
        }],
        checks: vec![],
        primary_key_name: None,
        hidden_key: false,
    };
    let body = "BEGIN UPDATE tree SET times = times + 1 WHERE \"i'd\" <> NEW.\"i'd\" AND times < 3; \
                DELETE FROM tree WHERE \"i'd\" = NEW.\"i'd\" - 1000; RETURN NULL; END";
    let object = Object {
        name: "count".into(),
        kind: ObjectKind::Trigger,
        sqlite: String::new(),
        postgres: format!(
            "CREATE FUNCTION count_tree() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$; \
             CREATE TRIGGER count_tree AFTER INSERT ON tree FOR EACH ROW EXECUTE FUNCTION count_tree()"
        ),
        postgres_drop: "DROP FUNCTION count_tree() CASCADE".into(),
    };
    let changes = vec![SchemaChange::CreateTable(tree), SchemaChange::CreateObject(object)];
    shard.apply_schema(SchemaVersion(1), changes).await.expect("the table is made");
    let from = shard.add_consumer(&stream("reader")).await.expect("capture is on");
    let statements = [
        "INSERT INTO tree VALUES (1, NULL, 0), (2, 1, 0), (3, 2, 0), (4, 3, 0), (5, 1, 0)",
        "UPDATE tree SET \"i'd\" = \"i'd\" + 100",
        "INSERT INTO tree VALUES (1, NULL, 0), (1001, NULL, 0), (2, NULL, 0)",
        "WITH gone AS (DELETE FROM tree WHERE \"i'd\" = 102 RETURNING *) INSERT INTO tree SELECT 7, NULL, 0 FROM gone",
        "UPDATE tree SET times = 9",
        "INSERT INTO tree VALUES (1002, NULL, 0) ON CONFLICT DO NOTHING",
    ];
    for text in statements {
        let claim = Claim::new(RoutingVersion(1), vec![Claimed::Shared]);
        let request = Request::write(claim, vec![sql(text, vec![])]);
        shard.execute(request).await.unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut snapshot = shard.snapshot().await.expect("a snapshot");
        let page = snapshot.page(&KeyRange::table("tree"), 100).await.expect("a page");
        let rows: BTreeMap<i64, Vec<Value>> =
            page.rows.into_iter().map(|row| (int(&row.values[0]), row.values)).collect();
        let began = Instant::now();
        loop {
            let log = shard.changes(from, 1_000).await.expect("the log").changes;
            if replay(&log) == rows {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(10), "after {text}:\n{rows:?}\n{log:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_is_opened_by_many_at_once_and_not_by_an_older_version() {
    let url = pgserver::shared().create_database();
    let opened = futures::future::join_all((0..4).map(|_| try_open(&url, PostgresOptions::default()))).await;
    assert!(opened.iter().all(Result::is_ok));
    client(&url).await.batch_execute("UPDATE _isles.meta SET format = 99").await.expect("a later version");
    let error = try_open(&url, PostgresOptions::default()).await.map(drop_shard).expect_err("it is newer");
    assert!(matches!(&error, ShardError::Invalid(text) if text.contains("format 99")), "{error}");
}

/// I-11: a shard that was set up before there were fences around whole groups asks for them once it is opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_shard_learns_of_strangers_when_it_is_opened() {
    let (shard, url) = new_shard().await;
    drop(shard);
    let before = "DROP FUNCTION _isles.look_within(bigint, boolean, text[], text[], bigint[]); \
        CREATE OR REPLACE FUNCTION _isles.look( \
            claimed bigint, writes boolean, tenants text[], groups text[], buckets bigint[]) RETURNS text \
        LANGUAGE sql AS 'SELECT '''''; UPDATE _isles.meta SET format = 4";
    client(&url).await.batch_execute(before).await.expect("as the fourth format was, if it let all through");
    let shard = open_at(&url, PostgresOptions::default()).await;
    let all = || Claim::new(RoutingVersion(1), vec![Claimed::Buckets(group(), BucketId(0), BucketId(7))]);
    let read = || Request::read(all(), select("SELECT 1", &[DataType::Int4]).composed());
    assert_eq!(shard.execute(read()).await.map(drop), Ok(()));
    let whole = FenceScope::Whole { group: group() };
    let closed = Fence { scope: whole, version: RoutingVersion(1), mode: FenceMode::Closed };
    shard.set_fences(vec![closed], Duration::from_secs(5)).await.expect("fences");
    let strangers = Err(ShardError::Strangers { group: group() });
    assert_eq!(shard.execute(read()).await.map(drop), strangers);
    assert_eq!(shard.execute(Request::write(all(), vec![insert_item(1)])).await.map(drop), strangers);
}

/// Whoever dies while it registers a reader has been promised nothing; the next one gets a whole log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_was_half_registered_is_registered_anew() {
    let (shard, url) = new_shard().await;
    let half = "INSERT INTO _isles.consumer (stream) VALUES ('reader')";
    client(&url).await.batch_execute(half).await.expect("as if it had died here");
    shard.execute(item_write(1)).await.expect("it is not captured");
    assert_eq!(shard.consumers().await, Ok(vec![]));
    let from = shard.add_consumer(&stream("reader")).await.expect("capture is on");
    shard.execute(item_write(2)).await.expect("it is captured");
    assert_eq!(
        read_log(&shard, from, 10, 1).await.iter().map(short).collect::<Vec<_>>(),
        vec![("items".to_string(), Op::Insert, vec![Value::Int(2)])]
    );
    // The same when the shard is opened: capture is what the readers want.
    client(&url).await.batch_execute("DELETE FROM _isles.consumer").await.expect("as if it had died here");
    let again = open_at(&url, PostgresOptions::default()).await;
    again.execute(item_write(3)).await.expect("it is not captured");
    assert_eq!(again.stats().await.expect("stats").log_records, 0);
}

/// A superuser is needed for nothing but applying rows of other shards, and that can be granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordinary_user_is_enough() {
    let server = pgserver::shared();
    server.run_sql("postgres", "CREATE ROLE plain LOGIN");
    server.run_sql("postgres", "CREATE DATABASE plain OWNER plain");
    let url = server.url("plain").replace("postgres@", "plain@");
    // The clients' role is there or not, as other tests have opened shards of this server or have not.
    let refused = try_open(&url, PostgresOptions::default()).await.map(drop_shard).expect_err("it may make no role");
    let hint = refused.for_people().hint.expect("what to do");
    let needed = "CREATE ROLE isles_tenant NOLOGIN; CREATE ROLE isles_everyone NOLOGIN IN ROLE isles_tenant; \
                  GRANT isles_tenant, isles_everyone TO \"plain\"";
    assert!(hint.contains(needed), "{hint}");
    for role in ["isles_tenant", "isles_everyone"] {
        server.run_sql(
            "postgres",
            &format!(
                "DO $$ BEGIN CREATE ROLE {role} NOLOGIN; \
                 EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
            ),
        );
    }
    server.run_sql("postgres", "GRANT isles_tenant TO isles_everyone");
    server.run_sql("postgres", "GRANT isles_tenant, isles_everyone TO plain");
    let shard = open_at(&url, PostgresOptions::default()).await;
    prepare(&shard).await;
    let from = shard.add_consumer(&stream("reader")).await.expect("capture is on");
    shard.execute(item_write(1)).await.expect("a write");
    assert_eq!(read_log(&shard, from, 10, 1).await.len(), 1);
    let rows = || batch(vec![note(Some("a"), 1, 1, None, Some("x"))]);
    let refused = shard.apply(rows()).await;
    assert!(
        matches!(&refused, Err(ShardError::Invalid(text)) if text.contains("GRANT SET ON PARAMETER")),
        "{refused:?}"
    );
    server.run_sql("postgres", "GRANT SET ON PARAMETER session_replication_role TO plain");
    assert_eq!(shard.apply(rows()).await.expect("it was granted").written, 1);
    // Policies bind whom owns the table and is no superuser, and then the server knows no COPY into it.
    let copied = Batch { kind: BatchKind::Copy, ..batch(vec![note(Some("a"), 2, 1, None, Some("y"))]) };
    assert_eq!(shard.apply(copied).await.expect("it is copied").written, 1);
    assert_eq!(shard.changes(shard.seq().await.expect("a position"), 10).await.expect("a page").changes, vec![]);
}

/// A client that knows the names of our settings still cannot write past the log, nor commit less than durably.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_cannot_switch_the_capture_off() {
    let (shard, _) = new_shard().await;
    let from = shard.add_consumer(&stream("reader")).await.expect("capture is on");
    let write = |texts: &[&str]| {
        let request = Request::write(claim(1, 1), texts.iter().map(|text| sql(text, vec![])).collect());
        request.acting_for(ActsFor::Tenant(Some(TenantId::new("a").expect("valid"))))
    };
    let texts = [
        "SELECT set_config('isles.applying', 'guess', true)",
        "SET LOCAL synchronous_commit = off",
        "INSERT INTO items (_bucket, id) VALUES (1, 1)",
        "INSERT INTO notes (_shard, id) VALUES ('a', 1)",
    ];
    shard.execute(write(&texts)).await.expect("it runs");
    // Only who may set it and has left the clients' role.
    let replica = "SET LOCAL session_replication_role = replica";
    assert_eq!(shard.execute(write(&[replica])).await.expect_err("it is refused").for_people().sqlstate, "42501");
    let texts = ["SET LOCAL ROLE NONE", replica, "INSERT INTO items (_bucket, id) VALUES (1, 2)"];
    shard.execute(write(&texts)).await.expect("it runs");
    assert_eq!(read_log(&shard, from, 10, 3).await.len(), 3);
}

/// A row that had a unique value before another one got it arrives late, in a batch of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_older_of_two_rows_that_collide_gives_way() {
    let (shard, _) = new_shard().await;
    // At the source: 1 had "x" (3), lost it (5); 2 got it (6), lost it (8); 3 has it (9), and 1 has "y" (10).
    let mut history = vec![
        note(Some("a"), 1, 3, None, Some("x")),
        note(Some("a"), 1, 5, None, Some("w")),
        note(Some("a"), 2, 6, None, Some("x")),
        note(Some("a"), 2, 8, None, None),
        note(Some("a"), 3, 9, None, Some("x")),
        note(Some("a"), 1, 10, None, Some("y")),
    ];
    let mut turn = 1usize;
    for round in 0..24 {
        let name = stream(&format!("round{round}"));
        for row in &history {
            let one = Batch::new(&name, vec![row.clone()]);
            shard.apply(one).await.unwrap_or_else(|error| panic!("{history:#?}: {error}"));
        }
        let mut snapshot = shard.snapshot().await.expect("a snapshot");
        let page = snapshot.page(&KeyRange::table("notes"), 10).await.expect("a page");
        let rows: Vec<(i64, Value)> =
            page.rows.iter().map(|row| (int(&row.values[0]), row.values[2].clone())).collect();
        assert_eq!(rows, vec![(1, Value::text("y")), (3, Value::text("x"))], "{history:#?}");
        drop(snapshot);
        shard.forget_stream(&name, None).await.expect("forgotten");
        assert_eq!(run_as(&shard, Some("a"), "DELETE FROM notes").await, 2);
        turn = turn * 31 % 1_009;
        let (a, b) = (turn % 6, turn / 6 % 6);
        history.swap(a, b);
    }
    run_as(&shard, Some("a"), "INSERT INTO notes (_shard, id, body) VALUES ('a', 9, 'x')").await;
    shard.apply(batch(vec![note(Some("a"), 3, 9, None, Some("x"))])).await.expect("it applies");
    let mut snapshot = shard.snapshot().await.expect("a snapshot");
    let page = snapshot.page(&KeyRange::table("notes"), 10).await.expect("a page");
    let ids = page.rows.iter().map(|row| int(&row.values[0])).collect::<Vec<_>>();
    assert_eq!(ids, vec![3], "a row of the unit of which nothing is known gives way");
}

/// The fence in SQL says what the fence in Rust says, for every claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fence_in_sql_is_the_fence_of_the_table() {
    let (shard, _) = new_shard().await;
    let mut random = 12_345u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let tenants = [None, Some(TenantId::new("a").expect("valid")), Some(TenantId::new("b").expect("valid"))];
    let modes = [FenceMode::Open, FenceMode::ReadOnly, FenceMode::Closed];
    for version in 2..40 {
        let first = next(12) as u32;
        let scope = match next(5) {
            0 => FenceScope::Tenant(tenants[next(3) as usize].clone()),
            1 => FenceScope::Shared,
            2 => FenceScope::Whole { group: group() },
            _ => FenceScope::Buckets { group: group(), first: BucketId(first), last: BucketId(first + next(4) as u32) },
        };
        let mode = match (modes[next(3) as usize], &scope) {
            (FenceMode::ReadOnly, FenceScope::Whole { .. }) => FenceMode::Closed,
            (mode, _) => mode,
        };
        let fence = Fence { scope, version: RoutingVersion(version), mode };
        shard.set_fences(vec![fence], Duration::from_secs(5)).await.expect("versions rise");
        let table = FenceTable::from_fences(shard.fences().await.expect("fences")).expect("valid");
        for _ in 0..8 {
            let units = (0..1 + next(3)).map(|_| match next(5) {
                0 => Claimed::Bucket(group(), BucketId(next(14) as u32)),
                3 => Claimed::Buckets(group(), BucketId(next(4) as u32), BucketId(4 + next(4) as u32)),
                4 => Claimed::OwnBuckets(group(), BucketId(next(4) as u32), BucketId(4 + next(4) as u32)),
                1 => Claimed::Tenant(tenants[next(3) as usize].clone(), group(), BucketId(next(14) as u32)),
                _ => Claimed::Shared,
            });
            let units = units.collect();
            let claim = Claim::new(RoutingVersion(version.saturating_sub(next(12))), units);
            let access = if next(2) == 0 { Access::Read } else { Access::Write };
            let statements = vec![sql("SELECT 1", vec![])];
            let request = Request { access, ..Request::write(claim.clone(), statements) };
            assert_eq!(shard.execute(request).await.map(drop), table.check(&claim, access), "{claim:?} {access:?}");
            let alone = Request::read(claim.clone(), select("SELECT 1", &[DataType::Int4]).composed());
            assert_eq!(shard.execute(alone).await.map(drop), table.check(&claim, Access::Read), "{claim:?} alone");
        }
    }
}
