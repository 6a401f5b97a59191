//! What DDL asks of the binder of rows: types by name, queries of views, defaults, and expressions over one table.

use super::ddl::{Expressions, Purpose, TableExpression};
use super::{BindContext, Binder, BoundStatement, Result, bind, bind_type};
use crate::builtins::{self, CastContext};
use crate::parse;
use crate::tree::{ExprKind, Field, Statement};
use crate::types::Type;
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

    fn format_type(&self, ty: Type) -> String {
        builtins::format_type(ty)
    }

    fn query_columns(&self, schema: &Schema, sql: &str) -> Result<Vec<Field>> {
        let bound = bind(&parse::parse_one(sql)?, &self.over(schema), &[])?;
        match bound.statement {
            BoundStatement::Rows(statement) => match *statement {
                Statement::Query(query) => Ok(query.columns),
                _ => Err(SqlError::unsupported("this is not a query")),
            },
            _ => Err(SqlError::unsupported("this is not a query")),
        }
    }

    fn default(&self, schema: &Schema, sql: &str, ty: Type) -> Result<Option<Value>> {
        let context = self.over(schema);
        let mut binder = Binder::new(&context, Arc::from(sql), &[]);
        let expr = binder.expression_text(sql)?;
        let from = expr.ty.oid;
        let expr = binder.coerce_to_target(expr, ty, CastContext::Assignment)?.ok_or_else(|| {
            let (from, to) = (builtins::type_name(from), builtins::type_name(ty.oid));
            SqlError::new("42804", format!("column is of type {to} but default expression is of type {from}"))
                .with_hint("You will need to rewrite or cast the expression.")
        })?;
        Ok(match expr.kind {
            ExprKind::Const(value) => Some(value),
            _ => None,
        })
    }

    fn over_table(&self, _table: &Table, _sql: &str, purpose: Purpose) -> Result<TableExpression> {
        let what = match purpose {
            Purpose::Check => "check constraints",
            Purpose::IndexPredicate => "partial indexes",
            Purpose::IndexKey => "indexes on expressions",
        };
        Err(SqlError::unsupported(format!("{what} are not supported")))
    }
}
