//! Binding: PostgreSQL's raw tree to the bound tree. Names and types are resolved by PostgreSQL's rules.
//!
//!     Parsed ──► Binder ──► Bound { statement, params }
//!
//! In reading order:
//!   * `input`    literals to values
//!   * `typename` names of types, with their modifiers
//!   * `coerce`   conversions: which there are, which is chosen, which type several expressions have in common
//!   * `resolve`  which function or operator a name and its arguments mean
//!   * `scope`    what names can be seen from where
//!   * `expr`     expressions; `call` functions, aggregates and windows; `compare` rows, lists and subqueries
//!   * `from`     FROM clauses; `lockstep` several arrays taken apart at once; `query` SELECT, VALUES and set operations; `group` what grouping allows
//!   * `write`    INSERT, UPDATE, DELETE
//!   * `key`      what a key of a table is over
//!   * `tenant`   which tenant a row is given to
//!   * `procedure` calls of what is registered above the database
//!   * `fill`     values in the places of parameters
//!   * `origin`   which tables and columns a result's columns are of
//!   * `ddl`, `utility` everything else
//!
//! While a statement is being bound, an expression may have type `unknown`: a literal in quotes or a parameter whose
//! type nobody has asked for yet. The first who wants another type decides what it is. What nobody has decided by the
//! end is text in a result, and an error for a parameter. So no `unknown` is left in a bound tree.
//!
//! Contract for sequences: `nextval('name')` and the default of an identity column are calls of function 1574 whose
//! argument is a constant of type text that holds the sequence's name (`currval` and `setval` likewise). A number of
//! a relation would have to be looked up again by whoever evaluates it.
//!
//! Contract for arrays: a [`crate::tree::CastHow::Function`] between two array types applies to each element.

mod call;
mod coerce;
mod compare;
pub mod ddl;
mod expr;
mod expressions;
mod fill;
mod from;
mod group;
mod input;
mod key;
mod lockstep;
mod names;
mod origin;
pub mod procedure;
mod query;
mod resolve;
mod scope;
mod tenant;
#[cfg(test)]
mod tests;
mod typename;
pub mod utility;
mod walk;
mod write;

pub(crate) use fill::{put_back, read_literal};
pub(crate) use key::BoundKey;
pub use origin::Origin;
pub(crate) use tenant::tenant_expression;
pub use write::ROW_ID;

use crate::parse::{OwnStatement, Parsed};
use crate::text::Settings;
use crate::tree::{RelId, Relation, Statement};
use crate::types::{self, Oid, Type};
use isles_kernel::error::SqlError;
use isles_kernel::schema::Schema;
use origin::Origins;
use pg_raw_parse::{Node, nodes};
use scope::{CteEntry, Place, Scope};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

pub(crate) type Result<T> = std::result::Result<T, SqlError>;

/// How deep expressions and queries may be inside of each other. Binding, planning and printing recurse over the
/// tree, on stacks of 2 MiB.
pub const MAX_DEPTH: usize = 120;
/// As the protocol: the number of a parameter has 16 bits.
pub const MAX_PARAMS: usize = 65_535;
/// Views in views; PostgreSQL has no limit, but a cycle must end.
const MAX_VIEW_DEPTH: usize = 16;

/// What binding is given.
#[derive(Clone, Copy)]
pub struct BindContext<'a> {
    pub schema: &'a Schema,
    /// Schemas in which unqualified names are looked up, after `pg_catalog`.
    pub search_path: &'a [String],
    pub database: &'a str,
    /// How literals are read: time zone, order of dates. A bound statement holds for these settings alone.
    pub settings: &'a Settings,
    /// What a table is that does not say `kind`.
    pub default_kind: utility::DefaultKind,
    /// Buckets of a new group that does not say how many.
    pub default_buckets: u32,
    /// What can be called in the schema `isles`.
    pub procedures: &'a procedure::Signatures,
}

impl<'a> BindContext<'a> {
    /// What the statements that are not about rows are given.
    fn for_utility(&'a self, expressions: &'a expressions::OfBinder<'a>) -> utility::Context<'a> {
        utility::Context {
            schema: self.schema,
            search_path: self.search_path,
            expressions,
            default_kind: self.default_kind,
            default_buckets: self.default_buckets,
        }
    }
}

/// A bound statement.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    pub statement: BoundStatement,
    /// The types of all parameters, given or inferred.
    pub params: Vec<Oid>,
    /// Where the columns that it returns come from; none for a statement that is not about rows.
    pub origins: Vec<Origin>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum BoundStatement {
    Rows(Box<Statement>),
    Explain(Box<Explain>),
    Call(Box<procedure::Call>),
    Other(Box<utility::Utility>),
    /// A text of nothing but comments.
    Empty,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Explain {
    pub analyze: bool,
    /// Whether it tells how long things took.
    pub timing: bool,
    /// Whether it tells what all of it took.
    pub summary: bool,
    pub format: ExplainFormat,
    pub statement: Statement,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExplainFormat {
    Text,
    Json,
}

/// Binds a statement. `param_types` are the types that the client gave; 0 where it gave none.
pub fn bind(parsed: &Parsed, context: &BindContext<'_>, param_types: &[Oid]) -> Result<Bound> {
    if let Some(own) = parsed.own() {
        let utility = match own.clone() {
            OwnStatement::Tenant(statement) => utility::Utility::Tenant(statement),
            OwnStatement::Move(statement) => utility::Utility::Plan(statement),
            OwnStatement::Shard(statement) => utility::Utility::Shard(statement),
            OwnStatement::Index(order) => {
                let expressions = expressions::OfBinder(context);
                utility::ordered(&order, &context.for_utility(&expressions))?
            }
            OwnStatement::Migration(order) => {
                let expressions = expressions::OfBinder(context);
                utility::ordered_migration(&order, &context.for_utility(&expressions))?
            }
        };
        let statement = BoundStatement::Other(Box::new(utility));
        return Ok(Bound { statement, params: Vec::new(), origins: Vec::new() });
    }
    let Some(node) = parsed.statement() else {
        return Ok(Bound { statement: BoundStatement::Empty, params: Vec::new(), origins: Vec::new() });
    };
    let mut binder = Binder::new(context, parsed.text().clone(), param_types);
    let statement = match node {
        // `SELECT … INTO` makes a table.
        Node::SelectStmt(select) if select.into_clause().is_some() => bind_utility(node, context)?,
        Node::SelectStmt(select) if let Some(call) = binder.procedure_call(select)? => {
            BoundStatement::Call(Box::new(call))
        }
        Node::VariableShowStmt(show) if let Some(call) = binder.shown_by_procedure(show) => {
            BoundStatement::Call(Box::new(call))
        }
        Node::SelectStmt(_) | Node::InsertStmt(_) | Node::UpdateStmt(_) | Node::DeleteStmt(_) => {
            BoundStatement::Rows(Box::new(binder.rows_statement(node)?))
        }
        Node::ExplainStmt(explain) => BoundStatement::Explain(Box::new(binder.explain(explain)?)),
        // Its query may have parameters, and is wrong at once if it is.
        Node::DeclareCursorStmt(declare) => {
            binder.rows_statement(declare.query())?;
            bind_utility(node, context)?
        }
        other => bind_utility(other, context)?,
    };
    let origins = match &statement {
        BoundStatement::Rows(rows) => Origins { schema: context.schema, views: &binder.view_rels }.of(rows),
        _ => Vec::new(),
    };
    Ok(Bound { statement, params: binder.finish_params()?, origins })
}

fn bind_utility(node: Node<'_>, context: &BindContext<'_>) -> Result<BoundStatement> {
    let expressions = expressions::OfBinder(context);
    Ok(BoundStatement::Other(Box::new(utility::bind(node, &context.for_utility(&expressions))?)))
}

/// Binds a statement of rows inside of another one: what a cursor, COPY or PREPARE reads. `text` is what locations in
/// the node refer to.
pub fn bind_rows(
    node: Node<'_>,
    text: &Arc<str>,
    context: &BindContext<'_>,
    param_types: &[Oid],
) -> Result<(Statement, Vec<Oid>)> {
    let mut binder = Binder::new(context, text.clone(), param_types);
    let statement = binder.rows_statement(node)?;
    Ok((statement, binder.finish_params()?))
}

/// The type that a name in a statement means, with its modifier: for DDL.
pub fn bind_type(name: &nodes::TypeName, text: &str) -> Result<Type> {
    typename::resolve(name).map_err(|error| error.at(crate::parse::position(text, name.location)))
}

pub(crate) struct Binder<'a> {
    context: &'a BindContext<'a>,
    text: Arc<str>,
    params: Vec<Oid>,
    next_rel: u32,
    next_cte: u32,
    scopes: Vec<Scope>,
    ctes: Vec<CteEntry>,
    /// Common table expressions that are not defined yet, for a hint.
    later_ctes: Vec<String>,
    place: Place,
    depth: usize,
    views: usize,
    /// The relations that stand for views, whose queries have taken their place.
    view_rels: HashMap<RelId, String>,
    /// The table and columns of an INSERT whose source is being bound, for a hint.
    insert_target: Option<(String, Vec<String>)>,
    relations: HashMap<String, Arc<Relation>>,
    /// Where names are looked up: the session's path, and within a view the one that it was made with.
    path: Arc<[String]>,
}

impl<'a> Binder<'a> {
    fn new(context: &'a BindContext<'a>, text: Arc<str>, param_types: &[Oid]) -> Binder<'a> {
        let untyped = |oid: &Oid| if oid.0 == 0 { types::UNKNOWN } else { *oid };
        Binder {
            context,
            text,
            params: param_types.iter().map(untyped).collect(),
            next_rel: 0,
            next_cte: 0,
            scopes: Vec::new(),
            ctes: Vec::new(),
            later_ctes: Vec::new(),
            place: Place::None,
            depth: 0,
            views: 0,
            view_rels: HashMap::new(),
            insert_target: None,
            relations: HashMap::new(),
            path: Arc::from(context.search_path),
        }
    }

    fn rows_statement(&mut self, node: Node<'_>) -> Result<Statement> {
        match node {
            Node::SelectStmt(select) => Ok(Statement::Query(self.query(select)?)),
            Node::InsertStmt(insert) => Ok(Statement::Insert(self.insert(insert)?)),
            Node::UpdateStmt(update) => Ok(Statement::Update(self.update(update)?)),
            Node::DeleteStmt(delete) => Ok(Statement::Delete(self.delete(delete)?)),
            other => Err(unsupported_node(other)),
        }
    }

    fn explain(&mut self, explain: &nodes::ExplainStmt) -> Result<Explain> {
        let mut bound = Explain {
            analyze: false,
            timing: true,
            summary: true,
            format: ExplainFormat::Text,
            statement: self.rows_statement(explain.query())?,
        };
        let mut measures = None;
        for option in explain.options().iter() {
            let name = option.defname().unwrap_or_default();
            let refused = |error: SqlError| Err(self.at(error, option.location));
            if name == "format" {
                bound.format = match option.arg().as_str().map(str::to_lowercase).as_deref() {
                    Some("json") => ExplainFormat::Json,
                    Some("text") => ExplainFormat::Text,
                    _ => return refused(no_explain(name, "the formats are TEXT and JSON")),
                };
                continue;
            }
            let on = explain_word(option).ok_or_else(|| {
                self.at(SqlError::new("42601", format!("{name} requires a Boolean value")), option.location)
            })?;
            match name {
                "analyze" => bound.analyze = on,
                // All that is known is shown in any case.
                "verbose" => {}
                "timing" => (bound.timing, measures) = (on, on.then_some("TIMING").or(measures)),
                "summary" => (bound.summary, measures) = (on, on.then_some("SUMMARY").or(measures)),
                "costs" | "buffers" | "wal" | "settings" | "generic_plan" | "memory" if !on => {}
                "costs" => return refused(no_explain(name, "ANALYZE tells what each shard took")),
                "buffers" | "wal" | "settings" | "generic_plan" | "memory" | "serialize" => {
                    return refused(no_explain(name, "leave it out"));
                }
                _ => {
                    return refused(SqlError::new("42601", format!("unrecognized EXPLAIN option \"{name}\"")));
                }
            }
        }
        match measures.filter(|_| !bound.analyze) {
            Some(option) => Err(SqlError::new("22023", format!("EXPLAIN option {option} requires ANALYZE"))),
            None => Ok(bound),
        }
    }

    fn finish_params(self) -> Result<Vec<Oid>> {
        match self.params.iter().position(|oid| *oid == types::UNKNOWN) {
            None => Ok(self.params),
            Some(at) => {
                let message = format!("could not determine data type of parameter ${}", at + 1);
                Err(SqlError::new("42P18", message))
            }
        }
    }

    fn new_rel(&mut self) -> RelId {
        self.next_rel += 1;
        RelId(self.next_rel - 1)
    }

    /// The error, at a byte of the statement's text.
    fn at(&self, error: SqlError, location: i32) -> SqlError {
        error.at(crate::parse::position(&self.text, location))
    }

    fn fail<T>(&self, sqlstate: &'static str, message: impl Into<String>, location: i32) -> Result<T> {
        Err(self.at(SqlError::new(sqlstate, message), location))
    }

    fn refuse<T>(&self, what: impl std::fmt::Display, location: i32) -> Result<T> {
        Err(self.at(SqlError::unsupported(format!("{what} is not supported")), location))
    }

    /// Runs one level deeper.
    fn deeper<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_DEPTH {
            let message = format!("statement is nested deeper than {MAX_DEPTH} levels");
            return Err(SqlError::new("54001", message));
        }
        self.depth += 1;
        let result = run(self);
        self.depth -= 1;
        result
    }

    /// Runs with another idea of where in a statement an expression stands.
    fn placed<T>(&mut self, place: Place, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = std::mem::replace(&mut self.place, place);
        let result = run(self);
        self.place = before;
        result
    }
}

fn no_explain(option: &str, hint: &str) -> SqlError {
    SqlError::unsupported(format!("EXPLAIN option \"{option}\" is not supported")).with_hint(hint)
}

/// Whether an option of EXPLAIN is on; None for what says neither.
fn explain_word(option: &nodes::DefElem) -> Option<bool> {
    let word = match option.arg() {
        Node::None => return Some(true),
        Node::Integer(number) => {
            return [(0, false), (1, true)].into_iter().find(|(n, _)| *n == number.ival).map(|(_, on)| on);
        }
        arg => arg.as_str().map(str::to_lowercase),
    };
    match word.as_deref() {
        Some("on" | "true") => Some(true),
        Some("off" | "false") => Some(false),
        _ => None,
    }
}

/// What a node is called in a refusal: the name of its kind, in words.
fn unsupported_node(node: Node<'_>) -> SqlError {
    let mut name = FirstWord(String::new());
    // Printing ends at the first word: the whole node may be deeper than the stack.
    let _ = write!(name, "{node:?}");
    SqlError::unsupported(format!("{} is not supported", name.0))
}

/// Takes in one word and refuses the rest.
struct FirstWord(String);

impl std::fmt::Write for FirstWord {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for c in text.chars() {
            if !c.is_alphanumeric() && c != '_' {
                return Err(std::fmt::Error);
            }
            self.0.push(c);
        }
        Ok(())
    }
}
