//! Visits every expression of a tree, those of its subqueries too.

use crate::builtins::{self, Volatility};
use crate::tree::{
    Aggregate, Body, CteBody, Distinct, Expr, ExprKind, FrameBound, From, GroupBy, Query, RelId, Select, Statement,
    Subquery, SubqueryKind, WindowCall,
};

pub(super) type Visit<'a, 'v> = &'v mut dyn FnMut(&'a Expr);

pub(super) fn query<'a>(query_: &'a Query, visit: Visit<'a, '_>) {
    query_.ctes.iter().for_each(|cte| match &cte.body {
        CteBody::Query(inner) => query(inner, visit),
        CteBody::Recursive { start, step, .. } => {
            query(start, visit);
            query(step, visit);
        }
        CteBody::Write(inner) => statement(inner, visit),
    });
    match &query_.body {
        Body::Select(inner) => select(inner, visit),
        Body::Values(rows) => rows.iter().flatten().for_each(|value| expr(value, visit)),
        Body::SetOp { left, right, .. } => {
            query(left, visit);
            query(right, visit);
        }
    }
    query_.limit.iter().chain(&query_.offset).for_each(|bound| expr(bound, visit));
}

/// The queries of a writing common table expression; the planner lets none reach SQLite.
fn statement<'a>(statement: &'a Statement, visit: Visit<'a, '_>) {
    if let Statement::Query(inner) = statement {
        query(inner, visit);
    }
}

pub(super) fn select<'a>(select: &'a Select, visit: Visit<'a, '_>) {
    select.targets.iter().for_each(|target| expr(target, visit));
    if let Distinct::On(keys) = &select.distinct {
        keys.iter().for_each(|key| expr(key, visit));
    }
    select.from.iter().for_each(|item| from(item, visit));
    match &select.group_by {
        GroupBy::None => {}
        GroupBy::Keys(keys) | GroupBy::Sets { keys, .. } => keys.iter().for_each(|key| expr(key, visit)),
    }
    select.filter.iter().chain(&select.having).for_each(|condition| expr(condition, visit));
}

pub(super) fn from<'a>(item: &'a From, visit: Visit<'a, '_>) {
    match item {
        From::Relation(_) | From::Cte { .. } => {}
        From::Subquery { query: inner, .. } => query(inner, visit),
        From::Function(function) => expr(&function.call, visit),
        From::Join(join) => {
            from(&join.left, visit);
            from(&join.right, visit);
            join.on.iter().for_each(|on| expr(on, visit));
        }
    }
}

/// The expression itself, then its parts.
pub(super) fn expr<'a>(of: &'a Expr, visit: Visit<'a, '_>) {
    visit(of);
    match &of.kind {
        ExprKind::Subquery(subquery) => in_subquery(subquery, visit),
        ExprKind::Aggregate(aggregate) => in_aggregate(aggregate, visit),
        ExprKind::Window(call) => in_window(call, visit),
        kind => children(kind).into_iter().for_each(|child| expr(child, visit)),
    }
}

/// The parts of an expression that are expressions on its own level, unless it is a subquery, an aggregate or a window.
fn children(kind: &ExprKind) -> Vec<&Expr> {
    match kind {
        ExprKind::Const(_)
        | ExprKind::Param(_)
        | ExprKind::Context(_)
        | ExprKind::Column { .. }
        | ExprKind::Hidden { .. }
        | ExprKind::Grouping(_)
        | ExprKind::Subquery(_)
        | ExprKind::Aggregate(_)
        | ExprKind::Window(_) => vec![],
        ExprKind::Call { args, .. }
        | ExprKind::And(args)
        | ExprKind::Or(args)
        | ExprKind::Coalesce(args)
        | ExprKind::Extreme { args, .. }
        | ExprKind::Array(args)
        | ExprKind::Row(args) => args.iter().collect(),
        ExprKind::Cast { arg, .. } | ExprKind::IsNull { arg, .. } | ExprKind::IsBool { arg, .. } => vec![arg],
        ExprKind::Not(arg) | ExprKind::Owned { bucket: arg, .. } => vec![arg],
        ExprKind::IsDistinct { left, right, .. } | ExprKind::NullIf { left, right, .. } => vec![left, right],
        ExprKind::OverArray { left, array, .. } => vec![left, array],
        ExprKind::Case { arms, otherwise } => {
            arms.iter().flat_map(|(when, then)| [when, then]).chain(otherwise.as_deref()).collect()
        }
        ExprKind::InList { arg, list, .. } => std::iter::once(&**arg).chain(list).collect(),
        ExprKind::Subscript { array, index } => std::iter::once(&**array).chain(index).collect(),
        ExprKind::Slice { array, from, to } => {
            std::iter::once(&**array).chain(from.as_deref()).chain(to.as_deref()).collect()
        }
    }
}

fn in_subquery<'a>(subquery: &'a Subquery, visit: Visit<'a, '_>) {
    match &subquery.kind {
        SubqueryKind::Scalar | SubqueryKind::Exists { .. } | SubqueryKind::Array => {}
        SubqueryKind::In { left, .. } => left.iter().for_each(|part| expr(part, visit)),
        SubqueryKind::Quantified { left, .. } => expr(left, visit),
    }
    query(&subquery.query, visit);
}

fn in_aggregate<'a>(aggregate: &'a Aggregate, visit: Visit<'a, '_>) {
    aggregate.args.iter().chain(&aggregate.filter).for_each(|arg| expr(arg, visit));
    aggregate.order_by.iter().for_each(|sort| expr(&sort.expr, visit));
}

fn in_window<'a>(call: &'a WindowCall, visit: Visit<'a, '_>) {
    call.args.iter().chain(&call.filter).chain(&call.partition_by).for_each(|arg| expr(arg, visit));
    call.order_by.iter().for_each(|sort| expr(&sort.expr, visit));
    for bound in call.frame.iter().flat_map(|frame| [&frame.start, &frame.end]) {
        if let FrameBound::Preceding(offset) | FrameBound::Following(offset) = bound {
            expr(offset, visit);
        }
    }
}

/// Whether an expression, or a part of it, may give another value each time.
pub(super) fn is_volatile(of: &Expr) -> bool {
    let mut found = false;
    expr(of, &mut |part| found |= calls_volatile(part));
    found
}

pub(super) fn has_volatile(of: &Query) -> bool {
    let mut found = false;
    query(of, &mut |part| found |= calls_volatile(part));
    found
}

fn calls_volatile(part: &Expr) -> bool {
    match &part.kind {
        ExprKind::Call { function, .. } => {
            builtins::function(*function).is_none_or(|function| function.volatility == Volatility::Volatile)
        }
        _ => false,
    }
}

/// Whether a query refers to one of these relations, which are not its own.
pub(super) fn refers_to(of: &Query, relations: &[RelId]) -> bool {
    let mut found = false;
    query(of, &mut |part| {
        if let ExprKind::Column { rel, .. } | ExprKind::Hidden { rel, .. } = &part.kind {
            found |= relations.contains(rel);
        }
    });
    found
}

/// Whether an expression is made of constants and parameters alone.
pub(super) fn is_constant(of: &Expr) -> bool {
    let mut constant = true;
    expr(of, &mut |part| {
        let rows = matches!(
            part.kind,
            ExprKind::Column { .. }
                | ExprKind::Hidden { .. }
                | ExprKind::Subquery(_)
                | ExprKind::Aggregate(_)
                | ExprKind::Window(_)
                | ExprKind::Grouping(_)
        );
        constant &= !rows && !calls_volatile(part);
    });
    constant
}

/// The relations that a FROM item brings.
pub(super) fn relations(item: &From, out: &mut Vec<RelId>) {
    match item {
        From::Relation(relation) => out.push(relation.rel),
        From::Subquery { rel, .. } | From::Cte { rel, .. } => out.push(*rel),
        From::Function(function) => out.push(function.rel),
        From::Join(join) => {
            relations(&join.left, out);
            relations(&join.right, out);
        }
    }
}
