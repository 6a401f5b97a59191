//! A tenant's rows of one moment, into a file.
//!
//! One transaction reads all tables, so the rows are of one snapshot. They are read in pages by key, and written as they
//! come: memory holds a page, however large the tenant. The server bounds what a statement gathers; a page that is
//! beyond that is read again with half as many rows.

use super::super::client::ServerArguments;
use super::super::output::{Failure, Format, FormatArgument, Outcome, complain, say_json};
use super::file::{FileTable, Writer};
use super::progress_bar;
use super::server::{Server, identifier, literal, refusal, sqlstate};
use super::tables::{self, Table, list};
use indicatif::ProgressBar;
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use tokio_postgres::SimpleQueryMessage;

/// Rows of a page, at most.
const PAGE_ROWS: usize = 1_000;

/// Bytes of a page that are aimed at: what is read next has fewer rows if the last ones were larger.
const PAGE_BYTES: usize = 4 << 20;

#[derive(clap::Args)]
pub(crate) struct ExportArguments {
    /// The tenant
    name: String,
    /// The file that it becomes; standard output without it
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArguments,
    #[command(flatten)]
    pub(super) format: FormatArgument,
}

pub(super) async fn run(arguments: &ExportArguments) -> Result<Outcome, Failure> {
    let format = arguments.format.format();
    let server = Server::connect(&arguments.server).await?;
    let bar = progress_bar(format, "rows");
    let Some(path) = &arguments.to else {
        let out = BufWriter::new(std::io::stdout());
        let done = export(&server, &arguments.name, out, &bar).await;
        bar.finish_and_clear();
        return done.map(|_| Outcome::Done);
    };
    // A file of this name is whole, or is not there.
    let cannot = |fault: std::io::Error| Failure::usage(format!("cannot write {}: {fault}", path.display())).code("io");
    let mut part = path.clone().into_os_string();
    part.push(".part");
    let out = BufWriter::new(File::create(&part).map_err(cannot)?);
    let exported = export(&server, &arguments.name, out, &bar).await;
    bar.finish_and_clear();
    let (rows, out) = exported.inspect_err(|_| drop(std::fs::remove_file(&part)))?;
    let file = out.into_inner().map_err(|fault| cannot(fault.into_error()))?;
    file.sync_all().and_then(|()| std::fs::rename(&part, path)).map_err(cannot)?;
    match format {
        Format::Text => complain(&format!("{}: {rows} rows in {}", arguments.name, path.display())),
        Format::Json => say_json(&json!({"tenant": arguments.name, "rows": rows, "file": path}))?,
    }
    Ok(Outcome::Done)
}

/// Writes all of it; how many rows there were, and where they went.
async fn export<W: Write>(server: &Server, name: &str, out: W, bar: &ProgressBar) -> Result<(u64, W), Failure> {
    let shown = server.query(&format!("SHOW TENANT {}", identifier(name))).await?;
    let figure = |column: &str| -> Option<u64> {
        let at = shown.columns.as_ref()?.iter().position(|name| name == column)?;
        shown.rows.first()?.get(at)?.as_ref()?.parse().ok()
    };
    bar.set_length(figure("rows").unwrap_or(0));
    // A tenant's own quota bounds what its statements return, and these, too.
    let page_rows = figure("max_rows").map_or(PAGE_ROWS, |max| usize::try_from(max).unwrap_or(PAGE_ROWS));
    let page_rows = page_rows.clamp(1, PAGE_ROWS);
    begin(server, name).await?;
    let tables = tables::tables(server).await?;
    let described =
        |table: &Table| FileTable { name: table.name.clone(), columns: table.columns.clone(), key: table.key.clone() };
    let mut writer = Writer::new(out, name, tables.iter().map(described).collect())?;
    for (at, table) in tables.iter().enumerate() {
        let mut pages = Pages { server, table, rows: page_rows, most: page_rows, after: None, offset: 0 };
        while let Some(rows) = pages.next().await? {
            for row in &rows {
                writer.row(at, row)?;
            }
            bar.set_position(writer.rows());
        }
    }
    let rows = writer.rows();
    let out = writer.finish()?;
    server.run("COMMIT").await?;
    Ok((rows, out))
}

/// A snapshot, in which values are written so that they can be read again exactly.
async fn begin(server: &Server, name: &str) -> Result<(), Failure> {
    for setting in [
        format!("SET isles.tenant = {}", literal(name)),
        "SET idle_in_transaction_session_timeout = 0".into(),
        "SET DateStyle = 'ISO, YMD'".into(),
        "SET IntervalStyle = 'postgres'".into(),
        "SET TimeZone = 'UTC'".into(),
        "SET bytea_output = 'hex'".into(),
        "SET extra_float_digits = 1".into(),
        "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY".into(),
    ] {
        server.run(&setting).await?;
    }
    Ok(())
}

type Row = Vec<Option<String>>;

/// A table's rows, page by page: by its key, or if it has none in the order of all its columns.
struct Pages<'a> {
    server: &'a Server,
    table: &'a Table,
    rows: usize,
    most: usize,
    after: Option<Row>,
    offset: usize,
}

impl Pages<'_> {
    async fn next(&mut self) -> Result<Option<Vec<Row>>, Failure> {
        loop {
            self.server.run("SAVEPOINT page").await?;
            let answer = self.server.client().simple_query(&self.query()).await;
            match answer {
                Ok(messages) => {
                    self.server.run("RELEASE page").await?;
                    return Ok(self.taken(&messages));
                }
                Err(error) if sqlstate(&error) == "54000" && self.rows > 1 => {
                    self.server.run("ROLLBACK TO page").await?;
                    self.rows = (self.rows / 2).max(1);
                }
                Err(error) => return Err(refusal(&error)),
            }
        }
    }

    fn query(&self) -> String {
        let Table { columns, key, .. } = self.table;
        let name = self.table.quoted();
        let select = if columns.is_empty() { "NULL".to_string() } else { self.table.column_list() };
        if key.is_empty() {
            // Equal rows are alike, so it does not matter which of them is on which page.
            let order: Vec<String> =
                columns.iter().map(|column| format!("{}::text", identifier(&column.name))).collect();
            let order = if order.is_empty() { String::new() } else { format!(" ORDER BY {}", order.join(", ")) };
            return format!("SELECT {select} FROM {name}{order} LIMIT {} OFFSET {}", self.rows, self.offset);
        }
        let keys = list(key.iter().map(String::as_str));
        let filter = self.after.as_ref().map_or(String::new(), |row| {
            let values: Vec<String> = key.iter().map(|part| self.value_of(part, row)).collect();
            format!(" WHERE ({keys}) > ({})", values.join(", "))
        });
        format!("SELECT {select} FROM {name}{filter} ORDER BY {keys} LIMIT {}", self.rows)
    }

    /// A part of the last row's key, as SQL.
    fn value_of(&self, part: &str, row: &Row) -> String {
        let at = self.table.columns.iter().position(|column| column.name == part);
        let value = at.and_then(|at| Some((self.table.columns.get(at)?, row.get(at)?.as_ref()?)));
        value.map_or("NULL".into(), |(column, text)| format!("CAST({} AS {})", literal(text), column.ty))
    }

    fn taken(&mut self, messages: &[SimpleQueryMessage]) -> Option<Vec<Row>> {
        let mut rows = Vec::new();
        let mut bytes = 0;
        for message in messages {
            if let SimpleQueryMessage::Row(row) = message {
                let row: Row = (0..self.table.columns.len()).map(|at| row.get(at).map(str::to_owned)).collect();
                bytes += row.iter().flatten().map(String::len).sum::<usize>();
                rows.push(row);
            }
        }
        let last = rows.last()?.clone();
        self.after = Some(last);
        self.offset += rows.len();
        self.rows = (rows.len() * PAGE_BYTES / bytes.max(1)).clamp(1, self.most);
        Some(rows)
    }
}
