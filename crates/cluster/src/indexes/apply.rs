//! Changes of a shard's log, brought to the entries.
//!
//! One applier follows each shard's log for all indexes. It reads a page, sums up what it does to the entries, and writes
//! the sums to the shards that have them, each with the positions of its entry buckets. What was written twice counts
//! once; what was not written is written again. When a page is everywhere, the noted additions in it go.
//!
//! Entry buckets move like any others, and take their positions along; a batch that comes to the old shard is refused and
//! goes to the new one.

use super::lock;
use super::watch::{Log, Watched};
use super::write::{Company, write};
use crate::database::Database;
use isles_engine::entries::{EntryPart, EntryProgress, MAX_ENTRIES};
use isles_engine::env::Env;
use isles_engine::error::ShardError;
use isles_engine::shard::{EVENT_ROWS, KeyRange, Scope};
use isles_kernel::change::Change;
use isles_kernel::index::{Deltas, Source, StoredEntry, index_stream};
use isles_kernel::names::{BucketId, Seq, ShardId, StreamId};
use isles_kernel::schema::{ENTRY_BUCKETS, Unit};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Changes that are summed up at once: the entries of many lie close together, and are written once.
const PAGE: usize = 2 * *EVENT_ROWS.end();
/// Each may take a row from one entry and add it to another, all of one entry bucket.
const _: () = assert!(2 * PAGE <= MAX_ENTRIES);
/// Changes are waited for, unless there are so many already: a hundred cost hardly more than one. All appliers go on at
/// the same time, since they change the same entry buckets.
const LINGER: Duration = Duration::from_secs(1);
/// Changes that are summed up before others get the thread.
const UNYIELDING: usize = 100;
/// An applier that nobody wakes looks by itself.
const IDLE: Duration = Duration::from_secs(1);
/// After an error.
const RETRY: Duration = Duration::from_millis(200);
/// Between two notes to the log of how far it has been read, which cost it a write.
const ADVANCE_EVERY: Duration = Duration::from_secs(1);
/// Positions of one page of entries.
const POSITIONS_PAGE: usize = 1_000;

/// Why a page was not applied.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It may go better later.
    Later(ShardError),
    /// What was read of positions is not so any more.
    Positions,
    /// The log does not have what an index needs: these must be built anew.
    Lost(Vec<Arc<str>>, String),
}

impl From<ShardError> for Trouble {
    fn from(error: ShardError) -> Trouble {
        Trouble::Later(error)
    }
}

/// An index that a log is applied to, and how far each of its entry buckets has come.
#[derive(Clone)]
pub(super) struct Following {
    pub(super) index: Arc<Watched>,
    pub(super) come: Vec<Seq>,
    /// Changes that are in the entries although they lie behind their positions.
    pub(super) counted: BTreeSet<Seq>,
}

/// Where the log is read, and for whom.
pub(super) struct Turn {
    pub(super) position: Seq,
    pub(super) following: BTreeMap<Arc<str>, Following>,
    advanced: Duration,
}

pub(crate) struct Applier {
    pub(super) shard: ShardId,
    pub(super) log: Log,
    /// Somebody waits for it.
    hurried: Notify,
    /// Held while a page is applied.
    pub(super) turn: tokio::sync::Mutex<Turn>,
    applied: AtomicU64,
    /// When the log's end was last reached, or nothing followed it, for whoever asks how far behind it is.
    caught_up: AtomicU64,
    pub(super) trouble: Mutex<Option<String>>,
}

impl Applier {
    pub(super) fn new(shard: ShardId, log: Log, position: Seq, now: u64) -> Applier {
        let turn = Turn { position, following: BTreeMap::new(), advanced: Duration::ZERO };
        Applier {
            shard,
            log,
            hurried: Notify::new(),
            turn: tokio::sync::Mutex::new(turn),
            applied: AtomicU64::new(position.0),
            caught_up: AtomicU64::new(now),
            trouble: Mutex::default(),
        }
    }

    /// Lets it go on at once.
    pub(crate) fn hurry(&self) {
        self.hurried.notify_one();
    }

    /// How far the entries of all indexes have come.
    pub(crate) fn applied(&self) -> Seq {
        Seq(self.applied.load(Ordering::SeqCst))
    }

    /// Milliseconds since the log's end was last reached.
    pub(crate) fn behind(&self, database: &Database) -> u64 {
        let now = database.env.now_micros() / 1_000;
        now.saturating_sub(self.caught_up.load(Ordering::Relaxed))
    }

    /// Follows the log for as long as the database is open and has the shard.
    pub(super) async fn run(self: Arc<Self>, database: std::sync::Weak<Database>) {
        loop {
            let Some(open) = database.upgrade() else { return };
            let env = open.env.clone();
            let gone = open.shards.is_closed()
                || open.indexes.applier(&self.shard).is_none_or(|one| !Arc::ptr_eq(&one, &self));
            if gone {
                return;
            }
            let stepped = self.step(&open).await;
            *lock(&self.trouble) = stepped.as_ref().err().map(|trouble| format!("{trouble:?}"));
            let wait = match stepped {
                Ok(read) if read >= PAGE => None,
                Ok(0) => Some(IDLE),
                Ok(_) => Some(until_tick(&*env)),
                Err(Trouble::Positions) => match self.reload(&open).await {
                    Ok(()) => None,
                    Err(_) => Some(RETRY),
                },
                Err(Trouble::Lost(indexes, why)) => {
                    open.give_up_indexes(&self.shard, &indexes, &why).await;
                    Some(RETRY)
                }
                Err(Trouble::Later(error)) => {
                    tracing::debug!(shard = %self.shard, %error, "changes cannot be applied to indexes now");
                    Some(RETRY)
                }
            };
            drop(open);
            match wait {
                None => {}
                Some(IDLE) => {
                    let grown = futures::future::select(Box::pin(self.log.grown.notified()), env.sleep(IDLE));
                    futures::future::select(grown, Box::pin(self.hurried.notified())).await;
                    futures::future::select(Box::pin(self.hurried.notified()), env.sleep(until_tick(&*env))).await;
                }
                Some(wait) => {
                    futures::future::select(Box::pin(self.hurried.notified()), env.sleep(wait)).await;
                }
            }
        }
    }

    /// Applies a page. Returns how many changes were in it.
    pub(super) async fn step(&self, database: &Database) -> Result<usize, Trouble> {
        let mut turn = self.turn.lock().await;
        // Whoever begins to follow needs what is in the log now.
        if turn.following.is_empty() {
            self.log.come.store(u64::MAX, Ordering::SeqCst);
            self.has_caught_up(database);
            return Ok(0);
        }
        let page = read_pages(database, &self.shard, &turn).await?;
        renew(database, &mut turn);
        if page.through == turn.position {
            self.has_caught_up(database);
            self.advance(database, &mut turn).await;
            return Ok(0);
        }
        let following: Vec<&mut Following> = turn.following.values_mut().collect();
        apply_page(database, &self.shard, &page.changes, page.through, following, Company::Others).await?;
        turn.position = page.through;
        self.settle(&turn);
        let read = page.changes.len();
        if read < PAGE {
            self.has_caught_up(database);
        }
        database.indexes.counted.page(read);
        self.advance(database, &mut turn).await;
        Ok(read)
    }

    fn has_caught_up(&self, database: &Database) {
        self.caught_up.store(database.env.now_micros() / 1_000, Ordering::Relaxed);
    }

    /// Says how far all indexes have come.
    pub(super) fn settle(&self, turn: &Turn) {
        self.applied.store(turn.position.0, Ordering::SeqCst);
        let come = if turn.following.is_empty() { u64::MAX } else { turn.position.0 };
        self.log.end.fetch_max(turn.position.0, Ordering::SeqCst);
        self.log.come.store(come, Ordering::SeqCst);
        turn.following.values().for_each(|following| following.index.applied(self.log.number, turn.position));
    }

    /// Brings an index nothing any more.
    pub(super) async fn leave(&self, entries: &Arc<str>) {
        if let Some(following) = self.turn.lock().await.following.remove(entries) {
            following.index.left(self.log.number);
        }
    }

    /// Whether changes cannot be applied at present, however long anybody waits.
    pub(super) fn is_in_trouble(&self) -> bool {
        lock(&self.trouble).is_some()
    }

    /// Lets the log go up to here, now and then, unless somebody has yet to read it. If that fails, it is done later.
    async fn advance(&self, database: &Database, turn: &mut Turn) {
        let elapsed = database.env.elapsed();
        if elapsed < turn.advanced + ADVANCE_EVERY || database.indexes.kept.load(Ordering::SeqCst) > 0 {
            return;
        }
        turn.advanced = elapsed;
        if let Ok(shard) = database.shards.get(&self.shard).await {
            let _ = shard.advance(&index_stream(), turn.position).await;
        }
    }

    async fn reload(&self, database: &Database) -> Result<(), Trouble> {
        let mut turn = self.turn.lock().await;
        for following in turn.following.values_mut() {
            following.come = positions(database, &following.index, &self.shard).await?;
        }
        Ok(())
    }
}

/// How long it is until all appliers go on.
fn until_tick(env: &dyn Env) -> Duration {
    let past = env.elapsed().as_nanos() % LINGER.as_nanos();
    LINGER - Duration::from_nanos(past as u64)
}

/// Lets go of indexes that there are not any more, and reads rows as those that are left do now. To be called when a page
/// has been read: then no row in it is of a later schema.
fn renew(database: &Database, turn: &mut Turn) {
    turn.following.retain(|entries, following| match database.indexes.watch.get(entries) {
        Some(index) => {
            following.index = index;
            true
        }
        None => false,
    });
}

async fn read_page(
    database: &Database,
    shard: &ShardId,
    after: Seq,
    turn: &Turn,
) -> Result<isles_engine::shard::ChangePage, Trouble> {
    let open = database.shards.get(shard).await?;
    match open.changes(after, *EVENT_ROWS.end()).await {
        Err(ShardError::Trimmed { trimmed }) => {
            let why = format!("the change log of shard {shard} begins at {trimmed}, it was read up to {after}");
            Err(Trouble::Lost(turn.following.keys().cloned().collect(), why))
        }
        Err(ShardError::Stopped(_)) => {
            database.shards.reopen(shard).await?;
            Err(Trouble::Later(ShardError::Unavailable("the shard was opened anew".into())))
        }
        page => Ok(page?),
    }
}

/// As much of the log as is summed up at once, or all that there is.
async fn read_pages(
    database: &Database,
    shard: &ShardId,
    turn: &Turn,
) -> Result<isles_engine::shard::ChangePage, Trouble> {
    let mut all = read_page(database, shard, turn.position, turn).await?;
    let mut read = all.changes.len();
    while read == *EVENT_ROWS.end() && all.changes.len() < PAGE {
        let next = read_page(database, shard, all.through, turn).await?;
        read = next.changes.len();
        all.through = next.through;
        all.changes.extend(next.changes);
    }
    Ok(all)
}

/// Brings changes of a shard to the entries of indexes.
pub(super) async fn apply_page(
    database: &Database,
    shard: &ShardId,
    changes: &[Change],
    through: Seq,
    mut following: Vec<&mut Following>,
    company: Company,
) -> Result<(), Trouble> {
    let source = Source::log(shard);
    let mut parts = Vec::new();
    for one in &following {
        let definition = &one.index.definition;
        let mut deltas = Deltas::default();
        // An index that has just been built may be ahead of the others: what came before its schema is in it.
        let counted = one.come.iter().min().copied().unwrap_or_default();
        for (at, change) in changes.iter().filter(|change| change.table == definition.table).enumerate() {
            if at % UNYIELDING == UNYIELDING - 1 {
                tokio::task::yield_now().await;
            }
            if change.seq <= counted || one.counted.contains(&change.seq) {
                continue;
            }
            if change.schema < one.index.since() {
                let why = format!("changes of schema version {} have other columns", change.schema);
                return Err(Trouble::Lost(vec![definition.entries.clone()], why));
            }
            let Some(bucket) = definition.bucket_of(&change.unit) else { continue };
            let come = |bucket: u32| one.come[bucket as usize];
            let added = deltas.add(change, bucket, ENTRY_BUCKETS, |row| definition.key_of(row), come);
            added.map_err(|error| Trouble::Lost(vec![definition.entries.clone()], error.to_string()))?;
        }
        for (bucket, deltas) in deltas.into_parts() {
            let progress = EntryProgress { source: source.clone(), from: one.come[bucket as usize], through };
            let (table, bucket) = (definition.entries.to_string(), BucketId(bucket));
            parts.push(EntryPart { table, bucket, progress: Some(progress), deltas });
        }
    }
    let come: Vec<(String, BucketId)> = parts.iter().map(|part| (part.table.clone(), part.bucket)).collect();
    write(database, parts, company).await?;
    for (table, bucket) in come {
        if let Some(one) = following.iter_mut().find(|one| *one.index.definition.entries == *table) {
            one.come[bucket.0 as usize] = through;
        }
    }
    for one in following {
        if let Some(last) = changes.iter().rev().find(|change| change.table == one.index.definition.table) {
            one.index.has_changed(shard, last.seq);
        }
        one.counted.retain(|seq| *seq > through);
    }
    Ok(())
}

/// How far each entry bucket of an index has come with a shard's log.
pub(super) async fn positions(database: &Database, index: &Watched, source: &ShardId) -> Result<Vec<Seq>, Trouble> {
    let policy = database.routing.current();
    let group = database.schema().group_of_entries(&index.definition.entries);
    let mut come = vec![Seq(0); ENTRY_BUCKETS as usize];
    let owners: BTreeSet<&ShardId> =
        (0..ENTRY_BUCKETS).filter_map(|bucket| policy.shard_of_bucket(&group, BucketId(bucket))).collect();
    let [after, through] = Source::log(source).positions();
    for shard in owners {
        let open = database.shards.get(shard).await?;
        let mut snapshot = open.snapshot().await?;
        let range = KeyRange {
            table: index.definition.entries.to_string(),
            scope: Scope::All,
            after: Some(after.clone()),
            through: Some(through.clone()),
        };
        for row in snapshot.page(&range, POSITIONS_PAGE).await?.rows {
            if let Unit::Bucket(_, bucket) = &row.unit
                && let Some(StoredEntry::Position { through, .. }) = StoredEntry::read(&row.values)
                && policy.shard_of_bucket(&group, *bucket) == Some(shard)
                && let Some(come) = come.get_mut(bucket.0 as usize)
            {
                *come = through;
            }
        }
    }
    Ok(come)
}

/// The reader of a shard's log that a build has for itself.
pub(super) fn build_stream(index: &Watched) -> StreamId {
    isles_kernel::index::build_stream(&index.definition.entries)
}
