//! Where the columns of a result come from: the relation and the column that clients are told of.
//!
//! As with PostgreSQL, a target that is a plain column has the origin that the column has where it comes from: a
//! table, a system relation or a view, also through joins, subqueries and common table expressions. Nothing else has
//! one.

use crate::system;
use crate::tree::{Body, Cte, CteBody, Expr, ExprKind, From, Query, RelId, RelationRef, Statement};
use isles_kernel::schema::{Schema, relation_parts};
use std::collections::HashMap;

/// The number of a relation in `pg_class`, and of a column in it, from 1. Both are 0 where there is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Origin {
    pub relation: u32,
    pub column: i16,
}

/// Finds origins in one statement.
pub(super) struct Origins<'a> {
    pub(super) schema: &'a Schema,
    /// The relations that stand for views.
    pub(super) views: &'a HashMap<RelId, String>,
}

/// The common table expressions that a query sees, the innermost last.
type Seen<'a> = Vec<&'a Cte>;

impl Origins<'_> {
    /// The origins of the columns that a statement returns.
    pub(super) fn of(&self, statement: &Statement) -> Vec<Origin> {
        let columns = match statement {
            Statement::Query(query) => query.columns.len(),
            Statement::Insert(insert) => insert.returning.as_ref().map_or(0, |returning| returning.columns.len()),
            Statement::Update(update) => update.returning.as_ref().map_or(0, |returning| returning.columns.len()),
            Statement::Delete(delete) => delete.returning.as_ref().map_or(0, |returning| returning.columns.len()),
        };
        (0..columns).map(|at| self.of_statement(statement, at).unwrap_or_default()).collect()
    }

    fn of_statement(&self, statement: &Statement, at: usize) -> Option<Origin> {
        let (ctes, target, others, returning) = match statement {
            Statement::Query(query) => return self.of_query(query, at, &Vec::new()),
            Statement::Insert(insert) => (&insert.ctes, &insert.target, &[][..], &insert.returning),
            Statement::Update(update) => (&update.ctes, &update.target, &update.from[..], &update.returning),
            Statement::Delete(delete) => (&delete.ctes, &delete.target, &delete.using[..], &delete.returning),
        };
        let expr = returning.as_ref()?.targets.get(at)?;
        match &expr.kind {
            ExprKind::Column { rel, column } if *rel == target.rel => self.of_relation(target, *column),
            _ => self.of_expr(expr, others, &ctes.iter().collect()),
        }
    }

    /// One column at a time: a query asks for one column of a subquery, and all of them at every level would be as many
    /// to the power of the depth.
    fn of_query(&self, query: &Query, at: usize, outside: &Seen<'_>) -> Option<Origin> {
        let Body::Select(select) = &query.body else { return None };
        let seen: Seen<'_> = outside.iter().copied().chain(&query.ctes).collect();
        self.of_expr(select.targets.get(at)?, &select.from, &seen)
    }

    fn of_expr(&self, expr: &Expr, from: &[From], seen: &Seen<'_>) -> Option<Origin> {
        let ExprKind::Column { rel, column } = expr.kind else { return None };
        self.of_column(column, from.iter().find_map(|from| find(rel, from))?, seen)
    }

    fn of_column(&self, column: usize, from: &From, seen: &Seen<'_>) -> Option<Origin> {
        match from {
            From::Relation(relation) => self.of_relation(relation, column),
            From::Subquery { rel, query, .. } => match self.views.get(rel) {
                Some(view) => {
                    let (schema, name) = relation_parts(view);
                    self.origin(schema, name, column)
                }
                None => self.of_query(query, column, seen),
            },
            From::Cte { cte, .. } => {
                let at = seen.iter().rposition(|known| known.id == *cte)?;
                match &seen[at].body {
                    CteBody::Query(query) => self.of_query(query, column, &seen[..at].to_vec()),
                    CteBody::Recursive { .. } => None,
                    CteBody::Write(statement) => self.of_statement(statement, column),
                }
            }
            From::Function(_) | From::Join(_) => None,
        }
    }

    fn of_relation(&self, relation: &RelationRef, column: usize) -> Option<Origin> {
        self.origin(&relation.relation.schema, &relation.relation.name, column)
    }

    fn origin(&self, schema: &str, name: &str, column: usize) -> Option<Origin> {
        let relation = system::relation_oid(self.schema, schema, name)?;
        Some(Origin { relation, column: i16::try_from(column + 1).ok()? })
    }
}

/// The entry of a FROM clause that is this relation.
fn find(rel: RelId, from: &From) -> Option<&From> {
    match from {
        From::Relation(RelationRef { rel: of, .. }) | From::Subquery { rel: of, .. } | From::Cte { rel: of, .. } => {
            (*of == rel).then_some(from)
        }
        From::Function(function) => (function.rel == rel).then_some(from),
        From::Join(join) => find(rel, &join.left).or_else(|| find(rel, &join.right)),
    }
}
