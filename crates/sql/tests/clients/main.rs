//! What clients send to learn what is in a database.
//!
//! The files beside this one are statements that psql, SQLAlchemy, Django and drivers were seen to send, each with its
//! parameters in a comment before it.

use isles_kernel::schema::{Column, Schema, SqlType, Table, TableKind, View};
use isles_kernel::value::DataType;
use isles_sql::bind::utility::DefaultKind;
use isles_sql::bind::{self, BindContext, BoundStatement};
use isles_sql::plan::{self, Form, PlanContext};
use isles_sql::print::Dialect;
use isles_sql::text::Settings;
use isles_sql::types::Oid;
use isles_sql::{builtins, parse, system};
use std::collections::BTreeSet;
use std::sync::Arc;

const FILES: [(&str, &str); 6] = [
    ("asyncpg", include_str!("asyncpg.sql")),
    ("django", include_str!("django.sql")),
    ("others", include_str!("others.sql")),
    ("psql", include_str!("psql.sql")),
    ("psycopg", include_str!("psycopg.sql")),
    ("sqlalchemy", include_str!("sqlalchemy.sql")),
];

/// The statements of a file. Relations that it names by `{name}` are given some number.
fn statements(text: &str) -> Vec<Arc<str>> {
    const RELATIONS: [&str; 7] = ["users", "orders", "plans", "rich", "tickets", "users_email", "plans_id_seq"];
    let number =
        |text: String, (at, name): (usize, &&str)| text.replace(&format!("{{{name}}}"), &(20_000 + at).to_string());
    parse::split(&RELATIONS.iter().enumerate().fold(text.to_string(), number)).expect("statements")
}

#[test]
fn every_statement_is_read() {
    for (name, text) in FILES {
        let statements = statements(text);
        assert!(statements.len() > 5, "{name} has statements");
        for statement in statements {
            if let Err(error) = parse::parse_one(&statement) {
                panic!("{name}: {error}\n{statement}");
            }
        }
    }
}

fn schema() -> Schema {
    let column = |name: &str| Column::new(name, DataType::Int8).not_null();
    let mut schema = Schema::default();
    for (name, columns) in
        [("users", vec!["id", "email", "balance"]), ("orders", vec!["id", "user_id"]), ("plans", vec!["id"])]
    {
        let columns = columns.into_iter().map(column).collect();
        schema.tables.insert(name.into(), Table::new(name, TableKind::Global, columns, &["id"]));
    }
    let columns = vec![("id".to_string(), SqlType { oid: 20, modifier: -1 })];
    schema
        .views
        .insert("rich".into(), View { name: "rich".into(), sql: "SELECT id FROM users".into(), columns, path: None });
    schema
}

/// Binds, plans and prints a statement; or says where it ended.
fn follow(statement: &str) -> Result<(), String> {
    let search_path = ["public".to_string()];
    let context = BindContext {
        schema: &schema(),
        search_path: &search_path,
        database: "shop",
        settings: &Settings::default(),
        default_kind: DefaultKind::Hash,
        default_buckets: 64,
        procedures: &isles_sql::bind::procedure::NO_PROCEDURES,
    };
    let parsed = parse::parse_one(statement).map_err(|error| format!("parse: {error}"))?;
    let bound = bind::bind(&parsed, &context, &[] as &[Oid]).map_err(|error| format!("bind: {error}"))?;
    let BoundStatement::Rows(statement) = bound.statement else { return Ok(()) };
    let plan = plan::plan(*statement, &PlanContext::default()).map_err(|error| format!("plan: {error}"))?;
    for fragment in plan.fragments() {
        fragment.printed(Dialect::Sqlite, Form::Whole).map_err(|error| format!("print: {error}"))?;
    }
    Ok(())
}

/// What is refused, as the error begins. The list only shrinks.
const REFUSED: &[&str] = &["bind: function information_schema._pg_expandarray()", "print: values of type int4range"];

#[test]
fn what_clients_ask_is_bound_planned_and_printed_but_for_what_is_listed() {
    let (mut unlisted, mut met) = (Vec::new(), BTreeSet::new());
    for (name, text) in FILES {
        for statement in statements(text) {
            let Err(error) = follow(&statement) else { continue };
            match REFUSED.iter().find(|refused| error.starts_with(**refused)) {
                Some(refused) => drop(met.insert(*refused)),
                None => unlisted.push(format!("{name}: {error}\n{statement}")),
            }
        }
    }
    assert!(unlisted.is_empty(), "{}", unlisted.join("\n\n"));
    let gone: Vec<_> = REFUSED.iter().filter(|refused| !met.contains(**refused)).collect();
    assert!(gone.is_empty(), "what is not refused any more goes from the list: {gone:?}");
}

#[test]
fn every_system_relation_that_is_asked_for_is_defined() {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.');
    let mut asked = BTreeSet::new();
    for (_, text) in FILES {
        for before in ["FROM ", "JOIN ", "from ", "join "] {
            let names = text.match_indices(before).map(|(at, _)| text[at + before.len()..].split(word).next());
            let system = |name: &&str| name.starts_with("pg_") || name.starts_with("information_schema.");
            asked.extend(names.flatten().filter(system).map(str::to_string));
        }
    }
    assert!(asked.len() > 40, "{asked:?}");
    for name in &asked {
        let (schema, relation) = name.split_once('.').unwrap_or(("pg_catalog", name));
        // A function can stand there, too.
        let is_function = !builtins::functions_named(relation).is_empty();
        assert!(is_function || system::relation(schema, relation).is_some(), "{name}");
    }
}
