//! Tables that are written down in a line, and plans of statements over them.

use isles_kernel::error::SqlError;
use isles_kernel::names::GroupName;
use isles_kernel::schema::{Column, HIDDEN_KEY_COLUMN, Key, Schema, Sequence, Table, TableKind};
use isles_kernel::value::DataType;
use isles_sql::bind::utility::DefaultKind;
use isles_sql::bind::{BindContext, BoundStatement, bind};
use isles_sql::parse;
use isles_sql::plan::{Plan, PlanContext, plan};
use isles_sql::text::Settings;

/// `table NAME KIND pk COLUMNS[ unique COLUMNS]: COLUMN TYPE[!], …`
pub(crate) fn table(line: &str) -> Table {
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

pub(crate) fn sequence(name: &str) -> Sequence {
    let (start, increment, min, max) = (1, 1, 1, i64::MAX);
    Sequence { name: name.into(), start, increment, min, max, cycle: false, ty: DataType::Int8, owner: None }
}

fn kind<'a>(word: &str, words: &mut impl Iterator<Item = &'a str>) -> TableKind {
    match word {
        "hash" => {
            let (group, by) = words.next().expect("a group").trim_end_matches(')').split_once('(').expect("columns");
            let shard_by = by.split(',').map(String::from).collect();
            TableKind::Hash { group: GroupName::new(group).expect("a group"), shard_by, buckets: 16, regions: vec![] }
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

pub(crate) fn bound(schema: &Schema, sql: &str) -> Result<BoundStatement, SqlError> {
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
        procedures: &isles_sql::bind::procedure::NO_PROCEDURES,
    };
    Ok(bind(&parsed, &context, &[])?.statement)
}

pub(crate) fn planned(schema: &Schema, sql: &str) -> Result<Plan, SqlError> {
    match bound(schema, sql)? {
        BoundStatement::Rows(statement) => plan(*statement, &PlanContext::default()),
        _ => panic!("not about rows: {sql}"),
    }
}
