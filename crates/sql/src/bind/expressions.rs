//! What DDL asks of the binder of rows: types by name, queries of views, defaults, and expressions over one table.

use super::ddl::{DefaultValue, Expressions, Purpose, TableExpression};
use super::resolve::is_volatile;
use super::{BindContext, Binder, BoundStatement, Result, bind, bind_type, walk};
use crate::builtins::{self, CastContext};
use crate::tree::{Body, CastHow, Expr, ExprKind, Field, From, RelationRef, Statement};
use crate::types::{self, Oid, Type};
use crate::{parse, print};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Schema, Table};
use isles_kernel::value::Value;
use pg_raw_parse::nodes;
use std::sync::Arc;

/// The binder, as DDL sees it.
pub(super) struct OfBinder<'a>(pub(super) &'a BindContext<'a>);

impl OfBinder<'_> {
    /// The same session, with another schema: one that has the changes made so far.
    fn over<'b>(&'b self, schema: &'b Schema) -> BindContext<'b> {
        BindContext { schema, ..*self.0 }
    }
}

impl Expressions for OfBinder<'_> {
    fn named_type(&self, name: &nodes::TypeName) -> Result<Type> {
        bind_type(name, "")
    }

    fn query_columns(&self, schema: &Schema, path: &[String], sql: &str) -> Result<Vec<Field>> {
        let context = BindContext { schema, search_path: path, ..*self.0 };
        let bound = bind(&parse::parse_one(sql)?, &context, &[])?;
        match bound.statement {
            BoundStatement::Rows(statement) => match *statement {
                Statement::Query(query) => Ok(query.columns),
                _ => Err(SqlError::unsupported("this is not a query")),
            },
            _ => Err(SqlError::unsupported("this is not a query")),
        }
    }

    fn default(&self, schema: &Schema, table: &str, sql: &str, ty: Type, column: &str) -> Result<DefaultValue> {
        let context = self.over(schema);
        let mut binder = Binder::new(&context, Arc::from(sql), &[]);
        let expr = binder.default_text(table, sql)?;
        let from = expr.ty.oid;
        let expr = binder.coerce_to_target(expr, ty, CastContext::Assignment)?.ok_or_else(|| {
            let (from, to) = (builtins::type_name(from), builtins::type_name(ty.oid));
            let message = format!("column \"{column}\" is of type {to} but default expression is of type {from}");
            SqlError::new("42804", message).with_hint("You will need to rewrite or cast the expression.")
        })?;
        Ok(match constant(&expr) {
            Some(value) => DefaultValue::Constant(value),
            None if is_volatile(&expr) => DefaultValue::PerRow,
            None => DefaultValue::PerStatement,
        })
    }

    fn over_table(&self, table: &Table, sql: &str, purpose: Purpose) -> Result<TableExpression> {
        let mut schema = self.0.schema.clone();
        schema.tables.insert(table.name.clone(), table.clone());
        let context = self.over(&schema);
        let (mut binder, expr, of) = bound_over(&context, table, sql)?;
        check_plain(&expr, purpose)?;
        let expr = typed(&mut binder, expr, purpose)?;
        let printed = print::over_table(&expr, &of)?;
        Ok(TableExpression {
            ty: expr.ty,
            sqlite: printed.sqlite,
            postgres: printed.postgres,
            columns: columns_of(&expr, &of),
        })
    }
}

/// Binds an expression over one table, which the context's schema has.
pub(super) fn bound_over<'a>(
    context: &'a BindContext<'a>,
    table: &Table,
    sql: &str,
) -> Result<(Binder<'a>, Expr, RelationRef)> {
    let [namespace, name] = [table.namespace(), table.plain_name()].map(|name| name.replace('"', "\"\""));
    let parsed = parse::parse_one(&format!("SELECT ({sql}) FROM \"{namespace}\".\"{name}\""))?;
    let Some(node) = parsed.statement() else { return Err(not_an_expression(sql)) };
    let mut binder = Binder::new(context, parsed.text().clone(), &[]);
    let bound = binder.rows_statement(node).map_err(without_position)?;
    let (expr, of) = only_target(bound).ok_or_else(|| not_an_expression(sql))?;
    Ok((binder, expr, of))
}

/// The value of a constant, also of a text that is short enough for its type.
fn constant(expr: &Expr) -> Option<Value> {
    match &expr.kind {
        ExprKind::Const(value) => Some(value.clone()),
        ExprKind::Cast { arg, how: CastHow::Modifier { .. } } if expr.ty.oid == types::VARCHAR => match &arg.kind {
            // The modifier of a varchar is its length and four more.
            ExprKind::Const(Value::Text(text)) => {
                let fits = text.chars().count() as i64 <= i64::from(expr.ty.modifier) - 4;
                fits.then(|| Value::Text(text.clone()))
            }
            _ => None,
        },
        _ => None,
    }
}

fn not_an_expression(sql: &str) -> SqlError {
    SqlError::new("42601", format!("not an expression: {sql}"))
}

/// A position would point into a text that the client has not seen.
fn without_position(mut error: SqlError) -> SqlError {
    error.position = None;
    error
}

/// The one expression of a plain select from one table.
fn only_target(statement: Statement) -> Option<(Expr, RelationRef)> {
    let Statement::Query(query) = statement else { return None };
    let Body::Select(select) = query.body else { return None };
    let From::Relation(of) = select.from.first()?.clone() else { return None };
    let plain = select.from.len() == 1 && select.targets.len() == 1;
    plain.then(|| (select.targets[0].clone(), of))
}

/// What may not stand in an expression that is computed for one row at a time, now and for ever.
pub(super) fn check_plain(expr: &Expr, purpose: Purpose) -> Result<()> {
    let (place, one) = match purpose {
        Purpose::Check => ("check constraints", "check constraint"),
        Purpose::IndexPredicate => ("index predicates", "index predicate"),
        Purpose::IndexKey => ("index expressions", "index expression"),
        Purpose::Convert(_) => ("transform expressions", "transform expression"),
        Purpose::Tenant => ("tenant expressions", "tenant expression"),
    };
    let mut found = Ok(());
    let mut note = |error: SqlError| found = std::mem::replace(&mut found, Ok(())).and(Err(error));
    walk::each(expr, &mut |expr| {
        match &expr.kind {
            ExprKind::Aggregate(_) => {
                note(SqlError::new("42803", format!("aggregate functions are not allowed in {place}")));
            }
            ExprKind::Window(_) => {
                note(SqlError::new("42P20", format!("window functions are not allowed in {place}")));
            }
            ExprKind::Subquery(_) => note(SqlError::unsupported(format!("cannot use subquery in {one}"))),
            ExprKind::Param(_) => note(SqlError::new("42P02", "there is no parameter here")),
            ExprKind::Context(_) => note(must_be_immutable(one)),
            ExprKind::Call { function, .. } | ExprKind::Cast { how: CastHow::Function(function), .. }
                if !is_immutable(*function) =>
            {
                note(must_be_immutable(one));
            }
            _ => {}
        }
        walk::Go::Deeper
    });
    found
}

fn is_immutable(function: Oid) -> bool {
    builtins::function(function).is_some_and(|f| f.volatility == builtins::Volatility::Immutable)
}

/// PostgreSQL lets a check depend on the moment; here it must mean the same on every shard and after every move.
fn must_be_immutable(place: &str) -> SqlError {
    SqlError::new("42P17", format!("functions in {place} must be marked IMMUTABLE"))
}

pub(super) fn typed(binder: &mut Binder<'_>, expr: Expr, purpose: Purpose) -> Result<Expr> {
    let clause = match purpose {
        Purpose::Check => "CHECK",
        Purpose::IndexPredicate => "WHERE",
        Purpose::IndexKey => return Ok(expr),
        Purpose::Tenant => {
            let ty = builtins::type_name(expr.ty.oid);
            let refused =
                SqlError::new("42804", format!("a tenant's name is a text, and the expression is of type {ty}"));
            return binder.coerce_to_target(expr, Type::of(types::TEXT), CastContext::Assignment)?.ok_or(refused);
        }
        Purpose::Convert(ty) => {
            let refused = SqlError::new("42804", "the expression cannot be converted to the column's new type");
            return binder.coerce_to_target(expr, ty, CastContext::Assignment)?.ok_or(refused);
        }
    };
    if expr.ty.oid == types::BOOL {
        return Ok(expr);
    }
    let ty = builtins::type_name(expr.ty.oid);
    Err(SqlError::new("42804", format!("argument of {clause} must be type boolean, not type {ty}")))
}

fn columns_of(expr: &Expr, of: &RelationRef) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    walk::each(expr, &mut |expr| {
        if let ExprKind::Column { rel, column } = &expr.kind {
            let name = of.relation.columns.get(*column).filter(|_| *rel == of.rel).map(|column| column.name.clone());
            names.extend(name.filter(|name| !names.contains(name)));
        }
        walk::Go::Deeper
    });
    names
}
