//! Figures of each plan, for dashboards and alarms.

use super::gate::{Admin, Answer, done};
use axum::http::StatusCode;
use isles_cluster::database::Database;
use isles_cluster::moves::moves::{BackfillStatus, Plan, Units};
use isles_kernel::names::PlanId;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How many rows plans are about to copy, as it was when somebody asked first: it takes a look at every tenant. There
/// are as many as plans that copy.
#[derive(Default)]
pub(crate) struct Expected(Mutex<BTreeMap<PlanId, Option<u64>>>);

impl Expected {
    /// What is known, and of the plans that copy now only.
    fn keep(&self, plans: &[Plan]) -> BTreeMap<PlanId, Option<u64>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|id, _| plans.iter().any(|plan| plan.id == *id && is_copying(plan)));
        known.clone()
    }

    async fn of(&self, database: &Arc<Database>, plans: &[Plan]) -> BTreeMap<PlanId, Option<u64>> {
        let mut known = self.keep(plans);
        for plan in plans.iter().filter(|plan| is_copying(plan)) {
            if known.contains_key(&plan.id) {
                continue;
            }
            // A shard that does not answer now is asked again next time.
            let Ok(rows) = database.rows_to_move(&plan.units).await else { continue };
            known.insert(plan.id.clone(), rows);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(plan.id.clone(), rows);
        }
        known
    }
}

fn is_copying(plan: &Plan) -> bool {
    plan.backfill.status == BackfillStatus::Running
}

pub(super) async fn all(admin: Admin) -> Answer {
    let plans = admin.database().moves().await?;
    let expected = admin.door.expected.of(admin.database(), &plans).await;
    let figures: Vec<Value> =
        plans.iter().map(|plan| figures(plan, expected.get(&plan.id).copied().flatten())).collect();
    done(StatusCode::OK, &figures)
}

fn figures(plan: &Plan, expected: Option<u64>) -> Value {
    let rate = rows_per_second(plan);
    let mut figures = json!({
        "splitId": plan.id,
        "sourceShard": plan.source_shard,
        "targetShard": plan.target_shard,
        "phase": plan.phase,
        "stage": plan.stage,
        "totalRowsCopied": plan.backfill.total_rows_copied,
        "backfillStatus": plan.backfill.status,
        "tailStatus": plan.tail.status,
        "verification": plan.verification.status,
        "rowsCompared": plan.verification.rows_compared,
        "rowsDiffering": plan.verification.differing,
        "lag": plan.tail.lag,
        "eventsApplied": plan.tail.events_applied,
        "rowsPerSecond": rate,
        "etaSeconds": eta_seconds(plan, rate, expected),
        "cutoverAttempts": plan.cutover.attempts,
        "pauseMicros": plan.cutover.pause_micros,
        "routingVersionCutover": plan.routing_version_cutover,
        "rollbackVersion": plan.rollback_version,
        "startedAt": plan.created_at,
        "updatedAt": plan.updated_at,
        "errorMessage": plan.error_message,
    });
    match &plan.units {
        Units::Tenants { tenants } => figures["tenants"] = json!(tenants),
        Units::Buckets { buckets } => figures["buckets"] = json!(buckets),
    }
    figures
}

/// Of the copy, from its beginning to its end or to now.
fn rows_per_second(plan: &Plan) -> Option<f64> {
    let began = plan.backfill.started_at?;
    let millis = plan.backfill.completed_at.unwrap_or(plan.updated_at).saturating_sub(began);
    (millis > 0).then(|| plan.backfill.total_rows_copied as f64 * 1_000.0 / millis as f64)
}

/// How long the copy will take from here, where the number of rows is known.
fn eta_seconds(plan: &Plan, rate: Option<f64>, expected: Option<u64>) -> Option<f64> {
    let left = expected?.saturating_sub(plan.backfill.total_rows_copied);
    match plan.backfill.status {
        BackfillStatus::Running => rate.filter(|rate| *rate > 0.0).map(|rate| left as f64 / rate),
        _ => None,
    }
}
