//! COPY: what is copied.

use super::super::ddl::{
    self,
    text::{expression_text, identifier, statement_text},
};
use super::{Context, CopySource, CopyStatement};
use crate::copy::{CopyArgument, CopyColumns, CopyDirection, CopyOptions};
use isles_kernel::error::SqlError;
use pg_raw_parse::Node;
use pg_raw_parse::nodes::{self, DefElem};

type Result<T> = std::result::Result<T, SqlError>;

pub(super) fn bind(statement: &nodes::CopyStmt, context: &Context<'_>) -> Result<CopyStatement> {
    if statement.filename().is_some() || statement.is_program {
        let error = SqlError::unsupported("COPY to or from a file or program of the server is not supported");
        return Err(error.with_hint("use COPY … TO STDOUT or FROM STDIN; psql's \\copy command does"));
    }
    let direction = if statement.is_from { CopyDirection::In } else { CopyDirection::Out };
    let options = options(statement, direction)?;
    let source = match statement.relation() {
        Some(relation) => table(statement, relation, direction, context)?,
        None => CopySource::Query(statement_text(statement.query())?),
    };
    check_columns(&source, &options)?;
    Ok(CopyStatement { direction, source, options })
}

fn table(
    statement: &nodes::CopyStmt,
    relation: &nodes::RangeVar,
    direction: CopyDirection,
    context: &Context<'_>,
) -> Result<CopySource> {
    let name = relation.relname().unwrap_or_default();
    let given: Vec<&str> = statement.attlist().iter().filter_map(Node::as_str).collect();
    let found = ddl::find(context.schema, context.search_path, (relation.schemaname(), name));
    let Some(table) = found.as_ref().and_then(|found| context.schema.tables.get(found)) else {
        return other_relation(relation, &given, direction, context);
    };
    let filter = match statement.where_clause() {
        Node::None => None,
        filter => Some(expression_text(filter)?),
    };
    let visible: Vec<String> = table.visible_columns().iter().map(|column| column.name.clone()).collect();
    for (at, column) in given.iter().enumerate() {
        if !visible.iter().any(|name| name == column) {
            return Err(SqlError::new("42703", format!("column \"{column}\" of relation \"{name}\" does not exist")));
        }
        if given[..at].contains(column) {
            return Err(SqlError::new("42701", format!("column \"{column}\" specified more than once")));
        }
    }
    let columns = if given.is_empty() { visible } else { given.iter().map(|name| (*name).into()).collect() };
    Ok(CopySource::Table { table: table.name.clone(), columns, filter })
}

/// A view cannot be copied, and a table of the catalogs is read by a query.
fn other_relation(
    relation: &nodes::RangeVar,
    columns: &[&str],
    direction: CopyDirection,
    context: &Context<'_>,
) -> Result<CopySource> {
    let name = relation.relname().unwrap_or_default();
    let system = match relation.schemaname() {
        Some(schema) => schema == "pg_catalog" || schema == "information_schema",
        None => name.starts_with("pg_"),
    };
    let found = ddl::find(context.schema, context.search_path, (relation.schemaname(), name));
    let view = found.is_some_and(|found| context.schema.views.contains_key(&found));
    match direction {
        _ if view => {
            let (way, error) = match direction {
                CopyDirection::Out => ("from", "Try the COPY (SELECT ...) TO variant."),
                CopyDirection::In => ("to", "insert into the tables that the view reads"),
            };
            Err(SqlError::new("42809", format!("cannot copy {way} view \"{name}\"")).with_hint(error))
        }
        CopyDirection::Out if system => {
            let schema = relation.schemaname().unwrap_or("pg_catalog");
            let columns: Vec<String> = columns.iter().map(|column| identifier(column)).collect();
            let columns = if columns.is_empty() { "*".into() } else { columns.join(", ") };
            Ok(CopySource::Query(format!("SELECT {columns} FROM {}.{}", identifier(schema), identifier(name))))
        }
        _ => Err(SqlError::new("42P01", format!("relation \"{name}\" does not exist"))),
    }
}

fn options(statement: &nodes::CopyStmt, direction: CopyDirection) -> Result<CopyOptions> {
    let given: Vec<(String, CopyArgument)> = statement
        .options()
        .iter()
        .map(|option| (option.defname().unwrap_or_default().to_string(), argument(option)))
        .collect();
    CopyOptions::parse(direction, &given)
}

/// An option's argument; a word alone has none.
fn argument(option: &DefElem) -> CopyArgument {
    let text = |text: Option<&str>| text.map_or(CopyArgument::None, |text| CopyArgument::Text(text.into()));
    match option.arg() {
        Node::String(value) => text(value.sval()),
        Node::Integer(n) => CopyArgument::Text(n.ival.to_string()),
        Node::Boolean(value) => CopyArgument::Text(value.boolval.to_string()),
        Node::Float(value) => text(value.fval()),
        Node::A_Star(_) => CopyArgument::Star,
        Node::NodeList(list) => CopyArgument::Names(list.iter().filter_map(Node::as_str).map(Into::into).collect()),
        _ => CopyArgument::None,
    }
}

/// Columns that options name must be among those copied.
fn check_columns(source: &CopySource, options: &CopyOptions) -> Result<()> {
    let CopySource::Table { columns, .. } = source else { return Ok(()) };
    let lists = [
        (&options.force_quote, "FORCE_QUOTE"),
        (&options.force_not_null, "FORCE_NOT_NULL"),
        (&options.force_null, "FORCE_NULL"),
    ];
    for (list, option) in lists {
        let CopyColumns::Named(named) = list else { continue };
        if let Some(missing) = named.iter().find(|name| !columns.contains(name)) {
            return Err(SqlError::new("42P10", format!("{option} column \"{missing}\" not referenced by COPY")));
        }
    }
    Ok(())
}
