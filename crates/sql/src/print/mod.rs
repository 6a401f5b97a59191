//! Bound trees printed as SQL of an engine.
//!
//!     Statement ──sqlite──►   SQL that calls back into `runtime` wherever SQLite would answer differently
//!               ──postgres──► SQL with every type and name spelled out
//!
//! In reading order:
//!   * [`call`]    what our functions inside of SQLite are told in their first argument
//!   * `walk`      visits of all expressions of a tree
//!   * `native`    which types and functions SQLite has as PostgreSQL has them
//!   * `sqlite`    the SQLite printer
//!   * `postgres`  the PostgreSQL printer
//!   * `settings`  a session's settings as one parameter
//!
//! Invariants:
//!   * What is printed means what the tree means, or nothing is printed: a construct that an engine cannot do
//!     faithfully is refused with 0A000.
//!   * No value that a client gave is printed other than as a parameter or as an exact literal of its type.

pub mod call;
mod native;
mod postgres;
mod settings;
mod sqlite;
mod walk;

use crate::owned::keep_to_owned;
use crate::plan::{Form, Fragment, ParamSource, Printed};
use crate::scope::unscoped;
use crate::tree::{Expr, ExprKind, RelationRef, RelationSource, Statement};
use crate::types::{self, Type};
use isles_kernel::error::SqlError;
use isles_kernel::schema::Table;
use isles_kernel::value::{DataType, Value};
use std::sync::Arc;

type Result<T> = std::result::Result<T, SqlError>;

/// An engine's SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    Sqlite,
    Postgres,
}

/// The name of a column of a staged relation in SQLite: results may have several columns of one name.
pub fn staged_column(at: usize) -> String {
    format!("c{at}")
}

impl Fragment {
    /// The statement in the dialect of `engine`; printed once.
    pub fn printed(&self, engine: Dialect, form: Form) -> Result<Arc<Printed>> {
        let texts = match form {
            Form::Whole => &self.whole,
            Form::Owned => &self.owned,
        };
        let text = match engine {
            Dialect::Sqlite => &texts.sqlite,
            Dialect::Postgres => &texts.postgres,
        };
        let bound = |fragment: &Fragment| fragment.print(engine, Constants::Bound)?.finish(fragment).map(Arc::new);
        let print = || match form {
            Form::Whole => bound(self),
            Form::Owned => bound(&Fragment::new(keep_to_owned(self.statement.clone())?, self.fields.clone())),
        };
        text.get_or_init(print).clone()
    }

    /// What it has been printed as so far.
    pub fn texts(&self) -> impl Iterator<Item = &Arc<Printed>> {
        let kept = [&self.whole, &self.owned].into_iter().flat_map(|texts| [&texts.sqlite, &texts.postgres]);
        kept.filter_map(|text| text.get()?.as_ref().ok())
    }

    /// The same for people, who want to see the constants in their places, and know nothing of what keeps tenants apart.
    pub fn shown(&self, engine: Dialect) -> Result<String> {
        let plain = Fragment::new(unscoped(self.statement.clone()), self.fields.clone());
        plain.print(engine, Constants::Written).map(|output| output.sql)
    }

    fn print(&self, engine: Dialect, constants: Constants) -> Result<Output> {
        match engine {
            Dialect::Sqlite => sqlite::print(self, constants),
            Dialect::Postgres => postgres::print(self, constants),
        }
    }
}

/// What becomes of a constant that a column is compared with.
///
/// Clients that write values into their texts send a new text each time. Their constants are bound, so that the engines,
/// at least, see the same text again, and need not prepare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Constants {
    Written,
    Bound,
}

/// The constant among the two sides of a comparison, if the other one is a column.
fn compared_constant<'a>(side: &'a Expr, other: &Expr) -> Option<&'a Value> {
    match (&side.kind, &other.kind) {
        (ExprKind::Const(Value::Null | Value::Bool(_)), _) => None,
        (ExprKind::Const(value), ExprKind::Column { .. }) => Some(value),
        _ => None,
    }
}

/// An expression over the columns of one table, for DDL: columns by their bare names, and nothing to bind.
pub(crate) struct TableText {
    pub(crate) sqlite: String,
    pub(crate) postgres: String,
}

/// The text by which an expression over one table is known; None if it is not over it alone.
pub(crate) fn text_over_table(expr: &Expr, of: &RelationRef) -> Option<String> {
    let output = postgres::over_table(expr, of).ok()?;
    output.params.sources.is_empty().then_some(output.sql)
}

pub(crate) fn over_table(expr: &Expr, of: &RelationRef) -> Result<TableText> {
    let (sqlite, postgres) = (sqlite::over_table(expr, of)?, postgres::over_table(expr, of)?);
    if !sqlite.params.sources.is_empty() || !postgres.params.sources.is_empty() {
        return Err(SqlError::unsupported("an expression of a table cannot depend on the session"));
    }
    Ok(TableText { sqlite: sqlite.sql, postgres: postgres.sql })
}

/// A text and what to bind in it.
struct Output {
    sql: String,
    params: Params,
}

impl Output {
    fn finish(self, fragment: &Fragment) -> Result<Printed> {
        let columns: Arc<[DataType]> = fragment.fields.iter().map(|field| carrier(field.ty)).collect::<Result<_>>()?;
        let writes = !matches!(fragment.statement, Statement::Query(_));
        Ok(Printed { sql: self.sql.into(), params: self.params.sources, columns, writes })
    }
}

fn carrier(ty: Type) -> Result<DataType> {
    types::carrier(ty.oid).ok_or_else(|| unsupported(format!("values of type {}", type_name(ty))))
}

fn type_name(ty: Type) -> String {
    crate::builtins::format_type(ty)
}

/// The parameters of a text, numbered by their first use.
struct Params {
    sources: Vec<ParamSource>,
    constants: Constants,
}

impl Params {
    fn new(constants: Constants) -> Params {
        Params { sources: Vec::new(), constants }
    }

    /// Whether the text is for people, and is not run.
    fn are_for_people(&self) -> bool {
        self.constants == Constants::Written
    }

    /// `$n` for what is to be bound.
    fn place(&mut self, source: ParamSource) -> String {
        let at = self.sources.iter().position(|known| *known == source).unwrap_or_else(|| {
            self.sources.push(source);
            self.sources.len() - 1
        });
        format!("${}", at + 1)
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn quoted_list<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    names.into_iter().map(|name| quoted(name.as_ref())).collect::<Vec<_>>().join(", ")
}

fn text_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `DESC NULLS LAST`, always spelled out: the defaults of the engines are not the same.
fn direction(descending: bool, nulls_first: bool) -> &'static str {
    match (descending, nulls_first) {
        (false, false) => " ASC NULLS LAST",
        (false, true) => " ASC NULLS FIRST",
        (true, false) => " DESC NULLS LAST",
        (true, true) => " DESC NULLS FIRST",
    }
}

/// The table that is written to.
fn table(of: &RelationRef) -> Result<&Arc<Table>> {
    match &of.relation.source {
        RelationSource::User(table) => Ok(table),
        _ => Err(SqlError::new("42809", format!("cannot change relation \"{}\"", of.relation.name))),
    }
}

fn unsupported(what: impl std::fmt::Display) -> SqlError {
    SqlError::unsupported(format!("{what} cannot be run on the shards"))
}
