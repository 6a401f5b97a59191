//! The catalog's SQLite file: its form, and every statement that touches it. No waiting, no threads.
//!
//! ```text
//! records   the current value of each key
//! commits   one row for each commit of the history: id, time, size
//! history   what each of them wrote: the log that watchers read, and the audit of the catalog
//! leases    who holds which lease with which token
//! counters  the last lease token
//! ```
//!
//! The caller opens a transaction with [`Store::begin`], performs any number of calls, and makes them durable with
//! [`Store::commit`]. A call checks everything before it writes anything, so that a refused call leaves no trace and
//! its neighbours in the same transaction are unharmed.
//!
//! Invariants (docs/invariants.md):
//!   * I-2, I-8  Records, history and revision change in one SQLite transaction.
//!   * I-6a      Each value carries a checksum, because SQLite's pages do not: a flipped bit is an error, not a value.
//!   * I-63      Hardened as a shard is. Only the statements below run here, hence no authorizer.
//!
//! Any error of SQLite is a [`Failure`] that ends this store. What it holds in memory (revision, leases) may then be
//! ahead of the file, and only opening it again makes the two agree.

use super::{
    Actual, At, CatalogError, Commit, CommitId, Condition, Event, Key, LEASES_MAX, Lease, LeaseToken, PAGE_BYTES_MAX,
    Page, Record, Result, Revision, Transaction, Write,
};
use isles_engine::env::Env;
use isles_engine::sqlite::vfs::walcheck::{self, WalError};
use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, params};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh3::Xxh3;

/// Marks the file as an Isles catalog: "ISCA".
const APPLICATION_ID: i64 = 0x4953_4341;

/// The form of the file. A newer one is refused: an older program would lose what it does not know.
const FORMAT: i64 = 1;

/// Commits of the history that one call looks at. Enough to catch up fast, and other callers wait milliseconds.
pub(crate) const HISTORY_BATCH_COMMITS: usize = 256;

/// The log is also copied into the file after this many bytes, so that it stays small if values are large.
const CHECKPOINT_BYTES: usize = 8 << 20;

const SCHEMA: &str = "
    CREATE TABLE records (
        key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL, created INTEGER NOT NULL,
        checksum INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE commits (
        revision INTEGER PRIMARY KEY, id BLOB UNIQUE, at_micros INTEGER NOT NULL, bytes INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE history (
        revision INTEGER NOT NULL, ordinal INTEGER NOT NULL, key TEXT NOT NULL, value BLOB, created INTEGER NOT NULL,
        checksum INTEGER NOT NULL, PRIMARY KEY (revision, ordinal)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE leases (
        name TEXT PRIMARY KEY, owner TEXT NOT NULL, token INTEGER NOT NULL, ttl_micros INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    INSERT INTO counters VALUES ('lease token', 0);
";

/// Why a catalog could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the catalog {} is open already, here or in another process", .0.display())]
    Locked(PathBuf),
    #[error("the catalog {} cannot be opened: {reason}", .path.display())]
    Unavailable { path: PathBuf, reason: String },
    #[error("{} is not a catalog: {reason}", .path.display())]
    NotACatalog { path: PathBuf, reason: String },
    #[error("the catalog {} has format {found}, and this program knows formats up to {known}", .path.display())]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("the catalog {} is damaged: {reason}", .path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("{0}")]
    Options(String),
}

/// The store is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("damaged file: {0}")]
    Damaged(String),
    #[error("the journal mode cannot be changed to wal")]
    NoLog,
}

/// What a caller gets, unless the store fails.
pub(crate) type Answer<T> = std::result::Result<Result<T>, Failure>;

/// When what is superseded is cleared away.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Upkeep {
    /// Of the history.
    pub(crate) history_commits: u64,
    pub(crate) history_bytes: usize,
    /// Commits after which the log is copied into the file.
    pub(crate) checkpoint_commits: usize,
}

/// A part of the history.
pub(crate) struct History {
    /// Those that touch the prefix.
    pub(crate) commits: Vec<Commit>,
    /// The first commit that was not looked at.
    pub(crate) next: Revision,
    /// The catalog's revision.
    pub(crate) head: Revision,
}

pub(crate) struct Store {
    connection: Connection,
    env: Arc<dyn Env>,
    upkeep: Upkeep,
    revision: Revision,
    /// The first commit of the history.
    oldest: Revision,
    /// Keys and values of the history.
    history_bytes: usize,
    leases: BTreeMap<Key, Held>,
    last_token: LeaseToken,
    /// Commits and their bytes since the last checkpoint.
    uncopied: (usize, usize),
}

/// A lease that was taken and not given back.
struct Held {
    owner: String,
    token: LeaseToken,
    ttl: Duration,
    /// On the environment's monotonic clock.
    deadline: Duration,
}

impl Store {
    pub(crate) fn open(
        path: &Path,
        vfs: Option<&str>,
        env: Arc<dyn Env>,
        upkeep: Upkeep,
    ) -> std::result::Result<Store, OpenError> {
        let explain = |failure| explain(path, failure);
        walcheck::check_and_sync(vfs, path).map_err(|error| explain_log(path, error))?;
        let connection = connect(path, vfs).map_err(|error| explain(error.into()))?;
        recognize(path, &connection)?;
        prepare(&connection).map_err(explain)?;
        load(connection, env, upkeep).map_err(explain)
    }

    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// Opens a transaction. One without writes costs no sync.
    pub(crate) fn begin(&mut self) -> std::result::Result<(), Failure> {
        Ok(self.connection.execute_batch("BEGIN IMMEDIATE")?)
    }

    /// Makes the transaction durable. After an error it may be durable or not.
    pub(crate) fn commit(&mut self) -> std::result::Result<(), Failure> {
        Ok(self.connection.execute_batch("COMMIT")?)
    }

    /// Copies the log into the file if it has grown. SQLite would do this inside a commit, and hide its errors.
    pub(crate) fn checkpoint_if_due(&mut self) -> std::result::Result<(), Failure> {
        let (commits, bytes) = self.uncopied;
        if commits >= self.upkeep.checkpoint_commits || bytes >= CHECKPOINT_BYTES {
            self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
            self.uncopied = (0, 0);
        }
        Ok(())
    }

    /// Closes without another write, so that the log stays as a failure left it, for recovery to judge.
    pub(crate) fn abandon(self) {
        // If even this fails, closing checkpoints what was committed before, which is harmless.
        let _ = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    }

    pub(crate) fn get(&self, key: &Key) -> Answer<At<Option<Record>>> {
        let sql = "SELECT key, value, revision, created, checksum FROM records WHERE key = ?1";
        let mut statement = self.connection.prepare(sql)?;
        let mut rows = statement.query([key.as_str()])?;
        let value = rows.next()?.map(read_record).transpose()?;
        Ok(Ok(At { revision: self.revision, value }))
    }

    pub(crate) fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Answer<Page> {
        let sql = "SELECT key, value, revision, created, checksum FROM records
                   WHERE key >= ?1 AND key > ?2 ORDER BY key";
        let mut statement = self.connection.prepare(sql)?;
        let mut rows = statement.query([prefix, after.map_or("", Key::as_str)])?;
        let mut page = Page { revision: self.revision, records: Vec::new(), more: false };
        let mut bytes = 0;
        while let Some(row) = rows.next()? {
            // Keys with the prefix follow each other.
            if !row.get_ref(0)?.as_str().is_ok_and(|key| key.starts_with(prefix)) {
                break;
            }
            page.more = page.records.len() >= limit || bytes >= PAGE_BYTES_MAX;
            if page.more {
                break;
            }
            let record = read_record(row)?;
            bytes += record.value.len();
            page.records.push(record);
        }
        Ok(Ok(page))
    }

    pub(crate) fn write(&mut self, transaction: &Transaction) -> Answer<Revision> {
        if let Some(repeated) = self.find_repeated(transaction)? {
            return Ok(repeated);
        }
        for condition in &transaction.conditions {
            if let Some(actual) = self.contradicts(condition)? {
                return Ok(Err(CatalogError::Conflict { expected: condition.clone(), actual }));
            }
        }
        let revision = self.revision.next();
        let mut bytes = 0;
        for (ordinal, write) in transaction.writes.iter().enumerate() {
            if self.perform(revision, ordinal, write)? {
                bytes += write.bytes();
            }
        }
        // Keys are not empty, so every change has bytes.
        if bytes > 0 {
            self.add_commit(revision, transaction.id, bytes)?;
        }
        Ok(Ok(self.revision))
    }

    /// The answer to a transaction that has happened already.
    fn find_repeated(&self, transaction: &Transaction) -> std::result::Result<Option<Result<Revision>>, Failure> {
        let Some(id) = transaction.id else { return Ok(None) };
        let sql = "SELECT revision FROM commits WHERE id = ?1";
        let found = self.connection.query_row(sql, [id_bytes(id)], |row| row.get::<_, i64>(0)).optional()?;
        let Some(revision) = found.map(|found| Revision(found as u64)) else { return Ok(None) };
        let commit = self.read_history("", revision, 1)?.commits.pop();
        Ok(Some(match commit {
            Some(commit) if is_effect_of(&commit.events, &transaction.writes) => Ok(revision),
            _ => Err(CatalogError::Invalid("the id of this commit belongs to another one".into())),
        }))
    }

    /// What is the case instead of the condition.
    fn contradicts(&self, condition: &Condition) -> std::result::Result<Option<Actual>, Failure> {
        let actual = match condition {
            Condition::Absent(key) | Condition::Exists(key) | Condition::At(key, _) => self.changed_at(key)?,
            Condition::Held(name, _) => self.leases.get(name).map_or(Actual::Absent, |held| Actual::Held(held.token)),
        };
        let holds = match condition {
            Condition::Absent(_) => actual == Actual::Absent,
            Condition::Exists(_) => actual != Actual::Absent,
            Condition::At(_, revision) => actual == Actual::At(*revision),
            Condition::Held(_, token) => actual == Actual::Held(*token),
        };
        Ok((!holds).then_some(actual))
    }

    fn changed_at(&self, key: &Key) -> rusqlite::Result<Actual> {
        let sql = "SELECT revision FROM records WHERE key = ?1";
        let found = self.connection.query_row(sql, [key.as_str()], |row| row.get::<_, i64>(0)).optional()?;
        Ok(found.map_or(Actual::Absent, |revision| Actual::At(Revision(revision as u64))))
    }

    /// Performs a write and logs it. Returns whether it changed anything.
    fn perform(&mut self, revision: Revision, ordinal: usize, write: &Write) -> rusqlite::Result<bool> {
        let key = write.key().as_str();
        let sql = "SELECT created FROM records WHERE key = ?1";
        let found = self.connection.query_row(sql, [key], |row| row.get::<_, i64>(0)).optional()?;
        let value = match write {
            Write::Put(_, value) => Some(value),
            Write::Delete(_) if found.is_none() => return Ok(false),
            Write::Delete(_) => None,
        };
        let (at, created) = (revision.0 as i64, found.unwrap_or(revision.0 as i64));
        let checksum = checksum(key, value.map(Vec::as_slice), at, created);
        match value {
            Some(value) => self.connection.execute(
                "INSERT OR REPLACE INTO records VALUES (?1, ?2, ?3, ?4, ?5)",
                params![key, value, at, created, checksum],
            )?,
            None => self.connection.execute("DELETE FROM records WHERE key = ?1", [key])?,
        };
        let sql = "INSERT INTO history VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        self.connection.execute(sql, params![at, ordinal as i64, key, value, created, checksum])?;
        Ok(true)
    }

    fn add_commit(&mut self, revision: Revision, id: Option<CommitId>, bytes: usize) -> rusqlite::Result<()> {
        let row = params![revision.0 as i64, id.map(id_bytes), self.env.now_micros() as i64, bytes as i64];
        self.connection.execute("INSERT INTO commits VALUES (?1, ?2, ?3, ?4)", row)?;
        self.revision = revision;
        self.history_bytes += bytes;
        self.uncopied.0 += 1;
        self.uncopied.1 += bytes;
        self.compact()
    }

    /// Forgets the oldest commits, never the newest: it holds the revision.
    fn compact(&mut self) -> rusqlite::Result<()> {
        while self.oldest < self.revision
            && (self.revision.0 - self.oldest.0 >= self.upkeep.history_commits
                || self.history_bytes > self.upkeep.history_bytes)
        {
            let oldest = [self.oldest.0 as i64];
            let sql = "DELETE FROM commits WHERE revision = ?1 RETURNING bytes";
            let bytes: i64 = self.connection.query_row(sql, oldest, |row| row.get(0))?;
            self.connection.execute("DELETE FROM history WHERE revision = ?1", oldest)?;
            self.history_bytes = self.history_bytes.saturating_sub(bytes as usize);
            self.oldest = self.oldest.next();
        }
        Ok(())
    }

    /// The commits from `from` on that touch the prefix, as far as one call looks.
    pub(crate) fn history(&self, prefix: &str, from: Revision) -> Answer<History> {
        let from = from.max(Revision(1));
        if from < self.oldest {
            return Ok(Err(CatalogError::Compacted { oldest: self.oldest }));
        }
        if from > self.revision.next() {
            return Ok(Err(CatalogError::Ahead { current: self.revision }));
        }
        Ok(Ok(self.read_history(prefix, from, HISTORY_BATCH_COMMITS)?))
    }

    fn read_history(&self, prefix: &str, from: Revision, limit: usize) -> std::result::Result<History, Failure> {
        let sql = "SELECT key, value, revision, created, checksum FROM history
                   WHERE revision >= ?1 ORDER BY revision, ordinal";
        let mut statement = self.connection.prepare(sql)?;
        let mut rows = statement.query([from.0 as i64])?;
        let mut commits: Vec<Commit> = Vec::new();
        let (mut next, mut looked_at, mut bytes) = (from, 0, 0);
        while let Some(row) = rows.next()? {
            let revision = Revision(row.get::<_, i64>(2)? as u64);
            if revision >= next {
                if looked_at >= limit || bytes >= PAGE_BYTES_MAX {
                    return Ok(History { commits, next, head: self.revision });
                }
                looked_at += 1;
                next = revision.next();
            }
            if !row.get_ref(0)?.as_str().is_ok_and(|key| key.starts_with(prefix)) {
                continue;
            }
            bytes += row.get_ref(1)?.as_blob_or_null().ok().flatten().map_or(0, <[u8]>::len);
            let event = read_event(row)?;
            match commits.last_mut() {
                Some(commit) if commit.revision == revision => commit.events.push(event),
                _ => commits.push(Commit { revision, events: vec![event] }),
            }
        }
        Ok(History { commits, next: self.revision.next(), head: self.revision })
    }

    pub(crate) fn acquire(&mut self, name: &Key, owner: &str, ttl: Duration) -> Answer<Lease> {
        let now = self.env.elapsed();
        if let Some(held) = self.leases.get(name).filter(|held| held.owner != owner && held.deadline > now) {
            return Ok(Err(CatalogError::HeldByOther(held.lease(name, now))));
        }
        if !self.leases.contains_key(name) && !self.has_room_for_lease(now)? {
            return Ok(Err(CatalogError::Busy(format!("there are {LEASES_MAX} leases"))));
        }
        let token = LeaseToken(self.last_token.0 + 1);
        let row = params![name.as_str(), owner, token.0 as i64, ttl.as_micros() as i64];
        self.connection.execute("INSERT OR REPLACE INTO leases VALUES (?1, ?2, ?3, ?4)", row)?;
        let sql = "UPDATE counters SET value = ?1 WHERE name = 'lease token'";
        self.connection.execute(sql, [token.0 as i64])?;
        self.last_token = token;
        self.uncopied.0 += 1;
        let held = Held { owner: owner.into(), token, ttl, deadline: now + ttl };
        let lease = held.lease(name, now);
        self.leases.insert(name.clone(), held);
        Ok(Ok(lease))
    }

    /// Leases that nobody gives back must not fill the catalog, so that expired ones make room when it is needed.
    fn has_room_for_lease(&mut self, now: Duration) -> rusqlite::Result<bool> {
        if self.leases.len() < LEASES_MAX {
            return Ok(true);
        }
        let expired = |held: &Held| held.deadline <= now;
        let names: Vec<Key> =
            self.leases.iter().filter(|(_, held)| expired(held)).map(|(name, _)| name.clone()).collect();
        for name in names {
            self.remove_lease(&name)?;
        }
        Ok(self.leases.len() < LEASES_MAX)
    }

    fn remove_lease(&mut self, name: &Key) -> rusqlite::Result<()> {
        self.leases.remove(name);
        self.uncopied.0 += 1;
        self.connection.execute("DELETE FROM leases WHERE name = ?1", [name.as_str()]).map(|_| ())
    }

    /// The file need not know: after a restart each lease lasts its full time anyway.
    pub(crate) fn renew(&mut self, name: &Key, token: LeaseToken) -> Answer<Lease> {
        let expected = Condition::Held(name.clone(), token);
        if let Some(actual) = self.contradicts(&expected)? {
            return Ok(Err(CatalogError::Conflict { expected, actual }));
        }
        let now = self.env.elapsed();
        let Some(held) = self.leases.get_mut(name) else {
            return Ok(Err(CatalogError::Conflict { expected, actual: Actual::Absent }));
        };
        held.deadline = now + held.ttl;
        Ok(Ok(held.lease(name, now)))
    }

    pub(crate) fn release(&mut self, name: &Key, token: LeaseToken) -> Answer<()> {
        if self.leases.get(name).is_some_and(|held| held.token == token) {
            self.remove_lease(name)?;
        }
        Ok(Ok(()))
    }

    pub(crate) fn lease(&self, name: &Key) -> Answer<Option<Lease>> {
        let now = self.env.elapsed();
        Ok(Ok(self.leases.get(name).map(|held| held.lease(name, now))))
    }
}

impl Held {
    fn lease(&self, name: &Key, now: Duration) -> Lease {
        let expires_in = self.deadline.saturating_sub(now);
        Lease { name: name.clone(), owner: self.owner.clone(), token: self.token, ttl: self.ttl, expires_in }
    }
}

fn connect(path: &Path, vfs: Option<&str>) -> rusqlite::Result<Connection> {
    // Without URI, so that no path is read as options.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = match vfs {
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs)?,
        None => Connection::open_with_flags(path, flags)?,
    };
    harden(&connection)?;
    Ok(connection)
}

/// I-63. Loading of extensions is not compiled in.
fn harden(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    // Nobody else may have the file: waiting for it would only delay the error.
    connection.busy_timeout(Duration::ZERO)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    // Before the first access, so that no shared memory is used: one connection, one process.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "fullfsync", true)
}

/// Refuses a file that is not ours before anything is written to it.
fn recognize(path: &Path, connection: &Connection) -> std::result::Result<(), OpenError> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let read = || {
        let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        Ok((pragma("application_id")?, pragma("user_version")?, tables))
    };
    match read().map_err(|error: rusqlite::Error| explain(path, error.into()))? {
        (0, 0, 0) => Ok(()),
        (APPLICATION_ID, found, _) if found > FORMAT => {
            Err(OpenError::Newer { path: path.into(), found, known: FORMAT })
        }
        (APPLICATION_ID, ..) => Ok(()),
        _ => Err(OpenError::NotACatalog { path: path.into(), reason: "it is another database".into() }),
    }
}

/// Makes the log, checks the file, and creates the tables of a new one.
fn prepare(connection: &Connection) -> std::result::Result<(), Failure> {
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict != "ok" {
        return Err(Failure::Damaged(verdict));
    }
    require_log(connection)?;
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        let marks = format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};");
        connection.execute_batch(&format!("BEGIN IMMEDIATE; {SCHEMA} {marks} COMMIT"))?;
    }
    Ok(())
}

/// SQLite answers "wal" before it has written that down, keeps saying so if that fails, and goes on with a journal;
/// then it acknowledges commits that a power cut takes back. A checkpoint tells the truth: -1 frames if there is no log.
fn require_log(connection: &Connection) -> std::result::Result<(), Failure> {
    let frames: i64 = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1))?;
    if frames < 0 { Err(Failure::NoLog) } else { Ok(()) }
}

fn load(connection: Connection, env: Arc<dyn Env>, upkeep: Upkeep) -> std::result::Result<Store, Failure> {
    let sql = "SELECT coalesce(max(revision), 0), coalesce(min(revision), 1), coalesce(sum(bytes), 0) FROM commits";
    let (revision, oldest, bytes) = connection
        .query_row(sql, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)))?;
    let sql = "SELECT value FROM counters WHERE name = 'lease token'";
    let token: i64 = connection.query_row(sql, [], |row| row.get(0))?;
    let leases = load_leases(&connection, env.elapsed())?;
    Ok(Store {
        connection,
        env,
        upkeep,
        revision: Revision(revision as u64),
        oldest: Revision(oldest as u64),
        history_bytes: bytes as usize,
        leases,
        last_token: LeaseToken(token as u64),
        uncopied: (0, 0),
    })
}

fn load_leases(connection: &Connection, now: Duration) -> std::result::Result<BTreeMap<Key, Held>, Failure> {
    let mut statement = connection.prepare("SELECT name, owner, token, ttl_micros FROM leases")?;
    let mut rows = statement.query([])?;
    let mut leases = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let ttl = Duration::from_micros(row.get::<_, i64>(3)? as u64);
        let token = LeaseToken(row.get::<_, i64>(2)? as u64);
        leases.insert(read_key(row)?, Held { owner: row.get(1)?, token, ttl, deadline: now.saturating_add(ttl) });
    }
    Ok(leases)
}

fn read_key(row: &Row<'_>) -> std::result::Result<Key, Failure> {
    Key::new(row.get::<_, String>(0)?).map_err(|error| Failure::Damaged(error.to_string()))
}

fn read_record(row: &Row<'_>) -> std::result::Result<Record, Failure> {
    match read_event(row)? {
        Event::Put(record) => Ok(record),
        Event::Deleted(key) => Err(Failure::Damaged(format!("the record {key} has no value"))),
    }
}

/// Reads `key, value, revision, created, checksum`, of which the value is null in the log of a deletion.
fn read_event(row: &Row<'_>) -> std::result::Result<Event, Failure> {
    let key = read_key(row)?;
    let value: Option<Vec<u8>> = row.get(1)?;
    let (revision, created): (i64, i64) = (row.get(2)?, row.get(3)?);
    if row.get::<_, i64>(4)? != checksum(key.as_str(), value.as_deref(), revision, created) {
        return Err(Failure::Damaged(format!("the checksum of {key} at revision {revision} is wrong")));
    }
    let (revision, created) = (Revision(revision as u64), Revision(created as u64));
    Ok(match value {
        Some(value) => Event::Put(Record { key, value, revision, created }),
        None => Event::Deleted(key),
    })
}

fn checksum(key: &str, value: Option<&[u8]>, revision: i64, created: i64) -> i64 {
    let mut hash = Xxh3::new();
    hash.update(&(key.len() as u64).to_le_bytes());
    hash.update(key.as_bytes());
    hash.update(&[u8::from(value.is_some())]);
    hash.update(value.unwrap_or_default());
    hash.update(&revision.to_le_bytes());
    hash.update(&created.to_le_bytes());
    hash.digest() as i64
}

fn id_bytes(id: CommitId) -> [u8; 16] {
    id.0.to_be_bytes()
}

/// Whether these events are what these writes cause. A deletion of what was absent causes none.
fn is_effect_of(events: &[Event], writes: &[Write]) -> bool {
    let causes = |write: &Write, event: &Event| match (write, event) {
        (Write::Put(key, value), Event::Put(record)) => *key == record.key && *value == record.value,
        (Write::Delete(key), Event::Deleted(deleted)) => key == deleted,
        _ => false,
    };
    let is_caused = |event: &Event| writes.iter().any(|write| causes(write, event));
    let is_seen = |write: &Write| matches!(write, Write::Delete(_)) || events.iter().any(|event| causes(write, event));
    events.iter().all(is_caused) && writes.iter().all(is_seen)
}

fn explain_log(path: &Path, error: WalError) -> OpenError {
    let (path, reason) = (path.to_path_buf(), error.to_string());
    match error {
        WalError::Corrupt { .. } => OpenError::Damaged { path, reason },
        WalError::Io(_) | WalError::Vfs(_) | WalError::NoVfs(_) => OpenError::Unavailable { path, reason },
    }
}

/// Says what is wrong with a file in terms of what to do about it.
fn explain(path: &Path, failure: Failure) -> OpenError {
    let (path, reason) = (path.to_path_buf(), failure.to_string());
    let code = match &failure {
        Failure::Sqlite(error) => error.sqlite_error_code(),
        Failure::Damaged(_) => Some(ErrorCode::DatabaseCorrupt),
        Failure::NoLog => Some(ErrorCode::CannotOpen),
    };
    match code {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::Locked(path),
        Some(ErrorCode::NotADatabase) => OpenError::NotACatalog { path, reason },
        Some(ErrorCode::DatabaseCorrupt) => OpenError::Damaged { path, reason },
        // A catalog without its tables or columns, or with values of other types.
        Some(ErrorCode::Unknown) | None => OpenError::Damaged { path, reason },
        Some(_) => OpenError::Unavailable { path, reason },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]
mod tests {
    use super::*;
    use isles_engine::env::TokioEnv;

    /// I-63
    #[tokio::test]
    async fn the_connection_is_hardened() {
        let folder = tempfile::tempdir().unwrap();
        let upkeep = Upkeep { history_commits: 1, history_bytes: 1, checkpoint_commits: 1 };
        let path = folder.path().join("catalog.db");
        let store = Store::open(&path, None, Arc::new(TokioEnv::current()), upkeep).unwrap();
        let connection = &store.connection;
        assert!(connection.db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE).unwrap());
        assert!(!connection.db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA).unwrap());
        assert_eq!(connection.limit(Limit::SQLITE_LIMIT_ATTACHED).unwrap(), 0);
        let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
        let numbers = ["cell_size_check", "mmap_size", "synchronous", "fullfsync", "wal_autocheckpoint"].map(number);
        assert_eq!(numbers, [1, 0, 2, 1, 0]);
        let text = |name| connection.pragma_query_value(None, name, |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(["journal_mode", "locking_mode"].map(text), ["wal", "exclusive"]);
        for hostile in ["ATTACH ':memory:' AS other", "SELECT load_extension('x')"] {
            assert!(connection.execute_batch(hostile).is_err(), "{hostile}");
        }
        assert!(!folder.path().join("catalog.db-shm").exists(), "no shared memory, so no second process");
    }
}
