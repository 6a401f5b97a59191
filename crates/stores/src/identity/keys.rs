//! Singletons: signing keys, versions; and the permission changes of a tenant.
//!
//! There is one key set and one counter of each tenant, in a table that is never sharded. Keys change by what was read
//! and on condition that it is still so: of two that rotate at once, both succeed, one after the other, and there is one
//! active key at every moment. A version rises by one statement.
//!
//! The changes of permissions are numbered for ever. So they never expire, and a change carries them into the current
//! generation, as the sweep does with those that nobody changes.

use crate::decide::Change;
use crate::operate::Pauses;
use crate::{Address, Desk, Outcome, Put, Record, Result};
use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use serde::{Deserialize, Serialize};

/// Keys of a set: the active one, those whose signatures are still checked, and the last that were revoked.
const MAX_KEYS: usize = 16;
/// The shortest reason for an emergency rotation.
const MIN_REASON_CHARS: usize = 10;
/// Changes of permissions that are kept for those who come late.
const MAX_CHANGES: usize = 100;

/// How often a change is made anew because somebody else was faster, or the record was not there.
const ATTEMPTS: usize = 20;

const KEYS: &str = "keys";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyStatus {
    /// It signs.
    Active,
    /// It does not sign any more; what it signed is still good.
    Overlap,
    Revoked,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigningKey {
    pub kid: String,
    pub status: KeyStatus,
    /// The key, as JSON; a JWK, or a reference to where it is kept.
    pub key: serde_json::Value,
    pub since: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The signing keys of a tenant, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KeySet {
    pub keys: Vec<SigningKey>,
}

impl KeySet {
    pub fn active(&self) -> Option<&SigningKey> {
        self.keys.iter().find(|key| key.status == KeyStatus::Active)
    }

    fn rotated(mut self, new: SigningKey, old: (KeyStatus, Option<&str>)) -> Result<KeySet> {
        if self.keys.iter().any(|key| key.kid == new.kid) {
            return Err(SqlError::new("23505", format!("key {} is there already", new.kid)));
        }
        for key in self.keys.iter_mut().filter(|key| key.status == KeyStatus::Active) {
            (key.status, key.since, key.reason) = (old.0, new.since, old.1.map(str::to_owned));
        }
        self.keys.insert(0, new);
        self.keys.truncate(MAX_KEYS);
        Ok(self)
    }

    fn retired(mut self, kid: &str, leaked: Option<&str>, now: i64) -> Result<KeySet> {
        let Some(at) = self.keys.iter().position(|key| key.kid == kid) else {
            return Err(SqlError::new("42704", format!("there is no key {kid}")));
        };
        if self.keys[at].status == KeyStatus::Active {
            return Err(SqlError::new("55000", format!("key {kid} signs")).with_hint("rotate it first"));
        }
        match leaked {
            None => drop(self.keys.remove(at)),
            Some(reason) => {
                let key = &mut self.keys[at];
                (key.status, key.since, key.reason) = (KeyStatus::Revoked, now, Some(reason.to_owned()));
            }
        }
        Ok(self)
    }
}

fn check_reason(reason: &str) -> Result<()> {
    match reason.chars().count() < MIN_REASON_CHARS {
        true => Err(SqlError::new("22023", format!("a reason has at least {MIN_REASON_CHARS} characters"))),
        false => Ok(()),
    }
}

fn parsed<T: serde::de::DeserializeOwned>(record: &Record) -> Result<T> {
    serde_json::from_str(&record.value)
        .map_err(|error| SqlError::new("XX001", format!("{} is not what it should be: {error}", record.id)))
}

fn json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| SqlError::new("XX000", format!("it has no JSON form: {error}")))
}

#[derive(Serialize, Deserialize, Default)]
struct Changes {
    /// The number of the last one.
    last: u64,
    recent: Vec<(u64, serde_json::Value)>,
}

impl Desk<'_> {
    /// Changes a value by itself; one that is not there begins as its default.
    async fn evolve<T, A>(
        &mut self,
        (tenant, store, address): (&TenantId, &str, &Address),
        mut next: impl FnMut(T, i64) -> Result<(T, A)>,
    ) -> Result<A>
    where
        T: Serialize + serde::de::DeserializeOwned + Default,
    {
        let mut pauses = Pauses::new();
        for _ in 0..ATTEMPTS {
            let resolved = self.resolve(tenant, store, address).await?;
            let Some((at, record)) = self.find(&resolved).await? else {
                drop(resolved);
                // Whoever is second finds it there, and changes it.
                Box::pin(self.put_if_absent(tenant, store, address, Put::of(json(&T::default())?))).await?;
                continue;
            };
            let (value, answer) = next(parsed(&record)?, self.stores.now())?;
            let change = Change { value: Some(json(&value)?), expires_at: Some(i64::MAX / 2), ..Change::default() };
            if Box::pin(self.write_forward((tenant, &resolved, at), &record, change)).await?.is_some() {
                return Ok(answer);
            }
            pauses.pause(self.stores.env()).await;
        }
        Err(SqlError::new("40001", "too many change the record at once").with_hint("retry"))
    }

    /// Makes a new key the active one. The last one goes on being good for what it has signed.
    pub async fn rotate_key(&mut self, tenant: &TenantId, kid: &str, key: serde_json::Value) -> Result<KeySet> {
        self.replace_key(tenant, (kid, key), (KeyStatus::Overlap, None)).await
    }

    /// The same when a key has leaked: the last one is revoked at once.
    pub async fn rotate_key_now(
        &mut self,
        tenant: &TenantId,
        (kid, key): (&str, serde_json::Value),
        reason: &str,
    ) -> Result<KeySet> {
        check_reason(reason)?;
        self.replace_key(tenant, (kid, key), (KeyStatus::Revoked, Some(reason))).await
    }

    async fn replace_key(
        &mut self,
        tenant: &TenantId,
        (kid, key): (&str, serde_json::Value),
        old: (KeyStatus, Option<&str>),
    ) -> Result<KeySet> {
        let address = Address::key(KEYS);
        self.evolve((tenant, "keymanager", &address), |set: KeySet, now| {
            let new =
                SigningKey { kid: kid.into(), status: KeyStatus::Active, key: key.clone(), since: now, reason: None };
            let set = set.rotated(new, old)?;
            Ok((set.clone(), set))
        })
        .await
    }

    /// Forgets a key that does not sign any more, when nothing is left that it has signed. With a reason it is revoked
    /// instead: it has leaked, and those who ask shall be told.
    pub async fn retire_key(&mut self, tenant: &TenantId, kid: &str, leaked: Option<&str>) -> Result<KeySet> {
        if let Some(reason) = leaked {
            check_reason(reason)?;
        }
        let address = Address::key(KEYS);
        self.evolve((tenant, "keymanager", &address), |set: KeySet, now| {
            let set = set.retired(kid, leaked, now)?;
            Ok((set.clone(), set))
        })
        .await
    }

    pub async fn keys(&mut self, tenant: &TenantId) -> Result<KeySet> {
        let reply = self.get(tenant, "keymanager", &Address::key(KEYS)).await?;
        match (reply.outcome, reply.record) {
            (Outcome::Ok, Some(record)) => parsed(&record),
            _ => Ok(KeySet::default()),
        }
    }

    /// The next version of a name: each call gives a larger one, without gaps, whoever calls.
    pub async fn next_version(&mut self, tenant: &TenantId, name: &str) -> Result<u64> {
        let address = Address::key(name);
        for _ in 0..ATTEMPTS {
            if let Some(record) = self.add_one(tenant, "versionmanager", &address).await? {
                return parsed(&record);
            }
            Box::pin(self.put_if_absent(tenant, "versionmanager", &address, Put::of("0"))).await?;
        }
        Err(SqlError::new("40001", "the record comes and goes").with_hint("retry"))
    }

    /// Tells those who follow a tenant's permissions of a change. Returns its number.
    pub async fn publish_change(&mut self, tenant: &TenantId, change: serde_json::Value) -> Result<u64> {
        let address = Address::key(tenant.as_str());
        self.evolve((tenant, "permission", &address), |mut changes: Changes, _| {
            changes.last += 1;
            changes.recent.push((changes.last, change.clone()));
            let surplus = changes.recent.len().saturating_sub(MAX_CHANGES);
            changes.recent.drain(..surplus);
            let last = changes.last;
            Ok((changes, last))
        })
        .await
    }

    /// The changes after a number. None if they reach back further than is kept: then everything must be read again.
    pub async fn changes_after(
        &mut self,
        tenant: &TenantId,
        after: u64,
    ) -> Result<Option<Vec<(u64, serde_json::Value)>>> {
        let reply = self.get(tenant, "permission", &Address::key(tenant.as_str())).await?;
        let Some(record) = reply.record else { return Ok((after == 0).then(Vec::new)) };
        let changes: Changes = parsed(&record)?;
        let oldest = changes.last - changes.recent.len() as u64;
        if after < oldest || after > changes.last {
            return Ok(None);
        }
        Ok(Some(changes.recent.into_iter().filter(|(number, _)| *number > after).collect()))
    }
}
