//! What operators ask before and after a change.

use super::change::{ChangeError, Migration};
use super::record::{self, ETag, HistoryEntry, is_default};
use super::{DEFAULT_TENANT, Kept, Left, Placements, Source};
use isles_kernel::error::SqlError;
use isles_kernel::id::Generation;
use isles_kernel::placement::{
    ConfigErrors, FieldChange, GroupImpact, KeptType, Placement, PlacementConfig, SAMPLED_KEYS, Timestamp, differences,
    impact,
};
use serde::Serialize;

/// Entries of a history that are shown if nobody says how many.
const SHOWN: usize = 20;

/// What a change would do.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DryRun {
    /// The state that it was compared with.
    pub etag: ETag,
    pub current_generation: u16,
    pub impact: Vec<GroupImpact>,
    pub changes: Vec<FieldChange>,
    pub warnings: Vec<String>,
}

/// When a generation may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Removable {
    /// It is written.
    Current,
    /// Its time is over.
    Expired,
    /// No record is left.
    Drained,
    /// Not yet.
    InForce,
}

impl Removable {
    pub fn name(self) -> &'static str {
        match self {
            Removable::Current => "current",
            Removable::Expired => "expired",
            Removable::Drained => "drained",
            Removable::InForce => "in_force",
        }
    }
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GenerationStatus {
    pub generation: u16,
    /// RFC 3339; none for the current one.
    pub valid_until: Option<String>,
    pub state: Removable,
    /// How many records hold it; none if nobody counts.
    pub records: Option<u64>,
    /// When the last of them ends if none is extended, in RFC 3339.
    pub last_ends: Option<String>,
    pub groups: usize,
    pub types: usize,
}

/// A tenant's placement, for people.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub tenant: String,
    pub source: Source,
    pub etag: ETag,
    pub generations: Vec<GenerationStatus>,
    /// What is wrong with its record.
    pub errors: Option<Vec<isles_kernel::placement::FieldError>>,
}

/// Whether placements are as they should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Tenants with a record.
    pub tenants: usize,
    /// Those whose record is invalid.
    pub invalid: Vec<String>,
    /// Tenants without a record have what is built in.
    pub uses_defaults: bool,
    /// The catalog tells of changes.
    pub is_following: bool,
}

impl Placements {
    pub fn health(&self) -> Health {
        let known = self.known.load();
        Health {
            tenants: known.count(),
            invalid: known.invalid(),
            uses_defaults: !known.has(DEFAULT_TENANT),
            is_following: self.is_following(),
        }
    }

    /// The configuration of a tenant as it is in the catalog; what it inherits if it has none.
    pub async fn get(&self, tenant: &str) -> Result<(ETag, Source, PlacementConfig), SqlError> {
        let base = self.baseline(tenant).await?;
        let source = self.of(tenant).map_or(Source::Configured, |in_force| in_force.source);
        let config = match &base.record {
            Some(stored) => stored.json().map_err(crate::commit::decision::catalog_error)?,
            None => base.placement.config().clone(),
        };
        Ok((base.etag(), source, config))
    }

    /// Everything that is wrong with a configuration, as the next one of a tenant.
    pub async fn validate(&self, tenant: &str, text: &str) -> Result<Result<Placement, ConfigErrors>, SqlError> {
        let (base, kept) = (self.baseline(tenant).await?, self.kept().await?);
        match self.checked(text, &base, &kept).await {
            Ok(placement) => Ok(Ok(placement)),
            Err(ChangeError::Invalid(errors)) => Ok(Err(errors)),
            Err(error) => Err(error.for_people()),
        }
    }

    /// What a configuration would do to the keys of a tenant.
    pub async fn dry_run(&self, tenant: &str, text: &str) -> Result<DryRun, ChangeError> {
        let (base, kept) = (self.baseline(tenant).await?, self.kept().await?);
        let new = self.checked(text, &base, &kept).await?;
        Ok(self.compared(base.etag(), (&base.placement, &new), &kept))
    }

    /// The same for a migration.
    pub async fn dry_run_migration(&self, tenant: &str, migration: Migration) -> Result<DryRun, ChangeError> {
        let (base, kept) = (self.baseline(tenant).await?, self.kept().await?);
        let new = self.migrated(&base, migration, &kept)?;
        Ok(self.compared(base.etag(), (&base.placement, &new), &kept))
    }

    fn compared(&self, etag: ETag, (old, new): (&Placement, &Placement), kept: &[Kept]) -> DryRun {
        let types: Vec<KeptType> = kept.iter().map(|one| one.what.clone()).collect();
        DryRun {
            etag,
            current_generation: new.current().generation().get(),
            impact: impact(old, new, &types, SAMPLED_KEYS),
            changes: differences(old.config(), new.config()),
            warnings: self.warnings(old, new, kept),
        }
    }

    /// The last changes of a tenant's configuration, the newest first.
    pub async fn history(&self, tenant: &str, limit: Option<usize>) -> Result<Vec<HistoryEntry>, SqlError> {
        let tenant = record::tenant_name(tenant)?;
        record::history(&*self.catalog, &tenant, limit.unwrap_or(SHOWN)).await
    }

    /// How two states of a tenant's configuration differ: entries of its history, and none for what is in force.
    pub async fn diff(&self, tenant: &str, from: u64, to: Option<u64>) -> Result<Vec<FieldChange>, SqlError> {
        let old = self.recorded(tenant, from).await?;
        let new = match to {
            Some(number) => self.recorded(tenant, number).await?,
            None => self.get(tenant).await?.2,
        };
        Ok(differences(&old, &new))
    }

    async fn recorded(&self, tenant: &str, number: u64) -> Result<PlacementConfig, SqlError> {
        let name = record::tenant_name(tenant)?;
        let missing = || SqlError::new("42704", format!("the history of tenant \"{tenant}\" has no entry {number}"));
        let entry = record::entry(&*self.catalog, &name, number).await?.ok_or_else(missing)?;
        serde_json::from_value(entry.config).map_err(|error| SqlError::new("XX000", error.to_string()))
    }

    /// What everyone who counts says is left of a generation.
    async fn left(&self, tenant: &str, generation: Generation) -> Result<Option<Left>, SqlError> {
        let mut all: Option<Left> = None;
        for keeper in self.keepers() {
            if let Some(left) = keeper.left((!is_default(tenant)).then_some(tenant), generation).await? {
                let sum = all.get_or_insert_default();
                sum.records += left.records;
                sum.last_end = sum.last_end.max(left.last_end);
            }
        }
        Ok(all)
    }

    /// The generations of a tenant, and when each may be removed.
    pub async fn status(&self, tenant: &str) -> Result<Status, SqlError> {
        let base = self.baseline(tenant).await?;
        let found = self.of(tenant);
        let mut generations = Vec::new();
        for map in base.placement.generations() {
            let state = match map.valid_until() {
                None => Removable::Current,
                Some(_) if !map.in_force(self.now()) => Removable::Expired,
                Some(_) if self.keepers().is_empty() => Removable::InForce,
                Some(_) if self.is_drained(tenant, map.generation()).await? => Removable::Drained,
                Some(_) => Removable::InForce,
            };
            let left = self.left(tenant, map.generation()).await?;
            let last_end = left.and_then(|left| left.last_end).and_then(|end| Timestamp::from_microsecond(end).ok());
            generations.push(GenerationStatus {
                generation: map.generation().get(),
                valid_until: map.valid_until().map(|until| until.to_string()),
                state,
                records: left.map(|left| left.records),
                last_ends: last_end.map(|end| end.to_string()),
                groups: map.groups().len(),
                types: map.types().count(),
            });
        }
        Ok(Status {
            tenant: tenant.to_owned(),
            source: found.as_ref().map_or(Source::Configured, |in_force| in_force.source),
            etag: base.etag(),
            generations,
            errors: found.err().map(|error| error.errors.errors().to_vec()),
        })
    }
}
