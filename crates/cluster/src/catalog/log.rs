//! Makes what SQLite finds in its log durable, before SQLite finds it.
//!
//! A process that died between a write and its sync leaves a log that recovery believes although a power cut would
//! take it away. A sync that failed leaves worse: the system takes those bytes for written, shows them to the next
//! process, and no later sync writes them. A commit behind them would be acknowledged and lost with them.
//!
//! ```text
//! read the log → write the same bytes again → judge it and sync it → let SQLite recover it
//! ```
//!
//! Writing the same bytes harms nothing if the power fails meanwhile: each sector holds what it held or what it shall
//! hold, and so far nobody was told of either.
//!
//! Invariants (docs/invariants.md):
//!   * I-4, I-5  Whatever is read after opening survives a power cut.
//!   * I-6a      A log that has rotted in the middle is refused, not shortened.

use isles_engine::sqlite::vfs::Filename;
use isles_engine::sqlite::vfs::base::BaseVfs;
use isles_engine::sqlite::vfs::walcheck::{self, WalError};
use rusqlite::ffi;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What is read and written at once.
const CHUNK_BYTES: usize = 1 << 20;

/// To be called before the catalog's connection is opened, by the one process that has the catalog.
pub(crate) fn make_durable(vfs: Option<&str>, database: &Path) -> Result<(), WalError> {
    rewrite(vfs, database)?;
    walcheck::check_and_sync(vfs, database).map(|_| ())
}

fn rewrite(vfs: Option<&str>, database: &Path) -> Result<(), WalError> {
    let vfs = BaseVfs::find(vfs)?;
    let Ok(log) = CString::new([database.as_os_str().as_bytes(), b"-wal"].concat()) else {
        return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput).into());
    };
    if !vfs.access(&log, ffi::SQLITE_ACCESS_EXISTS)? {
        return Ok(());
    }
    // SAFETY: the name is terminated and lives until the file is closed. File systems look for parameters behind a
    // name only if it is a URI or the file may be created; the flags say neither.
    let name = unsafe { Filename::from_raw(log.as_ptr()) };
    let (mut file, _) = vfs.open(name, ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_WAL)?;
    let size = file.size()?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    while offset < size {
        let bytes = &mut chunk[..CHUNK_BYTES.min((size - offset) as usize)];
        file.read(bytes, offset)?;
        file.write(bytes, offset)?;
        offset += bytes.len() as u64;
    }
    Ok(file.close()?)
}
