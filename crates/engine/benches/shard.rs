//! A SQLite shard beside raw rusqlite, in one run, as ratios.
//!
//! Each figure is measured in rounds that alternate between the raw engine and ours, so that a slow moment of the
//! machine hits both; the ratio printed is the median over the rounds. Run it with `cargo xtask bench shard`.

use isles_engine::env::{Env, TokioEnv};
use isles_engine::fence::{Claim, Claimed, Fence, FenceMode, FenceScope};
use isles_engine::shard::{Request, Shard, Statement};
use isles_engine::sqlite::fleet::Fleet;
use isles_engine::sqlite::{SqliteOptions, SqliteShard};
use isles_kernel::names::{BucketId, GroupName, RoutingVersion, SchemaVersion, ShardId, StreamId};
use isles_kernel::schema::{Column, SchemaChange, Table, TableKind};
use isles_kernel::value::{DataType, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
const ROUND_TIME: Duration = Duration::from_millis(1_500);
const WRITERS: usize = 64;
const READ_ROWS: u64 = 100_000;
const THREADS: usize = 2;
const OPEN_SHARDS: usize = 1_000;

fn main() {
    // Cargo passes flags of its own harness; none of them means anything here.
    let root = tempfile::Builder::new().prefix("isles-bench").tempdir_in(target_dir()).expect("a folder");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build().expect("tokio");
    runtime.block_on(async {
        let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
        if wanted("writes") || wanted("reads") {
            println!("SQLite shard beside raw rusqlite: median of {ROUNDS} rounds\n");
        }
        if wanted("writes") {
            writes(root.path(), &env).await;
        }
        if wanted("reads") {
            reads(root.path(), &env).await;
        }
        if std::env::args().any(|argument| argument == "fleet") {
            fleet(root.path(), &env).await;
        } else if wanted("fleet") {
            fleet_alone();
        }
    });
}

/// All figures, or those that the arguments name.
fn wanted(name: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
    named.peek().is_none() || named.any(|argument| argument == name)
}

/// The bench must be on the disk that the program would use, and not in a folder of memory.
fn target_dir() -> PathBuf {
    std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf)).unwrap_or_else(|| ".".into())
}

fn group() -> GroupName {
    GroupName::new("orders").expect("valid")
}

fn claim() -> Claim {
    Claim::new(RoutingVersion(1), vec![Claimed::Bucket(group(), BucketId(7))])
}

fn orders() -> Table {
    Table {
        name: "orders".into(),
        kind: TableKind::Hash { group: group(), shard_by: vec!["id".into()], buckets: 64, regions: vec![] },
        columns: vec![
            Column::new("id", DataType::Text).not_null(),
            Column::new("customer", DataType::Text),
            Column::new("amount", DataType::Int8),
            Column::new("note", DataType::Text),
        ],
        primary_key: vec!["id".into()],
        keys: vec![],
        foreign_keys: vec![],
        checks: vec![],
        primary_key_name: None,
        hidden_key: false,
    }
}

const RAW_TABLE: &str =
    "CREATE TABLE orders (id TEXT PRIMARY KEY, customer TEXT, amount INTEGER, note TEXT) WITHOUT ROWID";
const RAW_INSERT: &str = "INSERT INTO orders (id, customer, amount, note) VALUES (?1, ?2, ?3, ?4)";
const RAW_SELECT: &str = "SELECT id, customer, amount, note FROM orders WHERE id = ?1";
const OUR_INSERT: &str = "INSERT INTO orders (_bucket, id, customer, amount, note) VALUES ($1, $2, $3, $4, $5)";
const OUR_SELECT: &str = "SELECT id, customer, amount, note FROM orders WHERE id = $1";
const NOTE: &str = "left at the door, as the customer asked for by telephone";

/// Ids rise, as UUIDv7 ids do.
fn id(n: u64) -> String {
    format!("01920000-{:04x}-7000-8000-{:012x}", n >> 48 & 0xffff, n & 0xffff_ffff_ffff)
}

fn raw(path: &Path) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(path).expect("open");
    connection.pragma_update(None, "journal_mode", "WAL").expect("wal");
    connection.pragma_update(None, "synchronous", "FULL").expect("full");
    connection
}

async fn shard(path: &Path, env: &Arc<dyn Env>) -> SqliteShard {
    let id = ShardId::new("bench").expect("valid");
    let shard = SqliteShard::open(id, path, env.clone(), SqliteOptions::default()).await.expect("open");
    let scope = FenceScope::Buckets { group: group(), first: BucketId(0), last: BucketId(63) };
    let fence = Fence { scope, version: RoutingVersion(1), mode: FenceMode::Open };
    shard.set_fences(vec![fence], Duration::from_secs(5)).await.expect("fences");
    shard.apply_schema(SchemaVersion(0), vec![SchemaChange::CreateTable(orders())]).await.expect("schema");
    shard
}

/// Rows per second of `work`, which returns how many rows it wrote or read.
fn rate(work: impl FnOnce(Instant) -> u64) -> f64 {
    let began = Instant::now();
    let rows = work(began + ROUND_TIME);
    rows as f64 / began.elapsed().as_secs_f64()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn report(name: &str, ours: &[f64], peer: &[f64], goal: &str) {
    let ratio = median(ours.iter().zip(peer).map(|(a, b)| a / b).collect());
    println!(
        "{name:<52} {ratio:>6.2} x   ({:>9.0}/s against {:>9.0}/s)   {goal}",
        median(ours.to_vec()),
        median(peer.to_vec())
    );
}

async fn writes(root: &Path, env: &Arc<dyn Env>) {
    let mut single = raw(&root.join("single.db"));
    let mut batched = raw(&root.join("batched.db"));
    single.execute_batch(RAW_TABLE).expect("table");
    batched.execute_batch(RAW_TABLE).expect("table");
    let plain = shard(&root.join("plain.db"), env).await;
    let captured = shard(&root.join("captured.db"), env).await;
    captured.add_consumer(&StreamId::new("bench").expect("valid")).await.expect("consumer");
    let next = Arc::new(AtomicU64::new(0));
    let mut figures: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        figures[0].push(rate(|until| raw_writes(&mut single, &next, 1, until)));
        figures[1].push(rate(|until| raw_writes(&mut batched, &next, 64, until)));
        figures[2].push(our_writes(&plain, &next).await);
        figures[3].push(our_writes(&captured, &next).await);
    }
    let [one, many, plain_rate, captured_rate] = &figures;
    report("64 writers, against raw commits one by one", plain_rate, one, "at least 10");
    report("64 writers, against raw commits of 64", plain_rate, many, "at least 0.4, wanted 0.8");
    report("64 writers with capture, against without", captured_rate, plain_rate, "at least 0.75");
    let stats = plain.stats().await.expect("stats");
    println!("{:<52} {:>6.1}\n", "transactions per flush", stats.transactions as f64 / stats.commits as f64);
}

fn raw_writes(connection: &mut rusqlite::Connection, next: &AtomicU64, batch: u64, until: Instant) -> u64 {
    let mut begin = connection.prepare("BEGIN IMMEDIATE").expect("prepare");
    let mut insert = connection.prepare(RAW_INSERT).expect("prepare");
    let mut commit = connection.prepare("COMMIT").expect("prepare");
    let mut rows = 0;
    while Instant::now() < until {
        begin.execute([]).expect("begin");
        for _ in 0..batch {
            let n = next.fetch_add(1, Ordering::Relaxed);
            insert.execute(rusqlite::params![id(n), "customer-17", n as i64, NOTE]).expect("insert");
        }
        commit.execute([]).expect("commit");
        rows += batch;
    }
    rows
}

async fn our_writes(shard: &SqliteShard, next: &Arc<AtomicU64>) -> f64 {
    let began = Instant::now();
    let until = began + ROUND_TIME;
    let sql: Arc<str> = OUR_INSERT.into();
    let writers = (0..WRITERS).map(|_| {
        let (shard, next, sql) = (shard.clone(), next.clone(), sql.clone());
        tokio::spawn(async move {
            let mut rows = 0u64;
            while Instant::now() < until {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let params = vec![
                    Value::Int(7),
                    Value::Text(id(n)),
                    Value::text("customer-17"),
                    Value::Int(n as i64),
                    Value::text(NOTE),
                ];
                let statement = Statement::new(sql.clone(), params);
                shard.execute(Request::write(claim(), vec![statement])).await.expect("insert");
                rows += 1;
            }
            rows
        })
    });
    let mut rows = 0;
    for writer in writers.collect::<Vec<_>>() {
        rows += writer.await.expect("writer");
    }
    rows as f64 / began.elapsed().as_secs_f64()
}

async fn reads(root: &Path, env: &Arc<dyn Env>) {
    let path = root.join("reads-raw.db");
    let mut connection = raw(&path);
    connection.execute_batch(RAW_TABLE).expect("table");
    let transaction = connection.transaction().expect("begin");
    for n in 0..READ_ROWS {
        transaction.execute(RAW_INSERT, rusqlite::params![id(n), "customer-17", n as i64, NOTE]).expect("insert");
    }
    transaction.commit().expect("commit");
    let shard = shard(&root.join("reads.db"), env).await;
    fill(&shard).await;
    let (mut ours, mut peer) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        peer.push(raw_reads(&path));
        ours.push(our_reads(&shard).await);
    }
    report("point reads, on as many threads", &ours, &peer, "at least 0.7");
    println!();
}

async fn fill(shard: &SqliteShard) {
    for chunk in 0..READ_ROWS / 1_000 {
        let rows = (chunk * 1_000..(chunk + 1) * 1_000).map(|n| {
            let params = vec![
                Value::Int(7),
                Value::Text(id(n)),
                Value::text("customer-17"),
                Value::Int(n as i64),
                Value::text(NOTE),
            ];
            Statement::new(OUR_INSERT, params)
        });
        shard.execute(Request::write(claim(), rows.collect())).await.expect("fill");
    }
}

/// Keys in an order that no cache likes, the same for both.
fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % READ_ROWS
}

fn raw_reads(path: &Path) -> f64 {
    let began = Instant::now();
    let until = began + ROUND_TIME;
    let threads = (0..THREADS as u64).map(|thread| {
        let path = path.to_path_buf();
        std::thread::spawn(move || {
            let connection = raw(&path);
            // As large a cache as ours has.
            connection.pragma_update(None, "cache_size", -(8 << 10)).expect("cache");
            let mut select = connection.prepare(RAW_SELECT).expect("prepare");
            let mut rows = 0u64;
            while Instant::now() < until {
                let row = select.query_row([id(scattered(rows + thread * 7_919))], |row| {
                    Ok((
                        row.get::<_, String>(0)?,
                        row.get::<_, String>(1)?,
                        row.get::<_, i64>(2)?,
                        row.get::<_, String>(3)?,
                    ))
                });
                assert_eq!(row.expect("row").3, NOTE);
                rows += 1;
            }
            rows
        })
    });
    let rows: u64 = threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().expect("reader")).sum();
    rows as f64 / began.elapsed().as_secs_f64()
}

async fn our_reads(shard: &SqliteShard) -> f64 {
    let began = Instant::now();
    let until = began + ROUND_TIME;
    let sql: Arc<str> = OUR_SELECT.into();
    let columns: Arc<[DataType]> = Arc::from([DataType::Text, DataType::Text, DataType::Int8, DataType::Text]);
    let readers = (0..THREADS as u64).map(|thread| {
        let (shard, sql, columns) = (shard.clone(), sql.clone(), columns.clone());
        tokio::spawn(async move {
            let mut rows = 0u64;
            while Instant::now() < until {
                let key = Value::Text(id(scattered(rows + thread * 7_919)));
                let statement = Statement::new(sql.clone(), vec![key]).returning(columns.clone());
                let outcome = shard.execute(Request::read(claim(), statement)).await.expect("read");
                assert_eq!(outcome[0].rows[0][3], Value::text(NOTE));
                rows += 1;
            }
            rows
        })
    });
    let mut rows = 0;
    for reader in readers.collect::<Vec<_>>() {
        rows += reader.await.expect("reader");
    }
    rows as f64 / began.elapsed().as_secs_f64()
}

/// Memory is the process's: this figure needs one that has done nothing else.
fn fleet_alone() {
    let exe = std::env::current_exe().expect("this program");
    let status = std::process::Command::new(exe).arg("fleet").status().expect("started");
    assert!(status.success(), "the fleet's figures");
}

/// A thousand shards, each written and read once.
async fn fleet(root: &Path, env: &Arc<dyn Env>) {
    let folder = root.join("fleet");
    std::fs::create_dir(&folder).expect("folder");
    let before = resident_kib();
    let fleet = Fleet::new(folder, env.clone(), SqliteOptions::default(), OPEN_SHARDS);
    for n in 0..OPEN_SHARDS as u64 {
        touch(&fleet, n).await;
    }
    let figures = fleet.figures();
    let each = (resident_kib() - before) as f64 / OPEN_SHARDS as f64;
    println!(
        "{OPEN_SHARDS} open shards, each written and read: {:.0} MiB resident ({each:.0} KiB each),",
        resident_kib() as f64 / 1024.0
    );
    println!("    {} file handles; goal at most 256 MiB", figures.open_files);
    drop(fleet);
}

async fn touch(fleet: &Fleet, n: u64) {
    let shard = fleet.get(&ShardId::new(format!("s{n}")).expect("valid")).await.expect("open");
    let scope = FenceScope::Buckets { group: group(), first: BucketId(0), last: BucketId(63) };
    let fence = Fence { scope, version: RoutingVersion(1), mode: FenceMode::Open };
    shard.set_fences(vec![fence], Duration::from_secs(5)).await.expect("fences");
    shard.apply_schema(SchemaVersion(0), vec![SchemaChange::CreateTable(orders())]).await.expect("schema");
    let params = vec![Value::Int(7), Value::Text(id(n)), Value::text("c"), Value::Int(1), Value::text(NOTE)];
    shard.execute(Request::write(claim(), vec![Statement::new(OUR_INSERT, params)])).await.expect("insert");
    let select = Statement::new(OUR_SELECT, vec![Value::Text(id(n))]);
    let select = select.returning([DataType::Text, DataType::Text, DataType::Int8, DataType::Text]);
    let outcome = shard.execute(Request::read(claim(), select)).await.expect("read");
    assert_eq!(outcome[0].rows.len(), 1);
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)).and_then(|kib| kib.parse().ok()).unwrap_or(0)
}
