//! A plan that goes on in the server, watched until it is where it was wanted, or will not come there.

use super::super::client::ServerArguments;
use super::super::output::{Failure, Format, complain};
use super::super::tenants::server::{Server, literal};
use super::plan::{one, stage_name};
use super::show::differing;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use isles_kernel::moves::{Phase, Plan, Stage, TailStatus, VerificationStatus};
use serde_json::json;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// A server that is away may be restarting: the plan goes on when it is back.
const AWAY: Duration = Duration::from_secs(60);

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    Mirroring,
    CaughtUp,
    Verified,
    /// The target serves.
    Served,
    RolledBack,
    /// Nothing is left to do.
    Done,
    /// A plan that goes by itself has come as far as it goes: the target serves, and the copies were proved equal, or
    /// that was waived.
    Finished,
}

/// How it stands.
enum Verdict {
    Wait,
    Reached,
    Missed(Failure),
}

pub(super) async fn follow(
    server: Server,
    arguments: &ServerArguments,
    plan: Plan,
    goal: Goal,
    format: Format,
) -> Result<Plan, Failure> {
    let bar = Bar::new(&plan, goal, format);
    let interrupted = tokio::signal::ctrl_c();
    let watched = tokio::select! {
        watched = watch(server, arguments, plan, goal, &bar) => watched,
        _ = interrupted => {
            let hint = "isles move status shows how far it is, isles move rollback undoes it";
            Err(Failure::usage("the move goes on in the server").code("interrupted").hint(hint))
        }
    };
    bar.bar.finish_and_clear();
    watched
}

async fn watch(
    mut server: Server,
    arguments: &ServerArguments,
    mut plan: Plan,
    goal: Goal,
    bar: &Bar,
) -> Result<Plan, Failure> {
    let show = format!("SHOW MOVE {}", literal(plan.id.as_str()));
    let mut told = None;
    loop {
        bar.show(&plan);
        if plan.error_message != told {
            told.clone_from(&plan.error_message);
            bar.tell(&plan);
        }
        match judge(&plan, goal) {
            Verdict::Wait => {}
            Verdict::Reached => return Ok(plan),
            Verdict::Missed(failure) => return Err(failure),
        }
        tokio::time::sleep(LOOK).await;
        plan = match one(&server, &show).await {
            Ok(plan) => plan,
            Err(failure) if failure.is_unreachable() => {
                server = back(arguments, failure).await?;
                continue;
            }
            Err(failure) => return Err(failure),
        };
    }
}

/// Connects again, for as long as a restart takes.
async fn back(arguments: &ServerArguments, first: Failure) -> Result<Server, Failure> {
    let until = Instant::now() + AWAY;
    loop {
        match Server::connect(arguments).await {
            Ok(server) => return Ok(server),
            Err(_) if Instant::now() < until => tokio::time::sleep(LOOK * 5).await,
            Err(_) => return Err(first.hint("the move goes on when the server is back: isles move status")),
        }
    }
}

/// A plan that has left the way to its goal.
fn strayed(plan: &Plan) -> Option<Failure> {
    let id = &plan.id;
    match (plan.phase, &plan.error_message) {
        (Phase::Failed, why) => {
            let why = why.as_deref().unwrap_or("for an unknown reason");
            Some(Failure::check(format!("plan {id} has failed: {why}")).code("failed"))
        }
        (Phase::RolledBack, _) => Some(Failure::check(format!("plan {id} was rolled back")).code("rolled_back")),
        _ => None,
    }
}

fn judge(plan: &Plan, goal: Goal) -> Verdict {
    if goal != Goal::RolledBack
        && let Some(failure) = strayed(plan)
    {
        // What has failed is cleaned up before the answer.
        return if plan.stage == Stage::Done { Verdict::Missed(failure) } else { Verdict::Wait };
    }
    let reached = |reached: bool| if reached { Verdict::Reached } else { Verdict::Wait };
    match goal {
        Goal::Mirroring => reached(!matches!(plan.stage, Stage::Planned | Stage::Preparing)),
        Goal::CaughtUp => reached(plan.tail.status == TailStatus::CaughtUp),
        Goal::Verified => match plan.verification.status {
            VerificationStatus::Running => Verdict::Wait,
            // A driver that was replaced begins anew only when it is told to.
            VerificationStatus::Pending => Verdict::Missed(
                Failure::check("the comparison was interrupted").code("interrupted").hint("verify again"),
            ),
            VerificationStatus::Failed => Verdict::Missed(unequal(plan)),
            VerificationStatus::Passed | VerificationStatus::Waived => Verdict::Reached,
        },
        Goal::Served => match (plan.stage, &plan.cutover.aborted) {
            (Stage::Ready, Some(why)) => Verdict::Missed(aborted(plan, why)),
            (Stage::Guarding | Stage::Cleaning | Stage::Done, _) => Verdict::Reached,
            _ => Verdict::Wait,
        },
        Goal::RolledBack => match (plan.stage, plan.phase, &plan.cutover.aborted) {
            (Stage::Done, Phase::RolledBack, _) => Verdict::Reached,
            (Stage::Guarding, _, Some(why)) => Verdict::Missed(aborted(plan, why)),
            (Stage::Done, ..) => Verdict::Missed(Failure::check("the plan has ended otherwise").code("ended")),
            _ => Verdict::Wait,
        },
        Goal::Done if plan.is_active() && plan.is_at_rest() => Verdict::Missed(resting(plan)),
        Goal::Done => reached(!plan.is_active()),
        Goal::Finished => finished(plan),
    }
}

fn finished(plan: &Plan) -> Verdict {
    if !plan.is_at_rest() {
        return Verdict::Wait;
    }
    let (seen, waived) = (plan.verification.status, plan.options.waive_verification);
    match (plan.phase, seen) {
        (Phase::Completed, VerificationStatus::Passed) => Verdict::Reached,
        (Phase::Completed, VerificationStatus::Waived) if waived => Verdict::Reached,
        (Phase::Completed, _) => {
            Verdict::Missed(Failure::check("the target serves, but the copies were not compared").code("not_verified"))
        }
        _ => Verdict::Missed(resting(plan)),
    }
}

/// A plan that goes no further by itself.
fn resting(plan: &Plan) -> Failure {
    match (plan.verification.status, plan.why_at_rest()) {
        (VerificationStatus::Failed, _) => unequal(plan),
        (_, Some(why)) => aborted(plan, why),
        (_, None) => Failure::check(format!("plan {} waits for an operator", plan.id))
            .code("at_rest")
            .hint(format!("isles move status {} tells what can be done", plan.id)),
    }
}

fn unequal(plan: &Plan) -> Failure {
    let id = &plan.id;
    Failure::check(differing(plan))
        .code("rows_differ")
        .hint(format!("isles move verify {id} --repair makes them equal; isles move rollback {id} gives the move up"))
}

fn aborted(plan: &Plan, why: &str) -> Failure {
    let (id, attempts) = (&plan.id, plan.cutover.attempts);
    let (serves, command) = match plan.phase {
        Phase::Completed => (&plan.target_shard, "rollback"),
        _ => (&plan.source_shard, "cutover"),
    };
    Failure::check(format!("the owner has not changed, after {attempts} attempts: {why}"))
        .code("aborted")
        .hint(format!("{serves} serves as before; isles move {command} {id} tries again"))
}

/// Shown on a terminal only.
struct Bar {
    bar: ProgressBar,
    format: Format,
    /// Whether rows are copied before the goal is reached.
    copies: bool,
}

impl Bar {
    fn new(plan: &Plan, goal: Goal, format: Format) -> Bar {
        if format == Format::Json || !std::io::stderr().is_terminal() {
            return Bar { bar: ProgressBar::hidden(), format, copies: false };
        }
        let copies = matches!(goal, Goal::CaughtUp | Goal::Finished);
        let template = if copies { "{spinner} {pos} rows {rate} {msg}" } else { "{spinner} {msg}" };
        complain(&format!("plan {}: {} from {} to {}", plan.id, plan.units, plan.source_shard, plan.target_shard));
        let bar = Bar { bar: ProgressBar::new_spinner(), format, copies };
        bar.draw_as(template);
        bar
    }

    fn draw_as(&self, template: &str) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.with_key("rate", rate));
        }
    }

    /// Says why a plan does not go on, or that it does again, wherever it is followed from.
    fn tell(&self, plan: &Plan) {
        let text = match (&plan.error_message, self.format) {
            (waits, Format::Json) => json!({ "plan": plan.id, "waits": waits }).to_string(),
            (Some(why), Format::Text) => format!("plan {} waits: {why}", plan.id),
            (None, Format::Text) => format!("plan {} goes on", plan.id),
        };
        self.bar.suspend(|| complain(&text));
    }

    fn show(&self, plan: &Plan) {
        let (copied, expected) = (plan.backfill.total_rows_copied, plan.backfill.rows_expected);
        if let (true, Some(expected)) = (self.copies, expected) {
            if self.bar.length().is_none() {
                self.draw_as("{bar:30} {pos}/{len} rows {rate} {eta} {msg}");
            }
            // Rows that came while it went on are copied or mirrored, too.
            self.bar.set_length(expected.max(copied));
        }
        self.bar.set_position(copied);
        let lag = plan.tail.lag.map_or(String::new(), |lag| format!(", lag {lag}"));
        self.bar.set_message(format!("{} ({}){lag}", plan.phase.name(), stage_name(plan.stage)));
    }
}

/// Whole rows.
fn rate(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    // A bar that cannot be written is not seen.
    let _ = write!(out, "{:.0}/s", state.per_sec());
}
