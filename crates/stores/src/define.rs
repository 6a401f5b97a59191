//! Stores in the catalog.
//!
//! ```text
//! store/{name}    a store, as it is written
//! ```
//!
//! All of them are in memory. A change by another process is seen when a store is asked for that is not known here, and
//! when this process changes one.

use super::spec::{Counting, LegacyPrefix, StoreConfig, StoreSpec};
use super::{Result, Stores, identity, tables};
use isles_cluster::catalog::{CatalogError, Key, Transaction};
use isles_cluster::database::catalog_error;
use isles_kernel::error::SqlError;
use isles_kernel::id::MAX_GENERATION;
use isles_kernel::names::{RegionName, TenantId};
use isles_kernel::placement::{KeptType, Placement, TypeName, check_kept};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Stores of a database. All of them are in memory, and each is a label in the metrics.
pub const MAX_STORES: usize = 256;

/// How long an operation may go by what a store was before it was altered.
const UNHEARD: Duration = Duration::from_secs(60);

const PREFIX: &str = "store/";
/// The tenant whose placement those have who have none.
const DEFAULT_TENANT: &str = "default";

/// What can be changed of a store. What is None stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Alteration {
    /// Ids that carry the prefix of before are still read.
    pub prefix: Option<String>,
    pub ttl_ms: Option<u64>,
    pub cap_ms: Option<u64>,
    pub grace_ms: Option<u64>,
    pub max_records: Option<u64>,
    pub max_per_owner: Option<u64>,
    pub max_per_tenant: Option<u64>,
    /// Quotas that are not given here are taken away.
    pub unlimited: bool,
}

fn key_of(name: &TypeName) -> Result<Key> {
    Key::new(format!("{PREFIX}{name}")).map_err(catalog_error)
}

fn unknown(name: &str) -> SqlError {
    SqlError::new("42704", format!("store \"{name}\" does not exist"))
        .with_hint("SELECT * FROM isles.stores() lists them")
}

impl Stores {
    /// Reads what there is, when the database is opened.
    pub(super) async fn learn(&self) -> Result<()> {
        self.learn_stores().await?;
        if !self.shared.specs.load().is_empty() {
            self.learn_tables().await?;
        }
        Ok(())
    }

    pub(super) async fn learn_stores(&self) -> Result<()> {
        let page = self.database().catalog().list(PREFIX, None, MAX_STORES).await.map_err(catalog_error)?;
        let mut specs = BTreeMap::new();
        for record in page.records {
            let config: StoreConfig = record.json().map_err(catalog_error)?;
            let spec = StoreSpec::check(config)?;
            specs.insert(spec.name.clone(), Arc::new(spec));
        }
        self.shared.specs.store(Arc::new(specs));
        Ok(())
    }

    /// In order of name.
    pub fn list(&self) -> Vec<Arc<StoreSpec>> {
        self.shared.specs.load().values().cloned().collect()
    }

    /// The store of a name.
    pub(super) async fn spec(&self, name: &str) -> Result<Arc<StoreSpec>> {
        let Ok(wanted) = TypeName::new(name) else { return Err(unknown(name)) };
        if let Some(spec) = self.shared.specs.load().get(&wanted) {
            return Ok(spec.clone());
        }
        // Another process may have made it.
        self.learn_stores().await?;
        self.learn_tables().await?;
        self.shared.specs.load().get(&wanted).cloned().ok_or_else(|| unknown(name))
    }

    pub async fn create(&self, mut config: StoreConfig) -> Result<Arc<StoreSpec>> {
        config.counting = self.counting(&config, self.now());
        let spec = Arc::new(StoreSpec::check(config)?);
        self.learn_stores().await?;
        let specs = self.shared.specs.load_full();
        if specs.contains_key(&spec.name) {
            return Err(SqlError::new("42710", format!("store \"{}\" already exists", spec.name)));
        }
        if specs.len() >= MAX_STORES {
            return Err(SqlError::new("54000", format!("a database has at most {MAX_STORES} stores")));
        }
        if let Some(why) = specs.values().find_map(|other| spec.conflict_with(other)) {
            return Err(SqlError::new("42710", why));
        }
        self.check_place(&spec)?;
        self.database().placements().settle_regions().await?;
        // Of every region that a tenant's placement leads to: no client need be the first to meet one.
        let regions = self.database().placements().regions_led_to();
        self.ensure_regions(std::slice::from_ref(&spec), &regions).await?;
        let key = key_of(&spec.name)?;
        let commit = Transaction::new().when_as_read(&key, None).put_json(key, spec.config()).map_err(catalog_error)?;
        match self.database().catalog().commit(commit).await {
            Ok(_) => {}
            Err(CatalogError::Conflict { .. }) => {
                return Err(SqlError::new("42710", format!("store \"{}\" already exists", spec.name)));
            }
            Err(error) => return Err(catalog_error(error)),
        }
        self.learn_stores().await?;
        Ok(spec)
    }

    /// How records of a store with quotas are counted, of which none is there that will not have expired by then.
    fn counting(&self, config: &StoreConfig, whole_from: i64) -> Option<Counting> {
        config.quotas().next()?;
        let whole_from_ms = u64::try_from(whole_from / 1_000).unwrap_or_default();
        Some(Counting { epoch: self.env().random() as u32, whole_from_ms })
    }

    /// The same after quotas were changed. Counters that went on all the time stay good; those that begin now miss what
    /// is there, and what is put by who has not heard of it yet.
    async fn counting_after(&self, spec: &StoreSpec, config: &StoreConfig) -> Result<Option<Counting>> {
        let counts = |config: &StoreConfig| {
            (config.max_records.or(config.max_per_tenant).is_some(), config.max_per_owner.is_some())
        };
        let (before, after) = (counts(spec.config()), counts(config));
        if before.0 >= after.0 && before.1 >= after.1 {
            return Ok(spec.config().counting.filter(|_| after.0 || after.1));
        }
        let cap = i64::try_from((spec.cap + UNHEARD).as_micros()).unwrap_or(i64::MAX / 4);
        let last = self.desk().last_end(spec).await?;
        Ok(self.counting(config, last.max(self.now() + cap)))
    }

    /// A singleton's name is a singleton's, a built-in prefix its type's, and a group must be somewhere.
    pub(super) fn check_place(&self, spec: &StoreSpec) -> Result<()> {
        let placement = self.placement(&default_tenant()?)?;
        let registry = placement.registry();
        if registry.is_singleton(spec.name.as_str()) && !spec.is_singleton() {
            return Err(SqlError::new("42P17", format!("{} is a singleton and can never be sharded", spec.name)));
        }
        for prefix in spec.prefixes() {
            if let Some(owner) = registry.by_prefix(prefix).filter(|owner| owner.name != spec.name) {
                return Err(SqlError::new("42710", format!("prefix {prefix} belongs to type {}", owner.name)));
            }
        }
        let Some(kept) = spec.kept_type() else { return Ok(()) };
        for (tenant, placement) in self.database().placements().in_force() {
            check_group(&tenant, &placement, &kept)?;
        }
        Ok(())
    }

    /// The tables of these stores in each of these regions.
    pub(super) async fn ensure_regions(&self, specs: &[Arc<StoreSpec>], regions: &BTreeSet<RegionName>) -> Result<()> {
        let served = self.database().placements().regions();
        // One without a shard, which a previous generation or a configuration of before leads to, has no place for tables.
        let has_place = |region: &&RegionName| served.is_empty() || served.contains(*region);
        if specs.iter().any(|spec| spec.is_singleton()) {
            self.ensure_table(tables::GLOBAL, false).await?;
        }
        for has_alias in [false, true] {
            if !specs.iter().any(|spec| !spec.is_singleton() && spec.has_alias == has_alias) {
                continue;
            }
            for region in regions.iter().filter(has_place) {
                self.ensure_table(region.as_str(), has_alias).await?;
            }
        }
        Ok(())
    }

    /// Every region in which a tenant may have records.
    pub(super) fn regions(&self, tenant: &TenantId) -> Result<BTreeSet<String>> {
        let placement = self.placement(tenant)?;
        let ranges = placement.generations().flat_map(|map| map.groups()).flat_map(|group| group.ranges());
        Ok(ranges.map(|range| range.region.to_string()).collect())
    }

    pub async fn alter(&self, name: &str, change: Alteration) -> Result<Arc<StoreSpec>> {
        let spec = self.spec(name).await?;
        let key = key_of(&spec.name)?;
        let read = self.database().catalog().get(&key).await.map_err(catalog_error)?.value;
        let Some(record) = read else { return Err(unknown(name)) };
        let mut config: StoreConfig = record.json().map_err(catalog_error)?;
        let before = StoreSpec::check(config.clone())?;
        if let Some(prefix) = change.prefix.filter(|prefix| *prefix != config.prefix) {
            // A prefix that is taken up again is no longer an old one.
            config.legacy.retain(|old| old.prefix != prefix);
            // Tenants change their generations one by one, so no number is the last for all of them. An id that was never
            // made leads to no record, whatever its generation: the prefix is part of the record's key.
            let old = std::mem::replace(&mut config.prefix, prefix);
            config.legacy.push(LegacyPrefix { prefix: old, until: MAX_GENERATION });
        }
        config.ttl_ms = change.ttl_ms.unwrap_or(config.ttl_ms);
        config.cap_ms = change.cap_ms.or(config.cap_ms);
        config.grace_ms = change.grace_ms.unwrap_or(config.grace_ms);
        let kept = |quota: Option<u64>| quota.filter(|_| !change.unlimited);
        config.max_records = change.max_records.or(kept(config.max_records));
        config.max_per_owner = change.max_per_owner.or(kept(config.max_per_owner));
        config.max_per_tenant = change.max_per_tenant.or(kept(config.max_per_tenant));
        config.counting = self.counting_after(&before, &config).await?;
        if config.cap_ms.unwrap_or(config.ttl_ms) < before.cap.as_millis() as u64 {
            // What is there keeps the cap that it was made with, and some will be made by who has not heard of it yet.
            let until = self.now() / 1_000 + (before.cap + UNHEARD).as_millis() as i64;
            config.lasting_until_ms = config.lasting_until_ms.max(u64::try_from(until).ok());
        }
        let altered = Arc::new(StoreSpec::check(config)?);
        let specs = self.shared.specs.load_full();
        let others = specs.values().filter(|other| other.name != altered.name);
        if let Some(why) = others.filter_map(|other| altered.conflict_with(other)).next() {
            return Err(SqlError::new("42710", why));
        }
        let commit =
            Transaction::new().when(record.unchanged()).put_json(key, altered.config()).map_err(catalog_error)?;
        self.database().catalog().commit(commit).await.map_err(catalog_error)?;
        self.learn_stores().await?;
        Ok(altered)
    }

    /// Forgets a store without live records: they would come back with the next store of this name.
    pub async fn drop_store(&self, name: &str) -> Result<()> {
        let spec = self.spec(name).await?;
        let live = self.desk().count_all(&spec).await?;
        if live > 0 {
            return Err(SqlError::new("2BP01", format!("store \"{name}\" has {live} records"))
                .with_hint("revoke and delete them, or wait until they expire"));
        }
        let commit = Transaction::new().delete(key_of(&spec.name)?);
        self.database().catalog().commit(commit).await.map_err(catalog_error)?;
        self.learn_stores().await
    }

    /// Creates the stores of a preset that are not there. Returns the names of those that it made.
    pub async fn create_preset(&self, name: &str) -> Result<Vec<String>> {
        if name != identity::PRESET {
            return Err(SqlError::new("42704", format!("preset \"{name}\" does not exist"))
                .with_hint(format!("there is {}", identity::PRESET)));
        }
        let mut made = Vec::new();
        for config in identity::preset() {
            let name = config.name.clone();
            match self.create(config).await {
                Ok(_) => made.push(name),
                Err(error) if error.sqlstate == "42710" && error.message.ends_with("already exists") => {}
                Err(error) => return Err(error),
            }
        }
        Ok(made)
    }
}

/// A tenant's placement has buckets for the keys of a store, and the same ones for those who are keyed by the same.
fn check_group(tenant: &str, placement: &Placement, kept: &KeptType) -> Result<()> {
    let map = placement.current();
    if map.group_for(&kept.name, &kept.group).is_none() {
        let groups: BTreeSet<&str> = map.groups().iter().map(|group| group.group().as_str()).collect();
        let hint = format!("the placement of \"{tenant}\" has {}", groups.into_iter().collect::<Vec<_>>().join(", "));
        return Err(SqlError::new("42704", format!("group \"{}\" does not exist", kept.group)).with_hint(hint));
    }
    check_kept(placement, std::slice::from_ref(kept)).map_err(|errors| {
        let message = format!("store \"{}\" does not fit the placement of tenant \"{tenant}\"", kept.name);
        SqlError::new("42P17", message)
            .with_detail(errors.to_string())
            .with_hint("the same key has the same group, count and salt wherever it is used")
    })
}

pub(super) fn default_tenant() -> Result<TenantId> {
    TenantId::new(DEFAULT_TENANT).map_err(|error| SqlError::new("XX000", error.to_string()))
}
