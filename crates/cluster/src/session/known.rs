//! What a statement is told by its session: time, names, settings, system relations, numbers of sequences.

use super::rights::Rank;
use super::settings::{Meaning, Tenant, View};
use super::statements::Statements;
use crate::database::sequence::{Slot, Whose};
use crate::database::{Database, SchemaGuard};
use crate::execute::inputs::Known;
use crate::execute::run::{Boxed, Sources};
use crate::tenants::entry::Pass;
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Schema, Sequence, plain_name};
use isles_kernel::value::Value;
use isles_sql::system::{self, Facts};
use isles_sql::text;
use isles_sql::tree::Context;
use isles_sql::types::Type;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// From 1970 to 2000, where PostgreSQL's timestamps begin.
const EPOCH_MICROS: i64 = 946_684_800_000_000;
const MICROS_PER_DAY: i64 = 86_400_000_000;

/// The wall clock as PostgreSQL counts it.
pub(crate) fn now(env: &dyn Env) -> i64 {
    env.now_micros() as i64 - EPOCH_MICROS
}

/// What `currval` and `lastval` remember.
#[derive(Default)]
pub(crate) struct SequenceMemory {
    pub(crate) values: HashMap<Slot, i64>,
    pub(crate) last: Option<Slot>,
}

pub(crate) struct StatementKnowledge {
    pub(crate) database: Arc<Database>,
    pub(crate) schema: Arc<SchemaGuard>,
    pub(crate) user: Arc<str>,
    pub(crate) rank: Rank,
    pub(crate) pid: i32,
    pub(crate) values: text::Settings,
    pub(crate) settings: View,
    pub(crate) meaning: Arc<Meaning>,
    pub(crate) transaction_time: i64,
    pub(crate) statement_time: i64,
    pub(crate) memory: Arc<Mutex<SequenceMemory>>,
    pub(crate) statements: Arc<Mutex<Statements>>,
    pub(crate) facts: OnceLock<Arc<Facts>>,
}

impl StatementKnowledge {
    fn local(&self) -> i64 {
        let at = self.transaction_time;
        at + i64::from(self.values.zone.offset_at(at)) * 1_000_000
    }

    fn schemas(&self) -> Vec<String> {
        system::existing(&self.schema.schema, &self.meaning.search_path)
    }

    pub(crate) fn facts(&self) -> &Arc<Facts> {
        self.facts.get_or_init(|| {
            let schema = seen_by(self.rank, &self.schema.schema);
            let mut facts = Facts::new(schema, &self.database.name, "isles");
            facts.user = self.user.to_string();
            facts.roles = self.database.roles().to_vec();
            if self.rank == Rank::Tenant {
                facts.roles.retain(|role| role.name == facts.user);
            }
            facts.search_path.clone_from(&self.meaning.search_path);
            facts.settings = self.settings.all().into_iter().collect();
            facts.version = version();
            facts.transaction = self.statement_time;
            facts.statements = self.statements.lock().unwrap_or_else(PoisonError::into_inner).facts();
            Arc::new(facts)
        })
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, SequenceMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sequence(&self, name: &str) -> Result<Sequence, SqlError> {
        find_sequence(&self.schema.schema, name)
    }

    /// The sequence's part that the session draws from.
    fn slot(&self, sequence: &Sequence) -> Result<Slot, SqlError> {
        Ok(Slot::new(&sequence.name, &Whose::of(&self.schema.schema, sequence, &self.meaning.tenant)?))
    }

    /// Whoever reads the rows of all tenants does nothing else.
    fn check_scope(&self) -> Result<(), SqlError> {
        match self.meaning.tenant {
            Tenant::Every => {
                let error = "cannot draw from a sequence or set it while the rows of all tenants are read";
                Err(SqlError::new("25006", error).with_hint("RESET isles.tenant_scope"))
            }
            _ => Ok(()),
        }
    }

    /// Lets a session at a part that it may change; not that of a tenant that is being dropped, which would come back.
    fn enter(&self, slot: &Slot) -> Result<Option<Pass>, SqlError> {
        match &slot.whose {
            Whose::Tenant(tenant) => Ok(Some(self.database.tenants.entry(tenant.as_ref()).enter()?)),
            Whose::Everyone => Ok(None),
        }
    }
}

fn not_for_tenants(sequence: &Sequence, hint: &str) -> SqlError {
    let message = format!("permission denied for sequence {}", plain_name(&sequence.name));
    SqlError::new("42501", message).with_hint(hint)
}

/// The schema as a role of this rank sees it.
pub(super) fn seen_by(rank: Rank, schema: &Arc<Schema>) -> Arc<Schema> {
    match rank {
        Rank::Tenant => Arc::new(schema.of_one_tenant()),
        Rank::Owner | Rank::Admin => schema.clone(),
    }
}

/// What `version()` says.
pub(crate) fn version() -> String {
    format!("PostgreSQL {} (Isles {})", super::settings::SERVER_VERSION, env!("CARGO_PKG_VERSION"))
}

/// By the one text for a relation.
fn find_sequence(schema: &Schema, name: &str) -> Result<Sequence, SqlError> {
    match schema.sequences.get(name) {
        Some(sequence) => Ok(sequence.clone()),
        None if schema.is_taken(name) => {
            Err(SqlError::new("42809", format!("\"{}\" is not a sequence", plain_name(name))))
        }
        None => Err(SqlError::new("42P01", format!("relation \"{name}\" does not exist"))),
    }
}

impl Known for StatementKnowledge {
    fn context(&self, context: &Context, _ty: Type) -> Result<Value, SqlError> {
        let text = |text: &str| Ok(Value::text(text));
        match context {
            Context::TransactionTime => Ok(Value::TimestampTz(self.transaction_time)),
            Context::StatementTime => Ok(Value::TimestampTz(self.statement_time)),
            Context::Date => Ok(Value::Date(self.local().div_euclid(MICROS_PER_DAY) as i32)),
            Context::LocalTime => Ok(Value::Timestamp(self.local())),
            Context::LocalTimeOfDay => Ok(Value::Time(self.local().rem_euclid(MICROS_PER_DAY))),
            Context::CurrentUser | Context::SessionUser => text(&self.user),
            Context::CurrentDatabase => text(&self.database.name),
            Context::CurrentSchema => Ok(self.schemas().first().map_or(Value::Null, |name| Value::text(name.as_str()))),
            Context::CurrentSchemas(implicit) => {
                let mut names = self.schemas();
                if *implicit && !names.iter().any(|name| name == "pg_catalog") {
                    names.insert(0, "pg_catalog".into());
                }
                Ok(Value::Array(names.into_iter().map(Value::Text).collect()))
            }
            Context::BackendPid => Ok(Value::Int(i64::from(self.pid))),
            Context::Tenant => Err(SqlError::new("XX000", "the tenant is bound elsewhere")),
            Context::Settings => Ok(Value::Text(self.values.encode())),
            Context::Setting { name, missing_ok } => match self.settings.show(name) {
                Some(value) => text(&value),
                None if *missing_ok => Ok(Value::Null),
                None => Err(SqlError::new("42704", format!("unrecognized configuration parameter \"{name}\""))),
            },
        }
    }

    fn settings(&self) -> &text::Settings {
        &self.values
    }

    fn tenant(&self) -> &Tenant {
        &self.meaning.tenant
    }

    fn system(&self) -> Arc<dyn system::SystemFunctions> {
        Arc::new(system::Functions::new(self.facts().clone()))
    }
}

impl Sources for StatementKnowledge {
    fn system_rows(&self, relation: &str) -> Result<Vec<Vec<Value>>, SqlError> {
        system::rows(relation, self.facts())
    }

    fn sequence_name(&self, oid: i64) -> Option<String> {
        system::Functions::new(self.facts().clone()).relation(u32::try_from(oid).ok()?)
    }

    fn find_sequence(&self, text: &str) -> Result<String, SqlError> {
        system::Functions::new(self.facts().clone()).find_relation(text)
    }

    fn next_value<'a>(&'a self, name: &'a str) -> Boxed<'a, Result<i64, SqlError>> {
        Box::pin(async move {
            let sequence = self.sequence(name)?;
            if self.rank == Rank::Tenant && !self.schema.schema.feeds_tenants(&sequence) {
                return Err(not_for_tenants(
                    &sequence,
                    "the role is locked to a tenant: it uses those of tenant tables",
                ));
            }
            self.check_scope()?;
            let slot = self.slot(&sequence)?;
            let _pass = self.enter(&slot)?;
            let value = self.database.next_number(&self.schema, &sequence, &slot.whose).await?;
            let mut memory = self.memory();
            memory.values.insert(slot.clone(), value);
            memory.last = Some(slot);
            Ok(value)
        })
    }

    fn set_value<'a>(&'a self, name: &'a str, value: i64, called: bool) -> Boxed<'a, Result<i64, SqlError>> {
        Box::pin(async move {
            let sequence = self.sequence(name)?;
            if self.rank == Rank::Tenant {
                return Err(not_for_tenants(&sequence, "the role is locked to a tenant: it sets no sequence"));
            }
            self.check_scope()?;
            let slot = self.slot(&sequence)?;
            let _pass = self.enter(&slot)?;
            self.database.set_number(&self.schema, &sequence, &slot.whose, (value, called)).await?;
            if called {
                self.memory().values.insert(slot, value);
            }
            Ok(value)
        })
    }

    fn current_value(&self, name: &str) -> Result<i64, SqlError> {
        let sequence = self.sequence(name)?;
        let missing = || {
            SqlError::new(
                "55000",
                format!("currval of sequence \"{}\" is not yet defined in this session", plain_name(&sequence.name)),
            )
        };
        self.memory().values.get(&self.slot(&sequence)?).copied().ok_or_else(missing)
    }

    fn last_value(&self) -> Result<i64, SqlError> {
        let memory = self.memory();
        // What the session has drawn for another tenant is not this one's.
        let is_own =
            |slot: &&Slot| self.sequence(&slot.name).and_then(|s| self.slot(&s)).is_ok_and(|own| own == **slot);
        let found = memory.last.as_ref().filter(is_own).and_then(|slot| memory.values.get(slot)).copied();
        found.ok_or_else(|| SqlError::new("55000", "lastval is not yet defined in this session"))
    }

    fn row_id(&self) -> i64 {
        // Without the sign: 63 bits.
        (self.database.env.random() >> 1) as i64
    }
}
