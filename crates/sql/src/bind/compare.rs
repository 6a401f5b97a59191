//! Comparisons of more than two values: rows, lists, ranges, arrays and subqueries.

use super::expr::{and, not, operator_name};
use super::resolve::{self, Choice, binary_operator, is_volatile};
use super::{Binder, Result};
use crate::builtins::{self, CastContext};
use crate::tree::{Expr, ExprKind, Quantifier, Query, Subquery, SubqueryKind};
use crate::types::{self, Oid, Type};
use isles_kernel::value::Value;
use pg_raw_parse::nodes::{self, A_Expr_Kind as Kind, SubLinkType};
use pg_raw_parse::{Node, list::NodeList};

fn or(mut args: Vec<Expr>) -> Expr {
    match args.len() {
        1 => args.remove(0),
        _ => Expr::new(ExprKind::Or(args), types::BOOL),
    }
}

fn is_null_constant(expr: &Expr) -> bool {
    expr.kind == ExprKind::Const(Value::Null) && expr.ty.oid == types::UNKNOWN
}

impl Binder<'_> {
    /// `(a, b) op (c, d)` as comparisons of the parts.
    pub(super) fn compare_rows(
        &mut self,
        name: &str,
        left: &nodes::RowExpr,
        right: &nodes::RowExpr,
        at: i32,
    ) -> Result<Expr> {
        let (left, right) = (self.exprs(left.args())?, self.exprs(right.args())?);
        self.compare_parts(name, left, right, at)
    }

    fn compare_parts(&mut self, name: &str, left: Vec<Expr>, right: Vec<Expr>, at: i32) -> Result<Expr> {
        if left.len() != right.len() {
            return self.fail("42601", "unequal number of entries in row expressions", at);
        }
        if left.is_empty() {
            return self.fail("0A000", "cannot compare rows of zero length", at);
        }
        let strict = match name {
            "=" | "<>" => return self.compare_each(name, left, right, at),
            "<" | "<=" => "<",
            ">" | ">=" => ">",
            _ => {
                let message = format!("could not determine interpretation of row comparison operator {name}");
                return self.fail("0A000", message, at);
            }
        };
        self.compare_in_order(name, strict, left, right, at)
    }

    fn compare_each(&mut self, name: &str, left: Vec<Expr>, right: Vec<Expr>, at: i32) -> Result<Expr> {
        let mut parts = Vec::with_capacity(left.len());
        for (left, right) in left.into_iter().zip(right) {
            parts.push(self.operator(name, Some(left), right, at)?);
        }
        Ok(if name == "=" { and(parts) } else { or(parts) })
    }

    /// `(a, b) < (c, d)` is `a < c OR (a = c AND b < d)`.
    fn compare_in_order(
        &mut self,
        last: &str,
        strict: &str,
        left: Vec<Expr>,
        right: Vec<Expr>,
        at: i32,
    ) -> Result<Expr> {
        if left.iter().chain(&right).any(is_volatile) {
            return self.refuse("an ordered comparison of rows with volatile parts", at);
        }
        let count = left.len();
        let mut ways = Vec::with_capacity(count);
        for upto in 0..count {
            let mut parts = Vec::with_capacity(upto + 1);
            for at_part in 0..upto {
                parts.push(self.operator("=", Some(left[at_part].clone()), right[at_part].clone(), at)?);
            }
            let name = if upto + 1 == count { last } else { strict };
            parts.push(self.operator(name, Some(left[upto].clone()), right[upto].clone(), at)?);
            ways.push(and(parts));
        }
        Ok(or(ways))
    }

    pub(super) fn distinct_from(&mut self, expr: &nodes::A_Expr) -> Result<Expr> {
        let negated = expr.kind == Kind::AEXPR_NOT_DISTINCT;
        let at = expr.location;
        if let (Node::RowExpr(left), Node::RowExpr(right)) = (expr.lexpr(), expr.rexpr()) {
            let (left, right) = (self.exprs(left.args())?, self.exprs(right.args())?);
            if left.len() != right.len() {
                return self.fail("42601", "unequal number of entries in row expressions", at);
            }
            let mut parts = Vec::with_capacity(left.len());
            for (left, right) in left.into_iter().zip(right) {
                parts.push(self.distinct_parts(left, right, negated, at)?);
            }
            return Ok(if negated { and(parts) } else { or(parts) });
        }
        let (left, right) = (self.expr(expr.lexpr())?, self.expr(expr.rexpr())?);
        self.distinct_parts(left, right, negated, at)
    }

    fn distinct_parts(&mut self, left: Expr, right: Expr, negated: bool, at: i32) -> Result<Expr> {
        let null_test = |arg| Expr::new(ExprKind::IsNull { arg: Box::new(arg), negated: !negated }, types::BOOL);
        if is_null_constant(&right) {
            return Ok(null_test(self.resolve_unknown(left)?));
        }
        if is_null_constant(&left) {
            return Ok(null_test(self.resolve_unknown(right)?));
        }
        let (left, right, equal) = self.equal_parts(left, right, "=", at)?;
        let kind = ExprKind::IsDistinct { left: Box::new(left), right: Box::new(right), equal, negated };
        Ok(Expr::new(kind, types::BOOL))
    }

    /// `x BETWEEN a AND b` is `x >= a AND x <= b`.
    pub(super) fn between(&mut self, expr: &nodes::A_Expr) -> Result<Expr> {
        let at = expr.location;
        let bounds = match expr.rexpr() {
            Node::NodeList(bounds) => bounds,
            other => return Err(super::unsupported_node(other)),
        };
        let (Some(low), Some(high)) = (bounds.get(0), bounds.get(1)) else {
            return self.refuse("BETWEEN without bounds", at);
        };
        let subject = self.expr(expr.lexpr())?;
        let (low, high) = (self.expr(low)?, self.expr(high)?);
        let negated = matches!(expr.kind, Kind::AEXPR_NOT_BETWEEN | Kind::AEXPR_NOT_BETWEEN_SYM);
        let symmetric = matches!(expr.kind, Kind::AEXPR_BETWEEN_SYM | Kind::AEXPR_NOT_BETWEEN_SYM);
        let straight = self.within(&subject, &low, &high, negated, at)?;
        if !symmetric {
            return Ok(straight);
        }
        let swapped = self.within(&subject, &high, &low, negated, at)?;
        Ok(if negated { and(vec![straight, swapped]) } else { or(vec![straight, swapped]) })
    }

    fn within(&mut self, subject: &Expr, low: &Expr, high: &Expr, negated: bool, at: i32) -> Result<Expr> {
        let (from, to) = if negated { ("<", ">") } else { (">=", "<=") };
        let lower = self.operator(from, Some(self.decided(subject)), self.decided(low), at)?;
        let upper = self.operator(to, Some(self.decided(subject)), self.decided(high), at)?;
        Ok(if negated { or(vec![lower, upper]) } else { and(vec![lower, upper]) })
    }

    /// A copy, with the type that a parameter has been given meanwhile.
    fn decided(&self, expr: &Expr) -> Expr {
        match expr.kind {
            ExprKind::Param(at) => Expr::new(ExprKind::Param(at), self.params[at]),
            _ => expr.clone(),
        }
    }

    /// `x IN (a, b)`.
    pub(super) fn in_list(&mut self, expr: &nodes::A_Expr) -> Result<Expr> {
        let negated = operator_name(expr.name())? == "<>";
        let at = expr.location;
        let Node::NodeList(list) = expr.rexpr() else { return Err(super::unsupported_node(expr.rexpr())) };
        if let Node::RowExpr(row) = expr.lexpr() {
            return self.row_in_list(row, list, negated, at);
        }
        let arg = self.expr(expr.lexpr())?;
        let list = self.exprs(list)?;
        let oids: Vec<Oid> = std::iter::once(&arg).chain(&list).map(|e| e.ty.oid).collect();
        let common = super::coerce::common_type(&oids).ok().filter(|oid| *oid != types::RECORD);
        match common.filter(|oid| resolve::equality(*oid).is_ok()) {
            Some(common) => self.in_common_list(arg, list, common, negated, at),
            None => self.in_separately(arg, list, negated, at),
        }
    }

    fn in_common_list(&mut self, arg: Expr, list: Vec<Expr>, common: Oid, negated: bool, at: i32) -> Result<Expr> {
        // The equality of a type that has none of its own is that of the type it converts to.
        let equal = resolve::equality(common)?;
        let of = builtins::function(equal).and_then(|f| f.args.first().copied()).unwrap_or(common);
        let of = if builtins::is_polymorphic(of) { common } else { of };
        let arg = self.coerce_to_common(arg, common, "IN", at)?;
        let arg = Box::new(self.coerce(arg, of, CastContext::Implicit)?);
        let mut coerced = Vec::with_capacity(list.len());
        for expr in list {
            let expr = self.coerce_to_common(expr, common, "IN", at)?;
            coerced.push(self.coerce(expr, of, CastContext::Implicit)?);
        }
        Ok(Expr::new(ExprKind::InList { arg, list: coerced, equal, negated }, types::BOOL))
    }

    fn in_separately(&mut self, arg: Expr, list: Vec<Expr>, negated: bool, at: i32) -> Result<Expr> {
        let name = if negated { "<>" } else { "=" };
        let mut parts = Vec::with_capacity(list.len());
        for expr in list {
            parts.push(self.operator(name, Some(arg.clone()), expr, at)?);
        }
        Ok(if negated { and(parts) } else { or(parts) })
    }

    fn row_in_list(&mut self, row: &nodes::RowExpr, list: &NodeList, negated: bool, at: i32) -> Result<Expr> {
        let left = self.exprs(row.args())?;
        let mut parts = Vec::with_capacity(list.len());
        for node in list {
            let Node::RowExpr(right) = node else {
                return self.fail("42601", "unequal number of entries in row expressions", at);
            };
            let right = self.exprs(right.args())?;
            parts.push(self.compare_parts(if negated { "<>" } else { "=" }, left.clone(), right, at)?);
        }
        Ok(if negated { and(parts) } else { or(parts) })
    }

    /// `x op ANY (array)`.
    pub(super) fn over_array(&mut self, expr: &nodes::A_Expr) -> Result<Expr> {
        let at = expr.location;
        let quantifier = if expr.kind == Kind::AEXPR_OP_ANY { Quantifier::Any } else { Quantifier::All };
        let name = operator_name(expr.name())?;
        let (left, array) = (self.expr(expr.lexpr())?, self.expr(expr.rexpr())?);
        let element = match array.ty.oid {
            types::UNKNOWN => types::UNKNOWN,
            oid => match builtins::element_of(oid) {
                Some(element) => element,
                None => return self.fail("42809", "op ANY/ALL (array) requires array on right side", at),
            },
        };
        let inputs = [left.ty.oid, element];
        let operator = self.chosen_operator(binary_operator(name, inputs[0], inputs[1]), name, &inputs, at)?;
        if operator.result != types::BOOL {
            return self.fail("42809", "op ANY/ALL (array) requires operator to yield boolean", at);
        }
        let declared: Vec<Oid> = operator.left.into_iter().chain([operator.right]).collect();
        let (declared, _) = resolve::resolve_generics(&inputs, &declared, operator.result)?;
        let Some(array_type) = builtins::array_of(declared[1]) else {
            let name = builtins::type_name(declared[1]);
            return self.fail("42704", format!("could not find array type for data type {name}"), at);
        };
        let left = Box::new(self.coerce(left, declared[0], CastContext::Implicit)?);
        let array = Box::new(self.coerce(array, array_type, CastContext::Implicit)?);
        let operator_shown = operator.name.to_string();
        let kind =
            ExprKind::OverArray { quantifier, function: operator.function, operator: operator_shown, left, array };
        Ok(Expr::new(kind, types::BOOL))
    }

    pub(super) fn sublink(&mut self, link: &nodes::SubLink) -> Result<Expr> {
        let Node::SelectStmt(select) = link.subselect() else {
            return Err(super::unsupported_node(link.subselect()));
        };
        let at = link.location;
        let query = self.subquery(select)?;
        match link.sub_link_type {
            SubLinkType::EXISTS_SUBLINK => {
                Ok(subquery(SubqueryKind::Exists { negated: false }, query, Type::of(types::BOOL)))
            }
            SubLinkType::EXPR_SUBLINK => {
                let ty = self.only_column(&query, at)?;
                Ok(subquery(SubqueryKind::Scalar, query, ty))
            }
            SubLinkType::ARRAY_SUBLINK => {
                let ty = self.only_column(&query, at)?;
                let Some(array) = builtins::array_of(ty.oid) else {
                    let name = builtins::type_name(ty.oid);
                    return self.fail("42704", format!("could not find array type for data type {name}"), at);
                };
                Ok(subquery(SubqueryKind::Array, query, Type::with(array, ty.modifier)))
            }
            SubLinkType::ANY_SUBLINK | SubLinkType::ALL_SUBLINK => self.quantified(link, query),
            _ => self.refuse("this form of subquery", at),
        }
    }

    fn only_column(&self, query: &Query, at: i32) -> Result<Type> {
        match query.columns.as_slice() {
            [column] => Ok(column.ty),
            _ => self.fail("42601", "subquery must return only one column", at),
        }
    }

    fn quantified(&mut self, link: &nodes::SubLink, query: Query) -> Result<Expr> {
        let at = link.location;
        let name = if link.oper_name().is_empty() { "=" } else { operator_name(link.oper_name())? };
        let any = link.sub_link_type == SubLinkType::ANY_SUBLINK;
        let left = match link.testexpr() {
            Node::RowExpr(row) => self.exprs(row.args())?,
            node => vec![self.expr(node)?],
        };
        if left.len() != query.columns.len() {
            let many = if left.len() < query.columns.len() { "many" } else { "few" };
            return self.fail("42601", format!("subquery has too {many} columns"), at);
        }
        if any && name == "=" {
            return self.in_subquery(left, query, false, at);
        }
        // `<> ALL` is NOT IN by definition, for rows as well.
        if !any && name == "<>" {
            return self.in_subquery(left, query, true, at);
        }
        let Ok([left]) = <[Expr; 1]>::try_from(left) else {
            return self.refuse("an ordered comparison of rows with a subquery", at);
        };
        let (left, query, function, operator) = self.compare_to_column(left, query, 0, name, at)?;
        let quantifier = if any { Quantifier::Any } else { Quantifier::All };
        let kind = SubqueryKind::Quantified { quantifier, left, function, operator };
        Ok(subquery(kind, query, Type::of(types::BOOL)))
    }

    fn in_subquery(&mut self, left: Vec<Expr>, mut query: Query, negated: bool, at: i32) -> Result<Expr> {
        let (mut parts, mut equal) = (Vec::new(), Vec::new());
        for (column, expr) in left.into_iter().enumerate() {
            let (expr, rest, function, _) = self.compare_to_column(expr, query, column, "=", at)?;
            query = rest;
            parts.push(expr);
            equal.push(function);
        }
        let kind = SubqueryKind::In { left: parts, equal, negated: false };
        let expr = subquery(kind, query, Type::of(types::BOOL));
        Ok(if negated { not(expr) } else { expr })
    }

    /// Converts both sides to what the operator takes.
    fn compare_to_column(
        &mut self,
        left: Expr,
        query: Query,
        column: usize,
        name: &str,
        at: i32,
    ) -> Result<(Expr, Query, Oid, String)> {
        let right = query.columns[column].ty.oid;
        let inputs = [left.ty.oid, right];
        let choice: Choice<_> = binary_operator(name, left.ty.oid, right);
        let operator = self.chosen_operator(choice, name, &inputs, at)?;
        if operator.result != types::BOOL {
            let message =
                format!("operator {name} must return type boolean, not type {}", builtins::type_name(operator.result));
            return self.fail("42804", message, at);
        }
        let declared: Vec<Oid> = operator.left.into_iter().chain([operator.right]).collect();
        let (declared, _) = resolve::resolve_generics(&inputs, &declared, operator.result)?;
        let left = self.coerce(left, declared[0], CastContext::Implicit)?;
        let mut types: Vec<Type> = query.columns.iter().map(|column| column.ty).collect();
        if types[column].oid != declared[1] {
            types[column] = Type::of(declared[1]);
        }
        let query = self.coerce_columns(query, &types, CastContext::Implicit)?;
        Ok((left, query, operator.function, operator.name.to_string()))
    }
}

fn subquery(kind: SubqueryKind, query: Query, ty: Type) -> Expr {
    Expr::new(ExprKind::Subquery(Box::new(Subquery { kind, query })), ty)
}
