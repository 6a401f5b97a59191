//! Clients that append to lists and read them, in every way that a shard can be asked, and write down what they saw.

use crate::harness::{claim_all, error_name};
use isles_engine::env::Env;
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::{Access, Claim};
use isles_engine::shard::{Begin, KeyRange, Limits, Request, Shard, Statement};
use isles_engine::sqlite::SqliteShard;
use isles_kernel::change::Change;
use isles_kernel::value::{DataType, Value};
use isles_sim::check::{Element, History, Key, Op, Outcome, Txn};
use isles_sim::exec::SimEnv;
use isles_sim::rng::Rng;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Lists that the clients share; each is in the bucket of its number.
pub(crate) const LISTS: u64 = 4;
/// Operations of a transaction.
const OPS_MAX: u64 = 4;

/// A fence that was set, and where the log stood before and after.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FenceSet {
    pub(crate) bucket: u64,
    pub(crate) version: u64,
    pub(crate) lets_writes_in: bool,
    pub(crate) seq_before: u64,
    /// None: nobody heard whether it was set.
    pub(crate) seq_after: Option<u64>,
}

/// What all clients of a history have seen. It outlives them and the shard.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) history: History,
    /// Points of the clock that all clients share.
    clock: u64,
    next_element: u64,
    /// What the newest router would route with.
    pub(crate) routing_version: u64,
    pub(crate) fences: Vec<FenceSet>,
    /// What the consumer has read of the log.
    pub(crate) log_copy: Vec<Change>,
    /// Clients of the present life that have ended.
    pub(crate) ended: u64,
}

impl Record {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// Which faults of its own a client causes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manners {
    /// Gives some requests very little time.
    pub(crate) is_hasty: bool,
    /// Cancels some requests.
    pub(crate) is_fickle: bool,
    /// Goes on using an old routing version.
    pub(crate) is_stale: bool,
}

pub(crate) struct Client {
    pub(crate) number: u64,
    pub(crate) shard: SqliteShard,
    pub(crate) env: Arc<SimEnv>,
    pub(crate) record: Arc<Mutex<Record>>,
    pub(crate) rng: Rng,
    pub(crate) manners: Manners,
    pub(crate) routing_version: u64,
}

/// An operation that is planned, before its answer is known.
#[derive(Clone, Copy)]
enum Wish {
    Append(u64, u64),
    Read(u64),
}

impl Wish {
    fn list(self) -> u64 {
        match self {
            Wish::Append(list, _) | Wish::Read(list) => list,
        }
    }

    fn statements(self, claimed: u64) -> Vec<Statement> {
        let int = |n: u64| Value::Int(n as i64);
        match self {
            Wish::Append(list, element) => {
                let append = "INSERT INTO lists (_bucket, id, elements) VALUES ($1, $1, $2)
                              ON CONFLICT DO UPDATE SET elements = elements || ',' || excluded.elements";
                let claims = "INSERT INTO elements (_bucket, id, list, claimed) VALUES ($1, $2, $1, $3)";
                vec![
                    Statement::new(append, vec![int(list), Value::text(element.to_string())]),
                    Statement::new(claims, vec![int(list), int(element), int(claimed)]),
                ]
            }
            Wish::Read(list) => {
                let sql = "SELECT elements FROM lists WHERE id = $1";
                vec![Statement::new(sql, vec![int(list)]).returning([DataType::Text])]
            }
        }
    }
}

/// A list as it stands in its row.
pub(crate) fn parse(elements: &str) -> Vec<Element> {
    elements.split(',').map(|element| Element(element.parse().expect("a list of numbers"))).collect()
}

fn read_answer(rows: &[Vec<Value>]) -> Option<Vec<Element>> {
    match rows {
        [] => Some(vec![]),
        [row] => match row.as_slice() {
            [Value::Text(elements)] => Some(parse(elements)),
            other => panic!("no list: {other:?}"),
        },
        more => panic!("{} rows have one key", more.len()),
    }
}

/// How a transaction is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    OneShotWrite,
    OneShotRead,
    Interactive,
    RolledBack,
    ReadOnly,
    Snapshot,
}

impl Client {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("no client has panicked")
    }

    /// Sends transactions until it has sent enough or the shard has stopped.
    pub(crate) async fn run(mut self, txns: u64) {
        for _ in 0..txns {
            let pause = Duration::from_micros(self.rng.below(400));
            self.env.sleep(pause).await;
            if !self.transact().await {
                break;
            }
        }
        self.record().ended += 1;
    }

    /// One transaction. False if the shard has stopped.
    async fn transact(&mut self) -> bool {
        let sending = *self.rng.pick(&[
            Sending::OneShotWrite,
            Sending::OneShotWrite,
            Sending::OneShotWrite,
            Sending::OneShotRead,
            Sending::OneShotRead,
            Sending::Interactive,
            Sending::RolledBack,
            Sending::ReadOnly,
            Sending::Snapshot,
        ]);
        let wishes = self.wishes(sending);
        let index = self.invoke();
        let mut ops = Vec::new();
        let result = self.send(sending, &wishes, &mut ops).await;
        self.complete(index, ops, sending, &result);
        if let Err(error) = &result {
            self.env.saw(&format!("error: {}", error_name(error)));
        }
        match result {
            Err(ShardError::Moved { .. }) => self.learn(),
            Err(ShardError::Stopped(_) | ShardError::MayHaveHappened(_) | ShardError::Unavailable(_)) => return false,
            _ => {}
        }
        true
    }

    fn learn(&mut self) {
        if !self.manners.is_stale || self.rng.chance(1, 3) {
            let newest = self.record().routing_version;
            self.routing_version = newest;
        }
    }

    fn wishes(&mut self, sending: Sending) -> Vec<Wish> {
        let reads_only = matches!(sending, Sending::OneShotRead | Sending::ReadOnly | Sending::Snapshot);
        let count = 1 + self.rng.below(OPS_MAX);
        (0..count)
            .map(|_| {
                let list = self.rng.below(LISTS);
                if reads_only || self.rng.chance(1, 3) {
                    return Wish::Read(list);
                }
                let mut record = self.record();
                record.next_element += 1;
                Wish::Append(list, record.next_element)
            })
            .collect()
    }

    /// Writes down that a transaction is on its way: a client that dies has nothing more to say about it.
    fn invoke(&self) -> usize {
        let mut record = self.record();
        let invoked_at = record.tick();
        let txn =
            Txn { process: self.number, invoked_at, completed_at: None, ops: vec![], outcome: Outcome::Indeterminate };
        record.history.txns.push(txn);
        record.history.txns.len() - 1
    }

    fn complete(&self, index: usize, ops: Vec<Op>, sending: Sending, result: &Result<()>) {
        let outcome = match result {
            Ok(()) if sending == Sending::RolledBack => Outcome::Aborted,
            Ok(()) => Outcome::Committed,
            Err(ShardError::MayHaveHappened(_)) => Outcome::Indeterminate,
            Err(_) => Outcome::Aborted,
        };
        self.env.trace(format!("client {}: {sending:?} {outcome:?} {ops:?}", self.number));
        let mut record = self.record();
        let now = record.tick();
        let txn = &mut record.history.txns[index];
        (txn.completed_at, txn.ops, txn.outcome) = (Some(now), ops, outcome);
    }

    /// Writes down what a transaction is about to do. If its client dies, that is all that is known.
    fn plan(&self, wishes: &[Wish]) {
        let mut record = self.record();
        let txn =
            record.history.txns.iter_mut().rev().find(|txn| txn.process == self.number && txn.completed_at.is_none());
        txn.expect("invoked").ops = wishes.iter().map(|wish| unanswered(*wish)).collect();
    }

    async fn send(&mut self, sending: Sending, wishes: &[Wish], ops: &mut Vec<Op>) -> Result<()> {
        let claim = claim_all(self.routing_version, wishes.iter().map(|wish| wish.list() as u32));
        let limits = self.limits();
        self.plan(wishes);
        match sending {
            Sending::OneShotWrite => self.one_shot(Access::Write, claim, limits, wishes, ops).await,
            Sending::OneShotRead => self.one_shot(Access::Read, claim, limits, wishes, ops).await,
            Sending::Interactive | Sending::RolledBack => {
                self.interact(Access::Write, sending, claim, limits, wishes, ops).await
            }
            Sending::ReadOnly => self.interact(Access::Read, sending, claim, limits, wishes, ops).await,
            Sending::Snapshot => self.snapshot(ops).await,
        }
    }

    fn limits(&mut self) -> Limits {
        let mut limits = Limits::default();
        if self.manners.is_hasty && self.rng.chance(1, 3) {
            limits.time = Duration::from_micros(self.rng.below(300));
        }
        if self.manners.is_fickle && self.rng.chance(1, 3) {
            let (token, pause) = (limits.cancel.clone(), Duration::from_micros(self.rng.below(200)));
            let sleep = self.env.sleep(pause);
            self.env.spawn_named(
                "cancel",
                Box::pin(async move {
                    sleep.await;
                    token.cancel();
                }),
            );
        }
        limits
    }

    async fn one_shot(
        &self,
        access: Access,
        claim: Claim,
        limits: Limits,
        wishes: &[Wish],
        ops: &mut Vec<Op>,
    ) -> Result<()> {
        let claimed = self.routing_version;
        let statements = wishes.iter().flat_map(|wish| wish.statements(claimed)).collect();
        let answer = self.shard.execute(Request { access, limits, ..Request::write(claim, statements) }).await;
        let mut outcomes = answer.as_ref().map_or(&[][..], Vec::as_slice).iter();
        for wish in wishes {
            let rows = wish.statements(claimed).iter().filter_map(|_| outcomes.next()).last().map(|o| &o.rows);
            ops.push(answered(*wish, rows.and_then(|rows| read_answer(rows))));
        }
        answer.map(drop)
    }

    async fn interact(
        &mut self,
        access: Access,
        sending: Sending,
        claim: Claim,
        limits: Limits,
        wishes: &[Wish],
        ops: &mut Vec<Op>,
    ) -> Result<()> {
        let begin = Begin { limits, ..Begin::new(claim, access) };
        let mut transaction = self.shard.begin(begin).await?;
        for wish in wishes {
            let at = ops.len();
            ops.push(unanswered(*wish));
            let mut rows = Vec::new();
            for statement in wish.statements(self.routing_version) {
                rows = transaction.execute(&statement).await?.rows;
            }
            ops[at] = answered(*wish, read_answer_of(*wish, &rows));
            let pause = Duration::from_micros(self.rng.below(200));
            self.env.sleep(pause).await;
        }
        if sending == Sending::RolledBack { transaction.rollback().await } else { transaction.commit().await }
    }

    async fn snapshot(&self, ops: &mut Vec<Op>) -> Result<()> {
        let mut snapshot = self.shard.snapshot().await?;
        let mut lists = vec![vec![]; LISTS as usize];
        let mut range = KeyRange::table("lists");
        loop {
            let page = snapshot.page(&range, 2).await?;
            for row in &page.rows {
                let [Value::Int(list), Value::Text(elements)] = row.values.as_slice() else {
                    panic!("no list: {row:?}")
                };
                lists[*list as usize] = parse(elements);
            }
            match page.next {
                Some(next) => range.after = Some(next),
                None => break,
            }
        }
        ops.extend((0..).map(Key).zip(lists).map(|(key, elements)| Op::Read { key, elements: Some(elements) }));
        Ok(())
    }
}

fn read_answer_of(wish: Wish, rows: &[Vec<Value>]) -> Option<Vec<Element>> {
    match wish {
        Wish::Read(_) => read_answer(rows),
        Wish::Append(..) => None,
    }
}

fn unanswered(wish: Wish) -> Op {
    answered(wish, None)
}

fn answered(wish: Wish, elements: Option<Vec<Element>>) -> Op {
    match wish {
        Wish::Append(list, element) => Op::Append { key: Key(list), element: Element(element) },
        Wish::Read(list) => Op::Read { key: Key(list), elements },
    }
}
