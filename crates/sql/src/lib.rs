//! PostgreSQL's dialect, without I/O.
//!
//! In reading order:
//!   * [`types`]     types as PostgreSQL numbers them
//!   * [`builtins`]  PostgreSQL's functions, operators, casts and types
//!   * [`parse`]     text to PostgreSQL's raw tree
//!   * [`tree`]      the bound tree
//!   * [`bind`]      from the raw tree to statements whose names and types are known
//!   * [`copy`]      COPY's formats
//!   * [`plan`]      what runs on which shards
//!   * [`print`]     the bound tree in an engine's dialect

pub mod bind;
pub mod builtins;
pub mod copy;
pub mod parse;
pub mod plan;
pub mod print;
pub mod tree;
pub mod types;
