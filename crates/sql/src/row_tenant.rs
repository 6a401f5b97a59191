//! The tenant that a row is given to when its table becomes a tenant table.
//!
//!     notes (id, owner), by lower(owner)
//!     (7, 'Acme')  ──►  acme
//!     (8, null)    ──►  the null tenant
//!     (9, '')      ──►  no tenant: no tenant's name is empty
//!
//! It is computed by the functions that SQLite shards call, and that give PostgreSQL's answers, wherever the row is.

use crate::bind::tenant_expression;
use crate::eval::{EvalError, can_eval, eval};
use crate::row_key::Row;
use crate::runtime::Env;
use crate::text::Settings;
use crate::tree::Expr;
use isles_kernel::error::SqlError;
use isles_kernel::names::{NameError, TenantId};
use isles_kernel::schema::Table;
use isles_kernel::value::Value;

/// How the tenants of a table's rows are found. Rows are in the order of the table's columns.
#[derive(Debug, Clone)]
pub struct RowTenant {
    expr: Expr,
    settings: Settings,
}

/// Why a row has no tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoTenant {
    /// What the expression gives is no name.
    Name(NameError),
    /// The expression has no value.
    Failed(SqlError),
}

impl RowTenant {
    /// Refuses an expression that is wrong, or that only an engine can compute.
    pub fn of(table: &Table, sql: &str) -> Result<RowTenant, SqlError> {
        let expr = tenant_expression(table, sql)?;
        if !can_eval(&expr) {
            let message = format!("the tenant of a row cannot be computed without a shard: {sql}");
            return Err(
                SqlError::unsupported(message).with_hint("use other functions, or add a column with the tenant")
            );
        }
        Ok(RowTenant { expr, settings: Settings::default() })
    }

    /// None is the null tenant.
    pub fn tenant(&self, row: &[Value]) -> Result<Option<TenantId>, NoTenant> {
        let (mut clock, mut random) = (|| 0, || 0);
        let mut env = Env { settings: &self.settings, clock: &mut clock, random: &mut random };
        match eval(&self.expr, &mut env, &Row(row)) {
            Ok(Value::Null) => Ok(None),
            Ok(Value::Text(name)) => TenantId::new(name).map(Some).map_err(NoTenant::Name),
            Ok(_) | Err(EvalError::NeedsStage) => {
                Err(NoTenant::Failed(SqlError::new("XX000", "the tenant's expression gave no text")))
            }
            Err(EvalError::Sql(error)) => Err(NoTenant::Failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isles_kernel::schema::{Column, TableKind};
    use isles_kernel::value::DataType;

    fn notes() -> Table {
        let columns = vec![
            Column::new("id", DataType::Int8).not_null(),
            Column::new("owner", DataType::Text),
            Column::new("n", DataType::Int4),
        ];
        Table::new("app.notes", TableKind::Global, columns, &["id"])
    }

    fn of(sql: &str, owner: Value, n: i64) -> Result<Option<String>, NoTenant> {
        let by = RowTenant::of(&notes(), sql).expect("valid");
        let tenant = by.tenant(&[Value::Int(7), owner, Value::Int(n)])?;
        Ok(tenant.map(|tenant| tenant.to_string()))
    }

    #[test]
    fn a_tenant_is_a_column_or_an_expression_of_the_row() {
        let name = |name: &str| Ok(Some(name.to_string()));
        assert_eq!(of("owner", Value::text("Acme"), 1), name("Acme"));
        assert_eq!(of("lower(owner)", Value::text("Acme"), 1), name("acme"));
        assert_eq!(of("id", Value::Null, 1), name("7"));
        assert_eq!(of("owner", Value::Null, 1), Ok(None));
        assert_eq!(of("CASE WHEN n > 1 THEN 'many' ELSE owner END", Value::text("one"), 2), name("many"));
        assert_eq!(of("coalesce(owner, 'nobody')", Value::Null, 2), name("nobody"));
    }

    #[test]
    fn what_is_no_name_is_no_tenant() {
        let reason = |owner: &str| of("owner", Value::text(owner), 1).expect_err("no tenant");
        assert!(matches!(reason(""), NoTenant::Name(NameError::Empty { .. })));
        assert!(matches!(reason(&"x".repeat(65)), NoTenant::Name(NameError::TooLong { .. })));
        assert!(matches!(reason("a\nb"), NoTenant::Name(NameError::BadCharacter { .. })));
        assert!(matches!(of("1 / n", Value::Null, 0), Err(NoTenant::Failed(error)) if error.sqlstate == "22012"));
    }

    #[test]
    fn an_expression_is_of_the_row_alone() {
        for (sql, sqlstate) in [
            ("nothing", "42703"),
            ("count(*)", "42803"),
            ("now()", "42P17"),
            ("(SELECT 'x')", "0A000"),
            ("$1", "42P02"),
            ("owner FROM notes --", "42601"),
        ] {
            let error = RowTenant::of(&notes(), sql).expect_err(sql);
            assert_eq!(error.sqlstate, sqlstate, "{sql}: {error:?}");
        }
    }
}
