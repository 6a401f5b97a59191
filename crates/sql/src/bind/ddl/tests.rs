//! DDL as text, and what becomes of the schema.

mod global;

use crate::bind::utility::{DefaultKind, Utility};
use crate::bind::{BindContext, BoundStatement, bind};
use crate::parse;
use crate::text::Settings;
use isles_kernel::error::SqlError;
use isles_kernel::schema::{CommentOn, HIDDEN_KEY_COLUMN, Schema, SchemaChange, TableKind};
use isles_kernel::value::Value;

use super::DdlChange;

fn bound(schema: &Schema, sql: &str, default_kind: DefaultKind) -> Result<Utility, SqlError> {
    let (path, settings) = (["public".to_string()], Settings::default());
    let context = BindContext {
        schema,
        search_path: &path,
        database: "isles",
        settings: &settings,
        default_kind,
        default_buckets: 64,
        procedures: &crate::bind::procedure::NO_PROCEDURES,
    };
    match bind(&parse::parse_one(sql)?, &context, &[])?.statement {
        BoundStatement::Other(utility) => Ok(*utility),
        other => panic!("{sql} is not a utility statement: {other:?}"),
    }
}

fn change(schema: &Schema, sql: &str) -> Result<DdlChange, SqlError> {
    match bound(schema, sql, DefaultKind::Hash)? {
        Utility::Ddl(change) => Ok(*change),
        other => panic!("{sql} is not DDL: {other:?}"),
    }
}

/// The schema after statements, each of which must succeed.
fn after(statements: &[&str]) -> Schema {
    statements.iter().fold(Schema::default(), |schema, sql| {
        let change = change(&schema, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        schema.apply(&change.changes).unwrap_or_else(|error| panic!("{sql}: {error}"))
    })
}

/// The error of the last statement, as `SQLSTATE: message`.
fn error(statements: &[&str]) -> String {
    let (last, before) = statements.split_last().expect("a statement");
    let error = change(&after(before), last).expect_err(last);
    format!("{}: {}", error.sqlstate, error.message)
}

fn notices(statements: &[&str]) -> Vec<String> {
    let (last, before) = statements.split_last().expect("a statement");
    let change = change(&after(before), last).unwrap_or_else(|error| panic!("{last}: {error}"));
    change.notices.into_iter().map(|notice| notice.message).collect()
}

const USERS: &str = "CREATE TABLE users (id bigint PRIMARY KEY, email varchar(20) NOT NULL DEFAULT 'x', n int)";

#[test]
fn a_table_has_the_columns_and_the_kind_it_says() {
    let schema = after(&[USERS]);
    let users = &schema.tables["users"];
    assert_eq!(users.primary_key, ["id"]);
    assert_eq!(users.columns[1].type_name(), "character varying(20)");
    assert_eq!(users.columns[1].default, Some(Value::text("x")));
    assert!(!users.columns[0].nullable && !users.columns[1].nullable && users.columns[2].nullable);
    let TableKind::Hash { group, shard_by, buckets, .. } = &users.kind else { panic!("{:?}", users.kind) };
    assert_eq!((group.as_str(), shard_by.as_slice(), *buckets), ("default", &["id".to_string()][..], 64));
    for (sql, kind) in
        [("tenant", TableKind::Tenant), ("reference", TableKind::Reference), ("global", TableKind::Global)]
    {
        let schema = after(&[&format!("CREATE TABLE t (id int PRIMARY KEY) WITH (kind = '{sql}')")]);
        assert_eq!(schema.tables["t"].kind, kind);
    }
    let sql = "CREATE TABLE t (a int, b int, PRIMARY KEY (a, b)) WITH (shard_by = 'b', \"group\" = 'g', buckets = 8)";
    let TableKind::Hash { group, shard_by, buckets, .. } = &after(&[sql]).tables["t"].kind.clone() else { panic!() };
    assert_eq!((group.as_str(), shard_by.as_slice(), *buckets), ("g", &["b".to_string()][..], 8));
}

#[test]
fn a_table_without_a_key_has_a_hidden_one_until_it_gets_one() {
    let schema = after(&["CREATE TABLE t (a int, b text)"]);
    let table = &schema.tables["t"];
    assert!(table.hidden_key && table.columns[2].is_hidden());
    assert_eq!(table.visible_columns().len(), 2);
    assert_eq!(table.primary_key, [HIDDEN_KEY_COLUMN]);
    let schema = after(&["CREATE TABLE t (a int, b text)", "ALTER TABLE t ADD COLUMN c int"]);
    assert!(schema.tables["t"].columns[3].is_hidden());
    let schema = after(&["CREATE TABLE t (a int, b text)", "ALTER TABLE ONLY t ADD CONSTRAINT k PRIMARY KEY (a)"]);
    let table = &schema.tables["t"];
    assert!(!table.hidden_key && table.columns.len() == 2 && !table.columns[0].nullable);
    assert_eq!((table.primary_key.clone(), table.primary_key_name()), (vec!["a".to_string()], "k".to_string()));
}

#[test]
fn serials_and_identities_bring_their_sequences() {
    let schema = after(&["CREATE TABLE t (id serial PRIMARY KEY, n bigint GENERATED ALWAYS AS IDENTITY (START 5))"]);
    let table = &schema.tables["t"];
    assert_eq!(table.columns[0].default_sql.as_deref(), Some("nextval('t_id_seq'::regclass)"));
    assert!(!table.columns[0].nullable);
    assert_eq!(schema.sequences["t_id_seq"].max, i64::from(i32::MAX));
    assert_eq!(schema.sequences["t_id_seq"].owner, Some(("t".into(), "id".into())));
    let identity = table.columns[1].identity.as_ref().expect("an identity");
    assert!(identity.always);
    assert_eq!(schema.sequences[&identity.sequence].start, 5);
    let gone = schema.apply(&change(&schema, "DROP TABLE t").expect("valid").changes).expect("valid");
    assert!(gone.sequences.is_empty());
}

#[test]
fn constraints_are_named_as_postgresql_names_them() {
    let schema = after(&[
        "CREATE TABLE plans (id int PRIMARY KEY, UNIQUE (id)) WITH (kind = 'reference')",
        "CREATE TABLE t (id int PRIMARY KEY, a int CHECK (a > 0), b int REFERENCES plans, c int, CHECK (a < b), \
         UNIQUE (c, a), CONSTRAINT named CHECK (c <> 1)) WITH (kind = 'reference')",
    ]);
    let table = &schema.tables["t"];
    let checks: Vec<&str> = table.checks.iter().map(|check| check.name.as_str()).collect();
    assert_eq!(checks, ["t_a_check", "t_check", "named"]);
    assert_eq!(table.keys[0].name, "t_c_a_key");
    assert_eq!(table.foreign_keys[0].name, "t_b_fkey");
    assert_eq!(table.foreign_keys[0].references, ["id"]);
    assert_eq!(table.primary_key_name(), "t_pkey");
    assert_eq!(table.checks[0].expression.columns, ["a"]);
    assert!(table.checks[0].expression.sqlite.contains("\"a\""), "{:?}", table.checks[0]);
}

#[test]
fn what_no_shard_could_keep_is_refused_with_a_hint() {
    let users = "CREATE TABLE users (id bigint PRIMARY KEY, email text UNIQUE WITH (global = false))";
    assert_eq!(error(&[users]), "0A000: unique constraint on a hash table must include the shard key, or be global");
    let posts = "CREATE TABLE posts (id bigint PRIMARY KEY, author bigint REFERENCES users)";
    let message = error(&[USERS, posts]);
    assert_eq!(
        message,
        "0A000: foreign key constraint \"posts_author_fkey\" of table \"posts\" refers to rows of other shards"
    );
    let posts = "CREATE TABLE posts (id bigint, author bigint REFERENCES users, PRIMARY KEY (author, id)) WITH (shard_by = 'author')";
    assert_eq!(after(&[USERS, posts]).tables["posts"].foreign_keys[0].table, "users");
    assert_eq!(error(&["CREATE TEMP TABLE t (a int)"]), "0A000: temporary tables are not supported");
    assert_eq!(error(&["CREATE TABLE t (a int) PARTITION BY LIST (a)"]), "0A000: PARTITION BY is not supported");
    assert_eq!(
        error(&["CREATE TABLE t (a int GENERATED ALWAYS AS (1) STORED)"]),
        "0A000: generated columns are not supported"
    );
    assert_eq!(error(&["CREATE TABLE t (a int PRIMARY KEY DEFERRABLE)"]), "0A000: only foreign keys can be deferrable");
}

#[test]
fn errors_are_postgresqls() {
    assert_eq!(error(&[USERS, USERS]), "42P07: relation \"users\" already exists");
    let again = USERS.replace("TABLE users", "TABLE IF NOT EXISTS users");
    assert_eq!(notices(&[USERS, &again]), ["relation \"users\" already exists, skipping"]);
    assert_eq!(error(&["CREATE TABLE t (a int, a int)"]), "42701: column \"a\" specified more than once");
    assert_eq!(error(&["CREATE TABLE t (a nosuch)"]), "42704: type \"nosuch\" does not exist");
    assert_eq!(error(&["CREATE TABLE t (a int, PRIMARY KEY (b))"]), "42703: column \"b\" named in key does not exist");
    assert_eq!(
        error(&["CREATE TABLE t (a int DEFAULT true)"]),
        "42804: column \"a\" is of type integer but default expression is of type boolean"
    );
    assert_eq!(
        error(&["CREATE TABLE t (a int CHECK (a + 1))"]),
        "42804: argument of CHECK must be type boolean, not type integer"
    );
    assert_eq!(error(&["CREATE TABLE x.t (a int)"]), "3F000: schema \"x\" does not exist");
    assert_eq!(error(&["DROP TABLE t"]), "42P01: table \"t\" does not exist");
    assert_eq!(notices(&["DROP TABLE IF EXISTS t"]), ["table \"t\" does not exist, skipping"]);
    assert_eq!(error(&["ALTER TABLE t ADD COLUMN a int"]), "42P01: relation \"t\" does not exist");
    assert_eq!(
        error(&[USERS, "ALTER TABLE users ADD COLUMN n int"]),
        "42701: column \"n\" of relation \"users\" already exists"
    );
    assert_eq!(
        error(&[USERS, "ALTER TABLE users DROP COLUMN z"]),
        "42703: column \"z\" of relation \"users\" does not exist"
    );
    assert_eq!(
        error(&[USERS, "ALTER TABLE users DROP CONSTRAINT z"]),
        "42704: constraint \"z\" of relation \"users\" does not exist"
    );
    assert_eq!(error(&[USERS, "DROP VIEW users"]), "42809: \"users\" is not a view");
}

#[test]
fn a_table_is_altered_step_by_step() {
    let schema = after(&[
        USERS,
        "ALTER TABLE users ADD COLUMN age int NOT NULL DEFAULT 7, ALTER COLUMN n SET DEFAULT 3, ALTER n SET NOT NULL, DROP COLUMN email",
        "ALTER TABLE users ALTER n TYPE bigint",
        "ALTER TABLE users RENAME COLUMN age TO years",
        "ALTER TABLE users RENAME TO people",
        "ALTER TABLE people ADD CONSTRAINT old CHECK (years > 1)",
        "ALTER TABLE people RENAME CONSTRAINT old TO older",
        "CREATE INDEX ON people (years DESC, n)",
    ]);
    let people = &schema.tables["people"];
    let names: Vec<&str> = people.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["id", "n", "years"]);
    assert_eq!(people.columns[1].type_name(), "bigint");
    assert_eq!(people.columns[1].default, Some(Value::Int(3)));
    assert!(!people.columns[1].nullable);
    assert_eq!(people.columns[2].default, Some(Value::Int(7)));
    assert_eq!(people.primary_key_name(), "users_pkey");
    assert_eq!(people.checks[0].name, "older");
    assert_eq!(people.keys[0].name, "people_years_n_idx");
    assert!(people.keys[0].parts[0].descending && people.keys[0].parts[0].nulls_first);
}

#[test]
fn a_new_columns_default_is_computed_for_the_rows_there_are() {
    let schema = after(&[USERS]);
    let added = change(&schema, "ALTER TABLE users ADD COLUMN at timestamptz NOT NULL DEFAULT now()").expect("valid");
    assert_eq!(added.compute[0].change, 0);
    assert_eq!(added.compute[0].expression, "CAST((now()) AS timestamp with time zone)");
    let refused =
        change(&schema, "ALTER TABLE users ADD COLUMN u uuid DEFAULT gen_random_uuid()").expect_err("per row");
    assert_eq!(refused.sqlstate, "0A000");
}

#[test]
fn indexes_over_expressions_and_some_rows_are_kept_in_both_dialects() {
    let schema = after(&[
        USERS,
        "CREATE INDEX ON users (lower(email))",
        "CREATE UNIQUE INDEX only_some ON users (id, n) WHERE n > 3",
    ]);
    let keys = &schema.tables["users"].keys;
    assert_eq!(keys[0].name, "users_lower_idx");
    assert!(keys[0].uses("email"));
    assert_eq!(keys[1].predicate.as_ref().expect("a predicate").columns, ["n"]);
    assert_eq!(keys[1].unique_columns(), None);
    let now = "CREATE INDEX ON users (n) WHERE n > extract(epoch FROM now())";
    assert_eq!(error(&[USERS, now]), "42P17: functions in index predicate must be marked IMMUTABLE");
    let refused = "CREATE INDEX ON users USING gin (email)";
    assert_eq!(error(&[USERS, refused]), "0A000: access method \"gin\" is not supported");
}

#[test]
fn views_keep_their_columns_and_hold_on_to_their_tables() {
    let view = "CREATE VIEW v (number, mail) AS SELECT id, email FROM users WHERE n > 1";
    let schema = after(&[USERS, view]);
    let names: Vec<&str> = schema.views["v"].columns.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["number", "mail"]);
    let refused = change(&schema, "DROP TABLE users").expect_err("a view is in the way");
    assert_eq!(refused.message, "cannot drop table users because other objects depend on it");
    assert_eq!(refused.detail.as_deref(), Some("view v depends on table users"));
    let cascade = change(&schema, "DROP TABLE users CASCADE").expect("valid");
    assert_eq!(cascade.notices[0].message, "drop cascades to view v");
    assert!(schema.apply(&cascade.changes).expect("valid").views.is_empty());
    assert_eq!(
        error(&[USERS, view, "ALTER TABLE users DROP COLUMN n"]),
        "2BP01: cannot drop column n of table users because other objects depend on it"
    );
    assert_eq!(
        error(&[USERS, view, "ALTER TABLE users RENAME n TO m"]),
        "0A000: view \"v\" depends on what is altered"
    );
    let fewer = "CREATE OR REPLACE VIEW v AS SELECT id FROM users";
    assert_eq!(error(&[USERS, view, fewer]), "42P16: cannot drop columns from view");
}

#[test]
fn tables_that_refer_to_each_other_are_dropped_together() {
    let parents = "CREATE TABLE parents (id int PRIMARY KEY) WITH (kind = 'global')";
    let children = "CREATE TABLE children (id int PRIMARY KEY, p int REFERENCES parents) WITH (kind = 'global')";
    let schema = after(&[parents, children]);
    let refused = change(&schema, "DROP TABLE parents").expect_err("referred to");
    assert_eq!(
        refused.detail.as_deref(),
        Some("constraint children_p_fkey on table children depends on table parents")
    );
    for sql in ["DROP TABLE parents, children", "DROP TABLE children, parents", "DROP TABLE parents CASCADE"] {
        let dropped = schema.apply(&change(&schema, sql).expect(sql).changes).expect(sql);
        assert!(!dropped.tables.contains_key("parents"));
    }
    let refused = bound(&schema, "TRUNCATE parents", DefaultKind::Hash).expect_err("referred to");
    assert_eq!(refused.message, "cannot truncate a table referenced in a foreign key constraint");
    let Utility::Truncate { tables, .. } =
        bound(&schema, "TRUNCATE parents CASCADE", DefaultKind::Hash).expect("valid")
    else {
        panic!("a truncate");
    };
    assert_eq!(tables, ["parents", "children"]);
}

#[test]
fn sequences_have_postgresqls_bounds() {
    let schema =
        after(&["CREATE SEQUENCE s", "CREATE SEQUENCE d AS smallint INCREMENT -1", "ALTER SEQUENCE s MAXVALUE 9"]);
    let bounds = |name: &str| (schema.sequences[name].min, schema.sequences[name].max, schema.sequences[name].start);
    assert_eq!(bounds("s"), (1, 9, 1));
    assert_eq!(bounds("d"), (-32768, -1, -1));
    let restarted = change(&schema, "ALTER SEQUENCE s RESTART WITH 4").expect("valid");
    assert_eq!(restarted.restarts, [("s".to_string(), 4)]);
    assert_eq!(error(&["CREATE SEQUENCE s INCREMENT 0"]), "22023: INCREMENT must not be zero");
    let serial = "CREATE TABLE t (id serial PRIMARY KEY)";
    assert_eq!(
        error(&[serial, "DROP SEQUENCE t_id_seq"]),
        "2BP01: cannot drop sequence t_id_seq because other objects depend on it"
    );
}

#[test]
fn a_table_is_made_from_a_query() {
    let schema = after(&[USERS]);
    for sql in ["CREATE TABLE t AS SELECT id, email FROM users", "SELECT id, email INTO t FROM users"] {
        let made = change(&schema, sql).expect(sql);
        assert_eq!(made.tag, "SELECT");
        assert_eq!(made.then.as_deref(), Some("INSERT INTO public.t (id, email) SELECT id, email FROM users"));
        let SchemaChange::CreateTable(table) = &made.changes[0] else { panic!("{:?}", made.changes) };
        assert_eq!(table.columns[1].type_name(), "character varying(20)");
        assert!(table.hidden_key);
    }
    assert_eq!(change(&schema, "CREATE TABLE t AS SELECT 1 AS a WITH NO DATA").expect("valid").then, None);
}

#[test]
fn comments_are_kept_with_what_they_are_on() {
    let schema = after(&[
        USERS,
        "COMMENT ON TABLE users IS 'people'",
        "COMMENT ON COLUMN users.n IS 'a number'",
        "ALTER TABLE users RENAME TO people",
        "ALTER TABLE people RENAME n TO m",
    ]);
    assert_eq!(schema.comment(&CommentOn::Table("people".into())), Some("people"));
    assert_eq!(schema.comment(&CommentOn::Column("people".into(), "m".into())), Some("a number"));
    assert_eq!(error(&["COMMENT ON TABLE t IS 'x'"]), "42P01: relation \"t\" does not exist");
    assert!(after(&[USERS, "COMMENT ON TABLE users IS 'x'", "COMMENT ON TABLE users IS NULL"]).comments.is_empty());
}
