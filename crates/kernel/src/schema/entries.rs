//! Where the entries of a global index are.
//!
//! Each global index has a table of entries, sharded like any other: in a group of its own, by the first column of the
//! indexed key. So entries lie with the shards' engines, and what moves, copies, compares and counts rows does so with
//! entries. To clients these tables do not exist: they are in a namespace of ours.
//!
//! An entry says how many rows of a bucket have a key. The bucket is one of the *indexed* table's group, and not that
//! of the entry itself, which is in the hidden column.
//!
//!     _bucket  place  key                      bucket   rows
//!     12       13     encoded (`index::key`)   3        2        two rows of bucket 3 have this key
//!     12       0      source, see `index`      12       4711     this bucket of entries has what that shard's log says up to 4711
//!
//! The place comes first in the primary key, so the entries of an entry bucket lie together, and so do all positions: what
//! a page of a log changes is on few pages of the disk.

use super::{Column, Key, Schema, SchemaChange, Table, TableKind};
use crate::names::{BucketId, GroupName, RegionName};
use crate::placement::RegionRange;
use crate::value::DataType;

/// The namespace of all entries, and the name of their group.
pub const INDEX_NAMESPACE: &str = "_isles_index";
/// Buckets of entries: as many shards can share the work.
pub const ENTRY_BUCKETS: u32 = 64;

pub const ENTRY_PLACE: &str = "place";
pub const ENTRY_KEY: &str = "key";
pub const ENTRY_BUCKET: &str = "bucket";
pub const ENTRY_ROWS: &str = "rows";

/// The place of all positions.
pub const POSITIONS: i64 = 0;

/// The place of the entries of an entry bucket.
pub fn entry_place(entry_bucket: u32) -> i64 {
    i64::from(entry_bucket) + 1
}

/// The group of entries of tables whose buckets may be anywhere.
pub fn entry_group() -> GroupName {
    GroupName::new(INDEX_NAMESPACE).expect("a constant that is a name")
}

/// The group of entries of tables that are kept in a region. They hold values of its rows, and so they are kept there,
/// too (I-39).
fn regional_entry_group(region: &RegionName) -> Option<GroupName> {
    GroupName::new(format!("{INDEX_NAMESPACE}-{region}")).ok()
}

/// A table of entries that may be anywhere.
pub fn entries_table(name: &str) -> Table {
    entries_in(name, entry_group(), vec![])
}

fn entries_in(name: &str, group: GroupName, regions: Vec<RegionRange>) -> Table {
    let column = |name, ty| Column::new(name, ty).not_null();
    let columns = vec![
        column(ENTRY_PLACE, DataType::Int8),
        column(ENTRY_KEY, DataType::Bytes),
        column(ENTRY_BUCKET, DataType::Int8),
        column(ENTRY_ROWS, DataType::Int8),
    ];
    let kind = TableKind::Hash { group, shard_by: vec![ENTRY_KEY.into()], buckets: ENTRY_BUCKETS, regions };
    Table::new(name, kind, columns, &[ENTRY_PLACE, ENTRY_KEY, ENTRY_BUCKET])
}

impl Schema {
    /// What makes a global index besides its key: the table for its entries, and its name. None if the rows are kept in
    /// several regions: there is no place for what all of them have.
    pub fn new_entries(&self, of: &TableKind) -> Option<(String, Vec<SchemaChange>)> {
        let stem = self.version.next().0;
        let names = (0..).map(|n| match n {
            0 => format!("{INDEX_NAMESPACE}.{stem}"),
            n => format!("{INDEX_NAMESPACE}.{stem}_{n}"),
        });
        let name = names.into_iter().find(|name| !self.tables.contains_key(name)).expect("there is always another");
        let namespace = (!self.namespaces.contains(INDEX_NAMESPACE))
            .then(|| SchemaChange::CreateNamespace { namespace: INDEX_NAMESPACE.into() });
        let table = match of {
            TableKind::Hash { regions, .. } if !regions.is_empty() => {
                let [RegionRange { region, .. }] = regions.as_slice() else { return None };
                let all = RegionRange { region: region.clone(), first: BucketId(0), last: BucketId(ENTRY_BUCKETS - 1) };
                entries_in(&name, regional_entry_group(region)?, vec![all])
            }
            _ => entries_table(&name),
        };
        let table = SchemaChange::CreateTable(table);
        Some((name, namespace.into_iter().chain([table]).collect()))
    }

    /// The group of a table of entries.
    pub fn group_of_entries(&self, entries: &str) -> GroupName {
        self.tables.get(entries).and_then(Table::group).cloned().unwrap_or_else(entry_group)
    }

    /// All global indexes, with their tables.
    pub fn global_keys(&self) -> impl Iterator<Item = (&Table, &Key)> {
        self.tables.values().flat_map(|table| table.global_keys().map(move |key| (table, key)))
    }
}

impl Table {
    pub fn global_keys(&self) -> impl Iterator<Item = &Key> {
        self.keys.iter().filter(|key| key.global.is_some())
    }

    /// Whether it has the entries of an index, and is no client's.
    pub fn has_entries(&self) -> bool {
        self.namespace() == INDEX_NAMESPACE
    }
}
