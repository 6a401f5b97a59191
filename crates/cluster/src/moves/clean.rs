//! What is left in the end: streams, consumers, the loser's rows.

use super::copy::{Reach, next_tenants, reach};
use super::lane::{Halt, Lane};
use super::store;
use crate::database::shards::OpenShard;
use isles_engine::fence::FenceMode;
use isles_engine::shard::{KeyRange, Scope};
use isles_kernel::moves::Plan;
use isles_kernel::names::ShardId;
use std::time::Duration;

/// Rows that go at once: a transaction that others wait for.
const ROWS: usize = 1_000;
const FENCE_TIME: Duration = Duration::from_secs(10);

/// Removes what moves from a shard that does not serve it, some rows at a time.
pub(super) async fn discard(lane: &Lane, shard: &OpenShard) -> Result<u64, Halt> {
    let (schema, policy) = (lane.database.schema(), lane.policy());
    let mut gone = 0;
    for table in schema.tables.values().filter(|table| lane.units.concerns(table, &policy)) {
        match reach(lane, table) {
            Reach::Scope(scope) => gone += discard_scope(lane, shard, &table.name, scope).await?,
            Reach::TenantsOfBuckets => loop {
                let mut snapshot = shard.snapshot().await?;
                let tenants = next_tenants(lane, &mut *snapshot, table, None).await?;
                drop(snapshot);
                if tenants.is_empty() {
                    break;
                }
                gone += discard_scope(lane, shard, &table.name, Scope::Tenants(tenants)).await?;
            },
        }
    }
    Ok(gone)
}

async fn discard_scope(lane: &Lane, shard: &OpenShard, table: &str, scope: Scope) -> Result<u64, Halt> {
    let unserved = lane.claims(&scope);
    let range = KeyRange::table(table).within(scope);
    let mut gone = 0;
    loop {
        let before = lane.database.statements_on([&lane.giver, &lane.taker]);
        let began = lane.database.env.elapsed();
        let deleted = shard.discard(&lane.stream, lane.driver, unserved.clone(), &range, ROWS).await?;
        gone += deleted;
        if deleted == 0 {
            return Ok(gone);
        }
        if lane.database.statements_on([&lane.giver, &lane.taker]) != before {
            let took = lane.database.env.elapsed().saturating_sub(began);
            lane.database.env.sleep(took).await;
        }
    }
}

/// Ends a plan: its loser keeps nothing of what moved, and neither shard knows of the plan any more.
pub(super) async fn clean(lane: &Lane, plan: &Plan) -> Result<(), Halt> {
    let loser = lane.database.shards.get(plan.loser()).await?;
    // It may not have been told yet that these are not its own.
    let closed = lane.fences(&loser, lane.policy().version(), FenceMode::Closed).await?;
    loser.set_fences_as(&lane.stream, lane.driver, closed, FENCE_TIME).await?;
    discard(lane, &loser).await?;
    for name in [&plan.source_shard, &plan.target_shard] {
        let shard = lane.database.shards.get(name).await?;
        shard.remove_consumer(&lane.stream).await?;
        lift_strangers(lane, plan, name, &shard).await?;
        for number in 0..plan.table_policies.len() {
            shard.forget_stream(&lane.copy_stream(number), None).await?;
        }
        shard.forget_stream(&lane.stream, Some(lane.driver)).await?;
    }
    Ok(())
}

/// Whoever reads whole tables need not look for strangers any more, unless another plan brings some.
async fn lift_strangers(lane: &Lane, plan: &Plan, name: &ShardId, shard: &OpenShard) -> Result<(), Halt> {
    let (group, policy) = (&lane.crowded(), lane.policy());
    // A plan that is made meanwhile is seen here, or sets its fence after us.
    let _one_at_a_time = lane.database.moves.strangers.lock().await;
    let active = store::active(lane.database.catalog().as_ref()).await?;
    let is_busy = active.iter().any(|(id, about)| {
        *id != plan.id && about.units.crowded(&policy) == group && (about.source == *name || about.target == *name)
    });
    if is_busy {
        return Ok(());
    }
    let fence = lane.strangers(policy.version(), FenceMode::Open);
    shard.set_fences_as(&lane.stream, lane.driver, vec![fence], FENCE_TIME).await?;
    lane.database.forget_strangers(name, group);
    Ok(())
}
