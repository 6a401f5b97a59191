//! How two configurations differ, field by field.
//!
//! Paths are those of [`FieldError`](super::FieldError). Lists of names (`members`) are compared as a whole; entries of
//! `previousGenerations` by their position.

use super::PlacementConfig;
use super::errors::at;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FieldChange {
    pub field: String,
    /// None if it is new.
    pub old: Option<Value>,
    /// None if it is gone.
    pub new: Option<Value>,
}

/// Every field that differs, in order of path.
pub fn differences(old: &PlacementConfig, new: &PlacementConfig) -> Vec<FieldChange> {
    let value = |config: &PlacementConfig| serde_json::to_value(config).unwrap_or(Value::Null);
    let mut found = Vec::new();
    compare("", Some(&value(old)), Some(&value(new)), &mut found);
    found
}

fn compare(path: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<FieldChange>) {
    match (old, new) {
        (old, new) if old == new => {}
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
                compare(&at(path, key), old.get(key), new.get(key), found);
            }
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) if has_objects(old) || has_objects(new) => {
            for i in 0..old.len().max(new.len()) {
                compare(&format!("{path}[{i}]"), old.get(i), new.get(i), found);
            }
        }
        (old, new) => found.push(FieldChange { field: path.to_owned(), old: old.cloned(), new: new.cloned() }),
    }
}

fn has_objects(values: &[Value]) -> bool {
    values.iter().any(Value::is_object)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn config(text: &str) -> PlacementConfig {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn each_field_that_differs_is_named_once() {
        let old = config(
            r#"{"version":2,"groups":{"vc":{"totalShards":16,"members":["a","b"]}},"baseRegions":{"apac":100}}"#,
        );
        let new = config(
            r#"{"version":2,"groups":{"vc":{"totalShards":32,"members":["b","a"]},"x":{"totalShards":1}},
                "baseRegions":{"apac":60,"me":40},"previousGenerations":[{"generation":1}]}"#,
        );
        let found: Vec<String> = differences(&old, &new)
            .iter()
            .map(|change| {
                let text = |value: &Option<Value>| value.as_ref().map_or("-".to_owned(), Value::to_string);
                format!("{} {} {}", change.field, text(&change.old), text(&change.new))
            })
            .collect();
        assert_eq!(
            found,
            [
                "baseRegions.apac 100 60",
                "baseRegions.me - 40",
                "groups.vc.members [\"a\",\"b\"] [\"b\",\"a\"]",
                "groups.vc.totalShards 16 32",
                "groups.x - {\"totalShards\":1}",
                "previousGenerations - [{\"generation\":1}]",
            ]
        );
        assert_eq!(differences(&new, &new), []);
    }
}
