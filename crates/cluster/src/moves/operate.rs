//! What operators ask and tell: the one way in for SQL and HTTP.

use super::Order;
use crate::database::Database;
use isles_kernel::error::SqlError;
use isles_kernel::moves::{Command, Plan, Stage, Units};
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

    /// How many rows a plan is about to copy, where that is cheap to know: what tenants have is in an index.
    pub async fn rows_to_move(self: &Arc<Self>, units: &Units) -> Result<Option<u64>, SqlError> {
        let Units::Tenants { tenants } = units else { return Ok(None) };
        let mut rows = 0;
        for tenant in tenants {
            rows += self.usage_of(Some(tenant)).await?.rows;
        }
        Ok(Some(rows))
    }
}
