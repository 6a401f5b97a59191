//! PostgreSQL's SQL: the tree spelled out, with every type explicit.
//!
//! Constants and parameters say their types, so that PostgreSQL resolves the functions and operators that the binder
//! has resolved. Texts are ordered by bytes: what orders them says `COLLATE "C"`, whatever the database's own
//! collation is.
//!
//! In reading order:
//!   * this file  queries and FROM
//!   * `expr`     expressions
//!   * `write`    INSERT, UPDATE, DELETE

mod expr;
mod write;

use super::{Constants, Output, Params, Result, carrier, direction, quoted, unsupported};
use crate::plan::Fragment;
use crate::tree::{
    Body, Cte, CteBody, Distinct, Expr, Field, From, FunctionRef, GroupBy, Join, JoinKind, Lock, LockStrength,
    LockWait, OrderBy, OrderKey, Query, RelId, Relation, RelationRef, RelationSource, Select, SetOp, Statement,
};
use crate::types::{self, BPCHAR, Oid, TEXT, Type, VARCHAR};
use isles_kernel::error::SqlError;
use isles_kernel::value::DataType;
use std::collections::HashMap;
use std::sync::Arc;

pub(super) fn print(fragment: &Fragment, constants: Constants) -> Result<Output> {
    let mut printer = Printer { params: Params::new(constants), names: HashMap::new(), keys: Vec::new() };
    let sql = match &fragment.statement {
        Statement::Query(query) => printer.result(query, &fragment.fields)?,
        Statement::Insert(insert) => printer.insert(insert)?,
        Statement::Update(update) => printer.update(update)?,
        Statement::Delete(delete) => printer.delete(delete)?,
    };
    Ok(Output { sql, params: printer.params })
}

/// An expression over one table, by the bare names of its columns.
pub(super) fn over_table(expr: &Expr, of: &RelationRef) -> Result<Output> {
    let names = HashMap::from([(of.rel, Names::Bare(of.relation.clone()))]);
    let mut printer = Printer { params: Params::new(Constants::Written), names, keys: Vec::new() };
    Ok(Output { sql: printer.expr(expr)?, params: printer.params })
}

/// How the columns of a relation are called.
#[derive(Debug, Clone)]
enum Names {
    /// `r1."name"`.
    Table { alias: String, relation: Arc<Relation> },
    /// `r1.c0`.
    Numbered { alias: String },
    /// `"name"`, where no alias may stand.
    Bare(Arc<Relation>),
}

struct Printer {
    params: Params,
    names: HashMap<RelId, Names>,
    /// The grouping keys of the selects around, innermost last: GROUPING names them by position.
    keys: Vec<Vec<Expr>>,
}

fn alias(rel: RelId) -> String {
    format!("r{}", rel.0)
}

fn columns(count: usize) -> String {
    (0..count).map(|at| format!("c{at}")).collect::<Vec<_>>().join(", ")
}

fn is_text(ty: Oid) -> bool {
    matches!(ty, TEXT | VARCHAR | BPCHAR)
}

/// What orders texts.
fn collation(ty: Oid) -> &'static str {
    if is_text(ty) { " COLLATE \"C\"" } else { "" }
}

/// The casts that bring a value of type `ty` to one that the engine reads as the type's carrier.
fn reading(ty: Type) -> Result<String> {
    let natural = types::natural(carrier(ty)?);
    Ok(match (ty.oid, carrier(ty)?) {
        (oid, _) if oid == natural => String::new(),
        (VARCHAR | BPCHAR | types::NAME | types::OID | types::JSONB, _) => String::new(),
        (types::XID | types::CID, _) => "::text::int8".into(),
        (_, DataType::Int8) => "::oid::int8".into(),
        (_, _) => format!("::{}", crate::builtins::format_type(Type::of(natural))),
    })
}

impl Printer {
    fn column(&self, rel: RelId, column: usize) -> Result<String> {
        let named = |relation: &Relation| relation.columns.get(column).map(|found| quoted(&found.name));
        match self.names.get(&rel).ok_or_else(|| lost(rel))? {
            Names::Table { alias, relation } => named(relation).map(|name| format!("{alias}.{name}")),
            Names::Bare(relation) => named(relation),
            Names::Numbered { alias } => Some(format!("{alias}.c{column}")),
        }
        .ok_or_else(|| lost(rel))
    }

    fn hidden(&self, rel: RelId, column: &str) -> Result<String> {
        match self.names.get(&rel) {
            Some(Names::Table { alias, .. }) => Ok(format!("{alias}.{}", quoted(column))),
            Some(Names::Bare(_)) => Ok(quoted(column)),
            _ => Err(lost(rel)),
        }
    }

    /// A query whose columns the engine can read.
    fn result(&mut self, query: &Query, fields: &[Field]) -> Result<String> {
        let rows = self.query(query, fields.len())?;
        let casts = fields.iter().map(|field| reading(field.ty)).collect::<Result<Vec<_>>>()?;
        if casts.iter().all(String::is_empty) {
            return Ok(rows);
        }
        let parts: Vec<String> = casts.iter().enumerate().map(|(at, cast)| format!("c{at}{cast}")).collect();
        Ok(format!("SELECT {} FROM ({rows}) AS s({})", parts.join(", "), columns(fields.len())))
    }

    fn query(&mut self, query: &Query, width: usize) -> Result<String> {
        let with = self.with(&query.ctes)?;
        let mut text = match &query.body {
            Body::Select(select) => self.select(select, &query.order_by, width)?,
            Body::Values(rows) => {
                let rows = rows.iter().map(|row| Ok(format!("({})", self.exprs(row)?))).collect::<Result<Vec<_>>>()?;
                self.ordered(&format!("VALUES {}", rows.join(", ")), query)
            }
            Body::SetOp { op, all, left, right } => {
                let width = query.columns.len();
                let (left, right) = (self.query(left, width)?, self.query(right, width)?);
                let all = if *all { " ALL" } else { "" };
                self.ordered(&format!("({left}) {}{all} ({right})", set_word(*op)), query)
            }
        };
        text.push_str(&self.bounds(query)?);
        text.push_str(&query.lock.as_ref().map_or(String::new(), lock_clause));
        Ok(format!("{with}{text}"))
    }

    /// Rows whose columns are to be ordered: texts need their collation.
    fn ordered(&self, rows: &str, query: &Query) -> String {
        let part = |(at, field): (usize, &Field)| match is_key(&query.order_by, at) {
            true => format!("c{at}{} AS c{at}", collation(field.ty.oid)),
            false => format!("c{at}"),
        };
        let parts: Vec<String> = query.columns.iter().enumerate().map(part).collect();
        let (parts, order) = (parts.join(", "), order_clause(&query.order_by));
        format!("SELECT {parts} FROM ({rows}) AS s({}){order}", columns(query.columns.len()))
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
        let body = match &cte.body {
            CteBody::Query(query) => self.query(query, width)?,
            CteBody::Recursive { start, step, all } => {
                let (start, step) = (self.query(start, width)?, self.query(step, width)?);
                format!("({start}) UNION {}({step})", if *all { "ALL " } else { "" })
            }
            CteBody::Write(statement) => match &**statement {
                Statement::Insert(insert) => self.insert(insert)?,
                Statement::Update(update) => self.update(update)?,
                Statement::Delete(delete) => self.delete(delete)?,
                Statement::Query(query) => self.query(query, width)?,
            },
        };
        let how = match cte.materialized {
            Some(true) => "MATERIALIZED ",
            Some(false) => "NOT MATERIALIZED ",
            None => "",
        };
        let names = if width == 0 { String::new() } else { format!("({})", columns(width)) };
        Ok(format!("x{}{names} AS {how}({body})", cte.id.0))
    }

    /// A select and its order. Keys that are shown are named by position; hidden ones are computed in place.
    fn select(&mut self, select: &Select, order: &[OrderBy], width: usize) -> Result<String> {
        let from = self.sources(&select.from)?;
        let keys = match &select.group_by {
            GroupBy::None => Vec::new(),
            GroupBy::Keys(keys) | GroupBy::Sets { keys, .. } => keys.clone(),
        };
        self.keys.push(keys);
        let text = self.select_text(select, order, width, &from);
        let order = self.order_of_select(select, order, width);
        self.keys.pop();
        Ok(format!("{}{}", text?, order?))
    }

    fn order_of_select(&mut self, select: &Select, order: &[OrderBy], width: usize) -> Result<String> {
        let mut parts = Vec::new();
        for key in order {
            let OrderKey::Output(at) = key.key;
            let target = select.targets.get(at).ok_or_else(|| SqlError::new("XX000", "an order key is missing"))?;
            let place = match at < width {
                true => (at + 1).to_string(),
                false => format!("{}{}", self.expr(target)?, collation(target.ty.oid)),
            };
            parts.push(format!("{place}{}", direction(key.descending, key.nulls_first)));
        }
        Ok(if parts.is_empty() { String::new() } else { format!(" ORDER BY {}", parts.join(", ")) })
    }

    fn select_text(&mut self, select: &Select, order: &[OrderBy], width: usize, from: &str) -> Result<String> {
        let mut targets = Vec::new();
        for (at, target) in select.targets.iter().take(width).enumerate() {
            let collate = if is_key(order, at) { collation(target.ty.oid) } else { "" };
            targets.push(format!("{}{collate} AS c{at}", self.expr(target)?));
        }
        let distinct = match &select.distinct {
            Distinct::No => String::new(),
            Distinct::All => "DISTINCT ".into(),
            Distinct::On(keys) => format!("DISTINCT ON ({}) ", self.distinct_keys(keys, select, order)?),
        };
        let filter = self.filter(select.filter.as_ref())?;
        let group = self.group_by(&select.group_by)?;
        let having = match &select.having {
            Some(having) => format!(" HAVING {}", self.expr(having)?),
            None => String::new(),
        };
        Ok(format!("SELECT {distinct}{}{from}{filter}{group}{having}", targets.join(", ")))
    }

    /// PostgreSQL wants the keys of DISTINCT ON to be those that it orders by, to the letter.
    fn distinct_keys(&mut self, keys: &[Expr], select: &Select, order: &[OrderBy]) -> Result<String> {
        let mut parts = Vec::new();
        for key in keys {
            let ordered = select.targets.iter().enumerate().any(|(at, target)| target == key && is_key(order, at));
            parts.push(format!("{}{}", self.expr(key)?, if ordered { collation(key.ty.oid) } else { "" }));
        }
        Ok(parts.join(", "))
    }

    fn filter(&mut self, filter: Option<&Expr>) -> Result<String> {
        match filter {
            Some(filter) => Ok(format!(" WHERE {}", self.expr(filter)?)),
            None => Ok(String::new()),
        }
    }

    fn group_by(&mut self, group: &GroupBy) -> Result<String> {
        match group {
            GroupBy::None => Ok(String::new()),
            GroupBy::Keys(keys) if keys.is_empty() => Ok(" GROUP BY ()".into()),
            GroupBy::Keys(keys) => Ok(format!(" GROUP BY {}", self.exprs(keys)?)),
            GroupBy::Sets { keys, sets } => {
                let keys = keys.iter().map(|key| self.expr(key)).collect::<Result<Vec<_>>>()?;
                let one = |set: &Vec<usize>| {
                    format!("({})", set.iter().map(|at| keys[*at].as_str()).collect::<Vec<_>>().join(", "))
                };
                Ok(format!(" GROUP BY GROUPING SETS ({})", sets.iter().map(one).collect::<Vec<_>>().join(", ")))
            }
        }
    }

    fn bounds(&mut self, query: &Query) -> Result<String> {
        let mut out = String::new();
        if let Some(offset) = &query.offset {
            out.push_str(&format!(" OFFSET {}", self.expr(offset)?));
        }
        match &query.limit {
            Some(limit) if query.with_ties => {
                out.push_str(&format!(" FETCH FIRST ({}) ROWS WITH TIES", self.expr(limit)?));
            }
            Some(limit) => out.push_str(&format!(" LIMIT {}", self.expr(limit)?)),
            None => {}
        }
        Ok(out)
    }

    fn sources(&mut self, items: &[From]) -> Result<String> {
        let parts = items.iter().map(|item| self.source_of(item)).collect::<Result<Vec<_>>>()?;
        Ok(if parts.is_empty() { String::new() } else { format!(" FROM {}", parts.join(", ")) })
    }

    fn source_of(&mut self, from: &From) -> Result<String> {
        match from {
            From::Relation(relation) => self.relation(relation),
            From::Subquery { rel, query, lateral } => {
                let width = query.columns.len();
                let text = self.query(query, width)?;
                self.number(*rel);
                let lateral = if *lateral { "LATERAL " } else { "" };
                Ok(format!("{lateral}({text}) AS {}({})", alias(*rel), columns(width)))
            }
            From::Cte { rel, cte, columns: fields } => {
                self.number(*rel);
                Ok(format!("x{} AS {}({})", cte.0, alias(*rel), columns(fields.len())))
            }
            From::Function(function) => self.function(function),
            From::Join(join) => self.join(join),
        }
    }

    fn number(&mut self, rel: RelId) {
        self.names.insert(rel, Names::Numbered { alias: alias(rel) });
    }

    fn relation(&mut self, of: &RelationRef) -> Result<String> {
        let relation = &of.relation;
        let name = match relation.source {
            // With its schema, whatever the session's search path.
            RelationSource::User(_) => format!("{}.{}", quoted(&relation.schema), quoted(&relation.name)),
            RelationSource::Staged => quoted(&relation.name),
            RelationSource::System => {
                return Err(unsupported(format!("relation {}.{}", relation.schema, relation.name)));
            }
        };
        self.names.insert(of.rel, Names::Table { alias: alias(of.rel), relation: relation.clone() });
        Ok(format!("{name} AS {}", alias(of.rel)))
    }

    fn function(&mut self, of: &FunctionRef) -> Result<String> {
        let call = self.expr(&of.call)?;
        self.number(of.rel);
        let ordinality = if of.ordinality { " WITH ORDINALITY" } else { "" };
        let lateral = if of.lateral { "LATERAL " } else { "" };
        Ok(format!("{lateral}{call}{ordinality} AS {}({})", alias(of.rel), columns(of.columns.len())))
    }

    fn join(&mut self, join: &Join) -> Result<String> {
        let (left, right) = (self.source_of(&join.left)?, self.source_of(&join.right)?);
        let right = if matches!(join.right, From::Join(_)) { format!("({right})") } else { right };
        let on = match &join.on {
            Some(on) => format!(" ON {}", self.expr(on)?),
            None if join.kind == JoinKind::Inner => return Ok(format!("{left} CROSS JOIN {right}")),
            None => " ON true".into(),
        };
        let word = match join.kind {
            JoinKind::Inner => "JOIN",
            JoinKind::Left => "LEFT JOIN",
            JoinKind::Right => "RIGHT JOIN",
            JoinKind::Full => "FULL JOIN",
        };
        Ok(format!("{left} {word} {right}{on}"))
    }
}

fn is_key(order: &[OrderBy], at: usize) -> bool {
    order.iter().any(|key| key.key == OrderKey::Output(at))
}

/// By position: every key is a column of what is ordered.
fn order_clause(order: &[OrderBy]) -> String {
    let part = |key: &OrderBy| {
        let OrderKey::Output(at) = key.key;
        format!("{}{}", at + 1, direction(key.descending, key.nulls_first))
    };
    let parts: Vec<String> = order.iter().map(part).collect();
    if parts.is_empty() { String::new() } else { format!(" ORDER BY {}", parts.join(", ")) }
}

fn set_word(op: SetOp) -> &'static str {
    match op {
        SetOp::Union => "UNION",
        SetOp::Intersect => "INTERSECT",
        SetOp::Except => "EXCEPT",
    }
}

fn lock_clause(lock: &Lock) -> String {
    let strength = match lock.strength {
        LockStrength::KeyShare => "KEY SHARE",
        LockStrength::Share => "SHARE",
        LockStrength::NoKeyUpdate => "NO KEY UPDATE",
        LockStrength::Update => "UPDATE",
    };
    let of = match lock.of.as_slice() {
        [] => String::new(),
        of => format!(" OF {}", of.iter().map(|rel| alias(*rel)).collect::<Vec<_>>().join(", ")),
    };
    let wait = match lock.wait {
        LockWait::Wait => "",
        LockWait::NoWait => " NOWAIT",
        LockWait::SkipLocked => " SKIP LOCKED",
    };
    format!(" FOR {strength}{of}{wait}")
}

fn lost(rel: RelId) -> SqlError {
    SqlError::new("XX000", format!("relation {} of the bound tree is not in its scope", rel.0))
}
