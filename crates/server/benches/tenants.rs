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
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_postgres::{Client, Statement};

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if let [part, url, round] = wanted.as_slice()
        && part == NOISE
    {
        return be_noisy(url, round.parse().expect("a round"));
    }
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

/// A million rows of a thousand tenants: one that is usual, one that is large, and the others.
const TENANTS: u32 = 1_000;
const ROWS: u32 = 900;
const USUAL: (&str, u32) = ("usual", ROWS);
const LARGE: (&str, u32) = ("large", 100_000);
const NEWEST: &str = "SELECT id, body FROM {} ORDER BY created DESC LIMIT 20";

async fn fill(server: &Server) {
    let client = as_tenant(server, "t0").await;
    must(&client, "CREATE TABLE notes (id bigint PRIMARY KEY, created timestamp, body text) WITH (kind = 'tenant')")
        .await;
    must(&client, "CREATE INDEX notes_created ON notes (created)").await;
    let others = (2..TENANTS).map(|n| (format!("t{n}"), 2024, ROWS));
    let measured = [USUAL, LARGE].map(|(name, rows)| (name.to_string(), 2020, rows));
    for (name, year, rows) in measured.into_iter().chain(others) {
        must(&client, &format!("SET isles.tenant = '{name}'")).await;
        must(&client, &format!("INSERT INTO notes {}", rows_of(year, rows))).await;
    }
}

/// Rows of a tenant. Those that are measured are older than all others', so that an order by time alone finds them last.
fn rows_of(year: u32, rows: u32) -> String {
    format!(
        "SELECT n, timestamp '{year}-01-01' + n * interval '1 minute', 'a note of usual length, number ' || n \
         FROM generate_series(1, {rows}) n"
    )
}

/// Pages that a connection has read from its SQLite file so far, and not found in its cache.
fn pages_read(connection: &rusqlite::Connection) -> u64 {
    let (mut misses, mut high) = (0, 0);
    // SAFETY: the handle is live, and the counters are ours.
    unsafe { ffi::sqlite3_db_status(connection.handle(), ffi::SQLITE_DBSTATUS_CACHE_MISS, &mut misses, &mut high, 0) };
    misses as u64
}

/// Pages that a statement reads from a SQLite file, each once.
fn pages(connection: &rusqlite::Connection, sql: &str) -> u64 {
    // This reads the schema, so that it is not counted.
    let mut statement = connection.prepare(sql).expect("a statement");
    let before = pages_read(connection);
    read_newest(&mut statement, []);
    pages_read(connection) - before
}

fn read_newest(statement: &mut rusqlite::Statement<'_>, params: impl rusqlite::Params) {
    let mut rows = statement.query(params).expect("it runs");
    let mut found = 0;
    while rows.next().expect("a row").is_some() {
        found += 1;
    }
    assert_eq!(found, 20);
}

async fn pages_of_sqlite() {
    let server = Server::start(Setup::Sqlite { shards: 1 }).await;
    fill(&server).await;
    let folder = server.stop().await;
    let file = shard_file(folder.path());
    for (name, _) in [USUAL, LARGE] {
        let shared = rusqlite::Connection::open(&file).expect("the shard's file");
        let tenant = move |_: &rusqlite::functions::Context<'_>| Ok(name);
        let flags = rusqlite::functions::FunctionFlags::SQLITE_DETERMINISTIC;
        shared.create_scalar_function("_isles_tenant", 0, flags, tenant).expect("a function");
        let scoped = format!(
            "SELECT id, body FROM \"_isles_tenant.notes\" WHERE _tenant = '{name}' ORDER BY created DESC LIMIT 20"
        );
        let with_others = pages(&shared, &scoped);
        let file = folder.path().join(format!("{name}.db"));
        // Closed and opened again, so that nothing is in its cache.
        drop(tables_of_one(&shared, &file, &[name.to_string()]));
        let alone = rusqlite::Connection::open(file).expect("a file");
        report_pages("sqlite", name, with_others, pages(&alone, &NEWEST.replace("{}", name)));
    }
    pages_in_the_long_run(&file, &folder.path().join("tables.db"));
}

/// Questions of tenants in no order, before pages are counted and while they are.
const QUESTIONS: (u32, u32) = (20_000, 20_000);
/// The page cache of both, as a shard has it, in KiB.
const CACHE_KIB: i64 = 8 * 1024;

/// Pages that are read from the disk for each question, when all tenants ask: one table of all of them, beside a table
/// for each of them in one file. The cache has the same size.
fn pages_in_the_long_run(shared: &std::path::Path, tables: &std::path::Path) {
    let names: Vec<String> =
        (2..TENANTS).map(|n| format!("t{n}")).chain([USUAL, LARGE].map(|(name, _)| name.to_string())).collect();
    let shared = rusqlite::Connection::open(shared).expect("the shard's file");
    let tables = tables_of_one(&shared, tables, &names);
    for connection in [&shared, &tables] {
        connection.pragma_update(None, "cache_size", -CACHE_KIB).expect("a cache");
    }
    let together = "SELECT id, body FROM notes WHERE _tenant = ?1 ORDER BY created DESC LIMIT 20";
    let among = in_the_long_run(&shared, &names, |name| {
        read_newest(&mut shared.prepare(together).expect("a statement"), [name]);
    });
    let alone = in_the_long_run(&tables, &names, |name| {
        read_newest(&mut tables.prepare(&NEWEST.replace("{}", name)).expect("a statement"), []);
    });
    println!(
        "newest 20 rows of any of {} tenants on sqlite, pages read from the file: {among:.2} among others, \
         {alone:.2} with a table for each: {:.2} x",
        names.len(),
        among / alone
    );
}

/// Pages for each question.
fn in_the_long_run(connection: &rusqlite::Connection, names: &[String], ask: impl Fn(&str)) -> f64 {
    let ask = |n: u32| ask(&names[(n as usize).wrapping_mul(7_919) % names.len()]);
    (0..QUESTIONS.0).for_each(ask);
    let before = pages_read(connection);
    (QUESTIONS.0..QUESTIONS.0 + QUESTIONS.1).for_each(ask);
    (pages_read(connection) - before) as f64 / f64::from(QUESTIONS.1)
}

/// A file with a table for each tenant.
fn tables_of_one(shared: &rusqlite::Connection, file: &std::path::Path, names: &[String]) -> rusqlite::Connection {
    let mut tables = rusqlite::Connection::open(file).expect("a file");
    let transaction = tables.transaction().expect("a transaction");
    let mut read = shared.prepare("SELECT id, created, body FROM notes WHERE _tenant = ?1").expect("a statement");
    for name in names {
        transaction.execute_batch(&table_alone(name)).expect("tables");
        let mut write = transaction.prepare(&format!("INSERT INTO {name} VALUES (?1, ?2, ?3)")).expect("a statement");
        let mut rows = read.query([name]).expect("rows");
        while let Some(row) = rows.next().expect("a row") {
            let values: (i64, i64, String) = row.try_into().expect("three values");
            write.execute(values).expect("inserted");
        }
    }
    transaction.commit().expect("committed");
    tables
}

/// A table, as somebody would make it who has no tenants.
fn table_alone(name: &str) -> String {
    format!(
        "CREATE TABLE {name} (id INTEGER NOT NULL, created INTEGER, body TEXT, PRIMARY KEY (id)) STRICT, WITHOUT ROWID;
         CREATE INDEX {name}_created ON {name} (created);"
    )
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

fn report_pages(engine: &str, name: &str, shared: u64, alone: u64) {
    let ratio = shared as f64 / alone as f64;
    println!("newest 20 rows of a {name} tenant on {engine}: {shared} pages among others, {alone} alone: {ratio:.2} x");
}

async fn pages_of_postgresql() {
    let url = pgserver::shared().create_database();
    let server = Server::over(std::slice::from_ref(&url)).await;
    fill(&server).await;
    drop(server);
    let client = harness::connect(&url).await;
    must(&client, "VACUUM ANALYZE public.notes").await;
    for (name, rows) in [USUAL, LARGE] {
        must(&client, &format!("CREATE TABLE {name} (id bigint PRIMARY KEY, created timestamp, body text)")).await;
        must(&client, &format!("INSERT INTO {name} {}", rows_of(2020, rows))).await;
        must(&client, &format!("CREATE INDEX ON {name} (created)")).await;
        must(&client, &format!("VACUUM ANALYZE {name}")).await;
        let alone = buffers(&client, &NEWEST.replace("{}", name)).await;
        must(&client, &format!("SET isles.tenant = ':{name}'; SET ROLE isles_tenant")).await;
        let scoped =
            format!("SELECT id, body FROM public.notes WHERE _tenant = '{name}' ORDER BY created DESC LIMIT 20");
        report_pages("postgresql", name, buffers(&client, &scoped).await, alone);
        must(&client, "RESET ROLE").await;
    }
}

/// Pages that PostgreSQL says it used.
async fn buffers(client: &Client, sql: &str) -> u64 {
    let plan = client.query(&format!("EXPLAIN (ANALYZE, BUFFERS) {sql}"), &[]).await.expect("a plan");
    let lines: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    let used = lines.iter().find(|line| line.contains("Buffers:")).unwrap_or_else(|| panic!("{lines:?}"));
    used.split(['=', ' ']).filter_map(|word| word.parse::<u64>().ok()).sum()
}

/// Tenants that do little, and how often each does it.
const QUIET: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);
/// Connections of the one that does all it can.
const NOISY: usize = 16;
/// Seconds of a round; rounds alternate between alone and not.
const SECONDS: u64 = 8;
const NOISE_ROUNDS: usize = 3;
/// What the process is called with that makes the noise, before the server's address and the round.
const NOISE: &str = "noise";
/// The lowest priority that there is.
const LEAST: i32 = 19;

async fn noisy() {
    let server = Arc::new(Server::start(Setup::Sqlite { shards: 4 }).await);
    let owner = as_tenant(&server, "noisy").await;
    must(&owner, "CREATE TABLE notes (id bigint PRIMARY KEY, created timestamp, body text) WITH (kind = 'tenant')")
        .await;
    must(&owner, "CREATE INDEX notes_created ON notes (created)").await;
    must(&owner, &format!("INSERT INTO notes {}", rows_of(2024, 1_000))).await;
    for quiet in 0..QUIET {
        let client = as_tenant(&server, &format!("quiet{quiet}")).await;
        must(&client, &format!("INSERT INTO notes {}", rows_of(2024, 1_000))).await;
    }
    let (mut alone, mut beside, mut work) = (Vec::new(), Vec::new(), 0);
    for round in 0..NOISE_ROUNDS as i64 {
        alone.push(quiet_waits(&server, round * 2).await);
        let noise = Noise::start(&server, round);
        beside.push(quiet_waits(&server, round * 2 + 1).await);
        work += noise.stop();
    }
    let rate = work / (NOISE_ROUNDS as u64 * SECONDS);
    println!("noisy tenant: {NOISY} connections at full load, {rate} statements/s");
    report_waits("reads", &alone, &beside, |waited| &waited.reads);
    report_waits("writes", &alone, &beside, |waited| &waited.writes);
    report_waits("statements", &alone, &beside, |waited| &waited.all);
}

/// The process that makes the noise. It stops when nobody holds its input, and says how much it was.
struct Noise(std::process::Child);

impl Noise {
    fn start(server: &Server, round: i64) -> Noise {
        let mut command = std::process::Command::new(std::env::current_exe().expect("a program"));
        command.args([NOISE, server.url(), &round.to_string()]);
        let piped = command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        Noise(piped.spawn().expect("it starts"))
    }

    fn stop(mut self) -> u64 {
        drop(self.0.stdin.take());
        let output = self.0.wait_with_output().expect("it ends");
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("statements")
    }
}

/// The clients of a tenant are on machines of their own. Here they share the processors with the server and with those who
/// are measured, and have what these leave: what is measured is what the server does with their load.
fn give_way() {
    let least = std::env::var("ISLES_BENCH_NICE").ok().and_then(|nice| nice.parse().ok()).unwrap_or(LEAST);
    // SAFETY: it changes this process alone.
    let given = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, least) };
    assert_eq!(given, 0, "whoever runs a process may give its priority away");
}

fn be_noisy(url: &str, round: i64) {
    give_way();
    let done = Arc::new(AtomicU64::new(0));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for n in 0..NOISY as i64 {
        runtime.spawn(make_noise(url.to_string(), round * 100 + n, done.clone()));
    }
    std::io::stdin().lines().for_each(drop);
    println!("{}", done.load(Ordering::Relaxed));
}

/// Reads, writes and searches, one after the other.
async fn make_noise(url: String, seed: i64, done: Arc<AtomicU64>) {
    let client = harness::connect(&url).await;
    must(&client, "SET isles.tenant = 'noisy'").await;
    for n in seed * 1_000_000 + 1_000_000_001.. {
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

/// What quiet tenants waited for, in milliseconds, in order.
struct Waited {
    reads: Vec<f64>,
    writes: Vec<f64>,
    all: Vec<f64>,
}

impl Waited {
    fn of(reads: Vec<f64>, writes: Vec<f64>) -> Waited {
        let all = reads.iter().chain(&writes).copied().collect();
        let [reads, writes, all] = [reads, writes, all].map(|mut waits: Vec<f64>| {
            waits.sort_by(f64::total_cmp);
            waits
        });
        Waited { reads, writes, all }
    }
}

fn report_waits(what: &str, alone: &[Waited], beside: &[Waited], of: impl Fn(&Waited) -> &[f64]) {
    let percentile = |rounds: &[Waited], percent: usize| {
        median(rounds.iter().map(|round| of(round)[of(round).len() * percent / 100]).collect())
    };
    let [alone, beside] = [alone, beside].map(|rounds| (percentile(rounds, 50), percentile(rounds, 99)));
    println!(
        "quiet tenants, {what}: p50 {:.2} ms alone and {:.2} beside it, p99 {:.2} and {:.2}: {:.2} x",
        alone.0,
        beside.0,
        alone.1,
        beside.1,
        beside.1 / alone.1
    );
}

async fn quiet_waits(server: &Arc<Server>, seed: i64) -> Waited {
    let sessions = (0..QUIET).map(|n| tokio::spawn(be_quiet(server.clone(), n, seed)));
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for session in sessions.collect::<Vec<_>>() {
        let (read, wrote) = session.await.expect("a session ends");
        reads.extend(read);
        writes.extend(wrote);
    }
    Waited::of(reads, writes)
}

/// Three reads and a write, and so on, each after a pause: how long they took.
async fn be_quiet(server: Arc<Server>, n: usize, seed: i64) -> (Vec<f64>, Vec<f64>) {
    let client = as_tenant(&server, &format!("quiet{n}")).await;
    let newest = client.prepare(&NEWEST.replace("{}", "notes")).await.expect("prepared");
    let insert = client.prepare("INSERT INTO notes VALUES ($1, now()::timestamp, 'quiet')").await.expect("prepared");
    let (mut reads, mut writes, mut id) = (Vec::new(), Vec::new(), 1_000_000 * (seed + 1));
    let began = Instant::now();
    tokio::time::sleep(PAUSE / QUIET as u32 * n as u32).await;
    while began.elapsed() < Duration::from_secs(SECONDS) {
        id += 1;
        let sent = Instant::now();
        let waits = match id % 4 {
            0 => {
                client.execute(&insert, &[&id]).await.expect("inserted");
                &mut writes
            }
            _ => {
                client.query(&newest, &[]).await.expect("read");
                &mut reads
            }
        };
        waits.push(sent.elapsed().as_secs_f64() * 1e3);
        tokio::time::sleep(PAUSE).await;
    }
    (reads, writes)
}
