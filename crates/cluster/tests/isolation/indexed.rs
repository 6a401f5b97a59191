//! Histories of a table with global indexes, a hash table or one of tenants, whose rows and entries move, whose indexes come and go, and whose process dies.
//!
//! Each history draws from its seed what happens to it:
//!
//! ```text
//! clients    insert, update and delete, by id and by indexed columns, in statements and in transactions
//! contenders want the same keys of a unique index
//! checker    compares what indexes lead to with all rows, in one statement
//! operator   moves buckets of rows and of entries; drops, creates and rebuilds indexes; adds shards, and empties and
//!            removes them
//! faults     the process dies at an operation of its disk or at any moment; syncs and writes fail; the disk is slow; a
//!            shard is away for a while
//! ```
//!
//! When the faults have ended all indexes can be asked within a minute, they are what the rows say, and a move changes
//! none of their entries.
//!
//! How many histories met each of these is counted, and too few are a failure; so are too few comparisons. A condition
//! that was compared while its index could not be asked is none.

use crate::client::{ask, config, session};
use crate::contended::{self, CONTENDERS, Contender, check_keys};
use crate::keyed::{CLIENTS, Checker, Client, INDEXES, Kind, Shared, create_index, saw};
use crate::seeds::{check_kinds, find_bugs, new_disk, run_all, seeds};
use isles_cluster::database::{Config, Database};
use isles_cluster::indexes::Planted;
use isles_cluster::moves::Order;
use isles_cluster::moves::moves::{Event, Options, Plan, Span, Stage, Units};
use isles_cluster::session::Session;
use isles_engine::entries::EntryPart;
use isles_engine::env::Env;
use isles_engine::fence::{Claim, Claimed};
use isles_engine::shard::KeyRange;
use isles_kernel::error::SqlError;
use isles_kernel::index::key::Part;
use isles_kernel::index::{EntryDelta, IndexKey, StoredEntry};
use isles_kernel::names::{BucketId, GroupName, ShardId};
use isles_kernel::schema::{ENTRY_BUCKETS, Unit, entry_group};
use isles_kernel::value::Value;
use isles_sim::disk::{Crash, Disk, Times, Trouble};
use isles_sim::exec::Sim;
use isles_sim::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const NODE: &str = "isles";
const SHARDS: usize = 4;
/// Transactions of a client in one life, and checks meanwhile.
const TXNS: u64 = 20;
const CHECKS: u64 = 50;
/// How long a client thinks at most: so long that most comparisons are not overtaken, and so short that some are.
const THINKS: Duration = Duration::from_millis(12);
/// Lives under faults; one more without follows.
const LIVES: u64 = 2;
/// Histories of a run that nobody asked more of.
const SEEDS: u64 = 200;
/// Comparisons of such a run.
const COMPARISONS: u64 = 200_000;
/// From so many histories on, each kind must have been met.
const SEEDS_FOR_KINDS: u64 = 100;
/// Histories within which a planted bug must be found.
const SEEDS_FOR_BUGS: u64 = 60;
/// What histories must meet, and in how many of a hundred.
const KINDS: [(&str, u64); 20] = [
    ("table of tenants", 15),
    ("rows of tenants moved", 5),
    ("process died", 40),
    ("sync failed", 5),
    ("write failed", 2),
    ("rows moved", 15),
    ("entries moved", 15),
    ("built among clients", 20),
    ("dropped among clients", 10),
    ("fallback", 30),
    ("overtaken", 30),
    ("no fault", 10),
    ("entries compared around moves", 15),
    ("verified", 100),
    ("shard came", 15),
    ("shard left", 5),
    ("shard away", 10),
    ("key taken", 95),
    ("key refused", 90),
    ("keys looked at", 95),
];
/// In virtual time: longer than any wait of the database.
const LIFE_MAX: Duration = Duration::from_secs(2_000);
/// In virtual time: within it everything is settled once the faults have ended (I-64).
const SETTLES: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(2);

/// What may happen to a history.
#[derive(Debug, Clone, Copy)]
struct Swarm {
    kind: Kind,
    moves_rows: bool,
    moves_entries: bool,
    builds: bool,
    joins: bool,
    leaves: bool,
    absent: bool,
    crashes: bool,
    fails: bool,
    is_slow: bool,
}

impl Swarm {
    fn draw(rng: &mut Rng) -> Swarm {
        Swarm {
            kind: if rng.chance(1, 4) { Kind::Tenant } else { Kind::Hash },
            moves_rows: rng.chance(1, 2),
            moves_entries: rng.chance(1, 2),
            builds: rng.chance(1, 2),
            joins: rng.chance(1, 3),
            leaves: rng.chance(1, 6),
            absent: rng.chance(1, 2),
            crashes: rng.chance(2, 3),
            fails: rng.chance(1, 2),
            is_slow: rng.chance(1, 2),
        }
    }
}

/// A shard that cannot be reached meanwhile.
struct Away {
    shard: u64,
    looks: std::ops::Range<u64>,
}

struct Driver {
    sim: Sim,
    disk: Arc<Disk>,
    told: Shared,
    rng: Rng,
    swarm: Swarm,
    bug: Option<Planted>,
}

#[derive(Debug, Default)]
struct Report {
    compared: u64,
    unled: u64,
    known: u64,
    seen: BTreeMap<String, u64>,
    /// In how many histories each was seen.
    histories: BTreeMap<String, u64>,
}

impl Report {
    fn add(&mut self, one: Report) {
        self.compared += one.compared;
        self.unled += one.unled;
        self.known += one.known;
        for (what, count) in one.seen {
            *self.histories.entry(what.clone()).or_default() += 1;
            *self.seen.entry(what).or_default() += count;
        }
    }
}

fn run(disk: &Arc<Disk>, seed: u64, bug: Option<Planted>) -> Result<Report, String> {
    disk.reset(seed);
    let sim = Sim::new(seed);
    let mut rng = sim.rng("driver");
    drop(sim.node(NODE));
    let swarm = Swarm::draw(&mut rng);
    let mut driver = Driver { sim, disk: disk.clone(), told: Shared::default(), rng, swarm, bug };
    if swarm.kind == Kind::Tenant {
        saw(&driver.told, "table of tenants");
    }
    driver.live()?;
    let told = std::mem::take(&mut *driver.told.lock().unwrap());
    Ok(Report { compared: told.compared, unled: told.unled, known: told.known, seen: told.seen, ..Report::default() })
}

impl Driver {
    fn config(&self) -> Config {
        Config { planted_index: self.bug, ..config(&self.disk, "indexed", SHARDS) }
    }

    fn live(&mut self) -> Result<(), String> {
        let lives = if self.swarm.crashes { 1 + self.rng.below(LIVES) } else { 0 };
        for _ in 0..lives {
            self.faulty_life()?;
        }
        if lives == 0 {
            saw(&self.told, "no fault");
        }
        self.disk.heal();
        self.last_life()
    }

    fn plant_faults(&mut self) -> (Option<u64>, Option<u64>) {
        self.disk.heal();
        let counts = self.disk.counts();
        if self.rng.chance(3, 4) {
            self.disk.crash_at(counts.operations + 1 + self.rng.below(6_000));
        }
        let (mut sync, mut write) = (None, None);
        if self.swarm.fails && self.rng.chance(1, 2) {
            let at = counts.syncs + 1 + self.rng.below(200);
            self.disk.fail_sync_at(at, Times::Once);
            sync = Some(at);
        }
        if self.swarm.fails && self.rng.chance(1, 3) {
            let at = counts.writes + 1 + self.rng.below(2_000);
            self.disk.fail_write_at(at, Times::Once);
            write = Some(at);
        }
        (sync, write)
    }

    async fn open(&self) -> Result<Arc<Database>, SqlError> {
        let delay = if self.swarm.is_slow { Duration::from_micros(800) } else { Duration::ZERO };
        self.sim.set_blocking_delay(NODE, delay);
        let database = Database::open(self.config(), self.sim.node(NODE)).await?;
        let mut session = session(&database)?;
        ask(&mut session, &self.swarm.kind.create_table()).await?;
        for (name, _) in INDEXES {
            ask(&mut session, &create_index(name)).await?;
        }
        for sql in contended::CREATE {
            ask(&mut session, sql).await?;
        }
        Ok(database)
    }

    fn checker(&self, database: &Arc<Database>, rng: Rng) -> Result<Checker, SqlError> {
        Ok(Checker {
            database: database.clone(),
            kind: self.swarm.kind,
            session: session(database)?,
            told: self.told.clone(),
            rng,
            env: self.sim.node(NODE),
            thinks: THINKS * TXNS as u32 / CHECKS as u32,
        })
    }

    fn start(&self, database: &Arc<Database>) -> Result<(), SqlError> {
        self.told.lock().unwrap().ended = 0;
        let node = || self.sim.node(NODE);
        let rng = |what: &str| self.sim.rng(&format!("{what} {}", self.sim.elapsed().as_micros()));
        for number in 0..CLIENTS {
            let (session, told, rng) = (session(database)?, self.told.clone(), rng(&format!("client {number}")));
            let client = Client { number, kind: self.swarm.kind, session, told, rng, env: node(), thinks: THINKS };
            node().spawn_named("client", Box::pin(client.run(TXNS)));
        }
        for number in 0..CONTENDERS {
            let (session, told, rng) = (session(database)?, self.told.clone(), rng(&format!("contender {number}")));
            let contender = Contender { session, told, rng, env: node(), thinks: THINKS };
            node().spawn_named("contender", Box::pin(contender.run(TXNS)));
        }
        let checker = self.checker(database, rng("checker"))?;
        node().spawn_named("checker", Box::pin(checker.run(CHECKS)));
        let operator = Operator {
            database: database.clone(),
            told: self.told.clone(),
            rng: rng("operator"),
            env: node(),
            swarm: self.swarm,
        };
        node().spawn_named("operator", Box::pin(operator.run()));
        Ok(())
    }

    /// Until all have ended, or the process has died, or it is killed after so many looks.
    async fn watch(&self, killed_at: Option<u64>, away: Option<&Away>) -> bool {
        for look in 0.. {
            self.sim.env().sleep(LOOK).await;
            self.strike(look, away);
            if self.disk.is_dead() || killed_at == Some(look) {
                return false;
            }
            if self.told.lock().unwrap().ended == CLIENTS + CONTENDERS + 2 {
                break;
            }
        }
        true
    }

    fn strike(&self, look: u64, away: Option<&Away>) {
        match away {
            Some(away) if away.looks.start == look => {
                saw(&self.told, "shard away");
                self.disk.trouble(&format!("/s{}/", away.shard), Trouble::Away);
            }
            Some(away) if away.looks.end == look => self.disk.end_trouble(),
            _ => {}
        }
    }

    fn draw_away(&mut self) -> Option<Away> {
        if !self.swarm.absent || self.rng.chance(1, 3) {
            return None;
        }
        let start = self.rng.below(40);
        Some(Away { shard: self.rng.below(SHARDS as u64), looks: start..start + 1 + self.rng.below(60) })
    }

    fn judge(&self) -> Result<(), String> {
        let wrong = self.told.lock().unwrap().wrong.take();
        wrong.map_or(Ok(()), |why| Err(format!("{why}\n{:?}", self.swarm)))
    }

    /// Notes what statements have met in a life.
    fn note(&self, database: &Database) {
        let work = database.index_work();
        let kinds = [(work.fallbacks, "fallback"), (work.overtaken, "overtaken"), (work.lookups, "led")];
        kinds.iter().filter(|(count, _)| *count > 0).for_each(|(_, what)| saw(&self.told, *what));
    }

    fn faulty_life(&mut self) -> Result<(), String> {
        let (sync, write) = self.plant_faults();
        let killed_at = self.rng.chance(1, 3).then(|| self.rng.below(100));
        let crash = *self.rng.pick(&Crash::ALL);
        let away = self.draw_away();
        let life = async {
            let Ok(database) = self.open().await else { return None };
            if self.start(&database).is_ok() {
                self.watch(killed_at, away.as_ref()).await;
            }
            Some(database)
        };
        let database = self.sim.run_within(LIFE_MAX, life).map_err(|stuck| format!("I-66: {stuck}"))?;
        let counts = self.disk.counts();
        let kinds = [(sync, counts.syncs, "sync failed"), (write, counts.writes, "write failed")];
        kinds.iter().filter(|(at, count, _)| at.is_some_and(|at| *count >= at)).for_each(|(_, _, what)| {
            saw(&self.told, *what);
        });
        saw(&self.told, "process died");
        if let Some(database) = &database {
            self.note(database);
        }
        self.disk.crash();
        self.sim.kill(NODE);
        drop(database);
        drop(self.sim.node(NODE));
        self.disk.restart(crash);
        self.judge()
    }

    /// Without faults: all is settled in the end, and the entries are what the rows say.
    fn last_life(&mut self) -> Result<(), String> {
        let looks_at_moves = self.rng.chance(1, 3);
        let life = async {
            let database = self.open().await.map_err(|error| format!("it does not open: {error}"))?;
            self.start(&database).map_err(|error| error.to_string())?;
            if !self.watch(None, None).await {
                return Err("something ended it early".into());
            }
            self.judge()?;
            self.end_plans(&database).await?;
            self.empty_shards(&database).await?;
            let plans = database.moves().await.map_err(|error| error.to_string())?;
            plans.iter().for_each(|plan| self.count(plan));
            self.settle(&database).await?;
            self.note(&database);
            if looks_at_moves {
                self.move_all(&database).await?;
            }
            database.close().await.map_err(|error| error.to_string())
        };
        let ended = self.sim.run_within(LIFE_MAX, life).map_err(|stuck| format!("I-66: {stuck}"))?;
        self.sim.kill(NODE);
        ended?;
        self.judge()
    }

    /// I-64: each plan comes to its end, one way or the other.
    async fn end_plans(&self, database: &Arc<Database>) -> Result<(), String> {
        let until = self.sim.elapsed() + SETTLES;
        let mut hurried = BTreeSet::new();
        loop {
            let plans = database.moves().await.map_err(|error| error.to_string())?;
            let active: Vec<&Plan> = plans.iter().filter(|plan| plan.is_active()).collect();
            if active.is_empty() {
                return Ok(());
            }
            if self.sim.elapsed() > until {
                return Err(format!("I-64: plans do not end: {active:?}"));
            }
            for plan in active.iter().filter(|plan| plan.is_at_rest()) {
                let id = plan.id.as_str();
                let _ = match (plan.stage, hurried.insert(plan.id.clone())) {
                    (Stage::Guarding, _) => database.command_move(id, Event::Complete).await,
                    (_, true) => database.run_move(id, true).await,
                    _ => database.command_move(id, Event::Rollback).await,
                };
            }
            self.sim.env().sleep(LOOK * 10).await;
        }
    }

    /// I-64: shards that are to be emptied are, and can be removed.
    async fn empty_shards(&self, database: &Arc<Database>) -> Result<(), String> {
        let mut client = session(database).map_err(|error| error.to_string())?;
        let until = self.sim.elapsed() + SETTLES;
        loop {
            let leaving = leaving(&mut client).await.map_err(|error| error.to_string())?;
            let Some(name) = leaving.first() else { return Ok(()) };
            match ask(&mut client, &format!("DROP SHARD {name}")).await {
                Ok(_) => saw(&self.told, "shard left"),
                Err(error) if self.sim.elapsed() > until => return Err(format!("I-64: {name} stays: {error}")),
                Err(_) => self.end_plans(database).await?,
            }
            self.sim.env().sleep(LOOK * 10).await;
        }
    }

    fn count(&self, plan: &Plan) {
        if plan.routing_version_cutover.is_some() {
            let is_of_entries = plan.units.to_string().contains(entry_group().as_str());
            saw(&self.told, if is_of_entries { "entries moved" } else { "rows moved" });
            if !is_of_entries && self.swarm.kind == Kind::Tenant {
                saw(&self.told, "rows of tenants moved");
            }
        }
    }

    /// I-64: within a minute every index is asked again, and its entries are what the rows say.
    async fn settle(&self, database: &Arc<Database>) -> Result<(), String> {
        let mut client = session(database).map_err(|error| error.to_string())?;
        let until = self.sim.elapsed() + SETTLES;
        for (name, _) in INDEXES {
            // The operator may have dropped it last.
            ask(&mut client, &create_index(name)).await.map_err(|error| format!("I-64: {name}: {error}"))?;
            if let Err(error) = ask(&mut client, &format!("WAIT FOR INDEX {name}")).await {
                let infos = database.global_indexes().await;
                return Err(format!("I-64: {name}: {error}, {infos:?} of {:?}", self.swarm));
            }
        }
        let waited = ask(&mut client, &format!("WAIT FOR INDEX {}", contended::INDEX)).await;
        waited.map_err(|error| format!("I-64: {}: {error}", contended::INDEX))?;
        check_keys(&mut client).await?;
        if self.sim.elapsed() > until {
            return Err("I-64: the indexes were not ready within a minute".into());
        }
        self.verify(database).await?;
        saw(&self.told, "verified");
        Ok(())
    }

    async fn verify(&self, database: &Arc<Database>) -> Result<(), String> {
        let mut client = session(database).map_err(|error| error.to_string())?;
        for name in INDEXES.map(|(name, _)| name).into_iter().chain([contended::INDEX]) {
            let shown = ask(&mut client, &format!("VERIFY INDEX {name}")).await;
            match shown.map_err(|error| format!("VERIFY INDEX {name}: {error}"))?.as_slice() {
                [row] if row[1..] == [Value::Int(0), Value::Int(0), Value::Int(0)] => {}
                other => {
                    return Err(format!(
                        "I-23: entries of {name} are not what the rows say: {other:?}, {:?}",
                        self.swarm
                    ));
                }
            }
        }
        let mut checker = self.checker(database, self.sim.rng("last")).map_err(|error| error.to_string())?;
        match checker.check_all().await {
            Ok(true) => self.judge(),
            Ok(false) => Err("I-64: an index is ready, and is not asked".into()),
            Err(error) => Err(format!("the last comparison: {error}")),
        }
    }

    /// I-28: rows and entries move, and every entry stays what it is.
    async fn move_all(&self, database: &Arc<Database>) -> Result<(), String> {
        let before = entries(database).await?;
        for group in [self.swarm.kind.group(&database.current_routing()), entry_group()] {
            let policy = database.current_routing();
            let range = policy.ranges(&group).expect("it is routed").first().expect("of some buckets").clone();
            let others = database.shard_names().into_iter().filter(|name| *name != range.shard);
            let target = others.last().expect("several shards");
            let span = Span { first: range.first, last: range.last };
            let order = order(group, range.shard, target, span, true);
            database.plan_move(order).await.map_err(|error| error.to_string())?;
            self.end_plans(database).await?;
        }
        let after = entries(database).await?;
        if before != after {
            return Err(format!("I-28: a move has changed entries: {before:?}, {after:?}"));
        }
        if !before.is_empty() {
            saw(&self.told, "entries compared around moves");
        }
        self.verify(database).await
    }
}

fn order(group: GroupName, source: ShardId, target: ShardId, span: Span, complete: bool) -> Order {
    let options = Options { auto: true, complete, ..Options::default() };
    Order { source: Some(source), target, units: Units::buckets(group, [span]), description: None, options }
}

/// Every entry of every index, where its bucket is owned, without positions.
pub(crate) async fn entries(database: &Arc<Database>) -> Result<BTreeSet<String>, String> {
    let policy = database.current_routing();
    let mut all = BTreeSet::new();
    for name in database.shard_names() {
        let shard = database.shard(&name).await.map_err(|error| error.to_string())?;
        let schema = shard.schema().await.map_err(|error| error.to_string())?;
        let mut snapshot = shard.snapshot().await.map_err(|error| error.to_string())?;
        for table in schema.tables.values().filter(|table| table.has_entries()) {
            let page = snapshot.page(&KeyRange::table(&table.name), 1_000).await.map_err(|error| error.to_string())?;
            assert!(page.next.is_none(), "more entries than are looked at");
            for row in page.rows {
                let Unit::Bucket(group, bucket) = &row.unit else { return Err(format!("{row:?} has no bucket")) };
                let is_position = matches!(StoredEntry::read(&row.values), Some(StoredEntry::Position { .. }));
                if !is_position && policy.shard_of_bucket(group, *bucket) == Some(&name) {
                    all.insert(format!("{} {bucket} {:?}", table.name, row.values));
                }
            }
        }
    }
    Ok(all)
}

/// Shards that are to be emptied, or are.
async fn leaving(client: &mut Session) -> Result<Vec<String>, SqlError> {
    let shown = ask(client, "SHOW SHARDS").await?;
    let is_leaving = |value: &Value| matches!(value, Value::Text(text) if matches!(&**text, "draining" | "drained"));
    let named = |row: &Vec<Value>| match &row[0] {
        Value::Text(name) => name.to_string(),
        other => panic!("no name: {other:?}"),
    };
    Ok(shown.iter().filter(|row| row.iter().any(is_leaving)).map(named).collect())
}

/// Moves buckets, and meddles with indexes.
struct Operator {
    database: Arc<Database>,
    told: Shared,
    rng: Rng,
    env: Arc<dyn Env>,
    swarm: Swarm,
}

impl Operator {
    async fn run(mut self) {
        for _ in 0..3 + self.rng.below(6) {
            self.env.sleep(Duration::from_micros(self.rng.below(25_000))).await;
            match self.rng.below(5) {
                0 if self.swarm.moves_rows => {
                    let group = match self.rng.chance(1, 3) {
                        true => GroupName::new(contended::GROUP).unwrap(),
                        false => self.swarm.kind.group(&self.database.current_routing()),
                    };
                    self.move_some(group).await;
                }
                1 if self.swarm.moves_entries => self.move_some(entry_group()).await,
                2 if self.swarm.builds => self.meddle().await,
                3 if self.swarm.joins => self.add_shard().await,
                4 if self.swarm.leaves => self.remove_shard().await,
                _ => {}
            }
        }
        self.told.lock().unwrap().ended += 1;
    }

    async fn move_some(&mut self, group: GroupName) {
        let policy = self.database.current_routing();
        let Some(ranges) = policy.ranges(&group) else { return };
        let range = self.rng.pick(ranges).clone();
        let first = range.first.0 + self.rng.below(u64::from(range.last.0 - range.first.0 + 1)) as u32;
        let target = self.rng.pick(&self.database.shard_names()).clone();
        let span = Span { first: BucketId(first), last: range.last };
        let complete = self.rng.chance(2, 3);
        match self.database.plan_move(order(group, range.shard, target, span, complete)).await {
            Ok(_) => saw(&self.told, "planned"),
            Err(error) => saw(&self.told, format!("not planned: {}", error.sqlstate)),
        }
    }

    /// A shard comes, and is given rows and entries by moves as any other.
    async fn add_shard(&mut self) {
        if self.database.shard_names().len() >= SHARDS + 2 {
            return;
        }
        let Ok(mut client) = session(&self.database) else { return };
        match ask(&mut client, "CREATE SHARD").await {
            Ok(_) => saw(&self.told, "shard came"),
            Err(error) => saw(&self.told, format!("no shard: {}", error.sqlstate)),
        }
    }

    /// A shard is to be emptied; one that is, is removed.
    async fn remove_shard(&mut self) {
        let Ok(mut client) = session(&self.database) else { return };
        let Ok(leaving) = leaving(&mut client).await else { return };
        let names = self.database.shard_names();
        let sql = match leaving.first() {
            Some(name) => format!("DROP SHARD {name}"),
            None if names.len() > SHARDS - 1 => format!("ALTER SHARD {} DRAIN", self.rng.pick(&names[1..])),
            None => return,
        };
        match ask(&mut client, &sql).await {
            Ok(_) if !leaving.is_empty() => saw(&self.told, "shard left"),
            Ok(_) => saw(&self.told, "shard drained"),
            Err(error) => saw(&self.told, format!("shard stays: {}", error.sqlstate)),
        }
    }

    async fn meddle(&mut self) {
        let Ok(mut client) = session(&self.database) else { return };
        let name = self.rng.pick(&INDEXES).0;
        let rebuilds = self.rng.chance(1, 2);
        let told = match rebuilds {
            true => ask(&mut client, &format!("REINDEX INDEX {name}")).await,
            false => ask(&mut client, &format!("DROP INDEX IF EXISTS {name}")).await,
        };
        match told {
            Ok(_) => self.among(if rebuilds { "rebuilt" } else { "dropped" }),
            Err(error) => saw(&self.told, format!("operator: {}", error.sqlstate)),
        }
        if !rebuilds {
            self.env.sleep(Duration::from_micros(self.rng.below(5_000))).await;
        }
        if ask(&mut client, &create_index(name)).await.is_ok() {
            self.among("built");
        }
    }

    /// Something was done while clients were there.
    fn among(&self, what: &str) {
        if self.told.lock().unwrap().ended < CLIENTS {
            saw(&self.told, format!("{what} among clients"));
        }
    }
}

/// I-1, I-23, I-24, I-25, I-26, I-27, I-28, I-64, I-66: clients, an operator, crashes; and what an index leads to is what is there.
#[test]
fn indexes_lead_to_what_is_there_under_faults() {
    let seeds = seeds(SEEDS);
    let began = std::time::Instant::now();
    let mut total = Report::default();
    run_all(&seeds, |disk, seed| run(disk, seed, None)).into_iter().for_each(|report| total.add(report));
    let histories = seeds.end - seeds.start;
    println!("{histories} histories in {:?}, {:#?}", began.elapsed(), total.seen);
    println!("of {histories} histories: {:#?}", total.histories);
    println!("{} compared, {} while an index could not be asked, {} known", total.compared, total.unled, total.known);
    if histories >= SEEDS {
        assert!(total.compared >= COMPARISONS, "only {} comparisons", total.compared);
    }
    if histories >= SEEDS_FOR_KINDS {
        check_kinds(&KINDS, &total.histories, histories);
    }
}

fn quiet_driver(kind: Kind) -> Driver {
    let disk = new_disk();
    disk.reset(1);
    let sim = Sim::new(1);
    let rng = sim.rng("driver");
    drop(sim.node(NODE));
    let [moves_rows, moves_entries, builds, joins, leaves, absent, crashes, fails, is_slow] = [false; 9];
    let swarm = Swarm { kind, moves_rows, moves_entries, builds, joins, leaves, absent, crashes, fails, is_slow };
    Driver { sim, disk, told: Shared::default(), rng, swarm, bug: None }
}

/// Makes entries that say of one value of `a` that every bucket has it.
async fn plant_stale_entries(database: &Arc<Database>) -> Result<(), String> {
    let infos = database.global_indexes().await.map_err(|error| error.to_string())?;
    let table = infos.into_iter().find(|info| info.name == "t_a").expect("it is there").entries;
    let key = IndexKey::of([Part { value: &Value::text("a05"), padded: false }]).expect("texts have keys");
    let bucket = BucketId(key.entry_bucket(ENTRY_BUCKETS));
    let deltas = (0..16).map(|n| EntryDelta { key: key.0.clone(), bucket: BucketId(n), rows: 1 }).collect();
    let policy = database.current_routing();
    let owner = policy.shard_of_bucket(&entry_group(), bucket).expect("it is routed");
    let claim = Claim::new(policy.version(), vec![Claimed::Bucket(entry_group(), bucket)]);
    let shard = database.shard(owner).await.map_err(|error| error.to_string())?;
    let part = EntryPart { table, bucket, progress: None, deltas };
    shard.maintain(claim, vec![part]).await.map_err(|error| error.to_string())
}

/// I-25: entries of rows that are not there lead to shards, and these say that there are none.
#[test]
fn stale_entries_yield_no_row() {
    let driver = quiet_driver(Kind::Hash);
    let life = async {
        let database = driver.open().await.map_err(|error| error.to_string())?;
        driver.start(&database).map_err(|error| error.to_string())?;
        driver.watch(None, None).await;
        driver.settle(&database).await?;
        plant_stale_entries(&database).await?;
        let mut checker = driver.checker(&database, driver.sim.rng("stale")).map_err(|error| error.to_string())?;
        let is_led = checker.check_all().await.map_err(|error| error.to_string())?;
        let mut client = session(&database).map_err(|error| error.to_string())?;
        let shown = ask(&mut client, "VERIFY INDEX t_a").await.map_err(|error| error.to_string())?;
        driver.judge()?;
        Ok::<_, String>((is_led, shown))
    };
    let (is_led, shown) = driver.sim.run_within(LIFE_MAX, life).expect("it ends").expect("without faults");
    driver.sim.kill(NODE);
    assert!(is_led);
    assert_eq!(shown[0][1..], [Value::Int(0), Value::Int(16), Value::Int(0)], "missing, superfluous, repaired");
}

/// I-24: the statement that compares asks an index for each of its conditions, and all shards for all rows.
#[test]
fn a_comparison_is_led_and_scans_in_one_statement() {
    for kind in [Kind::Hash, Kind::Tenant] {
        let driver = quiet_driver(kind);
        let life = async {
            let database = driver.open().await?;
            let mut checker = driver.checker(&database, driver.sim.rng("checker"))?;
            checker.explained().await
        };
        let counts = driver.sim.run_within(LIFE_MAX, life).expect("it ends").expect("without faults");
        driver.sim.kill(NODE);
        for (conditions, led, scans) in counts {
            assert_eq!((led, scans), (conditions, 1), "{kind:?}");
        }
    }
}

/// I-69, planted bugs 9 and 10, and planted bug 18: each breaks a history.
#[test]
fn planted_bugs_of_indexes_are_found() {
    find_bugs(&[Planted::NoTail, Planted::NoLookAgain, Planted::ReadUnbuilt, Planted::KeysKept], SEEDS_FOR_BUGS, run);
}
