//! Global indexes: which buckets have rows with a key.
//!
//! An index maps a key to the buckets of the indexed table's group that have rows with it, and how many. It follows
//! the change logs of the shards and lags behind them; what it has not learned yet is known meanwhile. So at every
//! instant, for every key:
//!
//!     entries that count more than zero  ∪  additions not yet applied  ⊇  buckets that have rows with the key
//!
//! Why that holds: let A rows have come to a bucket with a key and R have gone, A - R of them there now. If every
//! addition is applied, the entry counts A less some removals, so at least A - R. If one is not, it is among those that
//! are known. Removals may lag for as long as they like, and the order of additions and removals does not matter; an
//! entry may even count less than zero for a while, when a row has come on one shard and gone on another.
//!
//! An entry names a bucket and never a shard: a move changes no entry (I-28).
//!
//! In reading order: [`key`] how values become keys, [`entry`] how changes become entries, [`pending`] what is not
//! applied yet.
//!
//! Invariants (docs/invariants.md):
//!   * I-23  of every row there is an entry, or it is pending
//!   * I-28  entries name buckets

pub mod entry;
pub mod key;
pub mod pending;

use crate::names::StreamId;

pub use entry::{Deltas, EntryDelta, Source, StoredEntry};
pub use key::{IndexKey, KeyRange};
pub use pending::{LogNumber, Noted, Pending, Room};

/// Before the names of all readers of change logs that want only tables with global indexes.
const STREAM: &str = "index";

/// The reader of each shard's change log that all global indexes share.
pub fn index_stream() -> StreamId {
    StreamId::new(STREAM).expect("a constant that is a name")
}

/// The reader that an index has for itself while it is built.
pub fn build_stream(entries: &str) -> StreamId {
    let plain: String = entries.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    StreamId::new(format!("{STREAM}-build-{plain}")).expect("letters, digits and dashes")
}

/// Whether a reader of a change log wants only tables that have global indexes.
pub fn is_index_stream(stream: &StreamId) -> bool {
    stream.as_str() == STREAM || stream.as_str().starts_with("index-build-")
}
