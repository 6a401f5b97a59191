//! The second fence around tenants: what a foreign statement can reach of tenant tables, whatever its text says.
//!
//!     read   ── through the view `_isles_tenant.notes`, which has the rows of the tenant that the request acts for
//!     write  ── to the table itself: the hook looks at the tenant of every row, as it was and as it becomes
//!
//!     read, for all tenants ── from the table itself, by an administrator's request; it cannot write
//!
//! The tenant comes with the request and not with the statement, so it does not depend on what planning has put there.
//! A request that acts for nobody finds the views empty, and changes no row.
//!
//! The authorizer sees to it that a statement that only reads has no other way to a tenant table. In one that writes,
//! SQLite itself reads the tables that are written and those that foreign keys tie to them; what else it reads past the
//! views is noted while it is compiled, and refused ([`Reached`]). Of the rows of a written table the hook looks at each
//! that is changed; that subqueries use the view of that table, too, is what planning proves.
//!
//! Invariants (docs/invariants.md):
//!   * I-44  this fence holds without the predicates that planning puts into every statement

use super::ddl::quoted;
use crate::error::ShardError;
use crate::shard::ActsFor;
use isles_kernel::schema::{TENANT_KEY_COLUMN, TENANT_VIEW_PREFIX, Table, TableKind, tenant_view};
use isles_sql::planted::{self, Bug};
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, ffi};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ffi::{CString, c_int, c_void};

/// What the views call for the tenant's key.
const FUNCTION: &str = "_isles_tenant";

/// The view through which foreign statements read a tenant table; none for tables of other kinds.
pub(super) fn create_view(table: &Table) -> Option<String> {
    let text = || {
        let view = quoted(&tenant_view(&table.name));
        format!("CREATE VIEW {view} AS SELECT * FROM {} WHERE {TENANT_KEY_COLUMN} = {FUNCTION}()", quoted(&table.name))
    };
    matches!(table.kind, TableKind::Tenant).then(text)
}

pub(super) fn drop_view(table: &Table) -> Option<String> {
    matches!(table.kind, TableKind::Tenant).then(|| format!("DROP VIEW {}", quoted(&tenant_view(&table.name))))
}

/// Whom the running statement acts for. Boxed: SQLite holds its address.
#[derive(Default)]
pub(super) struct Tenancy {
    acts_for: RefCell<ActsFor>,
    /// Whether a foreign statement runs, and so is watched.
    foreign: Cell<bool>,
    /// Whether it is one that writes.
    writes: Cell<bool>,
    /// It has changed a row of another tenant; it must fail.
    beyond: Cell<bool>,
    /// Noted since the statement began: SQLite may compile it at any step.
    reached: RefCell<Reached>,
}

/// What a statement that writes was compiled to reach, past the views.
#[derive(Debug, Default)]
pub(super) struct Reached {
    /// Tenant tables that it reads.
    pub(super) read: BTreeSet<String>,
    /// Tables that it writes, also those that it only comes to by a foreign key's action.
    pub(super) written: BTreeSet<String>,
}

impl Reached {
    /// Tables that it reads and does not write.
    pub(super) fn only_read(&self) -> impl Iterator<Item = &String> {
        self.read.difference(&self.written)
    }
}

impl Tenancy {
    /// Begins to watch a foreign statement.
    pub(super) fn watch(&self, acts_for: &ActsFor, writes: bool) {
        let mut known = self.acts_for.borrow_mut();
        if *known != *acts_for {
            *known = acts_for.clone();
        }
        self.writes.set(writes);
        self.beyond.set(false);
        self.reached.take();
        self.foreign.set(true);
    }

    /// The statement has stopped, for now or for good. Says where it was compiled to go, or that it went where it must
    /// not.
    pub(super) fn unwatch(&self) -> Result<Reached, ShardError> {
        self.foreign.set(false);
        let reached = self.reached.take();
        match self.beyond.replace(false) {
            false => Ok(reached),
            true => Err(ShardError::beyond_tenant()),
        }
    }

    /// Whether a statement runs that reads the rows of all tenants.
    fn is_for_everyone(&self) -> bool {
        !self.writes.get() && *self.acts_for.borrow() == ActsFor::Everyone
    }

    fn is_foreign(&self) -> bool {
        self.foreign.get()
    }

    /// Whether a foreign statement may change a row of this tenant.
    fn owns(&self, key: Option<&[u8]>) -> bool {
        let acts_for = self.acts_for.borrow();
        acts_for.key().is_some_and(|own| key == Some(own.as_bytes()))
    }

    /// Looks at a row of a tenant table that is being changed.
    pub(super) fn look(&self, key: Option<&[u8]>) {
        if self.foreign.get() && !self.owns(key) && !planted::has(Bug::OpenStorage) {
            self.beyond.set(true);
        }
    }

    /// Whether a foreign statement may read `table`, reached through the view or trigger `accessor`.
    fn may_read(&self, db: *mut ffi::sqlite3, table: &str, accessor: Option<&str>) -> bool {
        let through_view = accessor.is_some_and(|name| name.strip_prefix(TENANT_VIEW_PREFIX) == Some(table));
        if through_view || self.is_for_everyone() || planted::has(Bug::OpenStorage) || !is_tenant_table(db, table) {
            return true;
        }
        if self.writes.get() {
            self.reached.borrow_mut().read.insert(table.into());
        }
        self.writes.get()
    }

    fn note_write(&self, table: &str) {
        self.reached.borrow_mut().written.insert(table.into());
    }
}

/// As the connection's schema has it at this moment, also while a statement is compiled anew.
fn is_tenant_table(db: *mut ffi::sqlite3, table: &str) -> bool {
    let (Ok(table), Ok(column)) = (CString::new(table), CString::new(TENANT_KEY_COLUMN)) else { return true };
    let nothing: *mut c_void = std::ptr::null_mut();
    // SAFETY: the handle is live, the names are terminated, and nothing is asked for but whether the column is there.
    // It looks at the parsed schema and runs no statement, so it may be asked within the authorizer.
    let code = unsafe {
        ffi::sqlite3_table_column_metadata(
            db,
            c"main".as_ptr(),
            table.as_ptr(),
            column.as_ptr(),
            nothing.cast(),
            nothing.cast(),
            nothing.cast(),
            nothing.cast(),
            nothing.cast(),
        )
    };
    code == ffi::SQLITE_OK
}

/// The address of a [`Tenancy`] and of its connection, for the callbacks.
#[derive(Clone, Copy)]
pub(super) struct Watched {
    tenancy: *const Tenancy,
    db: *mut ffi::sqlite3,
}

// SAFETY: callbacks are called on the thread that uses the connection, one at a time, and both outlive them.
unsafe impl Send for Watched {}

impl Watched {
    pub(super) fn new(tenancy: &Tenancy, db: *mut ffi::sqlite3) -> Watched {
        Watched { tenancy, db }
    }

    fn tenancy(&self) -> &Tenancy {
        // SAFETY: it is boxed beside the connection, which is dropped first.
        unsafe { &*self.tenancy }
    }

    /// What a statement may do; anything if it is our own.
    pub(super) fn authorize(&self, context: &AuthContext<'_>) -> Authorization {
        if !self.tenancy().is_foreign() {
            return Authorization::Allow;
        }
        let allowed = match context.action {
            AuthAction::Select | AuthAction::Recursive => true,
            AuthAction::Function { function_name } => !function_name.eq_ignore_ascii_case("load_extension"),
            AuthAction::Read { table_name, .. } if table_name.starts_with(TENANT_VIEW_PREFIX) => true,
            AuthAction::Read { table_name, .. } => {
                !is_private(table_name) && self.tenancy().may_read(self.db, table_name, context.accessor)
            }
            AuthAction::Insert { table_name }
            | AuthAction::Update { table_name, .. }
            | AuthAction::Delete { table_name } => {
                self.tenancy().note_write(table_name);
                !is_private(table_name)
            }
            _ => false,
        };
        if allowed { Authorization::Allow } else { Authorization::Deny }
    }
}

/// Our own tables, and SQLite's.
fn is_private(table: &str) -> bool {
    let table = table.to_ascii_lowercase();
    let own = table.starts_with(isles_kernel::schema::RESERVED_PREFIX) && table != isles_sql::print::call::ROWS;
    own || table.starts_with("sqlite_")
}

/// Registers the function that the views call. The tenancy must live as long as the connection.
pub(super) fn install(connection: &Connection, tenancy: &Tenancy) -> rusqlite::Result<()> {
    let app: *const Tenancy = tenancy;
    let flags = ffi::SQLITE_UTF8 | ffi::SQLITE_INNOCUOUS | ffi::SQLITE_DETERMINISTIC;
    let name = CString::new(FUNCTION).map_err(rusqlite::Error::NulError)?;
    // SAFETY: the handle is live, and the function treats its data as the tenancy that it is.
    let code = unsafe {
        let app = app.cast_mut().cast::<c_void>();
        let handle = connection.handle();
        ffi::sqlite3_create_function_v2(handle, name.as_ptr(), 0, flags, app, Some(tenant), None, None, None)
    };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)) }
}

/// The key of the tenant that the running statement acts for; null if it acts for nobody, or is our own.
unsafe extern "C" fn tenant(context: *mut ffi::sqlite3_context, _: c_int, _: *mut *mut ffi::sqlite3_value) {
    // SAFETY: registered with a tenancy that outlives the connection; the text is copied at once.
    unsafe {
        let tenancy = &*ffi::sqlite3_user_data(context).cast::<Tenancy>();
        match tenancy.acts_for.borrow().key().filter(|_| tenancy.is_foreign()) {
            None => ffi::sqlite3_result_null(context),
            Some(key) => {
                ffi::sqlite3_result_text(context, key.as_ptr().cast(), key.len() as c_int, ffi::SQLITE_TRANSIENT())
            }
        }
    }
}
