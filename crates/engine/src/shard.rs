//! The shard: one physical database with one writer at a time, whatever engine is behind it.
//!
//! The trait is what the rest of Isles knows of a database. A shard can run a transaction under a fence, tell its
//! `seq`, read its change log after a `seq`, take a snapshot at a known `seq` and page through it by key, apply
//! changes idempotently with the position stored in the same transaction, digest a key range, and apply schema.
//!
//! Statements are in the engine's own dialect; nobody below the router looks at SQL text. Values are typed, and the
//! caller says which types a result has, since SQLite does not know.
//!
//! Invariants (docs/invariants.md):
//!   * I-1, I-2  what was acknowledged survives any crash, whole
//!   * I-4       no answer leaves before the writes it reveals are durable
//!   * I-7       the fence is checked in the request's own transaction
//!   * I-29      the log has exactly the committed changes, in an order that respects every dependency
//!   * I-30      a reader of the log never skips a change
//!   * I-44      a shard that is one tenant's refuses every other, in the request's own transaction
//!   * I-13      a stream has one driver; what an earlier one sends is refused, in the batch's own transaction

use crate::binding::Binding;
use crate::entries::{EntriesFound, EntriesOf, EntryLook, EntryPart};
use crate::error::{Result, ShardError};
use crate::fence::{Access, Claim, Claimed, Fence};
use crate::usage::{MAX_USAGE_TENANTS, TenantRange, UsagePage};
use async_trait::async_trait;
use isles_kernel::change::Change;
use isles_kernel::names::{
    BucketId, GroupName, PledgeId, RoutingVersion, SchemaVersion, Seq, ShardId, StreamId, TenantId,
};
use isles_kernel::schema::{Schema, SchemaChange, Unit, global_bucket, is_copy_namespace, relation_parts};
use isles_kernel::value::{DataType, Value};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Rows of an export page: few enough for one HTTP answer.
pub const EXPORT_ROWS: RangeInclusive<usize> = 1..=500;
/// Rows of an export page when not said.
pub const DEFAULT_EXPORT_ROWS: usize = 200;
/// Changes of a page of the log: few enough to be decoded in a moment.
pub const EVENT_ROWS: RangeInclusive<usize> = 1..=2_000;
/// Rows of an internal page; beyond it a page is a burden on memory rather than a saving of round trips.
pub const MAX_PAGE_ROWS: usize = 10_000;
/// Rows or changes of one apply; it is one transaction and holds the writer.
pub const MAX_APPLY_ROWS: usize = 10_000;
/// Versions of rows that a stream forgets at once: a few milliseconds of the writer.
pub(crate) const FORGET_ROWS: usize = 2_000;
/// Parameters of a statement, the same on both engines (SQLite's own limit is 32,766, PostgreSQL's 65,535).
pub const MAX_PARAMETERS: usize = 32_766;
/// Bytes of a statement's text.
pub const MAX_SQL_BYTES: usize = 1 << 20;
/// Statements of one request.
pub const MAX_STATEMENTS: usize = 10_000;
/// What a shard may have to keep of one transaction over several shards. It is held in memory, and written to the
/// catalog and back.
pub const MAX_REDO_BYTES: usize = 32 << 20;

pub type Row = Vec<Value>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    Sqlite,
    Postgres,
}

/// One statement in the engine's dialect.
#[derive(Debug, Clone)]
pub struct Statement {
    pub sql: Arc<str>,
    pub params: Vec<Value>,
    /// Types of the result's columns, in order; empty when there is no result.
    pub columns: Arc<[DataType]>,
    /// Whether Isles composed the text. Such a text does what it says and no more: it ends no transaction, and leaves
    /// nothing behind in a session.
    pub composed: bool,
    /// Whether it inserts, updates or deletes.
    pub writes: bool,
}

impl Statement {
    pub fn new(sql: impl Into<Arc<str>>, params: Vec<Value>) -> Statement {
        Statement { sql: sql.into(), params, columns: Arc::from([]), composed: false, writes: false }
    }

    pub fn returning(mut self, columns: impl Into<Arc<[DataType]>>) -> Statement {
        self.columns = columns.into();
        self
    }

    pub fn composed(mut self) -> Statement {
        self.composed = true;
        self
    }

    pub fn writing(mut self) -> Statement {
        self.writes = true;
        self
    }
}

/// What a statement gave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    pub rows: Vec<Row>,
    /// Rows inserted, updated or deleted.
    pub affected: u64,
}

/// Cancels the request that carries a clone of it.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<Cancelled>);

#[derive(Debug, Default)]
struct Cancelled {
    said: AtomicBool,
    waiting: Notify,
}

impl CancelToken {
    pub fn cancel(&self) {
        self.0.said.store(true, Ordering::SeqCst);
        self.0.waiting.notify_waiters();
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.said.load(Ordering::SeqCst)
    }

    /// Waits until it is cancelled, for ever if it never is.
    pub async fn cancelled(&self) {
        let mut told = std::pin::pin!(self.0.waiting.notified());
        // In line first, and then a look: who cancels in between has told us.
        told.as_mut().enable();
        if !self.is_cancelled() {
            told.await;
        }
    }
}

/// Bounds of a request. Passing one ends that request only.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Time from the moment the shard receives the request to its answer, waiting included. For an interactive
    /// transaction, the time of each statement.
    pub time: Duration,
    pub rows: usize,
    pub bytes: usize,
    pub cancel: CancelToken,
}

impl Default for Limits {
    /// The first proposal of the limits: 30 s, a million rows, 256 MiB.
    fn default() -> Limits {
        Limits { time: Duration::from_secs(30), rows: 1_000_000, bytes: 256 << 20, cancel: CancelToken::default() }
    }
}

/// Whose rows of tenant tables a request reads and writes. The shard keeps to it by itself, whatever the statements
/// say: it is the second fence around a tenant, beside the predicates that planning puts into every statement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ActsFor {
    /// Nobody's: tenant tables are empty, and nothing is written to them.
    #[default]
    Nobody,
    /// A tenant's, or the null tenant's.
    Tenant(Option<TenantId>),
    /// All that there are, to be read and not written: an administrator's question over all tenants. Which of them the shard
    /// owns, the statement asks by itself.
    Everyone,
}

impl ActsFor {
    /// As `_tenant` stores it.
    pub fn key(&self) -> Option<&str> {
        match self {
            ActsFor::Nobody | ActsFor::Everyone => None,
            ActsFor::Tenant(tenant) => Some(tenant.as_ref().map_or("", TenantId::as_str)),
        }
    }

    /// Refuses to write in the name of all tenants (I-44).
    pub(crate) fn check(&self, access: Access) -> Result<()> {
        match (self, access) {
            (ActsFor::Everyone, Access::Write) => {
                Err(ShardError::statement("25006", "who acts for all tenants reads and does not write"))
            }
            _ => Ok(()),
        }
    }
}

/// Statements that form one transaction, all known beforehand. Requests share their disk flush with others.
#[derive(Debug, Clone)]
pub struct Request {
    pub claim: Claim,
    pub acts_for: ActsFor,
    pub access: Access,
    pub statements: Vec<Statement>,
    pub limits: Limits,
}

impl Request {
    pub fn read(claim: Claim, statement: Statement) -> Request {
        let (acts_for, limits) = (ActsFor::default(), Limits::default());
        Request { claim, acts_for, access: Access::Read, statements: vec![statement], limits }
    }

    pub fn write(claim: Claim, statements: Vec<Statement>) -> Request {
        let (acts_for, limits) = (ActsFor::default(), Limits::default());
        Request { claim, acts_for, access: Access::Write, statements, limits }
    }

    pub fn acting_for(mut self, acts_for: ActsFor) -> Request {
        self.acts_for = acts_for;
        self
    }
}

/// As PostgreSQL's levels. A SQLite shard is serializable at each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    #[default]
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

/// A state of a shard that is open: it rises with each commit. Equal numbers mean that nothing was committed between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateNumber(pub u64);

/// How an interactive transaction begins.
#[derive(Debug, Clone)]
pub struct Begin {
    pub claim: Claim,
    pub acts_for: ActsFor,
    pub access: Access,
    pub isolation: Isolation,
    pub limits: Limits,
    /// For a transaction that has read from a snapshot and now writes: it conflicts if any unit of its claim has changed
    /// since.
    /// Only where snapshots have a number.
    pub since: Option<StateNumber>,
}

impl Begin {
    pub fn new(claim: Claim, access: Access) -> Begin {
        let (isolation, limits) = (Isolation::default(), Limits::default());
        Begin { claim, acts_for: ActsFor::default(), access, isolation, limits, since: None }
    }

    pub fn acting_for(mut self, acts_for: ActsFor) -> Begin {
        self.acts_for = acts_for;
        self
    }
}

/// Names an open cursor within its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CursorId(pub u32);

/// Some rows of a cursor; `done` when there are no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CursorPage {
    pub rows: Vec<Row>,
    pub done: bool,
}

/// A change of the schema within a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaStep {
    /// The version that the transaction has made of the schema so far.
    pub from: SchemaVersion,
    /// Applied in order. They make the version after `from`, also if there are none.
    pub changes: Vec<SchemaChange>,
    /// What a new table's rows belong to is served from here on. Where a fence speaks of a unit already, it stays.
    pub fences: Vec<Fence>,
}

/// An interactive transaction. Dropping it rolls it back.
///
/// After an error the transaction is over, as in PostgreSQL, unless a savepoint is rolled back to.
#[async_trait]
pub trait Transaction: Send {
    /// Claims more units, checked like the first ones.
    async fn claim(&mut self, claim: Claim) -> Result<()>;
    async fn execute(&mut self, statement: &Statement) -> Result<Outcome>;
    /// Runs statements one after the other, up to the first that fails.
    async fn execute_all(&mut self, statements: Vec<Statement>) -> Result<Vec<Outcome>>;
    /// Begins to read a result piecemeal.
    async fn open(&mut self, statement: &Statement) -> Result<CursorId>;
    async fn fetch(&mut self, cursor: CursorId, rows: usize) -> Result<CursorPage>;
    async fn close(&mut self, cursor: CursorId) -> Result<()>;
    /// Changes the schema within the transaction: it is there for the statements that follow, and for everyone once
    /// the transaction has committed. Refused, as any statement is, for what is in the tables.
    async fn change_schema(&mut self, step: SchemaStep) -> Result<()>;
    async fn savepoint(&mut self, name: &str) -> Result<()>;
    async fn rollback_to(&mut self, name: &str) -> Result<()>;
    async fn release(&mut self, name: &str) -> Result<()>;
    async fn commit(self: Box<Self>) -> Result<()>;
    async fn rollback(self: Box<Self>) -> Result<()>;

    /// Bounds the statements that follow; until then they have the bounds of [`Begin`].
    fn bound(&mut self, limits: Limits);

    /// The state that a reading transaction shows, or an earlier one. None where states have no number.
    fn state(&self) -> Option<StateNumber> {
        None
    }

    /// Whether nothing that others can see has been committed since the moment that a reading transaction shows. None
    /// where that cannot be told.
    fn is_current(&mut self) -> Option<bool> {
        None
    }

    /// Whether there is anything to commit.
    async fn has_written(&mut self) -> Result<bool>;

    /// The first phase of a commit over several shards: from here on the transaction can commit, whatever happens, and
    /// waits for the word. `forget` are earlier pledges whose decisions are gone; remembering them ends in the same
    /// transaction.
    async fn pledge(self: Box<Self>, id: &PledgeId, forget: Vec<PledgeId>) -> Result<Box<dyn Pledge>>;
}

/// A transaction that has promised to commit. The promise must be kept once the decision is recorded: a pledge that
/// is dropped, or whose commit fails, stops a shard that does not keep it by itself.
#[async_trait]
pub trait Pledge: Send {
    /// What carries the transaction out again should the process die before [`Pledge::commit`]. None: the shard itself
    /// keeps it.
    fn redo(&self) -> Option<&[u8]>;
    /// Keeps the promise: the decision is recorded.
    async fn commit(self: Box<Self>) -> Result<()>;
    /// Takes it back: there is no decision, and there will be none.
    async fn rollback(self: Box<Self>) -> Result<()>;
}

/// Which rows of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    All,
    Buckets(GroupName, Vec<RangeInclusive<u32>>),
    Tenants(Vec<Option<TenantId>>),
}

impl Scope {
    pub fn bucket(group: GroupName, bucket: BucketId) -> Scope {
        Scope::Buckets(group, vec![bucket.0..=bucket.0])
    }

    /// Whether rows of global tables are in it.
    pub(crate) fn has_global(&self) -> bool {
        let (global, bucket) = global_bucket();
        match self {
            Scope::All => true,
            Scope::Buckets(group, ranges) => *group == global && ranges.iter().any(|range| range.contains(&bucket.0)),
            Scope::Tenants(_) => false,
        }
    }
}

/// A range of physical keys of one table: after `after`, up to and with `through`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    pub table: String,
    pub scope: Scope,
    pub after: Option<Vec<Value>>,
    pub through: Option<Vec<Value>>,
}

impl KeyRange {
    pub fn table(table: &str) -> KeyRange {
        KeyRange { table: table.into(), scope: Scope::All, after: None, through: None }
    }

    pub fn within(mut self, scope: Scope) -> KeyRange {
        self.scope = scope;
        self
    }
}

/// A row as it stands in a table: the user's columns, and the unit it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRow {
    pub unit: Unit,
    pub values: Row,
}

/// Rows in key order; `next` is where the following page begins, none at the end of the range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub rows: Vec<StoredRow>,
    pub next: Option<Vec<Value>>,
}

/// A summary of a key range. Two ranges with equal rows have equal digests, on any engine; digests of adjacent
/// ranges add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digest {
    pub rows: u64,
    pub sum: u128,
}

impl std::ops::Add for Digest {
    type Output = Digest;
    fn add(self, other: Digest) -> Digest {
        Digest { rows: self.rows + other.rows, sum: self.sum.wrapping_add(other.sum) }
    }
}

/// The state of a shard at one moment, for as long as it is held.
#[async_trait]
pub trait Snapshot: Send {
    /// Every change up to this position is in the snapshot. On PostgreSQL a few later ones may be, too, since
    /// positions are not given out in commit order; whoever applies the changes after it ends in the same rows.
    fn seq(&self) -> Seq;
    /// Changes after that position that are in the snapshot all the same.
    async fn later_changes(&mut self) -> Result<BTreeSet<Seq>> {
        Ok(BTreeSet::new())
    }
    fn schema(&self) -> &Schema;
    async fn page(&mut self, range: &KeyRange, rows: usize) -> Result<Page>;
    async fn digest(&mut self, range: &KeyRange) -> Result<Digest>;
    /// How many rows a range has.
    async fn count(&mut self, range: &KeyRange) -> Result<u64>;
    /// What tenants have in all tables, at most so many tenants.
    async fn usage(&mut self, range: &TenantRange, tenants: usize) -> Result<UsagePage>;
    /// How many rows of a hash table are in each bucket that has some. The whole table is read.
    async fn bucket_rows(&mut self, table: &str) -> Result<BTreeMap<BucketId, u64>>;
    /// The tenants that have rows in a tenant table, in the order of their names' bytes, the null tenant first: those
    /// after a tenant, at most so many. Rows between two names are not read.
    async fn tenants(
        &mut self,
        table: &str,
        after: Option<&Option<TenantId>>,
        limit: usize,
    ) -> Result<Vec<Option<TenantId>>>;
}

/// Whether a shard that has a schema needs another one to be made; one that has something else takes none.
pub(crate) fn needs_schema(has: &Schema, wanted: &Schema) -> Result<bool> {
    match has.version == wanted.version && has.hash() == wanted.hash() {
        true => Ok(false),
        false if *has == Schema::default() => Ok(true),
        false => Err(ShardError::invalid(format!("the shard has schema version {} already", has.version))),
    }
}

/// A page of tenants has a size.
pub(crate) fn check_tenants(tenants: usize) -> Result<()> {
    match tenants {
        1..=MAX_USAGE_TENANTS => Ok(()),
        _ => Err(ShardError::invalid(format!("a page has 1 to {MAX_USAGE_TENANTS} tenants, not {tenants}"))),
    }
}

/// Rows go uncaptured only from tables that nobody can name.
pub(crate) fn check_is_copy(table: &str) -> Result<()> {
    match is_copy_namespace(relation_parts(table).0) {
        true => Ok(()),
        false => Err(ShardError::invalid(format!("\"{table}\" is not a copy"))),
    }
}

/// What is deleted at once is a transaction that others wait for.
pub(crate) fn check_purge(rows: Option<usize>) -> Result<()> {
    match rows {
        None | Some(1..=MAX_APPLY_ROWS) => Ok(()),
        Some(rows) => Err(ShardError::invalid(format!("1 to {MAX_APPLY_ROWS} rows are deleted at once, not {rows}"))),
    }
}

/// Some of the change log. `through` is the position read up to, which passes `changes` when the log has gaps: it is
/// where the next page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangePage {
    pub changes: Vec<Change>,
    pub through: Seq,
}

/// A reader of the change log. The log keeps what the slowest one has not passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    pub stream: StreamId,
    pub position: Seq,
}

/// How new a row is: the routing version its owner wrote it under, then the position in that owner's log. Positions
/// of two shards are not comparable; routing versions are. Nobody looks at that of a copied row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowVersion {
    pub epoch: RoutingVersion,
    pub seq: Seq,
}

impl RowVersion {
    /// Newer than any that there is.
    pub(crate) const NEWEST: RowVersion = RowVersion { epoch: RoutingVersion(u64::MAX), seq: Seq(u64::MAX) };
}

/// A row that comes from another shard, or the news that it is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming {
    pub table: String,
    pub unit: Unit,
    pub key: Vec<Value>,
    pub version: RowVersion,
    /// None: the row was deleted; a tombstone remains, so that an older copy cannot bring it back.
    pub row: Option<Row>,
}

/// Tells those who drive a stream apart, one after the other: a later one has a larger token. A process that was frozen
/// and comes back late still believes that the stream is its own; the shard knows better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverToken(pub u64);

impl DriverToken {
    /// As it is stored.
    pub(crate) fn stored(self) -> Result<i64> {
        i64::try_from(self.0).map_err(|_| ShardError::invalid("a driver's token is below 2^63"))
    }
}

/// What the rows of a batch are. Copies and changes of one stream may come in any order, and end in the same rows, if the
/// source had the stream's consumer before the first snapshot that is copied from was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BatchKind {
    /// Changes of the source's log. Each is applied if it is newer than what is known of its key, and leaves its version.
    #[default]
    Changes,
    /// Rows of a snapshot of the source. Whatever is known of a key is newer; a copied row leaves no version.
    Copy,
    /// Rows as they must be: each is applied, and leaves its version, whatever is known of its key. For whoever has compared
    /// both shards, and lets nothing be applied meanwhile.
    Repair,
}

/// Rows to apply, in one transaction with the position they bring the stream to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub stream: StreamId,
    /// Who brings them. The stream must be open with this very token, or nothing is applied; none: nobody asks.
    pub driver: Option<DriverToken>,
    pub kind: BatchKind,
    pub rows: Vec<Incoming>,
    /// Where the stream stands after this batch: a position in the source's log, and a copy's cursor in the caller's
    /// own encoding. A position that is behind the stored one leaves it.
    pub position: Option<Seq>,
    pub cursor: Option<Vec<u8>>,
}

impl Batch {
    /// Changes that nobody in particular brings, and that leave the stream where it stands.
    pub fn new(stream: &StreamId, rows: Vec<Incoming>) -> Batch {
        Batch { stream: stream.clone(), driver: None, kind: BatchKind::Changes, rows, position: None, cursor: None }
    }
}

/// Where a stream of applied rows stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamState {
    pub position: Seq,
    pub cursor: Option<Vec<u8>>,
}

/// What an apply did; rows that were not newer than what was there are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Applied {
    pub written: u64,
    pub deleted: u64,
    pub stale: u64,
}

/// What importing a row does when its key is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportMode {
    /// Replace it, if it belongs to the same unit.
    Upsert,
    /// Refuse the page.
    Insert,
}

/// Figures for metrics and `SHOW SHARDS`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardStats {
    pub bytes: u64,
    pub seq: Seq,
    pub log_records: u64,
    pub log_bytes: u64,
    pub commits: u64,
    pub transactions: u64,
}

/// Clients of a shard.
#[derive(Debug, Clone, Default)]
pub struct Clients {
    /// How many there have been at once.
    pub count: usize,
    /// Statements that they have lately run, some of them.
    pub texts: BTreeSet<Arc<str>>,
}

/// One physical database.
#[async_trait]
pub trait Shard: Send + Sync {
    fn id(&self) -> &ShardId;
    fn engine(&self) -> Engine;

    /// Those who are served, where it costs something to serve one more.
    fn clients(&self) -> Clients {
        Clients::default()
    }
    /// Makes ready for clients as another shard has them, so that none has to wait for it. They are served all the same
    /// if it does not succeed.
    async fn expect_clients(&self, _clients: &Clients) {}

    /// Runs a transaction whose statements are all known. The answer comes when it is durable.
    async fn execute(&self, request: Request) -> Result<Vec<Outcome>>;
    /// Begins a transaction whose statements come one by one.
    async fn begin(&self, begin: Begin) -> Result<Box<dyn Transaction>>;
    async fn snapshot(&self) -> Result<Box<dyn Snapshot>>;

    /// Sets fences in one transaction. When this returns, no transaction that they refuse is still running.
    async fn set_fences(&self, fences: Vec<Fence>, time: Duration) -> Result<()>;
    /// As [`Shard::set_fences`], for the driver of a stream; whoever does not drive it is refused, in the same
    /// transaction ([`ShardError::Superseded`]).
    async fn set_fences_as(
        &self,
        stream: &StreamId,
        driver: DriverToken,
        fences: Vec<Fence>,
        time: Duration,
    ) -> Result<()>;
    async fn fences(&self) -> Result<Vec<Fence>>;

    /// Whose the shard is.
    async fn binding(&self) -> Result<Binding>;
    /// Gives the shard to a tenant, or keeps it for one. It may be asked twice, and is refused if the shard is somebody
    /// else's or would go back.
    async fn bind(&self, binding: Binding) -> Result<()>;

    /// The position up to which the log is complete: no change at or below it will appear any more.
    async fn seq(&self) -> Result<Seq>;
    /// Changes after `after`, in order, at most `limit` and at least one if there are any.
    async fn changes(&self, after: Seq, limit: usize) -> Result<ChangePage>;
    /// Changes after `after` that are committed, in order, whether or not others may still appear between them: for
    /// whoever wants those of units that nobody writes to. Fewer than `limit` are all.
    async fn committed_changes(&self, after: Seq, limit: usize) -> Result<ChangePage> {
        self.changes(after, limit).await
    }
    /// Registers a reader; from here the log keeps every change until the reader has passed it. Capture runs as long
    /// as there is one. Returns where it stands: at the present, or where it stood.
    async fn add_consumer(&self, stream: &StreamId) -> Result<Seq>;
    /// Moves a reader forward and trims the log behind the slowest one.
    async fn advance(&self, stream: &StreamId, position: Seq) -> Result<()>;
    async fn remove_consumer(&self, stream: &StreamId) -> Result<()>;
    async fn consumers(&self) -> Result<Vec<Consumer>>;

    /// Applies rows of another shard. Any order and any number of repetitions end in the same rows. What is applied
    /// is not captured: it is not this shard's own change, and capturing it would echo it back.
    async fn apply(&self, batch: Batch) -> Result<Applied>;
    async fn stream_state(&self, stream: &StreamId) -> Result<StreamState>;
    /// Opens a stream, which is made if it is not there, and gives it to a driver. Whoever had it before is superseded:
    /// when this returns, no batch of theirs is still running. A token never falls.
    async fn open_stream(&self, stream: &StreamId, driver: DriverToken) -> Result<StreamState>;
    /// Forgets a stream: the versions and tombstones of its rows, and then its position and its driver. It goes in
    /// chunks, so that others write in between; one that was cut short is repeated. A stream that is not there has been
    /// forgotten.
    async fn forget_stream(&self, stream: &StreamId, driver: Option<DriverToken>) -> Result<()>;
    /// Deletes rows that a move has left, for the driver of a stream: at most so many of a range, by bucket or by tenant.
    /// Not captured, without triggers, cascades and checks of foreign keys. Refused if the range has units that are not
    /// among `unserved`, or if the fences let anyone read one of these, at any version. Returns how many went; none means
    /// that nothing is left. What is known of their keys stays until the stream is forgotten.
    async fn discard(
        &self,
        stream: &StreamId,
        driver: DriverToken,
        unserved: Vec<Claimed>,
        range: &KeyRange,
        rows: usize,
    ) -> Result<u64>;

    /// Waits for those who are about to commit. Returns a position at or above all that they, and any before them, have
    /// committed: whatever an observer has not been told of when this was called lies at or below it.
    async fn settled(&self) -> Result<Seq>;
    /// Changes entries of global indexes, with the positions of their buckets, in one transaction and all or none. A part
    /// that has been done already is left; [`ShardError::Conflict`] if a bucket stands elsewhere than a part says.
    async fn maintain(&self, claim: Claim, parts: Vec<EntryPart>) -> Result<()>;
    /// Deletes entries of an index, at most so many. Returns how many went.
    async fn clear_entries(&self, claim: Claim, table: &str, of: EntriesOf, limit: usize) -> Result<u64>;
    /// Buckets that have rows with certain keys, as the entries say.
    async fn entry_buckets(&self, claim: Claim, look: EntryLook) -> Result<EntriesFound>;

    /// Reads a page of rows as they are now; an operator's way to take rows out. 200 rows when not said.
    async fn export(&self, range: &KeyRange, rows: Option<usize>) -> Result<Page> {
        let rows = rows.unwrap_or(DEFAULT_EXPORT_ROWS);
        if !EXPORT_ROWS.contains(&rows) {
            let message = format!("an export has 1 to {} rows, not {rows}", EXPORT_ROWS.end());
            return Err(ShardError::Invalid(message));
        }
        self.snapshot().await?.page(range, rows).await
    }

    /// Writes a page of rows, in one transaction, captured like any write. `rows` are of one table.
    async fn import(&self, table: &str, rows: Vec<StoredRow>, mode: ImportMode) -> Result<u64> {
        self.import_claiming(Claim::default(), table, rows, mode).await
    }

    /// As [`Shard::import`], if the shard serves what is claimed.
    async fn import_claiming(&self, claim: Claim, table: &str, rows: Vec<StoredRow>, mode: ImportMode) -> Result<u64>;

    /// What tenants have in all tables, as it is now.
    async fn usage(&self, range: &TenantRange, tenants: usize) -> Result<UsagePage> {
        self.snapshot().await?.usage(range, tenants).await
    }

    /// Deletes rows of a tenant from one table, in one transaction, captured like any write: at most so many, or all.
    /// Returns how many went. A table of another kind has none.
    async fn purge(&self, table: &str, tenant: &Option<TenantId>, rows: Option<usize>) -> Result<u64>;

    /// Deletes rows of a copy that is given up, or of what one has replaced, at most so many: before the table is dropped,
    /// which takes long where it has rows. Not captured. Returns how many went; none where dropping costs nothing.
    async fn empty_copy(&self, table: &str, rows: usize) -> Result<u64>;

    /// Applies schema changes as one, if the shard is at version `from`; a shard that is one later already and has
    /// the same outcome leaves it. Returns the schema that holds now.
    async fn apply_schema(&self, from: SchemaVersion, changes: Vec<SchemaChange>) -> Result<Arc<Schema>>;
    /// Makes a whole schema, at its version, on a shard that has none; a shard that has it already leaves it.
    async fn adopt_schema(&self, schema: Arc<Schema>) -> Result<()>;
    async fn schema(&self) -> Result<Arc<Schema>>;

    /// Pledges whose names begin with `prefix` and that wait for the word. Empty where they die with the process.
    async fn pledges(&self, prefix: &str) -> Result<Vec<PledgeId>>;
    /// Keeps a pledge that was decided on and lost by a crash. A pledge that has been kept already, and not been
    /// forgotten, is left.
    async fn redeem(&self, id: &PledgeId, redo: Option<Vec<u8>>) -> Result<()>;
    /// Takes back a pledge that was not decided on; it is no error if there is none.
    async fn revoke(&self, id: &PledgeId) -> Result<()>;
    /// Forgets which pledges were kept: no decision is left that could ask for one of them again.
    async fn forget_pledges(&self) -> Result<()>;

    async fn stats(&self) -> Result<ShardStats>;
    /// Lets running work end, then closes all files and connections.
    async fn close(&self) -> Result<()>;
}
