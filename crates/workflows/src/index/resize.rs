//! More or fewer index shards, while runs go on.
//!
//! A type is registered with the new count and the previous one. From then on entries are written where the new count says
//! and read from the union of both. [`Workflows::resize`] takes every entry home, those of finished runs too, and those
//! that earlier systems have left under other names; then it is recorded that the previous count may be forgotten. Until
//! then a registration that forgets it is refused, because runs would vanish from lists.

use super::follow::{Indexed, drop_copy, put, say_all};
use crate::commands::RemoteRetry;
use crate::engine::{Engine, Workflows};
use crate::error::{Code, Result, WorkflowError};
use crate::lines::{Said, int, params, text};
use crate::registry::{DEFAULT_RESULT_SIZE, Definition, Options};
use isles_kernel::runs::places::Spread;
use isles_kernel::value::Value;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Entries that are taken home at once.
const PAGE: i64 = 500;

const GET: &str = "SELECT shards, previous, legacy, settled, remote FROM isles.run_types WHERE type = $1";
const PUT: &str = "INSERT INTO isles.run_types (type, shards, previous, legacy, settled, remote, options) \
    VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (type) DO UPDATE SET shards = excluded.shards, \
    previous = excluded.previous, legacy = excluded.legacy, settled = excluded.settled, remote = excluded.remote, \
    options = excluded.options";
const SETTLE: &str = "UPDATE isles.run_types SET settled = true WHERE type = $1 AND shards = $2";
const REMOTE: &str = "SELECT type, shards, previous, legacy, options FROM isles.run_types WHERE remote ORDER BY type";
const AWAY: &str = "SELECT id, type, status, version, created_at, updated_at, attributes FROM isles.run_index \
    WHERE index_shard = $1 AND id > $2 ORDER BY id LIMIT $3";

/// How far a resize has come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resized {
    /// Entries that were looked at.
    pub seen: u64,
    /// Entries that were taken home.
    pub moved: u64,
    /// Whether `previous_shards` may be removed.
    pub may_remove_previous: bool,
}

struct Recorded {
    shards: i64,
    previous: Option<i64>,
    legacy: bool,
    settled: bool,
}

async fn recorded(engine: &Engine, kind: &str) -> Result<Option<Recorded>> {
    let reply = engine.lines.one(GET, params![kind]).await?;
    let is = |value: Option<&Value>| matches!(value, Some(Value::Bool(true)));
    Ok(reply.rows.first().and_then(|row| {
        Some(Recorded {
            shards: int(row.first()?)?,
            previous: row.get(1).and_then(int),
            legacy: is(row.get(2)),
            settled: is(row.get(3)),
        })
    }))
}

/// Reads the record: which types there are, also those that other processes execute, and how each is spread.
pub(crate) async fn learn(engine: &Engine) -> Result<()> {
    const TYPES: &str = "SELECT type, shards, previous, legacy FROM isles.run_types";
    let count = |value: &Value| int(value).and_then(|count| u32::try_from(count).ok());
    for row in engine.lines.one(TYPES, Vec::new()).await?.rows {
        let (Some(kind), Some(shards)) = (row.first().and_then(text), row.get(1).and_then(count)) else { continue };
        let legacy = matches!(row.get(3), Some(Value::Bool(true)));
        if let Ok(spread) = Spread::new(shards, row.get(2).and_then(count), legacy) {
            engine.learned(kind, spread);
        }
    }
    Ok(())
}

/// Checks a registration against what is recorded, and records it.
pub(crate) async fn record(engine: &Engine, definition: &Definition) -> Result<()> {
    let (kind, spread) = (definition.kind.as_str(), definition.spread);
    let known = recorded(engine, kind).await?;
    let settled = match &known {
        // Nothing was written under another count.
        None => !spread.is_legacy() && spread.previous().is_none(),
        Some(known) => check(kind, known, spread)?,
    };
    let options = json!({
        "events": definition.options.events.names().collect::<Vec<_>>(),
        "retention_ms": definition.options.retention.map(|time| time.as_millis() as u64),
        "result_size_limit": definition.options.result_size_limit,
        "retry": RemoteRetry::of(&definition.options.retry),
    });
    let params = params![
        kind,
        i64::from(spread.shards()),
        spread.previous().map(i64::from),
        spread.is_legacy(),
        settled,
        definition.is_remote(),
        options.to_string()
    ];
    engine.lines.one(PUT, params).await?;
    Ok(())
}

/// Whether every entry is at home, if the registration is allowed.
fn check(kind: &str, known: &Recorded, spread: Spread) -> Result<bool> {
    let (shards, previous) = (i64::from(spread.shards()), spread.previous().map(i64::from));
    let refused = |message: String, hint: String| Err(WorkflowError::new(Code::InvalidSchema, message).with_hint(hint));
    if known.shards == shards {
        let is_forgotten = (known.previous.is_some() && previous.is_none()) || (known.legacy && !spread.is_legacy());
        if is_forgotten && !known.settled {
            let message = format!("entries of \"{kind}\" are still where its previous index shards are");
            let hint = format!("keep previous_shards, and resize: isles runs resize {kind}");
            return refused(message, hint);
        }
        let is_new = (previous.is_some() && known.previous != previous) || (spread.is_legacy() && !known.legacy);
        return Ok(known.settled && !is_new);
    }
    if !known.settled && known.previous != Some(shards) {
        let message =
            format!("\"{kind}\" is being resized to {} index shards, and cannot become {shards}", known.shards);
        return refused(message, format!("let the resize end first: isles runs resize {kind}"));
    }
    if previous != Some(known.shards) {
        let message = format!("\"{kind}\" has {} index shards, and would have {shards}", known.shards);
        return refused(message, format!("say previous_shards: {}, so that its runs are found", known.shards));
    }
    Ok(false)
}

impl Workflows {
    /// Takes every entry of a type home, beside whatever else is done. When it returns, `previous_shards` may be removed.
    pub async fn resize(&self, kind: &str) -> Result<Resized> {
        learn(&self.engine).await?;
        let spread = self.engine.spread(kind)?;
        let mut resized = Resized::default();
        for name in spread.all(kind) {
            self.rehome(spread, &name, &mut resized).await?;
        }
        let settle = params![kind, i64::from(spread.shards())];
        self.engine.lines.one(SETTLE, settle).await?;
        resized.may_remove_previous = true;
        Ok(resized)
    }

    /// Takes home what one index shard has of others.
    async fn rehome(&self, spread: Spread, name: &str, resized: &mut Resized) -> Result<()> {
        let mut after = String::new();
        loop {
            let reply = self.engine.lines.one(AWAY, params![name, after.as_str(), PAGE]).await?;
            let Some(last) = reply.rows.last().and_then(|row| text(row.first()?)) else { return Ok(()) };
            after = last.to_owned();
            resized.seen += reply.rows.len() as u64;
            let entries = reply.rows.iter().filter_map(|row| read(row));
            let away: Vec<Indexed> = entries.filter(|entry| spread.home(&entry.kind, &entry.id) != name).collect();
            resized.moved += away.len() as u64;
            // A later version that is at home already stays; the copy here goes either way, also if nobody would look for
            // it here.
            let strays = away.iter().filter(|entry| !spread.places(&entry.kind, &entry.id).iter().any(|at| at == name));
            let strays: Vec<Said> = strays.map(|entry| drop_copy(name, entry)).collect();
            put(&self.engine, away).await?;
            say_all(&self.engine.lines, [(name.to_owned(), strays)].into()).await.whole()?;
        }
    }

    /// Whether every entry of a type is at home.
    pub async fn is_settled(&self, kind: &str) -> Result<bool> {
        self.engine.spread(kind)?;
        Ok(recorded(&self.engine, kind).await?.is_none_or(|known| known.settled))
    }

    /// Types that workers of other languages have registered in an earlier life.
    pub(crate) async fn adopt_remote(&self) -> Result<()> {
        let reply = self.engine.lines.one(REMOTE, Vec::new()).await?;
        for row in &reply.rows {
            let (Some(kind), Some(shards)) = (row.first().and_then(text), row.get(1).and_then(int)) else { continue };
            if self.engine.definition(kind).is_ok() {
                continue;
            }
            let previous = row.get(2).and_then(int).and_then(|count| u32::try_from(count).ok());
            let stored: serde_json::Value =
                row.get(4).and_then(text).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
            let options = Options {
                shards: u32::try_from(shards).unwrap_or(1),
                previous_shards: previous,
                legacy: matches!(row.get(3), Some(Value::Bool(true))),
                events: stored["events"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|name| name.as_str())
                    .fold(crate::registry::Events::new(), |events, name| events.any(name)),
                retention: stored["retention_ms"].as_u64().map(Duration::from_millis),
                retry: RemoteRetry::deserialize(&stored["retry"]).unwrap_or_default().retry(),
                result_size_limit: stored["result_size_limit"].as_u64().unwrap_or(DEFAULT_RESULT_SIZE),
                ..Options::default()
            };
            self.adopt(Arc::new(Definition::remote(kind, options)?)).await?;
        }
        Ok(())
    }
}

fn read(row: &[Value]) -> Option<Indexed> {
    Some(Indexed {
        id: text(row.first()?)?.into(),
        kind: text(row.get(1)?)?.into(),
        status: text(row.get(2)?)?.into(),
        version: int(row.get(3)?)?,
        created_at: int(row.get(4)?)?,
        updated_at: int(row.get(5)?)?,
        attributes: text(row.get(6)?)?.into(),
        is_gone: false,
    })
}
