//! Entries from the change logs, and the comparison with the runs themselves.
//!
//! Each shard's log is followed by a reader of its own. A page of changes becomes the last state of each run in it; what a
//! run was in between is nobody's business. Entries are written first, and then it is noted how far the log was read: what
//! is read twice loses by its version.
//!
//! A shard that comes later may have taken runs before its log was followed, and a log may have been cut off because it
//! had grown too long; then the runs themselves are compared with the index, and what differs is put right.

use crate::engine::Engine;
use crate::error::{Result, WorkflowError};
use crate::lines::{Lines, Said, int, params, text};
use isles_engine::error::ShardError;
use isles_engine::shard::{EVENT_ROWS, Shard};
use isles_kernel::change::{Change, Op};
use isles_kernel::names::{Seq, ShardId, StreamId};
use isles_kernel::value::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The reader of a shard's log.
const STREAM: &str = "run-index";
const RUNS: &str = "isles.runs";
/// Changes are waited for: many of one run become one entry.
const LINGER: Duration = Duration::from_millis(50);
/// A reader that nobody wakes looks by itself.
const IDLE: Duration = Duration::from_secs(1);
/// After an error.
const RETRY: Duration = Duration::from_millis(200);
/// Entries of one request.
const BATCH: usize = 200;
/// Index shards that are written to at the same time.
const SHARDS_AT_ONCE: usize = 8;
/// Runs of one page of a comparison.
const PAGE: i64 = 1_000;

const PUT: &str = "INSERT INTO isles.run_index (index_shard, id, type, status, created_at, updated_at, version, \
    attributes) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (index_shard, id) DO UPDATE SET \
    status = excluded.status, created_at = excluded.created_at, updated_at = excluded.updated_at, \
    version = excluded.version, attributes = excluded.attributes WHERE excluded.version > isles.run_index.version";
const DROP_COPY: &str = "DELETE FROM isles.run_index WHERE index_shard = $1 AND id = $2 AND version <= $3";
const PAGE_OF_RUNS: &str = "SELECT run, type, id, status, version, created_at, updated_at, attributes FROM isles.runs \
    WHERE run > $1 ORDER BY run LIMIT $2";

/// What a run is, for the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Indexed {
    pub(crate) kind: String,
    pub(crate) id: String,
    pub(crate) status: String,
    pub(crate) version: i64,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
    pub(crate) attributes: String,
    /// Nothing is left of the run.
    pub(crate) is_gone: bool,
}

impl Indexed {
    /// Reads the columns of a run's row, which begins as the table does: run, type, id, status, version, …
    fn read(row: &[Value], is_gone: bool) -> Option<Indexed> {
        Some(Indexed {
            kind: text(row.get(1)?)?.into(),
            id: text(row.get(2)?)?.into(),
            status: text(row.get(3)?)?.into(),
            version: int(row.get(4)?)?,
            created_at: int(row.get(5)?)?,
            updated_at: int(row.get(6)?)?,
            attributes: text(row.get(7)?)?.into(),
            is_gone,
        })
    }

    fn of_change(change: &Change) -> Option<Indexed> {
        match (change.op, &change.after, &change.before) {
            (Op::Delete, _, before) => Indexed::read(before.as_ref()?, true),
            // Steps renew the lease, and change nothing that the index has.
            (_, Some(after), Some(before)) if after.get(4) == before.get(4) => None,
            (_, after, _) => Indexed::read(after.as_ref()?, false),
        }
    }
}

/// The shards whose logs are followed.
pub(crate) type Followed = BTreeSet<ShardId>;

/// Begins to follow the log of every shard that is not followed yet. Returns whether there was one.
///
/// Whoever opens an engine waits for it before there can be a new run: what a log does not have, nobody tells the index.
pub(crate) async fn follow_all(engine: &Arc<Engine>, followed: &mut Followed) -> bool {
    let mut came = false;
    for name in engine.lines.database().shard_names() {
        if followed.contains(&name) {
            continue;
        }
        match begin(engine, &name).await {
            Ok((shard, position)) => {
                followed.insert(name);
                came = true;
                engine.lines.env().spawn(Box::pin(follow(engine.clone(), shard, position)));
            }
            Err(error) => tracing::debug!(shard = %name, %error, "the log of a shard cannot be followed now"),
        }
    }
    came
}

/// Follows shards that come later, for as long as the engine is open. They may have runs already.
pub(crate) async fn keep(engine: Arc<Engine>, mut followed: Followed) {
    loop {
        let closed = futures::future::select(Box::pin(engine.closed()), engine.lines.env().sleep(IDLE));
        if matches!(closed.await, futures::future::Either::Left(_)) || engine.is_closed() {
            return;
        }
        if follow_all(&engine, &mut followed).await
            && let Err(error) = mend(&engine).await
        {
            tracing::warn!(%error, "the index of runs could not be compared with a new shard");
        }
    }
}

fn stream() -> Result<StreamId> {
    StreamId::new(STREAM).map_err(|_| WorkflowError::invalid("the reader's name is no name"))
}

fn unavailable(error: &ShardError) -> WorkflowError {
    WorkflowError::new(crate::error::Code::Unavailable, error.to_string())
}

async fn begin(engine: &Engine, name: &ShardId) -> Result<(Arc<dyn Shard>, Seq)> {
    let shard = engine.lines.database().shard(name).await.map_err(WorkflowError::of_sql)?;
    let position = shard.add_consumer(&stream()?).await.map_err(|error| unavailable(&error))?;
    Ok((shard, position))
}

async fn follow(engine: Arc<Engine>, mut shard: Arc<dyn Shard>, mut position: Seq) {
    let name = shard.id().clone();
    loop {
        let written = engine.written.clone().notified_owned();
        let wait = match step(&engine, &shard, position).await {
            Ok((through, read)) => {
                position = through;
                if read >= *EVENT_ROWS.end() { Duration::ZERO } else { IDLE }
            }
            Err(error) => {
                tracing::debug!(shard = %name, %error, "the index of runs cannot be brought up to date now");
                // It may have been closed and opened anew.
                if let Ok((anew, stands)) = begin(&engine, &name).await {
                    (shard, position) = (anew, stands);
                }
                RETRY
            }
        };
        if engine.is_closed() {
            return;
        }
        if !wait.is_zero() {
            let sleep = engine.lines.env().sleep(wait);
            futures::future::select(Box::pin(written), sleep).await;
            engine.lines.env().sleep(LINGER).await;
        }
    }
}

/// Brings a page of a log to the index. Returns where the log was read up to, and how many changes there were.
async fn step(engine: &Arc<Engine>, shard: &Arc<dyn Shard>, position: Seq) -> Result<(Seq, usize)> {
    let page = match shard.changes(position, *EVENT_ROWS.end()).await {
        Ok(page) => page,
        Err(ShardError::Trimmed { trimmed }) => {
            tracing::warn!(shard = %shard.id(), "a change log was cut off: the index is compared with all runs");
            let end = shard.settled().await.map_err(|error| unavailable(&error))?;
            mend(engine).await?;
            let through = end.max(Seq(trimmed));
            shard.advance(&stream()?, through).await.map_err(|error| unavailable(&error))?;
            return Ok((through, 0));
        }
        Err(error) => return Err(unavailable(&error)),
    };
    if page.through == position {
        return Ok((position, 0));
    }
    let mut last: BTreeMap<(String, String), Indexed> = BTreeMap::new();
    for change in page.changes.iter().filter(|change| change.table == RUNS) {
        let Some(indexed) = Indexed::of_change(change) else { continue };
        let key = (indexed.kind.clone(), indexed.id.clone());
        if last.get(&key).is_none_or(|known| known.version <= indexed.version) {
            last.insert(key, indexed);
        }
    }
    // Another process may have registered a type since, or another count.
    super::resize::learn(engine).await?;
    put(engine, last.into_values()).await?;
    // Not before the entries are there: what is read again loses by its version, what is not read is lost.
    shard.advance(&stream()?, page.through).await.map_err(|error| unavailable(&error))?;
    Ok((page.through, page.changes.len()))
}

/// Writes entries to their homes, and takes older copies out of the other places where they may be.
pub(crate) async fn put(engine: &Engine, entries: impl IntoIterator<Item = Indexed>) -> Result<u64> {
    let (mut homes, mut copies) = (BTreeMap::<String, Vec<Said>>::new(), BTreeMap::<String, Vec<Said>>::new());
    for entry in entries {
        let spread = engine.spread(&entry.kind)?;
        let places = spread.places(&entry.kind, &entry.id);
        let Some((home, others)) = places.split_first() else { continue };
        for other in others {
            copies.entry(other.clone()).or_default().push(drop_copy(other, &entry));
        }
        let put = match entry.is_gone {
            true => drop_copy(home, &entry),
            false => {
                let params = params![
                    home.as_str(),
                    entry.id,
                    entry.kind,
                    entry.status,
                    entry.created_at,
                    entry.updated_at,
                    entry.version,
                    entry.attributes
                ];
                (PUT, params)
            }
        };
        homes.entry(home.clone()).or_default().push(put);
    }
    let written = say_all(&engine.lines, homes).await?;
    // Not before the entry is at home: it is never nowhere.
    say_all(&engine.lines, copies).await?;
    Ok(written)
}

/// Takes a copy of an entry out of an index shard, unless it is a later version.
pub(crate) fn drop_copy(place: &str, entry: &Indexed) -> Said {
    (DROP_COPY, params![place, entry.id.as_str(), entry.version])
}

/// Says to each index shard what it is to do: in batches, and to several at the same time. Returns how many rows changed.
pub(crate) async fn say_all(lines: &Lines, by_shard: BTreeMap<String, Vec<Said>>) -> Result<u64> {
    use futures::stream::{StreamExt, TryStreamExt};
    let to_one = |mut said: Vec<Said>| async move {
        let mut changed = 0;
        while !said.is_empty() {
            let rest = said.split_off(said.len().min(BATCH));
            changed += lines.together(said).await?.iter().map(|reply| reply.affected).sum::<u64>();
            said = rest;
        }
        Ok::<u64, WorkflowError>(changed)
    };
    let all = futures::stream::iter(by_shard.into_values().map(to_one).collect::<Vec<_>>());
    all.buffer_unordered(SHARDS_AT_ONCE).try_fold(0, |sum, one| std::future::ready(Ok(sum + one))).await
}

/// Compares the index with all runs, and puts right what differs. Returns how many entries were written.
pub(crate) async fn mend(engine: &Engine) -> Result<u64> {
    let (mut after, mut written) = (String::new(), 0);
    super::resize::learn(engine).await?;
    loop {
        let page = runs_after(&engine.lines, &after).await?;
        let Some((last, _)) = page.last() else { return Ok(written) };
        after.clone_from(last);
        written += put(engine, page.into_iter().map(|(_, indexed)| indexed)).await?;
    }
}

async fn runs_after(lines: &Lines, after: &str) -> Result<Vec<(String, Indexed)>> {
    let reply = lines.one(PAGE_OF_RUNS, params![after, PAGE]).await?;
    let read = |row: &Vec<Value>| Some((text(row.first()?)?.to_owned(), Indexed::read(row, false)?));
    Ok(reply.rows.iter().filter_map(read).collect())
}
