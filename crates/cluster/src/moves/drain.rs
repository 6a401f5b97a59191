//! A shard that is being drained: everything that it serves is moved away, one plan after the other.
//!
//! That it is to be drained is in the catalog, and what is left to move is in the routing; so whoever opens the database
//! goes on, and nothing else has to be remembered. Each plan takes a run of one group's buckets, or some pinned tenants,
//! to the shard that has the fewest of them. When nothing is left the shard waits: it is removed, or takes part again.

use super::{Order, Running, store};
use crate::database::Database;
use crate::database::members::{Draining, Members};
use crate::database::regions::allowed;
use isles_kernel::error::SqlError;
use isles_kernel::moves::{Options, Pins, Span, Units};
use isles_kernel::names::{BucketId, GroupName, ShardId, TenantId};
use isles_kernel::placement::RegionRange;
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::Schema;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Pinned tenants that move at once.
const TENANTS: usize = 100;
/// How often it is looked whether the plan of the moment is done.
const POLL: Duration = Duration::from_millis(100);
/// After a plan that did not succeed, the next comes so much later; twice as long each time, up to a limit.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(60);

impl Database {
    /// Begins to move everything away that a shard serves: to some shards, or to all others. It goes on by itself.
    pub async fn drain_shard(self: &Arc<Self>, name: &ShardId, to: Vec<ShardId>) -> Result<(), SqlError> {
        if self.pins() == Pins::Always {
            let wished = self.members().with_draining(name, Some(Draining { to: to.clone() }));
            next_owner(name, &targets(name, &wished), &wished, &*self.routing.refresh().await?)?;
        }
        let wished = self.members().with_draining(name, Some(Draining { to: to.clone() }));
        self.check_successors(name, &targets(name, &wished))?;
        self.set_draining(name, Some(to)).await?;
        self.start_drainer(name);
        Ok(())
    }

    /// What has not been moved away stays. A plan that is under way goes on.
    pub async fn resume_shard(&self, name: &ShardId) -> Result<(), SqlError> {
        self.set_draining(name, None).await
    }

    /// Goes on with what was being drained when the database was closed.
    pub(crate) fn resume_drains(self: &Arc<Self>) {
        for member in self.members().shards.iter().filter(|member| member.draining.is_some()) {
            self.start_drainer(&member.name);
        }
    }

    fn start_drainer(self: &Arc<Self>, name: &ShardId) {
        if !self.moves.drained().insert(name.clone()) {
            return;
        }
        let (database, name) = (Arc::downgrade(self), name.clone());
        let draining = {
            let (database, name) = (database.clone(), name.clone());
            async move { run(&database, &name).await }
        };
        let (draining, handle) = futures::future::abortable(draining);
        let running = Running::new(&self.moves.running, handle);
        self.env.spawn(Box::pin(async move {
            let _ended_or_aborted = draining.await;
            drop(running);
            let Some(database) = database.upgrade() else { return };
            database.moves.drained().remove(&name);
            // Somebody may have asked for it again just now.
            let (members, policy) = (database.members(), database.routing.current());
            let is_left = matches!(next(&name, &members, &policy, &database.schema(), database.pins()), Ok(Some(_)));
            if is_left && !database.is_closing() {
                database.start_drainer(&name);
            }
        }));
    }

    /// What a shard that is being drained gives away next. None: nothing is left.
    async fn drain_next(self: &Arc<Self>, name: &ShardId) -> Result<Next, SqlError> {
        let members = self.members();
        if members.get(name).is_none_or(|member| member.draining.is_none()) {
            return Ok(Next::Over);
        }
        let active = store::active(self.catalog().as_ref()).await?;
        if active.values().any(|about| about.source == *name || about.target == *name) {
            return Ok(Next::Wait);
        }
        let policy = self.routing.refresh().await?;
        Ok(match next(name, &members, &policy, &self.schema(), self.pins())? {
            Some((units, target)) => Next::Move(units, target),
            None => Next::Over,
        })
    }
}

enum Next {
    Move(Units, ShardId),
    /// A plan is under way.
    Wait,
    /// Nothing is left, or it is not wanted any more.
    Over,
}

async fn run(database: &Weak<Database>, name: &ShardId) {
    let mut wait = FIRST_WAIT;
    loop {
        let Some(open) = database.upgrade() else { return };
        let env = open.env.clone();
        if open.is_closing() {
            return;
        }
        let pause = match open.drain_next(name).await {
            Ok(Next::Over) => return,
            Ok(Next::Wait) => POLL,
            Ok(Next::Move(units, target)) => {
                let description = Some(format!("drain of {name}"));
                let options = Options { auto: true, complete: true, ..Options::default() };
                let order = Order { source: Some(name.clone()), target, units, description, options };
                match moved(&open, order).await {
                    Ok(()) => {
                        wait = FIRST_WAIT;
                        Duration::ZERO
                    }
                    Err(error) => later(name, &error, &mut wait),
                }
            }
            Err(error) => later(name, &error, &mut wait),
        };
        drop(open);
        env.sleep(pause).await;
    }
}

fn later(name: &ShardId, error: &SqlError, wait: &mut Duration) -> Duration {
    tracing::warn!(shard = %name, %error, "drain waits");
    let pause = *wait;
    *wait = (*wait * 2).min(MAX_WAIT);
    pause
}

/// Moves, and waits for the end of it, or for where it goes on only if an operator sees to it.
async fn moved(database: &Arc<Database>, order: Order) -> Result<(), SqlError> {
    let plan = database.plan_move(order).await?;
    loop {
        let now = database.move_plan(plan.id.as_str()).await?;
        if !now.is_active() {
            let why = || now.error_message.clone().unwrap_or_else(|| format!("plan {} was rolled back", now.id));
            return if now.routing_version_cutover.is_some() && now.rollback_version.is_none() {
                Ok(())
            } else {
                Err(SqlError::new("55000", why()))
            };
        }
        if now.is_at_rest() {
            let why = now.why_at_rest().unwrap_or("it waits for an operator");
            return Err(SqlError::new("55000", format!("plan {} is at rest: {why}", now.id)));
        }
        if database.is_closing() {
            return Ok(());
        }
        database.env.sleep(POLL).await;
    }
}

/// Something that a shard serves, and where it goes.
///
/// Where tenants have shards of their own, each goes to one that no other has had; an error if there is none.
fn next(
    name: &ShardId,
    members: &Members,
    policy: &RoutingPolicy,
    schema: &Schema,
    pins: Pins,
) -> Result<Option<(Units, ShardId)>, SqlError> {
    if members.get(name).is_none_or(|member| member.draining.is_none()) {
        return Ok(None);
    }
    let targets = targets(name, members);
    let may_take = |group: &GroupName, bucket| allowed(group, bucket, &targets, schema, members);
    let next = match (next_buckets(name, policy, schema, may_take), pins) {
        (Some(buckets), _) => Some(buckets),
        (None, Pins::WhereNeeded) => next_tenants(name, &targets, policy),
        (None, Pins::Always) => next_owner(name, &targets, members, policy)?,
    };
    let has_buckets = || policy.groups().any(|(_, ranges)| ranges.iter().any(|range| range.shard == *name));
    if next.is_none() && !targets.is_empty() && has_buckets() {
        let message = format!("shard {name} has buckets that no other shard of their region can take");
        return Err(SqlError::new("53000", message).with_hint("isles shards add --region"));
    }
    Ok(next)
}

/// Who takes what a shard that is being drained has.
fn targets(name: &ShardId, members: &Members) -> Vec<ShardId> {
    let wanted = members.get(name).and_then(|member| member.draining.clone()).unwrap_or_default().to;
    let known = |target: &ShardId| members.get(target).is_some_and(|member| member.draining.is_none());
    let wanted: Vec<ShardId> = wanted.into_iter().filter(known).collect();
    let all = if wanted.is_empty() { members.receiving() } else { wanted };
    all.into_iter().filter(|target| target != name).collect()
}

/// The tenant whose shard it is, and a shard that nobody has had but itself.
fn next_owner(
    name: &ShardId,
    targets: &[ShardId],
    members: &Members,
    policy: &RoutingPolicy,
) -> Result<Option<(Units, ShardId)>, SqlError> {
    let Some((tenant, _)) = policy.pins().find(|(_, owner)| *owner == name) else { return Ok(None) };
    let is_free = |target: &&ShardId| {
        let kept = members.get(target).and_then(|member| member.tenant.as_ref());
        kept.is_none_or(|kept| kept == tenant) && policy.pins().all(|(_, owner)| owner != *target)
    };
    match targets.iter().find(is_free) {
        Some(target) => Ok(Some((Units::tenants([tenant.clone()]), target.clone()))),
        None => Err(SqlError::new("53000", format!("there is no shard that tenant \"{tenant}\" could have"))
            .with_hint("with strategy \"adapter\" each tenant needs a shard of its own: isles shards add")),
    }
}

fn next_buckets(
    name: &ShardId,
    policy: &RoutingPolicy,
    schema: &Schema,
    may_take: impl Fn(&GroupName, BucketId) -> Vec<ShardId>,
) -> Option<(Units, ShardId)> {
    let has = |group: &GroupName, shard: &ShardId| {
        policy.owned(group, shard).map(|range| range.last.0 - range.first.0 + 1).sum::<u32>()
    };
    for (group, ranges) in policy.groups() {
        let Some(range) = ranges.iter().find(|range| range.shard == *name) else { continue };
        let targets = may_take(group, range.first);
        // Whoever could take it is being drained, too, or has gone: others go first.
        let Some(target) = targets.iter().min_by_key(|target| has(group, target)) else { continue };
        // What each gets if all get the same, but not more than is there in one run, and in one region.
        let region = schema.regions_of(group).iter().find(|part| part.contains(range.first));
        let all =
            region.map_or_else(|| policy.buckets(group).map_or(0, |count| count.get()), RegionRange::bucket_count);
        let even = all.div_ceil(targets.len() as u32).saturating_sub(has(group, target)).max(1);
        let last = range.last.0.min(range.first.0 + even - 1).min(region.map_or(u32::MAX, |part| part.last.0));
        let span = Span { first: range.first, last: BucketId(last) };
        return Some((Units::buckets(group.clone(), [span]), target.clone()));
    }
    None
}

fn next_tenants(name: &ShardId, targets: &[ShardId], policy: &RoutingPolicy) -> Option<(Units, ShardId)> {
    let pinned: Vec<TenantId> =
        policy.pins().filter(|(_, owner)| *owner == name).map(|(tenant, _)| tenant.clone()).collect();
    let pins_of = |shard: &ShardId| policy.pins().filter(|(_, owner)| *owner == shard).count();
    let target = targets.iter().min_by_key(|target| pins_of(target))?;
    // What each gets if all get the same.
    let all = pinned.len() + targets.iter().map(pins_of).sum::<usize>();
    let some = all.div_ceil(targets.len()).saturating_sub(pins_of(target)).clamp(1, TENANTS);
    let units = Units::tenants(pinned.iter().take(some).cloned());
    (!pinned.is_empty()).then(|| (units, target.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::ShardPlace;
    use crate::database::members::Member;
    use isles_kernel::hash::BucketCount;
    use isles_kernel::routing::{RoutingChange, RoutingMove};

    fn shard(n: usize) -> ShardId {
        ShardId::new(format!("s{n}")).expect("valid")
    }

    fn members(count: usize, drained: usize, to: &[usize]) -> Members {
        let member = |n: usize| Member {
            name: shard(n),
            place: ShardPlace::Sqlite,
            region: None,
            tenant: None,
            draining: (n == drained).then(|| Draining { to: to.iter().copied().map(shard).collect() }),
        };
        Members::of((0..count).map(member))
    }

    /// Drains a shard of a policy by the drain's own orders, and tells how many there were.
    fn drained(mut policy: RoutingPolicy, members: &Members, from: usize) -> (RoutingPolicy, usize) {
        for orders in 0..1_000 {
            let pins = Pins::WhereNeeded;
            let order = next(&shard(from), members, &policy, &Schema::default(), pins).expect("somebody takes it");
            let Some((units, to)) = order else { return (policy, orders) };
            let change = units.rerouted(&shard(from), &to, &policy, pins);
            policy = policy.apply(&change).expect("an order can be carried out");
        }
        panic!("it does not end");
    }

    fn counts(policy: &RoutingPolicy, group: &GroupName, shards: usize) -> Vec<u32> {
        let of =
            |n: usize| policy.ranges(group).unwrap_or_default().iter().filter(move |range| range.shard == shard(n));
        (0..shards).map(|n| of(n).map(|range| range.last.0 - range.first.0 + 1).sum()).collect()
    }

    #[test]
    fn a_drained_shard_ends_with_nothing_and_the_others_share_evenly() {
        let names: Vec<ShardId> = (0..4).map(shard).collect();
        let group = GroupName::new("tenants").expect("valid");
        let policy = RoutingPolicy::new(group.clone(), BucketCount::new(64).expect("valid"), &names).expect("valid");
        let pin = |n: usize| {
            let tenant = TenantId::new(format!("t{n}")).expect("valid");
            let from = policy.shard_of_tenant(&tenant).clone();
            RoutingMove::Pin { tenant, from, to: shard(1) }
        };
        let moves = (0..250).map(pin).collect();
        let policy = policy.apply(&RoutingChange { moves }).expect("valid");
        let (done, orders) = drained(policy.clone(), &members(4, 1, &[]), 1);
        let mut shares = counts(&done, &group, 4);
        assert_eq!(shares.remove(1), 0);
        assert!(shares.iter().max() <= Some(&22) && shares.iter().min() >= Some(&20), "{shares:?}");
        assert!(done.pins().all(|(_, owner)| *owner != shard(1)));
        assert!((4..=12).contains(&orders), "{orders} plans");
        let (merged, _) = drained(policy, &members(4, 1, &[3]), 1);
        assert_eq!(counts(&merged, &group, 4), [16, 0, 16, 32]);
    }
}
