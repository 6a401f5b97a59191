//! A database with its strategy, and the fragments that run in it.
//!
//! A store is opened once for a database. Its strategy is recorded there: a process that comes with another one, or with
//! none, is refused, for it would see what is not its own. The first fragment that names a strategy sets it for a
//! store that has none; another one is an error. The internal routes are the store's, so they have the same.
//!
//! Whoever opens a store gets the [`GlobalScope`] with it. Requests get handles of fragments, from which there is no way
//! to it.

use crate::adapter::{Access, Adapter};
use crate::context::{GlobalScope, Scope, ShardContext, ShardState};
use crate::error::{Code, Result, refused};
use crate::hooks::Hook;
use crate::internal;
use crate::migrate::{self, settle};
use crate::schema::{Schema, Table};
use crate::shard::{Shard, Strategy};
use crate::surroundings::Surroundings;
use crate::sync::Command;
use crate::uow::{Attempts, Plan};
use isles_kernel::sync::PartitionId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Notify;

/// Shards that wait for news at the same time; more are told by their polls alone.
const MAX_WAITED_FOR: usize = 10_000;

/// A bug to have, for tests that show that the harness finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// The outbox entry is written in a transaction of its own.
    OutboxApart,
}

/// Which tables of a fragment are in the outbox.
#[derive(Debug, Clone, Default)]
pub enum Published {
    #[default]
    None,
    All,
    Tables(BTreeSet<String>),
}

/// A fragment: a schema, and what its author has written for it.
pub struct Fragment {
    pub(crate) schema: Arc<Schema>,
    pub(crate) published: Published,
    pub(crate) commands: BTreeMap<String, Command>,
    pub(crate) hooks: BTreeMap<String, Hook>,
}

impl Fragment {
    pub fn new(schema: Schema) -> Fragment {
        Fragment {
            schema: Arc::new(schema),
            published: Published::None,
            commands: BTreeMap::new(),
            hooks: BTreeMap::new(),
        }
    }

    /// Puts changes of all tables into the outbox.
    pub fn outbox(mut self) -> Fragment {
        self.published = Published::All;
        self
    }

    /// Puts changes of some tables into the outbox.
    pub fn outbox_of(mut self, tables: &[&str]) -> Fragment {
        self.published = Published::Tables(tables.iter().map(|table| (*table).into()).collect());
        self
    }

    /// A command that clients submit by its name: it reads its input, or says what is wrong with it, and returns what is
    /// to be done.
    pub fn command(
        mut self,
        name: &str,
        command: impl Fn(&serde_json::Value) -> Result<Plan<()>> + Send + Sync + 'static,
    ) -> Fragment {
        self.commands.insert(name.into(), Arc::new(command));
        self
    }

    /// What runs after a commit that has triggered it.
    pub fn hook(mut self, name: &str, hook: Hook) -> Fragment {
        self.hooks.insert(name.into(), hook);
        self
    }

    pub(crate) fn publishes(&self, table: &str) -> bool {
        match &self.published {
            Published::None => false,
            Published::All => true,
            Published::Tables(tables) => tables.contains(table),
        }
    }
}

/// An open database for fragments. Clones are the same store.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    adapter: Arc<dyn Adapter>,
    strategy: RwLock<Option<Strategy>>,
    internal: Schema,
    secret: ring::hmac::Key,
    fragments: RwLock<BTreeMap<String, Arc<Fragment>>>,
    /// Who waits for entries of a shard.
    waiting: Mutex<BTreeMap<String, Arc<Notify>>>,
    /// Somebody has triggered a hook.
    triggered: Notify,
    bound: Mutex<Option<Shard>>,
    last_internal: Mutex<i64>,
    surroundings: Surroundings,
    planted: Option<Planted>,
}

impl Store {
    /// Opens a database for fragments, with the integrator's strategy.
    pub async fn open(adapter: Arc<dyn Adapter>, strategy: Option<Strategy>) -> Result<(Store, GlobalScope)> {
        Store::open_in(Surroundings::current(), adapter, strategy, None).await
    }

    /// The same in other surroundings than the runtime's own, or with a bug; for tests.
    pub async fn open_in(
        surroundings: Surroundings,
        adapter: Arc<dyn Adapter>,
        strategy: Option<Strategy>,
        planted: Option<Planted>,
    ) -> Result<(Store, GlobalScope)> {
        let internal = internal::schema()?;
        migrate::migrate(&*adapter, &internal).await?;
        let secret = settle(&*adapter, "partition_secret", &surroundings.new_secret()).await?;
        let recorded = migrate::setting(&*adapter, STRATEGY).await?;
        if let (Some(recorded), None) = (&recorded, &strategy) {
            return Err(mismatch(recorded, "none"));
        }
        let store = Store(Arc::new(Inner {
            adapter,
            strategy: RwLock::new(None),
            internal,
            secret: ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes()),
            fragments: RwLock::default(),
            waiting: Mutex::default(),
            triggered: Notify::new(),
            bound: Mutex::default(),
            last_internal: Mutex::new(0),
            surroundings,
            planted,
        }));
        if let Some(strategy) = strategy {
            store.use_strategy(strategy).await?;
        }
        Ok((store, GlobalScope::new()))
    }

    /// Sets the strategy, if there is none; the first one stays.
    pub async fn use_strategy(&self, strategy: Strategy) -> Result<()> {
        let text = serde_json::to_string(&strategy).unwrap_or_default();
        let recorded = settle(&*self.0.adapter, STRATEGY, &text).await?;
        if recorded != text {
            return Err(mismatch(&recorded, &text));
        }
        *self.0.strategy.write().unwrap_or_else(PoisonError::into_inner) = Some(strategy);
        Ok(())
    }

    pub fn strategy(&self) -> Option<Strategy> {
        self.0.strategy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Registers a fragment, and brings its tables to the version of its schema.
    pub async fn register(&self, fragment: Fragment, strategy: Option<Strategy>) -> Result<Handle> {
        if let Some(strategy) = strategy {
            self.use_strategy(strategy).await?;
        }
        let key = fragment.schema.key().to_string();
        let collides = |there: &Arc<Fragment>| there.schema.operations != fragment.schema.operations;
        if self.fragments().get(&key).is_some_and(collides) || key == self.0.internal.name {
            return Err(refused(Code::SchemaCollision, format!("there is another schema \"{key}\" in this database"))
                .with_hint("give one of them a namespace"));
        }
        migrate::migrate(&*self.0.adapter, &fragment.schema).await?;
        let fragment = Arc::new(fragment);
        self.0.fragments.write().unwrap_or_else(PoisonError::into_inner).insert(key, fragment.clone());
        Ok(Handle { store: self.clone(), fragment })
    }

    pub(crate) fn fragments(&self) -> BTreeMap<String, Arc<Fragment>> {
        self.0.fragments.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn adapter(&self) -> &Arc<dyn Adapter> {
        &self.0.adapter
    }

    pub(crate) fn planted(&self) -> Option<Planted> {
        self.0.planted
    }

    pub(crate) fn internal(&self, table: &str) -> Result<Arc<Table>> {
        self.0.internal.table(table).cloned()
    }

    /// The access that the context of the caller gives, captured now.
    pub(crate) fn access(&self) -> Result<Access> {
        let context = ShardContext;
        match (self.strategy(), context.get(), context.get_scope()) {
            (None, _, Scope::Scoped) => Ok(Access::Shard(Shard::None)),
            (_, _, Scope::Global) => Ok(Access::Global),
            (Some(_), ShardState::Unset, _) => Err(unset()),
            (Some(Strategy::Row), ShardState::Set(shard), _) => Ok(Access::Shard(shard)),
            (Some(Strategy::Adapter { .. }), ShardState::Set(Shard::None), _) => Err(unset()),
            (Some(Strategy::Adapter { .. }), ShardState::Set(shard), _) => Ok(Access::Whole(shard)),
        }
    }

    /// In a database that is one shard, only that one: the first that comes is recorded.
    pub(crate) async fn check_bound(&self, access: &Access) -> Result<()> {
        let Access::Whole(shard) = access else { return Ok(()) };
        let known = self.0.bound.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let bound = match known {
            Some(bound) => bound,
            None => {
                let name = settle(&*self.0.adapter, "bound_shard", shard.name().unwrap_or_default()).await?;
                let bound = Shard::named(name)?;
                *self.0.bound.lock().unwrap_or_else(PoisonError::into_inner) = Some(bound.clone());
                bound
            }
        };
        match bound == *shard {
            true => Ok(()),
            false => Err(refused(Code::ShardNotBound, "this database belongs to another shard")),
        }
    }

    /// An opaque name of what the clients of a shard may see.
    pub fn partition(&self, shard: &Shard) -> Result<PartitionId> {
        let tag = ring::hmac::sign(&self.0.secret, shard.key().as_bytes());
        let text: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        text.parse().map_err(|_| refused(Code::InvalidRequest, "the partition has no name"))
    }

    /// A number for a new row: roughly by time, and never twice in this process. Two processes that make the same one in
    /// one shard are told by its unique key.
    pub(crate) fn new_internal(&self) -> i64 {
        const RANDOM_BITS: u32 = 21;
        let random = (self.surroundings().random() & ((1 << RANDOM_BITS) - 1)) as i64;
        let mut last = self.0.last_internal.lock().unwrap_or_else(PoisonError::into_inner);
        *last = (*last + 1).max((self.now_ms() << RANDOM_BITS) | random);
        *last
    }

    /// Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> i64 {
        self.0.surroundings.now_ms()
    }

    pub(crate) fn surroundings(&self) -> &Surroundings {
        &self.0.surroundings
    }

    /// What is told when a shard has a new entry.
    pub(crate) fn news(&self, shard: &Shard) -> Option<Arc<Notify>> {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= MAX_WAITED_FOR {
            // Those that nobody waits for any more.
            waiting.retain(|_, notify| Arc::strong_count(notify) > 1);
        }
        match waiting.len() < MAX_WAITED_FOR {
            true => Some(waiting.entry(shard.key()).or_default().clone()),
            false => waiting.get(&shard.key()).cloned(),
        }
    }

    /// Tells those who wait in this process that a shard has committed.
    pub(crate) fn tell(&self, shard: &Shard, entry: bool, hooks: bool) {
        if entry && let Some(notify) = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).get(&shard.key()) {
            notify.notify_waiters();
        }
        if hooks {
            self.0.triggered.notify_one();
        }
    }

    /// Resolves when a hook was triggered in this process, or after a while.
    pub async fn triggered(&self, at_most: Duration) {
        // Either way there may be something to do.
        let _ = self.0.surroundings.within(at_most, self.0.triggered.notified()).await;
    }
}

const STRATEGY: &str = "sharding_strategy";

fn mismatch(recorded: &str, given: &str) -> crate::error::Error {
    refused(Code::StrategyMismatch, format!("the database has the strategy {recorded}, and {given} was given"))
        .with_hint("a database keeps the first strategy that was used with it")
}

fn unset() -> crate::error::Error {
    refused(Code::ShardUnset, "no shard is set")
        .with_hint("set it by the resolver of the request, or run within `ShardContext::with`")
}

/// A fragment in a store: what handlers and services work with.
#[derive(Clone)]
pub struct Handle {
    pub(crate) store: Store,
    pub(crate) fragment: Arc<Fragment>,
}

impl Handle {
    pub fn store(&self) -> &Store {
        &self.store
    }

    pub fn schema(&self) -> &Schema {
        &self.fragment.schema
    }

    pub fn shard_context(&self) -> ShardContext {
        ShardContext
    }

    /// Direct access to the adapter. Where a strategy is set there is none: units of work name the shard.
    pub fn db(&self) -> Result<&Arc<dyn Adapter>> {
        match self.store.strategy() {
            None => Ok(self.store.adapter()),
            Some(_) => Err(refused(Code::DirectAccess, "direct access is disabled where a strategy is set")
                .with_hint("use handler_tx or service_tx")),
        }
    }

    pub(crate) fn attempts(&self) -> Attempts {
        Attempts::default()
    }
}
