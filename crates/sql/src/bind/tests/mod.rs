//! Statements and what becomes of them.
//!
//! `corpus.txt` was answered by a PostgreSQL 15 with the tables of [`schema`]: for each statement (`>`) the names and
//! types of its columns, the types of its parameters, or its error (`!`) with detail and hint. Where Isles refuses what
//! PostgreSQL does, a line `~` says with which words.

mod lifted;
mod trees;

use super::*;
use crate::builtins::{format_type, type_name};
use crate::parse::parse_one;
use crate::tree::Field;
use isles_kernel::names::GroupName;
use isles_kernel::schema::Table;
use isles_kernel::schema::{Column, Identity, Key, Sequence, SqlType, TableKind, View};
use isles_kernel::value::{DataType, Element};

fn column(name: &str, ty: DataType) -> Column {
    Column::new(name, ty)
}

fn typed(name: &str, ty: DataType, oid: Oid, modifier: i32) -> Column {
    Column { sql_type: Some(SqlType { oid: oid.0, modifier }), ..Column::new(name, ty) }
}

fn default(column: Column, sql: &str) -> Column {
    Column { default_sql: Some(sql.into()), ..column }
}

fn identity(column: Column, sequence: &str, always: bool) -> Column {
    Column { identity: Some(Identity { sequence: sequence.into(), always }), ..column }
}

fn table(name: &str, columns: Vec<Column>, key: &[&str], keys: Vec<Key>) -> Table {
    let kind = TableKind::Hash {
        group: GroupName::new(name).expect("a name"),
        shard_by: key.iter().map(|c| (*c).to_string()).collect(),
        buckets: 8,
        regions: vec![],
    };
    Table { keys, ..Table::new(name, kind, columns, key) }
}

/// The modifier of `numeric(precision, scale)`.
fn numeric(precision: i32, scale: i32) -> i32 {
    ((precision << 16) | scale) + 4
}

fn users() -> Table {
    let columns = vec![
        column("id", DataType::Int8).not_null(),
        column("email", DataType::Text).not_null(),
        typed("name", DataType::Text, types::VARCHAR, 44),
        column("age", DataType::Int4),
        default(column("active", DataType::Bool), "true"),
        default(column("created_at", DataType::TimestampTz), "now()"),
        typed("balance", DataType::Numeric, types::NUMERIC, numeric(10, 2)),
        typed("tags", DataType::Array(Element::Text), types::TEXT_ARRAY, -1),
        typed("profile", DataType::Json, types::JSONB, -1),
        column("token", DataType::Uuid),
        column("born", DataType::Date),
        column("score", DataType::Float8),
        column("raw", DataType::Bytes),
        column("doc", DataType::Json),
        column("kind", DataType::Int2),
        column("ratio", DataType::Float4),
        typed("code", DataType::Text, types::BPCHAR, 7),
        column("wake", DataType::Time),
        column("ts", DataType::Timestamp),
        column("span", DataType::Interval),
    ];
    table("users", columns, &["id"], vec![Key::unique("users_email_key", &["email"])])
}

fn orders() -> Table {
    let columns = vec![
        identity(column("id", DataType::Int8).not_null(), "orders_id_seq", false),
        column("user_id", DataType::Int8).not_null(),
        default(typed("amount", DataType::Numeric, types::NUMERIC, numeric(12, 2)).not_null(), "0"),
        default(column("status", DataType::Text), "'new'::text"),
        column("placed_at", DataType::Timestamp),
        column("qty", DataType::Int4),
        typed("note", DataType::Text, types::VARCHAR, 24),
    ];
    table("orders", columns, &["id"], vec![Key::unique("orders_user_id_placed_at_key", &["user_id", "placed_at"])])
}

pub(super) fn schema() -> Schema {
    let items = vec![
        column("order_id", DataType::Int8).not_null(),
        column("line", DataType::Int4).not_null(),
        column("sku", DataType::Text),
        column("price", DataType::Numeric),
    ];
    let always =
        vec![identity(column("id", DataType::Int4).not_null(), "always_id_seq", true), column("v", DataType::Text)];
    let t = vec![column("a", DataType::Int4).not_null(), column("b", DataType::Text), column("c", DataType::Int4)];
    let u = vec![column("a", DataType::Int4).not_null(), column("d", DataType::Text), column("e", DataType::Numeric)];
    let tables = [
        users(),
        orders(),
        table("items", items, &["order_id", "line"], Vec::new()),
        table("always", always, &["id"], Vec::new()),
        table("t", t, &["a"], Vec::new()),
        table("u", u, &["a"], Vec::new()),
    ];
    let adults = View {
        name: "adults".into(),
        sql: "select id, name, age from users where age >= 18".into(),
        columns: ["id", "name", "age"].map(|name| (name.into(), SqlType { oid: 0, modifier: -1 })).to_vec(),
        path: None,
    };
    let seq1 = Sequence {
        name: "seq1".into(),
        start: 1,
        increment: 1,
        min: 1,
        max: i64::MAX,
        cycle: false,
        ty: DataType::Int8,
        owner: None,
    };
    Schema {
        tables: tables.into_iter().map(|table| (table.name.clone(), table)).collect(),
        views: [("adults".to_string(), adults)].into(),
        sequences: [("seq1".to_string(), seq1)].into(),
        ..Schema::default()
    }
}

pub(super) fn bound_in(schema: &Schema, sql: &str) -> Result<Bound> {
    let path = ["public".to_string()];
    let settings = Settings::default();
    let context = BindContext {
        schema,
        search_path: &path,
        database: "isles",
        settings: &settings,
        default_kind: utility::DefaultKind::Hash,
        default_buckets: 8,
        procedures: &crate::bind::procedure::NO_PROCEDURES,
    };
    bind(&parse_one(sql)?, &context, &[])
}

pub(super) fn bound(sql: &str) -> Result<Bound> {
    bound_in(&schema(), sql)
}

fn fields(statement: &BoundStatement) -> Option<&[Field]> {
    match statement {
        BoundStatement::Rows(statement) => match &**statement {
            Statement::Query(query) => Some(&query.columns),
            other => query::returning(other).map(|returning| returning.columns.as_slice()),
        },
        _ => None,
    }
}

/// The answer in the form of the corpus.
fn answer(schema: &Schema, sql: &str) -> String {
    let mut lines = Vec::new();
    match bound_in(schema, sql) {
        Err(error) => {
            lines.push(format!("! {} {}", error.sqlstate, error.message));
            lines.extend(error.detail.map(|detail| format!("  detail {detail}")));
            lines.extend(error.hint.map(|hint| format!("  hint {hint}")));
        }
        Ok(bound) => {
            let shown = |field: &Field| format!("{} {}", field.name, format_type(field.ty));
            lines.push(match fields(&bound.statement) {
                None => "(none)".to_string(),
                Some(fields) => fields.iter().map(shown).collect::<Vec<_>>().join(", "),
            });
            if !bound.params.is_empty() {
                let params: Vec<String> = bound.params.iter().map(|oid| type_name(*oid)).collect();
                lines.push(format!("  params {}", params.join(",")));
            }
        }
    }
    lines.join("\n")
}

#[test]
fn statements_mean_what_postgresql_says() {
    let schema = schema();
    let (mut count, mut wrong) = (0, Vec::new());
    for case in include_str!("corpus.txt").trim_start_matches("> ").split("\n> ") {
        let (sql, expected) = case.split_once('\n').expect("an answer");
        let expected = expected.trim_end();
        let actual = answer(&schema, sql);
        let refused = expected.lines().find_map(|line| line.strip_prefix("~ ")).map(|line| format!("! 0A000 {line}"));
        count += 1;
        let agrees = match refused {
            Some(refused) => actual.starts_with(&refused),
            None => actual == expected,
        };
        if !agrees {
            wrong.push(format!("> {sql}\nexpected\n{expected}\nactual\n{actual}\n"));
        }
    }
    assert!(count >= 250, "{count} statements");
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
}
