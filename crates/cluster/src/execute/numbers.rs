//! `nextval` and its kin, computed by the router: no shard has the numbers.
//!
//! Before an expression is computed, each of its calls of a sequence function is replaced by the number it gives, in
//! the order in which they stand.

use super::evaluate;
use super::inputs::Inputs;
use super::run::{Boxed, Sources};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::bind::ROW_ID;
use isles_sql::plan::Fragment;
use isles_sql::tree::{Body, CastHow, Expr, ExprKind, Statement};
use isles_sql::types::Oid;

const NEXTVAL: Oid = Oid(1574);
const CURRVAL: Oid = Oid(1575);
const SETVAL: Oid = Oid(1576);
const SETVAL_CALLED: Oid = Oid(1765);
const LASTVAL: Oid = Oid(2559);

fn is_sequence_call(expr: &Expr) -> bool {
    matches!(&expr.kind, ExprKind::Call { function, .. }
        if [NEXTVAL, CURRVAL, SETVAL, SETVAL_CALLED, LASTVAL, ROW_ID].contains(function))
}

/// The parts of an expression that are computed whenever it is, or some of them.
pub(crate) fn children(expr: &mut Expr) -> Vec<&mut Expr> {
    match &mut expr.kind {
        ExprKind::Call { args, .. }
        | ExprKind::And(args)
        | ExprKind::Or(args)
        | ExprKind::Coalesce(args)
        | ExprKind::Array(args)
        | ExprKind::Row(args)
        | ExprKind::Extreme { args, .. } => args.iter_mut().collect(),
        ExprKind::Cast { arg, .. }
        | ExprKind::Not(arg)
        | ExprKind::IsNull { arg, .. }
        | ExprKind::IsBool { arg, .. } => {
            vec![arg]
        }
        ExprKind::IsDistinct { left, right, .. } | ExprKind::NullIf { left, right, .. } => vec![left, right],
        ExprKind::InList { arg, list, .. } => std::iter::once(&mut **arg).chain(list).collect(),
        ExprKind::OverArray { left, array, .. } => vec![left, array],
        ExprKind::Subscript { array, index } => std::iter::once(&mut **array).chain(index).collect(),
        ExprKind::Case { arms, otherwise } => {
            let arms = arms.iter_mut().flat_map(|(when, then)| [when, then]);
            arms.chain(otherwise.as_deref_mut()).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether there is a sequence call in it.
fn has_call(expr: &mut Expr) -> bool {
    is_sequence_call(expr) || children(expr).into_iter().any(has_call)
}

/// The expression with numbers in the place of its sequence calls; None if it has none.
pub(crate) async fn numbered(expr: &Expr, sources: &dyn Sources, inputs: Inputs<'_>) -> Result<Option<Expr>, SqlError> {
    if matches!(expr.kind, ExprKind::Const(_) | ExprKind::Param(_) | ExprKind::Context(_)) {
        return Ok(None);
    }
    // A cast of what a client has given, as most values that are not of their column's type are.
    if let ExprKind::Cast { arg, .. } = &expr.kind
        && matches!(arg.kind, ExprKind::Const(_) | ExprKind::Param(_))
    {
        return Ok(None);
    }
    let mut expr = expr.clone();
    if !has_call(&mut expr) {
        return Ok(None);
    }
    replace(&mut expr, sources, inputs).await?;
    Ok(Some(expr))
}

fn replace<'a>(expr: &'a mut Expr, sources: &'a dyn Sources, inputs: Inputs<'a>) -> Boxed<'a, Result<(), SqlError>> {
    Box::pin(async move {
        if matches!(expr.kind, ExprKind::Case { .. } | ExprKind::Coalesce(_)) && has_call(expr) {
            return Err(SqlError::unsupported("a sequence cannot be used in CASE or COALESCE"));
        }
        for child in children(expr) {
            replace(child, sources, inputs).await?;
        }
        if is_sequence_call(expr) {
            let value = call(expr, sources, inputs).await?;
            expr.kind = ExprKind::Const(Value::Int(value));
        }
        Ok(())
    })
}

async fn call(expr: &Expr, sources: &dyn Sources, inputs: Inputs<'_>) -> Result<i64, SqlError> {
    let ExprKind::Call { function, args, .. } = &expr.kind else { return Err(SqlError::new("XX000", "no call")) };
    let number = |at: usize| match args.get(at).map(|arg| evaluate::value(arg, inputs)) {
        Some(Ok(Value::Int(value))) => Ok(value),
        Some(Err(error)) => Err(error),
        _ => Err(SqlError::unsupported("a sequence function with a null argument")),
    };
    match *function {
        LASTVAL => sources.last_value(),
        ROW_ID => Ok(sources.row_id()),
        NEXTVAL => sources.next_value(&name(&args[0], sources, inputs)?).await,
        CURRVAL => sources.current_value(&name(&args[0], sources, inputs)?),
        SETVAL => sources.set_value(&name(&args[0], sources, inputs)?, number(1)?, true).await,
        _ => {
            let called = evaluate::value(&args[2], inputs)? == Value::Bool(true);
            sources.set_value(&name(&args[0], sources, inputs)?, number(1)?, called).await
        }
    }
}

/// The sequence that an argument of type `regclass` means, by the one text for it.
fn name(arg: &Expr, sources: &dyn Sources, inputs: Inputs<'_>) -> Result<String, SqlError> {
    let unknown = || SqlError::new("42P01", "the sequence does not exist");
    match &arg.kind {
        // The name before it has become a number.
        ExprKind::Cast { arg, how: CastHow::InOut | CastHow::Function(_) } => match evaluate::value(arg, inputs)? {
            Value::Text(text) => sources.find_sequence(&text),
            Value::Int(oid) => sources.sequence_name(oid).ok_or_else(unknown),
            _ => Err(unknown()),
        },
        // The binder has found it, if it was a constant.
        _ => match evaluate::value(arg, inputs)? {
            Value::Text(name) => Ok(name),
            Value::Int(oid) => sources.sequence_name(oid).ok_or_else(unknown),
            _ => Err(unknown()),
        },
    }
}

/// A query without tables (`SELECT nextval('s')`) with numbers in the place of its calls; None if it has none.
pub(crate) async fn numbered_query(
    fragment: &Fragment,
    sources: &dyn Sources,
    inputs: Inputs<'_>,
) -> Result<Option<Fragment>, SqlError> {
    let Statement::Query(query) = &fragment.statement else { return Ok(None) };
    let Body::Select(select) = &query.body else { return Ok(None) };
    let mut targets = select.targets.clone();
    if !targets.iter_mut().any(has_call) {
        return Ok(None);
    }
    if !select.from.is_empty() {
        return Err(SqlError::unsupported("a sequence cannot be used in a query over tables"));
    }
    for target in &mut targets {
        replace(target, sources, inputs).await?;
    }
    let mut query = query.clone();
    if let Body::Select(select) = &mut query.body {
        select.targets = targets;
    }
    Ok(Some(Fragment::new(Statement::Query(query), fragment.fields.clone())))
}
