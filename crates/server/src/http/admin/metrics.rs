//! Figures of each plan, for dashboards and alarms.

use super::gate::{Admin, Answer, done};
use axum::http::StatusCode;
use isles_cluster::moves::moves::{Plan, Units};
use serde_json::{Value, json};

pub(super) async fn all(admin: Admin) -> Answer {
    let plans = admin.database().moves().await?;
    done(StatusCode::OK, &plans.iter().map(figures).collect::<Vec<_>>())
}

fn figures(plan: &Plan) -> Value {
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
        "rowsExpected": plan.backfill.rows_expected,
        "rowsPerSecond": plan.rows_per_second(),
        "etaSeconds": plan.eta_seconds(),
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
