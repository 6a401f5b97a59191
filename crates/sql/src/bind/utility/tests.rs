//! Statements that are not about rows, and what they are bound to.

use super::*;
use crate::bind::{BindContext, BoundStatement};
use crate::copy::{CopyFormat, CopyHeader};
use crate::parse;
use crate::text::Settings;
use isles_kernel::schema::{Column, Table, TableKind};
use isles_kernel::value::DataType;

fn bound(sql: &str) -> Result<Utility, SqlError> {
    let id = Column::new("id", DataType::Int8).not_null();
    let notes = Table::new("notes", TableKind::Tenant, vec![id, Column::new("body", DataType::Text)], &["id"]);
    let mut schema = Schema::default();
    schema.tables.insert("notes".into(), notes);
    let (path, settings) = (["public".to_string()], Settings::default());
    let context = BindContext {
        schema: &schema,
        search_path: &path,
        database: "isles",
        settings: &settings,
        default_kind: DefaultKind::Hash,
        default_buckets: 8,
        procedures: &crate::bind::procedure::NO_PROCEDURES,
    };
    match crate::bind::bind(&parse::parse_one(sql)?, &context, &[])?.statement {
        BoundStatement::Other(utility) => Ok(*utility),
        other => panic!("{sql}: {other:?}"),
    }
}

fn must(sql: &str) -> Utility {
    bound(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn refused(sql: &str) -> String {
    let error = bound(sql).expect_err(sql);
    format!("{}: {}", error.sqlstate, error.message)
}

#[test]
fn transactions_say_their_modes() {
    let modes = TransactionModes {
        isolation: Some(IsolationLevel::Serializable),
        read_only: Some(true),
        deferrable: Some(false),
    };
    let sql = "BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY, NOT DEFERRABLE";
    assert_eq!(must(sql), Utility::Begin(Begin { modes, start: false }));
    assert_eq!(must("START TRANSACTION").command_tag(), "START TRANSACTION");
    assert_eq!(must("COMMIT AND CHAIN"), Utility::Commit { chain: true });
    assert_eq!(must("ROLLBACK TO SAVEPOINT s"), Utility::RollbackTo { name: "s".into() });
    assert_eq!(must("ABORT").command_tag(), "ROLLBACK");
    let characteristics = must("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE");
    let modes = TransactionModes { read_only: Some(false), ..TransactionModes::default() };
    assert_eq!(characteristics, Utility::SetTransaction { modes, scope: SetScope::Session });
    assert_eq!(refused("PREPARE TRANSACTION 'x'"), "0A000: two-phase commit by clients is not supported");
}

#[test]
fn settings_are_texts() {
    let set = |sql: &str| match must(sql) {
        Utility::Set { name, value: SetValue::Text(value), scope } => (name, value, scope),
        other => panic!("{sql}: {other:?}"),
    };
    assert_eq!(set("SET isles.tenant = 'acme'"), ("isles.tenant".into(), "acme".into(), SetScope::Session));
    assert_eq!(set("SET LOCAL TimeZone TO 'UTC'"), ("timezone".into(), "UTC".into(), SetScope::Local));
    assert_eq!(set("SET TIME ZONE 'Asia/Tokyo'").1, "Asia/Tokyo");
    assert_eq!(set("SET search_path = \"$user\", public").1, "\"$user\", public");
    assert_eq!(set("SET DateStyle = ISO, DMY").1, "iso, dmy");
    assert_eq!(set("SET statement_timeout = 100").1, "100");
    assert_eq!(
        must("SET x.y TO DEFAULT"),
        Utility::Set { name: "x.y".into(), value: SetValue::Default, scope: SetScope::Session }
    );
    assert_eq!(must("RESET ALL"), Utility::ResetAll);
    assert_eq!(must("SHOW shards"), Utility::ShowIsles(ShowIsles::Shards));
    assert_eq!(must("SHOW server_version"), Utility::Show { name: "server_version".into() });
    assert_eq!(must("SHOW TRANSACTION ISOLATION LEVEL"), Utility::Show { name: "transaction_isolation".into() });
    assert_eq!(must("DISCARD ALL").command_tag(), "DISCARD ALL");
}

#[test]
fn statements_inside_of_statements_are_text() {
    let prepared = must("PREPARE p (int, text) AS SELECT id FROM notes WHERE id = $1 AND body = $2");
    let Utility::Prepare { name, types, statement } = prepared else { panic!("{prepared:?}") };
    assert_eq!((name.as_str(), types.len()), ("p", 2));
    assert_eq!(statement, "SELECT id FROM notes WHERE id = $1 AND body = $2");
    let args = vec!["1 + 1".to_string(), "'x'".to_string()];
    assert_eq!(must("EXECUTE p(1 + 1, 'x')"), Utility::Execute { name: "p".into(), args });
    assert_eq!(must("DEALLOCATE ALL"), Utility::Deallocate { name: None });
    let declared = must("DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT 1");
    let Utility::DeclareCursor(cursor) = declared else { panic!("{declared:?}") };
    assert_eq!((cursor.query.as_str(), cursor.scroll, cursor.hold), ("SELECT 1", Some(true), true));
}

#[test]
fn fetches_go_both_ways() {
    let from = |sql: &str| match must(sql) {
        Utility::Fetch(fetch) | Utility::Move(fetch) => fetch.from,
        other => panic!("{sql}: {other:?}"),
    };
    assert_eq!(from("FETCH c"), FetchFrom::Forward(1));
    assert_eq!(from("FETCH ALL FROM c"), FetchFrom::ForwardAll);
    assert_eq!(from("FETCH 5 FROM c"), FetchFrom::Forward(5));
    assert_eq!(from("FETCH -5 FROM c"), FetchFrom::Backward(5));
    assert_eq!(from("FETCH PRIOR FROM c"), FetchFrom::Backward(1));
    assert_eq!(from("FETCH BACKWARD ALL FROM c"), FetchFrom::BackwardAll);
    assert_eq!(from("FETCH LAST FROM c"), FetchFrom::Absolute(-1));
    assert_eq!(from("MOVE RELATIVE 2 FROM c"), FetchFrom::Relative(2));
}

#[test]
fn a_copy_names_its_columns_and_options() {
    let copied = must("COPY notes FROM STDIN WITH (FORMAT csv, HEADER, DELIMITER ';')");
    let Utility::Copy(copy) = copied else { panic!("{copied:?}") };
    let columns = vec!["id".to_string(), "body".to_string()];
    assert_eq!(copy.source, CopySource::Table { table: "notes".into(), columns, filter: None });
    assert_eq!(
        (copy.options.format, copy.options.header, copy.options.delimiter),
        (CopyFormat::Csv, CopyHeader::Yes, b';')
    );
    let copied = must("COPY (SELECT 1) TO STDOUT");
    let Utility::Copy(copy) = copied else { panic!("{copied:?}") };
    assert_eq!(copy.source, CopySource::Query("SELECT 1".into()));
    assert_eq!(
        refused("COPY notes (nothing) TO STDOUT"),
        "42703: column \"nothing\" of relation \"notes\" does not exist"
    );
    assert_eq!(refused("COPY nowhere TO STDOUT"), "42P01: relation \"nowhere\" does not exist");
    assert_eq!(
        refused("COPY notes FROM '/tmp/x'"),
        "0A000: COPY to or from a file or program of the server is not supported"
    );
}

#[test]
fn roles_and_what_is_refused() {
    let made = must("CREATE USER u PASSWORD 'secret' NOSUPERUSER");
    assert_eq!(made.command_tag(), "CREATE ROLE");
    assert!(!format!("{made:?}").contains("secret"));
    let granted = must("GRANT SELECT, INSERT ON notes TO u");
    let Utility::Role(RoleStatement::Grant(rights)) = granted else { panic!("{granted:?}") };
    assert_eq!(rights.rights, ["select", "insert"]);
    assert_eq!(rights.on, GrantObject::Tables(vec!["notes".into()]));
    assert_eq!(must("GRANT USAGE ON SCHEMA public TO u").command_tag(), "GRANT");
    assert_eq!(must("VACUUM FULL notes"), Utility::Vacuum { warnings: vec![] });
    for (sql, what) in [
        ("LISTEN x", "LISTEN"),
        ("LOCK TABLE notes", "LOCK TABLE"),
        ("DO 'BEGIN END'", "DO"),
        ("CREATE TRIGGER t BEFORE INSERT ON notes FOR EACH ROW EXECUTE FUNCTION f()", "CREATE TRIGGER"),
    ] {
        assert_eq!(refused(sql), format!("0A000: {what} is not supported"));
    }
    let missing = "0A000: extension \"uuid-ossp\" is not available";
    assert_eq!(refused("CREATE EXTENSION IF NOT EXISTS \"uuid-ossp\""), missing);
    assert_eq!(refused("CREATE EXTENSION plpgsql"), "42710: extension \"plpgsql\" already exists");
}
