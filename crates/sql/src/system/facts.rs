//! What the system relations are computed from.

use super::directory::Directory;
use crate::types::Oid;
use isles_kernel::schema::{PUBLIC, Schema};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The oid of the role that owns everything, as of PostgreSQL's first role.
pub(super) const OWNER_OID: u32 = 10;

/// A database as it is at one moment, seen from one session. Whoever makes it fills in what it knows; the rest keeps
/// the values of [`Facts::new`], which are true of an idle database.
#[derive(Debug)]
pub struct Facts {
    pub schema: Arc<Schema>,
    /// The session's database.
    pub database: String,
    /// The role that owns the database and all that is in it.
    pub owner: String,
    /// The other roles.
    pub roles: Vec<Role>,
    /// The session's role.
    pub user: String,
    /// Schemas in which the session looks up names, after `pg_catalog`.
    pub search_path: Vec<String>,
    /// The session's settings, by name.
    pub settings: BTreeMap<String, String>,
    /// What `version()` says.
    pub version: String,
    /// Sizes of tables, where they are known.
    pub sizes: BTreeMap<String, Size>,
    /// The number that each sequence gave last; none before the first.
    pub last_values: BTreeMap<String, i64>,
    pub sessions: Vec<SessionFact>,
    /// The session's prepared statements that have names.
    pub statements: Vec<StatementFact>,
    /// When the server started, in microseconds from 2000-01-01.
    pub started: i64,
    /// What `txid_current()` says.
    pub transaction: i64,
    directory: OnceLock<Directory>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    pub name: String,
    pub can_login: bool,
    pub is_superuser: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    pub bytes: i64,
    pub rows: i64,
}

/// A session, as `pg_stat_activity` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFact {
    pub pid: i32,
    pub user: String,
    pub application_name: String,
    /// In microseconds from 2000-01-01.
    pub since: i64,
    /// `active`, `idle`, `idle in transaction`, …
    pub state: String,
    pub query: String,
}

/// A prepared statement, as `pg_prepared_statements` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatementFact {
    pub name: String,
    pub statement: String,
    /// In microseconds from 2000-01-01.
    pub since: i64,
    pub params: Vec<Oid>,
    /// By PREPARE, and not by the protocol.
    pub from_sql: bool,
}

impl Facts {
    pub fn new(schema: Arc<Schema>, database: &str, owner: &str) -> Facts {
        Facts {
            schema,
            database: database.into(),
            owner: owner.into(),
            roles: Vec::new(),
            user: owner.into(),
            search_path: vec![PUBLIC.into()],
            settings: BTreeMap::new(),
            version: "PostgreSQL 15.0 (Isles)".into(),
            sizes: BTreeMap::new(),
            last_values: BTreeMap::new(),
            sessions: Vec::new(),
            statements: Vec::new(),
            started: 0,
            transaction: 0,
            directory: OnceLock::new(),
        }
    }

    /// The schema's objects with their numbers; found once.
    pub(super) fn directory(&self) -> &Directory {
        self.directory.get_or_init(|| Directory::of(&self.schema))
    }

    pub(super) fn database_oid(&self) -> u32 {
        super::directory::user_oid("database", &self.database)
    }

    /// All roles with their oids, the owner first.
    pub(super) fn all_roles(&self) -> Vec<(u32, Role)> {
        let owner = Role { name: self.owner.clone(), can_login: true, is_superuser: true };
        let others = self.roles.iter().filter(|role| role.name != self.owner);
        let others = others.map(|role| (super::directory::user_oid("role", &role.name), role.clone()));
        std::iter::once((OWNER_OID, owner)).chain(others).collect()
    }

    pub(super) fn role_oid(&self, name: &str) -> Option<u32> {
        self.all_roles().into_iter().find(|(_, role)| role.name == name).map(|(oid, _)| oid)
    }

    pub(super) fn size_of(&self, table: &str) -> Size {
        self.sizes.get(table).copied().unwrap_or_default()
    }
}
