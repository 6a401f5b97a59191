//! The schema as it looks to whoever is locked to a tenant.
//!
//! Such a role uses tenant tables and reads reference tables. Of the others it sees not even names: what they are called,
//! and what views say of them, is the application's own business.
//!
//! A view is hidden if a hidden name stands in its text. That may hide one that only looks as if it used the table, which
//! harms nobody; the other way round a name would be told.

use super::{Schema, Sequence, TableKind, nextval_default, plain_name};
use std::collections::BTreeSet;

impl Schema {
    /// This schema without what is not for a tenant to use.
    pub fn of_one_tenant(&self) -> Schema {
        let mut own = self.clone();
        own.tables.retain(|_, table| matches!(table.kind, TableKind::Tenant | TableKind::Reference));
        own.sequences.retain(|_, sequence| self.feeds_tenants(sequence));
        let tables = self.tables.keys().filter(|name| !own.tables.contains_key(*name));
        let mut hidden: BTreeSet<&str> = tables.map(|name| plain_name(name)).collect();
        // A view may stand on another one.
        loop {
            let views = own.views.values().filter(|view| hidden.iter().any(|name| names(&view.sql, name)));
            let more: Vec<String> = views.map(|view| view.name.clone()).collect();
            if more.is_empty() {
                return own;
            }
            own.views.retain(|name, _| !more.contains(name));
            hidden.extend(self.views.keys().filter(|name| more.contains(*name)).map(|name| plain_name(name)));
        }
    }

    /// Whether numbers of a sequence go to tenant tables: it is one's own, or gives one its defaults.
    pub fn feeds_tenants(&self, sequence: &Sequence) -> bool {
        let call = nextval_default(&sequence.name);
        // As it was written: with the cast, or without.
        let begun = call.trim_end_matches("::regclass)");
        let is_owner = |name: &str| sequence.owner.as_ref().is_some_and(|(table, _)| table == name);
        let drawn = |sql: &Option<String>| sql.as_ref().is_some_and(|sql| sql.contains(begun));
        let mut tables = self.tables.values().filter(|table| table.kind == TableKind::Tenant);
        tables.any(|table| is_owner(&table.name) || table.columns.iter().any(|column| drawn(&column.default_sql)))
    }
}

/// Whether a name stands in a text, in whatever case.
fn names(sql: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    match name.chars().all(is_part) {
        true => sql.split(|c| !is_part(c)).any(|word| word.to_lowercase() == name.to_lowercase()),
        false => sql.contains(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Column, Table, View};
    use crate::value::DataType;

    #[test]
    fn what_is_not_for_a_tenant_is_not_there() {
        let mut schema = Schema::default();
        let kinds = [("notes", TableKind::Tenant), ("plans", TableKind::Reference), ("users", TableKind::Global)];
        for (name, kind) in kinds {
            let columns = vec![Column::new("id", DataType::Int8).not_null()];
            schema.tables.insert(name.into(), Table::new(name, kind, columns, &["id"]));
        }
        let views = [
            ("own", "SELECT id FROM notes JOIN plans USING (id)"),
            ("theirs", "SELECT u.id FROM public.Users u"),
            ("above", "SELECT * FROM theirs"),
            ("like", "SELECT id AS users_id FROM notes"),
        ];
        for (name, sql) in views {
            let view = View { name: name.into(), sql: sql.into(), columns: Vec::new(), path: None };
            schema.views.insert(name.into(), view);
        }
        for (name, owner) in [("notes_id_seq", Some("notes")), ("users_id_seq", Some("users")), ("free", None)] {
            let owner = owner.map(|table: &str| (table.to_string(), "id".to_string()));
            let ty = DataType::Int8;
            let sequence =
                Sequence { name: name.into(), start: 1, increment: 1, min: 1, max: 9, cycle: false, ty, owner };
            schema.sequences.insert(name.into(), sequence);
        }
        let own = schema.of_one_tenant();
        assert_eq!(own.tables.keys().collect::<Vec<_>>(), ["notes", "plans"]);
        assert_eq!(own.views.keys().collect::<Vec<_>>(), ["like", "own"]);
        assert_eq!(own.sequences.keys().collect::<Vec<_>>(), ["notes_id_seq"]);
    }
}
