//! A database: a catalog, its shards, and what every session shares.
//!
//!     open: catalog ─► shards ─► commits that a crash left ─► routing and fences ─► schema ─► sessions
//!
//! One folder holds all of it, but for the shards that are PostgreSQL databases:
//!
//! ```text
//! catalog.db          the catalog
//! {shard}/shard.db    a shard that is a SQLite file
//! ```
//!
//! In reading order:
//!   * [`about`]     what a database is, from its first start on
//!   * [`members`]   which shards it has
//!   * [`shards`]    the shards, open
//!   * [`regions`]   what is kept where
//!   * [`routing`]   which shard serves which bucket
//!   * [`held`]      statements that wait for what is being cut over
//!   * [`strangers`] which shards have rows that they do not own
//!   * [`binding`]   a shard for each tenant
//!   * [`lock`]      who is inside the schema, and who is alone there
//!   * [`schema`]    how a transaction changes the schema
//!   * [`sequence`]  numbers that are unique over all shards
//!   * [`join`]      how a shard comes, and [`leave`] how it goes
//!
//! Invariants (docs/invariants.md):
//!   * I-6   opening can be interrupted at any point, and begins again
//!   * I-20  nobody is served before every decided commit is carried out

mod about;
pub(crate) mod binding;
#[cfg(test)]
mod crashes;
mod held;
mod join;
mod leave;
mod lock;
pub(crate) mod members;
pub(crate) mod regions;
pub(crate) mod routing;
pub(crate) mod schema;
pub(crate) mod sequence;
pub(crate) mod shards;
pub(crate) mod strangers;

pub use crate::execute::import::GivenRow;
pub use crate::execute::work::ShardWork;
pub use about::Strategy;
pub(crate) use held::Held;
pub use join::NewShard;
pub use leave::{Owned, ShardInfo};
pub use routing::RoutingRecord;
pub use shards::ShardPlace;

use crate::advisory::AdvisoryLocks;
use crate::catalog::{self, Catalog, OpenError, SqliteCatalog};
use crate::commit::decision;
pub use crate::commit::decision::catalog_error;
use crate::commit::latch::Latches;
use crate::commit::writers::{TxnNumber, Writers};
use crate::commit::{Coordinator, Planted, pledge_prefix};
use crate::execute::bounds::Bounds;
use crate::execute::work::{Noted, Works};
use crate::indexes::{self, Indexes};
use crate::migrations::{self, Migrations};
use crate::moves::{self, Moves};
use crate::placements::{Environment, Placements};
use crate::roles;
use crate::session::Procedures;
use crate::session::plans::Plans;
use crate::session::texts::Texts;
use crate::tenants::Tenants;
pub use crate::tenants::entry::Pass;
pub use crate::tenants::work::{OTHER, TenantWork, TenantWorks};
use arc_swap::{ArcSwap, ArcSwapOption};
use binding::Bindings;
use isles_engine::env::Env;
use isles_engine::postgres::PostgresOptions;
use isles_engine::shard::{Engine, Shard};
use isles_engine::sqlite::SqliteOptions;
use isles_kernel::error::SqlError;
use isles_kernel::hash::bucket_of;
use isles_kernel::names::{GroupName, RegionName, ShardId, TenantId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::Schema;
use isles_sql::system;
use lock::SchemaLock;
use members::Members;
use routing::Routing;
pub(crate) use schema::SchemaGuard;
use sequence::Sequences;
use shards::ShardSet;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use strangers::Strangers;

/// Shards of one database. Each costs some files or connections, and every scan asks all of them.
pub const MAX_SHARDS: usize = 1_000;
/// How long one who changes the schema waits for the statements and transactions that are running, and they for it.
const SCHEMA_LOCK_LIMIT: Duration = Duration::from_secs(30);
/// How often prepared transactions that nobody owns are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);
/// How long closing waits for the transactions that are running.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);
const CLOSE_POLL: Duration = Duration::from_millis(10);
/// How long opening waits for one who closes; of two servers in one folder the second is told after this.
const CATALOG_WAIT: Duration = Duration::from_secs(2);
/// Entries do not go wrong by themselves; once a day damage is found before many have met it.
const VERIFY_INDEXES_EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// How a database is opened.
#[derive(Debug, Clone)]
pub struct Config {
    /// Made if it is not there.
    pub folder: PathBuf,
    /// As clients name it.
    pub name: String,
    /// Those that it is made with, in order; they are called s0, s1, …
    pub shards: Vec<ShardPlace>,
    /// Where the folder is, and so the catalog and the shards that are files, unless `regions` says otherwise.
    pub region: Option<RegionName>,
    /// Where those are, in the same order; none for what is not said. A shard does not change its region.
    pub regions: Vec<Option<RegionName>>,
    /// They say nothing of a database that is there.
    pub only_if_new: bool,
    /// What the database has, if not said; `row` if it is new.
    pub strategy: Option<Strategy>,
    pub sqlite: SqliteOptions,
    pub postgres: PostgresOptions,
    pub catalog: catalog::Options,
    /// How often each global index is compared with the rows, and put right; never, if this is zero.
    pub verify_indexes_every: Duration,
    /// What global indexes may take.
    pub index_limits: indexes::Limits,
    /// What an invalid placement does.
    pub environment: Environment,
    /// What is around the database.
    pub server: ServerFacts,
    /// A bug to have, for tests that show that the harness finds it.
    pub planted: Option<Planted>,
    pub planted_move: Option<moves::Planted>,
    pub planted_index: Option<indexes::Planted>,
    pub planted_migration: Option<migrations::Planted>,
}

impl Config {
    fn of(folder: impl Into<PathBuf>, shards: Vec<ShardPlace>) -> Config {
        Config {
            folder: folder.into(),
            name: "isles".into(),
            shards,
            region: None,
            regions: Vec::new(),
            only_if_new: false,
            strategy: None,
            sqlite: SqliteOptions::default(),
            postgres: PostgresOptions::default(),
            catalog: catalog::Options::default(),
            verify_indexes_every: VERIFY_INDEXES_EVERY,
            index_limits: indexes::Limits::default(),
            environment: Environment::default(),
            server: ServerFacts::default(),
            planted: None,
            planted_move: None,
            planted_index: None,
            planted_migration: None,
        }
    }

    /// A database of so many SQLite files.
    pub fn sqlite(folder: impl Into<PathBuf>, shards: usize) -> Config {
        Config::of(folder, vec![ShardPlace::Sqlite; shards])
    }

    /// A database of PostgreSQL databases.
    pub fn postgres(folder: impl Into<PathBuf>, urls: Vec<String>) -> Config {
        Config::of(folder, urls.into_iter().map(|url| ShardPlace::Postgres { url }).collect())
    }
}

/// What `SHOW` tells of the server around the database.
#[derive(Debug, Clone, Copy, Default)]
pub struct ServerFacts {
    /// Sessions at once; 0 where nobody counts them.
    pub max_connections: usize,
    /// Whether clients can encrypt what they send.
    pub tls: bool,
}

/// An open database. Sessions hold it.
pub struct Database {
    pub(crate) name: String,
    pub(crate) env: Arc<dyn Env>,
    pub(crate) shards: Arc<ShardSet>,
    pub(crate) routing: Routing,
    strangers: Strangers,
    pub(crate) strategy: Strategy,
    pub(crate) server: ServerFacts,
    /// Of the catalog.
    region: Option<RegionName>,
    pub(crate) bindings: Bindings,
    pub(crate) sequences: Sequences,
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) latches: Arc<Latches>,
    pub(crate) writers: Arc<Writers>,
    pub(crate) advisory: Arc<AdvisoryLocks>,
    pub(crate) plans: Plans,
    /// What is known of texts with values in them.
    pub(crate) texts: Texts,
    /// What clients call in the schema `isles`.
    pub(crate) procedures: ArcSwap<Procedures>,
    works: Works,
    pub(crate) moves: Moves,
    pub(crate) migrations: Migrations,
    pub(crate) indexes: Arc<Indexes>,
    held: Arc<held::Holding>,
    pub(crate) tenants: Tenants,
    placements: Arc<Placements>,
    /// The first one has the global tables.
    members: ArcSwap<Members>,
    /// Held by whoever changes which shards there are.
    changing_members: tokio::sync::Mutex<()>,
    /// The shard that is being added: the schema stays as it is meanwhile.
    joining: ArcSwapOption<ShardId>,
    catalog: Arc<dyn Catalog>,
    /// As last read, for the system relations.
    roles: ArcSwap<Vec<system::Role>>,
    schema: schema::Current,
    /// Shared by statements and transactions, exclusive for those that change the schema.
    schema_lock: Arc<SchemaLock>,
    /// The catalog has not said whether it has recorded a change of the schema.
    stuck: AtomicBool,
    /// Prepared transactions that nobody owns are looked for.
    swept: AtomicBool,
    txns: AtomicU64,
    /// Transactions that are running.
    active: Arc<AtomicUsize>,
    closing: AtomicBool,
}

/// Says that a transaction is running, until it is dropped.
pub(crate) struct Active(Arc<AtomicUsize>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Makes a folder that nobody else on the machine can look into: the catalog has what is kept of passwords, and the
/// addresses of shards with theirs (I-61). One that is there stays as its owner has it.
fn make_private(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

impl Database {
    /// Opens the database in a folder, making it if there is none.
    pub async fn open(config: Config, env: Arc<dyn Env>) -> Result<Arc<Database>, SqlError> {
        if !(1..=MAX_SHARDS).contains(&config.shards.len()) {
            return Err(SqlError::new("22023", format!("a database has 1 to {MAX_SHARDS} shards")));
        }
        let cannot = |error: &dyn std::fmt::Display| {
            SqlError::new("58030", format!("cannot open the database in {}: {error}", config.folder.display()))
        };
        make_private(&config.folder).map_err(|error| cannot(&error))?;
        let path = config.folder.join("catalog.db");
        let catalog = open_catalog(&path, &env, &config.catalog).await;
        let catalog: Arc<dyn Catalog> = Arc::new(catalog.map_err(|error| cannot(&error))?);
        let about = about::about(&*catalog, &config, &*env).await?;
        let members = members::open(&*catalog, &about, &config).await?;
        let names: Vec<ShardId> = members.names().cloned().collect();
        let places = members.shards.iter().map(|member| (member.name.clone(), member.place.clone()));
        let indexes = Arc::new(Indexes::new(config.planted_index, config.index_limits));
        let options = (
            SqliteOptions { observed: indexes.observed(), ..config.sqlite },
            PostgresOptions { observed: indexes.observed(), ..config.postgres },
        );
        let shards =
            Arc::new(ShardSet::new(places, config.folder, options, about.strategy, catalog.clone(), env.clone()));
        let prefix = pledge_prefix(about.id);
        recover(&*catalog, &shards, &prefix).await?;
        let mut routing = Routing::open(catalog.clone(), &names).await?;
        routing.freeze_if(config.planted_move == Some(moves::Planted::OldMap));
        let schema = schema::open(&*catalog, &shards).await?;
        routing.place_global(&schema, &members, env.now_micros() / 1_000).await?;
        routing.set_fences(&shards).await?;
        let settled = binding::settle(about.strategy, &routing.current(), &members, &shards).await;
        settled.map_err(|error| error.for_people())?;
        shards.serve();
        let tenants = Tenants::open(catalog.clone()).await?;
        let placements = Placements::open(catalog.clone(), env.clone(), config.environment).await?;
        placements.set_regions(members.regions());
        let latches = Arc::new(Latches::new(names.iter().cloned()));
        let coordinator =
            Coordinator::new(catalog.clone(), shards.clone(), env.clone(), latches.clone(), prefix, config.planted);
        let database = Arc::new(Database {
            name: config.name,
            shards,
            bindings: Bindings::opened(about.strategy, &routing.current(), &members),
            strategy: about.strategy,
            server: config.server,
            region: config.region,
            routing,
            strangers: Strangers::default(),
            sequences: Sequences::new(catalog.clone(), env.clone()),
            coordinator: Arc::new(coordinator),
            latches,
            writers: Arc::default(),
            advisory: Arc::default(),
            plans: Plans::default(),
            texts: Texts::default(),
            procedures: ArcSwap::default(),
            works: Works::new(names.iter().cloned()),
            moves: Moves::new(config.planted_move),
            migrations: Migrations::new(config.planted_migration),
            indexes,
            held: Arc::default(),
            tenants,
            placements,
            members: ArcSwap::from_pointee(members),
            changing_members: tokio::sync::Mutex::default(),
            joining: ArcSwapOption::empty(),
            swept: AtomicBool::new(false),
            catalog,
            roles: ArcSwap::default(),
            schema: schema::Current::from_pointee(schema),
            schema_lock: Arc::default(),
            stuck: AtomicBool::new(false),
            txns: AtomicU64::new(0),
            active: Arc::default(),
            closing: AtomicBool::new(false),
            env,
        });
        database.learn_roles().await?;
        database.placements.follow();
        database.register_placements();
        database.start_sweeper();
        database.sweep_sequences();
        database.forget_joins().await?;
        database.start_indexes(config.verify_indexes_every);
        database.resume_moves().await?;
        database.resume_migrations();
        database.resume_drains();
        database.renew_figures();
        Ok(database)
    }

    /// What each shard has done since the database was opened.
    pub fn shard_work(&self) -> Vec<(ShardId, ShardWork)> {
        self.works.all()
    }

    /// How many statements some shards have run for clients.
    pub(crate) fn statements_on<'a>(&self, shards: impl IntoIterator<Item = &'a ShardId>) -> u64 {
        shards.into_iter().map(|shard| self.works.statements(shard)).sum()
    }

    /// Lets a statement wait for what is being cut over, unless too many do.
    pub(crate) fn hold(&self) -> Result<Held, SqlError> {
        held::Holding::hold(&self.held, &*self.env)
    }

    /// The routing of the moment.
    pub fn current_routing(&self) -> Arc<RoutingPolicy> {
        self.routing.current()
    }

    /// The shard that has the rows of a key of one text, as far as is known.
    pub fn shard_of_key(&self, group: &GroupName, key: &str) -> Option<ShardId> {
        let policy = self.routing.current();
        policy.shard_of_bucket(group, bucket_of(key, None, policy.buckets(group)?)).cloned()
    }

    /// The same, if it is of SQLite.
    pub fn sqlite_shard_of(&self, group: &GroupName, key: &str) -> Option<ShardId> {
        self.shard_of_key(group, key).filter(|shard| self.shards.engine(shard) == Some(Engine::Sqlite))
    }

    /// A shard, for an operator's work on it.
    pub async fn shard(&self, name: &ShardId) -> Result<Arc<dyn Shard>, SqlError> {
        self.shards.get(name).await.map_err(|error| error.for_people())
    }

    /// Statements that wait for what is being cut over.
    pub fn held_statements(&self) -> usize {
        self.held.count()
    }

    /// The last versions of the routing, the newest first, and how each came about.
    pub async fn routing_history(&self, limit: usize) -> Result<Vec<RoutingRecord>, SqlError> {
        self.routing.history(limit).await
    }

    /// Lets somebody in who keeps something of a tenant, until the pass is dropped; not while the tenant is being dropped.
    pub fn enter_tenant(&self, name: &TenantId) -> Result<Pass, SqlError> {
        self.tenants.entry(Some(name)).enter()
    }

    /// Whether it is being closed: whoever works in the background ends.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// What the busiest tenants have done since the database was opened, at most so many, and the rest together.
    pub fn tenant_work(&self, most: usize) -> TenantWorks {
        self.tenants.work(most)
    }

    /// Where it is noted what a statement does on the shards.
    pub(crate) fn noted<'a>(&'a self, bounds: &'a Bounds) -> Noted<'a> {
        Noted { works: &self.works, trace: bounds.trace.as_deref(), env: &*self.env }
    }

    /// Looks now and then for prepared transactions that nobody owns; only PostgreSQL keeps such.
    fn start_sweeper(self: &Arc<Self>) {
        if !self.shards.has(Engine::Postgres) || self.swept.swap(true, Ordering::SeqCst) {
            return;
        }
        let (database, env): (Weak<Database>, _) = (Arc::downgrade(self), self.env.clone());
        self.env.spawn(Box::pin(async move {
            loop {
                env.sleep(SWEEP_INTERVAL).await;
                let Some(database) = database.upgrade() else { return };
                if database.shards.is_closed() {
                    return;
                }
                // What cannot be done now is done by a later sweep.
                let _ = database.coordinator.sweep().await;
            }
        }));
    }

    /// Its clock, tasks and randomness, for those who stand above it.
    pub fn env(&self) -> &Arc<dyn Env> {
        &self.env
    }

    /// Which bucket and region each key of each tenant has.
    pub fn placements(&self) -> &Arc<Placements> {
        &self.placements
    }

    /// How its tenants are kept apart.
    pub fn strategy(&self) -> Strategy {
        self.strategy
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The shard that has been there for longest: of what all shards have, its copy is the one that is locked and copied.
    /// Only whoever is alone in the schema can take it away.
    pub(crate) fn first_shard(&self) -> ShardId {
        self.members().shards[0].name.clone()
    }

    pub(crate) fn members(&self) -> Arc<Members> {
        self.members.load_full()
    }

    /// The names of its shards, in the order in which they came.
    pub fn shard_names(&self) -> Vec<ShardId> {
        self.members().names().cloned().collect()
    }

    /// Whether all shards are SQLite files, which decides the default isolation.
    pub(crate) fn is_sqlite(&self) -> bool {
        !self.shards.has(Engine::Postgres)
    }

    /// How many shards are SQLite files, and how many PostgreSQL databases.
    pub fn shard_counts(&self) -> (usize, usize) {
        let all = self.shards.all();
        let sqlite = all.iter().filter(|(_, engine)| *engine == Engine::Sqlite).count();
        (sqlite, all.len() - sqlite)
    }

    /// The engines that there are, each once.
    pub(crate) fn engines(&self) -> Vec<Engine> {
        [Engine::Sqlite, Engine::Postgres].into_iter().filter(|engine| self.shards.has(*engine)).collect()
    }

    pub(crate) fn schema(&self) -> Arc<Schema> {
        self.schema.load_full()
    }

    pub fn catalog(&self) -> &Arc<dyn Catalog> {
        &self.catalog
    }

    /// The roles, as they were when this process last changed one or opened the database.
    pub(crate) fn roles(&self) -> Arc<Vec<system::Role>> {
        self.roles.load_full()
    }

    pub(crate) async fn learn_roles(&self) -> Result<(), SqlError> {
        let unread = |error| SqlError::new("58000", format!("the roles cannot be read: {error}"));
        let all = roles::all(self.catalog.as_ref()).await.map_err(unread)?;
        let shown = |(name, role): (String, roles::Role)| system::Role {
            name,
            can_login: role.login,
            is_superuser: role.admin,
        };
        self.roles.store(Arc::new(all.into_iter().map(shown).collect()));
        Ok(())
    }

    pub(crate) fn next_txn(&self) -> TxnNumber {
        TxnNumber(self.txns.fetch_add(1, Ordering::Relaxed))
    }

    /// Lets a transaction begin, unless the database is being closed.
    pub(crate) fn enter(&self) -> Result<Active, SqlError> {
        self.active.fetch_add(1, Ordering::SeqCst);
        let active = Active(self.active.clone());
        match self.closing.load(Ordering::SeqCst) {
            false => Ok(active),
            true => Err(SqlError::new("57P01", "terminating connection: the database is being closed")),
        }
    }

    /// The schema, which does not change for as long as the guard lives.
    pub(crate) async fn hold_schema(&self) -> Result<SchemaGuard, SqlError> {
        self.check_schema()?;
        let hold = match self.schema_lock.shared_now() {
            Some(hold) => hold,
            None => self.within_lock_limit(self.schema_lock.shared()).await?,
        };
        self.check_schema()?;
        Ok(SchemaGuard::new(self.schema(), hold))
    }

    fn check_schema(&self) -> Result<(), SqlError> {
        match self.stuck.load(Ordering::SeqCst) {
            false => Ok(()),
            true => Err(SqlError::new("57P03", "the schema may have changed: the catalog has not said")
                .with_hint("restart: then it is known")),
        }
    }

    async fn within_lock_limit<T>(&self, wait: impl Future<Output = T>) -> Result<T, SqlError> {
        tokio::select! {
            biased;
            lock = wait => Ok(lock),
            () = self.env.sleep(SCHEMA_LOCK_LIMIT) => {
                Err(SqlError::new("55P03", "canceling statement due to lock timeout")
                    .with_detail("the schema is being changed, or transactions that use it do not end"))
            }
        }
    }

    /// Lets running transactions end, then closes all.
    pub async fn close(&self) -> Result<(), SqlError> {
        self.closing.store(true, Ordering::SeqCst);
        let deadline = self.env.elapsed() + CLOSE_LIMIT;
        let drives = || self.moves.end() | self.migrations.end();
        let busy = || self.active.load(Ordering::SeqCst) > 0 || self.coordinator.is_busy() || drives();
        while busy() && self.env.elapsed() < deadline {
            self.env.sleep(CLOSE_POLL).await;
        }
        self.sequences.give_all_back().await;
        let closed = self.shards.close().await.map_err(|error| error.for_people());
        // Others may still have the database, and ask; whoever opens the folder next need not wait for them.
        self.catalog.close().await;
        closed
    }
}

/// Opens the catalog, and waits a moment for whoever has just let go of it: a read that had begun holds it until its end.
async fn open_catalog(path: &Path, env: &Arc<dyn Env>, options: &catalog::Options) -> Result<SqliteCatalog, OpenError> {
    let deadline = env.elapsed() + CATALOG_WAIT;
    loop {
        match SqliteCatalog::open(path, env.clone(), options.clone()).await {
            Err(OpenError::Locked(_)) if env.elapsed() < deadline => env.sleep(CLOSE_POLL).await,
            opened => return opened,
        }
    }
}

/// Opens all shards and carries out what was decided before a crash.
async fn recover(catalog: &dyn Catalog, shards: &ShardSet, prefix: &str) -> Result<(), SqlError> {
    for name in &shards.names() {
        shards.get(name).await.map_err(|error| error.for_people())?;
    }
    let waiting = decision::recover(catalog, shards, prefix, BTreeSet::new).await?;
    if waiting > 0 {
        return Err(SqlError::new("57P03", "a committed transaction cannot be carried out on one of its shards"));
    }
    for name in &shards.names() {
        let shard = shards.get(name).await.map_err(|error| error.for_people())?;
        shard.forget_pledges().await.map_err(|error| error.for_people())?;
    }
    Ok(())
}
