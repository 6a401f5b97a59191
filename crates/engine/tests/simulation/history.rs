//! One history: lives of a process under faults, then one without, then the judgement.
//!
//! Workload, faults and properties are independent: the clients know nothing of faults, a swarm is drawn from the
//! seed, and every property is checked whatever was drawn.
//!
//!     draw a swarm → lives: open, serve, { crash | stop | done }* → heal → a last life → read all → judge

use crate::client::{Client, FenceSet, LISTS, Manners, Record, parse};
use crate::harness::{self, BUCKETS, FENCE_TIME, NODE, error_name, fence, hash_kind, stream};
use isles_engine::env::Env;
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::FenceMode;
use isles_engine::shard::{Request, Shard, Statement};
use isles_engine::sqlite::{Planted, SqliteOptions, SqliteShard};
use isles_kernel::names::{SchemaVersion, Seq, StreamId};
use isles_kernel::schema::{Column, SchemaChange, Table};
use isles_kernel::value::{DataType, Value};
use isles_sim::check::{self, Checked, Element, Key, Level};
use isles_sim::disk::{Crash, Disk, Times};
use isles_sim::exec::{Options, Sim, SimEnv};
use isles_sim::rng::Rng;
use isles_sim::trace::{Keep, Sometimes};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const CLIENTS: u64 = 5;
/// Transactions of a client in one life.
const TXNS: u64 = 12;
/// Lives under faults; one in which nothing went wrong is the last of them.
const LIVES_MAX: u64 = 4;
/// How often the driver looks whether a life has ended.
const LOOK: Duration = Duration::from_millis(1);
/// Looks after which a life may be ended from outside: most of a life.
const KILLED_LOOKS_MAX: u64 = 8;
/// The look at which somebody makes room on a full disk.
const HEALED_LOOK: u64 = 15;
/// A life takes some ten milliseconds; one that lasts longer waits for something.
const LIFE_MAX: Duration = Duration::from_secs(40);
/// I-64: when faults have stopped, everything is finished within this.
const LIVENESS: Duration = Duration::from_secs(60);

/// Which faults exist in a history. Many bugs need a fault to be absent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Swarm {
    crashes: bool,
    failing_syncs: bool,
    failing_writes: bool,
    full_disk: bool,
    slow_disk: bool,
    short_queue: bool,
    moves: bool,
    manners: Manners,
}

impl Swarm {
    pub(crate) fn draw(rng: &mut Rng) -> Swarm {
        // One history in ten has no faults.
        let is_calm = rng.chance(1, 10);
        let mut one = || rng.chance(1, 2) && !is_calm;
        Swarm {
            crashes: one(),
            failing_syncs: one(),
            failing_writes: one(),
            full_disk: one(),
            slow_disk: one(),
            short_queue: one(),
            moves: one(),
            manners: Manners { is_hasty: one(), is_fickle: one(), is_stale: one() },
        }
    }
}

/// What a history was.
pub(crate) struct Report {
    pub(crate) swarm: Swarm,
    pub(crate) checked: Checked,
    pub(crate) sometimes: Sometimes,
    pub(crate) trace_hash: u128,
}

/// Why a history failed, by the invariant that does not hold.
pub(crate) type Verdict = std::result::Result<Report, String>;

struct Driver {
    sim: Sim,
    disk: Arc<Disk>,
    record: Arc<Mutex<Record>>,
    rng: Rng,
    swarm: Swarm,
    planted: Option<Planted>,
}

pub(crate) fn run(disk: &Arc<Disk>, seed: u64, planted: Option<Planted>, options: Options) -> Verdict {
    disk.reset(seed);
    disk.claim_powersafe_overwrite();
    let is_verbose = options.keep == Keep::Whole;
    let sim = Sim::with(seed, options);
    let mut rng = sim.rng("driver");
    let swarm = Swarm::draw(&mut rng);
    sim.trace(format!("{swarm:?}"));
    let mut driver = Driver { sim, disk: disk.clone(), record: Arc::default(), rng, swarm, planted };
    let verdict = driver.live().and_then(|()| driver.judge());
    if is_verbose {
        driver.sim.trace_lines().iter().for_each(|line| println!("{line}"));
    }
    verdict
}

fn consumer() -> StreamId {
    stream("consumer")
}

fn tables() -> Vec<SchemaChange> {
    let table = |name: &str, columns: Vec<Column>| {
        let kind = hash_kind("id");
        let primary_key = vec!["id".into()];
        SchemaChange::CreateTable(Table {
            name: name.into(),
            kind,
            columns,
            primary_key,
            keys: vec![],
            foreign_keys: vec![],
            checks: vec![],
            primary_key_name: None,
            hidden_key: false,
        })
    };
    let int = |name: &str| Column::new(name, DataType::Int8).not_null();
    vec![
        table("lists", vec![int("id"), Column::new("elements", DataType::Text).not_null()]),
        table("elements", vec![int("id"), int("list"), int("claimed")]),
    ]
}

impl Driver {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("no client has panicked")
    }

    fn options(&self, is_last: bool) -> SqliteOptions {
        let max_queue = if self.swarm.short_queue && !is_last { 2 } else { 10_000 };
        SqliteOptions { planted: self.planted, max_queue, max_group: 3, ..harness::options(&self.disk) }
    }

    fn live(&mut self) -> std::result::Result<(), String> {
        for _ in 0..LIVES_MAX {
            if self.faulty_life().map_err(|stuck| format!("I-66: {stuck}"))? {
                break;
            }
        }
        self.disk.heal();
        self.sim.set_blocking_delay(NODE, Duration::ZERO);
        self.last_life()
    }

    /// Puts this life's faults on the disk.
    fn plant_faults(&mut self) {
        let counts = self.disk.counts();
        let rng = &mut self.rng;
        self.disk.heal();
        if self.swarm.crashes && rng.chance(3, 4) {
            self.disk.crash_at(counts.operations + 1 + rng.below(300));
        }
        if self.swarm.failing_syncs && rng.chance(1, 2) {
            self.disk.fail_sync_at(counts.syncs + 1 + rng.below(40), Times::Once);
        }
        if self.swarm.failing_writes && rng.chance(1, 2) {
            self.disk.fail_write_at(counts.writes + 1 + rng.below(400), Times::Once);
        }
        if self.swarm.full_disk && rng.chance(1, 2) {
            self.disk.full_at(counts.operations + 1 + rng.below(300));
        }
        let delay = if self.swarm.slow_disk { Duration::from_micros(rng.below(3_000)) } else { Duration::ZERO };
        self.sim.set_blocking_delay(NODE, delay);
    }

    /// One process life under faults. True if nothing ended it early.
    fn faulty_life(&mut self) -> std::result::Result<bool, isles_sim::exec::Stuck> {
        let env = self.sim.node(NODE);
        self.plant_faults();
        let (crash, is_polite, lag) = (*self.rng.pick(&Crash::ALL), self.rng.chance(1, 2), self.rng.below(4));
        let killed_at = (self.swarm.crashes && self.rng.chance(1, 3)).then(|| self.rng.below(KILLED_LOOKS_MAX));
        let options = self.options(false);
        let (sim, disk) = (&self.sim, &self.disk);
        let life = async {
            let shard = match open_and_set_up(&env, options).await {
                Ok(shard) => shard,
                Err((shard, error)) => {
                    sim.saw(&format!("error: {}", error_name(&error)));
                    return (shard, Ended::Failed);
                }
            };
            self.start(&env, &shard, TXNS, lag);
            let end = self.watch(&shard, killed_at).await;
            (Some(shard), end)
        };
        let (shard, end) = sim.run_within(LIFE_MAX, life)?;
        sim.trace(format!("life ends: {end:?}"));
        match (end, shard) {
            (Ended::Done | Ended::Failed, Some(shard)) if is_polite && !disk.is_dead() => {
                sim.run_within(LIFE_MAX, async {
                    let _ = shard.close().await;
                    let answer = shard.execute(Request::read(harness::claim(99, 0), probe())).await;
                    sim.saw(&format!("error: {}", error_name(&answer.expect_err("it is closed"))));
                })?;
                sim.saw("life: closed");
                sim.kill(NODE);
                if disk.is_dead() {
                    disk.restart(crash);
                }
            }
            (_, shard) => {
                sim.saw(&format!("life: {crash:?}"));
                disk.crash();
                sim.kill(NODE);
                drop(shard);
                disk.restart(crash);
            }
        }
        Ok(end == Ended::Done)
    }

    /// Starts what works on the shard in this life.
    fn start(&self, env: &Arc<SimEnv>, shard: &SqliteShard, txns: u64, lag: u64) {
        self.record().ended = 0;
        let version = self.record().routing_version;
        for number in 0..CLIENTS {
            let client = Client {
                number,
                shard: shard.clone(),
                env: env.clone(),
                record: self.record.clone(),
                rng: self.sim.rng(&format!("client {number} {}", self.sim.elapsed().as_micros())),
                manners: self.swarm.manners,
                routing_version: if self.swarm.manners.is_stale { version.saturating_sub(lag) } else { version },
            };
            env.spawn_named("client", Box::pin(client.run(txns)));
        }
        let follower = Follower { shard: shard.clone(), env: env.clone(), record: self.record.clone() };
        env.spawn_named("consumer", Box::pin(follower.run()));
        if self.swarm.moves {
            let rng = self.sim.rng(&format!("mover {}", self.sim.elapsed().as_micros()));
            let mover = Mover { shard: shard.clone(), env: env.clone(), record: self.record.clone(), rng };
            env.spawn_named("mover", Box::pin(mover.run()));
        }
    }

    /// Waits until the life has ended, one way or another; after `killed_at` looks it is ended from outside.
    async fn watch(&self, shard: &SqliteShard, killed_at: Option<u64>) -> Ended {
        let env = self.sim.env();
        for look in 0.. {
            env.sleep(LOOK).await;
            if self.disk.is_dead() {
                self.sim.saw("fault: crash in an operation");
                return Ended::Crashed;
            }
            if killed_at == Some(look) {
                self.sim.saw("fault: crash between operations");
                return Ended::Crashed;
            }
            if let Err(error) = shard.seq().await {
                self.sim.saw(&format!("error: {}", error_name(&error)));
                return Ended::Failed;
            }
            if self.record().ended == CLIENTS {
                return Ended::Done;
            }
            if look == HEALED_LOOK {
                self.disk.heal();
            }
        }
        Ended::Done
    }

    /// I-64: the faults have stopped, so everything is answered and all lags become zero.
    fn last_life(&mut self) -> std::result::Result<(), String> {
        let env = self.sim.node(NODE);
        let options = self.options(true);
        self.swarm.manners = Manners::default();
        self.swarm.moves = false;
        let version = self.record().routing_version + 1;
        let life = async {
            let shard = open_and_set_up(&env, options).await.map_err(|(_, error)| error)?;
            let seq_before = shard.seq().await?.0;
            shard.set_fences(vec![fence(0..=BUCKETS - 1, version, FenceMode::Open)], FENCE_TIME).await?;
            let opened =
                |bucket| FenceSet { bucket, version, lets_writes_in: true, seq_before, seq_after: Some(seq_before) };
            self.record().fences.extend((0..LISTS).map(opened));
            self.record().routing_version = version;
            let begun = self.record().history.txns.len();
            self.start(&env, &shard, TXNS, 0);
            let end = self.watch(&shard, None).await;
            assert_eq!(end, Ended::Done);
            let refused = self.record().history.txns[begun..].iter().filter(|txn| txn.completed_at.is_none()).count();
            assert_eq!(refused, 0, "I-64: transactions without an answer");
            while self.consumer_lag(&shard).await? > 0 {
                env.sleep(LOOK).await;
            }
            self.read_all(&shard).await?;
            shard.close().await
        };
        match self.sim.run_within(LIVENESS, life) {
            Err(stuck) => Err(format!("I-64: {stuck}")),
            Ok(Err(error)) => Err(format!("I-64: without faults, the shard says: {error}")),
            Ok(Ok(())) => Ok(()),
        }
    }

    async fn consumer_lag(&self, shard: &SqliteShard) -> Result<u64> {
        let position = shard.consumers().await?.first().map_or(0, |consumer| consumer.position.0);
        Ok(shard.seq().await?.0 - position)
    }

    /// The final state of all lists, and I-29.
    async fn read_all(&self, shard: &SqliteShard) -> Result<()> {
        let observed = harness::observe(shard, &consumer()).await?;
        let lists: BTreeMap<Key, Vec<Element>> = observed.tables["lists"]
            .iter()
            .map(|row| match row.values.as_slice() {
                [Value::Int(list), Value::Text(elements)] => (Key(*list as u64), parse(elements)),
                other => panic!("no list: {other:?}"),
            })
            .collect();
        let mut record = self.record();
        record.history.final_state = Some(lists);
        harness::check_log(&record.log_copy, &observed).map_err(|why| ShardError::Corrupt(format!("I-29: {why}")))
    }

    fn judge(&self) -> Verdict {
        harness::integrity_check(&self.disk)?;
        let record = self.record();
        check_fences(&record)?;
        let checked = check::check(&record.history, Level::StrictSerializable).map_err(|why| format!("I-19: {why}"))?;
        drop(record);
        Ok(Report { swarm: self.swarm, checked, sometimes: self.sim.sometimes(), trace_hash: self.sim.trace_hash() })
    }
}

/// I-7: no write was let in that a fence refuses. Every append has written down the version it claimed, and the log
/// tells when it was made.
fn check_fences(record: &Record) -> std::result::Result<(), String> {
    let appends: Vec<(u64, u64, u64)> = record
        .log_copy
        .iter()
        .filter(|change| change.table == "elements")
        .filter_map(|change| match change.after.as_deref() {
            Some([_, Value::Int(list), Value::Int(claimed)]) => Some((change.seq.0, *list as u64, *claimed as u64)),
            _ => None,
        })
        .collect();
    for (at, set) in record.fences.iter().enumerate() {
        let Some(seq_after) = set.seq_after else { continue };
        // What came later may have let writes in again, whether its answer arrived or not.
        let next = record.fences[at + 1..].iter().find(|next| next.bucket == set.bucket);
        let closed_until = if set.lets_writes_in { 0 } else { next.map_or(u64::MAX, |next| next.seq_before) };
        for (seq, list, claimed) in appends.iter().filter(|(seq, list, _)| *seq > seq_after && *list == set.bucket) {
            if *claimed < set.version || *seq <= closed_until {
                return Err(format!(
                    "I-7: change {seq} of list {list}, claimed at version {claimed}, came after {set:?}"
                ));
            }
        }
    }
    Ok(())
}

/// How a life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Done,
    Crashed,
    /// The shard has stopped itself, or could not be opened.
    Failed,
}

type Unfinished = (Option<SqliteShard>, ShardError);

async fn open_and_set_up(env: &Arc<SimEnv>, options: SqliteOptions) -> std::result::Result<SqliteShard, Unfinished> {
    let shard = harness::open(env.clone(), options).await.map_err(|error| (None, error))?;
    let done = set_up(&shard).await;
    done.map(|()| shard.clone()).map_err(|error| (Some(shard), error))
}

async fn set_up(shard: &SqliteShard) -> Result<()> {
    shard.add_consumer(&consumer()).await?;
    if shard.schema().await?.version == SchemaVersion(0) {
        shard.apply_schema(SchemaVersion(0), tables()).await?;
    }
    if shard.fences().await?.is_empty() {
        shard.set_fences(vec![fence(0..=BUCKETS - 1, 0, FenceMode::Open)], FENCE_TIME).await?;
    }
    Ok(())
}

fn probe() -> Statement {
    Statement::new("SELECT elements FROM lists", vec![]).returning([DataType::Text])
}

/// Reads the log, trims it behind itself, and now and then asks for what it must not get.
struct Follower {
    shard: SqliteShard,
    env: Arc<SimEnv>,
    record: Arc<Mutex<Record>>,
}

impl Follower {
    async fn run(self) {
        while self.follow().await.is_ok() {
            self.env.sleep(LOOK).await;
        }
    }

    async fn follow(&self) -> Result<()> {
        let after = self.record.lock().expect("no panic").log_copy.last().map_or(Seq::ZERO, |change| change.seq);
        let page = self.shard.changes(after, 25).await?;
        self.record.lock().expect("no panic").log_copy.extend(page.changes);
        // A full disk refuses the advance; the position is sent again with the next page.
        self.expect_refusals(page.through).await;
        match self.shard.advance(&consumer(), page.through).await {
            Err(error @ (ShardError::Stopped(_) | ShardError::MayHaveHappened(_))) => Err(error),
            _ => Ok(()),
        }
    }

    async fn expect_refusals(&self, position: Seq) {
        let refusals = [
            self.shard.changes(Seq::ZERO, 1).await.err(),
            self.shard.advance(&consumer(), Seq(position.0 + 1_000_000)).await.err(),
            self.shard.apply_schema(SchemaVersion(77), vec![]).await.err(),
            self.shard.execute(Request::read(harness::claim(u64::MAX, 0), wrong())).await.err(),
        ];
        for error in refusals.iter().flatten() {
            self.env.saw(&format!("error: {}", error_name(error)));
        }
    }
}

fn wrong() -> Statement {
    Statement::new("SELECT nothing FROM nowhere", vec![])
}

/// Moves buckets away and back, one at a time, as cutovers do.
struct Mover {
    shard: SqliteShard,
    env: Arc<SimEnv>,
    record: Arc<Mutex<Record>>,
    rng: Rng,
}

impl Mover {
    async fn run(mut self) {
        loop {
            let pause = Duration::from_micros(self.rng.below(2_000));
            self.env.sleep(pause).await;
            let bucket = self.rng.below(LISTS);
            let mode = *self.rng.pick(&[FenceMode::Open, FenceMode::Open, FenceMode::ReadOnly, FenceMode::Closed]);
            if self.set(bucket, mode).await.is_err() {
                return;
            }
            self.env.saw("fault: fence");
            if mode != FenceMode::Open {
                let pause = Duration::from_micros(self.rng.below(1_500));
                self.env.sleep(pause).await;
                if self.set(bucket, FenceMode::Open).await.is_err() {
                    return;
                }
            }
        }
    }

    async fn set(&self, bucket: u64, mode: FenceMode) -> Result<()> {
        let seq_before = self.shard.seq().await?.0;
        let (at, version) = {
            let mut record = self.record.lock().expect("no panic");
            record.routing_version += 1;
            let (version, lets_writes_in) = (record.routing_version, mode == FenceMode::Open);
            record.fences.push(FenceSet { bucket, version, lets_writes_in, seq_before, seq_after: None });
            (record.fences.len() - 1, version)
        };
        let buckets = bucket as u32..=bucket as u32;
        self.shard.set_fences(vec![fence(buckets, version, mode)], FENCE_TIME).await?;
        let seq_after = self.shard.seq().await?.0;
        self.record.lock().expect("no panic").fences[at].seq_after = Some(seq_after);
        Ok(())
    }
}
