//! Statements that are not about rows: one `match`, and what each does below it in the same order.

use super::cursor::{Cursor, MAX_CURSORS};
use super::plans::{self, Compiled, Planned, Prepared, number_field, text_field};
use super::rights::Rank;
use super::settings::{NULL_TENANT, TENANT, TENANT_SCOPE};
use super::statements::{MAX_NAMED, NamedBy, missing};
use super::{Answer, Fields, Result, Rows, Session, copy, known};
use crate::advisory::MAX_LOCKS;
use crate::database::schema::{Change, Restart};
use crate::database::sequence::Whose;
use crate::database::{Owned, SchemaGuard};
use crate::execute::bounds::{self, Bounds};
use crate::indexes;
use isles_engine::binding::Binding;
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use isles_kernel::schema::{GLOBAL_GROUP, Schema, SchemaChange, TableKind};
use isles_kernel::value::Value;
use isles_sql::bind::ddl::DdlChange;
use isles_sql::bind::utility::{
    DeclareCursor, Discard, Fetch, SetScope, SetValue, ShowIsles, TenantStatement, Utility,
};
use isles_sql::tree::Field;
use isles_sql::types::{Oid, Type};
use std::sync::Arc;
use std::time::Duration;

/// How often a change of the schema that conflicts with others is begun.
const DDL_ATTEMPTS: usize = 5;
/// How long one may take when the client has set no limit.
const MAX_SCHEMA_TIME: Duration = Duration::from_secs(3_600);

/// What a change of the schema is in: whether a transaction ends with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Span {
    Statement,
    Transaction,
}

/// The columns that a utility returns, known before it runs; those of FETCH and EXECUTE depend on the session.
pub(crate) fn fields(utility: &Utility) -> Option<Vec<Field>> {
    let texts = |names: &[&str]| Some(names.iter().map(|name| text_field(name)).collect());
    match utility {
        Utility::Show { name } => texts(&[super::settings::spelling(name)]),
        Utility::ShowAll => texts(&["name", "setting", "description"]),
        Utility::ShowIsles(ShowIsles::Shards) => Some(vec![
            text_field("shard"),
            text_field("engine"),
            text_field("status"),
            text_field("tenant"),
            number_field("bytes"),
            number_field("seq"),
            number_field("commits"),
            number_field("buckets"),
            number_field("pinned_tenants"),
            text_field("region"),
        ]),
        Utility::ShowIsles(ShowIsles::Tables) => texts(&["table", "kind", "group", "shard_by", "buckets"]),
        Utility::ShowIsles(ShowIsles::Routes) => {
            Some(vec![text_field("group"), number_field("first"), number_field("last"), text_field("shard")])
        }
        Utility::ShowIsles(ShowIsles::Limits) => texts(&["name", "limit"]),
        Utility::Tenant(TenantStatement::List { .. }) => Some(tenant_fields()),
        Utility::Tenant(TenantStatement::Show { .. }) => {
            let mut fields = tenant_fields();
            fields.extend(["connections", "max_connections"].map(number_field));
            fields.push(text_field("statement_timeout"));
            fields.extend(["max_rows", "max_bytes"].map(number_field));
            Some(fields)
        }
        Utility::Plan(statement) => Some(super::moves::fields(statement)),
        Utility::Shard(statement) => super::shards::fields(statement),
        Utility::Index(statement) => super::indexes::fields(statement),
        Utility::Migration(statement) => super::migrations::fields(statement),
        _ => None,
    }
}

fn tenant_fields() -> Vec<Field> {
    let mut fields = vec![text_field("tenant"), text_field("shard")];
    fields.extend(["rows", "bytes", "statements"].map(number_field));
    fields.push(text_field("state"));
    fields
}

fn done(tag: impl Into<String>) -> Result<Answer> {
    Ok(Answer::Done { tag: tag.into() })
}

impl Session {
    pub(super) async fn utility(
        &mut self,
        utility: &Utility,
        prepared: &Arc<Prepared>,
        params: Vec<Value>,
    ) -> Result<Answer> {
        let tag = utility.command_tag();
        match utility {
            Utility::Begin(begin) => self.begin(begin.modes).and_then(|()| done(tag)),
            Utility::Commit { chain } => done(self.commit_block(*chain).await?),
            Utility::Rollback { chain } => done(self.rollback_block(*chain).await?),
            Utility::Savepoint { name } => self.savepoint(name).await.and_then(|()| done(tag)),
            Utility::Release { name } => self.release(name).await.and_then(|()| done(tag)),
            Utility::RollbackTo { name } => self.rollback_to(name).await.and_then(|()| done(tag)),
            Utility::SetTransaction { modes, scope } => {
                self.set_transaction(*modes, *scope).await.and_then(|()| done(tag))
            }
            Utility::Set { name, value, scope } => self.set(name, value, *scope).await.and_then(|()| done(tag)),
            Utility::Reset { name } => self.reset(name).await.and_then(|()| done(tag)),
            Utility::ResetAll => {
                self.check_tenant_may_change(TENANT).await?;
                self.settings.reset_all();
                self.leave_other_seat();
                done(tag)
            }
            Utility::Show { name } => {
                let value = self.settings.show_or_fail(name)?;
                Ok(self.shown(utility, vec![vec![Value::Text(value)]]))
            }
            Utility::ShowAll => {
                let each = self.settings.view().all().into_iter();
                let rows = each.map(|(name, value)| vec![Value::Text(name), Value::Text(value), Value::text("")]);
                Ok(self.shown(utility, rows.collect()))
            }
            Utility::ShowIsles(what) => {
                let rows = self.show_isles(*what).await?;
                Ok(self.shown(utility, rows))
            }
            Utility::Discard(what) => self.discard(*what).await.and_then(|()| done(tag)),
            Utility::Prepare { name, types, statement } => {
                self.name_statement(name, types, statement).await.and_then(|()| done(tag))
            }
            Utility::Execute { name, args } => self.execute_named(name, args).await,
            Utility::Deallocate { name } => self.deallocate(name.as_deref()).and_then(|()| done(tag)),
            Utility::DeclareCursor(declare) => {
                self.declare(declare, &prepared.params, params).await.and_then(|()| done(tag))
            }
            Utility::Fetch(fetch) => {
                let (fields, rows) = self.fetch(fetch)?;
                let tag = format!("FETCH {}", rows.len());
                Ok(Answer::Rows(Rows::new(fields, rows, tag)))
            }
            Utility::Move(fetch) => {
                let (_, rows) = self.fetch(fetch)?;
                done(format!("MOVE {}", rows.len()))
            }
            Utility::CloseCursor { name } => self.close_cursor(name.as_deref()).and_then(|()| done(tag)),
            Utility::Copy(statement) => copy::start(self, statement).await,
            Utility::Truncate { tables, restart, notices } => {
                self.notices.extend(notices.iter().map(|notice| ("NOTICE", notice.clone())));
                self.truncate(tables, restart).await.and_then(|()| done(tag))
            }
            Utility::Vacuum { .. } if self.open.is_some() => {
                Err(SqlError::new("25001", "VACUUM cannot run inside a transaction block"))
            }
            Utility::Vacuum { warnings } | Utility::Analyze { warnings } => {
                self.notices.extend(warnings.iter().map(|warning| ("WARNING", warning.clone())));
                done(tag)
            }
            Utility::Checkpoint | Utility::Unlisten => done(tag),
            Utility::Ddl(change) => self.ddl(change, prepared).await,
            Utility::Role(role) => self.role(role).await.and_then(|()| done(tag)),
            Utility::Tenant(tenant) => self.tenant(tenant, utility).await,
            Utility::Plan(statement) => self.plan(statement).await,
            Utility::Shard(statement) => self.change_shards(statement).await,
            Utility::Index(statement) => self.index(statement).await,
            Utility::Migration(statement) => self.migrate(statement).await,
        }
    }

    fn shown(&self, utility: &Utility, rows: Vec<Vec<Value>>) -> Answer {
        Answer::Rows(Rows::new(fields(utility).unwrap_or_default(), rows, "SHOW".into()))
    }

    /// What a setting's value must be true of besides itself.
    pub(super) fn check_setting(&self, name: &str, value: &str) -> Result<()> {
        let name = name.to_ascii_lowercase();
        match name.as_str() {
            TENANT if self.tenant_is_fixed && self.settings.show(TENANT).as_deref() == Some(value) => Ok(()),
            TENANT | NULL_TENANT if self.tenant_is_fixed => {
                Err(SqlError::new("42501", "permission denied to change the tenant of this role"))
            }
            "role" if value != "none" && *value != *self.user => {
                Err(SqlError::unsupported("SET ROLE to another role is not supported"))
            }
            "session_authorization" if *value != *self.user => {
                Err(SqlError::unsupported("SET SESSION AUTHORIZATION to another role is not supported"))
            }
            "timezone" if isles_sql::text::Zone::of_setting(value).is_none() => {
                Err(SqlError::new("22023", format!("invalid value for parameter \"TimeZone\": \"{value}\"")))
            }
            _ => Ok(()),
        }
    }

    pub(super) async fn set(&mut self, name: &str, value: &SetValue, scope: SetScope) -> Result<()> {
        let local = scope == SetScope::Local;
        if local && self.open.is_none() {
            self.warn("25P01", "SET LOCAL can only be used in transaction blocks");
            return Ok(());
        }
        self.check_tenant_may_change(name).await?;
        // Whoever is beyond a tenant's quota keeps the one it had.
        if [TENANT, NULL_TENANT, TENANT_SCOPE].contains(&name) {
            let before = self.settings.clone();
            self.set_value(name, value, local).await?;
            return self.sit().inspect_err(|_| self.settings = before);
        }
        self.set_value(name, value, local).await
    }

    async fn set_value(&mut self, name: &str, value: &SetValue, local: bool) -> Result<()> {
        match (name, value) {
            ("transaction_isolation" | "transaction_read_only", SetValue::Text(value)) => {
                self.settings.set(name, value, true)?;
                let said = isles_sql::bind::utility::TransactionModes {
                    isolation: (name == "transaction_isolation").then(|| isolation_of(value)).flatten(),
                    read_only: (name == "transaction_read_only").then(|| self.settings.is_on(name)),
                    deferrable: None,
                };
                self.set_transaction(said, SetScope::Local).await
            }
            (_, SetValue::Default) => {
                if self.tenant_is_fixed {
                    self.check_setting(name, "")?;
                }
                self.settings.reset(name, local)
            }
            (_, SetValue::Text(value)) => {
                self.check_setting(name, value)?;
                self.settings.set(name, value, local)
            }
        }
    }

    /// Whether its transaction goes by a version of the schema: a change of the schema would wait for its end.
    pub async fn has_begun(&self) -> bool {
        self.slot.lock().await.schema().is_some()
    }

    /// A change of the tenant within a transaction would let one transaction write for two.
    async fn check_tenant_may_change(&self, name: &str) -> Result<()> {
        if [TENANT, NULL_TENANT, TENANT_SCOPE].contains(&name) && self.has_begun().await {
            return Err(SqlError::new("25001", "the tenant must be set before the transaction's first statement"));
        }
        Ok(())
    }

    async fn reset(&mut self, name: &str) -> Result<()> {
        self.check_tenant_may_change(name).await?;
        if self.tenant_is_fixed {
            self.check_setting(name, "")?;
        }
        self.settings.reset(name, false)?;
        self.leave_other_seat();
        Ok(())
    }

    async fn show_isles(&self, what: ShowIsles) -> Result<Vec<Vec<Value>>> {
        match what {
            ShowIsles::Shards => self.show_shards().await,
            ShowIsles::Tables => {
                let held = self.slot.lock().await.schema();
                let schema = held.map_or_else(|| self.database.schema(), |guard| guard.schema.clone());
                Ok(show_tables(&known::seen_by(self.rank, &schema)))
            }
            ShowIsles::Routes => Ok(self.show_routes()),
            ShowIsles::Limits => Ok(show_limits(self.database.indexes.watch.limits())),
        }
    }

    async fn show_shards(&self) -> Result<Vec<Vec<Value>>> {
        let mut rows = Vec::new();
        let (members, policy) = (self.database.members(), self.database.routing.current());
        for member in &members.shards {
            let name = member.name.clone();
            let owned = Owned::by(&name, &policy);
            let stats = match self.database.shards.get(&name).await {
                Ok(shard) => shard.stats().await,
                Err(error) => Err(error),
            };
            let tenant = self.shown_tenant(&name).await;
            let (status, stats) = match stats {
                Ok(stats) => (super::shards::status(member.draining.is_some(), owned).to_string(), stats),
                Err(error) => (error.to_string(), Default::default()),
            };
            let number = |n: u64| Value::Int(n as i64);
            rows.push(vec![
                Value::text(name.as_str()),
                Value::text(member.place.engine_name()),
                Value::Text(status),
                tenant,
                number(stats.bytes),
                number(stats.seq.0),
                number(stats.commits),
                number(owned.buckets),
                number(owned.pinned_tenants),
                member.region.as_ref().map_or(Value::Null, |region| Value::text(region.as_str())),
            ]);
        }
        Ok(rows)
    }

    /// The tenant that a shard is bound to. Names of tenants are for administrators.
    async fn shown_tenant(&self, shard: &ShardId) -> Value {
        if self.rank != Rank::Admin {
            return Value::Null;
        }
        let Ok(shard) = self.database.shards.get(shard).await else { return Value::Null };
        match shard.binding().await {
            Ok(Binding::Tenant(tenant)) => Value::text(tenant.as_str()),
            _ => Value::Null,
        }
    }

    fn show_routes(&self) -> Vec<Vec<Value>> {
        let policy = self.database.routing.current();
        let mut rows = Vec::new();
        for (group, ranges) in policy.groups() {
            for range in ranges {
                rows.push(vec![
                    Value::text(group.as_str()),
                    Value::Int(i64::from(range.first.0)),
                    Value::Int(i64::from(range.last.0)),
                    Value::text(range.shard.as_str()),
                ]);
            }
        }
        rows
    }

    async fn discard(&mut self, what: Discard) -> Result<()> {
        match what {
            Discard::All => {
                if self.in_block() {
                    return Err(SqlError::new("25001", "DISCARD ALL cannot run inside a transaction block"));
                }
                self.roll_back().await;
                self.settings.reset_all();
                self.leave_other_seat();
                self.named().forget_all();
                self.cursors.clear();
                self.locks.unlock_all();
                self.forget_sequences();
            }
            Discard::Sequences => self.forget_sequences(),
            // Plans are the database's, and there are no temporary tables.
            Discard::Plans | Discard::Temp => {}
        }
        Ok(())
    }

    fn forget_sequences(&mut self) {
        *self.memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Default::default();
    }

    async fn name_statement(&mut self, name: &str, types: &[Type], statement: &str) -> Result<()> {
        let types: Vec<Oid> = types.iter().map(|ty| ty.oid).collect();
        let prepared = self.prepare_now(statement, &types).await?;
        let now = known::now(&*self.database.env);
        self.named().keep(name.into(), Some(prepared), NamedBy::Sql, now)
    }

    async fn execute_named(&mut self, name: &str, args: &[String]) -> Result<Answer> {
        let Some(prepared) = self.kept(name)? else { return Ok(Answer::Empty) };
        if args.len() != prepared.params.len() {
            let message = format!("wrong number of parameters for prepared statement \"{name}\"");
            let detail = format!("Expected {} parameters but got {}.", prepared.params.len(), args.len());
            return Err(SqlError::new("42601", message).with_detail(detail));
        }
        let params = self.arguments(&prepared.params, args).await?;
        Box::pin(self.execute_now(&prepared, params)).await
    }

    /// Computes expressions that are assigned to types.
    async fn arguments(&mut self, types: &[Oid], args: &[String]) -> Result<Vec<Value>> {
        if args.is_empty() {
            return Ok(Vec::new());
        }
        let cast = |(arg, ty): (&String, &Oid)| {
            format!("CAST(({arg}) AS {})", isles_sql::builtins::format_type(Type::of(*ty)))
        };
        let targets: Vec<String> = args.iter().zip(types).map(cast).collect();
        let (_, mut rows) = self.query(&format!("SELECT {}", targets.join(", "))).await?;
        rows.pop().ok_or_else(|| SqlError::new("XX000", "arguments gave no row"))
    }

    /// Runs a query of our own and gathers its rows.
    pub(super) async fn query(&mut self, sql: &str) -> Result<(Fields, Vec<Vec<Value>>)> {
        let prepared = self.prepare_now(sql, &[]).await?;
        let rows = self.gather(&prepared, &[]).await?;
        Ok((prepared.fields.clone().unwrap_or_default(), rows))
    }

    async fn gather(&mut self, prepared: &Arc<Prepared>, params: &[Value]) -> Result<Vec<Vec<Value>>> {
        let guard = self.hold_schema().await?;
        let prepared = self.current(prepared, &guard)?;
        match &prepared.compiled {
            Compiled::Rows { plan, kind } => {
                let pass = self.admit(prepared.tenant_use).await?;
                Ok(self.run_counted(&prepared, (plan, *kind), params, guard, pass).await?.0)
            }
            _ => Err(SqlError::new("42601", "a query is expected")),
        }
    }

    fn deallocate(&mut self, name: Option<&str>) -> Result<()> {
        match name {
            None => self.named().forget_all(),
            Some(name) if !self.named().forget(name) => return Err(missing(name)),
            Some(_) => {}
        }
        Ok(())
    }

    async fn declare(&mut self, declare: &DeclareCursor, types: &[Oid], params: Vec<Value>) -> Result<()> {
        if !declare.hold && !self.in_block() {
            return Err(SqlError::new("25P01", "DECLARE CURSOR can only be used in transaction blocks"));
        }
        if self.cursors.contains_key(&declare.name) {
            return Err(SqlError::new("42P03", format!("cursor \"{}\" already exists", declare.name)));
        }
        if self.cursors.len() >= MAX_CURSORS {
            return Err(SqlError::new("54000", format!("a session has at most {MAX_CURSORS} cursors")));
        }
        let prepared = self.prepare_now(&declare.query, types).await?;
        let rows = self.gather(&prepared, &params).await?;
        let mut cursor = Cursor::new(prepared, rows, declare.hold, declare.scroll, self.depth())?;
        cursor.fresh = self.open.is_some();
        self.cursors.insert(declare.name.clone(), cursor);
        Ok(())
    }

    fn fetch(&mut self, fetch: &Fetch) -> Result<(Fields, Vec<Vec<Value>>)> {
        let missing = || SqlError::new("34000", format!("cursor \"{}\" does not exist", fetch.cursor));
        let cursor = self.cursors.get_mut(&fetch.cursor).ok_or_else(missing)?;
        let rows = cursor.fetch(fetch.from)?;
        Ok((cursor.prepared.fields.clone().unwrap_or_default(), rows))
    }

    fn close_cursor(&mut self, name: Option<&str>) -> Result<()> {
        match name {
            None => self.cursors.clear(),
            Some(name) => {
                let missing = || SqlError::new("34000", format!("cursor \"{name}\" does not exist"));
                self.cursors.remove(name).ok_or_else(missing)?;
            }
        }
        Ok(())
    }

    /// Ends a transaction that was begun for one statement.
    async fn end_own<T>(&mut self, done: Result<T>) -> Result<T> {
        match done {
            Ok(value) => self.commit().await.map(|()| value),
            Err(error) => {
                self.roll_back().await;
                Err(error)
            }
        }
    }

    /// Rows of all these tables, in one transaction.
    async fn truncate(&mut self, tables: &[String], restart: &[String]) -> Result<()> {
        if self.modes().read_only {
            return Err(SqlError::new("25006", "cannot execute TRUNCATE TABLE in a read-only transaction"));
        }
        if self.open.is_some() {
            return self.truncate_within(tables, restart).await;
        }
        self.begin_implicit();
        let done = self.truncate_within(tables, restart).await;
        self.end_own(done).await
    }

    async fn truncate_within(&mut self, tables: &[String], restart: &[String]) -> Result<()> {
        let bounds = self.schema_bounds();
        let guard = match restart.is_empty() {
            true => None,
            false => Some(self.be_alone(&bounds).await?),
        };
        for table in tables {
            let sql = format!("DELETE FROM {}", super::copy::qualified(table));
            self.query(&sql).await?;
        }
        let Some(guard) = guard else { return Ok(()) };
        let tenant = &self.settings.meaning().tenant;
        let sequences = restart.iter().filter_map(|name| guard.schema.sequences.get(name));
        let restarts = sequences.map(|sequence| {
            let whose = Whose::of(&guard.schema, sequence, tenant)?;
            Ok(Restart { sequence: sequence.name.clone(), whose, next: sequence.start })
        });
        let change = Change::restart(restarts.collect::<Result<_>>()?);
        self.change_schema(&change, &bounds).await
    }

    /// Changes the schema: in the open transaction, or in one of its own, which is begun again if it conflicts.
    async fn ddl(&mut self, change: &DdlChange, prepared: &Arc<Prepared>) -> Result<Answer> {
        if self.modes().read_only {
            let message = format!("cannot execute {} in a read-only transaction", change.tag);
            return Err(SqlError::new("25006", message));
        }
        if self.open.is_some() {
            return match change.concurrently {
                Some(what) => Err(SqlError::new("25001", format!("{what} cannot run inside a transaction block"))),
                None => self.ddl_within(change, prepared, Span::Transaction).await,
            };
        }
        for _ in 1..DDL_ATTEMPTS {
            self.begin_implicit();
            let done = self.ddl_within(change, prepared, Span::Statement).await;
            match self.end_own(done).await {
                Err(error) if matches!(error.sqlstate, "40001" | "40P01") => {}
                result => return self.with_unique_indexes(change, result).await,
            }
        }
        self.begin_implicit();
        let done = self.ddl_within(change, prepared, Span::Statement).await;
        let result = self.end_own(done).await;
        self.with_unique_indexes(change, result).await
    }

    /// Whether keys are unique is known when their indexes are built.
    async fn with_unique_indexes(&mut self, change: &DdlChange, done: Result<Answer>) -> Result<Answer> {
        let done = done?;
        self.wait_for_unique(&change.changes).await?;
        Ok(done)
    }

    async fn ddl_within(&mut self, change: &DdlChange, prepared: &Arc<Prepared>, span: Span) -> Result<Answer> {
        let held = self.hold_schema().await?;
        let known = self.ddl_of(change, prepared, &held)?;
        drop(held);
        if known.is_nothing() {
            self.notices.extend(known.notices.iter().map(|notice| ("NOTICE", notice.clone())));
            return done(known.tag);
        }
        let bounds = self.schema_bounds();
        let guard = self.be_alone(&bounds).await?;
        let change = self.ddl_of(change, prepared, &guard)?;
        if span == Span::Transaction {
            self.check_unique_within(&change.changes, &guard.schema).await?;
        }
        drop(guard);
        if !change.changes.is_empty() || !change.restarts.is_empty() {
            let changes = self.with_computed_defaults(&change).await?;
            self.change_schema(&Change::of(changes, change.restarts.clone()), &bounds).await?;
        }
        self.notices.extend(change.notices.iter().map(|notice| ("NOTICE", notice.clone())));
        let Some(sql) = &change.then else { return done(change.tag) };
        let prepared = self.prepare_now(sql, &[]).await?;
        match Box::pin(self.execute_now(&prepared, Vec::new())).await? {
            Answer::Done { tag } => done(tag.replace("INSERT 0", change.tag)),
            other => Ok(other),
        }
    }

    /// What the statement changes, bound anew if the schema was another one when it was bound.
    fn ddl_of(&self, change: &DdlChange, prepared: &Arc<Prepared>, guard: &SchemaGuard) -> Result<DdlChange> {
        if prepared.edition == guard.edition && prepared.setting_key == self.settings.meaning().plan_key {
            return Ok(change.clone());
        }
        let fresh = plans::prepare(&self.database, &Planned::of(guard), &self.settings, &prepared.sql, &[])?;
        match &fresh.compiled {
            Compiled::Utility(utility) => match &**utility {
                Utility::Ddl(fresh) => Ok(DdlChange::clone(fresh)),
                _ => Err(SqlError::new("XX000", "the statement has become another one")),
            },
            _ => Err(SqlError::new("XX000", "the statement has become another one")),
        }
    }

    /// Lets the open transaction be alone in the database; returns the schema that it has then. One that has done
    /// nothing yet comes in alone, and so waits for nobody who waits for it.
    async fn be_alone(&mut self, bounds: &Bounds) -> Result<Arc<SchemaGuard>> {
        if !self.has_begun().await {
            let guard = Arc::new(self.database.hold_schema_alone(bounds).await?);
            self.enter_transaction(&guard).await?;
        }
        let guard = {
            let mut slot = self.slot.lock().await;
            let txn = slot.txn()?;
            txn.be_alone(bounds).await?;
            let guard = txn.schema.clone();
            slot.limit_alone();
            slot.touch(self.database.env.elapsed());
            guard
        };
        self.watch_idle();
        Ok(guard)
    }

    async fn change_schema(&mut self, change: &Change, bounds: &Bounds) -> Result<()> {
        let mut slot = self.slot.lock().await;
        let changed = slot.txn()?.change_schema(change, bounds).await;
        slot.touch(self.database.env.elapsed());
        changed
    }

    /// A change of the schema may have to read whole tables.
    pub(super) fn schema_bounds(&self) -> Bounds {
        let time = self.settings.meaning().statement_timeout.unwrap_or(MAX_SCHEMA_TIME);
        let bounds = Bounds::new(&*self.database.env, time, self.cancel.clone());
        Bounds { lock: self.settings.meaning().lock_timeout, ..bounds }
    }

    /// The changes, where a new column's default has the value of this moment, which the rows that are there get.
    async fn with_computed_defaults(&mut self, change: &DdlChange) -> Result<Vec<SchemaChange>> {
        let mut changes = change.changes.clone();
        for entry in &change.compute {
            let value = self.value_of(&entry.expression).await?;
            match changes.get_mut(entry.change) {
                Some(SchemaChange::AddColumn { column, .. }) => column.default = Some(value),
                _ => {
                    return Err(SqlError::new("XX000", "a default was computed for something other than a new column"));
                }
            }
        }
        Ok(changes)
    }

    /// The value of an expression over nothing.
    async fn value_of(&mut self, expression: &str) -> Result<Value> {
        let prepared = self.prepare_now(&format!("SELECT {expression}"), &[]).await?;
        let Answer::Rows(mut rows) = Box::pin(self.execute_now(&prepared, Vec::new())).await? else {
            return Err(SqlError::new("XX000", "an expression returned no rows"));
        };
        let first = rows.next(1).await?.and_then(|rows| rows.into_iter().next());
        first.and_then(|row| row.into_iter().next()).ok_or_else(|| SqlError::new("XX000", "an expression has no value"))
    }
}

fn isolation_of(value: &str) -> Option<isles_sql::bind::utility::IsolationLevel> {
    use isles_sql::bind::utility::IsolationLevel;
    Some(match value.to_ascii_lowercase().as_str() {
        "serializable" => IsolationLevel::Serializable,
        "repeatable read" => IsolationLevel::RepeatableRead,
        "read committed" => IsolationLevel::ReadCommitted,
        "read uncommitted" => IsolationLevel::ReadUncommitted,
        _ => return None,
    })
}

fn show_tables(schema: &Schema) -> Vec<Vec<Value>> {
    let row = |table: &isles_kernel::schema::Table| {
        let (kind, group, shard_by, buckets) = match &table.kind {
            TableKind::Hash { group, shard_by, buckets, .. } => (
                "hash",
                Value::text(group.as_str()),
                Value::Text(shard_by.join(", ")),
                Value::Text(buckets.to_string()),
            ),
            TableKind::Tenant => ("tenant", Value::Null, Value::Null, Value::Null),
            TableKind::Reference => ("reference", Value::Null, Value::Null, Value::Null),
            TableKind::Global => ("global", Value::text(GLOBAL_GROUP), Value::Null, Value::text("1")),
        };
        vec![Value::text(table.name.as_str()), Value::text(kind), group, shard_by, buckets]
    };
    schema.tables.values().filter(|table| !table.is_internal()).map(row).collect()
}

fn show_limits(of_indexes: &indexes::Limits) -> Vec<Vec<Value>> {
    let limits: [(&str, u64); 13] = [
        ("rows gathered by a statement", bounds::MAX_ROWS as u64),
        ("bytes gathered by a statement", bounds::MAX_BYTES as u64),
        ("seconds of a statement without a timeout of its own", bounds::MAX_TIME.as_secs()),
        ("bytes of a statement", isles_sql::parse::MAX_BYTES as u64),
        ("nesting of a statement", isles_sql::parse::MAX_NESTING as u64),
        ("parameters of a statement", isles_engine::shard::MAX_PARAMETERS as u64),
        ("bytes that a transaction over several shards changes on one", isles_engine::shard::MAX_REDO_BYTES as u64),
        ("cursors of a session", MAX_CURSORS as u64),
        ("prepared statements of a session", MAX_NAMED as u64),
        ("additions of a global index that are noted and not applied", of_indexes.additions as u64),
        ("entries that a look at a global index reads on a shard", of_indexes.entries as u64),
        ("changes that entries of global indexes are behind before writes wait", of_indexes.lag),
        ("advisory locks of a session", MAX_LOCKS as u64),
    ];
    limits.iter().map(|(name, limit)| vec![Value::text(*name), Value::Text(limit.to_string())]).collect()
}
