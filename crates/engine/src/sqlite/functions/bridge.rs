//! What is asked of `isles_sql::runtime`: this file alone knows its interface.

use super::{Host, Result};
use crate::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::builtins;
use isles_sql::print::call::{Callee, Op};
use isles_sql::runtime::{self, Accumulator, Env};
use isles_sql::text::Settings;
use isles_sql::tree::CastHow;
use isles_sql::types::{Oid, Type};
use std::cmp::Ordering;
use std::sync::{Arc, LazyLock};

/// From 1970 to 2000, where PostgreSQL's timestamps begin.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// For functions that depend on none.
static NO_SETTINGS: LazyLock<Arc<Settings>> = LazyLock::new(|| Arc::new(Settings::default()));

/// Whether a function is null where an argument is.
pub(super) fn is_strict(function: Oid) -> bool {
    builtins::function(function).is_some_and(|function| function.strict)
}

/// What a function may know of the session that runs it.
pub(super) struct Session<'a> {
    host: &'a Host,
    settings: Arc<Settings>,
}

impl<'a> Session<'a> {
    /// `settings` is the text that was bound, or empty.
    pub(super) fn new(host: &'a Host, settings: &str) -> Result<Session<'a>> {
        let settings = match settings {
            "" => NO_SETTINGS.clone(),
            text => host.settings(text)?,
        };
        Ok(Session { host, settings })
    }

    fn with<T>(&mut self, work: impl FnOnce(&mut Env<'_>) -> T) -> T {
        let env = &self.host.env;
        let mut clock = || env.now_micros() as i64 - EPOCH_MICROS;
        let mut random = || env.random();
        work(&mut Env { settings: &self.settings, clock: &mut clock, random: &mut random })
    }

    pub(super) fn call(&mut self, function: Oid, args: &[Value], types: &[Oid]) -> Result<Value> {
        let scalar = runtime::scalar(function).ok_or_else(|| missing(function))?;
        self.with(|env| (scalar.call)(env, args, types))
    }

    /// A comparison, which is unknown where a side is null.
    pub(super) fn compare(&mut self, function: Oid, left: &Value, right: &Value, types: &[Oid]) -> Result<Value> {
        if left.is_null() || right.is_null() {
            return Ok(Value::Null);
        }
        self.call(function, &[left.clone(), right.clone()], types)
    }

    pub(super) fn cast(&mut self, how: CastHow, value: Value, from: Oid, to: Type) -> Result<Value> {
        self.with(|env| runtime::cast(env, value, Type::of(from), to, how))
    }
}

fn missing(function: Oid) -> SqlError {
    let name = builtins::function(function).map_or("unknown", |function| function.name);
    SqlError::unsupported(format!("function {name} is not supported on SQLite shards"))
}

/// An aggregate's accumulator.
pub(super) enum Fold {
    /// `ARRAY(SELECT …)`.
    Array(Vec<Value>),
    Aggregate(Box<dyn Accumulator>),
    /// `WITHIN GROUP`, whose direct arguments come with the first row.
    OrderedSet {
        started: Option<Box<dyn Accumulator>>,
        function: Oid,
        types: Vec<Oid>,
        direct: usize,
    },
}

impl Fold {
    pub(super) fn new(callee: &Callee) -> Result<Fold> {
        let Op::Aggregate { function, how } = callee.op else {
            return match callee.op {
                Op::ArrayOfRows => Ok(Fold::Array(Vec::new())),
                _ => Err(SqlError::new("XX000", "a function is not an aggregate")),
            };
        };
        let aggregate = runtime::aggregate(function).ok_or_else(|| missing(function))?;
        Ok(match how.direct {
            None => Fold::Aggregate(aggregate.start(&callee.args, &[])),
            Some(direct) => {
                let types = callee.args.get(direct..).unwrap_or_default().to_vec();
                Fold::OrderedSet { started: None, function, types, direct }
            }
        })
    }

    pub(super) fn add(&mut self, session: &mut Session<'_>, values: &[Value]) -> Result<()> {
        match self {
            Fold::Array(members) => {
                members.extend(values.first().cloned());
                Ok(())
            }
            Fold::Aggregate(fold) => session.with(|env| fold.step(env, values)),
            Fold::OrderedSet { started, function, types, direct } => {
                let (given, sorted) = values.split_at(values.len().min(*direct));
                let fold = match started {
                    Some(fold) => fold,
                    None => {
                        let aggregate = runtime::aggregate(*function).ok_or_else(|| missing(*function))?;
                        started.insert(aggregate.start(types, given))
                    }
                };
                session.with(|env| fold.step(env, sorted))
            }
        }
    }

    pub(super) fn value(&self, session: &mut Session<'_>) -> Result<Value> {
        match self {
            Fold::Array(members) => Ok(Value::Array(members.clone())),
            Fold::Aggregate(fold) | Fold::OrderedSet { started: Some(fold), .. } => session.with(|env| fold.value(env)),
            Fold::OrderedSet { started: None, .. } => Ok(Value::Null),
        }
    }
}

/// Rows of a set-returning function.
pub(super) type RowSource = std::vec::IntoIter<Vec<Value>>;

pub(super) fn rows(host: &Host, settings: &str, function: Oid, args: &[Value], callee: &Callee) -> Result<RowSource> {
    let rows = runtime::rows(function).ok_or_else(|| missing(function))?;
    let found = Session::new(host, settings)?.with(|env| (rows.call)(env, args, &callee.args))?;
    Ok(found.into_iter())
}

/// The order of two values of a type, neither of them null.
pub(super) fn order(ty: Oid, left: &Value, right: &Value) -> Result<Ordering> {
    runtime::compare(left, right, ty)
}
