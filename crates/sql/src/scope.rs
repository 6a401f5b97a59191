//! Puts the session's tenant into every use of a tenant table.
//!
//!     SELECT … FROM notes n          ──►  SELECT … FROM notes n WHERE n._tenant = ⟨tenant⟩
//!     … a LEFT JOIN notes n ON c     ──►  … a LEFT JOIN notes n ON c AND n._tenant = ⟨tenant⟩
//!     … a FULL JOIN notes n ON c     ──►  … a FULL JOIN (SELECT … FROM notes WHERE _tenant = ⟨tenant⟩) n ON c
//!
//! Invariants:
//!   * I-41 Every use of a tenant table in every fragment of a plan carries the predicate, in a place where no row of
//!     another tenant comes through. [`scope`] puts it there, and [`prove`], which shares no code with it, looks at
//!     the finished fragments and refuses the statement where it is missing.
//!
//! A predicate has its place by the kind of the join: in WHERE it would turn an outer join into an inner one, and in
//! the ON of an outer join it would not keep anything from the preserved side.

use crate::plan::build::query_of;
use crate::plan::walk::{Largest, Rewriter, Visitor, conjunction, conjuncts, rewrite, split, walk};
use crate::planted::{self, Bug};
use crate::tree::{
    Body, Context, Display, Distinct, Expr, ExprKind, Field, From, GroupBy, Join, JoinKind, Query, RelId, RelationRef,
    RelationSource, Select, Statement,
};
use crate::types::{self, Oid};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{TENANT_KEY_COLUMN, TableKind};

/// `texteq`, the equality of `_tenant`.
const TEXT_EQUALS: Oid = Oid(67);

/// The statement with every tenant table scoped.
pub fn scope(mut statement: Statement) -> Statement {
    if planted::has(Bug::Unscoped) {
        return statement;
    }
    let mut scoping = Scoping { next: Largest::of(&statement).rel + 1 };
    rewrite::statement(&mut scoping, &mut statement);
    match &mut statement {
        Statement::Query(_) => {}
        // The row carries its tenant, and a conflict is one of the tenant's own key.
        Statement::Insert(_) => {}
        Statement::Update(update) => {
            let mut parts = split(update.filter.take());
            update.from.iter_mut().for_each(|from| scoping.place(from, Some(&mut parts)));
            parts.extend(predicate_of(&update.target));
            update.filter = conjunction(parts);
        }
        Statement::Delete(delete) => {
            let mut parts = split(delete.filter.take());
            delete.using.iter_mut().for_each(|from| scoping.place(from, Some(&mut parts)));
            parts.extend(predicate_of(&delete.target));
            delete.filter = conjunction(parts);
        }
    }
    statement
}

/// The predicate that a use of a table needs.
pub(crate) fn predicate_of(target: &RelationRef) -> Option<Expr> {
    is_tenant(target).then(|| predicate(target.rel))
}

fn is_tenant(target: &RelationRef) -> bool {
    matches!(&target.relation.source, RelationSource::User(table) if table.kind == TableKind::Tenant)
}

fn predicate(rel: RelId) -> Expr {
    let column = Expr::new(ExprKind::Hidden { rel, column: TENANT_KEY_COLUMN }, types::TEXT);
    let tenant = Expr::new(ExprKind::Context(Context::Tenant), types::TEXT);
    let display = Display::Operator("=".into());
    Expr::new(ExprKind::Call { function: TEXT_EQUALS, display, args: vec![column, tenant] }, types::BOOL)
}

struct Scoping {
    next: u32,
}

impl Rewriter for Scoping {
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

impl Scoping {
    /// Puts the predicates of a FROM entry into `parts`, or, without these, into the entry itself.
    fn place(&mut self, from: &mut From, parts: Option<&mut Vec<Expr>>) {
        match from {
            From::Join(join) => self.place_join(join, parts),
            From::Relation(relation) if is_tenant(relation) => match parts {
                Some(parts) => parts.push(predicate(relation.rel)),
                None => *from = self.filtered(relation.clone()),
            },
            _ => {}
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

    /// `(SELECT every column FROM table WHERE _tenant = …)`, under the name that the table had.
    fn filtered(&mut self, table: RelationRef) -> From {
        let inner = RelId(self.next);
        self.next += 1;
        let columns: Vec<Field> =
            table.relation.columns.iter().map(|c| Field { name: c.name.clone(), ty: c.ty }).collect();
        let targets = columns
            .iter()
            .enumerate()
            .map(|(column, field)| Expr::new(ExprKind::Column { rel: inner, column }, field.ty));
        let select = Select {
            distinct: Distinct::No,
            targets: targets.collect(),
            from: vec![From::Relation(RelationRef { rel: inner, relation: table.relation.clone() })],
            filter: Some(predicate(inner)),
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

/// The statement as its author knows it: without the predicates.
pub(crate) fn unscoped(mut statement: Statement) -> Statement {
    struct Unscoping;
    impl Unscoping {
        fn lift(&self, filter: &mut Option<Expr>) {
            let parts = split(filter.take()).into_iter().filter(|part| !is_predicate(part)).collect();
            *filter = conjunction(parts);
        }
    }
    impl Rewriter for Unscoping {
        fn select(&mut self, select: &mut Select) {
            self.lift(&mut select.filter);
            rewrite::select(self, select);
        }

        fn from(&mut self, from: &mut From) {
            if let From::Join(join) = from {
                self.lift(&mut join.on);
            }
            rewrite::from(self, from);
        }
    }
    match &mut statement {
        Statement::Query(_) | Statement::Insert(_) => {}
        Statement::Update(update) => Unscoping.lift(&mut update.filter),
        Statement::Delete(delete) => Unscoping.lift(&mut delete.filter),
    }
    rewrite::statement(&mut Unscoping, &mut statement);
    statement
}

/// Refuses a fragment in which some use of a tenant table lets rows of other tenants through.
pub(crate) fn prove(statement: &Statement) -> Result<(), SqlError> {
    if planted::has(Bug::Unproven) {
        return Ok(());
    }
    let mut proof = Proof { missing: None };
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
    match proof.missing {
        None => Ok(()),
        Some(table) => Err(SqlError::new("XX000", format!("a use of tenant table \"{table}\" is not scoped"))),
    }
}

struct Proof {
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
        if is_tenant(relation) && !guards.iter().any(|guard| scopes(guard, relation.rel)) {
            self.missing.get_or_insert_with(|| relation.relation.name.clone());
        }
    }
}

/// Whether a condition is `rel._tenant = ⟨the session's tenant⟩`.
fn scopes(guard: &Expr, rel: RelId) -> bool {
    scoped_relation(guard) == Some(rel)
}

fn is_predicate(expr: &Expr) -> bool {
    scoped_relation(expr).is_some()
}

/// The relation that a condition gives one tenant's rows of.
fn scoped_relation(guard: &Expr) -> Option<RelId> {
    let ExprKind::Call { function: TEXT_EQUALS, args, .. } = &guard.kind else { return None };
    let [column, tenant] = args.as_slice() else { return None };
    match (&column.kind, &tenant.kind) {
        (ExprKind::Hidden { rel, column: TENANT_KEY_COLUMN }, ExprKind::Context(Context::Tenant)) => Some(*rel),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::build::query_of;
    use crate::plan::fixture::{col, equal, hashed, int, join, query, select, statement, tenant};
    use crate::plan::{PlanContext, plan};
    use crate::tree::{Assignment, Delete, Subquery, SubqueryKind, Update};

    fn relation(from: From) -> RelationRef {
        match from {
            From::Relation(relation) => relation,
            other => panic!("not a relation: {other:?}"),
        }
    }

    fn exists(inner: Select) -> Expr {
        let kind = SubqueryKind::Exists { negated: false };
        Expr::new(ExprKind::Subquery(Box::new(Subquery { kind, query: query(inner) })), types::BOOL)
    }

    /// Uses of tenant tables in every position that a statement has for one.
    fn statements() -> Vec<Statement> {
        let on = || equal(col(1, 0), col(2, 0));
        let joins = [JoinKind::Inner, JoinKind::Left, JoinKind::Right, JoinKind::Full];
        let mut all = vec![
            statement(select(vec![tenant(1)], None)),
            statement(select(vec![tenant(1), tenant(2)], Some(on()))),
            statement(select(vec![tenant(1)], Some(exists(select(vec![tenant(2)], Some(on())))))),
            statement(select(vec![], Some(exists(select(vec![tenant(2)], None))))),
        ];
        for kind in joins {
            all.push(statement(select(vec![join(kind, tenant(1), tenant(2), on())], None)));
            all.push(statement(select(vec![join(kind, hashed(1), tenant(2), on())], None)));
            for inner in joins {
                let nested = join(inner, tenant(2), tenant(3), equal(col(2, 1), col(3, 1)));
                all.push(statement(select(vec![join(kind, tenant(1), nested, on())], None)));
                for (first, last) in [(tenant(2), hashed(3)), (hashed(2), tenant(3))] {
                    let nested = || join(inner, first.clone(), last.clone(), equal(col(2, 1), col(3, 1)));
                    all.push(statement(select(vec![join(kind, hashed(1), nested(), on())], None)));
                    all.push(statement(select(vec![join(kind, nested(), hashed(1), on())], None)));
                }
            }
        }
        let derived =
            From::Subquery { rel: RelId(9), query: Box::new(query(select(vec![tenant(1)], None))), lateral: false };
        all.push(statement(select(vec![derived], None)));
        let branch = || Box::new(query(select(vec![tenant(1)], None)));
        let union = Body::SetOp { op: crate::tree::SetOp::Union, all: true, left: branch(), right: branch() };
        all.push(Statement::Query(query_of(union, Vec::new())));
        all.push(Statement::Update(Update {
            ctes: Vec::new(),
            target: relation(tenant(1)),
            assignments: vec![Assignment { column: 1, value: int(1) }],
            from: vec![tenant(2)],
            filter: Some(on()),
            returning: None,
        }));
        all.push(Statement::Delete(Delete {
            ctes: Vec::new(),
            target: relation(tenant(1)),
            using: vec![join(JoinKind::Left, hashed(2), tenant(3), equal(col(2, 0), col(3, 0)))],
            filter: None,
            returning: None,
        }));
        all
    }

    /// Takes the n-th predicate out.
    struct Cut {
        left: usize,
        done: bool,
    }

    impl Rewriter for Cut {
        fn expr(&mut self, expr: &mut Expr) {
            let is_predicate = matches!(&expr.kind, ExprKind::Call { args, .. }
                if matches!(args.first().map(|arg| &arg.kind), Some(ExprKind::Hidden { .. })));
            if is_predicate {
                if self.left == 0 && !self.done {
                    *expr = Expr::new(ExprKind::Const(isles_kernel::value::Value::Bool(true)), types::BOOL);
                    self.done = true;
                }
                self.left = self.left.saturating_sub(1);
            } else {
                rewrite::expr(self, expr);
            }
        }
    }

    /// I-41
    #[test]
    fn a_statement_that_lacks_any_one_predicate_is_refused() {
        let mut cuts = 0;
        for given in statements() {
            let scoped = scope(given);
            assert_eq!(prove(&scoped), Ok(()), "{scoped:?}");
            for at in 0.. {
                let mut cut = Cut { left: at, done: false };
                let mut without = scoped.clone();
                rewrite::statement(&mut cut, &mut without);
                if !cut.done {
                    break;
                }
                cuts += 1;
                let error = prove(&without).expect_err("a predicate is missing");
                assert_eq!(error.sqlstate, "XX000", "{without:?}");
            }
        }
        assert!(cuts >= 60, "only {cuts} predicates were cut");
    }

    /// I-41
    #[test]
    fn a_predicate_in_a_place_that_keeps_nothing_back_is_no_proof() {
        let on = and_predicate(equal(col(1, 0), col(2, 0)), 1);
        let preserved = statement(select(vec![join(JoinKind::Left, tenant(1), hashed(2), on.clone())], None));
        assert!(prove(&preserved).is_err(), "ON of a left join does not filter its left side");
        let full = statement(select(vec![join(JoinKind::Full, tenant(1), hashed(2), on.clone())], None));
        assert!(prove(&full).is_err(), "ON of a full join filters neither side");
        let null_side = statement(select(vec![join(JoinKind::Right, tenant(1), hashed(2), on)], None));
        assert_eq!(prove(&null_side), Ok(()));
    }

    fn and_predicate(on: Expr, rel: u32) -> Expr {
        crate::plan::fixture::and(vec![on, predicate(RelId(rel))])
    }

    /// I-41
    #[test]
    fn every_fragment_of_a_plan_is_scoped() {
        for given in statements() {
            let uses = |statement: &Statement| {
                let mut proof = Proof { missing: None };
                walk::statement(&mut proof, statement);
                proof.missing
            };
            let plan = plan(given, &PlanContext::default()).expect("a plan");
            assert!(!plan.fragments().is_empty());
            for fragment in plan.fragments() {
                assert_eq!(uses(&fragment.statement), None);
            }
        }
    }
}
