//! CREATE INDEX.

use super::column::type_of;
use super::constraint::{NO_INCLUDE, check_shard_key, column_of, expression, typed_expression};
use super::draft::{Draft, Otherwise};
use super::global::{self, Extent};
use super::text::expression_text;
use super::{Purpose, Result, exists};
use crate::builtins;
use crate::row_key::RowKey;
use crate::types::{self, Type};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Key, KeyOver, KeyPart, SchemaChange, Table};
use pg_raw_parse::Node;
use pg_raw_parse::nodes::{IndexElem, IndexStmt};
use pg_raw_parse::raw::{SortByDir, SortByNulls};

pub(super) fn create(draft: &mut Draft<'_>, statement: &IndexStmt) -> Result<()> {
    refuse_unusual(statement)?;
    if statement.access_method() == Some("hash") {
        draft.notice("the index is a btree, which finds what a hash index does");
    }
    if !statement.index_including_params().is_empty() {
        draft.notice(NO_INCLUDE);
    }
    let extent = global::wanted(statement.options().iter())?.unwrap_or(Extent::Shard);
    let table_name = draft.name(statement.relation())?;
    let table = draft.table(&table_name)?.clone();
    if let Some(name) = statement.idxname().filter(|name| draft.schema.is_taken(&table.key_relation(name))) {
        return exists(draft, name, Otherwise::of(statement.if_not_exists));
    }
    let (mut parts, mut types) = (Vec::new(), Vec::new());
    for element in statement.index_params() {
        let (part, what, ty) = part(draft, &table, element)?;
        parts.push(part);
        types.push((what, ty));
    }
    let columns: Vec<String> = parts.iter().filter_map(plain_column).collect();
    match extent {
        Extent::Global => global::check(&table, statement.unique, &types)?,
        Extent::Shard if statement.unique => check_shard_key(&table, &columns, "unique index")?,
        Extent::Shard => {}
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
    let key = Key { name, columns, unique: statement.unique, parts, predicate, ..Key::default() };
    if extent == Extent::Global {
        RowKey::of(&table, &key)?;
    }
    if extent == Extent::Global && key.unique {
        table.foreign_keys.iter().try_for_each(|foreign| global::refuse_cascade(foreign, &key))?;
    }
    let key = Key { global: draft.make_entries(extent, &table.kind)?, ..key };
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
        Some(method) => {
            let error = SqlError::unsupported(format!("access method \"{method}\" is not supported"));
            return Err(error.with_hint("indexes are btrees; leave out USING"));
        }
    }
    if statement.access_method() == Some("hash") {
        let no = |what: &str| Err(SqlError::unsupported(format!("access method \"hash\" does not support {what}")));
        match statement.unique {
            true => return no("unique indexes"),
            false if statement.index_params().iter().count() > 1 => return no("multicolumn indexes"),
            false => {}
        }
    }
    let refused =
        [(statement.nulls_not_distinct, "NULLS NOT DISTINCT"), (statement.table_space().is_some(), "TABLESPACE")];
    match refused.iter().find(|(said, _)| *said) {
        Some((_, what)) => Err(SqlError::unsupported(format!("{what} in CREATE INDEX is not supported"))),
        None => Ok(()),
    }
}

/// One entry of the index, what it is over in words, and its type.
fn part(draft: &Draft<'_>, table: &Table, element: &IndexElem) -> Result<(KeyPart, String, Type)> {
    match element.collation().iter().filter_map(Node::as_str).next_back() {
        None | Some("C" | "POSIX" | "default") => {}
        Some(other) => return Err(SqlError::unsupported(format!("collation \"{other}\" is not supported"))),
    }
    let (over, what, ty) = match element.name() {
        Some(name) => {
            let missing = |_| SqlError::new("42703", format!("column \"{name}\" does not exist"));
            let ty = type_of(&column_of(table, name).map_err(missing)?);
            (KeyOver::Column(name.into()), global::column(name), ty)
        }
        None => {
            let sql = expression_text(element.expr())?;
            let (expression, ty) = typed_expression(draft, table, sql, Purpose::IndexKey)?;
            (KeyOver::Expression(expression), "an expression".into(), ty)
        }
    };
    check_class(element, ty)?;
    let descending = element.ordering == SortByDir::SORTBY_DESC;
    let nulls_first = match element.nulls_ordering {
        SortByNulls::SORTBY_NULLS_FIRST => true,
        SortByNulls::SORTBY_NULLS_LAST => false,
        _ => descending,
    };
    Ok((KeyPart { over, descending, nulls_first }, what, ty))
}

/// Texts are ordered by their bytes, so classes that order them so are what indexes have in any case.
fn check_class(element: &IndexElem, ty: Type) -> Result<()> {
    match element.opclass().iter().filter_map(Node::as_str).next_back() {
        None => Ok(()),
        Some("text_pattern_ops" | "varchar_pattern_ops" | "text_ops" | "varchar_ops")
            if [types::TEXT, types::VARCHAR].contains(&ty.oid) =>
        {
            Ok(())
        }
        Some(class @ ("text_pattern_ops" | "varchar_pattern_ops" | "text_ops" | "varchar_ops")) => {
            let ty = builtins::format_type(ty);
            Err(SqlError::new("42804", format!("operator class \"{class}\" does not accept data type {ty}")))
        }
        Some(class) => {
            let error = SqlError::unsupported(format!("operator class \"{class}\" is not supported"));
            Err(error.with_hint("leave it out, or use text_pattern_ops"))
        }
    }
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
