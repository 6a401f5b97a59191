//! Sessions, with SQL text, over real shards.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

mod explain;
mod harness;
mod postgres;
mod schema;
mod statements;
mod strategy;
mod transactions;
