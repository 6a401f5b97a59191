//! Moves, shards, placements and global indexes where operators are: the command line, HTTP and SQL, against servers over shards of both engines.

#![allow(clippy::unwrap_used)]

#[path = "../harness/mod.rs"]
mod harness;

#[path = "../../src/load/mod.rs"]
#[allow(dead_code, reason = "the benchmark and the demo use more of it")]
mod load;

#[path = "../serve/harness.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod wire;

mod cli;
mod http;
mod indexes;
mod messages;
mod placements;
mod rows;
mod shards;
mod sql;
mod under_load;
mod world;
