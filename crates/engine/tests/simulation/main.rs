//! Histories of one shard under faults, drawn from seeds, and what must hold in every one of them.
//!
//! `ISLES_SIM_SEEDS` is how many histories are run, `ISLES_SIM_SEED` runs one and prints its trace. A failure prints
//! the seed and the command that replays it.
//!
//! Invariants (docs/invariants.md):
//!   * I-7   no write is let in that a fence refuses
//!   * I-19  transactions are serializable and respect real time
//!   * I-29  the log is exactly the committed changes
//!   * I-64  when faults stop, everything is finished within a minute
//!   * I-66  nobody waits without end
//!   * I-67  the same seed gives the same trace
//!   * I-68  every fault and every error has been seen
//!   * I-69  planted bugs are found

#[path = "../harness/mod.rs"]
mod harness;

mod client;
mod history;

use history::{Report, Verdict};
use isles_engine::sqlite::Planted;
use isles_sim::disk::Disk;
use isles_sim::exec::Options;
use isles_sim::rng::number_from_env as number;
use isles_sim::trace::{Keep, Sometimes};
use std::sync::Arc;

/// Histories of a run that nobody asked more of.
const SEEDS: u64 = 600;
/// Histories within which a planted bug must be found.
const SEEDS_FOR_BUGS: u64 = 200;
/// Histories that are run twice.
const SEEDS_TWICE: u64 = 20;
/// How often each fault and error must have been seen.
const SEEN_LEAST: u64 = 10;

/// Errors and faults that a run must have seen. A shard is found to be corrupt only by rot, which `crash_sweep` has.
const EXPECTED: [&str; 23] = [
    "error: cancelled",
    "error: conflict",
    "error: disk full",
    "error: invalid",
    "error: limit",
    "error: may have happened",
    "error: moved",
    "error: statement",
    "error: stopped",
    "error: timed out",
    "error: trimmed",
    "error: unavailable",
    "fault: crash between operations",
    "fault: crash in an operation",
    "fault: fence",
    "kill",
    "life: AllLost",
    "life: Killed",
    "life: SomeLost",
    "life: Torn",
    "life: closed",
    "restart",
    "slow disk",
];

fn new_disk() -> Arc<Disk> {
    Arc::new(Disk::new(0).expect("a disk"))
}

fn run(disk: &Arc<Disk>, seed: u64) -> Report {
    let verdict = history::run(disk, seed, None, Options::default());
    verdict.unwrap_or_else(|why| panic!("FAILED seed={seed:#x}\n{why}\nreplay: cargo xtask sim {seed:#x}"))
}

#[test]
fn histories_under_faults_are_strictly_serializable() {
    let disk = new_disk();
    if let Some(seed) = number("ISLES_SIM_SEED") {
        let options = Options { keep: Keep::Whole, ..Options::default() };
        let report =
            history::run(&disk, seed, None, options).unwrap_or_else(|why| panic!("FAILED seed={seed:#x}\n{why}"));
        println!("{:?}\n{:?}\n{}", report.swarm, report.checked, report.sometimes.table(0));
        return;
    }
    let seeds = number("ISLES_SIM_SEEDS").unwrap_or(SEEDS);
    let mut sometimes = Sometimes::new();
    sometimes.expect(&EXPECTED);
    let (mut txns, mut reads) = (0, 0);
    for seed in 0..seeds {
        let report = run(&disk, seed);
        sometimes.merge(&report.sometimes);
        txns += report.checked.txns;
        reads += report.checked.reads;
    }
    println!("{seeds} histories, {txns} transactions, {reads} reads\n{}", sometimes.table(SEEN_LEAST));
    assert!(txns as u64 > seeds * 50 && reads as u64 > seeds * 50, "{txns} transactions, {reads} reads");
    if seeds >= SEEDS {
        sometimes.assert_all_at_least(SEEN_LEAST);
    }
}

/// Seeds of failures, kept for ever: a checkpoint that went on after a failed sync, a full queue that kept a shard
/// from being closed.
#[test]
fn seeds_that_have_failed_once_pass() {
    let disk = new_disk();
    [0x598, 0xaf2].into_iter().for_each(|seed| drop(run(&disk, seed)));
}

/// I-67
#[test]
fn the_same_seed_gives_the_same_trace() {
    let disk = new_disk();
    for seed in 1_000..1_000 + SEEDS_TWICE {
        let (first, second) = (run(&disk, seed), run(&disk, seed));
        assert_eq!(first.trace_hash, second.trace_hash, "seed {seed:#x} gave two traces");
        assert_eq!(first.sometimes, second.sometimes);
    }
}

/// Seeds until the planted bug is found, and what was said of it.
#[track_caller]
fn assert_found(planted: Planted, expected: &str) {
    let disk = new_disk();
    let judged = (0..SEEDS_FOR_BUGS).map(|seed| (seed, history::run(&disk, seed, Some(planted), Options::default())));
    let found = judged.into_iter().find_map(|(seed, verdict): (u64, Verdict)| Some((seed, verdict.err()?)));
    let (seed, why) = found.unwrap_or_else(|| panic!("{planted:?} passed {SEEDS_FOR_BUGS} histories"));
    println!("{planted:?} found after {} histories: {}", seed + 1, why.lines().next().unwrap_or_default());
    assert!(why.contains(expected), "{planted:?} was found as something else: {why}");
}

/// Planted bug 1
#[test]
fn a_skipped_fence_is_found() {
    assert_found(Planted::SkipFence, "I-7");
}

/// Planted bug 2
#[test]
fn a_fence_read_outside_the_transaction_is_found() {
    assert_found(Planted::FenceOutsideTransaction, "I-7");
}

/// Planted bug 3
#[test]
fn an_acknowledgement_before_the_sync_is_found() {
    assert_found(Planted::NoSync, "I-");
}
