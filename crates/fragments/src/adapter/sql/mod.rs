//! What the SQL databases share.
//!
//! A statement is printed from a select or a row, for one access, with its parameters and their types. On SQLite and
//! PostgreSQL every table has `_shard`, which may be null, and `_shardKey`, which is generated from it and is not; every
//! key, index and reference is led by it, and every statement names it. An Isles database does the same by itself for the
//! tenant of the session, so nothing is said there.
//!
//! In reading order:
//!   * this file        statements about rows
//!   * [`ddl`]          statements about tables
//!   * [`transaction`]  a transaction over a link to a database

pub(crate) mod ddl;
pub(crate) mod transaction;

use super::{Access, Row, Select, Tick};
use crate::condition::{Condition, Match};
use crate::error::{Code, Result, refused};
use crate::query::Direction;
use crate::schema::{ID, Owner, Table};
use crate::shard::Shard;
use crate::values::Values;
use ddl::SETTING;
use isles_kernel::value::{DataType, Value};
use std::fmt::Write;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
    Isles,
}

/// A bug to have, for tests that show that the harness finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// Statements do not name their shard.
    NoShardPredicate,
    /// Versions of the outbox come from a counter that nobody holds until the commit.
    LooseClock,
}

/// The columns of a clock.
const CLOCK: [DataType; 4] = [DataType::Int8, DataType::Int8, DataType::Text, DataType::Text];

/// A statement with its parameters, and the types of its columns.
#[derive(Debug, Clone)]
pub(crate) struct Statement {
    pub(crate) sql: String,
    pub(crate) params: Vec<Value>,
    /// Those of the parameters.
    pub(crate) types: Vec<DataType>,
    pub(crate) columns: Vec<DataType>,
}

pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

struct Printer<'a> {
    dialect: Dialect,
    access: &'a Access,
    planted: Option<Planted>,
    statement: Statement,
}

impl Dialect {
    /// Whether tables here have `_shard` and `_shardKey` that statements name.
    pub(crate) fn names_shards(self) -> bool {
        self != Dialect::Isles
    }
}

impl<'a> Printer<'a> {
    fn new(dialect: Dialect, access: &'a Access, planted: Option<Planted>) -> Printer<'a> {
        let statement = Statement { sql: String::new(), params: Vec::new(), types: Vec::new(), columns: Vec::new() };
        Printer { dialect, access, planted, statement }
    }

    fn push(&mut self, text: &str) {
        self.statement.sql.push_str(text);
    }

    fn push_name(&mut self, name: &str) {
        self.push("\"");
        name.split('"').enumerate().for_each(|(n, part)| {
            self.push(if n > 0 { "\"\"" } else { "" });
            self.push(part);
        });
        self.push("\"");
    }

    fn param(&mut self, value: &Value, ty: DataType) {
        self.statement.params.push(value.clone());
        self.statement.types.push(ty);
        let number = self.statement.params.len();
        let sign = if self.dialect == Dialect::Sqlite { '?' } else { '$' };
        // Writing to a String does not fail.
        let _ = write!(self.statement.sql, "{sign}{number}");
    }

    /// `WHERE` with the shard, first of all.
    fn scope(&mut self, table: &Table) {
        self.push(" WHERE ");
        let filter = self.access.filter(table);
        match filter.filter(|_| self.dialect.names_shards() && self.planted != Some(Planted::NoShardPredicate)) {
            Some(shard) => self.equals_key(shard),
            None => self.push("TRUE"),
        }
    }

    fn equals_key(&mut self, shard: &Shard) {
        self.push("\"_shardKey\" = ");
        self.param(&Value::Text(shard.key()), DataType::Text);
    }

    fn condition(&mut self, table: &Table, condition: &Condition) -> Result<()> {
        match condition {
            Condition::All => self.push("TRUE"),
            Condition::And(items) => self.list(table, items, " AND ", "TRUE")?,
            Condition::Or(items) => self.list(table, items, " OR ", "FALSE")?,
            Condition::Not(item) => {
                self.push("NOT (");
                self.condition(table, item)?;
                self.push(")");
            }
            Condition::Compare { column, op, value } => {
                self.push(&format!("{} {} ", quoted(column), op.sql()));
                self.param(value, table.type_of(column)?.data());
            }
            Condition::In { values, .. } if values.is_empty() => self.push("FALSE"),
            Condition::In { column, values } => {
                let ty = table.type_of(column)?.data();
                self.push(&format!("{} IN (", quoted(column)));
                for (n, value) in values.iter().enumerate() {
                    self.push(if n > 0 { ", " } else { "" });
                    self.param(value, ty);
                }
                self.push(")");
            }
            Condition::IsNull { column } => self.push(&format!("{} IS NULL", quoted(column))),
            Condition::Matches { column, how, text } => self.matches(column, *how, text),
        }
        Ok(())
    }

    fn list(&mut self, table: &Table, items: &[Condition], between: &str, empty: &str) -> Result<()> {
        if items.is_empty() {
            self.push(empty);
        }
        for (n, item) in items.iter().enumerate() {
            self.push(if n > 0 { between } else { "" });
            self.push("(");
            self.condition(table, item)?;
            self.push(")");
        }
        Ok(())
    }

    /// A part of a text. LIKE would take some characters for others.
    fn matches(&mut self, column: &str, how: Match, text: &str) {
        let column = quoted(column);
        let length = text.chars().count();
        let text = Value::Text(text.into());
        match how {
            Match::Contains => {
                let function = if self.dialect == Dialect::Sqlite { "instr" } else { "strpos" };
                self.push(&format!("{function}({column}, "));
                self.param(&text, DataType::Text);
                self.push(") > 0");
            }
            Match::StartsWith => {
                self.push(&format!("substr({column}, 1, {length}) = "));
                self.param(&text, DataType::Text);
            }
            Match::EndsWith => {
                self.push(&format!(
                    "length({column}) >= {length} AND substr({column}, length({column}) - {length} + 1) = "
                ));
                self.param(&text, DataType::Text);
            }
        }
    }

    /// What comes behind a place in the order. Null comes first, or last in descending order.
    fn behind(&mut self, select: &Select, after: &[Value]) -> Result<()> {
        self.push("(");
        for (n, ((column, direction), value)) in select.order.iter().zip(after).enumerate() {
            self.push(if n > 0 { " OR (" } else { "(" });
            for ((column, _), value) in select.order[..n].iter().zip(after) {
                match value.is_null() {
                    true => self.push(&format!("{} IS NULL AND ", quoted(column))),
                    false => {
                        self.push(&format!("{} = ", quoted(column)));
                        self.param(value, select.table.type_of(column)?.data());
                        self.push(" AND ");
                    }
                }
            }
            let name = quoted(column);
            let ty = select.table.type_of(column)?.data();
            match (direction, value.is_null()) {
                (Direction::Asc, true) => self.push(&format!("{name} IS NOT NULL")),
                (Direction::Desc, true) => self.push("FALSE"),
                (Direction::Asc, false) => {
                    self.push(&format!("{name} > "));
                    self.param(value, ty);
                }
                (Direction::Desc, false) => {
                    self.push(&format!("({name} IS NULL OR {name} < "));
                    self.param(value, ty);
                    self.push(")");
                }
            }
            self.push(")");
        }
        self.push(")");
        Ok(())
    }

    fn order(&mut self, select: &Select) {
        for (n, (column, direction)) in select.order.iter().enumerate() {
            self.push(if n > 0 { ", " } else { " ORDER BY " });
            self.push(&quoted(column));
            let nullable = select.table.column(column).is_ok_and(|column| column.nullable);
            self.push(match (direction, nullable) {
                (Direction::Asc, false) => "",
                (Direction::Desc, false) => " DESC",
                (Direction::Asc, true) => " NULLS FIRST",
                (Direction::Desc, true) => " DESC NULLS LAST",
            });
        }
    }

    fn tail(&mut self, select: &Select) -> Result<()> {
        self.scope(&select.table);
        if select.condition != Condition::All {
            self.push(" AND (");
            self.condition(&select.table, &select.condition)?;
            self.push(")");
        }
        if let Some(after) = &select.after {
            self.push(" AND ");
            self.behind(select, after)?;
        }
        Ok(())
    }
}

/// What a statement is printed for.
#[derive(Clone, Copy)]
pub(crate) struct Print<'a> {
    pub(crate) dialect: Dialect,
    pub(crate) access: &'a Access,
    pub(crate) planted: Option<Planted>,
}

impl Print<'_> {
    fn printer(&self) -> Printer<'_> {
        Printer::new(self.dialect, self.access, self.planted)
    }

    /// Columns: the shard's key (empty in an Isles database), internal id, version, id, and those of the table.
    pub(crate) fn select(&self, select: &Select) -> Result<Statement> {
        let mut printer = self.printer();
        let table = &select.table;
        let key = match self.dialect.names_shards() && table.owner == Owner::Shards {
            true => "\"_shardKey\"",
            false => "''",
        };
        printer.push(&format!("SELECT {key}, \"_internalId\", \"_version\", \"id\""));
        printer.statement.columns = vec![DataType::Text, DataType::Int8, DataType::Int8, DataType::Text];
        for column in &table.columns {
            printer.push(&format!(", {}", quoted(&column.name)));
            printer.statement.columns.push(column.ty.data());
        }
        printer.push(&format!(" FROM {}", quoted(&table.physical)));
        printer.tail(select)?;
        printer.order(select);
        printer.push(&format!(" LIMIT {}", select.limit));
        Ok(printer.statement)
    }

    pub(crate) fn count(&self, select: &Select) -> Result<Statement> {
        let mut printer = self.printer();
        printer.push(&format!("SELECT count(*) FROM {}", quoted(&select.table.physical)));
        printer.statement.columns = vec![DataType::Int8];
        printer.tail(select)?;
        Ok(printer.statement)
    }

    pub(crate) fn insert(&self, table: &Table, row: &Row) -> Result<Statement> {
        let mut printer = self.printer();
        let cells = self.cells(table, row);
        printer.insert_into(table, &cells);
        printer.push(" VALUES (");
        printer.list_of(&cells, |_| None);
        printer.push(")");
        Ok(printer.statement)
    }

    /// The columns of a new row.
    fn cells<'b>(&self, table: &'b Table, row: &Row) -> Vec<Cell<'b>> {
        let mut cells = vec![
            ("_internalId", Value::Int(row.internal), DataType::Int8),
            ("_version", Value::Int(row.version), DataType::Int8),
            (ID, Value::Text(row.id.clone()), DataType::Text),
        ];
        if self.dialect.names_shards() && table.owner == Owner::Shards {
            let name = self.access.owner().name();
            cells.push(("_shard", name.map_or(Value::Null, Value::text), DataType::Text));
        }
        for column in &table.columns {
            cells.push((&column.name, row.values.get(&column.name).clone(), column.ty.data()));
        }
        cells
    }

    pub(crate) fn update(&self, table: &Table, id: &str, version: i64, set: &Values) -> Result<Statement> {
        let mut printer = self.printer();
        printer.push(&format!("UPDATE {} SET \"_version\" = \"_version\" + 1", quoted(&table.physical)));
        for (name, value) in &set.0 {
            let ty = table.column(name)?.ty.data();
            printer.push(&format!(", {} = ", quoted(name)));
            printer.param(value, ty);
        }
        printer.row(table, id, version);
        Ok(printer.statement)
    }

    pub(crate) fn delete(&self, table: &Table, id: &str, version: i64) -> Statement {
        let mut printer = self.printer();
        printer.push(&format!("DELETE FROM {}", quoted(&table.physical)));
        printer.row(table, id, version);
        printer.statement
    }

    /// Takes the turn: whoever writes this row holds it until the end of the transaction.
    pub(crate) fn tick(&self, tick: Tick<'_>) -> Statement {
        let mut printer = self.printer();
        printer.take_turn(tick, None);
        printer.push(" RETURNING \"version\", \"floor\", \"last\", \"prev\"");
        printer.statement.columns = CLOCK.to_vec();
        printer.statement
    }

    /// Takes the turn in a transaction that has not said its shard yet, and writes the entry that has the clock's next
    /// version. PostgreSQL only.
    pub(crate) fn open_turn(&self, said: &str, entry: Option<(&Table, &Row)>) -> Statement {
        let mut printer = self.printer();
        let Some((table, row)) = entry else {
            printer.take_turn(Tick::Hold, Some(said));
            return printer.statement;
        };
        printer.push("WITH clock AS (");
        printer.take_turn(Tick::Next(&row.id), Some(said));
        printer.push(" RETURNING \"version\", \"prev\") ");
        let cells = self.cells(table, row);
        printer.insert_into(table, &cells);
        printer.push(" SELECT ");
        printer.list_of(&cells, |name| match name {
            "version" => Some("clock.\"version\""),
            "prev" => Some("clock.\"prev\""),
            _ => None,
        });
        printer.push(" FROM clock");
        printer.statement
    }

    pub(crate) fn clock(&self) -> Statement {
        let mut printer = self.printer();
        printer.push("SELECT \"version\", \"floor\", \"last\", \"prev\" FROM \"isles_clocks\" WHERE ");
        printer.own();
        printer.statement.columns = CLOCK.to_vec();
        printer.statement
    }

    pub(crate) fn set_floor(&self, floor: i64) -> Statement {
        let mut printer = self.printer();
        printer.push("UPDATE \"isles_clocks\" SET \"floor\" = ");
        printer.param(&Value::Int(floor), DataType::Int8);
        printer.push(" WHERE ");
        printer.own();
        printer.statement
    }

    /// The shards that have rows under a condition, by their keys; in an Isles database by their names, which have the
    /// same order.
    pub(crate) fn shards_with(
        &self,
        table: &Table,
        condition: &Condition,
        after: Option<&Shard>,
        limit: usize,
    ) -> Result<Statement> {
        let mut printer = self.printer();
        let names = self.dialect.names_shards();
        let own = if names { "\"_shardKey\"" } else { "_tenant" };
        printer.push(&format!("SELECT DISTINCT {own} FROM {} WHERE (", quoted(&table.physical)));
        printer.condition(table, condition)?;
        printer.push(")");
        if let Some(after) = after {
            let place = if names { after.key() } else { after.name().unwrap_or_default().into() };
            printer.push(&format!(" AND {own} > "));
            printer.param(&Value::Text(place), DataType::Text);
        }
        printer.push(&format!(" ORDER BY {own} LIMIT {limit}"));
        printer.statement.columns = vec![DataType::Text];
        Ok(printer.statement)
    }
}

/// A column of a new row, its value and its type.
type Cell<'a> = (&'a str, Value, DataType);

impl Printer<'_> {
    fn insert_into(&mut self, table: &Table, cells: &[Cell<'_>]) {
        self.push("INSERT INTO ");
        self.push_name(&table.physical);
        for (n, (name, ..)) in cells.iter().enumerate() {
            self.push(if n > 0 { ", " } else { " (" });
            self.push_name(name);
        }
        self.push(")");
    }

    /// The values of a row's columns, but for those that come from elsewhere.
    fn list_of(&mut self, cells: &[Cell<'_>], elsewhere: impl Fn(&str) -> Option<&'static str>) {
        for (n, (name, value, ty)) in cells.iter().enumerate() {
            self.push(if n > 0 { ", " } else { "" });
            match elsewhere(name) {
                Some(text) => self.push(text),
                None => self.param(value, *ty),
            }
        }
    }

    /// Writes the clock's row. Where the transaction has not said its shard, the row comes from a SELECT that says it:
    /// no row, and so nothing that row level security looks at, is there before.
    fn take_turn(&mut self, tick: Tick<'_>, said: Option<&str>) {
        let (column, key) = match self.dialect.names_shards() {
            true => (", \"_shard\"", "\"_shardKey\", \"id\""),
            false => ("", "\"id\""),
        };
        let (by, entry) = match tick {
            Tick::Next(entry) => (1, Value::text(entry)),
            _ => (0, Value::Null),
        };
        self.push("INSERT INTO \"isles_clocks\" AS c (\"id\", \"_internalId\", \"_version\", \"floor\", \"version\", \"last\"");
        // Of two who make one clock at the same moment, PostgreSQL looks at the key of ON CONFLICT only when it has not
        // found them equal in another one.
        let internal = if self.dialect == Dialect::Postgres { "(random() * 4e18)::bigint" } else { "0" };
        let begin = if said.is_some() { "SELECT " } else { "VALUES (" };
        // Writing to a String does not fail.
        let _ = write!(self.statement.sql, "{column}) {begin}'clock', {internal}, 0, 0, {by}, ");
        self.param(&entry, DataType::Text);
        if self.dialect.names_shards() {
            self.push(", ");
            let name = self.access.owner().name();
            self.param(&name.map_or(Value::Null, Value::text), DataType::Text);
        }
        match said {
            Some(said) => {
                let _ = write!(self.statement.sql, " WHERE set_config('{SETTING}', ");
                self.param(&Value::text(said), DataType::Text);
                self.push(", true) IS NOT NULL");
            }
            None => self.push(")"),
        }
        let _ = write!(self.statement.sql, " ON CONFLICT ({key}) DO UPDATE SET \"version\" = c.\"version\"");
        self.push(match tick {
            Tick::Hold => "",
            Tick::Next(_) => " + 1, \"prev\" = c.\"last\", \"last\" = excluded.\"last\"",
            Tick::Back => " - 1, \"last\" = c.\"prev\"",
        });
    }

    /// The one row that a write is about.
    fn row(&mut self, table: &Table, id: &str, version: i64) {
        self.scope(table);
        self.push(" AND \"id\" = ");
        self.param(&Value::Text(id.into()), DataType::Text);
        self.push(" AND \"_version\" = ");
        self.param(&Value::Int(version), DataType::Int8);
    }

    /// The shard's own row of a table that has one for each.
    fn own(&mut self) {
        match self.dialect.names_shards() {
            true => self.equals_key(&self.access.owner().clone()),
            false => self.push("TRUE"),
        }
    }
}

/// Reads a row of [`Print::select`], and refuses one of another shard: the database is not believed (I-44).
pub(crate) fn read_row(select: &Select, access: &Access, mut values: Vec<Value>, dialect: Dialect) -> Result<Row> {
    let fenced = dialect.names_shards() && select.table.owner == Owner::Shards;
    if let (true, Some(shard)) = (fenced, access.filter(&select.table))
        && values.first() != Some(&Value::Text(shard.key()))
    {
        return Err(refused(Code::ShardMixed, "the database returned a row of another shard"));
    }
    let damaged = || refused(Code::InvalidValue, "the database returned a row of another shape");
    let own = values.split_off(4.min(values.len()));
    let [_, Value::Int(internal), Value::Int(version), Value::Text(id)] = values.as_slice() else {
        return Err(damaged());
    };
    let names = select.table.columns.iter().map(|column| column.name.clone());
    Ok(Row { id: id.clone(), internal: *internal, version: *version, values: Values(names.zip(own).collect()) })
}
