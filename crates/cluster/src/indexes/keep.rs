//! The keeper: builds what the schema has and the entries have not, and lets every shard's log be followed.
//!
//! ```text
//! schema: an index ─► record: building ─► each shard counted, and followed ─► ready
//!                                  ▲                                             │ the log was lost, or an operator asks
//!                                  └───────────────── rebuilding ◄───────────────┘
//! ```
//!
//! It is a task that looks, does what there is to do, and waits to be told. What fails is tried again; what cannot
//! succeed, or has no room, is recorded as failed, and left until an operator asks for it again.

use super::apply::{Applier, Following, positions};
use super::build::{self, Progress};
use super::duplicates;
use super::store::{self, IndexRecord, State};
use super::watch::Watched;
use super::{Indexes, lock};
use crate::database::Database;
use crate::moves;
use isles_engine::entries::EntriesOf;
use isles_kernel::error::SqlError;
use isles_kernel::index::index_stream;
use isles_kernel::names::ShardId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The keeper looks so often even if nobody tells it anything.
const INTERVAL: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(500);
/// A build that waits for a move looks again after this.
const WAIT: Duration = Duration::from_millis(200);
/// What shards say that have no room.
const DISK_FULL: &str = "53100";

pub(super) fn start(database: &Arc<Database>) {
    let (weak, env): (Weak<Database>, _) = (Arc::downgrade(database), database.env.clone());
    database.indexes.follow(&database.schema(), &database.routing.current());
    database.env.spawn(Box::pin(async move {
        loop {
            let Some(database) = weak.upgrade() else { return };
            if database.shards.is_closed() || database.is_closing() {
                return;
            }
            let indexes = database.indexes.clone();
            let kept = keep(&database).await;
            drop(database);
            let pause = match kept {
                Ok(()) => INTERVAL,
                Err(error) => {
                    tracing::warn!(%error, "global indexes are not kept now");
                    RETRY
                }
            };
            let told =
                futures::future::select(Box::pin(indexes.news.notified()), Box::pin(indexes.watch.lost.notified()));
            futures::future::select(told, env.sleep(pause)).await;
        }
    }));
}

async fn keep(database: &Arc<Database>) -> Result<(), SqlError> {
    let all = database.indexes.watch.all();
    let catalog = database.catalog();
    if all.is_empty() {
        stop_all(database).await?;
        return store::retain(catalog.as_ref(), |_| false).await;
    }
    store::retain(catalog.as_ref(), |entries| all.iter().any(|index| *index.definition.entries == *entries)).await?;
    lock(&database.indexes.troubles).retain(|entries, _| all.iter().any(|index| index.definition.entries == *entries));
    let is_failed = are_failed(database).await?;
    if !is_failed && let Err(error) = follow(database).await {
        for index in &all {
            cannot_follow(database, index, &error).await?;
        }
        return Err(error);
    }
    // One that cannot be kept does not hold up the others.
    let mut trouble = None;
    for index in &all {
        let kept = keep_index(database, index).await;
        let mut troubles = lock(&database.indexes.troubles);
        match kept {
            Ok(()) => drop(troubles.remove(&index.definition.entries)),
            Err(error) => {
                troubles.insert(index.definition.entries.clone(), error.message.clone());
                trouble.get_or_insert(error);
            }
        }
    }
    find_lost(database).await?;
    if is_failed {
        release_logs(database).await?;
    }
    trouble.map_or(Ok(()), Err)
}

/// Whether all indexes have failed, and so nothing follows the logs.
async fn are_failed(database: &Database) -> Result<bool, SqlError> {
    for index in database.indexes.watch.all() {
        if load(database, &index).await?.state != State::Failed {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Some log cannot be followed now. For want of room nothing is built.
async fn cannot_follow(database: &Database, index: &Watched, error: &SqlError) -> Result<(), SqlError> {
    lock(&database.indexes.troubles).insert(index.definition.entries.clone(), error.message.clone());
    let mut record = load(database, index).await?;
    match record.state {
        State::Building | State::Rebuilding if error.sqlstate == DISK_FULL => {
            fail(database, index, &mut record, &no_room(error)).await
        }
        _ => Ok(()),
    }
}

fn no_room(error: &SqlError) -> String {
    format!("there is no room for it: {}", error.message)
}

/// Every shard's log is followed, for all indexes that its rows are in. Whatever a shard is given to read, they join at
/// once: one that came later would miss what the applier has passed.
pub(super) async fn follow(database: &Arc<Database>) -> Result<(), SqlError> {
    let unkept = unkept_logs(database).await?;
    let mut records = Vec::new();
    for index in database.indexes.watch.all() {
        let mut record = load(database, &index).await?;
        let misses = |shard: &ShardId| follows(&record, shard);
        if let Some(shard) = unkept.iter().find(|shard| misses(shard)) {
            // Recorded before the log is kept again, or a crash between would hide it.
            index.close();
            let why = format!("the change log of shard {shard} was not kept");
            begin_again(database, &index, &mut record, &why).await?;
        }
        records.push((index, record));
    }
    follow_logs(database).await?;
    join_built(database, &records).await
}

/// Whether what a shard writes is brought to an index by its applier. All that a shard has which came after the index was
/// ready was moved there, and is in the entries, or was written there, and is in its log.
fn follows(record: &IndexRecord, shard: &ShardId) -> bool {
    match record.state {
        State::Ready => true,
        State::Building | State::Rebuilding => record.built.contains(shard),
        State::Failed => false,
    }
}

/// Shards that are not followed yet and whose logs have not been kept for indexes.
async fn unkept_logs(database: &Database) -> Result<Vec<ShardId>, SqlError> {
    let mut unkept = Vec::new();
    for name in database.shard_names() {
        if database.indexes.applier(&name).is_some() {
            continue;
        }
        let open = database.shards.get(&name).await.map_err(|error| error.for_people())?;
        let consumers = open.consumers().await.map_err(|error| error.for_people())?;
        if !consumers.iter().any(|one| one.stream == index_stream()) {
            unkept.push(name);
        }
    }
    Ok(unkept)
}

async fn load(database: &Database, index: &Watched) -> Result<IndexRecord, SqlError> {
    let (catalog, entries) = (database.catalog(), &index.definition.entries);
    match store::load(catalog.as_ref(), entries).await? {
        Some(record) => Ok(record),
        None => {
            let record = new_record(database, index);
            store::save(catalog.as_ref(), entries, &record).await?;
            Ok(record)
        }
    }
}

/// Lets go of all logs, if any is followed.
async fn stop_all(database: &Database) -> Result<(), SqlError> {
    let appliers = std::mem::take(&mut *lock(&database.indexes.appliers));
    for name in database.shard_names() {
        let open = database.shards.get(&name).await.map_err(|error| error.for_people())?;
        let consumers = open.consumers().await.map_err(|error| error.for_people())?;
        let ours = consumers.into_iter().map(|one| one.stream).filter(isles_kernel::index::is_index_stream);
        for stream in ours {
            open.remove_consumer(&stream).await.map_err(|error| error.for_people())?;
        }
    }
    appliers.into_values().for_each(|applier| applier.hurry());
    Ok(())
}

/// Each shard has an applier, and no applier is without its shard.
async fn follow_logs(database: &Arc<Database>) -> Result<(), SqlError> {
    let names: BTreeSet<ShardId> = database.shard_names().into_iter().collect();
    let gone: Vec<ShardId> =
        lock(&database.indexes.appliers).keys().filter(|name| !names.contains(name)).cloned().collect();
    for name in gone {
        lock(&database.indexes.appliers).remove(&name);
        database.indexes.watch.remove_log(&name);
    }
    for name in names {
        if database.indexes.applier(&name).is_some() {
            continue;
        }
        let log = database.indexes.watch.add_log(&name);
        let open = database.shards.get(&name).await.map_err(|error| error.for_people())?;
        let position = open.add_consumer(&index_stream()).await.map_err(|error| error.for_people())?;
        let now = database.env.now_micros() / 1_000;
        let applier = Arc::new(Applier::new(name.clone(), log, position, now));
        lock(&database.indexes.appliers).insert(name, applier.clone());
        database.env.spawn(Box::pin(applier.run(Arc::downgrade(database))));
    }
    Ok(())
}

async fn keep_index(database: &Arc<Database>, index: &Arc<Watched>) -> Result<(), SqlError> {
    let entries = &index.definition.entries;
    let mut record = load(database, index).await?;
    let anew = lock(&database.indexes.anew).get(entries).cloned();
    if let Some(why) = anew {
        begin_again(database, index, &mut record, &why).await?;
        // Not earlier: whoever watches would see what it was before.
        lock(&database.indexes.anew).remove(entries);
    }
    remember_places(database, index, &mut record).await?;
    if record.state == State::Failed {
        if record.has_leftovers {
            clear_failed(database, index, &mut record).await;
        }
        return Ok(());
    }
    if record.state == State::Ready {
        note_newcomers(database, index, &mut record).await?;
        make_ready(database, index);
        return Ok(());
    }
    build_index(database, index, &mut record).await
}

/// Shards that have come since it was built, and whose logs are followed for it.
async fn note_newcomers(database: &Database, index: &Watched, record: &mut IndexRecord) -> Result<(), SqlError> {
    let entries = &index.definition.entries;
    let mut come = Vec::new();
    for name in database.shard_names().into_iter().filter(|name| !record.built.contains(name)) {
        let Some(applier) = database.indexes.applier(&name) else { continue };
        if applier.turn.lock().await.following.contains_key(entries) {
            come.push(name);
        }
    }
    if come.is_empty() {
        return Ok(());
    }
    record.built.extend(come);
    store::save(database.catalog().as_ref(), entries, record).await
}

/// From here on the index is read, unless somebody has found meanwhile that it must be built anew.
fn make_ready(database: &Database, index: &Watched) {
    let anew = lock(&database.indexes.anew);
    if !anew.contains_key(&index.definition.entries) {
        index.is_ready.store(true, Ordering::SeqCst);
    }
}

/// Throws the entries of an index away. All shards have begun: if this is cut short, each one's entries are taken out
/// before its rows are counted.
async fn begin_again(
    database: &Database,
    index: &Arc<Watched>,
    record: &mut IndexRecord,
    why: &str,
) -> Result<(), SqlError> {
    let entries = &index.definition.entries;
    leave(database, entries).await;
    record.state = State::Rebuilding;
    record.error = Some(why.into());
    record.built.clear();
    record.begun = database.shard_names().into_iter().collect();
    record.has_leftovers = false;
    record.since = database.schema().version;
    store::save(database.catalog().as_ref(), entries, record).await?;
    build::clear(database, index, &EntriesOf::Index).await
}

/// Counts no shard as begun, once nothing is left of what was counted.
async fn count_anew(database: &Database, index: &Arc<Watched>, record: &mut IndexRecord) -> Result<(), SqlError> {
    let entries = &index.definition.entries;
    leave(database, entries).await;
    // If this is cut short, it is done again.
    record.built.clear();
    record.begun = database.shard_names().into_iter().collect();
    store::save(database.catalog().as_ref(), entries, record).await?;
    build::clear(database, index, &EntriesOf::Index).await?;
    record.begun.clear();
    store::save(database.catalog().as_ref(), entries, record).await
}

fn new_record(database: &Database, index: &Watched) -> IndexRecord {
    IndexRecord {
        state: State::Building,
        built: BTreeSet::new(),
        begun: BTreeSet::new(),
        error: None,
        has_leftovers: false,
        places: index.definition.places(),
        since: index.since(),
        routed: database.routing.current().version(),
        created_at: database.env.now_micros() / 1_000,
        ready_at: None,
    }
}

/// Since when rows have had the index's columns where they are now.
async fn remember_places(database: &Database, index: &Watched, record: &mut IndexRecord) -> Result<(), SqlError> {
    if record.places == index.definition.places() {
        index.has_been_since(record.since);
        return Ok(());
    }
    record.places = index.definition.places();
    record.since = index.since();
    store::save(database.catalog().as_ref(), &index.definition.entries, record).await
}

/// The appliers of shards whose rows are in indexes bring them their changes.
async fn join_built(database: &Database, records: &[(Arc<Watched>, IndexRecord)]) -> Result<(), SqlError> {
    let appliers: Vec<Arc<Applier>> = lock(&database.indexes.appliers).values().cloned().collect();
    for applier in appliers {
        let mut turn = applier.turn.lock().await;
        let mut joining = Vec::new();
        for (index, record) in records {
            if follows(record, &applier.shard) && !turn.following.contains_key(&index.definition.entries) {
                let come = positions(database, index, &applier.shard).await?;
                joining.push(Following { index: index.clone(), come, counted: BTreeSet::new() });
            }
        }
        if joining.is_empty() {
            continue;
        }
        let named = |one: Following| (one.index.definition.entries.clone(), one);
        turn.following.extend(joining.into_iter().map(named));
        applier.settle(&turn);
    }
    Ok(())
}

async fn build_index(database: &Arc<Database>, index: &Arc<Watched>, record: &mut IndexRecord) -> Result<(), SqlError> {
    begin_build(database, index).await?;
    let built = match build_rest(database, index, record).await {
        // Nobody knows when there will be room, and a build that waits for it takes what rows need.
        Err(error) if error.sqlstate == DISK_FULL => fail(database, index, record, &no_room(&error)).await,
        built => built,
    };
    // Whatever came of it: moves that it kept from beginning may begin.
    lock(&database.indexes.builds).remove(&index.definition.entries);
    built
}

async fn build_rest(database: &Arc<Database>, index: &Arc<Watched>, record: &mut IndexRecord) -> Result<(), SqlError> {
    let routed = database.routing.current().version();
    let is_begun = !record.built.is_empty() || !record.begun.is_empty();
    if index.definition.is_of_tenants() && is_begun && record.state != State::Ready {
        // Which of a bucket's entries came from the shard that was being counted cannot be told: tenants of one bucket may be
        // on several.
        count_anew(database, index, record).await?;
    } else if record.state != State::Ready && is_begun && record.routed != routed {
        // Rows may have gone from a shard that has not been counted to one that has.
        begin_again(database, index, record, "rows were moved while it was not built").await?;
    }
    record.routed = routed;
    build::build(database, index, record).await?;
    if index.definition.unique
        && let Some(why) = duplicates::duplicates(database, index).await?
    {
        return fail(database, index, record, &why).await;
    }
    record.state = State::Ready;
    record.ready_at = Some(database.env.now_micros() / 1_000);
    record.error = None;
    store::save(database.catalog().as_ref(), &index.definition.entries, record).await?;
    make_ready(database, index);
    tracing::info!(index = %index.definition.name, table = %index.definition.table, "global index is ready");
    Ok(())
}

/// It can never be what it should be, until an operator has changed something.
async fn fail(database: &Database, index: &Watched, record: &mut IndexRecord, why: &str) -> Result<(), SqlError> {
    let entries = &index.definition.entries;
    record.state = State::Failed;
    record.error = Some(why.into());
    record.has_leftovers = true;
    leave(database, entries).await;
    store::save(database.catalog().as_ref(), entries, record).await?;
    tracing::warn!(index = %index.definition.name, table = %index.definition.table, why, "global index has failed");
    clear_failed(database, index, record).await;
    Ok(())
}

/// Gives back what a failed build has taken: entries, and the logs that it has kept. Where there is no room even for that,
/// it is done later.
async fn clear_failed(database: &Database, index: &Watched, record: &mut IndexRecord) {
    let cleared = async {
        build::clear(database, index, &EntriesOf::Index).await?;
        build::leave_logs(database, index).await?;
        record.has_leftovers = false;
        store::save(database.catalog().as_ref(), &index.definition.entries, record).await
    };
    if let Err(error) = cleared.await {
        tracing::debug!(index = %index.definition.name, %error, "what a failed build has left stays for now");
    }
}

/// Lets logs go that nothing follows. Who is built anew begins with what is there then.
async fn release_logs(database: &Database) -> Result<(), SqlError> {
    let appliers: Vec<Arc<Applier>> = lock(&database.indexes.appliers).values().cloned().collect();
    for applier in appliers {
        let open = database.shards.get(&applier.shard).await.map_err(|error| error.for_people())?;
        let end = open.settled().await.map_err(|error| error.for_people())?;
        let mut turn = applier.turn.lock().await;
        if turn.following.is_empty() && end > turn.position {
            open.advance(&index_stream(), end).await.map_err(|error| error.for_people())?;
            turn.position = end;
            applier.settle(&turn);
        }
    }
    Ok(())
}

/// No applier brings an index anything any more.
async fn leave(database: &Database, entries: &Arc<str>) {
    let appliers: Vec<Arc<Applier>> = lock(&database.indexes.appliers).values().cloned().collect();
    for applier in appliers {
        applier.leave(entries).await;
    }
}

/// Waits until no rows of the index's table are being moved; from then on none begin to.
async fn begin_build(database: &Arc<Database>, index: &Arc<Watched>) -> Result<(), SqlError> {
    let (indexes, definition) = (&database.indexes, &index.definition);
    let progress = Progress { group: definition.group.clone(), rows: 0, total: None, shard: None, waits: None };
    loop {
        let gate = indexes.gate.lock().await;
        let schema = database.schema();
        let table = schema.tables.get(&definition.table);
        let moving = match table {
            Some(table) => moves::moving(database, table).await?,
            None => None,
        };
        match moving {
            None => {
                lock(&indexes.builds).insert(definition.entries.clone(), progress);
                return Ok(());
            }
            Some(plan) => {
                drop(gate);
                let mut builds = lock(&indexes.builds);
                let waits = Some(format!("move {plan}"));
                builds.insert(definition.entries.clone(), Progress { waits, ..progress.clone() });
            }
        }
        // A build that waits does not keep moves from beginning, or each would wait for the other.
        lock(&indexes.builds).remove(&definition.entries);
        database.env.sleep(WAIT).await;
        if database.is_closing() || indexes.watch.get(&definition.entries).is_none() {
            return Err(SqlError::new("57P01", "the build was given up"));
        }
    }
}

/// Finds out from where on the additions of logs are known.
async fn find_lost(database: &Database) -> Result<(), SqlError> {
    for name in database.shard_names() {
        let lost = database.indexes.watch.lost_of(&name);
        let Some(applier) = database.indexes.applier(&name).filter(|_| !lost.is_empty()) else { continue };
        let open = database.shards.get(&name).await.map_err(|error| error.for_people())?;
        let position = open.settled().await.map_err(|error| error.for_people())?;
        let turn = applier.turn.lock().await;
        for (index, number) in lost {
            if turn.following.contains_key(&index.definition.entries) {
                database.indexes.watch.found(&index, &name, number, position, turn.position);
            }
        }
        drop(turn);
        // Until it has come there, the index is not read.
        applier.hurry();
    }
    Ok(())
}

impl Database {
    /// These cannot be kept up any more, and are built anew.
    pub(super) async fn give_up_indexes(&self, shard: &ShardId, indexes: &[Arc<str>], why: &str) {
        for entries in indexes {
            let Some(index) = self.indexes.watch.get(entries) else { continue };
            tracing::warn!(index = %entries, why, "a global index is built anew");
            // Those that can be kept up go on.
            if let Some(applier) = self.indexes.applier(shard) {
                applier.leave(entries).await;
            }
            self.rebuild(&index, why);
        }
    }

    /// As an operator asks: all rows are counted again.
    pub async fn rebuild_index(&self, entries: &str) -> Result<(), SqlError> {
        let index = self.indexes.watch.get(entries);
        let index = index.ok_or_else(|| SqlError::new("42704", "there is no such global index"))?;
        if lock(&self.indexes.builds).contains_key(&index.definition.entries) {
            let message = format!("index \"{}\" is being built already", index.definition.name);
            return Err(SqlError::new("55006", message));
        }
        self.rebuild(&index, "an operator asked for it");
        Ok(())
    }

    /// From here on the index is not read; the keeper counts all rows again. It alone writes the record, or a build that
    /// is under way would say of an index without entries that it is ready.
    fn rebuild(&self, index: &Watched, why: &str) {
        let mut anew = lock(&self.indexes.anew);
        anew.insert(index.definition.entries.clone(), why.into());
        index.close();
        drop(anew);
        self.indexes.news.notify_one();
    }
}

/// What is being built, for whoever shows it.
pub(super) fn progress(indexes: &Indexes) -> BTreeMap<Arc<str>, Progress> {
    lock(&indexes.builds).clone()
}
