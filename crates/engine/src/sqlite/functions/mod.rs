//! PostgreSQL's functions inside of SQLite.
//!
//! The router prints `_pg(callee, …)` for whatever SQLite has not (see `isles_sql::print::call`), and here is what
//! answers it. A few names serve all functions: a connection is opened often, a thousand shards are open at once, and
//! each name costs.
//!
//! In reading order:
//!   * this file    registration, and errors on their way out
//!   * `bridge`     what is asked of `isles_sql::runtime`
//!   * `scalar`     `_pg` and `_pgv`
//!   * `owns`       `_owns`, `_owns_tenant`
//!   * `aggregate`  `_agg` and `_one`
//!   * `rows`       `_isles_rows`, a table-valued function
//!
//! Invariants:
//!   * An error keeps its SQLSTATE, detail and hint. SQLite carries a text alone, so the error waits in the connection's
//!     [`Host`], and a result code that SQLite itself never gives says that it is there: no value and no message can
//!     pretend to be one.
//!   * Nothing of one execution is there in the next: what is remembered belongs to the running statement.
//!   * A panic in a function is an error of its statement.

mod aggregate;
mod bridge;
mod owns;
mod rows;
mod scalar;

use super::value;
use crate::env::Env;
use crate::error::SqlError;
use isles_kernel::value::{DataType, Value};
use isles_sql::print::call::{self, Callee, Op};
use isles_sql::system::SystemFunctions;
use isles_sql::text::Settings;
use isles_sql::tree::CastHow;
use isles_sql::types::{self, Oid};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ffi};
use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::{CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type Result<T> = std::result::Result<T, SqlError>;

/// The result code of a statement that one of our functions ended: an extended code that SQLite has not given to anything.
const RAISED: c_int = ffi::SQLITE_ERROR | (0x51 << 8);

/// What the functions of a connection share. Boxed: SQLite holds its address.
pub(super) struct Host {
    env: Arc<dyn Env>,
    /// The functions that need the schema; a stage has them, a shard has not.
    system: OnceCell<Arc<dyn SystemFunctions>>,
    raised: Cell<Option<SqlError>>,
    /// The settings that were read last, beside their text: they are found by it alone.
    settings: RefCell<Option<(String, Arc<Settings>)>>,
}

impl Host {
    pub(super) fn new(env: Arc<dyn Env>) -> Box<Host> {
        Box::new(Host { env, system: OnceCell::new(), raised: Cell::new(None), settings: RefCell::new(None) })
    }

    /// The settings of a session from the text that was bound. Rows of one statement all have the same.
    fn settings(&self, text: &str) -> Result<Arc<Settings>> {
        let mut last = self.settings.borrow_mut();
        if let Some((known, settings)) = &*last
            && known == text
        {
            return Ok(settings.clone());
        }
        let settings = Arc::new(Settings::decode(text)?);
        *last = Some((text.into(), settings.clone()));
        Ok(settings)
    }

    /// Gives the connection the functions that need the schema. Those that it has already stay.
    pub(super) fn know(&self, system: Arc<dyn SystemFunctions>) {
        let _ = self.system.set(system);
    }

    /// A function that needs the schema; none for the others.
    fn system_call(&self, function: Oid, args: &[Value]) -> Option<Result<Value>> {
        self.system.get()?.call(function, args)
    }

    /// A name to the number that a `regclass` or its kin is, and back; none for other conversions.
    fn system_cast(&self, how: CastHow, value: &Value, from: Oid, to: Oid) -> Option<Result<Value>> {
        match (how, value) {
            (CastHow::InOut, Value::Text(text)) => self.system.get()?.read(to, text),
            (CastHow::InOut, Value::Int(_)) => self.system.get()?.write(from, value),
            _ => None,
        }
    }

    fn system_rows(&self, function: Oid, args: &[Value]) -> Option<Result<Vec<Vec<Value>>>> {
        self.system.get()?.rows(function, args)
    }

    /// The error that ended a statement, if it was one of our functions.
    pub(super) fn take(&self, code: c_int) -> Option<SqlError> {
        if code == RAISED { self.raised.take() } else { None }
    }
}

/// Registers the functions. The host must live as long as the connection.
pub(super) fn install(connection: &Connection, host: &Host) -> rusqlite::Result<()> {
    let app: *const Host = host;
    let app = app.cast_mut().cast::<c_void>();
    let flags = ffi::SQLITE_UTF8 | ffi::SQLITE_INNOCUOUS;
    let steady = flags | ffi::SQLITE_DETERMINISTIC;
    // SAFETY: the handle is live; the functions treat `app` as the host that it is.
    unsafe {
        let db = connection.handle();
        let scalar = Some(scalar::call as ScalarFunction);
        for (name, flags) in [(call::STEADY, steady), (call::VOLATILE, flags)] {
            let name = c_name(name)?;
            check(ffi::sqlite3_create_function_v2(db, name.as_ptr(), -1, flags, app, scalar, None, None, None))?;
        }
        let (name, owns) = (c_name(call::OWNS)?, Some(owns::call as ScalarFunction));
        check(ffi::sqlite3_create_function_v2(db, name.as_ptr(), 2, steady, app, owns, None, None, None))?;
        let (name, owns) = (c_name(call::OWNS_TENANT)?, Some(owns::call_tenant as ScalarFunction));
        check(ffi::sqlite3_create_function_v2(db, name.as_ptr(), 2, steady, app, owns, None, None, None))?;
        aggregate::install(db, flags, app)?;
    }
    rows::install(connection, host)
}

type ScalarFunction = unsafe extern "C" fn(*mut ffi::sqlite3_context, c_int, *mut *mut ffi::sqlite3_value);

fn c_name(name: &str) -> rusqlite::Result<CString> {
    CString::new(name).map_err(rusqlite::Error::NulError)
}

fn check(code: c_int) -> rusqlite::Result<()> {
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)) }
}

/// A callee and what is known of it before its arguments are.
struct Call {
    callee: Callee,
    /// How the arguments are stored.
    carriers: Vec<DataType>,
    /// Whether it is null where an argument is.
    strict: bool,
}

impl Call {
    fn parse(text: &str) -> Result<Call> {
        let callee = Callee::parse(text).ok_or_else(|| SqlError::new("XX000", format!("not a callee: {text}")))?;
        let carriers = callee.args.iter().map(|arg| carrier(*arg)).collect::<Result<_>>()?;
        let strict = match callee.op {
            Op::Function(function) => bridge::is_strict(function),
            Op::Cast(_) | Op::Subscript | Op::Slice { .. } => true,
            _ => false,
        };
        Ok(Call { callee, carriers, strict })
    }

    /// The values of the arguments and the session's settings, if they are an argument; none where the result is null
    /// because an argument is.
    fn arguments<'a>(&self, mut args: impl Iterator<Item = ValueRef<'a>>) -> Result<Option<(Vec<Value>, &'a str)>> {
        let mut values = Vec::with_capacity(self.carriers.len());
        for (carrier, arg) in self.carriers.iter().zip(&mut args) {
            let value = value::argument(arg, *carrier).map_err(|error| error.for_people())?;
            if self.strict && value.is_null() {
                return Ok(None);
            }
            values.push(value);
        }
        if values.len() != self.carriers.len() {
            return Err(SqlError::new("XX000", "a function was called with too few arguments"));
        }
        let settings = if self.callee.settings { args.next().and_then(|arg| arg.as_str().ok()) } else { None };
        Ok(Some((values, settings.unwrap_or_default())))
    }
}

/// # Safety
/// The arguments are live SQLite values, and stay so while they are used.
unsafe fn arguments<'a>(args: &'a [*mut ffi::sqlite3_value]) -> impl Iterator<Item = ValueRef<'a>> {
    // SAFETY: the caller's promise.
    args.iter().map(|arg| unsafe { value::argument_ref(*arg) })
}

/// The callee of a call, which is its first argument.
fn callee_text<'a>(args: &mut impl Iterator<Item = ValueRef<'a>>) -> Result<&'a str> {
    let text = args.next().and_then(|first| first.as_str().ok());
    text.ok_or_else(|| SqlError::new("XX000", "a function was called without a callee"))
}

fn carrier(ty: Oid) -> Result<DataType> {
    types::carrier(ty).ok_or_else(|| SqlError::unsupported(format!("values of type number {} do not travel", ty.0)))
}

/// # Safety
/// The context is the one of the running function, and its user data a [`Host`].
unsafe fn host<'a>(context: *mut ffi::sqlite3_context) -> &'a Host {
    // SAFETY: the caller's promise.
    unsafe { &*ffi::sqlite3_user_data(context).cast::<Host>() }
}

/// Runs the body of a function, and makes what it says its result.
///
/// # Safety
/// As for [`host`].
unsafe fn answer(context: *mut ffi::sqlite3_context, body: impl FnOnce(&Host) -> Result<Value>) {
    // SAFETY: the caller's promise.
    unsafe {
        let host = host(context);
        match guarded(|| body(host)) {
            Ok(result) => value::result(context, &result),
            Err(error) => raise(context, host, error),
        }
    }
}

/// # Safety
/// As for [`host`].
unsafe fn raise(context: *mut ffi::sqlite3_context, host: &Host, error: SqlError) {
    host.raised.set(Some(error));
    // SAFETY: the caller's promise.
    unsafe { ffi::sqlite3_result_error_code(context, RAISED) };
}

/// A panic must not pass through SQLite.
fn guarded<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| Err(SqlError::new("XX000", "a function has failed")))
}
