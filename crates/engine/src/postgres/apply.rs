//! Rows that come from elsewhere: applied from another shard, or imported by an operator.
//!
//! `apply` keeps, beside the rows, how new each one is. A row is applied if it is newer than what is known of its key,
//! so any order and any number of repetitions end in the same rows; a deleted row leaves its version as a tombstone.
//! All of it is set-based: one statement finds which rows are newer, then one DELETE and one INSERT for each table.
//! Deleting first lets rows of one batch swap the values of a unique key. A key that is still there after its own
//! unit's row was deleted belongs to another unit, and the batch is refused rather than that row replaced.
//!
//! What is applied is not captured, triggers do not fire, and foreign keys are not checked: the rows were checked and
//! the triggers fired where they were written, and children may come before their parents. The server's
//! `session_replication_role` does the latter two, as for its own replication; it needs a superuser or, from
//! PostgreSQL 15, `GRANT SET ON PARAMETER session_replication_role`. It does not switch our capture off, since a client
//! might be able to set it. That takes a setting with the shard's secret, which only `_isles.meta` has: no client's
//! statement can name a table in `_isles`, and no client's code runs in this transaction.
//!
//! `import` is an ordinary write: captured, checked, and with triggers.

use super::copy;
use super::ddl::{columns, quote, table_name};
use super::fault;
use super::fence::{ENTER, Entry};
use super::pool::Conn;
use super::stream;
use super::tenancy::OWN;
use super::unique;
use super::value::{Param, declared};
use crate::error::{Result, ShardError};
use crate::rows::{IncomingCheck, check_row, other_unit, taken};
use crate::shard::{Applied, Batch, BatchKind, ImportMode, Incoming, MAX_APPLY_ROWS, StoredRow};
use isles_kernel::form;
use isles_kernel::schema::{BUCKET_COLUMN, Key, Schema, TENANT_COLUMN, Table, TableKind, Unit};
use isles_kernel::value::{Value, key_bytes};
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::types::{Kind, ToSql, Type};
use tokio_postgres::{Row, Statement};

/// Applies a batch in an open transaction, up to its COMMIT.
pub(super) async fn apply(conn: &Conn, schema: &Schema, batch: &Batch) -> Result<Applied> {
    if batch.rows.len() > MAX_APPLY_ROWS {
        return Err(ShardError::Limit { what: "the number of rows to apply", limit: MAX_APPLY_ROWS as u64 });
    }
    match batch.kind {
        BatchKind::Changes | BatchKind::Repair => apply_changes(conn, schema, batch).await,
        BatchKind::Copy => copy::copy(conn, schema, batch).await,
    }
}

async fn apply_changes(conn: &Conn, schema: &Schema, batch: &Batch) -> Result<Applied> {
    batch.rows.iter().try_for_each(|row| IncomingCheck::new(schema.table(&row.table)?).check(row))?;
    let newest = newest_of(schema, batch)?;
    stream::prepare_turn(conn).await?;
    conn.prepare(raising(batch.kind)).await?;
    let (begun, fresh) = futures::join!(begin_turn(conn, batch), raise_versions(conn, batch, &newest));
    begun?;
    let fresh = fresh?;
    let mut applied = Applied::default();
    for (name, rows) in by_table(&newest, &fresh) {
        let written: Vec<&Incoming> = rows.iter().map(|latest| latest.row).filter(|row| row.row.is_some()).collect();
        write(conn, batch.kind, schema.table(name)?, &rows, &written).await?;
        applied.written += written.len() as u64;
        applied.deleted += (rows.len() - written.len()) as u64;
    }
    applied.stale = batch.rows.len() as u64 - applied.written - applied.deleted;
    Ok(applied)
}

/// Begins a transaction for a batch of a stream. It is sent at once, if its statements have been prepared.
pub(super) async fn begin_turn(conn: &Conn, batch: &Batch) -> Result<()> {
    let (begun, turn) = futures::join!(begin_foreign(conn), stream::take_turn(conn, batch));
    begun.and(turn)
}

/// Begins a transaction in which nothing is captured, no trigger fires and no foreign key is checked.
pub(super) async fn begin_foreign(conn: &Conn) -> Result<()> {
    let text = format!(
        "BEGIN READ WRITE; {OWN}; SET LOCAL session_replication_role = replica; \
         SELECT set_config('isles.applying', secret, true) FROM _isles.meta"
    );
    match conn.batch_execute(&text).await.map_err(fault::before_commit) {
        Err(ShardError::Statement(error)) if error.sqlstate == "42501" => Err(ShardError::invalid(
            "the shard's user may not set session_replication_role; grant it with GRANT SET ON PARAMETER",
        )),
        other => other,
    }
}

/// The newest of a batch's rows with one key, and the units that older ones of them had.
struct Latest<'a> {
    row: &'a Incoming,
    units: BTreeSet<&'a Unit>,
}

type ByKey<'a> = BTreeMap<(&'a str, Vec<u8>), Latest<'a>>;

fn newest_of<'a>(schema: &Schema, batch: &'a Batch) -> Result<ByKey<'a>> {
    let mut newest: ByKey<'a> = BTreeMap::new();
    for row in &batch.rows {
        schema.table(&row.table)?;
        let key = (row.table.as_str(), key_bytes(&row.key));
        let latest = newest.entry(key).or_insert_with(|| Latest { row, units: BTreeSet::new() });
        latest.units.insert(&row.unit);
        if row.version > latest.row.version {
            latest.row = row;
        }
    }
    Ok(newest)
}

/// The statement that stores versions, those that are `when`, and returns the keys they are of.
macro_rules! store_versions {
    ($when:literal) => {
        concat!(
            "INSERT INTO _isles.row_version AS v (tab, key, stream, epoch, seq, gone) \
             SELECT t, k, $1, e, s, g \
             FROM unnest($2::text[], $3::bytea[], $4::bigint[], $5::bigint[], $6::bool[]) AS u (t, k, e, s, g) \
             ON CONFLICT (tab, key) DO UPDATE \
             SET stream = excluded.stream, epoch = excluded.epoch, seq = excluded.seq, gone = excluded.gone",
            $when,
            " RETURNING v.tab, v.key"
        )
    };
}

const RAISE_VERSIONS: &str = store_versions!(" WHERE (v.epoch, v.seq) < (excluded.epoch, excluded.seq)");
const SET_VERSIONS: &str = store_versions!("");

fn raising(kind: BatchKind) -> &'static str {
    if kind == BatchKind::Repair { SET_VERSIONS } else { RAISE_VERSIONS }
}

/// Stores the versions that are newer than what is stored, or all of a repair; returns the keys they are of.
async fn raise_versions(conn: &Conn, batch: &Batch, newest: &ByKey<'_>) -> Result<BTreeSet<(String, Vec<u8>)>> {
    let number = |n: u64| i64::try_from(n).map_err(|_| ShardError::invalid("a version is below 2^63"));
    let (mut tables, mut keys, mut epochs, mut seqs, mut gone) = (vec![], vec![], vec![], vec![], vec![]);
    for ((table, key), latest) in newest {
        tables.push(*table);
        keys.push(key.as_slice());
        epochs.push(number(latest.row.version.epoch.0)?);
        seqs.push(number(latest.row.version.seq.0)?);
        gone.push(latest.row.row.is_none());
    }
    let rows = conn.rows(raising(batch.kind), &[&batch.stream.as_str(), &tables, &keys, &epochs, &seqs, &gone]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

fn by_table<'a, 'b>(
    newest: &'b ByKey<'a>,
    fresh: &BTreeSet<(String, Vec<u8>)>,
) -> BTreeMap<&'a str, Vec<&'b Latest<'a>>> {
    let mut tables: BTreeMap<&str, Vec<&Latest<'_>>> = BTreeMap::new();
    for ((table, key), latest) in newest {
        if fresh.contains(&((*table).to_string(), key.clone())) {
            tables.entry(table).or_default().push(latest);
        }
    }
    tables
}

/// Columns of values that travel as arrays, one parameter for each.
///
/// There are no arrays of arrays: a column of arrays travels as one array of all their members, and two columns that
/// say where in it each begins and ends.
pub(super) struct Columns {
    params: Vec<Param>,
    types: Vec<Type>,
    columns: Vec<Travel>,
}

/// How a column travels, by the numbers of its parameters.
enum Travel {
    Plain(usize),
    Cast(usize, String),
    Slices { members: usize, first: usize, last: usize },
}

impl Columns {
    pub(super) fn new() -> Columns {
        Columns { params: Vec::new(), types: Vec::new(), columns: Vec::new() }
    }

    pub(super) fn push(&mut self, values: &[&Value], ty: &Type) -> Result<()> {
        if matches!(ty.kind(), Kind::Array(_)) {
            return self.push_arrays(values, ty);
        }
        let (list, cast) = list_of(ty);
        let at = match cast {
            None => self.param(values.iter().copied(), list)?,
            Some(_) => self.param(values.iter().map(|value| as_text(value)).collect::<Vec<_>>().iter(), list)?,
        };
        self.columns.push(cast.map_or(Travel::Plain(at), |cast| Travel::Cast(at, cast)));
        Ok(())
    }

    fn push_arrays(&mut self, values: &[&Value], ty: &Type) -> Result<()> {
        let (mut members, mut firsts, mut lasts) = (Vec::new(), Vec::new(), Vec::new());
        for value in values {
            let Value::Array(own) = value else {
                // A slice that ends nowhere is null.
                firsts.push(Value::Null);
                lasts.push(Value::Null);
                continue;
            };
            firsts.push(Value::Int(members.len() as i64 + 1));
            members.extend(own);
            lasts.push(Value::Int(members.len() as i64));
        }
        let members = self.param(members.into_iter(), ty.clone())?;
        let first = self.param(firsts.iter(), Type::INT4_ARRAY)?;
        let last = self.param(lasts.iter(), Type::INT4_ARRAY)?;
        self.columns.push(Travel::Slices { members, first, last });
        Ok(())
    }

    /// Adds a parameter; returns its number.
    fn param<'a>(&mut self, values: impl ExactSizeIterator<Item = &'a Value>, list: Type) -> Result<usize> {
        self.params.push(Param::array(values, &list)?);
        self.types.push(list);
        Ok(self.params.len())
    }

    /// `unnest($1, $2, …)`, or a subquery with the same columns where some must be put together.
    pub(super) fn unnest(&self) -> String {
        let (mut lists, mut columns) = (Vec::new(), Vec::new());
        for column in &self.columns {
            match column {
                Travel::Plain(at) => {
                    lists.push(*at);
                    columns.push(format!("n{at}"));
                }
                Travel::Cast(at, ty) => {
                    lists.push(*at);
                    columns.push(format!("n{at}::{ty}"));
                }
                Travel::Slices { members, first, last } => {
                    lists.extend([*first, *last]);
                    columns.push(format!("({})[n{first}:n{last}]", self.typed(*members)));
                }
            }
        }
        let arrays: Vec<String> = lists.iter().map(|at| self.typed(*at)).collect();
        let unnest = format!("unnest({})", arrays.join(", "));
        if self.columns.iter().all(|column| matches!(column, Travel::Plain(_))) {
            return unnest;
        }
        let names: Vec<String> = lists.iter().map(|at| format!("n{at}")).collect();
        format!("(SELECT {} FROM {unnest} AS n ({}))", columns.join(", "), names.join(", "))
    }

    /// A parameter and its type, which the text says, so that a statement is known by its text.
    fn typed(&self, number: usize) -> String {
        format!("${number}::pg_catalog.{}", self.types[number - 1].name())
    }
}

/// A statement over columns of values.
pub(super) struct Sending {
    text: String,
    columns: Columns,
}

impl Sending {
    pub(super) fn new(text: String, columns: Columns) -> Sending {
        Sending { text, columns }
    }

    /// What has been prepared is sent at once, and so in the order in which it is asked for.
    async fn prepare(&self, conn: &Conn) -> Result<Statement> {
        conn.prepare(&self.text).await
    }

    pub(super) async fn query(&self, conn: &Conn) -> Result<Vec<Row>> {
        let params: Vec<&(dyn ToSql + Sync)> = self.columns.params.iter().map(|param| param as _).collect();
        conn.rows(&self.text, &params).await
    }

    async fn run(&self, conn: &Conn) -> std::result::Result<u64, Refusal> {
        let statement = self.prepare(conn).await.map_err(Refusal::Ours)?;
        let params = self.columns.params.iter().map(|param| param as &(dyn ToSql + Sync));
        conn.each_row(&statement, params, Refusal::Server, |_| Ok(())).await
    }
}

/// The array type that values of a type travel in; and what the server then casts them to, for types that are rarely
/// in a table and travel as texts.
fn list_of(ty: &Type) -> (Type, Option<String>) {
    const LISTS: [Type; 21] = [
        Type::BOOL_ARRAY,
        Type::INT2_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::FLOAT4_ARRAY,
        Type::FLOAT8_ARRAY,
        Type::NUMERIC_ARRAY,
        Type::TEXT_ARRAY,
        Type::VARCHAR_ARRAY,
        Type::BPCHAR_ARRAY,
        Type::NAME_ARRAY,
        Type::BYTEA_ARRAY,
        Type::DATE_ARRAY,
        Type::TIME_ARRAY,
        Type::TIMESTAMP_ARRAY,
        Type::TIMESTAMPTZ_ARRAY,
        Type::UUID_ARRAY,
        Type::JSON_ARRAY,
        Type::JSONB_ARRAY,
        Type::INTERVAL_ARRAY,
        Type::OID_ARRAY,
    ];
    let list = LISTS.into_iter().find(|list| matches!(list.kind(), Kind::Array(member) if member == ty));
    list.map_or_else(|| (Type::TEXT_ARRAY, Some(ty.name().to_string())), |list| (list, None))
}

/// Whether values of a type travel as what they are.
pub(super) fn is_plain(ty: &Type) -> bool {
    let member = if let Kind::Array(member) = ty.kind() { member } else { ty };
    list_of(member).1.is_none()
}

/// A value that travels as text.
fn as_text(value: &Value) -> Value {
    let mut text = String::new();
    form::write(&mut text, value);
    if value.is_null() { Value::Null } else { Value::Text(text) }
}

/// The unit as the hidden column that rows are written with: the bucket, or the tenant or null.
pub(super) fn hidden_value(unit: &Unit) -> Option<Value> {
    match unit {
        Unit::Tenant(tenant) => Some(tenant.as_ref().map_or(Value::Null, |tenant| Value::text(tenant.as_str()))),
        Unit::Bucket(..) | Unit::Shared => unit.stored_bucket().map(|bucket| Value::Int(i64::from(bucket.0))),
    }
}

pub(super) fn hidden_column(table: &Table) -> Option<(&'static str, Type)> {
    match table.kind {
        TableKind::Hash { .. } => Some((BUCKET_COLUMN, Type::INT4)),
        TableKind::Tenant => Some((TENANT_COLUMN, Type::TEXT)),
        TableKind::Reference | TableKind::Global => None,
    }
}

/// Replaces rows of a table by those that are written. All is sent together, once it has been prepared.
async fn write(conn: &Conn, kind: BatchKind, table: &Table, rows: &[&Latest<'_>], written: &[&Incoming]) -> Result<()> {
    let targets: Vec<(&Unit, &[Value])> =
        rows.iter().flat_map(|latest| latest.units.iter().map(|unit| (*unit, latest.row.key.as_slice()))).collect();
    let (delete, others, insert) = (deletion(table, &targets)?, others(table, rows)?, insertion(table, written)?);
    for sending in [&delete, &others, &insert].into_iter().flatten() {
        sending.prepare(conn).await?;
    }
    let may_collide = table.keys.iter().any(Key::is_unique_on_shard);
    let mark = async { if may_collide { plain(conn, "SAVEPOINT rows").await } else { Ok(()) } };
    let (deleted, others, marked, inserted) =
        futures::join!(run(conn, delete.as_ref()), found(conn, others.as_ref()), mark, run(conn, insert.as_ref()));
    deleted?;
    if others? {
        return Err(other_unit(table));
    }
    marked?;
    match inserted {
        Err(error) if may_collide && collides(&error, table) => {
            plain(conn, "ROLLBACK TO rows").await?;
            let kept = unique::give_way(conn, table, kind, written).await?;
            insert_rows(conn, table, &kept).await.map_err(|error| explained(error, table))
        }
        result => result.map_err(|error| explained(error, table)),
    }
}

async fn run(conn: &Conn, sending: Option<&Sending>) -> std::result::Result<(), Refusal> {
    match sending {
        Some(sending) => sending.run(conn).await.map(drop),
        None => Ok(()),
    }
}

async fn found(conn: &Conn, sending: Option<&Sending>) -> Result<bool> {
    match sending {
        Some(sending) => Ok(!sending.query(conn).await?.is_empty()),
        None => Ok(false),
    }
}

/// Deletes the rows of these keys, where they are of the unit that goes with them.
pub(super) async fn delete_keys(conn: &Conn, table: &Table, targets: &[(&Unit, &[Value])]) -> Result<()> {
    Ok(run(conn, deletion(table, targets)?.as_ref()).await?)
}

fn deletion(table: &Table, targets: &[(&Unit, &[Value])]) -> Result<Option<Sending>> {
    if targets.is_empty() {
        return Ok(None);
    }
    let keys: Vec<&[Value]> = targets.iter().map(|(_, key)| *key).collect();
    let (mut arrays, mut conditions) = keyed(table, &keys)?;
    if matches!(table.kind, TableKind::Hash { .. }) {
        let buckets: Vec<Value> = targets.iter().filter_map(|(unit, _)| hidden_value(unit)).collect();
        arrays.push(&buckets.iter().collect::<Vec<_>>(), &Type::INT4)?;
        conditions.push(format!("t.{} = u.c{}", quote(BUCKET_COLUMN), conditions.len() + 1));
    }
    let text = format!(
        "DELETE FROM {} AS t USING {} AS u ({}) WHERE {}",
        table_name(&table.name),
        arrays.unnest(),
        numbered(conditions.len()),
        conditions.join(" AND ")
    );
    Ok(Some(Sending::new(text, arrays)))
}

/// A key that was to be deleted and is still there belongs to another unit. (One that was to be written collides.)
fn others(table: &Table, rows: &[&Latest<'_>]) -> Result<Option<Sending>> {
    let gone: Vec<&[Value]> =
        rows.iter().filter(|latest| latest.row.row.is_none()).map(|latest| latest.row.key.as_slice()).collect();
    if gone.is_empty() || !matches!(table.kind, TableKind::Hash { .. }) {
        return Ok(None);
    }
    let (arrays, conditions) = keyed(table, &gone)?;
    let text = format!(
        "SELECT 1 FROM {} AS t, {} AS u ({}) WHERE {} LIMIT 1",
        table_name(&table.name),
        arrays.unnest(),
        numbered(conditions.len()),
        conditions.join(" AND ")
    );
    Ok(Some(Sending::new(text, arrays)))
}

/// Keys as columns, and what says that a row `t` of a table has one of them, `u`.
fn keyed(table: &Table, keys: &[&[Value]]) -> Result<(Columns, Vec<String>)> {
    let (mut arrays, mut conditions) = (Columns::new(), Vec::new());
    for (at, name) in table.physical_key().iter().enumerate() {
        arrays.push(&keys.iter().map(|key| &key[at]).collect::<Vec<_>>(), &column_type(table, name))?;
        conditions.push(format!("t.{} = u.c{}", quote(name), at + 1));
    }
    Ok((arrays, conditions))
}

fn numbered(count: usize) -> String {
    (1..=count).map(|at| format!("c{at}")).collect::<Vec<_>>().join(", ")
}

/// The server's type of a column. The tenant is a text.
pub(super) fn column_type(table: &Table, name: &str) -> Type {
    table.position(name).map_or(Type::TEXT, |at| declared(&table.columns[at]))
}

/// The columns that a row is written with, and the rows' values in them.
fn written_columns(table: &Table, rows: &[(&Unit, &[Value])]) -> Result<(Vec<String>, Columns)> {
    let mut arrays = Columns::new();
    let mut names = Vec::new();
    if let Some((name, ty)) = hidden_column(table) {
        let hidden: Vec<Value> = rows.iter().filter_map(|(unit, _)| hidden_value(unit)).collect();
        arrays.push(&hidden.iter().collect::<Vec<_>>(), &ty)?;
        names.push(name.to_string());
    }
    for (at, column) in table.columns.iter().enumerate() {
        arrays.push(&rows.iter().map(|(_, values)| &values[at]).collect::<Vec<_>>(), &declared(column))?;
        names.push(column.name.clone());
    }
    Ok((names, arrays))
}

pub(super) async fn plain(conn: &Conn, text: &str) -> Result<()> {
    conn.batch_execute(text).await.map_err(fault::before_commit)
}

/// Why rows could not be inserted: an error of ours before anything was sent, or the server's.
pub(super) enum Refusal {
    Ours(ShardError),
    Server(tokio_postgres::Error),
}

impl From<Refusal> for ShardError {
    fn from(error: Refusal) -> ShardError {
        match error {
            Refusal::Ours(error) => error,
            Refusal::Server(error) => fault::before_commit(error),
        }
    }
}

pub(super) async fn insert_rows(conn: &Conn, table: &Table, rows: &[&Incoming]) -> std::result::Result<(), Refusal> {
    run(conn, insertion(table, rows).map_err(Refusal::Ours)?.as_ref()).await
}

fn insertion(table: &Table, rows: &[&Incoming]) -> Result<Option<Sending>> {
    let values: Vec<(&Unit, &[Value])> = rows.iter().filter_map(|row| Some((&row.unit, row.row.as_deref()?))).collect();
    if values.is_empty() {
        return Ok(None);
    }
    let (names, arrays) = written_columns(table, &values)?;
    let text =
        format!("INSERT INTO {} ({}) SELECT * FROM {} AS u", table_name(&table.name), columns(&names), arrays.unnest());
    Ok(Some(Sending::new(text, arrays)))
}

/// The unique key that a row collides on, if that is what the server says.
pub(super) fn taken_key(error: &Refusal) -> Option<&str> {
    let Refusal::Server(error) = error else { return None };
    error.as_db_error().filter(|error| error.code().code() == "23505")?.constraint()
}

fn collides(error: &Refusal, table: &Table) -> bool {
    taken_key(error).is_some_and(|name| table.keys.iter().any(|key| key.name == name))
}

/// A primary key that is taken although the unit's own row was deleted is another unit's, and so is a value of a unique
/// key that is taken although its rivals have been asked to give way. Those of a key over expressions are not asked.
pub(super) fn explained(error: Refusal, table: &Table) -> ShardError {
    let key = taken_key(&error).map(|name| table.keys.iter().find(|key| key.name == name));
    match key {
        Some(None) => return other_unit(table),
        Some(Some(key)) if key.unique_columns().is_some() => return taken(table),
        _ => {}
    }
    error.into()
}

/// Imports rows in an open transaction, up to its COMMIT.
pub(super) async fn import(
    conn: &Conn,
    entry: &Entry,
    schema: &Schema,
    name: &str,
    rows: &[StoredRow],
    mode: ImportMode,
) -> Result<u64> {
    if rows.len() > MAX_APPLY_ROWS {
        return Err(ShardError::Limit { what: "the number of rows to import", limit: MAX_APPLY_ROWS as u64 });
    }
    let table = schema.table(name)?;
    for row in rows {
        check_row(table, &row.unit, &row.values)?;
    }
    let enter = conn.prepare(ENTER).await?;
    conn.batch_execute(&format!("BEGIN READ WRITE; {OWN}")).await.map_err(fault::before_commit)?;
    if !entry.is_empty() {
        entry.enter(conn, &enter).await?;
    }
    let values = match mode {
        ImportMode::Insert => rows.iter().map(|row| (&row.unit, row.values.as_slice())).collect(),
        ImportMode::Upsert => last_of_each_key(table, rows),
    };
    if values.is_empty() {
        return Ok(0);
    }
    let (names, arrays) = written_columns(table, &values)?;
    let mut text =
        format!("INSERT INTO {} AS t ({}) SELECT * FROM {} AS u", table_name(name), columns(&names), arrays.unnest());
    if mode == ImportMode::Upsert {
        text.push_str(&on_conflict(table, &names));
    }
    let written = Sending::new(text, arrays).run(conn).await?;
    if written != values.len() as u64 {
        return Err(other_unit(table));
    }
    Ok(rows.len() as u64)
}

/// An upsert may name each key once; the last row with a key is the one that stays.
fn last_of_each_key<'a>(table: &Table, rows: &'a [StoredRow]) -> Vec<(&'a Unit, &'a [Value])> {
    let mut last: BTreeMap<Vec<u8>, (&Unit, &[Value])> = BTreeMap::new();
    for row in rows {
        last.insert(key_bytes(&table.key_of(&row.unit, &row.values)), (&row.unit, &row.values));
    }
    last.into_values().collect()
}

fn on_conflict(table: &Table, names: &[String]) -> String {
    let set: Vec<String> = names.iter().map(|name| format!("{0} = excluded.{0}", quote(name))).collect();
    let same_unit = match table.kind {
        TableKind::Hash { .. } => format!(" WHERE t.{0} = excluded.{0}", quote(BUCKET_COLUMN)),
        // A tenant is part of the key, and shared tables have one unit only.
        _ => String::new(),
    };
    format!(" ON CONFLICT ({}) DO UPDATE SET {}{same_unit}", columns(&table.physical_key()), set.join(", "))
}
