//! What has been committed, in order: the log of a shard, as its clients read it.
//!
//! An entry is written in the transaction that it tells of, with the next version of its shard's clock, which is held
//! until the commit. So versions are dense, their order is that of commits, and a reader that asks for what is behind a
//! version misses nothing: a lower version cannot appear later.
//!
//! Entries below the floor may be gone. A reader that is below it, or whose cursor is of another log, is told to begin
//! anew with a snapshot.
//!
//! Invariants (docs/invariants.md):
//!   * I-29  the outbox holds exactly what was committed, in commit order, without gap or repeat
//!   * I-30  a reader never skips an entry
//!   * I-31  versions, ids and order stay when the shard's tenant moves
//!   * I-32  the id of an entry never changes

use crate::adapter::{Access, Assign, Clock, Mode, Row, Select, Transaction};
use crate::condition::{Condition, Op, compares, eq};
use crate::context::GlobalScope;
use crate::error::{Code, Error, Result, refused};
use crate::internal::{OUTBOX, REQUESTS};
use crate::query::Direction;
use crate::schema::Table;
use crate::shard::Shard;
use crate::store::Store;
use crate::uow::apply::{by_id, json};
use crate::values::ms_of;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use isles_kernel::sync::{
    Cursor, Entry, EntryId, MAX_PAGE_BYTES, MAX_PAGE_ENTRIES, OutboxPage, OutboxQuery, RowKey, RowVersion,
    SnapshotPage, SnapshotQuery, SnapshotRow, Version,
};
use isles_kernel::value::Value;
use std::sync::Arc;
use std::time::Duration;

/// How often one who waits looks by itself: other processes' commits are not told here.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Shards that are asked for at a time.
const SHARDS_AT_ONCE: usize = 1_000;
/// Rows that are read at first, when nobody knows yet how large they are.
const FIRST_ROWS: usize = 8;
/// Bytes of rows that are read at a time, if those to come are as large as those that came.
const MAX_BYTES_AT_ONCE: usize = 2 * MAX_PAGE_BYTES;

fn wrong(error: impl std::fmt::Display) -> Error {
    refused(Code::InvalidValue, format!("the outbox is damaged: {error}"))
}

pub(crate) fn resync() -> Error {
    refused(Code::ResyncRequired, "the cursor is not in this log any more").with_hint("begin anew with a snapshot")
}

fn version(number: i64) -> Result<Version> {
    Version::new(number.unsigned_abs()).map_err(wrong)
}

/// The newest entry.
pub(crate) fn head(clock: &Clock) -> Result<Cursor> {
    match &clock.last {
        Some(id) if clock.version > 0 => Cursor::at(version(clock.version)?, id.parse().map_err(wrong)?).map_err(wrong),
        _ => Ok(Cursor::START),
    }
}

/// An entry as clients see it, and the rows that it changed as they were.
pub(crate) struct Read {
    pub(crate) entry: Entry,
    pub(crate) before: Vec<Option<isles_kernel::sync::Values>>,
    bytes: usize,
}

fn read(row: &Row) -> Result<Read> {
    let text = |column: &str| row.values.text(column).unwrap_or("[]");
    let id: EntryId = row.id.parse().map_err(wrong)?;
    let entry = Entry {
        version: version(row.values.int("version").unwrap_or_default())?,
        id,
        prev: row.values.text("prev").map(str::parse).transpose().map_err(wrong)?,
        at_ms: ms_of(row.values.get("at")).unwrap_or_default().unsigned_abs(),
        request_id: row.values.text("requestId").map(str::parse).transpose().map_err(wrong)?,
        mutations: serde_json::from_str(text("mutations")).map_err(wrong)?,
    };
    Ok(Read { entry, before: serde_json::from_str(text("before")).map_err(wrong)?, bytes: text("mutations").len() })
}

/// How many rows are read at a time: what is in memory at once is a few rows or a few pages, whatever was asked for.
pub(crate) struct Batch(usize);

impl Default for Batch {
    fn default() -> Batch {
        Batch(FIRST_ROWS)
    }
}

impl Batch {
    pub(crate) fn rows(&self) -> usize {
        self.0
    }

    /// The next ones are taken to be as large as these.
    pub(crate) fn learn(&mut self, rows: &[Row]) {
        let bytes: usize = rows.iter().flat_map(|row| row.values.0.values()).map(Value::weight).sum();
        if !rows.is_empty() {
            self.0 = (MAX_BYTES_AT_ONCE / (bytes / rows.len()).max(1)).clamp(1, MAX_PAGE_ENTRIES as usize);
        }
    }
}

/// Entries behind a version, some at a time.
pub(crate) struct Reading {
    table: Arc<Table>,
    after: i64,
    /// How many more are wanted.
    left: usize,
    batch: Batch,
}

impl Reading {
    pub(crate) fn new(table: &Arc<Table>, after: Version, limit: usize) -> Result<Reading> {
        let after = i64::try_from(after.get()).map_err(wrong)?;
        Ok(Reading { table: table.clone(), after, left: limit, batch: Batch::default() })
    }

    /// The next ones; none at the end.
    pub(crate) async fn some(&mut self, tx: &mut dyn Transaction) -> Result<Vec<Read>> {
        let limit = self.batch.rows().min(self.left);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let order = vec![("version".into(), Direction::Asc)];
        let condition = compares("version", Op::Gt, self.after);
        let select = Select { table: self.table.clone(), condition, order, after: None, limit };
        let rows = tx.select(&select).await?;
        self.batch.learn(&rows);
        let found = rows.iter().map(read).collect::<Result<Vec<_>>>()?;
        self.left = if found.len() < limit { 0 } else { self.left - limit };
        if let Some(last) = found.last() {
            self.after = i64::try_from(last.entry.version.get()).map_err(wrong)?;
        }
        Ok(found)
    }
}

/// Refuses a cursor that cannot be read from.
pub(crate) async fn check_cursor(
    tx: &mut dyn Transaction,
    table: &Arc<Table>,
    clock: &Clock,
    cursor: Cursor,
) -> Result<()> {
    let at = i64::try_from(cursor.version().get()).map_err(wrong)?;
    if at < clock.floor || at > clock.version {
        return Err(resync());
    }
    let Some(id) = cursor.entry() else { return Ok(()) };
    let rows = tx.select(&by_id(table, eq("version", at), 1)).await?;
    match rows.first() {
        Some(row) if row.id == id.to_string() => Ok(()),
        _ => Err(resync()),
    }
}

impl Store {
    /// A page of the outbox of the caller's shard. It waits for news if it was asked to.
    pub async fn outbox(&self, query: &OutboxQuery) -> Result<OutboxPage> {
        let access = self.scoped()?;
        self.check_partition(&access, query.partition.as_ref())?;
        let surroundings = self.surroundings();
        let until = surroundings.elapsed() + Duration::from_millis(query.wait());
        let after = query.after.unwrap_or(Cursor::START);
        loop {
            let news = self.news(access.owner());
            let told = news.as_ref().map(|news| news.come.notified());
            // From here on nothing is missed, whether it is read now or told.
            let mut told = std::pin::pin!(told);
            if let Some(told) = told.as_mut().as_pin_mut() {
                told.enable();
            }
            let page = self.outbox_page(&access, after, query.entries() as usize).await?;
            let now = surroundings.elapsed();
            if !page.entries.is_empty() || now >= until {
                return Ok(page);
            }
            match (told.as_pin_mut(), news.as_ref().map(|news| news.look())) {
                // Another one looks for all who wait for this shard.
                (Some(told), Some(None)) => drop(surroundings.within(until - now, told).await),
                (Some(told), _) => self.look_until(&access, page.head, until, told).await?,
                (None, _) => surroundings.sleep(LOOK_EVERY.min(until - now)).await,
            }
        }
    }

    /// Looks at a shard's clock, for who waits for news of it, until there may be something to read.
    async fn look_until(
        &self,
        access: &Access,
        head: Cursor,
        until: Duration,
        mut told: std::pin::Pin<&mut tokio::sync::futures::Notified<'_>>,
    ) -> Result<()> {
        let surroundings = self.surroundings();
        loop {
            let now = surroundings.elapsed();
            if now >= until || surroundings.within(LOOK_EVERY.min(until - now), told.as_mut()).await.is_some() {
                return Ok(());
            }
            let mut tx = self.adapter().begin(access, Mode::Read).await?;
            let clock = tx.clock().await?;
            tx.commit().await?;
            if self::head(&clock)? != head {
                return Ok(());
            }
        }
    }

    /// The access of a client: one shard, and not all.
    pub(crate) fn scoped(&self) -> Result<Access> {
        match self.access()? {
            Access::Global => Err(refused(Code::GlobalScope, "clients read one shard")),
            access => Ok(access),
        }
    }

    pub(crate) fn check_partition(
        &self,
        access: &Access,
        given: Option<&isles_kernel::sync::PartitionId>,
    ) -> Result<()> {
        let own = self.partition(access.owner())?;
        match given.is_none_or(|given| *given == own) {
            true => Ok(()),
            false => Err(refused(Code::WrongPartition, "the data is of another partition")
                .with_hint("wipe what was kept and begin anew")),
        }
    }

    pub(crate) async fn outbox_page(&self, access: &Access, after: Cursor, limit: usize) -> Result<OutboxPage> {
        self.check_bound(access).await?;
        let table = self.internal(OUTBOX)?;
        let mut tx = self.adapter().begin(access, Mode::Read).await?;
        let clock = tx.clock().await?;
        check_cursor(&mut *tx, &table, &clock, after).await?;
        let mut reading = Reading::new(&table, after.version(), limit)?;
        let (mut page, mut bytes): (Vec<Entry>, usize) = (Vec::new(), 0);
        'page: loop {
            let found = reading.some(&mut *tx).await?;
            if found.is_empty() {
                break;
            }
            for Read { entry, bytes: own, .. } in found {
                bytes += own;
                if bytes > MAX_PAGE_BYTES && !page.is_empty() {
                    break 'page;
                }
                page.push(entry);
            }
        }
        tx.commit().await?;
        let next = page.last().and_then(Entry::cursor).unwrap_or(after);
        let (head, floor) = (head(&clock)?, version(clock.floor)?);
        Ok(OutboxPage { partition: self.partition(access.owner())?, entries: page, next, head, floor })
    }

    /// A page of the rows of the caller's shard, in order of schema, table and id.
    pub async fn snapshot(&self, query: &SnapshotQuery) -> Result<SnapshotPage> {
        let access = self.scoped()?;
        self.check_partition(&access, query.partition.as_ref())?;
        self.check_bound(&access).await?;
        let after = query.after.as_ref().map(|token| Place::read(token.as_str())).transpose()?;
        let limit = query.rows() as usize;
        let mut tx = self.adapter().begin(&access, Mode::Read).await?;
        let clock = tx.clock().await?;
        let mut rows: Vec<SnapshotRow> = Vec::new();
        let mut bytes = 0;
        let mut full = false;
        for (key, fragment) in self.fragments() {
            for table in fragment.schema.tables().filter(|table| fragment.publishes(&table.name)) {
                let from = match &after {
                    Some(place) if (&place.schema, &place.table) > (&key, &table.name) => continue,
                    Some(place) if (&place.schema, &place.table) == (&key, &table.name) => {
                        Some(vec![isles_kernel::value::Value::Text(place.id.clone())])
                    }
                    _ => None,
                };
                if full {
                    break;
                }
                let room = limit + 1 - rows.len();
                let select = Select { after: from, ..by_id(table, Condition::All, room) };
                for row in tx.select(&select).await? {
                    bytes += row.values.0.values().map(isles_kernel::value::Value::weight).sum::<usize>();
                    full = full || rows.len() == limit || (bytes > MAX_PAGE_BYTES && !rows.is_empty());
                    if full {
                        break;
                    }
                    let row_key = RowKey::new(key.as_str(), table.name.as_str(), row.id.as_str()).map_err(wrong)?;
                    let version = RowVersion(row.version.unsigned_abs());
                    rows.push(SnapshotRow { key: row_key, version, values: json(&row.values)? });
                }
            }
        }
        tx.commit().await?;
        let next = match rows.last().filter(|_| full) {
            Some(last) => Some(Place::of(&last.key).token().parse().map_err(wrong)?),
            None => None,
        };
        Ok(SnapshotPage { partition: self.partition(access.owner())?, cursor: head(&clock)?, rows, next })
    }

    /// Keeps the newest entries of a shard, and removes older ones with the records of requests; the floor.
    pub async fn trim(&self, shard: &Shard, keep: u64) -> Result<u64> {
        let access = self.access_to(shard).await?;
        let keep = i64::try_from(keep).unwrap_or(i64::MAX);
        let mut tx = self.adapter().begin(&access, Mode::Read).await?;
        let clock = tx.clock().await?;
        tx.commit().await?;
        let floor = clock.version.saturating_sub(keep).max(clock.floor);
        self.raise_floor(&access, floor).await?;
        for name in [OUTBOX, REQUESTS] {
            self.remove(&access, name, &compares("version", Op::Lt, floor)).await?;
        }
        Ok(floor.unsigned_abs())
    }

    /// Gives rows that have no shard theirs, in all these tables together, those that others refer to first. Clients of
    /// the shards that have rows now begin anew.
    pub async fn assign(&self, _right: &GlobalScope, tables: &[Arc<Table>], by: &Assign) -> Result<u64> {
        let count = self.adapter().tables().assign(tables, by).await?;
        let mut shards = std::collections::BTreeSet::new();
        match by {
            Assign::To(shard) => {
                shards.insert(shard.clone());
            }
            Assign::Column(_) => {
                for table in tables {
                    self.with_rows(table, &mut shards).await?;
                }
            }
        }
        for shard in shards {
            self.begin_anew(&shard).await?;
        }
        Ok(count)
    }

    /// Adds the shards that have rows of a table.
    pub(crate) async fn with_rows(
        &self,
        table: &Arc<Table>,
        shards: &mut std::collections::BTreeSet<Shard>,
    ) -> Result<()> {
        let mut after: Option<Shard> = None;
        loop {
            let some = self.adapter().shards_with(table, &Condition::All, after.as_ref(), SHARDS_AT_ONCE).await?;
            after = some.last().filter(|_| some.len() == SHARDS_AT_ONCE).cloned();
            for shard in some {
                shards.insert(self.home_of(&shard).await?);
            }
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Tells the clients of a shard to begin anew: rows have come or gone beside the outbox.
    pub(crate) async fn begin_anew(&self, shard: &Shard) -> Result<()> {
        let access = self.access_to(shard).await?;
        let id = self.surroundings().new_id();
        let mut tx = self.adapter().begin(&access, Mode::Write).await?;
        let clock = tx.tick(crate::adapter::Tick::Next(&id.to_string())).await?;
        let values = crate::values::Values::new()
            .set("version", clock.version)
            .set("prev", clock.prev.clone())
            .set("at", crate::values::timestamp_ms(self.now_ms()))
            .set("mutations", isles_kernel::value::Value::Json("[]".into()))
            .set("before", isles_kernel::value::Value::Json("[]".into()));
        let row = Row { id: id.to_string(), internal: self.new_internal(), version: 0, values };
        tx.insert(&self.internal(OUTBOX)?, &row).await?;
        tx.set_floor(clock.version).await?;
        tx.commit().await?;
        self.tell(shard, true, false);
        Ok(())
    }
}

/// A row's place in a snapshot.
#[derive(serde::Serialize, serde::Deserialize)]
struct Place {
    schema: String,
    table: String,
    id: String,
}

impl Place {
    fn of(key: &RowKey) -> Place {
        Place { schema: key.schema.clone(), table: key.table.clone(), id: key.external_id.clone() }
    }

    fn token(&self) -> String {
        BASE64.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    fn read(token: &str) -> Result<Place> {
        let invalid = || refused(Code::InvalidCursor, "the token is not one of a snapshot");
        let bytes = BASE64.decode(token).map_err(|_| invalid())?;
        serde_json::from_slice(&bytes).map_err(|_| invalid())
    }
}
