//! A client that appends to lists and reads them, and remembers what it was told.

use isles_cluster::database::{Config, Database};
use isles_cluster::roles::Role;
use isles_cluster::session::{Answer, Login, Session};
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sim::check::{Element, History, Key, Op, Outcome, Txn};
use isles_sim::disk::Disk;
use isles_sim::rng::Rng;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Lists; few, so that transactions meet.
pub(crate) const KEYS: u64 = 6;
/// Operations of one transaction.
const OPS_MAX: u64 = 4;

pub(crate) const SCHEMA: &str = "CREATE TABLE IF NOT EXISTS lists (k int PRIMARY KEY, v text NOT NULL)";

/// What all clients of a history were told.
#[derive(Default, Clone)]
pub(crate) struct Record {
    pub(crate) history: History,
    clock: u64,
    next_element: u64,
    /// Clients that have done all they wanted in this life.
    pub(crate) ended: u64,
    /// How often each SQLSTATE was heard.
    pub(crate) errors: BTreeMap<&'static str, u64>,
}

pub(crate) type Shared = Arc<Mutex<Record>>;

impl Record {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Begins a transaction that appends one new element; whoever dies before its end may have done so.
    pub(crate) fn begin_append(&mut self, process: u64, key: Key) -> (usize, Element) {
        self.next_element += 1;
        let element = Element(self.next_element);
        let invoked_at = self.tick();
        let ops = vec![Op::Append { key, element }];
        let outcome = Outcome::Indeterminate;
        self.history.txns.push(Txn { process, invoked_at, completed_at: None, ops, outcome });
        (self.history.txns.len() - 1, element)
    }

    /// Ends a transaction of one who does not say when: what comes later need not have seen it.
    pub(crate) fn end_sometime(&mut self, at: usize, outcome: Outcome) {
        let txn = &mut self.history.txns[at];
        (txn.outcome, txn.completed_at) = (outcome, Some(u64::MAX));
    }

    pub(crate) fn end(&mut self, at: usize, outcome: Outcome) {
        let now = self.tick();
        let txn = &mut self.history.txns[at];
        (txn.outcome, txn.completed_at) = (outcome, Some(now));
    }
}

pub(crate) struct Client {
    pub(crate) number: u64,
    pub(crate) session: Session,
    pub(crate) record: Shared,
    pub(crate) rng: Rng,
    pub(crate) looks: Looks,
    /// Whether half of what it does is one statement, which is not in a transaction block.
    pub(crate) is_brief: bool,
    /// How long it thinks at most between two transactions, and with which clock.
    pub(crate) thinks: Option<(Arc<dyn Env>, Duration)>,
}

/// How often a transaction comes to one list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looks {
    Any,
    /// Once: what it sees of a list is one moment even where a transaction is not.
    Once,
}

/// A database of SQLite shards on a simulated disk.
pub(crate) fn config(disk: &Disk, name: &str, shards: usize) -> Config {
    let folder = std::env::temp_dir().join(format!("isles-{name}-{}", std::process::id()));
    let mut config = Config::sqlite(folder, shards);
    config.sqlite.base_vfs = Some(disk.vfs_name().into());
    config.sqlite.gather = Duration::ZERO;
    config.catalog.vfs = Some(disk.vfs_name().into());
    config
}

pub(crate) fn session(database: &Arc<Database>) -> Result<Session, SqlError> {
    database.session(Login {
        user: "isles".into(),
        database: "isles".into(),
        settings: Vec::new(),
        role: Role { admin: true, ..Role::default() },
    })
}

/// Runs one statement and gathers its rows.
pub(crate) async fn ask(session: &mut Session, sql: &str) -> Result<Vec<Vec<Value>>, SqlError> {
    let prepared = session.prepare(sql, &[]).await?;
    let mut all = Vec::new();
    if let Answer::Rows(mut rows) = session.execute(&prepared, Vec::new()).await? {
        while let Some(batch) = rows.next(100).await? {
            all.extend(batch);
        }
    }
    Ok(all)
}

fn elements(text: &str) -> Vec<Element> {
    text.split(',').filter(|part| !part.is_empty()).map(|part| Element(part.parse().unwrap())).collect()
}

/// All lists, from rows of key and elements.
pub(crate) fn lists(rows: &[Vec<Value>]) -> BTreeMap<Key, Vec<Element>> {
    let list = |row: &Vec<Value>| match row.as_slice() {
        [Value::Int(key), Value::Text(text)] => (Key(*key as u64), elements(text)),
        other => panic!("no list: {other:?}"),
    };
    rows.iter().map(list).collect()
}

/// What one statement does.
enum Step {
    /// To several lists, in one statement.
    Append(Vec<(Key, Element)>),
    Read(Key),
    /// All lists, from all shards.
    ReadAll,
}

impl Step {
    fn keys(&self) -> Vec<Key> {
        match self {
            Step::Append(pairs) => pairs.iter().map(|(key, _)| *key).collect(),
            Step::Read(key) => vec![*key],
            Step::ReadAll => (0..KEYS).map(Key).collect(),
        }
    }

    fn sql(&self) -> String {
        match self {
            Step::Append(pairs) => {
                let rows: Vec<String> =
                    pairs.iter().map(|(key, element)| format!("({}, '{},')", key.0, element.0)).collect();
                let upsert = "ON CONFLICT (k) DO UPDATE SET v = lists.v || excluded.v";
                format!("INSERT INTO lists VALUES {} {upsert}", rows.join(", "))
            }
            Step::Read(key) => format!("SELECT k, v FROM lists WHERE k = {}", key.0),
            Step::ReadAll => "SELECT k, v FROM lists".into(),
        }
    }
}

impl Client {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap()
    }

    pub(crate) async fn run(mut self, txns: u64) {
        for _ in 0..txns {
            self.transaction().await;
            if let Some((env, longest)) = &self.thinks {
                let thinks = Duration::from_micros(self.rng.below(longest.as_micros() as u64));
                env.sleep(thinks).await;
            }
        }
        self.record().ended += 1;
    }

    fn draw(&mut self) -> Step {
        match self.rng.below(10) {
            0..=3 => Step::Read(Key(self.rng.below(KEYS))),
            4 => Step::ReadAll,
            more => {
                let mut keys: Vec<u64> = (0..KEYS).collect();
                self.rng.shuffle(&mut keys);
                keys.truncate(if more < 8 { 1 } else { 2 });
                let mut record = self.record.lock().unwrap();
                let mut pair = |key: u64| {
                    record.next_element += 1;
                    (Key(key), Element(record.next_element))
                };
                Step::Append(keys.into_iter().map(&mut pair).collect())
            }
        }
    }

    async fn transaction(&mut self) {
        let is_brief = self.is_brief && self.rng.chance(1, 2);
        let count = if is_brief { 1 } else { 1 + self.rng.below(OPS_MAX) };
        let mut steps: Vec<Step> = (0..count).map(|_| self.draw()).collect();
        if self.looks == Looks::Once {
            let mut seen = Vec::new();
            steps.retain(|step| {
                let keys = step.keys();
                let fresh = !keys.iter().any(|key| seen.contains(key));
                seen.extend(keys.into_iter().filter(|_| fresh));
                fresh
            });
        }
        let alone = steps.len() == 1 && (is_brief || self.rng.chance(1, 2));
        let at = {
            let mut record = self.record();
            let invoked_at = record.tick();
            // Whoever dies before its end has not committed, unless it says otherwise in time.
            let outcome = Outcome::Aborted;
            record.history.txns.push(Txn {
                process: self.number,
                invoked_at,
                completed_at: None,
                ops: vec![],
                outcome,
            });
            record.history.txns.len() - 1
        };
        let result = self.carry_out(at, &steps, alone).await;
        let outcome = match &result {
            Ok(()) => Outcome::Committed,
            Err(error) if error.sqlstate == "08007" => Outcome::Indeterminate,
            Err(_) => Outcome::Aborted,
        };
        let error = result.err().map(|error| error.sqlstate);
        self.end(at, outcome, error);
        if error.is_some() {
            // It may be in no transaction.
            let _ = ask(&mut self.session, "ROLLBACK").await;
        }
    }

    fn end(&self, at: usize, outcome: Outcome, error: Option<&'static str>) {
        let mut record = self.record();
        if let Some(code) = error {
            *record.errors.entry(code).or_default() += 1;
        }
        record.end(at, outcome);
    }

    async fn carry_out(&mut self, at: usize, steps: &[Step], alone: bool) -> Result<(), SqlError> {
        if alone {
            self.record().history.txns[at].outcome = Outcome::Indeterminate;
        } else {
            ask(&mut self.session, "BEGIN").await?;
        }
        for step in steps {
            self.step(at, step).await?;
        }
        if alone {
            return Ok(());
        }
        self.record().history.txns[at].outcome = Outcome::Indeterminate;
        ask(&mut self.session, "COMMIT").await.map(drop)
    }

    async fn step(&mut self, at: usize, step: &Step) -> Result<(), SqlError> {
        if let Step::Append(pairs) = step {
            let ops = pairs.iter().map(|(key, element)| Op::Append { key: *key, element: *element });
            self.record().history.txns[at].ops.extend(ops);
        }
        let found = lists(&ask(&mut self.session, &step.sql()).await?);
        if matches!(step, Step::Append(_)) {
            return Ok(());
        }
        let read = |key: Key| Op::Read { key, elements: Some(found.get(&key).cloned().unwrap_or_default()) };
        self.record().history.txns[at].ops.extend(step.keys().into_iter().map(read));
        Ok(())
    }
}
