//! What can happen to a plan, and what its driver does next.

use super::plan::{
    Backfill, BackfillStatus, Direction, Phase, Plan, Stage, TablePolicy, Tail, TailStatus, Verification,
    VerificationStatus,
};
use crate::error::SqlError;
use crate::names::RoutingVersion;
use std::collections::BTreeMap;

/// Switches that a plan tries by itself, each given up when it takes too long. Then a person looks.
const MAX_ATTEMPTS: u64 = 20;

/// Why a plan is refused, or what is asked of it. It stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct MoveError {
    /// As the admin API names it.
    pub code: &'static str,
    pub message: String,
    pub hint: Option<String>,
}

impl MoveError {
    /// A plan that makes no sense.
    pub fn invalid(message: impl Into<String>) -> MoveError {
        MoveError { code: "INVALID_SPLIT", message: message.into(), hint: None }
    }

    /// A command that does not fit where the plan is.
    pub fn phase(message: impl Into<String>) -> MoveError {
        MoveError { code: "INVALID_PHASE", message: message.into(), hint: None }
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> MoveError {
        self.hint = Some(hint.into());
        self
    }

    pub fn for_people(&self) -> SqlError {
        let sqlstate = match self.code {
            "INVALID_SPLIT" => "22023",
            _ => "55000",
        };
        let error = SqlError::new(sqlstate, self.message.clone());
        self.hint.iter().fold(error, |error, hint| error.with_hint(hint.clone()))
    }
}

/// What happens to a plan: an operator's command, or the news of its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Begin to mirror.
    StartDualWrite,
    RunBackfill,
    /// Compare both sides, and make equal what differs if so wanted.
    Verify {
        repair: bool,
    },
    /// Cut over without comparing.
    WaiveVerification,
    Cutover,
    Rollback,
    /// Give up the way back, and remove the source's rows.
    Complete,

    /// A driver begins to drive.
    TakenOver,
    /// Capture has begun, with these tables.
    Prepared {
        tables: BTreeMap<String, TablePolicy>,
    },
    /// News of the copy and the mirror.
    Progress {
        backfill: Backfill,
        tail: Tail,
    },
    Copied,
    CaughtUp,
    /// What has been compared so far, and found.
    Comparing(Verification),
    Verified(Verification),
    /// A switch was given up; the fence may still be there.
    Aborted(String),
    Unfenced,
    /// The routing has changed, in the same commit.
    Switched {
        version: RoutingVersion,
    },
    /// The new owner serves.
    Settled {
        pause_micros: u64,
    },
    /// The mirror back is lost.
    WayBackLost(String),
    Cleaned,
    /// The move cannot go on.
    Failed(String),
}

/// What a driver does, in order. Each may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Makes the taker ready: the stream is the driver's own, nothing of what moves is there, and who reads whole tables
    /// knows that there are strangers. Then capture begins.
    Prepare,
    /// Copies rows, mirroring meanwhile.
    Copy,
    /// Mirrors until the lag is small.
    CatchUp,
    /// Mirrors for a while.
    Mirror,
    /// Compares both sides at one position.
    Verify,
    /// Captures the taker's changes from here on, so that they can be mirrored back.
    WatchTaker,
    /// The giver refuses writes. When this is done, none is under way.
    FenceGiver,
    /// Mirrors until the taker has every change that the giver has committed.
    Drain,
    /// Compares the tables, and the rows if they are few.
    Compare,
    /// Changes the routing and the plan in one commit.
    Switch,
    /// The giver refuses everything, at the new version.
    CloseGiver,
    /// The taker serves, at the new version.
    OpenTaker,
    /// The giver serves again, at the version that holds.
    ReopenGiver,
    /// Ends the streams and removes the loser's rows.
    Clean,
}

impl Plan {
    /// What is done where the plan is; when all of it is done, [`Plan::done`] is what happened.
    pub fn script(&self) -> &'static [Effect] {
        match self.stage {
            Stage::Planned | Stage::Done => &[],
            Stage::Preparing => &[Effect::Prepare],
            Stage::Capturing | Stage::Ready | Stage::Guarding => &[Effect::Mirror],
            Stage::Copying => &[Effect::Copy],
            Stage::Tailing => &[Effect::CatchUp],
            Stage::Verifying => &[Effect::Verify],
            Stage::Switching => &[
                Effect::WatchTaker,
                Effect::CatchUp,
                Effect::FenceGiver,
                Effect::Drain,
                Effect::Compare,
                Effect::Switch,
            ],
            Stage::Unfencing => &[Effect::ReopenGiver],
            Stage::Settling => &[Effect::CloseGiver, Effect::Drain, Effect::OpenTaker],
            Stage::Cleaning => &[Effect::Clean],
        }
    }

    /// What has happened once the script is done; none where it says so by itself, or where the plan waits.
    pub fn done(&self) -> Option<Event> {
        match self.stage {
            Stage::Copying => Some(Event::Copied),
            Stage::Tailing => Some(Event::CaughtUp),
            Stage::Unfencing => Some(Event::Unfenced),
            Stage::Cleaning => Some(Event::Cleaned),
            _ => None,
        }
    }

    /// What a plan that goes by itself does next without being told.
    pub fn next_command(&self) -> Option<Event> {
        if !self.options.auto {
            return None;
        }
        match self.stage {
            Stage::Planned => Some(Event::StartDualWrite),
            Stage::Capturing => Some(Event::RunBackfill),
            Stage::Ready => match self.verification.status {
                VerificationStatus::Pending if self.options.waive_verification => Some(Event::WaiveVerification),
                VerificationStatus::Pending => Some(Event::Verify { repair: false }),
                VerificationStatus::Passed | VerificationStatus::Waived => {
                    (self.cutover.attempts < MAX_ATTEMPTS).then_some(Event::Cutover)
                }
                VerificationStatus::Running | VerificationStatus::Failed => None,
            },
            Stage::Guarding if self.options.complete => Some(Event::Complete),
            _ => None,
        }
    }

    /// Whether a plan that goes by itself has come as far as it goes without help.
    pub fn is_at_rest(&self) -> bool {
        let waits = matches!(self.stage, Stage::Planned | Stage::Capturing | Stage::Ready | Stage::Guarding);
        !self.is_active() || (waits && self.next_command().is_none())
    }

    /// Why a plan that goes by itself has come to rest before its end, as far as it is known.
    pub fn why_at_rest(&self) -> Option<&str> {
        match self.verification.status {
            VerificationStatus::Failed if self.stage == Stage::Ready => Some("rows differ"),
            _ => self.cutover.aborted.as_deref().or(self.error_message.as_deref()),
        }
    }

    /// Carries an event out, or refuses it and leaves the plan as it is.
    pub fn step(&mut self, event: Event, now: u64) -> Result<(), MoveError> {
        match event {
            Event::StartDualWrite => self.start(now)?,
            Event::RunBackfill => self.run_backfill(now)?,
            Event::Verify { repair } => self.verify(repair)?,
            Event::WaiveVerification => self.waive()?,
            Event::Cutover => self.cut_over()?,
            Event::Rollback => self.roll_back()?,
            Event::Complete => self.complete()?,
            news => self.learn(news, now)?,
        }
        self.phase = self.phase_now();
        self.updated_at = now;
        Ok(())
    }

    fn start(&mut self, now: u64) -> Result<(), MoveError> {
        if self.stage != Stage::Planned {
            return Err(self.misfit("Dual write requires planning phase"));
        }
        self.stage = Stage::Preparing;
        self.dual_write_started_at = Some(now);
        self.error_message = None;
        Ok(())
    }

    fn run_backfill(&mut self, now: u64) -> Result<(), MoveError> {
        match self.stage {
            Stage::Capturing => {
                self.stage = Stage::Copying;
                self.backfill.status = BackfillStatus::Running;
                self.backfill.started_at = Some(now);
                self.error_message = None;
                Ok(())
            }
            // It is what is being done, or has been: asking twice is no mistake.
            Stage::Copying | Stage::Tailing | Stage::Ready => Ok(()),
            _ => Err(self.misfit("Backfill requires dual-write phase")),
        }
    }

    fn verify(&mut self, repair: bool) -> Result<(), MoveError> {
        match self.stage {
            Stage::Ready => {
                self.stage = Stage::Verifying;
                let status = VerificationStatus::Running;
                self.verification = Verification { status, repair, ..Verification::default() };
                Ok(())
            }
            Stage::Verifying => Ok(()),
            _ => Err(self.misfit("Verification requires cutover_pending phase")),
        }
    }

    fn waive(&mut self) -> Result<(), MoveError> {
        match self.stage {
            Stage::Ready => {
                self.verification.status = VerificationStatus::Waived;
                Ok(())
            }
            _ => Err(self.misfit("Verification requires cutover_pending phase")),
        }
    }

    fn cut_over(&mut self) -> Result<(), MoveError> {
        match self.stage {
            Stage::Ready => {}
            Stage::Switching if self.direction == Direction::Forward => return Ok(()),
            Stage::Tailing => return Err(self.misfit("Tail replay must be caught up before cutover")),
            _ => return Err(self.misfit("Cutover requires cutover_pending phase")),
        }
        match self.verification.status {
            VerificationStatus::Passed | VerificationStatus::Waived => {
                self.begin_switch(Direction::Forward);
                Ok(())
            }
            VerificationStatus::Failed => Err(self
                .misfit("Cutover requires equal rows on both shards, and some differ")
                .with_hint("repair them and verify again, or waive the verification")),
            VerificationStatus::Pending | VerificationStatus::Running => {
                Err(self.misfit("Cutover requires verification").with_hint("verify first, or waive the verification"))
            }
        }
    }

    fn begin_switch(&mut self, direction: Direction) {
        self.stage = Stage::Switching;
        self.direction = direction;
        self.cutover.attempts += 1;
        self.cutover.aborted = None;
    }

    fn roll_back(&mut self) -> Result<(), MoveError> {
        match self.stage {
            Stage::Planned => {
                self.phase = Phase::RolledBack;
                self.stage = Stage::Done;
            }
            Stage::Preparing | Stage::Capturing | Stage::Copying | Stage::Tailing | Stage::Ready | Stage::Verifying => {
                self.phase = Phase::RolledBack;
                self.reset();
            }
            Stage::Guarding if self.no_way_back => {
                let message = "Rollback requires the mirror back, which is lost";
                return Err(self.misfit(message).with_hint("plan a new move in the other direction"));
            }
            Stage::Guarding => self.begin_switch(Direction::Back),
            Stage::Switching | Stage::Unfencing | Stage::Settling => {
                return Err(self
                    .misfit("Rollback must wait: a cutover is under way")
                    .with_hint("try again in a moment"));
            }
            Stage::Cleaning | Stage::Done => return Err(self.misfit("Rollback requires an active plan")),
        }
        self.error_message = None;
        Ok(())
    }

    /// As if nothing had been copied; what was is removed.
    fn reset(&mut self) {
        self.stage = Stage::Cleaning;
        self.backfill = Backfill::default();
        self.tail = Tail::default();
        self.verification = Verification::default();
    }

    fn complete(&mut self) -> Result<(), MoveError> {
        match self.stage {
            Stage::Guarding => {
                self.phase = Phase::Completed;
                self.stage = Stage::Cleaning;
                Ok(())
            }
            Stage::Cleaning | Stage::Done if self.phase == Phase::Completed => Ok(()),
            _ => Err(self.misfit("Complete requires completed phase").with_hint("cut over first")),
        }
    }

    fn learn(&mut self, news: Event, now: u64) -> Result<(), MoveError> {
        match (self.stage, news) {
            // Where the last driver stopped within a switch nobody knows; the source is made to serve again first.
            (Stage::Switching, Event::TakenOver) => {
                self.stage = Stage::Unfencing;
                self.cutover.aborted = Some("the driver of the move was replaced".into());
            }
            (_, Event::TakenOver) => {}
            (Stage::Preparing, Event::Prepared { tables }) => {
                self.stage = Stage::Capturing;
                self.table_policies = tables;
                self.tail.status = TailStatus::Replaying;
                self.tail.started_at = Some(now);
            }
            (_, Event::Progress { backfill, tail }) => {
                self.backfill = backfill;
                self.tail = tail;
            }
            (Stage::Copying, Event::Copied) => {
                self.stage = Stage::Tailing;
                self.backfill.status = BackfillStatus::Completed;
                self.backfill.completed_at = Some(now);
            }
            (Stage::Tailing, Event::CaughtUp) => {
                self.stage = Stage::Ready;
                self.tail.status = TailStatus::CaughtUp;
                self.tail.completed_at = Some(now);
            }
            (Stage::Verifying, Event::Comparing(found)) => self.verification = found,
            (Stage::Verifying, Event::Verified(found)) => {
                self.stage = Stage::Ready;
                self.verification = found;
            }
            (Stage::Switching, Event::Aborted(why)) => {
                self.stage = Stage::Unfencing;
                self.cutover.aborted = Some(why);
            }
            (Stage::Unfencing, Event::Unfenced) => {
                self.stage = if self.direction == Direction::Forward { Stage::Ready } else { Stage::Guarding };
                self.direction = Direction::Forward;
            }
            (Stage::Switching, Event::Switched { version }) => self.switched(version, now),
            (Stage::Settling, Event::Settled { pause_micros }) => self.settled(pause_micros),
            (Stage::Guarding, Event::WayBackLost(why)) => {
                self.no_way_back = true;
                self.error_message = Some(why);
            }
            (Stage::Cleaning, Event::Cleaned) => self.stage = Stage::Done,
            (
                Stage::Preparing | Stage::Capturing | Stage::Copying | Stage::Tailing | Stage::Ready | Stage::Verifying,
                Event::Failed(why),
            ) => self.failed(why),
            (stage, news) => {
                let message = format!("{news:?} does not fit where the plan is ({stage:?})");
                return Err(MoveError::phase(message));
            }
        }
        Ok(())
    }

    fn switched(&mut self, version: RoutingVersion, now: u64) {
        self.stage = Stage::Settling;
        self.cutover.switched_at = Some(now);
        match self.direction {
            Direction::Forward => self.routing_version_cutover = Some(version),
            Direction::Back => self.rollback_version = Some(version),
        }
    }

    fn settled(&mut self, pause_micros: u64) {
        self.cutover.pause_micros = Some(pause_micros);
        match self.direction {
            Direction::Forward => self.stage = Stage::Guarding,
            Direction::Back => {
                self.phase = Phase::RolledBack;
                self.reset();
            }
        }
    }

    fn failed(&mut self, why: String) {
        match self.stage {
            Stage::Copying | Stage::Preparing | Stage::Capturing => self.backfill.status = BackfillStatus::Failed,
            _ => self.tail.status = TailStatus::Failed,
        }
        self.phase = Phase::Failed;
        self.stage = Stage::Cleaning;
        self.error_message = Some(why);
    }

    /// The phase that goes with the stage; where it does not tell, it stays what it was made.
    fn phase_now(&self) -> Phase {
        match (self.stage, self.direction) {
            (Stage::Planned, _) => Phase::Planning,
            (Stage::Preparing | Stage::Capturing, _) => Phase::DualWrite,
            (Stage::Copying, _) => Phase::Backfill,
            (Stage::Tailing, _) => Phase::Tailing,
            (Stage::Ready | Stage::Verifying, _) => Phase::CutoverPending,
            (Stage::Switching | Stage::Unfencing, Direction::Forward) => Phase::CutoverPending,
            (Stage::Switching | Stage::Unfencing, Direction::Back) => Phase::Completed,
            (Stage::Settling, Direction::Forward) | (Stage::Guarding, _) => Phase::Completed,
            (Stage::Settling, Direction::Back) => Phase::RolledBack,
            (Stage::Cleaning | Stage::Done, _) => self.phase,
        }
    }

    fn misfit(&self, message: &str) -> MoveError {
        MoveError::phase(message).with_hint(format!("the plan is in phase {}", self.phase.name()))
    }
}
