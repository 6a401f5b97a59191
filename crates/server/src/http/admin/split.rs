//! Plans of moves.

use super::gate::{Admin, Answer, Body, Refusal, done, no_such_path};
use axum::extract::Path;
use axum::http::StatusCode;
use isles_cluster::moves::moves::{Command, Options, Span, Units};
use isles_cluster::moves::{Intent, Order};
use isles_kernel::error::SqlError;
use isles_kernel::names::{BucketId, GroupName, NameError, ShardId, TenantId};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct NewPlan {
    source_shard: Option<String>,
    target_shard: String,
    tenant_ids: Option<Vec<String>>,
    buckets: Option<GivenBuckets>,
    description: Option<String>,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    options: GivenOptions,
}

/// Buckets by ranges, by numbers, or by both.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GivenBuckets {
    group: String,
    #[serde(default)]
    ranges: Vec<GivenSpan>,
    #[serde(default)]
    numbers: Vec<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenSpan {
    first: u32,
    last: u32,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GivenOptions {
    auto: Option<bool>,
    complete: Option<bool>,
    waive_verification: Option<bool>,
    unknown_tenants: Option<bool>,
    pause_limit_ms: Option<u64>,
}

/// What may be said to a command; each takes what concerns it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Said {
    repair: Option<bool>,
    waive_verification: Option<bool>,
    complete: Option<bool>,
    #[serde(default)]
    dry_run: bool,
}

pub(super) async fn list(admin: Admin) -> Answer {
    let plans = admin.database().moves().await?;
    done(StatusCode::OK, &plans)
}

pub(super) async fn show(admin: Admin, Path(id): Path<String>) -> Answer {
    let plan = admin.database().move_plan(&id).await.map_err(Refusal::of_plan)?;
    done(StatusCode::OK, &plan)
}

pub(super) async fn create(admin: Admin, body: Result<Body<NewPlan>, Refusal>) -> Answer {
    make(admin, body, StatusCode::CREATED).await
}

/// Plans, and lets the plan go on by itself.
pub(super) async fn create_and_run(admin: Admin, body: Result<Body<NewPlan>, Refusal>) -> Answer {
    let body = body.map(|Body(plan)| {
        let options = GivenOptions { auto: Some(true), ..plan.options };
        Body(NewPlan { options, ..plan })
    });
    make(admin, body, StatusCode::ACCEPTED).await
}

async fn make(admin: Admin, body: Result<Body<NewPlan>, Refusal>, made: StatusCode) -> Answer {
    let Body(new) = body.map_err(Refusal::renamed)?;
    let intent = Intent::of(new.dry_run);
    let order = order(new).map_err(Refusal::of_order)?;
    if intent == Intent::Do {
        admin.note("plan a move", &order.units.to_string());
    }
    let plan = admin.database().order_move(order, intent).await.map_err(Refusal::of_order)?;
    done(if intent == Intent::Do { made } else { StatusCode::OK }, &plan)
}

fn order(new: NewPlan) -> Result<Order, SqlError> {
    let invalid = |error: NameError| SqlError::new("22023", error.to_string());
    let units = match (new.tenant_ids, new.buckets) {
        (Some(_), Some(_)) => {
            let error = SqlError::new("22023", "a plan moves tenants or buckets, not both");
            return Err(error.with_hint("make a plan for each"));
        }
        (tenants, None) => {
            let tenants = tenants.unwrap_or_default().into_iter().map(TenantId::new);
            Units::tenants(tenants.collect::<Result<Vec<_>, _>>().map_err(invalid)?)
        }
        (None, Some(buckets)) => bucket_units(buckets)?,
    };
    let given = new.options;
    let base = Options::default();
    Ok(Order {
        source: new.source_shard.map(ShardId::new).transpose().map_err(invalid)?,
        target: ShardId::new(new.target_shard).map_err(invalid)?,
        units,
        description: new.description,
        options: Options {
            auto: given.auto.unwrap_or(base.auto),
            complete: given.complete.unwrap_or(base.complete),
            waive_verification: given.waive_verification.unwrap_or(base.waive_verification),
            unknown_tenants: given.unknown_tenants.unwrap_or(base.unknown_tenants),
            pause_limit_ms: given.pause_limit_ms.unwrap_or(base.pause_limit_ms),
        },
    })
}

fn bucket_units(buckets: GivenBuckets) -> Result<Units, SqlError> {
    let group = GroupName::new(buckets.group).map_err(|error| SqlError::new("22023", error.to_string()))?;
    if let Some(span) = buckets.ranges.iter().find(|span| span.first > span.last) {
        let message = format!("a range of buckets goes from its first to its last, not {}-{}", span.first, span.last);
        return Err(SqlError::new("22023", message));
    }
    let ranges = buckets.ranges.iter().map(|span| Span { first: BucketId(span.first), last: BucketId(span.last) });
    let numbers = buckets.numbers.iter().map(|number| Span::one(BucketId(*number)));
    Ok(Units::buckets(group, ranges.chain(numbers)))
}

pub(super) async fn act(
    admin: Admin,
    Path((id, action)): Path<(String, String)>,
    body: Result<Body<Said>, Refusal>,
) -> Answer {
    let Some(command) = command_of(&action) else { return Ok(no_such_path().await) };
    let Body(said) = body.map_err(Refusal::renamed)?;
    let command = told(command, &said).map_err(Refusal::of_order)?;
    let intent = Intent::of(said.dry_run);
    if intent == Intent::Do && !command.is_question() {
        admin.note(&action, &id);
    }
    let plan = admin.database().tell_move(&id, command, intent).await.map_err(Refusal::of_plan)?;
    let runs = intent == Intent::Do && matches!(command, Command::Run { .. });
    done(if runs { StatusCode::ACCEPTED } else { StatusCode::OK }, &plan)
}

/// The last part of a path.
fn command_of(action: &str) -> Option<Command> {
    Some(match action {
        "dual-write" => Command::Start,
        "backfill" => Command::Backfill,
        "tail" => Command::Tail,
        "verify" => Command::Verify { repair: false },
        "cutover" => Command::Cutover { waive: false },
        "rollback" => Command::Rollback,
        "complete" => Command::Complete,
        "run" => Command::Run { complete: false },
        _ => return None,
    })
}

/// The command with what was said to it. What does not concern it was meant otherwise, and is refused.
fn told(command: Command, said: &Said) -> Result<Command, SqlError> {
    let Said { repair, waive_verification, complete, dry_run: _ } = said;
    let stray = |names: [(&str, bool); 2]| match names.into_iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(SqlError::new("22023", format!("\"{name}\" says nothing to this command"))),
        None => Ok(()),
    };
    let (repairs, waives) = (("repair", repair.is_some()), ("waiveVerification", waive_verification.is_some()));
    let completes = ("complete", complete.is_some());
    match command {
        Command::Verify { .. } => {
            stray([waives, completes]).map(|()| Command::Verify { repair: repair.unwrap_or(false) })
        }
        Command::Cutover { .. } => {
            stray([repairs, completes]).map(|()| Command::Cutover { waive: waive_verification.unwrap_or(false) })
        }
        Command::Run { .. } => stray([repairs, waives]).map(|()| Command::Run { complete: complete.unwrap_or(false) }),
        other => stray([repairs, waives]).and_then(|()| stray([completes, completes])).map(|()| other),
    }
}
