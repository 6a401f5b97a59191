//! The catalog: the one linearizable store of shards, tables, groups, routing versions, indexes and plans.
//!
//! It keeps small records under names. Whoever decides something for the whole database (which shard serves a
//! bucket, which phase a plan is in) decides it by [`Catalog::commit`], and whoever depends on the decision follows
//! it by [`Catalog::watch`]:
//!
//! ```text
//! get, list      → records, and the revision they were read at
//! commit         → conditions hold: all writes happen, revision + 1
//!                  one does not:    nothing happens, Conflict says which and why
//! watch          → every commit from a revision on, whole, in order, once
//! acquire, renew → a lease with a token; Condition::Held(name, token) fences whoever lost it
//! ```
//!
//! [`SqliteCatalog`] keeps it in one file. The trait asks for nothing that a PostgreSQL database (rows, one counter
//! row, NOTIFY as a hint) or etcd (compare, put, watch from a revision) cannot give.
//!
//! Invariants (docs/invariants.md):
//!   * I-1   A commit that was answered with its revision survives every crash.
//!   * I-2   All writes of a commit are seen, or none.
//!   * I-3   A commit with a [`CommitId`] happens at most once, however often it is sent.
//!   * I-4   Nobody sees a write that a crash could still take back.
//!   * I-5   After a failed sync nothing is answered until the catalog has been opened again.
//!   * I-8   The revision rises by exactly one for each commit that changes a record, and never falls.
//!   * I-47  A commit on a lease's token is refused once somebody else has had the lease, whatever the clocks say.
//!   * I-66  Every call is answered within a deadline, except [`Watch::next`], which waits for news.
//!
//! # When a commit may have happened
//!
//! [`CatalogError::MayHaveHappened`] says that the answer was lost, not the commit. To find out, send the same
//! transaction again. With a [`CommitId`] the second sending returns the revision of the first one if that happened,
//! as long as the history reaches back to it ([`HISTORY_COMMITS_MAX`]). Without one, give every write a condition
//! on what was read before; then the second sending either does what the first did not, or fails with a
//! [`CatalogError::Conflict`], and a look at the record tells whose value it holds. Reading alone does not settle
//! it: a lost commit may still be on its way to a remote store.
//!
//! # Leases
//!
//! A lease says who should do some work, so that it is not done twice in vain. It is no lock: a process that was
//! stopped and goes on later believes that it still holds it. Safety comes from the token, which rises with each
//! acquisition over the life of the catalog, and which is checked in the transaction of every commit that names it.
//! So expiry only decides who may take over. It is counted on the monotonic clock of the catalog, because a wall
//! clock that jumps ahead would end every lease at once, and one that jumps back would keep the lease of a dead
//! owner for as long as the jump. After a restart each lease lasts its full time again.
//!
//! # Keys
//!
//! A key is a path, and a prefix that ends in a separator names a kind:
//!
//! ```text
//! shard/{shard}                   a shard: engine, address, region, status
//! group/{group}                   a group: its generations
//! table/{table}                   a table: its columns and its group
//! routing/current                 the routing version and the map of buckets and tenants to shards
//! plan/{plan}                     a move
//! move/{group}/{bucket}           the plan that moves this bucket; made if absent, so two plans cannot overlap
//! index/{index}                   a global index
//! region_shard_config:{tenantId}  the placement of a tenant
//! ```
//!
//! A tenant's name may hold any separator, so it comes last in a key.

mod sqlite;
mod store;

pub use sqlite::{OpenError, Options, SqliteCatalog};

use async_trait::async_trait;
use isles_engine::env::Env;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// The longest key. The longest name in one is a tenant's: 64 characters of up to 4 bytes.
pub const KEY_BYTES_MAX: usize = 512;

/// The largest value. A record is a description, not data; etcd refuses requests above 1.5 MiB.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// The largest transaction, keys and values together. More than one value, and below etcd's 1.5 MiB.
pub const TRANSACTION_BYTES_MAX: usize = 5 << 18;

/// Writes of a transaction, and conditions of a transaction. etcd takes 128, of which an implementation may need some.
pub const OPERATIONS_MAX: usize = 100;

/// Records of a page. With the small records that are usual, a page is some hundred kilobytes.
pub const PAGE_RECORDS_MAX: usize = 1000;

/// A page ends early once its values reach this, so that a page of the largest records fits in memory.
pub const PAGE_BYTES_MAX: usize = 4 << 20;

/// Commits that a watcher can go back. At ten changes a second, which is a busy catalog, a quarter of an hour:
/// longer than a restart, shorter than a forgotten watcher.
pub const HISTORY_COMMITS_MAX: u64 = 10_000;

/// The history ends early once its keys and values reach this: a catalog of large records stays a small file.
pub const HISTORY_BYTES_MAX: usize = 64 << 20;

/// The shortest lease: a renewal must survive a slow disk and a slow network.
pub const LEASE_TTL_MIN: Duration = Duration::from_millis(100);

/// The longest lease: for this long nobody takes over the work of a dead owner.
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(3600);

/// Leases at once. One for each running plan, index and hook; the catalog keeps all of them in memory.
pub const LEASES_MAX: usize = 10_000;

/// The longest name of a lease's owner: a host, a process and a random part.
pub const OWNER_BYTES_MAX: usize = 256;

/// Watchers at once. One for each kind of record in each router of a large cluster.
pub const WATCHERS_MAX: usize = 1000;

pub type Result<T> = std::result::Result<T, CatalogError>;

/// The store of what the whole database must agree on. Every call is linearizable.
#[async_trait]
pub trait Catalog: Send + Sync {
    /// The record under `key`.
    async fn get(&self, key: &Key) -> Result<At<Option<Record>>>;

    /// The records whose keys begin with `prefix` and come after `after`, in the order of their keys' bytes; at most
    /// `limit` of them, and fewer when they are large.
    ///
    /// Each page is read at a revision of its own. To follow all records of a prefix, read the pages, watch from
    /// after the *first* page's revision, and ignore an event that is older than the record it changes.
    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Page>;

    /// Performs all writes of a transaction if all its conditions hold. Returns the revision that it made, or the
    /// current one if it changed nothing.
    ///
    /// A caller that stops waiting must treat the commit as one that may have happened.
    async fn commit(&self, transaction: Transaction) -> Result<Revision>;

    /// Follows the records whose keys begin with `prefix`, from the commit with revision `from` on. After a read at
    /// revision r, that is `r.next()`.
    async fn watch(&self, prefix: &str, from: Revision) -> Result<Box<dyn Watch>>;

    /// Takes a lease that is free, expired, or the owner's own, with a new token: whoever had it is fenced. An owner
    /// takes its own lease at once, so that a restarted process need not wait for itself, and so that an acquisition
    /// that may have happened can be repeated.
    async fn acquire(&self, name: &Key, owner: &str, ttl: Duration) -> Result<Lease>;

    /// Makes a lease last its full time again. One that is expired but not taken is still its holder's.
    async fn renew(&self, name: &Key, token: LeaseToken) -> Result<Lease>;

    /// Gives a lease back. It is no error if it is lost already.
    async fn release(&self, name: &Key, token: LeaseToken) -> Result<()>;

    /// Who holds a lease; also if it is expired and not taken.
    async fn lease(&self, name: &Key) -> Result<Option<Lease>>;

    /// Lets what is being done end, refuses everything else, and gives back what this process holds of the catalog:
    /// when it returns, another can open it, unless the disk took too long.
    async fn close(&self);
}

/// A watcher's place in the history. Dropping it ends it.
#[async_trait]
pub trait Watch: Send {
    /// The next commit that touches the prefix; only its events within the prefix. Each commit is returned once, in
    /// the order of revisions. A caller that stops waiting loses nothing.
    async fn next(&mut self) -> Result<Commit>;

    /// Where a new watch goes on without gap or repetition.
    fn position(&self) -> Revision;
}

/// The number of commits that changed a record. It names a state of the catalog.
///
/// Where leases are records of the store (etcd), a change of a lease may raise it, too. So nobody may count on a
/// commit for every number, only on their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Revision(pub u64);

impl Revision {
    /// The empty catalog.
    pub const ZERO: Revision = Revision(0);

    /// The revision after this one.
    pub fn next(self) -> Revision {
        Revision(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Tells the holders of a lease apart: a later one has a larger token, over the life of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseToken(pub u64);

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one commit, so that it can be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommitId(pub u128);

impl CommitId {
    pub fn random(env: &dyn Env) -> CommitId {
        CommitId(u128::from(env.random()) << 64 | u128::from(env.random()))
    }
}

/// The name of a record or of a lease, which are two separate spaces. Any text without control characters, of 1 to
/// [`KEY_BYTES_MAX`] bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    pub fn new(name: impl Into<String>) -> Result<Key> {
        let name = name.into();
        if name.is_empty() {
            return Err(CatalogError::Invalid("a key may not be empty".into()));
        }
        check_prefix(&name)?;
        Ok(Key(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A prefix is what a key is, or nothing.
pub(crate) fn check_prefix(prefix: &str) -> Result<()> {
    limit("bytes of a key", prefix.len(), KEY_BYTES_MAX)?;
    match prefix.chars().find(|c| c.is_control()) {
        Some(found) => Err(CatalogError::Invalid(format!("a key may not contain {found:?}"))),
        None => Ok(()),
    }
}

/// What was read, and the revision it was read at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At<T> {
    pub revision: Revision,
    pub value: T,
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub key: Key,
    pub value: Vec<u8>,
    /// Of the commit that wrote this value.
    pub revision: Revision,
    /// Of the commit that wrote the key first after it was absent.
    pub created: Revision,
}

impl Record {
    /// The value as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.value).map_err(|error| {
            CatalogError::Invalid(format!("the value of {} is not what it should be: {error}", self.key))
        })
    }

    /// Holds until the record changes.
    pub fn unchanged(&self) -> Condition {
        Condition::At(self.key.clone(), self.revision)
    }
}

/// Some records of a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub revision: Revision,
    pub records: Vec<Record>,
    /// Whether there were more when this page was read; they come after its last key.
    pub more: bool,
}

/// Writes that happen all or not at all, and what must hold for that.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    /// With an id the transaction happens once, however often it is sent.
    pub id: Option<CommitId>,
    pub conditions: Vec<Condition>,
    /// Of different keys.
    pub writes: Vec<Write>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// There is no record under this key.
    Absent(Key),
    /// There is one.
    Exists(Key),
    /// Its last change is the one of this revision.
    At(Key, Revision),
    /// The lease of this name was last taken with this token, and not given back.
    Held(Key, LeaseToken),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Sets the value, whether or not there is one. It is a change even if the value is the same.
    Put(Key, Vec<u8>),
    /// Removes the record. If there is none, this is no change, and no error.
    Delete(Key),
}

impl Write {
    pub fn key(&self) -> &Key {
        match self {
            Write::Put(key, _) | Write::Delete(key) => key,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Write::Put(key, value) => key.0.len() + value.len(),
            Write::Delete(key) => key.0.len(),
        }
    }
}

impl Transaction {
    pub fn new() -> Transaction {
        Transaction::default()
    }

    pub fn once(mut self, id: CommitId) -> Transaction {
        self.id = Some(id);
        self
    }

    pub fn when(mut self, condition: Condition) -> Transaction {
        self.conditions.push(condition);
        self
    }

    /// Adds the condition that `key` is as it was read: unchanged, or still absent.
    pub fn when_as_read(self, key: &Key, read: Option<&Record>) -> Transaction {
        self.when(read.map_or_else(|| Condition::Absent(key.clone()), Record::unchanged))
    }

    pub fn put(mut self, key: Key, value: impl Into<Vec<u8>>) -> Transaction {
        self.writes.push(Write::Put(key, value.into()));
        self
    }

    pub fn put_json<T: Serialize>(self, key: Key, value: &T) -> Result<Transaction> {
        match serde_json::to_vec(value) {
            Ok(value) => Ok(self.put(key, value)),
            Err(error) => Err(CatalogError::Invalid(format!("the value for {key} has no JSON form: {error}"))),
        }
    }

    pub fn delete(mut self, key: Key) -> Transaction {
        self.writes.push(Write::Delete(key));
        self
    }

    /// Refuses what no store takes, before anything is sent to one.
    pub fn check(&self) -> Result<()> {
        limit("conditions of a transaction", self.conditions.len(), OPERATIONS_MAX)?;
        limit("writes of a transaction", self.writes.len(), OPERATIONS_MAX)?;
        limit("bytes of a transaction", self.bytes(), TRANSACTION_BYTES_MAX)?;
        let mut keys = BTreeSet::new();
        for write in &self.writes {
            if let Write::Put(_, value) = write {
                limit("bytes of a value", value.len(), VALUE_BYTES_MAX)?;
            }
            if !keys.insert(write.key()) {
                return Err(CatalogError::Invalid(format!("a transaction writes {} twice", write.key())));
            }
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.writes.iter().map(Write::bytes).sum()
    }
}

/// What one transaction changed, as far as a watcher asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    pub revision: Revision,
    /// In the order of the transaction's writes.
    pub events: Vec<Event>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Put(Record),
    Deleted(Key),
}

impl Event {
    pub fn key(&self) -> &Key {
        match self {
            Event::Put(record) => &record.key,
            Event::Deleted(key) => key,
        }
    }
}

/// Who should do some work, and until when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub name: Key,
    pub owner: String,
    pub token: LeaseToken,
    pub ttl: Duration,
    /// What was left when the catalog answered; zero if it is expired. A span and not a moment, so that the clocks of
    /// two machines need not agree. The holder counts it from *before* its call.
    pub expires_in: Duration,
}

/// Why a condition did not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actual {
    /// There is no such record or lease.
    Absent,
    /// The record's last change.
    At(Revision),
    /// The lease's last token.
    Held(LeaseToken),
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Absent(key) => write!(f, "{key} should be absent"),
            Condition::Exists(key) => write!(f, "{key} should exist"),
            Condition::At(key, revision) => write!(f, "{key} should be at revision {revision}"),
            Condition::Held(name, token) => write!(f, "lease {name} should be held with token {token}"),
        }
    }
}

impl fmt::Display for Actual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actual::Absent => f.write_str("absent"),
            Actual::At(revision) => write!(f, "at revision {revision}"),
            Actual::Held(token) => write!(f, "held with token {token}"),
        }
    }
}

/// Why a call was not answered as it should be. Only [`MayHaveHappened`](CatalogError::MayHaveHappened) leaves open
/// whether something changed; after all others nothing did.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// Somebody was faster: read again and decide again.
    #[error("{expected}, but it is {actual}")]
    Conflict { expected: Condition, actual: Actual },

    /// Wait, or leave the work to the holder.
    #[error("lease {} is held by {} for another {:?}", .0.name, .0.owner, .0.expires_in)]
    HeldByOther(Lease),

    /// Find out before going on; the module says how.
    #[error("the catalog may have changed: {0}")]
    MayHaveHappened(String),

    /// Open the catalog again.
    #[error("the catalog has stopped: {0}")]
    Stopped(String),

    /// The history begins later: list, and watch from there.
    #[error("the history begins at revision {oldest}")]
    Compacted { oldest: Revision },

    /// The watcher has seen what the catalog does not know: it was put back to an older state. What the watcher knows
    /// is worthless; list, and watch from there.
    #[error("the catalog is only at revision {current}")]
    Ahead { current: Revision },

    /// Too much at once: try later.
    #[error("the catalog is busy: {0}")]
    Busy(String),

    /// The caller asks for what is never allowed.
    #[error("{what} are {actual}, at most {limit} are allowed")]
    Limit { what: &'static str, limit: usize, actual: usize },

    /// The caller asks for what makes no sense.
    #[error("{0}")]
    Invalid(String),
}

pub(crate) fn limit(what: &'static str, actual: usize, limit: usize) -> Result<()> {
    if actual > limit { Err(CatalogError::Limit { what, limit, actual }) } else { Ok(()) }
}

/// What a store refuses about a lease before it looks at it.
pub(crate) fn check_lease(owner: &str, ttl: Duration) -> Result<()> {
    limit("bytes of an owner", owner.len(), OWNER_BYTES_MAX)?;
    if owner.is_empty() || owner.chars().any(char::is_control) {
        return Err(CatalogError::Invalid("an owner is a text without control characters".into()));
    }
    if !(LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&ttl) {
        let message = format!("a lease lasts {LEASE_TTL_MIN:?} to {LEASE_TTL_MAX:?}, not {ttl:?}");
        return Err(CatalogError::Invalid(message));
    }
    Ok(())
}
