//! Thousands of shards, some of them open.
//!
//! An open shard costs memory and file handles; a closed one costs nothing and opens in a few milliseconds. The fleet
//! opens a shard when it is asked for and closes those that nobody has used for longest once more than its cap are
//! open. A shard that someone holds is never closed: the cap bends rather than fail a request.

use super::{SqliteOptions, SqliteShard};
use crate::env::Env;
use crate::error::{Result, ShardError};
use crate::shard::Shard;
use isles_kernel::names::ShardId;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The file of a shard within its folder.
const FILE: &str = "shard.db";

/// What a fleet has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetFigures {
    pub open_shards: usize,
    /// File handles of the whole process, where the system tells.
    pub open_files: usize,
}

/// The shards below one folder.
pub struct Fleet {
    folder: PathBuf,
    env: Arc<dyn Env>,
    options: SqliteOptions,
    /// Shards open at once, if nobody holds more.
    cap: usize,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    /// Counts uses; the shard with the lowest number was used longest ago.
    uses: u64,
    open: BTreeMap<ShardId, Slot>,
}

struct Slot {
    /// Locked while the shard is being opened or closed, so that its file is never open twice.
    shard: Arc<tokio::sync::Mutex<Option<SqliteShard>>>,
    last_used: u64,
}

impl Fleet {
    pub fn new(folder: PathBuf, env: Arc<dyn Env>, options: SqliteOptions, cap: usize) -> Fleet {
        Fleet { folder, env, options, cap, slots: Mutex::new(Slots::default()) }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a shard's file is.
    pub fn path(&self, id: &ShardId) -> PathBuf {
        self.folder.join(id.as_str()).join(FILE)
    }

    /// The shard, opened if it is not. A shard that has stopped is opened anew, which recovers it.
    pub async fn get(&self, id: &ShardId) -> Result<SqliteShard> {
        self.close_idle().await;
        let slot = self.slot(id);
        let mut held = slot.lock().await;
        if let Some(shard) = held.as_ref().filter(|shard| shard.shared.check_running().is_ok()) {
            return Ok(shard.clone());
        }
        if let Some(stopped) = held.take() {
            stopped.close().await?;
        }
        let path = self.path(id);
        make_folder(&path)?;
        let shard = SqliteShard::open(id.clone(), &path, self.env.clone(), self.options.clone()).await?;
        *held = Some(shard.clone());
        Ok(shard)
    }

    fn slot(&self, id: &ShardId) -> Arc<tokio::sync::Mutex<Option<SqliteShard>>> {
        let mut slots = self.slots();
        slots.uses += 1;
        let last_used = slots.uses;
        let slot = slots.open.entry(id.clone()).or_insert_with(|| Slot { shard: Arc::default(), last_used });
        slot.last_used = last_used;
        slot.shard.clone()
    }

    /// Closes the shards used longest ago, as long as too many are open.
    async fn close_idle(&self) {
        while let Some((id, slot)) = self.idlest() {
            // Whoever has it locked is opening it: then it is not idle.
            let Ok(mut held) = slot.try_lock() else { return };
            if held.as_ref().is_some_and(|shard| Arc::strong_count(&shard.shared) > 1) {
                return;
            }
            if let Some(shard) = held.take() {
                // Closing cannot fail in a way that matters here: the file is in order after any crash.
                let _ = shard.close().await;
            }
            drop(held);
            self.slots().open.retain(|known, slot| *known != id || Arc::strong_count(&slot.shard) > 2);
        }
    }

    /// A shard that may be closed, if too many are open: of those nobody holds, the one used longest ago.
    fn idlest(&self) -> Option<(ShardId, Arc<tokio::sync::Mutex<Option<SqliteShard>>>)> {
        let slots = self.slots();
        if slots.open.len() <= self.cap {
            return None;
        }
        let idle = |slot: &(&ShardId, &Slot)| match slot.1.shard.try_lock() {
            Ok(held) => held.as_ref().is_none_or(|shard| Arc::strong_count(&shard.shared) == 1),
            Err(_) => false,
        };
        let found = slots.open.iter().filter(|slot| idle(slot)).min_by_key(|(_, slot)| slot.last_used);
        found.map(|(id, slot)| (id.clone(), slot.shard.clone()))
    }

    pub fn figures(&self) -> FleetFigures {
        let open_files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        FleetFigures { open_shards: self.slots().open.len(), open_files }
    }

    /// Closes a shard, if it is open.
    pub async fn close_one(&self, id: &ShardId) -> Result<()> {
        let slot = self.slots().open.remove(id);
        match slot {
            Some(slot) => match slot.shard.lock().await.take() {
                Some(shard) => shard.close().await,
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Closes every shard.
    pub async fn close(&self) -> Result<()> {
        let all: Vec<_> = std::mem::take(&mut self.slots().open).into_values().collect();
        for slot in all {
            if let Some(shard) = slot.shard.lock().await.take() {
                shard.close().await?;
            }
        }
        Ok(())
    }
}

fn make_folder(file: &Path) -> Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let cannot = |error| ShardError::Unavailable(format!("cannot make folder {}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(cannot)
}
