//! Rows of a snapshot of another shard.
//!
//! Nearly all of them are new here and nothing is known of their keys, so each is one insert, with a statement that is
//! prepared once for a batch and values that are bound where they lie. Whether anything is known of a table is asked once
//! for a batch; only then is it asked for each row.
//!
//! An insert that finds its key or a unique value taken is looked at: a row that was copied before gives way, and one
//! that the mirror has brought does not. Why that ends in the right rows is said in [`crate::rows`].

use super::apply::{TableWrites, check_unit, columns_and_values, hidden, make_room, put, row_version};
use super::ddl;
use super::raw::{Db, Prepared, Ran};
use crate::error::Result;
use crate::rows::IncomingCheck;
use crate::shard::{Applied, Batch, Incoming, Row};
use isles_kernel::schema::{Schema, Table, Unit};
use isles_kernel::value::{DataType, Value, key_bytes};

pub(super) fn copy(db: &mut Db, schema: &Schema, batch: &Batch) -> Result<Applied> {
    let mut applied = Applied::default();
    for rows in batch.rows.chunk_by(|one, next| one.table == next.table) {
        copy_table(db, schema.table(&rows[0].table)?, rows, &mut applied)?;
    }
    Ok(applied)
}

fn copy_table(db: &mut Db, table: &Table, rows: &[Incoming], applied: &mut Applied) -> Result<()> {
    let check = IncomingCheck::new(table);
    let sql = format!("INSERT INTO {} {}", ddl::quoted(&table.name), columns_and_values(table));
    let mut target = Target {
        writes: TableWrites::new(table),
        insert: db.prepare_own(&sql)?,
        known: is_known(db, table)?,
        hidden: None,
    };
    for incoming in rows {
        let row = check.check_copied(incoming)?;
        match target.copy(db, incoming, row)? {
            true => applied.written += 1,
            false => applied.stale += 1,
        }
    }
    Ok(())
}

/// Whether there are versions of rows of this table.
fn is_known(db: &mut Db, table: &Table) -> Result<bool> {
    let sql = "SELECT 1 FROM _isles_row_version WHERE name = $1 LIMIT 1";
    Ok(!db.own(sql, &[Value::text(table.name.as_str())], &[DataType::Int8])?.is_empty())
}

/// The table that rows are copied to.
struct Target {
    writes: TableWrites,
    insert: Prepared,
    known: bool,
    /// Values of the hidden columns of the last row: rows of a unit come together.
    hidden: Option<(Unit, Vec<Value>)>,
}

impl Target {
    /// Whether the row was written.
    fn copy(&mut self, db: &mut Db, incoming: &Incoming, row: &Row) -> Result<bool> {
        if self.known && row_version(db, &incoming.table, &key_bytes(&incoming.key))?.is_some() {
            return Ok(false);
        }
        let (_, hidden) = match self.hidden.take() {
            Some(last) if last.0 == incoming.unit => self.hidden.insert(last),
            _ => self.hidden.insert((incoming.unit.clone(), hidden(&incoming.unit))),
        };
        match db.run_bound(&self.insert, hidden.iter().chain(row))? {
            Ran::Done => Ok(true),
            Ran::Taken => self.replace(db, incoming, row),
        }
    }

    /// Writes a row whose key or unique values are taken, unless by one that is known.
    fn replace(&self, db: &mut Db, incoming: &Incoming, row: &Row) -> Result<bool> {
        check_unit(db, &self.writes, incoming)?;
        let wins = make_room(db, &self.writes, incoming, row, None)?;
        if wins {
            put(db, &self.writes, &incoming.unit, row)?;
        }
        Ok(wins)
    }
}
