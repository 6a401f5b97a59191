//! What binds shards into one database.
//!
//! In reading order:
//!   * [`catalog`]   the one linearizable store of shards, tables, groups, routing versions, indexes and plans
//!   * [`roles`]     who may log in
//!   * `advisory`    numbers that applications lock
//!   * [`commit`]    transactions over several shards
//!   * [`placements`] which bucket and region each key of each tenant has
//!   * [`database`]  a catalog, its shards, and what every session shares
//!   * [`moves`]     moves of tenants and buckets, carried out
//!   * [`indexes`]   global indexes, kept up
//!   * [`migrations`] tables that become tenant tables
//!   * `execute`     plans, carried out on the shards
//!   * `per_shard`   something for each shard, while shards come and go
//!   * `tenants`     tenants as objects: records, quotas, and what is known of them
//!   * [`session`]   what a client runs statements with

mod advisory;
pub mod catalog;
pub mod commit;
pub mod database;
mod execute;
pub mod indexes;
pub mod migrations;
pub mod moves;
mod per_shard;
pub mod placements;
pub mod roles;
pub mod session;
mod tenants;
