//! Plans as text: each file of `plans/` has tables, and statements with the plans that they must have.
//!
//!     table users hash users(id) pk id: id int8, name text
//!
//!     > SELECT name FROM users WHERE id = 1
//!     Shards: 1 of users, key 1
//!       SQL: SELECT r0.name FROM users r0 WHERE (r0.id = 1)
//!
//! `UPDATE_PLANS=1 cargo test -p isles-sql --test plans` writes the plans as they are now; the diff says what changed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "plans/sketch.rs"]
mod sketch;

use isles_kernel::error::SqlError;
use isles_kernel::names::GroupName;
use isles_kernel::schema::{Column, HIDDEN_KEY_COLUMN, Key, Schema, Sequence, Table, TableKind};
use isles_kernel::value::DataType;
use isles_sql::bind::utility::DefaultKind;
use isles_sql::bind::{BindContext, BoundStatement, bind};
use isles_sql::explain::{Detail, Run, text};
use isles_sql::parse;
use isles_sql::plan::{Fragment, Plan, PlanContext, plan};
use isles_sql::text::Settings;
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

/// `table NAME KIND pk COLUMNS[ unique COLUMNS]: COLUMN TYPE[!], …`
fn table(line: &str) -> Table {
    let (head, columns) = line.split_once(": ").expect("columns after a colon");
    let mut words = head.split(' ');
    assert_eq!(words.next(), Some("table"));
    let name = words.next().expect("a name").to_string();
    let kind = kind(words.next().expect("a kind"), &mut words);
    let mut keys = Vec::new();
    let mut primary_key = Vec::new();
    while let Some(word) = words.next() {
        let names: Vec<String> = words.next().expect("columns of a key").split(',').map(String::from).collect();
        match word {
            "pk" => primary_key = names,
            _ => {
                let name = format!("{name}_{}", names.join("_"));
                keys.push(Key { name, columns: names, unique: true, constraint: true, ..Key::default() });
            }
        }
    }
    let columns = columns.split(", ").map(|column| self::column(column, &primary_key)).collect();
    let mut table = Table::new(&name, kind, columns, &[]);
    table.primary_key = primary_key;
    table.keys = keys;
    if table.primary_key.is_empty() {
        table.hidden_key = true;
        table.columns.push(Column::hidden_key());
        table.primary_key.push(HIDDEN_KEY_COLUMN.into());
    }
    table
}

fn sequence(name: &str) -> Sequence {
    let (start, increment, min, max) = (1, 1, 1, i64::MAX);
    Sequence { name: name.into(), start, increment, min, max, cycle: false, ty: DataType::Int8, owner: None }
}

fn kind<'a>(word: &str, words: &mut impl Iterator<Item = &'a str>) -> TableKind {
    match word {
        "hash" => {
            let (group, by) = words.next().expect("a group").trim_end_matches(')').split_once('(').expect("columns");
            let shard_by = by.split(',').map(String::from).collect();
            TableKind::Hash { group: GroupName::new(group).expect("a group"), shard_by, buckets: 16 }
        }
        "tenant" => TableKind::Tenant,
        "reference" => TableKind::Reference,
        "global" => TableKind::Global,
        other => panic!("kind {other}"),
    }
}

fn column(text: &str, primary_key: &[String]) -> Column {
    let (name, ty) = text.trim().split_once(' ').expect("a type");
    let ty = match ty {
        "bool" => DataType::Bool,
        "int2" => DataType::Int2,
        "int4" => DataType::Int4,
        "int8" => DataType::Int8,
        "float4" => DataType::Float4,
        "float8" => DataType::Float8,
        "numeric" => DataType::Numeric,
        "text" => DataType::Text,
        "date" => DataType::Date,
        "timestamptz" => DataType::TimestampTz,
        "uuid" => DataType::Uuid,
        other => panic!("type {other}"),
    };
    let column = Column::new(name, ty);
    if primary_key.iter().any(|key| key == name) { column.not_null() } else { column }
}

fn planned(schema: &Schema, sql: &str) -> Result<Plan, SqlError> {
    let parsed = parse::parse_one(sql)?;
    let path = ["public".to_string()];
    let settings = Settings::default();
    let context = BindContext {
        schema,
        search_path: &path,
        database: "test",
        settings: &settings,
        default_kind: DefaultKind::Hash,
        default_buckets: 16,
    };
    match bind(&parsed, &context, &[])?.statement {
        BoundStatement::Rows(statement) => plan(*statement, &PlanContext::default()),
        _ => panic!("not about rows: {sql}"),
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

/// The file with each statement's plan as it is now.
fn replayed(file: &str) -> (String, usize) {
    let mut schema = Schema::default();
    let (mut out, mut cases) = (String::new(), 0);
    for block in file.split("\n\n").map(str::trim).filter(|block| !block.is_empty()) {
        let kept: Vec<&str> = block
            .lines()
            .take_while(|line| ["table ", "sequence ", "> ", "# "].iter().any(|start| line.starts_with(start)))
            .collect();
        for line in kept.iter().filter(|line| line.starts_with("table ")) {
            let table = table(line);
            schema.tables.insert(table.name.clone(), table);
        }
        for name in kept.iter().filter_map(|line| line.strip_prefix("sequence ")) {
            schema.sequences.insert(name.into(), sequence(name));
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
