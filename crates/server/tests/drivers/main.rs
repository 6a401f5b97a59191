//! Real clients on Isles: psql, psycopg, asyncpg, tokio-postgres and node-postgres, over SQLite and over PostgreSQL shards.
//!
//! PostgreSQL is the oracle here, too: each suite also runs on plain PostgreSQL, so that what it claims is what
//! PostgreSQL does, and psql's output is compared with it line by line.

#[path = "../harness/mod.rs"]
mod harness;
#[path = "../harness/packages.rs"]
mod packages;

mod psql;
mod rust;
mod suites;
