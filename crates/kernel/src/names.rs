//! The newtypes that travel between crates.
//!
//! A bare integer or string that crosses a function boundary can be swapped for another one without an error;
//! a newtype cannot. Names are checked where they are made, so every `TenantId` in the program is a valid one. They are
//! cloned with every statement, so they are shared and not copied.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The longest tenant name, in characters.
pub const MAX_TENANT_CHARS: usize = 64;

/// The longest name of a shard, group, region or stream, in bytes. Names become file and database names.
pub const MAX_NAME_BYTES: usize = 63;

/// Why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("a {what} may not be empty")]
    Empty { what: &'static str },
    #[error("a {what} has at most {limit} {unit}, this one has {actual}")]
    TooLong { what: &'static str, limit: usize, unit: &'static str, actual: usize },
    #[error("a {what} may not contain {found:?}")]
    BadCharacter { what: &'static str, found: char },
}

/// The logical owner of rows. Any characters but control characters; 1 to 64 of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TenantId(Arc<str>);

impl TenantId {
    pub fn new(name: impl Into<String>) -> Result<TenantId, NameError> {
        let name = name.into();
        let chars = name.chars().count();
        if chars == 0 {
            return Err(NameError::Empty { what: "tenant" });
        }
        if chars > MAX_TENANT_CHARS {
            return Err(NameError::TooLong {
                what: "tenant",
                limit: MAX_TENANT_CHARS,
                unit: "characters",
                actual: chars,
            });
        }
        if let Some(found) = name.chars().find(|c| c.is_control()) {
            return Err(NameError::BadCharacter { what: "tenant", found });
        }
        Ok(TenantId(name.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Defines a name of lowercase letters, digits, `-` and `_`, so that it is safe in file names, SQL and metrics.
macro_rules! plain_name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(name: impl Into<String>) -> Result<$name, NameError> {
                plain($what, name.into()).map(|name| $name(name.into()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(name: String) -> Result<$name, NameError> {
                $name::new(name)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

plain_name!(
    /// One physical database: a SQLite file or a PostgreSQL database.
    ShardId,
    "shard name"
);
plain_name!(
    /// Types or tables that share a shard key and a bucket count.
    GroupName,
    "group name"
);
plain_name!(
    /// A place where data must stay.
    RegionName,
    "region name"
);
plain_name!(
    /// One reader of a change log, or one source of applied changes; it owns a position.
    StreamId,
    "stream name"
);
plain_name!(
    /// A plan to move tenants or buckets.
    PlanId,
    "plan name"
);
plain_name!(
    /// A transaction over several shards, by the name under which each of them has promised to commit it.
    PledgeId,
    "pledge name"
);

fn plain(what: &'static str, name: String) -> Result<String, NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { what });
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong { what, limit: MAX_NAME_BYTES, unit: "bytes", actual: name.len() });
    }
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    match name.chars().find(|c| !allowed(*c)) {
        Some(found) => Err(NameError::BadCharacter { what, found }),
        None => Ok(name),
    }
}

impl TryFrom<String> for TenantId {
    type Error = NameError;
    fn try_from(name: String) -> Result<TenantId, NameError> {
        TenantId::new(name)
    }
}

impl From<TenantId> for String {
    fn from(tenant: TenantId) -> String {
        tenant.0.as_ref().into()
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Defines a counter that only rises.
macro_rules! counter {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            pub const ZERO: $name = $name(0);

            /// The value after this one.
            pub fn next(self) -> $name {
                $name(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter!(
    /// Number of the mapping buckets and tenants → shards; it rises by one for each change.
    RoutingVersion
);
counter!(
    /// A position in one shard's change log. Positions of two shards are not comparable.
    Seq
);
counter!(
    /// Number of a shard's schema; it rises by one for each schema change.
    SchemaVersion
);
counter!(
    /// A transaction of one shard, as its change log names it.
    TxnId
);

/// A virtual shard of a group: `fnv1a32(key) % buckets`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BucketId(pub u32);

impl fmt::Display for BucketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_1_to_64_characters_counted_as_characters() {
        assert_eq!(TenantId::new(""), Err(NameError::Empty { what: "tenant" }));
        assert!(TenantId::new("日".repeat(64)).is_ok());
        assert!(matches!(TenantId::new("日".repeat(65)), Err(NameError::TooLong { actual: 65, .. })));
        assert!(matches!(TenantId::new("a\0b"), Err(NameError::BadCharacter { found: '\0', .. })));
    }

    #[test]
    fn a_shard_name_is_safe_in_a_path() {
        assert!(ShardId::new("s-1_a").is_ok());
        for bad in ["../x", "S1", "a b", "a/b", "a.b", ""] {
            assert!(ShardId::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_are_checked_when_they_are_deserialized() {
        assert!(serde_json::from_str::<ShardId>("\"../x\"").is_err());
        assert!(serde_json::from_str::<TenantId>("\"\"").is_err());
    }
}
