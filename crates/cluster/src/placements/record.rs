//! Placements in the catalog: the configuration of a tenant, and the history of its changes.
//!
//! The configuration is kept as it was written, so that what is put is what is read. Its ETag is the revision of its
//! record. The history is bounded: the oldest entry goes with the commit that adds one too many.

use super::DEFAULT_TENANT;
use crate::catalog::{Catalog, Key, Record, Revision, Transaction};
use crate::commit::decision::catalog_error;
use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use isles_kernel::placement::{ConfigErrors, Placement, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

pub(super) const PREFIX: &str = "region_shard_config:";
const STATE: &str = "region_shard_state:";
const HISTORY: &str = "region_shard_history:";

/// The largest configuration that is kept. It is written twice in one commit, which a catalog bounds at 1.25 MiB.
pub(super) const RECORD_BYTES_MAX: usize = 512 << 10;

/// Entries of a tenant's history: with one change a week, two years.
pub(super) const HISTORY_MAX: u64 = 100;

/// Names one state of a tenant's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ETag(u64);

impl ETag {
    /// There is no record.
    pub const NONE: ETag = ETag(0);

    pub(super) fn of(revision: Revision) -> ETag {
        ETag(revision.0)
    }

    /// As HTTP and SQL write it, with or without quotes.
    pub fn parse(text: &str) -> Option<ETag> {
        let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| text.parse().ok().map(ETag)).flatten()
    }
}

impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

impl<'de> Deserialize<'de> for ETag {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<ETag, D::Error> {
        let text = String::deserialize(deserializer)?;
        ETag::parse(&text).ok_or_else(|| serde::de::Error::custom("not an ETag"))
    }
}

impl Serialize for ETag {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a change was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Put,
    Migrate,
    RemoveGeneration,
}

impl Action {
    pub fn name(self) -> &'static str {
        match self {
            Action::Put => "put",
            Action::Migrate => "migrate",
            Action::RemoveGeneration => "remove_generation",
        }
    }
}

/// One change: who, when, what, and what it became.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryEntry {
    /// The first change is 1.
    pub number: u64,
    pub action: Action,
    /// The role that made it.
    pub by: String,
    /// Milliseconds since 1970.
    pub at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The generation that was current from then on.
    pub generation: u16,
    /// The state that it replaced.
    pub replaced: ETag,
    /// As it was put.
    pub config: Value,
}

impl HistoryEntry {
    /// RFC 3339.
    pub fn when(&self) -> String {
        let at = i64::try_from(self.at).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
        at.unwrap_or(Timestamp::MAX).to_string()
    }
}

/// Which entries there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) first: u64,
    pub(super) last: u64,
}

/// A tenant that can have a record.
pub(super) fn tenant_name(tenant: &str) -> Result<TenantId, SqlError> {
    TenantId::new(tenant).map_err(|error| SqlError::new("22023", error.to_string()))
}

pub(super) fn config_key(tenant: &TenantId) -> Result<Key, SqlError> {
    Key::new(format!("{PREFIX}{tenant}")).map_err(catalog_error)
}

fn state_key(tenant: &TenantId) -> Result<Key, SqlError> {
    Key::new(format!("{STATE}{tenant}")).map_err(catalog_error)
}

/// The length says where the name ends, whatever is in it.
fn history_key(tenant: &TenantId, number: u64) -> Result<Key, SqlError> {
    let bytes = tenant.as_str().len();
    Key::new(format!("{HISTORY}{bytes:03}:{tenant}:{number:020}")).map_err(catalog_error)
}

/// The tenant of a configuration's key.
pub(super) fn tenant_of(key: &Key) -> Option<&str> {
    key.as_str().strip_prefix(PREFIX)
}

pub(super) fn is_default(tenant: &str) -> bool {
    tenant == DEFAULT_TENANT
}

pub(super) fn read_config(record: &Record) -> Result<Placement, ConfigErrors> {
    Placement::from_json(&String::from_utf8_lossy(&record.value))
}

pub(super) async fn load(catalog: &dyn Catalog, tenant: &TenantId) -> Result<Option<Record>, SqlError> {
    Ok(catalog.get(&config_key(tenant)?).await.map_err(catalog_error)?.value)
}

/// Adds an entry to what a transaction writes, and takes the oldest away when there are too many.
pub(super) async fn with_entry(
    catalog: &dyn Catalog,
    change: Transaction,
    tenant: &TenantId,
    mut entry: HistoryEntry,
) -> Result<(Transaction, u64), SqlError> {
    let key = state_key(tenant)?;
    let stored = catalog.get(&key).await.map_err(catalog_error)?.value;
    let state: State =
        stored.as_ref().map_or_else(|| Ok(State { first: 1, last: 0 }), Record::json).map_err(catalog_error)?;
    let number = state.last + 1;
    entry.number = number;
    let first = state.first.max((number + 1).saturating_sub(HISTORY_MAX));
    let mut change = change.when_as_read(&key, stored.as_ref());
    for gone in state.first..first {
        change = change.delete(history_key(tenant, gone)?);
    }
    let change = change.put_json(history_key(tenant, number)?, &entry);
    let change = change.and_then(|change| change.put_json(key, &State { first, last: number }));
    Ok((change.map_err(catalog_error)?, number))
}

/// The last entries, the newest first.
pub(super) async fn history(
    catalog: &dyn Catalog,
    tenant: &TenantId,
    limit: usize,
) -> Result<Vec<HistoryEntry>, SqlError> {
    let Some(stored) = catalog.get(&state_key(tenant)?).await.map_err(catalog_error)?.value else {
        return Ok(Vec::new());
    };
    let state: State = stored.json().map_err(catalog_error)?;
    let mut entries = Vec::new();
    for number in (state.first..=state.last).rev().take(limit) {
        // Somebody may have taken the oldest meanwhile.
        entries.extend(entry(catalog, tenant, number).await?);
    }
    Ok(entries)
}

pub(super) async fn entry(
    catalog: &dyn Catalog,
    tenant: &TenantId,
    number: u64,
) -> Result<Option<HistoryEntry>, SqlError> {
    let Some(record) = catalog.get(&history_key(tenant, number)?).await.map_err(catalog_error)?.value else {
        return Ok(None);
    };
    Ok(Some(record.json().map_err(catalog_error)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_etag_is_read_as_it_is_written() {
        assert_eq!(ETag::parse("\"17\""), Some(ETag(17)));
        assert_eq!(ETag::parse("17"), Some(ETag(17)));
        assert_eq!(ETag::parse(&ETag(17).to_string()), Some(ETag(17)));
        for text in ["", "\"\"", "W/\"17\"", "-1", "+1", "1 ", "*", "99999999999999999999999"] {
            assert_eq!(ETag::parse(text), None, "{text}");
        }
    }

    /// Names with separators cannot be taken for each other's.
    #[test]
    fn histories_of_tenants_are_apart() {
        let key = |tenant: &str, number| history_key(&TenantId::new(tenant).unwrap(), number).unwrap();
        let names = ["a", "a:00000000000000000001", "00000000000000000001:a", "a:", ":a"];
        let mut seen = std::collections::BTreeSet::new();
        for name in names {
            for number in [1, 2] {
                assert!(seen.insert(key(name, number)), "{name} {number}");
            }
        }
    }
}
