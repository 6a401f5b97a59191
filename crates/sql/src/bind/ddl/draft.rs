//! A change in the making: the schema as it will be so far, and the steps that lead there.
//!
//! Each step is applied to the copy as soon as it is added, so the next one is computed against its outcome, and what
//! the kernel refuses is refused here, in PostgreSQL's words.

use super::text::identifier;
use super::{Compute, DdlChange, Expressions, Result};
use crate::bind::utility::Context;
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Schema, SchemaChange, SchemaError, Table, View, fitting_name};
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
        let has = |table: &&Table| {
            table.keys.iter().any(|key| key.name == name) || (!table.hidden_key && table.primary_key_name() == name)
        };
        self.schema.tables.values().find(has)
    }

    /// A table that is there.
    pub(super) fn table(&self, name: &str) -> Result<&Table> {
        match self.schema.tables.get(name) {
            Some(table) => Ok(table),
            None => Err(match self.kind_of(name) {
                Some(_) => SqlError::new("42809", format!("\"{name}\" is not a table")),
                None => no_relation(name),
            }),
        }
    }

    /// `<first>_<second>_<suffix>`, with a number behind it if a relation has that name.
    pub(super) fn free_relation_name(&self, first: &str, second: &str, suffix: &str) -> String {
        numbered(suffix, |suffix| fitting_name(first, second, suffix), |name| self.schema.is_taken(name))
    }

    /// As [`Draft::free_relation_name`], for a constraint of a table that is no relation.
    pub(super) fn free_constraint_name(table: &Table, second: &str, suffix: &str) -> String {
        numbered(suffix, |suffix| fitting_name(&table.name, second, suffix), |name| table.has_constraint(name))
    }

    /// Views whose queries can no longer be bound, or have other columns than they had.
    pub(super) fn broken_views(&self) -> Vec<&View> {
        let works = |view: &View| match self.expressions().query_columns(&self.schema, &view.sql) {
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

/// The name of a relation that is to be made or changed: it can only be in `public`.
pub(super) fn own_name(relation: Option<&RangeVar>) -> Result<String> {
    let Some(relation) = relation else { return Err(SqlError::new("42601", "a relation's name is missing")) };
    let name = relation.relname().unwrap_or_default();
    check_schema(relation.catalogname(), relation.schemaname(), name)?;
    Ok(name.into())
}

/// The same of a qualified name as a list of strings.
pub(super) fn own_name_of(parts: &[String]) -> Result<String> {
    match parts {
        [name] => Ok(name.clone()),
        [schema, name] => check_schema(None, Some(schema), name).map(|()| name.clone()),
        _ => Err(SqlError::unsupported("cross-database references are not implemented")),
    }
}

fn check_schema(catalog: Option<&str>, schema: Option<&str>, name: &str) -> Result<()> {
    if let (Some(catalog), Some(schema)) = (catalog, schema) {
        let message = format!("cross-database references are not implemented: \"{catalog}.{schema}.{name}\"");
        return Err(SqlError::unsupported(message));
    }
    match schema {
        None | Some("public") => Ok(()),
        Some("pg_catalog" | "information_schema") => {
            Err(SqlError::new("42501", format!("permission denied: \"{name}\" is a system catalog")))
        }
        Some(other) => Err(SqlError::new("3F000", format!("schema \"{other}\" does not exist"))),
    }
}

pub(super) fn no_relation(name: &str) -> SqlError {
    SqlError::new("42P01", format!("relation \"{name}\" does not exist"))
}

pub(super) fn no_column(table: &str, column: &str) -> SqlError {
    SqlError::new("42703", format!("column \"{column}\" of relation \"{table}\" does not exist"))
}

/// What the kernel refuses, as a client of PostgreSQL expects it.
pub(super) fn in_postgresqls_words(error: SchemaError) -> SqlError {
    let message = error.to_string();
    match error {
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
    format!("{} {}", kind.word(), identifier(name))
}
