//! Captures row changes as SQLite makes them.
//!
//! The preupdate hook is called for every row that is inserted, updated or deleted, by whatever cause: statements,
//! triggers, cascades, upserts, REPLACE. The changes of a commit are collected in one record and inserted into the
//! log just before that commit; what is rolled back is taken out of the record again.
//!
//! A record is of one schema. A transaction that changes the schema closes its record before each change and begins
//! another, so what it did is a list of chapters: rows, then a change of the schema, then rows under the new one.
//!
//! Invariants (docs/invariants.md):
//!   * I-2   rows and log are in one transaction
//!   * I-29  the log has exactly the committed changes

use super::raw::Db;
use super::tenancy::Tenancy;
use super::units::{self, GroupHash, Touched};
use super::value;
use crate::shard::{MAX_REDO_BYTES, SchemaStep};
use isles_kernel::change::{self, Op, RecordBuilder};
use isles_kernel::names::SchemaVersion;
use isles_kernel::schema::{
    INDEX_NAMESPACE, KeyOver, KeyPart, RESERVED_PREFIX, Schema, Table, TableKind, global_bucket,
};
use isles_kernel::value::{DataType, Encoder};
use rusqlite::ffi;
use rusqlite::types::ValueRef;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

/// A table as the hook needs it: positions are SQLite's, hidden columns included.
struct Captured {
    table: Table,
    hidden: c_int,
    /// What of it global indexes follow.
    indexed: Indexed,
    /// The group of a table that is sharded by its key.
    group: Option<GroupHash>,
    types: Vec<DataType>,
    /// Columns that say which row it is: hidden ones and the primary key.
    identity: Vec<c_int>,
}

/// What of a table's rows global indexes follow.
enum Indexed {
    Nothing,
    /// These columns; an update that leaves them changes no entry.
    Columns(Vec<c_int>),
    /// Whatever an expression or a predicate may be over.
    Rows,
}

impl Indexed {
    fn of(table: &Table) -> Indexed {
        let mut columns = Vec::new();
        for key in table.global_keys() {
            let is_plain = |part: &KeyPart| matches!(part.over, KeyOver::Column(_));
            if key.predicate.is_some() || !key.parts.iter().all(is_plain) {
                return Indexed::Rows;
            }
            for name in &key.columns {
                let Some(at) = table.columns.iter().position(|column| column.name == *name) else {
                    return Indexed::Rows;
                };
                columns.push((at + table.hidden_columns().len()) as c_int);
            }
        }
        if columns.is_empty() { Indexed::Nothing } else { Indexed::Columns(columns) }
    }
}

/// What a transaction did before it changed the schema, and that change.
pub(super) struct Chapter {
    pub(super) record: RecordBuilder,
    /// The schema of the rows.
    pub(super) schema: SchemaVersion,
    pub(super) then: SchemaStep,
}

/// A place among what was captured, to come back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    chapters: usize,
    record: change::Mark,
}

/// Collects changes. SQLite holds its address: it is boxed by its owner and does not move.
#[derive(Default)]
pub(super) struct Capture {
    pub(super) enabled: bool,
    /// Nobody but global indexes reads the log.
    pub(super) only_indexed: bool,
    /// The record is for a commit over several shards alone, and not for the log.
    pub(super) redo_only: bool,
    /// The record has outgrown what such a commit may carry; it is not complete.
    pub(super) overflown: bool,
    /// What came before the last change of the schema.
    pub(super) chapters: Vec<Chapter>,
    pub(super) record: RecordBuilder,
    /// The transaction in progress, counted from the first of the record.
    pub(super) txn: u64,
    tables: HashMap<Vec<u8>, Arc<Captured>>,
    /// The table of the last change and its number in the record: statements change one table many times.
    last: Option<(Arc<Captured>, usize)>,
    /// A change that could not be recorded. Its transaction must fail.
    pub(super) failed: Option<String>,
    /// The units of all rows that changed, whether they are recorded or not.
    pub(super) touched: Touched,
    /// Who is told of rows of tenant tables that change.
    tenancy: Option<*const Tenancy>,
}

impl Capture {
    pub(super) fn set_schema(&mut self, schema: &Schema) {
        self.last = None;
        self.tables = schema.tables.values().map(|table| (table.name.clone().into_bytes(), captured(table))).collect();
    }

    /// Closes the record: the schema changes.
    pub(super) fn close_chapter(&mut self, schema: SchemaVersion, then: SchemaStep) {
        let record = std::mem::take(&mut self.record);
        self.last = None;
        self.chapters.push(Chapter { record, schema, then });
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { chapters: self.chapters.len(), record: self.record.mark() }
    }

    /// Forgets what came after `mark`.
    pub(super) fn rewind(&mut self, mark: Mark) {
        if let Some(chapter) = self.chapters.drain(mark.chapters..).next() {
            self.record = chapter.record;
        }
        self.record.rewind(mark.record);
        self.last = None;
        self.failed = None;
    }

    /// Whether nothing was captured.
    pub(super) fn is_empty(&self) -> bool {
        self.chapters.is_empty() && self.record.is_empty()
    }

    /// The size of all that was captured.
    pub(super) fn bytes(&self) -> usize {
        self.chapters.iter().map(|chapter| chapter.record.bytes()).sum::<usize>() + self.record.bytes()
    }

    /// Ready for the next commit.
    pub(super) fn clear(&mut self) {
        self.chapters.clear();
        self.record.clear();
        self.touched.clear();
        self.redo_only = false;
        self.only_indexed = false;
        self.overflown = false;
        self.last = None;
        self.txn = 0;
        self.failed = None;
    }

    fn table(&mut self, name: &[u8]) -> Option<(Arc<Captured>, usize)> {
        if let Some((table, number)) = self.last.as_ref().filter(|(table, _)| table.table.name.as_bytes() == name) {
            return Some((table.clone(), *number));
        }
        let table = self.tables.get(name)?.clone();
        let number = self.record.table(&table.table);
        self.last = Some((table.clone(), number));
        Some((table, number))
    }
}

fn captured(table: &Table) -> Arc<Captured> {
    let hidden = table.hidden_columns().len() as c_int;
    let key = table.key_positions().into_iter().map(|at| at as c_int + hidden);
    Arc::new(Captured {
        table: table.clone(),
        hidden,
        indexed: Indexed::of(table),
        group: match &table.kind {
            TableKind::Hash { group, .. } => Some(GroupHash::of(group)),
            TableKind::Global => Some(GroupHash::of(&global_bucket().0)),
            TableKind::Tenant | TableKind::Reference => None,
        },
        types: table.columns.iter().map(|column| column.ty).collect(),
        identity: (0..hidden).chain(key).collect(),
    })
}

/// Lets `db` capture its changes.
pub(super) fn install(db: &mut Db, schema: &Schema) {
    let mut capture = Box::new(Capture { tenancy: Some(db.tenancy()), ..Capture::default() });
    capture.set_schema(schema);
    let context: *mut Capture = &mut *capture;
    db.capture = Some(capture);
    // SAFETY: the capture is boxed in `db`, whose connection is dropped last and runs nothing while dropping.
    unsafe { ffi::sqlite3_preupdate_hook(db.handle(), Some(on_change), context.cast()) };
}

unsafe extern "C" fn on_change(
    context: *mut c_void,
    db: *mut ffi::sqlite3,
    op: c_int,
    _database: *const c_char,
    table: *const c_char,
    _old_rowid: ffi::sqlite3_int64,
    _new_rowid: ffi::sqlite3_int64,
) {
    // SAFETY: the context is the boxed capture (see `install`); nothing else refers to it while SQLite runs.
    let capture = unsafe { &mut *context.cast::<Capture>() };
    // SAFETY: SQLite gives a terminated name that lives through the call.
    let name = unsafe { CStr::from_ptr(table) }.to_bytes();
    if is_private(name) {
        return;
    }
    // SAFETY: we are inside the hook.
    unsafe { capture.look_at_units(db, op, name) };
    if !capture.enabled {
        return;
    }
    if capture.redo_only && capture.bytes() > MAX_REDO_BYTES {
        // Nobody else wants it, so a large transaction on one shard need not hold all its rows in memory.
        capture.overflown = true;
        return;
    }
    let Some((table, number)) = capture.table(name) else {
        capture.failed = Some(format!("table {} is not in the schema", String::from_utf8_lossy(name)));
        return;
    };
    let image = Image { db, table: &table };
    // SAFETY: we are inside the hook, on the thread that runs the statement.
    if capture.only_indexed && !unsafe { image.concerns_indexes(op) } {
        return;
    }
    // SAFETY: we are inside the hook, on the thread that runs the statement.
    let done = unsafe {
        match op {
            ffi::SQLITE_INSERT => image.record(capture, number, Op::Insert),
            ffi::SQLITE_DELETE => image.record(capture, number, Op::Delete),
            _ if image.same_row() => image.record(capture, number, Op::Update),
            // A key's history must not be under another key.
            _ => image.record(capture, number, Op::Delete).and_then(|()| image.record(capture, number, Op::Insert)),
        }
    };
    if done.is_none() {
        capture.failed = Some("a change could not be read".into());
    }
}

/// Tables of the shard's own. Entries of indexes are not among them: they are rows that move.
fn is_private(name: &[u8]) -> bool {
    let entries = name.strip_prefix(INDEX_NAMESPACE.as_bytes()).is_some_and(|rest| rest.starts_with(b"."));
    name.starts_with(RESERVED_PREFIX.as_bytes()) && !entries
}

impl Capture {
    /// Notes the units of a row, as it was and as it becomes, and shows its tenants to the fence.
    ///
    /// # Safety
    /// Inside the hook, on the thread that runs the statement.
    unsafe fn look_at_units(&mut self, db: *mut ffi::sqlite3, op: c_int, name: &[u8]) {
        let table = match &self.last {
            Some((table, _)) if table.table.name.as_bytes() == name => table,
            _ => match self.tables.get(name) {
                Some(table) => table,
                None => return,
            },
        };
        match (&table.table.kind, table.group) {
            (TableKind::Reference, _) => return self.touched.add(units::SHARED),
            (TableKind::Global, Some(group)) => return self.touched.add(group.bucket(0)),
            _ => {}
        }
        let sides: &[Side] = match op {
            ffi::SQLITE_INSERT => &[Side::New],
            ffi::SQLITE_DELETE => &[Side::Old],
            _ => &[Side::Old, Side::New],
        };
        let image = Image { db, table };
        for side in sides {
            // SAFETY: the caller's promise; the value is used before anything else is asked of the row.
            let unit = unsafe { image.value(0, *side).map(|value| value::argument_ref(value)) };
            match (table.group, unit) {
                (Some(group), Some(ValueRef::Integer(bucket))) => self.touched.add(group.bucket(bucket as u64)),
                // It says nothing of its unit, so it may be any.
                (Some(_), _) => self.touched.add_everything(),
                (None, key) => {
                    let key = key.and_then(|key| key.as_bytes().ok());
                    if let Some(tenancy) = self.tenancy {
                        // SAFETY: the tenancy is boxed beside the connection and outlives it.
                        unsafe { (*tenancy).look(key) };
                    }
                    self.touched.add(units::tenant(key.unwrap_or_default()));
                }
            }
        }
    }
}

/// The row a hook is called for.
struct Image<'a> {
    db: *mut ffi::sqlite3,
    table: &'a Captured,
}

#[derive(Clone, Copy)]
enum Side {
    Old,
    New,
}

impl Image<'_> {
    unsafe fn record(&self, capture: &mut Capture, number: usize, op: Op) -> Option<()> {
        let txn = capture.txn;
        let out = capture.record.begin(number, txn, op);
        let unit_side = if op == Op::Delete { Side::Old } else { Side::New };
        // SAFETY: inside the hook, as the caller promises.
        unsafe {
            self.unit(out, unit_side)?;
            if op != Op::Insert {
                self.row(out, Side::Old)?;
            }
            if op != Op::Delete {
                self.row(out, Side::New)?;
            }
        }
        Some(())
    }

    /// As `isles_kernel::change::encode_unit` writes it.
    unsafe fn unit(&self, out: &mut Encoder, side: Side) -> Option<()> {
        match self.table.table.kind {
            TableKind::Hash { .. } => {
                // SAFETY: inside the hook.
                let bucket = unsafe { ffi::sqlite3_value_int64(self.value(0, side)?) };
                out.varint(u64::try_from(bucket).ok()?);
            }
            // SAFETY: inside the hook.
            TableKind::Tenant => unsafe { value::encode(out, self.value(1, side)?, DataType::Text) },
            TableKind::Global => out.varint(u64::from(global_bucket().1.0)),
            TableKind::Reference => {}
        }
        Some(())
    }

    unsafe fn row(&self, out: &mut Encoder, side: Side) -> Option<()> {
        out.varint(self.table.types.len() as u64);
        for (index, ty) in (self.table.hidden..).zip(&self.table.types) {
            // SAFETY: inside the hook.
            unsafe { value::encode(out, self.value(index, side)?, *ty) };
        }
        Some(())
    }

    /// Whether a change may change an entry of a global index.
    unsafe fn concerns_indexes(&self, op: c_int) -> bool {
        match &self.table.indexed {
            Indexed::Nothing => false,
            Indexed::Rows => true,
            // SAFETY: inside the hook, as the caller promises.
            Indexed::Columns(columns) => unsafe {
                op != ffi::SQLITE_UPDATE || !self.leaves(&self.table.identity) || !self.leaves(columns)
            },
        }
    }

    /// Whether an update leaves the row's unit and key.
    unsafe fn same_row(&self) -> bool {
        // SAFETY: inside the hook, as the caller promises.
        unsafe { self.leaves(&self.table.identity) }
    }

    /// Whether an update leaves all of these columns.
    unsafe fn leaves(&self, columns: &[c_int]) -> bool {
        columns.iter().all(|index| {
            // SAFETY: inside the hook.
            unsafe {
                match (self.value(*index, Side::Old), self.value(*index, Side::New)) {
                    (Some(old), Some(new)) => value::same(old, new),
                    _ => false,
                }
            }
        })
    }

    unsafe fn value(&self, index: c_int, side: Side) -> Option<*mut ffi::sqlite3_value> {
        let mut value = std::ptr::null_mut();
        // SAFETY: inside the hook; SQLite checks that the side exists for the operation and the index is in range.
        let code = unsafe {
            match side {
                Side::Old => ffi::sqlite3_preupdate_old(self.db, index, &mut value),
                Side::New => ffi::sqlite3_preupdate_new(self.db, index, &mut value),
            }
        };
        (code == ffi::SQLITE_OK && !value.is_null()).then_some(value)
    }
}
