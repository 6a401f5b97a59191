//! The catalog in one SQLite file, for one process.
//!
//! Callers put their call into a queue and wait for its answer. One blocking job at a time empties the queue:
//!
//! ```text
//! call ─→ queue ─→ job: take what waits → BEGIN → perform each → COMMIT → publish the revision → answer all
//!                    └→ any error of SQLite: stop, answer nobody with success
//! ```
//!
//! Commits that wait together share one sync. All answers, also those of reads and of refused commits, are given
//! after the COMMIT: they may depend on a write before them in the same batch.
//!
//! Invariants (docs/invariants.md):
//!   * I-1, I-4  An answer is sent after the sync that covers everything it depends on.
//!   * I-5       After an error the store is closed, and every later call is answered `Stopped`.
//!   * I-66      The queue is bounded, and so is the wait for an answer.
//!
//! The job holds no thread while there is nothing to do, and callers hold none while they wait. So a thousand waiting
//! commits cannot take the pool away from the shards.

use super::store::{Answer, Failure, History, Store, Upkeep};
use super::{
    At, Catalog, CatalogError, Commit, HISTORY_BYTES_MAX, HISTORY_COMMITS_MAX, Key, Lease, LeaseToken,
    PAGE_RECORDS_MAX, Page, Record, Result, Revision, Transaction, WATCHERS_MAX, Watch, check_lease, check_prefix,
    limit,
};
use async_trait::async_trait;
use isles_engine::env::Env;
use std::collections::VecDeque;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

pub use super::store::OpenError;

/// Calls that wait for the disk. At the few milliseconds that a slow disk takes for a batch, some seconds of work.
const QUEUE_CALLS_MAX: usize = 4096;

/// Calls that share one transaction. The sync is shared by enough of them, and the first one waits for the last one
/// by a few milliseconds at most.
const BATCH_CALLS_MAX: usize = 128;

/// Commits between two checkpoints. Each writes some pages, so the log stays at some megabytes, and opening after a
/// crash takes milliseconds.
const CHECKPOINT_COMMITS: usize = 500;

/// What those are told who come after a close.
const CLOSED: &str = "it is closed";

/// How a catalog is kept.
#[derive(Debug, Clone)]
pub struct Options {
    /// The SQLite VFS to use. With one, there is no lock file: it would be on another disk.
    pub vfs: Option<String>,
    /// Commits that watchers can go back, from 1 to [`HISTORY_COMMITS_MAX`].
    pub history_commits: u64,
    /// Commits after which the log is copied into the file.
    pub checkpoint_commits: usize,
    /// A watcher looks for news after this, also if nobody has told it of any.
    pub poll: Duration,
    /// A call that takes longer is given up. A disk that needs seconds for a sync is as good as dead.
    pub answer_within: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            vfs: None,
            history_commits: HISTORY_COMMITS_MAX,
            checkpoint_commits: CHECKPOINT_COMMITS,
            poll: Duration::from_secs(1),
            answer_within: Duration::from_secs(10),
        }
    }
}

/// The catalog in one SQLite file. Dropping it closes the file as soon as the running job has ended; [`close`] waits
/// for that, however many still have it. Watchers then end, too.
///
/// [`close`]: Catalog::close
pub struct SqliteCatalog {
    shared: Arc<Shared>,
}

impl SqliteCatalog {
    /// Opens the catalog at `path`, or creates it. The folder must exist.
    pub async fn open(
        path: impl Into<PathBuf>,
        env: Arc<dyn Env>,
        options: Options,
    ) -> std::result::Result<SqliteCatalog, OpenError> {
        if !(1..=HISTORY_COMMITS_MAX).contains(&options.history_commits) {
            return Err(OpenError::Options(format!("the history has 1 to {HISTORY_COMMITS_MAX} commits")));
        }
        let path: PathBuf = path.into();
        let (reply, opened) = oneshot::channel();
        let (job_path, job_env) = (path.clone(), env.clone());
        env.blocking(Box::new(move || {
            // A caller that has stopped waiting drops what was opened.
            let _ = reply.send(Shared::open(&job_path, job_env, options));
        }));
        match opened.await {
            Ok(shared) => Ok(SqliteCatalog { shared: Arc::new(shared?) }),
            Err(_) => Err(OpenError::Unavailable { path, reason: "the environment has ended".into() }),
        }
    }
}

/// What the callers, the job and the watchers share.
struct Shared {
    env: Arc<dyn Env>,
    options: Options,
    queue: Mutex<Queue>,
    /// Touched by the running job and by who closes. `None` once it has failed or is closed.
    store: Mutex<Option<Opened>>,
    watchers: Arc<Semaphore>,
    head: watch::Sender<Head>,
}

/// The store and the lock of the one who has it open, which is given back after it.
struct Opened {
    store: Store,
    _lock: Option<File>,
}

#[derive(Default)]
struct Queue {
    calls: VecDeque<Box<dyn Step>>,
    /// Whether a job empties the queue.
    is_draining: bool,
    /// Why nothing is taken any more.
    stopped: Option<String>,
}

/// What watchers wait for. A hint: they read what happened from the history.
#[derive(Clone, Copy)]
struct Head {
    revision: Revision,
    has_stopped: bool,
}

impl Shared {
    fn open(path: &Path, env: Arc<dyn Env>, options: Options) -> std::result::Result<Shared, OpenError> {
        let lock = match options.vfs {
            None => Some(lock_file(path)?),
            Some(_) => None,
        };
        let upkeep = Upkeep {
            history_commits: options.history_commits,
            history_bytes: HISTORY_BYTES_MAX,
            checkpoint_commits: options.checkpoint_commits,
        };
        let store = Store::open(path, options.vfs.as_deref(), env.clone(), upkeep)?;
        Ok(Shared {
            env,
            options,
            queue: Mutex::default(),
            head: watch::Sender::new(Head { revision: store.revision(), has_stopped: false }),
            store: Mutex::new(Some(Opened { store, _lock: lock })),
            watchers: Arc::new(Semaphore::new(WATCHERS_MAX)),
        })
    }

    /// Has `work` done in a batch, and waits for its answer.
    async fn call<T: Send + 'static>(
        self: &Arc<Shared>,
        effect: Effect,
        work: impl FnOnce(&mut Store) -> Answer<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.enqueue(Box::new(Call { effect, work: Some(work), answer: None, reply }))?;
        tokio::select! {
            biased;
            answer = answer => answer.unwrap_or_else(|_| Err(effect.unanswered("the answer was lost"))),
            () = self.env.sleep(self.options.answer_within) => Err(effect.unanswered("there was no answer in time")),
        }
    }

    fn enqueue(self: &Arc<Shared>, call: Box<dyn Step>) -> Result<()> {
        let mut queue = lock(&self.queue);
        if let Some(reason) = &queue.stopped {
            return Err(CatalogError::Stopped(reason.clone()));
        }
        if queue.calls.len() >= QUEUE_CALLS_MAX {
            return Err(CatalogError::Busy(format!("{QUEUE_CALLS_MAX} calls are waiting")));
        }
        queue.calls.push_back(call);
        let must_start = !std::mem::replace(&mut queue.is_draining, true);
        // The environment may run or drop the job at once.
        drop(queue);
        if must_start {
            let drain = Drain { shared: self.clone(), is_done: false };
            self.env.blocking(Box::new(move || drain.run()));
        }
        Ok(())
    }

    /// What waits, up to a batch. `None` ends the job.
    fn take_batch(&self) -> Option<Vec<Box<dyn Step>>> {
        let mut queue = lock(&self.queue);
        if queue.calls.is_empty() {
            queue.is_draining = false;
            return None;
        }
        let count = queue.calls.len().min(BATCH_CALLS_MAX);
        Some(queue.calls.drain(..count).collect())
    }

    fn perform(&self, mut batch: Vec<Box<dyn Step>>) {
        let done = match lock(&self.store).as_mut() {
            Some(opened) => perform(&mut opened.store, &mut batch),
            None => Err(Broken::BeforeCommit(CLOSED.into())),
        };
        match done {
            Ok(revision) => {
                self.head.send_modify(|head| head.revision = revision);
                batch.into_iter().for_each(|call| call.answer());
                self.checkpoint();
            }
            Err(broken) => {
                self.stop(broken.reason());
                batch.into_iter().for_each(|call| call.fail(&broken));
            }
        }
    }

    /// After the answers: nobody need wait for it.
    fn checkpoint(&self) {
        let done = lock(&self.store).as_mut().map_or(Ok(()), |opened| opened.store.checkpoint_if_due());
        if let Err(failure) = done {
            self.stop(&failure.to_string());
        }
    }

    /// After a failure: takes nothing any more, and leaves the file for recovery to judge.
    fn stop(&self, reason: &str) {
        self.end(reason, |opened| opened.store.abandon());
    }

    /// Takes nothing any more, refuses what has not begun, and lets go of the file.
    fn end(&self, reason: &str, let_go: impl FnOnce(Opened)) {
        let opened = lock(&self.store).take();
        let waiting = {
            let mut queue = lock(&self.queue);
            queue.stopped.get_or_insert_with(|| reason.to_owned());
            std::mem::take(&mut queue.calls)
        };
        opened.map(let_go);
        self.head.send_modify(|head| head.has_stopped = true);
        let broken = Broken::BeforeCommit(reason.to_owned());
        waiting.into_iter().for_each(|call| call.fail(&broken));
    }

    async fn history(self: &Arc<Shared>, prefix: &str, from: Revision) -> Result<History> {
        let prefix = prefix.to_owned();
        self.call(Effect::Reads, move |store| store.history(&prefix, from)).await
    }
}

/// Performs the calls of a batch in one transaction. Returns the revision after it.
fn perform(store: &mut Store, batch: &mut [Box<dyn Step>]) -> std::result::Result<Revision, Broken> {
    let before = |failure: Failure| Broken::BeforeCommit(failure.to_string());
    store.begin().map_err(before)?;
    for call in batch {
        call.perform(store).map_err(before)?;
    }
    store.commit().map_err(|failure| Broken::AtCommit(failure.to_string()))?;
    Ok(store.revision())
}

/// How a batch went wrong.
enum Broken {
    /// Nothing of it happened.
    BeforeCommit(String),
    /// All of it happened or nothing.
    AtCommit(String),
}

impl Broken {
    fn reason(&self) -> &str {
        match self {
            Broken::BeforeCommit(reason) | Broken::AtCommit(reason) => reason,
        }
    }
}

/// The job that empties the queue.
struct Drain {
    shared: Arc<Shared>,
    is_done: bool,
}

impl Drain {
    fn run(mut self) {
        while let Some(batch) = self.shared.take_batch() {
            self.shared.perform(batch);
        }
        self.is_done = true;
    }
}

impl Drop for Drain {
    /// The job panicked, or the environment ended before it ran. Without it nobody would ever be answered.
    fn drop(&mut self) {
        if !self.is_done {
            self.shared.stop("its job was lost");
        }
    }
}

/// What it means that a call was not answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Reads,
    Changes,
}

impl Effect {
    fn unanswered(self, reason: &str) -> CatalogError {
        match self {
            Effect::Reads => CatalogError::Busy(reason.into()),
            Effect::Changes => CatalogError::MayHaveHappened(reason.into()),
        }
    }
}

/// A call of any type in the queue.
trait Step: Send {
    /// Does the work, and keeps the answer until it is durable.
    fn perform(&mut self, store: &mut Store) -> std::result::Result<(), Failure>;
    fn answer(self: Box<Self>);
    fn fail(self: Box<Self>, broken: &Broken);
}

struct Call<T, W> {
    effect: Effect,
    /// `None` once it is done.
    work: Option<W>,
    answer: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T: Send, W: FnOnce(&mut Store) -> Answer<T> + Send> Step for Call<T, W> {
    fn perform(&mut self, store: &mut Store) -> std::result::Result<(), Failure> {
        if let Some(work) = self.work.take() {
            self.answer = Some(work(store)?);
        }
        Ok(())
    }

    /// A caller that has stopped waiting hears nothing, which is all right.
    fn answer(self: Box<Self>) {
        if let Some(answer) = self.answer {
            let _ = self.reply.send(answer);
        }
    }

    fn fail(self: Box<Self>, broken: &Broken) {
        let would_have_changed = self.effect == Effect::Changes && matches!(self.answer, Some(Ok(_)));
        let error = match broken {
            Broken::AtCommit(reason) if would_have_changed => CatalogError::MayHaveHappened(reason.clone()),
            Broken::AtCommit(reason) | Broken::BeforeCommit(reason) => CatalogError::Stopped(reason.clone()),
        };
        let _ = self.reply.send(Err(error));
    }
}

#[async_trait]
impl Catalog for SqliteCatalog {
    async fn get(&self, key: &Key) -> Result<At<Option<Record>>> {
        let key = key.clone();
        self.shared.call(Effect::Reads, move |store| store.get(&key)).await
    }

    async fn list(&self, prefix: &str, after: Option<&Key>, records: usize) -> Result<Page> {
        check_prefix(prefix)?;
        limit("records of a page", records, PAGE_RECORDS_MAX)?;
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        self.shared.call(Effect::Reads, move |store| store.list(&prefix, after.as_ref(), records)).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<Revision> {
        transaction.check()?;
        self.shared.call(Effect::Changes, move |store| store.write(&transaction)).await
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Box<dyn Watch>> {
        check_prefix(prefix)?;
        let Ok(permit) = self.shared.watchers.clone().try_acquire_owned() else {
            return Err(CatalogError::Busy(format!("there are {WATCHERS_MAX} watchers")));
        };
        let head = self.shared.head.subscribe();
        let found = self.shared.history(prefix, from).await?;
        Ok(Box::new(SqliteWatch {
            shared: Arc::downgrade(&self.shared),
            env: self.shared.env.clone(),
            poll: self.shared.options.poll,
            prefix: prefix.to_owned(),
            position: from.max(Revision(1)),
            next: found.next,
            found: found.commits.into(),
            head,
            _permit: permit,
        }))
    }

    async fn acquire(&self, name: &Key, owner: &str, ttl: Duration) -> Result<Lease> {
        check_lease(owner, ttl)?;
        let (name, owner) = (name.clone(), owner.to_owned());
        self.shared.call(Effect::Changes, move |store| store.acquire(&name, &owner, ttl)).await
    }

    async fn renew(&self, name: &Key, token: LeaseToken) -> Result<Lease> {
        let name = name.clone();
        self.shared.call(Effect::Changes, move |store| store.renew(&name, token)).await
    }

    async fn release(&self, name: &Key, token: LeaseToken) -> Result<()> {
        let name = name.clone();
        self.shared.call(Effect::Changes, move |store| store.release(&name, token)).await
    }

    async fn lease(&self, name: &Key) -> Result<Option<Lease>> {
        let name = name.clone();
        self.shared.call(Effect::Reads, move |store| store.lease(&name)).await
    }

    async fn close(&self) {
        let (shared, env) = (self.shared.clone(), &self.shared.env);
        let (done, closed) = oneshot::channel();
        // Closing copies the log into the file, which blocks.
        env.blocking(Box::new(move || {
            shared.end(CLOSED, drop);
            let _ = done.send(());
        }));
        tokio::select! {
            biased;
            _ = closed => {}
            () = env.sleep(self.shared.options.answer_within) => {}
        }
    }
}

struct SqliteWatch {
    /// Weak, so that a forgotten watcher does not keep the file open.
    shared: Weak<Shared>,
    env: Arc<dyn Env>,
    poll: Duration,
    prefix: String,
    /// Every commit before this was returned.
    position: Revision,
    /// Every commit before this was read from the history; those of the prefix that were not returned are in `found`.
    next: Revision,
    found: VecDeque<Commit>,
    head: watch::Receiver<Head>,
    /// A place among the watchers.
    _permit: OwnedSemaphorePermit,
}

impl SqliteWatch {
    /// Reads on in the history, and waits if there is nothing more. Nothing is lost if the caller stops waiting.
    async fn look(&mut self) -> Result<()> {
        let closed = || CatalogError::Stopped("it was closed".into());
        let shared = self.shared.upgrade().ok_or_else(closed)?;
        let found = shared.history(&self.prefix, self.next).await?;
        drop(shared);
        self.next = found.next;
        self.found = found.commits.into();
        if self.found.is_empty() {
            self.position = self.next;
            if self.next > found.head {
                self.wait().await;
            }
        }
        Ok(())
    }

    /// Until the catalog has something at `next`, or has stopped, or it is time to look again.
    async fn wait(&mut self) {
        let (head, next) = (&mut self.head, self.next);
        let news = async move {
            // An error says that the catalog was closed, which the next look will find, too.
            let _ = head.wait_for(|head| head.has_stopped || head.revision >= next).await;
        };
        tokio::select! {
            biased;
            () = news => {}
            () = self.env.sleep(self.poll) => {}
        }
    }
}

#[async_trait]
impl Watch for SqliteWatch {
    async fn next(&mut self) -> Result<Commit> {
        loop {
            if let Some(commit) = self.found.pop_front() {
                self.position = commit.revision.next();
                return Ok(commit);
            }
            self.look().await?;
        }
    }

    fn position(&self) -> Revision {
        self.position
    }
}

/// Takes the lock of the one process that may open the catalog. The file stays: removing it would let two processes
/// lock two files of one name.
fn lock_file(path: &Path) -> std::result::Result<File, OpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let unavailable = |error: std::io::Error| OpenError::Unavailable { path: path.into(), reason: error.to_string() };
    let file = File::options().create(true).truncate(false).write(true).open(name).map_err(unavailable)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked(path.into())),
        Err(TryLockError::Error(error)) => Err(unavailable(error)),
    }
}

/// A panic poisons nothing: the job that panicked stops the catalog.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
