//! The WAL is copied into the database file, beside the writer.
//!
//! ```text
//! the WAL has grown ─► a job copies what is in it, and syncs the file
//!                        ├─ nothing was written meanwhile: the next write begins the WAL anew
//!                        └─ it goes on growing ─► when it is long, right after a job: the writer copies the rest
//! ```
//!
//! Copying takes as long as the disk does, tens of milliseconds when it is busy; whoever writes does not wait for it.
//! SQLite begins a WAL anew only when all of it has been copied and synced, which never is while others write: so the
//! writer ends it now and then, when a job has left it little to do. A job syncs what it has copied although SQLite
//! would leave that to the end: the writer would wait for it there.
//!
//! A shard has one job at a time, and none when the writer copies. Of all shards that share a [`Line`] one job runs at a
//! time: what several of them give the disk at once is in front of everybody's next commit. A sync that failed may not be
//! tried again, for the kernel forgets what it could not write: the shard stops, and the WAL stays as it is (I-5).

use super::Shared;
use super::queue::{self, StopOnPanic};
use super::raw::{Db, Role};
use super::writer::Writer;
use crate::error::Result;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A WAL of so many times the size at which it is copied is long.
const LONG_TIMES: u32 = 4;

/// How far the copying of a shard's WAL is.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// A job copies.
    running: bool,
    /// A job has ended, and the writer has not looked since.
    ended: bool,
    /// Pages in the WAL when it was last copied.
    copied: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Job,
    Rest,
}

impl Progress {
    pub(super) fn is_running(&self) -> bool {
        self.running
    }

    /// What is due when there are so many pages in the WAL, and after how many more of them it is copied.
    fn due(&mut self, pages: u32, after: u32, long: u32) -> Due {
        if self.running {
            return Due::Nothing;
        }
        if pages < self.copied {
            // It has begun anew.
            self.copied = 0;
        }
        let due = if std::mem::take(&mut self.ended) && pages >= long {
            Due::Rest
        } else if pages - self.copied >= after {
            Due::Job
        } else {
            return Due::Nothing;
        };
        self.copied = pages;
        self.running = due == Due::Job;
        due
    }

    fn end(&mut self) {
        (self.running, self.ended) = (false, true);
    }
}

/// Looks, after a commit, whether the WAL has grown to `times` its size at which it is copied.
pub(super) fn look(shared: &Arc<Shared>, writer: &mut Writer, times: u32) {
    let (pages, each) = (writer.db.wal_pages().unsigned_abs(), shared.options.checkpoint_pages);
    let due = shared.queue().checkpoint.due(pages, each.saturating_mul(times), each.saturating_mul(LONG_TIMES));
    if due == Due::Nothing {
        return;
    }
    // A snapshot that an idle reader has kept would hold the WAL back.
    shared.readers.end_snapshots();
    if due == Due::Job {
        let job = shared.clone();
        shared.env.blocking(Box::new(move || run(&job)));
    } else if let Err(error) = writer.db.checkpoint() {
        shared.stop(error);
    }
}

/// Jobs of several shards, which run one after the other. Cloning shares it.
#[derive(Clone, Default)]
pub struct Line(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    /// Somebody runs them.
    running: bool,
    shards: VecDeque<Arc<Shared>>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("waiting", &self.waiting().shards.len()).finish()
    }
}

impl Line {
    /// A panic while the lock was held leaves plain data behind; going on is right.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether whoever joins it is the one to run what waits.
    fn join(&self, shard: &Arc<Shared>) -> bool {
        let mut waiting = self.waiting();
        waiting.shards.push_back(shard.clone());
        !std::mem::replace(&mut waiting.running, true)
    }

    /// The next one, or the end of the running.
    fn next(&self) -> Option<Arc<Shared>> {
        let mut waiting = self.waiting();
        let next = waiting.shards.pop_front();
        waiting.running = next.is_some();
        next
    }
}

/// A job that panics has ended, or whoever closes the shard would wait for it; those in the line are left to the next one.
struct EndOnPanic<'a>(&'a Shared);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.queue().checkpoint.end();
            self.0.options.checkpoints.waiting().running = false;
        }
    }
}

/// The job.
fn run(shared: &Arc<Shared>) {
    let line = &shared.options.checkpoints;
    if line.join(shared) {
        while let Some(shard) = line.next() {
            run_one(&shard);
        }
    }
}

fn run_one(shared: &Shared) {
    // The shard stops before the job counts as ended: guards go in the opposite order.
    let _ends = EndOnPanic(shared);
    let _stops = StopOnPanic(shared);
    if let Err(error) = copy(shared) {
        shared.stop(error);
    }
    // Those that were kept meanwhile would keep the next write from beginning the WAL anew.
    shared.readers.end_snapshots();
    shared.queue().checkpoint.end();
    queue::refuse_if_stopped(shared);
    queue::close_if_waiting(shared);
}

/// Copies on a connection of the readers. Returns the error if the shard must stop.
fn copy(shared: &Shared) -> Result<()> {
    let Some(mut db) = reader(shared) else { return Ok(()) };
    db.checkpoint()?;
    db.sync_file()?;
    shared.readers.push(db);
    Ok(())
}

/// None if there can be no connection now; then the writer copies when the WAL is long.
fn reader(shared: &Shared) -> Option<Db> {
    let opened = match shared.readers.pop() {
        Some(mut db) => db.end_snapshot().map(|()| db),
        None => Db::open(&shared.path, Role::Reader, shared.env.clone(), &shared.options),
    };
    opened.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(progress: &mut Progress, pages: u32) -> Due {
        progress.due(pages, 100, 400)
    }

    #[test]
    fn a_wal_is_copied_after_so_many_pages_by_one_job_at_a_time() {
        let mut progress = Progress::default();
        assert_eq!(due(&mut progress, 99), Due::Nothing);
        assert_eq!(due(&mut progress, 120), Due::Job);
        assert_eq!(due(&mut progress, 1_000), Due::Nothing, "the job is running");
        progress.end();
        assert_eq!(due(&mut progress, 219), Due::Nothing, "99 since");
        assert_eq!(due(&mut progress, 220), Due::Job);
    }

    #[test]
    fn the_writer_copies_the_rest_of_a_long_wal_right_after_a_job() {
        let mut progress = Progress::default();
        assert_eq!(due(&mut progress, 390), Due::Job);
        assert_eq!(due(&mut progress, 410), Due::Nothing);
        progress.end();
        assert_eq!(due(&mut progress, 420), Due::Rest);
        assert_eq!(due(&mut progress, 430), Due::Nothing, "a reader has kept the WAL: not tried again at once");
        assert_eq!(due(&mut progress, 520), Due::Job);
    }

    #[test]
    fn a_wal_that_has_begun_anew_is_counted_anew() {
        let mut progress = Progress::default();
        assert_eq!(due(&mut progress, 120), Due::Job);
        progress.end();
        assert_eq!(due(&mut progress, 3), Due::Nothing);
        assert_eq!(due(&mut progress, 102), Due::Job);
    }
}
