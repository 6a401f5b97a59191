//! Statements and what is printed of them.
//!
//! `golden.txt` has them: a statement (`>`), SQLite's text, PostgreSQL's text, and parameters other than the client's.
//! `UPDATE_GOLDEN=1 cargo test -p isles-sql --test print` writes it anew.

use isles_kernel::error::SqlError;
use isles_kernel::names::GroupName;
use isles_kernel::schema::{Column, Schema, SqlType, Table, TableKind};
use isles_kernel::value::{DataType, Element};
use isles_sql::bind::{BindContext, BoundStatement, bind, utility::DefaultKind};
use isles_sql::parse::parse_one;
use isles_sql::plan::{Fragment, ParamSource};
use isles_sql::print::Dialect;
use isles_sql::text::Settings;
use isles_sql::tree::{Returning, Statement};
use isles_sql::types;
use std::fmt::Write;
use std::sync::Arc;

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
            Column { sql_type: Some(array), ..Column::new("xs", DataType::Array(Element::Int4)) },
        ]
    };
    let group = GroupName::new("t").expect("a name");
    let hash = TableKind::Hash { group, shard_by: vec!["a".into()], buckets: 8 };
    let tables = [("t", hash), ("u", TableKind::Tenant), ("r", TableKind::Reference)];
    Schema {
        tables: tables
            .map(|(name, kind)| (name.into(), Table::new(name, kind, columns(), &["a"])))
            .into_iter()
            .collect(),
        ..Schema::default()
    }
}

fn fragment(sql: &str, schema: &Schema) -> Result<Fragment, SqlError> {
    let (search_path, settings) = (vec!["public".to_string()], Settings::default());
    let context = BindContext {
        schema,
        search_path: &search_path,
        database: "isles",
        settings: &settings,
        default_kind: DefaultKind::Hash,
        default_buckets: 8,
    };
    let bound = bind(&parse_one(sql)?, &context, &[])?;
    let BoundStatement::Rows(statement) = bound.statement else { panic!("{sql} is not about rows") };
    let columns = |returning: &Option<Returning>| returning.as_ref().map_or(vec![], |found| found.columns.clone());
    let fields = match &*statement {
        Statement::Query(query) => query.columns.clone(),
        Statement::Insert(insert) => columns(&insert.returning),
        Statement::Update(update) => columns(&update.returning),
        Statement::Delete(delete) => columns(&delete.returning),
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
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/print/golden.txt");
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
