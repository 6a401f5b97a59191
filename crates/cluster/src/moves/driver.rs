//! One plan, driven from where it is to where it waits or ends.
//!
//! ```text
//! lease ─► streams on both shards ─► plan read ─┬─► effects of its script ─► news: plan changed ─┐
//!                                               └────────────────────────────────────────────────┘
//! ```
//!
//! A driver that loses its lease, or finds the plan changed, stops what it is doing and reads again. One that cannot
//! reach a shard waits and tries again, for ever; a plan that can never be done fails and is cleaned up. Whatever stops
//! within a switch lifts the fence before it does anything else.

use super::copy::{self, Progress};
use super::lane::{Halt, Lane, stream_of};
use super::mirror::{Mirror, Mirrored};
use super::store::{self, Stored, Unsaved, lease_key};
use super::verify::{self, Comparison};
use super::{Planted, clean, log_step, now, switch};
use crate::catalog::{CatalogError, LeaseToken, Transaction};
use crate::commit::decision::catalog_error;
use crate::database::Database;
use isles_engine::shard::DriverToken;
use isles_kernel::error::SqlError;
use isles_kernel::moves::{Direction, Effect, Event, Plan, Stage, TailStatus};
use isles_kernel::names::PlanId;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// For this long nobody takes over from a driver that has died.
const LEASE: Duration = Duration::from_secs(5);
/// How often a driver says that it lives, and how it is.
const TICK: Duration = Duration::from_millis(500);
/// How long a mirror that has come to the log's end waits for more.
const IDLE: Duration = Duration::from_millis(20);
/// The same while rows are copied: nobody waits for the mirror then, and each page is transactions of others' servers.
const COPY_IDLE: Duration = Duration::from_millis(200);
/// A driver that is not needed, or cannot go on, looks again after so long; twice as long each time, up to a limit.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const MAX_WAIT: Duration = Duration::from_secs(2);
/// A mirror that is this close has caught up.
pub(super) const SMALL_LAG: u64 = 1_000;
/// Before writers are held, the mirror comes this close, if it can within so many pages.
const SWITCH_LAG: u64 = 20;
const SWITCH_PAGES: usize = 20;
/// How long a switch waits before it fences; nobody else waits yet.
const WATCH_LIMIT: Duration = Duration::from_secs(5);
/// Between two tries of a switch.
const SWITCH_WAIT: Duration = Duration::from_millis(200);

/// Drives a plan until it is done, or until the database is closed.
pub(super) async fn run(database: Weak<Database>, id: PlanId, owner: String, news: Arc<Notify>) {
    let mut wait = FIRST_WAIT;
    loop {
        let Some(open) = database.upgrade() else { return };
        let env = open.env.clone();
        if open.is_closing() {
            return;
        }
        let ended = drive(open.clone(), &id, &owner, news.clone()).await;
        match ended {
            Ok(()) if open.moves.leave(&id, &news) => return,
            Ok(()) => continue,
            Err(Halt::Closing) => return,
            Err(Halt::Changed) => wait = FIRST_WAIT,
            Err(Halt::Superseded) => wait = LEASE / 2,
            Err(Halt::Later(error) | Halt::Never(error)) => {
                tracing::warn!(plan = %id, %error, "move waits");
                tell_why(&open, &id, &error).await;
                wait = (wait * 2).min(MAX_WAIT);
            }
        }
        drop(open);
        let _ = futures::future::select(Box::pin(news.notified()), env.sleep(wait)).await;
    }
}

/// Says in a plan why it does not go on, if its driver has not come so far as to say it. If it cannot be said now, the
/// next try says it.
async fn tell_why(database: &Database, id: &PlanId, error: &SqlError) {
    let catalog = database.catalog().as_ref();
    let Ok(Some(stored)) = store::load(catalog, id).await else { return };
    let plan = Plan { error_message: Some(error.to_string()), ..stored.plan.clone() };
    if plan.is_active() && plan.error_message != stored.plan.error_message {
        let _ = store::save(catalog, &stored, plan, None, Transaction::new()).await;
    }
}

struct Driver {
    database: Arc<Database>,
    stored: Stored,
    lease: LeaseToken,
    news: Arc<Notify>,
    lane: Lane,
    mirror: Option<Mirror>,
    progress: Progress,
    /// When the lease was renewed and the progress told.
    ticked: Duration,
    /// When writers began to wait.
    paused: Option<Duration>,
}

/// Takes the lease, and goes as far as it can.
async fn drive(database: Arc<Database>, id: &PlanId, owner: &str, news: Arc<Notify>) -> Result<(), Halt> {
    let catalog = database.catalog().clone();
    let Some(stored) = store::load(catalog.as_ref(), id).await? else { return Ok(()) };
    if !stored.plan.is_active() || (stored.plan.stage == Stage::Planned && stored.plan.next_command().is_none()) {
        return Ok(());
    }
    let lease = match catalog.acquire(&lease_key(id), owner, LEASE).await {
        Ok(lease) => lease.token,
        Err(CatalogError::HeldByOther(_)) => return Err(Halt::Superseded),
        Err(error) => return Err(Halt::Later(catalog_error(error))),
    };
    let token = DriverToken(lease.0);
    for shard in [&stored.plan.source_shard, &stored.plan.target_shard] {
        // One that has stopped is opened anew, also where no client asks for it.
        let shard = database.shards.reopen(shard).await?;
        shard.open_stream(&stream_of(&stored.plan), token).await?;
    }
    // Read again: until the streams were taken, an earlier driver could still act on what it knew.
    let stored = store::load(catalog.as_ref(), id).await?.ok_or(Halt::Changed)?;
    let lane = Lane::new(&database, &stored.plan, token);
    let ticked = database.env.elapsed();
    let (mirror, progress, paused) = (None, Progress::default(), None);
    let mut driver = Driver { database, stored, lease, news, lane, mirror, progress, ticked, paused };
    driver.learn(Event::TakenOver).await?;
    let ended = driver.go().await;
    if ended.is_ok() {
        // Who comes later need not wait. If it cannot be told, it runs out by itself.
        let _ = catalog.release(&lease_key(id), lease).await;
    }
    ended
}

impl Driver {
    fn plan(&self) -> &Plan {
        &self.stored.plan
    }

    /// Records what has happened.
    async fn learn(&mut self, event: Event) -> Result<(), Halt> {
        let mut plan = self.stored.plan.clone();
        plan.step(event, now(&self.database)).map_err(|_| Halt::Changed)?;
        self.save(plan).await
    }

    async fn save(&mut self, plan: Plan) -> Result<(), Halt> {
        if plan == self.stored.plan {
            return Ok(());
        }
        let catalog = self.database.catalog().as_ref();
        match store::save(catalog, &self.stored, plan, Some(self.lease), Transaction::new()).await {
            Ok(saved) => {
                self.replace(saved);
                Ok(())
            }
            Err(Unsaved::Conflict | Unsaved::Unknown(_)) => Err(Halt::Changed),
            Err(Unsaved::Error(error)) => Err(Halt::Later(error)),
        }
    }

    /// Goes on with what has become of the plan.
    fn replace(&mut self, saved: Stored) {
        log_step(&self.stored, &saved);
        let turned = saved.plan.flows_forward() != self.stored.plan.flows_forward();
        self.stored = saved;
        if turned {
            self.lane = Lane::new(&self.database, &self.stored.plan, self.lane.driver);
            self.mirror = None;
        }
    }

    async fn go(&mut self) -> Result<(), Halt> {
        loop {
            if !self.plan().is_active() {
                return Ok(());
            }
            if let Some(command) = self.plan().next_command() {
                self.command(command).await?;
                continue;
            }
            let (stage, script) = (self.plan().stage, self.plan().script());
            match self.perform_all(script).await {
                Ok(()) => {}
                Err(Halt::Changed) => self.read_again(stage).await?,
                Err(halt) => self.halted(halt).await?,
            }
        }
    }

    /// Goes on with what others have made of the plan. A switch that was interrupted by that is given up.
    async fn read_again(&mut self, interrupted: Stage) -> Result<(), Halt> {
        let stored = store::load(self.database.catalog().as_ref(), &self.plan().id).await?.ok_or(Halt::Superseded)?;
        if stored.record.revision == self.stored.record.revision {
            // It was not the plan that has changed but the lease, or nobody knows.
            return Err(Halt::Superseded);
        }
        self.replace(stored);
        match (interrupted, self.plan().stage) {
            (Stage::Switching, Stage::Switching) => self.learn(Event::Aborted("the plan was changed".into())).await,
            _ => Ok(()),
        }
    }

    /// A plan that goes by itself. Tables keep their shape from the moment at which their changes are mirrored.
    async fn command(&mut self, command: Event) -> Result<(), Halt> {
        if command == Event::Cutover && self.plan().cutover.attempts > 0 {
            self.mirror_for(SWITCH_WAIT).await?;
        }
        let _schema = self.database.hold_schema().await?;
        self.learn(command).await
    }

    async fn perform_all(&mut self, script: &[Effect]) -> Result<(), Halt> {
        let stage = self.plan().stage;
        if stage != Stage::Settling {
            self.paused = None;
        }
        for effect in script {
            let began = self.database.env.elapsed();
            self.perform(*effect).await?;
            if self.paused.is_some() {
                // Where a pause went that was too long.
                let micros = self.database.env.elapsed().saturating_sub(began).as_micros();
                tracing::debug!(plan = %self.plan().id, ?effect, %micros, "writers wait");
            }
        }
        match (stage, self.plan().done()) {
            (Stage::Settling, _) => {
                let paused = self.paused.take().unwrap_or(self.ticked);
                let pause = self.database.env.elapsed().saturating_sub(paused);
                let pause_micros = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
                self.database.moves.counted.paused(pause_micros);
                self.learn(Event::Settled { pause_micros }).await
            }
            (_, Some(event)) if self.plan().stage == stage => self.learn(event).await,
            _ => Ok(()),
        }
    }

    /// What becomes of a plan whose driver had to stop.
    async fn halted(&mut self, halt: Halt) -> Result<(), Halt> {
        let why = match &halt {
            Halt::Later(error) | Halt::Never(error) => error.to_string(),
            Halt::Changed | Halt::Superseded | Halt::Closing => return Err(halt),
        };
        match (self.plan().stage, &halt) {
            (Stage::Switching, _) => self.learn(Event::Aborted(why)).await,
            (Stage::Guarding, Halt::Never(_)) if !self.plan().no_way_back => self.learn(Event::WayBackLost(why)).await,
            (Stage::Settling | Stage::Unfencing | Stage::Cleaning | Stage::Guarding, _) | (_, Halt::Later(_)) => {
                self.complain(why).await?;
                Err(halt)
            }
            _ => self.learn(Event::Failed(why)).await,
        }
    }

    /// Says in the plan why it does not go on.
    async fn complain(&mut self, why: String) -> Result<(), Halt> {
        let mut plan = self.stored.plan.clone();
        plan.error_message = Some(why);
        self.save(plan).await
    }

    async fn perform(&mut self, effect: Effect) -> Result<(), Halt> {
        let (lane, plan) = (self.lane.clone(), self.plan().clone());
        match effect {
            Effect::Prepare => {
                let prepared = switch::prepare(&lane, &plan).await?;
                self.learn(prepared).await
            }
            Effect::Copy => self.copy().await,
            Effect::CatchUp => self.catch_up().await,
            Effect::Mirror => self.mirror_for(TICK).await,
            Effect::Verify => self.verify().await,
            Effect::WatchTaker => {
                // A shard whose writer is taken for as long will hardly be fenced in time.
                let limit = self.database.env.sleep(WATCH_LIMIT);
                tokio::select! {
                    biased;
                    watched = switch::watch_taker(&lane, &plan) => watched?,
                    () = limit => return Err(self.too_long()),
                }
                switch::warm_taker(&lane).await
            }
            Effect::FenceGiver => {
                self.mirror().await?;
                self.database.check_schema_of(&lane.taker).await?;
                self.paused = Some(self.database.env.elapsed());
                switch::fence_giver(&lane, self.pause_left()).await
            }
            // Whoever has fenced and drained, and got here without a break, has nothing left to drain.
            Effect::Drain if plan.stage == Stage::Settling && self.paused.is_some() => Ok(()),
            Effect::Drain => self.drain().await,
            Effect::Compare => {
                let left = self.pause_left();
                switch::compare(&lane, &plan, self.mirror().await?, left).await?;
                self.check_pause()
            }
            Effect::Switch => {
                switch::wait_for_readers(&lane, self.pause_left()).await?;
                self.check_pause()?;
                let saved = switch::switch(&lane, &self.stored, self.lease).await?;
                self.replace(saved);
                Ok(())
            }
            Effect::CloseGiver => switch::close_giver(&lane, &plan).await,
            Effect::OpenTaker => {
                switch::open_taker(&lane, &plan).await?;
                match self.database.moves.plants(Planted::ReplayLast) {
                    true => self.mirror().await?.replay(&lane).await,
                    false => Ok(()),
                }
            }
            Effect::ReopenGiver => switch::reopen_giver(&lane, &plan).await,
            Effect::Clean => clean::clean(&lane, &plan).await,
        }
    }

    /// How long writers may still wait.
    fn pause_left(&self) -> Duration {
        let limit = Duration::from_millis(self.plan().options.pause_limit_ms);
        let began = self.paused.unwrap_or_else(|| self.database.env.elapsed());
        limit.saturating_sub(self.database.env.elapsed().saturating_sub(began))
    }

    fn check_pause(&self) -> Result<(), Halt> {
        match self.plan().stage == Stage::Switching && self.pause_left().is_zero() {
            false => Ok(()),
            true => Err(self.too_long()),
        }
    }

    fn too_long(&self) -> Halt {
        let limit = self.plan().options.pause_limit_ms;
        let message = format!("the cutover would have held writers for longer than {limit} ms");
        Halt::Later(SqlError::new("57014", message).with_hint("a transaction that does not end may be in the way"))
    }

    async fn mirror(&mut self) -> Result<&mut Mirror, Halt> {
        if self.mirror.is_none() {
            self.mirror = Some(Mirror::open(&self.lane).await?);
        }
        self.mirror.as_mut().ok_or(Halt::Changed)
    }

    async fn drain(&mut self) -> Result<(), Halt> {
        let lane = self.lane.clone();
        let (env, left, is_paused) = (self.database.env.clone(), self.pause_left(), self.paused.is_some());
        let mirror = self.mirror().await?;
        let drained = mirror.drain(&lane);
        if !is_paused {
            return drained.await;
        }
        tokio::select! {
            biased;
            drained = drained => drained?,
            () = env.sleep(left) => {}
        }
        self.check_pause()
    }

    /// Mirrors for a while, or until there is news.
    async fn mirror_for(&mut self, time: Duration) -> Result<(), Halt> {
        let (lane, env) = (self.lane.clone(), self.database.env.clone());
        if self.plan().stage == Stage::Guarding {
            self.end_forward().await?;
        }
        let idle = if self.plan().stage == Stage::Copying { COPY_IDLE } else { IDLE };
        let until = env.elapsed() + time;
        while env.elapsed() < until {
            let lost = self.plan().no_way_back;
            // A page that is not full is all there is. Waiting a moment makes the next one larger: one transaction on the
            // taker for what came meanwhile, instead of one after the other that take the time of everyone else.
            if !lost && self.mirror().await?.page(&lane, None).await? == Mirrored::Full {
                self.tick().await?;
                continue;
            }
            self.tick().await?;
            let told = {
                let waited = futures::future::select(Box::pin(self.news.notified()), env.sleep(idle)).await;
                matches!(waited, futures::future::Either::Left(_))
            };
            if told {
                self.look().await?;
            }
        }
        Ok(())
    }

    /// The source's log is not needed any more once the target serves.
    async fn end_forward(&mut self) -> Result<(), Halt> {
        if self.mirror.is_none() {
            self.lane.taker().await?.remove_consumer(&self.lane.stream).await?;
        }
        Ok(())
    }

    /// Mirrors until the lag is small. Writers go on meanwhile, so there is no end to wait for.
    async fn catch_up(&mut self) -> Result<(), Halt> {
        let lane = self.lane.clone();
        let (bound, pages) = match self.plan().stage {
            Stage::Switching => (SWITCH_LAG, SWITCH_PAGES),
            _ => (SMALL_LAG, usize::MAX),
        };
        for _ in 0..pages {
            let mirrored = self.mirror().await?.page(&lane, None).await?;
            if self.mirror().await?.lag(&lane).await? <= bound {
                break;
            }
            self.tick().await?;
            if mirrored == Mirrored::Nothing {
                self.database.env.sleep(IDLE).await;
            }
        }
        Ok(())
    }

    /// Copies and mirrors side by side.
    async fn copy(&mut self) -> Result<(), Halt> {
        let tables: Vec<String> = self.plan().table_policies.keys().cloned().collect();
        let (lane, progress) = (self.lane.clone(), self.progress.clone());
        progress.expect(self.plan().backfill.rows_expected);
        self.mirror().await?;
        tokio::select! {
            biased;
            copied = copy::copy(&lane, &tables, &progress) => copied?,
            stopped = self.mirror_on() => stopped?,
        }
        self.tell().await
    }

    async fn mirror_on(&mut self) -> Result<(), Halt> {
        loop {
            self.mirror_for(TICK).await?;
        }
    }

    async fn verify(&mut self) -> Result<(), Halt> {
        let (lane, plan) = (self.lane.clone(), self.plan().clone());
        let mut comparison = Comparison::new(verify::tables(&lane, &plan), plan.verification);
        let found = loop {
            let mirror = self.mirror().await?;
            comparison.go_on(&lane, mirror).await?;
            if let Some(found) = comparison.end() {
                break found;
            }
            self.learn(Event::Comparing(comparison.so_far())).await?;
            self.tick().await?;
            self.mirror().await?.page(&lane, None).await?;
        };
        let completed_at = Some(now(&self.database));
        self.learn(Event::Verified(isles_kernel::moves::Verification { completed_at, ..found })).await
    }

    /// Says now and then that it lives, and how far it is.
    async fn tick(&mut self) -> Result<(), Halt> {
        if self.database.is_closing() {
            return Err(Halt::Closing);
        }
        if self.database.env.elapsed().saturating_sub(self.ticked) < TICK {
            return Ok(());
        }
        self.ticked = self.database.env.elapsed();
        self.look().await?;
        let renewed = self.database.catalog().renew(&lease_key(&self.plan().id), self.lease).await;
        if renewed.is_err() {
            return Err(Halt::Superseded);
        }
        let lane = self.lane.clone();
        if let Some(mirror) = &mut self.mirror {
            mirror.keep(&lane).await?;
        }
        self.tell().await
    }

    /// Whether somebody else has changed the plan.
    async fn look(&mut self) -> Result<(), Halt> {
        let known = self.database.catalog().get(&self.stored.record.key).await.map_err(catalog_error)?.value;
        match known.is_some_and(|record| record.revision == self.stored.record.revision) {
            true => Ok(()),
            false => Err(Halt::Changed),
        }
    }

    /// Puts its progress into the plan.
    async fn tell(&mut self) -> Result<(), Halt> {
        let (mut backfill, mut tail) = (self.plan().backfill.clone(), self.plan().tail.clone());
        if self.plan().stage == Stage::Copying {
            let copied = self.progress.copied();
            (backfill.tables, backfill.rows_expected) = (copied.tables, copied.expected);
            backfill.total_rows_copied = backfill.tables.values().map(|table| table.rows).sum();
        }
        let lane = self.lane.clone();
        if let Some(mirror) = &mut self.mirror {
            let lag = mirror.lag(&lane).await?;
            let applied = std::mem::take(&mut mirror.applied);
            tail.events_applied += applied;
            if tail.last_event_id != mirror.position || applied > 0 {
                tail.last_event_ts = Some(now(&self.database));
            }
            (tail.last_event_id, tail.lag) = (mirror.position, Some(lag));
            if self.stored.plan.direction == Direction::Forward && tail.status == TailStatus::Pending {
                tail.status = TailStatus::Replaying;
            }
        }
        let mut plan = self.stored.plan.clone();
        if !plan.no_way_back {
            plan.error_message = None;
        }
        if (&plan.backfill, &plan.tail, &plan.error_message) == (&backfill, &tail, &self.plan().error_message) {
            return Ok(());
        }
        plan.step(Event::Progress { backfill, tail }, now(&self.database)).map_err(|_| Halt::Changed)?;
        self.save(plan).await
    }
}
