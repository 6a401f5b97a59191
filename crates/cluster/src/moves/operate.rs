//! What operators ask and tell: the one way in for SQL and HTTP.

use super::driver::SMALL_LAG;
use super::lane::{Halt, Lane};
use super::{Order, copy};
use crate::database::Database;
use isles_engine::shard::DriverToken;
use isles_kernel::error::SqlError;
use isles_kernel::moves::{Command, MoveError, Plan, Stage, Units};
use std::sync::Arc;
use std::time::Duration;

/// How long a command waits for the target to be made ready: there may be rows of an earlier move to remove.
const PREPARE_LIMIT: Duration = Duration::from_secs(10);
const PREPARE_POLL: Duration = Duration::from_millis(20);

/// Whether something is done, or only what would be done is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    Do,
    Try,
}

impl Intent {
    pub fn of(dry_run: bool) -> Intent {
        if dry_run { Intent::Try } else { Intent::Do }
    }
}

impl Database {
    /// Makes a plan, or tells what it would be.
    pub async fn order_move(self: &Arc<Self>, order: Order, intent: Intent) -> Result<Plan, SqlError> {
        self.check_known(&order).await?;
        match intent {
            Intent::Do => self.plan_move(order).await,
            Intent::Try => self.try_move(order).await,
        }
    }

    /// Tells a plan what to do, and what has become of it; or what would.
    pub async fn tell_move(self: &Arc<Self>, id: &str, command: Command, intent: Intent) -> Result<Plan, SqlError> {
        if intent == Intent::Do && !command.is_question() {
            if command == Command::Backfill {
                self.wait_until_prepared(id).await?;
            }
            return self.change_move(id, |plan, now| command.carry_out(plan, now)).await;
        }
        let mut plan = self.move_plan(id).await?;
        command.carry_out(&mut plan, super::now(self)).map_err(|error| error.for_people())?;
        if matches!(command, Command::Cutover { .. }) {
            self.check_cutover(&plan).await?;
        }
        Ok(plan)
    }

    /// Mirroring begins a moment after it was asked for; who asks for the copy meanwhile waits, and is not refused.
    async fn wait_until_prepared(&self, id: &str) -> Result<(), SqlError> {
        let until = self.env.elapsed() + PREPARE_LIMIT;
        while self.move_plan(id).await?.stage == Stage::Preparing {
            if self.env.elapsed() >= until {
                let message = format!("plan {id} is still making its target ready");
                return Err(SqlError::new("55006", message).with_hint("try again in a moment"));
            }
            self.env.sleep(PREPARE_POLL).await;
        }
        Ok(())
    }

    /// Refuses names that nobody has: neither rows, nor a record, nor a place of its own. A pin of such a name would lead the
    /// first rows of a tenant that comes later to where nobody looks for them.
    async fn check_known(self: &Arc<Self>, order: &Order) -> Result<(), SqlError> {
        let Units::Tenants { tenants } = &order.units else { return Ok(()) };
        if order.options.unknown_tenants {
            return Ok(());
        }
        let policy = self.routing.refresh().await?;
        for tenant in tenants {
            let is_known =
                policy.is_pinned(tenant) || self.tenants.find(tenant).is_some_and(|entry| entry.record().is_some());
            if !is_known && self.usage_of(Some(tenant)).await?.rows == 0 {
                let hint = "SHOW TENANTS lists tenants; option unknown_tenants moves a name that nobody has yet";
                let message = format!("no tenant \"{tenant}\" is known");
                return Err(MoveError::invalid(message).with_hint(hint).for_people());
            }
        }
        Ok(())
    }

    /// What a cutover needs of both shards, looked at beforehand.
    async fn check_cutover(&self, plan: &Plan) -> Result<(), SqlError> {
        for shard in [&plan.source_shard, &plan.target_shard] {
            self.check_schema_of(shard).await?;
        }
        match plan.tail.lag {
            Some(lag) if lag > SMALL_LAG => {
                let message = format!("the target is {lag} changes behind the source");
                Err(SqlError::new("55000", message).with_hint("isles move tail waits until it follows closely"))
            }
            _ => Ok(()),
        }
    }
}

/// How many rows a plan would copy.
pub(super) async fn rows_to_copy(database: &Arc<Database>, plan: &Plan) -> Result<Option<u64>, SqlError> {
    // Nobody drives it: it only looks.
    let lane = Lane::new(database, plan, DriverToken(0));
    let tables: Vec<String> = plan.table_policies.keys().cloned().collect();
    match copy::count(&lane, &tables).await {
        Ok(rows) => Ok(Some(rows)),
        Err(Halt::Later(error) | Halt::Never(error)) => Err(error),
        Err(Halt::Changed | Halt::Superseded | Halt::Closing) => Ok(None),
    }
}
