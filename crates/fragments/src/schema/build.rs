//! Builds a schema, operation by operation, and refuses what no database could keep.

use super::{
    Column, ColumnType, Default, Index, Lead, MAX_COLUMNS, MAX_NAME, Operation, Owner, PRIMARY, Schema, Table,
};
use crate::error::{Code, Error, Result, refused};
use isles_kernel::value::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes of a name in PostgreSQL.
const POSTGRES_NAME: usize = 63;

fn invalid(message: String) -> Error {
    refused(Code::SchemaInvalid, message)
}

/// A column of a type.
pub fn column(name: &str, ty: ColumnType) -> Column {
    Column { name: name.into(), ty, nullable: false, default: None, reference: None }
}

impl Column {
    pub fn nullable(mut self) -> Column {
        self.nullable = true;
        self
    }

    pub fn default_to(mut self, value: Value) -> Column {
        self.default = Some(Default::Value(value));
        self
    }

    pub fn default_now(mut self) -> Column {
        self.default = Some(Default::Now);
        self
    }
}

/// What a table gets in one operation.
#[derive(Debug, Clone, std::default::Default)]
pub struct Columns {
    columns: Vec<Column>,
    indexes: Vec<Index>,
}

impl Columns {
    pub fn column(mut self, column: Column) -> Columns {
        self.columns.push(column);
        self
    }

    /// A reference to a row of another table of the schema.
    pub fn reference(self, name: &str, table: &str) -> Columns {
        let mut column = column(name, ColumnType::Reference);
        column.reference = Some(table.into());
        self.column(column)
    }

    pub fn nullable_reference(mut self, name: &str, table: &str) -> Columns {
        self = self.reference(name, table);
        if let Some(column) = self.columns.last_mut() {
            column.nullable = true;
        }
        self
    }

    pub fn index(self, name: &str, columns: &[&str]) -> Columns {
        self.add(name, columns, false, Lead::Shard)
    }

    pub fn unique(self, name: &str, columns: &[&str]) -> Columns {
        self.add(name, columns, true, Lead::Shard)
    }

    /// An index that finds rows of all shards, in databases that have them in one table.
    pub(crate) fn index_over_shards(self, name: &str, columns: &[&str]) -> Columns {
        self.add(name, columns, false, Lead::Columns)
    }

    fn add(mut self, name: &str, columns: &[&str], unique: bool, lead: Lead) -> Columns {
        let columns = columns.iter().map(|column| (*column).into()).collect();
        self.indexes.push(Index { name: name.into(), columns, unique, lead });
        self
    }
}

/// A schema that is being written.
#[derive(Debug, Clone)]
pub struct SchemaBuilder {
    name: String,
    namespace: Option<String>,
    owner: Owner,
    operations: Vec<Operation>,
}

impl Schema {
    /// Begins a schema. Its name is the namespace of its tables.
    pub fn build(name: &str) -> SchemaBuilder {
        let namespace = Some(name.replace('-', "_"));
        SchemaBuilder { name: name.into(), namespace, owner: Owner::Shards, operations: Vec::new() }
    }
}

impl SchemaBuilder {
    /// Another namespace, or none.
    pub fn namespace(mut self, namespace: Option<&str>) -> SchemaBuilder {
        self.namespace = namespace.map(Into::into);
        self
    }

    pub fn table(self, name: &str, columns: impl FnOnce(Columns) -> Columns) -> SchemaBuilder {
        let owner = self.owner;
        self.add(name, owner, columns(Columns::default()))
    }

    /// A table of the database itself.
    pub(crate) fn database_table(self, name: &str, columns: impl FnOnce(Columns) -> Columns) -> SchemaBuilder {
        self.add(name, Owner::Database, columns(Columns::default()))
    }

    fn add(mut self, name: &str, owner: Owner, Columns { columns, indexes }: Columns) -> SchemaBuilder {
        let physical = match &self.namespace {
            Some(namespace) => short(&format!("{name}_{namespace}")),
            None => name.into(),
        };
        let table = Table { schema: self.name.clone(), name: name.into(), physical, columns, indexes, owner };
        self.operations.push(Operation::AddTable(table));
        self
    }

    pub fn alter(mut self, table: &str, columns: impl FnOnce(Columns) -> Columns) -> SchemaBuilder {
        let Columns { columns, indexes } = columns(Columns::default());
        // What changes nothing is no version.
        if !(columns.is_empty() && indexes.is_empty()) {
            self.operations.push(Operation::AlterTable { table: table.into(), columns, indexes });
        }
        self
    }

    pub fn no_op(mut self, reason: &str) -> SchemaBuilder {
        self.operations.push(Operation::NoOp { reason: reason.into() });
        self
    }

    pub fn finish(self) -> Result<Schema> {
        let plain = self.name.replace('-', "_");
        check_name("schema", &plain)?;
        if let Some(namespace) = &self.namespace {
            check_name("namespace", namespace)?;
        }
        let tables = fold(&self.operations)?;
        check_alterations(&self.operations)?;
        Ok(Schema { name: self.name, namespace: self.namespace, operations: self.operations, tables })
    }
}

/// A name that PostgreSQL does not cut: what is too long ends in a hash of the whole.
pub(crate) fn short(name: &str) -> String {
    match name.len() > POSTGRES_NAME {
        true => format!("{}_{:08x}", &name[..POSTGRES_NAME - 9], isles_kernel::hash::fnv1a32(name)),
        false => name.into(),
    }
}

fn check_name(what: &str, name: &str) -> Result<()> {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    match plain && name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.len() <= MAX_NAME {
        true => Ok(()),
        false => Err(invalid(format!("\"{name}\" is not the name of a {what}"))
            .with_hint("names begin with a letter, have letters, digits and _, and at most 40 of them")),
    }
}

/// Rows that are there already have no value for a column that comes later.
fn check_alterations(operations: &[Operation]) -> Result<()> {
    for operation in operations {
        let Operation::AlterTable { table, columns, .. } = operation else { continue };
        let constant = |column: &&Column| column.nullable || matches!(column.default, Some(Default::Value(_)));
        if let Some(column) = columns.iter().find(|column| !constant(column)) {
            return Err(invalid(format!("column \"{}\" is added to \"{table}\" and rows have none", column.name))
                .with_hint("make it nullable, or give it a default value"));
        }
    }
    Ok(())
}

/// The tables after some operations.
pub(super) fn fold(operations: &[Operation]) -> Result<BTreeMap<String, Arc<Table>>> {
    let mut tables: BTreeMap<String, Table> = BTreeMap::new();
    let mut indexes = BTreeSet::new();
    for operation in operations {
        match operation {
            Operation::NoOp { .. } => {}
            Operation::AddTable(table) => {
                check_name("table", &table.name)?;
                if tables.contains_key(&table.name) {
                    return Err(invalid(format!("there are two tables \"{}\"", table.name)));
                }
                let mut new = Table { columns: Vec::new(), indexes: Vec::new(), ..table.clone() };
                tables.insert(table.name.clone(), new.clone());
                extend(&mut new, &table.columns, &table.indexes, &tables, &mut indexes)?;
                tables.insert(table.name.clone(), new);
            }
            Operation::AlterTable { table, columns, indexes: more } => {
                let found = tables.get(table).cloned();
                let mut changed = found.ok_or_else(|| invalid(format!("there is no table \"{table}\"")))?;
                extend(&mut changed, columns, more, &tables, &mut indexes)?;
                tables.insert(table.clone(), changed);
            }
        }
    }
    Ok(tables.into_iter().map(|(name, table)| (name, Arc::new(table))).collect())
}

fn extend(
    table: &mut Table,
    columns: &[Column],
    indexes: &[Index],
    tables: &BTreeMap<String, Table>,
    names: &mut BTreeSet<String>,
) -> Result<()> {
    for column in columns {
        check_column(table, column, tables)?;
        table.columns.push(column.clone());
    }
    if table.columns.len() > MAX_COLUMNS {
        return Err(invalid(format!("table \"{}\" has more than {MAX_COLUMNS} columns", table.name)));
    }
    for index in indexes {
        check_name("index", &index.name)?;
        if index.name == PRIMARY || !names.insert(index.name.clone()) {
            return Err(invalid(format!("there are two indexes \"{}\"", index.name)));
        }
        check_index(table, index)?;
        table.indexes.push(index.clone());
    }
    Ok(())
}

fn check_column(table: &Table, column: &Column, tables: &BTreeMap<String, Table>) -> Result<()> {
    check_name("column", &column.name)?;
    if column.name == super::ID || table.columns.iter().any(|other| other.name == column.name) {
        return Err(invalid(format!("table \"{}\" has two columns \"{}\"", table.name, column.name)));
    }
    match (&column.reference, &column.default) {
        (Some(_), Some(_)) => return Err(invalid(format!("reference \"{}\" has a default", column.name))),
        (Some(target), None) if !tables.contains_key(target) => {
            return Err(invalid(format!("\"{}\" refers to table \"{target}\", which is not there", column.name)));
        }
        _ => {}
    }
    match &column.default {
        Some(Default::Value(value)) => column.check(value),
        Some(Default::Now) if column.ty != ColumnType::Timestamp => {
            Err(invalid(format!("\"{}\" is no timestamp and has the default now", column.name)))
        }
        _ => Ok(()),
    }
}

fn check_index(table: &Table, index: &Index) -> Result<()> {
    if index.columns.is_empty() {
        return Err(invalid(format!("index \"{}\" has no columns", index.name)));
    }
    for name in &index.columns {
        let ty = table.type_of(name).map_err(|error| invalid(format!("index \"{}\": {error}", index.name)))?;
        if !ty.is_indexable() {
            return Err(invalid(format!("column \"{name}\" of type {} cannot be indexed", ty.name())));
        }
    }
    Ok(())
}
