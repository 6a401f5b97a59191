//! Which bucket a key belongs to, and in which region that bucket is.
//!
//! A [`PlacementConfig`] is what people write. A [`Placement`] is one that was checked, and there is no other way
//! to get one; routing never meets a configuration that breaks a rule.
//!
//! ```text
//! type ──► group ──► bucket_of(key, salt, count) ──► region of that bucket
//!          (per generation: the current one for writes, then previous ones for reads)
//! ```
//!
//! Invariants:
//!   * I-37  An id leads to its bucket by itself, in every generation that is known.
//!   * I-39  Each bucket of each group is in exactly one region.
//!   * Types keyed by the same values agree on their bucket, or the configuration is refused.
//!   * A singleton is never sharded.
//!   * A generation's mapping never changes ([`validate_change`]).
//!
//! Regions are divided within each group. Dividing one list of buckets and taking a group's bucket modulo its
//! length, as is tempting, starves regions: of 16 buckets in a list of 20, none is in the last region.
//!
//! Generation 0 stands for what was written before ids carried a generation. It may be listed last among the
//! previous generations and is read by key like any other; no id can name it.
//!
//! Members with an override have a bucket space of their own, and so does each generation of a group: bucket 3
//! of one says nothing about bucket 3 of another. [`GroupMap::space`] is the name under which
//! [`routing`](crate::routing) knows them: `client-based`, `client-based-dpop`, `client-based-g2`.

mod apportion;
mod change;
mod config;
mod diff;
mod draft;
mod errors;
mod impact;
mod kept;
mod registry;
mod validate;

pub use apportion::{ApportionError, RegionRange, RegionShare, apportion};
pub use change::validate_change;
pub use config::{CONFIG_VERSION, Entries, Field, GroupConfig, MAX_CONFIG_BYTES, PlacementConfig, PreviousConfig};
pub use config::{Groups, Optional, RegionShares, TypeConfig, Unknown};
pub use diff::{FieldChange, differences};
pub use errors::{ConfigErrors, ErrorCode, FieldError};
pub use impact::{GroupImpact, RegionImpact, SAMPLED_KEYS, impact};
pub use jiff::Timestamp;
pub use kept::{KeptType, check_kept};
pub use registry::{Colocation, KeySchema, MAX_TYPES, RegistryError, TypeName, TypeRegistry, TypeSpec};
pub use validate::{DEFAULT_GROUP, KNOWN_REGIONS, MAX_GROUPS, MAX_PREVIOUS_GENERATIONS};

use crate::hash::{BucketCount, bucket_of};
use crate::id::{Generation, IdError, ResourceId, UniquePart};
use crate::names::{BucketId, GroupName, RegionName};
use serde::Serialize;
use std::collections::BTreeMap;

/// Where a key belongs in one generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Located {
    pub generation: Generation,
    /// The group, as the configuration names it.
    pub group: GroupName,
    /// The bucket space that `bucket` counts in, as routing names it.
    pub space: GroupName,
    pub bucket: BucketId,
    pub region: RegionName,
}

/// Why a key has no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocateError {
    #[error("there is no type {name}")]
    UnknownType { name: TypeName },
    #[error("{name} is a singleton and is not sharded")]
    Singleton { name: TypeName },
    #[error("region {region} has no buckets of group {group}")]
    EmptyRegion { region: RegionName, group: GroupName },
    #[error("the key belongs to region {home}, not {region}")]
    OtherRegion { region: RegionName, home: RegionName },
}

/// Why a well-formed id leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdCheckError {
    #[error("generation {} is not known", .generation.get())]
    UnknownGeneration { generation: Generation },
    #[error("no type has the prefix {prefix}")]
    UnknownType { prefix: String },
    #[error("type {name} is not placed in generation {}", .generation.get())]
    NotPlaced { name: TypeName, generation: Generation },
    #[error("shard {bucket} is not below {buckets}")]
    BucketOutOfRange { bucket: BucketId, buckets: BucketCount },
    #[error("region {region} is not known")]
    UnknownRegion { region: RegionName },
    #[error("shard {bucket} is in region {home}, not {region}")]
    WrongRegion { bucket: BucketId, home: RegionName, region: RegionName },
}

impl IdCheckError {
    /// The part of the id at fault, as [`IdField`](crate::id::IdField) names it.
    pub fn field(&self) -> crate::id::IdField {
        use crate::id::IdField;
        match self {
            IdCheckError::UnknownGeneration { .. } => IdField::Generation,
            IdCheckError::UnknownType { .. } | IdCheckError::NotPlaced { .. } => IdField::Type,
            IdCheckError::BucketOutOfRange { .. } => IdField::Shard,
            IdCheckError::UnknownRegion { .. } | IdCheckError::WrongRegion { .. } => IdField::Region,
        }
    }

    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            IdCheckError::UnknownGeneration { .. } => "unknown_generation",
            IdCheckError::UnknownType { .. } => "unknown_type",
            IdCheckError::NotPlaced { .. } => "not_placed",
            IdCheckError::BucketOutOfRange { .. } => "out_of_range",
            IdCheckError::UnknownRegion { .. } => "unknown_region",
            IdCheckError::WrongRegion { .. } => "wrong_region",
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            IdCheckError::UnknownGeneration { .. } => "the id is older than the configuration remembers, or made up",
            IdCheckError::UnknownType { .. } => "register the type under `types`, or check the prefix",
            _ => "the id was not minted under this configuration",
        }
    }
}

/// An id whose parts all exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedId<'a> {
    pub spec: &'a TypeSpec,
    pub located: Located,
    /// When its generation stops being read; none for the current one.
    pub valid_until: Option<Timestamp>,
}

/// The buckets of one bucket space: a group, or one of its members with an override.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMap {
    group: GroupName,
    space: GroupName,
    is_override: bool,
    buckets: BucketCount,
    salt: Option<String>,
    /// What every member is keyed by, if the group says so.
    key: Option<KeySchema>,
    /// Contiguous, and together all buckets.
    ranges: Vec<RegionRange>,
    /// In order of name.
    members: Vec<TypeName>,
}

impl GroupMap {
    pub fn group(&self) -> &GroupName {
        &self.group
    }

    pub fn space(&self) -> &GroupName {
        &self.space
    }

    pub fn buckets(&self) -> BucketCount {
        self.buckets
    }

    pub fn salt(&self) -> Option<&str> {
        self.salt.as_deref()
    }

    /// What everything in it is keyed by, if that is said.
    pub fn key(&self) -> Option<&KeySchema> {
        self.key.as_ref()
    }

    pub fn ranges(&self) -> &[RegionRange] {
        &self.ranges
    }

    pub fn members(&self) -> &[TypeName] {
        &self.members
    }

    /// Whether this is the bucket space of a member with a count of its own.
    pub fn is_override(&self) -> bool {
        self.is_override
    }

    pub fn bucket_of(&self, key: &str) -> BucketId {
        bucket_of(key, self.salt(), self.buckets)
    }

    /// None if the group has no such bucket.
    pub fn region_of(&self, bucket: BucketId) -> Option<&RegionName> {
        self.ranges.iter().find(|range| range.contains(bucket)).map(|range| &range.region)
    }

    fn range_of(&self, region: &RegionName) -> Option<&RegionRange> {
        self.ranges.iter().find(|range| range.region == *region)
    }

    fn located(&self, generation: Generation, bucket: BucketId) -> Located {
        Located {
            generation,
            group: self.group.clone(),
            space: self.space.clone(),
            bucket,
            region: self.region_of(bucket).expect("the ranges cover every bucket of the group").clone(),
        }
    }
}

/// One generation: every bucket space, and which of them each type uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerationMap {
    generation: Generation,
    valid_until: Option<Timestamp>,
    /// In order of space name.
    groups: Vec<GroupMap>,
    /// Type → index into `groups`.
    of_type: BTreeMap<TypeName, usize>,
}

impl GenerationMap {
    fn new(generation: Generation, valid_until: Option<Timestamp>, groups: Vec<GroupMap>) -> GenerationMap {
        let index = |(i, group): (usize, &GroupMap)| {
            group.members.iter().map(move |name| (name.clone(), i)).collect::<Vec<_>>()
        };
        let of_type = groups.iter().enumerate().flat_map(index).collect();
        GenerationMap { generation, valid_until, groups, of_type }
    }

    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// None for the current generation.
    pub fn valid_until(&self) -> Option<Timestamp> {
        self.valid_until
    }

    pub fn groups(&self) -> &[GroupMap] {
        &self.groups
    }

    pub fn group_of(&self, name: &TypeName) -> Option<&GroupMap> {
        self.of_type.get(name).map(|&i| &self.groups[i])
    }

    /// The group of a name, with the buckets of the members that share its count.
    pub fn group_named(&self, name: &GroupName) -> Option<&GroupMap> {
        self.groups.iter().find(|group| group.group == *name && !group.is_override)
    }

    /// The buckets of a type that may be listed or not: of the group that it is a member of, else of the one that it
    /// names, else of the default one.
    pub fn group_for(&self, name: &TypeName, group: &GroupName) -> Option<&GroupMap> {
        let default = || self.groups.iter().find(|group| group.group.as_str() == DEFAULT_GROUP && !group.is_override);
        self.group_of(name).or_else(|| self.group_named(group)).or_else(default)
    }

    pub fn types(&self) -> impl Iterator<Item = (&TypeName, &GroupMap)> {
        self.of_type.iter().map(|(name, &i)| (name, &self.groups[i]))
    }

    /// Whether reads still look here.
    pub fn in_force(&self, now: Timestamp) -> bool {
        self.valid_until.is_none_or(|until| now < until)
    }

    /// Every region that has buckets.
    pub fn regions(&self) -> impl Iterator<Item = &RegionName> {
        self.groups.iter().flat_map(|group| &group.ranges).map(|range| &range.region)
    }

    fn locate(&self, name: &TypeName, key: &str) -> Option<Located> {
        let group = self.group_of(name)?;
        Some(group.located(self.generation, group.bucket_of(key)))
    }
}

/// A configuration that obeys every rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    config: PlacementConfig,
    registry: TypeRegistry,
    current: GenerationMap,
    /// The most recent first.
    previous: Vec<GenerationMap>,
}

impl Placement {
    /// Checks a configuration; on failure, everything that is wrong with it.
    pub fn from_config(config: PlacementConfig) -> Result<Placement, ConfigErrors> {
        let validate::Compiled { registry, current, previous } = validate::compile(&config)?;
        Ok(Placement { config, registry, current, previous })
    }

    pub fn from_json(text: &str) -> Result<Placement, ConfigErrors> {
        if text.len() > MAX_CONFIG_BYTES {
            let message = format!("the configuration is larger than {MAX_CONFIG_BYTES} bytes");
            return Err(ConfigErrors::one("", ErrorCode::TooLarge, message));
        }
        let config = serde_json::from_str(text);
        let config = config
            .map_err(|fault| ConfigErrors::one("", ErrorCode::Malformed, format!("not a configuration: {fault}")))?;
        Placement::from_config(config)
    }

    /// What holds when there is no configuration: 20 buckets for every type.
    pub fn defaults() -> Placement {
        Placement::from_config(PlacementConfig::fallback()).expect("the built-in configuration is valid; it is tested")
    }

    /// The groups that the built-in types are meant for.
    pub fn preset() -> Placement {
        Placement::from_config(PlacementConfig::preset()).expect("the built-in configuration is valid; it is tested")
    }

    /// As it was written.
    pub fn config(&self) -> &PlacementConfig {
        &self.config
    }

    pub fn registry(&self) -> &TypeRegistry {
        &self.registry
    }

    pub fn current(&self) -> &GenerationMap {
        &self.current
    }

    pub fn previous(&self) -> &[GenerationMap] {
        &self.previous
    }

    /// The current generation, then previous ones by recency.
    pub fn generations(&self) -> impl Iterator<Item = &GenerationMap> {
        std::iter::once(&self.current).chain(&self.previous)
    }

    /// Where a key of a type is written.
    pub fn locate(&self, name: &TypeName, key: &str) -> Result<Located, LocateError> {
        self.current.locate(name, key).ok_or_else(|| self.unplaced(name))
    }

    /// Where a new record is written when its caller wants it in `region`.
    ///
    /// A type with random keys is found by its id alone, so any bucket of the region will do. Any other type is
    /// also found by hashing its key, which settles the region.
    pub fn locate_in(&self, name: &TypeName, key: &str, region: &RegionName) -> Result<Located, LocateError> {
        let home = self.locate(name, key)?;
        if home.region == *region {
            return Ok(home);
        }
        let random = self.registry.get(name).is_some_and(|spec| spec.key.colocation() == Colocation::Unrelated);
        if !random {
            return Err(LocateError::OtherRegion { region: region.clone(), home: home.region });
        }
        let group = self.current.group_of(name).ok_or_else(|| self.unplaced(name))?;
        let empty = || LocateError::EmptyRegion { region: region.clone(), group: group.group.clone() };
        let range = group.range_of(region).ok_or_else(empty)?;
        let count = BucketCount::new(range.bucket_count()).ok_or_else(empty)?;
        let offset = bucket_of(key, group.salt(), count);
        Ok(group.located(self.current.generation, BucketId(range.first.0 + offset.0)))
    }

    /// Where a key of a type is looked for, in this order: the current generation, then each previous one that
    /// is still read at `now`. A generation that does not place the type is left out.
    pub fn read_path(&self, name: &TypeName, key: &str, now: Timestamp) -> Result<Vec<Located>, LocateError> {
        let current = self.locate(name, key)?;
        let previous = self.previous.iter().filter(|map| map.in_force(now));
        Ok(std::iter::once(current).chain(previous.filter_map(|map| map.locate(name, key))).collect())
    }

    /// Makes the id of a new record at a place that [`locate`](Placement::locate) returned.
    pub fn mint(&self, name: &TypeName, at: &Located, unique: UniquePart) -> Result<ResourceId, MintError> {
        let spec = self.registry.get(name).ok_or_else(|| self.unplaced(name))?;
        Ok(ResourceId::mint(at.generation, at.region.clone(), at.bucket, spec.prefix.clone(), unique)?)
    }

    /// Whether the parts of an id exist and agree. Clients choose the ids they send, so every one is checked
    /// before it is followed.
    pub fn check_id(&self, id: &ResourceId) -> Result<CheckedId<'_>, IdCheckError> {
        let generation = id.generation();
        let map = self.generations().find(|map| map.generation == generation);
        let map = map.ok_or(IdCheckError::UnknownGeneration { generation })?;
        let spec = self.registry.by_prefix(id.prefix());
        let spec = spec.ok_or_else(|| IdCheckError::UnknownType { prefix: id.prefix().to_string() })?;
        let group = map.group_of(&spec.name);
        let group = group.ok_or_else(|| IdCheckError::NotPlaced { name: spec.name.clone(), generation })?;
        if !KNOWN_REGIONS.contains(&id.region().as_str()) {
            return Err(IdCheckError::UnknownRegion { region: id.region().clone() });
        }
        let bucket = id.bucket();
        let home = group.region_of(bucket).ok_or(IdCheckError::BucketOutOfRange { bucket, buckets: group.buckets })?;
        if home != id.region() {
            return Err(IdCheckError::WrongRegion { bucket, home: home.clone(), region: id.region().clone() });
        }
        Ok(CheckedId { spec, located: group.located(generation, bucket), valid_until: map.valid_until })
    }

    fn unplaced(&self, name: &TypeName) -> LocateError {
        match self.registry.is_singleton(name.as_str()) {
            true => LocateError::Singleton { name: name.clone() },
            false => LocateError::UnknownType { name: name.clone() },
        }
    }
}

/// Why no id was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MintError {
    #[error(transparent)]
    Locate(#[from] LocateError),
    #[error(transparent)]
    Id(#[from] IdError),
}
