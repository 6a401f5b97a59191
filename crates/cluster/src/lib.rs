//! What binds shards into one database.
//!
//! In reading order:
//!   * [`catalog`]  the one linearizable store of shards, tables, groups, routing versions, indexes and plans
//!   * [`session`]  what a client runs statements with

pub mod catalog;
pub mod session;
