//! Operations with named arguments, as SQL and HTTP ask for them, and answers in JSON.
//!
//! The list of operations is here once: what SQL can call and what HTTP routes lead to are made of it.

use crate::ask::Desk;
use crate::decide::Polled;
use crate::identity::Device;
use crate::operate::Put;
use crate::place::{Address, timestamp};
use crate::record::{Outcome, Record, Reply};
use crate::{MAX_PAGE, Result};
use isles_kernel::error::SqlError;
use isles_kernel::names::{RegionName, TenantId};
use serde_json::{Map, Value as Json, json};
use std::time::Duration;

/// What an argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Number,
    /// In SQL an interval; in JSON a number of milliseconds.
    Time,
}

/// An argument of an operation: its name, what it is, and whether it must be given.
pub type Argument = (&'static str, Kind, bool);

/// An operation, by the name that SQL and HTTP have for it. The store is an argument of each.
pub struct Operation {
    pub name: &'static str,
    pub arguments: &'static [Argument],
}

const ID: Argument = ("id", Kind::Text, false);
const KEY: Argument = ("key", Kind::Text, false);
const NAME: Argument = ("name", Kind::Text, false);
const VALUE: Argument = ("value", Kind::Text, true);
const OWNER: Argument = ("owner", Kind::Text, false);
const BINDING: Argument = ("binding", Kind::Text, false);
const TTL: Argument = ("ttl", Kind::Time, false);

pub const OPERATIONS: [Operation; 27] = [
    Operation {
        name: "put",
        arguments: &[
            VALUE,
            KEY,
            OWNER,
            BINDING,
            TTL,
            ("region", Kind::Text, false),
            ("alias", Kind::Text, false),
            // As the deployment that stores learn from calls it.
            ("locationHint", Kind::Text, false),
        ],
    },
    Operation { name: "put_at", arguments: &[("key", Kind::Text, true), VALUE, NAME, OWNER, BINDING, TTL] },
    Operation {
        name: "put_if_absent",
        arguments: &[("key", Kind::Text, true), ("value", Kind::Text, false), NAME, OWNER, BINDING, TTL],
    },
    Operation { name: "get", arguments: &[ID, KEY, NAME] },
    Operation { name: "find", arguments: &[("alias", Kind::Text, true)] },
    Operation { name: "take", arguments: &[ID, KEY, NAME, BINDING] },
    Operation { name: "extend", arguments: &[ID, KEY, NAME, TTL] },
    Operation { name: "compare_and_swap", arguments: &[("version", Kind::Number, true), VALUE, ID, KEY, NAME] },
    Operation { name: "rotate", arguments: &[("id", Kind::Text, true), BINDING] },
    Operation {
        name: "exchange",
        arguments: &[
            ("id", Kind::Text, true),
            ("into", Kind::Text, true),
            BINDING,
            ("made_binding", Kind::Text, false),
        ],
    },
    Operation { name: "revoke", arguments: &[ID, KEY, NAME] },
    Operation { name: "revoke_owner", arguments: &[("owner", Kind::Text, true)] },
    Operation {
        name: "list_by_owner",
        arguments: &[("owner", Kind::Text, true), ("after", Kind::Text, false), ("limit", Kind::Number, false)],
    },
    Operation { name: "delete", arguments: &[ID, KEY, NAME] },
    Operation { name: "count", arguments: &[] },
    Operation {
        name: "hit",
        arguments: &[("key", Kind::Text, true), ("limit", Kind::Number, true), ("window", Kind::Time, true)],
    },
    Operation {
        name: "pass_proof",
        arguments: &[("jkt", Kind::Text, true), ("jti", Kind::Text, true), ("lifetime", Kind::Time, true)],
    },
    Operation {
        name: "start_device",
        arguments: &[("client", Kind::Text, true), VALUE, ("interval", Kind::Number, false), TTL],
    },
    Operation { name: "find_device", arguments: &[("user_code", Kind::Text, true)] },
    Operation { name: "answer_device", arguments: &[("user_code", Kind::Text, true), ("granted", Kind::Text, false)] },
    Operation { name: "poll_device", arguments: &[("id", Kind::Text, true), ("client", Kind::Text, true)] },
    Operation {
        name: "rotate_key",
        arguments: &[("kid", Kind::Text, true), ("jwk", Kind::Text, true), ("leaked", Kind::Text, false)],
    },
    Operation { name: "retire_key", arguments: &[("kid", Kind::Text, true), ("leaked", Kind::Text, false)] },
    Operation { name: "signing_keys", arguments: &[] },
    Operation { name: "next_version", arguments: &[("name", Kind::Text, true)] },
    Operation { name: "publish_change", arguments: &[("change", Kind::Text, true)] },
    Operation { name: "changes_after", arguments: &[("number", Kind::Number, true)] },
];

/// Seconds between two polls of a device, if its start does not say (RFC 8628).
const POLL_INTERVAL: i64 = 5;

/// The operation of a name.
pub fn operation(name: &str) -> Option<&'static Operation> {
    OPERATIONS.iter().find(|operation| operation.name == name)
}

/// Arguments that were given, by name.
pub struct Given(pub Map<String, Json>);

impl Given {
    fn text(&self, name: &str) -> Result<Option<&str>> {
        match self.0.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(Json::String(text)) => Ok(Some(text)),
            Some(_) => Err(SqlError::new("22023", format!("{name} is a text"))),
        }
    }

    fn needed(&self, name: &str) -> Result<&str> {
        self.text(name)?.ok_or_else(|| SqlError::new("22004", format!("{name} is missing")))
    }

    fn number(&self, name: &str) -> Result<Option<i64>> {
        match self.0.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(value) => {
                let number = value.as_i64().ok_or_else(|| SqlError::new("22023", format!("{name} is a whole number")));
                number.map(Some)
            }
        }
    }

    fn time(&self, name: &str) -> Result<Option<Duration>> {
        let Some(ms) = self.number(name)? else { return Ok(None) };
        let ms = u64::try_from(ms).map_err(|_| SqlError::new("22023", format!("{name} is not negative")))?;
        Ok(Some(Duration::from_millis(ms)))
    }

    /// A value is JSON: as text in SQL, as itself in HTTP.
    fn json(&self, name: &str) -> Option<String> {
        match self.0.get(name) {
            None | Some(Json::Null) => None,
            Some(Json::String(text)) => Some(text.clone()),
            Some(value) => Some(value.to_string()),
        }
    }

    fn value(&self) -> Result<String> {
        Ok(self.json("value").unwrap_or_else(|| "null".into()))
    }

    fn address(&self) -> Result<Address> {
        match (self.text("id")?, self.text("key")?, self.text("name")?) {
            (Some(id), None, None) => Ok(Address::id(id)),
            (None, Some(key), None) => Ok(Address::key(key)),
            (None, Some(route), Some(name)) => Ok(Address::within(route, name)),
            _ => Err(SqlError::new("22023", "a record is named by its id, or by its key, or by its key and its name")),
        }
    }

    fn region(&self, name: &str) -> Result<Option<RegionName>> {
        let region = self.text(name)?.map(RegionName::new).transpose();
        region.map_err(|error| SqlError::new("22023", error.to_string()))
    }

    fn put(&self) -> Result<Put> {
        let own = |name| self.text(name).map(|text| text.map(str::to_owned));
        Ok(Put {
            region: self.region("region")?,
            near: self.region("locationHint")?,
            owner: own("owner")?,
            binding: own("binding")?,
            alias: own("alias")?,
            ttl: self.time("ttl")?,
            ..Put::of(self.value()?)
        })
    }

    /// Refuses what the operation does not have.
    fn check(&self, operation: &Operation) -> Result<()> {
        let known = |name: &str| operation.arguments.iter().any(|(known, _, _)| *known == name);
        match self.0.keys().find(|name| !known(name)) {
            Some(name) => Err(SqlError::new("22023", format!("{} has no argument {name}", operation.name))),
            None => Ok(()),
        }
    }
}

fn shown_time(micros: i64) -> Json {
    Json::String(timestamp(micros).to_string())
}

fn shown(record: &Record) -> Json {
    let value = serde_json::from_str(&record.value).unwrap_or(Json::Null);
    json!({
        "id": record.id,
        "value": value,
        "version": record.version,
        "owner": record.owner,
        "createdAt": shown_time(record.created_at),
        "expiresAt": shown_time(record.expires_at),
    })
}

fn answer(reply: &Reply) -> Json {
    let mut all = json!({ "outcome": reply.outcome.name() });
    if let (Some(record), Json::Object(all)) = (&reply.record, &mut all)
        && let Json::Object(fields) = shown(record)
    {
        all.extend(fields);
    }
    all
}

/// What became of an extension: a record that ends at its cap is not extended any further.
fn extended(reply: &Reply) -> Json {
    let mut all = answer(reply);
    if let Some(record) = reply.record.as_ref().filter(|_| reply.is_ok()) {
        all["capAt"] = shown_time(record.cap_at);
        all["capped"] = (record.expires_at >= record.cap_at).into();
    }
    all
}

impl Desk<'_> {
    /// Carries out an operation on a store, in JSON. Each is boxed: together they would be one large future, which those
    /// who call it would have on their stack.
    pub async fn command(
        &mut self,
        tenant: &TenantId,
        store: &str,
        operation: &Operation,
        given: Given,
    ) -> Result<Json> {
        given.check(operation)?;
        let reply = match operation.name {
            "put" => {
                let put = Put { route: given.text("key")?.map(str::to_owned), ..given.put()? };
                Box::pin(self.put(tenant, store, put)).await?
            }
            "put_at" => Box::pin(self.put_at(tenant, store, &given.address()?, given.put()?)).await?,
            "put_if_absent" => Box::pin(self.put_if_absent(tenant, store, &given.address()?, given.put()?)).await?,
            "get" => Box::pin(self.get(tenant, store, &given.address()?)).await?,
            "find" => Box::pin(self.get_by_alias(tenant, store, given.needed("alias")?, None)).await?,
            "take" => Box::pin(self.take(tenant, store, &given.address()?, given.text("binding")?)).await?,
            "extend" => {
                let reply = Box::pin(self.extend(tenant, store, &given.address()?, given.time("ttl")?)).await?;
                return Ok(extended(&reply));
            }
            "compare_and_swap" => {
                let version = given.number("version")?.ok_or_else(|| SqlError::new("22004", "version is missing"))?;
                Box::pin(self.compare_and_swap(tenant, store, &given.address()?, (version, &given.value()?))).await?
            }
            "rotate" => Box::pin(self.rotate(tenant, store, given.needed("id")?, given.text("binding")?)).await?,
            "revoke" => Box::pin(self.revoke(tenant, store, &given.address()?)).await?,
            "delete" => Box::pin(self.delete(tenant, store, &given.address()?)).await?,
            "pass_proof" => {
                let proof = (given.needed("jkt")?, given.needed("jti")?);
                let lifetime = given.time("lifetime")?.unwrap_or_default();
                Box::pin(self.pass_proof_of(tenant, store, proof, lifetime)).await?
            }
            _ => return Box::pin(self.other_command(tenant, store, operation, given)).await,
        };
        Ok(answer(&reply))
    }

    async fn other_command(
        &mut self,
        tenant: &TenantId,
        store: &str,
        operation: &Operation,
        given: Given,
    ) -> Result<Json> {
        match operation.name {
            "exchange" => {
                let binding = given.text("made_binding")?.or(given.text("binding")?).map(str::to_owned);
                let make = |used: &Record| Put { owner: used.owner.clone(), binding, ..Put::of(&used.value) };
                let from = (store, given.needed("id")?, given.text("binding")?);
                let exchanged = Box::pin(self.exchange(tenant, from, (given.needed("into")?, make))).await?;
                let of = |record: &Option<Record>| record.as_ref().map(shown);
                Ok(
                    json!({ "outcome": exchanged.outcome.name(), "used": of(&exchanged.used), "made": of(&exchanged.made) }),
                )
            }
            "revoke_owner" => {
                let revoked = self.revoke_owner(tenant, store, given.needed("owner")?).await?;
                Ok(json!({ "outcome": Outcome::Ok.name(), "records": revoked.records }))
            }
            "list_by_owner" => {
                let limit = given.number("limit")?.map_or(Ok(100), usize::try_from);
                let limit = limit.map_err(|_| SqlError::new("22023", format!("a page has 1 to {MAX_PAGE} records")))?;
                let owner = (tenant, store, given.needed("owner")?);
                let page = self.list_by_owner(owner, given.text("after")?, limit).await?;
                let records: Vec<Json> = page.records.iter().map(shown).collect();
                Ok(json!({ "outcome": Outcome::Ok.name(), "records": records, "next": page.next }))
            }
            "count" => Ok(json!({ "outcome": Outcome::Ok.name(), "count": self.count(tenant, store).await? })),
            "hit" => {
                let limit = given.number("limit")?.and_then(|limit| u64::try_from(limit).ok()).unwrap_or_default();
                let window = given.time("window")?.unwrap_or_default();
                let counted = self.hit(tenant, store, &given.address()?, (limit, window)).await?;
                Ok(json!({
                    "outcome": Outcome::Ok.name(), "allowed": counted.allowed, "current": counted.current,
                    "limit": counted.limit, "resetAt": shown_time(counted.reset_at),
                }))
            }
            _ if operation.name.ends_with("_device") => {
                Box::pin(self.device_command(tenant, store, operation, given)).await
            }
            _ => Box::pin(self.singleton_command(tenant, store, operation, given)).await,
        }
    }

    /// Grants that somebody else approves.
    async fn device_command(
        &mut self,
        tenant: &TenantId,
        store: &str,
        operation: &Operation,
        given: Given,
    ) -> Result<Json> {
        let device = Device::of_store(store)
            .ok_or_else(|| SqlError::new("22023", format!("{} is of device and ciba, not {store}", operation.name)))?;
        match operation.name {
            "start_device" => {
                let interval = given.number("interval")?.unwrap_or(POLL_INTERVAL);
                let interval = u64::try_from(interval).unwrap_or_default();
                let (client, value) = (given.needed("client")?, given.value()?);
                let started =
                    self.start_device(tenant, device, (client, &value), (interval, given.time("ttl")?)).await?;
                Ok(json!({
                    "outcome": Outcome::Ok.name(), "deviceCode": started.device_code, "userCode": started.user_code,
                    "interval": started.interval, "expiresAt": shown_time(started.record.expires_at),
                }))
            }
            "find_device" => Ok(answer(&self.find_device(tenant, device, given.needed("user_code")?).await?)),
            "answer_device" => {
                let granted = given.json("granted");
                let code = given.needed("user_code")?;
                let outcome = self.answer_device(tenant, device, code, granted.as_deref()).await?;
                Ok(json!({ "outcome": outcome.name() }))
            }
            _ => {
                let polled = self.poll_device(tenant, device, given.needed("id")?, given.needed("client")?).await?;
                Ok(match &polled {
                    Polled::Granted(granted) => {
                        let granted: Json = serde_json::from_str(granted).unwrap_or(Json::Null);
                        json!({ "outcome": Outcome::Ok.name(), "granted": granted })
                    }
                    Polled::SlowDown(interval) => json!({ "outcome": polled.error(), "interval": interval }),
                    _ => json!({ "outcome": polled.error() }),
                })
            }
        }
    }

    /// Signing keys, versions, and changes of permissions.
    async fn singleton_command(
        &mut self,
        tenant: &TenantId,
        store: &str,
        operation: &Operation,
        given: Given,
    ) -> Result<Json> {
        let wrong = || SqlError::new("22023", format!("store {store} has no operation {}", operation.name));
        match (operation.name, store) {
            ("rotate_key", "keymanager") => {
                let jwk = given.json("jwk").unwrap_or_default();
                let jwk = serde_json::from_str(&jwk)
                    .map_err(|fault| SqlError::new("22P02", format!("a key is JSON: {fault}")))?;
                let kid = given.needed("kid")?;
                let set = match given.text("leaked")? {
                    Some(reason) => self.rotate_key_now(tenant, (kid, jwk), reason).await?,
                    None => self.rotate_key(tenant, kid, jwk).await?,
                };
                Ok(json!({ "outcome": Outcome::Ok.name(), "keys": set.keys }))
            }
            ("signing_keys", "keymanager") => {
                Ok(json!({ "outcome": Outcome::Ok.name(), "keys": self.keys(tenant).await?.keys }))
            }
            ("next_version", "versionmanager") => {
                let version = self.next_version(tenant, given.needed("name")?).await?;
                Ok(json!({ "outcome": Outcome::Ok.name(), "version": version }))
            }
            ("retire_key", "keymanager") => {
                let set = self.retire_key(tenant, given.needed("kid")?, given.text("leaked")?).await?;
                Ok(json!({ "outcome": Outcome::Ok.name(), "keys": set.keys }))
            }
            ("publish_change", "permission") => {
                let change = serde_json::from_str(&given.json("change").unwrap_or_else(|| "null".into()))
                    .map_err(|fault| SqlError::new("22P02", format!("a change is JSON: {fault}")))?;
                let number = self.publish_change(tenant, change).await?;
                Ok(json!({ "outcome": Outcome::Ok.name(), "number": number }))
            }
            ("changes_after", "permission") => {
                let after = given.number("number")?.and_then(|number| u64::try_from(number).ok());
                let after = after.ok_or_else(|| SqlError::new("22023", "number is not negative"))?;
                Ok(match self.changes_after(tenant, after).await? {
                    None => json!({ "outcome": Outcome::Expired.name() }),
                    Some(changes) => {
                        let one = |(number, change)| json!({ "number": number, "change": change });
                        let changes: Vec<Json> = changes.into_iter().map(one).collect();
                        json!({ "outcome": Outcome::Ok.name(), "changes": changes })
                    }
                })
            }
            ("rotate_key" | "retire_key" | "signing_keys" | "next_version" | "publish_change" | "changes_after", _) => {
                Err(wrong())
            }
            (other, _) => Err(SqlError::new("42883", format!("there is no operation {other}"))),
        }
    }
}
