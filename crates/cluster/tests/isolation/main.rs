//! What clients of a whole database see is serializable: histories of list-append transactions, by SQL.
//!
//! Over SQLite shards the histories are simulated, with crashes, failed syncs and slow disks, each drawn from its seed.
//! `ISLES_SIM_SEEDS` is how many are run, `ISLES_SIM_SEED` runs one. Over PostgreSQL shards they are real.
//!
//! Invariants (docs/invariants.md):
//!   * I-1, I-20  what was acknowledged is there after any crash, on all shards; the rest wholly or not at all
//!   * I-19  transactions are serializable and respect real time; on PostgreSQL they keep the level asked for
//!   * I-23, I-24, I-27, I-28  what a global index leads to is what is there
//!   * I-26  no key of a unique one has two rows, and none stays taken
//!   * I-66  nobody waits without end
//!   * I-69  planted bugs are found

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

mod building;
mod client;
mod contended;
mod indexed;
mod keyed;
mod moving;
mod postgres;
mod seeds;
mod simulated;
mod sweep;
