//! Statements that stand or fall together, for embedding programs, which know them all beforehand.
//!
//! Where all of them come to one shard they are one request there, and share its flush with others; otherwise they are
//! a transaction. Either way they are tried again by themselves when they conflict with others.
//!
//! Queries that do not belong together can be given together, too: then each shard is asked once for all of its own.

use super::known::StatementKnowledge;
use super::plans::{Compiled, RowsKind};
use super::settings::Tenant;
use super::tenants::TenantUse;
use super::{Answer, Prepared, Result, Session};
use crate::database::{Database, SchemaGuard};
use crate::execute::bounds::Bounds;
use crate::execute::led::Led;
use crate::execute::run::{ATTEMPTS, FIRST_PAUSE, Runner};
use crate::execute::together::{Part, run_by_shard, run_each, run_together};
use crate::roles::Role;
use crate::session::Login;
use isles_engine::shard::{CancelToken, Outcome};
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use isles_kernel::value::Value;
use isles_sql::plan::Plan;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Statements that are run together: they are held in memory, and on SQLite the shard's writer is theirs meanwhile.
pub const MAX_TOGETHER: usize = 1_000;

/// A statement and its parameters.
pub type Given = (Arc<Prepared>, Vec<Value>);

/// A statement as it is planned now.
type Current<'a> = (Arc<Prepared>, &'a Vec<Value>);

/// The count in a tag such as `UPDATE 3`.
fn affected(tag: &str) -> u64 {
    tag.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or_default()
}

/// The plans of statements about rows; None if one is something else.
fn plans_of<'a>(statements: &'a [Current<'_>]) -> Option<Vec<&'a Plan>> {
    let plan = |(prepared, _): &'a Current<'_>| match &prepared.compiled {
        Compiled::Rows { plan, .. } => Some(&**plan),
        _ => None,
    };
    statements.iter().map(plan).collect()
}

fn most_use(statements: &[Current<'_>]) -> TenantUse {
    statements.iter().map(|(prepared, _)| prepared.tenant_use).max().unwrap_or(TenantUse::None)
}

/// Plans with what runs them.
fn parts_of<'a>(
    plans: Vec<&'a Plan>,
    statements: &'a [Current<'a>],
    (database, schema, sources, bounds): (&'a Arc<Database>, &'a Arc<SchemaGuard>, &'a StatementKnowledge, &'a Bounds),
) -> Vec<Part<'a>> {
    let part = |(plan, (_, params)): (&'a Plan, &'a Current<'a>)| Part {
        plan,
        runner: Runner { database, schema, sources, params, bounds, led: Led::default() },
    };
    plans.into_iter().zip(statements).map(part).collect()
}

impl Database {
    /// A session of the system's own: it may create and change what is in the schema `isles`.
    pub fn system_session(self: &Arc<Self>) -> Result<Session> {
        let role = Role { admin: true, ..Role::default() };
        let login = Login { user: "isles".into(), database: self.name.clone(), settings: Vec::new(), role };
        let mut session = self.session(login)?;
        session.is_system = true;
        Ok(session)
    }
}

impl Session {
    /// Runs a statement and gathers what it gives.
    pub async fn run(&mut self, prepared: &Arc<Prepared>, params: Vec<Value>) -> Result<Outcome> {
        match self.execute(prepared, params).await? {
            Answer::Rows(mut rows) => {
                let mut all = Vec::new();
                while let Some(more) = rows.next(usize::MAX).await? {
                    all.extend(more);
                }
                Ok(Outcome { rows: all, affected: affected(&rows.tag()) })
            }
            Answer::Done { tag } => Ok(Outcome { rows: Vec::new(), affected: affected(&tag) }),
            Answer::Empty => Ok(Outcome::default()),
            Answer::CopyIn(_) | Answer::CopyOut(_) => Err(SqlError::unsupported("COPY is not run this way")),
        }
    }

    /// Prepares and runs a text of one statement.
    pub async fn run_text(&mut self, sql: &str, params: Vec<Value>) -> Result<Outcome> {
        let prepared = self.prepare(sql, &[]).await?;
        self.run(&prepared, params).await
    }

    /// Runs statements about rows that stand or fall together. Inside of a transaction they are part of it.
    pub async fn execute_together(&mut self, statements: &[Given]) -> Result<Vec<Outcome>> {
        if statements.len() > MAX_TOGETHER {
            return Err(SqlError::new("54000", format!("more than {MAX_TOGETHER} statements at once")));
        }
        if self.open.is_some() {
            return self.one_by_one(statements).await;
        }
        if let Some(outcomes) = self.in_one_request(statements).await? {
            return Ok(outcomes);
        }
        self.in_a_transaction(statements).await
    }

    /// Runs statements about rows as one request to one shard, outside of a transaction. None, and nothing has happened,
    /// if they do not come to one shard, or need more than a request can do.
    pub async fn execute_in_one_request(&mut self, statements: &[Given]) -> Result<Option<Vec<Outcome>>> {
        match self.open.is_some() || statements.len() > MAX_TOGETHER {
            true => Ok(None),
            false => self.in_one_request(statements).await,
        }
    }

    async fn one_by_one(&mut self, statements: &[Given]) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::with_capacity(statements.len());
        for (prepared, params) in statements {
            outcomes.push(self.run(prepared, params.clone()).await?);
        }
        Ok(outcomes)
    }

    /// Nothing of it has been told to anyone, so it is tried again when others are in the way.
    async fn in_a_transaction(&mut self, statements: &[Given]) -> Result<Vec<Outcome>> {
        let (mut attempt, mut pause) = (0, FIRST_PAUSE);
        loop {
            attempt += 1;
            self.begin_implicit();
            let outcomes = self.one_by_one(statements).await;
            let ended = self.end_implicit().await;
            match outcomes.and_then(|outcomes| ended.map(|()| outcomes)) {
                Err(error) if attempt < ATTEMPTS && matches!(error.sqlstate, "40001" | "40P01") => {
                    self.database.env.sleep(pause).await;
                    pause *= 2;
                }
                outcomes => return outcomes,
            }
        }
    }

    /// Runs queries that do not belong together: each shard is asked once for all that come to it, and those of one that
    /// cannot be reached, or does not answer in time, fail by themselves. Not within a transaction.
    pub async fn query_each(&mut self, statements: &[Given], time: Duration) -> Result<Vec<Result<Outcome>>> {
        if self.open.is_some() || statements.len() > MAX_TOGETHER {
            let message = format!("at most {MAX_TOGETHER} queries are run side by side, outside of a transaction");
            return Err(SqlError::new("54000", message));
        }
        let began = self.database.env.elapsed();
        let guard = self.hold_schema().await?;
        let current = self.all_current(statements, &guard)?;
        let queries = |(prepared, _): &(Arc<Prepared>, _)| {
            matches!(prepared.compiled, Compiled::Rows { kind: RowsKind::Select, .. })
        };
        let Some(plans) = plans_of(&current).filter(|_| current.iter().all(queries)) else {
            return Err(SqlError::new("0A000", "only queries are run side by side"));
        };
        let _pass = self.admit(most_use(&current)).await?;
        let (database, bounds, knowledge) = (self.database.clone(), self.bounds_of(time), self.knowledge(&guard)?);
        let outputs = run_each(&parts_of(plans, &current, (&database, &guard, &knowledge, &bounds))).await;
        self.cancel = CancelToken::default();
        let mut outcomes = Vec::with_capacity(outputs.len());
        let mut rows = 0;
        for ((prepared, _), output) in current.iter().zip(outputs) {
            let outcome = output.and_then(|output| {
                self.check_rows(prepared.tenant_use, output.rows.len())?;
                rows += output.rows.len() as u64;
                Ok(Outcome { rows: output.rows, affected: 0 })
            });
            outcomes.push(outcome);
        }
        self.add_work(outcomes.len() as u64, 0, rows, began);
        Ok(outcomes)
    }

    /// Runs a query on each shard that it comes to by itself, and gives an answer or an error of each: one that cannot be
    /// reached, or does not answer in time, hides none of the others. A LIMIT is one of each shard. Those that are left out
    /// are not asked. Not within a transaction.
    pub async fn query_shards(
        &mut self,
        statement: &Given,
        time: Duration,
        without: &BTreeSet<ShardId>,
    ) -> Result<Vec<(ShardId, Result<Vec<Vec<Value>>>)>> {
        if self.open.is_some() {
            return Err(SqlError::new("25001", "shards are asked one by one outside of a transaction"));
        }
        let began = self.database.env.elapsed();
        let guard = self.hold_schema().await?;
        let current = self.all_current(std::slice::from_ref(statement), &guard)?;
        let Some(plans) = plans_of(&current) else {
            return Err(SqlError::new("0A000", "only queries are asked of each shard"));
        };
        let _pass = self.admit(most_use(&current)).await?;
        let (database, bounds, knowledge) = (self.database.clone(), self.bounds_of(time), self.knowledge(&guard)?);
        let parts = parts_of(plans, &current, (&database, &guard, &knowledge, &bounds));
        let [part] = parts.as_slice() else { return Ok(Vec::new()) };
        let answers = run_by_shard(part, without).await;
        self.cancel = CancelToken::default();
        let answers = answers?;
        let rows = answers.iter().filter_map(|(_, rows)| rows.as_ref().ok()).map(|rows| rows.len() as u64).sum();
        self.add_work(1, 0, rows, began);
        Ok(answers)
    }

    /// Bounds of a statement that may take so long at most, or less if the session says so.
    fn bounds_of(&self, time: Duration) -> Bounds {
        let bounds = self.bounds();
        let time = time.min(bounds.time);
        Bounds { deadline: self.database.env.elapsed() + time, time, ..bounds }
    }

    /// The statements as they are planned now, with their parameters.
    fn all_current<'a>(&mut self, statements: &'a [Given], guard: &SchemaGuard) -> Result<Vec<Current<'a>>> {
        let mut current = Vec::with_capacity(statements.len());
        for (prepared, params) in statements {
            let prepared = self.current(prepared, guard)?;
            if params.len() != prepared.params.len() {
                return Err(SqlError::new("08P01", "the statement has another number of parameters"));
            }
            current.push((prepared, params));
        }
        Ok(current)
    }

    /// None if they are not for one shard.
    async fn in_one_request(&mut self, statements: &[Given]) -> Result<Option<Vec<Outcome>>> {
        if self.must_say_level() || statements.iter().any(|(prepared, _)| self.must_count(prepared)) {
            return Ok(None);
        }
        let began = self.database.env.elapsed();
        let guard = self.hold_schema().await?;
        let current = self.all_current(statements, &guard)?;
        let Some(plans) = plans_of(&current) else { return Ok(None) };
        // Such a request writes, and whoever reads all tenants does not.
        if self.modes().read_only || self.settings.meaning().tenant == Tenant::Every {
            return Ok(None);
        }
        let _pass = self.admit(most_use(&current)).await?;
        let (database, bounds, knowledge) = (self.database.clone(), self.bounds(), self.knowledge(&guard)?);
        let outputs = run_together(&parts_of(plans, &current, (&database, &guard, &knowledge, &bounds))).await;
        self.cancel = CancelToken::default();
        let Some(outputs) = outputs? else { return Ok(None) };
        let mut outcomes = Vec::with_capacity(outputs.len());
        let mut rows = 0;
        for ((prepared, params), output) in current.iter().zip(outputs) {
            self.check_rows(prepared.tenant_use, output.rows.len())?;
            if !matches!(prepared.compiled, Compiled::Rows { kind: RowsKind::Select, .. }) {
                self.note_write(prepared, params, output.affected).await;
            }
            rows += (output.rows.len() as u64).max(output.affected);
            outcomes.push(Outcome { rows: output.rows, affected: output.affected });
        }
        self.add_work(outcomes.len() as u64, 0, rows, began);
        Ok(Some(outcomes))
    }
}
