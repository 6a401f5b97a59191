//! The types of record that can be placed, and the singletons that cannot.
//!
//! A type has a prefix, which its ids carry, and a key schema, which says what its shard key is made of. Which
//! types must agree on a bucket count follows from their key schemas and from nothing else: two types keyed by
//! the same values are colocated only while the same key leads to the same bucket.
//!
//! The eleven types of the original deployment are built in as data; a configuration may add its own.

use crate::id::TypePrefix;
use crate::names::{MAX_NAME_BYTES, NameError};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// The most types a deployment may have. One group could hold them all, and a check of a configuration compares
/// their keys.
pub const MAX_TYPES: usize = 256;

/// The longest key schema, in bytes.
const MAX_KEY_SCHEMA_BYTES: usize = 128;

/// The name of a type of record, as configurations write it: `session`, `authcode`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct TypeName(String);

impl TypeName {
    pub fn new(name: &str) -> Result<TypeName, NameError> {
        let what = "type name";
        if name.is_empty() {
            return Err(NameError::Empty { what });
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(NameError::TooLong { what, limit: MAX_NAME_BYTES, unit: "bytes", actual: name.len() });
        }
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        match name.chars().find(|c| !allowed(*c)) {
            Some(found) => Err(NameError::BadCharacter { what, found }),
            None => Ok(TypeName(name.to_owned())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a type's shard key is made of: `uuid`, `client_id`, `userId:clientId`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct KeySchema(String);

/// What two types with the same key schema owe each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colocation {
    /// The key is random, so no key of one type is ever looked for in another.
    Unrelated,
    /// Groups with this key have one bucket count and salt; a type may leave by an explicit override.
    SameCount,
    /// A transaction spans the types: they are in one group, without overrides.
    Required,
}

impl KeySchema {
    /// None if empty, too long, or with blanks or control characters.
    pub fn new(schema: &str) -> Option<KeySchema> {
        let printable = schema.chars().all(|c| !c.is_control() && !c.is_whitespace());
        let bounded = (1..=MAX_KEY_SCHEMA_BYTES).contains(&schema.len());
        (printable && bounded).then(|| KeySchema(schema.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn colocation(&self) -> Colocation {
        match self.0.as_str() {
            "uuid" => Colocation::Unrelated,
            "userId:clientId" => Colocation::Required,
            _ => Colocation::SameCount,
        }
    }
}

impl fmt::Display for KeySchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One type of record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TypeSpec {
    pub name: TypeName,
    /// What new ids carry.
    pub prefix: TypePrefix,
    pub key: KeySchema,
    /// What ids of older records carry; they are read and never minted.
    pub legacy_prefixes: Vec<TypePrefix>,
}

/// name, prefix, key schema, legacy prefixes.
const BUILT_IN: [(&str, &str, &str, &[&str]); 11] = [
    ("session", "ses", "uuid", &["session"]),
    ("authcode", "acd", "userId:clientId", &["ac"]),
    ("refresh", "rft", "userId:clientId", &["rt"]),
    ("challenge", "cha", "userId/challengeId", &["ch"]),
    ("revocation", "rev", "uuid", &["at"]),
    ("credoffer", "cof", "tenantId:userId", &["co"]),
    ("vprequest", "vpr", "tenantId:clientId", &["vp"]),
    ("dpop", "dpp", "client_id", &[]),
    ("par", "par", "client_id", &[]),
    ("device", "dev", "client_id", &[]),
    ("ciba", "cba", "client_id", &[]),
];

/// There is one signing key set and one version counter: two of either would be a split brain.
const BUILT_IN_SINGLETONS: [&str; 2] = ["keymanager", "versionmanager"];

/// Why a type cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    #[error("type {name} is already registered")]
    TypeTaken { name: TypeName },
    #[error("{name} is a singleton and can never be sharded")]
    Singleton { name: TypeName },
    #[error("prefix {prefix} belongs to type {owner}")]
    PrefixTaken { prefix: TypePrefix, owner: TypeName },
    #[error("there are more than {MAX_TYPES} types")]
    TooMany,
}

/// Every type that can be placed, by name and by prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeRegistry {
    types: BTreeMap<TypeName, TypeSpec>,
    /// Current and legacy prefixes alike; each belongs to one type.
    owners: BTreeMap<TypePrefix, TypeName>,
    /// In lower case.
    singletons: Vec<String>,
}

impl TypeRegistry {
    pub fn built_in() -> TypeRegistry {
        let singletons = BUILT_IN_SINGLETONS.map(str::to_owned).to_vec();
        let mut registry = TypeRegistry { types: BTreeMap::new(), owners: BTreeMap::new(), singletons };
        for (name, prefix, key, legacy) in BUILT_IN {
            let known = "the built-in table holds valid names; a test reads every row";
            let spec = TypeSpec {
                name: TypeName::new(name).expect(known),
                prefix: TypePrefix::new(prefix).expect(known),
                key: KeySchema::new(key).expect(known),
                legacy_prefixes: legacy.iter().map(|prefix| TypePrefix::new(prefix).expect(known)).collect(),
            };
            registry.add(spec).expect(known);
        }
        registry
    }

    pub fn add(&mut self, spec: TypeSpec) -> Result<(), RegistryError> {
        if self.is_singleton(spec.name.as_str()) {
            return Err(RegistryError::Singleton { name: spec.name });
        }
        if self.types.contains_key(&spec.name) {
            return Err(RegistryError::TypeTaken { name: spec.name });
        }
        if self.types.len() >= MAX_TYPES {
            return Err(RegistryError::TooMany);
        }
        let prefixes = || std::iter::once(&spec.prefix).chain(&spec.legacy_prefixes);
        if let Some((prefix, owner)) = prefixes().find_map(|p| self.owners.get_key_value(p)) {
            return Err(RegistryError::PrefixTaken { prefix: prefix.clone(), owner: owner.clone() });
        }
        prefixes().for_each(|prefix| {
            self.owners.insert(prefix.clone(), spec.name.clone());
        });
        self.types.insert(spec.name.clone(), spec);
        Ok(())
    }

    /// Declares one more name that can never be a type.
    pub fn add_singleton(&mut self, name: &str) -> Result<(), RegistryError> {
        if let Some((taken, _)) = self.types.iter().find(|(known, _)| known.as_str() == name) {
            return Err(RegistryError::TypeTaken { name: taken.clone() });
        }
        if !self.is_singleton(name) {
            self.singletons.push(name.to_ascii_lowercase());
        }
        Ok(())
    }

    /// Whatever the case: `KeyManager` is how people write it.
    pub fn is_singleton(&self, name: &str) -> bool {
        self.singletons.iter().any(|singleton| singleton.eq_ignore_ascii_case(name))
    }

    pub fn get(&self, name: &TypeName) -> Option<&TypeSpec> {
        self.types.get(name)
    }

    /// The type of a current or legacy prefix.
    pub fn by_prefix(&self, prefix: &TypePrefix) -> Option<&TypeSpec> {
        self.types.get(self.owners.get(prefix)?)
    }

    /// In order of name.
    pub fn types(&self) -> impl Iterator<Item = &TypeSpec> {
        self.types.values()
    }

    pub fn singletons(&self) -> &[String] {
        &self.singletons
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_type_is_found_by_each_of_its_prefixes() {
        let registry = TypeRegistry::built_in();
        assert_eq!(registry.types().count(), 11);
        for (name, prefix, key, legacy) in BUILT_IN {
            for prefix in legacy.iter().chain([&prefix]) {
                let spec = registry.by_prefix(&TypePrefix::new(prefix).unwrap()).unwrap();
                assert_eq!((spec.name.as_str(), spec.key.as_str()), (name, key));
            }
        }
    }

    #[test]
    fn a_type_cannot_take_a_singletons_name_or_anothers_prefix() {
        let mut registry = TypeRegistry::built_in();
        let spec = |name: &str, prefix: &str| TypeSpec {
            name: TypeName::new(name).unwrap(),
            prefix: TypePrefix::new(prefix).unwrap(),
            key: KeySchema::new("uuid").unwrap(),
            legacy_prefixes: vec![],
        };
        assert!(matches!(registry.add(spec("keymanager", "kmg")), Err(RegistryError::Singleton { .. })));
        assert!(matches!(registry.add(spec("session", "xyz")), Err(RegistryError::TypeTaken { .. })));
        assert!(matches!(registry.add(spec("invoice", "ac")), Err(RegistryError::PrefixTaken { .. })));
        assert_eq!(registry.add(spec("invoice", "inv")), Ok(()));
        assert!(matches!(registry.add_singleton("invoice"), Err(RegistryError::TypeTaken { .. })));
        assert_eq!(registry.add_singleton("Ledger"), Ok(()));
        assert!(matches!(registry.add(spec("ledger", "ldg")), Err(RegistryError::Singleton { .. })));
    }
}
