//! A shard for each tenant: the strategy `adapter`.
//!
//!     first use ─► pin in the catalog, by compare-and-set ─► fence and binding in the shard ─► known here
//!                  one tenant to a shard                     the shard refuses everyone else
//!
//! The catalog decides first, and it gives a shard to one tenant only. The shard's own record follows, and a shard that
//! has one never takes another. So the two can never name different tenants; a crash between them leaves a pin without
//! a record, which the next start or the next use completes. A shard with a record that the catalog knows nothing of is
//! somebody else's, and is not opened.
//!
//! Requests to other shards than the tenant's (hash and reference tables are on all) act for nobody there. A transaction
//! that is on a shard as nobody when the shard becomes its tenant's begins again (40001): what it holds there would keep
//! the shard from being given away.
//!
//! A move gives a tenant a second shard, one that nobody has: it is noted with the catalog's shards, under the condition
//! that the routing has not changed, and a pin is made under the condition that those have not; so of a move and a pin
//! that want one shard, one does not get it. The shard that the tenant has left stays its own, since a binding goes
//! forward only: the tenant may come back to it, or it is removed.
//!
//! Invariants (docs/invariants.md):
//!   * I-44  no shard has rows of two tenants, and none is opened whose tenant is not the catalog's

use super::Database;
use super::about::Strategy;
use super::members::{self, Members};
use super::routing;
use super::shards::{OpenShard, ShardSet};
use crate::catalog::{Catalog, Transaction};
use crate::commit::decision::catalog_error;
use crate::session::settings::Tenant;
use isles_engine::binding::Binding;
use isles_engine::error::ShardError;
use isles_engine::fence::{Fence, FenceMode, FenceScope, FenceTable};
use isles_engine::shard::ActsFor;
use isles_kernel::error::SqlError;
use isles_kernel::names::{RoutingVersion, ShardId, TenantId};
use isles_kernel::routing::RoutingPolicy;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

/// The shards that tenants have, as far as both the catalog and the shard have said so to this process.
#[derive(Default)]
pub(crate) struct Bindings {
    known: RwLock<BTreeMap<TenantId, BTreeSet<ShardId>>>,
}

impl Bindings {
    /// Those of a database that has just been opened: its shards were compared with the map, and have its fences.
    pub(super) fn opened(strategy: Strategy, policy: &RoutingPolicy, members: &Members) -> Bindings {
        let bindings = Bindings::default();
        if strategy == Strategy::Adapter {
            owners(policy, members).for_each(|(tenant, shard)| bindings.add(tenant, shard));
        }
        bindings
    }

    fn is_known(&self, tenant: &TenantId) -> bool {
        self.known.read().unwrap_or_else(PoisonError::into_inner).contains_key(tenant)
    }

    fn has(&self, tenant: &TenantId, shard: &ShardId) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(tenant).is_some_and(|shards| shards.contains(shard))
    }

    fn add(&self, tenant: &TenantId, shard: &ShardId) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(tenant.clone()).or_default().insert(shard.clone());
    }
}

/// Tenants and the shards that are theirs: each has the one that it is pinned to, and those of its moves.
fn owners<'a>(policy: &'a RoutingPolicy, members: &'a Members) -> impl Iterator<Item = (&'a TenantId, &'a ShardId)> {
    let moved = members.shards.iter().filter_map(|member| Some((member.tenant.as_ref()?, &member.name)));
    policy.pins().chain(moved)
}

/// What a session's tenant still needs before its tables can be used.
pub(crate) enum Need {
    Nothing,
    /// The catalog has given it this shard, and the shard may not know yet.
    Shard(TenantId, ShardId),
}

fn null_tenant() -> SqlError {
    SqlError::new("55000", "the null tenant has no shard of its own")
        .with_hint("SET isles.tenant = 'name': in a database of strategy adapter every row belongs to a tenant")
}

fn no_shard_left() -> SqlError {
    SqlError::new("53000", "every shard has a tenant already")
        .with_hint("make the database with more shards: in strategy adapter each tenant needs one of its own")
}

impl Database {
    /// Gives a session's tenant a shard in the catalog, if it has none. What is left to do is returned.
    pub(crate) async fn choose_shard(&self, tenant: &Tenant) -> Result<Need, SqlError> {
        let name = match (self.strategy, tenant) {
            (Strategy::Row, _) | (_, Tenant::Unset | Tenant::Every) => return Ok(Need::Nothing),
            (Strategy::Adapter, Tenant::None) => return Err(null_tenant()),
            (Strategy::Adapter, Tenant::Name(name)) => name,
        };
        if self.bindings.is_known(name) {
            return Ok(Need::Nothing);
        }
        let shard = self.routing.pin(name, self.env.now_micros() / 1_000).await?.ok_or_else(no_shard_left)?;
        Ok(Need::Shard(name.clone(), shard))
    }

    /// Tells a shard its tenant. It may be told twice.
    pub(crate) async fn give_shard(&self, tenant: &TenantId, name: &ShardId) -> Result<(), SqlError> {
        let people = |error: ShardError| error.for_people();
        let shard = self.shards.get(name).await.map_err(people)?;
        let scope = FenceScope::Tenant(Some(tenant.clone()));
        let known = FenceTable::from_fences(shard.fences().await.map_err(people)?).map_err(people)?;
        if !known.speaks_of(&scope) {
            // The shard was nobody's before, so there is no earlier version to refuse; and all who tell it say the same.
            let fence = Fence { scope, version: RoutingVersion(1), mode: FenceMode::Open };
            shard.set_fences(vec![fence], routing::FENCE_TIME).await.map_err(people)?;
        }
        shard.bind(Binding::Tenant(tenant.clone())).await.map_err(people)?;
        self.bindings.add(tenant, name);
        Ok(())
    }

    /// Gives a tenant the shard that a move brings it to; it keeps the other one. It may be given twice.
    pub(crate) async fn give_target(&self, tenant: &TenantId, shards: [&ShardId; 2]) -> Result<(), SqlError> {
        let busy = |_| SqlError::new("55006", "shards come or go").with_hint("try again in a moment");
        let _one_at_a_time = self.changing_members.try_lock().map_err(busy)?;
        let (routing, policy) = self.routing.read().await?;
        let other = policy.pins().find(|(pinned, owner)| shards.contains(owner) && *pinned != tenant);
        if let Some((other, shard)) = other {
            return Err(members::taken(shard, other));
        }
        let unchanged = Transaction::new().when(routing.unchanged());
        let members = self.change_members(unchanged, |members| members.given_to(tenant, shards)).await?;
        self.follow_members(members);
        for name in shards {
            let shard = self.shards.get(name).await.map_err(|error| error.for_people())?;
            shard.bind(Binding::Tenant(tenant.clone())).await.map_err(|error| error.for_people())?;
            self.bindings.add(tenant, name);
        }
        Ok(())
    }

    /// The tenant that a shard is kept for, if any.
    pub(crate) fn tenant_of_shard(&self, shard: &ShardId) -> Option<TenantId> {
        let (policy, members) = (self.routing.current(), self.members());
        owners(&policy, &members).find(|(_, owner)| *owner == shard).map(|(tenant, _)| tenant.clone())
    }

    /// As [`Database::give_shard`], as soon as the shard can be told, by nobody who waits.
    pub(crate) fn give_shard_later(self: &Arc<Self>, tenant: TenantId, shard: ShardId) {
        let database = self.clone();
        self.env.spawn(Box::pin(async move {
            // If it cannot be, the next use tries again.
            let _ = database.give_shard(&tenant, &shard).await;
        }));
    }

    /// Whom a request to a shard acts for. Where each tenant has its own, other shards have nothing of it.
    pub(crate) fn acts_on(&self, shard: &ShardId, acts_for: &ActsFor) -> ActsFor {
        match (self.strategy, acts_for) {
            (Strategy::Row, acts_for) => acts_for.clone(),
            (Strategy::Adapter, ActsFor::Tenant(Some(tenant))) if self.bindings.has(tenant, shard) => acts_for.clone(),
            (Strategy::Adapter, _) => ActsFor::Nobody,
        }
    }
}

/// Compares a shard that has been opened with the catalog. It changes nothing: only when all shards are in their places
/// is it known that one without a tenant is not just somebody else's.
pub(super) async fn verify(catalog: &dyn Catalog, strategy: Strategy, shard: &OpenShard) -> Result<(), ShardError> {
    let pinned = match strategy {
        Strategy::Row => None,
        Strategy::Adapter => tenant_of(catalog, shard.id()).await?,
    };
    let name = shard.id();
    let refused = |message: String| {
        let hint = "a shard's file or database has been put in another's place, or the catalog is an old copy";
        Err(ShardError::Statement(SqlError::new("55000", message).with_hint(hint)))
    };
    match (strategy, shard.binding().await?, pinned) {
        // A new database's, until it is settled.
        (Strategy::Row, Binding::Shared, _) | (Strategy::Adapter, Binding::Shared, None) => Ok(()),
        // With a tenant in the catalog: a crash came between.
        (Strategy::Adapter, Binding::Free, _) => Ok(()),
        (Strategy::Row, Binding::Free | Binding::Tenant(_), _) => {
            refused(format!("shard {name} is for one tenant, and the database has strategy \"row\""))
        }
        (Strategy::Adapter, Binding::Tenant(own), Some(tenant)) if own == tenant => Ok(()),
        (Strategy::Adapter, Binding::Tenant(own), Some(tenant)) => {
            refused(format!("shard {name} belongs to tenant \"{own}\", and the catalog says \"{tenant}\""))
        }
        (Strategy::Adapter, Binding::Tenant(own), None) => {
            refused(format!("shard {name} belongs to tenant \"{own}\", and the catalog says nobody"))
        }
        (Strategy::Adapter, Binding::Shared, Some(tenant)) => {
            refused(format!("shard {name} belongs to nobody, and the catalog says \"{tenant}\""))
        }
    }
}

/// Tells shards that have all been compared with the catalog what they do not know: that they are for one tenant, and
/// for whom if a crash has kept that from them.
pub(super) async fn settle(
    strategy: Strategy,
    policy: &RoutingPolicy,
    members: &Members,
    shards: &ShardSet,
) -> Result<(), ShardError> {
    if strategy == Strategy::Row {
        return Ok(());
    }
    for name in &shards.names() {
        let shard = shards.get(name).await?;
        if shard.binding().await? == Binding::Shared {
            shard.bind(Binding::Free).await?;
        }
    }
    for (tenant, name) in owners(policy, members) {
        shards.get(name).await?.bind(Binding::Tenant(tenant.clone())).await?;
    }
    Ok(())
}

/// Tells a new shard, which nobody has looked at, that it is for one tenant if that is so.
pub(super) async fn settle_new(strategy: Strategy, shard: &OpenShard) -> Result<(), ShardError> {
    match strategy {
        Strategy::Row => Ok(()),
        Strategy::Adapter => shard.bind(Binding::Free).await,
    }
}

/// The tenant that the catalog has given a shard to.
async fn tenant_of(catalog: &dyn Catalog, shard: &ShardId) -> Result<Option<TenantId>, ShardError> {
    let unread = |error| ShardError::Unavailable(catalog_error(error).message);
    let Some(record) = catalog.get(&routing::key()).await.map_err(unread)?.value else { return Ok(None) };
    let policy: RoutingPolicy = record.json().map_err(unread)?;
    let members = members::read(catalog).await.map_err(|error| ShardError::Unavailable(error.message))?;
    let (members, _) = members.ok_or_else(|| ShardError::Unavailable(members::lost().message))?;
    Ok(owners(&policy, &members).find(|(_, owner)| *owner == shard).map(|(tenant, _)| tenant.clone()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::database::Config;
    use isles_engine::env::{Env, TokioEnv};
    use isles_sim::pgserver::{PgOptions, PgServer};

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn env() -> Arc<dyn Env> {
        Arc::new(TokioEnv::current())
    }

    async fn bound(database: &Database) -> Vec<Binding> {
        let mut found = Vec::new();
        for name in &database.shard_names() {
            found.push(database.shards.get(name).await.unwrap().binding().await.unwrap());
        }
        found
    }

    /// I-44: a crash between the catalog's pin and the shard's record leaves a shard that refuses; the next start, or the
    /// next use, completes it for the same tenant.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_crash_left_half_bound_is_completed() {
        let server = PgServer::start(PgOptions { fsync: false, settings: vec!["max_prepared_transactions=20".into()] });
        let urls: Vec<String> = (0..3).map(|_| server.create_database()).collect();
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for config in [Config::sqlite(folders[0].path(), 3), Config::postgres(folders[1].path(), urls)] {
            let config = Config { strategy: Some(Strategy::Adapter), ..config };
            let database = Database::open(config.clone(), env()).await.unwrap();
            let names = &database.shard_names();
            assert_eq!(database.routing.pin(&tenant("a"), 0).await.unwrap().as_ref(), Some(&names[0]));
            assert_eq!(bound(&database).await, [Binding::Free, Binding::Free, Binding::Free]);
            // Another tenant does not get the shard meanwhile.
            assert_eq!(database.routing.pin(&tenant("b"), 0).await.unwrap().as_ref(), Some(&names[1]));
            // The next use, of a process that lives on.
            let Need::Shard(name, shard) = database.choose_shard(&Tenant::Name(tenant("b"))).await.unwrap() else {
                panic!("the shard has not been told");
            };
            database.give_shard(&name, &shard).await.unwrap();
            assert!(matches!(database.choose_shard(&Tenant::Name(tenant("b"))).await.unwrap(), Need::Nothing));
            let expected = [Binding::Free, Binding::Tenant(tenant("b")), Binding::Free];
            assert_eq!(bound(&database).await, expected);
            database.close().await.unwrap();
            drop(database);
            // The next start.
            let database = Database::open(config, env()).await.unwrap();
            let expected = [Binding::Tenant(tenant("a")), Binding::Tenant(tenant("b")), Binding::Free];
            assert_eq!(bound(&database).await, expected);
            assert!(matches!(database.choose_shard(&Tenant::Name(tenant("a"))).await.unwrap(), Need::Nothing));
            let policy = database.routing.current();
            assert_eq!(policy.shard_of_tenant(&tenant("a")), &database.shard_names()[0]);
            database.close().await.unwrap();
        }
    }
}
