//! Interactive transactions.
//!
//! A writing transaction holds the shard's writer, a reading one a reader with its snapshot. Each statement is a job
//! on the pool that takes the connection along; if the caller goes away meanwhile, the job's end drops it, which
//! rolls back. So a connection is never left in the middle of something.
//!
//! As in PostgreSQL, an error ends the transaction, except that it can go back to a savepoint. A statement that was
//! interrupted ends it for good: SQLite has rolled back all of it.

use super::lines::Whose;
use super::pledge::{self, SqlitePledge};
use super::queue::{self, WriterGuard};
use super::raw::{Db, WalHead};
use super::reader::{self, ReaderGuard};
use super::writer::{CommitError, State};
use super::{Shared, capture, ddl, schema};
use crate::env::Env;
use crate::error::{Result, ShardError};
use crate::fence::{Access, Claim, FenceTable};
use crate::shard::{
    ActsFor, Begin, CursorId, CursorPage, Limits, Outcome, Pledge, SchemaStep, StateNumber, Statement, Transaction,
};
use async_trait::async_trait;
use isles_kernel::names::PledgeId;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Savepoints open at once.
const MAX_SAVEPOINTS: usize = 1_000;
/// How often a snapshot is taken anew to learn which it is: commits that come as fast as that are rare.
const SNAPSHOT_TRIES: usize = 8;

/// A savepoint of a writer: what had been captured, and what the shard was.
type Place = (capture::Mark, State);

/// The connection of a transaction.
enum Held {
    Writer(WriterGuard),
    Reader(Box<ReaderGuard>),
}

impl Held {
    fn db(&mut self) -> &mut Db {
        match self {
            Held::Writer(guard) => &mut guard.writer().db,
            Held::Reader(guard) => guard.db(),
        }
    }

    fn shared(&self) -> &Arc<Shared> {
        match self {
            Held::Writer(guard) => guard.shared(),
            Held::Reader(guard) => guard.shared(),
        }
    }

    fn check_fences(&mut self, claim: &Claim, access: Access) -> Result<()> {
        match self {
            Held::Writer(guard) => guard.writer().state.fences.check(claim, access),
            Held::Reader(guard) => reader::check_fences(guard.shared(), claim),
        }
    }

    fn check_binding(&mut self, acts_for: &ActsFor, claim: &Claim) -> Result<()> {
        match self {
            Held::Writer(guard) => guard.writer().state.binding.check(acts_for, &claim.units),
            Held::Reader(guard) => guard.shared().published.load().binding.check(acts_for, &claim.units),
        }
    }

    fn place(&mut self) -> Option<Place> {
        match self {
            Held::Writer(guard) => Some((guard.writer().capture().mark(), guard.writer().state.clone())),
            Held::Reader(_) => None,
        }
    }

    fn rewind(&mut self, place: Option<Place>) {
        if let (Held::Writer(guard), Some((mark, state))) = (self, place) {
            guard.writer().rewind(mark, state);
        }
    }
}

/// Where a transaction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Active,
    /// A statement failed; a savepoint or the end is the way out.
    Failed,
}

struct SqliteTransaction {
    /// Away while a job has it; if the job is abandoned, gone for good.
    held: Option<Held>,
    standing: Standing,
    savepoints: Vec<(String, Option<Place>)>,
    access: Access,
    /// The fences from before a reader's snapshot: a unit that has come since is open now, and its rows are not in it;
    /// strangers that have gone since are.
    first_fences: Option<Arc<FenceTable>>,
    /// What it was let in for. A reader asks again after each statement: its fences may have been closed since.
    claims: Arc<[Claim]>,
    acts_for: ActsFor,
    limits: Limits,
    env: Arc<dyn Env>,
    /// Of a reader: the shard's state when its snapshot was begun, or before.
    state: Option<StateNumber>,
    /// Of a reader: the WAL as its snapshot has it; None if that could not be told.
    head: Option<WalHead>,
}

pub(super) async fn begin(shared: &Arc<Shared>, begin: Begin) -> Result<Box<dyn Transaction>> {
    shared.check_running()?;
    let deadline = shared.env.elapsed() + begin.limits.time;
    let first_fences = (begin.access == Access::Read).then(|| shared.published.load().fences.clone());
    first_fences.iter().try_for_each(|first| first.check_strangers(&begin.claim))?;
    let mut held = match begin.access {
        Access::Write => Held::Writer(queue::hold(shared, Whose::of(&begin.acts_for), deadline).await?),
        Access::Read => Held::Reader(Box::new(reader::checkout(shared, deadline).await?)),
    };
    held.check_binding(&begin.acts_for, &begin.claim)?;
    // A writer's is read while it is held: nobody else commits. A reader's is read before its snapshot.
    let state = StateNumber(shared.state_number.load(Ordering::SeqCst));
    let has_changed = |since: StateNumber| shared.changes.any_between(since.0, state.0, &begin.claim.units);
    if begin.access == Access::Write && begin.since.is_some_and(has_changed) {
        return Err(ShardError::Conflict("could not serialize access: the shard has changed since it was read".into()));
    }
    let mut transaction = SqliteTransaction {
        held: Some(held),
        standing: Standing::Active,
        savepoints: Vec::new(),
        access: begin.access,
        first_fences,
        claims: Arc::from([begin.claim]),
        acts_for: begin.acts_for,
        limits: begin.limits,
        env: shared.env.clone(),
        state: (begin.access == Access::Read).then_some(state),
        head: None,
    };
    transaction.head = transaction.job(|held, _| start(held)).await?;
    transaction.has_looked();
    Ok(Box::new(transaction))
}

fn start(held: &mut Held) -> Result<Option<WalHead>> {
    match held {
        Held::Writer(guard) => {
            guard.writer().begin()?;
            guard.writer().capture_redo();
            Ok(None)
        }
        Held::Reader(guard) => take_snapshot(guard.db()),
    }
}

/// Takes a snapshot, and finds out which it is: the one between two equal looks at the WAL's head. A new connection
/// knows the head only after its first read, and commits may come in between.
fn take_snapshot(db: &mut Db) -> Result<Option<WalHead>> {
    let mut before = db.wal_head();
    for last in (0..SNAPSHOT_TRIES).rev() {
        db.own("BEGIN", &[], &[])?;
        // The snapshot is taken by the first read, and the fences are checked after it.
        db.own("SELECT 1 FROM _isles_meta LIMIT 1", &[], &[])?;
        let after = db.wal_head();
        if before == after || last == 0 {
            return Ok(after.filter(|_| before == after));
        }
        db.end_read()?;
        before = after;
    }
    Ok(None)
}

impl SqliteTransaction {
    /// Runs `work` on the pool with the connection.
    async fn job<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Held, &Limits) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = self.held.as_ref().ok_or_else(over)?.shared().clone();
        let (limits, access, claims) = (self.limits.clone(), self.access, self.claims.clone());
        let deadline = self.env.elapsed() + limits.time;
        // Whoever has the writer goes on: others wait for it.
        let turn = match access {
            Access::Read => reader::turn(&shared, &self.acts_for, deadline).await?,
            Access::Write => None,
        };
        let mut held = self.held.take().ok_or_else(over)?;
        let run = move || {
            let _turn = turn;
            held.db().set_watch(deadline, Some(limits.cancel.clone()));
            let result = work(&mut held, &limits);
            let checked = claims.iter().try_for_each(|claim| held.check_fences(claim, access));
            (held, result.and_then(|value| checked.map(|()| value)))
        };
        let (held, result) = shared.on_pool(run).await?;
        self.held = Some(held);
        if result.is_err() {
            self.standing = Standing::Failed;
        }
        result.map_err(|error| self.classify(error))
    }

    /// What its claims were chosen by has been compared at the moment of its snapshot, or with the writer held. Later it
    /// may change, by the transaction's own commit at the latest, and that must not be said to have failed.
    fn has_looked(&mut self) {
        if self.claims.iter().any(|claim| claim.still.is_some()) {
            let compared = |claim: &Claim| Claim { still: None, ..claim.clone() };
            self.claims = self.claims.iter().map(compared).collect();
        }
    }

    fn classify(&mut self, error: ShardError) -> ShardError {
        match (&error, self.access) {
            (ShardError::Stopped(why), Access::Write) => {
                if let Some(held) = &self.held {
                    held.shared().stop(ShardError::Stopped(why.clone()));
                }
                error
            }
            (_, Access::Read) => reader::read_error(error),
            _ => error,
        }
    }

    fn check_active(&self) -> Result<()> {
        match self.standing {
            Standing::Active => Ok(()),
            Standing::Failed => Err(aborted()),
        }
    }

    fn savepoint_at(&self, name: &str) -> Result<usize> {
        let missing = || ShardError::statement("3B001", format!("savepoint \"{name}\" does not exist"));
        self.savepoints.iter().rposition(|(known, _)| known == name).ok_or_else(missing)
    }
}

fn over() -> ShardError {
    ShardError::statement("25P01", "there is no transaction in progress")
}

fn aborted() -> ShardError {
    ShardError::statement("25P02", "current transaction is aborted, commands ignored until end of transaction block")
}

/// A savepoint's name in SQLite: ours are kept apart from the engine's own.
fn savepoint_name(name: &str) -> String {
    ddl::quoted(&format!("s_{name}"))
}

#[async_trait]
impl Transaction for SqliteTransaction {
    async fn claim(&mut self, claim: Claim) -> Result<()> {
        self.check_active()?;
        if let Some(first) = &self.first_fences
            && let Err(error) = first.check(&claim, self.access)
        {
            self.standing = Standing::Failed;
            return Err(error);
        }
        self.claims = self.claims.iter().cloned().chain([claim.clone()]).collect();
        let acts_for = self.acts_for.clone();
        self.job(move |held, _| held.check_binding(&acts_for, &claim)).await?;
        self.has_looked();
        Ok(())
    }

    async fn execute(&mut self, statement: &Statement) -> Result<Outcome> {
        self.check_active()?;
        let (statement, acts_for) = (statement.clone(), self.acts_for.clone());
        self.job(move |held, limits| held.db().run(&statement, limits, &acts_for)).await
    }

    async fn execute_all(&mut self, statements: Vec<Statement>) -> Result<Vec<Outcome>> {
        self.check_active()?;
        let acts_for = self.acts_for.clone();
        let run = move |held: &mut Held, limits: &Limits| {
            statements.iter().map(|statement| held.db().run(statement, limits, &acts_for)).collect()
        };
        self.job(run).await
    }

    async fn open(&mut self, statement: &Statement) -> Result<CursorId> {
        self.check_active()?;
        let (statement, acts_for) = (statement.clone(), self.acts_for.clone());
        self.job(move |held, _| held.db().open_cursor(&statement, &acts_for)).await
    }

    async fn fetch(&mut self, cursor: CursorId, rows: usize) -> Result<CursorPage> {
        self.check_active()?;
        let acts_for = self.acts_for.clone();
        self.job(move |held, limits| held.db().fetch(cursor, rows, limits, &acts_for)).await
    }

    async fn close(&mut self, cursor: CursorId) -> Result<()> {
        self.check_active()?;
        self.job(move |held, _| held.db().close_cursor(cursor)).await
    }

    async fn change_schema(&mut self, step: SchemaStep) -> Result<()> {
        self.check_active()?;
        self.job(move |held, _| match held {
            Held::Reader(_) => Err(ShardError::statement("25006", "a transaction that only reads changes no schema")),
            Held::Writer(guard) => schema::step(guard.writer(), &step),
        })
        .await
    }

    async fn savepoint(&mut self, name: &str) -> Result<()> {
        self.check_active()?;
        if self.savepoints.len() >= MAX_SAVEPOINTS {
            return Err(ShardError::Limit { what: "the number of savepoints", limit: MAX_SAVEPOINTS as u64 });
        }
        let sql = format!("SAVEPOINT {}", savepoint_name(name));
        let place = self.job(move |held, _| held.db().own_text(&sql, &[], &[]).map(|_| held.place())).await?;
        self.savepoints.push((name.to_string(), place));
        Ok(())
    }

    async fn rollback_to(&mut self, name: &str) -> Result<()> {
        let at = self.savepoint_at(name)?;
        let place = self.savepoints[at].1.clone();
        let sql = format!("ROLLBACK TO {}", savepoint_name(name));
        let back = move |held: &mut Held, _: &Limits| {
            if held.db().is_autocommit() {
                let why = "the transaction was rolled back as a whole when its statement was interrupted";
                return Err(ShardError::Conflict(why.into()));
            }
            // A cursor opened since would hold the savepoint open.
            held.db().close_cursors();
            held.db().own_text(&sql, &[], &[])?;
            held.rewind(place);
            Ok(())
        };
        self.job(back).await?;
        self.savepoints.truncate(at + 1);
        self.standing = Standing::Active;
        Ok(())
    }

    async fn release(&mut self, name: &str) -> Result<()> {
        self.check_active()?;
        let at = self.savepoint_at(name)?;
        let sql = format!("RELEASE {}", savepoint_name(name));
        self.job(move |held, _| held.db().own_text(&sql, &[], &[]).map(drop)).await?;
        self.savepoints.truncate(at);
        Ok(())
    }

    async fn commit(mut self: Box<Self>) -> Result<()> {
        self.check_active()?;
        let done = self.job(|held, _| match held {
            Held::Reader(_) => Ok(()),
            Held::Writer(guard) => commit_writer(guard),
        });
        match (done.await, self.held.is_some(), self.access) {
            // The job ended without an answer: nobody knows how far it came.
            (Err(ShardError::Unavailable(why)), false, Access::Write) => Err(ShardError::MayHaveHappened(why)),
            (result, _, _) => result,
        }
    }

    async fn rollback(mut self: Box<Self>) -> Result<()> {
        let Some(held) = self.held.take() else { return Ok(()) };
        let shared = held.shared().clone();
        shared.on_pool(move || drop(held)).await
    }

    fn bound(&mut self, limits: Limits) {
        self.limits = limits;
    }

    fn state(&self) -> Option<StateNumber> {
        self.state
    }

    fn is_current(&mut self) -> Option<bool> {
        match &mut self.held {
            Some(Held::Reader(guard)) => Some(self.head.is_some() && guard.db().wal_head() == self.head),
            // Nobody else commits while it has the writer.
            Some(Held::Writer(_)) => Some(true),
            None => Some(false),
        }
    }

    async fn has_written(&mut self) -> Result<bool> {
        self.check_active()?;
        self.job(|held, _| match held {
            Held::Reader(_) => Ok(false),
            Held::Writer(guard) => Ok(!guard.writer().capture().is_empty()),
        })
        .await
    }

    async fn pledge(mut self: Box<Self>, id: &PledgeId, forget: Vec<PledgeId>) -> Result<Box<dyn Pledge>> {
        self.check_active()?;
        let id = id.clone();
        let redo = self.job(move |held, _| match held {
            Held::Reader(_) => Err(ShardError::invalid("a transaction that only reads has nothing to pledge")),
            Held::Writer(guard) => pledge::make(guard.writer(), &id, &forget),
        });
        let redo = redo.await?;
        match self.held.take() {
            Some(Held::Writer(guard)) => Ok(Box::new(SqlitePledge::new(guard, redo))),
            _ => Err(over()),
        }
    }
}

pub(super) fn commit_writer(guard: &mut WriterGuard) -> Result<()> {
    let shared = guard.shared().clone();
    let writer = guard.writer();
    writer.db.close_cursors();
    writer.check_member()?;
    let result = writer.commit();
    match result {
        Ok(()) => {
            queue::publish(&shared, writer);
            shared.commits.fetch_add(1, Ordering::Relaxed);
            shared.transactions.fetch_add(1, Ordering::Relaxed);
            queue::settle(&shared, writer);
            Ok(())
        }
        Err(CommitError { error, fatal }) => {
            if fatal {
                shared.stop(ShardError::Stopped(error.to_string()));
                queue::settle(&shared, writer);
            }
            Err(error)
        }
    }
}
