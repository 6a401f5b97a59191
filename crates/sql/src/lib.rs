//! PostgreSQL's dialect, without I/O.
//!
//! In reading order:
//!   * [`types`]  types as PostgreSQL numbers them
//!   * [`tree`]   the bound tree
//!   * [`plan`]   what runs on which shards
//!   * [`copy`]   COPY's formats

pub mod copy;
pub mod plan;
pub mod tree;
pub mod types;
