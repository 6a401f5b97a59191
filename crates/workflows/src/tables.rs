//! What is stored, in the reserved schema `isles`.
//!
//! ```text
//! runs         a row for each run: what it is, who executes it, when something is due
//! run_steps    the journal: an entry for each thing that a run's code has done
//! run_events   what was sent to a run, in order
//! run_updates  what a run has told, in order
//! run_index    the index of runs: an entry for each run, in the index shard of its type and id
//! run_types    how many index shards each type has, and how far a change of that has come
//! workflow_runs  a view of the runs that there are, without what is left of deleted ones
//! ```
//!
//! The first four are colocated by the run's key, so whatever belongs to one run is on one shard and commits there.
//!
//! `due_at` is the run's one timer: when it sleeps, the time that it sleeps until; when it is executed, the time at which
//! its executor is taken for dead; none when only somebody else can wake it. It is never taken away before what it stands
//! for is done (I-50).

use crate::error::{Result, WorkflowError};
use crate::lines::Lines;

/// Index shards are the shard keys of this group.
pub(crate) const INDEX_GROUP: &str = "run_index";

const STATEMENTS: [&str; 17] = [
    "CREATE SCHEMA IF NOT EXISTS isles",
    "CREATE TABLE IF NOT EXISTS isles.runs (
        run text PRIMARY KEY, type text NOT NULL, id text NOT NULL, status text NOT NULL, version bigint NOT NULL,
        created_at bigint NOT NULL, updated_at bigint NOT NULL, attributes text NOT NULL,
        executor_token bigint NOT NULL, executor text NOT NULL, due_at bigint, control text, event_seq bigint NOT NULL,
        update_seq bigint NOT NULL, recoveries int NOT NULL, attempt int NOT NULL, input text NOT NULL,
        input_hash text NOT NULL, result text, error text, parent text)
        WITH (kind = 'hash', shard_by = 'run', \"group\" = 'runs', buckets = 256)",
    "CREATE INDEX IF NOT EXISTS runs_due ON isles.runs (type, due_at)",
    // Nobody pays for it but runs that are deleted.
    "CREATE INDEX IF NOT EXISTS runs_deleted ON isles.runs (updated_at) WHERE status = 'deleted'",
    "CREATE OR REPLACE VIEW isles.workflow_runs AS
        SELECT type, id, status, version, created_at, updated_at, attributes, attempt, due_at, control, recoveries,
        executor, input, result, error, parent FROM isles.runs WHERE status <> 'deleted'",
    "CREATE TABLE IF NOT EXISTS isles.run_steps (
        run text NOT NULL, attempt int NOT NULL, branch text NOT NULL, ordinal int NOT NULL, name text NOT NULL,
        kind text NOT NULL, state text NOT NULL, attempts int NOT NULL, result text, error text, wake_at bigint,
        started_at bigint NOT NULL, ended_at bigint, history text,
        PRIMARY KEY (run, attempt, branch, ordinal))
        WITH (kind = 'hash', shard_by = 'run', \"group\" = 'runs', buckets = 256)",
    "CREATE TABLE IF NOT EXISTS isles.run_events (
        run text NOT NULL, seq bigint NOT NULL, name text NOT NULL, dedupe text NOT NULL, payload text NOT NULL,
        received_at bigint NOT NULL, consumed_by text,
        PRIMARY KEY (run, seq), UNIQUE (run, dedupe))
        WITH (kind = 'hash', shard_by = 'run', \"group\" = 'runs', buckets = 256)",
    "CREATE TABLE IF NOT EXISTS isles.run_updates (
        run text NOT NULL, seq bigint NOT NULL, name text NOT NULL, data text NOT NULL, emitted_at bigint NOT NULL,
        PRIMARY KEY (run, seq))
        WITH (kind = 'hash', shard_by = 'run', \"group\" = 'runs', buckets = 256)",
    "CREATE TABLE IF NOT EXISTS isles.run_index (
        index_shard text NOT NULL, id text NOT NULL, type text NOT NULL, status text NOT NULL,
        created_at bigint NOT NULL, updated_at bigint NOT NULL, version bigint NOT NULL, attributes text NOT NULL,
        PRIMARY KEY (index_shard, id))
        WITH (kind = 'hash', shard_by = 'index_shard', \"group\" = 'run_index', buckets = 256)",
    // In the order of a list, nulls and all, so that neither engine sorts. Led by the type, so that one of them has the
    // entries of all index shards of a type that are on one shard. The last one has all that is counted.
    "CREATE INDEX IF NOT EXISTS run_index_by_updated ON isles.run_index
        (type, updated_at DESC NULLS LAST, id NULLS FIRST)",
    "CREATE INDEX IF NOT EXISTS run_index_by_created ON isles.run_index
        (type, created_at DESC NULLS LAST, id NULLS FIRST)",
    "CREATE INDEX IF NOT EXISTS run_index_by_status ON isles.run_index
        (type, status, updated_at DESC NULLS LAST, id NULLS FIRST, index_shard)",
    // Those that a database of before has in their place: each would be paid for by every entry that is written.
    "DROP INDEX IF EXISTS isles.run_index_updated",
    "DROP INDEX IF EXISTS isles.run_index_created",
    "DROP INDEX IF EXISTS isles.run_index_status",
    "CREATE TABLE IF NOT EXISTS isles.run_types (
        type text PRIMARY KEY, shards int NOT NULL, previous int, legacy boolean NOT NULL, settled boolean NOT NULL,
        remote boolean NOT NULL, options text NOT NULL)
        WITH (kind = 'global')",
    "CREATE TABLE IF NOT EXISTS isles.run_format (version int PRIMARY KEY) WITH (kind = 'global')",
];

/// The layout of these tables; raised when it changes.
const FORMAT: i64 = 1;

/// Makes what is not there.
pub(crate) async fn make(lines: &Lines) -> Result<()> {
    for statement in STATEMENTS {
        lines.one(statement, Vec::new()).await?;
    }
    let found = lines.one("SELECT max(version) FROM isles.run_format", Vec::new()).await?;
    match found.int(0, 0) {
        None => {
            let insert = "INSERT INTO isles.run_format (version) VALUES ($1) ON CONFLICT (version) DO NOTHING";
            lines.one(insert, vec![FORMAT.into_value()]).await?;
            Ok(())
        }
        Some(FORMAT) => Ok(()),
        Some(other) => Err(WorkflowError::invalid(format!("runs are stored in format {other}, and this is {FORMAT}"))
            .with_hint("use the version of Isles that wrote them, or a later one")),
    }
}

use crate::lines::IntoValue;
