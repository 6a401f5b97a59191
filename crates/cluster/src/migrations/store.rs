//! What the catalog keeps of migrations.
//!
//! ```text
//! migration/{number}   what becomes of which table, how far it is, and how it ended
//! ```
//!
//! Every change is a compare-and-set on the record: a driver that has been replaced, and an operator who is late, find it
//! changed. The two changes that matter most, the swap and the end, are written with the schema, in one commit.

use crate::catalog::{Catalog, CatalogError, Key, Record, Transaction};
use crate::commit::decision::catalog_error;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use isles_kernel::value::{Decoder, Encoder, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Migrations that are kept when they are over, for whoever wants to know.
const MAX_OVER: usize = 100;
const PREFIX: &str = "migration/";
const PAGE: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The copy is being filled, and follows the table. The table serves.
    Copying,
    /// It has failed or was cancelled, and the copy is being removed. The table serves.
    Undoing,
    /// The copy serves; what it has replaced is being removed.
    Cleaning,
    Done,
    Failed,
    Cancelled,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Copying => "copying",
            State::Undoing => "undoing",
            State::Cleaning => "cleaning",
            State::Done => "done",
            State::Failed => "failed",
            State::Cancelled => "cancelled",
        }
    }

    pub fn is_over(self) -> bool {
        matches!(self, State::Done | State::Failed | State::Cancelled)
    }
}

/// How far the copy of one shard's rows is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShardCopy {
    pub rows: u64,
    pub done: bool,
    /// The last key that was copied, in the kernel's binary form: JSON has no words for some values.
    #[serde(default)]
    after: Option<String>,
}

impl ShardCopy {
    pub(super) fn after(&self) -> Option<Vec<Value>> {
        let bytes = BASE64_STANDARD.decode(self.after.as_ref()?).ok()?;
        Decoder::new(&bytes).row().ok()
    }

    pub(super) fn set_after(&mut self, key: Option<&[Value]>) {
        self.after = key.map(|key| {
            let mut out = Encoder::default();
            out.row(key);
            BASE64_STANDARD.encode(out.bytes)
        });
    }
}

/// Why a migration was given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub sqlstate: String,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
}

impl Failure {
    pub(super) fn of(error: &SqlError) -> Failure {
        Failure {
            sqlstate: error.sqlstate.into(),
            message: error.message.clone(),
            detail: error.detail.clone(),
            hint: error.hint.clone(),
        }
    }

    /// For whoever waits for the migration.
    pub fn error(&self) -> SqlError {
        let known = ["23514", "57014", "0A000", "23505", "23502"].into_iter().find(|known| *known == self.sqlstate);
        let mut error = SqlError::new(known.unwrap_or("55000"), self.message.clone());
        (error.detail, error.hint) = (self.detail.clone(), self.hint.clone());
        error
    }
}

/// A table that becomes a tenant table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migration {
    pub number: u64,
    pub table: String,
    /// The expression that gives each row its tenant.
    pub tenant_by: String,
    /// The tenant table's name until it takes the other one's place.
    pub copy: String,
    /// The old table's name from then on.
    pub aside: String,
    pub state: State,
    /// It is undone because an operator wanted it.
    #[serde(default)]
    pub cancelled: bool,
    /// How many have driven it; the last one does.
    pub driver: u64,
    pub shards: BTreeMap<ShardId, ShardCopy>,
    /// Rows of the table when it was checked.
    pub total: u64,
    pub failure: Option<Failure>,
    /// How long statements were kept waiting at the swap.
    pub pause_micros: Option<u64>,
    /// Milliseconds since 1970.
    pub created_at: u64,
    pub updated_at: u64,
}

impl Migration {
    pub fn rows_copied(&self) -> u64 {
        self.shards.values().map(|shard| shard.rows).sum()
    }

    /// The table that goes in the end: the copy, or what it has replaced.
    pub(super) fn loser(&self) -> &str {
        if self.state == State::Cleaning { &self.aside } else { &self.copy }
    }
}

/// A migration, and the record it was read from.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) migration: Migration,
    pub(super) record: Record,
}

/// Why a change was not made.
pub(super) enum Unsaved {
    /// Somebody else has changed it, or nobody knows whether it was made: it must be read again.
    Changed,
    Error(SqlError),
}

pub(super) fn key_of(number: u64) -> Key {
    Key::new(format!("{PREFIX}{number:010}")).expect("a word and digits")
}

pub(super) async fn load(catalog: &dyn Catalog, number: u64) -> Result<Option<Stored>, SqlError> {
    let record = catalog.get(&key_of(number)).await.map_err(catalog_error)?.value;
    record.map(read).transpose()
}

fn read(record: Record) -> Result<Stored, SqlError> {
    Ok(Stored { migration: record.json().map_err(catalog_error)?, record })
}

/// All migrations, the oldest first.
pub(super) async fn list(catalog: &dyn Catalog) -> Result<Vec<Stored>, SqlError> {
    let (mut all, mut after): (Vec<Stored>, Option<Key>) = (Vec::new(), None);
    loop {
        let page = catalog.list(PREFIX, after.as_ref(), PAGE).await.map_err(catalog_error)?;
        after = page.records.last().map(|record| record.key.clone());
        for record in page.records {
            all.push(read(record)?);
        }
        if !page.more || after.is_none() {
            return Ok(all);
        }
    }
}

pub(super) async fn active(catalog: &dyn Catalog) -> Result<Vec<Migration>, SqlError> {
    let all = list(catalog).await?.into_iter().map(|stored| stored.migration);
    Ok(all.filter(|migration| !migration.state.is_over()).collect())
}

/// What replaces a record, for whoever commits it with something else.
pub(super) fn replacing(stored: &Stored, migration: &Migration) -> Result<Transaction, SqlError> {
    let change = Transaction::new().when(stored.record.unchanged());
    change.put_json(key_of(migration.number), migration).map_err(catalog_error)
}

pub(super) async fn save(catalog: &dyn Catalog, stored: &Stored, migration: Migration) -> Result<Stored, Unsaved> {
    let change = replacing(stored, &migration).map_err(Unsaved::Error)?;
    let value = serde_json::to_vec(&migration);
    let value = value.map_err(|error| Unsaved::Error(SqlError::new("XX000", error.to_string())))?;
    match catalog.commit(change).await {
        Ok(revision) => {
            let (key, created) = (key_of(migration.number), stored.record.created);
            Ok(Stored { migration, record: Record { key, value, revision, created } })
        }
        Err(CatalogError::Conflict { .. } | CatalogError::MayHaveHappened(_)) => Err(Unsaved::Changed),
        Err(error) => Err(Unsaved::Error(catalog_error(error))),
    }
}

/// Migrations that were over long ago go.
pub(super) async fn forget_oldest(catalog: &dyn Catalog) -> Result<(), SqlError> {
    let all = list(catalog).await?;
    let over: Vec<&Stored> = all.iter().filter(|stored| stored.migration.state.is_over()).collect();
    for stored in over.iter().rev().skip(MAX_OVER) {
        let gone = Transaction::new().delete(key_of(stored.migration.number));
        catalog.commit(gone).await.map_err(catalog_error)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_as_it_was() {
        let mut copy = ShardCopy::default();
        assert_eq!(copy.after(), None);
        let key = [Value::text("a"), Value::Float(f64::NAN), Value::Int(7), Value::Bytes(vec![0, 255])];
        copy.set_after(Some(&key));
        let json = serde_json::to_string(&copy).expect("it has a form");
        let read: ShardCopy = serde_json::from_str(&json).expect("it reads back");
        assert_eq!(format!("{:?}", read.after()), format!("{:?}", Some(key.to_vec())));
    }
}
