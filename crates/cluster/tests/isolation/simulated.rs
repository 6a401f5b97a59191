//! Histories over SQLite shards on a simulated disk, in virtual time.

use crate::client::{self, Client, Looks, Record, SCHEMA, Shared, ask, lists, session};
use isles_cluster::commit::Planted;
use isles_cluster::database::{Config, Database};
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_sim::check::{Checked, Level, check};
use isles_sim::disk::{Crash, Disk, Times};
use isles_sim::exec::Sim;
use isles_sim::rng::Rng;
use isles_sim::rng::number_from_env as number;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const NODE: &str = "isles";
const SHARDS: usize = 3;
const CLIENTS: u64 = 5;
/// Transactions of a client in one life.
const TXNS: u64 = 6;
/// Lives under faults; one more without follows.
const LIVES: u64 = 3;
/// Histories of a run that nobody asked more of.
const SEEDS: u64 = 200;
/// Histories within which a planted bug must be found (I-69).
const SEEDS_FOR_BUGS: u64 = 2_000;
/// In virtual time: longer than any wait of the database.
const LIFE_MAX: Duration = Duration::from_secs(1_000);
const LOOK: Duration = Duration::from_millis(2);

struct Driver {
    sim: Sim,
    disk: Arc<Disk>,
    record: Shared,
    rng: Rng,
    planted: Option<Planted>,
    saw: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Default)]
struct Report {
    checked: Checked,
    saw: BTreeMap<&'static str, u64>,
}

fn run(disk: &Arc<Disk>, seed: u64, planted: Option<Planted>) -> Result<Report, String> {
    disk.reset(seed);
    let sim = Sim::new(seed);
    let rng = sim.rng("driver");
    // From here it can be told how slow its disk is.
    drop(sim.node(NODE));
    let mut driver = Driver { sim, disk: disk.clone(), record: Shared::default(), rng, planted, saw: BTreeMap::new() };
    driver.live()?;
    let record = std::mem::take(&mut *driver.record.lock().unwrap());
    let Record { history, errors, .. } = record;
    let checked = check(&history, Level::StrictSerializable).map_err(|failure| format!("I-19: {failure}"))?;
    errors.into_iter().for_each(|(code, count)| *driver.saw.entry(code).or_default() += count);
    Ok(Report { checked, saw: driver.saw })
}

impl Driver {
    fn config(&self) -> Config {
        Config { planted: self.planted, ..client::config(&self.disk, "isolation", SHARDS) }
    }

    fn saw(&mut self, what: &'static str) {
        *self.saw.entry(what).or_default() += 1;
    }

    fn live(&mut self) -> Result<(), String> {
        for _ in 0..self.rng.below(LIVES + 1) {
            self.faulty_life()?;
        }
        self.disk.heal();
        self.sim.set_blocking_delay(NODE, Duration::ZERO);
        self.last_life()
    }

    /// Puts this life's faults on the disk.
    fn plant_faults(&mut self) {
        self.disk.heal();
        let counts = self.disk.counts();
        if self.rng.chance(3, 4) {
            self.disk.crash_at(counts.operations + 1 + self.rng.below(1_500));
        }
        if self.rng.chance(1, 4) {
            self.saw("failing sync");
            self.disk.fail_sync_at(counts.syncs + 1 + self.rng.below(100), Times::Once);
        }
        let slow = self.rng.chance(1, 2);
        let delay = if slow { Duration::from_micros(self.rng.below(3_000)) } else { Duration::ZERO };
        self.sim.set_blocking_delay(NODE, delay);
    }

    async fn open(&self) -> Result<Arc<Database>, SqlError> {
        let database = Database::open(self.config(), self.sim.node(NODE)).await?;
        ask(&mut session(&database)?, SCHEMA).await?;
        Ok(database)
    }

    fn start(&self, database: &Arc<Database>) -> Result<(), SqlError> {
        self.record.lock().unwrap().ended = 0;
        for number in 0..CLIENTS {
            let rng = self.sim.rng(&format!("client {number} {}", self.sim.elapsed().as_micros()));
            let (session, record) = (session(database)?, self.record.clone());
            let client = Client { number, session, record, rng, looks: Looks::Any, is_brief: false, thinks: None };
            self.sim.node(NODE).spawn_named("client", Box::pin(client.run(TXNS)));
        }
        Ok(())
    }

    /// Until all clients have ended, or the process has died, or it is killed after so many looks.
    async fn watch(&self, killed_at: Option<u64>) -> bool {
        for look in 0.. {
            self.sim.env().sleep(LOOK).await;
            if self.disk.is_dead() || killed_at == Some(look) {
                return false;
            }
            if self.record.lock().unwrap().ended == CLIENTS {
                break;
            }
        }
        true
    }

    fn faulty_life(&mut self) -> Result<(), String> {
        self.plant_faults();
        let killed_at = self.rng.chance(1, 3).then(|| self.rng.below(200));
        let crash = *self.rng.pick(&Crash::ALL);
        let life = async {
            let Ok(database) = self.open().await else { return (None, false) };
            let started = self.start(&database).is_ok();
            (Some(database), started && self.watch(killed_at).await)
        };
        let (database, whole) = self.sim.run_within(LIFE_MAX, life).map_err(|stuck| format!("I-66: {stuck}"))?;
        self.saw(if whole { "life: whole" } else { "life: cut short" });
        // Whether it came to its end or not, the process dies here, and nothing is closed.
        self.disk.crash();
        self.sim.kill(NODE);
        drop(database);
        drop(self.sim.node(NODE));
        self.disk.restart(crash);
        Ok(())
    }

    fn last_life(&mut self) -> Result<(), String> {
        let life = async {
            let database = self.open().await?;
            self.start(&database)?;
            assert!(self.watch(None).await, "nothing ends it early");
            let rows = ask(&mut session(&database)?, "SELECT k, v FROM lists").await?;
            self.record.lock().unwrap().history.final_state = Some(lists(&rows));
            database.close().await
        };
        let ended = self.sim.run_within(LIFE_MAX, life).map_err(|stuck| format!("I-66: {stuck}"))?;
        self.sim.kill(NODE);
        ended.map_err(|error| format!("without faults, the database says: {error}"))
    }
}

fn new_disk() -> Arc<Disk> {
    Arc::new(Disk::new(0).expect("a disk"))
}

/// I-19, I-20, I-1, I-66: many sessions, transactions over several shards, crashes, failed syncs and slow disks.
#[test]
fn sessions_over_several_shards_are_strictly_serializable_under_faults() {
    let disk = new_disk();
    let seeds = match number("ISLES_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ISLES_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let mut total = Report::default();
    for seed in seeds.clone() {
        let report = run(&disk, seed, None)
            .unwrap_or_else(|why| panic!("FAILED seed={seed:#x}\n{why}\nreplay: cargo xtask sim {seed:#x}"));
        total.checked.txns += report.checked.txns;
        total.checked.reads += report.checked.reads;
        report.saw.into_iter().for_each(|(what, count)| *total.saw.entry(what).or_default() += count);
    }
    let histories = seeds.end - seeds.start;
    println!("{histories} histories, {:?}, {:?}", total.checked, total.saw);
    assert!(total.checked.txns as u64 >= histories * 15, "hardly anything committed: {total:?}");
    if histories >= SEEDS {
        for what in ["life: whole", "life: cut short", "failing sync", "40001"] {
            assert!(total.saw.get(what).is_some_and(|count| *count >= 10), "{what} was not seen: {total:?}");
        }
    }
}

/// I-69: each bug breaks a history, and the checker says so.
#[test]
fn planted_bugs_of_commits_are_found() {
    let disk = new_disk();
    for planted in
        [Planted::SkipLatch, Planted::AnswerBeforeDecision, Planted::CommitBeforeDecision, Planted::ForgetBeforeCommit]
    {
        let found = (0..SEEDS_FOR_BUGS).find_map(|seed| Some((seed, run(&disk, seed, Some(planted)).err()?)));
        let (seed, why) = found.unwrap_or_else(|| panic!("{planted:?} passed {SEEDS_FOR_BUGS} histories"));
        println!("{planted:?} found after {} histories: {}", seed + 1, why.lines().next().unwrap_or_default());
        assert!(why.contains("I-19"), "{planted:?} was found as something else: {why}");
    }
}

/// I-67: the same seed gives the same history.
#[test]
fn the_same_seed_gives_the_same_history() {
    let disk = new_disk();
    for seed in 5_000..5_010 {
        let again = || run(&disk, seed, None).map(|report| (report.checked, report.saw));
        assert_eq!(again(), again(), "seed {seed:#x}");
    }
    assert!(client::KEYS > SHARDS as u64, "a shard has several lists");
}
