//! Placements of tenants: which bucket and region each key has, in each generation.
//!
//! ```text
//! region_shard_config:{tenantId}                 the configuration, as people write it
//! region_shard_state:{tenantId}                  which entries its history has
//! region_shard_history:{bytes}:{tenantId}:{n}    who changed it, when, and to what; the audit of changes
//!
//! catalog ──watch──► known: tenant ─► InForce ──► of(tenant), enter(tenant)
//!    ▲                                              stores, explanations
//!    └── put, migrate, remove: compare-and-set by ETag, with the entry of the history in the same commit
//! ```
//!
//! A tenant without a record has that of tenant `default`, and if there is none, built-in defaults: 20 buckets for
//! every type. Which of them is told by [`Source`], in the log, the metrics and [`Placements::health`].
//!
//! Invariants (docs/invariants.md):
//!   * I-60  A change and its entry in the history are one commit.
//!   * No configuration takes effect that breaks a rule, or that leads a key of a known generation elsewhere.
//!   * A record that breaks a rule, whoever wrote it, stops its tenant in production; it is never guessed around.
//!   * Who [enters](Placements::enter) a placement is never inside together with one who entered another of the same
//!     tenant: what must happen once (a code that is used, a proof that is seen) is decided by one of them.
//!
//! The catalog may be read late, so nothing here says who may write. A record that is written by an older placement is
//! in a generation that the newer one still reads.
//!
//! In reading order:
//!   * [`record`]  what is in the catalog, and its history
//!   * [`known`]   what is in force, and how it is followed
//!   * [`ttl`]     how long records of a type last
//!   * [`change`]  put, migrate, remove a generation
//!   * [`show`]    validate, dry run, history, differences, status

mod change;
mod known;
mod record;
mod show;
mod ttl;

pub use change::{Change, ChangeError, Changed, Migration};
pub use known::Entered;
pub use record::{Action, ETag, HistoryEntry};
pub use show::{DryRun, GenerationStatus, Health, Removable, Status};
pub use ttl::DEFAULT_TTL;

use crate::catalog::Catalog;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_kernel::id::Generation;
use isles_kernel::names::{RegionName, TenantId};
use isles_kernel::placement::{ConfigErrors, FieldError, KeptType, Placement, Timestamp};
use known::{Known, Users};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// Tenants with a record of their own. Each is held in memory, compiled; most tenants have that of `default`.
pub const MAX_TENANTS: usize = 2_000;

/// The tenant whose record holds for all that have none.
pub const DEFAULT_TENANT: &str = "default";

/// Pairs of tenant and group that invalid records are counted by; whatever comes later is counted under one name.
const MAX_COUNTED: usize = 1_000;
/// The name of those, and of what is wrong outside of every group.
const OTHER: &str = "";

/// What an invalid record does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Environment {
    /// Whoever needs it is refused.
    #[default]
    Production,
    /// The last valid one stays in force, with a warning.
    Development,
}

impl Environment {
    pub fn name(self) -> &'static str {
        match self {
            Environment::Production => "production",
            Environment::Development => "development",
        }
    }
}

/// Where a tenant's placement is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Its own record.
    Configured,
    /// The record of tenant `default`.
    Inherited,
    /// Its own record is invalid; this is the one before. In development only.
    LastValid,
    /// Built in.
    Defaults(Why),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Neither the tenant nor `default` has a record.
    Missing,
    /// There is one that is invalid. In development only.
    Invalid,
}

impl Source {
    pub fn name(self) -> &'static str {
        match self {
            Source::Configured => "configured",
            Source::Inherited => "inherited",
            Source::LastValid => "last_valid",
            Source::Defaults(_) => "defaults",
        }
    }
}

/// The placement of a tenant, at one moment.
#[derive(Debug)]
pub struct InForce {
    pub placement: Arc<Placement>,
    pub source: Source,
    /// Of the tenant's own record; [`ETag::NONE`] if it has none.
    pub etag: ETag,
    users: Arc<Users>,
    /// Those who are inside an earlier copy of the same placement.
    peers: Vec<Arc<Users>>,
    /// Those who were inside before this was in force.
    before: Vec<Arc<Users>>,
}

/// A tenant's record breaks a rule, and this is production.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the placement configuration of tenant \"{tenant}\" is invalid: {errors}")]
pub struct PlacementError {
    pub tenant: String,
    pub etag: ETag,
    pub errors: Arc<ConfigErrors>,
}

impl PlacementError {
    pub fn for_people(&self) -> SqlError {
        SqlError::new("F0000", format!("the placement configuration of tenant \"{}\" is invalid", self.tenant))
            .with_detail(self.errors.to_string())
            .with_hint("put a valid one with \"isles placement set\" or PUT /admin/sharding/config")
    }
}

/// A type that is kept under placements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub what: KeptType,
    /// The longest that a record lasts from now on: one that is there, or one that is written now.
    pub lasts: Duration,
}

/// What holds a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    pub records: u64,
    /// When the last of them ends if none is extended, in microseconds since 1970.
    pub last_end: Option<i64>,
}

/// Who keeps records under placements, and is asked about them.
#[async_trait]
pub trait Keeper: Send + Sync {
    /// Whether no record is left that was written in this generation: of one tenant, or of any.
    async fn is_drained(&self, tenant: Option<&str>, generation: Generation) -> Result<bool, SqlError>;

    /// Every type that it keeps under placements, whether or not configurations list it.
    async fn kept(&self) -> Result<Vec<Kept>, SqlError>;

    /// What is left of a generation; None from one who does not count.
    async fn left(&self, _tenant: Option<&str>, _generation: Generation) -> Result<Option<Left>, SqlError> {
        Ok(None)
    }

    /// Makes room for records in these regions, before a placement takes effect that leads there. One who keeps records
    /// where there is room anyway has nothing to do.
    async fn make_room(&self, _regions: &BTreeSet<RegionName>) -> Result<(), SqlError> {
        Ok(())
    }

    /// Whether it keeps anything of a tenant.
    async fn keeps(&self, _tenant: &TenantId) -> Result<bool, SqlError> {
        Ok(false)
    }

    /// Removes some of what it keeps of a tenant that is being dropped. Returns how much; nothing if nothing is left.
    async fn forget(&self, _tenant: &TenantId) -> Result<u64, SqlError> {
        Ok(0)
    }
}

/// The placements of all tenants.
pub struct Placements {
    catalog: Arc<dyn Catalog>,
    env: Arc<dyn Env>,
    environment: Environment,
    known: ArcSwap<Known>,
    /// Held by whoever makes the next `known` of the last.
    publishing: Mutex<()>,
    keepers: RwLock<Vec<Arc<dyn Keeper>>>,
    /// Tenants that nobody may enter, since it is being found out whether anything is written by what they inherit.
    closed: Mutex<BTreeMap<String, usize>>,
    /// How many of them there are, for those who enter any other.
    closings: AtomicUsize,
    heirs: Arc<known::Heirs>,
    /// Those that shards are in; empty if shards have none.
    regions: ArcSwap<BTreeSet<RegionName>>,
    /// How often an invalid record was met, by tenant and group.
    invalid: Mutex<BTreeMap<(String, String), u64>>,
    /// The catalog is read as it changes.
    is_following: AtomicBool,
}

impl Placements {
    /// What is in force for a tenant. Reads memory only.
    pub fn of(&self, tenant: &str) -> Result<Arc<InForce>, PlacementError> {
        let found = self.known.load().of(tenant);
        found.inspect_err(|error| self.count_invalid(&error.tenant, &error.errors))
    }

    pub fn environment(&self) -> Environment {
        self.environment
    }

    /// Asks this one, too, before a generation is removed.
    pub fn register(&self, keeper: Arc<dyn Keeper>) {
        self.keepers.write().unwrap_or_else(PoisonError::into_inner).push(keeper);
    }

    /// How often an invalid record was met: tenant, group (empty if it is no group's fault), times.
    pub fn invalid_counts(&self) -> Vec<(String, String, u64)> {
        let counts = self.invalid.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().map(|((tenant, group), times)| (tenant.clone(), group.clone(), *times)).collect()
    }

    /// The regions that shards are in; none if shards have no regions.
    pub fn regions(&self) -> Arc<BTreeSet<RegionName>> {
        self.regions.load_full()
    }

    /// Every region that a placement in force leads to, of whatever tenant.
    pub fn regions_led_to(&self) -> BTreeSet<RegionName> {
        let (known, now) = (self.known.load(), self.now());
        known.placements().flat_map(|placement| led_to(placement, now)).collect()
    }

    /// Says which regions have shards.
    pub(crate) fn set_regions(&self, regions: BTreeSet<RegionName>) {
        self.regions.store(Arc::new(regions));
    }

    pub(crate) fn now(&self) -> Timestamp {
        let micros = i64::try_from(self.env.now_micros()).unwrap_or(i64::MAX);
        Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX)
    }

    /// The placements in force, and whose they are: those of tenants with a record of their own, and what all others have.
    pub fn in_force(&self) -> Vec<(String, Arc<Placement>)> {
        self.known.load().named_placements()
    }

    /// Every type that somebody keeps.
    pub(crate) async fn kept(&self) -> Result<Vec<Kept>, SqlError> {
        let mut all = Vec::new();
        for keeper in self.keepers() {
            all.extend(keeper.kept().await?);
        }
        Ok(all)
    }

    pub(crate) fn keepers(&self) -> Vec<Arc<dyn Keeper>> {
        self.keepers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count_invalid(&self, tenant: &str, errors: &ConfigErrors) {
        let mut groups: Vec<&str> = errors.errors().iter().map(group_at_fault).collect();
        groups.sort_unstable();
        groups.dedup();
        let mut counts = self.invalid.lock().unwrap_or_else(PoisonError::into_inner);
        for group in groups {
            let mut name = (tenant.to_owned(), group.to_owned());
            if counts.len() >= MAX_COUNTED && !counts.contains_key(&name) {
                name = (OTHER.to_owned(), OTHER.to_owned());
            }
            *counts.entry(name).or_default() += 1;
        }
    }

    fn is_following(&self) -> bool {
        self.is_following.load(Ordering::SeqCst)
    }
}

/// The regions that keys are led to, in each generation in force.
fn led_to(placement: &Placement, now: Timestamp) -> BTreeSet<RegionName> {
    placement.generations().filter(|map| map.in_force(now)).flat_map(|map| map.regions()).cloned().collect()
}

/// The group that a field belongs to: `groups.vc.totalShards` is of `vc`.
fn group_at_fault(error: &FieldError) -> &str {
    let Some(rest) = error.field.strip_prefix("groups.") else { return OTHER };
    rest.split(['.', '[']).next().unwrap_or(OTHER)
}
