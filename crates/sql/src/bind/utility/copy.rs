//! COPY: what is copied, and the options with PostgreSQL's defaults and checks.

use super::super::ddl::text::{expression_text, identifier, statement_text};
use super::{Context, CopyDirection, CopyFormat, CopyHeader, CopyOptions, CopySource, CopyStatement, ForceColumns};
use isles_kernel::error::SqlError;
use pg_raw_parse::nodes::{self, DefElem};
use pg_raw_parse::{ConstValue, Node};

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
    let own = relation.schemaname().is_none_or(|schema| schema == "public");
    let Some(table) = context.schema.tables.get(name).filter(|_| own) else {
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
    Ok(CopySource::Table { table: name.into(), columns, filter })
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
    match direction {
        _ if context.schema.views.contains_key(name) => {
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

/// Options as they were given.
#[derive(Default)]
struct Given {
    format: Option<CopyFormat>,
    delimiter: Option<String>,
    null: Option<String>,
    header: Option<CopyHeader>,
    quote: Option<String>,
    escape: Option<String>,
    force_quote: Option<ForceColumns>,
    force_not_null: Option<ForceColumns>,
    force_null: Option<ForceColumns>,
}

fn options(statement: &nodes::CopyStmt, direction: CopyDirection) -> Result<CopyOptions> {
    let mut given = Given::default();
    let mut seen: Vec<&str> = Vec::new();
    for option in statement.options() {
        let name = option.defname().unwrap_or_default();
        if seen.contains(&name) {
            return Err(SqlError::new("42601", "conflicting or redundant options"));
        }
        seen.push(name);
        take(&mut given, name, option)?;
    }
    complete(given, direction)
}

fn take(given: &mut Given, name: &str, option: &DefElem) -> Result<()> {
    match name {
        "format" => given.format = Some(format(&value(option)?)?),
        "delimiter" => given.delimiter = Some(value(option)?),
        "null" => given.null = Some(value(option)?),
        "header" => given.header = Some(header(option)?),
        "quote" => given.quote = Some(value(option)?),
        "escape" => given.escape = Some(value(option)?),
        "force_quote" => given.force_quote = Some(columns(option)?),
        "force_not_null" => given.force_not_null = Some(columns(option)?),
        "force_null" => given.force_null = Some(columns(option)?),
        "encoding" => check_encoding(&value(option)?)?,
        // It lets PostgreSQL skip work on a table made in the same transaction; the rows are the same.
        "freeze" => {}
        other => return Err(SqlError::new("42601", format!("option \"{other}\" not recognized"))),
    }
    Ok(())
}

fn check_encoding(name: &str) -> Result<()> {
    match name.to_ascii_lowercase().replace(['-', '_'], "").as_str() {
        "utf8" | "unicode" => Ok(()),
        _ => Err(SqlError::unsupported(format!("encoding \"{name}\" is not supported")).with_hint("use UTF8")),
    }
}

/// The text of an option's argument; a word alone is a boolean.
fn value(option: &DefElem) -> Result<String> {
    let text = match option.arg() {
        Node::String(text) => text.sval().map(Into::into),
        Node::Integer(n) => Some(n.ival.to_string()),
        Node::Boolean(value) => Some(value.boolval.to_string()),
        Node::A_Const(constant) => match constant.val() {
            Some(ConstValue::String(text)) => Some(text.to_string()),
            _ => None,
        },
        _ => None,
    };
    text.ok_or_else(|| {
        let name = option.defname().unwrap_or_default();
        SqlError::new("42601", format!("{name} requires a parameter"))
    })
}

fn format(name: &str) -> Result<CopyFormat> {
    match name {
        "text" => Ok(CopyFormat::Text),
        "csv" => Ok(CopyFormat::Csv),
        "binary" => Ok(CopyFormat::Binary),
        other => Err(SqlError::new("22023", format!("COPY format \"{other}\" not recognized"))),
    }
}

fn header(option: &DefElem) -> Result<CopyHeader> {
    if matches!(option.arg(), Node::None) {
        return Ok(CopyHeader::Yes);
    }
    match value(option)?.to_ascii_lowercase().as_str() {
        "true" | "on" | "1" | "yes" => Ok(CopyHeader::Yes),
        "false" | "off" | "0" | "no" => Ok(CopyHeader::No),
        "match" => Ok(CopyHeader::Match),
        _ => Err(SqlError::new("42601", "header requires a Boolean value or \"match\"")),
    }
}

fn columns(option: &DefElem) -> Result<ForceColumns> {
    match option.arg() {
        Node::A_Star(_) => Ok(ForceColumns::All),
        Node::NodeList(list) => Ok(ForceColumns::Some(list.iter().filter_map(Node::as_str).map(Into::into).collect())),
        _ => {
            let name = option.defname().unwrap_or_default();
            Err(SqlError::new("22023", format!("argument to option \"{name}\" must be a list of column names")))
        }
    }
}

fn complete(given: Given, direction: CopyDirection) -> Result<CopyOptions> {
    let format = given.format.unwrap_or_default();
    let (csv, binary) = (format == CopyFormat::Csv, format == CopyFormat::Binary);
    let syntax = |what: &str| Err(SqlError::new("42601", format!("cannot specify {what} in BINARY mode")));
    if binary && given.delimiter.is_some() {
        return syntax("DELIMITER");
    }
    if binary && given.null.is_some() {
        return syntax("NULL");
    }
    if binary && given.header.is_some_and(|header| header != CopyHeader::No) {
        return Err(SqlError::unsupported("cannot specify HEADER in BINARY mode"));
    }
    let only_csv = |name: &str| SqlError::unsupported(format!("COPY {name} available only in CSV mode"));
    let quote = one_byte(given.quote.as_deref(), "quote")?;
    let escape = one_byte(given.escape.as_deref(), "escape")?;
    if !csv {
        let named = [
            (given.quote.is_some(), "quote"),
            (given.escape.is_some(), "escape"),
            (given.force_quote.is_some(), "force quote"),
            (given.force_not_null.is_some(), "force not null"),
            (given.force_null.is_some(), "force null"),
        ];
        if let Some((_, name)) = named.iter().find(|(there, _)| *there) {
            return Err(only_csv(name));
        }
    }
    check_direction(&given, direction)?;
    let quote = quote.unwrap_or(b'"');
    let options = CopyOptions {
        format,
        delimiter: one_byte(given.delimiter.as_deref(), "delimiter")?.unwrap_or(if csv { b',' } else { b'\t' }),
        null: given.null.unwrap_or_else(|| if csv { String::new() } else { "\\N".into() }),
        header: given.header.unwrap_or_default(),
        quote,
        escape: escape.unwrap_or(quote),
        force_quote: given.force_quote.unwrap_or_default(),
        force_not_null: given.force_not_null.unwrap_or_default(),
        force_null: given.force_null.unwrap_or_default(),
    };
    check_characters(&options)?;
    Ok(options)
}

fn check_direction(given: &Given, direction: CopyDirection) -> Result<()> {
    let refuse = |message: &str| Err(SqlError::unsupported(message));
    match direction {
        CopyDirection::In if given.force_quote.is_some() => refuse("COPY force quote only available using COPY TO"),
        CopyDirection::Out if given.force_not_null.is_some() => {
            refuse("COPY force not null only available using COPY FROM")
        }
        CopyDirection::Out if given.force_null.is_some() => refuse("COPY force null only available using COPY FROM"),
        CopyDirection::Out if given.header == Some(CopyHeader::Match) => {
            Err(SqlError::new("42601", "cannot use \"match\" with HEADER in COPY TO"))
        }
        _ => Ok(()),
    }
}

fn one_byte(text: Option<&str>, what: &str) -> Result<Option<u8>> {
    match text.map(str::as_bytes) {
        None => Ok(None),
        Some([byte]) => Ok(Some(*byte)),
        Some(_) => Err(SqlError::unsupported(format!("COPY {what} must be a single one-byte character"))),
    }
}

fn check_characters(options: &CopyOptions) -> Result<()> {
    let wrong = |message: &str| Err(SqlError::new("22023", message));
    if [b'\r', b'\n'].contains(&options.delimiter) {
        return wrong("COPY delimiter cannot be newline or carriage return");
    }
    if options.null.contains(['\r', '\n']) {
        return wrong("COPY null representation cannot use newline or carriage return");
    }
    let csv = options.format == CopyFormat::Csv;
    if !csv && b"\\.abcdefghijklmnopqrstuvwxyz0123456789".contains(&options.delimiter) {
        let shown = char::from(options.delimiter);
        return wrong(&format!("COPY delimiter cannot be \"{shown}\""));
    }
    if csv && options.delimiter == options.quote {
        return wrong("COPY delimiter and quote must be different");
    }
    if options.format != CopyFormat::Binary && options.null.as_bytes().contains(&options.delimiter) {
        return wrong("COPY delimiter must not appear in the NULL specification");
    }
    if csv && options.null.as_bytes().contains(&options.quote) {
        return wrong("CSV quote character must not appear in the NULL specification");
    }
    Ok(())
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
        let ForceColumns::Some(named) = list else { continue };
        if let Some(missing) = named.iter().find(|name| !columns.contains(name)) {
            return Err(SqlError::new("42P10", format!("{option} column \"{missing}\" not referenced by COPY")));
        }
    }
    Ok(())
}
