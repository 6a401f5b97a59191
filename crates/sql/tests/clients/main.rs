//! What clients send to learn what is in a database.
//!
//! The files beside this one are statements that psql, SQLAlchemy, Django and drivers were seen to send, each with its
//! parameters in a comment before it.

use isles_kernel::schema::Schema;
use isles_sql::bind::utility::DefaultKind;
use isles_sql::bind::{self, BindContext, BoundStatement};
use isles_sql::plan::{self, PlanContext};
use isles_sql::print::Dialect;
use isles_sql::types::Oid;
use isles_sql::{parse, system};
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
            let parsed = parse::parse_one(&statement);
            assert!(parsed.is_ok(), "{name}: {}\n{statement}", parsed.err().expect("an error"));
        }
    }
}

/// What becomes of a statement: its error, and how far it came.
fn follow(statement: &str) -> Result<(), String> {
    let search_path = ["public".to_string()];
    let context = BindContext {
        schema: &Schema::default(),
        search_path: &search_path,
        database: "shop",
        settings: &isles_sql::text::Settings::default(),
        default_kind: DefaultKind::Hash,
        default_buckets: 64,
    };
    let parsed = parse::parse_one(statement).map_err(|error| format!("parse: {error}"))?;
    let bound = bind::bind(&parsed, &context, &[] as &[Oid]).map_err(|error| format!("bind: {error}"))?;
    let BoundStatement::Rows(statement) = bound.statement else { return Ok(()) };
    let plan = plan::plan(*statement, &PlanContext::default()).map_err(|error| format!("plan: {error}"))?;
    for fragment in plan.fragments() {
        fragment.printed(Dialect::Sqlite).map_err(|error| format!("print: {error}"))?;
    }
    Ok(())
}

#[test]
fn zz_report() {
    let mut count = std::collections::BTreeMap::<String, Vec<String>>::new();
    let mut total = 0;
    for (name, text) in FILES {
        for statement in statements(text) {
            total += 1;
            if let Err(error) = follow(&statement) {
                count
                    .entry(error)
                    .or_default()
                    .push(format!("{name}: {}", statement.chars().take(3000).collect::<String>()));
            }
        }
    }
    let mut all: Vec<_> = count.into_iter().collect();
    all.sort_by_key(|(_, v)| usize::MAX - v.len());
    println!("total {total} failed {}", all.iter().map(|(_, v)| v.len()).sum::<usize>());
    for (error, v) in &all {
        println!("{:4} {error}", v.len());
    }
    println!("=====");
    for (error, v) in &all {
        println!("#### {error}\n{}\n", v[0]);
    }
}

#[test]
fn every_system_relation_that_is_asked_for_is_defined() {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.');
    let mut asked = BTreeSet::new();
    for (_, text) in FILES {
        for before in ["FROM ", "JOIN ", "from ", "join "] {
            let names = text.match_indices(before).map(|(at, _)| text[at + before.len()..].split(word).next());
            let system = |name: &&str| {
                name.starts_with("pg_") && !name.contains("pg_get_") || name.starts_with("information_schema.")
            };
            asked.extend(names.flatten().filter(system).map(str::to_string));
        }
    }
    assert!(asked.len() > 40, "{asked:?}");
    for name in asked.iter().filter(|name| !FUNCTIONS.contains(&name.as_str())) {
        let (schema, relation) = name.split_once('.').unwrap_or(("pg_catalog", name));
        assert!(system::relation(schema, relation).is_some(), "{name}");
    }
}

/// What is asked for as a relation and is a function.
const FUNCTIONS: [&str; 3] =
    ["pg_catalog.generate_series", "pg_catalog.pg_get_keywords", "pg_catalog.pg_options_to_table"];
