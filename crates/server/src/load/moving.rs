//! One move of a tenant, as an operator asks for it, and when its parts were.

use super::Fault;
use isles_kernel::moves::{Phase, Plan, Stage};
use std::time::{Duration, Instant, SystemTime};
use tokio_postgres::{Client, SimpleQueryMessage};

/// Between two looks at a plan. A look is a statement, so it is no more often than an operator would want.
const LOOK: Duration = Duration::from_millis(50);
/// A move that takes longer has got stuck.
const MAX_TIME: Duration = Duration::from_secs(120);

/// When a load began, by both clocks: plans carry the time of day.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) instant: Instant,
    wall: Duration,
}

impl Origin {
    pub(crate) fn now() -> Origin {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Origin { instant: Instant::now(), wall }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.instant.elapsed()
    }

    fn of_millis(&self, millis: u64) -> Duration {
        Duration::from_millis(millis).saturating_sub(self.wall)
    }
}

/// A move that is done. Times count from the start of the load.
#[derive(Debug, Clone, Default)]
pub(crate) struct Moved {
    pub(crate) began: Duration,
    pub(crate) ended: Duration,
    /// While rows were copied.
    pub(crate) copying: (Duration, Duration),
    /// When the routing changed.
    pub(crate) switched: Duration,
    /// How long writers were held, as the server says.
    pub(crate) pause: Duration,
    pub(crate) attempts: u64,
    pub(crate) rows: u64,
}

/// Moves a tenant to a shard, removes what is left on the other, and shows each look at the plan.
pub(crate) async fn move_tenant(
    admin: &Client,
    origin: Origin,
    tenant: &str,
    to: &str,
    mut show: impl FnMut(&Plan),
) -> Result<Moved, Fault> {
    let began = origin.elapsed();
    let order = format!("CREATE MOVE OF TENANTS ({tenant}) TO {to} WITH (auto, complete)");
    let mut plan = plan_of(admin, &order).await?;
    while plan.stage != Stage::Done {
        show(&plan);
        if origin.elapsed() > began + MAX_TIME {
            return Err(Fault(format!("the move to {to} does not end: {:?}, {:?}", plan.stage, plan.error_message)));
        }
        tokio::time::sleep(LOOK).await;
        plan = plan_of(admin, &format!("SHOW MOVE '{}'", plan.id)).await?;
    }
    show(&plan);
    match plan.phase {
        Phase::Completed => Ok(moved(&plan, origin, began)),
        phase => Err(Fault(format!("the move to {to} is {}: {:?}", phase.name(), plan.error_message))),
    }
}

fn moved(plan: &Plan, origin: Origin, began: Duration) -> Moved {
    let at = |millis: Option<u64>| millis.map_or(began, |millis| origin.of_millis(millis));
    Moved {
        began,
        ended: origin.elapsed(),
        copying: (at(plan.backfill.started_at), at(plan.backfill.completed_at)),
        switched: at(plan.cutover.switched_at),
        pause: Duration::from_micros(plan.cutover.pause_micros.unwrap_or_default()),
        attempts: plan.cutover.attempts,
        rows: plan.backfill.total_rows_copied,
    }
}

async fn plan_of(admin: &Client, sql: &str) -> Result<Plan, Fault> {
    let messages = admin.simple_query(sql).await.map_err(|error| Fault::of(sql, &error))?;
    let row = |message: SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => row.get("plan").map(str::to_owned),
        _ => None,
    };
    let json = messages.into_iter().find_map(row).ok_or_else(|| Fault(format!("{sql} gave no plan")))?;
    serde_json::from_str(&json).map_err(|fault| Fault(format!("{sql}: {fault}")))
}
