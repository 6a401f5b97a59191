//! DDL: statements that change the schema, computed against the schema of the moment.
//!
//!     raw tree ──► DdlChange { changes, notices, … } ──► the cluster applies the changes to every shard as one
//!
//! Nothing here has side effects: a change is judged whole, by applying it to a copy of the schema, before anybody
//! acts on it. The cluster applies it only if the schema is still the one it was computed against.

use crate::tree::Field;
use crate::types::Type;
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Schema, SchemaChange, Table};
use isles_kernel::value::Value;
use pg_raw_parse::nodes;

/// What a DDL statement does.
#[derive(Debug, Clone, PartialEq)]
pub struct DdlChange {
    /// Applied as one, in order. Empty when there is nothing to do (`IF NOT EXISTS`).
    pub changes: Vec<SchemaChange>,
    /// Shown to the client with severity NOTICE.
    pub notices: Vec<SqlError>,
    pub tag: &'static str,
    /// Sequences whose next number becomes this one, after the changes. A new sequence begins at its start without
    /// being named here, a dropped one is forgotten, a renamed one keeps its position.
    pub restarts: Vec<(String, i64)>,
    /// Run after the changes, in the same transaction as far as a failure of it undoes them: the `INSERT … SELECT`
    /// of `CREATE TABLE AS`. The tag then counts its rows.
    pub then: Option<String>,
}

/// What DDL asks of the binder of expressions and of the printers.
pub trait Expressions {
    /// The type that a name and its modifiers stand for; 42704 if there is none.
    fn named_type(&self, name: &nodes::TypeName) -> Result<Type, SqlError>;

    /// As PostgreSQL's `format_type`.
    fn format_type(&self, ty: Type) -> String;

    /// Binds a query; returns its columns.
    fn query_columns(&self, schema: &Schema, sql: &str) -> Result<Vec<Field>, SqlError>;

    /// Binds a default, assigned to a type. A value if it is constant, so that rows that exist can get it.
    fn default(&self, schema: &Schema, sql: &str, ty: Type) -> Result<Option<Value>, SqlError>;

    /// Binds an expression over one table's columns, without subqueries, aggregates and parameters, and prints it for
    /// both engines.
    fn over_table(&self, table: &Table, sql: &str, purpose: Purpose) -> Result<TableExpression, SqlError>;
}

/// What an expression over a table is for: which of them is in the messages, and whether it must be immutable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A boolean.
    Check,
    /// A boolean, immutable.
    IndexPredicate,
    /// Any type that can be ordered, immutable.
    IndexKey,
}

/// An expression over a table, in the dialects of the engines, columns by their plain names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableExpression {
    pub ty: Type,
    pub sqlite: String,
    pub postgres: String,
    /// The columns it uses.
    pub columns: Vec<String>,
}
