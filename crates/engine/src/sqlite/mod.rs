//! A shard that is a SQLite file.

pub mod vfs;
