//! The pure core of Isles.
//!
//! Nothing here reads a file, a socket, a clock or a source of randomness; what a function needs, it is given.
//! So every rule below can be tested exhaustively or by properties, and replayed in simulation.
//!
//! In reading order:
//!   * [`error`]      errors for people, as PostgreSQL words them
//!   * [`names`]      the newtypes that travel: tenants, shards, buckets, versions, positions
//!   * [`quota`]      how much a tenant may take
//!   * [`hash`]       FNV-1a over UTF-16, and the old float variant for reading old data
//!   * [`id`]         self-routing ids and instance names
//!   * [`placement`]  groups, regions, generations: which bucket a key belongs to
//!   * [`routing`]    which shard a bucket or a pinned tenant lives on
//!   * [`residents`]  which tenants' rows a shard owns
//!   * [`moves`]      moves of tenants and buckets between shards: plans, and what happens next
//!   * [`interval`]   months, days and microseconds
//!   * [`value`]      typed values, without loss on any engine
//!   * [`form`]       the text of a value that is stored as text
//!   * [`schema`]     tables as the shards store them
//!   * [`change`]     row changes, as the change log records them
//!   * [`index`]      global indexes: keys, entries, and what is not applied yet
//!   * [`runs`]       runs of workflows: statuses, retries, journals, and their index
//!   * [`sync`]       what a server and its replicas say to each other

pub mod change;
pub mod error;
pub mod form;
pub mod hash;
pub mod id;
pub mod index;
pub mod interval;
pub mod moves;
pub mod names;
pub mod placement;
pub mod quota;
pub mod residents;
pub mod routing;
pub mod runs;
pub mod schema;
pub mod sync;
pub mod value;
