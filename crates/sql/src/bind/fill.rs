//! Values put back into the places of parameters, as binding would have had them: conversions of constants are done at
//! once, where those of parameters wait.

use super::coerce::{fitted, fold};
use super::input;
use crate::plan::walk::{Rewriter, rewrite};
use crate::text::Settings;
use crate::tree::{CastHow, Expr, ExprKind, Statement};
use crate::types::{self, Oid, Type};
use isles_kernel::value::Value;

/// The value of a literal in quotes that is asked to be of a type; None if it has none before the statement runs.
pub(crate) fn read_literal(text: &str, ty: Oid, settings: &Settings) -> Option<Value> {
    // How an interval is read, its modifier decides, which no parameter has.
    if matches!(ty, types::INTERVAL | types::UNKNOWN) {
        return None;
    }
    match input::literal(&Value::text(text), Type::of(ty), settings).ok()?.kind {
        ExprKind::Const(value) => Some(value),
        _ => None,
    }
}

/// Puts values in the places of the parameters.
pub(crate) fn put_back(statement: &mut Statement, values: &[Value]) {
    rewrite::statement(&mut Filler { values }, statement);
}

struct Filler<'a> {
    values: &'a [Value],
}

impl Rewriter for Filler<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        let converts = is_converted_param(expr);
        if let ExprKind::Param(at) = expr.kind
            && let Some(value) = self.values.get(at)
        {
            expr.kind = ExprKind::Const(value.clone());
        }
        rewrite::expr(self, expr);
        if converts {
            convert(expr);
        }
    }
}

/// Whether it is a conversion of a parameter, or of such a conversion.
fn is_converted_param(expr: &Expr) -> bool {
    match &expr.kind {
        ExprKind::Cast { arg, .. } => matches!(arg.kind, ExprKind::Param(_)) || is_converted_param(arg),
        _ => false,
    }
}

/// Does a conversion of a constant, if binding does it.
fn convert(expr: &mut Expr) {
    let ExprKind::Cast { arg, how } = &expr.kind else { return };
    let (arg, how, ty) = ((**arg).clone(), *how, expr.ty);
    if !matches!(arg.kind, ExprKind::Const(_)) {
        return;
    }
    *expr = match how {
        CastHow::Modifier { explicit } => fitted(arg, ty, explicit),
        how => Expr::new(fold(arg, how, ty.oid), ty),
    };
}
