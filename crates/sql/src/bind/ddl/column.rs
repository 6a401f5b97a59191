//! Columns: types, defaults, identities.

use super::constraint::{Written, deferred_by};
use super::draft::Draft;
use super::sequence::{self, Options};
use super::text::{expression_text, identifier};
use super::{DefaultValue, Result};
use crate::types::{self, Type};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{
    Column, Identity, SchemaChange, Sequence, SqlType, nextval_default, plain_name, relation_name, relation_parts,
};
use isles_kernel::value::DataType;
use pg_raw_parse::nodes::{ColumnDef, Constraint, TypeName};
use pg_raw_parse::raw::ConstrType;
use pg_raw_parse::{Node, list};

/// A column as it was defined: what it is, and which constraints came with it.
pub(super) struct Defined<'a> {
    pub(super) column: Column,
    /// The sequence that feeds it, to be made before its table.
    pub(super) sequence: Option<Sequence>,
    /// What the default is at the moment, for rows that exist.
    pub(super) value: Option<DefaultValue>,
    /// Keys, checks and foreign keys.
    pub(super) constraints: Vec<Written<'a>>,
}

/// The carriers of serial types, by their names.
fn serial(name: &TypeName) -> Option<DataType> {
    let mut names = name.names().iter();
    let (Some(word), None) = (names.next()?.sval(), names.next()) else { return None };
    if !name.array_bounds().is_empty() {
        return None;
    }
    match word {
        "smallserial" | "serial2" => Some(DataType::Int2),
        "serial" | "serial4" => Some(DataType::Int4),
        "bigserial" | "serial8" => Some(DataType::Int8),
        _ => None,
    }
}

/// Reads a column's definition.
pub(super) fn define<'a>(draft: &Draft<'_>, table: &str, def: &'a ColumnDef) -> Result<Defined<'a>> {
    let name = def.colname().unwrap_or_default();
    refuse_storage(def)?;
    let Some(type_name) = def.type_name() else {
        return Err(SqlError::unsupported(format!("column \"{name}\" has no type")));
    };
    let serial = serial(type_name);
    let ty = match serial {
        Some(carrier) => Type::of(types::natural(carrier)),
        None => draft.expressions().named_type(type_name)?,
    };
    let mut defined = Defined { column: typed(name, ty)?, sequence: None, value: None, constraints: Vec::new() };
    if serial.is_some() {
        make_serial(draft, table, &mut defined);
    }
    let mut nullability: Option<bool> = None;
    for constraint in constraints(def.constraints()) {
        match constraint.contype {
            ConstrType::CONSTR_ATTR_DEFERRABLE
            | ConstrType::CONSTR_ATTR_NOT_DEFERRABLE
            | ConstrType::CONSTR_ATTR_DEFERRED
            | ConstrType::CONSTR_ATTR_IMMEDIATE => {
                let misplaced = || SqlError::new("42601", "misplaced DEFERRABLE clause");
                let last = defined.constraints.last_mut().ok_or_else(misplaced)?;
                last.deferral = deferred_by(last.deferral, constraint.contype)?;
            }
            _ if is_of_column(constraint) => take(draft, table, &mut defined, constraint, ty, &mut nullability)?,
            _ => defined.constraints.push(Written { at: Some(name.into()), ..Written::alone(constraint) }),
        }
    }
    if defined.constraints.iter().any(|written| written.constraint.contype == ConstrType::CONSTR_PRIMARY) {
        defined.column.nullable = false;
    }
    Ok(defined)
}

fn constraints(list: &list::NodeList) -> Vec<&Constraint> {
    list.iter()
        .filter_map(|node| if let Node::Constraint(constraint) = node { Some(constraint) } else { None })
        .collect()
}

fn is_of_column(constraint: &Constraint) -> bool {
    matches!(
        constraint.contype,
        ConstrType::CONSTR_NULL
            | ConstrType::CONSTR_NOTNULL
            | ConstrType::CONSTR_DEFAULT
            | ConstrType::CONSTR_IDENTITY
            | ConstrType::CONSTR_GENERATED
            | ConstrType::CONSTR_ATTR_ENFORCED
            | ConstrType::CONSTR_ATTR_NOT_ENFORCED
    )
}

fn refuse_storage(def: &ColumnDef) -> Result<()> {
    let name = def.colname().unwrap_or_default();
    if def.compression().is_some() || def.storage_name().is_some() {
        return Err(SqlError::unsupported(format!("STORAGE and COMPRESSION of column \"{name}\" are not supported")));
    }
    let Some(collate) = def.coll_clause() else { return Ok(()) };
    match collate.collname().iter().filter_map(Node::as_str).next_back() {
        Some("C" | "POSIX" | "default" | "ucs_basic") => Ok(()),
        other => {
            let message = format!("collation \"{}\" is not supported", other.unwrap_or_default());
            Err(SqlError::unsupported(message).with_hint("texts are ordered by their bytes, as by collation \"C\""))
        }
    }
}

/// A column of a type, nullable and without a default.
pub(super) fn typed(name: &str, ty: Type) -> Result<Column> {
    let Some(carrier) = types::carrier(ty.oid) else {
        return Err(SqlError::unsupported(format!("a column of this type is not supported: \"{name}\"")));
    };
    let declared = SqlType { oid: ty.oid.0, modifier: ty.modifier };
    if declared.name().is_none() {
        return Err(SqlError::unsupported(format!("a column of this type is not supported: \"{name}\"")));
    }
    let mut column = Column::new(name, carrier);
    if ty != Type::of(types::natural(carrier)) {
        column.sql_type = Some(declared);
    }
    Ok(column)
}

/// The declared type of a column.
pub(super) fn type_of(column: &Column) -> Type {
    match column.sql_type {
        Some(declared) => Type::with(types::Oid(declared.oid), declared.modifier),
        None => Type::of(types::natural(column.ty)),
    }
}

/// A free name for the sequence of a column, in the table's schema.
fn sequence_name(draft: &Draft<'_>, table: &str, column: &str) -> String {
    relation_name(relation_parts(table).0, &draft.free_relation_name(table, column, "seq"))
}

fn make_serial(draft: &Draft<'_>, table: &str, defined: &mut Defined<'_>) {
    let name = sequence_name(draft, table, &defined.column.name);
    defined.column.default_sql = Some(nextval_default(&name));
    defined.column.nullable = false;
    defined.value = Some(DefaultValue::PerRow);
    defined.sequence = Some(sequence::owned(&name, defined.column.ty, table, &defined.column.name));
}

fn take(
    draft: &Draft<'_>,
    table: &str,
    defined: &mut Defined<'_>,
    constraint: &Constraint,
    ty: Type,
    nullability: &mut Option<bool>,
) -> Result<()> {
    let column = defined.column.name.clone();
    match constraint.contype {
        ConstrType::CONSTR_NULL | ConstrType::CONSTR_NOTNULL => {
            let nullable = constraint.contype == ConstrType::CONSTR_NULL;
            let serial = defined.sequence.is_some();
            if nullability.is_some_and(|before| before != nullable) || (nullable && serial) {
                let message = format!(
                    "conflicting NULL/NOT NULL declarations for column \"{column}\" of table \"{}\"",
                    plain_name(table)
                );
                return Err(SqlError::new("42601", message));
            }
            *nullability = Some(nullable);
            defined.column.nullable = nullable;
        }
        ConstrType::CONSTR_DEFAULT => {
            if defined.column.default_sql.is_some() || defined.column.identity.is_some() {
                let message = format!(
                    "multiple default values specified for column \"{column}\" of table \"{}\"",
                    plain_name(table)
                );
                return Err(SqlError::new("42601", message));
            }
            let sql = expression_text(constraint.raw_expr())?;
            defined.value = Some(set_default(draft, table, &mut defined.column, ty, sql)?);
        }
        ConstrType::CONSTR_IDENTITY => {
            if defined.column.identity.is_some() || defined.column.default_sql.is_some() {
                let message = format!(
                    "both default and identity specified for column \"{column}\" of table \"{}\"",
                    plain_name(table)
                );
                return Err(SqlError::new("42601", message));
            }
            let (identity, sequence) = identity(draft, table, &defined.column, constraint)?;
            defined.column.identity = Some(identity);
            defined.column.nullable = false;
            defined.value = Some(DefaultValue::PerRow);
            defined.sequence = Some(sequence);
        }
        ConstrType::CONSTR_GENERATED => {
            let error = SqlError::unsupported("generated columns are not supported");
            return Err(error.with_hint("compute the value in a view or when writing"));
        }
        ConstrType::CONSTR_ATTR_ENFORCED => {}
        _ => return Err(SqlError::unsupported("NOT ENFORCED constraints are not supported")),
    }
    Ok(())
}

/// Gives a column a default. A constant is stored as a value, too.
pub(super) fn set_default(
    draft: &Draft<'_>,
    table: &str,
    column: &mut Column,
    ty: Type,
    sql: String,
) -> Result<DefaultValue> {
    let value = draft.expressions().default(&draft.schema, table, &sql, ty, &column.name)?;
    column.default = match &value {
        DefaultValue::Constant(value) if !value.is_null() => Some(value.clone()),
        _ => None,
    };
    // `DEFAULT NULL` is no default.
    let null = matches!(&value, DefaultValue::Constant(value) if value.is_null());
    column.default_sql = (!null).then_some(sql);
    Ok(value)
}

pub(super) fn identity(
    draft: &Draft<'_>,
    table: &str,
    column: &Column,
    constraint: &Constraint,
) -> Result<(Identity, Sequence)> {
    if !matches!(column.ty, DataType::Int2 | DataType::Int4 | DataType::Int8) || column.sql_type.is_some() {
        return Err(SqlError::new("22023", "identity column type must be smallint, integer, or bigint"));
    }
    let mut options = Options::read(draft, constraint.options())?;
    let name = options.name.take().unwrap_or_else(|| sequence_name(draft, table, &column.name));
    let base = sequence::owned(&name, column.ty, table, &column.name);
    let sequence = options.applied(base, sequence::Start::New)?;
    let always = constraint.generated_when as u8 == b'a';
    Ok((Identity { sequence: name, always }, sequence))
}

/// Adds a column to a table that may have rows.
pub(super) fn add(draft: &mut Draft<'_>, table: &str, def: &ColumnDef) -> Result<()> {
    let mut defined = define(draft, table, def)?;
    let name = defined.column.name.clone();
    match &defined.value {
        Some(DefaultValue::PerStatement) => {
            let sql = defined.column.default_sql.clone().unwrap_or_default();
            draft.compute(format!("CAST(({sql}) AS {})", defined.column.type_name()));
        }
        Some(DefaultValue::PerRow) => {
            let message = format!("column \"{name}\" cannot be added with a default that differs from row to row");
            let hint = format!(
                "add it without a default, then ALTER COLUMN {} SET DEFAULT, and UPDATE the rows",
                identifier(&name)
            );
            return Err(SqlError::unsupported(message).with_hint(hint));
        }
        _ => {}
    }
    if let Some(sequence) = defined.sequence.take() {
        draft.push(SchemaChange::CreateSequence(sequence))?;
    }
    draft.push(SchemaChange::AddColumn { table: table.into(), column: defined.column })?;
    defined.constraints.iter().try_for_each(|written| super::constraint::add(draft, table, written))
}
