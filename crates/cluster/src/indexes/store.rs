//! What the catalog keeps of an index: whether it can be read, and which shards' rows are in it.
//!
//! That there is an index, and what it is over, is in the schema; a record without an index is an old one's, and an
//! index without a record has yet to be built.

use crate::catalog::{Catalog, Key, Transaction};
use crate::commit::decision::catalog_error;
use isles_kernel::error::SqlError;
use isles_kernel::names::{RoutingVersion, SchemaVersion, ShardId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

const PREFIX: &str = "index/";
const VERIFIED: &str = "index-verified/";
const PAGE: usize = 1_000;

/// What can be done with an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is maintained where it has been built, and not read.
    Building,
    Ready,
    /// It is not maintained; `error` says why.
    Failed,
    /// As `Building`, for one that was ready before.
    Rebuilding,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Building => "building",
            State::Ready => "ready",
            State::Failed => "failed",
            State::Rebuilding => "rebuilding",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IndexRecord {
    pub(super) state: State,
    /// Shards whose rows are in the entries, and whose logs are followed.
    pub(super) built: BTreeSet<ShardId>,
    /// Shards some of whose rows may be in the entries.
    pub(super) begun: BTreeSet<ShardId>,
    pub(super) error: Option<String>,
    /// It has failed, and entries or readers of logs may be there that nobody needs.
    #[serde(default)]
    pub(super) has_leftovers: bool,
    /// Where the columns were in the schema that the record was last written with, and since when.
    pub(super) places: Vec<usize>,
    pub(super) since: SchemaVersion,
    /// Where the rows were when the first shard of the build under way was begun.
    #[serde(default)]
    pub(super) routed: RoutingVersion,
    /// Milliseconds since 1970.
    pub(super) created_at: u64,
    pub(super) ready_at: Option<u64>,
}

/// What became of the last comparison of all entries of an index with the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VerifiedRecord {
    /// Milliseconds since 1970.
    pub(super) at: u64,
    pub(super) differences: u64,
    pub(super) repaired: u64,
    /// How many entries were compared; not known of a comparison by an earlier version.
    #[serde(default)]
    pub(super) entries: Option<u64>,
}

fn key(entries: &str) -> Result<Key, SqlError> {
    Key::new(format!("{PREFIX}{entries}")).map_err(catalog_error)
}

pub(super) async fn load(catalog: &dyn Catalog, entries: &str) -> Result<Option<IndexRecord>, SqlError> {
    let record = catalog.get(&key(entries)?).await.map_err(catalog_error)?.value;
    record.map(|record| record.json().map_err(catalog_error)).transpose()
}

/// The keeper alone writes.
pub(super) async fn save(catalog: &dyn Catalog, entries: &str, record: &IndexRecord) -> Result<(), SqlError> {
    let put = Transaction::new().put_json(key(entries)?, record).map_err(catalog_error)?;
    catalog.commit(put).await.map(drop).map_err(catalog_error)
}

fn verified_key(entries: &str) -> Result<Key, SqlError> {
    Key::new(format!("{VERIFIED}{entries}")).map_err(catalog_error)
}

pub(super) async fn load_verified(catalog: &dyn Catalog, entries: &str) -> Result<Option<VerifiedRecord>, SqlError> {
    let record = catalog.get(&verified_key(entries)?).await.map_err(catalog_error)?.value;
    record.map(|record| record.json().map_err(catalog_error)).transpose()
}

/// Apart from the index's own record, which the keeper alone writes.
pub(super) async fn save_verified(
    catalog: &dyn Catalog,
    entries: &str,
    record: &VerifiedRecord,
) -> Result<(), SqlError> {
    let put = Transaction::new().put_json(verified_key(entries)?, record).map_err(catalog_error)?;
    catalog.commit(put).await.map(drop).map_err(catalog_error)
}

/// Removes the records of indexes that there are not any more.
pub(super) async fn retain(catalog: &dyn Catalog, is_there: impl Fn(&str) -> bool) -> Result<(), SqlError> {
    for prefix in [PREFIX, VERIFIED] {
        let page = catalog.list(prefix, None, PAGE).await.map_err(catalog_error)?;
        for record in page.records {
            if !is_there(record.key.as_str().trim_start_matches(prefix)) {
                let delete = Transaction::new().delete(record.key);
                catalog.commit(delete).await.map_err(catalog_error)?;
            }
        }
    }
    Ok(())
}
