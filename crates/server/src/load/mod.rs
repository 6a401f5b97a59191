//! Clients that keep a server busy over PostgreSQL's protocol, and know what must be in it afterwards.
//!
//! Tests, benchmarks and `isles demo move` share it. Some clients work for the tenant that moves, others for tenants
//! that stay. Each keeps a record of what was acknowledged; in the end the tables are compared with the records, so
//! that a write that was lost, doubled or brought back is found (I-1, I-11).
//!
//! ```text
//! Load::start ─► clients at full speed ─► capacity ─► pace ─► moves ─► finish: what clients were told, beside the rows
//! ```
//!
//! In reading order:
//!   * [`record`]  what one client was told, and what it does next
//!   * [`meter`]   how long statements took
//!   * [`moving`]  one move, as an operator asks for it
//!   * [`client`]  one connection

pub(crate) mod client;
pub(crate) mod meter;
pub(crate) mod moving;
pub(crate) mod record;

use client::{Told, Worker};
use meter::{Meter, Sample, Whose};
use moving::Origin;
use record::{Held, Record};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

/// Names that are tried for a tenant that shall be on a certain shard.
const MAX_NAMES: usize = 1_000;
/// Rows of one statement that fills a tenant.
const FILLED: i64 = 10_000;

const TABLE: &str = "CREATE TABLE entries (id bigint PRIMARY KEY, life bigint NOT NULL, n bigint NOT NULL, body text) \
                     WITH (kind = tenant)";

/// Why a load could not go on.
#[derive(Debug)]
pub(crate) struct Fault(pub(crate) String);

impl Fault {
    pub(crate) fn of(what: &str, error: &tokio_postgres::Error) -> Fault {
        match error.as_db_error() {
            Some(refusal) => Fault(format!("{what}: {} ({})", refusal.message(), refusal.code().code())),
            None => Fault(format!("{what}: {error}")),
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A session, of a tenant if one is named.
pub(crate) async fn connect(url: &str, tenant: Option<&str>) -> Result<Client, Fault> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.map_err(|error| Fault::of("cannot connect", &error))?;
    tokio::spawn(connection);
    if let Some(tenant) = tenant {
        run(&client, &format!("SET isles.tenant = '{tenant}'")).await?;
    }
    Ok(client)
}

async fn run(client: &Client, sql: &str) -> Result<(), Fault> {
    client.batch_execute(sql).await.map_err(|error| Fault::of(sql, &error))
}

/// What a load is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Clients of the tenant that moves.
    pub(crate) movers: usize,
    /// Clients of tenants that stay: half of them on the shard that is left, half on the other.
    pub(crate) others: usize,
    /// Rows of the tenant that moves, beside those that its clients write.
    pub(crate) still_rows: i64,
}

/// Who works, and on what.
pub(crate) struct World {
    url: String,
    pub(crate) admin: Client,
    pub(crate) mover: String,
    others: [String; 2],
    shape: Shape,
}

impl World {
    /// Makes a table, a tenant on `from` that will move to `to`, and neighbours on both.
    pub(crate) async fn make(url: &str, (from, to): (&str, &str), shape: Shape) -> Result<World, Fault> {
        let admin = connect(url, None).await?;
        run(&admin, TABLE).await?;
        let mover = tenant_on(&admin, from, "mover").await?;
        let others = [tenant_on(&admin, from, "stays").await?, tenant_on(&admin, to, "there").await?];
        let client = connect(url, Some(&mover)).await?;
        // Keys of clients are not below zero.
        for first in (1..=shape.still_rows).step_by(FILLED as usize) {
            let last = (first + FILLED - 1).min(shape.still_rows);
            let rows = format!("SELECT -n, 1, n, 'a row that stays as it is' FROM generate_series({first}, {last}) n");
            run(&client, &format!("INSERT INTO entries (id, life, n, body) {rows}")).await?;
        }
        Ok(World { url: url.to_owned(), admin, mover, others, shape })
    }

    /// Which tenant a client works for.
    fn tenant_of(&self, number: usize) -> (&str, Whose) {
        match number < self.shape.movers {
            true => (&self.mover, Whose::Mover),
            false => (&self.others[number % 2], Whose::Other),
        }
    }
}

/// A tenant whose bucket is on a shard.
async fn tenant_on(admin: &Client, shard: &str, prefix: &str) -> Result<String, Fault> {
    for number in 0..MAX_NAMES {
        let name = format!("{prefix}{number}");
        run(admin, &format!("CREATE TENANT {name}")).await?;
        let show = format!("SHOW TENANT {name}");
        let found = admin.query_one(&show, &[]).await.map_err(|error| Fault::of(&show, &error))?;
        if found.get::<_, String>(1) == shard {
            return Ok(name);
        }
        run(admin, &format!("DROP TENANT {name}")).await?;
    }
    Err(Fault(format!("no name of {MAX_NAMES} leads to shard {shard}")))
}

/// What clients look at while they work.
pub(crate) struct Shared {
    pub(crate) origin: Origin,
    pub(crate) meter: Meter,
    /// Between two statements of a client; none at full speed.
    interval_micros: AtomicU64,
    is_over: AtomicBool,
}

/// Clients at work.
pub(crate) struct Load {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<Told>>,
}

/// What came out.
pub(crate) struct Outcome {
    pub(crate) samples: Vec<Sample>,
    /// Writes that were acknowledged, of all clients.
    pub(crate) writes: u64,
    /// Rows that must be there, and rows that are.
    pub(crate) rows_expected: u64,
    pub(crate) rows_found: u64,
    pub(crate) errors: u64,
    /// Answers that contradict what was acknowledged before, and rows that do.
    pub(crate) wrong: u64,
    /// The first of both.
    pub(crate) texts: Vec<String>,
}

impl Outcome {
    /// Whether no client saw an error, and everything is as it was acknowledged.
    pub(crate) fn is_exact(&self) -> bool {
        self.errors == 0 && self.wrong == 0 && self.rows_expected == self.rows_found
    }
}

impl Load {
    /// Connects all clients, and lets them work at full speed.
    pub(crate) async fn start(world: &World) -> Result<Load, Fault> {
        let mut workers = Vec::new();
        for number in 0..world.shape.movers + world.shape.others {
            let (tenant, whose) = world.tenant_of(number);
            workers.push(Worker::open(&world.url, number, tenant, whose).await?);
        }
        let shared = Arc::new(Shared {
            origin: Origin::now(),
            meter: Meter::default(),
            interval_micros: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let clients = workers.into_iter().map(|worker| tokio::spawn(worker.work(shared.clone()))).collect();
        Ok(Load { shared, clients })
    }

    pub(crate) fn origin(&self) -> Origin {
        self.shared.origin
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.shared.meter
    }

    /// Statements per second at full speed, after a while in which plans and caches fill.
    pub(crate) async fn capacity(&self, time: Duration) -> f64 {
        tokio::time::sleep(time / 3).await;
        let (before, began) = (self.meter().count(), self.origin().elapsed());
        tokio::time::sleep(time).await;
        (self.meter().count() - before) as f64 / (self.origin().elapsed() - began).as_secs_f64()
    }

    /// Lets all clients together send so many statements per second.
    pub(crate) fn pace(&self, per_second: f64) {
        let interval = self.clients.len() as f64 * 1e6 / per_second.max(1.0);
        self.shared.interval_micros.store(interval as u64, Ordering::Relaxed);
    }

    /// Stops, and compares what is there with what was acknowledged.
    pub(crate) async fn finish(self, world: &World) -> Result<Outcome, Fault> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let mut told = Vec::new();
        for client in self.clients {
            told.push(client.await.map_err(|fault| Fault(fault.to_string()))?);
        }
        let mut outcome = Outcome {
            samples: self.shared.meter.after(0),
            writes: told.iter().map(|one| one.record.writes).sum(),
            rows_expected: told.iter().map(|one| one.record.rows()).sum::<u64>() + world.shape.still_rows as u64,
            rows_found: 0,
            errors: told.iter().map(|one| one.errors).sum(),
            wrong: told.iter().map(|one| one.wrong).sum(),
            texts: told.iter().flat_map(|one| one.texts.clone()).collect(),
        };
        let tenants: BTreeSet<&str> = told.iter().map(|one| one.tenant.as_str()).collect();
        for tenant in tenants {
            let records = told.iter().filter(|one| one.tenant == tenant).map(|one| &one.record);
            let still = if tenant == world.mover { world.shape.still_rows } else { 0 };
            let mut found = rows_of(&world.url, tenant).await?;
            outcome.rows_found += found.len() as u64;
            let faults = compare(&mut found, records, still);
            outcome.wrong += faults.len() as u64;
            outcome.texts.extend(faults.into_iter().map(|fault| format!("{tenant}: {fault}")));
        }
        Ok(outcome)
    }
}

/// All rows of a tenant.
async fn rows_of(url: &str, tenant: &str) -> Result<BTreeMap<i64, Held>, Fault> {
    let (client, sql) = (connect(url, Some(tenant)).await?, "SELECT id, life, n FROM entries");
    let rows = client.query(sql, &[]).await.map_err(|error| Fault::of(sql, &error))?;
    let found: BTreeMap<i64, Held> =
        rows.iter().map(|row| (row.get(0), Held { life: row.get(1), n: row.get(2) })).collect();
    match found.len() == rows.len() {
        true => Ok(found),
        false => Err(Fault(format!("{tenant} has {} rows with {} keys", rows.len(), found.len()))),
    }
}

/// What is wrong with the rows of a tenant.
fn compare<'a>(
    found: &mut BTreeMap<i64, Held>,
    records: impl Iterator<Item = &'a Record>,
    still_rows: i64,
) -> Vec<String> {
    let mut faults: Vec<String> = records.flat_map(|record| record.compare(found)).collect();
    for n in 1..=still_rows {
        match found.remove(&-n) {
            Some(row) if row == (Held { life: 1, n }) => {}
            row => faults.push(format!("row {} is {row:?}", -n)),
        }
    }
    faults.extend(found.keys().map(|id| format!("row {id} was never written")));
    faults
}
