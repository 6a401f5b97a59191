//! GROUP BY, grouping sets, aggregates and windows.

use super::super::call::{self, Callee, Gather, Op};
use super::super::native::{self, Class};
use super::{Printer, Result, direction, equality_suffix, order_suffix, unsupported, walk};
use crate::tree::{
    Aggregate, Expr, ExprKind, Frame, FrameBound, FrameExclude, FrameUnit, GroupBy, Select, SortExpr, WindowCall,
};
use crate::types::{self, Type};
use isles_kernel::value::Value;

/// `regr_count`.
const REGR_COUNT: types::Oid = types::Oid(2818);

pub(super) fn has_sets(select: &Select) -> bool {
    matches!(select.group_by, GroupBy::Sets { .. })
}

impl Printer {
    pub(super) fn group_by(&mut self, select: &Select) -> Result<String> {
        let keys = match &select.group_by {
            GroupBy::None => return Ok(String::new()),
            GroupBy::Keys(keys) => keys,
            GroupBy::Sets { .. } => return Err(unsupported("grouping sets here")),
        };
        let mut having: Vec<String> = Vec::new();
        if let Some(condition) = &select.having {
            having.push(self.condition(condition)?);
        }
        if keys.is_empty() {
            // SQLite takes a select for one group only if there is an aggregate in it.
            having.push("count(*) >= 0".into());
            return Ok(format!(" HAVING {}", having.join(" AND ")));
        }
        let keys = keys.iter().map(|key| self.group_key(key)).collect::<Result<Vec<_>>>()?;
        let having = if having.is_empty() { String::new() } else { format!(" HAVING {}", having.join(" AND ")) };
        Ok(format!(" GROUP BY {}{having}", keys.join(", ")))
    }

    fn group_key(&mut self, key: &Expr) -> Result<String> {
        if walk::is_volatile(key) {
            return Err(unsupported("GROUP BY of a volatile function"));
        }
        // A number would be taken for a position. Any other constant makes the same groups.
        if walk::is_constant(key) {
            return Ok("(1 IS NULL)".into());
        }
        Ok(format!("{}{}", self.expr(key)?, equality_suffix(key.ty)?))
    }

    /// One select for each set, put together. Keys that a set does not group by are null in it.
    pub(super) fn grouping_sets(&mut self, select: &Select) -> Result<String> {
        let GroupBy::Sets { keys, sets } = &select.group_by else { return Err(unsupported("grouping sets here")) };
        let mut volatile = false;
        let mut windows = false;
        walk::select(select, &mut |part| {
            volatile |= walk::is_volatile(part);
            windows |= matches!(part.kind, ExprKind::Window(_));
        });
        if volatile || windows {
            return Err(unsupported("grouping sets with window functions or volatile functions"));
        }
        let parts = sets.iter().map(|set| {
            let mut one = select.clone();
            let absent: Vec<usize> = (0..keys.len()).filter(|at| !set.contains(at)).collect();
            one.targets.iter_mut().chain(&mut one.having).for_each(|expr| reduce(expr, keys, &absent));
            one.group_by = GroupBy::Keys(set.iter().map(|at| keys[*at].clone()).collect());
            self.select_core(&one, one.targets.len())
        });
        Ok(parts.collect::<Result<Vec<_>>>()?.join(" UNION ALL "))
    }

    pub(super) fn aggregate(&mut self, of: &Aggregate, ty: Type) -> Result<String> {
        let arg = of.args.first().map(|arg| arg.ty.oid);
        let text = match native::aggregate(of.function, &of.name, arg) {
            Some(name) if of.args.len() <= 1 && !of.within_group => self.native_aggregate(name, of)?,
            _ => self.foreign_aggregate(of, ty)?,
        };
        let text = format!("{text}{}", self.filter_clause(of.filter.as_ref())?);
        // Of no rows this one is not null, and an aggregate of no rows is not told what it is.
        Ok(if of.function == REGR_COUNT { format!("coalesce({text}, 0)") } else { text })
    }

    fn filter_clause(&mut self, filter: Option<&Expr>) -> Result<String> {
        match filter {
            Some(filter) => Ok(format!(" FILTER (WHERE {})", self.condition(filter)?)),
            None => Ok(String::new()),
        }
    }

    fn native_aggregate(&mut self, name: &str, of: &Aggregate) -> Result<String> {
        let Some(arg) = of.args.first() else { return Ok(format!("{name}(*)")) };
        let distinct = if of.distinct { "DISTINCT " } else { "" };
        let suffix = match native::class(arg.ty.oid) {
            Class::Collated(collation) => format!(" COLLATE {collation}"),
            _ if of.distinct => equality_suffix(arg.ty)?,
            _ => String::new(),
        };
        let order = self.sort_clause(&of.order_by)?;
        Ok(format!("{name}({distinct}{}{suffix}{order})", self.expr(arg)?))
    }

    /// An aggregate of ours. Distinct values are sorted, as PostgreSQL sorts them, so that equal ones follow each other.
    fn foreign_aggregate(&mut self, of: &Aggregate, ty: Type) -> Result<String> {
        let direct = of.within_group.then_some(of.args.len());
        let mut args = of.args.clone();
        if of.within_group {
            args.extend(of.order_by.iter().map(|sort| sort.expr.clone()));
        }
        let mut order = of.order_by.clone();
        if of.distinct {
            let rest: Vec<&Expr> = args.iter().filter(|arg| !order.iter().any(|sort| sort.expr == **arg)).collect();
            let rest = rest.into_iter().filter(|arg| !walk::is_constant(arg)).map(ascending).collect::<Vec<_>>();
            order.extend(rest);
        }
        let how = Gather { distinct: of.distinct, moving: false, direct };
        let text = self.aggregate_call(of.function, how, &args, ty)?;
        let order = self.sort_clause(&order)?;
        Ok(format!("{}{order})", &text[..text.len() - 1]))
    }

    fn aggregate_call(&mut self, function: types::Oid, how: Gather, args: &[Expr], ty: Type) -> Result<String> {
        let settings = super::expr::needs_settings(function);
        let callee = Callee {
            op: Op::Aggregate { function, how },
            args: args.iter().map(|arg| arg.ty.oid).collect(),
            result: ty,
            settings,
        };
        self.call_text(call::AGGREGATE, &callee, args)
    }

    fn sort_clause(&mut self, order: &[SortExpr]) -> Result<String> {
        let parts = order.iter().map(|sort| self.sort(sort)).collect::<Result<Vec<_>>>()?;
        Ok(if parts.is_empty() { String::new() } else { format!(" ORDER BY {}", parts.join(", ")) })
    }

    fn sort(&mut self, sort: &SortExpr) -> Result<String> {
        let suffix = order_suffix(sort.expr.ty)?;
        Ok(format!("{}{suffix}{}", self.expr(&sort.expr)?, direction(sort.descending, sort.nulls_first)))
    }

    pub(super) fn window(&mut self, of: &WindowCall, ty: Type) -> Result<String> {
        let text = match native::window(of.function) {
            Some(name) if !of.aggregate => self.window_function(name, of)?,
            _ if of.aggregate => self.window_aggregate(of, ty)?,
            _ => return Err(unsupported(format!("window function {}", of.name))),
        };
        let filter = self.filter_clause(of.filter.as_ref())?;
        let mut parts = Vec::new();
        if !of.partition_by.is_empty() {
            let keys = of.partition_by.iter().map(|key| self.group_key(key)).collect::<Result<Vec<_>>>()?;
            parts.push(format!("PARTITION BY {}", keys.join(", ")));
        }
        if !of.order_by.is_empty() {
            parts.push(self.sort_clause(&of.order_by)?.trim_start().to_string());
        }
        if let Some(frame) = &of.frame {
            parts.push(self.frame(frame, &of.order_by)?);
        }
        Ok(format!("{text}{filter} OVER ({})", parts.join(" ")))
    }

    /// SQLite takes other numbers than PostgreSQL where these are not positive.
    fn window_function(&mut self, name: &str, of: &WindowCall) -> Result<String> {
        let (number, least) = match name {
            "ntile" => (of.args.first(), 1),
            "nth_value" => (of.args.get(1), 1),
            "lag" | "lead" => (of.args.get(1), 0),
            _ => (None, 0),
        };
        if number.is_some_and(|number| !is_int_from(number, least)) {
            return Err(unsupported(format!("{name} with a number that is not a constant from {least}")));
        }
        Ok(format!("{name}({})", self.exprs(&of.args)?))
    }

    fn window_aggregate(&mut self, of: &WindowCall, ty: Type) -> Result<String> {
        let arg = of.args.first().map(|arg| arg.ty.oid);
        if let Some(name) = native::aggregate(of.function, &of.name, arg)
            && of.args.len() <= 1
        {
            let Some(arg) = of.args.first() else { return Ok(format!("{name}(*)")) };
            let suffix = match native::class(arg.ty.oid) {
                Class::Collated(collation) => format!(" COLLATE {collation}"),
                _ => String::new(),
            };
            return Ok(format!("{name}({}{suffix})", self.expr(arg)?));
        }
        let moving = of.frame.as_ref().is_some_and(|frame| frame.start != FrameBound::UnboundedPreceding);
        let how = Gather { distinct: false, moving, direct: None };
        self.aggregate_call(of.function, how, &of.args, ty)
    }

    fn frame(&mut self, frame: &Frame, order: &[SortExpr]) -> Result<String> {
        let unit = match frame.unit {
            FrameUnit::Rows => "ROWS",
            FrameUnit::Groups => "GROUPS",
            FrameUnit::Range => "RANGE",
        };
        let offsets = [&frame.start, &frame.end];
        let has_offset = offsets.iter().any(|b| matches!(b, FrameBound::Preceding(_) | FrameBound::Following(_)));
        let integers = order.iter().all(|sort| matches!(sort.expr.ty.oid, types::INT2 | types::INT4 | types::INT8));
        if frame.unit == FrameUnit::Range && has_offset && !integers {
            return Err(unsupported("RANGE with an offset, but for integers"));
        }
        let exclude = match frame.exclude {
            FrameExclude::Nothing => "",
            FrameExclude::CurrentRow => " EXCLUDE CURRENT ROW",
            FrameExclude::Group => " EXCLUDE GROUP",
            FrameExclude::Ties => " EXCLUDE TIES",
        };
        Ok(format!("{unit} BETWEEN {} AND {}{exclude}", bound(&frame.start)?, bound(&frame.end)?))
    }
}

fn bound(bound: &FrameBound) -> Result<String> {
    Ok(match bound {
        FrameBound::UnboundedPreceding => "UNBOUNDED PRECEDING".into(),
        FrameBound::Preceding(offset) => format!("{} PRECEDING", frame_offset(offset)?),
        FrameBound::CurrentRow => "CURRENT ROW".into(),
        FrameBound::Following(offset) => format!("{} FOLLOWING", frame_offset(offset)?),
        FrameBound::UnboundedFollowing => "UNBOUNDED FOLLOWING".into(),
    })
}

fn frame_offset(offset: &Expr) -> Result<i64> {
    match int_of(offset) {
        Some(n) if n >= 0 => Ok(n),
        _ => Err(unsupported("a frame whose offset is not a constant from 0")),
    }
}

/// A constant integer, also where it was widened.
fn int_of(expr: &Expr) -> Option<i64> {
    match &expr.kind {
        ExprKind::Const(Value::Int(n)) => Some(*n),
        ExprKind::Cast { arg, how } if native::conversion(*how, arg.ty.oid, expr.ty.oid).is_some() => int_of(arg),
        _ => None,
    }
}

fn is_int_from(expr: &Expr, least: i64) -> bool {
    int_of(expr).is_some_and(|n| n >= least)
}

fn ascending(expr: &Expr) -> SortExpr {
    SortExpr { expr: expr.clone(), descending: false, nulls_first: false }
}

/// Turns keys that are not grouped by into null, and GROUPING into its value. Arguments of aggregates see the rows
/// before they are grouped.
fn reduce(expr: &mut Expr, keys: &[Expr], absent: &[usize]) {
    if absent.iter().any(|at| keys[*at] == *expr) {
        expr.kind = ExprKind::Const(Value::Null);
        return;
    }
    match &mut expr.kind {
        ExprKind::Grouping(positions) => {
            let bits = positions.iter().fold(0, |bits, at| (bits << 1) | i64::from(absent.contains(at)));
            expr.kind = ExprKind::Const(Value::Int(bits));
        }
        ExprKind::Aggregate(_) => {}
        kind => children_mut(kind).into_iter().for_each(|child| reduce(child, keys, absent)),
    }
}

fn children_mut(kind: &mut ExprKind) -> Vec<&mut Expr> {
    match kind {
        ExprKind::Call { args, .. }
        | ExprKind::And(args)
        | ExprKind::Or(args)
        | ExprKind::Coalesce(args)
        | ExprKind::Extreme { args, .. }
        | ExprKind::Array(args)
        | ExprKind::Row(args) => args.iter_mut().collect(),
        ExprKind::Cast { arg, .. } | ExprKind::IsNull { arg, .. } | ExprKind::IsBool { arg, .. } => vec![arg],
        ExprKind::Not(arg) => vec![arg],
        ExprKind::IsDistinct { left, right, .. } | ExprKind::NullIf { left, right, .. } => vec![left, right],
        ExprKind::OverArray { left, array, .. } => vec![left, array],
        ExprKind::Case { arms, otherwise } => {
            arms.iter_mut().flat_map(|(when, then)| [when, then]).chain(otherwise.as_deref_mut()).collect()
        }
        ExprKind::InList { arg, list, .. } => std::iter::once(&mut **arg).chain(list).collect(),
        ExprKind::Subscript { array, index } => std::iter::once(&mut **array).chain(index).collect(),
        ExprKind::Slice { array, from, to } => {
            std::iter::once(&mut **array).chain(from.as_deref_mut()).chain(to.as_deref_mut()).collect()
        }
        _ => vec![],
    }
}
