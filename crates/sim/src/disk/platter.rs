//! What a file and a directory become when the power fails.
//!
//! Both are the same idea: an image that running programs see, an image that is on the platter, and the changes
//! between the two in the order they were made. A sync carries the changes over; a power cut carries over some of
//! them, whole or in part, and forgets the rest.

use super::Crash;
use crate::rng::Rng;
use std::collections::BTreeMap;

/// The unit that a disk writes whole or not at all.
pub(super) const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InodeId(pub(super) u64);

enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    Truncate { size: u64 },
}

/// The contents of a file.
#[derive(Default)]
pub(super) struct Inode {
    /// What programs read.
    current: Vec<u8>,
    /// What the platter holds.
    durable: Vec<u8>,
    /// What a sync would carry over, oldest first.
    unsynced: Vec<Change>,
    /// Open handles; a file that was deleted lives on until the last one is closed.
    pub(super) handles: u32,
}

impl Inode {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.current
    }

    pub(super) fn durable_bytes(&self) -> &[u8] {
        &self.durable
    }

    pub(super) fn size(&self) -> u64 {
        self.current.len() as u64
    }

    /// Reads what there is at `offset` and tells how much.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.current.len());
        let length = buffer.len().min(self.current.len() - start);
        buffer[..length].copy_from_slice(&self.current[start..start + length]);
        length
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        write_into(&mut self.current, bytes, offset);
        self.unsynced.push(Change::Write { offset, bytes: bytes.to_vec() });
    }

    pub(super) fn truncate(&mut self, size: u64) {
        self.current.resize(size as usize, 0);
        self.unsynced.push(Change::Truncate { size });
    }

    pub(super) fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            match change {
                Change::Write { offset, bytes } => write_into(&mut self.durable, &bytes, offset),
                Change::Truncate { size } => self.durable.resize(size as usize, 0),
            }
        }
    }

    /// A sync that fails. The kernel marks the pages clean all the same, so that programs still read them and no
    /// later sync will write them.
    pub(super) fn fail_sync(&mut self) {
        self.unsynced.clear();
    }

    /// The power fails: decides for each change whether it had reached the platter.
    pub(super) fn lose_power(&mut self, crash: Crash, rng: &mut Rng) {
        for change in std::mem::take(&mut self.unsynced) {
            match (fate(crash, rng), change) {
                (Fate::Lost, _) => {}
                (Fate::Torn, Change::Write { offset, bytes }) => self.tear(&bytes, offset, rng),
                (_, Change::Write { offset, bytes }) => write_into(&mut self.durable, &bytes, offset),
                (_, Change::Truncate { size }) => self.durable.resize(size as usize, 0),
            }
        }
        self.current.clone_from(&self.durable);
    }

    /// Writes a random half of the sectors that a write covers. Bytes outside the write stay as they are.
    fn tear(&mut self, bytes: &[u8], offset: u64, rng: &mut Rng) {
        let end = offset + bytes.len() as u64;
        let mut start = offset;
        while start < end {
            let stop = end.min((start / SECTOR_BYTES + 1) * SECTOR_BYTES);
            if rng.below(2) == 0 {
                let piece = &bytes[(start - offset) as usize..(stop - offset) as usize];
                write_into(&mut self.durable, piece, start);
            }
            start = stop;
        }
    }

    /// Changes the file behind everybody's back, on the platter and in memory.
    pub(super) fn replace(&mut self, bytes: Vec<u8>) {
        self.durable.clone_from(&bytes);
        self.current = bytes;
        self.unsynced.clear();
    }

    /// Flips bits of one byte; false if the file is shorter.
    pub(super) fn flip(&mut self, offset: usize, mask: u8) -> bool {
        if let Some(byte) = self.durable.get_mut(offset) {
            *byte ^= mask;
        }
        self.current.get_mut(offset).map(|byte| *byte ^= mask).is_some()
    }
}

fn write_into(image: &mut Vec<u8>, bytes: &[u8], offset: u64) {
    let (start, end) = (offset as usize, offset as usize + bytes.len());
    if image.len() < end {
        image.resize(end, 0);
    }
    image[start..end].copy_from_slice(bytes);
}

enum Fate {
    Kept,
    Lost,
    Torn,
}

/// What becomes of one unsynced change in a power cut.
fn fate(crash: Crash, rng: &mut Rng) -> Fate {
    match crash {
        Crash::Killed => Fate::Kept,
        Crash::AllLost => Fate::Lost,
        Crash::SomeLost if rng.below(2) == 0 => Fate::Lost,
        Crash::SomeLost => Fate::Kept,
        Crash::Torn => match rng.below(3) {
            0 => Fate::Lost,
            1 => Fate::Kept,
            _ => Fate::Torn,
        },
    }
}

enum Entry {
    Create { name: String, inode: InodeId },
    Delete { name: String },
}

/// The names of the files. All files are in one directory.
#[derive(Default)]
pub(super) struct Directory {
    current: BTreeMap<String, InodeId>,
    durable: BTreeMap<String, InodeId>,
    unsynced: Vec<Entry>,
}

impl Directory {
    pub(super) fn find(&self, name: &str) -> Option<InodeId> {
        self.current.get(name).copied()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = (&str, InodeId)> {
        self.current.iter().map(|(name, inode)| (name.as_str(), *inode))
    }

    pub(super) fn create(&mut self, name: &str, inode: InodeId) {
        self.current.insert(name.to_owned(), inode);
        self.unsynced.push(Entry::Create { name: name.to_owned(), inode });
    }

    pub(super) fn delete(&mut self, name: &str) -> Option<InodeId> {
        let inode = self.current.remove(name)?;
        self.unsynced.push(Entry::Delete { name: name.to_owned() });
        Some(inode)
    }

    pub(super) fn sync(&mut self) {
        self.unsynced.drain(..).for_each(|entry| entry.apply(&mut self.durable));
    }

    pub(super) fn lose_power(&mut self, crash: Crash, rng: &mut Rng) {
        for entry in std::mem::take(&mut self.unsynced) {
            // A name is much smaller than a sector: it is there or it is not.
            if matches!(fate(crash, rng), Fate::Kept) {
                entry.apply(&mut self.durable);
            }
        }
        self.current.clone_from(&self.durable);
    }

    /// Whether a name leads to the file, or would after some power cut.
    pub(super) fn refers_to(&self, inode: InodeId) -> bool {
        let unsynced = |entry: &Entry| matches!(entry, Entry::Create { inode: created, .. } if *created == inode);
        self.current.values().chain(self.durable.values()).any(|known| *known == inode)
            || self.unsynced.iter().any(unsynced)
    }
}

impl Entry {
    fn apply(self, names: &mut BTreeMap<String, InodeId>) {
        match self {
            Entry::Create { name, inode } => names.insert(name, inode),
            Entry::Delete { name } => names.remove(&name),
        };
    }
}
