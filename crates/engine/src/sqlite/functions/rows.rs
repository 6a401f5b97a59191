//! `_isles_rows(callee, …)`: the rows of a set-returning function, as a table.
//!
//! The arguments are hidden columns, as SQLite has it for such tables. Columns that a function does not have are null,
//! and the router asks for none of them.

use super::{Call, Host, bridge, c_name, callee_text, guarded};
use crate::error::SqlError;
use crate::sqlite::value;
use isles_kernel::value::Value;
use isles_sql::print::call::{self, Op};
use rusqlite::vtab::{
    Context, Filters, IndexConstraintOp, IndexInfo, Module, VTab, VTabConfig, VTabConnection, VTabCursor,
};
use rusqlite::{Connection, ffi};
use std::borrow::Cow;
use std::ffi::{CStr, c_int};
use std::marker::PhantomData;

/// The position of the hidden columns: after the function's columns and the row's number.
const CALLEE: c_int = call::ROWS_COLUMNS as c_int + 1;
/// What a planner that knows nothing assumes.
const ROWS_ASSUMED: i64 = 25;

pub(super) fn install(connection: &Connection, host: &Host) -> rusqlite::Result<()> {
    const MODULE: Module<'static, Table> = Module::eponymous_only_module();
    connection.create_module(c_name(call::ROWS)?.as_c_str(), &MODULE, Some(HostPointer(host)))
}

/// Lives as long as the connection (see [`super::install`]).
#[derive(Clone, Copy)]
struct HostPointer(*const Host);

// SAFETY: the pointer is followed only by the thread that uses the connection at the moment.
unsafe impl Send for HostPointer {}
// SAFETY: as above.
unsafe impl Sync for HostPointer {}

#[repr(C)]
struct Table {
    /// SQLite's part; first.
    base: ffi::sqlite3_vtab,
    host: HostPointer,
}

fn definition() -> rusqlite::Result<std::ffi::CString> {
    let columns = (0..call::ROWS_COLUMNS).map(|at| format!("c{at}"));
    let hidden = (0..call::ROWS_ARGS).map(|at| format!("a{at} HIDDEN"));
    let all: Vec<String> = columns.chain(["n".into(), "callee HIDDEN".into()]).chain(hidden).collect();
    c_name(&format!("CREATE TABLE x({})", all.join(", ")))
}

// SAFETY: `base` is the first field of a `repr(C)` struct, as SQLite wants it.
unsafe impl<'vtab> VTab<'vtab> for Table {
    type Aux = HostPointer;
    type Cursor = Cursor<'vtab>;

    fn connect(
        db: &mut VTabConnection,
        aux: Option<&HostPointer>,
        _module: &[u8],
        _database: &[u8],
        _table: &[u8],
        _args: &[&[u8]],
    ) -> rusqlite::Result<(Cow<'static, CStr>, Table)> {
        db.config(VTabConfig::Innocuous)?;
        let host = *aux.ok_or_else(|| rusqlite::Error::ModuleError("no host".into()))?;
        Ok((Cow::Owned(definition()?), Table { base: ffi::sqlite3_vtab::default(), host }))
    }

    /// Every hidden column that is given must be known before the rows are; another order of joins is asked for else.
    fn best_index(&self, info: &mut IndexInfo) -> rusqlite::Result<bool> {
        let mut given = Vec::new();
        for (at, constraint) in info.constraints().enumerate() {
            if constraint.column() < CALLEE {
                continue;
            }
            if !constraint.is_usable() {
                return Ok(false);
            }
            if constraint.operator() == IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ {
                given.push((constraint.column(), at));
            }
        }
        given.sort_unstable();
        for (position, (_, at)) in (1..).zip(&given) {
            let mut usage = info.constraint_usage(*at);
            usage.set_argv_index(position);
            usage.set_omit(true);
        }
        info.set_estimated_cost(ROWS_ASSUMED as f64);
        info.set_estimated_rows(ROWS_ASSUMED);
        Ok(true)
    }

    fn open(&mut self) -> rusqlite::Result<Cursor<'_>> {
        let base = ffi::sqlite3_vtab_cursor::default();
        Ok(Cursor { base, host: self.host, rows: None, row: None, number: 0, table: PhantomData })
    }
}

#[repr(C)]
struct Cursor<'vtab> {
    /// SQLite's part; first.
    base: ffi::sqlite3_vtab_cursor,
    host: HostPointer,
    rows: Option<bridge::RowSource>,
    row: Option<Vec<Value>>,
    number: i64,
    table: PhantomData<&'vtab Table>,
}

impl Cursor<'_> {
    fn host(&self) -> &Host {
        // SAFETY: the host outlives the connection, and the connection its cursors.
        unsafe { &*self.host.0 }
    }

    fn raised(&self, error: SqlError) -> rusqlite::Error {
        self.host().raised.set(Some(error));
        rusqlite::Error::SqliteFailure(ffi::Error::new(super::RAISED), None)
    }

    fn begin(&mut self, args: &Filters<'_>) -> super::Result<()> {
        let mut args = args.iter();
        let call = Call::parse(callee_text(&mut args)?)?;
        let Op::Function(function) = call.callee.op else {
            return Err(SqlError::new("XX000", "rows were asked of something other than a function"));
        };
        self.rows = match call.arguments(args)? {
            Some((values, settings)) => Some(match self.host().system_rows(function, &values) {
                Some(rows) => rows?.into_iter(),
                None => bridge::rows(self.host(), settings, function, &values, &call.callee)?,
            }),
            None => None,
        };
        self.number = 0;
        self.advance();
        Ok(())
    }

    fn advance(&mut self) {
        self.row = self.rows.as_mut().and_then(Iterator::next);
        self.number += 1;
    }
}

// SAFETY: `base` is the first field of a `repr(C)` struct, as SQLite wants it.
unsafe impl VTabCursor for Cursor<'_> {
    fn filter(&mut self, _: c_int, _: Option<&str>, args: &Filters<'_>) -> rusqlite::Result<()> {
        guarded(|| self.begin(args)).map_err(|error| self.raised(error))
    }

    fn next(&mut self) -> rusqlite::Result<()> {
        self.advance();
        Ok(())
    }

    fn eof(&self) -> bool {
        self.row.is_none()
    }

    fn column(&self, context: &mut Context, at: c_int) -> rusqlite::Result<()> {
        if at as usize == call::ROWS_COLUMNS {
            return context.set_result(self.number);
        }
        let value = self.row.as_ref().and_then(|row| row.get(at as usize)).unwrap_or(&Value::Null);
        context.set_result(value::Stored(value))
    }

    fn rowid(&self) -> rusqlite::Result<i64> {
        Ok(self.number)
    }
}
