//! PostgreSQL's functions, computed by us.
//!
//! On a shard of PostgreSQL the server computes them. Everywhere else (on a shard of SQLite, in the router) these do,
//! and must give the same answers: same digits, same errors.

pub(crate) mod numeric;
