//! Statements that are ready to run, and the cache of them.
//!
//!     text ─► parse ─► bind, against the schema and search path ─► plan ─► kept under all that it depends on
//!
//! A plan depends on the text, the types of the parameters, the schema and a few settings; never on routing or on
//! values. So it is kept for the whole database, and dropped when it has not been used for longest.

use super::settings::{DEFAULT_KIND, Settings, Tenant};
use super::tenants::TenantUse;
use super::{Fields, Procedures};
use crate::database::schema::Edition;
use crate::database::{Database, SchemaGuard};
use isles_kernel::error::SqlError;
use isles_kernel::names::SchemaVersion;
use isles_kernel::schema::Schema;
use isles_sql::bind::procedure::Call;
use isles_sql::bind::utility::{DefaultKind, Utility};
use isles_sql::bind::{self, BindContext, BoundStatement, Explain, Origin};
use isles_sql::parse;
use isles_sql::plan::{self, Plan, PlanContext};
use isles_sql::reach::Use;
use isles_sql::tree::{Expr, Field, Statement};
use isles_sql::types::Oid;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Plans kept. An application has some hundred texts; one that writes values into its texts must not fill memory.
const MAX_PLANS: usize = 2_000;
/// Buckets of a new group: enough to spread over 64 shards, and few enough to list.
const DEFAULT_BUCKETS: u32 = 64;
/// Longer texts are bulk loads, and not sent twice.
const MAX_CACHED_BYTES: usize = 16 << 10;

/// What a statement turned out to be.
pub(crate) enum Compiled {
    Rows {
        plan: Box<Plan>,
        kind: RowsKind,
    },
    Explain(Box<Explain>),
    /// The targets of a SELECT that calls functions of the session (`set_config`, `pg_advisory_lock`).
    Functions(Vec<Expr>),
    /// A call of a procedure.
    Call(Box<Call>),
    Utility(Box<Utility>),
    Empty,
    /// It could not be understood.
    Nothing,
}

/// Which of the four, for tags and for read-only transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowsKind {
    Select,
    Insert,
    Update,
    Delete,
}

impl RowsKind {
    pub(crate) fn of(statement: &Statement) -> RowsKind {
        match statement {
            Statement::Query(_) => RowsKind::Select,
            Statement::Insert(_) => RowsKind::Insert,
            Statement::Update(_) => RowsKind::Update,
            Statement::Delete(_) => RowsKind::Delete,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            RowsKind::Select => "SELECT",
            RowsKind::Insert => "INSERT",
            RowsKind::Update => "UPDATE",
            RowsKind::Delete => "DELETE",
        }
    }

    /// The tag of an answer of so many rows.
    pub(crate) fn tag(self, count: u64) -> String {
        match self {
            RowsKind::Insert => format!("INSERT 0 {count}"),
            other => format!("{} {count}", other.name()),
        }
    }
}

/// A statement that has been parsed, bound and planned. Executing it again costs none of that.
pub struct Prepared {
    pub sql: Arc<str>,
    /// The types of its parameters, in order.
    pub params: Vec<Oid>,
    /// The columns of its rows; None for a statement that returns none.
    pub fields: Option<Fields>,
    /// Where those columns come from; empty where nothing is known of any.
    pub origins: Vec<Origin>,
    pub(crate) compiled: Compiled,
    /// A table in it that is not for one tenant to use this way.
    pub(crate) beyond_tenant: Option<String>,
    /// What it does with tenant tables.
    pub(crate) tenant_use: TenantUse,
    /// What it does with the system's own tables.
    pub(crate) system_use: Option<Use>,
    /// What it was planned for.
    pub(crate) edition: Edition,
    pub(crate) setting_key: Arc<str>,
}

#[derive(PartialEq, Eq, Hash, Clone)]
struct CacheKey {
    sql: Arc<str>,
    params: Vec<Oid>,
    version: SchemaVersion,
    settings: Arc<str>,
}

#[derive(Default)]
pub(crate) struct Plans {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    plans: HashMap<CacheKey, (Arc<Prepared>, u64)>,
    uses: u64,
}

impl Plans {
    fn get(&self, key: &CacheKey) -> Option<Arc<Prepared>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.uses += 1;
        let now = kept.uses;
        let (prepared, used) = kept.plans.get_mut(key)?;
        *used = now;
        Some(prepared.clone())
    }

    fn put(&self, key: CacheKey, prepared: &Arc<Prepared>) {
        if key.sql.len() > MAX_CACHED_BYTES || matches!(prepared.compiled, Compiled::Utility(_)) {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.plans.len() >= MAX_PLANS {
            // The older half goes at once, so that the search for it is rare.
            let mut uses: Vec<u64> = kept.plans.values().map(|(_, used)| *used).collect();
            uses.sort_unstable();
            let middle = uses[uses.len() / 2];
            kept.plans.retain(|_, (_, used)| *used > middle);
        }
        let now = kept.uses;
        kept.plans.insert(key, (prepared.clone(), now));
    }
}

/// A schema to plan for.
pub(crate) struct Planned<'a> {
    pub(crate) schema: &'a Schema,
    pub(crate) edition: Edition,
}

impl<'a> Planned<'a> {
    /// The schema that an open transaction has, or the present one.
    pub(crate) fn within(held: Option<&'a SchemaGuard>, present: &'a Schema) -> Planned<'a> {
        match held {
            Some(guard) => Planned::of(guard),
            None => Planned { schema: present, edition: Edition::Committed(present.version) },
        }
    }

    pub(crate) fn of(guard: &'a SchemaGuard) -> Planned<'a> {
        Planned { schema: &guard.schema, edition: guard.edition }
    }
}

/// Prepares a statement, or finds it prepared. What is planned for a transaction's own schema is nobody else's.
pub(crate) fn prepare(
    database: &Database,
    planned: &Planned<'_>,
    settings: &Settings,
    sql: &str,
    params: &[Oid],
) -> Result<Arc<Prepared>, SqlError> {
    let Edition::Committed(version) = planned.edition else {
        return Ok(Arc::new(compile(database, planned, settings, sql, params)?));
    };
    let settings_key = settings.meaning().plan_key.clone();
    let key = CacheKey { sql: sql.into(), params: params.to_vec(), version, settings: settings_key };
    if let Some(prepared) = database.plans.get(&key) {
        return Ok(prepared);
    }
    let prepared = Arc::new(compile(database, planned, settings, sql, params)?);
    if !depends_on_time(sql) {
        database.plans.put(key, &prepared);
    }
    Ok(prepared)
}

/// Whether a literal may stand for the moment at which it is read, as `'now'::timestamptz` does.
pub(super) fn depends_on_time(sql: &str) -> bool {
    let lower = sql.to_ascii_lowercase();
    ["now'", "'now", "today", "tomorrow", "yesterday"].iter().any(|word| lower.contains(word))
}

/// What a statement is bound with.
pub(super) struct Binding<'a> {
    database: &'a Database,
    planned: &'a Planned<'a>,
    settings: &'a Settings,
    values: isles_sql::text::Settings,
    /// The schema as it is shown to one who reads all tenants.
    every: Option<Schema>,
    procedures: Arc<Procedures>,
}

impl<'a> Binding<'a> {
    pub(super) fn new(
        database: &'a Database,
        planned: &'a Planned<'a>,
        settings: &'a Settings,
    ) -> Result<Binding<'a>, SqlError> {
        let meaning = settings.meaning();
        Ok(Binding {
            database,
            planned,
            settings,
            values: meaning.values(super::known::now(&*database.env))?,
            every: (meaning.tenant == Tenant::Every).then(|| planned.schema.of_every_tenant()),
            procedures: database.procedures.load_full(),
        })
    }

    pub(super) fn context(&self) -> BindContext<'_> {
        BindContext {
            schema: self.every.as_ref().unwrap_or(self.planned.schema),
            search_path: &self.settings.meaning().search_path,
            database: &self.database.name,
            settings: &self.values,
            default_kind: match self.settings.show(DEFAULT_KIND).as_deref() {
                Some("tenant") => DefaultKind::Tenant,
                _ => DefaultKind::Hash,
            },
            default_buckets: DEFAULT_BUCKETS,
            procedures: &self.procedures.signatures,
        }
    }
}

pub(super) fn compile(
    database: &Database,
    planned: &Planned<'_>,
    settings: &Settings,
    sql: &str,
    params: &[Oid],
) -> Result<Prepared, SqlError> {
    let parsed = parse::parse_one(sql)?;
    let binding = Binding::new(database, planned, settings)?;
    let context = binding.context();
    let bound = match bind::bind(&parsed, &context, params) {
        // What changes the schema fits the schema itself, and not how it is shown; it is refused for what it is.
        Err(error) if binding.every.is_some() => {
            match bind::bind(&parsed, &BindContext { schema: planned.schema, ..context }, params) {
                Ok(bound) if matches!(bound.statement, BoundStatement::Other(_)) => bound,
                _ => return Err(error),
            }
        }
        bound => bound?,
    };
    let of_rows = match &bound.statement {
        BoundStatement::Rows(statement) => Some(&**statement),
        BoundStatement::Explain(explain) => Some(&explain.statement),
        BoundStatement::Call(_) | BoundStatement::Other(_) | BoundStatement::Empty => None,
    };
    let beyond_tenant = of_rows.and_then(super::rights::beyond_tenant);
    let tenant_use = of_rows.map_or(TenantUse::None, super::rights::tenant_use);
    let system_use = of_rows.and_then(super::rights::system_use);
    let (compiled, fields) = match bound.statement {
        BoundStatement::Rows(statement) if let Some(targets) = super::functions::targets(&statement)? => {
            (Compiled::Functions(targets), fields_of(&statement))
        }
        BoundStatement::Rows(statement) => {
            let kind = RowsKind::of(&statement);
            let fields = fields_of(&statement);
            let plan = plan::plan(*statement, &PlanContext::default())?;
            (Compiled::Rows { plan: Box::new(plan), kind }, fields)
        }
        BoundStatement::Explain(explain) => (Compiled::Explain(explain), Some(vec![text_field("QUERY PLAN")])),
        BoundStatement::Call(call) => {
            let fields = call.columns.clone();
            (Compiled::Call(call), Some(fields))
        }
        BoundStatement::Other(utility) => {
            let fields = super::utility::fields(&utility);
            (Compiled::Utility(utility), fields)
        }
        BoundStatement::Empty => (Compiled::Empty, None),
    };
    Ok(Prepared {
        sql: sql.into(),
        params: bound.params,
        fields: fields.map(Fields::from),
        origins: bound.origins,
        compiled,
        beyond_tenant,
        tenant_use,
        system_use,
        edition: planned.edition,
        setting_key: settings.meaning().plan_key.clone(),
    })
}

pub(crate) fn text_field(name: &str) -> Field {
    Field { name: name.into(), ty: isles_sql::types::Type::of(isles_sql::types::TEXT) }
}

pub(crate) fn number_field(name: &str) -> Field {
    Field { name: name.into(), ty: isles_sql::types::Type::of(isles_sql::types::INT8) }
}

/// The columns that a statement returns.
pub(crate) fn fields_of(statement: &Statement) -> Option<Vec<Field>> {
    match statement {
        Statement::Query(query) => Some(query.columns.clone()),
        Statement::Insert(insert) => insert.returning.as_ref().map(|returning| returning.columns.clone()),
        Statement::Update(update) => update.returning.as_ref().map(|returning| returning.columns.clone()),
        Statement::Delete(delete) => delete.returning.as_ref().map(|returning| returning.columns.clone()),
    }
}
