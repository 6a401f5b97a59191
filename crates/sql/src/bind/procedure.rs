//! Calls of procedures: functions of the schema `isles`, which whoever stands above the database has registered.
//!
//! ```text
//! SELECT isles.name(args…)            a procedure with one column
//! SELECT * FROM isles.name(args…)     any procedure
//! SHOW DISTRIBUTION                   isles.distribution()
//! ```
//!
//! A procedure changes things on the shards that its arguments lead to, so no shard and no stage can call it, and it is
//! not part of a larger query. The session calls it, within its transaction if there is one. Arguments may be given by
//! name, and are computed by the router.

use super::expr::location;
use super::scope::{Place, Scope};
use super::{Binder, Result};
use crate::tree::{Expr, ExprKind, Field};
use crate::types::{Oid, Type};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use pg_raw_parse::{Node, nodes};
use std::collections::BTreeMap;

/// The schema of procedures, and of the tables that they keep.
pub const SYSTEM_NAMESPACE: &str = "isles";

/// What a procedure is given and gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    pub params: Vec<Param>,
    pub columns: Vec<Field>,
}

/// A parameter. One that is optional is null if it is not given; such come last.
#[derive(Debug, Clone, PartialEq)]
pub struct Param {
    pub name: String,
    pub ty: Oid,
    pub optional: bool,
}

/// Procedures by name.
pub type Signatures = BTreeMap<String, Signature>;

/// For whoever has none.
pub static NO_PROCEDURES: Signatures = BTreeMap::new();

/// Procedures that `SHOW` shows what they return, where there is one of the name.
const SHOWN: [&str; 1] = ["distribution"];

/// Which statement calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallVerb {
    Select,
    /// It changes nothing.
    Show,
}

/// A statement that calls a procedure.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub verb: CallVerb,
    pub procedure: String,
    /// One for each of its parameters.
    pub args: Vec<Expr>,
    pub columns: Vec<Field>,
}

/// How a procedure stands in its statement.
enum Form {
    Target,
    From,
}

impl Binder<'_> {
    /// The statement as a call of a procedure; None if it is none.
    pub(super) fn procedure_call(&mut self, select: &nodes::SelectStmt) -> Result<Option<Call>> {
        let Some((call, form)) = called(select) else { return Ok(None) };
        let name = procedure_name(call).unwrap_or_default();
        let signatures = self.context.procedures;
        let Some(signature) = signatures.get(name) else {
            let error = SqlError::new("42883", format!("function {SYSTEM_NAMESPACE}.{name}() does not exist"));
            return Err(self.at(error, call.location));
        };
        if !stands_alone(select) {
            let error = SqlError::unsupported(format!("{SYSTEM_NAMESPACE}.{name} is called in a statement of its own"));
            let hint =
                format!("SELECT * FROM {SYSTEM_NAMESPACE}.{name}(…), without joins, conditions and other targets");
            return Err(self.at(error.with_hint(hint), call.location));
        }
        if matches!(form, Form::Target) && signature.columns.len() != 1 {
            let error = SqlError::unsupported(format!("{SYSTEM_NAMESPACE}.{name} returns several columns"));
            let hint = format!("SELECT * FROM {SYSTEM_NAMESPACE}.{name}(…)");
            return Err(self.at(error.with_hint(hint), call.location));
        }
        self.scopes.push(Scope::default());
        let args = self.placed(Place::Target, |binder| binder.procedure_args(call, name, signature));
        self.scopes.pop();
        let columns = signature.columns.clone();
        Ok(Some(Call { verb: CallVerb::Select, procedure: name.into(), args: args?, columns }))
    }

    /// `SHOW name` as a call of a procedure; None if it shows something else.
    pub(super) fn shown_by_procedure(&self, show: &nodes::VariableShowStmt) -> Option<Call> {
        let wanted = show.name()?;
        let name = SHOWN.into_iter().find(|name| wanted.eq_ignore_ascii_case(name))?;
        let columns = self.context.procedures.get(name)?.columns.clone();
        Some(Call { verb: CallVerb::Show, procedure: name.into(), args: Vec::new(), columns })
    }

    fn procedure_args(&mut self, call: &nodes::FuncCall, name: &str, signature: &Signature) -> Result<Vec<Expr>> {
        let mut given: Vec<Option<Expr>> = vec![None; signature.params.len()];
        for (at, node) in call.args().iter().enumerate() {
            let (place, value) = match node {
                Node::NamedArgExpr(named) => {
                    let wanted = named.name().unwrap_or_default();
                    let place = signature.params.iter().position(|param| param.name == wanted);
                    (place.ok_or_else(|| no_param(name, wanted)), named.arg())
                }
                node => ((at < given.len()).then_some(at).ok_or_else(|| too_many(name, signature)), node),
            };
            let place = place.map_err(|error| self.at(error, location(node)))?;
            if given[place].is_some() {
                let message = format!("argument \"{}\" is given twice", signature.params[place].name);
                return self.fail("42601", message, location(node));
            }
            let expr = self.expr(value)?;
            let what = format!("{SYSTEM_NAMESPACE}.{name}");
            given[place] = Some(self.coerce_to_specific(expr, signature.params[place].ty, &what, location(node))?);
        }
        let whole = given.into_iter().zip(&signature.params).map(|(expr, param)| match (expr, param.optional) {
            (Some(expr), _) => Ok(expr),
            (None, true) => Ok(Expr::new(ExprKind::Const(Value::Null), Type::of(param.ty))),
            (None, false) => Err(missing(name, param)),
        });
        let whole: Result<Vec<Expr>> = whole.collect();
        whole.map_err(|error| self.at(error, call.location))
    }
}

fn no_param(name: &str, wanted: &str) -> SqlError {
    SqlError::new("42883", format!("{SYSTEM_NAMESPACE}.{name} has no argument \"{wanted}\""))
}

fn too_many(name: &str, signature: &Signature) -> SqlError {
    let most = signature.params.len();
    SqlError::new("42883", format!("{SYSTEM_NAMESPACE}.{name} has {most} arguments at most"))
}

fn missing(name: &str, param: &Param) -> SqlError {
    let error = SqlError::new("42883", format!("{SYSTEM_NAMESPACE}.{name} needs the argument \"{}\"", param.name));
    error.with_hint(format!("{} => …", param.name))
}

/// The last part of a name in the schema of procedures.
fn procedure_name(call: &nodes::FuncCall) -> Option<&str> {
    let mut parts = call.funcname().iter().filter_map(Node::as_str);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(SYSTEM_NAMESPACE), Some(name), None) => Some(name),
        _ => None,
    }
}

fn as_procedure(node: Node<'_>) -> Option<&nodes::FuncCall> {
    match node {
        Node::FuncCall(call) if procedure_name(call).is_some() => Some(call),
        _ => None,
    }
}

/// The first call of a procedure among the targets and in FROM.
fn called<'a>(select: &'a nodes::SelectStmt) -> Option<(&'a nodes::FuncCall, Form)> {
    let of_from = |node: Node<'a>| match node {
        Node::RangeFunction(range) => match range.functions().iter().next() {
            Some(Node::NodeList(pair)) => pair.get(0).and_then(as_procedure),
            _ => None,
        },
        _ => None,
    };
    let target = select.target_list().iter().find_map(|target| as_procedure(target.val()));
    let from = || select.from_clause().iter().find_map(of_from).map(|call| (call, Form::From));
    target.map(|call| (call, Form::Target)).or_else(from)
}

/// Whether a statement is a call and nothing besides: one target, which is the call, or a star over it.
fn stands_alone(select: &nodes::SelectStmt) -> bool {
    let mut targets = select.target_list().iter();
    let (Some(target), None) = (targets.next(), targets.next()) else { return false };
    let is_star = match target.val() {
        Node::ColumnRef(column) => matches!(column.fields().iter().next_back(), Some(Node::A_Star(_))),
        _ => false,
    };
    let in_from = select.from_clause().len();
    let is_one = (is_star && in_from == 1) || (!is_star && in_from == 0);
    let is_bare = matches!(select.where_clause(), Node::None)
        && matches!(select.having_clause(), Node::None)
        && matches!(select.limit_count(), Node::None)
        && matches!(select.limit_offset(), Node::None)
        && select.group_clause().is_empty()
        && select.sort_clause().is_empty()
        && select.distinct_clause().is_empty()
        && select.locking_clause().is_empty()
        && select.with_clause().is_none();
    is_one && is_bare
}
