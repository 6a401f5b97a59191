//! Puts the session's tenant into every use of a tenant table.
//!
//!     SELECT … FROM notes n          ──►  SELECT … FROM notes n WHERE n._tenant = ⟨tenant⟩
//!
//! Invariants:
//!   * I-41 Every use of a tenant table in every fragment of a plan carries the predicate, in a place where no row of
//!     another tenant comes through. [`scope`] puts it there, and [`prove`], which shares no code with it, looks at
//!     the finished fragments and refuses the statement where it is missing.

use crate::guard::{self, Guard};
use crate::plan::walk::{Rewriter, conjunction, rewrite, split};
use crate::planted::{self, Bug};
use crate::tree::{Context, Display, Expr, ExprKind, From, RelId, RelationRef, RelationSource, Select, Statement};
use crate::types::{self, Oid};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{TENANT_KEY_COLUMN, TableKind};

/// `texteq`, the equality of `_tenant`.
const TEXT_EQUALS: Oid = Oid(67);

const TENANT: Guard = Guard { condition: predicate_of, guarded: scoped_relation, put: Vec::push };

/// The statement with every tenant table scoped.
pub fn scope(statement: Statement) -> Statement {
    if planted::has(Bug::Unscoped) {
        return statement;
    }
    guard::guard(statement, TENANT)
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
    match guard::missing(statement, TENANT) {
        None => Ok(()),
        Some(table) => Err(SqlError::new("XX000", format!("a use of tenant table \"{table}\" is not scoped"))),
    }
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
    use crate::tree::{Assignment, Body, Delete, JoinKind, Subquery, SubqueryKind, Update};

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
            let plan = plan(given, &PlanContext::default()).expect("a plan");
            assert!(!plan.fragments().is_empty());
            for fragment in plan.fragments() {
                assert_eq!(guard::missing(&fragment.statement, TENANT), None);
            }
        }
    }
}
