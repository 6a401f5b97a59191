//! `isles runs`: runs of workflows, created, listed, followed and ended.
//!
//! Everything goes through SQL: the functions of the schema `isles` answer in JSON.

use super::client::ServerArguments;
use super::output::{Failure, Format, FormatArgument, Outcome, block_on, say, say_json};
use super::sql::show::{Answered, table};
use super::tenants::server::{Server, literal};
use serde_json::Value;

#[derive(clap::Subcommand)]
pub(crate) enum RunsMode {
    /// List runs, the latest first
    List(ListArguments),
    /// Count runs by type and status
    Count(CountArguments),
    /// Show a run and its steps
    Get(RunArguments),
    /// Create a run
    Create(CreateArguments),
    /// Send an event to a run
    Send(SendArguments),
    /// Pause a run at its next step
    Pause(RunArguments),
    /// Let a paused run go on
    Resume(RunArguments),
    /// End a run at its next step
    Terminate(RunArguments),
    /// Begin a run that has ended again, from its beginning
    Restart(RunArguments),
    /// Delete a run that has ended
    Delete(RunArguments),
    /// Wait until a run has ended
    Wait(RunArguments),
    /// Show what a run has done, in order
    Timeline(RunArguments),
    /// Take every index entry of a type home, so that previous_shards can be removed
    Resize(TypeArguments),
    /// Compare the index with all runs, and put right what differs
    Reindex(ReindexArguments),
}

#[derive(clap::Args)]
pub(crate) struct RunArguments {
    /// The type of the workflow
    #[arg(value_name = "TYPE")]
    kind: String,
    /// The run
    id: String,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
struct Common {
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct TypeArguments {
    /// The type of the workflow
    #[arg(value_name = "TYPE")]
    kind: String,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
pub(crate) struct ReindexArguments {
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
pub(crate) struct CountArguments {
    /// Runs of this type only
    #[arg(value_name = "TYPE")]
    kind: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
pub(crate) struct ListArguments {
    /// Runs of this type only
    #[arg(value_name = "TYPE")]
    kind: Option<String>,
    /// Runs of this status only
    #[arg(long)]
    status: Option<String>,
    /// updated or created
    #[arg(long)]
    order: Option<String>,
    /// 1 to 1000
    #[arg(long, allow_negative_numbers = true)]
    limit: Option<String>,
    /// Where an earlier list has ended
    #[arg(long)]
    cursor: Option<String>,
    /// Runs with these attributes only, a JSON object
    #[arg(long, value_name = "JSON")]
    attributes: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
pub(crate) struct CreateArguments {
    /// The run's input, as JSON
    #[arg(long, value_name = "JSON", default_value = "null")]
    input: String,
    /// Attributes to list it by, a JSON object
    #[arg(long, value_name = "JSON")]
    attributes: Option<String>,
    #[command(flatten)]
    run: RunArguments,
}

#[derive(clap::Args)]
pub(crate) struct SendArguments {
    /// The event
    #[arg(long)]
    event: String,
    /// Its payload, as JSON
    #[arg(long, value_name = "JSON", default_value = "null")]
    payload: String,
    /// Events that are sent with one key are taken once
    #[arg(long)]
    key: Option<String>,
    #[command(flatten)]
    run: RunArguments,
}

impl RunsMode {
    fn common(&self) -> &Common {
        match self {
            RunsMode::List(arguments) => &arguments.common,
            RunsMode::Count(arguments) => &arguments.common,
            RunsMode::Create(arguments) => &arguments.run.common,
            RunsMode::Send(arguments) => &arguments.run.common,
            RunsMode::Resize(arguments) => &arguments.common,
            RunsMode::Reindex(arguments) => &arguments.common,
            RunsMode::Get(arguments)
            | RunsMode::Pause(arguments)
            | RunsMode::Resume(arguments)
            | RunsMode::Terminate(arguments)
            | RunsMode::Restart(arguments)
            | RunsMode::Delete(arguments)
            | RunsMode::Wait(arguments)
            | RunsMode::Timeline(arguments) => &arguments.common,
        }
    }

    pub(crate) fn format(&self) -> Format {
        self.common().format.format()
    }

    /// The function that is called, and its arguments.
    fn call(&self) -> (&'static str, Vec<Option<&str>>) {
        fn of(arguments: &RunArguments) -> Vec<Option<&str>> {
            vec![Some(&arguments.kind), Some(&arguments.id)]
        }
        match self {
            RunsMode::List(list) => {
                let given = [&list.kind, &list.status, &list.order, &list.limit, &list.cursor, &list.attributes];
                ("list_runs", given.map(Option::as_deref).into())
            }
            RunsMode::Count(count) => ("count_runs", vec![count.kind.as_deref()]),
            RunsMode::Get(arguments) => ("get_run", of(arguments)),
            RunsMode::Create(create) => {
                let mut given = of(&create.run);
                given.extend([Some(create.input.as_str()), create.attributes.as_deref()]);
                ("create_run", given)
            }
            RunsMode::Send(send) => {
                let mut given = of(&send.run);
                given.extend([Some(send.event.as_str()), Some(send.payload.as_str()), send.key.as_deref()]);
                ("send_event", given)
            }
            RunsMode::Pause(arguments) => ("pause_run", of(arguments)),
            RunsMode::Resume(arguments) => ("resume_run", of(arguments)),
            RunsMode::Terminate(arguments) => ("terminate_run", of(arguments)),
            RunsMode::Restart(arguments) => ("restart_run", of(arguments)),
            RunsMode::Delete(arguments) => ("delete_run", of(arguments)),
            RunsMode::Wait(arguments) => ("wait_for_run", of(arguments)),
            RunsMode::Timeline(arguments) => ("run_timeline", of(arguments)),
            RunsMode::Resize(arguments) => ("resize_runs", vec![Some(&arguments.kind)]),
            RunsMode::Reindex(_) => ("reindex_runs", Vec::new()),
        }
    }
}

pub(crate) fn run(mode: RunsMode) -> Result<Outcome, Failure> {
    block_on(carry_out(mode))
}

async fn carry_out(mode: RunsMode) -> Result<Outcome, Failure> {
    let server = Server::connect(&mode.common().server).await?;
    loop {
        let answer = ask(&server, &mode).await?;
        let has_ended = matches!(answer["status"].as_str(), Some("completed" | "errored" | "terminated"));
        if matches!(mode, RunsMode::Wait(_)) && !has_ended {
            continue;
        }
        return show(&mode, &answer);
    }
}

async fn ask(server: &Server, mode: &RunsMode) -> Result<Value, Failure> {
    let (function, arguments) = mode.call();
    let arguments: Vec<String> = arguments.into_iter().map(|one| one.map_or_else(|| "NULL".into(), literal)).collect();
    let answered = server.query(&format!("SELECT isles.{function}({})", arguments.join(", "))).await?;
    let text = answered.rows.first().and_then(|row| row.first()).and_then(Option::as_deref).unwrap_or("null");
    serde_json::from_str(text).map_err(|fault| Failure::usage(format!("the server's answer is no JSON: {fault}")))
}

/// Says what came of it; a run that has failed is a check that failed.
fn show(mode: &RunsMode, answer: &Value) -> Result<Outcome, Failure> {
    match mode.format() {
        Format::Json => say_json(answer)?,
        Format::Text => say(&text(mode, answer)),
    }
    let has_failed = matches!(answer["status"].as_str(), Some("errored" | "terminated"));
    Ok(if matches!(mode, RunsMode::Wait(_)) && has_failed { Outcome::CheckFailed } else { Outcome::Done })
}

fn cell(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn rows_of(list: &Value, columns: &[&str]) -> String {
    let row = |entry: &Value| columns.iter().map(|column| cell(&entry[*column])).collect();
    let rows = list.as_array().into_iter().flatten().map(row).collect();
    table(&Answered {
        columns: Some(columns.iter().map(|&name| name.to_owned()).collect()),
        rows,
        ..Answered::default()
    })
}

fn text(mode: &RunsMode, answer: &Value) -> String {
    let steps = ["name", "type", "status", "attempts", "duration", "wakeAt"];
    match mode {
        RunsMode::List(_) => {
            let columns = ["type", "id", "status", "createdAt", "updatedAt"];
            let mut shown = rows_of(&answer["workflows"], &columns);
            if let Some(cursor) = answer["cursor"].as_str() {
                shown.push_str(&format!("\nmore: --cursor {cursor}"));
            }
            if answer["incomplete"] == Value::Bool(true) {
                shown.push_str(&format!("\nincomplete: these could not be asked: {}", answer["failedShards"]));
            }
            shown
        }
        RunsMode::Count(_) => rows_of(&answer["counts"], &["type", "status", "runs"]),
        RunsMode::Timeline(_) => rows_of(&answer["timeline"], &steps),
        _ => {
            let fields = answer.as_object().into_iter().flatten();
            let shown = fields.filter(|(name, value)| *name != "steps" && !value.is_null());
            let mut lines: Vec<String> =
                shown.map(|(name, value)| format!("{name}: {}", cell(value).unwrap_or_default())).collect();
            if answer["steps"].as_array().is_some_and(|all| !all.is_empty()) {
                lines.push(rows_of(&answer["steps"], &steps));
            }
            lines.join("\n")
        }
    }
}
