//! Global indexes: made, dropped and refused.

use super::*;
use crate::bind::utility::{IndexName, IndexStatement};
use crate::tree::Statement;
use isles_kernel::schema::{INDEX_NAMESPACE, Key, Table};

const GLOBAL: &str = "CREATE INDEX users_email ON users (email) WITH (global)";

fn key<'a>(schema: &'a Schema, table: &str, name: &str) -> &'a Key {
    schema.tables[table].keys.iter().find(|key| key.name == name).expect(name)
}

/// The tables of entries, each of which must be some index's.
fn entries(schema: &Schema) -> Vec<String> {
    let tables: Vec<String> = schema.tables.values().filter(|t| t.has_entries()).map(|t| t.name.clone()).collect();
    let mut used: Vec<String> = schema.global_keys().filter_map(|(_, key)| key.global.clone()).collect();
    used.sort();
    assert_eq!(tables, used);
    tables
}

fn hint(statements: &[&str]) -> String {
    let (last, before) = statements.split_last().expect("a statement");
    change(&after(before), last).expect_err(last).hint.unwrap_or_default()
}

#[test]
fn a_global_index_comes_with_its_entries() {
    for with in ["global", "global = true", "global = on", "global = 'yes'", "global = 1", "Global = TRUE"] {
        let schema = after(&[USERS, &format!("CREATE INDEX i ON users (email) WITH ({with})")]);
        let key = key(&schema, "users", "i");
        assert_eq!(
            (key.columns.as_slice(), key.unique, key.global.is_some()),
            (&["email".to_string()][..], false, true)
        );
        assert_eq!(entries(&schema).len(), 1);
    }
    for with in ["global = false", "global = off", "global = 0", "global = no"] {
        let schema = after(&[USERS, &format!("CREATE INDEX i ON users (email) WITH ({with})")]);
        assert_eq!((key(&schema, "users", "i").global.clone(), entries(&schema).len()), (None, 0));
    }
    assert_eq!(
        error(&[USERS, "CREATE INDEX i ON users (email) WITH (global = perhaps)"]),
        "22023: invalid value for boolean option \"global\": perhaps"
    );
    assert_eq!(
        error(&[USERS, "CREATE INDEX i ON users (email) WITH (global, global = off)"]),
        "22023: parameter \"global\" specified more than once"
    );
    assert_eq!(
        error(&[USERS, "CREATE INDEX i ON users (email) WITH (fillfactor = 70)"]),
        "22023: unrecognized parameter \"fillfactor\""
    );
}

#[test]
fn a_global_index_is_all_that_an_index_can_be() {
    let schema = after(&[
        USERS,
        "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS one ON users (email DESC NULLS LAST, lower(email)) WITH (global) WHERE n > 3",
        "CREATE INDEX two ON users (n, email) WITH (global)",
    ]);
    let one = key(&schema, "users", "one");
    assert!(one.unique && one.parts[0].descending && !one.parts[0].nulls_first && one.predicate.is_some());
    assert_eq!(one.unique_columns(), None);
    assert_eq!(entries(&schema).len(), 2);
    let again = change(&schema, "CREATE INDEX IF NOT EXISTS one ON users (n) WITH (global)").expect("valid");
    assert!(again.is_nothing());
    assert_eq!(again.notices[0].message, "relation \"one\" already exists, skipping");
    let concurrently = change(&schema, "CREATE INDEX CONCURRENTLY three ON users (n) WITH (global)").expect("valid");
    assert_eq!(concurrently.concurrently, Some("CREATE INDEX CONCURRENTLY"));
}

#[test]
fn only_rows_of_many_shards_need_a_global_index() {
    for kind in ["reference", "global"] {
        let table = format!("CREATE TABLE t (id int PRIMARY KEY, v text) WITH (kind = '{kind}')");
        let index = "CREATE INDEX i ON t (v) WITH (global)";
        assert_eq!(error(&[&table, index]), format!("0A000: a global index on a {kind} table is not supported"));
        assert!(hint(&[&table, index]).contains("plain index finds them"));
        let constraint =
            format!("CREATE TABLE t (id int PRIMARY KEY, v text UNIQUE WITH (global)) WITH (kind = '{kind}')");
        assert_eq!(error(&[&constraint]), format!("0A000: a global index on a {kind} table is not supported"));
        let plain = format!("CREATE TABLE t (id int PRIMARY KEY, v text UNIQUE) WITH (kind = '{kind}')");
        assert_eq!(entries(&after(&[&plain])).len(), 0);
    }
}

/// I-41: what is refused for another tenant's sake tells of it.
#[test]
fn an_index_over_all_tenants_is_not_unique() {
    let table = "CREATE TABLE t (id int PRIMARY KEY, v text) WITH (kind = 'tenant')";
    let refused = "0A000: a unique global index on a tenant table is not supported";
    assert_eq!(entries(&after(&[table, "CREATE INDEX i ON t (v) WITH (global)"])).len(), 1);
    for sql in [
        "CREATE UNIQUE INDEX i ON t (v) WITH (global)",
        "ALTER TABLE t ADD UNIQUE (v) WITH (global)",
        "ALTER TABLE t ADD CONSTRAINT c UNIQUE (v) WITH (global)",
    ] {
        assert_eq!(error(&[table, sql]), refused, "{sql}");
        assert!(hint(&[table, sql]).contains("one for each tenant"));
    }
    let constraint = "CREATE TABLE t (id int PRIMARY KEY, v text UNIQUE WITH (global)) WITH (kind = 'tenant')";
    assert_eq!(error(&[constraint]), refused);
}

#[test]
fn what_has_no_order_is_not_indexed() {
    let table = "CREATE TABLE t (id int PRIMARY KEY, j json, b jsonb, a text[], c char(3), i interval, n numeric)";
    for (column, ty) in [("j", "json"), ("b", "jsonb"), ("a", "text[]")] {
        let index = format!("CREATE INDEX i ON t (n, {column}) WITH (global)");
        assert_eq!(
            error(&[table, &index]),
            format!("0A000: a global index on column \"{column}\" of type {ty} is not supported")
        );
    }
    assert_eq!(
        error(&[table, "CREATE INDEX i ON t ((b -> 'x')) WITH (global)"]),
        "0A000: a global index on an expression of type jsonb is not supported"
    );
    assert_eq!(
        error(&["CREATE TABLE t (id int PRIMARY KEY, a int[] UNIQUE)"]),
        "0A000: a global index on column \"a\" of type integer[] is not supported"
    );
    let schema = after(&[table, "CREATE INDEX i ON t (c, i, n, (b ->> 'x')) WITH (global)"]);
    assert_eq!(entries(&schema).len(), 1);
}

#[test]
fn a_unique_constraint_without_the_shard_key_is_global() {
    let schema = after(&[
        "CREATE TABLE users (id bigint PRIMARY KEY, email text UNIQUE, n int, UNIQUE (n, email), UNIQUE (id, n))",
    ]);
    let global: Vec<&str> = schema.tables["users"].global_keys().map(|key| key.name.as_str()).collect();
    assert_eq!(global, ["users_email_key", "users_n_email_key"]);
    assert_eq!(entries(&schema).len(), 2);
    assert!(key(&schema, "users", "users_id_n_key").is_unique_on_shard());
    let added = after(&[USERS, "ALTER TABLE users ADD CONSTRAINT mails UNIQUE (email)"]);
    assert!(key(&added, "users", "mails").unique && key(&added, "users", "mails").global.is_some());
    let column = after(&[USERS, "ALTER TABLE users ADD COLUMN phone text UNIQUE"]);
    assert!(key(&column, "users", "users_phone_key").global.is_some());
    // Said twice, it is one, with one table of entries.
    let twice = after(&["CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE, UNIQUE (a))"]);
    assert_eq!(entries(&twice).len(), 1);
    let keyless = after(&["CREATE TABLE t (a int UNIQUE)"]);
    assert_eq!(entries(&keyless).len(), 1);
    let said = after(&["CREATE TABLE t (a int, b int, PRIMARY KEY (a), UNIQUE (a, b) WITH (global))"]);
    assert_eq!(entries(&said).len(), 1);
    let local = "CREATE TABLE t (id int PRIMARY KEY, a int UNIQUE WITH (global = false))";
    assert_eq!(error(&[local]), "0A000: unique constraint on a hash table must include the shard key, or be global");
    assert_eq!(hint(&[local]), "say WITH (global), or add (id) to it");
    let index = "CREATE UNIQUE INDEX i ON users (email)";
    assert_eq!(error(&[USERS, index]), "0A000: unique index on a hash table must include the shard key, or be global");
}

/// Its primary key is not where its rows are.
const FILES: &str = "CREATE TABLE files (id int PRIMARY KEY, owner text, name text) WITH (shard_by = 'owner')";

#[test]
fn a_primary_key_without_the_shard_key_is_global() {
    let schema = after(&[FILES]);
    let table = &schema.tables["files"];
    let primary = table.primary_index().expect("global");
    assert!(primary.unique && primary.constraint && primary.global.is_some());
    assert_eq!((table.declared_key(), table.primary_key_name().as_str()), (&["id".to_string()][..], "files_pkey"));
    assert_eq!(table.primary_key, ["id", "owner"]);
    assert_eq!(entries(&schema).len(), 1);
    let nullable: Vec<bool> = table.columns.iter().map(|column| column.nullable).collect();
    assert_eq!(nullable, [false, false, true]);
    // What is within a shard stays there, and so does what is said of another kind of table.
    for within in ["id int PRIMARY KEY, owner text", "id int, owner text, PRIMARY KEY (id, owner)"] {
        for with in ["", "WITH (kind = 'tenant')", "WITH (kind = 'reference')"] {
            let schema = after(&[&format!("CREATE TABLE t ({within}) {with}")]);
            assert_eq!((schema.tables["t"].primary_index(), entries(&schema).len()), (None, 0));
        }
    }
    let some = after(&["CREATE TABLE t (a int, b int, c int, PRIMARY KEY (b, a)) WITH (shard_by = 'c, a')"]);
    assert_eq!(some.tables["t"].primary_key, ["b", "a", "c"]);
    let said = "CREATE TABLE t (a int CONSTRAINT mine PRIMARY KEY WITH (global), b int) WITH (shard_by = 'b')";
    assert_eq!(key(&after(&[said]), "t", "mine").columns, ["a"]);
    let twice = "CREATE TABLE t (a int PRIMARY KEY, b int, CONSTRAINT again UNIQUE (a)) WITH (shard_by = 'b')";
    assert_eq!(entries(&after(&[twice])).len(), 1);
}

#[test]
fn a_global_primary_key_is_refused_where_it_is_none() {
    let local = "CREATE TABLE t (a int PRIMARY KEY WITH (global = off), b int) WITH (shard_by = 'b')";
    assert_eq!(error(&[local]), "0A000: primary key on a hash table must include the shard key, or be global");
    assert_eq!(hint(&[local]), "say WITH (global), or add (b) to it");
    let needless = "0A000: a global primary key that includes the shard key is not supported";
    assert_eq!(error(&["CREATE TABLE t (a int PRIMARY KEY WITH (global))"]), needless);
    assert_eq!(error(&["CREATE TABLE t (a int)", "ALTER TABLE t ADD PRIMARY KEY (a) WITH (global)"]), needless);
    assert_eq!(
        error(&["CREATE TABLE t (a int PRIMARY KEY WITH (global)) WITH (kind = 'tenant')"]),
        "0A000: a unique global index on a tenant table is not supported"
    );
    assert_eq!(
        error(&["CREATE TABLE t (a int) WITH (shard_by = 'a')"]),
        "0A000: shard_by of a table without a primary key is not supported"
    );
}

#[test]
fn a_global_primary_key_is_what_any_primary_key_is() {
    let refused = |sql: &str| error(&[FILES, sql]);
    assert_eq!(
        refused("ALTER TABLE files DROP CONSTRAINT files_pkey"),
        "0A000: the primary key of table \"files\" cannot be dropped"
    );
    assert_eq!(
        refused("DROP INDEX files_pkey"),
        "2BP01: cannot drop index files_pkey because constraint files_pkey on table files requires it"
    );
    assert_eq!(
        refused("ALTER TABLE files ADD PRIMARY KEY (name)"),
        "42P16: multiple primary keys for table \"files\" are not allowed"
    );
    assert_eq!(
        refused("ALTER TABLE files DROP COLUMN id"),
        "0A000: column \"id\" is part of the primary key of \"files\""
    );
    assert_eq!(
        refused("ALTER TABLE files DROP COLUMN owner"),
        "0A000: column \"owner\" is part of the shard key of \"files\""
    );
    assert_eq!(refused("ALTER TABLE files ALTER id DROP NOT NULL"), "42P16: column \"id\" is in a primary key");
    assert_eq!(refused("ALTER TABLE files ALTER owner DROP NOT NULL"), "42P16: column \"owner\" is in a shard key");
    assert_eq!(refused("CREATE TABLE files_pkey (a int)"), "42P07: relation \"files_pkey\" already exists");
    assert_eq!(
        refused("ALTER TABLE files ADD CONSTRAINT files_pkey CHECK (id > 0)"),
        "42710: constraint \"files_pkey\" for relation \"files\" already exists"
    );
    let before = entries(&after(&[FILES]));
    for rename in [
        "ALTER TABLE documents RENAME CONSTRAINT files_pkey TO documents_pkey",
        "ALTER INDEX files_pkey RENAME TO documents_pkey",
    ] {
        let to = ["ALTER TABLE files RENAME TO documents", rename, "ALTER TABLE documents RENAME id TO number"];
        let schema = after(&[&[FILES][..], &to].concat());
        let table = &schema.tables["documents"];
        assert_eq!((table.primary_key_name().as_str(), entries(&schema)), ("documents_pkey", before.clone()));
        assert_eq!(table.primary_key, ["number", "owner"]);
        assert_eq!(table.declared_key(), ["number"]);
    }
    assert_eq!(entries(&after(&[FILES, "DROP TABLE files"])).len(), 0);
}

#[test]
fn a_foreign_key_refers_to_a_global_primary_key_with_the_shard_key() {
    let table = |refers: &str| {
        format!(
            "CREATE TABLE pages (owner text, file int, n int, PRIMARY KEY (owner, file, n), FOREIGN KEY {refers}) \
             WITH (shard_by = 'owner')"
        )
    };
    for refers in ["(file) REFERENCES files", "(file) REFERENCES files (id)"] {
        assert_eq!(error(&[FILES, &table(refers)]), "0A000: a foreign key to a global unique key is not supported");
        assert_eq!(
            hint(&[FILES, &table(refers)]),
            "refer to (id, owner), from a table that is sharded as the other one is"
        );
    }
    let own = "CREATE TABLE t (a int PRIMARY KEY, b int, up int REFERENCES t) WITH (shard_by = 'b')";
    assert_eq!(error(&[own]), "0A000: a foreign key to a global unique key is not supported");
    let schema = after(&[FILES, &table("(owner, file) REFERENCES files (owner, id)")]);
    assert_eq!(schema.tables["pages"].foreign_keys[0].references, ["owner", "id"]);
    let plans = "CREATE TABLE plans (id int PRIMARY KEY) WITH (kind = 'reference')";
    let cascade = "CREATE TABLE t (a int PRIMARY KEY REFERENCES plans ON UPDATE CASCADE, b int) WITH (shard_by = 'b')";
    assert_eq!(
        error(&[plans, cascade]),
        "0A000: foreign key t_a_fkey cannot change the keys of unique global index t_pkey"
    );
}

#[test]
fn a_conflict_is_with_the_declared_primary_key() {
    let schema = after(&[FILES]);
    let bound = |conflict: &str| {
        let sql = format!("INSERT INTO files VALUES (1, 'a') ON CONFLICT {conflict}");
        crate::bind::tests::bound_in(&schema, &sql)
    };
    for conflict in ["(id) DO NOTHING", "ON CONSTRAINT files_pkey DO UPDATE SET name = 'b'"] {
        let BoundStatement::Rows(statement) = bound(conflict).expect(conflict).statement else { panic!("rows") };
        let Statement::Insert(insert) = *statement else { panic!("an insert") };
        let decides = insert.conflict.expect("a conflict");
        assert_eq!((decides.key.as_deref(), decides.target), (Some("files_pkey"), Some(vec!["id".into()])));
    }
    assert_eq!(bound("(id, owner) DO NOTHING").expect_err("no such key").sqlstate, "42P10");
}

#[test]
fn all_columns_follow_from_a_global_primary_key() {
    let schema = after(&[FILES]);
    let bound = |sql: &str| crate::bind::tests::bound_in(&schema, sql).map(drop).map_err(|error| error.sqlstate);
    assert_eq!(bound("SELECT id, name, count(*) FROM files GROUP BY id"), Ok(()));
    assert_eq!(bound("SELECT f.name FROM files f LEFT JOIN files g ON g.name = f.name GROUP BY f.id, g.id"), Ok(()));
    assert_eq!(bound("SELECT name FROM files GROUP BY owner"), Err("42803"));
    assert_eq!(bound("SELECT name FROM files GROUP BY ROLLUP (id)"), Err("42803"));
}

#[test]
fn a_foreign_key_does_not_refer_to_a_global_key() {
    let refers = "CREATE TABLE t (id int PRIMARY KEY, mail text REFERENCES users (email))";
    let unique = "CREATE UNIQUE INDEX i ON users (email) WITH (global)";
    assert_eq!(error(&[USERS, unique, refers]), "0A000: a foreign key to a global unique key is not supported");
}

#[test]
fn entries_go_with_their_index() {
    let made = [USERS, GLOBAL, "CREATE INDEX two ON users (n, email) WITH (global)"];
    let after_all = |last: &str| after(&[&made[..], &[last]].concat());
    assert_eq!(entries(&after_all("DROP INDEX users_email")).len(), 1);
    assert_eq!(entries(&after_all("DROP INDEX users_email, two")).len(), 0);
    assert_eq!(entries(&after_all("DROP TABLE users")).len(), 0);
    assert_eq!(entries(&after_all("ALTER TABLE users DROP COLUMN n")).len(), 1);
    assert_eq!(entries(&after_all("ALTER TABLE users DROP COLUMN email")).len(), 0);
    let constraint = "ALTER TABLE users ADD CONSTRAINT mails UNIQUE (email)";
    assert_eq!(entries(&after(&[USERS, constraint, "ALTER TABLE users DROP CONSTRAINT mails"])).len(), 0);
    assert_eq!(
        error(&[USERS, constraint, "DROP INDEX mails"]),
        "2BP01: cannot drop index mails because constraint mails on table users requires it"
    );
    let schema = "CREATE TABLE other.users (id int PRIMARY KEY, email text UNIQUE)";
    assert_eq!(entries(&after(&["CREATE SCHEMA other", schema, "DROP SCHEMA other CASCADE"])).len(), 0);
}

#[test]
fn renaming_leaves_entries_as_they_are() {
    let before = entries(&after(&[USERS, GLOBAL]));
    let schema = after(&[
        USERS,
        GLOBAL,
        "ALTER TABLE users RENAME TO people",
        "ALTER INDEX users_email RENAME TO people_mail",
        "ALTER TABLE people RENAME COLUMN email TO mail",
    ]);
    assert_eq!(entries(&schema), before);
    assert_eq!(key(&schema, "people", "people_mail").columns, ["mail"]);
}

#[test]
fn what_entries_are_made_of_does_not_change_under_them() {
    let both = [USERS, GLOBAL, "CREATE INDEX two ON users (n) WITH (global)"];
    let refused = |last: &str| error(&[&both[..], &[last]].concat());
    assert_eq!(
        refused("ALTER TABLE users ALTER n TYPE text"),
        "0A000: the type of \"n\" cannot change while a global index is on it"
    );
    assert_eq!(
        hint(&[&both[..], &["ALTER TABLE users ALTER n TYPE int USING n + 1"]].concat()),
        "drop two first, and create it again afterwards"
    );
    assert_eq!(
        refused("ALTER TABLE users ALTER email TYPE varchar(5)"),
        "0A000: the type of \"email\" cannot change while a global index is on it"
    );
    let wider = ["ALTER TABLE users ALTER n TYPE bigint", "ALTER TABLE users ALTER email TYPE text"];
    assert_eq!(entries(&after(&[&both[..], &wider].concat())).len(), 2);
    assert_eq!(
        error(&["CREATE TABLE t (a int UNIQUE, b int)", "ALTER TABLE t ADD PRIMARY KEY (b)"]),
        "0A000: a table's shard key and primary key cannot change while a global index is on it"
    );
}

#[test]
fn nobody_can_name_entries() {
    let schema = after(&[USERS, GLOBAL]);
    let name = entries(&schema)[0].clone();
    let table = name.strip_prefix(&format!("{INDEX_NAMESPACE}.")).expect("in its namespace").to_string();
    let full = format!("{INDEX_NAMESPACE}.\"{table}\"");
    let missing = "3F000: schema \"_isles_index\" does not exist";
    for sql in [
        format!("DROP TABLE {full}"),
        format!("ALTER TABLE {full} ADD COLUMN a int"),
        format!("CREATE INDEX i ON {full} (key)"),
        format!("CREATE TABLE {INDEX_NAMESPACE}.t (a int)"),
        format!("COMMENT ON TABLE {full} IS 'x'"),
        format!("COMMENT ON SCHEMA {INDEX_NAMESPACE} IS 'x'"),
        format!("DROP SCHEMA {INDEX_NAMESPACE} CASCADE"),
    ] {
        let error = change(&schema, &sql).expect_err(&sql);
        assert_eq!(format!("{}: {}", error.sqlstate, error.message), missing, "{sql}");
    }
    for sql in [format!("TRUNCATE {full}"), format!("COPY {full} TO STDOUT")] {
        let error = bound(&schema, &sql, DefaultKind::Hash).expect_err(&sql);
        assert!(["3F000", "42P01"].contains(&error.sqlstate), "{sql}: {error}");
    }
    for sql in
        [format!("SELECT * FROM {full}"), format!("DELETE FROM {full}"), format!("INSERT INTO {full} DEFAULT VALUES")]
    {
        let error = crate::bind::tests::bound_in(&schema, &sql).expect_err(&sql);
        assert_eq!(error.message, format!("relation \"{name}\" does not exist"), "{sql}");
    }
    // Not by way of the path either.
    let (path, settings) = ([INDEX_NAMESPACE.to_string(), "public".to_string()], Settings::default());
    let context = BindContext {
        schema: &schema,
        search_path: &path,
        database: "isles",
        settings: &settings,
        default_kind: DefaultKind::Hash,
        default_buckets: 64,
        procedures: &crate::bind::procedure::NO_PROCEDURES,
    };
    for sql in [format!("SELECT * FROM \"{table}\""), format!("DROP TABLE \"{table}\"")] {
        let error = bind(&parse::parse_one(&sql).expect("valid"), &context, &[]).expect_err(&sql);
        assert_eq!(error.sqlstate, "42P01", "{sql}: {error}");
    }
    let create = bind(&parse::parse_one("CREATE TABLE here (a int)").expect("valid"), &context, &[]).expect("valid");
    assert!(format!("{:?}", create.statement).contains("name: \"here\""));
    assert_eq!(error(&["CREATE SCHEMA _isles_index"]), "42939: unacceptable schema name \"_isles_index\"");
    assert_eq!(
        error(&["CREATE TABLE t (a int PRIMARY KEY) WITH (\"group\" = '_isles_index')"]),
        "42939: the name of group \"_isles_index\" is reserved"
    );
}

#[test]
fn a_conflict_is_with_a_global_key_as_with_any_other() {
    let schema = after(&[
        USERS,
        "CREATE UNIQUE INDEX one ON users (email) WITH (global)",
        "ALTER TABLE users ADD CONSTRAINT two UNIQUE (n)",
        "CREATE UNIQUE INDEX three ON users (lower(email), n) WITH (global)",
    ]);
    let decides = |conflict: &str| -> Result<Option<String>, SqlError> {
        let sql = format!("INSERT INTO users (id) VALUES (1) ON CONFLICT {conflict}");
        match crate::bind::tests::bound_in(&schema, &sql)?.statement {
            BoundStatement::Rows(statement) => match *statement {
                Statement::Insert(insert) => Ok(insert.conflict.expect("a conflict").key),
                other => panic!("{sql}: {other:?}"),
            },
            other => panic!("{sql}: {other:?}"),
        }
    };
    let known: [(&str, Option<&str>); 5] = [
        ("(email) DO NOTHING", Some("one")),
        ("(email) DO UPDATE SET n = 1", Some("one")),
        ("ON CONSTRAINT two DO NOTHING", Some("two")),
        ("(id) DO NOTHING", None),
        ("DO NOTHING", None),
    ];
    for (conflict, key) in known {
        assert_eq!(decides(conflict), Ok(key.map(String::from)), "{conflict}");
    }
    let refused = |conflict: &str| decides(conflict).expect_err("no such key").sqlstate;
    assert_eq!(refused("(email, n) DO NOTHING"), "42P10", "an expression of a column is not the column");
    assert_eq!(refused("ON CONSTRAINT one DO NOTHING"), "42704", "an index is no constraint");
}

#[test]
fn a_foreign_key_does_not_change_unique_keys_behind_the_routers_back() {
    const PLANS: &str = "CREATE TABLE plans (name text PRIMARY KEY) WITH (kind = 'reference')";
    let refused = "0A000: foreign key t_plan_fkey cannot change the keys of unique global index";
    let table = |plan: &str| format!("CREATE TABLE t (id int PRIMARY KEY, n int, plan text {plan})");
    let with = |action: &str| table(&format!("REFERENCES plans {action}"));
    let unique = "CREATE UNIQUE INDEX u ON t (plan, n) WITH (global)";
    let partial = "CREATE UNIQUE INDEX u ON t (n) WITH (global) WHERE plan IS NULL";
    let computed = "CREATE UNIQUE INDEX u ON t (coalesce(plan, 'none')) WITH (global)";
    let later =
        |action: &str| format!("ALTER TABLE t ADD CONSTRAINT t_plan_fkey FOREIGN KEY (plan) REFERENCES plans {action}");
    let cases = [
        ("ON UPDATE CASCADE", &[unique, partial, computed][..]),
        ("ON UPDATE SET NULL", &[partial, computed]),
        ("ON DELETE SET NULL", &[partial, computed]),
        ("ON DELETE CASCADE", &[]),
        ("ON UPDATE RESTRICT", &[]),
    ];
    for (action, wrong) in cases {
        for index in [unique, partial, computed] {
            let first = [PLANS, &with(action), index];
            let last = [PLANS, &table(""), index, &later(action)];
            for statements in [&first[..], &last] {
                match wrong.contains(&index) {
                    true => assert_eq!(error(statements), format!("{refused} u"), "{statements:?}"),
                    false => assert_eq!(entries(&after(statements)).len(), 1, "{statements:?}"),
                }
            }
        }
    }
    let both = [PLANS, &table("UNIQUE REFERENCES plans ON UPDATE CASCADE")];
    assert_eq!(error(&both), format!("{refused} t_plan_key"));
    let both = [PLANS, &table("REFERENCES plans ON UPDATE CASCADE UNIQUE")];
    assert_eq!(error(&both), format!("{refused} t_plan_key"));
    let plain = "CREATE INDEX i ON t (plan) WITH (global)";
    assert_eq!(entries(&after(&[PLANS, &with("ON UPDATE CASCADE"), plain])).len(), 1);
    assert!(hint(&[PLANS, &with("ON UPDATE CASCADE"), unique]).contains("NO ACTION"));
}

#[test]
fn indexes_are_looked_after_by_name() {
    let schema = after(&[USERS, GLOBAL, "CREATE INDEX plain ON users (n)"]);
    let statement = |sql: &str| match bound(&schema, sql, DefaultKind::Hash) {
        Ok(Utility::Index(statement)) => statement,
        other => panic!("{sql}: {other:?}"),
    };
    let name = || IndexName { table: "users".into(), key: "users_email".into() };
    assert_eq!(statement("SHOW INDEXES"), IndexStatement::List);
    assert_eq!(statement("REINDEX INDEX users_email"), IndexStatement::Rebuild(name()));
    assert_eq!(statement("REINDEX (VERBOSE) INDEX CONCURRENTLY public.users_email"), IndexStatement::Rebuild(name()));
    assert_eq!(statement("VERIFY INDEX users_email"), IndexStatement::Verify { index: name(), repair: false });
    assert_eq!(
        statement("VERIFY INDEX public.users_email REPAIR"),
        IndexStatement::Verify { index: name(), repair: true }
    );
    assert_eq!(statement("WAIT FOR INDEX users_email"), IndexStatement::Wait(name()));
    for (start, tag) in [("REINDEX INDEX", "REINDEX"), ("VERIFY INDEX", "VERIFY INDEX"), ("WAIT FOR INDEX", "WAIT")] {
        assert_eq!(statement(&format!("{start} users_email")).command_tag(), tag);
        for (name, expected) in [
            ("nothing", "42704: index \"nothing\" does not exist"),
            ("users", "42809: \"users\" is not an index"),
            ("plain", "42809: \"plain\" is not a global index"),
            ("users_pkey", "42809: \"users_pkey\" is not a global index"),
            ("nowhere.users_email", "3F000: schema \"nowhere\" does not exist"),
        ] {
            let sql = format!("{start} {name}");
            let error = bound(&schema, &sql, DefaultKind::Hash).expect_err(&sql);
            assert_eq!(format!("{}: {}", error.sqlstate, error.message), expected, "{sql}");
        }
    }
    for sql in ["REINDEX TABLE users", "REINDEX SCHEMA public", "REINDEX (TABLESPACE x) INDEX users_email"] {
        assert_eq!(bound(&schema, sql, DefaultKind::Hash).expect_err(sql).sqlstate, "0A000", "{sql}");
    }
}

#[test]
fn the_group_of_entries_is_their_own() {
    let schema = after(&[USERS, GLOBAL]);
    let table: &Table = &schema.tables[&entries(&schema)[0]];
    assert_eq!(table.group().map(|group| group.as_str()), Some(INDEX_NAMESPACE));
}
