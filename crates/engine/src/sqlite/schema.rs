//! Changes of the schema, each within the transaction that stores the new version.
//!
//! SQLite alters little in place. What it cannot alter is rebuilt: a table of the new shape is filled from the old one
//! and takes its name. All of it is one transaction, so a crash leaves the one or the other.
//!
//!     CREATE _isles_rebuild, INSERT … SELECT, DROP old, RENAME, keys and triggers again
//!
//! Foreign keys are off meanwhile: dropping the old table would delete its rows, and with them the rows that refer to
//! them. A new foreign key is checked over all rows afterwards. Nothing of a rebuild is captured, since no row changes:
//! the hook passes over names of our own, and dropping a table is no change of rows.
//!
//! What the new rule does not allow is looked for before the copy, so that the error is PostgreSQL's.

use super::ddl::{self, quoted, quoted_list};
use super::format;
use super::raw::Db;
use super::tenancy;
use super::writer::{State, Writer};
use crate::error::{Result, ShardError, SqlError};
use crate::fence::{Fence, FenceTable};
use crate::shard::{SchemaStep, needs_schema};
use isles_kernel::names::SchemaVersion;
use isles_kernel::schema::{Check, Column, Expression, ForeignKey, Key, Schema, SchemaChange, Table, plain_name};
use isles_kernel::value::{DataType, Value};
use rusqlite::config::DbConfig;
use std::sync::Arc;

/// The table that is being filled; the capture passes over names of our own.
const REBUILT: &str = "_isles_rebuild";

pub(super) fn change(writer: &mut Writer, from: SchemaVersion, changes: &[SchemaChange]) -> Result<Arc<Schema>> {
    let now = writer.state.schema.clone();
    if now.version != from {
        return already_changed(writer, from, changes);
    }
    make(writer, changes, from.next())?;
    Ok(writer.state.schema.clone())
}

/// Makes a whole schema where there is none.
pub(super) fn adopt(writer: &mut Writer, schema: &Schema) -> Result<()> {
    match needs_schema(&writer.state.schema, schema)? {
        true => make(writer, &schema.script(), schema.version),
        false => Ok(()),
    }
}

fn make(writer: &mut Writer, changes: &[SchemaChange], version: SchemaVersion) -> Result<()> {
    let now = writer.state.schema.clone();
    set(&writer.db, DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, Switch::Off)?;
    let changed = run_all(&mut writer.db, &now, changes);
    set(&writer.db, DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, Switch::On)?;
    writer.set_schema(Schema { version, ..changed? })
}

/// Makes a change of an open transaction, and captures it: a commit over several shards must be able to tell it.
pub(super) fn step(writer: &mut Writer, step: &SchemaStep) -> Result<()> {
    let now = writer.schema_version();
    if now != step.from {
        return Err(ShardError::Conflict(format!("the schema is at version {now}, not {}", step.from)));
    }
    // A cursor would keep its table from being changed.
    writer.db.close_cursors();
    if writer.db.deferred_violations() {
        let message = "cannot change the schema: foreign keys of rows that were changed are not checked yet";
        return Err(ShardError::statement("55006", message));
    }
    writer.capture().close_chapter(now, step.clone());
    change(writer, step.from, &step.changes)?;
    let fences = missing(&writer.state.fences, &step.fences)?;
    format::store_fences(&mut writer.db, &writer.state.fences, &fences)?;
    writer.state.fences = Arc::new(fences);
    Ok(())
}

/// Makes a change again that a crash took back, on the applier's connection, whose foreign keys are off.
pub(super) fn redo(db: &mut Db, state: &mut State, step: &SchemaStep) -> Result<()> {
    let mut next = run_all(db, &state.schema, &step.changes)?;
    next.version = step.from.next();
    format::store_schema(db, &state.schema, &next)?;
    let fences = missing(&state.fences, &step.fences)?;
    format::store_fences(db, &state.fences, &fences)?;
    state.schema = Arc::new(next);
    state.fences = Arc::new(fences);
    Ok(())
}

fn missing(known: &FenceTable, fences: &[Fence]) -> Result<FenceTable> {
    let mut table = known.clone();
    fences.iter().try_for_each(|fence| table.set_missing(fence))?;
    Ok(table)
}

/// A change that was asked for twice is done once; the caller may not have heard of the first time.
fn already_changed(writer: &mut Writer, from: SchemaVersion, changes: &[SchemaChange]) -> Result<Arc<Schema>> {
    let now = writer.state.schema.clone();
    let before = format::load_schema(&mut writer.db, format::SCHEMA_BEFORE)?;
    if before.version == from && before.apply(changes).is_ok_and(|asked| asked == *now) {
        return Ok(now);
    }
    Err(ShardError::Conflict(format!("the schema is at version {}, not {from}", now.version)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Switch {
    On,
    Off,
}

/// Unlike the pragma, this may be switched within a transaction.
fn set(db: &Db, config: DbConfig, to: Switch) -> Result<()> {
    match db.connection().set_db_config(config, to == Switch::On) {
        Ok(_) => Ok(()),
        Err(error) => Err(ShardError::invalid(format!("SQLite does not let itself be configured: {error}"))),
    }
}

fn run_all(db: &mut Db, from: &Schema, changes: &[SchemaChange]) -> Result<Schema> {
    let mut old = from.clone();
    for change in changes {
        let next = old.apply(std::slice::from_ref(change))?;
        Change { db, old: &old, next: &next }.run(change)?;
        old = next;
    }
    Ok(old)
}

/// One change, between two schemas.
struct Change<'a> {
    db: &'a mut Db,
    old: &'a Schema,
    next: &'a Schema,
}

impl Change<'_> {
    fn run(&mut self, change: &SchemaChange) -> Result<()> {
        match change {
            SchemaChange::CreateTable(table) => self.create_table(table),
            SchemaChange::DropTable { table } => self.drop_table(table),
            SchemaChange::RenameTable { table, to } => self.rename_table(table, to),
            SchemaChange::AddColumn { table, column } => self.add_column(table, column),
            SchemaChange::DropColumn { table, column } => {
                self.sql(&format!("ALTER TABLE {} DROP COLUMN {}", quoted(table), quoted(column)))
            }
            SchemaChange::RenameColumn { table, column, to } => {
                self.sql(&format!("ALTER TABLE {} RENAME COLUMN {} TO {}", quoted(table), quoted(column), quoted(to)))
            }
            SchemaChange::AlterColumn { table, column, convert } => self.alter_column(table, column, convert.as_ref()),
            SchemaChange::Rekey { table, .. } => self.rekey(table),
            SchemaChange::ReplaceTable { table, by, aside } => self.replace_table(table, by, aside),
            SchemaChange::CreateKey { table, key } => self.create_key(self.next.table(table)?, key),
            SchemaChange::DropKey { table, key } => self.drop_key(table, key),
            SchemaChange::RenameKey { table, key, to } => self.rename_key(table, key, to),
            SchemaChange::AddCheck { table, check } => self.add_check(table, check),
            SchemaChange::DropCheck { table, .. } | SchemaChange::DropForeignKey { table, .. } => {
                self.rebuild(table, &[])
            }
            SchemaChange::AddForeignKey { table, foreign_key } => self.add_foreign_key(table, foreign_key),
            SchemaChange::RenameConstraint { table, constraint, to } => self.rename_constraint(table, constraint, to),
            SchemaChange::CreateObject(object) => self.sql(&object.sqlite),
            SchemaChange::DropObject { name } => match self.old.objects.get(name) {
                Some(object) => self.sql(&ddl::drop_object(object)),
                None => Ok(()),
            },
            // These are the router's; the shard remembers them with the schema. A namespace is in its tables' names.
            SchemaChange::CreateNamespace { .. }
            | SchemaChange::DropNamespace { .. }
            | SchemaChange::CreateView(_)
            | SchemaChange::DropView { .. }
            | SchemaChange::RenameView { .. }
            | SchemaChange::CreateSequence(_)
            | SchemaChange::AlterSequence(_)
            | SchemaChange::DropSequence { .. }
            | SchemaChange::RenameSequence { .. }
            | SchemaChange::SetComment { .. } => Ok(()),
        }
    }

    fn sql(&mut self, text: &str) -> Result<()> {
        self.db.own_text(text, &[], &[]).map(drop)
    }

    fn create_table(&mut self, table: &Table) -> Result<()> {
        self.sql(&ddl::create_table(self.next, table, &table.name)?)?;
        self.create_view(table)?;
        table.shard_keys().try_for_each(|key| self.create_key(table, key))
    }

    fn drop_table(&mut self, table: &str) -> Result<()> {
        self.drop_view(self.old.table(table)?)?;
        self.sql(&format!("DROP TABLE {}", quoted(table)))
    }

    fn create_view(&mut self, table: &Table) -> Result<()> {
        tenancy::create_view(table).map_or(Ok(()), |view| self.sql(&view))
    }

    fn drop_view(&mut self, table: &Table) -> Result<()> {
        tenancy::drop_view(table).map_or(Ok(()), |view| self.sql(&view))
    }

    fn create_key(&mut self, table: &Table, key: &Key) -> Result<()> {
        self.sql(&ddl::create_key(table, key)).map_err(|error| not_unique(error, &table.name, &key.name))
    }

    fn rename_table(&mut self, table: &str, to: &str) -> Result<()> {
        self.drop_view(self.old.table(table)?)?;
        self.sql(&format!("ALTER TABLE {} RENAME TO {}", quoted(table), quoted(to)))?;
        self.create_view(self.next.table(to)?)?;
        let names = [Value::text(to), Value::text(table)];
        self.db.own_text("UPDATE _isles_row_version SET name = $1 WHERE name = $2", &names, &[]).map(drop)
    }

    /// Indexes keep the names that they have. Versions of the copy's rows are of its stream, and go with it.
    fn replace_table(&mut self, table: &str, by: &str, aside: &str) -> Result<()> {
        for one in [table, by] {
            self.drop_view(self.old.table(one)?)?;
        }
        for (from, to) in [(table, aside), (by, table)] {
            self.sql(&format!("ALTER TABLE {} RENAME TO {}", quoted(from), quoted(to)))?;
        }
        for one in [table, aside] {
            self.create_view(self.next.table(one)?)?;
        }
        Ok(())
    }

    fn add_column(&mut self, table: &str, column: &Column) -> Result<()> {
        let has_value = column.nullable || column.default.as_ref().is_some_and(|value| !value.is_null());
        if !has_value {
            self.refuse_where(table, "true", contains_nulls(table, &column.name))?;
        }
        // SQLite adds a column behind all others, where the hidden key stands.
        if !has_value || self.old.table(table)?.hidden_key {
            return self.rebuild(table, &[]);
        }
        self.sql(&format!("ALTER TABLE {} ADD COLUMN {}", quoted(table), ddl::column_definition(column)))
    }

    fn alter_column(&mut self, table: &str, column: &Column, convert: Option<&Expression>) -> Result<()> {
        let before = self.old.table(table)?;
        let Some(old) = before.position(&column.name).map(|at| &before.columns[at]) else { return Ok(()) };
        // The router gives every value, so a default stands in the table only for rows that were there before it.
        let shape = |column: &Column| ddl::column_definition(&Column { default: None, ..column.clone() });
        if shape(old) == shape(column) && convert.is_none() {
            return Ok(());
        }
        if old.nullable && !column.nullable {
            let null = format!("{} IS NULL", quoted(&column.name));
            self.refuse_where(table, &null, contains_nulls(table, &column.name))?;
        }
        let converted: Vec<(&str, &str)> =
            convert.iter().map(|convert| (column.name.as_str(), convert.sqlite.as_str())).collect();
        self.rebuild(table, &converted)
    }

    fn rekey(&mut self, table: &str) -> Result<()> {
        let (old, new) = (self.old.table(table)?, self.next.table(table)?);
        if old.kind != new.kind {
            self.refuse_where(table, "true", not_empty(table))?;
            self.drop_view(old)?;
            self.create_view(new)?;
        }
        let versions = "SELECT 1 FROM _isles_row_version WHERE name = $1 LIMIT 1";
        if !self.db.own_text(versions, &[Value::text(table)], &[DataType::Int8])?.is_empty() {
            return Err(ShardError::statement("55006", format!("rows of \"{table}\" are being moved")));
        }
        let name = new.primary_key_name();
        self.rebuild(table, &[]).map_err(|error| not_unique(error, table, &name))
    }

    fn drop_key(&mut self, table: &str, key: &str) -> Result<()> {
        let table = self.old.table(table)?;
        match table.keys.iter().find(|known| known.name == key) {
            Some(key) => self.sql(&format!("DROP INDEX {}", quoted(&table.stored_key(key)))),
            None => Ok(()),
        }
    }

    fn rename_key(&mut self, table: &str, key: &str, to: &str) -> Result<()> {
        // SQLite does not know its primary key by name.
        if self.old.table(table)?.primary_index().is_some_and(|primary| primary.name == key) {
            return Ok(());
        }
        self.drop_key(table, key)?;
        let table = self.next.table(table)?;
        match table.keys.iter().find(|key| key.name == to) {
            Some(key) => self.create_key(table, key),
            None => Ok(()),
        }
    }

    fn add_check(&mut self, table: &str, check: &Check) -> Result<()> {
        let shown = plain_name(table);
        let message = format!("check constraint \"{}\" of relation \"{shown}\" is violated by some row", check.name);
        let error = SqlError::new("23514", message).of_table(table).of_constraint(&check.name);
        self.refuse_where(table, &format!("NOT ({})", check.expression.sqlite), error)?;
        self.rebuild(table, &[])
    }

    fn add_foreign_key(&mut self, table: &str, foreign: &ForeignKey) -> Result<()> {
        self.rebuild(table, &[])?;
        let check = format!("PRAGMA foreign_key_check({})", quoted(table));
        let broken =
            self.db.own_text(&check, &[], &[DataType::Text, DataType::Int8, DataType::Text, DataType::Int8])?;
        if broken.is_empty() {
            return Ok(());
        }
        let (shown, name) = (plain_name(table), &foreign.name);
        let message = format!("insert or update on table \"{shown}\" violates foreign key constraint \"{name}\"");
        Err(ShardError::Statement(SqlError::new("23503", message).of_table(table).of_constraint(&foreign.name)))
    }

    fn rename_constraint(&mut self, name: &str, constraint: &str, to: &str) -> Result<()> {
        let table = self.old.table(name)?;
        if table.keys.iter().any(|key| key.constraint && key.name == constraint) {
            return self.rename_key(name, constraint, to);
        }
        // Only a check is known to SQLite by its name.
        if table.checks.iter().any(|check| check.name == constraint) {
            return self.rebuild(name, &[]);
        }
        Ok(())
    }

    /// Fails with `error` if a row of the table satisfies `condition`.
    fn refuse_where(&mut self, table: &str, condition: &str, error: SqlError) -> Result<()> {
        let find = format!("SELECT 1 FROM {} WHERE {condition} LIMIT 1", quoted(table));
        match self.db.own_text(&find, &[], &[DataType::Int8])?.is_empty() {
            true => Ok(()),
            false => Err(ShardError::Statement(error)),
        }
    }

    /// Gives a table the shape that the next schema says. `converted` are the columns whose values are not simply those
    /// of the column of the same name, with the expression over the old row.
    fn rebuild(&mut self, name: &str, converted: &[(&str, &str)]) -> Result<()> {
        let (old, new) = (self.old.table(name)?, self.next.table(name)?);
        let triggers = self.triggers_of(name)?;
        self.sql(&ddl::create_table(self.next, new, REBUILT)?)?;
        self.sql(&copy_rows(old, new, converted))?;
        self.sql(&format!("DROP TABLE {}", quoted(name)))?;
        self.rename_rebuilt(name)?;
        new.shard_keys().try_for_each(|key| self.create_key(new, key))?;
        triggers.iter().try_for_each(|trigger| self.sql(trigger))
    }

    /// Without looking at views and triggers, which name a table that is not there at this moment.
    fn rename_rebuilt(&mut self, name: &str) -> Result<()> {
        set(self.db, DbConfig::SQLITE_DBCONFIG_LEGACY_ALTER_TABLE, Switch::On)?;
        let renamed = self.sql(&format!("ALTER TABLE {REBUILT} RENAME TO {}", quoted(name)));
        set(self.db, DbConfig::SQLITE_DBCONFIG_LEGACY_ALTER_TABLE, Switch::Off)?;
        renamed
    }

    fn triggers_of(&mut self, table: &str) -> Result<Vec<String>> {
        let find = "SELECT sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = $1 COLLATE NOCASE";
        let rows = self.db.own_text(find, &[Value::text(table)], &[DataType::Text])?;
        let text = |row: Vec<Value>| match row.into_iter().next() {
            Some(Value::Text(sql)) => Some(sql),
            _ => None,
        };
        Ok(rows.into_iter().filter_map(text).collect())
    }
}

/// Fills the rebuilt table. Columns that the old table lacks get their default.
fn copy_rows(old: &Table, new: &Table, converted: &[(&str, &str)]) -> String {
    // A table that changes its kind is empty, and has no values for other hidden columns.
    let kept: &[&str] = if old.kind == new.kind { new.hidden_columns() } else { &[] };
    let own = new.columns.iter().map(|column| column.name.as_str()).filter(|name| old.position(name).is_some());
    let names: Vec<String> = kept.iter().copied().chain(own).map(Into::into).collect();
    let value = |name: &String| match converted.iter().find(|(column, _)| column == name) {
        Some((_, expression)) => format!("({expression})"),
        None => quoted(name),
    };
    let values: Vec<String> = names.iter().map(value).collect();
    let only = if old.kind == new.kind { "" } else { " WHERE false" };
    format!(
        "INSERT INTO {REBUILT} ({}) SELECT {} FROM {}{only}",
        quoted_list(&names),
        values.join(", "),
        quoted(&old.name)
    )
}

fn contains_nulls(table: &str, column: &str) -> SqlError {
    let message = format!("column \"{column}\" of relation \"{}\" contains null values", plain_name(table));
    SqlError::new("23502", message).of_table(table).of_column(column)
}

fn not_empty(table: &str) -> SqlError {
    SqlError::unsupported(format!("the primary key of \"{table}\" places its rows, and the table is not empty"))
        .with_hint("create a table with this primary key and copy the rows")
}

/// PostgreSQL's words for rows that a new unique key does not allow.
fn not_unique(error: ShardError, table: &str, key: &str) -> ShardError {
    match error {
        ShardError::Statement(error) if error.sqlstate == "23505" => {
            let message = format!("could not create unique index \"{key}\"");
            ShardError::Statement(SqlError::new("23505", message).of_table(table).of_constraint(key))
        }
        other => other,
    }
}
