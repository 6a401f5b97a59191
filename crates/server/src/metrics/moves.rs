//! Moves, for `/metrics`.
//!
//! Plans are records of the catalog, which is asked before somebody looks; what this process did is counted where it
//! was done. Labels are bounded: phases are eight, and only plans that are active have one of their own.

use crate::backend::Backend;
use isles_cluster::moves::moves::{BackfillStatus, Phase, Plan};
use isles_cluster::moves::{MoveWork, PAUSE_BOUNDS_MICROS};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Plans are not read more often than this: whoever may look at metrics need not be known to the database.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPhase {
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPlan {
    plan: String,
}

/// What was seen of the plans last.
#[derive(Debug, Clone, Default)]
struct Seen {
    at: Option<Instant>,
    phases: [i64; Phase::ALL.len()],
    /// Of active plans.
    lags: Vec<(String, u64)>,
    /// Of plans that copy: rows in a second, and how many seconds are left.
    rates: Vec<(String, f64)>,
    etas: Vec<(String, f64)>,
}

impl Seen {
    fn of(plans: &[Plan]) -> Seen {
        let in_phase = |phase: Phase| plans.iter().filter(|plan| plan.phase == phase).count() as i64;
        let active = plans.iter().filter(|plan| plan.is_active());
        let lags = active.filter_map(|plan| Some((plan.id.to_string(), plan.tail.lag?))).collect();
        let copying = || plans.iter().filter(|plan| plan.backfill.status == BackfillStatus::Running);
        let rates = copying().filter_map(|plan| Some((plan.id.to_string(), plan.rows_per_second()?))).collect();
        let etas = copying().filter_map(|plan| Some((plan.id.to_string(), plan.eta_seconds()?))).collect();
        Seen { at: Some(Instant::now()), phases: Phase::ALL.map(in_phase), lags, rates, etas }
    }
}

#[derive(Clone)]
pub(crate) struct Moves {
    backend: Arc<Backend>,
    seen: Arc<Mutex<Seen>>,
}

impl Moves {
    pub(super) fn new(backend: &Arc<Backend>) -> Moves {
        Moves { backend: Arc::clone(backend), seen: Arc::default() }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the plans, unless that was done a moment ago. If they cannot be read, what was seen last stands.
    pub(super) async fn look(&self) {
        if self.seen().at.is_some_and(|at| at.elapsed() < PATIENCE) {
            return;
        }
        if let Ok(plans) = self.backend.database().moves().await {
            *self.seen() = Seen::of(&plans);
        }
    }
}

impl std::fmt::Debug for Moves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Moves")
    }
}

impl Collector for Moves {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (seen, database) = (self.seen().clone(), self.backend.database());
        let mut phases = encoder.encode_descriptor("moves", "Plans of moves, by phase", None, MetricType::Gauge)?;
        for (phase, count) in Phase::ALL.into_iter().zip(seen.phases) {
            ConstGauge::new(count).encode(phases.encode_family(&OfPhase { phase: phase.name() })?)?;
        }
        let help = "Positions of the log that a move is behind";
        let mut lags = encoder.encode_descriptor("move_lag", help, None, MetricType::Gauge)?;
        for (plan, lag) in seen.lags {
            let lag = i64::try_from(lag).unwrap_or(i64::MAX);
            ConstGauge::new(lag).encode(lags.encode_family(&OfPlan { plan })?)?;
        }
        for (name, help, figures) in [
            ("move_rows_per_second", "Rows that a move copies in a second", seen.rates),
            ("move_eta_seconds", "How long the copy of a move will take from here", seen.etas),
        ] {
            let mut gauges = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (plan, figure) in figures {
                ConstGauge::new(figure).encode(gauges.encode_family(&OfPlan { plan })?)?;
            }
        }
        pauses(&mut encoder, &database.move_work())?;
        let held = i64::try_from(database.held_statements()).unwrap_or(i64::MAX);
        let version = i64::try_from(database.current_routing().version().0).unwrap_or(i64::MAX);
        for (name, help, value) in [
            ("held_statements", "Statements that wait for what is being cut over", held),
            ("routing_version", "The version of the routing", version),
        ] {
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(gauge)?;
        }
        Ok(())
    }
}

fn pauses(encoder: &mut DescriptorEncoder<'_>, work: &MoveWork) -> Result<(), std::fmt::Error> {
    let help = "Rows that moves have copied";
    let copied = encoder.encode_descriptor("move_rows_copied", help, None, MetricType::Counter)?;
    ConstCounter::new(work.rows_copied).encode(copied)?;
    let help = "How long writers were held when an owner changed";
    let mut pauses = encoder.encode_descriptor("move_pause", help, Some(&Unit::Seconds), MetricType::Histogram)?;
    let bounds = PAUSE_BOUNDS_MICROS.iter().map(|micros| *micros as f64 / 1e6).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(work.pauses).collect();
    let (sum, count) = (work.pause_micros as f64 / 1e6, work.pauses.iter().sum());
    pauses.encode_histogram::<OfPlan>(sum, count, &buckets, None)
}
