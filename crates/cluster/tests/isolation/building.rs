//! The building of a global index, and the bringing of changes to it, cut short at every point in turn.
//!
//! A clean run, with clients beside it, counts its operations of the disk. Then it is repeated with the process dying at
//! one of them, in each way. A new process opens what is left, and nobody tells it anything: the index becomes ready, its
//! entries are what the rows say, and until then it has led nobody astray.
//!
//! The same run meets a disk that is full from some operation on: the table is served, an index that finds no room fails and
//! says why, and it is built when there is room and somebody asks for it.
//!
//! A run that nobody asked more of samples the points; `cargo xtask sim --sweep` takes all of them.

use crate::client::{ask, config, session};
use crate::indexed::entries;
use crate::keyed::{CLIENTS, Checker, Client, INDEXES, Kind, Shared, create_index};
use crate::seeds::new_disk;
use isles_cluster::database::Database;
use isles_cluster::indexes::{IndexInfo, State};
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sim::disk::{Crash, Disk, Trouble};
use isles_sim::exec::Sim;
use isles_sim::rng::number_from_env as number;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One order of events; the sweep is over points.
const SEED: u64 = 23;
const NODE: &str = "isles";
const SHARDS: usize = 2;
/// Transactions of a client.
const TXNS: u64 = 8;
const CHECKS: u64 = 3;
const THINKS: Duration = Duration::from_millis(6);
/// In virtual time: longer than any wait of the database.
const LIFE_MAX: Duration = Duration::from_secs(2_000);
const LOOK: Duration = Duration::from_micros(500);
/// In virtual time: within it an index is ready (I-64).
const READY: Duration = Duration::from_secs(60);
/// Points of each kind in a run that nobody asked more of.
const POINTS: usize = 60;
const FULL_POINTS: usize = 40;

/// What is cut short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// The building of all indexes over rows that are there, while they change.
    Build,
    /// The bringing of changes to indexes that are ready.
    Apply,
}

/// The disk before the cut, and what clients know of it.
type Image = Vec<(String, Vec<u8>)>;

struct Life {
    sim: Sim,
    disk: Arc<Disk>,
    told: Shared,
}

fn text(error: SqlError) -> String {
    error.to_string()
}

impl Life {
    fn new(disk: &Arc<Disk>, image: &Image) -> Life {
        disk.reset(SEED);
        image.iter().for_each(|(name, bytes)| disk.replace_file(name, bytes.clone()));
        let sim = Sim::new(SEED);
        drop(sim.node(NODE));
        Life { sim, disk: disk.clone(), told: Shared::default() }
    }

    fn run<T>(&self, life: impl Future<Output = T>) -> Result<T, String> {
        self.sim.run_within(LIFE_MAX, life).map_err(|stuck| format!("I-66: {stuck}"))
    }

    async fn open(&self) -> Result<Arc<Database>, SqlError> {
        Database::open(config(&self.disk, "building", SHARDS), self.sim.node(NODE)).await
    }

    /// Makes the table, its rows, and what must be there before the cut.
    async fn prepare(&self, what: What) -> Result<(), SqlError> {
        let database = self.open().await?;
        let mut client = session(&database)?;
        ask(&mut client, &Kind::Hash.create_table()).await?;
        let rows: Vec<String> = (0..24).map(|id| format!("({id}, 'a{:02}', {}, NULL, 0)", id % 7, id % 4)).collect();
        ask(&mut client, &format!("INSERT INTO t VALUES {}", rows.join(", "))).await?;
        for (name, _) in INDEXES.iter().filter(|_| what == What::Apply) {
            ask(&mut client, &create_index(name)).await?;
            ask(&mut client, &format!("WAIT FOR INDEX {name}")).await?;
        }
        drop(client);
        database.close().await
    }

    fn checker(&self, database: &Arc<Database>) -> Result<Checker, SqlError> {
        let (session, told, env) = (session(database)?, self.told.clone(), self.sim.node(NODE));
        let (database, rng) = (database.clone(), self.sim.rng("checker"));
        Ok(Checker { database, kind: Kind::Hash, session, told, rng, env, thinks: THINKS })
    }

    fn start(&self, database: &Arc<Database>) -> Result<(), SqlError> {
        let node = || self.sim.node(NODE);
        for number in 0..CLIENTS {
            let (session, told) = (session(database)?, self.told.clone());
            let rng = self.sim.rng(&format!("client {number}"));
            let env = node() as Arc<dyn Env>;
            let client = Client { number, kind: Kind::Hash, session, told, rng, env, thinks: THINKS };
            node().spawn_named("client", Box::pin(client.run(TXNS)));
        }
        node().spawn_named("checker", Box::pin(self.checker(database)?.run(CHECKS)));
        Ok(())
    }

    /// Until the clients have ended and every index is ready and has all, or the process has died.
    async fn play(&self, kept: &Mutex<Option<Arc<Database>>>) -> Result<(), String> {
        let Ok(database) = self.open().await else { return Ok(()) };
        *kept.lock().unwrap() = Some(database.clone());
        if self.start(&database).is_err() {
            return Ok(());
        }
        let Ok(mut client) = session(&database) else { return Ok(()) };
        for (name, _) in INDEXES {
            if ask(&mut client, &create_index(name)).await.is_err() {
                return Ok(());
            }
        }
        let until = self.sim.elapsed() + READY;
        while !self.disk.is_dead() {
            self.sim.env().sleep(LOOK).await;
            if self.told.lock().unwrap().ended == CLIENTS + 1 && is_ready(&database).await {
                // The last changes, too.
                let _ = database.settle_indexes().await;
                break;
            }
            if self.sim.elapsed() > until && !self.disk.is_dead() {
                return Err(format!("I-64: {:?}", database.global_indexes().await));
            }
        }
        Ok(())
    }

    /// Nobody is there: the indexes become ready by themselves, and are what the rows say.
    async fn settle(&self, states: &Mutex<BTreeMap<String, u64>>) -> Result<(), String> {
        let database = self.open().await.map_err(|error| format!("it does not open: {error}"))?;
        let infos = database.global_indexes().await.map_err(text)?;
        let state = infos.iter().map(|info| info.state.name()).collect::<Vec<_>>().join(" ");
        *states.lock().unwrap().entry(state).or_default() += 1;
        self.become_right(&database).await?;
        database.close().await.map_err(text)
    }

    /// The indexes become ready, and are what the rows say.
    async fn become_right(&self, database: &Arc<Database>) -> Result<(), String> {
        let mut checker = self.checker(database).map_err(text)?;
        checker.check_all().await.map_err(text)?;
        let until = self.sim.elapsed() + READY;
        while !is_ready(database).await {
            self.sim.env().sleep(LOOK * 20).await;
            if self.sim.elapsed() > until {
                return Err(format!("I-27: it does not become ready: {:?}", database.global_indexes().await));
            }
        }
        let mut client = session(database).map_err(text)?;
        for info in database.global_indexes().await.map_err(text)? {
            let shown = ask(&mut client, &format!("VERIFY INDEX {}", info.name)).await.map_err(text)?;
            if shown[0][1..] != [Value::Int(0), Value::Int(0), Value::Int(0)] {
                return Err(format!("I-23: entries of {} are not what the rows say: {shown:?}", info.name));
            }
        }
        checker.check_all().await.map(drop).map_err(text)
    }

    /// The shards' disks are full from about an operation on.
    fn fill(&self, at: u64) {
        let (disk, env) = (self.disk.clone(), self.sim.node(NODE));
        self.sim.node(NODE).spawn_named(
            "filler",
            Box::pin(async move {
                while disk.counts().operations < at {
                    env.sleep(LOOK / 10).await;
                }
                disk.trouble("/s", Trouble::Full);
            }),
        );
    }

    /// What the indexes come to say of a disk that is full.
    async fn play_full(&self, at: u64, kept: &Mutex<Option<Arc<Database>>>) -> Result<Vec<IndexInfo>, SqlError> {
        self.fill(at);
        let database = self.open().await?;
        *kept.lock().unwrap() = Some(database.clone());
        self.start(&database)?;
        let mut client = session(&database)?;
        for (name, _) in INDEXES {
            // It is made later, if there is no room now.
            ask(&mut client, &create_index(name)).await.map(drop).or_else(is_full)?;
        }
        let until = self.sim.elapsed() + READY / 6;
        loop {
            self.sim.env().sleep(LOOK * 20).await;
            let infos = database.global_indexes().await?;
            let has_ended = self.told.lock().unwrap().ended == CLIENTS + 1;
            if has_ended && infos.iter().all(|info| info.is_used || info.error.is_some()) {
                return Ok(infos);
            }
            // A commit over several shards that was decided waits for room, and its clients with it. What it adds is noted
            // each time, so a ready index may not be asked until the log goes on.
            let is_built = |info: &IndexInfo| info.state == State::Ready || info.error.is_some();
            if self.sim.elapsed() > until {
                assert!(infos.iter().all(is_built), "neither built nor in trouble: {infos:?}");
                return Ok(infos);
            }
        }
    }

    /// There is room again: what has failed is asked for, and everything else goes on by itself.
    async fn recover(&self) -> Result<(), String> {
        let database = self.open().await.map_err(|error| format!("it does not open: {error}"))?;
        let mut client = session(&database).map_err(text)?;
        for (name, _) in INDEXES {
            ask(&mut client, &create_index(name)).await.map_err(text)?;
        }
        for info in database.global_indexes().await.map_err(text)? {
            if info.state == State::Failed {
                ask(&mut client, &format!("REINDEX INDEX {}", info.name)).await.map_err(text)?;
            }
        }
        drop(client);
        self.become_right(&database).await?;
        database.close().await.map_err(text)
    }

    fn judge(&self) -> Result<(), String> {
        self.told.lock().unwrap().wrong.take().map_or(Ok(()), Err)
    }
}

async fn is_ready(database: &Arc<Database>) -> bool {
    database.global_indexes().await.is_ok_and(|infos| infos.iter().all(|info| info.is_used))
}

fn prepare(disk: &Arc<Disk>, what: What) -> Image {
    let life = Life::new(disk, &Image::new());
    life.run(life.prepare(what)).expect("it ends").expect("without faults");
    life.sim.kill(NODE);
    disk.files()
}

/// Runs it with one cut, and judges what is left. The operations that it took.
fn run(
    disk: &Arc<Disk>,
    image: &Image,
    cut: Option<(u64, Crash)>,
    states: &Mutex<BTreeMap<String, u64>>,
) -> Result<u64, String> {
    let life = Life::new(disk, image);
    if let Some((at, _)) = cut {
        disk.crash_at(at);
    }
    let kept = Mutex::new(None);
    life.run(life.play(&kept))??;
    life.judge()?;
    let operations = disk.counts().operations;
    disk.crash();
    life.sim.kill(NODE);
    drop(kept);
    drop(life.sim.node(NODE));
    disk.heal();
    disk.restart(cut.map_or(Crash::Killed, |(_, crash)| crash));
    life.run(life.settle(states))??;
    life.sim.kill(NODE);
    life.judge()?;
    Ok(operations)
}

/// Cuts it short at points that are spread evenly, or at all of them. What the indexes were found to be then.
fn sweep(what: What) -> BTreeMap<String, u64> {
    let disk = new_disk();
    let image = prepare(&disk, what);
    let states = Mutex::default();
    let operations = run(&disk, &image, None, &states).unwrap_or_else(|why| panic!("without faults: {why}"));
    let all: Vec<(u64, Crash)> = (1..=operations).flat_map(|at| Crash::ALL.map(|crash| (at, crash))).collect();
    let step = match number("ISLES_SWEEP") {
        Some(_) => 1,
        // An odd step meets each way to die.
        None => (all.len() / POINTS).max(1) | 1,
    };
    let points: Vec<_> = all.into_iter().step_by(step).collect();
    for cut in &points {
        run(&disk, &image, Some(*cut), &states).unwrap_or_else(|why| panic!("FAILED {what:?} {cut:?}\n{why}"));
    }
    let states = states.into_inner().unwrap();
    println!("{what:?}: {} points of {operations} operations, found {states:?}", points.len());
    states
}

/// I-23, I-24, I-27: (`crash_during_build`) a build begins again where it must, and is not read before its end.
#[test]
fn a_build_survives_a_crash_at_every_operation() {
    let states = sweep(What::Build);
    assert!(states.keys().any(|state| state.contains("building")), "no build was cut short: {states:?}");
    assert!(states.contains_key("ready ready ready"), "{states:?}");
}

/// I-23: (`applier_crash_replay`) what was written and not remembered is brought again, and counts once.
#[test]
fn changes_count_once_after_a_crash_at_every_operation() {
    let states = sweep(What::Apply);
    assert_eq!(states.keys().collect::<Vec<_>>(), ["ready ready ready"]);
}

/// F4, I-24, I-27: (disk full) clients hear of it, an index says so, and nothing is lost.
#[test]
fn a_build_survives_a_disk_that_is_full_from_any_operation_on() {
    let disk = new_disk();
    let image = prepare(&disk, What::Build);
    let operations = run(&disk, &image, None, &Mutex::default()).unwrap_or_else(|why| panic!("without faults: {why}"));
    let step = match number("ISLES_SWEEP") {
        Some(_) => 1,
        None => (operations as usize / FULL_POINTS).max(1),
    };
    let mut found: BTreeMap<&str, u64> = BTreeMap::new();
    for at in (1..=operations).step_by(step) {
        let life = Life::new(&disk, &image);
        let kept = Mutex::new(None);
        let said = life.run(life.play_full(at, &kept)).unwrap_or_else(|why| panic!("FAILED full at {at}\n{why}"));
        life.judge().unwrap_or_else(|why| panic!("FAILED full at {at}\n{why}"));
        for what in said.map_or(vec!["stopped"], |infos| infos.iter().map(said_of).collect()) {
            *found.entry(what).or_default() += 1;
        }
        disk.crash();
        life.sim.kill(NODE);
        drop(kept);
        drop(life.sim.node(NODE));
        disk.heal();
        disk.restart(Crash::Killed);
        let lived = life.run(life.recover()).and_then(|lived| lived).and_then(|()| life.judge());
        lived.unwrap_or_else(|why| panic!("FAILED full at {at}\n{why}"));
        life.sim.kill(NODE);
    }
    println!("full at points of {operations} operations, found {found:?}");
    for what in ["built", "failed"] {
        assert!(found.get(what).is_some_and(|met| *met >= 10), "{what}: {found:?}");
    }
}

fn said_of(info: &IndexInfo) -> &'static str {
    let told = info.error.as_deref().unwrap_or_default().to_lowercase();
    match (info.is_used, info.state) {
        (true, _) | (_, State::Ready) => "built",
        (false, State::Failed) => {
            assert!(told.contains("no room"), "{info:?}");
            "failed"
        }
        (false, _) => {
            assert!(told.contains("full"), "nobody learns of the disk: {info:?}");
            "in trouble"
        }
    }
}

/// F4: one shard has no room for its entries: the build fails and says why, gives back what it has taken, and the table is
/// served; asked for again when there is room, it is built.
#[test]
fn a_build_without_room_fails_until_it_is_asked_for_again() {
    let disk = new_disk();
    let life = Life::new(&disk, &Image::new());
    let told = life.run(async {
        let database = life.open().await?;
        let mut client = session(&database)?;
        ask(&mut client, "CREATE TABLE t (id int PRIMARY KEY, a text) WITH (\"group\" = 't', buckets = 16)").await?;
        for page in 0..20 {
            let rows: Vec<String> =
                (0..50).map(|n| page * 50 + n).map(|id| format!("({id}, '{}')", row_text(id))).collect();
            ask(&mut client, &format!("INSERT INTO t VALUES {}", rows.join(", "))).await?;
        }
        ask(&mut client, "CREATE INDEX t_a ON t (a) WITH (global)").await?;
        disk.trouble("/s1/", Trouble::Full);
        let error = ask(&mut client, "WAIT FOR INDEX t_a").await.expect_err("there is no room");
        assert_eq!(error.sqlstate, "55000");
        assert!(error.message.contains("no room") && error.message.contains("full"), "{error}");
        let info = database.global_indexes().await?.remove(0);
        assert_eq!((info.state, info.is_used), (State::Failed, false));
        let by_a = format!("SELECT id FROM t WHERE a = '{}'", row_text(77));
        assert_eq!(ask(&mut client, &by_a).await?, [[Value::Int(77)]]);
        ask(&mut client, "DELETE FROM t WHERE id = 78").await.map(drop).or_else(is_full)?;
        // It stays failed, and does not try by itself.
        disk.end_trouble();
        life.sim.env().sleep(READY).await;
        let info = database.global_indexes().await?.remove(0);
        assert_eq!(info.state, State::Failed);
        assert_eq!(entries(&database).await, Ok(Default::default()), "what it had taken is given back");
        for name in database.shard_names() {
            let shard = database.shard(&name).await.unwrap();
            let consumers = shard.consumers().await.unwrap();
            let end = shard.settled().await.unwrap();
            assert!(consumers.iter().all(|one| one.position == end), "no log is kept: {consumers:?}");
        }
        ask(&mut client, "REINDEX INDEX t_a").await?;
        ask(&mut client, "WAIT FOR INDEX t_a").await?;
        assert_eq!(ask(&mut client, &by_a).await?, [[Value::Int(77)]]);
        let shown = ask(&mut client, "VERIFY INDEX t_a").await?;
        assert_eq!(shown[0][1..], [Value::Int(0), Value::Int(0), Value::Int(0)]);
        Ok::<_, SqlError>(())
    });
    life.sim.kill(NODE);
    told.expect("it ends").expect("only what is expected fails");
}

/// A value that makes a large entry.
fn row_text(id: u32) -> String {
    format!("{id:05}{}", "x".repeat(300))
}

fn is_full(error: SqlError) -> Result<(), SqlError> {
    if error.sqlstate == "53100" { Ok(()) } else { Err(error) }
}
