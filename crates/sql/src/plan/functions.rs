//! What planning must know of functions: whether they may be moved, repeated, or run by a shard at all.

use crate::builtins::{self, Volatility};
use crate::tree::{Expr, ExprKind, Query, Statement};
use crate::types::Oid;

use super::walk::{Visitor, walk};

/// `nextval`, `currval`, `setval` and `lastval`: a sequence's position is in the catalog, which no shard has.
const SEQUENCE_FUNCTIONS: [Oid; 5] = [Oid(1574), Oid(1575), Oid(1576), Oid(1765), Oid(2559)];

/// What is not known is taken for the worst.
fn volatility(function: Oid) -> Volatility {
    builtins::function(function).map_or(Volatility::Volatile, |known| known.volatility)
}

#[derive(Default)]
struct Found {
    volatile: bool,
    sequence: bool,
    /// Anything that has no value before rows are read.
    rows: bool,
    changeable: bool,
    subquery: bool,
}

impl Visitor for Found {
    fn expr(&mut self, expr: &Expr) {
        match &expr.kind {
            ExprKind::Call { function, .. } | ExprKind::OverArray { function, .. } => self.function(*function),
            ExprKind::Column { .. } | ExprKind::Hidden { .. } | ExprKind::Grouping(_) => self.rows = true,
            ExprKind::Aggregate(_) | ExprKind::Window(_) => self.rows = true,
            ExprKind::Subquery(_) => {
                self.rows = true;
                self.subquery = true;
            }
            _ => {}
        }
        walk::expr(self, expr);
    }
}

impl Found {
    fn function(&mut self, function: Oid) {
        let volatility = volatility(function);
        self.volatile |= volatility == Volatility::Volatile;
        self.changeable |= volatility != Volatility::Immutable;
        self.sequence |= SEQUENCE_FUNCTIONS.contains(&function);
    }

    fn in_expr(expr: &Expr) -> Found {
        let mut found = Found::default();
        found.expr(expr);
        found
    }
}

/// Whether an expression may give another value each time.
pub(crate) fn is_volatile(expr: &Expr) -> bool {
    Found::in_expr(expr).volatile
}

pub(crate) fn is_volatile_query(query: &Query) -> bool {
    let mut found = Found::default();
    found.query(query);
    found.volatile
}

pub(crate) fn is_volatile_statement(statement: &Statement) -> bool {
    let mut found = Found::default();
    walk::statement(&mut found, statement);
    found.volatile
}

/// Whether a query asks a sequence, which only the router can.
pub(crate) fn uses_sequence(query: &Query) -> bool {
    let mut found = Found::default();
    found.query(query);
    found.sequence
}

/// Whether an expression has a value before any row is read: of constants, parameters, what the session knows, and
/// functions that give the same for the same.
pub(crate) fn is_rowless(expr: &Expr) -> bool {
    let found = Found::in_expr(expr);
    !found.rows && !found.changeable
}

pub(crate) fn has_subquery(expr: &Expr) -> bool {
    Found::in_expr(expr).subquery
}

/// Whether an expression asks a sequence and reads no row.
pub(crate) fn is_sequence_alone(expr: &Expr) -> bool {
    let found = Found::in_expr(expr);
    found.sequence && !found.rows
}
