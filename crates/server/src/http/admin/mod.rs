//! `/admin`: moves, migrations, the routing, global indexes and the rows of single shards, for administrators.
//!
//! In reading order:
//!   * [`gate`]     who may, what a body is, how answers and refusals look
//!   * [`members`]  shards that come and go
//!   * [`split`]    plans of moves; a split is the older word for one
//!   * [`metrics`]  figures of each plan
//!   * [`indexes`]  global indexes, jobs for them, their entries
//!   * [`migrations`] tables that become tenant tables
//!   * [`routing`]  the routing, its versions, and what differs between two of them
//!   * [`sharding`] placements of tenants
//!   * [`rows`]     rows as JSON, exact for every type
//!   * [`shard`]    export, import and events of a shard
//!
//! Everything that is done here can be done by SQL, too, and goes the same way in below it; only `shard`, and
//! jobs and entries of indexes, have no statement.

pub(super) mod gate;
mod indexes;
mod members;
mod metrics;
mod migrations;
mod routing;
mod rows;
mod shard;
mod sharding;
mod split;

use super::HttpDoor;
use axum::extract::DefaultBodyLimit;
use axum::routing::{MethodRouter, delete, get, post};
use std::sync::Arc;

/// A plan names at most a thousand tenants.
const BODY_BYTES: usize = 1 << 20;

/// Paths, each with what it answers to. An import is as long as any statement.
pub(super) fn routes(import_bytes: usize) -> Vec<(&'static str, MethodRouter<Arc<HttpDoor>>)> {
    let small = || DefaultBodyLimit::max(BODY_BYTES);
    vec![
        ("/admin/shards", get(members::list).post(members::add).layer(small())),
        ("/admin/shards/rebalance", get(members::proposals)),
        ("/admin/shards/metrics", get(metrics::all)),
        ("/admin/shards/split", get(split::list).post(split::create).layer(small())),
        ("/admin/shards/split/run", post(split::create_and_run).layer(small())),
        ("/admin/shards/split/{id}", get(split::show)),
        ("/admin/shards/split/{id}/{action}", post(split::act).layer(small())),
        ("/admin/shards/{shard}", delete(members::remove)),
        ("/admin/shards/{shard}/drain", post(members::drain).layer(small())),
        ("/admin/shards/{shard}/resume", post(members::resume)),
        ("/admin/shards/{shard}/export", post(shard::export).layer(small())),
        ("/admin/shards/{shard}/import", post(shard::import).layer(DefaultBodyLimit::max(import_bytes))),
        ("/admin/shards/{shard}/events", post(shard::events).layer(small())),
        ("/admin/indexes", get(indexes::list)),
        ("/admin/indexes/jobs", get(indexes::jobs).post(indexes::enqueue).layer(small())),
        ("/admin/indexes/entries", post(indexes::maintain).layer(small())),
        ("/admin/indexes/{name}", get(indexes::show).delete(indexes::remove)),
        ("/admin/indexes/{name}/verify", post(indexes::verify).layer(small())),
        ("/admin/indexes/{name}/rebuild", post(indexes::rebuild).layer(small())),
        ("/admin/indexes/{name}/entries", get(indexes::entries)),
        ("/admin/migrations", get(migrations::list).post(migrations::begin).layer(small())),
        ("/admin/migrations/{table}", delete(migrations::cancel)),
        ("/admin/sharding/config", get(sharding::show).put(sharding::put).layer(small())),
        ("/admin/sharding/migrate", post(sharding::migrate).layer(small())),
        ("/admin/sharding/validate", post(sharding::validate).layer(small())),
        ("/admin/sharding/dry-run", post(sharding::dry_run).layer(small())),
        ("/admin/sharding/history", get(sharding::history)),
        ("/admin/sharding/diff", get(sharding::diff)),
        ("/admin/sharding/generations/{generation}", delete(sharding::remove)),
        ("/admin/routing", get(routing::current)),
        ("/admin/routing/history", get(routing::history)),
        ("/admin/routing/diff", get(routing::diff)),
    ]
}

/// The answer to any other verb, and to any other path below `/admin`.
pub(super) use gate::{no_such_path, no_such_verb};
