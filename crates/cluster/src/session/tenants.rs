//! A session's tenant: its seat, its quotas, what it has done; and the statements about tenants.
//!
//! The tenant is a setting, which a rollback or the end of `SET LOCAL` changes, too. So the seat follows the setting:
//! it is taken when a tenant is set and when a statement needs one, and given back when the setting has become another.
//!
//! DROP TENANT is not a transaction: rows of a large tenant go in pages, each a short transaction of its own, so that
//! others are not held up.
//!
//!     mark in the catalog ─► wait for those inside ─► delete pages, children first, then records of stores ─► remove the
//!     tenant's record
//!
//! From the mark on nobody enters. Whatever crashes, the mark is there, and DROP TENANT again goes on.

use super::plans::{Compiled, Prepared, RowsKind};
use super::settings::Tenant;
use super::{Answer, Result, Rows, Session};
use crate::database::Database;
use crate::execute::bounds::Bounds;
use crate::execute::inputs::tenant_unset;
use crate::execute::transaction::{noted, open_shard};
use crate::tenants::entry::{Entry, Pass};
use crate::tenants::list::{self, TenantList, number};
use crate::tenants::work::TenantWork;
use crate::tenants::{Record, State, no_tenant};
use isles_engine::shard::Engine;
use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use isles_kernel::quota::{Quota, Quotas};
use isles_kernel::schema::{Schema, TableKind};
use isles_kernel::value::Value;
use isles_sql::bind::utility::{TenantStatement, Utility};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Rows that DROP TENANT deletes at once: some tens of milliseconds of a shard's writer.
const PAGE_ROWS: usize = 1_000;
/// How long DROP TENANT waits for transactions of the tenant to end.
const LEAVE_LIMIT: Duration = Duration::from_secs(30);
const LEAVE_POLL: Duration = Duration::from_millis(10);
/// How long it may take when the client has set no limit.
const MAX_DROP_TIME: Duration = Duration::from_secs(24 * 3_600);
/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// What a statement does with tenant tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TenantUse {
    None,
    /// It reads or deletes.
    Uses,
    /// It inserts or updates.
    Stores,
}

impl Session {
    /// Makes the session sit in the tenant that its settings name.
    pub(super) fn sit(&mut self) -> Result<()> {
        if self.seated().is_some() {
            return Ok(());
        }
        let name = match &self.settings.meaning().tenant {
            Tenant::Unset | Tenant::Every => {
                self.seat = None;
                return Ok(());
            }
            Tenant::None => None,
            Tenant::Name(name) => Some(name),
        };
        self.seat = Some(self.database.tenants.entry(name).sit()?);
        Ok(())
    }

    /// Gives the seat back if the settings name another tenant.
    pub(super) fn leave_other_seat(&mut self) {
        if self.seated().is_none() {
            self.seat = None;
        }
    }

    /// The tenant that the session sits in, if it is the one of its settings.
    pub(super) fn seated(&self) -> Option<&Arc<Entry>> {
        let entry = self.seat.as_ref()?.entry();
        match &self.settings.meaning().tenant {
            Tenant::Unset | Tenant::Every => None,
            Tenant::None => entry.name.is_none().then_some(entry),
            Tenant::Name(name) => (entry.name.as_ref() == Some(name)).then_some(entry),
        }
    }

    pub(super) fn quota(&self, quota: Quota) -> Option<u64> {
        self.seated()?.quotas().get(quota)
    }

    /// Lets a statement at its tenant's rows; None for one that does not use them.
    pub(super) async fn admit(&mut self, used: TenantUse) -> Result<Option<Pass>> {
        if used == TenantUse::None {
            return Ok(None);
        }
        // Also where the plan would not come to its tenant tables: whoever has forgotten the tenant shall know.
        if self.settings.meaning().tenant == Tenant::Unset {
            return Err(tenant_unset());
        }
        self.sit()?;
        let Some(entry) = self.seated().cloned() else { return Ok(None) };
        let pass = entry.enter()?;
        if used == TenantUse::Stores {
            self.bounds().wait(&*self.database.env, self.database.check_room(&entry)).await??;
        }
        Ok(Some(pass))
    }

    /// Whether a statement on its own must be a transaction, so that it can be undone when it returns too many rows.
    pub(super) fn must_count(&self, prepared: &Prepared) -> bool {
        let writes = matches!(prepared.compiled, Compiled::Rows { kind, .. } if kind != RowsKind::Select);
        self.open.is_none() && writes && prepared.fields.is_some() && self.quota(Quota::Rows).is_some()
    }

    /// Refuses too many rows of a statement that uses the tenant's own. What it asks the system relations is as long as
    /// the schema is.
    pub(super) fn check_rows(&self, used: TenantUse, rows: usize) -> Result<()> {
        match (self.quota(Quota::Rows), self.seated()) {
            (Some(max), Some(entry)) if used != TenantUse::None && rows as u64 > max => Err(entry.beyond(Quota::Rows)),
            _ => Ok(()),
        }
    }

    /// Notes what a statement has written.
    pub(super) async fn note_write(&self, prepared: &Prepared, params: &[Value], affected: u64) {
        let Some(entry) = self.seated() else { return };
        match prepared.tenant_use {
            TenantUse::None => {}
            TenantUse::Uses => entry.deleted(),
            TenantUse::Stores => {
                // A literal is in the text.
                let given = prepared.sql.len() + params.iter().map(Value::weight).sum::<usize>();
                match (self.open.is_some(), self.slot.lock().await.txn()) {
                    (true, Ok(txn)) => txn.wrote(affected, given as u64),
                    _ => entry.wrote(affected, given as u64),
                }
            }
        }
    }

    /// The time that a statement may take; the tenant's quota if that is shorter.
    pub(super) fn statement_time(&self, otherwise: Duration) -> Duration {
        let time = self.settings.meaning().statement_timeout.unwrap_or(otherwise);
        self.quota(Quota::StatementTime).map_or(time, |quota| time.min(Duration::from_millis(quota)))
    }

    /// Says so if it was the tenant's quota that ended a statement.
    pub(super) fn explain_timeout(&self, error: SqlError) -> SqlError {
        let said = self.settings.meaning().statement_timeout;
        match (self.quota(Quota::StatementTime), self.seated()) {
            (Some(quota), Some(entry))
                if error.sqlstate == "57014"
                    && error.message.ends_with("statement timeout")
                    && said.is_none_or(|said| said > Duration::from_millis(quota)) =>
            {
                error.with_hint(entry.hint(Quota::StatementTime))
            }
            _ => error,
        }
    }

    /// Counts a statement for its tenant.
    pub(super) fn count(&mut self, prepared: &Prepared, answer: &Result<Answer>, began: Duration) {
        let rows = std::mem::take(&mut self.counted);
        let counts = match &prepared.compiled {
            Compiled::Rows { .. } | Compiled::Explain(_) | Compiled::Functions(_) | Compiled::Call(_) => true,
            Compiled::Utility(utility) => matches!(
                **utility,
                Utility::Copy(_) | Utility::Execute { .. } | Utility::DeclareCursor(_) | Utility::Truncate { .. }
            ),
            Compiled::Empty | Compiled::Nothing => false,
        };
        if !counts {
            return;
        }
        self.add_work(1, u64::from(answer.is_err()), rows, began);
    }

    /// Adds what was done since `began` to what is known of its tenant.
    pub(super) fn add_work(&self, statements: u64, errors: u64, rows: u64, began: Duration) {
        let Some(entry) = self.seated() else { return };
        let took = self.database.env.elapsed().saturating_sub(began);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        entry.add(TenantWork { statements, errors, rows, micros });
    }

    pub(super) async fn tenant(&mut self, statement: &TenantStatement, utility: &Utility) -> Result<Answer> {
        let fields = || super::utility::fields(utility).unwrap_or_default();
        match statement {
            TenantStatement::List { like } => {
                return Ok(Answer::Rows(Rows::listed(
                    fields(),
                    TenantList::new(&self.database, like.clone(), self.bounds()),
                )));
            }
            TenantStatement::Show { name } => {
                let row = self.show_tenant(name).await?;
                return Ok(Answer::Rows(Rows::new(fields(), vec![row], "SHOW".into())));
            }
            _ if self.in_block() || self.has_begun().await => {
                return Err(SqlError::new("25001", "tenants cannot be changed inside a transaction block"));
            }
            TenantStatement::Create { name, if_not_exists, quotas } => {
                self.create_tenant(name, *if_not_exists, *quotas).await?;
            }
            TenantStatement::Alter { name, quotas } => self.alter_tenant(name, quotas).await?,
            TenantStatement::Drop { name, if_exists } => self.drop_tenant(name, *if_exists).await?,
        }
        Ok(Answer::Done { tag: statement.command_tag().into() })
    }

    async fn show_tenant(&self, name: &TenantId) -> Result<Vec<Value>> {
        let entry = self.database.tenants.find(name);
        let record = entry.as_ref().and_then(|entry| entry.record());
        let usage = self.bounds().wait(&*self.database.env, self.database.usage_of(Some(name))).await??;
        if record.is_none() && usage.rows == 0 {
            return Err(no_tenant(name));
        }
        // Who is locked to a tenant does not see shards.
        let shard = match self.rank {
            super::rights::Rank::Tenant => None,
            _ => Some(self.database.shard_of(Some(name))?),
        };
        let quotas = record.unwrap_or_default().quotas;
        let shown = |quota: Option<u64>| quota.map_or(Value::Null, number);
        let mut row = list::row(&self.database, &usage, shard.as_ref());
        row.extend([
            number(entry.map_or(0, |entry| entry.sessions())),
            shown(quotas.max_connections),
            quotas.statement_timeout_ms.map_or(Value::Null, |ms| Value::Text(format!("{ms}ms"))),
            shown(quotas.max_rows),
            shown(quotas.max_bytes),
        ]);
        Ok(row)
    }

    async fn create_tenant(&mut self, name: &TenantId, if_not_exists: bool, quotas: Quotas) -> Result<()> {
        let created = self.database.tenants.change(name, |record| match record {
            None => Ok(Some(Record { quotas, ..Record::default() })),
            Some(record) if record.state == State::Dropping => Err(being_dropped(name)),
            Some(_) => Err(SqlError::new("42710", format!("tenant \"{name}\" already exists"))),
        });
        match created.await {
            Err(error) if error.sqlstate == "42710" && if_not_exists => {
                let notice = SqlError::new("42710", format!("tenant \"{name}\" already exists, skipping"));
                self.notices.push(("NOTICE", notice));
                Ok(())
            }
            created => {
                self.database.renew_figures();
                created
            }
        }
    }

    async fn alter_tenant(&mut self, name: &TenantId, quotas: &[(Quota, Option<u64>)]) -> Result<()> {
        let recorded = self.database.tenants.find(name).is_some_and(|entry| entry.record().is_some());
        let exists = recorded || self.database.usage_of(Some(name)).await?.rows > 0;
        let altered = self.database.tenants.change(name, |record| match record {
            None if !exists => Err(no_tenant(name)),
            Some(record) if record.state == State::Dropping => Err(being_dropped(name)),
            record => {
                let mut record = record.unwrap_or_default();
                quotas.iter().for_each(|(quota, value)| record.quotas.set(*quota, *value));
                Ok(Some(record))
            }
        });
        altered.await?;
        self.database.renew_figures();
        Ok(())
    }

    async fn drop_tenant(&mut self, name: &TenantId, if_exists: bool) -> Result<()> {
        let recorded = self.database.tenants.find(name).is_some_and(|entry| entry.record().is_some());
        let usage = self.database.usage_of(Some(name)).await?;
        if !recorded && usage.rows == 0 && !self.is_kept(name).await? {
            if !if_exists {
                return Err(no_tenant(name));
            }
            let notice = SqlError::new("00000", format!("tenant \"{name}\" does not exist, skipping"));
            self.notices.push(("NOTICE", notice));
            return Ok(());
        }
        self.database.check_tenant_rests(name).await?;
        let marked = |record: Option<Record>| Some(Record { state: State::Dropping, ..record.unwrap_or_default() });
        self.database.tenants.change(name, |record| Ok(marked(record))).await?;
        let time = self.settings.meaning().statement_timeout.unwrap_or(MAX_DROP_TIME);
        let bounds = Bounds::new(&*self.database.env, time, self.cancel.clone());
        let entry = self.database.tenants.entry(Some(name));
        self.wait_until_left(&entry, name, &bounds).await?;
        let gone = self.delete_rows(name, usage.rows, &bounds).await?;
        self.forget_kept(name, gone, &bounds).await?;
        let schema = self.database.schema();
        self.database.sequences.forget_tenant(&schema, Some(name)).await?;
        self.database.tenants.change(name, |_| Ok(None)).await
    }

    /// Whether those who keep records under placements have some of a tenant.
    async fn is_kept(&self, name: &TenantId) -> Result<bool> {
        for keeper in self.database.placements().keepers() {
            if keeper.keeps(name).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Lets them remove it, some at a time.
    async fn forget_kept(&self, name: &TenantId, mut gone: u64, bounds: &Bounds) -> Result<()> {
        for keeper in self.database.placements().keepers() {
            loop {
                bounds.check(&*self.database.env)?;
                let removed = keeper.forget(name).await?;
                if removed == 0 {
                    break;
                }
                gone += removed;
                self.tell_progress(progress(name, gone, gone));
            }
        }
        Ok(())
    }

    /// Waits until no statement and no transaction of the tenant is running.
    async fn wait_until_left(&self, entry: &Entry, name: &TenantId, bounds: &Bounds) -> Result<()> {
        let env = &self.database.env;
        let deadline = env.elapsed() + LEAVE_LIMIT;
        while entry.running() > 0 {
            bounds.check(&**env)?;
            if env.elapsed() >= deadline {
                let count = entry.running();
                let error = SqlError::new("55006", format!("tenant \"{name}\" is used by {count} transactions"));
                return Err(error
                    .with_detail("it is marked as being dropped: they can do nothing more, and nobody else enters")
                    .with_hint("DROP TENANT again when they have ended"));
            }
            env.sleep(LEAVE_POLL).await;
        }
        Ok(())
    }

    async fn delete_rows(&mut self, name: &TenantId, total: u64, bounds: &Bounds) -> Result<u64> {
        let (mut gone, mut told) = (0, self.database.env.elapsed());
        loop {
            let before = gone;
            let schema = self.database.hold_schema().await?.schema.clone();
            for table in children_first(&schema) {
                loop {
                    bounds.check(&*self.database.env)?;
                    let deleted = delete_page(&self.database, &table, name).await?;
                    gone += deleted;
                    if self.database.env.elapsed() >= told + PROGRESS_INTERVAL {
                        told = self.database.env.elapsed();
                        self.tell_progress(progress(name, gone, total));
                    }
                    if deleted < PAGE_ROWS as u64 {
                        break;
                    }
                }
            }
            // A table that was made meanwhile may have rows; nobody writes any more.
            if gone == before {
                break;
            }
        }
        self.tell_progress(progress(name, gone, total));
        Ok(gone)
    }
}

fn progress(name: &TenantId, gone: u64, total: u64) -> SqlError {
    let notice = SqlError::new("00000", format!("tenant \"{name}\": {gone} of {} rows deleted", total.max(gone)));
    notice.with_detail(format!("{gone}/{}", total.max(gone)))
}

fn being_dropped(name: &TenantId) -> SqlError {
    let error = SqlError::new("55000", format!("tenant \"{name}\" is being dropped"));
    error.with_hint("DROP TENANT goes on where it stopped; when it is done, the name is free again")
}

/// Deletes the next rows of a table, in a transaction of their own. The schema does not change meanwhile.
async fn delete_page(database: &Arc<Database>, table: &str, name: &TenantId) -> Result<u64> {
    let guard = database.hold_schema().await?;
    let Ok(definition) = guard.schema.table(table) else { return Ok(0) };
    let _active = database.enter()?;
    let shard_name = database.shard_of(Some(name))?;
    let _at_writer = match database.shards.engine(&shard_name) {
        Some(Engine::Sqlite) => Some(database.writers.at_shard(&shard_name)?),
        _ => None,
    };
    let shard = open_shard(database, &shard_name).await?;
    let tenant = Some(name.clone());
    let deleted = shard.purge(table, &tenant, Some(PAGE_ROWS)).await;
    let deleted = match deleted.map_err(|error| noted(database, &shard_name, error)) {
        // Rows that refer to others of their own table go together: no order of pages would do.
        Err(error) if error.sqlstate == "23503" && definition.foreign_keys.iter().any(|key| key.table == table) => {
            shard.purge(table, &tenant, None).await.map_err(|error| noted(database, &shard_name, error))
        }
        deleted => deleted,
    };
    deleted.map_err(|error| match error.sqlstate {
        "23503" => error.with_hint(
            "tables that refer to each other in a ring: drop one of their foreign keys, then DROP TENANT again",
        ),
        _ => error,
    })
}

/// Tenant tables, each before those that it refers to. A ring is broken anywhere.
fn children_first(schema: &Schema) -> Vec<String> {
    let mut left: BTreeSet<&str> = schema
        .tables
        .values()
        .filter(|table| table.kind == TableKind::Tenant && !table.is_internal())
        .map(|table| table.name.as_str())
        .collect();
    let mut ordered = Vec::new();
    while !left.is_empty() {
        let referred = |name: &str| {
            let others = left.iter().filter(|other| **other != name).filter_map(|other| schema.tables.get(*other));
            others.flat_map(|other| &other.foreign_keys).any(|key| key.table == name)
        };
        let next = left.iter().copied().find(|name| !referred(name)).or_else(|| left.first().copied());
        let Some(next) = next else { break };
        left.remove(next);
        ordered.push(next.to_string());
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;
    use isles_kernel::schema::{Column, Deferral, ForeignKey, OnChange, Table};
    use isles_kernel::value::DataType;

    fn table(name: &str, parents: &[&str]) -> Table {
        let mut table =
            Table::new(name, TableKind::Tenant, vec![Column::new("id", DataType::Int8).not_null()], &["id"]);
        table.foreign_keys = parents
            .iter()
            .map(|parent| ForeignKey {
                name: format!("{name}_{parent}"),
                columns: vec!["id".into()],
                table: (*parent).into(),
                references: vec!["id".into()],
                on_delete: OnChange::NoAction,
                on_update: OnChange::NoAction,
                deferral: Deferral::None,
            })
            .collect();
        table
    }

    #[test]
    fn children_come_before_parents_and_rings_end() {
        let order = |tables: &[(&str, &[&str])]| {
            let mut schema = Schema::default();
            for (name, parents) in tables {
                schema.tables.insert((*name).into(), table(name, parents));
            }
            children_first(&schema)
        };
        assert_eq!(order(&[("a", &[]), ("b", &["a"]), ("c", &["b", "a"])]), ["c", "b", "a"]);
        assert_eq!(order(&[("a", &["a"]), ("b", &["a"])]), ["b", "a"]);
        assert_eq!(order(&[("a", &["b"]), ("b", &["a"]), ("c", &["a"])]).len(), 3);
    }
}
