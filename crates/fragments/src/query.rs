//! Finds: by an index, with joins, counts and pages.
//!
//! A find names an index, and its condition names columns of that index only, so that no find scans a table by accident.
//! A join fetches the rows that belong to those of its parent, level by level and in the same snapshot, by the same
//! scoped select as everything else: there is no statement here that could name a table without its shard.
//!
//! A cursor is the place of the last row of a page: values of the index, never a shard.

use crate::adapter::{Row, Select, Transaction};
use crate::condition::{Condition, Op, is_in, value_of};
use crate::error::{Code, Error, Result, refused};
use crate::schema::{ID, PRIMARY, Schema, Table};
use crate::values::{Values, from_json, to_json};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use futures::future::BoxFuture;
use isles_kernel::value::Value;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rows of one find, joined ones counted: they are held in memory.
pub const MAX_ROWS: usize = 10_000;
/// Levels of joins: each is a statement.
pub const MAX_JOIN_DEPTH: usize = 8;
/// Joins of one find, at all levels together.
pub const MAX_JOINS: usize = 32;
/// Keys of one list; more are asked for in several statements.
const KEYS_PER_SELECT: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    Asc,
    Desc,
}

/// What is wanted of a table.
#[derive(Debug, Clone)]
pub struct Find {
    pub(crate) table: String,
    index: String,
    condition: Condition,
    columns: Option<Vec<String>>,
    order: Option<(String, Direction)>,
    limit: Option<usize>,
    after: Option<String>,
    joins: Vec<Join>,
}

/// Rows that belong to those of the parent.
#[derive(Debug, Clone)]
pub struct Join {
    alias: String,
    many: bool,
    /// Column of the joined table, column of the parent.
    on: (String, String),
    find: Find,
}

impl Find {
    /// All rows of a table in order of their ids, until it is said otherwise.
    pub fn of(table: &str) -> Find {
        Find {
            table: table.into(),
            index: PRIMARY.into(),
            condition: Condition::All,
            columns: None,
            order: None,
            limit: None,
            after: None,
            joins: Vec::new(),
        }
    }

    /// The row of an id.
    pub fn by_id(table: &str, id: &str) -> Find {
        Find::of(table).where_index(PRIMARY, crate::condition::eq(ID, id))
    }

    pub fn where_index(mut self, index: &str, condition: Condition) -> Find {
        self.index = index.into();
        self.condition = condition;
        self
    }

    pub fn select(mut self, columns: &[&str]) -> Find {
        self.columns = Some(columns.iter().map(|column| (*column).into()).collect());
        self
    }

    pub fn order_by_index(mut self, index: &str, direction: Direction) -> Find {
        self.order = Some((index.into(), direction));
        self
    }

    pub fn page_size(mut self, rows: usize) -> Find {
        self.limit = Some(rows);
        self
    }

    /// Goes on behind a page.
    pub fn after(mut self, cursor: &str) -> Find {
        self.after = Some(cursor.into());
        self
    }

    /// The one row whose `column` is the parent's `parent`.
    pub fn join_one(self, alias: &str, on: (&str, &str), find: Find) -> Find {
        self.join(alias, false, on, find)
    }

    pub fn join_many(self, alias: &str, on: (&str, &str), find: Find) -> Find {
        self.join(alias, true, on, find)
    }

    fn join(mut self, alias: &str, many: bool, on: (&str, &str), find: Find) -> Find {
        self.joins.push(Join { alias: alias.into(), many, on: (on.0.into(), on.1.into()), find });
        self
    }

    /// Refuses what names something that is not there, before anything is read.
    pub(crate) fn check(&self, schema: &Schema) -> Result<()> {
        let mut joins = 0;
        self.check_level(schema, 0, &mut joins)
    }

    fn check_level(&self, schema: &Schema, depth: usize, joins: &mut usize) -> Result<()> {
        let invalid = |message: String| Err(refused(Code::InvalidQuery, message));
        let table = schema.table(&self.table)?;
        self.condition.check(table, &table.index_columns(&self.index)?)?;
        if let Some((index, _)) = &self.order {
            table.index_columns(index)?;
        }
        for column in self.columns.iter().flatten() {
            table.type_of(column)?;
        }
        if self.limit.is_some_and(|limit| limit == 0 || limit > MAX_ROWS) {
            return invalid(format!("a page has 1 to {MAX_ROWS} rows"));
        }
        *joins += self.joins.len();
        if depth > MAX_JOIN_DEPTH || *joins > MAX_JOINS {
            return invalid(format!("at most {MAX_JOINS} joins, {MAX_JOIN_DEPTH} levels deep"));
        }
        for join in &self.joins {
            let child = schema.table(&join.find.table)?;
            if child.type_of(&join.on.0)?.data() != table.type_of(&join.on.1)?.data() {
                return invalid(format!("\"{}\" and \"{}\" have different types", join.on.0, join.on.1));
            }
            let led = |index: &crate::schema::Index| index.columns.first() == Some(&join.on.0);
            if join.on.0 != ID && !child.indexes.iter().any(led) {
                return invalid(format!("no index of \"{}\" begins with \"{}\"", child.name, join.on.0));
            }
            if join.find.after.is_some() {
                return invalid("a joined table has no cursor".into());
            }
            join.find.check_level(schema, depth + 1, joins)?;
        }
        Ok(())
    }

    fn order(&self, table: &Table) -> Result<(String, Vec<String>, Direction)> {
        let (index, direction) = self.order.clone().unwrap_or((self.index.clone(), Direction::Asc));
        let mut columns = table.index_columns(&index)?;
        if !columns.iter().any(|column| column == ID) {
            columns.push(ID.into());
        }
        Ok((index, columns, direction))
    }

    /// The select of this level, with one more condition.
    fn select_of(&self, table: &Arc<Table>, more: Condition, limit: usize) -> Result<Select> {
        let (index, columns, direction) = self.order(table)?;
        let after = match &self.after {
            Some(cursor) => Some(Place::read(cursor, &index, direction, &columns, table)?),
            None => None,
        };
        Ok(Select {
            table: table.clone(),
            condition: self.condition.clone().and(more),
            order: columns.into_iter().map(|column| (column, direction)).collect(),
            after,
            limit,
        })
    }
}

/// The identity of a row as it was read: which row it is, and which version of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowId {
    pub external: String,
    /// A row that was deleted and made again under the same id is another row.
    pub(crate) internal: i64,
    pub(crate) version: i64,
}

impl RowId {
    pub fn version(&self) -> i64 {
        self.version
    }
}

/// A row that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    pub id: RowId,
    pub values: Values,
    pub joined: BTreeMap<String, Vec<Found>>,
}

impl Found {
    pub fn of_row(row: Row) -> Found {
        let id = RowId { external: row.id, internal: row.internal, version: row.version };
        Found { id, values: row.values, joined: BTreeMap::new() }
    }

    /// Rows of a join.
    pub fn many(&self, alias: &str) -> &[Found] {
        self.joined.get(alias).map_or(&[], Vec::as_slice)
    }

    pub fn one(&self, alias: &str) -> Option<&Found> {
        self.many(alias).first()
    }

    fn value(&self, column: &str) -> Value {
        value_of(column, &self.id.external, &self.values)
    }
}

/// Rows of a find, and where to go on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    pub rows: Vec<Found>,
    /// None on the last page.
    pub next: Option<String>,
}

/// Carries out a find, without and with a page's end.
pub(crate) async fn run(tx: &mut dyn Transaction, schema: &Schema, find: &Find) -> Result<Page> {
    let table = schema.table(&find.table)?;
    let wanted = find.limit.unwrap_or(MAX_ROWS);
    let select = find.select_of(table, Condition::All, wanted + 1)?;
    let mut rows: Vec<Found> = tx.select(&select).await?.into_iter().map(Found::of_row).collect();
    let has_more = rows.len() > wanted;
    if has_more && find.limit.is_none() {
        return Err(too_many());
    }
    rows.truncate(wanted);
    let next = match rows.last().filter(|_| has_more) {
        Some(last) => {
            let (index, columns, direction) = find.order(table)?;
            Some(Place::of(last, &index, direction, &columns).text())
        }
        None => None,
    };
    let mut count = rows.len();
    join(tx, schema, find, &mut rows, &mut count).await?;
    narrow(find, &mut rows);
    Ok(Page { rows, next })
}

pub(crate) async fn count(tx: &mut dyn Transaction, schema: &Schema, find: &Find) -> Result<u64> {
    if !find.joins.is_empty() || find.after.is_some() || find.limit.is_some() {
        return Err(refused(Code::InvalidQuery, "a count has no joins and no pages"));
    }
    let table = schema.table(&find.table)?;
    tx.count(&find.select_of(table, Condition::All, usize::MAX)?).await
}

fn too_many() -> Error {
    refused(Code::InvalidQuery, format!("more than {MAX_ROWS} rows")).with_hint("ask for pages by page_size and after")
}

/// Fetches what belongs to the rows.
fn join<'a>(
    tx: &'a mut dyn Transaction,
    schema: &'a Schema,
    find: &'a Find,
    rows: &'a mut [Found],
    count: &'a mut usize,
) -> BoxFuture<'a, Result<()>> {
    Box::pin(async move {
        for part in &find.joins {
            let mut children = fetch(tx, schema, part, rows, count).await?;
            join(tx, schema, &part.find, &mut children, count).await?;
            for row in rows.iter_mut() {
                let key = row.value(&part.on.1);
                let mut own: Vec<Found> =
                    children.iter().filter(|child| !key.is_null() && child.value(&part.on.0) == key).cloned().collect();
                own.truncate(if part.many { part.find.limit.unwrap_or(MAX_ROWS) } else { 1 });
                narrow(&part.find, &mut own);
                row.joined.insert(part.alias.clone(), own);
            }
        }
        Ok(())
    })
}

async fn fetch(
    tx: &mut dyn Transaction,
    schema: &Schema,
    part: &Join,
    rows: &[Found],
    count: &mut usize,
) -> Result<Vec<Found>> {
    let table = schema.table(&part.find.table)?;
    let mut keys: Vec<Value> = Vec::new();
    for key in rows.iter().map(|row| row.value(&part.on.1)).filter(|key| !key.is_null()) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    // A page of a joined table is a page for each parent, so each is asked for by itself.
    let chunk = if part.many && part.find.limit.is_some() { 1 } else { KEYS_PER_SELECT };
    let mut found = Vec::new();
    for keys in keys.chunks(chunk) {
        let room = (MAX_ROWS + 1).saturating_sub(*count);
        let limit = part.find.limit.filter(|_| part.many).map_or(room, |limit| limit.min(room));
        let keys = match keys {
            [key] => Condition::Compare { column: part.on.0.clone(), op: Op::Eq, value: key.clone() },
            keys => is_in(&part.on.0, keys.iter().cloned()),
        };
        let select = part.find.select_of(table, keys, limit)?;
        let children = tx.select(&select).await?;
        *count += children.len();
        if *count > MAX_ROWS {
            return Err(too_many());
        }
        found.extend(children.into_iter().map(Found::of_row));
    }
    Ok(found)
}

/// Leaves the columns that were asked for.
fn narrow(find: &Find, rows: &mut [Found]) {
    if let Some(columns) = &find.columns {
        for row in rows {
            row.values.0.retain(|name, _| columns.contains(name));
        }
    }
}

/// A place in the order of an index.
#[derive(Debug, Serialize, Deserialize)]
struct Place {
    v: u8,
    index: String,
    direction: Direction,
    values: Vec<serde_json::Value>,
}

impl Place {
    fn of(row: &Found, index: &str, direction: Direction, columns: &[String]) -> Place {
        let values = columns.iter().map(|column| to_json(&row.value(column))).collect();
        Place { v: 1, index: index.into(), direction, values }
    }

    fn text(&self) -> String {
        BASE64.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    fn read(cursor: &str, index: &str, direction: Direction, columns: &[String], table: &Table) -> Result<Vec<Value>> {
        let wrong = || refused(Code::InvalidCursor, "the cursor is not one of this find");
        let bytes = BASE64.decode(cursor).map_err(|_| wrong())?;
        let place: Place = serde_json::from_slice(&bytes).map_err(|_| wrong())?;
        if place.v != 1 || place.index != index || place.direction != direction || place.values.len() != columns.len() {
            return Err(wrong());
        }
        let read = |(column, json): (&String, &serde_json::Value)| from_json(json, table.type_of(column)?);
        columns.iter().zip(&place.values).map(read).collect::<Result<Vec<Value>>>().map_err(|_| wrong())
    }
}
