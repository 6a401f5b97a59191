//! How a schema is made from nothing: for a shard that comes when the others have it already.

use super::{Schema, SchemaChange, Table};
use std::collections::BTreeSet;

impl Schema {
    /// Changes that make this schema out of an empty one, but for its version. Tables come after those that they refer
    /// to, and after the entries of their indexes; where these refer back, the foreign keys come last.
    pub fn script(&self) -> Vec<SchemaChange> {
        let namespaces = self.namespaces.iter().map(|name| SchemaChange::CreateNamespace { namespace: name.clone() });
        let mut script: Vec<SchemaChange> = namespaces.collect();
        script.extend(self.sequences.values().cloned().map(SchemaChange::CreateSequence));
        self.script_tables(&mut script);
        script.extend(self.objects.values().cloned().map(SchemaChange::CreateObject));
        script.extend(self.views.values().cloned().map(SchemaChange::CreateView));
        let comment =
            |(on, text): &(_, String)| SchemaChange::SetComment { on: Clone::clone(on), text: Some(text.clone()) };
        script.extend(self.comments.iter().map(comment));
        script
    }

    fn script_tables(&self, script: &mut Vec<SchemaChange>) {
        let (mut made, mut left): (BTreeSet<&str>, Vec<&Table>) = (BTreeSet::new(), self.tables.values().collect());
        loop {
            let is_ready = |table: &&Table| {
                let target = |name: &str| name == table.name || made.contains(name);
                table.foreign_keys.iter().all(|foreign| target(&foreign.table))
                    && table.keys.iter().filter_map(|key| key.global.as_ref()).all(|entries| target(entries))
            };
            let (ready, waiting): (Vec<&Table>, Vec<&Table>) = left.into_iter().partition(is_ready);
            made.extend(ready.iter().map(|table| table.name.as_str()));
            script.extend(ready.iter().map(|table| SchemaChange::CreateTable((*table).clone())));
            left = waiting;
            if ready.is_empty() {
                break;
            }
        }
        let bare = |table: &&Table| SchemaChange::CreateTable(Table { foreign_keys: Vec::new(), ..(*table).clone() });
        script.extend(left.iter().map(bare));
        for table in left {
            let add = |foreign_key| SchemaChange::AddForeignKey { table: table.name.clone(), foreign_key };
            script.extend(table.foreign_keys.iter().cloned().map(add));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Column, CommentOn, Deferral, ForeignKey, Key, OnChange, Sequence, TableKind, View};
    use super::*;
    use crate::names::SchemaVersion;
    use crate::value::DataType;

    fn table(name: &str, refers: &[&str]) -> Table {
        let columns = vec![Column::new("id", DataType::Int8).not_null(), Column::new("other", DataType::Int8)];
        let mut table = Table::new(name, TableKind::Tenant, columns, &["id"]);
        let plain = name.rsplit('.').next().expect("a last part");
        table.keys.push(Key::index(&format!("{plain}_other"), &["other"]));
        table.foreign_keys = refers
            .iter()
            .map(|target| ForeignKey {
                name: format!("{plain}_to_{}", target.replace('.', "_")),
                columns: vec!["other".into()],
                table: (*target).into(),
                references: vec!["id".into()],
                on_delete: OnChange::NoAction,
                on_update: OnChange::NoAction,
                deferral: Deferral::None,
            })
            .collect();
        table
    }

    #[test]
    fn a_script_makes_the_schema_that_it_came_from() {
        let sequence = Sequence {
            name: "numbers".into(),
            start: 1,
            increment: 1,
            min: 1,
            max: 9,
            cycle: true,
            ty: DataType::Int4,
            owner: None,
        };
        let view = View { name: "seen".into(), sql: "SELECT 1".into(), columns: vec![], path: None };
        let create = SchemaChange::CreateTable;
        let foreign = |table: &Table| SchemaChange::AddForeignKey {
            table: table.name.clone(),
            foreign_key: table.foreign_keys[0].clone(),
        };
        let (ring_a, ring_b) = (table("ring_a", &["ring_b"]), table("ring_b", &["ring_a"]));
        let steps = [
            SchemaChange::CreateNamespace { namespace: "app".into() },
            create(table("z", &[])),
            create(table("y", &["z"])),
            create(table("a", &["y", "a"])),
            create(table("app.inner", &["a"])),
            create(table("ring_a", &[])),
            create(table("ring_b", &[])),
            foreign(&ring_a),
            foreign(&ring_b),
            SchemaChange::CreateSequence(sequence),
            SchemaChange::CreateView(view),
            SchemaChange::SetComment { on: CommentOn::Table("z".into()), text: Some("the last".into()) },
            SchemaChange::SetComment { on: CommentOn::Database, text: Some("all".into()) },
        ];
        let schema = steps.iter().try_fold(Schema::default(), |schema, step| schema.apply(std::slice::from_ref(step)));
        let schema = schema.expect("valid");
        let again = Schema::default().apply(&schema.script()).expect("a script is valid");
        assert_eq!(Schema { version: schema.version, ..again }, schema);
        assert_eq!(schema.version, SchemaVersion(steps.len() as u64));
        assert!(Schema::default().script().is_empty());
    }
}
