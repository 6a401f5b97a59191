//! Whose rows they are.
//!
//! A shard of a fragment is a tenant: the value of the hidden column `_shard`, or none. Keys are led by the shard key,
//! which is never null, so that what is unique and what refers to what holds in the shard without a name, too.

use crate::error::{Code, Result, refused};
use isles_kernel::names::TenantId;
use serde::{Deserialize, Serialize};

/// A shard: a name, or none, chosen on purpose.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Shard {
    /// Rows whose `_shard` is null.
    None,
    Named(TenantId),
}

impl Shard {
    /// A name of 1 to 64 characters, without control characters.
    pub fn named(name: impl Into<String>) -> Result<Shard> {
        let name = TenantId::new(name).map_err(|error| {
            refused(Code::ShardInvalid, error.to_string()).with_hint("a shard has 1 to 64 characters, none of control")
        })?;
        Ok(Shard::Named(name))
    }

    pub fn name(&self) -> Option<&str> {
        match self {
            Shard::None => None,
            Shard::Named(name) => Some(name.as_str()),
        }
    }

    /// What leads every key: empty for the shard without a name, and `s` and the name for others.
    pub fn key(&self) -> String {
        self.name().map_or_else(String::new, |name| format!("s{name}"))
    }

    /// The shard of a key.
    pub(crate) fn of_key(key: &str) -> Result<Shard> {
        key.strip_prefix('s').map_or(Ok(Shard::None), Shard::named)
    }

    pub(crate) fn of_column(name: Option<String>) -> Result<Shard> {
        name.map_or(Ok(Shard::None), Shard::named)
    }
}

/// How a database is shared. Only the integrator says it; a fragment's author does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase")]
pub enum Strategy {
    /// Many shards in one database, kept apart row by row.
    Row,
    /// One shard for the whole database, which is bound to the first one that uses it.
    Adapter { identifier: String },
}
