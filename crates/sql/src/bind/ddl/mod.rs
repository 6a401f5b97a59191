//! DDL: statements that change the schema, computed against the schema of the moment.
//!
//!     raw tree ──► DdlChange { changes, notices, … } ──► the cluster applies the changes to every shard as one
//!
//! Nothing here has side effects: a change is judged whole, by applying it to a copy of the schema, before anybody
//! acts on it. The cluster applies it only if the schema is still the one it was computed against.

//!
//! In reading order:
//!   * `draft`       a change in the making
//!   * `text`        parts of statements as text
//!   * `column`      types, defaults, identities
//!   * `global`      keys over the rows of all shards
//!   * `constraint`  keys, checks, foreign keys
//!   * `table`       CREATE TABLE, and from a query
//!   * `alter`       ALTER TABLE, and renaming
//!   * `index`, `view`, `sequence`, `comment`
//!   * `drop`        and what depends on what
//!   * `namespace`   what SQL calls a schema

mod alter;
mod column;
mod comment;
mod constraint;
mod draft;
mod drop;
mod global;
mod index;
mod namespace;
mod sequence;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod text;
mod view;

use super::utility::{Context, Utility};
use crate::tree::Field;
use crate::types::Type;
pub(super) use draft::find;
use draft::{Draft, Otherwise};
pub(super) use global::global_index;
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Schema, SchemaChange, Table, plain_name};
use isles_kernel::value::Value;
use pg_raw_parse::nodes::{self, DefElem, RangeVar};
use pg_raw_parse::raw::ObjectType;
use pg_raw_parse::{ConstValue, Node};

type Result<T> = std::result::Result<T, SqlError>;

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
    /// Before the changes are applied, `SELECT (expression)` is run once in the session for each of these, and its value
    /// becomes the `default` of the column that `changes[change]` adds: what rows get that are there.
    pub compute: Vec<Compute>,
    /// Run after the changes, in the same transaction: the `INSERT … SELECT` of `CREATE TABLE AS`. The tag then counts
    /// its rows.
    pub then: Option<String>,
    /// What was said CONCURRENTLY: PostgreSQL does it in transactions of its own, and so never inside of another one.
    pub concurrently: Option<&'static str>,
}

impl DdlChange {
    /// Whether everything is there already, or gone already.
    pub fn is_nothing(&self) -> bool {
        self.changes.is_empty() && self.restarts.is_empty() && self.then.is_none()
    }
}

/// The value of a default at the moment. The expression has the column's type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compute {
    pub change: usize,
    pub expression: String,
}

/// What DDL asks of the binder of expressions and of the printers.
pub trait Expressions {
    /// The type that a name and its modifiers stand for; 42704 if there is none.
    fn named_type(&self, name: &nodes::TypeName) -> Result<Type>;

    /// Binds a query, whose names are looked up in `path`; returns its columns.
    fn query_columns(&self, schema: &Schema, path: &[String], sql: &str) -> Result<Vec<Field>>;

    /// Binds a default, assigned to a column of this type of a table; the column's name is for messages.
    fn default(&self, schema: &Schema, table: &str, sql: &str, ty: Type, column: &str) -> Result<DefaultValue>;

    /// Binds an expression over one table's columns, without subqueries, aggregates and parameters, and prints it for
    /// both engines.
    fn over_table(&self, table: &Table, sql: &str, purpose: Purpose) -> Result<TableExpression>;
}

/// What a default is.
#[derive(Debug, Clone, PartialEq)]
pub enum DefaultValue {
    /// Always the same.
    Constant(Value),
    /// The same for all rows of a statement (`now()`, `1 + 1`), and not computed yet.
    PerStatement,
    /// Another for each row: `nextval`, `random`, `gen_random_uuid`.
    PerRow,
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
    /// A value of a column's new type, assigned to it: 42804 where no such conversion is.
    Convert(Type),
    /// The name of a row's tenant: assigned to text, immutable.
    Tenant,
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

/// Binds a statement that changes the schema; None if it is not one that Isles knows.
pub(super) fn bind(node: Node<'_>, context: &Context<'_>) -> Result<Option<DdlChange>> {
    let mut draft = Draft::new(context);
    let tag = match node {
        Node::CreateStmt(statement) => {
            table::create(&mut draft, statement)?;
            "CREATE TABLE"
        }
        Node::CreateTableAsStmt(statement) => return table::create_as(draft, statement).map(Some),
        Node::SelectStmt(select) => return table::select_into(draft, select).map(Some),
        Node::AlterTableStmt(statement) => return alter::alter(draft, statement).map(Some),
        Node::RenameStmt(statement) => return alter::rename(draft, statement),
        Node::IndexStmt(statement) => {
            draft.concurrently = statement.concurrent.then_some("CREATE INDEX CONCURRENTLY");
            index::create(&mut draft, statement)?;
            "CREATE INDEX"
        }
        Node::ViewStmt(statement) => {
            view::create(&mut draft, statement)?;
            "CREATE VIEW"
        }
        Node::CreateSeqStmt(statement) => {
            sequence::create(&mut draft, statement)?;
            "CREATE SEQUENCE"
        }
        Node::AlterSeqStmt(statement) => return sequence::alter(draft, statement).map(Some),
        Node::DropStmt(statement) if statement.remove_type == ObjectType::OBJECT_SCHEMA => {
            return namespace::drop(draft, statement);
        }
        Node::DropStmt(statement) => return drop::drop(draft, statement),
        Node::CommentStmt(statement) => {
            comment::comment(&mut draft, statement)?;
            "COMMENT"
        }
        Node::CreateSchemaStmt(statement) => {
            namespace::create(&mut draft, statement)?;
            "CREATE SCHEMA"
        }
        Node::CreateExtensionStmt(statement) => {
            create_extension(&mut draft, statement)?;
            "CREATE EXTENSION"
        }
        _ => return Ok(None),
    };
    Ok(Some(draft.finish(tag)))
}

/// What a server says that has no extensions to offer but the one that is always there.
fn create_extension(draft: &mut Draft<'_>, statement: &nodes::CreateExtensionStmt) -> Result<()> {
    let name = statement.extname().unwrap_or_default();
    match name {
        "plpgsql" if statement.if_not_exists => {
            draft.notices.push(SqlError::new("42710", "extension \"plpgsql\" already exists, skipping"));
            Ok(())
        }
        "plpgsql" => Err(SqlError::new("42710", "extension \"plpgsql\" already exists")),
        _ => Err(SqlError::unsupported(format!("extension \"{name}\" is not available"))
            .with_hint("the shards run no code of extensions; what Isles has is in its documentation of SQL")),
    }
}

/// A relation that is there already: an error, or a notice where that was foreseen.
fn exists(draft: &mut Draft<'_>, name: &str, otherwise: Otherwise) -> Result<()> {
    let message = format!("relation \"{}\" already exists", plain_name(name));
    if otherwise == Otherwise::Fail {
        return Err(SqlError::new("42P07", message));
    }
    draft.notices.push(SqlError::new("42P07", format!("{message}, skipping")));
    Ok(())
}

fn refuse_temporary(relation: Option<&RangeVar>) -> Result<()> {
    match relation.map(|relation| relation.relpersistence as u8) {
        Some(b't') => Err(SqlError::unsupported("temporary tables are not supported")),
        Some(b'u') => Err(SqlError::unsupported("unlogged tables are not supported")),
        _ => Ok(()),
    }
}

/// The argument of a storage parameter as a text; a bare word is one, too.
pub(super) fn option_text(option: &DefElem) -> Option<String> {
    match option.arg() {
        Node::String(text) => text.sval().map(Into::into),
        Node::Integer(n) => Some(n.ival.to_string()),
        Node::Float(text) => text.fval().map(Into::into),
        Node::Boolean(value) => Some(value.boolval.to_string()),
        Node::TypeName(name) => name.names().iter().filter_map(|part| part.sval()).next_back().map(Into::into),
        Node::A_Const(constant) => match constant.val()? {
            ConstValue::String(text) | ConstValue::Float(text) => Some(text.to_string()),
            ConstValue::Integer(n) => Some(n.to_string()),
            _ => None,
        },
        _ => None,
    }
}

/// The table that a name stands for.
pub(super) fn table_named(context: &Context<'_>, parts: &[String]) -> Result<String> {
    let draft = Draft::new(context);
    let name = draft.name_of(parts)?;
    draft.table(&name)?;
    Ok(name)
}

/// Whether a relation has rows.
pub(super) enum Rows {
    Own,
    OfOthers,
}

/// Fails if a relation is not there, or has not these columns.
pub(super) fn check_columns(context: &Context<'_>, relation: &nodes::RangeVar, columns: &[String]) -> Result<Rows> {
    let draft = Draft::new(context);
    let name = draft.name(Some(relation)).map_err(|error| match error.sqlstate {
        "42501" => draft::no_relation(relation.relname().unwrap_or_default()),
        _ => error,
    })?;
    let Some(table) = draft.schema.tables.get(&name) else {
        return match draft.kind_of(&name) {
            Some(_) => Ok(Rows::OfOthers),
            None => Err(draft::no_relation(plain_name(&name))),
        };
    };
    let has = |name: &String| table.visible_columns().iter().any(|column| column.name == *name);
    match columns.iter().find(|name| !has(name)) {
        Some(missing) => Err(draft::no_column(&name, missing)),
        None => Ok(Rows::Own),
    }
}

/// TRUNCATE: the tables with those that refer to them, and the sequences of their columns.
pub(super) fn truncate(statement: &nodes::TruncateStmt, context: &Context<'_>) -> Result<Utility> {
    let mut draft = Draft::new(context);
    let mut tables: Vec<String> = Vec::new();
    for relation in statement.relations() {
        let Node::RangeVar(relation) = relation else { continue };
        let name = draft.name(Some(relation))?;
        draft.table(&name)?;
        if !tables.contains(&name) {
            tables.push(name);
        }
    }
    while let Some((name, on)) = referring(&draft.schema, &tables) {
        if draft::Behavior::of(statement.behavior) == draft::Behavior::Restrict {
            let error = SqlError::unsupported("cannot truncate a table referenced in a foreign key constraint");
            let (shown, on) = (plain_name(&name), plain_name(&on));
            let hint = format!("Truncate table \"{shown}\" at the same time, or use TRUNCATE ... CASCADE.");
            return Err(error.with_detail(format!("Table \"{shown}\" references \"{on}\".")).with_hint(hint));
        }
        draft.notice(format!("truncate cascades to table \"{}\"", plain_name(&name)));
        tables.push(name);
    }
    let owned = |owner: &Option<(String, String)>| owner.as_ref().is_some_and(|(table, _)| tables.contains(table));
    let sequences = draft.schema.sequences.values().filter(|sequence| owned(&sequence.owner));
    let restart = if statement.restart_seqs { sequences.map(|s| s.name.clone()).collect() } else { vec![] };
    Ok(Utility::Truncate { restart, tables, notices: draft.notices })
}

/// A table that is not among these and refers to one of them.
fn referring(schema: &Schema, tables: &[String]) -> Option<(String, String)> {
    let others = schema.tables.values().filter(|table| !tables.contains(&table.name));
    let mut found = others.filter_map(|table| {
        let foreign = table.foreign_keys.iter().find(|foreign| tables.contains(&foreign.table))?;
        Some((table.name.clone(), foreign.table.clone()))
    });
    found.next()
}
