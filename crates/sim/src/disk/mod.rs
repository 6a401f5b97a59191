//! A disk in memory that can lose power under a real SQLite.
//!
//! A [`Disk`] is registered with SQLite as a file system of its own. Each operation that reaches it (create, write,
//! truncate, sync, delete) has a number, so that a test can run a workload once, count, and then let the process die
//! at each number in turn:
//!
//!     crash_at(n) → operation n and all after it fail and have no effect → restart(crash) → a new process life
//!
//! What survives depends on the crash:
//!   * [`Crash::Killed`]    the process died, the system did not: all writes are seen, unsynced ones stay unsynced (F1)
//!   * [`Crash::AllLost`]   the power failed: what was not synced is gone (F2)
//!   * [`Crash::SomeLost`]  any subset of the unsynced writes, truncations, creations and deletions is gone (F2)
//!   * [`Crash::Torn`]      as before, and writes are cut at sectors of 512 bytes (F2)
//!
//! The model, which is meant to be no kinder than a real disk:
//!   * A sync makes the contents of one file durable, its size included. It does not make its name durable, except
//!     as the platform's file system does: the first sync of a log or journal opened with the right to create it
//!     also syncs the directory, and so does a deletion that asks for it.
//!   * Unsynced changes are lost independently of each other and of their order, names included.
//!   * A sector is old or new, never a mixture or noise; bytes that a write does not cover never change. So
//!     power-safe overwrite holds. By default it is not claimed, and SQLite pads its commits to whole sectors; see
//!     [`Disk::claim_powersafe_overwrite`] for what the production file system claims.
//!   * A sync that fails marks its data clean (I-5): programs go on reading it, no later sync writes it, and a
//!     power cut loses it. Not modelled: the kernel dropping that data while programs run.
//!   * Reads may fail (F3), and bytes may rot (F20), only where a test says so.
//!
//! Handles belong to a process life. After a restart the old ones answer every call with an error and touch nothing,
//! so that a test may drop dead connections whenever it likes.
//!
//! Everything drawn at random comes from the seed. SQLite draws the salts of its logs from a generator of its own,
//! one for the whole process; [`seed_sqlite`] makes those repeatable, too, in a process with one thread.

mod locks;
mod platter;

use crate::rng::Rng;
use isles_engine::sqlite::vfs::{
    self, Code, DirSync, Filename, MissingRegion, RegisterError, ShmEnd, Vfs, VfsFile, checksum,
};
use locks::{FileLocks, HandleId, ShmLocks, ShmMemory};
use platter::{Directory, Inode, InodeId, SECTOR_BYTES};
use rusqlite::ffi;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How a process life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    Killed,
    AllLost,
    SomeLost,
    Torn,
}

impl Crash {
    pub const ALL: [Crash; 4] = [Crash::Killed, Crash::AllLost, Crash::SomeLost, Crash::Torn];
}

/// How often a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    Once,
    Forever,
}

/// What is wrong with some files and not with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// They cannot be reached: the device is away.
    Away,
    /// They cannot grow: the device is full.
    Full,
}

/// How many operations of each kind there have been since the disk was new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Creations, writes, truncations, syncs and deletions: what [`Disk::crash_at`] counts.
    pub operations: u64,
    /// Writes and truncations.
    pub writes: u64,
    pub syncs: u64,
    pub reads: u64,
}

/// Seeds SQLite's own generator, which is shared by the whole process.
pub fn seed_sqlite(seed: u32) {
    let no_connection = std::ptr::null_mut::<ffi::sqlite3>();
    // SAFETY: the opcode takes an int, which must not be zero, and a connection or null.
    unsafe { ffi::sqlite3_test_control(ffi::SQLITE_TESTCTRL_PRNG_SEED, (seed | 1) as c_int, no_connection) };
}

/// Numbers the disks of a process, because SQLite tells file systems apart by name.
static NEXT_DISK: AtomicU64 = AtomicU64::new(1);

/// A simulated disk, and the file system that SQLite reaches it by.
///
/// SQLite never learns that a file system is gone, so each disk leaks a few hundred bytes. Many histories should
/// share one and [`Disk::reset`] it.
pub struct Disk {
    name: String,
    state: Arc<Mutex<State>>,
}

impl Disk {
    pub fn new(seed: u64) -> Result<Disk, RegisterError> {
        let name = format!("disk-{}", NEXT_DISK.fetch_add(1, Ordering::Relaxed));
        let state = Arc::new(Mutex::new(State::new(seed, 1)));
        vfs::register(&name, DiskVfs { state: Arc::clone(&state) })?;
        Ok(Disk { name, state })
    }

    /// The name of the bare file system.
    pub fn vfs_name(&self) -> &str {
        &self.name
    }

    /// The name of the production file system over this disk.
    pub fn checksum_vfs_name(&self) -> Result<String, RegisterError> {
        checksum::register(Some(&self.name))
    }

    /// Makes the disk new and empty. Handles of the past are dead.
    pub fn reset(&self, seed: u64) {
        let mut state = self.state();
        *state = State::new(seed, state.life + 1);
    }

    /// Says to SQLite that a write never harms the bytes beside it, as the production file system does.
    pub fn claim_powersafe_overwrite(&self) {
        self.state().characteristics = ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE;
    }

    pub fn counts(&self) -> Counts {
        self.state().counts
    }

    /// The process dies at operation number `operation`, which has no effect.
    pub fn crash_at(&self, operation: u64) {
        self.state().faults.crash_at = Some(operation);
    }

    /// The process dies now.
    pub fn crash(&self) {
        self.state().is_dead = true;
    }

    /// Whether the process has died and not been restarted.
    pub fn is_dead(&self) -> bool {
        self.state().is_dead
    }

    /// Ends this process life, dead or not, and begins the next one. Faults other than the crash stay.
    pub fn restart(&self, crash: Crash) {
        self.state().restart(crash);
    }

    /// Sync number `sync` fails, and with it every later one if that is for ever.
    pub fn fail_sync_at(&self, sync: u64, times: Times) {
        self.state().faults.sync = Some(Fault { at: sync, times });
    }

    /// Write number `write` fails and has no effect.
    pub fn fail_write_at(&self, write: u64, times: Times) {
        self.state().faults.write = Some(Fault { at: write, times });
    }

    /// Read number `read` fails.
    pub fn fail_read_at(&self, read: u64, times: Times) {
        self.state().faults.read = Some(Fault { at: read, times });
    }

    /// From this operation on the disk is full: a write that makes a file larger fails.
    pub fn full_at(&self, operation: u64) {
        self.state().faults.full_at = Some(operation);
    }

    /// Limits the bytes of all files together.
    pub fn set_quota(&self, bytes: Option<u64>) {
        self.state().faults.quota_bytes = bytes;
    }

    /// From now on files whose path contains `part` are in trouble, and the others are not; until it is ended.
    pub fn trouble(&self, part: &str, trouble: Trouble) {
        self.state().faults.trouble = Some((part.to_owned(), trouble));
    }

    pub fn end_trouble(&self) {
        self.state().faults.trouble = None;
    }

    /// Removes every fault that is waiting to strike.
    pub fn heal(&self) {
        self.state().faults = Faults::default();
    }

    /// One bit of a byte rots, on the platter and in memory. False if there is no such byte.
    pub fn flip_byte(&self, file: &str, offset: usize) -> bool {
        let mut state = self.state();
        let mask = 1 << state.rng.below(8);
        state.named(file).is_some_and(|inode| inode.flip(offset, mask))
    }

    /// What programs see in a file.
    pub fn read_file(&self, file: &str) -> Option<Vec<u8>> {
        self.state().named(file).map(|inode| inode.bytes().to_vec())
    }

    /// What would be left of a file if all that is unsynced were lost; its name is taken for durable.
    pub fn read_durable(&self, file: &str) -> Option<Vec<u8>> {
        self.state().named(file).map(|inode| inode.durable_bytes().to_vec())
    }

    /// Puts a file in place, durable and with its name.
    pub fn replace_file(&self, file: &str, bytes: Vec<u8>) {
        let mut state = self.state();
        let id = match state.directory.find(file) {
            Some(id) => id,
            None => state.create(Some(file)),
        };
        state.directory.sync();
        if let Some(inode) = state.inodes.get_mut(&id) {
            inode.replace(bytes);
        }
    }

    /// All files with their contents, in the order of their names.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let state = self.state();
        let contents = |id| state.inodes.get(&id).map(|inode: &Inode| inode.bytes().to_vec()).unwrap_or_default();
        state.directory.names().map(|(name, id)| (name.to_owned(), contents(id))).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        checksum::unregister(&self.name);
        vfs::unregister(&self.name);
        // The registration is leaked and keeps the state; its bytes are given back.
        self.reset(0);
        self.crash();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy)]
struct Fault {
    at: u64,
    times: Times,
}

impl Fault {
    fn strikes(fault: Option<Fault>, number: u64) -> bool {
        fault.is_some_and(|fault| match fault.times {
            Times::Once => number == fault.at,
            Times::Forever => number >= fault.at,
        })
    }
}

/// The faults that are waiting to strike.
#[derive(Default)]
struct Faults {
    crash_at: Option<u64>,
    sync: Option<Fault>,
    write: Option<Fault>,
    read: Option<Fault>,
    full_at: Option<u64>,
    quota_bytes: Option<u64>,
    trouble: Option<(String, Trouble)>,
}

impl Faults {
    fn has(&self, trouble: Trouble, name: Option<&str>) -> bool {
        let (Some((part, which)), Some(name)) = (&self.trouble, name) else { return false };
        *which == trouble && name.contains(part.as_str())
    }
}

const DEAD: Code = Code(ffi::SQLITE_IOERR);

/// The disk itself.
struct State {
    rng: Rng,
    /// The number of the process life. A handle of another life is dead.
    life: u64,
    is_dead: bool,
    counts: Counts,
    faults: Faults,
    directory: Directory,
    inodes: BTreeMap<InodeId, Inode>,
    next_inode: u64,
    next_handle: u64,
    file_locks: BTreeMap<InodeId, FileLocks>,
    shm_locks: BTreeMap<InodeId, ShmLocks>,
    shm: BTreeMap<InodeId, Arc<ShmMemory>>,
    characteristics: c_int,
    /// Time passes only when somebody sleeps.
    slept: Duration,
}

impl State {
    fn new(seed: u64, life: u64) -> State {
        State {
            rng: Rng::new(seed).fork("disk"),
            life,
            is_dead: false,
            counts: Counts::default(),
            faults: Faults::default(),
            directory: Directory::default(),
            inodes: BTreeMap::new(),
            next_inode: 1,
            next_handle: 1,
            file_locks: BTreeMap::new(),
            shm_locks: BTreeMap::new(),
            shm: BTreeMap::new(),
            characteristics: 0,
            slept: Duration::ZERO,
        }
    }

    fn restart(&mut self, crash: Crash) {
        self.life += 1;
        self.is_dead = false;
        self.faults.crash_at = None;
        self.file_locks.clear();
        self.shm_locks.clear();
        self.shm.clear();
        self.inodes.values_mut().for_each(|inode| inode.handles = 0);
        if crash != Crash::Killed {
            self.directory.lose_power(crash, &mut self.rng);
            self.inodes.values_mut().for_each(|inode| inode.lose_power(crash, &mut self.rng));
        }
        self.forget_unreachable();
    }

    fn named(&mut self, name: &str) -> Option<&mut Inode> {
        let id = self.directory.find(name)?;
        self.inodes.get_mut(&id)
    }

    fn create(&mut self, name: Option<&str>) -> InodeId {
        let id = InodeId(self.next_inode);
        self.next_inode += 1;
        self.inodes.insert(id, Inode::default());
        if let Some(name) = name {
            self.directory.create(name, id);
        }
        id
    }

    fn forget_unreachable(&mut self) {
        let directory = &self.directory;
        self.inodes.retain(|id, inode| inode.handles > 0 || directory.refers_to(*id));
    }

    /// Refuses the dead.
    fn alive(&self, life: u64) -> Result<(), Code> {
        if self.is_dead || self.life != life { Err(DEAD) } else { Ok(()) }
    }

    /// Counts an operation; the process may die of it.
    fn operate(&mut self, life: u64) -> Result<(), Code> {
        self.alive(life)?;
        self.counts.operations += 1;
        self.is_dead = self.faults.crash_at.is_some_and(|at| self.counts.operations >= at);
        self.alive(life)
    }

    /// Counts a write that would make a file `growth` bytes larger.
    fn operate_write(&mut self, life: u64, growth: u64) -> Result<(), Code> {
        self.operate(life)?;
        self.counts.writes += 1;
        if Fault::strikes(self.faults.write, self.counts.writes) {
            return Err(Code(ffi::SQLITE_IOERR_WRITE));
        }
        if growth > 0 && self.is_full(growth) {
            return Err(Code(ffi::SQLITE_FULL));
        }
        Ok(())
    }

    fn is_full(&self, growth: u64) -> bool {
        let used = || self.inodes.values().map(Inode::size).sum::<u64>();
        self.faults.full_at.is_some_and(|at| self.counts.operations >= at)
            || self.faults.quota_bytes.is_some_and(|quota| used() + growth > quota)
    }
}

struct DiskVfs {
    state: Arc<Mutex<State>>,
}

/// Files whose first sync also syncs the directory.
const LOGS: c_int = ffi::SQLITE_OPEN_WAL | ffi::SQLITE_OPEN_MAIN_JOURNAL | ffi::SQLITE_OPEN_SUPER_JOURNAL;

impl Vfs for DiskVfs {
    type File = DiskFile;

    fn open(&self, name: Filename<'_>, flags: c_int) -> Result<(DiskFile, c_int), Code> {
        let name = name.name().map(|name| name.to_string_lossy().into_owned());
        let may_create = flags & ffi::SQLITE_OPEN_CREATE != 0;
        let mut state = lock(&self.state);
        let life = state.life;
        state.alive(life)?;
        if state.faults.has(Trouble::Away, name.as_deref()) {
            return Err(Code(ffi::SQLITE_CANTOPEN));
        }
        let found = name.as_deref().and_then(|name| state.directory.find(name));
        let inode = match found {
            Some(_) if may_create && flags & ffi::SQLITE_OPEN_EXCLUSIVE != 0 => return Err(Code(ffi::SQLITE_CANTOPEN)),
            Some(inode) => inode,
            None if !may_create && name.is_some() => return Err(Code(ffi::SQLITE_CANTOPEN)),
            None => {
                state.operate(life)?;
                state.create(name.as_deref())
            }
        };
        if let Some(inode) = state.inodes.get_mut(&inode) {
            inode.handles += 1;
        }
        let id = HandleId(state.next_handle);
        state.next_handle += 1;
        let file = DiskFile {
            state: Arc::clone(&self.state),
            life,
            id,
            inode,
            syncs_directory: may_create && flags & LOGS != 0,
            deleted_on_close: name.clone().filter(|_| flags & ffi::SQLITE_OPEN_DELETEONCLOSE != 0),
            name,
            shm: None,
        };
        Ok((file, flags))
    }

    fn delete(&self, name: &CStr, dir_sync: DirSync) -> Result<(), Code> {
        let mut state = lock(&self.state);
        let life = state.life;
        state.operate(life)?;
        state.directory.delete(&name.to_string_lossy()).ok_or(Code(ffi::SQLITE_IOERR_DELETE_NOENT))?;
        if dir_sync == DirSync::Now {
            state.directory.sync();
        }
        state.forget_unreachable();
        Ok(())
    }

    /// A file without bytes does not exist in answer to the question whether it does; the platform's file system
    /// says so, too.
    fn access(&self, name: &CStr, flags: c_int) -> Result<bool, Code> {
        let mut state = lock(&self.state);
        state.alive(state.life)?;
        let size = state.named(&name.to_string_lossy()).map(|inode| inode.size());
        Ok(size.is_some_and(|size| size > 0 || flags != ffi::SQLITE_ACCESS_EXISTS))
    }

    fn randomness(&self, out: &mut [u8]) -> usize {
        let mut state = lock(&self.state);
        out.fill_with(|| state.rng.bits() as u8);
        out.len()
    }

    /// Time is virtual: a connection that waits for a lock gives its turn to other threads and comes back at once.
    fn sleep(&self, duration: Duration) -> Duration {
        lock(&self.state).slept += duration;
        std::thread::yield_now();
        duration
    }

    fn julian_ms(&self) -> Result<i64, Code> {
        /// The first moment of 2026.
        const BEGIN_JULIAN_MS: i64 = 212_633_985_600_000;
        Ok(BEGIN_JULIAN_MS + lock(&self.state).slept.as_millis() as i64)
    }
}

/// An open file of a process life.
struct DiskFile {
    state: Arc<Mutex<State>>,
    life: u64,
    id: HandleId,
    inode: InodeId,
    name: Option<String>,
    /// Whether the next sync also syncs the directory.
    syncs_directory: bool,
    deleted_on_close: Option<String>,
    /// Kept until the handle is closed, because SQLite holds addresses in it.
    shm: Option<Arc<ShmMemory>>,
}

impl DiskFile {
    fn alive(&self) -> Result<MutexGuard<'_, State>, Code> {
        let state = lock(&self.state);
        state.alive(self.life)?;
        match state.faults.has(Trouble::Away, self.name.as_deref()) {
            true => Err(DEAD),
            false => Ok(state),
        }
    }

    /// Counts a write that makes the file end at `end`.
    fn operate_write(&self, state: &mut State, end: u64) -> Result<(), Code> {
        let growth = end.saturating_sub(contents(state, self.inode)?.size());
        state.operate_write(self.life, growth)?;
        match growth > 0 && state.faults.has(Trouble::Full, self.name.as_deref()) {
            true => Err(Code(ffi::SQLITE_FULL)),
            false => Ok(()),
        }
    }

    /// Gives back locks and memory that are shared with other handles.
    fn leave_shm(&mut self, state: &mut State, end: ShmEnd) {
        if let Some(locks) = state.shm_locks.get_mut(&self.inode) {
            locks.release_all(self.id);
        }
        let was_attached = self.shm.take().is_some();
        // One reference is the disk's own: with the last handle the memory goes, as the platform's file system
        // clears it for the next one.
        let is_last = state.shm.get(&self.inode).is_some_and(|memory| Arc::strong_count(memory) == 1);
        if was_attached && (is_last || end == ShmEnd::Delete) {
            state.shm.remove(&self.inode);
        }
    }
}

/// A file that is open has contents; were it otherwise, the answer is an error and not a panic.
fn contents(state: &mut State, id: InodeId) -> Result<&mut Inode, Code> {
    state.inodes.get_mut(&id).ok_or(DEAD)
}

impl VfsFile for DiskFile {
    fn read(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize, Code> {
        let mut state = self.alive()?;
        state.counts.reads += 1;
        if Fault::strikes(state.faults.read, state.counts.reads) {
            return Err(Code(ffi::SQLITE_IOERR_READ));
        }
        Ok(contents(&mut state, self.inode)?.read(buffer, offset))
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<(), Code> {
        let mut state = self.alive()?;
        self.operate_write(&mut state, offset + bytes.len() as u64)?;
        contents(&mut state, self.inode)?.write(bytes, offset);
        Ok(())
    }

    fn truncate(&mut self, size: u64) -> Result<(), Code> {
        let mut state = self.alive()?;
        self.operate_write(&mut state, size)?;
        contents(&mut state, self.inode)?.truncate(size);
        Ok(())
    }

    fn sync(&mut self, _flags: c_int) -> Result<(), Code> {
        let mut state = self.alive()?;
        state.operate(self.life)?;
        state.counts.syncs += 1;
        if Fault::strikes(state.faults.sync, state.counts.syncs) {
            contents(&mut state, self.inode)?.fail_sync();
            return Err(Code(ffi::SQLITE_IOERR_FSYNC));
        }
        contents(&mut state, self.inode)?.sync();
        if self.syncs_directory {
            state.directory.sync();
            drop(state);
            self.syncs_directory = false;
        }
        Ok(())
    }

    fn size(&mut self) -> Result<u64, Code> {
        let mut state = self.alive()?;
        Ok(contents(&mut state, self.inode)?.size())
    }

    fn close(&mut self) -> Result<(), Code> {
        let shared = Arc::clone(&self.state);
        let mut state = lock(&shared);
        if state.alive(self.life).is_err() {
            return Ok(());
        }
        self.leave_shm(&mut state, ShmEnd::Keep);
        state.file_locks.entry(self.inode).or_default().unlock(self.id, ffi::SQLITE_LOCK_NONE);
        contents(&mut state, self.inode)?.handles -= 1;
        if let Some(name) = self.deleted_on_close.take() {
            state.directory.delete(&name);
        }
        state.forget_unreachable();
        Ok(())
    }

    fn lock(&mut self, level: c_int) -> Result<(), Code> {
        let mut state = self.alive()?;
        state.file_locks.entry(self.inode).or_default().lock(self.id, level)
    }

    fn unlock(&mut self, level: c_int) -> Result<(), Code> {
        // The dead have no locks, and giving up a lock must not fail.
        let Ok(mut state) = self.alive() else { return Ok(()) };
        state.file_locks.entry(self.inode).or_default().unlock(self.id, level);
        Ok(())
    }

    fn check_reserved_lock(&mut self) -> Result<bool, Code> {
        let state = self.alive()?;
        Ok(state.file_locks.get(&self.inode).is_some_and(FileLocks::is_reserved))
    }

    fn sector_size(&mut self) -> c_int {
        SECTOR_BYTES as c_int
    }

    fn device_characteristics(&mut self) -> c_int {
        lock(&self.state).characteristics
    }

    fn shm_map(&mut self, region: c_int, size: c_int, missing: MissingRegion) -> Result<*mut c_void, Code> {
        let mut state = self.alive()?;
        let memory = Arc::clone(state.shm.entry(self.inode).or_default());
        drop(state);
        let (region, bytes) = (region as usize, size as usize);
        if missing == MissingRegion::Create {
            memory.grow(region + 1, bytes);
        }
        let address = memory.find(region).unwrap_or(std::ptr::null_mut());
        self.shm = Some(memory);
        Ok(address)
    }

    fn shm_lock(&mut self, offset: c_int, count: c_int, flags: c_int) -> Result<(), Code> {
        let alive = self.alive();
        if alive.is_err() && flags & ffi::SQLITE_SHM_UNLOCK != 0 {
            return Ok(());
        }
        alive?.shm_locks.entry(self.inode).or_default().lock(self.id, offset, count, flags)
    }

    fn shm_barrier(&mut self) {
        fence(Ordering::SeqCst);
    }

    fn shm_unmap(&mut self, end: ShmEnd) -> Result<(), Code> {
        let shared = Arc::clone(&self.state);
        let mut state = lock(&shared);
        if state.alive(self.life).is_ok() {
            self.leave_shm(&mut state, end);
        }
        Ok(())
    }
}
