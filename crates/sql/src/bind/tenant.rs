//! Which tenant a row is given to when its table becomes a tenant table: an expression over the row.

use super::ddl::Purpose;
use super::expressions::{bound_over, check_plain, typed};
use super::key::over_params;
use super::{BindContext, Result, utility};
use crate::text::Settings;
use crate::tree::Expr;
use isles_kernel::schema::{Schema, Table};

/// The expression as a text, over parameters, of which each is the row's column of that number. It means the same in every
/// session, so it needs to know no other table, and no settings but those that every session begins with.
pub(crate) fn tenant_expression(table: &Table, sql: &str) -> Result<Expr> {
    let (mut schema, settings) = (Schema::default(), Settings::default());
    schema.namespaces.insert(table.namespace().into());
    schema.tables.insert(table.name.clone(), table.clone());
    let context = BindContext {
        schema: &schema,
        search_path: &[],
        database: "",
        settings: &settings,
        default_kind: utility::DefaultKind::Hash,
        default_buckets: 1,
    };
    let (mut binder, expr, _) = bound_over(&context, table, sql)?;
    check_plain(&expr, Purpose::Tenant)?;
    let mut expr = typed(&mut binder, expr, Purpose::Tenant)?;
    over_params(&mut expr);
    Ok(expr)
}
