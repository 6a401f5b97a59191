//! The pool of readers.
//!
//! Most reads are a few microseconds long, far less than handing them to another thread costs. So a read begins on
//! the caller's thread, with a budget; if it is used up, the read starts over on the pool, and so do the next ones of its
//! kind. Nothing was answered, and a read changes nothing, so nobody can tell.
//!
//! Taking a snapshot costs system calls; so a reader keeps its own until the shard has changed. The shard's state number
//! rises before a commit is answered: a reader whose snapshot was begun at the present number shows all that anyone has
//! been told of. Idle readers let go before a checkpoint.
//!
//! A reader checks the fences after its snapshot has been taken. If they still allow the read then, the shard was the
//! owner at the moment of the snapshot; checked before, the unit could move away in between and its rows be removed.
//! Whether there may be strangers is asked before it as well, or they could be there at the snapshot and gone at the check.

use super::lengthy::Mark;
use super::raw::{Db, Role};
use super::turns::{Asked, Turn};
use super::{Shared, SqliteOptions};
use crate::error::{Result, ShardError};
use crate::fence::{Access, Claim};
use crate::shard::{ActsFor, Outcome, Request};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Looks of the progress handler that a read may take on the caller's thread: about a tenth of a millisecond.
const INLINE_LOOKS: u32 = 10;
/// Statements of such a read: each has a price that the looks do not see.
const INLINE_STATEMENTS: usize = 16;

pub(super) struct Readers {
    idle: Mutex<Idle>,
    permits: Arc<Semaphore>,
    keep: usize,
}

struct Idle {
    readers: Vec<Db>,
    closed: bool,
}

impl Readers {
    pub(super) fn new(options: &SqliteOptions) -> Readers {
        Readers {
            idle: Mutex::new(Idle { readers: Vec::new(), closed: false }),
            permits: Arc::new(Semaphore::new(options.max_readers)),
            keep: options.idle_readers,
        }
    }

    pub(super) fn pop(&self) -> Option<Db> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).readers.pop()
    }

    pub(super) fn push(&self, db: Db) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.closed || idle.readers.len() >= self.keep {
            // Closing a connection may touch the disk: not under the lock.
            drop(idle);
            drop(db);
        } else {
            idle.readers.push(db);
        }
    }

    /// Ends the snapshots that idle readers have kept.
    pub(super) fn end_snapshots(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.readers.retain_mut(|db| db.end_snapshot().is_ok());
    }

    pub(super) fn close(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.closed = true;
        let readers = std::mem::take(&mut idle.readers);
        drop(idle);
        drop(readers);
    }
}

/// A reader in use. Dropping it ends its transaction and gives it back.
pub(super) struct ReaderGuard {
    db: Option<Db>,
    shared: Arc<Shared>,
    _permit: OwnedSemaphorePermit,
}

impl ReaderGuard {
    pub(super) fn db(&mut self) -> &mut Db {
        self.db.as_mut().expect("taken out only when the guard is dropped")
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for ReaderGuard {
    fn drop(&mut self) {
        let Some(mut db) = self.db.take() else { return };
        db.close_cursors();
        db.set_watch(Duration::MAX, None);
        // A reader whose transaction does not end is not given to the next one.
        if db.is_autocommit() || db.own("ROLLBACK", &[], &[]).is_ok() {
            self.shared.readers.push(db);
        }
    }
}

/// Waits until `deadline` for a turn at a long read.
pub(super) async fn turn(shared: &Arc<Shared>, acts_for: &ActsFor, deadline: Duration) -> Result<Option<Turn>> {
    let turn = match shared.turns.ask(acts_for) {
        Asked::NotNeeded => return Ok(None),
        Asked::Given(turn) => return Ok(Some(turn)),
        Asked::Wait(turn) => turn,
    };
    let timer = shared.env.sleep(deadline.saturating_sub(shared.env.elapsed()));
    match futures::future::select(turn, timer).await {
        futures::future::Either::Left((turn, _)) => Ok(turn.ok()),
        futures::future::Either::Right(_) => Err(ShardError::TimedOut),
    }
}

/// Waits for a reader until `deadline`.
pub(super) async fn checkout(shared: &Arc<Shared>, deadline: Duration) -> Result<ReaderGuard> {
    shared.check_running()?;
    let permit = match shared.readers.permits.clone().try_acquire_owned() {
        Ok(permit) => permit,
        Err(_) => wait_for_permit(shared, deadline).await?,
    };
    let db = match shared.readers.pop() {
        Some(mut db) => {
            db.end_snapshot()?;
            db
        }
        None => {
            let opener = shared.clone();
            let open = move || Db::open(&opener.path, Role::Reader, opener.env.clone(), &opener.options);
            shared.on_pool(open).await??
        }
    };
    Ok(ReaderGuard { db: Some(db), shared: shared.clone(), _permit: permit })
}

async fn wait_for_permit(shared: &Arc<Shared>, deadline: Duration) -> Result<OwnedSemaphorePermit> {
    let permit = shared.readers.permits.clone().acquire_owned();
    let timer = shared.env.sleep(deadline.saturating_sub(shared.env.elapsed()));
    match futures::future::select(Box::pin(permit), timer).await {
        futures::future::Either::Left((permit, _)) => {
            permit.map_err(|_| ShardError::Unavailable("the shard is closed".into()))
        }
        futures::future::Either::Right(_) => Err(ShardError::TimedOut),
    }
}

/// A disk that cannot be read stops this read. The writer stops the shard when it must.
pub(super) fn read_error(error: ShardError) -> ShardError {
    match error {
        ShardError::Stopped(why) => ShardError::Unavailable(why),
        other => other,
    }
}

/// Runs `work` with a reader, on the pool.
pub(super) async fn with_reader<T: Send + 'static>(
    shared: &Arc<Shared>,
    time: Duration,
    work: impl FnOnce(&mut Db) -> Result<T> + Send + 'static,
) -> Result<T> {
    let deadline = shared.env.elapsed() + time;
    let mut guard = checkout(shared, deadline).await?;
    let job = move || {
        guard.db().set_watch(deadline, None);
        work(guard.db())
    };
    shared.on_pool(job).await?.map_err(read_error)
}

/// Runs a request that only reads.
pub(super) async fn read(shared: &Arc<Shared>, request: Request) -> Result<Vec<Outcome>> {
    shared.check_running()?;
    let published = shared.published.load();
    published.binding.check(&request.acts_for, &request.claim.units)?;
    published.fences.check_strangers(&request.claim)?;
    drop(published);
    let deadline = shared.env.elapsed() + request.limits.time;
    if let Some(answer) = read_inline(shared, &request, deadline) {
        return answer;
    }
    let turn = turn(shared, &request.acts_for, deadline).await?;
    let mut guard = checkout(shared, deadline).await?;
    let job = move || {
        let _turn = turn;
        guard.db().set_watch(deadline, Some(request.limits.cancel.clone()));
        let outcomes = read_all(guard.db(), &request);
        let outcomes = outcomes.and_then(|outcomes| check_fences(guard.shared(), &request.claim).map(|()| outcomes));
        drop(guard);
        outcomes
    };
    shared.on_pool(job).await?.map_err(read_error)
}

pub(super) fn check_fences(shared: &Shared, claim: &Claim) -> Result<()> {
    shared.published.load().fences.check(claim, Access::Read)
}

/// Tries a request on the caller's thread. None: it is too long, or no reader is idle.
fn read_inline(shared: &Arc<Shared>, request: &Request, deadline: Duration) -> Option<Result<Vec<Outcome>>> {
    if request.statements.len() > INLINE_STATEMENTS {
        return None;
    }
    let mark = Mark::of(&request.acts_for, request.statements.first()?);
    if shared.lengthy.skips(mark) {
        return None;
    }
    // Read before the snapshot is begun: the snapshot is of this state or a later one.
    let number = shared.state_number.load(Ordering::SeqCst);
    // No permit: it uses what is idle, and does not wait.
    let mut db = shared.readers.pop()?;
    db.set_watch(deadline, Some(request.limits.cancel.clone()));
    db.set_budget(Some(INLINE_LOOKS));
    let outcomes = db.keep_snapshot(number).and_then(|()| {
        request.statements.iter().map(|statement| db.run(statement, &request.limits, &request.acts_for)).collect()
    });
    let too_long = db.out_of_budget();
    db.set_budget(None);
    // A reader whose snapshot does not end is not given to the next one.
    if outcomes.is_ok() || db.end_snapshot().is_ok() {
        shared.readers.push(db);
    }
    if too_long {
        shared.lengthy.note(mark);
        return None;
    }
    let checked = outcomes.and_then(|outcomes| check_fences(shared, &request.claim).map(|()| outcomes));
    Some(checked.map_err(read_error))
}

fn read_all(db: &mut Db, request: &Request) -> Result<Vec<Outcome>> {
    if let [statement] = request.statements.as_slice() {
        return Ok(vec![db.run(statement, &request.limits, &request.acts_for)?]);
    }
    db.own("BEGIN", &[], &[])?;
    let outcomes: Result<_> =
        request.statements.iter().map(|statement| db.run(statement, &request.limits, &request.acts_for)).collect();
    let ended = db.end_read();
    outcomes.and_then(|outcomes| ended.map(|()| outcomes))
}
