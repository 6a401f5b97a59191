//! What operations on records cost, beside raw SQLite and Redis on the same machine in the same run.
//!
//! `cargo xtask bench stores [part…]`, of the parts
//!   * `ids`     making and reading an id, in nanoseconds
//!   * `once`    take and put-if-absent per second over 64 buckets, beside raw SQLite with as many rows in a commit, and
//!     beside `SET NX` of a Redis that syncs each write
//!   * `expiry`  a million expired records are swept, and how long others wait meanwhile
//!
//! Figures are ratios where they can be, since machines differ. Redis is left out if there is no `redis-server`.

use isles_cluster::database::{Config, Database};
use isles_engine::env::TokioEnv;
use isles_kernel::hash::{BucketCount, bucket_of};
use isles_kernel::id::ResourceId;
use isles_kernel::names::TenantId;
use isles_kernel::placement::{Placement, TypeName};
use isles_stores::{Address, IdSource, Outcome, Put, StoreConfig, Stores};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// As the server has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const THREADS: usize = 2;
/// Those who ask at once: as many as share a flush.
const CLIENTS: usize = 256;
/// How long each figure is measured.
const SPAN: Duration = Duration::from_secs(5);

fn main() {
    let root = tempfile::Builder::new().prefix("isles-bench").tempdir_in(target_dir()).expect("a folder");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build().expect("tokio");
    if wanted("ids") {
        ids();
    }
    if wanted("once") {
        runtime.block_on(once(root.path()));
    }
    if wanted("expiry") {
        runtime.block_on(expiry(root.path()));
    }
}

/// All figures, or those that the arguments name. Cargo passes flags of its own harness, which mean nothing here.
fn wanted(name: &str) -> bool {
    let mut named = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
    named.peek().is_none() || named.any(|argument| argument == name)
}

/// The bench must be on the disk that the program would use, and not in a folder of memory.
fn target_dir() -> PathBuf {
    std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf)).unwrap_or_else(|| ".".into())
}

fn acme() -> TenantId {
    TenantId::new("acme").expect("a name")
}

fn ids() {
    const ROUNDS: u32 = 1_000_000;
    let placement = Placement::preset();
    let session = TypeName::new("session").expect("a name");
    let unique = isles_kernel::id::UniquePart::new("550e8400-e29b-41d4-a716-446655440000").expect("a uuid");
    let began = Instant::now();
    let mut bytes = 0;
    for _ in 0..ROUNDS {
        let at = placement.locate(&session, unique.as_str()).expect("it is placed");
        bytes += placement.mint(&session, &at, unique.clone()).expect("an id").to_string().len();
    }
    let minted = began.elapsed() / ROUNDS;
    let at = placement.locate(&session, unique.as_str()).expect("it is placed");
    let id = placement.mint(&session, &at, unique).expect("an id").to_string();
    let began = Instant::now();
    for _ in 0..ROUNDS {
        let id = ResourceId::parse(std::hint::black_box(&id)).expect("an id");
        bytes += placement.check_id(&id).expect("it is placed").located.bucket.0 as usize;
    }
    println!(
        "ids: made in {} ns, read and checked in {} ns ({bytes})",
        minted.as_nanos(),
        (began.elapsed() / ROUNDS).as_nanos()
    );
}

async fn open(root: &Path, shards: usize) -> (tempfile::TempDir, Stores) {
    let folder = tempfile::tempdir_in(root).expect("a folder");
    let database =
        Database::open(Config::sqlite(folder.path(), shards), Arc::new(TokioEnv::current())).await.expect("it opens");
    let stores = Stores::open(database, IdSource::System).await.expect("stores");
    let config = StoreConfig {
        name: "once".into(),
        prefix: "onc".into(),
        group: "default".into(),
        key: "uuid".into(),
        ttl_ms: 3_600_000,
        ..StoreConfig::default()
    };
    stores.create(config).await.expect("a store");
    let groups = serde_json::json!({ "default": { "totalShards": 64, "members": [] } });
    let placement = serde_json::json!({
        "version": 2, "currentGeneration": 1, "baseRegions": { "enam": 100 }, "groups": groups,
    });
    (folder, stores.under(Placement::from_json(&placement.to_string()).expect("a placement")))
}

/// Operations per second of so many clients, and how many each has done. No client does more than `most`, if that is
/// said; then it ends with the first that has none left.
async fn rate<F>(most: Option<&[u64]>, work: impl Fn(usize, u64) -> F) -> (f64, Vec<u64>)
where
    F: Future<Output = bool> + Send + 'static,
{
    let (done, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let began = Instant::now();
    let mut running = futures::stream::FuturesUnordered::new();
    let mut numbers = vec![0_u64; CLIENTS];
    for client in 0..CLIENTS {
        running.push(one(client, tokio::spawn(work(client, 0))));
    }
    use futures::StreamExt;
    while let Some((client, good)) = running.next().await {
        assert!(good, "an operation was refused");
        done.fetch_add(1, Ordering::Relaxed);
        numbers[client] += 1;
        if began.elapsed() >= SPAN || most.is_some_and(|most| numbers[client] >= most[client]) {
            stop.store(true, Ordering::Relaxed);
        }
        if !stop.load(Ordering::Relaxed) {
            running.push(one(client, tokio::spawn(work(client, numbers[client]))));
        }
    }
    (done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64(), numbers)
}

async fn one(client: usize, task: tokio::task::JoinHandle<bool>) -> (usize, bool) {
    (client, task.await.expect("it ends"))
}

async fn once(root: &Path) {
    let (raw_absent, raw_taken) = raw_sqlite(root);
    let (_folder, stores) = open(root, 1).await;
    let (absent, put) = rate(None, |client, number| {
        let stores = stores.clone();
        async move {
            let key = Address::key(format!("{client} {number}"));
            let put = stores.desk().put_if_absent(&acme(), "once", &key, Put::of("{}")).await;
            put.expect("an outcome").is_ok()
        }
    })
    .await;
    // Each client takes what it has put.
    let (taken, _) = rate(Some(&put), |client, number| {
        let stores = stores.clone();
        async move {
            let mut desk = stores.desk();
            let key = Address::key(format!("{client} {number}"));
            let outcome = desk.take(&acme(), "once", &key, None).await.expect("an outcome").outcome;
            outcome == Outcome::Ok
        }
    })
    .await;
    println!("once: put_if_absent {absent:.0}/s, raw SQLite {raw_absent:.0}/s: {:.2} x", absent / raw_absent);
    println!("once: take {taken:.0}/s, raw SQLite {raw_taken:.0}/s: {:.2} x", taken / raw_taken);
    match redis(root) {
        Some(redis) => {
            println!("once: Redis SET NX, synced {redis:.0}/s; put_if_absent is {:.2} x of it", absent / redis)
        }
        None => println!("once: there is no redis-server here"),
    }
}

/// The same rows, keys and indexes in SQLite itself, one writer, as many rows in a commit as clients share a flush:
/// inserts a second, and updates of what was inserted.
fn raw_sqlite(root: &Path) -> (f64, f64) {
    let file = root.join("raw.db");
    let raw = rusqlite::Connection::open(&file).expect("a file");
    raw.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         CREATE TABLE r (instance TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, tenant TEXT NOT NULL,
           generation INT NOT NULL, owner TEXT, binding TEXT, alias TEXT, value TEXT NOT NULL, state TEXT,
           version INT NOT NULL, created_at INT NOT NULL, expires_at INT NOT NULL, cap_at INT NOT NULL, used_at INT,
           used_by TEXT, revoked_at INT, bucket INT NOT NULL, PRIMARY KEY (instance, kind, key)) STRICT, WITHOUT ROWID;
         CREATE INDEX r_expiry ON r (expires_at); CREATE INDEX r_owner ON r (tenant, kind, owner, key);",
    )
    .expect("a table");
    let insert = "INSERT INTO r VALUES (?1, 'once', ?2, 'acme', 1, NULL, NULL, NULL, '{}', NULL, 1, ?3, ?3, ?3, NULL, \
                  NULL, NULL, 7) ON CONFLICT DO NOTHING RETURNING version";
    let update = "UPDATE r SET used_at = ?3, version = version + 1 WHERE instance = ?1 AND kind = 'once' AND key = ?2 \
                  AND used_at IS NULL AND revoked_at IS NULL RETURNING version, value, expires_at";
    let (inserted, rounds) = raw_rate(&raw, insert, u64::MAX);
    (inserted, raw_rate(&raw, update, rounds).0)
}

/// Rows a second, and how many commits there were, at most so many.
fn raw_rate(raw: &rusqlite::Connection, sql: &str, most: u64) -> (f64, u64) {
    let buckets = BucketCount::new(64).expect("a count");
    let (began, mut rounds) = (Instant::now(), 0_u64);
    while began.elapsed() < SPAN && rounds < most {
        raw.execute_batch("BEGIN IMMEDIATE").expect("begun");
        let mut statement = raw.prepare(sql).expect("a statement");
        for client in 0..CLIENTS {
            let key = format!("{client} {rounds}");
            let instance = format!("acme:enam:default:{}", bucket_of(&key, None, buckets).0);
            let now = began.elapsed().as_micros() as i64;
            let mut rows = statement.query((instance, format!("={key}"), now)).expect("a row");
            while rows.next().expect("a row").is_some() {}
        }
        drop(statement);
        raw.execute_batch("COMMIT").expect("committed");
        rounds += 1;
    }
    ((rounds * CLIENTS as u64) as f64 / began.elapsed().as_secs_f64(), rounds)
}

/// `SET key 1 NX` with `appendfsync always`, pipelined as deep as there are clients.
fn redis(root: &Path) -> Option<f64> {
    let socket = root.join("redis.sock");
    let folder = root.join("redis");
    std::fs::create_dir_all(&folder).ok()?;
    let mut server = std::process::Command::new("redis-server")
        .args(["--port", "0", "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--unixsocket"])
        .arg(&socket)
        .arg("--dir")
        .arg(&folder)
        .stdout(std::process::Stdio::null())
        .spawn()
        .ok()?;
    let began = Instant::now();
    let stream = loop {
        match std::os::unix::net::UnixStream::connect(&socket) {
            Ok(stream) => break Some(stream),
            Err(_) if began.elapsed() < Duration::from_secs(10) => std::thread::sleep(Duration::from_millis(20)),
            Err(_) => break None,
        }
    };
    let rate = stream.and_then(|stream| redis_rate(stream).ok());
    let _ = server.kill();
    let _ = server.wait();
    rate
}

fn redis_rate(mut stream: std::os::unix::net::UnixStream) -> std::io::Result<f64> {
    let mut answers = BufReader::new(stream.try_clone()?);
    let (began, mut keys, mut line) = (Instant::now(), 0_u64, String::new());
    while began.elapsed() < SPAN {
        let mut pipeline = String::new();
        for _ in 0..CLIENTS {
            keys += 1;
            let key = format!("acme:{keys}");
            pipeline.push_str(&format!(
                "*6\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$2\r\n{{}}\r\n$2\r\nEX\r\n$4\r\n3600\r\n$2\r\nNX\r\n",
                key.len()
            ));
        }
        stream.write_all(pipeline.as_bytes())?;
        for _ in 0..CLIENTS {
            line.clear();
            answers.read_line(&mut line)?;
            assert_eq!(line, "+OK\r\n");
        }
    }
    Ok(keys as f64 / began.elapsed().as_secs_f64())
}

async fn expiry(root: &Path) {
    const RECORDS: u64 = 1_000_000;
    let (_folder, stores) = open(root, 4).await;
    let began = Instant::now();
    let brief = Put::of("{}").lasting(Duration::from_millis(1));
    let next = Arc::new(AtomicU64::new(0));
    let fillers: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (stores, next, brief) = (stores.clone(), next.clone(), brief.clone());
            tokio::spawn(async move {
                let mut desk = stores.desk();
                while next.fetch_add(1, Ordering::Relaxed) < RECORDS {
                    desk.put(&acme(), "once", brief.clone()).await.expect("stored");
                }
            })
        })
        .collect();
    for filler in fillers {
        filler.await.expect("it ends");
    }
    println!("expiry: {RECORDS} records stored in {:.0} s", began.elapsed().as_secs_f64());
    let stop = Arc::new(AtomicBool::new(false));
    let waiter = {
        let (stores, stop) = (stores.clone(), stop.clone());
        tokio::spawn(async move {
            let (mut desk, mut waits) = (stores.desk(), Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                desk.put(&acme(), "once", Put::of("{}")).await.expect("stored");
                waits.push(began.elapsed());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            waits.sort_unstable();
            waits
        })
    };
    let (began, mut removed) = (Instant::now(), 0);
    loop {
        let swept = stores.sweep_before(Duration::ZERO).await.expect("swept");
        removed += swept.removed;
        if !swept.more {
            break;
        }
    }
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    let waits = waiter.await.expect("it ends");
    let at = |share: f64| waits[((waits.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "expiry: {removed} removed in {:.1} s; a write beside it took {:.1} ms at the median, {:.1} ms at p99, {:.1} ms at most",
        took.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
