//! Plans, carried out on the shards.
//!
//! In reading order:
//!   * [`bounds`]       time, rows and bytes of a statement
//!   * [`transaction`]  a transaction's parts on the shards

pub(crate) mod bounds;
pub(crate) mod transaction;
