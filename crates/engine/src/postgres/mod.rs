//! A shard that is a PostgreSQL database.
//!
//! In reading order:
//!   * [`value`]        values in the server's binary form
//!   * [`fault`]        what the server's errors mean
//!   * [`socket`]       the bytes of a connection, on which the library and we take turns
//!   * [`exchange`]     statements that are sent together and answered together
//!   * [`session`]      a connection, driven by whoever waits on it
//!   * [`line`]         a connection for those who are no shard
//!   * [`pool`]         connections, lent clean and taken back clean
//!   * [`fence`]        the fence, by advisory locks and a fresh snapshot
//!   * [`tenancy`]      the second fence around tenants, by row level security
//!   * [`binding`]      whose the shard is, where each tenant has one of its own
//!   * [`setup`]        our own tables and functions, in schema `_isles`
//!   * [`ddl`]          the kernel's schema in PostgreSQL's dialect, and the triggers
//!   * [`schema`]       the stored schema and its history
//!   * [`probe`]        whether the second fence holds, when a shard is opened
//!   * [`log`]          the change log and its readers
//!   * [`scan`]         whether a statement reads or writes
//!   * [`pledge`]       one shard's part of a commit over several
//!   * [`transaction`]  requests and interactive transactions
//!   * [`snapshot`]     pages and digests of one moment
//!   * [`usage`]        what tenants store, and how a tenant's rows go
//!   * [`stream`]       how far rows of other shards have come, and who brings them
//!   * [`apply`]        rows from elsewhere
//!   * [`copy`]         rows of a snapshot of another shard
//!   * [`discard`]      rows that a move has left
//!   * [`unique`]       rows that collide while they arrive out of order
//!
//! User tables are in `public`. There are three pools, so that no one waits for a connection that is held by someone
//! who waits for him: clients' work, in a role of its own; our own short looks, also in the midst of a client's transaction; and changes of
//! fences, schema and capture, which wait for clients to end.
//!
//! Invariants (docs/invariants.md):
//!   * I-1, I-2  the server's: an answer leaves after its COMMIT, with `synchronous_commit` on in every session
//!   * I-29      the log is written in the transaction that makes the change, by triggers
//!   * I-44      tenants are kept apart by the server, too

mod apply;
mod binding;
mod copy;
mod ddl;
mod discard;
mod entries;
mod exchange;
mod fault;
mod fence;
mod line;
mod log;
mod pledge;
mod pool;
mod probe;
mod scan;
mod schema;
mod session;
mod setup;
mod snapshot;
mod socket;
mod stream;
mod tenancy;
mod transaction;
mod unique;
mod usage;
mod value;

/// For others who speak with a PostgreSQL server.
pub mod wire {
    pub use super::line::{Ends, Line, Part, Told};
    pub use super::value::type_of;
}

use crate::binding::Binding;
use crate::discard::check_range;
use crate::entries::{EntriesFound, EntriesOf, EntryLook, EntryPart, Observed};
use crate::env::Env;
use crate::error::{Result, ShardError};
use crate::fence::{Access, Claim, Claimed, Fence};
use crate::shard::{
    Applied, Batch, Begin, ChangePage, Clients, Consumer, DriverToken, EVENT_ROWS, Engine, ImportMode, KeyRange,
    Limits, Outcome, Request, Shard, ShardStats, Snapshot, StoredRow, StreamState, Transaction, check_is_copy,
    check_purge,
};
use arc_swap::ArcSwap;
use async_trait::async_trait;
use isles_kernel::names::{PledgeId, SchemaVersion, Seq, ShardId, StreamId, TenantId};
use isles_kernel::schema::{Schema, SchemaChange};
use pool::{Conn, Connections, Ended};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use transaction::bounded;

/// Connections for our own short looks, and for changes that wait.
const CONTROL_CONNECTIONS: usize = 2;
const ADMIN_CONNECTIONS: usize = 2;
/// Our own work ends in this time, or is given up.
const OWN_LIMIT: Duration = Duration::from_secs(60);
/// Rows of a bucket may have to be searched for in a whole table.
const SEARCH_LIMIT: Duration = Duration::from_secs(3_600);
/// Commits between two looks at the log's length; a look costs far less than so many commits.
const COMMITS_PER_LOOK: u64 = 256;

#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// Connections for clients' work.
    pub connections: usize,
    /// Positions the log may span. Beyond it the slowest readers are dropped, and must start over.
    pub max_log_records: u64,
    /// Who is told of changes before they are committed.
    pub observed: Observed,
}

impl Default for PostgresOptions {
    fn default() -> PostgresOptions {
        PostgresOptions { connections: 16, max_log_records: 10_000_000, observed: Observed::default() }
    }
}

pub struct PostgresShard {
    inner: Arc<Inner>,
}

struct Inner {
    id: ShardId,
    env: Arc<dyn Env>,
    options: PostgresOptions,
    clients: Arc<Connections>,
    control: Arc<Connections>,
    admin: Connections,
    /// The schema as last seen; its version is compared with the shard's before it is used.
    schema: ArcSwap<Schema>,
    /// Whose the shard is, as last seen. It goes forward only, so what it refuses stays refused; each transaction asks
    /// the server besides.
    binding: ArcSwap<Binding>,
    marks: Mutex<log::Marks>,
    history: log::History,
    commits: AtomicU64,
    transactions: AtomicU64,
    /// Someone is looking at the log's length.
    looking: AtomicBool,
}

impl PostgresShard {
    /// Connects, makes what is missing in `_isles`, and checks that the tables are those of the stored schema.
    pub async fn open(id: ShardId, url: &str, env: Arc<dyn Env>, options: PostgresOptions) -> Result<PostgresShard> {
        let config = pool::parse_url(url)?;
        let pool = |size: usize| Connections::new(config.clone(), size, env.clone());
        let clients = Connections::new(tenancy::for_clients(config.clone()), options.connections, env.clone());
        let inner = Inner {
            id,
            clients: Arc::new(clients),
            control: Arc::new(pool(CONTROL_CONNECTIONS)),
            admin: pool(ADMIN_CONNECTIONS),
            env: env.clone(),
            options,
            schema: ArcSwap::default(),
            binding: ArcSwap::default(),
            marks: Mutex::default(),
            history: Mutex::default(),
            commits: AtomicU64::new(0),
            transactions: AtomicU64::new(0),
            looking: AtomicBool::new(false),
        };
        inner.within(OWN_LIMIT, inner.prepare()).await?;
        Ok(PostgresShard { inner: Arc::new(inner) })
    }
}

impl Inner {
    async fn prepare(&self) -> Result<()> {
        let conn = self.admin.lend().await?;
        setup::prepare(&conn).await?;
        let schema = schema::load(&conn).await?;
        schema::check_drift(&conn, &schema).await?;
        self.schema.store(Arc::new(schema));
        self.binding.store(Arc::new(binding::load(&conn).await?));
        log::settle_if_needed(&conn, self.env.as_ref()).await?;
        conn.finish(Ended::Closed);
        let client = self.clients.lend().await?;
        probe::run(&client, &self.schema.load()).await?;
        client.finish(Ended::Closed);
        Ok(())
    }

    fn watch(&self) -> transaction::Watch {
        let (shard, observed) = (self.id.clone(), self.options.observed.clone());
        transaction::Watch { shard, observed, schema: self.schema.load_full() }
    }

    /// Bounds our own work in time.
    async fn within<T>(&self, time: Duration, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        bounded(self.env.as_ref(), &Limits::default(), time, Box::pin(work)).await?
    }

    /// As [`Inner::within`], for work that commits: once its COMMIT is out, running out of time is not "nothing
    /// happened".
    async fn within_commit<T>(
        &self,
        time: Duration,
        commit: &Commit,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        match bounded(self.env.as_ref(), &Limits::default(), time, Box::pin(work)).await {
            Ok(result) => result,
            Err(_) if commit.sent.load(Ordering::SeqCst) => {
                Err(ShardError::MayHaveHappened("the time limit passed during commit".into()))
            }
            Err(error) => Err(error),
        }
    }

    async fn current_schema(&self) -> Result<Arc<Schema>> {
        let conn = self.control.lend().await?;
        let known = self.schema.load_full();
        if schema::version(&conn).await? == known.version {
            conn.keep();
            return Ok(known);
        }
        let fresh = Arc::new(schema::load(&conn).await?);
        conn.keep();
        self.schema.store(fresh.clone());
        Ok(fresh)
    }

    async fn apply_schema(
        &self,
        commit: &Commit,
        from: SchemaVersion,
        changes: &[SchemaChange],
    ) -> Result<Arc<Schema>> {
        let conn = self.admin.lend().await?;
        let work = schema::apply(&conn, from, changes).await;
        Ok(self.follow_schema(commit.end(conn, work).await?))
    }

    async fn adopt_schema(&self, commit: &Commit, schema: &Schema) -> Result<()> {
        let conn = self.admin.lend().await?;
        let work = schema::adopt(&conn, schema).await;
        self.follow_schema(commit.end(conn, work).await?);
        Ok(())
    }

    /// Goes on with the schema that holds now, which may be new.
    fn follow_schema(&self, (schema, is_new): (Schema, bool)) -> Arc<Schema> {
        let schema = Arc::new(schema);
        if is_new {
            self.clients.forget_statements();
            self.control.forget_statements();
        }
        self.schema.store(schema.clone());
        schema
    }

    async fn stats(&self) -> Result<ShardStats> {
        let conn = self.control.lend().await?;
        let seq = log::complete(&conn, &*self.env, &self.marks).await?;
        let text = "SELECT pg_database_size(current_database()), (SELECT count(*) FROM _isles.log), \
                    pg_total_relation_size('_isles.log')";
        let row = conn.row(text, &[]).await?;
        conn.keep();
        Ok(ShardStats {
            bytes: row.get::<_, i64>(0) as u64,
            seq: Seq(seq as u64),
            log_records: row.get::<_, i64>(1) as u64,
            log_bytes: row.get::<_, i64>(2) as u64,
            commits: self.commits.load(Ordering::Relaxed),
            transactions: self.transactions.load(Ordering::Relaxed),
        })
    }

    async fn consumers(&self) -> Result<Vec<Consumer>> {
        let conn = self.control.lend().await?;
        let rows = conn
            .rows("SELECT stream, position FROM _isles.consumer WHERE position IS NOT NULL ORDER BY stream", &[])
            .await?;
        conn.keep();
        let consumer = |row: &tokio_postgres::Row| {
            let stream =
                StreamId::new(row.get::<_, String>(0)).map_err(|error| ShardError::Corrupt(error.to_string()))?;
            Ok(Consumer { stream, position: Seq(row.get::<_, i64>(1) as u64) })
        };
        rows.iter().map(consumer).collect()
    }

    async fn stream_state(&self, stream: &StreamId) -> Result<StreamState> {
        let conn = self.control.lend().await?;
        let state = stream::state(&conn, stream).await?;
        conn.keep();
        Ok(state)
    }

    /// Forgets some of a stream; whether that was the end of it.
    async fn forget_some(&self, stream: &StreamId, driver: Option<DriverToken>) -> Result<bool> {
        let commit = Commit::default();
        let work = async {
            let conn = self.admin.lend().await?;
            let done = stream::forget_chunk(&conn, stream, driver).await;
            commit.end(conn, done).await
        };
        self.within_commit(OWN_LIMIT, &commit, work).await
    }

    /// Drops readers that keep too much of the log.
    async fn enforce_log_limit(&self) -> Result<()> {
        let conn = self.admin.lend().await?;
        log::enforce_limit(&conn, self.env.as_ref(), self.options.max_log_records).await?;
        conn.finish(Ended::Closed);
        Ok(())
    }
}

/// Whether a COMMIT is on its way.
#[derive(Default)]
struct Commit {
    sent: AtomicBool,
}

impl Commit {
    /// Commits if the work succeeded and rolls back if it did not.
    async fn end<T>(&self, conn: Conn, work: Result<T>) -> Result<T> {
        match work {
            Ok(value) => {
                self.sent.store(true, Ordering::SeqCst);
                let answer = conn.batch_execute("COMMIT").await.map_err(fault::during_commit);
                self.sent.store(false, Ordering::SeqCst);
                conn.finish(Ended::Closed);
                answer.map(|()| value)
            }
            Err(error) => {
                conn.finish(Ended::Open);
                Err(error)
            }
        }
    }
}

/// What a reader of the log does where others may still commit something earlier.
enum Gaps {
    EndIt,
    AreSkipped,
}

impl PostgresShard {
    /// Sets fences, for the driver of a stream or for nobody in particular.
    async fn fence(&self, driven: Option<(&StreamId, DriverToken)>, fences: &[Fence], time: Duration) -> Result<()> {
        let commit = Commit::default();
        let work = async {
            let conn = self.inner.admin.lend().await?;
            let done = fence::set(&conn, driven, fences, time).await;
            commit.end(conn, done).await
        };
        self.inner.within_commit(time, &commit, work).await
    }

    async fn read_log(&self, after: Seq, limit: usize, gaps: Gaps) -> Result<ChangePage> {
        if !EVENT_ROWS.contains(&limit) {
            return Err(ShardError::invalid(format!("a page has 1 to {} changes, not {limit}", EVENT_ROWS.end())));
        }
        let inner = &self.inner;
        let work = async {
            let conn = inner.control.lend().await?;
            let page = match gaps {
                Gaps::EndIt => log::changes(&conn, &*inner.env, &inner.marks, &inner.history, after, limit).await,
                Gaps::AreSkipped => log::committed(&conn, &inner.history, after, limit).await,
            };
            // Being behind the log is no reason to lose the connection.
            if matches!(page, Ok(_) | Err(ShardError::Trimmed { .. } | ShardError::Invalid(_))) {
                conn.keep();
            }
            page
        };
        inner.within(OWN_LIMIT, work).await
    }

    /// Counts a commit, and now and then looks whether the log has grown too long.
    fn count_commit(&self) {
        let commits = self.inner.commits.fetch_add(1, Ordering::Relaxed) + 1;
        if !commits.is_multiple_of(COMMITS_PER_LOOK) || self.inner.looking.swap(true, Ordering::SeqCst) {
            return;
        }
        let inner = self.inner.clone();
        self.inner.env.spawn(Box::pin(async move {
            // Tried again after the next commits; the log is a burden meanwhile, not a danger.
            let _ = inner.within(OWN_LIMIT, inner.enforce_log_limit()).await;
            inner.looking.store(false, Ordering::SeqCst);
        }));
    }
}

#[async_trait]
impl Shard for PostgresShard {
    fn id(&self) -> &ShardId {
        &self.inner.id
    }

    fn engine(&self) -> Engine {
        Engine::Postgres
    }

    fn clients(&self) -> Clients {
        Clients { count: self.inner.clients.count(), texts: self.inner.clients.texts() }
    }

    async fn expect_clients(&self, clients: &Clients) {
        let warm = async {
            self.inner.clients.warm(clients).await;
            Ok(())
        };
        // What is missing is made when it is needed.
        let _ = self.inner.within(OWN_LIMIT, warm).await;
    }

    async fn execute(&self, request: Request) -> Result<Vec<Outcome>> {
        request.acts_for.check(request.access)?;
        let inner = &self.inner;
        inner.transactions.fetch_add(1, Ordering::Relaxed);
        let outcomes =
            transaction::execute(&inner.clients, inner.env.as_ref(), &inner.binding.load(), &inner.watch(), &request)
                .await?;
        if request.access == Access::Write {
            self.count_commit();
        }
        Ok(outcomes)
    }

    async fn begin(&self, begin: Begin) -> Result<Box<dyn Transaction>> {
        begin.acts_for.check(begin.access)?;
        self.inner.transactions.fetch_add(1, Ordering::Relaxed);
        if begin.access == Access::Write {
            self.count_commit();
        }
        let inner = &self.inner;
        let binding = inner.binding.load_full();
        let watch = inner.watch();
        let begun = transaction::begin(&inner.id, &inner.clients, &inner.control, &inner.env, binding, watch, begin);
        Ok(Box::new(begun.await?))
    }

    async fn snapshot(&self) -> Result<Box<dyn Snapshot>> {
        let inner = &self.inner;
        let take = snapshot::take(&inner.clients, &inner.control, &*inner.env, &inner.marks);
        Ok(Box::new(inner.within(OWN_LIMIT, take).await?))
    }

    async fn set_fences(&self, fences: Vec<Fence>, time: Duration) -> Result<()> {
        self.fence(None, &fences, time).await
    }

    async fn set_fences_as(
        &self,
        stream: &StreamId,
        driver: DriverToken,
        fences: Vec<Fence>,
        time: Duration,
    ) -> Result<()> {
        self.fence(Some((stream, driver)), &fences, time).await
    }

    async fn fences(&self) -> Result<Vec<Fence>> {
        let work = async {
            let conn = self.inner.control.lend().await?;
            let fences = fence::load(&conn).await?;
            conn.keep();
            Ok(fences)
        };
        self.inner.within(OWN_LIMIT, work).await
    }

    async fn binding(&self) -> Result<Binding> {
        let work = async {
            let conn = self.inner.control.lend().await?;
            let binding = binding::load(&conn).await?;
            conn.keep();
            Ok(binding)
        };
        self.inner.within(OWN_LIMIT, work).await
    }

    async fn bind(&self, binding: Binding) -> Result<()> {
        let commit = Commit::default();
        let work = async {
            let schema = self.inner.current_schema().await?;
            let conn = self.inner.admin.lend().await?;
            let done = binding::set(&conn, &schema, &binding).await;
            commit.end(conn, done).await
        };
        self.inner.within_commit(OWN_LIMIT, &commit, work).await?;
        self.inner.binding.store(Arc::new(binding));
        Ok(())
    }

    async fn seq(&self) -> Result<Seq> {
        let work = async {
            let conn = self.inner.control.lend().await?;
            let seq = log::complete(&conn, &*self.inner.env, &self.inner.marks).await?;
            conn.keep();
            Ok(Seq(seq as u64))
        };
        self.inner.within(OWN_LIMIT, work).await
    }

    async fn changes(&self, after: Seq, limit: usize) -> Result<ChangePage> {
        self.read_log(after, limit, Gaps::EndIt).await
    }

    async fn committed_changes(&self, after: Seq, limit: usize) -> Result<ChangePage> {
        self.read_log(after, limit, Gaps::AreSkipped).await
    }

    async fn add_consumer(&self, stream: &StreamId) -> Result<Seq> {
        let inner = &self.inner;
        let work = async {
            let conn = inner.admin.lend().await?;
            let seq = log::add_consumer(&conn, inner.env.as_ref(), &inner.marks, stream).await?;
            conn.finish(Ended::Closed);
            Ok(seq)
        };
        inner.within(OWN_LIMIT, work).await
    }

    async fn advance(&self, stream: &StreamId, position: Seq) -> Result<()> {
        let inner = &self.inner;
        let work = async {
            let conn = inner.control.lend().await?;
            log::advance(&conn, &*inner.env, &inner.marks, stream, position).await?;
            conn.keep();
            Ok(())
        };
        inner.within(OWN_LIMIT, work).await
    }

    async fn remove_consumer(&self, stream: &StreamId) -> Result<()> {
        let inner = &self.inner;
        let work = async {
            let conn = inner.admin.lend().await?;
            log::remove_consumer(&conn, inner.env.as_ref(), stream).await?;
            conn.finish(Ended::Closed);
            Ok(())
        };
        inner.within(OWN_LIMIT, work).await
    }

    async fn consumers(&self) -> Result<Vec<Consumer>> {
        self.inner.within(OWN_LIMIT, self.inner.consumers()).await
    }

    async fn apply(&self, batch: Batch) -> Result<Applied> {
        self.inner.binding.load().check_rows(batch.rows.iter().map(|row| &row.unit))?;
        let commit = Commit::default();
        let work = async {
            let schema = self.inner.current_schema().await?;
            let conn = self.inner.clients.lend().await?;
            let done = apply::apply(&conn, &schema, &batch).await;
            commit.end(conn, done).await
        };
        self.inner.within_commit(OWN_LIMIT, &commit, work).await
    }

    async fn stream_state(&self, stream: &StreamId) -> Result<StreamState> {
        self.inner.within(OWN_LIMIT, self.inner.stream_state(stream)).await
    }

    async fn open_stream(&self, stream: &StreamId, driver: DriverToken) -> Result<StreamState> {
        let commit = Commit::default();
        let work = async {
            let conn = self.inner.admin.lend().await?;
            let done = stream::open(&conn, stream, driver).await;
            commit.end(conn, done).await
        };
        self.inner.within_commit(OWN_LIMIT, &commit, work).await
    }

    async fn forget_stream(&self, stream: &StreamId, driver: Option<DriverToken>) -> Result<()> {
        while !self.inner.forget_some(stream, driver).await? {}
        Ok(())
    }

    async fn discard(
        &self,
        stream: &StreamId,
        driver: DriverToken,
        unserved: Vec<Claimed>,
        range: &KeyRange,
        rows: usize,
    ) -> Result<u64> {
        check_range(range, &unserved, rows)?;
        let commit = Commit::default();
        let work = async {
            let schema = self.inner.current_schema().await?;
            let conn = self.inner.clients.lend().await?;
            let leftovers = discard::Leftovers::new(schema.table(&range.table)?, range)?;
            let found = leftovers.find(&conn, rows).await?;
            let done = leftovers.delete(&conn, (stream, driver), &unserved, &found).await;
            commit.end(conn, done).await
        };
        self.inner.within_commit(SEARCH_LIMIT, &commit, work).await
    }

    async fn settled(&self) -> Result<Seq> {
        let inner = &self.inner;
        let work = async {
            let conn = inner.control.lend().await?;
            let position = log::settled(&conn, inner.env.as_ref()).await?;
            conn.keep();
            Ok(Seq(position as u64))
        };
        inner.within(OWN_LIMIT, work).await
    }

    async fn maintain(&self, claim: Claim, parts: Vec<EntryPart>) -> Result<()> {
        crate::entries::check_size(&parts)?;
        let commit = Commit::default();
        let work = async {
            let schema = self.inner.current_schema().await?;
            let conn = self.inner.clients.lend().await?;
            let entry = fence::Entry::new(claim, Access::Write);
            let done = entries::maintain(&conn, &entry, &schema, &parts).await;
            commit.end(conn, done).await
        };
        self.inner.within_commit(OWN_LIMIT, &commit, work).await
    }

    async fn clear_entries(&self, claim: Claim, table: &str, of: EntriesOf, limit: usize) -> Result<u64> {
        let commit = Commit::default();
        let work = async {
            let schema = self.inner.current_schema().await?;
            let conn = self.inner.clients.lend().await?;
            let entry = fence::Entry::new(claim, Access::Write);
            let done = entries::clear(&conn, &entry, &schema, table, &of, limit).await;
            commit.end(conn, done).await
        };
        self.inner.within_commit(OWN_LIMIT, &commit, work).await
    }

    async fn entry_buckets(&self, claim: Claim, look: EntryLook) -> Result<EntriesFound> {
        let work = async {
            let conn = self.inner.control.lend().await?;
            let entry = fence::Entry::new(claim, Access::Read);
            let found = entries::buckets(&conn, &entry, &look).await?;
            conn.keep();
            Ok(found)
        };
        bounded(self.inner.env.as_ref(), &look.limits, look.limits.time.min(OWN_LIMIT), Box::pin(work)).await?
    }

    async fn import_claiming(&self, claim: Claim, table: &str, rows: Vec<StoredRow>, mode: ImportMode) -> Result<u64> {
        self.inner.binding.load().check_rows(rows.iter().map(|row| &row.unit))?;
        let commit = Commit::default();
        let work = async {
            let schema = self.inner.current_schema().await?;
            let conn = self.inner.clients.lend().await?;
            let entry = fence::Entry::new(claim, Access::Write);
            let done = apply::import(&conn, &entry, &schema, table, &rows, mode).await;
            commit.end(conn, done).await
        };
        self.inner.within_commit(OWN_LIMIT, &commit, work).await
    }

    async fn purge(&self, table: &str, tenant: &Option<TenantId>, rows: Option<usize>) -> Result<u64> {
        check_purge(rows)?;
        let commit = Commit::default();
        let work = async {
            let schema = self.inner.current_schema().await?;
            let conn = self.inner.clients.lend().await?;
            let done = usage::purge(&conn, &schema, table, tenant, rows).await;
            commit.end(conn, done).await
        };
        self.inner.within_commit(OWN_LIMIT, &commit, work).await
    }

    /// A table is dropped with its file, whatever is in it.
    async fn empty_copy(&self, table: &str, _rows: usize) -> Result<u64> {
        check_is_copy(table).map(|()| 0)
    }

    async fn apply_schema(&self, from: SchemaVersion, changes: Vec<SchemaChange>) -> Result<Arc<Schema>> {
        let commit = Commit::default();
        self.inner.within_commit(OWN_LIMIT, &commit, self.inner.apply_schema(&commit, from, &changes)).await
    }

    async fn adopt_schema(&self, schema: Arc<Schema>) -> Result<()> {
        let commit = Commit::default();
        self.inner.within_commit(OWN_LIMIT, &commit, self.inner.adopt_schema(&commit, &schema)).await
    }

    async fn schema(&self) -> Result<Arc<Schema>> {
        self.inner.within(OWN_LIMIT, self.inner.current_schema()).await
    }

    async fn pledges(&self, prefix: &str) -> Result<Vec<PledgeId>> {
        self.inner.within(OWN_LIMIT, pledge::list(&self.inner.control, &self.inner.id, prefix)).await
    }

    async fn redeem(&self, id: &PledgeId, redo: Option<Vec<u8>>) -> Result<()> {
        let xid = redo.and_then(|redo| String::from_utf8(redo).ok());
        let (control, shard) = (&self.inner.control, &self.inner.id);
        let word = pledge::end(control, shard, id, pledge::Word::Commit, xid.as_deref());
        self.inner.within(OWN_LIMIT, word).await?;
        // It may have changed the schema.
        self.inner.clients.forget_statements();
        self.inner.control.forget_statements();
        Ok(())
    }

    async fn revoke(&self, id: &PledgeId) -> Result<()> {
        let (control, shard) = (&self.inner.control, &self.inner.id);
        self.inner.within(OWN_LIMIT, pledge::end(control, shard, id, pledge::Word::Rollback, None)).await
    }

    /// The server forgets a pledge when it is kept.
    async fn forget_pledges(&self) -> Result<()> {
        Ok(())
    }

    async fn stats(&self) -> Result<ShardStats> {
        self.inner.within(OWN_LIMIT, self.inner.stats()).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.clients.close().await;
        self.inner.admin.close().await;
        self.inner.control.close().await;
        Ok(())
    }
}
