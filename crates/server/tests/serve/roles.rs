//! Roles over the wire: who may log in, with which tenant, and what for.

use crate::harness::Server;
use tokio_postgres::{Client, NoTls};

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn as_role(server: &Server, role: &str, password: &str) -> String {
    format!("postgres://{role}:{password}@{}/isles", server.listen)
}

async fn code(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => "00000".into(),
        Err(error) => error.code().map_or_else(|| error.to_string(), |code| code.code().to_string()),
    }
}

async fn texts(client: &Client, sql: &str) -> Vec<String> {
    let rows = client.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// An administrator with a table of each kind.
async fn admin(server: &Server) -> Client {
    let admin = connect(&server.url).await.unwrap();
    let tables = "CREATE TABLE notes (id int PRIMARY KEY, body text) WITH (kind = tenant);
                  CREATE TABLE plans (id int PRIMARY KEY, name text) WITH (kind = reference);
                  CREATE TABLE users (id int PRIMARY KEY);
                  INSERT INTO plans VALUES (1, 'free');
                  SET isles.tenant = 'other'; INSERT INTO notes VALUES (1, 'theirs'); RESET isles.tenant";
    for statement in tables.split(';') {
        admin.batch_execute(statement).await.unwrap();
    }
    admin
}

#[tokio::test]
async fn a_role_logs_in_with_its_password_until_it_is_gone() {
    let server = Server::start(&[]);
    let admin = admin(&server).await;
    assert_eq!(code(&admin, "CREATE ROLE ann LOGIN PASSWORD 'one'").await, "00000");
    assert_eq!(code(&admin, "CREATE USER bob PASSWORD 'two'").await, "00000");
    assert_eq!(code(&admin, "CREATE ROLE ann").await, "42710");
    assert!(connect(&as_role(&server, "ann", "one")).await.is_ok());
    assert!(connect(&as_role(&server, "ann", "two")).await.is_err());
    let bob = connect(&as_role(&server, "bob", "two")).await.unwrap();
    // His own password is his, and nothing else of any role.
    assert_eq!(code(&bob, "ALTER ROLE bob PASSWORD 'three'").await, "00000");
    for forbidden in ["ALTER ROLE bob SUPERUSER", "ALTER ROLE ann PASSWORD 'x'", "CREATE ROLE eve", "DROP ROLE ann"] {
        assert_eq!(code(&bob, forbidden).await, "42501", "{forbidden}");
    }
    assert_eq!(code(&bob, "CREATE TABLE his (id int PRIMARY KEY)").await, "00000");
    assert!(connect(&as_role(&server, "bob", "three")).await.is_ok());
    let known = texts(&admin, "SELECT rolname::text FROM pg_roles WHERE rolcanlogin ORDER BY 1").await;
    assert_eq!(known, ["ann", "bob", "isles"]);
    assert_eq!(code(&admin, "ALTER ROLE ann NOLOGIN").await, "00000");
    assert!(connect(&as_role(&server, "ann", "one")).await.is_err());
    assert_eq!(code(&admin, "DROP ROLE ann, bob").await, "00000");
    assert!(connect(&as_role(&server, "bob", "three")).await.is_err());
    assert_eq!(code(&admin, "DROP ROLE ann").await, "42704");
    assert_eq!(code(&admin, "DROP ROLE IF EXISTS ann").await, "00000");
    assert_eq!(code(&admin, "DROP ROLE isles").await, "55006");
    assert_eq!(code(&admin, "BEGIN; CREATE ROLE x").await, "25001");
    admin.batch_execute("ROLLBACK").await.unwrap();
    for unsupported in ["CREATE ROLE x CREATEDB", "CREATE ROLE x CONNECTION LIMIT 3", "GRANT SELECT ON users TO isles"]
    {
        assert_eq!(code(&admin, unsupported).await, "0A000", "{unsupported}");
    }
    assert_eq!(code(&admin, "CREATE ROLE x PASSWORD ''").await, "22023");
}

#[tokio::test]
async fn a_session_begins_with_its_role_s_settings() {
    let server = Server::start(&[]);
    let admin = admin(&server).await;
    for statement in [
        "CREATE USER ann PASSWORD 'one'",
        "ALTER ROLE ann SET isles.tenant = 'acme'",
        "ALTER ROLE ann SET search_path = one, public",
        "ALTER ROLE ann SET TimeZone = 'Europe/Berlin'",
    ] {
        assert_eq!(code(&admin, statement).await, "00000", "{statement}");
    }
    assert_eq!(code(&admin, "ALTER ROLE ann SET no_such = 1").await, "42704");
    assert_eq!(code(&admin, "ALTER ROLE ann SET TimeZone = 'Nowhere'").await, "22023");
    let ann = connect(&as_role(&server, "ann", "one")).await.unwrap();
    let shown = "SELECT current_setting(name) FROM unnest(ARRAY['isles.tenant', 'search_path', 'timezone', \
                 'is_superuser', 'isles.tenant_locked']) name";
    assert_eq!(texts(&ann, shown).await, ["acme", "one, public", "Europe/Berlin", "off", "off"]);
    // It is not locked: another tenant is hers to choose, and a reset goes back to the role's.
    assert_eq!(code(&ann, "SET isles.tenant = 'other'").await, "00000");
    assert_eq!(texts(&ann, "SELECT body FROM notes").await, ["theirs"]);
    ann.batch_execute("RESET isles.tenant").await.unwrap();
    assert_eq!(texts(&ann, "SHOW isles.tenant").await, ["acme"]);
    admin.batch_execute("ALTER ROLE ann RESET ALL").await.unwrap();
    let again = connect(&as_role(&server, "ann", "one")).await.unwrap();
    assert_eq!(texts(&again, "SHOW isles.tenant").await, [""]);
}

/// I-41
#[tokio::test]
async fn a_locked_role_has_its_tenant_and_nothing_else() {
    let server = Server::start(&[]);
    let admin = admin(&server).await;
    admin.batch_execute("CREATE USER ann PASSWORD 'one'").await.unwrap();
    assert_eq!(code(&admin, "ALTER ROLE ann SET isles.tenant_locked = on").await, "22023", "it has no tenant");
    admin.batch_execute("ALTER ROLE ann SET isles.tenant = 'acme'").await.unwrap();
    admin.batch_execute("ALTER ROLE ann SET isles.tenant_locked = on").await.unwrap();
    let url = as_role(&server, "ann", "one");
    let ann = connect(&url).await.unwrap();
    for allowed in [
        "INSERT INTO notes VALUES (1, 'hers')",
        "UPDATE notes SET body = body || '!'",
        "SELECT notes.body, plans.name FROM notes JOIN plans USING (id)",
        "SET isles.tenant = 'acme'",
        "SHOW TABLES",
        "BEGIN; TRUNCATE notes; ROLLBACK",
        "DISCARD ALL",
    ] {
        assert_eq!(code(&ann, allowed).await, "00000", "{allowed}");
    }
    assert_eq!(texts(&ann, "SELECT body FROM notes").await, ["hers!"]);
    for forbidden in [
        "SET isles.tenant = 'other'",
        "BEGIN; SET LOCAL isles.tenant = 'other'",
        "SET isles.null_tenant = on",
        "RESET isles.tenant",
        "SELECT set_config('isles.tenant', 'other', false)",
        "SELECT * FROM users",
        "EXPLAIN SELECT * FROM users",
        "SELECT (SELECT max(id) FROM users)",
        "WITH u AS (SELECT * FROM users) SELECT * FROM u",
        "SELECT body FROM notes UNION SELECT id::text FROM users",
        "INSERT INTO notes SELECT id, 'x' FROM users",
        "INSERT INTO plans VALUES (2, 'gold')",
        "UPDATE plans SET name = 'x'",
        "DELETE FROM plans",
        "SELECT * FROM plans FOR UPDATE",
        "TRUNCATE users",
        "COPY users TO STDOUT",
        "COPY users FROM STDIN",
        "COPY (SELECT * FROM users) TO STDOUT",
        "PREPARE q AS SELECT * FROM users",
        "BEGIN; DECLARE c CURSOR FOR SELECT * FROM users",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "DROP TABLE notes",
        "CREATE TABLE t AS SELECT * FROM notes",
        "ALTER TABLE notes ADD COLUMN c int",
        "SHOW SHARDS",
        "SHOW ROUTES",
        "CREATE ROLE eve",
        "ALTER ROLE ann SET isles.tenant_locked = off",
        "VACUUM",
    ] {
        assert_eq!(code(&ann, forbidden).await, "42501", "{forbidden}");
        let _ = ann.batch_execute("ROLLBACK").await;
    }
    assert_eq!(texts(&ann, "SHOW isles.tenant").await, ["acme"]);
    let stranger = format!("{url}?options=-c%20isles.tenant%3Dother");
    let refused = connect(&stranger).await.err().and_then(|error| error.code().cloned());
    assert_eq!(refused.map(|code| code.code().to_string()).as_deref(), Some("42501"));
    assert_eq!(texts(&admin, "SELECT count(*)::text FROM users").await, ["0"]);
    admin.batch_execute("SET isles.tenant = 'other'").await.unwrap();
    assert_eq!(texts(&admin, "SELECT body FROM notes").await, ["theirs"]);
}

/// I-41: whoever is locked to a tenant sees its own name and tables, and neither those of others nor a shard's.
#[tokio::test]
async fn a_locked_role_is_told_no_name_that_is_not_its_own() {
    let server = Server::start(&["--shards", "2"]);
    let admin = admin(&server).await;
    for sql in [
        "CREATE TABLE secret_ledger (id serial PRIMARY KEY, secret_column text)",
        "CREATE VIEW secret_view AS SELECT id FROM secret_ledger",
        "CREATE VIEW own_view AS SELECT id FROM notes",
        "CREATE SEQUENCE secret_numbers",
        "COMMENT ON TABLE secret_ledger IS 'secret words'",
        "CREATE USER ann PASSWORD 'one'",
        "ALTER ROLE ann SET isles.tenant = 'acme'",
        "ALTER ROLE ann SET isles.tenant_locked = on",
        "CREATE USER secret_role PASSWORD 'two'",
        "CREATE ROLE secret_group",
    ] {
        assert_eq!(code(&admin, sql).await, "00000", "{sql}");
    }
    let ann = connect(&as_role(&server, "ann", "one")).await.unwrap();
    assert_eq!(texts(&ann, "SELECT usename::text FROM pg_user WHERE usename <> 'isles'").await, ["ann"]);
    assert_eq!(texts(&ann, "SELECT relname::text FROM pg_class WHERE relname IN ('notes', 'users')").await, ["notes"]);
    let everything = [
        "SHOW TABLES",
        "SELECT * FROM pg_roles",
        "SELECT * FROM pg_authid",
        "SELECT * FROM pg_user",
        "SELECT * FROM pg_shadow",
        "SELECT * FROM pg_group",
        "SELECT * FROM pg_class",
        "SELECT attname, attrelid::regclass::text FROM pg_attribute",
        "SELECT * FROM pg_index",
        "SELECT * FROM pg_constraint",
        "SELECT * FROM pg_description",
        "SELECT * FROM pg_tables",
        "SELECT * FROM pg_views",
        "SELECT * FROM pg_indexes",
        "SELECT * FROM pg_sequences",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM information_schema.columns",
        "SELECT * FROM information_schema.sequences",
        "SELECT * FROM information_schema.views",
        "SELECT * FROM information_schema.table_constraints",
        "SELECT oid::regclass::text FROM pg_class",
    ];
    for sql in everything {
        let told = |messages: Vec<tokio_postgres::SimpleQueryMessage>| format!("{messages:?}");
        let seen = told(ann.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}")));
        assert!(!seen.contains("secret"), "{sql}: {seen}");
    }
    let known = texts(&admin, "SELECT relname::text FROM pg_class WHERE relname LIKE 'secret%' ORDER BY 1").await;
    assert!(known.len() >= 4, "others see them: {known:?}");
    let explain = "EXPLAIN (ANALYZE) SELECT count(*) FROM notes";
    let plan = texts(&ann, explain).await.join("\n");
    assert!(plan.contains("Shard"), "{plan}");
    assert!(!plan.contains("Shard s0") && !plan.contains("Shard s1"), "{plan}");
    admin.batch_execute("SET isles.tenant = 'acme'").await.unwrap();
    let plan = texts(&admin, explain).await.join("\n");
    assert!(plan.contains("Shard s0") || plan.contains("Shard s1"), "{plan}");
}
