//! SELECT, VALUES, set operations and WITH.

use super::expr::location;
use super::from::plain_query;
use super::lockstep::Lockstep;
use super::scope::{CteEntry, Place};
use super::walk::{self, Go};
use super::{Binder, MAX_DEPTH, Result, group, names, resolve};
use crate::builtins::{self, CastContext};
use crate::tree::*;
use crate::types::{self, Type};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use pg_raw_parse::list::{CastNodeList, NodeList};
use pg_raw_parse::nodes::{self, CTEMaterialize, LimitOption, LockClauseStrength, LockWaitPolicy, SetOperation};
use pg_raw_parse::{ConstValue, Node};

/// A query's binding takes more stack than an expression's.
const QUERY_DEPTH: usize = 6;

/// What becomes of literals that nobody has asked to be of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknowns {
    /// They are text.
    Resolve,
    /// Whoever asked for the query decides.
    Keep,
}

/// A target and its name.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub expr: Expr,
    pub name: String,
}

/// How names in ORDER BY and GROUP BY are found: SQL-92 has both look at the targets' names, in another order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clause {
    OrderBy,
    GroupBy,
    DistinctOn,
}

impl Clause {
    fn says(self) -> &'static str {
        match self {
            Clause::OrderBy => "ORDER BY",
            Clause::GroupBy => "GROUP BY",
            Clause::DistinctOn => "DISTINCT ON",
        }
    }

    fn place(self) -> Place {
        match self {
            Clause::OrderBy => Place::OrderBy,
            Clause::GroupBy => Place::GroupBy,
            Clause::DistinctOn => Place::DistinctOn,
        }
    }
}

impl Binder<'_> {
    pub(super) fn query(&mut self, select: &nodes::SelectStmt) -> Result<Query> {
        self.query_with(select, Unknowns::Resolve)
    }

    /// A query inside of another one.
    pub(super) fn subquery(&mut self, select: &nodes::SelectStmt) -> Result<Query> {
        self.placed(Place::None, |binder| binder.query(select))
    }

    pub(super) fn query_with(&mut self, select: &nodes::SelectStmt, unknowns: Unknowns) -> Result<Query> {
        if self.depth + QUERY_DEPTH > MAX_DEPTH {
            return Err(SqlError::new("54001", "queries are nested too deep"));
        }
        self.depth += QUERY_DEPTH;
        let query = self.with_own_ctes(|binder| binder.query_here(select, unknowns));
        self.depth -= QUERY_DEPTH;
        query
    }

    fn query_here(&mut self, select: &nodes::SelectStmt, unknowns: Unknowns) -> Result<Query> {
        if select.into_clause().is_some() {
            return self.refuse("SELECT INTO", -1);
        }
        let ctes = self.with_clause(select.with_clause())?;
        let mut query = if select.op != SetOperation::SETOP_NONE {
            self.set_operation(select, unknowns)?
        } else if !select.values_lists().is_empty() {
            self.scoped(|binder| binder.values(select, unknowns))?
        } else {
            self.scoped(|binder| binder.select(select, unknowns))?
        };
        query.ctes = ctes;
        Ok(query)
    }

    pub(super) fn with_clause(&mut self, with: Option<&nodes::WithClause>) -> Result<Vec<Cte>> {
        let Some(with) = with else { return Ok(Vec::new()) };
        let names = with.ctes().iter().filter_map(|cte| cte.ctename()).map(str::to_string).collect();
        let before = std::mem::replace(&mut self.later_ctes, names);
        let bound = self.with_items(with);
        self.later_ctes = before;
        bound
    }

    fn with_items(&mut self, with: &nodes::WithClause) -> Result<Vec<Cte>> {
        let mut bound: Vec<Cte> = Vec::new();
        for cte in with.ctes().iter() {
            let name = cte.ctename().unwrap_or_default();
            if bound.iter().any(|known| known.name == name) {
                let message = format!("WITH query name \"{name}\" specified more than once");
                return self.fail("42712", message, cte.location);
            }
            if cte.search_clause().is_some() || cte.cycle_clause().is_some() {
                return self.refuse("SEARCH or CYCLE of a recursive query", cte.location);
            }
            let cte = self.cte_definition(cte, with.recursive)?;
            self.ctes.push(CteEntry {
                name: cte.name.clone(),
                id: cte.id,
                columns: Some(cte.columns.clone()),
                uses: 0,
                readable: !matches!(&cte.body, CteBody::Write(statement) if returning(statement).is_none()),
            });
            self.later_ctes.retain(|name| *name != cte.name);
            bound.push(cte);
        }
        Ok(bound)
    }

    fn cte_definition(&mut self, cte: &nodes::CommonTableExpr, recursive: bool) -> Result<Cte> {
        let id = CteId(self.next_cte);
        self.next_cte += 1;
        let name = cte.ctename().unwrap_or_default().to_string();
        let (body, fields) = match cte.ctequery() {
            Node::SelectStmt(select) if recursive && select.op == SetOperation::SETOP_UNION => {
                self.recursive_cte(cte, select, id, &name)?
            }
            Node::SelectStmt(select) => {
                let mark = self.ctes.len();
                if recursive {
                    let entry = CteEntry { name: name.clone(), id, columns: None, uses: 0, readable: false };
                    self.ctes.push(entry);
                }
                let query = self.subquery(select);
                self.ctes.truncate(mark);
                let query = query?;
                let fields = query.columns.clone();
                (CteBody::Query(Box::new(query)), fields)
            }
            other => {
                let scopes = std::mem::take(&mut self.scopes);
                let statement = self.rows_statement(other);
                self.scopes = scopes;
                let statement = statement?;
                let fields = returning(&statement).map(|r| r.columns.clone()).unwrap_or_default();
                (CteBody::Write(Box::new(statement)), fields)
            }
        };
        let columns = self.cte_columns(cte, fields)?;
        let materialized = match cte.ctematerialized {
            CTEMaterialize::CTEMaterializeAlways => Some(true),
            CTEMaterialize::CTEMaterializeNever => Some(false),
            _ => None,
        };
        Ok(Cte { id, name, body, columns, materialized })
    }

    fn cte_columns(&self, cte: &nodes::CommonTableExpr, mut fields: Vec<Field>) -> Result<Vec<Field>> {
        let names: Vec<&str> = cte.aliascolnames().iter().filter_map(Node::as_str).collect();
        if names.len() > fields.len() {
            let name = cte.ctename().unwrap_or_default();
            let (has, given) = (fields.len(), names.len());
            let message = format!("WITH query \"{name}\" has {has} columns available but {given} columns specified");
            return self.fail("42P10", message, cte.location);
        }
        fields.iter_mut().zip(names).for_each(|(field, name)| field.name = name.to_string());
        Ok(fields)
    }

    /// `start UNION [ALL] step`. One that does not name itself is an ordinary query.
    fn recursive_cte(
        &mut self,
        cte: &nodes::CommonTableExpr,
        select: &nodes::SelectStmt,
        id: CteId,
        name: &str,
    ) -> Result<(CteBody, Vec<Field>)> {
        let (Some(left), Some(right)) = (select.larg(), select.rarg()) else {
            return self.refuse("this recursive query", cte.location);
        };
        let mark = self.ctes.len();
        let entry = CteEntry { name: name.to_string(), id, columns: None, uses: 0, readable: true };
        self.ctes.push(entry);
        let start = self.placed(Place::None, |binder| binder.query(left))?;
        let columns = self.cte_columns(cte, start.columns.clone())?;
        self.ctes[mark].columns = Some(columns.clone());
        let step = self.placed(Place::None, |binder| binder.query_with(right, Unknowns::Keep));
        let uses = self.ctes[mark].uses;
        self.ctes.truncate(mark);
        if uses == 0 {
            let query = self.subquery(select)?;
            let fields = query.columns.clone();
            return Ok((CteBody::Query(Box::new(query)), fields));
        }
        let step = step?;
        if uses > 1 {
            let message = format!("recursive reference to query \"{name}\" must not appear more than once");
            return self.fail("42P19", message, cte.location);
        }
        if !select.sort_clause().is_empty() {
            return self.fail("0A000", "ORDER BY in a recursive query is not implemented", cte.location);
        }
        if !matches!((select.limit_count(), select.limit_offset()), (Node::None, Node::None)) {
            return self.fail("0A000", "LIMIT in a recursive query is not implemented", cte.location);
        }
        let step = self.recursive_step(name, &start, step)?;
        let fields = start.columns.clone();
        let body = CteBody::Recursive { start: Box::new(start), step: Box::new(step), all: select.all };
        Ok((body, fields))
    }

    fn recursive_step(&mut self, name: &str, start: &Query, step: Query) -> Result<Query> {
        self.check_widths(start, &step, "UNION")?;
        for (at, (first, next)) in start.columns.iter().zip(&step.columns).enumerate() {
            let common = super::coerce::common_type(&[first.ty.oid, next.ty.oid]);
            let overall = match common {
                Ok(oid) if oid == first.ty.oid => continue,
                Ok(oid) => builtins::type_name(oid),
                Err((a, b)) => {
                    let (a, b) = (builtins::type_name(a), builtins::type_name(b));
                    return self.fail("42804", format!("UNION types {a} and {b} cannot be matched"), -1);
                }
            };
            let message = format!(
                "recursive query \"{name}\" column {} has type {} in non-recursive term but type {overall} overall",
                at + 1,
                builtins::type_name(first.ty.oid)
            );
            let hint = "Cast the output of the non-recursive term to the correct type.";
            return Err(SqlError::new("42804", message).with_hint(hint));
        }
        let types: Vec<Type> = start.columns.iter().map(|field| field.ty).collect();
        self.coerce_columns(step, &types, CastContext::Implicit)
    }

    fn check_widths(&self, left: &Query, right: &Query, what: &str) -> Result<()> {
        if left.columns.len() == right.columns.len() {
            return Ok(());
        }
        self.fail("42601", format!("each {what} query must have the same number of columns"), -1)
    }

    fn set_operation(&mut self, select: &nodes::SelectStmt, unknowns: Unknowns) -> Result<Query> {
        let (op, what) = match select.op {
            SetOperation::SETOP_UNION => (SetOp::Union, "UNION"),
            SetOperation::SETOP_INTERSECT => (SetOp::Intersect, "INTERSECT"),
            _ => (SetOp::Except, "EXCEPT"),
        };
        let (Some(larg), Some(rarg)) = (select.larg(), select.rarg()) else {
            return self.refuse(what, -1);
        };
        let left = self.placed(Place::None, |binder| binder.query_with(larg, Unknowns::Keep))?;
        let right = self.placed(Place::None, |binder| binder.query_with(rarg, Unknowns::Keep))?;
        self.check_widths(&left, &right, what)?;
        let columns = self.common_columns(&left, &right, what, unknowns)?;
        let types: Vec<Type> = columns.iter().map(|field| field.ty).collect();
        if !select.all {
            self.check_equality(types.iter().copied())?;
        }
        let left = self.coerce_columns(left, &types, CastContext::Implicit)?;
        let right = self.coerce_columns(right, &types, CastContext::Implicit)?;
        let mut query = plain_query(Vec::new(), Vec::new(), columns);
        query.body = Body::SetOp { op, all: select.all, left: Box::new(left), right: Box::new(right) };
        self.finish_columns_query(select, &mut query, what)?;
        Ok(query)
    }

    fn common_columns(&mut self, left: &Query, right: &Query, what: &str, unknowns: Unknowns) -> Result<Vec<Field>> {
        let mut columns = Vec::with_capacity(left.columns.len());
        for (l, r) in left.columns.iter().zip(&right.columns) {
            let both_unknown = l.ty.oid == types::UNKNOWN && r.ty.oid == types::UNKNOWN;
            let ty = match super::coerce::common_type(&[l.ty.oid, r.ty.oid]) {
                Ok(_) if both_unknown && unknowns == Unknowns::Keep => Type::of(types::TEXT),
                Ok(oid) if l.ty == r.ty => Type::with(oid, l.ty.modifier),
                Ok(oid) => Type::of(oid),
                Err((a, b)) => {
                    let (a, b) = (builtins::type_name(a), builtins::type_name(b));
                    return self.fail("42804", format!("{what} types {a} and {b} cannot be matched"), -1);
                }
            };
            for side in [l, r] {
                if !super::coerce::can_coerce(side.ty.oid, ty.oid, CastContext::Implicit) {
                    let (from, to) = (builtins::type_name(side.ty.oid), builtins::type_name(ty.oid));
                    return self.fail("42846", format!("{what} could not convert type {from} to {to}"), -1);
                }
            }
            columns.push(Field { name: l.name.clone(), ty });
        }
        Ok(columns)
    }

    /// Brings a query's columns to these types.
    pub(super) fn coerce_columns(&mut self, query: Query, to: &[Type], context: CastContext) -> Result<Query> {
        self.convert_columns(query, &mut |binder, at, expr| {
            let expr = binder.coerce(expr, to[at].oid, context)?;
            // What has no modifier of its own keeps the one it had: no value changes by that.
            Ok(expr)
        })
    }

    /// Applies a conversion to each column of a query: to the targets where that changes nothing else, and otherwise
    /// over it.
    pub(super) fn convert_columns(
        &mut self,
        mut query: Query,
        convert: &mut dyn FnMut(&mut Self, usize, Expr) -> Result<Expr>,
    ) -> Result<Query> {
        let visible = query.columns.len();
        // A literal can always become what it is asked to be.
        for at in 0..visible {
            if query.columns[at].ty.oid == types::UNKNOWN {
                self.convert_one(&mut query, at, convert)?;
            }
        }
        let rel = self.new_rel();
        let outer: Vec<Expr> =
            (0..visible).map(|at| Expr::new(ExprKind::Column { rel, column: at }, query.columns[at].ty)).collect();
        let mut converted = Vec::with_capacity(visible);
        for (at, expr) in outer.iter().enumerate() {
            converted.push(convert(self, at, expr.clone())?);
        }
        if converted == outer {
            return Ok(query);
        }
        if can_convert_in_place(&query) {
            for at in (0..visible).filter(|at| converted[*at] != outer[*at]) {
                self.convert_one(&mut query, at, convert)?;
            }
            return Ok(query);
        }
        let field = |(field, expr): (&Field, &Expr)| Field { name: field.name.clone(), ty: expr.ty };
        let columns = query.columns.iter().zip(&converted).map(field).collect();
        let from = vec![From::Subquery { rel, query: Box::new(query), lateral: false }];
        Ok(plain_query(converted, from, columns))
    }

    fn convert_one(
        &mut self,
        query: &mut Query,
        at: usize,
        convert: &mut dyn FnMut(&mut Self, usize, Expr) -> Result<Expr>,
    ) -> Result<()> {
        let placeholder = || Expr::new(ExprKind::Const(Value::Null), types::TEXT);
        let mut ty = query.columns[at].ty;
        match &mut query.body {
            Body::Select(select) => {
                let expr = std::mem::replace(&mut select.targets[at], placeholder());
                select.targets[at] = convert(self, at, expr)?;
                ty = select.targets[at].ty;
            }
            Body::Values(rows) => {
                for row in rows {
                    let expr = std::mem::replace(&mut row[at], placeholder());
                    row[at] = convert(self, at, expr)?;
                    ty = row[at].ty;
                }
            }
            Body::SetOp { .. } => {}
        }
        query.columns[at].ty = ty;
        Ok(())
    }

    fn values(&mut self, select: &nodes::SelectStmt, unknowns: Unknowns) -> Result<Query> {
        let mut rows: Vec<Vec<Expr>> = Vec::new();
        for node in select.values_lists() {
            let Node::NodeList(list) = node else { return self.refuse_node(node) };
            let row = self.placed(Place::Values, |binder| binder.exprs(list))?;
            if rows.first().is_some_and(|first| first.len() != row.len()) {
                let at = list.first().map_or(-1, location);
                return self.fail("42601", "VALUES lists must all be the same length", at);
            }
            rows.push(row);
        }
        let width = rows.first().map_or(0, Vec::len);
        let mut columns = Vec::with_capacity(width);
        for at in 0..width {
            let ty = self.values_column(&mut rows, at, unknowns)?;
            columns.push(Field { name: format!("column{}", at + 1), ty });
        }
        let mut query = plain_query(Vec::new(), Vec::new(), columns);
        query.body = Body::Values(rows);
        self.finish_columns_query(select, &mut query, "VALUES")?;
        Ok(query)
    }

    fn values_column(&mut self, rows: &mut [Vec<Expr>], at: usize, unknowns: Unknowns) -> Result<Type> {
        let column: Vec<Expr> = rows.iter().map(|row| row[at].clone()).collect();
        let all_unknown = column.iter().all(|expr| expr.ty.oid == types::UNKNOWN);
        if all_unknown && unknowns == Unknowns::Keep {
            return Ok(Type::of(types::UNKNOWN));
        }
        let (column, ty) = self.unify(column, "VALUES", -1)?;
        rows.iter_mut().zip(column).for_each(|(row, expr)| row[at] = expr);
        Ok(ty)
    }

    /// ORDER BY and LIMIT over columns that are no targets: of VALUES and set operations.
    fn finish_columns_query(&mut self, select: &nodes::SelectStmt, query: &mut Query, what: &str) -> Result<()> {
        for sort in select.sort_clause().iter() {
            let column = self.output_column(sort.node(), &query.columns, what)?;
            let (descending, nulls_first) = self.direction(sort)?;
            resolve::check_orderable(query.columns[column].ty.oid).map_err(|e| self.at(e, sort.location))?;
            query.order_by.push(OrderBy { key: OrderKey::Output(column), descending, nulls_first });
        }
        self.limits(select, query)?;
        if !select.locking_clause().is_empty() {
            let message = match what {
                "VALUES" => "FOR UPDATE cannot be applied to VALUES".to_string(),
                _ => "FOR UPDATE is not allowed with UNION/INTERSECT/EXCEPT".to_string(),
            };
            return self.fail("0A000", message, -1);
        }
        Ok(())
    }

    fn output_column(&mut self, node: Node<'_>, columns: &[Field], what: &str) -> Result<usize> {
        match node {
            Node::A_Const(constant) => self.position_in(constant, columns.len(), "ORDER BY"),
            Node::ColumnRef(column) if column.fields().len() == 1 => {
                let name = column.fields().first().and_then(Node::as_str).unwrap_or_default();
                let mut found = (0..columns.len()).filter(|at| columns[*at].name == name);
                match (found.next(), found.next()) {
                    (Some(at), None) => Ok(at),
                    (Some(_), Some(_)) => {
                        self.fail("42702", format!("ORDER BY \"{name}\" is ambiguous"), column.location)
                    }
                    (None, _) => Err(self.missing_column(None, name, column.location)),
                }
            }
            other if what == "VALUES" => self.refuse("ORDER BY an expression of VALUES", location(other)),
            other => {
                let error = SqlError::new("0A000", "invalid UNION/INTERSECT/EXCEPT ORDER BY clause")
                    .with_detail("Only result column names can be used, not expressions or functions.")
                    .with_hint("Add the expression/function to every SELECT, or move the UNION into a FROM clause.");
                Err(self.at(error, location(other)))
            }
        }
    }

    fn position_in(&self, constant: &nodes::A_Const, count: usize, clause: &str) -> Result<usize> {
        match constant.val() {
            Some(ConstValue::Integer(n)) => match usize::try_from(n) {
                Ok(n) if (1..=count).contains(&n) => Ok(n - 1),
                _ => self.fail("42P10", format!("{clause} position {n} is not in select list"), constant.location),
            },
            _ => self.fail("42601", format!("non-integer constant in {clause}"), constant.location),
        }
    }

    fn limits(&mut self, select: &nodes::SelectStmt, query: &mut Query) -> Result<()> {
        query.limit = self.limit(select.limit_count(), "LIMIT", Place::Limit)?;
        query.offset = self.limit(select.limit_offset(), "OFFSET", Place::Offset)?;
        query.with_ties = select.limit_option == LimitOption::LIMIT_OPTION_WITH_TIES;
        if query.with_ties && query.order_by.is_empty() {
            return self.fail("42601", "WITH TIES cannot be specified without ORDER BY clause", -1);
        }
        Ok(())
    }

    /// None for no limit, which `LIMIT NULL` and `LIMIT ALL` also say.
    fn limit(&mut self, node: Node<'_>, what: &str, place: Place) -> Result<Option<Expr>> {
        if matches!(node, Node::None) {
            return Ok(None);
        }
        let at = location(node);
        let expr = self.placed(place, |binder| binder.expr(node))?;
        let expr = self.coerce_to_specific(expr, types::INT8, what, at)?;
        let mut varies = false;
        walk::each(&expr, &mut |expr| {
            varies |= matches!(expr.kind, ExprKind::Column { .. });
            if matches!(expr.kind, ExprKind::Subquery(_)) { Go::Past } else { Go::Deeper }
        });
        if varies {
            return self.fail("42P10", format!("argument of {what} must not contain variables"), at);
        }
        Ok(Some(expr).filter(|expr| expr.kind != ExprKind::Const(Value::Null)))
    }

    fn select(&mut self, select: &nodes::SelectStmt, unknowns: Unknowns) -> Result<Query> {
        let mut from = self.bind_from(select.from_clause())?;
        self.named_windows(select)?;
        let mut targets = self.targets(select.target_list(), Place::Target)?;
        let filter = match select.where_clause() {
            Node::None => None,
            node => Some(self.placed(Place::Where, |binder| binder.condition(node, "WHERE"))?),
        };
        let mut group_by = self.group_clause(select, &mut targets)?;
        if self.scope().saw_grouping {
            self.scope().group_keys = Some(group::keys(&group_by).to_vec());
            targets = self.targets(select.target_list(), Place::Target)?;
        }
        let visible = targets.len();
        let having = match select.having_clause() {
            Node::None => None,
            node => Some(self.placed(Place::Having, |binder| binder.condition(node, "HAVING"))?),
        };
        let order_by = self.order_clause(select, &mut targets)?;
        let distinct = self.distinct_clause(select, &mut targets, &order_by, visible)?;
        if unknowns == Unknowns::Resolve {
            for target in &mut targets {
                let expr = std::mem::replace(&mut target.expr, super::expr::constant_bool(false));
                target.expr = self.resolve_unknown(expr)?;
            }
        }
        if group_by == GroupBy::None && (having.is_some() || self.scope().aggregates) {
            group_by = GroupBy::Keys(Vec::new());
        }
        let in_step = self.scope().lockstep.take().map(Lockstep::finish);
        if let Some(function) = self.scope().set_function.take().map(From::Function).or(in_step) {
            if group_by != GroupBy::None || self.scope().windows || distinct != Distinct::No {
                return self.refuse("a set-returning function among the targets of a grouped query", -1);
            }
            from.push(function);
        }
        let columns = targets[..visible].iter().map(|t| Field { name: t.name.clone(), ty: t.expr.ty }).collect();
        let targets: Vec<Expr> = targets.into_iter().map(|target| target.expr).collect();
        let mut select_ = Select { distinct, targets, from, filter, group_by, having };
        self.widen_groups(&mut select_.group_by);
        self.check_groups(&select_)?;
        let mut query = plain_query(Vec::new(), Vec::new(), columns);
        query.order_by = order_by;
        query.lock = self.locking(select, &select_)?;
        query.body = Body::Select(Box::new(select_));
        self.limits(select, &mut query)?;
        Ok(query)
    }

    fn named_windows(&mut self, select: &nodes::SelectStmt) -> Result<()> {
        for node in select.window_clause() {
            let Node::WindowDef(def) = node else { return self.refuse_node(node) };
            let name = def.name().unwrap_or_default().to_string();
            if self.scope().named_windows.iter().any(|(known, _)| *known == name) {
                return self.fail("42P20", format!("window \"{name}\" is already defined"), def.location);
            }
            let spec = self.window_definition(def)?;
            self.scope().named_windows.push((name, spec));
        }
        Ok(())
    }

    /// A target list, with `*` expanded.
    pub(super) fn targets(&mut self, list: &CastNodeList<nodes::ResTarget>, place: Place) -> Result<Vec<Target>> {
        let mut targets = Vec::new();
        self.scope().set_function = None;
        self.scope().lockstep = None;
        if place == Place::Target && super::lockstep::is_wanted(list) {
            let rel = self.new_rel();
            self.scope().rels.push(rel);
            self.scope().lockstep = Some(Lockstep::new(rel));
        }
        for target in list.iter() {
            self.target(target, place, &mut targets)?;
        }
        Ok(targets)
    }

    pub(super) fn target(&mut self, target: &nodes::ResTarget, place: Place, into: &mut Vec<Target>) -> Result<()> {
        if let Node::ColumnRef(column) = target.val()
            && let Some(Node::A_Star(_)) = column.fields().iter().next_back()
        {
            return self.star(column, into);
        }
        let expr = self.placed(place, |binder| binder.expr(target.val()))?;
        let name = target.name().map_or_else(|| names::of_target(target.val()), str::to_string);
        into.push(Target { expr, name });
        Ok(())
    }

    fn star(&mut self, column: &nodes::ColumnRef, into: &mut Vec<Target>) -> Result<()> {
        let at = column.location;
        let names: Vec<&str> = column.fields().iter().filter_map(Node::as_str).collect();
        let items = match names.as_slice() {
            [] => {
                let items: Vec<_> = self.scope().items.iter().filter(|item| item.by_column).cloned().collect();
                if items.is_empty() {
                    return self.fail("42601", "SELECT * with no tables specified is not valid", at);
                }
                items
            }
            [.., table] => {
                let schema = names.len().checked_sub(2).map(|at| names[at]);
                match self.item(schema, table, at)? {
                    Some(item) => vec![item],
                    None => return Err(self.missing_table(table, at)),
                }
            }
        };
        let columns = items.into_iter().flat_map(|item| item.columns);
        into.extend(columns.map(|column| Target { expr: column.expr, name: column.name }));
        Ok(())
    }

    /// What an item of ORDER BY, GROUP BY or DISTINCT ON means: a position, a target's name, or an expression.
    fn clause_item(&mut self, node: Node<'_>, clause: Clause, targets: &[Target]) -> Result<Expr> {
        if let Node::ColumnRef(column) = node
            && column.fields().len() == 1
            && let Some(name) = column.fields().first().and_then(Node::as_str)
        {
            let hidden = clause == Clause::GroupBy && self.column_in_this_query(name, column.location)?;
            if !hidden && let Some(expr) = self.target_named(name, clause, targets, column.location)? {
                return Ok(expr);
            }
        }
        if let Node::A_Const(constant) = node {
            let at = self.position_in(constant, targets.len(), clause.says())?;
            return Ok(targets[at].expr.clone());
        }
        self.placed(clause.place(), |binder| binder.expr(node))
    }

    fn column_in_this_query(&mut self, name: &str, at: i32) -> Result<bool> {
        let outer = self.scopes.len().saturating_sub(1);
        let scopes = self.scopes.split_off(outer);
        let saved = std::mem::replace(&mut self.scopes, scopes);
        let found = self.column(name, at);
        let scopes = std::mem::replace(&mut self.scopes, saved);
        self.scopes.extend(scopes);
        found.map(|found| found.is_some())
    }

    fn target_named(&self, name: &str, clause: Clause, targets: &[Target], at: i32) -> Result<Option<Expr>> {
        let mut found: Option<&Target> = None;
        for target in targets.iter().filter(|target| target.name == name) {
            if found.is_some_and(|known| known.expr != target.expr) {
                return self.fail("42702", format!("{} \"{name}\" is ambiguous", clause.says()), at);
            }
            found = Some(target);
        }
        Ok(found.map(|target| target.expr.clone()))
    }

    fn order_clause(&mut self, select: &nodes::SelectStmt, targets: &mut Vec<Target>) -> Result<Vec<OrderBy>> {
        let visible = targets.len();
        let mut order_by: Vec<OrderBy> = Vec::new();
        for sort in select.sort_clause().iter() {
            let expr = self.clause_item(sort.node(), Clause::OrderBy, &targets[..visible])?;
            let known = targets.iter().position(|target| target.expr == expr);
            let expr = self.resolve_unknown(expr)?;
            resolve::check_orderable(expr.ty.oid).map_err(|e| self.at(e, location(sort.node())))?;
            let at = match known {
                Some(at) => {
                    targets[at].expr = expr;
                    at
                }
                None => {
                    targets.push(Target { expr, name: String::new() });
                    targets.len() - 1
                }
            };
            let (descending, nulls_first) = self.direction(sort)?;
            if !order_by.iter().any(|known| known.key == OrderKey::Output(at)) {
                order_by.push(OrderBy { key: OrderKey::Output(at), descending, nulls_first });
            }
        }
        Ok(order_by)
    }

    fn distinct_clause(
        &mut self,
        select: &nodes::SelectStmt,
        targets: &mut [Target],
        order_by: &[OrderBy],
        visible: usize,
    ) -> Result<Distinct> {
        let clause = select.distinct_clause();
        if clause.is_empty() {
            return Ok(Distinct::No);
        }
        let keys: Vec<Node<'_>> = clause.iter().filter(|node| !matches!(node, Node::None)).collect();
        if keys.is_empty() {
            let hidden = |order: &&OrderBy| matches!(order.key, OrderKey::Output(at) if at >= visible);
            if order_by.iter().any(|order| hidden(&order)) {
                let message = "for SELECT DISTINCT, ORDER BY expressions must appear in select list";
                return self.fail("42P10", message, -1);
            }
            self.check_equality(targets[..visible].iter().map(|target| target.expr.ty))?;
            return Ok(Distinct::All);
        }
        let mut on = Vec::with_capacity(keys.len());
        for node in keys {
            let key = self.clause_item(node, Clause::DistinctOn, &targets[..visible])?;
            let key = self.resolve_unknown(key)?;
            self.check_equality([key.ty])?;
            if !on.contains(&key) {
                on.push(key);
            }
        }
        let leading = order_by.iter().take(on.len());
        let matches = leading.into_iter().all(|order| {
            let OrderKey::Output(at) = order.key;
            on.contains(&targets[at].expr)
        });
        if !matches {
            let message = "SELECT DISTINCT ON expressions must match initial ORDER BY expressions";
            return self.fail("42P10", message, -1);
        }
        Ok(Distinct::On(on))
    }

    pub(super) fn check_equality(&self, types: impl IntoIterator<Item = Type>) -> Result<()> {
        types.into_iter().filter(|ty| ty.oid != types::UNKNOWN).try_for_each(|ty| resolve::equality(ty.oid).map(drop))
    }

    fn group_clause(&mut self, select: &nodes::SelectStmt, targets: &mut [Target]) -> Result<GroupBy> {
        let clause = select.group_clause();
        if clause.is_empty() {
            return Ok(GroupBy::None);
        }
        let mut keys = Vec::new();
        let sets = self.grouping_sets(clause, targets, &mut keys)?;
        let grouping = clause.iter().any(|node| matches!(node, Node::GroupingSet(_)));
        if !grouping {
            return Ok(GroupBy::Keys(keys));
        }
        let mut sets = sets;
        if select.group_distinct {
            let mut seen: Vec<Vec<usize>> = Vec::new();
            sets.retain(|set| {
                let mut sorted = set.clone();
                sorted.sort_unstable();
                let new = !seen.contains(&sorted);
                seen.push(sorted);
                new
            });
        }
        Ok(GroupBy::Sets { keys, sets })
    }

    /// The product of the clause's items: each a list of sets of keys.
    fn grouping_sets(
        &mut self,
        clause: &NodeList,
        targets: &mut [Target],
        keys: &mut Vec<Expr>,
    ) -> Result<Vec<Vec<usize>>> {
        let mut sets: Vec<Vec<usize>> = vec![Vec::new()];
        for node in clause {
            let items = match node {
                Node::GroupingSet(set) => self.grouping_set(set, targets, keys)?,
                Node::RowExpr(row) => vec![self.group_keys(row.args(), targets, keys)?],
                node => vec![vec![self.group_key(node, targets, keys)?]],
            };
            sets = group::product(&sets, &items);
            if sets.len() > group::MAX_SETS {
                return self.fail("54001", format!("too many grouping sets present (maximum {})", group::MAX_SETS), -1);
            }
        }
        Ok(sets)
    }

    fn grouping_set(
        &mut self,
        set: &nodes::GroupingSet,
        targets: &mut [Target],
        keys: &mut Vec<Expr>,
    ) -> Result<Vec<Vec<usize>>> {
        use nodes::GroupingSetKind as Kind;
        match set.kind {
            Kind::GROUPING_SET_EMPTY => Ok(vec![Vec::new()]),
            Kind::GROUPING_SET_SETS => {
                let mut sets = Vec::new();
                for node in set.content() {
                    match node {
                        Node::GroupingSet(inner) => sets.extend(self.grouping_set(inner, targets, keys)?),
                        Node::RowExpr(row) => sets.push(self.group_keys(row.args(), targets, keys)?),
                        node => sets.push(vec![self.group_key(node, targets, keys)?]),
                    }
                }
                Ok(sets)
            }
            kind => {
                let mut parts = Vec::new();
                for node in set.content() {
                    parts.push(match node {
                        Node::RowExpr(row) => self.group_keys(row.args(), targets, keys)?,
                        node => vec![self.group_key(node, targets, keys)?],
                    });
                }
                if kind == Kind::GROUPING_SET_ROLLUP {
                    return Ok(group::rollup(&parts));
                }
                if parts.len() > group::MAX_CUBE {
                    return self.fail(
                        "54011",
                        format!("CUBE is limited to {} elements", group::MAX_CUBE),
                        set.location,
                    );
                }
                Ok(group::cube(&parts))
            }
        }
    }

    fn group_keys(&mut self, list: &NodeList, targets: &mut [Target], keys: &mut Vec<Expr>) -> Result<Vec<usize>> {
        list.iter().map(|node| self.group_key(node, targets, keys)).collect()
    }

    fn group_key(&mut self, node: Node<'_>, targets: &mut [Target], keys: &mut Vec<Expr>) -> Result<usize> {
        let key = self.clause_item(node, Clause::GroupBy, targets)?;
        if group::contains_aggregate(&key) {
            return self.fail("42803", "aggregate functions are not allowed in GROUP BY", location(node));
        }
        let position = targets.iter().position(|target| target.expr == key);
        let key = self.resolve_unknown(key)?;
        if let Some(at) = position {
            targets[at].expr = key.clone();
        }
        self.check_equality([key.ty]).map_err(|e| self.at(e, location(node)))?;
        Ok(keys.iter().position(|known| *known == key).unwrap_or_else(|| {
            keys.push(key);
            keys.len() - 1
        }))
    }

    fn locking(&mut self, statement: &nodes::SelectStmt, select: &Select) -> Result<Option<Lock>> {
        let mut lock: Option<Lock> = None;
        for clause in statement.locking_clause().iter() {
            let (strength, says) = match clause.strength {
                LockClauseStrength::LCS_FORKEYSHARE => (LockStrength::KeyShare, "FOR KEY SHARE"),
                LockClauseStrength::LCS_FORSHARE => (LockStrength::Share, "FOR SHARE"),
                LockClauseStrength::LCS_FORNOKEYUPDATE => (LockStrength::NoKeyUpdate, "FOR NO KEY UPDATE"),
                _ => (LockStrength::Update, "FOR UPDATE"),
            };
            self.check_lockable(statement, select, says)?;
            let wait = match clause.wait_policy {
                LockWaitPolicy::LockWaitSkip => LockWait::SkipLocked,
                LockWaitPolicy::LockWaitError => LockWait::NoWait,
                _ => LockWait::Wait,
            };
            let of = self.locked_relations(clause.locked_rels(), says)?;
            if lock.is_some() {
                return self.refuse("more than one locking clause", -1);
            }
            lock = Some(Lock { strength, wait, of });
        }
        Ok(lock)
    }

    fn check_lockable(&mut self, statement: &nodes::SelectStmt, select: &Select, says: &str) -> Result<()> {
        let refused = [
            (select.distinct != Distinct::No, "DISTINCT clause"),
            (!statement.group_clause().is_empty(), "GROUP BY clause"),
            (select.having.is_some(), "HAVING clause"),
            (select.is_grouped(), "aggregate functions"),
            (self.scope().windows, "window functions"),
        ];
        match refused.into_iter().find(|(wrong, _)| *wrong) {
            Some((_, what)) => self.fail("0A000", format!("{says} is not allowed with {what}"), -1),
            None => Ok(()),
        }
    }

    fn locked_relations(&mut self, list: &NodeList, says: &str) -> Result<Vec<RelId>> {
        let mut rels = Vec::new();
        for node in list {
            let Node::RangeVar(var) = node else { return self.refuse_node(node) };
            let name = var.relname().unwrap_or_default();
            let item = self.scope().items.iter().find(|item| item.name.as_deref() == Some(name));
            let rel = item.and_then(|item| item.columns.first()).and_then(|column| match column.expr.kind {
                ExprKind::Column { rel, .. } => Some(rel),
                _ => None,
            });
            match rel {
                Some(rel) => rels.push(rel),
                None => {
                    let message = format!("relation \"{name}\" in {says} clause not found in FROM clause");
                    return self.fail("42P01", message, var.location);
                }
            }
        }
        Ok(rels)
    }
}

/// Whether a conversion of targets changes neither what is distinct nor how rows are ordered.
fn can_convert_in_place(query: &Query) -> bool {
    let plain = match &query.body {
        Body::Select(select) => select.distinct == Distinct::No,
        Body::Values(_) => true,
        Body::SetOp { .. } => false,
    };
    plain && query.order_by.is_empty()
}

pub(super) fn returning(statement: &Statement) -> Option<&Returning> {
    match statement {
        Statement::Query(_) => None,
        Statement::Insert(insert) => insert.returning.as_ref(),
        Statement::Update(update) => update.returning.as_ref(),
        Statement::Delete(delete) => delete.returning.as_ref(),
    }
}
