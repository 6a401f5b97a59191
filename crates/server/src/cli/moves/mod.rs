//! `isles move`: moves of tenants and buckets, while they are served.
//!
//! In reading order:
//!   * [`units`]   what is to be moved: names, patterns, buckets, shares
//!   * [`plan`]    plans as a server tells them
//!   * [`show`]    a plan, for people
//!   * [`follow`]  a plan that goes on, until it is where it was wanted
//!
//! Everything goes through SQL, over PostgreSQL's protocol: what connects applications moves tenants, too. A plan lives
//! in the server; whoever stops waiting for one stops nothing.

mod follow;
mod plan;
mod show;
mod units;

use super::client::ServerArguments;
use super::output::{Failure, Format, FormatArgument, Outcome, block_on, say, say_json};
use super::sql::show::table;
use super::tenants::server::{Server, literal};
use follow::{Goal, follow};
use isles_kernel::moves::{Plan, Stage};
use plan::{list_json, plan_json};
pub(in crate::cli) use plan::{one, stage_name};
use units::UnitArguments;

#[derive(clap::Subcommand)]
pub(crate) enum MoveMode {
    /// Make a plan, which does nothing yet
    Plan(PlanArguments),
    /// Begin to mirror changes to the target
    Start(CommandArguments),
    /// Copy the rows, and wait until the target follows closely
    Backfill(CommandArguments),
    /// Wait until the target follows closely
    Tail(CommandArguments),
    /// Compare both sides, row by row
    Verify(VerifyArguments),
    /// Let the target serve
    Cutover(CutoverArguments),
    /// Undo a move, before or after the cutover
    Rollback(CommandArguments),
    /// Give up the way back, and remove the rows that nobody serves
    Complete(CommandArguments),
    /// Do all of it: plan, mirror, copy, compare, cut over
    Run(RunArguments),
    /// Show one plan, or all that are not done
    Status(StatusArguments),
    /// List all plans, the newest first
    List(ListArguments),
}

#[derive(clap::Args)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct StatusArguments {
    /// The plan
    id: Option<String>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct PlanArguments {
    #[command(flatten)]
    units: UnitArguments,
    /// Say what would be planned, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct RunArguments {
    /// A plan to go on with, instead of a new one
    #[arg(conflicts_with_all = ["tenant", "buckets", "share", "to", "from", "description", "pause_limit", "no_verify", "unknown_tenants"])]
    id: Option<String>,
    #[command(flatten)]
    units: UnitArguments,
    /// Remove the source's rows at the end; there is no way back then
    #[arg(long)]
    complete: bool,
    /// Do not wait: the server goes on by itself
    #[arg(long)]
    no_wait: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct CommandArguments {
    /// The plan
    id: String,
    /// Do not wait: the server goes on by itself
    #[arg(long)]
    no_wait: bool,
    /// Say what would become of the plan, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct VerifyArguments {
    /// Make equal what differs
    #[arg(long)]
    repair: bool,
    #[command(flatten)]
    command: CommandArguments,
}

#[derive(clap::Args)]
pub(crate) struct CutoverArguments {
    /// Also if both sides were not found equal
    #[arg(long)]
    no_verify: bool,
    #[command(flatten)]
    command: CommandArguments,
}

impl MoveMode {
    pub(crate) fn format(&self) -> Format {
        let format = match self {
            MoveMode::Plan(arguments) => arguments.format,
            MoveMode::Verify(arguments) => arguments.command.format,
            MoveMode::Cutover(arguments) => arguments.command.format,
            MoveMode::Run(arguments) => arguments.format,
            MoveMode::Status(arguments) => arguments.format,
            MoveMode::List(arguments) => arguments.format,
            MoveMode::Start(arguments)
            | MoveMode::Backfill(arguments)
            | MoveMode::Tail(arguments)
            | MoveMode::Rollback(arguments)
            | MoveMode::Complete(arguments) => arguments.format,
        };
        format.format()
    }
}

pub(crate) fn run(mode: MoveMode) -> Result<Outcome, Failure> {
    block_on(carry_out(mode))
}

async fn carry_out(mode: MoveMode) -> Result<Outcome, Failure> {
    match mode {
        MoveMode::Plan(arguments) => make(&arguments).await,
        MoveMode::Start(arguments) => tell(&arguments, "START", "", Goal::Mirroring).await,
        MoveMode::Backfill(arguments) => tell(&arguments, "BACKFILL", "", Goal::CaughtUp).await,
        MoveMode::Tail(arguments) => tell(&arguments, "TAIL", "", Goal::CaughtUp).await,
        MoveMode::Verify(VerifyArguments { repair, command }) => {
            tell(&command, "VERIFY", if repair { "repair" } else { "" }, Goal::Verified).await
        }
        MoveMode::Cutover(CutoverArguments { no_verify, command }) => {
            tell(&command, "CUTOVER", if no_verify { "verify = off" } else { "" }, Goal::Served).await
        }
        MoveMode::Rollback(arguments) => tell(&arguments, "ROLLBACK", "", Goal::RolledBack).await,
        MoveMode::Complete(arguments) => tell(&arguments, "COMPLETE", "", Goal::Done).await,
        MoveMode::Run(arguments) => run_all(&arguments).await,
        MoveMode::Status(arguments) => status(&arguments).await,
        MoveMode::List(arguments) => list(&arguments).await,
    }
}

/// `WITH (…)` of what is said, or nothing.
fn with(options: &[&str]) -> String {
    let said: Vec<&str> = options.iter().copied().filter(|option| !option.is_empty()).collect();
    if said.is_empty() { String::new() } else { format!(" WITH ({})", said.join(", ")) }
}

fn tried(dry_run: bool) -> &'static str {
    if dry_run { "dry_run" } else { "" }
}

async fn make(arguments: &PlanArguments) -> Result<Outcome, Failure> {
    let server = Server::connect(&arguments.server).await?;
    let order = arguments.units.order(&server).await?;
    let options = arguments.units.options();
    let plan = one(&server, &format!("CREATE MOVE {order}{}", with(&[&options, tried(arguments.dry_run)]))).await?;
    told(&plan, arguments.format.format(), arguments.dry_run)
}

async fn tell(arguments: &CommandArguments, command: &str, option: &str, goal: Goal) -> Result<Outcome, Failure> {
    let (server, format) = (Server::connect(&arguments.server).await?, arguments.format.format());
    let options = with(&[option, tried(arguments.dry_run)]);
    let plan = one(&server, &format!("ALTER MOVE {} {command}{options}", literal(&arguments.id))).await?;
    if arguments.dry_run || arguments.no_wait {
        return told(&plan, format, arguments.dry_run);
    }
    let plan = follow(server, &arguments.server, plan, goal, format).await?;
    told(&plan, format, false)
}

async fn run_all(arguments: &RunArguments) -> Result<Outcome, Failure> {
    let (server, format) = (Server::connect(&arguments.server).await?, arguments.format.format());
    let complete = if arguments.complete { "complete" } else { "" };
    let statement = match &arguments.id {
        Some(id) => format!("ALTER MOVE {} RUN{}", literal(id), with(&[complete, tried(arguments.dry_run)])),
        None => {
            let order = arguments.units.order(&server).await?;
            let options = arguments.units.options();
            format!("CREATE MOVE {order}{}", with(&["auto", complete, &options, tried(arguments.dry_run)]))
        }
    };
    let plan = one(&server, &statement).await?;
    if arguments.dry_run || arguments.no_wait {
        return told(&plan, format, arguments.dry_run);
    }
    let plan = follow(server, &arguments.server, plan, Goal::Finished, format).await?;
    told(&plan, format, false)
}

/// Orders a move, and waits until it is wholly done.
pub(super) async fn carry_out_order(to: &ServerArguments, order: &str, format: Format) -> Result<(), Failure> {
    let server = Server::connect(to).await?;
    let plan = one(&server, &format!("CREATE MOVE {order} WITH (auto, complete)")).await?;
    let plan = follow(server, to, plan, Goal::Done, format).await?;
    told(&plan, format, false).map(drop)
}

/// Tells what has become of a plan, or would.
fn told(plan: &Plan, format: Format, dry_run: bool) -> Result<Outcome, Failure> {
    match format {
        Format::Json => say_json(&plan_json(plan, dry_run))?,
        Format::Text => {
            say(&show::plan(plan));
            if dry_run {
                if plan.stage == Stage::Planned {
                    say(&format!(
                        "the cutover would make version {} of the routing",
                        plan.routing_version_at_start.0 + 1
                    ));
                }
                say("nothing was changed: this is what would be");
            }
        }
    }
    Ok(Outcome::Done)
}

async fn status(arguments: &StatusArguments) -> Result<Outcome, Failure> {
    let server = Server::connect(&arguments.server).await?;
    if let Some(id) = &arguments.id {
        let plan = one(&server, &format!("SHOW MOVE {}", literal(id))).await?;
        return told(&plan, arguments.format.format(), false);
    }
    let mut answered = server.query("SHOW MOVES").await?;
    let columns = answered.columns.as_deref().unwrap_or_default();
    let stage = columns.iter().position(|name| name == "stage");
    let is_done = |row: &Vec<Option<String>>| stage.and_then(|at| row[at].as_deref()) == Some(stage_name(Stage::Done));
    answered.rows.retain(|row| !is_done(row));
    match arguments.format.format() {
        Format::Json => say_json(&list_json(&answered))?,
        Format::Text if answered.rows.is_empty() => say("no move is under way"),
        Format::Text => say(table(&answered).trim_end()),
    }
    Ok(Outcome::Done)
}

async fn list(arguments: &ListArguments) -> Result<Outcome, Failure> {
    let answered = Server::connect(&arguments.server).await?.query("SHOW MOVES").await?;
    match arguments.format.format() {
        Format::Json => say_json(&list_json(&answered))?,
        Format::Text => say(table(&answered).trim_end()),
    }
    Ok(Outcome::Done)
}
