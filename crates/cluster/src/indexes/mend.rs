//! Entries by hand: pages of them, and changes that the rows confirm.
//!
//! A change says that a shard has rows with a key, or has none any more, as its sender saw it when the shard's log was at a
//! position. It may come late, twice, or after one that was sent later. So it is no order but a hint: the entry is
//! compared with the rows as they are, and put right only where they say the same. A row is never hidden by one (I-23).
//!
//! | position of the change | the rows | the change is |
//! |---|---|---|
//! | before the last change of the table that was applied | not asked | `stale` |
//! | after the end of the log | not asked | `unknown` |
//! | between | say otherwise | `refused` |
//! | between | agree, the entry is right | `already` |
//! | between | agree, the entry was wrong | `applied` |

use super::json::Fields;
use super::verify::{Compared, Cut, Difference, Piece, Standing, hex};
use super::watch::Watched;
use crate::database::Database;
use isles_engine::shard::{KeyRange, MAX_PAGE_ROWS, Scope};
use isles_kernel::error::SqlError;
use isles_kernel::index::key::Part;
use isles_kernel::index::{IndexKey, StoredEntry};
use isles_kernel::names::{BucketId, Seq, ShardId};
use isles_kernel::schema::{ENTRY_BUCKETS, KeyOver, KeyPart, entry_place};
use isles_kernel::value::{DataType, Value};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Entries of one page.
pub const PAGE_LIMIT: RangeInclusive<usize> = 1..=1_000;
/// Entries that are read for one page: a shard that few of them name is found in several requests.
const MAX_LOOKED_AT: usize = 50_000;
/// Entries that are read at once, at least: most of them may name other shards.
const LEAST_READ: usize = 100;
/// Changes of one batch: each of its shards is read once for each index.
const MAX_CHANGES: usize = 1_000;
/// Before a key that is written as its bytes.
const BYTES: &str = "\\x";

/// An entry that names a bucket of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EntryRow {
    /// The key's bytes, as a change may name it.
    pub key_value: String,
    pub bucket: BucketId,
    pub rows: i64,
}

/// Some entries that name buckets of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EntryPage {
    pub entries: Vec<EntryRow>,
    /// None at the end. A page that has one may have fewer entries than asked for, or none.
    pub next_cursor: Option<String>,
    /// Up to where the shard's log was applied before the page was read.
    pub seq: Seq,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EntryOperation {
    Add,
    Remove,
}

/// That a shard has rows with a key, or has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryChange {
    operation: EntryOperation,
    index_name: String,
    key_value: String,
    shard: ShardId,
    /// Where the shard's log was when that was seen.
    seq: Seq,
}

/// The place of a change in its batch, and its key.
type Hint = (usize, Vec<u8>);

/// What has become of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryOutcome {
    Applied,
    Already,
    Refused,
    Stale,
    Unknown,
}

impl EntryChange {
    /// Reads `{"changes": […]}`.
    pub fn from_json(value: serde_json::Value) -> Result<Vec<EntryChange>, SqlError> {
        let mut fields = Fields::of(value, "a batch")?;
        let changes: Vec<serde_json::Value> = fields.take("changes")?;
        if changes.is_empty() || changes.len() > MAX_CHANGES {
            let why = format!("a batch has 1 to {MAX_CHANGES} changes, not {}", changes.len());
            return Err(fields.refuse("changes", why));
        }
        fields.end()?;
        changes.into_iter().enumerate().map(|(at, change)| EntryChange::one(change, at)).collect()
    }

    fn one(value: serde_json::Value, at: usize) -> Result<EntryChange, SqlError> {
        let mut fields = Fields::of(value, format!("changes[{at}]"))?;
        let shard = fields.take("shard_id")?;
        let change = EntryChange {
            operation: fields.take("operation")?,
            index_name: fields.take("index_name")?,
            key_value: fields.take("key_value")?,
            shard: fields.shard("shard_id", shard)?,
            seq: Seq(fields.take("seq")?),
        };
        fields.end()?;
        Ok(change)
    }
}

/// Where a page begins: after an entry of an entry bucket, or with the bucket.
struct Cursor {
    entry_bucket: u32,
    after: Option<(Vec<u8>, i64)>,
}

impl Cursor {
    fn parse(text: &str) -> Option<Cursor> {
        let mut parts = text.splitn(3, '.');
        let entry_bucket = parts.next()?.parse().ok().filter(|bucket| *bucket < ENTRY_BUCKETS)?;
        let after = match parts.next() {
            Some(bucket) => Some((unhex(parts.next()?)?, bucket.parse().ok()?)),
            None => None,
        };
        Some(Cursor { entry_bucket, after })
    }

    fn text(&self) -> String {
        match &self.after {
            Some((key, bucket)) => format!("{}.{bucket}.{}", self.entry_bucket, hex(key)),
            None => self.entry_bucket.to_string(),
        }
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}

fn cut(cut: Cut) -> SqlError {
    match cut {
        Cut::Error(error) => error,
        Cut::TooMany => SqlError::new("53200", "these keys have too many entries to be compared"),
    }
}

impl Database {
    /// Entries of an index that name buckets of a shard, in pages.
    pub async fn index_entries(
        &self,
        name: &str,
        shard: &ShardId,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<EntryPage, SqlError> {
        let index = self.index_named(name)?;
        self.check_shard(shard)?;
        if !PAGE_LIMIT.contains(&limit) {
            let (low, high) = (PAGE_LIMIT.start(), PAGE_LIMIT.end());
            return Err(SqlError::new("22023", format!("limit is between {low} and {high}")));
        }
        let invalid = || SqlError::new("22023", "the cursor is not one of an earlier page");
        let cursor = cursor.map(|text| Cursor::parse(text).ok_or_else(invalid)).transpose()?;
        let mut cursor = cursor.unwrap_or(Cursor { entry_bucket: 0, after: None });
        let seq = self.indexes.applier(shard).map_or(Seq(0), |applier| applier.applied());
        let named = self.piece_of(&index, shard).buckets;
        let (mut entries, mut looked_at) = (Vec::new(), 0);
        while entries.len() < limit && looked_at < MAX_LOOKED_AT {
            let room = (limit - entries.len()).clamp(LEAST_READ, MAX_PAGE_ROWS);
            let page = self.entry_page(&index, &cursor, room).await?;
            looked_at += page.len().max(1);
            let is_last = page.len() < room;
            for (key, bucket, rows) in page {
                let is_named = u32::try_from(bucket).is_ok_and(|bucket| named.binary_search(&bucket).is_ok());
                if is_named {
                    if entries.len() == limit {
                        return Ok(EntryPage { entries, next_cursor: Some(cursor.text()), seq });
                    }
                    entries.push(EntryRow {
                        key_value: format!("{BYTES}{}", hex(&key)),
                        bucket: BucketId(bucket as u32),
                        rows,
                    });
                }
                cursor.after = Some((key, bucket));
            }
            match cursor.entry_bucket + 1 < ENTRY_BUCKETS {
                true if is_last => cursor = Cursor { entry_bucket: cursor.entry_bucket + 1, after: None },
                false if is_last => return Ok(EntryPage { entries, next_cursor: None, seq }),
                _ => {}
            }
        }
        Ok(EntryPage { entries, next_cursor: Some(cursor.text()), seq })
    }

    /// What follows a cursor in its entry bucket: key, bucket, rows.
    async fn entry_page(
        &self,
        index: &Watched,
        cursor: &Cursor,
        rows: usize,
    ) -> Result<Vec<(Vec<u8>, i64, i64)>, SqlError> {
        let group = self.schema().group_of_entries(&index.definition.entries);
        let policy = self.routing.current();
        let entry_bucket = BucketId(cursor.entry_bucket);
        let unknown = || SqlError::new("XX000", "entries of indexes are not routed");
        let owner = policy.shard_of_bucket(&group, entry_bucket).ok_or_else(unknown)?;
        let open = self.shards.get(owner).await.map_err(|error| error.for_people())?;
        let mut range = KeyRange::table(&index.definition.entries).within(Scope::bucket(group.clone(), entry_bucket));
        let place = entry_place(cursor.entry_bucket);
        let after = cursor.after.clone().unwrap_or((Vec::new(), -1));
        range.after = Some(vec![Value::Int(place), Value::Bytes(after.0), Value::Int(after.1)]);
        range.through = Some(vec![Value::Int(place + 1), Value::Bytes(Vec::new()), Value::Int(-1)]);
        let mut snapshot = open.snapshot().await.map_err(|error| error.for_people())?;
        let page = snapshot.page(&range, rows).await.map_err(|error| error.for_people())?;
        let entry = |row: &isles_engine::shard::StoredRow| match StoredEntry::read(&row.values) {
            Some(StoredEntry::Count { key, bucket, rows }) => Ok((key.to_vec(), bucket, rows)),
            _ => Err(SqlError::new("XX001", "an entry of an index is not what it should be")),
        };
        page.rows.iter().map(entry).collect()
    }

    fn check_shard(&self, shard: &ShardId) -> Result<(), SqlError> {
        match self.shard_names().contains(shard) {
            true => Ok(()),
            false => {
                let error = SqlError::new("42704", format!("there is no shard {shard}"));
                Err(error.with_hint("SHOW SHARDS lists the shards"))
            }
        }
    }

    /// Changes entries as far as the rows agree. Nothing is changed if any of it is about what there is not.
    pub async fn maintain_entries(&self, changes: &[EntryChange]) -> Result<Vec<EntryOutcome>, SqlError> {
        let mut groups: BTreeMap<(String, ShardId), Vec<Hint>> = BTreeMap::new();
        for (at, change) in changes.iter().enumerate() {
            let named = |error: SqlError| SqlError { message: format!("changes[{at}]: {}", error.message), ..error };
            let index = self.index_named(&change.index_name).map_err(named)?;
            self.check_shard(&change.shard).map_err(named)?;
            let key = self.key_of(&index, &change.key_value).map_err(named)?;
            groups.entry((change.index_name.clone(), change.shard.clone())).or_default().push((at, key));
        }
        let mut outcomes = vec![EntryOutcome::Unknown; changes.len()];
        for ((name, shard), wanted) in groups {
            let index = self.index_named(&name)?;
            let standing = self.stand(&index).await?;
            let wanted = self.fresh(&index, &shard, (changes, wanted), &mut outcomes).await?;
            self.maintain_shard(&index, &standing, &shard, (changes, wanted), &mut outcomes).await?;
        }
        Ok(outcomes)
    }

    /// Whether an index is over one column, of texts.
    fn is_over_a_text(&self, index: &Watched) -> bool {
        let schema = self.schema();
        let Some(table) = schema.tables.get(&index.definition.table) else { return false };
        let key = table.global_keys().find(|key| key.global.as_deref() == Some(&*index.definition.entries));
        let column = key.and_then(|key| match (key.parts.as_slice(), key.columns.as_slice()) {
            ([], [name]) => table.position(name),
            ([KeyPart { over: KeyOver::Column(name), .. }], _) => table.position(name),
            _ => None,
        });
        column.is_some_and(|at| table.columns[at].ty == DataType::Text)
    }

    /// The key that a text stands for.
    fn key_of(&self, index: &Watched, text: &str) -> Result<Vec<u8>, SqlError> {
        let definition = &index.definition;
        let is_text = self.is_over_a_text(index);
        match (text.strip_prefix(BYTES), is_text) {
            (None, true) => {
                let value = Value::text(text);
                let key = IndexKey::of([Part { value: &value, padded: definition.is_padded(0) }]);
                key.map(|key| key.0).map_err(|error| SqlError::new("0A000", error.to_string()))
            }
            (bytes, _) => unhex(bytes.unwrap_or(text)).filter(|key| !key.is_empty()).ok_or_else(|| {
                let error = SqlError::new("22023", "field \"key_value\": it is not the bytes of a key in hex");
                error.with_hint("the entries of the index show keys; a text is a key of an index over one text column")
            }),
        }
    }

    /// Those of a shard's changes that are neither stale nor of a time to come.
    async fn fresh(
        &self,
        index: &Watched,
        shard: &ShardId,
        (changes, mut wanted): (&[EntryChange], Vec<Hint>),
        outcomes: &mut [EntryOutcome],
    ) -> Result<Vec<Hint>, SqlError> {
        let open = self.shards.get(shard).await.map_err(|error| error.for_people())?;
        let end = open.seq().await.map_err(|error| error.for_people())?;
        // Positions pass without any change of the table, too: on PostgreSQL every transaction takes some.
        let last = index.last_change(shard);
        wanted.retain(|(at, _)| {
            let seq = changes[*at].seq;
            if seq < last {
                outcomes[*at] = EntryOutcome::Stale;
            }
            last <= seq && seq <= end
        });
        Ok(wanted)
    }

    /// Asks the rows of a shard about some keys, and puts their entries right where the changes say the same.
    async fn maintain_shard(
        &self,
        index: &Arc<Watched>,
        standing: &Standing<'_>,
        shard: &ShardId,
        (changes, wanted): (&[EntryChange], Vec<Hint>),
        outcomes: &mut [EntryOutcome],
    ) -> Result<(), SqlError> {
        if wanted.is_empty() {
            return Ok(());
        }
        let keys = wanted.iter().map(|(_, key)| key.clone()).collect();
        let piece = Piece { keys: Some(keys), ..self.piece_of(index, shard) };
        let compared = self.compare(standing, &piece).await.map_err(cut)?;
        let mut wrong = by_key(compared.differences());
        let has_rows = keys_of(&compared);
        let mut mended = Vec::new();
        for (at, key) in wanted {
            let agrees = has_rows.contains(&key) == (changes[at].operation == EntryOperation::Add);
            outcomes[at] = match (agrees, wrong.remove(&key)) {
                (true, Some(differences)) => {
                    mended.extend(differences);
                    EntryOutcome::Applied
                }
                (true, None) => EntryOutcome::Already,
                (false, left) => {
                    wrong.extend(left.map(|left| (key, left)));
                    EntryOutcome::Refused
                }
            };
        }
        self.mend(standing, shard, mended).await.map(drop)
    }
}

fn by_key(differences: Vec<Difference>) -> BTreeMap<Vec<u8>, Vec<Difference>> {
    let mut by_key: BTreeMap<Vec<u8>, Vec<Difference>> = BTreeMap::new();
    for difference in differences {
        by_key.entry(difference.key.clone()).or_default().push(difference);
    }
    by_key
}

/// Keys that rows have.
fn keys_of(compared: &Compared) -> BTreeSet<Vec<u8>> {
    compared.should.keys().map(|(_, key, _)| key.clone()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cursor_is_read_as_it_is_written() {
        for (text, valid) in [
            ("0", true),
            ("63", true),
            ("64", false),
            ("5.7.00ff", true),
            ("5.7", false),
            ("5.7.0", false),
            ("x", false),
        ] {
            let cursor = Cursor::parse(text);
            assert_eq!(cursor.map(|cursor| cursor.text()), valid.then(|| text.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_change_is_named() {
        let change = || json!({"operation": "add", "index_name": "i", "key_value": "k", "shard_id": 0, "seq": 1});
        assert_eq!(EntryChange::from_json(json!({"changes": [change()]})).unwrap().len(), 1);
        for (field, value) in [
            ("operation", json!("replace")),
            ("index_name", json!(1)),
            ("key_value", json!(1)),
            ("shard_id", json!(-1)),
            ("seq", json!(-1)),
            ("seq", json!("1")),
            ("more", json!(1)),
        ] {
            let mut wrong = change();
            wrong[field] = value;
            let error = EntryChange::from_json(json!({"changes": [change(), wrong]})).unwrap_err();
            assert!(error.message.contains(&format!("changes[1]: field \"{field}\"")), "{}", error.message);
        }
        for batch in [json!({}), json!([]), json!({"changes": []}), json!({"changes": [change()], "x": 1})] {
            assert!(EntryChange::from_json(batch.clone()).is_err(), "{batch}");
        }
    }
}
