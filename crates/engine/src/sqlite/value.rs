//! Storage forms: how a typed value stands in a STRICT table.
//!
//!     boolean, integers              INTEGER
//!     date, time, timestamps         INTEGER, days or microseconds as in PostgreSQL
//!     float                          ANY: REAL, or the text 'NaN', which SQLite sorts above all numbers
//!     numeric                        TEXT in PostgreSQL's output form, under a collation that orders by value
//!     text, json                     TEXT
//!     interval                       TEXT in PostgreSQL's output form, under a collation that orders by length
//!     arrays                         TEXT in PostgreSQL's output form
//!     bytes, uuid                    BLOB
//!
//! A REAL column would turn NaN into NULL and -0.0 into 0.0; ANY keeps both.

use super::raw::{Failure, Prepared};
use crate::error::ShardError;
use isles_kernel::form;
use isles_kernel::interval::Interval;
use isles_kernel::value::{DataType, Encoder, Numeric, Value};
use rusqlite::ffi;
use rusqlite::types::{ToSqlOutput, ValueRef};
use std::ffi::c_int;

/// The collation of numeric columns.
pub(super) const NUMERIC_COLLATION: &str = "_isles_numeric";
/// The collation of interval columns.
pub(super) const INTERVAL_COLLATION: &str = "_isles_interval";
const NAN: &str = "NaN";

/// Whether a stored text is of its column's type: `_isles_is(text, type)`. Constraints of tables call it.
const CHECK: &str = "_isles_is";

/// The condition under which a text is of this type, for the types whose texts SQLite cannot judge.
pub(super) fn check(column: &str, ty: DataType) -> Option<String> {
    match ty {
        DataType::Interval | DataType::Array(_) => Some(format!("{CHECK}({column}, '{}')", ty.postgres_name())),
        _ => None,
    }
}

/// Makes the function of the constraints known to a connection.
pub(super) fn register_checks(connection: &rusqlite::Connection) -> rusqlite::Result<()> {
    use rusqlite::functions::FunctionFlags;
    // Innocuous, since a schema that is not trusted may call nothing else.
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    connection.create_scalar_function(CHECK, 2, flags, |context| {
        let Some(text) = context.get::<Option<String>>(0)? else { return Ok(None) };
        let name: String = context.get(1)?;
        let ty = DataType::ALL.into_iter().find(|ty| ty.postgres_name() == name);
        Ok(ty.map(|ty| self::text(text.as_bytes(), ty).is_ok_and(|value| value.fits(ty))))
    })
}

/// What a column of this type is declared as.
pub(super) fn declared(ty: DataType) -> &'static str {
    match ty {
        DataType::Float4 | DataType::Float8 => "ANY",
        DataType::Numeric => "TEXT COLLATE \"_isles_numeric\"",
        DataType::Interval => "TEXT COLLATE \"_isles_interval\"",
        DataType::Text | DataType::Json | DataType::Array(_) => "TEXT",
        DataType::Bytes | DataType::Uuid => "BLOB",
        _ => "INTEGER",
    }
}

/// Binds one parameter (numbered from 1). SQLite does not copy: the value must outlive the execution, and
/// [`Prepared::reset`] forgets it.
pub(super) fn bind(statement: &Prepared, index: c_int, value: &Value) -> Result<(), Failure> {
    let stmt = statement.raw();
    // SAFETY: `stmt` is a live statement that no other thread uses, and texts and blobs outlive the execution (see
    // above), so a null destructor (SQLITE_STATIC) is right.
    let code = unsafe {
        match value {
            Value::Null => ffi::sqlite3_bind_null(stmt, index),
            Value::Bool(b) => ffi::sqlite3_bind_int(stmt, index, c_int::from(*b)),
            Value::Int(n) | Value::Time(n) | Value::Timestamp(n) | Value::TimestampTz(n) => {
                ffi::sqlite3_bind_int64(stmt, index, *n)
            }
            Value::Date(n) => ffi::sqlite3_bind_int64(stmt, index, i64::from(*n)),
            Value::Float(x) if x.is_nan() => bind_text(stmt, index, NAN),
            Value::Float(x) => ffi::sqlite3_bind_double(stmt, index, *x),
            Value::Numeric(n) => bind_text(stmt, index, n.as_str()),
            Value::Text(s) | Value::Json(s) => bind_text(stmt, index, s),
            Value::Bytes(b) => bind_blob(stmt, index, b),
            Value::Uuid(u) => bind_blob(stmt, index, u),
            Value::Interval(interval) => bind_copy(stmt, index, &interval.to_string()),
            Value::Array(members) => bind_copy(stmt, index, &form::array_text(members)),
        }
    };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(Failure::of(code)) }
}

unsafe fn bind_text(stmt: *mut ffi::sqlite3_stmt, index: c_int, text: &str) -> c_int {
    let bytes = text.as_bytes();
    // SAFETY: as the caller promises in `bind`.
    unsafe {
        ffi::sqlite3_bind_text64(stmt, index, bytes.as_ptr().cast(), bytes.len() as u64, None, ffi::SQLITE_UTF8 as u8)
    }
}

/// Binds a text that is gone after this call.
unsafe fn bind_copy(stmt: *mut ffi::sqlite3_stmt, index: c_int, text: &str) -> c_int {
    let (start, length) = (text.as_ptr().cast(), text.len() as u64);
    // SAFETY: the statement is live, as in `bind`; SQLITE_TRANSIENT makes SQLite copy the text at once.
    unsafe { ffi::sqlite3_bind_text64(stmt, index, start, length, ffi::SQLITE_TRANSIENT(), ffi::SQLITE_UTF8 as u8) }
}

unsafe fn bind_blob(stmt: *mut ffi::sqlite3_stmt, index: c_int, bytes: &[u8]) -> c_int {
    if bytes.is_empty() {
        // A null pointer would bind NULL.
        // SAFETY: a zero-length blob reads no memory.
        return unsafe { ffi::sqlite3_bind_zeroblob(stmt, index, 0) };
    }
    // SAFETY: as the caller promises in `bind`.
    unsafe { ffi::sqlite3_bind_blob64(stmt, index, bytes.as_ptr().cast(), bytes.len() as u64, None) }
}

/// Reads a column of the current row as a value of type `ty`.
pub(super) fn column(statement: &Prepared, index: c_int, ty: DataType) -> Result<Value, ShardError> {
    let stmt = statement.raw();
    // SAFETY: the statement stands on a row, and what is read is copied before the next call on it.
    unsafe {
        match ffi::sqlite3_column_type(stmt, index) {
            ffi::SQLITE_NULL => Ok(Value::Null),
            ffi::SQLITE_INTEGER => integer(ffi::sqlite3_column_int64(stmt, index), ty),
            ffi::SQLITE_FLOAT => real(ffi::sqlite3_column_double(stmt, index), ty),
            ffi::SQLITE_TEXT => {
                let start = ffi::sqlite3_column_text(stmt, index);
                text(slice(start, ffi::sqlite3_column_bytes(stmt, index)), ty)
            }
            _ => {
                let start = ffi::sqlite3_column_blob(stmt, index);
                blob(slice(start.cast(), ffi::sqlite3_column_bytes(stmt, index)), ty)
            }
        }
    }
}

unsafe fn slice<'a>(start: *const u8, len: c_int) -> &'a [u8] {
    if start.is_null() || len <= 0 {
        return &[];
    }
    // SAFETY: SQLite says that `len` bytes are at `start`.
    unsafe { std::slice::from_raw_parts(start, len as usize) }
}

fn integer(n: i64, ty: DataType) -> Result<Value, ShardError> {
    Ok(match ty {
        DataType::Bool => Value::Bool(n != 0),
        DataType::Int2 | DataType::Int4 | DataType::Int8 => Value::Int(n),
        DataType::Float4 | DataType::Float8 => Value::Float(n as f64),
        DataType::Numeric => Value::Numeric(Numeric::parse(&n.to_string()).map_err(|_| mismatch("an integer", ty))?),
        DataType::Date => Value::Date(i32::try_from(n).map_err(|_| mismatch("an integer", ty))?),
        DataType::Time => Value::Time(n),
        DataType::Timestamp => Value::Timestamp(n),
        DataType::TimestampTz => Value::TimestampTz(n),
        _ => return Err(mismatch("an integer", ty)),
    })
}

fn real(x: f64, ty: DataType) -> Result<Value, ShardError> {
    match ty {
        DataType::Float4 | DataType::Float8 => Ok(Value::Float(x)),
        _ => Err(mismatch("a float", ty)),
    }
}

fn text(bytes: &[u8], ty: DataType) -> Result<Value, ShardError> {
    let text = std::str::from_utf8(bytes).map_err(|_| ShardError::Corrupt("a stored text is not UTF-8".into()))?;
    match ty {
        DataType::Text => Ok(Value::Text(text.into())),
        DataType::Json => Ok(Value::Json(text.into())),
        DataType::Numeric => Ok(Value::Numeric(Numeric::parse(text).map_err(|_| mismatch("a text", ty))?)),
        DataType::Interval => Ok(Value::Interval(Interval::parse(text).ok_or_else(|| mismatch("a text", ty))?)),
        DataType::Array(element) => {
            Ok(Value::Array(form::parse_array(text, element).ok_or_else(|| mismatch("a text", ty))?))
        }
        DataType::Float4 | DataType::Float8 if text == NAN => Ok(Value::Float(f64::NAN)),
        _ => Err(mismatch("a text", ty)),
    }
}

fn blob(bytes: &[u8], ty: DataType) -> Result<Value, ShardError> {
    match ty {
        DataType::Bytes => Ok(Value::Bytes(bytes.to_vec())),
        DataType::Uuid => Ok(Value::Uuid(bytes.try_into().map_err(|_| mismatch("a blob", ty))?)),
        _ => Err(mismatch("a blob", ty)),
    }
}

fn mismatch(found: &str, ty: DataType) -> ShardError {
    ShardError::statement("42804", format!("the result has {found} where {} was expected", ty.postgres_name()))
}

/// An argument of a function, as SQLite has it.
///
/// # Safety
/// `value` is a live SQLite value, and stays so while what is returned is used.
pub(super) unsafe fn argument_ref<'a>(value: *mut ffi::sqlite3_value) -> ValueRef<'a> {
    // SAFETY: the caller's promise.
    unsafe {
        match ffi::sqlite3_value_type(value) {
            ffi::SQLITE_NULL => ValueRef::Null,
            ffi::SQLITE_INTEGER => ValueRef::Integer(ffi::sqlite3_value_int64(value)),
            ffi::SQLITE_FLOAT => ValueRef::Real(ffi::sqlite3_value_double(value)),
            ffi::SQLITE_TEXT => {
                let start = ffi::sqlite3_value_text(value);
                ValueRef::Text(slice(start, ffi::sqlite3_value_bytes(value)))
            }
            _ => {
                let start = ffi::sqlite3_value_blob(value);
                ValueRef::Blob(slice(start.cast(), ffi::sqlite3_value_bytes(value)))
            }
        }
    }
}

/// An argument of a function as a value of type `ty`.
pub(super) fn argument(value: ValueRef<'_>, ty: DataType) -> Result<Value, ShardError> {
    match value {
        ValueRef::Null => Ok(Value::Null),
        ValueRef::Integer(n) => integer(n, ty),
        ValueRef::Real(x) => real(x, ty),
        ValueRef::Text(bytes) => text(bytes, ty),
        ValueRef::Blob(bytes) => blob(bytes, ty),
    }
}

/// A value, to be given to SQLite in its storage form.
pub(super) struct Stored<'a>(pub(super) &'a Value);

impl rusqlite::ToSql for Stored<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let text = |s: &'_ str| ToSqlOutput::Owned(rusqlite::types::Value::Text(s.to_string()));
        Ok(match self.0 {
            Value::Null => ToSqlOutput::Borrowed(ValueRef::Null),
            Value::Bool(b) => ToSqlOutput::Borrowed(ValueRef::Integer(i64::from(*b))),
            Value::Int(n) | Value::Time(n) | Value::Timestamp(n) | Value::TimestampTz(n) => {
                ToSqlOutput::Borrowed(ValueRef::Integer(*n))
            }
            Value::Date(n) => ToSqlOutput::Borrowed(ValueRef::Integer(i64::from(*n))),
            Value::Float(x) if x.is_nan() => ToSqlOutput::Borrowed(ValueRef::Text(NAN.as_bytes())),
            Value::Float(x) => ToSqlOutput::Borrowed(ValueRef::Real(*x)),
            Value::Numeric(n) => ToSqlOutput::Borrowed(ValueRef::Text(n.as_str().as_bytes())),
            Value::Text(s) | Value::Json(s) => ToSqlOutput::Borrowed(ValueRef::Text(s.as_bytes())),
            Value::Bytes(b) => ToSqlOutput::Borrowed(ValueRef::Blob(b)),
            Value::Uuid(u) => ToSqlOutput::Borrowed(ValueRef::Blob(u)),
            Value::Interval(interval) => text(&interval.to_string()),
            Value::Array(members) => text(&form::array_text(members)),
        })
    }
}

/// Makes a value the result of a function.
///
/// # Safety
/// The context is that of the running function.
pub(super) unsafe fn result(context: *mut ffi::sqlite3_context, value: &Value) {
    // SAFETY: the caller's promise; texts and blobs are copied.
    unsafe {
        match value {
            Value::Null => ffi::sqlite3_result_null(context),
            Value::Bool(b) => ffi::sqlite3_result_int(context, c_int::from(*b)),
            Value::Int(n) | Value::Time(n) | Value::Timestamp(n) | Value::TimestampTz(n) => {
                ffi::sqlite3_result_int64(context, *n);
            }
            Value::Date(n) => ffi::sqlite3_result_int64(context, i64::from(*n)),
            Value::Float(x) if x.is_nan() => result_text(context, NAN),
            Value::Float(x) => ffi::sqlite3_result_double(context, *x),
            Value::Numeric(n) => result_text(context, n.as_str()),
            Value::Text(s) | Value::Json(s) => result_text(context, s),
            Value::Bytes(b) => result_blob(context, b),
            Value::Uuid(u) => result_blob(context, u),
            Value::Interval(interval) => result_text(context, &interval.to_string()),
            Value::Array(members) => result_text(context, &form::array_text(members)),
        }
    }
}

unsafe fn result_text(context: *mut ffi::sqlite3_context, text: &str) {
    let (start, length) = (text.as_ptr().cast(), text.len() as u64);
    // SAFETY: as the caller promises in `result`; SQLITE_TRANSIENT makes SQLite copy the text at once.
    unsafe { ffi::sqlite3_result_text64(context, start, length, ffi::SQLITE_TRANSIENT(), ffi::SQLITE_UTF8 as u8) };
}

unsafe fn result_blob(context: *mut ffi::sqlite3_context, bytes: &[u8]) {
    // SAFETY: as the caller promises in `result`; an empty slice is a valid pointer, which is not null.
    unsafe {
        ffi::sqlite3_result_blob64(context, bytes.as_ptr().cast(), bytes.len() as u64, ffi::SQLITE_TRANSIENT());
    }
}

/// Writes a stored value straight into a record, without a [`Value`] in between.
///
/// # Safety
/// `value` is a live SQLite value that no other thread uses.
pub(super) unsafe fn encode(out: &mut Encoder, value: *mut ffi::sqlite3_value, ty: DataType) {
    // SAFETY: the caller's promise; what is read is copied at once.
    unsafe {
        match ffi::sqlite3_value_type(value) {
            ffi::SQLITE_NULL => out.null(),
            ffi::SQLITE_INTEGER => out.int_of(ty, ffi::sqlite3_value_int64(value)),
            ffi::SQLITE_FLOAT => out.float(ffi::sqlite3_value_double(value)),
            ffi::SQLITE_TEXT if matches!(ty, DataType::Float4 | DataType::Float8) => out.float(f64::NAN),
            ffi::SQLITE_TEXT => {
                let start = ffi::sqlite3_value_text(value);
                out.text_of(ty, slice(start, ffi::sqlite3_value_bytes(value)));
            }
            _ => {
                let start = ffi::sqlite3_value_blob(value);
                out.bytes_of(ty, slice(start.cast(), ffi::sqlite3_value_bytes(value)));
            }
        }
    }
}

/// Whether two stored values are the same, to the bit.
///
/// # Safety
/// Both are live SQLite values that no other thread uses.
pub(super) unsafe fn same(a: *mut ffi::sqlite3_value, b: *mut ffi::sqlite3_value) -> bool {
    // SAFETY: the caller's promise; the slices are compared before any further call on the values.
    unsafe {
        let kind = ffi::sqlite3_value_type(a);
        kind == ffi::sqlite3_value_type(b)
            && match kind {
                ffi::SQLITE_NULL => true,
                ffi::SQLITE_INTEGER => ffi::sqlite3_value_int64(a) == ffi::sqlite3_value_int64(b),
                ffi::SQLITE_FLOAT => ffi::sqlite3_value_double(a).to_bits() == ffi::sqlite3_value_double(b).to_bits(),
                _ => {
                    let left = slice(ffi::sqlite3_value_blob(a).cast(), ffi::sqlite3_value_bytes(a));
                    left == slice(ffi::sqlite3_value_blob(b).cast(), ffi::sqlite3_value_bytes(b))
                }
            }
    }
}
