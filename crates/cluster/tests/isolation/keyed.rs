//! Clients of a table with global indexes, and a checker of what the indexes say.
//!
//! Each client alone writes some of the rows, so it knows what they are: what it finds and changes by an index is compared
//! with that. The keys are everybody's, so entries are of rows of all clients.
//!
//! The checker asks for all rows and for those of many conditions in one statement, which sees one moment of all shards.
//! The rows come from every shard, and those of a condition from where an index leads; that they agree is I-24.

use crate::client::ask;
use isles_cluster::database::Database;
use isles_cluster::session::{Answer, Session};
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_kernel::names::GroupName;
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::value::Value;
use isles_sim::rng::Rng;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const TABLE: &str = "t";

/// Whose the rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nobody's: spread by their ids.
    Hash,
    /// Each client is a tenant, and whoever compares reads the rows of all of them.
    Tenant,
}

impl Kind {
    pub(crate) fn create_table(self) -> String {
        let with = match self {
            Kind::Hash => "\"group\" = 't', buckets = 16",
            Kind::Tenant => "kind = tenant",
        };
        format!(
            "CREATE TABLE IF NOT EXISTS {TABLE} (id int PRIMARY KEY, a text, b int, c text, n int NOT NULL) WITH ({with})"
        )
    }

    /// The buckets that its rows are in.
    pub(crate) fn group(self, policy: &RoutingPolicy) -> GroupName {
        match self {
            Kind::Hash => GroupName::new(TABLE).expect("it is a name"),
            Kind::Tenant => policy.tenant_group().clone(),
        }
    }

    /// What makes a session that of a client.
    pub(crate) fn of_client(self, number: u64) -> Option<String> {
        (self == Kind::Tenant).then(|| format!("SET isles.tenant = 'client {number}'"))
    }

    /// What makes a session that of the checker.
    pub(crate) fn of_checker(self) -> Option<&'static str> {
        (self == Kind::Tenant).then_some("SET isles.tenant_scope = 'all'")
    }
}
/// One column, two columns, and one with few values and many nulls.
pub(crate) const INDEXES: [(&str, &str); 3] = [("t_a", "a"), ("t_bc", "b, c"), ("t_c", "c")];
pub(crate) const CLIENTS: u64 = 3;
/// Rows of all clients: so few that a key has few, and is on few shards.
const IDS: u64 = 36;
/// Values of the first column, and of the second.
const AS: u64 = 24;
const BS: u64 = 4;

pub(crate) fn create_index(name: &str) -> String {
    let (_, columns) = INDEXES.iter().find(|(known, _)| *known == name).expect("one of them");
    format!("CREATE INDEX IF NOT EXISTS {name} ON {TABLE} ({columns}) WITH (global)")
}

/// What all tasks of a history tell it.
#[derive(Default)]
pub(crate) struct Told {
    /// The first thing that was not as it must be.
    pub(crate) wrong: Option<String>,
    pub(crate) seen: BTreeMap<String, u64>,
    /// Conditions that were compared, by indexes.
    pub(crate) compared: u64,
    /// Conditions that were compared while some index could not be asked.
    pub(crate) unled: u64,
    /// Statements of clients that were compared with what they know.
    pub(crate) known: u64,
    /// Clients and checkers that have done all they wanted in this life.
    pub(crate) ended: u64,
    /// What each client knows of its rows.
    own: BTreeMap<u64, Own>,
}

pub(crate) type Shared = Arc<Mutex<Told>>;

pub(crate) fn saw(told: &Shared, what: impl Into<String>) {
    *told.lock().unwrap().seen.entry(what.into()).or_default() += 1;
}

pub(crate) fn object(told: &Shared, why: String) {
    told.lock().unwrap().wrong.get_or_insert(why);
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    a: Option<u64>,
    b: Option<u64>,
    c: Option<bool>,
    n: i64,
}

type Rows = BTreeMap<i64, Row>;

/// The rows of one client, as far as it knows.
#[derive(Default, Clone)]
struct Own {
    rows: Rows,
    /// Nothing is under way, and nothing has ended without an answer.
    is_sure: bool,
}

fn a_text(a: Option<u64>) -> String {
    a.map_or("NULL".into(), |a| format!("'a{a:02}'"))
}

fn b_text(b: Option<u64>) -> String {
    b.map_or("NULL".into(), |b| b.to_string())
}

fn c_text(c: Option<bool>) -> &'static str {
    match c {
        Some(true) => "'x'",
        Some(false) => "'y'",
        None => "NULL",
    }
}

/// A row of `id, a, b, c, n`.
fn row(values: &[Value]) -> (i64, Row) {
    let [Value::Int(id), a, b, c, Value::Int(n)] = values else { panic!("no row: {values:?}") };
    let a = match a {
        Value::Text(a) => Some(a[1..].parse().unwrap()),
        _ => None,
    };
    let b = match b {
        Value::Int(b) => Some(*b as u64),
        _ => None,
    };
    let c = match c {
        Value::Text(c) => Some(&**c == "x"),
        _ => None,
    };
    (*id, Row { a, b, c, n: *n })
}

/// A condition that an index can lead by.
#[derive(Debug, Clone)]
enum Cond {
    A(u64),
    AIn([u64; 2]),
    AFrom(u64),
    ANull,
    B(u64),
    BNull,
    BBetween(u64, u64),
    /// Both columns.
    Bc(u64, Option<bool>),
    BcFrom(u64),
    C(Option<bool>),
    /// One index or the other.
    AOrB(u64, u64),
}

impl Cond {
    fn sql(&self) -> String {
        let a = |a: &u64| a_text(Some(*a));
        let c = |c: &Option<bool>| match c {
            None => "c IS NULL".into(),
            c => format!("c = {}", c_text(*c)),
        };
        match self {
            Cond::A(value) => format!("a = {}", a(value)),
            Cond::AIn([one, other]) => format!("a IN ({}, {})", a(one), a(other)),
            Cond::AFrom(from) => format!("a >= {}", a(from)),
            Cond::ANull => "a IS NULL".into(),
            Cond::B(b) => format!("b = {b}"),
            Cond::BNull => "b IS NULL".into(),
            Cond::BBetween(low, high) => format!("b BETWEEN {low} AND {high}"),
            Cond::Bc(b, value) => format!("b = {b} AND {}", c(value)),
            Cond::BcFrom(b) => format!("b = {b} AND c > 'x'"),
            Cond::C(value) => c(value),
            Cond::AOrB(value, b) => format!("(a = {} OR b = {b})", a(value)),
        }
    }

    fn holds(&self, row: &Row) -> bool {
        match self {
            Cond::A(a) => row.a == Some(*a),
            Cond::AIn(of) => row.a.is_some_and(|a| of.contains(&a)),
            Cond::AFrom(from) => row.a.is_some_and(|a| a >= *from),
            Cond::ANull => row.a.is_none(),
            Cond::B(b) => row.b == Some(*b),
            Cond::BNull => row.b.is_none(),
            Cond::BBetween(low, high) => row.b.is_some_and(|b| (*low..=*high).contains(&b)),
            Cond::Bc(b, c) => row.b == Some(*b) && row.c == *c,
            Cond::BcFrom(b) => row.b == Some(*b) && row.c == Some(false),
            Cond::C(c) => row.c == *c,
            Cond::AOrB(a, b) => row.a == Some(*a) || row.b == Some(*b),
        }
    }

    fn draw(rng: &mut Rng) -> Cond {
        let c = |rng: &mut Rng| *rng.pick(&[Some(true), Some(false), None]);
        let (a, b) = (rng.below(AS), rng.below(BS));
        match rng.below(14) {
            0..=5 => Cond::A(a),
            6 => Cond::AIn([a, rng.below(AS)]),
            7 => Cond::AFrom(AS - 3),
            8 => Cond::ANull,
            9 => Cond::B(b),
            10 => Cond::BBetween(b, b + 1),
            11 | 12 => Cond::Bc(b, c(rng)),
            _ => Cond::C(c(rng)),
        }
    }

    /// All that a checker asks for, in statements of some dozens.
    fn all() -> [Vec<Cond>; 2] {
        let mut all: Vec<Cond> = (0..AS).map(Cond::A).collect();
        all.extend((0..BS).flat_map(|b| [Cond::B(b), Cond::Bc(b, Some(true)), Cond::Bc(b, None), Cond::BcFrom(b)]));
        all.extend([None, Some(true), Some(false)].map(Cond::C));
        all.extend([Cond::AIn([1, 7]), Cond::AIn([5, 99]), Cond::AFrom(AS - 2), Cond::ANull, Cond::A(99)]);
        all.extend([Cond::BNull, Cond::BBetween(1, 2), Cond::AOrB(3, 1), Cond::AOrB(9, 99)]);
        let (even, odd): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(at, _)| at % 2 == 0);
        [even, odd].map(|half| half.into_iter().map(|(_, cond)| cond).collect())
    }
}

fn rows_of(rows: &Rows, cond: &Cond) -> Vec<i64> {
    rows.iter().filter(|(_, row)| cond.holds(row)).map(|(id, _)| *id).collect()
}

/// Runs one statement and tells how many rows it changed.
async fn tell(session: &mut Session, sql: &str) -> Result<u64, SqlError> {
    let prepared = session.prepare(sql, &[]).await?;
    match session.execute(&prepared, Vec::new()).await? {
        Answer::Done { tag } => Ok(tag.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)),
        _ => panic!("{sql} gives rows"),
    }
}

pub(crate) struct Client {
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) session: Session,
    pub(crate) told: Shared,
    pub(crate) rng: Rng,
    pub(crate) env: Arc<dyn Env>,
    /// How long it thinks at most between two transactions.
    pub(crate) thinks: Duration,
}

/// What one statement does to the rows of its client.
enum Step {
    Insert(Rows),
    Update(Vec<i64>, String, Change),
    Delete(Vec<i64>, String),
    Select(Cond),
}

/// What an update sets.
#[derive(Debug, Clone)]
enum Change {
    A(Option<u64>),
    B(Option<u64>),
    C(Option<bool>),
    Nothing,
}

impl Change {
    fn sql(&self) -> String {
        match self {
            Change::A(a) => format!("a = {}, n = n + 1", a_text(*a)),
            Change::B(b) => format!("b = {}, n = n + 1", b_text(*b)),
            Change::C(c) => format!("c = {}, n = n + 1", c_text(*c)),
            Change::Nothing => "n = n + 1".into(),
        }
    }

    fn apply(&self, row: &mut Row) {
        row.n += 1;
        match self {
            Change::A(a) => row.a = *a,
            Change::B(b) => row.b = *b,
            Change::C(c) => row.c = *c,
            Change::Nothing => {}
        }
    }
}

impl Client {
    pub(crate) async fn run(mut self, transactions: u64) {
        if self.learn().await {
            for _ in 0..transactions {
                if !self.transaction().await {
                    break;
                }
                let thinks = Duration::from_micros(self.rng.below(self.thinks.as_micros() as u64));
                self.env.sleep(thinks).await;
            }
        }
        self.told.lock().unwrap().ended += 1;
    }

    fn set_own(&self, rows: Rows, is_sure: bool) {
        self.told.lock().unwrap().own.insert(self.number, Own { rows, is_sure });
    }

    /// What is there of its rows at the beginning of a life: all that it was sure of (I-1).
    async fn learn(&mut self) -> bool {
        if let Some(sql) = self.kind.of_client(self.number) {
            ask(&mut self.session, &sql).await.expect("a session can be a tenant's");
        }
        let sql = format!("SELECT id, a, b, c, n FROM t WHERE (id % {CLIENTS} = {}) IS TRUE", self.number);
        let Ok(found) = ask(&mut self.session, &sql).await else { return false };
        let rows: Rows = found.iter().map(|values| row(values)).collect();
        let known = self.told.lock().unwrap().own.get(&self.number).cloned().unwrap_or_default();
        if known.is_sure && known.rows != rows {
            object(&self.told, format!("I-1: client {} has {rows:?}, and knew {:?}", self.number, known.rows));
        }
        self.set_own(rows, true);
        true
    }

    /// False: nobody knows what came of it, and so what its rows are.
    async fn transaction(&mut self) -> bool {
        let rows = self.told.lock().unwrap().own[&self.number].rows.clone();
        self.set_own(rows.clone(), false);
        let in_block = self.rng.chance(1, 3);
        let mut draft = rows.clone();
        match self.carry_out(&mut draft, in_block).await {
            Ok(()) => self.set_own(draft, true),
            Err(error) => {
                saw(&self.told, format!("error: {}", error.sqlstate));
                if error.sqlstate == "08007" {
                    return false;
                }
                // It may be in no transaction.
                let _ = ask(&mut self.session, "ROLLBACK").await;
                self.set_own(rows, true);
            }
        }
        true
    }

    async fn carry_out(&mut self, draft: &mut Rows, in_block: bool) -> Result<(), SqlError> {
        if !in_block {
            return self.step(draft).await;
        }
        ask(&mut self.session, "BEGIN").await?;
        for _ in 0..1 + self.rng.below(3) {
            self.step(draft).await?;
        }
        ask(&mut self.session, "COMMIT").await.map(drop)
    }

    fn draw_row(&mut self) -> Row {
        let rng = &mut self.rng;
        Row {
            a: rng.chance(11, 12).then(|| rng.below(AS)),
            b: rng.chance(5, 6).then(|| rng.below(BS)),
            c: *rng.pick(&[Some(true), Some(false), None, None]),
            n: 0,
        }
    }

    fn draw_change(&mut self) -> Change {
        let row = self.draw_row();
        match self.rng.below(5) {
            0 | 1 => Change::A(row.a),
            2 => Change::B(row.b),
            3 => Change::C(row.c),
            _ => Change::Nothing,
        }
    }

    /// Some of its rows, by id or by an index.
    fn draw_some(&mut self, rows: &Rows) -> (Vec<i64>, String) {
        if self.rng.chance(1, 2) {
            let id = (self.rng.below(IDS / CLIENTS) * CLIENTS + self.number) as i64;
            let found = rows.contains_key(&id).then_some(id).into_iter().collect();
            return (found, format!("id = {id}"));
        }
        let cond = Cond::draw(&mut self.rng);
        (rows_of(rows, &cond), format!("{} AND id % {CLIENTS} = {}", cond.sql(), self.number))
    }

    fn draw_step(&mut self, rows: &Rows) -> Step {
        let free: Vec<i64> = (0..IDS / CLIENTS)
            .map(|n| (n * CLIENTS + self.number) as i64)
            .filter(|id| !rows.contains_key(id))
            .collect();
        match self.rng.below(12) {
            0..=3 if !free.is_empty() => {
                let count = 1 + self.rng.below(3);
                Step::Insert((0..count).map(|_| (*self.rng.pick(&free), self.draw_row())).collect())
            }
            4 | 5 => Step::Select(Cond::draw(&mut self.rng)),
            6 | 7 => {
                let (found, which) = self.draw_some(rows);
                Step::Delete(found, which)
            }
            _ => {
                let (found, which) = self.draw_some(rows);
                Step::Update(found, which, self.draw_change())
            }
        }
    }

    async fn step(&mut self, draft: &mut Rows) -> Result<(), SqlError> {
        match self.draw_step(draft) {
            Step::Insert(rows) => {
                let values = |(id, row): (&i64, &Row)| {
                    format!("({id}, {}, {}, {}, 0)", a_text(row.a), b_text(row.b), c_text(row.c))
                };
                let values: Vec<String> = rows.iter().map(values).collect();
                tell(&mut self.session, &format!("INSERT INTO t VALUES {}", values.join(", "))).await?;
                draft.extend(rows);
            }
            Step::Update(found, which, change) => {
                let sql = format!("UPDATE t SET {} WHERE {which}", change.sql());
                self.expect(&sql, found.len()).await?;
                draft.iter_mut().filter(|(id, _)| found.contains(id)).for_each(|(_, row)| change.apply(row));
            }
            Step::Delete(found, which) => {
                self.expect(&format!("DELETE FROM t WHERE {which}"), found.len()).await?;
                draft.retain(|id, _| !found.contains(id));
            }
            Step::Select(cond) => {
                let sql =
                    format!("SELECT id, a, b, c, n FROM t WHERE {} AND id % {CLIENTS} = {}", cond.sql(), self.number);
                let found: Rows = ask(&mut self.session, &sql).await?.iter().map(|values| row(values)).collect();
                let known: Rows =
                    draft.iter().filter(|(_, row)| cond.holds(row)).map(|(id, row)| (*id, row.clone())).collect();
                self.told.lock().unwrap().known += 1;
                if found != known {
                    object(&self.told, format!("I-24: {sql} gives {found:?}, there is {known:?}"));
                }
            }
        }
        Ok(())
    }

    async fn expect(&mut self, sql: &str, count: usize) -> Result<(), SqlError> {
        let changed = tell(&mut self.session, sql).await?;
        self.told.lock().unwrap().known += 1;
        if changed != count as u64 {
            object(&self.told, format!("I-24: {sql} changes {changed} rows, there are {count}"));
        }
        Ok(())
    }
}

/// Where the statement's own scan is among its parts: before what the indexes lead to, or after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scan {
    First,
    Last,
}

/// All rows, and those of each condition, in one statement. Parts with a limit are asked for each on their own.
fn comparison(conds: &[Cond], scan: Scan) -> String {
    let part =
        |(at, cond): (usize, &Cond)| format!("(SELECT {at}, id, a, b, c, n FROM t WHERE {} LIMIT 1000)", cond.sql());
    let mut parts: Vec<String> = conds.iter().enumerate().map(part).collect();
    let all = "(SELECT -1, id, a, b, c, n FROM t WHERE (id >= 0) IS TRUE LIMIT 1000)".to_string();
    parts.insert(if scan == Scan::First { 0 } else { parts.len() }, all);
    united(&parts)
}

/// In halves: a chain of them would be nested too deep.
fn united(parts: &[String]) -> String {
    match parts {
        [one] => one.clone(),
        parts => {
            let (left, right) = parts.split_at(parts.len() / 2);
            format!("({} UNION ALL {})", united(left), united(right))
        }
    }
}

pub(crate) struct Checker {
    pub(crate) database: Arc<Database>,
    pub(crate) kind: Kind,
    pub(crate) session: Session,
    pub(crate) told: Shared,
    pub(crate) rng: Rng,
    pub(crate) env: Arc<dyn Env>,
    pub(crate) thinks: Duration,
}

impl Checker {
    pub(crate) async fn run(mut self, checks: u64) {
        for _ in 0..checks {
            let thinks = Duration::from_micros(self.rng.below(self.thinks.as_micros() as u64));
            self.env.sleep(thinks).await;
            let checked = match self.rng.chance(1, 8) {
                true => self.check_in_block().await,
                false => self.check().await,
            };
            if let Err(error) = checked {
                saw(&self.told, format!("checker: {}", error.sqlstate));
                let _ = ask(&mut self.session, "ROLLBACK").await;
            }
        }
        self.told.lock().unwrap().ended += 1;
    }

    /// From here on it sees all rows.
    async fn enter(&mut self) -> Result<(), SqlError> {
        match self.kind.of_checker() {
            Some(sql) => ask(&mut self.session, sql).await.map(drop),
            None => Ok(()),
        }
    }

    /// Whether all was led.
    pub(crate) async fn check(&mut self) -> Result<bool, SqlError> {
        let half = self.rng.below(2) as usize;
        let scan = *self.rng.pick(&[Scan::First, Scan::Last]);
        self.compare(&Cond::all()[half], scan).await
    }

    pub(crate) async fn check_all(&mut self) -> Result<bool, SqlError> {
        let [one, other] = Cond::all();
        Ok(self.compare(&one, Scan::First).await? & self.compare(&other, Scan::Last).await?)
    }

    async fn compare(&mut self, conds: &[Cond], scan: Scan) -> Result<bool, SqlError> {
        self.enter().await?;
        let fallbacks = self.database.index_work().fallbacks;
        let found = ask(&mut self.session, &comparison(conds, scan)).await?;
        let is_led = self.database.index_work().fallbacks == fallbacks;
        let mut parts: BTreeMap<i64, Vec<(i64, Row)>> = BTreeMap::new();
        for values in &found {
            let Value::Int(part) = values[0] else { panic!("no part: {values:?}") };
            parts.entry(part).or_default().push(row(&values[1..]));
        }
        let all: Rows = parts.remove(&-1).unwrap_or_default().into_iter().collect();
        for (at, cond) in conds.iter().enumerate() {
            self.judge(cond, parts.remove(&(at as i64)).unwrap_or_default(), &all);
        }
        self.count(conds.len() as u64, is_led);
        Ok(is_led)
    }

    fn judge(&self, cond: &Cond, mut found: Vec<(i64, Row)>, all: &Rows) {
        found.sort_by_key(|(id, _)| *id);
        let there: Vec<(i64, Row)> =
            all.iter().filter(|(_, row)| cond.holds(row)).map(|(id, row)| (*id, row.clone())).collect();
        if found != there {
            object(&self.told, format!("I-24: {}: an index leads to {found:?}, there is {there:?}", cond.sql()));
        }
    }

    fn count(&self, conditions: u64, is_led: bool) {
        let mut told = self.told.lock().unwrap();
        match is_led {
            true => told.compared += conditions,
            false => told.unled += conditions,
        }
    }

    /// The statements of a transaction are led, the second past shards that it has not been on; the third sees the same
    /// moment.
    async fn check_in_block(&mut self) -> Result<bool, SqlError> {
        let conds = [Cond::draw(&mut self.rng), Cond::draw(&mut self.rng)];
        self.enter().await?;
        ask(&mut self.session, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let fallbacks = self.database.index_work().fallbacks;
        let mut found = Vec::new();
        for cond in &conds {
            let sql = format!("SELECT id, a, b, c, n FROM t WHERE {}", cond.sql());
            found.push(ask(&mut self.session, &sql).await?);
        }
        let is_led = self.database.index_work().fallbacks == fallbacks;
        let all = ask(&mut self.session, "SELECT id, a, b, c, n FROM t WHERE (id >= 0) IS TRUE").await?;
        ask(&mut self.session, "COMMIT").await?;
        let all: Rows = all.iter().map(|values| row(values)).collect();
        for (cond, found) in conds.iter().zip(found) {
            self.judge(cond, found.iter().map(|values| row(values)).collect(), &all);
        }
        self.count(2, is_led);
        Ok(is_led)
    }

    /// A statement that compares is of many parts, and each of them but one is led.
    pub(crate) async fn explained(&mut self) -> Result<Vec<(usize, usize, usize)>, SqlError> {
        self.enter().await?;
        let mut counts = Vec::new();
        for (conds, scan) in Cond::all().iter().zip([Scan::First, Scan::Last]) {
            let shown = ask(&mut self.session, &format!("EXPLAIN {}", comparison(conds, scan))).await?;
            let lines = |what: &str| shown.iter().filter(|line| format!("{line:?}").contains(what)).count();
            counts.push((conds.len(), lines(", by index"), lines("Shards: all of ")));
        }
        Ok(counts)
    }
}
