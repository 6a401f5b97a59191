//! What `./test` runs: each step with its time, the quick ones first, and nothing after the first that fails.

use crate::run::{Step, has_subcommand, timed};
use crate::tidy;
use std::path::Path;
use std::time::Duration;

pub(crate) fn ci(root: &Path) -> bool {
    let mut times = Vec::new();
    let mut ok = step("tidy", &mut times, || tidy::tidy(root));
    for next in steps(has_subcommand("nextest")) {
        ok = ok && step(next.name, &mut times, || next.run(root));
    }
    report(&times, ok);
    ok
}

/// The steps after tidy. nextest runs tests of all crates side by side and names the slow ones, but no doc tests.
fn steps(nextest: bool) -> Vec<Step> {
    let mut steps = vec![
        Step::cargo("format", &["fmt", "--all", "--check"]),
        Step::cargo("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    ];
    if nextest {
        steps.push(Step::cargo("tests", &["nextest", "run", "--workspace", "--no-fail-fast"]));
        steps.push(Step::cargo("doc tests", &["test", "--workspace", "--doc", "--quiet"]));
    } else {
        steps.push(Step::cargo("tests", &["test", "--workspace", "--no-fail-fast"]));
    }
    steps
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_all_kinds_run_with_and_without_nextest() {
        let lines = |nextest| steps(nextest).iter().map(Step::line).collect::<Vec<_>>().join("\n");
        assert!(lines(true).contains("nextest run --workspace"));
        assert!(lines(true).contains("test --workspace --doc"));
        assert!(!lines(false).contains("nextest"));
        assert!(lines(false).contains("test --workspace"));
    }
}
