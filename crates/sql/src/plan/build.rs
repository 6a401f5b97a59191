//! Makes the pieces of trees that plans are put together from.

use crate::tree::{
    Body, CastHow, Display, Distinct, Expr, ExprKind, Field, From, GroupBy, Query, RelId, Relation, RelationColumn,
    RelationRef, RelationSource, Select,
};
use crate::types::{Oid, Type};
use std::sync::Arc;

pub(crate) fn query_of(body: Body, columns: Vec<Field>) -> Query {
    Query {
        ctes: Vec::new(),
        body,
        order_by: Vec::new(),
        limit: None,
        offset: None,
        with_ties: false,
        lock: None,
        columns,
    }
}

pub(crate) fn select_of(targets: Vec<Expr>, from: Vec<From>, filter: Option<Expr>) -> Select {
    Select { distinct: Distinct::No, targets, from, filter, group_by: GroupBy::None, having: None }
}

pub(crate) fn column(rel: RelId, column: usize, ty: Type) -> Expr {
    Expr::new(ExprKind::Column { rel, column }, ty)
}

pub(crate) fn operator(function: Oid, symbol: &str, args: Vec<Expr>, ty: Oid) -> Expr {
    Expr::new(ExprKind::Call { function, display: Display::Operator(symbol.into()), args }, ty)
}

pub(crate) fn cast_by(function: Oid, arg: Expr, ty: Oid) -> Expr {
    Expr::new(ExprKind::Cast { arg: Box::new(arg), how: CastHow::Function(function) }, ty)
}

/// A table of the stage, as a relation of a query.
pub(crate) fn staged(rel: RelId, name: &str, fields: &[Field]) -> From {
    let columns = fields.iter().map(|f| RelationColumn { name: f.name.clone(), ty: f.ty, not_null: false }).collect();
    let relation = Relation { schema: String::new(), name: name.into(), columns, source: RelationSource::Staged };
    From::Relation(RelationRef { rel, relation: Arc::new(relation) })
}

/// Every column of a relation.
pub(crate) fn all_columns(rel: RelId, fields: &[Field]) -> Vec<Expr> {
    fields.iter().enumerate().map(|(at, field)| column(rel, at, field.ty)).collect()
}

/// `SELECT * FROM` a table of the stage.
pub(crate) fn select_all(rel: RelId, name: &str, fields: &[Field]) -> Query {
    let select = select_of(all_columns(rel, fields), vec![staged(rel, name, fields)], None);
    query_of(Body::Select(Box::new(select)), fields.to_vec())
}

/// Fields with names of their own: a table's columns may not share one, not even in other case.
pub(crate) fn distinct_names(fields: Vec<Field>) -> Vec<Field> {
    let mut taken = std::collections::HashSet::new();
    let named = |field: Field| {
        let base = if field.name.is_empty() { "column".to_string() } else { field.name };
        let mut name = base.clone();
        let mut number = 1;
        while !taken.insert(name.to_ascii_lowercase()) {
            number += 1;
            name = format!("{base}_{number}");
        }
        Field { name, ty: field.ty }
    };
    fields.into_iter().map(named).collect()
}
