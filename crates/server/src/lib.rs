//! The server, and the commands of the `isles` binary.
//!
//! [`run`] is all of it, with workflows in Rust that the server executes: a program of one's own is `isles` with them.
//!
//! Parses the arguments, then one match on the mode; each mode is a module of [`cli`]. What a mode finds goes to
//! standard output. Why it could not goes to standard error, as text or with `--json` as JSON.
//!
//! Exit codes: 0 done, 1 the thing that was checked is wrong, 2 the command could not be carried out.

// A statement's future holds those of the session, the plan and the shards within it: the compiler looks deeper than
// its usual limit when it lays one out.
#![recursion_limit = "256"]

mod cli;

mod config;

mod metrics;

mod backend;
mod logins;
mod tls;

mod http;
mod pg;

mod serve;

mod load;

use clap::Parser;
use cli::output::{Failure, Format};
use isles_workflows::Registry;
use std::process::ExitCode;

/// A sharded SQL database.
#[derive(Parser)]
#[command(name = "isles", version, arg_required_else_help = true, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(clap::Subcommand)]
enum Mode {
    /// Run the server: PostgreSQL's protocol and HTTP over a database
    Serve(cli::serve::ServeArguments),
    /// Send statements to a server
    Sql(cli::sql::SqlArguments),
    /// Manage tenants: quotas, export, import
    #[command(subcommand)]
    Tenants(cli::tenants::TenantsMode),
    /// Move tenants and buckets to other shards while they are served
    #[command(subcommand)]
    Move(cli::moves::MoveMode),
    /// Add, empty and remove shards while the database is used
    #[command(subcommand)]
    Shards(cli::shards::ShardsMode),
    /// Make, watch, compare and rebuild global indexes
    #[command(subcommand)]
    Index(cli::indexes::IndexMode),
    /// Create, list, follow and end runs of workflows
    #[command(subcommand)]
    Runs(cli::runs::RunsMode),
    /// Make and read self-routing ids
    #[command(subcommand)]
    Id(cli::id::IdMode),
    /// Placements of tenants: check and explain configurations, show and change those in force
    #[command(subcommand)]
    Placement(cli::placement::PlacementMode),
    /// Check every page of shard files and backups
    Verify(cli::shard_files::VerifyArguments),
    /// Copy a shard's file, whole and checked
    Backup(cli::shard_files::BackupArguments),
    /// Show what Isles does, on a temporary server
    #[command(subcommand)]
    Demo(cli::demo::DemoMode),
}

/// Does what the command line says. A server that it starts executes the workflows of the registry, and serves them as all
/// others: over HTTP, SQL and the command line.
pub fn run(registry: Registry) -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(fault) => return usage(&fault),
    };
    let (format, done) = match arguments.mode {
        Mode::Serve(arguments) => (arguments.format(), cli::serve::run(arguments, registry)),
        Mode::Sql(arguments) => (arguments.format(), cli::sql::run(arguments)),
        Mode::Tenants(mode) => (mode.format(), cli::tenants::run(mode)),
        Mode::Move(mode) => (mode.format(), cli::moves::run(mode)),
        Mode::Shards(mode) => (mode.format(), cli::shards::run(mode)),
        Mode::Index(mode) => (mode.format(), cli::indexes::run(mode)),
        Mode::Runs(mode) => (mode.format(), cli::runs::run(mode)),
        Mode::Id(mode) => (mode.format(), cli::id::run(mode)),
        Mode::Placement(mode) => (mode.format(), cli::placement::run(mode)),
        Mode::Verify(arguments) => (arguments.format(), cli::shard_files::verify(arguments)),
        Mode::Backup(arguments) => (arguments.format(), cli::shard_files::backup(arguments)),
        Mode::Demo(mode) => (mode.format(), cli::demo::run(mode)),
    };
    match done {
        Ok(outcome) => outcome.exit_code(),
        Err(failure) => failure.report(format),
    }
}

/// Help and the version are not errors. Anything else is, and is JSON if JSON was asked for, which is only known
/// by looking: the arguments did not parse.
fn usage(fault: &clap::Error) -> ExitCode {
    let json = std::env::args_os().any(|argument| argument == "--json");
    match fault.use_stderr() && json {
        true => Failure::usage(first_paragraph(fault)).report(Format::Json),
        false => {
            // Nothing is left to do when standard error is closed.
            let _ = fault.print();
            ExitCode::from(u8::try_from(fault.exit_code()).unwrap_or(2))
        }
    }
}

/// What is wrong, without the usage text that follows it.
fn first_paragraph(fault: &clap::Error) -> String {
    let text = fault.to_string();
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    paragraph.trim_start_matches("error: ").to_owned()
}
