//! What a session may do, by its role's rank.
//!
//!   * an *admin* may do everything
//!   * an *owner* uses and changes all tables, for any tenant; roles are not his but for his own password
//!   * a *tenant* role is locked to its tenant: it uses tenant tables, reads reference tables, sees its own tenant, and
//!     nothing else
//!
//! An administrator who reads the rows of all tenants (`isles.tenant_scope`) does nothing besides.
//!
//! The schema `isles` is the system's: administrators read it, and nobody writes to it or changes it but the system
//! itself, which is a session of its own or a procedure that a client calls.
//!
//! Rights are asked when a statement is prepared, and again when it is planned anew: what a name stands for may have
//! changed. Nothing runs that was not prepared by the session.

use super::plans::{Compiled, Prepared, RowsKind};
use super::settings::Tenant;
use super::tenants::TenantUse;
use super::{Result, Session};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{TableKind, relation_parts};
use isles_sql::bind::procedure::{CallVerb, SYSTEM_NAMESPACE};
use isles_sql::bind::utility::{
    MigrationStatement, PasswordOption, RoleOptions, RoleStatement, ShowIsles, TenantStatement, Utility,
};
use isles_sql::copy::CopyDirection;
use isles_sql::plan::Plan;
use isles_sql::reach::{Use, reach};
use isles_sql::tree::{CteBody, Statement};

/// What a role may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    Tenant,
    Owner,
    Admin,
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

fn locks(plan: &Plan) -> bool {
    matches!(plan, Plan::Query(query) if query.locks)
}

/// Statements about the session itself, and those that show something.
fn only_reads(utility: &Utility) -> bool {
    match utility {
        Utility::Begin(_) | Utility::Commit { .. } | Utility::Rollback { .. } | Utility::SetTransaction { .. } => true,
        Utility::Savepoint { .. } | Utility::Release { .. } | Utility::RollbackTo { .. } => true,
        Utility::Set { .. } | Utility::Reset { .. } | Utility::ResetAll | Utility::Discard(_) => true,
        Utility::Show { .. } | Utility::ShowAll | Utility::ShowIsles(_) => true,
        Utility::Prepare { .. } | Utility::Execute { .. } | Utility::Deallocate { .. } => true,
        Utility::DeclareCursor(_) | Utility::Fetch(_) | Utility::Move(_) | Utility::CloseCursor { .. } => true,
        Utility::Unlisten => true,
        Utility::Copy(copy) => matches!(copy.direction, CopyDirection::Out),
        _ => false,
    }
}

/// What a statement does with the system's tables.
pub(super) fn system_use(statement: &Statement) -> Option<Use> {
    let used = reach(statement).into_iter().filter(|(table, _)| table.namespace() == SYSTEM_NAMESPACE);
    used.map(|(_, used)| used).reduce(|one, other| if one == Use::Write { one } else { other })
}

/// Whether a statement that is not about rows changes something of the system's.
fn changes_system(utility: &Utility) -> bool {
    let is_system = |relation: &String| relation_parts(relation).0 == SYSTEM_NAMESPACE;
    match utility {
        Utility::Ddl(change) => {
            let restarts = change.restarts.iter().any(|(sequence, _)| is_system(sequence));
            restarts || change.changes.iter().any(|change| change.concerns(SYSTEM_NAMESPACE))
        }
        Utility::Truncate { tables, restart, .. } => tables.iter().chain(restart).any(is_system),
        Utility::Migration(MigrationStatement::Start { table, .. } | MigrationStatement::Cancel { table }) => {
            is_system(table)
        }
        _ => false,
    }
}

fn is_the_systems() -> SqlError {
    let error = SqlError::new("42501", format!("permission denied for schema {SYSTEM_NAMESPACE}"));
    error.with_hint("its tables are the system's: administrators read them, and functions of this schema change them")
}

/// The session of a procedure while it runs: it may write to the system's tables. What it was before, it is again when
/// this is dropped, also if the call is given up half way.
pub(super) struct Elevated<'a> {
    session: &'a mut Session,
    before: bool,
}

impl<'a> Elevated<'a> {
    pub(super) fn new(session: &'a mut Session) -> Elevated<'a> {
        let before = std::mem::replace(&mut session.is_system, true);
        Elevated { session, before }
    }

    pub(super) fn session(&mut self) -> &mut Session {
        self.session
    }
}

impl Drop for Elevated<'_> {
    fn drop(&mut self) {
        self.session.is_system = self.before;
    }
}

impl Session {
    /// What its role may do.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    pub(super) fn check_rights(&self, prepared: &Prepared) -> Result<()> {
        self.check_reads(prepared)?;
        if self.is_system {
            return Ok(());
        }
        match (prepared.system_use, &prepared.compiled) {
            (Some(Use::Write), _) => return Err(is_the_systems()),
            (Some(Use::Read), _) if self.rank != Rank::Admin => return Err(is_the_systems()),
            (_, Compiled::Utility(utility)) if changes_system(utility) => return Err(is_the_systems()),
            _ => {}
        }
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

    /// Whoever reads the rows of all tenants only reads: of anything else it could not be said for whom it is done.
    fn check_reads(&self, prepared: &Prepared) -> Result<()> {
        if self.settings.meaning().tenant != Tenant::Every {
            return Ok(());
        }
        let what = match &prepared.compiled {
            Compiled::Rows { plan, kind: RowsKind::Select } if !locks(plan) => return Ok(()),
            Compiled::Rows { kind: RowsKind::Select, .. } => "SELECT FOR UPDATE",
            Compiled::Rows { kind, .. } => kind.name(),
            Compiled::Explain(explain) if RowsKind::of(&explain.statement) == RowsKind::Select => return Ok(()),
            Compiled::Explain(_) => "EXPLAIN of a statement that writes",
            Compiled::Utility(utility) if !only_reads(utility) => "a statement that is not a query",
            Compiled::Call(call) if call.verb == CallVerb::Show => return Ok(()),
            Compiled::Call(_) => "a procedure",
            Compiled::Utility(_) | Compiled::Functions(_) | Compiled::Empty | Compiled::Nothing => return Ok(()),
        };
        let error = SqlError::new("25006", format!("cannot execute {what} while the rows of all tenants are read"));
        Err(error.with_hint("RESET isles.tenant_scope"))
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
            Utility::Truncate { restart, .. } if !restart.is_empty() => {
                Err(SqlError::new("42501", "permission denied to restart sequences")
                    .with_hint("TRUNCATE without RESTART IDENTITY deletes the tenant's rows"))
            }
            Utility::Vacuum { .. } | Utility::Analyze { .. } | Utility::Checkpoint => {
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
