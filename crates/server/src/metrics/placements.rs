//! Placements, for `/metrics`.
//!
//! `do_shard_config_invalid` has the name by which it is known elsewhere, and rules that alert by it work as they are. It
//! only rises, but it is told as a gauge: the names of counters end in `_total`.

use super::Audience;
use crate::backend::Backend;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) struct Placements(pub(super) Arc<Backend>);

/// How often invalid configurations were met: of each tenant, or of all tenants together.
pub(super) struct Invalid(pub(super) Arc<Backend>, pub(super) Audience);

impl std::fmt::Debug for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Invalid")
    }
}

impl Collector for Invalid {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "How often an invalid placement configuration was met";
        let mut invalid = encoder.encode_descriptor("do_shard_config_invalid", help, None, MetricType::Gauge)?;
        // Tenants and groups are bounded where they are counted.
        let mut counts: BTreeMap<Vec<(&str, String)>, u64> = BTreeMap::new();
        for (tenant, group, times) in self.0.database().placements().invalid_counts() {
            let labels = match self.1 {
                Audience::Everything => vec![("tenantId", tenant.to_string()), ("group", group.to_string())],
                Audience::WithoutTenants => vec![("group", group.to_string())],
            };
            *counts.entry(labels).or_default() += times;
        }
        for (labels, times) in counts {
            ConstGauge::new(times as f64).encode(invalid.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Placements {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Placements")
    }
}

impl Collector for Placements {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let placements = self.0.database().placements();
        let health = placements.health();
        let mut gauge = |name: &str, help: &str, value: f64| {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)
        };
        gauge("isles_placement_tenants", "Tenants with a placement of their own", health.tenants as f64)?;
        gauge("isles_placement_invalid_tenants", "Those whose record is invalid", health.invalid.len() as f64)?;
        let help = "1 if tenants without a placement have the built-in defaults";
        gauge("isles_placement_defaults", help, f64::from(u8::from(health.uses_defaults)))?;
        let help = "1 if the catalog tells of changes of placements";
        gauge("isles_placement_following", help, f64::from(u8::from(health.is_following)))
    }
}
