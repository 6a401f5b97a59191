//! Rows as they stand, copied to the taker while their changes are mirrored.
//!
//! Capture has begun before the first snapshot is taken, so whatever changes after any of them comes with the mirror,
//! and a copied row loses against that. So each page may come from a snapshot of its own: none is held for long, and a
//! copy that was interrupted goes on with a new one.
//!
//! ```text
//! snapshot ─ page after the cursor ─► taker: rows and cursor, one transaction
//! ```
//!
//! Each table has a stream of its own on the taker, for its cursor; some tables are copied side by side.

use super::lane::{Halt, Lane};
use super::pace::{Others, Pace};
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use isles_engine::shard::{Batch, BatchKind, Engine, Incoming, KeyRange, Page, Scope, Snapshot};
use isles_kernel::moves::{Span, TableCopy, Units};
use isles_kernel::names::TenantId;
use isles_kernel::schema::{Table, TableKind, Unit};
use isles_kernel::value::{Damaged, Decoder, Encoder, Value};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Tables that are copied side by side.
const SIDE_BY_SIDE: usize = 4;
/// A snapshot is held for so long: an older one keeps a shard from tidying up.
const SNAPSHOT_TIME: Duration = Duration::from_secs(2);
/// Tenants whose names are read at once, and whose rows are read at once.
const NAMES: usize = 1_000;
const TENANTS: usize = 100;

/// How far each table is, and how many rows there are.
#[derive(Debug, Clone, Default)]
pub(super) struct Copied {
    pub(super) tables: BTreeMap<String, TableCopy>,
    pub(super) expected: Option<u64>,
}

#[derive(Clone, Default)]
pub(super) struct Progress(Arc<Mutex<Copied>>);

impl Progress {
    fn lock(&self) -> MutexGuard<'_, Copied> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn copied(&self) -> Copied {
        self.lock().clone()
    }

    pub(super) fn expect(&self, rows: Option<u64>) {
        self.lock().expected = rows;
    }

    fn note(&self, table: &str, cursor: &Cursor) {
        self.lock().tables.insert(table.into(), TableCopy { rows: cursor.rows, done: cursor.done });
    }
}

/// How far one table is; stored with its rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Cursor {
    done: bool,
    rows: u64,
    /// Tenants up to this one are copied, where all tenants of a bucket are.
    tenant: Option<String>,
    /// The last key that was copied.
    after: Option<Vec<Value>>,
}

impl Cursor {
    fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        out.bool(self.done);
        out.varint(self.rows);
        out.value(&self.tenant.as_ref().map_or(Value::Null, |name| Value::text(name.as_str())));
        let after = self.after.as_deref();
        out.bool(after.is_some());
        out.row(after.unwrap_or_default());
        out.bytes
    }

    fn decode(bytes: &[u8]) -> Result<Cursor, Damaged> {
        let mut input = Decoder::new(bytes);
        let done = input.value()? == Value::Bool(true);
        let rows = input.varint()?;
        let tenant = match input.value()? {
            Value::Text(name) => Some(name),
            _ => None,
        };
        let has_key = input.value()? == Value::Bool(true);
        let key = input.row()?;
        Ok(Cursor { done, rows, tenant, after: has_key.then_some(key) })
    }
}

/// Copies what the tables have of what moves.
pub(super) async fn copy(lane: &Lane, tables: &[String], progress: &Progress) -> Result<(), Halt> {
    if progress.copied().expected.is_none() {
        // It is for people: a copy goes on without it.
        progress.expect(count(lane, tables).await.ok());
    }
    let mut each: Vec<BoxFuture<'_, Result<(), Halt>>> = Vec::with_capacity(tables.len());
    for (number, table) in tables.iter().enumerate() {
        each.push(Box::pin(copy_table(lane, number, table, progress)));
    }
    stream::iter(each).buffer_unordered(SIDE_BY_SIDE).try_collect::<Vec<()>>().await.map(drop)
}

async fn copy_table(lane: &Lane, number: usize, name: &str, progress: &Progress) -> Result<(), Halt> {
    let stream = lane.copy_stream(number);
    let state = lane.taker().await?.open_stream(&stream, lane.driver).await?;
    let damaged = |_| isles_engine::error::ShardError::Corrupt("the cursor of a copy cannot be read".into());
    let mut cursor =
        state.cursor.map_or_else(|| Ok(Cursor::default()), |bytes| Cursor::decode(&bytes)).map_err(damaged)?;
    progress.note(name, &cursor);
    let engine = lane.database.shards.engine(&lane.taker).unwrap_or(Engine::Sqlite);
    let (env, mut pace) = (lane.database.env.clone(), Pace::new(engine));
    while !cursor.done {
        let mut snapshot = lane.giver().await?.snapshot().await?;
        let table = snapshot.schema().table(name).map_err(isles_engine::error::ShardError::from)?.clone();
        let until = env.elapsed() + SNAPSHOT_TIME;
        while !cursor.done && env.elapsed() < until {
            let (before, began) = (lane.work_of_others(), env.elapsed());
            let (rows, next) = next_page(lane, &mut *snapshot, &table, &cursor, pace.rows()).await?;
            let count = rows.len();
            let (driver, cursor_then) = (Some(lane.driver), Some(next.encode()));
            let batch = Batch { driver, kind: BatchKind::Copy, cursor: cursor_then, ..Batch::new(&stream, rows) };
            lane.taker().await?.apply(batch).await?;
            cursor = next;
            progress.note(name, &cursor);
            lane.database.moves.counted.copied(count);
            let others = if lane.work_of_others() == before { Others::Idle } else { Others::Working };
            let rest = pace.learn(count, env.elapsed().saturating_sub(began), others);
            if rest > Duration::ZERO {
                env.sleep(rest).await;
            }
        }
    }
    Ok(())
}

/// How many rows the tables have of what moves, as they stand.
pub(super) async fn count(lane: &Lane, tables: &[String]) -> Result<u64, Halt> {
    let mut rows = 0;
    for name in tables {
        let mut snapshot = lane.giver().await?.snapshot().await?;
        let Some(table) = snapshot.schema().tables.get(name).cloned() else { continue };
        rows += match reach(lane, &table) {
            Reach::Scope(scope) => snapshot.count(&KeyRange::table(name).within(scope)).await?,
            Reach::TenantsOfBuckets => count_tenants(lane, &mut *snapshot, &table).await?,
        };
    }
    Ok(rows)
}

async fn count_tenants(lane: &Lane, snapshot: &mut dyn Snapshot, table: &Table) -> Result<u64, Halt> {
    let (mut rows, mut after) = (0, None);
    loop {
        let tenants = next_tenants(lane, snapshot, table, after.as_deref()).await?;
        let Some(last) = tenants.last().map(key_of) else { return Ok(rows) };
        rows += snapshot.count(&KeyRange::table(&table.name).within(Scope::Tenants(tenants))).await?;
        after = Some(last);
    }
}

/// Some rows after the cursor, and the cursor behind them.
async fn next_page(
    lane: &Lane,
    snapshot: &mut dyn Snapshot,
    table: &Table,
    cursor: &Cursor,
    rows: usize,
) -> Result<(Vec<Incoming>, Cursor), Halt> {
    let version = lane.version(snapshot.seq());
    let (page, mut next) = match reach(lane, table) {
        Reach::Scope(scope) => {
            let page = read(snapshot, table, scope, cursor.after.clone(), rows).await?;
            let next = Cursor { done: page.next.is_none(), after: page.next.clone(), ..cursor.clone() };
            (page, next)
        }
        Reach::TenantsOfBuckets => {
            let tenants = next_tenants(lane, snapshot, table, cursor.tenant.as_deref()).await?;
            let Some(last) = tenants.last().map(key_of) else {
                return Ok((Vec::new(), Cursor { done: true, ..cursor.clone() }));
            };
            let page = read(snapshot, table, Scope::Tenants(tenants), cursor.after.clone(), rows).await?;
            let (tenant, after) = match page.next.clone() {
                Some(key) => (cursor.tenant.clone(), Some(key)),
                None => (Some(last), None),
            };
            (page, Cursor { tenant, after, ..cursor.clone() })
        }
    };
    next.rows += page.rows.len() as u64;
    let incoming = |row: isles_engine::shard::StoredRow| Incoming {
        table: table.name.clone(),
        key: table.key_of(&row.unit, &row.values),
        unit: row.unit,
        version,
        row: Some(row.values),
    };
    Ok((page.rows.into_iter().map(incoming).collect(), next))
}

async fn read(
    snapshot: &mut dyn Snapshot,
    table: &Table,
    scope: Scope,
    after: Option<Vec<Value>>,
    rows: usize,
) -> Result<Page, Halt> {
    let range = KeyRange { table: table.name.clone(), scope, after, through: None };
    Ok(snapshot.page(&range, rows).await?)
}

/// How the rows that move are found in a table.
pub(super) enum Reach {
    Scope(Scope),
    /// Tenants hash to buckets, and no shard computes that: their names are read first.
    TenantsOfBuckets,
}

pub(super) fn reach(lane: &Lane, table: &Table) -> Reach {
    match (&lane.units, &table.kind) {
        (Units::Tenants { tenants }, _) => Reach::Scope(Scope::Tenants(tenants.iter().cloned().map(Some).collect())),
        (Units::Buckets { .. }, TableKind::Tenant) => Reach::TenantsOfBuckets,
        (Units::Buckets { buckets }, _) => {
            let range = |span: &Span| span.first.0..=span.last.0;
            Reach::Scope(Scope::Buckets(buckets.group.clone(), buckets.ranges.iter().map(range).collect()))
        }
    }
}

fn key_of(tenant: &Option<TenantId>) -> String {
    tenant.as_ref().map_or("", TenantId::as_str).into()
}

fn tenant_of(key: &str) -> Option<TenantId> {
    TenantId::new(key).ok()
}

/// The next tenants of a table that move, after one.
pub(super) async fn next_tenants(
    lane: &Lane,
    snapshot: &mut dyn Snapshot,
    table: &Table,
    after: Option<&str>,
) -> Result<Vec<Option<TenantId>>, Halt> {
    let (policy, mut found) = (lane.policy(), Vec::new());
    let mut last = after.map(tenant_of);
    loop {
        let names = snapshot.tenants(&table.name, last.as_ref(), NAMES).await?;
        let end = names.len() < NAMES;
        last = names.last().cloned().or(last);
        let moving = names.into_iter().filter(|name| lane.units.contains(&Unit::Tenant(name.clone()), &policy));
        found.extend(moving);
        if end || found.len() >= TENANTS {
            found.truncate(TENANTS);
            return Ok(found);
        }
    }
}

impl Lane {
    /// How much others have done on the two shards.
    pub(super) fn work_of_others(&self) -> u64 {
        self.database.statements_on([&self.giver, &self.taker])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_as_it_was() {
        let key = vec![Value::text("acme"), Value::Int(7), Value::Null];
        for tenant in [None, Some(String::new()), Some("acme".to_string())] {
            for after in [None, Some(Vec::new()), Some(key.clone())] {
                let cursor = Cursor { done: after.is_none(), rows: 12, tenant: tenant.clone(), after };
                assert_eq!(Cursor::decode(&cursor.encode()).expect("it is whole"), cursor);
            }
        }
        assert!(Cursor::decode(&[9, 9]).is_err());
    }
}
