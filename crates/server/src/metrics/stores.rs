//! Stores, for `/metrics`, under the names of the original deployment. The number of labels is bounded where they are
//! counted.

use crate::backend::Backend;
use isles_stores::{Distribution, Durations, Fallback, Refusals, SweepCounts, Unserved};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Groups of stores whose distribution is told. Tenants name the groups of their placements, so there is no end to them.
const MAX_SPACES: usize = 1_024;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfBucket {
    do_type: String,
    region: String,
    shard: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRegion {
    do_type: String,
    region: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfQuantile {
    do_type: String,
    group: String,
    quantile: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfGenerations {
    do_type: String,
    from_gen: String,
    to_gen: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfQuota {
    do_type: String,
    quota: &'static str,
}

pub(crate) struct Stores(Arc<Backend>);

impl Stores {
    pub(super) fn new(backend: &Arc<Backend>) -> Stores {
        Stores(Arc::clone(backend))
    }
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Stores")
    }
}

impl Collector for Stores {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stores = self.0.stores();
        durations(&mut encoder, &stores.durations())?;
        distribution(&mut encoder, stores.distribution())?;
        fallbacks(&mut encoder, &stores.fallbacks())?;
        refusals(&mut encoder, &stores.refusals())?;
        unserved(&mut encoder, &stores.unserved())?;
        sweeps(&mut encoder, stores.sweeps())?;
        let help = "Regions whose records may be on any shard, since their tables are older than the regions of shards";
        let unbound = encoder.encode_descriptor("isles_store_unbound_regions", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::try_from(stores.unbound().len()).unwrap_or(i64::MAX)).encode(unbound)
    }
}

/// How long requests took, by bucket. What was slower than the last bound is in the last bucket, `+Inf`.
fn durations(encoder: &mut DescriptorEncoder<'_>, all: &[Durations]) -> Result<(), std::fmt::Error> {
    let help = "Seconds that requests of a store took, by bucket";
    let mut each = encoder.encode_descriptor("do_request_duration", help, None, MetricType::Histogram)?;
    for one in all {
        let (do_type, region, shard) = (one.store.clone(), one.region.clone(), one.shard.clone());
        let labels = OfBucket { do_type, region, shard };
        // The library adds them up.
        let mut below = 0;
        let within = one.within.iter().map(|(bound, count)| {
            let own = count - std::mem::replace(&mut below, *count);
            (*bound as f64 / 1e6, own)
        });
        let mut buckets: Vec<(f64, u64)> = within.collect();
        buckets.push((f64::INFINITY, one.count - below));
        let sum = one.sum_micros as f64 / 1e6;
        each.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, one.count, &buckets, None)?;
    }
    Ok(())
}

/// Of the newest generation in each bucket space of each store: those of tenants who have spaces of their own as well,
/// the most asked ones.
fn distribution(encoder: &mut DescriptorEncoder<'_>, all: Vec<Distribution>) -> Result<(), std::fmt::Error> {
    let help = "Requests of a bucket: of the median one, and of the busiest in a hundred";
    let mut each = encoder.encode_descriptor("do_shard_distribution", help, None, MetricType::Gauge)?;
    let mut newest: BTreeMap<(String, String), Distribution> = BTreeMap::new();
    for one in all {
        let Some(store) = one.store.clone() else { continue };
        let name = (store, one.group.clone().unwrap_or_default());
        let is_newer = |known: &Distribution| (known.generation, known.requests) <= (one.generation, one.requests);
        if newest.get(&name).is_none_or(is_newer) {
            newest.insert(name, one);
        }
    }
    let mut shown: Vec<((String, String), Distribution)> = newest.into_iter().collect();
    shown.sort_by_key(|(_, one)| std::cmp::Reverse(one.requests));
    shown.truncate(MAX_SPACES);
    for ((do_type, group), one) in shown {
        for (quantile, count) in [("0.50", one.p50), ("0.99", one.p99)] {
            let labels = OfQuantile { do_type: do_type.clone(), group: group.clone(), quantile };
            ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX)).encode(each.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn unserved(encoder: &mut DescriptorEncoder<'_>, all: &[Unserved]) -> Result<(), std::fmt::Error> {
    let help = "New records whose client is in a region that its placement does not have";
    let mut each = encoder.encode_descriptor("isles_store_region_unserved", help, None, MetricType::Counter)?;
    for one in all {
        let labels = OfRegion { do_type: one.store.clone(), region: one.region };
        ConstCounter::new(one.count).encode(each.encode_family(&labels)?)?;
    }
    Ok(())
}

fn sweeps(encoder: &mut DescriptorEncoder<'_>, counts: SweepCounts) -> Result<(), std::fmt::Error> {
    let help = "Records that had expired and were removed";
    let removed = encoder.encode_descriptor("isles_store_swept", help, None, MetricType::Counter)?;
    ConstCounter::new(counts.removed).encode(removed)?;
    let help = "Tables and requests that a sweep has failed at";
    let failed = encoder.encode_descriptor("isles_store_sweep_failures", help, None, MetricType::Counter)?;
    ConstCounter::new(counts.failed).encode(failed)?;
    let help = "Expired records that the last sweep has found and not removed";
    let backlog = encoder.encode_descriptor("isles_store_sweep_backlog", help, None, MetricType::Gauge)?;
    ConstGauge::new(i64::try_from(counts.backlog).unwrap_or(i64::MAX)).encode(backlog)
}

fn fallbacks(encoder: &mut DescriptorEncoder<'_>, all: &[Fallback]) -> Result<(), std::fmt::Error> {
    let help = "Reads of a previous generation";
    let mut each = encoder.encode_descriptor("do_generation_fallback", help, None, MetricType::Counter)?;
    for one in all {
        let labels = OfGenerations {
            do_type: one.store.clone(),
            from_gen: one.from.get().to_string(),
            to_gen: one.to.get().to_string(),
        };
        ConstCounter::new(one.count).encode(each.encode_family(&labels)?)?;
    }
    Ok(())
}

fn refusals(encoder: &mut DescriptorEncoder<'_>, all: &[Refusals]) -> Result<(), std::fmt::Error> {
    let help = "Records that a quota had no place for";
    let mut each = encoder.encode_descriptor("do_quota_refused", help, None, MetricType::Counter)?;
    for one in all {
        let labels = OfQuota { do_type: one.store.clone(), quota: one.quota.name() };
        ConstCounter::new(one.count).encode(each.encode_family(&labels)?)?;
    }
    Ok(())
}
