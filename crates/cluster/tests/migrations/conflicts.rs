//! What is said before anything changes.

use crate::world::{BY_OWNER, World};
use isles_cluster::roles::Role;

/// Nothing of the schema, the rows or the logs is other than it was.
async fn nothing_has_changed(world: &World, version: u64, rows: &[String]) {
    assert_eq!(world.schema_version().await, version);
    assert!(world.traces().await.iter().all(|trace| !trace.contains("migration") && !trace.contains("_copy_")));
    assert!(world.migration().await.is_none(), "no migration has begun");
    let now = world.client().run("SELECT id, owner FROM notes ORDER BY id").await;
    assert_eq!(now, rows);
}

/// I-71
pub(crate) async fn what_stands_in_the_way_is_named_and_nothing_changes(world: World) {
    let mut client = world.client();
    for sql in [
        "CREATE TABLE plans (id int PRIMARY KEY) WITH (kind = 'reference')",
        "CREATE TABLE notes (id bigint PRIMARY KEY, owner text, plan int REFERENCES plans (id))",
        "CREATE UNIQUE INDEX notes_some ON notes (id) WHERE owner IS NOT NULL",
        "CREATE INDEX notes_all ON notes (owner) WITH (global)",
        "CREATE TABLE tags (note bigint REFERENCES notes (id), tag text, PRIMARY KEY (note, tag)) \
         WITH (shard_by = 'note')",
        "INSERT INTO notes VALUES (1, 'a', NULL), (2, NULL, NULL)",
        "WAIT FOR INDEX notes_all",
    ] {
        client.run(sql).await;
    }
    let (version, rows) = (world.schema_version().await, client.run("SELECT id, owner FROM notes ORDER BY id").await);
    let report = client.run("CHECK MIGRATION notes BY 'owner'").await;
    assert_eq!(report[..2], ["rows|2|∅|∅|∅", "tenants|2|∅|∅|∅"]);
    let error = client.try_run(BY_OWNER).await.expect_err("it cannot be done");
    assert_eq!((error.sqlstate, error.message.as_str()), ("0A000", "table \"notes\" cannot become a tenant table"));
    let detail = error.detail.unwrap();
    for named in [
        "foreign key \"notes_plan_fkey\" refers to table \"plans\"",
        "foreign key \"tags_note_fkey\" of table \"tags\" refers to it",
        "index \"notes_all\" is global",
        "unique index \"notes_some\" is over expressions, or over some of the rows",
    ] {
        assert!(detail.lines().any(|line| line == named), "{named}: {detail}");
        assert_eq!(report.iter().filter(|line| line.contains(named)).count(), 1, "{report:?}");
    }
    assert_eq!((detail.lines().count(), report.len()), (4, 6));
    assert!(error.hint.unwrap().contains("DROP CONSTRAINT notes_plan_fkey"));
    let again = "ALTER TABLE tags ADD CONSTRAINT tags_note_fkey FOREIGN KEY (note) REFERENCES notes (id) \
                 ON DELETE NO ACTION ON UPDATE NO ACTION";
    assert!(report.iter().any(|line| line.contains(again)), "what to do is said in whole: {report:?}");
    nothing_has_changed(&world, version, &rows).await;
    // What was named is all there was.
    for sql in [
        "ALTER TABLE notes DROP CONSTRAINT notes_plan_fkey",
        "ALTER TABLE tags DROP CONSTRAINT tags_note_fkey",
        "DROP INDEX notes_all",
        "DROP INDEX notes_some",
    ] {
        client.run(sql).await;
    }
    assert_eq!(client.run(BY_OWNER).await, ["ALTER TABLE"]);
}

/// I-71
pub(crate) async fn rows_without_a_valid_tenant_are_named_and_nothing_changes(world: World) {
    let mut client = world.with_notes(20).await;
    let long = "x".repeat(65);
    client.run(&format!("INSERT INTO notes VALUES (101, '', 'a'), (102, '', 'b'), (103, '{long}', 'c')")).await;
    client.run("INSERT INTO notes VALUES (104, 'a' || chr(10) || 'b', 'd')").await;
    client.run("INSERT INTO notes SELECT n, '', 'e' FROM generate_series(105, 110) AS s(n)").await;
    let (version, rows) = (world.schema_version().await, client.run("SELECT id, owner FROM notes ORDER BY id").await);
    let error = client.try_run(BY_OWNER).await.expect_err("rows have no tenant");
    assert_eq!(error.sqlstate, "23514");
    assert_eq!(error.message, "10 rows of table \"notes\" cannot be given to a tenant");
    let detail = error.detail.unwrap();
    assert!(detail.contains("8 rows: the tenant's name is empty: Key (id)=(1"), "{detail}");
    assert!(detail.contains("1 row: the tenant's name has more than 64 characters: Key (id)=(103)"), "{detail}");
    assert!(detail.contains("1 row: the tenant's name has a control character: Key (id)=(104)"), "{detail}");
    nothing_has_changed(&world, version, &rows).await;
    let report = client.run("CHECK MIGRATION notes BY 'owner'").await;
    assert_eq!(report[..2], ["rows|30|∅|∅|∅", "tenants|4|∅|∅|∅"]);
    assert_eq!(report.len(), 5, "{report:?}");
    // An expression that fails for some rows is told, too; and one that fits them all has no conflict.
    let report = client.run("CHECK MIGRATION notes BY '(1 / (id - 3))'").await;
    assert!(report.iter().any(|line| line.contains("division by zero") && line.contains("Key (id)=(3)")), "{report:?}");
    let whole = client.run("CHECK MIGRATION notes BY 'nullif(left(translate(owner, chr(10), '' ''), 64), '''')'").await;
    assert_eq!(whole[0], "rows|30|∅|∅|∅");
    assert_eq!(whole.len(), 2, "{whole:?}");
    nothing_has_changed(&world, version, &rows).await;
}

pub(crate) async fn what_makes_no_sense_is_refused(world: World) {
    let mut client = world.with_notes(4).await;
    client.run("CREATE TABLE plans (id int PRIMARY KEY) WITH (kind = 'reference')").await;
    client.run("CREATE TABLE mine (id int PRIMARY KEY) WITH (kind = 'tenant')").await;
    for (sql, sqlstate) in [
        ("ALTER TABLE notes SET (kind = 'tenant')", "22023"),
        ("ALTER TABLE notes SET (tenant_by = 'owner')", "22023"),
        ("ALTER TABLE notes SET (kind = 'global', tenant_by = 'owner')", "22023"),
        ("ALTER TABLE notes SET (kind = 'global')", "0A000"),
        ("ALTER TABLE notes SET (kind = 'tenant', tenant_by = 'owner'), ADD COLUMN more text", "0A000"),
        ("ALTER TABLE notes SET (kind = 'tenant', tenant_by = 'nobody')", "42703"),
        ("ALTER TABLE notes SET (kind = 'tenant', tenant_by = 'random()::text')", "42P17"),
        ("ALTER TABLE notes SET (kind = 'tenant', tenant_by = '(SELECT ''x'')')", "0A000"),
        ("ALTER TABLE notes SET (kind = 'tenant', tenant_by = 'owner) FROM (VALUES (1')", "42601"),
        ("ALTER TABLE nothing SET (kind = 'tenant', tenant_by = 'owner')", "42P01"),
        ("ALTER TABLE plans SET (kind = 'tenant', tenant_by = 'id')", "0A000"),
        ("ALTER TABLE mine SET (kind = 'tenant', tenant_by = 'id')", "0A000"),
        ("CHECK MIGRATION nothing BY 'owner'", "42P01"),
        ("CANCEL MIGRATION notes", "42704"),
    ] {
        assert_eq!(client.fails(sql).await, sqlstate, "{sql}");
    }
    for sql in [BY_OWNER, "CHECK MIGRATION notes BY 'owner'", "CANCEL MIGRATION notes"] {
        // Also in one that has changed the schema, and would wait for itself.
        client.run("BEGIN").await;
        client.run("ALTER TABLE notes ADD COLUMN more text").await;
        assert_eq!(client.fails(sql).await, "25001", "{sql}");
        client.run("ROLLBACK").await;
    }
    client.run("SET default_transaction_read_only = on").await;
    assert_eq!(client.fails(BY_OWNER).await, "25006");
    let settings = [("isles.tenant", "tenant 0"), ("isles.tenant_locked", "on")];
    let settings = settings.map(|(name, value)| (name.to_string(), value.to_string())).into();
    let role = Role { login: true, settings, ..Role::default() };
    let mut tenant = world.db.client_as(role, &[]).unwrap();
    for sql in [BY_OWNER, "CHECK MIGRATION notes BY 'owner'", "SHOW MIGRATIONS", "CANCEL MIGRATION notes"] {
        assert_eq!(tenant.fails(sql).await, "42501", "{sql}");
    }
    assert!(world.migration().await.is_none());
}
