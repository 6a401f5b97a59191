//! What `./test` runs: each step with its time, the quick ones first, and nothing after the first that fails.

use crate::run::{Step, timed};
use crate::tidy;
use std::path::Path;
use std::time::Duration;

pub(crate) fn ci(root: &Path) -> bool {
    let mut times = Vec::new();
    let mut ok = step("tidy", &mut times, || tidy::tidy(root));
    for next in steps() {
        ok = ok && step(next.name, &mut times, || next.run(root));
    }
    report(&times, ok);
    ok
}

/// The steps after tidy. A runner with a process for each test would start a PostgreSQL server for each, too.
fn steps() -> [Step; 3] {
    [
        Step::cargo("format", &["fmt", "--all", "--check"]),
        Step::cargo("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
        Step::cargo("tests", &["test", "--workspace", "--no-fail-fast"]),
    ]
}

fn step(name: &'static str, times: &mut Vec<(&'static str, Duration, bool)>, work: impl FnOnce() -> bool) -> bool {
    println!("\n=== {name}");
    let (ok, time) = timed(work);
    times.push((name, time, ok));
    ok
}

fn report(times: &[(&'static str, Duration, bool)], ok: bool) {
    println!("\n=== {}", if ok { "passed" } else { "FAILED" });
    for (name, time, ok) in times {
        println!("{name:<10} {:>8.1} s  {}", time.as_secs_f64(), if *ok { "ok" } else { "FAILED" });
    }
    let total: Duration = times.iter().map(|(_, time, _)| *time).sum();
    println!("{:<10} {:>8.1} s", "total", total.as_secs_f64());
}
