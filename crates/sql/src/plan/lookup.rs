//! Inputs of a stage that are read by the values of another, where a column that joins them says where its rows are.
//!
//!     SELECT … FROM users u JOIN orders o ON o.sku = u.nick WHERE u.email = $1
//!
//!     stage_1   SELECT u.nick, … FROM users u WHERE u.email = $1         (the shards that the index of email names)
//!     stage_2   SELECT o.sku, … FROM orders o WHERE o.sku = ANY ($2)     (those that the index of sku names for $2)
//!
//! Invariants:
//!   * A link is a condition that may go with its piece, so a row that it cannot be true of is of no use there.
//!   * The values of an input are all that the column can have in the stage, but for nulls, which equal nothing.

use super::place::{Place, offered_by};
use super::stage::place_of;
use super::walk::{ColumnRef, Visitor, walk};
use super::{Node, ShardsNode, Target};
use crate::builtins;
use crate::route::{hash_alike, plain_column};
use crate::tree::{Display, Expr, ExprKind, From, Quantifier, Query, RelId, SubqueryKind};
use crate::types;

/// An equality of a column of a piece and one of another.
pub(super) struct Link {
    own: Expr,
    /// The other column, and what it is in the condition.
    pub(super) other: ColumnRef,
    value: Expr,
}

/// The equalities that lead from these entries to others. `parts` may go with the entries.
pub(super) fn links(from: &[From], parts: &[Expr]) -> Vec<Link> {
    let rels = offered_by(from);
    let link = |part: &Expr| {
        let ExprKind::Call { display: Display::Operator(operator), args, .. } = &part.kind else { return None };
        let [left, right] = args.as_slice() else { return None };
        let ((a, _), (b, _)) = (plain_column(left)?, plain_column(right)?);
        let alike = operator == "=" && hash_alike(left.ty, right.ty);
        match (rels.contains(&a.0), rels.contains(&b.0)) {
            (true, false) if alike => Some(Link { own: left.clone(), other: b, value: right.clone() }),
            (false, true) if alike => Some(Link { own: right.clone(), other: a, value: left.clone() }),
            _ => None,
        }
    };
    parts.iter().filter_map(link).collect()
}

/// The column of `column IN (SELECT …)`, if the values of the query can be looked for.
pub(super) fn semi_join(part: &mut Expr) -> Option<(&Expr, &mut Query)> {
    let ExprKind::Subquery(subquery) = &mut part.kind else { return None };
    let SubqueryKind::In { left, negated: false, .. } = &subquery.kind else { return None };
    let ([own], [field]) = (left.as_slice(), subquery.query.columns.as_slice()) else { return None };
    let alike = plain_column(own).is_some() && hash_alike(own.ty, field.ty);
    alike.then_some((own, &mut subquery.query))
}

impl Link {
    /// From a column to the values of a query of one column, which is this relation.
    pub(super) fn to_query(own: Expr, rel: RelId, query: &Query) -> Option<Link> {
        let ty = query.columns.first()?.ty;
        Some(Link { own, other: (rel, 0), value: Expr::new(ExprKind::Column { rel, column: 0 }, ty) })
    }

    /// Whether it is from a column of these entries.
    pub(super) fn is_of(&self, from: &[From]) -> bool {
        plain_column(&self.own).is_some_and(|((rel, _), _)| offered_by(from).contains(&rel))
    }

    /// `own = ANY ($param)`.
    pub(super) fn condition(&self, param: usize) -> Option<Expr> {
        let (left, element) = (self.own.ty.oid, self.value.ty.oid);
        let array = types::array_of(element).filter(|array| types::carrier(*array).is_some())?;
        let mut operators = builtins::operators_named("=").iter();
        let operator = operators.find(|operator| operator.left == Some(left) && operator.right == element)?;
        let kind = ExprKind::OverArray {
            quantifier: Quantifier::Any,
            function: operator.function,
            operator: "=".into(),
            left: Box::new(self.own.clone()),
            array: Box::new(Expr::new(ExprKind::Param(param), array)),
        };
        Some(Expr::new(kind, types::BOOL))
    }

    /// Whether its values say where rows of the entries are.
    pub(super) fn leads(&self, from: &[From], parts: &[Expr]) -> bool {
        let Some(condition) = self.condition(0) else { return false };
        let with: Vec<Expr> = parts.iter().cloned().chain([condition]).collect();
        matches!(place_of(from, &with), Place::Spread(spread) if is_narrow(&spread.target()))
    }
}

/// Whether certain keys are asked for, rather than a range of them or all.
fn is_narrow(target: &Target) -> bool {
    match target {
        Target::Keys { .. } | Target::Nowhere => true,
        Target::Index(target) => target.any.iter().all(|probe| !probe.equal.is_empty()),
        _ => false,
    }
}

/// A plan that asks for certain keys, if this is one.
pub(super) fn led(node: Node) -> Option<Box<ShardsNode>> {
    match node {
        Node::Shards(node) if is_narrow(&node.target) => Some(node),
        _ => None,
    }
}

/// How much is likely to be read of entries, by what is known of them alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Extent {
    /// Rows of certain keys, or of one shard.
    Narrow,
    /// Those that meet a condition.
    Filtered,
    All,
}

pub(super) fn extent(from: &[From], parts: &[Expr]) -> Extent {
    match place_of(from, parts) {
        Place::Spread(spread) if !is_narrow(&spread.target()) && parts.is_empty() => Extent::All,
        Place::Spread(spread) if !is_narrow(&spread.target()) => Extent::Filtered,
        _ => Extent::Narrow,
    }
}

/// The number of a parameter that a query does not use.
pub(super) fn free_param(query: &Query) -> usize {
    let mut free = Free(0);
    free.query(query);
    free.0
}

struct Free(usize);

impl Visitor for Free {
    fn expr(&mut self, expr: &Expr) {
        if let ExprKind::Param(param) = expr.kind {
            self.0 = self.0.max(param + 1);
        }
        walk::expr(self, expr);
    }
}
