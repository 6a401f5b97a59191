//! Tenant tables: their columns, keys, and which refers to which.

use super::super::output::Failure;
use super::server::{Server, identifier};
use isles_kernel::schema::relation_parts;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Column {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) ty: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Table {
    /// As `SHOW TABLES` names it.
    pub(super) name: String,
    /// Without those that are computed from others.
    pub(super) columns: Vec<Column>,
    pub(super) key: Vec<String>,
    /// Whether a column is `GENERATED ALWAYS AS IDENTITY`: an insert must say that it means it.
    pub(super) overrides: bool,
    /// Those that it refers to.
    pub(super) parents: BTreeSet<String>,
}

impl Table {
    /// As SQL names it, whatever the search path.
    pub(super) fn quoted(&self) -> String {
        let (schema, name) = relation_parts(&self.name);
        format!("{}.{}", identifier(schema), identifier(name))
    }

    pub(super) fn column_list(&self) -> String {
        list(self.columns.iter().map(|column| column.name.as_str()))
    }
}

/// Names as SQL lists them.
pub(super) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(identifier).collect::<Vec<_>>().join(", ")
}

const COLUMNS: &str = "SELECT n.nspname, c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), \
     a.attgenerated, a.attidentity FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid \
     JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
     WHERE c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped AND n.nspname NOT IN ('pg_catalog', 'information_schema') \
     ORDER BY n.nspname, c.relname, a.attnum";

const CONSTRAINTS: &str = "SELECT n.nspname, c.relname, k.contype, k.conkey::text, fn.nspname, f.relname \
     FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.conrelid \
     JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
     LEFT JOIN pg_catalog.pg_class f ON f.oid = k.confrelid LEFT JOIN pg_catalog.pg_namespace fn ON fn.oid = f.relnamespace \
     WHERE k.contype IN ('p', 'f')";

fn relation(schema: &str, name: &str) -> String {
    isles_kernel::schema::relation_name(schema, name)
}

/// All tenant tables, parents before children; of a ring, in any order.
pub(super) async fn tables(server: &Server) -> Result<Vec<Table>, Failure> {
    let mut tables = BTreeMap::new();
    for row in server.query("SHOW TABLES").await?.rows {
        if let [Some(name), Some(kind), ..] = &row[..]
            && kind == "tenant"
        {
            tables.insert(name.clone(), Table { name: name.clone(), ..Table::default() });
        }
    }
    let mut numbers: BTreeMap<(String, String), String> = BTreeMap::new();
    for row in server.query(COLUMNS).await?.rows {
        let row: Vec<String> = row.into_iter().map(Option::unwrap_or_default).collect();
        let [schema, table, number, name, ty, generated, identity] = &row[..] else { continue };
        let relation = relation(schema, table);
        let Some(table) = tables.get_mut(&relation) else { continue };
        numbers.insert((relation, number.clone()), name.clone());
        if generated.is_empty() {
            table.columns.push(Column { name: name.clone(), ty: ty.clone() });
            table.overrides |= identity == "a";
        }
    }
    for row in server.query(CONSTRAINTS).await?.rows {
        let row: Vec<String> = row.into_iter().map(Option::unwrap_or_default).collect();
        let [schema, table, kind, columns, parent_schema, parent] = &row[..] else { continue };
        let name = relation(schema, table);
        let Some(table) = tables.get_mut(&name) else { continue };
        if kind == "p" {
            let columns = columns.trim_matches(['{', '}']).split(',');
            table.key = columns.filter_map(|number| numbers.get(&(name.clone(), number.into())).cloned()).collect();
        } else {
            table.parents.insert(relation(parent_schema, parent));
        }
    }
    Ok(parents_first(tables.into_values().collect()))
}

fn parents_first(mut left: Vec<Table>) -> Vec<Table> {
    let mut ordered = Vec::new();
    while !left.is_empty() {
        let waits =
            |table: &Table| left.iter().any(|other| other.name != table.name && table.parents.contains(&other.name));
        let next = left.iter().position(|table| !waits(table)).unwrap_or(0);
        ordered.push(left.remove(next));
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_before_children_and_rings_end() {
        let table = |(name, parents): &(&str, &[&str])| Table {
            name: (*name).into(),
            parents: parents.iter().map(|parent| (*parent).into()).collect(),
            ..Table::default()
        };
        let order = |tables: &[(&str, &[&str])]| {
            let ordered = parents_first(tables.iter().map(table).collect());
            ordered.into_iter().map(|table| table.name).collect::<Vec<_>>()
        };
        assert_eq!(order(&[("a", &["b"]), ("b", &["c", "b"]), ("c", &[])]), ["c", "b", "a"]);
        assert_eq!(order(&[("a", &["b"]), ("b", &["a"])]).len(), 2);
    }
}
