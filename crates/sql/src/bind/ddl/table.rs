//! CREATE TABLE, CREATE TABLE AS and SELECT INTO.

use super::column::{self, Defined};
use super::constraint::{self, Written, name_list};
use super::draft::{Draft, Otherwise};
use super::global::Extent;
use super::text::{identifier, qualified_text, statement_text};
use super::{DdlChange, Result, exists, refuse_temporary};
use crate::bind::utility::DefaultKind;
use crate::types::{self, Type};
use isles_kernel::error::SqlError;
use isles_kernel::names::GroupName;
use isles_kernel::placement::RegionRange;
use isles_kernel::schema::{Column, HIDDEN_KEY_COLUMN, Key, RESERVED_PREFIX, SchemaChange, Table, TableKind};
use isles_kernel::schema::{read_regions, written_regions};
use pg_raw_parse::nodes::{Constraint, CreateStmt, IntoClause};
use pg_raw_parse::raw::{ConstrType, ObjectType, OnCommitAction};
use pg_raw_parse::{Node, list, nodes};

/// The group of tables that name none: those with keys of one type are colocated.
const DEFAULT_GROUP: &str = "default";

/// What `WITH (…)` says.
#[derive(Default)]
struct Placement {
    kind: Option<String>,
    shard_by: Option<Vec<String>>,
    group: Option<String>,
    buckets: Option<u32>,
    /// Where its buckets are kept.
    region: Option<String>,
}

pub(super) fn create(draft: &mut Draft<'_>, statement: &CreateStmt) -> Result<()> {
    refuse_temporary(statement.relation())?;
    refuse_unusual(statement)?;
    let name = draft.new_name(statement.relation())?;
    if draft.schema.is_taken(&name) {
        return exists(draft, &name, Otherwise::of(statement.if_not_exists));
    }
    let (columns, table_constraints) = elements(draft, &name, statement)?;
    let placement = Placement::read(statement.options())?;
    let mut constraints: Vec<Written<'_>> = Vec::new();
    let mut own = Vec::new();
    for defined in columns {
        if let Some(sequence) = defined.sequence {
            draft.push(SchemaChange::CreateSequence(sequence))?;
        }
        constraints.extend(defined.constraints);
        own.push(defined.column);
    }
    constraints.extend(table_constraints.into_iter().map(Written::alone));
    let mut table = Table::new(&name, TableKind::Global, own, &[]);
    place(draft, &mut table, &constraints, &placement)?;
    for written in &constraints {
        attach(draft, &mut table, written)?;
    }
    draft.push(SchemaChange::CreateTable(table))
}

fn refuse_unusual(statement: &CreateStmt) -> Result<()> {
    let refused = [
        (!statement.inh_relations().is_empty(), "INHERITS and PARTITION OF"),
        (statement.partspec().is_some() || statement.partbound().is_some(), "PARTITION BY"),
        (statement.of_typename().is_some(), "CREATE TABLE OF"),
        (statement.tablespacename().is_some(), "TABLESPACE"),
        (statement.access_method().is_some(), "a table access method"),
        (statement.oncommit != OnCommitAction::ONCOMMIT_NOOP, "ON COMMIT"),
    ];
    match refused.iter().find(|(said, _)| *said) {
        Some((_, what)) => Err(SqlError::unsupported(format!("{what} is not supported"))),
        None => Ok(()),
    }
}

fn elements<'a>(
    draft: &Draft<'_>,
    table: &str,
    statement: &'a CreateStmt,
) -> Result<(Vec<Defined<'a>>, Vec<&'a Constraint>)> {
    let (mut columns, mut constraints): (Vec<Defined<'_>>, Vec<&Constraint>) = (vec![], vec![]);
    for element in statement.table_elts() {
        match element {
            Node::ColumnDef(def) => {
                let defined = column::define(draft, table, def)?;
                if columns.iter().any(|other| other.column.name == defined.column.name) {
                    let message = format!("column \"{}\" specified more than once", defined.column.name);
                    return Err(SqlError::new("42701", message));
                }
                columns.push(defined);
            }
            Node::Constraint(constraint) => constraints.push(constraint),
            Node::TableLikeClause(_) => return Err(SqlError::unsupported("LIKE in CREATE TABLE is not supported")),
            _ => return Err(SqlError::unsupported("this part of CREATE TABLE is not supported")),
        }
    }
    Ok((columns, constraints))
}

impl Placement {
    fn read(options: &list::NodeList) -> Result<Placement> {
        let mut placement = Placement::default();
        for option in options {
            let Node::DefElem(option) = option else { continue };
            let name = option.defname().unwrap_or_default();
            let value = super::option_text(option)
                .ok_or_else(|| SqlError::new("22023", format!("invalid value for parameter \"{name}\"")))?;
            match name {
                "kind" => placement.kind = Some(value),
                "shard_by" => placement.shard_by = Some(name_list(&value)),
                "group" => placement.group = Some(value),
                "buckets" => placement.buckets = Some(buckets(&value)?),
                "region" => placement.region = Some(value),
                "fillfactor" | "toast_tuple_target" | "parallel_workers" => {
                    return Err(SqlError::unsupported(format!("storage parameter \"{name}\" is not supported")));
                }
                other => return Err(SqlError::new("22023", format!("unrecognized parameter \"{other}\""))),
            }
        }
        Ok(placement)
    }
}

fn buckets(text: &str) -> Result<u32> {
    let most = isles_kernel::hash::MAX_BUCKETS;
    match text.parse() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(SqlError::new("22023", format!("buckets must be a number from 1 to {most}, not \"{text}\""))),
    }
}

/// Finds the primary key and with it the kind: both must be known before other constraints are looked at.
fn place(draft: &mut Draft<'_>, table: &mut Table, constraints: &[Written<'_>], placement: &Placement) -> Result<()> {
    let mut primary = constraints.iter().filter(|written| written.constraint.contype == ConstrType::CONSTR_PRIMARY);
    let declared = match (primary.next(), primary.next()) {
        (_, Some(_)) => {
            let message = format!("multiple primary keys for table \"{}\" are not allowed", table.plain_name());
            return Err(SqlError::new("42P16", message));
        }
        (Some(Written { constraint, at, .. }), None) => {
            constraint::refuse_unusual(constraint)?;
            table.primary_key = constraint::key_columns(table, constraint, at.as_deref())?;
            table.primary_key_name = primary_name(draft, table, constraint);
            Some(constraint)
        }
        (None, None) => {
            hide_key(table);
            None
        }
    };
    table.kind = kind(draft, table, placement)?;
    if let Some(constraint) = declared {
        widen_key(draft, table, constraint)?;
    }
    for column in table.columns.iter_mut().filter(|column| table.primary_key.contains(&column.name)) {
        column.nullable = false;
    }
    Ok(())
}

/// A primary key without the shard key is kept by a global index, and on its shard a row is found by both.
fn widen_key(draft: &mut Draft<'_>, table: &mut Table, constraint: &Constraint) -> Result<()> {
    let Some(columns) = constraint::global_primary(table, constraint)? else { return Ok(()) };
    let key = Key {
        name: table.primary_key_name(),
        columns,
        unique: true,
        constraint: true,
        global: draft.make_entries(Extent::Global, &table.kind)?,
        primary: true,
        ..Key::default()
    };
    if let TableKind::Hash { shard_by, .. } = &table.kind {
        table.primary_key.extend(shard_by.iter().filter(|name| !key.columns.contains(name)).cloned());
    }
    table.keys.push(key);
    Ok(())
}

/// None for the usual name.
fn primary_name(draft: &Draft<'_>, table: &Table, constraint: &Constraint) -> Option<String> {
    let usual = table.primary_key_name();
    let name = match constraint.conname() {
        Some(name) => name.to_string(),
        None => draft.free_relation_name(&table.name, "", "pkey"),
    };
    (name != usual).then_some(name)
}

fn hide_key(table: &mut Table) {
    table.columns.push(Column::hidden_key());
    table.primary_key = vec![HIDDEN_KEY_COLUMN.into()];
    table.hidden_key = true;
}

fn kind(draft: &Draft<'_>, table: &Table, placement: &Placement) -> Result<TableKind> {
    let default = match draft.context.default_kind {
        DefaultKind::Hash => "hash",
        DefaultKind::Tenant
            if placement.shard_by.is_some() || placement.group.is_some() || placement.region.is_some() =>
        {
            "hash"
        }
        DefaultKind::Tenant => "tenant",
    };
    let kind = placement.kind.as_deref().unwrap_or(default).to_ascii_lowercase();
    let only_hash = placement.shard_by.is_some()
        || placement.group.is_some()
        || placement.buckets.is_some()
        || placement.region.is_some();
    match kind.as_str() {
        "hash" => hash_kind(draft, table, placement),
        "tenant" | "reference" | "global" if only_hash => {
            let message = format!("shard_by, group, buckets and region have no meaning for a table of kind \"{kind}\"");
            Err(SqlError::new("22023", message))
        }
        "tenant" => Ok(TableKind::Tenant),
        "reference" => Ok(TableKind::Reference),
        "global" => Ok(TableKind::Global),
        other => {
            let error = SqlError::new("22023", format!("unrecognized table kind \"{other}\""));
            Err(error.with_hint("a table's kind is hash, tenant, reference or global"))
        }
    }
}

fn hash_kind(draft: &Draft<'_>, table: &Table, placement: &Placement) -> Result<TableKind> {
    let shard_by = placement.shard_by.clone().unwrap_or_else(|| table.primary_key.clone());
    for column in &shard_by {
        if table.position(column).is_none() {
            return Err(SqlError::new("42703", format!("column \"{column}\" named in shard_by does not exist")));
        }
    }
    if table.hidden_key && placement.shard_by.is_some() {
        let error = SqlError::unsupported("shard_by of a table without a primary key is not supported");
        return Err(error.with_hint("name a primary key, with or without the shard key"));
    }
    // A table that says how many buckets it wants or where, and no group, does not want those of others.
    let group = match &placement.group {
        Some(group) => group.clone(),
        None if placement.buckets.is_some() || placement.region.is_some() => table.name.replace('.', "-"),
        None => DEFAULT_GROUP.into(),
    };
    if group.starts_with(RESERVED_PREFIX) {
        return Err(SqlError::new("42939", format!("the name of group \"{group}\" is reserved")));
    }
    let group = GroupName::new(&group).map_err(|error| SqlError::new("22023", error.to_string()))?;
    let known = draft.schema.tables.values().find_map(|other| match &other.kind {
        TableKind::Hash { group: theirs, buckets, regions, .. } if *theirs == group => Some((*buckets, regions)),
        _ => None,
    });
    let (known, there) = known.unzip();
    let buckets = placement.buckets.or(known).unwrap_or(draft.context.default_buckets);
    if known.is_some_and(|known| known != buckets) {
        let message = format!("group \"{group}\" has {} buckets, not {buckets}", known.unwrap_or_default());
        return Err(SqlError::new("22023", message));
    }
    let regions = regions(placement, &group, buckets, there)?;
    Ok(TableKind::Hash { group, shard_by, buckets, regions })
}

/// Where the buckets of a group are kept, as all of its tables say.
fn regions(
    placement: &Placement,
    group: &GroupName,
    buckets: u32,
    there: Option<&Vec<RegionRange>>,
) -> Result<Vec<RegionRange>> {
    let Some(text) = &placement.region else { return Ok(there.cloned().unwrap_or_default()) };
    let wrong = |what| SqlError::new("22023", format!("invalid value for parameter \"region\": {what}"));
    let regions = read_regions(text, buckets).map_err(wrong)?;
    match there {
        Some(theirs) if *theirs != regions => {
            let where_ = if theirs.is_empty() { "anywhere".into() } else { format!("in {}", written_regions(theirs)) };
            let message = format!("other tables of group \"{group}\" are kept {where_}");
            Err(SqlError::new("22023", message).with_hint("give the table a group of its own"))
        }
        _ => Ok(regions),
    }
}

/// Adds one constraint to the table that is being made.
fn attach(draft: &mut Draft<'_>, table: &mut Table, written: &Written<'_>) -> Result<()> {
    let (constraint, at) = (written.constraint, written.at.as_deref());
    written.refuse_unusual()?;
    constraint::note_left_out(draft, constraint);
    match constraint.contype {
        ConstrType::CONSTR_PRIMARY => {}
        ConstrType::CONSTR_UNIQUE => {
            let (key, extent) = constraint::unique(draft, table, constraint, at)?;
            // Said twice, it is one constraint.
            if !table.keys.iter().any(|other| other.columns == key.columns && constraint.conname().is_none())
                && table.declared_key() != key.columns
            {
                table.keys.push(Key { global: draft.make_entries(extent, &table.kind)?, ..key });
            }
        }
        ConstrType::CONSTR_CHECK => {
            let check = constraint::check(draft, table, constraint)?;
            if table.has_constraint(&check.name) {
                return Err(SqlError::new("42710", format!("check constraint \"{}\" already exists", check.name)));
            }
            table.checks.push(check);
        }
        ConstrType::CONSTR_FOREIGN => {
            let foreign = constraint::foreign(draft, table, written)?;
            table.foreign_keys.push(foreign);
        }
        ConstrType::CONSTR_EXCLUSION => {
            return Err(SqlError::unsupported("exclusion constraints are not supported"));
        }
        _ => return Err(SqlError::unsupported("this kind of constraint is not supported")),
    }
    Ok(())
}

/// `CREATE TABLE … AS`.
pub(super) fn create_as(draft: Draft<'_>, statement: &nodes::CreateTableAsStmt) -> Result<DdlChange> {
    if statement.objtype == ObjectType::OBJECT_MATVIEW {
        return Err(SqlError::unsupported("materialized views are not supported").with_hint("use a view or a table"));
    }
    let Some(into) = statement.into() else { return Err(SqlError::new("42601", "a table's name is missing")) };
    if matches!(statement.query(), Node::ExecuteStmt(_)) {
        return Err(SqlError::unsupported("CREATE TABLE AS EXECUTE is not supported"));
    }
    fill(draft, into, &statement_text(statement.query())?, Otherwise::of(statement.if_not_exists))
}

/// `SELECT … INTO`: the query without its INTO.
pub(super) fn select_into(draft: Draft<'_>, select: &nodes::SelectStmt) -> Result<DdlChange> {
    let Some(into) = select.into_clause() else { return Err(SqlError::new("42601", "a table's name is missing")) };
    let query = pg_raw_parse::make::owned(|mem| {
        let mut select = mem.make_unique(select);
        select.as_mut().set_into_clause(mem.make_unique(None::<&IntoClause>));
        select
    });
    fill(draft, into, &statement_text(Node::SelectStmt(&query))?, Otherwise::Fail)
}

fn fill(mut draft: Draft<'_>, into: &IntoClause, query: &str, otherwise: Otherwise) -> Result<DdlChange> {
    refuse_temporary(into.rel())?;
    if into.table_space_name().is_some() || into.access_method().is_some() {
        return Err(SqlError::unsupported("TABLESPACE and access methods are not supported"));
    }
    let name = draft.new_name(into.rel())?;
    if draft.schema.is_taken(&name) {
        exists(&mut draft, &name, otherwise)?;
        return Ok(draft.finish("CREATE TABLE AS"));
    }
    let columns = query_table(&draft, into, query)?;
    let names: Vec<String> = columns.iter().map(|column| identifier(&column.name)).collect();
    let mut table = Table::new(&name, TableKind::Global, columns, &[]);
    hide_key(&mut table);
    table.kind = kind(&draft, &table, &Placement::read(into.options())?)?;
    draft.push(SchemaChange::CreateTable(table))?;
    if into.skip_data {
        return Ok(draft.finish("CREATE TABLE AS"));
    }
    draft.then = Some(format!("INSERT INTO {} ({}) {query}", qualified_text(&name), names.join(", ")));
    Ok(draft.finish("SELECT"))
}

fn query_table(draft: &Draft<'_>, into: &IntoClause, query: &str) -> Result<Vec<Column>> {
    let fields = draft.expressions().query_columns(&draft.schema, draft.context.search_path, query)?;
    let given: Vec<&str> = into.col_names().iter().filter_map(Node::as_str).collect();
    if given.len() > fields.len() {
        return Err(SqlError::new("42601", "too many column names were specified"));
    }
    let mut columns: Vec<Column> = Vec::new();
    for (at, field) in fields.iter().enumerate() {
        let name = given.get(at).copied().unwrap_or(&field.name);
        if columns.iter().any(|column| column.name == name) {
            return Err(SqlError::new("42701", format!("column \"{name}\" specified more than once")));
        }
        let ty = if field.ty.oid == types::UNKNOWN { Type::of(types::TEXT) } else { field.ty };
        columns.push(column::typed(name, ty)?);
    }
    Ok(columns)
}
