//! Expressions.

use super::coerce::can_coerce;
use super::resolve;
use super::{Binder, MAX_PARAMS, Result, typename, unsupported_node};
use crate::builtins::{self, CastContext};
use crate::tree::{Context, Expr, ExprKind, SubqueryKind};
use crate::types::{self, Type};
use isles_kernel::error::SqlError;
use isles_kernel::value::{Numeric, Value};
use pg_raw_parse::nodes::SQLValueFunctionOp as ValueOp;
use pg_raw_parse::nodes::{self, A_Expr_Kind as Kind, BoolExprType, BoolTestType, MinMaxOp, NullTestType};
use pg_raw_parse::{ConstValue, Node};

/// Columns that PostgreSQL has in every table, and Isles has not.
const SYSTEM_COLUMNS: [&str; 6] = ["ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"];

/// How far to look for the beginning of an expression: it may be deeper than the stack, and need not be bound yet.
const MAX_LOOKS: usize = 256;

/// Where an expression begins, as far as its node says.
pub(super) fn location(node: Node<'_>) -> i32 {
    let (mut node, mut found) = (node, -1);
    for _ in 0..MAX_LOOKS {
        let (own, leftmost) = own_location(node);
        if own >= 0 && (found < 0 || own < found) {
            found = own;
        }
        match leftmost {
            Some(next) => node = next,
            None => break,
        }
    }
    found
}

/// A node's own location, and the node that may stand before it.
fn own_location(node: Node<'_>) -> (i32, Option<Node<'_>>) {
    match node {
        Node::ColumnRef(n) => (n.location, None),
        Node::A_Const(n) => (n.location, None),
        Node::ParamRef(n) => (n.location, None),
        Node::FuncCall(n) => (n.location, None),
        Node::A_Expr(n) => (n.location, Some(n.lexpr())),
        Node::TypeCast(n) => (n.location, Some(n.arg())),
        Node::BoolExpr(n) => (n.location, n.args().first()),
        Node::CaseExpr(n) => (n.location, None),
        Node::CoalesceExpr(n) => (n.location, None),
        Node::MinMaxExpr(n) => (n.location, None),
        Node::SubLink(n) => (n.location, Some(n.testexpr())),
        Node::A_ArrayExpr(n) => (n.location, None),
        Node::RowExpr(n) => (n.location, None),
        Node::SQLValueFunction(n) => (n.location, None),
        Node::NullTest(n) => (-1, Some(n.arg())),
        Node::BooleanTest(n) => (-1, Some(n.arg())),
        Node::A_Indirection(n) => (-1, Some(n.arg())),
        Node::CollateClause(n) => (-1, Some(n.arg())),
        Node::SetToDefault(n) => (n.location, None),
        Node::GroupingFunc(n) => (n.location, None),
        Node::NamedArgExpr(n) => (n.location, None),
        Node::RangeVar(n) => (n.location, None),
        _ => (-1, None),
    }
}

/// The name of an operator, which may be written `OPERATOR(pg_catalog.+)`.
pub(super) fn operator_name(name: &pg_raw_parse::list::NodeList) -> Result<&str> {
    let parts: Vec<&str> = name.iter().filter_map(Node::as_str).collect();
    match parts.as_slice() {
        [name] | ["pg_catalog", name] => Ok(name),
        _ => Err(SqlError::new("42883", format!("operator does not exist: {}", parts.join(".")))),
    }
}

impl Binder<'_> {
    pub(super) fn expr(&mut self, node: Node<'_>) -> Result<Expr> {
        self.deeper(|binder| binder.expr_here(node))
    }

    fn expr_here(&mut self, node: Node<'_>) -> Result<Expr> {
        match node {
            Node::A_Const(constant) => self.constant(constant),
            Node::ColumnRef(column) => self.column_ref(column),
            Node::ParamRef(param) => self.param(param),
            Node::A_Expr(expr) => self.a_expr(expr),
            Node::BoolExpr(expr) => self.bool_expr(expr),
            Node::NullTest(test) => self.null_test(test),
            Node::BooleanTest(test) => self.boolean_test(test),
            Node::TypeCast(cast) => self.type_cast(cast),
            Node::CaseExpr(case) => self.case(case),
            Node::CoalesceExpr(coalesce) => self.coalesce(coalesce),
            Node::MinMaxExpr(extreme) => self.extreme(extreme),
            Node::FuncCall(call) => self.call(call),
            Node::SubLink(link) => self.sublink(link),
            Node::A_ArrayExpr(array) => self.array(array, None),
            Node::RowExpr(row) => self.row(row),
            Node::SQLValueFunction(value) => self.value_function(value),
            Node::A_Indirection(indirection) => self.indirection(indirection),
            Node::CollateClause(collate) => self.collate(collate),
            Node::GroupingFunc(grouping) => self.grouping(grouping),
            Node::SetToDefault(default) => {
                self.fail("42601", "DEFAULT is not allowed in this context", default.location)
            }
            other => Err(self.at(unsupported_node(other), location(other))),
        }
    }

    /// An expression that must be boolean: what WHERE and its kin say.
    pub(super) fn condition(&mut self, node: Node<'_>, what: &str) -> Result<Expr> {
        let expr = self.expr(node)?;
        self.coerce_to_boolean(expr, what, location(node))
    }

    fn constant(&mut self, constant: &nodes::A_Const) -> Result<Expr> {
        let (value, oid) = match constant.val() {
            None => (Value::Null, types::UNKNOWN),
            Some(ConstValue::Integer(n)) => (Value::Int(i64::from(n)), types::INT4),
            Some(ConstValue::Float(text)) => number(text).map_err(|error| self.at(error, constant.location))?,
            Some(ConstValue::Boolean(b)) => (Value::Bool(b), types::BOOL),
            Some(ConstValue::String(text)) => (Value::Text(text.into()), types::UNKNOWN),
            Some(_) => return self.refuse("a bit string", constant.location),
        };
        Ok(Expr::new(ExprKind::Const(value), oid))
    }

    fn param(&mut self, param: &nodes::ParamRef) -> Result<Expr> {
        let at = match usize::try_from(param.number) {
            Ok(number @ 1..=MAX_PARAMS) => number - 1,
            _ => return self.fail("42P02", format!("there is no parameter ${}", param.number), param.location),
        };
        if at >= self.params.len() {
            self.params.resize(at + 1, types::UNKNOWN);
        }
        Ok(Expr::new(ExprKind::Param(at), self.params[at]))
    }

    fn column_ref(&mut self, column: &nodes::ColumnRef) -> Result<Expr> {
        let at = column.location;
        let fields: Vec<Option<&str>> = column.fields().iter().map(Node::as_str).collect();
        match fields.as_slice() {
            [Some(name)] => self.bare_column(name, at),
            [Some(table), Some(name)] => {
                if *name != "tableoid" {
                    self.refuse_system_column(name, at)?;
                }
                self.qualified_column(None, table, name, at)
            }
            [Some(schema), Some(table), Some(name)] => self.qualified_column(Some(schema), table, name, at),
            [Some(catalog), Some(schema), Some(table), Some(name)] if *catalog == self.context.database => {
                self.qualified_column(Some(schema), table, name, at)
            }
            [.., None] => self.refuse("a whole row in an expression", at),
            [_, _, _, _, _, ..] => {
                let names: Vec<&str> = fields.iter().map(|field| field.unwrap_or("*")).collect();
                let message = format!("improper qualified name (too many dotted names): {}", names.join("."));
                self.fail("42601", message, at)
            }
            _ => self.refuse("a reference to another database", at),
        }
    }

    fn bare_column(&mut self, name: &str, at: i32) -> Result<Expr> {
        if let Some(expr) = self.column(name, at)? {
            return Ok(expr);
        }
        if self.item(None, name, at)?.is_some() {
            return self.refuse(format!("a whole row (\"{name}\") in an expression"), at);
        }
        self.refuse_system_column(name, at)?;
        Err(self.missing_column(None, name, at))
    }

    fn refuse_system_column(&self, name: &str, at: i32) -> Result<()> {
        let a_column = self.scopes.iter().flat_map(|s| &s.items).any(|i| i.columns.iter().any(|c| c.name == name));
        match SYSTEM_COLUMNS.contains(&name) && !a_column {
            true => self.refuse(format!("system column \"{name}\""), at),
            false => Ok(()),
        }
    }

    fn a_expr(&mut self, expr: &nodes::A_Expr) -> Result<Expr> {
        match expr.kind {
            Kind::AEXPR_OP | Kind::AEXPR_LIKE | Kind::AEXPR_ILIKE | Kind::AEXPR_SIMILAR => self.operation(expr),
            Kind::AEXPR_OP_ANY | Kind::AEXPR_OP_ALL => self.over_array(expr),
            Kind::AEXPR_DISTINCT | Kind::AEXPR_NOT_DISTINCT => self.distinct_from(expr),
            Kind::AEXPR_NULLIF => self.null_if(expr),
            Kind::AEXPR_IN => self.in_list(expr),
            _ => self.between(expr),
        }
    }

    fn operation(&mut self, expr: &nodes::A_Expr) -> Result<Expr> {
        let name = operator_name(expr.name())?;
        match (expr.lexpr(), expr.rexpr()) {
            (Node::None, right) => {
                let right = self.expr(right)?;
                self.operator(name, None, right, expr.location)
            }
            (Node::RowExpr(_), Node::SubLink(_)) => self.refuse("a row compared with a subquery", expr.location),
            (Node::RowExpr(left), Node::RowExpr(right)) => self.compare_rows(name, left, right, expr.location),
            (left, right) => {
                let left = self.expr(left)?;
                let right = self.expr(right)?;
                self.operator(name, Some(left), right, expr.location)
            }
        }
    }

    fn null_if(&mut self, expr: &nodes::A_Expr) -> Result<Expr> {
        let (left, right) = (self.expr(expr.lexpr())?, self.expr(expr.rexpr())?);
        let (left, right, equal) = self.equal_parts(left, right, "=", expr.location)?;
        let ty = left.ty;
        Ok(Expr::new(ExprKind::NullIf { left: Box::new(left), right: Box::new(right), equal }, ty))
    }

    /// The sides of an equality with their conversions, and its function.
    pub(super) fn equal_parts(
        &mut self,
        left: Expr,
        right: Expr,
        name: &str,
        at: i32,
    ) -> Result<(Expr, Expr, crate::types::Oid)> {
        let call = self.operator(name, Some(left), right, at)?;
        if call.ty.oid != types::BOOL {
            return self.fail("42804", "NULLIF requires = operator to yield boolean", at);
        }
        match call.kind {
            ExprKind::Call { function, args, .. } => match <[Expr; 2]>::try_from(args) {
                Ok([left, right]) => Ok((left, right, function)),
                Err(_) => self.refuse("this comparison", at),
            },
            _ => self.refuse("this comparison", at),
        }
    }

    fn bool_expr(&mut self, expr: &nodes::BoolExpr) -> Result<Expr> {
        let what = match expr.boolop {
            BoolExprType::AND_EXPR => "AND",
            BoolExprType::OR_EXPR => "OR",
            _ => "NOT",
        };
        let mut args = Vec::new();
        for arg in expr.args() {
            args.push(self.condition(arg, what)?);
        }
        Ok(match what {
            "AND" => and(args),
            "OR" => Expr::new(ExprKind::Or(args), types::BOOL),
            _ => args.into_iter().next().map_or_else(|| constant_bool(false), not),
        })
    }

    fn null_test(&mut self, test: &nodes::NullTest) -> Result<Expr> {
        let arg = self.expr(test.arg())?;
        // The test asks for no type, so it decides none.
        if let (ExprKind::Param(at), types::UNKNOWN) = (&arg.kind, arg.ty.oid) {
            let message = format!("could not determine data type of parameter ${}", at + 1);
            return self.fail("42P18", message, location(test.arg()));
        }
        let arg = self.resolve_unknown(arg)?;
        let negated = test.nulltesttype == NullTestType::IS_NOT_NULL;
        match arg.kind {
            // A row is null if all of its parts are, and not null if none is.
            ExprKind::Row(parts) => {
                let part = |arg| Expr::new(ExprKind::IsNull { arg: Box::new(arg), negated }, types::BOOL);
                Ok(and(parts.into_iter().map(part).collect()))
            }
            _ => Ok(Expr::new(ExprKind::IsNull { arg: Box::new(arg), negated }, types::BOOL)),
        }
    }

    fn boolean_test(&mut self, test: &nodes::BooleanTest) -> Result<Expr> {
        let (what, value, negated) = match test.booltesttype {
            BoolTestType::IS_TRUE => ("IS TRUE", Some(true), false),
            BoolTestType::IS_NOT_TRUE => ("IS NOT TRUE", Some(true), true),
            BoolTestType::IS_FALSE => ("IS FALSE", Some(false), false),
            BoolTestType::IS_NOT_FALSE => ("IS NOT FALSE", Some(false), true),
            BoolTestType::IS_UNKNOWN => ("IS UNKNOWN", None, false),
            _ => ("IS NOT UNKNOWN", None, true),
        };
        let arg = Box::new(self.condition(test.arg(), what)?);
        Ok(Expr::new(ExprKind::IsBool { arg, value, negated }, types::BOOL))
    }

    fn type_cast(&mut self, cast: &nodes::TypeCast) -> Result<Expr> {
        let Some(name) = cast.type_name() else { return self.refuse("a cast without a type", cast.location) };
        let to = typename::resolve(name).map_err(|error| self.at(error, name.location))?;
        let arg = match cast.arg() {
            Node::A_ArrayExpr(array) if builtins::element_of(to.oid).is_some() => self.array(array, Some(to.oid))?,
            other => self.expr(other)?,
        };
        // A literal that cannot be read is shown itself.
        let at = match cast.arg() {
            Node::A_Const(literal) => literal.location,
            _ if cast.location >= 0 => cast.location,
            other => location(other),
        };
        self.cast(arg, to, at)
    }

    fn case(&mut self, case: &nodes::CaseExpr) -> Result<Expr> {
        let subject = match case.arg() {
            Node::None => None,
            node => Some(self.case_subject(node)?),
        };
        let (mut conditions, mut results) = (Vec::new(), Vec::new());
        for arm in case.args() {
            let Node::CaseWhen(when) = arm else { return Err(unsupported_node(arm)) };
            conditions.push(self.case_condition(subject.as_ref(), when)?);
            results.push(self.expr(when.result())?);
        }
        let otherwise = match case.defresult() {
            Node::None => Expr::new(ExprKind::Const(Value::Null), types::UNKNOWN),
            node => self.expr(node)?,
        };
        // PostgreSQL looks at the ELSE first when it looks for the common type.
        results.insert(0, otherwise);
        let at = location(case.defresult()).max(case.location);
        let (mut results, ty) = self.unify(results, "CASE", at)?;
        let otherwise = results.remove(0);
        let otherwise = (otherwise.kind != ExprKind::Const(Value::Null)).then(|| Box::new(otherwise));
        let arms = conditions.into_iter().zip(results).collect();
        Ok(Expr::new(ExprKind::Case { arms, otherwise }, ty))
    }

    fn case_subject(&mut self, node: Node<'_>) -> Result<Expr> {
        let subject = self.expr(node)?;
        let subject = self.resolve_unknown(subject)?;
        if resolve::is_volatile(&subject) {
            return self.refuse("CASE over an expression that is volatile", location(node));
        }
        Ok(subject)
    }

    fn case_condition(&mut self, subject: Option<&Expr>, when: &nodes::CaseWhen) -> Result<Expr> {
        let Some(subject) = subject else { return self.condition(when.expr(), "CASE/WHEN") };
        let value = self.expr(when.expr())?;
        let equal = self.operator("=", Some(subject.clone()), value, when.location)?;
        self.coerce_to_boolean(equal, "CASE/WHEN", when.location)
    }

    fn coalesce(&mut self, coalesce: &nodes::CoalesceExpr) -> Result<Expr> {
        let args = self.exprs(coalesce.args())?;
        let (args, ty) = self.unify(args, "COALESCE", coalesce.location)?;
        Ok(Expr::new(ExprKind::Coalesce(args), ty))
    }

    fn extreme(&mut self, extreme: &nodes::MinMaxExpr) -> Result<Expr> {
        let greatest = extreme.op == MinMaxOp::IS_GREATEST;
        let args = self.exprs(extreme.args())?;
        let what = if greatest { "GREATEST" } else { "LEAST" };
        let (args, ty) = self.unify(args, what, extreme.location)?;
        resolve::check_orderable(ty.oid).map_err(|_| {
            let name = builtins::type_name(ty.oid);
            let message = format!("could not identify a comparison function for type {name}");
            self.at(SqlError::new("42883", message), extreme.location)
        })?;
        Ok(Expr::new(ExprKind::Extreme { greatest, args }, ty))
    }

    pub(super) fn exprs(&mut self, nodes: &pg_raw_parse::list::NodeList) -> Result<Vec<Expr>> {
        nodes.iter().map(|node| self.expr(node)).collect()
    }

    /// `ARRAY[…]`; `wanted` is the array type it is cast to, which decides the elements of an empty one.
    fn array(&mut self, array: &nodes::A_ArrayExpr, wanted: Option<types::Oid>) -> Result<Expr> {
        if array.elements().iter().any(|node| matches!(node, Node::A_ArrayExpr(_))) {
            return self.refuse("an array of more than one dimension", array.location);
        }
        let elements = self.exprs(array.elements())?;
        let Some(wanted) = wanted else { return self.array_of_common_type(elements, array.location) };
        let element = builtins::element_of(wanted).unwrap_or(wanted);
        let mut coerced = Vec::with_capacity(elements.len());
        for expr in elements {
            coerced.push(self.cast(expr, Type::of(element), array.location)?);
        }
        Ok(Expr::new(ExprKind::Array(coerced), wanted))
    }

    fn array_of_common_type(&mut self, elements: Vec<Expr>, at: i32) -> Result<Expr> {
        if elements.is_empty() {
            let error = SqlError::new("42P18", "cannot determine type of empty array");
            let hint = "Explicitly cast to the desired type, for example ARRAY[]::integer[].";
            return Err(self.at(error.with_hint(hint), at));
        }
        let (elements, element) = self.unify(elements, "ARRAY", at)?;
        if builtins::element_of(element.oid).is_some() {
            return self.refuse("an array of more than one dimension", at);
        }
        match builtins::array_of(element.oid) {
            Some(array) => Ok(Expr::new(ExprKind::Array(elements), Type::with(array, element.modifier))),
            None => {
                let name = builtins::type_name(element.oid);
                self.fail("42704", format!("could not find array type for data type {name}"), at)
            }
        }
    }

    fn row(&mut self, row: &nodes::RowExpr) -> Result<Expr> {
        let mut parts = Vec::new();
        for part in self.exprs(row.args())? {
            parts.push(self.resolve_unknown(part)?);
        }
        Ok(Expr::new(ExprKind::Row(parts), types::RECORD))
    }

    fn value_function(&mut self, value: &nodes::SQLValueFunction) -> Result<Expr> {
        let (context, oid) = match value.op {
            ValueOp::SVFOP_CURRENT_DATE => (Context::Date, types::DATE),
            ValueOp::SVFOP_CURRENT_TIMESTAMP | ValueOp::SVFOP_CURRENT_TIMESTAMP_N => {
                (Context::TransactionTime, types::TIMESTAMPTZ)
            }
            ValueOp::SVFOP_LOCALTIMESTAMP | ValueOp::SVFOP_LOCALTIMESTAMP_N => (Context::LocalTime, types::TIMESTAMP),
            ValueOp::SVFOP_LOCALTIME | ValueOp::SVFOP_LOCALTIME_N => (Context::LocalTimeOfDay, types::TIME),
            ValueOp::SVFOP_CURRENT_ROLE | ValueOp::SVFOP_CURRENT_USER | ValueOp::SVFOP_USER => {
                (Context::CurrentUser, types::NAME)
            }
            ValueOp::SVFOP_SESSION_USER => (Context::SessionUser, types::NAME),
            ValueOp::SVFOP_CURRENT_CATALOG => (Context::CurrentDatabase, types::NAME),
            ValueOp::SVFOP_CURRENT_SCHEMA => (Context::CurrentSchema, types::NAME),
            _ => return self.refuse("CURRENT_TIME", value.location),
        };
        let expr = Expr::new(ExprKind::Context(context), oid);
        Ok(self.apply_modifier(expr, Type::with(oid, value.typmod), CastContext::Explicit))
    }

    fn indirection(&mut self, indirection: &nodes::A_Indirection) -> Result<Expr> {
        let mut expr = self.expr(indirection.arg())?;
        let at = location(indirection.arg());
        let mut index = Vec::new();
        for step in indirection.indirection() {
            match step {
                Node::A_Indices(indices) if expr.ty.oid == types::JSONB => {
                    expr = self.json_subscript(expr, indices, at)?;
                }
                Node::A_Indices(indices) => index.push(indices),
                _ => return self.refuse("selecting a field of a value", at),
            }
        }
        if index.is_empty() { Ok(expr) } else { self.subscript(expr, &index, at) }
    }

    /// `j['key']` is `j -> 'key'`.
    fn json_subscript(&mut self, json: Expr, indices: &nodes::A_Indices, at: i32) -> Result<Expr> {
        if indices.is_slice {
            return self.fail("0A000", "jsonb subscript does not support slices", at);
        }
        let key = self.expr(indices.uidx())?;
        self.operator("->", Some(json), key, at)
    }

    fn subscript(&mut self, array: Expr, index: &[&nodes::A_Indices], at: i32) -> Result<Expr> {
        let ty = array.ty;
        let Some(element) = builtins::type_by_oid(ty.oid).and_then(|info| info.element) else {
            let name = builtins::type_name(ty.oid);
            let message = format!("cannot subscript type {name} because it does not support subscripting");
            return self.fail("42804", message, at);
        };
        let array = Box::new(array);
        if let [slice] = index
            && slice.is_slice
        {
            let from = self.array_index(slice.lidx())?.map(Box::new);
            let to = self.array_index(slice.uidx())?.map(Box::new);
            return Ok(Expr::new(ExprKind::Slice { array, from, to }, ty));
        }
        let mut positions = Vec::new();
        for indices in index {
            if indices.is_slice {
                return self.refuse("a slice of more than one dimension", at);
            }
            positions.extend(self.array_index(indices.uidx())?);
        }
        Ok(Expr::new(ExprKind::Subscript { array, index: positions }, Type::with(element, ty.modifier)))
    }

    fn array_index(&mut self, node: Node<'_>) -> Result<Option<Expr>> {
        if let Node::None = node {
            return Ok(None);
        }
        let index = self.expr(node)?;
        if !can_coerce(index.ty.oid, types::INT4, CastContext::Assignment) {
            return self.fail("42804", "array subscript must have type integer", location(node));
        }
        self.coerce(index, types::INT4, CastContext::Assignment).map(Some)
    }

    /// All texts compare by bytes, which is what "C" says.
    fn collate(&mut self, collate: &nodes::CollateClause) -> Result<Expr> {
        let arg = self.expr(collate.arg())?;
        let arg = self.resolve_unknown(arg)?;
        let name = collate.collname().iter().filter_map(Node::as_str).next_back().unwrap_or_default();
        if super::coerce::category(arg.ty.oid) != b'S' {
            let ty = builtins::type_name(arg.ty.oid);
            return self.fail("42804", format!("collations are not supported by type {ty}"), collate.location);
        }
        match name {
            "C" | "POSIX" | "default" | "ucs_basic" => Ok(arg),
            _ => {
                let error = SqlError::unsupported(format!("collation \"{name}\" is not supported"));
                Err(self
                    .at(error.with_hint("Texts are compared by their bytes, as COLLATE \"C\" does."), collate.location))
            }
        }
    }
}

pub(super) fn constant_bool(value: bool) -> Expr {
    Expr::new(ExprKind::Const(Value::Bool(value)), types::BOOL)
}

/// The conjunction; nested ones are joined.
pub(super) fn and(args: Vec<Expr>) -> Expr {
    let mut parts = Vec::with_capacity(args.len());
    for arg in args {
        match arg.kind {
            ExprKind::And(inner) => parts.extend(inner),
            _ => parts.push(arg),
        }
    }
    match parts.len() {
        1 => parts.remove(0),
        _ => Expr::new(ExprKind::And(parts), types::BOOL),
    }
}

/// The negation; of EXISTS and IN it is their own negated form.
pub(super) fn not(mut expr: Expr) -> Expr {
    if let ExprKind::Subquery(subquery) = &mut expr.kind
        && let SubqueryKind::Exists { negated } | SubqueryKind::In { negated, .. } = &mut subquery.kind
    {
        *negated = !*negated;
        return expr;
    }
    Expr::new(ExprKind::Not(Box::new(expr)), types::BOOL)
}

/// A number that is no int4: int8 if it fits, numeric otherwise.
fn number(text: &str) -> Result<(Value, types::Oid)> {
    let digits: String = text.chars().filter(|c| *c != '_').collect();
    let invalid = || SqlError::new("22P02", format!("invalid input syntax for type numeric: \"{text}\""));
    let lower = digits.to_ascii_lowercase();
    let radix = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find(|(prefix, _)| lower.starts_with(prefix));
    if let Some((_, radix)) = radix {
        let n = i64::from_str_radix(&lower[2..], radix).map_err(|_| {
            SqlError::unsupported(format!("integer literal {text} beyond the range of bigint is not supported"))
        })?;
        return Ok((Value::Int(n), types::INT8));
    }
    if let Ok(n) = digits.parse::<i64>() {
        return Ok((Value::Int(n), types::INT8));
    }
    let numeric = Numeric::parse(&digits).map_err(|_| invalid())?;
    Ok((Value::Numeric(numeric), types::NUMERIC))
}
