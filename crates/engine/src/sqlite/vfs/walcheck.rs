//! Tells a log that was torn by a crash from a log that has rotted.
//!
//! SQLite's recovery reads its write-ahead log up to the first frame whose checksum does not match, and quietly
//! forgets the rest. That is right for the tail that a crash has torn, and wrong for a frame in the middle that has
//! rotted: every acknowledged transaction behind it would vanish. So the log is judged before SQLite recovers it.
//!
//!     header | frame 1 … frame c (commit) | frame c+1 … frame d (commit) | … | what an older generation left
//!
//! A frame is *linked* to the one before it if it carries the salts of the header and if its checksum, which is
//! cumulative, continues that of its predecessor. Recovery stops at the first frame k that is not linked. It is
//! called corrupt if there is evidence that the transaction of k had been committed *and synced*:
//!
//!     a commit frame c, at or after k, with a frame c+1 linked to it
//!
//! Invariants (docs/invariants.md):
//!   * I-6a  A corrupt log record is detected and reported, never taken for the end of the log.
//!
//! Why this is sound (a crash is never called corruption). With `synchronous=FULL` SQLite syncs the log at every
//! commit before it writes the first frame of the next transaction, so c+1 proves that all frames up to c were on
//! disk. The link is a 64-bit checksum, and it must be direct: frames of a transaction that was rolled back or torn
//! may lie behind a shorter one that has overwritten its beginning, with the same salts and linked among each other,
//! but never linked to a commit before them. Two details of SQLite need care:
//!   * On a device without power-safe overwrite a commit frame is repeated up to the next sector boundary, and part
//!     of the last copy is written after the sync. A copy is therefore no evidence for its original, and a broken
//!     copy breaks nothing that was committed.
//!   * A process that dies after it has written a commit and before it has synced it leaves a log that recovery
//!     believes. The next process must sync that log before it adds to it or answers from it; [`check_and_sync`]
//!     does. Without that the evidence would be unsound, and a transaction that clients have read could still be
//!     lost by a power cut. It writes the log over itself first: if the process died because a sync had failed, the
//!     kernel takes the data of that sync for written, and another sync alone would do nothing.
//!
//! If k itself is the commit frame, its mark (the database size in its header) may be the damaged place or, in a
//! torn frame, a leftover. It is believed only if the rest of the chain vouches for it: if frame k+1 continues the
//! checksum computed from k, the contents of k are genuine; if it continues the checksum stored in k, that checksum
//! is genuine, and so is the mark if a single damaged word elsewhere explains the mismatch (the checksum is linear,
//! so that such a word can be computed) or if the mark shares a sector with that checksum. If the mark is the word
//! that explains it, what it was can be computed, too.
//!
//! The header is synced before the first frame is written, so a broken header with a frame linked to it is corrupt.
//!
//! The limit: damage in the last transaction of the log, committed or not, looks like a torn write and is accepted
//! as one, unless the damage itself betrays that it was none. The same holds where the end of the last but one
//! transaction is damaged in several frames at once, or in a commit mark that has become zero by a change that could
//! as well be in another word (databases below 256 pages).

use super::base::{BaseFile, BaseVfs};
use super::{Code, Filename, RegisterError};
use rusqlite::ffi;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

const HEADER_BYTES: usize = 32;
pub(super) const FRAME_HEADER_BYTES: usize = 24;
const MAGIC: u32 = 0x377f_0682;

/// What a power cut cannot tear.
const SECTOR_BYTES: u64 = 512;

/// SQLite's page sizes, as powers of two.
const PAGE_SIZE_BITS: std::ops::RangeInclusive<u32> = 9..=16;

/// A log that recovery may be trusted with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalReport {
    /// Frames up to and including the last commit: what recovery keeps.
    pub committed_frames: u32,
    /// Linked frames behind the last commit: a transaction that was cut off.
    pub uncommitted_frames: u32,
    /// Commit frames among those kept.
    pub commits: u32,
}

/// Why a log must not be recovered.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// `frame` is damaged (0 is the header), and `evidence` shows that what it belongs to had been synced.
    #[error("frame {frame} of the log is corrupt: frame {evidence} was written after it had been synced")]
    Corrupt { frame: u32, evidence: u32 },
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Vfs(#[from] Code),
    #[error(transparent)]
    NoVfs(#[from] RegisterError),
}

/// Judges a log that is in memory.
pub fn check_wal(bytes: &[u8]) -> Result<WalReport, WalError> {
    check(bytes, |_| {})
}

/// Judges a log file, holding a few frames of it in memory. A missing file is an empty log.
pub fn check_wal_file(path: &Path) -> Result<WalReport, WalError> {
    check_wal_file_with(path, |_| {})
}

/// As [`check_wal_file`], and calls `on_page` with the page number of each committed frame.
pub fn check_wal_file_with(path: &Path, on_page: impl FnMut(u32)) -> Result<WalReport, WalError> {
    match File::open(path) {
        Ok(file) => check(file, on_page),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(WalReport::default()),
        Err(error) => Err(error.into()),
    }
}

/// Judges the log beside a database through the file system that SQLite will use, and makes it durable.
///
/// To be called before the first connection to a database is opened. See the header for why the sync is needed.
pub fn check_and_sync(vfs: Option<&str>, database: &Path) -> Result<WalReport, WalError> {
    let vfs = BaseVfs::find(vfs)?;
    let names = Names::new(database)?;
    let log = names.log();
    let exists = match log.name() {
        Some(name) => vfs.access(name, ffi::SQLITE_ACCESS_EXISTS)?,
        None => false,
    };
    if !exists {
        return Ok(WalReport::default());
    }
    // With CREATE, the first sync of a log also syncs its directory.
    let flags = ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE | ffi::SQLITE_OPEN_WAL;
    let (mut file, _) = vfs.open(log, flags)?;
    let report = check(&mut file, |_| {})?;
    rewrite(&mut file)?;
    file.sync(ffi::SQLITE_SYNC_NORMAL)?;
    file.close()?;
    Ok(report)
}

/// Writes a file over itself, so that the next sync carries all of it to the disk. A power cut meanwhile is harmless:
/// what was durable is overwritten by itself.
fn rewrite(file: &mut BaseFile) -> Result<(), Code> {
    const CHUNK_BYTES: u64 = 1 << 16;
    let size = file.size()?;
    let mut chunk = Vec::new();
    for start in (0..size).step_by(CHUNK_BYTES as usize) {
        chunk.resize(CHUNK_BYTES.min(size - start) as usize, 0);
        file.read(&mut chunk, start)?;
        file.write(&chunk, start)?;
    }
    Ok(())
}

/// The names of a database and its companions, in the form that a file system expects from SQLite.
struct Names {
    raw: ffi::sqlite3_filename,
}

impl Names {
    fn new(database: &Path) -> Result<Names, WalError> {
        let with = |suffix: &[u8]| CString::new([database.as_os_str().as_bytes(), suffix].concat());
        let bad_name = |_| io::Error::from(ErrorKind::InvalidInput);
        let (main, journal, log) = (with(b""), with(b"-journal"), with(b"-wal"));
        let (main, journal, log) = (main.map_err(bad_name)?, journal.map_err(bad_name)?, log.map_err(bad_name)?);
        // SAFETY: three terminated strings, which are copied, and no parameters.
        let raw = unsafe {
            let none = std::ptr::null_mut();
            ffi::sqlite3_create_filename(main.as_ptr(), journal.as_ptr(), log.as_ptr(), 0, none)
        };
        if raw.is_null() { Err(Code(ffi::SQLITE_NOMEM).into()) } else { Ok(Names { raw }) }
    }

    fn log(&self) -> Filename<'_> {
        // SAFETY: the names live until they are dropped.
        unsafe { Filename::from_raw(ffi::sqlite3_filename_wal(self.raw)) }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        // SAFETY: made by sqlite3_create_filename and freed once.
        unsafe { ffi::sqlite3_free_filename(self.raw) }
    }
}

/// Where the bytes of a log come from.
trait Source {
    /// Fills the buffer, or says that the log ends before.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<Found, WalError>;
}

#[derive(PartialEq, Eq)]
enum Found {
    Whole,
    End,
}

impl Source for &[u8] {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<Found, WalError> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.get(start..).and_then(|rest| rest.get(..buffer.len()));
        Ok(bytes.map_or(Found::End, |bytes| {
            buffer.copy_from_slice(bytes);
            Found::Whole
        }))
    }
}

impl Source for File {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<Found, WalError> {
        match self.read_exact_at(buffer, offset) {
            Ok(()) => Ok(Found::Whole),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Found::End),
            Err(error) => Err(error.into()),
        }
    }
}

impl Source for &mut BaseFile {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<Found, WalError> {
        match self.read(buffer, offset) {
            Ok(()) => Ok(Found::Whole),
            Err(Code(ffi::SQLITE_IOERR_SHORT_READ)) => Ok(Found::End),
            Err(code) => Err(code.into()),
        }
    }
}

/// How the words of a checksum are read; the log's magic number says which.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn word(self, bytes: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }
}

/// SQLite's cumulative checksum of a log.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Sum(u32, u32);

impl Sum {
    fn add(mut self, order: Order, bytes: &[u8]) -> Sum {
        for pair in bytes.chunks_exact(8) {
            self.0 = self.0.wrapping_add(order.word([pair[0], pair[1], pair[2], pair[3]])).wrapping_add(self.1);
            self.1 = self.1.wrapping_add(order.word([pair[4], pair[5], pair[6], pair[7]])).wrapping_add(self.0);
        }
        self
    }

    fn stored(bytes: &[u8]) -> Sum {
        Sum(big_endian(bytes), big_endian(&bytes[4..]))
    }
}

/// The fields of a log are big-endian whatever its checksums are.
fn big_endian(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Whether the header of a frame says that a transaction ends with it.
pub(super) fn marks_commit(header: &[u8]) -> bool {
    header[4..8] != [0; 4]
}

/// What every frame of a log has in common.
#[derive(Clone, Copy)]
struct Format {
    order: Order,
    page_bytes: usize,
    salts: [u8; 8],
}

impl Format {
    fn frame_offset(&self, number: u32) -> u64 {
        let frame_bytes = (self.page_bytes + FRAME_HEADER_BYTES) as u64;
        HEADER_BYTES as u64 + (u64::from(number) - 1) * frame_bytes
    }

    /// Whether the header of a frame lies in one sector, and is therefore wholly old or wholly new.
    fn header_is_atomic(&self, number: u32) -> bool {
        let start = self.frame_offset(number);
        let last = start + FRAME_HEADER_BYTES as u64 - 1;
        start / SECTOR_BYTES == last / SECTOR_BYTES
    }
}

struct Frame {
    bytes: Vec<u8>,
}

impl Frame {
    fn new(format: Format) -> Frame {
        Frame { bytes: vec![0; FRAME_HEADER_BYTES + format.page_bytes] }
    }

    fn page_number(&self) -> u32 {
        big_endian(&self.bytes)
    }

    fn is_commit(&self) -> bool {
        marks_commit(&self.bytes)
    }

    fn stored_sum(&self) -> Sum {
        Sum::stored(&self.bytes[16..])
    }

    /// The checksum that this frame has if it follows one with the checksum `before`.
    fn sum_after(&self, format: Format, before: Sum) -> Sum {
        before.add(format.order, &self.bytes[..8]).add(format.order, &self.bytes[FRAME_HEADER_BYTES..])
    }

    fn is_linked(&self, format: Format, before: Sum) -> bool {
        self.bytes[8..16] == format.salts
            && self.page_number() != 0
            && self.sum_after(format, before) == self.stored_sum()
    }

    fn has_contents_of(&self, other: &Frame) -> bool {
        self.bytes[..8] == other.bytes[..8] && self.bytes[FRAME_HEADER_BYTES..] == other.bytes[FRAME_HEADER_BYTES..]
    }
}

fn check(mut source: impl Source, on_page: impl FnMut(u32)) -> Result<WalReport, WalError> {
    let mut header = [0; HEADER_BYTES];
    if source.read_at(&mut header, 0)? == Found::End {
        return Ok(WalReport::default());
    }
    match parse_header(&header) {
        Some((format, sum)) => Scan { source, format, on_page }.run(sum),
        None => check_behind_broken_header(source, &header),
    }
}

fn parse_header(header: &[u8; HEADER_BYTES]) -> Option<(Format, Sum)> {
    let magic = big_endian(header);
    let order = if magic & 1 == 0 { Order::Little } else { Order::Big };
    let page_bytes = big_endian(&header[8..]);
    let plausible =
        magic & !1 == MAGIC && page_bytes.is_power_of_two() && PAGE_SIZE_BITS.contains(&page_bytes.trailing_zeros());
    let sum = Sum::default().add(order, &header[..24]);
    if !plausible || sum != Sum::stored(&header[24..]) {
        return None;
    }
    let mut salts = [0; 8];
    salts.copy_from_slice(&header[16..24]);
    Some((Format { order, page_bytes: page_bytes as usize, salts }, sum))
}

/// A header that SQLite would take for no header at all. Byte order and page size may be the damaged place, so
/// all are tried.
fn check_behind_broken_header(mut source: impl Source, header: &[u8; HEADER_BYTES]) -> Result<WalReport, WalError> {
    for order in [Order::Little, Order::Big] {
        for page_bytes in PAGE_SIZE_BITS.map(|bits| 1 << bits) {
            let mut format = Format { order, page_bytes, salts: [0; 8] };
            let mut frame = Frame::new(format);
            if source.read_at(&mut frame.bytes, HEADER_BYTES as u64)? == Found::End {
                break;
            }
            format.salts.copy_from_slice(&frame.bytes[8..16]);
            let computed = Sum::default().add(order, &header[..24]);
            if frame.is_linked(format, Sum::stored(&header[24..])) || frame.is_linked(format, computed) {
                return Err(WalError::Corrupt { frame: 0, evidence: 1 });
            }
        }
    }
    Ok(WalReport::default())
}

/// One pass over the frames of a log.
struct Scan<S, P> {
    source: S,
    format: Format,
    on_page: P,
}

impl<S: Source, P: FnMut(u32)> Scan<S, P> {
    fn run(mut self, header_sum: Sum) -> Result<WalReport, WalError> {
        let (mut before, mut frame) = (Frame::new(self.format), Frame::new(self.format));
        let mut sum = header_sum;
        let mut report = WalReport::default();
        // Pages of the transaction being read; at most four bytes for each of its frames.
        let mut pages = Vec::new();
        for number in 1.. {
            if self.read(number, &mut frame)? == Found::End {
                break;
            }
            if !frame.is_linked(self.format, sum) {
                self.judge(Broken { number, sum, before: &before, frame: &frame })?;
                break;
            }
            sum = frame.stored_sum();
            pages.push(frame.page_number());
            report.uncommitted_frames += 1;
            if frame.is_commit() {
                report = WalReport { committed_frames: number, uncommitted_frames: 0, commits: report.commits + 1 };
                pages.drain(..).for_each(&mut self.on_page);
            }
            std::mem::swap(&mut before, &mut frame);
        }
        Ok(report)
    }

    /// Looks behind a frame that is not linked for a commit with a frame linked to it.
    fn judge(&mut self, broken: Broken<'_>) -> Result<(), WalError> {
        let corrupt = |evidence| Err(WalError::Corrupt { frame: broken.number, evidence });
        let (mut before, mut frame) = (Frame::new(self.format), Frame::new(self.format));
        if self.read(broken.number + 1, &mut before)? == Found::End {
            return Ok(());
        }
        let link = broken.link_to(self.format, &before);
        if link.is_some_and(|link| broken.was_commit_before(self.format, &before, link)) {
            return corrupt(broken.number + 1);
        }
        let mut before_is_linked = link.is_some();
        for number in broken.number + 2.. {
            if self.read(number, &mut frame)? == Found::End {
                break;
            }
            let is_linked = frame.is_linked(self.format, before.stored_sum());
            let before_is_commit = before_is_linked && before.is_commit();
            if is_linked && before_is_commit && !frame.has_contents_of(&before) {
                return corrupt(number);
            }
            before_is_linked = is_linked;
            std::mem::swap(&mut before, &mut frame);
        }
        Ok(())
    }

    fn read(&mut self, number: u32, frame: &mut Frame) -> Result<Found, WalError> {
        self.source.read_at(&mut frame.bytes, self.format.frame_offset(number))
    }
}

/// How the frame behind a broken one is linked to it.
#[derive(Clone, Copy)]
enum Link {
    /// By the checksum computed from the broken frame's contents: they are genuine.
    Contents,
    /// By the checksum stored in the broken frame: it is genuine, the contents are not.
    StoredSum,
}

/// The first frame that is not linked to its predecessor.
struct Broken<'a> {
    number: u32,
    /// The checksum of the predecessor.
    sum: Sum,
    /// The predecessor; all zero for the first frame.
    before: &'a Frame,
    frame: &'a Frame,
}

impl Broken<'_> {
    fn link_to(&self, format: Format, next: &Frame) -> Option<Link> {
        if next.is_linked(format, self.frame.sum_after(format, self.sum)) {
            Some(Link::Contents)
        } else if next.is_linked(format, self.frame.stored_sum()) {
            Some(Link::StoredSum)
        } else {
            None
        }
    }

    /// Whether the frame was a commit, and `next` the beginning of the next transaction.
    fn was_commit_before(&self, format: Format, next: &Frame, link: Link) -> bool {
        let (genuine_sum, was_commit) = match link {
            Link::Contents => (self.frame.sum_after(format, self.sum), self.frame.is_commit()),
            Link::StoredSum => (self.frame.stored_sum(), self.was_commit_by_stored_sum(format)),
        };
        // Two frames after the same checksum have the same contents if they have the same checksum.
        let repeats_before = self.before.is_commit() && self.before.sum_after(format, self.sum) == genuine_sum;
        let repeated_by_next = next.sum_after(format, self.sum) == genuine_sum;
        was_commit && !repeats_before && !repeated_by_next
    }

    /// Whether the frame was a commit, given that its stored checksum is genuine.
    fn was_commit_by_stored_sum(&self, format: Format) -> bool {
        let marked = self.frame.is_commit();
        let suspects = self.suspects(format);
        match (suspects.mark, suspects.another_word) {
            (Some(mark), false) => mark != 0,
            // A change of high bits only may look the same in several words. Then a crash, to which the mark and the
            // checksum of one sector are one, decides; across two sectors either reading must hold.
            (Some(_), true) if format.header_is_atomic(self.number) => marked,
            (Some(mark), true) => marked && mark != 0,
            (None, true) => marked,
            (None, false) => marked && format.header_is_atomic(self.number),
        }
    }

    /// The words that alone could keep the frame's contents from its stored checksum.
    ///
    /// Each word enters the checksum as `t[i] = t[i-2] + t[i-1] + word[i]`, and the checksum is the last two `t`. A
    /// change of one word thus arrives there multiplied by two neighbouring Fibonacci numbers, which are known from
    /// its distance to the end. At least one of them is odd and can be divided by; the other one is the proof.
    fn suspects(&self, format: Format) -> Suspects {
        let (found, wanted) = (self.frame.sum_after(format, self.sum), self.frame.stored_sum());
        let (first, second) = (wanted.0.wrapping_sub(found.0), wanted.1.wrapping_sub(found.1));
        let (mut low, mut high) = (0_u32, 1_u32);
        let mut suspects = Suspects { mark: None, another_word: false };
        for word in (0..(8 + format.page_bytes) / 4).rev() {
            let correction =
                if high & 1 == 1 { second.wrapping_mul(inverse(high)) } else { first.wrapping_mul(inverse(low)) };
            let explains = correction.wrapping_mul(low) == first && correction.wrapping_mul(high) == second;
            match word {
                COMMIT_WORD if explains => suspects.mark = Some(self.mark(format).wrapping_add(correction)),
                _ => suspects.another_word |= explains,
            }
            (low, high) = (high, low.wrapping_add(high));
        }
        suspects
    }

    /// The commit mark as the checksum sees it.
    fn mark(&self, format: Format) -> u32 {
        let bytes = &self.frame.bytes;
        format.order.word([bytes[4], bytes[5], bytes[6], bytes[7]])
    }
}

/// Which single words would explain a broken frame.
struct Suspects {
    /// What the commit mark has been, if it alone is damaged.
    mark: Option<u32>,
    /// Whether any other word alone may be damaged.
    another_word: bool,
}

/// Which word of a frame's contents is the database size that marks a commit.
const COMMIT_WORD: usize = 1;

/// The inverse of an odd number modulo 2^32, by Newton's method: each step doubles the bits that are right.
fn inverse(odd: u32) -> u32 {
    let mut inverse = odd; // right in its lowest three bits
    for _ in 0..4 {
        inverse = inverse.wrapping_mul(2_u32.wrapping_sub(odd.wrapping_mul(inverse)));
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_odd_number_has_an_inverse() {
        for odd in (1..100_000_u32).step_by(2).chain([u32::MAX]) {
            assert_eq!(odd.wrapping_mul(inverse(odd)), 1);
        }
    }

    #[test]
    fn an_empty_or_zeroed_log_is_accepted() {
        for length in [0, 31, 32, 33, 5000, 100_000] {
            assert_eq!(check_wal(&vec![0; length]).expect("accepted"), WalReport::default());
        }
    }
}
