//! Expressions that the router computes by itself: keys, limits, rows to insert.
//!
//! Expressions are evaluated by the same functions that SQLite shards call. What needs more than that, a subquery or a
//! function of the catalogs, is computed by a stage without inputs.

use super::bounds::{MAX_BYTES, MAX_ROWS};
use super::inputs::Inputs;
use crate::session::known::now;
use isles_engine::shard::{CancelToken, Engine, Limits};
use isles_engine::sqlite::stage::Stage;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::eval::{EvalError, Given, eval};
use isles_sql::plan::Fragment;
use isles_sql::runtime::Env;
use isles_sql::tree::{Body, Context, Distinct, Expr, Field, GroupBy, Query, Select, Statement};
use isles_sql::types::Type;
use std::borrow::Borrow;
use std::time::Duration;

/// Computing a row without tables is a matter of microseconds.
const TIME: Duration = Duration::from_secs(10);
/// Expressions of one computation: SQLite's own limit on the columns of a result is 2,000.
const MAX_TARGETS: usize = 1_000;

/// What the session and the client have given, as the evaluator asks for it.
struct Here<'a>(Inputs<'a>);

impl Given for Here<'_> {
    // What is missing is an error of the stage's, which has the words for it.
    fn param(&self, index: usize) -> Option<Value> {
        self.0.param(index).ok()
    }

    fn context(&self, context: &Context, ty: Type) -> Option<Value> {
        self.0.context(context, ty).ok()
    }
}

/// What can be computed without an engine.
fn simple(expr: &Expr, inputs: Inputs<'_>) -> Result<Option<Value>, SqlError> {
    let mut clock = || now(&**inputs.env);
    let mut random = || inputs.env.random();
    let mut env = Env { settings: inputs.known.settings(), clock: &mut clock, random: &mut random };
    match eval(expr, &mut env, &Here(inputs)) {
        Ok(value) => Ok(Some(value)),
        Err(EvalError::NeedsStage) => Ok(None),
        Err(EvalError::Sql(error)) => Err(error),
    }
}

/// The value of an expression without columns.
pub(crate) fn value(expr: &Expr, inputs: Inputs<'_>) -> Result<Value, SqlError> {
    match simple(expr, inputs)? {
        Some(value) => Ok(value),
        None => staged(vec![expr.clone()], inputs)?.pop().ok_or_else(|| SqlError::new("XX000", "no value")),
    }
}

/// The values of many expressions without columns, in order.
pub(crate) fn values<E: Borrow<Expr>>(exprs: &[E], inputs: Inputs<'_>) -> Result<Vec<Value>, SqlError> {
    let (mut found, mut hard) = (Vec::with_capacity(exprs.len()), Vec::new());
    for (at, expr) in exprs.iter().enumerate() {
        let value = simple(expr.borrow(), inputs)?;
        if value.is_none() {
            hard.push(at);
        }
        found.push(value.unwrap_or(Value::Null));
    }
    for chunk in hard.chunks(MAX_TARGETS) {
        let computed = staged(chunk.iter().map(|at| exprs[*at].borrow().clone()).collect(), inputs)?;
        chunk.iter().zip(computed).for_each(|(at, value)| found[*at] = value);
    }
    Ok(found)
}

/// A query of these targets and nothing else.
pub(crate) fn query_of(targets: Vec<Expr>) -> (Query, Vec<Field>) {
    let fields: Vec<Field> = targets.iter().map(|expr| Field { name: "?column?".into(), ty: expr.ty }).collect();
    let select = Select {
        distinct: Distinct::No,
        targets,
        from: Vec::new(),
        filter: None,
        group_by: GroupBy::None,
        having: None,
    };
    let query = Query {
        ctes: Vec::new(),
        body: Body::Select(Box::new(select)),
        order_by: Vec::new(),
        limit: None,
        offset: None,
        with_ties: false,
        lock: None,
        columns: fields.clone(),
    };
    (query, fields)
}

fn staged(targets: Vec<Expr>, inputs: Inputs<'_>) -> Result<Vec<Value>, SqlError> {
    let (query, fields) = query_of(targets);
    let fragment = Fragment::new(Statement::Query(query), fields);
    let statement = inputs.statement(&fragment, Engine::Sqlite)?;
    let limits = Limits { time: TIME, rows: MAX_ROWS, bytes: MAX_BYTES, cancel: CancelToken::default() };
    let people = |error: isles_engine::error::ShardError| error.for_people();
    let mut stage = Stage::new(inputs.env.clone(), limits).map_err(people)?;
    stage.know(inputs.known.system());
    let mut outcome = stage.run(&statement).map_err(people)?;
    outcome.rows.pop().ok_or_else(|| SqlError::new("XX000", "a row of values has gone"))
}

/// The number of a LIMIT or OFFSET; None for null, which is no limit.
pub(crate) fn count(expr: Option<&Expr>, inputs: Inputs<'_>, what: &str) -> Result<Option<usize>, SqlError> {
    let Some(expr) = expr else { return Ok(None) };
    match value(expr, inputs)? {
        Value::Int(n) if n < 0 => {
            let sqlstate = if what == "LIMIT" { "2201W" } else { "2201X" };
            Err(SqlError::new(sqlstate, format!("{what} must not be negative")))
        }
        Value::Int(n) => Ok(Some(usize::try_from(n).unwrap_or(usize::MAX))),
        _ => Ok(None),
    }
}
