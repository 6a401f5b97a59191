//! Plans as text: each file of `plans/` has tables, and statements with the plans that they must have.
//!
//!     table users hash users(id) pk id: id int8, name text
//!     ddl CREATE INDEX users_name ON users (name) WITH (global)
//!
//!     > SELECT name FROM users WHERE id = 1
//!     Shards: 1 of users, key 1
//!       SQL: SELECT r0.name FROM users r0 WHERE (r0.id = 1)
//!
//! `UPDATE_PLANS=1 cargo test -p isles-sql --test plans` writes the plans as they are now; the diff says what changed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "plans/given.rs"]
mod given;
#[path = "plans/sketch.rs"]
mod sketch;

use given::{bound, planned, sequence, table};
use isles_kernel::error::SqlError;
use isles_kernel::schema::Schema;
use isles_sql::bind::BoundStatement;
use isles_sql::bind::utility::Utility;
use isles_sql::explain::{Detail, Run, text};
use isles_sql::plan::Fragment;
use std::fmt::Write;
use std::path::Path;

struct Sketched;

impl Detail for Sketched {
    fn texts(&self, fragment: &Fragment) -> Result<Vec<(String, String)>, SqlError> {
        Ok(vec![(String::new(), sketch::statement(&fragment.statement))])
    }

    fn runs(&self, _: &Fragment) -> Vec<Run> {
        Vec::new()
    }
}

fn shown(schema: &Schema, sql: &str) -> String {
    let lines = planned(schema, sql).and_then(|plan| text(&plan, &Sketched));
    match lines {
        Ok(lines) => lines.join("\n"),
        Err(error) => {
            let hint = error.hint.as_ref().map_or(String::new(), |hint| format!("\nHint: {hint}"));
            format!("Error {}: {}{hint}", error.sqlstate, error.message)
        }
    }
}

fn changed(schema: &Schema, sql: &str) -> Schema {
    match bound(schema, sql).unwrap_or_else(|error| panic!("{sql}: {error}")) {
        BoundStatement::Other(utility) => match *utility {
            Utility::Ddl(change) => schema.apply(&change.changes).unwrap_or_else(|error| panic!("{sql}: {error}")),
            other => panic!("{sql}: {other:?}"),
        },
        other => panic!("{sql}: {other:?}"),
    }
}

/// The file with each statement's plan as it is now.
fn replayed(file: &str) -> (String, usize) {
    let mut schema = Schema::default();
    let (mut out, mut cases) = (String::new(), 0);
    for block in file.split("\n\n").map(str::trim).filter(|block| !block.is_empty()) {
        let kept: Vec<&str> = block
            .lines()
            .take_while(|line| ["table ", "sequence ", "ddl ", "> ", "# "].iter().any(|start| line.starts_with(start)))
            .collect();
        for line in kept.iter().filter(|line| line.starts_with("table ")) {
            let table = table(line);
            schema.tables.insert(table.name.clone(), table);
        }
        for name in kept.iter().filter_map(|line| line.strip_prefix("sequence ")) {
            schema.sequences.insert(name.into(), sequence(name));
        }
        for sql in kept.iter().filter_map(|line| line.strip_prefix("ddl ")) {
            schema = changed(&schema, sql);
        }
        writeln!(out, "{}", kept.join("\n")).expect("a string");
        let sql: Vec<&str> = kept.iter().filter_map(|line| line.strip_prefix("> ")).collect();
        if !sql.is_empty() {
            cases += 1;
            writeln!(out, "{}", shown(&schema, &sql.join("\n"))).expect("a string");
        }
        out.push('\n');
    }
    (out.trim_end().to_string() + "\n", cases)
}

#[test]
fn statements_have_the_plans_that_are_written_down() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plans");
    let mut files: Vec<_> = std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "txt"));
    files.sort();
    let mut total = 0;
    for path in files {
        let written = std::fs::read_to_string(&path).expect("a file");
        let (now, cases) = replayed(&written);
        total += cases;
        if std::env::var_os("UPDATE_PLANS").is_some() {
            std::fs::write(&path, now).expect("a file");
        } else if now != written {
            let differs = now.lines().zip(written.lines()).find(|(now, written)| now != written);
            panic!("{} has other plans now, first: {differs:#?}", path.display());
        }
    }
    assert!(total >= 150, "only {total} plans are written down");
}
