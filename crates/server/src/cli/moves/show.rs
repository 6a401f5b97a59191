//! A plan, for people.

use super::plan::stage_name;
use isles_kernel::moves::{BackfillStatus, Plan, Stage, VerificationStatus};

/// Tables that are named one by one.
const TABLES: usize = 20;

/// A plan in lines, with what can be done next.
pub(super) fn plan(plan: &Plan) -> String {
    let mut lines = vec![
        ("plan", plan.id.to_string()),
        ("what", plan.units.to_string()),
        ("from, to", format!("{} → {}", plan.source_shard, plan.target_shard)),
        ("phase", format!("{} ({})", plan.phase.name(), stage_name(plan.stage))),
        ("tables", tables(plan)),
        ("rows copied", copied(plan)),
    ];
    lines.extend(plan.description.clone().map(|text| ("description", text)));
    lines.extend(plan.tail.lag.map(|lag| ("lag", lag.to_string())));
    lines.push(("verification", verification(plan)));
    lines.extend(plan.cutover.pause_micros.map(|micros| ("pause", format!("{:.1} ms", micros as f64 / 1_000.0))));
    lines.push(("routing", routing(plan)));
    lines.extend(plan.cutover.aborted.clone().map(|why| ("last attempt", why)));
    lines.extend(plan.error_message.clone().map(|why| ("error", why)));
    lines.extend(next(plan).map(|next| ("next", next)));
    let lines: Vec<String> = lines.iter().map(|(name, value)| format!("{name:<13} {value}")).collect();
    lines.join("\n")
}

fn copied(plan: &Plan) -> String {
    let mut text = plan.backfill.total_rows_copied.to_string();
    text.extend(plan.backfill.rows_expected.map(|rows| format!(" of about {rows}")));
    if plan.backfill.status == BackfillStatus::Running {
        text.extend(plan.rows_per_second().map(|rate| format!(", {rate:.0} in a second")));
        text.extend(plan.eta_seconds().map(|left| format!(", {left:.0} seconds left")));
    }
    text
}

fn tables(plan: &Plan) -> String {
    let names: Vec<&str> = plan.table_policies.keys().map(String::as_str).collect();
    match names.len() > TABLES {
        true => format!("{} and {} more", names[..TABLES].join(", "), names.len() - TABLES),
        false => names.join(", "),
    }
}

fn verification(plan: &Plan) -> String {
    let seen = &plan.verification;
    match seen.status {
        VerificationStatus::Pending => "pending".into(),
        VerificationStatus::Running => format!("running: {} rows compared", seen.rows_compared),
        VerificationStatus::Waived => "waived".into(),
        VerificationStatus::Passed => {
            let repaired = if seen.repaired > 0 { format!(", {} repaired", seen.repaired) } else { String::new() };
            format!("passed: {} rows compared{repaired}", seen.rows_compared)
        }
        VerificationStatus::Failed => differing(plan),
    }
}

/// What differs, by table and key.
pub(super) fn differing(plan: &Plan) -> String {
    let seen = &plan.verification;
    let named = seen.differences.iter().map(|found| format!("{} ({}) is {}", found.table, found.key, found.what));
    let named: Vec<String> = named.collect();
    format!("{} of {} rows differ: {}", seen.differing, seen.rows_compared, named.join("; "))
}

fn routing(plan: &Plan) -> String {
    let mut text = format!("version {}", plan.routing_version_at_start);
    for version in [plan.routing_version_cutover, plan.rollback_version].into_iter().flatten() {
        text.push_str(&format!(" → {version}"));
    }
    text
}

/// What an operator can do now.
fn next(plan: &Plan) -> Option<String> {
    let id = &plan.id;
    let or_undo = |command: &str| Some(format!("isles move {command} {id}, or isles move rollback {id}"));
    if plan.next_command().is_some() {
        return Some("it goes on by itself".into());
    }
    match (plan.stage, plan.verification.status) {
        (Stage::Planned, _) => or_undo("start"),
        (Stage::Capturing, _) => or_undo("backfill"),
        (Stage::Ready, VerificationStatus::Passed | VerificationStatus::Waived) => or_undo("cutover"),
        (Stage::Ready, VerificationStatus::Failed) => Some(format!("isles move verify {id} --repair")),
        (Stage::Ready, _) => or_undo("verify"),
        (Stage::Guarding, _) if plan.no_way_back => Some(format!("isles move complete {id}")),
        (Stage::Guarding, _) => or_undo("complete"),
        _ => None,
    }
}
