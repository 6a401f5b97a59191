//! Procedures, and the schema that is the system's.

use crate::harness::Db;
use async_trait::async_trait;
use isles_cluster::roles::Role;
use isles_cluster::session::rights::Rank;
use isles_cluster::session::{Login, Procedure, Session};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::bind::procedure::{Param, Signature};
use isles_sql::tree::Field;
use isles_sql::types::{INT8, TEXT, Type};
use std::sync::Arc;

/// Keeps a note in a table of the system's, and tells how many its author has.
struct Note;

#[async_trait]
impl Procedure for Note {
    fn signature(&self) -> Signature {
        let param = |name: &str, ty, optional| Param { name: name.into(), ty, optional };
        Signature {
            params: vec![param("author", TEXT, false), param("id", INT8, false), param("body", TEXT, true)],
            columns: vec![Field { name: "notes".into(), ty: Type::of(INT8) }],
        }
    }

    fn rank(&self) -> Rank {
        Rank::Owner
    }

    async fn call(&self, session: &mut Session, args: Vec<Value>) -> Result<Vec<Vec<Value>>, SqlError> {
        let author = args[0].clone();
        session.run_text("INSERT INTO isles.notes VALUES ($1, $2, $3)", args).await?;
        Ok(session.run_text("SELECT count(*) FROM isles.notes WHERE author = $1", vec![author]).await?.rows)
    }
}

async fn with_notes(db: &Db) {
    let mut system = db.database.system_session().unwrap();
    system.run_text("CREATE SCHEMA isles", Vec::new()).await.unwrap();
    let table = "CREATE TABLE isles.notes (author text, id bigint, body text, PRIMARY KEY (author, id)) \
                 WITH (shard_by = 'author')";
    system.run_text(table, Vec::new()).await.unwrap();
    db.database.register("note", Arc::new(Note));
}

fn owner() -> Role {
    Role { admin: false, ..Role::default() }
}

pub(crate) async fn a_procedure_works_in_its_callers_transaction(db: Db) {
    with_notes(&db).await;
    let mut client = db.client_as(owner(), &[]).unwrap();
    assert_eq!(client.run("SELECT isles.note('ann', 1, 'first')").await, ["1"]);
    client.run("BEGIN").await;
    assert_eq!(client.run("SELECT * FROM isles.note('ann', id => 1 + 1)").await, ["2"]);
    client.run("ROLLBACK").await;
    let params = vec![Value::Text("ann".into()), Value::Int(3)];
    assert_eq!(client.try_with("SELECT isles.note($1, $2)", params).await.unwrap(), ["2"]);
    assert_eq!(db.client().run("SELECT id, body FROM isles.notes ORDER BY id").await, ["1|first", "3|∅"]);
    // A note that is there already: what the procedure says is the statement's error.
    assert_eq!(client.fails("SELECT isles.note('ann', 1)").await, "23505");
}

/// The first role of a database has the name of the schema.
pub(crate) async fn what_a_role_called_isles_creates_is_not_the_systems(db: Db) {
    with_notes(&db).await;
    let role = Role { admin: true, ..Role::default() };
    let login = Login { user: "isles".into(), database: "isles".into(), settings: Vec::new(), role };
    let mut session = db.database.session(login).unwrap();
    session.run_text("CREATE TABLE plain (id int PRIMARY KEY)", Vec::new()).await.unwrap();
    session.run_text("INSERT INTO plain VALUES (1)", Vec::new()).await.unwrap();
    assert_eq!(db.client().run("SELECT id FROM public.plain").await, ["1"]);
    assert_eq!(session.run_text("SELECT * FROM notes", Vec::new()).await.unwrap_err().sqlstate, "42P01");
}

pub(crate) async fn a_procedure_is_called_as_it_says(db: Db) {
    with_notes(&db).await;
    let mut client = db.client();
    for (sql, state) in [
        ("SELECT isles.note('ann')", "42883"),
        ("SELECT isles.note('ann', 1, 'x', 4)", "42883"),
        ("SELECT isles.note('ann', 1, text => 'x')", "42883"),
        ("SELECT isles.note('ann', 1, id => 2)", "42601"),
        ("SELECT isles.note('ann', true)", "42804"),
        ("SELECT isles.note('ann', 'one')", "22P02"),
        ("SELECT isles.nothing(1)", "42883"),
        ("SELECT isles.note('ann', 1), 2", "0A000"),
        ("SELECT isles.note('ann', 1) WHERE false", "0A000"),
        ("SELECT * FROM isles.note('ann', 1) LIMIT 0", "0A000"),
        ("SELECT 1 + isles.note('ann', 1)", "42883"),
        ("SELECT isles.note('ann', n) FROM generate_series(1, 2) n", "0A000"),
    ] {
        assert_eq!(client.fails(sql).await, state, "{sql}");
    }
    assert_eq!(client.run("SELECT count(*) FROM isles.notes").await, ["0"]);
}

pub(crate) async fn the_systems_schema_is_the_systems(db: Db) {
    with_notes(&db).await;
    let mut admin = db.client();
    admin.run("SELECT isles.note('ann', 1)").await;
    admin.run("CREATE TABLE own (author text, id bigint, PRIMARY KEY (author, id)) WITH (shard_by = 'author')").await;
    for sql in [
        "INSERT INTO isles.notes VALUES ('x', 1)",
        "UPDATE isles.notes SET body = 'x'",
        "DELETE FROM isles.notes",
        "TRUNCATE isles.notes",
        "SELECT * FROM isles.notes FOR UPDATE",
        "EXPLAIN ANALYZE DELETE FROM isles.notes",
        "DROP TABLE isles.notes",
        "ALTER TABLE isles.notes ADD COLUMN c int",
        "ALTER TABLE isles.notes SET (kind = 'tenant', tenant_by = 'author')",
        "CREATE INDEX ON isles.notes (body)",
        "CREATE TABLE isles.mine (id int PRIMARY KEY)",
        "CREATE VIEW isles.v AS SELECT 1",
        "COMMENT ON TABLE isles.notes IS 'x'",
        "DROP SCHEMA isles CASCADE",
        "WITH gone AS (DELETE FROM isles.notes RETURNING *) SELECT * FROM gone",
        "ALTER TABLE own ADD FOREIGN KEY (author, id) REFERENCES isles.notes",
    ] {
        let state = admin.fails(sql).await;
        assert!(matches!(state, "42501" | "0A000"), "{sql}: {state}");
    }
    let copied = admin.copy("COPY isles.notes FROM STDIN", "x\t1\ty\n").await;
    assert_eq!(copied.unwrap_err().sqlstate, "42501");
    assert_eq!(admin.run("SELECT author FROM isles.notes").await, ["ann"]);
    // Others do not even read it, by a view either.
    admin.run("CREATE VIEW notes AS SELECT * FROM isles.notes").await;
    let mut client = db.client_as(owner(), &[]).unwrap();
    for sql in ["SELECT * FROM isles.notes", "SELECT * FROM notes", "SELECT (SELECT count(*) FROM isles.notes)"] {
        assert_eq!(client.fails(sql).await, "42501", "{sql}");
    }
    // A tenant's role calls nothing that is for owners.
    let locked = [("isles.tenant".to_string(), "acme".to_string()), ("isles.tenant_locked".into(), "on".into())];
    let tenant = Role { settings: locked.into(), ..owner() };
    let mut client = db.client_as(tenant, &[]).unwrap();
    assert_eq!(client.fails("SELECT isles.note('x', 1)").await, "42501");
    assert_eq!(client.fails("SELECT * FROM isles.notes").await, "42501");
    assert_eq!(admin.run("SELECT count(*) FROM isles.notes").await, ["1"]);
}
