//! Shards: one trait, two real engines.
//!
//! In reading order:
//!   * [`env`]       time, tasks and threads, given by whoever runs us
//!   * [`error`]     what can go wrong, for branching and for people
//!   * [`fence`]     which units a shard serves, and from which routing version on
//!   * [`entries`]   entries of global indexes, and who is told of changes
//!   * [`shard`]     the trait
//!   * [`binding`]   whose shard it is, where each tenant has one of its own
//!   * `rows`        rows that come from elsewhere: when they may, and why any order will do
//!   * `discard`     what may be discarded of what a move has left
//!   * `text`        texts of statements as keys
//!   * [`usage`]     what tenants store
//!   * [`digest`]    summaries of rows that agree across engines
//!   * [`sqlite`]    a shard that is a SQLite file
//!   * [`postgres`]  a shard that is a PostgreSQL database

pub mod binding;
pub mod digest;
mod discard;
pub mod entries;
pub mod env;
pub mod error;
pub mod fence;
pub mod postgres;
mod rows;
pub mod shard;
pub mod sqlite;
mod text;
pub mod usage;
