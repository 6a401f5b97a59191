//! A file system that SQLite already has, called from Rust.
//!
//! [`BaseVfs`] and [`BaseFile`] are the other half of the traits above: there SQLite calls us, here we call what
//! SQLite would have called. A file system that wraps another forwards to them, and code that must see a file as
//! SQLite sees it (on a real disk or on a simulated one) opens it through them.

use super::{Code, DirSync, Filename, MissingRegion, RegisterError, ShmEnd};
use rusqlite::ffi;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::time::Duration;

/// A registered file system.
#[derive(Clone, Copy)]
pub struct BaseVfs {
    raw: *mut ffi::sqlite3_vfs,
}

// SAFETY: a file system's functions may be called from any thread, and a registered table is never freed: the
// platform's is static, ours are leaked.
unsafe impl Send for BaseVfs {}
// SAFETY: as above.
unsafe impl Sync for BaseVfs {}

impl BaseVfs {
    /// Finds a file system by name; without one, the platform's default.
    pub fn find(name: Option<&str>) -> Result<BaseVfs, RegisterError> {
        let c_name = name.map(CString::new).transpose().map_err(|_| RegisterError::BadName)?;
        let pointer = c_name.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        // SAFETY: find takes null or a terminated string; initialize may be called any number of times, and
        // without it the list of file systems is empty.
        let raw = unsafe {
            ffi::sqlite3_initialize();
            ffi::sqlite3_vfs_find(pointer)
        };
        if raw.is_null() {
            return Err(RegisterError::NoBase(name.unwrap_or("default").to_owned()));
        }
        Ok(BaseVfs { raw })
    }

    /// The name under which it is registered.
    pub fn name(&self) -> String {
        // SAFETY: a registered table has a terminated name that lives as long as the table.
        unsafe { CStr::from_ptr(self.table().zName) }.to_string_lossy().into_owned()
    }

    pub fn max_pathname(&self) -> usize {
        self.table().mxPathname as usize
    }

    /// Opens a file and tells the flags in effect.
    pub fn open(&self, name: Filename<'_>, flags: c_int) -> Result<(BaseFile, c_int), Code> {
        let words = (self.table().szOsFile as usize).div_ceil(size_of::<u64>());
        let mut file = BaseFile { memory: vec![0_u64; words].into_boxed_slice() };
        let open = self.table().xOpen.ok_or(Code(ffi::SQLITE_CANTOPEN))?;
        let mut effective = flags;
        // SAFETY: the memory is zeroed, aligned and of the size that the table asks for.
        let rc = unsafe { open(self.raw, name.as_ptr(), file.raw(), flags, &mut effective) };
        // A failed open may still leave methods behind, and then wants to be closed: Drop sees to it.
        Code::check(rc).map(|()| (file, effective))
    }

    pub fn delete(&self, name: &CStr, dir_sync: DirSync) -> Result<(), Code> {
        let delete = self.table().xDelete.ok_or(Code(ffi::SQLITE_IOERR_DELETE))?;
        // SAFETY: a terminated name, as the function wants it.
        Code::check(unsafe { delete(self.raw, name.as_ptr(), c_int::from(dir_sync == DirSync::Now)) })
    }

    pub fn access(&self, name: &CStr, flags: c_int) -> Result<bool, Code> {
        let access = self.table().xAccess.ok_or(Code(ffi::SQLITE_IOERR_ACCESS))?;
        let mut answer = 0;
        // SAFETY: a terminated name and a place for the answer.
        Code::check(unsafe { access(self.raw, name.as_ptr(), flags, &mut answer) })?;
        Ok(answer != 0)
    }

    pub fn full_pathname(&self, name: &CStr, out: &mut [u8]) -> Result<(), Code> {
        let full_pathname = self.table().xFullPathname.ok_or(Code(ffi::SQLITE_CANTOPEN))?;
        // SAFETY: the buffer has the length that is passed with it. A shortened path is only a warning.
        let rc = unsafe { full_pathname(self.raw, name.as_ptr(), out.len() as c_int, out.as_mut_ptr().cast()) };
        Code::check(rc)
    }

    pub fn randomness(&self, out: &mut [u8]) -> usize {
        let Some(randomness) = self.table().xRandomness else { return 0 };
        // SAFETY: the buffer has the length that is passed with it.
        unsafe { randomness(self.raw, out.len() as c_int, out.as_mut_ptr().cast()) as usize }
    }

    pub fn sleep(&self, duration: Duration) -> Duration {
        let Some(sleep) = self.table().xSleep else { return Duration::ZERO };
        // SAFETY: the function takes any number.
        let slept = unsafe { sleep(self.raw, c_int::try_from(duration.as_micros()).unwrap_or(c_int::MAX)) };
        Duration::from_micros(slept.max(0) as u64)
    }

    pub fn julian_ms(&self) -> Result<i64, Code> {
        let table = self.table();
        if let (2.., Some(now)) = (table.iVersion, table.xCurrentTimeInt64) {
            let mut ms = 0;
            // SAFETY: a place for the answer.
            Code::check(unsafe { now(self.raw, &mut ms) })?;
            return Ok(ms);
        }
        let now = table.xCurrentTime.ok_or(Code(ffi::SQLITE_ERROR))?;
        let mut days = 0.0;
        // SAFETY: as above.
        Code::check(unsafe { now(self.raw, &mut days) })?;
        Ok((days * 86_400_000.0) as i64)
    }

    pub fn last_error(&self) -> c_int {
        let Some(last_error) = self.table().xGetLastError else { return 0 };
        let mut unused: c_char = 0;
        // SAFETY: a buffer of no length is never written.
        unsafe { last_error(self.raw, 0, &mut unused) }
    }

    fn table(&self) -> &ffi::sqlite3_vfs {
        // SAFETY: see Send: tables are never freed. SQLite changes only `pNext`, which is not read here.
        unsafe { &*self.raw }
    }
}

/// An open file of a [`BaseVfs`]. It is closed when dropped.
pub struct BaseFile {
    /// A `sqlite3_file` of the base's own shape. Its address is given to the base, so it lives on the heap.
    memory: Box<[u64]>,
}

impl BaseFile {
    /// Reads the whole buffer. At the end of the file the rest is zero and the code is `SQLITE_IOERR_SHORT_READ`.
    pub fn read(&mut self, buffer: &mut [u8], offset: u64) -> Result<(), Code> {
        let read = self.methods()?.xRead.ok_or(Code(ffi::SQLITE_IOERR_READ))?;
        // SAFETY: an open file and a buffer of that length.
        Code::check(unsafe { read(self.raw(), buffer.as_mut_ptr().cast(), buffer.len() as c_int, offset as i64) })
    }

    pub fn write(&mut self, bytes: &[u8], offset: u64) -> Result<(), Code> {
        let write = self.methods()?.xWrite.ok_or(Code(ffi::SQLITE_IOERR_WRITE))?;
        // SAFETY: an open file and a buffer of that length.
        Code::check(unsafe { write(self.raw(), bytes.as_ptr().cast(), bytes.len() as c_int, offset as i64) })
    }

    pub fn truncate(&mut self, size: u64) -> Result<(), Code> {
        let truncate = self.methods()?.xTruncate.ok_or(Code(ffi::SQLITE_IOERR_TRUNCATE))?;
        // SAFETY: an open file.
        Code::check(unsafe { truncate(self.raw(), size as i64) })
    }

    pub fn sync(&mut self, flags: c_int) -> Result<(), Code> {
        let sync = self.methods()?.xSync.ok_or(Code(ffi::SQLITE_IOERR_FSYNC))?;
        // SAFETY: an open file.
        Code::check(unsafe { sync(self.raw(), flags) })
    }

    pub fn size(&mut self) -> Result<u64, Code> {
        let file_size = self.methods()?.xFileSize.ok_or(Code(ffi::SQLITE_IOERR_FSTAT))?;
        let mut size = 0;
        // SAFETY: an open file and a place for the answer.
        Code::check(unsafe { file_size(self.raw(), &mut size) })?;
        Ok(size as u64)
    }

    /// Closes the file now, to learn whether that worked.
    pub fn close(&mut self) -> Result<(), Code> {
        let Ok(methods) = self.methods() else { return Ok(()) };
        let close = methods.xClose.ok_or(Code(ffi::SQLITE_IOERR_CLOSE))?;
        // SAFETY: an open file; without methods it counts as closed from here on.
        unsafe {
            let rc = close(self.raw());
            (*self.raw()).pMethods = ptr::null();
            Code::check(rc)
        }
    }

    pub fn lock(&mut self, level: c_int) -> Result<(), Code> {
        let lock = self.methods()?.xLock.ok_or(Code(ffi::SQLITE_IOERR_LOCK))?;
        // SAFETY: an open file.
        Code::check(unsafe { lock(self.raw(), level) })
    }

    pub fn unlock(&mut self, level: c_int) -> Result<(), Code> {
        let unlock = self.methods()?.xUnlock.ok_or(Code(ffi::SQLITE_IOERR_UNLOCK))?;
        // SAFETY: an open file.
        Code::check(unsafe { unlock(self.raw(), level) })
    }

    pub fn check_reserved_lock(&mut self) -> Result<bool, Code> {
        let check = self.methods()?.xCheckReservedLock.ok_or(Code(ffi::SQLITE_IOERR_CHECKRESERVEDLOCK))?;
        let mut answer = 0;
        // SAFETY: an open file and a place for the answer.
        Code::check(unsafe { check(self.raw(), &mut answer) })?;
        Ok(answer != 0)
    }

    /// # Safety
    /// `argument` is what SQLite documents for the opcode `op`.
    pub unsafe fn file_control(&mut self, op: c_int, argument: *mut c_void) -> Result<(), Code> {
        let file_control = self.methods()?.xFileControl.ok_or(Code(ffi::SQLITE_NOTFOUND))?;
        // SAFETY: an open file; the caller vouches for the argument.
        Code::check(unsafe { file_control(self.raw(), op, argument) })
    }

    pub fn sector_size(&mut self) -> c_int {
        let Some(sector_size) = self.methods().ok().and_then(|methods| methods.xSectorSize) else { return 0 };
        // SAFETY: an open file.
        unsafe { sector_size(self.raw()) }
    }

    pub fn device_characteristics(&mut self) -> c_int {
        let methods = self.methods().ok();
        let Some(characteristics) = methods.and_then(|methods| methods.xDeviceCharacteristics) else { return 0 };
        // SAFETY: an open file.
        unsafe { characteristics(self.raw()) }
    }

    pub fn shm_map(&mut self, region: c_int, size: c_int, missing: MissingRegion) -> Result<*mut c_void, Code> {
        let map = self.shm_methods()?.xShmMap.ok_or(Code(ffi::SQLITE_IOERR_SHMMAP))?;
        let mut address = ptr::null_mut();
        let extend = c_int::from(missing == MissingRegion::Create);
        // SAFETY: an open file and a place for the answer.
        Code::check(unsafe { map(self.raw(), region, size, extend, &mut address) })?;
        Ok(address)
    }

    pub fn shm_lock(&mut self, offset: c_int, count: c_int, flags: c_int) -> Result<(), Code> {
        let lock = self.shm_methods()?.xShmLock.ok_or(Code(ffi::SQLITE_IOERR_SHMLOCK))?;
        // SAFETY: an open file.
        Code::check(unsafe { lock(self.raw(), offset, count, flags) })
    }

    pub fn shm_barrier(&mut self) {
        let Some(barrier) = self.shm_methods().ok().and_then(|methods| methods.xShmBarrier) else { return };
        // SAFETY: an open file.
        unsafe { barrier(self.raw()) }
    }

    pub fn shm_unmap(&mut self, end: ShmEnd) -> Result<(), Code> {
        let unmap = self.shm_methods()?.xShmUnmap.ok_or(Code(ffi::SQLITE_IOERR_SHMMAP))?;
        // SAFETY: an open file.
        Code::check(unsafe { unmap(self.raw(), c_int::from(end == ShmEnd::Delete)) })
    }

    fn raw(&mut self) -> *mut ffi::sqlite3_file {
        self.memory.as_mut_ptr().cast()
    }

    fn methods(&mut self) -> Result<&'static ffi::sqlite3_io_methods, Code> {
        // SAFETY: the memory is zeroed at first, so that the pointer is null or was set by the base, whose method
        // tables are static.
        unsafe { (*self.raw()).pMethods.as_ref() }.ok_or(Code(ffi::SQLITE_IOERR))
    }

    /// Tables of version 1 end before the methods for shared memory.
    fn shm_methods(&mut self) -> Result<&'static ffi::sqlite3_io_methods, Code> {
        let methods = self.methods()?;
        if methods.iVersion >= 2 { Ok(methods) } else { Err(Code(ffi::SQLITE_IOERR_SHMMAP)) }
    }
}

impl Drop for BaseFile {
    fn drop(&mut self) {
        let _ = self.close();
    }
}
