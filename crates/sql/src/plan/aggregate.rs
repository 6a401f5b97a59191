//! Aggregates in two phases: each shard groups its own rows, and the stage groups the groups.
//!
//!     SELECT g, count(*), avg(x) FROM t GROUP BY g HAVING count(*) > 1
//!
//!     shards   SELECT g, count(*) AS p1, sum(x) AS p2, count(x) AS p3 FROM t GROUP BY g
//!     stage    SELECT g, coalesce(sum(p1)::int8, 0), sum(p2) / sum(p3) FROM stage_1 GROUP BY g HAVING …
//!
//! Every final expression has exactly the type and the value that PostgreSQL's aggregate has over all rows at once;
//! sums and quotients of `numeric` are exact, with the scale that PostgreSQL gives them. An aggregate for which there
//! is no such expression makes the stage gather rows instead of groups.

use super::build::{cast_by, column, distinct_names, operator, query_of, select_of, staged};
use super::functions::is_volatile;
use super::place::{Place, Places};
use super::query::{Planner, scatter};
use super::walk::{Columns, Rewriter, Visitor, rewrite, walk};
use super::{Node, StageInput, StageRows};
use crate::tree::{Aggregate, Body, Expr, ExprKind, Field, GroupBy, Query, RelId, Select};
use crate::types::{self, Oid, Type};
use isles_kernel::error::SqlError;
use isles_kernel::value::{Numeric, Value};

/// Numbers of `pg_proc`.
mod function {
    use crate::types::Oid;

    pub(super) const COUNT: Oid = Oid(2147);
    pub(super) const SUM_INT8: Oid = Oid(2107);
    pub(super) const SUM_INT4: Oid = Oid(2108);
    pub(super) const SUM_INT2: Oid = Oid(2109);
    pub(super) const SUM_FLOAT8: Oid = Oid(2111);
    pub(super) const SUM_INTERVAL: Oid = Oid(2113);
    pub(super) const SUM_NUMERIC: Oid = Oid(2114);
    pub(super) const INT8_OF_NUMERIC: Oid = Oid(1779);
    pub(super) const FLOAT8_OF_NUMERIC: Oid = Oid(1746);
    pub(super) const FLOAT8_OF_FLOAT4: Oid = Oid(311);
    pub(super) const NUMERIC_OF_INT8: Oid = Oid(1781);
    pub(super) const NUMERIC_OF_INT4: Oid = Oid(1740);
    pub(super) const NUMERIC_OF_INT2: Oid = Oid(1782);
    pub(super) const NUMERIC_SUBTRACT: Oid = Oid(1725);
    pub(super) const NUMERIC_MULTIPLY: Oid = Oid(1726);
    pub(super) const NUMERIC_DIVIDE: Oid = Oid(1727);
    pub(super) const NUMERIC_AT_MOST: Oid = Oid(1723);
    pub(super) const NUMERIC_SCALE: Oid = Oid(3281);
    pub(super) const NUMERIC_ROUND: Oid = Oid(1707);
    pub(super) const INT4_MULTIPLY: Oid = Oid(141);
    pub(super) const INT4_ADD: Oid = Oid(177);
    pub(super) const NUMERIC_SQUARE_ROOT: Oid = Oid(1730);
    pub(super) const FLOAT8_DIVIDE: Oid = Oid(217);
    pub(super) const INTERVAL_DIVIDE: Oid = Oid(1326);
}

/// Aggregates whose result over results is their result over all.
const SELF_COMPOSED: [&str; 8] = ["min", "max", "bool_and", "bool_or", "every", "bit_and", "bit_or", "bit_xor"];

impl Planner {
    /// The plan in two phases, if the query is grouped and all of its aggregates can be had from parts.
    pub(super) fn in_two_phases(&mut self, query: &Query) -> Result<Option<Node>, SqlError> {
        let Body::Select(select) = &query.body else { return Ok(None) };
        let keys = match &select.group_by {
            GroupBy::None => return Ok(None),
            GroupBy::Keys(keys) | GroupBy::Sets { keys, .. } => keys.clone(),
        };
        if query.lock.is_some() || keys.iter().any(is_volatile) || select.filter.as_ref().is_some_and(is_volatile) {
            return Ok(None);
        }
        let rel = self.fresh_rel();
        let mut phases = Phases { rel, keys, partials: Vec::new(), fits: true, depth: 0 };
        let mut last = (**select).clone();
        last.from = Vec::new();
        last.filter = None;
        phases.select(&mut last);
        if !phases.fits || !phases.add_leftovers(&mut last) {
            return Ok(None);
        }
        let (targets, fields) = phases.partial_targets();
        let mut first = select_of(targets, select.from.clone(), select.filter.clone());
        first.group_by = GroupBy::Keys(phases.keys.clone());
        let Place::Spread(spread) = Places::of_query(query).rows(&first) else { return Ok(None) };
        let mut partial = query_of(Body::Select(Box::new(first)), fields.clone());
        partial.ctes = query.ctes.clone();
        super::query::inline_ctes(&mut partial);
        let node = scatter(partial, &spread)?;

        let name = self.fresh_input();
        last.from = vec![staged(rel, &name, &fields)];
        let input = StageInput { name, columns: fields, rows: StageRows::Node(node) };
        let mut whole = Query { body: Body::Select(Box::new(last)), ..query.clone() };
        super::query::inline_ctes(&mut whole);
        self.gathered(whole, vec![input]).map(Some)
    }
}

/// Rewrites the part of a select that is above its groups, and collects what it needs of the shards.
struct Phases {
    /// The staged table: first the keys, then the partial aggregates.
    rel: RelId,
    keys: Vec<Expr>,
    partials: Vec<Expr>,
    fits: bool,
    /// How many subqueries deep the walk is.
    depth: usize,
}

/// A partial aggregate's column, before it is known how many keys come before it.
const PARTIAL: usize = 1 << 20;

impl Rewriter for Phases {
    fn expr(&mut self, expr: &mut Expr) {
        if let Some(at) = self.keys.iter().position(|key| key == expr) {
            *expr = column(self.rel, at, expr.ty);
            return;
        }
        if let ExprKind::Aggregate(aggregate) = &expr.kind
            && self.depth == 0
        {
            match self.final_of(aggregate, expr.ty) {
                Some(composed) => *expr = composed,
                None => self.fits = false,
            }
            return;
        }
        rewrite::expr(self, expr);
    }

    fn query(&mut self, query: &mut Query) {
        // Aggregates of a subquery are its own; its outer references are keys of ours.
        self.depth += 1;
        rewrite::query(self, query);
        self.depth -= 1;
    }
}

impl Phases {
    /// Columns that are neither grouped nor aggregated depend on the keys, and are keys as well.
    fn add_leftovers(&mut self, last: &mut Select) -> bool {
        let mut read = Columns::default();
        read.select(last);
        let mut defined = Inner::default();
        defined.select(last);
        let leftovers: Vec<_> =
            read.0.into_iter().filter(|(rel, _)| *rel != self.rel && !defined.0.contains(rel)).collect();
        if !leftovers.is_empty() && matches!(last.group_by, GroupBy::Sets { .. }) {
            return false;
        }
        for (rel, at) in leftovers {
            let mut find = FindType { rel, at, ty: None };
            find.select(last);
            let Some(ty) = find.ty else { return false };
            if let GroupBy::Keys(keys) = &mut last.group_by {
                keys.push(column(rel, at, ty));
            }
            Replace { from: column(rel, at, ty).kind, to: column(self.rel, self.keys.len(), ty).kind }.select(last);
            self.keys.push(column(rel, at, ty));
        }
        Renumber { rel: self.rel, keys: self.keys.len() }.select(last);
        true
    }

    fn partial_targets(&self) -> (Vec<Expr>, Vec<Field>) {
        let name = |(at, expr): (usize, &Expr)| Field { name: format!("p{}", at + 1), ty: expr.ty };
        let key = |(at, expr): (usize, &Expr)| Field { name: format!("k{}", at + 1), ty: expr.ty };
        let fields = self.keys.iter().enumerate().map(key).chain(self.partials.iter().enumerate().map(name));
        (self.keys.iter().chain(&self.partials).cloned().collect(), distinct_names(fields.collect()))
    }

    /// A partial aggregate, as a column of the staged table.
    fn partial(&mut self, expr: Expr) -> Expr {
        let at = self.partials.iter().position(|known| *known == expr).unwrap_or_else(|| {
            self.partials.push(expr.clone());
            self.partials.len() - 1
        });
        column(self.rel, PARTIAL + at, expr.ty)
    }

    /// The expression over partial aggregates that has the aggregate's value over all rows.
    fn final_of(&mut self, call: &Aggregate, ty: Type) -> Option<Expr> {
        let unsplittable = call.distinct || call.within_group || !call.order_by.is_empty();
        let mut volatile = call.args.iter().chain(&call.filter).map(is_volatile);
        if unsplittable || volatile.any(|volatile| volatile) {
            return None;
        }
        let name = call.name.as_str();
        match name {
            "count" => Some(self.final_count(call)),
            "sum" => self.final_sum(call, ty),
            "avg" => self.final_average(call),
            _ if SELF_COMPOSED.contains(&name) => {
                let part = self.partial(Expr::new(ExprKind::Aggregate(Box::new(call.clone())), ty));
                Some(aggregate(call.function, name, vec![part], None, ty))
            }
            "var_pop" => self.final_variance(call, Spreads::Population, Root::No),
            "var_samp" | "variance" => self.final_variance(call, Spreads::Sample, Root::No),
            "stddev_pop" => self.final_variance(call, Spreads::Population, Root::Yes),
            "stddev_samp" | "stddev" => self.final_variance(call, Spreads::Sample, Root::Yes),
            _ => None,
        }
    }

    fn final_count(&mut self, call: &Aggregate) -> Expr {
        let count = self.partial(Expr::new(ExprKind::Aggregate(Box::new(call.clone())), types::INT8));
        let sum = sum_of(function::SUM_INT8, count, types::NUMERIC);
        let zero = Expr::new(ExprKind::Const(Value::Int(0)), types::INT8);
        let back = cast_by(function::INT8_OF_NUMERIC, sum, types::INT8);
        Expr::new(ExprKind::Coalesce(vec![back, zero]), types::INT8)
    }

    fn final_sum(&mut self, call: &Aggregate, ty: Type) -> Option<Expr> {
        let part = self.partial(Expr::new(ExprKind::Aggregate(Box::new(call.clone())), ty));
        match call.function {
            // Its parts are int8, whose sum is numeric.
            function::SUM_INT4 | function::SUM_INT2 => {
                let sum = sum_of(function::SUM_INT8, part, types::NUMERIC);
                Some(cast_by(function::INT8_OF_NUMERIC, sum, types::INT8))
            }
            function::SUM_INT8 => Some(sum_of(function::SUM_NUMERIC, part, types::NUMERIC)),
            // The type of the others' parts is the type of what they sum.
            other => Some(sum_of(other, part, ty.oid)),
        }
    }

    fn final_average(&mut self, call: &Aggregate) -> Option<Expr> {
        let [arg] = call.args.as_slice() else { return None };
        let count = self.part_count(call);
        let (sum, divide, ty) = match arg.ty.oid {
            types::INT2 | types::INT4 | types::INT8 | types::NUMERIC => {
                (self.numeric_sum(call, arg), function::NUMERIC_DIVIDE, types::NUMERIC)
            }
            types::FLOAT4 | types::FLOAT8 => {
                let wide = match arg.ty.oid {
                    types::FLOAT4 => cast_by(function::FLOAT8_OF_FLOAT4, arg.clone(), types::FLOAT8),
                    _ => arg.clone(),
                };
                let part = self.part_sum(call, function::SUM_FLOAT8, wide, types::FLOAT8);
                (sum_of(function::SUM_FLOAT8, part, types::FLOAT8), function::FLOAT8_DIVIDE, types::FLOAT8)
            }
            types::INTERVAL => {
                let part = self.part_sum(call, function::SUM_INTERVAL, arg.clone(), types::INTERVAL);
                (sum_of(function::SUM_INTERVAL, part, types::INTERVAL), function::INTERVAL_DIVIDE, types::INTERVAL)
            }
            _ => return None,
        };
        let count = match ty {
            types::NUMERIC => count,
            _ => cast_by(function::FLOAT8_OF_NUMERIC, count, types::FLOAT8),
        };
        Some(operator(divide, "/", vec![sum, count], ty))
    }

    /// As `numeric_stddev_internal` does it: `(N·Σx² − (Σx)²) / (N·(N − 1))`, or by `N·N`, and zero if rounding has
    /// made the numerator negative. Over floats PostgreSQL computes otherwise, and the result depends on the order.
    fn final_variance(&mut self, call: &Aggregate, spreads: Spreads, root: Root) -> Option<Expr> {
        let [arg] = call.args.as_slice() else { return None };
        let as_numeric = numeric_of(arg)?;
        let n = self.part_count(call);
        let sum = self.numeric_sum(call, arg);
        let square = multiply(as_numeric.clone(), as_numeric);
        let part = self.part_sum(call, function::SUM_NUMERIC, square, types::NUMERIC);
        let squares = sum_of(function::SUM_NUMERIC, part, types::NUMERIC);
        let numerator = subtract(multiply(n.clone(), squares), multiply(sum.clone(), sum));
        let denominator = match spreads {
            Spreads::Population => multiply(n.clone(), n.clone()),
            Spreads::Sample => multiply(n.clone(), subtract(n.clone(), numeric("1"))),
        };
        let quotient = operator(function::NUMERIC_DIVIDE, "/", vec![numerator.clone(), denominator], types::NUMERIC);
        let value = match root {
            Root::No => quotient,
            Root::Yes => deviation(quotient),
        };
        let few = match spreads {
            Spreads::Population => "0",
            Spreads::Sample => "1",
        };
        let null = Expr::new(ExprKind::Const(Value::Null), types::NUMERIC);
        let arms = vec![(at_most(n, numeric(few)), null), (at_most(numerator, numeric("0")), numeric("0"))];
        Some(Expr::new(ExprKind::Case { arms, otherwise: Some(Box::new(value)) }, types::NUMERIC))
    }

    /// How many values there are, numeric.
    fn part_count(&mut self, call: &Aggregate) -> Expr {
        let count = aggregate(function::COUNT, "count", call.args.clone(), call.filter.clone(), types::INT8.into());
        let part = self.partial(count);
        sum_of(function::SUM_INT8, part, types::NUMERIC)
    }

    fn part_sum(&mut self, call: &Aggregate, function: Oid, arg: Expr, ty: Oid) -> Expr {
        self.partial(aggregate(function, "sum", vec![arg], call.filter.clone(), ty.into()))
    }

    /// The sum of exact numbers, numeric.
    fn numeric_sum(&mut self, call: &Aggregate, arg: &Expr) -> Expr {
        let (first, ty, last) = match arg.ty.oid {
            types::INT2 => (function::SUM_INT2, types::INT8, function::SUM_INT8),
            types::INT4 => (function::SUM_INT4, types::INT8, function::SUM_INT8),
            types::INT8 => (function::SUM_INT8, types::NUMERIC, function::SUM_NUMERIC),
            _ => (function::SUM_NUMERIC, types::NUMERIC, function::SUM_NUMERIC),
        };
        let part = self.part_sum(call, first, arg.clone(), ty);
        sum_of(last, part, types::NUMERIC)
    }
}

/// The root of a variance, with as many digits as the variance has: `sqrt(numeric)` would choose more. It is taken of
/// so many digits that rounding it a second time cannot change what rounding it once would have given.
fn deviation(variance: Expr) -> Expr {
    let call = |function, name: &str, args, ty| {
        let display = crate::tree::Display::Function(name.into());
        Expr::new(ExprKind::Call { function, display, args }, ty)
    };
    let int4 = |n| Expr::new(ExprKind::Const(Value::Int(n)), types::INT4);
    let shown = call(function::NUMERIC_SCALE, "scale", vec![variance.clone()], types::INT4);
    // NaN has no scale, and stays what it is at any.
    let shown = Expr::new(ExprKind::Coalesce(vec![shown, int4(0)]), types::INT4);
    let twice = operator(function::INT4_MULTIPLY, "*", vec![shown.clone(), int4(2)], types::INT4);
    let enough = operator(function::INT4_ADD, "+", vec![twice, int4(ROOT_DIGITS)], types::INT4);
    let round = |value, digits| call(function::NUMERIC_ROUND, "round", vec![value, digits], types::NUMERIC);
    let root = call(function::NUMERIC_SQUARE_ROOT, "sqrt", vec![round(variance, enough)], types::NUMERIC);
    round(root, shown)
}

/// A variance of scale s and below 10^w, unless its root ends there, is farther than 10^-(2s + w/2 + 2) from where the
/// rounding of its root changes. Variances of more than a hundred digits are none of data.
const ROOT_DIGITS: i64 = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spreads {
    Population,
    Sample,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Root {
    Yes,
    No,
}

fn aggregate(function: Oid, name: &str, args: Vec<Expr>, filter: Option<Expr>, ty: Type) -> Expr {
    let call = Aggregate {
        function,
        name: name.into(),
        args,
        distinct: false,
        order_by: Vec::new(),
        filter,
        within_group: false,
    };
    Expr::new(ExprKind::Aggregate(Box::new(call)), ty)
}

fn sum_of(function: Oid, arg: Expr, ty: Oid) -> Expr {
    aggregate(function, "sum", vec![arg], None, ty.into())
}

fn numeric(text: &str) -> Expr {
    let value = Numeric::parse(text).map_or(Value::Null, Value::Numeric);
    Expr::new(ExprKind::Const(value), types::NUMERIC)
}

fn numeric_of(arg: &Expr) -> Option<Expr> {
    let function = match arg.ty.oid {
        types::NUMERIC => return Some(arg.clone()),
        types::INT2 => function::NUMERIC_OF_INT2,
        types::INT4 => function::NUMERIC_OF_INT4,
        types::INT8 => function::NUMERIC_OF_INT8,
        _ => return None,
    };
    Some(cast_by(function, arg.clone(), types::NUMERIC))
}

fn multiply(a: Expr, b: Expr) -> Expr {
    operator(function::NUMERIC_MULTIPLY, "*", vec![a, b], types::NUMERIC)
}

fn subtract(a: Expr, b: Expr) -> Expr {
    operator(function::NUMERIC_SUBTRACT, "-", vec![a, b], types::NUMERIC)
}

fn at_most(a: Expr, b: Expr) -> Expr {
    operator(function::NUMERIC_AT_MOST, "<=", vec![a, b], types::BOOL)
}

/// Gives the partial aggregates their columns, after the keys.
struct Renumber {
    rel: RelId,
    keys: usize,
}

impl Rewriter for Renumber {
    fn expr(&mut self, expr: &mut Expr) {
        if let ExprKind::Column { rel, column } = &mut expr.kind
            && *rel == self.rel
            && *column >= PARTIAL
        {
            *column = *column - PARTIAL + self.keys;
        }
        rewrite::expr(self, expr);
    }
}

/// Puts one column where another is.
struct Replace {
    from: ExprKind,
    to: ExprKind,
}

impl Rewriter for Replace {
    fn expr(&mut self, expr: &mut Expr) {
        if expr.kind == self.from {
            expr.kind = self.to.clone();
        }
        rewrite::expr(self, expr);
    }
}

struct FindType {
    rel: RelId,
    at: usize,
    ty: Option<Type>,
}

impl Visitor for FindType {
    fn expr(&mut self, expr: &Expr) {
        if (ExprKind::Column { rel: self.rel, column: self.at }) == expr.kind {
            self.ty = Some(expr.ty);
        }
        walk::expr(self, expr);
    }
}

/// Relations that the queries inside of a select define.
#[derive(Default)]
struct Inner(std::collections::BTreeSet<RelId>);

impl Visitor for Inner {
    fn from(&mut self, from: &crate::tree::From) {
        self.0.extend(super::walk::own_relation(from));
        walk::from(self, from);
    }
}
