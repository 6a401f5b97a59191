//! CREATE INDEX.

use super::constraint::{check_shard_key, expression};
use super::draft::{Draft, Otherwise};
use super::text::expression_text;
use super::{Purpose, Result, exists};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Key, KeyOver, KeyPart, SchemaChange, Table};
use pg_raw_parse::Node;
use pg_raw_parse::nodes::{IndexElem, IndexStmt};
use pg_raw_parse::raw::{SortByDir, SortByNulls};

pub(super) fn create(draft: &mut Draft<'_>, statement: &IndexStmt) -> Result<()> {
    refuse_unusual(statement)?;
    let table_name = draft.name(statement.relation())?;
    let table = draft.table(&table_name)?.clone();
    if let Some(name) = statement.idxname().filter(|name| draft.schema.is_taken(&table.key_relation(name))) {
        return exists(draft, name, Otherwise::of(statement.if_not_exists));
    }
    let mut parts = Vec::new();
    for element in statement.index_params() {
        parts.push(part(draft, &table, element)?);
    }
    let columns: Vec<String> = parts.iter().filter_map(plain_column).collect();
    if statement.unique {
        check_shard_key(&table, &columns, "unique index")?;
    }
    let predicate = match statement.where_clause() {
        Node::None => None,
        filter => Some(expression(draft, &table, expression_text(filter)?, Purpose::IndexPredicate)?),
    };
    let name = match statement.idxname() {
        Some(name) => name.to_string(),
        None => draft.free_relation_name(&table_name, &name_addition(statement), "idx"),
    };
    let plain = |part: &KeyPart| plain_column(part).is_some() && !part.descending && !part.nulls_first;
    let parts = if parts.iter().all(plain) { vec![] } else { parts };
    let key = Key { name, columns, unique: statement.unique, constraint: false, parts, predicate, global: None };
    draft.push(SchemaChange::CreateKey { table: table_name, key })
}

fn plain_column(part: &KeyPart) -> Option<String> {
    match &part.over {
        KeyOver::Column(name) => Some(name.clone()),
        KeyOver::Expression(_) => None,
    }
}

fn refuse_unusual(statement: &IndexStmt) -> Result<()> {
    match statement.access_method() {
        None | Some("btree" | "hash") => {}
        Some(method) => return Err(SqlError::unsupported(format!("access method \"{method}\" is not supported"))),
    }
    let refused = [
        (!statement.index_including_params().is_empty(), "INCLUDE"),
        (statement.nulls_not_distinct, "NULLS NOT DISTINCT"),
        (statement.table_space().is_some(), "TABLESPACE"),
    ];
    if let Some((_, what)) = refused.iter().find(|(said, _)| *said) {
        return Err(SqlError::unsupported(format!("{what} in CREATE INDEX is not supported")));
    }
    match statement.options().first().map(|option| option.defname().unwrap_or_default()) {
        None => Ok(()),
        Some("global") => Err(SqlError::unsupported("global indexes are not supported yet")),
        Some(other) => Err(SqlError::new("22023", format!("unrecognized parameter \"{other}\""))),
    }
}

fn part(draft: &Draft<'_>, table: &Table, element: &IndexElem) -> Result<KeyPart> {
    if !element.opclass().is_empty() {
        return Err(SqlError::unsupported("operator classes are not supported"));
    }
    match element.collation().iter().filter_map(Node::as_str).next_back() {
        None | Some("C" | "POSIX" | "default") => {}
        Some(other) => return Err(SqlError::unsupported(format!("collation \"{other}\" is not supported"))),
    }
    let over = match element.name() {
        Some(name) => {
            if !table.visible_columns().iter().any(|column| column.name == name) {
                return Err(SqlError::new("42703", format!("column \"{name}\" does not exist")));
            }
            KeyOver::Column(name.into())
        }
        None => KeyOver::Expression(expression(draft, table, expression_text(element.expr())?, Purpose::IndexKey)?),
    };
    let descending = element.ordering == SortByDir::SORTBY_DESC;
    let nulls_first = match element.nulls_ordering {
        SortByNulls::SORTBY_NULLS_FIRST => true,
        SortByNulls::SORTBY_NULLS_LAST => false,
        _ => descending,
    };
    Ok(KeyPart { over, descending, nulls_first })
}

/// The middle of the name that PostgreSQL gives: the columns' names, and for expressions a word for each.
fn name_addition(statement: &IndexStmt) -> String {
    let mut words: Vec<String> = Vec::new();
    for element in statement.index_params() {
        let word = match element.name() {
            Some(name) => name.to_string(),
            None => expression_word(element.expr()),
        };
        let mut free = word.clone();
        let mut number = 0;
        while words.contains(&free) {
            number += 1;
            free = format!("{word}{number}");
        }
        words.push(free);
    }
    words.join("_")
}

fn expression_word(node: Node<'_>) -> String {
    match node {
        Node::FuncCall(call) => call.funcname().iter().filter_map(Node::as_str).next_back().unwrap_or("expr").into(),
        Node::ColumnRef(column) => column.fields().iter().filter_map(Node::as_str).next_back().unwrap_or("expr").into(),
        Node::TypeCast(cast) => match expression_word(cast.arg()).as_str() {
            "expr" => match cast.type_name().and_then(|name| name.names().iter().next_back()) {
                Some(name) => name.sval().unwrap_or("expr").into(),
                None => "expr".into(),
            },
            word => word.into(),
        },
        Node::CoalesceExpr(_) => "coalesce".into(),
        Node::CaseExpr(_) => "case".into(),
        _ => "expr".into(),
    }
}
