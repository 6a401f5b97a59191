//! What changes of rows make of entries.
//!
//! A page of a shard's change log becomes a sum for each key and bucket: rows that came less rows that went. Sums do not
//! depend on order, and pages may be cut anywhere; that each change counts once is the work of positions. An entry bucket
//! has one for each shard whose log it follows ([`Source`]), and moves with it.

use super::key::{IndexKey, NO_KEY, NoOrder};
use crate::change::Change;
use crate::names::{BucketId, Seq, ShardId};
use crate::schema::{POSITIONS, entry_place};
use crate::value::Value;
use std::collections::BTreeMap;

/// A shard, as the entries' positions name it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source(Vec<u8>);

impl Source {
    /// Its change log.
    pub fn log(shard: &ShardId) -> Source {
        Source([&[NO_KEY], shard.as_str().as_bytes()].concat())
    }

    /// The key of its position, which is below the keys of all rows.
    pub fn key(&self) -> &[u8] {
        &self.0
    }

    /// The primary keys between which the positions of all entry buckets are.
    pub fn positions(&self) -> [Vec<Value>; 2] {
        [-1, i64::MAX].map(|bucket| vec![Value::Int(POSITIONS), Value::Bytes(self.0.clone()), Value::Int(bucket)])
    }

    /// The shard, if these are the bytes of a position's key.
    pub fn shard(key: &[u8]) -> Option<ShardId> {
        let name = key.strip_prefix(&[NO_KEY])?;
        ShardId::new(std::str::from_utf8(name).ok()?).ok()
    }
}

/// A row of a table of entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredEntry<'a> {
    /// The entry bucket has what a shard's log says up to here.
    Position { shard: ShardId, through: Seq },
    /// So many rows of a bucket have a key.
    Count { key: &'a [u8], bucket: i64, rows: i64 },
}

impl StoredEntry<'_> {
    /// None if these are not the values of such a row.
    pub fn read(values: &[Value]) -> Option<StoredEntry<'_>> {
        let [Value::Int(place), Value::Bytes(key), Value::Int(bucket), Value::Int(rows)] = values else { return None };
        Some(match *place {
            POSITIONS => {
                StoredEntry::Position { shard: Source::shard(key)?, through: Seq(u64::try_from(*rows).unwrap_or(0)) }
            }
            _ => StoredEntry::Count { key, bucket: *bucket, rows: *rows },
        })
    }

    /// The primary key of the row that has the count of a key and a bucket.
    pub fn key_of(key: &[u8], bucket: i64, entry_buckets: u32) -> Vec<Value> {
        let place = entry_place(IndexKey(key.to_vec()).entry_bucket(entry_buckets));
        vec![Value::Int(place), Value::Bytes(key.to_vec()), Value::Int(bucket)]
    }
}

/// Rows of a bucket with one key that have come, or gone if there are fewer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryDelta {
    pub key: Vec<u8>,
    pub bucket: BucketId,
    pub rows: i64,
}

/// Sums by entry bucket, key and bucket.
#[derive(Debug, Default)]
pub struct Deltas {
    sums: BTreeMap<u32, BTreeMap<(Vec<u8>, BucketId), i64>>,
}

impl Deltas {
    /// Counts what a change of a row of `bucket` does, for entry buckets that have not come so far yet. `key_of` gives a
    /// row's key, or none for a row that the index leaves out.
    pub fn add(
        &mut self,
        change: &Change,
        bucket: BucketId,
        entry_buckets: u32,
        key_of: impl Fn(&[Value]) -> Result<Option<IndexKey>, NoOrder>,
        has_come_to: impl Fn(u32) -> Seq,
    ) -> Result<(), NoOrder> {
        for (row, rows) in [(&change.before, -1), (&change.after, 1)] {
            let Some(key) = row.as_ref().map(|row| key_of(row)).transpose()?.flatten() else { continue };
            let entry_bucket = key.entry_bucket(entry_buckets);
            if change.seq > has_come_to(entry_bucket) {
                self.count(entry_bucket, key, bucket, rows);
            }
        }
        Ok(())
    }

    pub fn count(&mut self, entry_bucket: u32, key: IndexKey, bucket: BucketId, rows: i64) {
        *self.sums.entry(entry_bucket).or_default().entry((key.0, bucket)).or_default() += rows;
    }

    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// How many entries change.
    pub fn len(&self) -> usize {
        self.sums.values().map(BTreeMap::len).sum()
    }

    /// What each entry bucket gets. One whose sums are all zero gets nothing, and is here all the same: it has come further.
    pub fn into_parts(self) -> impl Iterator<Item = (u32, Vec<EntryDelta>)> {
        self.sums.into_iter().map(|(entry_bucket, sums)| {
            let changed = sums.into_iter().filter(|(_, rows)| *rows != 0);
            (entry_bucket, changed.map(|((key, bucket), rows)| EntryDelta { key, bucket, rows }).collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::Part;
    use super::*;
    use crate::change::Op;
    use crate::names::{GroupName, SchemaVersion, TxnId};
    use crate::schema::Unit;

    fn change(seq: u64, before: Option<&str>, after: Option<&str>) -> Change {
        let row = |text: &str| vec![Value::text(text)];
        Change {
            seq: Seq(seq),
            txn: TxnId(1),
            schema: SchemaVersion(1),
            table: "users".into(),
            unit: Unit::Bucket(GroupName::new("users").expect("a name"), BucketId(3)),
            op: Op::Update,
            key: vec![Value::Int(1)],
            before: before.map(row),
            after: after.map(row),
        }
    }

    fn key_of(row: &[Value]) -> Result<Option<IndexKey>, NoOrder> {
        IndexKey::of(row.iter().map(|value| Part { value, padded: false })).map(Some)
    }

    fn sums(changes: &[Change], come: u64) -> Vec<(Vec<u8>, i64)> {
        let mut deltas = Deltas::default();
        for change in changes {
            deltas.add(change, BucketId(3), 8, key_of, |_| Seq(come)).expect("texts have keys");
        }
        let mut all: Vec<(Vec<u8>, i64)> =
            deltas.into_parts().flat_map(|(_, part)| part).map(|delta| (delta.key, delta.rows)).collect();
        all.sort();
        all
    }

    fn text(text: &str) -> Vec<u8> {
        key_of(&[Value::text(text)]).expect("a key").expect("of a row").0
    }

    /// RUN 2: of two rows with one key, one goes, and the other stays in the index.
    #[test]
    fn duplicate_key_delete() {
        let came = [change(1, None, Some("us")), change(2, None, Some("us")), change(3, Some("us"), None)];
        assert_eq!(sums(&came, 0), [(text("us"), 1)]);
    }

    /// RUN 3: the new value of a column is counted, whatever the statement's condition was.
    #[test]
    fn update_by_indexed_column() {
        assert_eq!(sums(&[change(1, Some("a"), Some("b"))], 0), [(text("a"), -1), (text("b"), 1)]);
        assert_eq!(sums(&[change(1, Some("a"), Some("a"))], 0), [], "an update of other columns changes no entry");
    }

    /// I-23: each change counts once.
    #[test]
    fn what_an_entry_bucket_has_it_does_not_get_again() {
        let came = [change(1, None, Some("a")), change(2, None, Some("a")), change(3, None, Some("a"))];
        assert_eq!(sums(&came, 2), [(text("a"), 1)]);
        assert_eq!(sums(&came, 3), []);
    }

    #[test]
    fn a_position_is_told_from_a_key() {
        let shard = ShardId::new("s1").expect("a name");
        let source = Source::log(&shard);
        assert_eq!(Source::shard(source.key()), Some(shard));
        assert_eq!(Source::shard(&text("s1")), None);
        assert!(source.key() < text("").as_slice());
    }
}
