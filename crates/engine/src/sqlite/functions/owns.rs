//! `_owns`: whether a bucket is among those that the shard owns, which are the bits of a parameter.

use super::{Result, answer, arguments};
use crate::error::SqlError;
use isles_kernel::value::Value;
use rusqlite::ffi;
use rusqlite::types::ValueRef;
use std::ffi::c_int;

pub(super) unsafe extern "C" fn call(
    context: *mut ffi::sqlite3_context,
    count: c_int,
    args: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: SQLite gives a live context and `count` live values.
    unsafe {
        let args = std::slice::from_raw_parts(args, count as usize);
        answer(context, |_| {
            let mut args = arguments(args);
            owns(args.next(), args.next()).map(Value::Bool)
        });
    }
}

/// As PostgreSQL's `get_bit` counts; a bucket beyond the bits is an error there, too.
fn owns(owned: Option<ValueRef<'_>>, bucket: Option<ValueRef<'_>>) -> Result<bool> {
    let (Some(ValueRef::Blob(owned)), Some(ValueRef::Integer(bucket))) = (owned, bucket) else {
        return Err(SqlError::new("XX000", "owned buckets are a bytea, and a bucket is a number"));
    };
    let byte = usize::try_from(bucket / 8).ok().filter(|_| bucket >= 0).and_then(|at| owned.get(at));
    match byte {
        Some(byte) => Ok(byte >> (bucket % 8) & 1 == 1),
        None => Err(SqlError::new("XX000", format!("bucket {bucket} is beyond its group"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_bit_of_the_first_byte_is_bucket_zero() {
        let owned = [0b0000_0101, 0b1000_0000];
        let owns = |bucket| owns(Some(ValueRef::Blob(&owned)), Some(ValueRef::Integer(bucket)));
        let found: Vec<i64> = (0..16).filter(|bucket| owns(*bucket) == Ok(true)).collect();
        assert_eq!(found, [0, 2, 15]);
        for beyond in [-1, 16, i64::MIN, i64::MAX] {
            assert_eq!(owns(beyond).map_err(|error| error.sqlstate), Err("XX000"), "{beyond}");
        }
        assert!(super::owns(Some(ValueRef::Null), Some(ValueRef::Integer(0))).is_err());
    }
}
