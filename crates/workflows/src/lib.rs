//! Durable workflows: code that survives crashes, on the database it already has.
//!
//!     create ─► claimed by an executor ─► code runs, each step noted in the journal ─► suspended ⇄ claimed ─► ended
//!                                                        change log ─► index of runs ─► list
//!
//! A run lies on one shard, with its journal, its events, its updates and its timer; whatever belongs together is one
//! request to that shard. The index of runs lies on shards of its own and is fed from the change logs.
//!
//! In reading order:
//!   * [`error`]     what goes wrong, with codes and HTTP statuses
//!   * [`tables`]    what is stored
//!   * `lines`       statements to the database
//!   * [`runs`]      runs as those who manage them see them
//!   * [`store`]     create, get, events, pause, resume, terminate, restart, delete
//!   * [`registry`]  which workflows there are
//!   * [`lease`]     what an executor may do for as long as the run is its own
//!   * [`context`]   what code does through its context
//!   * `execute`     one execution of a run
//!   * `worker`      claims runs that are due
//!   * [`index`]     the index of runs
//!   * [`engine`]    all of it, open
//!   * [`commands`]  what managers ask for, in words and JSON
//!   * [`remote`]    runs for other languages
//!   * [`procedures`] what SQL calls
//!
//! Invariants (docs/invariants.md):
//!   * I-47  at most one executor's writes are accepted for a run at a time
//!   * I-48  the journal only grows, and code that does not match it is stopped
//!   * I-49  a step's effect commits with its journal entry, or is idempotent by the step's id
//!   * I-50  a timer fires not before its time, and is not lost
//!   * I-51  the index says what the runs say
//!   * I-52  events arrive in order, each once

// A statement's future holds those of the session, the plan and the shards within it, and code's holds those of its steps.
#![recursion_limit = "512"]

pub mod commands;
pub mod context;
pub mod engine;
pub mod error;
mod execute;
pub mod index;
pub mod lease;
mod lines;
pub mod procedures;
pub mod registry;
pub mod remote;
pub mod runs;
pub mod store;
pub mod tables;
mod worker;

pub use context::{Context, StepInfo, StepOptions};
pub use engine::{EngineOptions, Planted, Workflows};
pub use error::{Code, WorkflowError};
pub use registry::{Events, OnOverflow, Options, Registry};
pub use runs::{Create, Run, RunEvent, Step, Update};
#[doc(hidden)]
pub use worker::DUE;

use std::sync::{Mutex, MutexGuard};

/// A lock whose holder never panics in between.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
