//! The production file system: every page of a database carries a checksum.
//!
//! SQLite leaves eight bytes at the end of each page alone ([`set_reserve_bytes`]). A whole page that is written
//! to a database file is copied, the copy is sealed, and the copy is what the disk gets; a whole page that is read
//! is checked, and a page that does not match is `SQLITE_IOERR_DATA`, not data.
//!
//!     | first page_size - 8 bytes, as SQLite made them | xxh3-64 of them, seeded with the page number |
//!
//! Invariants (docs/invariants.md):
//!   * I-6a  A corrupt page is detected and reported, never returned as data.
//!
//! The page number is part of the checksum, so that a page written to the wrong place is found, too. The rest is
//! a list of ways past the check, and how each is closed:
//!   * SQLite's own buffer is never changed: the checksum of the log's frame was computed over it. What stands in
//!     the last eight bytes of a page in memory or in the log does not matter to SQLite or to us; a page is sealed
//!     each time a checkpoint writes it to the database file.
//!   * The page size is not kept, hence cannot be wrong: a whole page is a read or write of a power of two from 512
//!     to 65,536 bytes at a multiple of itself. If the header's page size has rotted, SQLite reads pages of another
//!     size, and their checksums do not match. SQLite reads parts only of page 1 (100 bytes when it opens a file,
//!     16 bytes at 24 to see whether it has changed); it acts on them only after it has read page 1 whole.
//!   * Large values are otherwise read from their pages in parts, past the page cache, if the device says that it
//!     can (`SQLITE_IOCAP_SUBPAGE_READ`). This one says that it cannot.
//!   * A database without reserved bytes is refused: its first page is not written, or does not match. If it were
//!     let through unchecked, one rotten byte in the header could switch the checks off.
//!   * A page of zeros is corrupt like any other mismatch. In WAL mode SQLite never makes one: every page below
//!     the end of the database was written by a checkpoint or is still in the log. The one exception is the page
//!     at one gibibyte, which holds the lock bytes and is neither read nor written. (In the rollback modes a page
//!     that is allocated and freed in one transaction may stay a hole; nothing but a page by page copy reads it.)
//!   * A read wholly behind the end of the file is a short read, as SQLite expects: rolling back a transaction
//!     reads the pages that it would have added. A page that the end of the file cuts in two is corrupt.
//!
//! Not covered: the log itself while a process runs (see [`super::walcheck`] for when it is opened), and a database
//! file that has lost its tail, which SQLite finds by the page count in its header unless the log holds newer
//! pages.

use super::base::{BaseFile, BaseVfs};
use super::walcheck::{self, WalError};
use super::{Code, DirSync, Filename, MissingRegion, RegisterError, ShmEnd, Vfs, VfsFile};
use rusqlite::{Connection, ffi};
use std::collections::HashSet;
use std::ffi::{CStr, CString, c_int, c_void};
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes at the end of each page that hold its checksum.
pub const RESERVED_BYTES: usize = 8;

/// The name of the production file system over the platform's own.
pub const NAME: &str = "isles";

/// SQLite's smallest and largest page.
const PAGE_SIZES: std::ops::RangeInclusive<usize> = 512..=65_536;

/// Where the header of a database holds the number of reserved bytes.
const HEADER_RESERVED: usize = 20;

/// The byte of the file that SQLite locks; its page is never used.
const LOCK_BYTE: u64 = 0x4000_0000;

/// How many bad pages a [`Report`] lists. More tell nobody more.
pub const BAD_PAGES_LISTED: usize = 1_000;

/// Registers the checksum file system over the one named `base`, or over the platform's own, and returns the name
/// to open databases with: [`NAME`], or [`NAME`]`-base`. It may be called any number of times.
pub fn register(base: Option<&str>) -> Result<String, RegisterError> {
    let name = name_over(base);
    super::register(&name, ChecksumVfs { base: BaseVfs::find(base)? })?;
    Ok(name)
}

/// Removes what [`register`] has registered over `base`; for bases that come and go, as in simulation.
pub fn unregister(base: &str) {
    super::unregister(&name_over(Some(base)));
}

fn name_over(base: Option<&str>) -> String {
    base.map_or_else(|| NAME.to_owned(), |base| format!("{NAME}-{base}"))
}

/// Makes a new database leave room for the checksums. To be called on a new connection, before anything is written;
/// on a database that has pages it changes nothing.
pub fn set_reserve_bytes(connection: &Connection) -> Result<(), Code> {
    let mut count = RESERVED_BYTES as c_int;
    // SAFETY: the handle is that of a live connection, and the opcode takes a pointer to an int.
    let rc = unsafe {
        let handle = connection.handle();
        let argument = std::ptr::from_mut(&mut count).cast::<c_void>();
        ffi::sqlite3_file_control(handle, c"main".as_ptr(), ffi::SQLITE_FCNTL_RESERVE_BYTES, argument)
    };
    Code::check(rc)
}

/// The checksum that belongs at the end of a page.
fn checksum(page: &[u8], number: u32) -> [u8; RESERVED_BYTES] {
    let body = &page[..page.len() - RESERVED_BYTES];
    xxh3_64_with_seed(body, u64::from(number)).to_le_bytes()
}

fn is_sound(page: &[u8], number: u32) -> bool {
    page[page.len() - RESERVED_BYTES..] == checksum(page, number)
}

/// The number of the page that a read or write covers exactly, if it covers one.
fn whole_page(length: usize, offset: u64) -> Option<u32> {
    let size = length as u64;
    let aligned = PAGE_SIZES.contains(&length) && length.is_power_of_two() && offset.is_multiple_of(size);
    if aligned { u32::try_from(offset / size + 1).ok() } else { None }
}

/// Whether the page is the one that holds SQLite's lock bytes.
fn is_lock_page(number: u32, page_size: usize) -> bool {
    u64::from(number) == LOCK_BYTE / page_size as u64 + 1
}

/// Tells the error log of SQLite what has been found; the code alone does not say where.
fn log(code: c_int, message: &str) {
    let Ok(message) = CString::new(message) else { return };
    // SAFETY: the format takes exactly one string.
    unsafe { ffi::sqlite3_log(code, c"%s".as_ptr(), message.as_ptr()) }
}

struct ChecksumVfs {
    base: BaseVfs,
}

impl Vfs for ChecksumVfs {
    type File = ChecksumFile;

    fn open(&self, name: Filename<'_>, flags: c_int) -> Result<(ChecksumFile, c_int), Code> {
        let (mut base, effective) = self.base.open(name, flags)?;
        let role = Role::of(flags, base.device_characteristics());
        Ok((ChecksumFile { base, role, scratch: Vec::new(), frames: Frames::default() }, effective))
    }

    fn delete(&self, name: &CStr, dir_sync: DirSync) -> Result<(), Code> {
        self.base.delete(name, dir_sync)
    }

    fn access(&self, name: &CStr, flags: c_int) -> Result<bool, Code> {
        self.base.access(name, flags)
    }

    fn full_pathname(&self, name: &CStr, out: &mut [u8]) -> Result<(), Code> {
        self.base.full_pathname(name, out)
    }

    fn randomness(&self, out: &mut [u8]) -> usize {
        self.base.randomness(out)
    }

    fn sleep(&self, duration: Duration) -> Duration {
        self.base.sleep(duration)
    }

    fn julian_ms(&self) -> Result<i64, Code> {
        self.base.julian_ms()
    }

    fn last_error(&self) -> c_int {
        self.base.last_error()
    }

    fn max_pathname(&self) -> usize {
        self.base.max_pathname()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A database that is kept: its pages are sealed and checked.
    Database,
    /// A write-ahead log: the frames of a transaction are written together.
    Log,
    /// A journal, a temporary file: its bytes pass through.
    Other,
}

impl Role {
    /// On a device without power-safe overwrite SQLite writes a part of the last frame behind the sync of its commit:
    /// what comes there must not wait for anything.
    fn of(flags: c_int, device: c_int) -> Role {
        let frames_end_with_their_sync = device & ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE != 0;
        match flags {
            _ if flags & ffi::SQLITE_OPEN_MAIN_DB != 0 => Role::Database,
            _ if flags & ffi::SQLITE_OPEN_WAL != 0 && frames_end_with_their_sync => Role::Log,
            _ => Role::Other,
        }
    }
}

struct ChecksumFile {
    base: BaseFile,
    role: Role,
    /// Where a page is sealed before it is written. It grows to one page and stays, so that a write allocates
    /// nothing.
    scratch: Vec<u8>,
    /// What of a log has not been written yet.
    frames: Frames,
}

/// Bytes of a transaction that are written to the log together, at most.
const FRAMES_BYTES: usize = 64 << 10;

/// Frames that SQLite has handed over, each in two pieces, and that are written in one: a commit of a few pages would
/// otherwise be a dozen calls of the operating system.
///
/// They wait for no longer than the transaction is open, so nobody misses them: others see a transaction only after
/// its commit frame, which is written at once, and whoever reads, syncs or measures the file through this handle has
/// them written first.
#[derive(Default)]
struct Frames {
    bytes: Vec<u8>,
    offset: u64,
    /// The page that comes next is that of a commit.
    commit: bool,
}

impl Frames {
    /// Whether these bytes are put behind those that wait.
    fn take(&mut self, bytes: &[u8], offset: u64) -> bool {
        if self.bytes.is_empty() {
            self.offset = offset;
            self.bytes.reserve_exact(FRAMES_BYTES);
        }
        let follows = offset == self.offset + self.bytes.len() as u64 && self.bytes.len() + bytes.len() <= FRAMES_BYTES;
        if follows {
            self.bytes.extend_from_slice(bytes);
        }
        follows
    }

    /// Whether a transaction ends with these bytes, which are the header of a frame or what stands behind one.
    fn ends_with(&mut self, bytes: &[u8]) -> bool {
        let is_header = bytes.len() == walcheck::FRAME_HEADER_BYTES;
        let ends = !is_header && self.commit;
        self.commit = is_header && walcheck::marks_commit(bytes);
        ends
    }
}

impl ChecksumFile {
    /// Checks a page that has been read as a whole.
    fn check(page: &[u8], number: u32) -> Result<(), Code> {
        if is_sound(page, number) {
            return Ok(());
        }
        log(ffi::SQLITE_IOERR_DATA, &format!("the checksum of page {number} does not match"));
        Err(Code(ffi::SQLITE_IOERR_DATA))
    }

    /// A page that the file does not hold in full: fine behind the end, corrupt across it.
    fn check_short(&mut self, offset: u64) -> Result<(), Code> {
        if offset >= self.base.size()? {
            return Err(Code(ffi::SQLITE_IOERR_SHORT_READ));
        }
        log(ffi::SQLITE_IOERR_DATA, "the database file ends within a page");
        Err(Code(ffi::SQLITE_IOERR_DATA))
    }

    fn write_page(&mut self, page: &[u8], offset: u64) -> Result<(), Code> {
        let Some(number) = whole_page(page.len(), offset) else {
            log(ffi::SQLITE_IOERR_WRITE, "a write to a database file must be one whole page");
            return Err(Code(ffi::SQLITE_IOERR_WRITE));
        };
        if number == 1 && usize::from(page[HEADER_RESERVED]) != RESERVED_BYTES {
            log(ffi::SQLITE_IOERR_WRITE, "the database reserves no room for checksums");
            return Err(Code(ffi::SQLITE_IOERR_WRITE));
        }
        self.scratch.clear();
        self.scratch.extend_from_slice(&page[..page.len() - RESERVED_BYTES]);
        self.scratch.extend_from_slice(&checksum(page, number));
        self.base.write(&self.scratch, offset)
    }

    fn write_frame(&mut self, bytes: &[u8], offset: u64) -> Result<(), Code> {
        if !self.frames.take(bytes, offset) {
            self.write_frames()?;
            // Nothing that SQLite writes to a log is larger than a page, and a page has room.
            if !self.frames.take(bytes, offset) {
                self.base.write(bytes, offset)?;
            }
        }
        if self.frames.ends_with(bytes) { self.write_frames() } else { Ok(()) }
    }

    /// Writes what waits. If that fails it is given up: SQLite takes the transaction back.
    fn write_frames(&mut self) -> Result<(), Code> {
        if self.frames.bytes.is_empty() {
            return Ok(());
        }
        let bytes = std::mem::take(&mut self.frames.bytes);
        self.base.write(&bytes, self.frames.offset)
    }
}

impl VfsFile for ChecksumFile {
    fn read(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize, Code> {
        self.write_frames()?;
        let page = if self.role == Role::Database { whole_page(buffer.len(), offset) } else { None };
        match (self.base.read(buffer, offset), page) {
            (Ok(()), Some(number)) => Self::check(buffer, number)?,
            (Err(Code(ffi::SQLITE_IOERR_SHORT_READ)), Some(_)) => self.check_short(offset)?,
            (result, _) => result?,
        }
        Ok(buffer.len())
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<(), Code> {
        match self.role {
            Role::Database => self.write_page(bytes, offset),
            Role::Log => self.write_frame(bytes, offset),
            Role::Other => self.base.write(bytes, offset),
        }
    }

    fn truncate(&mut self, size: u64) -> Result<(), Code> {
        self.write_frames()?;
        self.base.truncate(size)
    }

    fn sync(&mut self, flags: c_int) -> Result<(), Code> {
        self.write_frames()?;
        self.base.sync(flags)
    }

    fn size(&mut self) -> Result<u64, Code> {
        self.write_frames()?;
        self.base.size()
    }

    fn close(&mut self) -> Result<(), Code> {
        // What is left is of a transaction that was given up.
        self.frames.bytes.clear();
        self.base.close()
    }

    fn lock(&mut self, level: c_int) -> Result<(), Code> {
        self.base.lock(level)
    }

    fn unlock(&mut self, level: c_int) -> Result<(), Code> {
        self.base.unlock(level)
    }

    fn check_reserved_lock(&mut self) -> Result<bool, Code> {
        self.base.check_reserved_lock()
    }

    unsafe fn file_control(&mut self, op: c_int, argument: *mut c_void) -> Result<(), Code> {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.base.file_control(op, argument) }
    }

    fn sector_size(&mut self) -> c_int {
        self.base.sector_size()
    }

    /// Batches of atomic writes are not offered either: SQLite would write pages without the order that the log
    /// gives them.
    fn device_characteristics(&mut self) -> c_int {
        self.base.device_characteristics() & !(ffi::SQLITE_IOCAP_SUBPAGE_READ | ffi::SQLITE_IOCAP_BATCH_ATOMIC)
    }

    fn shm_map(&mut self, region: c_int, size: c_int, missing: MissingRegion) -> Result<*mut c_void, Code> {
        self.base.shm_map(region, size, missing)
    }

    fn shm_lock(&mut self, offset: c_int, count: c_int, flags: c_int) -> Result<(), Code> {
        self.base.shm_lock(offset, count, flags)
    }

    fn shm_barrier(&mut self) {
        self.base.shm_barrier();
    }

    fn shm_unmap(&mut self, end: ShmEnd) -> Result<(), Code> {
        self.base.shm_unmap(end)
    }
}

/// What [`verify_file`] has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Pages in the file.
    pub pages: u32,
    /// Pages that the log beside the file replaces, and that are therefore not checked.
    pub replaced_by_log: u32,
    /// The first [`BAD_PAGES_LISTED`] pages whose checksum does not match.
    pub bad_pages: Vec<u32>,
}

/// Why a file could not be verified at all.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the file is not a database with page checksums")]
    NotOurs,
    #[error(transparent)]
    Log(#[from] WalError),
}

/// Checks every page of a database file without SQLite.
///
/// The database must not be open in this process: closing our handle would drop the locks of SQLite's. If a crash
/// has left a log beside the file, it is checked, too, and the pages that it replaces are skipped: a checkpoint may
/// have been cut short while it wrote them.
pub fn verify_file(path: &Path) -> Result<Report, VerifyError> {
    let replaced = pages_in_log(path)?;
    let file = File::open(path)?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut header = [0; 100];
    match reader.read_exact(&mut header) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return verify_empty(path),
        other => other?,
    }
    let page_size = page_size(&header).ok_or(VerifyError::NotOurs)?;
    verify_pages((&header[..]).chain(reader), page_size, &replaced)
}

/// A file without a header is a new database if it has no bytes at all.
fn verify_empty(path: &Path) -> Result<Report, VerifyError> {
    if std::fs::metadata(path)?.len() == 0 { Ok(Report::default()) } else { Err(VerifyError::NotOurs) }
}

fn page_size(header: &[u8; 100]) -> Option<usize> {
    let stored = usize::from(u16::from_be_bytes([header[16], header[17]]));
    let size = if stored == 1 { 65_536 } else { stored };
    let ours = header.starts_with(b"SQLite format 3\0")
        && PAGE_SIZES.contains(&size)
        && size.is_power_of_two()
        && usize::from(header[HEADER_RESERVED]) == RESERVED_BYTES;
    ours.then_some(size)
}

fn verify_pages(mut pages: impl Read, page_size: usize, replaced: &HashSet<u32>) -> Result<Report, VerifyError> {
    let mut report = Report::default();
    let mut page = vec![0; page_size];
    loop {
        let length = read_up_to(&mut pages, &mut page)?;
        if length == 0 {
            return Ok(report);
        }
        report.pages += 1;
        let number = report.pages;
        if replaced.contains(&number) {
            report.replaced_by_log += 1;
        } else if !is_lock_page(number, page_size)
            && (length < page_size || !is_sound(&page, number))
            && report.bad_pages.len() < BAD_PAGES_LISTED
        {
            report.bad_pages.push(number);
        }
    }
}

/// Fills the buffer as far as the input goes.
fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match input.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// The pages of which the log beside a database holds a newer, committed version.
fn pages_in_log(database: &Path) -> Result<HashSet<u32>, VerifyError> {
    let mut log_name = database.as_os_str().to_owned();
    log_name.push("-wal");
    let mut pages = HashSet::new();
    walcheck::check_wal_file_with(&PathBuf::from(log_name), |page| {
        pages.insert(page);
    })?;
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_are_told_from_parts() {
        assert_eq!(whole_page(4096, 0), Some(1));
        assert_eq!(whole_page(4096, 8192), Some(3));
        assert_eq!(whole_page(100, 0), None);
        assert_eq!(whole_page(16, 24), None);
        assert_eq!(whole_page(4088, 4096), None);
        assert_eq!(whole_page(4096, 512), None);
        assert_eq!(whole_page(256, 256), None);
    }

    #[test]
    fn a_page_in_another_place_is_not_sound() {
        let mut page = vec![7; 4096];
        let seal = checksum(&page, 5);
        page[4088..].copy_from_slice(&seal);
        assert!(is_sound(&page, 5));
        assert!(!is_sound(&page, 6));
    }

    #[test]
    fn a_page_of_zeros_is_not_sound() {
        assert!((1..10_000).all(|number| !is_sound(&[0; 4096], number)));
    }
}
