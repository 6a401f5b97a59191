//! Changes of a tenant's configuration.
//!
//! ```text
//! read the record ─► is it the one the caller has seen? ─► is the new one valid, and may it follow the old one?
//!                        no: Stale                           no: every field error
//!      ─► room for records in its regions ─► commit: configuration, entry of the history ─► publish
//! ```
//!
//! What may follow is decided against what is in the catalog, not against what is in memory, and against what is kept:
//! records of types that no configuration lists are lost like any other when their group goes or changes.
//!
//! The first record of a tenant replaces what it inherits. If nothing has been written by that, it may be anything that
//! is valid, and nobody writes by it while that is found out; otherwise it is a change like any other, so that what was written is found.

use super::record::{self, Action, ETag, HistoryEntry, RECORD_BYTES_MAX, is_default, read_config};
use super::{DEFAULT_TENANT, Kept, MAX_TENANTS, Placements, led_to, ttl};
use crate::catalog::{CatalogError, CommitId, Condition, Record, Revision, Transaction};
use crate::commit::decision::catalog_error;
use isles_kernel::error::SqlError;
use isles_kernel::id::Generation;
use isles_kernel::names::{RegionName, TenantId};
use isles_kernel::placement::{
    ConfigErrors, Entries, ErrorCode, Field, FieldError, Groups, KNOWN_REGIONS, KeptType, Optional, Placement,
    PlacementConfig, PreviousConfig, RegionShares, Timestamp, TypeConfig, check_kept, validate_change,
};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// The longest reason for a change, in bytes: a sentence or two.
pub(super) const REASON_BYTES_MAX: usize = 1_000;
/// How often a commit is sent whose answer was lost.
const COMMIT_ATTEMPTS: usize = 3;

/// Who changes what.
#[derive(Debug, Clone)]
pub struct Change<'a> {
    pub tenant: &'a str,
    /// The role that asks for it.
    pub by: &'a str,
    /// The state that the caller has seen.
    pub if_match: ETag,
    pub reason: Option<&'a str>,
}

/// What a new generation changes; whatever is left out stays.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Migration {
    #[serde(default)]
    pub groups: Optional<Groups>,
    #[serde(default)]
    pub base_regions: Optional<RegionShares>,
    #[serde(default)]
    pub types: Optional<Entries<Field<TypeConfig>>>,
    #[serde(default)]
    pub singletons: Optional<Vec<Field<String>>>,
    /// Until when the generation that was current is read; if not given, for as long as its records can last.
    #[serde(default)]
    pub valid_until: Optional<String>,
}

/// A change that was made.
#[derive(Debug, Clone)]
pub struct Changed {
    pub etag: ETag,
    pub generation: Generation,
    /// The entry of the history.
    pub number: u64,
    pub config: Value,
    /// What the caller may not have meant.
    pub warnings: Vec<String>,
}

/// Why a change was not made.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ChangeError {
    /// Read again, and decide again.
    #[error("the configuration has changed, it is {current} now")]
    Stale { current: ETag },
    #[error("{0}")]
    Invalid(ConfigErrors),
    #[error("{0}")]
    Other(SqlError),
}

impl From<SqlError> for ChangeError {
    fn from(error: SqlError) -> ChangeError {
        ChangeError::Other(error)
    }
}

impl From<ConfigErrors> for ChangeError {
    fn from(errors: ConfigErrors) -> ChangeError {
        ChangeError::Invalid(errors)
    }
}

impl ChangeError {
    pub fn for_people(self) -> SqlError {
        match self {
            ChangeError::Stale { current } => {
                SqlError::new("40001", format!("the placement has changed, its ETag is {current} now"))
                    .with_hint("read it again, and decide again")
            }
            ChangeError::Invalid(errors) => SqlError::new("22023", "the placement configuration is refused")
                .with_detail(errors.to_string())
                .with_hint("each line names a field; a generation's mapping never changes, a new generation does"),
            ChangeError::Other(error) => error,
        }
    }
}

/// What a change starts from.
pub(super) struct Baseline {
    pub(super) tenant: TenantId,
    /// The tenant's own record.
    pub(super) record: Option<Record>,
    /// What is in force by it, or was by the last that was valid.
    pub(super) placement: Arc<Placement>,
    /// It is not the tenant's own.
    is_inherited: bool,
    /// What must still hold when the change is made.
    conditions: Vec<Condition>,
}

impl Baseline {
    pub(super) fn etag(&self) -> ETag {
        self.record.as_ref().map_or(ETag::NONE, |record| ETag::of(record.revision))
    }
}

impl Placements {
    /// Replaces the configuration of a tenant.
    pub async fn put(&self, change: &Change<'_>, text: &str) -> Result<Changed, ChangeError> {
        let mut base = self.seen(change).await?;
        let kept = self.kept().await?;
        let mut closed = None;
        if base.is_inherited {
            // Whether anything is written by what is inherited must not change before the commit.
            closed = Some(self.close(change.tenant).await?);
            base = self.seen(change).await?;
        }
        let new = self.counted(change.tenant, self.checked(text, &base, &kept).await)?;
        let changed = self.commit(change, Action::Put, base, (new, &kept)).await;
        drop(closed);
        changed
    }

    /// Makes a new generation, and keeps the one that was current for its readers.
    pub async fn migrate(&self, change: &Change<'_>, migration: Migration) -> Result<Changed, ChangeError> {
        let base = self.seen(change).await?;
        let kept = self.kept().await?;
        let new = self.counted(change.tenant, self.migrated(&base, migration, &kept))?;
        self.commit(change, Action::Migrate, base, (new, &kept)).await
    }

    /// Where shards have regions and nobody has configured anything, the built-in defaults would lead to regions without a
    /// shard. Then those who have no record get one: the defaults, over the regions that there are. It is a record and no
    /// other default, since regions come and go, and what is written must be found.
    pub async fn settle_regions(&self) -> Result<(), SqlError> {
        let served = self.regions();
        let known: Vec<&str> =
            KNOWN_REGIONS.into_iter().filter(|known| served.iter().any(|one| one.as_str() == *known)).collect();
        let is_served = self.regions_are_served(&Placement::defaults()).is_ok();
        if known.is_empty() || is_served || self.known.load().has(DEFAULT_TENANT) {
            return Ok(());
        }
        let reason = Some("shards are in other regions than the built-in defaults lead to");
        let change = Change { tenant: DEFAULT_TENANT, by: "isles", if_match: ETag::NONE, reason };
        let shares = equal_shares(&known);
        let config = PlacementConfig { base_regions: shares.clone(), ..PlacementConfig::fallback() };
        let text = serde_json::to_string(&config)
            .map_err(|error| SqlError::new("XX000", format!("the configuration has no JSON form: {error}")))?;
        let put = match self.put(&change, &text).await {
            // Somebody has written by the defaults before shards had regions: what is there is still read.
            Err(ChangeError::Invalid(_)) => {
                self.migrate(&change, Migration { base_regions: shares, ..Migration::default() }).await
            }
            put => put,
        };
        match put {
            // Another process has been faster.
            Ok(_) | Err(ChangeError::Stale { .. }) => Ok(()),
            Err(error) => Err(error.for_people()),
        }
    }

    /// Forgets a generation that nobody needs any more.
    pub async fn remove_generation(&self, change: &Change<'_>, number: u32) -> Result<Changed, ChangeError> {
        let base = self.seen(change).await?;
        let position = self.removable(&base, number).await?;
        let mut config = base.placement.config().clone();
        if let Some(Field::Good(previous)) = &mut config.previous_generations {
            previous.remove(position);
        }
        let new = Placement::from_config(config)?;
        let kept = self.kept().await?;
        self.commit(change, Action::RemoveGeneration, base, (new, &kept)).await
    }

    /// A configuration that was to take effect and is refused counts as an invalid one that was met.
    fn counted(&self, tenant: &str, new: Result<Placement, ChangeError>) -> Result<Placement, ChangeError> {
        new.inspect_err(|error| {
            if let ChangeError::Invalid(errors) = error {
                self.count_invalid(tenant, errors);
            }
        })
    }

    /// The configuration that a migration would make.
    pub(super) fn migrated(
        &self,
        base: &Baseline,
        migration: Migration,
        kept: &[Kept],
    ) -> Result<Placement, ChangeError> {
        let new = Placement::from_config(self.next_generation(&base.placement, migration, kept)?)?;
        self.fits(Some(base), &new, kept)?;
        Ok(new)
    }

    /// A configuration that is valid, and may follow.
    pub(super) async fn checked(&self, text: &str, base: &Baseline, kept: &[Kept]) -> Result<Placement, ChangeError> {
        if text.len() > RECORD_BYTES_MAX {
            let message = format!("the configuration is larger than {RECORD_BYTES_MAX} bytes");
            return Err(ConfigErrors::one("", ErrorCode::TooLarge, message).into());
        }
        let new = Placement::from_json(text)?;
        // Only what somebody has written by can be lost.
        let is_written = !base.is_inherited || !self.is_unused(base).await?;
        self.fits(is_written.then_some(base), &new, kept)?;
        Ok(new)
    }

    /// Whether a configuration may follow another, has a place for all that is kept, and leads to regions with shards: all
    /// that is wrong with it is told at once.
    fn fits(&self, before: Option<&Baseline>, new: &Placement, kept: &[Kept]) -> Result<(), ConfigErrors> {
        let kept: Vec<KeptType> = kept.iter().map(|one| one.what.clone()).collect();
        let follows = before.map_or(Ok(()), |base| validate_change(&base.placement, new, &kept, self.now()));
        let all = [follows, check_kept(new, &kept), self.regions_are_served(new)];
        let errors = all.into_iter().filter_map(Result::err);
        ConfigErrors::none_of(errors.flat_map(ConfigErrors::into_errors).collect())
    }

    /// Where shards have regions, each region that gets buckets has a shard.
    fn regions_are_served(&self, new: &Placement) -> Result<(), ConfigErrors> {
        let served = self.regions.load();
        if served.is_empty() {
            return Ok(());
        }
        let mut missing: Vec<&RegionName> =
            new.current().groups().iter().flat_map(|group| group.ranges()).map(|range| &range.region).collect();
        missing.sort();
        missing.dedup();
        missing.retain(|region| !served.contains(*region));
        let error = |region: &RegionName| FieldError {
            field: format!("baseRegions.{region}"),
            code: ErrorCode::UnknownRegion,
            message: format!("no shard is in region {region}, so its buckets have no place; add one, or give it 0"),
        };
        ConfigErrors::none_of(missing.into_iter().map(error).collect())
    }

    async fn is_unused(&self, base: &Baseline) -> Result<bool, SqlError> {
        for map in base.placement.generations() {
            if !self.is_drained(base.tenant.as_str(), map.generation()).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether everyone who keeps records says that none is left. Those of all tenants without a record of their own
    /// go by the one of `default`.
    pub(super) async fn is_drained(&self, tenant: &str, generation: Generation) -> Result<bool, SqlError> {
        for keeper in self.keepers() {
            if !keeper.is_drained((!is_default(tenant)).then_some(tenant), generation).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn seen(&self, change: &Change<'_>) -> Result<Baseline, ChangeError> {
        if change.reason.is_some_and(|reason| reason.len() > REASON_BYTES_MAX) {
            let message = format!("a reason has at most {REASON_BYTES_MAX} bytes");
            return Err(SqlError::new("54000", message).into());
        }
        let base = self.baseline(change.tenant).await?;
        match base.etag() == change.if_match {
            true => Ok(base),
            false => Err(ChangeError::Stale { current: base.etag() }),
        }
    }

    pub(super) async fn baseline(&self, tenant: &str) -> Result<Baseline, SqlError> {
        let name = record::tenant_name(tenant)?;
        let record = record::load(&*self.catalog, &name).await?;
        if let Some(stored) = &record {
            let placement = match read_config(stored) {
                Ok(placement) => Arc::new(placement),
                Err(_) => self.last_valid(&name).await?,
            };
            let conditions = vec![stored.unchanged()];
            return Ok(Baseline { tenant: name, record, placement, is_inherited: false, conditions });
        }
        let mut conditions = vec![Condition::Absent(record::config_key(&name)?)];
        let (placement, inherited) = self.inherited().await?;
        if !is_default(tenant) {
            conditions.push(inherited);
        }
        Ok(Baseline { tenant: name, record, placement, is_inherited: true, conditions })
    }

    /// What tenants without a record have, and the condition that it stays so.
    async fn inherited(&self) -> Result<(Arc<Placement>, Condition), SqlError> {
        let default = record::tenant_name(DEFAULT_TENANT)?;
        match record::load(&*self.catalog, &default).await? {
            None => Ok((Arc::new(Placement::defaults()), Condition::Absent(record::config_key(&default)?))),
            Some(stored) => {
                let placement = read_config(&stored).map(Arc::new);
                Ok((placement.unwrap_or_else(|_| Arc::new(Placement::defaults())), stored.unchanged()))
            }
        }
    }

    /// What was in force before a record became invalid: who corrects it must not lose what was written by that.
    async fn last_valid(&self, tenant: &TenantId) -> Result<Arc<Placement>, SqlError> {
        if let Some(known) = self.known.load().last_valid(tenant.as_str()) {
            return Ok(known);
        }
        for entry in record::history(&*self.catalog, tenant, 1).await? {
            if let Ok(placement) = Placement::from_json(&entry.config.to_string()) {
                return Ok(Arc::new(placement));
            }
        }
        Ok(self.inherited().await?.0)
    }

    async fn commit(
        &self,
        change: &Change<'_>,
        action: Action,
        base: Baseline,
        (new, kept): (Placement, &[Kept]),
    ) -> Result<Changed, ChangeError> {
        if base.record.is_none() && self.known.load().count() >= MAX_TENANTS {
            let message = format!("at most {MAX_TENANTS} tenants have a placement of their own");
            return Err(SqlError::new("54000", message)
                .with_hint("tenants without one have that of \"default\"")
                .into());
        }
        let warnings = self.warnings(&base.placement, &new, kept);
        // Whoever meets a region for the first time may be in the middle of a transaction, where no room can be made.
        let regions = led_to(&new, self.now());
        for keeper in self.keepers() {
            keeper.make_room(&regions).await?;
        }
        let config = serde_json::to_value(new.config())
            .map_err(|error| SqlError::new("XX000", format!("the configuration has no JSON form: {error}")))?;
        let entry = HistoryEntry {
            number: 0,
            action,
            by: change.by.to_owned(),
            at: self.env.now_micros() / 1_000,
            reason: change.reason.map(str::to_owned),
            generation: new.current().generation().get(),
            replaced: base.etag(),
            config: config.clone(),
        };
        let key = record::config_key(&base.tenant)?;
        let value = config.to_string().into_bytes();
        let mut write = Transaction::new().once(CommitId::random(&*self.env)).put(key.clone(), value.clone());
        write.conditions.extend(base.conditions.iter().cloned());
        let (write, number) = record::with_entry(&*self.catalog, write, &base.tenant, entry).await?;
        let revision = self.commit_surely(write, base.tenant.as_str()).await?;
        let created = base.record.as_ref().map_or(revision, |record| record.created);
        self.publish_own(base.tenant.as_str(), Record { key, value, revision, created });
        let generation = new.current().generation();
        tracing::info!(tenant = %base.tenant, by = change.by, action = action.name(), %generation, number, "placement changed");
        Ok(Changed { etag: ETag::of(revision), generation, number, config, warnings })
    }

    /// Sends a commit again whose answer was lost; it has an id, so it happens once.
    async fn commit_surely(&self, write: Transaction, tenant: &str) -> Result<Revision, ChangeError> {
        let mut attempts = 1;
        loop {
            match self.catalog.commit(write.clone()).await {
                Ok(revision) => return Ok(revision),
                Err(CatalogError::Conflict { .. }) => {
                    let current = self.baseline(tenant).await?.etag();
                    return Err(ChangeError::Stale { current });
                }
                Err(CatalogError::MayHaveHappened(_)) if attempts < COMMIT_ATTEMPTS => attempts += 1,
                Err(error) => return Err(catalog_error(error).into()),
            }
        }
    }

    fn next_generation(
        &self,
        old: &Placement,
        migration: Migration,
        kept: &[Kept],
    ) -> Result<PlacementConfig, ChangeError> {
        let now = self.now();
        let current = old.current().generation();
        let next = current.next().ok_or_else(|| {
            let message = format!("generation {} is the last there can be", current.get());
            ConfigErrors::one("currentGeneration", ErrorCode::OutOfRange, message)
        })?;
        let mut config = old.config().clone();
        let valid_until = migration.valid_until.unwrap_or_else(|| {
            let lasts = ttl::longest(old, kept) + ttl::MARGIN;
            Field::Good(after(now, lasts).to_string())
        });
        let kept = PreviousConfig {
            generation: Some(i64::from(current.get()).into()),
            groups: config.groups.clone(),
            regions: config.base_regions.clone(),
            valid_until: Some(valid_until),
            ..PreviousConfig::default()
        };
        let previous = match config.previous_generations.take() {
            Some(Field::Good(previous)) => previous,
            _ => Vec::new(),
        };
        // Those without regions have what was written under the current ones so far.
        let pinned =
            previous.into_iter().zip(old.previous()).filter(|(_, map)| map.in_force(now)).map(
                |(entry, _)| match entry {
                    Field::Good(mut entry) => {
                        entry.regions = entry.regions.or_else(|| config.base_regions.clone());
                        Field::Good(entry)
                    }
                    bad => bad,
                },
            );
        let previous = std::iter::once(Field::Good(kept)).chain(pinned).collect::<Vec<_>>();
        config.previous_generations = Some(previous.into());
        config.current_generation = Some(i64::from(next.get()).into());
        config.groups = migration.groups.or(config.groups);
        config.base_regions = migration.base_regions.or(config.base_regions);
        config.types = migration.types.or(config.types);
        config.singletons = migration.singletons.or(config.singletons);
        Ok(config)
    }

    /// The position of a previous generation that may be removed.
    async fn removable(&self, base: &Baseline, number: u32) -> Result<usize, ChangeError> {
        if base.is_inherited {
            let message = format!("tenant \"{}\" has no placement of its own", base.tenant);
            return Err(SqlError::new("42704", message).into());
        }
        let is_it = |map: &isles_kernel::placement::GenerationMap| u32::from(map.generation().get()) == number;
        if is_it(base.placement.current()) {
            let message = format!("generation {number} is the current one");
            return Err(SqlError::new("55000", message).with_hint("make a new generation first").into());
        }
        let Some(position) = base.placement.previous().iter().position(is_it) else {
            return Err(SqlError::new("42704", format!("there is no generation {number}")).into());
        };
        let map = &base.placement.previous()[position];
        if !map.in_force(self.now()) {
            return Ok(position);
        }
        if !self.keepers().is_empty() && self.is_drained(base.tenant.as_str(), map.generation()).await? {
            return Ok(position);
        }
        let until = map.valid_until().map(|until| until.to_string()).unwrap_or_default();
        let message = format!("generation {number} is read until {until} and may have records");
        let hint = "wait until then, or until \"isles placement status\" says that it is drained";
        Err(SqlError::new("55000", message).with_hint(hint).into())
    }

    /// A generation that is dropped from the read path before its records have expired.
    pub(super) fn warnings(&self, old: &Placement, new: &Placement, kept: &[Kept]) -> Vec<String> {
        let was = old.current().generation();
        let needed = after(self.now(), ttl::longest(old, kept));
        let short = |until: Timestamp| {
            let number = was.get();
            format!("generation {number} is read until {until}, but its records may last until {needed}")
        };
        let kept = new.previous().iter().find(|map| map.generation() == was);
        kept.and_then(|map| map.valid_until()).filter(|until| *until < needed).map(short).into_iter().collect()
    }
}

/// As equal as whole percentages can be.
fn equal_shares(regions: &[&str]) -> Optional<RegionShares> {
    let count = i64::try_from(regions.len()).unwrap_or(1);
    let share = |at: usize| 100 / count + i64::from((at as i64) < 100 % count);
    let shares = regions.iter().enumerate().map(|(at, region)| ((*region).to_owned(), share(at).into()));
    Some(Entries(shares.collect()).into())
}

fn after(now: Timestamp, lasts: Duration) -> Timestamp {
    let seconds = i64::try_from(lasts.as_secs()).unwrap_or(i64::MAX);
    let later = now.as_second().saturating_add(seconds).saturating_add(1);
    Timestamp::from_second(later).unwrap_or(Timestamp::MAX)
}
