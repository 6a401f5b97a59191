//! `isles tenants`: tenants of a server, as objects.
//!
//! In reading order:
//!   * [`server`]  statements to a server, and its answers as texts
//!   * [`tables`]  tenant tables: their columns, keys, and which refers to which
//!   * [`file`]    the file that an export is
//!   * [`export`]  a tenant's rows of one moment, into a file
//!   * [`import`]  a file's rows, into a tenant
//!   * [`adopt`]   tables that become tenant tables
//!
//! Everything goes through SQL, over PostgreSQL's protocol, so the server's roles, quotas and fences hold.

mod adopt;
mod export;
mod file;
mod import;
pub(super) mod server;
mod tables;

use super::client::ServerArguments;
use super::output::{Failure, Format, FormatArgument, Outcome, block_on, say, say_json};
use super::sql::show;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use server::{Server, identifier, literal};
use std::io::{BufRead, IsTerminal, Write};

#[derive(clap::Subcommand)]
pub(crate) enum TenantsMode {
    /// List tenants: shard, rows, bytes, statements, state
    List(ListArguments),
    /// Show one tenant and its quotas
    Show(NameArguments),
    /// Make a tenant, with quotas if some are given
    Create(CreateArguments),
    /// Change a tenant's quotas
    Alter(AlterArguments),
    /// Delete a tenant with all its rows
    Drop(DropArguments),
    /// Write a tenant's rows, of one moment, as lines of JSON
    Export(export::ExportArguments),
    /// Read what export has written into a tenant
    Import(import::ImportArguments),
    /// Make a table a tenant table, while it is used
    Adopt(adopt::AdoptArguments),
    /// List tables that become tenant tables, and have become such
    Migrations(adopt::MigrationsArguments),
}

impl TenantsMode {
    pub(crate) fn format(&self) -> Format {
        match self {
            TenantsMode::List(arguments) => arguments.format.format(),
            TenantsMode::Show(arguments) => arguments.format.format(),
            TenantsMode::Create(arguments) => arguments.format.format(),
            TenantsMode::Alter(arguments) => arguments.format.format(),
            TenantsMode::Drop(arguments) => arguments.format.format(),
            TenantsMode::Export(arguments) => arguments.format.format(),
            TenantsMode::Import(arguments) => arguments.format.format(),
            TenantsMode::Adopt(arguments) => arguments.format.format(),
            TenantsMode::Migrations(arguments) => arguments.format.format(),
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Only tenants whose names are like this pattern of SQL
    #[arg(long, value_name = "PATTERN")]
    like: Option<String>,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct NameArguments {
    /// The tenant
    name: String,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
struct QuotaArguments {
    /// Sessions at once
    #[arg(long, value_name = "N")]
    max_connections: Option<String>,
    /// Time of a statement, such as 500ms or 2s
    #[arg(long, value_name = "TIME")]
    statement_timeout: Option<String>,
    /// Rows that a statement returns
    #[arg(long, value_name = "N")]
    max_rows: Option<String>,
    /// Bytes stored, such as 10GB
    #[arg(long, value_name = "BYTES")]
    max_bytes: Option<String>,
}

impl QuotaArguments {
    /// As a list of SQL; empty if none is given.
    fn assignments(&self) -> String {
        let given = [
            ("max_connections", &self.max_connections),
            ("statement_timeout", &self.statement_timeout),
            ("max_rows", &self.max_rows),
            ("max_bytes", &self.max_bytes),
        ];
        let given = given.iter().filter_map(|(name, value)| Some(format!("{name} = {}", literal(value.as_ref()?))));
        given.collect::<Vec<_>>().join(", ")
    }
}

#[derive(clap::Args)]
pub(crate) struct CreateArguments {
    /// The tenant
    name: String,
    #[command(flatten)]
    quotas: QuotaArguments,
    /// Do nothing if it was created before
    #[arg(long)]
    if_not_exists: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct AlterArguments {
    /// The tenant
    name: String,
    #[command(flatten)]
    quotas: QuotaArguments,
    /// A quota to take away; may be given several times
    #[arg(long, value_name = "QUOTA")]
    reset: Vec<String>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct DropArguments {
    /// The tenant
    name: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Do nothing if there is none
    #[arg(long)]
    if_exists: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

pub(crate) fn run(mode: TenantsMode) -> Result<Outcome, Failure> {
    block_on(carry_out(mode))
}

async fn carry_out(mode: TenantsMode) -> Result<Outcome, Failure> {
    let format = mode.format();
    match mode {
        TenantsMode::List(arguments) => list(&arguments).await,
        TenantsMode::Show(arguments) => show_one(&arguments).await,
        TenantsMode::Create(arguments) => {
            let word = if arguments.if_not_exists { "IF NOT EXISTS " } else { "" };
            let quotas = Some(arguments.quotas.assignments()).filter(|quotas| !quotas.is_empty());
            let with = quotas.map_or(String::new(), |quotas| format!(" WITH ({quotas})"));
            let sql = format!("CREATE TENANT {word}{}{with}", identifier(&arguments.name));
            Server::connect(&arguments.server).await?.run(&sql).await?;
            done(format, "created", &arguments.name)
        }
        TenantsMode::Alter(arguments) => alter(&arguments).await,
        TenantsMode::Drop(arguments) => drop_one(&arguments).await,
        TenantsMode::Export(arguments) => export::run(&arguments).await,
        TenantsMode::Import(arguments) => import::run(&arguments).await,
        TenantsMode::Adopt(arguments) => adopt::run(&arguments).await,
        TenantsMode::Migrations(arguments) => adopt::list(&arguments).await,
    }
}

fn done(format: Format, what: &str, name: &str) -> Result<Outcome, Failure> {
    match format {
        Format::Text => say(&format!("{name}: {what}")),
        Format::Json => say_json(&json!({"tenant": name, "done": what}))?,
    }
    Ok(Outcome::Done)
}

async fn list(arguments: &ListArguments) -> Result<Outcome, Failure> {
    let like = arguments.like.as_ref().map_or(String::new(), |pattern| format!(" LIKE {}", literal(pattern)));
    let answered = Server::connect(&arguments.server).await?.query(&format!("SHOW TENANTS{like}")).await?;
    match arguments.format.format() {
        Format::Text => say(show::table(&answered).trim_end()),
        Format::Json => say_json(&json!({"tenants": answered.objects(&TEXTS)}))?,
    }
    Ok(Outcome::Done)
}

async fn show_one(arguments: &NameArguments) -> Result<Outcome, Failure> {
    let server = Server::connect(&arguments.server).await?;
    let answered = server.query(&format!("SHOW TENANT {}", identifier(&arguments.name))).await?;
    match arguments.format.format() {
        Format::Json => answered.objects(&TEXTS).first().map_or(Ok(()), say_json)?,
        Format::Text => {
            let columns = answered.columns.as_deref().unwrap_or_default();
            for (name, value) in columns.iter().zip(answered.rows.iter().flatten()) {
                say(format!("{name:<18} {}", value.as_deref().unwrap_or("-")).trim_end());
            }
        }
    }
    Ok(Outcome::Done)
}

/// Names and times.
const TEXTS: [&str; 4] = ["tenant", "shard", "state", "statement_timeout"];

async fn alter(arguments: &AlterArguments) -> Result<Outcome, Failure> {
    let assignments = arguments.quotas.assignments();
    if assignments.is_empty() && arguments.reset.is_empty() {
        return Err(Failure::usage("nothing is to be changed").hint("give a quota, or --reset one"));
    }
    let server = Server::connect(&arguments.server).await?;
    let name = identifier(&arguments.name);
    if !assignments.is_empty() {
        server.run(&format!("ALTER TENANT {name} SET ({assignments})")).await?;
    }
    if !arguments.reset.is_empty() {
        let quotas: Vec<String> = arguments.reset.iter().map(|quota| identifier(&quota.replace('-', "_"))).collect();
        server.run(&format!("ALTER TENANT {name} RESET ({})", quotas.join(", "))).await?;
    }
    done(arguments.format.format(), "altered", &arguments.name)
}

async fn drop_one(arguments: &DropArguments) -> Result<Outcome, Failure> {
    if !arguments.yes {
        confirm(&arguments.name)?;
    }
    let mut server = Server::connect(&arguments.server).await?;
    let word = if arguments.if_exists { "IF EXISTS " } else { "" };
    let bar = progress_bar(arguments.format.format(), "rows deleted");
    let sql = format!("DROP TENANT {word}{}", identifier(&arguments.name));
    let dropped = server.run_telling(&sql, |detail| {
        if let Some((gone, total)) = detail.split_once('/')
            && let (Ok(gone), Ok(total)) = (gone.parse(), total.parse())
        {
            bar.set_length(total);
            bar.set_position(gone);
        }
    });
    let dropped = dropped.await;
    bar.finish_and_clear();
    dropped?;
    done(arguments.format.format(), "dropped", &arguments.name)
}

/// Asks for the tenant's name: what is deleted does not come back.
fn confirm(name: &str) -> Result<(), Failure> {
    let refused =
        || Failure::usage("nothing was dropped").code("not_confirmed").hint("give --yes to drop without asking");
    if !std::io::stdin().is_terminal() {
        return Err(refused());
    }
    let _ = write!(std::io::stderr(), "type the tenant's name to delete all its rows: ");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    if read.is_ok() && line.trim_end_matches(['\r', '\n']) == name { Ok(()) } else { Err(refused()) }
}

/// Shown on a terminal only.
fn progress_bar(format: Format, what: &str) -> ProgressBar {
    if format == Format::Json {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(&format!("{{bar:30}} {{pos}}/{{len}} {what} {{per_sec}} {{eta}}"));
    let bar = ProgressBar::new(0);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
