//! The placement configuration as it is written.
//!
//! Nothing here is checked. A field of the wrong kind is kept as the value it is ([`Field::Bad`]), an unknown
//! field is kept beside the known ones, and a key written twice is kept twice, so that validation can report all
//! of them at once and by name. Were they errors of deserialization, the first would hide the rest.
//!
//! JSON field names are those of the original format, version 2: its `totalShards` are buckets here.

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// The largest configuration that is read, in bytes. A full one of 256 groups is a tenth of this.
pub const MAX_CONFIG_BYTES: usize = 1 << 20;

/// The only version of the format.
pub const CONFIG_VERSION: i64 = 2;

/// A value of the kind that is expected, or what stands in its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Field<T> {
    Good(T),
    Bad(Value),
}

impl<T> From<T> for Field<T> {
    fn from(value: T) -> Field<T> {
        Field::Good(value)
    }
}

/// The entries of a JSON object as written: in order, and twice if a key is there twice.
#[derive(Debug, Clone, PartialEq)]
pub struct Entries<T>(pub Vec<(String, T)>);

impl<T> Default for Entries<T> {
    fn default() -> Entries<T> {
        Entries(Vec::new())
    }
}

impl<T: Serialize> Serialize for Entries<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries<T>, D::Error> {
        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for EntriesVisitor<T> {
    type Value = Entries<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<T>, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}

/// A field that may be left out.
pub type Optional<T> = Option<Field<T>>;

/// Region key → percentage.
pub type RegionShares = Entries<Field<i64>>;

/// Group name → group.
pub type Groups = Entries<Field<GroupConfig>>;

/// Fields that the format does not have.
pub type Unknown = BTreeMap<String, Value>;

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Optional<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_generation: Optional<i64>,
    /// How the buckets of each group are divided, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_regions: Optional<RegionShares>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Optional<Groups>,
    /// What may still be read, the most recent first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_generations: Optional<Vec<Field<PreviousConfig>>>,
    /// Types beyond the built-in ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub types: Optional<Entries<Field<TypeConfig>>>,
    /// Names beyond the built-in ones that can never be sharded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub singletons: Optional<Vec<Field<String>>>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// Types that share a bucket count.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_shards: Optional<i64>,
    /// In the group named `default`, every type that no group names is a member too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Optional<Vec<Field<String>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Optional<String>,
    /// Type → a bucket count of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Optional<Entries<Field<i64>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salt: Optional<String>,
    /// The key schema of every member. Naming it makes the group colocated: no member may have another key or
    /// an override.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Optional<String>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A generation that is read and no longer written.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviousConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Optional<i64>,
    /// The bucket count of every type that `groups` does not name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_shards: Optional<i64>,
    /// The salt that goes with `totalShards`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub salt: Optional<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Optional<Groups>,
    /// The shares of that generation; those of `baseRegions` if they have not changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Optional<RegionShares>,
    /// RFC 3339. Reads stop at this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until: Optional<String>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A type that the deployment adds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TypeConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Optional<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Optional<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub legacy_prefixes: Optional<Vec<Field<String>>>,
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl PlacementConfig {
    /// What holds when nothing is configured: 20 buckets for every type, over three regions.
    pub fn fallback() -> PlacementConfig {
        let group = GroupConfig {
            total_shards: Some(20.into()),
            members: Some(vec![].into()),
            description: Some("Every type, when nothing is configured".to_owned().into()),
            ..GroupConfig::default()
        };
        PlacementConfig::of_groups([("default", group)])
    }

    /// The groups that the built-in types are meant for.
    pub fn preset() -> PlacementConfig {
        PlacementConfig::of_groups([
            ("user-client", preset_group(64, &["authcode", "refresh"], "Colocated by userId:clientId")),
            ("random-high-rps", preset_group(64, &["revocation"], "High RPS endpoints with random UUID keys")),
            ("random-medium-rps", preset_group(32, &["session", "challenge"], "Medium RPS endpoints")),
            ("client-based", preset_group(32, &["par", "device", "ciba", "dpop"], "client_id based sharding")),
            ("vc", preset_group(16, &["credoffer", "vprequest"], "Verifiable Credentials")),
        ])
    }

    fn of_groups<const N: usize>(groups: [(&str, GroupConfig); N]) -> PlacementConfig {
        let shares = [("apac", 20), ("enam", 40), ("weur", 40)];
        let groups = groups.map(|(name, group)| (name.to_owned(), Field::Good(group)));
        PlacementConfig {
            version: Some(CONFIG_VERSION.into()),
            current_generation: Some(1.into()),
            base_regions: Some(
                Entries(shares.map(|(name, percent)| (name.to_owned(), percent.into())).to_vec()).into(),
            ),
            groups: Some(Entries(groups.to_vec()).into()),
            ..PlacementConfig::default()
        }
    }
}

fn preset_group(buckets: i64, members: &[&str], description: &str) -> GroupConfig {
    let members: Vec<Field<String>> = members.iter().map(|member| (*member).to_owned().into()).collect();
    GroupConfig {
        total_shards: Some(buckets.into()),
        members: Some(members.into()),
        description: Some(description.to_owned().into()),
        ..GroupConfig::default()
    }
}
