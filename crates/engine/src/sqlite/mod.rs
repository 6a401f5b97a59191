//! A shard that is a SQLite file.
//!
//! One writer with group commit, a pool of readers, no thread of its own:
//!
//!     execute(write) → queue → writer (one group, one flush) → answers
//!     execute(read)  → a reader, on the caller's thread if it is short, else on the pool
//!     begin(write)   → the writer itself, until commit or rollback
//!     begin(read), snapshot → a reader, held
//!
//! In reading order:
//!   * [`vfs`]        page checksums under SQLite, and the check of a WAL that a crash left
//!   * `explain`      what SQLite's result codes mean
//!   * `value`        storage forms of typed values
//!   * `functions`    PostgreSQL's functions inside of SQLite
//!   * `raw`          one hardened connection and its statements
//!   * `capture`      row changes, taken from the preupdate hook
//!   * `ddl`          the kernel's schema in SQLite's dialect
//!   * `format`       what stands in the file besides the user's tables
//!   * `log`          the change log
//!   * `writer`       group commit
//!   * `schema`       changes of the schema, in place or by rebuilding a table
//!   * `lines`        tenants that wait for the writer take turns
//!   * `queue`        who writes next
//!   * [`checkpoint`] the WAL is copied into the file
//!   * `reader`       the pool of readers
//!   * `stream`       how far rows of other shards have come, and who brings them
//!   * `apply`        rows that come from other shards
//!   * `copy`         rows of a snapshot of another shard
//!   * `redo`         what a transaction did, so that it can be done again
//!   * `pledge`       one shard's part of a commit over several
//!   * `transaction`  interactive transactions
//!   * `snapshot`     pages and digests of one moment
//!   * `discard`      rows that a move has left
//!   * `entries`      entries of global indexes
//!   * `tenancy`      the second fence around tenants
//!   * `units`        what has changed since, by unit
//!   * `turns`        long reads of a tenant, and those of others; `lengthy`, which reads those are
//!   * `usage`        what tenants store, and how a tenant's rows go
//!   * [`stage`]      a database in memory, for the rows of several shards
//!   * [`backup`]     a copy of a live shard
//!   * [`fleet`]      thousands of shards, some of them open
//!
//! A file belongs to one process: a lock beside it says so. Fences, schema and positions are therefore kept in
//! memory, and the file is read for them only when it is opened.

pub mod vfs;

mod apply;
pub mod backup;
mod capture;
pub mod checkpoint;
mod copy;
mod ddl;
mod discard;
mod entries;
mod explain;
pub mod fleet;
mod format;
mod functions;
mod lengthy;
mod lines;
mod log;
mod pledge;
mod queue;
mod raw;
mod reader;
mod redo;
mod schema;
mod snapshot;
pub mod stage;
mod stream;
mod tenancy;
mod transaction;
mod turns;
mod units;
mod usage;
mod value;
mod writer;

use crate::binding::Binding;
use crate::entries::{EntriesFound, EntriesOf, EntryLook, EntryPart, Observed};
use crate::env::Env;
use crate::error::{Result, ShardError};
use crate::fence::{Access, Claim, Claimed, Fence, FenceMode, FenceScope, FenceTable};
use crate::shard::{
    Applied, Batch, Begin, ChangePage, Consumer, DriverToken, EVENT_ROWS, Engine, ImportMode, KeyRange, MAX_APPLY_ROWS,
    MAX_STATEMENTS, Outcome, Request, Shard, ShardStats, Snapshot, StoredRow, StreamState, Transaction, check_is_copy,
    check_purge,
};
use arc_swap::ArcSwap;
use async_trait::async_trait;
use isles_kernel::names::{PledgeId, SchemaVersion, Seq, ShardId, StreamId, TenantId};
use isles_kernel::schema::{Schema, SchemaChange};
use queue::Queue;
use reader::Readers;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use writer::{Company, RequestMember, State, Task, Writer};

/// How long the engine's own writes may wait for the writer.
const OWN_WRITE_TIME: Duration = Duration::from_secs(30);
/// A schema change may have to read whole tables.
const SCHEMA_TIME: Duration = Duration::from_secs(3_600);

/// How long a write may be on its way after its claim was compared, where that is planted.
const PLANTED_GAP_MICROS: u64 = 20_000;

/// How a shard's file is opened.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// The VFS under the checksums; the operating system's when none. The simulator puts its disk here.
    pub base_vfs: Option<String>,
    /// Page cache of each connection, at most; four times as much for rows that come from other shards.
    pub cache_kib: u32,
    /// Readers at once: snapshots and read-only transactions hold one each.
    pub max_readers: usize,
    /// Readers kept open when nobody uses them.
    pub idle_readers: usize,
    /// Members of a group, at most: more only delay the first one's answer.
    pub max_group: usize,
    /// Requests waiting for the writer, at most. Beyond it a caller is told at once.
    pub max_queue: usize,
    /// How long a group waits for those who were answered last to come back, before it flushes for a few. Zero in
    /// simulation.
    pub gather: Duration,
    /// Bytes of the change log, at most. Beyond it the slowest consumer is dropped.
    pub max_log_bytes: u64,
    /// Capture also while nobody consumes.
    pub capture_always: bool,
    /// Pages in the WAL after which they are moved into the database file.
    pub checkpoint_pages: u32,
    /// Shards that share it do so one after the other.
    pub checkpoints: checkpoint::Line,
    /// Who is told of changes before they are committed.
    pub observed: Observed,
    /// A bug to have, for tests that show that the harness finds it.
    pub planted: Option<Planted>,
}

/// Bugs that a shard can be told to have. A harness that does not find them proves nothing (I-69).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// Commits are not flushed (`synchronous=NORMAL`).
    NoSync,
    /// A group is answered before it is committed.
    AnswerBeforeCommit,
    /// The change log's record is inserted in a transaction of its own.
    RecordInSecondTransaction,
    /// A write's claim is not compared with the fences.
    SkipFence,
    /// A write's claim is compared with the fences when it arrives, and not in its transaction.
    FenceOutsideTransaction,
    /// Positions of the change log begin at 0 again when the shard begins to serve what was moved to it.
    RestartLog,
}

/// Whether fences open buckets that were closed.
fn begin_to_serve(before: &FenceTable, fences: &[Fence]) -> bool {
    let opens = |fence: &Fence| match &fence.scope {
        FenceScope::Buckets { group, first, .. } => {
            fence.mode == FenceMode::Open && !before.serves(&Claimed::Bucket(group.clone(), *first))
        }
        _ => false,
    };
    fences.iter().any(opens)
}

impl Default for SqliteOptions {
    fn default() -> SqliteOptions {
        SqliteOptions {
            base_vfs: None,
            cache_kib: 8 << 10,
            max_readers: 64,
            idle_readers: 4,
            max_group: 256,
            max_queue: 10_000,
            gather: Duration::from_micros(200),
            max_log_bytes: 1 << 30,
            capture_always: false,
            // 4 MiB, as SQLite's default.
            checkpoint_pages: 1_000,
            checkpoints: checkpoint::Line::default(),
            observed: Observed::default(),
            planted: None,
        }
    }
}

impl SqliteOptions {
    fn vfs_name(&self) -> Result<String> {
        vfs::checksum::register(self.base_vfs.as_deref()).map_err(|error| ShardError::Unavailable(error.to_string()))
    }

    fn plants(&self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }

    fn synchronous(&self) -> &'static str {
        if self.plants(Planted::NoSync) { "NORMAL" } else { "FULL" }
    }
}

/// Memory of all SQLite connections of the process, at most; a statement that needs more ends with 53200. It bounds what
/// a hostile statement can take, and leaves room for thousands of shards with warm caches.
const MAX_HEAP_BYTES: i64 = 4 << 30;

/// Sets what SQLite wants to know before its first use in a process.
fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // By default each connection allocates 20 pages at once; with thousands of shards most are never used.
        // SAFETY: called once, before any connection of ours is opened; if the host program has opened one already,
        // SQLite refuses the call and keeps its default.
        unsafe {
            rusqlite::ffi::sqlite3_config(
                rusqlite::ffi::SQLITE_CONFIG_PAGECACHE,
                std::ptr::null_mut::<std::ffi::c_void>(),
                0 as std::ffi::c_int,
                0 as std::ffi::c_int,
            );
            rusqlite::ffi::sqlite3_hard_heap_limit64(MAX_HEAP_BYTES);
        }
    });
}

/// What the parts of an open shard share.
struct Shared {
    id: ShardId,
    path: PathBuf,
    env: Arc<dyn Env>,
    options: SqliteOptions,
    queue: Mutex<Queue>,
    /// Tells a writer that waits for its group that it is complete.
    gathered: Condvar,
    readers: Readers,
    /// The state as of the last commit.
    published: ArcSwap<State>,
    /// Counts commits, before they are answered: a reader whose snapshot has this number sees everything that anyone
    /// has been told of.
    state_number: AtomicU64,
    changes: units::Changes,
    turns: Arc<turns::Turns>,
    lengthy: lengthy::Lengthy,
    /// Why the shard has stopped, once it has.
    stopped: OnceLock<ShardError>,
    commits: AtomicU64,
    transactions: AtomicU64,
    /// Says that the file is ours; released when the shard is closed.
    lock: Mutex<Option<File>>,
}

impl Shared {
    /// A panic while the lock was held leaves plain data behind; going on is right.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_running(&self) -> Result<()> {
        match self.stopped.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// From here on nothing is acknowledged.
    fn stop(&self, error: ShardError) {
        self.stopped.get_or_init(|| error);
    }

    /// Runs `work` on the pool and gives back what it returns.
    async fn on_pool<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.env.blocking(Box::new(move || {
            let _ = reply.send(work());
        }));
        answer.await.map_err(|_| ShardError::Unavailable("the work was dropped".into()))
    }
}

/// An open shard. Cloning shares it.
#[derive(Clone)]
pub struct SqliteShard {
    shared: Arc<Shared>,
}

impl SqliteShard {
    /// Opens the shard in the file `path`, making it if there is none. The folder must exist.
    pub async fn open(id: ShardId, path: &Path, env: Arc<dyn Env>, options: SqliteOptions) -> Result<SqliteShard> {
        let (reply, answer) = oneshot::channel();
        let (path, pool) = (path.to_path_buf(), env.clone());
        pool.blocking(Box::new(move || {
            let _ = reply.send(SqliteShard::open_now(id, &path, env, options));
        }));
        answer.await.map_err(|_| ShardError::Unavailable("the work was dropped".into()))?
    }

    /// As [`SqliteShard::open`], on the caller's thread, which it blocks.
    pub fn open_now(id: ShardId, path: &Path, env: Arc<dyn Env>, options: SqliteOptions) -> Result<SqliteShard> {
        init();
        // The simulator's disk has no files to lock, and one process.
        let lock = if options.base_vfs.is_none() { Some(lock_file(path)?) } else { None };
        vfs::walcheck::check_and_sync(options.base_vfs.as_deref(), path).map_err(|error| match error {
            vfs::walcheck::WalError::Corrupt { .. } => ShardError::Corrupt(format!("{}: {error}", path.display())),
            error => ShardError::Unavailable(format!("cannot open {}: {error}", path.display())),
        })?;
        let writer = Writer::open(id.clone(), path, env.clone(), &options)?;
        // Any number will do, but not the one that a transaction remembers from before the shard was reopened.
        let first_state = env.random() >> 1;
        let shared = Shared {
            id,
            path: path.to_path_buf(),
            readers: Readers::new(&options),
            published: ArcSwap::from_pointee(writer.state.clone()),
            queue: Mutex::new(Queue::new(writer)),
            gathered: Condvar::new(),
            env,
            options,
            state_number: AtomicU64::new(first_state),
            changes: units::Changes::new(first_state),
            turns: turns::Turns::new(),
            lengthy: lengthy::Lengthy::new(),
            stopped: OnceLock::new(),
            commits: AtomicU64::new(0),
            transactions: AtomicU64::new(0),
            lock: Mutex::new(lock),
        };
        Ok(SqliteShard { shared: Arc::new(shared) })
    }

    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Does one of the engine's own writes under the writer.
    async fn write<T, F>(&self, time: Duration, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Writer) -> Result<T> + Send + 'static,
    {
        self.submit(time, Company::Group, work).await
    }

    async fn submit<T, F>(&self, time: Duration, company: Company, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Writer) -> Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let deadline = self.shared.env.elapsed() + time;
        queue::push(&self.shared, Box::new(Task { work, company, deadline, value: None, reply }))?;
        answer.await.map_err(|_| dropped())?
    }
}

/// The writer was dropped with a request in it, which only a crash of its job explains.
fn dropped() -> ShardError {
    ShardError::MayHaveHappened("the writer ended before it answered".into())
}

fn lock_file(path: &Path) -> Result<File> {
    let lock_path = path.with_extension("lock");
    let cannot =
        |error: std::io::Error| ShardError::Unavailable(format!("cannot open {}: {error}", lock_path.display()));
    let file = File::options().create(true).truncate(false).write(true).open(&lock_path).map_err(cannot)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(ShardError::Unavailable(format!("{} is in use by another process", path.display())))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(cannot(error)),
    }
}

fn check_request(request: &Request) -> Result<()> {
    if request.statements.len() > MAX_STATEMENTS {
        return Err(ShardError::Limit { what: "the number of statements", limit: MAX_STATEMENTS as u64 });
    }
    Ok(())
}

#[async_trait]
impl Shard for SqliteShard {
    fn id(&self) -> &ShardId {
        &self.shared.id
    }

    fn engine(&self) -> Engine {
        Engine::Sqlite
    }

    async fn execute(&self, request: Request) -> Result<Vec<Outcome>> {
        check_request(&request)?;
        request.acts_for.check(request.access)?;
        if request.access == Access::Read {
            return reader::read(&self.shared, request).await;
        }
        if self.shared.options.plants(Planted::FenceOutsideTransaction) {
            self.shared.published.load().fences.check(&request.claim, request.access)?;
            let gap = Duration::from_micros(self.shared.env.random() % PLANTED_GAP_MICROS);
            self.shared.env.sleep(gap).await;
        }
        let (reply, answer) = oneshot::channel();
        let deadline = self.shared.env.elapsed() + request.limits.time;
        let outcomes = Vec::with_capacity(request.statements.len());
        queue::push(&self.shared, Box::new(RequestMember { request, deadline, outcomes, reply }))?;
        answer.await.map_err(|_| dropped())?
    }

    async fn begin(&self, begin: Begin) -> Result<Box<dyn Transaction>> {
        begin.acts_for.check(begin.access)?;
        transaction::begin(&self.shared, begin).await
    }

    async fn snapshot(&self) -> Result<Box<dyn Snapshot>> {
        snapshot::take(&self.shared).await
    }

    async fn set_fences(&self, fences: Vec<Fence>, time: Duration) -> Result<()> {
        self.write(time, move |writer| writer.set_fences(&fences)).await
    }

    async fn set_fences_as(
        &self,
        stream: &StreamId,
        driver: DriverToken,
        fences: Vec<Fence>,
        time: Duration,
    ) -> Result<()> {
        let stream = stream.clone();
        let work = move |writer: &mut Writer| {
            stream::check(&mut writer.db, &stream, Some(driver))?;
            let before = writer.state.fences.clone();
            writer.set_fences(&fences)?;
            match writer.plants(Planted::RestartLog) && begin_to_serve(&before, &fences) {
                true => log::restart(writer),
                false => Ok(()),
            }
        };
        self.write(time, work).await
    }

    async fn fences(&self) -> Result<Vec<Fence>> {
        self.shared.check_running()?;
        Ok(self.shared.published.load().fences.fences())
    }

    async fn binding(&self) -> Result<Binding> {
        self.shared.check_running()?;
        Ok(Binding::clone(&self.shared.published.load().binding))
    }

    async fn bind(&self, binding: Binding) -> Result<()> {
        self.write(OWN_WRITE_TIME, move |writer| writer.bind(&binding)).await
    }

    async fn seq(&self) -> Result<Seq> {
        self.shared.check_running()?;
        Ok(self.shared.published.load().seq)
    }

    async fn changes(&self, after: Seq, limit: usize) -> Result<ChangePage> {
        if !EVENT_ROWS.contains(&limit) {
            return Err(ShardError::invalid(format!("a page has 1 to {} changes, not {limit}", EVENT_ROWS.end())));
        }
        reader::with_reader(&self.shared, OWN_WRITE_TIME, move |db| log::changes(db, after, limit)).await
    }

    async fn add_consumer(&self, stream: &StreamId) -> Result<Seq> {
        let stream = stream.clone();
        self.write(OWN_WRITE_TIME, move |writer| log::add_consumer(writer, &stream)).await
    }

    async fn advance(&self, stream: &StreamId, position: Seq) -> Result<()> {
        let stream = stream.clone();
        self.write(OWN_WRITE_TIME, move |writer| log::advance(writer, &stream, position)).await
    }

    async fn remove_consumer(&self, stream: &StreamId) -> Result<()> {
        let stream = stream.clone();
        self.write(OWN_WRITE_TIME, move |writer| log::remove_consumer(writer, &stream)).await
    }

    async fn consumers(&self) -> Result<Vec<Consumer>> {
        self.shared.check_running()?;
        Ok(log::consumers(&self.shared.published.load().consumers))
    }

    async fn apply(&self, batch: Batch) -> Result<Applied> {
        if batch.rows.len() > MAX_APPLY_ROWS {
            return Err(ShardError::Limit { what: "the number of rows to apply", limit: MAX_APPLY_ROWS as u64 });
        }
        self.submit(OWN_WRITE_TIME, Company::Applier, move |writer| {
            writer.state.binding.check_rows(batch.rows.iter().map(|row| &row.unit))?;
            apply::apply(writer, &batch)
        })
        .await
    }

    async fn stream_state(&self, stream: &StreamId) -> Result<StreamState> {
        let stream = stream.clone();
        reader::with_reader(&self.shared, OWN_WRITE_TIME, move |db| stream::state(db, &stream)).await
    }

    async fn open_stream(&self, stream: &StreamId, driver: DriverToken) -> Result<StreamState> {
        let stream = stream.clone();
        self.write(OWN_WRITE_TIME, move |writer| stream::open(&mut writer.db, &stream, driver)).await
    }

    async fn forget_stream(&self, stream: &StreamId, driver: Option<DriverToken>) -> Result<()> {
        stream::forget(self, stream, driver).await
    }

    async fn discard(
        &self,
        stream: &StreamId,
        driver: DriverToken,
        unserved: Vec<Claimed>,
        range: &KeyRange,
        rows: usize,
    ) -> Result<u64> {
        let leave = discard::Leave { stream: stream.clone(), driver, unserved };
        discard::discard(self, leave, range, rows).await
    }

    async fn settled(&self) -> Result<Seq> {
        let now = |writer: &mut Writer| Ok(Seq(writer.state.seq.0 + writer.capture().record.changes()));
        self.write(OWN_WRITE_TIME, now).await
    }

    async fn maintain(&self, claim: Claim, parts: Vec<EntryPart>) -> Result<()> {
        crate::entries::check_size(&parts)?;
        self.write(OWN_WRITE_TIME, move |writer| {
            writer.state.fences.check(&claim, Access::Write)?;
            entries::maintain(writer, &parts)
        })
        .await
    }

    async fn clear_entries(&self, claim: Claim, table: &str, of: EntriesOf, limit: usize) -> Result<u64> {
        let table = table.to_string();
        self.write(OWN_WRITE_TIME, move |writer| {
            writer.state.fences.check(&claim, Access::Write)?;
            entries::clear(writer, &table, &of, limit)
        })
        .await
    }

    async fn entry_buckets(&self, claim: Claim, look: EntryLook) -> Result<EntriesFound> {
        entries::buckets(&self.shared, claim, look).await
    }

    async fn import_claiming(&self, claim: Claim, table: &str, rows: Vec<StoredRow>, mode: ImportMode) -> Result<u64> {
        if rows.len() > MAX_APPLY_ROWS {
            return Err(ShardError::Limit { what: "the number of rows to import", limit: MAX_APPLY_ROWS as u64 });
        }
        let table = table.to_string();
        self.write(OWN_WRITE_TIME, move |writer| {
            writer.state.binding.check_rows(rows.iter().map(|row| &row.unit))?;
            writer.state.fences.check(&claim, Access::Write)?;
            apply::import(writer, &table, &rows, mode)
        })
        .await
    }

    async fn purge(&self, table: &str, tenant: &Option<TenantId>, rows: Option<usize>) -> Result<u64> {
        check_purge(rows)?;
        let (table, tenant) = (table.to_string(), tenant.clone());
        self.write(OWN_WRITE_TIME, move |writer| usage::purge(writer, &table, &tenant, rows)).await
    }

    async fn empty_copy(&self, table: &str, rows: usize) -> Result<u64> {
        check_is_copy(table)?;
        check_purge(Some(rows))?;
        let table = table.to_string();
        self.submit(OWN_WRITE_TIME, Company::Applier, move |writer| usage::empty(writer, &table, rows)).await
    }

    async fn apply_schema(&self, from: SchemaVersion, changes: Vec<SchemaChange>) -> Result<Arc<Schema>> {
        self.submit(SCHEMA_TIME, Company::Alone, move |writer| schema::change(writer, from, &changes)).await
    }

    async fn adopt_schema(&self, schema: Arc<Schema>) -> Result<()> {
        self.submit(SCHEMA_TIME, Company::Alone, move |writer| schema::adopt(writer, &schema)).await
    }

    async fn schema(&self) -> Result<Arc<Schema>> {
        self.shared.check_running()?;
        Ok(self.shared.published.load().schema.clone())
    }

    /// A pledge of this engine dies with its process; what was decided is redone.
    async fn pledges(&self, _prefix: &str) -> Result<Vec<PledgeId>> {
        self.shared.check_running()?;
        Ok(Vec::new())
    }

    async fn redeem(&self, id: &PledgeId, redo: Option<Vec<u8>>) -> Result<()> {
        let id = id.clone();
        let redo = redo.ok_or_else(|| ShardError::invalid("a pledge of this engine is kept by its redo"))?;
        self.submit(SCHEMA_TIME, Company::Applier, move |writer| pledge::redeem(writer, &id, &redo)).await
    }

    async fn revoke(&self, _id: &PledgeId) -> Result<()> {
        self.shared.check_running()
    }

    async fn forget_pledges(&self) -> Result<()> {
        self.write(OWN_WRITE_TIME, pledge::forget_all).await
    }

    async fn stats(&self) -> Result<ShardStats> {
        let bytes = reader::with_reader(&self.shared, OWN_WRITE_TIME, |db| {
            let pages = writer::one_int(db, "PRAGMA page_count", &[])?.unwrap_or(0);
            Ok(pages as u64 * writer::one_int(db, "PRAGMA page_size", &[])?.unwrap_or(0) as u64)
        });
        let bytes = bytes.await?;
        let state = self.shared.published.load();
        Ok(ShardStats {
            bytes,
            seq: state.seq,
            log_records: state.log_records,
            log_bytes: state.log_bytes,
            commits: self.shared.commits.load(Ordering::Relaxed),
            transactions: self.shared.transactions.load(Ordering::Relaxed),
        })
    }

    async fn close(&self) -> Result<()> {
        queue::close(&self.shared).await
    }
}
