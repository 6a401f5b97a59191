//! What global indexes cost those who write, and what they save those who read. Figures are ratios, since machines differ.
//!
//! `cargo xtask bench indexes [part…]`, of the parts
//!   * `writes`  statements of 32 sessions on a table with global indexes, beside the same table without
//!   * `reads`   a row by a global index, beside a row by its shard key and beside asking all shards, on 4 to 256 shards
//!   * `build`   an index over rows that are there, beside SQLite's own, and what others notice of it
//!
//! Sessions are in this process: there is no wire, which would hide what is measured. Each side has a database of its
//! own, since a shard keeps a change log for all of its tables as soon as one of them has a global index. Each shard has
//! an ordinary index beside the global one, so a side with ordinary indexes tells what of the cost is theirs.

#[path = "../tests/session/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of sessions")]
mod harness;

use harness::{Client, Db};
use isles_cluster::database::Config;
use isles_cluster::session::{Answer, Prepared, Session};
use isles_kernel::value::Value;
use isles_sim::pgserver::{PgOptions, PgServer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// As the server has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const THREADS: usize = 2;
const TABLE: &str = "CREATE TABLE users (id bigint PRIMARY KEY, email text, age int, city text, note text)";
const NOTE: &str = "left at the door, as the customer asked for by telephone";
/// Rows of one statement that fills a table.
const CHUNK: u64 = 5_000;

fn main() {
    let root = tempfile::Builder::new().prefix("isles-bench").tempdir_in(target_dir()).expect("a folder");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build().expect("tokio");
    runtime.block_on(async {
        if wanted("writes") {
            writes(root.path()).await;
        }
        if wanted("reads") {
            reads(root.path()).await;
        }
        if wanted("build") {
            build(root.path()).await;
        }
    });
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

async fn open(root: &Path, config: impl FnOnce(&Path) -> Config) -> Db {
    let folder = tempfile::tempdir_in(root).expect("a folder");
    let config = config(folder.path());
    Db::open(folder, &config).await
}

/// A client whose statements may take as long as they need.
async fn patient(db: &Db) -> Client {
    let mut client = db.client();
    client.run("SET statement_timeout = '1h'").await;
    client
}

fn email(n: u64) -> String {
    format!("user-{n}@example.com")
}

fn row(n: u64) -> Vec<Value> {
    let (age, city) = (Value::Int((n % 100) as i64), Value::Text(format!("city-{}", n % 1_000)));
    vec![Value::Int(n as i64), Value::Text(email(n)), age, city, Value::text(NOTE)]
}

/// What [`row`] has, of a number that is called `n`.
const VALUES: &str = "n, 'user-' || n || '@example.com', n % 100, 'city-' || (n % 1000), \
                      'left at the door, as the customer asked for by telephone'";

/// The rows from 0 to before `rows`.
async fn fill(client: &mut Client, values: &str, rows: u64) {
    for first in (0..rows).step_by(CHUNK as usize) {
        let last = (first + CHUNK).min(rows) - 1;
        client.run(&format!("INSERT INTO users SELECT {values} FROM generate_series({first}, {last}) n")).await;
    }
}

/// How often one who waits for the entries to be up to date asks again; each time is some seconds long.
const SETTLE_ATTEMPTS: usize = 60;

/// Until the indexes have all that is committed.
async fn settle(db: &Db) {
    for _ in 0..SETTLE_ATTEMPTS {
        match db.database.settle_indexes().await {
            Ok(()) => return,
            Err(error) => assert_eq!(error.sqlstate, "55P03", "{error}"),
        }
    }
    panic!("the indexes do not catch up");
}

/// How many rows a statement gives or changes.
async fn run(session: &mut Session, statement: &Arc<Prepared>, params: Vec<Value>) -> usize {
    match session.execute(statement, params).await.expect("it runs") {
        Answer::Rows(mut rows) => {
            let mut count = 0;
            while let Some(batch) = rows.next(100).await.expect("rows") {
                count += batch.len();
            }
            count
        }
        Answer::Done { tag } => tag.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a count"),
        _ => panic!("neither rows nor a count"),
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The figure that a share of all are below.
fn percentile(figures: &[f64], share: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

fn median(figures: &[f64]) -> f64 {
    percentile(figures, 0.5)
}

/// The median of the rounds' ratios.
fn ratio(of: impl IntoIterator<Item = f64>, to: impl IntoIterator<Item = f64>) -> f64 {
    median(&of.into_iter().zip(to).map(|(of, to)| of / to).collect::<Vec<_>>())
}

/// The order of a round: each is first now and then.
fn turns(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| (at + round) % count)
}

// Writes.

const ROUNDS: usize = 5;
const ROUND_TIME: Duration = Duration::from_millis(1_500);
const WRITERS: usize = 32;
const SQLITE_SHARDS: usize = 4;
const POSTGRES_SHARDS: usize = 2;
/// Rows that are there before the first round, so that deletes do not run out of them.
const ROWS_BEFORE: u64 = 20_000;
/// How often somebody looks how far the indexes are behind.
const SAMPLE: Duration = Duration::from_millis(20);
/// Enough for the connections of all sides at once.
const CONNECTIONS: &str = "max_connections=400";

const THREE: &[&str] = &["email", "age", "city"];
const ONE: &[&str] = &["email"];

/// The indexes of a side, each over one column.
#[derive(Clone, Copy)]
enum Indexes {
    None,
    Ordinary(&'static [&'static str]),
    Global(&'static [&'static str]),
    Unique(&'static [&'static str]),
}

impl Indexes {
    fn name(self) -> String {
        match self {
            Indexes::None => "no index".into(),
            Indexes::Ordinary(columns) => format!("{} ordinary", columns.len()),
            Indexes::Global(columns) => format!("{} global", columns.len()),
            Indexes::Unique(columns) => format!("{} global unique", columns.len()),
        }
    }

    async fn create(self, client: &mut Client) {
        let (unique, with, columns) = match self {
            Indexes::None => return,
            Indexes::Ordinary(columns) => ("", "", columns),
            Indexes::Global(columns) => ("", " WITH (global)", columns),
            Indexes::Unique(columns) => ("UNIQUE ", " WITH (global)", columns),
        };
        for column in columns {
            client.run(&format!("CREATE {unique}INDEX users_{column} ON users ({column}){with}")).await;
            if self.is_global() {
                client.run(&format!("WAIT FOR INDEX users_{column}")).await;
            }
        }
    }

    fn is_global(self) -> bool {
        matches!(self, Indexes::Global(_) | Indexes::Unique(_))
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Insert,
    /// Of a column that is indexed, where any is.
    Update,
    Delete,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Insert, Kind::Update, Kind::Delete];

    fn name(self) -> &'static str {
        match self {
            Kind::Insert => "insert",
            Kind::Update => "update",
            Kind::Delete => "delete",
        }
    }

    fn sql(self) -> &'static str {
        match self {
            Kind::Insert => "INSERT INTO users VALUES ($1, $2, $3, $4, $5)",
            Kind::Update => "UPDATE users SET email = $2 WHERE id = $1",
            Kind::Delete => "DELETE FROM users WHERE id = $1",
        }
    }
}

/// The rows of a side are those from `low` to before `high`.
struct Ids {
    low: AtomicU64,
    high: AtomicU64,
    updates: AtomicU64,
}

impl Ids {
    /// What the next statement is given; none if there is no row for it.
    fn next(&self, kind: Kind) -> Option<Vec<Value>> {
        let high = self.high.load(Ordering::Relaxed);
        match kind {
            Kind::Insert => Some(row(self.high.fetch_add(1, Ordering::Relaxed))),
            Kind::Update => {
                let (low, turn) = (self.low.load(Ordering::Relaxed), self.updates.fetch_add(1, Ordering::Relaxed));
                // No two sessions are at the same row at once: that would measure their waiting.
                let id = low + turn.wrapping_mul(7_919).checked_rem(high - low)?;
                Some(vec![Value::Int(id as i64), Value::Text(format!("user-{id}-{turn}@example.com"))])
            }
            Kind::Delete => {
                let next = |low| (low < high).then_some(low + 1);
                let id = self.low.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
                Some(vec![Value::Int(id as i64)])
            }
        }
    }
}

struct Writer {
    session: Session,
    /// In the order of [`Kind::ALL`].
    statements: Vec<Arc<Prepared>>,
}

impl Writer {
    async fn new(db: &Db) -> Writer {
        let mut session = db.client().session;
        let mut statements = Vec::new();
        for kind in Kind::ALL {
            statements.push(session.prepare(kind.sql(), &[]).await.expect("prepared"));
        }
        Writer { session, statements }
    }

    /// Milliseconds of each statement. It gives itself back.
    async fn work(mut self, kind: Kind, ids: Arc<Ids>, until: Instant) -> (Writer, Vec<f64>) {
        let statement = self.statements[kind as usize].clone();
        let mut waited = Vec::new();
        while Instant::now() < until
            && let Some(params) = ids.next(kind)
        {
            let sent = Instant::now();
            assert_eq!(run(&mut self.session, &statement, params).await, 1);
            waited.push(ms(sent.elapsed()));
        }
        (self, waited)
    }
}

/// How far the indexes were behind at one moment.
struct Lag {
    changes: f64,
    ms: f64,
}

async fn sample(mut client: Client, stop: Arc<AtomicBool>) -> Vec<Lag> {
    let show = client.session.prepare("SHOW INDEXES", &[]).await.expect("prepared");
    let mut lags = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(SAMPLE).await;
        let Answer::Rows(mut rows) = client.session.execute(&show, Vec::new()).await.expect("shown") else {
            panic!("no rows")
        };
        let column = |name: &str| rows.fields.iter().position(|field| field.name == name).expect("a column");
        let (changes, lag_ms) = (column("lag"), column("lag_ms"));
        let shown = rows.next(100).await.expect("rows").expect("an index");
        let most = |at: usize| shown.iter().filter_map(|row| whole(&row[at])).max().expect("a number") as f64;
        lags.push(Lag { changes: most(changes), ms: most(lag_ms) });
    }
    lags
}

fn whole(value: &Value) -> Option<i64> {
    match value {
        Value::Int(n) => Some(*n),
        _ => None,
    }
}

/// A database, those who write to it, and what its indexes are.
struct Side {
    db: Db,
    indexes: Indexes,
    writers: Vec<Writer>,
    ids: Arc<Ids>,
}

/// What a side did in one round.
struct Round {
    per_second: f64,
    /// The same, counting the time until the indexes had all of it.
    settled_per_second: f64,
    waited: Vec<f64>,
    lags: Vec<Lag>,
}

impl Side {
    async fn new(db: Db, indexes: Indexes) -> Side {
        let mut client = patient(&db).await;
        client.run(TABLE).await;
        fill(&mut client, VALUES, ROWS_BEFORE).await;
        indexes.create(&mut client).await;
        settle(&db).await;
        let mut writers = Vec::new();
        for _ in 0..WRITERS {
            writers.push(Writer::new(&db).await);
        }
        let ids = Ids { low: AtomicU64::new(0), high: AtomicU64::new(ROWS_BEFORE), updates: AtomicU64::new(0) };
        Side { db, indexes, writers, ids: Arc::new(ids) }
    }

    async fn round(&mut self, kind: Kind) -> Round {
        let stop = Arc::new(AtomicBool::new(false));
        let sampler = self.indexes.is_global().then(|| tokio::spawn(sample(self.db.client(), stop.clone())));
        let began = Instant::now();
        let work = |writer: Writer| tokio::spawn(writer.work(kind, self.ids.clone(), began + ROUND_TIME));
        let tasks: Vec<_> = self.writers.drain(..).map(work).collect();
        let mut waited = Vec::new();
        for task in tasks {
            let (writer, times) = task.await.expect("a writer ends");
            self.writers.push(writer);
            waited.extend(times);
        }
        let took = began.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        // The next round is another side's, and is not to pay for this one.
        settle(&self.db).await;
        let settled = began.elapsed().as_secs_f64();
        let lags = match sampler {
            Some(sampler) => sampler.await.expect("a sampler ends"),
            None => Vec::new(),
        };
        let count = waited.len() as f64;
        Round { per_second: count / took, settled_per_second: count / settled, waited, lags }
    }
}

async fn writes(root: &Path) {
    let sqlite = |indexes| async move {
        Side::new(open(root, |folder| Config::sqlite(folder, SQLITE_SHARDS)).await, indexes).await
    };
    println!("{WRITERS} sessions on {SQLITE_SHARDS} SQLite shards, median of {ROUNDS} rounds");
    let sides =
        [sqlite(Indexes::None).await, sqlite(Indexes::Ordinary(THREE)).await, sqlite(Indexes::Global(THREE)).await];
    compare(sides.into(), &Kind::ALL).await;
    println!("goal with 3 global: rate of first at least 0.9, p99 of first at most 1.1\n");

    println!("a unique key on {SQLITE_SHARDS} SQLite shards");
    let sides = [
        sqlite(Indexes::None).await,
        sqlite(Indexes::Ordinary(ONE)).await,
        sqlite(Indexes::Global(ONE)).await,
        sqlite(Indexes::Unique(ONE)).await,
    ];
    compare(sides.into(), &[Kind::Insert]).await;
    println!();
    writes_to_postgres(root).await;
}

async fn writes_to_postgres(root: &Path) {
    let server = match PgServer::try_start(PgOptions { settings: vec![CONNECTIONS.into()], ..PgOptions::default() }) {
        Ok(server) => server,
        Err(error) => return println!("PostgreSQL shards are left out: {error}\n"),
    };
    let server = &server;
    let postgres = |indexes| async move {
        let urls = (0..POSTGRES_SHARDS).map(|_| server.create_database()).collect();
        Side::new(open(root, |folder| Config::postgres(folder, urls)).await, indexes).await
    };
    println!("{WRITERS} sessions on {POSTGRES_SHARDS} PostgreSQL shards");
    let sides = [
        postgres(Indexes::None).await,
        postgres(Indexes::Ordinary(THREE)).await,
        postgres(Indexes::Global(THREE)).await,
    ];
    compare(sides.into(), &[Kind::Insert]).await;
    println!();
    println!("a unique key on {POSTGRES_SHARDS} PostgreSQL shards");
    let sides =
        [postgres(Indexes::None).await, postgres(Indexes::Global(ONE)).await, postgres(Indexes::Unique(ONE)).await];
    compare(sides.into(), &[Kind::Insert]).await;
    println!();
}

/// Rounds that alternate between the sides, each kind of statement by itself.
async fn compare(mut sides: Vec<Side>, kinds: &[Kind]) {
    println!(
        "{:<8}{:<18}{:>9}{:>10}{:>13}{:>10}{:>9}{:>9}{:>14}",
        "", "", "per s", "of first", "of previous", "settled", "p50 ms", "p99 ms", "p99 of first"
    );
    let mut rounds: Vec<Vec<Vec<Round>>> = kinds.iter().map(|_| sides.iter().map(|_| Vec::new()).collect()).collect();
    for turn in 0..ROUNDS {
        for (kind, rounds) in kinds.iter().zip(&mut rounds) {
            // What a side leaves to the disk's queue is not always the same one's trouble.
            for at in turns(sides.len(), turn) {
                let round = sides[at].round(*kind).await;
                rounds[at].push(round);
            }
        }
    }
    for (kind, rounds) in kinds.iter().zip(&rounds) {
        for at in 0..sides.len() {
            report(*kind, sides[at].indexes, &rounds[at], &rounds[0], &rounds[at.saturating_sub(1)]);
        }
    }
    for side in sides {
        side.db.database.close().await.expect("it closes");
    }
}

fn report(kind: Kind, indexes: Indexes, rounds: &[Round], first: &[Round], previous: &[Round]) {
    let rates = |rounds: &[Round]| rounds.iter().map(|round| round.per_second).collect::<Vec<_>>();
    let p99s = |rounds: &[Round]| rounds.iter().map(|round| percentile(&round.waited, 0.99)).collect::<Vec<_>>();
    let settled = ratio(rounds.iter().map(|round| round.settled_per_second), rates(first));
    let waited: Vec<f64> = rounds.iter().flat_map(|round| round.waited.iter().copied()).collect();
    println!(
        "{:<8}{:<18}{:>9.0}{:>10.2}{:>13.2}{:>10.2}{:>9.2}{:>9.2}{:>14.2}",
        kind.name(),
        indexes.name(),
        median(&rates(rounds)),
        ratio(rates(rounds), rates(first)),
        ratio(rates(rounds), rates(previous)),
        settled,
        percentile(&waited, 0.5),
        percentile(&waited, 0.99),
        ratio(p99s(rounds), p99s(first))
    );
    let lags: Vec<&Lag> = rounds.iter().flat_map(|round| &round.lags).collect();
    if !lags.is_empty() {
        let of = |figure: fn(&Lag) -> f64| {
            let all: Vec<f64> = lags.iter().map(|lag| figure(lag)).collect();
            [0.5, 0.99, 1.0].map(|share| format!("{:.0}", percentile(&all, share))).join(" / ")
        };
        let (changes, lag_ms) = (of(|lag| lag.changes), of(|lag| lag.ms));
        println!("{:<8}lag p50 / p99 / max: {changes} changes, {lag_ms} ms ({} samples)", "", lags.len());
    }
}

// Reads.

const READ_SHARDS: [usize; 4] = [4, 16, 64, 256];
const READ_ROWS: u64 = 20_000;
const READ_ROUNDS: usize = 10;
/// As many as the most shards, so that each shard has rows.
const READ_TABLE: &str = "CREATE TABLE users (id bigint PRIMARY KEY, email text, age int, city text, note text, login text) \
                          WITH (\"group\" = 'g', buckets = 256)";
/// A writer has three files, and each of four readers that stay two; and there may be one reader more.
const FILES_PER_SHARD: usize = 13;
/// For everything that is not a shard.
const FILES_BESIDE: usize = 256;

/// A way to look for one row.
struct Look {
    name: &'static str,
    sql: &'static str,
    /// In one round; those that ask all shards are slow, and fewer say as much.
    times: u64,
    param: fn(u64) -> Value,
}

const LOOKS: [Look; 4] = [
    Look { name: "key", sql: "SELECT id, note FROM users WHERE id = $1", times: 300, param: |n| Value::Int(n as i64) },
    Look {
        name: "index",
        sql: "SELECT id, note FROM users WHERE email = $1",
        times: 300,
        param: |n| Value::Text(email(n)),
    },
    // Each shard has an ordinary index over it.
    Look {
        name: "scatter",
        sql: "SELECT id, note FROM users WHERE login = $1",
        times: 50,
        param: |n| Value::Text(email(n)),
    },
    // No index is recognized in this, neither ours nor a shard's.
    Look {
        name: "scan",
        sql: "SELECT id, note FROM users WHERE CASE WHEN email = $1 THEN true ELSE false END",
        times: 50,
        param: |n| Value::Text(email(n)),
    },
];

async fn reads(root: &Path) {
    println!("one row of {READ_ROWS}, one client, µs: median / p99");
    print!("{:>6}", "shards");
    LOOKS.iter().for_each(|look| print!("{:>18}", look.name));
    println!("{:>11}{:>16}", "index/key", "scatter/index");
    let mut by_index = Vec::new();
    for shards in READ_SHARDS {
        let files = shards * FILES_PER_SHARD + FILES_BESIDE;
        if open_files_limit() < files {
            println!("{shards:>6}   left out: it may open {files} files, and {} are allowed", open_files_limit());
            continue;
        }
        by_index.push(median(&reads_of(root, shards).await[1].concat()));
    }
    println!("goal at 64 shards: index/key at most 1.5");
    if let ([first, ..], Some(last)) = (&by_index[..], by_index.last()) {
        println!("by index, on the most shards against the fewest: {:.2} x; goal 1\n", last / first);
    }
}

/// Files that this process may have open. Others than Linux do not say it here.
fn open_files_limit() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    line.and_then(|line| line.split_whitespace().nth(3)).and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX)
}

/// Microseconds of each look, by kind and round.
async fn reads_of(root: &Path, shards: usize) -> Vec<Vec<Vec<f64>>> {
    let db = open(root, |folder| Config::sqlite(folder, shards)).await;
    let mut client = patient(&db).await;
    client.run(READ_TABLE).await;
    fill(&mut client, &format!("{VALUES}, 'user-' || n || '@example.com'"), READ_ROWS).await;
    client.run("CREATE INDEX users_login ON users (login)").await;
    Indexes::Global(ONE).create(&mut client).await;
    settle(&db).await;
    let mut statements = Vec::new();
    for look in &LOOKS {
        statements.push(client.session.prepare(look.sql, &[]).await.expect("prepared"));
        assert_eq!(is_led(&mut client, look).await, look.name == "index", "{}", look.sql);
    }
    let mut micros = vec![Vec::new(); LOOKS.len()];
    // The first one opens readers and fills caches.
    for round in 0..=READ_ROUNDS {
        for at in turns(LOOKS.len(), round) {
            let looked = look_up(&mut client.session, &LOOKS[at], &statements[at], round as u64).await;
            if round > 0 {
                micros[at].push(looked);
            }
        }
    }
    report_reads(shards, &micros);
    drop(client);
    db.database.close().await.expect("it closes");
    micros
}

/// Whether the global index says where to look.
async fn is_led(client: &mut Client, look: &Look) -> bool {
    let value = match (look.param)(7) {
        Value::Text(text) => format!("'{text}'"),
        _ => "7".into(),
    };
    let explained = client.run(&format!("EXPLAIN {}", look.sql.replace("$1", &value))).await;
    explained.iter().any(|line| line.contains("users_email"))
}

async fn look_up(session: &mut Session, look: &Look, statement: &Arc<Prepared>, round: u64) -> Vec<f64> {
    let mut micros = Vec::new();
    for n in 0..look.times {
        let param = (look.param)((n * 7_919 + round * 104_729) % READ_ROWS);
        let sent = Instant::now();
        assert_eq!(run(session, statement, vec![param]).await, 1);
        micros.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    micros
}

fn report_reads(shards: usize, micros: &[Vec<Vec<f64>>]) {
    print!("{shards:>6}");
    for rounds in micros {
        let all = rounds.concat();
        print!("{:>18}", format!("{:.0} / {:.0}", median(&all), percentile(&all, 0.99)));
    }
    let medians = |at: usize| micros[at].iter().map(|round| median(round)).collect::<Vec<_>>();
    println!("{:>11.2}{:>16.2}", ratio(medians(1), medians(0)), ratio(medians(2), medians(1)));
}

// Builds.

const BUILD_ROWS: u64 = 200_000;
const BUILD_ROUNDS: usize = 3;
/// As long as the client in front is watched while nothing is built.
const QUIET: Duration = Duration::from_secs(3);
/// Between two statements of the client in front, which is not to take the machine from the build.
const PAUSE: Duration = Duration::from_millis(2);
const RAW_TABLE: &str = "CREATE TABLE users (_bucket INTEGER NOT NULL, id INTEGER NOT NULL, email TEXT, age INTEGER, \
                         city TEXT, note TEXT, PRIMARY KEY (id)) STRICT, WITHOUT ROWID";

/// How long a build took: until the shards' own indexes were there, and until statements were led by it.
struct Built {
    created: f64,
    used: f64,
}

/// Milliseconds of the statements of the client in front.
#[derive(Default)]
struct Front {
    selects: Vec<f64>,
    updates: Vec<f64>,
}

impl Front {
    fn add(&mut self, other: Front) {
        self.selects.extend(other.selects);
        self.updates.extend(other.updates);
    }
}

async fn build(root: &Path) {
    let db = open(root, |folder| Config::sqlite(folder, SQLITE_SHARDS)).await;
    let mut client = patient(&db).await;
    client.run(TABLE).await;
    fill(&mut client, VALUES, BUILD_ROWS).await;
    let raw = raw_table(&root.join("raw.db"));
    let (mut raws, mut alone, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    let (mut quiet, mut during) = (Front::default(), Front::default());
    for _ in 0..BUILD_ROUNDS {
        raws.push(raw_build(&raw));
        alone.push(build_index(&mut client).await);
        client.run("DROP INDEX users_email").await;
        let (front, ()) = in_front(&db, tokio::time::sleep(QUIET)).await;
        quiet.add(front);
        let (front, built) = in_front(&db, build_index(&mut client)).await;
        during.add(front);
        beside.push(built);
        client.run("DROP INDEX users_email").await;
    }
    report_builds(&raws, &alone, &beside);
    report_front("select", &quiet.selects, &during.selects);
    report_front("update", &quiet.updates, &during.updates);
    drop(client);
    db.database.close().await.expect("it closes");
}

fn raw_table(path: &Path) -> rusqlite::Connection {
    let mut connection = rusqlite::Connection::open(path).expect("open");
    // As durable as ours, and with as large a cache.
    let set_up = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -8192";
    connection.execute_batch(&format!("{set_up}; {RAW_TABLE}")).expect("a table");
    let transaction = connection.transaction().expect("begin");
    let mut insert = transaction.prepare("INSERT INTO users VALUES (?1, ?2, ?3, ?4, ?5, ?6)").expect("prepare");
    for n in 0..BUILD_ROWS {
        let (id, city) = (n as i64, format!("city-{}", n % 1_000));
        insert.execute(rusqlite::params![id % 64, id, email(n), id % 100, city, NOTE]).expect("insert");
    }
    drop(insert);
    transaction.commit().expect("commit");
    connection
}

fn raw_build(raw: &rusqlite::Connection) -> f64 {
    let began = Instant::now();
    raw.execute_batch("CREATE INDEX users_email ON users (email)").expect("an index");
    let took = began.elapsed().as_secs_f64();
    raw.execute_batch("DROP INDEX users_email").expect("dropped");
    took
}

async fn build_index(client: &mut Client) -> Built {
    let began = Instant::now();
    client.run("CREATE INDEX users_email ON users (email) WITH (global)").await;
    let created = began.elapsed().as_secs_f64();
    client.run("WAIT FOR INDEX users_email").await;
    Built { created, used: began.elapsed().as_secs_f64() }
}

/// Reads and updates rows by their keys while something else is done.
async fn in_front<T>(db: &Db, work: impl Future<Output = T>) -> (Front, T) {
    let stop = Arc::new(AtomicBool::new(false));
    let task = tokio::spawn(use_rows(db.client().session, stop.clone()));
    let done = work.await;
    stop.store(true, Ordering::Relaxed);
    (task.await.expect("the client ends"), done)
}

async fn use_rows(mut session: Session, stop: Arc<AtomicBool>) -> Front {
    let select = session.prepare("SELECT id, note FROM users WHERE id = $1", &[]).await.expect("prepared");
    let update = session.prepare("UPDATE users SET age = age + 1 WHERE id = $1", &[]).await.expect("prepared");
    let mut front = Front::default();
    for n in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let id = Value::Int((n.wrapping_mul(7_919) % BUILD_ROWS) as i64);
        for (statement, waited) in [(&select, &mut front.selects), (&update, &mut front.updates)] {
            let sent = Instant::now();
            assert_eq!(run(&mut session, statement, vec![id.clone()]).await, 1);
            waited.push(ms(sent.elapsed()));
            tokio::time::sleep(PAUSE).await;
        }
    }
    front
}

fn report_builds(raws: &[f64], alone: &[Built], beside: &[Built]) {
    println!("an index over {BUILD_ROWS} rows on {SQLITE_SHARDS} SQLite shards, median of {BUILD_ROUNDS} rounds");
    println!("{:<44}{:>10}{:>10}{:>10}", "", "rows/s", "seconds", "ratio");
    let line = |name: &str, seconds: &[f64]| {
        let ratio = ratio(raws.iter().copied(), seconds.iter().copied());
        let seconds = median(seconds);
        println!("{name:<44}{:>10.0}{seconds:>10.2}{ratio:>10.3}", BUILD_ROWS as f64 / seconds);
    };
    let used = |builds: &[Built]| builds.iter().map(|built| built.used).collect::<Vec<_>>();
    line("raw CREATE INDEX, one file", raws);
    line("global index", &used(alone));
    line("  of that, the shards' own indexes", &alone.iter().map(|built| built.created).collect::<Vec<_>>());
    line("global index, a client in front", &used(beside));
}

fn report_front(name: &str, quiet: &[f64], during: &[f64]) {
    let shares = [("p50", 0.5), ("p99", 0.99), ("max", 1.0)];
    let figures = shares.map(|(share_name, share)| {
        let (quiet, during) = (percentile(quiet, share), percentile(during, share));
        format!("{share_name} {during:.2} ms against {quiet:.2} quiet: {:.2} x", during / quiet)
    });
    println!("{name} while it is built: {}", figures.join("; "));
}
