//! Changes of the giver, applied to the taker in the order of the giver's log.
//!
//! ```text
//! giver's log ─ page ─ of what moves ─► taker: rows and position, one transaction ─► giver: the log may go
//! ```
//!
//! The position is the taker's: it is stored with the rows, so what was applied is known after any crash. The giver's
//! log is told later, and never more than the taker has.
//!
//! A lag that has not been measured is not zero (`None`); and a shard that is busy with others' rows does not make a
//! move late: their changes are passed over.

use super::Planted;
use super::lane::{Halt, Lane};
use crate::database::shards::OpenShard;
use isles_engine::error::ShardError;
use isles_engine::shard::{EVENT_ROWS, Incoming, Snapshot};
use isles_kernel::change::Change;
use isles_kernel::names::Seq;
use std::time::Duration;

/// Changes read at once.
const PAGE: usize = *EVENT_ROWS.end();

/// How long the mirror waits for the giver's writer to tell it how far it is: shorter than the driver's lease.
const TELL_LIMIT: Duration = Duration::from_millis(500);

/// Where the mirror stands.
#[derive(Debug, Clone, Default)]
pub(super) struct Mirror {
    /// Everything of the giver's log up to here is with the taker.
    pub(super) position: Seq,
    /// The same, as the taker has stored it; what was passed over since needs no transaction.
    stored: Seq,
    /// What the giver's log has been told.
    told: Seq,
    /// Changes that were applied.
    pub(super) applied: u64,
}

/// What one page brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mirrored {
    /// As much as a page holds: there is more.
    Full,
    /// What there was.
    Some,
    /// There was nothing new.
    Nothing,
}

impl Mirror {
    /// Finds where the mirror of a lane stands. It is a loss for good if the giver's log does not know of it any more.
    pub(super) async fn open(lane: &Lane) -> Result<Mirror, Halt> {
        let known = lane.giver().await?.consumers().await?;
        let consumer = known.into_iter().find(|consumer| consumer.stream == lane.stream);
        let lost = || ShardError::Trimmed { trimmed: 0 };
        let told = consumer.ok_or_else(lost)?.position;
        let stored = lane.taker().await?.stream_state(&lane.stream).await?.position;
        Ok(Mirror { position: stored.max(told), stored, told, applied: 0 })
    }

    /// Applies the next page of the log, but nothing behind `through`.
    pub(super) async fn page(&mut self, lane: &Lane, through: Option<Seq>) -> Result<Mirrored, Halt> {
        let page = lane.giver().await?.changes(self.position, PAGE).await?;
        let end = through.map_or(page.through, |through| page.through.min(through));
        if end <= self.position {
            return Ok(Mirrored::Nothing);
        }
        let rows = moving(lane, &page.changes, end);
        self.applied += rows.len() as u64;
        if !rows.is_empty() {
            lane.taker().await?.apply(lane.changes(rows, Some(end))).await?;
            self.stored = end;
        }
        self.position = end;
        Ok(if page.changes.len() < PAGE { Mirrored::Some } else { Mirrored::Full })
    }

    /// Applies everything up to a position.
    pub(super) async fn to(&mut self, lane: &Lane, through: Seq) -> Result<(), Halt> {
        while self.position < through {
            self.page(lane, Some(through)).await?;
        }
        Ok(())
    }

    /// Applies everything of what moves that a snapshot of the giver shows, and nothing else.
    ///
    /// While others have a transaction under way, a log on PostgreSQL has a gap that the position does not pass, but the
    /// snapshot shows what was committed behind it. That is applied out of turn, and again when the gap is closed.
    pub(super) async fn follow_snapshot(&mut self, lane: &Lane, snapshot: &mut dyn Snapshot) -> Result<(), Halt> {
        self.to(lane, snapshot.seq()).await?;
        let later = snapshot.later_changes().await?;
        let (last, mut after) = (later.last().copied().unwrap_or_default(), self.position);
        while after < last {
            let mut page = lane.giver().await?.committed_changes(after, PAGE).await?;
            if page.through <= after {
                break;
            }
            after = page.through;
            page.changes.retain(|change| later.contains(&change.seq));
            let rows = moving(lane, &page.changes, after);
            if !rows.is_empty() {
                lane.taker().await?.apply(lane.changes(rows, None)).await?;
            }
        }
        Ok(())
    }

    /// Applies everything that the giver has committed of what moves, while nothing of that is under way any more.
    ///
    /// Writers wait meanwhile, so it reads what is committed and asks no further: what others have under way on the giver
    /// may leave gaps in its log, but what moves has none. The position stays where it is, since it may not pass gaps;
    /// what is applied twice changes nothing.
    pub(super) async fn drain(&mut self, lane: &Lane) -> Result<(), Halt> {
        let giver = lane.giver().await?;
        if lane.database.moves.plants(Planted::NoDrain) {
            return Ok(());
        }
        let mut after = self.position;
        loop {
            let page = giver.committed_changes(after, PAGE).await?;
            let rows = moving(lane, &page.changes, page.through);
            if !rows.is_empty() {
                lane.taker().await?.apply(lane.changes(rows, None)).await?;
            }
            // What comes later is not of what moves.
            if page.changes.len() < PAGE {
                return Ok(());
            }
            after = page.through;
        }
    }

    /// Mirrors the last changes again, as if they were new.
    pub(super) async fn replay(&self, lane: &Lane) -> Result<(), Halt> {
        let page = lane.giver().await?.changes(Seq(self.position.0.saturating_sub(8)), PAGE).await?;
        let newer = |row: Incoming| Incoming { version: lane.version(Seq(row.version.seq.0 + (1 << 40))), ..row };
        let rows = moving(lane, &page.changes, page.through).into_iter().map(newer).collect();
        lane.taker().await?.apply(lane.changes(rows, None)).await?;
        Ok(())
    }

    /// How far the giver's log is ahead.
    pub(super) async fn lag(&self, lane: &Lane) -> Result<u64, Halt> {
        let head = lane.giver().await?.seq().await?;
        Ok(head.0.saturating_sub(self.position.0))
    }

    /// Stores the position, and lets the giver's log go as far.
    pub(super) async fn keep(&mut self, lane: &Lane) -> Result<(), Halt> {
        if self.position > self.stored {
            lane.taker().await?.apply(lane.changes(Vec::new(), Some(self.position))).await?;
            self.stored = self.position;
        }
        if self.stored > self.told {
            let giver = lane.giver().await?;
            tokio::select! {
                biased;
                advanced = giver.advance(&lane.stream, self.stored) => {
                    advanced?;
                    self.told = self.stored;
                }
                // Its writer is taken. The log stays as long as it is, and the mirror goes on.
                () = lane.database.env.sleep(TELL_LIMIT) => {}
            }
        }
        Ok(())
    }
}

/// Begins to capture the changes of a shard, and notes on the other one where they begin.
pub(super) async fn watch(lane: &Lane, watched: &OpenShard, other: &OpenShard) -> Result<(), Halt> {
    let from = watched.add_consumer(&lane.stream).await?;
    other.apply(lane.changes(Vec::new(), Some(from))).await?;
    Ok(())
}

/// The changes of what moves, up to a position.
fn moving(lane: &Lane, changes: &[Change], end: Seq) -> Vec<Incoming> {
    let policy = lane.policy();
    let ours = changes.iter().filter(|change| change.seq <= end && lane.units.contains(&change.unit, &policy));
    let keeps_deletes = !lane.database.moves.plants(Planted::IgnoreDeletes);
    let ours = ours.filter(|change| keeps_deletes || change.after.is_some());
    let incoming = |change: &Change| Incoming {
        table: change.table.clone(),
        unit: change.unit.clone(),
        key: change.key.clone(),
        version: lane.version(change.seq),
        row: change.after.clone(),
    };
    ours.map(incoming).collect()
}
