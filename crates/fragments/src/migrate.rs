//! Tables made and changed: from the version that a database has to that of the code.
//!
//! ```text
//! system steps (shards for tables that had none) ─► steps of each operation, in order ─► version of the code
//! ```
//!
//! Progress is a setting, `schema_version.{schema}`: `3` when three operations are done, `3/2` when two steps of the
//! fourth are. It is written with each step, in one transaction, so that a run that ends anywhere goes on where it was.
//! System steps are found by looking at the tables, and run before any other: later operations name what they make.
//! Each, too, goes with its number; `system_version.{schema}` is `0/2` when two are done, and `1` when all are.
//! A step happens only while its number is the next one. Of two who have found the same one, the second has done nothing,
//! and looks again.
//!
//! Invariants:
//!   * a database that is ahead of the code is refused, and nothing is changed
//!   * two who migrate at once do each step once

use crate::adapter::{Access, Adapter, Mode, Note, Row, Select, Siblings, Step};
use crate::condition::eq;
use crate::error::{Code, Error, Result, refused};
use crate::internal::{self, SETTINGS};
use crate::query::Direction;
use crate::schema::{ID, Operation, Schema, Table};
use crate::shard::Shard;
use std::sync::Arc;

/// The system steps that this code knows: 1 gives tables their shards.
const SYSTEM_VERSION: &str = "1";
/// How often a step is tried that the database ended in favour of another: two who migrate at once may each hold what
/// the other waits for, and as many as that do not start together.
const MAX_ENDED: usize = 20;
/// Looks at what remains; each does at least one step, and a table has a handful.
const MAX_SYSTEM_ROUNDS: usize = 1_000;

/// What a migration would do.
#[derive(Debug, Clone)]
pub struct Plan {
    pub from: usize,
    pub to: usize,
    pub steps: Vec<Step>,
}

impl Plan {
    /// The statements, as they would be sent.
    pub fn sql(&self) -> String {
        self.steps.iter().map(|step| step.sql.as_str()).collect()
    }
}

/// How far a schema is in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Progress {
    version: usize,
    /// Steps of the next operation.
    steps: usize,
}

impl Progress {
    fn read(text: &str) -> Option<Progress> {
        let (version, steps) = text.split_once('/').unwrap_or((text, "0"));
        Some(Progress { version: version.parse().ok()?, steps: steps.parse().ok()? })
    }

    fn text(self) -> String {
        match self.steps {
            0 => self.version.to_string(),
            steps => format!("{}/{steps}", self.version),
        }
    }
}

fn settings_table() -> Result<Arc<Table>> {
    internal::schema()?.table(SETTINGS).cloned()
}

/// A setting of the database.
pub(crate) async fn setting(adapter: &dyn Adapter, key: &str) -> Result<Option<String>> {
    let table = settings_table()?;
    let mut tx = adapter.begin(&Access::Shard(Shard::None), Mode::Read).await?;
    let order = vec![(ID.into(), Direction::Asc)];
    let rows = tx.select(&Select { table, condition: eq(ID, key), order, after: None, limit: 1 }).await?;
    tx.commit().await?;
    Ok(rows.first().and_then(|row| row.values.text("value").map(Into::into)))
}

/// Makes a setting unless it is there; what it is.
pub(crate) async fn settle(adapter: &dyn Adapter, key: &str, value: &str) -> Result<String> {
    if let Some(value) = setting(adapter, key).await? {
        return Ok(value);
    }
    let table = settings_table()?;
    let mut tx = adapter.begin(&Access::Shard(Shard::None), Mode::Write).await?;
    let values = crate::values::Values::new().set("value", value);
    let inserted = tx.insert(&table, &Row { id: key.into(), internal: 0, version: 0, values }).await;
    match inserted {
        Ok(()) => tx.commit().await?,
        // Another process was faster.
        Err(_) => tx.roll_back().await,
    }
    let settled = setting(adapter, key).await?;
    settled.ok_or_else(|| refused(Code::NotFound, format!("setting \"{key}\" cannot be made")))
}

/// Brings a schema to the version of the code.
pub async fn migrate(adapter: &dyn Adapter, schema: &Schema) -> Result<()> {
    migrate_some(adapter, schema, usize::MAX).await.map(|_| ())
}

/// Does at most so many steps, as a process that ends does; whether all are done.
pub async fn migrate_some(adapter: &dyn Adapter, schema: &Schema, mut steps: usize) -> Result<bool> {
    let settings = settings_table()?;
    if !adapter.tables().exists(&settings).await? {
        for step in adapter.tables().create(&settings, &Siblings::new()) {
            again(|| adapter.tables().run(&step, None)).await?;
        }
        adapter.tables().define(&settings).await?;
    }
    let key = version_key(schema);
    check_order(schema, progress(adapter, schema).await?.0)?;
    if !shard_tables(adapter, schema, &mut steps).await? {
        return Ok(false);
    }
    loop {
        let (now, from) = progress(adapter, schema).await?;
        check_order(schema, now)?;
        let Some(operation) = schema.operations.get(now.version) else { break };
        let todo = steps_of(adapter, schema, now.version, operation)?;
        let rest = todo.len().saturating_sub(now.steps);
        let (step, next) = match rest {
            0 => (Step::new(""), Progress { version: now.version + 1, steps: 0 }),
            1 => (todo[now.steps].clone(), Progress { version: now.version + 1, steps: 0 }),
            _ => (todo[now.steps].clone(), Progress { version: now.version, steps: now.steps + 1 }),
        };
        if steps == 0 {
            return Ok(false);
        }
        steps -= 1;
        let note = Note { key: key.clone(), from, to: next.text() };
        // Whether it was done here or by another who was faster, the next look finds what remains.
        if let Err(error) = run(adapter, &step, &note).await
            && progress(adapter, schema).await?.0 == now
        {
            return Err(error);
        }
    }
    for table in schema.tables() {
        adapter.tables().define(table).await?;
    }
    Ok(true)
}

/// Runs a step, again when the database ended it in favour of another.
async fn run(adapter: &dyn Adapter, step: &Step, note: &Note) -> Result<bool> {
    again(|| adapter.tables().run(step, Some(note))).await
}

/// Does what changes nothing if it fails, again when the database ended it in favour of another.
pub(crate) async fn again<T, F: Future<Output = Result<T>>>(mut attempt: impl FnMut() -> F) -> Result<T> {
    for _ in 1..MAX_ENDED {
        match attempt().await {
            Err(Error::Conflict(_)) => {}
            done => return done,
        }
    }
    attempt().await
}

fn version_key(schema: &Schema) -> String {
    format!("schema_version.{}", schema.key())
}

fn system_key(schema: &Schema) -> String {
    format!("system_version.{}", schema.key())
}

/// The version that a database has of a schema; 0 if it has none of it.
pub(crate) async fn version_of(adapter: &dyn Adapter, schema: &Schema) -> Result<usize> {
    progress(adapter, schema).await.map(|(progress, _)| progress.version)
}

/// How far a schema is, and the text that says so.
async fn progress(adapter: &dyn Adapter, schema: &Schema) -> Result<(Progress, Option<String>)> {
    if !adapter.tables().exists(&*settings_table()?).await? {
        return Ok((Progress { version: 0, steps: 0 }, None));
    }
    let text = setting(adapter, &version_key(schema)).await?;
    let known = text.as_deref().unwrap_or("0");
    let read = Progress::read(known);
    let read =
        read.ok_or_else(|| refused(Code::SchemaInvalid, format!("\"{known}\" is not the version of a schema")))?;
    Ok((read, text))
}

fn check_order(schema: &Schema, progress: Progress) -> Result<()> {
    let (have, code) = (progress.version, schema.version());
    match have > code || (have == code && progress.steps > 0) {
        true => Err(refused(
            Code::SchemaIsOlder,
            format!("the database has version {have} of schema \"{}\", the code has {code}", schema.name),
        )
        .with_hint("run a newer version of the program")),
        false => Ok(()),
    }
}

/// Gives tables that have none their shards, as far as the steps go; whether all have them.
async fn shard_tables(adapter: &dyn Adapter, schema: &Schema, steps: &mut usize) -> Result<bool> {
    let key = system_key(schema);
    let tables = schema.tables_at(progress(adapter, schema).await?.0.version)?;
    for _ in 0..MAX_SYSTEM_ROUNDS {
        let from = setting(adapter, &key).await?;
        if from.as_deref() == Some(SYSTEM_VERSION) {
            return Ok(true);
        }
        let done = from.as_deref().and_then(Progress::read).map_or(0, |progress| progress.steps);
        let todo = adapter.tables().shard(&tables).await?;
        let Some(step) = todo.first() else {
            let note = Note { key: key.clone(), from, to: SYSTEM_VERSION.into() };
            run(adapter, &Step::new(""), &note).await?;
            continue;
        };
        if *steps == 0 {
            return Ok(false);
        }
        *steps -= 1;
        let to = Progress { version: 0, steps: done + 1 }.text();
        let note = Note { key: key.clone(), from: from.clone(), to };
        if let Err(error) = run(adapter, step, &note).await
            && setting(adapter, &key).await? == from
        {
            return Err(error);
        }
    }
    Err(refused(Code::SchemaInvalid, format!("the tables of schema \"{}\" do not get their shards", schema.name)))
}

fn steps_of(adapter: &dyn Adapter, schema: &Schema, version: usize, operation: &Operation) -> Result<Vec<Step>> {
    let (before, after) = (schema.tables_at(version)?, schema.tables_at(version + 1)?);
    let find = |tables: &Siblings, name: &str| {
        tables.get(name).cloned().ok_or_else(|| refused(Code::UnknownTable, format!("there is no table \"{name}\"")))
    };
    Ok(match operation {
        Operation::NoOp { .. } => Vec::new(),
        Operation::AddTable(table) => adapter.tables().create(&*find(&after, &table.name)?, &after),
        Operation::AlterTable { table, .. } => {
            adapter.tables().alter(&*find(&before, table)?, &*find(&after, table)?, &after)
        }
    })
}

/// What a migration would do, without doing it.
pub async fn plan(adapter: &dyn Adapter, schema: &Schema) -> Result<Plan> {
    let now = progress(adapter, schema).await?.0;
    check_order(schema, now)?;
    let mut steps = Vec::new();
    let is_done = adapter.tables().exists(&*settings_table()?).await?
        && setting(adapter, &system_key(schema)).await?.as_deref() == Some(SYSTEM_VERSION);
    if !is_done {
        steps.extend(adapter.tables().shard(&schema.tables_at(now.version)?).await?);
    }
    for (version, operation) in schema.operations.iter().enumerate().skip(now.version) {
        let skipped = if version == now.version { now.steps } else { 0 };
        steps.extend(steps_of(adapter, schema, version, operation)?.into_iter().skip(skipped));
    }
    Ok(Plan { from: now.version, to: schema.version(), steps })
}
