//! All of it, open.
//!
//! An [`Engine`] belongs to one process. It executes the runs of the types that are registered with code, lets workers of
//! other languages execute the rest, keeps the index, and answers those who manage runs.

use crate::error::{Code, Result, WorkflowError, bad_name};
use crate::execute::{Journal, execute};
use crate::index::follow;
use crate::index::list::Filter;
use crate::lease::{Claimed, Lease};
use crate::lines::{Lines, params, say};
use crate::lock;
use crate::registry::{Definition, Options, Registry};
use crate::runs::{Create, Run, Step, Update};
use crate::store::{Created, FirstExecutor, NewRun};
use crate::{tables, worker};
use isles_cluster::database::Database;
use isles_cluster::session::Session;
use isles_engine::env::Env;
use isles_kernel::names::ShardId;
use isles_kernel::runs::names::RunKey;
use isles_kernel::runs::places::Spread;
use isles_kernel::runs::status::{Control, Status};
use isles_kernel::value::Value;
use serde::Serialize;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast};

/// How often somebody who waits for a run looks at it, should nobody tell.
const WAIT_LOOK: Duration = Duration::from_secs(1);
/// Updates that a listener may be behind.
const LIVE_UPDATES: usize = 256;
/// How often what is left of runs that were deleted, and runs past their retention, are looked for.
const SWEEP: Duration = Duration::from_secs(60);
/// Runs that are deleted between two pauses of a sweep, and how long these are: clients are served meanwhile, and some
/// thousand runs go each second.
const SWEPT_AT_ONCE: i64 = 500;
const SWEEP_PAUSE: Duration = Duration::from_millis(50);
/// How long a run that was deleted makes late writers lose. No executor lives that long without a beat.
const KEEP_DELETED_MS: i64 = 24 * 3_600_000;

/// Runs that are taken over at the same time: they share the flushes of their shards.
const TAKEN_AT_ONCE: usize = 64;

/// Transactions of steps at the same time. Each holds a connection to every shard that it has come to; as many as a shard
/// has connections would wait for each other.
const TRANSACTIONS: usize = 8;

/// A bug to have, for tests that show that the harness finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// A timer is gone before what it stands for is done.
    TimerDeletedBeforeEffect,
    /// An executor that wakes late writes as if the run were still its own.
    LateExecutorNotFenced,
    /// A step that takes longer than its lease is taken for dead.
    LeaseNotRenewed,
}

/// How an engine works.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// How long an executor may say nothing before it is taken for dead.
    pub lease: Duration,
    /// Runs that are executed at the same time.
    pub concurrency: usize,
    /// Whether the runs of an earlier life of this process are taken over at once, and not when their leases end. Right
    /// where one process executes the runs of a database.
    pub takes_over: bool,
    /// Whether runs are executed here; if not, they are only created and managed.
    pub executes: bool,
    pub planted: Option<Planted>,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            lease: Duration::from_secs(10),
            concurrency: 1_000,
            takes_over: true,
            executes: true,
            planted: None,
        }
    }
}

/// A run that is waited for.
#[derive(Default)]
struct Waited {
    waiters: usize,
    told: Arc<Notify>,
}

/// What one process has open.
pub(crate) struct Engine {
    pub(crate) lines: Arc<Lines>,
    pub(crate) options: EngineOptions,
    /// Tells the lives of processes apart.
    pub(crate) executor: String,
    types: Mutex<BTreeMap<String, Arc<Definition>>>,
    /// How the entries of each type are spread, by the record: several processes go by one, whatever each has registered.
    spreads: Mutex<BTreeMap<String, Spread>>,
    /// Bytes of results that runs have which workers execute, by the token of the claim.
    pub(crate) sizes: Mutex<BTreeMap<String, (i64, u64)>>,
    /// Runs that are executed here.
    pub(crate) taken: Mutex<BTreeSet<String>>,
    ready: Mutex<VecDeque<String>>,
    news: Arc<Notify>,
    /// For workers of other languages.
    remote_news: Arc<Notify>,
    /// Of which moment the index is, by each shard whose log is followed.
    index_is_of: Mutex<BTreeMap<ShardId, i64>>,
    /// Something was written that the index may have to know.
    pub(crate) written: Arc<Notify>,
    permits: Arc<Semaphore>,
    pub(crate) transactions: Semaphore,
    waiting: Mutex<BTreeMap<String, Waited>>,
    live: Mutex<BTreeMap<String, broadcast::Sender<Update>>>,
    closed: AtomicBool,
    closing: Notify,
}

impl Engine {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Resolves when the engine is closed.
    pub(crate) async fn closed(&self) {
        let mut told = std::pin::pin!(self.closing.notified());
        told.as_mut().enable();
        if !self.is_closed() {
            told.await;
        }
    }

    pub(crate) fn came(&self) -> OwnedNotified {
        self.news.clone().notified_owned()
    }

    pub(crate) fn next_ready(&self) -> Option<String> {
        lock(&self.ready).pop_front()
    }

    /// A run is due now.
    fn is_due(&self, run: &str) {
        // Where nothing is executed nobody takes it from the queue; whoever executes it looks.
        let is_remote = RunKey::parse(run)
            .and_then(|key| self.definition(key.kind()).ok())
            .is_none_or(|definition| definition.is_remote());
        if is_remote {
            self.remote_news.notify_waiters();
            return;
        }
        if self.options.executes {
            lock(&self.ready).push_back(run.into());
            self.news.notify_one();
        }
    }

    /// Resolves when a run of another language may be due.
    pub(crate) fn remote_came(&self) -> OwnedNotified {
        self.remote_news.clone().notified_owned()
    }

    /// Somebody wanted a run while it was being let go.
    pub(crate) fn wake_if_due(&self, run: &str) {
        if lock(&self.ready).iter().any(|ready| ready == run) {
            self.news.notify_one();
        }
    }

    pub(crate) fn saw_write(&self) {
        self.written.notify_waiters();
    }

    /// The index has whatever a shard has committed before a moment.
    pub(crate) fn is_of(&self, shard: &ShardId, moment: i64) {
        lock(&self.index_is_of).insert(shard.clone(), moment);
    }

    /// The moment before which the index has everything; None if a shard is not followed yet.
    pub(crate) fn index_is_of(&self) -> Option<i64> {
        let (of, shards) = (lock(&self.index_is_of), self.lines.database().shard_names());
        shards.iter().map(|shard| of.get(shard).copied()).min().flatten()
    }

    pub(crate) async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().acquire_owned().await.ok()
    }

    pub(crate) fn definition(&self, kind: &str) -> Result<Arc<Definition>> {
        lock(&self.types).get(kind).cloned().ok_or_else(|| WorkflowError::unknown_type(kind))
    }

    pub(crate) fn definitions(&self) -> Vec<Arc<Definition>> {
        lock(&self.types).values().cloned().collect()
    }

    /// Types whose code is here.
    pub(crate) fn local_kinds(&self) -> Vec<String> {
        lock(&self.types).values().filter(|one| !one.is_remote()).map(|one| one.kind.clone()).collect()
    }

    /// How the entries of a type are spread, by the record.
    pub(crate) fn spread(&self, kind: &str) -> Result<Spread> {
        lock(&self.spreads).get(kind).copied().ok_or_else(|| WorkflowError::unknown_type(kind))
    }

    /// All types that there are, with how they are spread.
    pub(crate) fn spreads(&self) -> BTreeMap<String, Spread> {
        lock(&self.spreads).clone()
    }

    /// Takes over what the record says of a type.
    pub(crate) fn learned(&self, kind: &str, spread: Spread) {
        lock(&self.spreads).insert(kind.into(), spread);
    }

    pub(crate) async fn create(
        self: &Arc<Self>,
        kind: &str,
        id: &str,
        input: &Json,
        create: Create,
    ) -> Result<Created> {
        let definition = self.definition(kind)?;
        definition.check_input(input)?;
        let new = NewRun::new(kind, id, input, &create)?;
        let permit = match definition.is_remote() || !self.options.executes || self.is_closed() {
            true => None,
            false => self.permits.clone().try_acquire_owned().ok(),
        };
        let run = new.key.as_str().to_owned();
        let Some(permit) = permit.filter(|_| lock(&self.taken).insert(run.clone())) else {
            let (created, _) = self.lines.create(&new, None).await?;
            self.saw_write();
            self.is_due(&run);
            return Ok(created);
        };
        // The caller may go away: what was begun is finished, so that a run that was made is executed.
        let (done, told) = tokio::sync::oneshot::channel();
        let (engine, input) = (self.clone(), input.clone());
        self.lines.env().spawn(Box::pin(async move {
            let lease = engine.options.lease;
            let lease_until = engine.lines.now() + lease.as_millis() as i64;
            let first = FirstExecutor { name: engine.executor.clone(), lease_until };
            let created = engine.lines.create(&new, Some(&first)).await;
            let (created, written) = match created {
                Ok((created, written)) => (Ok(created), written),
                Err(error) => (Err(error), None),
            };
            let _ = done.send(created);
            if let Some(written) = written {
                engine.saw_write();
                execute(&engine, engine.first_lease(&new, Run { input, ..written }), Journal::Empty).await;
            }
            lock(&engine.taken).remove(&run);
            drop(permit);
            engine.saw_write();
            engine.wake_if_due(&run);
        }));
        told.await.unwrap_or_else(|_| Err(WorkflowError::new(Code::Unavailable, "the engine is being closed")))
    }

    /// The lease that a run was created with: its token is the one that was written with the run. One that was read later
    /// could be somebody else's, who has claimed the run since.
    fn first_lease(&self, new: &NewRun, run: Run) -> Claimed {
        let lease = Lease {
            lines: self.lines.clone(),
            key: new.key.clone(),
            token: run.executor_token,
            attempt: run.attempt,
            length: self.options.lease,
            planted: self.options.planted,
        };
        Claimed { lease, run }
    }

    /// The outcome of a run that has ended.
    pub(crate) async fn outcome(&self, kind: &str, id: &str) -> Result<Option<Result<String>>> {
        let key = RunKey::new(kind, id).map_err(bad_name)?;
        let run = self.lines.get(&key).await?;
        Ok(outcome_of(&run).map(|outcome| outcome.map(|json| json.to_string())))
    }

    /// A run rests.
    pub(crate) fn rests(&self, key: &RunKey, due: Option<i64>) {
        self.saw_write();
        if due.is_some_and(|due| due <= self.lines.now()) {
            self.is_due(key.as_str());
        } else {
            self.news.notify_one();
        }
    }

    /// A run has ended: those who wait for it are told.
    pub(crate) async fn has_ended(&self, key: &RunKey, status: Status, parent: Option<&str>) {
        self.saw_write();
        if let Some(waited) = lock(&self.waiting).get(key.as_str()) {
            waited.told.notify_waiters();
        }
        if status.is_terminal() {
            // Whoever listens hears that nothing more comes.
            lock(&self.live).remove(key.as_str());
            if let Some(parent) = parent
                && matches!(self.lines.nudge(parent).await, Ok(true))
            {
                self.is_due(parent);
            }
        }
    }

    pub(crate) fn tell(&self, key: &RunKey, update: Update) {
        if let Some(live) = lock(&self.live).get(key.as_str()) {
            // Nobody listens: then nobody misses it.
            let _ = live.send(update);
        }
    }
}

fn outcome_of(run: &Run) -> Option<Result<Json>> {
    match run.status {
        Status::Completed => Some(Ok(run.result.clone().unwrap_or(Json::Null))),
        Status::Errored => Some(Err(run.error.clone().unwrap_or_else(|| WorkflowError::failed("it has failed")))),
        Status::Terminated => {
            let message = format!("run \"{}\" of \"{}\" was terminated", run.id, run.kind);
            Some(Err(WorkflowError::new(Code::WorkflowNotRunning, message)))
        }
        _ => None,
    }
}

/// The workflows of a database.
#[derive(Clone)]
pub struct Workflows {
    pub(crate) engine: Arc<Engine>,
}

impl Workflows {
    /// Opens the workflows of a database: makes their tables, takes over what an earlier life left, and begins to execute.
    pub async fn open(
        database: Arc<Database>,
        env: Arc<dyn Env>,
        registry: Registry,
        options: EngineOptions,
    ) -> Result<Workflows> {
        let lines = Arc::new(Lines::new(database, env.clone()));
        tables::make(&lines).await?;
        let engine = Arc::new(Engine {
            permits: Arc::new(Semaphore::new(options.concurrency.clamp(1, Semaphore::MAX_PERMITS))),
            transactions: Semaphore::new(TRANSACTIONS),
            executor: format!("isles:{:016x}", env.random()),
            lines,
            options,
            types: Mutex::default(),
            spreads: Mutex::default(),
            taken: Mutex::default(),
            ready: Mutex::default(),
            news: Arc::default(),
            remote_news: Arc::default(),
            index_is_of: Mutex::default(),
            sizes: Mutex::default(),
            written: Arc::default(),
            waiting: Mutex::default(),
            live: Mutex::default(),
            closed: AtomicBool::new(false),
            closing: Notify::new(),
        });
        let workflows = Workflows { engine: engine.clone() };
        for definition in registry.types.into_values() {
            workflows.adopt(definition).await?;
        }
        workflows.adopt_remote().await?;
        crate::index::resize::learn(&engine).await?;
        let mut followed = follow::Followed::new();
        follow::follow_all(&engine, &mut followed).await;
        let open = crate::procedures::Open(Arc::downgrade(&engine));
        crate::procedures::register(engine.lines.database(), Arc::new(open));
        if engine.options.executes {
            if engine.options.takes_over {
                workflows.take_over().await?;
            }
            env.spawn(Box::pin(worker::work(engine.clone())));
        }
        env.spawn(Box::pin(follow::keep(engine.clone(), followed)));
        env.spawn(Box::pin(sweep(workflows.clone())));
        Ok(workflows)
    }

    /// Adds a type that workers of other languages execute, or changes its options.
    pub async fn register_remote(&self, kind: &str, options: Options) -> Result<()> {
        if self.engine.definition(kind).is_ok_and(|known| !known.is_remote()) {
            let message = format!("\"{kind}\" is executed by this process");
            return Err(WorkflowError::new(Code::InvalidSchema, message));
        }
        self.adopt(Arc::new(Definition::remote(kind, options)?)).await
    }

    /// Runs that an earlier life of this process was executing are due at once.
    async fn take_over(&self) -> Result<()> {
        const LEFT: &str = "SELECT run FROM isles.runs WHERE status = 'running' AND executor LIKE 'isles:%' \
            AND executor <> $1";
        const TAKE: &str = "UPDATE isles.runs SET due_at = $2 WHERE run = $1 AND status = 'running' AND executor <> $3 \
            AND due_at > $2";
        let (lines, executor) = (&self.engine.lines, self.engine.executor.as_str());
        // Those of a shard that cannot be reached now are claimed when their leases have ended.
        let left = lines.by_shard((LEFT, params![executor])).await.map_err(WorkflowError::of_sql)?;
        let now = lines.now();
        let rows: Vec<_> = left.into_iter().filter_map(|(_, rows)| rows.ok()).flatten().collect();
        let runs = rows.iter().filter_map(|row| crate::lines::text(row.first()?));
        let taken = runs.map(|run| lines.try_together(vec![(TAKE, params![run, now, executor])]));
        use futures::stream::StreamExt;
        let taken = futures::stream::iter(taken.collect::<Vec<_>>()).buffer_unordered(TAKEN_AT_ONCE);
        taken.for_each(|_| std::future::ready(())).await;
        Ok(())
    }

    pub(crate) async fn adopt(&self, definition: Arc<Definition>) -> Result<()> {
        crate::index::resize::record(&self.engine, &definition).await?;
        self.engine.learned(&definition.kind, definition.spread);
        lock(&self.engine.types).insert(definition.kind.clone(), definition);
        Ok(())
    }

    fn key(&self, kind: &str, id: &str) -> Result<RunKey> {
        // A type that nobody knows is not asked of any shard.
        self.engine.spread(kind)?;
        RunKey::new(kind, id).map_err(bad_name)
    }

    /// Creates a run. The same id and input again is the same run; another input is refused.
    pub async fn create<In: Serialize>(&self, kind: &str, id: &str, input: &In) -> Result<Created> {
        self.create_with(kind, id, input, Create::default()).await
    }

    pub async fn create_with<In: Serialize>(
        &self,
        kind: &str,
        id: &str,
        input: &In,
        create: Create,
    ) -> Result<Created> {
        let input = serde_json::to_value(input).map_err(|error| WorkflowError::invalid(error.to_string()))?;
        self.engine.create(kind, id, &input, create).await
    }

    /// Creates a run in the transaction that a session has open: it is there if the transaction commits, and not
    /// otherwise. It is what `SELECT isles.start_run(type, id, input)` does.
    pub async fn create_in<In: Serialize>(
        &self,
        session: &mut Session,
        kind: &str,
        id: &str,
        input: &In,
        attributes: Option<&Json>,
    ) -> Result<Created> {
        let input = serde_json::to_string(input).map_err(|error| WorkflowError::invalid(error.to_string()))?;
        let params = params![kind, id, input, attributes.map(Json::to_string)];
        let said = say(session, "SELECT isles.start_run($1, $2, $3, $4)", params).await;
        let said = said.map_err(WorkflowError::of_procedure)?;
        match said.rows.first().and_then(|row| row.first()) {
            Some(Value::Bool(true)) => Ok(Created::New),
            _ => Ok(Created::Existing),
        }
    }

    pub async fn get(&self, kind: &str, id: &str) -> Result<Run> {
        self.engine.lines.get(&self.key(kind, id)?).await
    }

    /// The journal of a run, in the order in which its entries began: what was done, and what is waited for.
    pub async fn timeline(&self, kind: &str, id: &str) -> Result<(Run, Vec<Step>)> {
        let key = self.key(kind, id)?;
        let run = self.engine.lines.get(&key).await?;
        let steps = self.engine.lines.steps(&key, run.attempt).await?;
        Ok((run, steps))
    }

    /// Sends an event to a run. One that is sent again with the same key is there once.
    pub async fn send<T: Serialize>(
        &self,
        kind: &str,
        id: &str,
        event: &str,
        payload: &T,
        dedupe: Option<&str>,
    ) -> Result<i64> {
        let payload = serde_json::to_value(payload).map_err(|error| WorkflowError::invalid(error.to_string()))?;
        let key = self.key(kind, id)?;
        self.engine.definition(kind)?.check_event(event, &payload)?;
        let seq = self.engine.lines.send(&key, event, &payload, dedupe).await?;
        self.engine.is_due(key.as_str());
        Ok(seq)
    }

    pub async fn pause(&self, kind: &str, id: &str) -> Result<Run> {
        self.control(kind, id, Control::Pause).await
    }

    pub async fn resume(&self, kind: &str, id: &str) -> Result<Run> {
        self.control(kind, id, Control::Resume).await
    }

    pub async fn terminate(&self, kind: &str, id: &str) -> Result<Run> {
        self.control(kind, id, Control::Terminate).await
    }

    async fn control(&self, kind: &str, id: &str, control: Control) -> Result<Run> {
        let key = self.key(kind, id)?;
        let run = self.engine.lines.control(&key, control).await?;
        match run.status {
            status if status.is_terminal() => self.engine.has_ended(&key, status, run.parent.as_deref()).await,
            _ => self.engine.is_due(key.as_str()),
        }
        Ok(run)
    }

    /// Begins a run that has ended again, from its beginning.
    pub async fn restart(&self, kind: &str, id: &str) -> Result<Run> {
        let key = self.key(kind, id)?;
        let run = self.engine.lines.restart(&key).await?;
        self.engine.saw_write();
        self.engine.is_due(key.as_str());
        Ok(run)
    }

    /// Deletes a run that has ended, with all that is kept of it.
    pub async fn delete(&self, kind: &str, id: &str) -> Result<()> {
        let key = self.key(kind, id)?;
        self.engine.lines.delete(&key).await?;
        self.engine.saw_write();
        Ok(())
    }

    /// Waits until a run has ended, and returns its result. With a limit, it is an error if it has not ended by then.
    pub async fn wait(&self, kind: &str, id: &str, limit: Option<Duration>) -> Result<Json> {
        let key = self.key(kind, id)?;
        let env = self.engine.lines.env();
        let deadline = limit.map(|limit| env.elapsed().saturating_add(limit));
        // Nothing is kept for runs that there are not.
        self.engine.lines.get(&key).await?;
        let waiting = Waiting::begin(&self.engine, key.as_str());
        loop {
            let waiting = waiting.told();
            let mut told = Box::pin(waiting.notified());
            told.as_mut().enable();
            let run = self.engine.lines.get(&key).await?;
            if let Some(outcome) = outcome_of(&run) {
                return outcome;
            }
            let left = deadline.map_or(WAIT_LOOK, |deadline| deadline.saturating_sub(env.elapsed()).min(WAIT_LOOK));
            if left.is_zero() {
                let message = format!("run \"{id}\" of \"{kind}\" has not ended: it is {}", run.status);
                let details = json!({ "currentStatus": run.status.as_str() });
                return Err(WorkflowError::new(Code::UpdateTimeout, message).with_details(details));
            }
            futures::future::select(told, env.sleep(left)).await;
        }
    }

    /// What a run has told after a number, and is kept: at most a thousand, in order.
    pub async fn updates(&self, kind: &str, id: &str, after: i64) -> Result<Vec<Update>> {
        let key = self.key(kind, id)?;
        self.engine.lines.get(&key).await?;
        self.engine.lines.updates(&key, after).await
    }

    /// What a run tells from now on. It ends when the run has.
    pub fn listen(&self, kind: &str, id: &str) -> Result<broadcast::Receiver<Update>> {
        let key = self.key(kind, id)?;
        let mut live = lock(&self.engine.live);
        live.retain(|_, sender| sender.receiver_count() > 0);
        let sender = live.entry(key.as_str().into()).or_insert_with(|| broadcast::channel(LIVE_UPDATES).0);
        Ok(sender.subscribe())
    }

    /// The types that there are, and whether workers of other languages execute them.
    pub fn types(&self) -> Vec<(String, bool)> {
        let shown = |kind: String| {
            let is_remote = self.engine.definition(&kind).is_ok_and(|one| one.is_remote());
            (kind, is_remote)
        };
        self.engine.spreads().into_keys().map(shown).collect()
    }

    /// Executes nothing more. Runs that were being executed go on when workflows are opened again.
    pub fn close(&self) {
        self.engine.closed.store(true, Ordering::SeqCst);
        self.engine.closing.notify_waiters();
        self.engine.permits.close();
        self.engine.news.notify_one();
        self.engine.written.notify_waiters();
    }
}

/// Somebody waits for a run. Who was the last to wait leaves nothing behind.
struct Waiting<'a> {
    engine: &'a Engine,
    run: &'a str,
}

impl<'a> Waiting<'a> {
    fn begin(engine: &'a Engine, run: &'a str) -> Waiting<'a> {
        lock(&engine.waiting).entry(run.into()).or_default().waiters += 1;
        Waiting { engine, run }
    }

    fn told(&self) -> Arc<Notify> {
        lock(&self.engine.waiting).get(self.run).map(|waited| waited.told.clone()).unwrap_or_default()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = lock(&self.engine.waiting);
        let Some(waited) = waiting.get_mut(self.run) else { return };
        waited.waiters = waited.waiters.saturating_sub(1);
        if waited.waiters == 0 {
            waiting.remove(self.run);
        }
    }
}

/// Takes away what has been kept for long enough.
async fn sweep(workflows: Workflows) {
    let engine = workflows.engine.clone();
    loop {
        let closed = futures::future::select(Box::pin(engine.closed()), engine.lines.env().sleep(SWEEP));
        if matches!(closed.await, futures::future::Either::Left(_)) {
            return;
        }
        if let Err(error) = workflows.sweep_once().await {
            tracing::debug!(%error, "runs that were kept for long enough stay for now");
        }
    }
}

impl Workflows {
    /// Deletes all runs past their retention, and forgets what was deleted long ago. Returns how many went.
    pub async fn sweep_once(&self) -> Result<u64> {
        let now = self.engine.lines.now();
        let mut gone = 0;
        loop {
            let forgotten = self.engine.lines.forget_deleted(now - KEEP_DELETED_MS).await?;
            gone += forgotten;
            if forgotten == 0 || !self.may_sweep_on().await {
                break;
            }
        }
        for definition in self.engine.definitions() {
            let Some(retention) = definition.options.retention else { continue };
            let before = now.saturating_sub(i64::try_from(retention.as_millis()).unwrap_or(i64::MAX));
            for status in Status::ALL.into_iter().filter(|status| status.is_terminal()) {
                gone += self.sweep_status(&definition.kind, status, before).await?;
            }
        }
        Ok(gone)
    }

    /// Deletes all runs of a status that were last changed before a time. It goes on page by page: entries of those that
    /// are gone already may still be there.
    async fn sweep_status(&self, kind: &str, status: Status, before: i64) -> Result<u64> {
        use futures::stream::StreamExt;
        let (mut gone, mut cursor) = (0, Some(crate::index::list::before(kind, before)));
        while cursor.is_some() {
            let filter = Filter {
                kind: Some(kind.into()),
                status: Some(status),
                limit: Some(SWEPT_AT_ONCE),
                cursor,
                ..Filter::default()
            };
            let page = self.list(&filter).await?;
            let deleted = page.entries.iter().map(|entry| self.delete_if_ended(kind, &entry.id)).collect::<Vec<_>>();
            let deleted: Vec<bool> = futures::stream::iter(deleted).buffer_unordered(TAKEN_AT_ONCE).collect().await;
            gone += deleted.into_iter().filter(|is_gone| *is_gone).count() as u64;
            cursor = page.cursor;
            if !self.may_sweep_on().await {
                break;
            }
        }
        Ok(gone)
    }

    /// One that was restarted meanwhile has not ended, and stays; one that cannot be reached goes the next time.
    async fn delete_if_ended(&self, kind: &str, id: &str) -> bool {
        let deleted = self.delete(kind, id).await;
        if let Err(error) = &deleted
            && !matches!(error.code, Code::WorkflowNotRunning | Code::WorkflowNotFound)
        {
            tracing::debug!(kind, id, %error, "a run that was kept for long enough stays for now");
        }
        deleted.is_ok()
    }

    /// Leaves the shards some time; false if the engine is being closed.
    async fn may_sweep_on(&self) -> bool {
        self.engine.lines.env().sleep(SWEEP_PAUSE).await;
        !self.engine.is_closed()
    }
}
