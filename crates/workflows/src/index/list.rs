//! Entries of many index shards as one list, and counts.
//!
//!     list ─► neighbours ── one statement each, all at the same time ──► parts ─► merge ─► page
//!
//! Neighbours are the index shards of one type that are on one shard of the database. An index that is led by the type has
//! their entries in the order of the list, so one statement reads what a page is likely to need of them, and nothing else:
//! a list takes the same however many index shards there are. What cannot be reached does not hide the others, and is
//! named in the answer.
//!
//! While there are two counts of index shards, an entry may be found at two places: then the other places of each entry
//! that was found are asked for later versions of it, and one that is outdated is left out, whatever filter it has passed.
//! So filters are decided by the latest version.

use super::mend::Mended;
use crate::engine::{Engine, Workflows};
use crate::error::{Result, WorkflowError};
use crate::lines::{Reply, Said, int, params, text};
use crate::tables::INDEX_GROUP;
use isles_kernel::names::{GroupName, ShardId};
use isles_kernel::runs::list::{Cursor, Entry, Order, Part, check_limit, merge};
use isles_kernel::runs::places::Spread;
use isles_kernel::runs::status::Status;
use isles_kernel::value::Value;
use serde_json::{Value as Json, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Rounds of one list: with a filter on attributes that hardly any run passes, a page may be short.
const ROUNDS: usize = 20;

/// What a list has.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// All types, if not said.
    pub kind: Option<String>,
    pub status: Option<Status>,
    /// Attributes that a run must have, with these values.
    pub attributes: BTreeMap<String, Json>,
    pub order: Order,
    /// 1 to 1000; 50 if not said.
    pub limit: Option<i64>,
    /// From an earlier answer.
    pub cursor: Option<String>,
}

/// A page of a list.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    pub entries: Vec<Entry>,
    /// Where the next page begins; none at the end.
    pub cursor: Option<String>,
    /// Index shards that could not be asked: runs of theirs are missing.
    pub failed_shards: Vec<String>,
    /// Of which moment the list is, in milliseconds since 1970: what runs did before it is there. None if that is not
    /// known of every shard.
    pub as_of: Option<i64>,
}

impl Listed {
    pub fn to_json(&self) -> Json {
        let entries: Vec<Json> = self.entries.iter().map(entry_json).collect();
        json!({
            "workflows": entries, "cursor": self.cursor,
            "incomplete": !self.failed_shards.is_empty(), "failedShards": self.failed_shards, "asOf": self.as_of,
        })
    }
}

fn entry_json(entry: &Entry) -> Json {
    let attributes: Json = serde_json::from_str(&entry.attributes).unwrap_or_else(|_| json!({}));
    json!({
        "type": entry.kind, "id": entry.id, "status": entry.status.as_str(), "createdAt": entry.created_at,
        "updatedAt": entry.updated_at, "version": entry.version, "attributes": attributes,
    })
}

/// Runs of one type and status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    pub kind: String,
    pub status: Status,
    pub runs: i64,
}

/// The statements of a list: for types whose entries have one place each, and for those whose entries may have several.
/// Of one time and id the latest version comes first then, so that a limit cuts off nothing but what is outdated.
struct Listing {
    settled: &'static str,
    moving: &'static str,
}

macro_rules! entries_where {
    ($condition:literal, $time:literal, $then:literal) => {
        concat!(
            "SELECT index_shard, id, status, created_at, updated_at, version, attributes FROM isles.run_index ",
            "WHERE type = $1 AND index_shard = ANY($2) AND ",
            $time,
            " <= $3 AND (",
            $time,
            " < $3 OR id > $4) AND ",
            $condition,
            " ORDER BY ",
            $time,
            " DESC NULLS LAST, id NULLS FIRST",
            $then,
            " LIMIT $5"
        )
    };
}

macro_rules! listing {
    ($condition:literal, $time:literal) => {
        Listing {
            settled: entries_where!($condition, $time, ""),
            moving: entries_where!($condition, $time, ", version DESC NULLS LAST"),
        }
    };
}

const BY_UPDATED: Listing = listing!("status <> 'deleted'", "updated_at");
const BY_CREATED: Listing = listing!("status <> 'deleted'", "created_at");
const BY_UPDATED_OF_STATUS: Listing = listing!("status = $6", "updated_at");
const BY_CREATED_OF_STATUS: Listing = listing!("status = $6", "created_at");
const VERSIONS: &str = "SELECT id, version FROM isles.run_index WHERE index_shard = $1 AND id = ANY($2)";
const COUNTS: &str = "SELECT status, count(*) FROM isles.run_index WHERE type = $1 AND index_shard = ANY($2) \
    GROUP BY status";
const STATES: &str = "SELECT id, version, status FROM isles.run_index WHERE index_shard = $1 AND id > $2 \
    ORDER BY id LIMIT $3";
/// Entries of one index shard that are read at once to be counted.
const STATES_AT_ONCE: i64 = 1_000;

/// Index shards of one type that are on one shard of the database, as far as is known.
#[derive(Debug, Clone)]
struct Neighbours {
    kind: String,
    names: Vec<String>,
    /// Which part of the entries of a page is likely to be theirs.
    part: f64,
    /// Whether an entry has one place only.
    is_settled: bool,
}

impl Neighbours {
    fn names(&self) -> Value {
        Value::Array(self.names.iter().cloned().map(Value::Text).collect())
    }

    /// What is asked of them.
    fn entries(&self, filter: &Filter, after: Option<&Cursor>, fetch: usize) -> Said {
        // Among equal times the list goes by type and then by id: of an earlier type there is nothing left, of a later one
        // everything.
        let (time, id) = match after {
            None => (i64::MAX, ""),
            Some(after) => match after.kind.as_str().cmp(&self.kind) {
                std::cmp::Ordering::Equal => (after.time, after.id.as_str()),
                std::cmp::Ordering::Less => (after.time, ""),
                std::cmp::Ordering::Greater => (after.time.saturating_sub(1), ""),
            },
        };
        let listing = match (filter.order, filter.status) {
            (Order::Updated, None) => BY_UPDATED,
            (Order::Created, None) => BY_CREATED,
            (Order::Updated, Some(_)) => BY_UPDATED_OF_STATUS,
            (Order::Created, Some(_)) => BY_CREATED_OF_STATUS,
        };
        let mut params = params![self.kind.as_str(), self.names(), time, id, fetch as i64];
        params.extend(filter.status.map(|status| Value::Text(status.as_str().into())));
        (if self.is_settled { listing.settled } else { listing.moving }, params)
    }

    /// The rest of them, if there is one.
    fn without(&self, some: &BTreeSet<String>) -> Option<Neighbours> {
        let names: Vec<String> = self.names.iter().filter(|name| !some.contains(*name)).cloned().collect();
        (!names.is_empty()).then(|| Neighbours { names, ..self.clone() })
    }

    /// How many entries they are asked for, of so many that a page may need. Ids are hashed over index shards, so how many
    /// of them are theirs is near their part, by so many deviations that about one page in thirty takes another round: what
    /// is asked for too much is read for every page.
    fn share(&self, want: usize) -> usize {
        let mean = want as f64 * self.part;
        let deviation = (mean * (1.0 - self.part)).max(0.0).sqrt();
        // The more neighbours there are, the more of them can be above.
        let deviations = (2.0 * (4.0 / self.part).ln()).max(0.0).sqrt();
        want.min((mean + deviations * deviation).ceil() as usize)
    }

    /// What they gave; or those of them that have an entry which cannot be read.
    fn read(&self, reply: Reply, fetch: usize) -> std::result::Result<Part, BTreeSet<String>> {
        let is_last = reply.rows.len() < fetch;
        let (mut entries, mut unreadable) = (Vec::with_capacity(reply.rows.len()), BTreeSet::new());
        for row in reply.rows {
            match read_entry(&self.kind, row) {
                Ok(entry) => entries.push(entry),
                Err(Some(place)) => drop(unreadable.insert(place)),
                Err(None) => unreadable.extend(self.names.iter().cloned()),
            }
        }
        if unreadable.is_empty() { Ok(Part { entries, is_last }) } else { Err(unreadable) }
    }
}

fn state(row: &[Value]) -> Option<(String, i64, String)> {
    Some((text(row.first()?)?.into(), int(row.get(1)?)?, text(row.get(2)?)?.into()))
}

/// An entry; or the index shard, if that can be told, in which one cannot be read.
fn read_entry(kind: &str, row: Vec<Value>) -> std::result::Result<Entry, Option<String>> {
    use Value::{Int, Text};
    let columns: Option<[Value; 7]> = row.try_into().ok();
    let Some([Text(place), Text(id), Text(status), Int(created_at), Int(updated_at), Int(version), Text(attributes)]) =
        columns
    else {
        return Err(None);
    };
    match status.parse() {
        Ok(status) => Ok(Entry { place, kind: kind.into(), id, status, created_at, updated_at, version, attributes }),
        Err(_) => Err(Some(place)),
    }
}

impl Filter {
    fn passes(&self, entry: &Entry) -> bool {
        if self.attributes.is_empty() {
            return true;
        }
        let has: Json = serde_json::from_str(&entry.attributes).unwrap_or(Json::Null);
        self.attributes.iter().all(|(name, value)| has.get(name) == Some(value))
    }

    fn after(&self) -> Result<Option<Cursor>> {
        let Some(text) = &self.cursor else { return Ok(None) };
        let cursor = Cursor::decode(text).filter(|cursor| cursor.order == self.order);
        let hint = "give back the cursor of the last page, with the same order";
        cursor.map(Some).ok_or_else(|| WorkflowError::invalid("this is no cursor of such a list").with_hint(hint))
    }
}

impl Workflows {
    /// Runs, the latest first.
    pub async fn list(&self, filter: &Filter) -> Result<Listed> {
        let limit = check_limit(filter.limit).map_err(|error| WorkflowError::invalid(error.to_string()))?;
        let all = self.engine.neighbours(filter.kind.as_deref())?;
        let is_moving = all.iter().any(|some| !some.is_settled);
        let mut after = filter.after()?;
        // Before anything is asked: what the index has by now, the list has.
        let as_of = self.engine.index_is_of();
        let (mut listed, mut failed) = (Listed { as_of, ..Listed::default() }, BTreeSet::new());
        for _ in 0..ROUNDS {
            let want = limit - listed.entries.len();
            let mut parts = self.engine.parts(&all, filter, after.as_ref(), want, &mut failed).await;
            // An entry that goes home is put there before it is taken away here: whoever looked at its home too early, and
            // at its old place too late, finds it at home the second time.
            if is_moving {
                parts.extend(self.engine.parts(&all, filter, after.as_ref(), want, &mut failed).await);
            }
            let outdated = self.engine.outdated(&parts, &mut failed).await;
            let is_outdated = |entry: &Entry| outdated.contains(&(entry.place.clone(), entry.id.clone()));
            let is_stale = |entry: &Entry| (!outdated.is_empty() && is_outdated(entry)) || !filter.passes(entry);
            let merged = merge(parts, filter.order, want, is_stale);
            listed.entries.extend(merged.entries);
            after = merged.next;
            if after.is_none() || listed.entries.len() == limit {
                break;
            }
        }
        listed.cursor = after.map(|cursor| cursor.encode());
        listed.failed_shards = failed.into_iter().collect();
        Ok(listed)
    }

    /// What one shard is asked for a page, for tests that look how it is carried out.
    #[doc(hidden)]
    pub fn statement_of_list(&self, filter: &Filter) -> Result<(&'static str, Vec<Value>)> {
        let all = self.engine.neighbours(filter.kind.as_deref())?;
        let first = all.first().ok_or_else(|| WorkflowError::invalid("there is no type"))?;
        Ok(first.entries(filter, filter.after()?.as_ref(), 50))
    }

    /// How many runs there are of each type and status, and which index shards could not be asked.
    pub async fn counts(&self, kind: Option<&str>) -> Result<(Vec<Count>, Vec<String>)> {
        let all = self.engine.neighbours(kind)?;
        let (mut counts, mut failed) = (BTreeMap::<(String, Status), i64>::new(), Vec::new());
        let (all, moving): (Vec<_>, Vec<_>) = all.into_iter().partition(|some| some.is_settled);
        self.engine.count_moving(&moving, &mut counts, &mut failed).await;
        let said = |some: &Neighbours| (COUNTS, params![some.kind.as_str(), some.names()]);
        let asked = self.engine.lines.each(all.iter().map(said).collect()).await;
        for (some, reply) in all.into_iter().zip(asked) {
            let Ok(reply) = reply else {
                failed.extend(some.names);
                continue;
            };
            for row in &reply.rows {
                let status = row.first().and_then(text).and_then(|status| status.parse().ok());
                if let (Some(status), Some(runs)) = (status, row.get(1).and_then(int)) {
                    *counts.entry((some.kind.clone(), status)).or_default() += runs;
                }
            }
        }
        failed.sort();
        let counts = counts.into_iter().map(|((kind, status), runs)| Count { kind, status, runs }).collect();
        Ok((counts, failed))
    }

    /// Compares the index with all runs, and puts right what differs: what is missing, what is of another version than the
    /// run, and what has no run.
    pub async fn reindex(&self) -> Result<Mended> {
        super::mend::mend(&self.engine).await
    }

    /// How many milliseconds the index is behind the runs, at most; None if that is not known of every shard.
    pub fn index_lag_ms(&self) -> Option<i64> {
        Some((self.engine.lines.now() - self.engine.index_is_of()?).max(0))
    }
}

/// The cursor of a list by `updated` that begins with what was last changed before a time.
pub(crate) fn before(kind: &str, time: i64) -> String {
    Cursor { order: Order::Updated, time: time.saturating_sub(1), kind: kind.into(), id: String::new() }.encode()
}

impl Engine {
    /// Counts runs of types whose entries may be at two places: all of them are read in the order of their ids, and the
    /// latest version of each is counted.
    async fn count_moving(
        &self,
        moving: &[Neighbours],
        counts: &mut BTreeMap<(String, Status), i64>,
        failed: &mut Vec<String>,
    ) {
        let kinds: BTreeSet<&str> = moving.iter().map(|some| some.kind.as_str()).collect();
        for kind in kinds {
            let mut places: Vec<&String> =
                moving.iter().filter(|some| some.kind == kind).flat_map(|some| &some.names).collect();
            let mut after = String::new();
            while !places.is_empty() {
                let asks = places.iter().map(|place| (STATES, params![place.as_str(), after.as_str(), STATES_AT_ONCE]));
                let answers = self.lines.each(asks.collect()).await;
                let (mut latest, mut horizon) = (BTreeMap::<String, (i64, String)>::new(), None::<String>);
                let mut asked = places.into_iter().zip(answers);
                places = Vec::new();
                for (place, answer) in &mut asked {
                    let Ok(reply) = answer else {
                        failed.push(place.clone());
                        continue;
                    };
                    let states: Vec<(String, i64, String)> = reply.rows.iter().filter_map(|row| state(row)).collect();
                    if states.len() as i64 >= STATES_AT_ONCE
                        && let Some((last, ..)) = states.last()
                    {
                        // Beyond it, this place may have more.
                        horizon = Some(horizon.map_or(last.clone(), |known| known.min(last.clone())));
                    }
                    places.push(place);
                    for (id, version, status) in states {
                        if latest.get(&id).is_none_or(|(known, _)| *known < version) {
                            latest.insert(id, (version, status));
                        }
                    }
                }
                let counted = latest.into_iter().filter(|(id, _)| horizon.as_ref().is_none_or(|end| id <= end));
                for (_, (_, status)) in counted {
                    if let Ok(status) = status.parse() {
                        *counts.entry((kind.to_owned(), status)).or_default() += 1;
                    }
                }
                match horizon {
                    Some(end) => after = end,
                    None => break,
                }
            }
        }
    }

    /// The index shards of a type, or of all, by the shards of the database that have them. One that moves before it is
    /// asked is found nevertheless: its neighbours' statement then goes to both shards.
    fn neighbours(&self, kind: Option<&str>) -> Result<Vec<Neighbours>> {
        let spreads = match kind {
            Some(kind) => [(kind.to_owned(), self.spread(kind)?)].into(),
            None => self.spreads(),
        };
        let group = GroupName::new(INDEX_GROUP).map_err(|_| WorkflowError::invalid("the index's group is no name"))?;
        let count: u32 = spreads.values().map(Spread::count).sum();
        let mut all = Vec::new();
        for (kind, spread) in spreads {
            let mut by_shard = BTreeMap::<Option<ShardId>, Vec<u32>>::new();
            for number in 0..spread.count() {
                let shard = self.lines.database().shard_of_key(&group, &spread.name(&kind, number));
                by_shard.entry(shard).or_default().push(number);
            }
            // Of types nothing is known: those with more index shards are taken to have more of a page.
            let of_type = f64::from(spread.count()) / f64::from(count);
            all.extend(by_shard.into_values().map(|numbers| Neighbours {
                names: numbers.iter().map(|number| spread.name(&kind, *number)).collect(),
                part: of_type * spread.part_in(&numbers),
                is_settled: spread.is_settled(),
                kind: kind.clone(),
            }));
        }
        Ok(all)
    }

    /// What the index shards have after a place in the list, as far as a page that lacks `want` entries may need it.
    async fn parts(
        &self,
        all: &[Neighbours],
        filter: &Filter,
        after: Option<&Cursor>,
        want: usize,
        failed: &mut BTreeSet<String>,
    ) -> Vec<Part> {
        // One more tells whether the page is the last.
        let fetch = |some: &Neighbours| if filter.attributes.is_empty() { some.share(want + 1) } else { 1_000 };
        let (mut parts, mut asked) = (Vec::with_capacity(all.len()), Cow::Borrowed(all));
        while !asked.is_empty() {
            let said = asked.iter().map(|some| some.entries(filter, after, fetch(some))).collect();
            let mut again = Vec::new();
            for (some, reply) in asked.iter().zip(self.lines.each(said).await) {
                let read = reply.map(|reply| some.read(reply, fetch(some)));
                let unreadable = match read {
                    Ok(Ok(part)) => {
                        parts.push(part);
                        continue;
                    }
                    Ok(Err(unreadable)) => unreadable,
                    Err(error) => {
                        tracing::warn!(index_shards = ?some.names, %error, "index shards cannot be asked");
                        some.names.iter().cloned().collect()
                    }
                };
                // The others are asked without them: what cannot be read hides nothing else.
                again.extend(some.without(&unreadable));
                failed.extend(unreadable);
            }
            asked = Cow::Owned(again);
        }
        parts
    }

    /// Entries of which another place has a later version: place and id.
    async fn outdated(&self, parts: &[Part], failed: &mut BTreeSet<String>) -> BTreeSet<(String, String)> {
        // By the place that may know better: ids, and where they were found in which version.
        let mut questions: BTreeMap<String, BTreeMap<String, Vec<(String, i64)>>> = BTreeMap::new();
        for entry in parts.iter().flat_map(|part| &part.entries) {
            let Some(spread) = self.spread(&entry.kind).ok().filter(|spread| !spread.is_settled()) else { continue };
            for other in spread.places(&entry.kind, &entry.id).into_iter().filter(|place| *place != entry.place) {
                let found = (entry.place.clone(), entry.version);
                questions.entry(other).or_default().entry(entry.id.clone()).or_default().push(found);
            }
        }
        let mut outdated = BTreeSet::new();
        let ids = |ids: &BTreeMap<String, _>| Value::Array(ids.keys().cloned().map(Value::Text).collect());
        let all = questions.iter().map(|(place, asked)| (VERSIONS, vec![Value::Text(place.clone()), ids(asked)]));
        let replies = self.lines.each(all.collect()).await;
        for ((place, ids), reply) in questions.into_iter().zip(replies) {
            match reply {
                Ok(reply) => {
                    for row in &reply.rows {
                        let (Some(id), Some(version)) = (row.first().and_then(text), row.get(1).and_then(int)) else {
                            continue;
                        };
                        let found = ids.get(id).into_iter().flatten();
                        outdated
                            .extend(found.filter(|(_, known)| *known < version).map(|(at, _)| (at.clone(), id.into())));
                    }
                }
                Err(_) => {
                    failed.insert(place);
                }
            }
        }
        outdated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(part: f64) -> Neighbours {
        Neighbours { kind: "p".into(), names: vec!["__index:p:0".into()], part, is_settled: true }
    }

    /// Whoever has all is asked for all and no more; whoever has a part for somewhat more than that, and at least for one.
    #[test]
    fn neighbours_are_asked_for_their_share() {
        assert_eq!(some(1.0).share(51), 51);
        assert_eq!(some(0.5).share(51), 33);
        assert_eq!(some(0.25).share(51), 21);
        assert_eq!(some(0.5).share(2), 2);
        assert_eq!(some(0.001).share(2), 1);
    }
}
