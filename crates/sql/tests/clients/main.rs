//! What clients send to learn what is in a database.
//!
//! The files beside this one are statements that psql, SQLAlchemy, Django and drivers were seen to send, each with its
//! parameters in a comment before it.

use isles_sql::{parse, system};
use std::collections::BTreeSet;

const FILES: [(&str, &str); 6] = [
    ("asyncpg", include_str!("asyncpg.sql")),
    ("django", include_str!("django.sql")),
    ("others", include_str!("others.sql")),
    ("psql", include_str!("psql.sql")),
    ("psycopg", include_str!("psycopg.sql")),
    ("sqlalchemy", include_str!("sqlalchemy.sql")),
];

#[test]
fn every_statement_is_read() {
    for (name, text) in FILES {
        let statements = parse::split(text).expect(name);
        assert!(statements.len() > 5, "{name} has statements");
        for statement in statements {
            let parsed = parse::parse_one(&statement);
            assert!(parsed.is_ok(), "{name}: {}\n{statement}", parsed.err().expect("an error"));
        }
    }
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
    for name in asked.iter().filter(|name| !FUNCTIONS.contains(&name.as_str())) {
        let (schema, relation) = name.split_once('.').unwrap_or(("pg_catalog", name));
        assert!(system::relation(schema, relation).is_some(), "{name}");
    }
}

/// What is asked for as a relation and is a function.
const FUNCTIONS: [&str; 3] =
    ["pg_catalog.generate_series", "pg_catalog.pg_get_keywords", "pg_catalog.pg_options_to_table"];
