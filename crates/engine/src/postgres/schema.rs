//! The schema a shard holds, kept in the shard, and its history.
//!
//! A change runs in one transaction with the new version. Old versions stay as long as the log has records that were
//! written under them: an image has no names or kinds of its own, so it is read with the schema of its time. That
//! is the latest one whose `after_seq` is below the record's position. `after_seq` is taken while the change holds its
//! locks on the tables it alters, so no record of theirs can be on the wrong side of it.

use super::ddl::{self, Capture};
use super::pool::Conn;
use super::tenancy::{BACK, OWN};
use super::{fault, fence};
use crate::error::{Result, ShardError};
use crate::shard::{SchemaStep, needs_schema};
use isles_kernel::names::SchemaVersion;
use isles_kernel::schema::{Schema, SchemaChange};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A schema change waits so long for the transactions that use its tables; while it waits, they queue behind it.
const LOCK_LIMIT_MS: u32 = 10_000;

/// The newest schema.
pub(super) async fn load(conn: &Conn) -> Result<Schema> {
    let text = "SELECT body FROM _isles.schema ORDER BY version DESC LIMIT 1";
    match conn.query_opt(text, &[]).await.map_err(fault::before_commit)? {
        Some(row) => parse(row.get(0)),
        None => Ok(Schema::default()),
    }
}

pub(super) async fn version(conn: &Conn) -> Result<SchemaVersion> {
    let text = "SELECT coalesce(max(version), 0) FROM _isles.schema";
    let row = conn.query_one(text, &[]).await.map_err(fault::before_commit)?;
    Ok(SchemaVersion(row.get::<_, i64>(0) as u64))
}

fn parse(body: &str) -> Result<Schema> {
    serde_json::from_str(body).map_err(|error| ShardError::Corrupt(format!("the stored schema is not valid: {error}")))
}

/// Every schema that a record of the log may need, by the position after which it holds.
pub(super) async fn history(conn: &Conn) -> Result<BTreeMap<i64, Arc<Schema>>> {
    let text = "SELECT after_seq, body FROM _isles.schema ORDER BY version";
    let rows = conn.query(text, &[]).await.map_err(fault::before_commit)?;
    rows.iter().map(|row| Ok((row.get(0), Arc::new(parse(row.get(1))?)))).collect()
}

/// Makes a change of an open transaction. If it fails, so has the transaction: a savepoint that it goes back to brings back
/// the client's role.
pub(super) async fn step(conn: &Conn, step: &SchemaStep) -> Result<()> {
    let limits = format!("{OWN}; SET LOCAL lock_timeout = {LOCK_LIMIT_MS}; SET LOCAL client_min_messages = error");
    conn.batch_execute(&limits).await.map_err(fault::before_commit)?;
    let capture = lock(conn).await?;
    let current = load(conn).await?;
    if current.version != step.from {
        return Err(ShardError::Conflict(format!("the schema is at version {}, not {}", current.version, step.from)));
    }
    let next = current.apply(&step.changes)?;
    run(conn, &current, &step.changes, capture).await?;
    store(conn, &next).await?;
    if !step.fences.is_empty() {
        fence::open_missing(conn, &step.fences).await?;
    }
    conn.batch_execute(&format!("SET LOCAL lock_timeout = 0; {BACK}")).await.map_err(fault::before_commit)
}

/// Changes of the schema and switches of the capture take turns: a new table must know whether it is captured.
async fn lock(conn: &Conn) -> Result<Capture> {
    let lock = "SELECT EXISTS (SELECT FROM _isles.consumer) FROM _isles.meta FOR UPDATE OF meta";
    let row = conn.query_one(lock, &[]).await.map_err(fault::before_commit)?;
    Ok(if row.get(0) { Capture::On } else { Capture::Off })
}

/// Applies changes in one transaction. Returns the schema that holds now, and whether that is new.
pub(super) async fn apply(conn: &Conn, from: SchemaVersion, changes: &[SchemaChange]) -> Result<(Schema, bool)> {
    let (capture, current) = begin(conn).await?;
    if current.version == from {
        let next = current.apply(changes)?;
        run(conn, &current, changes, capture).await?;
        store(conn, &next).await?;
        return Ok((next, true));
    }
    if current.version == from.next() && outcome_before(conn, from, changes).await?.hash() == current.hash() {
        return Ok((current, false));
    }
    Err(ShardError::invalid(format!("the shard's schema is at version {}, not at {from}", current.version)))
}

/// Begins a transaction that changes the schema: whether tables are captured, and the schema that holds.
async fn begin(conn: &Conn) -> Result<(Capture, Schema)> {
    let begin =
        format!("BEGIN READ WRITE; SET LOCAL lock_timeout = {LOCK_LIMIT_MS}; SET LOCAL client_min_messages = error");
    conn.batch_execute(&begin).await.map_err(fault::before_commit)?;
    Ok((lock(conn).await?, load(conn).await?))
}

/// Makes a whole schema where there is none, in one transaction. Returns the schema that holds now, and whether that is
/// new.
pub(super) async fn adopt(conn: &Conn, schema: &Schema) -> Result<(Schema, bool)> {
    let (capture, current) = begin(conn).await?;
    let is_new = needs_schema(&current, schema)?;
    if is_new {
        run(conn, &current, &schema.script(), capture).await?;
        store(conn, schema).await?;
    }
    Ok((schema.clone(), is_new))
}

/// What `changes` would have made of version `from`.
async fn outcome_before(conn: &Conn, from: SchemaVersion, changes: &[SchemaChange]) -> Result<Schema> {
    let text = "SELECT body FROM _isles.schema WHERE version = $1";
    let before = match conn.query_opt(text, &[&(from.0 as i64)]).await.map_err(fault::before_commit)? {
        Some(row) => parse(row.get(0))?,
        None => Schema::default(),
    };
    Ok(before.apply(changes)?)
}

/// Runs the statements. Each change is printed from the schema that the ones before it have made.
async fn run(conn: &Conn, from: &Schema, changes: &[SchemaChange], capture: Capture) -> Result<()> {
    let mut schema = from.clone();
    for change in changes {
        let next = schema.apply(std::slice::from_ref(change))?;
        ddl::check(change, &next)?;
        for statement in ddl::print(change, &schema, &next, capture) {
            conn.batch_execute(&statement).await.map_err(fault::before_commit)?;
        }
        schema = next;
    }
    Ok(())
}

async fn store(conn: &Conn, schema: &Schema) -> Result<()> {
    let body = serde_json::to_string(schema).map_err(|error| ShardError::invalid(error.to_string()))?;
    // JSON has no NaN and no infinite floats; a default that would be lost is refused now rather than missed later.
    if parse(&body).ok().as_ref() != Some(schema) {
        return Err(ShardError::invalid("a default of the schema cannot be stored"));
    }
    let insert = "INSERT INTO _isles.schema (version, after_seq, body) \
                  SELECT $1::bigint, CASE WHEN is_called THEN last_value ELSE 0 END, $2::text FROM _isles.log_seq";
    conn.execute(insert, &[&(schema.version.0 as i64), &body]).await.map_err(fault::before_commit)?;
    // What no record needs goes, but for the version before this one, which says whether a change was made already.
    let prune = "DELETE FROM _isles.schema AS old USING _isles.schema AS next, _isles.meta AS meta \
                 WHERE next.version = old.version + 1 AND next.after_seq <= meta.trimmed AND old.version < $1::bigint - 1";
    conn.execute(prune, &[&(schema.version.0 as i64)]).await.map_err(fault::before_commit)?;
    Ok(())
}

/// Whether the tables are what the schema says; someone may have changed them by hand.
pub(super) async fn check_drift(conn: &Conn, schema: &Schema) -> Result<()> {
    let text = "SELECT _isles.relation(n.nspname, c.relname), a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull \
                FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid \
                WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', '_isles') AND c.relkind = 'r' \
                AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, a.attnum";
    let rows = conn.query(text, &[]).await.map_err(fault::before_commit)?;
    let mut found: BTreeMap<String, Vec<(String, String, bool)>> = BTreeMap::new();
    for row in &rows {
        found.entry(row.get(0)).or_default().push((row.get(1), row.get(2), row.get(3)));
    }
    for table in schema.tables.values() {
        let actual = found.get(&table.name).map_or(&[][..], Vec::as_slice);
        let expected = ddl::expected_columns(table);
        let same = actual.len() == expected.len()
            && actual.iter().zip(&expected).all(|(a, e)| a.0 == e.0 && a.1 == e.1 && a.2 == e.2);
        if !same {
            let message = format!("table \"{}\" is not as Isles made it: it was changed by hand", table.name);
            return Err(ShardError::Corrupt(message));
        }
    }
    Ok(())
}
