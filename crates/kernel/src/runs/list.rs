//! Entries of many index shards, as one ordered list.
//!
//! Each index shard gives its entries in the order of the list, the latest first. They are merged by a heap of the
//! shards' heads. An entry that another place knows in a later version is left out: the later one is in the list by
//! itself, at its own place. So a filter that a stale copy passes is decided by the latest copy.

use super::status::Status;
use std::cmp::Ordering;
use std::collections::HashMap;

/// Entries of one page.
pub const LIMITS: std::ops::RangeInclusive<usize> = 1..=1_000;
/// Entries of a page when not said.
pub const DEFAULT_LIMIT: usize = 50;

/// A limit that is not allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a limit is a whole number from 1 to 1000, not {0}")]
pub struct BadLimit(pub i64);

pub fn check_limit(limit: Option<i64>) -> Result<usize, BadLimit> {
    let Some(limit) = limit else { return Ok(DEFAULT_LIMIT) };
    usize::try_from(limit).ok().filter(|limit| LIMITS.contains(limit)).ok_or(BadLimit(limit))
}

/// What a list is ordered by, the latest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    #[default]
    Updated,
    Created,
}

impl Order {
    pub fn as_str(self) -> &'static str {
        match self {
            Order::Updated => "updated",
            Order::Created => "created",
        }
    }

    pub fn parse(text: &str) -> Option<Order> {
        [Order::Updated, Order::Created].into_iter().find(|order| order.as_str() == text)
    }
}

/// What the index knows of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The index shard that it was found in.
    pub place: String,
    pub kind: String,
    pub id: String,
    pub status: Status,
    pub created_at: i64,
    pub updated_at: i64,
    /// Rises with each change of the run; of two entries the one with the larger version counts, whatever clocks say.
    pub version: i64,
    /// Searchable attributes, as a JSON object.
    pub attributes: String,
}

impl Entry {
    /// Where it stands in a list.
    pub fn at(&self, order: Order) -> Cursor {
        Cursor { order, time: self.time(order), kind: self.kind.clone(), id: self.id.clone() }
    }

    fn time(&self, order: Order) -> i64 {
        match order {
            Order::Updated => self.updated_at,
            Order::Created => self.created_at,
        }
    }

    fn key(&self, order: Order) -> Key<'_> {
        Key { time: self.time(order), kind: &self.kind, id: &self.id }
    }
}

/// What a list is in the order of.
#[derive(Clone, Copy)]
struct Key<'a> {
    time: i64,
    kind: &'a str,
    id: &'a str,
}

impl Key<'_> {
    /// Later times first; equal ones by type and id.
    fn compare(&self, other: &Key<'_>) -> Ordering {
        other.time.cmp(&self.time).then_with(|| self.kind.cmp(other.kind)).then_with(|| self.id.cmp(other.id))
    }
}

/// A place in a list: after this entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    pub order: Order,
    pub time: i64,
    pub kind: String,
    pub id: String,
}

impl Cursor {
    pub fn compare(&self, other: &Cursor) -> Ordering {
        self.key().compare(&other.key())
    }

    fn key(&self) -> Key<'_> {
        Key { time: self.time, kind: &self.kind, id: &self.id }
    }

    /// A text for clients, who give it back as it is.
    pub fn encode(&self) -> String {
        let text = format!("1/{}/{}/{}:{}/{}", self.order.as_str(), self.time, self.kind.len(), self.kind, self.id);
        text.bytes().map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn decode(text: &str) -> Option<Cursor> {
        if !text.is_ascii() || !text.len().is_multiple_of(2) || text.len() > MAX_CURSOR_CHARS {
            return None;
        }
        let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
        let text = String::from_utf8(bytes?).ok()?;
        let mut parts = text.splitn(4, '/');
        if parts.next()? != "1" {
            return None;
        }
        let order = Order::parse(parts.next()?)?;
        let time = parts.next()?.parse().ok()?;
        let (length, rest) = parts.next()?.split_once(':')?;
        let kind = rest.get(..length.parse().ok()?)?;
        let id = rest.get(kind.len()..)?.strip_prefix('/')?;
        Some(Cursor { order, time, kind: kind.into(), id: id.into() })
    }
}

/// The longest id of four bytes a character, the type, numbers, and all of it in two digits a byte.
const MAX_CURSOR_CHARS: usize = 2 * (4 * super::names::MAX_ID_CHARS + 200);

/// What one index shard gave: entries in order, and whether there may be more after them.
#[derive(Debug, Clone, Default)]
pub struct Part {
    pub entries: Vec<Entry>,
    pub is_last: bool,
}

/// A page that was merged.
#[derive(Debug, Clone, Default)]
pub struct Merged {
    pub entries: Vec<Entry>,
    /// Up to here every index shard has been read; None if all are at their end.
    pub next: Option<Cursor>,
}

/// Merges what index shards gave into at most `limit` entries. An entry is left out if `is_stale` says so, or if a later
/// version of it is among them. Where a shard's entries run out and it may have more, the page ends.
pub fn merge(parts: Vec<Part>, order: Order, limit: usize, is_stale: impl Fn(&Entry) -> bool) -> Merged {
    let ends = parts.iter().filter(|part| !part.is_last).filter_map(|part| part.entries.last());
    // Beyond the first end of a part that goes on, something may be missing.
    let horizon = ends.min_by(|a, b| a.key(order).compare(&b.key(order))).map(|entry| entry.at(order));
    let mut all: Vec<Entry> = parts.into_iter().flat_map(|part| part.entries).collect();
    all.sort_by(|a, b| a.key(order).compare(&b.key(order)).then_with(|| b.version.cmp(&a.version)));
    let mut latest: HashMap<(&str, &str), i64> = HashMap::with_capacity(all.len());
    for entry in &all {
        let known = latest.entry((&entry.kind, &entry.id)).or_insert(entry.version);
        *known = entry.version.max(*known);
    }
    let (mut kept, mut next) = (Vec::with_capacity(limit.min(all.len())), None);
    for (at, entry) in all.iter().enumerate() {
        if horizon.as_ref().is_some_and(|horizon| entry.key(order).compare(&horizon.key()) == Ordering::Greater) {
            break;
        }
        if kept.len() == limit {
            next = kept.last().map(|last: &usize| all[*last].at(order));
            break;
        }
        // Two copies of one version are one.
        if let Some(version) = latest.get_mut(&(entry.kind.as_str(), entry.id.as_str()))
            && *version == entry.version
            && !is_stale(entry)
        {
            *version = i64::MIN;
            kept.push(at);
        }
    }
    drop(latest);
    let mut kept = kept.into_iter().peekable();
    let entries = all.into_iter().enumerate().filter(|(at, _)| kept.next_if_eq(at).is_some());
    Merged { entries: entries.map(|(_, entry)| entry).collect(), next: next.or(horizon) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry(place: u32, id: &str, time: i64, version: i64) -> Entry {
        Entry {
            place: format!("__index:p:{place}"),
            kind: "p".into(),
            id: id.into(),
            status: Status::Running,
            created_at: time,
            updated_at: time,
            version,
            attributes: "{}".into(),
        }
    }

    fn ids(merged: &Merged) -> Vec<&str> {
        merged.entries.iter().map(|entry| entry.id.as_str()).collect()
    }

    fn whole(entries: Vec<Entry>) -> Part {
        Part { entries, is_last: true }
    }

    /// A14: the newest come first, whichever shard has them.
    #[test]
    fn a14_the_newest_come_first() {
        let parts = vec![whole(vec![entry(0, "c", 9, 1), entry(0, "a", 3, 1)]), whole(vec![entry(1, "b", 5, 1)])];
        assert_eq!(ids(&merge(parts, Order::Updated, 2, |_| false)), ["c", "b"]);
    }

    /// A8, A9, A50: the larger version wins, also if its time is earlier.
    #[test]
    fn a09_versions_decide_and_not_clocks() {
        let parts = vec![whole(vec![entry(0, "a", 9, 1)]), whole(vec![entry(1, "a", 5, 2)])];
        let merged = merge(parts, Order::Updated, 10, |_| false);
        assert_eq!((merged.entries.len(), merged.entries[0].version), (1, 2));
    }

    /// A16: copies take no places of a page.
    #[test]
    fn a16_copies_take_no_places() {
        let copies = |place| whole(vec![entry(place, "a", 9, 1), entry(place, "b", 8, 1)]);
        assert_eq!(ids(&merge(vec![copies(0), copies(1)], Order::Updated, 2, |_| false)), ["a", "b"]);
    }

    #[test]
    fn a_page_ends_where_a_shard_may_have_more() {
        let more = Part { entries: vec![entry(0, "c", 9, 1), entry(0, "b", 7, 1)], is_last: false };
        let merged = merge(vec![more, whole(vec![entry(1, "a", 5, 1)])], Order::Updated, 10, |_| false);
        assert_eq!(ids(&merged), ["c", "b"]);
        assert_eq!(merged.next.unwrap().id, "b");
    }

    /// A18: limits are checked.
    #[test]
    fn a18_limits_are_checked() {
        assert_eq!(check_limit(None), Ok(DEFAULT_LIMIT));
        assert_eq!(check_limit(Some(1_000)), Ok(1_000));
        for bad in [0, -1, 1_001, 1_000_000, i64::MIN] {
            assert_eq!(check_limit(Some(bad)), Err(BadLimit(bad)));
        }
    }

    #[test]
    fn cursors_are_read_back_and_nothing_else_is() {
        for id in ["a", "b/c", "1:x", "日本 /"] {
            let cursor = Cursor { order: Order::Created, time: -5, kind: "p".into(), id: id.into() };
            assert_eq!(Cursor::decode(&cursor.encode()), Some(cursor));
        }
        for text in ["", "zz", "3", "31", "é", &"00".repeat(9_000)] {
            assert_eq!(Cursor::decode(text), None, "{text}");
        }
    }
}
