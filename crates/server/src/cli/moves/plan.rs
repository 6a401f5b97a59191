//! Plans as a server tells them.

use super::super::output::Failure;
use super::super::sql::show::Answered;
use super::super::tenants::server::Server;
use isles_kernel::moves::{Plan, Stage};
use serde_json::{Value, json};

/// Sends a statement that answers with one plan.
pub(in crate::cli) async fn one(server: &Server, sql: &str) -> Result<Plan, Failure> {
    let answered = server.query(sql).await?;
    let at = answered.columns.iter().flatten().position(|name| name == "plan");
    let text = at.and_then(|at| answered.rows.first()?.get(at)?.as_deref());
    let unknown = || {
        Failure::usage("the server's answer is not a plan")
            .code("unknown_answer")
            .hint("the server and this program may be of different versions")
    };
    text.and_then(|text| serde_json::from_str(text).ok()).ok_or_else(unknown)
}

pub(super) fn plan_json(plan: &Plan, dry_run: bool) -> Value {
    let mut value = json!(plan);
    if dry_run {
        value["dryRun"] = json!(true);
    }
    value
}

pub(in crate::cli) fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Planned => "planned",
        Stage::Preparing => "preparing",
        Stage::Capturing => "capturing",
        Stage::Copying => "copying",
        Stage::Tailing => "tailing",
        Stage::Ready => "ready",
        Stage::Verifying => "verifying",
        Stage::Switching => "switching",
        Stage::Unfencing => "unfencing",
        Stage::Settling => "settling",
        Stage::Guarding => "guarding",
        Stage::Cleaning => "cleaning",
        Stage::Done => "done",
    }
}

/// What `SHOW MOVES` shows, as objects.
pub(super) fn list_json(answered: &Answered) -> Value {
    const TEXTS: [&str; 12] = [
        "id",
        "source",
        "target",
        "what",
        "phase",
        "stage",
        "backfill",
        "tail",
        "verification",
        "started",
        "updated",
        "error",
    ];
    json!({ "moves": answered.objects(&TEXTS) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn stages_have_the_names_that_plans_give_them() {
        for stage in [Stage::Planned, Stage::Capturing, Stage::Guarding, Stage::Cleaning, Stage::Done] {
            assert_eq!(serde_json::to_value(stage).unwrap(), stage_name(stage));
        }
    }
}
