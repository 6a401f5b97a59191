//! Shards: one trait, two real engines.

pub mod env;
pub mod sqlite;
