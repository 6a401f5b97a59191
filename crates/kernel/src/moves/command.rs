//! What operators tell a plan, by whichever surface: SQL, HTTP, the command line.

use super::plan::{Phase, Plan, Stage, VerificationStatus};
use super::step::{Event, MoveError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Begin to mirror.
    Start,
    Backfill,
    /// The mirror runs by itself: this asks how far it is.
    Tail,
    /// Compare both sides, and with `repair` make equal what differs.
    Verify {
        repair: bool,
    },
    /// Change the owner; with `waive` also if both sides were not found equal.
    Cutover {
        waive: bool,
    },
    Rollback,
    /// Give up the way back, and remove the loser's rows.
    Complete,
    /// Go on without being told, and with `complete` to the very end.
    Run {
        complete: bool,
    },
}

impl Command {
    /// Carries a command out, or refuses it and leaves the plan as it is.
    pub fn carry_out(self, plan: &mut Plan, now: u64) -> Result<(), MoveError> {
        match self {
            Command::Start => plan.step(Event::StartDualWrite, now),
            Command::Backfill => plan.step(Event::RunBackfill, now),
            Command::Tail => check_tail(plan),
            Command::Verify { repair } => plan.step(Event::Verify { repair }, now),
            Command::Cutover { .. } if plan.stage == Stage::Verifying => {
                let error = MoveError::phase("Cutover must wait: both shards are being compared");
                Err(error.with_hint("try again in a moment"))
            }
            Command::Cutover { waive } => {
                let mut waived = plan.clone();
                if waive && plan.stage == Stage::Ready && plan.verification.status != VerificationStatus::Passed {
                    waived.step(Event::WaiveVerification, now)?;
                }
                waived.step(Event::Cutover, now)?;
                *plan = waived;
                Ok(())
            }
            Command::Rollback => plan.step(Event::Rollback, now),
            Command::Complete => plan.step(Event::Complete, now),
            Command::Run { complete } => run(plan, complete, now),
        }
    }

    /// Whether a plan is only looked at.
    pub fn is_question(self) -> bool {
        self == Command::Tail
    }
}

fn check_tail(plan: &Plan) -> Result<(), MoveError> {
    let follows = matches!(plan.phase, Phase::Backfill | Phase::Tailing | Phase::CutoverPending);
    match follows || plan.stage == Stage::Guarding {
        true => Ok(()),
        false => Err(misfit(plan, "Tail replay requires backfill or tailing phase")),
    }
}

fn run(plan: &mut Plan, complete: bool, now: u64) -> Result<(), MoveError> {
    if matches!(plan.stage, Stage::Cleaning | Stage::Done) {
        return Err(misfit(plan, "Run requires an active plan"));
    }
    plan.options.auto = true;
    plan.options.complete |= complete;
    plan.updated_at = now;
    Ok(())
}

fn misfit(plan: &Plan, message: &str) -> MoveError {
    MoveError::phase(message).with_hint(format!("the plan is in phase {}", plan.phase.name()))
}
