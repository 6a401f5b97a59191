//! Plans, carried out on the shards.
//!
//! In reading order:
//!   * [`bounds`]       time, rows and bytes of a statement
//!   * [`work`]         what each shard did
//!   * [`transaction`]  a transaction's parts on the shards
//!   * [`inputs`]       what a statement is given when it runs
//!   * [`evaluate`]     expressions that the router computes
//!   * [`numbers`]      numbers of sequences
//!   * [`key`]          the bucket of a shard key
//!   * [`target`]       the shards of a fragment
//!   * [`merge`]        the order of rows
//!   * [`stream`]       results too large to gather
//!   * [`run`]          plans
//!   * [`led`]          shards that global indexes name
//!   * [`lookup`]       inputs that are read by the values of others
//!   * [`unique`]       keys that no two rows may have
//!   * [`together`]     several statements as one request
//!   * [`import`]       rows that an operator puts into one shard

pub(crate) mod bounds;
pub(crate) mod evaluate;
pub(crate) mod import;
pub(crate) mod inputs;
pub(crate) mod key;
pub(crate) mod led;
pub(crate) mod lookup;
pub(crate) mod merge;
pub(crate) mod numbers;
pub(crate) mod run;
pub(crate) mod stream;
pub(crate) mod target;
pub(crate) mod together;
pub(crate) mod transaction;
pub(crate) mod unique;
pub(crate) mod work;
