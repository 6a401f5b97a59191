//! Stores, for `/metrics`, under the names of the original deployment. The number of labels is bounded where they are
//! counted.

use crate::backend::Backend;
use isles_stores::{Distribution, Durations, Fallback, Refusals};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfShard {
    do_type: String,
    region: String,
    shard: String,
    le: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfBucket {
    do_type: String,
    region: String,
    shard: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfQuantile {
    do_type: String,
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
        distribution(&mut encoder, &stores.distribution())?;
        fallbacks(&mut encoder, &stores.fallbacks())?;
        refusals(&mut encoder, &stores.refusals())
    }
}

/// Counts of requests by how long they took, as counters of their own: the library makes histograms, and shows none that
/// were counted elsewhere.
fn durations(encoder: &mut DescriptorEncoder<'_>, all: &[Durations]) -> Result<(), std::fmt::Error> {
    let help = "Requests of a store that took at most `le` seconds, by bucket";
    let mut within = encoder.encode_descriptor("do_request_duration_within", help, None, MetricType::Counter)?;
    for one in all {
        for (bound, count) in &one.within {
            let le = (*bound as f64 / 1e6).to_string();
            let (do_type, region, shard) = (one.store.clone(), one.region.clone(), one.shard.clone());
            let labels = OfShard { do_type, region, shard, le };
            ConstCounter::new(*count).encode(within.encode_family(&labels)?)?;
        }
    }
    let labels =
        |one: &Durations| OfBucket { do_type: one.store.clone(), region: one.region.clone(), shard: one.shard.clone() };
    let help = "Seconds that requests of a store took, by bucket";
    let mut sums = encoder.encode_descriptor("do_request_duration_seconds", help, None, MetricType::Counter)?;
    for one in all {
        ConstCounter::new(one.sum_micros as f64 / 1e6).encode(sums.encode_family(&labels(one))?)?;
    }
    let help = "Requests of a store, by bucket";
    let mut counts = encoder.encode_descriptor("do_request_duration_count", help, None, MetricType::Counter)?;
    for one in all {
        ConstCounter::new(one.count).encode(counts.encode_family(&labels(one))?)?;
    }
    Ok(())
}

/// Of the newest generation of each store.
fn distribution(encoder: &mut DescriptorEncoder<'_>, all: &[Distribution]) -> Result<(), std::fmt::Error> {
    let help = "Requests of a bucket: of the median one, and of the busiest in a hundred";
    let mut each = encoder.encode_descriptor("do_shard_distribution", help, None, MetricType::Gauge)?;
    for (at, one) in all.iter().enumerate() {
        let is_newest = all.get(at + 1).is_none_or(|next| next.store != one.store);
        let (true, Some(store)) = (is_newest, &one.store) else { continue };
        for (quantile, count) in [("0.50", one.p50), ("0.99", one.p99)] {
            let labels = OfQuantile { do_type: store.clone(), quantile };
            ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX)).encode(each.encode_family(&labels)?)?;
        }
    }
    Ok(())
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
