//! Global indexes: which keys can be one, and their entries, which come and go with them.
//!
//! A key that holds the shard key is looked after by each shard alone. One that does not needs entries, which say in
//! which buckets a key's rows are, wherever these are now.

use super::Result;
use super::draft::{Draft, RelationKind};
use super::text::identifier;
use crate::bind::utility::{Context, IndexName};
use crate::builtins;
use crate::types::{self, Oid, Type};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{ForeignKey, Key, KeyOver, KeyPart, OnChange, SchemaChange, Table, TableKind, plain_name};
use pg_raw_parse::nodes::DefElem;

/// Who looks after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// Each shard, for its own rows.
    Shard,
    /// Entries, for all of them.
    Global,
}

impl Extent {
    fn of(global: bool) -> Extent {
        if global { Extent::Global } else { Extent::Shard }
    }
}

/// Types whose values have an order that the bytes of an entry's key can keep.
const ORDERED: [Oid; 17] = [
    types::BOOL,
    types::INT2,
    types::INT4,
    types::INT8,
    types::FLOAT4,
    types::FLOAT8,
    types::NUMERIC,
    types::TEXT,
    types::VARCHAR,
    types::BPCHAR,
    types::BYTEA,
    types::DATE,
    types::TIME,
    types::TIMESTAMP,
    types::TIMESTAMPTZ,
    types::INTERVAL,
    types::UUID,
];

/// What `WITH (…)` of an index or a constraint says; None if it says nothing of this.
pub(super) fn wanted<'a>(options: impl Iterator<Item = &'a DefElem>) -> Result<Option<Extent>> {
    let mut wanted = None;
    for option in options {
        match option.defname().unwrap_or_default() {
            "global" if wanted.is_some() => {
                return Err(SqlError::new("22023", "parameter \"global\" specified more than once"));
            }
            "global" => wanted = Some(Extent::of(switch(option)?)),
            other => return Err(SqlError::new("22023", format!("unrecognized parameter \"{other}\""))),
        }
    }
    Ok(wanted)
}

/// As PostgreSQL reads the value of a boolean parameter, where a parameter without one is true.
fn switch(option: &DefElem) -> Result<bool> {
    if matches!(option.arg(), pg_raw_parse::Node::None) {
        return Ok(true);
    }
    let text = super::option_text(option).unwrap_or_default();
    let starts = |word: &str, least: usize| text.len() >= least && word.starts_with(&text.to_ascii_lowercase());
    if starts("true", 1) || starts("yes", 1) || starts("on", 2) || text == "1" {
        Ok(true)
    } else if starts("false", 1) || starts("no", 1) || starts("off", 2) || text == "0" {
        Ok(false)
    } else {
        Err(SqlError::new("22023", format!("invalid value for boolean option \"global\": {text}")))
    }
}

/// Whether a key over these columns holds the shard key, so that rows that it sees as equal are on one shard.
pub(super) fn is_within_shard(table: &Table, columns: &[String]) -> bool {
    match &table.kind {
        TableKind::Hash { shard_by, .. } => shard_by.iter().all(|name| columns.contains(name)),
        _ => true,
    }
}

/// Refuses what entries cannot be made of. `parts` are what the key is over, with their types.
///
/// A unique one over the rows of all tenants would tell a tenant what keys others have (I-41).
pub(super) fn check(table: &Table, unique: bool, parts: &[(String, Type)]) -> Result<()> {
    let why = match table.kind {
        TableKind::Hash { .. } => None,
        TableKind::Tenant if !unique => None,
        TableKind::Tenant => {
            let error = SqlError::unsupported("a unique global index on a tenant table is not supported");
            return Err(error.with_hint(
                "by what is refused, a tenant would learn of keys that others have; a unique index without \"global\" is one for each tenant",
            ));
        }
        TableKind::Reference => Some(("reference", "each shard has all of its rows, and a plain index finds them")),
        TableKind::Global => Some(("global", "all of its rows are on one shard, where a plain index finds them")),
    };
    if let Some((kind, why)) = why {
        let error = SqlError::unsupported(format!("a global index on a {kind} table is not supported"));
        return Err(error.with_hint(why));
    }
    match parts.iter().find(|(_, ty)| !ORDERED.contains(&ty.oid)) {
        None => Ok(()),
        Some((what, ty)) => {
            let ty = builtins::format_type(*ty);
            let error = SqlError::unsupported(format!("a global index on {what} of type {ty} is not supported"));
            Err(error.with_hint("index an expression of it that has an order, such as a text or a number"))
        }
    }
}

/// What [`check`] calls a column.
pub(super) fn column(name: &str) -> String {
    format!("column \"{name}\"")
}

/// Refuses to change under a global index what its entries are made of.
pub(super) fn refuse_while_indexed(table: &Table, concerned: impl Fn(&Key) -> bool, what: &str) -> Result<()> {
    let names: Vec<String> =
        table.global_keys().filter(|key| concerned(key)).map(|key| identifier(&key.name)).collect();
    if names.is_empty() {
        return Ok(());
    }
    let error = SqlError::unsupported(format!("{what} while a global index is on it"));
    Err(error.with_hint(format!("drop {} first, and create it again afterwards", names.join(", "))))
}

/// Refuses a foreign key by which a shard would give rows other keys in a unique global index: it would do so by itself,
/// and cannot ask the others whether such a key is taken. A column that becomes null is no key, but it may be what an
/// expression makes a key of, or the predicate waits for.
pub(super) fn refuse_cascade(foreign: &ForeignKey, key: &Key) -> Result<()> {
    let nulls = [foreign.on_update, foreign.on_delete].contains(&OnChange::SetNull);
    let changes = |column: &String| match foreign.on_update {
        OnChange::Cascade => key.uses(column),
        _ => nulls && computes(key, column),
    };
    if !foreign.columns.iter().any(changes) {
        return Ok(());
    }
    let (foreign, key) = (identifier(&foreign.name), identifier(&key.name));
    let message = format!("foreign key {foreign} cannot change the keys of unique global index {key}");
    Err(SqlError::unsupported(message).with_hint("use NO ACTION or RESTRICT, or an index that is not unique"))
}

/// Whether the key of a row depends on a column in more than having its value.
fn computes(key: &Key, column: &str) -> bool {
    let in_part = |part: &KeyPart| matches!(&part.over, KeyOver::Expression(over) if over.uses(column));
    key.parts.iter().any(in_part) || key.predicate.as_ref().is_some_and(|predicate| predicate.uses(column))
}

/// The global index of this name.
pub(in crate::bind) fn global_index(context: &Context<'_>, name: &[String]) -> Result<IndexName> {
    let draft = Draft::new(context);
    let name = draft.name_of(name)?;
    let table = match draft.kind_of(&name) {
        Some(RelationKind::Index) => draft.table_of_index(&name),
        Some(_) => return Err(SqlError::new("42809", format!("\"{}\" is not an index", plain_name(&name)))),
        None => None,
    };
    let Some(table) = table else {
        return Err(SqlError::new("42704", format!("index \"{name}\" does not exist")));
    };
    match table.global_keys().find(|key| key.name == plain_name(&name)) {
        Some(key) => Ok(IndexName { table: table.name.clone(), key: key.name.clone() }),
        None => {
            let error = SqlError::new("42809", format!("\"{}\" is not a global index", plain_name(&name)));
            Err(error.with_hint("each shard looks after its other indexes"))
        }
    }
}

impl Draft<'_> {
    /// The table of entries of a key that is to be made.
    pub(super) fn make_entries(&mut self, extent: Extent, kind: &TableKind) -> Result<Option<String>> {
        if extent == Extent::Shard {
            return Ok(None);
        }
        let several = || {
            let error =
                SqlError::unsupported("a global index on a table that is kept in several regions is not supported");
            error.with_hint("its entries would hold values of one region in another; make a table for each region")
        };
        let (name, changes) = self.schema.new_entries(kind).ok_or_else(several)?;
        changes.into_iter().try_for_each(|change| self.push(change))?;
        Ok(Some(name))
    }

    /// Drops a key, and its entries with it.
    pub(super) fn drop_key(&mut self, table: &str, key: &Key) -> Result<()> {
        self.push(SchemaChange::DropKey { table: table.into(), key: key.name.clone() })?;
        key.global.iter().try_for_each(|entries| self.push(SchemaChange::DropTable { table: entries.clone() }))
    }

    /// Drops a table, and the entries of its indexes with it.
    pub(super) fn drop_table(&mut self, name: &str) -> Result<()> {
        let entries: Vec<String> = self.table(name)?.global_keys().filter_map(|key| key.global.clone()).collect();
        self.push(SchemaChange::DropTable { table: name.into() })?;
        entries.into_iter().try_for_each(|table| self.push(SchemaChange::DropTable { table }))
    }
}
