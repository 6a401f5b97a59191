//! Entries from the change logs.
//!
//! Each shard's log is followed by a reader of its own. A page of changes becomes the last state of each run in it; what a
//! run was in between is nobody's business. Entries are written first, and then it is noted how far the log was read: what
//! is read twice loses by its version.
//!
//! Where an index shard cannot be reached the reader goes on for the others, and owes it the entries: how far it has read
//! is not noted any more. When the index shard is back, the log is read again from where it was noted.
//!
//! A shard that comes later may have taken runs before its log was followed, and a log may have been cut off because it
//! had grown too long; then the runs themselves are compared with the index.
//!
//! Invariants (docs/invariants.md):
//!   * I-51  the index has whatever was committed before the moment that it is said to be of

use super::mend::mend;
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
/// How often it is found out of which moment the index is, and whether index shards that could not be reached are back.
const MARK: Duration = Duration::from_millis(500);

const PUT: &str = "INSERT INTO isles.run_index (index_shard, id, type, status, created_at, updated_at, version, \
    attributes) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (index_shard, id) DO UPDATE SET \
    status = excluded.status, created_at = excluded.created_at, updated_at = excluded.updated_at, \
    version = excluded.version, attributes = excluded.attributes WHERE excluded.version > isles.run_index.version";
const DROP_COPY: &str = "DELETE FROM isles.run_index WHERE index_shard = $1 AND id = $2 AND version <= $3";
const ASK: &str = "SELECT id FROM isles.run_index WHERE index_shard = $1 LIMIT 1";

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
    pub(crate) fn read(row: &[Value], is_gone: bool) -> Option<Indexed> {
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
            Ok(reader) => {
                followed.insert(name);
                came = true;
                engine.lines.env().spawn(Box::pin(follow(engine.clone(), reader)));
            }
            Err(error) => tracing::debug!(shard = %name, %error, "the log of a shard cannot be followed now"),
        }
    }
    came
}

/// Follows shards that come later, for as long as the engine is open. They may have runs already.
pub(crate) async fn keep(engine: Arc<Engine>, mut followed: Followed) {
    let mut must_mend = false;
    loop {
        let closed = futures::future::select(Box::pin(engine.closed()), engine.lines.env().sleep(IDLE));
        if matches!(closed.await, futures::future::Either::Left(_)) || engine.is_closed() {
            return;
        }
        must_mend |= follow_all(&engine, &mut followed).await;
        if must_mend {
            match mend(&engine).await {
                Ok(_) => must_mend = false,
                Err(error) => tracing::debug!(%error, "the index of runs cannot be compared with a new shard now"),
            }
        }
    }
}

fn stream() -> Result<StreamId> {
    StreamId::new(STREAM).map_err(|_| WorkflowError::invalid("the reader's name is no name"))
}

fn unavailable(error: &ShardError) -> WorkflowError {
    WorkflowError::new(crate::error::Code::Unavailable, error.to_string())
}

/// Who reads a shard's log.
struct Reader {
    shard: Arc<dyn Shard>,
    /// Up to here everything is in the index, and that is kept.
    noted: Seq,
    /// Up to here it was read; what index shards are owed lies between.
    read: Seq,
    /// Index shards that could not be reached.
    owed: BTreeSet<String>,
    /// When it was last found out how things stand.
    marked: Duration,
}

async fn begin(engine: &Engine, name: &ShardId) -> Result<Reader> {
    let shard = engine.lines.database().shard(name).await.map_err(WorkflowError::of_sql)?;
    let position = shard.add_consumer(&stream()?).await.map_err(|error| unavailable(&error))?;
    Ok(Reader { shard, noted: position, read: position, owed: BTreeSet::new(), marked: Duration::ZERO })
}

async fn follow(engine: Arc<Engine>, mut reader: Reader) {
    let name = reader.shard.id().clone();
    loop {
        let written = engine.written.clone().notified_owned();
        let wait = match reader.step(&engine).await {
            Ok(read) if read >= *EVENT_ROWS.end() => Duration::ZERO,
            Ok(_) => IDLE,
            Err(error) => {
                tracing::debug!(shard = %name, %error, "the index of runs cannot be brought up to date now");
                // It may have been closed and opened anew.
                if let Ok(anew) = begin(&engine, &name).await {
                    reader = anew;
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

impl Reader {
    /// Brings a page of the log to the index. Returns how many changes there were.
    async fn step(&mut self, engine: &Arc<Engine>) -> Result<usize> {
        let (began, may_mark) = (engine.lines.now(), engine.lines.env().elapsed() >= self.marked + MARK);
        if may_mark && !self.owed.is_empty() {
            self.marked = engine.lines.env().elapsed();
            self.go_back(engine).await;
        }
        let page = match self.shard.changes(self.read, *EVENT_ROWS.end()).await {
            Ok(page) => page,
            Err(ShardError::Trimmed { trimmed }) => return self.after_trim(engine, Seq(trimmed)).await,
            Err(error) => return Err(unavailable(&error)),
        };
        if page.through != self.read {
            let mut last: BTreeMap<(String, String), Indexed> = BTreeMap::new();
            for change in page.changes.iter().filter(|change| change.table == RUNS) {
                let Some(indexed) = Indexed::of_change(change) else { continue };
                let key = (indexed.kind.clone(), indexed.id.clone());
                if last.get(&key).is_none_or(|known| known.version <= indexed.version) {
                    last.insert(key, indexed);
                }
            }
            // Another process may have registered a type since, or another count. Where the record cannot be read, what
            // is known of it is gone by; a type that is not known is an error.
            if let Err(error) = super::resize::learn(engine).await {
                tracing::debug!(%error, "the record of types cannot be read now");
            }
            let put = put_but(engine, last.into_values(), &self.owed).await?;
            self.owed.extend(put.failed.into_keys());
            self.read = page.through;
        }
        if self.owed.is_empty() {
            self.note().await?;
            if may_mark && page.changes.len() < *EVENT_ROWS.end() {
                self.mark(engine, began).await?;
            }
        }
        Ok(page.changes.len())
    }

    /// Keeps how far the log was read. Not before the entries are there: what is read again loses by its version, what is
    /// not read is lost.
    async fn note(&mut self) -> Result<()> {
        if self.noted != self.read {
            self.shard.advance(&stream()?, self.read).await.map_err(|error| unavailable(&error))?;
            self.noted = self.read;
        }
        Ok(())
    }

    /// Reads again what was owed, if everybody to whom it is owed is back.
    async fn go_back(&mut self, engine: &Engine) {
        let asks = self.owed.iter().map(|name| (ASK, params![name.as_str()])).collect();
        if engine.lines.each(asks).await.iter().all(|answer| answer.is_ok()) {
            self.owed.clear();
            self.read = self.noted;
        }
    }

    /// The index has all that was committed on this shard before a moment, if nothing is committed beyond what was read:
    /// a change that waits for an older one is not in the log yet, but it is committed.
    async fn mark(&mut self, engine: &Engine, began: i64) -> Result<()> {
        let beyond = self.shard.committed_changes(self.read, 1).await.map_err(|error| unavailable(&error))?;
        if beyond.changes.is_empty() {
            self.marked = engine.lines.env().elapsed();
            engine.is_of(self.shard.id(), began);
        }
        Ok(())
    }

    /// Another engine that follows the same log may have brought it to the index, and so let it be cut off: what it knew of
    /// index shards may have been older, so the runs are gone through once more. Else the log has grown too long, and
    /// nobody knows what it had.
    async fn after_trim(&mut self, engine: &Engine, trimmed: Seq) -> Result<usize> {
        let (consumers, own) = (self.shard.consumers().await.map_err(|error| unavailable(&error))?, stream()?);
        let stands = consumers.into_iter().find(|consumer| consumer.stream == own).map(|consumer| consumer.position);
        if let Some(position) = stands.filter(|position| *position >= trimmed) {
            super::resize::learn(engine).await?;
            super::mend::from_runs(engine).await?;
            self.owed.clear();
            (self.noted, self.read) = (position, position);
            return Ok(0);
        }
        tracing::warn!(shard = %self.shard.id(), "a change log was cut off: the index is compared with all runs");
        let end = self.shard.settled().await.map_err(|error| unavailable(&error))?;
        mend(engine).await?;
        self.owed.clear();
        self.read = end.max(trimmed);
        self.note().await?;
        Ok(0)
    }
}

/// What came of writing entries.
#[derive(Debug, Default)]
pub(crate) struct Put {
    /// Rows that changed.
    pub(crate) written: u64,
    /// Index shards that could not be written to, and why.
    pub(crate) failed: BTreeMap<String, WorkflowError>,
}

impl Put {
    /// For whoever needs all of it.
    pub(crate) fn whole(self) -> Result<u64> {
        match self.failed.into_values().next() {
            None => Ok(self.written),
            Some(error) => Err(error),
        }
    }
}

/// Writes entries to their homes, and takes older copies out of the other places where they may be.
pub(crate) async fn put(engine: &Engine, entries: impl IntoIterator<Item = Indexed>) -> Result<u64> {
    put_but(engine, entries, &BTreeSet::new()).await?.whole()
}

/// The same, but for index shards that are not even asked.
async fn put_but(engine: &Engine, entries: impl IntoIterator<Item = Indexed>, away: &BTreeSet<String>) -> Result<Put> {
    let mut homes = BTreeMap::<String, Vec<Said>>::new();
    // By the home of the entry: a copy goes when the entry is there.
    let mut copies = BTreeMap::<String, Vec<(String, Said)>>::new();
    for entry in entries {
        let spread = engine.spread(&entry.kind)?;
        let places = spread.places(&entry.kind, &entry.id);
        let Some((home, others)) = places.split_first().filter(|(home, _)| !away.contains(*home)) else { continue };
        let other = |other: &String| (other.clone(), drop_copy(other, &entry));
        copies.entry(home.clone()).or_default().extend(others.iter().map(other));
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
    let mut put = say_all(&engine.lines, homes).await;
    // Not before the entry is at home: it is never nowhere.
    let mut there = BTreeMap::<String, Vec<Said>>::new();
    for (place, said) in copies.into_iter().filter(|(home, _)| !put.failed.contains_key(home)).flat_map(|(_, all)| all)
    {
        if !away.contains(&place) {
            there.entry(place).or_default().push(said);
        }
    }
    put.failed.extend(say_all(&engine.lines, there).await.failed);
    Ok(put)
}

/// Takes a copy of an entry out of an index shard, unless it is a later version.
pub(crate) fn drop_copy(place: &str, entry: &Indexed) -> Said {
    (DROP_COPY, params![place, entry.id.as_str(), entry.version])
}

/// Says to each index shard what it is to do: in batches, and to several at the same time. One that does not answer in time
/// is taken for one that cannot be reached; what it may have done is done again.
pub(crate) async fn say_all(lines: &Lines, by_shard: BTreeMap<String, Vec<Said>>) -> Put {
    use futures::stream::StreamExt;
    let to_one = |(name, mut said): (String, Vec<Said>)| async move {
        let mut changed = 0;
        while !said.is_empty() {
            let rest = said.split_off(said.len().min(BATCH));
            match lines.in_time(lines.together(said)).await {
                Some(Ok(replies)) => changed += replies.iter().map(|reply| reply.affected).sum::<u64>(),
                Some(Err(error)) => return (name, Err(error)),
                None => return (name, Err(too_slow())),
            }
            said = rest;
        }
        (name, Ok(changed))
    };
    let all = futures::stream::iter(by_shard.into_iter().map(to_one).collect::<Vec<_>>());
    let mut put = Put::default();
    for (name, said) in all.buffer_unordered(SHARDS_AT_ONCE).collect::<Vec<_>>().await {
        match said {
            Ok(changed) => put.written += changed,
            Err(error) => drop(put.failed.insert(name, error)),
        }
    }
    put
}

fn too_slow() -> WorkflowError {
    WorkflowError::new(crate::error::Code::Unavailable, "an index shard does not answer in time")
}
