//! Rows that come from elsewhere: what is the same on both engines.
//!
//!     source:  consumer ─► snapshots ─► pages of rows ──────────────► copy  ─┐
//!                  └─────► the log, from the consumer's position on ─► mirror ┴─► apply, on the target
//!
//! A copy brings rows of snapshots, the mirror brings changes. They interleave in any order, either of them may bring a
//! thing twice or late, and the end is right. The reason is one: the mirror brings every change after the consumer was
//! registered, and that was before any snapshot of the copy was taken. So a key is of one of two sorts.
//!
//!   * It has not changed since. Then all snapshots have the same row of it, the mirror has nothing, and the copied row
//!     stands. No other row had one of its unique values meanwhile, so none comes that could displace it.
//!   * It has changed since. Then the mirror alone decides, by versions: whatever a copy wrote is overwritten once the
//!     change comes, and once it has come, no copy is let in. A tombstone is a version, too.
//!
//! Two rows may claim one unique value for a while, since the change by which one of them gave it up is still on its way.
//!
//!   * Two changes: the older claim gives way. A later change of its row has been made, and brings it back as it is.
//!   * A change and a copied row: the copied row gives way, whichever came first. Both had the value after the consumer was
//!     registered, so both have changed since, and the copied row's own change is on its way.
//!   * Two copied rows, of two snapshots: the same, so it does not matter which of them gives way.
//!
//! Unique keys contain the shard key or the tenant, so a rival is of the same unit. One that is not, is not the stream's,
//! and the batch is refused rather than that row removed.

use crate::error::{Result, ShardError};
use crate::shard::{Incoming, Row};
use isles_kernel::names::TenantId;
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
        (TableKind::Tenant, Unit::Tenant(_)) => true,
        _ => table.only_unit().as_ref() == Some(unit),
    };
    if fits { Ok(()) } else { Err(ShardError::invalid(format!("table \"{}\" has no rows of {unit}", table.name))) }
}

/// Checks rows of another shard against one table.
pub(crate) struct IncomingCheck<'a> {
    table: &'a Table,
    /// Where in a row the values of its key are, behind the tenant.
    key: Vec<usize>,
}

impl<'a> IncomingCheck<'a> {
    pub(crate) fn new(table: &'a Table) -> IncomingCheck<'a> {
        IncomingCheck { table, key: table.key_positions() }
    }

    /// Whether a row can be applied, and says which row it is.
    pub(crate) fn check(&self, incoming: &Incoming) -> Result<()> {
        let name = &self.table.name;
        let lead = usize::from(matches!(self.table.kind, TableKind::Tenant));
        let columns = lead + self.key.len();
        if incoming.key.len() != columns {
            return Err(ShardError::invalid(format!("a key of \"{name}\" has {columns} values")));
        }
        let Some(row) = &incoming.row else {
            return check_unit(self.table, &incoming.unit);
        };
        check_row(self.table, &incoming.unit, row)?;
        let (tenant, own) = incoming.key.split_at(lead);
        let same_tenant = match (&incoming.unit, tenant) {
            (Unit::Tenant(tenant), [Value::Text(key)]) => tenant.as_ref().map_or("", TenantId::as_str) == key,
            (_, tenant) => tenant.is_empty(),
        };
        if same_tenant && own.iter().zip(&self.key).all(|(value, at)| *value == row[*at]) {
            return Ok(());
        }
        Err(ShardError::invalid(format!("a row of \"{name}\" does not match its key")))
    }

    /// The same of a row of a snapshot, which is there.
    pub(crate) fn check_copied(&self, incoming: &'a Incoming) -> Result<&'a Row> {
        self.check(incoming)?;
        incoming.row.as_ref().ok_or_else(|| ShardError::invalid("a snapshot has no deleted rows to copy"))
    }
}

/// A row that no stream has brought, and that is in the way of one.
pub(crate) fn taken(table: &Table) -> ShardError {
    let message = format!("a row of \"{}\" that is not of this stream has the same unique value", table.name);
    ShardError::statement("23505", message)
}

/// A row that is there under a key that another unit's row has.
pub(crate) fn other_unit(table: &Table) -> ShardError {
    let message = format!("a row of \"{}\" with this key belongs to another unit", table.name);
    ShardError::statement("23505", message)
}
