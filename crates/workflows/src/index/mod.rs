//! The index of runs.
//!
//!     runs ─► change logs ─► [`follow`] ─► entries of index shards ─► [`list`]
//!
//! No run waits for its entry, and no entry is lost: it is made from the change log, which a crash leaves as it is, and
//! where a log was read up to is kept after the entries are. An entry has the run's version, so one that comes late loses.
//!
//! In reading order:
//!   * [`follow`]  entries from the change logs
//!   * [`mend`]    the comparison with the runs themselves
//!   * [`list`]    entries of many index shards as one list, and counts
//!   * [`resize`]  more or fewer index shards, while runs go on
//!
//! Invariants (docs/invariants.md):
//!   * I-51  when the logs have been read, the entries are what the runs are; a list has each run once

pub(crate) mod follow;
pub mod list;
pub mod mend;
pub mod resize;
