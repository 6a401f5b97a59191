//! Checks a configuration as written and compiles it into tables that route.
//!
//! ```text
//! PlacementConfig ──read each field──► drafts ──compare groups──► GenerationMap per generation
//!                      └───────────────── errors, all of them ─────────────┘
//! ```
//!
//! Reading never stops at an error: a field that cannot be used is left out of its draft and the rest is still
//! checked. Tables are made only when there are no errors.
//!
//! The current generation obeys every rule. A previous one is only read, so it must be routable and no more:
//! rules of colocation are not asked of it, or there would be no way out of a configuration that broke them.

use super::GenerationMap;
use super::apportion::{ApportionError, RegionShare};
use super::config::{CONFIG_VERSION, Entries, Field, GroupConfig, Groups, Optional, PlacementConfig};
use super::config::{PreviousConfig, RegionShares, TypeConfig, Unknown};
use super::draft::{
    GENERATION_ENDING, GroupDraft, MemberDraft, OwnCount, PreviousDraft, ends_like_a_generation, tables,
};
use super::errors::{ConfigErrors, ErrorCode, FieldError, at};
use super::registry::{Colocation, KeySchema, RegistryError, TypeName, TypeRegistry, TypeSpec};
use crate::hash::{BucketCount, MAX_BUCKETS};
use crate::id::{Generation, MAX_GENERATION, TypePrefix};
use crate::names::{GroupName, MAX_NAME_BYTES, NameError, RegionName};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// Regions that exist.
pub const KNOWN_REGIONS: [&str; 7] = ["apac", "weur", "enam", "wnam", "oc", "afr", "me"];

/// The group that takes every type no other group names.
pub const DEFAULT_GROUP: &str = "default";

/// The most groups of one generation. There is no use for more groups than types.
pub const MAX_GROUPS: usize = super::registry::MAX_TYPES;

/// The most previous generations. A read that finds nothing asks each of them.
pub const MAX_PREVIOUS_GENERATIONS: usize = 5;

/// The longest salt and description, in characters.
const MAX_SALT_CHARS: usize = 64;
const MAX_DESCRIPTION_CHARS: usize = 1024;

/// What a valid configuration compiles to.
pub(super) struct Compiled {
    pub(super) registry: TypeRegistry,
    pub(super) current: GenerationMap,
    pub(super) previous: Vec<GenerationMap>,
}

pub(super) fn compile(config: &PlacementConfig) -> Result<Compiled, ConfigErrors> {
    let mut check = Checker::default();
    check.unknown("", &config.unknown);
    check.integer("version", &config.version, CONFIG_VERSION..=CONFIG_VERSION);
    let generation = check.integer("currentGeneration", &config.current_generation, 1..=i64::from(MAX_GENERATION));
    let registry = check.registry(config);
    let shares = check.shares("baseRegions", &config.base_regions);
    let groups = check.required("groups", &config.groups, "an object");
    let mut current = check.groups("groups", groups, &registry);
    check.absorb_rest(&mut current, &registry);
    check.every_type_placed(&current, &registry);
    check.colocation(&current, &registry);
    check.enough_buckets(&current, &config.base_regions);
    let previous = check.previous(config, generation, &registry);
    ConfigErrors::none_of(check.errors)?;

    let whole = "a draft without errors is complete";
    let generation = generation.and_then(as_generation).expect(whole);
    let shares = shares.expect(whole);
    let previous = previous.into_iter().map(|draft| draft.compile(&shares)).collect::<Result<_, _>>()?;
    Ok(Compiled { registry, current: tables(generation, None, current, &shares)?, previous })
}

#[derive(Default)]
struct Checker {
    errors: Vec<FieldError>,
}

/// Reading single fields.
impl Checker {
    fn fail(&mut self, field: &str, code: ErrorCode, message: impl Into<String>) {
        self.errors.push(FieldError { field: field.to_owned(), code, message: message.into() });
    }

    fn unknown(&mut self, path: &str, unknown: &Unknown) {
        for key in unknown.keys() {
            self.fail(&at(path, key), ErrorCode::UnknownField, "there is no such field");
        }
    }

    fn good<'a, T>(&mut self, path: &str, field: &'a Field<T>, kind: &str) -> Option<&'a T> {
        match field {
            Field::Good(value) => Some(value),
            Field::Bad(_) => {
                self.fail(path, ErrorCode::WrongKind, format!("must be {kind}"));
                None
            }
        }
    }

    fn optional<'a, T>(&mut self, path: &str, field: &'a Optional<T>, kind: &str) -> Option<&'a T> {
        field.as_ref().and_then(|field| self.good(path, field, kind))
    }

    fn required<'a, T>(&mut self, path: &str, field: &'a Optional<T>, kind: &str) -> Option<&'a T> {
        if field.is_none() {
            self.fail(path, ErrorCode::MissingField, format!("is required and must be {kind}"));
        }
        self.optional(path, field, kind)
    }

    fn in_range(&mut self, path: &str, value: i64, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
        if range.contains(&value) {
            return Some(value);
        }
        let wanted = match range.start() == range.end() {
            true => format!("must be {}, got {value}", range.start()),
            false => format!("must be an integer from {} to {}, got {value}", range.start(), range.end()),
        };
        self.fail(path, ErrorCode::OutOfRange, wanted);
        None
    }

    fn integer(&mut self, path: &str, field: &Optional<i64>, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
        let value = *self.required(path, field, "an integer")?;
        self.in_range(path, value, range)
    }

    fn bucket_count(&mut self, path: &str, value: i64) -> Option<BucketCount> {
        let value = self.in_range(path, value, 1..=i64::from(MAX_BUCKETS))?;
        u32::try_from(value).ok().and_then(BucketCount::new)
    }

    fn named<T>(&mut self, path: &str, name: Result<T, NameError>) -> Option<T> {
        name.map_err(|fault| self.fail(path, ErrorCode::BadName, fault.to_string())).ok()
    }

    /// Text for people or for hashing: printable and bounded.
    fn text(&mut self, path: &str, field: &Optional<String>, max_chars: usize) -> Option<String> {
        let text = self.optional(path, field, "a string")?;
        let chars = text.chars().count();
        if !(1..=max_chars).contains(&chars) {
            self.fail(path, ErrorCode::OutOfRange, format!("must have 1 to {max_chars} characters, has {chars}"));
            return None;
        }
        if text.chars().any(char::is_control) {
            self.fail(path, ErrorCode::BadName, "may not contain control characters");
            return None;
        }
        Some(text.clone())
    }

    /// Reports keys that are written twice.
    fn distinct<T>(&mut self, path: &str, entries: &Entries<T>) {
        let mut seen = BTreeSet::new();
        for (key, _) in &entries.0 {
            if !seen.insert(key) {
                self.fail(&at(path, key), ErrorCode::DuplicateKey, "is written twice");
            }
        }
    }
}

/// Reading types, regions and groups.
impl Checker {
    fn registry(&mut self, config: &PlacementConfig) -> TypeRegistry {
        let mut registry = TypeRegistry::built_in();
        for (i, field) in self.optional("singletons", &config.singletons, "an array").into_iter().flatten().enumerate()
        {
            let path = format!("singletons[{i}]");
            let Some(name) = self.good(&path, field, "a string") else { continue };
            if self.named(&path, TypeName::new(name)).is_some() {
                let added = registry.add_singleton(name);
                self.registered(&path, added);
            }
        }
        let Some(types) = self.optional("types", &config.types, "an object") else { return registry };
        self.distinct("types", types);
        for (name, field) in &types.0 {
            let path = at("types", name);
            let Some(config) = self.good(&path, field, "an object, with each field once") else { continue };
            if let Some(spec) = self.type_spec(&path, name, config) {
                let added = registry.add(spec);
                self.registered(&path, added);
            }
        }
        registry
    }

    fn type_spec(&mut self, path: &str, name: &str, config: &TypeConfig) -> Option<TypeSpec> {
        self.unknown(path, &config.unknown);
        let name = self.named(path, TypeName::new(name));
        let prefix_path = at(path, "prefix");
        let prefix = self.required(&prefix_path, &config.prefix, "a string");
        let prefix = prefix.and_then(|prefix| self.prefix(&prefix_path, prefix));
        let key_path = at(path, "key");
        let key = self.required(&key_path, &config.key, "a string").and_then(|key| self.key_schema(&key_path, key));
        let legacy_path = at(path, "legacyPrefixes");
        let mut legacy_prefixes = Vec::new();
        let written = self.optional(&legacy_path, &config.legacy_prefixes, "an array");
        for (i, field) in written.into_iter().flatten().enumerate() {
            let path = format!("{legacy_path}[{i}]");
            let prefix = self.good(&path, field, "a string").and_then(|prefix| self.prefix(&path, prefix));
            legacy_prefixes.extend(prefix);
        }
        Some(TypeSpec { name: name?, prefix: prefix?, key: key?, legacy_prefixes })
    }

    fn prefix(&mut self, path: &str, prefix: &str) -> Option<TypePrefix> {
        TypePrefix::new(prefix).map_err(|fault| self.fail(path, ErrorCode::BadName, fault.hint())).ok()
    }

    fn key_schema(&mut self, path: &str, key: &str) -> Option<KeySchema> {
        let schema = KeySchema::new(key);
        if schema.is_none() {
            self.fail(path, ErrorCode::BadName, "a key schema is 1 to 128 printable characters without blanks");
        }
        schema
    }

    fn registered(&mut self, path: &str, added: Result<(), RegistryError>) {
        let Err(fault) = added else { return };
        let (field, code) = match &fault {
            RegistryError::TypeTaken { .. } => (path.to_owned(), ErrorCode::TypeTaken),
            RegistryError::Singleton { .. } => (path.to_owned(), ErrorCode::Singleton),
            RegistryError::PrefixTaken { .. } => (at(path, "prefix"), ErrorCode::PrefixTaken),
            RegistryError::TooMany => (path.to_owned(), ErrorCode::TooMany),
        };
        self.fail(&field, code, fault.to_string());
    }

    fn shares(&mut self, path: &str, field: &Optional<RegionShares>) -> Option<Vec<RegionShare>> {
        let written = self.required(path, field, "an object")?;
        self.distinct(path, written);
        let mut sum: Option<i64> = Some(0);
        let mut shares = Vec::new();
        for (region, field) in &written.0 {
            let path = at(path, region);
            let percent = self.good(&path, field, "an integer").copied();
            sum = sum.zip(percent).map(|(sum, percent)| sum.saturating_add(percent));
            shares.extend(self.share(&path, region, percent));
        }
        match sum {
            Some(100) => (),
            None => return None,
            Some(sum) => {
                self.fail(path, ErrorCode::ShareSum, format!("Region distribution must sum to 100, got {sum}"));
                return None;
            }
        }
        (shares.len() == written.0.len()).then_some(shares)
    }

    fn share(&mut self, path: &str, region: &str, percent: Option<i64>) -> Option<RegionShare> {
        let known = KNOWN_REGIONS.contains(&region);
        let shown: String = region.chars().take(MAX_NAME_BYTES).collect();
        if !known {
            self.fail(path, ErrorCode::UnknownRegion, format!("Invalid region key: {shown}"));
        }
        let percent = percent?;
        if percent < 0 {
            let message = format!("Region {shown} has negative percentage: {percent}");
            self.fail(path, ErrorCode::NegativeShare, message);
            return None;
        }
        let percent = u32::try_from(self.in_range(path, percent, 0..=100)?).ok()?;
        let region = RegionName::new(region).ok().filter(|_| known)?;
        Some(RegionShare { region, percent })
    }

    fn groups(&mut self, path: &str, groups: Option<&Groups>, registry: &TypeRegistry) -> Vec<GroupDraft> {
        let Some(groups) = groups else { return Vec::new() };
        self.distinct(path, groups);
        if groups.0.len() > MAX_GROUPS {
            let message = format!("has {} groups, the limit is {MAX_GROUPS}", groups.0.len());
            self.fail(path, ErrorCode::TooMany, message);
        }
        let mut placed = BTreeMap::new();
        let mut drafts = Vec::new();
        for (name, field) in &groups.0 {
            let path = at(path, name);
            if let Some(group) = self.good(&path, field, "an object, with each field once") {
                drafts.push(self.group(&path, name, group, registry, &mut placed));
            }
        }
        drafts
    }

    fn group(
        &mut self,
        path: &str,
        name: &str,
        group: &GroupConfig,
        registry: &TypeRegistry,
        placed: &mut BTreeMap<TypeName, String>,
    ) -> GroupDraft {
        self.unknown(path, &group.unknown);
        let count_path = at(path, "totalShards");
        let buckets = self.required(&count_path, &group.total_shards, "an integer").copied();
        let buckets = buckets.and_then(|count| self.bucket_count(&count_path, count));
        self.text(&at(path, "description"), &group.description, MAX_DESCRIPTION_CHARS);
        let salt = self.text(&at(path, "salt"), &group.salt, MAX_SALT_CHARS);
        let key_path = at(path, "key");
        let key = self.optional(&key_path, &group.key, "a string").and_then(|key| self.key_schema(&key_path, key));
        let members = self.members(&at(path, "members"), group, name == DEFAULT_GROUP, registry, placed);
        let name = self.group_name(path, name);
        let mut draft = GroupDraft { path: path.to_owned(), name, count_path, buckets, salt, key, members };
        self.overrides(&mut draft, group);
        draft
    }

    fn group_name(&mut self, path: &str, name: &str) -> Option<GroupName> {
        let name = self.named(path, GroupName::new(name))?;
        if ends_like_a_generation(name.as_str()) {
            self.fail(path, ErrorCode::BadName, GENERATION_ENDING);
            return None;
        }
        Some(name)
    }

    fn members(
        &mut self,
        path: &str,
        group: &GroupConfig,
        may_be_empty: bool,
        registry: &TypeRegistry,
        placed: &mut BTreeMap<TypeName, String>,
    ) -> Vec<MemberDraft> {
        let Some(written) = self.required(path, &group.members, "an array") else { return Vec::new() };
        if written.is_empty() && !may_be_empty {
            self.fail(path, ErrorCode::EmptyGroup, "a group has at least one member");
        }
        let mut members = Vec::new();
        for (i, field) in written.iter().enumerate() {
            let path = format!("{path}[{i}]");
            let Some(name) = self.good(&path, field, "a string") else { continue };
            if let Some(name) = self.member(&path, name, registry, placed) {
                members.push(MemberDraft { path, name, own: None });
            }
        }
        members
    }

    fn member(
        &mut self,
        path: &str,
        name: &str,
        registry: &TypeRegistry,
        placed: &mut BTreeMap<TypeName, String>,
    ) -> Option<TypeName> {
        if registry.is_singleton(name) {
            self.fail(path, ErrorCode::Singleton, format!("{name} is a singleton and can never be sharded"));
            return None;
        }
        let name = self.named(path, TypeName::new(name))?;
        if registry.get(&name).is_none() {
            self.fail(path, ErrorCode::UnknownType, format!("there is no type {name}"));
            return None;
        }
        if let Some(first) = placed.get(&name) {
            // Which of the two places is the wrong one, only the author knows.
            self.fail(path, ErrorCode::DuplicateMember, format!("{name} is already a member at {first}"));
            self.fail(first, ErrorCode::DuplicateMember, format!("{name} is also a member at {path}"));
            return None;
        }
        placed.insert(name.clone(), path.to_owned());
        Some(name)
    }

    /// An override that says what the group says anyway changes nothing and is no override.
    fn overrides(&mut self, draft: &mut GroupDraft, group: &GroupConfig) {
        let path = at(&draft.path, "overrides");
        let Some(written) = self.optional(&path, &group.overrides, "an object") else { return };
        self.distinct(&path, written);
        for (name, field) in &written.0 {
            let path = at(&path, name);
            let count = self.good(&path, field, "an integer").copied();
            let Some(member) = draft.members.iter_mut().find(|member| member.name.as_str() == name) else {
                self.fail(&path, ErrorCode::NotMember, "only a listed member of the group can have an override");
                continue;
            };
            let buckets = count.and_then(|count| self.bucket_count(&path, count));
            member.own = buckets.filter(|own| Some(*own) != draft.buckets).map(|buckets| OwnCount { path, buckets });
        }
    }
}

/// Rules between groups.
impl Checker {
    /// Puts the types that no group names into the default group, if there is one.
    fn absorb_rest(&mut self, drafts: &mut [GroupDraft], registry: &TypeRegistry) {
        let placed = placed(drafts);
        let is_default =
            |draft: &&mut GroupDraft| draft.name.as_ref().is_some_and(|name| name.as_str() == DEFAULT_GROUP);
        let Some(default) = drafts.iter_mut().find(is_default) else { return };
        for spec in registry.types().filter(|spec| !placed.contains(&spec.name)) {
            default.members.push(MemberDraft { path: default.path.clone(), name: spec.name.clone(), own: None });
        }
    }

    fn every_type_placed(&mut self, drafts: &[GroupDraft], registry: &TypeRegistry) {
        let placed = placed(drafts);
        for spec in registry.types().filter(|spec| !placed.contains(&spec.name)) {
            let message = format!("type {} is in no group and there is no group named {DEFAULT_GROUP}", spec.name);
            self.fail("groups", ErrorCode::MissingType, message);
        }
    }

    fn enough_buckets(&mut self, drafts: &[GroupDraft], regions: &Optional<RegionShares>) {
        let regions = active_regions(regions);
        for draft in drafts {
            let own = draft.members.iter().filter_map(|member| member.own.as_ref());
            let own = own.map(|own| (own.path.as_str(), own.buckets));
            let group = draft.buckets.map(|buckets| (draft.count_path.as_str(), buckets));
            for (path, buckets) in
                group.into_iter().chain(own).filter(|(_, buckets)| (buckets.get() as usize) < regions)
            {
                let fault = ApportionError::TooFewBuckets { buckets, regions };
                self.fail(path, ErrorCode::TooFewBuckets, fault.to_string());
            }
        }
    }

    /// The same key must lead to the same bucket, wherever something relies on it.
    fn colocation(&mut self, drafts: &[GroupDraft], registry: &TypeRegistry) {
        drafts.iter().for_each(|draft| self.colocated_group(draft, registry));
        let mut by_key: BTreeMap<&KeySchema, Vec<(&GroupDraft, &MemberDraft)>> = BTreeMap::new();
        for draft in drafts {
            for member in &draft.members {
                if let Some(spec) = registry.get(&member.name) {
                    by_key.entry(&spec.key).or_default().push((draft, member));
                }
            }
        }
        for (key, members) in by_key {
            match key.colocation() {
                Colocation::Unrelated => (),
                Colocation::SameCount => self.same_count(key, &members),
                Colocation::Required => self.one_group(key, &members),
            }
        }
    }

    fn colocated_group(&mut self, draft: &GroupDraft, registry: &TypeRegistry) {
        for member in &draft.members {
            let Some(spec) = registry.get(&member.name) else { continue };
            if let Some(key) = draft.key.as_ref().filter(|key| **key != spec.key) {
                let message = format!("{} is keyed by {}, its group by {key}", spec.name, spec.key);
                self.fail(&member.path, ErrorCode::KeyMismatch, message.clone());
                self.fail(&at(&draft.path, "key"), ErrorCode::KeyMismatch, message);
            }
            let colocated = draft.key.is_some() || spec.key.colocation() == Colocation::Required;
            if let Some(own) = member.own.as_ref().filter(|_| colocated) {
                let message =
                    format!("types colocated by {} share one count, so {} has no override", spec.key, spec.name);
                self.fail(&own.path, ErrorCode::ColocationOverride, message);
            }
        }
    }

    /// Reported at each group that takes part: which of them is the wrong one, only the author knows.
    fn same_count(&mut self, key: &KeySchema, members: &[(&GroupDraft, &MemberDraft)]) {
        let mut groups: Vec<&GroupDraft> = Vec::new();
        for (draft, _) in members.iter().filter(|(_, member)| member.own.is_none()) {
            if !groups.iter().any(|known| known.path == draft.path) {
                groups.push(draft);
            }
        }
        let counts: BTreeSet<_> = groups.iter().filter_map(|draft| draft.buckets).collect();
        if counts.len() > 1 {
            for draft in &groups {
                let message = format!("groups keyed by {key} must have the same count");
                self.fail(&draft.count_path, ErrorCode::SameKeyCount, message);
            }
        }
        let salts: BTreeSet<_> = groups.iter().map(|draft| &draft.salt).collect();
        if salts.len() > 1 {
            for draft in &groups {
                let message = format!("groups keyed by {key} must have the same salt");
                self.fail(&at(&draft.path, "salt"), ErrorCode::SameKeySalt, message);
            }
        }
    }

    fn one_group(&mut self, key: &KeySchema, members: &[(&GroupDraft, &MemberDraft)]) {
        let groups: BTreeSet<&str> = members.iter().map(|(draft, _)| draft.path.as_str()).collect();
        if groups.len() < 2 {
            return;
        }
        for (_, member) in members {
            let message = format!("types keyed by {key} must be in one group, {} is apart", member.name);
            self.fail(&member.path, ErrorCode::ColocationSplit, message);
        }
    }
}

/// Reading previous generations.
impl Checker {
    fn previous(
        &mut self,
        config: &PlacementConfig,
        current: Option<i64>,
        registry: &TypeRegistry,
    ) -> Vec<PreviousDraft> {
        let path = "previousGenerations";
        let Some(written) = self.optional(path, &config.previous_generations, "an array") else { return Vec::new() };
        if written.len() > MAX_PREVIOUS_GENERATIONS {
            let message = format!("has {} entries, the limit is {MAX_PREVIOUS_GENERATIONS}", written.len());
            self.fail(path, ErrorCode::TooMany, message);
        }
        let mut newer = current;
        let mut drafts = Vec::new();
        for (i, field) in written.iter().enumerate() {
            let path = format!("{path}[{i}]");
            let Some(entry) = self.good(&path, field, "an object, with each field once") else { continue };
            let generation = self.previous_generation(&at(&path, "generation"), entry, newer);
            newer = generation.or(newer);
            drafts.push(self.previous_entry(&path, entry, generation, &config.base_regions, registry));
        }
        drafts
    }

    /// Each is below the one before it, so they are distinct, ordered by recency, and below the current one.
    fn previous_generation(&mut self, path: &str, entry: &PreviousConfig, newer: Option<i64>) -> Option<i64> {
        let generation = self.integer(path, &entry.generation, 0..=i64::from(MAX_GENERATION))?;
        if let Some(newer) = newer.filter(|newer| generation >= *newer) {
            let message = format!("must be below generation {newer}, which precedes it; got {generation}");
            self.fail(path, ErrorCode::GenerationOrder, message);
        }
        Some(generation)
    }

    fn previous_entry(
        &mut self,
        path: &str,
        entry: &PreviousConfig,
        generation: Option<i64>,
        base: &Optional<RegionShares>,
        registry: &TypeRegistry,
    ) -> PreviousDraft {
        self.unknown(path, &entry.unknown);
        let valid_until = self.valid_until(&at(path, "validUntil"), &entry.valid_until);
        let shares = entry.regions.is_some().then(|| self.shares(&at(path, "regions"), &entry.regions)).flatten();
        let groups_path = at(path, "groups");
        let written = self.optional(&groups_path, &entry.groups, "an object");
        let mut groups = self.groups(&groups_path, written, registry);
        groups.extend(self.implied_default(path, entry, &groups));
        self.absorb_rest(&mut groups, registry);
        if entry.groups.is_none() && entry.total_shards.is_none() {
            let message = "records neither groups nor totalShards, so its records cannot be found";
            self.fail(path, ErrorCode::NotRoutable, message);
        }
        self.enough_buckets(&groups, if entry.regions.is_some() { &entry.regions } else { base });
        PreviousDraft { generation: generation.and_then(as_generation), valid_until, shares, groups }
    }

    /// `totalShards` of a previous generation stands for a default group.
    fn implied_default(&mut self, path: &str, entry: &PreviousConfig, groups: &[GroupDraft]) -> Option<GroupDraft> {
        let count_path = at(path, "totalShards");
        let salt = self.text(&at(path, "salt"), &entry.salt, MAX_SALT_CHARS);
        let Some(count) = self.optional(&count_path, &entry.total_shards, "an integer").copied() else {
            if salt.is_some() && entry.total_shards.is_none() {
                self.fail(&at(path, "salt"), ErrorCode::UnknownField, "belongs to totalShards, which is not there");
            }
            return None;
        };
        let buckets = self.bucket_count(&count_path, count);
        let name = GroupName::new(DEFAULT_GROUP).ok();
        if groups.iter().any(|draft| draft.name == name) {
            let message = format!("totalShards stands for a group named {DEFAULT_GROUP}, and both are there");
            self.fail(&count_path, ErrorCode::DuplicateKey, message.clone());
            self.fail(&at(&at(path, "groups"), DEFAULT_GROUP), ErrorCode::DuplicateKey, message);
            return None;
        }
        Some(GroupDraft { path: count_path.clone(), name, count_path, buckets, salt, key: None, members: Vec::new() })
    }

    fn valid_until(&mut self, path: &str, field: &Optional<String>) -> Option<Timestamp> {
        let text = self.required(path, field, "a string")?;
        let instant = rfc3339(text);
        if instant.is_none() {
            self.fail(path, ErrorCode::BadTimestamp, "must be an RFC 3339 instant, such as 2025-02-01T00:00:00Z");
        }
        instant
    }
}

/// Regions with a share, whatever is wrong with it: only a written 0 takes a region out.
fn active_regions(regions: &Optional<RegionShares>) -> usize {
    match regions {
        Some(Field::Good(Entries(shares))) => shares.iter().filter(|(_, share)| *share != Field::Good(0)).count(),
        _ => 0,
    }
}

fn placed(drafts: &[GroupDraft]) -> BTreeSet<TypeName> {
    drafts.iter().flat_map(|draft| &draft.members).map(|member| member.name.clone()).collect()
}

fn as_generation(number: i64) -> Option<Generation> {
    match u32::try_from(number).ok()? {
        0 => Some(Generation::LEGACY),
        number => Generation::new(number).ok(),
    }
}

/// RFC 3339 and nothing else: the parser below also reads dates with weeks, zones in brackets and missing seconds.
pub(super) fn rfc3339(text: &str) -> Option<Timestamp> {
    const SHAPE: &[u8] = b"dddd-dd-ddTdd:dd:dd";
    let like = |text: &[u8], shape: &[u8]| {
        let fits = |(byte, wanted): (&u8, &u8)| if *wanted == b'd' { byte.is_ascii_digit() } else { byte == wanted };
        text.len() == shape.len() && text.iter().zip(shape).all(fits)
    };
    let (instant, rest) = text.as_bytes().split_at_checked(SHAPE.len())?;
    let rest = match rest.strip_prefix(b".") {
        None => rest,
        Some(rest) => {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            (1..=9).contains(&digits).then(|| &rest[digits..])?
        }
    };
    let zone = rest == b"Z" || like(rest, b"+dd:dd") || like(rest, b"-dd:dd");
    (like(instant, SHAPE) && zone).then(|| text.parse().ok()).flatten()
}
