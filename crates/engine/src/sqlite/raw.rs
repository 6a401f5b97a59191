//! One SQLite connection: opened hardened, with its statements prepared once.
//!
//! rusqlite opens and configures the connection. Statements are run through SQLite's own functions: a cursor must
//! stay open while its connection travels between threads, and a point read has no microsecond to spare.
//!
//! Two kinds of SQL run here. *Foreign* statements come from above; the authorizer lets them read and write rows of
//! user tables and nothing else: no schema, no pragma, no attached file, no transaction control, none of our own
//! tables. *Own* statements are constants of this engine.
//!
//! Invariants (docs/invariants.md):
//!   * I-63  each connection is hardened before its first statement
//!   * I-45  a statement that passes its time, or is cancelled, ends alone

use super::SqliteOptions;
use super::capture::Capture;
use super::functions::{self, Host};
use super::tenancy::{self, Reached, Tenancy, Watched};
use super::value;
use crate::env::Env;
use crate::error::{Result, ShardError};
use crate::fence::Access;
use crate::shard::{
    ActsFor, CancelToken, CursorId, CursorPage, Limits, MAX_PARAMETERS, MAX_SQL_BYTES, Outcome, Row, Statement,
};
use crate::text::TextHash;
use isles_kernel::interval::Interval;
use isles_kernel::schema::Schema;
use isles_kernel::value::{DataType, Numeric, Value};
use isles_sql::system::SystemFunctions;
use rusqlite::config::DbConfig;
use rusqlite::ffi;
use rusqlite::hooks::{AuthAction, AuthContext};
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Statements kept prepared by each connection. An application has a few dozen shapes; each costs a few KiB.
const STATEMENTS_CACHED: usize = 128;
/// Virtual-machine steps between two looks at the clock: often enough for millisecond limits, too rare to cost.
const STEPS_PER_LOOK: c_int = 1_000;
/// Lookaside memory of a connection: 16 KiB.
const LOOKASIDE_BYTES: c_int = 512;
const LOOKASIDE_SLOTS: c_int = 32;
/// The applier's page cache, in those of others. Rows come in the order of their key, and hit the pages of each other index
/// in no order; what does not fit is written to the WAL and read again within one batch. There is at most one applier, for
/// as long as rows come.
const APPLIER_CACHES: u32 = 4;
/// Cursors open at once in a transaction.
const MAX_CURSORS: usize = 1_000;

/// What SQLite said, before it is put into an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failure {
    /// Extended result code.
    code: c_int,
}

impl Failure {
    pub(super) fn of(code: c_int) -> Failure {
        Failure { code }
    }
}

/// How a statement ended that may find a key or a unique value taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ran {
    Done,
    Taken,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Runs the shard's writes, captured.
    Writer,
    /// Applies rows of other shards: neither triggers nor foreign keys fire, since their effects come with the rows.
    Applier,
    Reader,
}

/// Why a running statement was stopped from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Cancelled,
    TimedOut,
    OutOfBudget,
}

/// What the progress handler looks at. Boxed: SQLite holds its address.
struct Watch {
    env: Arc<dyn Env>,
    deadline: Duration,
    cancel: Option<CancelToken>,
    /// Looks left before a read that runs on a thread that must not block is taken elsewhere.
    budget: Option<u32>,
    stop: Option<Stop>,
}

impl Watch {
    fn look(&mut self) -> bool {
        self.stop = if self.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
            Some(Stop::Cancelled)
        } else if self.env.elapsed() >= self.deadline {
            Some(Stop::TimedOut)
        } else {
            match &mut self.budget {
                Some(0) => Some(Stop::OutOfBudget),
                Some(left) => {
                    *left -= 1;
                    None
                }
                None => None,
            }
        };
        self.stop.is_some()
    }
}

/// A compiled statement. It belongs to the connection that prepared it and does not outlive it.
pub(super) struct Prepared {
    raw: *mut ffi::sqlite3_stmt,
    /// For each of SQLite's parameters, which of ours it is.
    params: Vec<usize>,
    read_only: bool,
}

impl Prepared {
    pub(super) fn raw(&self) -> *mut ffi::sqlite3_stmt {
        self.raw
    }

    fn reset(&self) {
        // SAFETY: the statement is live; resetting and clearing are always allowed. The result of a reset repeats the
        // error of the last step, which has been reported.
        unsafe {
            ffi::sqlite3_reset(self.raw);
            ffi::sqlite3_clear_bindings(self.raw);
        }
    }

    fn bind(&self, params: &[Value]) -> std::result::Result<(), Failure> {
        (1..).zip(&self.params).try_for_each(|(index, param)| value::bind(self, index, &params[*param]))
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: prepared by us, finalized once; the connection is still open, since `Db` drops statements first.
        unsafe { ffi::sqlite3_finalize(self.raw) };
    }
}

struct Cached {
    statement: Prepared,
    last_used: u64,
}

/// A result that is read piecemeal. It owns its parameters, which SQLite reads in place.
struct Cursor {
    statement: Prepared,
    /// Held for SQLite, which reads texts and blobs in place.
    _params: Box<[Value]>,
    columns: Arc<[DataType]>,
    writes: bool,
    done: bool,
}

/// Whose statement is being prepared or run; the authorizer asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Own,
    Foreign,
}

/// A connection. Fields are dropped in order: statements before the connection they belong to.
/// A table that a statement writes to, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Write {
    Insert(String),
    Update(String),
    Delete(String),
}

pub(super) struct Db {
    cursors: BTreeMap<CursorId, Cursor>,
    next_cursor: u32,
    cache: HashMap<Arc<str>, Cached, TextHash>,
    own: HashMap<Cow<'static, str>, Prepared>,
    uses: u64,
    pub(super) capture: Option<Box<Capture>>,
    watch: Box<Watch>,
    /// The shard's state number that the open read transaction shows, if one was left open.
    kept: Option<u64>,
    /// Pages in the WAL after the last commit; boxed, SQLite holds its address.
    wal_pages: Box<c_int>,
    /// Where the authorizer notes what a statement writes to, while somebody asks.
    writes: Arc<Mutex<Option<Vec<Write>>>>,
    /// The tables as the writer knows them, to name what a statement has broken.
    pub(super) schema: Option<Arc<Schema>>,
    connection: Connection,
    /// What our functions in SQLite use; it outlives the connection.
    host: Box<Host>,
    /// Whom the running statement acts for; it outlives the connection.
    tenancy: Box<Tenancy>,
}

// SAFETY: the raw pointers inside belong to this connection alone, and SQLite allows a connection to be used by any
// thread as long as it is one at a time (it is opened without its own mutexes). `Db` is not `Sync`.
unsafe impl Send for Db {}

impl Db {
    pub(super) fn open(path: &Path, role: Role, env: Arc<dyn Env>, options: &SqliteOptions) -> Result<Db> {
        let vfs = options.vfs_name()?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let flags = if role == Role::Writer { flags | OpenFlags::SQLITE_OPEN_CREATE } else { flags };
        let connection =
            Connection::open_with_flags_and_vfs(path, flags, vfs.as_str()).map_err(|error| open_error(path, &error))?;
        let mut db = Db::new(connection, env);
        db.configure(role, options).map_err(|error| open_error(path, &error))?;
        Ok(db)
    }

    /// A database in memory alone, for as long as this lives.
    pub(super) fn open_in_memory(env: Arc<dyn Env>) -> Result<Db> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let path = Path::new(":memory:");
        let connection = Connection::open_in_memory_with_flags(flags).map_err(|error| open_error(path, &error))?;
        let mut db = Db::new(connection, env);
        db.configure_in_memory().map_err(|error| open_error(path, &error))?;
        Ok(db)
    }

    fn new(connection: Connection, env: Arc<dyn Env>) -> Db {
        let host = Host::new(env.clone());
        let watch = Watch { env, deadline: Duration::MAX, cancel: None, budget: None, stop: None };
        Db {
            cursors: BTreeMap::new(),
            next_cursor: 0,
            cache: HashMap::default(),
            own: HashMap::new(),
            uses: 0,
            capture: None,
            watch: Box::new(watch),
            kept: None,
            wal_pages: Box::new(0),
            writes: Arc::default(),
            schema: None,
            connection,
            host,
            tenancy: Box::default(),
        }
    }

    fn configure(&mut self, role: Role, options: &SqliteOptions) -> rusqlite::Result<()> {
        let connection = &self.connection;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        // Small allocations of a statement come from here and not from the heap, whose counter all connections share.
        // SQLite's default is three times as large; thousands of shards are open at once.
        // SAFETY: right after opening, no lookaside memory is in use.
        unsafe {
            let handle = connection.handle();
            ffi::sqlite3_db_config(handle, ffi::SQLITE_DBCONFIG_LOOKASIDE, 0usize, LOOKASIDE_BYTES, LOOKASIDE_SLOTS)
        };
        if role == Role::Writer {
            super::vfs::checksum::set_reserve_bytes(connection)
                .map_err(|code| rusqlite::Error::SqliteFailure(ffi::Error::new(code.0), None))?;
        }
        harden(connection)?;
        connection.pragma_update(None, "page_size", 4096)?;
        // Read to its end: the answer comes before the commit that it announces, and the commit may fail.
        let mut pragma = connection.prepare("PRAGMA journal_mode = WAL")?;
        let modes: Vec<String> = pragma.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        drop(pragma);
        if modes != ["wal"] {
            let message = format!("journal mode is {modes:?} where wal is needed");
            return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CANTOPEN), Some(message)));
        }
        connection.pragma_update(None, "synchronous", options.synchronous())?;
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        let cache_kib = if role == Role::Applier { APPLIER_CACHES * options.cache_kib } else { options.cache_kib };
        connection.pragma_update(None, "cache_size", -i64::from(cache_kib))?;
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        connection.pragma_update(None, "recursive_triggers", true)?;
        connection.pragma_update(None, "foreign_keys", role != Role::Applier)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, role != Role::Applier)?;
        connection.pragma_update(None, "query_only", role == Role::Reader)?;
        self.install()
    }

    /// What is written here needs no safety: it is gone with the connection.
    fn configure_in_memory(&mut self) -> rusqlite::Result<()> {
        harden(&self.connection)?;
        self.connection.pragma_update(None, "temp_store", "MEMORY")?;
        self.connection.pragma_update(None, "synchronous", "OFF")?;
        self.install()
    }

    /// Gives it the functions that need the schema.
    pub(super) fn know(&self, system: Arc<dyn SystemFunctions>) {
        self.host.know(system);
    }

    /// Collations, functions, the authorizer and the callbacks.
    fn install(&mut self) -> rusqlite::Result<()> {
        let connection = &self.connection;
        connection.create_collation(value::NUMERIC_COLLATION, Numeric::compare)?;
        connection.create_collation(value::INTERVAL_COLLATION, Interval::compare_texts)?;
        value::register_checks(connection)?;
        functions::install(connection, &self.host)?;
        tenancy::install(connection, &self.tenancy)?;
        let (watched, writes) = (Watched::new(&self.tenancy, self.handle()), self.writes.clone());
        self.connection.authorizer(Some(move |context: AuthContext<'_>| {
            note_write(&writes, &context);
            watched.authorize(&context)
        }))?;
        self.install_callbacks();
        Ok(())
    }

    fn install_callbacks(&mut self) {
        let handle = self.handle();
        let watch: *mut Watch = &mut *self.watch;
        let wal_pages: *mut c_int = &mut *self.wal_pages;
        // SAFETY: both boxes live as long as the connection, which is dropped after its last statement.
        unsafe {
            ffi::sqlite3_progress_handler(handle, STEPS_PER_LOOK, Some(on_progress), watch.cast());
            ffi::sqlite3_wal_hook(handle, Some(on_wal), wal_pages.cast());
        }
    }

    pub(super) fn handle(&self) -> *mut ffi::sqlite3 {
        // SAFETY: the handle is used only while `self` lives.
        unsafe { self.connection.handle() }
    }

    pub(super) fn tenancy(&self) -> &Tenancy {
        &self.tenancy
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Gives back cached pages: a shard that was only opened should cost little.
    pub(super) fn release_memory(&self) {
        // SAFETY: the handle is live.
        unsafe { ffi::sqlite3_db_release_memory(self.handle()) };
    }

    /// Pages in the WAL after the last commit on this connection.
    pub(super) fn wal_pages(&self) -> c_int {
        *self.wal_pages
    }

    pub(super) fn set_wal_pages(&mut self, pages: c_int) {
        *self.wal_pages = pages;
    }

    /// Lets the end of this connection move the log into the file and remove it, if it is the last one.
    ///
    /// Not for a shard that has stopped. If its last checkpoint could not be synced, neither was what earlier ones had
    /// left for that sync, and a checkpoint that goes on from there would remove the only durable copy. Whoever opens
    /// the file next begins from the beginning of the log.
    pub(super) fn checkpoint_on_close(&self) -> Result<()> {
        let set = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false);
        set.map(drop).map_err(|error| ShardError::Unavailable(error.to_string()))
    }

    /// Bounds what runs next: until `deadline` on the env's clock, or until it is cancelled.
    pub(super) fn set_watch(&mut self, deadline: Duration, cancel: Option<CancelToken>) {
        self.watch.deadline = deadline;
        self.watch.cancel = cancel;
        self.watch.stop = None;
    }

    /// Bounds the next read by `looks` looks of the progress handler; none lifts the bound.
    pub(super) fn set_budget(&mut self, looks: Option<u32>) {
        self.watch.budget = looks;
        self.watch.stop = None;
    }

    /// Whether the last statement ended because its budget was used up.
    pub(super) fn out_of_budget(&self) -> bool {
        self.watch.stop == Some(Stop::OutOfBudget)
    }

    /// Whether no transaction is open: outside one, or because SQLite had to roll it back.
    pub(super) fn is_autocommit(&self) -> bool {
        self.connection.is_autocommit()
    }

    /// Shows the state `number`, or a later one, to the reads that follow. A transaction that shows it already is used
    /// again: taking a snapshot costs more than a short read.
    pub(super) fn keep_snapshot(&mut self, number: u64) -> Result<()> {
        if self.kept == Some(number) {
            return Ok(());
        }
        self.end_snapshot()?;
        self.own("BEGIN", &[], &[])?;
        self.kept = Some(number);
        Ok(())
    }

    /// The head of the WAL's index, which all connections share: it changes with every commit, at the moment at which
    /// others can see it. None before the connection's first read.
    pub(super) fn wal_head(&self) -> Option<WalHead> {
        let (file, methods) = self.file()?;
        if methods.iVersion < 2 {
            return None;
        }
        let mut region = std::ptr::null_mut();
        // SAFETY: as above; the region is not made if it is not there.
        let code = unsafe { methods.xShmMap?(file, 0, WAL_REGION_BYTES, 0, &mut region) };
        if code != ffi::SQLITE_OK || region.is_null() {
            return None;
        }
        // SAFETY: the region stays mapped while the file is open and begins with the head. A head that is being
        // written while it is read is unlike the one before.
        Some(WalHead(std::array::from_fn(|at| unsafe { region.cast::<u32>().add(at).read_volatile() })))
    }

    /// The database file, and what can be done with it.
    fn file(&self) -> Option<(*mut ffi::sqlite3_file, &ffi::sqlite3_io_methods)> {
        let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
        let answer: *mut *mut ffi::sqlite3_file = &mut file;
        let what = ffi::SQLITE_FCNTL_FILE_POINTER;
        // SAFETY: the handle is live, and the answer has a place.
        let code = unsafe { ffi::sqlite3_file_control(self.handle(), c"main".as_ptr(), what, answer.cast()) };
        if code != ffi::SQLITE_OK || file.is_null() {
            return None;
        }
        // SAFETY: an open file of a live connection, which this thread alone uses.
        let methods = unsafe { (*file).pMethods.as_ref() }?;
        Some((file, methods))
    }

    /// Copies the WAL, as far as no reader needs what is under it, into the database file; and syncs that, if it was all
    /// of it. Returns the error if the shard must stop.
    pub(super) fn checkpoint(&mut self) -> Result<()> {
        // SAFETY: the handle is live; a null name means all attached databases, of which there is one.
        let code = unsafe {
            ffi::sqlite3_wal_checkpoint_v2(
                self.handle(),
                std::ptr::null(),
                ffi::SQLITE_CHECKPOINT_PASSIVE,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        match code & 0xff {
            // A reader is in the way, or the disk is full: the WAL stays, nothing is lost.
            ffi::SQLITE_OK | ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED | ffi::SQLITE_FULL => Ok(()),
            _ => Err(super::explain::error(code, "the checkpoint failed")),
        }
    }

    /// Syncs the database file. Returns the error if the shard must stop.
    pub(super) fn sync_file(&mut self) -> Result<()> {
        let Some((file, methods)) = self.file() else { return Ok(()) };
        let Some(sync) = methods.xSync else { return Ok(()) };
        // SAFETY: an open file of a live connection, which this thread alone uses.
        match unsafe { sync(file, ffi::SQLITE_SYNC_NORMAL) } {
            ffi::SQLITE_OK => Ok(()),
            code => Err(super::explain::error(code, "the file could not be synced")),
        }
    }

    /// Lets go of a kept snapshot, so that the WAL behind it can be reused.
    pub(super) fn end_snapshot(&mut self) -> Result<()> {
        if self.kept.take().is_some() { self.end_read() } else { Ok(()) }
    }

    /// Ends a transaction that has only read, unless SQLite has: it does so when the disk fails.
    pub(super) fn end_read(&mut self) -> Result<()> {
        if self.is_autocommit() { Ok(()) } else { self.own("ROLLBACK", &[], &[]).map(drop) }
    }

    /// Runs a foreign statement to its end.
    pub(super) fn run(&mut self, statement: &Statement, limits: &Limits, acts_for: &ActsFor) -> Result<Outcome> {
        check_statement(statement)?;
        acts_for.check(if statement.writes { Access::Write } else { Access::Read })?;
        self.tenancy.watch(acts_for, statement.writes);
        let outcome = match acts_for {
            // What it may read was asked when it was compiled: nobody else may find it compiled.
            ActsFor::Everyone => self.run_once(statement, limits),
            ActsFor::Nobody | ActsFor::Tenant(_) => self.run_cached(statement, limits),
        };
        let judged = self.unwatch();
        if judged.is_err() {
            // Compiled, it would not be judged again.
            self.cache.remove(&statement.sql);
        }
        judged.and(outcome)
    }

    /// Ends the watch over a statement, and refuses one that goes past the second fence.
    fn unwatch(&mut self) -> Result<()> {
        let reached = self.tenancy.unwatch()?;
        for table in reached.only_read() {
            if !self.is_tied(table, &reached)? {
                return Err(ShardError::beyond_tenant());
            }
        }
        Ok(())
    }

    /// Whether SQLite reads a table for a foreign key of one that is written, or for one's own on such a table.
    fn is_tied(&mut self, table: &str, reached: &Reached) -> Result<bool> {
        let is_parent = |parents: &[Row], name: &str| {
            parents.iter().any(|row| matches!(&row[0], Value::Text(parent) if parent.eq_ignore_ascii_case(name)))
        };
        let own = self.parents(table)?;
        for written in &reached.written {
            if is_parent(&own, written) || is_parent(&self.parents(written)?, table) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn parents(&mut self, table: &str) -> Result<Vec<Row>> {
        let sql = "SELECT \"table\" FROM pragma_foreign_key_list($1)";
        self.own(sql, &[Value::text(table)], &[DataType::Text])
    }

    fn run_once(&mut self, statement: &Statement, limits: &Limits) -> Result<Outcome> {
        let handle = self.handle();
        let prepared = self.prepare(&statement.sql, Origin::Foreign)?;
        let outcome = run_prepared(handle, &prepared, statement, limits);
        outcome.map_err(|error| self.explain_statement(error, &statement.sql))
    }

    /// Runs text that the engine composed and uses again. Only for connections that run nothing foreign: the cache
    /// does not tell whose a text is.
    pub(super) fn run_own(&mut self, statement: &Statement, limits: &Limits) -> Result<Outcome> {
        self.run_cached(statement, limits)
    }

    fn run_cached(&mut self, statement: &Statement, limits: &Limits) -> Result<Outcome> {
        self.uses += 1;
        let handle = self.handle();
        if let Some(cached) = self.cache.get_mut(&statement.sql) {
            cached.last_used = self.uses;
            let outcome = run_prepared(handle, &cached.statement, statement, limits);
            cached.statement.reset();
            return outcome.map_err(|error| self.explain_statement(error, &statement.sql));
        }
        let prepared = self.prepare(&statement.sql, Origin::Foreign)?;
        let outcome = run_prepared(handle, &prepared, statement, limits);
        prepared.reset();
        self.evict();
        self.cache.insert(statement.sql.clone(), Cached { statement: prepared, last_used: self.uses });
        outcome.map_err(|error| self.explain_statement(error, &statement.sql))
    }

    /// Runs one of the engine's own statements; `sql` is a constant, so it stays prepared for ever.
    pub(super) fn own(&mut self, sql: &'static str, params: &[Value], columns: &[DataType]) -> Result<Vec<Row>> {
        self.own_kept_as(Cow::Borrowed(sql), params, columns)
    }

    /// As [`Db::own`], for text that was composed and is used again and again; there must be few such texts.
    pub(super) fn own_kept(&mut self, sql: &str, params: &[Value], columns: &[DataType]) -> Result<Vec<Row>> {
        match self.own.contains_key(sql) {
            true => self.run_kept(sql, params, columns),
            false => self.own_kept_as(Cow::Owned(sql.into()), params, columns),
        }
    }

    fn own_kept_as(&mut self, sql: Cow<'static, str>, params: &[Value], columns: &[DataType]) -> Result<Vec<Row>> {
        if !self.own.contains_key(&sql) {
            let prepared = self.prepare(&sql, Origin::Own)?;
            self.own.insert(sql.clone(), prepared);
        }
        self.run_kept(&sql, params, columns)
    }

    fn run_kept(&mut self, sql: &str, params: &[Value], columns: &[DataType]) -> Result<Vec<Row>> {
        let prepared = self.own.get(sql).ok_or_else(|| ShardError::invalid("statement cache"))?;
        let rows = run_own(prepared, params, columns);
        prepared.reset();
        rows.map_err(|error| self.explain(error))
    }

    /// Runs text that the engine composed, such as DDL or a page query; it is not kept.
    pub(super) fn own_text(&mut self, sql: &str, params: &[Value], columns: &[DataType]) -> Result<Vec<Row>> {
        let prepared = self.prepare(sql, Origin::Own)?;
        let rows = run_own(&prepared, params, columns);
        rows.map_err(|error| self.explain(error))
    }

    /// Prepares text that the engine composed and that its caller runs many times. It must be dropped before this is.
    pub(super) fn prepare_own(&mut self, sql: &str) -> Result<Prepared> {
        self.prepare(sql, Origin::Own)
    }

    /// Takes a composed text that is used again and again, for one who runs it many times now and gives it back with
    /// [`Db::give_back`].
    pub(super) fn take_kept(&mut self, sql: &str) -> Result<Prepared> {
        match self.own.remove(sql) {
            Some(prepared) => Ok(prepared),
            None => self.prepare(sql, Origin::Own),
        }
    }

    pub(super) fn give_back(&mut self, sql: String, prepared: Prepared) {
        self.own.insert(Cow::Owned(sql), prepared);
    }

    /// Runs a prepared statement without a result; its parameters are `$1`, `$2`, … in the order of the text.
    pub(super) fn run_bound<'a>(
        &mut self,
        prepared: &Prepared,
        params: impl Iterator<Item = &'a Value>,
    ) -> Result<Ran> {
        let bound = (1..).zip(params).try_for_each(|(index, value)| value::bind(prepared, index, value));
        let ran = bound.and_then(|()| step(prepared));
        prepared.reset();
        match ran {
            Ok(_) => Ok(Ran::Done),
            Err(Failure { code: ffi::SQLITE_CONSTRAINT_PRIMARYKEY | ffi::SQLITE_CONSTRAINT_UNIQUE }) => Ok(Ran::Taken),
            Err(failure) => Err(self.explain(failure)),
        }
    }

    /// Rows that the last statement has inserted, updated or deleted.
    pub(super) fn changes(&self) -> u64 {
        // SAFETY: the handle is live.
        unsafe { ffi::sqlite3_changes64(self.handle()) as u64 }
    }

    /// Rows that all statements so far have inserted, updated or deleted; those of a statement that failed are not
    /// counted, since it has taken them back.
    pub(super) fn all_changes(&self) -> u64 {
        // SAFETY: the handle is live.
        unsafe { ffi::sqlite3_total_changes64(self.handle()) as u64 }
    }

    /// Runs composed text and hands each row to `each`, without keeping them.
    pub(super) fn own_each(
        &mut self,
        sql: &str,
        params: &[Value],
        columns: &[DataType],
        mut each: impl FnMut(Row) -> Result<()>,
    ) -> Result<()> {
        self.own_steps(sql, params, |prepared| each(read_row(prepared, columns)?))
    }

    /// Runs composed text; at each row `each` reads what it wants of it.
    pub(super) fn own_steps(
        &mut self,
        sql: &str,
        params: &[Value],
        mut each: impl FnMut(&Prepared) -> Result<()>,
    ) -> Result<()> {
        let prepared = self.prepare(sql, Origin::Own)?;
        prepared.bind(params).map_err(|failure| self.explain(Trouble::Sqlite(failure)))?;
        while step(&prepared).map_err(|failure| self.explain(Trouble::Sqlite(failure)))? {
            each(&prepared)?;
        }
        Ok(())
    }

    fn prepare(&mut self, sql: &str, origin: Origin) -> Result<Prepared> {
        let mut raw = std::ptr::null_mut();
        let mut tail = std::ptr::null();
        let flags = ffi::SQLITE_PREPARE_PERSISTENT as std::ffi::c_uint;
        let start = sql.as_ptr().cast();
        // SAFETY: the text is given with its length, and SQLite copies it.
        let code =
            unsafe { ffi::sqlite3_prepare_v3(self.handle(), start, sql.len() as c_int, flags, &mut raw, &mut tail) };
        if code != ffi::SQLITE_OK {
            let code = self.extended_code(code);
            return Err(self.explain(Trouble::Sqlite(Failure::of(code))));
        }
        if raw.is_null() {
            return Err(ShardError::statement("42601", "the statement is empty"));
        }
        let prepared = describe(raw)?;
        // SAFETY: `tail` points into `sql`.
        let rest = &sql[unsafe { tail.offset_from(start) } as usize..];
        // A second statement would be dropped silently.
        if origin == Origin::Foreign && !rest.trim_matches([' ', '\t', '\r', '\n', ';']).is_empty() {
            return Err(ShardError::statement("42601", "cannot insert multiple commands into a prepared statement"));
        }
        Ok(prepared)
    }

    fn evict(&mut self) {
        if self.cache.len() < STATEMENTS_CACHED {
            return;
        }
        let oldest = self.cache.iter().min_by_key(|(_, cached)| cached.last_used).map(|(sql, _)| sql.clone());
        if let Some(sql) = oldest {
            self.cache.remove(&sql);
        }
    }

    /// Begins to read a result piecemeal.
    pub(super) fn open_cursor(&mut self, statement: &Statement, acts_for: &ActsFor) -> Result<CursorId> {
        check_statement(statement)?;
        if self.cursors.len() >= MAX_CURSORS {
            return Err(ShardError::Limit { what: "the number of open cursors", limit: MAX_CURSORS as u64 });
        }
        acts_for.check(if statement.writes { Access::Write } else { Access::Read })?;
        self.tenancy.watch(acts_for, statement.writes);
        let prepared = self.prepare(&statement.sql, Origin::Foreign);
        self.unwatch()?;
        let prepared = prepared?;
        check_arity(&prepared, statement)?;
        let params: Box<[Value]> = statement.params.clone().into();
        prepared.bind(&params).map_err(|failure| self.explain(Trouble::Sqlite(failure)))?;
        let id = CursorId(self.next_cursor);
        self.next_cursor += 1;
        let (columns, writes) = (statement.columns.clone(), statement.writes);
        let cursor = Cursor { statement: prepared, _params: params, columns, writes, done: false };
        self.cursors.insert(id, cursor);
        Ok(id)
    }

    pub(super) fn fetch(
        &mut self,
        id: CursorId,
        rows: usize,
        limits: &Limits,
        acts_for: &ActsFor,
    ) -> Result<CursorPage> {
        let writes = self.cursors.get(&id).is_some_and(|cursor| cursor.writes);
        self.tenancy.watch(acts_for, writes);
        let page = self.fetch_foreign(id, rows, limits);
        self.unwatch()?;
        page.map_err(|error| self.explain(error))
    }

    fn fetch_foreign(
        &mut self,
        id: CursorId,
        rows: usize,
        limits: &Limits,
    ) -> std::result::Result<CursorPage, Trouble> {
        let cursor = self.cursors.get_mut(&id).ok_or_else(no_cursor)?;
        let mut page = CursorPage { rows: Vec::new(), done: cursor.done };
        let mut tally = Tally::new(limits);
        while !page.done && page.rows.len() < rows {
            if !step(&cursor.statement)? {
                cursor.done = true;
                page.done = true;
                break;
            }
            check_columns(&cursor.statement, &cursor.columns)?;
            let row = read_row(&cursor.statement, &cursor.columns)?;
            tally.add(&row)?;
            page.rows.push(row);
        }
        Ok(page)
    }

    pub(super) fn close_cursor(&mut self, id: CursorId) -> Result<()> {
        self.cursors.remove(&id).map(drop).ok_or_else(|| ShardError::statement("34000", "cursor does not exist"))
    }

    /// Closes what a transaction left open, so that its end is not held up.
    pub(super) fn close_cursors(&mut self) {
        self.cursors.clear();
        self.next_cursor = 0;
    }

    fn extended_code(&self, code: c_int) -> c_int {
        // SAFETY: the handle is live.
        let extended = unsafe { ffi::sqlite3_extended_errcode(self.handle()) };
        if extended & 0xff == code & 0xff { extended } else { code }
    }

    /// Rows that break a deferred foreign key at this point of the transaction.
    pub(super) fn deferred_violations(&self) -> bool {
        let (mut now, mut high) = (0, 0);
        // SAFETY: the handle is live and both counters are ours.
        unsafe {
            ffi::sqlite3_db_status(self.handle(), ffi::SQLITE_DBSTATUS_DEFERRED_FKS, &mut now, &mut high, 0);
        }
        now != 0
    }

    /// The error, with the name of what the statement has broken.
    fn explain_statement(&mut self, trouble: impl Into<Trouble>, sql: &str) -> ShardError {
        match (self.explain(trouble), self.schema.clone()) {
            (ShardError::Statement(error), Some(schema)) => {
                ShardError::Statement(super::explain::named(error, &schema, || self.writes_of(sql)))
            }
            (error, _) => error,
        }
    }

    /// What a statement writes to: it is compiled once more, and SQLite asks for leave of each table.
    fn writes_of(&mut self, sql: &str) -> Vec<Write> {
        let seen = |writes: &Mutex<Option<Vec<Write>>>, next| {
            std::mem::replace(&mut *writes.lock().unwrap_or_else(PoisonError::into_inner), next)
        };
        seen(&self.writes, Some(Vec::new()));
        let compiled = self.prepare(sql, Origin::Foreign);
        let writes = seen(&self.writes, None).unwrap_or_default();
        drop(compiled);
        writes
    }

    fn explain(&self, trouble: impl Into<Trouble>) -> ShardError {
        match trouble.into() {
            Trouble::Shard(error) => error,
            Trouble::Sqlite(failure) => self.explain_failure(failure),
        }
    }

    fn explain_failure(&self, failure: Failure) -> ShardError {
        if let Some(raised) = self.host.take(failure.code) {
            return ShardError::Statement(raised);
        }
        // SAFETY: the handle is live; the message is copied at once.
        let message = unsafe {
            let text = ffi::sqlite3_errmsg(self.handle());
            if text.is_null() { String::new() } else { std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        match (failure.code & 0xff, self.watch.stop) {
            (ffi::SQLITE_INTERRUPT, Some(Stop::Cancelled)) => ShardError::Cancelled,
            (ffi::SQLITE_INTERRUPT, _) => ShardError::TimedOut,
            _ => super::explain::error(failure.code, &message),
        }
    }
}

/// What can end a statement: SQLite's word, or ours.
enum Trouble {
    Sqlite(Failure),
    Shard(ShardError),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        Trouble::Sqlite(failure)
    }
}

impl From<ShardError> for Trouble {
    fn from(error: ShardError) -> Trouble {
        Trouble::Shard(error)
    }
}

fn no_cursor() -> Trouble {
    Trouble::Shard(ShardError::statement("34000", "cursor does not exist"))
}

fn check_statement(statement: &Statement) -> Result<()> {
    if statement.sql.len() > MAX_SQL_BYTES {
        return Err(ShardError::Limit { what: "the length of a statement", limit: MAX_SQL_BYTES as u64 });
    }
    if statement.params.len() > MAX_PARAMETERS {
        return Err(ShardError::Limit { what: "the number of parameters", limit: MAX_PARAMETERS as u64 });
    }
    if statement.params.iter().any(has_nul) {
        return Err(ShardError::statement("22021", "a text may not contain a zero byte"));
    }
    Ok(())
}

fn has_nul(value: &Value) -> bool {
    match value {
        Value::Text(s) | Value::Json(s) => s.as_bytes().contains(&0),
        Value::Array(members) => members.iter().any(has_nul),
        _ => false,
    }
}

fn check_arity(prepared: &Prepared, statement: &Statement) -> Result<()> {
    let needed = prepared.params.iter().map(|at| at + 1).max().unwrap_or(0);
    if needed != statement.params.len() {
        let message = format!("the statement has {needed} parameters, {} were given", statement.params.len());
        return Err(ShardError::statement("08P01", message));
    }
    Ok(())
}

/// To be asked after the first step: SQLite prepares a statement anew when the schema has changed since.
fn check_columns(prepared: &Prepared, columns: &[DataType]) -> Result<()> {
    // SAFETY: the statement is live.
    let found = unsafe { ffi::sqlite3_column_count(prepared.raw) } as usize;
    if found != columns.len() {
        let message = format!("the result has {found} columns, {} were expected", columns.len());
        return Err(ShardError::statement("42804", message));
    }
    Ok(())
}

fn describe(raw: *mut ffi::sqlite3_stmt) -> Result<Prepared> {
    // SAFETY: a statement that has just been prepared.
    let (count, read_only) = unsafe { (ffi::sqlite3_bind_parameter_count(raw), ffi::sqlite3_stmt_readonly(raw) != 0) };
    let mut prepared = Prepared { raw, params: Vec::new(), read_only };
    prepared.params = (1..=count).map(|index| param_number(raw, index)).collect::<Result<_>>()?;
    Ok(prepared)
}

/// SQLite numbers `$3` by its first appearance; we mean the third parameter.
fn param_number(raw: *mut ffi::sqlite3_stmt, index: c_int) -> Result<usize> {
    // SAFETY: the statement is live and the name belongs to it.
    let name = unsafe {
        let name = ffi::sqlite3_bind_parameter_name(raw, index);
        if name.is_null() { None } else { Some(std::ffi::CStr::from_ptr(name).to_string_lossy()) }
    };
    let number = match name.as_deref() {
        None => Some(index as usize),
        Some(name) => name.strip_prefix(['$', '?']).and_then(|digits| digits.parse().ok()).filter(|n| *n > 0),
    };
    number.map(|n| n - 1).ok_or_else(|| ShardError::statement("42P02", "parameters are written $1, $2, …"))
}

/// Counts a result against its limits.
struct Tally<'a> {
    limits: &'a Limits,
    rows: usize,
    bytes: usize,
}

impl<'a> Tally<'a> {
    fn new(limits: &'a Limits) -> Tally<'a> {
        Tally { limits, rows: 0, bytes: 0 }
    }

    fn add(&mut self, row: &Row) -> Result<()> {
        self.rows += 1;
        self.bytes += row.iter().map(Value::weight).sum::<usize>();
        if self.rows > self.limits.rows {
            return Err(ShardError::Limit { what: "the number of rows", limit: self.limits.rows as u64 });
        }
        if self.bytes > self.limits.bytes {
            return Err(ShardError::Limit { what: "the size of the result", limit: self.limits.bytes as u64 });
        }
        Ok(())
    }
}

/// What a WAL's index begins with: a counter of commits and checksums among it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WalHead([u32; 12]);

/// The index is mapped in regions of this size.
const WAL_REGION_BYTES: c_int = 32 << 10;

fn run_prepared(
    handle: *mut ffi::sqlite3,
    prepared: &Prepared,
    statement: &Statement,
    limits: &Limits,
) -> std::result::Result<Outcome, Trouble> {
    check_arity(prepared, statement)?;
    prepared.bind(&statement.params)?;
    let mut outcome = Outcome::default();
    let mut tally = Tally::new(limits);
    let mut more = step(prepared)?;
    check_columns(prepared, &statement.columns)?;
    while more {
        let row = read_row(prepared, &statement.columns)?;
        tally.add(&row)?;
        outcome.rows.push(row);
        more = step(prepared)?;
    }
    if !prepared.read_only {
        // SAFETY: the handle is live.
        outcome.affected = unsafe { ffi::sqlite3_changes64(handle) } as u64;
    }
    Ok(outcome)
}

fn run_own(prepared: &Prepared, params: &[Value], columns: &[DataType]) -> std::result::Result<Vec<Row>, Trouble> {
    prepared.bind(params)?;
    let mut rows = Vec::new();
    while step(prepared)? {
        // A pragma that sets something answers with a row nobody asked for.
        if !columns.is_empty() {
            rows.push(read_row(prepared, columns)?);
        }
    }
    Ok(rows)
}

/// Whether there is a row.
fn step(prepared: &Prepared) -> std::result::Result<bool, Failure> {
    // SAFETY: the statement is live and used by this thread alone.
    match unsafe { ffi::sqlite3_step(prepared.raw) } {
        ffi::SQLITE_ROW => Ok(true),
        ffi::SQLITE_DONE => Ok(false),
        code => {
            // SAFETY: as above; the handle of a live statement is live.
            let extended = unsafe { ffi::sqlite3_extended_errcode(ffi::sqlite3_db_handle(prepared.raw)) };
            Err(Failure::of(if extended & 0xff == code & 0xff { extended } else { code }))
        }
    }
}

fn read_row(prepared: &Prepared, columns: &[DataType]) -> Result<Row> {
    read_columns(prepared, 0, columns)
}

/// The columns of the current row from the one at `first` on.
pub(super) fn read_columns(prepared: &Prepared, first: c_int, columns: &[DataType]) -> Result<Row> {
    let mut row = Row::with_capacity(columns.len());
    for (index, ty) in (first..).zip(columns) {
        row.push(value::column(prepared, index, *ty)?);
    }
    Ok(row)
}

fn harden(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    // Plans that depend on the parameters' values are made anew whenever they are bound to others, which costs ten times
    // what a short statement does.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // A misspelt "column" must be an error and not a text.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    let limits = [
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_SQL_LENGTH, MAX_SQL_BYTES as i32),
        (Limit::SQLITE_LIMIT_LENGTH, 256 << 20),
        (Limit::SQLITE_LIMIT_EXPR_DEPTH, 500),
        (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 500),
        (Limit::SQLITE_LIMIT_VARIABLE_NUMBER, MAX_PARAMETERS as i32),
        (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 100),
        (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 10_000),
        (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    ];
    limits.iter().try_for_each(|(limit, value)| connection.set_limit(*limit, *value).map(drop))
}

/// Notes what a statement writes to, while somebody asks.
fn note_write(writes: &Mutex<Option<Vec<Write>>>, context: &AuthContext<'_>) {
    let write = match context.action {
        AuthAction::Insert { table_name } => Write::Insert(table_name.into()),
        AuthAction::Update { table_name, .. } => Write::Update(table_name.into()),
        AuthAction::Delete { table_name } => Write::Delete(table_name.into()),
        _ => return,
    };
    if let Some(seen) = &mut *writes.lock().unwrap_or_else(PoisonError::into_inner)
        && !seen.contains(&write)
    {
        seen.push(write);
    }
}

unsafe extern "C" fn on_progress(watch: *mut c_void) -> c_int {
    // SAFETY: registered with a `Watch` that outlives the connection, called on the thread that uses it.
    let watch = unsafe { &mut *watch.cast::<Watch>() };
    c_int::from(watch.look())
}

unsafe extern "C" fn on_wal(pages: *mut c_void, _: *mut ffi::sqlite3, _: *const std::ffi::c_char, now: c_int) -> c_int {
    // SAFETY: registered with a counter that outlives the connection, called on the thread that uses it.
    unsafe { *pages.cast::<c_int>() = now };
    ffi::SQLITE_OK
}

fn open_error(path: &Path, error: &rusqlite::Error) -> ShardError {
    let code = match error {
        rusqlite::Error::SqliteFailure(failure, _) => failure.extended_code,
        _ => ffi::SQLITE_ERROR,
    };
    match super::explain::error(code, &error.to_string()) {
        ShardError::Corrupt(_) if code & 0xff == ffi::SQLITE_NOTADB => {
            ShardError::Invalid(format!("{} is not an Isles shard", path.display()))
        }
        ShardError::Corrupt(why) => ShardError::Corrupt(format!("{}: {why}", path.display())),
        ShardError::DiskFull(why) => ShardError::DiskFull(format!("{}: {why}", path.display())),
        _ => ShardError::Unavailable(format!("cannot open {}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::TokioEnv;

    fn pragma(db: &Db, name: &str) -> i64 {
        db.connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0)).unwrap()
    }

    /// I-63
    #[tokio::test]
    async fn every_connection_is_hardened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shard.db");
        let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
        super::super::init();
        for role in [Role::Writer, Role::Applier, Role::Reader] {
            let db = Db::open(&path, role, env.clone(), &SqliteOptions::default()).unwrap();
            let config = |config| db.connection.db_config(config).unwrap();
            assert!(config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE), "{role:?}");
            assert!(!config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA), "{role:?}");
            let load = db.connection.query_row("SELECT load_extension('x')", [], |row| row.get::<_, i64>(0));
            assert!(load.unwrap_err().to_string().contains("not authorized"), "{role:?}");
            assert!(
                !config(DbConfig::SQLITE_DBCONFIG_DQS_DML) && !config(DbConfig::SQLITE_DBCONFIG_DQS_DDL),
                "{role:?}"
            );
            assert_eq!(db.connection.limit(Limit::SQLITE_LIMIT_ATTACHED).unwrap(), 0, "{role:?}");
            assert_eq!(db.connection.limit(Limit::SQLITE_LIMIT_SQL_LENGTH).unwrap(), MAX_SQL_BYTES as i32, "{role:?}");
            assert_eq!((pragma(&db, "cell_size_check"), pragma(&db, "synchronous")), (1, 2), "{role:?}");
            assert_eq!(pragma(&db, "query_only") == 1, role == Role::Reader, "{role:?}");
            assert_eq!(pragma(&db, "foreign_keys") == 1, role != Role::Applier, "{role:?}");
            // Without memory mapping, the pragma answers nothing or zero.
            let mapped = db.connection.query_row("PRAGMA mmap_size", [], |row| row.get::<_, i64>(0));
            assert!(mapped.unwrap_or(0) == 0, "{role:?}");
        }
        // SAFETY: a negative limit asks and sets nothing.
        assert!(unsafe { ffi::sqlite3_hard_heap_limit64(-1) } > 0);
    }
}
