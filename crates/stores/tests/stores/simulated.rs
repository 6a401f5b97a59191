//! Logins over SQLite shards on a simulated disk, in virtual time, with crashes and changes of generation.
//!
//! Each client notes what it was told, and asks again in later lives: what was granted once is never granted again,
//! whatever crashed in between (I-1).

use isles_cluster::database::{Config, Database};
use isles_cluster::placements::{Change, ETag};
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use isles_sim::disk::{Crash, Disk, Times};
use isles_sim::exec::Sim;
use isles_sim::rng::Rng;
use isles_sim::rng::number_from_env as number;
use isles_stores::identity::{Grant, preset};
use isles_stores::{IdSource, Outcome, Stores};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NODE: &str = "isles";
const SHARDS: usize = 2;
const CLIENTS: u64 = 3;
const FLOWS: u64 = 6;
/// Lives under faults; one more without follows.
const LIVES: u64 = 3;
/// Histories of a run that nobody asked more of.
const SEEDS: u64 = 25;
/// In virtual time: longer than any wait of the database.
const LIFE_MAX: Duration = Duration::from_secs(1_000);
const LOOK: Duration = Duration::from_millis(2);
/// How long the disk takes.
const DISK: Duration = Duration::from_micros(500);

/// How often each thing was granted, as far as clients were told.
#[derive(Default)]
struct Told {
    codes: BTreeMap<String, u64>,
    proofs: BTreeMap<String, u64>,
    ended: u64,
    refused: u64,
    unknown: u64,
    generations: u64,
    /// Nothing fails any more, so an error is a failure.
    is_fault_free: bool,
    /// The first of these.
    broken: Option<SqlError>,
}

type Shared = Arc<Mutex<Told>>;

fn acme() -> TenantId {
    TenantId::new("acme").unwrap()
}

fn hour() -> Duration {
    Duration::from_secs(3_600)
}

struct Client {
    number: u64,
    stores: Stores,
    told: Shared,
    rng: Rng,
}

impl Client {
    async fn run(mut self) {
        for flow in 0..FLOWS {
            // Whatever went wrong, the next flow is another.
            if let Err(error) = self.flow(flow).await {
                let mut told = self.told.lock().unwrap();
                match told.is_fault_free {
                    true => told.broken = told.broken.take().or(Some(error)),
                    false => told.unknown += 1,
                }
            }
        }
        self.told.lock().unwrap().ended += 1;
    }

    async fn flow(&mut self, flow: u64) -> Result<(), SqlError> {
        let mut desk = self.stores.desk();
        // A proof of anybody, from any life.
        let proof = format!("proof {}", self.rng.below(20));
        let passed = desk.pass_proof(&acme(), ("k", &proof), hour()).await?.outcome;
        self.note(passed == Outcome::Ok, |told| told.proofs.entry(proof).or_default());
        let user = format!("user{}-{flow}", self.number);
        let grant = Grant { user, client: "app".into(), challenge: None, value: "{}".into() };
        let code = desk.issue_code(&acme(), &grant).await?.id().unwrap_or_default().to_owned();
        self.told.lock().unwrap().codes.insert(code, 0);
        // A code that somebody was given, perhaps long ago, perhaps used.
        let some = {
            let told = self.told.lock().unwrap();
            let codes: Vec<&String> = told.codes.keys().collect();
            codes[self.rng.below(codes.len() as u64) as usize].clone()
        };
        let exchanged = desk.exchange_code(&acme(), &some, ("app", None)).await?;
        self.note(exchanged.is_ok(), |told| told.codes.entry(some).or_default());
        if let Ok(tokens) = exchanged {
            let next = desk.refresh(&acme(), &tokens.refresh.id, "app").await?;
            let fine = matches!(next.outcome, Outcome::Ok | Outcome::Revoked);
            assert!(fine, "a token that was just given is {:?}", next.outcome);
        }
        Ok(())
    }

    fn note(&self, granted: bool, of: impl FnOnce(&mut Told) -> &mut u64) {
        let mut told = self.told.lock().unwrap();
        match granted {
            true => *of(&mut told) += 1,
            false => told.refused += 1,
        }
    }
}

struct Driver {
    sim: Sim,
    disk: Arc<Disk>,
    told: Shared,
    rng: RefCell<Rng>,
    /// How many have begun.
    generations: Cell<u64>,
}

/// A database of SQLite shards on a simulated disk.
fn config(disk: &Disk) -> Config {
    let folder = std::env::temp_dir().join(format!("isles-stores-{}", std::process::id()));
    let mut config = Config::sqlite(folder, SHARDS);
    config.sqlite.base_vfs = Some(disk.vfs_name().into());
    config.sqlite.gather = Duration::ZERO;
    config.catalog.vfs = Some(disk.vfs_name().into());
    config
}

/// As many buckets as no other generation has.
fn groups(generation: u32) -> serde_json::Value {
    let group = |members: &[&str]| serde_json::json!({ "totalShards": 16 + generation % 7, "members": members });
    serde_json::json!({
        "user-client": group(&["authcode", "refresh"]),
        "client-based": group(&["par", "device", "ciba", "dpop"]),
        "random-high-rps": group(&["revocation"]),
        "random-medium-rps": group(&["session", "challenge"]),
        "vc": group(&["credoffer", "vprequest"]),
    })
}

fn change(database: &Database) -> Change<'static> {
    let if_match = database.placements().of("acme").unwrap().etag;
    Change { tenant: "acme", by: "test", if_match, reason: None }
}

/// Puts the first placement in force, unless one is.
async fn place(database: &Database) -> Result<(), SqlError> {
    if database.placements().of("acme").unwrap().etag != ETag::NONE {
        return Ok(());
    }
    let config = serde_json::json!({
        "version": 2, "currentGeneration": 1, "baseRegions": { "enam": 100 }, "groups": groups(1),
    });
    let put = database.placements().put(&change(database), &config.to_string()).await;
    put.map(drop).map_err(|error| error.for_people())
}

/// Begins another generation, if the catalog lives and there are not too many.
async fn migrate(database: &Database) -> bool {
    let next = u32::from(database.placements().of("acme").unwrap().placement.current().generation().get()) + 1;
    let migration = serde_json::from_value(serde_json::json!({ "groups": groups(next) })).unwrap();
    database.placements().migrate(&change(database), migration).await.is_ok()
}

impl Driver {
    async fn open(&self) -> Result<(Arc<Database>, Stores), SqlError> {
        let database = Database::open(config(&self.disk), self.sim.node(NODE)).await?;
        let stores = Stores::open(database.clone(), IdSource::Env).await?;
        for config in preset().into_iter().filter(|kind| ["authcode", "refresh", "dpop"].contains(&kind.name.as_str()))
        {
            match stores.create(config).await {
                Err(error) if error.sqlstate == "42710" => {}
                made => drop(made?),
            }
        }
        place(&database).await?;
        Ok((database, stores))
    }

    /// Puts this life's faults on the disk.
    fn plant_faults(&self) {
        let mut rng = self.rng.borrow_mut();
        self.disk.heal();
        let counts = self.disk.counts();
        if rng.chance(3, 4) {
            self.disk.crash_at(counts.operations + 1 + rng.below(3_000));
        }
        if rng.chance(1, 4) {
            self.disk.fail_sync_at(counts.syncs + 1 + rng.below(100), Times::Once);
        }
    }

    fn start(&self, stores: &Stores) {
        self.told.lock().unwrap().ended = 0;
        for number in 0..CLIENTS {
            let rng = self.sim.rng(&format!("client {number} {}", self.sim.elapsed().as_micros()));
            let client = Client { number, stores: stores.clone(), told: self.told.clone(), rng };
            self.sim.node(NODE).spawn_named("client", Box::pin(client.run()));
        }
    }

    /// Until all clients have ended, or the process has died. Now and then the generation changes.
    async fn watch(&self, database: &Database) -> bool {
        loop {
            self.sim.env().sleep(LOOK).await;
            if self.disk.is_dead() {
                return false;
            }
            if self.told.lock().unwrap().ended == CLIENTS {
                return true;
            }
            let now = self.rng.borrow_mut().chance(1, 10);
            if now && migrate(database).await {
                self.generations.set(self.generations.get() + 1);
            }
        }
    }

    async fn life(&self) -> Result<(Arc<Database>, bool), SqlError> {
        // A disk that takes its time: otherwise all clients are done before anything changes.
        self.sim.set_blocking_delay(NODE, DISK);
        let (database, stores) = self.open().await?;
        self.start(&stores);
        let whole = self.watch(&database).await;
        Ok((database, whole))
    }

    fn live(&self) -> Result<(), String> {
        let lives = self.rng.borrow_mut().below(LIVES + 1);
        for _ in 0..lives {
            self.plant_faults();
            let crash = *self.rng.borrow_mut().pick(&Crash::ALL);
            let ended = self.sim.run_within(LIFE_MAX, self.life()).map_err(|stuck| format!("I-66: {stuck}"))?;
            self.disk.crash();
            self.sim.kill(NODE);
            drop(ended);
            drop(self.sim.node(NODE));
            self.disk.restart(crash);
        }
        self.disk.heal();
        self.told.lock().unwrap().is_fault_free = true;
        let ended = self.sim.run_within(LIFE_MAX, self.life()).map_err(|stuck| format!("I-66: {stuck}"))?;
        self.sim.kill(NODE);
        if let Some(error) = &self.told.lock().unwrap().broken {
            return Err(format!("without faults, a client is told: {error}"));
        }
        match ended {
            Ok((_, true)) => Ok(()),
            Ok((_, false)) => Err("without faults, the process has died".into()),
            Err(error) => Err(format!("without faults, the database says: {error}")),
        }
    }
}

fn run(disk: &Arc<Disk>, seed: u64) -> Result<Told, String> {
    disk.reset(seed);
    let sim = Sim::new(seed);
    let rng = sim.rng("driver");
    drop(sim.node(NODE));
    let (rng, generations) = (RefCell::new(rng), Cell::new(0));
    let driver = Driver { sim, disk: disk.clone(), told: Shared::default(), rng, generations };
    driver.live()?;
    let mut told = std::mem::take(&mut *driver.told.lock().unwrap());
    told.generations = driver.generations.get();
    let twice = told.codes.iter().chain(&told.proofs).find(|(_, times)| **times > 1);
    match twice {
        Some((what, times)) => Err(format!("{what} was granted {times} times")),
        None => Ok(told),
    }
}

/// I-1, I-66: no code and no proof is granted twice over crashes, failed syncs and changes of generation.
#[test]
fn nothing_is_granted_twice_under_faults() {
    let disk = Arc::new(Disk::new(0).unwrap());
    let seeds = match number("ISLES_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ISLES_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let mut total = Told::default();
    for seed in seeds.clone() {
        let told = run(&disk, seed)
            .unwrap_or_else(|why| panic!("FAILED seed={seed:#x}\n{why}\nreplay: ISLES_SIM_SEED={seed}"));
        total.ended += told.codes.values().chain(told.proofs.values()).sum::<u64>();
        total.refused += told.refused;
        total.unknown += told.unknown;
        total.generations += told.generations;
    }
    let Told { ended, refused, unknown, generations, .. } = &total;
    println!("{ended} granted, {refused} refused, {unknown} unknown, {generations} generations begun");
    if seeds.end - seeds.start >= SEEDS {
        assert!(
            total.ended > SEEDS * 10 && total.refused > SEEDS && total.unknown > 0 && total.generations > SEEDS,
            "hardly anything was seen"
        );
    }
}
