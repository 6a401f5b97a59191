//! Literals to values.
//!
//! A literal is converted when its type is known, which is at binding for nearly all: so a wrong one is an error before
//! anything is executed, as with PostgreSQL. What depends on more than the session's settings stays a conversion from
//! text, to be computed when the statement is executed: names of relations (`'t'::regclass`), and the moment (`'now'`),
//! since a bound statement may be kept and executed again.

use super::Result;
use crate::text::{self, Settings};
use crate::tree::{CastHow, Expr, ExprKind};
use crate::types::{self, Oid, Type};
use isles_kernel::value::Value;

/// The constant that a literal of unknown type becomes when it is asked to be of type `ty`, whose modifier matters to
/// intervals alone.
pub(super) fn literal(value: &Value, ty: Type, settings: &Settings) -> Result<Expr> {
    let Value::Text(text) = value else {
        return Ok(Expr::new(ExprKind::Const(Value::Null), ty.oid));
    };
    if is_name(ty.oid, text) || is_moment(ty.oid, text) || types::carrier(ty.oid).is_none() {
        let arg = Box::new(Expr::new(ExprKind::Const(Value::Text(text.clone())), types::TEXT));
        return Ok(Expr::new(ExprKind::Cast { arg, how: CastHow::InOut }, of_literal(ty)));
    }
    let value = text::input(text, ty, settings)?;
    Ok(Expr::new(ExprKind::Const(value), of_literal(ty)))
}

/// An interval's fields decide how it is read, so a literal has them from the beginning.
fn of_literal(ty: Type) -> Type {
    if ty.oid == types::INTERVAL { ty } else { Type::of(ty.oid) }
}

fn is_name(oid: Oid, text: &str) -> bool {
    let registered = matches!(
        oid,
        types::REGCLASS
            | types::REGPROC
            | types::REGPROCEDURE
            | types::REGOPER
            | types::REGOPERATOR
            | types::REGTYPE
            | types::REGNAMESPACE
            | types::REGROLE
    );
    registered && !text.trim().bytes().all(|byte| byte.is_ascii_digit())
}

fn is_moment(oid: Oid, text: &str) -> bool {
    let temporal = matches!(oid, types::DATE | types::TIME | types::TIMESTAMP | types::TIMESTAMPTZ);
    let lower = text.to_ascii_lowercase();
    temporal && ["now", "today", "tomorrow", "yesterday"].iter().any(|word| lower.contains(word))
}
