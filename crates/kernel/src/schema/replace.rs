//! How a copy of a table takes its place.
//!
//! A table whose rows must lie elsewhere is not altered: a copy of it is made and filled while the table goes on to be
//! used, and then both change their names, in one change of the schema.
//!
//!     notes                ── ReplaceTable ─►  _isles_old_7.notes
//!     _isles_copy_7.notes  ── ReplaceTable ─►  notes
//!
//! The copy and what it replaces are in namespaces of ours, one of each for a copy, so that keys keep their names: those
//! are in the namespace of their table. To clients neither namespace exists.
//!
//! What hangs on the name (comments, owned sequences, views) needs no change. What hangs on the table itself (foreign
//! keys, entries of a global index) stands in the way, and whoever makes a copy makes sure that there is none.

use super::apply::{Result, check_table, invalid, no_table};
use super::{Schema, SchemaChange, Table, TableKind, plain_name};

/// Namespaces of copies, and of what they have replaced; a number follows.
const COPY_NAMESPACE: &str = "_isles_copy_";
const OLD_NAMESPACE: &str = "_isles_old_";

/// Whether a namespace is that of a copy, or of what one has replaced.
pub fn is_copy_namespace(name: &str) -> bool {
    let number = name.strip_prefix(COPY_NAMESPACE).or_else(|| name.strip_prefix(OLD_NAMESPACE));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A copy in the making: what it is called, and what makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCopy {
    pub number: u64,
    /// The copy's name until it takes the table's place.
    pub copy: String,
    /// The table's name from then on.
    pub aside: String,
    pub changes: Vec<SchemaChange>,
}

impl Schema {
    /// A copy of a table, of another kind, and without rows.
    pub fn new_copy(&self, table: &Table, kind: TableKind) -> NewCopy {
        let taken = |number: &u64| self.namespaces.iter().any(|name| *name == namespaces(*number)[0]);
        let number = (self.version.next().0..).find(|number| !taken(number)).expect("there is always another");
        let [copy, old] = namespaces(number);
        let within = |namespace: &str| format!("{namespace}.{}", plain_name(&table.name));
        let mut made = Table {
            name: within(&copy),
            kind,
            primary_key_name: Some(table.primary_key_name()),
            foreign_keys: Vec::new(),
            ..table.clone()
        };
        // Under a name that it can keep when the table has another one.
        for key in &mut made.keys {
            key.stored = Some(format!("{copy}.{}", key.name));
        }
        let create = |namespace: &String| SchemaChange::CreateNamespace { namespace: namespace.clone() };
        let changes = vec![create(&copy), create(&old), SchemaChange::CreateTable(made)];
        NewCopy { number, copy: within(&copy), aside: within(&old), changes }
    }

    /// The numbers of copies that are there, before and after they have taken their tables' places.
    pub fn copies(&self) -> Vec<u64> {
        let number = |name: &String| name.strip_prefix(COPY_NAMESPACE).and_then(|number| number.parse().ok());
        self.namespaces.iter().filter_map(number).collect()
    }

    /// What removes a copy that has not taken its table's place, or what one has replaced.
    pub fn without_copy(number: u64, table: &str) -> Vec<SchemaChange> {
        let drop = |namespace: String| SchemaChange::DropNamespace { namespace };
        let table = SchemaChange::DropTable { table: table.into() };
        [table].into_iter().chain(namespaces(number).map(drop)).collect()
    }

    pub(super) fn replace_table(&mut self, name: &str, by: &str, aside: &str) -> Result<()> {
        let (old, new) = (self.table(name)?, self.table(by)?);
        if old.columns != new.columns || old.primary_key != new.primary_key {
            return invalid(format!("\"{by}\" is not a copy of \"{name}\""));
        }
        let refers = |table: &&Table| table.foreign_keys.iter().any(|foreign| foreign.table == name);
        if let Some(other) = self.tables.values().find(refers) {
            return invalid(format!("cannot replace table \"{name}\" because table \"{}\" refers to it", other.name));
        }
        if !old.foreign_keys.is_empty() || old.global_keys().next().is_some() {
            return invalid(format!("cannot replace table \"{name}\", which has foreign keys or global indexes"));
        }
        if [by, aside].iter().any(|other| !is_copy_namespace(super::relation_parts(other).0)) {
            return invalid(format!("\"{by}\" and \"{aside}\" are not names of copies"));
        }
        self.check_relation_name(aside)?;
        self.check_free(aside)?;
        let Some(mut old) = self.tables.remove(name) else { return Err(no_table(name)) };
        let Some(mut new) = self.tables.remove(by) else { return Err(no_table(by)) };
        new.name = name.into();
        new.primary_key_name.clone_from(&old.primary_key_name);
        let stored: Vec<String> = old.keys.iter().map(|key| old.stored_key(key)).collect();
        old.primary_key_name = Some(old.primary_key_name());
        old.name = aside.into();
        old.keys.iter_mut().zip(stored).for_each(|(key, stored)| key.stored = Some(stored));
        check_table(&new)?;
        self.tables.insert(name.into(), new);
        self.tables.insert(aside.into(), old);
        Ok(())
    }
}

fn namespaces(number: u64) -> [String; 2] {
    [format!("{COPY_NAMESPACE}{number}"), format!("{OLD_NAMESPACE}{number}")]
}

#[cfg(test)]
mod tests {
    use super::super::{Column, CommentOn, Deferral, ForeignKey, Key, OnChange, Sequence};
    use super::*;
    use crate::value::DataType;

    fn notes() -> Table {
        let columns = vec![Column::new("id", DataType::Int8).not_null(), Column::new("owner", DataType::Text)];
        let mut table = Table::new("notes", TableKind::Global, columns, &["id"]);
        table.keys = vec![Key::index("notes_owner", &["owner"])];
        table
    }

    fn with_notes() -> Schema {
        let sequence = Sequence {
            name: "notes_id_seq".into(),
            start: 1,
            increment: 1,
            min: 1,
            max: i64::MAX,
            cycle: false,
            ty: DataType::Int8,
            owner: Some(("notes".into(), "id".into())),
        };
        let comment = SchemaChange::SetComment { on: CommentOn::Index("notes_owner".into()), text: Some("who".into()) };
        let made = [SchemaChange::CreateTable(notes()), SchemaChange::CreateSequence(sequence), comment];
        Schema::default().apply(&made).expect("valid")
    }

    #[test]
    fn a_copy_takes_the_place_of_its_table_with_all_that_hangs_on_the_name() {
        let before = with_notes();
        let copy = before.new_copy(&before.tables["notes"], TableKind::Tenant);
        let both = before.apply(&copy.changes).expect("a copy fits in");
        assert!(both.tables[&copy.copy].is_internal() && !both.has_namespace("_isles_copy_2"));
        let replace =
            SchemaChange::ReplaceTable { table: "notes".into(), by: copy.copy.clone(), aside: copy.aside.clone() };
        let swapped = both.apply(std::slice::from_ref(&replace)).expect("valid");
        let after = swapped.apply(&Schema::without_copy(copy.number, &copy.aside)).expect("valid");
        let mut wanted = notes();
        wanted.kind = TableKind::Tenant;
        wanted.keys[0].stored = Some("_isles_copy_2.notes_owner".into());
        assert_eq!(after.tables, [("notes".to_string(), wanted)].into());
        assert_eq!(
            (&after.sequences, &after.comments, &after.namespaces),
            (&before.sequences, &before.comments, &before.namespaces)
        );
        assert_eq!([&before, &both, &swapped, &after].map(Schema::copies), [vec![], vec![2], vec![2], vec![]]);
        assert_eq!(swapped.tables[&copy.aside].keys[0].stored.as_deref(), Some("notes_owner"));
        // Once more: the copy's key has a name of its own, whatever the first one left.
        let again = after.new_copy(&after.tables["notes"], TableKind::Global);
        assert!(after.apply(&again.changes).is_ok());
        let undone = both.apply(&Schema::without_copy(copy.number, &copy.copy)).expect("valid");
        assert_eq!(undone.hash(), before.hash());
    }

    #[test]
    fn what_is_no_copy_or_is_referred_to_is_not_replaced() {
        let before = with_notes();
        let copy = before.new_copy(&before.tables["notes"], TableKind::Tenant);
        let both = before.apply(&copy.changes).expect("a copy fits in");
        let replace = |by: &str, aside: &str| SchemaChange::ReplaceTable {
            table: "notes".into(),
            by: by.into(),
            aside: aside.into(),
        };
        let refused = |schema: &Schema, change| schema.apply(&[change]).expect_err("refused").to_string();
        let right = || replace(&copy.copy, &copy.aside);
        let column = Column::new("more", DataType::Text);
        let altered = both.apply(&[SchemaChange::AddColumn { table: "notes".into(), column }]).expect("valid");
        assert_eq!(refused(&altered, right()), "\"_isles_copy_2.notes\" is not a copy of \"notes\"");
        let mut other = Table { name: "other".into(), keys: vec![], ..notes() };
        other.foreign_keys = vec![ForeignKey {
            name: "of".into(),
            columns: vec!["id".into()],
            table: "notes".into(),
            references: vec!["id".into()],
            on_delete: OnChange::Cascade,
            on_update: OnChange::NoAction,
            deferral: Deferral::None,
        }];
        let referred = both.apply(&[SchemaChange::CreateTable(other)]).expect("valid");
        assert_eq!(refused(&referred, right()), "cannot replace table \"notes\" because table \"other\" refers to it");
        assert_eq!(
            refused(&both, replace(&copy.copy, "elsewhere")),
            "\"_isles_copy_2.notes\" and \"elsewhere\" are not names of copies"
        );
    }
}
