//! Statements and what is printed of them.
//!
//! `golden.txt` has them: a statement (`>`), SQLite's text, PostgreSQL's text, and parameters other than the client's.
//! `UPDATE_GOLDEN=1 cargo test -p isles-sql print` writes it anew.

use super::*;
use crate::bind::{BindContext, BoundStatement, bind, utility::DefaultKind};
use crate::parse::parse_one;
use crate::tree::Statement;
use isles_kernel::names::GroupName;
use isles_kernel::schema::{Column, Key, Schema, SqlType, Table, TableKind};
use std::fmt::Write;

fn table(name: &str, kind: TableKind, columns: Vec<Column>) -> Table {
    let unique = Key { name: format!("{name}_b_key"), columns: vec!["b".into()], unique: true };
    let primary_key = vec!["a".into()];
    Table { name: name.into(), kind, columns, primary_key, keys: vec![unique], foreign_keys: Vec::new() }
}

fn schema() -> Schema {
    let columns = || {
        let array = SqlType { oid: types::INT4_ARRAY.0, modifier: -1 };
        vec![
            Column::new("a", DataType::Int4).not_null(),
            Column::new("b", DataType::Text),
            Column::new("n", DataType::Numeric),
            Column::new("f", DataType::Float8),
            Column::new("ok", DataType::Bool),
            Column::new("at", DataType::TimestampTz),
            Column { sql_type: Some(array), ..Column::new("xs", DataType::Array(isles_kernel::value::Element::Int4)) },
        ]
    };
    let group = GroupName::new("t").expect("a name");
    let hash = TableKind::Hash { group, shard_by: vec!["a".into()], buckets: 8 };
    let tables = [
        table("t", hash, columns()),
        table("u", TableKind::Tenant, columns()),
        table("r", TableKind::Reference, columns()),
    ];
    Schema { tables: tables.into_iter().map(|table| (table.name.clone(), table)).collect(), ..Schema::default() }
}

fn fragment(sql: &str, schema: &Schema) -> Result<Fragment> {
    let search_path = vec!["public".to_string()];
    let context = BindContext {
        schema,
        search_path: &search_path,
        database: "isles",
        settings: &crate::text::Settings::default(),
        default_kind: DefaultKind::Hash,
        default_buckets: 8,
    };
    let bound = bind(&parse_one(sql)?, &context, &[])?;
    let BoundStatement::Rows(statement) = bound.statement else { panic!("{sql} is not about rows") };
    let fields = match &*statement {
        Statement::Query(query) => query.columns.clone(),
        Statement::Insert(insert) => insert.returning.as_ref().map_or(vec![], |returning| returning.columns.clone()),
        Statement::Update(update) => update.returning.as_ref().map_or(vec![], |returning| returning.columns.clone()),
        Statement::Delete(delete) => delete.returning.as_ref().map_or(vec![], |returning| returning.columns.clone()),
    };
    Ok(Fragment::new(*statement, fields))
}

fn shown(sql: &str, schema: &Schema) -> String {
    let mut out = format!("> {sql}\n");
    let fragment = fragment(sql, schema).unwrap_or_else(|error| panic!("{sql}: {error}"));
    for engine in [Dialect::Sqlite, Dialect::Postgres] {
        match fragment.printed(engine) {
            Ok(printed) => {
                let _ = writeln!(out, "{}", printed.sql);
                let own = |source: &&ParamSource| !matches!(source, ParamSource::Param(..));
                for source in printed.params.iter().filter(own) {
                    let _ = writeln!(out, "    {source:?}");
                }
            }
            Err(error) => {
                let _ = writeln!(out, "! {error}");
            }
        }
    }
    out
}

#[test]
fn statements_are_printed_as_they_were() {
    let golden = include_str!("golden.txt");
    let schema = schema();
    let statements = golden.lines().filter_map(|line| line.strip_prefix("> "));
    let printed = statements.map(|sql| shown(sql, &schema)).collect::<Vec<_>>().join("\n");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/print/golden.txt");
        std::fs::write(path, printed).expect("the file can be written");
        return;
    }
    for (expected, found) in golden.split("\n> ").zip(printed.split("\n> ")) {
        assert_eq!(expected.trim(), found.trim());
    }
}

/// A text that is printed twice would be a statement that is prepared twice.
#[test]
fn a_fragment_is_printed_once() {
    let fragment = fragment("SELECT a FROM t WHERE a = $1", &schema()).expect("bound");
    let (first, second) = (fragment.printed(Dialect::Sqlite), fragment.printed(Dialect::Sqlite));
    assert!(Arc::ptr_eq(&first.expect("printed"), &second.expect("printed")));
}
