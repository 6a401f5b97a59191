//! A shard that is being emptied, watched until it serves nothing.

use super::super::client::ServerArguments;
use super::super::moves::{one, stage_name};
use super::super::output::{Failure, Format, FormatArgument, Outcome, say, say_json};
use super::super::tenants::server::{Server, literal};
use indicatif::{ProgressBar, ProgressStyle};
use isles_kernel::moves::Stage;
use serde_json::json;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// A server that is away may be restarting: the drain goes on when it is back.
const AWAY: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub(crate) struct DrainArguments {
    /// The shard
    name: String,
    /// Where to; may be given several times. If not given, to all others
    #[arg(long, value_name = "SHARD")]
    to: Vec<String>,
    /// Remove the shard when it serves nothing
    #[arg(long, conflicts_with = "no_wait")]
    remove: bool,
    /// Do not wait: the server goes on by itself
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    pub(super) format: FormatArgument,
}

/// What is left on a shard.
struct Left {
    buckets: u64,
    tenants: u64,
    /// Plans that are about it and not done.
    plans: Vec<String>,
}

pub(super) async fn run(arguments: &DrainArguments) -> Result<Outcome, Failure> {
    let server = Server::connect(&arguments.server).await?;
    let name = literal(&arguments.name);
    let targets: Vec<String> = arguments.to.iter().map(|target| literal(target)).collect();
    let to = if targets.is_empty() { String::new() } else { format!(" TO ({})", targets.join(", ")) };
    server.run(&format!("ALTER SHARD {name} DRAIN{to}")).await?;
    let format = arguments.format.format();
    if arguments.no_wait {
        return told(arguments, format, "is being drained");
    }
    let bar = bar(format);
    let drained = tokio::select! {
        drained = watch(server, arguments, &bar) => drained,
        _ = tokio::signal::ctrl_c() => {
            let hint = format!("isles shards list shows how far it is, isles shards resume {} ends it", arguments.name);
            Err(Failure::usage("the drain goes on in the server").code("interrupted").hint(hint))
        }
    };
    bar.finish_and_clear();
    let server = drained?;
    if arguments.remove {
        server.run(&format!("DROP SHARD {name}")).await?;
        return told(arguments, format, "is drained and removed");
    }
    told(arguments, format, "serves nothing any more")
}

fn told(arguments: &DrainArguments, format: Format, done: &str) -> Result<Outcome, Failure> {
    match format {
        Format::Json => {
            say_json(&json!({"shard": arguments.name, "drained": !arguments.no_wait, "removed": arguments.remove}))?;
        }
        Format::Text => say(&format!("shard {} {done}", arguments.name)),
    }
    Ok(Outcome::Done)
}

fn bar(format: Format) -> ProgressBar {
    if format == Format::Json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} moved  {msg} {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

async fn watch(mut server: Server, arguments: &DrainArguments, bar: &ProgressBar) -> Result<Server, Failure> {
    let mut away: Option<Instant> = None;
    loop {
        match left(&server, &arguments.name).await {
            Ok(left) => {
                away = None;
                let rest = left.buckets + left.tenants;
                bar.set_length(bar.length().unwrap_or(0).max(rest));
                bar.set_position(bar.length().unwrap_or(rest) - rest);
                bar.set_message(format!("{} buckets and {} tenants left", left.buckets, left.tenants));
                if rest == 0 && left.plans.is_empty() {
                    return Ok(server);
                }
                check_plans(&server, &arguments.name, &left.plans).await?;
            }
            Err(failure) if failure.is_unreachable() => {
                if away.get_or_insert_with(Instant::now).elapsed() > AWAY {
                    return Err(failure.hint("the drain goes on when the server is back"));
                }
                if let Ok(again) = Server::connect(&arguments.server).await {
                    server = again;
                }
            }
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The drain does not go on before these plans are done: one that is at rest needs an operator.
async fn check_plans(server: &Server, shard: &str, plans: &[String]) -> Result<(), Failure> {
    for id in plans {
        let plan = one(server, &format!("SHOW MOVE {}", literal(id))).await?;
        if plan.is_active() && plan.is_at_rest() {
            let why = plan.why_at_rest().unwrap_or("it waits for an operator");
            let hint =
                format!("isles move status {id} tells what can be done; the drain goes on when that plan is done");
            return Err(Failure::check(format!("the drain of {shard} waits for plan {id}, which is at rest: {why}"))
                .code("at_rest")
                .hint(hint));
        }
    }
    Ok(())
}

async fn left(server: &Server, name: &str) -> Result<Left, Failure> {
    let shards = server.query("SHOW SHARDS").await?;
    let number = |row: &[Option<String>], column: &str| {
        let at = shards.columns.as_deref().unwrap_or_default().iter().position(|known| known == column);
        at.and_then(|at| row[at].as_deref()).and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    let gone = || Failure::check(format!("shard {name} is gone"));
    let row = shards.rows.iter().find(|row| row[0].as_deref() == Some(name)).ok_or_else(gone)?;
    let moves = server.query("SHOW MOVES").await?;
    let at = |column: &str| moves.columns.as_deref().unwrap_or_default().iter().position(|known| known == column);
    let text = |row: &[Option<String>], column: &str| at(column).and_then(|at| row[at].clone()).unwrap_or_default();
    let is_ours = |row: &&Vec<Option<String>>| {
        text(row, "stage") != stage_name(Stage::Done) && (text(row, "source") == name || text(row, "target") == name)
    };
    let plans = moves.rows.iter().filter(is_ours).map(|row| text(row, "id")).collect();
    Ok(Left { buckets: number(row, "buckets"), tenants: number(row, "pinned_tenants"), plans })
}
