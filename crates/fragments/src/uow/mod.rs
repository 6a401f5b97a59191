//! Units of work: what is read, what is written, all of it or nothing.
//!
//! ```text
//! retrieve: finds of all parts, one snapshot ─► mutate: operations of all parts ─► one transaction
//!      ▲                                                                               │
//!      └─────────────── a version was not what was read: again, in the same shard ◄────┘
//! ```
//!
//! A [`Plan`] says what is to be done, and is run by whoever has a transaction for it: a handler, with retries, or sync,
//! which applies many in one. Its functions are called once for each attempt, so they keep nothing of the last one.
//!
//! The shard is captured when the unit of work is made, and stays through retries, hooks and the outbox entry.
//!
//! Invariants (docs/invariants.md):
//!   * I-2   rows, hooks and the outbox entry of a unit of work are all there or all absent
//!   * a check holds at the commit: writers of a shard take turns, and each looks after it has its turn
//!
//! In reading order:
//!   * this file   plans, retrievals, mutations
//!   * [`apply`]   operations, carried out
//!   * [`tx`]      attempts

pub(crate) mod apply;
mod tx;

pub use tx::{Attempts, HandlerTx};

use crate::adapter::Transaction;
use crate::error::{Code, Result, refused};
use crate::hooks::Trigger;
use crate::query::{self, Find, Found, Page, RowId};
use crate::schema::{MAX_ID, Table};
use crate::store::{Fragment, Store};
use crate::surroundings::Surroundings;
use crate::values::Values;
use isles_kernel::value::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use uuid::Uuid;

/// Operations of one unit of work: they are one transaction, and one entry of the outbox.
pub const MAX_OPERATIONS: usize = 10_000;
/// Finds of one unit of work: each is a statement or more.
pub const MAX_FINDS: usize = 100;

type RetrieveFn = Box<dyn FnMut(&mut Retrieval) -> Result<()> + Send>;
type MutateFn<T> = Box<dyn FnMut(&mut Mutation, &Retrieved<'_>) -> Result<T> + Send>;

/// What is to be done, and not yet done.
pub struct Plan<T> {
    retrieve: Option<RetrieveFn>,
    mutate: MutateFn<T>,
}

impl Default for Plan<()> {
    fn default() -> Plan<()> {
        Plan::new()
    }
}

impl Plan<()> {
    pub fn new() -> Plan<()> {
        Plan { retrieve: None, mutate: Box::new(|_, _| Ok(())) }
    }
}

impl<T: 'static> Plan<T> {
    /// What is read first.
    pub fn retrieve(mut self, retrieve: impl FnMut(&mut Retrieval) -> Result<()> + Send + 'static) -> Plan<T> {
        self.retrieve = Some(Box::new(retrieve));
        self
    }

    /// What is written, by what was read; the result is the plan's.
    pub fn mutate<U>(self, mutate: impl FnMut(&mut Mutation, &Retrieved<'_>) -> Result<U> + Send + 'static) -> Plan<U> {
        Plan { retrieve: self.retrieve, mutate: Box::new(mutate) }
    }

    /// Both, in one transaction: finds of both are read together, and this one writes first.
    pub fn and<U: 'static>(self, other: Plan<U>) -> Plan<(T, U)> {
        let border = Arc::new(AtomicUsize::new(0));
        let (mut first, mut second) = (self, other);
        let (first_mutate, second_mutate) = (
            std::mem::replace(&mut first.mutate, Box::new(|_, _| Err(gone()))),
            std::mem::replace(&mut second.mutate, Box::new(|_, _| Err(gone()))),
        );
        let (mut first_mutate, mut second_mutate) = (first_mutate, second_mutate);
        let reads = first.retrieve.is_some() || second.retrieve.is_some();
        let at = border.clone();
        let retrieve = move |retrieval: &mut Retrieval| {
            let begin = retrieval.base;
            if let Some(retrieve) = &mut first.retrieve {
                retrieve(retrieval)?;
            }
            retrieval.base = retrieval.queries.len();
            at.store(retrieval.base - begin, Ordering::Relaxed);
            if let Some(retrieve) = &mut second.retrieve {
                retrieve(retrieval)?;
            }
            retrieval.base = begin;
            Ok(())
        };
        let mutate = move |mutation: &mut Mutation, found: &Retrieved<'_>| {
            let (left, right) = found.answers.split_at(border.load(Ordering::Relaxed).min(found.answers.len()));
            let first = first_mutate(mutation, &Retrieved { answers: left })?;
            let second = second_mutate(mutation, &Retrieved { answers: right })?;
            Ok((first, second))
        };
        Plan { retrieve: reads.then(|| Box::new(retrieve) as RetrieveFn), mutate: Box::new(mutate) }
    }

    pub fn map<U: 'static>(mut self, mut with: impl FnMut(T) -> U + Send + 'static) -> Plan<U> {
        let mut mutate = std::mem::replace(&mut self.mutate, Box::new(|_, _| Err(gone())));
        self.mutate(move |mutation, found| mutate(mutation, found).map(&mut with))
    }

    pub(crate) fn reads(&self) -> bool {
        self.retrieve.is_some()
    }

    /// What is to be read.
    pub(crate) fn queries(&mut self, fragment: &Arc<Fragment>) -> Result<Vec<Query>> {
        let mut retrieval = Retrieval { fragment: fragment.clone(), queries: Vec::new(), base: 0 };
        if let Some(retrieve) = &mut self.retrieve {
            retrieve(&mut retrieval)?;
        }
        Ok(retrieval.queries)
    }

    /// What is to be written.
    pub(crate) fn operations(&mut self, mut mutation: Mutation, answers: &[Outcome]) -> Result<(T, Mutation)> {
        let result = (self.mutate)(&mut mutation, &Retrieved { answers })?;
        Ok((result, mutation))
    }
}

fn gone() -> crate::error::Error {
    refused(Code::InvalidRequest, "the plan is part of another one")
}

/// A find, or the number of its rows.
pub(crate) enum Query {
    Rows(Find),
    Count(Find),
}

/// What is read, as it is being said.
pub struct Retrieval {
    fragment: Arc<Fragment>,
    queries: Vec<Query>,
    /// Where this part begins.
    base: usize,
}

impl Retrieval {
    /// Reads rows; the number under which [`Retrieved`] has them.
    pub fn find(&mut self, find: Find) -> Result<usize> {
        find.check(&self.fragment.schema)?;
        self.add(Query::Rows(find))
    }

    /// Counts rows.
    pub fn count(&mut self, find: Find) -> Result<usize> {
        find.check(&self.fragment.schema)?;
        self.add(Query::Count(find))
    }

    fn add(&mut self, query: Query) -> Result<usize> {
        if self.queries.len() >= MAX_FINDS {
            return Err(refused(Code::InvalidQuery, format!("a unit of work has at most {MAX_FINDS} finds")));
        }
        self.queries.push(query);
        Ok(self.queries.len() - 1 - self.base)
    }
}

pub(crate) enum Outcome {
    Page(Page),
    Count(u64),
}

/// Runs what a plan reads.
pub(crate) async fn retrieve(tx: &mut dyn Transaction, fragment: &Fragment, queries: &[Query]) -> Result<Vec<Outcome>> {
    let mut answers = Vec::with_capacity(queries.len());
    for query in queries {
        answers.push(match query {
            Query::Rows(find) => Outcome::Page(query::run(tx, &fragment.schema, find).await?),
            Query::Count(find) => Outcome::Count(query::count(tx, &fragment.schema, find).await?),
        });
    }
    Ok(answers)
}

/// What was read, by the numbers that [`Retrieval::find`] gave: 0, 1, …
pub struct Retrieved<'a> {
    answers: &'a [Outcome],
}

impl Retrieved<'_> {
    pub fn rows(&self, find: usize) -> &[Found] {
        match self.answers.get(find) {
            Some(Outcome::Page(page)) => &page.rows,
            _ => &[],
        }
    }

    pub fn first(&self, find: usize) -> Option<&Found> {
        self.rows(find).first()
    }

    /// The rows of a page, and the cursor behind it.
    pub fn page(&self, find: usize) -> Page {
        match self.answers.get(find) {
            Some(Outcome::Page(page)) => page.clone(),
            _ => Page::default(),
        }
    }

    pub fn count(&self, find: usize) -> u64 {
        match self.answers.get(find) {
            Some(Outcome::Count(count)) => *count,
            Some(Outcome::Page(page)) => page.rows.len() as u64,
            None => 0,
        }
    }
}

/// One operation.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Create { table: Arc<Table>, id: String, values: Values },
    Update { table: Arc<Table>, id: String, expected: Option<RowId>, set: Values },
    Delete { table: Arc<Table>, id: String, expected: Option<RowId> },
    Check { table: Arc<Table>, expected: RowId },
    CheckAbsent { table: Arc<Table>, key: Vec<(String, Value)> },
}

/// What is written, as it is being said.
pub struct Mutation {
    pub(crate) fragment: Arc<Fragment>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) triggers: Vec<Trigger>,
    unit: Uuid,
    attempt: u32,
    now: Value,
    surroundings: Surroundings,
}

impl Mutation {
    pub(crate) fn new(store: &Store, fragment: &Arc<Fragment>, unit: Uuid, attempt: u32) -> Mutation {
        let now = crate::values::timestamp_ms(store.now_ms());
        let (operations, triggers, surroundings) = (Vec::new(), Vec::new(), store.surroundings().clone());
        Mutation { fragment: fragment.clone(), operations, triggers, unit, attempt, now, surroundings }
    }

    /// The same for every attempt of a unit of work.
    pub fn idempotency_key(&self) -> Uuid {
        self.unit
    }

    /// From 0.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    fn table(&self, table: &str) -> Result<Arc<Table>> {
        self.fragment.schema.table(table).cloned()
    }

    fn add(&mut self, operation: Operation) -> Result<()> {
        if self.operations.len() >= MAX_OPERATIONS {
            return Err(refused(Code::TooLarge, format!("a unit of work has at most {MAX_OPERATIONS} operations")));
        }
        self.operations.push(operation);
        Ok(())
    }

    /// Makes a row with a new id; the id.
    pub fn create(&mut self, table: &str, values: Values) -> Result<String> {
        let id = self.surroundings.new_id().simple().to_string();
        self.create_with_id(table, &id, values)?;
        Ok(id)
    }

    pub fn create_with_id(&mut self, table: &str, id: &str, values: Values) -> Result<()> {
        let table = self.table(table)?;
        check_id(id)?;
        let values = table.complete(values, &self.now)?;
        self.add(Operation::Create { table, id: id.into(), values })
    }

    /// Changes a row, whatever its version. If there is none, nothing happens, and nothing is published.
    pub fn update(&mut self, table: &str, id: &str, set: Values) -> Result<()> {
        self.update_row(table, id.into(), None, set)
    }

    /// Changes a row that is as it was read; otherwise the unit of work is tried again.
    pub fn update_checked(&mut self, table: &str, row: &RowId, set: Values) -> Result<()> {
        self.update_row(table, row.external.clone(), Some(row.clone()), set)
    }

    fn update_row(&mut self, table: &str, id: String, expected: Option<RowId>, set: Values) -> Result<()> {
        let table = self.table(table)?;
        check_id(&id)?;
        table.check_set(&set)?;
        self.add(Operation::Update { table, id, expected, set })
    }

    pub fn delete(&mut self, table: &str, id: &str) -> Result<()> {
        let table = self.table(table)?;
        check_id(id)?;
        self.add(Operation::Delete { table, id: id.into(), expected: None })
    }

    pub fn delete_checked(&mut self, table: &str, row: &RowId) -> Result<()> {
        let table = self.table(table)?;
        self.add(Operation::Delete { table, id: row.external.clone(), expected: Some(row.clone()) })
    }

    /// A row must be as it was read when this is committed.
    pub fn check(&mut self, table: &str, row: &RowId) -> Result<()> {
        let table = self.table(table)?;
        self.add(Operation::Check { table, expected: row.clone() })
    }

    /// No row may have this key of a unique index when this is committed.
    pub fn check_absent(&mut self, table: &str, index: &str, key: &[(&str, Value)]) -> Result<()> {
        let table = self.table(table)?;
        let columns = table.index_columns(index)?;
        let unique = index == crate::schema::PRIMARY || table.index(index)?.unique;
        let given = |column: &String| key.iter().any(|(name, value)| name == column && !value.is_null());
        if !unique || !columns.iter().all(given) || key.len() != columns.len() {
            return Err(refused(Code::InvalidQuery, format!("\"{index}\" is not a unique index with this key")));
        }
        let key = key.iter().map(|(name, value)| ((*name).to_string(), value.clone())).collect();
        self.add(Operation::CheckAbsent { table, key })
    }

    /// Triggers a hook of the fragment: it runs after this is committed, in this shard.
    pub fn trigger(&mut self, hook: &str, payload: &serde_json::Value) -> Result<()> {
        self.trigger_with(Trigger::new(hook, payload))
    }

    pub fn trigger_with(&mut self, trigger: Trigger) -> Result<()> {
        trigger.check(&self.fragment)?;
        if self.triggers.len() >= MAX_OPERATIONS {
            return Err(refused(Code::TooLarge, format!("a unit of work has at most {MAX_OPERATIONS} hooks")));
        }
        self.triggers.push(trigger);
        Ok(())
    }
}

fn check_id(id: &str) -> Result<()> {
    let chars = id.chars().count();
    match (1..=MAX_ID).contains(&chars) && !id.contains('\0') {
        true => Ok(()),
        false => Err(refused(Code::InvalidValue, format!("an id has 1 to {MAX_ID} characters"))),
    }
}
