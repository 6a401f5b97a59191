//! The self-test of the fence around tenants, when a shard is opened.
//!
//!     is the role one that policies bind? ─ make a tenant table ─ are the schema's fenced like it? ─ does it hold?
//!
//! It runs on a client's connection, in a transaction that is rolled back: what it makes is never there for others. The
//! table is made as all tenant tables are, so what is tried on it is what they have; and of those of the schema it is
//! enough to see that their policies read the same.
//!
//! Invariants (docs/invariants.md):
//!   * I-44  a shard that does not keep tenants apart by itself is not opened

use super::ddl::{self, Capture, table_name};
use super::fault;
use super::pool::Conn;
use super::setup;
use super::tenancy::{self, BACK, OWN, ROLE};
use crate::error::{Result, ShardError, SqlError};
use crate::shard::ActsFor;
use isles_kernel::names::TenantId;
use isles_kernel::schema::{Column, Schema, SchemaChange, Table, TableKind};
use isles_kernel::value::DataType;
use std::collections::BTreeMap;

const PROBE: &str = "_isles.probe";

/// Tries the fence. An error says what is wrong with it.
pub(super) async fn run(conn: &Conn, schema: &Schema) -> Result<()> {
    if tenancy::is_open() {
        return Ok(());
    }
    // Tests take turns with each other, since their tables have one name, and with a shard that is just being set up.
    plain(conn, &format!("BEGIN READ WRITE; {}", setup::lock_text())).await?;
    let tested = test(conn, schema).await;
    plain(conn, "ROLLBACK").await?;
    tested
}

async fn test(conn: &Conn, schema: &Schema) -> Result<()> {
    check_role(conn).await?;
    make_probe(conn).await?;
    check_tables(conn, schema).await?;
    try_probe(conn).await
}

async fn plain(conn: &Conn, sql: &str) -> Result<()> {
    conn.batch_execute(sql).await.map_err(fault::before_commit)
}

fn refused(message: impl Into<String>, hint: impl Into<String>) -> ShardError {
    ShardError::Statement(SqlError::new("55000", message).with_hint(hint))
}

async fn check_role(conn: &Conn) -> Result<()> {
    let text = "SELECT rolname::text, rolsuper OR rolbypassrls, current_setting('row_security') = 'on' \
                FROM pg_roles WHERE rolname = current_user";
    let row = conn.query_one(text, &[]).await.map_err(fault::before_commit)?;
    if row.get::<_, &str>(0) != ROLE {
        let message = format!("clients' statements would run as \"{}\", not as {ROLE}", row.get::<_, &str>(0));
        return Err(refused(message, "look for a role in the options of the shard's URL"));
    }
    if row.get(1) {
        let message = format!("the role {ROLE} of the shard's server is exempt from row level security");
        return Err(refused(message, format!("run there: ALTER ROLE {ROLE} NOSUPERUSER NOBYPASSRLS;")));
    }
    match row.get(2) {
        true => Ok(()),
        false => Err(refused("row_security is off on the shard's server", "set it on for the shard's user")),
    }
}

/// A tenant table, made as all are. It has a row of the null tenant, of `a`, and of `b`.
async fn make_probe(conn: &Conn) -> Result<()> {
    let probe = Table {
        name: PROBE.into(),
        kind: TableKind::Tenant,
        columns: vec![Column::new("id", DataType::Int8).not_null()],
        primary_key: vec!["id".into()],
        keys: vec![],
        foreign_keys: vec![],
        checks: vec![],
        primary_key_name: None,
        hidden_key: false,
    };
    let none = Schema::default();
    plain(conn, &format!("SET LOCAL client_min_messages = error; {OWN}")).await?;
    for statement in ddl::print(&SchemaChange::CreateTable(probe), &none, &none, Capture::Off) {
        plain(conn, &statement).await?;
    }
    let rows = format!("INSERT INTO {} (_shard, id) VALUES (NULL, 1), ('a', 2), ('b', 3)", table_name(PROBE));
    plain(conn, &format!("{rows}; {BACK}")).await
}

/// How a table is fenced.
#[derive(Debug, PartialEq, Eq)]
struct Fenced {
    /// Row level security is on, for the owner as well.
    forced: bool,
    policies: Vec<String>,
    /// Clients have rights that no policy bounds.
    beyond: bool,
}

/// How tables are fenced, by name. The owner's name is left out: a table may be of an earlier login.
async fn fenced_tables(conn: &Conn) -> Result<BTreeMap<String, Fenced>> {
    let text = "SELECT _isles.relation(n.nspname, c.relname), c.relrowsecurity AND c.relforcerowsecurity, \
                ARRAY(SELECT concat_ws(' ', p.polname, p.polpermissive, p.polcmd, \
                          ARRAY(SELECT CASE WHEN r.oid = c.relowner THEN 'owner' ELSE coalesce(r.rolname, 'public') END \
                                FROM unnest(p.polroles) AS o LEFT JOIN pg_roles AS r ON r.oid = o ORDER BY 1), \
                          pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)) \
                      FROM pg_policy AS p WHERE p.polrelid = c.oid ORDER BY 1), \
                pg_has_role(current_user, c.relowner, 'MEMBER') \
                    OR has_table_privilege(c.oid, 'TRUNCATE, TRIGGER, REFERENCES') \
                FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
                WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')";
    let rows = conn.query(text, &[]).await.map_err(fault::before_commit)?;
    let fenced = |row: &tokio_postgres::Row| Fenced { forced: row.get(1), policies: row.get(2), beyond: row.get(3) };
    Ok(rows.iter().map(|row| (row.get(0), fenced(row))).collect())
}

async fn check_tables(conn: &Conn, schema: &Schema) -> Result<()> {
    let found = fenced_tables(conn).await?;
    let probe = found.get(PROBE).filter(|probe| probe.forced && !probe.beyond);
    if probe.is_none() {
        let message = format!("the role {ROLE} of the shard's server has rights that no policy bounds");
        return Err(refused(message, "take from it the membership in the shard's user, and default privileges"));
    }
    for table in schema.tables.values().filter(|table| matches!(table.kind, TableKind::Tenant)) {
        if found.get(&table.name) != probe {
            let message = format!("table \"{}\" does not keep tenants apart: it was changed by hand", table.name);
            let hint = format!(
                "drop other policies than isles_tenant, isles_everyone and isles_owner, revoke what was granted to {ROLE}, and run: {};",
                tenancy::table_fence(table).join("; ")
            );
            return Err(refused(message, hint));
        }
    }
    Ok(())
}

/// Reads and writes as one that acts for nobody, for tenants that have a row, and for one that has none.
async fn try_probe(conn: &Conn) -> Result<()> {
    let tenant = |name: &str| TenantId::new(name).map(Some).map_err(|error| ShardError::invalid(error.to_string()));
    let cases = [
        (ActsFor::Nobody, vec![]),
        (ActsFor::Tenant(tenant("c")?), vec![]),
        (ActsFor::Tenant(tenant("a")?), vec![2]),
        (ActsFor::Tenant(None), vec![1]),
        // All are read, and none is written.
        (ActsFor::Everyone, vec![1, 2, 3]),
        // The setting of the one before is there, and is not this one's.
        (ActsFor::Nobody, vec![]),
    ];
    for (acts_for, own) in cases {
        let held = try_one(conn, &acts_for, &own).await?;
        plain(conn, "ROLLBACK TO probe").await?;
        if !held {
            let message = "row level security does not keep tenants apart on the shard's server";
            return Err(refused(message, "the server's version or settings are not ones that Isles knows"));
        }
    }
    Ok(())
}

/// Whether one who acts for `acts_for` reaches the rows `own` and no others.
async fn try_one(conn: &Conn, acts_for: &ActsFor, own: &[i64]) -> Result<bool> {
    let probe = table_name(PROBE);
    plain(conn, "SAVEPOINT probe").await?;
    if let Some(setting) = tenancy::setting(acts_for) {
        conn.rows(setting.text(), &[&setting.value()]).await?;
    }
    let written = if *acts_for == ActsFor::Everyone { &[] } else { own };
    for (text, own) in [
        (format!("SELECT id FROM {probe} ORDER BY id"), own),
        (format!("UPDATE {probe} SET id = id RETURNING id"), written),
        (format!("DELETE FROM {probe} RETURNING id"), written),
    ] {
        let rows = conn.query(&text, &[]).await.map_err(fault::before_commit)?;
        if rows.iter().map(|row| row.get::<_, i64>(0)).ne(own.iter().copied()) {
            return Ok(false);
        }
    }
    // Of a tenant that none of them is.
    let foreign = plain(conn, &format!("INSERT INTO {probe} (_shard, id) VALUES ('b', 4)")).await;
    Ok(foreign == Err(ShardError::beyond_tenant()))
}
