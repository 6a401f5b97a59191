//! What operators send as JSON, taken apart field by field, so that every refusal names the field that it is about.

use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// An object of which fields are taken until none is left.
pub(super) struct Fields {
    left: Map<String, Value>,
    /// What it is, for people: `a job`, `changes[3]`.
    what: String,
}

impl Fields {
    pub(super) fn of(value: Value, what: impl Into<String>) -> Result<Fields, SqlError> {
        let what = what.into();
        match value {
            Value::Object(left) => Ok(Fields { left, what }),
            _ => Err(SqlError::new("22023", format!("{what} is a JSON object"))),
        }
    }

    pub(super) fn refuse(&self, name: &str, why: impl std::fmt::Display) -> SqlError {
        SqlError::new("22023", format!("{}: field \"{name}\": {why}", self.what))
    }

    pub(super) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, SqlError> {
        match self.left.remove(name) {
            Some(value) => serde_json::from_value(value).map_err(|fault| self.refuse(name, fault)),
            None => Err(self.refuse(name, "it is missing")),
        }
    }

    /// One that may be left out, or null.
    pub(super) fn take_if_there<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, SqlError> {
        match self.left.get(name) {
            None | Some(Value::Null) => {
                self.left.remove(name);
                Ok(None)
            }
            Some(_) => self.take(name).map(Some),
        }
    }

    /// A shard by its name or its number: 2 is `s2`.
    pub(super) fn shard(&self, name: &str, value: Value) -> Result<ShardId, SqlError> {
        let text = match value {
            Value::String(text) => text,
            Value::Number(number) if number.is_u64() => format!("s{number}"),
            other => return Err(self.refuse(name, format!("{other} is neither a shard's name nor its number"))),
        };
        ShardId::new(text).map_err(|error| self.refuse(name, error))
    }

    /// Nothing may be left: a misspelt field would be one that is not heeded.
    pub(super) fn end(self) -> Result<(), SqlError> {
        match self.left.keys().next() {
            Some(name) => Err(self.refuse(name, "there is no such field")),
            None => Ok(()),
        }
    }
}
