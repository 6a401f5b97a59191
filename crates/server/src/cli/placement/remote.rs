//! Placements of a running server: `isles placement status` and what follows it.
//!
//! Everything goes through SQL, as procedures of the schema `isles`. A change names the state that it was made from; if
//! none is given, that of the moment before, so that nothing is lost that somebody else does meanwhile.

use super::super::client::ServerArguments;
use super::super::files::read_config;
use super::super::output::{Failure, Format, FormatArgument, Outcome, complain, say, say_json};
use super::super::sql::show::{Answered, table};
use super::super::tenants::server::{Server, literal};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Whose placement, and where it is asked for.
#[derive(clap::Args)]
pub(crate) struct OfTenant {
    /// The tenant; if not given, the one whose placement all others have that have none
    #[arg(long, default_value = "default")]
    tenant: String,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    pub(super) format: FormatArgument,
}

/// What a change is made from, and why.
#[derive(clap::Args)]
pub(crate) struct ChangeArguments {
    /// The state that the change was made from; if not given, the one of now
    #[arg(long, value_name = "ETAG")]
    if_match: Option<String>,
    /// Why, for the history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    pub(super) of: OfTenant,
}

#[derive(clap::Args)]
pub(crate) struct SetArguments {
    /// The configuration
    file: PathBuf,
    #[command(flatten)]
    pub(super) change: ChangeArguments,
}

#[derive(clap::Args)]
pub(crate) struct MigrateArguments {
    /// What changes: groups, baseRegions, types, singletons; if not given, only the generation
    file: Option<PathBuf>,
    /// Until when the generation of now is read, in RFC 3339; if not given, for as long as its records can last
    #[arg(long, value_name = "INSTANT")]
    valid_until: Option<String>,
    /// Say which keys would move, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    pub(super) change: ChangeArguments,
}

#[derive(clap::Args)]
pub(crate) struct FileArguments {
    /// The configuration
    file: PathBuf,
    #[command(flatten)]
    pub(super) of: OfTenant,
}

#[derive(clap::Args)]
pub(crate) struct HistoryArguments {
    /// How many entries, the newest first
    #[arg(long, default_value_t = 20)]
    limit: u32,
    #[command(flatten)]
    pub(super) of: OfTenant,
}

#[derive(clap::Args)]
pub(crate) struct DiffArguments {
    /// An entry of the history
    from: u64,
    /// Another one; if not given, what is in force
    to: Option<u64>,
    #[command(flatten)]
    pub(super) of: OfTenant,
}

#[derive(clap::Args)]
pub(crate) struct RemoveArguments {
    /// The generation
    generation: u32,
    #[command(flatten)]
    pub(super) change: ChangeArguments,
}

/// A procedure's call, argument by argument.
struct Call {
    procedure: &'static str,
    arguments: Vec<String>,
}

impl Call {
    fn new(procedure: &'static str) -> Call {
        Call { procedure, arguments: Vec::new() }
    }

    fn text(mut self, name: &str, value: &str) -> Call {
        self.arguments.push(format!("\"{name}\" => {}", literal(value)));
        self
    }

    fn optional(self, name: &str, value: Option<&str>) -> Call {
        match value {
            Some(value) => self.text(name, value),
            None => self,
        }
    }

    fn number(mut self, name: &str, value: u64) -> Call {
        self.arguments.push(format!("\"{name}\" => {value}"));
        self
    }

    async fn ask(self, server: &Server) -> Result<Answered, Failure> {
        server.query(&format!("SELECT * FROM isles.{}({})", self.procedure, self.arguments.join(", "))).await
    }
}

/// A value of the first row.
fn first(answered: &Answered, column: &str) -> Option<String> {
    let at = answered.columns.as_ref()?.iter().position(|name| name == column)?;
    answered.rows.first()?.get(at)?.clone()
}

/// Texts that hold JSON, as what they hold.
fn unfolded(mut objects: Vec<Value>, columns: &[&str]) -> Vec<Value> {
    for object in &mut objects {
        for column in columns {
            if let Some(parsed) = object[*column].as_str().and_then(|text| serde_json::from_str(text).ok()) {
                object[*column] = parsed;
            }
        }
    }
    objects
}

impl OfTenant {
    async fn connect(&self) -> Result<Server, Failure> {
        Server::connect(&self.server).await
    }

    fn format(&self) -> Format {
        self.format.format()
    }
}

pub(super) async fn status(of: &OfTenant) -> Result<Outcome, Failure> {
    let answered = Call::new("placement_status").text("tenant", &of.tenant).ask(&of.connect().await?).await?;
    match of.format() {
        Format::Json => {
            let texts = ["tenant", "source", "etag", "state", "valid_until", "last_ends", "errors"];
            say_json(&json!({ "generations": answered.objects(&texts) }))?;
        }
        Format::Text => {
            say(table(&answered).trim_end());
            answered.rows.iter().for_each(|row| say_when(row));
        }
    }
    Ok(Outcome::Done)
}

/// When a generation may go.
fn say_when(row: &[Option<String>]) {
    let [_, _, _, Some(generation), Some(state), until, _, _, records, last, ..] = row else { return };
    match state.as_str() {
        "expired" | "drained" => {
            say(&format!("generation {generation} is {state}: isles placement remove-generation {generation}"));
        }
        "in_force" => {
            let until = until.as_deref().unwrap_or_default();
            let left = match (records, last) {
                (Some(records), Some(last)) => format!("; {records} records are left, the last ends {last}"),
                _ => String::new(),
            };
            say(&format!("generation {generation} is read until {until}, unless it is drained before{left}"));
        }
        _ => {}
    }
}

pub(super) async fn get(of: &OfTenant) -> Result<Outcome, Failure> {
    let answered = Call::new("placement_get").text("tenant", &of.tenant).ask(&of.connect().await?).await?;
    let config: Value =
        first(&answered, "config").and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    match of.format() {
        Format::Json => say_json(&json!({
            "tenant": of.tenant,
            "etag": first(&answered, "etag"),
            "source": first(&answered, "source"),
            "config": config,
        }))?,
        Format::Text => {
            // The configuration alone is on standard output: it can be kept, changed and set.
            let source = first(&answered, "source").unwrap_or_default();
            complain(&format!("{source}, ETag {}", first(&answered, "etag").unwrap_or_default()));
            say(&serde_json::to_string_pretty(&config).unwrap_or_default());
        }
    }
    Ok(Outcome::Done)
}

/// The state to change: the given one, or that of now.
async fn etag(change: &ChangeArguments, server: &Server) -> Result<String, Failure> {
    if let Some(etag) = &change.if_match {
        return Ok(etag.clone());
    }
    let answered = Call::new("placement_get").text("tenant", &change.of.tenant).ask(server).await?;
    Ok(first(&answered, "etag").unwrap_or_default())
}

fn made(answered: &Answered, change: &ChangeArguments, what: &str) -> Result<Outcome, Failure> {
    let (etag, generation) = (first(answered, "etag"), first(answered, "generation").unwrap_or_default());
    match change.of.format() {
        Format::Json => {
            let objects = answered.objects(&["etag", "warnings"]);
            say_json(&objects.into_iter().next().unwrap_or_default())?;
        }
        Format::Text => {
            say(&format!("{what}: generation {generation}, ETag {}", etag.unwrap_or_default()));
            first(answered, "warnings").iter().for_each(|warning| complain(&format!("warning: {warning}")));
        }
    }
    Ok(Outcome::Done)
}

/// What is wrong with a configuration, field by field; nothing if it is valid.
async fn wrong(text: &str, of: &OfTenant, server: &Server) -> Result<Option<Outcome>, Failure> {
    let call = Call::new("placement_validate").text("config", text).text("tenant", &of.tenant);
    let answered = call.ask(server).await?;
    if answered.rows.is_empty() {
        return Ok(None);
    }
    match of.format() {
        Format::Json => {
            let errors = answered.objects(&["field", "code", "message"]);
            say_json(&json!({ "valid": false, "errors": errors }))?;
        }
        Format::Text => {
            for row in &answered.rows {
                let [field, _, message] = row.as_slice() else { continue };
                let (field, message) = (field.as_deref().unwrap_or_default(), message.as_deref().unwrap_or_default());
                complain(&format!("error: {field}{}{message}", if field.is_empty() { "" } else { ": " }));
            }
            complain("hint: each line names the field to correct");
        }
    }
    Ok(Some(Outcome::CheckFailed))
}

pub(super) async fn set(arguments: &SetArguments) -> Result<Outcome, Failure> {
    let (text, change) = (read_config(&arguments.file)?, &arguments.change);
    let server = change.of.connect().await?;
    if let Some(outcome) = wrong(&text, &change.of, &server).await? {
        return Ok(outcome);
    }
    let call = Call::new("placement_set").text("config", &text).text("etag", &etag(change, &server).await?);
    let call = call.text("tenant", &change.of.tenant).optional("reason", change.reason.as_deref());
    made(&call.ask(&server).await?, change, "the placement is set")
}

/// What a migration changes, as the server reads it.
fn migration(arguments: &MigrateArguments) -> Result<String, Failure> {
    let text = arguments.file.as_ref().map_or(Ok("{}".to_owned()), |file| read_config(file))?;
    let mut body: Value = serde_json::from_str(&text)
        .map_err(|fault| Failure::check(format!("not a migration: {fault}")).code("malformed"))?;
    if let (Some(until), Some(body)) = (&arguments.valid_until, body.as_object_mut()) {
        body.insert("validUntil".into(), json!(until));
    }
    Ok(body.to_string())
}

pub(super) async fn migrate(arguments: &MigrateArguments) -> Result<Outcome, Failure> {
    let (body, change) = (migration(arguments)?, &arguments.change);
    let server = change.of.connect().await?;
    if arguments.dry_run {
        let call = Call::new("placement_dry_run").text("migration", &body).text("tenant", &change.of.tenant);
        return told(&call.ask(&server).await?, &change.of);
    }
    let call = Call::new("placement_migrate").text("change", &body).text("etag", &etag(change, &server).await?);
    let call = call.text("tenant", &change.of.tenant).optional("reason", change.reason.as_deref());
    made(&call.ask(&server).await?, change, "a new generation is made")
}

pub(super) async fn remove(arguments: &RemoveArguments) -> Result<Outcome, Failure> {
    let change = &arguments.change;
    let server = change.of.connect().await?;
    let call = Call::new("placement_remove_generation").number("generation", arguments.generation.into());
    let call = call.text("etag", &etag(change, &server).await?).text("tenant", &change.of.tenant);
    let answered = call.optional("reason", change.reason.as_deref()).ask(&server).await?;
    made(&answered, change, &format!("generation {} is removed", arguments.generation))
}

pub(super) async fn validate(arguments: &FileArguments) -> Result<Outcome, Failure> {
    let server = arguments.of.connect().await?;
    if let Some(outcome) = wrong(&read_config(&arguments.file)?, &arguments.of, &server).await? {
        return Ok(outcome);
    }
    match arguments.of.format() {
        Format::Json => say_json(&json!({ "valid": true, "errors": [] }))?,
        Format::Text => say("valid, and it may replace what is in force"),
    }
    Ok(Outcome::Done)
}

pub(super) async fn dry_run(arguments: &FileArguments) -> Result<Outcome, Failure> {
    let (text, of) = (read_config(&arguments.file)?, &arguments.of);
    let server = of.connect().await?;
    if let Some(outcome) = wrong(&text, of, &server).await? {
        return Ok(outcome);
    }
    told(&Call::new("placement_dry_run").text("config", &text).text("tenant", &of.tenant).ask(&server).await?, of)
}

/// Which keys would move.
fn told(answered: &Answered, of: &OfTenant) -> Result<Outcome, Failure> {
    let run: Value = first(answered, "result").and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    if of.format() == Format::Json {
        say_json(&run)?;
        return Ok(Outcome::Done);
    }
    let share = |part: &Value, whole: &Value| {
        100.0 * part.as_f64().unwrap_or(0.0) / whole.as_f64().filter(|whole| *whole > 0.0).unwrap_or(1.0)
    };
    say(&format!("generation {}", run["currentGeneration"]));
    for one in run["impact"].as_array().into_iter().flatten() {
        let (to, keys) = (one["to"].as_str().unwrap_or_default(), &one["keys"]);
        say(&format!("  {to:<28}{:>6.1} % of keys move", share(&one["moved"], keys)));
        for region in one["regions"].as_array().into_iter().flatten() {
            let (name, before) = (region["region"].as_str().unwrap_or_default(), &region["keysBefore"]);
            let (moved, gone) = (share(&region["moved"], before), share(&region["leaving"], before));
            say(&format!("    {name:<26}{moved:>6.1} % of its keys, {gone:.1} % to other regions"));
        }
    }
    for warning in run["warnings"].as_array().into_iter().flatten() {
        complain(&format!("warning: {}", warning.as_str().unwrap_or_default()));
    }
    Ok(Outcome::Done)
}

pub(super) async fn history(arguments: &HistoryArguments) -> Result<Outcome, Failure> {
    let of = &arguments.of;
    let call = Call::new("placement_history").text("tenant", &of.tenant).number("limit", arguments.limit.into());
    let mut answered = call.ask(&of.connect().await?).await?;
    match of.format() {
        Format::Json => {
            let texts = ["at", "action", "by", "reason", "replaced", "config"];
            say_json(&json!({ "history": unfolded(answered.objects(&texts), &["config"]) }))?;
        }
        Format::Text => {
            // The configuration is long; isles placement diff says what changed.
            answered.columns.iter_mut().for_each(|columns| drop(columns.pop()));
            answered.rows.iter_mut().for_each(|row| drop(row.pop()));
            say(table(&answered).trim_end());
        }
    }
    Ok(Outcome::Done)
}

pub(super) async fn diff(arguments: &DiffArguments) -> Result<Outcome, Failure> {
    let of = &arguments.of;
    let call = Call::new("placement_diff").number("from", arguments.from).text("tenant", &of.tenant);
    let call = match arguments.to {
        Some(to) => call.number("to", to),
        None => call,
    };
    let answered = call.ask(&of.connect().await?).await?;
    match of.format() {
        Format::Json => {
            let changes = unfolded(answered.objects(&["field", "old", "new"]), &["old", "new"]);
            say_json(&json!({ "changes": changes }))?;
        }
        Format::Text => {
            for row in &answered.rows {
                let [field, old, new] = row.as_slice() else { continue };
                let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
                say(&format!("{}: {} → {}", field.as_deref().unwrap_or_default(), text(old), text(new)));
            }
        }
    }
    Ok(Outcome::Done)
}
