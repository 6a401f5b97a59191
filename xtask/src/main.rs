//! The project's own commands: `cargo xtask ci`, `tidy`, `bench`, `fuzz`, `sim`, `logins` and `runs`.
//!
//! In reading order:
//!   * `tidy`  what a compiler does not check: documents that are true, crates in their order, nothing left behind
//!   * `run`   starts cargo, with the time each step took
//!   * `suite` builds all tests and runs them side by side
//!   * `ci`    what `./test` runs
//!
//! The rest is small enough to stand here.

mod tidy;

mod run;

mod suite;

mod ci;

use clap::{Parser, Subcommand, ValueEnum};
use run::Step;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", about = "Commands for people who work on Isles")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Format, tidy, lints and all tests: what `./test` runs
    Ci,
    /// Checks documents and sources for what a compiler does not see
    Tidy,
    /// Runs a benchmark, in the release profile
    Bench {
        /// What to measure
        what: Bench,
        /// Parts of it; all if none is named
        parts: Vec<String>,
    },
    /// Puts Isles to the test with random input, for longer than CI does
    Fuzz {
        /// What to put to the test
        what: Fuzz,
        /// Statements on each of the four setups, for sql
        #[arg(long, value_name = "N", default_value_t = 100_000)]
        statements: u64,
        /// Conversations, for wire
        #[arg(long, value_name = "N", default_value_t = 20_000)]
        cases: u64,
        /// Replays one seed instead
        #[arg(long, value_parser = parse_seed)]
        seed: Option<u64>,
    },
    /// Replays one simulated history, or runs many
    ///
    /// A history is drawn from its seed: the same seed and the same commit give the same history.
    Sim {
        /// The seed of one history, in decimal or as 0x…
        #[arg(value_parser = parse_seed, required_unless_present_any = ["seeds", "sweep"])]
        seed: Option<u64>,
        /// How many histories to run, each with a seed of its own
        #[arg(long, value_name = "N", conflicts_with = "seed")]
        seeds: Option<u64>,
        /// Cuts one move short at every point, instead of some
        #[arg(long, conflicts_with_all = ["seed", "seeds"])]
        sweep: bool,
    },
    /// Logs users in while generations change and buckets move, more often than CI does
    ///
    /// Each flow is a code, its exchange, a session, two refreshes, and each thing that may happen once a second time.
    Logins {
        /// How many flows, on each engine
        #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
        flows: u64,
        /// On this one only
        #[arg(long)]
        engine: Option<Engine>,
    },
    /// Kills a process in the middle of many runs of workflows, and lets many timers fire; more of both than CI does
    Runs {
        /// Runs that must all end, and none twice
        #[arg(long, value_name = "N", default_value_t = 10_000)]
        runs: u64,
        /// Timers that must all fire, and none early, on each engine
        #[arg(long, value_name = "N", default_value_t = 100_000)]
        timers: u64,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Engine {
    Sqlite,
    Postgres,
}

#[derive(Clone, Copy, ValueEnum)]
enum Bench {
    /// A SQLite shard beside raw SQLite
    Shard,
    /// Copies from shard to shard beside what the engines have for it
    Copy,
    /// Isles beside PostgreSQL, PgBouncer and raw SQLite, over the wire
    Sql,
    /// What tenants cost, and what they cost each other
    Tenants,
    /// What clients notice of moves, and what a copy costs others
    Moves,
    /// What global indexes cost those who write, and save those who read
    Indexes,
    /// What units of work, outboxes and hooks cost
    Fragments,
    /// Operations on records that expire, beside raw SQLite and Redis
    Stores,
    /// Workflows beside DBOS, and what their index costs
    Workflows,
}

#[derive(Clone, Copy, ValueEnum)]
enum Fuzz {
    /// Random statements on Isles and on PostgreSQL
    Sql,
    /// Damaged conversations, values and copies, on the readers of PostgreSQL's protocol
    Wire,
}

fn main() -> ExitCode {
    let root = root();
    let ok = match Cli::parse().command {
        Command::Ci => ci::ci(&root),
        Command::Tidy => tidy::tidy(&root),
        Command::Bench { what, parts } => bench(what, &parts).run(&root),
        Command::Fuzz { what: Fuzz::Sql, statements, seed, .. } => fuzz_sql(statements, seed).run(&root),
        Command::Fuzz { what: Fuzz::Wire, cases, seed, .. } => {
            fuzz_wire(cases, seed).iter().all(|step| step.run(&root))
        }
        Command::Sim { sweep: true, .. } => sweep().run(&root),
        Command::Sim { seed, seeds, .. } => sim(seed, seeds).run(&root),
        Command::Logins { flows, engine } => logins(flows, engine).run(&root),
        Command::Runs { runs, timers } => many_runs(runs, timers).iter().all(|step| step.run(&root)),
    };
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn bench(what: Bench, parts: &[String]) -> Step {
    let (package, name) = match what {
        Bench::Shard => ("isles-engine", "shard"),
        Bench::Copy => ("isles-engine", "copy"),
        Bench::Sql => ("isles", "sql"),
        Bench::Tenants => ("isles", "tenants"),
        Bench::Moves => ("isles", "moves"),
        Bench::Indexes => ("isles-cluster", "indexes"),
        Bench::Fragments => ("isles-fragments", "fragments"),
        Bench::Stores => ("isles-stores", "stores"),
        Bench::Workflows => ("isles-workflows", "workflows"),
    };
    let mut args = vec!["bench", "-p", package, "--bench", name, "--"];
    args.extend(parts.iter().map(String::as_str));
    Step::cargo("bench", &args)
}

/// The simulations are test binaries: of a shard, of a whole database, and of runs of workflows. They read what to do
/// from the environment.
fn sim(seed: Option<u64>, seeds: Option<u64>) -> Step {
    let shard = ["test", "--release", "-p", "isles-engine", "--test", "simulation"];
    let database = ["-p", "isles-cluster", "--test", "isolation"];
    let runs = ["-p", "isles-workflows", "--test", "simulated", "--", "--nocapture"];
    let step = Step::cargo("sim", &[&shard[..], &database, &runs].concat());
    let step = seed.into_iter().fold(step, |step, seed| step.env("ISLES_SIM_SEED", seed));
    seeds.into_iter().fold(step, |step, seeds| step.env("ISLES_SIM_SEEDS", seeds))
}

/// All points at which a move, or the build of an index, can be cut short.
fn sweep() -> Step {
    let test = ["test", "--release", "-p", "isles-cluster", "--test", "isolation", "--"];
    let args = [&test[..], &["--nocapture", "sweep", "building"]].concat();
    Step::cargo("sim", &args).env("ISLES_SWEEP", 1)
}

/// The flows are a test of the stores, which reads their number from the environment.
fn logins(flows: u64, engine: Option<Engine>) -> Step {
    let filter = match engine {
        None => "logins_go_on",
        Some(Engine::Sqlite) => "over_sqlite::logins_go_on",
        Some(Engine::Postgres) => "over_postgres::logins_go_on",
    };
    let args = ["test", "--release", "-p", "isles-stores", "--test", "stores", filter, "--", "--nocapture"];
    Step::cargo("logins", &args).env("ISLES_LOGIN_FLOWS", flows)
}

fn many_runs(runs: u64, timers: u64) -> [Step; 2] {
    let killed = ["test", "--release", "-p", "isles-workflows", "--test", "killed"];
    let fired = ["test", "--release", "-p", "isles-workflows", "--test", "runs", "many_timers", "--", "--nocapture"];
    [
        Step::cargo("killed runs", &killed).env("ISLES_TEST_RUNS", runs),
        Step::cargo("timers", &fired).env("ISLES_TEST_TIMERS", timers),
    ]
}

/// The comparison is a test binary of the server.
fn fuzz_sql(statements: u64, seed: Option<u64>) -> Step {
    let args = ["test", "--release", "-p", "isles", "--test", "differential", "--", "--nocapture"];
    let step = Step::cargo("fuzz", &args).env("ISLES_FUZZ_STATEMENTS", statements);
    seed.into_iter().fold(step, |step, seed| step.env("ISLES_FUZZ_SEED", seed))
}

/// Conversations with a server, and then the readers of values and copies by themselves.
fn fuzz_wire(cases: u64, seed: Option<u64>) -> [Step; 2] {
    let server = ["test", "--release", "-p", "isles", "--test", "serve", "mutated", "--", "--nocapture"];
    let readers = ["test", "--release", "-p", "isles-sql", "--test", "readers", "--", "--nocapture"];
    [&server[..], &readers].map(|args| {
        let step = Step::cargo("fuzz", args).env("ISLES_WIRE_CASES", cases);
        seed.into_iter().fold(step, |step, seed| step.env("ISLES_WIRE_SEED", seed))
    })
}

fn parse_seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("{error}: a seed has at most 64 bits, in decimal or as 0x…"))
}

/// The folder of the workspace. Cargo says where this crate is; a binary that was started without cargo uses the
/// place it was built from.
fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(package).parent().map_or_else(|| ".".into(), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_seed_is_decimal_or_hexadecimal() {
        assert_eq!(parse_seed("31"), Ok(31));
        assert_eq!(parse_seed("0x1F"), Ok(31));
        assert!(parse_seed("0x").is_err());
        assert!(parse_seed("-1").is_err());
    }

    #[test]
    fn logins_are_as_many_as_one_asks_for() {
        let line = logins(7, Some(Engine::Sqlite)).line();
        assert!(line.starts_with("ISLES_LOGIN_FLOWS=7 cargo test --release -p isles-stores"), "{line}");
        assert!(line.contains(" over_sqlite::logins_go_on "), "{line}");
        let parse = |args: &[&str]| Cli::try_parse_from([&["xtask", "logins"], args].concat());
        assert!(parse(&[]).is_ok() && parse(&["--flows", "5", "--engine", "postgres"]).is_ok());
        assert!(parse(&["--flows", "0"]).is_err() && parse(&["--engine", "mysql"]).is_err());
    }

    #[test]
    fn a_simulation_needs_a_seed_or_a_number_of_seeds() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["xtask", "sim"], args].concat());
        assert!(parse(&[]).is_err());
        assert!(parse(&["7"]).is_ok());
        assert!(parse(&["--seeds", "100"]).is_ok());
        assert!(parse(&["7", "--seeds", "100"]).is_err());
    }
}
