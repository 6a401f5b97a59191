//! One migration, driven from where it is to its end.
//!
//! ```text
//! copying ─ copy, follow, swap ─► cleaning ─ what was replaced goes ─► done
//!    │ fails, or is cancelled
//!    └──────────────────────────► undoing ── the copy goes ─────────► failed, cancelled
//! ```
//!
//! The record says which of the three it is; what has been done within is found by doing it again. A driver that has been
//! replaced cannot change the record, nor bring rows: shards take them from the last one only. One that cannot reach a
//! shard waits and tries again, for ever.

use super::store::{self, Failure, State};
use super::swap::{self, alone, begin};
use super::work::{Halt, Work};
use super::{Phase, Stop};
use crate::database::Database;
use crate::database::schema::Change;
use isles_kernel::error::SqlError;
use isles_kernel::schema::Schema;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// A driver that cannot go on looks again after so long; twice as long each time, up to a limit.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Rows that are deleted at once: some tens of milliseconds of a shard's writer.
const EMPTY_ROWS: usize = 2_000;
/// Between two of these, so that most of the time is others'.
const EMPTY_REST: Duration = Duration::from_millis(5);

/// Drives a migration until it is over, or until the database is closed.
pub(super) async fn run(database: Weak<Database>, number: u64, news: Arc<Notify>) {
    let mut wait = FIRST_WAIT;
    loop {
        let Some(open) = database.upgrade() else { return };
        let env = open.env.clone();
        if open.is_closing() {
            return;
        }
        match drive(&open, number).await {
            Ok(()) | Err(Halt::Closing) => return,
            Err(Halt::Changed) => wait = FIRST_WAIT,
            Err(Halt::Later(error) | Halt::Never(error)) => {
                tracing::warn!(migration = number, %error, "a migration waits");
                open.migrations.note(number, |progress| progress.waits = Some(error.to_string()));
                wait = (wait * 2).min(MAX_WAIT);
            }
        }
        drop(open);
        let _ = futures::future::select(Box::pin(news.notified()), env.sleep(wait)).await;
    }
}

/// Goes as far as it can.
async fn drive(database: &Arc<Database>, number: u64) -> Result<(), Halt> {
    loop {
        let Some(stored) = store::load(database.catalog().as_ref(), number).await? else { return Ok(()) };
        if stored.migration.state.is_over() {
            return store::forget_oldest(database.catalog().as_ref()).await.map_err(Halt::Later);
        }
        let mut work = Work::take(database.clone(), stored).await?;
        let done = match work.migration().state {
            State::Copying => copy(&mut work).await,
            _ => remove(&mut work).await,
        };
        match done {
            Ok(()) | Err(Halt::Changed) => {}
            Err(Halt::Never(error)) if work.migration().state == State::Copying => give_up(&mut work, &error).await?,
            Err(halt) => return Err(halt),
        }
    }
}

async fn copy(work: &mut Work) -> Result<(), Halt> {
    work.note(Phase::Copying);
    work.may_stop(Stop::BeforeCopy)?;
    let pair = work.pair()?;
    let mut tails = work.tails(&pair).await?;
    work.copy_all(&pair, &mut tails).await?;
    swap::swap(work, &pair, &mut tails).await
}

/// From here on the copy is removed. The table has not been touched.
async fn give_up(work: &mut Work, error: &SqlError) -> Result<(), Halt> {
    tracing::warn!(table = %work.migration().table, %error, "a migration has failed");
    let failure = Failure::of(error);
    let given_up = work.save(|migration| (migration.state, migration.failure) = (State::Undoing, Some(failure))).await;
    match given_up {
        // Somebody has cancelled it at the same time.
        Err(Halt::Changed) => Ok(()),
        other => other,
    }
}

/// Removes the table that has lost, and all that the migration has needed.
async fn remove(work: &mut Work) -> Result<(), Halt> {
    let cleans = work.migration().state == State::Cleaning;
    work.note(if cleans { Phase::Cleaning } else { Phase::Undoing });
    work.may_stop(if cleans { Stop::AfterSwap } else { Stop::InUndo })?;
    for shard in work.database.shard_names() {
        let open = work.shard(&shard).await?;
        open.remove_consumer(&work.stream).await?;
        let loser = work.migration().loser().to_string();
        while open.empty_copy(&loser, EMPTY_ROWS).await? > 0 {
            work.check_open()?;
            work.tick().await?;
            work.database.env.sleep(EMPTY_REST).await;
        }
    }
    for shard in work.database.shard_names() {
        work.shard(&shard).await?.forget_stream(&work.stream, Some(work.driver)).await?;
    }
    work.may_stop(Stop::BeforeDrop)?;
    drop_loser(work).await
}

async fn drop_loser(work: &mut Work) -> Result<(), Halt> {
    let mut migration = work.migration().clone();
    let changes = Schema::without_copy(migration.number, migration.loser());
    migration.state = match (migration.state, migration.cancelled) {
        (State::Cleaning, _) => State::Done,
        (_, true) => State::Cancelled,
        (_, false) => State::Failed,
    };
    migration.updated_at = work.database.env.now_micros() / 1_000;
    let Some((guard, bounds)) = alone(work).await? else {
        return Err(Halt::Later(SqlError::new("55P03", "transactions that are running do not end")));
    };
    let with = store::replacing(&work.stored, &migration)?;
    let mut txn = begin(work, guard)?;
    let change = Change { changes, restarts: Vec::new(), with };
    if let Err(error) = txn.change_schema(&change, &bounds).await {
        txn.rollback().await;
        return Err(Halt::Later(error));
    }
    txn.commit(&bounds).await?;
    Ok(())
}
