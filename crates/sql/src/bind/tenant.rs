//! Which tenant a row is given to when its table becomes a tenant table: an expression over the row.

use super::Result;
use super::ddl::Purpose;
use super::expressions::{bound_over, check_plain, typed};
use super::key::{over_params, with_table_alone};
use crate::tree::Expr;
use isles_kernel::schema::Table;

/// The expression as a text, over parameters, of which each is the row's column of that number.
pub(crate) fn tenant_expression(table: &Table, sql: &str) -> Result<Expr> {
    with_table_alone(table, |context| {
        let (mut binder, expr, _) = bound_over(context, table, sql)?;
        check_plain(&expr, Purpose::Tenant)?;
        let mut expr = typed(&mut binder, expr, Purpose::Tenant)?;
        over_params(&mut expr);
        Ok(expr)
    })
}
