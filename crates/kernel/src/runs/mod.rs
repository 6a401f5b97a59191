//! Runs of workflows: what may follow what, without I/O.
//!
//! A run is one execution of a workflow. Its journal has an entry for everything that its code did through its context;
//! whoever executes it again reads the entries instead of doing it again.
//!
//! In reading order:
//!   * [`status`]  what a run can be, and what it can become
//!   * [`names`]   types, ids, names of steps and events, and the key of a run
//!   * [`units`]   durations and sizes as people write them
//!   * [`retry`]   how often and when a step is tried again
//!   * [`journal`] what was done, and whether the code still does the same
//!   * [`places`]  which index shard an entry belongs to, and where else it may be found
//!   * [`list`]    entries of many index shards, as one ordered list
//!
//! Invariants (docs/invariants.md):
//!   * I-48  the journal only grows; code that does something else than the journal says is stopped
//!   * I-51  a list over index shards has each run once, as its latest version is

pub mod journal;
pub mod list;
pub mod names;
pub mod places;
pub mod retry;
pub mod status;
pub mod units;
