//! The operations on records.
//!
//! Each is one conditional statement on one shard, and a look at the row when its condition did not hold. Rotation,
//! polling, revocation and exchange read first, decide ([`decide`](super::decide)) and write on condition that nobody has
//! changed what they read.
//!
//! A key leads to a place in each generation in force, and they are asked one after the other. A record that goes from a
//! previous generation to the current one between two of these looks is at neither, so the first is asked once more.

use super::ask::{Asked, Desk, Rows, text, text_or_null};
use super::decide::{self, Change, Counted, Decision, Family, MAX_COUNT, Rotated};
use super::place::{self, Address, NO_GENERATION, Spot, Turn};
use super::quota::{Adding, Meeting};
use super::record::{COLUMNS, Outcome, Record, Reply};
use super::spec::StoreSpec;
use super::{Going, MAX_BINDING_BYTES, MAX_OWNER_BYTES, MAX_TTL, MAX_VALUE_BYTES, Result};
use isles_cluster::session::Session;
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_kernel::names::{RegionName, TenantId};
use isles_kernel::value::Value;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// How often a decision is made anew because somebody else has changed the record, and how long it waits in between:
/// with many at one record each must come through before the last has tried for the last time.
const ATTEMPTS: usize = 16;
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// A record that is to be stored. Without an address it gets an id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Put {
    /// JSON.
    pub value: String,
    /// What is hashed, for a record with an id whose store is not random: `user1:client1`.
    pub route: Option<String>,
    /// The region that a record must be in; one whose key leads to another is refused.
    pub region: Option<RegionName>,
    /// The region that it should be in, if its key does not say another; that of the desk, if it is left out.
    pub near: Option<RegionName>,
    /// Whose records it is listed and revoked with.
    pub owner: Option<String>,
    /// Who may use it: those that say the same.
    pub binding: Option<String>,
    /// Another name to find it by.
    pub alias: Option<String>,
    /// That of the store, if it is left out.
    pub ttl: Option<Duration>,
    pub(super) state: Option<String>,
}

impl Put {
    pub fn of(value: impl Into<String>) -> Put {
        Put { value: value.into(), ..Put::default() }
    }

    pub fn routed(self, route: impl Into<String>) -> Put {
        Put { route: Some(route.into()), ..self }
    }

    pub fn owned(self, owner: impl Into<String>) -> Put {
        Put { owner: Some(owner.into()), ..self }
    }

    pub fn bound(self, binding: impl Into<String>) -> Put {
        Put { binding: Some(binding.into()), ..self }
    }

    pub fn called(self, alias: impl Into<String>) -> Put {
        Put { alias: Some(alias.into()), ..self }
    }

    pub fn lasting(self, ttl: Duration) -> Put {
        Put { ttl: Some(ttl), ..self }
    }

    fn check(&self, spec: &StoreSpec) -> Result<()> {
        check_value(&self.value)?;
        for (what, text) in [("owner", &self.owner), ("alias", &self.alias)] {
            bounded(what, text.as_deref(), MAX_OWNER_BYTES)?;
        }
        bounded("binding", self.binding.as_deref(), MAX_BINDING_BYTES)?;
        if self.alias.is_some() && !spec.has_alias {
            return Err(SqlError::new("22023", format!("records of store {} have no alias", spec.name)));
        }
        Ok(())
    }

    fn times(&self, spec: &StoreSpec, now: i64) -> Result<(i64, i64)> {
        let cap = now + micros(spec.cap);
        Ok(((now + micros(checked_ttl(self.ttl.unwrap_or(spec.ttl))?)).min(cap), cap))
    }
}

fn check_value(value: &str) -> Result<()> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(SqlError::new("54000", format!("a value has at most {MAX_VALUE_BYTES} bytes")));
    }
    match serde_json::from_str::<serde::de::IgnoredAny>(value) {
        Ok(_) => Ok(()),
        Err(error) => Err(SqlError::new("22P02", format!("a value is JSON: {error}"))),
    }
}

fn bounded(what: &str, text: Option<&str>, limit: usize) -> Result<()> {
    match text.is_some_and(|text| text.is_empty() || text.len() > limit) {
        true => Err(SqlError::new("22023", format!("an {what} has 1 to {limit} bytes"))),
        false => Ok(()),
    }
}

fn checked_ttl(ttl: Duration) -> Result<Duration> {
    match (Duration::from_millis(1)..=MAX_TTL).contains(&ttl) {
        true => Ok(ttl),
        false => Err(SqlError::new("22023", format!("a ttl is 1 ms to {} days", MAX_TTL.as_secs() / 86_400))),
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}

/// What a record that is found by its route remembers, so that what is made of it goes to the same route.
#[derive(Serialize, Deserialize)]
struct Routed {
    route: Option<String>,
}

/// Where an address leads.
pub(super) struct Resolved {
    /// Held until the operation has ended.
    going: Going,
    spec: Arc<StoreSpec>,
    /// Those to look at, in order. For a forged id one where nothing is.
    spots: Vec<Spot>,
    turn: Option<Turn>,
    /// What the record is called, without a turn.
    shown: String,
}

impl Resolved {
    /// The spots in the order in which they are asked.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let again = (self.spots.len() > 1).then_some(0);
        (0..self.spots.len()).chain(again)
    }

    fn is_of_old(&self, at: usize) -> bool {
        at > 0
    }
}

/// What is changed of a record, under conditions beyond that it is live. Its parameters begin with $5; $4 is now.
struct Update<'u> {
    set: &'u str,
    and: &'u str,
    params: Vec<Value>,
}

/// What an update met.
enum Met {
    Changed(Record),
    /// There is one, and it is not as the condition says.
    Refused(Record),
    Nothing,
}

/// Pauses between attempts, each twice as long as the last.
pub(super) struct Pauses(Duration);

impl Pauses {
    pub(super) fn new() -> Pauses {
        Pauses(FIRST_PAUSE)
    }

    pub(super) async fn pause(&mut self, env: &dyn Env) {
        // Those who meet once must not meet again at the same moment.
        let part = env.random() % 1_000;
        env.sleep(self.0 / 2 + self.0 * u32::try_from(part).unwrap_or_default() / 2_000).await;
        self.0 = (self.0 * 2).min(MAX_PAUSE);
    }
}

/// What came of an exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    pub outcome: Outcome,
    /// What was used, if it was.
    pub used: Option<Record>,
    /// What was made of it.
    pub made: Option<Record>,
}

const ON_KEY: &str = "instance = $1 AND kind = $2 AND key = $3";
/// And no note that only guards.
const LIVE: &str = "used_at IS NULL AND revoked_at IS NULL AND expires_at > $4 AND generation >= 0";

impl Desk<'_> {
    pub(super) async fn resolve(&mut self, tenant: &TenantId, store: &str, address: &Address) -> Result<Resolved> {
        let spec = self.stores.spec(store).await?;
        let going = self.stores.go(tenant).await?;
        let (placement, now) = (going.placement(), self.stores.now());
        let resolved = match address {
            Address::Id(id) => {
                let followed = place::follow(&spec, placement, tenant, id, now);
                let shown = followed.as_ref().map_or_else(|| id.clone(), |followed| followed.family.clone());
                let decoy = || place::decoy(&spec, placement, tenant, id).filter(|at| self.stores.has_table(&at.table));
                let (spots, turn) = match followed {
                    Some(followed) => (vec![followed.spot], followed.turn),
                    None => (decoy().into_iter().collect(), None),
                };
                Resolved { going, spec, spots, turn, shown }
            }
            address => {
                let spots = place::of_key(&spec, placement, tenant, address, now)?;
                Resolved { going, spec, spots, turn: None, shown: address.shown() }
            }
        };
        self.ensure(&resolved.spec, &resolved.spots).await?;
        self.note_fallback(&resolved, address);
        Ok(resolved)
    }

    async fn ensure(&self, spec: &StoreSpec, spots: &[Spot]) -> Result<()> {
        for spot in spots {
            if !self.stores.has_table(&spot.table) {
                self.make_table(spec, spot).await?;
            }
        }
        Ok(())
    }

    /// A table that is not known to be there was made by another process, or has to be made. Within a transaction it
    /// cannot be: the change of the schema would wait for the transaction, and the transaction for it.
    async fn make_table(&self, spec: &StoreSpec, spot: &Spot) -> Result<()> {
        if !self.is_within().await {
            return self.stores.ensure_table(&spot.region, spec.has_alias).await;
        }
        self.stores.learn_tables().await?;
        if self.stores.has_table(&spot.table) {
            return Ok(());
        }
        let (stores, region, has_alias) = (self.stores.clone(), spot.region.clone(), spec.has_alias);
        // What fails now is met again by who comes next.
        self.stores.env().spawn(Box::pin(async move { drop(stores.ensure_table(&region, has_alias).await) }));
        let message = format!("the table of records of region {} is being made", spot.region);
        Err(SqlError::new("40001", message).with_hint("retry the transaction"))
    }

    /// An id of a previous generation is read there at once.
    fn note_fallback(&self, resolved: &Resolved, address: &Address) {
        let current = resolved.going.placement().current().generation();
        if let (Address::Id(_), Some(spot)) = (address, resolved.spots.first())
            && spot.generation != current
            && !resolved.spec.is_singleton()
        {
            self.stores.shared.meter.fallback(&resolved.spec.name, current, spot.generation);
        }
    }

    /// Runs a statement about one spot, and notes how long it took.
    async fn at(&mut self, spec: &StoreSpec, spot: &Spot, sql: &str, params: Vec<Value>) -> Result<Rows> {
        let began = self.stores.env().elapsed();
        let rows = self.ask(sql, params).await;
        self.note_time(spec, spot, began);
        rows
    }

    /// As [`Desk::at`], for a statement that writes.
    async fn write_at(&mut self, spec: &StoreSpec, spot: &Spot, sql: String, params: Vec<Value>) -> Result<Rows> {
        let began = self.stores.env().elapsed();
        let rows = self.ask_to_write(spot, sql, params).await;
        self.note_time(spec, spot, began);
        rows
    }

    /// As [`Desk::write_at`], for a statement that adds a record, which quotas may refuse.
    async fn add_at(&mut self, adding: Adding<'_>, (sql, params): Asked) -> Result<Rows> {
        if !adding.spec.is_counted() {
            return self.write_at(adding.spec, adding.spot, sql, params).await;
        }
        let began = self.stores.env().elapsed();
        let rows = self.ask_counted(adding, vec![(sql, params)]).await;
        self.note_time(adding.spec, adding.spot, began);
        Ok(rows?.pop().unwrap_or_default())
    }

    fn note_time(&self, spec: &StoreSpec, spot: &Spot, began: Duration) {
        self.stores.shared.meter.note(&spec.name, spot, self.stores.env().elapsed().saturating_sub(began));
    }

    async fn look(&mut self, spec: &StoreSpec, spot: &Spot, shown: &str) -> Result<Option<Record>> {
        let sql = format!("SELECT {COLUMNS} FROM {} WHERE {ON_KEY}", spot.table);
        let rows = self.at(spec, spot, &sql, on_key(spec, spot)).await?;
        rows.first().map(|row| Record::of_row(shown.to_owned(), row)).transpose()
    }

    /// The record at the first of the spots that has one, and which.
    pub(super) async fn find(&mut self, resolved: &Resolved) -> Result<Option<(usize, Record)>> {
        for at in resolved.order() {
            let found = self.look(&resolved.spec, &resolved.spots[at], &resolved.shown).await?;
            if let Some(record) = found.filter(|record| !record.is_note) {
                self.note_old(resolved, at);
                return Ok(Some((at, record)));
            }
        }
        Ok(None)
    }

    /// Counts what was found in a previous generation.
    fn note_old(&self, resolved: &Resolved, at: usize) {
        if resolved.is_of_old(at) {
            let (newest, found) = (resolved.spots[0].generation, resolved.spots[at].generation);
            self.stores.shared.meter.fallback(&resolved.spec.name, newest, found);
        }
    }

    /// Changes the record at the first of the spots that has one, by one statement, if it is as the condition says.
    async fn update(&mut self, resolved: &Resolved, update: &Update<'_>, now: i64) -> Result<Met> {
        for at in resolved.order() {
            let spot = &resolved.spots[at];
            let sql = format!(
                "UPDATE {} SET {}, version = version + 1 WHERE {ON_KEY} AND {LIVE} {} RETURNING {COLUMNS}",
                spot.table, update.set, update.and
            );
            let mut params = on_key(&resolved.spec, spot);
            params.push(Value::Int(now));
            params.extend(update.params.iter().cloned());
            let rows = self.write_at(&resolved.spec, spot, sql, params).await?;
            if let Some(row) = rows.first() {
                self.note_old(resolved, at);
                return Ok(Met::Changed(Record::of_row(resolved.shown.clone(), row)?));
            }
            let found = self.look(&resolved.spec, spot, &resolved.shown).await?;
            if let Some(record) = found.filter(|record| !record.is_note) {
                return Ok(Met::Refused(record));
            }
        }
        Ok(Met::Nothing)
    }

    /// What the family of a token has of it, if the token is the current one; otherwise what it is. None for what is no
    /// token. Whoever changes a record by a token does it on condition that the family is still so.
    async fn held_by_token(&mut self, resolved: &Resolved) -> Result<std::result::Result<Option<String>, Outcome>> {
        let Some(turn) = &resolved.turn else { return Ok(Ok(None)) };
        let Some((_, record)) = self.find(resolved).await? else { return Ok(Err(Outcome::NotFound)) };
        Ok(match decide::standing(&record, turn, self.stores.now())? {
            Outcome::Ok => Ok(record.state),
            outcome => Err(outcome),
        })
    }

    /// Stores a record that gets an id. The outcome is a conflict if its alias is taken.
    pub async fn put(&mut self, tenant: &TenantId, store: &str, put: Put) -> Result<Reply> {
        let spec = self.stores.spec(store).await?;
        if spec.is_singleton() {
            return Err(SqlError::new("22023", format!("{store} is a singleton: its records have keys")));
        }
        if put.route.is_none() && !spec.is_random() {
            return Err(SqlError::new("22023", format!("a record of store {store} needs its key: {}", spec.key))
                .with_hint("the key says where the record goes; its id will carry that"));
        }
        if let Some(route) = &put.route {
            place::check_key("key", route)?;
        }
        let going = self.stores.go(tenant).await?;
        let unique = place::uuid(self.stores.random()?);
        let near = put.near.as_ref().or(self.near.as_ref());
        if put.route.is_none()
            && put.region.is_none()
            && let Some(near) = near.filter(|region| !place::has_region(going.placement(), region))
        {
            self.stores.shared.meter.unserved(&spec.name, near);
        }
        let to = (put.route.as_deref(), place::Wanted { region: put.region.as_ref(), near });
        let (spot, id) = place::mint(&spec, going.placement(), tenant, to, &unique)?;
        self.ensure(&spec, std::slice::from_ref(&spot)).await?;
        let (insert, record) = self.insertion(&spec, &spot, (tenant, id), &put)?;
        let adding = Adding { spec: &spec, spot: &spot, tenant, record: &record, meeting: Meeting::Nothing };
        match self.add_at(adding, insert).await {
            Ok(_) => Ok(Reply::ok(record)),
            Err(error) if error.sqlstate == "23505" => Ok(Reply::of(Outcome::Conflict)),
            Err(error) => Err(error),
        }
    }

    /// The statement that inserts a record with an id, and the record.
    fn insertion(
        &self,
        spec: &StoreSpec,
        spot: &Spot,
        (tenant, id): (&TenantId, String),
        put: &Put,
    ) -> Result<((String, Vec<Value>), Record)> {
        let now = self.stores.now();
        put.check(spec)?;
        let (state, id) = match (spec.rotates, &put.state) {
            (true, _) => {
                let family = Family::new(place::secret(self.stores.random()?), now);
                (decide::written(&family)?, place::token(&id, &family.turn()))
            }
            (false, Some(state)) => (state.clone(), id),
            (false, None) => (decide::written(&Routed { route: put.route.clone() })?, id),
        };
        let record = new_record(spec, put, id, Some(state), now)?;
        let sql = format!("INSERT INTO {} {INTO} VALUES {VALUES}", spot.table);
        let own = i64::from(spot.generation.get());
        Ok(((sql, values((spec, spot, own), tenant, &record, put.alias.as_deref())), record))
    }

    /// Stores a record under a key, in place of what was there.
    pub async fn put_at(&mut self, tenant: &TenantId, store: &str, address: &Address, put: Put) -> Result<Reply> {
        let resolved = self.resolve_key(tenant, store, address).await?;
        let (spec, spot) = (resolved.spec.clone(), resolved.spots[0].clone());
        put.check(&spec)?;
        let mut record = new_record(&spec, &put, resolved.shown.clone(), put.state.clone(), self.stores.now())?;
        let sql = format!(
            "INSERT INTO {} AS r {INTO} VALUES {VALUES} ON CONFLICT (instance, kind, key) DO UPDATE SET {REPLACED} \
             RETURNING version",
            spot.table
        );
        let own = i64::from(spot.generation.get());
        let mut statements = vec![(sql, values((&spec, &spot, own), tenant, &record, put.alias.as_deref()))];
        for old in &resolved.spots[1..] {
            statements.push((format!("DELETE FROM {} WHERE {ON_KEY}", old.table), on_key(&spec, old)));
        }
        let began = self.stores.env().elapsed();
        let adding = Adding { spec: &spec, spot: &spot, tenant, record: &record, meeting: Meeting::Replaced };
        let all = self.ask_counted(adding, statements).await?;
        self.note_time(&spec, &spot, began);
        record.version = number(&all[0]).unwrap_or(1);
        Ok(Reply::ok(record))
    }

    async fn resolve_key(&mut self, tenant: &TenantId, store: &str, address: &Address) -> Result<Resolved> {
        match address {
            Address::Id(_) => Err(SqlError::new("22023", "ids are made by the store: give a key, or nothing")),
            address => self.resolve(tenant, store, address).await,
        }
    }

    /// Stores a record under a key, unless there is one that has not expired: then it is replayed.
    ///
    /// It is noted in each generation in force, the oldest first, and passes only if it is new in all of them. Of any
    /// two that meet, whatever placement each of them knows, one is the second somewhere. The record is that of the current
    /// generation; the others only guard, and hold no generation.
    pub async fn put_if_absent(
        &mut self,
        tenant: &TenantId,
        store: &str,
        address: &Address,
        put: Put,
    ) -> Result<Reply> {
        let resolved = self.resolve_key(tenant, store, address).await?;
        let spec = resolved.spec.clone();
        put.check(&spec)?;
        let record = new_record(&spec, &put, resolved.shown.clone(), put.state.clone(), self.stores.now())?;
        for (at, spot) in resolved.spots.iter().enumerate().rev() {
            let generation = if resolved.is_of_old(at) { NO_GENERATION } else { spot.generation.get().into() };
            let sql = format!(
                "INSERT INTO {} AS r {INTO} VALUES {VALUES} ON CONFLICT (instance, kind, key) DO UPDATE SET {REPLACED} \
                 WHERE r.expires_at <= $11 RETURNING version",
                spot.table
            );
            let insert = (sql, values((&spec, spot, generation), tenant, &record, put.alias.as_deref()));
            let adding = Adding { spec: &spec, spot, tenant, record: &record, meeting: Meeting::Stays };
            if self.is_replay(&adding).await? || self.add_at(adding, insert).await?.is_empty() {
                return Ok(Reply::of(Outcome::Replayed));
            }
        }
        Ok(Reply::ok(record))
    }

    /// Whether a record of a store with quotas is there already. Who comes again adds nothing, so a counter that rose for
    /// them would soon have to be counted anew.
    async fn is_replay(&mut self, adding: &Adding<'_>) -> Result<bool> {
        if !adding.spec.is_counted() {
            return Ok(false);
        }
        let found = self.look(adding.spec, adding.spot, &adding.record.id).await?;
        Ok(found.is_some_and(|found| found.expires_at > adding.record.created_at))
    }

    /// Reads a record. What is not ok comes without it, except where it was used.
    pub async fn get(&mut self, tenant: &TenantId, store: &str, address: &Address) -> Result<Reply> {
        let resolved = self.resolve(tenant, store, address).await?;
        let Some((_, record)) = self.find(&resolved).await? else { return Ok(Reply::of(Outcome::NotFound)) };
        let now = self.stores.now();
        let outcome = match &resolved.turn {
            Some(turn) => decide::standing(&record, turn, now)?,
            None => record.life(now),
        };
        Ok(match outcome {
            Outcome::Ok => Reply::ok(record),
            outcome => Reply::of(outcome),
        })
    }

    /// Uses a record that may be used once.
    pub async fn take(
        &mut self,
        tenant: &TenantId,
        store: &str,
        address: &Address,
        binding: Option<&str>,
    ) -> Result<Reply> {
        let resolved = self.resolve(tenant, store, address).await?;
        if resolved.spec.rotates {
            return Err(SqlError::new("22023", format!("tokens of store {store} are rotated, not taken")));
        }
        let now = self.stores.now();
        let update = Update {
            set: "used_at = $4",
            and: "AND (binding IS NULL OR binding = $5)",
            params: vec![text_or_null(binding)],
        };
        Ok(answered(self.update(&resolved, &update, now).await?, |record| refused(record, binding, now)))
    }

    /// Lets a record last this long from now, and at most to its cap. It is never shortened.
    pub async fn extend(
        &mut self,
        tenant: &TenantId,
        store: &str,
        address: &Address,
        ttl: Option<Duration>,
    ) -> Result<Reply> {
        let resolved = self.resolve(tenant, store, address).await?;
        let ttl = checked_ttl(ttl.unwrap_or(resolved.spec.ttl))?;
        let held = match self.held_by_token(&resolved).await? {
            Ok(held) => held,
            Err(outcome) => return Ok(Reply::of(outcome)),
        };
        let now = self.stores.now();
        let mut params = vec![Value::Int(now + micros(ttl))];
        params.extend(held.iter().map(|state| text(state)));
        let update = Update {
            set: "expires_at = CASE WHEN cap_at < $5 THEN cap_at WHEN expires_at < $5 THEN $5 ELSE expires_at END",
            and: if held.is_some() { "AND state = $6" } else { "" },
            params,
        };
        Ok(answered(self.update(&resolved, &update, now).await?, |record| {
            refused(record, record.binding.as_deref(), now)
        }))
    }

    /// Gives a record another value if it still has this version.
    pub async fn compare_and_swap(
        &mut self,
        tenant: &TenantId,
        store: &str,
        address: &Address,
        (version, value): (i64, &str),
    ) -> Result<Reply> {
        check_value(value)?;
        let resolved = self.resolve(tenant, store, address).await?;
        let held = match self.held_by_token(&resolved).await? {
            Ok(held) => held,
            Err(outcome) => return Ok(Reply::of(outcome)),
        };
        let now = self.stores.now();
        let mut params = vec![Value::Int(version), text(value)];
        params.extend(held.iter().map(|state| text(state)));
        let and = if held.is_some() { "AND version = $5 AND state = $7" } else { "AND version = $5" };
        let update = Update { set: "value = $6", and, params };
        Ok(answered(self.update(&resolved, &update, now).await?, |record| match record.life(now) {
            Outcome::Ok => Reply { outcome: Outcome::Conflict, record: Some(record.clone()) },
            outcome => Reply::of(outcome),
        }))
    }

    /// Reads a record, decides, and writes the change if nobody has changed the record meanwhile; otherwise again. None
    /// if there is no record, or it is not bound to who asks.
    pub(super) async fn change<T>(
        &mut self,
        (tenant, store, address): (&TenantId, &str, &Address),
        binding: Option<&str>,
        mut decide: impl FnMut(&Record, Option<&Turn>, i64) -> Result<Decision<T>>,
    ) -> Result<Option<(T, Record)>> {
        let resolved = self.resolve(tenant, store, address).await?;
        let mut pauses = Pauses::new();
        for _ in 0..ATTEMPTS {
            let Some((at, record)) = self.find(&resolved).await? else { return Ok(None) };
            if !record.is_bound_to(binding) {
                return Ok(None);
            }
            let decision = decide(&record, resolved.turn.as_ref(), self.stores.now())?;
            let Some(change) = decision.change else { return Ok(Some((decision.answer, record))) };
            if let Some(record) = self.write(&resolved, &resolved.spots[at], &record, change).await? {
                return Ok(Some((decision.answer, record)));
            }
            pauses.pause(self.stores.env()).await;
        }
        Err(SqlError::new("40001", "too many change the record at once").with_hint("retry"))
    }

    async fn write(
        &mut self,
        resolved: &Resolved,
        spot: &Spot,
        read: &Record,
        change: Change,
    ) -> Result<Option<Record>> {
        let sql = format!(
            "UPDATE {} SET value = $5, state = $6, expires_at = $7, used_at = $8, revoked_at = $9, version = version + 1 \
             WHERE {ON_KEY} AND version = $4 RETURNING {COLUMNS}",
            spot.table
        );
        let or_null = |time: Option<i64>| time.map_or(Value::Null, Value::Int);
        let mut params = on_key(&resolved.spec, spot);
        params.extend([
            Value::Int(read.version),
            text(change.value.as_deref().unwrap_or(&read.value)),
            text_or_null(change.state.as_deref().or(read.state.as_deref())),
            Value::Int(change.expires_at.unwrap_or(read.expires_at)),
            or_null(change.used_at.or(read.used_at)),
            or_null(change.revoked_at.or(read.revoked_at)),
        ]);
        let rows = self.write_at(&resolved.spec, spot, sql, params).await?;
        rows.first().map(|row| Record::of_row(resolved.shown.clone(), row)).transpose()
    }

    /// Writes a change of a record that never expires: where it is, or, if that is a previous generation, in the current
    /// one, and removes it there. None if somebody has changed it meanwhile.
    pub(super) async fn write_forward(
        &mut self,
        (tenant, resolved, at): (&TenantId, &Resolved, usize),
        read: &Record,
        change: Change,
    ) -> Result<Option<Record>> {
        if !resolved.is_of_old(at) {
            return self.write(resolved, &resolved.spots[at], read, change).await;
        }
        match Box::pin(self.carry((tenant, resolved, at), read, &change)).await {
            // Rows of two regions are not in one commit over SQLite files. It stays where it is then, and is right there.
            Err(error) if error.sqlstate == "0A000" => self.write(resolved, &resolved.spots[at], read, change).await,
            carried => carried,
        }
    }

    /// Moves a record to the current generation, changed: one transaction, perhaps over two shards.
    async fn carry(
        &mut self,
        (tenant, resolved, at): (&TenantId, &Resolved, usize),
        read: &Record,
        change: &Change,
    ) -> Result<Option<Record>> {
        let (new, old, spec) = (&resolved.spots[0], &resolved.spots[at], &resolved.spec);
        let record = Record {
            value: change.value.clone().unwrap_or_else(|| read.value.clone()),
            state: change.state.clone().or_else(|| read.state.clone()),
            expires_at: change.expires_at.unwrap_or(read.expires_at),
            version: read.version + 1,
            ..read.clone()
        };
        let insert = format!("INSERT INTO {} {INTO} VALUES {VALUES} ON CONFLICT DO NOTHING RETURNING key", new.table);
        let inserting = values((spec, new, new.generation.get().into()), tenant, &record, None);
        let remove = format!("DELETE FROM {} WHERE {ON_KEY} AND version = $4 RETURNING key", old.table);
        let mut removing = on_key(spec, old);
        removing.push(Value::Int(read.version));
        let undo = format!("DELETE FROM {} WHERE {ON_KEY}", new.table);
        let steps = [(insert, inserting), (remove, removing), (undo, on_key(spec, new))];
        let carried = match self.lent_session() {
            Some(session) => carried_in(session, steps).await?,
            None => {
                let mut session = self.stores.session()?;
                let carried = carried_in(&mut session, steps).await;
                self.stores.give_back(session);
                carried?
            }
        };
        Ok(carried.then_some(record))
    }

    /// Brings a record that never expires into the current generation, if it is in a previous one. Returns whether it was.
    pub(super) async fn bring_forward(&mut self, tenant: &TenantId, store: &str, address: &Address) -> Result<bool> {
        let resolved = self.resolve(tenant, store, address).await?;
        match self.find(&resolved).await? {
            Some((at, record)) if resolved.is_of_old(at) => {
                let to = (tenant, &resolved, at);
                Ok(Box::pin(self.carry(to, &record, &Change::default())).await?.is_some())
            }
            _ => Ok(false),
        }
    }

    /// Replaces a token by its successor. One that was replaced before revokes its family, except within the grace
    /// window, where it gives the same successor again.
    pub async fn rotate(
        &mut self,
        tenant: &TenantId,
        store: &str,
        token: &str,
        binding: Option<&str>,
    ) -> Result<Reply> {
        let spec = self.stores.spec(store).await?;
        if !spec.rotates {
            return Err(SqlError::new("22023", format!("ids of store {store} are not tokens that rotate")));
        }
        let next = place::secret(self.stores.random()?);
        let address = Address::id(token);
        let rotated = self
            .change((tenant, store, &address), binding, |record, turn, now| {
                let Some(turn) = turn else {
                    return Ok(Decision::only(Rotated { outcome: Outcome::NotFound, turn: None }));
                };
                let expires_at = now + micros(spec.ttl);
                decide::rotate(record, turn, (&next, micros(spec.grace)), (now, expires_at))
            })
            .await?;
        let Some((rotated, mut record)) = rotated else { return Ok(Reply::of(Outcome::NotFound)) };
        Ok(match (rotated.outcome, rotated.turn) {
            (Outcome::Ok, Some(turn)) => {
                record.id = place::token(&record.id, &turn);
                Reply::ok(record)
            }
            (outcome, _) => Reply::of(outcome),
        })
    }

    /// Revokes a record; of a token, its whole family, whichever of its tokens is named.
    pub async fn revoke(&mut self, tenant: &TenantId, store: &str, address: &Address) -> Result<Reply> {
        let resolved = self.resolve(tenant, store, address).await?;
        let mut pauses = Pauses::new();
        for _ in 0..ATTEMPTS {
            let Some((at, record)) = self.find(&resolved).await? else { return Ok(Reply::of(Outcome::NotFound)) };
            let now = self.stores.now();
            match record.life(now) {
                Outcome::Ok | Outcome::Used => {}
                outcome => return Ok(Reply::of(outcome)),
            }
            let change = Change { revoked_at: Some(now), ..Change::default() };
            if let Some(record) = self.write(&resolved, &resolved.spots[at], &record, change).await? {
                return Ok(Reply::ok(record));
            }
            pauses.pause(self.stores.env()).await;
        }
        Err(SqlError::new("40001", "too many change the record at once").with_hint("retry"))
    }

    /// Removes a record, in whatever generation it is. It is ok if it was there, expired or not.
    pub async fn delete(&mut self, tenant: &TenantId, store: &str, address: &Address) -> Result<Reply> {
        let resolved = self.resolve(tenant, store, address).await?;
        let mut outcome = Outcome::NotFound;
        for spot in &resolved.spots {
            let sql = format!("DELETE FROM {} WHERE {ON_KEY} RETURNING version", spot.table);
            if !self.write_at(&resolved.spec, spot, sql, on_key(&resolved.spec, spot)).await?.is_empty() {
                outcome = Outcome::Ok;
            }
        }
        Ok(Reply::of(outcome))
    }

    /// Counts one more under a key, within a window that begins with its first.
    pub async fn hit(
        &mut self,
        tenant: &TenantId,
        store: &str,
        address: &Address,
        (limit, window): (u64, Duration),
    ) -> Result<Counted> {
        if !(1..=MAX_COUNT).contains(&limit) {
            return Err(SqlError::new("22023", format!("a limit is 1 to {MAX_COUNT}")));
        }
        let mut pauses = Pauses::new();
        for _ in 0..ATTEMPTS {
            if let Some(counted) = self.count_one(tenant, store, address, limit).await? {
                return Ok(counted);
            }
            // The window is over, or there is none.
            let put = Put { ttl: Some(window), state: Some(decide::written(&1_u64)?), ..Put::of("null") };
            if let Reply { outcome: Outcome::Ok, record: Some(record) } =
                self.put_if_absent(tenant, store, address, put).await?
            {
                return Ok(Counted { allowed: true, current: 1, limit, reset_at: record.expires_at });
            }
            pauses.pause(self.stores.env()).await;
        }
        Err(SqlError::new("40001", "too many count at once").with_hint("retry"))
    }

    /// Counts one more within a window that is there, by one statement. What is refused is not counted.
    async fn count_one(
        &mut self,
        tenant: &TenantId,
        store: &str,
        address: &Address,
        limit: u64,
    ) -> Result<Option<Counted>> {
        let resolved = self.resolve(tenant, store, address).await?;
        let update = Update {
            set: "state = CAST(CAST(state AS bigint) + 1 AS text)",
            and: "AND CAST(state AS bigint) < $5",
            params: vec![Value::Int(i64::try_from(limit).unwrap_or(i64::MAX))],
        };
        let now = self.stores.now();
        let of = |record: &Record, allowed| {
            let current = decide::read::<Option<u64>>(record)?.unwrap_or_default();
            Ok(Some(Counted { allowed, current, limit, reset_at: record.expires_at }))
        };
        match self.update(&resolved, &update, now).await? {
            Met::Changed(record) => of(&record, true),
            // What was used up or revoked counts nothing, and allows nothing, until its window is over.
            Met::Refused(record) if record.expires_at > now => match of(&record, false)? {
                // It has begun since.
                Some(counted) if record.life(now) == Outcome::Ok && counted.current < limit => Ok(None),
                counted => Ok(counted),
            },
            Met::Refused(_) | Met::Nothing => Ok(None),
        }
    }

    /// Adds one to a number that never expires, by one statement. None if there is none.
    pub(super) async fn add_one(
        &mut self,
        tenant: &TenantId,
        store: &str,
        address: &Address,
    ) -> Result<Option<Record>> {
        let resolved = self.resolve(tenant, store, address).await?;
        let update = Update {
            set: "value = CAST(CAST(value AS bigint) + 1 AS text), expires_at = $5",
            and: "",
            params: vec![Value::Int(i64::MAX / 2)],
        };
        let now = self.stores.now();
        Ok(match self.update(&resolved, &update, now).await? {
            Met::Changed(record) => Some(record),
            Met::Refused(_) | Met::Nothing => None,
        })
    }

    /// Uses a record, and makes another of it, both or neither. Their stores are colocated, so within a generation this is
    /// one request to one shard. One that was used before revokes what was made of it: it has been stolen, or its answer has been.
    pub async fn exchange(
        &mut self,
        tenant: &TenantId,
        (from, id, binding): (&str, &str, Option<&str>),
        (into, put): (&str, impl FnOnce(&Record) -> Put),
    ) -> Result<Exchange> {
        let of = |outcome| Exchange { outcome, used: None, made: None };
        let made_spec = self.stores.spec(into).await?;
        check_exchange(&*self.stores.spec(from).await?, &made_spec)?;
        let resolved = self.resolve(tenant, from, &Address::id(id)).await?;
        // What it says does not change, so it can be read beforehand.
        let Some((_, record)) = self.find(&resolved).await? else { return Ok(of(Outcome::NotFound)) };
        if !record.is_bound_to(binding) {
            return Ok(of(Outcome::NotFound));
        }
        if record.life(self.stores.now()) != Outcome::Ok {
            drop(resolved);
            return self.not_again(tenant, into, &record).await.map(of);
        }
        let (spot, put) = (resolved.spots[0].clone(), put(&record));
        let placement = resolved.going.placement();
        let route = decide::read::<Routed>(&record)?.route;
        let unique = place::uuid(self.stores.random()?);
        let near = put.near.as_ref().or(self.near.as_ref());
        let to = (route.as_deref(), place::Wanted { region: None, near });
        let (made_spot, made_id) = place::mint(&made_spec, placement, tenant, to, &unique)?;
        self.ensure(&made_spec, std::slice::from_ref(&made_spot)).await?;
        let (insert, made) = self.insertion(&made_spec, &made_spot, (tenant, made_id.clone()), &put)?;
        let now = self.stores.now();
        let take = format!(
            "UPDATE {} SET used_at = $4, used_by = $5, version = version + 1 WHERE {ON_KEY} AND {LIVE} RETURNING {COLUMNS}",
            spot.table
        );
        let mut taking = on_key(&resolved.spec, &spot);
        taking.extend([Value::Int(now), text(&made_id)]);
        let undo = format!(
            "DELETE FROM {} WHERE {ON_KEY} AND NOT EXISTS (SELECT 1 FROM {} c WHERE c.instance = $4 AND c.kind = $5 \
             AND c.key = $6 AND c.used_by = $7) RETURNING key",
            made_spot.table, spot.table
        );
        let mut undoing = on_key(&made_spec, &made_spot);
        undoing.extend(on_key(&resolved.spec, &spot));
        undoing.push(text(&made_id));
        let began = self.stores.env().elapsed();
        let adding = Adding { spec: &made_spec, spot: &made_spot, tenant, record: &made, meeting: Meeting::Nothing };
        let all = self.ask_counted(adding, vec![(take, taking), insert, (undo, undoing)]).await?;
        self.note_time(&resolved.spec, &spot, began);
        match all[0].first() {
            Some(row) => {
                let used = Record::of_row(resolved.shown.clone(), row)?;
                Ok(Exchange { outcome: Outcome::Ok, used: Some(used), made: Some(made) })
            }
            None => {
                let found = self.look(&resolved.spec, &spot, &resolved.shown).await?;
                drop(resolved);
                match found {
                    Some(record) => self.not_again(tenant, into, &record).await.map(of),
                    None => Ok(of(Outcome::NotFound)),
                }
            }
        }
    }

    /// Why a record cannot be exchanged. If it was before, what was made of it is revoked.
    async fn not_again(&mut self, tenant: &TenantId, into: &str, record: &Record) -> Result<Outcome> {
        match (record.life(self.stores.now()), &record.used_by) {
            (Outcome::Used, Some(made)) => {
                Box::pin(self.revoke(tenant, into, &Address::id(made.clone()))).await?;
                Ok(Outcome::Replayed)
            }
            // It was there a moment ago and could not be used: it has ended in between.
            (Outcome::Ok, _) => Ok(Outcome::Conflict),
            (outcome, _) => Ok(outcome),
        }
    }
}

/// The steps of a record's way to another place: insert, remove, and undo the first if the second has found nothing. All
/// are in one transaction, the session's if it has one. Whether it has gone.
async fn carried_in(session: &mut Session, steps: [Asked; 3]) -> Result<bool> {
    let [insert, remove, undo] = steps;
    let is_own = !session.in_transaction();
    if is_own {
        session.begin_implicit();
    }
    let work = async {
        // Another may be there first.
        if session.run_text(&insert.0, insert.1).await?.rows.is_empty() {
            return Ok(false);
        }
        if session.run_text(&remove.0, remove.1).await?.rows.is_empty() {
            session.run_text(&undo.0, undo.1).await?;
            return Ok(false);
        }
        Ok(true)
    };
    let carried = work.await;
    if !is_own {
        return carried;
    }
    if carried.is_err() {
        session.fail();
    }
    let ended = session.end_implicit().await;
    carried.and_then(|carried| ended.map(|()| carried))
}

/// Only what is used once is exchanged, and only for what is beside it.
fn check_exchange(from: &StoreSpec, into: &StoreSpec) -> Result<()> {
    if from.rotates {
        return Err(SqlError::new("22023", format!("tokens of store {} are rotated, not exchanged", from.name)));
    }
    match from.is_colocated_with(into) {
        true => Ok(()),
        false => Err(SqlError::new("22023", format!("stores {} and {} are not colocated", from.name, into.name))
            .with_hint("an exchange is between stores of one group with one key, which is not random")),
    }
}

/// What an update is answered with.
fn answered(met: Met, refused: impl FnOnce(&Record) -> Reply) -> Reply {
    match met {
        Met::Changed(record) => Reply::ok(record),
        Met::Refused(record) => refused(&record),
        Met::Nothing => Reply::of(Outcome::NotFound),
    }
}

/// Why a record was not used.
fn refused(record: &Record, binding: Option<&str>, now: i64) -> Reply {
    Reply::of(match record.life(now) {
        _ if !record.is_bound_to(binding) => Outcome::NotFound,
        Outcome::Ok => Outcome::Conflict,
        outcome => outcome,
    })
}

fn on_key(spec: &StoreSpec, spot: &Spot) -> Vec<Value> {
    vec![text(&spot.instance), text(spec.name.as_str()), text(&spot.key)]
}

fn number(rows: &Rows) -> Option<i64> {
    match rows.first()?.first()? {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

const INTO: &str = "(instance, kind, key, tenant, owner, binding, alias, value, state, version, created_at, expires_at, cap_at, generation)";
const VALUES: &str = "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)";
/// What is there counts on, so that who has read it before finds it changed.
const REPLACED: &str = "owner = excluded.owner, binding = excluded.binding, alias = excluded.alias, \
     value = excluded.value, state = excluded.state, version = r.version + 1, created_at = excluded.created_at, \
     expires_at = excluded.expires_at, cap_at = excluded.cap_at, used_at = NULL, used_by = NULL, revoked_at = NULL, \
     generation = excluded.generation";

fn values(
    (spec, spot, generation): (&StoreSpec, &Spot, i64),
    tenant: &TenantId,
    record: &Record,
    alias: Option<&str>,
) -> Vec<Value> {
    let mut values = on_key(spec, spot);
    values.extend([
        text(tenant.as_str()),
        text_or_null(record.owner.as_deref()),
        text_or_null(record.binding.as_deref()),
        text_or_null(alias),
        text(&record.value),
        text_or_null(record.state.as_deref()),
        Value::Int(record.version),
        Value::Int(record.created_at),
        Value::Int(record.expires_at),
        Value::Int(record.cap_at),
        Value::Int(generation),
    ]);
    values
}

fn new_record(spec: &StoreSpec, put: &Put, id: String, state: Option<String>, now: i64) -> Result<Record> {
    let (expires_at, cap_at) = put.times(spec, now)?;
    Ok(Record {
        id,
        owner: put.owner.clone(),
        binding: put.binding.clone(),
        value: put.value.clone(),
        state,
        version: 1,
        created_at: now,
        expires_at,
        cap_at,
        used_at: None,
        used_by: None,
        revoked_at: None,
        is_note: false,
    })
}
