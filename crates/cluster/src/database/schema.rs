//! Schema changes: one change on all shards, or on none.
//!
//!     pending recorded ─► groups routed, fences set ─► each shard changes ─► current recorded, pending gone
//!          │                                             │ one refuses
//!          │                                             ▼
//!          └── crash: the next open goes on      pending says undo ─► every shard back, two versions on ─► recorded
//!
//! The catalog has the schema that statements are bound to. Shards change one after the other while no statement runs
//! (DDL takes the database's schema lock, which statements share), so nobody sees two schemas.
//!
//! A shard applies a change if it is at the version that the change starts from, and leaves it if it has done so
//! already; so all steps can be repeated. A shard refuses a change for what is in its tables: duplicate rows under a
//! new unique key. So a change that can be refused is tried on every shard first, and taken back there. Should a shard
//! refuse all the same, those that have made the change make its opposite. Versions never fall: all shards, also those
//! that never made the change, end two versions later with the schema as it was.
//!
//! Invariants (docs/invariants.md):
//!   * I-6   the recovery of a change can itself be interrupted
//!   * a table's group is routed and fenced before the table can be named in a statement

use super::routing::Routing;
use super::shards::ShardSet;
use crate::catalog::{Catalog, Condition, Key, Transaction, Write};
use crate::commit::decision::catalog_error;
use isles_engine::error::ShardError;
use isles_kernel::error::SqlError;
use isles_kernel::names::{GroupName, SchemaVersion, ShardId};
use isles_kernel::schema::{Schema, SchemaChange, Table, TableKind};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const CURRENT: &str = "schema/current";
const PENDING: &str = "schema/pending";

/// A change that has been begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Pending {
    from: SchemaVersion,
    changes: Vec<SchemaChange>,
    direction: Direction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Direction {
    Forward,
    /// A shard has refused.
    Undo,
}

/// What changes with the schema.
pub(crate) struct Parts<'a> {
    pub(crate) catalog: &'a dyn Catalog,
    pub(crate) shards: &'a ShardSet,
    pub(crate) routing: &'a Routing,
    pub(crate) names: &'a [ShardId],
}

fn key(name: &str) -> Key {
    Key::new(name).expect("a constant without control characters")
}

pub(crate) fn people(error: ShardError) -> SqlError {
    error.for_people()
}

/// The schema that holds, after whatever a crash left has been finished.
pub(crate) async fn open(parts: &Parts<'_>) -> Result<Schema, SqlError> {
    let schema = load(parts.catalog).await?;
    let pending = parts.catalog.get(&key(PENDING)).await.map_err(catalog_error)?.value;
    let schema = match pending {
        None => schema,
        Some(record) => {
            let pending: Pending = record.json().map_err(catalog_error)?;
            match finish(parts, &schema, pending).await {
                Ok(schema) => schema,
                // It was refused and undone; the one who asked for it is gone.
                Err(Failure::Refused(_, schema)) => schema,
                Err(Failure::Stuck(error)) => return Err(error),
            }
        }
    };
    for name in parts.names {
        check_shard(parts.shards, name, &schema).await?;
    }
    Ok(schema)
}

async fn load(catalog: &dyn Catalog) -> Result<Schema, SqlError> {
    match catalog.get(&key(CURRENT)).await.map_err(catalog_error)?.value {
        Some(record) => record.json().map_err(catalog_error),
        None => Ok(Schema::default()),
    }
}

async fn check_shard(shards: &ShardSet, name: &ShardId, schema: &Schema) -> Result<(), SqlError> {
    let found = shards.get(name).await.map_err(people)?.schema().await.map_err(people)?;
    if found.version == schema.version && found.hash() == schema.hash() {
        return Ok(());
    }
    let message = format!(
        "shard {name} has schema version {}, the database has {}: it belongs to another database, or is an old copy",
        found.version, schema.version
    );
    Err(SqlError::new("55000", message))
}

/// Why a change did not happen.
pub(crate) enum Failure {
    /// A shard refused, and the schema is as it was, at a later version.
    Refused(SqlError, Schema),
    /// It can neither be finished nor undone now. Nobody may use the schema before it has been.
    Stuck(SqlError),
}

/// Changes the schema of the database, which is `schema` now. `drops` are catalog records that go with it.
pub(crate) async fn change(parts: &Parts<'_>, schema: &Schema, changes: Vec<SchemaChange>) -> Result<Schema, Failure> {
    let refused = |error: SqlError| Failure::Refused(error, schema.clone());
    let next = schema.apply(&changes).map_err(|error| refused(people(error.into())))?;
    if changes.iter().any(depends_on_rows) {
        for name in parts.names {
            let shard = parts.shards.get(name).await.map_err(|error| refused(people(error)))?;
            let tried = shard.try_schema(schema.version, changes.clone()).await;
            tried.map_err(|error| refused(people(error)))?;
        }
    }
    parts.routing.add_groups(&groups(&next), parts.names, parts.shards).await.map_err(refused)?;
    let pending = Pending { from: schema.version, changes, direction: Direction::Forward };
    let begin = Transaction::new().when(Condition::Absent(key(PENDING))).put_json(key(PENDING), &pending);
    let begin = begin.map_err(|error| refused(catalog_error(error)))?;
    parts.catalog.commit(begin).await.map_err(|error| refused(catalog_error(error)))?;
    finish(parts, schema, pending).await
}

/// Whether a shard may refuse a change for what is in its tables.
fn depends_on_rows(change: &SchemaChange) -> bool {
    match change {
        SchemaChange::AddColumn { column, .. } => !column.nullable,
        SchemaChange::AlterColumn { .. }
        | SchemaChange::Rekey { .. }
        | SchemaChange::CreateKey { .. }
        | SchemaChange::AddCheck { .. }
        | SchemaChange::AddForeignKey { .. } => true,
        _ => false,
    }
}

/// The groups that tables hash to.
fn groups(schema: &Schema) -> Vec<(GroupName, u32)> {
    let mut groups: Vec<(GroupName, u32)> = schema.tables.values().filter_map(group_of).collect();
    groups.sort();
    groups.dedup();
    groups
}

fn group_of(table: &Table) -> Option<(GroupName, u32)> {
    match &table.kind {
        TableKind::Hash { group, buckets, .. } => Some((group.clone(), *buckets)),
        _ => None,
    }
}

/// Takes a change that is recorded to its end.
async fn finish(parts: &Parts<'_>, schema: &Schema, pending: Pending) -> Result<Schema, Failure> {
    let stuck = |error: SqlError| Failure::Stuck(error);
    if pending.direction == Direction::Undo {
        let why = SqlError::new("55000", "the schema change was undone");
        let undone = undo(parts, schema, &pending).await.map_err(stuck)?;
        return Err(Failure::Refused(why, undone));
    }
    match forward(parts, &pending).await {
        Ok(()) => {
            let next = schema.apply(&pending.changes).map_err(|error| stuck(people(error.into())))?;
            record(parts.catalog, schema, &next, &pending.changes).await.map_err(stuck)?;
            Ok(next)
        }
        Err(error) if is_refusal(&error) => {
            let back = Pending { direction: Direction::Undo, ..pending };
            let note = Transaction::new().put_json(key(PENDING), &back).map_err(|error| stuck(catalog_error(error)))?;
            parts.catalog.commit(note).await.map_err(|error| stuck(catalog_error(error)))?;
            let undone = undo(parts, schema, &back).await.map_err(stuck)?;
            Err(Failure::Refused(people(error), undone))
        }
        Err(error) => Err(stuck(people(error))),
    }
}

async fn forward(parts: &Parts<'_>, pending: &Pending) -> Result<(), ShardError> {
    for name in parts.names {
        let shard = parts.shards.get(name).await?;
        shard.apply_schema(pending.from, pending.changes.clone()).await?;
    }
    Ok(())
}

/// Whether the shard has looked at the change and will not make it; anything else may pass by itself.
fn is_refusal(error: &ShardError) -> bool {
    matches!(error, ShardError::Statement(_) | ShardError::Limit { .. } | ShardError::Invalid(_))
}

/// Brings every shard to the schema as it was, two versions later.
async fn undo(parts: &Parts<'_>, schema: &Schema, pending: &Pending) -> Result<Schema, SqlError> {
    let (from, made) = (pending.from, pending.from.next());
    let back = opposite(schema, &pending.changes)?;
    for name in parts.names {
        let shard = parts.shards.get(name).await.map_err(people)?;
        let now = shard.schema().await.map_err(people)?;
        if now.version == made.next() {
            continue;
        }
        if now.version == from {
            shard.apply_schema(from, Vec::new()).await.map_err(people)?;
            shard.apply_schema(made, Vec::new()).await.map_err(people)?;
        } else if now.hash() == schema.hash() {
            // It had not made the change, and was interrupted between the two steps.
            shard.apply_schema(made, Vec::new()).await.map_err(people)?;
        } else {
            shard.apply_schema(made, back.clone()).await.map_err(people)?;
        }
    }
    let undone = Schema { version: made.next(), ..schema.clone() };
    record(parts.catalog, schema, &undone, &[]).await?;
    Ok(undone)
}

/// What takes `changes` back. What cannot be taken back is not refused for what is in a table either.
fn opposite(schema: &Schema, changes: &[SchemaChange]) -> Result<Vec<SchemaChange>, SqlError> {
    let one = |change: &SchemaChange| match change {
        SchemaChange::CreateTable(table) => Ok(SchemaChange::DropTable { table: table.name.clone() }),
        SchemaChange::AddColumn { table, column } => {
            Ok(SchemaChange::DropColumn { table: table.clone(), column: column.name.clone() })
        }
        SchemaChange::CreateKey { table, key } => {
            Ok(SchemaChange::DropKey { table: table.clone(), key: key.name.clone() })
        }
        SchemaChange::DropKey { table, key } => {
            let known = schema.tables.get(table).and_then(|table| table.keys.iter().find(|known| known.name == *key));
            let key = known.cloned().ok_or_else(cannot_undo)?;
            Ok(SchemaChange::CreateKey { table: table.clone(), key })
        }
        SchemaChange::AddCheck { table, check } => {
            Ok(SchemaChange::DropCheck { table: table.clone(), check: check.name.clone() })
        }
        SchemaChange::AddForeignKey { table, foreign_key } => {
            Ok(SchemaChange::DropForeignKey { table: table.clone(), foreign_key: foreign_key.name.clone() })
        }
        SchemaChange::CreateView(view) => Ok(SchemaChange::DropView { view: view.name.clone() }),
        SchemaChange::CreateSequence(sequence) => Ok(SchemaChange::DropSequence { sequence: sequence.name.clone() }),
        SchemaChange::CreateObject(object) => Ok(SchemaChange::DropObject { name: object.name.clone() }),
        SchemaChange::DropObject { name } => {
            schema.objects.get(name).cloned().map(SchemaChange::CreateObject).ok_or_else(cannot_undo)
        }
        _ => Err(cannot_undo()),
    };
    changes.iter().rev().map(one).collect()
}

fn cannot_undo() -> SqlError {
    SqlError::new("XX000", "a schema change that some shards have made and others refuse cannot be undone")
}

/// Records what holds now. Sequences that are gone take their positions with them.
async fn record(
    catalog: &dyn Catalog,
    before: &Schema,
    now: &Schema,
    changes: &[SchemaChange],
) -> Result<(), SqlError> {
    let mut transaction = Transaction::new().put_json(key(CURRENT), now).map_err(catalog_error)?.delete(key(PENDING));
    for change in changes {
        if let SchemaChange::RenameSequence { sequence, to } = change
            && let Some(position) = catalog.get(&super::sequence::key(sequence)?).await.map_err(catalog_error)?.value
        {
            transaction = transaction.put(super::sequence::key(to)?, position.value);
        }
    }
    let gone = before.sequences.keys().filter(|name| !now.sequences.contains_key(*name));
    for name in gone {
        transaction.writes.push(Write::Delete(super::sequence::key(name)?));
    }
    match catalog.commit(transaction).await {
        Ok(_) => Ok(()),
        // The same record again is harmless, and a catalog that has stopped says so at the next call.
        Err(crate::catalog::CatalogError::MayHaveHappened(_)) => {
            let stored = load(catalog).await?;
            if stored.version == now.version {
                Ok(())
            } else {
                Err(SqlError::new("08007", "the schema may have changed"))
            }
        }
        Err(error) => Err(catalog_error(error)),
    }
}

/// Shared by [`super::Database`]: the schema of the moment.
pub(crate) type Current = arc_swap::ArcSwap<Schema>;

pub(crate) fn current(schema: Schema) -> Current {
    arc_swap::ArcSwap::new(Arc::new(schema))
}
