//! PostgreSQL's dialect, without I/O.
//!
//! In reading order:
//!   * [`types`]  types as PostgreSQL numbers them
//!   * [`text`]   values as text and on the wire
//!   * [`runtime`] PostgreSQL's functions, computed by us
//!   * [`eval`]   expressions that need no relation
//!   * [`tree`]   the bound tree
//!   * [`plan`]   what runs on which shards

pub mod eval;
pub mod plan;
pub mod runtime;
pub mod text;
pub mod tree;
pub mod types;
