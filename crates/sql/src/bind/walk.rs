//! Walks over bound trees.
//!
//! A walk enters the expressions of subqueries, too, since an outer reference may be anywhere. It visits a node before
//! what is below it.

use crate::tree::*;

/// What to do below a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Go {
    Deeper,
    /// Not into what is below this node.
    Past,
}

type Visit<'v> = &'v mut dyn FnMut(&Expr) -> Go;

pub(super) fn each(expr: &Expr, visit: Visit<'_>) {
    if visit(expr) == Go::Deeper {
        below(expr, visit);
    }
}

fn all<'e>(exprs: impl IntoIterator<Item = &'e Expr>, visit: Visit<'_>) {
    exprs.into_iter().for_each(|expr| each(expr, visit));
}

/// Visits what is directly below an expression, and what is below that.
pub(super) fn below(expr: &Expr, visit: Visit<'_>) {
    match &expr.kind {
        ExprKind::Const(_)
        | ExprKind::Param(_)
        | ExprKind::Context(_)
        | ExprKind::Column { .. }
        | ExprKind::Hidden { .. }
        | ExprKind::Grouping(_) => {}
        ExprKind::Call { args, .. }
        | ExprKind::And(args)
        | ExprKind::Or(args)
        | ExprKind::Coalesce(args)
        | ExprKind::Extreme { args, .. }
        | ExprKind::Array(args)
        | ExprKind::Row(args) => all(args, visit),
        ExprKind::Cast { arg, .. }
        | ExprKind::Owned { bucket: arg, .. }
        | ExprKind::Not(arg)
        | ExprKind::IsNull { arg, .. }
        | ExprKind::IsBool { arg, .. } => each(arg, visit),
        ExprKind::IsDistinct { left, right, .. } | ExprKind::NullIf { left, right, .. } => {
            each(left, visit);
            each(right, visit);
        }
        ExprKind::Case { arms, otherwise } => {
            arms.iter().for_each(|(when, then)| all([when, then], visit));
            all(otherwise.as_deref(), visit);
        }
        ExprKind::InList { arg, list, .. } => {
            each(arg, visit);
            all(list, visit);
        }
        ExprKind::OverArray { left, array, .. } => {
            each(left, visit);
            each(array, visit);
        }
        ExprKind::Subscript { array, index } => {
            each(array, visit);
            all(index, visit);
        }
        ExprKind::Slice { array, from, to } => {
            each(array, visit);
            all(from.as_deref().into_iter().chain(to.as_deref()), visit);
        }
        ExprKind::Subquery(subquery) => {
            left_of(subquery, visit);
            query(&subquery.query, visit);
        }
        ExprKind::Aggregate(aggregate) => {
            all(&aggregate.args, visit);
            all(aggregate.order_by.iter().map(|sort| &sort.expr), visit);
            all(&aggregate.filter, visit);
        }
        ExprKind::Window(window) => {
            all(&window.args, visit);
            all(&window.filter, visit);
            all(&window.partition_by, visit);
            all(window.order_by.iter().map(|sort| &sort.expr), visit);
            if let Some(frame) = &window.frame {
                [&frame.start, &frame.end].into_iter().for_each(|bound| frame_bound(bound, visit));
            }
        }
    }
}

fn frame_bound(bound: &FrameBound, visit: Visit<'_>) {
    if let FrameBound::Preceding(expr) | FrameBound::Following(expr) = bound {
        each(expr, visit);
    }
}

pub(super) fn query(query_: &Query, visit: Visit<'_>) {
    for cte in &query_.ctes {
        match &cte.body {
            CteBody::Query(inner) => query(inner, visit),
            CteBody::Recursive { start, step, .. } => {
                query(start, visit);
                query(step, visit);
            }
            CteBody::Write(_) => {}
        }
    }
    match &query_.body {
        Body::Select(select_) => select(select_, visit),
        Body::Values(rows) => rows.iter().for_each(|row| all(row, visit)),
        Body::SetOp { left, right, .. } => {
            query(left, visit);
            query(right, visit);
        }
    }
    all(query_.limit.iter().chain(&query_.offset), visit);
}

fn select(select: &Select, visit: Visit<'_>) {
    if let Distinct::On(keys) = &select.distinct {
        all(keys, visit);
    }
    all(&select.targets, visit);
    select.from.iter().for_each(|item| from(item, visit));
    all(select.filter.iter().chain(&select.having), visit);
    match &select.group_by {
        GroupBy::None => {}
        GroupBy::Keys(keys) | GroupBy::Sets { keys, .. } => all(keys, visit),
    }
}

fn from(item: &From, visit: Visit<'_>) {
    match item {
        From::Relation(_) | From::Cte { .. } => {}
        From::Subquery { query: inner, .. } => query(inner, visit),
        From::Function(function) => each(&function.call, visit),
        From::Join(join) => {
            from(&join.left, visit);
            from(&join.right, visit);
            all(&join.on, visit);
        }
    }
}

/// Visits what a subquery is compared with.
pub(super) fn left_of(subquery: &Subquery, visit: Visit<'_>) {
    match &subquery.kind {
        SubqueryKind::In { left, .. } => all(left, visit),
        SubqueryKind::Quantified { left, .. } => each(left, visit),
        SubqueryKind::Scalar | SubqueryKind::Exists { .. } | SubqueryKind::Array => {}
    }
}
