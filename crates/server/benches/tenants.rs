//! What tenants cost, and what they cost each other. Figures are ratios, since machines differ.
//!
//! `cargo xtask bench tenants [part…]`, of the parts
//!   * `scoping`  a prepared point select on a tenant table, beside the same on a table that is not one
//!   * `pages`    the newest rows of one tenant among many: pages read, beside a table of that tenant alone
//!   * `noisy`    the latency of quiet tenants, alone and beside one at full load

#[path = "../tests/harness/mod.rs"]
mod harness;

use harness::{Server, Setup};
use isles_sim::pgserver;
use rusqlite::ffi;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_postgres::{Client, Statement};

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runs = |part: &str| wanted.is_empty() || wanted.iter().any(|name| name == part);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if runs("scoping") {
        runtime.block_on(scoping("sqlite", Setup::Sqlite { shards: 4 }));
        runtime.block_on(scoping("postgresql", Setup::Postgres { shards: 1 }));
    }
    if runs("pages") {
        runtime.block_on(pages_of_sqlite());
        runtime.block_on(pages_of_postgresql());
    }
    if runs("noisy") {
        runtime.block_on(noisy());
    }
}

/// A session of a tenant.
async fn as_tenant(server: &Server, name: &str) -> Client {
    let client = server.isles().await;
    client.batch_execute(&format!("SET isles.tenant = '{name}'")).await.expect("a tenant");
    client
}

async fn must(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Rows of the tables that are looked up.
const ACCOUNTS: i64 = 20_000;
/// Rounds of looking up, which alternate between the tables.
const ROUNDS: usize = 15;
const LOOKUPS: usize = 2_000;

/// One client, one shard's worth of work per statement: what differs is the tenant.
async fn scoping(engine: &str, setup: Setup) {
    let server = Server::start(setup).await;
    let client = as_tenant(&server, "acme").await;
    must(&client, "CREATE TABLE scoped (id bigint PRIMARY KEY, v text) WITH (kind = 'tenant')").await;
    must(&client, "CREATE TABLE plain (id bigint PRIMARY KEY, v text) WITH (kind = 'hash')").await;
    for table in ["scoped", "plain"] {
        let rows = format!("SELECT n, 'some text of usual length' FROM generate_series(1, {ACCOUNTS}) n");
        must(&client, &format!("INSERT INTO {table} {rows}")).await;
    }
    let mut prepared = Vec::new();
    for table in ["scoped", "plain"] {
        prepared.push(client.prepare(&format!("SELECT v FROM {table} WHERE id = $1")).await.expect("prepared"));
    }
    let mut micros = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        for at in [round % 2, 1 - round % 2] {
            micros[at].push(look_up(&client, &prepared[at], round as i64).await);
        }
    }
    let [scoped, plain] = micros.map(median);
    println!("scoping on {engine}: {scoped:.1} us scoped, {plain:.1} us not: {:.3} x", scoped / plain);
}

/// Microseconds of a lookup.
async fn look_up(client: &Client, statement: &Statement, seed: i64) -> f64 {
    let began = Instant::now();
    for n in 0..LOOKUPS as i64 {
        let id = 1 + (n * 7_919 + seed * 104_729) % ACCOUNTS;
        client.query_one(statement, &[&id]).await.expect("a row");
    }
    began.elapsed().as_secs_f64() * 1e6 / LOOKUPS as f64
}

/// A million rows of a thousand tenants.
const TENANTS: u32 = 1_000;
const ROWS: u32 = 1_000;
const NEWEST: &str = "SELECT id, body FROM {} ORDER BY created DESC LIMIT 20";

async fn fill(server: &Server) {
    let client = as_tenant(server, "t0").await;
    must(&client, "CREATE TABLE notes (id bigint PRIMARY KEY, created timestamp, body text) WITH (kind = 'tenant')")
        .await;
    must(&client, "CREATE INDEX notes_created ON notes (created)").await;
    for tenant in 0..TENANTS {
        must(&client, &format!("SET isles.tenant = 't{tenant}'")).await;
        must(&client, &format!("INSERT INTO notes {}", rows_of(tenant))).await;
    }
}

/// Rows of a tenant; times of all tenants are mixed, the first one's are the oldest.
fn rows_of(tenant: u32) -> String {
    let year = if tenant == 0 { 2020 } else { 2024 };
    format!(
        "SELECT n, timestamp '{year}-01-01' + n * interval '1 minute' + {tenant} * interval '1 second', \
         'a note of usual length, number ' || n FROM generate_series(1, {ROWS}) n"
    )
}

/// Pages of a statement on a SQLite file, found in the cache or not.
fn pages(connection: &rusqlite::Connection, sql: &str) -> u64 {
    let count = || {
        let (mut hits, mut misses, mut high) = (0, 0, 0);
        // SAFETY: the handle is live, and the counters are ours.
        unsafe {
            let db = connection.handle();
            ffi::sqlite3_db_status(db, ffi::SQLITE_DBSTATUS_CACHE_HIT, &mut hits, &mut high, 0);
            ffi::sqlite3_db_status(db, ffi::SQLITE_DBSTATUS_CACHE_MISS, &mut misses, &mut high, 0);
        }
        (hits + misses) as u64
    };
    let mut statement = connection.prepare(sql).expect("a statement");
    let run = |statement: &mut rusqlite::Statement<'_>| {
        let mut rows = statement.query([]).expect("it runs");
        let mut found = 0;
        while rows.next().expect("a row").is_some() {
            found += 1;
        }
        assert_eq!(found, 20);
    };
    // The first run reads the schema as well.
    run(&mut statement);
    let before = count();
    run(&mut statement);
    count() - before
}

async fn pages_of_sqlite() {
    let server = Server::start(Setup::Sqlite { shards: 1 }).await;
    fill(&server).await;
    let folder = server.stop().await;
    let file = shard_file(folder.path());
    let shared = rusqlite::Connection::open(file).expect("the shard's file");
    let tenant = |_: &rusqlite::functions::Context<'_>| Ok("t0".to_string());
    let flags = rusqlite::functions::FunctionFlags::SQLITE_DETERMINISTIC;
    shared.create_scalar_function("_isles_tenant", 0, flags, tenant).expect("a function");
    let scoped = "SELECT id, body FROM \"_isles_tenant.notes\" WHERE _tenant = 't0' ORDER BY created DESC LIMIT 20";
    let with_tenants = pages(&shared, scoped);
    let alone = rusqlite::Connection::open_in_memory().expect("a database");
    alone
        .execute_batch(
            "CREATE TABLE notes (id INTEGER NOT NULL, created INTEGER, body TEXT, PRIMARY KEY (id)) STRICT, WITHOUT ROWID;
             CREATE INDEX notes_created ON notes (created);",
        )
        .expect("tables");
    let mut copied = shared.prepare("SELECT id, created, body FROM notes WHERE _tenant = 't0'").expect("a statement");
    let mut rows = copied.query([]).expect("rows");
    while let Some(row) = rows.next().expect("a row") {
        let values: (i64, i64, String) = (row.get(0).unwrap(), row.get(1).unwrap(), row.get(2).unwrap());
        alone.execute("INSERT INTO notes VALUES (?1, ?2, ?3)", values).expect("inserted");
    }
    report_pages("sqlite", with_tenants, pages(&alone, &NEWEST.replace("{}", "notes")));
}

/// The one shard's file.
fn shard_file(folder: &std::path::Path) -> std::path::PathBuf {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .find_map(|path| match path.is_dir() {
            true => Some(shard_file(&path)),
            false => Some(path).filter(|path| path.ends_with("shard.db")),
        })
        .unwrap_or_else(|| panic!("no shard in {}", folder.display()))
}

fn report_pages(engine: &str, shared: u64, alone: u64) {
    let ratio = shared as f64 / alone as f64;
    println!("newest 20 rows on {engine}: {shared} pages among {TENANTS} tenants, {alone} alone: {ratio:.2} x");
}

async fn pages_of_postgresql() {
    let url = pgserver::shared().create_database();
    let server = Server::over(std::slice::from_ref(&url)).await;
    fill(&server).await;
    drop(server);
    let client = harness::connect(&url).await;
    must(&client, "VACUUM ANALYZE public.notes").await;
    must(
        &client,
        &format!(
            "CREATE TABLE alone (id bigint PRIMARY KEY, created timestamp, body text); INSERT INTO alone {}",
            rows_of(0)
        ),
    )
    .await;
    must(&client, "CREATE INDEX ON alone (created)").await;
    must(&client, "VACUUM ANALYZE alone").await;
    let alone = buffers(&client, &NEWEST.replace("{}", "alone")).await;
    must(&client, "SET isles.tenant = ':t0'; SET ROLE isles_tenant").await;
    let scoped = "SELECT id, body FROM public.notes WHERE _tenant = 't0' ORDER BY created DESC LIMIT 20";
    report_pages("postgresql", buffers(&client, scoped).await, alone);
}

/// Pages that PostgreSQL says it used.
async fn buffers(client: &Client, sql: &str) -> u64 {
    let plan = client.query(&format!("EXPLAIN (ANALYZE, BUFFERS) {sql}"), &[]).await.expect("a plan");
    let lines: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    let used = lines.iter().find(|line| line.contains("Buffers:")).unwrap_or_else(|| panic!("{lines:?}"));
    let counts = used.split(['=', ' ']).filter_map(|word| word.parse::<u64>().ok());
    counts.sum()
}

/// Tenants that do little, and how often each does it.
const QUIET: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);
/// Connections of the one that does all it can.
const NOISY: usize = 16;
/// Seconds of a round; rounds alternate between alone and not.
const SECONDS: u64 = 8;
const NOISE_ROUNDS: usize = 3;

async fn noisy() {
    let server = Arc::new(Server::start(Setup::Sqlite { shards: 4 }).await);
    let owner = as_tenant(&server, "noisy").await;
    must(&owner, "CREATE TABLE notes (id bigint PRIMARY KEY, created timestamp, body text) WITH (kind = 'tenant')")
        .await;
    must(&owner, "CREATE INDEX notes_created ON notes (created)").await;
    must(&owner, &format!("INSERT INTO notes {}", rows_of(1))).await;
    for quiet in 0..QUIET {
        let client = as_tenant(&server, &format!("quiet{quiet}")).await;
        must(&client, &format!("INSERT INTO notes {}", rows_of(1))).await;
    }
    let (mut alone, mut beside, mut work) = (Vec::new(), Vec::new(), 0);
    for round in 0..NOISE_ROUNDS as i64 {
        alone.push(quiet_p99(&server, round * 2).await);
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicU64::new(0));
        let noise: Vec<_> = (0..NOISY)
            .map(|n| tokio::spawn(make_noise(server.clone(), round * 100 + n as i64, stop.clone(), done.clone())))
            .collect();
        beside.push(quiet_p99(&server, round * 2 + 1).await);
        stop.store(true, Ordering::Relaxed);
        for task in noise {
            task.await.expect("noise ends");
        }
        work += done.load(Ordering::Relaxed);
    }
    let (alone, beside) = (median(alone), median(beside));
    println!(
        "noisy tenant: quiet p99 {alone:.2} ms alone, {beside:.2} ms beside {NOISY} connections at full load \
         ({} statements/s): {:.2} x",
        work / (NOISE_ROUNDS as u64 * SECONDS),
        beside / alone
    );
}

/// Reads, writes and searches, one after the other.
async fn make_noise(server: Arc<Server>, seed: i64, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) {
    let client = as_tenant(&server, "noisy").await;
    let mut n = seed * 1_000_000 + 1_000_000_000;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let sql = match n % 4 {
            0 => "SELECT count(*) FROM notes WHERE body LIKE '%7%3%'".into(),
            1 => "SELECT body, count(*) FROM notes GROUP BY body ORDER BY 2 DESC LIMIT 10".into(),
            2 => format!("INSERT INTO notes VALUES ({n}, now(), 'noise')"),
            _ => format!("DELETE FROM notes WHERE id = {}", n - 1),
        };
        must(&client, &sql).await;
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// The 99th percentile of what quiet tenants wait for, in milliseconds.
async fn quiet_p99(server: &Arc<Server>, seed: i64) -> f64 {
    let sessions = (0..QUIET).map(|n| {
        let server = server.clone();
        tokio::spawn(async move {
            let client = as_tenant(&server, &format!("quiet{n}")).await;
            let newest = client.prepare(&NEWEST.replace("{}", "notes")).await.expect("prepared");
            let insert =
                client.prepare("INSERT INTO notes VALUES ($1, now()::timestamp, 'quiet')").await.expect("prepared");
            let (began, mut waited, mut id) = (Instant::now(), Vec::new(), 1_000_000 * (seed + 1));
            tokio::time::sleep(PAUSE / QUIET as u32 * n as u32).await;
            while began.elapsed() < Duration::from_secs(SECONDS) {
                id += 1;
                let sent = Instant::now();
                match id % 4 {
                    0 => drop(client.execute(&insert, &[&id]).await.expect("inserted")),
                    _ => drop(client.query(&newest, &[]).await.expect("read")),
                }
                waited.push(sent.elapsed().as_secs_f64() * 1e3);
                tokio::time::sleep(PAUSE).await;
            }
            waited
        })
    });
    let mut waited = Vec::new();
    for session in sessions.collect::<Vec<_>>() {
        waited.extend(session.await.expect("a session ends"));
    }
    waited.sort_by(f64::total_cmp);
    waited[waited.len() * 99 / 100]
}
