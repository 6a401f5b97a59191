//! Rows in memory: the same rules as the databases, for tests, tools and as a model of them.
//!
//! One writer at a time works on a copy that shares what it does not touch, and a commit puts the copy in place; a reader
//! keeps what was committed when it began.

use super::{Access, Adapter, Assign, Clock, Mode, Note, Row, Select, Siblings, Step, Tables, Tick, Transaction};
use crate::condition::{Condition, value_of};
use crate::error::{Code, Error, Result, Rule, refused};
use crate::internal::{CLOCKS, is_own};
use crate::query::Direction;
use crate::schema::{Owner, Table};
use crate::shard::Shard;
use crate::values::{Values, compare};
use async_trait::async_trait;
use isles_kernel::value::Value;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OwnedMutexGuard;

type Rows = BTreeMap<(String, String), (Shard, Row)>;

#[derive(Debug, Clone, Default)]
struct State {
    /// By the shard's key and the external id.
    rows: BTreeMap<String, Arc<Rows>>,
    tables: BTreeMap<String, Arc<Table>>,
    clocks: BTreeMap<String, Clock>,
}

/// A database in memory.
#[derive(Default)]
pub struct Memory {
    committed: Arc<Mutex<Arc<State>>>,
    writer: Arc<tokio::sync::Mutex<()>>,
}

impl Memory {
    pub fn new() -> Memory {
        Memory::default()
    }

    fn state(&self) -> Arc<State> {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the state at once, as the writer.
    async fn change<T>(&self, change: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let _turn = self.writer.lock().await;
        let mut state = (*self.state()).clone();
        let done = change(&mut state)?;
        *self.committed.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
        Ok(done)
    }
}

#[async_trait]
impl Adapter for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn begin(&self, access: &Access, mode: Mode) -> Result<Box<dyn Transaction>> {
        let turn = match mode {
            Mode::Read => None,
            Mode::Write => Some(self.writer.clone().lock_owned().await),
        };
        let state = (*self.state()).clone();
        let committed = self.committed.clone();
        Ok(Box::new(MemoryTransaction { access: access.clone(), state, marked: None, committed, turn }))
    }

    async fn shards_with(
        &self,
        table: &Arc<Table>,
        condition: &Condition,
        after: Option<&Shard>,
        limit: usize,
    ) -> Result<Vec<Shard>> {
        let state = self.state();
        let rows = state.rows.get(&table.physical);
        let after = after.map(Shard::key);
        if table.physical == CLOCKS {
            let keys = state.clocks.keys().filter(|key| after.as_ref().is_none_or(|after| *key > after));
            return keys.take(limit).map(|key| Shard::of_key(key)).collect();
        }
        // By their keys, as the rows are.
        let mut shards: Vec<Shard> = Vec::new();
        for ((key, _), (shard, row)) in rows.into_iter().flat_map(|rows| rows.iter()) {
            let is_next = after.as_ref().is_none_or(|after| key > after) && shards.last() != Some(shard);
            if is_next && shards.len() < limit && condition.evaluate(&row.id, &row.values) == Some(true) {
                shards.push(shard.clone());
            }
        }
        Ok(shards)
    }

    fn tables(&self) -> &dyn Tables {
        self
    }
}

#[async_trait]
impl Tables for Memory {
    fn create(&self, table: &Table, _siblings: &Siblings) -> Vec<Step> {
        vec![Step::new(format!("CREATE TABLE \"{}\";", table.physical))]
    }

    fn alter(&self, _before: &Table, after: &Table, _siblings: &Siblings) -> Vec<Step> {
        vec![Step::new(format!("ALTER TABLE \"{}\";", after.physical))]
    }

    async fn shard(&self, _tables: &Siblings) -> Result<Vec<Step>> {
        // Rows have always had a shard here.
        Ok(Vec::new())
    }

    /// Tables are known by their definition, which [`Tables::define`] gives; a step is only noted.
    async fn run(&self, _step: &Step, note: Option<&Note>) -> Result<bool> {
        let Some(Note { key, from, to }) = note else { return Ok(true) };
        self.change(|state| {
            let rows = Arc::make_mut(state.rows.entry(crate::internal::SETTINGS.into()).or_default());
            let place = (String::new(), key.clone());
            if rows.get(&place).and_then(|(_, row)| row.values.text("value")) != from.as_deref() {
                return Ok(false);
            }
            let values = Values::new().set("value", to.as_str());
            rows.insert(place, (Shard::None, Row { id: key.clone(), internal: 0, version: 0, values }));
            Ok(true)
        })
        .await
    }

    async fn exists(&self, table: &Table) -> Result<bool> {
        Ok(self.state().tables.contains_key(&table.physical))
    }

    async fn define(&self, table: &Arc<Table>) -> Result<()> {
        self.change(|state| {
            let before = state.tables.insert(table.physical.clone(), table.clone());
            let rows = Arc::make_mut(state.rows.entry(table.physical.clone()).or_default());
            let had = |name: &str| before.as_ref().is_some_and(|before| before.column(name).is_ok());
            for column in table.columns.iter().filter(|column| !had(&column.name)) {
                let value = match &column.default {
                    Some(crate::schema::Default::Value(value)) => value.clone(),
                    _ => Value::Null,
                };
                for (_, row) in rows.values_mut() {
                    row.values.0.entry(column.name.clone()).or_insert_with(|| value.clone());
                }
            }
            Ok(())
        })
        .await
    }

    async fn assign(&self, tables: &[Arc<Table>], by: &Assign) -> Result<u64> {
        self.change(|state| {
            let mut count = 0;
            for table in tables {
                let rows = Arc::make_mut(state.rows.entry(table.physical.clone()).or_default());
                for (_, row) in rows.clone().into_values().filter(|(shard, _)| *shard == Shard::None) {
                    let shard = match by {
                        Assign::To(shard) => shard.clone(),
                        Assign::Column(column) => match row.values.text(column) {
                            Some(name) if !name.is_empty() => Shard::named(name)?,
                            _ => continue,
                        },
                    };
                    rows.remove(&(String::new(), row.id.clone()));
                    if rows.insert((shard.key(), row.id.clone()), (shard, row)).is_some() {
                        return Err(Error::broken(Rule::Unique));
                    }
                    count += 1;
                }
            }
            for table in tables {
                let rows = state.rows.get(&table.physical).cloned().unwrap_or_default();
                for ((key, _), (_, row)) in rows.iter() {
                    state.check_row(table, key, row)?;
                }
            }
            Ok(count)
        })
        .await
    }
}

impl State {
    /// Unique keys and references of a row that is to be stored.
    fn check_row(&self, table: &Table, key: &str, row: &Row) -> Result<()> {
        let empty = Arc::default();
        let rows = self.rows.get(&table.physical).unwrap_or(&empty);
        for index in table.indexes.iter().filter(|index| index.unique) {
            let values = |row: &Row| -> Vec<Value> {
                index.columns.iter().map(|column| value_of(column, &row.id, &row.values)).collect()
            };
            let own = values(row);
            if own.iter().any(Value::is_null) {
                continue;
            }
            let taken = of_shard(rows, key).any(|(_, other)| other.id != row.id && values(other) == own);
            if taken {
                return Err(Error::broken(Rule::Unique));
            }
        }
        for column in &table.columns {
            let (Some(target), Value::Text(id)) = (&column.reference, row.values.get(&column.name)) else { continue };
            let target = self.sibling(table, target);
            let there = target.and_then(|target| self.rows.get(&target.physical));
            if !there.is_some_and(|rows| rows.contains_key(&(key.into(), id.clone()))) {
                return Err(Error::broken(Rule::Reference));
            }
        }
        Ok(())
    }

    fn sibling(&self, table: &Table, name: &str) -> Option<&Arc<Table>> {
        self.tables.values().find(|other| other.schema == table.schema && other.name == name)
    }

    /// Whether rows refer to this one.
    fn is_referred_to(&self, table: &Table, key: &str, id: &str) -> bool {
        let others = self.tables.values().filter(|other| other.schema == table.schema);
        others.flat_map(|other| other.columns.iter().map(move |column| (other, column))).any(|(other, column)| {
            column.reference.as_deref() == Some(&table.name)
                && self.rows.get(&other.physical).is_some_and(|rows| {
                    of_shard(rows, key).any(|(_, row)| row.values.text(&column.name) == Some(id) && row.id != id)
                })
        })
    }
}

fn of_shard<'a>(rows: &'a Rows, key: &str) -> impl Iterator<Item = &'a (Shard, Row)> {
    let key = key.to_string();
    rows.range((key.clone(), String::new())..).take_while(move |((own, _), _)| *own == key).map(|(_, row)| row)
}

struct MemoryTransaction {
    access: Access,
    state: State,
    marked: Option<State>,
    committed: Arc<Mutex<Arc<State>>>,
    /// Readers have none.
    turn: Option<OwnedMutexGuard<()>>,
}

impl MemoryTransaction {
    fn owner(&self, table: &Table) -> Shard {
        match table.owner {
            Owner::Database => Shard::None,
            Owner::Shards => self.access.owner().clone(),
        }
    }

    fn rows(&mut self, table: &Table) -> &mut Rows {
        Arc::make_mut(self.state.rows.entry(table.physical.clone()).or_default())
    }

    fn may_write(&self) -> Result<()> {
        match self.turn.is_some() && self.access != Access::Global {
            true => Ok(()),
            false => Err(refused(Code::GlobalScope, "nothing is written here")),
        }
    }

    fn found(&self, select: &Select) -> Vec<Row> {
        let empty = Arc::default();
        let rows = self.state.rows.get(&select.table.physical).unwrap_or(&empty);
        let filter = self.access.filter(&select.table);
        let mine = rows.values().filter(|(shard, _)| filter.is_none_or(|filter| filter == shard));
        let meets = |row: &&Row| select.condition.evaluate(&row.id, &row.values) == Some(true);
        let mut found: Vec<Row> = mine.map(|(_, row)| row).filter(meets).cloned().collect();
        let place = |row: &Row| -> Vec<Value> {
            select.order.iter().map(|(column, _)| value_of(column, &row.id, &row.values)).collect()
        };
        found.sort_by(|a, b| in_order(&place(a), &place(b), &select.order));
        if let Some(after) = &select.after {
            found.retain(|row| in_order(&place(row), after, &select.order) == Ordering::Greater);
        }
        found.truncate(select.limit);
        found
    }

    /// The key of the row that a write is about.
    fn key_of(&self, table: &Table, id: &str) -> Option<(String, String)> {
        let rows = self.state.rows.get(&table.physical)?;
        let own = (self.owner(table).key(), id.to_string());
        match self.access {
            Access::Whole(_) if !rows.contains_key(&own) && !is_own(table) => {
                rows.keys().find(|(_, other)| other == id).cloned()
            }
            _ => rows.contains_key(&own).then_some(own),
        }
    }
}

/// Null is before everything, and behind everything in descending order.
fn in_order(a: &[Value], b: &[Value], order: &[(String, Direction)]) -> Ordering {
    for ((a, b), (_, direction)) in a.iter().zip(b).zip(order) {
        let one = match (a.is_null(), b.is_null()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => compare(a, b).unwrap_or(Ordering::Equal),
        };
        let one = if *direction == Direction::Desc { one.reverse() } else { one };
        if one != Ordering::Equal {
            return one;
        }
    }
    Ordering::Equal
}

#[async_trait]
impl Transaction for MemoryTransaction {
    async fn select(&mut self, select: &Select) -> Result<Vec<Row>> {
        Ok(self.found(select))
    }

    async fn count(&mut self, select: &Select) -> Result<u64> {
        Ok(self.found(select).len() as u64)
    }

    async fn insert(&mut self, table: &Arc<Table>, row: &Row) -> Result<()> {
        self.may_write()?;
        let shard = self.owner(table);
        let key = (shard.key(), row.id.clone());
        if self.rows(table).contains_key(&key) {
            return Err(Error::broken(Rule::Unique));
        }
        // A row may refer to itself.
        self.rows(table).insert(key.clone(), (shard, row.clone()));
        self.state.check_row(table, &key.0, row)
    }

    async fn update(&mut self, table: &Arc<Table>, id: &str, version: i64, set: &Values) -> Result<bool> {
        self.may_write()?;
        let Some(key) = self.key_of(table, id) else { return Ok(false) };
        let Some((_, row)) = self.rows(table).get_mut(&key) else { return Ok(false) };
        if row.version != version {
            return Ok(false);
        }
        row.version += 1;
        row.values.0.extend(set.0.clone());
        let row = row.clone();
        self.state.check_row(table, &key.0, &row)?;
        Ok(true)
    }

    async fn delete(&mut self, table: &Arc<Table>, id: &str, version: i64) -> Result<bool> {
        self.may_write()?;
        let Some(key) = self.key_of(table, id) else { return Ok(false) };
        if self.rows(table).get(&key).is_none_or(|(_, row)| row.version != version) {
            return Ok(false);
        }
        if self.state.is_referred_to(table, &key.0, id) {
            return Err(Error::broken(Rule::Reference));
        }
        self.rows(table).remove(&key);
        Ok(true)
    }

    async fn tick(&mut self, tick: Tick<'_>) -> Result<Clock> {
        self.may_write()?;
        let clock = self.state.clocks.entry(self.access.owner().key()).or_default();
        match tick {
            Tick::Hold => {}
            Tick::Next(entry) => {
                clock.version += 1;
                clock.prev = clock.last.replace(entry.into());
            }
            Tick::Back => {
                clock.version -= 1;
                clock.last.clone_from(&clock.prev);
            }
        }
        Ok(clock.clone())
    }

    async fn clock(&mut self) -> Result<Clock> {
        Ok(self.state.clocks.get(&self.access.owner().key()).cloned().unwrap_or_default())
    }

    async fn set_floor(&mut self, floor: i64) -> Result<()> {
        self.may_write()?;
        self.state.clocks.entry(self.access.owner().key()).or_default().floor = floor;
        Ok(())
    }

    async fn mark(&mut self) -> Result<()> {
        self.marked = Some(self.state.clone());
        Ok(())
    }

    async fn roll_back_to_mark(&mut self) -> Result<()> {
        if let Some(marked) = &self.marked {
            self.state = marked.clone();
        }
        Ok(())
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        if self.turn.is_some() {
            *self.committed.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(self.state);
        }
        Ok(())
    }

    async fn roll_back(self: Box<Self>) {}
}
