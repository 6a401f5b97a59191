//! Several arrays taken apart side by side: `unnest(a, b)` in FROM, and `SELECT unnest(a), unnest(b)`.
//!
//! PostgreSQL lets such functions run in step, and what ends first goes on with nulls. A relation has one function, so
//! it numbers the steps, and each array is subscripted by that number:
//!
//!     unnest(a), unnest(b)  ──►  a[lower(a) + n - 1], b[lower(b) + n - 1]
//!                                FROM generate_series(1, greatest(length(a), length(b))) AS n
//!
//! A subscript beyond the end is null, which is what PostgreSQL gives. `generate_subscripts(a, 1)` is
//! `lower(a) + n - 1` as far as `a` goes.

use super::scope::{Item, ItemColumn};
use super::{Binder, Result};
use crate::builtins;
use crate::tree::{Display, Expr, ExprKind, Field, From, FunctionRef, RelId};
use crate::types::{self, Oid, Type};
use isles_kernel::value::Value;
use pg_raw_parse::Node;
use pg_raw_parse::nodes;

const UNNEST: Oid = Oid(2331);
const GENERATE_SUBSCRIPTS: Oid = Oid(1192);
const GENERATE_SERIES: Oid = Oid(1067);
const ARRAY_LOWER: Oid = Oid(2091);
const ARRAY_LENGTH: Oid = Oid(2176);
const PLUS: Oid = Oid(177);
const MINUS: Oid = Oid(181);
const AT_MOST: Oid = Oid(149);

/// Arrays in step: the relation that numbers the steps, and how long each array is.
#[derive(Debug, Clone)]
pub(super) struct Lockstep {
    rel: RelId,
    lengths: Vec<Expr>,
}

impl Lockstep {
    pub(super) fn new(rel: RelId) -> Lockstep {
        Lockstep { rel, lengths: Vec::new() }
    }

    /// What a call stands for in each step; None if it takes no array apart.
    pub(super) fn add(&mut self, function: Oid, args: &[Expr]) -> Option<Expr> {
        let array = args.first()?.clone();
        let element = builtins::element_of(array.ty.oid)?;
        let dimension = match function {
            UNNEST => integer(1),
            GENERATE_SUBSCRIPTS => args.get(1)?.clone(),
            _ => return None,
        };
        let length = call(ARRAY_LENGTH, vec![array.clone(), dimension.clone()]);
        let lower = call(ARRAY_LOWER, vec![array.clone(), dimension]);
        let step = operator(MINUS, "-", operator(PLUS, "+", lower, self.step(), types::INT4), integer(1), types::INT4);
        self.lengths.push(length.clone());
        if function == UNNEST {
            let kind = ExprKind::Subscript { array: Box::new(array), index: vec![step] };
            return Some(Expr::new(kind, element));
        }
        let within = operator(AT_MOST, "<=", self.step(), length, types::BOOL);
        Some(Expr::new(ExprKind::Case { arms: vec![(within, step)], otherwise: None }, types::INT4))
    }

    fn step(&self) -> Expr {
        Expr::new(ExprKind::Column { rel: self.rel, column: 0 }, types::INT4)
    }

    /// The relation that numbers the steps.
    pub(super) fn finish(self) -> From {
        let longest = Expr::new(ExprKind::Extreme { greatest: true, args: self.lengths }, types::INT4);
        let columns = vec![Field { name: "n".into(), ty: Type::of(types::INT4) }];
        let call = call(GENERATE_SERIES, vec![integer(1), longest]);
        From::Function(FunctionRef { rel: self.rel, call, columns, ordinality: false, lateral: true })
    }
}

fn integer(n: i64) -> Expr {
    Expr::new(ExprKind::Const(Value::Int(n)), types::INT4)
}

fn call(function: Oid, args: Vec<Expr>) -> Expr {
    let name = builtins::function(function).map_or("", |f| f.name);
    Expr::new(ExprKind::Call { function, display: Display::Function(name.into()), args }, types::INT4)
}

fn operator(function: Oid, name: &str, left: Expr, right: Expr, ty: Oid) -> Expr {
    let display = Display::Operator(name.into());
    Expr::new(ExprKind::Call { function, display, args: vec![left, right] }, ty)
}

/// Whether several of the targets take arrays apart.
pub(super) fn is_wanted(targets: &pg_raw_parse::list::CastNodeList<nodes::ResTarget>) -> bool {
    let takes_apart = |target: &&nodes::ResTarget| match target.val() {
        Node::FuncCall(call) => {
            super::call::function_name(call).is_ok_and(|name| name == "unnest" || name == "generate_subscripts")
        }
        _ => false,
    };
    targets.iter().filter(takes_apart).nth(1).is_some()
}

impl Binder<'_> {
    /// `unnest(a, b)` in FROM.
    pub(super) fn unnest_many(
        &mut self,
        range: &nodes::RangeFunction,
        call: &nodes::FuncCall,
    ) -> Result<(From, Vec<Item>)> {
        let at = call.location;
        let args = self.exprs(call.args())?;
        let rel = self.new_rel();
        let mut lockstep = Lockstep::new(rel);
        let mut columns = Vec::new();
        for arg in args {
            match lockstep.add(UNNEST, &[arg]) {
                Some(expr) => columns.push(ItemColumn { name: "unnest".into(), expr }),
                None => return self.fail("42883", "function unnest() of what is no array does not exist", at),
            }
        }
        if range.ordinality {
            let expr = self.coerce(lockstep.step(), types::INT8, builtins::CastContext::Implicit)?;
            columns.push(ItemColumn { name: "ordinality".into(), expr });
        }
        self.scope().rels.push(rel);
        let mut item = Item::of_relation(rel, Some("unnest".into()), &[]);
        item.columns = columns;
        if let Some(alias) = range.alias() {
            item.name = alias.aliasname().map(str::to_string);
            super::from::rename(&mut item.columns, alias).map_err(|error| self.at(error, at))?;
        }
        Ok((lockstep.finish(), vec![item]))
    }
}
