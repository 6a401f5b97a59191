//! What is counted of operations on records, under a bounded number of names.

use super::Stores;
use super::place::Spot;
use isles_kernel::id::Generation;
use isles_kernel::placement::TypeName;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Series of durations. Beyond it, those of further buckets are counted under one name.
const MAX_SERIES: usize = 2_048;
/// Pairs of generations that are counted, of all stores.
const MAX_FALLBACKS: usize = 1_024;
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

/// How evenly the requests of a store are spread over the buckets of its generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    pub store: String,
    pub generation: Generation,
    pub buckets: u32,
    pub requests: u64,
    pub p50: u64,
    pub p99: u64,
}

impl Distribution {
    /// p99 by p50; a store that most buckets are idle of counts as if each had one request.
    pub fn ratio(&self) -> f64 {
        self.p99 as f64 / self.p50.max(1) as f64
    }
}

#[derive(Default)]
struct Tally {
    count: u64,
    sum_micros: u64,
    within: [u64; BOUNDS.len()],
}

#[derive(Default)]
pub(super) struct Meter {
    durations: Mutex<BTreeMap<(TypeName, String, String), Tally>>,
    /// Requests of each bucket, by store and generation.
    spread: Mutex<BTreeMap<(TypeName, Generation), Vec<u64>>>,
    fallbacks: Mutex<BTreeMap<(TypeName, Generation, Generation), u64>>,
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
        let counts = spread.entry((store.clone(), spot.generation)).or_default();
        counts.resize(counts.len().max(spot.buckets as usize), 0);
        if let Some(count) = counts.get_mut(spot.bucket as usize) {
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

    /// How evenly requests are spread, since the database was opened.
    pub fn distribution(&self) -> Vec<Distribution> {
        let spread = self.shared.meter.spread.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = |((store, generation), counts): (&(TypeName, Generation), &Vec<u64>)| {
            let mut sorted = counts.clone();
            sorted.sort_unstable();
            Distribution {
                store: store.to_string(),
                generation: *generation,
                buckets: sorted.len() as u32,
                requests: sorted.iter().sum(),
                p50: quantile(&sorted, 50),
                p99: quantile(&sorted, 99),
            }
        };
        spread.iter().map(shown).collect()
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
