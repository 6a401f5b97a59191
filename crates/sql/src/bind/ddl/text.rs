//! Parts of statements as text again, by the grammar's own printer.

use isles_kernel::error::SqlError;
use isles_kernel::schema::{PUBLIC, relation_parts};
use pg_raw_parse::make::owned;
use pg_raw_parse::{Node, deparse, nodes};

type Result<T> = std::result::Result<T, SqlError>;

/// A statement inside of another one.
pub(crate) fn statement_text(node: Node<'_>) -> Result<String> {
    deparse(node).map(|text| text.as_str().to_string()).map_err(unprintable)
}

/// An expression. The printer knows statements only, so it is printed as the one column of a SELECT.
pub(crate) fn expression_text(node: Node<'_>) -> Result<String> {
    let select = owned(|mem| {
        let target = mem.make_res_target(None, mem.empty(), mem.make_unique(node).uncast());
        let mut select = mem.make_node::<nodes::SelectStmt>();
        select.as_mut().set_target_list(mem.make_list(&[target]));
        select
    });
    let text = statement_text(Node::SelectStmt(&select))?;
    match text.strip_prefix("SELECT ") {
        Some(expression) => Ok(expression.to_string()),
        None => Err(SqlError::new("XX000", "an expression could not be printed")),
    }
}

fn unprintable(error: pg_raw_parse::Error) -> SqlError {
    SqlError::new("XX000", format!("a statement could not be printed: {error}"))
}

/// An identifier as PostgreSQL shows it: quoted only where it must be.
pub(crate) fn identifier(name: &str) -> String {
    let mut letters = name.chars();
    let starts = letters.next().is_some_and(|c| c.is_ascii_lowercase() || c == '_');
    let plain = starts && letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if plain && !RESERVED.contains(&name) { name.to_string() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// A relation as PostgreSQL shows it: with its schema, unless that is `public`.
pub(crate) fn relation_text(relation: &str) -> String {
    match relation_parts(relation) {
        (PUBLIC, name) => identifier(name),
        _ => qualified_text(relation),
    }
}

/// A relation with its schema, which means the same whatever the search path.
pub(crate) fn qualified_text(relation: &str) -> String {
    let (namespace, name) = relation_parts(relation);
    format!("{}.{}", identifier(namespace), identifier(name))
}

/// Words that are names only in quotes: PostgreSQL's reserved ones, and those that cannot name a function or type.
const RESERVED: [&str; 100] = [
    "all",
    "analyse",
    "analyze",
    "and",
    "any",
    "array",
    "as",
    "asc",
    "asymmetric",
    "authorization",
    "between",
    "bigint",
    "binary",
    "bit",
    "boolean",
    "both",
    "case",
    "cast",
    "char",
    "character",
    "check",
    "coalesce",
    "collate",
    "collation",
    "column",
    "concurrently",
    "constraint",
    "create",
    "cross",
    "current_catalog",
    "current_date",
    "current_role",
    "current_schema",
    "current_time",
    "current_timestamp",
    "current_user",
    "dec",
    "decimal",
    "default",
    "deferrable",
    "desc",
    "distinct",
    "do",
    "else",
    "end",
    "except",
    "exists",
    "extract",
    "false",
    "fetch",
    "float",
    "for",
    "foreign",
    "freeze",
    "from",
    "full",
    "grant",
    "greatest",
    "group",
    "having",
    "ilike",
    "in",
    "initially",
    "inner",
    "int",
    "integer",
    "intersect",
    "interval",
    "into",
    "is",
    "isnull",
    "join",
    "lateral",
    "leading",
    "least",
    "left",
    "like",
    "limit",
    "localtime",
    "localtimestamp",
    "natural",
    "not",
    "null",
    "numeric",
    "offset",
    "on",
    "only",
    "or",
    "order",
    "primary",
    "references",
    "select",
    "some",
    "symmetric",
    "table",
    "then",
    "to",
    "union",
    "unique",
    "user",
];

/// The names of a list of strings, as the grammar keeps qualified names.
pub(crate) fn strings(node: Node<'_>) -> Vec<String> {
    match node {
        Node::NodeList(list) => list.iter().filter_map(Node::as_str).map(Into::into).collect(),
        Node::String(text) => text.sval().into_iter().map(Into::into).collect(),
        _ => vec![],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_printed_alone() {
        for text in ["a + 1 > 2", "lower(email)", "now() - '1 day'::interval", "CASE WHEN a THEN 1 ELSE 2 END"] {
            let sql = format!("SELECT {text}");
            let parsed = pg_raw_parse::parse(&sql).expect("it parses");
            let Some(Node::SelectStmt(select)) = parsed.stmts().next() else { panic!("a select") };
            let Some(target) = select.target_list().first() else { panic!("a target") };
            let printed = expression_text(target.val()).expect("it prints");
            let again = pg_raw_parse::parse(&format!("SELECT {printed}")).expect("it parses again");
            assert_eq!(again.stmts().count(), 1, "{printed}");
            assert_eq!(printed.to_lowercase().replace(['(', ')'], ""), text.to_lowercase().replace(['(', ')'], ""));
        }
    }

    #[test]
    fn identifiers_are_quoted_where_they_must_be() {
        assert_eq!(identifier("notes"), "notes");
        assert_eq!(identifier("Notes"), "\"Notes\"");
        assert_eq!(identifier("order"), "\"order\"");
        assert_eq!(identifier("a\"b"), "\"a\"\"b\"");
    }
}
