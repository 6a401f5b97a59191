//! Checks of rows that come from elsewhere, before an engine sees them: the same on both.

use crate::error::{Result, ShardError};
use crate::shard::Incoming;
use isles_kernel::schema::{Table, TableKind, Unit};
use isles_kernel::value::Value;

/// Whether a row can stand in a table: its unit, its columns, their types.
pub(crate) fn check_row(table: &Table, unit: &Unit, values: &[Value]) -> Result<()> {
    check_unit(table, unit)?;
    if values.len() != table.columns.len() {
        let (name, columns) = (&table.name, table.columns.len());
        return Err(ShardError::invalid(format!("table \"{name}\" has {columns} columns, a row has {}", values.len())));
    }
    match table.columns.iter().zip(values).find(|(column, value)| !value.fits(column.ty)) {
        Some((column, _)) => {
            Err(ShardError::statement("42804", format!("a value does not fit column \"{}\"", column.name)))
        }
        None => Ok(()),
    }
}

fn check_unit(table: &Table, unit: &Unit) -> Result<()> {
    let fits = match (&table.kind, unit) {
        (TableKind::Hash { group, buckets, .. }, Unit::Bucket(of, bucket)) => of == group && bucket.0 < *buckets,
        (TableKind::Tenant, Unit::Tenant(_)) | (TableKind::Reference | TableKind::Global, Unit::Shared) => true,
        _ => false,
    };
    if fits { Ok(()) } else { Err(ShardError::invalid(format!("table \"{}\" has no rows of {unit}", table.name))) }
}

/// Whether a row of another shard can be applied, and says which row it is.
pub(crate) fn check_incoming(table: &Table, incoming: &Incoming) -> Result<()> {
    let columns = table.physical_key().len();
    if incoming.key.len() != columns {
        return Err(ShardError::invalid(format!("a key of \"{}\" has {columns} values", table.name)));
    }
    let Some(row) = &incoming.row else {
        return check_unit(table, &incoming.unit);
    };
    check_row(table, &incoming.unit, row)?;
    if table.key_of(&incoming.unit, row) != incoming.key {
        return Err(ShardError::invalid(format!("a row of \"{}\" does not match its key", table.name)));
    }
    Ok(())
}
