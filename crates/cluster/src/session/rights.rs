//! What a session may do, by its role's rank.
//!
//!   * an *admin* may do everything
//!   * an *owner* uses and changes all tables, for any tenant; roles are not his but for his own password
//!   * a *tenant* role is locked to its tenant: it uses tenant tables, reads reference tables, sees its own tenant, and
//!     nothing else
//!
//! Rights are asked when a statement is prepared, and again when it is planned anew: what a name stands for may have
//! changed. Nothing runs that was not prepared by the session.

use super::plans::{Compiled, Prepared};
use super::settings::Tenant;
use super::tenants::TenantUse;
use super::{Result, Session};
use isles_kernel::error::SqlError;
use isles_kernel::schema::TableKind;
use isles_sql::bind::utility::{PasswordOption, RoleOptions, RoleStatement, ShowIsles, TenantStatement, Utility};
use isles_sql::reach::{Use, reach};
use isles_sql::tree::{CteBody, Statement};

/// What a role may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    Admin,
    Owner,
    Tenant,
}

/// The first table of a statement that is not for one tenant to use this way.
pub(super) fn beyond_tenant(statement: &Statement) -> Option<String> {
    let beyond = |kind: &TableKind, used: Use| match kind {
        TableKind::Tenant => false,
        TableKind::Reference => used == Use::Write,
        TableKind::Hash { .. } | TableKind::Global => true,
    };
    let mut tables = reach(statement).into_iter();
    tables.find(|(table, used)| beyond(&table.kind, *used)).map(|(table, _)| table.plain_name().to_string())
}

/// What a statement does with tenant tables. Rows that are locked are listed as written, and are not.
pub(super) fn tenant_use(statement: &Statement) -> TenantUse {
    let mut used = reach(statement).into_iter().filter(|(table, _)| table.kind == TableKind::Tenant).peekable();
    if used.peek().is_none() {
        return TenantUse::None;
    }
    let stores = match statement {
        Statement::Insert(_) | Statement::Update(_) => used.any(|(_, used)| used == Use::Write),
        Statement::Query(query) => query.ctes.iter().any(|cte| !matches!(cte.body, CteBody::Query(_))),
        Statement::Delete(_) => false,
    };
    if stores { TenantUse::Stores } else { TenantUse::Uses }
}

impl Session {
    pub(super) fn check_rights(&self, prepared: &Prepared) -> Result<()> {
        match (self.rank, &prepared.compiled) {
            (Rank::Admin, _) => Ok(()),
            (Rank::Tenant, _) if prepared.beyond_tenant.is_some() => {
                let table = prepared.beyond_tenant.as_deref().unwrap_or_default();
                let error = SqlError::new("42501", format!("permission denied for table {table}"));
                Err(error.with_hint("the role is locked to a tenant: it uses tenant tables and reads reference tables"))
            }
            (rank, Compiled::Utility(utility)) => self.check_utility(rank, utility),
            _ => Ok(()),
        }
    }

    fn check_utility(&self, rank: Rank, utility: &Utility) -> Result<()> {
        match utility {
            Utility::Role(role) if self.is_own_password(role) => Ok(()),
            Utility::Role(_) => Err(SqlError::new("42501", "permission denied to manage roles")),
            Utility::Tenant(tenant) => self.check_tenant(rank, tenant),
            Utility::Plan(_) => self.check_plan(utility),
            Utility::Shard(_) => Err(SqlError::new("42501", "permission denied to manage shards")),
            _ if rank != Rank::Tenant => Ok(()),
            Utility::Index(_) => Err(SqlError::new("42501", "permission denied to manage indexes")),
            Utility::Ddl(_) | Utility::Migration(_) => {
                Err(SqlError::new("42501", "permission denied to change the schema"))
            }
            Utility::ShowIsles(ShowIsles::Shards | ShowIsles::Routes) => {
                Err(SqlError::new("42501", "permission denied to see shards and routes"))
            }
            Utility::Vacuum | Utility::Analyze | Utility::Checkpoint => {
                Err(SqlError::new("42501", "permission denied to maintain the database"))
            }
            _ => Ok(()),
        }
    }

    /// Owners see all tenants, a tenant role its own; nobody but an administrator changes one.
    fn check_tenant(&self, rank: Rank, tenant: &TenantStatement) -> Result<()> {
        let is_own = |name| self.settings.meaning().tenant == Tenant::Name(Clone::clone(name));
        match (rank, tenant) {
            (Rank::Owner, TenantStatement::List { .. } | TenantStatement::Show { .. }) => Ok(()),
            (Rank::Tenant, TenantStatement::Show { name }) if is_own(name) => Ok(()),
            (_, TenantStatement::List { .. } | TenantStatement::Show { .. }) => {
                Err(SqlError::new("42501", "permission denied to see other tenants"))
            }
            _ => Err(SqlError::new("42501", "permission denied to manage tenants")),
        }
    }

    /// Whether it gives the session's own role another password, and does nothing besides.
    fn is_own_password(&self, role: &RoleStatement) -> bool {
        let RoleStatement::Alter { name, options } = role else { return false };
        let own = *name == *self.user || name == "current_user" || name == "session_user";
        let alone = RoleOptions { password: options.password.clone(), ..RoleOptions::default() };
        own && matches!(options.password, Some(PasswordOption::Set(_))) && *options == alone
    }
}
