//! What the catalog keeps of a commit over several shards, and how it is carried out after a crash.
//!
//! ```text
//! commit/{id}/redo/{n}   the redo of all participants, one after the other, cut into pieces
//! commit/{id}/decision   who takes part, and where in the redo their part is
//! ```
//!
//! The decision is written last, with the last piece of the redo, so whoever finds one finds all of it. Pieces without
//! a decision are of a commit that did not come that far; they are removed.
//!
//! The recovery runs before the database serves anyone, and again when a shard is opened anew. A decision is carried
//! out on each participant, which is harmless when it is done already, and only then removed. A crash in between
//! begins again.

use super::Verdict;
use crate::catalog::{Catalog, CatalogError, CommitId, Condition, Key, PAGE_RECORDS_MAX, Record, Transaction, Write};
use crate::database::shards::ShardSet;
use isles_engine::env::Env;
use isles_engine::error::ShardError;
use isles_engine::shard::{Engine, Shard};
use isles_kernel::error::SqlError;
use isles_kernel::names::{PledgeId, ShardId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All records of commits.
const PREFIX: &str = "commit/";
/// A piece of the redo: below the catalog's largest value, and so that the decision fits beside it.
const CHUNK_BYTES: usize = 1 << 20;
/// All redo of one transaction. Every byte goes to the catalog's disk once more, and to memory during recovery.
const MAX_TOTAL_BYTES: usize = 64 << 20;
/// How often a decision whose answer was lost is sent again: a catalog that does not answer twice has stopped.
const SENDINGS: usize = 2;

/// Who takes part in a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Decision {
    pub(crate) participants: Vec<Part>,
    /// Pieces of the redo.
    pub(crate) chunks: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) shard: ShardId,
    /// Where its redo is, as offset and length; None for a shard that keeps its pledge by itself.
    pub(crate) redo: Option<(usize, usize)>,
}

/// A decision, and the shards that have not carried it out.
pub(crate) struct Decided {
    pub(crate) decision: Decision,
    pub(crate) late: Vec<ShardId>,
}

impl Decision {
    /// From the participants and the lengths of their redo.
    pub(crate) fn new(parts: impl Iterator<Item = (ShardId, Option<usize>)>) -> Decision {
        let mut at = 0;
        let mut place = |(shard, length): (ShardId, Option<usize>)| {
            let redo = length.map(|length| (at, length));
            at += length.unwrap_or(0);
            Part { shard, redo }
        };
        let participants: Vec<Part> = parts.map(&mut place).collect();
        Decision { participants, chunks: at.div_ceil(CHUNK_BYTES) }
    }
}

fn key(id: &PledgeId, rest: &str) -> Key {
    Key::new(format!("{PREFIX}{id}/{rest}")).expect("a short name without control characters is a key")
}

fn chunk_key(id: &PledgeId, n: usize) -> Key {
    key(id, &format!("redo/{n:04}"))
}

/// What went wrong with the catalog, for people.
pub fn catalog_error(error: CatalogError) -> SqlError {
    let message = error.to_string();
    match error {
        CatalogError::MayHaveHappened(_) => SqlError::new("08007", message),
        CatalogError::Conflict { .. } => SqlError::new("40001", message).with_hint("retry the transaction"),
        CatalogError::Limit { .. } => SqlError::new("54000", message),
        CatalogError::Busy(_) => SqlError::new("53400", message),
        CatalogError::Stopped(_) => SqlError::new("57P03", message).with_hint("check the disk, then restart"),
        _ => SqlError::new("XX000", message),
    }
}

/// Writes the redo and then the decision, which is the commit point; what else is decided is in `with`.
pub(super) async fn record(
    catalog: &dyn Catalog,
    env: &dyn Env,
    id: &PledgeId,
    decision: &Decision,
    redo: &[u8],
    with: Transaction,
) -> Verdict {
    if redo.len() > MAX_TOTAL_BYTES {
        let message = format!("a transaction over several shards changes at most {MAX_TOTAL_BYTES} bytes");
        let hint = "write less in one transaction, or keep it to one shard";
        return Verdict::Refused(SqlError::new("54000", message).with_hint(hint));
    }
    let pieces: Vec<&[u8]> = redo.chunks(CHUNK_BYTES).collect();
    // Beside other writes there may be no room for a piece.
    let (last, earlier) = match pieces.split_last() {
        Some((last, earlier)) if with.writes.is_empty() => (Some(*last), earlier),
        _ => (None, &pieces[..]),
    };
    for (n, piece) in earlier.iter().enumerate() {
        if let Err(error) = catalog.commit(Transaction::new().put(chunk_key(id, n), *piece)).await {
            // Without a decision the pieces mean nothing, whether or not this one is there.
            let _ = forget(catalog, id, pieces.len()).await;
            return Verdict::Refused(catalog_error(error));
        }
    }
    let mut transaction = with.once(CommitId::random(env)).when(Condition::Absent(key(id, "decision")));
    if let Some(last) = last {
        transaction = transaction.put(chunk_key(id, earlier.len()), last);
    }
    match transaction.put_json(key(id, "decision"), decision) {
        Ok(transaction) => {
            let verdict = decide(catalog, transaction).await;
            if matches!(verdict, Verdict::Refused(_)) && !earlier.is_empty() {
                let _ = forget(catalog, id, pieces.len()).await;
            }
            verdict
        }
        Err(error) => Verdict::Refused(catalog_error(error)),
    }
}

async fn decide(catalog: &dyn Catalog, transaction: Transaction) -> Verdict {
    let mut in_doubt = None;
    for _ in 0..SENDINGS {
        match (catalog.commit(transaction.clone()).await, &in_doubt) {
            (Ok(_), _) => return Verdict::Recorded,
            (Err(error @ CatalogError::MayHaveHappened(_)), _) => in_doubt = Some(catalog_error(error)),
            (Err(error), None) => return Verdict::Refused(catalog_error(error)),
            (Err(_), Some(_)) => break,
        }
    }
    let lost = || SqlError::new("08007", "the transaction may have happened");
    Verdict::Unknown(in_doubt.unwrap_or_else(lost))
}

/// Removes a decision and its redo, in one step.
pub(super) async fn forget(catalog: &dyn Catalog, id: &PledgeId, chunks: usize) -> Result<(), SqlError> {
    let mut transaction = Transaction::new().delete(key(id, "decision"));
    transaction.writes.extend((0..chunks).map(|n| Write::Delete(chunk_key(id, n))));
    catalog.commit(transaction).await.map(drop).map_err(catalog_error)
}

/// All that the catalog knows of one commit.
#[derive(Default)]
struct Found {
    decision: Option<Decision>,
    chunks: usize,
}

/// All commits that the catalog knows of. Their redo stays there: it may be large.
async fn list(catalog: &dyn Catalog) -> Result<BTreeMap<PledgeId, Found>, SqlError> {
    let mut found: BTreeMap<PledgeId, Found> = BTreeMap::new();
    let mut after: Option<Key> = None;
    loop {
        let page = catalog.list(PREFIX, after.as_ref(), PAGE_RECORDS_MAX).await.map_err(catalog_error)?;
        for record in &page.records {
            note(&mut found, record)?;
        }
        match page.records.last() {
            Some(last) if page.more => after = Some(last.key.clone()),
            _ => return Ok(found),
        }
    }
}

fn note(found: &mut BTreeMap<PledgeId, Found>, record: &Record) -> Result<(), SqlError> {
    let damaged = || SqlError::new("XX001", format!("the catalog's record {} makes no sense", record.key));
    let rest = record.key.as_str().strip_prefix(PREFIX).ok_or_else(damaged)?;
    let (id, what) = rest.split_once('/').ok_or_else(damaged)?;
    let commit = found.entry(PledgeId::new(id).map_err(|_| damaged())?).or_default();
    match what {
        "decision" => commit.decision = Some(record.json().map_err(catalog_error)?),
        _ => commit.chunks += 1,
    }
    Ok(())
}

async fn read_redo(catalog: &dyn Catalog, id: &PledgeId, (at, length): (usize, usize)) -> Result<Vec<u8>, SqlError> {
    let missing = || SqlError::new("XX001", format!("the catalog has lost the redo of {id}"));
    let mut bytes = Vec::with_capacity(length);
    let mut position = at;
    while bytes.len() < length {
        let n = position / CHUNK_BYTES;
        let piece = catalog.get(&chunk_key(id, n)).await.map_err(catalog_error)?.value.ok_or_else(missing)?;
        let from = position - n * CHUNK_BYTES;
        let wanted = (length - bytes.len()).min(piece.value.len().saturating_sub(from));
        if wanted == 0 {
            return Err(missing());
        }
        bytes.extend_from_slice(&piece.value[from..from + wanted]);
        position += wanted;
    }
    Ok(bytes)
}

pub(super) async fn redeem(
    catalog: &dyn Catalog,
    shard: &dyn Shard,
    id: &PledgeId,
    part: &Part,
) -> Result<(), SqlError> {
    let redo = match part.redo {
        Some(place) => Some(read_redo(catalog, id, place).await?),
        None => None,
    };
    shard.redeem(id, redo).await.map_err(|error| error.for_people())
}

/// Carries out on one shard, which serves nobody yet, whatever is decided for it.
pub(crate) async fn redeem_shard(catalog: &dyn Catalog, shard: &dyn Shard) -> Result<(), ShardError> {
    let failed = |error: SqlError| ShardError::Unavailable(format!("a decided commit cannot be carried out: {error}"));
    for (id, found) in list(catalog).await.map_err(failed)? {
        let parts = found.decision.into_iter().flat_map(|decision| decision.participants);
        for part in parts.filter(|part| part.shard == *shard.id()) {
            redeem(catalog, shard, &id, &part).await.map_err(failed)?;
        }
    }
    Ok(())
}

/// Carries out what is decided and takes back what is not, but for what is running. Returns how many decisions must
/// wait, since one of their shards cannot be reached.
///
/// Who is running is asked after the first look: what was there then and is not running now has ended, and whether it
/// was decided is in the catalog by then. Asked before it, a transaction that has begun in between would look like one
/// that was left behind, and its pledges would be taken back while it commits.
pub(crate) async fn recover(
    catalog: &dyn Catalog,
    shards: &ShardSet,
    prefix: &str,
    running: impl Fn() -> BTreeSet<PledgeId>,
) -> Result<usize, SqlError> {
    let before: BTreeSet<PledgeId> = list(catalog).await?.into_keys().collect();
    let pledged = pledged_on_servers(shards, prefix).await;
    let running = running();
    let found = list(catalog).await?;
    let mut waiting = 0;
    for (id, found) in found.iter().filter(|(id, _)| before.contains(*id) && !running.contains(*id)) {
        let done = match &found.decision {
            Some(decision) => carry_out(catalog, shards, id, decision).await,
            None => true,
        };
        match done {
            true => forget(catalog, id, found.chunks).await?,
            false => waiting += 1,
        }
    }
    let decided = |id: &PledgeId| found.get(id).is_some_and(|found| found.decision.is_some());
    for (shard, id) in pledged.iter().filter(|(_, id)| !running.contains(id) && !decided(id)) {
        // One that cannot be taken back now is found by the next sweep.
        let _ = shard.revoke(id).await;
    }
    Ok(waiting)
}

/// The pledges that servers keep. A server that cannot be asked is asked by the next sweep.
async fn pledged_on_servers(shards: &ShardSet, prefix: &str) -> Vec<(Arc<dyn Shard>, PledgeId)> {
    let mut pledged = Vec::new();
    for (name, engine) in shards.all() {
        if engine == Engine::Postgres
            && let Ok(shard) = shards.get(&name).await
            && let Ok(pledges) = shard.pledges(prefix).await
        {
            pledged.extend(pledges.into_iter().map(|id| (shard.clone(), id)));
        }
    }
    pledged
}

/// Whether all participants have it.
async fn carry_out(catalog: &dyn Catalog, shards: &ShardSet, id: &PledgeId, decision: &Decision) -> bool {
    let mut all = true;
    for part in &decision.participants {
        let done = match shards.get(&part.shard).await {
            Ok(shard) => redeem(catalog, &*shard, id, part).await.is_ok(),
            Err(_) => false,
        };
        all &= done;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_says_where_each_redo_is() {
        let shard = |n: usize| ShardId::new(format!("s{n}")).expect("valid");
        let parts = [(shard(0), Some(10)), (shard(1), None), (shard(2), Some(CHUNK_BYTES))];
        let decision = Decision::new(parts.into_iter());
        let places: Vec<_> = decision.participants.iter().map(|part| part.redo).collect();
        assert_eq!(places, vec![Some((0, 10)), None, Some((10, CHUNK_BYTES))]);
        assert_eq!(decision.chunks, 2);
    }

    /// I-20: a sweep leaves alone what is running when it has looked, and what came after its first look. If it asked who
    /// is running before it looks, a transaction that begins in between would look like one that was left behind.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_sweep_touches_neither_what_runs_nor_what_came_after_it_looked() {
        use crate::database::{Config, Database};
        let folder = tempfile::tempdir().expect("a folder");
        let env = Arc::new(isles_engine::env::TokioEnv::current());
        let database = Database::open(Config::sqlite(folder.path(), 2), env).await.expect("it opens");
        let catalog = database.catalog().clone();
        let id = |name: &str| PledgeId::new(format!("isles-test-{name}")).expect("valid");
        let decide = async |name: &str| {
            let nobody = Decision::new(std::iter::empty());
            let put = Transaction::new().put_json(key(&id(name), "decision"), &nobody).expect("it is small");
            catalog.commit(put).await.expect("it is recorded");
        };
        decide("left").await;
        decide("running").await;
        let running = || {
            // Here the first look has been taken.
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(decide("late")));
            BTreeSet::from([id("running")])
        };
        let waiting = recover(&*catalog, &database.shards, "isles-test-", running).await.expect("it sweeps");
        assert_eq!(waiting, 0);
        let found: Vec<PledgeId> = list(&*catalog).await.expect("it lists").into_keys().collect();
        assert_eq!(found, [id("late"), id("running")], "only what was left behind is carried out and forgotten");
    }
}
