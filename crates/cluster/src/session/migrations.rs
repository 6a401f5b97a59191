//! Statements about tables that become tenant tables.
//!
//! `ALTER TABLE … SET (kind = 'tenant', …)` waits until the table is one, and says now and then how far it is. What it has
//! begun does not depend on it: a session that ends, or is cancelled, leaves the migration to the database.

use super::moves::time;
use super::plans::{number_field, text_field};
use super::{Answer, Result, Rows, Session};
use crate::migrations::{Conflict, MigrationInfo, Report, State};
use isles_kernel::error::SqlError;
use isles_kernel::schema::plain_name;
use isles_kernel::value::Value;
use isles_sql::bind::utility::MigrationStatement;
use isles_sql::tree::Field;
use isles_sql::types::{FLOAT8, TIMESTAMPTZ, Type};
use std::time::Duration;

/// How often one who waits for a migration looks.
const POLL: Duration = Duration::from_millis(20);
/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The columns of a statement's answer.
pub(super) fn fields(statement: &MigrationStatement) -> Option<Vec<Field>> {
    let of = |name: &str, oid| Field { name: name.into(), ty: Type::of(oid) };
    match statement {
        MigrationStatement::Check { .. } => {
            let mut fields = vec![text_field("finding"), number_field("count")];
            fields.extend(["message", "examples", "hint"].map(text_field));
            Some(fields)
        }
        MigrationStatement::List => {
            let mut fields: Vec<Field> = ["table", "tenant_by", "state", "phase"].map(text_field).into();
            fields.extend(["rows_copied", "rows_total"].map(number_field));
            fields.push(of("pause_ms", FLOAT8));
            fields.extend(["started", "updated"].map(|name| of(name, TIMESTAMPTZ)));
            fields.extend(["waits_for", "error"].map(text_field));
            Some(fields)
        }
        MigrationStatement::Start { .. } | MigrationStatement::Cancel { .. } => None,
    }
}

impl Session {
    pub(super) async fn migrate(&mut self, statement: &MigrationStatement) -> Result<Answer> {
        let tag = statement.command_tag();
        let rows = match statement {
            MigrationStatement::List => self.database.migrations().await?.iter().map(row).collect(),
            // A look, too: it is at what is committed, and would wait for a transaction that has changed the schema.
            _ if self.in_block() || self.has_begun().await => {
                return Err(SqlError::new(
                    "25001",
                    format!("{tag} of this kind cannot run inside a transaction block"),
                ));
            }
            MigrationStatement::Check { table, tenant_by } => {
                let bounds = self.schema_bounds();
                reported(&self.database.check_migration(table, tenant_by, &bounds).await?)
            }
            _ if self.modes().read_only => {
                return Err(SqlError::new("25006", format!("cannot execute {tag} in a read-only transaction")));
            }
            MigrationStatement::Start { table, tenant_by } => {
                self.run_migration(table, tenant_by).await?;
                return Ok(Answer::Done { tag: tag.into() });
            }
            MigrationStatement::Cancel { table } => {
                self.database.cancel_migration(table).await?;
                return Ok(Answer::Done { tag: tag.into() });
            }
        };
        Ok(Answer::Rows(Rows::new(fields(statement).unwrap_or_default(), rows, tag.into())))
    }

    /// Begins a migration, and waits until the table has become a tenant table.
    async fn run_migration(&mut self, table: &str, tenant_by: &str) -> Result<()> {
        let (database, bounds) = (self.database.clone(), self.schema_bounds());
        let number = database.begin_migration(table, tenant_by, &bounds).await?;
        let mut told = database.env.elapsed();
        loop {
            let gone = || SqlError::new("55000", "the migration is not known any more");
            let migration = database.migration(number).await?.ok_or_else(gone)?;
            match migration.state {
                State::Cleaning | State::Done => return Ok(()),
                State::Failed | State::Cancelled => {
                    return Err(migration.failure.map_or_else(gone, |failure| failure.error()));
                }
                State::Copying | State::Undoing => {}
            }
            if database.env.elapsed() >= told + PROGRESS_INTERVAL {
                told = database.env.elapsed();
                let known = database.migration_progress(number);
                let phase = known.phase.map_or("waiting", |phase| phase.name());
                let rows = known.rows.max(migration.rows_copied());
                let total = migration.total.max(rows);
                let message = format!("table \"{}\": {phase}, {rows} of {total} rows copied", plain_name(table));
                self.tell_progress(SqlError::new("00000", message).with_detail(format!("{rows}/{total}")));
            }
            if let Err(error) = bounds.wait(&*database.env, database.env.sleep(POLL)).await {
                let hint = format!("SHOW MIGRATIONS shows how far it is, CANCEL MIGRATION {table} ends it");
                return Err(error.with_detail("the migration goes on without this statement").with_hint(hint));
            }
        }
    }
}

fn number(n: u64) -> Value {
    Value::Int(i64::try_from(n).unwrap_or(i64::MAX))
}

fn reported(report: &Report) -> Vec<Vec<Value>> {
    let count = |what: &str, n: u64| vec![Value::text(what), number(n), Value::Null, Value::Null, Value::Null];
    let conflict = |conflict: &Conflict| {
        let examples = match conflict.examples.is_empty() {
            true => Value::Null,
            false => Value::Text(conflict.examples.join(", ")),
        };
        vec![
            Value::text("conflict"),
            conflict.rows.map_or(Value::Null, number),
            Value::text(&conflict.message),
            examples,
            Value::text(&conflict.hint),
        ]
    };
    let counts = [count("rows", report.rows), count("tenants", report.tenants)];
    counts.into_iter().chain(report.conflicts.iter().map(conflict)).collect()
}

/// What `SHOW MIGRATIONS` shows of one.
fn row(info: &MigrationInfo) -> Vec<Value> {
    let (migration, known) = (&info.migration, info.progress.clone().unwrap_or_default());
    let text = |text: Option<&str>| text.map_or(Value::Null, Value::text);
    let error = migration.failure.as_ref().map(|failure| match &failure.detail {
        Some(detail) => format!("{} ({detail})", failure.message),
        None => failure.message.clone(),
    });
    vec![
        Value::text(&migration.table),
        Value::text(&migration.tenant_by),
        Value::text(migration.state.name()),
        text(known.phase.map(|phase| phase.name())),
        number(migration.rows_copied().max(known.rows)),
        number(migration.total),
        migration.pause_micros.map_or(Value::Null, |micros| Value::Float(micros as f64 / 1_000.0)),
        time(migration.created_at),
        time(migration.updated_at),
        text(known.waits.as_deref()),
        text(error.as_deref()),
    ]
}
