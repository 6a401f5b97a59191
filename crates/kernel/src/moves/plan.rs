//! A plan: what moves, how far it is, and what has been seen on the way.
//!
//! Its JSON form is the record in the catalog and what operators read, with the names of the runbook: `phase`,
//! `totalRowsCopied`, `routingVersionCutover`. Times are milliseconds since 1970, for people; nothing is ordered by
//! them.

use super::step::MoveError;
use super::units::{MAX_SPANS, MAX_TENANTS, Units};
use crate::names::{PlanId, RoutingVersion, Seq, ShardId};
use crate::routing::RoutingPolicy;
use crate::schema::{Schema, Table, TableKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The longest description of a plan.
pub const MAX_DESCRIPTION_CHARS: usize = 1_000;

/// Differing rows that a plan names; there may be more.
pub const MAX_DIFFERENCES: usize = 100;

/// How long clients wait at most when the routing changes, if not said; and the most that can be said.
const PAUSE_LIMIT_MS: u64 = 1_000;
const MAX_PAUSE_LIMIT_MS: u64 = 60_000;

/// What operators see of a plan's progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Planning,
    DualWrite,
    Backfill,
    Tailing,
    CutoverPending,
    Completed,
    RolledBack,
    Failed,
}

impl Phase {
    pub const ALL: [Phase; 8] = [
        Phase::Planning,
        Phase::DualWrite,
        Phase::Backfill,
        Phase::Tailing,
        Phase::CutoverPending,
        Phase::Completed,
        Phase::RolledBack,
        Phase::Failed,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Planning => "planning",
            Phase::DualWrite => "dual_write",
            Phase::Backfill => "backfill",
            Phase::Tailing => "tailing",
            Phase::CutoverPending => "cutover_pending",
            Phase::Completed => "completed",
            Phase::RolledBack => "rolled_back",
            Phase::Failed => "failed",
        }
    }
}

/// Where exactly a plan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    Planned,
    /// The target is being made ready, and capture on the source begins.
    Preparing,
    /// Changes are mirrored.
    Capturing,
    /// Changes are mirrored, and rows are copied.
    Copying,
    /// All rows are copied; the mirror catches up.
    Tailing,
    /// The target follows closely.
    Ready,
    /// Both sides are compared.
    Verifying,
    /// Who gives is fenced, and the tail is drained.
    Switching,
    /// A switch was given up; the fence is being lifted.
    Unfencing,
    /// The routing has changed; the new owner is about to serve.
    Settling,
    /// The new owner serves, and its changes are mirrored back.
    Guarding,
    /// The loser's rows are being removed.
    Cleaning,
    Done,
}

/// Which way a switch goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the source to the target.
    Forward,
    /// A rollback after the cutover.
    Back,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackfillStatus {
    #[default]
    Pending,
    Running,
    Completed,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TailStatus {
    #[default]
    Pending,
    Replaying,
    CaughtUp,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerificationStatus {
    #[default]
    Pending,
    Running,
    Passed,
    Failed,
    Waived,
}

/// How far the copy of one table is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TableCopy {
    pub rows: u64,
    pub done: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Backfill {
    pub status: BackfillStatus,
    /// About how many rows there are to copy: those that stood when it was counted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rows_expected: Option<u64>,
    pub total_rows_copied: u64,
    pub tables: BTreeMap<String, TableCopy>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub started_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub completed_at: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tail {
    pub status: TailStatus,
    /// The position in the source's log that the target has.
    pub last_event_id: Seq,
    /// How many positions the log is ahead of it; unknown until it has been seen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lag: Option<u64>,
    pub events_applied: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_event_ts: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub started_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub completed_at: Option<u64>,
}

/// A row that is not the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    pub table: String,
    /// As people read it.
    pub key: String,
    /// `missing`, `extra` or `different`, on the target.
    pub what: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verification {
    pub status: VerificationStatus,
    /// Whether rows that differ are made equal.
    pub repair: bool,
    pub rows_compared: u64,
    /// How many rows differ.
    pub differing: u64,
    /// The first of them.
    pub differences: Vec<Difference>,
    /// Rows that were made equal again on request.
    pub repaired: u64,
    /// How far it is while it runs, as its driver writes it: whoever takes over goes on there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mark: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub completed_at: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cutover {
    pub attempts: u64,
    /// When the routing changed last.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub switched_at: Option<u64>,
    /// How long writers were held by the last switch, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pause_micros: Option<u64>,
    /// Why the last attempt was given up.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub aborted: Option<String>,
}

/// How a plan is carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Options {
    /// Go through all phases without being told.
    pub auto: bool,
    /// And remove the source's rows at the end.
    pub complete: bool,
    /// Cut over without comparing.
    pub waive_verification: bool,
    /// Move also names that no tenant has yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unknown_tenants: bool,
    /// A switch that would hold writers for longer is given up.
    pub pause_limit_ms: u64,
}

impl Default for Options {
    fn default() -> Options {
        let pause_limit_ms = PAUSE_LIMIT_MS;
        Options { auto: false, complete: false, waive_verification: false, unknown_tenants: false, pause_limit_ms }
    }
}

/// How a table's rows are found, as it was when the plan was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TablePolicy {
    pub pk: Vec<String>,
    pub shard_by: Vec<String>,
}

/// What an operator asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub source: ShardId,
    pub target: ShardId,
    pub units: Units,
    pub description: Option<String>,
    pub options: Options,
}

/// A move, whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub id: PlanId,
    pub source_shard: ShardId,
    pub target_shard: ShardId,
    #[serde(flatten)]
    pub units: Units,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub description: Option<String>,
    pub options: Options,
    pub table_policies: BTreeMap<String, TablePolicy>,
    pub created_at: u64,
    pub updated_at: u64,
    pub phase: Phase,
    pub stage: Stage,
    pub direction: Direction,
    /// The mirror back has been lost: there is no way back any more.
    pub no_way_back: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dual_write_started_at: Option<u64>,
    pub backfill: Backfill,
    pub tail: Tail,
    pub verification: Verification,
    pub cutover: Cutover,
    pub routing_version_at_start: RoutingVersion,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub routing_version_cutover: Option<RoutingVersion>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rollback_version: Option<RoutingVersion>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error_message: Option<String>,
}

impl Plan {
    /// A plan for a request that makes sense with this routing and these tables.
    pub fn new(
        id: PlanId,
        request: Request,
        policy: &RoutingPolicy,
        schema: &Schema,
        now: u64,
    ) -> Result<Plan, MoveError> {
        request.check(policy)?;
        let table_policies = tables_of(&request.units, schema, policy);
        Ok(Plan {
            id,
            source_shard: request.source,
            target_shard: request.target,
            table_policies,
            units: request.units,
            description: request.description,
            options: request.options,
            created_at: now,
            updated_at: now,
            phase: Phase::Planning,
            stage: Stage::Planned,
            direction: Direction::Forward,
            no_way_back: false,
            dual_write_started_at: None,
            backfill: Backfill::default(),
            tail: Tail::default(),
            verification: Verification::default(),
            cutover: Cutover::default(),
            routing_version_at_start: policy.version(),
            routing_version_cutover: None,
            rollback_version: None,
            error_message: None,
        })
    }

    /// Whether there is still something to do or to wait for.
    pub fn is_active(&self) -> bool {
        self.stage != Stage::Done
    }

    /// Rows copied in a second, from the copy's beginning to its end or to the last news of it.
    pub fn rows_per_second(&self) -> Option<f64> {
        let began = self.backfill.started_at?;
        let millis = self.backfill.completed_at.unwrap_or(self.updated_at).saturating_sub(began);
        (millis > 0).then(|| self.backfill.total_rows_copied as f64 * 1_000.0 / millis as f64)
    }

    /// How long the copy will take from here, while it runs and the number of rows is known.
    pub fn eta_seconds(&self) -> Option<f64> {
        let left = self.backfill.rows_expected?.saturating_sub(self.backfill.total_rows_copied);
        match self.backfill.status {
            BackfillStatus::Running => self.rows_per_second().filter(|rate| *rate > 0.0).map(|rate| left as f64 / rate),
            _ => None,
        }
    }

    /// Whether rows are mirrored from one shard to the other, so that tables must keep their shape.
    pub fn is_mirroring(&self) -> bool {
        !matches!(self.stage, Stage::Planned | Stage::Cleaning | Stage::Done)
    }

    /// Who serves until the next switch, and from whom rows are mirrored.
    pub fn giver(&self) -> &ShardId {
        if self.flows_forward() { &self.source_shard } else { &self.target_shard }
    }

    /// To whom rows are mirrored.
    pub fn taker(&self) -> &ShardId {
        if self.flows_forward() { &self.target_shard } else { &self.source_shard }
    }

    /// Whether rows flow from the source to the target: until the target serves.
    pub fn flows_forward(&self) -> bool {
        self.direction == Direction::Forward && self.stage != Stage::Guarding
    }

    /// The shard whose rows are removed in the end.
    pub fn loser(&self) -> &ShardId {
        if self.phase == Phase::Completed { &self.source_shard } else { &self.target_shard }
    }
}

impl Request {
    /// Refuses what no plan is made for. That shards exist and can be reached is for the caller to see.
    pub fn check(&self, policy: &RoutingPolicy) -> Result<(), MoveError> {
        if self.units.is_empty() {
            return Err(MoveError::invalid("tenantIds required for shard split")
                .with_hint("name the tenants or the buckets to move"));
        }
        if self.source == self.target {
            return Err(MoveError::invalid("source and target shard must differ"));
        }
        self.check_limits()?;
        if let Units::Buckets { buckets } = &self.units {
            let count = policy.buckets(&buckets.group).map_or(0, |count| count.get());
            if let Some(span) = buckets.ranges.iter().find(|span| span.last.0 >= count) {
                let message = format!("group {} has no bucket {}: it has {count}", buckets.group, span.last);
                return Err(MoveError::invalid(message));
            }
        }
        let away = self.units.elsewhere(&self.source, policy);
        if !away.is_empty() {
            let what = if matches!(self.units, Units::Tenants { .. }) { "Tenants" } else { "Buckets" };
            let message = format!("{what} not routed to source shard {}: {}", self.source, first_of(&away));
            return Err(MoveError::invalid(message).with_hint("SHOW ROUTES tells where they are"));
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), MoveError> {
        let (what, count, limit) = match &self.units {
            Units::Tenants { tenants } => ("tenants", tenants.len(), MAX_TENANTS),
            Units::Buckets { buckets } => ("ranges of buckets", buckets.ranges.len(), MAX_SPANS),
        };
        if count > limit {
            let message = format!("a plan moves at most {limit} {what}, not {count}");
            return Err(MoveError::invalid(message).with_hint("make several plans"));
        }
        let chars = self.description.as_ref().map_or(0, |text| text.chars().count());
        if chars > MAX_DESCRIPTION_CHARS {
            let message = format!("a description has at most {MAX_DESCRIPTION_CHARS} characters, not {chars}");
            return Err(MoveError::invalid(message));
        }
        match self.options.pause_limit_ms {
            1..=MAX_PAUSE_LIMIT_MS => Ok(()),
            limit => Err(MoveError::invalid(format!(
                "a pause is limited to 1 to {MAX_PAUSE_LIMIT_MS} milliseconds, not {limit}"
            ))),
        }
    }
}

/// Names for a message, not too many.
fn first_of(names: &[String]) -> String {
    const SHOWN: usize = 10;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN { format!("{shown} and {} more", names.len() - SHOWN) } else { shown }
}

/// The tables that can have rows of what moves, and how these are found.
pub fn tables_of(units: &Units, schema: &Schema, policy: &RoutingPolicy) -> BTreeMap<String, TablePolicy> {
    let moving = schema.tables.values().filter(|table| units.concerns(table, policy));
    moving.map(|table| (table.name.clone(), table_policy(table))).collect()
}

fn table_policy(table: &Table) -> TablePolicy {
    let shard_by = match &table.kind {
        TableKind::Hash { shard_by, .. } => shard_by.clone(),
        _ => Vec::new(),
    };
    TablePolicy { pk: table.primary_key.clone(), shard_by }
}
