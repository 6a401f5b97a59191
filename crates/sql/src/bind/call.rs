//! Calls of functions, aggregates and window functions.

use super::coerce::{Pathway, pathway};
use super::expr::location;
use super::resolve::{self, Candidate, Choice, FUNCTION_HINT, signature};
use super::scope::Place;
use super::walk::{self, Go};
use super::{Binder, Result, unsupported_node};
use crate::builtins::{self, CastContext, Function, FunctionKind};
use crate::tree::*;
use crate::types::{self, Oid, Type};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use pg_raw_parse::nodes::{self, SortByDir, SortByNulls};
use pg_raw_parse::{Node, raw};

/// A window's definition, bound.
#[derive(Debug, Clone, Default)]
pub(super) struct WindowSpec {
    pub partition_by: Vec<Expr>,
    pub order_by: Vec<SortExpr>,
    pub frame: Option<Frame>,
}

/// The functions that take a sequence by name: `nextval`, `currval`, `setval`, `setval`.
const SEQUENCE_FUNCTIONS: [Oid; 4] = [Oid(1574), Oid(1575), Oid(1576), Oid(1765)];
pub(super) const NEXTVAL: Oid = Oid(1574);
const PG_TYPEOF: Oid = Oid(1619);

/// A call's name and its arguments, before it is known what is called.
struct Args {
    exprs: Vec<Expr>,
    /// Names of the last ones, where they are given by name.
    names: Vec<String>,
}

/// The name of a function, which may be written with its schema.
pub(super) fn function_name(call: &nodes::FuncCall) -> Result<String> {
    let parts: Vec<&str> = call.funcname().iter().filter_map(Node::as_str).collect();
    match parts.as_slice() {
        [name] | ["pg_catalog", name] => Ok((*name).to_string()),
        _ => Err(SqlError::new("42883", format!("function {}() does not exist", parts.join(".")))),
    }
}

impl Binder<'_> {
    pub(super) fn call(&mut self, call: &nodes::FuncCall) -> Result<Expr> {
        let name = function_name(call).map_err(|error| self.at(error, call.location))?;
        let mut args = self.args(call)?;
        if call.agg_within_group {
            return self.ordered_set(call, &name, args.exprs);
        }
        let inputs: Vec<Oid> = args.exprs.iter().map(|expr| expr.ty.oid).collect();
        let candidate = match self.choose_function(call, &name, &mut args, &inputs)? {
            Some(candidate) => candidate,
            None => return self.call_as_cast(&name, args.exprs, &inputs, call.location),
        };
        let kind = candidate.function.kind;
        self.check_decorations(call, &name, kind)?;
        if kind.is_aggregate() && call.over().is_none() {
            return self.aggregate(call, candidate, args.exprs);
        }
        if let Some(over) = call.over() {
            return self.window(call, candidate, args.exprs, over);
        }
        self.plain_call(candidate, args.exprs, call.location)
    }

    fn args(&mut self, call: &nodes::FuncCall) -> Result<Args> {
        let mut args = Args { exprs: Vec::new(), names: Vec::new() };
        for node in call.args() {
            match node {
                Node::NamedArgExpr(named) => {
                    let name = named.name().unwrap_or_default().to_string();
                    if args.names.contains(&name) {
                        return self.fail(
                            "42601",
                            format!("argument name \"{name}\" used more than once"),
                            named.location,
                        );
                    }
                    args.names.push(name);
                    args.exprs.push(self.expr(named.arg())?);
                }
                _ if !args.names.is_empty() => {
                    return self.fail("42601", "positional argument cannot follow named argument", location(node));
                }
                _ => args.exprs.push(self.expr(node)?),
            }
        }
        Ok(args)
    }

    /// The function that is called; None where the call is a cast in disguise.
    fn choose_function(
        &mut self,
        call: &nodes::FuncCall,
        name: &str,
        args: &mut Args,
        inputs: &[Oid],
    ) -> Result<Option<Candidate>> {
        if !args.names.is_empty() {
            return self.choose_by_names(call, name, args).map(Some);
        }
        if builtins::functions_named(name).iter().all(|f| f.args != inputs) && is_cast_in_disguise(name, inputs) {
            return Ok(None);
        }
        match resolve::function(name, inputs, !call.func_variadic) {
            Choice::One(candidate) => Ok(Some(candidate)),
            Choice::None => Err(self.no_function(name, inputs, call)),
            Choice::Ambiguous => {
                let message = format!("function {} is not unique", signature(name, inputs));
                let hint = "Could not choose a best candidate function. You might need to add explicit type casts.";
                Err(self.at(SqlError::new("42725", message).with_hint(hint), call.location))
            }
        }
    }

    fn no_function(&self, name: &str, inputs: &[Oid], call: &nodes::FuncCall) -> SqlError {
        let shown: Vec<&str> = call.funcname().iter().filter_map(Node::as_str).collect();
        let shown = if call.funcformat == nodes::CoercionForm::COERCE_SQL_SYNTAX || shown.len() > 1 {
            format!("pg_catalog.{name}")
        } else {
            name.to_string()
        };
        let error = SqlError::new("42883", format!("function {} does not exist", signature(&shown, inputs)));
        let aggregate = !call.agg_order().is_empty() && !call.agg_within_group;
        let hint = match aggregate {
            true => {
                "No aggregate function matches the given name and argument types. Perhaps you misplaced ORDER BY; \
                 ORDER BY must appear after all regular arguments of the aggregate."
            }
            false => FUNCTION_HINT,
        };
        self.at(error.with_hint(hint), call.location)
    }

    /// Puts named arguments in their places; defaults fill the gaps.
    fn choose_by_names(&mut self, call: &nodes::FuncCall, name: &str, args: &mut Args) -> Result<Candidate> {
        let positional = args.exprs.len() - args.names.len();
        for function in builtins::functions_named(name).iter().copied() {
            let Some(places) = places(function, positional, &args.names) else { continue };
            let mut laid_out = Vec::with_capacity(function.args.len());
            for (at, place) in places.iter().enumerate() {
                laid_out.push(match place {
                    Some(given) => args.exprs[*given].clone(),
                    None => self.default_argument(function, at)?,
                });
            }
            let inputs: Vec<Oid> = laid_out.iter().map(|expr| expr.ty.oid).collect();
            if super::coerce::can_coerce_all(&inputs, &function.args, CastContext::Implicit) {
                args.exprs = laid_out;
                return Ok(Candidate { function, args: function.args.clone(), variadic: 0, defaulted: 0 });
            }
        }
        let inputs: Vec<Oid> = args.exprs.iter().map(|expr| expr.ty.oid).collect();
        let shown = inputs.iter().enumerate().map(|(at, oid)| match at.checked_sub(positional) {
            Some(named) => format!("{} => {}", args.names[named], builtins::type_name(*oid)),
            None => builtins::type_name(*oid),
        });
        let message = format!("function {name}({}) does not exist", shown.collect::<Vec<_>>().join(", "));
        Err(self.at(SqlError::new("42883", message).with_hint(FUNCTION_HINT), call.location))
    }

    /// The default of a parameter, from its text.
    fn default_argument(&mut self, function: &'static Function, at: usize) -> Result<Expr> {
        let first = function.args.len() - function.defaults.len();
        let text = function.defaults[at - first];
        let expr = self.expression_text(text)?;
        self.coerce(expr, function.args[at], CastContext::Assignment)
    }

    /// `int8(x)`, `text(x)`: the name of a type as a function.
    fn call_as_cast(&mut self, name: &str, args: Vec<Expr>, inputs: &[Oid], at: i32) -> Result<Expr> {
        let ty = builtins::type_by_name(name);
        match (ty, <[Expr; 1]>::try_from(args)) {
            (Some(info), Ok([arg])) => self.cast(arg, Type::of(info.oid), at),
            _ => self.fail("42883", format!("function {} does not exist", signature(name, inputs)), at),
        }
    }

    fn check_decorations(&self, call: &nodes::FuncCall, name: &str, kind: FunctionKind) -> Result<()> {
        let at = call.location;
        if kind == FunctionKind::Procedure {
            let hint = "To call a procedure, use CALL.";
            return Err(self.at(SqlError::new("42809", format!("{name} is a procedure")).with_hint(hint), at));
        }
        if matches!(kind, FunctionKind::OrderedSet { .. } | FunctionKind::Hypothetical { .. }) && call.over().is_none()
        {
            return self.fail("42809", format!("WITHIN GROUP is required for ordered-set aggregate {name}"), at);
        }
        if kind == FunctionKind::Window && call.over().is_none() {
            return self.fail("42809", format!("window function {name} requires an OVER clause"), at);
        }
        if kind == FunctionKind::Scalar && call.over().is_some() {
            let message = format!("OVER specified, but {name} is not a window function nor an aggregate function");
            return self.fail("42809", message, at);
        }
        if kind.is_aggregate() {
            if call.agg_star && !call.args().is_empty() {
                return self.refuse("an aggregate of * and arguments", at);
            }
            if call.args().is_empty() && !call.agg_star {
                let message = format!("{name}(*) must be used to call a parameterless aggregate function");
                return self.fail("42809", message, at);
            }
            return Ok(());
        }
        let says = [
            (call.agg_star, format!("{name}(*) specified, but {name} is not an aggregate function")),
            (call.agg_distinct, format!("DISTINCT specified, but {name} is not an aggregate function")),
            (!call.agg_order().is_empty(), format!("ORDER BY specified, but {name} is not an aggregate function")),
            (
                !matches!(call.agg_filter(), Node::None),
                format!("FILTER specified, but {name} is not an aggregate function"),
            ),
        ];
        match says.into_iter().find(|(wrong, _)| *wrong) {
            Some((_, message)) => self.fail("42809", message, at),
            None => Ok(()),
        }
    }

    /// Arguments with their conversions, defaults added and variadic ones packed; and the type of the result.
    fn finish_args(&mut self, candidate: &Candidate, args: Vec<Expr>) -> Result<(Vec<Expr>, Oid)> {
        let actual: Vec<Oid> = args.iter().map(|expr| expr.ty.oid).collect();
        let function = candidate.function;
        let (declared, returns) = resolve::resolve_generics(&actual, &candidate.args, function.returns)?;
        let mut args = self.coerce_args(args, &declared)?;
        if candidate.variadic > 0 && function.variadic != Some(types::ANY) {
            let elements = args.split_off(args.len() - candidate.variadic);
            let element = elements.first().map_or(types::TEXT, |expr| expr.ty.oid);
            let Some(array) = builtins::array_of(element) else {
                return Err(SqlError::unsupported(format!(
                    "an array of {} is not supported",
                    builtins::type_name(element)
                )));
            };
            args.push(Expr::new(ExprKind::Array(elements), array));
        }
        for at in args.len()..args.len() + candidate.defaulted {
            args.push(self.default_argument(function, at)?);
        }
        Ok((args, returns))
    }

    fn plain_call(&mut self, candidate: Candidate, args: Vec<Expr>, at: i32) -> Result<Expr> {
        let function = candidate.function;
        let (args, returns) = self.finish_args(&candidate, args).map_err(|error| self.at(error, at))?;
        if function.oid == PG_TYPEOF {
            let oid = args.first().map_or(0, |arg| arg.ty.oid.0);
            return Ok(Expr::new(ExprKind::Const(Value::Int(i64::from(oid))), types::REGTYPE));
        }
        if let Some(context) = context_of(function, &args) {
            return Ok(Expr::new(ExprKind::Context(context), returns));
        }
        let args = self.name_sequence(function.oid, args, at)?;
        let display = Display::Function(function.name.to_string());
        let call = Expr::new(ExprKind::Call { function: function.oid, display, args }, Type::of(returns));
        if !function.returns_set {
            return Ok(call);
        }
        let in_step = match (&call.kind, &mut self.scope().lockstep) {
            (ExprKind::Call { args, .. }, Some(lockstep)) => lockstep.add(function.oid, args),
            _ => None,
        };
        match in_step.filter(|_| self.place == Place::Target) {
            Some(expr) => Ok(expr),
            None => self.set_in_expression(call, at),
        }
    }

    /// A sequence's name stays a name, and must be one.
    fn name_sequence(&self, function: Oid, mut args: Vec<Expr>, at: i32) -> Result<Vec<Expr>> {
        if !SEQUENCE_FUNCTIONS.contains(&function) {
            return Ok(args);
        }
        let Some(name) = args.first().and_then(text_of_cast).map(str::to_string) else { return Ok(args) };
        let parts = identifier_parts(&name);
        let found = match parts.as_slice() {
            [name] => self.names_sequence(None, name),
            [schema, name] => self.names_sequence(Some(schema), name),
            _ => None,
        };
        match found {
            Some(sequence) => {
                args[0] = Expr::new(ExprKind::Const(Value::Text(sequence.name.clone())), types::TEXT);
                Ok(args)
            }
            None => self.fail("42P01", format!("relation \"{name}\" does not exist"), at),
        }
    }

    /// A function of many rows among the targets is one more relation, beside those of FROM.
    fn set_in_expression(&mut self, call: Expr, at: i32) -> Result<Expr> {
        if self.place != Place::Target && self.place != Place::None {
            let message = format!("set-returning functions are not allowed in {}", self.place.says());
            return self.fail("0A000", message, at);
        }
        if self.scope().set_function.is_some() || self.scope().lockstep.is_some() {
            return self.refuse("more than one set-returning function among the targets", at);
        }
        let mut nested = false;
        walk::each(&call, &mut |expr| {
            nested |= matches!(expr.kind, ExprKind::Aggregate(_) | ExprKind::Window(_));
            Go::Deeper
        });
        if nested || call.ty.oid == types::RECORD {
            return self.refuse("this set-returning function among the targets", at);
        }
        let rel = self.new_rel();
        let ty = call.ty;
        let name = match &call.kind {
            ExprKind::Call { display: Display::Function(name), .. } => name.clone(),
            _ => String::new(),
        };
        let columns = vec![Field { name, ty }];
        let scope = self.scope();
        scope.rels.push(rel);
        scope.set_function = Some(FunctionRef { rel, call, columns, ordinality: false, lateral: true });
        Ok(Expr::new(ExprKind::Column { rel, column: 0 }, ty))
    }

    fn aggregate(&mut self, call: &nodes::FuncCall, candidate: Candidate, args: Vec<Expr>) -> Result<Expr> {
        let at = call.location;
        let (args, returns) = self.finish_args(&candidate, args).map_err(|error| self.at(error, at))?;
        let order_by = self.sort_exprs(call.agg_order())?;
        let filter = self.aggregate_filter(call)?;
        if call.agg_distinct {
            self.check_distinct_aggregate(&args, &order_by, at)?;
        }
        let aggregate = Aggregate {
            function: candidate.function.oid,
            name: candidate.function.name.to_string(),
            args,
            distinct: call.agg_distinct,
            order_by,
            filter,
            within_group: false,
        };
        self.finish_aggregate(aggregate, returns, at)
    }

    fn aggregate_filter(&mut self, call: &nodes::FuncCall) -> Result<Option<Expr>> {
        match call.agg_filter() {
            Node::None => Ok(None),
            node => self.placed(Place::Filter, |binder| binder.condition(node, "FILTER")).map(Some),
        }
    }

    fn check_distinct_aggregate(&self, args: &[Expr], order_by: &[SortExpr], at: i32) -> Result<()> {
        if args.is_empty() {
            return self.fail("42809", "DISTINCT specified, but * is not an argument", at);
        }
        if order_by.iter().any(|sort| !args.contains(&sort.expr)) {
            let message = "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list";
            return self.fail("42P10", message, at);
        }
        args.iter().try_for_each(|arg| resolve::equality(arg.ty.oid).map(drop)).map_err(|error| self.at(error, at))
    }

    fn ordered_set(&mut self, call: &nodes::FuncCall, name: &str, direct: Vec<Expr>) -> Result<Expr> {
        let at = call.location;
        let mut order_by = self.sort_exprs_untyped(call.agg_order())?;
        let count = direct.len();
        let all: Vec<Expr> = direct.into_iter().chain(order_by.iter().map(|sort| sort.expr.clone())).collect();
        let inputs: Vec<Oid> = all.iter().map(|expr| expr.ty.oid).collect();
        let Choice::One(candidate) = resolve::function(name, &inputs, true) else {
            return Err(self.no_function(name, &inputs, call));
        };
        if !matches!(candidate.function.kind, FunctionKind::OrderedSet { .. } | FunctionKind::Hypothetical { .. }) {
            let message = format!("{name} is not an ordered-set aggregate, so it cannot have WITHIN GROUP");
            return self.fail("42809", message, at);
        }
        if matches!(candidate.function.kind, FunctionKind::Hypothetical { .. }) {
            return self.refuse(format!("hypothetical-set aggregate {name}"), at);
        }
        let (mut args, returns) = self.finish_args(&candidate, all).map_err(|error| self.at(error, at))?;
        let sorted = args.split_off(count);
        order_by.iter_mut().zip(sorted).for_each(|(sort, expr)| sort.expr = expr);
        let filter = self.aggregate_filter(call)?;
        let aggregate = Aggregate {
            function: candidate.function.oid,
            name: name.to_string(),
            args,
            distinct: false,
            order_by,
            filter,
            within_group: true,
        };
        self.finish_aggregate(aggregate, returns, at)
    }

    /// An aggregate belongs to a query whose rows it gathers, and must stand where groups are known.
    fn finish_aggregate(&mut self, aggregate: Aggregate, returns: Oid, at: i32) -> Result<Expr> {
        let expr = Expr::new(ExprKind::Aggregate(Box::new(aggregate)), Type::of(returns));
        let (mut nested, mut window, mut inner, mut outer) = (false, false, false, false);
        walk::below(&expr, &mut |below| {
            match &below.kind {
                ExprKind::Aggregate(_) => nested = true,
                ExprKind::Window(_) => window = true,
                ExprKind::Column { rel, .. } => match self.level_of(*rel) {
                    Some(0) => inner = true,
                    Some(_) => outer = true,
                    None => {}
                },
                _ => {}
            }
            if matches!(below.kind, ExprKind::Subquery(_)) { Go::Past } else { Go::Deeper }
        });
        if nested {
            return self.fail("42803", "aggregate function calls cannot be nested", at);
        }
        if window {
            return self.fail("42803", "aggregate function calls cannot contain window function calls", at);
        }
        if outer && !inner {
            return self.refuse("an aggregate of an outer query", at);
        }
        if !self.place.allows_aggregates() {
            let message = format!("aggregate functions are not allowed in {}", self.place.says());
            return self.fail("42803", message, at);
        }
        self.scope().aggregates = true;
        Ok(expr)
    }

    /// `GROUPING(a, b)`: the arguments are keys of the query.
    pub(super) fn grouping(&mut self, grouping: &nodes::GroupingFunc) -> Result<Expr> {
        let args = self.exprs(grouping.args())?;
        self.scope().aggregates = true;
        self.scope().saw_grouping = true;
        // The keys may be named after targets, so targets are bound first without, and then again.
        let Some(keys) = self.scope().group_keys.clone() else {
            return Ok(Expr::new(ExprKind::Grouping(Vec::new()), types::INT4));
        };
        let mut positions = Vec::with_capacity(args.len());
        for arg in &args {
            match keys.iter().position(|key| key == arg) {
                Some(at) => positions.push(at),
                None => {
                    let message = "arguments to GROUPING must be grouping expressions of the associated query level";
                    return self.fail("42803", message, grouping.location);
                }
            }
        }
        Ok(Expr::new(ExprKind::Grouping(positions), types::INT4))
    }

    fn window(
        &mut self,
        call: &nodes::FuncCall,
        candidate: Candidate,
        args: Vec<Expr>,
        over: &nodes::WindowDef,
    ) -> Result<Expr> {
        let at = call.location;
        let function = candidate.function;
        if call.agg_distinct {
            return self.fail("0A000", "DISTINCT is not implemented for window functions", at);
        }
        if !call.agg_order().is_empty() {
            return self.fail("0A000", "aggregate ORDER BY is not implemented for window functions", at);
        }
        if !self.place.allows_windows() {
            let says = match self.place {
                Place::WindowPartition | Place::WindowOrder | Place::WindowFrame => "window definitions",
                place => place.says(),
            };
            return self.fail("42P20", format!("window functions are not allowed in {says}"), at);
        }
        let (args, returns) = self.finish_args(&candidate, args).map_err(|error| self.at(error, at))?;
        if args.iter().any(contains_window) {
            return self.fail("42P20", "window function calls cannot be nested", at);
        }
        let filter = self.aggregate_filter(call)?;
        if filter.is_some() && function.kind == FunctionKind::Window {
            return self.fail("0A000", "FILTER is not implemented for non-aggregate window functions", at);
        }
        let spec = self.window_spec(over)?;
        self.scope().windows = true;
        let window = WindowCall {
            function: function.oid,
            name: function.name.to_string(),
            args,
            aggregate: function.kind.is_aggregate(),
            filter,
            partition_by: spec.partition_by,
            order_by: spec.order_by,
            frame: spec.frame,
        };
        Ok(Expr::new(ExprKind::Window(Box::new(window)), Type::of(returns)))
    }

    fn named_window(&mut self, name: &str, at: i32) -> Result<WindowSpec> {
        let found = self.scope().named_windows.iter().find(|(known, _)| known == name).map(|(_, spec)| spec.clone());
        match found {
            Some(spec) => Ok(spec),
            None => self.fail("42704", format!("window \"{name}\" does not exist"), at),
        }
    }

    pub(super) fn window_spec(&mut self, def: &nodes::WindowDef) -> Result<WindowSpec> {
        if let Some(name) = def.name() {
            return self.named_window(name, def.location);
        }
        self.window_definition(def)
    }

    /// A definition in OVER (…) or WINDOW, which may extend a named one.
    pub(super) fn window_definition(&mut self, def: &nodes::WindowDef) -> Result<WindowSpec> {
        let at = def.location;
        let base = match def.refname() {
            Some(name) => Some((name, self.named_window(name, at)?)),
            None => None,
        };
        let mut partition_by = Vec::new();
        for node in def.partition_clause() {
            let key = self.placed(Place::WindowPartition, |binder| binder.expr(node))?;
            partition_by.push(self.resolve_unknown(key)?);
        }
        let mut order_by = self.placed(Place::WindowOrder, |binder| binder.sort_exprs(def.order_clause()))?;
        if let Some((name, base)) = base {
            if !partition_by.is_empty() {
                return self.fail("42P20", format!("cannot override PARTITION BY clause of window \"{name}\""), at);
            }
            if !base.order_by.is_empty() && !order_by.is_empty() {
                return self.fail("42P20", format!("cannot override ORDER BY clause of window \"{name}\""), at);
            }
            if base.frame.is_some() {
                return self.fail("42P20", format!("cannot copy window \"{name}\" because it has a frame clause"), at);
            }
            partition_by = base.partition_by;
            if order_by.is_empty() {
                order_by = base.order_by;
            }
        }
        let frame = self.frame(def, &order_by)?;
        Ok(WindowSpec { partition_by, order_by, frame })
    }

    fn frame(&mut self, def: &nodes::WindowDef, order_by: &[SortExpr]) -> Result<Option<Frame>> {
        let options = def.frame_options as u32;
        let has = |flag: u32| options & flag != 0;
        if !has(raw::FRAMEOPTION_NONDEFAULT) {
            return Ok(None);
        }
        let unit = match () {
            () if has(raw::FRAMEOPTION_ROWS) => FrameUnit::Rows,
            () if has(raw::FRAMEOPTION_GROUPS) => FrameUnit::Groups,
            () => FrameUnit::Range,
        };
        if unit == FrameUnit::Groups && order_by.is_empty() {
            return self.fail("42P20", "GROUPS mode requires an ORDER BY clause", def.location);
        }
        let start = match () {
            () if has(raw::FRAMEOPTION_START_UNBOUNDED_PRECEDING) => FrameBound::UnboundedPreceding,
            () if has(raw::FRAMEOPTION_START_UNBOUNDED_FOLLOWING) => FrameBound::UnboundedFollowing,
            () if has(raw::FRAMEOPTION_START_CURRENT_ROW) => FrameBound::CurrentRow,
            () if has(raw::FRAMEOPTION_START_OFFSET_PRECEDING) => {
                FrameBound::Preceding(self.frame_offset(def.start_offset(), unit, order_by)?)
            }
            () => FrameBound::Following(self.frame_offset(def.start_offset(), unit, order_by)?),
        };
        let end = match () {
            () if has(raw::FRAMEOPTION_END_UNBOUNDED_PRECEDING) => FrameBound::UnboundedPreceding,
            () if has(raw::FRAMEOPTION_END_UNBOUNDED_FOLLOWING) => FrameBound::UnboundedFollowing,
            () if has(raw::FRAMEOPTION_END_CURRENT_ROW) => FrameBound::CurrentRow,
            () if has(raw::FRAMEOPTION_END_OFFSET_PRECEDING) => {
                FrameBound::Preceding(self.frame_offset(def.end_offset(), unit, order_by)?)
            }
            () => FrameBound::Following(self.frame_offset(def.end_offset(), unit, order_by)?),
        };
        let exclude = match () {
            () if has(raw::FRAMEOPTION_EXCLUDE_CURRENT_ROW) => FrameExclude::CurrentRow,
            () if has(raw::FRAMEOPTION_EXCLUDE_GROUP) => FrameExclude::Group,
            () if has(raw::FRAMEOPTION_EXCLUDE_TIES) => FrameExclude::Ties,
            () => FrameExclude::Nothing,
        };
        Ok(Some(Frame { unit, start, end, exclude }))
    }

    fn frame_offset(&mut self, node: Node<'_>, unit: FrameUnit, order_by: &[SortExpr]) -> Result<Expr> {
        let at = location(node);
        let offset = self.placed(Place::WindowFrame, |binder| binder.expr(node))?;
        let mut varies = false;
        walk::each(&offset, &mut |expr| {
            varies |= matches!(expr.kind, ExprKind::Column { .. });
            Go::Deeper
        });
        let what = match unit {
            FrameUnit::Rows => "ROWS",
            FrameUnit::Groups => "GROUPS",
            FrameUnit::Range => "RANGE",
        };
        if varies {
            return self.fail("42P10", format!("argument of {what} must not contain variables"), at);
        }
        if unit != FrameUnit::Range {
            return self.coerce_to_specific(offset, types::INT8, what, at);
        }
        let [key] = order_by else {
            let message = "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column";
            return self.fail("42P20", message, at);
        };
        let wanted = match key.expr.ty.oid {
            types::DATE | types::TIME | types::TIMESTAMP | types::TIMESTAMPTZ | types::INTERVAL => types::INTERVAL,
            types::INT2 | types::INT4 | types::INT8 => types::INT8,
            types::FLOAT4 | types::FLOAT8 => types::FLOAT8,
            types::NUMERIC => types::NUMERIC,
            other => {
                let name = builtins::type_name(other);
                let message = format!("RANGE with offset PRECEDING/FOLLOWING is not supported for column type {name}");
                return self.fail("0A000", message, at);
            }
        };
        self.coerce_to_specific(offset, wanted, what, at)
    }

    /// An ordering inside of an aggregate or window: expressions only, neither positions nor aliases.
    pub(super) fn sort_exprs(
        &mut self,
        clause: &pg_raw_parse::list::CastNodeList<nodes::SortBy>,
    ) -> Result<Vec<SortExpr>> {
        let mut sorted = self.sort_exprs_untyped(clause)?;
        for sort in &mut sorted {
            let expr = std::mem::replace(&mut sort.expr, super::expr::constant_bool(false));
            sort.expr = self.resolve_unknown(expr)?;
            resolve::check_orderable(sort.expr.ty.oid)?;
        }
        Ok(sorted)
    }

    fn sort_exprs_untyped(
        &mut self,
        clause: &pg_raw_parse::list::CastNodeList<nodes::SortBy>,
    ) -> Result<Vec<SortExpr>> {
        let mut sorted = Vec::new();
        for sort in clause.iter() {
            let expr = self.expr(sort.node())?;
            let (descending, nulls_first) = self.direction(sort)?;
            sorted.push(SortExpr { expr, descending, nulls_first });
        }
        Ok(sorted)
    }

    /// Whether descending, and whether nulls come first.
    pub(super) fn direction(&self, sort: &nodes::SortBy) -> Result<(bool, bool)> {
        let descending = match sort.sortby_dir {
            SortByDir::SORTBY_DEFAULT | SortByDir::SORTBY_ASC => false,
            SortByDir::SORTBY_DESC => true,
            _ => return self.refuse("ORDER BY USING", sort.location),
        };
        let nulls_first = match sort.sortby_nulls {
            SortByNulls::SORTBY_NULLS_FIRST => true,
            SortByNulls::SORTBY_NULLS_LAST => false,
            _ => descending,
        };
        Ok((descending, nulls_first))
    }

    /// An expression from its text: a default.
    pub(super) fn expression_text(&mut self, text: &str) -> Result<Expr> {
        let parsed = crate::parse::parse_one(&format!("SELECT {text}"))?;
        let Some(Node::SelectStmt(select)) = parsed.statement() else {
            return Err(SqlError::new("42601", format!("not an expression: {text}")));
        };
        let target = select.target_list().iter().next().map(|target| target.val());
        let Some(node) = target.filter(|_| select.target_list().len() == 1) else {
            return Err(SqlError::new("42601", format!("not an expression: {text}")));
        };
        let before = std::mem::replace(&mut self.text, parsed.text().clone());
        let scopes = std::mem::take(&mut self.scopes);
        let expr = self.placed(Place::Default, |binder| binder.expr(node));
        self.scopes = scopes;
        self.text = before;
        // A position in the default's text would point into the statement's.
        expr.map_err(|mut error| {
            error.position = None;
            error
        })
    }

    /// A call of a function in FROM: of rows or not.
    pub(super) fn call_in_from(&mut self, node: Node<'_>) -> Result<Expr> {
        let Node::FuncCall(call) = node else {
            return self.expr(node);
        };
        let name = function_name(call).map_err(|error| self.at(error, call.location))?;
        let mut args = self.args(call)?;
        let inputs: Vec<Oid> = args.exprs.iter().map(|expr| expr.ty.oid).collect();
        let Some(candidate) = self.choose_function(call, &name, &mut args, &inputs)? else {
            return self.call_as_cast(&name, args.exprs, &inputs, call.location);
        };
        if call.over().is_some() {
            return self.fail("42P20", "window functions are not allowed in functions in FROM", call.location);
        }
        if candidate.function.kind.is_aggregate() {
            return self.fail("42803", "aggregate functions are not allowed in functions in FROM", call.location);
        }
        self.check_decorations(call, &name, candidate.function.kind)?;
        if !candidate.function.returns_set {
            return self.plain_call(candidate, args.exprs, call.location);
        }
        let function = candidate.function;
        let (args, returns) = self.finish_args(&candidate, args.exprs).map_err(|e| self.at(e, call.location))?;
        let display = Display::Function(function.name.to_string());
        Ok(Expr::new(ExprKind::Call { function: function.oid, display, args }, Type::of(returns)))
    }

    /// Refuses what is no call, with its place.
    pub(super) fn refuse_node<T>(&self, node: Node<'_>) -> Result<T> {
        Err(self.at(unsupported_node(node), location(node)))
    }
}

fn contains_window(expr: &Expr) -> bool {
    let mut found = false;
    walk::each(expr, &mut |expr| {
        found |= matches!(expr.kind, ExprKind::Window(_));
        if matches!(expr.kind, ExprKind::Subquery(_)) { Go::Past } else { Go::Deeper }
    });
    found
}

/// Which argument each parameter gets: None where its default applies. No places if a name or value is missing.
fn places(function: &Function, positional: usize, names: &[String]) -> Option<Vec<Option<usize>>> {
    if function.arg_names.len() != function.args.len() || positional > function.args.len() {
        return None;
    }
    let mut places: Vec<Option<usize>> = (0..function.args.len()).map(|at| (at < positional).then_some(at)).collect();
    for (at, name) in names.iter().enumerate() {
        let place = function.arg_names.iter().position(|known| known == name)?;
        if places[place].replace(positional + at).is_some() {
            return None;
        }
    }
    let first_default = function.args.len() - function.defaults.len();
    places.iter().take(first_default).all(Option::is_some).then_some(places)
}

/// PostgreSQL takes `type(x)` for a cast where no function of that name takes exactly `x`, and the cast needs no
/// function.
fn is_cast_in_disguise(name: &str, inputs: &[Oid]) -> bool {
    let ([from], Some(info)) = (inputs, builtins::type_by_name(name)) else { return false };
    if info.name != name {
        return false;
    }
    *from == types::UNKNOWN
        || matches!(pathway(*from, info.oid, CastContext::Explicit), Some(Pathway::Relabel | Pathway::InOut))
}

/// The text of a constant that is converted from it, such as `'seq'::regclass`.
fn text_of_cast(expr: &Expr) -> Option<&str> {
    match &expr.kind {
        ExprKind::Const(Value::Text(text)) => Some(text),
        ExprKind::Cast { arg, .. } => text_of_cast(arg),
        _ => None,
    }
}

/// The parts of a dotted name in text: folded to lower case, unless they are quoted.
fn identifier_parts(text: &str) -> Vec<String> {
    let (mut parts, mut part, mut quoted) = (Vec::new(), String::new(), false);
    for c in text.trim().chars() {
        match c {
            '"' => quoted = !quoted,
            '.' if !quoted => parts.push(std::mem::take(&mut part)),
            _ if quoted => part.push(c),
            _ => part.extend(c.to_lowercase()),
        }
    }
    parts.push(part);
    parts
}

/// What the session knows, and not a function.
fn context_of(function: &Function, args: &[Expr]) -> Option<Context> {
    let text = |at: usize| match args.get(at).map(|arg| &arg.kind) {
        Some(ExprKind::Const(Value::Text(text))) => Some(text.clone()),
        _ => None,
    };
    let flag = |at: usize| match args.get(at).map(|arg| &arg.kind) {
        Some(ExprKind::Const(Value::Bool(flag))) => Some(*flag),
        _ => None,
    };
    Some(match function.oid.0 {
        1299 | 2647 => Context::TransactionTime,
        2648 => Context::StatementTime,
        745 | 710 => Context::CurrentUser,
        746 => Context::SessionUser,
        861 => Context::CurrentDatabase,
        1402 => Context::CurrentSchema,
        1403 => Context::CurrentSchemas(flag(0)?),
        2026 => Context::BackendPid,
        2077 => Context::Setting { name: text(0)?, missing_ok: false },
        3294 => Context::Setting { name: text(0)?, missing_ok: flag(1)? },
        _ => return None,
    })
}
