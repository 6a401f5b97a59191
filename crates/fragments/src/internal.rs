//! Our own tables, by the same builder as everybody's.
//!
//! Settings belong to the database; the others have a shard like any row. The clock of a shard is one row of
//! `isles_clocks`: whoever writes to the shard holds it until the commit, so that versions are dense and in commit order,
//! and writers of other shards do not wait.

use crate::error::Result;
use crate::schema::{ColumnType, Schema, Table, column};
use isles_kernel::value::Value;

pub(crate) const SETTINGS: &str = "isles_settings";
pub(crate) const CLOCKS: &str = "isles_clocks";
pub(crate) const OUTBOX: &str = "isles_outbox";
pub(crate) const REQUESTS: &str = "isles_sync_requests";
pub(crate) const HOOKS: &str = "isles_hooks";

/// Begins the names of our own tables in the database; no other table has one.
pub(crate) const PREFIX: &str = "isles_";

/// Whether a table is one of ours.
pub(crate) fn is_own(table: &Table) -> bool {
    table.physical.starts_with(PREFIX)
}

/// The internal schema.
pub fn schema() -> Result<Schema> {
    Schema::build("isles")
        .namespace(None)
        .database_table(SETTINGS, |t| t.column(column("value", ColumnType::Text)))
        .table(CLOCKS, |t| {
            t.column(column("version", ColumnType::Bigint).default_to(Value::Int(0)))
                .column(column("floor", ColumnType::Bigint).default_to(Value::Int(0)))
                .column(column("last", ColumnType::String).nullable())
                .column(column("prev", ColumnType::String).nullable())
        })
        .table(OUTBOX, |t| {
            t.column(column("version", ColumnType::Bigint))
                .column(column("prev", ColumnType::String).nullable())
                .column(column("at", ColumnType::Timestamp))
                .column(column("requestId", ColumnType::String).nullable())
                .column(column("mutations", ColumnType::Json))
                .column(column("before", ColumnType::Json))
                .unique("outbox_version", &["version"])
        })
        .table(REQUESTS, |t| {
            t.column(column("digest", ColumnType::String))
                .column(column("outcome", ColumnType::Json))
                .column(column("version", ColumnType::Bigint))
                .index("sync_requests_version", &["version"])
        })
        .table(HOOKS, |t| {
            t.column(column("namespace", ColumnType::String))
                .column(column("name", ColumnType::String))
                .column(column("payload", ColumnType::Json))
                .column(column("status", ColumnType::String))
                .column(column("attempts", ColumnType::Integer).default_to(Value::Int(0)))
                .column(column("maxAttempts", ColumnType::Integer))
                .column(column("backoffMs", ColumnType::Bigint))
                .column(column("nextAt", ColumnType::Timestamp))
                .column(column("owner", ColumnType::String).nullable())
                .column(column("error", ColumnType::Text).nullable())
                .column(column("createdAt", ColumnType::Timestamp))
                .column(column("unitOfWork", ColumnType::String))
                .index("hooks_due", &["namespace", "status", "nextAt"])
                .index("hooks_unit", &["unitOfWork"])
        })
        // Who looks for due hooks of all shards would read all hooks by the other, and completed ones are many.
        .alter(HOOKS, |t| {
            t.column(column("url", ColumnType::Text).nullable())
                .index_over_shards("hooks_due_anywhere", &["namespace", "status", "nextAt"])
        })
        .finish()
}
