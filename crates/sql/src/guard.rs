//! Puts a condition into every use of a table, where it holds for each row that the use contributes.
//!
//!     SELECT … FROM t                ──►  SELECT … FROM t WHERE ⟨condition⟩
//!     … a LEFT JOIN t ON c           ──►  … a LEFT JOIN t ON c AND ⟨condition⟩
//!     … a FULL JOIN t ON c           ──►  … a FULL JOIN (SELECT … FROM t WHERE ⟨condition⟩) t ON c
//!
//! A condition has its place by the kind of the join: in WHERE it would turn an outer join into an inner one, and in
//! the ON of an outer join it would not keep anything from the preserved side.
//!
//! Which tables, and which condition, is the caller's to say ([`Guard`]); [`missing`], which shares no code with the
//! placement, tells whether a use goes without.

use crate::plan::build::query_of;
use crate::plan::walk::{Largest, Rewriter, Visitor, conjunction, conjuncts, rewrite, split, walk};
use crate::planted::{self, Bug};
use crate::tree::{
    Body, Distinct, Expr, ExprKind, Field, From, GroupBy, Join, JoinKind, Query, RelId, RelationRef, Select, Statement,
};

/// What some tables are guarded by.
#[derive(Clone, Copy)]
pub(crate) struct Guard {
    /// The condition that a use of a table needs, if it needs one.
    pub(crate) condition: fn(&RelationRef) -> Option<Expr>,
    /// The relation that an expression is the condition of.
    pub(crate) guarded: fn(&Expr) -> Option<RelId>,
    /// Where it stands among what else is asked.
    pub(crate) put: fn(&mut Vec<Expr>, Expr),
}

/// The statement with every use guarded.
pub(crate) fn guard(mut statement: Statement, guard: Guard) -> Statement {
    let mut placing = Placing { guard, next: Largest::of(&statement).rel + 1 };
    rewrite::statement(&mut placing, &mut statement);
    match &mut statement {
        Statement::Query(_) => {}
        // A row that is inserted says itself whose it is, and where.
        Statement::Insert(_) => {}
        Statement::Update(update) => {
            let mut parts = split(update.filter.take());
            update.from.iter_mut().for_each(|from| placing.place(from, Some(&mut parts)));
            placing.put(&update.target, &mut parts);
            update.filter = conjunction(parts);
        }
        Statement::Delete(delete) => {
            let mut parts = split(delete.filter.take());
            delete.using.iter_mut().for_each(|from| placing.place(from, Some(&mut parts)));
            placing.put(&delete.target, &mut parts);
            delete.filter = conjunction(parts);
        }
    }
    statement
}

struct Placing {
    guard: Guard,
    next: u32,
}

impl Rewriter for Placing {
    fn query(&mut self, query: &mut Query) {
        let ctes = planted::has(Bug::UnscopedCte).then(|| std::mem::take(&mut query.ctes));
        let is_set_operation = matches!(query.body, Body::SetOp { .. });
        if !(is_set_operation && planted::has(Bug::UnscopedSetOperation)) {
            rewrite::query(self, query);
        }
        if let Some(ctes) = ctes {
            query.ctes = ctes;
        }
    }

    fn expr(&mut self, expr: &mut Expr) {
        let is_subquery = matches!(expr.kind, ExprKind::Subquery(_));
        if !(is_subquery && planted::has(Bug::UnscopedSubquery)) {
            rewrite::expr(self, expr);
        }
    }

    fn select(&mut self, select: &mut Select) {
        rewrite::select(self, select);
        let mut parts = split(select.filter.take());
        select.from.iter_mut().for_each(|from| self.place(from, Some(&mut parts)));
        select.filter = conjunction(parts);
    }
}

impl Placing {
    fn put(&self, relation: &RelationRef, parts: &mut Vec<Expr>) {
        if let Some(condition) = (self.guard.condition)(relation) {
            (self.guard.put)(parts, condition);
        }
    }

    /// Puts the conditions of a FROM entry into `parts`, or, without these, into the entry itself.
    fn place(&mut self, from: &mut From, parts: Option<&mut Vec<Expr>>) {
        match from {
            From::Join(join) => self.place_join(join, parts),
            From::Relation(relation) => match parts {
                Some(parts) => self.put(relation, parts),
                None if (self.guard.condition)(relation).is_some() => *from = self.filtered(relation.clone()),
                None => {}
            },
            From::Subquery { .. } | From::Cte { .. } | From::Function(_) => {}
        }
    }

    fn place_join(&mut self, join: &mut Join, parts: Option<&mut Vec<Expr>>) {
        let mut on = split(join.on.take());
        let before = on.len();
        match join.kind {
            JoinKind::Inner => {
                // What is asked of an inner join may as well be asked of the whole.
                let parts = parts.unwrap_or(&mut on);
                self.place(&mut join.left, Some(parts));
                self.place(&mut join.right, Some(parts));
            }
            JoinKind::Left => {
                self.place(&mut join.left, parts);
                self.place(&mut join.right, Some(&mut on));
            }
            JoinKind::Right => {
                self.place(&mut join.left, Some(&mut on));
                self.place(&mut join.right, parts);
            }
            JoinKind::Full => {
                self.place(&mut join.left, None);
                self.place(&mut join.right, None);
            }
        }
        debug_assert!(on.len() >= before);
        join.on = conjunction(on);
    }

    /// `(SELECT every column FROM table WHERE ⟨condition⟩)`, under the name that the table had.
    fn filtered(&mut self, table: RelationRef) -> From {
        let inner = RelId(self.next);
        self.next += 1;
        let columns: Vec<Field> =
            table.relation.columns.iter().map(|c| Field { name: c.name.clone(), ty: c.ty }).collect();
        let targets = columns
            .iter()
            .enumerate()
            .map(|(column, field)| Expr::new(ExprKind::Column { rel: inner, column }, field.ty));
        let read = RelationRef { rel: inner, relation: table.relation.clone() };
        let select = Select {
            distinct: Distinct::No,
            targets: targets.collect(),
            filter: (self.guard.condition)(&read),
            from: vec![From::Relation(read)],
            group_by: GroupBy::None,
            having: None,
        };
        From::Subquery {
            rel: table.rel,
            query: Box::new(query_of(Body::Select(Box::new(select)), columns)),
            lateral: false,
        }
    }
}

/// A table of which some use lets through what its guard should keep back.
pub(crate) fn missing(statement: &Statement, guard: Guard) -> Option<String> {
    let mut proof = Proof { guard, missing: None };
    match statement {
        Statement::Query(_) | Statement::Insert(_) => {}
        Statement::Update(update) => {
            let guards = conjuncts(update.filter.as_ref());
            proof.relation(&update.target, &guards);
            update.from.iter().for_each(|from| proof.guarded(from, &guards));
        }
        Statement::Delete(delete) => {
            let guards = conjuncts(delete.filter.as_ref());
            proof.relation(&delete.target, &guards);
            delete.using.iter().for_each(|from| proof.guarded(from, &guards));
        }
    }
    walk::statement(&mut proof, statement);
    proof.missing
}

struct Proof {
    guard: Guard,
    missing: Option<String>,
}

impl Visitor for Proof {
    fn select(&mut self, select: &Select) {
        let guards = conjuncts(select.filter.as_ref());
        select.from.iter().for_each(|from| self.guarded(from, &guards));
        walk::select(self, select);
    }
}

impl Proof {
    /// `guards` hold for every row that this entry contributes to the result.
    fn guarded(&mut self, from: &From, guards: &[&Expr]) {
        match from {
            From::Relation(relation) => self.relation(relation, guards),
            From::Join(join) => {
                let with_on: Vec<&Expr> = guards.iter().copied().chain(conjuncts(join.on.as_ref())).collect();
                let (left, right): (&[&Expr], &[&Expr]) = match join.kind {
                    JoinKind::Inner => (&with_on, &with_on),
                    JoinKind::Left => (guards, &with_on),
                    JoinKind::Right => (&with_on, guards),
                    JoinKind::Full => (guards, guards),
                };
                self.guarded(&join.left, left);
                self.guarded(&join.right, right);
            }
            From::Subquery { .. } | From::Cte { .. } | From::Function(_) => {}
        }
    }

    fn relation(&mut self, relation: &RelationRef, guards: &[&Expr]) {
        let needs = (self.guard.condition)(relation).is_some();
        if needs && !guards.iter().any(|expr| (self.guard.guarded)(expr) == Some(relation.rel)) {
            self.missing.get_or_insert_with(|| relation.relation.name.clone());
        }
    }
}
