//! `isles index`: global indexes, made, watched, compared with the rows, and built anew.
//!
//! In reading order: this file has the commands, [`show`] an index as a server tells it, [`follow`] a build that goes on
//! until the index leads statements.
//!
//! Everything goes through SQL. A build is the server's: whoever stops waiting for one stops nothing.

mod follow;
mod show;

use super::client::ServerArguments;
use super::output::{Failure, Format, FormatArgument, Outcome, block_on, say, say_json};
use super::sql::show::table;
use super::tenants::server::{Server, identifier};
use follow::{FAILED, follow};
use serde_json::json;
use show::{Index, TEXTS, find, indexes};
use std::io::{BufRead, IsTerminal, Write};

#[derive(clap::Subcommand)]
pub(crate) enum IndexMode {
    /// Make a global index, and wait until it leads statements
    Create(CreateArguments),
    /// List the global indexes: state, lag, progress
    List(ListArguments),
    /// Show one index
    Status(NameArguments),
    /// Compare an index with the rows
    Verify(VerifyArguments),
    /// Build an index anew, and wait until it leads statements again
    Rebuild(RebuildArguments),
    /// Drop an index
    Drop(DropArguments),
}

#[derive(clap::Args)]
pub(crate) struct CreateArguments {
    /// The index
    name: String,
    /// Its table
    #[arg(long, value_name = "TABLE")]
    on: String,
    /// Its columns or expressions, with commas between
    #[arg(long, value_name = "COLUMNS")]
    columns: String,
    /// No two rows may have one key, wherever they are
    #[arg(long)]
    unique: bool,
    /// Leave out rows of which this is not true
    #[arg(long = "where", value_name = "EXPRESSION")]
    condition: Option<String>,
    /// Do not wait: the server goes on by itself
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct NameArguments {
    /// The index
    name: String,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::Args)]
pub(crate) struct VerifyArguments {
    /// Put right what is wrong
    #[arg(long)]
    repair: bool,
    #[command(flatten)]
    index: NameArguments,
}

#[derive(clap::Args)]
pub(crate) struct RebuildArguments {
    /// Do not wait: the server goes on by itself
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    index: NameArguments,
}

#[derive(clap::Args)]
pub(crate) struct DropArguments {
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    index: NameArguments,
}

impl IndexMode {
    pub(crate) fn format(&self) -> Format {
        let format = match self {
            IndexMode::Create(arguments) => arguments.format,
            IndexMode::List(arguments) => arguments.format,
            IndexMode::Status(arguments) => arguments.format,
            IndexMode::Verify(arguments) => arguments.index.format,
            IndexMode::Rebuild(arguments) => arguments.index.format,
            IndexMode::Drop(arguments) => arguments.index.format,
        };
        format.format()
    }
}

pub(crate) fn run(mode: IndexMode) -> Result<Outcome, Failure> {
    block_on(carry_out(mode))
}

async fn carry_out(mode: IndexMode) -> Result<Outcome, Failure> {
    match mode {
        IndexMode::Create(arguments) => create(&arguments).await,
        IndexMode::List(arguments) => list(&arguments).await,
        IndexMode::Status(arguments) => status(&arguments).await,
        IndexMode::Verify(arguments) => verify(&arguments).await,
        IndexMode::Rebuild(arguments) => rebuild(&arguments).await,
        IndexMode::Drop(arguments) => drop_one(&arguments).await,
    }
}

/// A name of a relation as SQL writes it: `items`, or `billing.items`.
fn relation(name: &str) -> String {
    name.split('.').map(identifier).collect::<Vec<_>>().join(".")
}

/// What stands between the parentheses. Names are quoted, anything else is an expression.
fn columns(given: &str) -> Result<String, Failure> {
    let mut parts = vec![String::new()];
    let mut depth = 0_i32;
    for c in given.chars() {
        match c {
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        parts.iter_mut().last().into_iter().for_each(|part| part.push(c));
    }
    let part = |part: &String| match part.trim() {
        "" => Err(Failure::usage("a column is missing").field("columns").hint("write --columns a,b")),
        name if name.chars().all(|c| c.is_alphanumeric() || c == '_') => Ok(identifier(name)),
        expression => Ok(format!("({expression})")),
    };
    Ok(parts.iter().map(part).collect::<Result<Vec<_>, _>>()?.join(", "))
}

async fn create(arguments: &CreateArguments) -> Result<Outcome, Failure> {
    let columns = columns(&arguments.columns)?;
    let server = Server::connect(&arguments.server).await?;
    // Otherwise the statement itself would wait, and nobody could be told how far the build is.
    server.run("SET isles.wait_for_indexes = off").await?;
    let unique = if arguments.unique { "UNIQUE " } else { "" };
    let condition = arguments.condition.as_ref().map_or(String::new(), |text| format!(" WHERE {text}"));
    let (name, on) = (identifier(&arguments.name), relation(&arguments.on));
    server.run(&format!("CREATE {unique}INDEX {name} ON {on} ({columns}) WITH (global){condition}")).await?;
    // An index is in the schema of its table.
    let schema = arguments.on.rsplit_once('.').map(|(schema, _)| schema).filter(|schema| *schema != "public");
    let shown = schema.map_or(arguments.name.clone(), |schema| format!("{schema}.{}", arguments.name));
    let made = built(server, &arguments.server, &shown, arguments.no_wait, arguments.format.format()).await;
    match made {
        Err(failure) if arguments.unique && failure.has_code(FAILED) => {
            // It could not lead anybody, and every insert would ask all shards for its keys.
            let sql = format!("DROP INDEX {}", relation(&shown));
            Server::connect(&arguments.server).await?.run(&sql).await?;
            let failure =
                failure.within(&format!("could not create unique index \"{}\"", arguments.name)).code("23505");
            Err(failure.hint("the index is dropped again: mend the rows, then make it anew"))
        }
        made => made,
    }
}

/// Waits for an index unless that is not wanted, and tells what it is then.
async fn built(
    server: Server,
    arguments: &ServerArguments,
    name: &str,
    no_wait: bool,
    format: Format,
) -> Result<Outcome, Failure> {
    let index = match no_wait {
        true => find(&server, name).await?,
        false => follow(server, arguments, name, format).await?,
    };
    told(&index, format)
}

fn told(index: &Index, format: Format) -> Result<Outcome, Failure> {
    match format {
        Format::Json => say_json(&index.json)?,
        Format::Text => say(&index.lines()),
    }
    Ok(Outcome::Done)
}

async fn list(arguments: &ListArguments) -> Result<Outcome, Failure> {
    let answered = Server::connect(&arguments.server).await?.query("SHOW INDEXES").await?;
    match arguments.format.format() {
        Format::Json => say_json(&json!({ "indexes": answered.objects(&TEXTS) }))?,
        Format::Text => say(table(&answered).trim_end()),
    }
    Ok(Outcome::Done)
}

async fn status(arguments: &NameArguments) -> Result<Outcome, Failure> {
    let server = Server::connect(&arguments.server).await?;
    told(&find(&server, &arguments.name).await?, arguments.format.format())
}

async fn verify(arguments: &VerifyArguments) -> Result<Outcome, Failure> {
    let NameArguments { name, server, format } = &arguments.index;
    let repair = if arguments.repair { " REPAIR" } else { "" };
    let server = Server::connect(server).await?;
    let answered = server.query(&format!("VERIFY INDEX {}{repair}", relation(name))).await?;
    let found = answered.objects(&[]).into_iter().next().unwrap_or_default();
    let number = |field: &str| found[field].as_u64().unwrap_or(0);
    let (wrong, repaired) = (number("missing") + number("superfluous"), number("repaired"));
    match format.format() {
        Format::Json => say_json(&found)?,
        Format::Text => say(&format!(
            "{} entries compared: {} missing, {} superfluous, {repaired} repaired",
            number("entries"),
            number("missing"),
            number("superfluous"),
        )),
    }
    // What has been put right is not wrong any more.
    Ok(if wrong > repaired { Outcome::CheckFailed } else { Outcome::Done })
}

async fn rebuild(arguments: &RebuildArguments) -> Result<Outcome, Failure> {
    let NameArguments { name, server: to, format } = &arguments.index;
    let server = Server::connect(to).await?;
    server.run(&format!("REINDEX INDEX {}", relation(name))).await?;
    built(server, to, name, arguments.no_wait, format.format()).await
}

async fn drop_one(arguments: &DropArguments) -> Result<Outcome, Failure> {
    let NameArguments { name, server, format } = &arguments.index;
    let server = Server::connect(server).await?;
    // DROP INDEX would take any other, too.
    if !indexes(&server).await?.iter().any(|index| index.name() == name) {
        return Err(show::unknown(name));
    }
    if !arguments.yes {
        confirm(name)?;
    }
    server.run(&format!("DROP INDEX {}", relation(name))).await?;
    match format.format() {
        Format::Json => say_json(&json!({ "index": name }))?,
        Format::Text => say(&format!("index {name} is dropped")),
    }
    Ok(Outcome::Done)
}

/// A large index takes its time to come back.
fn confirm(name: &str) -> Result<(), Failure> {
    let refused =
        || Failure::usage("nothing was dropped").code("not_confirmed").hint("give --yes to drop without asking");
    if !std::io::stdin().is_terminal() {
        return Err(refused());
    }
    let _ = write!(std::io::stderr(), "type the index's name to drop it: ");
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    if read.is_ok() && line.trim_end_matches(['\r', '\n']) == name { Ok(()) } else { Err(refused()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn columns_are_names_or_expressions() {
        assert_eq!(columns("a, b_2").unwrap(), "\"a\", \"b_2\"");
        assert_eq!(columns("lower(email),coalesce(a, b)").unwrap(), "(lower(email)), (coalesce(a, b))");
        for wrong in ["", "a,", ",a", " , "] {
            assert!(columns(wrong).is_err(), "{wrong}");
        }
        assert_eq!(relation("billing.items"), "\"billing\".\"items\"");
    }
}
