//! Which shards a database has: one record of the catalog, changed by compare-and-set.
//!
//! A database begins with the shards of its configuration; later ones are added and removed while it runs. The
//! configuration still says what it was made with, and where those shards are that are PostgreSQL databases: an address
//! or a password that has changed is taken over from there.
//!
//! The order is that in which they came. Names are never given twice: what a shard leaves behind is not taken for
//! another's.

use super::about::{About, AboutShard};
use super::{Config, ShardPlace};
use crate::catalog::{Catalog, CatalogError, Key, Record, Transaction};
use crate::commit::decision::catalog_error;
use isles_engine::shard::Engine;
use isles_kernel::error::SqlError;
use isles_kernel::names::{RegionName, ShardId, TenantId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Members {
    pub(crate) shards: Vec<Member>,
    /// The number of the next name; lower ones have been given.
    next: u64,
    /// Other names that have been given.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    given: BTreeSet<ShardId>,
}

/// Names that are remembered; who adds and removes shards in a loop does not fill the record.
const MAX_GIVEN: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) name: ShardId,
    pub(crate) place: ShardPlace,
    /// Where it is, if that is said. It does not change: what is kept in a region stays there (I-39).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) region: Option<RegionName>,
    /// Everything on it goes elsewhere, and nothing new comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) draining: Option<Draining>,
    /// A tenant that comes to it or has left it by a move, where each has a shard of its own: nobody else gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<TenantId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Draining {
    /// Where to; empty: to all others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) to: Vec<ShardId>,
}

impl Members {
    #[cfg(test)]
    pub(crate) fn of(shards: impl IntoIterator<Item = Member>) -> Members {
        let shards: Vec<Member> = shards.into_iter().collect();
        Members { next: shards.len() as u64, shards, given: BTreeSet::new() }
    }

    pub(crate) fn get(&self, name: &ShardId) -> Option<&Member> {
        self.shards.iter().find(|member| member.name == *name)
    }

    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &ShardId> {
        self.shards.iter().map(|member| &member.name)
    }

    /// Those that new groups and tenants are put on.
    pub(crate) fn receiving(&self) -> Vec<ShardId> {
        let staying: Vec<ShardId> =
            self.shards.iter().filter(|member| member.draining.is_none()).map(|member| member.name.clone()).collect();
        // Someone must take them.
        if staying.is_empty() { self.names().cloned().collect() } else { staying }
    }

    /// Those of them that are in a region.
    pub(crate) fn receiving_in(&self, region: &RegionName) -> Vec<ShardId> {
        let is_there = |name: &ShardId| self.region_of(name) == Some(region);
        self.receiving().into_iter().filter(is_there).collect()
    }

    pub(crate) fn region_of(&self, name: &ShardId) -> Option<&RegionName> {
        self.get(name).and_then(|member| member.region.as_ref())
    }

    /// Those that shards are in.
    pub(crate) fn regions(&self) -> BTreeSet<RegionName> {
        self.shards.iter().filter_map(|member| member.region.clone()).collect()
    }

    /// Says where a shard is; an error if it is said already to be elsewhere.
    pub(super) fn located(&self, name: &ShardId, region: &RegionName) -> Result<Members, SqlError> {
        let mut next = self.clone();
        for member in next.shards.iter_mut().filter(|member| member.name == *name) {
            match &member.region {
                Some(known) if known != region => {
                    let message = format!("shard {name} is in region {known}, and a shard does not change its region");
                    return Err(
                        SqlError::new("55000", message).with_hint("add a shard in the region, and drain this one")
                    );
                }
                _ => member.region = Some(region.clone()),
            }
        }
        Ok(next)
    }

    /// Those of them that no tenant comes to, or has left, by a move.
    pub(super) fn untouched(&self) -> Vec<ShardId> {
        let is_some = |name: &ShardId| self.get(name).is_some_and(|member| member.tenant.is_some());
        self.receiving().into_iter().filter(|name| !is_some(name)).collect()
    }

    /// A name that no shard has had.
    pub(super) fn new_name(&self) -> ShardId {
        ShardId::new(format!("s{}", self.next)).expect("a letter and a number are a valid name")
    }

    /// Gives a name, unless it has been given.
    pub(super) fn give(&self, name: &ShardId) -> Result<Members, SqlError> {
        if self.get(name).is_some() {
            return Err(SqlError::new("42710", format!("shard {name} already exists")));
        }
        let mut next = self.clone();
        let is_new = match number_of(name) {
            Some(number) if number >= self.next => {
                next.next = number.saturating_add(1);
                true
            }
            Some(_) => false,
            None => next.given.insert(name.clone()),
        };
        match is_new && next.given.len() <= MAX_GIVEN {
            true => Ok(next),
            false => Err(SqlError::new("42710", format!("there has been a shard {name} before"))
                .with_hint("take another name: what the old one has left is not to be taken for the new one's")),
        }
    }

    pub(super) fn with(&self, member: Member) -> Members {
        Members { shards: self.shards.iter().cloned().chain([member]).collect(), ..self.clone() }
    }

    pub(super) fn without(&self, name: &ShardId) -> Members {
        let shards = self.shards.iter().filter(|member| member.name != *name).cloned().collect();
        Members { shards, ..self.clone() }
    }

    pub(crate) fn with_draining(&self, name: &ShardId, draining: Option<Draining>) -> Members {
        let mut next = self.clone();
        next.shards.iter_mut().filter(|member| member.name == *name).for_each(|m| m.draining = draining.clone());
        next
    }
}

impl Members {
    /// Notes that some shards are a tenant's; an error if one is another's.
    pub(super) fn given_to(&self, tenant: &TenantId, shards: [&ShardId; 2]) -> Result<Members, SqlError> {
        let mut next = self.clone();
        for member in next.shards.iter_mut().filter(|member| shards.contains(&&member.name)) {
            match &member.tenant {
                Some(other) if other != tenant => return Err(taken(&member.name, other)),
                _ => member.tenant = Some(tenant.clone()),
            }
        }
        Ok(next)
    }
}

/// A shard that is not free.
pub(crate) fn taken(shard: &ShardId, tenant: &TenantId) -> SqlError {
    SqlError::new("55000", format!("shard {shard} is or was tenant \"{tenant}\"'s"))
        .with_hint("take a shard that no tenant has had; \"isles shards add\" makes one")
}

/// The number in a name that has no more than that.
fn number_of(name: &ShardId) -> Option<u64> {
    let digits = name.as_str().strip_prefix('s')?;
    let number = digits.parse::<u64>().ok()?;
    (number.to_string() == digits).then_some(number)
}

pub(super) fn key() -> Key {
    Key::new("database/shards").expect("a constant without control characters")
}

/// What is recorded, and its record.
pub(super) async fn read(catalog: &dyn Catalog) -> Result<Option<(Members, Record)>, SqlError> {
    let Some(record) = catalog.get(&key()).await.map_err(catalog_error)?.value else { return Ok(None) };
    Ok(Some((record.json().map_err(catalog_error)?, record)))
}

pub(super) fn lost() -> SqlError {
    SqlError::new("XX000", "the record of shards is gone from the catalog")
}

/// Reads which shards there are; on the first start, those of the configuration.
pub(super) async fn open(catalog: &dyn Catalog, about: &About, config: &Config) -> Result<Members, SqlError> {
    let known = read(catalog).await?;
    let members = match &known {
        Some((members, _)) => moved(members, about, config),
        None => first(about, config)?,
    };
    let members = in_regions(members, about, config)?;
    if known.as_ref().is_some_and(|(known, _)| *known == members) {
        return Ok(members);
    }
    let seen = known.as_ref().map(|(_, record)| record);
    let write = Transaction::new().when_as_read(&key(), seen).put_json(key(), &members).map_err(catalog_error)?;
    match catalog.commit(write).await {
        Ok(_) => Ok(members),
        // Somebody else was first, with the same configuration or with one that is refused.
        Err(error @ CatalogError::Conflict { .. }) => {
            read(catalog).await?.map(|(members, _)| members).ok_or_else(|| catalog_error(error))
        }
        Err(error) => Err(catalog_error(error)),
    }
}

fn first(about: &About, config: &Config) -> Result<Members, SqlError> {
    let fits = |(shard, place): (&AboutShard, &ShardPlace)| shard.is_at(place);
    if about.shards.len() != config.shards.len() || !about.shards.iter().zip(&config.shards).all(fits) {
        let message = "the catalog does not know where the database's shards are";
        return Err(SqlError::new("55000", message).with_hint("open it once with the shards it was made with"));
    }
    let member = |(shard, place): (&AboutShard, &ShardPlace)| Member {
        name: shard.name.clone(),
        place: place.clone(),
        region: None,
        draining: None,
        tenant: None,
    };
    let shards: Vec<Member> = about.shards.iter().zip(&config.shards).map(member).collect();
    Ok(Members { next: shards.len() as u64, shards, given: BTreeSet::new() })
}

/// With the regions that the configuration has for the shards that the database was made with.
fn in_regions(mut members: Members, about: &About, config: &Config) -> Result<Members, SqlError> {
    for (n, (shard, place)) in about.shards.iter().zip(&config.shards).enumerate() {
        let of_folder = config.region.as_ref().filter(|_| place.engine() == Engine::Sqlite);
        if let Some(region) = config.regions.get(n).and_then(Option::as_ref).or(of_folder) {
            members = members.located(&shard.name, region)?;
        }
    }
    Ok(members)
}

/// With the addresses that the configuration has for the shards that the database was made with.
fn moved(members: &Members, about: &About, config: &Config) -> Members {
    let mut members = members.clone();
    if config.only_if_new {
        return members;
    }
    for (shard, place) in about.shards.iter().zip(&config.shards) {
        let known = members.shards.iter_mut().find(|member| member.name == shard.name);
        if let (Some(member), Engine::Postgres) = (known, place.engine()) {
            member.place = place.clone();
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_given_once() {
        let member = |name: &str| Member {
            name: ShardId::new(name).expect("valid"),
            place: ShardPlace::Sqlite,
            region: None,
            draining: None,
            tenant: None,
        };
        let mut members = Members::of(["s0", "s1"].map(member));
        for name in ["s2", "east", "s7"] {
            members = members.give(&member(name).name).expect("it is new").with(member(name));
        }
        assert_eq!(members.new_name().as_str(), "s8");
        members = members.without(&member("s7").name).without(&member("east").name);
        assert_eq!(members.new_name().as_str(), "s8", "s7 has been");
        for name in ["s0", "s2", "s5", "s7", "east"] {
            assert_eq!(members.give(&member(name).name).expect_err(name).sqlstate, "42710");
        }
        assert!(members.give(&member("s08").name).is_ok(), "no number");
        let drained = members.with_draining(&member("s0").name, Some(Draining::default()));
        assert_eq!(drained.receiving().len(), 2);
        assert_eq!(drained.with_draining(&member("s0").name, None), members);
    }
}
