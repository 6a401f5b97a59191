//! `isles demo move`: a tenant moves under load, and nothing is lost.
//!
//! ```text
//! temporary server ─► clients at full speed: capacity ─► 70 % of it ─► there and back, for some seconds ─► the proof
//! ```
//!
//! The server is the one of `isles serve`, on a free port, and the clients speak PostgreSQL's protocol with it. Each
//! knows what was acknowledged to it; in the end that is compared with the rows. A terminal shows it as it happens,
//! anything else gets a line for each step.

mod home;
mod picture;
mod postgres;

use super::output::{Failure, Format, FormatArgument, Outcome, complain, say, say_json};
use crate::load::meter::{Spread, pauses};
use crate::load::moving::{Moved, move_tenant};
use crate::load::{self, Fault, Load, Shape, World};
use home::Home;
use picture::Picture;
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

const SHAPE: Shape = Shape { movers: 6, others: 4, still_rows: 10_000 };
/// Of the capacity.
const SHARE: f64 = 0.7;
/// For so long clients work at full speed.
const CAPACITY_TIME: Duration = Duration::from_millis(1_500);
/// Between two moves, so that one can be told from the other.
const REST: Duration = Duration::from_millis(300);
/// What is wrong with the rows: so many of it are named.
const MAX_NAMED: usize = 10;

#[derive(clap::Subcommand)]
pub(crate) enum DemoMode {
    /// Move a tenant there and back while clients write, and prove that nothing was lost
    Move(MoveArguments),
}

#[derive(clap::Args)]
pub(crate) struct MoveArguments {
    /// How long the tenant goes there and back; at least once, whatever is said
    #[arg(long, value_name = "N", default_value_t = 15)]
    seconds: u64,
    /// What the tenant moves between; both, where there is a PostgreSQL, and otherwise SQLite files
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Empty PostgreSQL databases to take, instead of a temporary server
    #[arg(long, value_name = "URL", hide_env_values = true)]
    postgres: Vec<String>,
    /// Keep the database in this folder, which must be new or empty
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgument,
}

#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Two SQLite files
    Sqlite,
    /// Two PostgreSQL databases
    Postgres,
    /// A SQLite file and a PostgreSQL database
    Both,
}

impl Engine {
    fn names(self) -> [&'static str; 2] {
        match self {
            Engine::Sqlite => ["SQLite", "SQLite"],
            Engine::Postgres => ["PostgreSQL", "PostgreSQL"],
            Engine::Both => ["SQLite", "PostgreSQL"],
        }
    }
}

impl DemoMode {
    pub(crate) fn format(&self) -> Format {
        let DemoMode::Move(arguments) = self;
        arguments.format.format()
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Failure {
        Failure::usage(fault.0).code("demo")
    }
}

pub(crate) fn run(mode: DemoMode) -> Result<Outcome, Failure> {
    let DemoMode::Move(arguments) = mode;
    let runtime = tokio::runtime::Runtime::new().map_err(|fault| Failure::usage(fault.to_string()))?;
    runtime.block_on(async {
        let home = Home::open(&arguments).await?;
        // Whoever interrupts gets everything cleared away, too.
        let shown = tokio::select! {
            shown = show(&home, &arguments) => shown,
            _ = tokio::signal::ctrl_c() => Err(Failure::usage("interrupted").code("interrupted")),
        };
        home.close().await?;
        shown
    })
}

async fn show(home: &Home, arguments: &MoveArguments) -> Result<Outcome, Failure> {
    let format = arguments.format.format();
    let [one, two] = home.engine.names();
    tell(
        format,
        &format!("s0 is {one}, s1 is {two}; the tenant that moves has {} rows", SHAPE.still_rows),
        || json!({"step": "shards", "shards": [one, two], "rows": SHAPE.still_rows}),
    )?;
    let world = World::make(&home.url(), ("s0", "s1"), SHAPE).await?;
    let load = Load::start(&world).await?;
    let capacity = load.capacity(CAPACITY_TIME).await;
    load.pace(capacity * SHARE);
    let (clients, pace) = (SHAPE.movers + SHAPE.others, capacity * SHARE);
    tell(
        format,
        &format!("{clients} clients can do {capacity:.0} statements/s, and do {pace:.0} from here on"),
        || json!({"step": "load", "clients": clients, "capacity": capacity, "pace": pace}),
    )?;
    let picture = Picture::new(home.engine, format);
    let moves = tokio::select! {
        moves = there_and_back(&world, &load, arguments, &picture) => moves?,
        never = picture.live(&load) => match never {},
    };
    picture.end();
    let outcome = load.finish(&world).await?;
    prove(&outcome, &moves, format)
}

/// A line for people, an object for programs.
fn tell(format: Format, text: &str, value: impl FnOnce() -> serde_json::Value) -> Result<(), Failure> {
    match format {
        Format::Text => say(text),
        Format::Json => say_json(&value())?,
    }
    Ok(())
}

/// Moves until the time is over, and ends where it began.
async fn there_and_back(
    world: &World,
    load: &Load,
    arguments: &MoveArguments,
    picture: &Picture,
) -> Result<Vec<Moved>, Failure> {
    let (format, time) = (arguments.format.format(), Duration::from_secs(arguments.seconds));
    let (began, mut moves) = (load.origin().elapsed(), Vec::<Moved>::new());
    while moves.is_empty() || load.origin().elapsed() < began + time {
        for [from, to] in [["s0", "s1"], ["s1", "s0"]] {
            tokio::time::sleep(REST).await;
            let moved = move_tenant(&world.admin, load.origin(), &world.mover, to, |plan| picture.see(plan)).await?;
            let (rows, seconds) = (moved.rows, (moved.ended - moved.began).as_secs_f64());
            let (pause, copying) = (ms(moved.pause), moved.copying.1.saturating_sub(moved.copying.0).as_secs_f64());
            let text = format!(
                "{} moved from {from} to {to} in {seconds:.1} s: {rows} rows, writers held for {pause:.1} ms",
                world.mover
            );
            picture.aside(&text, || tell(format, &text, || json!({"step": "move", "tenant": world.mover, "from": from,
                "to": to, "rows": rows, "seconds": seconds, "copySeconds": copying, "pauseMs": pause, "attempts": moved.attempts})))?;
            moves.push(moved);
        }
    }
    Ok(moves)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What was acknowledged, beside what is there.
fn prove(outcome: &load::Outcome, moves: &[Moved], format: Format) -> Result<Outcome, Failure> {
    let load::Outcome { writes, rows_expected, rows_found, errors, wrong, .. } = outcome;
    let pause = Spread::of(pauses(&outcome.samples, moves));
    let statements = outcome.samples.len();
    let text = format!(
        "{} moves under {statements} statements: {writes} writes were acknowledged\n  \
         rows     {rows_found} found of {rows_expected}, {wrong} of them wrong\n  \
         errors   {errors}\n  \
         pause    p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms, as clients saw it",
        moves.len(),
        ms(pause.p50),
        ms(pause.p99),
        ms(pause.max)
    );
    tell(format, &text, || {
        json!({"step": "proof", "exact": outcome.is_exact(), "moves": moves.len(), "statements": statements,
               "writes": writes, "rowsExpected": rows_expected, "rowsFound": rows_found, "wrong": wrong,
               "errors": errors, "pauseMs": {"p50": ms(pause.p50), "p99": ms(pause.p99), "max": ms(pause.max)}})
    })?;
    outcome.texts.iter().take(MAX_NAMED).for_each(|text| complain(text));
    Ok(if outcome.is_exact() { Outcome::Done } else { Outcome::CheckFailed })
}
