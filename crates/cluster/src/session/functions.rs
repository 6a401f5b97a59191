//! Functions that the session itself calls, and neither a stage nor a shard: `set_config`, and those of advisory locks.
//!
//! Settings and locks are the session's. Such a function stands among the targets of a SELECT that reads nothing, as in
//! `SELECT set_config('isles.tenant', $1, true)`; elsewhere it is refused.

use super::{Answer, Fields, Result, Rows, Session};
use crate::execute::evaluate;
use crate::execute::inputs::Inputs;
use crate::execute::numbers::children;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::bind::utility::{SetScope, SetValue};
use isles_sql::builtins;
use isles_sql::tree::{Body, Distinct, Expr, ExprKind, Query, Statement};
use isles_sql::types::Oid;

const SET_CONFIG: Oid = Oid(2078);

fn called(expr: &Expr) -> Option<Oid> {
    match expr.kind {
        ExprKind::Call { function, .. } if function == SET_CONFIG || super::locks::is_function(function) => {
            Some(function)
        }
        _ => None,
    }
}

/// The innermost of the first calls: its arguments have none.
fn first_call(expr: &mut Expr) -> Option<&mut Expr> {
    // Twice, since the first look's borrow would last.
    if children(expr).into_iter().any(|child| first_call(child).is_some()) {
        return children(expr).into_iter().find_map(first_call);
    }
    called(expr).is_some().then_some(expr)
}

/// Whether a call is computed only if something else says so.
fn is_conditional(expr: &mut Expr) -> bool {
    let chooses = matches!(expr.kind, ExprKind::Case { .. } | ExprKind::Coalesce(_));
    (chooses && first_call(expr).is_some()) || children(expr).into_iter().any(is_conditional)
}

/// The targets of a statement that calls such a function; None if it does not.
pub(super) fn targets(statement: &Statement) -> Result<Option<Vec<Expr>>> {
    let Statement::Query(query) = statement else { return Ok(None) };
    let Body::Select(select) = &query.body else { return Ok(None) };
    let mut targets = select.targets.clone();
    let Some(function) = targets.iter_mut().find_map(first_call).and_then(|call| called(call)) else {
        return Ok(None);
    };
    let reads = !select.from.is_empty() || select.filter.is_some() || select.is_grouped();
    if reads || !is_plain(query) || select.distinct != Distinct::No || targets.iter_mut().any(is_conditional) {
        let name = builtins::function(function).map_or("this function", |function| function.name);
        let error = SqlError::unsupported(format!("{name} is supported in a SELECT of its own only"));
        return Err(error.with_hint(format!("SELECT {name}(…), without FROM, WHERE and CASE")));
    }
    Ok(Some(targets))
}

fn is_plain(query: &Query) -> bool {
    query.ctes.is_empty() && query.order_by.is_empty() && query.limit.is_none() && query.offset.is_none()
}

impl Session {
    /// Calls each such function, in the order in which they stand, and computes the targets.
    pub(super) async fn call_functions(
        &mut self,
        targets: &[Expr],
        fields: Fields,
        params: &[Value],
    ) -> Result<Answer> {
        let row = self.row_of_calls(targets, params).await;
        if self.open.is_none() {
            // Its transaction was this statement alone.
            self.locks.rewind(0);
        }
        Ok(Answer::Rows(Rows::new(fields, vec![row?], "SELECT 1".into())))
    }

    async fn row_of_calls(&mut self, targets: &[Expr], params: &[Value]) -> Result<Vec<Value>> {
        let mut row = Vec::with_capacity(targets.len());
        for target in targets {
            let mut target = target.clone();
            while let Some(call) = first_call(&mut target) {
                let ExprKind::Call { function, args, .. } = &call.kind else { break };
                let args = self.computed(args, params).await?;
                let value = match *function {
                    SET_CONFIG => self.set_config(&args).await?,
                    function => self.call_lock(function, &args).await?,
                };
                call.kind = ExprKind::Const(value);
            }
            row.extend(self.computed(&[target], params).await?);
        }
        Ok(row)
    }

    /// What expressions without columns come to.
    pub(super) async fn computed(&mut self, exprs: &[Expr], params: &[Value]) -> Result<Vec<Value>> {
        let guard = self.hold_schema().await?;
        let knowledge = self.knowledge(&guard)?;
        evaluate::values(exprs, Inputs { params, known: &knowledge, env: &self.database.env })
    }

    /// The value that the setting has afterwards.
    async fn set_config(&mut self, args: &[Value]) -> Result<Value> {
        let [Value::Text(name), value, local] = args else {
            return Err(SqlError::new("22004", "SET requires parameter name"));
        };
        let local = *local == Value::Bool(true);
        let value = match value {
            Value::Text(value) => SetValue::Text(value.clone()),
            _ => SetValue::Default,
        };
        // Its transaction would be this statement alone.
        let before = (local && self.open.is_none()).then(|| self.settings.clone());
        let scope = if local && self.open.is_some() { SetScope::Local } else { SetScope::Session };
        self.set(&name.to_ascii_lowercase(), &value, scope).await?;
        let shown = self.settings.show_or_fail(name)?;
        if let Some(before) = before {
            self.settings = before;
        }
        Ok(Value::Text(shown))
    }
}
