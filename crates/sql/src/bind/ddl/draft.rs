//! A change in the making: the schema as it will be so far, and the steps that lead there.
//!
//! Each step is applied to the copy as soon as it is added, so the next one is computed against its outcome, and what
//! the kernel refuses is refused here, in PostgreSQL's words.

use super::text::relation_text;
use super::{Compute, DdlChange, Expressions, Result};
use crate::bind::utility::Context;
use isles_kernel::error::SqlError;
use isles_kernel::schema::{
    PUBLIC, Schema, SchemaChange, SchemaError, Table, View, fitting_name, plain_name, relation_name, relation_parts,
};
use pg_raw_parse::nodes::RangeVar;

pub(super) struct Draft<'a> {
    pub(super) context: &'a Context<'a>,
    /// The schema after the changes so far.
    pub(super) schema: Schema,
    changes: Vec<SchemaChange>,
    pub(super) notices: Vec<SqlError>,
    pub(super) restarts: Vec<(String, i64)>,
    pub(super) then: Option<String>,
    compute: Vec<Compute>,
    pub(super) concurrently: Option<&'static str>,
}

/// What a name of a relation stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RelationKind {
    Table,
    View,
    Sequence,
    Index,
}

impl RelationKind {
    pub(super) fn word(self) -> &'static str {
        match self {
            RelationKind::Table => "table",
            RelationKind::View => "view",
            RelationKind::Sequence => "sequence",
            RelationKind::Index => "index",
        }
    }
}

/// What `IF EXISTS` and `IF NOT EXISTS` decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Otherwise {
    Fail,
    Skip,
}

impl Otherwise {
    pub(super) fn of(said: bool) -> Otherwise {
        if said { Otherwise::Skip } else { Otherwise::Fail }
    }
}

/// What is dropped with something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behavior {
    Restrict,
    Cascade,
}

impl Behavior {
    pub(super) fn of(behavior: pg_raw_parse::raw::DropBehavior::Type) -> Behavior {
        match behavior {
            pg_raw_parse::raw::DropBehavior::DROP_CASCADE => Behavior::Cascade,
            _ => Behavior::Restrict,
        }
    }
}

impl<'a> Draft<'a> {
    pub(super) fn new(context: &'a Context<'a>) -> Draft<'a> {
        Draft {
            context,
            schema: context.schema.clone(),
            changes: vec![],
            notices: vec![],
            restarts: vec![],
            then: None,
            compute: vec![],
            concurrently: None,
        }
    }

    pub(super) fn finish(self, tag: &'static str) -> DdlChange {
        DdlChange {
            changes: self.changes,
            notices: self.notices,
            tag,
            restarts: self.restarts,
            compute: self.compute,
            then: self.then,
            concurrently: self.concurrently,
        }
    }

    pub(super) fn expressions(&self) -> &'a dyn Expressions {
        self.context.expressions
    }

    pub(super) fn push(&mut self, change: SchemaChange) -> Result<()> {
        self.schema = self.schema.apply(std::slice::from_ref(&change)).map_err(in_postgresqls_words)?;
        self.changes.push(change);
        Ok(())
    }

    /// The next change adds a column whose default is to be computed first.
    pub(super) fn compute(&mut self, expression: String) {
        self.compute.push(Compute { change: self.changes.len(), expression });
    }

    pub(super) fn notice(&mut self, message: impl Into<String>) {
        self.notices.push(SqlError::new("00000", message));
    }

    pub(super) fn kind_of(&self, name: &str) -> Option<RelationKind> {
        if self.schema.tables.contains_key(name) {
            Some(RelationKind::Table)
        } else if self.schema.views.contains_key(name) {
            Some(RelationKind::View)
        } else if self.schema.sequences.contains_key(name) {
            Some(RelationKind::Sequence)
        } else {
            self.table_of_index(name).map(|_| RelationKind::Index)
        }
    }

    pub(super) fn table_of_index(&self, name: &str) -> Option<&Table> {
        let (namespace, name) = relation_parts(name);
        let has = |table: &&Table| {
            table.namespace() == namespace
                && (table.keys.iter().any(|key| key.name == name)
                    || (!table.hidden_key && table.primary_key_name() == name))
        };
        self.schema.tables.values().find(has)
    }

    /// A table that is there.
    pub(super) fn table(&self, name: &str) -> Result<&Table> {
        match self.schema.tables.get(name) {
            Some(table) => Ok(table),
            None => Err(match self.kind_of(name) {
                Some(_) => SqlError::new("42809", format!("\"{}\" is not a table", plain_name(name))),
                None => no_relation(name),
            }),
        }
    }

    /// `<table>_<second>_<suffix>`, with a number behind it if a relation in the table's schema has that name.
    pub(super) fn free_relation_name(&self, table: &str, second: &str, suffix: &str) -> String {
        let (namespace, table) = relation_parts(table);
        let taken = |name: &str| self.schema.is_taken(&relation_name(namespace, name));
        numbered(suffix, |suffix| fitting_name(table, second, suffix), taken)
    }

    /// As [`Draft::free_relation_name`], for a constraint of a table that is no relation.
    pub(super) fn free_constraint_name(table: &Table, second: &str, suffix: &str) -> String {
        numbered(suffix, |suffix| fitting_name(table.plain_name(), second, suffix), |name| table.has_constraint(name))
    }

    /// Views whose queries can no longer be bound, or have other columns than they had.
    pub(super) fn broken_views(&self) -> Vec<&View> {
        let columns = |view: &View| self.expressions().query_columns(&self.schema, &view.search_path(), &view.sql);
        let works = |view: &View| match columns(view) {
            Ok(columns) => {
                columns.len() == view.columns.len()
                    && columns
                        .iter()
                        .zip(&view.columns)
                        .all(|(now, (_, then))| now.ty.oid.0 == then.oid && now.ty.modifier == then.modifier)
            }
            Err(_) => false,
        };
        self.schema.views.values().filter(|view| !works(view)).collect()
    }
}

fn numbered(suffix: &str, name: impl Fn(&str) -> String, taken: impl Fn(&str) -> bool) -> String {
    let first = name(suffix);
    if !taken(&first) {
        return first;
    }
    let mut number = 1;
    loop {
        let next = name(&format!("{suffix}{number}"));
        if !taken(&next) {
            return next;
        }
        number += 1;
    }
}

/// A name as it was written: its schema, if it was said, and itself.
fn written(relation: Option<&RangeVar>) -> Result<(Option<&str>, &str)> {
    let Some(relation) = relation else { return Err(SqlError::new("42601", "a relation's name is missing")) };
    let name = relation.relname().unwrap_or_default();
    if let (Some(catalog), Some(schema)) = (relation.catalogname(), relation.schemaname()) {
        let message = format!("cross-database references are not implemented: \"{catalog}.{schema}.{name}\"");
        return Err(SqlError::unsupported(message));
    }
    Ok((relation.schemaname(), name))
}

/// The same of a qualified name as a list of strings.
fn written_in(parts: &[String]) -> Result<(Option<&str>, &str)> {
    match parts {
        [name] => Ok((None, name)),
        [schema, name] => Ok((Some(schema), name)),
        _ => Err(SqlError::unsupported("cross-database references are not implemented")),
    }
}

/// The relation that a name stands for: in its schema, or in the first one of the path that has it.
pub(crate) fn find(schema: &Schema, path: &[String], (namespace, name): (Option<&str>, &str)) -> Option<String> {
    let full = |namespace: &str| {
        schema.has_namespace(namespace).then(|| relation_name(namespace, name)).filter(|full| schema.is_taken(full))
    };
    match namespace {
        Some(namespace) => full(namespace),
        None => path.iter().find_map(|namespace| full(namespace)),
    }
}

/// Names of relations, looked up as the session does.
impl Draft<'_> {
    /// A relation that is to be changed. Where there is none of the name, the name is where it would be made.
    pub(super) fn name(&self, relation: Option<&RangeVar>) -> Result<String> {
        self.found(written(relation)?)
    }

    pub(super) fn name_of(&self, parts: &[String]) -> Result<String> {
        self.found(written_in(parts)?)
    }

    /// A relation that is to be made.
    pub(super) fn new_name(&self, relation: Option<&RangeVar>) -> Result<String> {
        self.made(written(relation)?)
    }

    pub(super) fn new_name_of(&self, parts: &[String]) -> Result<String> {
        self.made(written_in(parts)?)
    }

    /// The table that a foreign key refers to: one that is there, or the one that is being made.
    pub(super) fn referred(&self, table: &Table, relation: Option<&RangeVar>) -> Result<String> {
        let (namespace, name) = written(relation)?;
        let reached = match namespace {
            Some(namespace) => namespace == table.namespace(),
            None => self.context.search_path.iter().any(|schema| schema == table.namespace()),
        };
        match find(&self.schema, self.context.search_path, (namespace, name)) {
            None if reached && name == table.plain_name() => Ok(table.name.clone()),
            _ => self.found((namespace, name)),
        }
    }

    fn found(&self, written: (Option<&str>, &str)) -> Result<String> {
        match find(&self.schema, self.context.search_path, written) {
            Some(found) => Ok(found),
            None => self.made(written).or_else(|error| match written {
                (None, name) => Ok(relation_name(PUBLIC, name)),
                _ => Err(error),
            }),
        }
    }

    fn made(&self, (namespace, name): (Option<&str>, &str)) -> Result<String> {
        match namespace {
            Some("pg_catalog" | "information_schema") => {
                Err(SqlError::new("42501", format!("permission denied: \"{name}\" is a system catalog")))
            }
            Some(namespace) if self.schema.has_namespace(namespace) => Ok(relation_name(namespace, name)),
            Some(other) => Err(no_namespace(other)),
            None => match self.context.search_path.iter().find(|schema| self.schema.has_namespace(schema)) {
                Some(namespace) => Ok(relation_name(namespace, name)),
                None => Err(SqlError::new("3F000", "no schema has been selected to create in")),
            },
        }
    }
}

pub(super) fn no_namespace(name: &str) -> SqlError {
    SqlError::new("3F000", format!("schema \"{name}\" does not exist"))
}

pub(super) fn no_relation(name: &str) -> SqlError {
    SqlError::new("42P01", format!("relation \"{name}\" does not exist"))
}

pub(super) fn no_column(table: &str, column: &str) -> SqlError {
    SqlError::new("42703", format!("column \"{column}\" of relation \"{}\" does not exist", plain_name(table)))
}

/// What the kernel refuses, as a client of PostgreSQL expects it.
pub(super) fn in_postgresqls_words(error: SchemaError) -> SqlError {
    let message = error.to_string();
    match error {
        SchemaError::NoNamespace(name) => no_namespace(&name),
        SchemaError::NamespaceExists(_) => SqlError::new("42P06", message),
        SchemaError::NoTable(name) => no_relation(&name),
        SchemaError::Exists(_) => SqlError::new("42P07", message),
        SchemaError::NoColumn { table, column } => no_column(&table, &column),
        SchemaError::NoKey { .. } | SchemaError::NoConstraint { .. } => SqlError::new("42704", message),
        SchemaError::ConstraintExists { .. } => SqlError::new("42710", message),
        SchemaError::ColumnExists { .. } => SqlError::new("42701", message),
        SchemaError::Invalid(message) if message.contains("leaves its shard") => SqlError::unsupported(message),
        SchemaError::Invalid(message) => SqlError::new("42P16", message),
    }
}

/// `table t`, as PostgreSQL names objects in messages.
pub(super) fn described(kind: RelationKind, name: &str) -> String {
    format!("{} {}", kind.word(), relation_text(name))
}
