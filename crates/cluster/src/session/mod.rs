//! Sessions: what a connection, an HTTP request or an embedding program runs statements with.
//!
//!     statements(text) → one [`Prepared`] each → execute(parameters) → [`Answer`]
//!
//! The protocol above decides what a transaction's borders are when the client has not said: it calls
//! [`Session::begin_implicit`] before the first statement of a group that must stand or fall together (a simple query
//! of several statements, a pipeline up to its Sync), and [`Session::end_implicit`] after the last one. A statement
//! that is alone needs neither, and is cheaper for it.
//!
//! In reading order:
//!   * [`settings`]  SET, SHOW, RESET
//!   * [`plans`]     statements that are ready to run
//!   * [`texts`]     texts with values in them, whose plans are found without
//!   * [`known`]     what a statement is told by its session
//!   * [`statements`] those that have a name
//!   * [`cursor`]    results with a place in them
//!   * [`transact`]  BEGIN, COMMIT, savepoints, and failed transactions
//!   * [`utility`]   statements that are not about rows
//!   * [`rights`]    what a session may do
//!   * [`tenants`]   a session's tenant, and CREATE TENANT, ALTER TENANT, DROP TENANT, SHOW TENANTS
//!   * [`moves`]     CREATE MOVE, ALTER MOVE, SHOW MOVES
//!   * [`shards`]    CREATE SHARD, ALTER SHARD, DROP SHARD, SHOW REBALANCE
//!   * [`placements`] isles.placement_…
//!   * [`progress`]  what a long statement says while it runs
//!   * [`roles`]     CREATE ROLE, ALTER ROLE, DROP ROLE
//!   * [`functions`] functions of the session itself: set_config, and
//!   * [`locks`]     pg_advisory_lock and its kin
//!   * [`call`]      procedures
//!   * [`together`]  statements that stand or fall together
//!   * [`copy`]      COPY
//!
//! Invariants (docs/invariants.md):
//!   * I-16  a plan that was made for another schema or search path is made anew; if its columns have changed, the
//!     client is told
//!   * I-22  a session reads its own writes: a commit is answered after its shards show it

mod call;
mod copy;
mod cursor;
mod functions;
mod indexes;
pub(crate) mod known;
mod locks;
mod migrations;
mod moves;
mod placements;
pub(crate) mod plans;
mod progress;
pub mod rights;
mod roles;
pub(crate) mod settings;
mod shards;
pub(crate) mod statements;
pub(crate) mod tenants;
pub(crate) mod texts;
mod together;
mod transact;
mod utility;

pub use call::{Procedure, Procedures};
pub use copy::{CopyFormat, CopyIn, CopyOut};
pub use plans::Prepared;
pub use progress::Progress;
pub use settings::REGION;
pub use together::{Given, MAX_TOGETHER};

use crate::advisory::Holder;
use crate::database::{Database, SchemaGuard};
use crate::execute::bounds::{Bounds, MAX_TIME};
use crate::execute::inputs::dialect;
use crate::execute::led::Led;
use crate::execute::run::{Runner, Within};
use crate::execute::stream::Stream;
use crate::execute::work::Trace;
use crate::roles::{Role, TENANT_LOCKED};
use crate::tenants::entry::{Entry as TenantEntry, Pass, Seat};
use crate::tenants::list::TenantList;
use crate::tenants::work::TenantWork;
use cursor::Cursor;
use isles_engine::shard::{CancelToken, Engine, Isolation};
use isles_kernel::error::SqlError;
use isles_kernel::quota::Quota;
use isles_kernel::value::Value;
use isles_sql::bind::utility::Utility;
use isles_sql::bind::{Explain, ExplainFormat};
use isles_sql::explain::{Entry, Place};
use isles_sql::plan::{Fragment, Node, Plan, PlanContext};
use isles_sql::system::Facts;
use isles_sql::tree::Field;
use isles_sql::types::Oid;
use known::{SequenceMemory, StatementKnowledge};
use plans::{Compiled, Planned, RowsKind};
use rights::Rank;
use settings::Settings;
use statements::{NamedBy, Statements};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tenants::TenantUse;
use transact::{Open, Slot};

pub type Result<T> = std::result::Result<T, SqlError>;

/// A transaction that waits for its client holds a shard's writer on SQLite: not longer than this, unless the client
/// says so.
const SQLITE_IDLE_MS: u64 = 60_000;

/// Who logged in.
#[derive(Debug, Clone)]
pub struct Login {
    pub user: String,
    pub database: String,
    /// Settings of the startup message (`application_name`, `options=-c …`), applied as `SET` would.
    pub settings: Vec<(String, String)>,
    pub role: Role,
}

/// As ReadyForQuery tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Idle,
    InTransaction,
    Failed,
}

/// What a statement answered.
pub enum Answer {
    /// Rows, then a tag such as `SELECT 3`.
    Rows(Rows),
    /// No rows, and a tag such as `INSERT 0 1`.
    Done { tag: String },
    /// Send CopyInResponse, then feed what the client sends.
    CopyIn(Box<CopyIn>),
    /// Send CopyOutResponse, then what it gives.
    CopyOut(Box<CopyOut>),
    /// The statement was empty.
    Empty,
}

/// The columns of a result, shared by all who run the statement.
pub type Fields = Arc<[Field]>;

/// Rows that arrive piecemeal. Dropping it ends the statement.
pub struct Rows {
    pub fields: Fields,
    source: RowSource,
}

enum RowSource {
    Gathered { rows: std::vec::IntoIter<Vec<Value>>, tag: String },
    Streamed { stream: Box<Stream>, count: u64, tenant: Option<Arc<TenantEntry>> },
    Tenants { list: Box<TenantList>, count: u64 },
}

impl Rows {
    pub(crate) fn new(fields: impl Into<Fields>, rows: Vec<Vec<Value>>, tag: String) -> Rows {
        Rows { fields: fields.into(), source: RowSource::Gathered { rows: rows.into_iter(), tag } }
    }

    fn streamed(fields: Fields, stream: Stream, tenant: Option<Arc<TenantEntry>>) -> Rows {
        Rows { fields, source: RowSource::Streamed { stream: Box::new(stream), count: 0, tenant } }
    }

    pub(crate) fn listed(fields: impl Into<Fields>, list: TenantList) -> Rows {
        Rows { fields: fields.into(), source: RowSource::Tenants { list: Box::new(list), count: 0 } }
    }

    /// At most `limit` more rows; fewer only at the end or when a batch is smaller. None when there are no more.
    pub async fn next(&mut self, limit: usize) -> Result<Option<Vec<Vec<Value>>>> {
        let rows: Vec<Vec<Value>> = match &mut self.source {
            RowSource::Gathered { rows, .. } => rows.by_ref().take(limit).collect(),
            RowSource::Streamed { stream, count, tenant } => {
                let rows = stream.next(limit).await?;
                *count += rows.len() as u64;
                if let Some(tenant) = tenant {
                    tenant.add(TenantWork { rows: rows.len() as u64, ..TenantWork::default() });
                    if tenant.quotas().max_rows.is_some_and(|max| *count > max) {
                        return Err(tenant.beyond(Quota::Rows));
                    }
                }
                rows
            }
            RowSource::Tenants { list, count } => {
                let rows = list.next(limit).await?;
                *count += rows.len() as u64;
                rows
            }
        };
        Ok((!rows.is_empty()).then_some(rows))
    }

    /// The tag, once the rows have been read: `SELECT n`, or `INSERT 0 n` and its kin for RETURNING.
    pub fn tag(&self) -> String {
        match &self.source {
            RowSource::Gathered { tag, .. } => tag.clone(),
            RowSource::Streamed { count, .. } => RowsKind::Select.tag(*count),
            RowSource::Tenants { .. } => "SHOW".into(),
        }
    }
}

/// What EXPLAIN shows of a fragment.
struct Printed {
    engines: Vec<Engine>,
    /// What came of it, if it has been executed.
    trace: Option<Arc<Trace>>,
    /// What indexes say, by where the probe is in memory.
    probed: HashMap<usize, String>,
    /// Whose role it is shown to: who is locked to a tenant does not see shards.
    rank: Rank,
}

impl isles_sql::explain::Detail for Printed {
    fn texts(&self, fragment: &Fragment) -> Result<Vec<(String, String)>> {
        let name = |engine: &Engine| match engine {
            Engine::Sqlite => "sqlite",
            Engine::Postgres => "postgres",
        };
        let text = |engine: &Engine| Ok((name(engine).to_string(), fragment.shown(dialect(*engine))?));
        self.engines.iter().map(text).collect()
    }

    fn runs(&self, fragment: &Fragment) -> Vec<isles_sql::explain::Run> {
        let Some(trace) = &self.trace else { return Vec::new() };
        let texts: Vec<&Arc<str>> = fragment.texts().map(|printed| &printed.sql).collect();
        let mut runs = trace.of(&texts);
        if self.rank == Rank::Tenant {
            let named = runs.iter_mut().filter(|run| matches!(run.place, Place::Shard(_)));
            named.for_each(|run| run.place = Place::SomeShard);
        }
        runs
    }

    fn found(&self, probe: &isles_sql::plan::Probe) -> Vec<Entry> {
        let said = self.probed.get(&(std::ptr::from_ref(probe) as usize));
        said.map(|said| Entry::new("Found", said)).into_iter().collect()
    }
}

/// One client's session.
pub struct Session {
    database: Arc<Database>,
    user: Arc<str>,
    pid: i32,
    settings: Settings,
    /// What is open, if anything.
    open: Option<Open>,
    /// The open transaction's parts on the shards; shared with whoever watches that it does not stay open for ever.
    slot: Arc<tokio::sync::Mutex<Slot>>,
    watched: bool,
    cancel: CancelToken,
    /// Shared with the statement that runs, which may look at them.
    statements: Arc<Mutex<Statements>>,
    cursors: BTreeMap<String, Cursor>,
    /// Its advisory locks.
    locks: Arc<Holder>,
    notices: Vec<(&'static str, SqlError)>,
    memory: Arc<Mutex<SequenceMemory>>,
    /// While EXPLAIN ANALYZE runs a statement.
    trace: Option<Arc<Trace>>,
    /// What its role may do.
    rank: Rank,
    /// It is the system's own, or a procedure runs in it.
    is_system: bool,
    tenant_is_fixed: bool,
    /// In the tenant of its settings, or in one that it had before.
    seat: Option<Seat>,
    /// Rows of the statement that runs.
    counted: u64,
    progress: Arc<Progress>,
}

fn rank_of(role: &Role) -> Rank {
    match (role.admin, role.is_locked()) {
        (true, _) => Rank::Admin,
        (false, true) => Rank::Tenant,
        (false, false) => Rank::Owner,
    }
}

impl Database {
    /// A session for one who has logged in.
    pub fn session(self: &Arc<Self>, login: Login) -> Result<Session> {
        if login.database != self.name {
            return Err(SqlError::new("3D000", format!("database \"{}\" does not exist", login.database)));
        }
        let (isolation, idle) = match self.is_sqlite() {
            true => (Isolation::Serializable, SQLITE_IDLE_MS),
            false => (Isolation::ReadCommitted, 0),
        };
        let mut session = Session {
            settings: Settings::new(&login.user, isolation, idle),
            database: self.clone(),
            user: login.user.into(),
            pid: (self.env.random() % (i32::MAX as u64)) as i32,
            open: None,
            slot: Arc::default(),
            watched: false,
            cancel: CancelToken::default(),
            statements: Arc::default(),
            cursors: BTreeMap::new(),
            locks: Arc::new(self.advisory.holder()),
            notices: Vec::new(),
            memory: Arc::default(),
            trace: None,
            rank: rank_of(&login.role),
            is_system: false,
            tenant_is_fixed: false,
            seat: None,
            counted: 0,
            progress: Arc::default(),
        };
        session.settings.describe_database(self.strategy(), self.server);
        session.settings.describe_role(login.role.admin, login.role.is_locked());
        for (name, value) in login.role.settings.iter().filter(|(name, _)| *name != TENANT_LOCKED) {
            session.settings.set(name, value, false)?;
        }
        session.tenant_is_fixed = login.role.is_locked();
        for (name, value) in &login.settings {
            session.check_setting(name, value)?;
            session.settings.set(name, value, false)?;
        }
        session.settings.settle_startup();
        session.sit()?;
        Ok(session)
    }
}

impl Session {
    /// Splits a text into its statements; each is prepared and executed in turn. An empty text has none.
    pub fn statements(&self, sql: &str) -> Result<Vec<Arc<str>>> {
        isles_sql::parse::split(sql)
    }

    /// Parses, binds and plans one statement. `params` are the types that the client gave; 0 where it gave none.
    pub async fn prepare(&mut self, sql: &str, params: &[Oid]) -> Result<Arc<Prepared>> {
        let prepared = self.prepare_now(sql, params).await;
        self.check_prepared(prepared, |prepared| prepared).await
    }

    /// The same for one that has no parameters, and is executed once. Its constants may have become parameters, which are
    /// given beside it.
    pub async fn prepare_text(&mut self, sql: &str) -> Result<(Arc<Prepared>, Vec<Value>)> {
        let prepared = self.prepare_text_now(sql).await;
        self.check_prepared(prepared, |(prepared, _)| prepared).await
    }

    async fn check_prepared<T>(&mut self, prepared: Result<T>, of: impl Fn(&T) -> &Arc<Prepared>) -> Result<T> {
        // As PostgreSQL: what a failed transaction would not run, it does not look at either.
        match &prepared {
            Ok(prepared) => self.check_open(&of(prepared).compiled).await?,
            Err(_) => self.check_open(&Compiled::Nothing).await?,
        }
        if prepared.is_err() {
            self.fail();
            self.let_go().await;
        }
        prepared
    }

    /// Against the schema that the open transaction has, or the present one.
    async fn prepare_now(&mut self, sql: &str, params: &[Oid]) -> Result<Arc<Prepared>> {
        let held = self.slot.lock().await.schema();
        let schema = self.database.schema();
        let planned = Planned::within(held.as_deref(), &schema);
        let prepared = plans::prepare(&self.database, &planned, &self.settings, sql, params)?;
        self.check_rights(&prepared)?;
        Ok(prepared)
    }

    async fn prepare_text_now(&mut self, sql: &str) -> Result<(Arc<Prepared>, Vec<Value>)> {
        let held = self.slot.lock().await.schema();
        let schema = self.database.schema();
        let planned = Planned::within(held.as_deref(), &schema);
        let (prepared, values) = match texts::prepare(&self.database, &planned, &self.settings, sql) {
            Some(lifted) => lifted,
            None => (plans::prepare(&self.database, &planned, &self.settings, sql, &[])?, Vec::new()),
        };
        self.check_rights(&prepared)?;
        Ok((prepared, values))
    }

    /// Reads a parameter that is a name of what is in the schema (`regclass`, `regtype`, …); None for other types.
    pub async fn read_name(&mut self, ty: Oid, text: &str) -> Option<Result<Value>> {
        if !isles_sql::system::is_name_type(ty) {
            return None;
        }
        let known = match self.hold_schema().await.and_then(|guard| self.knowledge(&guard)) {
            Ok(known) => known,
            Err(error) => return Some(Err(error)),
        };
        crate::execute::inputs::Known::system(&known).read(ty, text)
    }

    /// Keeps what the protocol has prepared under a name; None is a text without a statement.
    pub fn keep(&mut self, name: String, statement: Option<Arc<Prepared>>) -> Result<()> {
        let now = known::now(&*self.database.env);
        self.named().keep(name, statement, NamedBy::Protocol, now)
    }

    /// What is kept under a name, by the protocol or by PREPARE.
    pub fn kept(&self, name: &str) -> Result<Option<Arc<Prepared>>> {
        self.named().get(name).cloned()
    }

    /// It is no error to forget what is not there.
    pub fn forget(&mut self, name: &str) {
        self.named().forget(name);
    }

    /// The statement whose columns this one returns: itself, or for FETCH and EXECUTE what they name.
    pub fn returns(&self, prepared: &Arc<Prepared>) -> Arc<Prepared> {
        let Compiled::Utility(utility) = &prepared.compiled else { return prepared.clone() };
        let named = match &**utility {
            Utility::Fetch(fetch) => self.declared(&fetch.cursor),
            Utility::Execute { name, .. } => self.kept(name).ok().flatten().map(|named| self.returns(&named)),
            _ => None,
        };
        named.unwrap_or_else(|| prepared.clone())
    }

    /// The statement that a cursor of this name, made by DECLARE, reads.
    pub fn declared(&self, name: &str) -> Option<Arc<Prepared>> {
        self.cursors.get(name).map(|cursor| cursor.prepared.clone())
    }

    fn named(&self) -> MutexGuard<'_, Statements> {
        self.statements.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Runs a statement. The parameters have the types that `prepared` says. An error inside of a transaction leaves
    /// it failed.
    pub async fn execute(&mut self, prepared: &Arc<Prepared>, params: Vec<Value>) -> Result<Answer> {
        let began = self.database.env.elapsed();
        let answer = self.execute_now(prepared, params).await.map_err(|error| self.explain_timeout(error));
        self.count(prepared, &answer, began);
        self.cancel = CancelToken::default();
        if answer.is_err() {
            self.fail();
            self.let_go().await;
        }
        answer
    }

    async fn execute_now(&mut self, prepared: &Arc<Prepared>, params: Vec<Value>) -> Result<Answer> {
        self.check_open(&prepared.compiled).await?;
        if params.len() != prepared.params.len() {
            let message =
                format!("the statement has {} parameters, {} were given", prepared.params.len(), params.len());
            return Err(SqlError::new("08P01", message));
        }
        if prepared.tenant_use != TenantUse::None {
            self.sit()?;
        }
        match &prepared.compiled {
            Compiled::Empty | Compiled::Nothing => Ok(Answer::Empty),
            // Boxed: utilities run statements inside of statements.
            Compiled::Utility(utility) => Box::pin(self.utility(utility, prepared, params)).await,
            Compiled::Functions(targets) => {
                let fields = prepared.fields.clone().unwrap_or_default();
                Box::pin(self.call_functions(targets, fields, &params)).await
            }
            Compiled::Call(call) => {
                let fields = prepared.fields.clone().unwrap_or_default();
                Box::pin(self.call(call, fields, &params)).await
            }
            Compiled::Rows { .. } | Compiled::Explain(_) if self.must_say_level() || self.must_count(prepared) => {
                Box::pin(self.rows_at_level(prepared, &params)).await
            }
            Compiled::Rows { .. } | Compiled::Explain(_) => self.rows(prepared, &params).await,
        }
    }

    /// Whether a statement on its own must be a transaction that says its level. A PostgreSQL server knows by that alone
    /// that a statement is to be serializable, and those who are do not see one that is not.
    fn must_say_level(&self) -> bool {
        self.open.is_none() && self.modes().isolation != Isolation::ReadCommitted && !self.database.is_sqlite()
    }

    async fn rows_at_level(&mut self, prepared: &Arc<Prepared>, params: &[Value]) -> Result<Answer> {
        self.begin_implicit();
        let answer = self.rows(prepared, params).await;
        match answer.is_ok() {
            true => self.commit().await?,
            false => self.roll_back().await,
        }
        answer
    }

    /// Runs a statement about rows, with the plan of the present schema.
    async fn rows(&mut self, prepared: &Arc<Prepared>, params: &[Value]) -> Result<Answer> {
        let guard = self.hold_schema().await?;
        let prepared = self.current(prepared, &guard)?;
        let pass = self.admit(prepared.tenant_use).await?;
        match &prepared.compiled {
            Compiled::Rows { plan, kind: RowsKind::Select } if self.open.is_none() => {
                let fields = prepared.fields.clone().unwrap_or_default();
                let answer = self.select(plan, params, fields, guard, pass).await?;
                if let Answer::Rows(Rows { source: RowSource::Gathered { rows, .. }, .. }) = &answer {
                    self.check_rows(prepared.tenant_use, rows.len())?;
                    self.counted += rows.len() as u64;
                }
                Ok(answer)
            }
            Compiled::Rows { plan, kind } => {
                let (rows, affected) = self.run_counted(&prepared, (plan, *kind), params, guard, pass).await?;
                Ok(match &prepared.fields {
                    Some(fields) => {
                        let count = if *kind == RowsKind::Select { rows.len() as u64 } else { affected };
                        Answer::Rows(Rows::new(fields.clone(), rows, kind.tag(count)))
                    }
                    None => Answer::Done { tag: kind.tag(affected) },
                })
            }
            Compiled::Explain(explain) => self.explain(&prepared, explain, params, guard, pass).await,
            _ => Err(SqlError::new("XX000", "the statement has become another one")),
        }
    }

    /// Runs a plan, and holds its tenant to the quotas.
    async fn run_counted(
        &mut self,
        prepared: &Prepared,
        (plan, kind): (&Plan, RowsKind),
        params: &[Value],
        guard: Arc<SchemaGuard>,
        pass: Option<Pass>,
    ) -> Result<(Vec<Vec<Value>>, u64)> {
        let (rows, affected) = self.run_plan(plan, kind, params, guard, pass).await?;
        self.check_rows(prepared.tenant_use, rows.len())?;
        if kind != RowsKind::Select {
            self.note_write(prepared, params, affected).await;
        }
        self.counted += (rows.len() as u64).max(affected);
        Ok((rows, affected))
    }

    /// A query on its own: gathered if it is small, and streamed if not.
    async fn select(
        &mut self,
        plan: &Plan,
        params: &[Value],
        fields: Fields,
        guard: Arc<SchemaGuard>,
        pass: Option<Pass>,
    ) -> Result<Answer> {
        let is_stream = matches!(plan, Plan::Query(query) if !query.locks && matches!(query.root, Node::Shards(_)));
        if !is_stream {
            let (rows, _) = self.run_plan(plan, RowsKind::Select, params, guard, pass).await?;
            let tag = RowsKind::Select.tag(rows.len() as u64);
            return Ok(Answer::Rows(Rows::new(fields, rows, tag)));
        }
        let (database, bounds, knowledge) = (self.database.clone(), self.bounds(), self.knowledge(&guard)?);
        let first = bounds.of_first_try();
        let runner = Runner {
            database: &database,
            schema: &guard,
            sources: &knowledge,
            params,
            bounds: &first,
            led: Led::default(),
        };
        match runner.run(plan, Within::Nothing).await {
            Ok(output) => {
                let tag = RowsKind::Select.tag(output.rows.len() as u64);
                Ok(Answer::Rows(Rows::new(fields, output.rows, tag)))
            }
            Err(error) if error.sqlstate == "54000" => {
                let runner = Runner { bounds: &bounds, ..runner };
                match runner.stream(plan).await? {
                    Some(mut stream) => {
                        let tenant = self.seated().filter(|_| pass.is_some()).cloned();
                        stream.admit(pass);
                        Ok(Answer::Rows(Rows::streamed(fields, stream, tenant)))
                    }
                    None => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// The statement as it is planned now.
    fn current(&mut self, prepared: &Arc<Prepared>, guard: &SchemaGuard) -> Result<Arc<Prepared>> {
        if prepared.edition == guard.edition && prepared.setting_key == self.settings.meaning().plan_key {
            return Ok(prepared.clone());
        }
        let planned = Planned::of(guard);
        let fresh = plans::prepare(&self.database, &planned, &self.settings, &prepared.sql, &prepared.params)?;
        self.check_rights(&fresh)?;
        match fresh.fields == prepared.fields && fresh.params == prepared.params {
            true => Ok(fresh),
            false => Err(SqlError::new("0A000", "cached plan must not change result type")),
        }
    }

    /// The schema that the open transaction holds, or the present one.
    async fn hold_schema(&mut self) -> Result<Arc<SchemaGuard>> {
        let held = self.slot.lock().await.schema();
        match held {
            Some(guard) => Ok(guard),
            None => Ok(Arc::new(self.database.hold_schema().await?)),
        }
    }

    fn bounds(&self) -> Bounds {
        let meaning = self.settings.meaning();
        let time = self.statement_time(MAX_TIME);
        let bounds = Bounds::new(&*self.database.env, time, self.cancel.clone());
        Bounds { lock: meaning.lock_timeout, trace: self.trace.clone(), ..bounds }
    }

    fn knowledge(&self, guard: &Arc<SchemaGuard>) -> Result<StatementKnowledge> {
        let now = known::now(&*self.database.env);
        let transaction_time = self.open.as_ref().map_or(now, |open| open.began);
        let meaning = self.settings.meaning();
        Ok(StatementKnowledge {
            database: self.database.clone(),
            schema: guard.clone(),
            user: self.user.clone(),
            rank: if self.is_system { Rank::Admin } else { self.rank },
            pid: self.pid,
            values: meaning.values(transaction_time)?,
            settings: self.settings.view(),
            meaning: meaning.clone(),
            transaction_time,
            statement_time: now,
            memory: self.memory.clone(),
            statements: self.statements.clone(),
            facts: std::sync::OnceLock::new(),
        })
    }

    /// Carries out a plan in the open transaction, or on its own.
    async fn run_plan(
        &mut self,
        plan: &Plan,
        kind: RowsKind,
        params: &[Value],
        guard: Arc<SchemaGuard>,
        pass: Option<Pass>,
    ) -> Result<(Vec<Vec<Value>>, u64)> {
        let bounds = self.bounds();
        let knowledge = self.knowledge(&guard)?;
        let read_only = self.modes().read_only;
        let writes = kind != RowsKind::Select || matches!(plan, Plan::Query(query) if query.locks);
        if writes && read_only {
            let message = format!("cannot execute {} in a read-only transaction", kind.name());
            return Err(SqlError::new("25006", message));
        }
        let database = self.database.clone();
        let runner = Runner {
            database: &database,
            schema: &guard,
            sources: &knowledge,
            params,
            bounds: &bounds,
            led: Led::default(),
        };
        let output = match self.open.is_some() {
            false => runner.run(plan, Within::Nothing).await?,
            true => {
                self.enter_transaction(&guard).await?;
                let slot = self.slot.clone();
                let mut slot = slot.lock().await;
                let txn = slot.txn()?;
                txn.admit(pass);
                let output = runner.run(plan, Within::Transaction(txn)).await;
                slot.touch(database.env.elapsed());
                output?
            }
        };
        Ok((output.rows, output.affected))
    }

    /// What global indexes say to a plan's probes at this moment.
    async fn probed(&self, plan: &Plan, params: &[Value], guard: &Arc<SchemaGuard>) -> Result<HashMap<usize, String>> {
        let (database, bounds, knowledge) = (self.database.clone(), self.bounds(), self.knowledge(guard)?);
        let led = Led::default();
        let runner = Runner { database: &database, schema: guard, sources: &knowledge, params, bounds: &bounds, led };
        Ok(runner.probed(plan).await)
    }

    async fn explain(
        &mut self,
        prepared: &Prepared,
        explain: &Explain,
        params: &[Value],
        guard: Arc<SchemaGuard>,
        pass: Option<Pass>,
    ) -> Result<Answer> {
        let kind = RowsKind::of(&explain.statement);
        let plan = isles_sql::plan::plan(explain.statement.clone(), &PlanContext::default())?;
        let probed = self.probed(&plan, params, &guard).await?;
        let mut detail = Printed { engines: self.database.engines(), trace: None, probed, rank: self.rank };
        let mut total = None;
        if explain.analyze {
            detail.trace = Some(Arc::default());
            self.trace.clone_from(&detail.trace);
            let began = self.database.env.elapsed();
            let ran = self.run_plan(&plan, kind, params, guard, pass).await;
            self.trace = None;
            let (rows, affected) = ran?;
            if kind != RowsKind::Select {
                self.note_write(prepared, params, affected).await;
                self.counted += affected;
            }
            let ms = (self.database.env.elapsed() - began).as_secs_f64() * 1_000.0;
            let rows = if kind == RowsKind::Select { rows.len() as u64 } else { affected };
            total = explain.summary.then(|| Entry::executed("Total", rows, ms));
        }
        let entries = isles_sql::explain::entries(&plan, &detail)?.into_iter().chain(total);
        let told = |entry: Entry| if explain.timing { entry } else { entry.timeless() };
        let entries: Vec<Entry> = entries.map(told).collect();
        let lines = match explain.format {
            ExplainFormat::Text => isles_sql::explain::entries_text(&entries),
            ExplainFormat::Json => vec![isles_sql::explain::entries_json(&entries)],
        };
        let rows: Vec<Vec<Value>> = lines.into_iter().map(|line| vec![Value::Text(line)]).collect();
        Ok(Answer::Rows(Rows::new(vec![plans::text_field("QUERY PLAN")], rows, "EXPLAIN".into())))
    }

    /// From here statements belong together until [`Session::end_implicit`]. A `BEGIN` among them makes the
    /// transaction explicit.
    pub fn begin_implicit(&mut self) {
        if self.open.is_none() {
            let modes = self.modes();
            self.open_transaction(modes, transact::Kind::Implicit);
        }
    }

    /// Commits what belongs together, or rolls it back if a statement has failed. In an explicit transaction it does
    /// nothing.
    pub async fn end_implicit(&mut self) -> Result<()> {
        match &self.open {
            Some(open) if open.kind == transact::Kind::Implicit && open.failed => {
                self.roll_back().await;
                Ok(())
            }
            Some(open) if open.kind == transact::Kind::Implicit => self.commit().await,
            _ => Ok(()),
        }
    }

    /// The protocol has refused a statement before it reached the session (a text that does not parse, a parameter that
    /// does not read): an open transaction has failed, as it has after an error of [`Session::execute`].
    pub fn fail(&mut self) {
        if let Some(open) = &mut self.open {
            open.failed = true;
        }
    }

    /// Whether what is run now belongs to a transaction that was begun before, explicit or not.
    pub fn in_transaction(&self) -> bool {
        self.open.is_some()
    }

    pub fn status(&self) -> Status {
        match &self.open {
            Some(open) if open.kind == transact::Kind::Implicit => Status::Idle,
            Some(open) if open.failed => Status::Failed,
            Some(_) => Status::InTransaction,
            None => Status::Idle,
        }
    }

    /// Cancels the statement that [`Session::execute`] runs next, its rows and its copy too, from another task. It is
    /// taken before each statement: a token that was cancelled does not reach the statement after.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// What a long statement says while it runs, for whoever waits for it.
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Notices and warnings since the last call, with their severity (`NOTICE`, `WARNING`, …).
    pub fn take_notices(&mut self) -> Vec<(&'static str, SqlError)> {
        let said = std::iter::from_fn(|| self.progress.take()).map(|notice| ("NOTICE", notice));
        let mut notices: Vec<_> = said.collect();
        notices.append(&mut self.notices);
        if !notices.is_empty() {
            let meaning = self.settings.meaning();
            notices.retain(|(severity, _)| meaning.tells(severity));
        }
        notices
    }

    /// Tells the client how far a long statement is, if it wants to know.
    fn tell_progress(&self, notice: SqlError) {
        if self.settings.meaning().tells("NOTICE") {
            self.progress.tell(notice);
        }
    }

    /// How long the protocol waits for the client's next statement while no transaction is open.
    pub fn idle_session_limit(&self) -> Option<Duration> {
        self.settings.meaning().idle_session_timeout
    }

    fn warn(&mut self, sqlstate: &'static str, message: &str) {
        self.notices.push(("WARNING", SqlError::new(sqlstate, message)));
    }

    /// Settings that clients are told of and that have changed since the last call; at first, all of them.
    pub fn take_parameter_changes(&mut self) -> Vec<(String, String)> {
        self.settings.take_changes()
    }

    /// A setting's value (`TimeZone`, `DateStyle`, `bytea_output`, `extra_float_digits`), for the text format.
    pub fn setting(&self, name: &str) -> Option<String> {
        self.settings.show(name)
    }

    /// The names of objects by their numbers: what a `regclass` and its kin look like.
    pub fn names(&self) -> Arc<dyn isles_sql::system::SystemFunctions> {
        let schema = known::seen_by(self.rank, &self.database.schema());
        let mut facts = Facts::new(schema, &self.database.name, "isles");
        facts.user = self.user.to_string();
        Arc::new(isles_sql::system::Functions::new(Arc::new(facts)))
    }

    /// The number that `pg_backend_pid()` gives.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whose work its statements are, as a number that others of the same tenant have as well; without a tenant, others of
    /// the same role.
    pub fn whose(&self) -> u64 {
        self.settings.meaning().whose
    }

    /// Ends the session: an open transaction is rolled back, and what the session has locked is unlocked.
    pub async fn close(mut self) {
        self.roll_back().await;
    }

    fn idle_limit(&self) -> Option<Duration> {
        self.settings.meaning().idle_timeout
    }
}
