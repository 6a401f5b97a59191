//! Deterministic simulation: real code, virtual time, a disk that can lose power.
//!
//! In reading order:
//!   * [`rng`]    the one source of randomness of a history
//!   * [`trace`]  what happened: every step of a history, and counts of the rare ones
//!   * [`exec`]   seeded executor with virtual time; it runs the product's ordinary async code
//!   * [`disk`]   a crash VFS for real SQLite: unsynced writes are lost or torn
//!   * [`pgserver`]  a real PostgreSQL server for tests, which can be killed
//!   * [`sqlgen`]  random SQL that two databases can be compared on
//!   * [`check`]  what must hold of a history: list-append

pub mod check;
pub mod disk;
pub mod exec;
pub mod pgserver;
pub mod rng;
pub mod sqlgen;
pub mod trace;
