//! Statements that neither read nor write rows by themselves: transactions, settings, cursors, COPY, DDL.
//!
//! Binding checks all that can be checked without running anything. Statements inside of these statements (a
//! cursor's query, what is prepared, what COPY reads) are handed on as text, since they are bound when their turn
//! comes, as PostgreSQL does it.
//!
//! What Isles does not do is refused here, with 0A000. Nothing that a statement says is left out of its bound form,
//! except what has no meaning here and cannot be noticed (`CONCURRENTLY`, how VACUUM goes about it).

mod copy;
mod indexes;
mod maintain;
mod migrations;
mod roles;
mod session;
#[cfg(test)]
mod tests;

use super::ddl::{self, DdlChange, Expressions};
use crate::copy::{CopyDirection, CopyOptions};
pub use crate::parse::{MoveOrder, MoveStatement, ShardStatement, TenantStatement};
use crate::types::Type;
pub(super) use indexes::ordered;
pub use indexes::{IndexName, IndexStatement};
use isles_kernel::error::SqlError;
use isles_kernel::schema::Schema;
pub use migrations::MigrationStatement;
pub(super) use migrations::ordered_migration;
use pg_raw_parse::Node;

/// What binding is given.
pub struct Context<'a> {
    pub schema: &'a Schema,
    /// Schemas in which names are looked up, and in the first of which relations are made.
    pub search_path: &'a [String],
    /// The binder of queries and expressions, and the printers.
    pub expressions: &'a dyn Expressions,
    /// What a table is that does not say `kind`.
    pub default_kind: DefaultKind,
    /// Buckets of a new group that does not say how many.
    pub default_buckets: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DefaultKind {
    #[default]
    Hash,
    Tenant,
}

/// A bound statement that returns no rows of tables.
#[derive(Debug, Clone, PartialEq)]
pub enum Utility {
    /// `BEGIN` and `START TRANSACTION`.
    Begin(Begin),
    Commit {
        chain: bool,
    },
    Rollback {
        chain: bool,
    },
    Savepoint {
        name: String,
    },
    Release {
        name: String,
    },
    RollbackTo {
        name: String,
    },
    /// `SET TRANSACTION`, or `SET SESSION CHARACTERISTICS AS TRANSACTION` for the scope of the session.
    SetTransaction {
        modes: TransactionModes,
        scope: SetScope,
    },
    /// `SET name = value`. Names keep PostgreSQL's spelling in lower case (`timezone`, `search_path`,
    /// `isles.tenant`); `SET ROLE`, `SET SESSION AUTHORIZATION` and `SET TIME ZONE` are settings, too (`role`,
    /// `session_authorization`, `timezone`).
    Set {
        name: String,
        value: SetValue,
        scope: SetScope,
    },
    Reset {
        name: String,
    },
    ResetAll,
    Show {
        name: String,
    },
    ShowAll,
    ShowIsles(ShowIsles),
    Discard(Discard),
    Prepare {
        name: String,
        /// The declared types of the first parameters; those after them are inferred.
        types: Vec<Type>,
        statement: String,
    },
    Execute {
        name: String,
        /// Each the text of an expression without columns; it is assigned to the type of its parameter.
        args: Vec<String>,
    },
    /// None for `ALL`.
    Deallocate {
        name: Option<String>,
    },
    DeclareCursor(DeclareCursor),
    Fetch(Fetch),
    /// As `Fetch`, without rows: the tag counts those that would have been fetched.
    Move(Fetch),
    /// None for `ALL`.
    CloseCursor {
        name: Option<String>,
    },
    Copy(CopyStatement),
    /// All rows of these tables are deleted, in one transaction; then these sequences start again.
    Truncate {
        tables: Vec<String>,
        restart: Vec<String>,
        /// Tables that `CASCADE` has added.
        notices: Vec<SqlError>,
    },
    /// The engines look after their files and statistics themselves; nothing is done.
    Vacuum {
        warnings: Vec<SqlError>,
    },
    Analyze {
        warnings: Vec<SqlError>,
    },
    Unlisten,
    Checkpoint,
    Ddl(Box<DdlChange>),
    Role(RoleStatement),
    Tenant(TenantStatement),
    /// About moves and their plans; `Move` is about cursors.
    Plan(MoveStatement),
    /// Shards that come and go.
    Shard(ShardStatement),
    /// Global indexes.
    Index(IndexStatement),
    /// Tables that become tenant tables.
    Migration(MigrationStatement),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Begin {
    pub modes: TransactionModes,
    /// Which of the two spellings: their tags differ.
    pub start: bool,
}

/// What was said of a transaction; None where nothing was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransactionModes {
    pub isolation: Option<IsolationLevel>,
    pub read_only: Option<bool>,
    pub deferrable: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsolationLevel {
    ReadUncommitted,
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetScope {
    Session,
    /// `SET LOCAL`: until the transaction ends.
    Local,
}

#[derive(Debug, Clone, PartialEq)]
pub enum SetValue {
    /// `TO DEFAULT`.
    Default,
    /// One value as a text, or several joined by `, `, as PostgreSQL keeps lists.
    Text(String),
}

/// What Isles shows of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShowIsles {
    Shards,
    Tables,
    Routes,
    Limits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discard {
    All,
    Plans,
    Sequences,
    Temp,
}

#[derive(Debug, Clone, PartialEq)]
pub struct DeclareCursor {
    pub name: String,
    pub query: String,
    /// `SCROLL` and `NO SCROLL`; None where nothing was said.
    pub scroll: Option<bool>,
    /// `WITH HOLD`: it outlives its transaction.
    pub hold: bool,
    pub binary: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Fetch {
    pub cursor: String,
    pub from: FetchFrom,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchFrom {
    /// The next n rows; 0 is the row the cursor is on.
    Forward(u64),
    ForwardAll,
    Backward(u64),
    BackwardAll,
    /// The n-th row, from 1; from the end when negative; 0 is before the first.
    Absolute(i64),
    Relative(i64),
}

#[derive(Debug, Clone, PartialEq)]
pub struct CopyStatement {
    pub direction: CopyDirection,
    pub source: CopySource,
    pub options: CopyOptions,
}

#[derive(Debug, Clone, PartialEq)]
pub enum CopySource {
    /// The columns are named, all visible ones in order if none were. `filter` is the text of `WHERE`, which only
    /// `FROM` has.
    Table {
        table: String,
        columns: Vec<String>,
        filter: Option<String>,
    },
    Query(String),
}

/// Roles and rights.
#[derive(Debug, Clone, PartialEq)]
pub enum RoleStatement {
    Create {
        name: String,
        options: RoleOptions,
    },
    Alter {
        name: String,
        options: RoleOptions,
    },
    /// `ALTER ROLE … SET`: what its sessions begin with.
    Configure {
        name: String,
        setting: RoleSetting,
    },
    Drop {
        names: Vec<String>,
        if_exists: bool,
    },
    /// `GRANT … ON …` and `REVOKE … ON …`.
    Grant(GrantRights),
    /// `GRANT role TO role` and `REVOKE role FROM role`.
    Membership {
        grant: bool,
        roles: Vec<String>,
        members: Vec<String>,
    },
}

/// A change of what a role's sessions begin with.
#[derive(Debug, Clone, PartialEq)]
pub enum RoleSetting {
    Set(String, String),
    Reset(String),
    ResetAll,
}

/// What was said of a role; None where nothing was.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RoleOptions {
    pub login: Option<bool>,
    pub superuser: Option<bool>,
    pub create_role: Option<bool>,
    pub create_db: Option<bool>,
    pub inherit: Option<bool>,
    pub connection_limit: Option<i32>,
    pub password: Option<PasswordOption>,
    pub valid_until: Option<String>,
    /// `CREATE USER` may log in unless it says otherwise.
    pub user: bool,
}

/// A password never appears in a debug print.
#[derive(Clone, PartialEq, Eq)]
pub enum PasswordOption {
    Clear,
    Set(String),
}

impl std::fmt::Debug for PasswordOption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PasswordOption::Clear => "Clear",
            PasswordOption::Set(_) => "Set(…)",
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct GrantRights {
    pub grant: bool,
    /// In lower case; empty for `ALL`.
    pub rights: Vec<String>,
    pub on: GrantObject,
    pub grantees: Vec<String>,
    pub with_grant_option: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum GrantObject {
    Tables(Vec<String>),
    Sequences(Vec<String>),
    AllTables,
    AllSequences,
    Schema(Vec<String>),
    Database(Vec<String>),
}

impl Utility {
    /// The tag of the answer. For those that count (`COPY 3`, `FETCH 2`, `MOVE 2`, `SELECT 5` of a table made from a
    /// query) it is the word before the number.
    pub fn command_tag(&self) -> &'static str {
        match self {
            Utility::Begin(begin) if begin.start => "START TRANSACTION",
            Utility::Begin(_) => "BEGIN",
            Utility::Commit { .. } => "COMMIT",
            Utility::Rollback { .. } | Utility::RollbackTo { .. } => "ROLLBACK",
            Utility::Savepoint { .. } => "SAVEPOINT",
            Utility::Release { .. } => "RELEASE",
            Utility::SetTransaction { .. } | Utility::Set { .. } => "SET",
            Utility::Reset { .. } | Utility::ResetAll => "RESET",
            Utility::Show { .. } | Utility::ShowAll | Utility::ShowIsles(_) => "SHOW",
            Utility::Discard(Discard::All) => "DISCARD ALL",
            Utility::Discard(Discard::Plans) => "DISCARD PLANS",
            Utility::Discard(Discard::Sequences) => "DISCARD SEQUENCES",
            Utility::Discard(Discard::Temp) => "DISCARD TEMP",
            Utility::Prepare { .. } => "PREPARE",
            Utility::Execute { .. } => "EXECUTE",
            Utility::Deallocate { name: Some(_) } => "DEALLOCATE",
            Utility::Deallocate { name: None } => "DEALLOCATE ALL",
            Utility::DeclareCursor(_) => "DECLARE CURSOR",
            Utility::Fetch(_) => "FETCH",
            Utility::Move(_) => "MOVE",
            Utility::CloseCursor { name: Some(_) } => "CLOSE CURSOR",
            Utility::CloseCursor { name: None } => "CLOSE CURSOR ALL",
            Utility::Unlisten => "UNLISTEN",
            Utility::Copy(_) => "COPY",
            Utility::Truncate { .. } => "TRUNCATE TABLE",
            Utility::Vacuum { .. } => "VACUUM",
            Utility::Analyze { .. } => "ANALYZE",
            Utility::Checkpoint => "CHECKPOINT",
            Utility::Ddl(change) => change.tag,
            Utility::Role(role) => role.command_tag(),
            Utility::Tenant(tenant) => tenant.command_tag(),
            Utility::Plan(statement) => statement.command_tag(),
            Utility::Shard(statement) => statement.command_tag(),
            Utility::Index(statement) => statement.command_tag(),
            Utility::Migration(statement) => statement.command_tag(),
        }
    }
}

impl RoleStatement {
    fn command_tag(&self) -> &'static str {
        match self {
            RoleStatement::Create { .. } => "CREATE ROLE",
            RoleStatement::Alter { .. } | RoleStatement::Configure { .. } => "ALTER ROLE",
            RoleStatement::Drop { .. } => "DROP ROLE",
            RoleStatement::Grant(rights) if rights.grant => "GRANT",
            RoleStatement::Grant(_) => "REVOKE",
            RoleStatement::Membership { grant: true, .. } => "GRANT ROLE",
            RoleStatement::Membership { .. } => "REVOKE ROLE",
        }
    }
}

/// Binds a statement that is not one of rows. Whatever is not known is refused by its name.
pub fn bind(node: Node<'_>, context: &Context<'_>) -> Result<Utility, SqlError> {
    match node {
        Node::TransactionStmt(statement) => session::transaction(statement),
        Node::VariableSetStmt(statement) => session::set(statement),
        Node::VariableShowStmt(statement) => Ok(session::show(statement.name().unwrap_or_default())),
        Node::DiscardStmt(statement) => Ok(session::discard(statement)),
        Node::PrepareStmt(statement) => session::prepare(statement, context),
        Node::ExecuteStmt(statement) => session::execute(statement),
        Node::DeallocateStmt(statement) => {
            Ok(Utility::Deallocate { name: statement.name().filter(|_| !statement.isall).map(Into::into) })
        }
        Node::DeclareCursorStmt(statement) => session::declare(statement),
        Node::FetchStmt(statement) => Ok(session::fetch(statement)),
        Node::ClosePortalStmt(statement) => Ok(Utility::CloseCursor { name: statement.portalname().map(Into::into) }),
        // Nobody can listen, so there is nothing to end.
        Node::UnlistenStmt(_) => Ok(Utility::Unlisten),
        Node::CopyStmt(statement) => copy::bind(statement, context).map(Utility::Copy),
        Node::TruncateStmt(statement) => ddl::truncate(statement, context),
        Node::VacuumStmt(statement) => maintain::bind(statement, context),
        Node::CheckPointStmt(_) => Ok(Utility::Checkpoint),
        Node::ReindexStmt(statement) => indexes::reindex(statement, context),
        Node::CreateRoleStmt(statement) => roles::create(statement),
        Node::AlterRoleStmt(statement) => roles::alter(statement),
        Node::AlterRoleSetStmt(statement) => roles::configure(statement),
        Node::DropRoleStmt(statement) => roles::drop(statement),
        Node::GrantStmt(statement) => roles::grant(statement),
        Node::GrantRoleStmt(statement) => roles::membership(statement),
        Node::AlterTableStmt(statement) if let Some(migration) = migrations::alter(statement, context)? => {
            Ok(migration)
        }
        other => match ddl::bind(other, context)? {
            Some(change) => Ok(Utility::Ddl(Box::new(change))),
            None => Err(refused(other)),
        },
    }
}

/// What Isles does not do, by the name that people know it by, and what to do instead.
fn refused(node: Node<'_>) -> SqlError {
    let (what, hint) = match node {
        Node::ListenStmt(_) => ("LISTEN", NOTIFICATIONS),
        Node::NotifyStmt(_) => ("NOTIFY", NOTIFICATIONS),
        Node::LockStmt(_) => ("LOCK TABLE", "lock rows by SELECT … FOR UPDATE, or a number by pg_advisory_xact_lock"),
        Node::DoStmt(_) => ("DO", PROCEDURES),
        Node::CallStmt(_) => ("CALL", "procedures of Isles are called by SELECT isles.name(…)"),
        Node::CreateFunctionStmt(_) => ("CREATE FUNCTION", PROCEDURES),
        Node::CreateTrigStmt(_) => ("CREATE TRIGGER", TRIGGERS),
        Node::CreateEventTrigStmt(_) => ("CREATE EVENT TRIGGER", TRIGGERS),
        Node::CreateEnumStmt(_) => ("CREATE TYPE … AS ENUM", "use text with CHECK (… IN (…)), or a reference table"),
        Node::CompositeTypeStmt(_) | Node::CreateRangeStmt(_) | Node::DefineStmt(_) => {
            ("CREATE TYPE, AGGREGATE, OPERATOR and the like", "use the types and functions that are built in")
        }
        Node::CreateDomainStmt(_) => ("CREATE DOMAIN", "use the type itself, with CHECK at each column"),
        Node::CreatePolicyStmt(_) => ("CREATE POLICY", "make it a tenant table: sessions see their tenant's rows only"),
        Node::CreatePublicationStmt(_) => ("CREATE PUBLICATION", REPLICATION),
        Node::CreateSubscriptionStmt(_) => ("CREATE SUBSCRIPTION", REPLICATION),
        Node::CreateStatsStmt(_) => ("CREATE STATISTICS", "leave it out: shards see to their statistics themselves"),
        Node::CreateTableSpaceStmt(_) => ("CREATE TABLESPACE", "leave it out: rows are where their shards are"),
        Node::CreatedbStmt(_) => ("CREATE DATABASE", DATABASES),
        Node::DropdbStmt(_) => ("DROP DATABASE", DATABASES),
        Node::AlterDatabaseStmt(_) | Node::AlterDatabaseSetStmt(_) => (
            "ALTER DATABASE",
            "give roles their settings by ALTER ROLE … SET, and servers theirs by a configuration file",
        ),
        Node::AlterOwnerStmt(_) => ("ALTER … OWNER TO", NO_OWNERS),
        Node::AlterObjectSchemaStmt(_) => ("ALTER … SET SCHEMA", "create it anew in the other schema"),
        Node::AlterDefaultPrivilegesStmt(_) => ("ALTER DEFAULT PRIVILEGES", RIGHTS),
        Node::AlterSystemStmt(_) => ("ALTER SYSTEM", "change the server's configuration file"),
        Node::RuleStmt(_) => ("CREATE RULE", "write to the tables themselves"),
        Node::ClusterStmt(_) => ("CLUSTER", "leave it out: it changes no result"),
        Node::RefreshMatViewStmt(_) => ("REFRESH MATERIALIZED VIEW", "use a view, or a table that you fill"),
        Node::ConstraintsSetStmt(_) => {
            ("SET CONSTRAINTS", "give the constraint INITIALLY DEFERRED, or write the rows in the order of their keys")
        }
        Node::LoadStmt(_) => ("LOAD", "use the types and functions that are built in"),
        Node::SecLabelStmt(_) => ("SECURITY LABEL", RIGHTS),
        Node::ImportForeignSchemaStmt(_) => ("IMPORT FOREIGN SCHEMA", "copy the rows by COPY"),
        Node::MergeStmt(_) => ("MERGE", "use INSERT … ON CONFLICT, UPDATE … FROM and DELETE … USING"),
        _ => ("this statement", "docs/sql.md lists what is supported"),
    };
    SqlError::unsupported(format!("{what} is not supported")).with_hint(hint)
}

const NOTIFICATIONS: &str = "poll a table, or follow a tenant's entries as replicas do";
const PROCEDURES: &str = "run the statements one by one from the client, in a transaction";
const TRIGGERS: &str = "write what depends on a row in the same transaction as the row";
const REPLICATION: &str = "copy rows by COPY, or follow a tenant's entries as replicas do";
const DATABASES: &str = "a server has one database; start another server, or use CREATE SCHEMA or CREATE TENANT";
const RIGHTS: &str = "roles are administrators, owners, or locked to a tenant";
/// Of all that has an owner in PostgreSQL.
pub(super) const NO_OWNERS: &str = "leave it out: relations have no owners, and every owner role may change them";
