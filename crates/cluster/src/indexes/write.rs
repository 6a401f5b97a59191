//! Entries, written to the shards that have them.
//!
//! Appliers of all logs come at about the same time, each with parts for all entry buckets. What they bring for a shard is
//! put on one pile, and whoever is first writes all of it, entry bucket by entry bucket: so a page of the disk that several
//! of them change is written once. It goes in slices, since those who write rows wait for the group that a slice is in.

use super::apply::Trouble;
use super::{count, lock};
use crate::database::Database;
use isles_engine::entries::EntryPart;
use isles_engine::error::ShardError;
use isles_engine::fence::{Claim, Claimed};
use isles_kernel::names::{BucketId, GroupName, ShardId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::Schema;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::oneshot;

/// Entries that join one group of writers.
const SLICE: usize = 64;
/// The same, where nobody can wait: of a build, or where so many are on a pile that they must be written some day.
const LARGE_SLICE: usize = 1_024;
const MANY: usize = 30_000;
/// Others are waited for so long.
const GATHER: Duration = Duration::from_millis(10);
/// How often a part is routed anew before its error is told.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// With whom parts are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Company {
    /// Nobody: others have nothing for the same entries now.
    Nobody,
    /// The appliers of other logs.
    Others,
}

/// What waits for one shard.
#[derive(Default)]
pub(super) struct Pile {
    waiting: Mutex<Vec<Waiting>>,
    /// Held by whoever writes.
    turn: tokio::sync::Mutex<()>,
}

struct Waiting {
    parts: Vec<EntryPart>,
    written: oneshot::Sender<Vec<Failed>>,
}

/// Parts that were not written, and why.
type Failed = (Vec<EntryPart>, ShardError);

/// Writes parts to the shards that have their entry buckets, until all are written.
pub(super) async fn write(database: &Database, mut parts: Vec<EntryPart>, company: Company) -> Result<(), Trouble> {
    for attempt in 0.. {
        let by_shard = by_shard(&database.routing.current(), &database.schema(), parts)?;
        let written = futures::future::join_all(by_shard.into_iter().map(async |(shard, parts)| match company {
            Company::Nobody => Ok(write_slices(database, &shard, parts).await),
            Company::Others => write_together(database, &shard, parts).await,
        }));
        let (mut left, mut failed) = (Vec::new(), None);
        for written in written.await {
            for (batch, error) in written? {
                left.extend(batch);
                failed = Some(error);
            }
        }
        match failed {
            None => return Ok(()),
            Some(ShardError::Conflict(_)) => return Err(Trouble::Positions),
            // Nobody could tell whether it has been counted.
            Some(error) if !error.nothing_happened() && left.iter().any(|part| part.progress.is_none()) => {
                return Err(error.into());
            }
            Some(error) if attempt >= ATTEMPTS => return Err(error.into()),
            Some(ShardError::Moved { .. }) => {
                database.env.sleep(PAUSE).await;
                let refreshed = database.routing.refresh().await;
                refreshed.map_err(|error| Trouble::Later(ShardError::Unavailable(error.message)))?;
            }
            // What may have happened is written again: what has been done is left.
            Some(_) => database.env.sleep(PAUSE).await,
        }
        parts = left;
    }
    Ok(())
}

fn by_shard(
    policy: &RoutingPolicy,
    schema: &Schema,
    parts: Vec<EntryPart>,
) -> Result<BTreeMap<ShardId, Vec<EntryPart>>, Trouble> {
    let mut by_shard: BTreeMap<ShardId, Vec<EntryPart>> = BTreeMap::new();
    for part in parts {
        let unknown = || ShardError::invalid("entries of indexes are not routed");
        let shard = policy.shard_of_bucket(&schema.group_of_entries(&part.table), part.bucket).ok_or_else(unknown)?;
        by_shard.entry(shard.clone()).or_default().push(part);
    }
    Ok(by_shard)
}

/// Puts parts on a shard's pile, and waits until they are written, by whomever. An error if that one was cut off: nobody
/// knows how far it came, and their positions tell.
async fn write_together(
    database: &Database,
    shard: &ShardId,
    parts: Vec<EntryPart>,
) -> Result<Vec<Failed>, ShardError> {
    let pile = lock(&database.indexes.piles).entry(shard.clone()).or_default().clone();
    let (written, mut outcome) = oneshot::channel();
    lock(&pile.waiting).push(Waiting { parts, written });
    let turn = pile.turn.lock().await;
    // Another one may have written them while this one waited for its turn.
    if let Ok(outcome) = outcome.try_recv() {
        return Ok(outcome);
    }
    database.env.sleep(GATHER).await;
    write_pile(database, shard, &pile).await;
    drop(turn);
    outcome.await.map_err(|_| ShardError::Unavailable("writing was cut off".into()))
}

async fn write_pile(database: &Database, shard: &ShardId, pile: &Pile) {
    let waiting = std::mem::take(&mut *lock(&pile.waiting));
    let (mut all, mut answers) = (Vec::new(), Vec::new());
    for one in waiting {
        let number = answers.len();
        all.extend(one.parts.into_iter().map(|part| (number, part)));
        answers.push((one.written, Vec::new()));
    }
    all.sort_by(|(_, a), (_, b)| (&a.table, a.bucket).cmp(&(&b.table, b.bucket)));
    let many = all.iter().map(|(_, part)| part.deltas.len()).sum::<usize>() > MANY;
    for slice in slices(all, if many { LARGE_SLICE } else { SLICE }, |(_, part)| part.deltas.len()) {
        let (numbers, parts): (Vec<usize>, Vec<EntryPart>) = slice.into_iter().unzip();
        if let Some((parts, error)) = write_slice(database, shard, parts).await {
            for (number, part) in numbers.into_iter().zip(parts) {
                answers[number].1.push((vec![part], error.clone()));
            }
        }
    }
    for (answer, failed) in answers {
        // Who has gone needs no answer.
        let _ = answer.send(failed);
    }
}

async fn write_slices(database: &Database, shard: &ShardId, parts: Vec<EntryPart>) -> Vec<Failed> {
    let mut failed = Vec::new();
    for slice in slices(parts, LARGE_SLICE, |part| part.deltas.len()) {
        failed.extend(write_slice(database, shard, slice).await);
    }
    failed
}

/// Divides parts into slices of so many entries at most. A part is never divided: its position is one.
fn slices<T>(all: Vec<T>, most: usize, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut slices: Vec<(usize, Vec<T>)> = Vec::new();
    for one in all {
        let more = size(&one);
        match slices.last_mut() {
            Some((entries, slice)) if *entries + more <= most => {
                *entries += more;
                slice.push(one);
            }
            _ => slices.push((more, vec![one])),
        }
    }
    slices.into_iter().map(|(_, slice)| slice).collect()
}

/// Writes parts in one commit.
async fn write_slice(database: &Database, shard: &ShardId, parts: Vec<EntryPart>) -> Option<Failed> {
    let schema = database.schema();
    let claimed = |part: &EntryPart| (schema.group_of_entries(&part.table), part.bucket);
    let units: BTreeSet<(GroupName, BucketId)> = parts.iter().map(claimed).collect();
    let units = units.into_iter().map(|(group, bucket)| Claimed::Bucket(group, bucket)).collect();
    let written = async {
        let open = database.shards.get(shard).await?;
        let claim = Claim::new(database.routing.current().version(), units);
        match open.maintain(claim, parts.clone()).await {
            Err(ShardError::Stopped(why)) => {
                database.shards.reopen(shard).await?;
                Err(ShardError::Unavailable(why))
            }
            written => written,
        }
    };
    match written.await {
        Ok(()) => {
            let entries = parts.iter().map(|part| part.deltas.len() as u64).sum();
            count(&database.indexes.counted.entries, entries);
            None
        }
        Err(error) => Some((parts, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_no_larger_than_it_must_be() {
        let sizes = |all: &[usize]| -> Vec<usize> {
            slices(all.to_vec(), 64, |size| *size).iter().map(|slice| slice.iter().sum()).collect()
        };
        assert_eq!(sizes(&[]), Vec::<usize>::new());
        assert_eq!(sizes(&[60, 4, 1, 0]), [64, 1]);
        assert_eq!(sizes(&[1, 200, 1]), [1, 200, 1], "a part is not divided");
    }
}
