//! Entries of many index shards as one list, and counts.
//!
//! All index shards are asked at the same time, and those that are on one shard of the database in one request. Each is
//! asked for what a page is likely to need of it, and not for a page. One that cannot be reached does not hide the others,
//! and is named in the answer.
//!
//! While there are two counts of index shards, an entry may be found at two places: then the other places of each entry
//! that was found are asked for later versions of it, and one that is outdated is left out, whatever filter it has passed.
//! So filters are decided by the latest version.

use super::follow::is_tombstone;
use crate::engine::{Engine, Workflows};
use crate::error::{Code, Result, WorkflowError};
use crate::lines::{Reply, Said, int, params, text};
use isles_kernel::runs::list::{Cursor, Entry, Order, Part, check_limit, merge};
use isles_kernel::runs::status::Status;
use isles_kernel::value::Value;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
}

impl Listed {
    pub fn to_json(&self) -> Json {
        let entries: Vec<Json> = self.entries.iter().map(entry_json).collect();
        json!({
            "workflows": entries, "cursor": self.cursor,
            "incomplete": !self.failed_shards.is_empty(), "failedShards": self.failed_shards,
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

macro_rules! entries_where {
    ($condition:literal, $order:literal) => {
        concat!(
            "SELECT index_shard, type, id, status, created_at, updated_at, version, attributes FROM isles.run_index ",
            "WHERE index_shard = $1 AND ",
            $order,
            " <= $2 AND (",
            $order,
            " < $2 OR id > $3) AND ",
            $condition,
            " ORDER BY ",
            $order,
            " DESC, id LIMIT $4"
        )
    };
}

const BY_UPDATED: &str = entries_where!("status <> 'deleted'", "updated_at");
const BY_CREATED: &str = entries_where!("status <> 'deleted'", "created_at");
const BY_UPDATED_OF_STATUS: &str = entries_where!("status = $5", "updated_at");
const BY_CREATED_OF_STATUS: &str = entries_where!("status = $5", "created_at");
const VERSIONS: &str = "SELECT id, version FROM isles.run_index WHERE index_shard = $1 AND id = ANY($2)";
const COUNTS: &str = "SELECT status, count(*) FROM isles.run_index WHERE index_shard = $1 GROUP BY status";
const ENDED: &str =
    "SELECT id FROM isles.run_index WHERE index_shard = $1 AND status = $2 AND updated_at < $3 LIMIT 500";

fn read_entry(row: &[Value]) -> Option<Entry> {
    let status = text(row.get(3)?)?;
    if is_tombstone(status) {
        return None;
    }
    Some(Entry {
        place: text(row.first()?)?.into(),
        kind: text(row.get(1)?)?.into(),
        id: text(row.get(2)?)?.into(),
        status: status.parse().ok()?,
        created_at: int(row.get(4)?)?,
        updated_at: int(row.get(5)?)?,
        version: int(row.get(6)?)?,
        attributes: text(row.get(7)?)?.into(),
    })
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
        let shards = self.index_shards(filter.kind.as_deref())?;
        let mut after = filter.after()?;
        let (mut listed, mut failed) = (Listed::default(), BTreeSet::new());
        for _ in 0..ROUNDS {
            let want = limit - listed.entries.len();
            let fetch = if filter.attributes.is_empty() { share(want + 1, shards.len()) } else { 1_000 };
            let mut parts = self.engine.parts(&shards, filter, after.as_ref(), fetch, &mut failed).await;
            // An entry that goes home is put there before it is taken away here: whoever looked at its home too early, and
            // at its old place too late, finds it at home the second time.
            if self.is_moving(&shards) {
                parts.extend(self.engine.parts(&shards, filter, after.as_ref(), fetch, &mut failed).await);
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

    /// How many runs there are of each type and status, and which index shards could not be asked.
    pub async fn counts(&self, kind: Option<&str>) -> Result<(Vec<Count>, Vec<String>)> {
        let shards = self.index_shards(kind)?;
        let (mut counts, mut failed) = (BTreeMap::<(String, Status), i64>::new(), Vec::new());
        let asked =
            self.engine.lines.each(shards.iter().map(|(_, name)| (COUNTS, params![name.as_str()])).collect()).await;
        for ((kind, name), reply) in shards.into_iter().zip(asked) {
            let Ok(reply) = reply else {
                failed.push(name);
                continue;
            };
            for row in &reply.rows {
                let status = row.first().and_then(text).and_then(|status| status.parse().ok());
                if let (Some(status), Some(runs)) = (status, row.get(1).and_then(int)) {
                    *counts.entry((kind.clone(), status)).or_default() += runs;
                }
            }
        }
        let counts = counts.into_iter().map(|((kind, status), runs)| Count { kind, status, runs }).collect();
        Ok((counts, failed))
    }

    /// Compares the index with all runs, and puts right what differs. Returns how many entries were written.
    pub async fn reindex(&self) -> Result<u64> {
        super::follow::mend(&self.engine).await
    }

    /// Whether entries of some of these types may be at other places than their homes.
    fn is_moving(&self, shards: &[(String, String)]) -> bool {
        shards.iter().any(|(kind, _)| self.engine.spread(kind).is_ok_and(|spread| !spread.is_settled()))
    }

    /// Index shards, with their types.
    fn index_shards(&self, kind: Option<&str>) -> Result<Vec<(String, String)>> {
        let spreads = match kind {
            Some(kind) => [(kind.to_owned(), self.engine.spread(kind)?)].into(),
            None => self.engine.spreads(),
        };
        let named = |kind: String, names: Vec<String>| names.into_iter().map(move |name| (kind.clone(), name));
        Ok(spreads.into_iter().flat_map(|(kind, spread)| named(kind.clone(), spread.all(&kind))).collect())
    }

    /// Ids of runs that have ended before a time, some of them.
    pub(crate) async fn ended_before(&self, kind: &str, before: i64) -> Result<Vec<String>> {
        let mut ids = BTreeSet::new();
        for (_, name) in self.index_shards(Some(kind))? {
            for status in Status::ALL.into_iter().filter(|status| status.is_terminal()) {
                let reply = self.engine.lines.one(ENDED, params![name.as_str(), status.as_str(), before]).await?;
                ids.extend(reply.rows.iter().filter_map(|row| text(row.first()?).map(str::to_owned)));
            }
        }
        Ok(ids.into_iter().collect())
    }
}

impl Engine {
    /// What each index shard has after a place in the list.
    async fn parts(
        self: &Arc<Self>,
        shards: &[(String, String)],
        filter: &Filter,
        after: Option<&Cursor>,
        fetch: usize,
        failed: &mut BTreeSet<String>,
    ) -> Vec<Part> {
        let asked = self
            .lines
            .each(shards.iter().map(|(kind, name)| part_of(kind, name, filter, after, fetch)).collect())
            .await;
        let mut parts = Vec::new();
        for ((_, name), reply) in shards.iter().zip(asked) {
            match reply.map_err(WorkflowError::of_sql).and_then(|reply| read_part(name, &reply, fetch)) {
                Ok(part) => parts.push(part),
                Err(error) => {
                    tracing::warn!(index_shard = name, %error, "an index shard cannot be asked");
                    failed.insert(name.clone());
                }
            }
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

/// How many of so many entries one of the index shards is asked for. Ids are hashed over them, so hardly ever does one
/// have more than three deviations above its share; then the page takes another round.
fn share(want: usize, shards: usize) -> usize {
    let mean = want as f64 / shards.max(1) as f64;
    want.min((mean + 3.0 * mean.sqrt()).ceil() as usize + 1)
}

/// What is asked of an index shard.
fn part_of(kind: &str, name: &str, filter: &Filter, after: Option<&Cursor>, fetch: usize) -> Said {
    // Among equal times the list goes by type and then by id: of an earlier type there is nothing left, of a later one
    // everything.
    let (time, id) = match after {
        None => (i64::MAX, String::new()),
        Some(after) => match after.kind.as_str().cmp(kind) {
            std::cmp::Ordering::Equal => (after.time, after.id.clone()),
            std::cmp::Ordering::Less => (after.time, String::new()),
            std::cmp::Ordering::Greater => (after.time.saturating_sub(1), String::new()),
        },
    };
    let mut params = params![name, time, id, fetch as i64];
    let sql = match (filter.order, filter.status) {
        (Order::Updated, None) => BY_UPDATED,
        (Order::Created, None) => BY_CREATED,
        (Order::Updated, Some(_)) => BY_UPDATED_OF_STATUS,
        (Order::Created, Some(_)) => BY_CREATED_OF_STATUS,
    };
    params.extend(filter.status.map(|status| Value::Text(status.as_str().into())));
    (sql, params)
}

/// What an index shard gave.
fn read_part(name: &str, reply: &Reply, fetch: usize) -> Result<Part> {
    let rows = &reply.rows;
    let entries: Vec<Entry> = rows.iter().filter_map(|row| read_entry(row)).collect();
    match entries.len() == rows.len() {
        true => Ok(Part { entries, is_last: rows.len() < fetch }),
        false => {
            let message = format!("index shard {name} has an entry that cannot be read");
            Err(WorkflowError::new(Code::InternalError, message))
        }
    }
}
