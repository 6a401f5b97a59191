//! Rows as JSON, exact for every type.
//!
//! Booleans and integers are JSON's own. Every other value is the text that PostgreSQL writes for it, also floats and
//! json, which readers of JSON round and reorder. What is read may be either.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Column, Table};
use isles_kernel::value::{Decoder, Encoder, Value};
use isles_sql::text::{self, Settings};
use isles_sql::types::{self, Oid, Type};
use serde_json::{Map, Value as Json, json};

fn type_of(column: &Column) -> Type {
    match column.sql_type {
        Some(declared) => Type::with(Oid(declared.oid), declared.modifier),
        None => Type::of(types::natural(column.ty)),
    }
}

fn shown(value: &Value, ty: Type) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(truth) => json!(truth),
        Value::Int(number) => json!(number),
        other => {
            let mut bytes = Vec::new();
            text::output(other, ty, &Settings::default(), &mut bytes);
            json!(String::from_utf8_lossy(&bytes))
        }
    }
}

/// A row's values under the names of their columns. A row of an older schema has no names any more.
pub(super) fn object(table: Option<&Table>, values: &[Value]) -> Json {
    match table.filter(|table| table.columns.len() == values.len()) {
        Some(table) => {
            let pairs = table.columns.iter().zip(values);
            let pairs = pairs.map(|(column, value)| (column.name.clone(), shown(value, type_of(column))));
            Json::Object(pairs.collect::<Map<String, Json>>())
        }
        None => list(values),
    }
}

/// Values without names, such as a key.
pub(super) fn list(values: &[Value]) -> Json {
    Json::Array(values.iter().map(|value| shown(value, natural(value))).collect())
}

/// The type that a value has by itself. Texts of a type depend on it little: only a float's width is not seen.
fn natural(value: &Value) -> Type {
    Type::of(match value {
        Value::Float(_) => types::FLOAT8,
        Value::Numeric(_) => types::NUMERIC,
        Value::Bytes(_) => types::BYTEA,
        Value::Date(_) => types::DATE,
        Value::Time(_) => types::TIME,
        Value::Timestamp(_) => types::TIMESTAMP,
        Value::TimestampTz(_) => types::TIMESTAMPTZ,
        Value::Uuid(_) => types::UUID,
        Value::Json(_) => types::JSON,
        Value::Interval(_) => types::INTERVAL,
        Value::Array(_) => types::TEXT_ARRAY,
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Text(_) => types::TEXT,
    })
}

/// The values of a row. It has every column of the table, and no other: a column that was forgotten would be lost.
pub(super) fn read(table: &Table, data: &Map<String, Json>) -> Result<Vec<Value>, SqlError> {
    if let Some(stranger) = data.keys().find(|name| !table.columns.iter().any(|column| column.name == **name)) {
        return Err(SqlError::new("42703", format!("table \"{}\" has no column \"{stranger}\"", table.name)));
    }
    let value = |column: &Column| match data.get(&column.name) {
        None => Err(SqlError::new("22023", format!("a row has no value for column \"{}\"", column.name))
            .with_hint("give every column, null where there is nothing")),
        Some(Json::Null) => Ok(Value::Null),
        Some(Json::String(text)) => text::input(text, type_of(column), &Settings::default()),
        Some(other) => text::input(&other.to_string(), type_of(column), &Settings::default()),
    };
    table.columns.iter().map(value).collect()
}

/// Where a page ended, for whoever asks for the next one.
pub(super) fn cursor(key: &[Value]) -> String {
    let mut out = Encoder::default();
    out.row(key);
    URL_SAFE_NO_PAD.encode(out.bytes)
}

pub(super) fn read_cursor(table: &Table, text: &str) -> Result<Vec<Value>, SqlError> {
    let invalid = || SqlError::new("22023", "this is not a cursor of the table");
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid())?;
    let mut input = Decoder::new(&bytes);
    let key = input.row().map_err(|_| invalid())?;
    let types = table.physical_key().into_iter().map(|name| {
        let column = table.columns.iter().find(|column| column.name == name);
        // The tenant, which leads the key, is no column of the user's.
        column.map_or(isles_kernel::value::DataType::Text, |column| column.ty)
    });
    let types: Vec<_> = types.collect();
    let fits =
        key.len() == types.len() && key.iter().zip(&types).all(|(value, ty)| !value.is_null() && value.fits(*ty));
    if fits && input.is_empty() { Ok(key) } else { Err(invalid()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use isles_kernel::schema::TableKind;
    use isles_kernel::value::{DataType, Numeric};

    fn table() -> Table {
        let columns = vec![
            Column::new("id", DataType::Int8).not_null(),
            Column::new("n", DataType::Numeric),
            Column::new("f", DataType::Float8),
            Column::new("j", DataType::Json),
            Column::new("y", DataType::Bytes),
            Column::new("b", DataType::Bool),
        ];
        Table::new("t", TableKind::Tenant, columns, &["id"])
    }

    #[test]
    fn rows_are_read_as_they_are_shown() {
        let table = table();
        let values = vec![
            Value::Int(i64::MAX),
            Value::Numeric(Numeric::parse("123456789012345678901234567890.10").unwrap()),
            Value::Float(0.1 + 0.2),
            Value::Json("{\"b\": 1,   \"a\": [1.50]}".into()),
            Value::Bytes(vec![0, 255]),
            Value::Null,
        ];
        let text = object(Some(&table), &values).to_string();
        let Json::Object(back) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        assert_eq!(read(&table, &back).unwrap(), values, "{text}");
        let mut short = back.clone();
        short.remove("f");
        assert_eq!(read(&table, &short).unwrap_err().sqlstate, "22023");
        let mut long = back.clone();
        long.insert("z".into(), json!(1));
        assert_eq!(read(&table, &long).unwrap_err().sqlstate, "42703");
        let mut wrong = back;
        wrong.insert("id".into(), json!("x"));
        assert_eq!(read(&table, &wrong).unwrap_err().sqlstate, "22P02");
    }

    #[test]
    fn a_cursor_is_the_key_of_its_table_or_refused() {
        let table = table();
        let key = vec![Value::text("acme"), Value::Int(7)];
        assert_eq!(read_cursor(&table, &cursor(&key)).unwrap(), key);
        let others =
            [vec![Value::Int(7)], vec![Value::Int(7), Value::text("acme")], vec![Value::text("acme"), Value::Null]];
        for other in others {
            assert_eq!(read_cursor(&table, &cursor(&other)).unwrap_err().sqlstate, "22023", "{other:?}");
        }
        for wrong in ["", "!", "AAAA", "a"] {
            assert_eq!(read_cursor(&table, wrong).unwrap_err().sqlstate, "22023", "{wrong}");
        }
    }
}
