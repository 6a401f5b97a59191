//! The second fence around tenants: row level security.
//!
//! Planning puts the tenant into every statement. Should it ever forget one, the server shows and takes no row of a
//! tenant table but those of the tenant that the transaction says it acts for; and none if it says nothing.
//!
//!     session      -c role=isles_tenant       clients' statements are of a role that owns nothing
//!     transaction  isles.tenant, set local    ':' and the tenant's key; gone with the transaction
//!     table        FORCE ROW LEVEL SECURITY   "_tenant" = the key in that setting, to see a row and to write it
//!
//! A transaction that reads for all tenants takes a role of its own, which a policy for SELECT alone lets at every row;
//! nothing can be written by it, and the transaction is read only besides. It is a role and not one more setting: the
//! policies of one role are joined by OR, which no index answers, and every tenant's lookup would pay for it.
//!
//! The setting has a tag in front. One that a transaction has set reads as an empty text afterwards, and not as null;
//! and the empty text is the key of the null tenant.
//!
//! The login owns what Isles makes. Its own work (schema, snapshots, applied rows, the log) is done in its own role:
//! on a client's connection by [`OWN`], until the transaction ends or [`BACK`]. As tables are under FORCE, an owner
//! that is no superuser has a policy of its own, which lets every row through. Foreign keys are checked by the server as
//! the owner, without policies.
//!
//! Client statements reach `_isles` no further than the fences. Triggers that write the log are SECURITY DEFINER, and
//! nobody but the owner may make another trigger of their functions.
//!
//! This is no fence against somebody who can run any SQL on a client's connection: `SET ROLE NONE` takes it away. Isles
//! composes all that it sends.
//!
//! Invariants (docs/invariants.md):
//!   * I-44  the storage keeps tenants apart by itself; a shard on which it does not is not opened

use super::ddl::{quote, table_name, text_literal};
use super::fault;
use super::pool::Conn;
use crate::error::{Result, ShardError, SqlError};
use crate::shard::ActsFor;
use isles_kernel::schema::{Object, ObjectKind, Schema, TENANT_KEY_COLUMN, Table, TableKind};
use isles_sql::planted::{self, Bug};
use tokio_postgres::Config;

/// Whom clients' statements run as. Roles are the server's, so all its databases share this one.
pub(super) const ROLE: &str = "isles_tenant";
/// Whom statements run as that read for all tenants: a member of the other, with a policy of its own.
const READER: &str = "isles_everyone";
/// From here to the end of the transaction, or to [`BACK`], a client's connection does our own work.
pub(super) const OWN: &str = "SET LOCAL ROLE NONE";
/// Back to the role that the session began with.
pub(super) const BACK: &str = "SET LOCAL role TO DEFAULT";

/// Whether a test has taken this fence away.
pub(super) fn is_open() -> bool {
    planted::has(Bug::OpenStorage)
}

/// How connections for clients' statements are made.
pub(super) fn for_clients(mut config: Config) -> Config {
    if !is_open() {
        let options = format!("{} -c role={ROLE}", config.get_options().unwrap_or_default());
        config.options(options);
    }
    config
}

/// What a transaction sets, until it ends, to say whom it acts for.
pub(super) enum Setting {
    /// The tenant with this key.
    Tenant(String),
    /// All tenants, to read.
    Everyone,
}

impl Setting {
    pub(super) fn text(&self) -> &'static str {
        match self {
            Setting::Tenant(_) => "SELECT pg_catalog.set_config('isles.tenant', $1, true)",
            Setting::Everyone => "SELECT pg_catalog.set_config('role', $1, true)",
        }
    }

    pub(super) fn value(&self) -> String {
        match self {
            Setting::Tenant(key) => format!(":{key}"),
            Setting::Everyone => READER.into(),
        }
    }
}

pub(super) fn setting(acts_for: &ActsFor) -> Option<Setting> {
    match (acts_for, acts_for.key()) {
        (_, Some(key)) => Some(Setting::Tenant(key.to_string())),
        (ActsFor::Everyone, None) => Some(Setting::Everyone),
        (_, None) => None,
    }
}

/// The key of the tenant that the transaction acts for; null if there is none.
const ACTING: &str = "pg_catalog.substr(nullif(pg_catalog.current_setting('isles.tenant', true), ''), 2)";

/// What lets clients at a table, and at their own rows only if it is a tenant table. Harmless when it is there already.
pub(super) fn table_fence(table: &Table) -> Vec<String> {
    let name = table_name(&table.name);
    let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {ROLE}");
    if !matches!(table.kind, TableKind::Tenant) {
        return vec![grant];
    }
    let own = format!("{} OPERATOR(pg_catalog.=) {ACTING}", quote(TENANT_KEY_COLUMN));
    let policy = |name_of: &str, to: &str, rows: &str| {
        [
            format!("DROP POLICY IF EXISTS {name_of} ON {name}"),
            format!("CREATE POLICY {name_of} ON {name} FOR ALL TO {to} USING ({rows}) WITH CHECK ({rows})"),
        ]
    };
    // The grant comes last: until then clients see nothing at all.
    let force = format!("ALTER TABLE {name} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY");
    let policies = policy("isles_tenant", ROLE, &own).into_iter().chain(policy("isles_owner", "CURRENT_USER", "true"));
    let everyone = [
        format!("DROP POLICY IF EXISTS isles_everyone ON {name}"),
        format!("CREATE POLICY isles_everyone ON {name} FOR SELECT TO {READER} USING (true)"),
    ];
    [force].into_iter().chain(policies).chain(everyone).chain([grant]).collect()
}

pub(super) fn namespace_grant(namespace: &str) -> String {
    format!("GRANT USAGE ON SCHEMA {} TO {ROLE}", quote(namespace))
}

/// A view shows what its owner sees, unless it is told to show what the reader sees. Older servers do not know how; there
/// clients have no view.
pub(super) fn object_fence(object: &Object) -> Option<String> {
    let view = matches!(object.kind, ObjectKind::View).then(|| table_name(&object.name))?;
    let (tell, grant) =
        (format!("ALTER VIEW {view} SET (security_invoker = true)"), format!("GRANT SELECT ON {view} TO {ROLE}"));
    let body = format!(
        "BEGIN IF current_setting('server_version_num')::int >= 150000 THEN EXECUTE {}; EXECUTE {}; END IF; END",
        text_literal(&tell),
        text_literal(&grant)
    );
    Some(format!("DO {}", text_literal(&body)))
}

/// How often the role is asked for again when somebody else makes it at the same time.
const ROLE_ATTEMPTS: usize = 10;
/// What the server says then: a session that looked for the role just before keeps in mind, until its next transaction,
/// that there is none; and two who change one row of the catalog do not wait for each other.
const MEANWHILE: [&str; 3] = ["42704", "23505", "XX000"];

/// Makes the roles if they are not there, and the login a member of them. Any number of databases of a server may be set
/// up at once: whoever comes second finds it done.
pub(super) async fn prepare_roles(conn: &Conn) -> Result<()> {
    // Whether the login may take the roles is best seen by taking them: versions of the server differ in who may.
    let text = format!(
        "BEGIN READ WRITE; SET LOCAL client_min_messages = error; DO $$ BEGIN \
         BEGIN PERFORM pg_catalog.set_config('role', '{ROLE}', true); PERFORM pg_catalog.set_config('role', '{READER}', true); \
         PERFORM pg_catalog.set_config('role', 'none', true); RETURN; \
         EXCEPTION WHEN invalid_parameter_value OR undefined_object OR insufficient_privilege THEN NULL; END; \
         {}{}{}{}{}END $$; COMMIT",
        create_role(ROLE),
        create_role(READER),
        grant_role(ROLE, "CURRENT_USER"),
        grant_role(ROLE, READER),
        grant_role(READER, "CURRENT_USER"),
    );
    let mut made = conn.batch_execute(&text).await.map_err(fault::before_commit);
    for _ in 0..ROLE_ATTEMPTS {
        match &made {
            Err(ShardError::Statement(error)) if MEANWHILE.contains(&error.sqlstate) => {
                conn.batch_execute("ROLLBACK").await.map_err(fault::before_commit)?;
                made = conn.batch_execute(&text).await.map_err(fault::before_commit);
            }
            _ => break,
        }
    }
    match made {
        Err(ShardError::Statement(error)) if error.sqlstate == "42501" => {
            conn.batch_execute("ROLLBACK").await.map_err(fault::before_commit)?;
            let login = conn.query_one("SELECT current_user::text", &[]).await.map_err(fault::before_commit)?;
            let login: String = login.get(0);
            let message = format!(
                "the shard's user \"{login}\" may not make the roles {ROLE} and {READER}, which clients act as"
            );
            let hint = format!(
                "as a superuser of its server, run: CREATE ROLE {ROLE} NOLOGIN; CREATE ROLE {READER} NOLOGIN IN ROLE {ROLE}; \
                 GRANT {ROLE}, {READER} TO {};",
                quote(&login)
            );
            Err(ShardError::Statement(SqlError::new("42501", message).with_detail(error.message).with_hint(hint)))
        }
        other => other,
    }
}

fn create_role(role: &str) -> String {
    format!(
        "IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = '{role}') THEN \
         BEGIN CREATE ROLE {role} NOLOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END; END IF; "
    )
}

fn grant_role(role: &str, to: &str) -> String {
    format!("BEGIN GRANT {role} TO {to}; EXCEPTION WHEN unique_violation THEN NULL; END; ")
}

/// Puts the fence around everything of a schema, for shards that were set up without it.
pub(super) async fn fence_all(conn: &Conn, schema: &Schema) -> Result<()> {
    let namespaces = schema.namespaces.iter().map(|name| namespace_grant(name));
    let tables = schema.tables.values().flat_map(table_fence);
    let views = schema.objects.values().filter_map(object_fence);
    for statement in namespaces.chain(tables).chain(views) {
        conn.batch_execute(&statement).await.map_err(fault::before_commit)?;
    }
    Ok(())
}
