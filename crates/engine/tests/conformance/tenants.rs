//! The shard's own fence around tenants: statements without any predicate show and change the rows of the tenant that
//! the request acts for, and no others.

use crate::fixtures::World;
use crate::given::{Db, INT8, TEXT, acts_for, claim, insert_note, notes, select, sqlstate, table, values};
use futures::future::join_all;
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::Access;
use isles_engine::shard::{ActsFor, Begin, Engine, Request, Row, Statement};
use isles_kernel::schema::{Deferral, ForeignKey, OnChange, SchemaChange, TableKind};
use isles_kernel::value::Value;

/// What a statement reads a tenant table by.
pub(crate) fn readable(engine: Engine, table: &str) -> String {
    match engine {
        Engine::Sqlite => format!("\"{}\"", isles_kernel::schema::tenant_view(table)),
        Engine::Postgres => table.into(),
    }
}

async fn read_for(db: &Db, whom: &ActsFor, statement: Statement) -> Result<Vec<Row>> {
    let request = Request::read(claim(), statement).acting_for(whom.clone());
    db.execute(request).await.map(|mut outcomes| outcomes.remove(0).rows)
}

/// The bodies of all notes, for whom it may concern.
async fn bodies(db: &Db, whom: &ActsFor) -> Vec<Row> {
    let sql = format!("SELECT body FROM {} ORDER BY id", readable(db.engine(), "notes"));
    read_for(db, whom, select(&[TEXT], &sql, vec![])).await.expect("notes are read")
}

/// Each tenant has its note with id 1 under its own name.
pub(crate) async fn check_names(db: &Db, names: &[Option<&str>]) {
    let sql = format!("SELECT _tenant, _shard FROM {} WHERE id = 1", readable(db.engine(), "notes"));
    for name in names {
        let rows = read_for(db, &acts_for(*name), select(&[TEXT, TEXT], &sql, vec![])).await.expect("a note is read");
        assert_eq!(rows, [values![name.unwrap_or(""), *name]]);
    }
}

/// A shard with a note of each of three tenants, under one id.
async fn peopled(world: &World) -> Db {
    let db = world.shard().await;
    for name in [None, Some("acme"), Some("beta")] {
        db.put_note(name, 1, name.unwrap_or("nobody's")).await;
    }
    db
}

/// I-42, I-44
pub(crate) async fn a_read_without_a_predicate_shows_its_tenants_rows(world: World) {
    let db = peopled(&world).await;
    for name in [None, Some("acme"), Some("beta")] {
        assert_eq!(bodies(&db, &acts_for(name)).await, [values![name.unwrap_or("nobody's")]]);
    }
    assert_eq!(bodies(&db, &acts_for(Some("Acme"))).await, Vec::<Row>::new());
    assert_eq!(bodies(&db, &ActsFor::Nobody).await, Vec::<Row>::new());
}

/// I-44: in joins, subqueries, unions and aggregates alike.
pub(crate) async fn no_shape_of_a_query_gets_around_the_fence(world: World) {
    let db = peopled(&world).await;
    let n = readable(db.engine(), "notes");
    let shapes = [
        format!("SELECT count(*) FROM {n}"),
        format!("SELECT count(*) FROM {n} a JOIN {n} b ON a.id = b.id"),
        format!("SELECT count(*) FROM {n} a LEFT JOIN {n} b ON a.id = b.id"),
        format!("SELECT count(*) FROM {n} a FULL JOIN {n} b ON a.id = b.id"),
        format!("SELECT count(*) FROM (SELECT id FROM {n} UNION ALL SELECT id + 1 FROM {n} WHERE id < 0) u"),
        format!("WITH c AS (SELECT * FROM {n}) SELECT count(*) FROM c"),
        format!("SELECT (SELECT count(*) FROM {n})"),
        format!("SELECT count(DISTINCT body) FROM {n} WHERE EXISTS (SELECT 1 FROM {n} b WHERE b.id = 1)"),
    ];
    for sql in shapes {
        for (whom, expected) in [(acts_for(Some("acme")), 1), (acts_for(None), 1), (ActsFor::Nobody, 0)] {
            let rows = read_for(&db, &whom, select(&[INT8], &sql, vec![])).await.expect("it is read");
            assert_eq!(rows, [values![expected]], "{sql} for {whom:?}");
        }
    }
}

/// I-44: the shard refuses the statement, or it finds no row of others.
pub(crate) async fn a_write_without_a_predicate_changes_its_tenants_rows_or_none(world: World) {
    let db = peopled(&world).await;
    let before = db.rows("notes").await;
    let reaching = |sql: &str| Statement::new(sql, vec![]);
    for whom in [acts_for(Some("acme")), acts_for(Some("gamma")), acts_for(None), ActsFor::Nobody] {
        for sql in ["UPDATE notes SET body = 'x' WHERE body = 'beta'", "DELETE FROM notes WHERE body = 'beta'"] {
            match db.write_for(whom.clone(), reaching(sql)).await {
                Ok(outcome) => assert_eq!(outcome.affected, 0, "{sql}"),
                Err(error) => check_refusal(&error),
            }
        }
        let foreign = insert_note(db.engine(), Some("beta"), 2, "planted");
        check_refusal(&db.write_for(whom, foreign).await.expect_err("a row of another tenant"));
    }
    assert_eq!(db.rows("notes").await, before);
    let own = "UPDATE notes SET body = 'changed' WHERE body = 'beta'";
    assert_eq!(db.write_for(acts_for(Some("beta")), reaching(own)).await.map(|outcome| outcome.affected), Ok(1));
}

fn check_refusal(error: &ShardError) {
    let error = error.clone().for_people();
    assert_eq!((error.sqlstate, error.message.as_str()), ("XX000", "a statement reached beyond its tenant"));
    assert_eq!((error.detail, error.table), (None, None));
}

/// I-44: a row cannot be handed over.
pub(crate) async fn a_row_does_not_change_its_tenant(world: World) {
    let db = peopled(&world).await;
    let before = db.rows("notes").await;
    let sql = match db.engine() {
        Engine::Sqlite => "UPDATE notes SET _tenant = 'gamma', _shard = 'gamma' WHERE body = 'acme'",
        Engine::Postgres => "UPDATE notes SET _shard = 'gamma' WHERE body = 'acme'",
    };
    let refused = db.write_for(acts_for(Some("acme")), Statement::new(sql, vec![])).await;
    check_refusal(&refused.expect_err("the row would leave its tenant"));
    assert_eq!(db.rows("notes").await, before);
}

/// I-2, I-44: what is found wrong of a statement after its end is taken back alone, also from a group of others.
pub(crate) async fn who_is_refused_takes_nobody_along(world: World) {
    let db = peopled(&world).await;
    let listened = db.listen().await;
    let write = |id: i64| {
        // Every third one writes a row of another tenant, every fifth one a row that is there.
        let (whose, id) = if id % 3 == 0 { ("beta", id) } else { ("acme", if id % 5 == 0 { 1 } else { id }) };
        db.write_for(acts_for(Some("acme")), insert_note(db.engine(), Some(whose), id, "told"))
    };
    let answers = join_all((100..160).map(write)).await;
    let mut told = 0;
    for (id, answer) in (100..160).zip(answers) {
        match answer {
            Ok(outcome) => {
                assert!(id % 3 != 0 && id % 5 != 0, "{id}");
                assert_eq!(outcome.affected, 1);
                told += 1;
            }
            Err(error) if id % 3 == 0 => check_refusal(&error),
            Err(error) => assert_eq!((id % 5, sqlstate(&error)), (0, "23505"), "{id}"),
        }
    }
    assert_eq!(told, 32);
    assert_eq!(db.rows("notes").await.len(), 3 + told, "those who were told have their rows, and nobody else has");
    assert_eq!(db.log_after(listened).await.len(), told);
}

/// I-43, I-44: transactions, their cursors and savepoints have one tenant, and leave nothing of it behind.
pub(crate) async fn a_transaction_is_its_tenants_to_the_end(world: World) {
    let db = peopled(&world).await;
    let sql = format!("SELECT body FROM {} ORDER BY id", readable(db.engine(), "notes"));
    let all = select(&[TEXT], &sql, vec![]);
    for name in [Some("acme"), None, Some("beta")] {
        let own = [values![name.unwrap_or("nobody's")]];
        for access in [Access::Read, Access::Write] {
            let begin = Begin::new(claim(), access).acting_for(acts_for(name));
            let mut transaction = db.begin(begin).await.expect("it begins");
            transaction.savepoint("a").await.expect("a savepoint");
            assert_eq!(transaction.execute(&all).await.expect("it is read").rows, own);
            let wrong = select(&[INT8], "SELECT 1 FROM missing", vec![]);
            assert_eq!(sqlstate(&transaction.execute(&wrong).await.expect_err("no such table")), "42P01");
            transaction.rollback_to("a").await.expect("it goes back");
            let cursor = transaction.open(&all).await.expect("a cursor");
            assert_eq!(transaction.fetch(cursor, 10).await.expect("a page").rows, own);
            transaction.commit().await.expect("it commits");
        }
        assert_eq!(bodies(&db, &ActsFor::Nobody).await, Vec::<Row>::new());
    }
}

/// I-44: a statement that writes to one table finds no other tenant's rows in the others, however its text names them,
/// and however often it comes.
pub(crate) async fn a_statement_that_writes_reads_others_through_the_fence(world: World) {
    let db = world
        .shard_with(vec![notes(), table("drafts", TableKind::Tenant, &[("id", INT8), ("body", TEXT)], &["id"])])
        .await;
    for name in ["acme", "beta"] {
        db.put_note(Some(name), 1, name).await;
        let draft = match db.engine() {
            Engine::Sqlite => Statement::new(
                "INSERT INTO drafts (_tenant, _shard, id, body) VALUES ($1, $1, 1, $2)",
                values![name, format!("draft of {name}").as_str()],
            ),
            Engine::Postgres => Statement::new(
                "INSERT INTO drafts (_shard, id, body) VALUES ($1, 1, $2)",
                values![name, format!("draft of {name}").as_str()],
            ),
        };
        db.write_for(acts_for(Some(name)), draft).await.expect("an own draft");
    }
    let before = db.rows("notes").await;
    let stealing = [
        "UPDATE notes SET body = (SELECT body FROM drafts WHERE _tenant = 'beta') WHERE _tenant = 'acme'",
        "DELETE FROM notes WHERE _tenant = 'acme' AND EXISTS (SELECT 1 FROM drafts WHERE _tenant = 'beta')",
        "UPDATE notes SET body = body WHERE _tenant = 'acme' RETURNING (SELECT max(body) FROM drafts WHERE _tenant = 'beta')",
    ];
    for sql in stealing.iter().chain(&stealing) {
        let statement =
            Statement::new(*sql, vec![]).returning(if sql.contains("RETURNING") { vec![TEXT] } else { vec![] });
        match (db.engine(), db.write_for(acts_for(Some("acme")), statement).await) {
            (Engine::Sqlite, outcome) => check_refusal(&outcome.expect_err(sql)),
            // There is no such row.
            (Engine::Postgres, outcome) => {
                let rows = outcome.unwrap_or_else(|error| panic!("{sql}: {error:?}")).rows;
                assert!(rows.iter().flatten().all(Value::is_null), "{sql}: {rows:?}");
                let back = "UPDATE notes SET body = 'acme' WHERE _tenant = 'acme'";
                db.write_for(acts_for(Some("acme")), Statement::new(back, vec![])).await.expect("as it was");
            }
        }
        assert_eq!(db.rows("notes").await, before, "{sql}");
    }
    let own = format!(
        "UPDATE notes SET body = (SELECT body FROM {}) WHERE _tenant = 'acme'",
        readable(db.engine(), "drafts")
    );
    db.write_for(acts_for(Some("acme")), Statement::new(own, vec![])).await.expect("its own draft");
    assert_eq!(bodies(&db, &acts_for(Some("acme"))).await, [values!["draft of acme"]]);
}

/// I-41, I-44: what foreign keys do stays within the tenant, and a reference to another's row is one to no row.
pub(crate) async fn foreign_keys_work_within_the_tenant(world: World) {
    let mut replies = table("replies", TableKind::Tenant, &[("id", INT8), ("note", INT8)], &["id"]);
    replies.foreign_keys = vec![ForeignKey {
        name: "replies_note".into(),
        columns: vec!["note".into()],
        table: "notes".into(),
        references: vec!["id".into()],
        on_delete: OnChange::Cascade,
        on_update: OnChange::NoAction,
        deferral: Deferral::None,
    }];
    let db = world.shard_with(vec![notes(), replies]).await;
    let reply = |name: Option<&str>, id: i64, note: i64| match db.engine() {
        Engine::Sqlite => Statement::new(
            "INSERT INTO replies (_tenant, _shard, id, note) VALUES ($1, $2, $3, $4)",
            values![name.unwrap_or(""), name, id, note],
        ),
        Engine::Postgres => {
            Statement::new("INSERT INTO replies (_shard, id, note) VALUES ($1, $2, $3)", values![name, id, note])
        }
    };
    for name in [None, Some("acme")] {
        db.put_note(name, 1, "x").await;
        db.write_for(acts_for(name), reply(name, 1, 1)).await.expect("a reply to an own note");
    }
    db.put_note(Some("beta"), 7, "x").await;
    for missing in [7, 8] {
        let error = db.write_for(acts_for(Some("acme")), reply(Some("acme"), 2, missing)).await.expect_err("no note");
        assert_eq!(sqlstate(&error), "23503");
    }
    let own = "DELETE FROM notes WHERE _tenant = 'acme'";
    db.write_for(acts_for(Some("acme")), Statement::new(own, vec![])).await.expect("the reply goes, too");
    assert_eq!(db.rows("replies").await.len(), 1);
}

/// I-44: the fence goes along with whatever happens to the table.
pub(crate) async fn the_fence_outlives_changes_of_the_table(world: World) {
    let db = peopled(&world).await;
    let column = |name: &str| isles_kernel::schema::Column::new(name, TEXT);
    db.alter(vec![SchemaChange::AddColumn { table: "notes".into(), column: column("extra") }]).await;
    let rename = SchemaChange::RenameColumn { table: "notes".into(), column: "body".into(), to: "said".into() };
    db.alter(vec![rename, SchemaChange::RenameTable { table: "notes".into(), to: "remarks".into() }]).await;
    let n = readable(db.engine(), "remarks");
    let said = |whom: ActsFor| {
        let statement = select(&[TEXT, TEXT], &format!("SELECT said, extra FROM {n}"), vec![]);
        let db = db.clone();
        async move { read_for(&db, &whom, statement).await.expect("it is read") }
    };
    assert_eq!(said(acts_for(Some("acme"))).await, [values!["acme", None::<&str>]]);
    db.alter(vec![SchemaChange::DropColumn { table: "remarks".into(), column: "extra".into() }]).await;
    db.alter(vec![SchemaChange::AddColumn { table: "remarks".into(), column: column("extra") }]).await;
    assert_eq!(said(acts_for(Some("acme"))).await, [values!["acme", None::<&str>]]);
    assert_eq!(said(ActsFor::Nobody).await, Vec::<Row>::new());
    let theirs = Statement::new("UPDATE remarks SET said = 'x' WHERE said = 'beta'", vec![]);
    match db.write_for(acts_for(Some("acme")), theirs).await {
        Ok(outcome) => assert_eq!(outcome.affected, 0),
        Err(error) => check_refusal(&error),
    }
    db.alter(vec![SchemaChange::DropTable { table: "remarks".into() }, SchemaChange::CreateTable(notes())]).await;
    assert_eq!(bodies(&db, &acts_for(Some("acme"))).await, Vec::<Row>::new());
}

/// I-44: all tenants are read by who acts for all of them, and nothing is written in their name.
pub(crate) async fn who_acts_for_everyone_reads_all_rows_and_writes_none(world: World) {
    let db = peopled(&world).await;
    let all = select(&[TEXT], "SELECT body FROM notes ORDER BY _tenant", vec![]);
    let every = [values!["nobody's"], values!["acme"], values!["beta"]];
    assert_eq!(read_for(&db, &ActsFor::Everyone, all.clone()).await.expect("all are read"), every);
    let begin = |access| Begin::new(claim(), access).acting_for(ActsFor::Everyone);
    let mut transaction = db.begin(begin(Access::Read)).await.expect("it begins");
    assert_eq!(transaction.execute(&all).await.expect("all are read").rows, every);
    let cursor = transaction.open(&all).await.expect("a cursor");
    assert_eq!(transaction.fetch(cursor, 10).await.expect("a page").rows, every);
    transaction.commit().await.expect("it commits");
    let before = db.rows("notes").await;
    let refused = db.begin(begin(Access::Write)).await.err().expect("it does not write");
    assert_eq!(sqlstate(&refused), "25006");
    for sql in ["UPDATE notes SET body = 'x'", "DELETE FROM notes", "DELETE FROM colors"] {
        let write = Statement::new(sql, vec![]).writing();
        assert_eq!(sqlstate(&db.write_for(ActsFor::Everyone, write.clone()).await.expect_err(sql)), "25006", "{sql}");
        // Nor does one who says that he only reads.
        let write = Statement::new(sql, vec![]);
        assert!(read_for(&db, &ActsFor::Everyone, write).await.is_err(), "{sql}");
    }
    assert_eq!(db.rows("notes").await, before);
}

/// I-43, I-44: neither the text of a statement nor the connection that it ran on lets anyone else at all rows.
pub(crate) async fn what_is_read_for_everyone_is_nobody_elses(world: World) {
    let db = peopled(&world).await;
    let all = || select(&[TEXT], "SELECT body FROM notes ORDER BY _tenant", vec![]);
    for _ in 0..20 {
        assert_eq!(read_for(&db, &ActsFor::Everyone, all()).await.expect("all are read").len(), 3);
        for (whom, own) in
            [(acts_for(Some("acme")), 1), (acts_for(None), 1), (acts_for(Some("x")), 0), (ActsFor::Nobody, 0)]
        {
            match (db.engine(), read_for(&db, &whom, all()).await) {
                // The table itself is not for them.
                (Engine::Sqlite, read) => assert!(read.is_err(), "{whom:?}"),
                (Engine::Postgres, read) => assert_eq!(read.expect("it is read").len(), own, "{whom:?}"),
            }
            assert_eq!(bodies(&db, &whom).await.len(), own);
        }
    }
}
