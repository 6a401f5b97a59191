//! A virtual file system for SQLite, written as two Rust traits.
//!
//! SQLite reaches every byte through a table of C functions. [`Vfs`] and [`VfsFile`] are that table in Rust's
//! words; the C functions that call them are written here, once, so that an implementation contains no pointer
//! arithmetic of its own. In reading order:
//!   * this file    the traits, [`register`], and the functions that SQLite calls
//!   * [`base`]     a file system that SQLite already has, called from Rust
//!   * [`checksum`] the production file system: every database page carries a checksum (I-6a)
//!   * [`walcheck`] tells a log that was torn by a crash from a log that has rotted (I-6a)
//!
//! What holds for every file system registered here:
//!   * No panic crosses into C. A panic in an implementation becomes `SQLITE_IOERR`; unwinding through C frames
//!     would be undefined behaviour.
//!   * A short read fills the rest of the buffer with zeros, as SQLite demands.
//!   * Files are not mapped into memory: the method table is of version 2, which has no `xFetch`. A mapped page
//!     would be read without passing through [`VfsFile::read`], and so past its checksum.
//!   * Extensions cannot be loaded: `xDlOpen` always refuses (I-63).

pub mod base;
pub mod checksum;
pub mod walcheck;

use rusqlite::ffi;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest file name that SQLite may pass, in bytes.
pub const MAX_PATHNAME: usize = 1024;

/// A SQLite result code other than `SQLITE_OK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub c_int);

impl Code {
    /// `Ok` for `SQLITE_OK`, else the code.
    pub fn check(rc: c_int) -> Result<(), Code> {
        if rc == ffi::SQLITE_OK { Ok(()) } else { Err(Code(rc)) }
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SQLite result code {} ({})", self.0, ffi::code_to_str(self.0))
    }
}

impl std::error::Error for Code {}

/// The name of a file as SQLite passes it.
///
/// It is more than a C string: URI parameters lie in memory behind its terminator, and a file system that wraps
/// another must hand on this very pointer.
#[derive(Clone, Copy)]
pub struct Filename<'a> {
    raw: *const c_char,
    lives: PhantomData<&'a CStr>,
}

impl<'a> Filename<'a> {
    /// # Safety
    /// `raw` is null, or a name made by SQLite (or by `sqlite3_create_filename`) that outlives `'a`.
    pub unsafe fn from_raw(raw: *const c_char) -> Filename<'a> {
        Filename { raw, lives: PhantomData }
    }

    /// The pointer to hand to another file system; null for a temporary file without a name.
    pub fn as_ptr(self) -> *const c_char {
        self.raw
    }

    /// The name, or nothing for a temporary file that SQLite leaves to the file system to name.
    pub fn name(self) -> Option<&'a CStr> {
        if self.raw.is_null() {
            return None;
        }
        // SAFETY: `from_raw` demands a terminated string that outlives 'a.
        Some(unsafe { CStr::from_ptr(self.raw) })
    }
}

/// Whether a deletion must also make the directory durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirSync {
    Now,
    Later,
}

/// What [`VfsFile::shm_map`] does with a region that does not exist yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingRegion {
    Create,
    LeaveAbsent,
}

/// What becomes of the shared memory when a file leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShmEnd {
    Delete,
    Keep,
}

/// A file system.
pub trait Vfs: Send + Sync + 'static {
    type File: VfsFile;

    /// Opens a file with SQLite's flags and tells the flags in effect.
    fn open(&self, name: Filename<'_>, flags: c_int) -> Result<(Self::File, c_int), Code>;

    fn delete(&self, name: &CStr, dir_sync: DirSync) -> Result<(), Code>;

    /// Answers `SQLITE_ACCESS_EXISTS`, `_READWRITE` or `_READ`.
    fn access(&self, name: &CStr, flags: c_int) -> Result<bool, Code>;

    /// Writes the absolute form of `name`, terminated, into `out`.
    fn full_pathname(&self, name: &CStr, out: &mut [u8]) -> Result<(), Code> {
        copy_name(name, out)
    }

    /// Fills `out` with random bytes and tells how many.
    fn randomness(&self, out: &mut [u8]) -> usize;

    /// Sleeps about as long as asked and tells how long.
    fn sleep(&self, duration: Duration) -> Duration;

    /// Milliseconds since noon of 24 November 4714 BC, which is SQLite's clock.
    fn julian_ms(&self) -> Result<i64, Code>;

    /// The operating system's number for the last error.
    fn last_error(&self) -> c_int {
        0
    }

    fn max_pathname(&self) -> usize {
        MAX_PATHNAME
    }
}

/// One open file. SQLite uses a file from one thread at a time.
pub trait VfsFile: Send + 'static {
    /// Reads at `offset` and tells how many bytes there were. Fewer than asked for is a short read.
    fn read(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize, Code>;
    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<(), Code>;
    fn truncate(&mut self, size: u64) -> Result<(), Code>;
    fn sync(&mut self, flags: c_int) -> Result<(), Code>;
    fn size(&mut self) -> Result<u64, Code>;
    fn close(&mut self) -> Result<(), Code> {
        Ok(())
    }

    fn lock(&mut self, level: c_int) -> Result<(), Code>;
    fn unlock(&mut self, level: c_int) -> Result<(), Code>;
    fn check_reserved_lock(&mut self) -> Result<bool, Code>;

    /// # Safety
    /// `argument` is what SQLite documents for the opcode `op`.
    unsafe fn file_control(&mut self, op: c_int, argument: *mut c_void) -> Result<(), Code> {
        let _ = (op, argument);
        Err(Code(ffi::SQLITE_NOTFOUND))
    }

    fn sector_size(&mut self) -> c_int;
    fn device_characteristics(&mut self) -> c_int;

    /// The address of a region of shared memory; null if it is absent and shall stay so.
    fn shm_map(&mut self, region: c_int, size: c_int, missing: MissingRegion) -> Result<*mut c_void, Code>;
    fn shm_lock(&mut self, offset: c_int, count: c_int, flags: c_int) -> Result<(), Code>;
    fn shm_barrier(&mut self);
    fn shm_unmap(&mut self, end: ShmEnd) -> Result<(), Code>;
}

/// Why a file system could not be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    #[error("the name of a file system must not contain a zero byte")]
    BadName,
    #[error("SQLite refused the file system: {0}")]
    Sqlite(Code),
    #[error("there is no file system named {0}")]
    NoBase(String),
}

/// SQLite's list has no "insert if absent", so that two threads could add the same name. This lock makes the two
/// steps one.
static REGISTRATION: Mutex<()> = Mutex::new(());

/// Makes a file system known to SQLite under `name`, unless that name is taken; then the one in place stays.
///
/// The registration is leaked on purpose: a connection keeps a bare pointer to its file system for as long as it
/// lives, and nothing tells when the last connection is gone. One process registers few of them.
pub fn register<V: Vfs>(name: &str, vfs: V) -> Result<(), RegisterError> {
    let c_name = CString::new(name).map_err(|_| RegisterError::BadName)?;
    let _one_at_a_time = REGISTRATION.lock().unwrap_or_else(PoisonError::into_inner);
    if is_registered(&c_name) {
        return Ok(());
    }
    let table = vfs_table::<V>(vfs.max_pathname(), c_name.into_raw(), Box::into_raw(Box::new(vfs)));
    // SAFETY: the table, its name and its state are leaked and so live for ever. It is not made the default.
    let rc = unsafe { ffi::sqlite3_vfs_register(Box::into_raw(Box::new(table)), 0) };
    Code::check(rc).map_err(RegisterError::Sqlite)
}

/// Removes a file system from SQLite's list. Connections that use it are not disturbed, see [`register`].
pub fn unregister(name: &str) {
    let Ok(c_name) = CString::new(name) else { return };
    let _one_at_a_time = REGISTRATION.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: find returns null or a table of the list, and unregister takes either.
    unsafe { ffi::sqlite3_vfs_unregister(ffi::sqlite3_vfs_find(c_name.as_ptr())) };
}

fn is_registered(name: &CStr) -> bool {
    // SAFETY: the name is a terminated string; the pointer that comes back is only compared.
    !unsafe { ffi::sqlite3_vfs_find(name.as_ptr()) }.is_null()
}

/// Copies a name and its terminator, or says that it is too long.
pub fn copy_name(name: &CStr, out: &mut [u8]) -> Result<(), Code> {
    let bytes = name.to_bytes_with_nul();
    let target = out.get_mut(..bytes.len()).ok_or(Code(ffi::SQLITE_CANTOPEN))?;
    target.copy_from_slice(bytes);
    Ok(())
}

fn vfs_table<V: Vfs>(max_pathname: usize, name: *mut c_char, state: *mut V) -> ffi::sqlite3_vfs {
    ffi::sqlite3_vfs {
        iVersion: 2,
        szOsFile: size_of::<Slot<V::File>>() as c_int,
        mxPathname: max_pathname as c_int,
        pNext: ptr::null_mut(),
        zName: name,
        pAppData: state.cast(),
        xOpen: Some(x_open::<V>),
        xDelete: Some(x_delete::<V>),
        xAccess: Some(x_access::<V>),
        xFullPathname: Some(x_full_pathname::<V>),
        xDlOpen: Some(x_dl_open),
        xDlError: Some(x_dl_error),
        xDlSym: Some(x_dl_sym),
        xDlClose: Some(x_dl_close),
        xRandomness: Some(x_randomness::<V>),
        xSleep: Some(x_sleep::<V>),
        xCurrentTime: Some(x_current_time::<V>),
        xGetLastError: Some(x_get_last_error::<V>),
        xCurrentTimeInt64: Some(x_current_time_int64::<V>),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    }
}

/// The memory of an open file: SQLite's part first, then ours. SQLite allocates it.
#[repr(C)]
struct Slot<F> {
    sqlite: ffi::sqlite3_file,
    /// Holds a file exactly while `sqlite.pMethods` is not null.
    file: MaybeUninit<F>,
}

impl<F: VfsFile> Slot<F> {
    const METHODS: &'static ffi::sqlite3_io_methods = &ffi::sqlite3_io_methods {
        iVersion: 2,
        xClose: Some(x_close::<F>),
        xRead: Some(x_read::<F>),
        xWrite: Some(x_write::<F>),
        xTruncate: Some(x_truncate::<F>),
        xSync: Some(x_sync::<F>),
        xFileSize: Some(x_file_size::<F>),
        xLock: Some(x_lock::<F>),
        xUnlock: Some(x_unlock::<F>),
        xCheckReservedLock: Some(x_check_reserved_lock::<F>),
        xFileControl: Some(x_file_control::<F>),
        xSectorSize: Some(x_sector_size::<F>),
        xDeviceCharacteristics: Some(x_device_characteristics::<F>),
        xShmMap: Some(x_shm_map::<F>),
        xShmLock: Some(x_shm_lock::<F>),
        xShmBarrier: Some(x_shm_barrier::<F>),
        xShmUnmap: Some(x_shm_unmap::<F>),
        xFetch: None,
        xUnfetch: None,
    };

    /// SQLite aligns what it allocates to eight bytes.
    const FITS_SQLITES_ALIGNMENT: () = assert!(align_of::<Slot<F>>() <= 8);
}

/// Runs an implementation and turns its answer, or its panic, into a result code.
fn guarded(body: impl FnOnce() -> Result<(), Code>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => ffi::SQLITE_OK,
        Ok(Err(code)) => code.0,
        Err(_panic) => ffi::SQLITE_IOERR,
    }
}

/// Runs an implementation that answers with a value; a panic becomes `otherwise`.
fn guarded_value<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// Offsets and sizes are signed in C, and never negative.
fn unsigned(value: ffi::sqlite3_int64) -> Result<u64, Code> {
    u64::try_from(value).map_err(|_| Code(ffi::SQLITE_IOERR))
}

/// # Safety
/// `vfs` is a table made by [`vfs_table`] for `V`.
unsafe fn state<'a, V: Vfs>(vfs: *mut ffi::sqlite3_vfs) -> &'a V {
    // SAFETY: pAppData was set to a leaked V and is never changed; V is Sync.
    unsafe { &*(*vfs).pAppData.cast::<V>() }
}

/// # Safety
/// `file` was opened by [`x_open`] with files of type `F`, and is not closed.
unsafe fn opened<'a, F: VfsFile>(file: *mut ffi::sqlite3_file) -> &'a mut F {
    // SAFETY: x_open has initialised the slot; SQLite never calls two methods of one file at once, so that this
    // is the only reference.
    unsafe { (*file.cast::<Slot<F>>()).file.assume_init_mut() }
}

// The functions that SQLite calls. Each is sound under the same conditions: SQLite passes the table and the files
// that it got from us, buffers of the length it says, and out-pointers that may be written.

unsafe extern "C" fn x_open<V: Vfs>(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let () = Slot::<V::File>::FITS_SQLITES_ALIGNMENT;
    let slot = file.cast::<Slot<V::File>>();
    // SAFETY: SQLite gives szOsFile bytes. Without methods the slot counts as closed, should opening fail.
    unsafe { (*slot).sqlite.pMethods = ptr::null() };
    guarded(|| {
        // SAFETY: see above; the name is SQLite's own and lives as long as the file.
        let (opened, effective) = unsafe { state::<V>(vfs).open(Filename::from_raw(name), flags)? };
        // SAFETY: the slot is ours to write; out_flags may be null.
        unsafe {
            (*slot).file.write(opened);
            (*slot).sqlite.pMethods = Slot::<V::File>::METHODS;
            if !out_flags.is_null() {
                *out_flags = effective;
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn x_delete<V: Vfs>(vfs: *mut ffi::sqlite3_vfs, name: *const c_char, sync_dir: c_int) -> c_int {
    let dir_sync = if sync_dir == 0 { DirSync::Later } else { DirSync::Now };
    // SAFETY: see above.
    guarded(|| unsafe { state::<V>(vfs).delete(CStr::from_ptr(name), dir_sync) })
}

unsafe extern "C" fn x_access<V: Vfs>(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: see above.
    guarded(|| unsafe {
        *out = c_int::from(state::<V>(vfs).access(CStr::from_ptr(name), flags)?);
        Ok(())
    })
}

unsafe extern "C" fn x_full_pathname<V: Vfs>(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    length: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: see above.
    guarded(|| unsafe {
        let out = std::slice::from_raw_parts_mut(out.cast::<u8>(), length as usize);
        state::<V>(vfs).full_pathname(CStr::from_ptr(name), out)
    })
}

unsafe extern "C" fn x_dl_open(_vfs: *mut ffi::sqlite3_vfs, _name: *const c_char) -> *mut c_void {
    ptr::null_mut()
}

unsafe extern "C" fn x_dl_error(_vfs: *mut ffi::sqlite3_vfs, length: c_int, out: *mut c_char) {
    // SAFETY: SQLite gives a buffer of that length.
    let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<u8>(), length.max(0) as usize) };
    let _ = copy_name(c"extensions cannot be loaded", out);
}

type Symbol = unsafe extern "C" fn(*mut ffi::sqlite3_vfs, *mut c_void, *const c_char);

unsafe extern "C" fn x_dl_sym(_: *mut ffi::sqlite3_vfs, _: *mut c_void, _: *const c_char) -> Option<Symbol> {
    None
}

unsafe extern "C" fn x_dl_close(_vfs: *mut ffi::sqlite3_vfs, _library: *mut c_void) {}

unsafe extern "C" fn x_randomness<V: Vfs>(vfs: *mut ffi::sqlite3_vfs, length: c_int, out: *mut c_char) -> c_int {
    // SAFETY: see above.
    guarded_value(0, || unsafe {
        let out = std::slice::from_raw_parts_mut(out.cast::<u8>(), length as usize);
        state::<V>(vfs).randomness(out) as c_int
    })
}

unsafe extern "C" fn x_sleep<V: Vfs>(vfs: *mut ffi::sqlite3_vfs, micros: c_int) -> c_int {
    let duration = Duration::from_micros(micros.max(0) as u64);
    // SAFETY: see above.
    guarded_value(0, || unsafe { state::<V>(vfs).sleep(duration).as_micros() as c_int })
}

unsafe extern "C" fn x_current_time<V: Vfs>(vfs: *mut ffi::sqlite3_vfs, out: *mut f64) -> c_int {
    // SAFETY: see above.
    guarded(|| unsafe {
        *out = state::<V>(vfs).julian_ms()? as f64 / 86_400_000.0;
        Ok(())
    })
}

unsafe extern "C" fn x_current_time_int64<V: Vfs>(vfs: *mut ffi::sqlite3_vfs, out: *mut ffi::sqlite3_int64) -> c_int {
    // SAFETY: see above.
    guarded(|| unsafe {
        *out = state::<V>(vfs).julian_ms()?;
        Ok(())
    })
}

unsafe extern "C" fn x_get_last_error<V: Vfs>(vfs: *mut ffi::sqlite3_vfs, _: c_int, _: *mut c_char) -> c_int {
    // SAFETY: see above.
    guarded_value(0, || unsafe { state::<V>(vfs).last_error() })
}

unsafe extern "C" fn x_close<F: VfsFile>(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: the slot holds a file; it is dropped once, and the null methods say that it is gone.
    guarded(|| unsafe {
        let closed = opened::<F>(file).close();
        (*file).pMethods = ptr::null();
        (*file.cast::<Slot<F>>()).file.assume_init_drop();
        closed
    })
}

unsafe extern "C" fn x_read<F: VfsFile>(
    file: *mut ffi::sqlite3_file,
    buffer: *mut c_void,
    length: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: see above.
    guarded(|| unsafe {
        let buffer = std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length as usize);
        let count = opened::<F>(file).read(buffer, unsigned(offset)?)?;
        if count < buffer.len() {
            buffer[count..].fill(0);
            return Err(Code(ffi::SQLITE_IOERR_SHORT_READ));
        }
        Ok(())
    })
}

unsafe extern "C" fn x_write<F: VfsFile>(
    file: *mut ffi::sqlite3_file,
    bytes: *const c_void,
    length: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: see above.
    guarded(|| unsafe {
        let bytes = std::slice::from_raw_parts(bytes.cast::<u8>(), length as usize);
        opened::<F>(file).write(bytes, unsigned(offset)?)
    })
}

unsafe extern "C" fn x_truncate<F: VfsFile>(file: *mut ffi::sqlite3_file, size: ffi::sqlite3_int64) -> c_int {
    // SAFETY: see above.
    guarded(|| unsafe { opened::<F>(file).truncate(unsigned(size)?) })
}

unsafe extern "C" fn x_sync<F: VfsFile>(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: see above.
    guarded(|| unsafe { opened::<F>(file).sync(flags) })
}

unsafe extern "C" fn x_file_size<F: VfsFile>(file: *mut ffi::sqlite3_file, out: *mut ffi::sqlite3_int64) -> c_int {
    // SAFETY: see above.
    guarded(|| unsafe {
        *out = opened::<F>(file).size()? as ffi::sqlite3_int64;
        Ok(())
    })
}

unsafe extern "C" fn x_lock<F: VfsFile>(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: see above.
    guarded(|| unsafe { opened::<F>(file).lock(level) })
}

unsafe extern "C" fn x_unlock<F: VfsFile>(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: see above.
    guarded(|| unsafe { opened::<F>(file).unlock(level) })
}

unsafe extern "C" fn x_check_reserved_lock<F: VfsFile>(file: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: see above.
    guarded(|| unsafe {
        *out = c_int::from(opened::<F>(file).check_reserved_lock()?);
        Ok(())
    })
}

unsafe extern "C" fn x_file_control<F: VfsFile>(
    file: *mut ffi::sqlite3_file,
    op: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: see above; SQLite vouches for the argument.
    guarded(|| unsafe { opened::<F>(file).file_control(op, argument) })
}

unsafe extern "C" fn x_sector_size<F: VfsFile>(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: see above.
    guarded_value(0, || unsafe { opened::<F>(file).sector_size() })
}

unsafe extern "C" fn x_device_characteristics<F: VfsFile>(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: see above.
    guarded_value(0, || unsafe { opened::<F>(file).device_characteristics() })
}

unsafe extern "C" fn x_shm_map<F: VfsFile>(
    file: *mut ffi::sqlite3_file,
    region: c_int,
    size: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    let missing = if extend == 0 { MissingRegion::LeaveAbsent } else { MissingRegion::Create };
    // SAFETY: see above.
    guarded(|| unsafe {
        *out = ptr::null_mut();
        *out = opened::<F>(file).shm_map(region, size, missing)?;
        Ok(())
    })
}

unsafe extern "C" fn x_shm_lock<F: VfsFile>(
    file: *mut ffi::sqlite3_file,
    offset: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: see above.
    guarded(|| unsafe { opened::<F>(file).shm_lock(offset, count, flags) })
}

unsafe extern "C" fn x_shm_barrier<F: VfsFile>(file: *mut ffi::sqlite3_file) {
    // SAFETY: see above.
    guarded_value((), || unsafe { opened::<F>(file).shm_barrier() });
}

unsafe extern "C" fn x_shm_unmap<F: VfsFile>(file: *mut ffi::sqlite3_file, delete: c_int) -> c_int {
    let end = if delete == 0 { ShmEnd::Keep } else { ShmEnd::Delete };
    // SAFETY: see above.
    guarded(|| unsafe { opened::<F>(file).shm_unmap(end) })
}
