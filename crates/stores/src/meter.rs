//! What is counted of operations on records, under a bounded number of names.

use super::Stores;
use super::place::Spot;
use super::quota::RecordQuota;
use isles_kernel::id::Generation;
use isles_kernel::names::RegionName;
use isles_kernel::placement::{KNOWN_REGIONS, TypeName};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Series of durations. Beyond it, those of further buckets are counted under one name.
const MAX_SERIES: usize = 2_048;
/// Pairs of generations that are counted, of all stores.
const MAX_FALLBACKS: usize = 1_024;
/// Stores and quotas whose refusals are counted: all that there can be at once, and some that are gone.
const MAX_REFUSALS: usize = 1_024;
/// Stores, generations and bucket spaces whose requests are counted by bucket. Tenants name the spaces of their
/// placements, so there is no end to them; those that come later are not counted.
const MAX_SPREADS: usize = 4_096;
/// What stands for the rest.
pub(super) const OTHER: &str = "other";
/// Upper bounds of durations, in microseconds.
pub(super) const BOUNDS: [u64; 10] = [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000];

/// How long operations took on one bucket.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Durations {
    pub store: String,
    pub region: String,
    /// A bucket, as the seed's metrics call a shard.
    pub shard: String,
    pub count: u64,
    pub sum_micros: u64,
    /// How many took at most so many microseconds.
    pub within: Vec<(u64, u64)>,
}

/// Reads of a previous generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    pub store: String,
    pub from: Generation,
    pub to: Generation,
    pub count: u64,
}

/// Records that a quota had no place for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusals {
    pub store: String,
    pub quota: RecordQuota,
    pub count: u64,
}

/// How evenly requests are spread over the buckets of a generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// None for all stores of a group together, where several share its buckets.
    pub store: Option<String>,
    /// None for a singleton.
    pub group: Option<String>,
    pub generation: Generation,
    pub buckets: u32,
    pub requests: u64,
    pub p50: u64,
    pub p99: u64,
    /// The bucket with the most requests.
    pub busiest: u32,
}

impl Distribution {
    /// p99 by p50; where most buckets are idle, as if each had one request.
    pub fn ratio(&self) -> f64 {
        self.p99 as f64 / self.p50.max(1) as f64
    }

    fn of(counts: &[u64], store: Option<String>, group: Option<String>, generation: Generation) -> Distribution {
        let busiest = (0..counts.len()).rev().max_by_key(|at| counts[*at]).unwrap_or_default();
        let mut sorted = counts.to_vec();
        sorted.sort_unstable();
        Distribution {
            store,
            group,
            generation,
            buckets: sorted.len() as u32,
            requests: sorted.iter().sum(),
            p50: quantile(&sorted, 50),
            p99: quantile(&sorted, 99),
            busiest: busiest as u32,
        }
    }
}

#[derive(Default)]
struct Tally {
    count: u64,
    sum_micros: u64,
    within: [u64; BOUNDS.len()],
}

#[derive(Default)]
struct Spread {
    group: Option<String>,
    counts: Vec<u64>,
}

impl Spread {
    fn add(&mut self, counts: &[u64]) {
        self.counts.resize(self.counts.len().max(counts.len()), 0);
        self.counts.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
}

#[derive(Default)]
pub(super) struct Meter {
    durations: Mutex<BTreeMap<(TypeName, String, String), Tally>>,
    /// Requests of each bucket, by store, generation and bucket space.
    spread: Mutex<BTreeMap<(TypeName, Generation, String), Spread>>,
    fallbacks: Mutex<BTreeMap<(TypeName, Generation, Generation), u64>>,
    refusals: Mutex<BTreeMap<(TypeName, RecordQuota), u64>>,
    /// New records whose place was not asked for by its region, since the placement does not have it.
    unserved: Mutex<BTreeMap<(TypeName, &'static str), u64>>,
    pub(super) sweeps: Sweeps,
}

/// What sweeps have done since the database was opened.
#[derive(Debug, Default)]
pub(super) struct Sweeps {
    pub(super) removed: AtomicU64,
    pub(super) failed: AtomicU64,
    /// Records that the last sweep has found expired and not removed.
    pub(super) backlog: AtomicU64,
}

/// The same for those who look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SweepCounts {
    pub removed: u64,
    pub failed: u64,
    pub backlog: u64,
}

/// New records that went elsewhere than where their client is, since the placement does not have its region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unserved {
    pub store: String,
    /// One that is known, or `other`.
    pub region: &'static str,
    pub count: u64,
}

impl Meter {
    pub(super) fn note(&self, store: &TypeName, spot: &Spot, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        {
            let mut durations = self.durations.lock().unwrap_or_else(PoisonError::into_inner);
            let mut name = (store.clone(), spot.region.clone(), spot.bucket.to_string());
            if durations.len() >= MAX_SERIES && !durations.contains_key(&name) {
                name.2 = OTHER.to_owned();
            }
            let tally = durations.entry(name).or_default();
            tally.count += 1;
            tally.sum_micros = tally.sum_micros.saturating_add(micros);
            if let Some(at) = BOUNDS.iter().position(|bound| micros <= *bound) {
                tally.within[at] += 1;
            }
        }
        let mut spread = self.spread.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (store.clone(), spot.generation, spot.space.clone());
        if spread.len() >= MAX_SPREADS && !spread.contains_key(&name) {
            return;
        }
        let one = spread.entry(name).or_default();
        one.group.clone_from(&spot.group);
        one.counts.resize(one.counts.len().max(spot.buckets as usize), 0);
        if let Some(count) = one.counts.get_mut(spot.bucket as usize) {
            *count += 1;
        }
    }

    pub(super) fn fallback(&self, store: &TypeName, from: Generation, to: Generation) {
        let mut fallbacks = self.fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (store.clone(), from, to);
        if fallbacks.len() < MAX_FALLBACKS || fallbacks.contains_key(&name) {
            *fallbacks.entry(name).or_default() += 1;
        }
    }

    pub(super) fn unserved(&self, store: &TypeName, region: &RegionName) {
        let known = KNOWN_REGIONS.into_iter().find(|known| *known == region.as_str()).unwrap_or(OTHER);
        let mut unserved = self.unserved.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (store.clone(), known);
        if unserved.len() < MAX_REFUSALS || unserved.contains_key(&name) {
            *unserved.entry(name).or_default() += 1;
        }
    }

    pub(super) fn refused(&self, store: &TypeName, quota: RecordQuota) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (store.clone(), quota);
        if refusals.len() < MAX_REFUSALS || refusals.contains_key(&name) {
            *refusals.entry(name).or_default() += 1;
        }
    }
}

fn quantile(sorted: &[u64], hundredths: usize) -> u64 {
    let at = (sorted.len() * hundredths).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or_default()
}

impl Stores {
    pub fn durations(&self) -> Vec<Durations> {
        let durations = self.shared.meter.durations.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = |((store, region, shard), tally): (&(TypeName, String, String), &Tally)| {
            let mut below = 0;
            let within = BOUNDS.iter().zip(tally.within).map(|(bound, count)| {
                below += count;
                (*bound, below)
            });
            Durations {
                store: store.to_string(),
                region: region.clone(),
                shard: shard.clone(),
                count: tally.count,
                sum_micros: tally.sum_micros,
                within: within.collect(),
            }
        };
        durations.iter().map(shown).collect()
    }

    pub fn fallbacks(&self) -> Vec<Fallback> {
        let fallbacks = self.shared.meter.fallbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = |((store, from, to), count): (&(TypeName, Generation, Generation), &u64)| Fallback {
            store: store.to_string(),
            from: *from,
            to: *to,
            count: *count,
        };
        fallbacks.iter().map(shown).collect()
    }

    /// How often a quota had no place for a record.
    pub fn refusals(&self) -> Vec<Refusals> {
        let refusals = self.shared.meter.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = |((store, quota), count): (&(TypeName, RecordQuota), &u64)| Refusals {
            store: store.to_string(),
            quota: *quota,
            count: *count,
        };
        refusals.iter().map(shown).collect()
    }

    /// How often a client was in a region that its placement does not have.
    pub fn unserved(&self) -> Vec<Unserved> {
        let unserved = self.shared.meter.unserved.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = |((store, region), count): (&(TypeName, &'static str), &u64)| Unserved {
            store: store.to_string(),
            region,
            count: *count,
        };
        unserved.iter().map(shown).collect()
    }

    /// What sweeps have done.
    pub fn sweeps(&self) -> SweepCounts {
        let Sweeps { removed, failed, backlog } = &self.shared.meter.sweeps;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SweepCounts { removed: of(removed), failed: of(failed), backlog: of(backlog) }
    }

    /// How evenly requests are spread, since the database was opened: of each store, and then of each group whose buckets
    /// several stores share. Generations of a store are in order.
    pub fn distribution(&self) -> Vec<Distribution> {
        let spread = self.shared.meter.spread.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut all, mut shared) = (Vec::new(), BTreeMap::<(&str, Generation), (usize, Spread)>::new());
        for ((store, generation, space), one) in &*spread {
            all.push(Distribution::of(&one.counts, Some(store.to_string()), one.group.clone(), *generation));
            let (stores, sum) = shared.entry((space, *generation)).or_default();
            *stores += 1;
            sum.group.clone_from(&one.group);
            sum.add(&one.counts);
        }
        let several = shared.into_iter().filter(|(_, (stores, _))| *stores > 1);
        all.extend(
            several.map(|((_, generation), (_, sum))| Distribution::of(&sum.counts, None, sum.group, generation)),
        );
        all
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_count_idle_buckets_too() {
        assert_eq!((quantile(&[0, 0, 0, 100], 50), quantile(&[0, 0, 0, 100], 99)), (0, 100));
        assert_eq!((quantile(&[7], 50), quantile(&[7], 99), quantile(&[], 50)), (7, 7, 0));
    }

    #[test]
    fn the_busiest_bucket_is_named() {
        let of = |counts: &[u64]| Distribution::of(counts, None, None, Generation::FIRST);
        let hot = of(&[1, 2, 200, 1]);
        assert_eq!((hot.busiest, hot.p50, hot.p99, hot.requests), (2, 1, 200, 204));
        assert!((hot.ratio() - 200.0).abs() < 1e-9);
        assert_eq!((of(&[3, 3]).busiest, of(&[]).busiest, of(&[]).buckets), (0, 0, 0));
        assert!((of(&[0, 0, 0, 7]).ratio() - 7.0).abs() < 1e-9);
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let meter = Meter::default();
        let name = TypeName::new("session").unwrap();
        for bucket in 0..MAX_SERIES as u32 + 50 {
            let spot = Spot {
                table: String::new(),
                instance: String::new(),
                key: String::new(),
                generation: Generation::FIRST,
                region: "apac".into(),
                group: None,
                space: String::new(),
                bucket,
                buckets: 4_096,
            };
            meter.note(&name, &spot, Duration::from_micros(1));
        }
        let durations = meter.durations.lock().unwrap();
        assert_eq!(durations.len(), MAX_SERIES + 1);
        assert_eq!(durations[&(name, "apac".to_owned(), OTHER.to_owned())].count, 50);
    }
}
