//! Evaluates an expression that needs no relation: constants, parameters, calls of them.
//!
//! The router evaluates what it must know before it can send a statement anywhere: the value of a shard key, a LIMIT, a
//! row of VALUES. An expression that needs rows (a column, a subquery, an aggregate) or a function that is not computed
//! here is not an error: [`EvalError::NeedsStage`] says that the executor must run it where there is an engine.
//!
//! What PostgreSQL leaves out is left out: the arms of a CASE after the first that holds, the arguments of COALESCE
//! after the first that is not null, the rest of an AND after the first false.

use crate::builtins;
use crate::plan::walk::{Visitor, walk};
use crate::runtime::{self, Env, compare};
use crate::tree::{CastHow, Context, Expr, ExprKind, Quantifier};
use crate::types::{self, Oid, Type};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;

#[derive(Debug, Clone, PartialEq)]
pub enum EvalError {
    /// The expression cannot be evaluated here, and can be by an engine.
    NeedsStage,
    Sql(SqlError),
}

impl From<SqlError> for EvalError {
    fn from(error: SqlError) -> EvalError {
        EvalError::Sql(error)
    }
}

type Result<T> = std::result::Result<T, EvalError>;

/// What the caller knows.
pub trait Given {
    /// The value of parameter `$n`, counted from 0.
    fn param(&self, index: usize) -> Option<Value>;

    /// What the session knows; none if it must be asked elsewhere.
    fn context(&self, context: &Context, ty: Type) -> Option<Value>;
}

/// Evaluates an expression.
pub fn eval(expr: &Expr, env: &mut Env<'_>, given: &dyn Given) -> Result<Value> {
    Evaluator { env, given }.eval(expr)
}

/// Whether an expression can be evaluated here, whatever its parameters are: it never is [`EvalError::NeedsStage`].
pub fn can_eval(expr: &Expr) -> bool {
    let mut known = Known(true);
    known.expr(expr);
    known.0
}

/// Whether all of an expression is known to [`Evaluator`].
struct Known(bool);

impl Visitor for Known {
    fn expr(&mut self, expr: &Expr) {
        let computed = |function: Oid| runtime::scalar(function).is_some();
        self.0 &= match &expr.kind {
            ExprKind::Call { function, .. } | ExprKind::OverArray { function, .. } => computed(*function),
            ExprKind::IsDistinct { equal, .. } | ExprKind::NullIf { equal, .. } | ExprKind::InList { equal, .. } => {
                computed(*equal)
            }
            ExprKind::Cast { arg, .. } if types::names_object(arg.ty.oid) || types::names_object(expr.ty.oid) => false,
            ExprKind::Cast { how: CastHow::Function(function), .. } => runtime::can_cast(*function),
            ExprKind::Cast { .. } | ExprKind::Const(_) | ExprKind::Param(_) => true,
            ExprKind::And(_) | ExprKind::Or(_) | ExprKind::Not(_) => true,
            ExprKind::IsNull { .. } | ExprKind::IsBool { .. } | ExprKind::Case { .. } => true,
            ExprKind::Coalesce(_) | ExprKind::Extreme { .. } => true,
            ExprKind::Array(_) | ExprKind::Subscript { .. } | ExprKind::Slice { .. } => true,
            _ => false,
        };
        walk::expr(self, expr);
    }
}

struct Evaluator<'a, 'b> {
    env: &'a mut Env<'b>,
    given: &'a dyn Given,
}

/// Whether PostgreSQL answers null for a null argument without calling the function.
fn is_strict(function: Oid) -> bool {
    builtins::function(function).is_some_and(|function| function.strict)
}

fn truth(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(b) => Some(*b),
        _ => None,
    }
}

fn from_truth(truth: Option<bool>) -> Value {
    truth.map_or(Value::Null, Value::Bool)
}

impl Evaluator<'_, '_> {
    fn eval(&mut self, expr: &Expr) -> Result<Value> {
        match &expr.kind {
            ExprKind::Const(value) => Ok(value.clone()),
            ExprKind::Param(index) => self.given.param(*index).ok_or(EvalError::NeedsStage),
            ExprKind::Context(context) => self.given.context(context, expr.ty).ok_or(EvalError::NeedsStage),
            ExprKind::Call { function, args, .. } => self.call_of(*function, args),
            // Which object a number or a name stands for is known to whoever has the schema.
            ExprKind::Cast { arg, .. } if types::names_object(arg.ty.oid) || types::names_object(expr.ty.oid) => {
                Err(EvalError::NeedsStage)
            }
            ExprKind::Cast { arg, how } => {
                let value = self.eval(arg)?;
                Ok(runtime::cast(self.env, value, arg.ty, expr.ty, *how)?)
            }
            ExprKind::And(parts) => self.all_or_any(parts, false),
            ExprKind::Or(parts) => self.all_or_any(parts, true),
            ExprKind::Not(arg) => Ok(from_truth(truth(&self.eval(arg)?).map(|b| !b))),
            ExprKind::IsNull { arg, negated } => Ok(Value::Bool(self.eval(arg)?.is_null() != *negated)),
            ExprKind::IsBool { arg, value, negated } => {
                Ok(Value::Bool((truth(&self.eval(arg)?) == *value) != *negated))
            }
            ExprKind::IsDistinct { left, right, equal, negated } => {
                let same = self.same(left, right, *equal)?;
                Ok(Value::Bool(same == *negated))
            }
            ExprKind::Case { arms, otherwise } => self.case(arms, otherwise.as_deref()),
            ExprKind::Coalesce(args) => self.coalesce(args),
            ExprKind::Extreme { greatest, args } => self.extreme(*greatest, args),
            ExprKind::NullIf { left, right, equal } => self.null_if(left, right, *equal),
            ExprKind::InList { arg, list, equal, negated } => self.in_list(arg, list, *equal, *negated),
            ExprKind::OverArray { quantifier, function, left, array, .. } => {
                self.over_array(*quantifier, *function, left, array)
            }
            ExprKind::Array(members) => {
                members.iter().map(|member| self.eval(member)).collect::<Result<_>>().map(Value::Array)
            }
            ExprKind::Subscript { array, index } => self.subscript(array, index),
            ExprKind::Slice { array, from, to } => self.slice(array, from.as_deref(), to.as_deref()),
            _ => Err(EvalError::NeedsStage),
        }
    }

    fn call_of(&mut self, function: Oid, args: &[Expr]) -> Result<Value> {
        let types: Vec<Oid> = args.iter().map(|arg| arg.ty.oid).collect();
        let values = args.iter().map(|arg| self.eval(arg)).collect::<Result<Vec<_>>>()?;
        self.call(function, &values, &types)
    }

    fn call(&mut self, function: Oid, args: &[Value], types: &[Oid]) -> Result<Value> {
        let scalar = runtime::scalar(function).ok_or(EvalError::NeedsStage)?;
        if is_strict(function) && args.iter().any(Value::is_null) {
            return Ok(Value::Null);
        }
        Ok((scalar.call)(self.env, args, types)?)
    }

    /// `decisive` is the truth that ends it: false for AND, true for OR.
    fn all_or_any(&mut self, parts: &[Expr], decisive: bool) -> Result<Value> {
        let mut unknown = false;
        for part in parts {
            match truth(&self.eval(part)?) {
                Some(b) if b == decisive => return Ok(Value::Bool(decisive)),
                Some(_) => {}
                None => unknown = true,
            }
        }
        Ok(if unknown { Value::Null } else { Value::Bool(!decisive) })
    }

    fn equal(&mut self, equal: Oid, left: (&Value, Type), right: (&Value, Type)) -> Result<Option<bool>> {
        if left.0.is_null() || right.0.is_null() {
            return Ok(None);
        }
        let answer = self.call(equal, &[left.0.clone(), right.0.clone()], &[left.1.oid, right.1.oid])?;
        Ok(truth(&answer))
    }

    /// Equal, where null equals null.
    fn same(&mut self, left: &Expr, right: &Expr, equal: Oid) -> Result<bool> {
        let (a, b) = (self.eval(left)?, self.eval(right)?);
        match (a.is_null(), b.is_null()) {
            (false, false) => Ok(self.equal(equal, (&a, left.ty), (&b, right.ty))? == Some(true)),
            (a, b) => Ok(a && b),
        }
    }

    fn case(&mut self, arms: &[(Expr, Expr)], otherwise: Option<&Expr>) -> Result<Value> {
        for (condition, result) in arms {
            if truth(&self.eval(condition)?) == Some(true) {
                return self.eval(result);
            }
        }
        otherwise.map_or(Ok(Value::Null), |expr| self.eval(expr))
    }

    fn coalesce(&mut self, args: &[Expr]) -> Result<Value> {
        for arg in args {
            let value = self.eval(arg)?;
            if !value.is_null() {
                return Ok(value);
            }
        }
        Ok(Value::Null)
    }

    fn extreme(&mut self, greatest: bool, args: &[Expr]) -> Result<Value> {
        let mut best = Value::Null;
        for arg in args {
            let value = self.eval(arg)?;
            if value.is_null() {
                continue;
            }
            let better = match best.is_null() {
                true => true,
                false => {
                    let order = compare(&value, &best, arg.ty.oid)?;
                    if greatest { order.is_gt() } else { order.is_lt() }
                }
            };
            if better {
                best = value;
            }
        }
        Ok(best)
    }

    fn null_if(&mut self, left: &Expr, right: &Expr, equal: Oid) -> Result<Value> {
        let (a, b) = (self.eval(left)?, self.eval(right)?);
        let same = self.equal(equal, (&a, left.ty), (&b, right.ty))? == Some(true);
        Ok(if same { Value::Null } else { a })
    }

    fn in_list(&mut self, arg: &Expr, list: &[Expr], equal: Oid, negated: bool) -> Result<Value> {
        let value = self.eval(arg)?;
        let mut unknown = false;
        for member in list {
            let candidate = self.eval(member)?;
            match self.equal(equal, (&value, arg.ty), (&candidate, member.ty))? {
                Some(true) => return Ok(Value::Bool(!negated)),
                Some(false) => {}
                None => unknown = true,
            }
        }
        Ok(if unknown { Value::Null } else { Value::Bool(negated) })
    }

    fn over_array(&mut self, quantifier: Quantifier, function: Oid, left: &Expr, array: &Expr) -> Result<Value> {
        let (value, list) = (self.eval(left)?, self.eval(array)?);
        let Value::Array(members) = list else { return Ok(Value::Null) };
        let element = crate::types::element_of(array.ty.oid).unwrap_or(array.ty.oid);
        let decisive = quantifier == Quantifier::Any;
        let mut unknown = false;
        for member in members {
            match truth(&self.call(function, &[value.clone(), member], &[left.ty.oid, element])?) {
                Some(b) if b == decisive => return Ok(Value::Bool(decisive)),
                Some(_) => {}
                None => unknown = true,
            }
        }
        Ok(if unknown { Value::Null } else { Value::Bool(!decisive) })
    }

    /// An index outside of the array, or of another dimension, is null.
    fn subscript(&mut self, array: &Expr, index: &[Expr]) -> Result<Value> {
        let list = self.eval(array)?;
        let indexes = index.iter().map(|index| self.eval(index)).collect::<Result<Vec<_>>>()?;
        let (Value::Array(members), [Value::Int(index)]) = (list, &indexes[..]) else { return Ok(Value::Null) };
        let found = index.checked_sub(1).and_then(|at| usize::try_from(at).ok()).and_then(|at| members.get(at));
        Ok(found.cloned().unwrap_or(Value::Null))
    }

    fn slice(&mut self, array: &Expr, from: Option<&Expr>, to: Option<&Expr>) -> Result<Value> {
        let list = self.eval(array)?;
        let from = from.map_or(Ok(Value::Int(1)), |expr| self.eval(expr))?;
        let to = to.map_or(Ok(Value::Int(i64::MAX)), |expr| self.eval(expr))?;
        let (Value::Array(members), Value::Int(from), Value::Int(to)) = (list, from, to) else {
            return Ok(Value::Null);
        };
        let start = from.max(1) - 1;
        let wanted = usize::try_from(to.saturating_sub(start)).unwrap_or(0);
        Ok(Value::Array(members.into_iter().skip(start as usize).take(wanted).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Settings;
    use crate::tree::Display;
    use crate::types::{BOOL, INT4};

    struct Nothing;

    impl Given for Nothing {
        fn param(&self, index: usize) -> Option<Value> {
            Some(Value::Int(index as i64))
        }

        fn context(&self, _: &Context, _: Type) -> Option<Value> {
            None
        }
    }

    fn run(kind: ExprKind) -> Result<Value> {
        let settings = Settings::default();
        let (mut clock, mut random) = (|| 0, || 0);
        let mut env = Env { settings: &settings, clock: &mut clock, random: &mut random };
        eval(&Expr::new(kind, INT4), &mut env, &Nothing)
    }

    fn int(n: i64) -> Expr {
        Expr::new(ExprKind::Const(Value::Int(n)), INT4)
    }

    fn truth(value: Option<bool>) -> Expr {
        Expr::new(ExprKind::Const(from_truth(value)), BOOL)
    }

    fn divide(a: i64, b: i64) -> Expr {
        let display = Display::Operator("/".into());
        Expr::new(ExprKind::Call { function: Oid(154), display, args: vec![int(a), int(b)] }, INT4)
    }

    #[test]
    fn three_valued_logic_ends_at_the_first_decision() {
        let broken = || Expr::new(ExprKind::IsNull { arg: Box::new(divide(1, 0)), negated: false }, BOOL);
        assert_eq!(run(ExprKind::And(vec![truth(None), truth(Some(true))])), Ok(Value::Null));
        assert_eq!(run(ExprKind::And(vec![truth(Some(false)), broken()])), Ok(Value::Bool(false)));
        assert_eq!(run(ExprKind::Or(vec![truth(Some(true)), broken()])), Ok(Value::Bool(true)));
        assert_eq!(run(ExprKind::Or(vec![truth(None), truth(Some(false))])), Ok(Value::Null));
        assert!(matches!(run(broken().kind), Err(EvalError::Sql(error)) if error.sqlstate == "22012"));
    }

    #[test]
    fn a_case_evaluates_only_the_arm_that_holds() {
        let arms = vec![(truth(Some(true)), int(1)), (truth(Some(true)), divide(1, 0))];
        assert_eq!(run(ExprKind::Case { arms, otherwise: None }), Ok(Value::Int(1)));
        assert_eq!(run(ExprKind::Coalesce(vec![int(2), divide(1, 0)])), Ok(Value::Int(2)));
    }

    #[test]
    fn a_list_with_a_null_is_unknown_where_nothing_is_found() {
        let null = Expr::new(ExprKind::Const(Value::Null), INT4);
        let list = |arg: i64| ExprKind::InList {
            arg: Box::new(int(arg)),
            list: vec![int(1), null.clone()],
            equal: Oid(65),
            negated: false,
        };
        assert_eq!(run(list(1)), Ok(Value::Bool(true)));
        assert_eq!(run(list(2)), Ok(Value::Null));
    }

    #[test]
    fn what_needs_rows_is_no_error() {
        assert_eq!(run(ExprKind::Grouping(vec![])), Err(EvalError::NeedsStage));
        assert_eq!(run(ExprKind::Param(3)), Ok(Value::Int(3)));
    }
}
