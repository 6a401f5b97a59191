//! Walks over the bound tree.
//!
//! [`Visitor`] reads and [`Rewriter`] changes; both reach every expression, relation and query of a statement, those
//! of subqueries too. A method that does not call its `walk_…` stops there.

use crate::tree::{
    Assignment, Body, Conflict, ConflictAction, CteBody, Distinct, Expr, ExprKind, FrameBound, From, GroupBy,
    InsertColumn, InsertSource, Query, RelId, Returning, Select, SortExpr, Statement, SubqueryKind, WindowCall,
};
use std::collections::BTreeSet;

macro_rules! walker {
    ($trait:ident, [$($m:tt)?], $module:ident) => {
        pub(crate) trait $trait {
            fn expr(&mut self, expr: &$($m)? Expr) {
                $module::expr(self, expr);
            }
            fn query(&mut self, query: &$($m)? Query) {
                $module::query(self, query);
            }
            fn from(&mut self, from: &$($m)? From) {
                $module::from(self, from);
            }
            fn select(&mut self, select: &$($m)? Select) {
                $module::select(self, select);
            }
        }

        pub(crate) mod $module {
            use super::*;

            pub(crate) fn statement<V: $trait + ?Sized>(v: &mut V, statement: &$($m)? Statement) {
                match statement {
                    Statement::Query(inner) => v.query(inner),
                    Statement::Insert(insert) => {
                        for cte in &$($m)? insert.ctes {
                            cte_body(v, &$($m)? cte.body);
                        }
                        for column in &$($m)? insert.columns {
                            match column {
                                InsertColumn::Source { cast: Some(cast), .. } => v.expr(cast),
                                InsertColumn::Source { cast: None, .. } => {}
                                InsertColumn::Default(default) => v.expr(default),
                            }
                        }
                        match &$($m)? insert.source {
                            InsertSource::Values(rows) => {
                                for value in rows.into_iter().flatten().flatten() {
                                    v.expr(value);
                                }
                            }
                            InsertSource::Query(inner) => v.query(inner),
                            InsertSource::Defaults => {}
                        }
                        if let Some(found) = &$($m)? insert.conflict {
                            conflict(v, found);
                        }
                        returning(v, &$($m)? insert.returning);
                    }
                    Statement::Update(update) => {
                        for cte in &$($m)? update.ctes {
                            cte_body(v, &$($m)? cte.body);
                        }
                        assignments(v, &$($m)? update.assignments);
                        for from in &$($m)? update.from {
                            v.from(from);
                        }
                        if let Some(filter) = &$($m)? update.filter {
                            v.expr(filter);
                        }
                        returning(v, &$($m)? update.returning);
                    }
                    Statement::Delete(delete) => {
                        for cte in &$($m)? delete.ctes {
                            cte_body(v, &$($m)? cte.body);
                        }
                        for from in &$($m)? delete.using {
                            v.from(from);
                        }
                        if let Some(filter) = &$($m)? delete.filter {
                            v.expr(filter);
                        }
                        returning(v, &$($m)? delete.returning);
                    }
                }
            }

            fn conflict<V: $trait + ?Sized>(v: &mut V, conflict: &$($m)? Conflict) {
                if let Some(filter) = &$($m)? conflict.target_filter {
                    v.expr(filter);
                }
                if let ConflictAction::Update { assignments: set, filter, .. } = &$($m)? conflict.action {
                    assignments(v, set);
                    if let Some(filter) = filter {
                        v.expr(filter);
                    }
                }
            }

            fn assignments<V: $trait + ?Sized>(v: &mut V, assignments: &$($m)? Vec<Assignment>) {
                for assignment in assignments {
                    v.expr(&$($m)? assignment.value);
                }
            }

            fn returning<V: $trait + ?Sized>(v: &mut V, returning: &$($m)? Option<Returning>) {
                if let Some(returning) = returning {
                    for target in &$($m)? returning.targets {
                        v.expr(target);
                    }
                }
            }

            pub(crate) fn cte_body<V: $trait + ?Sized>(v: &mut V, body: &$($m)? CteBody) {
                match body {
                    CteBody::Query(inner) => v.query(inner),
                    CteBody::Recursive { start, step, .. } => {
                        v.query(start);
                        v.query(step);
                    }
                    CteBody::Write(inner) => statement(v, inner),
                }
            }

            pub(crate) fn query<V: $trait + ?Sized>(v: &mut V, query: &$($m)? Query) {
                for cte in &$($m)? query.ctes {
                    cte_body(v, &$($m)? cte.body);
                }
                match &$($m)? query.body {
                    Body::Select(inner) => v.select(inner),
                    Body::Values(rows) => {
                        for value in rows.into_iter().flatten() {
                            v.expr(value);
                        }
                    }
                    Body::SetOp { left, right, .. } => {
                        v.query(left);
                        v.query(right);
                    }
                }
                if let Some(limit) = &$($m)? query.limit {
                    v.expr(limit);
                }
                if let Some(offset) = &$($m)? query.offset {
                    v.expr(offset);
                }
            }

            pub(crate) fn select<V: $trait + ?Sized>(v: &mut V, select: &$($m)? Select) {
                for from in &$($m)? select.from {
                    v.from(from);
                }
                if let Some(filter) = &$($m)? select.filter {
                    v.expr(filter);
                }
                above_filter(v, select);
            }

            /// Everything of a select but FROM and WHERE.
            pub(crate) fn above_filter<V: $trait + ?Sized>(v: &mut V, select: &$($m)? Select) {
                for target in &$($m)? select.targets {
                    v.expr(target);
                }
                if let Distinct::On(exprs) = &$($m)? select.distinct {
                    for expr in exprs {
                        v.expr(expr);
                    }
                }
                match &$($m)? select.group_by {
                    GroupBy::None => {}
                    GroupBy::Keys(keys) | GroupBy::Sets { keys, .. } => {
                        for key in keys {
                            v.expr(key);
                        }
                    }
                }
                if let Some(having) = &$($m)? select.having {
                    v.expr(having);
                }
            }

            pub(crate) fn from<V: $trait + ?Sized>(v: &mut V, from: &$($m)? From) {
                match from {
                    From::Relation(_) | From::Cte { .. } => {}
                    From::Subquery { query, .. } => v.query(query),
                    From::Function(function) => v.expr(&$($m)? function.call),
                    From::Join(join) => {
                        v.from(&$($m)? join.left);
                        v.from(&$($m)? join.right);
                        if let Some(on) = &$($m)? join.on {
                            v.expr(on);
                        }
                    }
                }
            }

            pub(crate) fn expr<V: $trait + ?Sized>(v: &mut V, expr: &$($m)? Expr) {
                match &$($m)? expr.kind {
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
                    | ExprKind::Row(args) => {
                        for arg in args {
                            v.expr(arg);
                        }
                    }
                    ExprKind::Cast { arg, .. }
                    | ExprKind::Owned { bucket: arg, .. }
                    | ExprKind::Not(arg)
                    | ExprKind::IsNull { arg, .. }
                    | ExprKind::IsBool { arg, .. } => v.expr(arg),
                    ExprKind::IsDistinct { left, right, .. } | ExprKind::NullIf { left, right, .. } => {
                        v.expr(left);
                        v.expr(right);
                    }
                    ExprKind::Case { arms, otherwise } => {
                        for (when, then) in arms {
                            v.expr(when);
                            v.expr(then);
                        }
                        if let Some(otherwise) = otherwise {
                            v.expr(otherwise);
                        }
                    }
                    ExprKind::InList { arg, list, .. } => {
                        v.expr(arg);
                        for item in list {
                            v.expr(item);
                        }
                    }
                    ExprKind::OverArray { left, array, .. } => {
                        v.expr(left);
                        v.expr(array);
                    }
                    ExprKind::Subquery(subquery) => {
                        match &$($m)? subquery.kind {
                            SubqueryKind::In { left, .. } => {
                                for left in left {
                                    v.expr(left);
                                }
                            }
                            SubqueryKind::Quantified { left, .. } => v.expr(left),
                            SubqueryKind::Scalar | SubqueryKind::Exists { .. } | SubqueryKind::Array => {}
                        }
                        v.query(&$($m)? subquery.query);
                    }
                    ExprKind::Subscript { array, index } => {
                        v.expr(array);
                        for index in index {
                            v.expr(index);
                        }
                    }
                    ExprKind::Slice { array, from, to } => {
                        v.expr(array);
                        if let Some(bound) = from {
                            v.expr(bound);
                        }
                        if let Some(bound) = to {
                            v.expr(bound);
                        }
                    }
                    ExprKind::Aggregate(aggregate) => {
                        for arg in &$($m)? aggregate.args {
                            v.expr(arg);
                        }
                        sorts(v, &$($m)? aggregate.order_by);
                        if let Some(filter) = &$($m)? aggregate.filter {
                            v.expr(filter);
                        }
                    }
                    ExprKind::Window(call) => window(v, call),
                }
            }

            fn sorts<V: $trait + ?Sized>(v: &mut V, sorts: &$($m)? Vec<SortExpr>) {
                for sort in sorts {
                    v.expr(&$($m)? sort.expr);
                }
            }

            fn window<V: $trait + ?Sized>(v: &mut V, call: &$($m)? WindowCall) {
                for arg in &$($m)? call.args {
                    v.expr(arg);
                }
                if let Some(filter) = &$($m)? call.filter {
                    v.expr(filter);
                }
                for key in &$($m)? call.partition_by {
                    v.expr(key);
                }
                sorts(v, &$($m)? call.order_by);
                if let Some(frame) = &$($m)? call.frame {
                    for bound in [&$($m)? frame.start, &$($m)? frame.end] {
                        if let FrameBound::Preceding(by) | FrameBound::Following(by) = bound {
                            v.expr(by);
                        }
                    }
                }
            }
        }
    };
}

walker!(Visitor, [], walk);
walker!(Rewriter, [mut], rewrite);

/// A column of a relation.
pub(crate) type ColumnRef = (RelId, usize);

/// The columns that are read, in any depth.
#[derive(Default)]
pub(crate) struct Columns(pub(crate) BTreeSet<ColumnRef>);

impl Visitor for Columns {
    fn expr(&mut self, expr: &Expr) {
        if let ExprKind::Column { rel, column } = expr.kind {
            self.0.insert((rel, column));
        }
        walk::expr(self, expr);
    }
}

/// The relations whose columns are read, in any depth.
#[derive(Default)]
struct Read(BTreeSet<RelId>);

impl Visitor for Read {
    fn expr(&mut self, expr: &Expr) {
        if let ExprKind::Column { rel, .. } | ExprKind::Hidden { rel, .. } = expr.kind {
            self.0.insert(rel);
        }
        walk::expr(self, expr);
    }
}

/// The relations that a piece of tree defines, in any depth.
#[derive(Default)]
struct Defined(BTreeSet<RelId>);

impl Visitor for Defined {
    fn from(&mut self, from: &From) {
        self.0.extend(own_relation(from));
        walk::from(self, from);
    }
}

/// The relation that a FROM entry is; a join is none.
pub(crate) fn own_relation(from: &From) -> Option<RelId> {
    match from {
        From::Relation(relation) => Some(relation.rel),
        From::Subquery { rel, .. } | From::Cte { rel, .. } => Some(*rel),
        From::Function(function) => Some(function.rel),
        From::Join(_) => None,
    }
}

/// The relations that a FROM entry offers to the expressions around it.
pub(crate) fn offered(from: &From) -> BTreeSet<RelId> {
    match from {
        From::Join(join) => offered(&join.left).into_iter().chain(offered(&join.right)).collect(),
        other => own_relation(other).into_iter().collect(),
    }
}

/// The relations that an expression reads, those of its own subqueries left out.
pub(crate) fn relations_of(expr: &Expr) -> BTreeSet<RelId> {
    let (mut read, mut defined) = (Read::default(), Defined::default());
    read.expr(expr);
    defined.expr(expr);
    read.0.difference(&defined.0).copied().collect()
}

/// The outer relations that a query reads: none for one that stands by itself.
pub(crate) fn outer_relations(query: &Query) -> BTreeSet<RelId> {
    let (mut read, mut defined) = (Read::default(), Defined::default());
    read.query(query);
    defined.query(query);
    read.0.difference(&defined.0).copied().collect()
}

/// The outer relations that a FROM entry reads.
pub(crate) fn outer_relations_of_from(from: &From) -> BTreeSet<RelId> {
    let (mut read, mut defined) = (Read::default(), Defined::default());
    read.from(from);
    defined.from(from);
    read.0.difference(&defined.0).copied().collect()
}

/// The parts of a condition that must all hold.
pub(crate) fn conjuncts(filter: Option<&Expr>) -> Vec<&Expr> {
    match filter {
        None => Vec::new(),
        Some(Expr { kind: ExprKind::And(parts), .. }) => parts.iter().flat_map(|p| conjuncts(Some(p))).collect(),
        Some(other) => vec![other],
    }
}

/// The parts of a condition that must all hold, taken apart.
pub(crate) fn split(filter: Option<Expr>) -> Vec<Expr> {
    match filter {
        None => Vec::new(),
        Some(Expr { kind: ExprKind::And(parts), .. }) => parts.into_iter().flat_map(|p| split(Some(p))).collect(),
        Some(other) => vec![other],
    }
}

/// All of these conditions.
pub(crate) fn conjunction(mut parts: Vec<Expr>) -> Option<Expr> {
    match parts.len() {
        0 => None,
        1 => parts.pop(),
        _ => Some(Expr::new(ExprKind::And(parts), crate::types::BOOL)),
    }
}

/// The largest relation of a statement, and common table expression.
#[derive(Default)]
pub(crate) struct Largest {
    pub(crate) rel: u32,
}

impl Largest {
    pub(crate) fn of(statement: &Statement) -> Largest {
        let mut largest = Largest::default();
        match statement {
            Statement::Query(_) => {}
            Statement::Insert(insert) => {
                largest.rel = insert.target.rel.0;
                if let Some(Conflict { action: ConflictAction::Update { excluded, .. }, .. }) = &insert.conflict {
                    largest.rel = largest.rel.max(excluded.0);
                }
            }
            Statement::Update(update) => largest.rel = update.target.rel.0,
            Statement::Delete(delete) => largest.rel = delete.target.rel.0,
        }
        walk::statement(&mut largest, statement);
        largest
    }
}

impl Visitor for Largest {
    fn from(&mut self, from: &From) {
        self.rel = own_relation(from).map_or(self.rel, |rel| self.rel.max(rel.0));
        walk::from(self, from);
    }
}
