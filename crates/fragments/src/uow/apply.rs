//! Operations, carried out in a transaction that has its shard's turn.
//!
//! The rows that operations are about are read after the turn was taken, so what they say holds until the commit. Each
//! write names the version that was read, for those who write beside this library.

use super::{Mutation, Operation};
use crate::adapter::{Access, Clock, Row, Select, Tick, Transaction, Writes};
use crate::condition::{Condition, Op, is_in};
use crate::error::{Code, Error, Result, refused};
use crate::internal::{HOOKS, OUTBOX};
use crate::query::{Direction, RowId};
use crate::schema::{ID, Table};
use crate::store::{Fragment, Planted, Store};
use crate::values::{Values, timestamp_ms, to_json};
use isles_kernel::sync::{self, MAX_ENTRY_BYTES, MAX_ENTRY_MUTATIONS, RowKey, RowVersion};
use isles_kernel::value::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// Ids of one list; more are asked for in several statements.
const IDS_PER_SELECT: usize = 200;
/// Rows that are sent at once, and bytes of them: what is sent is in memory as a whole, and holds its shard's clock from
/// its first row on.
const MAX_AT_ONCE: usize = 200;
const MAX_AT_ONCE_BYTES: usize = 1 << 20;
/// Rows of one entry as they were, as JSON: whoever checks a scope has them in memory.
const MAX_BEFORE_BYTES: usize = 4 * MAX_ENTRY_BYTES;

/// A change of a row, for the outbox.
pub(crate) struct Change {
    pub(crate) mutation: sync::Mutation,
    /// The row as it was; for checks of scopes, and never sent.
    pub(crate) before: Option<sync::Values>,
}

type Known = BTreeMap<(String, String), Option<Row>>;

/// Writes within one transaction.
pub(crate) struct Work<'a> {
    store: &'a Store,
    pub(crate) tx: Box<dyn Transaction>,
    pub(crate) access: Access,
    pub(crate) clock: Clock,
    entry: Uuid,
    ticked: bool,
    known: Known,
    pub(crate) changes: Vec<Change>,
    hooks: usize,
}

/// Row values as JSON, with the id if asked for.
pub(crate) fn json(values: &Values) -> Result<sync::Values> {
    let columns = values.0.iter().map(|(name, value)| (name.clone(), to_json(value))).collect();
    sync::Values::new(columns).map_err(|error| refused(Code::InvalidValue, error.to_string()))
}

fn stale() -> Error {
    Error::CheckFailed("a row has changed since it was read".into())
}

impl<'a> Work<'a> {
    /// Takes the shard's turn.
    pub(crate) async fn begin(
        store: &'a Store,
        mut tx: Box<dyn Transaction>,
        access: Access,
        entry: Uuid,
        publishes: bool,
    ) -> Result<Work<'a>> {
        let id = entry.to_string();
        let tick = if publishes { Tick::Next(&id) } else { Tick::Hold };
        let clock = tx.tick(tick).await?;
        let (known, changes) = (Known::new(), Vec::new());
        Ok(Work { store, tx, access, clock, entry, ticked: publishes, known, changes, hooks: 0 })
    }

    /// Carries out the operations of a plan, and stores its hooks.
    pub(crate) async fn apply(&mut self, mutation: &Mutation) -> Result<()> {
        self.look(mutation).await?;
        for operation in &mutation.operations {
            self.run(&mutation.fragment, operation).await?;
        }
        let table = self.store.internal(HOOKS)?;
        for trigger in &mutation.triggers {
            let unit = mutation.idempotency_key();
            let row = trigger.row(self.store, &mutation.fragment, unit);
            self.tx.insert(&table, &row).await?;
            self.hooks += 1;
        }
        Ok(())
    }

    /// Reads the rows that operations are about, table by table.
    async fn look(&mut self, mutation: &Mutation) -> Result<()> {
        let mut wanted: BTreeMap<String, (Arc<Table>, Vec<String>)> = BTreeMap::new();
        for operation in &mutation.operations {
            let (table, id) = match operation {
                Operation::Update { table, id, .. } | Operation::Delete { table, id, .. } => (table, id),
                Operation::Check { table, expected } => (table, &expected.external),
                Operation::Create { .. } | Operation::CheckAbsent { .. } => continue,
            };
            if !self.known.contains_key(&(table.physical.clone(), id.clone())) {
                let (_, ids) = wanted.entry(table.physical.clone()).or_insert_with(|| (table.clone(), Vec::new()));
                ids.push(id.clone());
            }
        }
        for (table, ids) in wanted.into_values() {
            for ids in ids.chunks(IDS_PER_SELECT) {
                for id in ids {
                    self.known.insert((table.physical.clone(), id.clone()), None);
                }
                let condition = is_in(ID, ids.iter().map(String::as_str));
                for row in self.tx.select(&by_id(&table, condition, ids.len())).await? {
                    self.known.insert((table.physical.clone(), row.id.clone()), Some(row));
                }
            }
        }
        Ok(())
    }

    /// The row as it stands, if it is the one that is expected.
    fn current(&self, table: &Table, id: &str, expected: Option<&RowId>) -> Result<Option<Row>> {
        let row = self.known.get(&(table.physical.clone(), id.to_string())).cloned().flatten();
        match (&row, expected) {
            (Some(row), Some(expected)) if row.version == expected.version && row.internal == expected.internal => {}
            (_, None) => {}
            _ => return Err(stale()),
        }
        Ok(row)
    }

    async fn run(&mut self, fragment: &Fragment, operation: &Operation) -> Result<()> {
        match operation {
            Operation::Create { table, id, values } => {
                let (id, internal) = (id.clone(), self.store.new_internal());
                let row = Row { id, internal, version: 0, values: values.clone() };
                self.tx.insert(table, &row).await?;
                note(&mut self.changes, fragment, table, sync::Op::Create, &row, &row.values, None)?;
                self.known.insert((table.physical.clone(), row.id.clone()), Some(row));
            }
            Operation::Update { table, id, expected, set } => {
                let Some(before) = self.current(table, id, expected.as_ref())? else { return Ok(()) };
                if !self.tx.update(table, id, before.version, set).await? {
                    return Err(stale());
                }
                let mut after = Row { version: before.version + 1, ..before.clone() };
                after.values.0.extend(set.0.clone());
                note(&mut self.changes, fragment, table, sync::Op::Update, &after, set, Some(&before))?;
                self.known.insert((table.physical.clone(), id.clone()), Some(after));
            }
            Operation::Delete { table, id, expected } => {
                let Some(before) = self.current(table, id, expected.as_ref())? else { return Ok(()) };
                if !self.tx.delete(table, id, before.version).await? {
                    return Err(stale());
                }
                note(&mut self.changes, fragment, table, sync::Op::Delete, &before, &Values::new(), Some(&before))?;
                self.known.insert((table.physical.clone(), id.clone()), None);
            }
            Operation::Check { table, expected } => {
                self.current(table, &expected.external, Some(expected))?;
            }
            Operation::CheckAbsent { table, key } => {
                let part = |(column, value): &(String, Value)| Condition::Compare {
                    column: column.clone(),
                    op: Op::Eq,
                    value: value.clone(),
                };
                let condition = Condition::And(key.iter().map(part).collect());
                if !self.tx.select(&by_id(table, condition, 1)).await?.is_empty() {
                    return Err(Error::CheckFailed("a row that must be absent is there".into()));
                }
            }
        }
        Ok(())
    }

    /// Writes the entry, or gives its version back, and commits.
    pub(crate) async fn finish(mut self, request: Option<&str>) -> Result<()> {
        let store = self.store;
        let mut entry = entry(store, self.entry, &self.changes, request)?;
        if let Some(row) = &mut entry {
            let values = std::mem::take(&mut row.values);
            row.values = values.set("version", self.clock.version).set("prev", self.clock.prev.clone());
        }
        if entry.is_none() && self.ticked {
            self.clock = self.tx.tick(Tick::Back).await?;
        }
        let Work { tx, access, hooks, .. } = self;
        match &entry {
            Some(row) if store.planted() != Some(Planted::OutboxApart) => {
                tx.insert_and_commit(&store.internal(OUTBOX)?, row).await?;
            }
            _ => tx.commit().await?,
        }
        if let (Some(row), Some(Planted::OutboxApart)) = (&entry, store.planted()) {
            let mut tx = store.adapter().begin(&access, crate::adapter::Mode::Write).await?;
            tx.insert(&store.internal(OUTBOX)?, row).await?;
            tx.commit().await?;
        }
        store.tell(access.owner(), entry.is_some(), hooks > 0);
        Ok(())
    }
}

/// Adds a change to those that the outbox is told of.
fn note(
    changes: &mut Vec<Change>,
    fragment: &Fragment,
    table: &Table,
    op: sync::Op,
    row: &Row,
    values: &Values,
    before: Option<&Row>,
) -> Result<()> {
    if !fragment.publishes(&table.name) {
        return Ok(());
    }
    if changes.len() >= MAX_ENTRY_MUTATIONS {
        return Err(refused(Code::TooLarge, format!("an entry has at most {MAX_ENTRY_MUTATIONS} changes")));
    }
    let wrong = |error: sync::SyncNameError| refused(Code::InvalidValue, error.to_string());
    let key = RowKey::new(fragment.schema.key(), table.name.as_str(), row.id.as_str()).map_err(wrong)?;
    let version = RowVersion(row.version.unsigned_abs());
    let mutation = sync::Mutation::new(op, key, version, json(values)?).map_err(wrong)?;
    let before = before.map(|before| json(&before.values)).transpose()?;
    changes.push(Change { mutation, before });
    Ok(())
}

/// The outbox row of what has changed, but for what the clock says.
fn entry(store: &Store, id: Uuid, changes: &[Change], request: Option<&str>) -> Result<Option<Row>> {
    if changes.is_empty() {
        return Ok(None);
    }
    let text = |value: serde_json::Result<String>| {
        value.map_err(|error| refused(Code::InvalidValue, format!("a change has no JSON: {error}")))
    };
    let mutations: Vec<&sync::Mutation> = changes.iter().map(|change| &change.mutation).collect();
    let before: Vec<&Option<sync::Values>> = changes.iter().map(|change| &change.before).collect();
    let (mutations, before) = (text(serde_json::to_string(&mutations))?, text(serde_json::to_string(&before))?);
    if mutations.len() > MAX_ENTRY_BYTES {
        return Err(refused(Code::TooLarge, format!("an entry has at most {MAX_ENTRY_BYTES} bytes")));
    }
    if before.len() > MAX_BEFORE_BYTES {
        let message = format!("the rows that an entry changes or deletes had at most {MAX_BEFORE_BYTES} bytes");
        return Err(refused(Code::TooLarge, message).with_hint("change them in several units of work"));
    }
    let values = Values::new()
        .set("at", timestamp_ms(store.now_ms()))
        .set("requestId", request.map(String::from))
        .set("mutations", Value::Json(mutations))
        .set("before", Value::Json(before));
    Ok(Some(Row { id: id.to_string(), internal: store.new_internal(), version: 0, values }))
}

/// All that a unit of work writes, if that can be said before its transaction begins: new rows and hooks, in a
/// number that may be sent at once. Everything else has to look first.
pub(crate) fn writes(store: &Store, mutation: &Mutation, id: Uuid) -> Result<Option<Writes>> {
    let is_new = |operation: &Operation| matches!(operation, Operation::Create { .. });
    let count = mutation.operations.len() + mutation.triggers.len();
    if count > MAX_AT_ONCE || !mutation.operations.iter().all(is_new) || store.planted().is_some() {
        return Ok(None);
    }
    let fragment = &mutation.fragment;
    let (mut rows, mut changes, mut bytes) = (Vec::with_capacity(count), Vec::new(), 0);
    for operation in &mutation.operations {
        let Operation::Create { table, id, values } = operation else { return Ok(None) };
        bytes += values.0.values().map(Value::weight).sum::<usize>();
        if bytes > MAX_AT_ONCE_BYTES {
            return Ok(None);
        }
        let row = Row { id: id.clone(), internal: store.new_internal(), version: 0, values: values.clone() };
        note(&mut changes, fragment, table, sync::Op::Create, &row, &row.values, None)?;
        rows.push((table.clone(), row));
    }
    let hooks = store.internal(HOOKS)?;
    let unit = mutation.idempotency_key();
    rows.extend(mutation.triggers.iter().map(|trigger| (hooks.clone(), trigger.row(store, fragment, unit))));
    let outbox = store.internal(OUTBOX)?;
    let entry = entry(store, id, &changes, None)?.map(|row| (outbox, row));
    Ok(Some(Writes { rows, entry }))
}

pub(crate) fn by_id(table: &Arc<Table>, condition: Condition, limit: usize) -> Select {
    Select { table: table.clone(), condition, order: vec![(ID.into(), Direction::Asc)], after: None, limit }
}
