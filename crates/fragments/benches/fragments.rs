//! What fragments cost. Figures are ratios where they can be, since machines differ.
//!
//! `cargo xtask bench fragments [part…]`, of the parts
//!   * `clocks`    writers on 64 shards with an outbox, beside the same writers on one clock; PostgreSQL
//!   * `overhead`  a unit of work, beside the same statements by hand; PostgreSQL
//!   * `reading`   entries per second that a client is given from a long log, in full pages
//!   * `delay`     from the commit to the client that waits, and while others write
//!   * `hooks`     hooks per second
//!
//! The last three are measured on SQLite, PostgreSQL and a whole Isles database of two SQLite shards. A run of all parts
//! takes about two minutes.

use isles_cluster::database::{Config, Database};
use isles_engine::env::TokioEnv;
use isles_fragments::adapter::Adapter;
use isles_fragments::adapter::isles::Isles;
use isles_fragments::adapter::postgres::Postgres;
use isles_fragments::adapter::sqlite::Sqlite;
use isles_fragments::context::{GlobalScope, ShardContext};
use isles_fragments::hooks::{Hook, Processor, ProcessorOptions};
use isles_fragments::schema::{ColumnType, Schema, column};
use isles_fragments::shard::{Shard, Strategy};
use isles_fragments::store::{Fragment, Handle, Store};
use isles_fragments::values::Values;
use isles_kernel::sync::{Cursor, OutboxQuery};
use isles_sim::pgserver::{PgOptions, PgServer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// As the server has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What is asked of the figures: clocks of their own against one, and a unit of work against statements by hand.
const CLOCKS_LEAST: f64 = 8.0;
const OVERHEAD_MOST: f64 = 1.3;
/// Entries of the long log.
const LOG: usize = 5_000;
/// How long each measurement takes.
const TIME: Duration = Duration::from_secs(4);
const SHARDS: usize = 64;
const WRITERS: usize = 32;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runs = |part: &str| wanted.is_empty() || wanted.iter().any(|name| name == part);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = PgServer::start(PgOptions { fsync: true, settings: vec!["max_connections=200".into()] });
    runtime.block_on(async {
        if runs("clocks") {
            clocks(&server).await;
        }
        if runs("overhead") {
            overhead(&server).await;
        }
        for (name, adapter) in adapters(&server).await {
            if runs("reading") {
                reading(name, adapter.clone()).await;
            }
            if runs("delay") {
                delay(name, adapter.clone()).await;
            }
            if runs("hooks") {
                hooks(name, adapter).await;
            }
        }
    });
}

async fn adapters(server: &PgServer) -> Vec<(&'static str, Arc<dyn Adapter>)> {
    let folder = tempfile::tempdir().expect("a folder").keep();
    let sqlite = Sqlite::open(folder.join("bench.db")).expect("it opens");
    let postgres = Postgres::new(&server.create_database()).expect("a URL");
    let config = Config::sqlite(folder.join("isles"), 2);
    let database = Database::open(config, Arc::new(TokioEnv::current())).await.expect("it opens");
    let isles = Isles::new(database, "isles");
    vec![("sqlite", Arc::new(sqlite)), ("postgresql", Arc::new(postgres)), ("isles", Arc::new(isles))]
}

/// Says whether a figure is what is asked of it; a machine that is busy with something else may miss it.
fn verdict(holds: bool) -> &'static str {
    if holds { "met" } else { "MISSED" }
}

fn fragment() -> Fragment {
    let schema = Schema::build("bench").table("notes", |t| t.column(column("body", ColumnType::String))).finish();
    Fragment::new(schema.expect("a schema")).outbox().hook("work", Hook::new(|_, _| async { Ok(()) }))
}

async fn open(adapter: Arc<dyn Adapter>) -> (Handle, GlobalScope) {
    let (store, global) = Store::open(adapter, Some(Strategy::Row)).await.expect("it opens");
    (store.register(fragment(), None).await.expect("it is registered"), global)
}

fn shard(n: usize) -> Shard {
    Shard::named(format!("tenant{n}")).expect("a name")
}

async fn write(app: &Handle, shard: Shard) {
    let tx = async {
        let note = Values::new().set("body", "a note of some length, as people write them");
        app.handler_tx().mutate(move |m, _| m.create("notes", note.clone())).execute().await
    };
    ShardContext.with(shard, || tx).await.expect("it is written");
}

/// Units of work per second of many writers, who choose among some shards.
async fn throughput(app: &Handle, shards: usize) -> f64 {
    let (count, began) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let mut tasks = Vec::new();
    for writer in 0..WRITERS {
        let (app, count) = (app.clone(), count.clone());
        tasks.push(tokio::spawn(async move {
            let mut n = writer;
            while began.elapsed() < TIME {
                write(&app, shard(n % shards)).await;
                count.fetch_add(1, Ordering::Relaxed);
                n += WRITERS + 1;
            }
        }));
    }
    for task in tasks {
        task.await.expect("a writer");
    }
    count.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}

async fn clocks(server: &PgServer) {
    let (app, _) = open(Arc::new(Postgres::new(&server.create_database()).expect("a URL"))).await;
    throughput(&app, SHARDS).await;
    let (many, one) = (throughput(&app, SHARDS).await, throughput(&app, 1).await);
    println!(
        "clocks: {WRITERS} writers on {SHARDS} shards {many:.0}/s, on one clock {one:.0}/s, ratio {:.1}, at least \
         {CLOCKS_LEAST} is {}",
        many / one,
        verdict(many / one >= CLOCKS_LEAST)
    );
}

async fn overhead(server: &PgServer) {
    let url = server.create_database();
    let (app, _) = open(Arc::new(Postgres::new(&url).expect("a URL"))).await;
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("a connection");
    tokio::spawn(connection);
    let clock = "INSERT INTO isles_clocks AS c (id, \"_internalId\", \"_version\", floor, version, last, \"_shard\") \
        VALUES ('clock', 0, 0, 0, 1, $1, 'hand') ON CONFLICT (\"_shardKey\", id) DO UPDATE SET version = c.version + 1, \
        prev = c.last, last = excluded.last RETURNING version, prev";
    let note = "INSERT INTO notes_bench (\"_internalId\", id, \"_shard\", body) VALUES ($1, $2, 'hand', $3)";
    let entry = "INSERT INTO isles_outbox (\"_internalId\", id, \"_shard\", version, prev, at, mutations, before) \
        VALUES ($1, $2, 'hand', $3, $4, now(), $5::text::json, '[null]')";
    let clock = client.prepare(clock).await.expect("it is prepared");
    let note = client.prepare(note).await.expect("it is prepared");
    let entry = client.prepare(entry).await.expect("it is prepared");
    let (mut by_hand, mut by_unit, mut n) = (Vec::new(), Vec::new(), 0i64);
    let began = Instant::now();
    while began.elapsed() < TIME * 2 {
        n += 1;
        let id = uuid::Uuid::now_v7().to_string();
        let at = Instant::now();
        client.batch_execute("BEGIN; SET LOCAL isles.fragment_shard = '=shand'").await.expect("it begins");
        let row = client.query_one(&clock, &[&id]).await.expect("a clock");
        let (version, prev): (i64, Option<String>) = (row.get(0), row.get(1));
        client.execute(&note, &[&n, &id, &"a note of some length, as people write them"]).await.expect("a note");
        let json = format!(
            "[{{\"op\":\"create\",\"externalId\":\"{id}\",\"values\":{{\"body\":\"a note of some length\"}}}}]"
        );
        client.execute(&entry, &[&n, &id, &version, &prev, &json]).await.expect("an entry");
        client.batch_execute("COMMIT").await.expect("it commits");
        by_hand.push(at.elapsed());
        let at = Instant::now();
        write(&app, shard(0)).await;
        by_unit.push(at.elapsed());
    }
    let (hand, unit) = (percentile(&mut by_hand, 50), percentile(&mut by_unit, 50));
    let ratio = unit.as_secs_f64() / hand.as_secs_f64();
    let met = verdict(ratio <= OVERHEAD_MOST);
    println!("overhead: by hand {hand:?}, unit of work {unit:?}, ratio {ratio:.2}, at most {OVERHEAD_MOST} is {met}");
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort();
    times[(times.len() - 1) * percent / 100]
}

/// A client that begins anew reads a long log, page by page.
async fn reading(name: &str, adapter: Arc<dyn Adapter>) {
    let (app, _) = open(adapter).await;
    let tenant = shard(SHARDS);
    let began = Instant::now();
    while began.elapsed() < TIME * 4 {
        let page = ShardContext.with(tenant.clone(), async || app.store().outbox(&OutboxQuery::default()).await).await;
        if page.expect("a page").head.version().get() as usize >= LOG {
            break;
        }
        for _ in 0..LOG / 10 {
            write(&app, tenant.clone()).await;
        }
    }
    let (mut read, mut passes, began) = (0, 0, Instant::now());
    while began.elapsed() < TIME {
        let mut cursor = Cursor::START;
        loop {
            let query = OutboxQuery { after: Some(cursor), ..OutboxQuery::default() };
            let page = ShardContext.with(tenant.clone(), || app.store().outbox(&query)).await.expect("a page");
            read += page.entries.len();
            cursor = page.next;
            if !page.has_more() {
                break;
            }
        }
        passes += 1;
    }
    let rate = read as f64 / began.elapsed().as_secs_f64();
    println!("reading, {name}: {rate:.0} entries/s, {passes} times a log of {}", read / passes);
}

async fn delay(name: &str, adapter: Arc<dyn Adapter>) {
    let (app, _) = open(adapter).await;
    delay_beside(name, &app, 0).await;
    delay_beside(name, &app, 4).await;
}

/// From the commit to the client that waits, while so many others write to shards of their own.
async fn delay_beside(name: &str, app: &Handle, others: usize) {
    let writing: Vec<_> = (0..others)
        .map(|other| {
            let app = app.clone();
            tokio::spawn(async move {
                loop {
                    write(&app, shard(1 + other)).await;
                }
            })
        })
        .collect();
    delays(name, app, others).await;
    writing.iter().for_each(tokio::task::JoinHandle::abort);
}

async fn delays(name: &str, app: &Handle, others: usize) {
    let (sent, mut arrived) = tokio::sync::mpsc::unbounded_channel::<Instant>();
    let reader = app.clone();
    let query = OutboxQuery { limit: Some(1), ..OutboxQuery::default() };
    let start = ShardContext.with(shard(0), || app.store().outbox(&query)).await.expect("a page").head;
    let reading = tokio::spawn(ShardContext.with(shard(0), move || async move {
        let mut cursor = start;
        loop {
            let query = OutboxQuery { after: Some(cursor), wait_ms: Some(20_000), ..OutboxQuery::default() };
            let page = reader.store().outbox(&query).await.expect("a page");
            let seen = Instant::now();
            cursor = page.next;
            if page.entries.iter().any(|_| sent.send(seen).is_err()) {
                return;
            }
        }
    }));
    let (mut delays, began) = (Vec::new(), Instant::now());
    while began.elapsed() < TIME {
        write(app, shard(0)).await;
        let committed = Instant::now();
        let seen = arrived.recv().await.expect("it arrives");
        delays.push(seen.saturating_duration_since(committed));
    }
    reading.abort();
    let count = delays.len();
    let (p50, p99) = (percentile(&mut delays, 50), percentile(&mut delays, 99));
    println!("delay, {name}, beside {others} writers: {count} entries, p50 {p50:?}, p99 {p99:?}");
}

async fn hooks(name: &str, adapter: Arc<dyn Adapter>) {
    const HOOKS: usize = 1_000;
    let (app, global) = open(adapter).await;
    for n in 0..SHARDS {
        let tx = async {
            let tx = app
                .handler_tx()
                .mutate(|m, _| (0..HOOKS / SHARDS + 1).try_for_each(|_| m.trigger("work", &serde_json::json!({}))));
            tx.execute().await
        };
        ShardContext.with(shard(n), || tx).await.expect("triggered");
    }
    let options = ProcessorOptions { per_shard: 16, ..ProcessorOptions::default() };
    let began = Instant::now();
    let done = Processor::global(&app, &global).with_options(options).drain().await.expect("they run");
    println!("hooks, {name}: {:.0}/s", done.completed as f64 / began.elapsed().as_secs_f64());
}
