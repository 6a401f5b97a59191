//! Stores: keyed records that expire, each kept where its id or its key says.
//!
//! ```text
//! operation ─► store ─► placement of the tenant ─► instance {tenant}:{region}:{space}:{bucket}[:gN]
//!                                                      │ the shard key of isles.records_{region}
//!                                                      ▼
//!                                  one conditional statement on one shard ─► outcome
//! ```
//!
//! A record is a row. What an operation promises is in the condition of its statement, so it holds against every other
//! client, a crash and a move. If the condition did not hold, a look at the row says why, as an [`Outcome`].
//!
//! An instance is named by its bucket *space*, not by its kind: kinds that are colocated share instances, hence buckets
//! of the records table, hence shards. A new generation is new instance names and no new table.
//!
//! Which generation:
//!   * A record lives where it was made. New ones are made in the current generation.
//!   * An id names its generation. A key is looked for in the current one, then in previous ones that are in force.
//!   * What replaces a record by its key removes it from previous generations, in the same transaction.
//!   * What may happen once by key ([`put_if_absent`](Desk::put_if_absent)) is noted in every generation in force, the
//!     oldest first: one who does not know the new generation yet meets the note in the old one. A note in a previous
//!     generation only guards: it is no record that is read, counted or used, and it keeps no generation from being
//!     drained.
//!   * What never expires is carried into the current generation: when it changes, and otherwise by the sweep.
//!
//! Invariants (docs/invariants.md):
//!   * I-36  Ids are made of 122 random bits that nobody can guess.
//!   * I-37  An id leads to its record's instance in every generation in force.
//!   * I-39  Records of a region are in tables that are kept in it.
//!   * I-40  A forged id, and another tenant's, is like a missing one, at the same work: a place is asked where nothing is.
//!   * Colocated kinds with the same key share an instance.
//!   * A record that may be used once is used once, whoever asks, in whatever generation.
//!   * A family of tokens of which a used one comes back is revoked, except within the grace window.
//!   * A store with a quota never has more live records than it allows, and none makes way for another.
//!   * An error of storage is an error, and never "not found".
//!
//! In reading order:
//!   * [`spec`]     what a store is
//!   * [`record`]   records and outcomes
//!   * [`place`]    ids, tokens, addresses, instances
//!   * [`decide`]   what becomes of a record: rotation, polling, counting
//!   * [`ask`]      desks: statements, and the sessions that run them
//!   * [`gather`]   writes of many clients to one shard, as one request
//!   * [`tables`]   the tables of records
//!   * [`define`]   stores in the catalog
//!   * [`quota`]    how many records there may be
//!   * [`operate`]  the operations
//!   * [`owners`]   records by their owner
//!   * [`sweep`]    what has expired is removed
//!   * [`meter`]    what is counted
//!   * [`identity`] the stores of an identity provider
//!   * [`commands`] operations with named arguments, in JSON
//!   * [`procedures`] what SQL calls
//!   * [`declare`]  stores of a configuration file

mod ask;
pub mod commands;
mod decide;
mod declare;
mod define;
mod gather;
pub mod identity;
mod meter;
mod operate;
mod owners;
mod place;
pub mod procedures;
mod quota;
mod record;
mod spec;
mod sweep;
mod tables;

pub use ask::Desk;
pub use decide::{Counted, MAX_COUNT, Polled};
pub use declare::{Declaration, Declared};
pub use define::{Alteration, MAX_STORES};
pub use meter::{Distribution, Durations, Fallback, Refusals, SweepCounts, Unserved};
pub use operate::{Exchange, Put};
pub use owners::{MAX_PAGE, Owned, Page};
pub use place::{Address, MAX_KEY_BYTES};
pub use quota::{MAX_RECORDS, MAX_TENANT_RECORDS, RecordQuota};
pub use record::{Outcome, Record, Reply};
pub use spec::{Counting, MAX_TTL, StoreConfig, StoreSpec};
pub use sweep::Swept;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use gather::Gather;
use isles_cluster::database::{Database, Pass};
use isles_cluster::placements::{Entered, Keeper, Kept, Left};
use isles_cluster::session::Session;
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_kernel::id::Generation;
use isles_kernel::names::{RegionName, TenantId};
use isles_kernel::placement::{Placement, TypeName};
use meter::Meter;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};

pub type Result<T> = std::result::Result<T, SqlError>;

/// The largest value. A record is a session or a grant, not a document.
pub const MAX_VALUE_BYTES: usize = 64 << 10;

/// The longest owner and alias.
pub const MAX_OWNER_BYTES: usize = 256;

/// The longest binding: a client, a redirect address and a challenge fit.
pub const MAX_BINDING_BYTES: usize = 2 << 10;

/// Where the random parts of ids come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IdSource {
    /// The operating system: nobody can guess them.
    #[default]
    System,
    /// The environment, which in simulation is the seed.
    Env,
}

/// What all who use the stores of a database share.
struct Shared {
    database: Arc<Database>,
    ids: IdSource,
    specs: ArcSwap<BTreeMap<TypeName, Arc<StoreSpec>>>,
    /// Tables of records that are known to exist.
    tables: Mutex<BTreeSet<String>>,
    /// Sessions that wait for their next statement.
    idle: Mutex<Vec<Session>>,
    gather: Gather,
    meter: Meter,
}

/// An operation that goes by a placement.
struct Going {
    by: By,
    /// Keeps the tenant from being dropped meanwhile.
    _pass: Pass,
}

/// The placement that an operation goes by.
enum By {
    Entered(Entered),
    Under(Arc<Placement>),
}

impl Going {
    fn placement(&self) -> &Placement {
        match &self.by {
            By::Entered(entered) => &entered.placement,
            By::Under(placement) => placement,
        }
    }
}

/// The stores of a database.
#[derive(Clone)]
pub struct Stores {
    shared: Arc<Shared>,
    /// In place of the placements that are in force.
    under: Option<Arc<Placement>>,
}

impl Stores {
    /// Reads which stores there are, and begins to remove what has expired.
    pub async fn open(database: Arc<Database>, ids: IdSource) -> Result<Stores> {
        let shared = Shared {
            database,
            ids,
            specs: ArcSwap::default(),
            tables: Mutex::default(),
            idle: Mutex::default(),
            gather: Gather::default(),
            meter: Meter::default(),
        };
        let stores = Stores { shared: Arc::new(shared), under: None };
        stores.learn().await?;
        stores.database().placements().register(Arc::new(Keeping(Arc::downgrade(&stores.shared))));
        stores.start_sweeping();
        Ok(stores)
    }

    fn database(&self) -> &Arc<Database> {
        &self.shared.database
    }

    fn env(&self) -> &dyn Env {
        &**self.shared.database.env()
    }

    /// Microseconds since 1970, as every expiry is counted.
    fn now(&self) -> i64 {
        i64::try_from(self.env().now_micros()).unwrap_or(i64::MAX)
    }

    /// The placement of a tenant.
    fn placement(&self, tenant: &TenantId) -> Result<Arc<Placement>> {
        match &self.under {
            Some(placement) => Ok(placement.clone()),
            None => {
                let in_force = self.database().placements().of(tenant.as_str());
                Ok(in_force.map_err(|error| error.for_people())?.placement.clone())
            }
        }
    }

    /// Goes by the placement of a tenant until what is returned is dropped: nobody goes by another one of it meanwhile, and
    /// whoever drops the tenant waits.
    async fn go(&self, tenant: &TenantId) -> Result<Going> {
        let pass = self.database().enter_tenant(tenant)?;
        let by = match &self.under {
            Some(placement) => By::Under(placement.clone()),
            None => By::Entered(self.database().placements().enter(tenant.as_str()).await?),
        };
        Ok(Going { by, _pass: pass })
    }

    /// The same stores as somebody sees them who goes by this placement, whatever is in force: one who has not heard of a
    /// change yet.
    pub fn under(&self, placement: Placement) -> Stores {
        Stores { under: Some(Arc::new(placement)), ..self.clone() }
    }

    /// 128 random bits.
    fn random(&self) -> Result<[u8; 16]> {
        let mut bytes = [0; 16];
        match self.shared.ids {
            IdSource::System => SystemRandom::new()
                .fill(&mut bytes)
                .map_err(|_| SqlError::new("58000", "the system has no randomness to give").with_hint("retry"))?,
            IdSource::Env => {
                let bits = u128::from(self.env().random()) << 64 | u128::from(self.env().random());
                bytes = bits.to_be_bytes();
            }
        }
        Ok(bytes)
    }
}

fn known_tenant(tenant: Option<&str>) -> Result<Option<TenantId>> {
    tenant.map(TenantId::new).transpose().map_err(|error| SqlError::new("22023", error.to_string()))
}

/// What placements ask of the stores before a generation is removed, and whoever drops a tenant.
struct Keeping(Weak<Shared>);

#[async_trait]
impl Keeper for Keeping {
    async fn is_drained(&self, tenant: Option<&str>, generation: Generation) -> Result<bool> {
        let Some(shared) = self.0.upgrade() else { return Ok(true) };
        let tenant = known_tenant(tenant)?;
        Stores { shared, under: None }.desk().is_drained(tenant.as_ref(), generation).await
    }

    async fn kept(&self) -> Result<Vec<Kept>> {
        let Some(shared) = self.0.upgrade() else { return Ok(Vec::new()) };
        let stores = Stores { shared, under: None };
        // Another process may have made some.
        stores.learn_stores().await?;
        let (all, now) = (stores.list(), stores.now());
        Ok(all.iter().filter_map(|spec| Some(Kept { what: spec.kept_type()?, lasts: spec.lasts(now) })).collect())
    }

    async fn left(&self, tenant: Option<&str>, generation: Generation) -> Result<Option<Left>> {
        let Some(shared) = self.0.upgrade() else { return Ok(None) };
        let tenant = known_tenant(tenant)?;
        Stores { shared, under: None }.desk().left(tenant.as_ref(), generation).await.map(Some)
    }

    async fn make_room(&self, regions: &BTreeSet<RegionName>) -> Result<()> {
        let Some(shared) = self.0.upgrade() else { return Ok(()) };
        let (stores, regions) = (Stores { shared, under: None }, regions.clone());
        let making = stores.clone();
        stores.apart(async move { making.ensure_regions(&making.list(), &regions).await }).await
    }

    async fn keeps(&self, tenant: &TenantId) -> Result<bool> {
        let Some(shared) = self.0.upgrade() else { return Ok(false) };
        let (stores, tenant) = (Stores { shared, under: None }, tenant.clone());
        let looking = stores.clone();
        stores.apart(async move { Ok(looking.some_of(&tenant, 1).await?.is_some()) }).await
    }

    async fn forget(&self, tenant: &TenantId) -> Result<u64> {
        let Some(shared) = self.0.upgrade() else { return Ok(0) };
        let (stores, tenant) = (Stores { shared, under: None }, tenant.clone());
        let forgetting = stores.clone();
        stores.apart(async move { forgetting.forget_some(&tenant).await }).await
    }
}
