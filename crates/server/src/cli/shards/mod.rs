//! `isles shards`: shards that come, are emptied, and go, while the database is used.
//!
//! In reading order: this file has the commands, [`drain`] a shard that is being emptied, [`rebalance`] moves that even
//! shards out.

mod drain;
mod rebalance;

use super::client::ServerArguments;
use super::output::{Failure, Format, FormatArgument, Outcome, block_on, say, say_json};
use super::sql::show::table;
use super::tenants::server::{Server, literal};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::io::IsTerminal;
use std::time::Duration;

#[derive(clap::Subcommand)]
pub(crate) enum ShardsMode {
    /// List the shards: engine, status, size, what each serves
    List(ListArguments),
    /// Add a shard: a SQLite file, or a PostgreSQL database
    Add(AddArguments),
    /// Move everything away that a shard serves
    Drain(drain::DrainArguments),
    /// Let a shard that is being drained take part again
    Resume(NameArguments),
    /// Remove a shard that serves nothing
    Remove(NameArguments),
    /// Say which moves would even the shards out, and carry them out if asked to
    Rebalance(rebalance::RebalanceArguments),
}

#[derive(clap::Args)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct AddArguments {
    /// Its name; if not given, the next number
    name: Option<String>,
    /// An empty PostgreSQL database to be the shard; if not given, it is a SQLite file
    #[arg(long, value_name = "URL", env = "ISLES_SHARD_URL", hide_env_values = true)]
    postgres: Option<String>,
    /// Where it is; what is kept in that region may be on it
    #[arg(long, value_name = "REGION")]
    region: Option<String>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct NameArguments {
    /// The shard
    name: String,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

impl ShardsMode {
    pub(crate) fn format(&self) -> Format {
        let format = match self {
            ShardsMode::List(arguments) => arguments.format,
            ShardsMode::Add(arguments) => arguments.format,
            ShardsMode::Drain(arguments) => arguments.format,
            ShardsMode::Resume(arguments) | ShardsMode::Remove(arguments) => arguments.format,
            ShardsMode::Rebalance(arguments) => arguments.format,
        };
        format.format()
    }
}

pub(crate) fn run(mode: ShardsMode) -> Result<Outcome, Failure> {
    block_on(carry_out(mode))
}

async fn carry_out(mode: ShardsMode) -> Result<Outcome, Failure> {
    match mode {
        ShardsMode::List(arguments) => list(&arguments).await,
        ShardsMode::Add(arguments) => add(&arguments).await,
        ShardsMode::Drain(arguments) => drain::run(&arguments).await,
        ShardsMode::Resume(arguments) => {
            tell(&arguments, &format!("ALTER SHARD {} RESUME", literal(&arguments.name)), "takes part again").await
        }
        ShardsMode::Remove(arguments) => {
            let statement = format!("DROP SHARD {}", literal(&arguments.name));
            tell(&arguments, &statement, "is removed; its file or database is not used any more and can be deleted")
                .await
        }
        ShardsMode::Rebalance(arguments) => rebalance::run(&arguments).await,
    }
}

async fn list(arguments: &ListArguments) -> Result<Outcome, Failure> {
    let answered = Server::connect(&arguments.server).await?.query("SHOW SHARDS").await?;
    match arguments.format.format() {
        Format::Json => {
            let shards = answered.objects(&["shard", "engine", "status", "tenant", "region"]);
            say_json(&json!({ "shards": shards }))?;
        }
        Format::Text => say(table(&answered).trim_end()),
    }
    Ok(Outcome::Done)
}

async fn add(arguments: &AddArguments) -> Result<Outcome, Failure> {
    let server = Server::connect(&arguments.server).await?;
    let name = arguments.name.as_ref().map_or(String::new(), |name| format!(" {}", literal(name)));
    let options = [("url", &arguments.postgres), ("region", &arguments.region)];
    let options = options.iter().filter_map(|(name, value)| Some(format!("{name} = {}", literal(value.as_ref()?))));
    let options: Vec<String> = options.collect();
    let with = if options.is_empty() { String::new() } else { format!(" WITH ({})", options.join(", ")) };
    let waiting = spinner("the schema and the reference tables are copied to the new shard", arguments.format.format());
    let added = server.query(&format!("CREATE SHARD{name}{with}")).await;
    waiting.finish_and_clear();
    let added = added?;
    let name = added.rows.first().and_then(|row| row.first()).cloned().flatten().unwrap_or_default();
    match arguments.format.format() {
        Format::Json => say_json(&json!({ "shard": name }))?,
        Format::Text => {
            say(&format!("shard {name} is added"));
            say(&format!("  isles move run --tenant NAME --to {name}   moves a tenant there"));
            say("  isles shards rebalance                  says which moves would even the shards out");
        }
    }
    Ok(Outcome::Done)
}

/// For work whose end is not known beforehand.
fn spinner(what: &'static str, format: Format) -> ProgressBar {
    if format == Format::Json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(what);
    bar.set_style(
        ProgressStyle::with_template("{spinner} {msg} {elapsed}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

async fn tell(arguments: &NameArguments, statement: &str, done: &str) -> Result<Outcome, Failure> {
    Server::connect(&arguments.server).await?.run(statement).await?;
    match arguments.format.format() {
        Format::Json => say_json(&json!({ "shard": arguments.name }))?,
        Format::Text => say(&format!("shard {} {done}", arguments.name)),
    }
    Ok(Outcome::Done)
}
