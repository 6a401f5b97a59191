//! SQLite's SQL.
//!
//! Everything is directed by types. What SQLite does as PostgreSQL does is printed as it is; the rest calls
//! [`super::call`]'s dispatchers. The result of every query is named `c0`, `c1`, …, and a relation `r7` after its
//! number, so that no name of a client's can capture another.
//!
//! In reading order:
//!   * this file   names, and queries: select, values, set operations, WITH, ORDER BY, LIMIT
//!   * `from`      relations, joins, functions that return rows, LATERAL
//!   * `group`     GROUP BY, grouping sets, aggregates and windows
//!   * `expr`      expressions
//!   * `subquery`  subqueries in expressions
//!   * `write`     INSERT, UPDATE, DELETE
//!
//! Invariants:
//!   * Comparisons of a bare column with a constant or parameter stay bare, so that indexes serve them.
//!   * Every order says where nulls go; every comparison of numerics and intervals says its collation.
//!   * A subquery that draws random numbers is computed once: SQLite would otherwise copy its expressions to where
//!     they are used.

mod expr;
mod from;
mod group;
mod subquery;
mod write;

use super::native::{self, Class};
use super::{Constants, Output, Params, Result, direction, staged_column, unsupported, walk};
use crate::plan::Fragment;
use crate::tree::{
    Body, Cte, CteBody, Distinct, Expr, ExprKind, OrderBy, OrderKey, Query, RelId, Relation, RelationRef,
    RelationSource, Select, SetOp, Statement,
};
use crate::types::{Oid, Type};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// Conditions that are joined flat; more are nested in halves, since SQLite bounds the depth of an expression.
const FLAT_TERMS: usize = 50;

pub(super) fn print(fragment: &Fragment, constants: Constants) -> Result<Output> {
    let mut printer = Printer { params: Params::new(constants), names: HashMap::new() };
    let sql = match &fragment.statement {
        Statement::Query(query) => printer.query(query, fragment.fields.len())?,
        Statement::Insert(insert) => printer.insert(insert)?,
        Statement::Update(update) => printer.update(update)?,
        Statement::Delete(delete) => printer.delete(delete)?,
    };
    Ok(Output { sql, params: printer.params })
}

/// An expression over one table, by the bare names of its columns.
pub(super) fn over_table(expr: &Expr, of: &RelationRef) -> Result<Output> {
    let names = HashMap::from([(of.rel, Names::Bare(of.relation.clone()))]);
    let mut printer = Printer { params: Params::new(Constants::Written), names };
    Ok(Output { sql: printer.expr(expr)?, params: printer.params })
}

/// How the columns of a relation are called.
#[derive(Debug, Clone)]
enum Names {
    /// `r1."name"`.
    Table { alias: String, relation: Arc<Relation> },
    /// `r1.c0`; `ordinality` is the column that numbers the rows of a function.
    Numbered { alias: String, ordinality: Option<usize> },
    /// `"name"`, where SQLite allows one table alone and no alias.
    Bare(Arc<Relation>),
    /// Texts that stand for the columns: a lateral subquery that became part of its neighbours.
    Inline(Vec<String>),
}

struct Printer {
    params: Params,
    names: HashMap<RelId, Names>,
}

fn alias(rel: RelId) -> String {
    format!("r{}", rel.0)
}

fn list(parts: impl IntoIterator<Item = String>) -> String {
    parts.into_iter().collect::<Vec<_>>().join(", ")
}

fn column_names(count: usize) -> String {
    list((0..count).map(|at| format!("c{at}")))
}

/// ` COLLATE x` for values that must be told equal, or nothing; refused where SQLite cannot tell.
fn equality_suffix(ty: Type) -> Result<String> {
    match native::class(ty.oid) {
        Class::Plain | Class::Equality => Ok(String::new()),
        Class::Collated(name) => Ok(format!(" COLLATE {name}")),
        Class::Foreign => Err(unsupported(format!("telling values of type {} apart", super::type_name(ty)))),
    }
}

fn order_suffix(ty: Type) -> Result<String> {
    match native::class(ty.oid) {
        Class::Plain => Ok(String::new()),
        Class::Collated(name) => Ok(format!(" COLLATE {name}")),
        Class::Equality | Class::Foreign => {
            Err(unsupported(format!("ordering values of type {}", super::type_name(ty))))
        }
    }
}

fn joined(parts: &[String], word: &str) -> String {
    match parts {
        [one] => one.clone(),
        few if few.len() <= FLAT_TERMS => format!("({})", few.join(word)),
        many => {
            let (left, right) = many.split_at(many.len() / 2);
            format!("({}{word}{})", joined(left, word), joined(right, word))
        }
    }
}

impl Printer {
    fn column(&self, rel: RelId, column: usize) -> Result<String> {
        let named = |relation: &Relation| match (&relation.source, relation.columns.get(column)) {
            (RelationSource::Staged, _) => Ok(staged_column(column)),
            (_, Some(found)) => Ok(super::quoted(&found.name)),
            (_, None) => Err(lost(rel)),
        };
        match self.names.get(&rel).ok_or_else(|| lost(rel))? {
            Names::Table { alias, relation } => Ok(format!("{alias}.{}", named(relation)?)),
            Names::Bare(relation) => named(relation),
            Names::Numbered { alias, ordinality } if *ordinality == Some(column) => Ok(format!("{alias}.n")),
            Names::Numbered { alias, .. } => Ok(format!("{alias}.c{column}")),
            Names::Inline(texts) => texts.get(column).cloned().ok_or_else(|| lost(rel)),
        }
    }

    fn hidden(&self, rel: RelId, column: &str) -> Result<String> {
        match self.names.get(&rel) {
            Some(Names::Table { alias, .. }) => Ok(format!("{alias}.{}", super::quoted(column))),
            Some(Names::Bare(_)) => Ok(super::quoted(column)),
            _ => Err(lost(rel)),
        }
    }

    /// A query whose first `width` columns are wanted; hidden targets beyond them only order.
    fn query(&mut self, query: &Query, width: usize) -> Result<String> {
        let with = self.with(&query.ctes)?;
        let body = match &query.body {
            Body::Select(select) => self.select_query(query, select, width)?,
            Body::Values(rows) => {
                let values = self.values(rows)?;
                format!("{values}{}", self.tail(query)?)
            }
            Body::SetOp { op, all, left, right } => {
                let both = self.set_operation((*op, *all), left, right, &query.columns_types())?;
                format!("{both}{}", self.tail(query)?)
            }
        };
        Ok(format!("{with}{body}"))
    }

    fn with(&mut self, ctes: &[Cte]) -> Result<String> {
        if ctes.is_empty() {
            return Ok(String::new());
        }
        let recursive = ctes.iter().any(|cte| matches!(cte.body, CteBody::Recursive { .. }));
        let parts = ctes.iter().map(|cte| self.cte(cte)).collect::<Result<Vec<_>>>()?;
        Ok(format!("WITH {}{} ", if recursive { "RECURSIVE " } else { "" }, parts.join(", ")))
    }

    fn cte(&mut self, cte: &Cte) -> Result<String> {
        let width = cte.columns.len();
        let (body, keep) = match &cte.body {
            CteBody::Query(query) => (self.query(query, width)?, walk::has_volatile(query)),
            CteBody::Recursive { start, step, all } => (self.recursion(start, step, *all)?, false),
            CteBody::Write(_) => return Err(unsupported("a data-modifying statement in WITH")),
        };
        let how = match cte.materialized {
            _ if keep => "MATERIALIZED ",
            Some(true) => "MATERIALIZED ",
            Some(false) => "NOT MATERIALIZED ",
            None => "",
        };
        Ok(format!("x{}({}) AS {how}({body})", cte.id.0, column_names(width)))
    }

    /// SQLite finds the recursive reference only in a select that stands in the compound itself.
    fn recursion(&mut self, start: &Query, step: &Query, all: bool) -> Result<String> {
        let types = start.columns_types();
        let start = self.operand(start, &types, all)?;
        let Body::Select(select) = &step.body else { return Err(unsupported("this form of WITH RECURSIVE")) };
        let plain = step.ctes.is_empty()
            && step.order_by.is_empty()
            && step.limit.is_none()
            && step.offset.is_none()
            && !select.is_grouped()
            && select.distinct == Distinct::No;
        if !plain {
            return Err(unsupported("a recursive query with ORDER BY, LIMIT, WITH, DISTINCT or groups"));
        }
        let step = self.select_core(select, types.len())?;
        Ok(format!("{start} UNION {}{step}", if all { "ALL " } else { "" }))
    }

    fn select_query(&mut self, query: &Query, select: &Select, width: usize) -> Result<String> {
        let layered = query.with_ties || matches!(select.distinct, Distinct::On(_)) || group::has_sets(select);
        if layered {
            return self.layered(query, select, width);
        }
        let mut text = self.select_core(select, width)?;
        text.push_str(&self.order_of_select(&query.order_by, select, width)?);
        text.push_str(&self.bounds(query)?);
        Ok(text)
    }

    /// Keys that are shown are named by their position; hidden ones are computed in place.
    fn order_of_select(&mut self, keys: &[OrderBy], select: &Select, width: usize) -> Result<String> {
        let mut parts = Vec::new();
        for key in keys {
            let OrderKey::Output(at) = key.key;
            let target = select.targets.get(at).ok_or_else(|| SqlError::new("XX000", "an order key is missing"))?;
            // A constant orders nothing, and a number would be taken for a position.
            if walk::is_constant(target) {
                continue;
            }
            let place = if at < width { (at + 1).to_string() } else { self.expr(target)? };
            let suffix = order_suffix(target.ty)?;
            parts.push(format!("{place}{suffix}{}", direction(key.descending, key.nulls_first)));
        }
        Ok(if parts.is_empty() { String::new() } else { format!(" ORDER BY {}", parts.join(", ")) })
    }

    /// Selects that take several levels: the targets, then numbers of rows over them, then a choice among these.
    fn layered(&mut self, query: &Query, select: &Select, width: usize) -> Result<String> {
        let all = select.targets.len();
        let types: Vec<Type> = select.targets.iter().map(|target| target.ty).collect();
        let mut text = self.all_targets(select)?;
        if let Distinct::On(keys) = &select.distinct {
            let order = order_of_columns(&query.order_by, &types)?;
            let partition = keys_of(all, keys)?;
            text = format!(
                "SELECT {} FROM (SELECT *, row_number() OVER (PARTITION BY {partition}{order}) AS k FROM ({text})) \
                 WHERE k = 1",
                column_names(all)
            );
        } else if select.distinct == Distinct::All {
            let columns = collated_columns(&types)?;
            text = format!("SELECT DISTINCT {columns} FROM ({text})");
        }
        let order = order_of_columns(&query.order_by, &types)?;
        if query.with_ties {
            return self.with_ties(query, &text, &order, width);
        }
        Ok(format!("SELECT {} FROM ({text}){order}{}", column_names(width), self.bounds(query)?))
    }

    /// Every target, and the keys of DISTINCT ON after them.
    fn all_targets(&mut self, select: &Select) -> Result<String> {
        let mut plain = select.clone();
        if let Distinct::On(keys) = &select.distinct {
            plain.targets.extend(keys.iter().cloned());
        }
        plain.distinct = Distinct::No;
        let width = plain.targets.len();
        if group::has_sets(&plain) { self.grouping_sets(&plain) } else { self.select_core(&plain, width) }
    }

    /// Rows up to the limit, and those that are equal to the last of them.
    fn with_ties(&mut self, query: &Query, rows: &str, order: &str, width: usize) -> Result<String> {
        let limit = self.limit(query)?.unwrap_or_else(|| "9223372036854775807".into());
        let offset = self.offset(query)?.unwrap_or_else(|| "0".into());
        let last = if query.offset.is_some() { format!("{limit} + {offset}") } else { limit };
        let (columns, order) = (column_names(width), order.trim_start());
        Ok(format!(
            "SELECT {columns} FROM (SELECT *, row_number() OVER ({order}) AS k, rank() OVER ({order}) AS t \
             FROM ({rows})) WHERE k > {offset} AND t <= {last} ORDER BY k"
        ))
    }

    /// `SELECT … FROM … WHERE … GROUP BY … HAVING …`, with the first `width` targets.
    fn select_core(&mut self, select: &Select, width: usize) -> Result<String> {
        let from = self.sources(&select.from)?;
        let distinct = select.distinct == Distinct::All;
        let mut targets = Vec::new();
        for (at, target) in select.targets.iter().take(width).enumerate() {
            let suffix = if distinct { equality_suffix(target.ty)? } else { String::new() };
            targets.push(format!("{}{suffix} AS c{at}", self.expr(target)?));
        }
        if targets.is_empty() {
            targets.push("NULL AS c0".into());
        }
        let filter = self.filter(&from.conditions, select.filter.as_ref())?;
        let word = if distinct { "SELECT DISTINCT " } else { "SELECT " };
        let group = self.group_by(select)?;
        Ok(format!("{word}{}{}{filter}{group}", targets.join(", "), from.text))
    }

    fn filter(&mut self, conditions: &[String], filter: Option<&Expr>) -> Result<String> {
        let mut parts = conditions.to_vec();
        if let Some(filter) = filter {
            parts.push(self.condition(filter)?);
        }
        Ok(if parts.is_empty() { String::new() } else { format!(" WHERE {}", joined(&parts, " AND ")) })
    }

    fn values(&mut self, rows: &[Vec<Expr>]) -> Result<String> {
        let [row] = rows else {
            let width = rows.first().map_or(0, Vec::len);
            let rows = rows.iter().map(|row| Ok(format!("({})", self.exprs(row)?))).collect::<Result<Vec<_>>>()?;
            let columns = list((0..width).map(|at| format!("column{} AS c{at}", at + 1)));
            return Ok(format!("SELECT {columns} FROM (VALUES {})", rows.join(", ")));
        };
        let mut parts = Vec::new();
        for (at, value) in row.iter().enumerate() {
            parts.push(format!("{} AS c{at}", self.expr(value)?));
        }
        Ok(format!("SELECT {}", parts.join(", ")))
    }

    fn set_operation(
        &mut self,
        (op, all): (SetOp, bool),
        left: &Query,
        right: &Query,
        types: &[Type],
    ) -> Result<String> {
        let word = match op {
            SetOp::Union => "UNION",
            SetOp::Intersect => "INTERSECT",
            SetOp::Except => "EXCEPT",
        };
        if op == SetOp::Union || !all {
            let kept = all && op == SetOp::Union;
            let (left, right) = (self.operand(left, types, kept)?, self.operand(right, types, kept)?);
            return Ok(format!("{left} {word}{} {right}", if kept { " ALL" } else { "" }));
        }
        // The n-th copy of a row meets the n-th copy on the other side.
        let (left, right) = (self.counted(left, types)?, self.counted(right, types)?);
        Ok(format!("SELECT {} FROM ({left} {word} {right})", column_names(types.len())))
    }

    /// A side of a compound. `kept` when no row is compared with another.
    fn operand(&mut self, query: &Query, types: &[Type], kept: bool) -> Result<String> {
        let columns = if kept { column_names(types.len()) } else { collated_columns(types)? };
        Ok(format!("SELECT {columns} FROM ({})", self.query(query, types.len())?))
    }

    fn counted(&mut self, query: &Query, types: &[Type]) -> Result<String> {
        let columns = collated_columns(types)?;
        let keys = types.iter().enumerate().map(|(at, ty)| Ok(format!("c{at}{}", equality_suffix(*ty)?)));
        let keys = keys.collect::<Result<Vec<_>>>()?.join(", ");
        let rows = self.query(query, types.len())?;
        Ok(format!("SELECT {columns}, row_number() OVER (PARTITION BY {keys}) AS k FROM ({rows})"))
    }

    /// ORDER BY and LIMIT of a query that is not a select.
    fn tail(&mut self, query: &Query) -> Result<String> {
        if query.with_ties {
            return Err(unsupported("WITH TIES over VALUES or a set operation"));
        }
        let types = query.columns_types();
        let mut parts = Vec::new();
        for key in &query.order_by {
            let OrderKey::Output(at) = key.key;
            let ty = *types.get(at).ok_or_else(|| SqlError::new("XX000", "an order key is missing"))?;
            parts.push(format!("{}{}{}", at + 1, order_suffix(ty)?, direction(key.descending, key.nulls_first)));
        }
        let order = if parts.is_empty() { String::new() } else { format!(" ORDER BY {}", parts.join(", ")) };
        Ok(format!("{order}{}", self.bounds(query)?))
    }

    fn bounds(&mut self, query: &Query) -> Result<String> {
        let limit = self.limit(query)?;
        let offset = self.offset(query)?;
        Ok(match (limit, offset) {
            (None, None) => String::new(),
            (limit, None) => format!(" LIMIT {}", limit.unwrap_or_default()),
            (limit, Some(offset)) => format!(" LIMIT {} OFFSET {offset}", limit.unwrap_or_else(|| "-1".into())),
        })
    }

    fn limit(&mut self, query: &Query) -> Result<Option<String>> {
        query.limit.as_ref().and_then(|limit| self.row_count(limit, super::call::Op::Limit).transpose()).transpose()
    }

    fn offset(&mut self, query: &Query) -> Result<Option<String>> {
        query.offset.as_ref().and_then(|offset| self.row_count(offset, super::call::Op::Offset).transpose()).transpose()
    }

    /// A number of rows; none where it bounds nothing.
    fn row_count(&mut self, count: &Expr, op: super::call::Op) -> Result<Option<String>> {
        match &count.kind {
            ExprKind::Const(Value::Null) => Ok(None),
            ExprKind::Const(Value::Int(n)) if *n >= 0 => Ok(Some(n.to_string())),
            _ => self.dispatch(op, std::slice::from_ref(count), count.ty).map(Some),
        }
    }
}

/// `c0, c1 COLLATE x AS c1`.
fn collated_columns(types: &[Type]) -> Result<String> {
    let part = |(at, ty): (usize, &Type)| {
        let suffix = equality_suffix(*ty)?;
        Ok(if suffix.is_empty() { format!("c{at}") } else { format!("c{at}{suffix} AS c{at}") })
    };
    Ok(list(types.iter().enumerate().map(part).collect::<Result<Vec<_>>>()?))
}

/// The keys of DISTINCT ON, which stand after the targets.
fn keys_of(targets: usize, keys: &[Expr]) -> Result<String> {
    let part = |(at, key): (usize, &Expr)| Ok(format!("c{}{}", targets + at, equality_suffix(key.ty)?));
    Ok(list(keys.iter().enumerate().map(part).collect::<Result<Vec<_>>>()?))
}

fn order_of_columns(keys: &[OrderBy], types: &[Type]) -> Result<String> {
    let mut parts = Vec::new();
    for key in keys {
        let OrderKey::Output(at) = key.key;
        let ty = *types.get(at).ok_or_else(|| SqlError::new("XX000", "an order key is missing"))?;
        parts.push(format!("c{at}{}{}", order_suffix(ty)?, direction(key.descending, key.nulls_first)));
    }
    Ok(if parts.is_empty() { String::new() } else { format!(" ORDER BY {}", parts.join(", ")) })
}

impl Query {
    fn columns_types(&self) -> Vec<Type> {
        self.columns.iter().map(|column| column.ty).collect()
    }
}

fn lost(rel: RelId) -> SqlError {
    SqlError::new("XX000", format!("relation {} of the bound tree is not in its scope", rel.0))
}

/// The function's name in an error.
fn function_name(function: Oid) -> String {
    crate::builtins::function(function).map_or_else(|| format!("number {}", function.0), |found| found.name.to_string())
}
