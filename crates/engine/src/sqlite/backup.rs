//! A copy of a live shard.
//!
//! The copy is one moment of the shard: a reader holds its snapshot while the pages are copied, and the writer goes
//! on. It is written under another name, checked page by page, flushed, and only then given its own name: a file with
//! that name is a whole backup, whatever crashed.

use super::reader::{self, ReaderGuard};
use super::vfs::checksum;
use super::{OWN_WRITE_TIME, SqliteShard, format};
use crate::error::{Result, ShardError};
use isles_kernel::names::Seq;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Pages copied between two reports of progress: a megabyte.
const PAGES_PER_STEP: i32 = 256;

/// How far a backup has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupProgress {
    pub pages_copied: u64,
    pub pages_total: u64,
}

/// What a finished backup holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupReport {
    pub path: PathBuf,
    pub pages: u64,
    /// Every change up to this position is in it, and no later one.
    pub seq: Seq,
}

/// Hears of progress; called from the thread that copies.
pub type OnProgress = Arc<dyn Fn(BackupProgress) + Send + Sync>;

impl SqliteShard {
    /// Copies the shard, as it is now, to the new file `to`.
    pub async fn backup(&self, to: &Path, on_progress: OnProgress) -> Result<BackupReport> {
        if to.exists() {
            return Err(ShardError::invalid(format!("{} exists already", to.display())));
        }
        let deadline = self.shared.env.elapsed() + OWN_WRITE_TIME;
        let guard = reader::checkout(&self.shared, deadline).await?;
        let to = to.to_path_buf();
        let vfs = self.shared.options.vfs_name()?;
        self.shared.on_pool(move || copy_checked(guard, &to, &vfs, &on_progress)).await?
    }
}

fn copy_checked(mut guard: ReaderGuard, to: &Path, vfs: &str, on_progress: &OnProgress) -> Result<BackupReport> {
    let partial = to.with_extension("partial");
    let copied = copy(&mut guard, &partial, vfs, on_progress).and_then(|report| {
        check(&partial)?;
        publish(&partial, to)?;
        Ok(BackupReport { path: to.to_path_buf(), ..report })
    });
    if copied.is_err() {
        // What is left is no backup; its name says so, too, if it cannot be removed.
        let _ = std::fs::remove_file(&partial);
    }
    copied
}

fn copy(guard: &mut ReaderGuard, partial: &Path, vfs: &str, on_progress: &OnProgress) -> Result<BackupReport> {
    let db = guard.db();
    db.own("BEGIN", &[], &[])?;
    let seq = format::current_seq(db)?;
    if partial.exists() {
        std::fs::remove_file(partial).map_err(|error| cannot("remove", partial, &error))?;
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut target = Connection::open_with_flags_and_vfs(partial, flags, vfs).map_err(failed)?;
    checksum::set_reserve_bytes(&target).map_err(|code| ShardError::Unavailable(format!("backup: {code}")))?;
    let pages = copy_pages(db.connection(), &mut target, on_progress)?;
    target.close().map_err(|(_, error)| failed(error))?;
    Ok(BackupReport { path: partial.to_path_buf(), pages, seq })
}

fn copy_pages(source: &Connection, target: &mut Connection, on_progress: &OnProgress) -> Result<u64> {
    let backup = Backup::new(source, target).map_err(failed)?;
    loop {
        let step = backup.step(PAGES_PER_STEP).map_err(failed)?;
        let progress = backup.progress();
        let total = progress.pagecount as u64;
        on_progress(BackupProgress { pages_copied: total - progress.remaining as u64, pages_total: total });
        match step {
            StepResult::Done => return Ok(total),
            StepResult::More => {}
            _ => return Err(ShardError::Unavailable("the backup's source or target is locked".into())),
        }
    }
}

fn check(partial: &Path) -> Result<()> {
    let report = checksum::verify_file(partial).map_err(|error| ShardError::Corrupt(error.to_string()))?;
    if !report.bad_pages.is_empty() {
        return Err(ShardError::Corrupt(format!("{} pages of the backup are damaged", report.bad_pages.len())));
    }
    Ok(())
}

/// Gives a finished copy its name, durably.
fn publish(partial: &Path, to: &Path) -> Result<()> {
    File::open(partial).and_then(|file| file.sync_all()).map_err(|error| cannot("flush", partial, &error))?;
    std::fs::rename(partial, to).map_err(|error| cannot("rename", partial, &error))?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| cannot("flush", folder, &error))
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> ShardError {
    ShardError::Unavailable(format!("cannot {what} {}: {error}", path.display()))
}

fn failed(error: rusqlite::Error) -> ShardError {
    match error {
        rusqlite::Error::SqliteFailure(failure, message) => {
            reader::read_error(super::explain::error(failure.extended_code, &message.unwrap_or_default()))
        }
        other => ShardError::Unavailable(other.to_string()),
    }
}
