//! Entries of the outbox, and the pages in which a replica gets them and its first rows.

use super::names::{
    Cursor, EntryId, PartitionId, RequestId, RowKey, RowVersion, SnapshotToken, SyncNameError, Values, Version,
};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// The most changed rows of one transaction: its entry is read and applied whole.
pub const MAX_ENTRY_MUTATIONS: usize = 10_000;
/// The largest entry, as JSON. A transaction that would make a larger one is refused by the server.
pub const MAX_ENTRY_BYTES: usize = 4 << 20;
/// The most entries of a page, whatever the client asks for.
pub const MAX_PAGE_ENTRIES: u32 = 500;
/// The most rows of a page of a snapshot.
pub const MAX_PAGE_ROWS: u32 = 1_000;
/// A server ends a page before the entry or row that would make it larger than this, but it always has one.
pub const MAX_PAGE_BYTES: usize = 1 << 20;
/// The longest wait for something new: below the idle limits of common proxies.
pub const MAX_WAIT_MS: u64 = 25_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Puts a row, whatever was there. Its values are the whole row.
    Create,
    /// Changes columns of a row. Its values are those that changed, or more.
    Update,
    /// Removes a row. It has no values.
    Delete,
}

/// One row's change. References are external ids of the same partition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mutation {
    pub op: Op,
    #[serde(flatten)]
    pub key: RowKey,
    /// The row's version after the change; for a delete, its last one.
    pub version: RowVersion,
    #[serde(default, skip_serializing_if = "Values::is_empty")]
    pub values: Values,
}

/// One committed transaction of a partition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub version: Version,
    pub id: EntryId,
    /// The entry before this one; none for the first.
    pub prev: Option<EntryId>,
    /// When it was committed, in milliseconds since 1970, by the server's clock. For people: nothing is ordered by it.
    #[serde(rename = "at")]
    pub at_ms: u64,
    /// The submitted request that made it, if one did.
    #[serde(rename = "requestId", default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    pub mutations: Vec<Mutation>,
}

impl Entry {
    /// Where a replica is once it has applied this entry. None for a version of 0, which no entry has.
    pub fn cursor(&self) -> Option<Cursor> {
        Cursor::at(self.version, self.id).ok()
    }

    /// Whether this is the very next entry after `cursor`, by number and by id.
    pub fn follows(&self, cursor: Cursor) -> bool {
        self.version == cursor.version().next() && self.prev == cursor.entry()
    }
}

/// Why a page is not a piece of one log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("entry {version} does not follow {after}: the log has begun anew, or it is another one")]
    NotNext { version: Version, after: Cursor },
    #[error("the log ends at {head}, before {after}: it has begun anew, or something of it was lost")]
    Behind { head: Cursor, after: Cursor },
    #[error("the page says that it ends at {next}, and its entries end at {end}")]
    WrongEnd { next: Cursor, end: Cursor },
    #[error("an entry has at most {MAX_ENTRY_MUTATIONS} mutations, entry {version} has {count}")]
    TooManyMutations { version: Version, count: usize },
}

/// Entries after a cursor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutboxPage {
    pub partition: PartitionId,
    pub entries: Vec<Entry>,
    /// Where to read on: at the last entry, or the cursor that was asked with.
    pub next: Cursor,
    /// The newest entry there was when the page was read. There is more while `next` is before it.
    pub head: Cursor,
    /// The lowest version from which the log can be read.
    pub floor: Version,
}

impl OutboxPage {
    pub fn has_more(&self) -> bool {
        self.next.version() < self.head.version()
    }

    /// Checks that the page continues the log at `after`, without a gap, and that it ends where it says.
    pub fn check(&self, after: Cursor) -> Result<(), Broken> {
        let mut end = after;
        for entry in &self.entries {
            let next = entry.cursor().filter(|_| entry.follows(end));
            end = next.ok_or(Broken::NotNext { version: entry.version, after: end })?;
            if entry.mutations.len() > MAX_ENTRY_MUTATIONS {
                return Err(Broken::TooManyMutations { version: entry.version, count: entry.mutations.len() });
            }
        }
        if self.next != end {
            return Err(Broken::WrongEnd { next: self.next, end });
        }
        let same_place = self.head.version() == end.version();
        if self.head.version() < end.version() || (same_place && self.head != end) {
            return Err(Broken::Behind { head: self.head, after: end });
        }
        Ok(())
    }
}

/// What a client asks of the outbox; the query of its URL.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutboxQuery {
    /// The beginning if there is none.
    #[serde(default)]
    pub after: Option<Cursor>,
    /// At most [`MAX_PAGE_ENTRIES`], which is also the default.
    #[serde(default)]
    pub limit: Option<u32>,
    /// How long to wait for an entry if there is none; at most [`MAX_WAIT_MS`], and not at all by default.
    #[serde(default)]
    pub wait_ms: Option<u64>,
    /// The partition that the client has rows of; another one is 409.
    #[serde(default)]
    pub partition: Option<PartitionId>,
}

impl OutboxQuery {
    /// The query as text. None of its values needs an escape.
    pub fn text(&self) -> String {
        let mut text = format!("after={}", self.after.unwrap_or(Cursor::START));
        push(&mut text, "limit", self.limit);
        push(&mut text, "wait_ms", self.wait_ms);
        push(&mut text, "partition", self.partition.as_ref());
        text
    }

    /// The limit that counts: 1 to [`MAX_PAGE_ENTRIES`].
    pub fn entries(&self) -> u32 {
        self.limit.unwrap_or(MAX_PAGE_ENTRIES).clamp(1, MAX_PAGE_ENTRIES)
    }

    pub fn wait(&self) -> u64 {
        self.wait_ms.unwrap_or(0).min(MAX_WAIT_MS)
    }
}

fn push(text: &mut String, name: &str, value: Option<impl std::fmt::Display>) {
    if let Some(value) = value {
        if !text.is_empty() {
            text.push('&');
        }
        // Writing to a String does not fail.
        let _ = write!(text, "{name}={value}");
    }
}

/// What a client asks for a page of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotQuery {
    /// The first page if there is none.
    #[serde(default)]
    pub after: Option<SnapshotToken>,
    /// At most [`MAX_PAGE_ROWS`], which is also the default.
    #[serde(default)]
    pub limit: Option<u32>,
    #[serde(default)]
    pub partition: Option<PartitionId>,
}

impl SnapshotQuery {
    pub fn text(&self) -> String {
        let mut text = String::new();
        push(&mut text, "after", self.after.as_ref());
        push(&mut text, "limit", self.limit);
        push(&mut text, "partition", self.partition.as_ref());
        text
    }

    pub fn rows(&self) -> u32 {
        self.limit.unwrap_or(MAX_PAGE_ROWS).clamp(1, MAX_PAGE_ROWS)
    }
}

/// A row as a snapshot has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SnapshotRow {
    #[serde(flatten)]
    pub key: RowKey,
    pub version: RowVersion,
    pub values: Values,
}

/// Rows of a partition in order of their keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SnapshotPage {
    pub partition: PartitionId,
    /// The newest entry there was when this page was read, in the same transaction.
    pub cursor: Cursor,
    pub rows: Vec<SnapshotRow>,
    /// None on the last page.
    pub next: Option<SnapshotToken>,
}

impl Mutation {
    /// A change that a program makes; the wire's own are checked when they are read.
    pub fn new(op: Op, key: RowKey, version: RowVersion, values: Values) -> Result<Mutation, SyncNameError> {
        key.check()?;
        Ok(Mutation { op, key, version, values })
    }
}
