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
    Cursor, Entry, EntryId, MAX_PAGE_BYTES, OutboxPage, OutboxQuery, RowKey, RowVersion, SnapshotPage, SnapshotQuery,
    SnapshotRow, Version,
};
use std::sync::Arc;
use std::time::Duration;

/// How often one who waits looks by itself: other processes' commits are not told here.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Shards whose clients are told to begin anew.
const MAX_ASSIGNED_SHARDS: usize = 100_000;
/// Rows that are removed in one transaction.
const TRIM_ROWS: usize = 500;

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

/// Entries behind a version.
pub(crate) async fn entries(
    tx: &mut dyn Transaction,
    table: &Arc<Table>,
    after: Version,
    limit: usize,
) -> Result<Vec<Read>> {
    let after = i64::try_from(after.get()).map_err(wrong)?;
    let order = vec![("version".into(), Direction::Asc)];
    let condition = compares("version", Op::Gt, after);
    let rows = tx.select(&Select { table: table.clone(), condition, order, after: None, limit }).await?;
    rows.iter().map(read).collect()
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
        loop {
            let news = self.news(access.owner());
            let told = news.as_ref().map(|news| news.notified());
            let page =
                self.outbox_page(&access, query.after.unwrap_or(Cursor::START), query.entries() as usize).await?;
            let now = surroundings.elapsed();
            if !page.entries.is_empty() || now >= until {
                return Ok(page);
            }
            let wait = LOOK_EVERY.min(until - now);
            match told {
                // Either way there may be something to read.
                Some(told) => drop(surroundings.within(wait, told).await),
                None => surroundings.sleep(wait).await,
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
        let found = entries(&mut *tx, &table, after.version(), limit).await?;
        tx.commit().await?;
        let mut bytes = 0;
        let mut page = Vec::new();
        for Read { entry, bytes: own, .. } in found {
            bytes += own;
            if bytes > MAX_PAGE_BYTES && !page.is_empty() {
                break;
            }
            page.push(entry);
        }
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
        let access = self.access_of(shard);
        let keep = i64::try_from(keep).unwrap_or(i64::MAX);
        let mut tx = self.adapter().begin(&access, Mode::Write).await?;
        let clock = tx.tick(crate::adapter::Tick::Hold).await?;
        let floor = clock.version.saturating_sub(keep).max(clock.floor);
        // Readers are told before anything goes.
        tx.set_floor(floor).await?;
        tx.commit().await?;
        for name in [OUTBOX, REQUESTS] {
            while self.remove_below(&access, &self.internal(name)?, floor).await? {}
        }
        Ok(floor.unsigned_abs())
    }

    async fn remove_below(&self, access: &Access, table: &Arc<Table>, floor: i64) -> Result<bool> {
        let mut tx = self.adapter().begin(access, Mode::Write).await?;
        let rows = tx.select(&by_id(table, compares("version", Op::Lt, floor), TRIM_ROWS)).await?;
        for row in &rows {
            tx.delete(table, &row.id, row.version).await?;
        }
        tx.commit().await?;
        Ok(rows.len() == TRIM_ROWS)
    }

    /// The access of a shard, for our own work in it.
    pub(crate) fn access_of(&self, shard: &Shard) -> Access {
        match self.strategy() {
            Some(crate::shard::Strategy::Adapter { .. }) => Access::Whole(shard.clone()),
            _ => Access::Shard(shard.clone()),
        }
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
                    shards.extend(self.adapter().shards_with(table, &Condition::All, MAX_ASSIGNED_SHARDS).await?);
                }
            }
        }
        for shard in shards {
            self.begin_anew(&shard).await?;
        }
        Ok(count)
    }

    /// Tells the clients of a shard to begin anew: rows have come or gone beside the outbox.
    pub(crate) async fn begin_anew(&self, shard: &Shard) -> Result<()> {
        let access = self.access_of(shard);
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
