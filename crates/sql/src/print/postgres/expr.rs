//! Expressions.

use super::super::{Constants, compared_constant, text_literal, unsupported};
use super::{Printer, Result, carrier, collation, direction};
use crate::builtins::{self, Volatility};
use crate::plan::ParamSource;
use crate::runtime;
use crate::text::{IntervalStyle, Settings};
use crate::tree::{
    Aggregate, CastHow, Display, Expr, ExprKind, Frame, FrameBound, FrameExclude, FrameUnit, Quantifier, SortExpr,
    Subquery, SubqueryKind, WindowCall,
};
use crate::types::{self, BPCHAR, Oid, Type, VARCHAR};
use isles_kernel::error::SqlError;
use isles_kernel::schema::EVERY_TENANT_GROUP;
use isles_kernel::value::Value;

/// Constants that are longer become parameters.
const LITERAL_BYTES: usize = 100;

impl Printer {
    pub(super) fn exprs(&mut self, exprs: &[Expr]) -> Result<String> {
        Ok(exprs.iter().map(|expr| self.expr(expr)).collect::<Result<Vec<_>>>()?.join(", "))
    }

    /// An expression, in parentheses unless it is one word, one call or a cast of such.
    pub(super) fn expr(&mut self, expr: &Expr) -> Result<String> {
        let ty = expr.ty;
        match &expr.kind {
            ExprKind::Const(value) => self.constant(value, ty),
            ExprKind::Param(at) => self.bound(ParamSource::Param(*at, ty), ty),
            ExprKind::Context(context) => self.bound(ParamSource::Context(context.clone(), ty), ty),
            ExprKind::Column { rel, column } => self.column(*rel, *column),
            ExprKind::Hidden { rel, column } => self.hidden(*rel, column),
            ExprKind::Owned { group, bucket: tenant } if group.as_str() == EVERY_TENANT_GROUP => {
                let residents = self.bound(ParamSource::Buckets(group.clone()), Type::of(types::TEXT))?;
                Ok(format!("(_isles.owns_tenant({residents}, {}) IS TRUE)", self.expr(tenant)?))
            }
            ExprKind::Owned { group, bucket } => {
                let owned = self.bound(ParamSource::Buckets(group.clone()), Type::of(types::BYTEA))?;
                // Not `= 1`: the server tries an equality with a constant after what else is asked, and that may fail for
                // a row that is not meant.
                Ok(format!("(pg_catalog.get_bit({owned}, {}) <> 0)", self.expr(bucket)?))
            }
            ExprKind::Call { function, display, args } => self.call(*function, display, args),
            ExprKind::Cast { arg, how } => self.cast(arg, *how, ty),
            ExprKind::And(parts) => self.terms(parts, " AND "),
            ExprKind::Or(parts) => self.terms(parts, " OR "),
            ExprKind::Not(arg) => Ok(format!("(NOT {})", self.expr(arg)?)),
            ExprKind::IsNull { arg, negated } => Ok(format!("({} IS {}NULL)", self.expr(arg)?, not(*negated))),
            ExprKind::IsBool { arg, value, negated } => {
                let value = value.map_or("UNKNOWN", |value| if value { "TRUE" } else { "FALSE" });
                Ok(format!("({} IS {}{value})", self.expr(arg)?, not(*negated)))
            }
            ExprKind::IsDistinct { left, right, negated, .. } => {
                let (left, right) = (self.expr(left)?, self.expr(right)?);
                Ok(format!("({left} IS {}DISTINCT FROM {right})", not(*negated)))
            }
            ExprKind::Case { arms, otherwise } => self.case(arms, otherwise.as_deref()),
            ExprKind::Coalesce(args) => Ok(format!("COALESCE({})", self.exprs(args)?)),
            ExprKind::Extreme { greatest, args } => self.extreme(*greatest, args),
            ExprKind::NullIf { left, right, .. } => Ok(format!("NULLIF({}, {})", self.expr(left)?, self.expr(right)?)),
            ExprKind::InList { arg, list, negated, .. } => {
                Ok(format!("({} {}IN ({}))", self.expr(arg)?, not(*negated), self.exprs(list)?))
            }
            ExprKind::OverArray { quantifier, operator, left, array, .. } => {
                let word = quantifier_word(*quantifier);
                Ok(format!("({} {operator} {word} ({}))", self.expr(left)?, self.expr(array)?))
            }
            ExprKind::Subquery(subquery) => self.subquery(subquery),
            ExprKind::Array(elements) => Ok(format!("(ARRAY[{}]::{})", self.exprs(elements)?, type_text(ty))),
            ExprKind::Subscript { array, index } => {
                let index = index.iter().map(|at| self.expr(at)).collect::<Result<Vec<_>>>()?.join("][");
                Ok(format!("({})[{index}]", self.expr(array)?))
            }
            ExprKind::Slice { array, from, to } => {
                let mut part = |bound: &Option<Box<Expr>>| bound.as_ref().map(|bound| self.expr(bound)).transpose();
                let (from, to) = (part(from)?.unwrap_or_default(), part(to)?.unwrap_or_default());
                Ok(format!("({})[{from}:{to}]", self.expr(array)?))
            }
            ExprKind::Row(parts) => Ok(format!("ROW({})", self.exprs(parts)?)),
            ExprKind::Aggregate(aggregate) => self.aggregate(aggregate),
            ExprKind::Window(window) => self.window(window),
            ExprKind::Grouping(positions) => self.grouping(positions),
        }
    }

    fn terms(&mut self, parts: &[Expr], word: &str) -> Result<String> {
        let parts = parts.iter().map(|part| self.expr(part)).collect::<Result<Vec<_>>>()?;
        Ok(format!("({})", parts.join(word)))
    }

    /// A parameter: the server is told the type that the value travels as, and makes it what it is.
    fn bound(&mut self, source: ParamSource, ty: Type) -> Result<String> {
        let natural = types::natural(carrier(ty)?);
        let place = self.params.place(source);
        let text = format!("{place}::{}", type_text(Type::of(natural)));
        Ok(match ty.oid {
            oid if oid == natural => text,
            types::XID | types::CID => format!("({text}::text::{})", type_text(Type::of(ty.oid))),
            types::OID => format!("({text}::oid)"),
            _ if natural == types::INT8 => format!("({text}::oid::{})", type_text(Type::of(ty.oid))),
            _ => format!("({text}::{})", type_text(Type::of(ty.oid))),
        })
    }

    /// A literal where its text says it all; else a parameter.
    fn constant(&mut self, value: &Value, ty: Type) -> Result<String> {
        let plain = Type::of(ty.oid);
        let text = match value {
            Value::Null => return Ok(format!("NULL::{}", type_text(plain))),
            Value::Bool(b) => b.to_string(),
            Value::Int(n) => n.to_string(),
            // The shortest text that reads back as the same float, minus zero included.
            Value::Float(x) if x.is_finite() => format!("{x:?}"),
            Value::Numeric(n) => n.as_str().to_string(),
            Value::Text(s) | Value::Json(s) => s.clone(),
            Value::Date(_)
            | Value::Time(_)
            | Value::Timestamp(_)
            | Value::TimestampTz(_)
            | Value::Interval(_)
            | Value::Uuid(_) => steady_text(value, plain),
            other => return self.bound(ParamSource::Const(other.clone()), ty),
        };
        if text.contains('\0') {
            return Err(SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\": 0x00"));
        }
        // A backslash is plain only as long as the server's settings say so.
        if text.len() > LITERAL_BYTES || text.contains('\\') {
            return self.bound(ParamSource::Const(value.clone()), ty);
        }
        Ok(format!("{}::{}", text_literal(&text), type_text(plain)))
    }

    fn call(&mut self, function: Oid, display: &Display, args: &[Expr]) -> Result<String> {
        match (display, args) {
            (Display::Operator(symbol), [arg]) => Ok(format!("({symbol} {})", self.expr(arg)?)),
            (Display::Operator(symbol), [left, right]) => {
                let collate = if is_ordering(symbol) { collation(left.ty.oid) } else { "" };
                let (left, right) = (self.side(left, right)?, self.side(right, left)?);
                Ok(format!("({left}{collate} {symbol} {right})"))
            }
            _ => {
                let info = harmless(function)?;
                let mut parts = args.iter().map(|arg| self.expr(arg)).collect::<Result<Vec<_>>>()?;
                if let (Some(last), Some(arg)) = (parts.last_mut(), args.last())
                    && is_packed(info, args.len(), arg.ty.oid)
                {
                    *last = format!("VARIADIC {last}");
                }
                Ok(format!("pg_catalog.{}({})", super::quoted(info.name), parts.join(", ")))
            }
        }
    }

    /// One side of an operator.
    fn side(&mut self, side: &Expr, other: &Expr) -> Result<String> {
        match compared_constant(side, other) {
            Some(value) if self.params.constants == Constants::Bound => {
                self.bound(ParamSource::Const(value.clone()), side.ty)
            }
            _ => self.expr(side),
        }
    }

    fn cast(&mut self, arg: &Expr, how: CastHow, ty: Type) -> Result<String> {
        let text = self.expr(arg)?;
        // An explicit cast would cut what an assignment refuses.
        let assigned = how == CastHow::Modifier { explicit: false };
        Ok(match ty.oid {
            VARCHAR if assigned => format!("pg_catalog.\"varchar\"({text}, {}, false)", ty.modifier),
            BPCHAR if assigned => format!("pg_catalog.\"bpchar\"({text}, {}, false)", ty.modifier),
            _ => format!("({text})::{}", type_text(ty)),
        })
    }

    fn case(&mut self, arms: &[(Expr, Expr)], otherwise: Option<&Expr>) -> Result<String> {
        let mut out = String::from("CASE");
        for (when, then) in arms {
            out.push_str(&format!(" WHEN {} THEN {}", self.expr(when)?, self.expr(then)?));
        }
        if let Some(otherwise) = otherwise {
            out.push_str(&format!(" ELSE {}", self.expr(otherwise)?));
        }
        out.push_str(" END");
        Ok(out)
    }

    fn extreme(&mut self, greatest: bool, args: &[Expr]) -> Result<String> {
        let collate = args.first().map_or("", |arg| collation(arg.ty.oid));
        let parts = args.iter().map(|arg| Ok(format!("{}{collate}", self.expr(arg)?))).collect::<Result<Vec<_>>>()?;
        Ok(format!("{}({})", if greatest { "GREATEST" } else { "LEAST" }, parts.join(", ")))
    }

    fn subquery(&mut self, of: &Subquery) -> Result<String> {
        let rows = self.query(&of.query, of.query.columns.len())?;
        Ok(match &of.kind {
            SubqueryKind::Scalar => format!("({rows})"),
            SubqueryKind::Exists { negated } => format!("({}EXISTS ({rows}))", not(*negated)),
            SubqueryKind::In { left, negated, .. } => {
                let parts = self.exprs(left)?;
                let left = if left.len() == 1 { parts } else { format!("({parts})") };
                format!("({left} {}IN ({rows}))", not(*negated))
            }
            SubqueryKind::Quantified { quantifier, left, operator, .. } => {
                let collate = if is_ordering(operator) { collation(left.ty.oid) } else { "" };
                format!("({}{collate} {operator} {} ({rows}))", self.expr(left)?, quantifier_word(*quantifier))
            }
            SubqueryKind::Array => format!("ARRAY({rows})"),
        })
    }

    fn grouping(&mut self, positions: &[usize]) -> Result<String> {
        let keys = self.keys.last().cloned().unwrap_or_default();
        let parts: Vec<Expr> = positions.iter().filter_map(|at| keys.get(*at).cloned()).collect();
        Ok(format!("GROUPING({})", self.exprs(&parts)?))
    }

    fn aggregate(&mut self, of: &Aggregate) -> Result<String> {
        let name = function_text(of.function)?;
        let collate = matches!(of.name.as_str(), "min" | "max");
        let args = self.aggregate_args(&of.args, collate)?;
        let order = self.sort_clause(&of.order_by)?;
        let distinct = if of.distinct { "DISTINCT " } else { "" };
        let filter = self.filter_clause(of.filter.as_ref())?;
        Ok(match of.within_group {
            true => format!("{name}({args}) WITHIN GROUP ({}){filter}", order.trim_start()),
            false if of.args.is_empty() => format!("{name}(*){filter}"),
            false => format!("{name}({distinct}{args}{order}){filter}"),
        })
    }

    fn aggregate_args(&mut self, args: &[Expr], ordering: bool) -> Result<String> {
        let mut parts = Vec::new();
        for arg in args {
            let collate = if ordering { collation(arg.ty.oid) } else { "" };
            parts.push(format!("{}{collate}", self.expr(arg)?));
        }
        Ok(parts.join(", "))
    }

    fn filter_clause(&mut self, filter: Option<&Expr>) -> Result<String> {
        match filter {
            Some(filter) => Ok(format!(" FILTER (WHERE {})", self.expr(filter)?)),
            None => Ok(String::new()),
        }
    }

    fn sort_clause(&mut self, order: &[SortExpr]) -> Result<String> {
        let mut parts = Vec::new();
        for sort in order {
            let collate = collation(sort.expr.ty.oid);
            parts.push(format!("{}{collate}{}", self.expr(&sort.expr)?, direction(sort.descending, sort.nulls_first)));
        }
        Ok(if parts.is_empty() { String::new() } else { format!(" ORDER BY {}", parts.join(", ")) })
    }

    fn window(&mut self, of: &WindowCall) -> Result<String> {
        let name = function_text(of.function)?;
        let collate = matches!(of.name.as_str(), "min" | "max");
        let args = match of.args.as_slice() {
            [] if of.aggregate => "*".into(),
            args => self.aggregate_args(args, collate)?,
        };
        let filter = self.filter_clause(of.filter.as_ref())?;
        let mut parts = Vec::new();
        if !of.partition_by.is_empty() {
            parts.push(format!("PARTITION BY {}", self.exprs(&of.partition_by)?));
        }
        if !of.order_by.is_empty() {
            parts.push(self.sort_clause(&of.order_by)?.trim_start().to_string());
        }
        if let Some(frame) = &of.frame {
            parts.push(self.frame(frame)?);
        }
        Ok(format!("{name}({args}){filter} OVER ({})", parts.join(" ")))
    }

    fn frame(&mut self, frame: &Frame) -> Result<String> {
        let unit = match frame.unit {
            FrameUnit::Rows => "ROWS",
            FrameUnit::Groups => "GROUPS",
            FrameUnit::Range => "RANGE",
        };
        let exclude = match frame.exclude {
            FrameExclude::Nothing => "",
            FrameExclude::CurrentRow => " EXCLUDE CURRENT ROW",
            FrameExclude::Group => " EXCLUDE GROUP",
            FrameExclude::Ties => " EXCLUDE TIES",
        };
        let (start, end) = (self.frame_bound(&frame.start)?, self.frame_bound(&frame.end)?);
        Ok(format!("{unit} BETWEEN {start} AND {end}{exclude}"))
    }

    fn frame_bound(&mut self, bound: &FrameBound) -> Result<String> {
        Ok(match bound {
            FrameBound::UnboundedPreceding => "UNBOUNDED PRECEDING".into(),
            FrameBound::Preceding(offset) => format!("{} PRECEDING", self.expr(offset)?),
            FrameBound::CurrentRow => "CURRENT ROW".into(),
            FrameBound::Following(offset) => format!("{} FOLLOWING", self.expr(offset)?),
            FrameBound::UnboundedFollowing => "UNBOUNDED FOLLOWING".into(),
        })
    }
}

fn not(negated: bool) -> &'static str {
    if negated { "NOT " } else { "" }
}

fn quantifier_word(quantifier: Quantifier) -> &'static str {
    match quantifier {
        Quantifier::Any => "ANY",
        Quantifier::All => "ALL",
    }
}

fn is_ordering(symbol: &str) -> bool {
    matches!(symbol, "<" | "<=" | ">" | ">=")
}

fn type_text(ty: Type) -> String {
    builtins::format_type(ty)
}

/// A function that clients may call on a server. Some read its files, stop its sessions, run texts as SQL or leave
/// something behind in a connection that others use next. So those are allowed which only compute, and those which
/// Isles has itself, whose doing is known.
fn harmless(function: Oid) -> Result<&'static builtins::Function> {
    let info = builtins::function(function).ok_or_else(|| unsupported(format!("function number {}", function.0)))?;
    let waits = info.name == "pg_sleep";
    match waits || info.volatility == Volatility::Immutable || runtime::scalar(function).is_some() {
        true => Ok(info),
        false => Err(unsupported(format!("function {}", info.name))),
    }
}

fn function_text(function: Oid) -> Result<String> {
    let info = builtins::function(function).ok_or_else(|| unsupported(format!("function number {}", function.0)))?;
    Ok(format!("pg_catalog.{}", super::quoted(info.name)))
}

/// Whether the last argument is the array of the variadic parameter itself.
fn is_packed(info: &builtins::Function, args: usize, last: Oid) -> bool {
    info.variadic.is_some_and(|element| element != types::ANY)
        && args == info.args.len()
        && builtins::element_of(last).is_some()
}

/// The text of a date, a time or a uuid that reads the same under all settings of the server.
fn steady_text(value: &Value, ty: Type) -> String {
    let settings = Settings { interval_style: IntervalStyle::Iso8601, ..Settings::default() };
    let mut text = Vec::new();
    crate::text::output(value, ty, &settings, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}
