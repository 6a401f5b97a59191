//! A build that goes on in the server, watched until the index leads statements, or never will.

use super::super::client::ServerArguments;
use super::super::output::{Failure, Format, complain};
use super::super::tenants::server::Server;
use super::show::{Index, find};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// Between two lines where there is no terminal.
const LINE: Duration = Duration::from_secs(1);
/// A server that is away may be restarting: the build goes on when it is back.
const AWAY: Duration = Duration::from_secs(60);

/// What programs are told of an index that cannot be built.
pub(super) const FAILED: &str = "failed";

pub(super) async fn follow(
    server: Server,
    arguments: &ServerArguments,
    name: &str,
    format: Format,
) -> Result<Index, Failure> {
    let progress = Progress::new(format);
    let interrupted = tokio::signal::ctrl_c();
    let watched = tokio::select! {
        watched = watch(server, arguments, name, &progress) => watched,
        _ = interrupted => {
            let hint = format!("isles index status {name} shows how far it is");
            Err(Failure::usage("the build goes on in the server").code("interrupted").hint(hint))
        }
    };
    progress.end();
    watched
}

async fn watch(
    mut server: Server,
    arguments: &ServerArguments,
    name: &str,
    progress: &Progress,
) -> Result<Index, Failure> {
    loop {
        let index = match find(&server, name).await {
            Ok(index) => index,
            Err(failure) if failure.is_unreachable() => {
                server = back(arguments, failure).await?;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        progress.show(&index);
        match (index.state(), index.is_used()) {
            ("ready", true) => return Ok(index),
            ("failed", _) => {
                let why = index.error().unwrap_or("for an unknown reason");
                let hint = format!("isles index rebuild {name} tries again, isles index drop {name} gives it up");
                return Err(Failure::check(format!("index {name} cannot be built: {why}")).code(FAILED).hint(hint));
            }
            _ => tokio::time::sleep(LOOK).await,
        }
    }
}

/// Connects again, for as long as a restart takes.
async fn back(arguments: &ServerArguments, first: Failure) -> Result<Server, Failure> {
    let until = Instant::now() + AWAY;
    loop {
        match Server::connect(arguments).await {
            Ok(server) => return Ok(server),
            Err(_) if Instant::now() < until => tokio::time::sleep(LOOK * 5).await,
            Err(_) => return Err(first.hint("the build goes on when the server is back: isles index status")),
        }
    }
}

/// A bar on a terminal, lines elsewhere, nothing for programs.
enum Progress {
    Bar(ProgressBar),
    Lines(RefCell<Option<(Instant, String)>>),
    Nothing,
}

impl Progress {
    fn new(format: Format) -> Progress {
        match (format, std::io::stderr().is_terminal()) {
            (Format::Json, _) => Progress::Nothing,
            (Format::Text, false) => Progress::Lines(RefCell::default()),
            (Format::Text, true) => Progress::Bar(ProgressBar::new(0)),
        }
    }

    fn show(&self, index: &Index) {
        match self {
            Progress::Nothing => {}
            Progress::Bar(bar) => show_bar(bar, index),
            Progress::Lines(last) => {
                let line = index.progress();
                let is_due = |(at, said): &(Instant, String)| *said != line && at.elapsed() >= LINE;
                if last.borrow().as_ref().is_none_or(is_due) {
                    complain(&line);
                    *last.borrow_mut() = Some((Instant::now(), line));
                }
            }
        }
    }

    fn end(&self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Whole rows.
fn rate(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    // A bar that cannot be written is not seen.
    let _ = write!(out, "{:.0}/s", state.per_sec());
}

fn show_bar(bar: &ProgressBar, index: &Index) {
    let (rows, total) = index.rows();
    let template = match total {
        Some(_) => "{bar:30} {pos}/{len} rows {rate} {eta} {msg}",
        None => "{spinner} {msg}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.with_key("rate", rate));
    }
    // Rows that came since the build began are counted, too.
    bar.set_length(total.unwrap_or(0).max(rows));
    bar.set_position(rows);
    bar.set_message(index.stage());
}
