//! Runs of workflows, for `/metrics`.

use crate::backend::Backend;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::sync::Arc;

pub(super) struct Runs(pub(super) Arc<Backend>);

impl std::fmt::Debug for Runs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Runs")
    }
}

impl Collector for Runs {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        // Not there, and not zero, as long as it is not known.
        let Some(lag) = self.0.opened_workflows().and_then(|workflows| workflows.index_lag_ms()) else { return Ok(()) };
        let help = "How many milliseconds the index of runs is behind the runs, at most";
        let metric = encoder.encode_descriptor("run_index_lag_ms", help, None, MetricType::Gauge)?;
        ConstGauge::new(lag as f64).encode(metric)
    }
}
