//! Stores that a configuration declares.
//!
//! ```text
//! presets = ["identity"]
//!
//! [[stores]]                      the arguments of isles.create_store
//! name = "ticket"
//! prefix = "tkt"
//! group = "random-medium-rps"
//! key = "uuid"
//! ttl = "1 hour"
//! ```
//!
//! What is declared is there once the database is open: it is made if it is missing, and compared if it is not. One that
//! is there with other options is an error, since records were written by those; `isles.alter_store` changes them. A
//! preset makes what is missing of it, so a store that is declared by itself replaces the preset's.
//!
//! Every fault is told at once, and nothing is made before all is known to fit.

use super::procedures::millis;
use super::spec::{StoreConfig, StoreSpec};
use super::{Result, Stores, identity};
use isles_kernel::error::SqlError;
use isles_sql::types::{INTERVAL, Type};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A store as a configuration file has it. Nothing is required here, so that everything that is missing is told at once.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Declared {
    name: Option<String>,
    prefix: Option<String>,
    key: Option<String>,
    ttl: Option<String>,
    #[serde(default)]
    group: String,
    cap: Option<String>,
    grace: Option<String>,
    #[serde(default)]
    rotates: bool,
    #[serde(default)]
    alias: bool,
    #[serde(default)]
    singleton: bool,
    max_records: Option<i64>,
    max_per_owner: Option<i64>,
    max_per_tenant: Option<i64>,
    #[serde(flatten)]
    unknown: BTreeMap<String, IgnoredAny>,
}

/// What a configuration declares, checked by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declaration {
    stores: Vec<StoreConfig>,
    presets: Vec<String>,
}

/// An interval as PostgreSQL reads it, in milliseconds.
fn time(text: &str) -> std::result::Result<u64, String> {
    let value = isles_sql::text::input(text, Type::of(INTERVAL), &isles_sql::text::Settings::default());
    let ms = value.and_then(|value| millis(&value)).map_err(|error| error.message)?;
    ms.and_then(|ms| u64::try_from(ms).ok()).ok_or_else(|| "a time is not negative".to_owned())
}

impl Declared {
    fn checked(self, faults: &mut Vec<String>) -> Option<StoreSpec> {
        let before = faults.len();
        let called = self.name.clone().unwrap_or_default();
        let mut note = |field: &str, why: &str| faults.push(format!("store \"{called}\": {field}: {why}"));
        for field in self.unknown.keys() {
            note(field, "there is no such option");
        }
        let needed = [("name", &self.name), ("prefix", &self.prefix), ("key", &self.key), ("ttl", &self.ttl)];
        for (field, _) in needed.iter().filter(|(_, value)| value.is_none()) {
            note(field, "is missing");
        }
        let mut read = |field: &str, text: &Option<String>| {
            let text = text.as_deref()?;
            time(text).map_err(|why| note(field, &why)).ok()
        };
        let (ttl, cap, grace) = (read("ttl", &self.ttl), read("cap", &self.cap), read("grace", &self.grace));
        if faults.len() > before {
            return None;
        }
        // A negative one is as wrong as none at all.
        let quota = |max: Option<i64>| max.map(|max| u64::try_from(max).unwrap_or_default());
        let config = StoreConfig {
            name: self.name.unwrap_or_default(),
            prefix: self.prefix.unwrap_or_default(),
            group: self.group,
            key: self.key.unwrap_or_default(),
            ttl_ms: ttl.unwrap_or_default(),
            cap_ms: cap,
            grace_ms: grace.unwrap_or_default(),
            rotates: self.rotates,
            has_alias: self.alias,
            is_singleton: self.singleton,
            max_records: quota(self.max_records),
            max_per_owner: quota(self.max_per_owner),
            max_per_tenant: quota(self.max_per_tenant),
            ..StoreConfig::default()
        };
        StoreSpec::check(config).map_err(|error| faults.push(error.message)).ok()
    }
}

impl Declaration {
    /// Checks what can be checked without a database; on failure, everything that is wrong.
    pub fn check(stores: Vec<Declared>, presets: Vec<String>) -> std::result::Result<Declaration, Vec<String>> {
        let mut faults = Vec::new();
        for preset in presets.iter().filter(|preset| *preset != identity::PRESET) {
            faults.push(format!("preset \"{preset}\" does not exist; there is {}", identity::PRESET));
        }
        let specs: Vec<StoreSpec> = stores.into_iter().filter_map(|store| store.checked(&mut faults)).collect();
        let mut names = BTreeSet::new();
        for spec in specs.iter().filter(|spec| !names.insert(&spec.name)) {
            faults.push(format!("store \"{}\" is declared twice", spec.name));
        }
        let given = match presets.is_empty() {
            true => Vec::new(),
            false => identity::preset().into_iter().filter_map(|config| StoreSpec::check(config).ok()).collect(),
        };
        let beside = given.iter().filter(|spec| !names.contains(&spec.name));
        for (at, spec) in specs.iter().enumerate() {
            let others = specs[..at].iter().filter(|other| other.name != spec.name).chain(beside.clone());
            let conflicts = others.filter_map(|other| spec.conflict_with(other));
            faults.extend(conflicts.map(|why| format!("store \"{}\": {why}", spec.name)));
        }
        match faults.is_empty() {
            true => Ok(Declaration { stores: specs.iter().map(|spec| spec.config().clone()).collect(), presets }),
            false => Err(faults),
        }
    }

    /// The names of what is declared, and of presets.
    pub fn names(&self) -> (Vec<&str>, Vec<&str>) {
        (self.stores.iter().map(|store| &*store.name).collect(), self.presets.iter().map(|name| &**name).collect())
    }
}

/// What a store that is there has otherwise than it is declared, for people.
fn differences(there: &StoreConfig, declared: &StoreConfig) -> Vec<String> {
    let of = |config: &StoreConfig| {
        let ms = |ms: u64| format!("{ms} ms");
        let quota = |max: Option<u64>| max.map_or_else(|| "nothing".to_owned(), |max| max.to_string());
        [
            ("prefix", config.prefix.clone()),
            ("group", config.group.clone()),
            ("key", config.key.clone()),
            ("ttl", ms(config.ttl_ms)),
            ("cap", ms(config.cap_ms.unwrap_or(config.ttl_ms))),
            ("grace", ms(config.grace_ms)),
            ("rotates", config.rotates.to_string()),
            ("alias", config.has_alias.to_string()),
            ("singleton", config.is_singleton.to_string()),
            ("max_records", quota(config.max_records)),
            ("max_per_owner", quota(config.max_per_owner)),
            ("max_per_tenant", quota(config.max_per_tenant)),
        ]
    };
    let both = of(there).into_iter().zip(of(declared)).filter(|(there, declared)| there != declared);
    both.map(|((field, is), (_, said))| format!("{field} is {is}, and {said} is declared")).collect()
}

impl Stores {
    /// Makes what is declared and not there. Returns the names of what it made.
    pub async fn declare(&self, declaration: &Declaration) -> Result<Vec<String>> {
        let missing = self.missing(declaration).await?;
        let mut made = Vec::new();
        for config in missing {
            let name = config.name.clone();
            match self.create(config).await {
                Ok(_) => made.push(name),
                // Another process that starts at the same time has made it.
                Err(error) if error.sqlstate == "42710" => drop(self.missing(declaration).await?),
                Err(error) => return Err(error),
            }
        }
        for preset in &declaration.presets {
            made.extend(self.create_preset(preset).await?);
        }
        Ok(made)
    }

    /// What is declared and not there, if the rest is as it is declared and these can be made.
    async fn missing(&self, declaration: &Declaration) -> Result<Vec<StoreConfig>> {
        self.learn_stores().await?;
        let (there, mut missing, mut faults) = (self.list(), Vec::new(), Vec::new());
        for config in &declaration.stores {
            let spec = StoreSpec::check(config.clone())?;
            match there.iter().find(|other| other.name == spec.name) {
                Some(other) => {
                    let differing = differences(other.config(), config);
                    faults.extend(differing.iter().map(|why| format!("store \"{}\" exists: {why}", spec.name)));
                }
                None => {
                    faults.extend(self.check_place(&spec).err().map(|error| error.message));
                    faults.extend(there.iter().find_map(|other: &Arc<StoreSpec>| spec.conflict_with(other)));
                    missing.push(config.clone());
                }
            }
        }
        match faults.is_empty() {
            true => Ok(missing),
            false => Err(SqlError::new("42710", format!("stores cannot be as declared: {}", faults.join("; ")))
                .with_hint("isles.alter_store changes prefix, ttl, cap, grace and quotas; nothing changes the rest")),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn declared(json: serde_json::Value) -> Declared {
        serde_json::from_value(json).unwrap()
    }

    fn ticket() -> serde_json::Value {
        serde_json::json!({ "name": "ticket", "prefix": "tkt", "group": "vc", "key": "uuid", "ttl": "1 hour" })
    }

    #[test]
    fn times_are_intervals_and_what_is_left_out_has_its_default() {
        let mut json = ticket();
        json["cap"] = "1 day".into();
        let declaration = Declaration::check(vec![declared(json)], Vec::new()).unwrap();
        let store = &declaration.stores[0];
        assert_eq!((store.ttl_ms, store.cap_ms, store.grace_ms), (3_600_000, Some(86_400_000), 0));
        assert!(!store.rotates && !store.has_alias && !store.is_singleton);
        assert_eq!(declaration.names(), (vec!["ticket"], vec![]));
    }

    #[test]
    fn every_fault_of_a_declaration_is_told_at_once() {
        let stores = vec![
            declared(serde_json::json!({ "name": "a", "prefix": "aaa", "key": "uuid", "tll": "1 hour" })),
            declared(
                serde_json::json!({ "name": "b", "prefix": "bbb", "key": "uuid", "ttl": "soon", "grace": "-1 s" }),
            ),
            declared(serde_json::json!({ "name": "c", "prefix": "ses", "key": "uuid", "ttl": "1 s", "group": "vc" })),
            declared(ticket()),
            declared(ticket()),
        ];
        let faults = Declaration::check(stores, vec!["identity".into(), "identiy".into()]).unwrap_err().join("\n");
        for wanted in [
            "store \"a\": tll: there is no such option",
            "store \"a\": ttl: is missing",
            "store \"b\": ttl: invalid input syntax",
            "store \"b\": grace: a time is not negative",
            "store \"c\": prefix ses belongs to store session",
            "store \"ticket\" is declared twice",
            "preset \"identiy\" does not exist; there is identity",
        ] {
            assert!(faults.contains(wanted), "{wanted} is missing in\n{faults}");
        }
    }

    #[test]
    fn a_declared_store_replaces_the_one_of_the_preset() {
        let json = serde_json::json!({
            "name": "session", "prefix": "ses", "group": "random-medium-rps", "key": "uuid", "ttl": "2 hours"
        });
        assert!(Declaration::check(vec![declared(json)], vec!["identity".into()]).is_ok());
    }

    #[test]
    fn what_differs_is_named() {
        let one = Declaration::check(vec![declared(ticket())], Vec::new()).unwrap().stores.remove(0);
        let mut same = one.clone();
        same.cap_ms = Some(one.ttl_ms);
        same.legacy.push(crate::spec::LegacyPrefix { prefix: "old".into(), until: 1 });
        assert!(differences(&same, &one).is_empty());
        let other = StoreConfig { ttl_ms: 1, cap_ms: None, rotates: true, ..one.clone() };
        let wanted = [
            "ttl is 1 ms, and 3600000 ms is declared",
            "cap is 1 ms, and 3600000 ms is declared",
            "rotates is true, and false is declared",
        ];
        assert_eq!(differences(&other, &one), wanted);
    }
}
