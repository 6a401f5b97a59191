//! What operators ask and tell: the one way in for SQL and HTTP.

use super::Order;
use crate::database::Database;
use isles_kernel::error::SqlError;
use isles_kernel::moves::{Command, Plan, Units};
use std::sync::Arc;

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
            return self.change_move(id, |plan, now| command.carry_out(plan, now)).await;
        }
        let mut plan = self.move_plan(id).await?;
        command.carry_out(&mut plan, super::now(self)).map_err(|error| error.for_people())?;
        Ok(plan)
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
