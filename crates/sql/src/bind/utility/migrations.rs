//! Statements about tables that become tenant tables.
//!
//!     ALTER TABLE name SET (kind = 'tenant', tenant_by = 'expression')
//!     CHECK MIGRATION name BY 'expression'
//!     CANCEL MIGRATION name
//!     SHOW MIGRATIONS

use super::super::ddl;
use super::{Context, Utility};
use crate::parse::MigrationOrder;
use isles_kernel::error::SqlError;
use pg_raw_parse::Node;
use pg_raw_parse::nodes::AlterTableStmt;
use pg_raw_parse::raw::{AlterTableType, ObjectType};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MigrationStatement {
    Start {
        table: String,
        /// An expression over the table's columns, in PostgreSQL's dialect.
        tenant_by: String,
    },
    Check {
        table: String,
        tenant_by: String,
    },
    Cancel {
        table: String,
    },
    List,
}

impl MigrationStatement {
    pub fn command_tag(&self) -> &'static str {
        match self {
            MigrationStatement::Start { .. } => "ALTER TABLE",
            MigrationStatement::Check { .. } => "CHECK MIGRATION",
            MigrationStatement::Cancel { .. } => "CANCEL MIGRATION",
            MigrationStatement::List => "SHOW",
        }
    }
}

pub(in crate::bind) fn ordered_migration(order: &MigrationOrder, context: &Context<'_>) -> Result<Utility, SqlError> {
    let table = |parts: &[String]| ddl::table_named(context, parts);
    Ok(Utility::Migration(match order {
        MigrationOrder::Check { table: parts, tenant_by } => {
            MigrationStatement::Check { table: table(parts)?, tenant_by: tenant_by.clone() }
        }
        MigrationOrder::Cancel { table: parts } => MigrationStatement::Cancel { table: table(parts)? },
        MigrationOrder::List => MigrationStatement::List,
    }))
}

/// `ALTER TABLE` that changes the kind of its table, and nothing else; None for any other.
pub(super) fn alter(statement: &AlterTableStmt, context: &Context<'_>) -> Result<Option<Utility>, SqlError> {
    let mut commands = statement.cmds().iter();
    let (Some(Node::AlterTableCmd(command)), None) = (commands.next(), commands.next()) else { return Ok(None) };
    let is_set = command.subtype == AlterTableType::AT_SetRelOptions && statement.objtype == ObjectType::OBJECT_TABLE;
    let Node::NodeList(options) = command.def() else { return Ok(None) };
    if !is_set {
        return Ok(None);
    }
    let (mut kind, mut tenant_by) = (None, None);
    for option in options {
        let Node::DefElem(option) = option else { continue };
        let name = option.defname().unwrap_or_default();
        let value = ddl::option_text(option);
        let value = value.ok_or_else(|| SqlError::new("22023", format!("invalid value for parameter \"{name}\"")))?;
        match name {
            "kind" => kind = Some(value),
            "tenant_by" => tenant_by = Some(value),
            _ => return Ok(None),
        }
    }
    if kind.as_deref() != Some("tenant") && tenant_by.is_none() {
        return Ok(None);
    }
    let Some(tenant_by) = tenant_by.filter(|_| kind.as_deref() == Some("tenant")) else {
        let message = "a table becomes a tenant table by kind and tenant_by together";
        let hint = "SET (kind = 'tenant', tenant_by = 'owner'), where owner is a column, or an expression over columns";
        return Err(SqlError::new("22023", message).with_hint(hint));
    };
    let names = [statement.relation().and_then(|r| r.schemaname()), statement.relation().and_then(|r| r.relname())];
    let names: Vec<String> = names.into_iter().flatten().map(Into::into).collect();
    let table = ddl::table_named(context, &names)?;
    Ok(Some(Utility::Migration(MigrationStatement::Start { table, tenant_by })))
}
