//! What binds shards into one database.
//!
//! In reading order:
//!   * [`catalog`]  the one linearizable store of shards, tables, groups, routing versions, indexes and plans
//!   * [`roles`]    who may log in
//!   * [`session`]  what a client runs statements with

pub mod catalog;
pub mod roles;
pub mod session;
