//! A database with its strategy, and the fragments that run in it.
//!
//! A store is opened once for a database. Its strategy is recorded there: a process that comes with another one, or with
//! none, is refused, for it would see what is not its own. The first fragment that names a strategy sets it for a
//! store that has none; another one is an error. The internal routes are the store's, so they have the same.
//!
//! Whoever opens a store gets the [`GlobalScope`] with it. Requests get handles of fragments, from which there is no way
//! to it, nor to the database below.
//!
//! What clients may see of a fragment is recorded, too: its published tables with their columns. When it changes, rows
//! have come, gone or changed beside the outbox, and the clients of the shards that have some begin anew.

use crate::adapter::{Access, Adapter, Mode, Note, Step, Transaction};
use crate::context::{GlobalScope, Scope, ShardContext, ShardState};
use crate::error::{Code, Result, refused};
use crate::hooks::Hook;
use crate::internal;
use crate::migrate::{self, settle};
use crate::schema::{Column, Schema, Table};
use crate::shard::{Shard, Strategy};
use crate::surroundings::Surroundings;
use crate::sync::Command;
use crate::uow::{Attempts, Plan};
use isles_kernel::sync::PartitionId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use tokio::sync::Notify;

/// Shards that wait for news at the same time; more are told by their polls alone.
const MAX_WAITED_FOR: usize = 10_000;
/// Shards that a listener is told by their names; when there are more it looks at all.
const MAX_TOLD: usize = 10_000;

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

    fn shape(&self) -> Shape {
        let columns = |table: &Arc<Table>| {
            let column = |column: &Column| (column.name.clone(), column.ty.name().to_string());
            table.columns.iter().map(column).collect()
        };
        let published = self.schema.tables().filter(|table| self.publishes(&table.name));
        published.map(|table| (table.name.clone(), columns(table))).collect()
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
    waiting: Mutex<BTreeMap<String, Arc<News>>>,
    /// Who is told where hooks are triggered; they are the processors' own.
    listeners: Mutex<Vec<Weak<Told>>>,
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
            listeners: Mutex::default(),
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
        if let Some(table) = fragment.schema.tables().find(|table| internal::is_own(table)) {
            return Err(refused(Code::SchemaInvalid, format!("\"{}\" is the name of a table of ours", table.physical))
                .with_hint("give the schema a namespace"));
        }
        let collides = |there: &Arc<Fragment>| there.schema.operations != fragment.schema.operations;
        if self.fragments().get(&key).is_some_and(collides) || key == self.0.internal.name {
            return Err(refused(Code::SchemaCollision, format!("there is another schema \"{key}\" in this database"))
                .with_hint("give one of them a namespace"));
        }
        let is_new = migrate::version_of(&*self.0.adapter, &fragment.schema).await? == 0;
        migrate::migrate(&*self.0.adapter, &fragment.schema).await?;
        self.announce(&fragment, is_new).await?;
        let fragment = Arc::new(fragment);
        self.0.fragments.write().unwrap_or_else(PoisonError::into_inner).insert(key, fragment.clone());
        Ok(Handle { store: self.clone(), fragment })
    }

    pub(crate) fn fragments(&self) -> BTreeMap<String, Arc<Fragment>> {
        self.0.fragments.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells clients to begin anew where what they may see is not what it was (I-34).
    async fn announce(&self, fragment: &Fragment, is_new: bool) -> Result<()> {
        let key = format!("published.{}", fragment.schema.key());
        let (now, shape) = (fragment.shape(), |text: &str| serde_json::from_str::<Shape>(text).unwrap_or_default());
        let text = serde_json::to_string(&now).unwrap_or_default();
        let from = migrate::setting(&*self.0.adapter, &key).await?;
        if from.as_deref() == Some(text.as_str()) {
            return Ok(());
        }
        // Nobody knows what those who came before this record had: all of it may be new.
        let before = from.as_deref().map(shape).unwrap_or_default();
        let changed = fragment.schema.tables().filter(|table| before.get(&table.name) != now.get(&table.name));
        let mut shards = BTreeSet::new();
        for table in changed.filter(|_| !is_new) {
            self.with_rows(table, &mut shards).await?;
        }
        for shard in &shards {
            migrate::again(|| self.begin_anew(shard)).await?;
        }
        // Behind it: a process that ends in between does it again, which costs clients a look and loses nothing.
        let (step, note) = (Step::new(""), Note { key, from, to: text });
        migrate::again(|| self.0.adapter.tables().run(&step, Some(&note))).await.map(|_| ())
    }

    pub(crate) fn adapter(&self) -> &Arc<dyn Adapter> {
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

    /// The access of a shard, for our own work in it: hooks, retention. What a database had before it became one shard
    /// has its own clock, log and hooks still.
    pub(crate) async fn access_to(&self, shard: &Shard) -> Result<Access> {
        let access = match (self.strategy(), shard) {
            (Some(Strategy::Adapter { .. }), Shard::Named(_)) => Access::Whole(shard.clone()),
            _ => Access::Shard(shard.clone()),
        };
        self.check_bound(&access).await?;
        Ok(access)
    }

    /// The shard that the rows of one are seen in: in a database that is one shard, that one.
    pub(crate) async fn home_of(&self, shard: &Shard) -> Result<Shard> {
        match (self.strategy(), shard) {
            (Some(Strategy::Adapter { .. }), Shard::None) => Ok(self.bound(None).await?.unwrap_or(Shard::None)),
            _ => Ok(shard.clone()),
        }
    }

    /// The shard that a database is bound to; the first that comes is recorded.
    async fn bound(&self, first: Option<&Shard>) -> Result<Option<Shard>> {
        let known = self.0.bound.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if known.is_some() {
            return Ok(known);
        }
        let name = match first.and_then(Shard::name) {
            Some(first) => Some(settle(&*self.0.adapter, BOUND, first).await?),
            None => migrate::setting(&*self.0.adapter, BOUND).await?,
        };
        let bound = name.map(Shard::named).transpose()?;
        self.0.bound.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&bound);
        Ok(bound)
    }

    /// In a database that is one shard, only that one.
    pub(crate) async fn check_bound(&self, access: &Access) -> Result<()> {
        let Access::Whole(shard) = access else { return Ok(()) };
        match self.bound(Some(shard)).await?.as_ref() == Some(shard) {
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
    pub(crate) fn news(&self, shard: &Shard) -> Option<Arc<News>> {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= MAX_WAITED_FOR {
            // Those that nobody waits for any more.
            waiting.retain(|_, news| Arc::strong_count(news) > 1);
        }
        match waiting.len() < MAX_WAITED_FOR {
            true => Some(waiting.entry(shard.key()).or_default().clone()),
            false => waiting.get(&shard.key()).cloned(),
        }
    }

    /// Tells those who wait in this process that a shard has committed.
    pub(crate) fn tell(&self, shard: &Shard, entry: bool, hooks: bool) {
        if entry && let Some(news) = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).get(&shard.key()) {
            news.come.notify_waiters();
        }
        if hooks {
            let mut listeners = self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner);
            listeners.retain(|one| one.upgrade().inspect(|told| told.tell(shard)).is_some());
        }
    }

    /// Is told of hooks that are triggered in this process from now on.
    pub(crate) fn listen(&self) -> Arc<Told> {
        let told = Arc::default();
        self.0.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&told));
        told
    }
}

/// News of a shard, and who looks for them in the database. One looks for all who wait.
#[derive(Default)]
pub(crate) struct News {
    pub(crate) come: Notify,
    is_looked_for: AtomicBool,
}

impl News {
    /// Makes the caller the one who looks, unless there is one.
    pub(crate) fn look(self: &Arc<News>) -> Option<Looks> {
        (!self.is_looked_for.swap(true, Ordering::SeqCst)).then(|| Looks(self.clone()))
    }
}

/// Looks for news until it is dropped.
pub(crate) struct Looks(Arc<News>);

impl Drop for Looks {
    fn drop(&mut self) {
        self.0.is_looked_for.store(false, Ordering::SeqCst);
        // Another one has to look from now on.
        self.0.come.notify_waiters();
    }
}

/// Shards that hooks were triggered in, for one who listens.
#[derive(Default)]
pub(crate) struct Told {
    shards: Mutex<BTreeSet<Shard>>,
    come: Notify,
}

impl Told {
    fn tell(&self, shard: &Shard) {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        // Those beyond are found when all are looked at.
        if shards.len() < MAX_TOLD {
            shards.insert(shard.clone());
        }
        drop(shards);
        self.come.notify_one();
    }

    /// Resolves when there is something to be told.
    pub(crate) async fn wait(&self) {
        self.come.notified().await;
    }

    pub(crate) fn take(&self) -> BTreeSet<Shard> {
        std::mem::take(&mut *self.shards.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What clients may see of a fragment: published tables, their columns and what those are.
type Shape = BTreeMap<String, Vec<(String, String)>>;

const BOUND: &str = "bound_shard";
const STRATEGY: &str = "sharding_strategy";

fn mismatch(recorded: &str, given: &str) -> crate::error::Error {
    refused(Code::StrategyMismatch, format!("the database has the strategy {recorded}, and {given} was given"))
        .with_hint("a database keeps the first strategy that was used with it")
}

fn unset() -> crate::error::Error {
    refused(Code::ShardUnset, "no shard is set")
        .with_hint("set it by the resolver of the request, or run within `ShardContext::with`")
}

/// Direct access to a database without a strategy: transactions that publish nothing and check nothing.
pub struct Direct(Store);

impl Direct {
    fn check(&self) -> Result<()> {
        match self.0.strategy() {
            None => Ok(()),
            Some(_) => Err(refused(Code::DirectAccess, "direct access is disabled where a strategy is set")
                .with_hint("use handler_tx or service_tx")),
        }
    }

    pub async fn begin(&self, mode: Mode) -> Result<Box<dyn Transaction>> {
        // A strategy may have come since.
        self.check()?;
        self.0.adapter().begin(&Access::Shard(Shard::None), mode).await
    }
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

    /// Direct access to the rows of the database. Where a strategy is set there is none: units of work name the shard.
    pub fn db(&self) -> Result<Direct> {
        let direct = Direct(self.store.clone());
        direct.check().map(|()| direct)
    }

    pub(crate) fn attempts(&self) -> Attempts {
        Attempts::default()
    }
}
