//! How a schema changes, and what must hold of it.
//!
//! [`Schema::apply`] is the judge of every change: what it refuses, no shard is asked to do. It looks at the schema
//! alone; what depends on rows (a duplicate under a new unique key, a null in a column that becomes not null) is found
//! by the shards.

use super::{
    BUCKET_COLUMN, Column, CommentOn, Expression, ForeignKey, HIDDEN_KEY_COLUMN, INDEX_NAMESPACE, Key, KeyOver,
    MAX_COLUMNS, MAX_IDENTIFIER_BYTES, MAX_KEY_COLUMNS, MAX_TABLES, Object, PUBLIC, RESERVED_PREFIX, Schema,
    SchemaChange, SchemaError, Sequence, TENANT_COLUMN, TENANT_KEY_COLUMN, Table, TableKind, View, is_copy_namespace,
    nextval_default, relation_name, relation_parts,
};
use crate::value::DataType;

pub(super) type Result<T> = std::result::Result<T, SchemaError>;

/// Namespaces that are there and hold nothing of a client's.
const RESERVED_NAMESPACES: [&str; 3] = ["pg_catalog", "information_schema", "pg_toast"];

impl Schema {
    /// The schema after `changes`, one version later.
    pub fn apply(&self, changes: &[SchemaChange]) -> Result<Schema> {
        let mut next = self.clone();
        changes.iter().try_for_each(|change| next.apply_one(change))?;
        next.version = self.version.next();
        Ok(next)
    }

    fn apply_one(&mut self, change: &SchemaChange) -> Result<()> {
        match change {
            SchemaChange::CreateNamespace { namespace } => self.create_namespace(namespace),
            SchemaChange::DropNamespace { namespace } => self.drop_namespace(namespace),
            SchemaChange::CreateTable(table) => self.create_table(table),
            SchemaChange::DropTable { table } => self.drop_table(table),
            SchemaChange::RenameTable { table, to } => self.rename_table(table, to),
            SchemaChange::AddColumn { table, column } => self.add_column(table, column),
            SchemaChange::DropColumn { table, column } => self.drop_column(table, column),
            SchemaChange::RenameColumn { table, column, to } => self.rename_column(table, column, to),
            SchemaChange::AlterColumn { table, column, .. } => self.alter_column(table, column),
            SchemaChange::Rekey { table, kind, primary_key, name } => {
                self.rekey(table, kind, primary_key, name.as_deref())
            }
            SchemaChange::ReplaceTable { table, by, aside } => self.replace_table(table, by, aside),
            SchemaChange::CreateKey { table, key } => self.create_key(table, key),
            SchemaChange::DropKey { table, key } => self.drop_key(table, key),
            SchemaChange::RenameKey { table, key, to } => self.rename_key(table, key, to),
            SchemaChange::AddCheck { table, check } => {
                self.check_constraint_free(table, &check.name)?;
                self.edit(table, |table| {
                    table.checks.push(check.clone());
                    Ok(())
                })
            }
            SchemaChange::DropCheck { table, check } => self.drop_check(table, check),
            SchemaChange::AddForeignKey { table, foreign_key } => self.add_foreign_key(table, foreign_key),
            SchemaChange::DropForeignKey { table, foreign_key } => self.drop_foreign_key(table, foreign_key),
            SchemaChange::RenameConstraint { table, constraint, to } => self.rename_constraint(table, constraint, to),
            SchemaChange::CreateObject(object) => self.create_object(object),
            SchemaChange::DropObject { name } => self.objects.remove(name).map(drop).ok_or_else(|| no_table(name)),
            SchemaChange::CreateView(view) => self.create_view(view),
            SchemaChange::DropView { view } => self.drop_view(view),
            SchemaChange::RenameView { view, to } => self.rename_view(view, to),
            SchemaChange::CreateSequence(sequence) => self.create_sequence(sequence),
            SchemaChange::AlterSequence(sequence) => self.alter_sequence(sequence),
            SchemaChange::DropSequence { sequence } => self.drop_sequence(sequence),
            SchemaChange::RenameSequence { sequence, to } => self.rename_sequence(sequence, to),
            SchemaChange::SetComment { on, text } => self.set_comment(on, text.as_deref()),
        }
    }

    /// Changes a table and checks it whole, with what refers to it.
    fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Table) -> Result<()>) -> Result<()> {
        let table = self.tables.get_mut(name).ok_or_else(|| no_table(name))?;
        edit(table)?;
        check_table(table)?;
        self.check_references(name)
    }

    /// Foreign keys of the table and to it.
    fn check_references(&self, name: &str) -> Result<()> {
        for table in self.tables.values() {
            let concerned = |foreign: &&ForeignKey| table.name == name || foreign.table == name;
            table.foreign_keys.iter().filter(concerned).try_for_each(|foreign| self.check_foreign(table, foreign))?;
        }
        Ok(())
    }

    fn create_namespace(&mut self, name: &str) -> Result<()> {
        if name != INDEX_NAMESPACE && !is_copy_namespace(name) {
            check_name(name)?;
        }
        if name.contains('.') {
            return invalid(format!("the name of schema \"{name}\" may not contain a dot"));
        }
        if RESERVED_NAMESPACES.contains(&name) || name == PUBLIC || self.namespaces.contains(name) {
            return Err(SchemaError::NamespaceExists(name.into()));
        }
        if self.namespaces.len() >= MAX_TABLES {
            return invalid(format!("a database has at most {MAX_TABLES} schemas"));
        }
        self.namespaces.insert(name.into());
        Ok(())
    }

    fn drop_namespace(&mut self, name: &str) -> Result<()> {
        if !self.namespaces.contains(name) {
            return Err(SchemaError::NoNamespace(name.into()));
        }
        if let Some(relation) = self.relations_of(name).next() {
            return invalid(format!("cannot drop schema \"{name}\" because \"{relation}\" is in it"));
        }
        self.namespaces.remove(name);
        self.comments.retain(|(on, _)| *on != CommentOn::Schema(name.into()));
        Ok(())
    }

    /// Tables, views and sequences of a namespace.
    fn relations_of(&self, namespace: &str) -> impl Iterator<Item = &String> {
        let all = self.tables.keys().chain(self.views.keys()).chain(self.sequences.keys()).chain(self.objects.keys());
        all.filter(move |name| relation_parts(name).0 == namespace)
    }

    /// The name of a relation, in a namespace that is there.
    pub(super) fn check_relation_name(&self, relation: &str) -> Result<()> {
        let (namespace, name) = relation_parts(relation);
        if namespace != PUBLIC && !self.namespaces.contains(namespace) {
            return Err(SchemaError::NoNamespace(namespace.into()));
        }
        check_name(name)
    }

    fn create_table(&mut self, table: &Table) -> Result<()> {
        self.check_relation_name(&table.name)?;
        self.check_free(&table.name)?;
        if self.tables.len() >= MAX_TABLES {
            return invalid(format!("a database has at most {MAX_TABLES} tables"));
        }
        check_table(table)?;
        self.check_group(&table.name, &table.kind)?;
        self.check_free(&table.key_relation(&table.primary_key_name()))?;
        for key in &table.keys {
            self.check_free(&table.key_relation(&key.name))?;
            self.check_entries(key)?;
        }
        for foreign in &table.foreign_keys {
            self.check_foreign(table, foreign)?;
        }
        self.tables.insert(table.name.clone(), table.clone());
        Ok(())
    }

    /// Tables of a group share their buckets.
    fn check_group(&self, name: &str, kind: &TableKind) -> Result<()> {
        let TableKind::Hash { group, buckets, .. } = kind else { return Ok(()) };
        let differs = |table: &&Table| match &table.kind {
            TableKind::Hash { group: other, buckets: others, .. } => {
                table.name != name && other == group && others != buckets
            }
            _ => false,
        };
        match self.tables.values().find(differs) {
            Some(other) => {
                invalid(format!("group \"{group}\" of table \"{}\" has another number of buckets", other.name))
            }
            None => Ok(()),
        }
    }

    fn check_foreign(&self, table: &Table, foreign: &ForeignKey) -> Result<()> {
        check_name(&foreign.name)?;
        let target = if foreign.table == table.name { table } else { self.table(&foreign.table)? };
        if foreign.columns.len() != foreign.references.len() || foreign.columns.is_empty() {
            return invalid(format!("foreign key \"{}\" needs as many columns as it references", foreign.name));
        }
        check_columns(table, &foreign.columns)?;
        check_columns(target, &foreign.references)?;
        if !target.is_unique_over(&foreign.references) {
            let message = format!("there is no unique key of \"{}\" that matches the foreign key", target.name);
            return invalid(message);
        }
        if !foreign.stays_on_shard(table, target) {
            return invalid(format!("foreign key \"{}\" leaves its shard", foreign.name));
        }
        Ok(())
    }

    fn drop_table(&mut self, name: &str) -> Result<()> {
        self.table(name)?;
        let refers = |t: &&Table| t.name != name && t.foreign_keys.iter().any(|f| f.table == name);
        if let Some(other) = self.tables.values().find(refers) {
            return invalid(format!("cannot drop table \"{name}\" because table \"{}\" refers to it", other.name));
        }
        if let Some((_, key)) = self.global_keys().find(|(_, key)| key.global.as_deref() == Some(name)) {
            return invalid(format!("cannot drop the entries of global index \"{}\"", key.name));
        }
        let table = self.tables.remove(name);
        self.sequences.retain(|_, sequence| sequence.owner.as_ref().is_none_or(|(owner, _)| owner != name));
        let relations = |table: Table| table.keys.iter().map(|key| table.key_relation(&key.name)).collect();
        let keys: Vec<String> = table.map(relations).unwrap_or_default();
        self.comments.retain(|(on, _)| match on {
            CommentOn::Table(table) | CommentOn::Column(table, _) | CommentOn::Constraint(table, _) => table != name,
            CommentOn::Index(key) => !keys.contains(key),
            _ => true,
        });
        Ok(())
    }

    fn rename_table(&mut self, name: &str, to: &str) -> Result<()> {
        self.table(name)?;
        self.check_new_name(name, to)?;
        let Some(mut table) = self.tables.remove(name) else { return Err(no_table(name)) };
        // The name of the primary key stays what it was.
        table.primary_key_name = Some(table.primary_key_name());
        table.name = to.into();
        self.tables.insert(to.into(), table);
        for foreign in self.tables.values_mut().flat_map(|table| &mut table.foreign_keys) {
            rename(&mut foreign.table, name, to);
        }
        for (owner, _) in self.sequences.values_mut().filter_map(|sequence| sequence.owner.as_mut()) {
            rename(owner, name, to);
        }
        self.edit_comments(|on| match on {
            CommentOn::Table(table) | CommentOn::Column(table, _) | CommentOn::Constraint(table, _) => {
                rename(table, name, to);
            }
            _ => {}
        });
        Ok(())
    }

    /// A relation is renamed within its namespace: its keys' names stay in theirs.
    fn check_new_name(&self, name: &str, to: &str) -> Result<()> {
        self.check_relation_name(to)?;
        if relation_parts(name).0 != relation_parts(to).0 {
            return invalid(format!("\"{name}\" cannot be moved to another schema"));
        }
        self.check_free(to)
    }

    fn add_column(&mut self, name: &str, column: &Column) -> Result<()> {
        self.edit(name, |table| {
            if table.position(&column.name).is_some() {
                return Err(SchemaError::ColumnExists { table: name.into(), column: column.name.clone() });
            }
            // The hidden key stays last.
            let at = table.visible_columns().len();
            table.columns.insert(at, column.clone());
            Ok(())
        })
    }

    fn drop_column(&mut self, name: &str, column: &str) -> Result<()> {
        let at = self.column_position(name, column)?;
        let table = self.table(name)?;
        let used = |columns: &[String]| columns.iter().any(|c| c == column);
        if used(&table.primary_key) || table.keys.iter().any(|key| key.uses(column)) {
            return invalid(format!("cannot drop column \"{column}\" because a key of \"{name}\" uses it"));
        }
        if table.foreign_keys.iter().any(|f| used(&f.columns)) {
            return invalid(format!("cannot drop column \"{column}\" because a foreign key of \"{name}\" uses it"));
        }
        if table.checks.iter().any(|check| check.expression.uses(column)) {
            return invalid(format!("cannot drop column \"{column}\" because a check of \"{name}\" uses it"));
        }
        self.edit(name, |table| {
            table.columns.remove(at);
            Ok(())
        })?;
        let owned = |sequence: &Sequence| sequence.owner.as_ref().is_some_and(|(t, c)| t == name && c == column);
        self.sequences.retain(|_, sequence| !owned(sequence));
        self.comments.retain(|(on, _)| *on != CommentOn::Column(name.into(), column.into()));
        Ok(())
    }

    fn column_position(&self, table: &str, column: &str) -> Result<usize> {
        let missing = || SchemaError::NoColumn { table: table.into(), column: column.into() };
        self.table(table)?.position(column).filter(|_| column != HIDDEN_KEY_COLUMN).ok_or_else(missing)
    }

    fn rename_column(&mut self, name: &str, column: &str, to: &str) -> Result<()> {
        let at = self.column_position(name, column)?;
        let table = self.table(name)?;
        if table.position(to).is_some() {
            return Err(SchemaError::ColumnExists { table: name.into(), column: to.into() });
        }
        if table_expressions(table).any(|expression| expression.uses(column)) {
            return invalid(format!("cannot rename column \"{column}\" because an expression of \"{name}\" uses it"));
        }
        for table in self.tables.values_mut() {
            for foreign in table.foreign_keys.iter_mut().filter(|foreign| foreign.table == name) {
                foreign.references.iter_mut().for_each(|reference| rename(reference, column, to));
            }
        }
        for (table, owner) in self.sequences.values_mut().filter_map(|sequence| sequence.owner.as_mut()) {
            if table == name {
                rename(owner, column, to);
            }
        }
        self.edit_comments(|on| match on {
            CommentOn::Column(table, other) if table == name => rename(other, column, to),
            _ => {}
        });
        self.edit(name, |table| {
            table.columns[at].name = to.into();
            rename_in_keys(table, column, to);
            Ok(())
        })
    }

    fn alter_column(&mut self, name: &str, column: &Column) -> Result<()> {
        let at = self.column_position(name, &column.name)?;
        let group = self.table(name)?.group().cloned();
        self.edit(name, |table| {
            let old = table.columns[at].ty;
            if old != column.ty && in_shard_key(table, &column.name) && !hashes_alike(old, column.ty) {
                let group = group.map(|group| group.to_string()).unwrap_or_default();
                return invalid(format!("column \"{}\" places rows in group \"{group}\"", column.name));
            }
            table.columns[at] = column.clone();
            Ok(())
        })
    }

    fn rekey(&mut self, name: &str, kind: &TableKind, primary_key: &[String], key_name: Option<&str>) -> Result<()> {
        let table = self.table(name)?;
        let key_name = key_name.map_or_else(|| table.primary_key_name(), Into::into);
        if key_name != table.primary_key_name() {
            self.check_free(&table.key_relation(&key_name))?;
        }
        self.check_group(name, kind)?;
        self.edit(name, |table| {
            table.kind = kind.clone();
            table.primary_key = primary_key.to_vec();
            table.primary_key_name = Some(key_name);
            if table.hidden_key {
                table.columns.retain(|column| !column.is_hidden());
                table.hidden_key = false;
            }
            Ok(())
        })
    }

    fn create_key(&mut self, name: &str, key: &Key) -> Result<()> {
        self.check_free(&self.table(name)?.key_relation(&key.name))?;
        if key.constraint {
            self.check_constraint_free(name, &key.name)?;
        }
        self.check_entries(key)?;
        self.edit(name, |table| {
            table.keys.push(key.clone());
            Ok(())
        })
    }

    /// A global index has a table of entries, for itself alone.
    fn check_entries(&self, key: &Key) -> Result<()> {
        let Some(entries) = &key.global else { return Ok(()) };
        if !self.tables.get(entries).is_some_and(Table::has_entries) {
            return invalid(format!("global index \"{}\" has no entries", key.name));
        }
        match self.global_keys().find(|(_, other)| other.global.as_ref() == Some(entries)) {
            Some((_, other)) => invalid(format!("the entries are those of global index \"{}\"", other.name)),
            None => Ok(()),
        }
    }

    fn drop_key(&mut self, name: &str, key: &str) -> Result<()> {
        let index = CommentOn::Index(self.table(name)?.key_relation(key));
        self.edit(name, |table| {
            let at = table.keys.iter().position(|k| k.name == key);
            let at = at.ok_or(SchemaError::NoKey { table: name.into(), key: key.into() })?;
            if table.keys[at].primary {
                return invalid(format!("the primary key of \"{name}\" cannot be dropped"));
            }
            table.keys.remove(at);
            Ok(())
        })?;
        self.comments.retain(|(on, _)| *on != index && *on != CommentOn::Constraint(name.into(), key.into()));
        Ok(())
    }

    fn rename_key(&mut self, name: &str, key: &str, to: &str) -> Result<()> {
        self.check_free(&self.table(name)?.key_relation(to))?;
        self.edit(name, |table| {
            let found = table.keys.iter_mut().find(|k| k.name == key);
            let found = found.ok_or(SchemaError::NoKey { table: name.into(), key: key.into() })?;
            // It is made anew, under its own name.
            (found.name, found.stored) = (to.into(), None);
            Ok(())
        })?;
        self.rename_constraint_comments(name, key, to);
        Ok(())
    }

    fn rename_constraint_comments(&mut self, table: &str, from: &str, to: &str) {
        let relation = |key: &str| relation_name(relation_parts(table).0, key);
        let (index, renamed) = (relation(from), relation(to));
        self.edit_comments(|on| match on {
            CommentOn::Index(name) => rename(name, &index, &renamed),
            CommentOn::Constraint(owner, name) if owner == table => rename(name, from, to),
            _ => {}
        });
    }

    fn drop_check(&mut self, name: &str, check: &str) -> Result<()> {
        self.edit(name, |table| {
            let at = table.checks.iter().position(|c| c.name == check).ok_or_else(|| no_constraint(name, check))?;
            table.checks.remove(at);
            Ok(())
        })?;
        self.comments.retain(|(on, _)| *on != CommentOn::Constraint(name.into(), check.into()));
        Ok(())
    }

    fn add_foreign_key(&mut self, name: &str, foreign_key: &ForeignKey) -> Result<()> {
        self.check_constraint_free(name, &foreign_key.name)?;
        self.edit(name, |table| {
            table.foreign_keys.push(foreign_key.clone());
            Ok(())
        })
    }

    fn drop_foreign_key(&mut self, name: &str, foreign_key: &str) -> Result<()> {
        self.edit(name, |table| {
            let at = table.foreign_keys.iter().position(|foreign| foreign.name == foreign_key);
            table.foreign_keys.remove(at.ok_or_else(|| no_constraint(name, foreign_key))?);
            Ok(())
        })?;
        self.comments.retain(|(on, _)| *on != CommentOn::Constraint(name.into(), foreign_key.into()));
        Ok(())
    }

    fn rename_constraint(&mut self, name: &str, constraint: &str, to: &str) -> Result<()> {
        check_name(to)?;
        let table = self.table(name)?;
        self.check_constraint_free(name, to)?;
        if table.keys.iter().any(|key| key.constraint && key.name == constraint) {
            return self.rename_key(name, constraint, to);
        }
        let primary = !table.hidden_key && table.primary_key_name() == constraint;
        if primary {
            self.check_free(&table.key_relation(to))?;
        }
        self.edit(name, |table| {
            if primary {
                table.primary_key_name = Some(to.into());
                return Ok(());
            }
            let checks = table.checks.iter_mut().map(|check| &mut check.name);
            let mut names = checks.chain(table.foreign_keys.iter_mut().map(|foreign| &mut foreign.name));
            let found = names.find(|other| *other == constraint).ok_or_else(|| no_constraint(name, constraint))?;
            *found = to.into();
            Ok(())
        })?;
        self.rename_constraint_comments(name, constraint, to);
        Ok(())
    }

    fn check_constraint_free(&self, table: &str, constraint: &str) -> Result<()> {
        if self.table(table)?.has_constraint(constraint) {
            return Err(SchemaError::ConstraintExists { table: table.into(), constraint: constraint.into() });
        }
        Ok(())
    }

    fn create_object(&mut self, object: &Object) -> Result<()> {
        self.check_relation_name(&object.name)?;
        self.check_free(&object.name)?;
        self.objects.insert(object.name.clone(), object.clone());
        Ok(())
    }

    fn create_view(&mut self, view: &View) -> Result<()> {
        self.check_relation_name(&view.name)?;
        self.check_free(&view.name)?;
        self.views.insert(view.name.clone(), view.clone());
        Ok(())
    }

    fn drop_view(&mut self, name: &str) -> Result<()> {
        self.views.remove(name).ok_or_else(|| no_table(name))?;
        self.comments.retain(|(on, _)| match on {
            CommentOn::View(view) | CommentOn::Column(view, _) => view != name,
            _ => true,
        });
        Ok(())
    }

    fn rename_view(&mut self, name: &str, to: &str) -> Result<()> {
        self.check_new_name(name, to)?;
        let view = self.views.remove(name).ok_or_else(|| no_table(name))?;
        self.views.insert(to.into(), View { name: to.into(), ..view });
        self.edit_comments(|on| match on {
            CommentOn::View(view) | CommentOn::Column(view, _) => rename(view, name, to),
            _ => {}
        });
        Ok(())
    }

    fn create_sequence(&mut self, sequence: &Sequence) -> Result<()> {
        self.check_relation_name(&sequence.name)?;
        self.check_free(&sequence.name)?;
        self.put_sequence(sequence)
    }

    fn alter_sequence(&mut self, sequence: &Sequence) -> Result<()> {
        if !self.sequences.contains_key(&sequence.name) {
            return Err(no_table(&sequence.name));
        }
        self.put_sequence(sequence)
    }

    fn put_sequence(&mut self, sequence: &Sequence) -> Result<()> {
        check_sequence(sequence)?;
        self.sequences.insert(sequence.name.clone(), sequence.clone());
        Ok(())
    }

    fn drop_sequence(&mut self, name: &str) -> Result<()> {
        self.sequences.remove(name).ok_or_else(|| no_table(name))?;
        self.comments.retain(|(on, _)| *on != CommentOn::Sequence(name.into()));
        Ok(())
    }

    fn rename_sequence(&mut self, name: &str, to: &str) -> Result<()> {
        self.check_new_name(name, to)?;
        let sequence = self.sequences.remove(name).ok_or_else(|| no_table(name))?;
        self.sequences.insert(to.into(), Sequence { name: to.into(), ..sequence });
        for column in self.tables.values_mut().flat_map(|table| &mut table.columns) {
            if let Some(identity) = &mut column.identity {
                rename(&mut identity.sequence, name, to);
            }
            if column.default_sql == Some(nextval_default(name)) {
                column.default_sql = Some(nextval_default(to));
            }
        }
        self.edit_comments(|on| {
            if let CommentOn::Sequence(sequence) = on {
                rename(sequence, name, to);
            }
        });
        Ok(())
    }

    fn set_comment(&mut self, on: &CommentOn, text: Option<&str>) -> Result<()> {
        self.check_commented(on)?;
        self.comments.retain(|(other, _)| other != on);
        if let Some(text) = text {
            self.comments.push((on.clone(), text.into()));
            self.comments.sort();
        }
        Ok(())
    }

    fn check_commented(&self, on: &CommentOn) -> Result<()> {
        let there = match on {
            CommentOn::Table(name) => self.tables.contains_key(name),
            CommentOn::View(name) => self.views.contains_key(name),
            CommentOn::Sequence(name) => self.sequences.contains_key(name),
            CommentOn::Schema(name) if !self.has_namespace(name) => return Err(SchemaError::NoNamespace(name.clone())),
            CommentOn::Index(name) => self.tables.values().any(|table| table_has_index(table, name)),
            CommentOn::Constraint(table, name) if !self.table(table)?.has_constraint(name) => {
                return Err(no_constraint(table, name));
            }
            CommentOn::Column(relation, column) => return self.check_column_of(relation, column),
            _ => true,
        };
        let name = match on {
            CommentOn::Table(name) | CommentOn::View(name) | CommentOn::Sequence(name) | CommentOn::Index(name) => name,
            _ => "",
        };
        if there { Ok(()) } else { Err(no_table(name)) }
    }

    fn check_column_of(&self, relation: &str, column: &str) -> Result<()> {
        match self.views.get(relation) {
            Some(view) if view.columns.iter().any(|(name, _)| name == column) => Ok(()),
            Some(_) => Err(SchemaError::NoColumn { table: relation.into(), column: column.into() }),
            None => self.column_position(relation, column).map(drop),
        }
    }

    fn edit_comments(&mut self, mut edit: impl FnMut(&mut CommentOn)) {
        self.comments.iter_mut().for_each(|(on, _)| edit(on));
        self.comments.sort();
    }

    pub(super) fn check_free(&self, name: &str) -> Result<()> {
        if self.is_taken(name) { Err(SchemaError::Exists(name.into())) } else { Ok(()) }
    }

    /// Whether a relation has this name: tables, views, sequences and indexes share one space of names.
    pub fn is_taken(&self, name: &str) -> bool {
        self.tables.contains_key(name)
            || self.objects.contains_key(name)
            || self.views.contains_key(name)
            || self.sequences.contains_key(name)
            || self.tables.values().any(|table| table_has_index(table, name))
    }
}

fn rename(name: &mut String, from: &str, to: &str) {
    if name == from {
        *name = to.into();
    }
}

fn rename_in_keys(table: &mut Table, column: &str, to: &str) {
    let change = |names: &mut Vec<String>| names.iter_mut().for_each(|name| rename(name, column, to));
    change(&mut table.primary_key);
    if let TableKind::Hash { shard_by, .. } = &mut table.kind {
        change(shard_by);
    }
    table.foreign_keys.iter_mut().for_each(|foreign| change(&mut foreign.columns));
    for key in &mut table.keys {
        change(&mut key.columns);
        for part in &mut key.parts {
            if let KeyOver::Column(name) = &mut part.over {
                rename(name, column, to);
            }
        }
    }
}

fn table_has_index(table: &Table, index: &str) -> bool {
    let (namespace, name) = relation_parts(index);
    table.namespace() == namespace
        && (table.primary_key_name() == name || table.keys.iter().any(|key| key.name == name))
}

/// Every expression that is over a table's columns.
fn table_expressions(table: &Table) -> impl Iterator<Item = &Expression> {
    let checks = table.checks.iter().map(|check| &check.expression);
    let parts = table.keys.iter().flat_map(|key| &key.parts).filter_map(|part| match &part.over {
        KeyOver::Expression(expression) => Some(expression),
        KeyOver::Column(_) => None,
    });
    checks.chain(parts).chain(table.keys.iter().filter_map(|key| key.predicate.as_ref()))
}

impl Table {
    /// Whether no two rows are equal in these columns, in any order.
    pub fn is_unique_over(&self, columns: &[String]) -> bool {
        let same = |key: &[String]| key.len() == columns.len() && key.iter().all(|column| columns.contains(column));
        same(&self.primary_key) || self.keys.iter().filter_map(Key::unique_columns).any(same)
    }
}

impl ForeignKey {
    /// Whether a row of `table` and the row of `target` that it refers to are always on one shard.
    pub fn stays_on_shard(&self, table: &Table, target: &Table) -> bool {
        match (&table.kind, &target.kind) {
            (_, TableKind::Reference) => true,
            (TableKind::Tenant, TableKind::Tenant) | (TableKind::Global, TableKind::Global) => true,
            (
                TableKind::Hash { group, shard_by, buckets, .. },
                TableKind::Hash { group: group_there, shard_by: shard_by_there, buckets: buckets_there, .. },
            ) => {
                let paired = |(here, there): (&String, &String)| {
                    let at = self.columns.iter().position(|column| column == here);
                    let same = at.is_some_and(|at| self.references.get(at) == Some(there));
                    same && same_hash(table, here, target, there)
                };
                group == group_there
                    && buckets == buckets_there
                    && shard_by.len() == shard_by_there.len()
                    && shard_by.iter().zip(shard_by_there).all(paired)
            }
            _ => false,
        }
    }
}

fn same_hash(table: &Table, here: &str, target: &Table, there: &str) -> bool {
    let ty = |table: &Table, name: &str| table.position(name).map(|at| table.columns[at].ty);
    match (ty(table, here), ty(target, there)) {
        (Some(here), Some(there)) => hashes_alike(here, there),
        _ => false,
    }
}

/// Whether equal values of these types are hashed alike: the integers are, by their decimal text.
fn hashes_alike(one: DataType, other: DataType) -> bool {
    let integer = |ty| matches!(ty, DataType::Int2 | DataType::Int4 | DataType::Int8);
    one == other || (integer(one) && integer(other))
}

fn in_shard_key(table: &Table, column: &str) -> bool {
    match &table.kind {
        TableKind::Hash { shard_by, .. } => shard_by.iter().any(|name| name == column),
        _ => false,
    }
}

pub(super) fn no_table(name: &str) -> SchemaError {
    SchemaError::NoTable(name.into())
}

fn no_constraint(table: &str, constraint: &str) -> SchemaError {
    SchemaError::NoConstraint { table: table.into(), constraint: constraint.into() }
}

pub(super) fn invalid<T>(message: String) -> Result<T> {
    Err(SchemaError::Invalid(message))
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_IDENTIFIER_BYTES {
        return invalid(format!("a name has 1 to {MAX_IDENTIFIER_BYTES} bytes, this one has {}", name.len()));
    }
    if name.contains('\0') {
        return invalid("a name may not contain a zero byte".into());
    }
    if name.to_ascii_lowercase().starts_with(RESERVED_PREFIX) || name.to_ascii_lowercase().starts_with("sqlite_") {
        return invalid(format!("the name \"{name}\" is reserved"));
    }
    Ok(())
}

fn check_columns(table: &Table, columns: &[String]) -> Result<()> {
    match columns.iter().find(|name| table.position(name).is_none()) {
        Some(missing) => Err(SchemaError::NoColumn { table: table.name.clone(), column: missing.clone() }),
        None => Ok(()),
    }
}

pub(super) fn check_table(table: &Table) -> Result<()> {
    if table.columns.is_empty() || table.columns.len() > MAX_COLUMNS {
        return invalid(format!("a table has 1 to {MAX_COLUMNS} columns"));
    }
    for (at, column) in table.columns.iter().enumerate() {
        check_column(table, at, column)?;
    }
    check_hidden_key(table)?;
    check_key(table, &table.primary_key, "a primary key")?;
    for (at, key) in table.keys.iter().enumerate() {
        check_name(&key.name)?;
        check_parts(table, key)?;
        if table.keys[..at].iter().any(|other| other.name == key.name) {
            return Err(SchemaError::Exists(key.name.clone()));
        }
    }
    for expression in table_expressions(table) {
        check_columns(table, &expression.columns)?;
    }
    check_constraint_names(table)?;
    check_primary_index(table)?;
    if let Some(name) = table.primary_key.iter().find(|name| nullable(table, name)) {
        return invalid(format!("column \"{name}\" of the primary key may not be nullable"));
    }
    match &table.kind {
        TableKind::Hash { shard_by, buckets, .. } => check_hash(table, shard_by, *buckets),
        _ => Ok(()),
    }
}

fn check_constraint_names(table: &Table) -> Result<()> {
    let checks = table.checks.iter().map(|check| &check.name);
    let names: Vec<&String> = checks.chain(table.foreign_keys.iter().map(|foreign| &foreign.name)).collect();
    for (at, name) in names.iter().enumerate() {
        check_name(name)?;
        if names[..at].contains(name) {
            return Err(SchemaError::ConstraintExists { table: table.name.clone(), constraint: (*name).clone() });
        }
    }
    Ok(())
}

/// The hidden key is there exactly when the table says so, as the last column and the whole key.
fn check_hidden_key(table: &Table) -> Result<()> {
    let at = table.columns.iter().position(Column::is_hidden);
    let right = match at {
        Some(at) => table.hidden_key && at + 1 == table.columns.len() && table.primary_key == [HIDDEN_KEY_COLUMN],
        None => !table.hidden_key,
    };
    if right { Ok(()) } else { invalid(format!("the hidden key of \"{}\" is not in its place", table.name)) }
}

/// A primary key without the shard key is global, and the shards' own is led by its columns.
fn check_primary_index(table: &Table) -> Result<()> {
    let wide = |key: &Key| match &table.kind {
        TableKind::Hash { shard_by, .. } => {
            let missing = shard_by.iter().filter(|name| !key.columns.contains(name));
            table.primary_key.len() > key.columns.len() && key.columns.iter().chain(missing).eq(&table.primary_key)
        }
        _ => false,
    };
    let whole = |key: &Key| key.unique && key.constraint && key.global.is_some() && key.parts.is_empty();
    let right = |key: &Key| whole(key) && key.predicate.is_none() && wide(key);
    let mut primary = table.keys.iter().filter(|key| key.primary);
    match (primary.next(), primary.next()) {
        (None, _) => Ok(()),
        (Some(key), None) if right(key) => Ok(()),
        _ => invalid(format!("the primary key of \"{}\" is not in its place", table.name)),
    }
}

fn check_column(table: &Table, at: usize, column: &Column) -> Result<()> {
    if !column.is_hidden() {
        check_name(&column.name)?;
    }
    let hidden = [BUCKET_COLUMN, TENANT_COLUMN, TENANT_KEY_COLUMN];
    if hidden.iter().any(|name| column.name.eq_ignore_ascii_case(name)) {
        return invalid(format!("the name \"{}\" is reserved", column.name));
    }
    // SQLite compares names without case; PostgreSQL does not. What one would take for two is refused on both.
    if table.columns[..at].iter().any(|c| c.name.eq_ignore_ascii_case(&column.name)) {
        return invalid(format!("column \"{}\" is specified more than once", column.name));
    }
    match &column.default {
        Some(value) if !value.fits(column.ty) => {
            invalid(format!("the default of \"{}\" is of another type", column.name))
        }
        _ => Ok(()),
    }
}

fn check_parts(table: &Table, key: &Key) -> Result<()> {
    if key.parts.is_empty() {
        return check_key(table, &key.columns, "a key");
    }
    let plain = key.parts.iter().filter_map(|part| match &part.over {
        KeyOver::Column(name) => Some(name),
        KeyOver::Expression(_) => None,
    });
    if !plain.eq(&key.columns) {
        return invalid(format!("the columns of key \"{}\" are not those of its parts", key.name));
    }
    if key.parts.len() > MAX_KEY_COLUMNS {
        return invalid(format!("a key has 1 to {MAX_KEY_COLUMNS} columns"));
    }
    if key.columns.is_empty() { Ok(()) } else { check_key(table, &key.columns, "a key") }
}

fn check_key(table: &Table, columns: &[String], what: &str) -> Result<()> {
    if columns.is_empty() || columns.len() > MAX_KEY_COLUMNS {
        return invalid(format!("{what} has 1 to {MAX_KEY_COLUMNS} columns"));
    }
    check_columns(table, columns)?;
    // As PostgreSQL, whose json has no equality; and arrays, which one engine would compare as texts.
    let unordered = columns.iter().find_map(|name| {
        let ty = table.columns[table.position(name)?].ty;
        matches!(ty, DataType::Json | DataType::Array(_)).then_some((name, ty))
    });
    match unordered {
        Some((name, ty)) => {
            invalid(format!("column \"{name}\" of type {} cannot be part of a key", ty.postgres_name()))
        }
        None => Ok(()),
    }
}

fn nullable(table: &Table, name: &str) -> bool {
    table.position(name).is_none_or(|at| table.columns[at].nullable)
}

fn check_hash(table: &Table, shard_by: &[String], buckets: u32) -> Result<()> {
    check_key(table, shard_by, "a shard key")?;
    if buckets == 0 {
        return invalid("a group has at least one bucket".into());
    }
    // Otherwise two rows with one key could stand on two shards, and no shard would see the conflict.
    let covered = |columns: &[String]| shard_by.iter().all(|name| columns.contains(name));
    if !covered(&table.primary_key) {
        return invalid("the primary key must contain the shard key".into());
    }
    match table.keys.iter().find(|key| key.is_unique_on_shard() && !covered(&key.columns)) {
        Some(key) => invalid(format!("unique key \"{}\" must contain the shard key", key.name)),
        None => Ok(()),
    }
}

fn check_sequence(sequence: &Sequence) -> Result<()> {
    let name = &sequence.name;
    if sequence.increment == 0 {
        return invalid("INCREMENT must not be zero".into());
    }
    if sequence.min >= sequence.max {
        return invalid(format!("MINVALUE ({}) must be less than MAXVALUE ({})", sequence.min, sequence.max));
    }
    if !(sequence.min..=sequence.max).contains(&sequence.start) {
        return invalid(format!("START value of \"{name}\" is out of its range"));
    }
    Ok(())
}
