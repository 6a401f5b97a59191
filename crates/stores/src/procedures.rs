//! What SQL calls.
//!
//! ```text
//! SELECT isles.create_store('session', prefix => 'ses', "group" => 'random-medium-rps', key => 'uuid', ttl => '1 hour')
//! SELECT isles.create_preset('identity')
//! SELECT isles.put('session', '{"user": "ann"}', owner => 'ann')         answers in JSON
//! SELECT isles.take('authcode', 'g1:apac:3:acd_…', binding => 'app')
//! SELECT * FROM isles.stores()
//! SHOW DISTRIBUTION                                                      isles.distribution()
//! ```
//!
//! Operations are part of the caller's transaction, if there is one. The tenant is the session's: a role that is fixed
//! to one reaches that tenant's records and no others.

use crate::commands::{Argument, Given, Kind, OPERATIONS, Operation};
use crate::define::Alteration;
use crate::{Result, Shared, StoreConfig, Stores};
use async_trait::async_trait;
use isles_cluster::session::rights::Rank;
use isles_cluster::session::{Procedure, REGION, Session};
use isles_kernel::error::SqlError;
use isles_kernel::names::{RegionName, TenantId};
use isles_kernel::value::Value;
use isles_sql::bind::procedure::{Param, Signature};
use isles_sql::tree::Field;
use isles_sql::types::{BOOL, FLOAT8, INT8, INTERVAL, JSON, Oid, TEXT, Type};
use serde_json::Map;
use std::sync::{Arc, Weak};
use std::time::Duration;

const MS_PER_DAY: i64 = 86_400_000;

impl Stores {
    /// Lets clients of the database call what is here.
    pub fn register(&self) {
        for operation in &OPERATIONS {
            self.database()
                .register(operation.name, Arc::new(Operating { operation, shared: Arc::downgrade(&self.shared) }));
        }
        for defining in Defining::ALL {
            self.database()
                .register(defining.name(), Arc::new(Definition { defining, shared: Arc::downgrade(&self.shared) }));
        }
    }
}

/// The database has the procedures, so they must not keep it open.
fn open(shared: &Weak<Shared>) -> Result<Stores> {
    let closed = || SqlError::new("57P01", "the database is being closed");
    Ok(Stores { shared: shared.upgrade().ok_or_else(closed)?, under: None })
}

/// The tenant that a session's records belong to.
pub fn tenant_of(session: &Session) -> Result<TenantId> {
    let name = session.setting("isles.tenant").unwrap_or_default();
    if name.is_empty() {
        return Err(SqlError::new("22023", "no tenant is set")
            .with_hint("SET isles.tenant = 'name': records belong to a tenant"));
    }
    TenantId::new(name).map_err(|error| SqlError::new("22023", error.to_string()))
}

/// Where a session is, if it says so.
pub fn region_of(session: &Session) -> Result<Option<RegionName>> {
    let name = session.setting(REGION).filter(|name| !name.is_empty());
    name.map(RegionName::new).transpose().map_err(|error| SqlError::new("22023", error.to_string()))
}

fn field(name: &str, ty: Oid) -> Field {
    Field { name: name.into(), ty: Type::of(ty) }
}

fn param((name, kind, needed): &Argument) -> Param {
    let ty = match kind {
        Kind::Text => TEXT,
        Kind::Number => INT8,
        Kind::Time => INTERVAL,
    };
    Param { name: (*name).into(), ty, optional: !needed }
}

/// An interval in milliseconds; a month is 30 days, as PostgreSQL counts where it must.
pub(super) fn millis(value: &Value) -> Result<Option<i64>> {
    match value {
        Value::Null => Ok(None),
        Value::Interval(interval) => {
            let days = i64::from(interval.months) * 30 + i64::from(interval.days);
            let ms = days.checked_mul(MS_PER_DAY).and_then(|ms| ms.checked_add(interval.micros / 1_000));
            ms.map(Some).ok_or_else(|| SqlError::new("22008", "interval out of range"))
        }
        Value::Int(ms) => Ok(Some(*ms)),
        _ => Err(SqlError::new("22023", "this is no interval")),
    }
}

struct Operating {
    operation: &'static Operation,
    shared: Weak<Shared>,
}

#[async_trait]
impl Procedure for Operating {
    fn signature(&self) -> Signature {
        // What is optional comes last.
        let store: Argument = ("store", Kind::Text, true);
        let params = std::iter::once(&store).chain(self.operation.arguments).map(param).collect();
        Signature { params, columns: vec![field(self.operation.name, JSON)] }
    }

    fn rank(&self) -> Rank {
        Rank::Tenant
    }

    async fn call(&self, session: &mut Session, args: Vec<Value>) -> Result<Vec<Vec<Value>>> {
        let stores = open(&self.shared)?;
        let tenant = tenant_of(session)?;
        let mut args = args.into_iter();
        let Some(Value::Text(store)) = args.next() else { return Err(SqlError::new("22004", "store is missing")) };
        let mut given = Map::new();
        for ((name, kind, _), value) in self.operation.arguments.iter().zip(args) {
            let value = match (kind, value) {
                (_, Value::Null) => continue,
                (Kind::Text, Value::Text(text)) => text.into(),
                (Kind::Number, Value::Int(number)) => number.into(),
                (Kind::Time, value) => millis(&value)?.into(),
                _ => return Err(SqlError::new("22023", format!("{name} is not what it should be"))),
            };
            given.insert((*name).into(), value);
        }
        let near = region_of(session)?;
        let mut desk = stores.desk_of(session).near(near);
        let answer = Box::pin(desk.command(&tenant, &store, self.operation, Given(given))).await?;
        Ok(vec![vec![Value::Json(answer.to_string())]])
    }
}

/// What defines stores, and what tells of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defining {
    Create,
    Alter,
    Drop,
    Preset,
    Stores,
    Distribution,
    Sweep,
}

impl Defining {
    const ALL: [Defining; 7] = [
        Defining::Create,
        Defining::Alter,
        Defining::Drop,
        Defining::Preset,
        Defining::Stores,
        Defining::Distribution,
        Defining::Sweep,
    ];

    fn name(self) -> &'static str {
        match self {
            Defining::Create => "create_store",
            Defining::Alter => "alter_store",
            Defining::Drop => "drop_store",
            Defining::Preset => "create_preset",
            Defining::Stores => "stores",
            Defining::Distribution => "distribution",
            Defining::Sweep => "sweep_records",
        }
    }

    fn params(self) -> Vec<Param> {
        let of = |name: &str, ty: Oid, optional: bool| Param { name: name.into(), ty, optional };
        match self {
            Defining::Create => vec![
                of("name", TEXT, false),
                of("prefix", TEXT, false),
                of("key", TEXT, false),
                of("ttl", INTERVAL, false),
                of("group", TEXT, true),
                of("cap", INTERVAL, true),
                of("grace", INTERVAL, true),
                of("rotates", BOOL, true),
                of("alias", BOOL, true),
                of("singleton", BOOL, true),
                of("max_records", INT8, true),
                of("max_per_owner", INT8, true),
                of("max_per_tenant", INT8, true),
            ],
            Defining::Alter => vec![
                of("name", TEXT, false),
                of("prefix", TEXT, true),
                of("ttl", INTERVAL, true),
                of("cap", INTERVAL, true),
                of("grace", INTERVAL, true),
                of("max_records", INT8, true),
                of("max_per_owner", INT8, true),
                of("max_per_tenant", INT8, true),
                of("unlimited", BOOL, true),
            ],
            Defining::Drop | Defining::Preset => vec![of("name", TEXT, false)],
            Defining::Stores | Defining::Distribution | Defining::Sweep => Vec::new(),
        }
    }

    fn columns(self) -> Vec<Field> {
        match self {
            Defining::Create | Defining::Alter | Defining::Drop => vec![field("store", TEXT)],
            Defining::Preset => vec![field("created", INT8)],
            Defining::Sweep => vec![field("removed", INT8)],
            Defining::Stores => vec![
                field("name", TEXT),
                field("prefix", TEXT),
                field("group", TEXT),
                field("key", TEXT),
                field("ttl_ms", INT8),
                field("cap_ms", INT8),
                field("grace_ms", INT8),
                field("rotates", BOOL),
                field("max_records", INT8),
                field("max_per_owner", INT8),
                field("max_per_tenant", INT8),
            ],
            Defining::Distribution => vec![
                field("group", TEXT),
                field("store", TEXT),
                field("generation", INT8),
                field("buckets", INT8),
                field("requests", INT8),
                field("p50", INT8),
                field("p99", INT8),
                field("ratio", FLOAT8),
                field("busiest", INT8),
            ],
        }
    }
}

struct Definition {
    defining: Defining,
    shared: Weak<Shared>,
}

fn text(value: Option<&Value>) -> Option<String> {
    match value {
        Some(Value::Text(text)) => Some(text.clone()),
        _ => None,
    }
}

fn span(value: Option<&Value>) -> Result<Option<u64>> {
    let Some(ms) = millis(value.unwrap_or(&Value::Null))? else { return Ok(None) };
    u64::try_from(ms).map(Some).map_err(|_| SqlError::new("22023", "a time is not negative"))
}

/// A negative quota is as wrong as none at all, and is told so where quotas are checked.
fn quota(value: Option<&Value>) -> Option<u64> {
    match value {
        Some(Value::Int(max)) => Some(u64::try_from(*max).unwrap_or_default()),
        _ => None,
    }
}

fn number(number: u64) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

#[async_trait]
impl Procedure for Definition {
    fn signature(&self) -> Signature {
        Signature { params: self.defining.params(), columns: self.defining.columns() }
    }

    fn rank(&self) -> Rank {
        match self.defining {
            Defining::Stores | Defining::Distribution => Rank::Owner,
            _ => Rank::Admin,
        }
    }

    async fn call(&self, session: &mut Session, args: Vec<Value>) -> Result<Vec<Vec<Value>>> {
        let stores = open(&self.shared)?;
        if session.status() != isles_cluster::session::Status::Idle
            && !matches!(self.defining, Defining::Stores | Defining::Distribution)
        {
            let message = format!("isles.{} cannot run inside a transaction block", self.defining.name());
            return Err(SqlError::new("25001", message));
        }
        let name = text(args.first()).unwrap_or_default();
        let is_on = |at: usize| matches!(args.get(at), Some(Value::Bool(true)));
        match self.defining {
            Defining::Create => {
                let config = StoreConfig {
                    name: name.clone(),
                    prefix: text(args.get(1)).unwrap_or_default(),
                    key: text(args.get(2)).unwrap_or_default(),
                    ttl_ms: span(args.get(3))?.unwrap_or_default(),
                    group: text(args.get(4)).unwrap_or_default(),
                    cap_ms: span(args.get(5))?,
                    grace_ms: span(args.get(6))?.unwrap_or_default(),
                    rotates: is_on(7),
                    has_alias: is_on(8),
                    is_singleton: is_on(9),
                    max_records: quota(args.get(10)),
                    max_per_owner: quota(args.get(11)),
                    max_per_tenant: quota(args.get(12)),
                    ..StoreConfig::default()
                };
                let creating = stores.clone();
                stores.apart(async move { creating.create(config).await }).await?;
                Ok(vec![vec![Value::Text(name)]])
            }
            Defining::Alter => {
                let change = Alteration {
                    prefix: text(args.get(1)),
                    ttl_ms: span(args.get(2))?,
                    cap_ms: span(args.get(3))?,
                    grace_ms: span(args.get(4))?,
                    max_records: quota(args.get(5)),
                    max_per_owner: quota(args.get(6)),
                    max_per_tenant: quota(args.get(7)),
                    unlimited: is_on(8),
                };
                let (altering, altered) = (stores.clone(), name.clone());
                stores.apart(async move { altering.alter(&altered, change).await }).await?;
                Ok(vec![vec![Value::Text(name)]])
            }
            Defining::Drop => {
                let (dropping, dropped) = (stores.clone(), name.clone());
                stores.apart(async move { dropping.drop_store(&dropped).await }).await?;
                Ok(vec![vec![Value::Text(name)]])
            }
            Defining::Preset => {
                let creating = stores.clone();
                let made = stores.apart(async move { creating.create_preset(&name).await }).await?;
                Ok(vec![vec![number(made.len() as u64)]])
            }
            Defining::Sweep => {
                let sweeping = stores.clone();
                let sweep = async move {
                    sweeping.carry_lasting().await?;
                    sweeping.sweep_before(Duration::ZERO).await
                };
                let swept = stores.apart(sweep).await?;
                Ok(vec![vec![number(swept.removed)]])
            }
            Defining::Stores => Ok(stores.list().iter().map(|spec| shown(spec.config())).collect()),
            Defining::Distribution => {
                let mut all = stores.distribution();
                // What is least even comes first.
                all.sort_by(|one, other| other.ratio().total_cmp(&one.ratio()));
                Ok(all.iter().map(spread).collect())
            }
        }
    }
}

fn shown(config: &StoreConfig) -> Vec<Value> {
    let text = |text: &str| Value::Text(text.to_owned());
    vec![
        text(&config.name),
        text(&config.prefix),
        if config.is_singleton { Value::Null } else { text(&config.group) },
        text(&config.key),
        number(config.ttl_ms),
        number(config.cap_ms.unwrap_or(config.ttl_ms)),
        number(config.grace_ms),
        Value::Bool(config.rotates),
        config.max_records.map_or(Value::Null, number),
        config.max_per_owner.map_or(Value::Null, number),
        config.max_per_tenant.map_or(Value::Null, number),
    ]
}

fn spread(distribution: &crate::Distribution) -> Vec<Value> {
    let named = |name: &Option<String>| name.clone().map_or(Value::Null, Value::Text);
    vec![
        named(&distribution.group),
        named(&distribution.store),
        Value::Int(distribution.generation.get().into()),
        Value::Int(distribution.buckets.into()),
        number(distribution.requests),
        number(distribution.p50),
        number(distribution.p99),
        Value::Float(distribution.ratio()),
        Value::Int(distribution.busiest.into()),
    ]
}
