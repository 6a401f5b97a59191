//! Fences and routing: who serves.
//!
//! ```text
//! prepare   taker: closed, with strangers; leftovers of an earlier try are gone ─► capture on the giver
//! switch    giver: read only ─► drained ─► routing + 1 and the plan, one commit
//! settle    giver: closed, at the new version ─► drained ─► taker: open, at the new version
//! unfence   giver: open, at the version that holds, where it was shut
//! ```
//!
//! Fences are set in the name of the plan's stream, whose driver the shard knows: what a driver asks for that has been
//! replaced is refused, however late it comes.

use super::clean;
use super::lane::{Halt, Lane};
use super::mirror::{self, Mirror};
use super::store::{self, Stored, Unsaved};
use super::verify::{self, Comparison};
use super::{Planted, now};
use crate::catalog::{CommitId, LeaseToken, Transaction};
use crate::commit::decision::catalog_error;
use crate::database::shards::OpenShard;
use crate::database::{Strategy, routing};
use isles_engine::fence::{Fence, FenceMode};
use isles_engine::shard::Engine;
use isles_kernel::error::SqlError;
use isles_kernel::moves::{Direction, Event, Plan, Units, Verification, VerificationStatus};
use isles_kernel::names::RoutingVersion;
use isles_kernel::routing::RoutingError;
use std::time::Duration;

/// How long fences wait for transactions where no client is held up.
const FENCE_TIME: Duration = Duration::from_secs(10);
/// A switch compares all rows once more while writers wait, if there are no more than these.
const COMPARED_ROWS: u64 = 1_000;
/// And if that takes no longer than this part of the pause that is left. Rows may be large, and they have been compared.
const COMPARING_SHARE: u32 = 4;
/// Clients that a taker is made ready for at least: a SQLite shard does not count those that it has.
const EXPECTED_CLIENTS: usize = 8;
/// How often a commit is tried that others overtake.
const ATTEMPTS: usize = 20;

impl Lane {
    async fn fence(&self, shard: &OpenShard, fences: Vec<Fence>, time: Duration) -> Result<(), Halt> {
        Ok(shard.set_fences_as(&self.stream, self.driver, fences, time).await?)
    }

    /// Sets the fences of what moves, and says that there are strangers.
    async fn fence_units(
        &self,
        shard: &OpenShard,
        version: RoutingVersion,
        mode: FenceMode,
        time: Duration,
    ) -> Result<(), Halt> {
        let mut fences = self.fences(shard, version, mode).await?;
        // Of tenants both shards have been told before anything moved: here clients may wait.
        if let Some(group) = self.units.group() {
            self.database.note_strangers(shard.id(), group);
            fences.extend(self.new_strangers(shard).await?);
        }
        self.fence(shard, fences, time).await
    }

    /// Says that a shard has, or will have, tenants that are not its own: whoever reads all tenants must leave them out.
    async fn crowd(&self, shard: &OpenShard) -> Result<(), Halt> {
        if self.units.group().is_some() {
            return Ok(());
        }
        self.database.note_strangers(shard.id(), &self.crowded());
        let fences = self.new_strangers(shard).await?;
        self.fence(shard, fences.into_iter().collect(), FENCE_TIME).await
    }
}

impl Lane {
    /// The fence that says that a shard has strangers, unless it says so already: several plans may bring some.
    async fn new_strangers(&self, shard: &OpenShard) -> Result<Option<Fence>, Halt> {
        let wanted = self.strangers(self.policy().version(), FenceMode::Closed);
        let known = shard.fences().await?;
        let is_closed = |wanted: &Fence| known.iter().any(|f| f.scope == wanted.scope && f.mode == FenceMode::Closed);
        Ok(Some(wanted).filter(|wanted| !is_closed(wanted)))
    }
}

impl Lane {
    /// What opens the units that a shard does not let be written. A switch that was given up before it had fenced anyone has
    /// none: to set its fences anew would wait for the transaction that it was given up for, and others behind it.
    async fn still_fenced(&self, shard: &OpenShard, version: RoutingVersion) -> Result<Vec<Fence>, Halt> {
        // Who changes fences comes one after the other: what was asked for before is there now, or never comes.
        self.fence(shard, Vec::new(), FENCE_TIME).await?;
        let known = shard.fences().await?;
        let is_shut = |fence: &Fence| {
            known.iter().any(|known| known.scope.overlaps(&fence.scope) && known.mode != FenceMode::Open)
        };
        let fences = self.fences(shard, version, FenceMode::Open).await?;
        Ok(fences.into_iter().filter(is_shut).collect())
    }
}

/// Makes the taker ready, and begins to capture.
pub(super) async fn prepare(lane: &Lane, plan: &Plan) -> Result<Event, Halt> {
    lane.database.check_schema_of(&lane.taker).await?;
    let (giver, taker) = (lane.giver().await?, lane.taker().await?);
    let policy = lane.database.routing.refresh().await?;
    {
        let _one_at_a_time = lane.database.moves.strangers.lock().await;
        lane.crowd(&taker).await?;
        lane.fence_units(&taker, policy.version(), FenceMode::Closed, FENCE_TIME).await?;
        lane.crowd(&giver).await?;
    }
    give_taker(lane).await?;
    clean::discard(lane, &taker).await?;
    mirror::watch(lane, &giver, &taker).await?;
    let tables = isles_kernel::moves::tables_of(&plan.units, &lane.database.schema(), &policy);
    Ok(Event::Prepared { tables })
}

/// Where each tenant has a shard of its own, the taker becomes its second one.
async fn give_taker(lane: &Lane) -> Result<(), Halt> {
    let (Strategy::Adapter, Units::Tenants { tenants }) = (lane.database.strategy(), &lane.units) else {
        return Ok(());
    };
    for tenant in tenants {
        let given = lane.database.give_target(tenant, [&lane.giver, &lane.taker]).await;
        given.map_err(|error| if error.sqlstate == "55000" { Halt::Never(error) } else { Halt::Later(error) })?;
    }
    Ok(())
}

/// Captures what the taker will write, so that it can be mirrored back. It serves nothing of what moves yet.
pub(super) async fn watch_taker(lane: &Lane, plan: &Plan) -> Result<(), Halt> {
    if plan.direction == Direction::Back {
        return Ok(());
    }
    let (giver, taker) = (lane.giver().await?, lane.taker().await?);
    mirror::watch(lane, &taker, &giver).await
}

/// All who have been held come to the taker at once.
pub(super) async fn warm_taker(lane: &Lane) -> Result<(), Halt> {
    let mut clients = lane.giver().await?.clients();
    clients.count = clients.count.max(EXPECTED_CLIENTS);
    lane.taker().await?.expect_clients(&clients).await;
    Ok(())
}

/// From here on writers wait.
pub(super) async fn fence_giver(lane: &Lane, time: Duration) -> Result<(), Halt> {
    let version = lane.policy().version();
    let giver = lane.giver().await?;
    lane.fence_units(&giver, version, FenceMode::ReadOnly, time).await
}

/// From here on readers wait, too, where readers hold up the giver's fences: nobody waits for them any more once the routing
/// has changed, for then there is no way back.
pub(super) async fn wait_for_readers(lane: &Lane, time: Duration) -> Result<(), Halt> {
    if lane.database.shards.engine(&lane.giver) != Some(Engine::Postgres) {
        return Ok(());
    }
    let giver = lane.giver().await?;
    lane.fence_units(&giver, lane.policy().version(), FenceMode::Closed, time).await
}

/// Compares what is little, and what can be compared in a part of the pause that is left.
pub(super) async fn compare(lane: &Lane, plan: &Plan, mirror: &mut Mirror, pause: Duration) -> Result<(), Halt> {
    let is_waived = plan.options.waive_verification || plan.verification.status == VerificationStatus::Waived;
    // What was copied is known to be too much before anything is read.
    if plan.direction == Direction::Back || is_waived || plan.backfill.total_rows_copied > COMPARED_ROWS {
        return Ok(());
    }
    let mut comparison = Comparison::new(verify::tables(lane, plan), Verification::default());
    let differing = tokio::select! {
        biased;
        compared = comparison.at_once(lane, mirror, COMPARED_ROWS) => compared?,
        () = lane.database.env.sleep(pause / COMPARING_SHARE) => None,
    };
    let Some(name) = differing else { return Ok(()) };
    let message = format!("table \"{name}\" has other rows on {} than on {}", lane.taker, lane.giver);
    Err(Halt::Later(SqlError::new("XX001", message)))
}

/// Changes the routing, and the plan with it: the point of no return.
pub(super) async fn switch(lane: &Lane, stored: &Stored, lease: LeaseToken) -> Result<Stored, Halt> {
    let catalog = lane.database.catalog().as_ref();
    for _ in 0..ATTEMPTS {
        let (record, policy) = lane.database.routing.read().await?;
        let change = lane.units.rerouted(&lane.giver, &lane.taker, &policy, lane.database.pins());
        let refused = |error: RoutingError| Halt::Never(SqlError::new("55000", error.to_string()));
        let mut next = policy.apply(&change).map_err(refused)?;
        if lane.database.moves.plants(Planted::VersionByTwo) {
            let back = lane.units.rerouted(&lane.taker, &lane.giver, &next, lane.database.pins());
            next = next.apply(&back).and_then(|next| next.apply(&change)).map_err(refused)?;
        }
        let mut plan = stored.plan.clone();
        let event = Event::Switched { version: next.version() };
        plan.step(event, now(&lane.database)).map_err(|_| Halt::Changed)?;
        let why = match plan.direction {
            Direction::Forward => format!("Split {} cutover", plan.id),
            Direction::Back => format!("Split {} rollback", plan.id),
        };
        let with = Transaction::new().once(CommitId::random(&*lane.database.env)).when(record.unchanged());
        let with = routing::recorded(with, &policy, &next, &why, now(&lane.database))?;
        match store::save(catalog, stored, plan, Some(lease), with).await {
            Ok(saved) => {
                if !lane.database.moves.plants(Planted::OldMap) {
                    lane.database.routing.store_quietly(std::sync::Arc::new(next));
                }
                return Ok(saved);
            }
            Err(Unsaved::Conflict) if is_unchanged(lane, stored).await? => {}
            Err(Unsaved::Conflict) => return Err(Halt::Changed),
            // Whether it happened is told by the plan, which is read again.
            Err(Unsaved::Unknown(_)) => return Err(Halt::Changed),
            Err(Unsaved::Error(error)) => return Err(Halt::Later(error)),
        }
    }
    Err(Halt::Later(SqlError::new("40001", "the routing keeps changing")))
}

/// Whether a conflict was about the routing and not about the plan.
async fn is_unchanged(lane: &Lane, stored: &Stored) -> Result<bool, Halt> {
    let known = lane.database.catalog().get(&stored.record.key).await.map_err(catalog_error)?.value;
    Ok(known.is_some_and(|record| record.revision == stored.record.revision))
}

/// The version of the switch that a plan is settling.
fn switched(plan: &Plan) -> Result<RoutingVersion, Halt> {
    let version = match plan.direction {
        Direction::Forward => plan.routing_version_cutover,
        Direction::Back => plan.rollback_version,
    };
    version.ok_or_else(|| Halt::Never(SqlError::new("XX000", "a plan that has been switched has no version")))
}

/// The giver refuses everything.
pub(super) async fn close_giver(lane: &Lane, plan: &Plan) -> Result<(), Halt> {
    let giver = lane.giver().await?;
    lane.fence_units(&giver, switched(plan)?, FenceMode::Closed, FENCE_TIME).await
}

/// The taker serves, and whoever waited goes on.
pub(super) async fn open_taker(lane: &Lane, plan: &Plan) -> Result<(), Halt> {
    let taker = lane.taker().await?;
    lane.fence_units(&taker, switched(plan)?, FenceMode::Open, FENCE_TIME).await?;
    lane.database.routing.wake();
    Ok(())
}

/// The giver serves again, as if nothing had been tried.
pub(super) async fn reopen_giver(lane: &Lane, plan: &Plan) -> Result<(), Halt> {
    let version = lane.database.routing.refresh().await?.version();
    let giver = lane.giver().await?;
    let fences = lane.still_fenced(&giver, version).await?;
    lane.fence(&giver, fences, FENCE_TIME).await?;
    lane.database.routing.wake();
    if plan.direction == Direction::Forward {
        // Capture on the taker is for the way back, and there is none.
        lane.taker().await?.remove_consumer(&lane.stream).await?;
    }
    Ok(())
}
