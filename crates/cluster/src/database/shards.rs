//! The shards of a database, open.
//!
//! A shard that has stopped itself is opened anew by the next one who asks for it. Before it is handed to anyone,
//! whatever was decided for it is carried out (I-20): between the two, a write of somebody else would find rows that a
//! commit has not reached.

use super::MAX_SHARDS;
use super::about::Strategy;
use super::binding;
use crate::catalog::Catalog;
use crate::commit::decision;
use crate::per_shard::PerShard;
use arc_swap::ArcSwapOption;
use isles_engine::env::Env;
use isles_engine::error::ShardError;
use isles_engine::postgres::{PostgresOptions, PostgresShard};
use isles_engine::shard::{Engine, Shard};
use isles_engine::sqlite::SqliteOptions;
use isles_engine::sqlite::fleet::Fleet;
use isles_kernel::names::ShardId;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Result<T> = std::result::Result<T, ShardError>;

/// Where a shard is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShardPlace {
    /// A file in the database's folder.
    Sqlite,
    Postgres {
        url: String,
    },
}

/// A URL may hold a password, so it is not shown.
impl std::fmt::Debug for ShardPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ShardPlace::Sqlite => "Sqlite",
            ShardPlace::Postgres { .. } => "Postgres",
        })
    }
}

impl ShardPlace {
    pub(crate) fn engine_name(&self) -> &'static str {
        match self {
            ShardPlace::Sqlite => "sqlite",
            ShardPlace::Postgres { .. } => "postgres",
        }
    }

    pub(crate) fn engine(&self) -> Engine {
        match self {
            ShardPlace::Sqlite => Engine::Sqlite,
            ShardPlace::Postgres { .. } => Engine::Postgres,
        }
    }
}

/// An open shard.
pub(crate) type OpenShard = Arc<dyn Shard>;

pub(super) struct Slot {
    place: ShardPlace,
    /// What is served. Boxed once more, since a fat pointer cannot be swapped.
    open: ArcSwapOption<OpenShard>,
    /// Held while the shard is being opened.
    opening: tokio::sync::Mutex<()>,
}

impl Slot {
    fn new(place: ShardPlace) -> Slot {
        Slot { place, open: ArcSwapOption::empty(), opening: tokio::sync::Mutex::new(()) }
    }
}

pub(crate) struct ShardSet {
    slots: PerShard<Slot>,
    fleet: Fleet,
    postgres: PostgresOptions,
    strategy: Strategy,
    catalog: Arc<dyn Catalog>,
    env: Arc<dyn Env>,
    /// Whether clients hear what goes wrong with a shard, who must not hear names of tenants.
    serves: AtomicBool,
    closed: AtomicBool,
}

impl ShardSet {
    pub(crate) fn new(
        places: impl IntoIterator<Item = (ShardId, ShardPlace)>,
        folder: PathBuf,
        (sqlite, postgres): (SqliteOptions, PostgresOptions),
        strategy: Strategy,
        catalog: Arc<dyn Catalog>,
        env: Arc<dyn Env>,
    ) -> ShardSet {
        ShardSet {
            slots: places.into_iter().map(|(id, place)| (id, Slot::new(place))).collect(),
            fleet: Fleet::new(folder, env.clone(), sqlite, MAX_SHARDS),
            postgres,
            strategy,
            catalog,
            env,
            serves: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn all(&self) -> Vec<(ShardId, Engine)> {
        self.slots.all().iter().map(|(id, slot)| (id.clone(), slot.place.engine())).collect()
    }

    pub(crate) fn names(&self) -> Vec<ShardId> {
        self.slots.all().keys().cloned().collect()
    }

    pub(crate) fn engine(&self, id: &ShardId) -> Option<Engine> {
        self.slots.get(id).map(|slot| slot.place.engine())
    }

    /// Whether there are shards of an engine.
    pub(crate) fn has(&self, engine: Engine) -> bool {
        self.slots.all().values().any(|slot| slot.place.engine() == engine)
    }

    /// Opens a shard that is not among these.
    pub(super) async fn open_stranger(&self, id: &ShardId, place: &ShardPlace) -> Result<OpenShard> {
        self.open_anew(id, place).await
    }

    /// Takes one in that is open and has all that the others have.
    pub(super) fn admit(&self, shard: OpenShard, place: ShardPlace) {
        let (id, slot) = (shard.id().clone(), Slot::new(place));
        slot.open.store(Some(Arc::new(shard)));
        self.slots.insert(id, slot);
    }

    /// Closes one for good; its files and tables stay.
    pub(super) async fn dismiss(&self, id: &ShardId) -> Result<()> {
        let Some(slot) = self.slots.remove(id) else { return Ok(()) };
        let _opening = slot.opening.lock().await;
        let open = slot.open.swap(None);
        self.let_go(id, &slot.place, open.as_deref()).await
    }

    /// Closes a shard that nobody uses.
    pub(super) async fn let_go(&self, id: &ShardId, place: &ShardPlace, open: Option<&OpenShard>) -> Result<()> {
        match (place, open) {
            (ShardPlace::Sqlite, _) => self.fleet.close_one(id).await,
            (ShardPlace::Postgres { .. }, Some(shard)) => shard.close().await,
            (ShardPlace::Postgres { .. }, None) => Ok(()),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// From here on clients are served.
    pub(crate) fn serve(&self) {
        self.serves.store(true, Ordering::SeqCst);
    }

    fn slot(&self, id: &ShardId) -> Result<Arc<Slot>> {
        self.slots.get(id).ok_or_else(|| ShardError::Unavailable(format!("there is no shard {id}")))
    }

    /// The shard, opened if it is not.
    pub(crate) async fn get(&self, id: &ShardId) -> Result<OpenShard> {
        let slot = self.slot(id)?;
        match &*slot.open.load() {
            Some(shard) => Ok(OpenShard::clone(shard)),
            None => self.open(id, &slot).await,
        }
    }

    /// The shard, opened anew if it has stopped.
    pub(crate) async fn reopen(&self, id: &ShardId) -> Result<OpenShard> {
        self.open(id, &*self.slot(id)?).await
    }

    async fn open(&self, id: &ShardId, slot: &Slot) -> Result<OpenShard> {
        let _opening = slot.opening.lock().await;
        if self.is_closed() {
            return Err(ShardError::Unavailable("the database is closed".into()));
        }
        let known = slot.open.load_full();
        if let Some(shard) = known
            && !matches!(shard.schema().await, Err(ShardError::Stopped(_)))
        {
            return Ok(OpenShard::clone(&shard));
        }
        // Whoever comes now waits for us, and not at a shard that has stopped.
        slot.open.store(None);
        let shard = self.open_anew(id, &slot.place).await?;
        self.verify(&shard).await?;
        decision::redeem_shard(&*self.catalog, &*shard).await?;
        slot.open.store(Some(Arc::new(shard.clone())));
        Ok(shard)
    }

    /// Refuses a shard that is another tenant's than the catalog says. Whose it is, the operator is told who starts the
    /// database.
    async fn verify(&self, shard: &OpenShard) -> Result<()> {
        match binding::verify(&*self.catalog, self.strategy, shard).await {
            Err(ShardError::Statement(_)) if self.serves.load(Ordering::SeqCst) => Err(ShardError::OtherTenant),
            verified => verified,
        }
    }

    async fn open_anew(&self, id: &ShardId, place: &ShardPlace) -> Result<OpenShard> {
        Ok(match place {
            ShardPlace::Sqlite => Arc::new(self.fleet.get(id).await?),
            ShardPlace::Postgres { url } => {
                Arc::new(PostgresShard::open(id.clone(), url, self.env.clone(), self.postgres.clone()).await?)
            }
        })
    }

    /// Lets running work end, and closes all.
    pub(crate) async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::SeqCst);
        for slot in self.slots.all().values() {
            let _opening = slot.opening.lock().await;
            if let (ShardPlace::Postgres { .. }, Some(shard)) = (&slot.place, slot.open.swap(None)) {
                shard.close().await?;
            }
        }
        self.fleet.close().await
    }
}
