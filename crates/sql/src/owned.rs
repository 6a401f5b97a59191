//! A fragment that keeps to the buckets that its shard owns.
//!
//!     SELECT … FROM users u          ──►  SELECT … FROM users u WHERE ⟨the shard owns u._bucket⟩
//!
//! While buckets move, a shard's hash tables also hold strangers: rows of buckets that it does not own. A fragment that
//! takes whatever is there would see them. This is its other form, which the executor chooses for shards that have any;
//! which buckets are owned is one parameter for each group, bound with the routing that the statement goes by.
//!
//! Invariants:
//!   * I-11 In this form every use of a hash table is kept to owned buckets, or the fragment is refused.

use crate::guard::{self, Guard};
use crate::tree::{Expr, ExprKind, RelId, RelationRef, RelationSource, Statement};
use crate::types;
use isles_kernel::error::SqlError;
use isles_kernel::schema::{BUCKET_COLUMN, EVERY_TENANT_GROUP, TENANT_KEY_COLUMN, TableKind};

/// It comes first: a stranger may be an older version of its row, and what else is asked may fail for such a one. An
/// engine may still try first what it finds cheaper, or what an index answers.
const OWNED: Guard =
    Guard { condition: condition_of, guarded: kept_relation, put: |parts, condition| parts.insert(0, condition) };

/// The statement with every hash table kept to the buckets that the shard owns.
pub(crate) fn keep_to_owned(statement: Statement) -> Result<Statement, SqlError> {
    let kept = guard::guard(statement, OWNED);
    match guard::missing(&kept, OWNED) {
        None => Ok(kept),
        Some(table) => Err(SqlError::new("XX000", format!("a use of table \"{table}\" is not kept to its buckets"))),
    }
}

fn condition_of(target: &RelationRef) -> Option<Expr> {
    let RelationSource::User(table) = &target.relation.source else { return None };
    let TableKind::Hash { group, .. } = &table.kind else { return None };
    // Rows of all tenants have no bucket in them.
    let (column, ty) = match group.as_str() {
        EVERY_TENANT_GROUP => (TENANT_KEY_COLUMN, types::TEXT),
        _ => (BUCKET_COLUMN, types::INT4),
    };
    let bucket = Expr::new(ExprKind::Hidden { rel: target.rel, column }, ty);
    Some(Expr::new(ExprKind::Owned { group: group.clone(), bucket: Box::new(bucket) }, types::BOOL))
}

fn kept_relation(guard: &Expr) -> Option<RelId> {
    let ExprKind::Owned { bucket, .. } = &guard.kind else { return None };
    match bucket.kind {
        ExprKind::Hidden { rel, column: BUCKET_COLUMN | TENANT_KEY_COLUMN } => Some(rel),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixture::{col, equal, hashed, join, query, select, statement, tenant};
    use crate::plan::walk::{Rewriter, rewrite};
    use crate::tree::{Assignment, Delete, From, JoinKind, Subquery, SubqueryKind, Update};

    fn relation(from: From) -> RelationRef {
        match from {
            From::Relation(relation) => relation,
            other => panic!("not a relation: {other:?}"),
        }
    }

    /// Uses of hash tables in every position that a statement has for one.
    fn statements() -> Vec<Statement> {
        let on = || equal(col(1, 0), col(2, 0));
        let inner = || query(select(vec![hashed(2)], Some(on())));
        let kind = SubqueryKind::Exists { negated: true };
        let exists = Expr::new(ExprKind::Subquery(Box::new(Subquery { kind, query: inner() })), types::BOOL);
        let derived = From::Subquery { rel: RelId(9), query: Box::new(inner()), lateral: true };
        let mut all = vec![
            statement(select(vec![hashed(1)], None)),
            statement(select(vec![hashed(1)], Some(exists))),
            statement(select(vec![hashed(1), derived], None)),
        ];
        let joins = [JoinKind::Inner, JoinKind::Left, JoinKind::Right, JoinKind::Full];
        for (outer, inner) in joins.into_iter().flat_map(|outer| joins.map(|inner| (outer, inner))) {
            for (second, third) in [(hashed(2), hashed(3)), (tenant(2), hashed(3)), (hashed(2), tenant(3))] {
                let nested = || join(inner, second.clone(), third.clone(), equal(col(2, 1), col(3, 1)));
                all.push(statement(select(vec![join(outer, hashed(1), nested(), on())], None)));
                all.push(statement(select(vec![join(outer, nested(), hashed(1), on())], None)));
            }
        }
        let using = || vec![join(JoinKind::Left, hashed(2), hashed(3), equal(col(2, 0), col(3, 0)))];
        let (target, filter, assignments) = (relation(hashed(1)), Some(on()), vec![]);
        let changed = Update { ctes: vec![], target, assignments, from: using(), filter, returning: None };
        let value = Assignment { column: 1, value: col(2, 1) };
        all.push(Statement::Update(Update { assignments: vec![value], ..changed.clone() }));
        let Update { target, filter, .. } = changed;
        all.push(Statement::Delete(Delete { ctes: vec![], target, using: using(), filter, returning: None }));
        all
    }

    /// Takes the n-th condition out.
    struct Cut {
        left: usize,
        done: bool,
    }

    impl Rewriter for Cut {
        fn expr(&mut self, expr: &mut Expr) {
            if kept_relation(expr).is_none() {
                return rewrite::expr(self, expr);
            }
            if self.left == 0 && !self.done {
                *expr = Expr::new(ExprKind::Const(isles_kernel::value::Value::Bool(true)), types::BOOL);
                self.done = true;
            }
            self.left = self.left.saturating_sub(1);
        }
    }

    /// I-11
    #[test]
    fn a_use_that_is_not_kept_to_owned_buckets_is_noticed() {
        let mut cuts = 0;
        for given in statements() {
            assert!(guard::missing(&given, OWNED).is_some(), "{given:?}");
            let kept = keep_to_owned(given).expect("it can be kept");
            for at in 0.. {
                let mut cut = Cut { left: at, done: false };
                let mut without = kept.clone();
                rewrite::statement(&mut cut, &mut without);
                if !cut.done {
                    break;
                }
                cuts += 1;
                assert!(guard::missing(&without, OWNED).is_some(), "{without:?}");
            }
        }
        assert!(cuts >= 200, "only {cuts} conditions were cut");
    }
}
