//! What must hold, from what clients were told and what is there in the end.

use crate::clients::{Outcome, POISON, SCHEMA, Shared, Told, WRITERS};
use crate::{TENANTS, shard};
use isles_cluster::database::Database;
use isles_fragments::context::ShardContext;
use isles_fragments::hooks::Processor;
use isles_fragments::store::Handle;
use isles_kernel::sync::{Cursor, Entry, Op, OutboxQuery, RowKey, SnapshotQuery, SnapshotRow, Values};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Hooks that are listed as given up, at most.
const DEAD_MAX: usize = 1_000;

type State = BTreeMap<RowKey, Values>;

/// What is not at its end yet, if anything.
pub(crate) async fn busy(
    database: &Arc<Database>,
    app: &Handle,
    processor: &Processor,
    told: &Shared,
) -> Result<Option<String>, String> {
    {
        let told = told.lock().unwrap();
        if told.requests.values().flatten().any(|sent| sent.answer.is_none()) {
            return Ok(Some("a request".into()));
        }
        if told.ended < TENANTS.len() as u64 * WRITERS {
            return Ok(Some("a writer".into()));
        }
    }
    let moves = database.moves().await.map_err(|error| error.to_string())?;
    if let Some(plan) = moves.iter().find(|plan| plan.is_active()) {
        return Ok(Some(format!("the move {plan:?}")));
    }
    for tenant in TENANTS {
        let next = processor.next_wake_ms(&shard(tenant)).await.map_err(|error| error.to_string())?;
        if next.is_some() {
            return Ok(Some(format!("a hook of {tenant}")));
        }
        let log = log(app, tenant).await?;
        let read = told.lock().unwrap().readers.get(tenant).map_or(0, |reader| reader.entries.len());
        if read < log.len() {
            return Ok(Some(format!("the reader of {tenant}, at {read} of {}", log.len())));
        }
    }
    Ok(None)
}

pub(crate) async fn completed_moves(database: &Arc<Database>) -> Result<u64, String> {
    let moves = database.moves().await.map_err(|error| error.to_string())?;
    Ok(moves.iter().filter(|plan| !plan.is_active()).count() as u64)
}

async fn log(app: &Handle, tenant: &str) -> Result<Vec<Entry>, String> {
    let (mut entries, mut after) = (Vec::new(), Cursor::START);
    loop {
        let query = OutboxQuery { after: Some(after), ..OutboxQuery::default() };
        let page = ShardContext.with(shard(tenant), || app.store().outbox(&query)).await;
        let page = page.map_err(|error| format!("I-64: the outbox of {tenant}: {error}"))?;
        page.check(after).map_err(|broken| format!("I-29: the log of {tenant} is broken: {broken}"))?;
        after = page.next;
        let has_more = page.has_more();
        entries.extend(page.entries);
        if !has_more {
            return Ok(entries);
        }
    }
}

fn state_of(rows: &[SnapshotRow]) -> State {
    rows.iter().map(|row| (row.key.clone(), row.values.clone())).collect()
}

/// The rows that entries lead to.
fn replay<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Result<State, String> {
    let mut state = State::new();
    for mutation in entries.into_iter().flat_map(|entry| &entry.mutations) {
        let key = mutation.key.clone();
        match mutation.op {
            Op::Create => {
                if state.insert(key.clone(), mutation.values.clone()).is_some() {
                    return Err(format!("I-29: {key} is made twice"));
                }
            }
            Op::Update => {
                let row = state.get_mut(&key).ok_or_else(|| format!("I-29: {key} is changed, and is not there"))?;
                row.merge(&mutation.values);
            }
            Op::Delete => {
                state.remove(&key).ok_or_else(|| format!("I-29: {key} is removed, and is not there"))?;
            }
        }
    }
    Ok(state)
}

/// Ids of the rows of a table, as the log has made them.
fn made<'a>(log: &'a [Entry], table: &str) -> Vec<&'a str> {
    let mutations = log.iter().flat_map(|entry| &entry.mutations);
    let made = mutations.filter(|mutation| mutation.op == Op::Create && mutation.key.table == table);
    made.map(|mutation| mutation.key.external_id.as_str()).collect()
}

pub(crate) async fn all(app: &Handle, processor: &Processor, told: &Shared) -> Result<(), String> {
    for tenant in TENANTS {
        let log = log(app, tenant).await?;
        let page = {
            let query = SnapshotQuery::default();
            ShardContext.with(shard(tenant), || app.store().snapshot(&query)).await
        };
        let page = page.map_err(|error| format!("I-64: the rows of {tenant}: {error}"))?;
        let dead = processor.dead(&shard(tenant), DEAD_MAX).await.map_err(|error| error.to_string())?;
        let dead: BTreeSet<String> = dead.into_iter().map(|dead| dead.id).collect();
        let told = told.lock().unwrap();
        if replay(&log)? != state_of(&page.rows) {
            return Err(format!("I-29: the log of {tenant} does not lead to its rows"));
        }
        check_units(&told, tenant, &log)?;
        check_reader(&told, tenant, &log)?;
        check_hooks(&told, tenant, &log, &dead)?;
    }
    Ok(())
}

/// What was acknowledged is in the log once, what was refused is not, and nothing of another tenant's is.
fn check_units(told: &Told, tenant: &str, log: &[Entry]) -> Result<(), String> {
    let mut marks: BTreeMap<&str, u64> = BTreeMap::new();
    for token in made(log, "marks") {
        *marks.entry(token).or_default() += 1;
    }
    let own = |token: &&String| token.starts_with(&format!("{tenant}-"));
    for (token, outcome) in told.units.iter().filter(|(token, _)| own(token)) {
        let times = marks.remove(token.as_str()).unwrap_or_default();
        let fits = match outcome {
            Outcome::Done => times == 1,
            Outcome::Refused => times == 0,
            Outcome::Unknown => times <= 1,
        };
        if !fits {
            return Err(format!("I-29: {token} was told {outcome:?}, and is in the log {times} times"));
        }
    }
    marks.keys().next().map_or(Ok(()), |token| Err(format!("I-41: the log of {tenant} has {token}")))
}

/// The reader has seen this log and no other, and every snapshot is a state of it.
fn check_reader(told: &Told, tenant: &str, log: &[Entry]) -> Result<(), String> {
    let Some(reader) = told.readers.get(tenant) else { return Err(format!("{tenant} has no reader")) };
    if reader.entries != log {
        return Err(format!("I-32: the reader of {tenant} has seen something else than there is"));
    }
    for (cursor, rows) in &reader.snapshots {
        let until = cursor.version().get() as usize;
        if log.get(..until).and_then(|log| log.last()).and_then(Entry::cursor).unwrap_or(Cursor::START) != *cursor {
            return Err(format!("I-34: a snapshot of {tenant} is at {cursor}, which is nowhere in the log"));
        }
        if replay(&log[..until])? != state_of(rows) {
            return Err(format!("I-34: a snapshot of {tenant} at {cursor} is not what the log leads to there"));
        }
    }
    Ok(())
}

/// Hooks ran if their unit of work is there, and have had their effect once or are listed as given up.
fn check_hooks(told: &Told, tenant: &str, log: &[Entry], dead: &BTreeSet<String>) -> Result<(), String> {
    let marks: BTreeSet<&str> = made(log, "marks").into_iter().collect();
    let own = |token: &str| token.starts_with(&format!("{tenant}-"));
    if let Some(token) = told.runs.keys().find(|token| own(token) && !marks.contains(token.as_str())) {
        return Err(format!("I-33: the hook {token} ran, and its unit of work is not there"));
    }
    let effects = made(log, "effects");
    let once: BTreeSet<&str> = effects.iter().copied().collect();
    if once.len() != effects.len() {
        return Err(format!("I-32: a hook of {tenant} has had its effect twice"));
    }
    let committed = told.triggered.iter().filter(|(token, _)| own(token) && marks.contains(token.as_str()));
    let mut expected = (BTreeSet::new(), BTreeSet::new());
    for (token, fails) in committed {
        match *fails == POISON {
            true => expected.1.insert(format!("{SCHEMA}/{token}")),
            false => expected.0.insert(token.as_str()),
        };
    }
    if once != expected.0 {
        let missing: Vec<_> = expected.0.symmetric_difference(&once).collect();
        return Err(format!("I-32: hooks of {tenant} with an effect that should have none, or none: {missing:?}"));
    }
    match *dead == expected.1 {
        true => Ok(()),
        false => Err(format!("I-35: {tenant} has given up {dead:?}, and should have {:?}", expected.1)),
    }
}
