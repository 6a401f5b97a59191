//! Conversions of values from one type to another.

use super::{Env, Result, scalar};
use crate::text::{apply_modifier, input, text_of};
use crate::tree::CastHow;
use crate::types::*;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;

/// Functions that only apply the modifier of their type: `varchar(varchar, integer, boolean)` and its kin.
const LENGTH_COERCIONS: [u32; 7] = [668, 669, 1703, 1961, 1967, 1968, 1200];

/// Whether a conversion by this function is computed here.
pub fn can_cast(function: Oid) -> bool {
    LENGTH_COERCIONS.contains(&function.0) || scalar(function).is_some()
}

/// Converts a value of type `from` to type `to`. Null stays null, and arrays are converted member by member.
pub fn cast(
    env: &mut Env<'_>,
    value: Value,
    from: Type,
    to: Type,
    how: CastHow,
) -> std::result::Result<Value, SqlError> {
    match (value, element_of(from.oid), element_of(to.oid)) {
        (Value::Null, _, _) => Ok(Value::Null),
        (Value::Array(members), Some(from_member), Some(to_member)) => {
            let (from, to) = (Type::with(from_member, from.modifier), Type::with(to_member, to.modifier));
            let each = |member: Value| cast(env, member, from, to, how);
            members.into_iter().map(each).collect::<Result<_>>().map(Value::Array)
        }
        (value, _, _) => cast_one(env, value, from, to, how),
    }
}

fn cast_one(env: &mut Env<'_>, value: Value, from: Type, to: Type, how: CastHow) -> Result<Value> {
    match how {
        CastHow::Relabel => Ok(value),
        CastHow::Modifier { explicit } => apply_modifier(value, to, explicit),
        CastHow::InOut => input(&text_of(&value, from.oid, env.settings), to, env.settings),
        CastHow::Function(oid) if LENGTH_COERCIONS.contains(&oid.0) => apply_modifier(value, to, true),
        CastHow::Function(oid) => {
            let function = scalar(oid).ok_or_else(|| {
                let (from, to) = (crate::text::type_name(from.oid), crate::text::type_name(to.oid));
                SqlError::unsupported(format!("casting type {from} to type {to} is not supported"))
            })?;
            (function.call)(env, &[value], &[from.oid])
        }
    }
}
