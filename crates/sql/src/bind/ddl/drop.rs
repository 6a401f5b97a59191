//! DROP TABLE, VIEW, INDEX and SEQUENCE, and what depends on what.
//!
//! A foreign key depends on the table it refers to and on the key it refers to, a default on the sequence it draws
//! from, a view on whatever its query names. Whether a view is broken is found by binding its query against the schema
//! as it would be.

use super::draft::{Behavior, Draft, Otherwise, RelationKind, described};
use super::text::{identifier, relation_text, strings};
use super::{DdlChange, Result};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Column, Key, SchemaChange, Table, nextval_default, plain_name};
use pg_raw_parse::nodes::DropStmt;
use pg_raw_parse::raw::ObjectType;

/// Something that depends on what is dropped.
struct Dependent {
    /// `view v`, `constraint c on table t`.
    what: String,
    change: SchemaChange,
}

pub(super) fn drop(mut draft: Draft<'_>, statement: &DropStmt) -> Result<Option<DdlChange>> {
    let (kind, tag) = match statement.remove_type {
        ObjectType::OBJECT_TABLE => (RelationKind::Table, "DROP TABLE"),
        ObjectType::OBJECT_VIEW => (RelationKind::View, "DROP VIEW"),
        ObjectType::OBJECT_INDEX => (RelationKind::Index, "DROP INDEX"),
        ObjectType::OBJECT_SEQUENCE => (RelationKind::Sequence, "DROP SEQUENCE"),
        _ if statement.missing_ok => return missing_kind(draft, statement),
        _ => return Ok(None),
    };
    let mut names = Vec::new();
    for object in statement.objects() {
        let name = match draft.name_of(&strings(object)) {
            Err(error) if error.sqlstate == "3F000" && statement.missing_ok => {
                draft.notice(format!("{}, skipping", error.message));
                continue;
            }
            found => found?,
        };
        if found(&mut draft, kind, &name, Otherwise::of(statement.missing_ok))? && !names.contains(&name) {
            names.push(name);
        }
    }
    draft.concurrently = statement.concurrent.then_some("DROP INDEX CONCURRENTLY");
    drop_all(&mut draft, kind, &names, Behavior::of(statement.behavior))?;
    Ok(Some(draft.finish(tag)))
}

/// There are no functions, types and the like, so none that is dropped if it exists does.
fn missing_kind(mut draft: Draft<'_>, statement: &DropStmt) -> Result<Option<DdlChange>> {
    let (word, tag) = match statement.remove_type {
        ObjectType::OBJECT_TYPE => ("type", "DROP TYPE"),
        ObjectType::OBJECT_DOMAIN => ("type", "DROP DOMAIN"),
        ObjectType::OBJECT_MATVIEW => ("materialized view", "DROP MATERIALIZED VIEW"),
        ObjectType::OBJECT_EXTENSION => ("extension", "DROP EXTENSION"),
        _ => return Ok(None),
    };
    for object in statement.objects() {
        let name = match object {
            pg_raw_parse::Node::TypeName(name) => {
                name.names().iter().filter_map(|part| part.sval()).next_back().unwrap_or_default().to_string()
            }
            other => strings(other).pop().unwrap_or_default(),
        };
        draft.notice(format!("{word} \"{name}\" does not exist, skipping"));
    }
    Ok(Some(draft.finish(tag)))
}

fn found(draft: &mut Draft<'_>, kind: RelationKind, name: &str, otherwise: Otherwise) -> Result<bool> {
    match draft.kind_of(name) {
        Some(there) if there == kind => Ok(true),
        Some(there) => {
            let article = if kind == RelationKind::Index { "an" } else { "a" };
            let error = SqlError::new("42809", format!("\"{}\" is not {article} {}", plain_name(name), kind.word()));
            let other = if there == RelationKind::Index { "an" } else { "a" };
            let word = there.word();
            Err(error.with_hint(format!("Use DROP {} to remove {other} {word}.", word.to_uppercase())))
        }
        None if otherwise == Otherwise::Skip => {
            draft.notice(format!("{} \"{}\" does not exist, skipping", kind.word(), plain_name(name)));
            Ok(false)
        }
        None => {
            let sqlstate = if kind == RelationKind::Index { "42704" } else { "42P01" };
            Err(SqlError::new(sqlstate, format!("{} \"{name}\" does not exist", kind.word())))
        }
    }
}

pub(super) fn drop_all(draft: &mut Draft<'_>, kind: RelationKind, names: &[String], behavior: Behavior) -> Result<()> {
    let mut dependents = Vec::new();
    match kind {
        RelationKind::Table => {
            dependents.extend(foreign_keys_to(draft, names));
            clear(draft, kind, names, dependents, behavior)?;
            drop_tables(draft, names)?;
        }
        RelationKind::View => {
            for view in names {
                draft.push(SchemaChange::DropView { view: view.clone() })?;
            }
        }
        RelationKind::Sequence => {
            for name in names {
                refuse_identity(draft, name)?;
                dependents.extend(defaults_from(draft, name));
            }
            clear(draft, kind, names, dependents, behavior)?;
            for sequence in names {
                draft.push(SchemaChange::DropSequence { sequence: sequence.clone() })?;
            }
        }
        RelationKind::Index => {
            for name in names {
                drop_index(draft, name, behavior)?;
            }
        }
    }
    drop_broken_views(draft, kind, names, behavior)
}

/// Drops dependents, or says that they are in the way.
fn clear(
    draft: &mut Draft<'_>,
    kind: RelationKind,
    names: &[String],
    dependents: Vec<Dependent>,
    behavior: Behavior,
) -> Result<()> {
    if dependents.is_empty() {
        return Ok(());
    }
    let whats: Vec<String> = dependents.iter().map(|dependent| dependent.what.clone()).collect();
    if behavior == Behavior::Restrict {
        return Err(in_the_way(kind, names, &whats));
    }
    for dependent in dependents {
        draft.push(dependent.change)?;
    }
    cascades(draft, &whats);
    Ok(())
}

fn in_the_way(kind: RelationKind, names: &[String], whats: &[String]) -> SqlError {
    if let [name] = names {
        return in_the_way_of(&described(kind, name), whats);
    }
    let objects: Vec<String> = names.iter().map(|name| described(kind, name)).collect();
    let message = "cannot drop desired object(s) because other objects depend on them";
    depended_on(message.into(), &objects.join(", "), whats)
}

/// What depends on one object that is to be dropped.
pub(super) fn in_the_way_of(object: &str, whats: &[String]) -> SqlError {
    depended_on(format!("cannot drop {object} because other objects depend on it"), object, whats)
}

fn depended_on(message: String, on: &str, whats: &[String]) -> SqlError {
    let lines: Vec<String> = whats.iter().map(|what| format!("{what} depends on {on}")).collect();
    SqlError::new("2BP01", message)
        .with_detail(lines.join("\n"))
        .with_hint("Use DROP ... CASCADE to drop the dependent objects too.")
}

pub(super) fn cascades(draft: &mut Draft<'_>, whats: &[String]) {
    match whats {
        [] => {}
        [what] => draft.notice(format!("drop cascades to {what}")),
        many => {
            let lines: Vec<String> = many.iter().map(|what| format!("drop cascades to {what}")).collect();
            let notice = SqlError::new("00000", format!("drop cascades to {} other objects", many.len()));
            draft.notices.push(notice.with_detail(lines.join("\n")));
        }
    }
}

fn foreign_keys_to(draft: &Draft<'_>, names: &[String]) -> Vec<Dependent> {
    let others = draft.schema.tables.values().filter(|table| !names.contains(&table.name));
    let keys = others.flat_map(|table| table.foreign_keys.iter().map(move |foreign| (table, foreign)));
    keys.filter(|(_, foreign)| names.contains(&foreign.table))
        .map(|(table, foreign)| Dependent {
            what: format!("constraint {} on table {}", identifier(&foreign.name), relation_text(&table.name)),
            change: SchemaChange::DropForeignKey { table: table.name.clone(), foreign_key: foreign.name.clone() },
        })
        .collect()
}

/// Those that nothing refers to go first; where they refer to each other in a circle, a foreign key goes first.
fn drop_tables(draft: &mut Draft<'_>, names: &[String]) -> Result<()> {
    let mut left: Vec<String> = names.to_vec();
    while !left.is_empty() {
        let referred = |name: &String| {
            draft.schema.tables.values().any(|t| t.name != *name && t.foreign_keys.iter().any(|f| f.table == *name))
        };
        match left.iter().position(|name| !referred(name)) {
            Some(at) => draft.drop_table(&left.remove(at))?,
            None => break_circle(draft, &left[0])?,
        }
    }
    Ok(())
}

fn break_circle(draft: &mut Draft<'_>, name: &str) -> Result<()> {
    let refers = |table: &&Table| table.name != name && table.foreign_keys.iter().any(|f| f.table == name);
    let Some(table) = draft.schema.tables.values().find(refers).cloned() else { return Ok(()) };
    for foreign in table.foreign_keys.iter().filter(|foreign| foreign.table == name) {
        draft.push(SchemaChange::DropForeignKey { table: table.name.clone(), foreign_key: foreign.name.clone() })?;
    }
    Ok(())
}

fn refuse_identity(draft: &Draft<'_>, sequence: &str) -> Result<()> {
    for table in draft.schema.tables.values() {
        let fed = |column: &&Column| column.identity.as_ref().is_some_and(|identity| identity.sequence == sequence);
        if let Some(column) = table.columns.iter().find(fed) {
            let column = format!("column {} of table {}", identifier(&column.name), relation_text(&table.name));
            let message = format!("cannot drop sequence {} because {column} requires it", relation_text(sequence));
            let hint = format!("You can drop {column} instead.");
            return Err(SqlError::new("2BP01", message).with_hint(hint));
        }
    }
    Ok(())
}

/// Defaults that draw from a sequence, in whatever expression.
fn defaults_from(draft: &Draft<'_>, sequence: &str) -> Vec<Dependent> {
    let call = nextval_default(sequence);
    let prefix = call.trim_end_matches("::regclass)").to_string();
    let mut found = Vec::new();
    for table in draft.schema.tables.values() {
        for column in &table.columns {
            if column.default_sql.as_ref().is_some_and(|sql| sql.contains(&prefix)) {
                let bare = Column { default: None, default_sql: None, ..column.clone() };
                found.push(Dependent {
                    what: format!(
                        "default value for column {} of table {}",
                        identifier(&column.name),
                        relation_text(&table.name)
                    ),
                    change: SchemaChange::AlterColumn {
                        table: table.name.clone(),
                        column: Box::new(bare),
                        convert: None,
                    },
                });
            }
        }
    }
    found
}

fn drop_index(draft: &mut Draft<'_>, name: &str, behavior: Behavior) -> Result<()> {
    let Some(table) = draft.table_of_index(name).cloned() else { return Ok(()) };
    let plain = plain_name(name);
    match table.keys.iter().find(|key| key.name == plain && !key.constraint) {
        Some(key) => drop_key(draft, &table, key, behavior),
        None => {
            let constraint = format!("constraint {} on table {}", identifier(plain), relation_text(&table.name));
            let message = format!("cannot drop index {} because {constraint} requires it", relation_text(name));
            Err(SqlError::new("2BP01", message).with_hint(format!("You can drop {constraint} instead.")))
        }
    }
}

/// Drops an index or unique constraint, and with it foreign keys that need it.
pub(super) fn drop_key(draft: &mut Draft<'_>, table: &Table, key: &Key, behavior: Behavior) -> Result<()> {
    let without = Table { keys: table.keys.iter().filter(|k| k.name != key.name).cloned().collect(), ..table.clone() };
    let mut dependents = Vec::new();
    for other in draft.schema.tables.values() {
        for foreign in other.foreign_keys.iter().filter(|foreign| foreign.table == table.name) {
            if !without.is_unique_over(&foreign.references) {
                dependents.push(Dependent {
                    what: format!("constraint {} on table {}", identifier(&foreign.name), relation_text(&other.name)),
                    change: SchemaChange::DropForeignKey {
                        table: other.name.clone(),
                        foreign_key: foreign.name.clone(),
                    },
                });
            }
        }
    }
    clear(draft, RelationKind::Index, &[table.key_relation(&key.name)], dependents, behavior)?;
    draft.drop_key(&table.name, key)
}

/// Views that the change so far has broken: in the way, or dropped with it.
pub(super) fn drop_broken_views(
    draft: &mut Draft<'_>,
    kind: RelationKind,
    names: &[String],
    behavior: Behavior,
) -> Result<()> {
    let mut whats = Vec::new();
    loop {
        let broken: Vec<String> = draft.broken_views().into_iter().map(|view| view.name.clone()).collect();
        if broken.is_empty() {
            break;
        }
        for view in broken {
            whats.push(described(RelationKind::View, &view));
            draft.push(SchemaChange::DropView { view })?;
        }
    }
    match behavior {
        _ if whats.is_empty() => Ok(()),
        Behavior::Restrict => Err(in_the_way(kind, names, &whats)),
        Behavior::Cascade => {
            cascades(draft, &whats);
            Ok(())
        }
    }
}
