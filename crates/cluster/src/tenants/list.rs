//! All tenants, in order of name, a page at a time.
//!
//!     pages of each shard, by tenant ─┐
//!     tenants with a record ──────────┴─► merged by name ─► rows
//!
//! A tenant is listed once. Its figures are those of the shard that it is routed to: what another one may still have of
//! it is not its own. Memory is bounded by a page of each shard, however many tenants there are.

use super::State;
use super::entry::Entry;
use crate::database::Database;
use crate::execute::bounds::Bounds;
use crate::execute::transaction::{noted, open_shard};
use isles_engine::usage::{TenantRange, TenantUsage};
use isles_kernel::error::SqlError;
use isles_kernel::names::{ShardId, TenantId};
use isles_kernel::value::Value;
use std::collections::VecDeque;
use std::sync::Arc;

/// Tenants read from a shard at once.
const PAGE: usize = 500;

/// One shard's tenants.
struct OfShard {
    shard: ShardId,
    tenants: VecDeque<TenantUsage>,
    /// Where the next page begins; None at the end.
    next: Option<TenantRange>,
}

pub(crate) struct TenantList {
    database: Arc<Database>,
    shards: Vec<OfShard>,
    recorded: VecDeque<Arc<Entry>>,
    /// The last recorded tenant that was read; None at first.
    after: Option<TenantId>,
    all_recorded: bool,
    like: Option<String>,
    /// The time is that of each page.
    bounds: Bounds,
}

impl TenantList {
    pub(crate) fn new(database: &Arc<Database>, like: Option<String>, bounds: Bounds) -> TenantList {
        let of_shard =
            |shard: &ShardId| OfShard { shard: shard.clone(), tenants: VecDeque::new(), next: Some(TenantRange::All) };
        TenantList {
            shards: database.members().names().map(of_shard).collect(),
            database: database.clone(),
            recorded: VecDeque::new(),
            after: None,
            all_recorded: false,
            like,
            bounds,
        }
    }

    /// At most `limit` more rows; none at the end.
    pub(crate) async fn next(&mut self, limit: usize) -> Result<Vec<Vec<Value>>, SqlError> {
        let mut rows = Vec::new();
        while rows.len() < limit {
            self.fill().await?;
            let Some(name) = self.least() else { break };
            let row = self.take(&name)?;
            if self.is_wanted(name.as_ref())? {
                rows.extend(row);
            }
        }
        Ok(rows)
    }

    /// Reads what is needed to know who comes next.
    async fn fill(&mut self) -> Result<(), SqlError> {
        for of_shard in &mut self.shards {
            while of_shard.tenants.is_empty() {
                let Some(range) = of_shard.next.take() else { break };
                let shard = open_shard(&self.database, &of_shard.shard).await?;
                self.bounds.deadline = self.database.env.elapsed() + self.bounds.time;
                let page = self.bounds.wait(&*self.database.env, shard.usage(&range, PAGE)).await?;
                let page = page.map_err(|error| noted(&self.database, &of_shard.shard, error))?;
                of_shard.tenants.extend(page.tenants);
                of_shard.next = page.next;
            }
        }
        if self.recorded.is_empty() && !self.all_recorded {
            self.recorded.extend(self.database.tenants.recorded_after(self.after.as_ref(), PAGE));
            self.all_recorded = self.recorded.is_empty();
            self.after = self.recorded.back().and_then(|entry| entry.name.clone());
        }
        Ok(())
    }

    /// The name that comes first; the null tenant before all.
    fn least(&self) -> Option<Option<TenantId>> {
        let on_shards = self.shards.iter().filter_map(|of_shard| of_shard.tenants.front());
        let recorded = self.recorded.front().map(|entry| entry.name.clone());
        on_shards.map(|usage| usage.tenant.clone()).chain(recorded).min()
    }

    /// The row of a tenant, taken from wherever it is; None if it is only where it does not belong.
    fn take(&mut self, name: &Option<TenantId>) -> Result<Option<Vec<Value>>, SqlError> {
        let home = self.database.shard_of(name.as_ref())?;
        let mut figures = None;
        for of_shard in &mut self.shards {
            if of_shard.tenants.front().is_some_and(|usage| usage.tenant == *name) {
                let usage = of_shard.tenants.pop_front();
                if of_shard.shard == home {
                    figures = usage;
                }
            }
        }
        let recorded = match self.recorded.front().is_some_and(|entry| entry.name == *name) {
            true => self.recorded.pop_front(),
            false => None,
        };
        if figures.is_none() && recorded.is_none() {
            return Ok(None);
        }
        let usage = figures.unwrap_or(TenantUsage { tenant: name.clone(), rows: 0, bytes: 0 });
        Ok(Some(row(&self.database, &usage, Some(&home))))
    }

    fn is_wanted(&self, name: Option<&TenantId>) -> Result<bool, SqlError> {
        match (&self.like, name) {
            (None, _) => Ok(true),
            // As with SQL: null is like nothing.
            (Some(_), None) => Ok(false),
            (Some(pattern), Some(name)) => isles_sql::runtime::is_like(name.as_str(), pattern),
        }
    }
}

pub(crate) fn number(n: u64) -> Value {
    Value::Int(i64::try_from(n).unwrap_or(i64::MAX))
}

/// What `SHOW TENANTS` shows of a tenant: tenant, shard, rows, bytes, statements, state.
pub(crate) fn row(database: &Database, usage: &TenantUsage, shard: Option<&ShardId>) -> Vec<Value> {
    let entry = match &usage.tenant {
        Some(name) => database.tenants.find(name),
        None => Some(database.tenants.entry(None)),
    };
    let statements = entry.as_ref().map_or(0, |entry| entry.work().statements);
    let state = entry.as_ref().and_then(|entry| entry.record()).map_or(State::Active, |record| record.state);
    vec![
        usage.tenant.as_ref().map_or(Value::Null, |name| Value::text(name.as_str())),
        shard.map_or(Value::Null, |shard| Value::text(shard.as_str())),
        number(usage.rows),
        number(usage.bytes),
        number(statements),
        Value::text(state.name()),
    ]
}
