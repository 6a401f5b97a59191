//! The change log: written by triggers in the transaction that makes the change, read without skipping one.
//!
//! Positions come from a sequence and are drawn before the commit, so they are not in commit order: position 7 may
//! be visible while the transaction that drew 6 still runs. A reader that remembers 7 would never see 6 (I-30).
//!
//!     positions  1 2 3 _ 5 6 _ 8      `_` is a gap: rolled back, lost in a crash, or not yet committed
//!     complete ──────┘
//!
//! A reader stops below the first gap that can still be filled. Whoever drew a position had a transaction id by then,
//! for the trigger fires after the row was written. So once we see a gap, we draw an id of our own ([`Marks::pending`]):
//! the one who may fill the gap has a smaller id. When no running transaction has a smaller id, the gap is dead.
//! (The snapshot's `xmax` would not do as a mark: it is above the last id that has *ended*, and one that still runs may
//! be above it.) A gap below a row that is dead stays dead, so one number, [`Marks::dead_through`], holds all we learn.
//! It is kept in memory: losing it costs a little time and nothing else.
//!
//! No position is given out that the sequence could fall behind in a crash: all are positions of visible rows.
//!
//! Capture is on while there is a reader. It is switched table by table, each switch waiting for the table's writers.
//! When the last one is switched, whoever is still running has had all its changes captured, and the position taken
//! then is a complete one.
//!
//! Triggers fire at the end of their statement, row by row, and a trigger of a client or of a foreign key may change a
//! row whose own first change is still to be logged: `UPDATE tree SET id = id + 1`, where a cascade sets the parent of
//! a row that the statement has moved already. So once a transaction has had a change within a trigger, each of its
//! entries says what the row is *now*, and not what it was when the event was queued. Then the last entry of a key,
//! which is written after the last change, has the key's last state.
//!
//! Rows of a log are images in PostgreSQL's binary form, which no session setting changes but the client's encoding,
//! and that the trigger's function pins.
//!
//! Invariants (docs/invariants.md):
//!   * I-29  the log has exactly the committed changes: it is written by the transaction itself
//!   * I-30  a reader never skips a change

use super::ddl::{self, Capture};
use super::fault;
use super::fence::LOCK_CLASS;
use super::pool::Conn;
use super::schema;
use super::value::{Field, decode, decode_record};
use crate::env::Env;
use crate::error::{Result, ShardError};
use crate::shard::ChangePage;
use isles_kernel::change::{Change, Op};
use isles_kernel::names::{BucketId, SchemaVersion, Seq, StreamId, TenantId, TxnId};
use isles_kernel::schema::{Schema, Table, TableKind, Unit};
use isles_kernel::value::{DataType, Value};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

/// Marks that wait for transactions to end; with more, a new gap waits for an old mark first.
const MAX_PENDING: usize = 64;
/// Gaps looked at in one go; the first live one ends the look anyway.
const MAX_GAPS: i64 = 1_000;
/// Records deleted by one transaction of a trim.
const TRIM_ROWS: i64 = 10_000;
/// A switch of the capture waits so long for a table's writers before it lets those behind it go first.
const SWITCH_LOCK_MS: u32 = 200;
const SWITCH_PAUSE: Duration = Duration::from_millis(50);
/// Capture that cannot be switched in this time is reported.
const SWITCH_LIMIT: Duration = Duration::from_secs(30);
/// Two switches at once take turns; slots of fences are not negative.
const CAPTURE_SLOT: i32 = -2;

/// What a reader has learned of the log's gaps.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Everything up to here is visible or will never be.
    complete: i64,
    /// Gaps below this position are dead.
    dead_through: i64,
    /// (position, id): gaps below the position are dead once every transaction below the id has ended.
    pending: VecDeque<(i64, u64)>,
}

/// One look at the log, with one snapshot.
struct Look {
    /// No transaction below this id is running.
    oldest: u64,
    trimmed: i64,
    last: i64,
    /// Gaps as (row before, row after).
    gaps: Vec<(i64, i64)>,
}

const LOOK: &str = "\
    SELECT pg_snapshot_xmin(pg_current_snapshot())::text, meta.trimmed, \
           coalesce((SELECT max(seq) FROM _isles.log), 0), \
           ARRAY(SELECT prev FROM gaps), ARRAY(SELECT seq FROM gaps) \
    FROM _isles.meta AS meta";

async fn look(conn: &Conn, base: i64) -> Result<Look> {
    let text = format!(
        "WITH gaps AS (SELECT prev, seq FROM (SELECT seq, lag(seq, 1, greatest($1, (SELECT trimmed FROM _isles.meta))) \
         OVER (ORDER BY seq) AS prev FROM _isles.log WHERE seq > $1) AS l WHERE seq > prev + 1 ORDER BY seq LIMIT {MAX_GAPS}) {LOOK}"
    );
    let row = conn.row(&text, &[&base]).await?;
    let (from, to): (Vec<i64>, Vec<i64>) = (row.get(3), row.get(4));
    Ok(Look {
        oldest: xid(row.get(0))?,
        trimmed: row.get(1),
        last: row.get(2),
        gaps: from.into_iter().zip(to).collect(),
    })
}

fn xid(text: &str) -> Result<u64> {
    text.parse().map_err(|_| ShardError::Corrupt("the server sent a transaction id that is no number".into()))
}

impl Marks {
    fn learn(&mut self, look: &Look) {
        self.complete = self.complete.max(look.trimmed);
        while let Some((position, id)) = self.pending.front().copied() {
            if look.oldest < id {
                break;
            }
            self.dead_through = self.dead_through.max(position);
            self.pending.pop_front();
        }
    }

    /// The end of the complete part, and whether a live gap ends it.
    fn end(&self, look: &Look) -> (i64, bool) {
        match look.gaps.iter().find(|(_, after)| *after > self.dead_through) {
            Some((before, _)) => ((*before).max(self.complete), true),
            // There may be more gaps than we have looked at; the rest is for the next look.
            None if look.gaps.len() as i64 == MAX_GAPS => (look.gaps.last().map_or(0, |gap| gap.1), true),
            None => (look.last.max(self.complete), false),
        }
    }

    fn wants_mark(&self, look: &Look) -> bool {
        let marked = self.pending.back().map_or(self.dead_through, |mark| mark.0);
        self.pending.len() < MAX_PENDING && look.last > marked
    }
}

/// Finds how far the log is complete, and remembers it.
pub(super) async fn complete(conn: &Conn, marks: &Mutex<Marks>) -> Result<i64> {
    let base = locked(marks).complete;
    let look = look(conn, base).await?;
    let (end, wants_mark) = {
        let mut marks = locked(marks);
        marks.learn(&look);
        let (end, gap) = marks.end(&look);
        marks.complete = marks.complete.max(end);
        (end, gap && marks.wants_mark(&look))
    };
    if wants_mark {
        // After the look, so that whoever could fill a gap that it saw has a smaller id.
        let text = "SELECT pg_current_xact_id()::text";
        let row = conn.query_one(text, &[]).await.map_err(fault::before_commit)?;
        let id = xid(row.get(0))?;
        let mut marks = locked(marks);
        if marks.wants_mark(&look) {
            marks.pending.push_back((look.last, id));
        }
    }
    Ok(end)
}

/// How far the log is complete in the snapshot of `conn`'s transaction.
pub(super) async fn complete_in_snapshot(conn: &Conn, marks: &Mutex<Marks>) -> Result<i64> {
    // Both were true before the snapshot's first statement, this one, so they are true in it.
    let (base, dead_through, pending) = {
        let marks = locked(marks);
        (marks.complete, marks.dead_through, marks.pending.clone())
    };
    let look = look(conn, base).await?;
    let mut view = Marks { complete: base, dead_through, pending };
    view.learn(&look);
    Ok(view.end(&look).0)
}

fn locked(marks: &Mutex<Marks>) -> std::sync::MutexGuard<'_, Marks> {
    marks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Schemas by the position after which they hold, as far as they are known.
pub(super) type History = Mutex<Option<Arc<BTreeMap<i64, Arc<Schema>>>>>;

/// Changes after `after`, up to where the log is complete.
pub(super) async fn changes(
    conn: &Conn,
    marks: &Mutex<Marks>,
    history: &History,
    after: Seq,
    limit: usize,
) -> Result<ChangePage> {
    let end = complete(conn, marks).await?;
    let from = position(after)?;
    let text =
        "SELECT seq, txn::text, tab, before, after FROM _isles.log WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3";
    let rows = conn.rows(text, &[&from, &end, &(limit as i64)]).await?;
    // Read last: whatever is trimmed from here on was read before.
    let state =
        conn.row("SELECT trimmed, coalesce((SELECT max(version) FROM _isles.schema), 0) FROM _isles.meta", &[]).await?;
    let trimmed: i64 = state.get(0);
    if from < trimmed {
        return Err(ShardError::Trimmed { trimmed: trimmed as u64 });
    }
    let schemas = schemas(conn, history, SchemaVersion(state.get::<_, i64>(1) as u64)).await?;
    let changes: Vec<Change> = rows.iter().map(|row| change(row, &schemas)).collect::<Result<_>>()?;
    let through = match changes.last() {
        Some(last) if changes.len() >= limit => last.seq,
        _ => Seq(end.max(from) as u64),
    };
    Ok(ChangePage { changes, through })
}

async fn schemas(conn: &Conn, history: &History, newest: SchemaVersion) -> Result<Arc<BTreeMap<i64, Arc<Schema>>>> {
    let known = history.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    let latest = known.as_ref().and_then(|known| known.values().next_back().map(|schema| schema.version));
    if let (Some(known), true) = (known, latest == Some(newest)) {
        return Ok(known);
    }
    let fresh = Arc::new(schema::history(conn).await?);
    *history.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(fresh.clone());
    Ok(fresh)
}

pub(super) async fn trimmed(client: &Client) -> Result<i64> {
    let row = client.query_one("SELECT trimmed FROM _isles.meta", &[]).await.map_err(fault::before_commit)?;
    Ok(row.get(0))
}

fn position(seq: Seq) -> Result<i64> {
    i64::try_from(seq.0).map_err(|_| ShardError::invalid("a position is below 2^63"))
}

fn change(row: &Row, schemas: &BTreeMap<i64, Arc<Schema>>) -> Result<Change> {
    let seq: i64 = row.get(0);
    let table: &str = row.get(2);
    let unknown = || ShardError::Corrupt(format!("change {seq} is of table \"{table}\", which no schema knows"));
    let (_, schema) = schemas.range(..seq).next_back().ok_or_else(unknown)?;
    let shape = schema.tables.get(table).ok_or_else(unknown)?;
    let image = |at: usize| row.get::<_, Option<&[u8]>>(at).map(|raw| stored_row(shape, raw)).transpose();
    let (before, after) = (image(3)?, image(4)?);
    let op = match (&before, &after) {
        (None, _) => Op::Insert,
        (Some(_), None) => Op::Delete,
        (Some(_), Some(_)) => Op::Update,
    };
    let (unit, values) = after.as_ref().or(before.as_ref()).ok_or_else(unknown)?;
    Ok(Change {
        seq: Seq(seq as u64),
        txn: TxnId(xid(row.get(1))?),
        schema: schema.version,
        table: table.into(),
        unit: unit.clone(),
        op,
        key: shape.key_of(unit, values),
        before: before.map(|(_, values)| values),
        after: after.map(|(_, values)| values),
    })
}

/// Unit and values of a row that `record_send` wrote.
fn stored_row(table: &Table, raw: &[u8]) -> Result<(Unit, Vec<Value>)> {
    let fields = decode_record(raw)?;
    let hidden = table.hidden_columns().len();
    if fields.len() != hidden + table.columns.len() {
        return Err(ShardError::Corrupt(format!("an image of table \"{}\" has {} columns", table.name, fields.len())));
    }
    let (head, own) = fields.split_at(hidden);
    let values =
        own.iter().zip(&table.columns).map(|(field, column)| field_value(field, column.ty)).collect::<Result<_>>()?;
    Ok((stored_unit(table, head)?, values))
}

fn stored_unit(table: &Table, head: &[Field<'_>]) -> Result<Unit> {
    let value = |at: usize, ty: DataType| head.get(at).map_or(Ok(Value::Null), |field| field_value(field, ty));
    match &table.kind {
        TableKind::Hash { .. } => unit_of(table, value(0, DataType::Int4)?),
        TableKind::Tenant => unit_of(table, value(1, DataType::Text)?),
        TableKind::Reference | TableKind::Global => Ok(Unit::Shared),
    }
}

/// The unit that a row's hidden column says: its bucket, or its tenant.
pub(super) fn unit_of(table: &Table, hidden: Value) -> Result<Unit> {
    let damaged = || ShardError::Corrupt(format!("a row of table \"{}\" has no valid unit", table.name));
    match (&table.kind, hidden) {
        (TableKind::Hash { group, .. }, Value::Int(bucket)) => {
            Ok(Unit::Bucket(group.clone(), BucketId(u32::try_from(bucket).map_err(|_| damaged())?)))
        }
        (TableKind::Tenant, Value::Null) => Ok(Unit::Tenant(None)),
        (TableKind::Tenant, Value::Text(name)) => Ok(Unit::Tenant(Some(TenantId::new(name).map_err(|_| damaged())?))),
        (TableKind::Reference | TableKind::Global, _) => Ok(Unit::Shared),
        _ => Err(damaged()),
    }
}

fn field_value(field: &Field<'_>, ty: DataType) -> Result<Value> {
    let oid = Type::from_oid(field.0).ok_or_else(|| ShardError::Corrupt(format!("an image has type {}", field.0)))?;
    decode(field.1, &oid, ty)
}

/// Registers a reader and switches the capture on. Returns where it stands.
pub(super) async fn add_consumer(conn: &Conn, env: &dyn Env, marks: &Mutex<Marks>, stream: &StreamId) -> Result<Seq> {
    take_turn(conn).await?;
    let text = "SELECT position FROM _isles.consumer WHERE stream = $1 AND position IS NOT NULL";
    if let Some(row) = conn.query_opt(text, &[&stream.as_str()]).await.map_err(fault::before_commit)? {
        return Ok(Seq(row.get::<_, i64>(0) as u64));
    }
    // Registered first, without a position: from here on new tables are captured and nothing is trimmed. Whoever
    // dies before it has a position has not been promised anything, and starts over.
    let insert = "INSERT INTO _isles.consumer (stream) VALUES ($1) ON CONFLICT DO NOTHING";
    write(conn, insert, &[&stream.as_str()]).await?;
    switch_all(conn, env, Capture::On).await?;
    let present = complete(conn, marks).await?;
    let update = "UPDATE _isles.consumer SET position = $2 WHERE stream = $1";
    write(conn, update, &[&stream.as_str(), &present]).await?;
    Ok(Seq(present as u64))
}

/// Takes a reader off; the last one switches the capture off.
pub(super) async fn remove_consumer(conn: &Conn, env: &dyn Env, stream: &StreamId) -> Result<()> {
    take_turn(conn).await?;
    write(conn, "DELETE FROM _isles.consumer WHERE stream = $1", &[&stream.as_str()]).await?;
    settle(conn, env).await
}

/// Brings a shard that was left in the midst of a switch to where it should be.
pub(super) async fn settle_if_needed(conn: &Conn, env: &dyn Env) -> Result<()> {
    let wanted = wanted_capture(conn).await?;
    if to_switch(conn, wanted).await?.is_empty() {
        return Ok(());
    }
    take_turn(conn).await?;
    settle(conn, env).await
}

async fn wanted_capture(conn: &Conn) -> Result<Capture> {
    let text = "SELECT EXISTS (SELECT FROM _isles.consumer)";
    let row = conn.query_one(text, &[]).await.map_err(fault::before_commit)?;
    Ok(if row.get(0) { Capture::On } else { Capture::Off })
}

/// Makes capture and log what the consumers want: after one has gone, and after a crash in the midst of a switch.
async fn settle(conn: &Conn, env: &dyn Env) -> Result<()> {
    let wanted = wanted_capture(conn).await?;
    switch_all(conn, env, wanted).await?;
    trim(conn).await
}

/// Switches of the capture take turns, across processes. The lock goes with the reset of the connection.
async fn take_turn(conn: &Conn) -> Result<()> {
    let text = format!("SELECT pg_advisory_lock({LOCK_CLASS}, {CAPTURE_SLOT})");
    conn.batch_execute(&text).await.map_err(fault::before_commit)
}

/// Runs one statement that writes, in a transaction of its own: sessions are read only otherwise.
async fn write(conn: &Conn, sql: &str, params: &[&(dyn tokio_postgres::types::ToSql + Sync)]) -> Result<Vec<Row>> {
    conn.batch_execute("BEGIN READ WRITE").await.map_err(fault::before_commit)?;
    let rows = conn.query(sql, params).await.map_err(fault::before_commit)?;
    conn.batch_execute("COMMIT").await.map_err(fault::during_commit)?;
    Ok(rows)
}

/// Tables whose capture is not as it should be: those of our schema, so that a table made by hand is left alone.
async fn to_switch(conn: &Conn, capture: Capture) -> Result<Vec<String>> {
    let wanted = match capture {
        Capture::On => "A",
        Capture::Off => "D",
    };
    let text = "SELECT DISTINCT c.relname::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid \
                WHERE c.relnamespace = 'public'::regnamespace AND t.tgname = ANY ($1) AND t.tgenabled::text <> $2 ORDER BY 1";
    let names: Vec<&str> = ddl::CAPTURES.to_vec();
    let rows = conn.query(text, &[&names, &wanted]).await.map_err(fault::before_commit)?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn switch_all(conn: &Conn, env: &dyn Env, capture: Capture) -> Result<()> {
    let deadline = env.elapsed() + SWITCH_LIMIT;
    loop {
        let tables = to_switch(conn, capture).await?;
        if tables.is_empty() {
            return Ok(());
        }
        for table in &tables {
            match switch_one(conn, table, capture).await {
                // Its writers run on; those that queue behind us go first, and we try again.
                Err(ShardError::TimedOut | ShardError::Conflict(_)) => env.sleep(SWITCH_PAUSE).await,
                other => other?,
            }
        }
        if env.elapsed() > deadline {
            return Err(ShardError::TimedOut);
        }
    }
}

async fn switch_one(conn: &Conn, table: &str, capture: Capture) -> Result<()> {
    let [alter] = <[String; 1]>::try_from(ddl::switch(table, capture)).unwrap_or_default();
    let text = format!("BEGIN READ WRITE; SET LOCAL lock_timeout = {SWITCH_LOCK_MS}; {alter}; COMMIT");
    match conn.batch_execute(&text).await.map_err(fault::before_commit) {
        // Dropped in the meantime: there is nothing left to switch.
        Err(ShardError::Statement(error)) if error.sqlstate == "42P01" => roll_back(conn).await,
        Err(error @ (ShardError::TimedOut | ShardError::Conflict(_))) => roll_back(conn).await.and(Err(error)),
        other => other,
    }
}

async fn roll_back(conn: &Conn) -> Result<()> {
    conn.batch_execute("ROLLBACK").await.map_err(fault::before_commit)
}

/// Moves a reader forward.
pub(super) async fn advance(conn: &Conn, marks: &Mutex<Marks>, stream: &StreamId, to: Seq) -> Result<()> {
    let to = position(to)?;
    if to > locked(marks).complete && to > complete(conn, marks).await? {
        return Err(ShardError::invalid(format!("the log is not complete up to position {to}")));
    }
    let update = "UPDATE _isles.consumer SET position = greatest(position, $2) WHERE stream = $1 RETURNING position";
    if write(conn, update, &[&stream.as_str(), &to]).await?.is_empty() {
        // A reader that was dropped because it was too slow finds out here as well as when it reads.
        return Err(ShardError::Trimmed { trimmed: trimmed(conn).await? as u64 });
    }
    trim(conn).await
}

/// Deletes what every reader has passed; all, if there is none.
pub(super) async fn trim(conn: &Conn) -> Result<()> {
    loop {
        // The position is set first, so that no reader takes a deleted record for a gap.
        let text = format!(
            "WITH goal AS (SELECT coalesce((SELECT min(coalesce(position, 0)) FROM _isles.consumer), \
                                           (SELECT max(seq) FROM _isles.log), 0) AS upto), \
             old AS (SELECT seq FROM _isles.log, goal WHERE seq <= upto ORDER BY seq LIMIT {TRIM_ROWS}), \
             gone AS (DELETE FROM _isles.log USING old WHERE log.seq = old.seq RETURNING log.seq) \
             UPDATE _isles.meta SET trimmed = greatest(trimmed, (SELECT max(seq) FROM gone)) \
             WHERE EXISTS (SELECT FROM gone) RETURNING (SELECT count(*) FROM gone)"
        );
        let rows = write(conn, &text, &[]).await?;
        if rows.first().map_or(0, |row| row.get::<_, i64>(0)) < TRIM_ROWS {
            return Ok(());
        }
    }
}

/// Drops the slowest readers while the log is longer than `limit` positions.
pub(super) async fn enforce_limit(conn: &Conn, env: &dyn Env, limit: u64) -> Result<()> {
    let text = "SELECT coalesce((SELECT max(seq) FROM _isles.log), 0) - least((SELECT min(seq) - 1 FROM _isles.log), \
                (SELECT min(position) FROM _isles.consumer)) > $1::bigint FROM _isles.meta";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let row = conn.query_one(text, &[&limit]).await.map_err(fault::before_commit)?;
    if row.get::<_, Option<bool>>(0) != Some(true) {
        return Ok(());
    }
    take_turn(conn).await?;
    let drop = "DELETE FROM _isles.consumer WHERE position < (SELECT max(seq) FROM _isles.log) - $1::bigint";
    write(conn, drop, &[&limit]).await?;
    settle(conn, env).await
}
