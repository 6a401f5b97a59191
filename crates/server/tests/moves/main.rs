//! Moves where operators are: the command line, HTTP and SQL, against servers over shards of both engines.

#![allow(clippy::unwrap_used)]

#[path = "../harness/mod.rs"]
mod harness;

mod cli;
mod http;
mod rows;
mod shards;
mod sql;
mod world;
