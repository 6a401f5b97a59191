//! Expressions.

use super::super::call::{self, Callee, Op};
use super::super::native::{self, Class, Conversion};
use super::super::{Constants, compared_constant};
use super::{Printer, Result, function_name, joined, unsupported, walk};
use crate::builtins::{self, Volatility};
use crate::plan::ParamSource;
use crate::tree::{CastHow, Context, Expr, ExprKind, Quantifier};
use crate::types::{self, Oid, Type};
use isles_kernel::error::SqlError;
use isles_kernel::schema::EVERY_TENANT_GROUP;
use isles_kernel::value::Value;

/// Constants that are longer become parameters: a statement's text is kept, hashed and parsed.
const LITERAL_BYTES: usize = 100;
/// `unnest(anyarray)`.
const UNNEST: Oid = Oid(2331);
/// Arguments that SQLite gives a function, at most, with room for the callee and the settings.
const MAX_CALL_ARGS: usize = 100;

/// Whether a function's result depends on the session's settings, such as its time zone: PostgreSQL calls these
/// stable, and volatile ones may, too.
pub(super) fn needs_settings(function: Oid) -> bool {
    builtins::function(function).is_some_and(|function| function.volatility != Volatility::Immutable)
}

/// `bytea_output` and `extra_float_digits` count as settings as well, though PostgreSQL calls these immutable.
fn text_needs_settings(function: Oid) -> bool {
    needs_settings(function) || matches!(function.0, 31 | 201 | 215)
}

fn cast_needs_settings(how: CastHow, from: Oid, to: Oid) -> bool {
    match how {
        CastHow::Function(function) => needs_settings(function),
        CastHow::InOut => {
            builtins::type_by_oid(from).is_none_or(|ty| text_needs_settings(ty.output))
                || builtins::type_by_oid(to).is_none_or(|ty| text_needs_settings(ty.input))
        }
        CastHow::Relabel | CastHow::Modifier { .. } => false,
    }
}

impl Printer {
    pub(super) fn exprs(&mut self, exprs: &[Expr]) -> Result<String> {
        Ok(exprs.iter().map(|expr| self.expr(expr)).collect::<Result<Vec<_>>>()?.join(", "))
    }

    /// An expression that decides whether a row counts: unknown is as good as false here, which lets an index serve
    /// `column = ANY (array)`.
    pub(super) fn condition(&mut self, expr: &Expr) -> Result<String> {
        match &expr.kind {
            ExprKind::And(parts) => {
                let parts = parts.iter().map(|part| self.condition(part)).collect::<Result<Vec<_>>>()?;
                Ok(joined(&parts, " AND "))
            }
            ExprKind::OverArray { quantifier: Quantifier::Any, function, left, array, .. } => {
                match self.any_by_index(*function, left, array)? {
                    Some(text) => Ok(text),
                    None => self.expr(expr),
                }
            }
            _ => self.expr(expr),
        }
    }

    fn any_by_index(&mut self, function: Oid, left: &Expr, array: &Expr) -> Result<Option<String>> {
        let bare = matches!(left.kind, ExprKind::Column { .. }) && walk::is_constant(array);
        let Some(element) = builtins::element_of(array.ty.oid) else { return Ok(None) };
        let Some(class) = native::equality(function, left.ty.oid).filter(|_| bare) else { return Ok(None) };
        let callee =
            Callee { op: Op::Function(UNNEST), args: vec![array.ty.oid], result: Type::of(element), settings: false };
        let column = self.expr(left)?;
        let rows = self.call_text(call::ROWS, &callee, std::slice::from_ref(array))?;
        let suffix = match class {
            Class::Collated(collation) => format!(" COLLATE {collation}"),
            _ => String::new(),
        };
        Ok(Some(format!("({column}{suffix} IN (SELECT c0 FROM {rows}))")))
    }

    /// An expression, in parentheses unless it is one word or one call.
    pub(super) fn expr(&mut self, expr: &Expr) -> Result<String> {
        let ty = expr.ty;
        match &expr.kind {
            ExprKind::Const(value) => self.constant(value),
            ExprKind::Param(at) => Ok(self.params.place(ParamSource::Param(*at, ty))),
            ExprKind::Context(context) => Ok(self.params.place(ParamSource::Context(context.clone(), ty))),
            ExprKind::Column { rel, column } => self.column(*rel, *column),
            ExprKind::Hidden { rel, column } => self.hidden(*rel, column),
            ExprKind::Owned { group, bucket: tenant } if group.as_str() == EVERY_TENANT_GROUP => {
                let residents = self.params.place(ParamSource::Buckets(group.clone()));
                Ok(format!("{}({residents}, {})", call::OWNS_TENANT, self.expr(tenant)?))
            }
            ExprKind::Owned { group, bucket } => {
                let owned = self.params.place(ParamSource::Buckets(group.clone()));
                Ok(format!("{}({owned}, {})", call::OWNS, self.expr(bucket)?))
            }
            ExprKind::Call { function, args, .. } => self.call(*function, args, ty),
            ExprKind::Cast { arg, how } => self.cast(arg, *how, ty),
            ExprKind::And(parts) => self.terms(parts, " AND "),
            ExprKind::Or(parts) => self.terms(parts, " OR "),
            ExprKind::Not(arg) => Ok(format!("(NOT {})", self.expr(arg)?)),
            ExprKind::IsNull { arg, negated } => {
                Ok(format!("({} IS {}NULL)", self.expr(arg)?, if *negated { "NOT " } else { "" }))
            }
            ExprKind::IsBool { arg, value, negated } => {
                let value = value.map_or("NULL", |value| if value { "1" } else { "0" });
                Ok(format!("({} IS {}{value})", self.expr(arg)?, if *negated { "NOT " } else { "" }))
            }
            ExprKind::IsDistinct { left, right, equal, negated } => self.is_distinct(left, right, *equal, *negated),
            ExprKind::Case { arms, otherwise } => self.case(arms, otherwise.as_deref()),
            ExprKind::Coalesce(args) => match args.as_slice() {
                [one] => self.expr(one),
                args => Ok(format!("coalesce({})", self.exprs(args)?)),
            },
            ExprKind::Extreme { greatest, args } => {
                self.dispatch(if *greatest { Op::Greatest } else { Op::Least }, args, ty)
            }
            ExprKind::NullIf { left, right, equal } => self.null_if(left, right, *equal, ty),
            ExprKind::InList { arg, list, equal, negated } => self.in_list(arg, list, *equal, *negated),
            ExprKind::OverArray { quantifier, function, left, array, .. } => {
                let args = [(**left).clone(), (**array).clone()];
                self.dispatch(Op::OverArray(*quantifier, *function), &args, ty)
            }
            ExprKind::Subquery(subquery) => self.subquery(subquery, ty),
            ExprKind::Array(elements) => self.dispatch(Op::Array, elements, ty),
            ExprKind::Subscript { array, index } => {
                let args: Vec<Expr> = std::iter::once(&**array).chain(index).cloned().collect();
                self.dispatch(Op::Subscript, &args, ty)
            }
            ExprKind::Slice { array, from, to } => {
                let op = Op::Slice { from: from.is_some(), to: to.is_some() };
                let bounds = from.as_deref().into_iter().chain(to.as_deref());
                let args: Vec<Expr> = std::iter::once(&**array).chain(bounds).cloned().collect();
                self.dispatch(op, &args, ty)
            }
            ExprKind::Row(_) => Err(unsupported("a value of a row type")),
            ExprKind::Aggregate(aggregate) => self.aggregate(aggregate, ty),
            ExprKind::Window(window) => self.window(window, ty),
            ExprKind::Grouping(positions) => {
                // Without grouping sets every key is grouped by.
                Ok(if positions.is_empty() { "NULL" } else { "0" }.into())
            }
        }
    }

    fn terms(&mut self, parts: &[Expr], word: &str) -> Result<String> {
        let parts = parts.iter().map(|part| self.expr(part)).collect::<Result<Vec<_>>>()?;
        Ok(joined(&parts, word))
    }

    pub(super) fn call(&mut self, function: Oid, args: &[Expr], ty: Type) -> Result<String> {
        if let [left, right] = args
            && let Some((symbol, class)) = native::comparison(function, left.ty.oid)
        {
            let (left, right) = (self.side(left, right)?, self.side(right, left)?);
            return Ok(match class {
                Class::Collated(collation) => format!("({left} {symbol} {right} COLLATE {collation})"),
                _ => format!("({left} {symbol} {right})"),
            });
        }
        self.dispatch(Op::Function(function), args, ty)
    }

    /// One side of a comparison.
    fn side(&mut self, side: &Expr, other: &Expr) -> Result<String> {
        match compared_constant(side, other) {
            Some(value) if self.params.constants == Constants::Bound => {
                Ok(self.params.place(ParamSource::Const(value.clone())))
            }
            _ => self.expr(side),
        }
    }

    /// A call of a dispatcher.
    pub(super) fn dispatch(&mut self, op: Op, args: &[Expr], ty: Type) -> Result<String> {
        if args.len() > MAX_CALL_ARGS {
            return Err(SqlError::new(
                "54023",
                format!("cannot pass more than {MAX_CALL_ARGS} arguments to a function"),
            ));
        }
        let function = match op {
            Op::Function(function)
            | Op::IsDistinct(function)
            | Op::NullIf(function)
            | Op::InList(function)
            | Op::OverArray(_, function) => Some(function),
            _ => None,
        };
        let settings = match op {
            Op::Cast(how) => args.iter().any(|arg| cast_needs_settings(how, arg.ty.oid, ty.oid)),
            _ => function.is_some_and(needs_settings),
        };
        let name = match function {
            Some(function) => dispatcher(function)?,
            None => call::STEADY,
        };
        let callee = Callee { op, args: args.iter().map(|arg| arg.ty.oid).collect(), result: ty, settings };
        self.call_text(name, &callee, args)
    }

    pub(super) fn call_text(&mut self, name: &str, callee: &Callee, args: &[Expr]) -> Result<String> {
        let mut parts = vec![format!("'{callee}'")];
        for arg in args {
            parts.push(self.expr(arg)?);
        }
        if callee.settings {
            parts.push(self.params.place(ParamSource::Context(Context::Settings, Type::of(types::TEXT))));
        }
        Ok(format!("{name}({})", parts.join(", ")))
    }

    fn cast(&mut self, arg: &Expr, how: CastHow, ty: Type) -> Result<String> {
        match native::conversion(how, arg.ty.oid, ty.oid) {
            Some(Conversion::Nothing) => self.expr(arg),
            Some(Conversion::Real) => Ok(format!("CAST({} AS REAL)", self.expr(arg)?)),
            None => self.dispatch(Op::Cast(how), std::slice::from_ref(arg), ty),
        }
    }

    fn is_distinct(&mut self, left: &Expr, right: &Expr, equal: Oid, negated: bool) -> Result<String> {
        if let Some(class) = native::equality(equal, left.ty.oid) {
            let (left, right) = (self.expr(left)?, self.expr(right)?);
            let word = if negated { "IS" } else { "IS NOT" };
            return Ok(match class {
                Class::Collated(collation) => format!("({left} {word} {right} COLLATE {collation})"),
                _ => format!("({left} {word} {right})"),
            });
        }
        let args = [left.clone(), right.clone()];
        let text = self.dispatch(Op::IsDistinct(equal), &args, Type::of(types::BOOL))?;
        Ok(if negated { format!("(NOT {text})") } else { text })
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

    fn null_if(&mut self, left: &Expr, right: &Expr, equal: Oid, ty: Type) -> Result<String> {
        match native::equality(equal, left.ty.oid) {
            Some(Class::Collated(collation)) => {
                Ok(format!("nullif({} COLLATE {collation}, {})", self.expr(left)?, self.expr(right)?))
            }
            Some(_) => Ok(format!("nullif({}, {})", self.expr(left)?, self.expr(right)?)),
            None => self.dispatch(Op::NullIf(equal), &[left.clone(), right.clone()], ty),
        }
    }

    fn in_list(&mut self, arg: &Expr, list: &[Expr], equal: Oid, negated: bool) -> Result<String> {
        let Some(class) = native::equality(equal, arg.ty.oid) else {
            let args: Vec<Expr> = std::iter::once(arg).chain(list).cloned().collect();
            let text = self.dispatch(Op::InList(equal), &args, Type::of(types::BOOL))?;
            return Ok(if negated { format!("(NOT {text})") } else { text });
        };
        let suffix = match class {
            Class::Collated(collation) => format!(" COLLATE {collation}"),
            _ => String::new(),
        };
        let word = if negated { "NOT IN" } else { "IN" };
        Ok(format!("({}{suffix} {word} ({}))", self.expr(arg)?, self.exprs(list)?))
    }

    /// A literal, if it is short and SQLite reads it exactly; else a parameter.
    fn constant(&mut self, value: &Value) -> Result<String> {
        let short = |bytes: usize| bytes <= LITERAL_BYTES;
        Ok(match value {
            Value::Null => "NULL".into(),
            Value::Bool(b) => u8::from(*b).to_string(),
            Value::Int(n) | Value::Time(n) | Value::Timestamp(n) | Value::TimestampTz(n) if *n != i64::MIN => {
                number(*n)
            }
            Value::Date(n) => number(i64::from(*n)),
            // SQLite reads few decimals exactly; whole numbers it does.
            Value::Float(x) if x.fract() == 0.0 && (1.0..1e15).contains(x) => format!("{x:.1}"),
            Value::Text(s) | Value::Json(s) if s.contains('\0') => {
                return Err(SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\": 0x00"));
            }
            Value::Text(s) | Value::Json(s) if short(s.len()) => super::super::text_literal(s),
            Value::Numeric(n) if short(n.as_str().len()) => super::super::text_literal(n.as_str()),
            Value::Bytes(b) if short(b.len()) => format!("x'{}'", super::super::hex(b)),
            Value::Uuid(u) => format!("x'{}'", super::super::hex(u)),
            other => self.params.place(ParamSource::Const(other.clone())),
        })
    }
}

fn number(n: i64) -> String {
    if n < 0 { format!("({n})") } else { n.to_string() }
}

/// Who calls a function: SQLite may compute a steady one once and use it again.
fn dispatcher(function: Oid) -> Result<&'static str> {
    if native::is_sequence_function(function) {
        return Err(unsupported(format!("function {}", function_name(function))));
    }
    match builtins::function(function) {
        Some(info) if info.volatility == Volatility::Volatile => Ok(call::VOLATILE),
        Some(_) => Ok(call::STEADY),
        None => Err(unsupported(format!("function {}", function_name(function)))),
    }
}
