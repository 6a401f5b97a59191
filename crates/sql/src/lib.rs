//! PostgreSQL's dialect, without I/O.
//!
//! In reading order:
//!   * [`types`]     types as PostgreSQL numbers them
//!   * [`builtins`]  PostgreSQL's functions, operators, casts and types
//!   * [`parse`]     text to PostgreSQL's raw tree
//!   * [`tree`]      the bound tree
//!   * [`bind`]      from the raw tree to statements whose names and types are known
//!   * [`lift`]      constants taken out of a text
//!   * [`copy`]      COPY's formats
//!   * [`text`]      values as text and on the wire
//!   * [`runtime`]   what PostgreSQL's functions compute
//!   * [`eval`]      expressions without rows
//!   * [`row_key`]   the keys of rows in global indexes
//!   * [`row_tenant`] the tenants that rows are given to
//!   * [`system`]    pg_catalog and information_schema
//!   * [`reach`]     which tables a statement reads and writes
//!   * `guard`       a condition in every use of a table
//!   * [`scope`]     every tenant table carries its tenant
//!   * [`route`]     which shards a statement can touch
//!   * [`plan`]      what runs on which shards
//!   * `owned`       a fragment that keeps to the buckets of its shard
//!   * [`print`]     the bound tree in an engine's dialect
//!   * [`explain`]   plans for people
//!   * [`planted`]   bugs that tests plant

pub mod bind;
pub mod builtins;
pub mod copy;
pub mod eval;
pub mod explain;
mod guard;
pub mod lift;
mod owned;
pub mod parse;
pub mod plan;
pub mod planted;
pub mod print;
pub mod reach;
pub mod route;
pub mod row_key;
pub mod row_tenant;
pub mod runtime;
pub mod scope;
pub mod system;
pub mod text;
pub mod tree;
pub mod types;
