//! What `./test` runs: each step with its time, the quick ones first, and nothing after the first that fails.

use crate::run::{Step, timed};
use crate::{suite, tidy};
use std::path::Path;
use std::time::Duration;

pub(crate) fn ci(root: &Path) -> bool {
    let format = Step::cargo("format", &["fmt", "--all", "--check"]);
    let clippy = Step::cargo("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]);
    // What must not compile, and the samples of documents; other crates have pictures, which rustdoc takes for code.
    let doc_args = ["test", "--workspace", "--doc", "--quiet", "--", "crates/fragments/src"];
    let samples = Step::cargo("samples", &doc_args);
    let mut times = Vec::new();
    let ok = step("tidy", &mut times, || tidy::tidy(root))
        && step(format.name, &mut times, || format.run(root))
        && step(clippy.name, &mut times, || clippy.run(root))
        && step(samples.name, &mut times, || samples.run(root))
        && step("tests", &mut times, || suite::run(root));
    report(&times, ok);
    ok
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
