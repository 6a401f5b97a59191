//! One small move, cut short at every point in turn.
//!
//! A clean run of the move, with two clients beside it, counts its operations of the disk, its syncs and its moments.
//! Then the run is repeated for each of them:
//!
//! ```text
//! operation n, in four ways   the process dies, router, drivers and shards together, and a new one opens what is left
//! sync n                      it fails once: whoever had asked for it stops, and must be opened anew, with no restart
//! moment n                    the drivers die, and others take over, with no restart
//! ```
//!
//! Each time the plan comes to its end by itself: nobody gives it a command. Then the rows are exactly what clients were
//! told, each on the shard that owns its bucket.
//!
//! A run that nobody asked more of samples the points; `cargo xtask sim --sweep` takes all of them.

use crate::client::{Client, KEYS, Looks, Record, SCHEMA, Shared, ask, config, lists, session};
use crate::moving::{GROUP, check_history, check_stored};
use isles_cluster::database::Database;
use isles_cluster::moves::Order;
use isles_cluster::moves::moves::{Options, Phase, Plan, Span, Units};
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_kernel::names::{BucketId, GroupName, ShardId};
use isles_sim::check::{Key, Level, Outcome, check};
use isles_sim::disk::{Crash, Disk, Times};
use isles_sim::exec::Sim;
use isles_sim::rng::number_from_env as number;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One order of events; the sweep is over points, not over orders, which `moving` draws.
const SEED: u64 = 17;
const NODE: &str = "isles";
const SHARDS: usize = 2;
const CLIENTS: u64 = 2;
const TXNS: u64 = 6;
/// How long a client thinks at most: so long that they are there as long as the move.
const THINKS: Duration = Duration::from_millis(6);
/// In virtual time: longer than any wait of the database.
const LIFE_MAX: Duration = Duration::from_secs(2_000);
/// In virtual time: within it the plan ends.
const PLAN_ENDS: Duration = Duration::from_secs(60);
/// Between two looks; a driver may die at each.
const LOOK: Duration = Duration::from_micros(200);
/// Points of each kind in a run that nobody asked more of.
const POINTS: usize = 1_000;

/// Where a run is cut short.
#[derive(Debug, Clone, Copy)]
enum Cut {
    Nowhere,
    Operation(u64, Crash),
    Sync(u64),
    Moment(u64),
}

/// The disk before the move, and what clients know of it.
struct Image {
    files: Vec<(String, Vec<u8>)>,
    record: Record,
}

/// How much there is to sweep over.
#[derive(Debug, Default, Clone, Copy)]
struct Extent {
    operations: u64,
    syncs: u64,
    moments: u64,
}

struct Life {
    sim: Sim,
    disk: Arc<Disk>,
    record: Shared,
}

impl Life {
    fn new(disk: &Arc<Disk>, image: Option<&Image>) -> Life {
        disk.reset(SEED);
        let record = Shared::default();
        if let Some(image) = image {
            image.files.iter().for_each(|(name, bytes)| disk.replace_file(name, bytes.clone()));
            *record.lock().unwrap() = image.record.clone();
        }
        let sim = Sim::new(SEED);
        drop(sim.node(NODE));
        Life { sim, disk: disk.clone(), record }
    }

    fn run<T>(&self, life: impl Future<Output = T>) -> Result<T, String> {
        self.sim.run_within(LIFE_MAX, life).map_err(|stuck| format!("I-66: {stuck}"))
    }

    async fn open(&self) -> Result<Arc<Database>, SqlError> {
        Database::open(config(&self.disk, "sweep", SHARDS), self.sim.node(NODE)).await
    }

    /// Makes the table and its rows.
    async fn prepare(&self) -> Result<(), SqlError> {
        let database = self.open().await?;
        let mut client = session(&database)?;
        ask(&mut client, &format!("{SCHEMA} WITH (\"group\" = '{GROUP}', buckets = 8)")).await?;
        for key in 0..KEYS {
            let (at, element) = self.record.lock().unwrap().begin_append(9, Key(key));
            ask(&mut client, &format!("INSERT INTO lists VALUES ({key}, '{},')", element.0)).await?;
            self.record.lock().unwrap().end(at, Outcome::Committed);
        }
        drop(client);
        database.close().await
    }

    fn start_clients(&self, database: &Arc<Database>) -> Result<(), SqlError> {
        for number in 0..CLIENTS {
            let (session, record) = (session(database)?, self.record.clone());
            let thinks = Some((self.sim.node(NODE) as Arc<dyn Env>, THINKS));
            let rng = self.sim.rng(&format!("client {number}"));
            let client = Client { number, session, record, rng, looks: Looks::Any, is_brief: true, thinks };
            self.sim.node(NODE).spawn_named("client", Box::pin(client.run(TXNS)));
        }
        Ok(())
    }

    /// The move, with clients beside it, to its end or to where it is cut. The number of looks it took.
    async fn play(&self, cut: Cut, kept: &Mutex<Option<Arc<Database>>>) -> Result<u64, String> {
        let Ok(database) = self.open().await else { return Ok(0) };
        *kept.lock().unwrap() = Some(database.clone());
        if self.start_clients(&database).is_err() {
            return Ok(0);
        }
        // One whose record could not be written is not made, or nobody knows; the next life does.
        let Ok(plan) = database.plan_move(order()).await else { return Ok(0) };
        let until = self.sim.elapsed() + PLAN_ENDS;
        for look in 1.. {
            self.sim.env().sleep(LOOK).await;
            if self.disk.is_dead() {
                return Ok(look);
            }
            if matches!(cut, Cut::Moment(at) if at == look) {
                database.replace_drivers().await.map_err(|error| error.to_string())?;
            }
            let now = match database.move_plan(plan.id.as_str()).await {
                Ok(now) => now,
                // The catalog has stopped, and says that it wants a restart.
                Err(error) if error.sqlstate == "57P03" => return Ok(look),
                Err(error) => return Err(error.to_string()),
            };
            if !now.is_active() && self.record.lock().unwrap().ended == CLIENTS {
                return Ok(look);
            }
            if self.sim.elapsed() > until {
                return Err(format!("I-13: the plan does not end: {now:?}"));
            }
        }
        unreachable!("a look has no end")
    }

    /// Nobody is there: the plan ends by itself, and what is stored is what is owned.
    async fn settle(&self, stages: &Mutex<BTreeMap<String, u64>>) -> Result<(), String> {
        let database = self.open().await.map_err(|error| format!("it does not open: {error}"))?;
        let until = self.sim.elapsed() + PLAN_ENDS;
        let mut plans = database.moves().await.map_err(|error| error.to_string())?;
        let stage = plans.first().map_or("none".into(), |plan| format!("{:?}", plan.stage));
        *stages.lock().unwrap().entry(stage).or_default() += 1;
        while plans.iter().any(Plan::is_active) {
            if self.sim.elapsed() > until {
                return Err(format!("I-13: the plan does not end: {plans:?}"));
            }
            self.sim.env().sleep(LOOK * 50).await;
            plans = database.moves().await.map_err(|error| error.to_string())?;
        }
        if let Some(plan) = plans.iter().find(|plan| plan.phase != Phase::Completed) {
            return Err(format!("I-13: a plan that goes by itself did not come to its end: {plan:?}"));
        }
        check_history(&database, &plans).await?;
        let mut client = session(&database).map_err(|error| error.to_string())?;
        let rows = ask(&mut client, "SELECT k, v FROM lists").await.map_err(|error| error.to_string())?;
        self.record.lock().unwrap().history.final_state = Some(lists(&rows));
        drop(client);
        check_stored(&database, SHARDS).await?;
        database.close().await.map_err(|error| error.to_string())
    }
}

fn order() -> Order {
    let span = Span { first: BucketId(0), last: BucketId(3) };
    Order {
        source: None,
        target: ShardId::new("s1").unwrap(),
        units: Units::buckets(GroupName::new(GROUP).unwrap(), [span]),
        description: None,
        options: Options { auto: true, complete: true, ..Options::default() },
    }
}

fn prepare(disk: &Arc<Disk>) -> Image {
    let life = Life::new(disk, None);
    life.run(life.prepare()).expect("it ends").expect("without faults");
    life.sim.kill(NODE);
    let record = std::mem::take(&mut *life.record.lock().unwrap());
    Image { files: disk.files(), record }
}

/// Runs the move with one cut, and judges what is left.
fn run(disk: &Arc<Disk>, image: &Image, cut: Cut, stages: &Mutex<BTreeMap<String, u64>>) -> Result<Extent, String> {
    let life = Life::new(disk, Some(image));
    match cut {
        Cut::Operation(at, _) => disk.crash_at(at),
        Cut::Sync(at) => disk.fail_sync_at(at, Times::Once),
        Cut::Nowhere | Cut::Moment(_) => {}
    }
    let kept = Mutex::new(None);
    let moments = life.run(life.play(cut, &kept))??;
    let counts = disk.counts();
    disk.crash();
    life.sim.kill(NODE);
    drop(kept);
    drop(life.sim.node(NODE));
    disk.heal();
    disk.restart(if let Cut::Operation(_, crash) = cut { crash } else { Crash::Killed });
    life.run(life.settle(stages))??;
    life.sim.kill(NODE);
    let record = std::mem::take(&mut *life.record.lock().unwrap());
    check(&record.history, Level::StrictSerializable).map_err(|failure| format!("I-19: {failure}"))?;
    Ok(Extent { operations: counts.operations, syncs: counts.syncs, moments })
}

/// All of them, or as many as a run has time for, evenly.
fn sampled(all: Vec<Cut>, points: usize) -> Vec<Cut> {
    let step = match number("ISLES_SWEEP") {
        Some(_) => 1,
        None => all.len().div_ceil(points).max(1),
    };
    all.into_iter().skip(SEED as usize % step).step_by(step).collect()
}

fn sweep(disk: &Arc<Disk>, image: &Image, cuts: &[Cut]) -> BTreeMap<String, u64> {
    let stages = Mutex::default();
    for cut in cuts {
        if let Err(why) = run(disk, image, *cut, &stages) {
            panic!("FAILED {cut:?}\n{why}");
        }
    }
    let stages = stages.into_inner().unwrap();
    println!("{} points, the plan found at {stages:?}", cuts.len());
    stages
}

fn new_disk() -> Arc<Disk> {
    Arc::new(Disk::new(SEED).expect("a disk"))
}

fn clean_run(disk: &Arc<Disk>) -> (Image, Extent) {
    let image = prepare(disk);
    let extent = run(disk, &image, Cut::Nowhere, &Mutex::default()).expect("without faults");
    println!("{extent:?}");
    (image, extent)
}

/// I-1, I-6, I-10, I-11, I-13, I-20: (spqr #1991, pgdog #894, `crash_at_every_step`) the process dies at each operation.
#[test]
fn a_move_survives_a_crash_at_every_operation() {
    let disk = new_disk();
    let (image, extent) = clean_run(&disk);
    let ways = |at| Crash::ALL.map(|crash| Cut::Operation(at, crash));
    let all: Vec<Cut> = (1..=extent.operations).flat_map(ways).collect();
    let stages = sweep(&disk, &image, &sampled(all, POINTS));
    for stage in ["none", "Preparing", "Copying", "Settling", "Cleaning", "Done"] {
        assert!(stages.contains_key(stage), "no crash at {stage}: {stages:?}");
    }
}

/// I-5, I-13: a shard that has lost a sync stops itself; the move opens it again, also where no client comes by, and goes
/// on. The catalog, too, stops itself, and wants a restart.
#[test]
fn a_move_survives_every_failed_sync() {
    let disk = new_disk();
    let (image, extent) = clean_run(&disk);
    let all: Vec<Cut> = (1..=extent.syncs).map(Cut::Sync).collect();
    let stages = sweep(&disk, &image, &sampled(all, POINTS));
    assert!(stages.len() > 1 && stages["Done"] > 10, "some stop the catalog, and some a shard: {stages:?}");
}

/// I-13: a driver that dies is replaced, and whatever it had asked for last may still come.
#[test]
fn a_move_survives_its_drivers() {
    let disk = new_disk();
    let (image, extent) = clean_run(&disk);
    let all: Vec<Cut> = (1..extent.moments).map(Cut::Moment).collect();
    assert!(all.len() > 20, "{extent:?}");
    sweep(&disk, &image, &sampled(all, POINTS));
}
