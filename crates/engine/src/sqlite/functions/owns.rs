//! `_owns`: whether a bucket is among those that the shard owns, which are the bits of a parameter; and `_owns_tenant`, the
//! same for a tenant, which is among the residents that are a text.

use super::{Result, answer, arguments};
use crate::error::SqlError;
use isles_kernel::residents::text_owns;
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

pub(super) unsafe extern "C" fn call_tenant(
    context: *mut ffi::sqlite3_context,
    count: c_int,
    args: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: SQLite gives a live context and `count` live values.
    unsafe {
        let args = std::slice::from_raw_parts(args, count as usize);
        answer(context, |_| {
            let mut args = arguments(args);
            owns_tenant(args.next(), args.next()).map(Value::Bool)
        });
    }
}

fn owns_tenant(residents: Option<ValueRef<'_>>, tenant: Option<ValueRef<'_>>) -> Result<bool> {
    let text = |value: Option<ValueRef<'_>>| value.and_then(|value| value.as_str().ok().map(str::to_string));
    let owns = text(residents).zip(text(tenant)).and_then(|(residents, tenant)| text_owns(&residents, &tenant));
    owns.ok_or_else(|| SqlError::new("XX000", "residents and a tenant are texts of their form"))
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
    fn a_tenant_is_one_of_the_residents() {
        let owns = |residents, tenant: &str| {
            owns_tenant(Some(ValueRef::Text(residents)), Some(ValueRef::Text(tenant.as_bytes())))
        };
        let residents = b"8\n00\n\x01acme\x01\n\x01";
        assert_eq!(
            (owns(residents, "acme"), owns(residents, "beta"), owns(residents, "")),
            (Ok(true), Ok(false), Ok(false))
        );
        assert_eq!(owns(b"", "acme").map_err(|error| error.sqlstate), Err("XX000"));
        assert!(owns_tenant(Some(ValueRef::Null), Some(ValueRef::Text(b"acme"))).is_err());
    }

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
