//! The modes of the binary, one module each, over what they share.

pub(crate) mod output;

pub(crate) mod files;

pub(crate) mod id;
pub(crate) mod placement;

pub(crate) mod demo;
pub(crate) mod shard_files;

pub(crate) mod client;
pub(crate) mod indexes;
pub(crate) mod moves;
pub(crate) mod runs;
pub(crate) mod serve;
pub(crate) mod shards;
pub(crate) mod sql;
pub(crate) mod tenants;
