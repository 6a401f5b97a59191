//! `isles tenants adopt`: a table becomes a tenant table.

use super::super::client::ServerArguments;
use super::super::output::{Failure, FormatArgument, Outcome, say, say_json};
use super::super::sql::show::{self, Answered};
use super::server::{Server, identifier, literal};
use super::{Format, progress_bar};
use serde_json::json;

#[derive(clap::Args)]
pub(crate) struct AdoptArguments {
    /// The table; with its schema before a dot, if that is not public
    table: String,
    /// A column that has the name of each row's tenant, or an expression over columns
    #[arg(long, value_name = "EXPRESSION", required_unless_present = "cancel")]
    by: Option<String>,
    /// Say what stands in the way, and change nothing
    #[arg(long, conflicts_with = "cancel")]
    dry_run: bool,
    /// Give up what was begun; the table stays what it is
    #[arg(long, conflicts_with = "by")]
    cancel: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    pub(super) format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct MigrationsArguments {
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    pub(super) format: FormatArgument,
}

/// A relation as SQL writes it.
fn relation(name: &str) -> String {
    name.split('.').map(identifier).collect::<Vec<_>>().join(".")
}

pub(super) async fn run(arguments: &AdoptArguments) -> Result<Outcome, Failure> {
    let mut server = Server::connect(&arguments.server).await?;
    let (table, format) = (relation(&arguments.table), arguments.format.format());
    let Some(by) = &arguments.by else {
        server.run(&format!("CANCEL MIGRATION {table}")).await?;
        return done(format, "cancelled", &arguments.table);
    };
    if arguments.dry_run {
        let found = server.query(&format!("CHECK MIGRATION {table} BY {}", literal(by))).await?;
        return report(format, &arguments.table, &found);
    }
    let bar = progress_bar(format, "rows copied");
    let sql = format!("ALTER TABLE {table} SET (kind = 'tenant', tenant_by = {})", literal(by));
    let adopted = server.run_telling(&sql, |detail| {
        if let Some((rows, total)) = detail.split_once('/')
            && let (Ok(rows), Ok(total)) = (rows.parse(), total.parse())
        {
            bar.set_length(total);
            bar.set_position(rows);
        }
    });
    let adopted = adopted.await;
    bar.finish_and_clear();
    adopted?;
    done(format, "a tenant table", &arguments.table)
}

fn done(format: Format, what: &str, table: &str) -> Result<Outcome, Failure> {
    match format {
        Format::Text => say(&format!("{table}: {what}")),
        Format::Json => say_json(&json!({"table": table, "done": what}))?,
    }
    Ok(Outcome::Done)
}

/// What a dry run has found; a conflict is a failure.
fn report(format: Format, table: &str, found: &Answered) -> Result<Outcome, Failure> {
    let objects = found.objects(&["finding", "message", "examples", "hint"]);
    let count = |what: &str| objects.iter().find(|one| one["finding"] == what).map(|one| one["count"].clone());
    let conflicts: Vec<&serde_json::Value> = objects.iter().filter(|one| one["finding"] == "conflict").collect();
    match format {
        Format::Text => say(show::table(found).trim_end()),
        Format::Json => {
            say_json(&json!({
                "table": table, "rows": count("rows"), "tenants": count("tenants"), "conflicts": conflicts,
            }))?;
        }
    }
    match conflicts.is_empty() {
        true => Ok(Outcome::Done),
        false => Ok(Outcome::CheckFailed),
    }
}

pub(super) async fn list(arguments: &MigrationsArguments) -> Result<Outcome, Failure> {
    let answered = Server::connect(&arguments.server).await?.query("SHOW MIGRATIONS").await?;
    match arguments.format.format() {
        Format::Text => say(show::table(&answered).trim_end()),
        Format::Json => {
            let texts = ["table", "tenant_by", "state", "phase", "started", "updated", "waits_for", "error"];
            say_json(&json!({"migrations": answered.objects(&texts)}))?;
        }
    }
    Ok(Outcome::Done)
}
