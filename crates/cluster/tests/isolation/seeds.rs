//! Histories by their seeds: which are run, side by side, and what they must have met.

use isles_sim::disk::Disk;
use isles_sim::rng::number_from_env as number;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

pub(crate) fn new_disk() -> Arc<Disk> {
    Arc::new(Disk::new(0).expect("a disk"))
}

/// The one that is asked for, or as many as are asked for, or `most`.
pub(crate) fn seeds(most: u64) -> Range<u64> {
    match number("ISLES_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ISLES_SIM_SEEDS").unwrap_or(most),
    }
}

/// Histories side by side, as many as there are cores, each of them by its seed alone.
pub(crate) fn run_all<R: Send>(
    seeds: &Range<u64>,
    run: impl Fn(&Arc<Disk>, u64) -> Result<R, String> + Sync,
) -> Vec<R> {
    let lanes = std::thread::available_parallelism().map_or(1, |cores| cores.get()) as u64;
    let lane = |first: u64| {
        let disk = new_disk();
        let one = |seed: u64| {
            run(&disk, seed)
                .unwrap_or_else(|why| panic!("FAILED seed={seed:#x}\n{why}\nreplay: cargo xtask sim {seed:#x}"))
        };
        (first..seeds.end).step_by(lanes as usize).map(one).collect::<Vec<R>>()
    };
    std::thread::scope(|scope| {
        let lane = &lane;
        let lanes: Vec<_> = (0..lanes).map(|n| scope.spawn(move || lane(seeds.start + n))).collect();
        let joined = lanes.into_iter().map(|lane| lane.join());
        joined.flat_map(|reports| reports.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Whether each kind was met in so many of a hundred histories.
pub(crate) fn check_kinds(kinds: &[(&str, u64)], met: &BTreeMap<String, u64>, histories: u64) {
    for (what, percent) in kinds {
        let met = met.get(*what).copied().unwrap_or_default();
        assert!(met * 100 >= percent * histories, "{what}: in {met} of {histories} histories, {percent} % are asked");
    }
}

/// Each bug breaks one of the first histories.
pub(crate) fn find_bugs<B: Copy + Debug, R>(
    bugs: &[B],
    histories: u64,
    run: impl Fn(&Arc<Disk>, u64, Option<B>) -> Result<R, String>,
) {
    let (disk, mut missed) = (new_disk(), Vec::new());
    for bug in bugs {
        match (0..histories).find_map(|seed| Some((seed, run(&disk, seed, Some(*bug)).err()?))) {
            Some((seed, why)) => {
                println!("{bug:?} found after {} histories: {}", seed + 1, why.lines().next().unwrap_or_default());
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "{missed:?} passed {histories} histories");
}
