//! The system relations' definitions, and the rows that every database has, as PostgreSQL 15 has them.
//!
//! They are files in `data/`, written by `data/dump.py` from a PostgreSQL server, and read once, when first asked for.

use crate::tree::{Relation, RelationColumn, RelationSource};
use crate::types::{self, Oid, Type};
use isles_kernel::value::Value;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock};

/// A system relation's definition.
#[derive(Debug)]
pub(super) struct Definition {
    pub(super) oid: u32,
    /// `r` or `v`, as PostgreSQL has it; here all are computed.
    pub(super) kind: &'static str,
    pub(super) relation: Arc<Relation>,
}

static DEFINITIONS: LazyLock<Vec<Definition>> = LazyLock::new(|| read_definitions(include_str!("data/relations.tsv")));

static BY_NAME: LazyLock<HashMap<(&'static str, &'static str), &'static Definition>> = LazyLock::new(|| {
    let key = |d: &'static Definition| ((d.relation.schema.as_str(), d.relation.name.as_str()), d);
    DEFINITIONS.iter().map(key).collect()
});

pub(super) fn definitions() -> &'static [Definition] {
    &DEFINITIONS
}

pub(super) fn definition(schema: &str, name: &str) -> Option<&'static Definition> {
    BY_NAME.get(&(schema, name)).copied()
}

fn read_definitions(text: &'static str) -> Vec<Definition> {
    let mut found: Vec<Definition> = Vec::new();
    let mut columns = Vec::new();
    // From the last line to the first: a relation's own line stands before its columns.
    for line in text.lines().rev() {
        let fields: Vec<&'static str> = line.split('\t').collect();
        match fields[..] {
            ["=", schema, name, kind, oid] => {
                columns.reverse();
                let relation = Relation {
                    schema: schema.into(),
                    name: name.into(),
                    columns: std::mem::take(&mut columns),
                    source: RelationSource::System,
                };
                found.push(Definition { oid: number(oid), kind, relation: Arc::new(relation) });
            }
            [name, oid, modifier, not_null] => columns.push(RelationColumn {
                name: name.into(),
                ty: Type::with(Oid(number(oid)), number(modifier)),
                not_null: not_null == "t",
            }),
            _ => unreachable!("a line of relations.tsv has four fields or five"),
        }
    }
    found.reverse();
    found
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    let Ok(number) = text.parse() else { unreachable!("\"{text}\" was written by PostgreSQL as a number") };
    number
}

struct File {
    name: &'static str,
    text: &'static str,
    rows: OnceLock<Vec<Vec<Value>>>,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(File { name: $name, text: include_str!(concat!("data/", $name, ".tsv")), rows: OnceLock::new() }),*]
    };
}

static FILES: [File; 13] = files![
    "pg_aggregate",
    "pg_am",
    "pg_cast",
    "pg_collation",
    "pg_description",
    "pg_language",
    "pg_opclass",
    "pg_operator",
    "pg_opfamily",
    "pg_proc",
    "pg_range",
    "pg_settings",
    "pg_type",
];

/// The rows that every database has of a relation of `pg_catalog`.
pub(super) fn built_in(name: &str) -> &'static [Vec<Value>] {
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => file.rows.get_or_init(|| read_rows(file)),
        None => &[],
    }
}

/// A column of the file: where its value is in a line, or the value that all rows have.
enum Source {
    Field(usize),
    Same(Value),
}

fn read_rows(file: &File) -> Vec<Vec<Value>> {
    let Some(definition) = definition("pg_catalog", file.name) else { return Vec::new() };
    let columns = &definition.relation.columns;
    let mut lines = file.text.lines();
    let mut fields = 0;
    let head = lines.next().unwrap_or_default().split('\t').zip(columns);
    let sources: Vec<Source> = head
        .map(|(name, column)| match name.split_once('=') {
            Some((_, value)) => Source::Same(read_value(column.ty.oid, value)),
            None => {
                fields += 1;
                Source::Field(fields - 1)
            }
        })
        .collect();
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let value = |(source, column): (&Source, &RelationColumn)| match source {
                Source::Field(at) => read_value(column.ty.oid, fields[*at]),
                Source::Same(value) => value.clone(),
            };
            sources.iter().zip(columns).map(value).collect()
        })
        .collect()
}

/// A value in COPY's text format. Numbers of the reg types are given as numbers.
fn read_value(ty: Oid, text: &str) -> Value {
    if text == "\\N" {
        return Value::Null;
    }
    match ty {
        types::BOOL => Value::Bool(text == "t"),
        types::INT2 | types::INT4 | types::INT8 | types::OID | types::REGPROC | types::REGTYPE | types::XID => {
            Value::Int(number(text))
        }
        types::FLOAT4 | types::FLOAT8 => Value::Float(number(text)),
        types::OIDVECTOR | types::INT2VECTOR => {
            Value::Array(text.split_whitespace().map(|n| Value::Int(number(n))).collect())
        }
        types::OID_ARRAY => Value::Array(members(text).map(|n| Value::Int(number(n))).collect()),
        types::TEXT_ARRAY | types::CHAR_ARRAY => {
            Value::Array(members(text).map(|s| Value::text(s.trim_matches('"'))).collect())
        }
        _ => Value::Text(unescape(text)),
    }
}

/// The members of an array whose texts have no commas or quotes in them, as those of the files are.
fn members(text: &str) -> impl Iterator<Item = &str> {
    text.trim_start_matches('{').trim_end_matches('}').split(',').filter(|member| !member.is_empty())
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(match (c, if c == '\\' { chars.next() } else { None }) {
            (_, Some('t')) => '\t',
            (_, Some('n')) => '\n',
            (_, Some(other)) => other,
            (c, None) => c,
        });
    }
    out
}

/// What the rest of the module asks about a type, of a row of `pg_type`.
#[derive(Debug)]
pub(super) struct TypeRow {
    pub(super) oid: u32,
    pub(super) name: &'static str,
    pub(super) length: i64,
    pub(super) by_value: bool,
    /// The type of an array's or vector's members; 0 for others.
    pub(super) element: u32,
    pub(super) is_array: bool,
    pub(super) array: u32,
    pub(super) align: &'static str,
    pub(super) storage: &'static str,
    pub(super) collation: i64,
    pub(super) category: &'static str,
}

static TYPES: LazyLock<HashMap<u32, TypeRow>> = LazyLock::new(|| {
    let at = Positions::of("pg_type");
    let read = |row: &'static Vec<Value>| TypeRow {
        oid: at.oid(row, "oid"),
        name: at.text(row, "typname"),
        length: at.int(row, "typlen"),
        by_value: row[at.of_column("typbyval")] == Value::Bool(true),
        element: at.oid(row, "typelem"),
        // Not the vectors, which `format_type` does not take for arrays either.
        is_array: at.text(row, "typcategory") == "A"
            && at.oid(row, "typelem") != 0
            && at.text(row, "typstorage") != "p",
        array: at.oid(row, "typarray"),
        align: at.text(row, "typalign"),
        storage: at.text(row, "typstorage"),
        collation: at.int(row, "typcollation"),
        category: at.text(row, "typcategory"),
    };
    built_in("pg_type").iter().map(read).map(|row| (row.oid, row)).collect()
});

pub(super) fn type_row(oid: u32) -> Option<&'static TypeRow> {
    TYPES.get(&oid)
}

pub(super) fn types() -> impl Iterator<Item = &'static TypeRow> {
    TYPES.values()
}

/// What the rest of the module asks about a function, of a row of `pg_proc`.
#[derive(Debug)]
pub(super) struct FunctionRow {
    pub(super) oid: u32,
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) returns_set: bool,
    /// Whether it returns null when an argument is.
    pub(super) is_strict: bool,
    pub(super) result: u32,
    pub(super) args: Vec<u32>,
    /// Types, modes and names of all parameters, where there are more than those that are given.
    pub(super) all_args: Option<Vec<u32>>,
    pub(super) modes: Vec<&'static str>,
    pub(super) names: Vec<&'static str>,
    /// Expressions of the last parameters.
    pub(super) defaults: Vec<&'static str>,
}

static FUNCTIONS: LazyLock<HashMap<u32, FunctionRow>> = LazyLock::new(|| {
    let at = Positions::of("pg_proc");
    let read = |row: &'static Vec<Value>| FunctionRow {
        oid: at.oid(row, "oid"),
        name: at.text(row, "proname"),
        kind: at.text(row, "prokind"),
        returns_set: row[at.of_column("proretset")] == Value::Bool(true),
        is_strict: row[at.of_column("proisstrict")] == Value::Bool(true),
        result: at.oid(row, "prorettype"),
        args: oids(&row[at.of_column("proargtypes")]),
        all_args: Some(oids(&row[at.of_column("proallargtypes")])).filter(|all| !all.is_empty()),
        modes: texts(&row[at.of_column("proargmodes")]),
        names: texts(&row[at.of_column("proargnames")]),
        defaults: match &row[at.of_column("proargdefaults")] {
            Value::Text(list) => list.split(", ").collect(),
            _ => Vec::new(),
        },
    };
    built_in("pg_proc").iter().map(read).map(|row| (row.oid, row)).collect()
});

pub(super) fn function_row(oid: u32) -> Option<&'static FunctionRow> {
    FUNCTIONS.get(&oid)
}

pub(super) fn functions() -> impl Iterator<Item = &'static FunctionRow> {
    FUNCTIONS.values()
}

fn oids(value: &Value) -> Vec<u32> {
    let Value::Array(members) = value else { return Vec::new() };
    members.iter().filter_map(as_oid).collect()
}

fn texts(value: &'static Value) -> Vec<&'static str> {
    let Value::Array(members) = value else { return Vec::new() };
    members.iter().map(|member| if let Value::Text(text) = member { text.as_str() } else { "" }).collect()
}

pub(super) fn as_oid(value: &Value) -> Option<u32> {
    match value {
        Value::Int(oid) => u32::try_from(*oid).ok(),
        _ => None,
    }
}

/// Where a catalog's columns are.
pub(super) struct Positions(HashMap<&'static str, usize>);

impl Positions {
    pub(super) fn of(catalog: &str) -> Positions {
        let columns = definition("pg_catalog", catalog).map_or(&[][..], |d| &d.relation.columns[..]);
        Positions(columns.iter().enumerate().map(|(at, column)| (column.name.as_str(), at)).collect())
    }

    pub(super) fn of_column(&self, column: &str) -> usize {
        self.0.get(column).copied().unwrap_or_else(|| unreachable!("PostgreSQL 15 has a column {column}"))
    }

    pub(super) fn int(&self, row: &[Value], column: &str) -> i64 {
        match row[self.of_column(column)] {
            Value::Int(n) => n,
            _ => 0,
        }
    }

    pub(super) fn oid(&self, row: &[Value], column: &str) -> u32 {
        as_oid(&row[self.of_column(column)]).unwrap_or(0)
    }

    pub(super) fn text(&self, row: &'static [Value], column: &str) -> &'static str {
        match &row[self.of_column(column)] {
            Value::Text(text) => text,
            _ => "",
        }
    }
}

/// A word of the grammar.
pub(super) struct Keyword {
    pub(super) word: &'static str,
    /// `U`nreserved, `C`olumn name, `T`ype or function name, `R`eserved.
    pub(super) category: &'static str,
    /// The row of `pg_get_keywords()`.
    pub(super) row: Vec<Value>,
}

static KEYWORDS: LazyLock<HashMap<&'static str, Keyword>> = LazyLock::new(|| {
    let read = |line: &'static str| {
        let fields: Vec<&'static str> = line.split('\t').collect();
        let row = |(at, field): (usize, &&str)| if at == 2 { Value::Bool(*field == "t") } else { Value::text(*field) };
        let row = fields.iter().enumerate().map(row).collect();
        (fields[0], Keyword { word: fields[0], category: fields[1], row })
    };
    include_str!("data/keywords.tsv").lines().map(read).collect()
});

pub(super) fn keyword(word: &str) -> Option<&'static Keyword> {
    KEYWORDS.get(word)
}

pub(super) fn keywords() -> Vec<&'static Keyword> {
    let mut all: Vec<_> = KEYWORDS.values().collect();
    all.sort_by_key(|keyword| keyword.word);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_the_columns_of_its_relation() {
        for file in &FILES {
            let definition = definition("pg_catalog", file.name).expect("defined");
            let rows = built_in(file.name);
            assert!(!rows.is_empty(), "{} has rows", file.name);
            for row in rows {
                assert_eq!(row.len(), definition.relation.columns.len(), "{}", file.name);
                for (value, column) in row.iter().zip(&definition.relation.columns) {
                    assert!(!(column.not_null && value.is_null()), "{}.{}", file.name, column.name);
                }
            }
        }
    }

    #[test]
    fn definitions_are_postgresqls() {
        let class = definition("pg_catalog", "pg_class").expect("defined");
        assert_eq!((class.oid, class.relation.columns.len()), (1259, 33));
        assert_eq!(class.relation.columns[1].name, "relname");
        assert_eq!(class.relation.columns[1].ty, Type::of(types::NAME));
        let tables = definition("information_schema", "tables").expect("defined");
        assert_eq!(tables.relation.columns[0].name, "table_catalog");
        assert_eq!(tables.relation.columns[0].ty.oid, types::NAME);
    }

    #[test]
    fn functions_are_read_whole() {
        let make_interval = functions().find(|f| f.name == "make_interval").expect("there");
        assert_eq!(make_interval.names[0], "years");
        assert_eq!(make_interval.defaults.last(), Some(&"0.0"));
        assert_eq!(make_interval.args.len(), 7);
    }
}
