//! ALTER TABLE and its kin, and all renaming.

use super::column::{self, type_of};
use super::constraint::{self, Written, column_of};
use super::draft::{Behavior, Draft, RelationKind, no_relation};
use super::text::{expression_text, identifier};
use super::{DdlChange, Purpose, Result};
use crate::types;
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Column, Expression, SchemaChange, Table, plain_name, relation_name, relation_parts};
use pg_raw_parse::Node;
use pg_raw_parse::nodes::{AlterTableCmd, AlterTableStmt, ColumnDef, RenameStmt};
use pg_raw_parse::raw::{AlterTableType, ObjectType};

pub(super) fn alter(mut draft: Draft<'_>, statement: &AlterTableStmt) -> Result<DdlChange> {
    let tag = match statement.objtype {
        ObjectType::OBJECT_TABLE => "ALTER TABLE",
        ObjectType::OBJECT_INDEX => return Err(SqlError::unsupported("ALTER INDEX is not supported but to rename")),
        ObjectType::OBJECT_VIEW => return Err(SqlError::unsupported("ALTER VIEW is not supported but to rename")),
        ObjectType::OBJECT_SEQUENCE => "ALTER SEQUENCE",
        _ => return Err(SqlError::unsupported("altering this kind of object is not supported")),
    };
    let name = draft.name(statement.relation())?;
    if draft.kind_of(&name).is_none() && statement.missing_ok {
        draft.notice(format!("relation \"{}\" does not exist, skipping", plain_name(&name)));
        return Ok(draft.finish(tag));
    }
    draft.table(&name)?;
    for command in statement.cmds() {
        if let Node::AlterTableCmd(command) = command {
            run(&mut draft, &name, command)?;
        }
    }
    refuse_broken_views(&draft)?;
    Ok(draft.finish(tag))
}

fn run(draft: &mut Draft<'_>, table: &str, command: &AlterTableCmd) -> Result<()> {
    let name = command.name().unwrap_or_default();
    match command.subtype {
        AlterTableType::AT_AddColumn => add_column(draft, table, command),
        AlterTableType::AT_DropColumn => drop_column(draft, table, name, command),
        AlterTableType::AT_ColumnDefault => set_default(draft, table, name, command.def()),
        AlterTableType::AT_SetNotNull => edit(draft, table, name, |column| column.nullable = false),
        AlterTableType::AT_DropNotNull => drop_not_null(draft, table, name),
        AlterTableType::AT_AlterColumnType => alter_type(draft, table, name, command.def()),
        AlterTableType::AT_AddConstraint => match command.def() {
            Node::Constraint(constraint) => constraint::add(draft, table, &Written::alone(constraint)),
            _ => Err(SqlError::unsupported("this kind of constraint is not supported")),
        },
        AlterTableType::AT_DropConstraint => drop_constraint(draft, table, name, command),
        // Every constraint holds for all rows from the start.
        AlterTableType::AT_ValidateConstraint => match draft.table(table)?.has_constraint(name) {
            true => Ok(()),
            false => Err(no_constraint(table, name)),
        },
        AlterTableType::AT_AddIdentity => add_identity(draft, table, name, command.def()),
        AlterTableType::AT_DropIdentity => drop_identity(draft, table, name, command),
        AlterTableType::AT_ChangeOwner => {
            Err(SqlError::unsupported("OWNER TO is not supported").with_hint(crate::bind::utility::NO_OWNERS))
        }
        AlterTableType::AT_SetRelOptions | AlterTableType::AT_ResetRelOptions => {
            let hint = "a table becomes a tenant table by SET (kind = 'tenant', tenant_by = '…') alone";
            Err(SqlError::unsupported("a table's kind, shard key and group cannot be altered").with_hint(hint))
        }
        _ => Err(SqlError::unsupported("this form of ALTER TABLE is not supported")),
    }
}

fn no_constraint(table: &str, name: &str) -> SqlError {
    SqlError::new("42704", format!("constraint \"{name}\" of relation \"{}\" does not exist", plain_name(table)))
}

fn add_column(draft: &mut Draft<'_>, table: &str, command: &AlterTableCmd) -> Result<()> {
    let Node::ColumnDef(def) = command.def() else { return Err(SqlError::new("42601", "a column is missing")) };
    let name = def.colname().unwrap_or_default();
    if draft.table(table)?.visible_columns().iter().any(|column| column.name == name) {
        let message = format!("column \"{name}\" of relation \"{}\" already exists", plain_name(table));
        if !command.missing_ok {
            return Err(SqlError::new("42701", message));
        }
        draft.notices.push(SqlError::new("42701", format!("{message}, skipping")));
        return Ok(());
    }
    column::add(draft, table, def)
}

/// Drops a column with the keys, checks and foreign keys that use it, as PostgreSQL does.
fn drop_column(draft: &mut Draft<'_>, name: &str, column: &str, command: &AlterTableCmd) -> Result<()> {
    let table = draft.table(name)?.clone();
    if !table.visible_columns().iter().any(|other| other.name == column) {
        if command.missing_ok {
            draft.notice(format!("column \"{column}\" of relation \"{}\" does not exist, skipping", plain_name(name)));
            return Ok(());
        }
        return Err(super::draft::no_column(name, column));
    }
    if table.primary_key.iter().any(|key| key == column) {
        let key = key_with(&table, column);
        let error = SqlError::unsupported(format!("column \"{column}\" is part of the {key} key of \"{name}\""));
        return Err(error.with_hint("create a table without it and copy the rows"));
    }
    let behavior = Behavior::of(command.behavior);
    for foreign in table.foreign_keys.iter().filter(|foreign| foreign.columns.iter().any(|c| c == column)) {
        draft.push(SchemaChange::DropForeignKey { table: name.into(), foreign_key: foreign.name.clone() })?;
    }
    for key in table.keys.iter().filter(|key| key.uses(column)) {
        let now = draft.table(name)?.clone();
        super::drop::drop_key(draft, &now, key, behavior)?;
    }
    for check in table.checks.iter().filter(|check| check.expression.uses(column)) {
        draft.push(SchemaChange::DropCheck { table: name.into(), check: check.name.clone() })?;
    }
    draft.push(SchemaChange::DropColumn { table: name.into(), column: column.into() })?;
    refuse_or_drop_views(draft, name, column, behavior)
}

fn refuse_or_drop_views(draft: &mut Draft<'_>, table: &str, column: &str, behavior: Behavior) -> Result<()> {
    let broken = draft.broken_views().first().map(|view| view.name.clone());
    match (broken, behavior) {
        (None, _) => Ok(()),
        (Some(_), Behavior::Cascade) => {
            super::drop::drop_broken_views(draft, RelationKind::Table, &[table.into()], behavior)
        }
        (Some(view), Behavior::Restrict) => {
            let object = format!("column {} of table {}", identifier(column), identifier(table));
            let error = SqlError::new("2BP01", format!("cannot drop {object} because other objects depend on it"));
            Err(error
                .with_detail(format!("view {} depends on {object}", identifier(&view)))
                .with_hint("Use DROP ... CASCADE to drop the dependent objects too."))
        }
    }
}

/// A view keeps its query as text, which a renamed or retyped column would change under it.
fn refuse_broken_views(draft: &Draft<'_>) -> Result<()> {
    match draft.broken_views().first() {
        None => Ok(()),
        Some(view) => {
            let error = SqlError::unsupported(format!("view \"{}\" depends on what is altered", view.name));
            Err(error.with_hint("drop the view, and create it again afterwards"))
        }
    }
}

fn push_column(draft: &mut Draft<'_>, table: &str, column: Column, convert: Option<Expression>) -> Result<()> {
    draft.push(SchemaChange::AlterColumn { table: table.into(), column: Box::new(column), convert })
}

fn edit(draft: &mut Draft<'_>, table: &str, name: &str, edit: impl FnOnce(&mut Column)) -> Result<()> {
    let old = column_of(draft.table(table)?, name)?;
    let mut column = old.clone();
    edit(&mut column);
    if column == old { Ok(()) } else { push_column(draft, table, column, None) }
}

/// What a column of the shards' primary key belongs to.
fn key_with(table: &Table, column: &str) -> &'static str {
    if table.declared_key().iter().any(|key| key == column) { "primary" } else { "shard" }
}

fn drop_not_null(draft: &mut Draft<'_>, table: &str, name: &str) -> Result<()> {
    let owner = draft.table(table)?;
    let column = column_of(owner, name)?;
    if owner.primary_key.iter().any(|key| key == name) {
        let key = key_with(owner, name);
        return Err(SqlError::new("42P16", format!("column \"{name}\" is in a {key} key")));
    }
    if column.identity.is_some() {
        let message = format!("column \"{name}\" of relation \"{}\" is an identity column", plain_name(table));
        return Err(SqlError::new("42601", message));
    }
    edit(draft, table, name, |column| column.nullable = true)
}

fn set_default(draft: &mut Draft<'_>, table: &str, name: &str, def: Node<'_>) -> Result<()> {
    let mut column = column_of(draft.table(table)?, name)?;
    if column.identity.is_some() {
        let error = SqlError::new(
            "42601",
            format!("column \"{name}\" of relation \"{}\" is an identity column", plain_name(table)),
        );
        return Err(error.with_hint("Use ALTER TABLE ... ALTER COLUMN ... DROP IDENTITY instead."));
    }
    match def {
        Node::None => (column.default, column.default_sql) = (None, None),
        def => {
            let ty = type_of(&column);
            column::set_default(draft, table, &mut column, ty, expression_text(def)?)?;
        }
    }
    edit(draft, table, name, |old| *old = column)
}

fn alter_type(draft: &mut Draft<'_>, table: &str, name: &str, def: Node<'_>) -> Result<()> {
    let Node::ColumnDef(def) = def else { return Err(SqlError::new("42601", "a type is missing")) };
    let owner = draft.table(table)?.clone();
    let old = column_of(&owner, name)?;
    refuse_expressions(&owner, name)?;
    let Some(type_name) = def.type_name() else { return Err(SqlError::new("42601", "a type is missing")) };
    let ty = draft.expressions().named_type(type_name)?;
    let mut column = column::typed(name, ty)?;
    column.nullable = old.nullable;
    column.identity = old.identity.clone();
    let convert = conversion(draft, &owner, &old, &column, def)?;
    if convert.is_some() {
        let what = format!("the type of \"{name}\" cannot change");
        super::global::refuse_while_indexed(&owner, |key| key.uses(name), &what)?;
    }
    if let Some(sql) = &old.default_sql {
        if old.default.is_some() {
            column::set_default(draft, table, &mut column, ty, sql.clone()).map_err(|_| {
                let message = format!(
                    "default for column \"{name}\" cannot be cast automatically to type {}",
                    column.type_name()
                );
                SqlError::new("42804", message)
            })?;
        } else {
            column.default_sql = Some(sql.clone());
        }
    }
    if column == old && convert.is_none() { Ok(()) } else { push_column(draft, table, column, convert) }
}

/// An expression would have to be bound again with the new type.
fn refuse_expressions(table: &Table, column: &str) -> Result<()> {
    let in_check = table.checks.iter().any(|check| check.expression.uses(column));
    let in_key = table.keys.iter().any(|key| !key.columns.iter().any(|c| c == column) && key.uses(column));
    if in_check || in_key {
        let error =
            SqlError::unsupported(format!("the type of \"{column}\" cannot change while an expression uses it"));
        return Err(error.with_hint("drop the check or index, and create it again afterwards"));
    }
    Ok(())
}

/// How the new values are computed; none where the stored values are the new ones.
fn conversion(
    draft: &Draft<'_>,
    table: &Table,
    old: &Column,
    new: &Column,
    def: &ColumnDef,
) -> Result<Option<Expression>> {
    let sql = match def.raw_default() {
        Node::None if keeps_values(old, new) => return Ok(None),
        Node::None => identifier(&old.name),
        using => expression_text(using)?,
    };
    let bound = constraint::expression(draft, table, sql, Purpose::Convert(type_of(new)));
    bound.map(Some).map_err(|error| match error.sqlstate {
        "42804" if matches!(def.raw_default(), Node::None) => {
            let ty = new.type_name();
            let message = format!("column \"{}\" cannot be cast automatically to type {ty}", old.name);
            let hint = format!("You might need to specify \"USING {}::{ty}\".", identifier(&old.name));
            SqlError::new("42804", message).with_hint(hint)
        }
        _ => error,
    })
}

/// Texts of any length take all shorter ones, and larger integers all smaller ones.
fn keeps_values(old: &Column, new: &Column) -> bool {
    let (from, to) = (type_of(old), type_of(new));
    let text = |oid| oid == types::TEXT || oid == types::VARCHAR;
    let wider = to.modifier == -1 || (from.modifier != -1 && from.oid == to.oid && to.modifier >= from.modifier);
    let size = |oid| match oid {
        types::INT2 => Some(2),
        types::INT4 => Some(4),
        types::INT8 => Some(8),
        _ => None,
    };
    match (size(from.oid), size(to.oid)) {
        (Some(from), Some(to)) => from <= to,
        _ if from == to => true,
        _ => text(from.oid) && text(to.oid) && wider,
    }
}

fn drop_constraint(draft: &mut Draft<'_>, table: &str, name: &str, command: &AlterTableCmd) -> Result<()> {
    if !draft.table(table)?.has_constraint(name) {
        if command.missing_ok {
            draft.notice(format!(
                "constraint \"{name}\" of relation \"{}\" does not exist, skipping",
                plain_name(table)
            ));
            return Ok(());
        }
        return Err(no_constraint(table, name));
    }
    constraint::drop(draft, table, name, Behavior::of(command.behavior))
}

fn add_identity(draft: &mut Draft<'_>, table: &str, name: &str, def: Node<'_>) -> Result<()> {
    let Node::Constraint(constraint) = def else { return Err(SqlError::new("42601", "identity options are missing")) };
    let mut column = column_of(draft.table(table)?, name)?;
    let wrong =
        |what: &str| SqlError::new("55000", format!("column \"{name}\" of relation \"{}\" {what}", plain_name(table)));
    if column.nullable {
        return Err(wrong("must be declared NOT NULL before identity can be added"));
    }
    if column.identity.is_some() {
        return Err(wrong("is already an identity column"));
    }
    if column.default_sql.is_some() {
        return Err(wrong("already has a default value"));
    }
    let (identity, sequence) = column::identity(draft, table, &column, constraint)?;
    column.identity = Some(identity);
    draft.push(SchemaChange::CreateSequence(sequence))?;
    push_column(draft, table, column, None)
}

fn drop_identity(draft: &mut Draft<'_>, table: &str, name: &str, command: &AlterTableCmd) -> Result<()> {
    let mut column = column_of(draft.table(table)?, name)?;
    let Some(identity) = column.identity.take() else {
        let message = format!("column \"{name}\" of relation \"{}\" is not an identity column", plain_name(table));
        if command.missing_ok {
            draft.notice(format!("{message}, skipping"));
            return Ok(());
        }
        return Err(SqlError::new("55000", message));
    };
    push_column(draft, table, column, None)?;
    draft.push(SchemaChange::DropSequence { sequence: identity.sequence })
}

pub(super) fn rename(mut draft: Draft<'_>, statement: &RenameStmt) -> Result<Option<DdlChange>> {
    let tag = match statement.rename_type {
        ObjectType::OBJECT_INDEX => "ALTER INDEX",
        ObjectType::OBJECT_VIEW => "ALTER VIEW",
        ObjectType::OBJECT_SEQUENCE => "ALTER SEQUENCE",
        ObjectType::OBJECT_TABLE | ObjectType::OBJECT_COLUMN | ObjectType::OBJECT_TABCONSTRAINT => "ALTER TABLE",
        _ => return Ok(None),
    };
    let name = draft.name(statement.relation())?;
    let to = statement.newname().unwrap_or_default().to_string();
    let Some(kind) = draft.kind_of(&name) else {
        if statement.missing_ok {
            draft.notice(format!("relation \"{}\" does not exist, skipping", plain_name(&name)));
            return Ok(Some(draft.finish(tag)));
        }
        return Err(no_relation(&name));
    };
    let subname = statement.subname().unwrap_or_default().to_string();
    match statement.rename_type {
        ObjectType::OBJECT_COLUMN => rename_column(&mut draft, &name, &subname, &to)?,
        ObjectType::OBJECT_TABCONSTRAINT => {
            draft.table(&name)?;
            draft.push(SchemaChange::RenameConstraint { table: name, constraint: subname, to })?;
        }
        _ => rename_relation(&mut draft, kind, name, to)?,
    }
    refuse_broken_views(&draft)?;
    Ok(Some(draft.finish(tag)))
}

/// As PostgreSQL, whatever the statement calls it.
fn rename_relation(draft: &mut Draft<'_>, kind: RelationKind, name: String, to: String) -> Result<()> {
    let renamed = to.clone();
    let to = relation_name(relation_parts(&name).0, &to);
    let change = match kind {
        RelationKind::Table => SchemaChange::RenameTable { table: name, to },
        RelationKind::View => SchemaChange::RenameView { view: name, to },
        RelationKind::Sequence => SchemaChange::RenameSequence { sequence: name, to },
        RelationKind::Index => {
            let Some(table) = draft.table_of_index(&name) else { return Err(no_relation(&name)) };
            let (owner, key) = (table.name.clone(), plain_name(&name).to_string());
            match table.keys.iter().any(|other| other.name == key) {
                true => SchemaChange::RenameKey { table: owner, key, to: renamed },
                false => SchemaChange::RenameConstraint { table: owner, constraint: key, to: renamed },
            }
        }
    };
    draft.push(change)
}

/// A column that an expression uses keeps its name: the expression is kept as text.
fn rename_column(draft: &mut Draft<'_>, name: &str, column: &str, to: &str) -> Result<()> {
    if draft.schema.views.contains_key(name) {
        return Err(SqlError::unsupported("renaming a column of a view is not supported"));
    }
    let table = draft.table(name)?.clone();
    column_of(&table, column).map_err(|_| SqlError::new("42703", format!("column \"{column}\" does not exist")))?;
    let in_check = table.checks.iter().any(|check| check.expression.uses(column));
    let in_key = |key: &isles_kernel::schema::Key| {
        let plain = key.columns.iter().any(|c| c == column);
        key.uses(column) && (!plain || key.predicate.as_ref().is_some_and(|only| only.uses(column)))
    };
    if in_check || table.keys.iter().any(in_key) {
        let error = SqlError::unsupported(format!("column \"{column}\" cannot be renamed while an expression uses it"));
        return Err(error.with_hint("drop the check or index, and create it again afterwards"));
    }
    draft.push(SchemaChange::RenameColumn { table: name.into(), column: column.into(), to: to.into() })
}
