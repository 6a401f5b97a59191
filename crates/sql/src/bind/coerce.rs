//! Conversions: which there are, which is chosen, and which type several expressions have in common.
//!
//! The rules are those of PostgreSQL's `parse_coerce.c`.

use super::{Binder, Result, input};
use crate::builtins::{self, CastContext, CastMethod, TypeKind};
use crate::tree::{CastHow, Expr, ExprKind};
use crate::types::{self, Oid, Type};
use isles_kernel::error::SqlError;
use isles_kernel::value::{Numeric, Value};

/// How a type is brought to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pathway {
    Relabel,
    Function(Oid),
    /// Each element by the function.
    Elements(Oid),
    InOut,
}

pub(super) fn category(oid: Oid) -> u8 {
    builtins::type_by_oid(oid).map_or(b'X', |info| info.category)
}

pub(super) fn is_preferred(category_wanted: u8, oid: Oid) -> bool {
    builtins::type_by_oid(oid).is_some_and(|info| info.category == category_wanted && info.preferred)
}

/// `find_coercion_pathway`.
pub(super) fn pathway(from: Oid, to: Oid, context: CastContext) -> Option<Pathway> {
    if from == to {
        return Some(Pathway::Relabel);
    }
    if let Some(cast) = builtins::cast(from, to) {
        return (context >= cast.context).then_some(match cast.method {
            CastMethod::Binary => Pathway::Relabel,
            CastMethod::Function(oid) => Pathway::Function(oid),
            CastMethod::InOut => Pathway::InOut,
        });
    }
    array_pathway(from, to, context).or_else(|| text_pathway(from, to, context))
}

fn array_pathway(from: Oid, to: Oid, context: CastContext) -> Option<Pathway> {
    if matches!(to, types::OIDVECTOR | types::INT2VECTOR) {
        return None;
    }
    let (from, to) = (builtins::element_of(from)?, builtins::element_of(to)?);
    Some(match pathway(from, to, context)? {
        Pathway::Relabel => Pathway::Relabel,
        Pathway::Function(oid) | Pathway::Elements(oid) => Pathway::Elements(oid),
        Pathway::InOut => Pathway::InOut,
    })
}

/// Anything is assigned to a string through its text form, and explicitly made from one.
fn text_pathway(from: Oid, to: Oid, context: CastContext) -> Option<Pathway> {
    let assigns = context >= CastContext::Assignment && category(to) == b'S';
    let parses = context >= CastContext::Explicit && category(from) == b'S';
    let pseudo = |oid| builtins::type_by_oid(oid).is_none_or(|info| info.kind == TypeKind::Pseudo);
    let allowed = |oid: Oid| !pseudo(oid) || oid == types::RECORD;
    ((assigns || parses) && allowed(from) && allowed(to)).then_some(Pathway::InOut)
}

pub(super) fn can_coerce(from: Oid, to: Oid, context: CastContext) -> bool {
    from == to
        || to == types::ANY
        || builtins::is_polymorphic(to)
        || from == types::UNKNOWN && to != types::VOID
        || pathway(from, to, context).is_some()
}

/// Whether every type can be given for the parameter beside it, polymorphic ones together.
pub(super) fn can_coerce_all(from: &[Oid], to: &[Oid], context: CastContext) -> bool {
    from.iter().zip(to).all(|(from, to)| can_coerce(*from, *to, context)) && super::resolve::generics_agree(from, to)
}

/// The common type of several: `select_common_type`. `None` if there is none.
pub(super) fn common_type(all: &[Oid]) -> std::result::Result<Oid, (Oid, Oid)> {
    let mut best = all.first().copied().unwrap_or(types::TEXT);
    for next in all.iter().copied().skip(1).filter(|next| *next != types::UNKNOWN) {
        if next == best {
            continue;
        }
        if best == types::UNKNOWN {
            best = next;
        } else if category(best) != category(next) {
            return Err((best, next));
        } else if !is_preferred(category(best), best)
            && can_coerce(best, next, CastContext::Implicit)
            && !can_coerce(next, best, CastContext::Implicit)
        {
            best = next;
        }
    }
    Ok(if best == types::UNKNOWN { types::TEXT } else { best })
}

/// The modifier that all have, or none.
pub(super) fn common_modifier(all: &[Expr], oid: Oid) -> i32 {
    match all.split_first() {
        Some((first, rest)) if first.ty.oid == oid && rest.iter().all(|e| e.ty == first.ty) => first.ty.modifier,
        _ => -1,
    }
}

/// The type that two sides of an assignment or cast have, in the words of an error.
fn cannot_cast(from: Oid, to: Oid) -> SqlError {
    let message = format!("cannot cast type {} to {}", builtins::type_name(from), builtins::type_name(to));
    SqlError::new("42846", message)
}

impl Binder<'_> {
    /// Brings an expression to a type for which [`can_coerce`] holds; the modifier is not applied.
    pub(super) fn coerce(&mut self, expr: Expr, to: Oid, context: CastContext) -> Result<Expr> {
        let from = expr.ty.oid;
        if from == to || to == types::ANY || builtins::is_polymorphic(to) {
            return Ok(expr);
        }
        if from == types::UNKNOWN {
            return self.coerce_unknown(expr, Type::of(to));
        }
        // There and back again is nothing.
        if let ExprKind::Cast { arg, how: CastHow::Relabel } = &expr.kind
            && arg.ty.oid == to
        {
            return Ok((**arg).clone());
        }
        let how = match pathway(from, to, context) {
            None => return Err(cannot_cast(from, to)),
            Some(Pathway::Relabel) => CastHow::Relabel,
            Some(Pathway::Function(oid) | Pathway::Elements(oid)) => CastHow::Function(oid),
            Some(Pathway::InOut) => CastHow::InOut,
        };
        // A modifier means something else in each type, so none is kept.
        Ok(Expr::new(fold(expr, how, to), Type::of(to)))
    }

    fn coerce_unknown(&mut self, expr: Expr, to: Type) -> Result<Expr> {
        match expr.kind {
            ExprKind::Const(value) => input::literal(&value, to, self.context.settings),
            ExprKind::Param(at) => self.decide_param(at, to.oid),
            kind => {
                let arg = Box::new(Expr::new(kind, types::TEXT));
                Ok(Expr::new(ExprKind::Cast { arg, how: CastHow::InOut }, to.oid))
            }
        }
    }

    /// The first use of a parameter decides its type.
    fn decide_param(&mut self, at: usize, to: Oid) -> Result<Expr> {
        match self.params[at] {
            types::UNKNOWN => self.params[at] = to,
            known if known == to => {}
            known => {
                let message = format!("inconsistent types deduced for parameter ${}", at + 1);
                let detail = format!("{} versus {}", builtins::type_name(known), builtins::type_name(to));
                return Err(SqlError::new("42P08", message).with_detail(detail));
            }
        }
        Ok(Expr::new(ExprKind::Param(at), to))
    }

    /// Applies a modifier to an expression of its type already: to a constant at once, if it fits. One that does not is
    /// an error when it is executed, as with PostgreSQL.
    pub(super) fn apply_modifier(&self, expr: Expr, to: Type, context: CastContext) -> Expr {
        if to.modifier < 0 || expr.ty.modifier == to.modifier || !has_modifier(to.oid) {
            return expr;
        }
        fitted(expr, to, context == CastContext::Explicit)
    }

    /// Brings an expression to a type and modifier; None where there is no such conversion.
    pub(super) fn coerce_to_target(&mut self, expr: Expr, to: Type, context: CastContext) -> Result<Option<Expr>> {
        if !can_coerce(expr.ty.oid, to.oid, context) {
            return Ok(None);
        }
        let expr = match expr.ty.oid {
            types::UNKNOWN if to.oid != types::UNKNOWN => self.coerce_unknown(expr, to)?,
            _ => self.coerce(expr, to.oid, context)?,
        };
        Ok(Some(self.apply_modifier(expr, to, context)))
    }

    /// An explicit cast.
    pub(super) fn cast(&mut self, expr: Expr, to: Type, location: i32) -> Result<Expr> {
        let from = expr.ty.oid;
        if from == types::RECORD && to.oid != types::RECORD {
            return self.refuse(format!("a cast from record to {}", builtins::type_name(to.oid)), location);
        }
        match self.coerce_to_target(expr, to, CastContext::Explicit) {
            Ok(Some(expr)) => Ok(expr),
            Ok(None) => Err(self.at(cannot_cast(from, to.oid), location)),
            Err(error) => Err(self.at(error, location)),
        }
    }

    /// Brings all to the type they have in common. `what` names the construct in an error.
    pub(super) fn unify(&mut self, all: Vec<Expr>, what: &str, location: i32) -> Result<(Vec<Expr>, Type)> {
        let oids: Vec<Oid> = all.iter().map(|expr| expr.ty.oid).collect();
        let oid = match common_type(&oids) {
            Ok(oid) => oid,
            Err((a, b)) => {
                let (a, b) = (builtins::type_name(a), builtins::type_name(b));
                return self.fail("42804", format!("{what} types {a} and {b} cannot be matched"), location);
            }
        };
        let modifier = common_modifier(&all, oid);
        let mut unified = Vec::with_capacity(all.len());
        for expr in all {
            unified.push(self.coerce_to_common(expr, oid, what, location)?);
        }
        Ok((unified, Type::with(oid, modifier)))
    }

    pub(super) fn coerce_to_common(&mut self, expr: Expr, to: Oid, what: &str, location: i32) -> Result<Expr> {
        if !can_coerce(expr.ty.oid, to, CastContext::Implicit) {
            let (from, to) = (builtins::type_name(expr.ty.oid), builtins::type_name(to));
            return self.fail("42846", format!("{what} could not convert type {from} to {to}"), location);
        }
        self.coerce(expr, to, CastContext::Implicit).map_err(|error| self.at(error, location))
    }

    pub(super) fn coerce_to_boolean(&mut self, expr: Expr, what: &str, location: i32) -> Result<Expr> {
        self.coerce_to_specific(expr, types::BOOL, what, location)
    }

    pub(super) fn coerce_to_specific(&mut self, expr: Expr, to: Oid, what: &str, location: i32) -> Result<Expr> {
        let from = expr.ty.oid;
        if !can_coerce(from, to, CastContext::Assignment) {
            let (to, from) = (builtins::type_name(to), builtins::type_name(from));
            return self.fail("42804", format!("argument of {what} must be type {to}, not type {from}"), location);
        }
        self.coerce(expr, to, CastContext::Assignment).map_err(|error| self.at(error, location))
    }

    /// What nobody has asked to be anything is text.
    pub(super) fn resolve_unknown(&mut self, expr: Expr) -> Result<Expr> {
        match expr.ty.oid {
            types::UNKNOWN => self.coerce_unknown(expr, Type::of(types::TEXT)),
            _ => Ok(expr),
        }
    }
}

/// An expression with a modifier: a constant that fits has it at once.
pub(super) fn fitted(expr: Expr, to: Type, explicit: bool) -> Expr {
    if let ExprKind::Const(value) = &expr.kind
        && let Ok(fitted) = crate::text::apply_modifier(value.clone(), to, explicit)
    {
        return Expr::new(ExprKind::Const(fitted), to);
    }
    let how = CastHow::Modifier { explicit };
    Expr::new(ExprKind::Cast { arg: Box::new(expr), how }, to)
}

/// Conversions of constants that cannot fail are done at once, so that routing sees a constant: a null is null in every
/// type, a relabelled value stays what it is, and an integer fits into what is wider.
pub(super) fn fold(expr: Expr, how: CastHow, to: Oid) -> ExprKind {
    let from = expr.ty.oid;
    match (&expr.kind, how) {
        (ExprKind::Const(Value::Null), _) => expr.kind,
        (ExprKind::Const(Value::Text(_)), CastHow::Relabel) if category(from) == b'S' && category(to) == b'S' => {
            expr.kind
        }
        (ExprKind::Const(Value::Int(n)), CastHow::Function(_))
            if matches!(from, types::INT2 | types::INT4 | types::INT8) =>
        {
            match to {
                types::INT8 => expr.kind,
                types::INT4 if from == types::INT2 => expr.kind,
                types::NUMERIC => match Numeric::parse(&n.to_string()) {
                    Ok(numeric) => ExprKind::Const(Value::Numeric(numeric)),
                    Err(_) => ExprKind::Cast { arg: Box::new(expr), how },
                },
                _ => ExprKind::Cast { arg: Box::new(expr), how },
            }
        }
        _ => ExprKind::Cast { arg: Box::new(expr), how },
    }
}

fn has_modifier(oid: Oid) -> bool {
    let oid = builtins::element_of(oid).unwrap_or(oid);
    matches!(
        oid,
        types::BPCHAR
            | types::VARCHAR
            | types::NUMERIC
            | types::TIME
            | types::TIMETZ
            | types::TIMESTAMP
            | types::TIMESTAMPTZ
            | types::INTERVAL
            | types::BIT
            | types::VARBIT
    )
}
