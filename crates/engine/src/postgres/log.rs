//! The change log: written by triggers in the transaction that makes the change, read without skipping one.
//!
//! Positions come from a sequence and are drawn before the commit, so they are not in commit order: position 7 may
//! be visible while the transaction that drew 6 still runs. A reader that remembers 7 would never see 6 (I-30).
//!
//!     positions  1 2 3 _ 5 6 _ 8      `_` is a gap: rolled back, lost in a crash, or not yet committed
//!     complete ──────┘
//!
//! A reader stops below the first gap that can still be filled. Whoever draws a position inserts into the log, and so
//! holds a lock on it, from before the draw until its transaction ends. So a look at the locks tells: a position that
//! had been drawn before the look, and is not visible after it, is dead unless one of the holders seen then may still
//! commit it. [`Horizon`] is such a look. Locks are of this database alone, and of those who write to the log: neither
//! a long reader nor another database of the server holds the log up.
//!
//!     last position drawn → holders of the log's lock → snapshot      in this order, one statement each
//!
//! A gap below a position that is dead stays dead, so one number, [`Marks::dead_through`], holds all we learn. It is
//! kept in memory: losing it costs a little time and nothing else.
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
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tokio_postgres::types::Type;

/// Marks that wait for transactions to end; with more, a new gap waits for an old mark first.
const MAX_PENDING: usize = 64;
/// How long a reader waits for those who hold a gap open, and how often it looks.
const GAP_WAIT: Duration = Duration::from_millis(50);
/// Writers end within this, or whoever waits for them tries again later.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
const GAP_PAUSE: Duration = Duration::from_millis(1);
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
#[derive(Debug, Default, Clone)]
pub(super) struct Marks {
    /// Everything up to here is visible or will never be.
    complete: i64,
    /// Positions up to here that are not visible are dead.
    dead_through: i64,
    /// Horizons whose holders had not all ended when last looked at.
    pending: VecDeque<Horizon>,
}

/// Who may still commit a position that had been drawn.
#[derive(Debug, Clone)]
struct Horizon {
    /// The last position drawn, read before the holders.
    drawn: i64,
    /// The transactions that wrote to the log and had not ended.
    holders: BTreeSet<String>,
}

/// One look at the log, with one snapshot.
struct Look {
    trimmed: i64,
    last: i64,
    /// Gaps as (row before, row after).
    gaps: Vec<(i64, i64)>,
}

const LOOK: &str = "\
    SELECT meta.trimmed, coalesce((SELECT max(seq) FROM _isles.log), 0), \
           ARRAY(SELECT prev FROM gaps), ARRAY(SELECT seq FROM gaps) \
    FROM _isles.meta AS meta";

const DRAWN: &str = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM _isles.log_seq";

const HOLDERS: &str = "\
    SELECT virtualtransaction FROM pg_catalog.pg_locks \
    WHERE locktype = 'relation' AND relation = '_isles.log'::regclass AND mode = 'RowExclusiveLock' \
      AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()) \
      AND pid IS DISTINCT FROM pg_backend_pid()";

async fn horizon(conn: &Conn) -> Result<Horizon> {
    let drawn = conn.row(DRAWN, &[]).await?.get(0);
    let holders = conn.rows(HOLDERS, &[]).await?;
    Ok(Horizon { drawn, holders: holders.iter().map(|row| row.get(0)).collect() })
}

async fn look(conn: &Conn, base: i64) -> Result<Look> {
    let text = format!(
        "WITH gaps AS (SELECT prev, seq FROM (SELECT seq, lag(seq, 1, greatest($1, (SELECT trimmed FROM _isles.meta))) \
         OVER (ORDER BY seq) AS prev FROM _isles.log WHERE seq > $1) AS l WHERE seq > prev + 1 ORDER BY seq LIMIT {MAX_GAPS}) {LOOK}"
    );
    let row = conn.row(&text, &[&base]).await?;
    let (from, to): (Vec<i64>, Vec<i64>) = (row.get(2), row.get(3));
    Ok(Look { trimmed: row.get(0), last: row.get(1), gaps: from.into_iter().zip(to).collect() })
}

fn xid(text: &str) -> Result<u64> {
    text.parse().map_err(|_| ShardError::Corrupt("the server sent a transaction id that is no number".into()))
}

impl Marks {
    fn learn(&mut self, horizon: Horizon) {
        let dead = |old: &Horizon| old.holders.is_disjoint(&horizon.holders);
        let ended = self.pending.iter().filter(|old| dead(old)).map(|old| old.drawn).max().unwrap_or(0);
        self.dead_through = self.dead_through.max(ended);
        self.pending.retain(|old| old.drawn > self.dead_through);
        if horizon.holders.is_empty() {
            self.dead_through = self.dead_through.max(horizon.drawn);
        } else if self.pending.len() < MAX_PENDING && self.pending.back().is_none_or(|old| old.drawn < horizon.drawn) {
            self.pending.push_back(horizon);
        }
    }

    /// The end of the complete part, and whether a gap that may be live ends it.
    fn end(&self, look: &Look) -> (i64, bool) {
        // The last position missing in a gap is the one before the row behind it.
        let end = match look.gaps.iter().find(|(_, after)| after - 1 > self.dead_through) {
            Some((before, _)) => (*before, true),
            // There may be more gaps than we have looked at; the rest is for the next look.
            None if look.gaps.len() as i64 == MAX_GAPS => (look.gaps.last().map_or(0, |gap| gap.1), true),
            None => (look.last, false),
        };
        (end.0.max(self.complete).max(look.trimmed), end.1)
    }
}

/// Finds how far the log is complete, and remembers it. Waits a little for those who hold a gap open: most writers end
/// in a moment.
pub(super) async fn complete(conn: &Conn, env: &dyn Env, marks: &Mutex<Marks>) -> Result<i64> {
    let give_up = env.elapsed() + GAP_WAIT;
    let base = locked(marks).complete;
    let mut look = self::look(conn, base).await?;
    loop {
        let (end, blocked) = {
            let mut marks = locked(marks);
            let (end, blocked) = marks.end(&look);
            marks.complete = marks.complete.max(end);
            (end, blocked)
        };
        if !blocked || env.elapsed() >= give_up {
            return Ok(end);
        }
        let seen = horizon(conn).await?;
        let free = seen.holders.is_empty();
        locked(marks).learn(seen);
        if !free {
            env.sleep(GAP_PAUSE).await;
        }
        let base = locked(marks).complete;
        look = self::look(conn, base).await?;
    }
}

/// Waits for those who are writing to the log now; returns a position at or above all of theirs that are committed.
pub(super) async fn settled(conn: &Conn, env: &dyn Env) -> Result<i64> {
    let give_up = env.elapsed() + SETTLE_LIMIT;
    let before = horizon(conn).await?.holders;
    while !before.is_disjoint(&horizon(conn).await?.holders) {
        if env.elapsed() >= give_up {
            return Err(ShardError::TimedOut);
        }
        env.sleep(GAP_PAUSE).await;
    }
    let text = "SELECT greatest(trimmed, (SELECT max(seq) FROM _isles.log)) FROM _isles.meta";
    Ok(conn.row(text, &[]).await?.get(0))
}

/// Looks at who may fill gaps; to be called before a snapshot that [`complete_in_snapshot`] is asked of.
pub(super) async fn prepare_snapshot(conn: &Conn, env: &dyn Env, marks: &Mutex<Marks>) -> Result<()> {
    complete(conn, env, marks).await?;
    let seen = horizon(conn).await?;
    locked(marks).learn(seen);
    Ok(())
}

/// How far the log is complete in the snapshot of `conn`'s transaction.
pub(super) async fn complete_in_snapshot(conn: &Conn, known: &Marks) -> Result<i64> {
    let look = look(conn, known.complete).await?;
    Ok(known.end(&look).0)
}

pub(super) fn locked(marks: &Mutex<Marks>) -> std::sync::MutexGuard<'_, Marks> {
    marks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Schemas by the position after which they hold, as far as they are known.
pub(super) type History = Mutex<Option<Arc<BTreeMap<i64, Arc<Schema>>>>>;

/// Changes after `after`, up to where the log is complete.
pub(super) async fn changes(
    conn: &Conn,
    env: &dyn Env,
    marks: &Mutex<Marks>,
    history: &History,
    after: Seq,
    limit: usize,
) -> Result<ChangePage> {
    let end = complete(conn, env, marks).await?;
    page(conn, history, after, Some(end), limit).await
}

/// Changes that are committed, whether or not others may still appear between them.
pub(super) async fn committed(conn: &Conn, history: &History, after: Seq, limit: usize) -> Result<ChangePage> {
    page(conn, history, after, None, limit).await
}

const CHANGES: &str =
    "SELECT seq, txn::text, tab, before, after FROM _isles.log WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3";
const LOG_STATE: &str = "SELECT trimmed, coalesce((SELECT max(version) FROM _isles.schema), 0) FROM _isles.meta";

/// Changes up to `end`, or up to the last one that is committed.
async fn page(conn: &Conn, history: &History, after: Seq, end: Option<i64>, limit: usize) -> Result<ChangePage> {
    let from = position(after)?;
    conn.prepare(CHANGES).await?;
    conn.prepare(LOG_STATE).await?;
    // Both are sent at once, and the state is read last: whatever is trimmed from there on was read before.
    let (until, most) = (end.unwrap_or(i64::MAX), limit as i64);
    let params: [&(dyn ToSql + Sync); 3] = [&from, &until, &most];
    let (rows, state) = futures::join!(conn.rows(CHANGES, &params), conn.row(LOG_STATE, &[]));
    let (rows, state) = (rows?, state?);
    let trimmed: i64 = state.get(0);
    if from < trimmed {
        return Err(ShardError::Trimmed { trimmed: trimmed as u64 });
    }
    let schemas = schemas(conn, history, SchemaVersion(state.get::<_, i64>(1) as u64)).await?;
    let changes: Vec<Change> = rows.iter().map(|row| change(row, &schemas)).collect::<Result<_>>()?;
    let through = match changes.last() {
        Some(last) if changes.len() >= limit || end.is_none() => last.seq,
        _ => Seq(end.unwrap_or(from).max(from) as u64),
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

pub(super) async fn trimmed(conn: &Conn) -> Result<i64> {
    let row = conn.query_one("SELECT trimmed FROM _isles.meta", &[]).await.map_err(fault::before_commit)?;
    Ok(row.get(0))
}

fn position(seq: Seq) -> Result<i64> {
    i64::try_from(seq.0).map_err(|_| ShardError::invalid("a position is below 2^63"))
}

fn change(row: &Row, schemas: &BTreeMap<i64, Arc<Schema>>) -> Result<Change> {
    let seq: i64 = row.get(0);
    match schemas.range(..seq).next_back() {
        Some((_, schema)) => change_of(row, schema),
        None => Err(ShardError::Corrupt(format!("change {seq} is of no schema"))),
    }
}

/// A change that was written under `schema`.
pub(super) fn change_of(row: &Row, schema: &Schema) -> Result<Change> {
    let seq: i64 = row.get(0);
    let table: &str = row.get(2);
    let unknown = || ShardError::Corrupt(format!("change {seq} is of table \"{table}\", which no schema knows"));
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
        TableKind::Reference | TableKind::Global => unit_of(table, Value::Null),
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
        _ => table.only_unit().ok_or_else(damaged),
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
    let present = complete(conn, env, marks).await?;
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
    conn.runs_foreign();
    conn.batch_execute(&text).await.map_err(fault::before_commit)
}

/// Runs one statement that writes, in a transaction of its own: sessions are read only otherwise.
async fn write(conn: &Conn, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
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
    let text = "SELECT DISTINCT _isles.relation(n.nspname, c.relname) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid \
                JOIN pg_namespace n ON n.oid = c.relnamespace WHERE t.tgname = ANY ($1) AND t.tgenabled::text <> $2 ORDER BY 1";
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
pub(super) async fn advance(
    conn: &Conn,
    env: &dyn Env,
    marks: &Mutex<Marks>,
    stream: &StreamId,
    to: Seq,
) -> Result<()> {
    let to = position(to)?;
    if to > locked(marks).complete && to > complete(conn, env, marks).await? {
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
