//! What an application sees: the server's rows with the edits of unconfirmed commands over them; get and list.
//!
//! A declared index leads to candidates by the columns that a query fixes, and the predicate is evaluated on each of
//! them; so an answer is the same with an index as without.

use crate::row::{Edit, Overlay, Row, play};
use isles_kernel::sync::{Predicate, RowKey, Values, compare};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Columns of a table by which rows are found fast.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Index {
    pub schema: String,
    pub table: String,
    pub columns: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Ascending,
    Descending,
}

/// Which rows of a table, in which order.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    pub schema: String,
    pub table: String,
    pub predicate: Predicate,
    /// Columns to order by. Nulls are largest, as PostgreSQL's; rows that are equal are in the order of their ids.
    pub order: Vec<(String, Direction)>,
    pub offset: usize,
    pub limit: Option<usize>,
}

impl Query {
    /// All rows of a table, in the order of their ids.
    pub fn table(schema: impl Into<String>, table: impl Into<String>) -> Query {
        Query {
            schema: schema.into(),
            table: table.into(),
            predicate: Predicate::everything(),
            order: Vec::new(),
            offset: 0,
            limit: None,
        }
    }

    pub fn matching(self, predicate: Predicate) -> Query {
        Query { predicate, ..self }
    }

    pub fn order_by(mut self, column: impl Into<String>, direction: Direction) -> Query {
        self.order.push((column.into(), direction));
        self
    }

    pub fn limit(self, limit: usize) -> Query {
        Query { limit: Some(limit), ..self }
    }

    /// The values that the predicate fixes for a column: conditions at its top, all of which must hold.
    fn fixed(&self, column: &str) -> Option<&serde_json::Value> {
        let of = |part: &'_ Predicate| matches!(part, Predicate::Eq(name, _) if name == column);
        let found = match &self.predicate {
            Predicate::All(parts) => parts.iter().find(|part| of(part)),
            part => Some(part).filter(|part| of(part)),
        };
        match found {
            Some(Predicate::Eq(_, value)) => Some(value),
            _ => None,
        }
    }
}

/// The server's rows, the overlay, and the indexes over what is seen of both.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) base: BTreeMap<RowKey, Row>,
    overlay: Overlay,
    indexes: BTreeMap<Index, BTreeMap<Vec<Sortable>, BTreeSet<String>>>,
}

/// What was seen of rows before something changed.
pub(crate) type Before = BTreeMap<RowKey, Option<Row>>;

impl Rows {
    pub(crate) fn new(base: BTreeMap<RowKey, Row>, indexes: &[Index]) -> Rows {
        let indexes = indexes.iter().map(|index| (index.clone(), BTreeMap::new())).collect();
        let mut rows = Rows { base, overlay: BTreeMap::new(), indexes };
        let keys: Vec<RowKey> = rows.base.keys().cloned().collect();
        for key in keys {
            let row = rows.get(&key).cloned();
            rows.reindex(&key, None, row.as_ref());
        }
        rows
    }

    pub(crate) fn get(&self, key: &RowKey) -> Option<&Row> {
        match self.overlay.get(key) {
            Some(shown) => shown.as_ref(),
            None => self.base.get(key),
        }
    }

    /// Remembers what is seen of a row, once.
    pub(crate) fn note(&self, before: &mut Before, key: &RowKey) {
        if !before.contains_key(key) {
            before.insert(key.clone(), self.get(key).cloned());
        }
    }

    /// Plays the edits of one more command over what is seen, and tells whose sight has changed.
    pub(crate) fn append(&mut self, edits: &[Edit]) -> Vec<RowKey> {
        let mut before = Before::new();
        for edit in edits {
            self.note(&mut before, &edit.key);
            play(edit, &self.base, &mut self.overlay);
        }
        self.changed_since(before)
    }

    /// Plays the edits of commands over the rows again, and tells whose sight has changed since `before`.
    pub(crate) fn rebase<'a>(
        &mut self,
        mut before: Before,
        edits: impl Iterator<Item = &'a Edit> + Clone,
    ) -> Vec<RowKey> {
        for key in self.overlay.keys().chain(edits.clone().map(|edit| &edit.key)) {
            self.note(&mut before, key);
        }
        let mut overlay = BTreeMap::new();
        for edit in edits {
            play(edit, &self.base, &mut overlay);
        }
        self.overlay = overlay;
        self.changed_since(before)
    }

    fn changed_since(&mut self, mut before: Before) -> Vec<RowKey> {
        before.retain(|key, row| row.as_ref() != self.get(key));
        for (key, row) in &before {
            let now = self.get(key).cloned();
            self.reindex(key, row.as_ref(), now.as_ref());
        }
        before.into_keys().collect()
    }

    fn reindex(&mut self, key: &RowKey, before: Option<&Row>, after: Option<&Row>) {
        for (index, entries) in &mut self.indexes {
            if index.schema != key.schema || index.table != key.table {
                continue;
            }
            if let Some(row) = before {
                let at = index_key(index, &row.values);
                if let Some(ids) = entries.get_mut(&at) {
                    ids.remove(&key.external_id);
                    if ids.is_empty() {
                        entries.remove(&at);
                    }
                }
            }
            if let Some(row) = after {
                entries.entry(index_key(index, &row.values)).or_default().insert(key.external_id.clone());
            }
        }
    }

    pub(crate) fn list(&self, query: &Query) -> Vec<(&RowKey, &Row)> {
        let mut found = match self.candidates(query) {
            Some(keys) => keys.into_iter().filter_map(|key| self.entry(&key)).collect(),
            None => self.table(&query.schema, &query.table),
        };
        found.retain(|(_, row)| query.predicate.matches(&row.values));
        found.sort_by(|left, right| in_order(query, left, right));
        let limit = query.limit.unwrap_or(usize::MAX);
        found.into_iter().skip(query.offset).take(limit).collect()
    }

    fn entry(&self, key: &RowKey) -> Option<(&RowKey, &Row)> {
        match self.overlay.get_key_value(key) {
            Some((key, shown)) => shown.as_ref().map(|row| (key, row)),
            None => self.base.get_key_value(key),
        }
    }

    /// The keys that the best index leads to: the one of which the query fixes the most leading columns.
    fn candidates(&self, query: &Query) -> Option<Vec<RowKey>> {
        let of_table = |index: &&Index| index.schema == query.schema && index.table == query.table;
        let led = self.indexes.keys().filter(of_table).map(|index| {
            let fixed = index.columns.iter().map_while(|column| query.fixed(column));
            (fixed.map(|value| Sortable::of(Some(value))).collect::<Vec<_>>(), index)
        });
        let (prefix, index) = led.max_by_key(|(prefix, _)| prefix.len()).filter(|(prefix, _)| !prefix.is_empty())?;
        let entries = self.indexes.get(index)?.range(prefix.clone()..).take_while(|(at, _)| at.starts_with(&prefix));
        let key =
            |id: &String| RowKey { schema: query.schema.clone(), table: query.table.clone(), external_id: id.clone() };
        Some(entries.flat_map(|(_, ids)| ids.iter().map(key)).collect())
    }

    fn table(&self, schema: &str, table: &str) -> Vec<(&RowKey, &Row)> {
        let first = RowKey { schema: schema.into(), table: table.into(), external_id: String::new() };
        let inside = |key: &RowKey| key.schema == schema && key.table == table;
        let base = self.base.range(first.clone()..).take_while(|(key, _)| inside(key));
        let beneath = base.filter(|(key, _)| !self.overlay.contains_key(*key));
        let overlay = self.overlay.range(first..).take_while(|(key, _)| inside(key));
        beneath.chain(overlay.filter_map(|(key, row)| Some((key, row.as_ref()?)))).collect()
    }
}

fn in_order(query: &Query, left: &(&RowKey, &Row), right: &(&RowKey, &Row)) -> Ordering {
    for (column, direction) in &query.order {
        let of = |row: &Row| Sortable::of(row.values.get(column));
        let order = match (left.1.values.get(column), right.1.values.get(column)) {
            (Some(left), Some(right)) => compare(left, right),
            _ => None,
        };
        let order = order.unwrap_or_else(|| of(left.1).cmp(&of(right.1)));
        let order = match direction {
            Direction::Ascending => order,
            Direction::Descending => order.reverse(),
        };
        if order.is_ne() {
            return order;
        }
    }
    left.0.cmp(right.0)
}

fn index_key(index: &Index, values: &Values) -> Vec<Sortable> {
    index.columns.iter().map(|column| Sortable::of(values.get(column))).collect()
}

/// A value with a total order: what compares as equal has the same one, and a few others may share it. Integers beyond
/// 2^53 are rounded, which makes the order total where JSON has integers and floats.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Sortable {
    Bool(bool),
    Number(Rounded),
    Text(String),
    /// An array or object, by its text.
    Other(String),
    Null,
}

impl Sortable {
    fn of(value: Option<&serde_json::Value>) -> Sortable {
        match value {
            None | Some(serde_json::Value::Null) => Sortable::Null,
            Some(serde_json::Value::Bool(truth)) => Sortable::Bool(*truth),
            // Adding 0 makes one zero of two.
            Some(serde_json::Value::Number(number)) => {
                Sortable::Number(Rounded(number.as_f64().unwrap_or_default() + 0.0))
            }
            Some(serde_json::Value::String(text)) => Sortable::Text(text.clone()),
            Some(other) => Sortable::Other(other.to_string()),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Rounded(f64);

impl PartialEq for Rounded {
    fn eq(&self, other: &Rounded) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Rounded {}

impl PartialOrd for Rounded {
    fn partial_cmp(&self, other: &Rounded) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rounded {
    fn cmp(&self, other: &Rounded) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}
