//! How a shard goes: it must have nothing that is not elsewhere.
//!
//! Its file or database stays where it is, and is not looked at again; who wants the room back deletes it.
//!
//! Invariants (docs/invariants.md):
//!   * I-7   what the routing sends to a shard, the shard is there for

use super::Database;
use super::members::{Draining, Member, Members};
use crate::catalog::Transaction;
use crate::execute::bounds::Bounds;
use crate::moves::store;
use isles_engine::shard::{CancelToken, KeyRange};
use isles_kernel::error::SqlError;
use isles_kernel::names::{RegionName, ShardId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::TableKind;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// How long everyone may wait for the transactions that are running.
const ALONE_TIME: Duration = Duration::from_secs(10);
/// Between two looks whether commits that were answered are on all shards: they take some milliseconds.
const COMMITS_POLL: Duration = Duration::from_millis(5);

/// What a shard has to serve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Owned {
    pub buckets: u64,
    pub pinned_tenants: u64,
}

impl Owned {
    pub(crate) fn by(shard: &ShardId, policy: &RoutingPolicy) -> Owned {
        let ranges = policy.groups().flat_map(|(_, ranges)| ranges).filter(|range| range.shard == *shard);
        Owned {
            buckets: ranges.map(|range| u64::from(range.last.0 - range.first.0) + 1).sum(),
            pinned_tenants: policy.pins().filter(|(_, owner)| *owner == shard).count() as u64,
        }
    }

    pub fn is_nothing(self) -> bool {
        self == Owned::default()
    }
}

/// A shard, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShardInfo {
    pub shard: ShardId,
    pub engine: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<RegionName>,
    /// Everything on it goes elsewhere.
    pub draining: bool,
    #[serde(flatten)]
    pub owned: Owned,
}

impl Database {
    /// Its shards, in the order in which they came, and what each serves.
    pub fn shard_infos(&self) -> Vec<ShardInfo> {
        let policy = self.routing.current();
        let info = |member: &Member| ShardInfo {
            shard: member.name.clone(),
            engine: member.place.engine_name(),
            region: member.region.clone(),
            draining: member.draining.is_some(),
            owned: Owned::by(&member.name, &policy),
        };
        self.members().shards.iter().map(info).collect()
    }

    fn check_member(&self, name: &ShardId) -> Result<(), SqlError> {
        match self.members().get(name) {
            Some(_) => Ok(()),
            None => {
                Err(SqlError::new("42704", format!("there is no shard {name}"))
                    .with_hint("SHOW SHARDS lists the shards"))
            }
        }
    }

    /// Says that everything on a shard is to go elsewhere, and nothing new is to come; or that it is not.
    pub async fn set_draining(&self, name: &ShardId, to: Option<Vec<ShardId>>) -> Result<(), SqlError> {
        let _one_at_a_time = self.changing_members.lock().await;
        self.check_member(name)?;
        for target in to.iter().flatten() {
            self.check_member(target)?;
            if target == name {
                return Err(SqlError::new("22023", format!("shard {name} cannot be drained to itself")));
            }
            if self.members().get(target).is_some_and(|member| member.draining.is_some()) {
                return Err(SqlError::new("55000", format!("shard {target} is being drained itself")));
            }
        }
        if to.is_some() && self.members().receiving().iter().all(|other| other == name) {
            return Err(SqlError::new("55000", "there is no other shard that could take it")
                .with_hint("add one: isles shards add"));
        }
        let draining = to.map(|to| Draining { to });
        let wished = |members: &Members| Ok(members.with_draining(name, draining.clone()));
        let members = self.change_members(Transaction::new(), wished).await?;
        self.follow_members(members);
        Ok(())
    }

    /// Says which region a shard is in. It can be said once.
    pub async fn locate_shard(&self, name: &ShardId, region: &RegionName) -> Result<(), SqlError> {
        let _one_at_a_time = self.changing_members.lock().await;
        self.check_member(name)?;
        let members = self.change_members(Transaction::new(), |members| members.located(name, region)).await?;
        self.follow_members(members);
        Ok(())
    }

    /// Removes a shard that has nothing to serve.
    pub async fn remove_shard(self: &Arc<Self>, name: &ShardId) -> Result<(), SqlError> {
        let active = self.enter()?;
        let (reply, answer) = tokio::sync::oneshot::channel();
        let (database, name) = (self.clone(), name.clone());
        self.env.spawn(Box::pin(async move {
            let left = database.leave(&name).await;
            drop(active);
            // Whoever asked may have gone.
            let _ = reply.send(left);
        }));
        answer.await.unwrap_or_else(|_| Err(SqlError::new("57P01", "the database is being closed")))
    }

    async fn leave(&self, name: &ShardId) -> Result<(), SqlError> {
        let _one_at_a_time = self.changing_members.lock().await;
        self.check_member(name)?;
        self.check_idle(name).await?;
        let bounds = Bounds::new(&*self.env, 2 * ALONE_TIME, CancelToken::default());
        let bounds = Bounds { lock: Some(ALONE_TIME), ..bounds };
        let _alone = self.hold_schema_alone(&bounds).await?;
        let plans = self.check_idle(name).await?;
        let (routing, policy) = self.routing.read().await?;
        check_owns_nothing(name, &policy)?;
        self.check_empty(name).await?;
        self.drain_indexes(Some(name)).await?;
        // What has been answered may not be on all shards yet; nobody begins anything else meanwhile.
        let deadline = self.env.elapsed() + ALONE_TIME;
        while !self.are_commits_done().await? {
            if self.env.elapsed() >= deadline {
                return Err(SqlError::new("55006", "a transaction over several shards is still being carried out")
                    .with_hint("try again in a moment"));
            }
            self.env.sleep(COMMITS_POLL).await;
        }
        let unchanged = Transaction::new().when(routing.unchanged()).when(plans);
        let members = self.change_members(unchanged, |members| Ok(members.without(name))).await?;
        self.follow_members(members);
        self.latches.dismiss(name);
        self.works.dismiss(name);
        self.indexes.dismiss(name);
        tracing::info!(shard = %name, "shard removed");
        self.shards.dismiss(name).await.map_err(|error| error.for_people())
    }

    /// No plan is about it, and none will be by when what is returned still holds.
    async fn check_idle(&self, name: &ShardId) -> Result<crate::catalog::Condition, SqlError> {
        let (active, condition) = store::active_as_read(self.catalog.as_ref()).await?;
        match active.iter().find(|(_, about)| about.source == *name || about.target == *name) {
            None => Ok(condition),
            Some((id, _)) => Err(SqlError::new("55006", format!("shard {name} takes part in move {id}"))
                .with_hint(format!("wait, or run \"isles move complete {id}\" or \"isles move rollback {id}\""))),
        }
    }

    /// Looks into its tables: nothing may be there that the routing does not know of.
    async fn check_empty(&self, name: &ShardId) -> Result<(), SqlError> {
        let people = |error: isles_engine::error::ShardError| error.for_people();
        let shard = self.shards.get(name).await.map_err(people)?;
        let mut snapshot = shard.snapshot().await.map_err(people)?;
        let schema = self.schema();
        for table in schema.tables.values().filter(|table| table.kind != TableKind::Reference) {
            if !snapshot.page(&KeyRange::table(&table.name), 1).await.map_err(people)?.rows.is_empty() {
                let message = format!("shard {name} has rows in table \"{}\" that it does not own", table.name);
                return Err(SqlError::new("55000", message).with_hint("take them out with an export before"));
            }
        }
        Ok(())
    }
}

fn check_owns_nothing(name: &ShardId, policy: &RoutingPolicy) -> Result<(), SqlError> {
    let owned = Owned::by(name, policy);
    match owned.is_nothing() {
        true => Ok(()),
        false => {
            let message =
                format!("shard {name} serves {} buckets and {} pinned tenants", owned.buckets, owned.pinned_tenants);
            Err(SqlError::new("55000", message).with_hint(format!("run \"isles shards drain {name}\" first")))
        }
    }
}
