//! What a terminal shows while the tenant moves: a few lines, drawn again several times a second.
//!
//! ```text
//! mover0   s0 SQLite ────► s1 PostgreSQL   move 3   backfill (copying), 7250 rows, lag 12, last pause 9.8 ms
//! ▂▅▇▇▆▇▇▇▇▇▆▇▇▅▇▇   4812 statements/s
//! ▁▁▁▁▁▃▁▁▁▁█▁▁▁▁▁   p99 of the tenant 3.2 ms, at most 21.0 ms
//! ```

use super::Engine;
use crate::cli::output::{Failure, Format};
use crate::load::Load;
use crate::load::meter::{Sample, Spread, Whose};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use isles_kernel::moves::{Plan, Stage};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Each column of a line is so much time.
const COLUMN: Duration = Duration::from_millis(250);
/// Columns that fit into a usual terminal, beside the figures.
const COLUMNS: usize = 48;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// What one column is about.
#[derive(Debug, Clone, Copy, Default)]
struct Column {
    statements: usize,
    p99: Duration,
}

#[derive(Default)]
struct Seen {
    /// The head line: what moves, and how far it is.
    head: String,
    moves: usize,
    is_moving: bool,
    /// How long the last cutover held writers.
    pause_micros: Option<u64>,
}

pub(super) struct Picture {
    bar: ProgressBar,
    engine: Engine,
    seen: Mutex<Seen>,
}

impl Picture {
    pub(super) fn new(engine: Engine, format: Format) -> Picture {
        let is_shown = format == Format::Text && std::io::stdout().is_terminal();
        let target = if is_shown { ProgressDrawTarget::stdout() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
        Picture { bar: bar.with_style(style), engine, seen: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how far a plan is.
    pub(super) fn see(&self, plan: &Plan) {
        let mut seen = self.lock();
        let is_moving = plan.stage != Stage::Done;
        seen.moves += usize::from(is_moving && !seen.is_moving);
        seen.is_moving = is_moving;
        seen.pause_micros = plan.cutover.pause_micros.or(seen.pause_micros);
        let pause = seen.pause_micros.map_or(String::new(), |us| format!(", last pause {:.1} ms", us as f64 / 1e3));
        seen.head = head(plan, self.engine, seen.moves) + &pause;
    }

    /// Says something above the picture.
    pub(super) fn aside(&self, text: &str, say: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        match self.bar.is_hidden() {
            true => say(),
            false => {
                self.bar.println(text);
                Ok(())
            }
        }
    }

    /// Draws for as long as it is awaited.
    pub(super) async fn live(&self, load: &Load) -> Infallible {
        let (mut columns, mut known) = (VecDeque::<Column>::new(), load.meter().count());
        loop {
            tokio::time::sleep(COLUMN).await;
            let samples = load.meter().after(known);
            known += samples.len();
            columns.push_back(column(&samples));
            if columns.len() > COLUMNS {
                columns.pop_front();
            }
            self.bar.set_message(drawn(&self.lock().head, &columns));
        }
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn column(samples: &[Sample]) -> Column {
    let ours = samples.iter().filter(|sample| sample.whose == Whose::Mover);
    Column { statements: samples.len(), p99: Spread::of(ours.map(|sample| sample.took)).p99 }
}

fn head(plan: &Plan, engine: Engine, number: usize) -> String {
    let engines = engine.names();
    let name = |shard: &str| if shard == "s0" { engines[0] } else { engines[1] };
    let (from, to) = (plan.source_shard.as_str(), plan.target_shard.as_str());
    let lag = plan.tail.lag.map_or(String::new(), |lag| format!(", lag {lag}"));
    let stage = format!("{:?}", plan.stage).to_lowercase();
    format!(
        "{}   {from} {} ────► {to} {}   move {number}   {} ({stage}), {} rows{lag}",
        plan.units,
        name(from),
        name(to),
        plan.phase.name(),
        plan.backfill.total_rows_copied
    )
}

fn drawn(head: &str, columns: &VecDeque<Column>) -> String {
    let last = columns.back().copied().unwrap_or_default();
    let rate = last.statements as f64 / COLUMN.as_secs_f64();
    let statements = line(columns.iter().map(|column| column.statements as f64));
    let latency = line(columns.iter().map(|column| column.p99.as_secs_f64()));
    let longest = columns.iter().map(|column| column.p99).max().unwrap_or_default();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    format!(
        "{head}\n{statements}  {rate:.0} statements/s\n{latency}  p99 of the tenant {:.1} ms, at most {:.1} ms",
        ms(last.p99),
        ms(longest)
    )
}

/// Values as bars, the largest the highest.
fn line(values: impl Iterator<Item = f64> + Clone) -> String {
    let most = values.clone().fold(f64::MIN_POSITIVE, f64::max);
    let bar = |value: f64| BARS[((value / most * BARS.len() as f64) as usize).min(BARS.len() - 1)];
    let bars: String = values.map(bar).collect();
    let blank = " ".repeat(COLUMNS - bars.chars().count().min(COLUMNS));
    format!("{blank}{bars}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_their_values() {
        assert_eq!(line([0.0, 4.0, 8.0].into_iter()).trim_start(), "▁▅█");
        assert_eq!(line([0.0].into_iter()).trim_start(), "▁");
        assert_eq!(line(std::iter::empty()).chars().count(), COLUMNS);
    }

    #[test]
    fn the_picture_has_three_lines() {
        let columns = [Column { statements: 100, p99: Duration::from_millis(3) }; 3];
        let text = drawn("acme", &columns.into());
        assert_eq!(text.lines().count(), 3);
        assert!(text.contains("400 statements/s") && text.contains("p99 of the tenant 3.0 ms"), "{text}");
    }
}
