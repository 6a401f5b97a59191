//! What a store is: a kind of record, its ids, its keys and how long it lasts.
//!
//! A [`StoreConfig`] is what people write and what the catalog keeps. A [`StoreSpec`] is one that was checked.

use super::Result;
use super::quota::{MAX_RECORDS, MAX_TENANT_RECORDS, RecordQuota};
use isles_kernel::error::SqlError;
use isles_kernel::id::{Generation, TypePrefix};
use isles_kernel::names::GroupName;
use isles_kernel::placement::{Colocation, KeptType, KeySchema, TypeName};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The longest that a record may last. Longer than a year is a table, not a store.
pub const MAX_TTL: Duration = Duration::from_secs(400 * 24 * 3_600);

/// The longest grace window: a client that repeats a request after a lost answer does so within minutes.
const MAX_GRACE: Duration = Duration::from_secs(600);

/// Old prefixes of a store.
const MAX_LEGACY: usize = 8;

/// A store as it is written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoreConfig {
    pub name: String,
    /// What new ids carry.
    pub prefix: String,
    /// The group of the placement that says which bucket a key has. Not for singletons.
    #[serde(default)]
    pub group: String,
    /// What a key is made of: `uuid`, `userId:clientId`.
    pub key: String,
    pub ttl_ms: u64,
    /// Whatever extends a record, it ends this long after it was made; `ttl_ms` if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap_ms: Option<u64>,
    /// How long a token that was just replaced gives its successor once more.
    #[serde(default)]
    pub grace_ms: u64,
    /// Ids are tokens that are replaced when they are used.
    #[serde(default)]
    pub rotates: bool,
    /// Records can be found by another name, which is unique.
    #[serde(default)]
    pub has_alias: bool,
    /// All records are in one place and are never sharded.
    #[serde(default)]
    pub is_singleton: bool,
    /// Live records of one instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_records: Option<u64>,
    /// Live records of one owner in one instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_per_owner: Option<u64>,
    /// Live records of one tenant in a generation. Each of its instances has an equal part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_per_tenant: Option<u64>,
    /// None without a quota. It is set when the store is created or altered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counting: Option<Counting>,
    /// Records from before a cap was lowered may last until then. Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasting_until_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub legacy: Vec<LegacyPrefix>,
}

/// How the records of a store are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Counting {
    /// Counters carry it. Those of before, of other quotas or of another store of the same name, are not looked at.
    pub epoch: u32,
    /// From here on every live record was counted: those from before have expired. Milliseconds since 1970.
    pub whole_from_ms: u64,
}

impl StoreConfig {
    /// The quotas that it has.
    pub(super) fn quotas(&self) -> impl Iterator<Item = (RecordQuota, u64)> {
        let all = [
            (RecordQuota::PerOwner, self.max_per_owner),
            (RecordQuota::Records, self.max_records),
            (RecordQuota::PerTenant, self.max_per_tenant),
        ];
        all.into_iter().filter_map(|(quota, max)| Some((quota, max?)))
    }
}

/// A prefix that ids had once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LegacyPrefix {
    pub prefix: String,
    /// The last generation whose ids may have it.
    pub until: u16,
}

/// A store that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSpec {
    pub name: TypeName,
    pub prefix: TypePrefix,
    /// None for a singleton.
    pub group: Option<GroupName>,
    pub key: KeySchema,
    pub ttl: Duration,
    pub cap: Duration,
    pub grace: Duration,
    pub rotates: bool,
    pub has_alias: bool,
    legacy: Vec<(TypePrefix, u16)>,
    config: StoreConfig,
}

fn invalid(field: &str, why: impl std::fmt::Display) -> SqlError {
    SqlError::new("22023", format!("invalid store: {field}: {why}"))
}

impl StoreSpec {
    /// Every fault is told, in the detail of one error.
    pub fn check(config: StoreConfig) -> Result<StoreSpec> {
        let mut faults: Vec<String> = Vec::new();
        let mut note = |field: &str, why: String| faults.push(format!("{field}: {why}"));
        let name = TypeName::new(&config.name).map_err(|error| note("name", error.to_string())).ok();
        let prefix = TypePrefix::new(&config.prefix).map_err(|error| note("prefix", error.to_string())).ok();
        let key = KeySchema::new(&config.key);
        if key.is_none() {
            note("key", "is 1 to 128 characters without blanks, such as uuid or userId:clientId".into());
        }
        let group = match config.is_singleton {
            true if config.group.is_empty() => None,
            true => {
                note("group", "a singleton is never sharded".into());
                None
            }
            false => GroupName::new(config.group.clone()).map_err(|error| note("group", error.to_string())).ok(),
        };
        let max = MAX_TTL.as_millis() as u64;
        let cap_ms = config.cap_ms.unwrap_or(config.ttl_ms);
        if !(1..=max).contains(&config.ttl_ms) {
            note("ttl", format!("is 1 ms to {} days", MAX_TTL.as_secs() / 86_400));
        }
        if !(config.ttl_ms..=max.max(config.ttl_ms)).contains(&cap_ms) {
            note("cap", "is at least the ttl and at most 400 days".into());
        }
        if u128::from(config.grace_ms) > MAX_GRACE.as_millis() {
            note("grace", format!("is at most {} seconds", MAX_GRACE.as_secs()));
        }
        if config.grace_ms > 0 && !config.rotates {
            note("grace", "is for stores that rotate".into());
        }
        if config.legacy.len() > MAX_LEGACY {
            note("legacy", format!("has at most {MAX_LEGACY} prefixes"));
        }
        for (quota, max) in config.quotas() {
            let most = if quota == RecordQuota::PerTenant { MAX_TENANT_RECORDS } else { MAX_RECORDS };
            if !(1..=most).contains(&max) {
                note(quota.name(), format!("is 1 to {most}"));
            }
            if config.is_singleton {
                note(quota.name(), "the records of a singleton do not expire, and are not counted".into());
            }
        }
        let mut legacy = Vec::new();
        for old in &config.legacy {
            match TypePrefix::new(&old.prefix) {
                Ok(prefix) => legacy.push((prefix, old.until)),
                Err(error) => note("legacy", error.to_string()),
            }
        }
        match (name, prefix, key) {
            (Some(name), Some(prefix), Some(key)) if faults.is_empty() => Ok(StoreSpec {
                name,
                prefix,
                group,
                key,
                ttl: Duration::from_millis(config.ttl_ms),
                cap: Duration::from_millis(cap_ms),
                grace: Duration::from_millis(config.grace_ms),
                rotates: config.rotates,
                has_alias: config.has_alias,
                legacy,
                config,
            }),
            _ => Err(invalid(&config.name, faults.join("; "))),
        }
    }

    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    pub fn is_singleton(&self) -> bool {
        self.group.is_none()
    }

    /// As placements know it; singletons have none.
    pub(super) fn kept_type(&self) -> Option<KeptType> {
        Some(KeptType { name: self.name.clone(), group: self.group.clone()?, key: self.key.clone() })
    }

    /// The longest that a record lasts from now on: one that is made now, or one from before the cap was lowered.
    pub(super) fn lasts(&self, now: i64) -> Duration {
        let now_ms = u64::try_from(now / 1_000).unwrap_or_default();
        let until = self.config.lasting_until_ms.unwrap_or_default();
        self.cap.max(Duration::from_millis(until.saturating_sub(now_ms)))
    }

    /// Whether equal keys of both are in one instance, in every generation.
    pub(super) fn is_colocated_with(&self, other: &StoreSpec) -> bool {
        !self.is_random() && !self.is_singleton() && self.key == other.key && self.group == other.group
    }

    /// Whether any bucket will do for a new record, since it is found by its id alone.
    pub fn is_random(&self) -> bool {
        self.key.colocation() == Colocation::Unrelated
    }

    /// Whether an id of this generation may carry this prefix.
    pub(super) fn accepts(&self, prefix: &TypePrefix, generation: Generation) -> bool {
        let old = |(known, until): &(TypePrefix, u16)| known == prefix && generation.get() <= *until;
        *prefix == self.prefix || self.legacy.iter().any(old)
    }

    /// Each prefix that its ids have or had.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = &TypePrefix> {
        std::iter::once(&self.prefix).chain(self.legacy.iter().map(|(prefix, _)| prefix))
    }

    /// Why two stores cannot be there together.
    pub(super) fn conflict_with(&self, other: &StoreSpec) -> Option<String> {
        let taken = self.prefixes().find(|prefix| other.prefixes().any(|known| known == *prefix));
        if let Some(prefix) = taken {
            return Some(format!("prefix {prefix} belongs to store {}", other.name));
        }
        // Groups of two names may have two counts, of any tenant and at any time; the same key has one.
        let apart = self.key == other.key && self.group != other.group;
        let shards = !self.is_random() && !self.is_singleton() && !other.is_singleton();
        (apart && shards)
            .then(|| format!("store {} has the key {} as well: both must be in one group", other.name, self.key))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn session() -> StoreConfig {
        StoreConfig {
            name: "session".into(),
            prefix: "ses".into(),
            group: "random-medium-rps".into(),
            key: "uuid".into(),
            ttl_ms: 3_600_000,
            ..StoreConfig::default()
        }
    }

    #[test]
    fn every_fault_of_a_store_is_told_at_once() {
        let wrong = StoreConfig {
            name: "Se ssion".into(),
            prefix: "S".into(),
            group: String::new(),
            key: String::new(),
            ttl_ms: 0,
            cap_ms: Some(u64::MAX),
            grace_ms: 5,
            max_records: Some(0),
            max_per_owner: Some(MAX_RECORDS),
            max_per_tenant: Some(u64::MAX),
            ..StoreConfig::default()
        };
        let said = StoreSpec::check(wrong).unwrap_err().message;
        for field in ["name:", "prefix:", "group:", "key:", "ttl:", "cap:", "grace:", "max_records:", "max_per_tenant:"]
        {
            assert!(said.contains(field), "{field} is missing in {said}");
        }
        assert!(!said.contains("max_per_owner:"), "{said}");
        assert!(StoreSpec::check(session()).is_ok());
    }

    #[test]
    fn an_old_prefix_is_accepted_up_to_its_last_generation() {
        let legacy = vec![LegacyPrefix { prefix: "session".into(), until: 2 }];
        let spec = StoreSpec::check(StoreConfig { legacy, ..session() }).unwrap();
        let old = TypePrefix::new("session").unwrap();
        let generation = |number| Generation::new(number).unwrap();
        assert!(spec.accepts(&old, generation(1)) && spec.accepts(&old, generation(2)));
        assert!(!spec.accepts(&old, generation(3)));
        assert!(spec.accepts(&spec.prefix, generation(3)));
        assert!(!spec.accepts(&TypePrefix::new("acd").unwrap(), generation(1)));
    }

    #[test]
    fn kinds_that_must_be_colocated_are_in_one_group() {
        let of = |name: &str, prefix: &str, group: &str| {
            let key = "userId:clientId".into();
            let (name, prefix, group) = (name.into(), prefix.into(), group.into());
            StoreSpec::check(StoreConfig { name, prefix, group, key, ttl_ms: 1, ..StoreConfig::default() }).unwrap()
        };
        let code = of("authcode", "acd", "user-client");
        assert!(of("refresh", "rft", "vc").conflict_with(&code).is_some());
        assert!(of("refresh", "rft", "user-client").conflict_with(&code).is_none());
        assert!(of("refresh", "acd", "user-client").conflict_with(&code).is_some());
        let by = |name: &str, prefix: &str, group: &str, key: &str| {
            let (name, prefix, group, key) = (name.into(), prefix.into(), group.into(), key.into());
            StoreSpec::check(StoreConfig { name, prefix, group, key, ttl_ms: 1, ..StoreConfig::default() }).unwrap()
        };
        // The same key has the same count wherever it is used; random keys are never looked for in another store.
        let par = by("par", "par", "client-based", "client_id");
        assert!(by("x", "xxx", "vc", "client_id").conflict_with(&par).is_some());
        assert!(by("x", "xxx", "vc", "purpose").conflict_with(&par).is_none());
        assert!(by("x", "xxx", "vc", "uuid").conflict_with(&by("y", "yyy", "client-based", "uuid")).is_none());
    }
}
