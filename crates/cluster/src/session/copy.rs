//! COPY: rows from a client's bytes, and bytes from rows.
//!
//!     bytes ─► fields ─► values, by the columns' types ─► batches ─► inserted in one transaction
//!     rows of a query ─► fields ─► bytes
//!
//! Columns that the client does not send get their defaults, row by row, as an INSERT would give them.

use super::known::StatementKnowledge;
use super::plans::{Compiled, Planned};
use super::transact::Slot;
use super::{Answer, Fields, Result, Session};
use crate::database::{Database, SchemaGuard};
use crate::execute::bounds::Bounds;
use crate::execute::inputs::acts_for;
use crate::execute::led::Led;
use crate::execute::run::Runner;
use crate::execute::transaction::{Modes, Txn};
use crate::tenants::entry::Entry;
use crate::tenants::work::TenantWork;
use isles_engine::shard::Isolation;
use isles_kernel::error::SqlError;
use isles_kernel::schema::{plain_name, relation_parts};
use isles_kernel::value::Value;
use isles_sql::bind::utility::{CopySource, CopyStatement};
use isles_sql::copy::{self, CopyDirection, CopyLimits, CopyOptions, Decoder, Encoder};
use isles_sql::plan::{InsertRows, Plan};
use isles_sql::text;
use isles_sql::types::Type;
use std::sync::Arc;

/// Rows that are inserted at once.
const BATCH_ROWS: usize = 1_000;
/// Bytes that are sent at once, more or less.
const PIECE_BYTES: usize = 64 << 10;
/// Of a value that cannot be read, so much is shown, as with PostgreSQL.
const SHOWN_CHARS: usize = 100;

/// Which format COPY speaks; the options of the others are in the statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFormat {
    Text,
    Csv,
    Binary,
}

fn format_of(options: &CopyOptions) -> CopyFormat {
    match options.format {
        copy::CopyFormat::Text => CopyFormat::Text,
        copy::CopyFormat::Csv => CopyFormat::Csv,
        copy::CopyFormat::Binary => CopyFormat::Binary,
    }
}

pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A table with its schema, whatever the search path.
pub(super) fn qualified(table: &str) -> String {
    let (schema, name) = relation_parts(table);
    format!("{}.{}", quoted(schema), quoted(name))
}

fn list(columns: &[String]) -> String {
    columns.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ")
}

/// Begins a COPY.
pub(super) async fn start(session: &mut Session, statement: &CopyStatement) -> Result<Answer> {
    let options = statement.options.clone();
    match (statement.direction, &statement.source) {
        (CopyDirection::Out, source) => {
            let sql = match source {
                CopySource::Query(sql) => sql.clone(),
                CopySource::Table { table, columns, .. } => {
                    format!("SELECT {} FROM {}", list(columns), qualified(table))
                }
            };
            let (fields, rows) = session.query(&sql).await?;
            let settings = session.settings.meaning().values(0)?;
            CopyOut::new(options, fields, rows, settings).map(|copy| Answer::CopyOut(Box::new(copy)))
        }
        (CopyDirection::In, CopySource::Table { table, columns, filter: None }) => {
            copy_in(session, options, table, columns).await.map(|copy| Answer::CopyIn(Box::new(copy)))
        }
        (CopyDirection::In, CopySource::Table { .. }) => {
            Err(SqlError::unsupported("COPY FROM with WHERE is not supported"))
        }
        (CopyDirection::In, CopySource::Query(_)) => Err(SqlError::new("42601", "a query cannot be copied into")),
    }
}

async fn copy_in(session: &mut Session, options: CopyOptions, table: &str, columns: &[String]) -> Result<CopyIn> {
    if session.modes().read_only {
        return Err(SqlError::new("25006", "cannot execute COPY FROM in a read-only transaction"));
    }
    let guard = session.hold_schema().await?;
    let definition = guard
        .schema
        .table(table)
        .map_err(|_| SqlError::new("42P01", format!("relation \"{table}\" does not exist")))?;
    let places: Vec<usize> = columns.iter().filter_map(|name| definition.position(name)).collect();
    let types: Vec<Type> = places.iter().map(|at| crate::execute::run::column_type(definition, *at)).collect();
    // An insert of one row whose columns are parameters; what is not copied is its default.
    let values: Vec<String> = (1..=columns.len()).map(|n| format!("${n}")).collect();
    let sql = match columns.is_empty() {
        true => format!("INSERT INTO {} DEFAULT VALUES", qualified(table)),
        false => format!("INSERT INTO {} ({}) VALUES ({})", qualified(table), list(columns), values.join(", ")),
    };
    let params: Vec<_> = types.iter().map(|ty| ty.oid).collect();
    let prepared = super::plans::prepare(&session.database, &Planned::of(&guard), &session.settings, &sql, &params)?;
    session.check_rights(&prepared)?;
    let pass = session.admit(prepared.tenant_use).await?;
    let tenant = session.seated().filter(|_| pass.is_some()).cloned();
    let knowledge = session.knowledge(&guard)?;
    let into = match session.open.is_some() {
        true => {
            session.enter_transaction(&guard).await?;
            session.slot.lock().await.txn()?.admit(pass);
            Into::Session(session.slot.clone())
        }
        false => {
            let modes = Modes { isolation: Isolation::ReadCommitted, read_only: false };
            let acts_for = acts_for(&session.settings.meaning().tenant);
            let mut txn = Txn::begin(&session.database, modes, guard.clone(), acts_for)?;
            txn.admit(pass);
            Into::Own(Box::new(txn))
        }
    };
    Ok(CopyIn {
        format: format_of(&options),
        columns: columns.len(),
        decoder: Decoder::new(options, plain_name(table), columns.to_vec(), CopyLimits::default())?,
        table: plain_name(table).to_string(),
        names: columns.to_vec(),
        places,
        types,
        batch: Vec::new(),
        copied: 0,
        prepared,
        knowledge,
        guard,
        bounds: session.bounds(),
        database: session.database.clone(),
        into,
        tenant,
    })
}

/// Whose transaction the rows go into.
enum Into {
    Session(Arc<tokio::sync::Mutex<Slot>>),
    Own(Box<Txn>),
}

pub struct CopyIn {
    pub format: CopyFormat,
    pub columns: usize,
    decoder: Decoder,
    table: String,
    names: Vec<String>,
    /// Where the copied columns are in the table.
    places: Vec<usize>,
    types: Vec<Type>,
    /// Values of the copied columns.
    batch: Vec<Vec<Value>>,
    copied: u64,
    prepared: Arc<super::Prepared>,
    knowledge: StatementKnowledge,
    guard: Arc<SchemaGuard>,
    bounds: Bounds,
    database: Arc<Database>,
    into: Into,
    /// Whose rows they become.
    tenant: Option<Arc<Entry>>,
}

impl CopyIn {
    /// Takes some bytes, cut anywhere.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let rows = self.decoder.feed(bytes)?;
        self.take(rows).await
    }

    /// The client has sent everything. Returns the tag.
    pub async fn finish(mut self) -> Result<String> {
        let rows = self.decoder.finish()?;
        self.take(rows).await?;
        self.flush().await?;
        if let Into::Own(txn) = self.into {
            txn.commit(&self.bounds).await?;
        }
        Ok(format!("COPY {}", self.copied))
    }

    /// The client gave up; nothing is kept.
    pub async fn fail(self, reason: &str) -> SqlError {
        if let Into::Own(txn) = self.into {
            txn.rollback().await;
        }
        SqlError::new("57014", format!("COPY from stdin failed: {reason}"))
    }

    async fn take(&mut self, rows: Vec<copy::Row>) -> Result<()> {
        let first_line = self.decoder.line().saturating_sub(rows.len() as u64);
        for (at, row) in (1..).zip(rows) {
            let values = self.values(&row, first_line + at)?;
            self.batch.push(values);
            if self.batch.len() >= BATCH_ROWS {
                self.flush().await?;
            }
        }
        Ok(())
    }

    fn values(&self, row: &copy::Row, line: u64) -> Result<Vec<Value>> {
        let mut values = Vec::with_capacity(row.len());
        for (at, field) in row.iter().enumerate() {
            let ty = self.types[at];
            let read = match (field, self.format) {
                (None, _) => Ok(Value::Null),
                (Some(bytes), CopyFormat::Binary) => text::binary_in(bytes, ty.oid),
                (Some(bytes), _) => match std::str::from_utf8(bytes) {
                    Ok(text) => text::input(text, ty, &self.knowledge.values),
                    Err(_) => Err(SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\"")),
                },
            };
            let value = read.and_then(|value| text::apply_modifier(value, ty, false));
            values.push(value.map_err(|error| error.within(self.place(line, at, field.as_deref())))?);
        }
        Ok(values)
    }

    /// Where a value stands, and the value if it is a text that can be shown.
    fn place(&self, line: u64, column: usize, field: Option<&[u8]>) -> String {
        let place = format!("COPY {}, line {line}, column {}", self.table, self.names[column]);
        let text = field.filter(|_| self.format != CopyFormat::Binary).and_then(|bytes| str::from_utf8(bytes).ok());
        match text {
            Some(text) if text.chars().count() <= SHOWN_CHARS => format!("{place}: \"{text}\""),
            Some(text) => format!("{place}: \"{}...\"", text.chars().take(SHOWN_CHARS).collect::<String>()),
            None => place,
        }
    }

    async fn flush(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return Ok(());
        }
        let Compiled::Rows { plan, .. } = &self.prepared.compiled else {
            return Err(SqlError::new("XX000", "COPY needs an insert"));
        };
        let Plan::Insert(plan) = &**plan else {
            return Err(SqlError::new("XX000", "COPY needs an insert"));
        };
        let InsertRows::Values(rows) = &plan.rows else {
            return Err(SqlError::new("XX000", "COPY needs an insert of values"));
        };
        let template = rows.first().ok_or_else(|| SqlError::new("XX000", "an insert of no rows"))?;
        let runner = Runner {
            database: &self.database,
            schema: &self.guard,
            sources: &self.knowledge,
            params: &[],
            bounds: &self.bounds,
            led: Led::default(),
        };
        let bytes: usize = batch.iter().flatten().map(Value::weight).sum();
        if let Some(tenant) = &self.tenant {
            self.database.check_room(tenant).await?;
        }
        let rows = runner.fill(template, &self.places, batch).await?;
        let copied = match &mut self.into {
            Into::Own(txn) => {
                let copied = runner.insert_rows(plan, rows, txn).await?;
                txn.wrote(copied, bytes as u64);
                copied
            }
            Into::Session(slot) => {
                let mut slot = slot.lock().await;
                slot.touch(self.database.env.elapsed());
                let copied = runner.insert_rows(plan, rows, slot.txn()?).await?;
                slot.txn()?.wrote(copied, bytes as u64);
                copied
            }
        };
        self.copied += copied;
        if let Some(tenant) = &self.tenant {
            tenant.add(TenantWork { rows: copied, ..TenantWork::default() });
        }
        Ok(())
    }
}

pub struct CopyOut {
    pub format: CopyFormat,
    pub columns: usize,
    encoder: Encoder,
    fields: Fields,
    rows: std::vec::IntoIter<Vec<Value>>,
    count: usize,
    settings: text::Settings,
    state: Sending,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    Begin,
    Rows,
    Done,
}

impl CopyOut {
    fn new(options: CopyOptions, fields: Fields, rows: Vec<Vec<Value>>, settings: text::Settings) -> Result<CopyOut> {
        let names = fields.iter().map(|field| field.name.clone()).collect();
        Ok(CopyOut {
            format: format_of(&options),
            columns: fields.len(),
            encoder: Encoder::new(options, names)?,
            fields,
            count: rows.len(),
            rows: rows.into_iter(),
            settings,
            state: Sending::Begin,
        })
    }

    /// The next rows, each the bytes of one message: clients take a message for a row. None at the end.
    pub async fn next(&mut self) -> Result<Option<Vec<Vec<u8>>>> {
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while self.state != Sending::Done && bytes < PIECE_BYTES {
            let message = self.message()?;
            bytes += message.len();
            // The text format ends without a word.
            messages.extend((!message.is_empty()).then_some(message));
        }
        Ok((!messages.is_empty()).then_some(messages))
    }

    /// One row, or the end. Before the first row stands what the format begins with: in the same message if it is
    /// binary, as PostgreSQL sends it, and else as a line of its own.
    fn message(&mut self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        if self.state == Sending::Begin {
            self.encoder.begin(&mut out);
            self.state = Sending::Rows;
            if self.format != CopyFormat::Binary && !out.is_empty() {
                return Ok(out);
            }
        }
        match self.rows.next() {
            Some(row) => self.put(&row, &mut out)?,
            None => {
                self.encoder.end(&mut out);
                self.state = Sending::Done;
            }
        }
        Ok(out)
    }

    fn put(&self, row: &[Value], out: &mut Vec<u8>) -> Result<()> {
        let mut fields = Vec::with_capacity(row.len());
        for (value, field) in row.iter().zip(&*self.fields) {
            if value.is_null() {
                fields.push(None);
                continue;
            }
            let mut bytes = Vec::new();
            match self.format {
                CopyFormat::Binary => text::binary_out(value, field.ty.oid, &mut bytes),
                _ => text::output(value, field.ty, &self.settings, &mut bytes),
            }
            fields.push(Some(bytes));
        }
        let fields: Vec<Option<&[u8]>> = fields.iter().map(Option::as_deref).collect();
        self.encoder.row(&fields, out);
        Ok(())
    }

    pub fn tag(&self) -> String {
        format!("COPY {}", self.count)
    }
}
