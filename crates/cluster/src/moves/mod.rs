//! Moves of tenants and buckets, carried out.
//!
//! The rules are in the kernel (`isles_kernel::moves`): a plan, what can happen to it, and what is done next. Here plans
//! are kept in the catalog and driven: each active plan has one driver, a task under a lease, in whichever process got
//! it. An operator's command changes the plan; the driver notices.
//!
//! ```text
//! operator ─ command ─► plan/{id} in the catalog ◄─ news ─ driver ─ effects ─► giver and taker
//!                                                            ▲
//!                                                            └ lease: who drives
//! ```
//!
//! In reading order:
//!   * [`store`]   plans in the catalog
//!   * [`pace`]    how fast a copy may go
//!   * [`lane`]    the two shards of a plan, and what moves between them
//!   * [`mirror`]  changes of the giver, applied to the taker
//!   * [`copy`]    rows, as they stand
//!   * [`verify`]  both sides, compared
//!   * [`switch`]  fences and routing
//!   * [`clean`]   what is left in the end
//!   * [`driver`]  one plan, from where it is to its end
//!   * [`operate`] what operators ask and tell
//!   * [`drain`]   a shard that gives everything away
//!   * [`rebalance`] which moves would even shards out
//!   * [`work`]    what has been done, for metrics
//!
//! Invariants (docs/invariants.md):
//!   * I-12  until the routing has changed, a plan can be undone without a trace
//!   * I-13  whatever dies, an active plan goes on
//!   * I-17  no two plans move the same thing

mod clean;
mod copy;
mod drain;
mod driver;
mod lane;
mod mirror;
mod operate;
pub(crate) mod pace;
mod rebalance;
pub(crate) mod store;
mod switch;
mod verify;
mod work;

use crate::catalog::Transaction;
use crate::database::{Database, Strategy, members};
use futures::future::{AbortHandle, FutureExt};
use isles_kernel::error::SqlError;
use isles_kernel::moves::{Event, MoveError, Pins, Plan, Request, Units};
use isles_kernel::names::{PlanId, ShardId, TenantId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::{SchemaChange, Table, TableKind, Unit, every_tenant_group};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{Stored, Unsaved};
use tokio::sync::Notify;

pub use isles_kernel::moves;
pub use operate::Intent;
pub use work::{MoveWork, PAUSE_BOUNDS_MICROS};

/// How often a command is tried that others overtake.
const ATTEMPTS: usize = 100;

/// What moves, as an operator says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Where it is; if not said, where the routing says.
    pub source: Option<ShardId>,
    pub target: ShardId,
    pub units: Units,
    pub description: Option<String>,
    pub options: moves::Options,
}

/// Bugs that moves can be told to have. A harness that does not find them proves nothing (I-69).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// The tail is not drained before the target serves (planted bug 4).
    NoDrain,
    /// Deletes are not mirrored (planted bug 5).
    IgnoreDeletes,
    /// A switch raises the routing version by two (planted bug 6).
    VersionByTwo,
    /// The map is read once and never again (planted bug 8).
    OldMap,
    /// A statement that may have happened is run again, as if it were new (planted bug 7).
    RetryUnknown,
    /// What was mirrored last is mirrored again when the target serves (planted bug 24).
    ReplayLast,
}

/// The plans that this process drives.
#[derive(Default)]
pub(crate) struct Moves {
    planted: Option<Planted>,
    driven: Mutex<BTreeMap<PlanId, Arc<Notify>>>,
    /// Drivers that run here.
    running: Arc<Mutex<BTreeMap<u64, AbortHandle>>>,
    /// Held by whoever says that a shard has strangers, or that it has none any more.
    strangers: tokio::sync::Mutex<()>,
    counted: work::Counted,
    /// Shards that this process drains.
    drained: Mutex<BTreeSet<ShardId>>,
}

impl Moves {
    pub(crate) fn new(planted: Option<Planted>) -> Moves {
        Moves { planted, ..Moves::default() }
    }

    pub(crate) fn plants(&self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }

    fn driven(&self) -> MutexGuard<'_, BTreeMap<PlanId, Arc<Notify>>> {
        lock(&self.driven)
    }

    fn drained(&self) -> MutexGuard<'_, BTreeSet<ShardId>> {
        self.drained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells all drivers to look up; whether any is left.
    pub(crate) fn end(&self) -> bool {
        self.driven().values().for_each(|driver| driver.notify_one());
        !lock(&self.running).is_empty()
    }

    /// Wakes whoever drives a plan here; if nobody does, somebody must begin, with these news.
    fn nudge(&self, id: &PlanId) -> Option<Arc<Notify>> {
        let mut driven = self.driven();
        match driven.get(id) {
            Some(driver) => {
                driver.notify_one();
                None
            }
            None => {
                let news = Arc::new(Notify::new());
                driven.insert(id.clone(), news.clone());
                Some(news)
            }
        }
    }

    /// Lets a driver go that has nothing to do; not one that has been told something meanwhile, and must look.
    fn leave(&self, id: &PlanId, news: &Arc<Notify>) -> bool {
        let mut driven = self.driven();
        if news.notified().now_or_never().is_some() {
            return false;
        }
        if driven.get(id).is_some_and(|known| Arc::ptr_eq(known, news)) {
            driven.remove(id);
        }
        true
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that a driver runs, until it is dropped.
struct Running {
    number: u64,
    all: Arc<Mutex<BTreeMap<u64, AbortHandle>>>,
}

impl Running {
    fn new(all: &Arc<Mutex<BTreeMap<u64, AbortHandle>>>, handle: AbortHandle) -> Running {
        let mut running = lock(all);
        let number = running.last_key_value().map_or(0, |(last, _)| last + 1);
        running.insert(number, handle);
        Running { number, all: all.clone() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.all).remove(&self.number);
    }
}

/// The plan that moves rows of a table, if there is one.
pub(crate) async fn moving(database: &Database, table: &Table) -> Result<Option<PlanId>, SqlError> {
    let policy = database.routing.current();
    let active = store::active(database.catalog().as_ref()).await?;
    Ok(active.into_iter().find(|(_, about)| about.units.concerns(table, &policy)).map(|(id, _)| id))
}

fn now(database: &Database) -> u64 {
    database.env.now_micros() / 1_000
}

pub(crate) fn no_plan(id: &str) -> SqlError {
    let error = MoveError { code: "SPLIT_NOT_FOUND", message: format!("there is no plan \"{id}\""), hint: None };
    SqlError { sqlstate: "42704", ..error.for_people() }.with_hint("SHOW MOVES lists the plans")
}

impl Database {
    /// Makes a plan, and begins to carry it out if it goes by itself.
    pub async fn plan_move(self: &Arc<Self>, order: Order) -> Result<Plan, SqlError> {
        let _gate = self.indexes.gate.lock().await;
        let (plan, policy) = self.draft_move(order).await?;
        self.check_builds(&plan.units, &policy)?;
        self.check_no_migration(&plan.units, &policy).await?;
        store::create(self.catalog().as_ref(), &plan, &policy).await?;
        tracing::info!(plan = %plan.id, source = %plan.source_shard, target = %plan.target_shard, units = %plan.units,
            phase = plan.phase.name(), "move planned");
        if plan.options.auto {
            self.drive(&plan.id);
        }
        Ok(plan)
    }

    /// What a plan would be, without making it: everything that refuses it is looked at.
    pub async fn try_move(self: &Arc<Self>, order: Order) -> Result<Plan, SqlError> {
        let _gate = self.indexes.gate.lock().await;
        let (mut plan, policy) = self.draft_move(order).await?;
        self.check_builds(&plan.units, &policy)?;
        self.check_no_migration(&plan.units, &policy).await?;
        store::check_new(&plan.units, &store::active(self.catalog().as_ref()).await?, &policy)?;
        plan.backfill.rows_expected = operate::rows_to_copy(self, &plan).await?;
        Ok(plan)
    }

    /// Rows of a table stay where they are while a global index over them is built (I-17).
    fn check_builds(&self, units: &Units, policy: &RoutingPolicy) -> Result<(), SqlError> {
        let (schema, building) = (self.schema(), self.indexes.building());
        let group = |table: &Table| match table.kind {
            TableKind::Tenant => Some(every_tenant_group()),
            _ => table.group().cloned(),
        };
        let concerned = |table: &&Table| group(table).is_some_and(|group| building.contains(&group));
        match schema.tables.values().filter(concerned).find(|table| units.concerns(table, policy)) {
            None => Ok(()),
            Some(table) => {
                let message = format!("a global index of table \"{}\" is being built", table.name);
                Err(SqlError::new("55006", message).with_hint("wait until SHOW INDEXES says that it is ready"))
            }
        }
    }

    /// Which tenants are pinned.
    pub(crate) fn pins(&self) -> Pins {
        match self.strategy() {
            Strategy::Row => Pins::WhereNeeded,
            Strategy::Adapter => Pins::Always,
        }
    }

    /// Where each tenant has a shard of its own, it goes alone, to one that no other has had.
    fn check_owner(&self, plan: &Plan, policy: &RoutingPolicy) -> Result<(), SqlError> {
        let (Strategy::Adapter, Units::Tenants { tenants }) = (self.strategy(), &plan.units) else { return Ok(()) };
        let [tenant] = tenants.as_slice() else {
            let message = "with strategy \"adapter\" a plan moves one tenant";
            return Err(MoveError::invalid(message).with_hint("make a plan for each of them").for_people());
        };
        if !policy.is_pinned(tenant) {
            return Err(MoveError::invalid(format!("tenant {tenant} has no shard yet")).for_people());
        }
        match self.tenant_of_shard(&plan.target_shard) {
            Some(other) if other != *tenant => Err(members::taken(&plan.target_shard, &other)),
            _ => Ok(()),
        }
    }

    async fn draft_move(self: &Arc<Self>, order: Order) -> Result<(Plan, Arc<RoutingPolicy>), SqlError> {
        let policy = self.routing.refresh().await?;
        let source = order.source.map_or_else(|| source_of(&order.units, &policy), Ok)?;
        for shard in [&source, &order.target] {
            if self.shards.engine(shard).is_none() {
                let message = format!("there is no shard {shard}");
                return Err(MoveError::invalid(message).with_hint("SHOW SHARDS lists the shards").for_people());
            }
        }
        let request = Request {
            source,
            target: order.target,
            units: order.units,
            description: order.description,
            options: order.options,
        };
        let id = PlanId::new(format!("m{:010x}", self.env.random() & 0xff_ffff_ffff)).expect("a letter and digits");
        let schema = self.schema();
        let plan = Plan::new(id, request, &policy, &schema, now(self)).map_err(|error| error.for_people())?;
        self.check_owner(&plan, &policy)?;
        self.check_region(&plan.units, &plan.target_shard)?;
        self.check_schema_of(&plan.target_shard).await?;
        Ok((plan, policy))
    }

    /// A shard that cannot be reached, or that has other tables, takes nothing.
    pub(crate) async fn check_schema_of(&self, shard: &ShardId) -> Result<(), SqlError> {
        let open = self.shards.get(shard).await.map_err(|error| error.for_people())?;
        let (found, wanted) = (open.schema().await.map_err(|error| error.for_people())?, self.schema());
        match found.version == wanted.version && found.hash() == wanted.hash() {
            true => Ok(()),
            false => {
                let message = format!("shard {shard} has schema version {}, not {}", found.version, wanted.version);
                Err(SqlError::new("55000", message))
            }
        }
    }

    /// All plans, the newest first.
    pub async fn moves(&self) -> Result<Vec<Plan>, SqlError> {
        store::list(self.catalog().as_ref()).await
    }

    pub async fn move_plan(&self, id: &str) -> Result<Plan, SqlError> {
        let known = PlanId::new(id).map_err(|_| no_plan(id))?;
        let stored = store::load(self.catalog().as_ref(), &known).await?;
        stored.map(|stored| stored.plan).ok_or_else(|| no_plan(id))
    }

    /// Carries out an operator's command, or refuses it.
    pub async fn command_move(self: &Arc<Self>, id: &str, command: Event) -> Result<Plan, SqlError> {
        self.change_move(id, |plan, now| plan.step(command.clone(), now)).await
    }

    /// Lets a plan go on by itself from where it is.
    pub async fn run_move(self: &Arc<Self>, id: &str, complete: bool) -> Result<Plan, SqlError> {
        self.change_move(id, |plan, _| {
            plan.options.auto = true;
            plan.options.complete |= complete;
            Ok(())
        })
        .await
    }

    /// What a command would make of a plan, without doing it.
    pub async fn try_command(&self, id: &str, command: Event) -> Result<Plan, SqlError> {
        let mut plan = self.move_plan(id).await?;
        plan.step(command, now(self)).map_err(|error| error.for_people())?;
        Ok(plan)
    }

    async fn change_move(
        self: &Arc<Self>,
        id: &str,
        change: impl Fn(&mut Plan, u64) -> Result<(), MoveError>,
    ) -> Result<Plan, SqlError> {
        let known = PlanId::new(id).map_err(|_| no_plan(id))?;
        // Tables keep their shape from the moment at which their changes are mirrored: whoever changes them is alone.
        let _schema = self.hold_schema().await?;
        for _ in 0..ATTEMPTS {
            let stored = store::load(self.catalog().as_ref(), &known).await?.ok_or_else(|| no_plan(id))?;
            let mut plan = stored.plan.clone();
            change(&mut plan, now(self)).map_err(|error| error.for_people())?;
            if (Plan { updated_at: stored.plan.updated_at, ..plan.clone() }) == stored.plan {
                return Ok(stored.plan);
            }
            match store::save(self.catalog().as_ref(), &stored, plan, None, Transaction::new()).await {
                Ok(saved) => {
                    log_step(&stored, &saved);
                    self.drive(&known);
                    return Ok(saved.plan);
                }
                Err(Unsaved::Conflict) => {}
                Err(Unsaved::Unknown(error) | Unsaved::Error(error)) => return Err(error),
            }
        }
        Err(SqlError::new("40001", format!("plan {id} keeps changing")).with_hint("try again"))
    }

    /// Goes on with the plans that are not done: the database has just been opened.
    pub(crate) async fn resume_moves(self: &Arc<Self>) -> Result<(), SqlError> {
        for (id, about) in store::active(self.catalog().as_ref()).await? {
            let policy = self.routing.current();
            let group = about.units.crowded(&policy);
            [&about.source, &about.target].into_iter().for_each(|shard| self.note_strangers(shard, group));
            self.drive(&id);
        }
        Ok(())
    }

    /// Sees to it that a plan is driven here, and that its driver looks at it now.
    pub(crate) fn drive(self: &Arc<Self>, id: &PlanId) {
        if let Some(news) = self.moves.nudge(id) {
            self.start_driver(id, news);
        }
    }

    /// Starts another driver of a plan, whether or not there is one.
    pub fn drive_also(self: &Arc<Self>, id: &PlanId) {
        self.start_driver(id, Arc::new(Notify::new()));
    }

    /// Ends all drivers where they stand, as if they had died, and starts others. Nothing of a plan may depend on who
    /// drives it.
    pub async fn replace_drivers(self: &Arc<Self>) -> Result<(), SqlError> {
        lock(&self.moves.running).values().for_each(AbortHandle::abort);
        self.moves.driven().clear();
        self.resume_moves().await
    }

    /// How many drivers of plans run here.
    pub fn drivers(&self) -> usize {
        lock(&self.moves.running).len()
    }

    fn start_driver(self: &Arc<Self>, id: &PlanId, news: Arc<Notify>) {
        let (database, id) = (Arc::downgrade(self), id.clone());
        let owner = format!("driver {:016x}", self.env.random());
        let (task, handle) = futures::future::abortable(driver::run(database, id, owner, news));
        let running = Running::new(&self.moves.running, handle);
        self.env.spawn(Box::pin(async move {
            let _ended_or_aborted = task.await;
            drop(running);
        }));
    }

    /// Refuses to remove a tenant that is on its way.
    pub(crate) async fn check_tenant_rests(&self, tenant: &TenantId) -> Result<(), SqlError> {
        let (unit, policy) = (Unit::Tenant(Some(tenant.clone())), self.routing.current());
        let active = store::active(self.catalog().as_ref()).await?;
        match active.iter().find(|(_, about)| about.units.contains(&unit, &policy)) {
            None => Ok(()),
            Some((id, _)) => Err(SqlError::new("55006", format!("tenant \"{tenant}\" is being moved by plan {id}"))
                .with_hint("wait until the move is done: complete it or roll it back")),
        }
    }

    /// Whether tables may change their shape, or go: not those whose rows are on their way.
    pub(crate) async fn check_moves(&self, changes: &[SchemaChange]) -> Result<(), SqlError> {
        let changed: BTreeSet<&str> = changes.iter().filter_map(SchemaChange::reshapes).collect();
        if changed.is_empty() {
            return Ok(());
        }
        let (schema, policy) = (self.schema(), self.routing.current());
        for (id, about) in store::active(self.catalog().as_ref()).await? {
            let moves = |name: &&&str| schema.tables.get(**name).is_some_and(|t| about.units.concerns(t, &policy));
            let Some(table) = changed.iter().find(moves) else { continue };
            let Some(stored) = store::load(self.catalog().as_ref(), &id).await? else { continue };
            if stored.plan.is_mirroring() {
                let message = format!("cannot change table \"{table}\": its rows are being moved by plan {id}");
                return Err(SqlError::new("55006", message)
                    .with_hint(format!("wait, or run \"isles move complete {id}\" or \"isles move rollback {id}\"")));
            }
        }
        Ok(())
    }
}

/// One transition, for whoever reads logs.
fn log_step(before: &Stored, after: &Stored) {
    let (old, new) = (&before.plan, &after.plan);
    if (old.stage, old.phase) != (new.stage, new.phase) {
        tracing::info!(plan = %new.id, source = %new.source_shard, target = %new.target_shard,
            phase = new.phase.name(), from = ?old.stage, to = ?new.stage,
            rows = new.backfill.total_rows_copied, aborted = new.cutover.aborted.as_deref(),
            error = new.error_message.as_deref(), "move goes on");
    }
}

/// Where all of it is, if that is one shard.
fn source_of(units: &Units, policy: &RoutingPolicy) -> Result<ShardId, SqlError> {
    let homes = units.homes(policy);
    let mut each = homes.iter();
    match (each.next(), each.next()) {
        (Some(one), None) => Ok((*one).clone()),
        (None, _) => Err(MoveError::invalid("tenantIds required for shard split").for_people()),
        _ => {
            let names: Vec<String> = homes.iter().map(ToString::to_string).collect();
            let message = format!("what is to be moved is on several shards: {}", names.join(", "));
            Err(MoveError::invalid(message).with_hint("make a plan for each of them").for_people())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// I-13: a command that comes while a driver is about to go is not lost: it stays, or another one begins.
    #[test]
    fn a_driver_that_is_told_something_does_not_leave() {
        let (moves, id) = (Moves::default(), PlanId::new("m1").unwrap());
        let news = moves.nudge(&id).unwrap();
        assert!(moves.nudge(&id).is_none(), "there is one");
        assert!(!moves.leave(&id, &news), "it has been told");
        let stranger = Arc::new(Notify::new());
        assert!(moves.leave(&id, &stranger));
        assert!(moves.nudge(&id).is_none(), "another one's end is not its own");
        assert!(!moves.leave(&id, &news));
        assert!(moves.leave(&id, &news));
        assert!(moves.nudge(&id).is_some(), "another one begins");
    }
}
