//! What is counted, for `/metrics`.

mod indexes;
mod moves;
mod placements;
mod runs;
mod stores;

use crate::backend::Backend;
use isles_cluster::database::{OTHER, ShardWork, TenantWork};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Who reads the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// A role that sees all tenants.
    Everything,
    /// Anybody else: names of tenants, and how much each of them does, are nobody's business (I-41).
    WithoutTenants,
}

/// Through which door.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Door {
    Postgres,
    Http,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum Outcome {
    Done,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfDoor {
    door: Door,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfStatement {
    kind: &'static str,
    outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

/// The first two characters of a SQLSTATE: few enough to be a label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfClass {
    class: String,
}

/// Shards are as many as the configuration names.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfShard {
    shard: String,
}

/// What the shards have done is counted where they are asked, and read when somebody looks.
struct Shards(Arc<Backend>);

impl std::fmt::Debug for Shards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shards")
    }
}

impl Collector for Shards {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let work = self.0.shard_work();
        let mut counter = |name: &str, help: &str, unit: Option<&Unit>, value: &dyn Fn(&ShardWork) -> f64| {
            let mut metrics = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
            for (shard, done) in &work {
                let labels = OfShard { shard: shard.to_string() };
                ConstCounter::new(value(done)).encode(metrics.encode_family(&labels)?)?;
            }
            Ok::<(), std::fmt::Error>(())
        };
        counter("shard_statements", "Statements sent to a shard", None, &|done| done.statements as f64)?;
        counter("shard_rows", "Rows that a shard returned or changed", None, &|done| done.rows as f64)?;
        counter("shard_errors", "Requests to a shard that failed", None, &|done| done.errors as f64)?;
        counter("shard", "Time of a shard's requests", Some(&Unit::Seconds), &|done| done.micros as f64 / 1e6)
    }
}

/// Tenants that have a label of their own: enough for those that matter to whoever looks, and few enough to keep.
const TENANTS_MAX: usize = 100;

/// The busiest tenants, the null tenant with the empty name, and the others together.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTenant {
    tenant: String,
}

/// What tenants have done is counted by their sessions, and read when somebody looks.
struct Tenants(Arc<Backend>);

impl std::fmt::Debug for Tenants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tenants")
    }
}

impl Collector for Tenants {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let works = self.0.tenant_work(TENANTS_MAX);
        let shown = works.shown.iter().map(|(name, work)| (name.as_ref().map_or("", |name| name.as_str()), *work));
        let all: Vec<(&str, TenantWork)> = shown.chain([(OTHER, works.other)]).collect();
        let mut counter = |name: &str, help: &str, unit: Option<&Unit>, value: &dyn Fn(&TenantWork) -> f64| {
            let mut metrics = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
            for (tenant, done) in &all {
                let labels = OfTenant { tenant: (*tenant).to_owned() };
                ConstCounter::new(value(done)).encode(metrics.encode_family(&labels)?)?;
            }
            Ok::<(), std::fmt::Error>(())
        };
        counter("tenant_statements", "Statements of a tenant", None, &|done| done.statements as f64)?;
        counter("tenant_errors", "Statements of a tenant that failed", None, &|done| done.errors as f64)?;
        counter("tenant_rows", "Rows that a tenant's statements returned or changed", None, &|done| done.rows as f64)?;
        counter("tenant", "Time of a tenant's statements", Some(&Unit::Seconds), &|done| done.micros as f64 / 1e6)
    }
}

/// Kinds of statements that are told apart. A label must not be what a client can choose freely.
const KINDS: [&str; 18] = [
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
    "COPY",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SET",
    "SHOW",
    "CREATE",
    "ALTER",
    "DROP",
    "EXPLAIN",
    "TRUNCATE",
    "SAVEPOINT",
    "WITH",
    "VALUES",
];

pub(crate) struct Metrics {
    registry: Registry,
    /// What has names that others have given it.
    unprefixed: Registry,
    /// What names tenants, with the prefix and without.
    named: [Registry; 2],
    /// What stands in its place for whoever may not see names of tenants.
    unnamed: Registry,
    connections: Family<OfDoor, Gauge>,
    accepted: Family<OfDoor, Counter>,
    refused: Family<OfClass, Counter>,
    statements: Family<OfStatement, Counter>,
    seconds: Family<OfKind, Histogram>,
    /// The last two once more, in the order of [`KINDS`], others last: every statement looks its own up.
    kinds: [OnceLock<OfOneKind>; KINDS.len() + 1],
    rows: Counter,
    errors: Family<OfClass, Counter>,
    /// None where there is no database.
    moves: Option<moves::Moves>,
    indexes: Option<indexes::Indexes>,
}

/// Of one kind of statements.
struct OfOneKind {
    done: Counter,
    failed: Counter,
    seconds: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        // From 50 µs, less than a point read, to 50 µs · 2^20, which is almost a minute.
        let seconds: Family<OfKind, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(50e-6, 2.0, 21)));
        let mut metrics = Metrics {
            registry: Registry::with_prefix("isles"),
            unprefixed: Registry::default(),
            named: [Registry::with_prefix("isles"), Registry::default()],
            unnamed: Registry::default(),
            connections: Family::default(),
            accepted: Family::default(),
            refused: Family::default(),
            statements: Family::default(),
            seconds,
            kinds: Default::default(),
            rows: Counter::default(),
            errors: Family::default(),
            moves: None,
            indexes: None,
        };
        metrics.register();
        metrics
    }

    /// Shows what the shards, the tenants, the moves and the global indexes of a database do, too.
    pub(crate) fn of(backend: &Arc<Backend>) -> Metrics {
        let mut metrics = Metrics::new();
        metrics.registry.register_collector(Box::new(Shards(Arc::clone(backend))));
        metrics.named[0].register_collector(Box::new(Tenants(Arc::clone(backend))));
        let moves = moves::Moves::new(backend);
        metrics.registry.register_collector(Box::new(moves.clone()));
        metrics.moves = Some(moves);
        let indexes = indexes::Indexes::new(backend);
        metrics.registry.register_collector(Box::new(indexes.clone()));
        metrics.indexes = Some(indexes);
        metrics.registry.register_collector(Box::new(runs::Runs(Arc::clone(backend))));
        metrics.unprefixed.register_collector(Box::new(placements::Placements(Arc::clone(backend))));
        metrics.named[1].register_collector(Box::new(placements::Invalid(Arc::clone(backend), Audience::Everything)));
        metrics
            .unnamed
            .register_collector(Box::new(placements::Invalid(Arc::clone(backend), Audience::WithoutTenants)));
        metrics.unprefixed.register_collector(Box::new(stores::Stores::new(backend)));
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("connections", "Connections that are open", self.connections.clone());
        registry.register("connections_accepted", "Connections that were accepted", self.accepted.clone());
        registry.register(
            "connections_refused",
            "Connections that were refused, by SQLSTATE class",
            self.refused.clone(),
        );
        registry.register("statements", "Statements, by kind and outcome", self.statements.clone());
        registry.register_with_unit("statement", "Time of statements, by kind", Unit::Seconds, self.seconds.clone());
        registry.register("rows_sent", "Rows that were sent to clients", self.rows.clone());
        registry.register("errors", "Errors, by SQLSTATE class", self.errors.clone());
    }

    /// Counts a connection for as long as what it returns lives.
    pub(crate) fn connected(&self, door: Door) -> Connected {
        self.accepted.get_or_create(&OfDoor { door }).inc();
        let gauge = self.connections.get_or_create(&OfDoor { door }).clone();
        gauge.inc();
        Connected(gauge)
    }

    pub(crate) fn refused(&self, sqlstate: &str) {
        self.refused.get_or_create(&class_of(sqlstate)).inc();
    }

    /// Counts a statement by the first word of its tag or its text.
    pub(crate) fn statement(&self, text: &str, outcome: Outcome, took: Duration) {
        let at = kind_of(text);
        let metrics = self.kinds[at].get_or_init(|| self.of_kind(KINDS.get(at).copied().unwrap_or("OTHER")));
        match outcome {
            Outcome::Done => metrics.done.inc(),
            Outcome::Failed => metrics.failed.inc(),
        };
        metrics.seconds.observe(took.as_secs_f64());
    }

    fn of_kind(&self, kind: &'static str) -> OfOneKind {
        let counter = |outcome| self.statements.get_or_create_owned(&OfStatement { kind, outcome });
        OfOneKind {
            done: counter(Outcome::Done),
            failed: counter(Outcome::Failed),
            seconds: self.seconds.get_or_create_owned(&OfKind { kind }),
        }
    }

    pub(crate) fn rows(&self, count: usize) {
        self.rows.inc_by(count as u64);
    }

    pub(crate) fn error(&self, sqlstate: &str) {
        self.errors.get_or_create(&class_of(sqlstate)).inc();
    }

    /// Reads what is not counted here, for [`Metrics::text`].
    pub(crate) async fn look(&self) {
        if let Some(moves) = &self.moves {
            moves.look().await;
        }
        if let Some(indexes) = &self.indexes {
            indexes.look().await;
        }
    }

    /// The text that Prometheus reads.
    pub(crate) fn text(&self, audience: Audience) -> String {
        let more = match audience {
            Audience::Everything => &self.named[..],
            Audience::WithoutTenants => std::slice::from_ref(&self.unnamed),
        };
        let mut text = String::new();
        let mut registries = [&self.registry, &self.unprefixed].into_iter().chain(more);
        let encoded = registries
            .try_for_each(|registry| encode_registry(&mut text, registry))
            .and_then(|()| encode_eof(&mut text));
        match encoded {
            Ok(()) => text,
            Err(_) => String::new(),
        }
    }
}

/// An open connection.
pub(crate) struct Connected(Gauge);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The place of a statement's kind in [`KINDS`], or after them.
fn kind_of(text: &str) -> usize {
    let word = text.trim_start().split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    KINDS.iter().position(|kind| kind.eq_ignore_ascii_case(word)).unwrap_or(KINDS.len())
}

fn class_of(sqlstate: &str) -> OfClass {
    OfClass { class: sqlstate.chars().take(2).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_in_the_text() {
        let metrics = Metrics::new();
        let open = metrics.connected(Door::Postgres);
        metrics.statement("select 1", Outcome::Done, Duration::from_millis(1));
        metrics.statement("frobnicate", Outcome::Failed, Duration::from_millis(1));
        metrics.error("23505");
        let text = metrics.text(Audience::Everything);
        for line in [
            "isles_connections{door=\"Postgres\"} 1",
            "isles_statements_total{kind=\"SELECT\",outcome=\"Done\"} 1",
            "isles_statements_total{kind=\"OTHER\",outcome=\"Failed\"} 1",
            "isles_errors_total{class=\"23\"} 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        drop(open);
        assert!(metrics.text(Audience::Everything).contains("isles_connections{door=\"Postgres\"} 0"));
    }
}
