//! Locks and shared memory among the connections of one process life.
//!
//! A process that dies takes both with it. Its handles may still be closed later, and SQLite may still look into
//! the memory that it has mapped, so each handle keeps that memory alive.

use isles_engine::sqlite::vfs::Code;
use rusqlite::ffi;
use std::cell::UnsafeCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HandleId(pub(super) u64);

const BUSY: Code = Code(ffi::SQLITE_BUSY);

/// The five lock levels of a database file; readers share, one prepares to write, one writes.
#[derive(Default)]
pub(super) struct FileLocks {
    levels: BTreeMap<HandleId, c_int>,
}

impl FileLocks {
    pub(super) fn lock(&mut self, handle: HandleId, level: c_int) -> Result<(), Code> {
        let own = self.levels.get(&handle).copied().unwrap_or(ffi::SQLITE_LOCK_NONE);
        let others = self.highest_of_others(handle);
        let (refused_from, wanted) = match level {
            _ if own >= level => return Ok(()),
            ffi::SQLITE_LOCK_SHARED => (ffi::SQLITE_LOCK_PENDING, level),
            ffi::SQLITE_LOCK_RESERVED => (ffi::SQLITE_LOCK_RESERVED, level),
            // A writer waits for readers to leave and lets no new one in.
            _ => (ffi::SQLITE_LOCK_RESERVED, ffi::SQLITE_LOCK_PENDING),
        };
        if others >= refused_from {
            return Err(BUSY);
        }
        self.levels.insert(handle, wanted);
        if level == ffi::SQLITE_LOCK_EXCLUSIVE {
            if others >= ffi::SQLITE_LOCK_SHARED {
                return Err(BUSY);
            }
            self.levels.insert(handle, level);
        }
        Ok(())
    }

    pub(super) fn unlock(&mut self, handle: HandleId, level: c_int) {
        let own = self.levels.get(&handle).copied().unwrap_or(ffi::SQLITE_LOCK_NONE);
        if level == ffi::SQLITE_LOCK_NONE {
            self.levels.remove(&handle);
        } else if own > level {
            self.levels.insert(handle, level);
        }
    }

    pub(super) fn is_reserved(&self) -> bool {
        self.levels.values().any(|level| *level >= ffi::SQLITE_LOCK_RESERVED)
    }

    fn highest_of_others(&self, handle: HandleId) -> c_int {
        let others = self.levels.iter().filter(|(holder, _)| **holder != handle);
        others.map(|(_, level)| *level).max().unwrap_or(ffi::SQLITE_LOCK_NONE)
    }
}

/// The eight locks of a log's index.
#[derive(Default)]
pub(super) struct ShmLocks {
    slots: [ShmSlot; ffi::SQLITE_SHM_NLOCK as usize],
}

#[derive(Default)]
struct ShmSlot {
    exclusive: Option<HandleId>,
    shared: BTreeSet<HandleId>,
}

impl ShmSlot {
    fn is_free_for(&self, handle: HandleId, flags: c_int) -> bool {
        let free_to_share = self.exclusive.is_none_or(|holder| holder == handle);
        let unshared = self.shared.iter().all(|holder| *holder == handle);
        free_to_share && (flags & ffi::SQLITE_SHM_SHARED != 0 || unshared)
    }

    fn take(&mut self, handle: HandleId, flags: c_int) {
        if flags & ffi::SQLITE_SHM_SHARED != 0 {
            self.shared.insert(handle);
        } else {
            self.exclusive = Some(handle);
        }
    }

    fn release(&mut self, handle: HandleId, flags: c_int) {
        if flags & ffi::SQLITE_SHM_SHARED != 0 {
            self.shared.remove(&handle);
        } else {
            self.exclusive = self.exclusive.filter(|holder| *holder != handle);
        }
    }
}

impl ShmLocks {
    pub(super) fn lock(&mut self, handle: HandleId, offset: c_int, count: c_int, flags: c_int) -> Result<(), Code> {
        let range = offset as usize..(offset + count) as usize;
        let slots = self.slots.get_mut(range).ok_or(Code(ffi::SQLITE_IOERR_SHMLOCK))?;
        if flags & ffi::SQLITE_SHM_UNLOCK != 0 {
            slots.iter_mut().for_each(|slot| slot.release(handle, flags));
            return Ok(());
        }
        if !slots.iter().all(|slot| slot.is_free_for(handle, flags)) {
            return Err(BUSY);
        }
        slots.iter_mut().for_each(|slot| slot.take(handle, flags));
        Ok(())
    }

    pub(super) fn release_all(&mut self, handle: HandleId) {
        for slot in &mut self.slots {
            slot.release(handle, ffi::SQLITE_SHM_SHARED);
            slot.release(handle, ffi::SQLITE_SHM_EXCLUSIVE);
        }
    }
}

/// The memory of a log's index. Regions are added, never moved.
#[derive(Default)]
pub(super) struct ShmMemory {
    regions: Mutex<Vec<Box<[UnsafeCell<u64>]>>>,
}

// SAFETY: the cells are never read or written from Rust. SQLite does, from several threads, ordered by its own locks
// and atomics as it does with memory shared between processes.
unsafe impl Send for ShmMemory {}
// SAFETY: as above.
unsafe impl Sync for ShmMemory {}

impl ShmMemory {
    /// The address of a region, if there is one.
    pub(super) fn find(&self, region: usize) -> Option<*mut c_void> {
        let regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        regions.get(region).map(|cells| cells.as_ptr().cast_mut().cast())
    }

    /// Adds regions of zeros until there are `count`.
    pub(super) fn grow(&self, count: usize, bytes: usize) {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        while regions.len() < count {
            regions.push((0..bytes.div_ceil(8)).map(|_| UnsafeCell::new(0)).collect());
        }
    }
}
