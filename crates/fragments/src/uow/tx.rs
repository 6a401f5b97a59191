//! Attempts: a unit of work of a handler.

use super::apply::{Work, writes};
use super::{Mutation, Operation, Plan, Retrieval, Retrieved, retrieve};
use crate::adapter::{Access, Mode};
use crate::error::{Code, Error, Result, refused};
use crate::store::Handle;
use std::time::Duration;
use uuid::Uuid;

/// How often a unit of work is tried, and how long it waits in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempts {
    pub retries: u32,
    pub first_wait_ms: u64,
    pub longest_wait_ms: u64,
}

impl Default for Attempts {
    fn default() -> Attempts {
        Attempts { retries: 10, first_wait_ms: 5, longest_wait_ms: 200 }
    }
}

impl Attempts {
    /// Between half of the doubled wait and all of it, so that those who met do not meet again.
    pub(crate) fn wait(self, attempt: u32, random: u64) -> Duration {
        let most = self.first_wait_ms.saturating_mul(1 << attempt.min(16)).min(self.longest_wait_ms).max(1);
        Duration::from_millis(most / 2 + random % (most / 2 + 1))
    }
}

/// A unit of work of a handler. Its shard is that of the context in which it was made.
pub struct HandlerTx<T> {
    handle: Handle,
    access: Result<Access>,
    plan: Plan<T>,
    attempts: Option<Attempts>,
}

impl Handle {
    /// A unit of work in the shard of the caller.
    pub fn handler_tx(&self) -> HandlerTx<()> {
        HandlerTx { access: self.store.access(), handle: self.clone(), plan: Plan::new(), attempts: None }
    }

    /// A part of a unit of work, which a handler runs with others in one transaction.
    pub fn service_tx(&self) -> Plan<()> {
        Plan::new()
    }
}

impl<T: Send + 'static> HandlerTx<T> {
    pub fn retrieve(mut self, retrieve: impl FnMut(&mut Retrieval) -> Result<()> + Send + 'static) -> HandlerTx<T> {
        self.plan = self.plan.retrieve(retrieve);
        self
    }

    pub fn mutate<U: Send + 'static>(
        self,
        mutate: impl FnMut(&mut Mutation, &Retrieved<'_>) -> Result<U> + Send + 'static,
    ) -> HandlerTx<U> {
        let HandlerTx { handle, access, plan, attempts } = self;
        HandlerTx { handle, access, plan: plan.mutate(mutate), attempts }
    }

    /// Runs a service's part in the same transaction.
    pub fn with_service<U: Send + 'static>(self, service: Plan<U>) -> HandlerTx<(T, U)> {
        let HandlerTx { handle, access, plan, attempts } = self;
        HandlerTx { handle, access, plan: plan.and(service), attempts }
    }

    pub fn retry(mut self, attempts: Attempts) -> HandlerTx<T> {
        self.attempts = Some(attempts);
        self
    }

    /// Runs it: once, or until nobody was in its way.
    pub async fn execute(self) -> Result<T> {
        let HandlerTx { handle, access, mut plan, attempts } = self;
        let access = access?;
        handle.store.check_bound(&access).await?;
        // What reads nothing decides by nothing that could be different the next time.
        let reads = plan.reads();
        if !reads && attempts.is_some() {
            return Err(refused(Code::RetryPolicy, "a unit of work that reads nothing is not tried again"));
        }
        let attempts = attempts.unwrap_or_else(|| handle.attempts());
        let surroundings = handle.store.surroundings();
        let unit = surroundings.new_id();
        for attempt in 0.. {
            match attempt_once(&handle, &access, &mut plan, unit, attempt).await {
                Err(error) if may_retry(&error, reads, attempt) && attempt < attempts.retries => {
                    surroundings.sleep(attempts.wait(attempt, surroundings.random())).await;
                }
                done => return done,
            }
        }
        Err(Error::Conflict("tried too often".into()))
    }
}

/// A transaction that a database ended for its own reasons (a deadlock, a move) is repeated though it reads nothing.
const BLIND_RETRIES: u32 = 3;

fn may_retry(error: &Error, reads: bool, attempt: u32) -> bool {
    match error {
        Error::CheckFailed(_) => reads,
        Error::Conflict(_) => reads || attempt < BLIND_RETRIES,
        _ => false,
    }
}

async fn attempt_once<T: 'static>(
    handle: &Handle,
    access: &Access,
    plan: &mut Plan<T>,
    unit: Uuid,
    attempt: u32,
) -> Result<T> {
    let (store, fragment) = (&handle.store, &handle.fragment);
    let queries = plan.queries(fragment)?;
    let mut answers = Vec::new();
    if !queries.is_empty() {
        let mut tx = store.adapter().begin(access, Mode::Read).await?;
        answers = retrieve(&mut *tx, fragment, &queries).await?;
        tx.commit().await?;
    }
    let mutation = Mutation::new(store, fragment, unit, attempt);
    let (result, mutation) = plan.operations(mutation, &answers)?;
    if mutation.operations.is_empty() && mutation.triggers.is_empty() {
        return Ok(result);
    }
    if *access == Access::Global {
        return Err(refused(Code::GlobalScope, "the global scope writes to no shard")
            .with_hint("name the shard by `ShardContext::with`"));
    }
    // An entry has an id of its own attempt: one that may have happened is not taken for another.
    let entry = if attempt == 0 { unit } else { store.surroundings().new_id() };
    match writes(store, &mutation, entry)? {
        Some(writes) => {
            let publishes = writes.entry.is_some();
            store.adapter().write(access, writes).await?;
            store.tell(access.owner(), publishes, !mutation.triggers.is_empty());
        }
        None => step_by_step(handle, access, &mutation, entry).await?,
    }
    Ok(result)
}

/// Writes what has to look first.
async fn step_by_step(handle: &Handle, access: &Access, mutation: &Mutation, entry: Uuid) -> Result<()> {
    let (store, fragment) = (&handle.store, &handle.fragment);
    let publishes = mutation.operations.iter().any(|operation| match operation {
        Operation::Create { table, .. } | Operation::Update { table, .. } | Operation::Delete { table, .. } => {
            fragment.publishes(&table.name)
        }
        _ => false,
    });
    let tx = store.adapter().begin(access, Mode::Write).await?;
    let mut work = Work::begin(store, tx, access.clone(), entry, publishes).await?;
    if let Err(error) = work.apply(mutation).await {
        work.tx.roll_back().await;
        return Err(error);
    }
    work.finish(None).await
}
