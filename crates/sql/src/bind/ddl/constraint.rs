//! Constraints of a table: keys, checks and foreign keys, as parts of a new table or added to one that is there.

use super::column::type_of;
use super::draft::{Draft, no_column};
use super::global::{self, Extent};
use super::text::{expression_text, identifier};
use super::{Purpose, Result};
use crate::types::Type;
use isles_kernel::error::SqlError;
use isles_kernel::schema::{
    Check, Deferral, Expression, ForeignKey, Key, OnChange, SchemaChange, Table, TableKind, plain_name,
};
use isles_kernel::value::DataType;
use pg_raw_parse::Node;
use pg_raw_parse::nodes::Constraint;
use pg_raw_parse::raw::ConstrType;

/// A constraint as it was written.
pub(super) struct Written<'a> {
    pub(super) constraint: &'a Constraint,
    /// The column that it stands at.
    pub(super) at: Option<String>,
    /// What was said behind it.
    pub(super) deferral: Deferral,
}

impl<'a> Written<'a> {
    /// One that stands by itself.
    pub(super) fn alone(constraint: &'a Constraint) -> Written<'a> {
        let deferral = match (constraint.deferrable, constraint.initdeferred) {
            (_, true) => Deferral::Deferred,
            (true, false) => Deferral::Immediate,
            (false, false) => Deferral::None,
        };
        Written { constraint, at: None, deferral }
    }

    /// Neither engine checks the keys of an index when a transaction ends.
    pub(super) fn refuse_unusual(&self) -> Result<()> {
        if self.deferral != Deferral::None && self.constraint.contype != ConstrType::CONSTR_FOREIGN {
            let error = SqlError::unsupported("only foreign keys can be deferrable");
            return Err(error.with_hint("leave DEFERRABLE out, and write the rows in an order that fits"));
        }
        refuse_unusual(self.constraint)
    }
}

/// What stands behind the constraints of a column: when they are checked.
pub(super) fn deferred_by(before: Deferral, attribute: ConstrType::Type) -> Result<Deferral> {
    match (attribute, before) {
        (ConstrType::CONSTR_ATTR_DEFERRED, _) => Ok(Deferral::Deferred),
        (ConstrType::CONSTR_ATTR_DEFERRABLE, Deferral::None) => Ok(Deferral::Immediate),
        (ConstrType::CONSTR_ATTR_NOT_DEFERRABLE, Deferral::Deferred) => {
            Err(SqlError::new("42601", "constraint declared INITIALLY DEFERRED must be DEFERRABLE"))
        }
        (ConstrType::CONSTR_ATTR_NOT_DEFERRABLE, _) => Ok(Deferral::None),
        (_, before) => Ok(before),
    }
}

pub(super) fn refuse_unusual(constraint: &Constraint) -> Result<()> {
    let refused = [
        (constraint.nulls_not_distinct, "NULLS NOT DISTINCT"),
        (constraint.without_overlaps || constraint.fk_with_period, "WITHOUT OVERLAPS and PERIOD"),
        (constraint.indexname().is_some(), "USING INDEX"),
        (constraint.indexspace().is_some(), "USING INDEX TABLESPACE"),
        (constraint.is_no_inherit, "NO INHERIT"),
    ];
    match refused.iter().find(|(said, _)| *said) {
        Some((_, what)) => Err(SqlError::unsupported(format!("{what} in a constraint is not supported"))),
        None => Ok(()),
    }
}

/// The columns of a key: those named, or the column that the constraint stands at.
pub(super) fn key_columns(table: &Table, constraint: &Constraint, at: Option<&str>) -> Result<Vec<String>> {
    let named: Vec<String> = constraint.keys().iter().filter_map(Node::as_str).map(Into::into).collect();
    let columns = if named.is_empty() { at.into_iter().map(Into::into).collect() } else { named };
    for (place, column) in columns.iter().enumerate() {
        if !table.visible_columns().iter().any(|c| c.name == *column) {
            return Err(SqlError::new("42703", format!("column \"{column}\" named in key does not exist")));
        }
        if columns[..place].contains(column) {
            let what = if constraint.contype == ConstrType::CONSTR_PRIMARY { "primary key" } else { "unique" };
            return Err(SqlError::new("42701", format!("column \"{column}\" appears twice in {what} constraint")));
        }
    }
    Ok(columns)
}

/// Adds a constraint to the table that is being made or altered.
pub(super) fn add(draft: &mut Draft<'_>, table: &str, written: &Written<'_>) -> Result<()> {
    let (constraint, at) = (written.constraint, written.at.as_deref());
    written.refuse_unusual()?;
    note_left_out(draft, constraint);
    if constraint.skip_validation {
        draft.notice("the rows that are there are checked at once, in spite of NOT VALID");
    }
    match constraint.contype {
        ConstrType::CONSTR_PRIMARY => add_primary(draft, table, constraint, at),
        ConstrType::CONSTR_UNIQUE => {
            let (key, extent) = unique(draft, draft.table(table)?, constraint, at)?;
            let kind = draft.table(table)?.kind.clone();
            let key = Key { global: draft.make_entries(extent, &kind)?, ..key };
            draft.push(SchemaChange::CreateKey { table: table.into(), key })
        }
        ConstrType::CONSTR_CHECK => {
            let check = check(draft, draft.table(table)?, constraint)?;
            draft.push(SchemaChange::AddCheck { table: table.into(), check })
        }
        ConstrType::CONSTR_FOREIGN => {
            let foreign_key = foreign(draft, draft.table(table)?, written)?;
            draft.push(SchemaChange::AddForeignKey { table: table.into(), foreign_key })
        }
        ConstrType::CONSTR_EXCLUSION => Err(SqlError::unsupported("exclusion constraints are not supported")),
        _ => Err(SqlError::unsupported("this kind of constraint is not supported")),
    }
}

/// `INCLUDE` says what an index has besides its keys, and changes no result.
pub(super) fn note_left_out(draft: &mut Draft<'_>, constraint: &Constraint) {
    if !constraint.including().is_empty() {
        draft.notice(NO_INCLUDE);
    }
}

pub(super) const NO_INCLUDE: &str = "INCLUDE is left out: the index has its keys alone";

fn add_primary(draft: &mut Draft<'_>, name: &str, constraint: &Constraint, at: Option<&str>) -> Result<()> {
    let table = draft.table(name)?.clone();
    if !table.hidden_key {
        let message = format!("multiple primary keys for table \"{}\" are not allowed", plain_name(name));
        return Err(SqlError::new("42P16", message));
    }
    if wanted(constraint)? == Some(Extent::Global) {
        return Err(needless());
    }
    let columns = key_columns(&table, constraint, at)?;
    global::refuse_while_indexed(&table, |_| true, "a table's shard key and primary key cannot change")?;
    for column in table.columns.iter().filter(|column| columns.contains(&column.name) && column.nullable) {
        let column = Box::new(column.clone().not_null());
        draft.push(SchemaChange::AlterColumn { table: name.into(), column, convert: None })?;
    }
    let kind = match table.kind {
        TableKind::Hash { group, buckets, regions, .. } => {
            TableKind::Hash { group, shard_by: columns.clone(), buckets, regions }
        }
        other => other,
    };
    let key_name = constraint.conname().map(Into::into);
    draft.push(SchemaChange::Rekey { table: name.into(), kind, primary_key: columns, name: key_name })
}

/// The columns of a new table's primary key, if a global index is to keep it.
pub(super) fn global_primary(table: &Table, constraint: &Constraint) -> Result<Option<Vec<String>>> {
    let columns = &table.primary_key;
    match (wanted(constraint)?, global::is_within_shard(table, columns)) {
        (Some(Extent::Global), true) => global::check(table, true, &[]).and(Err(needless())),
        (_, true) => Ok(None),
        (Some(Extent::Shard), false) => check_shard_key(table, columns, "primary key").map(|()| None),
        (_, false) => {
            check_indexed(table, columns)?;
            Ok(Some(columns.clone()))
        }
    }
}

fn needless() -> SqlError {
    let error = SqlError::unsupported("a global primary key that includes the shard key is not supported");
    error.with_hint("its shard finds such a row; create a global index besides for its other columns")
}

fn check_indexed(table: &Table, columns: &[String]) -> Result<()> {
    let typed = |name: &String| Ok((global::column(name), type_of(&column_of(table, name)?)));
    global::check(table, true, &columns.iter().map(typed).collect::<Result<Vec<_>>>()?)
}

fn wanted(constraint: &Constraint) -> Result<Option<Extent>> {
    global::wanted(constraint.options().iter().filter_map(|option| match option {
        Node::DefElem(option) => Some(option),
        _ => None,
    }))
}

/// The key of a unique constraint, and who is to look after it; entries are not made yet.
pub(super) fn unique(
    draft: &Draft<'_>,
    table: &Table,
    constraint: &Constraint,
    at: Option<&str>,
) -> Result<(Key, Extent)> {
    let columns = key_columns(table, constraint, at)?;
    let extent = match wanted(constraint)? {
        None if global::is_within_shard(table, &columns) => Extent::Shard,
        None => Extent::Global,
        Some(extent) => extent,
    };
    match extent {
        Extent::Shard => check_shard_key(table, &columns, "unique constraint")?,
        Extent::Global => check_indexed(table, &columns)?,
    }
    let name = match constraint.conname() {
        Some(name) => name.to_string(),
        None => unique_name(draft, table, &columns),
    };
    let key = Key { name, columns, unique: true, constraint: true, ..Key::default() };
    if extent == Extent::Global {
        table.foreign_keys.iter().try_for_each(|foreign| global::refuse_cascade(foreign, &key))?;
    }
    Ok((key, extent))
}

/// Names of keys are relations' names; those of the table that is being made are not taken yet.
fn unique_name(draft: &Draft<'_>, table: &Table, columns: &[String]) -> String {
    let mut name = draft.free_relation_name(&table.name, &columns.join("_"), "key");
    let mut number = 0;
    while table.keys.iter().any(|key| key.name == name) {
        number += 1;
        name = draft.free_relation_name(&table.name, &columns.join("_"), &format!("key{number}"));
    }
    name
}

/// Two rows that a unique key sees as equal must be on one shard, or no shard would see both.
pub(super) fn check_shard_key(table: &Table, columns: &[String], what: &str) -> Result<()> {
    if global::is_within_shard(table, columns) {
        return Ok(());
    }
    let error = SqlError::unsupported(format!("{what} on a hash table must include the shard key, or be global"));
    let shard_by = match &table.kind {
        TableKind::Hash { shard_by, .. } if !table.hidden_key => shard_by.as_slice(),
        _ => return Err(error.with_hint("say WITH (global)")),
    };
    Err(error.with_hint(format!("say WITH (global), or add ({}) to it", list(shard_by))))
}

fn list(columns: &[String]) -> String {
    columns.iter().map(|name| identifier(name)).collect::<Vec<_>>().join(", ")
}

pub(super) fn check(draft: &Draft<'_>, table: &Table, constraint: &Constraint) -> Result<Check> {
    let sql = expression_text(constraint.raw_expr())?;
    let expression = expression(draft, table, sql, Purpose::Check)?;
    let name = match constraint.conname() {
        Some(name) => name.to_string(),
        None => {
            let column = if let [only] = expression.columns.as_slice() { only.as_str() } else { "" };
            Draft::free_constraint_name(table, column, "check")
        }
    };
    Ok(Check { name, expression })
}

/// An expression over a table in all its texts.
pub(super) fn expression(draft: &Draft<'_>, table: &Table, sql: String, purpose: Purpose) -> Result<Expression> {
    typed_expression(draft, table, sql, purpose).map(|(expression, _)| expression)
}

pub(super) fn typed_expression(
    draft: &Draft<'_>,
    table: &Table,
    sql: String,
    purpose: Purpose,
) -> Result<(Expression, Type)> {
    let bound = draft.expressions().over_table(table, &sql, purpose)?;
    let (sqlite, postgres, columns) = (bound.sqlite, bound.postgres, bound.columns);
    Ok((Expression { sql, sqlite, postgres, columns }, bound.ty))
}

pub(super) fn foreign(draft: &Draft<'_>, table: &Table, written: &Written<'_>) -> Result<ForeignKey> {
    let (constraint, at) = (written.constraint, written.at.as_deref());
    let target_name = draft.referred(table, constraint.pktable())?;
    let target = if target_name == table.name { table } else { draft.table(&target_name)? };
    let named: Vec<String> = constraint.fk_attrs().iter().filter_map(Node::as_str).map(Into::into).collect();
    let columns = if named.is_empty() { at.into_iter().map(Into::into).collect() } else { named };
    let references = referenced(target, constraint)?;
    let name = match constraint.conname() {
        Some(name) => name.to_string(),
        None => Draft::free_constraint_name(table, &columns.join("_"), "fkey"),
    };
    let foreign = ForeignKey {
        name,
        columns,
        table: target_name,
        references,
        on_delete: action(constraint.fk_del_action as u8)?,
        on_update: action(constraint.fk_upd_action as u8)?,
        deferral: written.deferral,
    };
    check_foreign(table, target, &foreign, constraint)?;
    table.global_keys().filter(|key| key.unique).try_for_each(|key| global::refuse_cascade(&foreign, key))?;
    Ok(foreign)
}

fn referenced(target: &Table, constraint: &Constraint) -> Result<Vec<String>> {
    let named: Vec<String> = constraint.pk_attrs().iter().filter_map(Node::as_str).map(Into::into).collect();
    if !named.is_empty() {
        return Ok(named);
    }
    if target.hidden_key {
        let message = format!("there is no primary key for referenced table \"{}\"", target.plain_name());
        return Err(SqlError::new("42704", message));
    }
    Ok(target.declared_key().to_vec())
}

fn check_foreign(table: &Table, target: &Table, foreign: &ForeignKey, constraint: &Constraint) -> Result<()> {
    if foreign.columns.len() != foreign.references.len() {
        let message = "number of referencing and referenced columns for foreign key disagree";
        return Err(SqlError::new("42830", message));
    }
    for (owner, columns) in [(table, &foreign.columns), (target, &foreign.references)] {
        let visible = |name: &&String| owner.visible_columns().iter().any(|column| column.name == **name);
        if let Some(missing) = columns.iter().find(|name| !visible(name)) {
            let message = format!("column \"{missing}\" referenced in foreign key constraint does not exist");
            return Err(SqlError::new("42703", message));
        }
    }
    match constraint.fk_matchtype as u8 {
        b'f' if foreign.columns.len() > 1 => {
            return Err(SqlError::unsupported("MATCH FULL over several columns is not supported"));
        }
        b'p' => return Err(SqlError::unsupported("MATCH PARTIAL not yet implemented")),
        _ => {}
    }
    if !constraint.fk_del_set_cols().is_empty() {
        return Err(SqlError::unsupported("SET NULL of some columns is not supported"));
    }
    if let Some(key) = target.global_keys().find(|key| key.unique && key.columns == foreign.references) {
        let error = SqlError::unsupported("a foreign key to a global unique key is not supported");
        let hint = match key.primary {
            true => {
                format!("refer to ({}), from a table that is sharded as the other one is", list(&target.primary_key))
            }
            false => "refer to the primary key, from a table that is sharded as the other one is".into(),
        };
        return Err(error.with_hint(hint));
    }
    if !target.is_unique_over(&foreign.references) {
        let message = format!(
            "there is no unique constraint matching given keys for referenced table \"{}\"",
            target.plain_name()
        );
        return Err(SqlError::new("42830", message));
    }
    check_types(table, target, foreign)?;
    if foreign.stays_on_shard(table, target) { Ok(()) } else { Err(leaves_shard(table, target, foreign)) }
}

fn check_types(table: &Table, target: &Table, foreign: &ForeignKey) -> Result<()> {
    let integer = |ty| matches!(ty, DataType::Int2 | DataType::Int4 | DataType::Int8);
    for (here, there) in foreign.columns.iter().zip(&foreign.references) {
        let column = |table: &Table, name: &str| table.position(name).map(|at| table.columns[at].clone());
        let (Some(here), Some(there)) = (column(table, here), column(target, there)) else { continue };
        if here.ty != there.ty && !(integer(here.ty) && integer(there.ty)) {
            let message = format!("foreign key constraint \"{}\" cannot be implemented", foreign.name);
            let detail = format!(
                "Key columns \"{}\" and \"{}\" are of incompatible types: {} and {}.",
                here.name,
                there.name,
                here.type_name(),
                there.type_name()
            );
            return Err(SqlError::new("42804", message).with_detail(detail));
        }
    }
    Ok(())
}

fn leaves_shard(table: &Table, target: &Table, foreign: &ForeignKey) -> SqlError {
    let message = format!(
        "foreign key constraint \"{}\" of table \"{}\" refers to rows of other shards",
        foreign.name, table.name
    );
    let hint = match (&table.kind, &target.kind) {
        (TableKind::Hash { .. }, TableKind::Hash { group, shard_by, .. }) => format!(
            "place \"{0}\" with \"{1}\" by WITH (\"group\" = '{group}', shard_by = …), where the foreign key refers to ({2}) from the shard key; or make \"{1}\" a reference table",
            table.name,
            target.name,
            shard_by.join(", ")
        ),
        _ => format!("give both tables the same kind, or make \"{}\" a reference table", target.name),
    };
    SqlError::unsupported(message).with_hint(hint)
}

fn action(letter: u8) -> Result<OnChange> {
    match letter {
        b'a' | 0 => Ok(OnChange::NoAction),
        b'r' => Ok(OnChange::Restrict),
        b'c' => Ok(OnChange::Cascade),
        b'n' => Ok(OnChange::SetNull),
        _ => Err(SqlError::unsupported("SET DEFAULT as the action of a foreign key is not supported")),
    }
}

/// Drops a constraint of any kind.
pub(super) fn drop(draft: &mut Draft<'_>, name: &str, constraint: &str, cascade: super::draft::Behavior) -> Result<()> {
    let table = draft.table(name)?.clone();
    if !table.hidden_key && table.primary_key_name() == constraint {
        let error =
            SqlError::unsupported(format!("the primary key of table \"{}\" cannot be dropped", plain_name(name)));
        return Err(error.with_hint("create a table without it and copy the rows"));
    }
    let named = constraint.to_string();
    if table.checks.iter().any(|check| check.name == named) {
        return draft.push(SchemaChange::DropCheck { table: name.into(), check: named });
    }
    if table.foreign_keys.iter().any(|foreign| foreign.name == named) {
        return draft.push(SchemaChange::DropForeignKey { table: name.into(), foreign_key: named });
    }
    match table.keys.iter().find(|key| key.constraint && key.name == named) {
        Some(key) => super::drop::drop_key(draft, &table, key, cascade),
        None => {
            let message = format!("constraint \"{constraint}\" of relation \"{}\" does not exist", plain_name(name));
            Err(SqlError::new("42704", message))
        }
    }
}

/// A column of the table, by name.
pub(super) fn column_of(table: &Table, name: &str) -> Result<isles_kernel::schema::Column> {
    let found = table.visible_columns().iter().find(|column| column.name == name);
    found.cloned().ok_or_else(|| no_column(&table.name, name))
}

/// The names in an option such as `shard_by = 'a, b'`.
pub(super) fn name_list(text: &str) -> Vec<String> {
    text.split(',').map(|name| name.trim().to_string()).filter(|name| !name.is_empty()).collect()
}
