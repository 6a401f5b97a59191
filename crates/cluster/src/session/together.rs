//! Statements that stand or fall together, for embedding programs, which know them all beforehand.
//!
//! Where all of them come to one shard they are one request there, and share its flush with others; otherwise they are
//! a transaction. Either way they are tried again by themselves when they conflict with others.

use super::plans::{Compiled, RowsKind};
use super::settings::Tenant;
use super::tenants::TenantUse;
use super::{Answer, Prepared, Result, Session};
use crate::database::Database;
use crate::execute::led::Led;
use crate::execute::run::{ATTEMPTS, FIRST_PAUSE, Runner};
use crate::execute::together::{Part, run_together};
use crate::roles::Role;
use crate::session::Login;
use isles_engine::shard::{CancelToken, Outcome};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::plan::Plan;
use std::sync::Arc;

/// Statements that are run together: they are held in memory, and on SQLite the shard's writer is theirs meanwhile.
pub const MAX_TOGETHER: usize = 1_000;

/// A statement and its parameters.
pub type Given = (Arc<Prepared>, Vec<Value>);

/// The count in a tag such as `UPDATE 3`.
fn affected(tag: &str) -> u64 {
    tag.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or_default()
}

/// The plans of statements about rows; None if one is something else.
fn plans_of<'a>(statements: &'a [(Arc<Prepared>, &Vec<Value>)]) -> Option<Vec<&'a Plan>> {
    let plan = |(prepared, _): &'a (Arc<Prepared>, &Vec<Value>)| match &prepared.compiled {
        Compiled::Rows { plan, .. } => Some(&**plan),
        _ => None,
    };
    statements.iter().map(plan).collect()
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
        let must_begin = self.must_say_level() || statements.iter().any(|(prepared, _)| self.must_count(prepared));
        if !must_begin && let Some(outcomes) = self.in_one_request(statements).await? {
            return Ok(outcomes);
        }
        self.in_a_transaction(statements).await
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

    /// None if they are not for one shard.
    async fn in_one_request(&mut self, statements: &[Given]) -> Result<Option<Vec<Outcome>>> {
        let began = self.database.env.elapsed();
        let guard = self.hold_schema().await?;
        let mut current = Vec::with_capacity(statements.len());
        for (prepared, params) in statements {
            let prepared = self.current(prepared, &guard)?;
            if params.len() != prepared.params.len() {
                return Err(SqlError::new("08P01", "the statement has another number of parameters"));
            }
            current.push((prepared, params));
        }
        let Some(plans) = plans_of(&current) else { return Ok(None) };
        // Such a request writes, and whoever reads all tenants does not.
        if self.modes().read_only || self.settings.meaning().tenant == Tenant::Every {
            return Ok(None);
        }
        let most = current.iter().map(|(prepared, _)| prepared.tenant_use).max().unwrap_or(TenantUse::None);
        let _pass = self.admit(most).await?;
        let (database, bounds, knowledge) = (self.database.clone(), self.bounds(), self.knowledge(&guard)?);
        let mut parts = Vec::with_capacity(plans.len());
        for (plan, (_, params)) in plans.into_iter().zip(&current) {
            let (database, schema, sources, bounds) = (&database, &guard, &knowledge, &bounds);
            let runner = Runner { database, schema, sources, params, bounds, led: Led::default() };
            parts.push(Part { plan, runner });
        }
        let outputs = run_together(&parts).await;
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
