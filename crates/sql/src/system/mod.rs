//! `pg_catalog` and `information_schema`: what a client asks to learn what there is.
//!
//!     Schema + Facts ──► Directory (objects, numbered) ──► rows(relation) ──► the stage, queried like any table
//!                                    └──────────────────► Functions ───────► pg_get_indexdef(…), 't'::regclass, …
//!
//! The definitions, and the rows of PostgreSQL's own objects, are PostgreSQL 15's, from a dump. The rows of the user's
//! objects are computed when a query reads them. Queries over them run in the router's stage; the functions that need
//! the schema are called from there, by row, through [`SystemFunctions`].
//!
//! Invariants:
//!   * A relation has exactly PostgreSQL 15's columns: names, order and types. Its columns of a domain of
//!     `information_schema` have the domain's base type, which is also what PostgreSQL tells a client.
//!   * Nothing that is ours shows: no hidden column, no table or key of our own, no tenant in front of a key.
//!   * An expression (`adbin`, `indexprs`, `ev_action`) is its own text, so `pg_get_expr` returns its argument.
//!
//! A relation whose objects cannot exist here (triggers, policies, foreign tables) is defined and empty, so that a
//! client that looks for them finds none.

mod catalog;
mod data;
mod directory;
mod facts;
mod functions;
mod information;
mod names;
mod shape;
#[cfg(test)]
mod tests;

pub use facts::{Facts, Role, SessionFact, Size, StatementFact};
pub use functions::{Functions, SystemFunctions, is_name_type};

use crate::tree::Relation;
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Schema, relation_name};
use isles_kernel::value::Value;
use std::sync::Arc;

/// A system relation by name.
pub fn relation(schema: &str, name: &str) -> Option<Arc<Relation>> {
    data::definition(schema, name).map(|definition| definition.relation.clone())
}

/// The schemas of a path that are there: those of the system, and the user's.
pub fn existing(schema: &Schema, path: &[String]) -> Vec<String> {
    let there = |name: &&String| schema.has_namespace(name) || names::schema_oid(name).is_some();
    path.iter().filter(there).cloned().collect()
}

/// All of them.
pub fn relations() -> impl Iterator<Item = Arc<Relation>> {
    data::definitions().iter().map(|definition| definition.relation.clone())
}

/// A relation's number in `pg_class`. None if there is none, or if another relation's name has the same hash: then the
/// numbers depend on each other, and only the whole directory knows.
pub fn relation_oid(schema: &Schema, namespace: &str, name: &str) -> Option<u32> {
    match namespace {
        known if schema.has_namespace(known) => directory::plain_oid(schema, &relation_name(known, name)),
        _ => data::definition(namespace, name).map(|definition| definition.oid),
    }
}

/// The rows of a relation, given as `schema.name`.
pub fn rows(relation: &str, facts: &Facts) -> Result<Vec<Vec<Value>>, SqlError> {
    let missing = || SqlError::new("42P01", format!("relation \"{relation}\" does not exist"));
    let (schema, name) = relation.split_once('.').unwrap_or(("pg_catalog", relation));
    let definition = data::definition(schema, name).ok_or_else(missing)?;
    Ok(match schema {
        "information_schema" => information::rows(definition, facts),
        _ => catalog::rows(definition, facts),
    })
}
