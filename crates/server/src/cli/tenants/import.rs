//! A file's rows, into a tenant.
//!
//!     read it whole, and check it ─► tables are the same here ─► one transaction: rows, and the end once more ─► commit
//!
//! What comes from standard input cannot be read twice: it is checked as it is written, and committed only if its end
//! says that all of it was there and as it was. So a file that was cut or altered changes nothing, either way.
//!
//! Rows come by key, and one may refer to a later one of its own table. Such rows are kept until their table has ended,
//! and then tried again, as long as any of them finds what it refers to.

use super::super::client::ServerArguments;
use super::super::output::{Failure, Format, FormatArgument, Outcome, say, say_json};
use super::file::{FileRow, Header, Reader};
use super::progress_bar;
use super::server::{Server, Text, literal, refusal, sqlstate};
use super::tables::{self, Table, list};
use indicatif::ProgressBar;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;

/// Rows that are inserted by one statement, at most.
const BATCH_ROWS: usize = 200;

/// Parameters of a statement, at most; the server takes a few more.
const BATCH_PARAMETERS: usize = 30_000;

/// Bytes of a statement's parameters that are aimed at.
const BATCH_BYTES: usize = 4 << 20;

/// Bytes of rows that wait for those that they refer to; they are in memory.
const WAITING_BYTES_MAX: usize = 256 << 20;

#[derive(clap::Args)]
pub(crate) struct ImportArguments {
    /// The tenant that gets the rows; it need not be the one that they are from
    name: String,
    /// The file; standard input without it
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Replace rows that are there; without it they are refused, and nothing is changed
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    pub(super) format: FormatArgument,
}

pub(super) async fn run(arguments: &ImportArguments) -> Result<Outcome, Failure> {
    let format = arguments.format.format();
    let bar = progress_bar(format, "bytes");
    let rows = match &arguments.from {
        Some(path) => {
            let open = || {
                let file = File::open(path).map_err(|fault| {
                    Failure::usage(format!("cannot read {}: {fault}", path.display())).code("unreadable_file")
                })?;
                bar.set_length(file.metadata().map_or(0, |about| about.len()));
                Reader::new(BufReader::new(file))
            };
            let mut checked = open()?;
            while checked.next()?.is_some() {}
            import(arguments, open()?, &bar).await
        }
        None => import(arguments, Reader::new(std::io::stdin().lock())?, &bar).await,
    };
    bar.finish_and_clear();
    let (name, rows) = (&arguments.name, rows?);
    match format {
        Format::Text => say(&format!("{name}: {rows} rows")),
        Format::Json => say_json(&json!({"tenant": name, "rows": rows}))?,
    }
    Ok(Outcome::Done)
}

async fn import<R: BufRead>(
    arguments: &ImportArguments,
    mut reader: Reader<R>,
    bar: &ProgressBar,
) -> Result<u64, Failure> {
    let server = Server::connect(&arguments.server).await?;
    let tables = here(&reader.header, tables::tables(&server).await?)?;
    for setting in [
        format!("SET isles.tenant = {}", literal(&arguments.name)),
        "SET idle_in_transaction_session_timeout = 0".into(),
        "SET DateStyle = 'ISO, YMD'".into(),
        "SET IntervalStyle = 'postgres'".into(),
        "SET TimeZone = 'UTC'".into(),
        "BEGIN".into(),
    ] {
        server.run(&setting).await?;
    }
    let mut inserts = Inserts { server: &server, tables, replace: arguments.replace, ..Inserts::new(&server) };
    let written = async {
        while let Some(row) = reader.next()? {
            inserts.add(row).await?;
            bar.set_position(reader.bytes());
        }
        inserts.flush().await?;
        inserts.settle().await
    };
    match written.await {
        Ok(()) => server.run("COMMIT").await?,
        Err(failure) => {
            // It would be rolled back with the connection, too.
            let _ = server.run("ROLLBACK").await;
            return Err(failure);
        }
    }
    Ok(reader.rows())
}

/// The tables of the file, as they are here: each must have the same columns of the same types.
fn here(header: &Header, known: Vec<Table>) -> Result<Vec<Table>, Failure> {
    let known: BTreeMap<String, Table> = known.into_iter().map(|table| (table.name.clone(), table)).collect();
    let mut found = Vec::new();
    for table in &header.tables {
        let name = &table.name;
        let differs = |what: String| Failure::check(what).code("table_differs").hint("nothing was changed");
        let Some(here) = known.get(name) else {
            return Err(differs(format!("the file has a table {name}, and there is no such tenant table here")));
        };
        for column in &table.columns {
            match here.columns.iter().find(|other| other.name == column.name) {
                Some(other) if other.ty == column.ty => {}
                Some(other) => {
                    let (column, from, to) = (&column.name, &column.ty, &other.ty);
                    return Err(differs(format!(
                        "column {column} of table {name} is {from} in the file, and {to} here"
                    )));
                }
                None => return Err(differs(format!("table {name} has no column {} here", column.name))),
            }
        }
        if let Some(more) =
            here.columns.iter().find(|other| !table.columns.iter().any(|column| column.name == other.name))
        {
            return Err(differs(format!("table {name} has a column {} here that the file does not have", more.name)));
        }
        // In the file's order.
        found.push(Table { columns: table.columns.clone(), ..here.clone() });
    }
    Ok(found)
}

struct Inserts<'a> {
    server: &'a Server,
    tables: Vec<Table>,
    replace: bool,
    /// Of one table.
    batch: Vec<FileRow>,
    bytes: usize,
    /// By table and number of rows.
    prepared: BTreeMap<(usize, usize), Statement>,
    /// Tables without a key that have been looked at.
    begun: Vec<usize>,
    /// Rows of one table that refer to some that are not there yet.
    waiting: Vec<FileRow>,
    waiting_bytes: usize,
}

impl<'a> Inserts<'a> {
    fn new(server: &'a Server) -> Inserts<'a> {
        Inserts {
            server,
            tables: Vec::new(),
            replace: false,
            batch: Vec::new(),
            bytes: 0,
            prepared: BTreeMap::new(),
            begun: Vec::new(),
            waiting: Vec::new(),
            waiting_bytes: 0,
        }
    }

    async fn add(&mut self, row: FileRow) -> Result<(), Failure> {
        let other = self.batch.first().is_some_and(|first| first.table != row.table);
        if other || self.batch.len() >= self.batch_rows(row.table) || self.bytes >= BATCH_BYTES {
            self.flush().await?;
        }
        if other {
            self.settle().await?;
        }
        self.bytes += row.values.iter().flatten().map(String::len).sum::<usize>();
        self.batch.push(row);
        Ok(())
    }

    fn batch_rows(&self, table: usize) -> usize {
        (BATCH_PARAMETERS / self.tables[table].columns.len().max(1)).clamp(1, BATCH_ROWS)
    }

    async fn flush(&mut self) -> Result<(), Failure> {
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        let Some(at) = batch.first().map(|row| row.table) else { return Ok(()) };
        self.begin_table(at).await?;
        // Full batches have one statement, and what is left over goes row by row.
        let full = self.batch_rows(at);
        let size = if batch.len() == full { full } else { 1 };
        let mut late = Vec::new();
        for (n, rows) in batch.chunks(size).enumerate() {
            if !self.insert(at, rows).await? {
                late.extend(n * size..n * size + rows.len());
            }
        }
        let late = batch.into_iter().enumerate().filter(|(n, _)| late.contains(n)).map(|(_, row)| row);
        self.keep_waiting(late.collect())
    }

    /// Inserts rows; false if one of them refers to a row of its own table that is not there yet.
    async fn insert(&mut self, at: usize, rows: &[FileRow]) -> Result<bool, Failure> {
        let statement = self.statement(at, rows.len()).await?;
        let values: Vec<Text<'_>> =
            rows.iter().flat_map(|row| &row.values).map(|value| Text(value.as_deref())).collect();
        let params: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
        let table = &self.tables[at];
        if !table.parents.contains(&table.name) {
            let written = self.server.client().execute(&statement, &params).await;
            return written.map(|_| true).map_err(|error| self.refused(at, &error));
        }
        self.server.run("SAVEPOINT rows").await?;
        match self.server.client().execute(&statement, &params).await {
            Ok(_) => self.server.run("RELEASE rows").await.map(|()| true),
            Err(error) if sqlstate(&error) == "23503" => self.server.run("ROLLBACK TO rows").await.map(|()| false),
            Err(error) => Err(self.refused(at, &error)),
        }
    }

    fn keep_waiting(&mut self, rows: Vec<FileRow>) -> Result<(), Failure> {
        self.waiting_bytes += rows.iter().flat_map(|row| row.values.iter().flatten()).map(String::len).sum::<usize>();
        self.waiting.extend(rows);
        match self.waiting_bytes > WAITING_BYTES_MAX {
            false => Ok(()),
            true => Err(Failure::check("too many rows refer to later ones of their own table").code("54000")),
        }
    }

    /// Tries rows again that wait, until none is left. They wait for later ones, so the last comes first; and then the
    /// other way round, for those that wait for both.
    async fn settle(&mut self) -> Result<(), Failure> {
        let mut waiting = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        while let Some(at) = waiting.first().map(|row| row.table) {
            let count = waiting.len();
            let mut left = Vec::new();
            for row in waiting.into_iter().rev() {
                if !self.insert(at, std::slice::from_ref(&row)).await? {
                    left.push(row);
                }
            }
            if left.len() == count {
                let name = &self.tables[at].name;
                let message =
                    format!("{count} rows of table {name} refer to rows that are not there, or to each other");
                return Err(Failure::check(message).code("23503").hint("nothing was changed"));
            }
            waiting = left;
        }
        Ok(())
    }

    fn refused(&self, at: usize, error: &tokio_postgres::Error) -> Failure {
        match sqlstate(error) {
            "23505" if !self.replace => self.there_already(at),
            _ => refusal(error),
        }
    }

    fn there_already(&self, at: usize) -> Failure {
        Failure::check(format!("table {} has rows that the file has, too", self.tables[at].name))
            .code("23505")
            .hint("nothing was changed; --replace replaces them")
    }

    /// Rows of a table without a key cannot be told apart: it must have none, or they are replaced together.
    async fn begin_table(&mut self, at: usize) -> Result<(), Failure> {
        if !self.tables[at].key.is_empty() || self.begun.contains(&at) {
            return Ok(());
        }
        self.begun.push(at);
        let name = self.tables[at].quoted();
        if self.replace {
            return self.server.run(&format!("DELETE FROM {name}")).await;
        }
        let found = self.server.query(&format!("SELECT 1 FROM {name} LIMIT 1")).await?;
        if found.rows.is_empty() { Ok(()) } else { Err(self.there_already(at)) }
    }

    async fn statement(&mut self, at: usize, rows: usize) -> Result<Statement, Failure> {
        if let Some(statement) = self.prepared.get(&(at, rows)) {
            return Ok(statement.clone());
        }
        let statement = self.server.client().prepare(&insert(&self.tables[at], rows, self.replace)).await;
        let statement = statement.map_err(|error| refusal(&error))?;
        self.prepared.insert((at, rows), statement.clone());
        Ok(statement)
    }
}

fn insert(table: &Table, rows: usize, replace: bool) -> String {
    let name = table.quoted();
    if table.columns.is_empty() {
        return format!("INSERT INTO {name} DEFAULT VALUES");
    }
    let width = table.columns.len();
    let row = |at: usize| {
        let params: Vec<String> = (1..=width).map(|n| format!("${}", at * width + n)).collect();
        format!("({})", params.join(", "))
    };
    let values: Vec<String> = (0..rows).map(row).collect();
    let overriding = if table.overrides { " OVERRIDING SYSTEM VALUE" } else { "" };
    let sql = format!("INSERT INTO {name} ({}){overriding} VALUES {}", table.column_list(), values.join(", "));
    if !replace || table.key.is_empty() {
        return sql;
    }
    let keys = list(table.key.iter().map(String::as_str));
    let rest = table.columns.iter().map(|column| &column.name).filter(|name| !table.key.contains(name));
    let set: Vec<String> = rest.map(|name| format!("{0} = excluded.{0}", super::server::identifier(name))).collect();
    match set.is_empty() {
        true => format!("{sql} ON CONFLICT ({keys}) DO NOTHING"),
        false => format!("{sql} ON CONFLICT ({keys}) DO UPDATE SET {}", set.join(", ")),
    }
}
