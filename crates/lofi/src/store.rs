//! What a replica keeps, and whoever keeps it.
//!
//! A store knows nothing of the protocol: it has rows by generation and key, and records by name. All that a step of the
//! replica changes is one [`Store::commit`], and it is there whole or not at all after a crash: rows and the cursor
//! that belongs to them are never apart.

use crate::row::Row;
use isles_kernel::sync::RowKey;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Which copy of the rows. A resync fills a new one while the old one is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// One change of what is kept.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    PutRow(Generation, RowKey, Row),
    DeleteRow(Generation, RowKey),
    DropGeneration(Generation),
    Put(String, serde_json::Value),
    Delete(String),
}

/// All that a store has.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Kept {
    pub rows: BTreeMap<Generation, BTreeMap<RowKey, Row>>,
    pub records: BTreeMap<String, serde_json::Value>,
}

/// The store failed. What it has is what its last successful commit left; a replica that ran ahead is opened again.
#[derive(Debug, thiserror::Error)]
#[error("the local store failed: {0}")]
pub struct StoreError(String);

impl StoreError {
    pub fn new(message: impl fmt::Display) -> StoreError {
        StoreError(message.to_string())
    }
}

pub trait Store: Send + 'static {
    fn load(&mut self) -> Result<Kept, StoreError>;

    /// Makes all of the changes in order, or none. They are durable when this returns.
    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError>;
}

impl Kept {
    /// What a commit does, for stores in memory and for models of others.
    pub fn apply(&mut self, writes: &[Write]) {
        for write in writes {
            match write.clone() {
                Write::PutRow(generation, key, row) => {
                    self.rows.entry(generation).or_default().insert(key, row);
                }
                Write::DeleteRow(generation, key) => {
                    if let Some(rows) = self.rows.get_mut(&generation) {
                        rows.remove(&key);
                    }
                }
                Write::DropGeneration(generation) => {
                    self.rows.remove(&generation);
                }
                Write::Put(name, value) => {
                    self.records.insert(name, value);
                }
                Write::Delete(name) => {
                    self.records.remove(&name);
                }
            }
        }
        self.rows.retain(|_, rows| !rows.is_empty());
    }
}

/// A store that ends with its process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    kept: Kept,
}

impl MemoryStore {
    /// A store that has this already.
    pub fn with(kept: Kept) -> MemoryStore {
        MemoryStore { kept }
    }
}

impl Store for MemoryStore {
    fn load(&mut self) -> Result<Kept, StoreError> {
        Ok(self.kept.clone())
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        self.kept.apply(writes);
        Ok(())
    }
}
