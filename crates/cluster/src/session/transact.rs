//! Transactions of a session: BEGIN, COMMIT, savepoints, and what is allowed once a statement has failed.
//!
//!     Idle ─BEGIN─► Open ─statement fails─► Failed ─ROLLBACK TO─► Open
//!       ▲             │ COMMIT, ROLLBACK       │ COMMIT (a rollback), ROLLBACK
//!       └─────────────┴────────────────────────┘
//!
//! The shards are entered when a statement needs them, so BEGIN costs nothing and holds nothing.
//!
//! A transaction that waits for its client longer than `idle_in_transaction_session_timeout` is rolled back, since it
//! may hold a shard's writer; the client's next statement is told (25P03). One that has changed the schema keeps everyone
//! else out, and is rolled back after a minute at the latest.

use super::plans::Compiled;
use super::settings::Mark;
use super::{Result, Session, known};
use crate::advisory::Holder;
use crate::database::SchemaGuard;
use crate::execute::inputs::acts_for;
use crate::execute::transaction::{MAX_SAVEPOINTS, Modes, Txn};
use isles_engine::shard::Isolation;
use isles_kernel::error::SqlError;
use isles_sql::bind::utility::{IsolationLevel, SetScope, TransactionModes, Utility};
use std::sync::Arc;
use std::time::Duration;

/// How often the watch looks at a transaction whose limit has not been told.
const WATCH_INTERVAL: Duration = Duration::from_secs(10);

/// How long a transaction that is alone in the database may wait for its client.
const ALONE_IDLE: Duration = Duration::from_secs(60);

/// Who began a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The protocol, for statements that belong together.
    Implicit,
    /// The client.
    Explicit,
}

/// An open transaction, as the session knows it.
pub(super) struct Open {
    pub(super) kind: Kind,
    pub(super) failed: bool,
    pub(super) modes: Modes,
    /// When it began, as PostgreSQL counts.
    pub(super) began: i64,
    savepoints: Vec<Savepoint>,
}

struct Savepoint {
    name: String,
    /// Its name on the shards, once any was entered.
    on_shards: Option<String>,
    settings: Mark,
    /// Advisory locks that the transaction had.
    locks: usize,
}

/// The open transaction's parts on the shards.
#[derive(Default)]
pub(super) struct Slot {
    txn: Option<Txn>,
    /// What the transaction has locked besides, if anything.
    locks: Option<Arc<Holder>>,
    /// When the last statement ended, on the env's clock.
    used: Duration,
    limit: Option<Duration>,
    /// The transaction waited for its client too long.
    timed_out: bool,
}

impl Slot {
    pub(super) fn schema(&self) -> Option<Arc<SchemaGuard>> {
        self.txn.as_ref().map(|txn| txn.schema.clone())
    }

    pub(super) fn txn(&mut self) -> Result<&mut Txn> {
        self.txn.as_mut().ok_or_else(idle_too_long)
    }

    /// One who is alone in the database keeps everyone out, so it may not wait for its client for ever.
    pub(super) fn limit_alone(&mut self) {
        self.limit = Some(self.limit.map_or(ALONE_IDLE, |limit| limit.min(ALONE_IDLE)));
    }

    pub(super) fn touch(&mut self, now: Duration) {
        self.used = now;
    }

    /// The transaction has locked something, perhaps before it came to any shard.
    pub(super) fn note_locks(&mut self, locks: &Arc<Holder>, limit: Option<Duration>, now: Duration) {
        if self.txn.is_none() {
            self.limit = limit;
        }
        self.locks.get_or_insert_with(|| locks.clone());
        self.touch(now);
    }

    fn is_open(&self) -> bool {
        self.txn.is_some() || self.locks.is_some()
    }

    /// What the transaction has on the shards. Its locks are free when that has ended.
    fn take(&mut self) -> (Option<Txn>, TransactionLocks) {
        (self.txn.take(), TransactionLocks(self.locks.take()))
    }
}

/// What a transaction has locked; unlocked when this is dropped.
struct TransactionLocks(Option<Arc<Holder>>);

impl Drop for TransactionLocks {
    fn drop(&mut self) {
        if let Some(locks) = &self.0 {
            locks.rewind(0);
        }
    }
}

fn idle_too_long() -> SqlError {
    SqlError::new("25P03", "terminating connection due to idle-in-transaction timeout")
}

fn aborted() -> SqlError {
    SqlError::new("25P02", "current transaction is aborted, commands ignored until end of transaction block")
}

fn level(level: IsolationLevel) -> Isolation {
    match level {
        IsolationLevel::ReadUncommitted | IsolationLevel::ReadCommitted => Isolation::ReadCommitted,
        IsolationLevel::RepeatableRead => Isolation::RepeatableRead,
        IsolationLevel::Serializable => Isolation::Serializable,
    }
}

fn with(modes: Modes, said: TransactionModes) -> Modes {
    Modes {
        isolation: said.isolation.map_or(modes.isolation, level),
        read_only: said.read_only.unwrap_or(modes.read_only),
    }
}

impl Session {
    /// The modes of the open transaction, or those that the next one has.
    pub(super) fn modes(&self) -> Modes {
        match &self.open {
            Some(open) => open.modes,
            None => {
                let meaning = self.settings.meaning();
                Modes { isolation: meaning.isolation, read_only: meaning.read_only }
            }
        }
    }

    pub(super) fn in_block(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.kind == Kind::Explicit)
    }

    /// A failed transaction without a savepoint can only be rolled back: what it holds on the shards goes at once, and
    /// not when its client gets to saying so.
    pub(super) async fn let_go(&mut self) {
        if !self.open.as_ref().is_some_and(|open| open.failed && open.savepoints.is_empty()) {
            return;
        }
        let (txn, _locks) = self.slot.lock().await.take();
        if let Some(txn) = txn {
            txn.rollback().await;
        }
    }

    /// Refuses what a failed transaction does not take.
    pub(super) async fn check_open(&mut self, compiled: &Compiled) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let timed_out = std::mem::take(&mut self.slot.lock().await.timed_out);
        if timed_out {
            open.failed = true;
            return Err(idle_too_long());
        }
        let ends = matches!(compiled, Compiled::Utility(utility) if matches!(**utility,
            Utility::Commit { .. } | Utility::Rollback { .. } | Utility::RollbackTo { .. }));
        if open.failed && !ends && !matches!(compiled, Compiled::Empty) { Err(aborted()) } else { Ok(()) }
    }

    pub(super) fn open_transaction(&mut self, modes: Modes, kind: Kind) {
        self.settings.begin();
        self.settings.show_modes(modes.isolation, modes.read_only);
        let began = known::now(&*self.database.env);
        self.open = Some(Open { kind, failed: false, modes, began, savepoints: Vec::new() });
    }

    pub(super) fn begin(&mut self, said: TransactionModes) -> Result<()> {
        match &mut self.open {
            Some(open) if open.kind == Kind::Explicit => {
                self.warn("25001", "there is already a transaction in progress");
            }
            Some(open) => {
                open.kind = Kind::Explicit;
                let modes = with(open.modes, said);
                open.modes = modes;
                self.settings.show_modes(modes.isolation, modes.read_only);
            }
            None => {
                let modes = with(self.modes(), said);
                self.open_transaction(modes, Kind::Explicit);
            }
        }
        Ok(())
    }

    /// `SET TRANSACTION`, or the defaults of those to come.
    pub(super) async fn set_transaction(&mut self, said: TransactionModes, scope: SetScope) -> Result<()> {
        if scope == SetScope::Session {
            if let Some(isolation) = said.isolation {
                let name = super::settings::isolation_name(level(isolation));
                self.settings.set("default_transaction_isolation", name, false)?;
            }
            if let Some(read_only) = said.read_only {
                let value = if read_only { "on" } else { "off" };
                self.settings.set("default_transaction_read_only", value, false)?;
            }
            return Ok(());
        }
        let begun = self.slot.lock().await.txn.as_ref().is_some_and(Txn::has_begun);
        let Some(open) = &mut self.open else {
            self.warn("25P01", "SET TRANSACTION can only be used in transaction blocks");
            return Ok(());
        };
        let modes = with(open.modes, said);
        if begun && modes.isolation != open.modes.isolation {
            return Err(SqlError::new("25001", "SET TRANSACTION ISOLATION LEVEL must be called before any query"));
        }
        if begun && open.modes.read_only && !modes.read_only {
            return Err(SqlError::new("25001", "transaction read-write mode must be set before any query"));
        }
        open.modes = modes;
        if let Some(txn) = &mut self.slot.lock().await.txn {
            txn.modes = modes;
        }
        self.settings.show_modes(modes.isolation, modes.read_only);
        Ok(())
    }

    /// Gives the open transaction its parts on the shards, if it has none yet.
    pub(super) async fn enter_transaction(&mut self, guard: &Arc<SchemaGuard>) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let slot = self.slot.clone();
        let mut slot = slot.lock().await;
        if slot.txn.is_some() {
            return Ok(());
        }
        let mut txn = Txn::begin(&self.database, open.modes, guard.clone(), acts_for(&self.settings.meaning().tenant))?;
        for savepoint in &mut open.savepoints {
            savepoint.on_shards = Some(txn.savepoint().await?);
        }
        slot.txn = Some(txn);
        slot.touch(self.database.env.elapsed());
        slot.limit = self.settings.meaning().idle_timeout;
        drop(slot);
        if self.idle_limit().is_some() {
            self.watch_idle();
        }
        Ok(())
    }

    /// Starts the one who ends transactions that wait too long, once for each session.
    pub(super) fn watch_idle(&mut self) {
        if std::mem::replace(&mut self.watched, true) {
            return;
        }
        let (slot, env) = (Arc::downgrade(&self.slot), self.database.env.clone());
        let task = async move {
            loop {
                let Some(slot) = slot.upgrade() else { return };
                let (ended, pause) = {
                    let mut slot = slot.lock().await;
                    let now = env.elapsed();
                    match (slot.is_open(), slot.limit) {
                        (true, Some(limit)) if now >= slot.used + limit => {
                            slot.timed_out = true;
                            (Some(slot.take()), limit)
                        }
                        (true, Some(limit)) => (None, slot.used + limit - now),
                        (_, limit) => (None, limit.unwrap_or(WATCH_INTERVAL)),
                    }
                };
                drop(slot);
                if let Some((Some(txn), _locks)) = ended {
                    txn.rollback().await;
                }
                env.sleep(pause.min(WATCH_INTERVAL)).await;
            }
        };
        self.database.env.spawn(Box::pin(task));
    }

    /// Ends the open transaction and keeps what it did.
    pub(super) async fn commit(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let ((txn, _locks), timed_out) = {
            let mut slot = self.slot.lock().await;
            (slot.take(), std::mem::take(&mut slot.timed_out))
        };
        self.cursors.retain(|_, cursor| cursor.hold);
        self.cursors.values_mut().for_each(|cursor| (cursor.fresh, cursor.depth) = (false, 0));
        debug_assert!(!open.failed, "a failed transaction is rolled back");
        let result = match (txn, timed_out) {
            (_, true) => Err(idle_too_long()),
            (Some(txn), _) => txn.commit(&self.bounds()).await,
            (None, _) => Ok(()),
        };
        match result {
            Ok(()) => self.settings.commit(),
            Err(_) => self.settings.rollback(),
        }
        self.leave_other_seat();
        result
    }

    /// Ends the open transaction and takes back what it did.
    pub(super) async fn roll_back(&mut self) {
        self.open = None;
        let (txn, _locks) = {
            let mut slot = self.slot.lock().await;
            slot.timed_out = false;
            slot.take()
        };
        if let Some(txn) = txn {
            txn.rollback().await;
        }
        self.cursors.retain(|_, cursor| !cursor.fresh);
        self.settings.rollback();
        self.leave_other_seat();
    }

    /// COMMIT: of a failed transaction it is a rollback. Returns the tag.
    pub(super) async fn commit_block(&mut self, chain: bool) -> Result<String> {
        let Some(open) = &self.open else {
            self.warn("25P01", "there is no transaction in progress");
            return Ok("COMMIT".into());
        };
        let (failed, modes, explicit) = (open.failed, open.modes, open.kind == Kind::Explicit);
        if chain && !explicit {
            return Err(SqlError::new("25P01", "COMMIT AND CHAIN can only be used in transaction blocks"));
        }
        if !explicit {
            self.warn("25P01", "there is no transaction in progress");
        }
        let tag = if failed {
            self.roll_back().await;
            "ROLLBACK"
        } else {
            self.commit().await?;
            "COMMIT"
        };
        if chain {
            self.open_transaction(modes, Kind::Explicit);
        }
        Ok(tag.into())
    }

    pub(super) async fn rollback_block(&mut self, chain: bool) -> Result<String> {
        let Some(open) = &self.open else {
            self.warn("25P01", "there is no transaction in progress");
            return Ok("ROLLBACK".into());
        };
        let (modes, explicit) = (open.modes, open.kind == Kind::Explicit);
        if !explicit {
            self.warn("25P01", "there is no transaction in progress");
        }
        self.roll_back().await;
        if chain {
            self.open_transaction(modes, Kind::Explicit);
        }
        Ok("ROLLBACK".into())
    }

    fn check_block(&self, what: &str) -> Result<()> {
        match self.in_block() {
            true => Ok(()),
            false => Err(SqlError::new("25P01", format!("{what} can only be used in transaction blocks"))),
        }
    }

    pub(super) async fn savepoint(&mut self, name: &str) -> Result<()> {
        self.check_block("SAVEPOINT")?;
        let on_shards = match &mut self.slot.lock().await.txn {
            Some(txn) => Some(txn.savepoint().await?),
            None => None,
        };
        let Some(open) = &mut self.open else { return Ok(()) };
        if open.savepoints.len() >= MAX_SAVEPOINTS {
            return Err(SqlError::new("54000", format!("a transaction has at most {MAX_SAVEPOINTS} savepoints")));
        }
        open.savepoints.push(Savepoint {
            name: name.into(),
            on_shards,
            settings: self.settings.mark(),
            locks: self.locks.mark(),
        });
        Ok(())
    }

    fn savepoint_at(&self, name: &str) -> Result<usize> {
        let found = self.open.as_ref().and_then(|open| open.savepoints.iter().rposition(|point| point.name == name));
        found.ok_or_else(|| SqlError::new("3B001", format!("savepoint \"{name}\" does not exist")))
    }

    pub(super) async fn release(&mut self, name: &str) -> Result<()> {
        self.check_block("RELEASE SAVEPOINT")?;
        let at = self.savepoint_at(name)?;
        let Some(open) = &mut self.open else { return Ok(()) };
        if let (Some(txn), Some(point)) = (&mut self.slot.lock().await.txn, &open.savepoints[at].on_shards) {
            txn.release(point).await?;
        }
        open.savepoints.truncate(at);
        let depth = at;
        self.cursors.values_mut().for_each(|cursor| cursor.depth = cursor.depth.min(depth));
        Ok(())
    }

    pub(super) async fn rollback_to(&mut self, name: &str) -> Result<()> {
        self.check_block("ROLLBACK TO SAVEPOINT")?;
        let at = self.savepoint_at(name)?;
        let Some(open) = &mut self.open else { return Ok(()) };
        if let (Some(txn), Some(point)) = (&mut self.slot.lock().await.txn, &open.savepoints[at].on_shards) {
            txn.rollback_to(point).await?;
        }
        open.savepoints.truncate(at + 1);
        open.failed = false;
        let mark = open.savepoints[at].settings.clone();
        self.locks.rewind(open.savepoints[at].locks);
        self.settings.rewind(&mark);
        self.cursors.retain(|_, cursor| !cursor.fresh || cursor.depth <= at);
        Ok(())
    }

    /// Savepoints that are open.
    pub(super) fn depth(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.savepoints.len())
    }
}
