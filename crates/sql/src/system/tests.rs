//! What the module as a whole keeps, over one schema with something of everything.

use super::*;
use crate::types::Oid;
use isles_kernel::names::GroupName;
use isles_kernel::schema::{
    Check, Column, CommentOn, Deferral, Expression, ForeignKey, INDEX_NAMESPACE, Identity, Key, KeyOver, KeyPart,
    OnChange, Schema, Sequence, SqlType, Table, TableKind, View, entries_table,
};
use isles_kernel::value::DataType;
use std::collections::HashSet;

fn sql_type(oid: u32, modifier: i32) -> Option<SqlType> {
    Some(SqlType { oid, modifier })
}

/// The entries of a global index.
const ENTRIES: &str = "_isles_index.1";

fn users() -> Table {
    let group = GroupName::new("users").expect("valid");
    Table {
        name: "users".into(),
        kind: TableKind::Hash { group, shard_by: vec!["id".into()], buckets: 64, regions: vec![] },
        columns: vec![
            Column::new("id", DataType::Int8).not_null(),
            Column { sql_type: sql_type(1043, 84), ..Column::new("email", DataType::Text).not_null() },
            Column { default_sql: Some("'nobody'::text".into()), ..Column::new("name", DataType::Text) },
            Column { sql_type: sql_type(1700, 655_366), ..Column::new("balance", DataType::Numeric) },
        ],
        primary_key: vec!["id".into()],
        keys: vec![
            Key::unique("users_email", &["id", "email"]),
            Key { global: Some(ENTRIES.into()), ..Key::unique("users_name", &["name"]) },
        ],
        ..Table::new("", TableKind::Global, vec![], &[])
    }
}

fn orders() -> Table {
    let identity = Identity { sequence: "orders_id_seq".into(), always: false };
    Table {
        name: "orders".into(),
        columns: vec![
            Column::new("user_id", DataType::Int8).not_null(),
            Column { identity: Some(identity), ..Column::new("id", DataType::Int8).not_null() },
            Column::new("placed", DataType::Date),
        ],
        primary_key: vec!["user_id".into(), "id".into()],
        keys: vec![],
        foreign_keys: vec![ForeignKey {
            name: "orders_user".into(),
            columns: vec!["user_id".into()],
            table: "users".into(),
            references: vec!["id".into()],
            on_delete: OnChange::Cascade,
            on_update: OnChange::NoAction,
            deferral: Deferral::None,
        }],
        ..users()
    }
}

fn sequence(name: &str, owner: Option<(&str, &str)>) -> Sequence {
    Sequence {
        name: name.into(),
        start: 1,
        increment: 1,
        min: 1,
        max: i64::MAX,
        cycle: false,
        ty: DataType::Int8,
        owner: owner.map(|(table, column)| (table.into(), column.into())),
    }
}

/// A table of a tenant, as whoever forgets to hide things would give it.
fn notes() -> Table {
    let mut columns = vec![Column::new("_tenant", DataType::Text).not_null(), Column::new("_shard", DataType::Text)];
    columns.push(Column::new("id", DataType::Int8).not_null());
    columns.push(Column::new("_isles_seq", DataType::Int8));
    let key = Key {
        name: "Notes by id".into(),
        columns: vec!["_tenant".into(), "id".into()],
        unique: true,
        ..Key::default()
    };
    Table {
        name: "notes".into(),
        kind: TableKind::Tenant,
        columns,
        primary_key: vec!["_tenant".into(), "id".into()],
        keys: vec![key],
        ..users()
    }
}

fn expression(sql: &str, column: &str) -> Expression {
    Expression { sql: sql.into(), sqlite: String::new(), postgres: String::new(), columns: vec![column.into()] }
}

/// A table without a primary key, with a check, a unique constraint and an index over an expression of some rows.
fn plans() -> Table {
    let part = |over, descending| KeyPart { over, descending, nulls_first: descending };
    let parts = vec![
        part(KeyOver::Expression(expression("lower(name)", "name")), false),
        part(KeyOver::Expression(expression("price + 1", "price")), false),
        part(KeyOver::Column("price".into()), true),
    ];
    let predicate = Some(expression("price > 0", "price"));
    let key = Key { name: "plans_some".into(), columns: vec!["price".into()], parts, predicate, ..Key::default() };
    let unique = Key { constraint: true, ..Key::unique("plans_name_key", &["name"]) };
    let columns = vec![Column::new("name", DataType::Text), Column::new("price", DataType::Int4), Column::hidden_key()];
    Table {
        keys: vec![key, unique],
        checks: vec![Check { name: "positive".into(), expression: expression("price > 0", "price") }],
        hidden_key: true,
        ..Table::new("plans", TableKind::Global, columns, &["_isles_row"])
    }
}

fn schema() -> Schema {
    let mut schema = Schema::default();
    let ours = [Table { name: "_isles_log".into(), keys: vec![], ..users() }, entries_table(ENTRIES)];
    schema.namespaces.insert(INDEX_NAMESPACE.into());
    for table in [users(), orders(), notes(), plans()].into_iter().chain(ours) {
        schema.tables.insert(table.name.clone(), table);
    }
    let columns = vec![("id".into(), SqlType { oid: 20, modifier: -1 })];
    let view =
        View { name: "rich".into(), sql: "SELECT id FROM users WHERE balance > 1000".into(), columns, path: None };
    schema.views.insert("rich".into(), view);
    for sequence in [sequence("orders_id_seq", Some(("orders", "id"))), sequence("tickets", None)] {
        schema.sequences.insert(sequence.name.clone(), sequence);
    }
    schema.comments = vec![
        (CommentOn::Database, "all of it".into()),
        (CommentOn::Table("users".into()), "who".into()),
        (CommentOn::Column("users".into(), "email".into()), "where to".into()),
    ];
    schema
}

fn facts() -> Facts {
    let mut facts = Facts::new(Arc::new(schema()), "shop", "ada");
    facts.roles.push(Role { name: "bob".into(), can_login: true, is_superuser: false });
    facts.settings.insert("TimeZone".into(), "UTC".into());
    facts.settings.insert("isles.tenant".into(), "acme".into());
    facts
}

/// The named columns of a relation's rows that fit, as text.
fn show(relation: &str, columns: &[&str], fits: &[(&str, &str)]) -> Vec<String> {
    let (schema, name) = relation.split_once('.').expect("qualified");
    let definition = super::relation(schema, name).expect("defined");
    let at = |column: &str| definition.columns.iter().position(|c| c.name == column).expect(column);
    let rows = rows(relation, &facts()).expect("rows");
    let kept = rows.iter().filter(|row| fits.iter().all(|(column, value)| say(&row[at(column)]) == *value));
    kept.map(|row| columns.iter().map(|c| say(&row[at(c)])).collect::<Vec<_>>().join("|")).collect()
}

fn say(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Text(text) => text.clone(),
        Value::Int(n) => n.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Array(members) => format!("{{{}}}", members.iter().map(say).collect::<Vec<_>>().join(",")),
        other => format!("{other:?}"),
    }
}

fn call(name: &str, args: &[Value]) -> Result<Value, SqlError> {
    let named = |f: &&data::FunctionRow| f.name == name && f.args.len() == args.len();
    let oid = data::functions().find(named).unwrap_or_else(|| panic!("a function {name}")).oid;
    Functions::new(Arc::new(facts())).call(Oid(oid), args).unwrap_or_else(|| panic!("{name} is ours"))
}

fn said(name: &str, args: &[Value]) -> String {
    call(name, args).map_or_else(|error| error.to_string(), |value| say(&value))
}

fn class(name: &str) -> Value {
    call("regclassin", &[Value::text(name)]).expect(name)
}

#[test]
fn every_relation_can_be_read_and_every_row_fits_its_definition() {
    let facts = facts();
    for relation in relations() {
        let name = format!("{}.{}", relation.schema, relation.name);
        for row in rows(&name, &facts).expect("rows") {
            assert_eq!(row.len(), relation.columns.len(), "{name}");
            for (value, column) in row.iter().zip(&relation.columns) {
                assert!(!(column.not_null && value.is_null()), "{name}.{} is null", column.name);
            }
        }
    }
}

#[test]
fn nothing_of_our_own_is_visible() {
    let facts = facts();
    for relation in relations() {
        let name = format!("{}.{}", relation.schema, relation.name);
        for row in rows(&name, &facts).expect("rows") {
            let text = row.iter().map(say).collect::<Vec<_>>().join("|");
            let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let ours = |word: &str| word.starts_with("_isles") || ["_bucket", "_tenant", "_shard"].contains(&word);
            assert!(!words.any(ours), "{name}: {text}");
        }
    }
}

#[test]
fn oids_are_unique_stable_and_the_users() {
    let facts = facts();
    let ids = |relation: &str| -> Vec<i64> {
        let user = |row: Vec<Value>| match row[0] {
            Value::Int(oid) if oid >= 16_384 => Some(oid),
            _ => None,
        };
        rows(relation, &facts).expect("rows").into_iter().filter_map(user).collect()
    };
    let classes = ids("pg_catalog.pg_class");
    let all: Vec<i64> = [classes.clone(), ids("pg_catalog.pg_constraint"), ids("pg_catalog.pg_attrdef")].concat();
    assert_eq!(classes.len(), 4 + 8 + 1 + 2, "tables, indexes, view, sequences");
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    assert!(all.iter().all(|oid| *oid <= i64::from(i32::MAX)));
    // An object's number does not depend on what else there is.
    let mut fewer = Schema::default();
    fewer.tables.insert("users".into(), users());
    let fewer = Facts::new(Arc::new(fewer), "shop", "ada");
    let fewer = rows("pg_catalog.pg_class", &fewer).expect("rows");
    assert!(fewer.iter().any(|row| row[0] == class("users")));
}

#[test]
fn tables_indexes_and_constraints_are_as_postgresql_shows_them() {
    let columns = ["relname", "relkind", "relnatts", "relhasindex", "relhastriggers", "reloptions"];
    let users = show("pg_catalog.pg_class", &columns, &[("relname", "users")]);
    assert_eq!(users, ["users|r|4|true|true|{kind=hash,shard_by=id,group=users,buckets=64}"]);
    let columns = ["attname", "attnum", "atttypid", "atttypmod", "attnotnull", "atthasdef", "attstorage"];
    let attributes = show("pg_catalog.pg_attribute", &columns, &[("attrelid", &say(&class("users")))]);
    assert_eq!(
        attributes,
        [
            "id|1|20|-1|true|false|p",
            "email|2|1043|84|true|false|x",
            "name|3|25|-1|false|true|x",
            "balance|4|1700|655366|false|false|m",
        ]
    );
    let email = [("indexrelid", say(&class("users_email")))];
    let email: Vec<(&str, &str)> = email.iter().map(|(c, v)| (*c, v.as_str())).collect();
    // The classes are those of int8 and text, the collation that of text.
    let columns = ["indkey", "indclass", "indcollation", "indisunique", "indisprimary"];
    assert_eq!(show("pg_catalog.pg_index", &columns, &email), ["{1,2}|{3124,3126}|{0,100}|true|false"]);
    let columns = ["conname", "contype", "conkey", "confkey", "confdeltype"];
    let foreign = show("pg_catalog.pg_constraint", &columns, &[("contype", "f")]);
    assert_eq!(foreign, ["orders_user|f|{1}|{1}|c"]);
}

#[test]
fn keys_of_a_tenants_table_do_not_name_the_tenant() {
    assert_eq!(
        said("pg_get_indexdef", &[class("notes_pkey")]),
        "CREATE UNIQUE INDEX notes_pkey ON public.notes USING btree (id)"
    );
    let quoted = "CREATE UNIQUE INDEX \"Notes by id\" ON public.notes USING btree (id)";
    assert_eq!(said("pg_get_indexdef", &[class("\"Notes by id\"")]), quoted);
    let columns = ["column_name", "ordinal_position"];
    assert_eq!(show("information_schema.columns", &columns, &[("table_name", "notes")]), ["id|1"]);
}

#[test]
fn definitions_are_said_as_postgresql_says_them() {
    let pretty = [class("users_email"), Value::Int(0), Value::Bool(true)];
    assert_eq!(said("pg_get_indexdef", &pretty), "CREATE UNIQUE INDEX users_email ON users USING btree (id, email)");
    assert_eq!(said("pg_get_indexdef", &[class("users_email"), Value::Int(2), Value::Bool(true)]), "email");
    assert_eq!(said("pg_get_indexdef", &[Value::Int(99_999)]), "null");
    let constraints = rows("pg_catalog.pg_constraint", &facts()).expect("rows");
    let said: Vec<String> = constraints.iter().map(|row| said("pg_get_constraintdef", &[row[0].clone()])).collect();
    assert!(said.contains(&"FOREIGN KEY (user_id) REFERENCES users(id) ON DELETE CASCADE".to_string()), "{said:?}");
    assert!(said.contains(&"PRIMARY KEY (user_id, id)".to_string()));
    let view = self::said("pg_get_viewdef", &[class("rich")]);
    assert_eq!(view, " SELECT id FROM users WHERE balance > 1000;");
    let serial = [Value::text("orders"), Value::text("id")];
    assert_eq!(self::said("pg_get_serial_sequence", &serial), "public.orders_id_seq");
    let missing = self::said("pg_get_serial_sequence", &[Value::text("orders"), Value::text("nope")]);
    assert_eq!(missing, "column \"nope\" of relation \"orders\" does not exist (42703)");
}

#[test]
fn reg_types_are_read_and_written() {
    let functions = Functions::new(Arc::new(facts()));
    let read = |ty: u32, text: &str| match functions.read(Oid(ty), text).expect("a reg type") {
        Ok(value) => say(&functions.write(Oid(ty), &value).expect("a reg type").expect("written")),
        Err(error) => error.to_string(),
    };
    assert_eq!(read(2205, "Public.USERS"), "users");
    assert_eq!(read(2205, "pg_class"), "pg_class");
    assert_eq!(read(2205, "information_schema.tables"), "information_schema.tables");
    assert_eq!(read(2205, "\"Notes by id\""), "\"Notes by id\"");
    assert_eq!(read(2205, "shop.public.users"), "users");
    assert_eq!(read(2205, "99999"), "99999");
    assert_eq!(read(2205, "nope"), "relation \"nope\" does not exist (42P01)");
    assert_eq!(read(2205, "nope.users"), "schema \"nope\" does not exist (3F000)");
    assert_eq!(read(2205, "a.b.c.d"), "improper relation name (too many dotted names): a.b.c.d (42601)");
    assert_eq!(read(2206, "varchar(3)[]"), "character varying[]");
    assert_eq!(read(24, "nope"), "function \"nope\" does not exist (42883)");
    assert_eq!(read(24, "lower"), "more than one function named \"lower\" (42725)");
    assert_eq!(read(2202, "lower(text)"), "lower(text)");
    assert_eq!(read(4089, "public"), "public");
    assert_eq!(read(4096, "bob"), "bob");
    assert_eq!(read(4096, "eve"), "role \"eve\" does not exist (42704)");
    assert!(functions.read(Oid(25), "text").is_none());
    assert_eq!(said("to_regclass", &[Value::text("nope.t")]), "null");
}

#[test]
fn what_is_asked_of_anything_else_is_answered_as_postgresql_does() {
    assert_eq!(said("pg_table_is_visible", &[class("users")]), "true");
    assert_eq!(said("pg_table_is_visible", &[class("information_schema.tables")]), "false");
    assert_eq!(said("pg_table_is_visible", &[Value::Int(99_999)]), "null");
    assert_eq!(said("pg_get_userbyid", &[Value::Int(10)]), "ada");
    assert_eq!(said("pg_get_userbyid", &[Value::Int(999)]), "unknown (OID=999)");
    assert_eq!(said("has_table_privilege", &[Value::text("users"), Value::text("select")]), "true");
    let unknown = said("has_table_privilege", &[Value::text("users"), Value::text("foo")]);
    assert_eq!(unknown, "unrecognized privilege type: \"foo\" (22023)");
    let nobody = [Value::text("eve"), Value::text("users"), Value::text("select")];
    assert_eq!(said("has_table_privilege", &nobody), "role \"eve\" does not exist (42704)");
    assert_eq!(said("current_setting", &[Value::text("timezone")]), "UTC");
    assert_eq!(
        said("current_setting", &[Value::text("nope")]),
        "unrecognized configuration parameter \"nope\" (42704)"
    );
    assert_eq!(said("pg_get_expr", &[Value::text("now()"), Value::Int(1)]), "now()");
    assert_eq!(said("format_type", &[Value::Int(1043), Value::Null]), "character varying");
    assert_eq!(said("pg_encoding_to_char", &[Value::Int(6)]), "UTF8");
    assert_eq!(said("obj_description", &[Value::Int(2_200), Value::text("pg_namespace")]), "standard public schema");
}

/// Answers of PostgreSQL 15.
#[test]
fn sizes_are_rounded_as_postgresql_rounds_them() {
    let sizes = [
        (0, "0 bytes"),
        (10_239, "10239 bytes"),
        (10_240, "10 kB"),
        (-10_240, "-10 kB"),
        (10_485_247, "10239 kB"),
        (10_485_248, "10 MB"),
        (1 << 40, "1024 GB"),
        (i64::MAX, "8192 PB"),
    ];
    for (bytes, pretty) in sizes {
        assert_eq!(said("pg_size_pretty", &[Value::Int(bytes)]), pretty, "{bytes}");
    }
}

#[test]
fn the_standards_views_agree_with_the_catalogs() {
    let columns =
        ["column_name", "data_type", "character_maximum_length", "numeric_precision", "numeric_scale", "is_nullable"];
    assert_eq!(
        show("information_schema.columns", &columns, &[("table_name", "users"), ("table_schema", "public")]),
        [
            "id|bigint|null|64|0|NO",
            "email|character varying|80|null|null|NO",
            "name|text|null|null|null|YES",
            "balance|numeric|null|10|2|YES",
        ]
    );
    let identity = ["identity_generation", "identity_start", "identity_maximum"];
    let identity = show("information_schema.columns", &identity, &[("table_name", "orders"), ("column_name", "id")]);
    assert_eq!(identity, ["BY DEFAULT|1|9223372036854775807"]);
    let references = ["constraint_name", "unique_constraint_name", "update_rule", "delete_rule"];
    let references = show("information_schema.referential_constraints", &references, &[]);
    assert_eq!(references, ["orders_user|users_pkey|NO ACTION|CASCADE"]);
    // An identity column's sequence is not listed.
    assert_eq!(show("information_schema.sequences", &["sequence_name"], &[]), ["tickets"]);
    let key = show("information_schema.key_column_usage", &["column_name"], &[("constraint_name", "orders_pkey")]);
    assert_eq!(key, ["user_id", "id"]);
}

#[test]
fn settings_are_the_sessions_with_postgresqls_descriptions() {
    let settings = show("pg_catalog.pg_settings", &["name", "setting", "category"], &[]);
    assert_eq!(
        settings,
        ["TimeZone|UTC|Client Connection Defaults / Locale and Formatting", "isles.tenant|acme|Customized Options",]
    );
}

#[test]
fn a_function_of_the_language_is_not_ours() {
    let lower = data::functions().find(|f| f.name == "lower").expect("there").oid;
    assert!(Functions::new(Arc::new(facts())).call(Oid(lower), &[Value::Null]).is_none());
}

#[test]
fn a_table_without_a_primary_key_shows_none() {
    let constraints = show("pg_catalog.pg_constraint", &["conname", "contype"], &[("conrelid", &say(&class("plans")))]);
    assert_eq!(constraints, ["plans_name_key|u", "positive|c"]);
    let columns = ["relnatts", "relchecks", "relhasindex"];
    assert_eq!(show("pg_catalog.pg_class", &columns, &[("relname", "plans")]), ["2|1|true"]);
}

#[test]
fn indexes_over_expressions_are_said_whole() {
    let says =
        "CREATE INDEX plans_some ON public.plans USING btree (lower(name), (price + 1), price DESC) WHERE (price > 0)";
    assert_eq!(said("pg_get_indexdef", &[class("plans_some")]), says);
    let part = |at| said("pg_get_indexdef", &[class("plans_some"), Value::Int(at), Value::Bool(false)]);
    assert_eq!([part(1), part(2), part(3)], ["lower(name)", "(price + 1)", "price"]);
    let columns = ["indkey", "indoption", "indexprs", "indpred"];
    let index = show("pg_catalog.pg_index", &columns, &[("indexrelid", &say(&class("plans_some")))]);
    assert_eq!(index, ["{0,0,2}|{0,0,3}|lower(name), price + 1|price > 0"]);
}

#[test]
fn a_global_index_says_that_it_is_one() {
    let says = "CREATE UNIQUE INDEX users_name ON public.users USING btree (name) WITH (global='true')";
    assert_eq!(said("pg_get_indexdef", &[class("users_name")]), says);
    assert_eq!(show("pg_catalog.pg_class", &["reloptions"], &[("relname", "users_name")]), ["{global=true}"]);
    assert_eq!(show("pg_catalog.pg_class", &["reloptions"], &[("relname", "users_email")]), ["null"]);
    let functions = Functions::new(Arc::new(facts()));
    let named = functions.read(Oid(2205), "_isles_index.\"1\"").expect("a reg type");
    assert_eq!(named.expect_err("hidden").to_string(), "schema \"_isles_index\" does not exist (3F000)");
}

#[test]
fn comments_are_found_by_what_they_are_on() {
    assert_eq!(said("obj_description", &[class("users"), Value::text("pg_class")]), "who");
    assert_eq!(said("col_description", &[class("users"), Value::Int(2)]), "where to");
    assert_eq!(said("col_description", &[class("users"), Value::Int(1)]), "null");
    let users = show("pg_catalog.pg_description", &["objsubid", "description"], &[("objoid", &say(&class("users")))]);
    assert_eq!(users, ["0|who", "2|where to"]);
    assert_eq!(show("pg_catalog.pg_shdescription", &["description"], &[]), ["all of it"]);
}

#[test]
fn a_check_is_in_parentheses() {
    let oid = rows("pg_catalog.pg_constraint", &facts()).expect("rows");
    let check = oid.iter().find(|row| row[1] == Value::text("positive")).expect("there")[0].clone();
    assert_eq!(said("pg_get_constraintdef", std::slice::from_ref(&check)), "CHECK ((price > 0))");
    assert_eq!(said("pg_get_constraintdef", &[check, Value::Bool(true)]), "CHECK (price > 0)");
    let clause = show("information_schema.check_constraints", &["check_clause"], &[("constraint_name", "positive")]);
    assert_eq!(clause, ["((price > 0))"]);
}
