//! How fast rows are copied from shard to shard, beside what the engines themselves have for it.
//!
//! 200,000 rows of about 100 bytes with one secondary index. Ours reads pages of a snapshot and applies them as copies,
//! each durable when it is answered: one after the other, or the next page read while one is applied. The peer is one
//! `INSERT INTO … SELECT` into an attached file, or `pg_dump | psql`. Rounds alternate, and the ratio printed is the median over them. Run it with `cargo xtask bench copy`.

use isles_engine::env::{Env, TokioEnv};
use isles_engine::postgres::{PostgresOptions, PostgresShard};
use isles_engine::shard::{
    Batch, BatchKind, DriverToken, ImportMode, Incoming, KeyRange, Page, RowVersion, Shard, Snapshot, StoredRow,
};
use isles_engine::sqlite::{SqliteOptions, SqliteShard};
use isles_kernel::names::{BucketId, GroupName, RoutingVersion, SchemaVersion, Seq, ShardId, StreamId};
use isles_kernel::schema::{Column, Key, SchemaChange, Table, TableKind, Unit};
use isles_kernel::value::{DataType, Value};
use isles_sim::pgserver::{PgOptions, PgServer};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
const ROWS: u64 = 200_000;
const PAGE_ROWS: usize = 10_000;
const BUCKETS: u32 = 64;
const NOTE: &str = "left at the door, as the customer asked for by telephone";

fn main() {
    // Cargo passes flags of its own harness; none of them means anything here.
    let root = tempfile::Builder::new().prefix("isles-bench").tempdir_in(target_dir()).expect("a folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio");
    runtime.block_on(async {
        let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
        println!("{ROWS} rows copied in pages of {PAGE_ROWS}: median of {ROUNDS} rounds\n");
        if wanted("sqlite") {
            sqlite(root.path(), &env).await;
        }
        if wanted("postgres") {
            postgres(&env).await;
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

fn orders() -> Table {
    Table {
        name: "orders".into(),
        kind: TableKind::Hash { group: group(), shard_by: vec!["id".into()], buckets: BUCKETS, regions: vec![] },
        columns: vec![
            Column::new("id", DataType::Text).not_null(),
            Column::new("customer", DataType::Text),
            Column::new("amount", DataType::Int8),
            Column::new("note", DataType::Text),
        ],
        primary_key: vec!["id".into()],
        keys: vec![Key { unique: false, ..Key::unique("by_customer", &["customer"]) }],
        foreign_keys: vec![],
        checks: vec![],
        primary_key_name: None,
        hidden_key: false,
    }
}

/// The same table as a peer has it.
const SQLITE_TABLE: &str = "CREATE TABLE orders (_bucket INTEGER NOT NULL, id TEXT NOT NULL PRIMARY KEY, customer TEXT, \
                            amount INTEGER, note TEXT) STRICT, WITHOUT ROWID";
const POSTGRES_TABLE: &str = "CREATE TABLE orders (_bucket integer NOT NULL, id text COLLATE \"C\" PRIMARY KEY, \
                              customer text COLLATE \"C\", amount bigint, note text COLLATE \"C\")";

/// Ids rise, as UUIDv7 ids do; customers come in no order.
fn row(n: u64) -> StoredRow {
    let id = format!("01920000-{:04x}-7000-8000-{:012x}", n >> 48 & 0xffff, n & 0xffff_ffff_ffff);
    let customer = format!("customer-{}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50);
    let values = vec![Value::Text(id), Value::Text(customer), Value::Int(n as i64), Value::text(NOTE)];
    StoredRow { unit: Unit::Bucket(group(), BucketId((n % u64::from(BUCKETS)) as u32)), values }
}

async fn fill(shard: &dyn Shard) {
    for first in (0..ROWS).step_by(PAGE_ROWS) {
        let rows = (first..first + PAGE_ROWS as u64).map(row).collect();
        shard.import("orders", rows, ImportMode::Insert).await.expect("rows");
    }
}

async fn set_up(shard: &dyn Shard) {
    shard.apply_schema(SchemaVersion(0), vec![SchemaChange::CreateTable(orders())]).await.expect("schema");
}

/// Whether the next page is read while one is applied.
#[derive(Debug, Clone, Copy)]
enum Pages {
    OneByOne,
    Ahead,
}

/// Copies all rows as a mover does; the time it took.
async fn copy(source: &dyn Shard, target: &dyn Shard, pages: Pages) -> Duration {
    let (table, stream) = (orders(), StreamId::new("bench").expect("valid"));
    target.open_stream(&stream, DriverToken(1)).await.expect("it opens");
    let began = Instant::now();
    let mut snapshot = source.snapshot().await.expect("a snapshot");
    let mut page = next_page(&mut *snapshot, None).await;
    let mut written = 0;
    loop {
        let apply = target.apply(batch(&stream, &table, page.rows));
        let applied = match (page.next, pages) {
            (None, _) => {
                written += apply.await.expect("it applies").written;
                break;
            }
            (next, Pages::OneByOne) => {
                let applied = apply.await;
                page = next_page(&mut *snapshot, next).await;
                applied
            }
            (next, Pages::Ahead) => {
                let (applied, ahead) = futures::join!(apply, next_page(&mut *snapshot, next));
                page = ahead;
                applied
            }
        };
        written += applied.expect("it applies").written;
    }
    assert_eq!(written, ROWS);
    began.elapsed()
}

async fn next_page(snapshot: &mut dyn Snapshot, after: Option<Vec<Value>>) -> Page {
    let range = KeyRange { after, ..KeyRange::table("orders") };
    snapshot.page(&range, PAGE_ROWS).await.expect("a page")
}

fn batch(stream: &StreamId, table: &Table, rows: Vec<StoredRow>) -> Batch {
    let version = RowVersion { epoch: RoutingVersion(1), seq: Seq::ZERO };
    let rows = rows.into_iter().map(|row| Incoming {
        table: table.name.clone(),
        key: table.key_of(&row.unit, &row.values),
        unit: row.unit,
        version,
        row: Some(row.values),
    });
    Batch { driver: Some(DriverToken(1)), kind: BatchKind::Copy, ..Batch::new(stream, rows.collect()) }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn report(name: &str, ours: &[Duration], peer: &[Duration], goal: &str) {
    let rate = |times: &[Duration]| median(times.iter().map(|time| ROWS as f64 / time.as_secs_f64()).collect());
    let ratio = median(ours.iter().zip(peer).map(|(a, b)| b.as_secs_f64() / a.as_secs_f64()).collect());
    println!("{name:<52} {ratio:>6.2} x   ({:>9.0}/s against {:>9.0}/s)   {goal}", rate(ours), rate(peer));
}

async fn open_sqlite(path: &Path, env: &Arc<dyn Env>) -> SqliteShard {
    let id = ShardId::new("bench").expect("valid");
    let shard = SqliteShard::open(id, path, env.clone(), SqliteOptions::default()).await.expect("open");
    set_up(&shard).await;
    shard
}

async fn sqlite(root: &Path, env: &Arc<dyn Env>) {
    let source = open_sqlite(&root.join("source.db"), env).await;
    fill(&source).await;
    let raw = root.join("raw.db");
    raw_source(&raw);
    let (mut ours, mut ahead, mut inserted, mut transferred) = (vec![], vec![], vec![], vec![]);
    for round in 0..ROUNDS {
        // With an order SQLite moves row by row; without one it moves whole records, between tables that are alike.
        inserted.push(raw_copy(&raw, &root.join(format!("inserted-{round}.db")), " ORDER BY id"));
        for (pages, times) in [(Pages::OneByOne, &mut ours), (Pages::Ahead, &mut ahead)] {
            let target = open_sqlite(&root.join(format!("copied-{round}-{pages:?}.db")), env).await;
            times.push(copy(&source, &target, pages).await);
            target.close().await.expect("closes");
        }
        transferred.push(raw_copy(&raw, &root.join(format!("transferred-{round}.db")), ""));
    }
    report("SQLite, against INSERT INTO … SELECT … ORDER BY", &ours, &inserted, "at least 0.5");
    report("the same, the next page read ahead", &ahead, &inserted, "at least 0.5");
    report("SQLite, against INSERT INTO … SELECT", &ours, &transferred, "");
    report("the same, the next page read ahead", &ahead, &transferred, "");
}

fn raw_source(path: &Path) {
    let mut connection = rusqlite::Connection::open(path).expect("open");
    connection.execute_batch(&format!("PRAGMA journal_mode = WAL; {SQLITE_TABLE}")).expect("table");
    connection.execute_batch("CREATE INDEX by_customer ON orders (customer)").expect("index");
    let transaction = connection.transaction().expect("begin");
    let mut insert = transaction.prepare("INSERT INTO orders VALUES (?1, ?2, ?3, ?4, ?5)").expect("prepare");
    for n in 0..ROWS {
        let StoredRow { unit: Unit::Bucket(_, bucket), values } = row(n) else { panic!("orders have buckets") };
        let [Value::Text(id), Value::Text(customer), Value::Int(amount), Value::Text(note)] = &values[..] else {
            panic!("orders have four columns")
        };
        insert.execute(rusqlite::params![bucket.0, id, customer, amount, note]).expect("insert");
    }
    drop(insert);
    transaction.commit().expect("commit");
}

fn raw_copy(source: &Path, target: &Path, order: &str) -> Duration {
    let connection = rusqlite::Connection::open(source).expect("open");
    // As large a cache as ours has.
    connection.execute_batch("PRAGMA cache_size = -8192").expect("cache");
    connection.execute("ATTACH ?1 AS target", [target.display().to_string()]).expect("attach");
    let table = SQLITE_TABLE.replace("orders", "target.orders");
    let set_up = format!(
        "PRAGMA target.journal_mode = WAL; PRAGMA target.synchronous = FULL; PRAGMA target.cache_size = -8192; \
         {table}; CREATE INDEX target.by_customer ON orders (customer)"
    );
    connection.execute_batch(&set_up).expect("table");
    let began = Instant::now();
    let copied = connection.execute(&format!("INSERT INTO target.orders SELECT * FROM main.orders{order}"), []);
    assert_eq!(copied.expect("copied") as u64, ROWS);
    began.elapsed()
}

async fn open_postgres(url: &str, env: &Arc<dyn Env>) -> PostgresShard {
    let id = ShardId::new("bench").expect("valid");
    let shard = PostgresShard::open(id, url, env.clone(), PostgresOptions::default()).await.expect("open");
    set_up(&shard).await;
    shard
}

async fn postgres(env: &Arc<dyn Env>) {
    let server = PgServer::start(PgOptions::default());
    let (ours, raw) = (server.create_database(), server.create_database());
    let source = open_postgres(&ours, env).await;
    fill(&source).await;
    psql(&server, &ours, "VACUUM ANALYZE orders");
    plain_source(&server, &raw);
    let (mut ours, mut ahead, mut peer) = (vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        peer.push(dump_and_restore(&server, &raw, &server.create_database()));
        for (pages, times) in [(Pages::OneByOne, &mut ours), (Pages::Ahead, &mut ahead)] {
            let target = open_postgres(&server.create_database(), env).await;
            times.push(copy(&source, &target, pages).await);
            target.close().await.expect("closes");
        }
    }
    report("PostgreSQL, against pg_dump | psql", &ours, &peer, "at least 0.5");
    report("the same, the next page read ahead", &ahead, &peer, "at least 0.5");
}

fn plain_source(server: &PgServer, url: &str) {
    let mut sql = format!("{POSTGRES_TABLE}; CREATE INDEX by_customer ON orders (customer); COPY orders FROM stdin;\n");
    for n in 0..ROWS {
        let StoredRow { unit: Unit::Bucket(_, bucket), values } = row(n) else { panic!("orders have buckets") };
        let [Value::Text(id), Value::Text(customer), Value::Int(amount), Value::Text(note)] = &values[..] else {
            panic!("orders have four columns")
        };
        sql.push_str(&format!("{}\t{id}\t{customer}\t{amount}\t{note}\n", bucket.0));
    }
    sql.push_str("\\.\nVACUUM ANALYZE orders;\n");
    psql(server, url, &sql);
}

fn psql(server: &PgServer, url: &str, sql: &str) {
    let mut psql = Command::new(server.program("psql"));
    let mut psql = psql.args(["-q", "-v", "ON_ERROR_STOP=1", url]).stdin(Stdio::piped()).spawn().expect("psql runs");
    psql.stdin.take().expect("piped").write_all(sql.as_bytes()).expect("it takes all");
    assert!(psql.wait().expect("psql ends").success());
}

fn dump_and_restore(server: &PgServer, from: &str, to: &str) -> Duration {
    let began = Instant::now();
    let mut dump = Command::new(server.program("pg_dump"));
    let mut dump = dump.args(["-t", "orders", from]).stdout(Stdio::piped()).spawn().expect("pg_dump runs");
    let input = dump.stdout.take().expect("piped");
    let mut psql = Command::new(server.program("psql"));
    psql.args(["-q", "-v", "ON_ERROR_STOP=1", to]).stdin(input).stdout(Stdio::null());
    assert!(psql.status().expect("psql runs").success() && dump.wait().expect("pg_dump ends").success());
    began.elapsed()
}
