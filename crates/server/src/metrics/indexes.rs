//! Global indexes, for `/metrics`.
//!
//! What an index is, is asked before somebody looks; what this process did is counted where it was done. Labels are
//! bounded: states are four, and the first [`INDEXES_MAX`] indexes have one of their own.

use crate::backend::Backend;
use isles_cluster::indexes::{IndexInfo, IndexWork, PAGE_BOUNDS, State};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Indexes are not read more often than this: whoever may look at metrics need not be known to the database.
const PATIENCE: Duration = Duration::from_secs(1);

/// Indexes that have labels of their own; the others are counted by state only.
const INDEXES_MAX: usize = 100;

const STATES: [State; 4] = [State::Building, State::Ready, State::Failed, State::Rebuilding];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfIndex {
    index: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfIndexState {
    index: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfIndexShard {
    index: String,
    shard: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfOutcome {
    outcome: &'static str,
}

/// What was seen of the indexes last.
#[derive(Debug, Clone, Default)]
struct Seen {
    at: Option<Instant>,
    infos: Vec<IndexInfo>,
}

#[derive(Clone)]
pub(crate) struct Indexes {
    backend: Arc<Backend>,
    seen: Arc<Mutex<Seen>>,
}

impl Indexes {
    pub(super) fn new(backend: &Arc<Backend>) -> Indexes {
        Indexes { backend: Arc::clone(backend), seen: Arc::default() }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the indexes, unless that was done a moment ago. If they cannot be read, what was seen last stands.
    pub(super) async fn look(&self) {
        if self.seen().at.is_some_and(|at| at.elapsed() < PATIENCE) {
            return;
        }
        if let Ok(infos) = self.backend.database().global_indexes().await {
            *self.seen() = Seen { at: Some(Instant::now()), infos };
        }
    }
}

impl std::fmt::Debug for Indexes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Indexes")
    }
}

fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

impl Collector for Indexes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let (infos, work) = (self.seen().infos.clone(), self.backend.database().index_work());
        states(&mut encoder, &infos)?;
        entries(&mut encoder, &infos)?;
        lag(&mut encoder, &infos, &work)?;
        counters(&mut encoder, &work)?;
        pages(&mut encoder, &work)?;
        jobs(&mut encoder, &work)
    }
}

/// How many are in which state, and of the first ones which.
fn states(encoder: &mut DescriptorEncoder<'_>, infos: &[IndexInfo]) -> Result<(), std::fmt::Error> {
    let mut all = encoder.encode_descriptor("indexes", "Global indexes, by state", None, MetricType::Gauge)?;
    for state in STATES {
        let count = infos.iter().filter(|info| info.state == state).count() as i64;
        ConstGauge::new(count).encode(all.encode_family(&OfState { state: state.name() })?)?;
    }
    let help = "The state of an index is the one that is 1";
    let mut each = encoder.encode_descriptor("index_state", help, None, MetricType::Gauge)?;
    for info in infos.iter().take(INDEXES_MAX) {
        for state in STATES {
            let labels = OfIndexState { index: info.name.clone(), state: state.name() };
            ConstGauge::new(i64::from(info.state == state)).encode(each.encode_family(&labels)?)?;
        }
    }
    let help = "Entries that were wrong when an index was last compared with the rows";
    let mut wrong = encoder.encode_descriptor("index_differences", help, None, MetricType::Gauge)?;
    for info in infos.iter().take(INDEXES_MAX) {
        if let Some(differences) = info.differences {
            let labels = OfIndex { index: info.name.clone() };
            ConstGauge::new(number(differences)).encode(wrong.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// How many entries there are, and how far they have come.
fn entries(encoder: &mut DescriptorEncoder<'_>, infos: &[IndexInfo]) -> Result<(), std::fmt::Error> {
    let help = "Entries of an index when it was last compared with the rows";
    let mut entries = encoder.encode_descriptor("index_entries", help, None, MetricType::Gauge)?;
    for info in infos.iter().take(INDEXES_MAX) {
        if let Some(count) = info.entries_then {
            let labels = OfIndex { index: info.name.clone() };
            ConstGauge::new(number(count)).encode(entries.encode_family(&labels)?)?;
        }
    }
    let help = "How far the entries of an index have come with a shard's log";
    let mut applied = encoder.encode_descriptor("index_applied", help, None, MetricType::Gauge)?;
    for info in infos.iter().take(INDEXES_MAX) {
        for (shard, seq) in &info.applied {
            let labels = OfIndexShard { index: info.name.clone(), shard: shard.to_string() };
            ConstGauge::new(number(seq.0)).encode(applied.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn lag(encoder: &mut DescriptorEncoder<'_>, infos: &[IndexInfo], work: &IndexWork) -> Result<(), std::fmt::Error> {
    // One may be further behind than others, as when it has been built.
    let most = |of: fn(&IndexInfo) -> u64| infos.iter().map(of).max().unwrap_or(0);
    for (name, help, value) in [
        ("index_lag", "Changes that are in the logs and not in the entries, at most", most(|info| info.lag)),
        ("index_lag_ms", "Since when the entries have not been up to date, in milliseconds", most(|info| info.lag_ms)),
        ("index_pending", "Additions that are noted and not in the entries yet", work.pending as u64),
        ("index_jobs_open", "Jobs that wait or run", work.jobs_queued as u64),
    ] {
        let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(number(value)).encode(gauge)?;
    }
    Ok(())
}

fn counters(encoder: &mut DescriptorEncoder<'_>, work: &IndexWork) -> Result<(), std::fmt::Error> {
    for (name, help, value) in [
        ("index_lookups", "Statements that were led by a global index", work.lookups),
        ("index_fallbacks", "Statements that asked all shards since an index could not lead them then", work.fallbacks),
        ("index_entries_read", "Entries that looks have read", work.read),
        ("index_delays", "Writes that waited since entries were too far behind", work.delays),
        ("index_delay_ms", "Milliseconds that writes have waited for entries", work.delayed_ms),
        ("index_changes", "Changes that were brought to the entries", work.changes),
        ("index_pages", "Pages of change logs that were applied", work.pages),
        ("index_entries_changed", "Entries that were changed", work.entries),
    ] {
        let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(counter)?;
    }
    Ok(())
}

/// How many changes are applied at once.
fn pages(encoder: &mut DescriptorEncoder<'_>, work: &IndexWork) -> Result<(), std::fmt::Error> {
    let help = "Changes that were applied at once";
    let mut pages = encoder.encode_descriptor("index_page_changes", help, None, MetricType::Histogram)?;
    let bounds = PAGE_BOUNDS.iter().map(|bound| *bound as f64).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(work.page_sizes).collect();
    pages.encode_histogram::<OfIndex>(work.changes as f64, work.page_sizes.iter().sum(), &buckets, None)
}

fn jobs(encoder: &mut DescriptorEncoder<'_>, work: &IndexWork) -> Result<(), std::fmt::Error> {
    let mut jobs = encoder.encode_descriptor("index_jobs", "Index jobs, by outcome", None, MetricType::Counter)?;
    for (outcome, count) in [("done", work.jobs_done), ("failed", work.jobs_failed)] {
        ConstCounter::new(count).encode(jobs.encode_family(&OfOutcome { outcome })?)?;
    }
    Ok(())
}
