//! `isles serve` as a process: what clients of PostgreSQL's protocol and of HTTP meet.

#![allow(clippy::unwrap_used)]

mod canaries;
mod client;
mod door;
mod fuzz;
mod harness;
mod http;
mod process;
mod protocol;
mod roles;
mod secrets;
mod statements;
mod stores;
mod tenants;
