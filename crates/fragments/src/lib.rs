//! Fragments: libraries that bring their own schema, and run in anyone's database.
//!
//! A fragment's author writes a schema, commands, hooks and routes as if there were one tenant. The integrator chooses
//! the database (memory, SQLite, PostgreSQL, Isles) and how it is shared. Every statement is scoped to the shard of the
//! unit of work that it belongs to; nobody can forget it, and request code cannot leave it.
//!
//! ```text
//! request ─► resolver ─► shard context ─► unit of work: retrieve ─► mutate ─► one transaction
//!                                                                              rows, hooks, outbox entry
//! ```
//!
//! In reading order:
//!   * [`error`]     what can go wrong, for those who branch and for people
//!   * [`surroundings`] time, timers, tasks and randomness
//!   * [`shard`]     whose rows they are
//!   * [`context`]   the shard of what is running
//!   * [`values`]    rows by the names of their columns
//!   * [`schema`]    tables, references, indexes, and their versions
//!   * [`condition`] which rows
//!   * [`query`]     finds, joins, counts, cursors
//!   * [`adapter`]   databases: memory, SQLite, PostgreSQL, Isles
//!   * [`internal`]  our own tables
//!   * [`migrate`]   tables made and changed
//!   * [`store`]     a database with its strategy
//!   * [`uow`]       units of work
//!   * [`outbox`]    what has been committed, in order
//!   * [`sync`]      commands of clients, each once
//!   * [`hooks`]     what happens after a commit
//!   * [`retention`] how long all that is kept
//!   * [`web`]       routes

pub mod adapter;
pub mod condition;
pub mod context;
pub mod error;
pub mod hooks;
pub mod internal;
pub mod migrate;
pub mod outbox;
pub mod query;
pub mod retention;
pub mod schema;
pub mod shard;
pub mod store;
pub mod surroundings;
pub mod sync;
pub mod uow;
pub mod values;
pub mod web;

/// What the documents show is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/fragments.md")]
mod documents {}

pub use error::{Error, Result};
pub use isles_kernel::value::Value;
